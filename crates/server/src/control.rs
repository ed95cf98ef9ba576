//! The control thread: it starts and ends the lanes, reads signals, frees memory of the store once a second,
//! and accepts connections after a pause ([`crate::acceptor`]).

use std::collections::HashSet;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use cattlegrid_config::OwnTypes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::acceptor::ListeningSocket;
use crate::admin::Admin;
use crate::error::ServeError;
use crate::folder::Folder;
use crate::heap::Heap;
use crate::holds::HoldReports;
use crate::idle_rules::IdleRules;
use crate::lane::handle::Message;
use crate::listen::Listeners;
use crate::manager::{LaneHeartbeats, Manager};
use crate::poller::{Poller, Wish};
use crate::reload::{ReloadScope, Reloads};
use crate::shared::Shared;
use crate::signals::{Signal, Signals};
use crate::{lane, log, stats};

/// Runs the server: starts the lanes, and returns when they have left. `must_reload`: a reload was requested
/// before.
///
/// # Errors
/// The system cannot make a thread or a poller, or the poller fails.
pub(crate) fn run(
    shared: &Arc<Shared>,
    mut listeners: Listeners,
    signals: Signals,
    must_reload: bool,
    admin: Option<&Admin>,
    mut manager: Manager,
) -> Result<(), ServeError> {
    manager.serving(serving(&listeners));
    let manager = Arc::new(manager);
    let watch = start_watch(shared)?;
    let sockets: Arc<[ListeningSocket]> =
        listeners.take_sockets().into_iter().map(ListeningSocket::new).collect();
    let infos = sockets.iter().map(|socket| Arc::clone(&socket.info)).collect();
    *shared.listeners.lock().expect("nobody panics with it held") = infos;
    let mut control = Control::new(shared, Arc::clone(&sockets), signals, &manager)
        .map_err(|e| failed("waiting for connections", e))?;
    shared.acceptor.begin(shared);
    // This precedes the first request, so that statistics show the logs, and items below a log's floor are
    // known.
    shared.follows.follow(shared, shared.settings.follows());
    let lanes = start_lanes(shared, &sockets)?;
    drop(sockets);
    if let Some(admin) = admin {
        admin.serving(shared);
    }
    manager.ready();
    if must_reload {
        control.reload(ReloadScope::All);
    }
    let ended = control.run();
    manager.stopping(if matches!(ended, Ok(ShutdownMode::Drain)) {
        shared.settings.drain
    } else {
        Duration::ZERO
    });
    shared.gauges.leaving.store(true, Relaxed);
    // No more connections are accepted: the sockets, and the file of the Unix socket, are removed while the
    // lanes finish.
    shared.acceptor.shut();
    let Control { mut signals, sockets, poller, mut life, .. } = control;
    drop((listeners, sockets, poller));
    let draining = matches!(ended, Ok(ShutdownMode::Drain));
    if draining {
        shared.follows.drain();
    }
    tell_all(shared, || if draining { Message::Drain } else { Message::Stop });
    while !lanes.iter().all(JoinHandle::is_finished) {
        let mut fds = [PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
        // A lane that has left is noticed at the next iteration.
        let _woken = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 10_000_000 }));
        if let Ok(Some(Signal::LeaveNow)) = signals.next() {
            tell_all(shared, || Message::Stop);
        }
        life.tick(&manager, &shared.lanes, shared.clock.now(), |number| lanes[number].is_finished());
    }
    // All held requests have been answered, so that no client waits for a job.
    shared.loaders.stop();
    shared.follows.stop();
    shared.watchers.stop();
    watch.join().map_err(|_| failed("the watchers' thread", std::io::Error::other("it panicked")))?;
    for lane in lanes {
        lane.join().map_err(|_| failed("a lane", std::io::Error::other("it panicked")))??;
    }
    ended.map(|_| ()).map_err(|e| failed("waiting for connections", e))
}

/// The addresses on which the server serves, for the service manager.
fn serving(listeners: &Listeners) -> String {
    let addresses: Vec<_> = listeners.sockets.iter().map(|listener| listener.address.to_string()).collect();
    match &addresses[..] {
        [] => "Serving on no address".to_owned(),
        [one] => format!("Serving on {one}"),
        [one, two] => format!("Serving on {one} and {two}"),
        [one, rest @ ..] => format!("Serving on {one} and {} other addresses", rest.len()),
    }
}

fn failed(what: &'static str, error: std::io::Error) -> ServeError {
    ServeError::Io { what, error }
}

/// Starts the thread that formats lines for watchers.
fn start_watch(shared: &Arc<Shared>) -> Result<JoinHandle<()>, ServeError> {
    let shared = Arc::clone(shared);
    Builder::new()
        .name("watch".to_owned())
        .spawn(move || shared.watchers.run(|watcher| shared.tell_of_lines(watcher)))
        .map_err(|e| failed("starting the watchers' thread", e))
}

fn start_lanes(
    shared: &Arc<Shared>,
    sockets: &Arc<[ListeningSocket]>,
) -> Result<Vec<JoinHandle<Result<(), ServeError>>>, ServeError> {
    (0..shared.settings.threads)
        .map(|number| {
            let (shared, sockets) = (Arc::clone(shared), Arc::clone(sockets));
            Builder::new()
                .name(format!("lane {number}"))
                .spawn(move || lane::run(&shared, number, sockets).map_err(|e| failed("a lane's poller", e)))
                .map_err(|e| failed("starting a lane", e))
        })
        .collect()
}

fn tell_all(shared: &Shared, message: impl Fn() -> Message) {
    shared.lanes.iter().for_each(|lane| lane.tell(message()));
}

/// How the server ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShutdownMode {
    Drain,
    Now,
}

struct Control<'a> {
    shared: &'a Arc<Shared>,
    sockets: Arc<[ListeningSocket]>,
    signals: Signals,
    poller: Poller,
    last_tick: u32,
    /// Advice that was logged.
    advised: HashSet<String>,
    idle_rules: IdleRules,
    holds: HoldReports,
    reloads: Reloads,
    folder: Folder,
    heap: Heap,
    manager: Arc<Manager>,
    life: LaneHeartbeats,
}

/// Tokens of the poller.
const SIGNALS: u64 = 0;
const WAKER: u64 = 1;
/// A page is returned to the system when it was free for two periods of this many seconds.
const PURGE_SECONDS: u32 = 30;

impl<'a> Control<'a> {
    fn new(
        shared: &'a Arc<Shared>,
        sockets: Arc<[ListeningSocket]>,
        signals: Signals,
        manager: &Arc<Manager>,
    ) -> std::io::Result<Self> {
        let poller = Poller::new()?;
        poller.add(&signals, SIGNALS, Wish::Read)?;
        poller.add(&shared.control, WAKER, Wish::Read)?;
        let last_tick = shared.clock.seconds();
        shared.look_at_memory_limits();
        Ok(Self {
            shared,
            sockets,
            signals,
            poller,
            last_tick,
            advised: HashSet::new(),
            idle_rules: IdleRules::default(),
            holds: HoldReports::default(),
            reloads: Reloads::new(Arc::clone(manager)),
            folder: Folder::default(),
            heap: Heap::default(),
            manager: Arc::clone(manager),
            life: LaneHeartbeats::new(manager, shared.clock.now()),
        })
    }

    fn run(&mut self) -> std::io::Result<ShutdownMode> {
        let mut ready = Vec::new();
        let mut busy = false;
        loop {
            ready.clear();
            // Dead segments are emptied in small steps, with requests in between.
            // While misses are remembered it is noticed soon that nothing runs (`Clock::note_running`).
            let quiet_ms = if self.shared.engine.shared().window_max_ms() > 0 { 100 } else { 500 };
            let timeout = Duration::from_millis(if busy { 1 } else { quiet_ms });
            let timeout = self.shared.acceptor.until_retry(timeout, self.shared);
            let timeout = self.life.until_next(timeout, self.shared.clock.now());
            self.poller.wait(Some(timeout), |token| ready.push(token))?;
            let mut woken = false;
            for &token in &ready {
                if token == WAKER {
                    self.shared.control.reset();
                    woken = true;
                } else if let Some(leave) = self.read_signals()? {
                    return Ok(leave);
                }
            }
            if self.shared.stop_asked.load(Relaxed) {
                return Ok(ShutdownMode::Drain);
            }
            self.shared.acceptor.retry(&self.sockets, woken, self.shared);
            busy = self.tick(busy);
            self.life.tick(&self.manager, &self.shared.lanes, self.shared.clock.now(), |_| false);
        }
    }

    /// Handles all signals that have arrived.
    fn read_signals(&mut self) -> std::io::Result<Option<ShutdownMode>> {
        while let Some(signal) = self.signals.next()? {
            match signal {
                Signal::Reload => self.reload(ReloadScope::All),
                Signal::Drain => return Ok(Some(ShutdownMode::Drain)),
                Signal::LeaveNow => return Ok(Some(ShutdownMode::Now)),
            }
        }
        Ok(None)
    }

    /// Starts a reload. Its files are read one after the other, so that the one spare descriptor is enough.
    fn reload(&mut self, extent: ReloadScope) {
        self.shared.acceptor.lend_spare(self.shared, || self.reloads.ask(self.shared, extent));
    }

    /// Upkeep, called once a second, and more often while it returns true: frees the memory of dead items.
    fn tick(&mut self, busy: bool) -> bool {
        let now = self.shared.now_at(self.shared.clock.now());
        let second_is_new = now.second != self.last_tick;
        if !second_is_new && !busy {
            return false;
        }
        if second_is_new && now.second / PURGE_SECONDS != self.last_tick / PURGE_SECONDS {
            self.shared.engine.memory().purge();
        }
        if second_is_new {
            self.look_at_memory(now.ms);
            self.look_at_wall_clock();
            let counts = self.shared.counts();
            if self.heap.tick(now.second, counts.cmd_get + counts.cmd_set + counts.cmd_meta) {
                tell_all(self.shared, || Message::ReturnHeap);
            }
            if let Some((lane, token)) = self.shared.dumps.silent() {
                self.shared.lanes[lane].tell(Message::EndDump(token));
            }
            self.advise(now.ms);
            self.look_at_folder();
            self.shared.acceptor.refill();
        }
        self.last_tick = now.second;
        self.shared.engine.tick(now)
    }

    fn look_at_wall_clock(&self) {
        let clock = &self.shared.clock;
        clock.notice_suspension();
        if let Some(seconds) = clock.follow(crate::time::unix_now(), clock.now()) {
            let way = if seconds < 0 { "back" } else { "forward" };
            log::notice(format_args!(
                "the wall clock has moved {way} by {} s: times in commands mean what it shows now",
                seconds.unsigned_abs()
            ));
        }
    }

    /// Wakes lanes that wait, when memory is scarce, so that they free their share of it.
    fn look_at_memory(&self, now_ms: u64) {
        self.shared.look_at_memory_limits();
        self.shared.look_at_memory(now_ms);
        if self.shared.is_memory_short() {
            self.shared.lanes.iter().for_each(|lane| lane.waker.wake());
        }
    }

    /// Loads the types of objects again when their directory has changed.
    fn look_at_folder(&mut self) {
        let watched = self.shared.in_force().watched();
        if self.folder.must_reload(watched, OwnTypes::look) {
            self.reload(ReloadScope::Objects);
        }
    }

    /// Logs advice. Crowded tags and missing gradual purges are logged once. Each rule of which many fills
    /// are dropped although they may be new, or whose holds end without the value, is logged at most once a
    /// minute.
    fn advise(&mut self, now_ms: u64) {
        let shared = self.shared.engine.shared();
        let stats = shared.tags().stats();
        if stats.gradual_at_once > 0 && self.advised.insert("gradual_at_once".to_owned()) {
            log::warning("a gradual purge took effect at once, since 64 others were running");
        }
        let memory = self.shared.engine.memory();
        let kept = memory.kept_of_least();
        if kept < 1.0 && self.advised.insert("at_least".to_owned()) {
            log::warning(format_args!(
                "[[share]]: at_least is more than there is room for, beside pinned objects or with items as small as these: {:.0} % of \
                 it is kept; lower it or raise -m",
                kept * 100.0
            ));
        }
        if stats.is_crowded() && self.advised.insert("tag_memory".to_owned()) {
            log::warning("more than 5 % of the looks at tags find a bump of another tag: raise tag_memory");
        }
        let active = shared.rules();
        let Some(active) = active.as_ref() else { return };
        let rules = active.each().map(|(rule, state)| (&**rule, &**state));
        let counts = self.shared.counts();
        let requests = counts.cmd_get + counts.cmd_set;
        for line in self.idle_rules.look(&shared.prefix_hints(), rules, requests, now_ms) {
            log::warning(line);
        }
        for (rule, state) in active.each_on() {
            if state.end_minute(now_ms).is_some()
                && let Some(advice) = stats::advice(state)
            {
                log::warning(format_args!("rule {}: {advice}", rule.pattern.text()));
            }
            if let Some(line) = self.holds.due_line(rule, state, now_ms) {
                log::warning(line);
            }
        }
        self.holds.retain(active);
    }
}
