//! The worker processes of a pool: their list, the choice of a worker for the next batch, and the ways in
//! which workers leave.
//! It knows no job but by its id at a worker, and no program but by its generation.
//!
//! # Invariants
//! * A worker keeps its slot from its start until its end is known; its number is never used again.
//! * A slot counts in the sizing from the start of a member until it is free again.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use cattlegrid_worker::control::send_with_fds;
use cattlegrid_worker::message::Init;
use cattlegrid_worker::sys::{Exit, Page};
use rustix::event::epoll::EventFlags;
use rustix::process::Signal;

use crate::base::{DriverBase, EventSource};
use crate::budget::{BudgetPlace, BudgetSeat};
use crate::error::Error;
use crate::jsonl;
use crate::options::Options;
use crate::output::FlushState;
use crate::proc::oom_kills;
use crate::promise::Resolver;
use crate::shared::PoolShared;
use crate::sizing::{Sizing, SizingDecision};
use crate::worker::{Role, SentJob, WorkerInfo, WorkerProcess, WorkerState};

mod checks;
mod groups;
mod memory;
mod starts;

use groups::Groups;
pub(crate) use memory::MemoryCheck;
pub(crate) use starts::StartPolicy;

/// See the module.
pub(crate) struct Fleet {
    workers: Vec<Option<Box<WorkerProcess>>>,
    last_number: u64,
    /// A counter of dispatches and replies, used as a clock.
    uses: u64,
    /// Slots with unsent output.
    dirty: Vec<usize>,
    /// Most jobs in a batch at the workers of this program, once a worker has reported it.
    batch: usize,
    sizing: Sizing,
    /// The pool's part of the budget that it shares with others, if it shares one.
    seat: BudgetSeat,
    starts: StartPolicy,
    groups: Groups,
    memory: MemoryCheck,
    next_ping: Option<Instant>,
    /// Callers of `wait_ready`, each with the number of ready workers that it waits for.
    ready_waiters: Vec<(usize, Resolver<Result<(), Error>>)>,
    oom_kills: u64,
}

impl Fleet {
    pub(crate) fn new(options: &Options, shared: &PoolShared) -> Self {
        Self {
            workers: Vec::new(),
            last_number: 0,
            uses: 0,
            dirty: Vec::new(),
            batch: 1,
            sizing: Sizing::new(options.sizing),
            seat: BudgetSeat::new(options.budget.as_ref(), &shared.inbox),
            starts: StartPolicy::new(options),
            groups: Groups::default(),
            memory: MemoryCheck::default(),
            next_ping: None,
            ready_waiters: Vec::new(),
            oom_kills: oom_kills(),
        }
    }

    /// The worker in a slot.
    #[inline]
    pub(crate) fn get(&self, slot: usize) -> Option<&WorkerProcess> {
        self.workers.get(slot)?.as_deref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: usize) -> Option<&mut WorkerProcess> {
        self.workers.get_mut(slot)?.as_deref_mut()
    }

    /// All workers, in the order of their slots.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &WorkerProcess> {
        self.workers.iter().filter_map(Option::as_deref)
    }

    /// All workers with their slots.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (usize, &WorkerProcess)> {
        self.workers.iter().enumerate().filter_map(|(slot, worker)| Some((slot, worker.as_deref()?)))
    }

    /// The slots of the workers for which `is_it` is true.
    pub(crate) fn slots(&self, is_it: impl Fn(&WorkerProcess) -> bool) -> Vec<usize> {
        (0..self.workers.len()).filter(|slot| self.get(*slot).is_some_and(&is_it)).collect()
    }

    /// The slot of the first worker for which `is_it` is true.
    pub(crate) fn find(&self, is_it: impl Fn(&WorkerProcess) -> bool) -> Option<usize> {
        self.workers.iter().position(|worker| worker.as_deref().is_some_and(&is_it))
    }

    /// Slot of the worker with this number.
    pub(crate) fn slot_of(&self, number: u64) -> Option<usize> {
        self.find(|worker| worker.number == number)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    pub(crate) fn sizing(&self) -> &Sizing {
        &self.sizing
    }

    pub(crate) fn seat(&self) -> &BudgetSeat {
        &self.seat
    }

    pub(crate) fn seat_mut(&mut self) -> &mut BudgetSeat {
        &mut self.seat
    }

    pub(crate) fn starts(&self) -> &StartPolicy {
        &self.starts
    }

    pub(crate) fn starts_mut(&mut self) -> &mut StartPolicy {
        &mut self.starts
    }

    /// The number of ready workers.
    pub(crate) fn ready(&self) -> usize {
        self.sizing.idle() + self.sizing.busy()
    }

    /// The number of jobs at workers.
    pub(crate) fn jobs(&self) -> usize {
        self.iter().map(WorkerProcess::own).sum()
    }

    /// The worker with the fewest batches; among equals the most recently used one, so that the others become
    /// idle and stop.
    #[inline]
    pub(crate) fn best(&self) -> Option<usize> {
        let mut best: Option<(usize, u64, usize)> = None;
        for (slot, worker) in self.workers.iter().enumerate() {
            let Some(worker) = worker else { continue };
            if !worker.has_credit() || worker.role != Role::Member {
                continue;
            }
            let key = (worker.batches, u64::MAX - worker.last_used, slot);
            if best.is_none_or(|other| key < other) {
                best = Some(key);
            }
        }
        best.map(|(_, _, slot)| slot)
    }

    /// Returns `slot`, or another worker's slot if the first has too many bytes for `bytes` more.
    pub(crate) fn with_room(&self, slot: usize, bytes: usize, limit: usize) -> Option<usize> {
        let fits = |slot: &usize| {
            self.get(*slot).is_some_and(|worker| {
                worker.has_credit()
                    && worker.role == Role::Member
                    && (worker.in_flight.is_empty() || worker.in_flight_bytes + bytes <= limit)
            })
        };
        if fits(&slot) { Some(slot) } else { (0..self.workers.len()).find(fits) }
    }

    /// The ready worker with the fewest jobs; among equals the least recently used.
    pub(crate) fn dispensable(&self) -> Option<usize> {
        let ready = self.workers.iter().enumerate().filter_map(|(slot, worker)| {
            let worker = worker.as_ref()?;
            let may_leave = worker.role == Role::Member && worker.state == WorkerState::Ready;
            may_leave.then_some((worker.own(), worker.last_used, slot))
        });
        ready.min().map(|(_, _, slot)| slot)
    }

    /// Puts a worker that was started into a free slot.
    pub(crate) fn add(&mut self, worker: WorkerProcess) -> usize {
        self.last_number = worker.number;
        let slot = self.workers.iter().position(Option::is_none).unwrap_or_else(|| {
            self.workers.push(None);
            self.workers.len() - 1
        });
        self.workers[slot] = Some(Box::new(worker));
        slot
    }

    /// The number of the next worker.
    pub(crate) fn next_number(&self) -> u64 {
        self.last_number + 1
    }

    /// Removes a worker whose process is gone, and returns it.
    pub(crate) fn remove(&mut self, slot: usize, base: &DriverBase) -> Option<Box<WorkerProcess>> {
        let worker = self.workers.get_mut(slot)?.take()?;
        self.sizing.on_gone(slot);
        base.counters().exited.add(1);
        Some(worker)
    }

    /// Forgets all workers.
    pub(crate) fn clear(&mut self) {
        self.workers.clear();
    }

    /// Note that a worker has output to be flushed.
    #[inline]
    pub(crate) fn set_dirty(&mut self, slot: usize) {
        self.dirty.push(slot);
    }

    /// Records that a job was written to the worker in `slot`.
    #[inline]
    pub(crate) fn on_sent(&mut self, slot: usize, id: u64, end: u64, bytes: usize, base: &mut DriverBase) {
        self.uses += 1;
        let uses = self.uses;
        let Some(worker) = self.get_mut(slot) else { return };
        worker.last_used = uses;
        worker.push(SentJob { id, order: worker.sent, end, bytes, taken: false });
        worker.sent += 1;
        let spent = worker.job_limit > 0 && worker.sent >= worker.job_limit;
        if worker.in_flight.len() == 1 {
            worker.stalled = (base.now(), worker.sent - 1);
            self.sizing.on_busy(slot);
            base.alarm(base.after(base.options().start_timeout));
        }
        self.dirty.push(slot);
        if spent {
            self.retire(slot, base);
        }
    }

    /// Records that the worker is done with the job at index `at` of those in flight.
    #[inline]
    pub(crate) fn on_released(&mut self, slot: usize, at: usize, base: &mut DriverBase) {
        self.uses += 1;
        let uses = self.uses;
        let Some(worker) = self.get_mut(slot) else { return };
        let Some(sent) = worker.remove(at) else { return };
        worker.answered += 1;
        worker.pinged = false;
        worker.last_used = uses;
        if !worker.doomed.is_empty() {
            // Only a job that was taken back may have two frames here.
            let may_be_left = worker.taken > 0 || sent.taken;
            if !(may_be_left && worker.in_flight.iter().any(|other| other.id == sent.id)) {
                worker.doomed.retain(|doomed| doomed.id != sent.id);
            }
        }
        if worker.in_flight.is_empty() {
            match worker.state {
                WorkerState::Ready if worker.role == Role::Member => self.sizing.on_idle(slot, base.now()),
                WorkerState::Retiring => {
                    let due = base.after(base.options().kill_grace);
                    worker.kill_at = Some(due);
                    // Ends the input of a worker of JSON lines now.
                    self.dirty.push(slot);
                    base.alarm(due);
                }
                _ => {}
            }
        }
    }

    /// Records that the worker has said READY: from now on it gets jobs.
    pub(crate) fn on_ready(&mut self, slot: usize, base: &DriverBase) {
        let Some(worker) = self.get_mut(slot) else { return };
        worker.state = WorkerState::Ready;
        worker.was_ready = true;
        let is_member = worker.role == Role::Member;
        self.starts.succeeded();
        if is_member {
            self.sizing.on_idle(slot, base.now());
        }
    }

    /// Makes the first workers of a new program count in the sizing.
    pub(crate) fn enlist_probes(&mut self, base: &DriverBase) {
        for slot in self.slots(|worker| worker.role == Role::Probe) {
            let Some(worker) = self.get_mut(slot) else { continue };
            worker.role = Role::Member;
            let is_ready = worker.state == WorkerState::Ready;
            self.sizing.on_starting(slot);
            if is_ready {
                self.sizing.on_idle(slot, base.now());
            }
        }
        self.sizing.kick(base.now());
    }

    /// Records that a worker is being started in this slot.
    pub(crate) fn on_starting(&mut self, slot: usize) {
        self.sizing.on_starting(slot);
    }

    /// Sends INIT, together with the progress page where that is possible.
    pub(crate) fn send_init(&mut self, slot: usize, base: &DriverBase) {
        let Some(worker) = self.get_mut(slot) else { return };
        let Some(socket) = &worker.socket else { return };
        let (number, generation, config) = (worker.number, worker.generation, &base.options().config);
        if worker.json {
            jsonl::init_line(worker.output.tail(), number, generation, config);
        } else {
            let init = Init { max_frame: base.options().max_frame, generation, worker: number, config };
            let mut bytes = Vec::new();
            init.put(&mut bytes);
            let page = Page::create().ok();
            let fds: Vec<_> = page.iter().map(|(_, fd)| fd.as_fd()).collect();
            let sent = send_with_fds(socket.as_fd(), &bytes, &fds).unwrap_or(0);
            // If nothing was sent the page was not passed either: it goes with the first byte.
            worker.page = page.filter(|_| sent > 0).map(|(page, _)| page);
            worker.output.tail().extend_from_slice(&bytes[sent..]);
        }
        self.dirty.push(slot);
    }

    /// Most jobs in a batch at the workers of this program.
    pub(crate) fn batch(&self) -> usize {
        self.batch
    }

    /// Records the size of batches that a worker has reported.
    pub(crate) fn set_batch(&mut self, batch: usize, base: &DriverBase) {
        if batch != std::mem::replace(&mut self.batch, batch) {
            self.publish_slack(base);
        }
    }

    /// Changes `idle` and `max`.
    pub(crate) fn resize(&mut self, idle: usize, max: usize, base: &mut DriverBase) {
        self.sizing.resize(idle, max);
        self.want_ready();
        // Jobs in the queue may have no worker any more.
        base.alarm(base.now());
        self.publish_slack(base);
    }

    /// Publishes the number of jobs that all workers hold together.
    fn publish_slack(&self, base: &DriverBase) {
        let config = self.sizing.config();
        base.set_slack(config.max.saturating_mul(config.load).saturating_mul(self.batch));
    }

    /// The workers to start and to stop; see [`Sizing::poll`].
    pub(crate) fn poll_sizing(
        &mut self,
        waiting: usize,
        may_start: bool,
        base: &DriverBase,
    ) -> SizingDecision {
        self.sizing.poll(base.now(), waiting, may_start)
    }

    /// Takes a place in the budget. `None`: there is none, and the pool waits for one.
    pub(crate) fn take_place(&mut self, probe: bool, base: &DriverBase) -> Option<BudgetPlace> {
        let waits = !self.seat.may_take();
        let place = self.seat.take(base.now(), probe);
        if place.is_none() && !waits {
            base.counters().no_room.add(1);
        }
        place
    }

    /// Handles a change of the budget: there is room, or another pool waits.
    pub(crate) fn on_budget(&mut self, base: &DriverBase) {
        if self.seat.is_granted() {
            self.sizing.kick(base.now());
        }
    }

    pub(crate) fn on_worker_log(&mut self, slot: usize, base: &mut DriverBase) {
        if let Some(worker) = self.get_mut(slot) {
            worker.log.read(base);
        }
    }

    /// Asks a worker to finish its jobs and leave; another may take its place. Does nothing for a worker that
    /// is leaving or dying.
    pub(crate) fn retire(&mut self, slot: usize, base: &mut DriverBase) {
        self.retire_as(slot, true, base);
    }

    /// Retires a worker as [`Fleet::retire`] does; `replace` says whether another worker may take its place
    /// without delay.
    pub(crate) fn retire_as(&mut self, slot: usize, replace: bool, base: &mut DriverBase) {
        let Some(worker) = self.get_mut(slot) else { return };
        match worker.state {
            WorkerState::Ready => {}
            WorkerState::Starting => {
                worker.told_to_leave = true;
                return self.kill(slot, "retired before it was ready", base);
            }
            WorkerState::Retiring | WorkerState::Ending | WorkerState::Killed => return,
        }
        worker.state = WorkerState::Retiring;
        worker.place.leave();
        worker.told_to_leave = true;
        worker.put_retire();
        if worker.in_flight.is_empty() {
            worker.kill_at = Some(base.after(base.options().kill_grace));
        }
        base.alarm_opt(worker.kill_at);
        base.counters().retired.add(1);
        self.sizing.on_leaving(slot, replace);
        self.dirty.push(slot);
    }

    /// Retires all workers for which `is_it` is true.
    pub(crate) fn retire_all(&mut self, is_it: impl Fn(&WorkerProcess) -> bool, base: &mut DriverBase) {
        for slot in self.slots(is_it) {
            self.retire(slot, base);
        }
    }

    /// Ends all spares: no worker will be started.
    pub(crate) fn drop_spares(&mut self, base: &mut DriverBase) {
        for slot in self.slots(|worker| worker.role == Role::Spare) {
            self.retire_as(slot, false, base);
        }
    }

    /// Kills a worker's process group. Its jobs are settled when its end is known.
    pub(crate) fn kill(&mut self, slot: usize, reason: &str, base: &mut DriverBase) {
        let Some(worker) = self.get_mut(slot) else { return };
        if worker.state == WorkerState::Killed {
            return;
        }
        worker.reason.get_or_insert_with(|| reason.to_owned());
        worker.state = WorkerState::Killed;
        worker.place.leave();
        worker.kill_at = Some(base.now() + GIVE_UP);
        worker.signal_group(Signal::KILL);
        base.counters().killed.add(1);
        self.sizing.on_leaving(slot, false);
        base.alarm(base.now() + GIVE_UP);
    }

    /// Kills all workers for which `is_it` is true.
    pub(crate) fn kill_all(
        &mut self,
        is_it: impl Fn(&WorkerProcess) -> bool,
        reason: &str,
        base: &mut DriverBase,
    ) {
        for slot in self.slots(is_it) {
            self.kill(slot, reason, base);
        }
    }

    /// Called when a worker will end by itself: it is killed if it has not within `kill_grace`.
    pub(crate) fn expect_end(&mut self, slot: usize, base: &mut DriverBase) {
        let Some(worker) = self.get_mut(slot) else { return };
        if worker.state == WorkerState::Killed {
            return;
        }
        worker.state = WorkerState::Ending;
        worker.place.leave();
        let due = base.after(base.options().kill_grace);
        worker.kill_at = Some(worker.kill_at.map_or(due, |before| before.min(due)));
        self.sizing.on_leaving(slot, false);
        base.alarm(due);
    }

    /// Called when a worker has closed its socket. Most workers close it because they end. A worker that
    /// does not end is killed: without a socket it can do no job, and its jobs wait for its end.
    pub(crate) fn on_closed(&mut self, slot: usize, base: &mut DriverBase) {
        if let Some(worker) = self.get_mut(slot) {
            worker.socket = None;
            self.expect_end(slot, base);
        }
    }

    /// Called when a worker has died with its template. Its place in the budget is kept until its process is
    /// gone; before that no other pool may start a worker for it.
    pub(crate) fn lose_with_template(&mut self, slot: usize, base: &DriverBase) {
        let Some(worker) = self.workers.get_mut(slot).and_then(Option::as_mut) else { return };
        worker.signal_group(Signal::KILL);
        worker.with_template = true;
        let (place, pidfd) = (std::mem::take(&mut worker.place), worker.pidfd.take());
        worker.reason.get_or_insert_with(|| "its template died".to_owned());
        self.seat.fade(place, pidfd, base.now());
    }

    /// Whether this worker died of SIGKILL and the kernel's out-of-memory killer has killed a process since
    /// the last call.
    pub(crate) fn oom_happened(&mut self, exit: Option<Exit>) -> bool {
        if exit.is_none_or(|exit| exit.status != -9) {
            return false;
        }
        let kills = oom_kills();
        std::mem::replace(&mut self.oom_kills, kills) < kills
    }

    /// Tells the worker that the outcome of a job is no longer needed. Returns whether the worker has the
    /// job.
    pub(crate) fn cancel(&mut self, slot: usize, id: u64) -> bool {
        let Some(worker) = self.get_mut(slot).filter(|worker| worker.has(id)) else { return false };
        worker.put_cancel(id);
        self.dirty.push(slot);
        true
    }

    /// Writes the pending bytes of all workers that were given something.
    pub(crate) fn flush_all(&mut self, base: &DriverBase) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for slot in dirty.drain(..) {
            self.flush(slot, base);
        }
        self.dirty = dirty;
    }

    pub(crate) fn flush(&mut self, slot: usize, base: &DriverBase) {
        let Some(worker) = self.get_mut(slot) else { return };
        let Some(socket) = &worker.socket else { return };
        // A broken socket is noticed when it is read, which also finds the last frames of the worker.
        let flushed = worker.output.flush(socket);
        if flushed == FlushState::All
            && worker.json
            && worker.state == WorkerState::Retiring
            && worker.in_flight.is_empty()
        {
            // The end of its input makes any program end, even one that ignores `retire`. It must not come
            // before the worker's last answer, because a program may end at it without answering.
            rustix::net::shutdown(socket, rustix::net::Shutdown::Write).ok();
        }
        let blocked = flushed == FlushState::Blocked;
        if blocked != std::mem::replace(&mut worker.want_write, blocked) {
            self.watch_socket(slot, base);
        }
    }

    /// Sets the events of the worker's socket that epoll reports. While the worker is not read, the end of
    /// its stream is reported only once.
    pub(crate) fn watch_socket(&self, slot: usize, base: &DriverBase) {
        let Some(worker) = self.get(slot) else { return };
        let Some(socket) = &worker.socket else { return };
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, !worker.is_unread());
        flags.set(EventFlags::ONESHOT, worker.is_unread());
        flags.set(EventFlags::OUT, worker.want_write);
        base.watch(socket, EventSource::Worker, worker.number, flags);
    }

    /// Watches the socket as [`Fleet::watch_socket`] does, again after an event that epoll reports only once.
    pub(crate) fn watch_again(&self, slot: usize, base: &DriverBase) {
        if self.get(slot).is_some_and(|worker| worker.is_unread() && worker.want_write) {
            self.watch_socket(slot, base);
        }
    }

    /// The ready workers.
    pub(crate) fn infos(&self) -> Vec<WorkerInfo> {
        let ready = self.iter().filter(|worker| worker.state == WorkerState::Ready);
        ready
            .map(|worker| WorkerInfo {
                number: worker.number,
                pid: worker.pid.map_or(worker.said_pid, |pid| pid.as_raw_pid().unsigned_abs()),
                generation: worker.generation,
                jobs: worker.own(),
            })
            .collect()
    }

    pub(crate) fn publish(&mut self, base: &DriverBase) {
        let (counters, sizing) = (base.counters(), &self.sizing);
        counters.workers.set(self.ready() as u64);
        counters.starting.set(sizing.starting() as u64);
        counters.idle.set(sizing.idle() as u64);
        counters.busy.set(sizing.busy() as u64);
        let (mut in_flight, mut retiring) = (0, 0);
        for worker in self.iter() {
            in_flight += worker.own();
            retiring += u64::from(worker.state == WorkerState::Retiring);
        }
        counters.in_flight.set(in_flight as u64);
        counters.retiring.set(retiring);
        counters.waiting_for_room.set((!self.seat.may_take()).into());
        counters.breaker_open.set(self.starts.is_failing().into());
        self.answer_ready();
    }

    /// Answers the callers of `wait_ready` that have enough ready workers.
    fn answer_ready(&mut self) {
        if self.ready_waiters.is_empty() {
            return;
        }
        let ready = self.ready();
        for (count, answer) in std::mem::take(&mut self.ready_waiters) {
            if count <= ready {
                answer.resolve(Ok(()));
            } else {
                self.ready_waiters.push((count, answer));
            }
        }
        self.want_ready();
    }

    /// Adds a caller that waits until `workers` workers are ready.
    pub(crate) fn wait_ready(&mut self, workers: usize, answer: Resolver<Result<(), Error>>) {
        self.ready_waiters.push((workers, answer));
        self.want_ready();
    }

    /// Answers all callers of `wait_ready` with an error: no worker will become ready.
    pub(crate) fn refuse_ready(&mut self, error: &Error) {
        for (_, answer) in self.ready_waiters.drain(..) {
            answer.resolve(Err(error.clone()));
        }
        self.sizing.want(0);
    }

    /// Tells the sizing how many ready workers callers wait for. Refuses callers that wait for more than
    /// `max`.
    fn want_ready(&mut self) {
        let max = self.sizing.config().max;
        let (possible, beyond): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.ready_waiters).into_iter().partition(|(count, _)| *count <= max);
        for (count, answer) in beyond {
            answer.resolve(Err(Error::InvalidOption(format!("ready({count}): max is {max}"))));
        }
        self.sizing.want(possible.iter().map(|(count, _)| *count).max().unwrap_or(0));
        self.ready_waiters = possible;
    }
}

/// How long the pool waits for the end of a killed worker.
const GIVE_UP: Duration = Duration::from_secs(1);
