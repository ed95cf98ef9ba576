//! Where a request meets the data: what each command means, without sockets, clocks or threads.
//!
//! [`Shard`] executes requests of its part of the key space; [`Engine`] holds all shards and sends each
//! request to its own. Time comes in as an argument ([`Now`]), replies go out as bytes ([`Output`]).

mod ages;
mod ask;
mod counters;
mod decide;
mod engine;
mod event;
mod fill;
mod get;
mod invalidate;
mod meta;
mod meta_reply;
mod meta_ruled;
mod output;
mod park;
mod reply_queue;
pub mod rules;
mod shard;
mod shard_lock;
mod shared;
mod step;
mod store_cmd;
mod sync;
mod time;
mod waiting;
mod why;

pub use ask::KeyState;
pub use cattlegrid_tags::{RollingFloor, TagStats};
pub use counters::{Counter, Counters, Counts};
pub use engine::{Cursor, Engine, EngineConfig, Got, Piece};
pub use event::{Event, EventKind, Interest, Looker};
pub use invalidate::ROLLING_FLUSH_MAX_S;
pub use output::Output;
pub use park::{Delivered, DeliveredValue, Parked};
pub use reply_queue::ReplyQueue;
pub use shard::{Flow, Shard};
pub use shard_lock::{PREFETCH_MAX, ShardLock};
pub use shared::{ActiveRules, Shared};
pub use step::{Context, Effects, Step, Ticket, Verdict, Wake};
pub use time::Now;
pub use waiting::{HerdUsage, RulesConfig};
pub use why::{Explain, Numbers, Why, WhyItem, WhyLease, WhyRolling, WhyRule, WhyTag};
