//! The control thread: accepts connections, reads signals, keeps the store's house in order.
//!
//! New connections go to the lanes in turn. At the limit of `-c` they get an error and are closed, or, with
//! `-o no_maxconns_fast`, left in the backlog until another one closes.
//!
//! The system may have no descriptor left before that. The client is told the same then: a spare descriptor is
//! closed, the connection accepted into its place, told, and closed. The alternative is that clients wait in the
//! backlog until another client's connection closes, forever if none does; most have something to fall
//! back on, and need to know. Where that is asked for (`-o no_maxconns_fast`), or the spare does not help (no
//! memory, no descriptors in the whole system), they do wait: until a connection closes, and for [`RETRY`] at most
//! before it is tried again, since a descriptor can become free otherwise.
//!
//! # Invariants
//! * While no connection can be accepted the listeners are not polled: waiting costs one attempt for each [`RETRY`].
//! * A shortage is logged once a second at most.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use cattlegrid_config::OwnTypes;
use cattlegrid_herd::PeerKey;
use cattlegrid_protocol::reply;
use nix::sys::socket::{GetSockOpt as _, sockopt::PeerCredentials};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketAddrAny, SocketFlags, acceptfrom_with, send};

use crate::error::ServeError;
use crate::folder::Folder;
use crate::listen::{Address, Listeners};
use crate::poller::{Poller, Wish};
use crate::reload::{Extent, Reloads};
use crate::signals::{Signal, Signals};
use crate::state::{ConnectionInfo, ListenerInfo, Message, Shared};
use crate::{lane, log, stats};

/// Runs the server: starts the lanes, and comes back when they have left.
///
/// # Errors
/// The system's, when a thread or poller cannot be made or fails.
pub(crate) fn run(shared: &Arc<Shared>, listeners: Listeners, signals: Signals) -> Result<(), ServeError> {
    let watch = start_watch(shared)?;
    let lanes = start_lanes(shared)?;
    let mut control =
        Control::new(shared, listeners, signals).map_err(|e| failed("waiting for connections", e))?;
    let ended = control.run();
    // No connection is accepted any more: the sockets, and the unix one's file, go while the lanes finish.
    let Control { mut signals, listeners, poller, .. } = control;
    drop((listeners, poller));
    let draining = matches!(ended, Ok(Leave::Drain));
    tell_all(shared, || if draining { Message::Drain } else { Message::Stop });
    while !lanes.iter().all(JoinHandle::is_finished) {
        let mut fds = [PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
        // A lane that has left is noticed at the next look.
        let _woken = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 10_000_000 }));
        if let Ok(Some(Signal::LeaveNow)) = signals.next() {
            tell_all(shared, || Message::Stop);
        }
    }
    // Held requests are answered: no client waits for a job.
    shared.loaders.stop();
    shared.watchers.stop();
    watch.join().map_err(|_| failed("the watchers' thread", std::io::Error::other("it panicked")))?;
    for lane in lanes {
        lane.join().map_err(|_| failed("a lane", std::io::Error::other("it panicked")))??;
    }
    ended.map(|_| ()).map_err(|e| failed("waiting for connections", e))
}

fn failed(what: &'static str, error: std::io::Error) -> ServeError {
    ServeError::Io { what, error }
}

/// The thread that makes lines for watchers.
fn start_watch(shared: &Arc<Shared>) -> Result<JoinHandle<()>, ServeError> {
    let shared = Arc::clone(shared);
    Builder::new()
        .name("watch".to_owned())
        .spawn(move || shared.watchers.run(|watcher| shared.tell_of_lines(watcher)))
        .map_err(|e| failed("starting the watchers' thread", e))
}

fn start_lanes(shared: &Arc<Shared>) -> Result<Vec<JoinHandle<Result<(), ServeError>>>, ServeError> {
    (0..shared.settings.threads)
        .map(|number| {
            let shared = Arc::clone(shared);
            Builder::new()
                .name(format!("lane {number}"))
                .spawn(move || lane::run(&shared, number).map_err(|e| failed("a lane's poller", e)))
                .map_err(|e| failed("starting a lane", e))
        })
        .collect()
}

fn tell_all(shared: &Shared, message: impl Fn() -> Message) {
    shared.lanes.iter().for_each(|lane| lane.tell(message()));
}

/// How to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leave {
    Drain,
    Now,
}

struct Control<'a> {
    shared: &'a Arc<Shared>,
    listeners: Listeners,
    infos: Vec<Arc<ListenerInfo>>,
    signals: Signals,
    poller: Poller,
    /// Connections accepted so far.
    accepted: u64,
    last_tick: u32,
    /// What was advised once already.
    advised: HashSet<String>,
    paused: Option<Pause>,
    /// Closed for a moment when there is no other descriptor.
    spare: Option<OwnedFd>,
    shortages: Shortages,
    reloads: Reloads,
    folder: Folder,
}

/// No connection is accepted, and the listeners are not polled.
#[derive(Debug, Clone, Copy)]
struct Pause {
    since: Instant,
    /// When to try again although no connection has closed; never at the limit of connections.
    again: Option<Instant>,
}

/// Why a listener is not asked for more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Accepted {
    /// No client waits there, or others must have their turn.
    Enough,
    /// The limit of connections is reached, and clients in the backlog are left waiting.
    Full,
    /// The system has no descriptor or memory.
    Short,
}

/// Failures to accept, and when they were logged.
#[derive(Debug, Default)]
struct Shortages {
    logged: Option<u32>,
    since_logged: u64,
}

/// Tokens of the poller: listeners have theirs from 0.
const SIGNALS: u64 = u64::MAX;
const WAKER: u64 = u64::MAX - 1;
/// For how long the system gets no new connection out of us after it had no room for one.
const RETRY: Duration = Duration::from_millis(50);
/// Connections taken from a listener before signals and the other listeners are looked at.
const ACCEPTED_A_TURN: usize = 256;
/// Seconds a page must have been free to be given back to the system, twice over.
const PURGE_SECONDS: u32 = 30;

impl<'a> Control<'a> {
    fn new(shared: &'a Arc<Shared>, listeners: Listeners, signals: Signals) -> std::io::Result<Self> {
        let poller = Poller::new()?;
        poller.add(&signals, SIGNALS, Wish::Read)?;
        poller.add(&shared.control, WAKER, Wish::Read)?;
        let mut infos = Vec::new();
        for (token, listener) in listeners.sockets.iter().enumerate() {
            poller.add(&listener.fd, token as u64, Wish::Read)?;
            let fd = listener.fd.as_raw_fd();
            infos.push(Arc::new(ListenerInfo { fd, address: listener.address.clone(), tls: listener.tls }));
        }
        shared.listeners.lock().expect("nobody panics with it held").clone_from(&infos);
        shared.gauges.accepting.store(true, Relaxed);
        let last_tick = shared.clock.seconds();
        shared.shortage.look_at_limits();
        Ok(Self {
            shared,
            listeners,
            infos,
            signals,
            poller,
            accepted: 0,
            last_tick,
            advised: HashSet::new(),
            paused: None,
            spare: spare_descriptor(),
            shortages: Shortages::default(),
            reloads: Reloads::default(),
            folder: Folder::default(),
        })
    }

    fn run(&mut self) -> std::io::Result<Leave> {
        let mut ready = Vec::new();
        let mut busy = false;
        loop {
            ready.clear();
            // Dead segments are emptied a piece at a time, with the requests in between.
            let timeout = if busy { Duration::from_millis(1) } else { Duration::from_millis(500) };
            self.poller.wait(Some(self.until_retry(timeout)), |token| ready.push(token))?;
            let mut woken = false;
            for &token in &ready {
                match token {
                    SIGNALS => {
                        if let Some(leave) = self.read_signals()? {
                            return Ok(leave);
                        }
                    }
                    WAKER => {
                        self.shared.control.reset();
                        woken = true;
                    }
                    listener => self.accept_or_pause(listener as usize),
                }
            }
            if self.shared.stop_asked.load(Relaxed) {
                return Ok(Leave::Drain);
            }
            self.go_on_accepting(woken);
            busy = self.tick(busy);
        }
    }

    /// All signals that have come.
    fn read_signals(&mut self) -> std::io::Result<Option<Leave>> {
        while let Some(signal) = self.signals.next()? {
            match signal {
                Signal::Reload => self.reload(Extent::All),
                Signal::Drain => return Ok(Some(Leave::Drain)),
                Signal::LeaveNow => return Ok(Some(Leave::Now)),
            }
        }
        Ok(None)
    }

    fn reload(&mut self, extent: Extent) {
        // The files are read one after the other: the spare is enough for them. No connection must take its place meanwhile.
        drop(self.spare.take());
        self.reloads.ask(self.shared, extent);
        self.spare = spare_descriptor();
    }

    fn accept_or_pause(&mut self, number: usize) {
        // What was ready may have been paused since.
        if self.paused.is_some() {
            return;
        }
        let now = self.shared.clock.now();
        match self.accept(number) {
            Accepted::Enough => {}
            Accepted::Full => self.pause(Pause { since: now, again: None }),
            Accepted::Short => self.pause(Pause { since: now, again: Some(now + RETRY) }),
        }
    }

    /// Accepts what waits at a listener.
    fn accept(&mut self, number: usize) -> Accepted {
        for _ in 0..ACCEPTED_A_TURN {
            if self.is_full() && !self.shared.settings.connections_max_fast {
                return Accepted::Full;
            }
            let fd = &self.listeners.sockets[number].fd;
            match acceptfrom_with(fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok((fd, peer)) => self.welcome(fd, peer, number),
                Err(Errno::AGAIN) => return Accepted::Enough,
                Err(Errno::INTR | Errno::CONNABORTED | Errno::PROTO) => {}
                // The system looks for a descriptor before it looks whether a client waits.
                Err(_) if !is_readable(fd) => return Accepted::Enough,
                Err(error) => {
                    self.note_shortage(error);
                    if !self.refuse_with_spare(error, number) {
                        return Accepted::Short;
                    }
                }
            }
        }
        Accepted::Enough
    }

    fn is_full(&self) -> bool {
        self.shared.gauges.current.load(Relaxed) >= self.shared.settings.connections_max
    }

    /// Counts a failure to accept, and logs the first of a second.
    fn note_shortage(&mut self, error: Errno) {
        self.shared.gauges.accept_errors.fetch_add(1, Relaxed);
        self.shortages.since_logged += 1;
        let second = Some(self.shared.clock.seconds());
        if self.shortages.logged == second {
            return;
        }
        self.shortages.logged = second;
        let help = if error == Errno::MFILE { "; raise `ulimit -n`" } else { "" };
        match std::mem::take(&mut self.shortages.since_logged) {
            1 => log::warning(format_args!("no connection accepted: {error}{help}")),
            times => log::warning(format_args!(
                "no connection accepted: {error}, {times} times since the last such line{help}"
            )),
        }
    }

    /// Tells a client that there is no room, in place of the spare descriptor. False: it waits in the backlog.
    fn refuse_with_spare(&mut self, error: Errno, number: usize) -> bool {
        let helps = matches!(error, Errno::MFILE | Errno::NFILE) && self.shared.settings.connections_max_fast;
        if !helps || self.spare.take().is_none() {
            return false;
        }
        // Another thread may have taken the place meanwhile; then the next attempt fails and finds no spare.
        let accepted = acceptfrom_with(&self.listeners.sockets[number].fd, SocketFlags::CLOEXEC);
        if let Ok((fd, _)) = &accepted {
            self.refuse(fd);
        }
        drop(accepted);
        self.spare = spare_descriptor();
        true
    }

    /// Says that there is no room; the connection is closed by who has it.
    fn refuse(&self, fd: &OwnedFd) {
        self.shared.gauges.rejected.fetch_add(1, Relaxed);
        // A client that does not read this has gone, or will see the end.
        let text = format!("{}\r\n", reply::error::TOO_MANY_CONNECTIONS);
        let _told = send(fd, text.as_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }

    fn welcome(&mut self, fd: OwnedFd, peer: Option<SocketAddrAny>, number: usize) {
        if self.is_full() {
            return self.refuse(&fd);
        }
        if self.shared.shortage.is_short() {
            self.shared.shortage.refused.fetch_add(1, Relaxed);
            return self.refuse(&fd);
        }
        let gauges = &self.shared.gauges;
        let listener = Arc::clone(&self.infos[number]);
        let raw = fd.as_raw_fd();
        let lane = (self.accepted % self.shared.lanes.len() as u64) as usize;
        self.accepted += 1;
        let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
        let info = Arc::new(ConnectionInfo {
            number: self.accepted,
            peer: peer_name(peer, &listener.address),
            peer_key: peer_key(peer, &fd),
            listener,
            last_command: AtomicU32::new(self.shared.clock.seconds()),
            writing: false.into(),
            held: false.into(),
            doing: 0.into(),
            fd,
        });
        gauges.total.fetch_add(1, Relaxed);
        let current = gauges.current.fetch_add(1, Relaxed) + 1;
        gauges.most.fetch_max(current, Relaxed);
        self.shared.connections.lock().expect("nobody panics with it held").insert(raw, Arc::clone(&info));
        self.shared.lanes[lane].tell(Message::Serve(info));
    }

    /// Leaves new connections in the backlog.
    fn pause(&mut self, pause: Pause) {
        self.shared.gauges.listen_disabled.fetch_add(1, Relaxed);
        self.shared.gauges.accepting.store(false, Relaxed);
        self.paused = Some(pause);
        for listener in &self.listeners.sockets {
            if let Err(error) = self.poller.remove(listener.fd.as_fd()) {
                log::warning(format_args!("{}: {error}", listener.address));
            }
        }
    }

    /// How long to wait at most, so as to be back when it is time to accept again.
    fn until_retry(&self, most: Duration) -> Duration {
        let Some(again) = self.paused.and_then(|pause| pause.again) else { return most };
        // The poller takes a time that has passed for none.
        most.min(again.saturating_duration_since(self.shared.clock.now()) + Duration::from_millis(1))
    }

    /// Ends a pause when there is room. `woken`: a connection has closed.
    fn go_on_accepting(&mut self, woken: bool) {
        let Some(pause) = self.paused else { return };
        let now = self.shared.clock.now();
        if self.is_full() || pause.again.is_some_and(|again| !woken && now < again) {
            return;
        }
        if self.spare.is_none() && self.shared.settings.connections_max_fast {
            // With it all that wait can be told, and no client waits forever.
            self.spare = spare_descriptor();
        }
        // Those that wait first, and polled only once they are served: else it would wake for the same ones again.
        for number in 0..self.listeners.sockets.len() {
            match self.accept(number) {
                Accepted::Enough => {}
                Accepted::Full => return self.paused = Some(Pause { again: None, ..pause }),
                Accepted::Short => return self.paused = Some(Pause { again: Some(now + RETRY), ..pause }),
            }
        }
        for (token, listener) in self.listeners.sockets.iter().enumerate() {
            match self.poller.add(&listener.fd, token as u64, Wish::Read) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    log::warning(format_args!("{}: {error}", listener.address));
                    return self.paused = Some(Pause { again: Some(now + RETRY), ..pause });
                }
            }
        }
        let gauges = &self.shared.gauges;
        let lasted = self.shared.clock.now().saturating_duration_since(pause.since);
        gauges.listen_disabled_micros.fetch_add(lasted.as_micros() as u64, Relaxed);
        gauges.accepting.store(true, Relaxed);
        self.paused = None;
    }

    /// Once a second, and more often while there is something to do: returns memory of what is dead.
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
            if let Some((lane, token)) = self.shared.dumps.silent() {
                self.shared.lanes[lane].tell(Message::EndDump(token));
            }
            self.advise(now.ms);
            self.look_at_folder();
            if self.spare.is_none() {
                self.spare = spare_descriptor();
            }
        }
        self.last_tick = now.second;
        self.shared.engine.tick(now)
    }

    /// Lanes that wait give up memory too, in the round they are woken for.
    fn look_at_memory(&self, now_ms: u64) {
        let shortage = &self.shared.shortage;
        shortage.look_at_limits();
        shortage.look(now_ms);
        if shortage.is_short() {
            self.shared.lanes.iter().for_each(|lane| lane.waker.wake());
        }
    }

    /// Loads the types of objects again when their directory has changed.
    fn look_at_folder(&mut self) {
        let watched = self.shared.in_force().watched();
        if self.folder.must_reload(watched, OwnTypes::look) {
            self.reload(Extent::Objects);
        }
    }

    /// Says once what would help: of each rule whose `hold` is shorter than its computations, and of crowded tags. And once a
    /// minute, while it lasts, of each rule of which many fills are dropped for misses that are never filled.
    fn advise(&mut self, now_ms: u64) {
        let shared = self.shared.engine.shared();
        if shared.tags().stats().is_crowded() && self.advised.insert("tag_memory".to_owned()) {
            log::warning("more than 5 % of the looks at tags find a bump of another tag: raise tag_memory");
        }
        let active = shared.rules();
        let Some(active) = active.as_ref() else { return };
        for (rule, state) in active.each() {
            let (hold_ms, pattern) = (state.policy().hold_ms, rule.pattern.text());
            if let Some(percent) = state.end_minute(now_ms) {
                log::warning(format_args!("rule {pattern}: {}", stats::abandoned(percent)));
            }
            let given_up = state.counters().busy_prediction.load(Relaxed) > 0;
            if let Some(p90) = state.p90_ms().filter(|p90| given_up && hold_ms > 0 && *p90 > hold_ms)
                && self.advised.insert(pattern.to_owned())
            {
                log::warning(format_args!(
                    "rule {pattern}: hold ({hold_ms} ms) is shorter than the computation (p90 {p90} ms), so clients are \
                     not held: add grace, or raise hold if the clients' own timeout allows it"
                ));
            }
        }
    }
}

/// A descriptor that stands for nothing; none if there is no other left.
fn spare_descriptor() -> Option<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC).ok()
}

fn is_readable(fd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

fn peer_name(peer: Option<SocketAddr>, listener: &Address) -> String {
    match listener {
        Address::Unix(path) => format!("unix:{}", path.display()),
        Address::Tcp(_) => peer.map_or_else(|| "unknown".to_owned(), |address| address.to_string()),
    }
}

/// One client machine, or on this one, through a Unix socket, one process. What cannot be told apart (a process
/// outside of our namespace has the id 0) is one peer.
fn peer_key(peer: Option<SocketAddr>, fd: &OwnedFd) -> PeerKey {
    match peer {
        // The same client is one peer on a socket for both families, too.
        Some(address) => PeerKey::Address(address.ip().to_canonical()),
        None => PeerKey::Process(PeerCredentials.get(fd).map_or(0, |credentials| credentials.pid())),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_peer_is_an_address_or_a_process() {
        let (socket, _other) = UnixStream::pair().unwrap();
        let fd = OwnedFd::from(socket);
        let key = |address: &str| peer_key(Some(address.parse().unwrap()), &fd);
        assert_eq!(key("127.0.0.1:1"), PeerKey::Address("127.0.0.1".parse().unwrap()));
        assert_eq!(key("[::ffff:127.0.0.1]:2"), key("127.0.0.1:1"));
        assert_ne!(key("[::1]:1"), key("127.0.0.1:1"));
        assert_eq!(peer_key(None, &fd), PeerKey::Process(nix::unistd::getpid().as_raw()));
    }
}
