//! Executes requests: what each command does to the data, without sockets, clocks or threads.
//!
//! [`Shard`] executes requests of its part of the key space; [`Engine`] holds all shards and sends each
//! request to the shard of its key. Time is an argument ([`Now`]), replies are bytes ([`Output`]), and the
//! work for other connections is in the [`Effects`].
//!
//! The modules are listed from below: each uses those before it only. So do those of [`Shard`] and of
//! [`Engine`], and their methods.

// Data.
mod counters;
mod event;
mod sync;
mod time;
mod walk;

mod ages;
mod announced;
mod delivered;
mod following;
mod running;
mod slow;

mod bump_log;

pub mod rules;

mod load;
mod query;

mod step;

mod shared;

mod behind;
mod hints;

// Replies, at once and after a wait.
mod reply;

mod parked;

mod reply_queue;

// What is done.
mod shard;

mod shards;

mod engine;

// What clients may do.
mod rights;

pub use bump_log::{BumpLog, BumpWait, BumpWaiter, SentBump};
pub use cattlegrid_tags::Prefixes;
pub use cattlegrid_tags::{RollingFloor, TagStats};
pub use counters::{Counter, Counters, Counts, MethodCounter, MethodCounters, TIMED_EVERY};
pub use delivered::{DeliveredValue, Delivery, Verdict, Wake};
pub use engine::control::ROLLING_FLUSH_MAX_S;
pub use engine::run::{AnsweredGets, MayHold, RunGet, is_of_run, is_quiet_get};
pub use engine::stats::{HerdUsage, ObjectsUsage};
pub use engine::upkeep::RulesConfig;
pub use engine::{Engine, EngineConfig};
pub use event::{Event, EventKind, Looker};
pub use following::{FollowedLog, LogState, MAX_LAG_MS_MAX, MAX_LAG_MS_MIN};
pub use load::{Load, LoadEnd, LoadFailure, LoadOrder, LoadOutcome};
pub use parked::{GetPiece, ParkedRequest, PieceResult, Progress};
pub use query::HoldLimits;
pub use reply::get::GetEnd;
pub use reply_queue::ReplyQueue;
pub use rights::{Right, RightSet, Rights};
pub use rules::ActiveRules;
pub use rules::why::{
    EventNumbers, Explain, Why, WhyAccount, WhyItem, WhyLease, WhyLife, WhyLog, WhyObject, WhyPurge,
    WhyRolling, WhyRule, WhyTag,
};
pub use running::RunningCall;
pub use shard::standing::KeyState;
pub use shard::{Flow, Shard};
pub use shards::{PREFETCH_MAX, ShardLock};
pub use shared::EngineShared;
pub use slow::{SLOW_KEPT, SlowKind, SlowLog};
pub use step::{Context, Effects, Interest, Output, Step, TURN_CALLS_NS, Ticket};
pub use time::Now;
pub use walk::Cursor;
