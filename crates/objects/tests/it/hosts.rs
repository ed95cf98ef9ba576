//! Registries with types of users' own: their names, methods and numbers.

#![expect(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

use std::sync::Arc;

use crate::fake_host::{Fake, host_type};
use cattlegrid_objects::{
    Arguments, HostType, Object, ObjectOutcome, ObjectState, ObjectType, Registry, ScriptMethodId, Settings,
    TYPE_METHODS_MAX, TypeSettings, VirtualKey,
};
use cattlegrid_store::Memory;

/// With these types of users' own, and all shipped ones.
fn registry(types: Vec<HostType>) -> Registry {
    let mut settings = Settings::default();
    for own in &types {
        if settings.types.iter().all(|one| one.name != own.settings.name) {
            settings.types.push(own.settings.clone());
        }
    }
    Registry::with_host(settings, Some(Arc::new(Fake(types)))).unwrap()
}

/// The type's number, what runs the method, and the method's number.
fn called(registry: &Registry, name: &str) -> Option<(u16, Option<ScriptMethodId>, usize)> {
    let Some(VirtualKey::Call(call)) = registry.named(name.as_bytes()) else { return None };
    let script = registry.script(call.method).map(|script| script.method);
    Some((call.type_id, script, registry.number(call.method)))
}

/// Calls a method that the registry runs, on an object that is not there.
fn run(registry: &Registry, name: &str) -> String {
    let Some(VirtualKey::Call(call)) = registry.named(name.as_bytes()) else { panic!("no call {name}") };
    let (mut new, mut out) = (Vec::new(), Vec::new());
    let memory = Memory::new(1 << 20).unwrap();
    let object = Object::new(b"k", ObjectState::Absent, &mut new, &memory, None);
    match registry.call(call.method, object, &Arguments::none(), 0, 0, &mut out).outcome {
        ObjectOutcome::Value { .. } => String::from_utf8(out).unwrap(),
        outcome => format!("{outcome:?}"),
    }
}

#[test]
fn a_type_with_a_shipped_name_takes_its_place() {
    let shipped = Registry::new(Settings::default()).unwrap();
    let (set_id, none, shipped_number) = called(&shipped, "set:add:k:a").unwrap();
    assert_eq!(none, None);
    let own = registry(vec![host_type("set", &["add", "new"])]);
    let (type_id, script, number) = called(&own, "set:add:k:a").unwrap();
    assert_eq!(script, Some(ScriptMethodId::Own(0)));
    assert_ne!(type_id, set_id, "their objects are not mixed");
    assert_ne!(number, shipped_number);
    assert!((Registry::methods_max()..Registry::numbers_max()).contains(&number));
    assert!(own.has_type(type_id) && !own.has_type(set_id) && shipped.has_type(set_id));
    assert_eq!(called(&own, "set:pop:k"), None, "a method of the shipped type is an ordinary key");
    assert_eq!(called(&own, "map:get:k:a"), called(&shipped, "map:get:k:a"));
    assert_eq!(own.named(b"set::k"), Some(VirtualKey::Object { type_id, key: b"k".into() }));
    let of_name: Vec<&ObjectType> = own.types().filter(|one| one.name == "set").collect();
    assert_eq!(of_name.iter().map(|one| one.id).collect::<Vec<_>>(), [type_id]);
    let without = Registry::with_host(Settings::default(), Some(Arc::new(Fake(Vec::new())))).unwrap();
    assert_eq!(called(&without, "set:add:k:a"), Some((set_id, None, shipped_number)), "when it is gone");
}

#[test]
fn a_type_that_no_setting_names_is_off() {
    let host = Arc::new(Fake(vec![host_type("unnamed", &["new"])]));
    let registry = Registry::with_host(Settings::default(), Some(host)).unwrap();
    assert_eq!(called(&registry, "unnamed:new:k"), None);
    let settings = Settings { types: vec![TypeSettings::new("nowhere")], ..Settings::default() };
    let error = Registry::with_host(settings, Some(Arc::new(Fake(Vec::new())))).unwrap_err();
    assert_eq!(error, "objects: no type \"nowhere\"");
}

#[test]
fn methods_that_every_object_has() {
    let registry = registry(vec![host_type("reserved", &["new", "add"])]);
    let of = |method: &str| called(&registry, &format!("reserved:{method}:k")).unwrap().1;
    assert_eq!(of("add"), Some(ScriptMethodId::Own(1)));
    assert_eq!(of("dump"), Some(ScriptMethodId::Dump), "the host reads the state");
    for method in ["drop", "ttl", "exists", "size", "methods"] {
        assert_eq!(of(method), None, "{method}");
    }
    assert_eq!(
        run(&registry, "reserved:methods"),
        "new\r\nadd\r\ndrop\r\nttl\r\nexists\r\ndump\r\nsize\r\nmethods\r\n"
    );
    assert_eq!(run(&registry, "reserved:exists:k"), "NOT_FOUND");
    assert_eq!(run(&registry, "reserved:drop:k"), "NOT_FOUND");
    assert_eq!(run(&registry, "reserved:ttl:k"), "Miss");
}

#[test]
fn counters_go_on_when_a_type_is_loaded_anew() {
    let before = registry(vec![host_type("reloaded", &["new", "add", "less"]), host_type("other", &["add"])]);
    let after = registry(vec![host_type("reloaded", &["less", "more", "new"]), host_type("other", &["add"])]);
    for method in ["reloaded:new", "reloaded:less", "reloaded:size", "reloaded:dump", "other:add", "set:add"]
    {
        let [before, after] = [&before, &after].map(|registry| called(registry, method).unwrap());
        assert_eq!((before.0, before.2), (after.0, after.2), "{method}");
    }
    assert_eq!(called(&after, "reloaded:add"), None);
    let more = called(&after, "reloaded:more").unwrap().2;
    let mut all = before.types().flat_map(|one| before.numbered_methods(one.id));
    assert!(all.all(|(number, _)| number != more), "a new method has a number of its own");
    let again = registry(vec![host_type("reloaded", &["add"])]);
    assert_eq!(
        called(&again, "reloaded:add"),
        called(&before, "reloaded:add").map(|(id, _, number)| { (id, Some(ScriptMethodId::Own(0)), number) })
    );
}

#[test]
fn the_most_methods_of_a_type() {
    let names: Vec<String> = (0..TYPE_METHODS_MAX).map(|place| format!("m{place}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let registry = registry(vec![host_type("wide", &names)]);
    let mut numbers: Vec<usize> = Vec::new();
    for (place, name) in names.iter().enumerate() {
        let (_, script, number) = called(&registry, &format!("wide:{name}:k")).unwrap();
        assert_eq!(script, Some(ScriptMethodId::Own(place)));
        numbers.push(number);
    }
    for name in ["drop", "ttl", "exists", "dump", "size", "methods"] {
        numbers.push(called(&registry, &format!("wide:{name}:k")).unwrap().2);
    }
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), TYPE_METHODS_MAX + 6, "each has its own counters");
    assert!(numbers.iter().all(|number| (Registry::methods_max()..Registry::numbers_max()).contains(number)));
    assert_eq!(called(&registry, &format!("wide:m{TYPE_METHODS_MAX}:k")), None);
}
