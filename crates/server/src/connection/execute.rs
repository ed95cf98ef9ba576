//! What a connection does with the commands that have arrived.

use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use arrayvec::ArrayVec;
use cattlegrid_engine::{
    Context, GetPiece, PREFETCH_MAX, PieceResult, Progress, Rights, ShardLock, Step, Ticket,
};
use cattlegrid_protocol::{Get, Keys, Parsed, Refusal, RefusalCause, Request, reply};
use rustix::net::sockopt::set_socket_send_buffer_size;

use super::input::{Answer, Front, Speaks, Swallow};
use super::login::AUTH_MAX;
use super::runs::Run;
use super::{Connection, Phase, Reason, held};
use crate::commands::{self, ConnectionAction};
use crate::connection::info::Activity;
use crate::dump::SEND_BUFFER_BYTES;
use crate::log;
use crate::shared::Shared;
use crate::turns::{Family, Turn};
use crate::watch::{Record, RecordContent, Topics, Watcher};

/// A command about keys that waits for those parsed with it.
struct ReadyCommand<'i> {
    request: Request<'i>,
    /// The hash of its first key.
    hash: u64,
    /// The length of the command in bytes.
    used: usize,
}

/// Keys of a part of a long `get` that may wait.
const PIECE_KEYS: usize = 1024;

/// The result of a batch of commands.
pub(super) struct Batch {
    /// Bytes of finished commands.
    pub(super) used: usize,
    pub(super) commands: usize,
    /// The last command is not finished and goes on in a later turn.
    pub(super) paused: bool,
}

impl Batch {
    /// One command of which this many bytes are done with; None: it goes on in a later turn.
    fn one(used: Option<usize>) -> Self {
        Self { used: used.unwrap_or(0), commands: 1, paused: used.is_none() }
    }
}

/// A `get` that goes on in the next turn: what is left of it is at the front of the input.
#[derive(Debug, Clone, Copy)]
pub(super) struct PartialGet {
    cas: bool,
    touch: Option<i64>,
    /// Bytes of the keys that are left.
    keys: usize,
    /// The same with the line's end.
    line: usize,
    /// What became of what is not left.
    pub(super) progress: Progress,
}

impl PartialGet {
    /// The request, and the bytes of it.
    fn request<'i>(&self, input: &'i [u8]) -> Parsed<'i> {
        let keys = Keys::of_rest(&input[..self.keys]);
        Parsed::Complete {
            request: Request::Get(Get { keys, cas: self.cas, touch: self.touch }),
            used: self.line,
        }
    }
}

impl Connection {
    /// Executes what has arrived: `shared` if it was received there, or the connection's own buffer.
    pub(crate) fn execute(&mut self, shared: Option<&[u8]>, turn: &mut Turn<'_>) {
        if shared.is_none() && self.input.bytes.len() - self.input.used < self.input.need() {
            // There is nothing to do without receiving.
            self.has_more = false;
            return self.note_upload(true, turn);
        }
        if let Some(auth) = &turn.shared.auth {
            self.renew_rights(auth);
        }
        let own = std::mem::take(&mut self.input.bytes);
        let before = std::mem::take(&mut self.input.used);
        let input = shared.unwrap_or(&own[before..]);
        self.has_more = false;
        if self.is_held() {
            self.replies.set_blocked(false);
        }
        let (received, used) = (input.len(), self.execute_all(input, turn));
        let keeps = used < input.len();
        if keeps {
            if shared.is_none() && (self.has_more || before + used == 0) {
                // Nothing is received before it is used up, or it is the command that was there before.
                (self.input.bytes, self.input.used) = (own, before + used);
            } else {
                self.input.bytes = input[used..].to_vec();
            }
        }
        if keeps || self.input.is_counted || !self.input.is_idle() {
            self.note_upload(used == 0, turn);
        }
        self.show_activity(self.doing());
        if turn.shared.is_watched() && log::enabled(log::Level::Trace) {
            let (fd, state) = (self.info.fd.as_raw_fd(), self.info.state());
            log::trace(format_args!("{fd}: executed {used} of {received} bytes, now {state}"));
        }
        self.publish(turn);
    }

    /// Bytes of a data block are missing, refused or not.
    pub(crate) fn awaits_block(&self) -> bool {
        self.input.awaits_block()
    }

    /// What it does between turns.
    fn doing(&self) -> Activity {
        if self.watcher().is_some() {
            Activity::Watch
        } else if self.input.is_idle() {
            Activity::Read
        } else if self.input.swallows() {
            Activity::Swallow
        } else if self.awaits_block() {
            Activity::Block
        } else {
            Activity::Read
        }
    }

    /// Says to other threads what it does now.
    #[inline]
    pub(super) fn show_activity(&self, doing: Activity) {
        if self.info.doing.load(Relaxed) != doing as u8 {
            self.info.doing.store(doing as u8, Relaxed);
        }
    }

    /// Executes what is in `input`. Returns the bytes that are done with.
    fn execute_all(&mut self, input: &[u8], turn: &mut Turn<'_>) -> usize {
        let (mut used, mut commands) = (0, 0);
        let mut scanned = self.input.begin();
        if input.is_empty() {
            self.go_on_dumping(turn);
        }
        while used < input.len() || self.input.has_arrived() {
            let rest = &input[used..];
            if self.is_delayed() && rest.len() > AUTH_MAX {
                // It is not for us to keep what a guesser sends, whatever else ends it.
                self.closing = Some(Reason::Error);
            }
            if self.is_deaf() {
                // A value that has arrived goes with what is behind it.
                self.input.front = Front::Idle;
                return input.len();
            }
            if self.input.swallows() {
                used += self.drop_swallowed(rest.len(), turn);
                continue;
            }
            if self.input.lacks_end(rest.len()) || !self.may_execute(commands, turn) {
                break;
            }
            let most = turn.shared.settings.requests_per_event - commands;
            let next = self.execute_next(rest, std::mem::take(&mut scanned), most, turn);
            used += next.used;
            commands += next.commands;
            if next.paused {
                break;
            }
        }
        turn.commands += commands;
        used
    }

    /// What it sends is dropped.
    fn is_deaf(&self) -> bool {
        self.closing.is_some_and(|reason| reason != Reason::End) || self.watcher().is_some()
    }

    /// Whether the next command may be looked at in this turn, which has executed `commands`.
    fn may_execute(&mut self, commands: usize, turn: &mut Turn<'_>) -> bool {
        if self.is_dumping() && !self.go_on_dumping(turn) {
            return false;
        }
        if self.is_delayed() {
            // Nothing behind a wrong login is looked at before its answer.
            return false;
        }
        if self.is_held() && !self.may_read_ahead(turn) {
            self.replies.set_blocked(true);
            return false;
        }
        if commands >= turn.shared.settings.requests_per_event || turn.is_full() {
            turn.counters.conn_yields.add(1);
            self.has_more = true;
            return false;
        }
        true
    }

    /// Executes the command at the front of `rest`, and maybe those that follow it, `most` at most.
    fn execute_next(&mut self, rest: &[u8], scanned: usize, most: usize, turn: &mut Turn<'_>) -> Batch {
        if self.input.arriving().is_some() {
            return Batch::one(self.execute_arrived(rest, turn));
        }
        if self.input.speaks == Speaks::Unknown {
            self.input.speaks = Speaks::by(rest[0], turn.shared);
        }
        if matches!(self.phase, Phase::BeforeLogin) {
            let used = self.before_login(rest, turn);
            return Batch::one((used > 0).then_some(used));
        }
        let parsed = match &self.input.front {
            Front::PartialGet(unfinished) => unfinished.request(rest),
            _ => self.parse(rest, scanned, turn.shared),
        };
        match parsed {
            Parsed::Incomplete { need, block } => {
                let taken = if block.is_some() { self.begin_to_arrive(rest, 0, turn.shared) } else { 0 };
                if taken == 0 {
                    let awaits_block = block.is_some();
                    self.input.front = Front::Partial { scanned: rest.len(), need, awaits_block };
                }
                Batch::one((taken > 0).then_some(taken))
            }
            Parsed::Complete { request, used } => {
                let held = self.is_held();
                if held && held::is_barrier(&request) {
                    self.replies.set_blocked(true);
                    return Batch::one(None);
                }
                let Some(hash) = turn.shared.engine.hash(&request) else {
                    self.command_without_key(&request, &rest[..used], turn);
                    return Batch::one(Some(used));
                };
                // While it is held each command is weighed before it is executed.
                let most = if held { 1 } else { most };
                self.execute_keyed(ReadyCommand { request, hash, used }, rest, most, turn)
            }
            Parsed::Refused(refused) => {
                if turn.shared.is_watched() {
                    self.announce(&rest[..refused.used], turn);
                }
                let used = refused.used;
                self.refused(&refused, turn);
                Batch::one(Some(used))
            }
        }
    }

    /// Parses the first command of `input`; a command that its user may not make is refused.
    #[inline]
    pub(super) fn parse<'i>(&self, input: &'i [u8], scanned: usize, shared: &Shared) -> Parsed<'i> {
        if let Some(limited) = &self.limited {
            return self.parse_limited(input, scanned, &limited.rights, shared);
        }
        self.input.speaks.parse(input, scanned, &shared.limits)
    }

    #[cold]
    #[inline(never)]
    fn parse_limited<'i>(
        &self,
        input: &'i [u8],
        scanned: usize,
        rights: &Rights,
        shared: &Shared,
    ) -> Parsed<'i> {
        let parsed = self.input.speaks.parse(input, scanned, &shared.limits);
        if shared.engine.allows_parsed(rights, &parsed) { parsed } else { parsed.not_allowed() }
    }

    /// Drops bytes of a refused command, of which `most` have arrived; how many.
    fn drop_swallowed(&mut self, most: usize, turn: &mut Turn<'_>) -> usize {
        let Front::Swallow(Swallow { left, answer }) = self.input.front else { return 0 };
        let n = most.min(usize::try_from(left).unwrap_or(usize::MAX));
        if let Some(answer) = self.input.swallow(left - n as u64, answer) {
            answer.write(&mut turn.out.bytes);
        }
        // A data block that arrives is no silence, refused or not.
        self.info.last_command.store(turn.now.second, Relaxed);
        n
    }

    /// Executes the command about keys at the front of `input`, and maybe those that follow it, `most` at
    /// most.
    fn execute_keyed(
        &mut self,
        first: ReadyCommand<'_>,
        input: &[u8],
        most: usize,
        turn: &mut Turn<'_>,
    ) -> Batch {
        let mut batch = if first.used == input.len() || most == 1 {
            self.execute_one(&first.request, first.hash, input, first.used, turn)
        } else if self.limited.is_none() {
            self.execute_batch::<false>(first, input, most, turn)
        } else {
            self.execute_batch::<true>(first, input, most, turn)
        };
        if self.input.has_run()
            && let Some(run) = self.hold_run(&input[batch.used..], turn)
        {
            let commands = batch.commands + run.commands - 1;
            batch = Batch { used: batch.used + run.used, commands, paused: run.paused };
        }
        batch
    }

    /// Executes the command at the front of `input`, whose length is `used`.
    fn execute_one(
        &mut self,
        request: &Request<'_>,
        hash: u64,
        input: &[u8],
        used: usize,
        turn: &mut Turn<'_>,
    ) -> Batch {
        let shared = turn.shared;
        if shared.is_watched() && self.is_new() {
            // They are told of each command before it is executed, and not under a shard's lock.
            self.announce(&input[..used], turn);
        }
        let done = self.command(request, hash, &input[..used], &mut shared.engine.shard_lock(), turn);
        Batch { used: done, commands: 1, paused: done < used }
    }

    /// Executes the command at the front of `input` and those about keys that follow it, `most` at most. All
    /// are parsed first, so that what they will read can be fetched while the first ones are executed.
    ///
    /// `LIMITED`: its user may not make all of them. A function of its own for that, since to look at it for
    /// each command makes what was parsed be copied.
    fn execute_batch<'i, const LIMITED: bool>(
        &mut self,
        first: ReadyCommand<'i>,
        input: &'i [u8],
        mut most: usize,
        turn: &mut Turn<'_>,
    ) -> Batch {
        let shared = turn.shared;
        if shared.is_watched() && shared.watchers.wanted().has(Topics::REQUESTS) {
            // They are told of each command before it is executed, and not under a shard's lock.
            if self.is_new() {
                self.announce(&input[..first.used], turn);
            }
            most = 1;
        }
        let mut hashes = ArrayVec::<u64, PREFETCH_MAX>::new();
        let mut ready = ArrayVec::<ReadyCommand<'i>, PREFETCH_MAX>::new();
        let mut parsed = first.used;
        hashes.push(first.hash);
        ready.push(first);
        while ready.len() < most.min(PREFETCH_MAX)
            && parsed < input.len()
            && let Parsed::Complete { request, used } = if LIMITED {
                self.parse(&input[parsed..], 0, shared)
            } else {
                self.input.speaks.parse(&input[parsed..], 0, &shared.limits)
            }
            && let Some(hash) = shared.engine.hash(&request)
        {
            parsed += used;
            hashes.push(hash);
            ready.push(ReadyCommand { request, hash, used });
        }
        let mut lock = shared.engine.shard_lock();
        lock.prefetch(&hashes);
        let mut batch = Batch { used: 0, commands: 0, paused: false };
        for ReadyCommand { request, hash, used } in &ready {
            if batch.commands > 0 && turn.is_full() {
                break;
            }
            batch.commands += 1;
            let done = self.command(request, *hash, &input[batch.used..batch.used + used], &mut lock, turn);
            batch.used += done;
            if done < *used {
                batch.paused = true;
                break;
            }
            if self.is_held() {
                break;
            }
        }
        batch
    }

    /// Executes one command about keys, whose bytes are `text`. Returns how many of them are done with; those
    /// of a `get` that goes on in the next turn stay.
    fn command(
        &mut self,
        request: &Request<'_>,
        hash: u64,
        text: &[u8],
        lock: &mut ShardLock<'_>,
        turn: &mut Turn<'_>,
    ) -> usize {
        let progress = self.input.take_progress();
        match progress {
            Progress::New => self.begin_command(turn),
            Progress::Begun => {}
            // It may wait while an earlier part of it does: wakes tell the two apart by it.
            Progress::Waits(_) => self.requests += 1,
        }
        let family = Family::of(request);
        // Of a run of gets that a no-op ends, it is the gets that take time.
        if family != Family::Other {
            turn.family = family;
        }
        self.input.expects_pages = family == Family::Store && turn.shared.engine.stores_in_pages(request);
        let is_get_of_run = matches!(request, Request::PacketGet(_) | Request::MetaGet(_));
        if is_get_of_run && self.joins_run(request) {
            return if self.get_of_run(request, hash, text.len(), lock, turn) { text.len() } else { 0 };
        }
        if !matches!(self.run, Run::None) {
            self.leave_run();
        }
        self.input.take_run();
        let piece = GetPiece { progress, bytes: turn.output_bytes, keys: turn.shared.caps.turn_keys };
        let (shared, mut cx) = self.context(turn);
        let parked = if let Request::Get(get) = request {
            match shared.engine.get(get, hash, piece, lock, &mut cx) {
                PieceResult::Done => None,
                PieceResult::Parked(parked) => Some(parked),
                PieceResult::ParkedMore(parked, left) => {
                    let since_ms = parked.since_ms();
                    let progress = since_ms.map_or(Progress::Begun, Progress::Waits);
                    let done = text.len() - self.put_off(get, &left, progress, text);
                    self.park(parked, done, turn);
                    self.go_on_behind(since_ms.is_some());
                    return done;
                }
                PieceResult::More(left) => {
                    let is_waiting = matches!(progress, Progress::Waits(_));
                    let progress = if is_waiting { progress } else { Progress::Begun };
                    let line = self.put_off(get, &left, progress, text);
                    if self.is_held() {
                        self.replies.push(turn.out, turn.now.ms);
                        self.go_on_behind(is_waiting);
                    } else {
                        self.has_more = true;
                        self.replies.set_blocked(false);
                    }
                    return text.len() - line;
                }
            }
        } else {
            shared.engine.execute(request, hash, lock, &mut cx)
        };
        if let Some(parked) = parked {
            self.park(parked, text.len(), turn);
        }
        text.len()
    }

    /// The command at the front has not been looked at before.
    fn is_new(&self) -> bool {
        !matches!(self.input.front, Front::PartialGet(_) | Front::Run { .. })
    }

    #[inline]
    pub(super) fn begin_command(&mut self, turn: &Turn<'_>) {
        self.requests += 1;
        self.info.last_command.store(turn.now.second, Relaxed);
    }

    /// What is left of a `get`, or of a run, comes next. Behind a request that waits its output would only
    /// pile up, and it is executed when that was answered, unless a loader computes the values (`at_once`):
    /// then their jobs must begin, as far as there is room.
    pub(super) fn go_on_behind(&mut self, at_once: bool) {
        let is_full = self.replies.is_full(self.requests, self.read_ahead, self.read_ahead_bytes);
        self.has_more = at_once && !is_full && self.session.can_wait_for(PIECE_KEYS);
        self.replies.set_blocked(!self.has_more);
    }

    /// Leaves the keys that are left of a `get` for another turn. Returns the bytes of its line that stay.
    fn put_off(&mut self, get: &Get<'_>, left: &Keys<'_>, progress: Progress, text: &[u8]) -> usize {
        let keys = left.rest().len();
        let line = keys + if text.ends_with(b"\r\n") { 2 } else { 1 };
        self.input.front =
            Front::PartialGet(PartialGet { cas: get.cas, touch: get.touch, keys, line, progress });
        line
    }

    fn command_without_key(&mut self, request: &Request<'_>, line: &[u8], turn: &mut Turn<'_>) {
        self.begin_command(turn);
        if turn.shared.is_watched() {
            self.announce(line, turn);
        }
        self.leave_run();
        if let Request::Packet(packet, command) = request {
            return self.packet_command(*packet, command, turn);
        }
        self.show_activity(Activity::Execute);
        let Request::Admin(admin) = request else {
            return turn.out.bytes.extend_from_slice(reply::MN);
        };
        match commands::admin(admin, self.token, turn) {
            ConnectionAction::GoOn => {}
            ConnectionAction::Close => self.close(Reason::Quit),
            ConnectionAction::Watch(topics) => self.watch(topics, turn),
            ConnectionAction::Dump(dump) => {
                // Without it a slow reader may be taken for a silent one.
                let _as_it_was = set_socket_send_buffer_size(&self.info.fd, SEND_BUFFER_BYTES);
                self.phase = Phase::Dumping(Box::new(dump));
            }
        }
    }

    pub(super) fn refused(&mut self, refused: &Refusal<'_>, turn: &mut Turn<'_>) {
        self.info.last_command.store(turn.now.second, Relaxed);
        let answer = self.input.swallow(refused.swallow, Answer::of(refused));
        match refused.cause {
            RefusalCause::Grammar => {}
            RefusalCause::TooLarge => turn.counters.store_too_large.add(1),
            RefusalCause::NoMemory => turn.counters.store_no_memory.add(1),
            RefusalCause::NotAllowed(command) => self.note_not_allowed(command, turn),
        }
        self.leave_run();
        if let Some(store) = &refused.store
            && let Some(key) = store.key()
        {
            let too_large = refused.cause == RefusalCause::TooLarge;
            let (shared, mut cx) = self.context(turn);
            shared.engine.note_refused(key.bytes(), store.verb, store.classic, too_large, &mut cx);
        }
        if let Some(key) = refused.invalidated() {
            let (shared, mut cx) = self.context(turn);
            shared.engine.invalidate(key.bytes(), refused.token, refused.drops_old(), &mut cx);
        }
        if let Some(answer) = answer {
            answer.write(&mut turn.out.bytes);
        }
        if refused.close {
            self.log_broken();
            self.close(Reason::Error);
        }
    }

    fn watch(&mut self, topics: Topics, turn: &mut Turn<'_>) {
        let limit = turn.shared.settings.watcher_buffer_bytes;
        let watcher = Arc::new(Watcher::new(topics, turn.lane, self.token, limit));
        if !turn.shared.watchers.add(Arc::clone(&watcher)) {
            return reply::line(&mut turn.out.bytes, "WATCHER_TOO_MANY log watcher limit reached");
        }
        turn.shared.note_watched();
        turn.out.bytes.extend_from_slice(reply::OK);
        self.phase = Phase::Watching(watcher);
    }

    /// True when the dump is finished.
    fn go_on_dumping(&mut self, turn: &mut Turn<'_>) -> bool {
        let Phase::Dumping(dump) = &mut self.phase else { return true };
        let done = dump.resume(&turn.shared.engine, turn.now, &mut turn.out.bytes);
        if done {
            self.phase = Phase::Serving;
        }
        done
    }

    pub(super) fn context<'t>(&'t mut self, turn: &'t mut Turn<'_>) -> (&'t Shared, Context<'t>) {
        let context = Context {
            step: Step {
                now: turn.now,
                counters: turn.counters,
                interest: turn.interest,
                effects: turn.effects,
            },
            ticket: Ticket { connection: self.info.number, request: self.requests },
            session: &mut self.session,
            out: turn.out,
        };
        (turn.shared, context)
    }

    /// Tells watchers and counts prefixes.
    pub(super) fn publish(&self, turn: &mut Turn<'_>) {
        turn.shared.publish(self.info.fd.as_raw_fd(), turn.lane, turn.stands_for, turn.effects);
    }

    /// Tells watchers and the log of a request, of which only the line is shown, if any want it.
    #[cold]
    pub(super) fn announce(&self, request: &[u8], turn: &Turn<'_>) {
        let wanted = turn.shared.watchers.wanted();
        if !wanted.has(Topics::REQUESTS) {
            return;
        }
        let line = match self.input.speaks {
            Speaks::Binary => crate::wire_log::packet_head(request),
            _ => crate::wire_log::first_line(request),
        };
        if wanted.has(Topics::LOG) {
            crate::wire_log::request(self.info.fd.as_raw_fd(), line);
        }
        if !wanted.has(Topics::RAW_COMMANDS) {
            return;
        }
        let what = RecordContent::Command(line.into());
        let record = Record { time: crate::time::unix_now(), fd: self.info.fd.as_raw_fd(), what };
        turn.shared.record(turn.lane, record);
    }
}
