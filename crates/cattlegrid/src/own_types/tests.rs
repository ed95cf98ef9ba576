//! Types of users' own in `[objects]` and `--objects`: how they are read, what is refused, and what `check`
//! says of them.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use cattlegrid_config::{
    Command, Objects, RuleFile, ScriptLimits, Settings, check, explain, parse_args_with,
};
use cattlegrid_objects::{Eviction, TypeSettings, native};

use super::{TYPES, lint};

fn parse(text: &str) -> Result<RuleFile, String> {
    RuleFile::parse_beside(Path::new("f.toml"), text, None, TYPES).map_err(|error| error.to_string())
}

/// The objects of a server that is started with only this rule file.
fn objects(text: &str) -> Result<Option<Objects>, String> {
    parse(text)?.settings().map(|settings| settings.objects).map_err(|error| error.to_string())
}

/// `--objects` with this directory.
fn served(path: &str) -> Result<Option<Objects>, String> {
    match parse_args_with(["--objects", path], TYPES) {
        Ok(Command::Serve(settings)) => Ok(settings.objects),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn check_shows_the_limits_of_scripts() {
    let text = "[objects]\ntypes = [\"counter\"]\n";
    let limits = "\ncompat = \"\"\ntime_limit = \"10ms\"\nmemory_limit = \"16MiB\"\nstate_max = \"64KiB\"\nwatch = false\n";
    let shown = explain(&parse(text).unwrap(), None).unwrap();
    assert!(shown.contains(limits), "{shown}");
    let again = parse(&shown).unwrap();
    assert_eq!(explain(&again, None).unwrap(), shown, "what is shown is a rule file that means the same");
    assert_eq!(objects(&shown), objects(text));
}

#[test]
fn limits_of_scripts_have_ranges() {
    for (key, value, range) in [
        ("time_limit", "\"0ms\"", "a time in ms, s, m, h or d, \"1ms\" to \"1s\""),
        ("time_limit", "\"1001ms\"", "a time in ms, s, m, h or d, \"1ms\" to \"1s\""),
        ("memory_limit", "1048575", "a size, \"1MiB\" to \"1GiB\""),
        ("memory_limit", "1073741825", "a size, \"1MiB\" to \"1GiB\""),
        ("state_max", "1023", "a size, \"1KiB\" to \"1MiB\""),
        ("state_max", "1048577", "a size, \"1KiB\" to \"1MiB\""),
        ("watch", "1", "true or false"),
    ] {
        let wrong = format!("f.toml:2: [objects]: {key} {value}: must be {range}");
        assert_eq!(parse(&format!("[objects]\n{key} = {value}\n")).unwrap_err(), wrong);
    }
}

const TALLY: &str = "return { ttl = 60, create = { 5 }, new = function(start: string, more: string?) return {} end, \
                     hi = function(self) return 'hi' end }";

/// A directory of these sources.
fn types(sources: &[(&str, &str)]) -> (tempfile::TempDir, PathBuf, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    for (name, text) in sources {
        std::fs::write(path.join(name), text).unwrap();
    }
    let text = format!("[objects]\ndir = {:?}\n", path.to_str().unwrap());
    (dir, path, text)
}

fn of_type<'o>(objects: &'o Objects, name: &str) -> &'o TypeSettings {
    objects.settings.types.iter().find(|own| own.name == name).unwrap()
}

#[test]
fn types_of_a_directory_are_types() {
    let (_dir, path, text) =
        types(&[("tally.luau", TALLY), ("quota.lua", "return { new = function() return {} end }")]);
    let found = objects(&text).unwrap().unwrap();
    let number = native::TYPES.len() + 1;
    assert_eq!(
        (found.settings.types.len(), found.registry().types().count()),
        (number, number),
        "quota is one"
    );
    assert_eq!(
        (found.dir.as_ref(), found.limits, found.watch),
        (Some(&path), ScriptLimits::default(), false)
    );
    assert_eq!(found.own.as_ref().unwrap().names(), ["quota", "tally"]);
    let tally = of_type(&found, "tally");
    assert_eq!(
        (tally.ttl_s, tally.evict, tally.create.as_deref()),
        (60, Eviction::Normal, Some(&[b"5".to_vec()][..]))
    );
    let shipped = native::TYPES.iter().find(|one| one.name == "quota").unwrap();
    assert!(!found.registry().has_type(shipped.id), "its objects are not those of the shipped type");
    let given = served(path.to_str().unwrap()).unwrap().unwrap();
    assert_eq!((given.own, given.settings.types), (found.own, found.settings.types));
}

#[test]
fn a_directory_of_the_command_line_takes_the_place_of_dir() {
    let (_dir, path, _) = types(&[("tally.luau", TALLY)]);
    let (_broken_dir, broken, of_broken) = types(&[("tally.luau", "return {\n"), ("b.luau", TALLY)]);
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("f.toml");
    let with = |text: &str, given: &Path| -> Result<Box<Settings>, String> {
        std::fs::write(&file, text).unwrap();
        let words = ["--config", file.to_str().unwrap(), "--objects", given.to_str().unwrap()];
        match parse_args_with(words, TYPES).map_err(|error| error.to_string())? {
            Command::Serve(settings) => Ok(settings),
            other => panic!("{other:?}"),
        }
    };
    let more = "types = [\"tally\", \"set\"]\n[objects.tally]\nttl = \"7s\"\n";
    // A directory that is absent or broken is not read.
    for table in ["[objects]\n", "[objects]\ndir = \"gone\"\n", &of_broken] {
        let settings = with(&format!("{table}{more}"), &path).unwrap();
        let found = settings.objects.clone().unwrap();
        assert_eq!((found.dir.as_ref(), found.settings.types.len()), (Some(&path), 2), "{table}");
        assert_eq!(of_type(&found, "tally").ttl_s, 7, "{table}");
        let newer = settings.rule_file.as_ref().unwrap().read_again().unwrap();
        assert_eq!(settings.objects_under(Some(&newer)).unwrap().as_ref(), Some(&found), "{table}");
        assert_eq!(settings.objects_again(Some(&newer)).unwrap().as_ref(), Some(&found), "{table}");
    }
    // What the file says of its types has its line.
    let shown = file.display();
    for (text, expected) in [
        ("types = [\"taly\"]\n", "2: [objects]: types \"taly\": is unknown; did you mean tally?"),
        ("[objects.b]\n", "2: [objects.b]: there is no such type; "),
        (
            "[[rule]]\nmatch = \"tally::{user}\"\nhold = \"1s\"\n",
            "4: rule tally::{user}: hold: does nothing for objects, which have only tags; leave it out",
        ),
    ] {
        let wrong = with(&format!("[objects]\n{text}"), &path).unwrap_err();
        assert!(wrong.starts_with(&format!("{shown}:{expected}")), "{wrong}");
    }
    // What is wrong with the directory is said of the option, and nothing of what would name its types.
    let wrong = with(&format!("[objects]\n{more}"), &broken).unwrap_err();
    let named = format!("--objects {0}: {0}/tally.luau:", broken.display());
    assert!(wrong.lines().all(|line| line.starts_with(&named)), "{wrong}");
    std::fs::write(path.join("tally.test.luau"), "cg.test.eq(1, 2)\n").unwrap();
    let wrong = with(&format!("[objects]\n{more}"), &path).unwrap_err();
    let named = format!("--objects {0}: {0}/tally.test.luau:1: ", path.display());
    assert!(wrong.starts_with(&named) && wrong.lines().count() == 1, "{wrong}");
}

#[test]
fn a_file_beside_types_has_them_unless_it_names_others() {
    let (_dir, path, _) = types(&[("tally.luau", TALLY)]);
    let (_other_dir, _, of_other) = types(&[("other.luau", TALLY)]);
    let beside = |text: &str| {
        let file = RuleFile::parse_beside(Path::new("f.toml"), text, Some(&path), TYPES);
        let settings = file.map_err(|error| error.to_string())?.settings_with(Some(&path));
        settings.map(|settings| settings.objects.unwrap()).map_err(|error| error.to_string())
    };
    let found = beside("[objects]\ntypes = [\"tally\"]\n[objects.tally]\nttl = \"7s\"\n").unwrap();
    assert_eq!(of_type(&found, "tally").ttl_s, 7);
    assert_eq!(beside(&of_other).unwrap().own.unwrap().names(), ["other"]);
    let wrong = beside(&format!("{of_other}[objects.tally]\n")).unwrap_err();
    assert!(wrong.starts_with("f.toml:3: [objects.tally]: there is no such type; "), "{wrong}");
}

#[test]
fn a_directory_whose_sources_are_all_in_folders_is_warned_of() {
    let (_dir, path, text) = types(&[]);
    std::fs::create_dir(path.join("sub")).unwrap();
    std::fs::write(path.join("sub/tally.luau"), TALLY).unwrap();
    let expected = format!(
        "{0}: has no types: sources in its folders, such as {0}/sub/tally.luau, are for require; name the folder that has the types",
        path.display()
    );
    let found = objects(&text).unwrap().unwrap();
    assert_eq!(found.warns(None), [expected.as_str()]);
    std::fs::write(path.join("tally.luau"), TALLY).unwrap();
    let warned = objects(&text).unwrap().unwrap().warns(None);
    let is_unused = "is a library, since it is in a folder, and no source has require(\"sub/tally\")";
    assert!(warned.len() == 1 && warned[0].contains(is_unused), "{warned:?}");
    std::fs::write(path.join("other.luau"), format!("require(\"sub/tally\")\n{TALLY}")).unwrap();
    assert_eq!(objects(&text).unwrap().unwrap().warns(None), [""; 0]);
    // With tests, or with mistakes, it is refused, and the first line says why.
    for name in ["tally.luau", "other.luau"] {
        std::fs::remove_file(path.join(name)).unwrap();
    }
    std::fs::write(path.join("sub/tally.test.luau"), "cg.test.new('tally', 'k')").unwrap();
    let refused = objects(&text).unwrap_err();
    assert!(refused.contains(&expected), "{refused}");
}

#[test]
fn check_says_what_a_method_takes() {
    let (dir, _, text) = types(&[("tally.luau", TALLY)]);
    let file = dir.path().join("f.toml");
    std::fs::write(&file, text).unwrap();
    let shown = check(&file, Some("tally:hi:k"), TYPES).unwrap();
    assert_eq!(shown, "key tally:hi:k\nmethod tally.hi: takes no arguments\nobject tally::k\nno rule\n");
}

#[test]
fn the_rule_file_goes_before_the_sources() {
    let (_dir, _, text) = types(&[("tally.luau", TALLY)]);
    let more = "types = [\"tally\", \"set\"]\ntime_limit = \"1s\"\nmemory_limit = \"1GiB\"\nstate_max = \"1MiB\"\nwatch = true\n\
                [objects.tally]\nttl = \"0s\"\nevict = \"never\"\ncreate = [\"a\", \"b\"]\n";
    let found = objects(&format!("{text}{more}")).unwrap().unwrap();
    let limits = ScriptLimits { time: Duration::from_secs(1), memory_bytes: 1 << 30, state_max: 1 << 20 };
    assert_eq!((found.limits, found.watch, found.settings.types.len()), (limits, true, 2));
    let tally = of_type(&found, "tally");
    assert_eq!((tally.ttl_s, tally.evict), (0, Eviction::Never));
    assert_eq!(tally.create, Some(vec![b"a".to_vec(), b"b".to_vec()]));
    // One key alone leaves the others as the source has them.
    let found = objects(&format!("{text}[objects.tally]\nevict = \"never\"\n")).unwrap().unwrap();
    assert_eq!((of_type(&found, "tally").ttl_s, of_type(&found, "tally").evict), (60, Eviction::Never));
    let smallest = "time_limit = \"1ms\"\nmemory_limit = \"1MiB\"\nstate_max = \"1KiB\"\n";
    let limits = ScriptLimits { time: Duration::from_millis(1), memory_bytes: 1 << 20, state_max: 1 << 10 };
    let found = objects(&format!("[objects]\n{smallest}")).unwrap().unwrap();
    assert_eq!((found.limits, found.own), (limits, None));
}

#[test]
fn mistakes_name_the_file_and_the_line() {
    let (_dir, path, text) =
        types(&[("tally.luau", "return {\n  new = = 1\n}"), ("other.luau", "return {}\n\n)")]);
    let shown = path.display();
    let wrong = parse(&text).unwrap_err();
    let lines: Vec<&str> = wrong.lines().collect();
    assert_eq!(lines.len(), 2, "{wrong}");
    assert!(
        lines[0].starts_with(&format!("f.toml:2: [objects]: dir {path:?}: {shown}/other.luau:3: ")),
        "{wrong}"
    );
    assert!(
        lines[1].starts_with(&format!("f.toml:2: [objects]: dir {path:?}: {shown}/tally.luau:2: ")),
        "{wrong}"
    );
    let wrong = served(path.to_str().unwrap()).unwrap_err();
    assert_eq!(wrong.lines().count(), 2, "{wrong}");
    assert!(wrong.lines().all(|line| line.starts_with(&format!("--objects {shown}: {shown}/"))), "{wrong}");
}

#[test]
fn mistakes_about_types_of_a_directory() {
    let (_dir, _, text) =
        types(&[("tally.luau", TALLY), ("bare.luau", "return { hi = function() return 'hi' end }")]);
    for (more, expected) in [
        ("types = [\"taly\"]\n", "f.toml:3: [objects]: types \"taly\": is unknown; did you mean tally?"),
        ("[objects.taly]\n", "f.toml:3: [objects.taly]: there is no such type; did you mean tally?"),
        ("[objects.tally]\ncreate = []\n", "f.toml:3: [objects.tally]: create: new takes start [more]"),
        (
            "[objects.tally]\ncreate = [1, 2, 3]\n",
            "f.toml:3: [objects.tally]: create: new takes start [more]",
        ),
        ("[objects.bare]\ncreate = []\n", "f.toml:3: [objects.bare]: create: the type has no method new"),
        (
            "[[rule]]\nmatch = \"tally::{user}\"\nhold = \"1s\"\n",
            "f.toml:5: rule tally::{user}: hold: does nothing for objects, which have only tags; leave it out",
        ),
    ] {
        assert_eq!(parse(&format!("{text}{more}")).unwrap_err(), expected, "{more}");
    }
    // Without the directory it is an ordinary key.
    assert!(parse("[objects]\n[[rule]]\nmatch = \"tally::{user}\"\nhold = \"1s\"\n").is_ok());
}

#[test]
fn the_sources_can_be_read_again_without_the_file() {
    let (_dir, path, text) = types(&[("tally.luau", TALLY)]);
    let file = parse(&format!("{text}watch = true\n[objects.tally]\nttl = \"7s\"\n")).unwrap();
    let settings = file.settings().unwrap();
    let before = settings.objects.clone().unwrap();
    assert_eq!(settings.objects_again(Some(&file)).unwrap(), settings.objects);
    std::fs::write(path.join("other.luau"), "return { hi = function() return 'hi' end }").unwrap();
    assert_eq!(settings.objects_under(Some(&file)).unwrap(), settings.objects, "as the file was read");
    let after = settings.objects_again(Some(&file)).unwrap().unwrap();
    assert_ne!(after.own, before.own);
    assert_eq!((after.own.as_ref().unwrap().names(), after.watch), (vec!["other", "tally"], true));
    assert_eq!(of_type(&after, "tally").ttl_s, 7);
    std::fs::write(path.join("other.luau"), "return {").unwrap();
    let wrong = settings.objects_again(Some(&file)).unwrap_err().to_string();
    assert!(wrong.starts_with(&format!("[objects]: dir {0}: {0}/other.luau:1: ", path.display())), "{wrong}");
}

/// What depends on `-I` and on control keys.
const SETTINGS_TEST: &str = "local t = cg.test\n\
    local long = string.rep('x', 2 * 1024 * 1024)\n\
    t.eq(#(t.plain('k', long) or ''), #long)\n\
    t.eq(t.plain('%why:k') ~= nil, true, 'a control key')\n";

#[test]
fn tests_are_run_under_all_settings_of_the_server() {
    let (_dir, path, text) = types(&[("tally.luau", TALLY), ("tally.test.luau", SETTINGS_TEST)]);
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("f.toml");
    let with = |settings: &str, words: &[&str]| -> Result<(), String> {
        std::fs::write(&file, settings).unwrap();
        let words = ["--config", file.to_str().unwrap()].into_iter().chain(words.iter().copied());
        match parse_args_with(words, TYPES).map_err(|error| error.to_string())? {
            Command::Serve(settings) => {
                let newer = settings.rule_file.as_ref().unwrap().read_again().unwrap();
                settings.objects_under(Some(&newer)).map_err(|error| error.to_string())?;
                settings.objects_again(Some(&newer)).map(|_| ()).map_err(|error| error.to_string())
            }
            other => panic!("{other:?}"),
        }
    };
    let control = "[server]\ncontrol = \"%\"\n";
    let item = "max_item_size = \"4MiB\"\n";
    assert_eq!(with(&format!("{control}{item}{text}"), &[]), Ok(()));
    assert_eq!(with(&format!("{control}{text}"), &["-I", "4m"]), Ok(()));
    let given = ["-I", "4m", "--objects", path.to_str().unwrap()];
    assert_eq!(with(control, &given), Ok(()));
    // What fails has the line of `dir`, or names the option.
    let (shown, failing) = (file.display(), path.join("tally.test.luau"));
    let dir = format!("{shown}:4: [objects]: dir {path:?}: {}:3: ", failing.display());
    let wrong = with(&format!("{control}{text}"), &[]).unwrap_err();
    assert!(wrong.starts_with(&dir) && wrong.lines().count() == 1, "{wrong}");
    let wrong = check(&file, None, TYPES).unwrap_err().to_string();
    assert!(wrong.starts_with(&dir) && wrong.lines().count() == 1, "{wrong}");
    let wrong = with(&format!("[server]\n{item}\n{text}"), &[]).unwrap_err();
    assert!(wrong.contains(": [objects]: dir ") && wrong.contains(":4: a control key: "), "{wrong}");
    let wrong = with("", &given).unwrap_err();
    let named = format!("--objects {}: {}:4: a control key", path.display(), failing.display());
    assert!(wrong.starts_with(&named), "{wrong}");
    // A server with `--objects` alone has no rule file, and so no control keys.
    let words = ["-I", "4m", "--objects", path.to_str().unwrap()];
    let wrong = parse_args_with(words, TYPES).unwrap_err().to_string();
    assert!(wrong.starts_with(&named), "{wrong}");
}

#[test]
fn tests_of_types_that_begin_as_control_keys_behind_their_prefix() {
    let source = "local t = cg.test\nt.new('tally', 'k', 'x')\nt.eq(t.call('tally:hi:k'), 'hi')\n";
    let (_dir, _, text) = types(&[("tally.luau", TALLY), ("tally.test.luau", source)]);
    let text = format!("[server]\ncontrol = \"tally:\"\n{text}prefix = \"o.\"\n");
    assert!(objects(&text).unwrap().is_some());
}

#[test]
fn objects_test_takes_the_settings_of_a_rule_file() {
    let (_dir, path, text) = types(&[("tally.luau", TALLY), ("tally.test.luau", SETTINGS_TEST)]);
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("f.toml");
    let server = "[server]\ncontrol = \"%\"\nmax_item_size = \"4MiB\"\n";
    let run = |words: &[&str]| {
        let all = ["objects", "test"].iter().chain(words);
        let Command::Objects(command) = parse_args_with(all, TYPES).unwrap() else { panic!("{words:?}") };
        crate::objects::run(command).map(|report| report.text).map_err(|error| error.to_string())
    };
    let (config, dir) = (file.to_str().unwrap(), path.to_str().unwrap());
    let file_of_tests = format!("{dir}/tally.test.luau");
    let passed = format!("{file_of_tests}: 2 checks\n");
    assert!(run(&[dir]).unwrap_err().contains("tally.test.luau:3: "), "the defaults");
    for table in ["", "[objects]\ndir = \"gone\"\n", &text] {
        std::fs::write(&file, format!("{server}{table}")).unwrap();
        assert_eq!(
            run(&["--config", config, dir]).unwrap(),
            format!("{dir}: types: tally\n{passed}"),
            "{table}"
        );
        assert_eq!(run(&[&file_of_tests, "--config", config]).unwrap(), passed, "{table}");
    }
    assert_eq!(run(&["--config", config]).unwrap(), format!("{dir}: types: tally\n{passed}"));
    std::fs::write(&file, format!("[objects]\ndir = {dir:?}\n")).unwrap();
    assert!(run(&["--config", config]).unwrap_err().starts_with(&format!("{file_of_tests}:3: ")));
    std::fs::write(&file, "[objects]\n").unwrap();
    assert!(run(&["--config", config]).unwrap_err().contains("has no dir"));
    std::fs::write(&file, "").unwrap();
    assert!(run(&["--config", config]).unwrap_err().contains("has no [objects]"));
}

/// A source is checked whatever is wrong with others of its directory.
#[test]
fn one_source_is_checked_beside_others_that_cannot_be_read() {
    let (_dir, path, _) = types(&[("tally.luau", TALLY), ("wrong.luau", "return { new = nowhere }")]);
    let said = |name: &str| {
        let found = lint(&path.join(name))?;
        let lines: Vec<String> = found.list.into_iter().map(|finding| finding.line).collect();
        Ok::<_, String>((found.files.len(), lines.join("\n").replace(path.to_str().unwrap(), "")))
    };
    let unknown = "/wrong.luau:1: unknown global nowhere: define it before this line with `local`";
    let check = || {
        assert_eq!(said("tally.luau"), Ok((1, String::new())));
        assert_eq!(said("wrong.luau"), Ok((1, unknown.to_owned())));
    };
    check();
    std::fs::write(path.join("big.luau"), "-".repeat((1 << 20) + 1)).unwrap();
    check();
    std::fs::write(path.join("Big.luau"), TALLY).unwrap();
    std::os::unix::fs::symlink(path.join("gone"), path.join("x.luau")).unwrap();
    std::fs::create_dir(path.join("folder")).unwrap();
    std::os::unix::fs::symlink(path.join("folder"), path.join("link")).unwrap();
    std::fs::write(path.join("other.lua"), TALLY).unwrap();
    std::fs::write(path.join("other.luau"), TALLY).unwrap();
    std::fs::write(path.join("quotes.luau"), "return {}\u{a0}").unwrap();
    check();
    assert_eq!(said("big.luau"), Ok((1, "/big.luau: is longer than 1048576 bytes".to_owned())));
    // What it requires is named, if that is the reason.
    std::fs::remove_file(path.join("wrong.luau")).unwrap();
    std::fs::create_dir(path.join("lib")).unwrap();
    std::os::unix::fs::symlink(path.join("gone"), path.join("lib/away.luau")).unwrap();
    std::fs::write(path.join("user.luau"), "require('lib/away')\nreturn {}").unwrap();
    let (files, found) = said("user.luau").unwrap();
    assert!(files == 1 && found.contains("\n/lib/away.luau: cannot be read: "), "{found}");
    for number in 0..200 {
        std::fs::write(path.join(format!("a{number}.luau")), TALLY).unwrap();
    }
    let refused = said("tally.luau").unwrap_err();
    assert!(refused.contains("files of Luau, at most 200 are read"), "{refused}");
}
