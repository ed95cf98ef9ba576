//! The right to compute a value, and the end of a computation.

mod right;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::acquire::{ClockedCache, Subject, TRIES, open, unix_ms};
use super::envelope::{ItemRecord, LockMark, StoredValue};
use super::flights::Flight;
use super::kept::{NotStored, StoreResult};
use super::plain::{self, LockTerms, SettleStep};
use crate::cache::{Cache, Scope};
use crate::error::Error;
use crate::item::{Expiration, Item, Write, Written};
use crate::join::join;
use crate::value;

/// How long the text of a failed computation stays for waiting callers.
const FAILURE: Duration = Duration::from_secs(2);

/// The right to compute a value. Dropping it gives the right up.
pub(super) struct Grant<C: Cache + 'static> {
    work: Option<Box<GrantWork<C>>>,
}

struct GrantWork<C: Cache + 'static> {
    place: ClockedCache<C>,
    /// The runtime in which the grant was made: it may be dropped on a thread without one.
    runtime: Option<Handle>,
    subject: Subject,
    hold: Hold,
    began: Instant,
    old: Option<StoredValue>,
    hint: Option<Bytes>,
    /// The computation as the callers of this process that wait for it see it.
    running: Option<Flight<C>>,
}

pub(super) enum Hold {
    /// A server's lease, valid for at most this time.
    Lease { token: u64, lock_ms: u64 },
    /// The server takes no lock although the key is absent: the value is not stored.
    Nothing,
    /// A lock in place of the item; with its CAS number and that number's scope, if they are known.
    Lock { nonce: u64, cas: Option<(u64, Scope)>, taken: Instant, terms: LockTerms },
}

pub(super) use right::SavedRight;

/// The value that a computation has brought.
#[derive(Debug, Clone)]
pub(super) struct ComputedValue {
    pub(super) data: Bytes,
    pub(super) flags: u32,
    pub(super) expiration: Expiration,
    /// How long the value is served after its expiry, over a server without leases. None: only the server
    /// knows its expiry.
    pub(super) grace: Option<Duration>,
}

/// The result of a computation.
#[derive(Debug, Clone)]
pub(super) enum ComputationResult {
    /// With a value.
    Value(ComputedValue),
    /// No value. The text is told to the waiting callers.
    Nothing(Option<String>),
}

/// How a computation has ended.
#[derive(Debug, Clone)]
pub(super) enum ComputationEnd {
    /// The value is in the cache, and nothing has happened to the key since the computation began.
    Stored(StoredValue),
    /// The value cannot be stored: it has expired already, or the server refuses it.
    Unstorable(StoredValue),
    /// The computation has failed, with this text.
    Failed(Bytes),
    /// The caller must look again.
    Again,
}

/// A record in the form of the server.
pub(super) struct Payload {
    data: Bytes,
    flags: u32,
    exptime: u32,
}

impl Payload {
    pub(super) fn new(record: &ItemRecord, keep: Expiration, now: SystemTime) -> Self {
        let exptime = keep.exptime(now, Duration::ZERO).unwrap_or(plain::PASSED);
        Self { data: record.seal(), flags: value::with_envelope(record.flags()), exptime }
    }

    /// A payload that the server drops at once.
    fn nothing() -> Self {
        Self { data: Bytes::new(), flags: 0, exptime: plain::PASSED }
    }

    pub(super) fn write<'a>(&'a self, subject: &'a Subject) -> Write<'a> {
        let (flags, exptime) = (self.flags, self.exptime);
        Write { key: &subject.key, data: &self.data, flags, exptime, tags: &subject.tags }
    }
}

impl<C: Cache + 'static> Grant<C> {
    pub(super) fn new(
        place: &ClockedCache<C>,
        subject: &Subject,
        hold: Hold,
        old: Option<StoredValue>,
        hint: Option<Bytes>,
    ) -> Self {
        let (place, subject, runtime) = (place.clone(), subject.clone(), Handle::try_current().ok());
        let began = Instant::now();
        Self {
            work: Some(Box::new(GrantWork {
                place,
                runtime,
                subject,
                hold,
                began,
                old,
                hint,
                running: None,
            })),
        }
    }

    /// The old value, if it may be served.
    pub(super) fn old(&self) -> Option<&StoredValue> {
        self.work.as_ref()?.old.as_ref()
    }

    /// The hint of the client that asked first.
    pub(super) fn hint(&self) -> Option<&Bytes> {
        self.work.as_ref()?.hint.as_ref()
    }

    /// Sets the hint of the caller that has asked now, unless one is known.
    pub(super) fn hint_or(&mut self, hint: &Bytes) {
        if let Some(work) = &mut self.work
            && work.hint.as_ref().is_none_or(Bytes::is_empty)
        {
            work.hint = Some(hint.clone());
        }
    }

    /// Sets the flight that is told when the computation ends.
    pub(super) fn tell(&mut self, running: Flight<C>) {
        if let Some(work) = &mut self.work {
            work.running = Some(running);
        }
    }

    /// Ends the computation. Returns whether the value was stored. It goes on if the caller is dropped.
    pub(super) async fn end(self, ending: ComputationResult) -> Result<StoreResult, Error> {
        end_all(vec![(self, ending)]).await.pop().unwrap_or(Ok(Err(NotStored::Fenced)))
    }
}

impl<C: Cache + 'static> Drop for Grant<C> {
    fn drop(&mut self) {
        let Some(work) = self.work.take() else { return };
        // If the runtime has ended nothing is sent: the lock lasts until its time has passed.
        if let Some(runtime) = Handle::try_current().ok().or_else(|| work.runtime.clone()) {
            runtime.spawn(settle(vec![Settlement::new(work, ComputationResult::Nothing(None))]));
        }
    }
}

/// Ends computations. Returns whether their values were stored. It goes on if the caller is dropped.
pub(super) async fn end_all<C: Cache + 'static>(
    all: Vec<(Grant<C>, ComputationResult)>,
) -> Vec<Result<StoreResult, Error>> {
    let count = all.len();
    let settling = all.into_iter().filter_map(|(mut grant, ending)| {
        let work = grant.work.take()?;
        Some(Settlement::new(work, ending))
    });
    let settled = tokio::spawn(settle(settling.collect())).await;
    settled.unwrap_or_else(|error| {
        let failed = Error::Usage(format!("the task that stores the value has ended: {error}"));
        vec![Err(failed); count]
    })
}

/// A computation whose end is being sent.
struct Settlement<C: Cache + 'static> {
    work: Box<GrantWork<C>>,
    ending: ComputationResult,
    payload: Payload,
    /// Whether the value has expired already, so that its lock is removed.
    passed: bool,
    /// Whether the item is not the lock as it was written: it is another client's, or was changed by a
    /// command such as `append`.
    changed: bool,
    next: NextStep,
    /// The scope of the CAS number that is sent next.
    scope: Option<Scope>,
    /// How often the item was read.
    reads: usize,
}

/// The next command of a settlement.
#[derive(Debug, Clone)]
enum NextStep {
    Fill(u64),
    GiveUp(u64),
    Lock(SettleStep),
    Done(Result<SettleStep, Error>),
}

impl<C: Cache + 'static> Settlement<C> {
    fn new(work: Box<GrantWork<C>>, ending: ComputationResult) -> Self {
        let now = work.place.now();
        let leased = matches!(work.hold, Hold::Lease { .. });
        let value = match &ending {
            ComputationResult::Value(fill) => payload_of(fill, leased, now),
            ComputationResult::Nothing(_) => None,
        };
        let passed = value.is_none() && matches!(ending, ComputationResult::Value(_));
        let mut scope = None;
        let next = match &work.hold {
            Hold::Lease { token, .. } if value.is_some() => NextStep::Fill(*token),
            Hold::Lease { token, .. } => NextStep::GiveUp(*token),
            Hold::Lock { cas, .. } => {
                scope = cas.map(|(_, scope)| scope);
                NextStep::Lock(plain::settle(cas.map(|(cas, _)| cas)))
            }
            Hold::Nothing => NextStep::Done(Ok(SettleStep::Lost)),
        };
        let payload = value.unwrap_or_else(|| work.end_of_lock(&ending, now));
        Self { work, ending, payload, passed, changed: false, next, scope, reads: 0 }
    }

    /// Whether the lock's time on the server may have passed, so that the value is stored without the lock. A
    /// value with tags is not: the server judges it by the time at which it comes, and would serve it
    /// although a tag was invalidated since the computation began.
    fn is_late(&self) -> bool {
        match &self.work.hold {
            Hold::Lock { taken, terms, .. } => {
                matches!(self.ending, ComputationResult::Value(_))
                    && !self.passed
                    && self.work.subject.tags.is_empty()
                    && terms.is_late(taken.elapsed())
            }
            Hold::Lease { .. } | Hold::Nothing => false,
        }
    }

    fn write(&self) -> Write<'_> {
        self.payload.write(&self.work.subject)
    }

    fn take_step(&mut self, settle: Result<SettleStep, Error>) {
        self.next = match settle {
            Ok(settle @ (SettleStep::Read | SettleStep::Cas(_) | SettleStep::Add)) => NextStep::Lock(settle),
            done => NextStep::Done(done),
        };
    }

    /// Whether the lock may still be there although its computation has ended.
    fn leaves_lock(&self) -> bool {
        if self.changed {
            return true;
        }
        match self.ending {
            ComputationResult::Value(_) => matches!(self.next, NextStep::Done(Err(_))),
            ComputationResult::Nothing(_) => false,
        }
    }

    fn end(&self) -> ComputationEnd {
        let fill = match &self.ending {
            ComputationResult::Value(fill) => fill,
            ComputationResult::Nothing(Some(text)) => {
                return ComputationEnd::Failed(Bytes::copy_from_slice(text.as_bytes()));
            }
            ComputationResult::Nothing(None) => return ComputationEnd::Again,
        };
        let value = || StoredValue::fresh(fill.data.clone(), fill.flags);
        match self.next {
            NextStep::Done(Ok(SettleStep::Stored { .. })) if self.passed => {
                ComputationEnd::Unstorable(value())
            }
            NextStep::Done(Ok(SettleStep::Stored { fenced: true })) => ComputationEnd::Stored(value()),
            NextStep::Done(Err(_)) => ComputationEnd::Unstorable(value()),
            _ if matches!(self.work.hold, Hold::Nothing) => ComputationEnd::Unstorable(value()),
            _ => ComputationEnd::Again,
        }
    }

    fn result(&self) -> Result<StoreResult, Error> {
        match &self.next {
            NextStep::Done(Ok(SettleStep::Stored { .. }))
                if !self.passed && matches!(self.ending, ComputationResult::Value(_)) =>
            {
                Ok(Ok(()))
            }
            NextStep::Done(Err(error)) => Err(error.clone()),
            _ => Ok(Err(self.why_not())),
        }
    }

    fn why_not(&self) -> NotStored {
        if self.passed {
            return NotStored::Expired;
        }
        let (since, lock_ms) = match &self.work.hold {
            Hold::Nothing => return NotStored::NoLease,
            Hold::Lease { lock_ms, .. } => (self.work.began, *lock_ms),
            Hold::Lock { taken, terms, .. } => (*taken, terms.lock_ms),
        };
        let late = since.elapsed() >= Duration::from_millis(lock_ms);
        if late { NotStored::Late } else { NotStored::Fenced }
    }
}

impl<C: Cache + 'static> GrantWork<C> {
    /// The lock was changed. It is found by its number and removed with its old value, which may have been
    /// changed as well.
    fn forget(&mut self) {
        if let Hold::Lock { cas, .. } = &mut self.hold {
            *cas = None;
        }
        self.old = None;
    }

    /// The payload that replaces the lock if there is no value.
    fn end_of_lock(&self, ending: &ComputationResult, now: SystemTime) -> Payload {
        if let (ComputationResult::Nothing(Some(text)), Hold::Lock { nonce, .. }) = (ending, &self.hold) {
            let lock = LockMark { until_ms: 0, nonce: *nonce };
            let record = ItemRecord::Failed(Bytes::copy_from_slice(text.as_bytes()), lock);
            return Payload::new(&record, Expiration::After(FAILURE), now);
        }
        match plain::freed(unix_ms(now), self.old.as_ref()) {
            Some((record, keep)) => Payload::new(&record, keep, now),
            None => Payload::nothing(),
        }
    }
}

/// A value in the form of the server; None: it has expired already.
fn payload_of(fill: &ComputedValue, leased: bool, now: SystemTime) -> Option<Payload> {
    // In its grace the value could be served, but no client would find it fresh.
    if fill.expiration.unix_ms(now).is_some_and(|at_ms| at_ms <= unix_ms(now)) {
        return None;
    }
    let mut stored = StoredValue::fresh(fill.data.clone(), fill.flags);
    let grace = fill.grace.filter(|_| !leased);
    if let (Some(grace), Some(soft_ms)) = (grace, fill.expiration.unix_ms(now)) {
        stored.soft_ms = soft_ms.max(1);
        stored.dead_ms = stored.soft_ms.saturating_add(grace.as_millis() as u64);
    }
    let exptime = fill.expiration.exptime(now, grace.unwrap_or_default())?;
    let record = ItemRecord::Value(stored);
    Some(Payload { data: record.seal(), flags: value::with_envelope(record.flags()), exptime })
}

/// Ends computations, with as few round trips as possible, and tells the waiting callers.
async fn settle<C: Cache + 'static>(mut all: Vec<Settlement<C>>) -> Vec<Result<StoreResult, Error>> {
    // Callers must not join any more before anything is sent: the server may store the value, and the key may
    // be deleted after that, long before the reply is here. Callers that have joined already arrived before
    // all this.
    all.iter().filter_map(|settling| settling.work.running.as_ref()).for_each(Flight::leave);
    rounds(&mut all).await;
    let results = all.iter().map(Settlement::result).collect();
    let mut refused = Vec::new();
    for mut settling in all {
        let (end, leaves_lock) = (settling.end(), settling.leaves_lock());
        if leaves_lock {
            if settling.changed {
                settling.work.forget();
            }
            let ended = settling.work.running.take().map(|running| (running, end));
            refused.push((Settlement::new(settling.work, ComputationResult::Nothing(None)), ended));
        } else if let Some(running) = settling.work.running.take() {
            running.end(end);
        }
    }
    if !refused.is_empty() {
        let (mut settling, ended): (Vec<_>, Vec<_>) = refused.into_iter().unzip();
        rounds(&mut settling).await;
        ended.into_iter().flatten().for_each(|(running, end)| running.end(end));
    }
    results
}

/// Sends the next command of each settlement, all at once, until none is left.
async fn rounds<C: Cache + 'static>(all: &mut [Settlement<C>]) {
    let Some(first) = all.first() else { return };
    let cache = Arc::clone(&first.work.place.cache);
    let cache = &*cache;
    while all.iter().any(|settling| !matches!(settling.next, NextStep::Done(_))) {
        let now = &*all;
        let (fills, gone, reads, swaps, adds) = tokio::join!(
            fill(cache, now),
            give_up(cache, now),
            read(cache, now),
            swap(cache, now),
            add(cache, now),
        );
        let swaps = swaps.into_iter().map(|(at, written)| {
            all[at].changed |= matches!(written, Ok(Some(Written::Exists)));
            let late = all[at].is_late();
            let settle = |written: Option<Written>| match written {
                Some(written) => plain::settle_cas(written, late),
                // The CAS number may be another item's by now: the lock is searched by its own number.
                None if all[at].reads < TRIES => SettleStep::Read,
                None => SettleStep::Lost,
            };
            (at, written.map(settle))
        });
        let swaps: NextSteps = swaps.collect();
        for (at, _, scope) in &reads {
            all[*at].scope = *scope;
            all[*at].reads += 1;
        }
        let reads = reads.into_iter().map(|(at, next, _)| (at, next)).collect();
        for (at, next) in [fills, gone, reads, swaps, adds].into_iter().flatten() {
            all[at].take_step(next);
        }
    }
}

/// The next steps, each with the place of its computation.
type NextSteps = Vec<(usize, Result<SettleStep, Error>)>;

/// The indexes of the computations at one step, and the commands of each.
fn at_step<'s, C: Cache + 'static, W>(
    all: &'s [Settlement<C>],
    sent: impl Fn(&'s Settlement<C>) -> Option<W>,
) -> (Vec<usize>, Vec<W>) {
    all.iter().enumerate().filter_map(|(at, settling)| Some((at, sent(settling)?))).unzip()
}

async fn fill<C: Cache + 'static>(cache: &C, all: &[Settlement<C>]) -> NextSteps {
    let (at, writes) = at_step(all, |settling| match settling.next {
        NextStep::Fill(token) => Some((settling.write(), token)),
        _ => None,
    });
    if writes.is_empty() {
        return Vec::new();
    }
    // A server stores a value as an old one after a soft invalidation, but does not report it.
    let stored = |stored| if stored { SettleStep::Stored { fenced: false } } else { SettleStep::Lost };
    let replies = cache.fill_many(&writes).await.into_iter();
    at.into_iter().zip(replies.map(|reply| reply.map(stored))).collect()
}

async fn give_up<C: Cache + 'static>(cache: &C, all: &[Settlement<C>]) -> NextSteps {
    let (at, given_up) = at_step(all, |settling| match settling.next {
        NextStep::GiveUp(token) => Some((settling, token)),
        _ => None,
    });
    let replies = join(given_up.into_iter().map(|(settling, token)| async move {
        let failure = match &settling.ending {
            ComputationResult::Nothing(text) => text.as_deref(),
            ComputationResult::Value(_) => None,
        };
        let settle = if settling.passed { SettleStep::Stored { fenced: true } } else { SettleStep::Lost };
        cache.give_up(&settling.work.subject.key, token, failure).await.map(|()| settle)
    }));
    at.into_iter().zip(replies.await).collect()
}

/// The next steps after reads, each with the place of its computation and the scope in which the CAS number
/// read is valid.
type ReadSteps = Vec<(usize, Result<SettleStep, Error>, Option<Scope>)>;

async fn read<C: Cache + 'static>(cache: &C, all: &[Settlement<C>]) -> ReadSteps {
    let (at, keys) = at_step(all, |settling| {
        matches!(settling.next, NextStep::Lock(SettleStep::Read)).then_some(&settling.work.subject.key[..])
    });
    if keys.is_empty() {
        return Vec::new();
    }
    let scope = cache.scope();
    let items = cache.gets_many(&keys).await.into_iter();
    let next = |(at, item): (usize, Result<Option<Item>, Error>)| {
        let Hold::Lock { nonce, .. } = all[at].work.hold else { return (at, Ok(SettleStep::Lost), None) };
        let late = all[at].is_late();
        (at, item.map(|item| plain::settle_read(item.as_ref().map(open), nonce, late)), scope)
    };
    at.into_iter().zip(items).map(next).collect()
}

/// The results of writes, each with the place of its computation; None: the CAS number may not be the lock's
/// any more.
type SwapResults = Vec<(usize, Result<Option<Written>, Error>)>;

async fn swap<C: Cache + 'static>(cache: &C, all: &[Settlement<C>]) -> SwapResults {
    let cas = |settling: &Settlement<C>| match settling.next {
        NextStep::Lock(SettleStep::Cas(cas)) => Some(cas),
        _ => None,
    };
    let (at_within, within) =
        at_step(all, |settling| Some((settling.write(), cas(settling)?, settling.scope?)));
    let (at_any, any) = at_step(all, |settling| {
        cas(settling).filter(|_| settling.scope.is_none()).map(|cas| (settling.write(), cas))
    });
    let mut swaps = Vec::new();
    if !within.is_empty() {
        swaps.extend(at_within.into_iter().zip(cache.cas_many_within(&within).await));
    }
    if !any.is_empty() {
        let written = cache.cas_many(&any).await.into_iter().map(|written| written.map(Some));
        swaps.extend(at_any.into_iter().zip(written));
    }
    swaps
}

async fn add<C: Cache + 'static>(cache: &C, all: &[Settlement<C>]) -> NextSteps {
    let (at, writes) = at_step(all, |settling| {
        matches!(settling.next, NextStep::Lock(SettleStep::Add)).then(|| settling.write())
    });
    if writes.is_empty() {
        return Vec::new();
    }
    let replies = cache.add_many(&writes).await.into_iter();
    at.into_iter().zip(replies.map(|reply| reply.map(plain::settle_add))).collect()
}
