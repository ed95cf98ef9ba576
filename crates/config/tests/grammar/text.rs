//! The texts of rule files, and keys, drawn from numbers: files in which nothing is wrong, files in which much is nearly
//! right, and either of them with bytes changed.

use crate::draw::Draw;

/// A key such as a client may send.
pub(super) fn key(draw: &mut Draw<'_>) -> Vec<u8> {
    match draw.below(3) {
        0 => {
            let len = draw.choose(&[1, 3, 8, 249, 250]);
            draw.bytes(len).to_vec()
        }
        _ => (0..=draw.below(6))
            .flat_map(|_| {
                draw.choose(&["page:", "a", "7", ":", "-", "lock:", "_lock", "é", "x", "@tag:"]).bytes()
            })
            .collect(),
    }
}

/// Some bytes changed, taken out or put in.
pub(super) fn mutated(mut text: Vec<u8>, draw: &mut Draw<'_>) -> String {
    for _ in 0..=draw.below(8) {
        if text.is_empty() {
            break;
        }
        let at = draw.number() as usize % text.len();
        match draw.below(3) {
            0 => text[at] = draw.byte(),
            1 => drop(text.remove(at)),
            _ => {
                let put =
                    draw.choose(&["\"", "\n", "[", "]", "{", "}", "=", "#", "\\", "'", ".", "\r", "\0", "é"]);
                text.splice(at..at, put.bytes());
            }
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// A whole file.
pub(super) fn document(draw: &mut Draw<'_>) -> String {
    let mut text = String::new();
    // This many take a thousand times as long as the rest.
    if draw.below(256) == 1 {
        many(&mut text, draw);
    }
    while !draw.is_done() && text.len() < 1 << 16 {
        match draw.below(17) {
            0..=8 => rule(&mut text, draw),
            9..=11 => table(&mut text, "[[cascade]]", CASCADE_KEYS, &["on", "bump", "match"], draw),
            12..=13 => table(&mut text, "[server]", SERVER_KEYS, &[], draw),
            14 => {
                let heads = ["[loader.a]", "[loader.b-2]", "[loader.\"\"]", "[loader.a.b]", "[loader]"];
                table(&mut text, draw.choose(&heads), LOADER_KEYS, &["command"], draw);
            }
            15 => {
                let heads = ["[objects]", "[objects.counter]", "[objects.\"\"]", "[objects.a.b]"];
                table(&mut text, draw.choose(&heads), OBJECTS_KEYS, &[], draw);
            }
            _ => odd_table(&mut text, draw),
        }
    }
    text
}

/// A file in which nothing is wrong, unless one of its patterns takes the keys of a later one.
pub(super) fn right_document(draw: &mut Draw<'_>) -> String {
    let mut text = String::new();
    if draw.once_in(3) {
        text.push_str("[server]\n");
        text.push_str(draw.choose(&[
            "",
            "control = \"\"\n",
            "control = \"\\u00e9#\"\n",
            "memory_limit = 1\n",
        ]));
        text.push_str(draw.choose(&["", "threads = 2\n", "tag_memory = \"64KiB\"\n", "waiters = 0\n"]));
        text.push_str(draw.choose(&[
            "",
            "listen = [\"[::1]:0\",\n\"*\"]\n",
            "unix_mask = 0o7_0\n",
            "drain = \"0\"\n",
        ]));
    }
    if draw.once_in(3) {
        right_objects(&mut text, draw);
    }
    let loaders = &["a", "b-2", "C_"][..draw.below(4)];
    for name in loaders {
        right_loader(&mut text, name, draw);
    }
    let mut number = 0;
    while !draw.is_done() && number < 200 {
        number += 1;
        let names = &["a", "b_2", "C"][..draw.below(4)];
        let begin = draw.choose(&["r", "", "r", "{{", "lock:", "é"]);
        let mut pattern = format!("{begin}{}", if draw.once_in(4) { 0 } else { number });
        for name in names {
            pattern.extend([
                draw.choose(&[":", "-", "}}", "::"]),
                "{",
                name,
                draw.choose(&["", ":int"]),
                "}",
            ]);
        }
        pattern.push_str(draw.choose(&["", "", ":{rest*}", "_lock"]));
        let mut tags = vec![format!("\"t{number}\"")];
        tags.extend(names.iter().map(|name| format!("'{name}:{{{name}}}'")));
        let tags = tags[..draw.below(tags.len() + 1)].join(", ");
        if draw.once_in(4) {
            let on = draw.choose(&["\"delete\"", "\"set\", \"incr\"", "\"touch\""]);
            let bump = if tags.is_empty() { "\"x\"" } else { &tags };
            text.extend(["[[cascade]]\non = [", on, "]\nmatch = '", &pattern, "'\nbump = [", bump, "]\n"]);
            continue;
        }
        text.extend(["[[rule]]\nmatch = '", &pattern, "'\ntags = [", &tags, "]\n"]);
        if draw.once_in(3) {
            text.push_str(draw.choose(&["", "owner = \"connection\"\n", "fill_window = \"10ms\"\n"]));
            continue;
        }
        let mut left: Vec<_> = RULE_KEYS[1..20].to_vec();
        if draw.once_in(3) && !loaders.is_empty() {
            left.retain(|(key, _)| !NOT_LOADED.contains(key));
            text.extend(["loader = '", draw.choose(loaders), "'\n"]);
            text.push_str(draw.choose(&["", "ttl = \"1m\"\n", "priority = \"low\"\n", "lease = \"1h\"\n"]));
        }
        if draw.once_in(3) {
            left.retain(|(key, _)| *key != "grace");
            text.push_str(draw.choose(&[
                "grace = '30s'\nwait = '50ms'\n",
                "grace_on_error = '1h'\nwait = \"1s\"\n",
                "grace = '30s'\ngrace_on_error = '30s'\n",
            ]));
        }
        text.extend(["hold = ", draw.choose(&["0", "\"0s\"", "\"400ms\"", "\"1m\""]), "\n"]);
        for _ in 0..draw.below(left.len() + 1) {
            let (name, takes) = left.swap_remove(draw.below(left.len()));
            text.extend([name, " = "]);
            let value = match takes {
                Takes::Time => draw.choose(&["\"1s\"", "\"10s\"", "\"1m\"", "\"60s\""]).to_owned(),
                Takes::Words(words) => format!("{:?}", draw.choose(words)),
                Takes::Raw(right, _) => draw.choose(right).to_owned(),
                _ => draw.choose(&["1", "2", "16", "0x1", "0b10"]).to_owned(),
            };
            text.push_str(&value);
            text.push('\n');
        }
    }
    text
}

/// A loader in which nothing is wrong.
fn right_loader(text: &mut String, name: &str, draw: &mut Draw<'_>) {
    let command = draw.choose(&[
        "[\"sh\"]",
        "['/bin/sh', '-c', '''a\n'b''']",
        "[\"sh\", \"\\u0007\\t\\u009f\\\\\\\"\"]",
    ]);
    text.extend(["[loader.", name, "]\ncommand = ", command, "\n"]);
    let modes = ["", "mode = 'exec'\nload = 9\n", "mode = 'stdio'\nbatch = 7\n", "mode = 'jsonl'\n"];
    text.push_str(draw.choose(&modes));
    for choices in [
        ["", "max = 1\n", "max = 1_024\nidle = 3\n"],
        ["", "timeout = \"10ms\"\n", "timeout = \"30m\"\n"],
        ["", "start = 0\nstop = \"0s\"\nkill_grace = \"1ms\"\n", "start_timeout = \"1h\"\n"],
        ["", "queue = 1\nretries = 100\n", "max_jobs = 1\nmax_rss = \"1GiB\"\nmax_age = \"1d\"\n"],
        ["", "init = \"\"\"\na \\\"\\u0000\"\"\"\n", "init = '\\u0041 é'\nstale = true\n"],
        ["", "dir = \".\"\nspare = 1\n", "dir = '/'\nenv = []\n"],
        ["", "", "user = \"root\"\n"],
    ] {
        text.push_str(draw.choose(&choices));
    }
}

/// Types of objects, with which nothing is wrong.
fn right_objects(text: &mut String, draw: &mut Draw<'_>) {
    text.push_str("[objects]\n");
    for choices in [
        ["", "types = ['counter']\n", "types = [\"counter\"]\ndir = '.'\n"],
        ["", "prefix = 'o:'\njson_flags = 7\n", "prefix = \"\\u00fc\\\"\"\n"],
        ["", "pinned_max = 0\n", "pinned_max = \"512KiB\"\ntimezone = 'UTC'\n"],
        ["", "compat = ''\n", "compat = 'cacheismo'\n"],
        ["", "[objects.counter]\n", "[objects.counter]\nevict = 'never'\nttl = \"3650d\"\n"],
    ] {
        text.push_str(draw.choose(&choices));
    }
}

/// What a key takes.
#[derive(Clone, Copy)]
enum Takes {
    Pattern,
    Tags,
    Changes,
    Command,
    Time,
    Number,
    Size,
    Words(&'static [&'static str]),
    /// Values as they are written: right ones, and others.
    Raw(&'static [&'static str], &'static [&'static str]),
    Anything,
}

const EARLY: &[&str] = &[
    "\"off\"",
    "'auto'",
    "{ share = 0.1 }",
    "{ share = 0.9 }",
    "{ 'share' = 1e-3 }",
    "{ share = 0.333_333_3 }",
];
const NOT_EARLY: &[&str] = &[
    "{ share = 0.0 }",
    "{ share = 1 }",
    "{ share = nan }",
    "{ share = -inf }",
    "{ share = 0.91 }",
    "{ share = '0.1' }",
    "{ share = 0.1, auto = true }",
    "{ part = 0.1 }",
    "{}",
    "0.1",
    "true",
];
const JITTER: &[&str] = &["\"10%\"", "'0%'", "0", "\"90%\""];
const NOT_JITTER: &[&str] =
    &["\"91%\"", "10", "\"10\"", "\"-1%\"", "\"%\"", "\"1.5%\"", "\"1000%\"", "0.1", "\"10 %\""];

const IN_VALUE: &[&str] = &["true", "false", "\"required\"", "'required'"];
const NOT_IN_VALUE: &[&str] = &["\"true\"", "\"\"", "1", "[true]", "\"Required\""];

const RULE_KEYS: &[(&str, Takes)] = &[
    ("hold", Takes::Time),
    ("hold_many", Takes::Time),
    ("partial", Takes::Words(&["answer", "wait"])),
    ("prefix", Takes::Words(&[":1:", "shop:", ""])),
    ("hold_behind", Takes::Time),
    ("lease", Takes::Time),
    ("close_grace", Takes::Time),
    ("grace", Takes::Time),
    ("early", Takes::Raw(EARLY, NOT_EARLY)),
    ("ttl_jitter", Takes::Raw(JITTER, NOT_JITTER)),
    ("reentry", Takes::Number),
    ("pass_after", Takes::Number),
    ("pass_for", Takes::Time),
    ("max_waiters", Takes::Number),
    ("max_computers", Takes::Number),
    ("rule_computers", Takes::Number),
    ("on_busy", Takes::Words(&["miss", "error"])),
    ("owner", Takes::Words(&["key", "connection"])),
    ("fill_window", Takes::Time),
    ("ambiguous", Takes::Words(&["serve", "drop"])),
    ("after_start", Takes::Words(&["keep", "drop"])),
    ("negative_ttl", Takes::Time),
    ("wait", Takes::Time),
    ("grace_on_error", Takes::Time),
    ("tags", Takes::Tags),
    ("tags_in_value", Takes::Raw(IN_VALUE, NOT_IN_VALUE)),
    ("announced_tags", Takes::Raw(&["\"required\"", "'required'"], &["\"\"", "true", "\"no\""])),
    ("match", Takes::Pattern),
    ("loader", Takes::Words(&["a", "b-2", "", "c d"])),
    ("ttl", Takes::Time),
    ("priority", Takes::Words(&["high", "normal", "low", "none"])),
    ("hodl", Takes::Time),
];

/// Keys that are errors under a loader; and `lease`, which must be longer than the loader's timeout.
const NOT_LOADED: &[&str] = &["lease", "close_grace", "reentry", "pass_after", "pass_for", "max_computers"];

const LOADER_KEYS: &[(&str, Takes)] = &[
    ("command", Takes::Command),
    ("mode", Takes::Words(&["template", "exec", "stdio", "jsonl", "json"])),
    ("max", Takes::Number),
    ("idle", Takes::Number),
    ("load", Takes::Number),
    ("batch", Takes::Number),
    ("spare", Takes::Number),
    ("start", Takes::Time),
    ("stop", Takes::Time),
    ("timeout", Takes::Time),
    ("kill_grace", Takes::Time),
    ("start_timeout", Takes::Time),
    ("queue", Takes::Number),
    ("retries", Takes::Number),
    ("max_jobs", Takes::Number),
    ("max_rss", Takes::Size),
    ("max_age", Takes::Time),
    ("init", Takes::Anything),
    ("stale", Takes::Anything),
    ("dir", Takes::Words(&[".", "/", "none", "", "\\u0000"])),
    ("env", Takes::Tags),
    ("user", Takes::Words(&["root", "no-such-user"])),
    ("loader", Takes::Anything),
];

const OBJECTS_KEYS: &[(&str, Takes)] = &[
    ("dir", Takes::Words(&[".", "/", "none", ""])),
    ("types", Takes::Tags),
    ("prefix", Takes::Anything),
    ("pinned_max", Takes::Size),
    ("timezone", Takes::Words(&["UTC", "", "No/Where"])),
    ("json_flags", Takes::Number),
    ("compat", Takes::Words(&["", "cacheismo", "redis"])),
    ("time_limit", Takes::Time),
    ("evict", Takes::Words(&["normal", "never", "no"])),
    ("ttl", Takes::Time),
    ("create", Takes::Tags),
];

const CASCADE_KEYS: &[(&str, Takes)] =
    &[("on", Takes::Changes), ("match", Takes::Pattern), ("bump", Takes::Tags), ("tags", Takes::Tags)];

const SERVER_KEYS: &[(&str, Takes)] = &[
    ("control", Takes::Anything),
    (
        "prefixes",
        Takes::Raw(
            &["[]", "[\":1:\", \"shop:\"]"],
            &["[\"\"]", "[1]", "\":1:\"", "[\"a\", \"a\"]", "[\"@\"]"],
        ),
    ),
    ("tag_memory", Takes::Size),
    ("ledger_memory", Takes::Size),
    ("fence_memory", Takes::Size),
    ("waiters", Takes::Number),
    ("read_ahead", Takes::Number),
    ("memory_limit", Takes::Size),
    ("max_item_size", Takes::Size),
    ("port", Takes::Number),
    ("threads", Takes::Number),
    ("listen", Takes::Anything),
    ("unix_mask", Takes::Number),
    ("drain", Takes::Time),
    ("log_format", Takes::Words(&["text", "json"])),
    ("disable_cas", Takes::Words(&["x"])),
    ("extended", Takes::Tags),
    ("stat_delimiter", Takes::Anything),
    ("slab_growth_factor", Takes::Anything),
    ("protocol", Takes::Words(&["auto", "ascii", "binary", "x"])),
    ("config", Takes::Anything),
    ("help", Takes::Anything),
    ("verbose", Takes::Anything),
    ("enable_ssl", Takes::Anything),
    ("enable_sasl", Takes::Anything),
];

fn rule(text: &mut String, draw: &mut Draw<'_>) {
    let needs: &[&str] =
        draw.choose(&[&["match"], &["match", "hold"], &["match", "lease"], &["match", "tags"]]);
    table(text, "[[rule]]", RULE_KEYS, needs, draw);
}

/// A table with the keys that it needs and others.
fn table(text: &mut String, head: &str, keys: &[(&str, Takes)], needs: &[&str], draw: &mut Draw<'_>) {
    if draw.once_in(32) {
        text.push_str(draw.choose(&[
            "[rule]",
            "[[server]]",
            "[cascade]",
            "rule = 1",
            "server = []",
            "rule = [1]",
        ]));
    } else {
        text.push_str(head);
    }
    text.push('\n');
    // A key that is there twice ends the reading of the whole file: rarely.
    let mut left: Vec<_> = keys.to_vec();
    let needed: Vec<_> = keys.iter().filter(|key| needs.contains(&key.0) && !draw.once_in(24)).collect();
    for (name, takes) in needed {
        pair(text, name, *takes, draw);
        left.retain(|key| key.0 != *name);
    }
    for _ in 0..draw.below(5) {
        if left.is_empty() {
            break;
        }
        let at = draw.below(left.len());
        let (name, takes) = if draw.once_in(32) { left[at] } else { left.swap_remove(at) };
        // Patterns belong first; a second one is a mistake.
        if name != "match" || draw.once_in(16) {
            pair(text, name, takes, draw);
        }
    }
}

fn pair(text: &mut String, name: &str, takes: Takes, draw: &mut Draw<'_>) {
    match draw.below(64) {
        0 => text.push_str("\"un\\nknown\\u0000\""),
        1 => text.push_str("a.b.\"c\""),
        2 => text.push('é'),
        3 => text.extend(["\"", name, "\""]),
        _ => text.push_str(name),
    }
    text.push_str(" = ");
    let takes = if draw.once_in(24) { Takes::Anything } else { takes };
    value(text, takes, draw);
    text.push_str(draw.choose(&["\n", "\n", "\n", "\r\n", " # note\n"]));
}

fn value(text: &mut String, takes: Takes, draw: &mut Draw<'_>) {
    match takes {
        Takes::Pattern => string(text, &pattern(draw), draw),
        Takes::Tags => list(text, draw, |draw| match draw.below(4) {
            0 => pattern(draw),
            _ => draw
                .choose(&["all", "x:{a}", "{b}", "{rest}", "{a}{b}", "{{", "user:{none}", "", "é", "t"])
                .to_owned(),
        }),
        Takes::Command => {
            list(text, draw, |draw| {
                draw.choose(&["sh", "/bin/sh", "sh", "-c", "a b", "", "no-such-program", "./none", "\\n"])
                    .to_owned()
            });
        }
        Takes::Changes => {
            list(text, draw, |draw| {
                draw.choose(&["delete", "set", "incr", "touch", "flush", "delete", "set", "del"]).to_owned()
            });
        }
        Takes::Time => {
            let units = ["ms", "s", "m", "h", "d", "", "sec"];
            let number =
                draw.choose(&["0", "1", "9", "10", "60", "61", "400", "500", "3600", "60000", "60001"]);
            match draw.below(16) {
                0 => text.push_str("\"auto\""),
                1 => text.push_str(draw.choose(&[
                    "0",
                    "-1",
                    "\"30d\"",
                    "\"31d\"",
                    "\"99999999999999999999d\"",
                    "\"1.5s\"",
                ])),
                _ => text.extend(["\"", number, units[draw.below(units.len())], "\""]),
            }
        }
        Takes::Raw(right, wrong) => {
            text.push_str(if draw.once_in(3) { draw.choose(wrong) } else { draw.choose(right) });
        }
        Takes::Number => text.push_str(draw.choose(&[
            "0",
            "1",
            "2",
            "4",
            "16",
            "17",
            "64",
            "1_000",
            "1000000",
            "1000001",
            "0x10",
            "0o777",
            "0b1",
            "-1",
            "-0",
            "65535",
            "4294967296",
            "9223372036854775807",
            "9223372036854775808",
            "1e3",
            "1.0",
        ])),
        Takes::Size => text.push_str(draw.choose(&[
            "65536",
            "65535",
            "\"64KiB\"",
            "\"1MiB\"",
            "\"2m\"",
            "\"1k\"",
            "\"1GiB\"",
            "\"1024GiB\"",
            "\"1025GiB\"",
            "\"18446744073709551615\"",
            "\"18446744073709551615k\"",
            "1",
            "2",
            "64",
            "1073741824",
            "\"1 k\"",
        ])),
        Takes::Words(words) => {
            let word = draw.choose(words);
            text.extend(["\"", word, "\""]);
        }
        Takes::Anything => anything(text, draw, 4),
    }
}

fn anything(text: &mut String, draw: &mut Draw<'_>, depth: usize) {
    match draw.below(if depth == 0 { 10 } else { 13 }) {
        0 => text.push_str(draw.choose(&[
            "true",
            "false",
            "nan",
            "-inf",
            "1e999",
            "1979-05-27",
            "07:32:00",
            "nul",
        ])),
        1 => text.push_str(&draw.long().cast_signed().to_string()),
        2 => text.push_str("\"\\u0000\\n\\t\\u001b[1m\\\"\\\\\""),
        3 => text.push_str("'''\nraw\n\"\\ lines\n'''"),
        4 => text.push_str("\"\"\"\nlines \\\n   on\"\"\""),
        5 => {
            let len = draw.choose(&[16, 17, 200, 1_000, 1_001, 70_000]);
            text.extend(["\"", &draw.choose(&["x", "é", "{", "\u{202e}"]).repeat(len), "\""]);
        }
        6 => text.push_str(draw.choose(&[
            "\"\"",
            "\"127.0.0.1\"",
            "\"[::1]:99999\"",
            "\"@\"",
            "\"a,b\"",
            "\"*:1\"",
        ])),
        7 => string(text, &pattern(draw), draw),
        8 => text.push_str(draw.choose(&[
            "\"text\"",
            "\"json\"",
            "\":\"",
            "\"1.25\"",
            "\"ssl_chain_cert=x\"",
            "true",
        ])),
        9 => {
            text.push_str(draw.choose(&["", "\"\\ud800\"", "\"\\x\"", "\"open", "[1,", "{ a = 1, }", "[[]"]));
        }
        10 => {
            let depth = draw.choose(&[1, 10, 79, 80, 81, 400, 5_000]);
            text.push_str(&"[".repeat(depth));
            text.push_str(&"]".repeat(depth));
        }
        11 => {
            text.push_str("{ a = ");
            anything(text, draw, depth - 1);
            text.push_str(", b.c = 1 }");
        }
        _ => {
            text.push('[');
            for _ in 0..draw.below(4) {
                anything(text, draw, depth - 1);
                text.push(',');
            }
            text.push(']');
        }
    }
}

fn list(text: &mut String, draw: &mut Draw<'_>, mut entry: impl FnMut(&mut Draw<'_>) -> String) {
    let count = draw.choose(&[0, 1, 1, 1, 1, 2, 2, 3, 8, 9]);
    let space = draw.choose(&["", "\n  "]);
    text.push('[');
    for _ in 0..count {
        text.push_str(space);
        let entry = entry(draw);
        string(text, &entry, draw);
        text.push(',');
    }
    text.push(']');
}

/// A text in quotes; what stands in it may be wrong inside them.
fn string(text: &mut String, inner: &str, draw: &mut Draw<'_>) {
    let quote = draw.choose(&["\"", "\"", "\"", "'", "\"\"\"", "'''"]);
    text.push_str(quote);
    text.push_str(inner);
    text.push_str(quote);
}

/// A pattern, mostly a right one.
fn pattern(draw: &mut Draw<'_>) -> String {
    if draw.once_in(8) {
        let pieces = [
            "page:", "{a}", "{b:int}", "{rest*}", "{{", "}}", "{", "}", "é", "\\n", " ", "lock:", "_lock",
            "{a b}",
        ];
        return (0..draw.below(6)).map(|_| draw.choose(&pieces)).collect();
    }
    if draw.once_in(24) {
        return "k".repeat(draw.choose(&[249, 250, 251, 1_000, 1_001]));
    }
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
    let mut pattern = draw.choose(&["page", "p", "user", "é", "", "a:b", "{{x}}"]).to_owned();
    if draw.below(3) > 0 {
        pattern.push_str(&draw.below(1_000).to_string());
    }
    for name in &names[..draw.choose(&[0, 1, 1, 1, 2, 3, 8, 9])] {
        let class = draw.choose(&["", "", ":int"]);
        pattern.extend([draw.choose(&[":", ":", "-", "/x/"]), "{", name, class, "}"]);
    }
    pattern.push_str(draw.choose(&["", "", "", ":{rest*}", "-x", ":lock"]));
    pattern
}

/// Tables that are none of the three, or stand where they may not.
fn odd_table(text: &mut String, draw: &mut Draw<'_>) {
    match draw.below(5) {
        0 => text.push_str(draw.choose(&[
            "[loader.x]\n",
            "[objects]\n",
            "[[servers]]\n",
            "[\"a\\nb\"]\n",
            "[]\n",
        ])),
        1 => {
            let depth = draw.choose(&[2, 50, 100, 3_000]);
            text.extend(["[", &vec!["a"; depth].join("."), "]\n"]);
        }
        2 => text.push_str("[rule.x]\n[server.y]\nz = 1\n"),
        3 => text.push_str("rule = [{ match = \"in:{line}\", hold = \"1s\" }, { match = 'b' }]\n"),
        _ => text.push_str("server = { threads = 2, control = \"\" }\n"),
    }
}

/// Rules or cascades close to the limit of their number.
fn many(text: &mut String, draw: &mut Draw<'_>) {
    let count = draw.choose(&[10, 100, 999, 1_000, 1_001, 1_100]);
    let same = draw.once_in(8);
    let rules = draw.once_in(2);
    for number in 0..count {
        let number = if same { 0 } else { number }.to_string();
        text.extend(if rules {
            ["[[rule]]\nmatch = \"m", &number, ":{id}\"\nhold = \"1s\"\n"]
        } else {
            ["[[cascade]]\non = [\"delete\"]\nmatch = \"m", &number, "\"\nbump = [\"t\"]\n"]
        });
    }
}
