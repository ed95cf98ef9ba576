//! Everything that decides how a read of a key is answered, as `@why:` shows it. The engine collects it, and
//! the server writes it.

use std::sync::Arc;

use cattlegrid_herd::{AccountView, LeaseView};
use serde::Serialize;

use crate::rules::Rule;

/// Writes a [`Why`] as text, on one line.
pub type Explain = fn(&Why) -> String;

/// Everything that decides how a read of a key is answered.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Why {
    /// The key's open misses; `None`: there are no rules.
    pub account: Option<WhyAccount>,
    /// Milliseconds for which the tags announced for the key count, unless more are announced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub announced_for_ms: Option<u64>,
    /// The last number given out.
    pub clock: u64,
    /// The last events of the key that its shard has noted; `None`: there are no rules.
    pub fence: Option<EventNumbers>,
    /// Items with a smaller stamp were flushed.
    pub floor: u64,
    /// The reason why the key has no rule, if it seems to be meant to have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The item under the key.
    pub item: Option<WhyItem>,
    /// The key, as text.
    pub key: String,
    /// The key's lease.
    pub lease: Option<WhyLease>,
    /// The object that the key names, itself or by one of its calls; None: it is an ordinary key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<WhyObject>,
    /// The logs that are followed, if the key has tags: how far each has been obeyed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub logs: Vec<WhyLog>,
    /// The number of its oldest open miss.
    pub oldest_miss: Option<u64>,
    /// Set if the key's computation has failed: milliseconds until one client may compute it again. Until it
    /// is stored, others get the old value or the answer `on_busy`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fails_for_ms: Option<u64>,
    /// The rule that observes the key: it changes nothing, and counts what it would do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed: Option<WhyRule>,
    /// The last events from outside its shard: flushes, bumps of its tags.
    pub outside: EventNumbers,
    /// The server's prefix with which the key begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Flushes that are being phased in.
    pub rolling: Vec<WhyRolling>,
    /// The key's rule.
    pub rule: Option<WhyRule>,
    /// The key's tags: those of its rule, then those announced for it, then those of its item.
    pub tags: Vec<WhyTag>,
}

/// The numbers of the last hard event and of the last soft one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct EventNumbers {
    /// An item with a smaller stamp is not served.
    pub hard: u64,
    /// An item with a smaller stamp is stale.
    pub soft: u64,
}

/// The item under a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WhyItem {
    /// The item's CAS.
    pub cas: u64,
    /// The item was changed in place: it is not served when it is stale.
    pub edited: bool,
    /// Seconds for which it may be served as a stale value: from now on if it has expired, otherwise from its
    /// expiry on; `None`: it has no grace.
    pub grace: Option<u64>,
    /// Seconds for which the old value is served while computing fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_on_error: Option<u64>,
    /// The item's limited life: another value may be newer; `None`: it has none.
    pub life: Option<WhyLife>,
    /// Seconds until it is due for a refresh.
    pub refresh_in: Option<u64>,
    /// Bytes of its value.
    pub size: usize,
    /// The item was marked stale.
    pub stale: bool,
    /// The item's standing for a reader, in a few words.
    pub standing: &'static str,
    /// The item's stamp: the number as of which its value counts.
    pub stamp: u64,
    /// Seconds to live; `None`: forever.
    pub ttl: Option<u64>,
}

/// The limited life of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct WhyLife {
    /// Milliseconds until its end.
    pub ends_in_ms: u64,
    /// The value was stored as provisional; otherwise it was doubted later.
    pub provisional: bool,
}

/// The open misses of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct WhyAccount {
    /// Fills since the last hard event of which it is not known whether they are older.
    pub ambiguous: u32,
    /// The last hard event that it knows.
    pub hard: u64,
    /// The smallest number of a miss that found no room in `ledger_memory`, and may be another key's.
    pub lost: Option<u64>,
    /// Misses from before the last hard event.
    pub old: u32,
    /// All its misses.
    pub open: u32,
}

impl From<&AccountView> for WhyAccount {
    fn from(view: &AccountView) -> Self {
        let AccountView { open, old, hard, ambiguous, lost, .. } = *view;
        Self { ambiguous, hard, lost, old, open }
    }
}

/// An object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WhyObject {
    /// A call reads it in steps, or calls wait for it.
    pub busy: bool,
    /// The object's CAS; 0: there is no object.
    pub cas: u64,
    /// What eviction does with it: `normal` or `never`.
    pub evict: &'static str,
    /// There is such an object.
    pub exists: bool,
    /// The object's key.
    pub key: String,
    /// The method that the name calls.
    pub method: Option<&'static str>,
    /// Bytes of its state.
    pub size: usize,
    /// Seconds to live; `None`: forever, or there is no object.
    pub ttl: Option<u64>,
    /// The object's type.
    #[serde(rename = "type")]
    pub type_name: &'static str,
    /// Calls that wait for it.
    pub waiting: usize,
}

/// The lease of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WhyLease {
    /// Milliseconds since the computation began.
    pub age_ms: u64,
    /// Clients that compute the key.
    pub computers: u32,
    /// The holder knows the token.
    pub explicit: bool,
    /// The holder's connection; `None`: a loader, or the lease waits for a slot of its rule.
    pub holder: Option<u64>,
    /// The loader's job; `None`: the holder is not a loader.
    pub job: Option<&'static str>,
    /// The value that the key has, in one word.
    pub kind: &'static str,
    /// Milliseconds until the deadline; `None` without a holder.
    pub left_ms: Option<u64>,
    /// The lease's token.
    pub token: u64,
    /// Number of waiters.
    pub waiters: u32,
}

impl From<LeaseView> for WhyLease {
    fn from(lease: LeaseView) -> Self {
        Self {
            age_ms: lease.age_ms,
            computers: lease.computers,
            explicit: lease.explicit,
            holder: lease.holder,
            kind: lease.kind.name(),
            job: lease.loader.then_some(if lease.job_out { "running" } else { "put off" }),
            left_ms: (lease.loader || lease.holder.is_some()).then_some(lease.left_ms),
            token: lease.token,
            waiters: lease.waiters,
        }
    }
}

/// A log that is followed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WhyLog {
    /// The log's name.
    pub name: String,
    /// Milliseconds since its last confirmation; `None`: there was none.
    pub lag_ms: Option<u64>,
    /// Milliseconds since it is behind: items that are older than its `max_lag` are as its `when_behind`
    /// says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind_ms: Option<u64>,
}

/// A flush that is being phased in.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct WhyRolling {
    /// The flush's number.
    pub number: u64,
    /// The flush's period, in seconds.
    pub seconds: u64,
    /// Share of older items that are still served, 0 to 1.
    pub served: f64,
}

/// The rule of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WhyRule {
    /// The rule's pattern.
    #[serde(rename = "match")]
    pub pattern: String,
    /// The rule's place in the file, from 1.
    pub number: u32,
    /// The loader that computes its values; `None`: clients do.
    pub loader: Option<String>,
    /// All of it. The text shows its parameters as a rule file has them.
    #[serde(skip)]
    pub all: Arc<Rule>,
}

impl From<&Arc<Rule>> for WhyRule {
    fn from(rule: &Arc<Rule>) -> Self {
        Self {
            pattern: rule.pattern.text().to_owned(),
            number: rule.number,
            loader: rule.loading.as_ref().map(|loading| loading.loader.to_string()),
            all: Arc::clone(rule),
        }
    }
}

/// A tag of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WhyTag {
    /// The tag's gradual purges, oldest first, until the grace of their items is over.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gradual: Vec<WhyPurge>,
    /// Number of the last hard bump.
    pub hard: u64,
    /// The tag's hash, in 16 digits.
    pub hash: String,
    /// Number of the last soft bump.
    pub soft: u64,
    /// The tag's name; `None`: a client has named it, and only its hash is kept.
    pub tag: Option<String>,
}

/// A gradual purge of a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct WhyPurge {
    /// Milliseconds until it reaches the key; 0: it has.
    pub moment_in_ms: u64,
    /// The purge's number.
    pub number: u64,
    /// The purge's period, in seconds.
    pub seconds: u64,
}
