//! A lane, one of the threads that serve connections: a poller, the connections it serves, and the loop that
//! gives each its turns.
//!
//! ```text
//!   wait ──▶ ready ──▶ batch: receive all ──▶ execute all ──▶ send all ──▶ rearm ──▶ next batch
//! ```
//! [`Turns`] has the order of service. A connection that waits for its turn and is reported by the poller all the same is
//! not waited for any more until it has no work left.
//!
//! With many connections ready their turns are taken in step, which keeps the kernel's code and then ours in
//! the processor's caches; with few each is finished at once, which answers it sooner.
//!
//! What becomes of requests that wait comes as wakes: from the turns of this lane's connections, or from
//! other lanes by the inbox. Those for connections here are answered in the same round, the others are handed
//! on, in one message for each lane. A wake for a connection that has gone is dropped: closing it has passed
//! on what was its.

use std::collections::BTreeSet;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use cattlegrid_engine::{Effects, Interest, Now, Output, Wake};
use cattlegrid_protocol::{BINARY_MAGIC, Parsed, parse, parse_packet};

use crate::acceptor::ListeningSocket;
use crate::calls::Calls;
use crate::connection::info::ConnectionInfo;
use crate::connection::{Connection, Reason, ReceiveResult};
use crate::lane::handle::Message;
use crate::loading;
use crate::log;
use crate::poller::{Poller, Wish};
use crate::ring::Ring;
use crate::shared::Shared;
use crate::turns::{BATCH, Family, Samplers, Turn, Turns, output_bytes};
use crate::watch::{Record, RecordContent, Topics};
use by_ring::{make_ring, send_by_ring};
use leave::Draining;

mod accept;
mod by_ring;
mod deadlines;
pub(crate) mod handle;
mod leave;
mod room;

/// Runs a lane, which accepts connections from `sockets`, until it is told to leave.
///
/// # Errors
/// The system's, when the poller cannot be made or fails.
pub(crate) fn run(
    shared: &Arc<Shared>,
    number: usize,
    sockets: Arc<[ListeningSocket]>,
) -> std::io::Result<()> {
    let mut lane = Lane::new(shared, number)?;
    lane.accept_from(sockets)?;
    while lane.round(lane.timeout())? {}
    Ok(())
}

pub(crate) struct Lane<'a> {
    shared: &'a Shared,
    number: usize,
    poller: Poller,
    ring: Ring,
    /// By the low half of their token.
    connections: Vec<Option<Box<Connection>>>,
    free: Vec<usize>,
    /// The buffer into which all connections receive.
    input: Vec<u8>,
    /// One for each connection of a batch.
    outputs: Vec<Output>,
    effects: Effects,
    sampler: Samplers,
    /// Calls of objects that have steps left here.
    calls: Calls,
    /// Calls have taken their share of the last round.
    had_calls: bool,
    /// Connections that have something to do.
    turns: Turns,
    /// What the poller has reported.
    ready: Vec<u64>,
    /// Where it accepts connections; nowhere once it leaves.
    sockets: Arc<[ListeningSocket]>,
    /// The poller has the listeners.
    listens: bool,
    /// Listeners at which clients wait.
    ready_sockets: Vec<usize>,
    /// How many connections it accepts from a listener in a round.
    accepts: usize,
    /// When a request of a connection has waited long enough, in milliseconds, and the connection's token.
    deadlines: BTreeSet<(u64, u64)>,
    /// When deadlines were first seen that were missed for a stop of the process, in milliseconds.
    late_since_ms: Option<u64>,
    last_idle_check: u32,
    /// Second of the last look for connections that do not take their replies.
    last_unsent_check: u32,
    /// A connection here keeps output that its client has not taken, or did when that was last looked at.
    has_unsent: bool,
    /// The requests that wait and must be answered before the lane leaves.
    draining: Option<Draining>,
    /// When to leave at the latest.
    leaving: Option<Instant>,
}

/// The waker's token; below it are those of listeners. Connections' have other low halves.
const WAKER: u64 = u64::MAX;
/// Checks of each second that are further apart, in seconds: the process was stopped between them.
const STOPPED_S: u32 = 2;

impl<'a> Lane<'a> {
    /// A lane without connections.
    ///
    /// # Errors
    /// The system's, when the poller cannot be made.
    pub(crate) fn new(shared: &'a Shared, number: usize) -> std::io::Result<Self> {
        let poller = Poller::new()?;
        poller.add(&shared.lanes[number].waker, WAKER, Wish::Read)?;
        Ok(Self {
            shared,
            number,
            poller,
            ring: if shared.settings.io_uring { make_ring(shared) } else { Ring::default() },
            connections: Vec::new(),
            free: Vec::new(),
            input: vec![0; shared.caps.receive_bytes],
            outputs: (0..BATCH).map(|_| Output::default()).collect(),
            effects: Effects::default(),
            sampler: Samplers::new(shared.settings.admin.is_some()),
            calls: Calls::default(),
            had_calls: false,
            turns: Turns::default(),
            ready: Vec::new(),
            sockets: Arc::new([]),
            listens: false,
            ready_sockets: Vec::new(),
            accepts: 1,
            deadlines: BTreeSet::new(),
            late_since_ms: None,
            last_idle_check: 0,
            last_unsent_check: 0,
            has_unsent: false,
            draining: None,
            leaving: None,
        })
    }

    /// Waits, at most for `timeout`, and serves what is ready. False: it has left.
    ///
    /// # Errors
    /// The system's, when the poller fails.
    pub(crate) fn round(&mut self, timeout: Option<Duration>) -> std::io::Result<bool> {
        let mut ready = std::mem::take(&mut self.ready);
        let some_wait = !self.turns.is_empty();
        self.poller.wait(timeout, |token| ready.push(token))?;
        let (mut woken, reported) = (false, ready.len());
        for token in ready.drain(..) {
            if token == WAKER {
                woken = true;
            } else if let Some(listener) = listener(token, &self.sockets) {
                self.ready_sockets.push(listener);
            } else if !(some_wait && self.is_known(token)) {
                self.turns.ready(token);
            }
        }
        self.ready = ready;
        if self.ready_sockets.is_empty() {
            self.accepts = 1;
        } else {
            self.accept(reported - self.ready_sockets.len());
        }
        self.effects.begin_round(self.had_calls && !self.calls.is_empty());
        self.turns.begin();
        loop {
            let batch = self.turns.next();
            if batch.is_empty() {
                break;
            }
            let work = self.serve(&batch);
            self.turns.done(work);
            if self.shared.is_too_much_pinned() {
                // What is stored here leaves the store elsewhere: the keepers need not have had a turn.
                self.make_room();
            }
            self.pass_on_effects();
        }
        for token in self.turns.end() {
            if let Some(connection) = at_token(&mut self.connections, token) {
                connection.queued = true;
            }
        }
        if woken {
            self.shared.lanes[self.number].answer();
        }
        if woken && self.read_inbox() {
            return Ok(false);
        }
        if woken && !self.listens && self.shared.acceptor.is_open() {
            self.listen();
        }
        self.handle_deadlines();
        // A round has time for a call that takes long.
        if !self.calls.is_empty() && !self.effects.is_past_call_time() {
            self.calls.advance(self.shared, self.number, &mut self.effects);
        }
        self.had_calls = self.effects.is_past_call_time();
        self.check_idle();
        self.give_up_memory();
        if self.has_unsent {
            self.check_unsent();
        }
        self.pass_on_effects();
        if self.draining.is_some() || self.leaving.is_some() {
            self.drain_if_due();
            return Ok(!self.has_left());
        }
        Ok(true)
    }

    /// Walks the connections, for tests.
    ///
    /// # Panics
    /// When a buffer is larger than its connection may have, or is not counted.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn verify(&self) {
        let unsent: usize =
            self.connections.iter().flatten().map(|connection| connection.verify(self.shared)).sum();
        assert_eq!(self.shared.unsent.bytes(), unsent, "the only lane's");
        assert_eq!(self.shared.is_input_scarce(), self.shared.uploads.is_scarce(), "it is noted");
    }

    /// Whether a connection that the poller reports waits for its turn already. Then it is not reported again
    /// for now.
    fn is_known(&mut self, token: u64) -> bool {
        let Some(connection) = at_token(&mut self.connections, token) else { return true };
        if connection.queued && connection.polled == Wish::Read {
            // A failure is found when it is read.
            let modified = self.poller.modify(connection.fd(), token, Wish::Nothing);
            connection.polled = if modified.is_ok() { Wish::Nothing } else { Wish::Read };
        }
        connection.queued
    }

    /// For how long to wait at most.
    fn timeout(&self) -> Option<Duration> {
        if !self.turns.is_empty() || !self.calls.is_empty() {
            return Some(Duration::ZERO);
        }
        let tick = self.leaving.is_some() || self.shared.settings.idle_timeout.is_some() || self.has_unsent;
        let tick = tick
            .then(|| if self.leaving.is_some() { Duration::from_millis(20) } else { Duration::from_secs(1) });
        let Some(due) = self.due_ms() else { return tick };
        // The time now is rounded down, so that it is due when this has passed. What is due and still there
        // is another thread's: this one looks again, but does not spin.
        let wait = Duration::from_millis(due.saturating_sub(self.now().ms).max(1));
        Some(tick.map_or(wait, |tick| tick.min(wait)))
    }

    /// When the first request of this lane's connections has waited long enough, or the first lease ends.
    fn due_ms(&self) -> Option<u64> {
        let first = self.deadlines.first().map(|(at, _)| *at);
        let timeout = self.shared.engine.next_timeout_ms();
        first.into_iter().chain(timeout).min()
    }

    /// Ends what is due.
    fn handle_deadlines(&mut self) {
        if let Some(due) = self.due_ms() {
            let now = self.now();
            if due <= now.ms {
                return self.end_due(due, now);
            }
        }
        // What has arrived has ended what was late.
        self.late_since_ms = None;
    }

    fn now(&self) -> Now {
        self.shared.now_at(self.shared.clock.now())
    }

    /// One turn for each of a batch of connections. Returns how many commands, or keys of gets, that was.
    fn serve(&mut self, tokens: &[u64]) -> usize {
        // Many that have work left must not keep much unread.
        let caps = &self.shared.caps;
        let most = if self.shared.is_input_scarce() {
            caps.scarce_receive_bytes
        } else if self.turns.is_crowded() {
            caps.receive_room_bytes
        } else {
            usize::MAX
        };
        let Self { shared, connections, input, outputs, effects, number, ring, sampler, .. } = self;
        let counters = &shared.lanes[*number].counters;
        let began = shared.clock.now();
        let mut now = shared.now_at(began);
        shared.look_at_memory(now.ms);
        let scarce = shared.is_output_scarce();
        let output_bytes = output_bytes(shared, scarce);
        let mut received = [(ReceiveResult::Nothing, 0); BATCH];
        let mut at = 0;
        let mut count = tokens.len();
        for (i, token) in tokens.iter().enumerate() {
            if input.len() - at < shared.caps.receive_room_bytes {
                count = i;
                break;
            }
            let Some(connection) = at_token(connections, *token) else { continue };
            connection.queued = false;
            if (scarce || connection.waits_for_room()) && !connection.may_be_read(shared) {
                continue;
            }
            let end = input.len().min(at.saturating_add(most));
            received[i] = (connection.receive(&mut input[at..end], shared, counters), at);
            if let (ReceiveResult::Shared(n), _) = received[i] {
                at = (at + n).next_multiple_of(64).min(input.len());
            }
        }
        // What was received may have come after the time was read.
        if shared.engine.shared().follows() {
            shared.clock.notice_suspension();
            shared.engine.shared().pass_time(shared.clock.millis());
        }
        prefetch(shared, input, &received[..count]);
        let mut work = 0;
        let mut samples = ArrayVec::<(Family, u32), BATCH>::new();
        for i in 0..count {
            let Some(connection) = at_token(connections, tokens[i]) else { continue };
            let stands_for = sampler.next_turn();
            let mut turn = Turn {
                shared,
                lane: *number,
                counters,
                now,
                interest: interest_of(shared, stands_for),
                output_bytes,
                gets: counters.cmd_get.get(),
                calls_ns: effects.calls_ns(),
                family: Family::Other,
                stands_for,
                commands: 0,
                out: &mut outputs[i],
                effects,
            };
            match received[i] {
                (ReceiveResult::Shared(n), at) => connection.execute(Some(&input[at..at + n]), &mut turn),
                (ReceiveResult::Own, _) => connection.execute(None, &mut turn),
                (ReceiveResult::NoMemory, _) => connection.refuse_upload(false, &mut turn),
                (ReceiveResult::Nothing, _) => {}
            }
            if connection.is_held() {
                connection.answer_held(&mut turn);
                if turn.out.is_empty() && received[i].0 != ReceiveResult::Nothing {
                    connection.acknowledge();
                }
            }
            work += turn.work();
            let held = connection.is_held();
            samples.extend(sampler.after(turn.commands, held, turn.family, stands_for, now.second));
            now = turn.now;
        }
        let taken = if count > 1 && ring.is_open() {
            send_by_ring(shared, ring, connections, &tokens[..count], outputs)
        } else {
            [None; BATCH]
        };
        for i in 0..count {
            if let Some(connection) = at_token(connections, tokens[i]) {
                match taken[i] {
                    Some(taken) => connection.sent(taken, &mut outputs[i], shared, now.ms, counters),
                    None => connection.send(&mut outputs[i], shared, now.ms, counters),
                }
                outputs[i].bytes.shrink_to(OUTPUT_KEPT);
            }
        }
        record_latency(shared, *number, began, &samples);
        tokens[..count].iter().for_each(|token| self.rearm(*token));
        if count < tokens.len() {
            // The buffer was full: the others were not received from yet, and have their own batch.
            work += self.serve(&tokens[count..]);
        }
        work
    }

    /// After a turn: what to wait for next, or the end.
    fn rearm(&mut self, token: u64) {
        let Some(connection) = at_token(&mut self.connections, token) else { return };
        if let Some(reason) = connection.closed() {
            return self.close(token, reason);
        }
        if self.shared.is_memory_short() && connection.buffer_bytes() > 0 {
            return self.close_for_memory(token);
        }
        if connection.is_held()
            || connection.info.held.load(Relaxed)
            || connection.is_delayed()
            || connection.deadline_ms.is_some()
            || connection.waits_for_run()
        {
            note_held(connection, &mut self.deadlines);
        }
        if let Some(watcher) = connection.watcher()
            && !connection.is_stuck()
            && watcher.has_lines()
        {
            // They came while it was stuck, or as the last ones were taken.
            self.shared.tell_of_lines(watcher);
        }
        let wish = connection.wish();
        if wish != connection.polled {
            connection.polled = wish;
            connection.info.writing.store(wish == Wish::Write, Relaxed);
            let now_ms = self.shared.now_at(self.shared.clock.now()).ms;
            if wish == Wish::Write && !connection.settle_input(self.number, self.shared, now_ms) {
                return self.close(token, Reason::Unread);
            }
            if self.poller.modify(connection.fd(), token, wish).is_err() {
                return self.close(token, Reason::Error);
            }
        }
        if connection.has_more() && !connection.queued {
            connection.queued = true;
            self.turns.again(token);
        }
        if connection.has_unsent() {
            self.has_unsent = true;
            if connection.count_unsent(self.shared) {
                self.make_room();
            }
        }
    }

    /// Lets a connection act outside of the turns that its socket causes, and sends the replies.
    fn act(&mut self, token: u64, now: Now, act: impl FnOnce(&mut Connection, &mut Turn<'_>)) {
        let Self { shared, connections, outputs, effects, number, .. } = self;
        let Some(connection) = at_token(connections, token) else { return };
        let mut turn = Turn::new(shared, *number, now, &mut outputs[0], effects);
        act(connection, &mut turn);
        connection.send(turn.out, turn.shared, now.ms, turn.counters);
        turn.out.bytes.shrink_to(OUTPUT_KEPT);
        self.rearm(token);
    }

    /// Passes on what turns have left for others: ends of waits, then orders for loaders and calls of
    /// objects, all of them at once.
    fn pass_on_effects(&mut self) {
        if self.effects.has_wakes() {
            self.deliver();
        }
        if self.effects.has_loads() {
            self.shared.loaders.submit(self.number, self.effects.take_loads());
        }
        if self.effects.has_calls() {
            self.calls.take(self.shared, self.number, &mut self.effects);
        }
        if self.effects.has_lines() {
            self.log_lines();
        }
    }

    /// Lines of methods of objects, as a line of the log each.
    #[cold]
    fn log_lines(&mut self) {
        for line in self.effects.take_lines() {
            log::notice(format_args!("objects: {line}"));
        }
    }

    /// Tells requests that wait what became of their keys, and answers those that wait no more.
    #[cold]
    fn deliver(&mut self) {
        // Answering may close a connection, and that wakes others.
        while self.effects.has_wakes() {
            let now = self.now();
            let mut woken = Vec::new();
            let mut others: Vec<Vec<Wake>> = Vec::new();
            for wake in self.effects.take_wakes() {
                let (lane, token) = (wake.caller.lane(), wake.caller.token());
                if lane != self.number {
                    others.resize_with(self.shared.lanes.len(), Vec::new);
                    others[lane].push(wake);
                } else if let Some(connection) = at_token(&mut self.connections, token)
                    && connection.info.number == wake.caller.number()
                {
                    connection.wake(wake, now, &self.shared.lanes[self.number].counters);
                    woken.push(token);
                }
            }
            for (lane, wakes) in others.into_iter().enumerate().filter(|(_, wakes)| !wakes.is_empty()) {
                self.shared.lanes[lane].tell(Message::Wakes(wakes));
            }
            for token in woken {
                self.act(token, now, Connection::answer_held);
            }
        }
    }

    /// Reads what other threads have sent. True: leave at once.
    fn read_inbox(&mut self) -> bool {
        for message in self.shared.lanes[self.number].take_messages() {
            match message {
                Message::Serve(info) => {
                    self.open(info);
                }
                Message::Lines(token) => self.send_lines(token),
                Message::Wakes(wakes) => self.effects.add_wakes(wakes),
                Message::Calls(calls) => self.calls.add(calls),
                Message::Loaded(all) => {
                    loading::finish_loads(all, self.shared, self.number, &mut self.effects);
                }
                Message::GiveWay { token, upload } => self.give_way(token, upload),
                Message::EndDump(token) => self.end_dump(token),
                Message::ReturnHeap => crate::sys::return_own_heap(),
                Message::MakeRoom => {
                    self.shared.unsent.others_asked();
                    self.make_room();
                }
                Message::Rights => self.apply_rights(),
                Message::Drain => {
                    self.leave_listeners();
                    self.begin_to_leave();
                }
                Message::Stop => {
                    self.leave_listeners();
                    self.close_all();
                    return true;
                }
            }
        }
        false
    }

    /// An upload of a connection here gives way, if it is still there.
    #[cold]
    fn give_way(&mut self, token: u64, upload: u64) {
        self.act(token, self.now(), |connection, turn| {
            connection.give_way(upload, turn);
            if connection.is_held() {
                connection.answer_held(turn);
            }
        });
    }

    /// While memory is short: closes the connection that keeps most.
    fn give_up_memory(&mut self) {
        if !self.shared.is_memory_short() {
            return;
        }
        self.shared.look_at_memory(self.now().ms);
        let largest = self.connections.iter().flatten().max_by_key(|connection| connection.buffer_bytes());
        if let Some(token) = largest.filter(|connection| connection.buffer_bytes() > 0).map(|c| c.token) {
            self.close_for_memory(token);
        }
    }

    /// Memory is short: takes the buffers of a connection.
    #[cold]
    fn close_for_memory(&mut self, token: u64) {
        let Some(connection) = at_token(&mut self.connections, token) else { return };
        if connection.has_upload() {
            // Its command is what needs the memory: that is refused, and the connection goes on.
            return self.act(token, self.now(), |connection, turn| {
                connection.refuse_upload(false, turn);
                if connection.is_held() {
                    connection.answer_held(turn);
                }
            });
        }
        self.shared.shortage.refused.fetch_add(1, Relaxed);
        log::info(format_args!("{}: closed, the system has no memory for it", connection.info.peer()));
        connection.tell_no_memory();
        self.close(token, Reason::Error);
    }

    /// Closes a connection whose dump is not read, unless it was read meanwhile.
    #[cold]
    fn end_dump(&mut self, token: u64) {
        let Some(connection) = at_token(&mut self.connections, token) else { return };
        if connection.is_dumping() && connection.is_stuck() {
            self.shared.dumps.stalled.fetch_add(1, Relaxed);
            log::info(format_args!("{}: closed, it does not read its dump", connection.info.peer()));
            self.close(token, Reason::Error);
        }
    }

    /// Closes connections that are shown what their users may not see any more.
    #[cold]
    fn apply_rights(&mut self) {
        let tokens: Vec<u64> = self.connections.iter().flatten().map(|connection| connection.token).collect();
        for token in tokens {
            self.act(token, self.now(), |connection, turn| connection.apply_rights(turn.shared));
        }
    }

    /// Serves a new connection; its token.
    fn open(&mut self, info: Arc<ConnectionInfo>) -> Option<u64> {
        let slot = self.free.pop().unwrap_or(self.connections.len());
        if slot == self.connections.len() {
            self.connections.push(None);
        }
        // The high half tells connections apart that have the same slot one after the other.
        let token = (info.number & 0xffff_ffff) << 32 | slot as u64;
        let opened = Connection::new(Arc::clone(&info), self.number, token, self.shared);
        let connection = match opened {
            Ok(connection) => connection,
            Err(error) => {
                log::warning(format_args!("{}: {error}", info.peer()));
                self.free.push(slot);
                self.shared.forget(self.number, info);
                return None;
            }
        };
        if let Err(error) = self.poller.add(connection.fd(), token, Wish::Read) {
            log::warning(format_args!("{}: {error}", info.peer()));
            self.free.push(slot);
            connection.discard(self.shared);
            drop(connection);
            self.shared.forget(self.number, info);
            return None;
        }
        self.connections[slot] = Some(Box::new(connection));
        self.tell_of(&info, None);
        if self.leaving.is_some() {
            self.close(token, Reason::Shutdown);
            return None;
        }
        Some(token)
    }

    fn close(&mut self, token: u64, reason: Reason) {
        let slot = slot(token);
        let Some(mut connection) = self.connections[slot].take() else { return };
        if let Some(at) = connection.deadline_ms {
            self.deadlines.remove(&(at, token));
        }
        let now = self.now();
        let Self { shared, outputs, effects, number, .. } = self;
        let mut turn = Turn::new(shared, *number, now, &mut outputs[0], effects);
        connection.leave(reason, &mut turn);
        connection.hang_up(&mut self.input);
        self.free.push(slot);
        self.tell_of(&connection.info, Some(reason));
        // The poller forgets it when its descriptor closes, at the end of this: nothing else holds it then.
        let info = Arc::clone(&connection.info);
        drop(connection);
        self.shared.forget(self.number, info);
    }

    /// Tells watchers of a connection's beginning or end.
    fn tell_of(&self, info: &ConnectionInfo, closed: Option<Reason>) {
        if log::enabled(log::Level::Debug) {
            let what = if closed.is_some() { "closed" } else { "opened" };
            log::debug(format_args!("<{} {what} {}", info.fd.as_raw_fd(), info.peer()));
        }
        if !self.shared.watchers.wanted().has(Topics::CONNECTIONS) {
            return;
        }
        let unix = matches!(info.listener.address, crate::listen::Address::Unix(_));
        let (peer, closed) = (info.peer().to_string().into(), closed.map(Reason::name));
        let what = RecordContent::Connection { peer, unix, closed };
        let record = Record { time: crate::time::unix_now(), fd: info.fd.as_raw_fd(), what };
        self.shared.record(self.number, record);
    }

    fn send_lines(&mut self, token: u64) {
        let now_ms = self.now().ms;
        let counters = &self.shared.lanes[self.number].counters;
        let Some(connection) = at_token(&mut self.connections, token) else { return };
        let Some(watcher) = connection.watcher().cloned() else { return };
        // While it is stuck the lines stay with the watcher, whose buffer has a limit.
        if !connection.is_stuck() {
            let out = &mut self.outputs[0];
            out.bytes.extend_from_slice(&watcher.take());
            connection.send_unlogged(out, &self.shared.caps, now_ms, counters);
        }
        self.rearm(token);
    }

    fn close_all(&mut self) {
        let tokens: Vec<u64> = self.connections.iter().flatten().map(|c| c.token).collect();
        for token in tokens {
            self.close(token, Reason::Shutdown);
        }
        self.deliver();
        self.calls.drop_all(self.shared);
    }

    /// Once a second, with `-o idle_timeout`: closes connections that have been silent for this time, that
    /// have been sent all replies, and of whose commands no data block is missing.
    fn check_idle(&mut self) {
        let Some(limit) = self.shared.settings.idle_timeout else { return };
        let second = self.shared.clock.seconds();
        let since = second.saturating_sub(std::mem::replace(&mut self.last_idle_check, second));
        // After a stop of the process what was sent meanwhile is served first.
        if since == 0 || since > STOPPED_S {
            return;
        }
        let limit = u32::try_from(limit.as_secs()).unwrap_or(u32::MAX);
        let idle: Vec<u64> = self
            .connections
            .iter()
            .flatten()
            .filter(|c| {
                c.watcher().is_none()
                    && !c.is_held()
                    && !c.is_stuck()
                    && !c.has_more()
                    && !c.awaits_block()
                    && second.saturating_sub(c.info.last_command.load(Relaxed)) > limit
            })
            .map(|c| c.token)
            .collect();
        for token in idle {
            self.shared.gauges.idle_kicks.fetch_add(1, Relaxed);
            self.close(token, Reason::Idle);
        }
    }
}

/// Keeps the books of a connection that is held, or was until now.
#[cold]
fn note_held(connection: &mut Connection, deadlines: &mut BTreeSet<(u64, u64)>) {
    connection.info.held.store(connection.is_held(), Relaxed);
    let deadline = connection.next_deadline_ms();
    if deadline != connection.deadline_ms {
        connection.deadline_ms.map(|at| deadlines.remove(&(at, connection.token)));
        deadlines.extend(deadline.map(|at| (at, connection.token)));
        connection.deadline_ms = deadline;
    }
}

/// What is longer is probably several requests or keys: for them this is done when they are executed.
const SINGLE_MAX: usize = 512;

/// Fetches ahead what the first request of each connection will read. To parse and hash it twice costs less
/// than to wait for memory. A connection whose first bytes are the rest of something gets a useless one, no
/// more.
fn prefetch(shared: &Shared, input: &[u8], received: &[(ReceiveResult, usize)]) {
    // Of so few the look-ups come too soon: see `ShardLock::prefetch`.
    if received.len() < 3 {
        return;
    }
    let mut hashes = ArrayVec::<u64, BATCH>::new();
    for (received, at) in received {
        if let ReceiveResult::Shared(n @ ..=SINGLE_MAX) = received
            && let input = &input[*at..at + n]
            && let Parsed::Complete { request, .. } = match input.first() {
                Some(&BINARY_MAGIC) => parse_packet(input, &shared.limits),
                _ => parse(input, &shared.limits),
            }
            && let Some(hash) = shared.engine.hash(&request)
        {
            hashes.push(hash);
        }
    }
    shared.engine.shard_lock().prefetch(&hashes);
}

/// The listener that a token stands for.
fn listener(token: u64, sockets: &[ListeningSocket]) -> Option<usize> {
    let number = (WAKER - 1).checked_sub(token)? as usize;
    (number < sockets.len()).then_some(number)
}

/// Which events a turn notes: for hot keys all reads and writes.
#[inline]
fn interest_of(shared: &Shared, stands_for: u32) -> Interest {
    let wanted = shared.interest();
    if stands_for > 0 { wanted.with(Interest::FETCHERS).with(Interest::MUTATIONS) } else { wanted }
}

/// Records the times of turns that were sampled; their requests were received no earlier than `began`.
fn record_latency(shared: &Shared, lane: usize, began: Instant, samples: &[(Family, u32)]) {
    if samples.is_empty() {
        return;
    }
    let took = shared.clock.now().saturating_duration_since(began);
    let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    for (family, weight) in samples {
        shared.lanes[lane].latency.record(*family, *weight, ns);
    }
}

/// Bytes of an output buffer kept for the next turn.
const OUTPUT_KEPT: usize = 128 << 10;

fn slot(token: u64) -> usize {
    (token & 0xffff_ffff) as usize
}

fn at_token(connections: &mut [Option<Box<Connection>>], token: u64) -> Option<&mut Connection> {
    connections.get_mut(slot(token))?.as_deref_mut().filter(|c| c.token == token)
}
