//! Executes requests: what each command does to the data, without sockets, clocks or threads.
//!
//! [`Shard`] executes requests of its part of the key space; [`Engine`] holds all shards and sends each request to the
//! shard of its key. Time is an argument ([`Now`]), replies are bytes ([`Output`]), and the work for other connections
//! is in the [`Effects`].

mod ages;
mod counters;
mod engine;
mod event;
mod invalidate;
mod item;
mod load;
mod object;
mod output;
mod read;
pub mod rules;
mod shard;
mod shards;
mod shared;
mod step;
mod sync;
mod time;
mod wait;
mod write;

pub use cattlegrid_tags::{RollingFloor, TagStats};
pub use counters::{Counter, Counters, Counts};
pub use engine::{Cursor, Engine, EngineConfig};
pub use event::{Event, EventKind, Interest, Looker};
pub use invalidate::ROLLING_FLUSH_MAX_S;
pub use item::KeyState;
pub use load::{Landed, Load, LoadEnd, LoadFailure, LoadOrder};
pub use object::RunningCall;
pub use object::counts::{MethodCounter, MethodCounters, TIMED_EVERY};
pub use object::usage::ObjectsUsage;
pub use output::Output;
pub use read::asked::End;
pub use read::pending::{Got, Piece};
pub use read::run::{RunGet, is_of_run, is_quiet_get};
pub use rules::active::ActiveRules;
pub use rules::decide::Holds;
pub use rules::why::{Explain, Numbers, Why, WhyItem, WhyLease, WhyObject, WhyRolling, WhyRule, WhyTag};
pub use shard::{Flow, Shard};
pub use shards::{PREFETCH_MAX, ShardLock};
pub use shared::Shared;
pub use step::{Context, Effects, Step, TURN_CALLS_NS, Ticket, Verdict, Wake};
pub use time::Now;
pub use wait::delivered::{Delivered, DeliveredValue};
pub use wait::hold::{HerdUsage, RulesConfig};
pub use wait::park::Parked;
pub use wait::reply_queue::ReplyQueue;
