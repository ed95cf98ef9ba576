//! Callers of one key in one process: they share what is asked, and the computation.
//!
//! A caller may use the answer to a request only if it was sent after the caller had arrived: else it could
//! see a value from before a delete that it has waited for. So callers that arrive while a request is under
//! way gather for the next.
//!
//! If the server says that a client computes, and a computation without an old value runs in this process,
//! its end is waited for as well. It can be joined until its value is sent: the value is taken only if it was
//! stored under the lock, which a delete removes, so nothing can have happened to the key between the taking
//! of the lock and the store, and the caller has arrived between them. A lease of the server's does not say
//! as much: after a soft invalidation a value is stored as an old one, so that callers look again when such a
//! computation ends. The server is asked first, and again from time to time: a delete may have made the
//! computation void, and then this or another client begins a new one.
//!
//! Requests are sent by tasks of their own: a caller that is dropped, or not polled, keeps no other from
//! going on, and what was granted to no caller is given up. At rest the table is empty.

use std::collections::hash_map::{Entry as Slot, OccupiedEntry};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

use super::acquire::{ClockedCache, RequestOptions, StoredResult, Subject};
use super::envelope::StoredValue;
use super::found::SearchResult;
use super::grant::{ComputationEnd, Grant};
use super::plain::LockTerms;
use crate::cache::Cache;
use crate::error::Error;

/// The properties that callers must have in common to share a request.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct RequestGroup {
    pub(super) subject: Subject,
    pub(super) terms: LockTerms,
    /// The lease is to outlive its connection.
    pub(super) outlives: bool,
}

/// The result of a shared request.
pub(super) type SharedResult<C> = Result<SearchResult<StoredValue, SharedGrant<C>>, Error>;

/// The right to compute that callers of a shared request have together: the first caller to take it has it.
pub(super) struct SharedGrant<C: Cache + 'static> {
    pub(super) grant: Mutex<Option<Grant<C>>>,
    pub(super) old: Option<StoredValue>,
    pub(super) progress: FlightProgress,
}

/// A computation of this process: its number, and a receiver of its stage.
pub(super) type FlightProgress = (u64, watch::Receiver<FlightStage>);

/// The stage of a computation.
#[derive(Debug, Clone)]
pub(super) enum FlightStage {
    /// The computation runs; callers can join it.
    Computes,
    /// The end of the computation is being sent to the server.
    Settles,
    /// The computation has ended.
    Ended(ComputationEnd),
}

type LookReceiver<C> = watch::Receiver<Option<Arc<SharedResult<C>>>>;

/// All shared requests and computations of this process.
pub(crate) struct Flights<C: Cache + 'static> {
    table: Mutex<FlightTable<C>>,
    numbers: AtomicU64,
}

struct FlightTable<C: Cache + 'static> {
    /// Requests under way, by group and timing.
    lanes: HashMap<Arc<RequestGroup>, [RequestLane<C>; 3]>,
    /// The latest computation of each subject that has no old value.
    running: HashMap<Subject, FlightProgress>,
}

/// When a request is sent. Each kind has a lane of its own.
#[derive(Debug, Clone, Copy)]
pub(super) enum Timing {
    /// At once, or when the request before it is answered.
    Now,
    /// After this pause, or sooner if another caller's pause is shorter: one request for all that wait.
    After(Duration),
    /// At once, and the server may hold it for this long.
    Held(Duration),
}

impl Timing {
    fn lane(self) -> usize {
        match self {
            Self::Now => 0,
            Self::After(_) => 1,
            Self::Held(_) => 2,
        }
    }

    fn hold(self) -> Duration {
        match self {
            Self::Held(hold) => hold,
            Self::Now | Self::After(_) => Duration::ZERO,
        }
    }

    /// The time at which the request is due. None: at once.
    fn due(self) -> Option<Instant> {
        match self {
            Self::After(pause) => Some(Instant::now() + pause),
            Self::Now | Self::Held(_) => None,
        }
    }
}

/// The requests of one group.
struct RequestLane<C: Cache + 'static> {
    /// Whether a task sends its requests.
    is_served: bool,
    next: Option<LaneRequest<C>>,
    /// Tells the task that the next request is due sooner than before; None: no request was ever due later.
    sooner: Option<Arc<Notify>>,
}

impl<C: Cache + 'static> RequestLane<C> {
    fn free() -> Self {
        Self { is_served: false, next: None, sooner: None }
    }
}

/// A request that will be sent when it is due and the one before it is answered.
struct LaneRequest<C: Cache + 'static> {
    answer: watch::Sender<Option<Arc<SharedResult<C>>>>,
    /// The time at which it is due. None: at once.
    due: Option<Instant>,
    hold: Duration,
    /// The hint of the first caller.
    hint: Bytes,
}

/// A computation as the callers of this process see it. When it is dropped without an end they look again.
pub(super) struct Flight<C: Cache + 'static> {
    flights: Arc<Flights<C>>,
    subject: Subject,
    number: u64,
    stage: watch::Sender<FlightStage>,
}

impl<C: Cache + 'static> Flight<C> {
    pub(super) fn end(self, end: ComputationEnd) {
        self.leave();
        self.stage.send_replace(FlightStage::Ended(end));
    }

    /// Closes the computation to further callers.
    pub(super) fn leave(&self) {
        self.stage.send_if_modified(|stage| {
            let computes = matches!(stage, FlightStage::Computes);
            if computes {
                *stage = FlightStage::Settles;
            }
            computes
        });
        let mut table = self.flights.lock();
        if table.running.get(&self.subject).is_some_and(|(number, _)| *number == self.number) {
            table.running.remove(&self.subject);
        }
    }
}

impl<C: Cache + 'static> Drop for Flight<C> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl<C: Cache + 'static> Flights<C> {
    pub(crate) fn new() -> Self {
        let table = FlightTable { lanes: HashMap::new(), running: HashMap::new() };
        Self { table: Mutex::new(table), numbers: AtomicU64::new(0) }
    }

    /// The number of keys with requests under way.
    pub(super) fn len(&self) -> usize {
        let table = self.lock();
        let asked = table.lanes.keys().map(|group| &group.subject);
        asked.chain(table.running.keys()).collect::<HashSet<_>>().len()
    }

    fn lock(&self) -> MutexGuard<'_, FlightTable<C>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next number. Callers take one when they arrive, computations when they begin.
    pub(super) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// A running computation of this process without an old value.
    pub(super) fn running(&self, subject: &Subject) -> Option<FlightProgress> {
        self.lock().running.get(subject).cloned()
    }

    /// Opens the computation of this grant to callers of this process.
    pub(super) fn begin(self: &Arc<Self>, subject: &Subject, grant: &mut Grant<C>) -> FlightProgress {
        let (stage, seen) = watch::channel(FlightStage::Computes);
        let number = self.number();
        // If there is an old value no caller waits.
        if grant.old().is_none() {
            self.lock().running.insert(subject.clone(), (number, seen.clone()));
        }
        grant.tell(Flight { flights: Arc::clone(self), subject: subject.clone(), number, stage });
        (number, seen)
    }

    /// The answer to a request that is sent after this call. `hint`: sent to the client that computes, unless
    /// another caller's is sent.
    pub(super) async fn look(
        self: &Arc<Self>,
        place: &ClockedCache<C>,
        group: &Arc<RequestGroup>,
        timing: Timing,
        hint: &Bytes,
    ) -> Arc<SharedResult<C>> {
        const TRIES: usize = 3;
        for _ in 0..TRIES {
            let mut answered = self.join(place, group, timing, hint);
            if let Ok(answer) = answered.wait_for(Option::is_some).await
                && let Some(look) = answer.clone()
            {
                return look;
            }
            // The task that asked has ended with its runtime, which may be another one than this caller's.
        }
        Arc::new(Err(Error::Usage("the task that asks the server has ended".to_owned())))
    }

    fn join(
        self: &Arc<Self>,
        place: &ClockedCache<C>,
        group: &Arc<RequestGroup>,
        timing: Timing,
        hint: &Bytes,
    ) -> LookReceiver<C> {
        let (due, hold) = (timing.due(), timing.hold());
        let request = || LaneRequest { answer: watch::Sender::new(None), due, hold, hint: hint.clone() };
        let mut table = self.lock();
        let lanes = table.lanes.entry(Arc::clone(group));
        let lanes = lanes.or_insert_with(|| [RequestLane::free(), RequestLane::free(), RequestLane::free()]);
        let lane = &mut lanes[timing.lane()];
        let next = lane.next.get_or_insert_with(request);
        next.hold = next.hold.max(hold);
        if due.is_some() {
            let sooner = lane.sooner.get_or_insert_default();
            if due < next.due {
                next.due = due;
                sooner.notify_one();
            }
        }
        let answered = next.answer.subscribe();
        if !std::mem::replace(&mut lane.is_served, true) {
            let first = if lane.sooner.is_none() { lane.next.take() } else { None };
            drop(table);
            let flights = Arc::clone(self);
            let task = LaneTask { flights, group: Arc::clone(group), lane: timing.lane(), left: false };
            tokio::spawn(task.run(place.clone(), first));
        }
        answered
    }
}

/// The task that sends a lane's requests one after the other. Dropping it frees the lane.
struct LaneTask<C: Cache + 'static> {
    flights: Arc<Flights<C>>,
    group: Arc<RequestGroup>,
    lane: usize,
    left: bool,
}

impl<C: Cache + 'static> LaneTask<C> {
    async fn run(mut self, place: ClockedCache<C>, first: Option<LaneRequest<C>>) {
        let mut next = first;
        loop {
            let now = match next.take() {
                Some(first) => first,
                None => match self.next_due().await {
                    Some(now) => now,
                    None => return,
                },
            };
            let RequestGroup { subject, terms, outlives } = &*self.group;
            let how = RequestOptions { wait: now.hold, hint: &now.hint, outlives: *outlives };
            let found = place.acquire(subject, terms, how).await;
            let look = Arc::new(self.look(found, &now.hint));
            // Without callers the answer is dropped here, and the grant in it is given up.
            now.answer.send_replace(Some(look));
        }
    }

    /// Waits for the next gathered request until it is due; None: there is none, and the lane is free.
    async fn next_due(&mut self) -> Option<LaneRequest<C>> {
        loop {
            match self.next() {
                LaneNext::Is(request) => return Some(request),
                LaneNext::None => return None,
                LaneNext::Later(due, sooner) => tokio::select! {
                    () = sleep_until(due) => {}
                    () = sooner.notified() => {}
                },
            }
        }
    }

    fn look(&self, found: Result<StoredResult<C>, Error>, hint: &Bytes) -> SharedResult<C> {
        found?.with_right(|mut grant| {
            grant.hint_or(hint);
            let old = grant.old().cloned();
            let progress = self.flights.begin(&self.group.subject, &mut grant);
            Ok(SharedGrant { grant: Mutex::new(Some(grant)), old, progress })
        })
    }

    fn next(&mut self) -> LaneNext<C> {
        let mut table = self.flights.lock();
        let Slot::Occupied(mut entry) = table.lanes.entry(Arc::clone(&self.group)) else {
            return LaneNext::None;
        };
        let lane = &mut entry.get_mut()[self.lane];
        if let (Some(sooner), Some(due)) = (&lane.sooner, lane.next.as_ref().and_then(|next| next.due))
            && Instant::now() < due
        {
            return LaneNext::Later(due, Arc::clone(sooner));
        }
        if let Some(next) = lane.next.take().filter(|next| next.answer.receiver_count() > 0) {
            return LaneNext::Is(next);
        }
        leave(entry, self.lane);
        self.left = true;
        LaneNext::None
    }
}

/// Frees the lane.
fn leave<C: Cache + 'static>(
    mut entry: OccupiedEntry<'_, Arc<RequestGroup>, [RequestLane<C>; 3]>,
    lane: usize,
) {
    let lane = &mut entry.get_mut()[lane];
    (lane.is_served, lane.next) = (false, None);
    if entry.get().iter().all(|lane| !lane.is_served) {
        entry.remove();
    }
}

/// The next task of a lane.
enum LaneNext<C: Cache + 'static> {
    /// A request that is due.
    Is(LaneRequest<C>),
    /// The next request is due at this time, or sooner after a notice.
    Later(Instant, Arc<Notify>),
    /// No request: the lane is free.
    None,
}

impl<C: Cache + 'static> Drop for LaneTask<C> {
    fn drop(&mut self) {
        if self.left {
            return;
        }
        // The task panicked in the cache, or ended with its runtime: the gathered callers notice and ask
        // again.
        if let Slot::Occupied(entry) = self.flights.lock().lanes.entry(Arc::clone(&self.group)) {
            leave(entry, self.lane);
        }
    }
}
