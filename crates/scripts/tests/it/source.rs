//! Directories of types: what is read, and what is refused.

use std::fs;
use std::path::Path;

use cattlegrid_scripts::{FILE_MAX, FILES_MAX, SourceFile, Sources};

/// A directory with these files.
fn dir(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, text) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().expect("it is in the directory")).expect("a folder");
        fs::write(path, text).expect("a file");
    }
    dir
}

/// The problems as text, without the directory.
fn problems(dir: &Path) -> Vec<String> {
    let found = Sources::read(dir).expect_err("it has problems");
    found.iter().map(|one| one.to_string().replace(&format!("{}/", dir.display()), "")).collect()
}

fn names(list: &[SourceFile]) -> Vec<&str> {
    list.iter().map(|source| &*source.name).collect()
}

#[test]
fn types_libraries_and_tests_are_told_apart() {
    let dir = dir(&[
        ("b.lua", b"return {}"),
        ("a_1.luau", "return { '\u{a0}\u{e9}' } -- \u{a0}".as_bytes()),
        ("a_1.test.luau", b""),
        ("lib/window.luau", b"return {}"),
        ("lib/deep/Er-1.lua", b"return {}"),
        ("README.md", b"\xff"),
        ("a.memc", b""),
        (".hidden.luau", b"\xff"),
        (".git/x.luau", b"\xff"),
    ]);
    let sources = Sources::read(dir.path()).unwrap();
    assert_eq!(names(&sources.types), ["a_1", "b"]);
    assert_eq!(names(&sources.libraries), ["lib/deep/Er-1", "lib/window"]);
    assert_eq!(names(&sources.tests), ["a_1"]);
    assert_eq!(sources.types[1].path, dir.path().join("b.lua"));
    assert_eq!(sources.types[1].text, "return {}");
}

#[test]
fn the_digest_tells_names_and_texts_apart() {
    let digest = |files: &[(&str, &[u8])]| Sources::read(dir(files).path()).unwrap().digest();
    let one = digest(&[("a.luau", b"return {}")]);
    assert_eq!(one, digest(&[("a.luau", b"return {}")]));
    for other in [
        ("b.luau", b"return {}"),
        ("a.luau", b"return{ }"),
        ("lib/a.luau", b"return {}"),
        ("a.test.luau", b"return {}"),
    ] {
        assert_ne!(one, digest(&[(other.0, other.1)]), "{other:?}");
    }
    assert_eq!(digest(&[]), Sources::default().digest());
}

#[test]
fn names_that_no_type_can_have_are_refused() {
    for name in ["Quota", "1a", "_a", "a-b", "a.b", "abcdefghijklmnopq"] {
        let file = format!("{name}.luau");
        let dir = dir(&[(&file, b"")]);
        let found = problems(dir.path());
        let text = "a type's name is 1 to 16 of a-z, 0-9 and _, first a letter: rename the file";
        assert_eq!(found, [format!("{file}: {text}")]);
    }
    assert!(Sources::read(dir(&[("abcdefghijklmnop.luau", b"")]).path()).is_ok());
}

#[test]
fn two_files_of_one_name_are_refused() {
    let dir = dir(&[("a.lua", b""), ("a.luau", b"")]);
    let found = problems(dir.path());
    assert_eq!(found, ["a.luau: a.lua has the same name: remove one of them"]);
}

#[test]
fn characters_that_luau_does_not_read_are_named_with_their_lines() {
    let text = "local a\u{a0}=\u{a0}1 -- \u{a0}\nlocal b = '\u{a0}'\nlocal c = \u{201c}x\u{201d}\n";
    let dir = dir(&[
        ("a.luau", text.as_bytes()),
        ("b.luau", "\u{feff}return {}".as_bytes()),
        ("c.luau", b"\n--\0"),
        ("d.luau", b"\n\nx = '\xff'"),
        ("e.luau", "\u{e9} = 1".as_bytes()),
    ]);
    assert_eq!(
        problems(dir.path()),
        [
            "a.luau:1: no-break space: replace it by a blank",
            "a.luau:3: \u{201c}: replace it by \"",
            "a.luau:3: \u{201d}: replace it by \"",
            "b.luau:1: a byte order mark: save the file without it",
            "c.luau:2: a NUL byte: remove it",
            "d.luau:3: not UTF-8: save the file as UTF-8, and write other bytes of strings as \\xNN",
            "e.luau:1: \u{e9}: only strings and comments may have characters outside of ASCII",
        ]
    );
}

#[test]
fn many_such_lines_are_not_all_reported() {
    let dir = dir(&[("a.luau", "\u{a0}\n".repeat(100).as_bytes())]);
    let found = problems(dir.path());
    assert_eq!(found.len(), 20);
    assert_eq!(found[19], "a.luau:20: no-break space: replace it by a blank");
}

#[test]
fn a_file_has_a_longest_length() {
    let text = vec![b' '; FILE_MAX];
    assert!(Sources::read(dir(&[("a.luau", &text)]).path()).is_ok());
    let text = vec![b' '; FILE_MAX + 1];
    let dir = dir(&[("a.luau", &text)]);
    assert_eq!(problems(dir.path()), ["a.luau: is longer than 1048576 bytes"]);
}

#[test]
fn a_directory_has_a_largest_number_of_files() {
    let dir = tempfile::tempdir().unwrap();
    for number in 0..FILES_MAX {
        fs::write(dir.path().join(format!("t{number}.luau")), "").unwrap();
    }
    assert_eq!(Sources::read(dir.path()).unwrap().types.len(), FILES_MAX);
    fs::write(dir.path().join("more.test.luau"), "").unwrap();
    let found = Sources::read(dir.path()).unwrap_err();
    assert_eq!(found[0].text, "has 201 files of Luau, at most 200 are read");
}

#[cfg(unix)]
#[test]
fn links_to_files_are_followed_and_links_to_folders_are_not() {
    use std::os::unix::fs::symlink;
    let dir = dir(&[("..data/quota.luau", b"return {}"), ("lib/x.luau", b"")]);
    symlink("..data/quota.luau", dir.path().join("quota.luau")).unwrap();
    assert_eq!(names(&Sources::read(dir.path()).unwrap().types), ["quota"]);
    symlink(".", dir.path().join("lib/again")).unwrap();
    symlink("nowhere", dir.path().join("gone.luau")).unwrap();
    fs::create_dir(dir.path().join("folder.luau")).unwrap();
    let found = problems(dir.path());
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("gone.luau: cannot be read: "), "{found:?}");
    assert_eq!(found[1], "lib/again: a link to a folder: put a folder in its place");
}

#[test]
fn a_directory_that_is_not_there_is_a_problem() {
    let dir = tempfile::tempdir().unwrap();
    let found = Sources::read(&dir.path().join("none")).unwrap_err();
    assert!(found[0].text.starts_with("cannot be read: "), "{found:?}");
    assert_eq!(Sources::read(dir.path()).unwrap(), Sources::default());
}
