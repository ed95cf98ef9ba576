//! Tests of reading loaders and the rules that name them, and of the messages about mistakes.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use cattlegrid_engine::rules::{Loading, Rule, Urgency};
use cattlegrid_herd::LeaseTime;

use crate::check::explain;
use crate::keys;
use crate::loader::{LoaderMode, LoaderSettings};
use crate::rule_file::RuleFile;
use crate::settings::Settings;

/// A valid loader.
const PAGES: &str = "[loader.pages]\ncommand = [\"sh\"]\n";

/// A rule with this loader.
const RULE: &str = "[[rule]]\nmatch = \"page:{id}\"\nloader = \"pages\"\n";

fn parse(text: &str) -> Result<RuleFile, String> {
    RuleFile::parse(Path::new("f.toml"), text).map_err(|error| error.to_string())
}

fn loader(keys: &str) -> LoaderSettings {
    let file = parse(&format!("{PAGES}{keys}{RULE}")).unwrap();
    file.loaders[0].clone()
}

fn rule(keys: &str) -> Rule {
    let file = parse(&format!("{RULE}{keys}{PAGES}timeout = \"2s\"\nstale = true\n")).unwrap();
    Rule::clone(&file.rules.rules()[0])
}

/// The mistake in a text, with its line, cause and correct form.
fn mistake(text: &str) -> String {
    parse(text).expect_err(text)
}

/// The mistake in the loader with `line` as its third line.
fn of_loader(line: &str) -> String {
    mistake(&format!("{PAGES}{line}\n{RULE}"))
}

/// The mistake in the rule with `line` as its fourth line.
fn of_rule(line: &str) -> String {
    mistake(&format!("{RULE}{line}\n{PAGES}"))
}

#[test]
fn defaults_of_a_loader() {
    let expected = LoaderSettings {
        name: "pages".to_owned(),
        command: vec!["sh".to_owned()],
        mode: LoaderMode::Template,
        max: 4,
        idle: 0,
        load: 2,
        batch: 1,
        spare: 0,
        start: Duration::from_millis(100),
        stop: Duration::from_secs(10),
        timeout: Duration::from_secs(5),
        kill_grace: Duration::from_millis(500),
        start_timeout: Duration::from_secs(30),
        queue: 10_000,
        retries: 0,
        max_jobs: 0,
        max_rss: None,
        max_age: None,
        init: String::new(),
        stale: false,
        dir: std::env::current_dir().unwrap(),
        env: vec!["PATH".to_owned(), "HOME".to_owned(), "LANG".to_owned()],
        user: None,
        init_as_root: false,
    };
    assert_eq!(loader(""), expected);
    for (mode, load) in [("exec", 2), ("stdio", 1), ("jsonl", 1)] {
        assert_eq!(loader(&format!("mode = \"{mode}\"\n")).load, load, "{mode}");
    }
}

#[test]
fn every_key_of_a_loader_reaches_it() {
    let keys = "command = [\"/bin/sh\", \"-c\", \"exit 1\"]\nmode = \"exec\"\nmax = 9\nidle = 8\nload = 7\nbatch = 6\n\
                spare = 5\nstart = \"1s\"\nstop = \"2s\"\ntimeout = \"3s\"\nkill_grace = \"4s\"\nstart_timeout = \"5s\"\n\
                queue = 10\nretries = 11\nmax_jobs = 12\nmax_rss = \"13MiB\"\nmax_age = \"14s\"\n\
                init = \"a \\\"b\\\"\\n\\u0007\"\nstale = true\ndir = \"/\"\nenv = [\"HOME\", \"X_1\"]\nuser = \"root\"\n";
    let file = parse(&format!("[loader.a-B_7]\n{keys}")).unwrap();
    let seconds = Duration::from_secs;
    let expected = LoaderSettings {
        name: "a-B_7".to_owned(),
        command: ["/bin/sh", "-c", "exit 1"].map(str::to_owned).to_vec(),
        mode: LoaderMode::Exec,
        max: 9,
        idle: 8,
        load: 7,
        batch: 6,
        spare: 5,
        start: seconds(1),
        stop: seconds(2),
        timeout: seconds(3),
        kill_grace: seconds(4),
        start_timeout: seconds(5),
        queue: 10,
        retries: 11,
        max_jobs: 12,
        max_rss: Some(13 << 20),
        max_age: Some(seconds(14)),
        init: "a \"b\"\n\u{7}".to_owned(),
        stale: true,
        dir: "/".into(),
        env: vec!["HOME".to_owned(), "X_1".to_owned()],
        user: Some("root".to_owned()),
        init_as_root: false,
    };
    assert_eq!(file.loaders, [expected]);
    // The only key that is not for every mode has a test of its own.
    for key in keys::LOADER.iter().filter(|key| key.row.name != "init_as_root") {
        assert!(keys.contains(&format!("{} = ", key.row.name)), "{}", key.row.name);
    }
    let printed = explain(&file, None).unwrap();
    for line in keys.lines().filter(|line| !line.starts_with("init")) {
        assert!(printed.contains(&format!("{line}\n")), "{line} in {printed}");
    }
    assert_eq!(parse(&printed).unwrap().loaders, file.loaders, "{printed}");
}

#[test]
fn values_of_a_loader_at_their_limits() {
    for line in [
        "max = 1",
        "max = 1024",
        "max = 1024\nidle = 1024",
        "load = 65535",
        "batch = 10000",
        "spare = 1024",
        "queue = 1",
        "queue = 1000000",
        "retries = 100",
        "max_jobs = 1",
        "start = \"0s\"",
        "stop = 0",
        "stop = \"1d\"",
        "timeout = \"10ms\"",
        "timeout = \"30m\"",
        "kill_grace = \"1ms\"",
        "start_timeout = \"1h\"",
        "max_rss = \"1MiB\"",
        "max_age = \"1s\"",
        "max_age = \"30d\"",
        "env = []",
        "mode = \"jsonl\"\nload = 1\nbatch = 1",
        "mode = \"stdio\"\nbatch = 10000",
    ] {
        let file = parse(&format!("{PAGES}{line}\n{RULE}")).unwrap_or_else(|error| panic!("{error}"));
        let printed = explain(&file, None).unwrap();
        assert_eq!(parse(&printed).unwrap().loaders, file.loaders, "{printed}");
    }
    for line in [
        "max = 0",
        "max = 1025",
        "idle = -1",
        "idle = 5",
        "load = 0",
        "load = 65536",
        "batch = 0",
        "batch = 10001",
        "spare = 1025",
        "queue = 0",
        "queue = 1000001",
        "retries = 101",
        "max_jobs = 0",
        "start = \"61m\"",
        "stop = \"25h\"",
        "timeout = 0",
        "timeout = \"9ms\"",
        "timeout = \"31m\"",
        "kill_grace = 0",
        "kill_grace = \"61s\"",
        "start_timeout = 0",
        "start_timeout = \"61m\"",
        "max_rss = 0",
        "max_rss = 1048575",
        "max_age = 0",
        "max_age = \"999ms\"",
        "max_age = \"31d\"",
        "stale = 1",
        "mode = \"forked\"",
        "mode = \"stdio\"\nload = 2",
        "mode = \"jsonl\"\nload = 2",
        "mode = \"jsonl\"\nbatch = 2",
    ] {
        let error = of_loader(line);
        let number = 2 + line.lines().count();
        let name = line.lines().last().unwrap().split(' ').next().unwrap();
        assert!(error.starts_with(&format!("f.toml:{number}: loader pages: {name} ")), "{line}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    let of_init = |len: usize| parse(&format!("{PAGES}init = \"{}\"\n{RULE}", "é".repeat(len / 2)));
    assert_eq!(of_init(1 << 16).unwrap().loaders[0].init.len(), 1 << 16);
    assert!(of_init((1 << 16) + 2).unwrap_err().ends_with("must be a text, up to 65536 bytes"));
}

#[test]
fn mistakes_of_loaders() {
    for (text, expected) in [
        ("loader = 1", "f.toml:1: loader: is a table; write [loader.NAME]"),
        (
            "[loader]\ncommand = [\"sh\"]",
            "f.toml:2: loader: command: is no table; a loader is written [loader.NAME]",
        ),
        (
            "[loader.\"a b\"]\ncommand = [\"sh\"]",
            "f.toml:1: loader \"a b\": must be a name of letters, digits, _ and -, up to 64 bytes",
        ),
        (
            "[loader.\"\"]\ncommand = [\"sh\"]",
            "f.toml:1: loader \"\": must be a name of letters, digits, _ and -, up to 64 bytes",
        ),
        ("\n[loader.x]", "f.toml:2: loader x: lacks command, the program and its arguments"),
        (
            "[loader.x]\ncommand = []",
            "f.toml:1: loader x: command: is empty; it is the program and its arguments",
        ),
        ("[loader.x]\ncommand = [\"\"]", "f.toml:2: loader x: command \"\": has no name; it is the program"),
        (
            "[loader.x]\ncommand = \"sh\"",
            "f.toml:2: loader x: command \"sh\": must be a list of the program and its arguments, such as [\"...\"]",
        ),
        (
            "[loader.x]\ncommand = [\"sh\", \"a\\u0000\"]",
            "f.toml:2: loader x: command \"a\\0\": has a NUL byte; leave it out",
        ),
        (
            "[loader.x]\ncommand = [\"/no/such\"]",
            "f.toml:2: loader x: command \"/no/such\": /no/such cannot be used: No such file or directory (os error 2)",
        ),
        ("[loader.x]\ncommand = [\"/etc/\"]", "f.toml:2: loader x: command \"/etc/\": /etc/ is no file"),
        (
            "[loader.x]\ncommand = [\n\"no-such-program-7\"]\nenv = []",
            "f.toml:3: loader x: command \"no-such-program-7\": is not found in /usr/local/bin:/usr/bin:/bin; write its \
             whole path, or put its directory into PATH where the server is started",
        ),
    ] {
        assert_eq!(mistake(text), expected);
    }
    for (line, expected) in [
        ("comand = []", "comand: is unknown; did you mean command?"),
        ("idle = 5", "idle 5: is above max, 4; lower it or raise max"),
        (
            "dir = \"/no/such\"",
            "dir \"/no/such\": /no/such cannot be used: No such file or directory (os error 2)",
        ),
        ("dir = \"\"", "dir \"\": is empty; write \".\" for the directory of the rule file"),
        ("dir = \"/etc/passwd\"", "dir \"/etc/passwd\": /etc/passwd is no directory"),
        (
            "env = [\"A\", \"B=1\"]",
            "env \"B=1\": is more than a name; set the variable where the server is started",
        ),
        ("env = [\"\"]", "env \"\": must be the name of a variable, without blanks"),
        ("env = [\"A\", \"B\", \"A\"]", "env \"A\": is there twice"),
        ("user = \"no-such-user\"", "user \"no-such-user\": there is no such user; add it or leave it out"),
    ] {
        assert_eq!(of_loader(line), format!("f.toml:3: loader pages: {expected}"));
    }
    let jsonl = of_loader("mode = \"jsonl\"\nbatch = 2");
    let expected = "batch 2: a worker of mode \"jsonl\" takes one job at a time; leave it out";
    assert_eq!(jsonl, format!("f.toml:4: loader pages: {expected}"));
}

#[test]
fn counts_at_their_limits() {
    let names = |count: usize| {
        (0..count).map(|n| format!("[loader.l{n}]\ncommand = [\"sh\"]\n")).collect::<Vec<_>>().concat()
    };
    let read = parse(&names(64)).unwrap();
    let order: Vec<String> = read.loaders.iter().map(|loader| loader.name.clone()).collect();
    assert_eq!(order, (0..64).map(|n| format!("l{n}")).collect::<Vec<_>>(), "in the order of the file");
    assert_eq!(mistake(&names(65)), "f.toml:129: loader: 65 of them; at most 64");

    let long = "n".repeat(64);
    assert!(parse(&format!("[loader.{long}]\ncommand = [\"sh\"]")).is_ok());
    assert!(parse(&format!("[loader.{long}n]\ncommand = [\"sh\"]")).is_err());

    let env = |count: usize| {
        format!("env = [{}]", (0..count).map(|n| format!("\"V{n}\",")).collect::<Vec<_>>().concat())
    };
    assert_eq!(loader(&format!("{}\n", env(256))).env.len(), 256);
    assert_eq!(of_loader(&env(257)), "f.toml:3: loader pages: env: 257 of them; at most 256");

    let command = |words: usize, len: usize| {
        format!("[loader.x]\ncommand = [\"sh\"{}]", format!(", \"{}\"", "a".repeat(len)).repeat(words - 1))
    };
    assert!(parse(&command(256, 1)).is_ok());
    assert!(parse(&command(2, 65_534)).is_ok());
    let error = "f.toml:2: loader x: command: 257 words of 258 bytes; at most 256 of 65536 bytes";
    assert_eq!(mistake(&command(257, 1)), error);
    assert!(mistake(&command(2, 65_535)).starts_with("f.toml:2: loader x: command: 2 words of 65537 bytes;"));
}

#[test]
fn paths_begin_at_the_directory_of_the_rule_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rules.toml");
    let script = dir.path().join("sub/load.sh");
    fs::create_dir(dir.path().join("sub")).unwrap();
    fs::write(&script, "#!/bin/sh\n").unwrap();
    let read = |keys: &str| {
        RuleFile::parse(&file, &format!("[loader.x]\n{keys}")).map_err(|error| error.to_string())
    };
    let error = read("dir = \"sub\"\ncommand = [\"./load.sh\"]").unwrap_err();
    assert!(error.contains("sub/./load.sh is not executable; allow it (chmod +x)"), "{error}");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let found = read("dir = \"sub\"\ncommand = [\"./load.sh\"]").unwrap();
    assert_eq!(found.loaders[0].dir, dir.path().join("sub"));
    let found = read("command = [\"sub/load.sh\"]").unwrap();
    assert_eq!(found.loaders[0].dir, dir.path());
    let error = read("command = [\"./load.sh\"]").unwrap_err();
    assert!(error.contains("No such file"), "{error}");
    let error = read("dir = \"none\"\ncommand = [\"./load.sh\"]").unwrap_err();
    assert_eq!(error.lines().count(), 1, "the program of a directory that does not exist: {error}");

    let printed = explain(&read("dir = \"sub\"\ncommand = [\"./load.sh\"]").unwrap(), None).unwrap();
    let elsewhere = RuleFile::parse(Path::new("f.toml"), &printed).unwrap();
    assert_eq!(elsewhere.loaders[0].dir, dir.path().join("sub"), "what is printed means the same anywhere");
}

#[test]
fn a_template_may_keep_the_user_of_the_server() {
    let with = |keys: &str| parse(&format!("[loader.pages]\ncommand = [\"/bin/sh\"]\n{keys}"));
    let file = with("user = \"root\"\ninit_as_root = true\n").unwrap();
    assert!(file.loaders[0].init_as_root);
    let printed = explain(&file, None).unwrap();
    assert!(printed.contains("\ninit_as_root = true\n"), "{printed}");
    for keys in ["", "user = \"root\"\nmode = \"exec\"\n"] {
        let error = with(&format!("{keys}init_as_root = true\n")).unwrap_err();
        assert!(error.contains("init_as_root: does nothing without user and mode \"template\""), "{error}");
    }
}

#[test]
fn terms_of_a_rule_with_a_loader() {
    let Rule { policy, negative_ttl_s, loading, .. } = rule("");
    assert!(policy.leases && policy.loader);
    assert_eq!((policy.hold_ms, policy.hold_many_ms, negative_ttl_s), (400, 400, 1));
    assert_eq!(policy.hold_behind_ms, 60_000, "no wait is longer");
    assert_eq!(policy.lease, LeaseTime::Fixed(3000), "the timeout of 2 s, and 1 s");
    let expected = Loading { loader: "pages".into(), ttl_s: 0, urgency: Urgency::High, stale: true };
    assert_eq!(loading, Some(expected));

    let Rule { policy, negative_ttl_s, loading, .. } = rule(
        "hold = \"1s\"\ngrace = \"30s\"\nlease = \"2001ms\"\nttl = \"3650d\"\npriority = \"low\"\nnegative_ttl = \"0s\"\n",
    );
    assert_eq!((policy.hold_ms, policy.hold_many_ms, policy.grace_s), (1000, 1000, 30));
    assert_eq!((policy.lease, negative_ttl_s), (LeaseTime::Fixed(2001), 0));
    let loading = loading.unwrap();
    assert_eq!((loading.ttl_s, loading.urgency), (315_360_000, Urgency::Low));

    let of = |keys: &str| rule(keys).policy;
    assert_eq!((of("grace = \"30s\"\n").hold_ms, of("early = \"auto\"\n").hold_ms), (400, 400));
    assert_eq!((of("hold = \"0s\"\n").hold_ms, of("hold = \"0s\"\n").hold_many_ms), (0, 0));
    assert_eq!(of("hold_many = \"50ms\"\n").hold_many_ms, 50);
    assert_eq!(of("hold_behind = \"50ms\"\n").hold_behind_ms, 50);
    assert_eq!(of("lease = \"auto\"\n").lease, LeaseTime::Fixed(3000));
    assert_eq!(rule("priority = \"normal\"\n").loading.unwrap().urgency, Urgency::Normal);
    let longest = parse(&format!("{RULE}{PAGES}timeout = \"30m\"\n")).unwrap();
    assert_eq!(longest.rules.rules()[0].policy.lease, LeaseTime::Fixed(1_801_000));
}

#[test]
fn mistakes_of_rules_with_a_loader() {
    for line in
        ["close_grace = 0", "reentry = 1", "pass_after = 2", "pass_for = \"10s\"", "max_computers = 4"]
    {
        let name = line.split(' ').next().unwrap();
        let problem = "does nothing under a loader, since no client computes; leave it out";
        assert_eq!(of_rule(line), format!("f.toml:4: rule page:{{id}}: {name}: {problem}"));
    }
    for line in ["owner = \"connection\"", "fill_window = \"1m\"", "rule_computers = 2", "max_waiters = 0"] {
        rule(&format!("{line}\n"));
    }
    for (line, expected) in [
        (
            "lease = \"5s\"",
            "lease \"5s\": ends before a job of loader pages must (\"5s\"); make it longer, or leave it out for \"6s\"",
        ),
        (
            "ttl = \"500ms\"",
            "ttl \"500ms\": must be a time of whole seconds, in s, m, h or d, \"0s\" to \"3650d\"",
        ),
        (
            "ttl = \"3651d\"",
            "ttl \"3651d\": must be a time of whole seconds, in s, m, h or d, \"0s\" to \"3650d\"",
        ),
        ("priority = \"urgent\"", "priority \"urgent\": must be \"high\" or \"normal\" or \"low\""),
    ] {
        assert_eq!(of_rule(line), format!("f.toml:4: rule page:{{id}}: {expected}"));
    }
    for line in ["ttl = \"5s\"", "priority = \"high\"", "hold = \"1s\"\nttl = \"5s\""] {
        let name = line.lines().last().unwrap().split(' ').next().unwrap();
        let error = mistake(&format!("[[rule]]\nmatch = \"a\"\n{line}\n"));
        let expected = format!("rule a: {name}: is for the values of a loader; name a loader too");
        assert_eq!(error.split_once(": ").unwrap().1, expected);
    }
    for (loaders, fix) in [
        ("", "write its [loader.NAME]"),
        ("[loader.page]\ncommand = [\"sh\"]\n", "did you mean page?"),
        ("[loader.x]\ncommand = [\"sh\"]\n[loader.y]\ncommand = [\"sh\"]\n", "there are x, y"),
    ] {
        let expected =
            format!("f.toml:3: rule page:{{id}}: loader \"pages\": there is no such loader; {fix}");
        assert_eq!(mistake(&format!("{RULE}{loaders}")), expected);
    }
    let error = mistake("[[rule]]\nmatch = \"a\"\nloader = 7\nttl = \"5s\"\n");
    assert_eq!(error, "f.toml:3: rule a: loader 7: must be a loader's name, up to 64 bytes without blanks");
}

#[test]
fn check_shows_loaders_and_the_rules_that_name_them() {
    let dir = std::env::current_dir().unwrap();
    let text = format!(
        "{RULE}ttl = \"60s\"\n{PAGES}[loader.other]\ncommand = [\"sh\", \"a\\tb\"]\nmode = \"jsonl\"\n"
    );
    let file = parse(&text).unwrap();
    let printed = explain(&file, None).unwrap();
    let of_rule = "\
match = \"page:{id}\"
hold = \"400ms\"
hold_many = \"400ms\"
hold_behind = \"1m\"
lease = \"6s\"
grace = \"0s\"
grace_on_error = \"0s\"
early = \"off\"
ttl_jitter = \"0%\"
max_waiters = 1024
on_busy = \"miss\"
owner = \"key\"
fill_window = \"auto\"
ambiguous = \"serve\"
after_start = \"keep\"
negative_ttl = \"1s\"
tags = []
tags_in_value = false
loader = \"pages\"
ttl = \"1m\"
priority = \"high\"
";
    let of_loader = format!(
        "
[loader.other]
command = [\"sh\", \"a\\tb\"]
mode = \"jsonl\"
max = 4
idle = 0
load = 1
batch = 1
start = \"100ms\"
stop = \"10s\"
timeout = \"5s\"
kill_grace = \"500ms\"
start_timeout = \"30s\"
queue = 10000
retries = 0
spare = 0
init = \"\"
stale = false
dir = \"{}\"
env = [\"PATH\", \"HOME\", \"LANG\"]

# warning: loader other: no [[rule]] names it
# ok: 1 rule, 2 loaders, 1 warning
",
        dir.display()
    );
    assert!(printed.contains(of_rule), "{printed}");
    assert!(printed.ends_with(&of_loader), "{printed}");
    let again = parse(&printed).unwrap();
    assert_eq!(
        (again.loaders.as_slice(), again.rules.rules()),
        (file.loaders.as_slice(), file.rules.rules())
    );
    assert_eq!(explain(&again, None).unwrap(), printed);

    let of_key = explain(&file, Some("page:7")).unwrap();
    let begins = "key page:7\nrule 1: page:{id} (line 1)\n  id = 7\n  loader pages, gets id\n  hold = ";
    assert!(of_key.starts_with(begins), "{of_key}");
    assert!(of_key.contains("\nloader pages (line 5)\n"), "{of_key}");
}

#[test]
fn a_loader_that_only_rules_that_observe_name_does_not_run() {
    let observing = RULE.replace("loader =", "mode = \"observe\"\nloader =");
    let running = |text: &str| parse(text).unwrap().settings().unwrap().loaders().len();
    assert_eq!(running(&format!("{observing}{PAGES}")), 0);
    assert_eq!(running(&format!("{observing}{RULE}{PAGES}")), 1, "the rule behind it has its keys");
    assert_eq!(running(PAGES), 1);
    assert!(mistake(&format!("{observing}{observing}{PAGES}")).contains("is there already"));
    assert!(mistake(&format!("{RULE}{observing}{PAGES}")).contains("is there already"));
    let said = explain(&parse(&format!("{observing}{PAGES}")).unwrap(), Some("page:7")).unwrap();
    let expected = "key page:7\nno rule\nobserved, which changes nothing, by rule 1: page:{id} (line 1)\n";
    assert!(said.starts_with(expected), "{said}");
    assert!(said.contains("mode = \"observe\""), "{said}");
    assert!(of_rule("mode = \"off\"").contains("rule page:{id}: mode"), "{}", of_rule("mode = \"off\""));
}

#[test]
fn a_loader_that_no_rule_names_is_said_at_the_start() {
    let settings = |text: &str| parse(text).unwrap().settings().unwrap();
    let unnamed = settings(PAGES);
    assert_eq!(unnamed.warnings, ["loader pages: no [[rule]] names it"]);
    assert!(unnamed.notices.is_empty(), "{:?}", unnamed.notices);
    let named = settings(&format!("{RULE}{PAGES}"));
    assert_eq!((named.warnings.len(), named.loaders().len()), (0, 1));
    assert!(Settings::default().loaders().is_empty());
}

#[test]
fn workers_of_another_user_need_a_server_that_stays_root() {
    let with = |server: &str, keys: &str| {
        let file = parse(&format!("[server]\n{server}\n{RULE}{PAGES}{keys}\n")).unwrap();
        explain(&file, None).map(|_| ()).map_err(|error| error.to_string())
    };
    let because = |cause: &str| {
        Err(format!(
            "f.toml: [loader.pages]: user \"root\": the server {cause}, after which nothing it starts can become another \
             user; leave one of them out"
        ))
    };
    assert_eq!(with("user = \"daemon\"", "user = \"root\""), because("itself becomes daemon (-u)"));
    let dropped = "gives up its capabilities (drop_privileges)";
    assert_eq!(with("extended = [\"drop_privileges\"]", "user = \"root\""), because(dropped));
    assert_eq!(with("extended = [\"drop_privileges\", \"relaxed_privileges\"]", "user = \"root\""), Ok(()));
    assert_eq!(with("user = \"daemon\"", ""), Ok(()));
    assert_eq!(with("", "user = \"root\""), Ok(()));

    let newer = parse(&format!("{RULE}{PAGES}user = \"root\"\n")).unwrap();
    let running = Settings { user: Some("daemon".to_owned()), ..Settings::default() };
    assert!(newer.check_loaders(&running).is_err(), "a reload is judged by the settings of the start");
    assert!(newer.check_loaders(&Settings::default()).is_ok());
}

/// A deprecated mode is named with its replacement, and the file is valid.
#[test]
fn a_mode_that_goes_is_a_warning() {
    for (mode, warned) in [("template", false), ("exec", false), ("stdio", true), ("jsonl", false)] {
        let file = parse(&format!("{RULE}{PAGES}mode = {mode:?}\n")).unwrap();
        let warnings = file.warns_of_loaders();
        assert_eq!(warnings.len(), usize::from(warned), "{mode}: {warnings:?}");
        let text = "loader pages: mode = \"stdio\" goes with the next release; write mode = \"exec\"";
        assert!(warnings.iter().all(|line| line.starts_with(text)), "{warnings:?}");
        assert_eq!(file.settings().unwrap().warnings, warnings, "the start says the same");
    }
}

/// The loader of the example answers jobs, and writes nothing else.
#[test]
fn the_loader_of_the_example_works() {
    let file = parse(include_str!("../../../../docs/example.toml")).unwrap();
    let LoaderSettings { command, mode, .. } = &file.loaders[0];
    assert_eq!((*mode, file.warns_of_loaders()), (LoaderMode::JsonLines, Vec::new()));
    let mut worker = Command::new(&command[0])
        .args(&command[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = "{\"type\":\"init\",\"worker\":1,\"generation\":1,\"config\":\"\"}\n\
                 {\"type\":\"job\",\"id\":\"1\",\"key\":\"clock:a\",\"args\":{\"name\":\"a\"}}\n{\"type\":\"retire\"}\n";
    worker.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let answers = String::from_utf8(worker.wait_with_output().unwrap().stdout).unwrap();
    let value =
        answers.strip_prefix("{\"ready\":true}\n{\"value\":\"").and_then(|rest| rest.strip_suffix("\"}\n"));
    let digits =
        value.unwrap_or_else(|| panic!("{answers}")).split(':').map(|part| part.parse::<u8>().unwrap());
    assert_eq!(digits.count(), 3, "{answers}");
}
