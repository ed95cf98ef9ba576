//! The right to compute a value: how it is got, and how it ends.

mod right;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::envelope::{Lock, Record, Stored};
use super::flights::Running;
use super::kept::{Kept, NotStored};
use super::plain::{self, Decision, Locked, Settle, Terms};
use crate::cache::{Answer, Ask, Cache, Scope};
use crate::error::Error;
use crate::item::{Expiration, Item, Write, Written};
use crate::join::join;
use crate::value;

/// How often a lock that another client has just removed or taken is looked at before the caller waits.
pub(super) const TRIES: usize = 3;
/// How many seconds an item without a value stays if its client does not make it a lock at once.
const CLAIM: u32 = 2;
/// How long the text of a failed computation stays for the callers that wait for it.
const FAILURE: Duration = Duration::from_secs(2);

/// The clock of expiries. Tests have their own.
pub(super) type Clock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

pub(super) fn unix_ms(now: SystemTime) -> u64 {
    now.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
}

/// What a computation is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Subject {
    pub(super) key: Bytes,
    /// Tags of everything that is written, locks included: invalidating a tag ends the computation.
    pub(super) tags: Vec<String>,
}

/// A connection with a clock.
pub(super) struct Place<C> {
    pub(super) cache: Arc<C>,
    pub(super) clock: Clock,
}

impl<C> Clone for Place<C> {
    fn clone(&self) -> Self {
        Self { cache: Arc::clone(&self.cache), clock: Arc::clone(&self.clock) }
    }
}

/// What asking for a value has brought.
pub(super) enum Found<C: Cache + 'static> {
    /// The value is present.
    Hit(Stored),
    /// The old value is; another client computes.
    Stale(Stored),
    /// This client computes.
    Granted(Grant<C>),
    /// Another client computes.
    Busy(Busy),
    /// Another client's computation has failed.
    Failed(Bytes),
}

/// Another client computes.
#[derive(Debug, Clone)]
pub(super) enum Busy {
    /// Its server says so, and can hold a request until the value is there.
    Server,
    /// Its lock says so: its number, and the hint in it.
    Lock { nonce: u64, hint: Bytes },
    /// Locks come and go.
    Changing,
}

/// The right to compute a value. Dropped, it is given up.
pub(super) struct Grant<C: Cache + 'static> {
    work: Option<Box<Work<C>>>,
}

struct Work<C: Cache + 'static> {
    place: Place<C>,
    /// Where the grant was made: it may be dropped on a thread without a runtime.
    runtime: Option<Handle>,
    subject: Subject,
    hold: Hold,
    began: Instant,
    old: Option<Stored>,
    hint: Option<Bytes>,
    /// The callers of this process that wait for the end.
    running: Option<Running<C>>,
}

enum Hold {
    /// A server's lease, for at most this time.
    Lease { token: u64, lock_ms: u64 },
    /// The server takes no lock although the key is absent: the value is not stored.
    Nothing,
    /// A lock in place of the item, with its CAS number, if that is known and where it is valid.
    Lock { nonce: u64, cas: Option<(u64, Scope)>, taken: Instant, terms: Terms },
}

pub(super) use right::Right;

/// The value that a computation has brought.
#[derive(Debug, Clone)]
pub(super) struct Fill {
    pub(super) data: Bytes,
    pub(super) flags: u32,
    pub(super) expiration: Expiration,
    /// How long it is served after its expiry, over a server without leases. None: the server alone knows its expiry.
    pub(super) grace: Option<Duration>,
}

/// How a computation ends.
#[derive(Debug, Clone)]
pub(super) enum Ending {
    /// With a value.
    Value(Fill),
    /// Without one. A text is told to the callers that wait for it.
    Nothing(Option<String>),
}

/// How a computation has ended.
#[derive(Debug, Clone)]
pub(super) enum End {
    /// The value is in the cache, and nothing has happened to the key since the computation began.
    Stored(Stored),
    /// The value cannot be stored: it has expired already, or the server refuses it.
    Unstorable(Stored),
    /// It has failed: its text.
    Failed(Bytes),
    /// Look again.
    Again,
}

impl<C: Cache + 'static> Place<C> {
    fn now(&self) -> SystemTime {
        (self.clock)()
    }

    /// Asks for a value, and for the right to compute it if it is missing or has expired.
    pub(super) async fn acquire(
        &self,
        subject: &Subject,
        terms: &Terms,
        how: How<'_>,
    ) -> Result<Found<C>, Error> {
        let (ask, hint) = (ask(terms, how.wait, how.hint), how.hint);
        let mut refused = 0;
        for _ in 0..TRIES {
            let scope = self.cache.scope();
            let answer = if how.outlives {
                self.cache.ask_to_outlive(&subject.key, ask).await?
            } else {
                self.cache.ask(&subject.key, ask).await?
            };
            let locking = match self.judge(subject, answer, terms) {
                Judged::Found(found) => return Ok(found),
                Judged::Lock(locking) => locking,
            };
            let attempt = Attempt::new(self, locking, terms, hint);
            let write = attempt.write(subject);
            let none = Ok(Written::NotStored);
            let written = match attempt.replaces() {
                Some(cas) => self.swap(&[(write, cas)], scope).await.pop().unwrap_or(none),
                None if refused > 0 => self.claim(&[write], scope).await.pop().unwrap_or(none),
                None => self.cache.add(write).await,
            };
            refused += usize::from(attempt.is_refused(&written));
            if let Some(found) = attempt.judge(self, subject, terms, &written)? {
                return Ok(found);
            }
        }
        Ok(if refused == TRIES { self.without_lock(subject) } else { Found::Busy(Busy::Changing) })
    }

    /// The right to compute a value that cannot be stored: no lock was taken, and no other client has one.
    pub(super) fn without_lock(&self, subject: &Subject) -> Found<C> {
        Found::Granted(Grant::new(self, subject, Hold::Nothing, None, None))
    }

    /// Replaces items by their CAS numbers, which are valid in this scope. An item that cannot be compared counts as gone: read again.
    pub(super) async fn swap(
        &self,
        writes: &[(Write<'_>, u64)],
        scope: Option<Scope>,
    ) -> Vec<Result<Written, Error>> {
        let Some(scope) = scope else { return self.cache.cas_many(writes).await };
        let writes: Vec<_> = writes.iter().map(|(write, cas)| (*write, *cas, scope)).collect();
        let written = self.cache.cas_many_within(&writes).await.into_iter();
        written.map(|written| Ok(written?.unwrap_or(Written::NotFound))).collect()
    }

    /// Writes locks of absent keys whose `add` was refused.
    pub(super) async fn claim(
        &self,
        writes: &[Write<'_>],
        scope: Option<Scope>,
    ) -> Vec<Result<Written, Error>> {
        let keys: Vec<_> = writes.iter().map(|write| write.key).collect();
        let claims = self.cache.claim_many(&keys, CLAIM).await;
        let won: Vec<_> = writes
            .iter()
            .zip(&claims)
            .filter_map(|(write, claim)| Some((*write, claim.as_ref().ok().copied().flatten()?)))
            .collect();
        let written = if won.is_empty() { Vec::new() } else { self.swap(&won, scope).await };
        let mut written = written.into_iter();
        let next = |claim: Result<Option<u64>, Error>| match claim? {
            Some(_) => written.next().unwrap_or(Ok(Written::NotFound)),
            None => Ok(Written::NotStored),
        };
        claims.into_iter().map(next).collect()
    }

    /// The value of an item, if it has not expired.
    pub(super) fn fresh(&self, item: &Item) -> Option<Stored> {
        match open(item).0 {
            Record::Value(stored) if stored.is_fresh(unix_ms(self.now())) => Some(stored),
            _ => None,
        }
    }

    /// What an answer means.
    pub(super) fn judge(&self, subject: &Subject, answer: Answer, terms: &Terms) -> Judged<C> {
        let now_ms = unix_ms(self.now());
        let seen = match answer {
            Answer::Absent => None,
            Answer::Hit(item) => Some(open(&item)),
            Answer::Busy => return Judged::Found(Found::Busy(Busy::Server)),
            Answer::Failed(text) => return Judged::Found(Found::Failed(text)),
            Answer::Stale(item) => {
                return Judged::Found(value_of(&item).map_or(Found::Busy(Busy::Server), Found::Stale));
            }
            Answer::Lease { token, hint, old } => {
                let old = old.as_ref().and_then(value_of);
                let hold = Hold::Lease { token, lock_ms: terms.lock_ms };
                return Judged::Found(Found::Granted(Grant::new(self, subject, hold, old, hint)));
            }
        };
        match plain::decide(now_ms, seen, terms) {
            Decision::Fresh(stored) => Judged::Found(Found::Hit(stored)),
            Decision::Stale(stored) => Judged::Found(Found::Stale(stored)),
            Decision::Wait { nonce, hint } => Judged::Found(Found::Busy(Busy::Lock { nonce, hint })),
            Decision::Failed(text) => Judged::Found(Found::Failed(text)),
            Decision::Lock(locking) => Judged::Lock(locking),
        }
    }
}

/// How a value is asked for, besides the terms.
#[derive(Debug, Clone, Copy)]
pub(super) struct How<'a> {
    /// See [`Ask::wait`].
    pub(super) wait: Duration,
    pub(super) hint: &'a Bytes,
    /// The lease is to outlive its connection.
    pub(super) outlives: bool,
}

/// How a value is asked for.
pub(super) fn ask<'a>(terms: &Terms, wait: Duration, hint: &'a Bytes) -> Ask<'a> {
    let hint = Some(&hint[..]).filter(|hint| !hint.is_empty());
    Ask { lease: Duration::from_millis(terms.lock_ms), wait, hint }
}

/// What an answer means.
pub(super) enum Judged<C: Cache + 'static> {
    /// This.
    Found(Found<C>),
    /// A lock has to be written first.
    Lock(plain::Locking),
}

fn open(item: &Item) -> (Record, u64) {
    let record = match value::without_envelope(item.flags) {
        Some(flags) => Record::open(&item.data, flags),
        None => Record::Value(Stored::fresh(item.data.clone(), item.flags)),
    };
    (record, item.cas)
}

/// The value of an item that its server has judged.
pub(super) fn value_of(item: &Item) -> Option<Stored> {
    match open(item).0 {
        Record::Value(stored) | Record::Again(stored, _) => Some(stored),
        Record::Locked(..) | Record::Failed(..) | Record::Damaged => None,
    }
}

/// A number that no other computation has: random, and different in processes that were forked.
fn nonce() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    hasher.write_u64(COUNT.fetch_add(1, Ordering::Relaxed));
    hasher.finish()
}

/// A lock that is being written.
pub(super) struct Attempt {
    locking: plain::Locking,
    nonce: u64,
    taken: Instant,
    bytes: Sealed,
    /// Where the CAS number of the lock will be valid.
    scope: Option<Scope>,
}

impl Attempt {
    pub(super) fn new<C: Cache + 'static>(
        place: &Place<C>,
        locking: plain::Locking,
        terms: &Terms,
        hint: &Bytes,
    ) -> Self {
        let now = place.now();
        let nonce = nonce();
        let (record, keep) = plain::lock(unix_ms(now), &locking, hint, nonce, terms);
        let scope = place.cache.scope();
        // The lock's time begins later in the server than here: it is sent after this.
        Self { locking, nonce, taken: Instant::now(), bytes: Sealed::new(&record, keep, now), scope }
    }

    pub(super) fn write<'a>(&'a self, subject: &'a Subject) -> Write<'a> {
        self.bytes.write(subject)
    }

    /// The CAS number of the item that it replaces; None: there was none.
    pub(super) fn replaces(&self) -> Option<u64> {
        self.locking.cas
    }

    /// Whether the key was absent and no lock could be taken.
    pub(super) fn is_refused(&self, written: &Result<Written, Error>) -> bool {
        self.replaces().is_none() && matches!(written, Ok(Written::NotStored))
    }

    /// What the reply to it means. None: another client was faster.
    pub(super) fn judge<C: Cache + 'static>(
        self,
        place: &Place<C>,
        subject: &Subject,
        terms: &Terms,
        written: &Result<Written, Error>,
    ) -> Result<Option<Found<C>>, Error> {
        let Self { locking, nonce, taken, scope, .. } = self;
        let outcome = written.as_ref().map(|written| plain::locked(*written, &locking));
        let grant = |cas: Option<u64>| {
            let cas = cas.zip(scope);
            let hold = Hold::Lock { nonce, cas, taken, terms: *terms };
            Grant::new(place, subject, hold, locking.old.clone(), locking.hint.clone())
        };
        match outcome {
            Ok(Locked::Won(cas)) => Ok(Some(Found::Granted(grant(cas)))),
            Ok(Locked::Stale(old)) => Ok(Some(Found::Stale(old))),
            Ok(Locked::Lost) => Ok(None),
            Err(error) => {
                // The server may have stored it all the same: then it is removed, by its number.
                drop(grant(None));
                Err(error.clone())
            }
        }
    }
}

/// A record in the form of the server.
struct Sealed {
    data: Bytes,
    flags: u32,
    exptime: u32,
}

impl Sealed {
    fn new(record: &Record, keep: Expiration, now: SystemTime) -> Self {
        let exptime = keep.exptime(now, Duration::ZERO).unwrap_or(plain::PASSED);
        Self { data: record.seal(), flags: value::with_envelope(record.flags()), exptime }
    }

    /// What the server drops at once.
    fn nothing() -> Self {
        Self { data: Bytes::new(), flags: 0, exptime: plain::PASSED }
    }

    fn write<'a>(&'a self, subject: &'a Subject) -> Write<'a> {
        let (flags, exptime) = (self.flags, self.exptime);
        Write { key: &subject.key, data: &self.data, flags, exptime, tags: &subject.tags }
    }
}

impl<C: Cache + 'static> Grant<C> {
    fn new(
        place: &Place<C>,
        subject: &Subject,
        hold: Hold,
        old: Option<Stored>,
        hint: Option<Bytes>,
    ) -> Self {
        let (place, subject, runtime) = (place.clone(), subject.clone(), Handle::try_current().ok());
        let began = Instant::now();
        Self { work: Some(Box::new(Work { place, runtime, subject, hold, began, old, hint, running: None })) }
    }

    /// The old value, if it may be served.
    pub(super) fn old(&self) -> Option<&Stored> {
        self.work.as_ref()?.old.as_ref()
    }

    /// The hint of the client that asked first.
    pub(super) fn hint(&self) -> Option<&Bytes> {
        self.work.as_ref()?.hint.as_ref()
    }

    /// The hint of the caller that has asked now, unless another one is known.
    pub(super) fn hint_or(&mut self, hint: &Bytes) {
        if let Some(work) = &mut self.work
            && work.hint.as_ref().is_none_or(Bytes::is_empty)
        {
            work.hint = Some(hint.clone());
        }
    }

    /// Who is told when it ends.
    pub(super) fn tell(&mut self, running: Running<C>) {
        if let Some(work) = &mut self.work {
            work.running = Some(running);
        }
    }

    /// Ends it: whether the value was stored. It goes on if the caller is dropped.
    pub(super) async fn end(self, ending: Ending) -> Result<Kept, Error> {
        end_all(vec![(self, ending)]).await.pop().unwrap_or(Ok(Err(NotStored::Fenced)))
    }
}

impl<C: Cache + 'static> Drop for Grant<C> {
    fn drop(&mut self) {
        let Some(work) = self.work.take() else { return };
        // A runtime that has ended sends nothing: then the lock lasts until its time has passed.
        if let Some(runtime) = Handle::try_current().ok().or_else(|| work.runtime.clone()) {
            runtime.spawn(settle(vec![Settling::new(work, Ending::Nothing(None))]));
        }
    }
}

/// Ends computations: whether their values were stored. It goes on if the caller is dropped.
pub(super) async fn end_all<C: Cache + 'static>(all: Vec<(Grant<C>, Ending)>) -> Vec<Result<Kept, Error>> {
    let count = all.len();
    let settling = all.into_iter().filter_map(|(mut grant, ending)| {
        let work = grant.work.take()?;
        Some(Settling::new(work, ending))
    });
    let settled = tokio::spawn(settle(settling.collect())).await;
    settled.unwrap_or_else(|error| {
        let failed = Error::Usage(format!("the task that stores the value has ended: {error}"));
        vec![Err(failed); count]
    })
}

/// A computation that ends.
struct Settling<C: Cache + 'static> {
    work: Box<Work<C>>,
    ending: Ending,
    bytes: Sealed,
    /// The value has expired already, and its lock is removed.
    passed: bool,
    /// The item is not the lock as it was written: another client's, or this lock after an `append` and the like.
    changed: bool,
    next: Next,
    /// Where the CAS number is valid that is sent next.
    scope: Option<Scope>,
    /// How often the item was read.
    reads: usize,
}

/// What is sent next.
#[derive(Debug, Clone)]
enum Next {
    Fill(u64),
    GiveUp(u64),
    Lock(Settle),
    Done(Result<Settle, Error>),
}

impl<C: Cache + 'static> Settling<C> {
    fn new(work: Box<Work<C>>, ending: Ending) -> Self {
        let now = work.place.now();
        let leased = matches!(work.hold, Hold::Lease { .. });
        let value = match &ending {
            Ending::Value(fill) => sealed_value(fill, leased, now),
            Ending::Nothing(_) => None,
        };
        let passed = value.is_none() && matches!(ending, Ending::Value(_));
        let mut scope = None;
        let next = match &work.hold {
            Hold::Lease { token, .. } if value.is_some() => Next::Fill(*token),
            Hold::Lease { token, .. } => Next::GiveUp(*token),
            Hold::Lock { cas, .. } => {
                scope = cas.map(|(_, scope)| scope);
                Next::Lock(plain::settle(cas.map(|(cas, _)| cas)))
            }
            Hold::Nothing => Next::Done(Ok(Settle::Lost)),
        };
        let bytes = value.unwrap_or_else(|| work.end_of_lock(&ending, now));
        Self { work, ending, bytes, passed, changed: false, next, scope, reads: 0 }
    }

    /// Whether the lock's time in the server may have passed, so that the value is stored nevertheless. Not one with tags: the server
    /// judges it by the time at which it comes, and would serve it although a tag was invalidated since the computation began.
    fn is_late(&self) -> bool {
        match &self.work.hold {
            Hold::Lock { taken, terms, .. } => {
                matches!(self.ending, Ending::Value(_))
                    && !self.passed
                    && self.work.subject.tags.is_empty()
                    && terms.is_late(taken.elapsed())
            }
            Hold::Lease { .. } | Hold::Nothing => false,
        }
    }

    fn go_on(&mut self, settle: Result<Settle, Error>) {
        self.next = match settle {
            Ok(settle @ (Settle::Read | Settle::Cas(_) | Settle::Add)) => Next::Lock(settle),
            done => Next::Done(done),
        };
    }

    /// Whether the lock may still be there although its computation has ended.
    fn leaves_lock(&self) -> bool {
        if self.changed {
            return true;
        }
        match self.ending {
            Ending::Value(_) => matches!(self.next, Next::Done(Err(_))),
            Ending::Nothing(_) => false,
        }
    }

    fn end(&self) -> End {
        let fill = match &self.ending {
            Ending::Value(fill) => fill,
            Ending::Nothing(Some(text)) => return End::Failed(Bytes::copy_from_slice(text.as_bytes())),
            Ending::Nothing(None) => return End::Again,
        };
        let value = || Stored::fresh(fill.data.clone(), fill.flags);
        match self.next {
            Next::Done(Ok(Settle::Stored { .. })) if self.passed => End::Unstorable(value()),
            Next::Done(Ok(Settle::Stored { fenced: true })) => End::Stored(value()),
            Next::Done(Err(_)) => End::Unstorable(value()),
            _ if matches!(self.work.hold, Hold::Nothing) => End::Unstorable(value()),
            _ => End::Again,
        }
    }

    fn result(&self) -> Result<Kept, Error> {
        match &self.next {
            Next::Done(Ok(Settle::Stored { .. }))
                if !self.passed && matches!(self.ending, Ending::Value(_)) =>
            {
                Ok(Ok(()))
            }
            Next::Done(Err(error)) => Err(error.clone()),
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

impl<C: Cache + 'static> Work<C> {
    /// The lock was changed: it is found by its number, and goes with its old value, which may have been changed with it.
    fn forget(&mut self) {
        if let Hold::Lock { cas, .. } = &mut self.hold {
            *cas = None;
        }
        self.old = None;
    }

    /// What replaces the lock if there is no value.
    fn end_of_lock(&self, ending: &Ending, now: SystemTime) -> Sealed {
        if let (Ending::Nothing(Some(text)), Hold::Lock { nonce, .. }) = (ending, &self.hold) {
            let lock = Lock { until_ms: 0, nonce: *nonce };
            let record = Record::Failed(Bytes::copy_from_slice(text.as_bytes()), lock);
            return Sealed::new(&record, Expiration::After(FAILURE), now);
        }
        match plain::freed(unix_ms(now), self.old.as_ref()) {
            Some((record, keep)) => Sealed::new(&record, keep, now),
            None => Sealed::nothing(),
        }
    }
}

/// A value in the form of the server; None: it has expired already.
fn sealed_value(fill: &Fill, leased: bool, now: SystemTime) -> Option<Sealed> {
    // In its grace it could be served, but nobody would find it fresh.
    if fill.expiration.unix_ms(now).is_some_and(|at_ms| at_ms <= unix_ms(now)) {
        return None;
    }
    let mut stored = Stored::fresh(fill.data.clone(), fill.flags);
    let grace = fill.grace.filter(|_| !leased);
    if let (Some(grace), Some(soft_ms)) = (grace, fill.expiration.unix_ms(now)) {
        stored.soft_ms = soft_ms.max(1);
        stored.dead_ms = stored.soft_ms.saturating_add(grace.as_millis() as u64);
    }
    let exptime = fill.expiration.exptime(now, grace.unwrap_or_default())?;
    let record = Record::Value(stored);
    Some(Sealed { data: record.seal(), flags: value::with_envelope(record.flags()), exptime })
}

/// Ends computations, with as few round trips as possible, and tells the callers that wait.
async fn settle<C: Cache + 'static>(mut all: Vec<Settling<C>>) -> Vec<Result<Kept, Error>> {
    // Before anything is sent: the server may have stored the value, and the key may have been deleted after that, long before
    // the reply is here. The callers that have joined arrived before all this.
    all.iter().filter_map(|settling| settling.work.running.as_ref()).for_each(Running::leave);
    rounds(&mut all).await;
    let results = all.iter().map(Settling::result).collect();
    let mut refused = Vec::new();
    for mut settling in all {
        let (end, leaves_lock) = (settling.end(), settling.leaves_lock());
        if leaves_lock {
            if settling.changed {
                settling.work.forget();
            }
            let ended = settling.work.running.take().map(|running| (running, end));
            refused.push((Settling::new(settling.work, Ending::Nothing(None)), ended));
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

/// Sends what is next for each, all at once, until nothing is.
async fn rounds<C: Cache + 'static>(all: &mut [Settling<C>]) {
    let Some(first) = all.first() else { return };
    let cache = Arc::clone(&first.work.place.cache);
    let cache = &*cache;
    while all.iter().any(|settling| !matches!(settling.next, Next::Done(_))) {
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
                // The number may be that of another item by now: the lock is looked for.
                None if all[at].reads < TRIES => Settle::Read,
                None => Settle::Lost,
            };
            (at, written.map(settle))
        });
        let swaps: Replies = swaps.collect();
        for (at, _, scope) in &reads {
            all[*at].scope = *scope;
            all[*at].reads += 1;
        }
        let reads = reads.into_iter().map(|(at, next, _)| (at, next)).collect();
        for (at, next) in [fills, gone, reads, swaps, adds].into_iter().flatten() {
            all[at].go_on(next);
        }
    }
}

/// What came next, by the place of its computation.
type Replies = Vec<(usize, Result<Settle, Error>)>;

async fn fill<C: Cache + 'static>(cache: &C, all: &[Settling<C>]) -> Replies {
    let (at, writes): (Vec<_>, Vec<_>) = all
        .iter()
        .enumerate()
        .filter_map(|(at, settling)| match settling.next {
            Next::Fill(token) => Some((at, (settling.bytes.write(&settling.work.subject), token))),
            _ => None,
        })
        .unzip();
    if writes.is_empty() {
        return Vec::new();
    }
    // After a soft invalidation a server stores a value as an old one, and says no more of it.
    let stored = |stored| if stored { Settle::Stored { fenced: false } } else { Settle::Lost };
    let replies = cache.fill_many(&writes).await.into_iter();
    at.into_iter().zip(replies.map(|reply| reply.map(stored))).collect()
}

async fn give_up<C: Cache + 'static>(cache: &C, all: &[Settling<C>]) -> Replies {
    let given_up = all.iter().enumerate().filter_map(|(at, settling)| match settling.next {
        Next::GiveUp(token) => Some((at, settling, token)),
        _ => None,
    });
    let replies = join(given_up.map(|(at, settling, token)| async move {
        let failure = match &settling.ending {
            Ending::Nothing(text) => text.as_deref(),
            Ending::Value(_) => None,
        };
        let reply = cache.give_up(&settling.work.subject.key, token, failure).await;
        let settle = if settling.passed { Settle::Stored { fenced: true } } else { Settle::Lost };
        (at, reply.map(|()| settle))
    }));
    replies.await
}

/// What came next, and where the CAS number is valid that was read.
type Reads = Vec<(usize, Result<Settle, Error>, Option<Scope>)>;

async fn read<C: Cache + 'static>(cache: &C, all: &[Settling<C>]) -> Reads {
    let (at, keys): (Vec<_>, Vec<_>) = all
        .iter()
        .enumerate()
        .filter(|(_, settling)| matches!(settling.next, Next::Lock(Settle::Read)))
        .map(|(at, settling)| (at, &settling.work.subject.key[..]))
        .unzip();
    if keys.is_empty() {
        return Vec::new();
    }
    let scope = cache.scope();
    let items = cache.gets_many(&keys).await.into_iter();
    let next = |(at, item): (usize, Result<Option<Item>, Error>)| {
        let Hold::Lock { nonce, .. } = all[at].work.hold else { return (at, Ok(Settle::Lost), None) };
        let late = all[at].is_late();
        (at, item.map(|item| plain::settle_read(item.as_ref().map(open), nonce, late)), scope)
    };
    at.into_iter().zip(items).map(next).collect()
}

/// What was written; None: the number may not be that of the lock any more.
type Swaps = Vec<(usize, Result<Option<Written>, Error>)>;

async fn swap<C: Cache + 'static>(cache: &C, all: &[Settling<C>]) -> Swaps {
    let (mut at_within, mut within, mut at_any, mut any) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (at, settling) in all.iter().enumerate() {
        let Next::Lock(Settle::Cas(cas)) = settling.next else { continue };
        let write = settling.bytes.write(&settling.work.subject);
        if let Some(scope) = settling.scope {
            at_within.push(at);
            within.push((write, cas, scope));
        } else {
            at_any.push(at);
            any.push((write, cas));
        }
    }
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

async fn add<C: Cache + 'static>(cache: &C, all: &[Settling<C>]) -> Replies {
    let (at, writes): (Vec<_>, Vec<_>) = all
        .iter()
        .enumerate()
        .filter(|(_, settling)| matches!(settling.next, Next::Lock(Settle::Add)))
        .map(|(at, settling)| (at, settling.bytes.write(&settling.work.subject)))
        .unzip();
    if writes.is_empty() {
        return Vec::new();
    }
    let replies = cache.add_many(&writes).await.into_iter();
    at.into_iter().zip(replies.map(|reply| reply.map(plain::settle_add))).collect()
}
