//! The definition of each key of a rule file: its name, its values, its default, the field that it sets, how
//! it is shown, and its description in the reference.

use std::time::Duration;

use cattlegrid_engine::rules::{Cascade, Change, Loading, Rule, TagTemplate, Urgency};
use cattlegrid_herd::{
    AfterStart, Ambiguous, Early, FillWindow, LeaseTime, OnBusy, Owner, Partial, Policy, TagsInValue,
};
use cattlegrid_tags::PREFIX_BYTES_MAX;

use crate::follow_keys::{WHEN_BEHIND, when_behind, when_behind_name};
use crate::loader::{LoaderMode, LoaderSettings};
use crate::protection::{Protection, ServerDraft};
use crate::shares::ShareSettings;
use crate::table::{Class, TableRow, set};
use crate::value::{DAY, HOUR, MINUTE, TextValue, ValueKind, show_ms, show_share, show_size};

/// A key of a table, which is read into a `D` and shown from an `S`.
pub(crate) struct TableKey<D: 'static, S: 'static> {
    pub(crate) row: TableRow<&'static str, D>,
    /// The value as the file has it; None where it does not apply.
    pub(crate) show: fn(&S) -> Option<String>,
}

pub(crate) const fn key<D, S>(
    name: &'static str,
    kind: ValueKind,
    default: &'static str,
    doc: &'static str,
    class: Class<D>,
    show: fn(&S) -> Option<String>,
) -> TableKey<D, S> {
    TableKey { row: TableRow { name, kind, default, doc, class }, show }
}

/// The keys that this build supports.
pub(crate) fn usable<D, S>(keys: &[TableKey<D, S>]) -> impl Iterator<Item = &TableKey<D, S>> {
    keys.iter().filter(|key| !key.row.is_refused())
}

/// A `[[rule]]` that is being read.
#[derive(Debug, Default)]
pub(crate) struct RuleDraft {
    pub(crate) pattern: Option<TextValue>,
    pub(crate) tags: Vec<TextValue>,
    pub(crate) prefix: Option<TextValue>,
    pub(crate) hold_ms: Option<u32>,
    pub(crate) hold_many_ms: Option<u32>,
    pub(crate) hold_behind_ms: Option<u32>,
    pub(crate) negative_ttl_s: Option<u32>,
    pub(crate) loader: Option<TextValue>,
    pub(crate) ttl_s: u32,
    pub(crate) urgency: Urgency,
    /// The policy. Its `leases`, `loader`, `hold_ms`, `hold_many_ms` and `hold_behind_ms` are derived later,
    /// from the keys that are present.
    pub(crate) policy: Policy,
}

/// A `[loader.NAME]` that is being read.
#[derive(Debug)]
pub(crate) struct LoaderDraft {
    pub(crate) command: Vec<TextValue>,
    pub(crate) load: Option<usize>,
    pub(crate) dir: Option<TextValue>,
    pub(crate) env: Option<Vec<TextValue>>,
    pub(crate) user: Option<TextValue>,
    /// Settings that follow from one key alone; the others are derived later.
    pub(crate) settings: LoaderSettings,
}

/// A `[[cascade]]` that is being read.
#[derive(Debug, Default)]
pub(crate) struct CascadeDraft {
    pub(crate) on: Vec<TextValue>,
    pub(crate) pattern: Option<TextValue>,
    pub(crate) bump: Vec<TextValue>,
}

/// A `[[share]]` that is being read.
#[derive(Debug, Default)]
pub(crate) struct ShareDraft {
    pub(crate) prefix: Option<TextValue>,
    pub(crate) at_least: Option<u8>,
    pub(crate) at_most: Option<u8>,
}

/// Keys that switch leases on for a rule.
pub(crate) const PROTECTING: [&str; 6] = ["hold", "lease", "grace", "grace_on_error", "early", "loader"];
/// Keys that have a meaning without leases.
pub(crate) const UNLEASED: [&str; 13] = [
    "match",
    "prefix",
    "mode",
    "tags",
    "tags_in_value",
    "announced_tags",
    "owner",
    "fill_window",
    "ambiguous",
    "after_start",
    "negative_ttl",
    "ttl_jitter",
    "when_behind",
];
/// Keys that say how a loader is used.
pub(crate) const LOADING: [&str; 2] = ["ttl", "priority"];
/// Keys about clients that compute, which they do not do under a loader.
pub(crate) const CLIENTS_COMPUTE: [&str; 6] =
    ["partial", "close_grace", "reentry", "pass_after", "pass_for", "max_computers"];

/// The longest name of a loader, in bytes.
pub(crate) const LOADER_NAME_MAX: usize = 64;
/// An upper limit that no server reaches.
const MANY: i64 = 1_000_000;

pub(crate) const fn choice(names: &'static [&'static str]) -> ValueKind {
    ValueKind::Choice { names, refused: &[] }
}

pub(crate) const fn number(min: i64, max: i64) -> ValueKind {
    ValueKind::Number { unit: "", min, max }
}

fn ms(ms: u32) -> String {
    format!("\"{}\"", show_ms(ms.into()))
}

pub(crate) fn seconds(seconds: u32) -> String {
    format!("\"{}\"", show_ms(u64::from(seconds) * 1000))
}

fn time(time: Duration) -> String {
    format!("\"{}\"", show_ms(u64::try_from(time.as_millis()).expect("times of a rule file fit")))
}

/// The value, if the rule has leases.
fn leased(rule: &Rule, value: String) -> Option<String> {
    rule.policy.leases.then_some(value)
}

/// The value, if clients compute under the rule.
fn computed(rule: &Rule, value: String) -> Option<String> {
    leased(rule, value).filter(|_| !rule.policy.loader)
}

/// The value, if the rule has a loader.
fn loaded(rule: &Rule, value: impl FnOnce(&Loading) -> String) -> Option<String> {
    rule.loading.as_ref().map(value)
}

pub(crate) fn list<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    let texts: Vec<String> = texts.map(toml_text).collect();
    format!("[{}]", texts.join(", "))
}

/// A text in the quotes of a rule file.
pub(crate) fn toml_text(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            _ if c.is_control() => {
                let code = format!("\\u{:04X}", u32::from(c));
                quoted.push_str(&code);
            }
            _ => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[rustfmt::skip] // one key is one block of short lines, all alike
pub(crate) const RULE: &[TableKey<RuleDraft, Rule>] = &[
    key("match", ValueKind::Text { what: "pattern", max: 1000 }, "",
        "The keys, see Patterns. Needed.",
        set!(pattern, given => Some(given.placed().clone())),
        |rule| Some(toml_text(rule.pattern.text()))),
    key("prefix", ValueKind::Text { what: "prefix", max: PREFIX_BYTES_MAX }, "",
        "Only keys behind this one of `[server] prefixes`. Without it keys behind any of them, and those without one.",
        set!(prefix, given => Some(given.placed().clone())),
        |rule| rule.prefix.as_deref().map(toml_text)),
    key("mode", choice(&["on", "observe"]), "\"on\"",
        "observe: nothing changes for clients, and its keys have the next rule that matches, or none. What the rule would do is counted: see \
         [Try a rule first](herd.md#try-a-rule-first).",
        set!(policy.observe, given => given.text() == "observe"),
        |rule| rule.policy.observe.then(|| "\"observe\"".to_owned())),
    key("hold", ValueKind::Ms { min: 0, max: MINUTE }, "\"400ms\", \"0s\" if the rule names none of `hold`, `lease`, `grace_on_error`, `loader`",
        "Longest a get waits for the one that computes. Keep it below the clients' own timeout.",
        set!(hold_ms, given => Some(given.ms())),
        |rule| leased(rule, ms(rule.policy.hold_ms))),
    key("hold_many", ValueKind::Ms { min: 0, max: MINUTE }, "`hold`",
        "The same for a get of several keys.",
        set!(hold_many_ms, given => Some(given.ms())),
        |rule| leased(rule, ms(rule.policy.hold_many_ms))),
    key("partial", choice(&["answer", "wait"]), "\"answer\"",
        "What becomes of a get of several keys that is to compute some of them while others compute the rest: it is answered at once with \
         what there is, or waits for the others first, for `hold_many`.",
        set!(policy.partial, given => if given.text() == "wait" { Partial::Wait } else { Partial::Answer }),
        |rule| computed(rule, match rule.policy.partial {
            Partial::Answer => "\"answer\"",
            Partial::Wait => "\"wait\"",
        }.to_owned())),
    key("hold_behind", ValueKind::Ms { min: 0, max: MINUTE }, "\"50ms\", \"1m\" under a loader",
        "What is left of a wait once a finished reply of the same connection waits behind it. \"1m\" shortens no wait: none is longer.",
        set!(hold_behind_ms, given => Some(given.ms())),
        |rule| leased(rule, ms(rule.policy.hold_behind_ms))),
    key("lease", ValueKind::AutoMs { min: 10, max: HOUR }, "\"auto\"",
        "How long one client may compute before another may. auto: four times the p99 of what was seen, 0.5 s to 30 s, and 3 s until enough was seen. Under a loader: the time of its job; auto: the loader's `timeout` and 1 s; a time must be longer than that `timeout`.",
        set!(policy.lease, given => given.ms_or_auto().map_or(LeaseTime::Auto, LeaseTime::Fixed)),
        |rule| leased(rule, match rule.policy.lease {
            LeaseTime::Auto => "\"auto\"".to_owned(),
            LeaseTime::Fixed(given) => ms(given),
        })),
    key("close_grace", ValueKind::Ms { min: 0, max: MINUTE }, "\"50ms\"",
        "How long a value is waited for after the connection of the one that computes was closed in order. An error under a loader, as are `partial`, `reentry`, `pass_after`, `pass_for` and `max_computers`: no client computes.",
        set!(policy.close_grace_ms, given => given.ms()),
        |rule| computed(rule, ms(rule.policy.close_grace_ms))),
    key("grace", ValueKind::Seconds { max: 30 * DAY }, "\"0s\"",
        "How long after its expiry the old value is served while one client computes the new one.",
        set!(policy.grace_s, given => given.seconds()),
        |rule| leased(rule, seconds(rule.policy.grace_s))),
    key("wait", ValueKind::Ms { min: 0, max: MINUTE }, "\"0s\"",
        "How long a get waits for the new value before it gets the old one, under `grace`.",
        set!(policy.wait_ms, given => given.ms()),
        |rule| leased(rule, ms(rule.policy.wait_ms)).filter(|_| rule.policy.kept_s() > 0)),
    key("grace_on_error", ValueKind::Seconds { max: 30 * DAY }, "`grace`",
        "How long after its expiry the old value is served while computing fails or nothing is stored. Not less than `grace`.",
        set!(policy.grace_on_error_s, given => given.seconds()),
        |rule| leased(rule, seconds(rule.policy.kept_s()))),
    key("early", ValueKind::Share { min: 1000, max: 900_000 }, "\"off\"",
        "Before a value expires one get misses and computes it anew; the others hit. auto: shortly before, by how long computations take. A share: in \
         the last part of the time to live.",
        set!(policy.early, given => match given.share() {
            Some(ppm) => Early::Share(ppm),
            None if given.text() == "auto" => Early::Auto,
            None => Early::Off,
        }),
        |rule| leased(rule, match rule.policy.early {
            Early::Off => "\"off\"".to_owned(),
            Early::Auto => "\"auto\"".to_owned(),
            Early::Share(ppm) => format!("{{ share = {} }}", show_share(ppm)),
        })),
    key("ttl_jitter", ValueKind::Percent { max: 90 }, "\"0%\"",
        "By up to how much of it the time to live of a stored value is shortened, at random, so that values stored together do not expire together.",
        set!(policy.ttl_jitter, given => given.percent()),
        |rule| Some(format!("\"{}%\"", rule.policy.ttl_jitter))),
    key("reentry", number(0, 16), "1",
        "Misses of its own key that a client which computes may see.",
        set!(policy.reentry, given => given.number()),
        |rule| computed(rule, rule.policy.reentry.to_string())),
    key("pass_after", number(1, MANY), "2",
        "After this many computations that stored nothing, gets of the key pass without waiting.",
        set!(policy.pass_after, given => given.number()),
        |rule| computed(rule, rule.policy.pass_after.to_string())),
    key("pass_for", ValueKind::Ms { min: 1, max: 2 * MINUTE }, "\"10s\"",
        "For how long at first; doubles each time, up to 2 minutes.",
        set!(policy.pass_for_ms, given => given.ms()),
        |rule| computed(rule, ms(rule.policy.pass_for_ms))),
    key("max_waiters", number(0, MANY), "1024",
        "Gets that wait for one key at most.",
        set!(policy.max_waiters, given => given.number()),
        |rule| leased(rule, rule.policy.max_waiters.to_string())),
    key("max_computers", number(1, MANY), "4",
        "Largest number of clients that compute one key, when waiting was without success.",
        set!(policy.max_computers, given => given.number()),
        |rule| computed(rule, rule.policy.max_computers.to_string())),
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
        "Which miss a value that is stored belongs to: any open one of its key, or that of the same connection.",
        set!(policy.owner, given => if given.text() == "connection" { Owner::Connection } else { Owner::Key }),
        |rule| Some(match rule.policy.owner {
            Owner::Key => "\"key\"",
            Owner::Connection => "\"connection\"",
        }.to_owned())),
    key("fill_window", ValueKind::AutoMs { min: 10, max: HOUR }, "\"auto\"",
        "How long a miss is remembered for the value that belongs to it. auto: 60 s.",
        set!(policy.fill_window, given => given.ms_or_auto().map_or(FillWindow::Auto, FillWindow::Fixed)),
        |rule| Some(match rule.policy.fill_window {
            FillWindow::Auto => "\"auto\"".to_owned(),
            FillWindow::Fixed(given) => ms(given),
        })),
    key("ambiguous", choice(&["serve", "drop"]), "\"serve\"",
        "What becomes of a value that may be older than a delete: it is served for a limited time, or dropped.",
        set!(policy.ambiguous, given => if given.text() == "drop" { Ambiguous::Drop } else { Ambiguous::Serve }),
        |rule| Some(match rule.policy.ambiguous {
            Ambiguous::Serve => "\"serve\"",
            Ambiguous::Drop => "\"drop\"",
        }.to_owned())),
    key("after_start", choice(&["keep", "drop"]), "\"keep\"",
        "What becomes of values whose miss is not known, for one fill_window after a start or a change of rules: they are kept unless their \
         key was invalidated since, or dropped.",
        set!(policy.after_start, given => if given.text() == "drop" { AfterStart::Drop } else { AfterStart::Keep }),
        |rule| Some(match rule.policy.after_start {
            AfterStart::Keep => "\"keep\"",
            AfterStart::Drop => "\"drop\"",
        }.to_owned())),
    key("negative_ttl", ValueKind::Seconds { max: 30 * DAY }, "\"0s\", \"1s\" under a loader",
        "How long a negative answer (ms with the flag n, or a loader's \"not found\") counts that has no time to live. 0: it needs one.",
        set!(negative_ttl_s, given => Some(given.seconds())),
        |rule| Some(seconds(rule.negative_ttl_s))),
    key("tags", ValueKind::List { what: "tags" }, "[]",
        "Up to 8 names by which what is stored can be invalidated, made of text and captures of the pattern.",
        set!(tags, given => given.list().to_vec()),
        |rule| Some(list(rule.tags.iter().map(TagTemplate::text)))),
    key("tags_in_value", ValueKind::FlagOr { word: "required" }, "false",
        "Whether a value may begin with a line that names its tags, `@tags:user:7,product:9` and a line break: it is stored without that line. \
         required: a value without it is refused.",
        set!(policy.tags_in_value, given => match given.flag_or_word() {
            Some(false) => TagsInValue::No,
            Some(true) => TagsInValue::Taken,
            None => TagsInValue::Required,
        }),
        |rule| Some(match rule.policy.tags_in_value {
            TagsInValue::No => "false",
            TagsInValue::Taken => "true",
            TagsInValue::Required => "\"required\"",
        }.to_owned())),
    key("announced_tags", choice(&["required"]), "",
        "required: a value is not stored unless its tags were announced before, by a set of the control key `@tags:KEY`. Without it they may be.",
        set!(policy.needs_announced_tags, given => given.text() == "required"),
        |rule| rule.policy.needs_announced_tags.then(|| "\"required\"".to_owned())),
    key("when_behind", choice(&WHEN_BEHIND), "that of each log",
        "What becomes of items with tags that are older than a log's `max_lag`, while the server is behind this log. As in `[follow.NAME]`, \
         in place of what is said there, and of the flush after a gap too. An error without a `[follow.NAME]`.",
        set!(policy.when_behind, given => Some(when_behind(given.text()))),
        |rule| rule.policy.when_behind.map(|when_behind| toml_text(when_behind_name(when_behind)))),
    key("loader", ValueKind::Text { what: "loader's name", max: LOADER_NAME_MAX }, "",
        "The loader that computes missing values of these keys. Clients wait for its job and never compute.",
        set!(loader, given => Some(given.placed().clone())),
        |rule| loaded(rule, |loading| toml_text(&loading.loader))),
    key("ttl", ValueKind::Seconds { max: 3650 * DAY }, "\"0s\"",
        "Time to live of a loader's value that comes without one. 0: it does not expire.",
        set!(ttl_s, given => given.seconds()),
        |rule| loaded(rule, |loading| seconds(loading.ttl_s))),
    key("priority", choice(&["high", "normal", "low"]), "\"high\"",
        "Urgency, among the jobs of its loader, of a job that clients wait for. Refreshes that no client waits for are low.",
        set!(urgency, given => match given.text() {
            "low" => Urgency::Low,
            "normal" => Urgency::Normal,
            _ => Urgency::High,
        }),
        |rule| loaded(rule, |loading| match loading.urgency {
            Urgency::High => "\"high\"",
            Urgency::Normal => "\"normal\"",
            Urgency::Low => "\"low\"",
        }.to_owned())),
];

#[rustfmt::skip]
pub(crate) const LOADER: &[TableKey<LoaderDraft, LoaderSettings>] = &[
    key("command", ValueKind::List { what: "the program and its arguments" }, "",
        "The program and its arguments, up to 256 words and 64 KiB. Needed. A program without / is looked up in the `PATH` of `env`, one with a relative path in `dir`.",
        set!(command, given => given.list().to_vec()),
        |loader| Some(list(loader.command.iter().map(String::as_str)))),
    key("mode", choice(&["template", "exec", "stdio", "jsonl"]), "\"template\"",
        "How workers are started and spoken to: template forks them from a program that was started once; the others start the program for each worker: exec with frames on descriptor 3, jsonl with a JSON object a line on its standard streams. stdio has frames there; it goes with the next release, and a warning says so: use exec, for which a program that uses an SDK needs no change.",
        set!(settings.mode, given => match given.text() {
            "exec" => LoaderMode::Exec,
            "stdio" => LoaderMode::Stdio,
            "jsonl" => LoaderMode::JsonLines,
            _ => LoaderMode::Template,
        }),
        |loader| Some(toml_text(loader.mode.name()))),
    key("max", number(1, 1024), "4",
        "Worker processes at most, those of before a reload included.",
        set!(settings.max, given => given.number()),
        |loader| Some(loader.max.to_string())),
    key("idle", number(0, 1024), "0",
        "Fewest idle workers, at most `max`.",
        set!(settings.idle, given => given.number()),
        |loader| Some(loader.idle.to_string())),
    key("load", number(1, 65_535), "2, 1 with \"stdio\" and \"jsonl\"",
        "Jobs, or batches of jobs, at one worker at a time. With \"stdio\" and \"jsonl\" only 1.",
        set!(load, given => Some(given.number())),
        |loader| Some(loader.load.to_string())),
    key("batch", number(1, 10_000), "1",
        "Jobs that a worker may be given in one call, if it takes batches. With \"jsonl\" only 1.",
        set!(settings.batch, given => given.number()),
        |loader| Some(loader.batch.to_string())),
    key("start", ValueKind::Ms { min: 0, max: HOUR }, "\"100ms\"",
        "How long workers must be missing before one is started, then 2, 4, 8 at a time; the first is started at once. 0: all at once.",
        set!(settings.start, given => given.duration()),
        |loader| Some(time(loader.start))),
    key("stop", ValueKind::Ms { min: 0, max: DAY }, "\"10s\"",
        "Idle time after which a worker beyond `idle` leaves.",
        set!(settings.stop, given => given.duration()),
        |loader| Some(time(loader.stop))),
    key("timeout", ValueKind::Ms { min: 10, max: 30 * MINUTE }, "\"5s\"",
        "Longest time of a job, its wait for a worker and its retries included.",
        set!(settings.timeout, given => given.duration()),
        |loader| Some(time(loader.timeout))),
    key("kill_grace", ValueKind::Ms { min: 1, max: MINUTE }, "\"500ms\"",
        "How long a worker whose job's time is up, or that was asked to leave, has to end it before it is killed.",
        set!(settings.kill_grace, given => given.duration()),
        |loader| Some(time(loader.kill_grace))),
    key("start_timeout", ValueKind::Ms { min: 10, max: HOUR }, "\"30s\"",
        "Longest time until the program is ready. At the start of the server a loader that takes longer is an error.",
        set!(settings.start_timeout, given => given.duration()),
        |loader| Some(time(loader.start_timeout))),
    key("queue", number(1, MANY), "10000",
        "Jobs that wait for a worker at most. Beyond, gets are answered as `on_busy` says.",
        set!(settings.queue, given => given.number()),
        |loader| Some(loader.queue.to_string())),
    key("retries", number(0, 100), "0",
        "How often a job is begun again, within its `timeout`, whose worker was lost or whose error may be retried.",
        set!(settings.retries, given => given.number()),
        |loader| Some(loader.retries.to_string())),
    key("max_jobs", number(1, 1_000 * MANY), "",
        "Jobs after which a worker is replaced. Without it there is no such limit, as for the next two.",
        set!(settings.max_jobs, given => given.number()),
        |loader| (loader.max_jobs > 0).then(|| loader.max_jobs.to_string())),
    key("max_rss", ValueKind::Size { min: 1 << 20, max: 1 << 40 }, "",
        "Private memory at which a worker is replaced.",
        set!(settings.max_rss, given => Some(given.bytes() as u64)),
        |loader| loader.max_rss.map(|bytes| format!("\"{}\"", show_size(bytes)))),
    key("max_age", ValueKind::Ms { min: 1_000, max: 30 * DAY }, "",
        "Age at which a worker is replaced.",
        set!(settings.max_age, given => Some(given.duration())),
        |loader| loader.max_age.map(time)),
    key("spare", number(0, 1024), "0",
        "Processes started ahead, beside `max`.",
        set!(settings.spare, given => given.number()),
        |loader| Some(loader.spare.to_string())),
    key("init", ValueKind::Free { what: "text", max: 1 << 16 }, "\"\"",
        "Given to each worker before its first job: to `@loader.after_fork def f(config)` in Python, to `Worker::init` in Rust, in the \
         first line with \"jsonl\".",
        set!(settings.init, given => given.text().to_owned()),
        |loader| Some(toml_text(&loader.init))),
    key("stale", ValueKind::Flag, "false",
        "Whether a job carries the old value, if there is one.",
        set!(settings.stale, given => given.flag()),
        |loader| Some(loader.stale.to_string())),
    key("dir", ValueKind::Free { what: "directory", max: 4095 }, "that of the rule file",
        "Working directory; a relative path begins at the directory of the rule file.",
        set!(dir, given => Some(given.placed().clone())),
        |loader| loader.dir.to_str().map(toml_text)),
    key("env", ValueKind::List { what: "names of variables" }, "[\"PATH\", \"HOME\", \"LANG\"]",
        "Variables of the server's environment that are passed on, up to 256; all others are not.",
        set!(env, given => Some(given.list().to_vec())),
        |loader| Some(list(loader.env.iter().map(String::as_str)))),
    key("user", ValueKind::Text { what: "user", max: 256 }, "the server's",
        "The user that the loader's processes become before they begin the program: the template, too, so its imports and `init` functions. Of the variables of `env`, HOME, USER and LOGNAME are this user's. Only a server that runs as root can do this, so not one with -u or drop_privileges.",
        set!(user, given => Some(given.placed().clone())),
        |loader| loader.user.as_deref().map(toml_text)),
    key("init_as_root", ValueKind::Flag, "false",
        "With `user` and mode \"template\": the template keeps the server's user and HOME, for imports and `init` functions that need them, and each worker becomes `user` before its first job.",
        set!(settings.init_as_root, given => given.flag()),
        |loader| loader.init_as_root.then(|| "true".to_owned())),
];

#[rustfmt::skip]
pub(crate) const CASCADE: &[TableKey<CascadeDraft, Cascade>] = &[
    key("on", ValueKind::List { what: "delete, set, incr, touch, flush" }, "",
        "What must happen. Needed. delete counts also when it finds nothing; flush stands alone, without match.",
        set!(on, given => given.list().to_vec()),
        |cascade| {
            let all = Change::ALL;
            Some(list(all.into_iter().filter(|change| cascade.on.has(*change)).map(Change::name)))
        }),
    key("match", ValueKind::Text { what: "pattern", max: 1000 }, "",
        "To which keys, see Patterns. Needed but with flush.",
        set!(pattern, given => Some(given.placed().clone())),
        |cascade| cascade.pattern.as_ref().map(|pattern| toml_text(pattern.text()))),
    key("bump", ValueKind::List { what: "tags" }, "",
        "The tags to invalidate, 1 to 8, made of text and captures of the pattern. Needed.",
        set!(bump, given => given.list().to_vec()),
        |cascade| Some(list(cascade.bump.iter().map(TagTemplate::text)))),
];

#[rustfmt::skip]
pub(crate) const SHARE: &[TableKey<ShareDraft, ShareSettings>] = &[
    key("prefix", ValueKind::Text { what: "prefix", max: 64 }, "",
        "With which its keys begin, as clients send them; up to 64 bytes. Needed. The longest counts for a key.",
        set!(prefix, given => Some(given.placed().clone())),
        |share| Some(toml_text(&share.prefix))),
    key("at_least", ValueKind::Percent { max: 80 }, "\"0%\"",
        "Its items are not evicted for others while they have no more than this part of the memory. All shares together: up to \"80%\".",
        set!(at_least, given => Some(given.percent())),
        |share| Some(format!("\"{}%\"", share.at_least))),
    key("at_most", ValueKind::Percent { max: 100 }, "\"100%\"",
        "They have no more than this part, whether or not there is room: a write beyond it evicts others of the share. \"1%\" at least.",
        set!(at_most, given => Some(given.percent())),
        |share| Some(format!("\"{}%\"", share.at_most))),
];

#[rustfmt::skip]
pub(crate) const SERVER: &[TableKey<ServerDraft, Protection>] = &[
    key("control", ValueKind::Text { what: "prefix", max: 16 }, "\"@\"",
        "What control keys begin with. Empty: there are none.",
        set!(control, given => Some(given.text().to_owned())),
        |own| Some(toml_text(&own.control))),
    key("prefixes", ValueKind::List { what: "prefixes" }, "[]",
        "What clients put before every key: up to 32 texts of 1 to 64 bytes. A key that begins with one is matched, tagged, called and \
         controlled as what follows; each is a namespace of its own. The longest counts.",
        set!(prefixes, given => given.list().to_vec()),
        |own| Some(list(own.prefixes.all().map(|(_, text)| str::from_utf8(text).unwrap_or_default())))),
    key("node", ValueKind::Text { what: "name", max: 100 }, "host name:port",
        "This server's name among the nodes of its fleet: see `[follow.NAME]` of etcd. Letters, digits and `.:_-`.",
        set!(node, given => Some(given.placed().clone())),
        |own| own.node.as_deref().map(toml_text)),
    key("tag_memory", ValueKind::Size { min: 1 << 16, max: 1 << 40 }, "1/32 of the memory limit, at least \"8MiB\", at most 1/8",
        "For the numbers of tags. A part of the memory limit, as the next two; from the first invalidation or cascade on. While a log is followed, a fifth more, and as much again from the first tag on that a client names with its value.",
        set!(tag_bytes, given => Some(given.bytes())),
        |own| Some(format!("\"{}\"", show_size(own.tag_bytes as u64)))),
    key("ledger_memory", ValueKind::Size { min: 1 << 16, max: 1 << 40 }, "1/32, at least \"4MiB\", at most 1/8",
        "Half for leases, half for open misses.",
        set!(ledger_bytes, given => Some(given.bytes())),
        |own| Some(format!("\"{}\"", show_size(own.ledger_bytes as u64)))),
    key("fence_memory", ValueKind::Size { min: 1 << 16, max: 1 << 40 }, "1/128, at least \"1MiB\", at most 1/16",
        "For the last invalidations of keys.",
        set!(fence_bytes, given => Some(given.bytes())),
        |own| Some(format!("\"{}\"", show_size(own.fence_bytes as u64)))),
    key("waiters", number(0, 16 * MANY), "65536",
        "Gets that wait at most, of all keys together.",
        set!(waiters, given => Some(given.number())),
        |own| Some(own.waiters.to_string())),
    key("read_ahead", number(1, MANY), "1024",
        "Commands, and at most 256 KiB of them, that are taken from a connection behind a get that waits.",
        set!(read_ahead, given => Some(given.number())),
        |own| Some(own.read_ahead.to_string())),
];
