//! The one definition of every key of a rule file: its name, its values, its default, what it sets, how it is
//! shown, and its words in the reference.

use cattlegrid_engine::rules::{Cascade, Change, Rule, TagTemplate};
use cattlegrid_herd::{FillWindow, LeaseTime, OnBusy, Owner, Policy};

use crate::protection::{Protection, ServerDraft};
use crate::table::{Class, Row, set};
use crate::value::{DAY, HOUR, Kind, MINUTE, Text, show_ms, show_size};

/// A key of a table that is read into a `D`, and shown from an `S`.
pub(crate) struct Key<D: 'static, S: 'static> {
    pub(crate) row: Row<&'static str, D>,
    /// The value as the file has it; None where it does not apply.
    pub(crate) show: fn(&S) -> Option<String>,
}

const fn key<D, S>(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    doc: &'static str,
    class: Class<D>,
    show: fn(&S) -> Option<String>,
) -> Key<D, S> {
    Key { row: Row { name, kind, default, doc, class }, show }
}

/// A key that this version does not have.
const fn refused<D, S>(name: &'static str, why: &'static str) -> Key<D, S> {
    let row = Row { name, kind: Kind::Any, default: "", doc: "", class: Class::Refused(why) };
    Key { row, show: |_| None }
}

/// The keys that can be used.
pub(crate) fn usable<D, S>(keys: &[Key<D, S>]) -> impl Iterator<Item = &Key<D, S>> {
    keys.iter().filter(|key| !key.row.is_refused())
}

/// The keys that this version does not have, and why.
pub(crate) fn not_yet<D, S>(keys: &[Key<D, S>]) -> impl Iterator<Item = (&'static str, &'static str)> {
    keys.iter().filter_map(|key| match key.row.class {
        Class::Refused(why) => Some((key.row.name, why)),
        _ => None,
    })
}

/// A `[[rule]]` as it is being read.
#[derive(Debug, Default)]
pub(crate) struct RuleDraft {
    pub(crate) pattern: Option<Text>,
    pub(crate) tags: Vec<Text>,
    pub(crate) hold_ms: Option<u32>,
    pub(crate) hold_many_ms: Option<u32>,
    pub(crate) negative_ttl_s: u32,
    /// Its `leases`, `hold_ms` and `hold_many_ms` follow from which keys there are.
    pub(crate) policy: Policy,
}

/// A `[[cascade]]` as it is being read.
#[derive(Debug, Default)]
pub(crate) struct CascadeDraft {
    pub(crate) on: Vec<Text>,
    pub(crate) pattern: Option<Text>,
    pub(crate) bump: Vec<Text>,
}

/// Keys by which a rule asks for leases.
pub(crate) const PROTECTING: [&str; 4] = ["hold", "lease", "grace", "early"];
/// Keys that mean something without leases.
pub(crate) const UNLEASED: [&str; 5] = ["match", "tags", "owner", "fill_window", "negative_ttl"];

/// More of anything than one server has.
const MANY: i64 = 1_000_000;

const fn choice(names: &'static [&'static str]) -> Kind {
    Kind::Choice { names, refused: &[] }
}

const fn number(min: i64, max: i64) -> Kind {
    Kind::Number { unit: "", min, max }
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
pub(crate) fn toml_text(text: &str) -> String {
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
pub(crate) const RULE: &[Key<RuleDraft, Rule>] = &[
    key("match", Kind::Text { what: "pattern", max: 1000 }, "",
        "The keys, see Patterns. Needed.",
        set!(pattern, given => Some(given.placed().clone())),
        |rule| Some(toml_text(rule.pattern.text()))),
    key("hold", Kind::Ms { min: 0, max: MINUTE }, "\"400ms\", \"0s\" if the rule names neither `hold` nor `lease`",
        "Longest a get waits for the one that computes. Keep it below the clients' own timeout.",
        set!(hold_ms, given => Some(given.ms())),
        |rule| leased(rule, ms(rule.policy.hold_ms))),
    key("hold_many", Kind::Ms { min: 0, max: MINUTE }, "\"100ms\", at most `hold`",
        "The same for a get of several keys.",
        set!(hold_many_ms, given => Some(given.ms())),
        |rule| leased(rule, ms(rule.policy.hold_many_ms))),
    key("hold_behind", Kind::Ms { min: 0, max: MINUTE }, "\"50ms\"",
        "What is left of a wait once a finished reply of the same connection waits behind it.",
        set!(policy.hold_behind_ms, given => given.ms()),
        |rule| leased(rule, ms(rule.policy.hold_behind_ms))),
    key("lease", Kind::AutoMs { min: 10, max: HOUR }, "\"auto\"",
        "How long one client may compute before another may. auto: four times the p99 of what was seen, 0.5 s to 30 s, and 3 s until enough was seen.",
        set!(policy.lease, given => given.ms_or_auto().map_or(LeaseTime::Auto, LeaseTime::Fixed)),
        |rule| leased(rule, match rule.policy.lease {
            LeaseTime::Auto => "\"auto\"".to_owned(),
            LeaseTime::Fixed(given) => ms(given),
        })),
    key("close_grace", Kind::Ms { min: 0, max: MINUTE }, "\"50ms\"",
        "How long a value is waited for after the connection of the one that computes was closed in order.",
        set!(policy.close_grace_ms, given => given.ms()),
        |rule| leased(rule, ms(rule.policy.close_grace_ms))),
    key("grace", Kind::Seconds { max: 30 * DAY }, "\"0s\"",
        "How long after its expiry the old value is served while one client computes the new one.",
        set!(policy.grace_s, given => given.seconds()),
        |rule| leased(rule, seconds(rule.policy.grace_s))),
    key("early", choice(&["off", "auto"]), "\"off\"",
        "auto: shortly before a value expires one get misses and computes it anew; the others hit.",
        set!(policy.early, given => given.text() == "auto"),
        |rule| leased(rule, if rule.policy.early { "\"auto\"" } else { "\"off\"" }.to_owned())),
    key("reentry", number(0, 16), "1",
        "Misses of its own key that a client which computes may see.",
        set!(policy.reentry, given => given.number()),
        |rule| leased(rule, rule.policy.reentry.to_string())),
    key("pass_after", number(1, MANY), "2",
        "After this many computations that stored nothing, gets of the key pass without waiting.",
        set!(policy.pass_after, given => given.number()),
        |rule| leased(rule, rule.policy.pass_after.to_string())),
    key("pass_for", Kind::Ms { min: 1, max: 2 * MINUTE }, "\"10s\"",
        "For how long at first; doubles each time, up to 2 minutes.",
        set!(policy.pass_for_ms, given => given.ms()),
        |rule| leased(rule, ms(rule.policy.pass_for_ms))),
    key("max_waiters", number(0, MANY), "1024",
        "Gets that wait for one key at most.",
        set!(policy.max_waiters, given => given.number()),
        |rule| leased(rule, rule.policy.max_waiters.to_string())),
    key("max_computers", number(1, MANY), "4",
        "Largest number of clients that compute one key, when waiting was without success.",
        set!(policy.max_computers, given => given.number()),
        |rule| leased(rule, rule.policy.max_computers.to_string())),
    key("rule_computers", number(1, MANY), "",
        "Keys of the rule that are computed at the same time at most. Without it there is no such limit.",
        set!(policy.rule_computers, given => Some(given.number())),
        |rule| rule.policy.rule_computers.and_then(|given| leased(rule, given.to_string()))),
    key("on_busy", choice(&["miss", "error"]), "\"miss\"",
        "What is answered when waiting does not help: a miss, or SERVER_ERROR busy.",
        set!(policy.on_busy, given => if given.text() == "error" { OnBusy::Error } else { OnBusy::Miss }),
        |rule| leased(rule, match rule.policy.on_busy {
            OnBusy::Miss => "\"miss\"",
            OnBusy::Error => "\"error\"",
        }.to_owned())),
    key("owner", choice(&["key", "connection"]), "\"key\"",
        "Which miss a value that is stored belongs to: the oldest open one of its key, or that of the same connection.",
        set!(policy.owner, given => if given.text() == "connection" { Owner::Connection } else { Owner::Key }),
        |rule| Some(match rule.policy.owner {
            Owner::Key => "\"key\"",
            Owner::Connection => "\"connection\"",
        }.to_owned())),
    key("fill_window", Kind::AutoMs { min: 10, max: HOUR }, "\"auto\"",
        "How long a miss is remembered for the value that belongs to it. auto: twice the lease, 2 s to 60 s.",
        set!(policy.fill_window, given => given.ms_or_auto().map_or(FillWindow::Auto, FillWindow::Fixed)),
        |rule| Some(match rule.policy.fill_window {
            FillWindow::Auto => "\"auto\"".to_owned(),
            FillWindow::Fixed(given) => ms(given),
        })),
    key("negative_ttl", Kind::Seconds { max: 30 * DAY }, "\"0s\"",
        "How long a negative answer (ms with the flag n) counts that has no time to live. 0: it needs one.",
        set!(negative_ttl_s, given => given.seconds()),
        |rule| Some(seconds(rule.negative_ttl_s))),
    key("tags", Kind::List { what: "tags" }, "[]",
        "Up to 8 names by which what is stored can be invalidated, made of text and captures of the pattern.",
        set!(tags, given => given.list().to_vec()),
        |rule| Some(list(rule.tags.iter().map(TagTemplate::text)))),
    refused("loader", LOADERS),
    refused("ttl", LOADERS),
    refused("priority", LOADERS),
];

#[rustfmt::skip]
pub(crate) const CASCADE: &[Key<CascadeDraft, Cascade>] = &[
    key("on", Kind::List { what: "delete, set, incr, touch, flush" }, "",
        "What must happen. Needed. delete counts also when it finds nothing; flush stands alone, without match.",
        set!(on, given => given.list().to_vec()),
        |cascade| {
            let all = Change::ALL;
            Some(list(all.into_iter().filter(|change| cascade.on.has(*change)).map(Change::name)))
        }),
    key("match", Kind::Text { what: "pattern", max: 1000 }, "",
        "To which keys, see Patterns. Needed but with flush.",
        set!(pattern, given => Some(given.placed().clone())),
        |cascade| cascade.pattern.as_ref().map(|pattern| toml_text(pattern.text()))),
    key("bump", Kind::List { what: "tags" }, "",
        "The tags to invalidate, 1 to 8, made of text and captures of the pattern. Needed.",
        set!(bump, given => given.list().to_vec()),
        |cascade| Some(list(cascade.bump.iter().map(TagTemplate::text)))),
];

#[rustfmt::skip]
pub(crate) const SERVER: &[Key<ServerDraft, Protection>] = &[
    key("control", Kind::Text { what: "prefix", max: 16 }, "\"@\"",
        "What control keys begin with. Empty: there are none.",
        set!(control, given => Some(given.text().to_owned())),
        |own| Some(toml_text(&own.control))),
    key("tag_memory", Kind::Size { min: 1 << 16, max: 1 << 40 }, "1/32 of the memory limit",
        "For the numbers of tags. A part of the memory limit, as the next two.",
        set!(tag_bytes, given => Some(given.bytes())),
        |own| Some(format!("\"{}\"", show_size(own.tag_bytes as u64)))),
    key("ledger_memory", Kind::Size { min: 1 << 16, max: 1 << 40 }, "1/64, at least \"1MiB\"",
        "For open misses.",
        set!(ledger_bytes, given => Some(given.bytes())),
        |own| Some(format!("\"{}\"", show_size(own.ledger_bytes as u64)))),
    key("fence_memory", Kind::Size { min: 1 << 16, max: 1 << 40 }, "1/128, at least \"1MiB\"",
        "For the last event of each key.",
        set!(fence_bytes, given => Some(given.bytes())),
        |own| Some(format!("\"{}\"", show_size(own.fence_bytes as u64)))),
    key("waiters", number(0, 16 * MANY), "65536",
        "Gets that wait at most, of all keys together.",
        set!(waiters, given => Some(given.number())),
        |own| Some(own.waiters.to_string())),
    key("read_ahead", number(1, MANY), "64",
        "Commands, and at most 256 KiB of them, that are taken from a connection behind a get that waits.",
        set!(read_ahead, given => Some(given.number())),
        |own| Some(own.read_ahead.to_string())),
    refused("admin", "the admin address is not part of this version; leave it out"),
    refused("objects", "objects are not part of this version; leave it out"),
];

/// Tables that this version does not have, and why.
pub(crate) const TABLES_NOT_YET: &[(&str, &str)] =
    &[("loader", LOADERS), ("objects", "objects are not part of this version; leave the table out")];

const LOADERS: &str = "loaders are not part of this version; leave it out";
