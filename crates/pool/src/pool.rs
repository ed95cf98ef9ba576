//! The handle of a pool: it submits jobs, and controls the pool. All of it is messages to the pool's thread;
//! only counters are read directly.

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use cattlegrid_panic::guarded;

use crate::error::Error;
use crate::event::Events;
use crate::inbox::InboxMessage;
use crate::job::{Callback, JobOptions, NewJob, Outcome, OutcomeSink, ProgressFn, job_options};
use crate::launch::Launch;
use crate::payload::Args;
use crate::promise::{Promise, promise};
use crate::queue::Priority;
use crate::shared::PoolShared;
use crate::stats::Stats;
use crate::worker::WorkerInfo;

/// A pool of worker processes. Cheap to clone; when the last handle is dropped the pool finishes its jobs
/// in the background and then calls `on_destroy`.
///
/// # Invariant
/// Every submitted job ends in exactly one reply or error.
#[derive(Debug, Clone)]
pub struct Pool {
    handle: Arc<PoolHandle>,
}

#[derive(Debug)]
struct PoolHandle {
    shared: Arc<PoolShared>,
    events: Mutex<Option<Events>>,
}

impl Drop for PoolHandle {
    fn drop(&mut self) {
        // The stream first: the pool must not wait for a reader that no longer exists.
        drop(self.events.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        self.shared.inbox.closed.store(true, Ordering::SeqCst);
        self.shared.inbox.send(InboxMessage::Drain(None, None));
    }
}

impl Pool {
    pub(crate) fn new(shared: Arc<PoolShared>, events: Option<Events>) -> Self {
        Self { handle: Arc::new(PoolHandle { shared, events: Mutex::new(events) }) }
    }

    pub(crate) fn shared(&self) -> &PoolShared {
        &self.handle.shared
    }

    pub(crate) fn share(&self) -> Arc<PoolShared> {
        Arc::clone(&self.handle.shared)
    }

    /// Submits a job. Await the result or call `wait` on it; dropping it cancels the job.
    pub fn call(&self, args: impl Into<Args>) -> Call {
        self.job(args).call()
    }

    /// Submits a job as [`Pool::call`] does, but a full queue is an error now, under any policy.
    ///
    /// # Errors
    /// [`Error::Rejected`] when as many jobs are outstanding as queue and workers hold.
    pub fn try_call(&self, args: impl Into<Args>) -> Result<Call, Error> {
        let [high, normal, low] = self.handle.shared.counters.queued();
        if self.is_full() || high + normal + low >= self.handle.shared.queue_limit as u64 {
            self.handle.shared.inbox.refused.fetch_add(1, Ordering::Relaxed);
            return Err(Error::Rejected);
        }
        Ok(self.call(args))
    }

    /// Builds a job with its own timeout, priority and so on.
    pub fn job(&self, args: impl Into<Args>) -> JobBuilder<'_> {
        JobBuilder { pool: self, options: JobOptions::new(args.into()), progress: None }
    }

    /// Submits a job with a callback, which is called on the pool's thread: it must be quick, may submit
    /// more jobs, and must not wait for the pool.
    pub fn submit(&self, args: impl Into<Args>, done: impl FnOnce(Outcome) + Send + 'static) {
        self.job(args).submit(done);
    }

    /// Retires the worker with this number: it finishes its jobs and leaves. Resolves to false if there is
    /// no such worker, or it is leaving already.
    pub fn retire(&self, worker: u64) -> Promise<bool> {
        let (resolver, promise) = promise();
        self.send(InboxMessage::Retire(worker, resolver));
        promise
    }

    /// Changes `idle` and `max`. Workers beyond `max` are retired, idle ones first. With `max` 0 no worker is
    /// started, and all leave after their jobs; jobs in the queue wait for another resize, and end as
    /// [`Error::StartFailed`] when no worker has been there for `start_timeout`.
    pub fn resize(&self, idle: usize, max: usize) {
        self.send(InboxMessage::Resize(idle, max));
    }

    /// Replaces the program. Workers of the old program retire when a worker of the new one is ready; until
    /// then they serve.
    ///
    /// # Errors
    /// Resolves to [`Error::StartFailed`] when the new program does not become ready, or when another start
    /// or the end of the pool is under way; the old program stays. To [`Error::InvalidOption`] when the
    /// system cannot start such a program (a NUL byte in a name, for instance).
    pub fn reload(&self, launch: Launch) -> Promise<Result<(), Error>> {
        let (resolver, promise) = promise();
        match launch.check() {
            Ok(()) => self.send(InboxMessage::Reload(Box::new(launch), resolver)),
            Err(reason) => resolver.resolve(Err(Error::InvalidOption(reason))),
        }
        promise
    }

    /// Resolves when `workers` workers are ready, and starts those that are missing. They may be stopped for
    /// idleness later.
    ///
    /// # Errors
    /// Resolves to [`Error::InvalidOption`] when that is more than `max`, to [`Error::StartFailed`] when the
    /// breaker opens, and to [`Error::Shutdown`] when the pool ends before.
    pub fn ready(&self, workers: usize) -> Promise<Result<(), Error>> {
        let (resolver, promise) = promise();
        self.send(InboxMessage::Ready(workers, resolver));
        promise
    }

    /// The ready workers.
    pub fn workers(&self) -> Promise<Vec<WorkerInfo>> {
        let (resolver, promise) = promise();
        self.send(InboxMessage::Workers(resolver));
        promise
    }

    /// Counters; never blocks.
    pub fn stats(&self) -> Stats {
        let shared = &self.handle.shared;
        let mut stats = shared.counters.snapshot();
        stats.rejected += shared.inbox.refused.load(Ordering::Relaxed);
        stats
    }

    /// The event stream of `Builder::event_stream`; `None` without one, or when it was taken before.
    pub fn take_events(&self) -> Option<Events> {
        self.handle.events.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Accepts no more jobs, finishes those that were submitted, and ends all processes. Jobs that are not
    /// done after `shutdown_grace` end as [`Error::Shutdown`]. Resolves when no process is left.
    pub fn shutdown(&self) -> Promise<()> {
        let (resolver, promise) = promise();
        self.handle.shared.inbox.closed.store(true, Ordering::SeqCst);
        self.send(InboxMessage::Drain(Some(Duration::MAX), Some(resolver)));
        promise
    }

    /// Kills all workers; unfinished jobs end as [`Error::Shutdown`]. Resolves when no process is left.
    pub fn shutdown_now(&self) -> Promise<()> {
        let (resolver, promise) = promise();
        self.handle.shared.inbox.closed.store(true, Ordering::SeqCst);
        self.send(InboxMessage::Kill(Some(resolver)));
        promise
    }

    fn send(&self, message: InboxMessage) {
        self.handle.shared.inbox.send(message);
    }

    fn is_full(&self) -> bool {
        self.handle.shared.room() == 0
    }
}

/// A job that is being built.
#[must_use = "a job is submitted by call() or submit()"]
pub struct JobBuilder<'a> {
    pool: &'a Pool,
    options: JobOptions,
    progress: Option<ProgressFn>,
}

impl std::fmt::Debug for JobBuilder<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let JobOptions { args, tag, .. } = &self.options;
        f.debug_struct("JobBuilder").field("args", args).field("tag", tag).finish_non_exhaustive()
    }
}

impl JobBuilder<'_> {
    job_options!();

    /// Called with each progress report, on the pool's thread, before the outcome.
    pub fn on_progress(mut self, callback: impl FnMut(&[u8]) + Send + 'static) -> Self {
        self.progress = Some(Box::new(callback));
        self
    }

    /// Submits the job. Await the result or call `wait` on it; dropping it cancels the job.
    pub fn call(self) -> Call {
        let (resolver, outcome) = promise();
        let pool = self.pool.clone();
        self.send(OutcomeSink::Call(resolver));
        Call { outcome: Some(outcome), shared: Arc::clone(&pool.handle.shared) }
    }

    /// Submits the job with a callback on the pool's thread; see [`Pool::submit`].
    pub fn submit(self, done: impl FnOnce(Outcome) + Send + 'static) {
        self.send(OutcomeSink::Callback(Callback::new(done)));
    }

    fn send(self, sink: OutcomeSink) {
        let shared = &self.pool.handle.shared;
        if let Some(error) = shared.refusal(self.options.args.len(), shared.room()) {
            // A callback of the program, on the thread that has submitted the job.
            guarded(|| sink.deliver(Err(error))).ok();
            return;
        }
        shared.inbox.backlog.fetch_add(1, Ordering::Relaxed);
        let job = NewJob { progress: self.progress, ..self.options.into_job(sink, shared.job_timeout) };
        shared.inbox.send(InboxMessage::Submit(job));
    }
}

/// A submitted job. Dropping it before the outcome cancels the job.
#[derive(Debug)]
#[must_use = "dropping a call cancels the job"]
pub struct Call {
    outcome: Option<Promise<Outcome>>,
    shared: Arc<PoolShared>,
}

impl Call {
    /// Blocks this thread until the job has ended. Never call it on the pool's own thread.
    ///
    /// # Errors
    /// How the job failed.
    ///
    /// # Panics
    /// After the call has been polled to its end.
    pub fn wait(mut self) -> Outcome {
        self.outcome.take().expect("a call gives its outcome only once").wait()
    }
}

impl Future for Call {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let promise = self.outcome.as_mut().expect("a call is polled to its end once");
        let polled = Pin::new(promise).poll(context);
        if polled.is_ready() {
            self.outcome = None;
        }
        polled
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(outcome) = self.outcome.take()
            && !outcome.is_done()
        {
            self.shared.inbox.send(InboxMessage::Cancel(outcome));
        }
    }
}

/// A pool that is starting: a future of the [`Pool`], or an error.
#[derive(Debug)]
#[must_use = "a pool whose start is not awaited is shut down again"]
pub struct PoolStart {
    started: Promise<Result<(), Error>>,
    pool: Option<Result<Pool, Error>>,
}

impl PoolStart {
    pub(crate) fn new(started: Promise<Result<(), Error>>, pool: Result<Pool, Error>) -> Self {
        Self { started, pool: Some(pool) }
    }

    /// Blocks this thread until the program is ready.
    ///
    /// # Errors
    /// [`Error::StartFailed`], [`Error::InvalidOption`].
    ///
    /// # Panics
    /// After it has been polled to its end.
    pub fn wait(mut self) -> Result<Pool, Error> {
        let pool = self.pool.take().expect("a start gives its pool only once")?;
        self.started.wait().map(|()| pool)
    }

    /// Waits as [`PoolStart::wait`] does while `keeps_waiting`, which is called every 10 ms, returns true.
    /// When it returns false, the processes that were started are ended and the result is None.
    ///
    /// # Panics
    /// Panics where [`PoolStart::wait`] does.
    pub fn wait_while(self, keeps_waiting: impl Fn() -> bool) -> Option<Result<Pool, Error>> {
        while matches!(self.pool, Some(Ok(_))) && !self.started.is_done() {
            if !keeps_waiting() {
                self.give_up();
                return None;
            }
            std::thread::park_timeout(Duration::from_millis(10));
        }
        Some(self.wait())
    }

    /// Ends what was started.
    pub fn give_up(mut self) {
        if let Some(Ok(pool)) = self.pool.take() {
            drop(pool.shutdown_now());
        }
    }
}

impl Future for PoolStart {
    type Output = Result<Pool, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(Err(error)) = &self.pool {
            return Poll::Ready(Err(error.clone()));
        }
        match Pin::new(&mut self.started).poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(started) => {
                let pool = self.pool.take().expect("a start is polled to its end once");
                Poll::Ready(started.and(pool))
            }
        }
    }
}
