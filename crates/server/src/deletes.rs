//! `cattlegrid follow FILE --to SERVERS`: deletes keys on memcached servers, from the log of a database.
//!
//! ```text
//!   database ──▶ Source ──▶ OrderSink (a Node) ──▶ Queues ──▶ link.rs, a task for each server ──▶ memcached
//!                  ▲            │ position                    │ replies
//!                  └────────────┴─────────────────────────────┘
//! ```
//!
//! All of it runs on one thread. A delete is idempotent, so deletes without a known result are repeated:
//! after a connection ended, and when the database sends a transaction again.
//!
//! # Invariants
//! * With a permanent slot, a transaction is acknowledged when every server has answered its deletes.
//! * A server is emptied only if the option `--on-gap flush` is set.

mod link;
mod queues;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cattlegrid_config::{Distribution, FollowCommand, FollowSettings, FollowTable, MemcachedServer, OnGap};
use cattlegrid_follow::postgres::LeftOut;
use cattlegrid_follow::{FlushReason, FollowerState, LogOrder, Name, Names, Node, Notice, SourceRequest};
use cattlegrid_ring::{Layout, Ring, RingError, Server};
use tokio::sync::{Notify, watch};
use tokio::task::LocalSet;

use crate::database::Database;
use crate::follows::{RecentMessages, password};
use crate::log;
use crate::signals::{Signal, Signals};
use crate::time::Clock;
use queues::{Overflow, QueueFull, Queues, ServerReply};

/// The longest time that servers have at the end to answer commands that were sent.
const LEAVE: Duration = Duration::from_secs(3);

/// Time between two checks for signals, and of the position in the log.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The most positions and confirmations that wait for servers.
const MARKS_MAX: usize = 10_000;

/// The longest key of memcached, in bytes.
const KEY_BYTES_MAX: usize = 250;

/// Why a log cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum DeletesError {
    /// The servers cannot form a ring.
    #[error("follow --to: {0}")]
    Ring(#[from] RingError),
    /// The certificates cannot be used.
    #[error("follow: {0}")]
    Tls(#[from] cattlegrid_follow::postgres::TlsError),
    /// A system call failed.
    #[error("follow: {what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// The call's error.
        source: std::io::Error,
    },
    /// The log is not of a database.
    #[error("follow {0}: is no log of a database")]
    NoDatabase(String),
}

/// The state that the tasks share.
struct TaskContext {
    log: FollowSettings,
    servers: Vec<MemcachedServer>,
    queues: RefCell<Queues>,
    /// Wakes the task of each server when its queue has commands.
    wakes: Vec<Notify>,
    /// Notifies when a batch was answered.
    done: Notify,
    counts: Cell<DeleteCounts>,
    progress: RefCell<LogProgress>,
    said: RefCell<RecentMessages>,
}

/// The progress of the log.
#[derive(Debug, Default)]
struct LogProgress {
    /// For each request for the head of the log: the number of orders up to it, and the time of the request.
    asked: VecDeque<(u64, u64)>,
    /// Every change committed before this time has been deleted; in milliseconds.
    confirmed_ms: Option<u64>,
    /// When following began, in milliseconds; None after the first confirmation.
    starts_ms: Option<u64>,
    behind_since_ms: Option<u64>,
    /// Whether the database lacks a setting or a right.
    is_missing: bool,
}

/// Counters for the summary at the end.
#[derive(Debug, Default, Clone, Copy)]
struct DeleteCounts {
    transactions: u64,
    deleted: u64,
    were_there: u64,
    flushes: u64,
    gaps: u64,
    left_out: u64,
}

/// Follows a log until a signal ends it.
///
/// # Errors
/// The log cannot be followed at all. A database or a server that cannot be reached is not an error: it is
/// tried again.
pub fn delete_keys(log: &FollowSettings, command: &FollowCommand) -> Result<(), DeletesError> {
    let io = |what| move |source| DeletesError::Io { what, source };
    let database = Database::of(log, FollowTable::of_keys, true)?;
    let database = database.ok_or_else(|| DeletesError::NoDatabase(log.name.clone()))?;
    let ring = ring(command)?;
    let signals = Signals::block().map_err(io("signals cannot be received"))?;
    log::start().map_err(io("starting the log's thread"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
    let runtime = runtime.map_err(io("no event loop"))?;

    say_start(log, command);
    let overflow = if goes_back(log) { Overflow::Again } else { Overflow::Gap(command.on_gap) };
    let (count, clock) = (command.servers.len(), Clock::new());
    let shared = Rc::new(TaskContext {
        log: log.clone(),
        servers: command.servers.clone(),
        queues: RefCell::new(Queues::new(count, overflow)),
        wakes: (0..count).map(|_| Notify::new()).collect(),
        done: Notify::new(),
        counts: Cell::default(),
        progress: RefCell::new(LogProgress { starts_ms: Some(clock.millis()), ..LogProgress::default() }),
        said: RefCell::default(),
    });
    let (wish, wished) = watch::channel(SourceRequest::default());
    let mut node = OrderSink {
        shared: Rc::clone(&shared),
        ring,
        prefix: command.prefix.clone().into_bytes(),
        on_gap: command.on_gap,
        clock: clock.clone(),
        marks: VecDeque::new(),
        position: 0,
    };
    let result = LocalSet::new().block_on(&runtime, async {
        for place in 0..count {
            tokio::task::spawn_local(link::run(Rc::clone(&shared), place));
        }
        tokio::select! {
            failed = until_signal(&shared, signals, &wish, &clock) => {
                failed.map_err(io("signals cannot be received"))
            }
            () = database.follow(&mut node, wished) => Ok(()),
        }
    });
    shared.say_end();
    log::flush(Duration::from_secs(1));
    result
}

/// Whether the database sends unacknowledged changes again while this process runs.
fn goes_back(log: &FollowSettings) -> bool {
    log.postgres().is_none_or(|log| log.slot.is_some())
}

/// The ring of servers; None: each key is deleted on every server.
fn ring(command: &FollowCommand) -> Result<Option<Ring>, RingError> {
    let layout = match command.distribution {
        Distribution::Ketama => Layout::OneAtATime,
        Distribution::KetamaWeighted => Layout::Weighted,
        Distribution::All => return Ok(None),
    };
    let servers = command.servers.iter().map(|server| Server::new(server.hashed_name(), server.weight));
    Ring::new(servers.collect::<Result<Vec<_>, _>>()?, layout).map(Some)
}

/// Watches the progress of the log until a signal comes. Then it waits, up to [`LEAVE`], for the servers'
/// answers, and tells the follower to stop. It returns an error only if signals cannot be received.
async fn until_signal(
    shared: &TaskContext,
    mut signals: Signals,
    wish: &watch::Sender<SourceRequest>,
    clock: &Clock,
) -> std::io::Result<()> {
    let mut leave_ms: Option<u64> = None;
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = shared.done.notified(), if leave_ms.is_some() => {}
        }
        let now_ms = clock.millis();
        while let Some(signal) = signals.next()? {
            match signal {
                Signal::Drain => leave_ms = Some(now_ms + LEAVE.as_millis() as u64),
                Signal::LeaveNow => leave_ms = Some(now_ms),
                Signal::Reload => log::notice("the rule file is read at the start only: start it anew"),
            }
        }
        let Some(leave_ms) = leave_ms else {
            shared.say_behind(now_ms);
            continue;
        };
        if now_ms >= leave_ms || shared.queues.borrow().is_done() {
            wish.send_modify(|wish| wish.stops = true);
            return std::future::pending().await;
        }
    }
}

fn say_start(log: &FollowSettings, command: &FollowCommand) {
    let name = &log.name;
    let names: Vec<String> = log.tables().iter().map(|own| own.table.full_name()).collect();
    log::notice(format_args!("log {name}: follows {} of {}", names.join(", "), log.origin));
    let servers: Vec<String> = command.servers.iter().map(ToString::to_string).collect();
    let how = command.distribution.name();
    log::notice(format_args!("log {name}: deletes keys on {} ({how})", servers.join(", ")));
    let again = if log.again.is_zero() {
        "`again` narrows that".to_owned()
    } else {
        format!("each key is deleted once more after {:?}", log.again)
    };
    log::notice(format_args!(
        "log {name}: not guaranteed: a value that was read before a commit and is stored after the delete stays until it expires; {again}"
    ));
    if log.mysql().is_some() {
        log::warning(format_args!(
            "log {name}: where it stopped is known while this process runs: rows that change before it is started again are a gap"
        ));
    }
    if log.postgres().is_some_and(|log| log.slot.is_none()) {
        log::warning(format_args!(
            "log {name}: the slot is temporary: rows that change while there is no connection are a gap; name a permanent slot"
        ));
    }
    if log.soft {
        log::warning(format_args!("log {name}: soft is for a server; memcached only deletes"));
    }
}

impl TaskContext {
    /// Counts the reply of a server.
    fn note(&self, place: usize, answer: ServerReply) {
        let mut counts = self.counts.get();
        match answer {
            ServerReply::Deleted { was_there } => {
                counts.deleted += 1;
                counts.were_there += u64::from(was_there);
            }
            ServerReply::Flushed => counts.flushes += 1,
            ServerReply::FlushRefused { reply } => log::error(format_args!(
                "server {}: was not emptied, and may have old values until they expire: it answers {reply}",
                self.servers[place].name
            )),
            ServerReply::Failed { .. } => {}
        }
        self.counts.set(counts);
    }

    fn count(&self, change: impl FnOnce(&mut DeleteCounts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    /// Logs that the log is confirmed for the first time, fell behind, or has caught up.
    fn say_behind(&self, now_ms: u64) {
        let (name, lag) = (&self.log.name, self.log.max_lag);
        let obeyed = self.queues.borrow().obeyed();
        let mut progress = self.progress.borrow_mut();
        while let Some((order, asked_at_ms)) = progress.asked.front().copied()
            && order <= obeyed
        {
            progress.confirmed_ms = Some(asked_at_ms);
            progress.asked.pop_front();
        }
        let Some(confirmed_ms) = progress.confirmed_ms else { return };
        if let Some(started_ms) = progress.starts_ms.take() {
            let ms = now_ms.saturating_sub(started_ms);
            log::notice(format_args!("log {name}: is confirmed for the first time, after {ms} ms"));
        }
        let is_behind =
            now_ms.saturating_sub(confirmed_ms) > u64::try_from(lag.as_millis()).unwrap_or(u64::MAX);
        match (progress.behind_since_ms, is_behind) {
            (None, true) => {
                progress.behind_since_ms = Some(confirmed_ms);
                log::warning(format_args!(
                    "log {name}: is behind, not confirmed for {lag:?}: values of rows that change stay meanwhile"
                ));
            }
            (Some(since_ms), false) => {
                progress.behind_since_ms = None;
                let seconds = now_ms.saturating_sub(since_ms) / 1000;
                log::notice(format_args!("log {name}: is confirmed again, after {seconds} s"));
            }
            _ => {}
        }
    }

    fn say_end(&self) {
        let name = &self.log.name;
        let open: usize = {
            let queues = self.queues.borrow();
            (0..self.servers.len()).map(|place| queues.backlog(place)).sum()
        };
        if open > 0 {
            let has_slot = self.log.postgres().is_some_and(|log| log.slot.is_some());
            let then = if has_slot { "the slot has them for the next start" } else { "they are lost" };
            log::warning(format_args!("log {name}: {open} deletes were not answered: {then}"));
        }
        let DeleteCounts { transactions, deleted, were_there, flushes, gaps, left_out } = self.counts.get();
        // With `again`, some of these orders were counted before.
        let of =
            if self.log.again.is_zero() { format!(" of {transactions} transactions") } else { String::new() };
        log::notice(format_args!(
            "log {name}: ends: {deleted} deletes{of}, {were_there} found a value; {gaps} gaps, {flushes} flushes, {left_out} keys left out"
        ));
    }
}

/// The consumer of the log's orders, which queues deletes.
struct OrderSink {
    shared: Rc<TaskContext>,
    ring: Option<Ring>,
    prefix: Vec<u8>,
    on_gap: OnGap,
    clock: Clock,
    /// The number of orders and, for each, the position in the log up to which they reach.
    marks: VecDeque<(u64, u64)>,
    /// The position of the last orders that all servers have answered.
    position: u64,
}

impl OrderSink {
    fn delete(&self, name: &Name) {
        let shared = &self.shared;
        let key: Arc<[u8]> = [&self.prefix, &*name.tag].concat().into();
        if key.len() > KEY_BYTES_MAX || key.iter().any(|byte| *byte <= b' ' || *byte == 0x7f) {
            if shared.counts.get().left_out == 0 {
                log::warning(format_args!(
                    "log {}: a row makes {:?}, which memcached does not take as a key: such keys are left out",
                    shared.log.name,
                    String::from_utf8_lossy(&key)
                ));
            }
            return shared.count(|counts| counts.left_out += 1);
        }
        match &self.ring {
            // Clients choose the server by the key without the library's prefix.
            Some(ring) => self.delete_on(ring.find(&name.tag).unwrap_or(0), &key),
            None => (0..shared.servers.len()).for_each(|place| self.delete_on(place, &key)),
        }
    }

    fn delete_on(&self, place: usize, key: &Arc<[u8]>) {
        let shared = &self.shared;
        let overflowed = shared.queues.borrow_mut().delete(place, key);
        shared.wakes[place].notify_one();
        let Some(QueueFull { place, count }) = overflowed else { return };
        let then = match (shared.queues.borrow().is_incomplete(place), self.on_gap) {
            (true, _) => "the log sends them again when it answers",
            (false, OnGap::Flush) => "it is emptied when it answers",
            (false, OnGap::Warn) => "what they meant stays there until it expires (--on-gap warn)",
        };
        shared.count(|counts| counts.gaps += u64::from(!shared.queues.borrow().is_incomplete(place)));
        log::warning(format_args!(
            "server {}: there is no memory for the {count} deletes that wait for it: {then}",
            shared.servers[place].name
        ));
    }

    fn gap(&self, reason: &FlushReason) {
        let (shared, name) = (&self.shared, &self.shared.log.name);
        shared.count(|counts| counts.gaps += 1);
        let mut queues = shared.queues.borrow_mut();
        if self.on_gap == OnGap::Flush {
            queues.flush();
            log::warning(format_args!("log {name}: all servers are emptied by flush_all: {reason}"));
            return shared.wakes.iter().for_each(Notify::notify_one);
        }
        match reason {
            FlushReason::Begins => {
                log::notice(format_args!(
                    "log {name}: {reason}; values of rows that changed before stay until they expire"
                ));
            }
            _ => log::warning(format_args!(
                "log {name}: it is not known which keys changed, and nothing is deleted (--on-gap warn): {reason}"
            )),
        }
    }
}

impl Node for OrderSink {
    fn now_ms(&self) -> u64 {
        self.clock.millis()
    }

    fn unix_now(&self) -> Duration {
        crate::time::unix_now()
    }

    fn order(&mut self, order: LogOrder) {
        let shared = &self.shared;
        match order {
            LogOrder::Bump(Names::Some { names, .. }) => {
                shared.queues.borrow_mut().begin();
                shared.count(|counts| counts.transactions += 1);
                for name in &names {
                    self.delete(name);
                }
            }
            LogOrder::Bump(Names::All { .. }) => debug_assert!(false, "it is a flush"),
            LogOrder::Flush(reason) => {
                shared.queues.borrow_mut().begin();
                self.gap(&reason);
            }
            LogOrder::Confirmed { asked_at_ms } => {
                let given = shared.queues.borrow().given();
                let asked = &mut shared.progress.borrow_mut().asked;
                if asked.back().is_some_and(|(order, _)| *order == given) || asked.len() >= MARKS_MAX {
                    asked.pop_back();
                }
                asked.push_back((given, asked_at_ms));
            }
        }
    }

    fn notice(&mut self, notice: Notice) {
        let (shared, name) = (&self.shared, &self.shared.log.name);
        let mut said = shared.said.borrow_mut();
        match notice {
            Notice::Connected { identity, resumes } => {
                // Positions of the last stream are void here: the new stream repeats unanswered changes.
                self.marks.clear();
                self.position = 0;
                shared.queues.borrow_mut().note_repetition();
                shared.progress.borrow_mut().asked.clear();
                let how = if resumes { "goes on where it stopped" } else { "begins" };
                if said.is_new(&format!("{how} {identity}")) {
                    log::notice(format_args!(
                        "log {name}: connected to {} ({identity}): {how}",
                        shared.log.origin
                    ));
                }
            }
            Notice::Lost { reason } => {
                if said.is_new(&reason) {
                    log::warning(format_args!("log {name}: no connection, it is tried again: {reason}"));
                }
            }
            Notice::Missing(missing) => {
                for one in &missing {
                    log::warning(format_args!("log {name}: is behind until this is mended: {one}"));
                }
                let lacked =
                    std::mem::replace(&mut shared.progress.borrow_mut().is_missing, !missing.is_empty());
                if lacked && missing.is_empty() {
                    log::notice(format_args!("log {name}: nothing is missing any more"));
                }
            }
            Notice::Advice(advice) => {
                let advice = advice.to_string();
                if said.is_new(&advice) {
                    log::warning(format_args!("log {name}: {advice}"));
                }
            }
            Notice::Takes(_) | Notice::NameTaken { .. } | Notice::Foreign { .. } => {}
        }
    }

    fn state(&mut self, _: FollowerState, _: LeftOut) {}

    fn obeyed(&mut self, position: u64) -> u64 {
        let queues = self.shared.queues.borrow();
        if self.marks.back().map_or(self.position, |(_, last)| *last) != position {
            // Without this limit, a server that does not answer for long would need a mark for each
            // transaction.
            if self.marks.len() >= MARKS_MAX {
                self.marks.pop_back();
            }
            self.marks.push_back((queues.given(), position));
        }
        let obeyed = queues.obeyed();
        while let Some((order, position)) = self.marks.front().copied()
            && order <= obeyed
        {
            self.position = position;
            self.marks.pop_front();
        }
        self.position
    }

    fn wants_again(&mut self) -> Option<String> {
        let place = self.shared.queues.borrow().needs_repetition()?;
        Some(format!("server {} answers again, and lacks what the log has", self.shared.servers[place].name))
    }

    fn is_full(&self) -> bool {
        self.shared.queues.borrow().is_full()
    }

    fn password(&mut self) -> Result<Option<String>, String> {
        password(&self.shared.log, || false)
    }
}
