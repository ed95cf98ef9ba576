//! Leases of missing values: which client computes a value, which clients wait for it, and which fills come too late.
//!
//! [`Herd`] is the part of one shard: it grants leases, keeps waiters in order, and takes calls for fills, writes,
//! deletes, closed connections and time. State that all shards share lies in the rules ([`RuleState`]), the peers
//! ([`Peers`]) and the [`WaitGraph`]; the open misses, leases and waits of one connection are its [`Session`].
//!
//! Nothing here reads a clock, a socket or an item: time, numbers and tickets are arguments, and the work that a call
//! leaves for its caller is its result and its [`Effects`].

#![forbid(unsafe_code)]

mod account;
mod ask;
mod caller;
mod counters;
mod cycle;
mod duty;
mod effects;
mod fence;
mod fill_times;
mod freshness;
mod grant;
mod hash;
mod herd;
mod holder;
mod how;
mod lease;
mod lease_limit;
mod leases;
mod ledger;
mod observer;
mod pass;
mod policy;
mod rule;
mod session;
mod slots;
mod sync;
mod times;
mod waiters;

pub use account::{Account, Judgement, Lost, Missing, Moment, Shown, Softened, Values};
pub use ask::{Ask, Hold, Role, Stale, Unanswered, Waited, Withdrawn};
pub use caller::{Caller, Peer, PeerKey, Peers, UNCROSSED};
pub use counters::{RuleCounters, WAIT_BUCKETS_MS};
pub use cycle::{EDGES_MAX, Edge, WaitGraph, Walk};
pub use effects::{Clock, Effects, JobOrder, OldFor, Step, Verdict, Wake};
pub use fence::{Events, Fence};
pub use freshness::refresh_lead_s;
pub use grant::Grant;
pub use herd::{Herd, HerdConfig, JobFailure, LEASE_BYTES};
pub use how::{Filler, How};
pub use lease::{Kind, LeaseView};
pub use lease_limit::LeaseLimit;
pub use ledger::{ACCOUNT_BYTES, AccountView, ENTRY_BYTES, Judged, Ledger, Start, Surroundings};
pub use observer::{Missed, Observer, Stored};
pub use policy::{
    AfterStart, Ambiguous, Early, FILL_WINDOW_AUTO_MS, FillWindow, LEASE_MAX_MS, LEASE_MIN_MS,
    LEASE_UNLEARNED_MS, LeaseTime, OnBusy, Owner, Partial, Policy, TagsInValue, WhenBehind,
};
pub use rule::{Admitted, FILL_UNLEARNED_MS, RuleState};
pub use session::{Late, RECORDS_MAX, Record, Session, Told, Wait, Withheld};
pub use slots::{NESTED_MAX, QUEUED_MAX};
pub use times::{Ran, Times};
pub use waiters::{Waiter, WaiterId};
