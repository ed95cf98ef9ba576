//! Tests of the functions' definitions for editors.

use std::collections::{BTreeMap, BTreeSet};

use mlua::Function;

use super::*;
use crate::vm::{Program, globals, sandbox};

/// The names in the definitions for editors: the entries of each table by its name; those of inner tables
/// have a dot.
fn defined() -> BTreeMap<String, BTreeSet<String>> {
    let (mut all, mut path) = (BTreeMap::<String, BTreeSet<String>>::new(), Vec::new());
    let mut has_comment = false;
    for line in include_str!("../../../../contrib/luau/cg.d.luau").lines() {
        let text = line.trim();
        let name = text.split([':', '=', ' ']).next().unwrap_or_default().to_owned();
        if text.starts_with("--") {
            has_comment = true;
            continue;
        } else if text.starts_with('}') {
            path.pop();
        } else if text.ends_with('{') && path.is_empty() {
            let words = text.trim_start_matches("export ").split([' ', ':']).nth(1);
            path.push(words.unwrap_or_default().to_owned());
        } else if let Some(table) = path.first() {
            let full = path[1..].iter().chain([&name]).map(String::as_str).collect::<Vec<_>>().join(".");
            all.entry(table.clone()).or_default().insert(full);
            let is_table = text.ends_with('{');
            assert!(has_comment || is_table || name == "test", "{line}: has no comment");
            if is_table {
                path.push(name);
            }
        }
        has_comment = false;
    }
    all
}

#[test]
fn definitions_for_editors_name_what_a_vm_has() {
    let mut all = defined();
    let mut of_cg = all.remove("cg").unwrap();
    assert!(of_cg.remove("test"));
    let reached = globals().into_iter().filter_map(|name| name.strip_prefix("cg."));
    assert_eq!(of_cg, reached.map(str::to_owned).collect());
    let of_tests = include_str!("../offline/prelude.luau").lines().filter_map(|line| {
        let name = line.trim_start_matches("function ").strip_prefix("t.")?;
        Some(name.split(['(', ' ']).next()?.to_owned())
    });
    assert_eq!(all.remove("Test").unwrap(), of_tests.collect());
    let lua = sandbox(&Program::default(), 16 << 20).unwrap();
    let index: Function = lua.type_metatable::<LightUserData>().unwrap().raw_get("__index").unwrap();
    for (name, kind, methods) in KINDS {
        let title = format!("{}{}", name[..1].to_uppercase(), &name[1..]);
        let lists = lists::names(kind);
        let each = (!lists.is_empty()).then_some("each");
        let combinations = lists::COMBINATIONS.iter().filter(|_| kind == FieldKind::Set);
        let methods = methods.iter().map(|(method, ..)| method);
        let own: BTreeSet<String> =
            methods.chain(lists).chain(each.iter()).chain(combinations).map(ToString::to_string).collect();
        for method in &own {
            let light = LightUserData(usize::from(kind.number()) as *mut c_void);
            let found: Value = index.call((light, &**method)).unwrap();
            assert!(found.is_function(), "{name}:{method}");
        }
        assert_eq!(all.remove(&title).unwrap(), own, "{name}");
    }
    assert!(all.is_empty(), "{all:?}");
}
