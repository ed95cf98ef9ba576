//! A pool of worker processes: jobs go in, each ends in one reply or one error.
//!
//! A *template process* loads the program once and is forked for each worker; the pool grows and shrinks
//! between `idle` and `max`; a worker has at most `load` jobs at a time. Workers are written with
//! `cattlegrid-worker` (Rust), with the module `cattlegrid.worker` (Python), or in any language that can
//! read and write lines of JSON.
//!
//! ```no_run
//! use std::time::Duration;
//! use cattlegrid_pool::{Launch, Pool, Priority};
//!
//! # async fn example() -> Result<(), cattlegrid_pool::Error> {
//! let pool = Pool::builder(Launch::template("python3", ["-m", "cattlegrid.worker", "app:load"]))
//!     .max(4)
//!     .job_timeout(Duration::from_secs(30))
//!     .spawn()
//!     .await?;
//! let reply = pool.call(["page", "42"]).await?;
//! let urgent = pool.job(["page", "43"]).priority(Priority::High).timeout(Duration::from_millis(200)).call();
//! println!("{} {}", reply.text(), urgent.await?.text());
//! pool.shutdown().await;
//! # Ok(()) }
//! ```
//!
//! No async runtime is needed: futures are woken by the pool's own thread, and every one of them has a
//! blocking `wait`.
//!
//! # Invariants
//! * Every submitted job ends in exactly one reply or error.
//! * A job that no worker had begun is never lost with a worker: it is sent to another one.
//! * When this process ends, however it ends, its workers, its templates and what the workers have started in
//!   their process groups end within a second. There is one exception: processes that workers have started
//!   live on if the template (for exec'ed workers: the guardian, a shell) is killed in the same moment.

mod advice;
mod base;
mod breaker;
mod budget;
mod builder;
mod bulk;
mod callbacks;
mod deadlines;
mod driver;
mod ending;
mod error;
mod event;
mod fleet;
mod guardian;
mod inbox;
mod job;
mod jobs;
mod jsonl;
mod launch;
mod logs;
mod long_line;
mod ncpu;
mod options;
mod output;
mod payload;
mod pool;
mod proc;
mod programs;
mod promise;
mod queue;
mod reply_room;
mod shared;
mod sizing;
mod stats;
mod stderr;
mod submission;
mod time;
#[cfg(feature = "serde")]
mod typed;
mod worker;

pub use budget::Budget;
pub use builder::Builder;
pub use bulk::{AsCompleted, Map};
pub use callbacks::LogChunk;
pub use cattlegrid_worker::{Limits, List, Sandbox};
pub use error::{Error, PoolError};
pub use event::{Event, Events};
pub use job::Outcome;
pub use jsonl::base64;
pub use launch::Launch;
pub use ncpu::{Cpus, ncpu};
pub use options::{QueuePolicy, Retry};
pub use payload::{Args, Reply};
pub use pool::{Call, JobBuilder, Pool, PoolStart};
pub use promise::Promise;
pub use queue::Priority;
pub use reply_room::{ReplyRoom, RoomPermit};
pub use stats::{Histogram, Stats};
pub use submission::{JobHandle, JobSpec};
#[cfg(feature = "serde")]
pub use typed::Codec;
pub use worker::WorkerInfo;
