//! Who computes a missing value, who waits for it, and which fills are too late.
//!
//! [`Herd`] is the part of one shard: it grants leases, keeps waiters in order, and is told of fills, writes,
//! deletes, closed connections and time. What all shards share is with the rules ([`RuleState`]), the peers
//! ([`Peers`]) and the [`WaitGraph`]; what one connection has going is its [`Session`].
//!
//! Nothing here reads a clock, a socket or an item: time, numbers and tickets come in as arguments, and what
//! is to be done comes out.

#![forbid(unsafe_code)]

mod ask;
mod caller;
mod cycle;
mod duty;
mod effects;
mod fence;
mod freshness;
mod grant;
mod hash;
mod herd;
mod holder;
mod how;
mod lease;
mod leases;
mod ledger;
mod pass;
mod policy;
mod rule;
mod session;
mod slots;
mod sync;
mod times;
mod waiters;

pub use ask::{Ask, Hold, Role, Waited, Withdrawn};
pub use caller::{Caller, Peer, PeerKey, Peers};
pub use cycle::{EDGES_MAX, Edge, WaitGraph, Walk};
pub use effects::{Clock, Effects, Step, Verdict, Wake};
pub use fence::{Events, Fence};
pub use freshness::refresh_lead_s;
pub use grant::Grant;
pub use herd::{Herd, HerdConfig, LEASE_BYTES};
pub use how::{Filler, How};
pub use lease::{Kind, LeaseView};
pub use ledger::{Ledger, Oldest};
pub use policy::{
    FillWindow, LEASE_MAX_MS, LEASE_MIN_MS, LEASE_UNLEARNED_MS, LeaseTime, OnBusy, Owner, Policy,
};
pub use rule::{Admitted, DropCause, RuleCounters, RuleState, WAIT_BUCKETS_MS};
pub use session::{RECORDS_MAX, Record, Session, Wait, Withheld};
pub use slots::{NESTED_MAX, QUEUED_MAX};
pub use times::{Ran, Times};
pub use waiters::{Waiter, WaiterId};
