//! The loaders that run, by name: loads go in, the ends of their jobs go to the [`Host`].
//!
//! ```text
//!   lane ──orders──▶ submit: one submission for each loader ──▶ pool's thread ──outcome──▶ Host::finished ──▶ the same lane
//! ```
//! The pool's thread checks an answer and hands it over; it stores nothing. What is read and not stored yet
//! is bounded in bytes, over all loaders: a worker with a result beyond this is not read until there is room.
//! So are the old values in jobs that have not ended: a job beyond this is sent without its old value.
//!
//! # Invariants
//! * For each load that was submitted the host is told of one end, whatever happens.
//! * A generation of a loader takes no job after the next one is in place, and ends all that it has taken.

use std::collections::BTreeMap;
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use cattlegrid_config::{LoaderMode, LoaderSettings};
use cattlegrid_engine::{DeliveredValue, Load, LoadFailure, LoadOrder};
use cattlegrid_pool::{Error, JobSpec, Outcome, Pool, Priority, Promise, ReplyRoom, Stats};
use cattlegrid_protocol::Limits;

use crate::answer::LoaderAnswer;
use crate::counts::{BytesInTransit, Counts, EndKind, StaleBytes};
use crate::finished::{Failure, Finished, TEXT_BYTES_MAX};
use crate::host::Host;
use crate::job;
use crate::pool::{priority, reply_room, stale_job_bytes_max};
use crate::program::LoaderProgram;
use crate::table::{JobChange, JobTable, LoadEntry};

/// See the module's text.
pub struct Loaders {
    pub(crate) common: Arc<JobContext>,
    current: RwLock<GenerationSet>,
    draining: Arc<OldGenerations>,
}

/// Old generations that finish their last jobs.
#[derive(Debug, Default)]
pub(crate) struct OldGenerations(Mutex<Vec<Arc<Generation>>>);

/// The state that callbacks of jobs use.
pub(crate) struct JobContext {
    pub(crate) host: Arc<dyn Host>,
    /// The server's largest item, in bytes.
    pub(crate) item_bytes_max: usize,
    pub(crate) table: JobTable,
    /// The room for results, until they are stored.
    pub(crate) room: ReplyRoom,
    /// The limit on old values in jobs that have not ended.
    stale: Arc<StaleBytes>,
}

/// The generations in force, by the loader's name.
pub(crate) type GenerationSet = BTreeMap<Arc<str>, Arc<Generation>>;

/// A generation of a loader.
#[derive(Debug)]
pub(crate) struct Generation {
    pub(crate) program: Arc<LoaderProgram>,
    pub(crate) settings: LoaderSettings,
    pub(crate) pool: Pool,
    /// Whether all its processes are gone.
    pub(crate) gone: Arc<AtomicBool>,
}

/// A loader as statistics show it.
#[derive(Debug)]
pub struct LoaderView {
    /// The loader's name.
    pub name: Arc<str>,
    /// The loader's settings.
    pub settings: LoaderSettings,
    /// Counts of its jobs over all generations.
    pub counts: Arc<Counts>,
    /// Statistics of the pool in force.
    pub pool: Stats,
    /// The number of workers of earlier generations that finish their last jobs.
    pub draining: u64,
}

/// A job that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobView {
    /// The name of its loader.
    pub loader: Arc<str>,
    /// Whether no client waits for the job.
    pub is_refresh: bool,
}

impl std::fmt::Debug for Loaders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loaders").field("current", &self.current).finish_non_exhaustive()
    }
}

impl Loaders {
    /// No loaders.
    pub(crate) fn empty(host: Arc<dyn Host>, item_bytes_max: usize) -> Self {
        let stale = StaleBytes::new(STALE_MIN.max(item_bytes_max.saturating_mul(2)));
        let room = reply_room(item_bytes_max);
        let common = JobContext { host, item_bytes_max, table: JobTable::new(), room, stale };
        Self { common: Arc::new(common), current: RwLock::default(), draining: Arc::default() }
    }

    /// Submits what the engine has ordered: all jobs of a loader in one submission. Their ends go to this
    /// lane.
    pub fn submit(&self, lane: usize, orders: Vec<LoadOrder>) {
        // Held until the end: a new generation waits for it, so that no job goes to a generation that has
        // ended.
        let set = self.current();
        let mut wishes = Vec::new();
        let mut jobs: Vec<(&Arc<Generation>, Vec<u64>, Vec<JobSpec>)> = Vec::new();
        for order in orders {
            let load = match order {
                LoadOrder::Start(load) => load,
                LoadOrder::Raise { token } => {
                    wishes.push((token, JobChange::Raise));
                    continue;
                }
                LoadOrder::Cancel { token } => {
                    wishes.push((token, JobChange::Abandon));
                    continue;
                }
            };
            let name = load.rule.loading.as_ref().map(|loading| &loading.loader);
            let Some(running) = name.and_then(|name| set.get(name)) else {
                self.common.refuse(lane, load);
                continue;
            };
            let of_loader = jobs.iter().position(|(other, ..)| Arc::ptr_eq(other, running));
            let at = of_loader.unwrap_or_else(|| {
                jobs.push((running, Vec::new(), Vec::new()));
                jobs.len() - 1
            });
            jobs[at].1.push(load.token);
            jobs[at].2.push(self.job(lane, load, running));
        }
        for (running, tokens, jobs) in jobs {
            let handles = running.pool.submit_all(jobs);
            for (token, handle) in tokens.into_iter().zip(handles) {
                self.common.table.note(token, handle);
            }
        }
        for (token, wish) in wishes {
            self.common.table.wish(token, wish);
        }
    }

    fn job(&self, lane: usize, mut load: Load, running: &Generation) -> JobSpec {
        let urgent = load.rule.loading.as_ref().map_or(Priority::Normal, |loading| priority(loading.urgency));
        let program = Arc::clone(&running.program);
        program.counts().begin(load.is_refresh);
        let entry = LoadEntry::new(Arc::clone(program.name()), load.is_refresh, urgent);
        self.common.table.enter(load.token, entry);
        let (common, mode) = (Arc::clone(&self.common), running.settings.mode);
        let stale_bytes = load.stale.as_ref().map_or(0, DeliveredValue::len);
        let mut permit = self.common.stale.take(stale_bytes, program.counts());
        let mut args = permit.is_some().then(|| job::args(&load, mode));
        // As text in JSON the value may be longer than a job may be.
        let most = stale_job_bytes_max(mode, self.common.item_bytes_max);
        if args.as_ref().is_none_or(|args| load.stale.is_some() && args.len() > most) {
            (load.stale, permit, args) = (None, None, None);
            program.counts().stale_left_out.fetch_add(1, Relaxed);
        }
        let args = args.unwrap_or_else(|| job::args(&load, mode));
        let is_refresh = load.is_refresh;
        let load = Load { stale: None, ..load };
        let ended = move |outcome| {
            drop(permit);
            common.ended(lane, load, program, mode, outcome);
        };
        JobSpec::new(args, ended).priority(if is_refresh { Priority::Low } else { urgent }).idempotent(true)
    }

    /// The job of a lease, if it has not ended.
    pub fn job_of(&self, token: u64) -> Option<JobView> {
        let view =
            |entry: &LoadEntry| JobView { loader: Arc::clone(&entry.loader), is_refresh: entry.is_refresh };
        self.common.table.show(token, view)
    }

    /// Whether there is no loader.
    pub fn is_empty(&self) -> bool {
        self.current().is_empty()
    }

    /// The loaders in force, by name.
    pub fn views(&self) -> Vec<LoaderView> {
        let draining = self.draining.all();
        let workers = |pool: &Pool| {
            let stats = pool.stats();
            stats.workers + stats.starting + stats.retiring
        };
        let set = self.current();
        let views = set.iter().map(|(name, running)| LoaderView {
            name: Arc::clone(name),
            settings: running.settings.clone(),
            counts: Arc::clone(running.program.counts()),
            pool: running.pool.stats(),
            draining: draining
                .iter()
                .filter(|old| *old.program.name() == *name)
                .map(|old| workers(&old.pool))
                .sum(),
        });
        views.collect()
    }

    /// Sets the counters to 0: `stats reset`.
    pub fn reset_stats(&self) {
        self.current().values().for_each(|running| running.program.counts().reset());
    }

    /// The bytes of results that are read or in transit, and the limit.
    pub fn transit(&self) -> (usize, usize) {
        (self.common.room.used(), self.common.room.max())
    }

    /// The number of jobs that have not ended.
    pub fn jobs(&self) -> usize {
        self.common.table.len()
    }

    /// Ends all processes, with their jobs, and waits until they are gone: about a second at most.
    pub fn stop(&self) {
        let set = std::mem::take(&mut *self.current_mut());
        let old = self.draining.all();
        let ends: Vec<Promise<()>> =
            set.values().chain(&old).map(|running| running.pool.shutdown_now()).collect();
        ends.into_iter().for_each(Promise::wait);
    }

    pub(crate) fn current(&self) -> RwLockReadGuard<'_, GenerationSet> {
        self.current.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn current_mut(&self) -> RwLockWriteGuard<'_, GenerationSet> {
        self.current.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends generations after their jobs.
    pub(crate) fn drain(&self, old: impl IntoIterator<Item = Arc<Generation>>) {
        for running in old {
            drop(running.pool.shutdown());
            self.draining.add(running);
        }
    }

    pub(crate) fn draining(&self) -> &Arc<OldGenerations> {
        &self.draining
    }
}

impl OldGenerations {
    pub(crate) fn all(&self) -> Vec<Arc<Generation>> {
        self.lock().clone()
    }

    fn add(&self, running: Arc<Generation>) {
        self.lock().push(running);
        // A generation may have ended before.
        self.let_go();
    }

    /// Drops the generations that have ended, with their descriptors. A pool calls it on its own thread when
    /// its last process is gone.
    pub(crate) fn let_go(&self) {
        let mut all = self.lock();
        let (gone, left): (Vec<_>, Vec<_>) = all.drain(..).partition(|old| old.gone.load(SeqCst));
        *all = left;
        // Not under the lock: the end of a pool's last handle is a message to it.
        drop(all);
        drop(gone);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Generation>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl JobContext {
    /// There is no loader for it.
    fn refuse(&self, lane: usize, load: Load) {
        let failure = Failure { text: "there is no such loader".to_owned(), cause: LoadFailure::Refused };
        self.host.finished(lane, Finished { load, result: Err(failure), program: None, _room: None });
    }

    /// A job has ended; on the pool's thread, or on that which has submitted it.
    fn ended(
        &self,
        lane: usize,
        load: Load,
        program: Arc<LoaderProgram>,
        mode: LoaderMode,
        outcome: Outcome,
    ) {
        self.table.remove(load.token);
        let counts = Arc::clone(program.counts());
        let (how, result, room) = match outcome {
            Err(error) => {
                let (how, failure) = failure(&error);
                report(&program, &load, &error);
                (how, Err(failure), None)
            }
            Ok(reply) => {
                let room = reply.room();
                match self.read(reply, &load.key, mode) {
                    Ok(answer) => {
                        let how = if answer.is_value() { EndKind::Value } else { EndKind::NotFound };
                        (how, Ok(answer), room)
                    }
                    Err(text) => {
                        program.report_job(&load, &text, "");
                        (EndKind::Error, Err(Failure { text, cause: LoadFailure::Error }), None)
                    }
                }
            }
        };
        counts.end(how);
        let room = room.map(|room| BytesInTransit::new(room, counts));
        self.host.finished(lane, Finished { load, result, program: Some(program), _room: room });
    }

    fn read(
        &self,
        reply: cattlegrid_pool::Reply,
        key: &[u8],
        mode: LoaderMode,
    ) -> Result<LoaderAnswer, String> {
        let answer = LoaderAnswer::read(reply, mode)?;
        let limits = Limits { max_item_bytes: self.item_bytes_max, ..Limits::default() };
        let (bytes, flags) = (answer.value_len(), answer.flags());
        if answer.is_value() && !limits.fits(key, flags, bytes) {
            let most = self.item_bytes_max;
            return Err(format!(
                "the value has {bytes} bytes; with its key and 59 bytes of an item's own that is more than -I, {most}"
            ));
        }
        Ok(answer)
    }
}

/// Says in the log why a job has failed, if that is not said of its worker or of all of them.
fn report(program: &LoaderProgram, load: &Load, error: &Error) {
    match error {
        Error::Cancelled | Error::Shutdown | Error::PoolLost | Error::StartFailed { .. } => {}
        Error::Worker { message, detail, .. } => program.report_job(load, message, detail),
        error => {
            let text = error.to_string();
            let (first, more) = text.split_once('\n').unwrap_or((&text, ""));
            program.report_job(load, first, more);
        }
    }
}

/// How a job without a result is counted, and what the engine is told. The text goes to clients: it has no
/// words of the worker but its error's message.
fn failure(error: &Error) -> (EndKind, Failure) {
    let (how, cause, text) = match error {
        Error::Worker { message, .. } => (EndKind::Error, LoadFailure::Error, head(message)),
        Error::WorkerLost { .. } => (EndKind::Lost, LoadFailure::Lost, "the worker was lost"),
        Error::Timeout { started: true } => (EndKind::Timeout, LoadFailure::Lost, "timed out"),
        Error::Timeout { started: false } => {
            (EndKind::Timeout, LoadFailure::Refused, "timed out before a worker was free")
        }
        Error::Cancelled => (EndKind::Cancelled, LoadFailure::Cancelled, "cancelled"),
        Error::Rejected => (EndKind::Refused, LoadFailure::Refused, "the loader's queue is full"),
        Error::StartFailed { .. } => (EndKind::Refused, LoadFailure::Refused, "no worker can be started"),
        Error::Shutdown | Error::PoolLost => (EndKind::Refused, LoadFailure::Refused, "the loader has ended"),
        Error::TooLarge { .. } => (EndKind::Error, LoadFailure::Error, "the value is too large"),
        _ => (EndKind::Error, LoadFailure::Error, "the job cannot be sent"),
    };
    (how, Failure { text: text.to_owned(), cause })
}

/// The beginning of a worker's words, which may be as long as a frame: clients get no more of them.
fn head(text: &str) -> &str {
    let end = (0..=text.len().min(TEXT_BYTES_MAX)).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

/// Least bytes that old values in jobs may take in sum.
const STALE_MIN: usize = 64 << 20;
