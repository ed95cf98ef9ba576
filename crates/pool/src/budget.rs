//! A budget of worker processes that several pools share.
//!
//! A worker has a *place* from before its start until its process is gone. A pool that finds no free place
//! waits. A place that becomes free is granted to the waiting pool with the fewest workers, of equals to the
//! one that has waited longest, and that pool's thread is woken. So that no pool waits for ever, the pool
//! with the most workers gives one up, which leaves after its jobs: for a pool that would still not have more
//! workers than that pool, and, after [`TURN`], for a pool that has none at all. A new program's first worker
//! counts as that of a pool without workers.
//!
//! Sans-io except for the wake-ups: the time is told, and what a pool owes is asked for.
//!
//! # Invariants
//! * At most as many places exist as the budget has; a grant is a place.
//! * While a place is free, no pool waits.
//! * At most as many workers leave for others as pools wait.
//! * Pools are woken when the lock is no longer held: an inbox has a lock of its own.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::inbox::{Inbox, InboxMessage};
use crate::time::{LOOK, later};

/// The most worker processes of several pools together: see [`crate::Builder::within`]. A clone is cheap and
/// is the same budget.
#[derive(Debug, Clone)]
pub struct Budget {
    shared: Arc<BudgetShared>,
}

#[derive(Debug)]
struct BudgetShared {
    limit: AtomicUsize,
    /// The number of pools that wait; read without the lock.
    waiting: AtomicUsize,
    state: Mutex<BudgetState>,
}

#[derive(Debug, Default)]
struct BudgetState {
    /// Places that are taken or granted.
    used: usize,
    /// A counter of pools, waits and grants, used as a clock.
    clock: u64,
    members: Vec<BudgetMember>,
}

/// A pool.
#[derive(Debug)]
struct BudgetMember {
    key: u64,
    inbox: Weak<Inbox>,
    /// Places that the pool holds.
    held: usize,
    /// Places of workers that are leaving, which `held` includes.
    leaving: usize,
    /// Places that the pool was granted and has not used yet: 0 or 1.
    granted: usize,
    waiting: Option<PlaceWait>,
    /// The time of the last granted place, by the clock of the state.
    served: u64,
}

#[derive(Debug, Clone, Copy)]
struct PlaceWait {
    since: Instant,
    order: u64,
    /// Whether the place is for the first worker of a new program.
    probe: bool,
}

impl Budget {
    /// A budget of this many worker processes, at least 1.
    pub fn new(processes: usize) -> Self {
        let (waiting, state) = (AtomicUsize::new(0), Mutex::new(BudgetState::default()));
        Self { shared: Arc::new(BudgetShared { limit: AtomicUsize::new(processes.max(1)), waiting, state }) }
    }

    /// The number of worker processes.
    pub fn limit(&self) -> usize {
        self.shared.limit()
    }

    /// Changes the number of worker processes, at least 1. If more are in use, no pool gets another place
    /// until enough workers have left; none is ended for it.
    pub fn resize(&self, processes: usize) {
        let state = self.shared.lock();
        self.shared.limit.store(processes.max(1), Ordering::Relaxed);
        self.shared.assign(state, None);
    }

    /// The number of places in use: worker processes, and those that a pool is about to start.
    pub fn used(&self) -> usize {
        self.shared.lock().used
    }
}

impl BudgetShared {
    fn lock(&self) -> MutexGuard<'_, BudgetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Grants free places to waiting pools, unlocks, and wakes these pools. `ask`: a pool that has begun to
    /// wait; then all other pools with workers are woken as well.
    fn assign(&self, mut state: MutexGuard<'_, BudgetState>, ask: Option<u64>) {
        let mut wake = Vec::new();
        while state.used < self.limit() {
            let waiting = state.members.iter_mut().filter(|member| member.waiting.is_some());
            let next =
                waiting.min_by_key(|member| (member.weight(), member.waiting.map_or(0, |wait| wait.order)));
            let Some(next) = next else { break };
            next.waiting = None;
            next.granted += 1;
            wake.push(next.inbox.clone());
            state.used += 1;
        }
        if ask.is_some() {
            let others =
                state.members.iter().filter(|member| Some(member.key) != ask && member.workers() > 0);
            wake.extend(others.map(|member| member.inbox.clone()));
        }
        let waiting = state.members.iter().filter(|member| member.waiting.is_some()).count();
        self.waiting.store(waiting, Ordering::Relaxed);
        drop(state);
        for inbox in wake.iter().filter_map(Weak::upgrade) {
            inbox.send(InboxMessage::Budget);
        }
    }
}

impl BudgetState {
    fn member(&mut self, key: u64) -> Option<&mut BudgetMember> {
        self.members.iter_mut().find(|member| member.key == key)
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// See [`BudgetSeat::debt`].
    fn debt(&mut self, key: u64, now: Instant) -> PlaceDebt {
        let most = self.members.iter().max_by_key(|member| (member.workers(), u64::MAX - member.served));
        let Some(me) = most.filter(|most| most.key == key && most.workers() > 0) else {
            return PlaceDebt::None;
        };
        let (mut due_now, mut next) = (0, None);
        for member in &self.members {
            let Some(wait) = member.waiting.filter(|wait| member.key != key || wait.probe) else { continue };
            let due = later(wait.since, TURN);
            if member.weight() + 1 < me.workers() || (member.weight() == 0 && due <= now) {
                due_now += 1;
            } else if member.weight() == 0 {
                next = Some(next.map_or(due, |before: Instant| before.min(due)));
            }
        }
        let coming: usize = self.members.iter().map(|member| member.leaving).sum();
        if coming >= due_now {
            return next.map_or(PlaceDebt::None, PlaceDebt::At);
        }
        let order = self.tick();
        if let Some(wait) = self.member(key).and_then(|member| member.waiting.as_mut())
            && !wait.probe
        {
            // The pool goes to the end of the line: otherwise it would get back at once the place that it
            // gives.
            (wait.since, wait.order) = (now, order);
        }
        PlaceDebt::Now
    }
}

impl BudgetMember {
    /// The number of workers that are not leaving.
    fn workers(&self) -> usize {
        self.held - self.leaving
    }

    /// The number of workers by which the next pool is chosen.
    fn weight(&self) -> usize {
        if self.waiting.is_some_and(|wait| wait.probe) { 0 } else { self.workers() + self.granted }
    }
}

/// A pool's part in a budget; without a budget there is always room.
#[derive(Debug)]
pub(crate) struct BudgetSeat {
    shared: Option<Arc<BudgetShared>>,
    key: u64,
    /// Whether the pool waits, or was granted a place that it has not used.
    registered: bool,
    /// Places of killed processes that may still exist: each with its pidfd, and the time at which to stop
    /// waiting.
    fading: Vec<(BudgetPlace, Option<OwnedFd>, Instant)>,
}

/// A pool's debt to pools that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlaceDebt {
    /// The pool owes nothing.
    None,
    /// The pool owes nothing before this time.
    At(Instant),
    /// The pool owes a worker.
    Now,
}

impl BudgetSeat {
    pub(crate) fn new(budget: Option<&Budget>, inbox: &Arc<Inbox>) -> Self {
        let shared = budget.map(|budget| Arc::clone(&budget.shared));
        let mut key = 0;
        if let Some(shared) = &shared {
            let mut state = shared.lock();
            key = state.tick();
            state.members.push(BudgetMember {
                key,
                inbox: Arc::downgrade(inbox),
                held: 0,
                leaving: 0,
                granted: 0,
                waiting: None,
                served: key,
            });
        }
        Self { shared, key, registered: false, fading: Vec::new() }
    }

    /// Whether the pool shares a budget.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// The limit of the budget.
    pub(crate) fn limit(&self) -> usize {
        self.shared.as_ref().map_or(usize::MAX, |shared| shared.limit())
    }

    /// Takes a place. `None`: there is none, and the pool waits until [`InboxMessage::Budget`] comes.
    /// `probe`: whether the place is for the first worker of a new program.
    pub(crate) fn take(&mut self, now: Instant, probe: bool) -> Option<BudgetPlace> {
        let Some(shared) = &self.shared else { return Some(BudgetPlace::default()) };
        let mut state = shared.lock();
        let (order, free) = (state.tick(), state.used < shared.limit());
        let member = state.member(self.key)?;
        if member.granted > 0 || free {
            let granted = member.granted > 0;
            member.granted -= usize::from(granted);
            member.held += 1;
            member.served = order;
            state.used += usize::from(!granted);
            let of = Some((Arc::clone(shared), self.key));
            return Some(BudgetPlace { of, leaving: false });
        }
        self.registered = true;
        if let Some(wait) = &mut member.waiting
            && wait.probe == probe
        {
            return None;
        }
        member.waiting = Some(PlaceWait { since: now, order, probe });
        shared.assign(state, Some(self.key));
        None
    }

    /// Whether [`BudgetSeat::take`] may succeed, that is, whether the pool does not wait.
    pub(crate) fn may_take(&self) -> bool {
        !self.registered || self.is_granted()
    }

    /// Whether the pool was granted a place that it has not used.
    pub(crate) fn is_granted(&self) -> bool {
        let Some(shared) = self.shared.as_ref().filter(|_| self.registered) else { return false };
        shared.lock().member(self.key).is_some_and(|member| member.granted > 0)
    }

    /// Tells the budget whether the pool wants more workers. If not, ends the wait, and passes on a granted
    /// place.
    pub(crate) fn update(&mut self, wants: bool) {
        let Some(shared) = self.shared.as_ref().filter(|_| self.registered) else { return };
        let mut state = shared.lock();
        let Some(member) = state.member(self.key) else { return };
        if wants {
            self.registered = member.waiting.is_some() || member.granted > 0;
            return;
        }
        self.registered = false;
        member.waiting = None;
        let back = std::mem::take(&mut member.granted);
        state.used -= back;
        shared.assign(state, None);
    }

    /// Whether the pool must give up a worker for another pool, or for its own new program.
    pub(crate) fn debt(&self, now: Instant) -> PlaceDebt {
        match &self.shared {
            Some(shared) if shared.waiting.load(Ordering::Relaxed) > 0 => shared.lock().debt(self.key, now),
            _ => PlaceDebt::None,
        }
    }

    /// Keeps the place of a killed process until it is gone, for at most a second; without a pidfd for
    /// [`LOOK`].
    pub(crate) fn fade(&mut self, place: BudgetPlace, pidfd: Option<OwnedFd>, now: Instant) {
        if place.of.is_some() {
            let wait = if pidfd.is_some() { FADE_MAX } else { LOOK };
            self.fading.push((place, pidfd, now + wait));
        }
    }

    /// Gives back the places of processes that are gone. Returns the time of the next call.
    pub(crate) fn collect_faded(&mut self, now: Instant) -> Option<Instant> {
        self.fading.retain(|(_, pidfd, until)| {
            let gone = pidfd.as_ref().is_some_and(|pidfd| {
                let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
                poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
            });
            !gone && *until > now
        });
        (!self.fading.is_empty()).then(|| now + FADE_LOOK)
    }
}

impl Drop for BudgetSeat {
    fn drop(&mut self) {
        self.fading.clear();
        self.update(false);
        if let Some(shared) = &self.shared {
            shared.lock().members.retain(|member| member.key != self.key);
        }
    }
}

/// The right to one worker process. Dropping it gives the place back.
#[derive(Debug, Default)]
pub(crate) struct BudgetPlace {
    of: Option<(Arc<BudgetShared>, u64)>,
    leaving: bool,
}

impl BudgetPlace {
    /// Marks the place as one whose worker takes no more jobs. A second call changes nothing.
    pub(crate) fn leave(&mut self) {
        if let Some((shared, key)) = &self.of
            && !std::mem::replace(&mut self.leaving, true)
            && let Some(member) = shared.lock().member(*key)
        {
            member.leaving += 1;
        }
    }
}

impl Drop for BudgetPlace {
    fn drop(&mut self) {
        let Some((shared, key)) = self.of.take() else { return };
        let mut state = shared.lock();
        state.used -= 1;
        if let Some(member) = state.member(key) {
            member.held -= 1;
            member.leaving -= usize::from(self.leaving);
        }
        shared.assign(state, None);
    }
}

/// How long a pool without workers waits for its turn while all others have at most one each.
const TURN: Duration = Duration::from_secs(1);

/// Longest time for which a killed process keeps its place.
const FADE_MAX: Duration = Duration::from_secs(1);

/// Pause between two checks of killed processes.
const FADE_LOOK: Duration = Duration::from_millis(2);

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs some instant to start from")]
mod tests {
    use super::*;

    /// A pool that starts as many workers as it may.
    struct Fake {
        seat: BudgetSeat,
        places: Vec<BudgetPlace>,
        _inbox: Arc<Inbox>,
    }

    impl Fake {
        fn new(budget: &Budget) -> Self {
            let inbox = Arc::new(Inbox::new().unwrap());
            Self { seat: BudgetSeat::new(Some(budget), &inbox), places: Vec::new(), _inbox: inbox }
        }

        /// Takes all places that it gets, as a pool with endless jobs does.
        fn grow(&mut self, now: Instant) {
            if self.seat.may_take() {
                while let Some(place) = self.seat.take(now, false) {
                    self.places.push(place);
                }
            }
            self.seat.update(true);
        }

        /// Ends a worker, if the pool owes one. Returns whether it did.
        fn pay(&mut self, now: Instant) -> bool {
            let owes = self.seat.debt(now) == PlaceDebt::Now;
            if owes {
                self.places[0].leave();
                let state = self.seat.shared.as_ref().unwrap().lock();
                let leaving: usize = state.members.iter().map(|member| member.leaving).sum();
                assert!(leaving <= state.members.iter().filter(|member| member.waiting.is_some()).count());
                drop(state);
                self.places.remove(0);
            }
            owes
        }
    }

    fn assign_all(pools: &mut [Fake], now: Instant) -> Vec<usize> {
        for _ in 0..100 {
            for pool in &mut *pools {
                pool.grow(now);
            }
            if !pools.iter_mut().any(|pool| pool.pay(now)) {
                break;
            }
        }
        pools.iter().map(|pool| pool.places.len()).collect()
    }

    #[test]
    fn pools_with_endless_jobs_share_evenly() {
        let now = Instant::now();
        let budget = Budget::new(4);
        let mut pools = vec![Fake::new(&budget)];
        assert_eq!(assign_all(&mut pools, now), [4]);
        for shares in [[2, 2].as_slice(), &[1, 2, 1], &[1, 1, 1, 1]] {
            pools.push(Fake::new(&budget));
            let mut got = assign_all(&mut pools, now);
            let mut expected = shares.to_vec();
            got.sort_unstable();
            expected.sort_unstable();
            assert_eq!(got, expected);
            assert_eq!(budget.used(), 4);
        }
        pools.drain(..3);
        assert_eq!(assign_all(&mut pools, now), [4], "the last one gets all");
        drop(pools);
        assert_eq!((budget.used(), budget.limit()), (0, 4));
        assert!(budget.shared.lock().members.is_empty());
    }

    #[test]
    fn a_budget_grows_at_once_and_shrinks_as_workers_leave() {
        let now = Instant::now();
        let budget = Budget::new(1);
        let mut pools = vec![Fake::new(&budget)];
        assert_eq!(assign_all(&mut pools, now), [1]);
        budget.resize(3);
        assert!(pools[0].seat.is_granted(), "it was waiting");
        assert_eq!(assign_all(&mut pools, now), [3]);
        budget.resize(0);
        assert_eq!((budget.limit(), assign_all(&mut pools, now)), (1, vec![3]), "none is ended for it");
        pools[0].places.truncate(1);
        assert_eq!(assign_all(&mut pools, now), [1]);
    }

    #[test]
    fn pools_take_turns_when_there_are_more_than_places() {
        let mut now = Instant::now();
        let budget = Budget::new(2);
        let mut pools: Vec<Fake> = (0..5).map(|_| Fake::new(&budget)).collect();
        let mut turns = [0; 5];
        for _ in 0..50 {
            let has = assign_all(&mut pools, now);
            assert_eq!(has.iter().sum::<usize>(), 2);
            assert!(has.iter().all(|count| *count <= 1), "{has:?}");
            turns.iter_mut().zip(has).for_each(|(all, one)| *all += one);
            let PlaceDebt::At(due) = pools
                .iter()
                .map(|pool| pool.seat.debt(now))
                .max_by_key(|owes| *owes != PlaceDebt::None)
                .unwrap()
            else {
                panic!("a pool waits, so another one owes it a worker later")
            };
            assert!(due > now && due <= now + TURN);
            now = due;
        }
        assert_eq!(turns.iter().sum::<usize>(), 100);
        assert!(turns.iter().all(|all| (10..=30).contains(all)), "{turns:?}");
    }

    #[test]
    fn a_new_program_gets_a_place_of_its_own_pool() {
        let now = Instant::now();
        for (processes, at_once) in [(4, true), (1, false)] {
            let budget = Budget::new(processes);
            let mut pool = Fake::new(&budget);
            while pool.places.len() < processes {
                pool.places.push(pool.seat.take(now, false).unwrap());
            }
            assert!(pool.seat.take(now, true).is_none());
            assert_eq!(pool.pay(now), at_once);
            let due = now + TURN;
            assert_eq!(pool.pay(due), !at_once);
            let place = pool.seat.take(due, true).unwrap();
            assert_eq!(budget.used(), processes);
            drop(place);
        }
    }

    #[test]
    fn a_place_that_is_not_needed_goes_on() {
        let now = Instant::now();
        let budget = Budget::new(1);
        let (mut first, mut second, mut third) = (Fake::new(&budget), Fake::new(&budget), Fake::new(&budget));
        first.places.push(first.seat.take(now, false).unwrap());
        second.grow(now);
        third.grow(now);
        assert!(!second.seat.may_take() && !third.seat.may_take());
        first.places.clear();
        assert!(second.seat.is_granted() && !third.seat.is_granted());
        assert_eq!(budget.used(), 1, "a grant is a place");
        second.seat.update(false);
        assert!(third.seat.is_granted());
        drop(third);
        assert_eq!(budget.used(), 0);
        second.grow(now);
        assert_eq!(second.places.len(), 1);
    }

    #[test]
    fn a_budget_of_none_is_one() {
        assert_eq!((Budget::new(0).limit(), Budget::new(usize::MAX).limit()), (1, usize::MAX));
    }
}
