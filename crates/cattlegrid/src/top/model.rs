//! The state of the server as far as it is known: the last replies, those before, and the rates computed from
//! both.
//!
//! Sans-io: the caller passes [`ServerUpdate`]s, with the time at which they came.
//!
//! # Invariants
//! * A rate is computed from two replies of the same run of the server, and only if the counter has not
//!   fallen: after a restart or `stats reset` there is no rate, instead of a negative or a huge one.
//! * Gets of control keys by `top` itself are in no rate.

use std::collections::{BTreeMap, VecDeque};

use serde_json::Value;

use super::hot::Hottest;
use super::reply::{StatsGroup, StatsReply, StatsRequest, plain};

/// Points of a history: ten minutes with one point per second.
const HISTORY: usize = 600;

/// An event from the server.
#[derive(Debug)]
pub(super) enum ServerUpdate {
    /// A reply that came at this time, in milliseconds of a monotonic clock. `own_gets`: the number of gets
    /// sent by `top` before.
    Reply {
        ask: StatsRequest,
        at_ms: u64,
        reply: StatsReply,
        own_gets: u64,
    },
    /// All due requests have been answered within this time.
    Done {
        took_ms: u64,
    },
    /// The server does not answer. The next attempt is `again_ms` later. `unix_seconds`: the time of day.
    Lost {
        at_ms: u64,
        unix_seconds: u64,
        why: String,
        again_ms: u64,
    },
    Hot(Hottest),
    /// The server cannot be watched, for this reason.
    Unwatched(String),
}

/// A reply with its time.
#[derive(Debug)]
struct TimedReply {
    at_ms: u64,
    group: StatsGroup,
    own_gets: u64,
}

/// The replies of one group of statistics.
#[derive(Debug, Default)]
struct GroupState {
    now: Option<TimedReply>,
    before: Option<TimedReply>,
    /// The server's refusal.
    refused: Option<String>,
}

/// The state of the connection to the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LinkState {
    /// The server has not answered yet.
    New,
    Up,
    Lost {
        at_ms: u64,
        unix_seconds: u64,
        why: String,
        again_at_ms: u64,
    },
}

/// A slow computation, load or call.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SlowEntry {
    pub(super) kind: String,
    pub(super) shape: String,
    pub(super) ms: f64,
    pub(super) ago_ms: f64,
}

/// Past values, the newest last; None: a value is not known.
#[derive(Debug, Default)]
pub(super) struct History(VecDeque<Option<f64>>);

impl History {
    fn push(&mut self, point: Option<f64>) {
        if self.0.len() == HISTORY {
            self.0.pop_front();
        }
        self.0.push_back(point);
    }

    pub(super) fn points(&self) -> Vec<Option<f64>> {
        self.0.iter().copied().collect()
    }
}

/// The data that is shown.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) address: String,
    pub(super) link: LinkState,
    known: BTreeMap<StatsRequest, GroupState>,
    /// The reason of the last start of the counters from 0; None: they have not started again.
    pub(super) begun_anew: Option<&'static str>,
    pub(super) took_ms: u64,
    pub(super) hit_ratio: History,
    pub(super) requests: History,
    pub(super) saved: History,
    pub(super) slow: Vec<SlowEntry>,
    pub(super) nodes: Vec<BTreeMap<String, String>>,
    pub(super) hot: Option<Hottest>,
    pub(super) unwatched: Option<String>,
}

/// Counters of `stats` that only a restart or a reset makes smaller.
const STEADY: [&str; 4] = ["cmd_get", "cmd_set", "total_items", "bytes_read"];
/// Counters of requests by command. Every other counter of requests in `stats` is a part of one of these.
pub(super) const REQUESTS: [&str; 12] = [
    "cmd_get",
    "cmd_set",
    "delete_hits",
    "delete_misses",
    "incr_hits",
    "incr_misses",
    "decr_hits",
    "decr_misses",
    "cmd_touch",
    "cmd_flush",
    "auth_cmds",
    "cas_misses",
];

impl Model {
    pub(super) fn new(address: &str) -> Self {
        Self {
            address: plain(address.as_bytes()),
            link: LinkState::New,
            known: BTreeMap::new(),
            begun_anew: None,
            took_ms: 0,
            hit_ratio: History::default(),
            requests: History::default(),
            saved: History::default(),
            slow: Vec::new(),
            nodes: Vec::new(),
            hot: None,
            unwatched: None,
        }
    }

    pub(super) fn take(&mut self, update: ServerUpdate) {
        match update {
            ServerUpdate::Reply { ask, at_ms, reply, own_gets } => {
                self.take_reply(ask, at_ms, reply, own_gets);
            }
            ServerUpdate::Done { took_ms } => {
                self.took_ms = took_ms;
                self.link = LinkState::Up;
            }
            ServerUpdate::Lost { at_ms, unix_seconds, why, again_ms } => {
                let again_at_ms = at_ms + again_ms;
                let (at_ms, unix_seconds) = if let LinkState::Lost { at_ms, unix_seconds, .. } = self.link {
                    (at_ms, unix_seconds)
                } else {
                    // The age counts from the last answer, not from the time when the loss was noticed.
                    let age_ms = self.age_ms(at_ms);
                    (at_ms - age_ms, unix_seconds.saturating_sub(age_ms / 1000))
                };
                self.link = LinkState::Lost { at_ms, unix_seconds, why: plain(why.as_bytes()), again_at_ms };
                for known in self.known.values_mut() {
                    // The next server may give other rights.
                    known.refused = None;
                }
            }
            ServerUpdate::Hot(hottest) => {
                self.unwatched = None;
                self.hot = Some(hottest);
            }
            ServerUpdate::Unwatched(why) => self.unwatched = Some(plain(why.as_bytes())),
        }
    }

    fn take_reply(&mut self, ask: StatsRequest, at_ms: u64, reply: StatsReply, own_gets: u64) {
        match reply {
            StatsReply::Lines(group) => {
                if ask == StatsRequest::Stats {
                    self.compare_runs(&group);
                }
                let known = self.known.entry(ask).or_default();
                known.refused = None;
                known.before = known.now.replace(TimedReply { at_ms, group, own_gets });
                match ask {
                    StatsRequest::Stats => {
                        let (hits, misses) =
                            (self.rate(ask, "", "get_hits"), self.rate(ask, "", "get_misses"));
                        let ratio = hits.zip(misses).and_then(|(hits, misses)| ratio(hits, misses));
                        self.hit_ratio.push(ratio);
                        self.requests.push(self.request_rate());
                    }
                    StatsRequest::Rules => self.saved.push(self.rate(ask, "total", "computes_saved")),
                    _ => {}
                }
            }
            StatsReply::Value(value) => {
                let parsed = serde_json::from_slice::<Value>(&value).unwrap_or(Value::Null);
                match ask {
                    StatsRequest::Slow => self.slow = slow_of(&parsed),
                    _ => self.nodes = nodes_of(&parsed),
                }
            }
            StatsReply::Absent => {
                self.known.remove(&ask);
                match ask {
                    StatsRequest::Slow => self.slow.clear(),
                    StatsRequest::Nodes => self.nodes.clear(),
                    _ => {}
                }
            }
            StatsReply::Refused(why) => {
                self.known.insert(ask, GroupState { refused: Some(why), ..GroupState::default() });
            }
        }
    }

    /// Forgets earlier replies if the server's counters have started again.
    fn compare_runs(&mut self, new: &StatsGroup) {
        let Some(old) = self.group(StatsRequest::Stats) else { return };
        let of =
            |group: &StatsGroup, name: &str| group.get("", name).and_then(|text| text.parse::<u64>().ok());
        let is_less = |name: &str| of(new, name).zip(of(old, name)).is_some_and(|(new, old)| new < old);
        let is_other = of(old, "pid") != of(new, "pid") || is_less("uptime");
        let is_less = STEADY.into_iter().any(is_less);
        if is_other || is_less {
            self.begun_anew = Some(if is_other { "the server has started" } else { "stats reset" });
            for known in self.known.values_mut() {
                (known.now, known.before) = (None, None);
            }
        }
    }

    /// The last reply to a request.
    pub(super) fn group(&self, ask: StatsRequest) -> Option<&StatsGroup> {
        self.known.get(&ask)?.now.as_ref().map(|taken| &taken.group)
    }

    /// The server's refusal, if this user may not see the statistic.
    pub(super) fn refused(&self, ask: StatsRequest) -> Option<&str> {
        self.known.get(&ask)?.refused.as_deref()
    }

    /// Whether the server is a Cattlegrid.
    pub(super) fn is_cattlegrid(&self) -> bool {
        self.group(StatsRequest::Cattlegrid).is_some() || self.refused(StatsRequest::Cattlegrid).is_some()
    }

    /// A line of the last reply. An empty label means a line without label.
    pub(super) fn text(&self, ask: StatsRequest, label: &str, name: &str) -> Option<&str> {
        self.group(ask)?.get(label, name)
    }

    pub(super) fn number(&self, ask: StatsRequest, label: &str, name: &str) -> Option<f64> {
        self.text(ask, label, name)?.parse().ok()
    }

    /// The sum of the lines that exist; None if there are none.
    pub(super) fn sum(&self, ask: StatsRequest, label: &str, names: &[&str]) -> Option<f64> {
        let group = self.group(ask)?;
        let numbers = names.iter().filter_map(|name| group.get(label, name)?.parse::<f64>().ok());
        numbers.fold(None, |sum: Option<f64>, number| Some(sum.unwrap_or(0.0) + number))
    }

    /// By how much a counter has grown in a second, between the last two replies.
    pub(super) fn rate(&self, ask: StatsRequest, label: &str, name: &str) -> Option<f64> {
        let known = self.known.get(&ask)?;
        let (now, before) = (known.now.as_ref()?, known.before.as_ref()?);
        let ms = now.at_ms.checked_sub(before.at_ms).filter(|ms| *ms > 0)?;
        // After a reload another rule may have this number.
        if ask == StatsRequest::Rules && now.group.get(label, "match") != before.group.get(label, "match") {
            return None;
        }
        let (new, old) = (now.group.get(label, name)?, before.group.get(label, name)?);
        let own = match name {
            "cmd_get" | "get_hits" if ask == StatsRequest::Stats => now.own_gets - before.own_gets,
            _ => 0,
        };
        let grown = match (new.parse::<u64>(), old.parse::<u64>()) {
            (Ok(new), Ok(old)) => new.checked_sub(old)?.saturating_sub(own) as f64,
            _ => Some(new.parse::<f64>().ok()? - old.parse::<f64>().ok()?).filter(|grown| *grown >= 0.0)?,
        };
        Some(grown * 1000.0 / ms as f64)
    }

    /// How old the last reply to `stats` is, in milliseconds; 0 without one.
    pub(super) fn age_ms(&self, now_ms: u64) -> u64 {
        let last = self.known.get(&StatsRequest::Stats).and_then(|known| known.now.as_ref());
        last.map_or(0, |taken| now_ms.saturating_sub(taken.at_ms))
    }

    /// The time that rates of a group are of, in milliseconds.
    pub(super) fn span_ms(&self, ask: StatsRequest) -> Option<u64> {
        let known = self.known.get(&ask)?;
        known.now.as_ref()?.at_ms.checked_sub(known.before.as_ref()?.at_ms)
    }

    /// The rate of several counters together: of those that are known.
    pub(super) fn rates(&self, ask: StatsRequest, label: &str, names: &[&str]) -> Option<f64> {
        let rates = names.iter().filter_map(|name| self.rate(ask, label, name));
        rates.fold(None, |sum: Option<f64>, rate| Some(sum.unwrap_or(0.0) + rate))
    }

    pub(super) fn request_rate(&self) -> Option<f64> {
        self.rates(StatsRequest::Stats, "", &REQUESTS[..10])
    }

    /// Share of hits among gets: between the last two replies, and since the start.
    pub(super) fn hit_ratios(&self) -> (Option<f64>, Option<f64>) {
        let now = self
            .rate(StatsRequest::Stats, "", "get_hits")
            .zip(self.rate(StatsRequest::Stats, "", "get_misses"))
            .and_then(|(hits, misses)| ratio(hits, misses));
        let all = self
            .number(StatsRequest::Stats, "", "get_hits")
            .zip(self.number(StatsRequest::Stats, "", "get_misses"))
            .and_then(|(hits, misses)| ratio(hits, misses));
        (now, all)
    }

    /// Labels of a group, in the server's order.
    pub(super) fn labels(&self, ask: StatsRequest) -> impl Iterator<Item = &str> {
        self.group(ask).into_iter().flat_map(|group| group.blocks.iter().map(|block| &*block.label))
    }
}

fn ratio(hits: f64, misses: f64) -> Option<f64> {
    (hits + misses > 0.0).then(|| hits / (hits + misses))
}

fn slow_of(parsed: &Value) -> Vec<SlowEntry> {
    let text = |entry: &Value, name: &str| plain(entry[name].as_str().unwrap_or_default().as_bytes());
    let number = |entry: &Value, name: &str| entry[name].as_f64().unwrap_or(0.0);
    let entries = parsed["slow"].as_array().map_or(&[][..], Vec::as_slice);
    let one = |entry: &Value| SlowEntry {
        kind: text(entry, "kind"),
        shape: text(entry, "shape"),
        ms: number(entry, "ms"),
        ago_ms: number(entry, "ago_ms"),
    };
    entries.iter().map(one).collect()
}

fn nodes_of(parsed: &Value) -> Vec<BTreeMap<String, String>> {
    let text = |value: &Value| match value {
        Value::String(text) => plain(text.as_bytes()),
        Value::Null => "-".to_owned(),
        other => plain(other.to_string().as_bytes()),
    };
    let nodes = parsed.as_array().map_or(&[][..], Vec::as_slice).iter().filter_map(Value::as_object);
    nodes.map(|node| node.iter().map(|(name, value)| (name.clone(), text(value))).collect()).collect()
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
