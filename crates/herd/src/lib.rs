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
mod computing;
mod connection;
mod cycle;
mod duty;
mod hash;
mod herd;
mod lease;
mod ledger;
mod observer;
mod pass;
mod policy;
mod rule;
mod sync;

pub use account::{
    FillMoment, Judgement, KeyAccount, LostMisses, ShownValue, SoftRelation, UnrecordedMisses, ValueHashes,
};
pub use ask::{
    Ask, AskMode, Clock, Effects, Filler, HerdStep, HoldTerms, JobOrder, OldValueReader, Role, StaleFill,
    UnansweredKey, Verdict, WaitAnswer, Wake, WithdrawReason,
};
pub use computing::{NESTED_MAX, Overlap, QUEUED_MAX, Times, refresh_lead_s};
pub use connection::{
    Caller, LateLease, LateNotice, MissRecord, Peer, PeerKey, Peers, RECORDS_MAX, Session, SessionWait,
    UNCROSSED, WithheldKey,
};
pub use cycle::{CircleSearch, EDGES_MAX, Edge, WaitGraph};
pub use herd::{Herd, HerdConfig, JobFailure, LEASE_BYTES};
pub use lease::{Grant, LeaseKind, LeaseLimit, LeaseView, Waiter, WaiterId};
pub use ledger::{
    ACCOUNT_BYTES, AccountView, ENTRY_BYTES, Events, Fence, FillVerdict, Ledger, RecordStart, Surroundings,
};
pub use observer::{ObservedMiss, ObservedStore, Observer};
pub use policy::{
    AfterStart, Ambiguous, Early, FILL_WINDOW_AUTO_MS, FillWindow, LEASE_MAX_MS, LEASE_MIN_MS,
    LEASE_UNLEARNED_MS, LeaseTime, OnBusy, Owner, Partial, Policy, RuleCounters, TagsInValue,
    WAIT_BUCKETS_MS, WhenBehind,
};
pub use rule::{Admission, FILL_UNLEARNED_MS, RuleState};
