//! Tests of reading rule files, and of the messages about mistakes.

use std::path::Path;

use cattlegrid_engine::rules::Rule;
use cattlegrid_herd::{
    AfterStart, Ambiguous, Early, FillWindow, LeaseTime, OnBusy, Owner, Partial, Policy, TagsInValue,
    WhenBehind,
};
use cattlegrid_tags::Prefixes;
use proptest::prelude::*;

use crate::check::check;
use crate::check::explain;
use crate::keys;
use crate::own_types::NoScripts;
use crate::protection::Protection;
use crate::rule_file::RuleFile;

fn parse(text: &str) -> Result<RuleFile, String> {
    RuleFile::parse(Path::new("f.toml"), text).map_err(|error| error.to_string())
}

fn rule(keys: &str) -> Rule {
    let file = parse(&format!("[[rule]]\nmatch = \"page:{{id}}\"\n{keys}")).unwrap();
    Rule::clone(&file.rules.rules()[0])
}

/// The result of `check` for a text.
fn checked(text: &str, key: Option<&str>) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    check(file.path(), key, &NoScripts).unwrap()
}

/// Each mistake has its line, its cause and the correct form.
fn check_mistakes(cases: &[(&str, &str)]) {
    for (text, expected) in cases {
        assert_eq!(parse(text).unwrap_err(), *expected, "{text}");
    }
}

#[test]
fn mistakes_of_the_whole_file() {
    check_mistakes(&[
        ("a = ", "f.toml:1: string values must be quoted, expected literal string"),
        ("[serer]", "f.toml:1: serer: is unknown; did you mean server?"),
        (
            "zzz = 1",
            "f.toml:1: zzz: is unknown; there are server, rule, cascade, share, user, loader, follow, objects",
        ),
        ("server = 1", "f.toml:1: server: is a table; write [server]"),
        (
            "\n[rule]\nmatch = \"a\"",
            "f.toml:2: rule: is a list of tables; write [[rule]], in double brackets",
        ),
        ("rule = [1]", "f.toml:1: rule: is a list of tables; write [[rule]], in double brackets"),
        ("[[loader]]", "f.toml:1: loader: is a table; write [loader.NAME]"),
        ("follow = 1", "f.toml:1: follow: is a table; write [follow.NAME]"),
        ("objects = 1", "f.toml:1: objects: is a table; write [objects]"),
    ]);
}

#[test]
fn mistakes_of_rules() {
    let page = "[[rule]]\nmatch = \"page:{id}\"\n";
    let with = |keys: &str| format!("{page}{keys}\n");
    check_mistakes(&[
        ("\n[[rule]]\nhold = \"1s\"", "f.toml:2: rule 1: lacks match, the pattern of its keys"),
        (
            "[[rule]]\nmatch = 7",
            "f.toml:2: rule 1: match 7: must be a pattern, up to 1000 bytes without blanks",
        ),
        ("[[rule]]\nmatch = \"\"", "f.toml:2: rule 1: match \"\": is empty"),
        (
            "[[rule]]\nmatch = \"a:{b\"",
            "f.toml:2: rule a:{b: match \"a:{b\": has a { that no } ends; write {{ for a brace",
        ),
        (&with("hodl = \"1s\""), "f.toml:3: rule page:{id}: hodl: is unknown; did you mean hold?"),
        (&with("Grace = \"1s\""), "f.toml:3: rule page:{id}: Grace: is unknown; did you mean grace?"),
        (
            &with("hold = 5"),
            "f.toml:3: rule page:{id}: hold 5: must be a time in ms, s, m, h or d, \"0s\" to \"1m\", with its unit and in quotes",
        ),
        (
            &with("hold = \"61s\""),
            "f.toml:3: rule page:{id}: hold \"61s\": must be a time in ms, s, m, h or d, \"0s\" to \"1m\"",
        ),
        (
            &with("lease = \"9ms\""),
            "f.toml:3: rule page:{id}: lease \"9ms\": must be \"auto\" or a time in ms, s, m, h or d, \"10ms\" to \"1h\"",
        ),
        (
            &with("grace = \"500ms\""),
            "f.toml:3: rule page:{id}: grace \"500ms\": must be a time of whole seconds, in s, m, h or d, \"0s\" to \"30d\"",
        ),
        (
            &with("early = true"),
            "f.toml:3: rule page:{id}: early true: must be \"off\", \"auto\" or { share = 0.001 to 0.9 }",
        ),
        (
            &with("early = { share = 1.5 }"),
            "f.toml:3: rule page:{id}: early { share = 1.5 }: must be \"off\", \"auto\" or { share = 0.001 to 0.9 }",
        ),
        (
            &with("early = { part = 0.1 }"),
            "f.toml:3: rule page:{id}: early { part = 0.1 }: must be \"off\", \"auto\" or { share = 0.001 to 0.9 }",
        ),
        (
            &with("ttl_jitter = \"91%\""),
            "f.toml:3: rule page:{id}: ttl_jitter \"91%\": must be a share in per cent, \"0%\" to \"90%\"",
        ),
        (
            &with("ttl_jitter = 0.1"),
            "f.toml:3: rule page:{id}: ttl_jitter 0.1: must be a share in per cent, \"0%\" to \"90%\"",
        ),
        (
            &with("hold = \"1s\"\nwait = \"50ms\""),
            "f.toml:4: rule page:{id}: wait: does nothing, since no old value is served; add grace = \"30s\"",
        ),
        (
            &with("grace = \"30s\"\ngrace_on_error = \"20s\""),
            "f.toml:4: rule page:{id}: grace_on_error \"20s\": is shorter than grace, which is \"30s\" and counts while computing \
             fails as well; make it longer, or leave it out",
        ),
        (
            &with("hold = \"1s\"\nreentry = 17"),
            "f.toml:4: rule page:{id}: reentry 17: must be a whole number, 0 to 16",
        ),
        (
            &with("hold = \"1s\"\nmax_computers = 0"),
            "f.toml:4: rule page:{id}: max_computers 0: must be a whole number, 1 to 1000000",
        ),
        (
            &with("tags = \"x\""),
            "f.toml:3: rule page:{id}: tags \"x\": must be a list of tags, such as [\"...\"]",
        ),
        (
            &with("tags = [\n  \"x\",\n  \"user:{user}\",\n]"),
            "f.toml:5: rule page:{id}: tags \"user:{user}\": {user}: the pattern has no such capture; it has {id}",
        ),
        (&with("tags = [\"x\", \"x\"]"), "f.toml:3: rule page:{id}: tags \"x\": is there twice"),
        (
            &with("tags = [\"1\", \"2\", \"3\", \"4\", \"5\", \"6\", \"7\", \"8\", \"9\"]"),
            "f.toml:3: rule page:{id}: tags: 9 of them; at most 8",
        ),
        (
            &with("tags = [\"x\"]\nmax_waiters = 5"),
            "f.toml:4: rule page:{id}: max_waiters: does nothing, since the rule names none of hold, lease, \
             grace, grace_on_error, early, loader; add one",
        ),
        (&with("hold = \"1s\"\nhold = \"2s\""), "f.toml:4: duplicate key"),
        (&with(page), "f.toml:4: rule page:{id}: is there already, in line 2; leave one of them out"),
        (
            &with("[[rule]]\nmatch = \"page:new\""),
            "f.toml:4: rule page:new: can never apply, since rule page:{id} in line 2 takes all of its keys; \
             put it before that one",
        ),
        (
            "[[rule]]\nmatch = \"{x*}\"\n[[rule]]\nmatch = \"a:{b}\"",
            "f.toml:4: rule a:{b}: can never apply, since rule {x*} in line 2 takes all of its keys; put it \
             before that one",
        ),
    ]);
}

#[test]
fn mistakes_of_tags_that_keys_do_not_show() {
    let with = |keys: &str| format!("[[rule]]\nmatch = \"page:{{id}}\"\n{keys}\n");
    check_mistakes(&[
        (
            &with("tags_in_value = \"yes\""),
            "f.toml:3: rule page:{id}: tags_in_value \"yes\": must be true, false or \"required\"",
        ),
        (
            &with("when_behind = \"miss\""),
            "f.toml:3: rule page:{id}: when_behind: there is no log that could be behind; write its [follow.NAME], or leave it out",
        ),
        (
            &with("tags_in_value = 1"),
            "f.toml:3: rule page:{id}: tags_in_value 1: must be true, false or \"required\"",
        ),
        (
            &with("announced_tags = true"),
            "f.toml:3: rule page:{id}: announced_tags true: must be \"required\"",
        ),
    ]);
}

#[test]
fn mistakes_of_cascades() {
    let cascade = |keys: &str| format!("[[cascade]]\n{keys}\n");
    check_mistakes(&[
        (
            &cascade("match = \"u:{u}\"\nbump = [\"u:{u}\"]"),
            "f.toml:1: cascade u:{u}: lacks on; it is a list of delete, set, incr, touch, flush",
        ),
        (
            &cascade("on = [\"delete\"]\nbump = [\"u\"]"),
            "f.toml:1: cascade 1: lacks match, the pattern of its keys",
        ),
        (
            &cascade("on = [\"delete\"]\nmatch = \"u:{u}\""),
            "f.toml:1: cascade u:{u}: lacks bump, the tags to invalidate",
        ),
        (
            &cascade("on = [\"deleted\"]\nmatch = \"u:{u}\"\nbump = [\"u:{u}\"]"),
            "f.toml:2: cascade u:{u}: on \"deleted\": is unknown; did you mean delete?",
        ),
        (
            &cascade("on = [\"set\", \"set\"]\nmatch = \"u:{u}\"\nbump = [\"u:{u}\"]"),
            "f.toml:2: cascade u:{u}: on \"set\": is there twice",
        ),
        (
            &cascade("on = \"set\"\nmatch = \"u:{u}\"\nbump = [\"u:{u}\"]"),
            "f.toml:2: cascade u:{u}: on \"set\": must be a list of delete, set, incr, touch, flush, such as \
             [\"...\"]",
        ),
        (
            &cascade("on = [\"set\"]\nmatch = \"u:{u}\"\nbump = [\"p:{p}\"]"),
            "f.toml:4: cascade u:{u}: bump \"p:{p}\": {p}: the pattern has no such capture; it has {u}",
        ),
        (
            &cascade("on = [\"flush\"]\nmatch = \"u:{u}\"\nbump = [\"u\"]"),
            "f.toml:3: cascade u:{u}: match: a flush has no key; leave it out",
        ),
        (
            &cascade("on = [\"flush\"]\nbump = [\"u:{u}\"]"),
            "f.toml:3: cascade 1: bump \"u:{u}\": {u}: the pattern has no such capture; it has none",
        ),
        (
            &cascade("on = [\"flush\", \"set\"]\nbump = [\"u\"]"),
            "f.toml:2: cascade 1: on: flush has no key, so it stands alone; give it a [[cascade]] of its own",
        ),
    ]);
}

#[test]
fn a_file_has_a_thousand_rules_and_cascades() {
    let file = |rules: usize, cascades: usize| {
        let rule = |n| format!("[[rule]]\nmatch = \"r{n}:{{id}}\"\n");
        let cascade = |n| format!("[[cascade]]\non = [\"set\"]\nmatch = \"c{n}:{{id}}\"\nbump = [\"x\"]\n");
        (0..rules).map(rule).chain((0..cascades).map(cascade)).collect::<String>()
    };
    let read = parse(&file(1000, 1000)).unwrap();
    assert_eq!((read.rules.rules().len(), read.rules.all_cascades().count()), (1000, 1000));
    check_mistakes(&[
        (&file(1001, 0), "f.toml:1: rule: 1001 of them; at most 1000"),
        (&file(0, 1001), "f.toml:1: cascade: 1001 of them; at most 1000"),
    ]);
}

#[test]
fn a_set_that_would_invalidate_its_own_item() {
    let rule = "[[rule]]\nmatch = \"user:{id}\"\ntags = [\"users\", \"user:{id}\"]\n";
    let flush = "[[cascade]]\non = [\"flush\"]\nbump = [\"users\"]\n";
    let cascade = |on: &str, bump: &str| {
        format!(
            "{rule}{flush}[[cascade]]\nmatch = \"{{kind}}:{{u}}\"\nbump = [\"{bump}\"]\non = [\n  {on}\n]\n"
        )
    };
    check_mistakes(&[
        (
            &cascade("\"delete\",\n  \"set\"", "{kind}:{u}"),
            "f.toml:12: cascade {kind}:{u}: on \"set\": a set of user:a1 would invalidate the item that it stores, which \
             has the tag user:a1 by rule user:{id}; leave set out, or give the items another tag",
        ),
        (
            &cascade("\"set\"", "users"),
            "f.toml:11: cascade {kind}:{u}: on \"set\": a set of user:a1 would invalidate the item that it stores, which \
             has the tag users by rule user:{id}; leave set out, or give the items another tag",
        ),
    ]);
    assert!(parse(&cascade("\"delete\"", "{kind}:{u}")).is_ok());
    assert!(parse(&cascade("\"set\"", "pages:{u}")).is_ok());
}

#[test]
fn mistakes_of_the_server_section() {
    check_mistakes(&[
        ("[server]\nthread = 4", "f.toml:2: [server]: thread: is unknown; did you mean threads?"),
        (
            "[server]\nthreads = \"many\"",
            "f.toml:2: [server]: threads many: must be a whole number, 1 to 1024",
        ),
        ("[server]\ndisable_cas = 1", "f.toml:2: [server]: disable_cas 1: must be true or false"),
        (
            "[server]\nmemory_limit = \"1500KiB\"",
            "f.toml:2: [server]: memory_limit \"1500KiB\": must be a whole number of MiB, 1 to 1073741824",
        ),
        (
            "[server]\ncontrol = \"a b\"",
            "f.toml:2: [server]: control \"a b\": must be a prefix, up to 16 bytes without blanks",
        ),
        (
            "[server]\ntag_memory = \"1KiB\"",
            "f.toml:2: [server]: tag_memory \"1KiB\": must be a size, \"64KiB\" to \"1024GiB\"",
        ),
        (
            "[server]\nconfig = \"x\"",
            "f.toml:2: [server]: config: is for the command line only; leave it out",
        ),
        (
            "[server]\nmemory_file = \"x\"",
            "f.toml:2: [server]: memory_file: items do not outlive a restart; leave the option out",
        ),
        (
            "[server]\nadmin = \"notls:x\"",
            "f.toml:2: [server]: admin notls:x: takes an address without a prefix",
        ),
    ]);
}

#[test]
fn a_mistake_is_one_line_whatever_it_quotes() {
    let text = "\"a\\nb\" = 1\n[server]\ncontrol = \"\\n\"\n\"\\u0007\" = 1\nport = \"1\\n2\"\n[[rule]]\nmatch = \"p\\n\"\n";
    let error = RuleFile::parse(Path::new("f.toml"), text).unwrap_err();
    assert_eq!(error.lines().len(), 5);
    assert_eq!(error.to_string().lines().count(), 5, "{error}");
    assert!(error.lines()[0].starts_with("f.toml:1: a\\nb: is unknown; "), "{error}");
}

#[test]
fn all_mistakes_are_reported_in_the_order_of_the_file() {
    let text = "[[rule]]\nmatch = \"a\"\ntags = [\"{x}\"]\nhold = \"x\"\n\n[server]\nthreads = 0\n";
    let error = parse(text).unwrap_err();
    let lines: Vec<&str> =
        error.lines().map(|line| line.rsplit_once(": must").map_or(line, |(a, _)| a)).collect();
    assert_eq!(
        lines,
        [
            "f.toml:3: rule a: tags \"{x}\": {x}: the pattern has no such capture; it has none",
            "f.toml:4: rule a: hold \"x\"",
            "f.toml:7: [server]: threads 0",
        ]
    );
}

#[test]
fn a_rule_is_leased_and_held_by_what_it_names() {
    let terms = |keys: &str| {
        let Policy { leases, hold_ms, hold_many_ms, .. } = rule(keys).policy;
        (leases, hold_ms, hold_many_ms)
    };
    assert_eq!(terms(""), (false, 0, 0));
    assert_eq!(terms("tags = [\"x\"]\nowner = \"connection\""), (false, 0, 0));
    assert_eq!(terms("grace = \"30s\""), (true, 0, 0));
    assert_eq!(terms("early = \"auto\""), (true, 0, 0));
    assert_eq!(terms("early = { share = 0.1 }"), (true, 0, 0));
    assert_eq!(terms("grace_on_error = \"1h\""), (true, 400, 400));
    assert_eq!(terms("ttl_jitter = \"10%\""), (false, 0, 0));
    assert_eq!(terms("tags_in_value = true"), (false, 0, 0));
    assert_eq!(terms("announced_tags = \"required\""), (false, 0, 0));
    assert_eq!(terms("lease = \"auto\""), (true, 400, 400));
    assert_eq!(terms("hold = \"70ms\""), (true, 70, 70));
    assert_eq!(terms("hold = \"1s\"\ngrace = \"30s\""), (true, 1000, 1000));
    assert_eq!(terms("grace = \"30s\"\nhold_many = \"20ms\""), (true, 0, 20));
}

#[test]
fn every_key_of_a_rule_reaches_it() {
    let keys = "mode = \"observe\"\npartial = \"wait\"\nhold = \"1s\"\nhold_many = \"2s\"\nhold_behind = \"3s\"\nlease = \"4s\"\nclose_grace = \"5s\"\n\
                grace = \"6s\"\ngrace_on_error = \"1h\"\nwait = \"60ms\"\nearly = { share = 0.25 }\nttl_jitter = \"15%\"\nreentry = 7\npass_after = 8\npass_for = \"9s\"\n\
                max_waiters = 10\nmax_computers = 11\nrule_computers = 12\non_busy = \"error\"\n\
                owner = \"connection\"\nfill_window = \"13s\"\nambiguous = \"drop\"\nafter_start = \"drop\"\nnegative_ttl = \"14s\"\ntags = [\"t\"]\ntags_in_value = true\nannounced_tags = \"required\"\nwhen_behind = \"miss\"\n";
    let with_log = |keys: &str| {
        rule(&format!(
            "{keys}\n[follow.shop]\nurl = \"postgres://u@h/d\"\n[[follow.shop.table]]\ntable = \"t\"\nbump = [\"t:{{id}}\"]\n"
        ))
    };
    let Rule { policy, tags, negative_ttl_s, .. } = with_log(keys);
    let expected = Policy {
        leases: true,
        loader: false,
        hold_ms: 1000,
        hold_many_ms: 2000,
        partial: Partial::Wait,
        hold_behind_ms: 3000,
        lease: LeaseTime::Fixed(4000),
        close_grace_ms: 5000,
        grace_s: 6,
        grace_on_error_s: 3600,
        wait_ms: 60,
        early: Early::Share(250_000),
        ttl_jitter: 15,
        reentry: 7,
        pass_after: 8,
        pass_for_ms: 9000,
        max_waiters: 10,
        max_computers: 11,
        rule_computers: Some(12),
        on_busy: OnBusy::Error,
        owner: Owner::Connection,
        fill_window: FillWindow::Fixed(13_000),
        ambiguous: Ambiguous::Drop,
        after_start: AfterStart::Drop,
        tags_in_value: TagsInValue::Taken,
        needs_announced_tags: true,
        when_behind: Some(WhenBehind::Miss),
        observe: true,
    };
    assert_eq!((policy, negative_ttl_s, tags[0].text()), (expected, 14, "t"));
    for key in keys::usable(keys::RULE).map(|key| &key.row) {
        // The keys of loaders and the prefix have tests of their own.
        let is_other = ["match", "prefix", "loader", "ttl", "priority"].contains(&key.name);
        assert!(is_other || keys.contains(&format!("{} = ", key.name)), "{}", key.name);
    }
}

#[test]
fn the_server_section_has_defaults_that_follow_from_the_memory() {
    let protection = |text: &str| parse(text).unwrap().settings().unwrap().protection;
    let expected = Protection {
        node: None,
        control: "@".to_owned(),
        prefixes: Prefixes::default(),
        tag_bytes: 32 << 20,
        ledger_bytes: 32 << 20,
        fence_bytes: 8 << 20,
        waiters: 65_536,
        read_ahead: 1024,
    };
    assert_eq!(protection("[server]\nmemory_limit = \"1GiB\""), expected);
    let small = protection("[server]\nmemory_limit = 32");
    assert_eq!((small.tag_bytes, small.ledger_bytes, small.fence_bytes), (4 << 20, 4 << 20, 1 << 20));
    let tag_bytes = |memory: &str| protection(&format!("[server]\nmemory_limit = {memory}")).tag_bytes;
    let sizes = ["64", "128", "256", "512", "4096"].map(tag_bytes);
    assert_eq!(sizes, [8 << 20, 8 << 20, 8 << 20, 16 << 20, 128 << 20]);
    let smallest =
        protection("[server]\nmemory_limit = 1\nmax_item_size = \"64KiB\"\n[[rule]]\nmatch = \"page:{id}\"");
    assert_eq!(
        (smallest.tag_bytes, smallest.ledger_bytes, smallest.fence_bytes),
        (128 << 10, 128 << 10, 64 << 10)
    );
    for mebibytes in 2..=256 {
        protection(&format!("[server]\nmemory_limit = {mebibytes}\n[[rule]]\nmatch = \"page:{{id}}\""));
    }
    // Half of the memory less the other tables, but 1/32 of the memory.
    assert_eq!(tag_bytes("64\nledger_memory = \"26MiB\""), 5 << 20);
    assert_eq!(tag_bytes("64\nledger_memory = \"29MiB\""), 2 << 20);
    let given = protection(
        "[server]\ncontrol = \"\"\nprefixes = [\":1:\", \"shop:\"]\ntag_memory = \"2MiB\"\nledger_memory = \"3m\"\nfence_memory = 65536\n\
         waiters = 5\nread_ahead = 6",
    );
    let expected = Protection {
        node: None,
        control: String::new(),
        prefixes: Prefixes::new(&[":1:", "shop:"]).unwrap(),
        tag_bytes: 2 << 20,
        ledger_bytes: 3 << 20,
        fence_bytes: 1 << 16,
        waiters: 5,
        read_ahead: 6,
    };
    assert_eq!(given, expected);
    let error = parse("[server]\ntag_memory = \"31MiB\"").unwrap().settings().unwrap_err().to_string();
    assert!(error.starts_with("[server]: tag_memory, ledger_memory and fence_memory take"), "{error}");
}

#[test]
fn check_shows_every_default() {
    let text = "[server]\nthreads = 2\n[[rule]]\nmatch = \"page:{id}\"\ngrace = \"90s\"\ntags = [\"p:{id}\"]\n\
                [[rule]]\nmatch = \"last:{user}:{rest*}\"\n[[cascade]]\non = [\"set\", \"delete\"]\n\
                match = \"u:{u}\"\nbump = [\"user:{u}\"]\n[[cascade]]\non = [\"flush\"]\nbump = [\"all\"]\n";
    let expected = "\
[server]
threads = 2
control = \"@\"
prefixes = []
tag_memory = \"8MiB\"
ledger_memory = \"4MiB\"
fence_memory = \"1MiB\"
waiters = 65536
read_ahead = 1024

[[rule]]
match = \"page:{id}\"
hold = \"0s\"
hold_many = \"0s\"
partial = \"answer\"
hold_behind = \"50ms\"
lease = \"auto\"
close_grace = \"50ms\"
grace = \"90s\"
wait = \"0s\"
grace_on_error = \"90s\"
early = \"off\"
ttl_jitter = \"0%\"
reentry = 1
pass_after = 2
pass_for = \"10s\"
max_waiters = 1024
max_computers = 4
on_busy = \"miss\"
owner = \"key\"
fill_window = \"auto\"
ambiguous = \"serve\"
after_start = \"keep\"
negative_ttl = \"0s\"
tags = [\"p:{id}\"]
tags_in_value = false

[[rule]]
match = \"last:{user}:{rest*}\"
ttl_jitter = \"0%\"
owner = \"key\"
fill_window = \"auto\"
ambiguous = \"serve\"
after_start = \"keep\"
negative_ttl = \"0s\"
tags = []
tags_in_value = false

[[cascade]]
on = [\"delete\", \"set\"]
match = \"u:{u}\"
bump = [\"user:{u}\"]

[[cascade]]
on = [\"flush\"]
bump = [\"all\"]

# ok: 2 rules, 2 cascades
";
    let shown = checked(text, None);
    assert_eq!(shown, expected);
    assert_eq!(checked(&shown, None), shown, "what is shown is a rule file that means the same");
    assert_eq!(parse(&shown).unwrap().rules.rules(), parse(text).unwrap().rules.rules());
}

#[test]
fn check_refuses_what_cannot_be_a_key() {
    let file = RuleFile::parse(Path::new("f.toml"), "").unwrap();
    let long = "k".repeat(251);
    for key in ["", "a b", "a\r", &*long] {
        let error = explain(&file, Some(key)).unwrap_err().to_string();
        let expected =
            format!("f.toml: --key {key:?}: cannot be a key, which has 1 to 250 bytes without blanks");
        assert_eq!(error, expected);
    }
    assert!(explain(&file, Some(&long[1..])).is_ok());
}

#[test]
fn check_says_what_applies_to_a_key() {
    let text = include_str!("../../../../docs/example.toml");
    assert_eq!(
        checked(text, Some("last-watched:7:9")),
        "\
key last-watched:7:9
rule 3: last-watched:{user}:{product} (line 25)
  user = 7
  product = 9
  tag user:7
  tag product:9
  ttl_jitter = \"0%\"            # default
  owner = \"key\"                # default
  fill_window = \"auto\"         # default
  ambiguous = \"serve\"          # default
  after_start = \"keep\"         # default
  negative_ttl = \"0s\"          # default
  tags = [\"user:{user}\", \"product:{product}\"] # line 27
  tags_in_value = false        # default
"
    );
    assert_eq!(
        checked(text, Some("user:7")),
        "key user:7\nno rule\ncascade on delete, set: user:{user}\n  user = 7\n  bump user:7\n"
    );
    assert_eq!(checked(text, Some("user:7_lock")), "key user:7_lock\nno rule\n");
}

#[test]
fn check_says_where_each_parameter_comes_from() {
    let shown = checked(
        "[[rule]]\nmatch = \"page:{id}\"\n\nhold = \"50ms\"\ngrace = \"30s\"\n[[rule]]\nmatch = \"old:{id}\"\ngrace = \"1h\"\n\
         [[rule]]\nmatch = \"user:{id}\"\nloader = \"users\"\n[loader.users]\nmode = \"stdio\"\ncommand = [\"sh\"]\n\
         timeout = \"3s\"\n",
        Some("page:1"),
    );
    let has = |shown: &str, lines: &[(&str, &str)]| {
        for (said, origin) in lines {
            let line = shown.lines().find(|line| line.trim_start().starts_with(said)).unwrap_or_default();
            assert_eq!(line.split(" # ").nth(1), Some(*origin), "{said} in {shown}");
        }
    };
    let text = "[[rule]]\nmatch = \"old:{id}\"\ngrace = \"1h\"\n[[rule]]\nmatch = \"user:{id}\"\nloader = \"users\"\n\
                [loader.users]\nmode = \"stdio\"\ncommand = [\"sh\"]\ntimeout = \"3s\"\n";
    has(
        &shown,
        &[
            ("hold = \"50ms\"", "line 4"),
            ("hold_many = \"50ms\"", "follows from hold"),
            ("grace = \"30s\"", "line 5"),
            ("grace_on_error = \"30s\"", "follows from grace"),
            ("lease = \"auto\"", "default"),
            ("max_computers = 4", "default"),
        ],
    );
    let none = "follows: none of hold, lease, grace_on_error, loader is named";
    has(&checked(text, Some("old:1")), &[("hold = \"0s\"", none), ("grace = \"1h\"", "line 3")]);
    let loaded = checked(text, Some("user:1"));
    assert!(loaded.contains("\nrule 2: user:{id} (line 4)\n"), "{loaded}");
    assert!(loaded.contains("\nloader users (line 7)\n"), "{loaded}");
    has(
        &loaded,
        &[
            ("hold = \"400ms\"", "default"),
            ("lease = \"4s\"", "follows from the loader's timeout, and 1 s"),
            ("negative_ttl = \"1s\"", "follows from loader"),
            ("mode = \"stdio\"", "line 8"),
            ("timeout = \"3s\"", "line 10"),
            ("load = 1", "follows from mode"),
            ("max = 4", "default"),
        ],
    );
}

#[test]
fn patterns_of_other_programs_and_the_number_of_everything() {
    let text = "[[rule]]\nmatch = \"page:*\"\n[[rule]]\nmatch = \"a:{x}\"\n[[cascade]]\non = [\"set\"]\nmatch = \"^b:{x}\"\nbump = [\"b\"]\n\
                [loader.l]\ncommand = [\"sh\"]\n";
    let shown = checked(text, None);
    let expected = "
# warning: loader l: no [[rule]] names it
# warning: rule page:*: * stands for itself, there are no wildcards; write a capture: {name} for a part up to what follows it, {name*} for the rest
# warning: cascade ^b:{x}: ^ and $ stand for themselves; a pattern is always that of the whole key
# ok: 2 rules, 1 loader, 1 cascade, 3 warnings
";
    assert!(shown.ends_with(expected), "{shown}");
    assert!(checked("", None).ends_with("\n# ok: 0 rules\n"));
}

#[test]
fn files_in_other_formats_are_recognised() {
    let is_toml =
        "a rule file is TOML: a line [[rule]], then lines such as match = \"page:{id}\" and hold = \"400ms\"";
    let yaml = format!("f.toml:1: looks like YAML; {is_toml}");
    let json = format!("f.toml:1: looks like JSON; {is_toml}");
    check_mistakes(&[
        ("rule:\n  - match: page:{id}\n    hold: 400ms\n", &yaml),
        ("---\nrule: []\n", &yaml),
        ("{\"rule\": [{\"match\": \"page:{id}\"}]}\n", &json),
    ]);
}

/// Pieces of rule files, so that random files do not fail at the first line.
fn fragment() -> impl Strategy<Value = String> {
    let pieces = [
        "[server]\n",
        "[[rule]]\n",
        "[[cascade]]\n",
        "[rule]\n",
        "[loader.x]\n",
        "match = ",
        "hold = ",
        "lease = ",
        "tags = ",
        "on = ",
        "bump = ",
        "threads = ",
        "listen = ",
        "unix_mask = ",
        "memory_limit = ",
        "drain = ",
        "control = ",
        "tag_memory = ",
        "\"{a}:{b*}\"",
        "\"a:{n:int}\"",
        "\"{a}{b}\"",
        "\"5s\"",
        "\"auto\"",
        "\"1GiB\"",
        "\"é{\"",
        "[\"delete\"]",
        "[\"x:{a}\", 1]",
        "[]",
        "0o7_0",
        "-1",
        "99999999999999999999",
        "1e9",
        "nan",
        "true",
        "{ a = 1 }",
        "1979-05-27",
        "\n",
        "\n",
        ",",
        "\"",
        "#",
    ];
    prop_oneof![
        6 => prop::sample::select(pieces.to_vec()).prop_map(str::to_owned),
        1 => ".{0,6}".prop_map(String::from),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2048, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_a_rule_file_or_has_mistakes(pieces in prop::collection::vec(fragment(), 0..24)) {
        let text = pieces.concat();
        match RuleFile::parse(Path::new("f.toml"), &text) {
            Ok(file) => prop_assert!(file.rules.find(b"a:7").is_none_or(|(rule, _)| rule.number > 0)),
            Err(error) => {
                let lines = text.lines().count() + 1;
                prop_assert!(!error.lines().is_empty());
                for line in error.lines() {
                    let number: Option<usize> = line.split(':').nth(1).and_then(|number| number.parse().ok());
                    prop_assert!(number.is_some_and(|number| (1..=lines).contains(&number)), "{}", line);
                }
            }
        }
    }
}

#[test]
fn prefixes_are_checked() {
    let problem = |server: &str, keys: &str| {
        let text = format!("[server]\n{server}\n[[rule]]\nmatch = \"page:{{id}}\"\n{keys}");
        parse(&text).unwrap_err()
    };
    let long = "x".repeat(65);
    for (server, keys, expected) in [
        ("prefixes = [\"\"]", "", "f.toml:2: [server]: prefixes \"\": a prefix has 1 to 64 bytes"),
        (&*format!("prefixes = [\"{long}\"]"), "", "a prefix has 1 to 64 bytes"),
        (
            "prefixes = [\"a:\", \"b:\", \"a:\"]",
            "",
            "f.toml:2: [server]: prefixes \"a:\": a prefix is there twice",
        ),
        ("prefixes = [\"@a\"]", "", "control keys begin with \"@\" (control); choose another one of them"),
        ("prefixes = [\"lock:\"]", "", "as locks, which have no rule; leave it out"),
        ("prefixes = [\"my app:\"]", "", "no key has blanks or control characters"),
        ("", "prefix = \":1:\"", "the server has no prefixes; add prefixes = [\":1:\"] to [server]"),
        (
            "prefixes = [\":1:\"]",
            "prefix = \":2:\"",
            "f.toml:5: rule page:{id}: prefix \":2:\": is not one of [server] prefixes, which are \":1:\"",
        ),
    ] {
        let error = problem(server, keys);
        assert!(error.contains(expected), "{error}");
    }
    let many: Vec<String> = (0..33).map(|number| format!("\"{number}:\"")).collect();
    let error = problem(&format!("prefixes = [{}]", many.join(", ")), "");
    assert!(error.contains("33 prefixes; at most 32"), "{error}");
}

#[test]
fn a_rule_may_be_limited_to_a_prefix() {
    let text = "[server]\nprefixes = [\":1:\", \"shop:\"]\n\
                [[rule]]\nmatch = \"page:{id}\"\nprefix = \":1:\"\ntags = [\"one\"]\n\
                [[rule]]\nmatch = \"page:{id}\"\ntags = [\"any\"]\n";
    let file = parse(text).unwrap();
    let number = |key: &str| file.rules.find(key.as_bytes()).map(|(rule, _)| rule.number);
    assert_eq!(number(":1:page:7"), Some(1));
    assert_eq!((number("shop:page:7"), number("page:7")), (Some(2), Some(2)));
    assert_eq!(number(":2:page:7"), None);
    // The other way round the second has no keys.
    let text = "[server]\nprefixes = [\":1:\"]\n[[rule]]\nmatch = \"{x*}\"\ntags = [\"any\"]\n\
                [[rule]]\nmatch = \"page:{id}\"\nprefix = \":1:\"\ntags = [\"one\"]\n";
    let error = parse(text).unwrap_err();
    assert!(error.contains("can never apply"), "{error}");
}

#[test]
fn patterns_and_names_that_begin_with_a_prefix_are_noticed() {
    let text = "[server]\nprefixes = [\"app:\", \"page:\"]\n[[rule]]\nmatch = \"app:page:{id}\"\nhold = \"1s\"\n\
                [[rule]]\nmatch = \"page:{id}\"\nhold = \"1s\"\n[[rule]]\nmatch = \"user:{id}\"\nhold = \"1s\"\n";
    let warned = parse(text).unwrap().warns_of_patterns();
    assert_eq!(warned.len(), 2);
    assert!(warned[0].starts_with("rule app:page:{id}: \"app:\" is one of [server] prefixes"), "{warned:?}");
    assert!(
        warned[0].ends_with("write \"page:{id}\", and prefix = \"app:\" if it is for that prefix only"),
        "{warned:?}"
    );
    for objects in ["prefix = \"app:\"", ""] {
        let server = if objects.is_empty() { "quota:" } else { "app:" };
        let text = format!("[server]\nprefixes = [{server:?}]\n[objects]\n{objects}\n");
        let error = parse(&text).unwrap().settings().unwrap_err().to_string();
        assert!(error.contains("begin with one of [server] prefixes"), "{error}");
    }
    // A set that invalidates its own tag, behind the prefix of its rule only.
    let error = parse(
        "[server]\nprefixes = [\"a:\"]\n[[rule]]\nmatch = \"k:{i}\"\nprefix = \"a:\"\ntags = [\"u\"]\n\
         [[cascade]]\non = [\"set\"]\nmatch = \"k:{i}\"\nbump = [\"u\"]\n",
    );
    assert!(error.unwrap_err().contains("a:k:"));
}
