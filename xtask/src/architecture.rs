//! Checks what `docs/architecture.md` says of the source: files that it names exist, and its table of modules
//! with unsafe code is the list of those that open it, whose tests the sanitizer runs.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::test::UNSAFE_CODE;

/// All files of the repository that git knows, or would.
fn files() -> BTreeSet<String> {
    let listed = crate::command("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .output()
        .expect("git lists files");
    let text = String::from_utf8(listed.stdout).expect("names are UTF-8");
    let exists = |file: &&str| Path::new(crate::root()).join(file).exists();
    text.lines().filter(exists).map(str::to_owned).collect()
}

fn text() -> String {
    fs::read_to_string(format!("{}/docs/architecture.md", crate::root())).expect("it is there")
}

/// The words between backquotes in a line, those of code blocks apart.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

fn is_source(file: &str) -> bool {
    Path::new(file).extension().is_some_and(|extension| extension == "rs")
}

/// Whether a file or a folder is meant: `shard.rs`, `shard/`, `tests/data`.
fn is_path(word: &str) -> bool {
    let is_name = word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_./-".contains(&byte));
    is_name && (is_source(word) || word.contains('/') && !word.starts_with('/'))
}

/// Words that look like files of this repository and are not.
const OTHERS: [&str; 3] = ["TCP/UDP", "proc/self", "examples/objects/type-NAME.memc"];

/// Whether a file or folder of that name is in a folder whose name ends with `within`.
fn has(files: &BTreeSet<String>, within: &str, word: &str) -> bool {
    let name = word.trim_end_matches('/');
    let is_it = |at: &str| at == name || at.ends_with(&format!("/{name}"));
    files.iter().filter(|file| file.contains(within)).any(|file| {
        // The file, or a folder above it.
        let mut at = file.as_str();
        loop {
            if is_it(at) {
                return true;
            }
            match at.rsplit_once('/') {
                Some((above, _)) => at = above,
                None => return false,
            }
        }
    })
}

/// Whether there is this file or folder.
fn has_exactly(files: &BTreeSet<String>, path: &str) -> bool {
    let path = path.trim_end_matches('/');
    files.contains(path) || files.iter().any(|file| file.starts_with(&format!("{path}/")))
}

#[test]
fn files_that_are_named_exist() {
    let (files, text) = (files(), text());
    let crates: BTreeSet<&str> = files
        .iter()
        .filter_map(|file| file.strip_prefix("crates/")?.split_once('/'))
        .map(|(name, _)| name)
        .collect();
    let (mut missing, mut count, mut is_code, mut of) = (Vec::new(), 0, false, Vec::new());
    for line in text.lines() {
        is_code ^= line.starts_with("```");
        // A paragraph of the code map begins with the names of its crates; others name files of any.
        if let Some((names, _)) = line.strip_prefix("**`").and_then(|rest| rest.split_once("`**:")) {
            of = quoted(&format!("`{names}`")).map(str::to_owned).collect();
        } else if line.is_empty() {
            of.clear();
        }
        if is_code {
            continue;
        }
        for word in quoted(line).filter(|word| is_path(word) && !OTHERS.contains(word)) {
            count += 1;
            let (first, rest) = word.split_once('/').unwrap_or((word, ""));
            let is_there = if crates.contains(first) && !rest.is_empty() {
                has_exactly(&files, &format!("crates/{first}/src/{rest}"))
            } else {
                let is_own = |name: &String| has(&files, &format!("crates/{name}/"), word);
                of.iter().any(is_own) || (of.is_empty() || word.contains('/')) && has(&files, "", word)
            };
            if !is_there {
                missing.push(word);
            }
        }
    }
    assert!(missing.is_empty(), "docs/architecture.md names files that do not exist: {missing:?}");
    assert!(count > 250, "{count} files are named");
}

#[test]
fn methods_that_are_named_exist() {
    let sources: String = files()
        .iter()
        .filter(|file| is_source(file))
        .map(|file| fs::read_to_string(format!("{}/{file}", crate::root())).expect("it is listed"))
        .collect();
    let text = text();
    let is_method = |word: &&str| {
        let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        word.split_once("::").is_some_and(|(ty, method)| {
            ty.starts_with(char::is_uppercase)
                && method.starts_with(char::is_lowercase)
                && is_name(ty)
                && is_name(method)
        })
    };
    let methods: BTreeSet<&str> = text.lines().flat_map(quoted).filter(is_method).collect();
    let is_missing = |word: &&str| {
        let name = word.rsplit("::").next().expect("a name");
        !sources.contains(&format!("fn {name}(")) && !sources.contains(&format!("fn {name}<"))
    };
    let missing: Vec<_> = methods.iter().copied().filter(is_missing).collect();
    assert!(missing.is_empty(), "docs/architecture.md names methods that do not exist: {missing:?}");
    assert!(methods.len() > 15, "{methods:?}");
}

/// Modules that open `unsafe_code`, as `store::memory`.
fn unsafe_modules(files: &BTreeSet<String>) -> BTreeSet<String> {
    let opens = |file: &&String| {
        let text = fs::read_to_string(format!("{}/{file}", crate::root())).expect("it is listed");
        let head: String = text.lines().take_while(|line| !line.starts_with("use ")).collect();
        head.split("#![").skip(1).any(|attribute| {
            (attribute.starts_with("expect(") || attribute.starts_with("allow("))
                && attribute.split(']').next().is_some_and(|attribute| attribute.contains("unsafe_code"))
        })
    };
    let module = |file: &String| {
        let (name, rest) =
            file.strip_prefix("crates/").expect("of a crate").split_once("/src/").expect("a source");
        format!("{name}::{}", rest.trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::"))
    };
    files
        .iter()
        .filter(|file| file.starts_with("crates/") && file.contains("/src/") && is_source(file))
        .filter(opens)
        .map(module)
        .collect()
}

#[test]
fn unsafe_code_is_where_the_table_says_and_its_tests_are_run_by_the_sanitizer() {
    let text = text();
    let section =
        text.split("## Unsafe code").nth(1).and_then(|rest| rest.split("\n## ").next()).expect("a section");
    let table: BTreeSet<String> = section
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` |"))
        .map(|(module, _)| module.to_owned())
        .collect();
    let modules = unsafe_modules(&files());
    assert_eq!(table, modules, "the table of docs/architecture.md, and modules that open `unsafe_code`");
    assert!(!modules.is_empty());
    for module in &modules {
        let (name, path) = module.split_once("::").expect("a crate and a module");
        let clauses = UNSAFE_CODE.split("package(=cattlegrid-").skip(1);
        let clause = clauses.into_iter().find(|clause| clause.starts_with(&format!("{name})")));
        let clause = clause.unwrap_or_else(|| panic!("the sanitizer runs no test of {module}"));
        let last = path.rsplit("::").next().expect("a name");
        let is_run = !clause.contains("kind(lib) and test(") || clause.contains(last);
        assert!(is_run, "the sanitizer leaves tests of {module} out: {clause}");
    }
}
