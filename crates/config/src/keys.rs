//! The one definition of every key of a rule file: its name, its values, its default, what it sets, how it is
//! shown, and its words in the reference.

use cattlegrid_engine::rules::{Cascade, Change, Rule, TagTemplate};
use cattlegrid_herd::{FillWindow, LeaseTime, OnBusy, Owner, Policy};

use super::Protection;
use super::kind::{Given, Kind, Text, show_ms};

/// A key of a table that is read into a `D`, and shown from an `S`.
pub(crate) struct Key<D: 'static, S: 'static> {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// As the reference shows it; empty: there is none.
    pub(crate) default: &'static str,
    pub(crate) doc: &'static str,
    pub(crate) set: fn(&mut D, Given),
    /// The value as the file has it; None where it does not apply.
    pub(crate) show: fn(&S) -> Option<String>,
}

/// A `[[rule]]` as it is being read.
#[derive(Debug, Default)]
pub(super) struct RuleDraft {
    pub(super) pattern: Option<Text>,
    pub(super) tags: Vec<Text>,
    pub(super) hold_ms: Option<u32>,
    pub(super) hold_many_ms: Option<u32>,
    pub(super) negative_ttl_s: u32,
    /// Its `leases`, `hold_ms` and `hold_many_ms` follow from which keys there are.
    pub(super) policy: Policy,
}

/// A `[[cascade]]` as it is being read.
#[derive(Debug, Default)]
pub(super) struct CascadeDraft {
    pub(super) on: Vec<Text>,
    pub(super) pattern: Option<Text>,
    pub(super) bump: Vec<Text>,
}

/// The keys of `[server]` that are no options, as they are being read.
#[derive(Debug, Default, Clone)]
pub(crate) struct ServerDraft {
    pub(super) control: Option<String>,
    pub(super) tag_bytes: Option<u64>,
    pub(super) ledger_bytes: Option<u64>,
    pub(super) fence_bytes: Option<u64>,
    pub(super) waiters: Option<u32>,
    pub(super) read_ahead: Option<u32>,
}

/// Keys by which a rule asks for leases.
pub(super) const PROTECTING: [&str; 4] = ["hold", "lease", "grace", "early"];
/// Keys that mean something without leases.
pub(super) const UNLEASED: [&str; 5] = ["match", "tags", "owner", "fill_window", "negative_ttl"];

const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
/// More of anything than one server has.
const MANY: i64 = 1_000_000;

/// Sets a field from the only kind of value that the key's own kind gives.
macro_rules! set {
    ($($field:ident).+, $kind:ident($given:ident) => $value:expr) => {
        |draft, given| {
            if let Given::$kind($given) = given {
                draft.$($field).+ = $value;
            }
        }
    };
}

fn ms(ms: u32) -> String {
    format!("\"{}\"", show_ms(ms.into()))
}

fn seconds(seconds: u32) -> String {
    format!("\"{}\"", show_ms(u64::from(seconds) * 1000))
}

/// Only under leases.
fn leased(rule: &Rule, value: String) -> Option<String> {
    rule.policy.leases.then_some(value)
}

fn list<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    let texts: Vec<String> = texts.map(toml_text).collect();
    format!("[{}]", texts.join(", "))
}

/// A text in the file's quotes.
pub(super) fn toml_text(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        if matches!(c, '"' | '\\') {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    quoted.push('"');
    quoted
}

#[rustfmt::skip] // one key is one block of short lines, all alike
pub(super) const RULE: &[Key<RuleDraft, Rule>] = &[
    Key { name: "match", kind: Kind::Text { what: "a pattern", max: 1000 }, default: "",
        doc: "The keys, see Patterns. Needed.",
        set: set!(pattern, Text(given) => Some(given)),
        show: |rule| Some(toml_text(rule.pattern.text())) },
    Key { name: "hold", kind: Kind::Ms { min: 0, max: MINUTE }, default: "\"400ms\", \"0s\" if the rule names neither `hold` nor `lease`",
        doc: "Longest a get waits for the one that computes. Keep it below the clients' own timeout.",
        set: set!(hold_ms, Ms(given) => Some(given)),
        show: |rule| leased(rule, ms(rule.policy.hold_ms)) },
    Key { name: "hold_many", kind: Kind::Ms { min: 0, max: MINUTE }, default: "\"100ms\", at most `hold`",
        doc: "The same for a get of several keys.",
        set: set!(hold_many_ms, Ms(given) => Some(given)),
        show: |rule| leased(rule, ms(rule.policy.hold_many_ms)) },
    Key { name: "hold_behind", kind: Kind::Ms { min: 0, max: MINUTE }, default: "\"50ms\"",
        doc: "What is left of a wait once a finished reply of the same connection waits behind it.",
        set: set!(policy.hold_behind_ms, Ms(given) => given),
        show: |rule| leased(rule, ms(rule.policy.hold_behind_ms)) },
    Key { name: "lease", kind: Kind::AutoMs { min: 10, max: HOUR }, default: "\"auto\"",
        doc: "How long one client may compute before another may. auto: four times the p99 of what was seen, 0.5 s to 30 s, and 3 s until enough was seen.",
        set: |draft, given| draft.policy.lease = match given {
            Given::Ms(ms) => LeaseTime::Fixed(ms),
            _ => LeaseTime::Auto,
        },
        show: |rule| leased(rule, match rule.policy.lease {
            LeaseTime::Auto => "\"auto\"".to_owned(),
            LeaseTime::Fixed(given) => ms(given),
        }) },
    Key { name: "close_grace", kind: Kind::Ms { min: 0, max: MINUTE }, default: "\"50ms\"",
        doc: "How long a value is waited for after the connection of the one that computes was closed in order.",
        set: set!(policy.close_grace_ms, Ms(given) => given),
        show: |rule| leased(rule, ms(rule.policy.close_grace_ms)) },
    Key { name: "grace", kind: Kind::Seconds { max: 30 * DAY }, default: "\"0s\"",
        doc: "For so long after its expiry the old value is served while one client computes the new one.",
        set: set!(policy.grace_s, Seconds(given) => given),
        show: |rule| leased(rule, seconds(rule.policy.grace_s)) },
    Key { name: "early", kind: Kind::Choice(&["off", "auto"]), default: "\"off\"",
        doc: "auto: shortly before a value expires one get misses and computes it anew; the others hit.",
        set: set!(policy.early, Choice(given) => given == "auto"),
        show: |rule| leased(rule, if rule.policy.early { "\"auto\"" } else { "\"off\"" }.to_owned()) },
    Key { name: "reentry", kind: Kind::Number { min: 0, max: 16 }, default: "1",
        doc: "Misses of its own key that a client which computes may see.",
        set: set!(policy.reentry, Number(given) => given as u8),
        show: |rule| leased(rule, rule.policy.reentry.to_string()) },
    Key { name: "pass_after", kind: Kind::Number { min: 1, max: MANY }, default: "2",
        doc: "After so many computations that stored nothing, gets of the key are let pass without waiting.",
        set: set!(policy.pass_after, Number(given) => given),
        show: |rule| leased(rule, rule.policy.pass_after.to_string()) },
    Key { name: "pass_for", kind: Kind::Ms { min: 1, max: 2 * MINUTE }, default: "\"10s\"",
        doc: "For how long at first; doubles each time, up to 2 minutes.",
        set: set!(policy.pass_for_ms, Ms(given) => given),
        show: |rule| leased(rule, ms(rule.policy.pass_for_ms)) },
    Key { name: "max_waiters", kind: Kind::Number { min: 0, max: MANY }, default: "1024",
        doc: "Gets that wait for one key at most.",
        set: set!(policy.max_waiters, Number(given) => given),
        show: |rule| leased(rule, rule.policy.max_waiters.to_string()) },
    Key { name: "max_computers", kind: Kind::Number { min: 1, max: MANY }, default: "4",
        doc: "Clients that compute one key at most, when waiting has been in vain.",
        set: set!(policy.max_computers, Number(given) => given),
        show: |rule| leased(rule, rule.policy.max_computers.to_string()) },
    Key { name: "rule_computers", kind: Kind::Number { min: 1, max: MANY }, default: "",
        doc: "Keys of the rule that are computed at the same time at most. Without it there is no such limit.",
        set: set!(policy.rule_computers, Number(given) => Some(given)),
        show: |rule| rule.policy.rule_computers.and_then(|given| leased(rule, given.to_string())) },
    Key { name: "on_busy", kind: Kind::Choice(&["miss", "error"]), default: "\"miss\"",
        doc: "What is answered when waiting does not help: a miss, or SERVER_ERROR busy.",
        set: set!(policy.on_busy, Choice(given) => if given == "error" { OnBusy::Error } else { OnBusy::Miss }),
        show: |rule| leased(rule, match rule.policy.on_busy {
            OnBusy::Miss => "\"miss\"",
            OnBusy::Error => "\"error\"",
        }.to_owned()) },
    Key { name: "owner", kind: Kind::Choice(&["key", "connection"]), default: "\"key\"",
        doc: "Which miss a value that is stored belongs to: the oldest open one of its key, or that of the same connection.",
        set: set!(policy.owner, Choice(given) => if given == "connection" { Owner::Connection } else { Owner::Key }),
        show: |rule| Some(match rule.policy.owner {
            Owner::Key => "\"key\"",
            Owner::Connection => "\"connection\"",
        }.to_owned()) },
    Key { name: "fill_window", kind: Kind::AutoMs { min: 10, max: HOUR }, default: "\"auto\"",
        doc: "How long a miss is remembered for the value that belongs to it. auto: twice the lease, 2 s to 60 s.",
        set: |draft, given| draft.policy.fill_window = match given {
            Given::Ms(ms) => FillWindow::Fixed(ms),
            _ => FillWindow::Auto,
        },
        show: |rule| Some(match rule.policy.fill_window {
            FillWindow::Auto => "\"auto\"".to_owned(),
            FillWindow::Fixed(given) => ms(given),
        }) },
    Key { name: "negative_ttl", kind: Kind::Seconds { max: 30 * DAY }, default: "\"0s\"",
        doc: "How long a negative answer (ms with the flag n) counts that has no time to live. 0: it needs one.",
        set: set!(negative_ttl_s, Seconds(given) => given),
        show: |rule| Some(seconds(rule.negative_ttl_s)) },
    Key { name: "tags", kind: Kind::List { what: "tags" }, default: "[]",
        doc: "Up to 8 names by which what is stored can be invalidated, made of text and captures of the pattern.",
        set: set!(tags, List(given) => given),
        show: |rule| Some(list(rule.tags.iter().map(TagTemplate::text))) },
];

#[rustfmt::skip]
pub(super) const CASCADE: &[Key<CascadeDraft, Cascade>] = &[
    Key { name: "on", kind: Kind::List { what: "delete, set, incr, touch, flush" }, default: "",
        doc: "What must happen. Needed. delete counts also when it finds nothing; flush stands alone, without match.",
        set: set!(on, List(given) => given),
        show: |cascade| {
            let all = Change::ALL;
            Some(list(all.into_iter().filter(|change| cascade.on.has(*change)).map(Change::name)))
        } },
    Key { name: "match", kind: Kind::Text { what: "a pattern", max: 1000 }, default: "",
        doc: "To which keys, see Patterns. Needed but with flush.",
        set: set!(pattern, Text(given) => Some(given)),
        show: |cascade| cascade.pattern.as_ref().map(|pattern| toml_text(pattern.text())) },
    Key { name: "bump", kind: Kind::List { what: "tags" }, default: "",
        doc: "The tags to invalidate, 1 to 8, made of text and captures of the pattern. Needed.",
        set: set!(bump, List(given) => given),
        show: |cascade| Some(list(cascade.bump.iter().map(TagTemplate::text))) },
];

#[rustfmt::skip]
pub(super) const SERVER: &[Key<ServerDraft, Protection>] = &[
    Key { name: "control", kind: Kind::Text { what: "a prefix", max: 16 }, default: "\"@\"",
        doc: "What control keys begin with. Empty: there are none.",
        set: set!(control, Text(given) => Some(given.text)),
        show: |own| Some(toml_text(&own.control)) },
    Key { name: "tag_memory", kind: Kind::Size { min: 1 << 16, max: 1 << 40 }, default: "1/32 of the memory limit",
        doc: "For the numbers of tags. A part of the memory limit, as the next two.",
        set: set!(tag_bytes, Bytes(given) => Some(given)),
        show: |own| Some(format!("\"{}\"", super::kind::show_size(own.tag_bytes as u64))) },
    Key { name: "ledger_memory", kind: Kind::Size { min: 1 << 16, max: 1 << 40 }, default: "1/64, at least \"1MiB\"",
        doc: "For open misses.",
        set: set!(ledger_bytes, Bytes(given) => Some(given)),
        show: |own| Some(format!("\"{}\"", super::kind::show_size(own.ledger_bytes as u64))) },
    Key { name: "fence_memory", kind: Kind::Size { min: 1 << 16, max: 1 << 40 }, default: "1/128, at least \"1MiB\"",
        doc: "For the last event of each key.",
        set: set!(fence_bytes, Bytes(given) => Some(given)),
        show: |own| Some(format!("\"{}\"", super::kind::show_size(own.fence_bytes as u64))) },
    Key { name: "waiters", kind: Kind::Number { min: 0, max: 16 * MANY }, default: "65536",
        doc: "Gets that wait at most, of all keys together.",
        set: set!(waiters, Number(given) => Some(given)),
        show: |own| Some(own.waiters.to_string()) },
    Key { name: "read_ahead", kind: Kind::Number { min: 1, max: MANY }, default: "64",
        doc: "Commands, and at most 256 KiB of them, that are taken from a connection behind a get that waits.",
        set: set!(read_ahead, Number(given) => Some(given)),
        show: |own| Some(own.read_ahead.to_string()) },
];

/// Keys and tables that are no part of this version, and why.
pub(super) const NOT_YET: &[(&str, &str, &str)] = &[
    ("", "loader", LOADERS),
    ("", "objects", "objects are not part of this version; leave the table out"),
    ("rule", "loader", LOADERS),
    ("rule", "ttl", LOADERS),
    ("rule", "priority", LOADERS),
    ("server", "admin", "the admin address is not part of this version; leave it out"),
    ("server", "objects", "objects are not part of this version; leave it out"),
];

const LOADERS: &str = "loaders are not part of this version; leave it out";
