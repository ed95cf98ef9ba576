//! Callers of one key in one process: they share what is asked, and the computation.
//!
//! A caller may use the answer to a request only if it was sent after the caller had arrived: else it could see a value from
//! before a delete that it has waited for. So callers that arrive while a request is under way gather for the next. A
//! computation without an old value can be joined until its value is sent: the value is taken only if it was stored under
//! the lock, which a delete removes, so nothing can have happened to the key between the taking of the lock and the store, and the
//! caller has arrived between them. A caller that arrives later asks the server: the value may have been stored and deleted already.
//! Joining also needs the lock to be the one that the caller would have met: same key, tags and lock time.
//!
//! Requests are sent by tasks of their own: a caller that is dropped, or not polled, keeps no other from going on, and what
//! was granted to no caller is given up. At rest the table is empty.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;

use super::envelope::Stored;
use super::grant::{Busy, End, Found, Grant, Place, Subject};
use super::plain::Terms;
use crate::cache::Cache;
use crate::error::Error;

/// What callers must have in common to share.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Group {
    pub(super) subject: Subject,
    pub(super) lock_time: Duration,
}

/// What a shared request has brought.
pub(super) enum Look<C: Cache + 'static> {
    Hit(Stored),
    Stale(Stored),
    Busy(Busy),
    Failed,
    Error(Error),
    /// One of the callers that share it computes: the first that takes the grant.
    Granted {
        grant: Mutex<Option<Grant<C>>>,
        old: Option<Stored>,
        end: Ended,
    },
}

/// Brings the end of a computation.
pub(super) type Ended = watch::Receiver<Option<End>>;
type Answered<C> = watch::Receiver<Option<Arc<Look<C>>>>;

/// All callers.
pub(crate) struct Flights<C: Cache + 'static> {
    groups: Mutex<HashMap<Arc<Group>, Keyed<C>>>,
    numbers: AtomicU64,
}

/// Callers of one key.
struct Keyed<C: Cache + 'static> {
    lanes: [Lane<C>; 2],
    running: Option<(u64, Ended)>,
}

/// Requests that are answered at once, and those that the server may hold.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Quick,
    Held,
}

struct Lane<C: Cache + 'static> {
    sent: bool,
    next: Option<Gathering<C>>,
}

/// A request that will be sent when the one before it is answered.
struct Gathering<C: Cache + 'static> {
    answer: watch::Sender<Option<Arc<Look<C>>>>,
    wait: Duration,
    terms: Terms,
}

impl<C: Cache + 'static> Keyed<C> {
    fn new() -> Self {
        let lane = || Lane { sent: false, next: None };
        Self { lanes: [lane(), lane()], running: None }
    }

    fn is_idle(&self) -> bool {
        self.running.is_none() && self.lanes.iter().all(|lane| !lane.sent)
    }
}

/// Ends a computation for the callers of this process that wait for it; if it is dropped, they look again.
pub(super) struct Running<C: Cache + 'static> {
    flights: Arc<Flights<C>>,
    group: Arc<Group>,
    number: u64,
    end: watch::Sender<Option<End>>,
}

impl<C: Cache + 'static> Running<C> {
    pub(super) fn end(self, end: End) {
        self.leave();
        self.end.send_replace(Some(end));
    }

    /// No caller joins from now on.
    pub(super) fn leave(&self) {
        let mut groups = self.flights.lock();
        if let Slot::Occupied(mut entry) = groups.entry(Arc::clone(&self.group)) {
            if entry.get().running.as_ref().is_some_and(|(number, _)| *number == self.number) {
                entry.get_mut().running = None;
            }
            if entry.get().is_idle() {
                entry.remove();
            }
        }
    }
}

impl<C: Cache + 'static> Drop for Running<C> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl<C: Cache + 'static> Flights<C> {
    pub(crate) fn new() -> Self {
        Self { groups: Mutex::new(HashMap::new()), numbers: AtomicU64::new(0) }
    }

    /// Keys of which something is under way.
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<Group>, Keyed<C>>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next number: callers take one when they arrive, computations when they begin.
    pub(super) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// The computation without an old value that runs in this process, with its number.
    pub(super) fn running(&self, group: &Arc<Group>) -> Option<(u64, Ended)> {
        self.lock().get(group)?.running.clone()
    }

    /// The answer to a request that is sent after this call. `wait`: how long the server may hold it.
    pub(super) async fn look(
        self: &Arc<Self>,
        place: &Place<C>,
        group: &Arc<Group>,
        terms: &Terms,
        wait: Duration,
    ) -> Arc<Look<C>> {
        const TRIES: usize = 3;
        for _ in 0..TRIES {
            let mut answered = self.join(place, group, terms, wait);
            if let Ok(answer) = answered.wait_for(Option::is_some).await
                && let Some(look) = answer.clone()
            {
                return look;
            }
            // The task that asked has ended with its runtime, which need not be this caller's.
        }
        Arc::new(Look::Error(Error::Usage("the task that asks the server has ended".to_owned())))
    }

    fn join(
        self: &Arc<Self>,
        place: &Place<C>,
        group: &Arc<Group>,
        terms: &Terms,
        wait: Duration,
    ) -> Answered<C> {
        let kind = if wait.is_zero() { Kind::Quick } else { Kind::Held };
        let gathering = || Gathering { answer: watch::Sender::new(None), wait, terms: *terms };
        let mut groups = self.lock();
        let lane = &mut groups.entry(Arc::clone(group)).or_insert_with(Keyed::new).lanes[kind as usize];
        if lane.sent {
            let next = lane.next.get_or_insert_with(gathering);
            next.wait = next.wait.max(wait);
            return next.answer.subscribe();
        }
        lane.sent = true;
        drop(groups);
        let first = gathering();
        let answered = first.answer.subscribe();
        let asking = Asking { flights: Arc::clone(self), group: Arc::clone(group), kind, left: false };
        tokio::spawn(asking.run(place.clone(), first));
        answered
    }
}

/// The task that sends the requests of a lane, one after the other. Dropped, it leaves the lane to others.
struct Asking<C: Cache + 'static> {
    flights: Arc<Flights<C>>,
    group: Arc<Group>,
    kind: Kind,
    left: bool,
}

impl<C: Cache + 'static> Asking<C> {
    async fn run(mut self, place: Place<C>, first: Gathering<C>) {
        let mut now = first;
        loop {
            let hint = Bytes::new();
            let found = place.acquire(&self.group.subject, &now.terms, now.wait, &hint).await;
            let look = Arc::new(self.look(found));
            let next = self.next();
            // Without callers it is dropped here, and what was granted is given up.
            now.answer.send_replace(Some(look));
            match next {
                Some(next) => now = next,
                None => return,
            }
        }
    }

    fn look(&self, found: Result<Found<C>, Error>) -> Look<C> {
        match found {
            Ok(Found::Hit(stored)) => Look::Hit(stored),
            Ok(Found::Stale(stored)) => Look::Stale(stored),
            Ok(Found::Busy(busy)) => Look::Busy(busy),
            Ok(Found::Failed(_)) => Look::Failed,
            Err(error) => Look::Error(error),
            Ok(Found::Granted(mut grant)) => {
                let (end, ended) = watch::channel(None);
                let old = grant.old().cloned();
                let number = self.flights.number();
                let mut groups = self.flights.lock();
                if let Some(keyed) = groups.get_mut(&self.group)
                    && old.is_none()
                {
                    keyed.running = Some((number, ended.clone()));
                }
                drop(groups);
                let (flights, group) = (Arc::clone(&self.flights), Arc::clone(&self.group));
                grant.tell(Running { flights, group, number, end });
                Look::Granted { grant: Mutex::new(Some(grant)), old, end: ended }
            }
        }
    }

    /// The request that others have gathered for; None: there is none, and the lane is free.
    fn next(&mut self) -> Option<Gathering<C>> {
        let mut groups = self.flights.lock();
        let Slot::Occupied(mut entry) = groups.entry(Arc::clone(&self.group)) else { return None };
        let lane = &mut entry.get_mut().lanes[self.kind as usize];
        let next = lane.next.take().filter(|next| next.answer.receiver_count() > 0);
        if next.is_none() {
            self.left = true;
            lane.sent = false;
            if entry.get().is_idle() {
                entry.remove();
            }
        }
        next
    }
}

impl<C: Cache + 'static> Drop for Asking<C> {
    fn drop(&mut self) {
        // After a panic of the cache, or with its runtime: the callers that have gathered see it and ask again.
        while !self.left && self.next().is_some() {}
    }
}
