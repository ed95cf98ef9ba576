//! Types in Luau that are shown to users: the examples, and the files and commands of `docs/objects.md`,
//! which are run in the order of the page.

#![cfg(feature = "scripts")]
#![expect(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs `cattlegrid` with these words. Returns its output, and whether its status is 0.
fn cattlegrid(dir: &Path, words: &[&str]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cattlegrid"));
    let output = command.args(words).current_dir(dir).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

#[test]
fn the_examples() {
    for (dir, files) in [("luau", 5), ("own", 3)] {
        let dir = root().join("examples/objects").join(dir);
        let path = format!("{}/", dir.display());
        let (is_good, said) = cattlegrid(&dir, &["objects", "test", &path]);
        assert!(is_good, "{said}");
        let count = |end: &str| said.lines().filter(|line| line.ends_with(end)).count();
        assert!(count(" requests") >= files && count(" checks") >= 1, "{said}");
        let (is_good, said) = cattlegrid(&dir, &["objects", "lint", &path]);
        assert!(is_good && said.contains(" 0 errors, 0 warnings"), "{said}");
    }
}

#[test]
fn the_examples_as_a_whole() {
    let dir = root().join("examples/objects");
    let path = dir.display().to_string();
    let (is_good, said) = cattlegrid(&dir, &["objects", "test", &path]);
    assert!(is_good, "{said}");
    for line in [
        "/own: types: flag, plan, ranking",
        "/luau: types: map, quota, quota_codes, set, swcounter; for require: lib/arguments, lib/window",
    ] {
        assert!(said.contains(&format!("{path}{line}\n")), "{said}");
    }
    for file in ["type-quota.memc", "own/plan.test.luau", "own/plan.memc", "luau/quota.test.luau"] {
        assert!(said.contains(&format!("{path}/{file}")), "{said}");
    }
    let (is_good, said) = cattlegrid(&dir, &["objects", "lint", &path]);
    assert!(
        is_good && said.contains("(8 types, 2 for require, 6 of tests), 0 errors, 0 warnings\n"),
        "{said}"
    );
    // A server, which takes one directory, says what to do.
    let (is_good, said) = cattlegrid(&dir, &["objects", "list", &path]);
    assert!(!is_good && said.contains("has no types: sources in its folders, such as "), "{said}");
}

/// The blocks of code of a section, each with its language.
fn blocks<'p>(page: &'p str, section: &str) -> Vec<(&'p str, &'p str)> {
    let (_, text) = page.split_once(&format!("\n## {section}\n")).unwrap();
    let text = text.split_once("\n## ").map_or(text, |(own, _)| own);
    let parts: Vec<&str> = text.split("\n```").collect();
    assert_eq!(parts.len() % 2, 1, "each block has an end");
    parts.iter().skip(1).step_by(2).map(|block| block.split_once('\n').unwrap()).collect()
}

/// A block of Luau that begins with `-- objects/poll.luau` is that file from there on. A block of text whose
/// first line is `$ cattlegrid ...` has commands, each with what it prints; `> FILE` writes that to a file.
#[test]
fn the_page() {
    let page = fs::read_to_string(root().join("docs/objects.md")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("objects")).unwrap();
    let (mut files, mut commands) = (0, 0);
    for (language, block) in blocks(&page, "Write a type") {
        if language == "luau" {
            let name = block.lines().next().unwrap().strip_prefix("-- objects/").unwrap();
            fs::write(dir.path().join("objects").join(name), format!("{block}\n")).unwrap();
            files += 1;
        } else if language == "text" && block.starts_with("$ cattlegrid ") {
            for command in format!("\n{block}").split("\n$ cattlegrid ").skip(1) {
                let (line, expected) = command.split_once('\n').unwrap_or((command, ""));
                let (line, file) =
                    line.split_once(" > ").map_or((line, None), |(line, file)| (line, Some(file)));
                let words: Vec<&str> = line.split_whitespace().collect();
                let (_, said) = cattlegrid(dir.path(), &words);
                match file {
                    Some(file) => fs::write(dir.path().join(file), said).unwrap(),
                    None => assert_eq!(said.trim_end(), expected.trim_end(), "{line}"),
                }
                commands += 1;
            }
        }
    }
    assert!(files >= 4 && commands >= 4, "{files} files, {commands} commands");
}
