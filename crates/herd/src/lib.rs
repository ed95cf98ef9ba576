//! Leases of missing values: which client computes a value, which clients wait for it, and which fills come
//! too late.
//!
//! [`Herd`] is the part of one shard: it grants leases, keeps waiters in order, and takes calls for fills,
//! writes, deletes, closed connections and time. State that all shards share lies in the rules
//! ([`RuleState`]), the peers ([`Peers`]) and the [`WaitGraph`]; the open misses, leases and waits of one
//! connection are its [`Session`].
//!
//! Nothing here reads a clock, a socket or an item: time, numbers and tickets are arguments, and the work
//! that a call leaves for its caller is its result and its [`Effects`].

#![forbid(unsafe_code)]

mod account;
mod ask;
mod caller;
mod counters;
mod cycle;
mod duty;
mod effects;
mod fence;
mod hash;
mod herd;
mod lease;
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

pub use account::{
    FillMoment, Judgement, KeyAccount, LostMisses, ShownValue, SoftRelation, UnrecordedMisses, ValueHashes,
};
pub use ask::{Ask, HoldTerms, Role, StaleFill, UnansweredKey, WaitAnswer, WithdrawReason};
pub use ask::{AskMode, Filler};
pub use caller::{Caller, Peer, PeerKey, Peers, UNCROSSED};
pub use counters::{RuleCounters, WAIT_BUCKETS_MS};
pub use cycle::{CircleSearch, EDGES_MAX, Edge, WaitGraph};
pub use effects::{Clock, Effects, HerdStep, JobOrder, OldValueReader, Verdict, Wake};
pub use fence::{Events, Fence};
pub use herd::{Herd, HerdConfig, JobFailure, LEASE_BYTES};
pub use lease::Grant;
pub use lease::LeaseLimit;
pub use lease::{LeaseKind, LeaseView};
pub use ledger::{ACCOUNT_BYTES, AccountView, ENTRY_BYTES, FillVerdict, Ledger, RecordStart, Surroundings};
pub use observer::{ObservedMiss, ObservedStore, Observer};
pub use policy::{
    AfterStart, Ambiguous, Early, FILL_WINDOW_AUTO_MS, FillWindow, LEASE_MAX_MS, LEASE_MIN_MS,
    LEASE_UNLEARNED_MS, LeaseTime, OnBusy, Owner, Partial, Policy, TagsInValue, WhenBehind,
};
pub use rule::{Admission, FILL_UNLEARNED_MS, RuleState};
pub use session::{LateLease, LateNotice, MissRecord, RECORDS_MAX, Session, SessionWait, WithheldKey};
pub use slots::{NESTED_MAX, QUEUED_MAX};
pub use times::refresh_lead_s;
pub use times::{Overlap, Times};
pub use waiters::{Waiter, WaiterId};
