//! Loaders: the server fills its own misses with values that worker processes compute, one job a key.
//!
//! The engine decides that a value must be computed and orders it ([`cattlegrid_engine::LoadOrder`]); this
//! crate makes a job of the order, gives it to the pool of the rule's loader, and hands the end of the job to
//! the [`Host`], which brings it to the engine. The engine knows no process, and the pool no cache.
//!
//! ```text
//!   loaders.rs ──▶ job.rs: a load as the job's arguments       finished.rs ◀── answer.rs: a reply, checked
//!       │   table.rs: the jobs that run                         counts.rs: what they came to
//!       ▼
//!   generation.rs: start and reload ──▶ pool.rs: settings as options of a pool; program.rs: what outlives generations
//! ```

mod answer;
mod counts;
mod finished;
mod generation;
mod host;
mod job;
mod limiter;
mod loaders;
mod pool;
mod program;
mod starts;
mod table;

pub use counts::Counts;
pub use finished::Finished;
pub use generation::{NewGeneration, StartError, descriptors};
pub use host::{Host, Severity};
pub use loaders::{JobView, LoaderView, Loaders};
