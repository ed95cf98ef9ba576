//! The control thread: accepts connections, reads signals, keeps the store's house in order.
//!
//! New connections go to the workers in turn. At the limit of `-c` they are told so and closed, or, with
//! `-o no_maxconns_fast`, left in the backlog until another one closes.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use cattlegrid_herd::PeerKey;
use cattlegrid_protocol::reply;
use nix::sys::socket::{GetSockOpt as _, sockopt::PeerCredentials};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketAddrAny, SocketFlags, acceptfrom_with, send};

use crate::listen::{Address, Listeners};
use crate::poller::{Poller, Wish};
use crate::serve::ServeError;
use crate::signals::{Signal, Signals};
use crate::state::{ConnectionInfo, ListenerInfo, Message, Shared};
use crate::{log, stats, worker};

/// Runs the server: starts the workers, and comes back when they have left.
///
/// # Errors
/// The system's, when a thread or poller cannot be made or fails.
pub(crate) fn run(shared: &Arc<Shared>, listeners: Listeners, signals: Signals) -> Result<(), ServeError> {
    let workers = start_workers(shared)?;
    let mut control =
        Control::new(shared, listeners, signals).map_err(|e| failed("waiting for connections", e))?;
    let ended = control.run();
    // Nobody is accepted any more: the sockets, and the unix one's file, go while the workers finish.
    let Control { mut signals, listeners, poller, .. } = control;
    drop((listeners, poller));
    let draining = matches!(ended, Ok(Leave::Drain));
    tell_all(shared, || if draining { Message::Drain } else { Message::Stop });
    while !workers.iter().all(JoinHandle::is_finished) {
        let mut fds = [PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
        // A worker that has left is noticed at the next look.
        let _woken = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 10_000_000 }));
        if let Ok(Some(Signal::LeaveNow)) = signals.next() {
            tell_all(shared, || Message::Stop);
        }
    }
    for worker in workers {
        worker.join().map_err(|_| failed("a worker", std::io::Error::other("it panicked")))??;
    }
    ended.map(|_| ()).map_err(|e| failed("waiting for connections", e))
}

fn failed(what: &'static str, error: std::io::Error) -> ServeError {
    ServeError::Io { what, error }
}

fn start_workers(shared: &Arc<Shared>) -> Result<Vec<JoinHandle<Result<(), ServeError>>>, ServeError> {
    (0..shared.settings.threads)
        .map(|number| {
            let shared = Arc::clone(shared);
            Builder::new()
                .name(format!("worker {number}"))
                .spawn(move || worker::run(&shared, number).map_err(|e| failed("a worker's poller", e)))
                .map_err(|e| failed("starting a worker", e))
        })
        .collect()
}

fn tell_all(shared: &Shared, message: impl Fn() -> Message) {
    shared.workers.iter().for_each(|worker| worker.tell(message()));
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
    /// Since when nobody is accepted, at the limit of connections.
    paused: Option<Instant>,
}

/// Tokens of the poller: listeners have theirs from 0.
const SIGNALS: u64 = u64::MAX;
const WAKER: u64 = u64::MAX - 1;
/// Seconds a page must have been free to be given back to the system, twice over.
const PURGE_SECONDS: u32 = 30;

impl<'a> Control<'a> {
    fn new(shared: &'a Arc<Shared>, listeners: Listeners, signals: Signals) -> std::io::Result<Self> {
        let poller = Poller::new()?;
        poller.add(&signals, SIGNALS, Wish::Read)?;
        poller.add(&shared.control, WAKER, Wish::Read)?;
        let mut infos = Vec::new();
        for (token, listener) in listeners.sockets.iter().enumerate() {
            log::info(format_args!("listening on {}", listener.address));
            poller.add(&listener.fd, token as u64, Wish::Read)?;
            let fd = listener.fd.as_raw_fd();
            infos.push(Arc::new(ListenerInfo { fd, address: listener.address.clone(), tls: listener.tls }));
        }
        shared.listeners.lock().expect("nobody panics with it held").clone_from(&infos);
        shared.gauges.accepting.store(true, Relaxed);
        let last_tick = shared.clock.seconds();
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
        })
    }

    fn run(&mut self) -> std::io::Result<Leave> {
        let mut ready = Vec::new();
        let mut busy = false;
        loop {
            ready.clear();
            // Dead segments are emptied a piece at a time, with the requests in between.
            let timeout = if busy { Duration::from_millis(1) } else { Duration::from_millis(500) };
            self.poller.wait(Some(timeout), |token| ready.push(token))?;
            for &token in &ready {
                match token {
                    SIGNALS => {
                        if let Some(leave) = self.read_signals()? {
                            return Ok(leave);
                        }
                    }
                    WAKER => self.shared.control.reset(),
                    listener => self.accept(listener as usize),
                }
            }
            if self.shared.stop_asked.load(Relaxed) {
                return Ok(Leave::Drain);
            }
            self.go_on_accepting()?;
            busy = self.tick(busy);
        }
    }

    /// All signals that have come.
    fn read_signals(&mut self) -> std::io::Result<Option<Leave>> {
        while let Some(signal) = self.signals.next()? {
            match signal {
                Signal::Reload => match self.shared.reload() {
                    Ok(()) => log::notice("reloaded"),
                    Err(error) => {
                        for line in error.to_string().lines() {
                            log::error(format_args!("nothing reloaded: {line}"));
                        }
                    }
                },
                Signal::Drain => return Ok(Some(Leave::Drain)),
                Signal::LeaveNow => return Ok(Some(Leave::Now)),
            }
        }
        Ok(None)
    }

    /// Accepts what waits at a listener.
    fn accept(&mut self, number: usize) {
        while self.paused.is_none() {
            let fd = &self.listeners.sockets[number].fd;
            match acceptfrom_with(fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok((fd, peer)) => self.welcome(fd, peer, number),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED | Errno::PROTO) => {}
                Err(error) => {
                    log::warning(format_args!("no connection accepted: {error}"));
                    // Out of descriptors or memory: until a connection closes there is no point in asking again.
                    return self.pause();
                }
            }
        }
    }

    fn welcome(&mut self, fd: OwnedFd, peer: Option<SocketAddrAny>, number: usize) {
        let gauges = &self.shared.gauges;
        let limit = self.shared.settings.connections_max;
        if gauges.current.load(Relaxed) >= limit {
            gauges.rejected.fetch_add(1, Relaxed);
            // A client that does not read this has gone, or will see the end.
            let text = format!("{}\r\n", reply::error::TOO_MANY_CONNECTIONS);
            let _told = send(&fd, text.as_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
            return;
        }
        let listener = Arc::clone(&self.infos[number]);
        let raw = fd.as_raw_fd();
        let worker = (self.accepted % self.shared.workers.len() as u64) as usize;
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
            fd,
        });
        gauges.total.fetch_add(1, Relaxed);
        let current = gauges.current.fetch_add(1, Relaxed) + 1;
        gauges.most.fetch_max(current, Relaxed);
        self.shared.connections.lock().expect("nobody panics with it held").insert(raw, Arc::clone(&info));
        self.shared.workers[worker].tell(Message::Serve(info));
        if current >= limit && !self.shared.settings.connections_max_fast {
            self.pause();
        }
    }

    /// Leaves new connections in the backlog.
    fn pause(&mut self) {
        self.shared.gauges.listen_disabled.fetch_add(1, Relaxed);
        self.shared.gauges.accepting.store(false, Relaxed);
        self.paused = Some(self.shared.clock.now());
        for listener in &self.listeners.sockets {
            if let Err(error) = self.poller.remove(listener.fd.as_fd()) {
                log::warning(format_args!("{}: {error}", listener.address));
            }
        }
    }

    /// Ends a pause when there is room.
    fn go_on_accepting(&mut self) -> std::io::Result<()> {
        let Some(since) = self.paused else { return Ok(()) };
        let gauges = &self.shared.gauges;
        if gauges.current.load(Relaxed) >= self.shared.settings.connections_max {
            return Ok(());
        }
        let pause = self.shared.clock.now().saturating_duration_since(since);
        gauges.listen_disabled_micros.fetch_add(pause.as_micros() as u64, Relaxed);
        gauges.accepting.store(true, Relaxed);
        self.paused = None;
        for (token, listener) in self.listeners.sockets.iter().enumerate() {
            self.poller.add(&listener.fd, token as u64, Wish::Read)?;
        }
        Ok(())
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
            self.advise(now.ms);
        }
        self.last_tick = now.second;
        self.shared.engine.tick(now)
    }

    /// Says once what would help: of each rule whose `hold` is shorter than its computations, and of crowded tags. And once a
    /// minute, while it lasts, of each rule of which many fills are dropped for misses that nobody fills.
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
