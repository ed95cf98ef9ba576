//! Tests of the digest of a directory.

use std::fs;

use super::OwnTypes;

#[test]
fn changes_of_sources_are_seen_and_no_others() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let mut last = OwnTypes::look(path);
    let mut differs = |what: &str, expected: bool| {
        let now = OwnTypes::look(path);
        assert_eq!(now != last, expected, "{what}");
        last = now;
    };
    differs("nothing", false);
    fs::write(path.join("a.luau"), "1").unwrap();
    differs("a new source", true);
    fs::write(path.join("a.luau"), "12").unwrap();
    differs("another size", true);
    fs::write(path.join("note.txt"), "1").unwrap();
    differs("another file", false);
    fs::create_dir(path.join("lib")).unwrap();
    differs("an empty directory", false);
    fs::write(path.join("lib/b.lua"), "1").unwrap();
    differs("a library", true);
    fs::rename(path.join("a.luau"), path.join("c.luau")).unwrap();
    differs("another name", true);
    // Another file with the same size and times, as an editor saves it.
    fs::write(path.join("new"), "21").unwrap();
    fs::rename(path.join("new"), path.join("c.luau")).unwrap();
    differs("another file under the name", true);
    fs::remove_file(path.join("lib/b.lua")).unwrap();
    differs("a library that is gone", true);
    assert_eq!(OwnTypes::look(&path.join("none")), OwnTypes::look(&path.join("lib")), "none is empty");
}
