//! Tests of reading `[objects]`, of refused tables, and of `check`.

use std::path::Path;

use cattlegrid_objects::{Eviction, native};

use super::Objects;
use crate::check::{check, explain};
use crate::command_line::{Command, parse_args};
use crate::own_types::NoScripts;
use crate::rule_file::RuleFile;
use crate::settings::Settings;

fn parse(text: &str) -> Result<RuleFile, String> {
    RuleFile::parse(Path::new("f.toml"), text).map_err(|error| error.to_string())
}

/// The objects of a server that is started with this file alone.
fn objects(text: &str) -> Result<Option<Objects>, String> {
    parse(text)?.settings().map(|settings| settings.objects).map_err(|error| error.to_string())
}

/// Each mistake has its line, its cause and the correct form.
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

/// The objects of `--objects` with this directory.
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
        // With --objects, the types are known only later.
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
    let expected = format!(
        "{expected}\n[objects.counter]\nevict = \"normal\"\nttl = \"1m\"\n\n# ok: 0 rules, 1 type of objects\n"
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
    let of = |key: &str| check(file.path(), Some(key), &NoScripts).unwrap();
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
