//! `[objects]`: how it is read, what is refused, and what `check` says of it.

use std::path::Path;

use cattlegrid_objects::{Eviction, native};

use super::Objects;
use crate::check::{check, explain};
use crate::command_line::{Command, parse_args};
use crate::rule_file::RuleFile;
use crate::settings::Settings;

fn parse(text: &str) -> Result<RuleFile, String> {
    RuleFile::parse(Path::new("f.toml"), text).map_err(|error| error.to_string())
}

/// What a server has that is started with this file and nothing else.
fn objects(text: &str) -> Result<Option<Objects>, String> {
    parse(text)?.settings().map(|settings| settings.objects).map_err(|error| error.to_string())
}

/// Every mistake has its line, its cause and what would be right.
fn check_mistakes(cases: &[(&str, &str)]) {
    for (text, expected) in cases {
        assert_eq!(parse(text).unwrap_err(), *expected, "{text}");
    }
}

#[test]
fn they_are_off_until_a_table_switches_them_on() {
    assert_eq!(objects("[server]\nthreads = 1\n"), Ok(None));
    let on = objects("[objects]\n").unwrap().unwrap();
    assert_eq!(on.dir, None);
    assert_eq!(on.settings.types.len(), native::TYPES.len(), "all types");
    assert_eq!((on.settings.pinned_max, on.settings.result_max), (4 << 20, 1 << 20));
    assert_eq!(
        (on.settings.timezone.as_str(), on.settings.compat, on.settings.json_flags),
        ("UTC", false, 0)
    );
}

#[test]
fn every_key_is_read() {
    let text = "[server]\nmemory_limit = \"128MiB\"\nmax_item_size = \"2MiB\"\n\
                [objects]\ntypes = [\"counter\"]\nprefix = \"o/\"\npinned_max = \"64MiB\"\njson_flags = 4294967295\n\
                compat = \"cacheismo\"\ntimezone = \"UTC\"\n\
                [objects.counter]\nevict = \"never\"\nttl = \"1d\"\n";
    let Objects { settings, .. } = objects(text).unwrap().unwrap();
    assert_eq!((settings.prefix.as_slice(), settings.pinned_max), (&b"o/"[..], 64 << 20));
    assert_eq!((settings.json_flags, settings.compat, settings.result_max), (u32::MAX, true, 2 << 20));
    let [own] = &settings.types[..] else { panic!("one type") };
    assert_eq!((own.name.as_str(), own.evict, own.ttl_s), ("counter", Eviction::Never, 86_400));
    assert_eq!(objects("[objects]\n").unwrap().unwrap().settings.types[0].create, None);
}

#[test]
fn mistakes_have_their_line() {
    check_mistakes(&[
        ("[objects]\nprefx = \"a\"", "f.toml:2: [objects]: prefx: is unknown; did you mean prefix?"),
        ("[objects]\ntypes = []", "f.toml:1: [objects]: types names none; leave it out for all"),
        (
            "[objects]\ntypes = [\"countr\"]",
            "f.toml:2: [objects]: types \"countr\": is unknown; did you mean counter?",
        ),
        (
            "[objects]\ntypes = [\"counter\", \"counter\"]",
            "f.toml:2: [objects]: types \"counter\": is there twice",
        ),
        (
            "[objects]\n[objects.countr]\n",
            "f.toml:2: [objects.countr]: there is no such type; did you mean counter?",
        ),
        (
            "[objects.counter]\nevict = \"always\"",
            "f.toml:2: [objects.counter]: evict \"always\": must be \"normal\" or \"never\"",
        ),
        (
            "[objects.counter]\nttl = \"1500ms\"",
            "f.toml:2: [objects.counter]: ttl \"1500ms\": must be a time of whole seconds, in s, m, h or d, \"0s\" to \"3650d\"",
        ),
        (
            "[objects.counter]\ncreate = [true]",
            "f.toml:2: [objects.counter]: create [true]: must be a list of arguments of `new`: texts and numbers",
        ),
        (
            "[objects.counter]\nevit = \"never\"",
            "f.toml:2: [objects.counter]: evit: is unknown; did you mean evict?",
        ),
        (
            "[objects]\njson_flags = 4294967296",
            "f.toml:2: [objects]: json_flags 4294967296: must be a whole number, 0 or more",
        ),
        (
            "[objects]\ncompat = \"redis\"",
            "f.toml:2: [objects]: compat \"redis\": must be \"\" or \"cacheismo\"",
        ),
        (
            "[objects]\ncreate = [1]",
            "f.toml:2: [objects]: create: is unknown; there are dir, types, prefix, pinned_max, timezone, json_flags, \
             compat, time_limit, memory_limit, state_max, watch",
        ),
        (
            "[objects]\nprefix = \"a b\"",
            "f.toml:2: [objects]: prefix \"a b\": must be a prefix, up to 16 bytes without blanks",
        ),
    ]);
}

/// `--objects` with this directory.
fn served(path: &str) -> Result<Option<Objects>, String> {
    match parse_args(["--objects", path]) {
        Ok(Command::Serve(settings)) => Ok(settings.objects),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn a_directory_without_scripts() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let text = format!("[objects]\ndir = {path:?}\n");
    std::fs::write(dir.path().join("quota.memc"), "").unwrap();
    for found in [objects(&text), served(path)] {
        let found = found.unwrap().unwrap();
        assert_eq!((found.dir.as_deref(), found.own), (Some(dir.path()), None));
    }
    assert!(
        parse("[objects]\ndir = \"no/such\"").unwrap_err().contains("f.toml:2: [objects]: dir \"no/such\": ")
    );
    assert!(served("no/such").unwrap_err().starts_with("--objects no/such: "));
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(served(file.to_str().unwrap()).unwrap_err().ends_with("is no directory"));
}

#[cfg(not(feature = "scripts"))]
#[test]
fn without_scripts_their_directory_and_keys_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let text = format!("[objects]\ndir = {path:?}\n");
    let why = "this server was built without scripts (cargo feature `scripts`); leave it out";
    for script in ["quota.luau", "quota.lua", "quota.test.luau"] {
        let file = dir.path().join(script);
        std::fs::write(&file, "").unwrap();
        let wrong = format!("has {script}, a type of your own; {why}");
        assert_eq!(parse(&text).unwrap_err(), format!("f.toml:2: [objects]: dir {path:?}: {wrong}"));
        assert_eq!(served(path), Err(format!("--objects {path}: {wrong}")));
        std::fs::remove_file(file).unwrap();
    }
    for (key, value) in
        [("time_limit", "\"10ms\""), ("memory_limit", "\"1MiB\""), ("state_max", "1024"), ("watch", "true")]
    {
        let wrong = format!("f.toml:2: [objects]: {key} is for types of your own; {why}");
        assert_eq!(parse(&format!("[objects]\n{key} = {value}\n")).unwrap_err(), wrong);
    }
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

#[test]
fn pinned_memory_is_at_most_half() {
    let with = |bytes: &str| {
        objects(&format!(
            "[server]\nmemory_limit = 16\nmax_item_size = \"1MiB\"\n[objects]\npinned_max = {bytes}\n"
        ))
    };
    for (bytes, pinned_max) in [("0", 0), ("1", 1), ("\"8MiB\"", 8 << 20)] {
        assert_eq!(with(bytes).unwrap().unwrap().settings.pinned_max, pinned_max);
    }
    let above =
        "[objects]: pinned_max \"8388609\": is above half of the memory (-m 16); lower it or raise -m";
    assert_eq!(with("8388609").unwrap_err(), above);
}

#[test]
fn control_keys_and_names_of_objects_differ() {
    let with = |control: &str, prefix: &str| {
        objects(&format!("[server]\ncontrol = {control:?}\n[objects]\nprefix = {prefix:?}\n")).map(|_| ())
    };
    for (control, prefix) in [("@", ""), ("", ""), ("", "@"), ("@", "o:"), ("counts", ""), ("@", "o@")] {
        assert_eq!(with(control, prefix), Ok(()), "{control:?} {prefix:?}");
    }
    for (control, prefix) in [("@", "@"), ("@", "@o"), ("@o", "@")] {
        let error = with(control, prefix).unwrap_err();
        assert!(
            error.starts_with(&format!("[objects]: prefix {prefix:?}: control keys begin with {control:?}")),
            "{error}"
        );
    }
    for (control, prefix, name) in
        [("count", "", "counter:"), ("counter:add:", "", "counter:"), ("counter:", "", "counter:")]
    {
        let error = with(control, prefix).unwrap_err();
        assert!(
            error.starts_with(&format!("[objects]: names that begin with {name:?} would be control keys")),
            "{error}"
        );
    }
}

#[test]
fn rules_of_objects_have_only_tags() {
    let rule = "[[rule]]\nmatch = \"counter::{user}\"\ntags = [\"user:{user}\"]\n";
    let beyond = |key: &str| format!("{rule}{key}\n");
    assert!(parse(&format!("{rule}[objects]\n")).is_ok());
    for key in
        ["hold = \"1s\"", "lease = \"1s\"", "grace = \"1s\"", "early = \"auto\"", "owner = \"connection\""]
    {
        let text = beyond(key);
        assert!(parse(&text).is_ok(), "objects are off: {key}");
        let name = key.split(' ').next().unwrap();
        let problem = format!(
            "rule counter::{{user}}: {name}: does nothing for objects, which have only tags; leave it out"
        );
        assert_eq!(parse(&format!("{text}[objects]\n")).unwrap_err(), format!("f.toml:4: {problem}"));
        // By --objects the types are known only later.
        let dir = tempfile::tempdir().unwrap();
        let settings = Settings { objects_dir: Some(dir.path().to_owned()), ..Settings::default() };
        let error = settings.objects_under(Some(&parse(&text).unwrap())).unwrap_err().to_string();
        assert_eq!(error, format!("f.toml:4: {problem}"));
    }
}

#[test]
fn rules_of_calls_are_warned_of() {
    let text = "[[rule]]\nmatch = \"counter:add:{key}\"\nhold = \"1s\"\n[[rule]]\nmatch = \"counter:other:{key}\"\nhold = \"1s\"\n[objects]\n";
    let line = "# warning: rule counter:add:{key}: has no effect on calls of methods; name the objects, such as counter::{key}\n";
    let shown = explain(&parse(text).unwrap(), None).unwrap();
    assert!(shown.contains(line), "{shown}");
    assert_eq!(shown.matches("# warning: rule").count(), 1, "counter:other is no method");
}

#[test]
fn check_shows_what_was_understood() {
    let text = "[objects]\ntypes = [\"counter\"]\n[objects.counter]\nttl = \"60s\"\n";
    let expected = "\n[objects]\ntypes = [\"counter\"]\nprefix = \"\"\npinned_max = \"4MiB\"\ntimezone = \"UTC\"\n\
                    json_flags = 0\ncompat = \"\"\n";
    let limits = "time_limit = \"10ms\"\nmemory_limit = \"16MiB\"\nstate_max = \"64KiB\"\nwatch = false\n";
    let limits = if cfg!(feature = "scripts") { limits } else { "" };
    let expected = format!(
        "{expected}{limits}\n[objects.counter]\nevict = \"normal\"\nttl = \"1m\"\n\n# ok: 0 rules, 1 type of objects\n"
    );
    let shown = explain(&parse(text).unwrap(), None).unwrap();
    assert!(shown.ends_with(&expected), "{shown}");
    let again = parse(&shown).unwrap();
    assert_eq!(explain(&again, None).unwrap(), shown, "what is shown is a rule file that means the same");
    assert_eq!(objects(&shown), objects(text));
}

#[test]
fn check_says_what_a_name_means() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text =
        "[[rule]]\nmatch = \"o.counter::{user}\"\ntags = [\"user:{user}\"]\n[objects]\nprefix = \"o.\"\n";
    std::fs::write(file.path(), text).unwrap();
    let of = |key: &str| check(file.path(), Some(key)).unwrap();
    let object = "object o.counter::u\nrule 1: o.counter::{user}\n  user = u\n  tag user:u\n";
    let add = "method counter.add: takes n [ttl]; replies";
    let shown = of("o.counter:add:u:1");
    assert!(shown.starts_with(&format!("key o.counter:add:u:1\n{add}")), "{shown}");
    assert!(shown.ends_with(&format!("\n{object}")), "{shown}");
    assert_eq!(of("o.counter::u"), format!("key o.counter::u\n{object}"));
    assert!(of("o.counter:exists:x:1").contains("\nobject o.counter::x\nrule 1: "));
    let methods = of("o.counter:methods");
    assert!(
        methods.starts_with("key o.counter:methods\nmethod counter.methods: takes no arguments; "),
        "{methods}"
    );
    assert_eq!(methods.lines().count(), 2, "it has no object");
    assert_eq!(
        of("counter:add:u:1"),
        "key counter:add:u:1\nno rule\n",
        "without the prefix it is an ordinary key"
    );
    assert_eq!(of("o.counter:nothing:u"), "key o.counter:nothing:u\nno rule\n");
}

#[test]
fn rules_and_the_prefix() {
    let with = |pattern: &str| {
        parse(&format!("[[rule]]\nmatch = {pattern:?}\nhold = \"1s\"\n[objects]\nprefix = \"o.\"\n"))
            .map(|_| ())
    };
    assert_eq!(with("counter::{user}"), Ok(()), "an ordinary key");
    assert!(with("o.counter::{user}").unwrap_err().contains("rule o.counter::{user}: hold: does nothing"));
}

#[test]
fn what_the_registry_refuses_has_its_line() {
    for (text, line) in [
        ("[objects]\ntimezone = \"No/Where\"\n", 2),
        ("[objects]\n\n[objects.quota]\ncreate = [\"10\", \"fortnight\"]\n", 3),
        ("[objects.quota]\nevict = \"never\"\ncreate = [10]\n", 1),
    ] {
        let error = parse(text).unwrap_err();
        assert!(
            error.starts_with(&format!("f.toml:{line}: ")) && error.lines().count() == 1,
            "{text}: {error}"
        );
    }
    let created = objects("[objects.quota]\ncreate = [10, \"hour\"]\n").unwrap().unwrap();
    let quota = created.settings.types.iter().find(|own| own.name == "quota").unwrap();
    assert_eq!(quota.create, Some(vec![b"10".to_vec(), b"hour".to_vec()]));
    assert_eq!(
        objects("[objects]\ntimezone = \"Europe/Berlin\"\n").unwrap().unwrap().settings.timezone,
        "Europe/Berlin"
    );
}

#[cfg(feature = "scripts")]
mod scripts {
    use std::path::PathBuf;
    use std::time::Duration;

    use super::*;
    use crate::scripts::ScriptLimits;

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

    fn of_type<'o>(objects: &'o Objects, name: &str) -> &'o cattlegrid_objects::TypeSettings {
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
            match parse_args(words).map_err(|error| error.to_string())? {
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
            let file = RuleFile::parse_beside(Path::new("f.toml"), text, Some(&path));
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
        let shown = check(&file, Some("tally:hi:k")).unwrap();
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
        let limits =
            ScriptLimits { time: Duration::from_millis(1), memory_bytes: 1 << 20, state_max: 1 << 10 };
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
        assert!(
            wrong.lines().all(|line| line.starts_with(&format!("--objects {shown}: {shown}/"))),
            "{wrong}"
        );
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
        assert!(
            wrong.starts_with(&format!("[objects]: dir {0}: {0}/other.luau:1: ", path.display())),
            "{wrong}"
        );
    }
}
