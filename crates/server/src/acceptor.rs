//! Accepting of new connections, by any lane or by the control thread.
//!
//! Each lane polls the listeners and accepts for itself. A connection that arrives while several lanes wait
//! wakes one of them. It stays with the lane that has accepted it, unless the lane with the fewest
//! connections has fewer by more than an eighth: then that lane gets it.
//!
//! At the limit of `-c` a new connection gets an error and is closed. With `-o no_maxconns_fast` it is left
//! in the backlog until another connection closes.
//!
//! The system may run out of descriptors before that limit. The client then gets the same error: a spare
//! descriptor is closed, the connection is accepted in its place, gets the error, and is closed. Otherwise
//! clients would wait in the backlog until another client's connection closes, possibly forever; most clients
//! have a fallback, and need to know. Connections do wait with `-o no_maxconns_fast`, or where the spare does
//! not help (no memory, no descriptors in the whole system). They are tried again when a connection closes,
//! and after [`RETRY`] at the latest, since a descriptor can become free in other ways.
//!
//! While connections wait, the acceptor is paused, and only the control thread tries again. A lane that finds
//! the acceptor paused stops polling the listeners; all lanes are woken when the pause ends.
//!
//! # Invariants
//! * One thread accepts at a time; no lane accepts while the acceptor is paused.
//! * While no connection can be accepted the listeners are not polled: waiting costs one attempt in each
//!   [`RETRY`].
//! * A shortage is logged once a second at most.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use cattlegrid_herd::PeerKey;
use cattlegrid_protocol::reply;
use nix::sys::socket::{GetSockOpt as _, sockopt::PeerCredentials};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketAddrAny, SocketFlags, acceptfrom_with, send};

use crate::connection::info::ConnectionInfo;
use crate::lane::handle::Message;
use crate::listen::Listener;
use crate::listen::ListenerInfo;
use crate::log;
use crate::shared::Shared;

/// The state of accepting, shared by all lanes and the control thread.
#[derive(Debug, Default)]
pub(crate) struct Acceptor {
    /// Whether lanes may accept. Changed only while `state` is locked.
    open: AtomicBool,
    /// Locked while a connection is accepted.
    state: Mutex<AcceptorState>,
}

#[derive(Debug, Default)]
struct AcceptorState {
    /// Connections accepted so far, without those that were refused.
    accepted: u64,
    paused: Option<Pause>,
    /// Whether a reload is reading files, which uses the spare's descriptor.
    lent: bool,
    /// Whether the server leaves: no connection is accepted any more.
    shut: bool,
    /// A descriptor that is closed to accept one connection when no other descriptor is left.
    spare: Option<OwnedFd>,
    shortages: Shortages,
}

/// A time in which no connection can be accepted.
#[derive(Debug, Clone, Copy)]
struct Pause {
    since: Instant,
    /// When to try again even if no connection has closed; None at the limit of connections.
    again: Option<Instant>,
}

/// Failures to accept since the last log line about them.
#[derive(Debug, Default)]
struct Shortages {
    logged: Option<u32>,
    since_logged: u64,
}

/// A listening socket, which is closed when all threads have dropped it.
#[derive(Debug)]
pub(crate) struct ListeningSocket {
    pub(crate) listener: Listener,
    pub(crate) info: Arc<ListenerInfo>,
}

impl ListeningSocket {
    pub(crate) fn new(listener: Listener) -> Self {
        let fd = listener.fd.as_raw_fd();
        let info = Arc::new(ListenerInfo { fd, address: listener.address.clone(), tls: listener.tls });
        Self { listener, info }
    }
}

/// Why accepting from a listener ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AcceptEnd {
    /// The requested number was accepted; more clients may wait.
    All,
    /// No more clients wait.
    Enough,
    /// The acceptor is paused, or the server leaves.
    Closed,
}

/// The outcome of one attempt to accept.
enum AcceptOutcome {
    /// A connection for the lane that has accepted it.
    Kept(Arc<ConnectionInfo>),
    /// A connection for another lane, which was told.
    HandedOn,
    /// The client has gone, or was refused.
    Gone,
    None(AcceptEnd),
}

/// Time until the system is asked for a connection again after it had no room for one.
const RETRY: Duration = Duration::from_millis(50);
/// Connections that the control thread accepts from one listener before it looks at the others.
const ACCEPTED_A_TURN: usize = 256;
/// A lane keeps a connection while it has at most 1/`SLACK_PART` more connections than the lane with the
/// fewest.
const SLACK_PART: usize = 8;

impl Acceptor {
    /// Lets lanes accept, when the server starts.
    pub(crate) fn begin(&self, shared: &Shared) {
        let mut state = self.state();
        state.spare = spare_descriptor();
        shared.gauges.accepting.store(true, Relaxed);
        self.open.store(true, Release);
    }

    /// Stops accepting for good, when the server leaves.
    pub(crate) fn shut(&self) {
        let mut state = self.state();
        state.shut = true;
        state.spare = None;
        self.open.store(false, Release);
    }

    /// Whether lanes may accept.
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Acquire)
    }

    /// Accepts at most `most` connections. `own`: the lane that accepts, which gets its connections by
    /// `keep`; None: the control thread, which may accept during a pause. Also returns whether another lane
    /// has got a connection.
    pub(crate) fn accept(
        &self,
        shared: &Shared,
        socket: &ListeningSocket,
        most: usize,
        own: Option<usize>,
        mut keep: impl FnMut(Arc<ConnectionInfo>),
    ) -> (AcceptEnd, bool) {
        let mut handed_on = false;
        for _ in 0..most {
            match self.attempt(shared, socket, own) {
                AcceptOutcome::Kept(info) => keep(info),
                AcceptOutcome::HandedOn => handed_on = true,
                AcceptOutcome::Gone => {}
                AcceptOutcome::None(why) => return (why, handed_on),
            }
        }
        (AcceptEnd::All, handed_on)
    }

    fn attempt(&self, shared: &Shared, socket: &ListeningSocket, own: Option<usize>) -> AcceptOutcome {
        let mut state = self.state();
        if own.is_some() && !self.is_open() {
            return AcceptOutcome::None(AcceptEnd::Closed);
        }
        let now = || shared.clock.now();
        let is_full = is_full(shared);
        if is_full && !shared.settings.connections_max_fast {
            self.pause(&mut state, None, shared);
            return AcceptOutcome::None(AcceptEnd::Closed);
        }
        let listener = &socket.listener.fd;
        let (fd, peer) = match acceptfrom_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(accepted) => accepted,
            Err(Errno::AGAIN) => return AcceptOutcome::None(AcceptEnd::Enough),
            Err(Errno::INTR | Errno::CONNABORTED | Errno::PROTO) => return AcceptOutcome::Gone,
            // The system looks for a free descriptor before it looks for a client.
            Err(_) if !is_readable(listener) => return AcceptOutcome::None(AcceptEnd::Enough),
            Err(error) => {
                state.note_shortage(error, shared);
                if state.refuse_with_spare(error, listener, shared) {
                    return AcceptOutcome::Gone;
                }
                self.pause(&mut state, Some(now() + RETRY), shared);
                return AcceptOutcome::None(AcceptEnd::Closed);
            }
        };
        let is_short = shared.is_memory_short();
        if is_full || is_short {
            drop(state);
            shared.shortage.refused.fetch_add((!is_full).into(), Relaxed);
            refuse(&fd, shared);
            return AcceptOutcome::Gone;
        }
        state.accepted += 1;
        let number = state.accepted;
        let lane = choose(shared.lanes.iter().map(|lane| lane.connections.load(Relaxed)), own);
        shared.count_in(lane);
        // Another lane is told under the lock, so before the server can begin to leave.
        let others = (own != Some(lane)).then_some(state);
        let address = peer.and_then(|peer: SocketAddrAny| SocketAddr::try_from(peer).ok());
        let peer_key = peer_key(address, &fd);
        let info = Arc::new(ConnectionInfo {
            number,
            address,
            peer_key,
            listener: Arc::clone(&socket.info),
            last_command: AtomicU32::new(shared.clock.seconds()),
            writing: false.into(),
            held: false.into(),
            doing: 0.into(),
            fd,
        });
        let raw = info.fd.as_raw_fd();
        shared.connections.lock().expect("nobody panics with it held").insert(raw, Arc::clone(&info));
        if others.is_none() {
            return AcceptOutcome::Kept(info);
        }
        shared.lanes[lane].tell(Message::Serve(info));
        AcceptOutcome::HandedOn
    }

    /// Begins a pause, or continues it: new connections stay in the backlog.
    fn pause(&self, state: &mut AcceptorState, again: Option<Instant>, shared: &Shared) {
        if let Some(pause) = &mut state.paused {
            pause.again = again;
            return;
        }
        state.paused = Some(Pause { since: shared.clock.now(), again });
        self.open.store(false, Release);
        shared.gauges.listen_disabled.fetch_add(1, Relaxed);
        shared.gauges.accepting.store(false, Relaxed);
        // The control thread is woken to plan the next attempt, and because a connection that has closed just
        // now may not have woken it.
        shared.control.wake();
    }

    /// Begins a pause since a lane cannot poll a listener; the attempt is repeated later.
    pub(crate) fn pause_for_poller(&self, shared: &Shared) {
        self.pause(&mut self.state(), Some(shared.clock.now() + RETRY), shared);
    }

    /// The longest time that the control thread may wait, at most `most`: until the next attempt is due.
    pub(crate) fn until_retry(&self, most: Duration, shared: &Shared) -> Duration {
        if self.is_open() {
            return most;
        }
        let Some(again) = self.state().paused.and_then(|pause| pause.again) else { return most };
        // The poller takes a time in the past as no limit.
        most.min(again.saturating_duration_since(shared.clock.now()) + Duration::from_millis(1))
    }

    /// Ends a pause if connections can be accepted; called by the control thread. `woken`: a connection has
    /// closed.
    pub(crate) fn retry(&self, sockets: &[ListeningSocket], woken: bool, shared: &Shared) {
        if self.is_open() {
            return;
        }
        {
            let mut state = self.state();
            let Some(pause) = state.paused else { return };
            if is_full(shared) || pause.again.is_some_and(|again| !woken && shared.clock.now() < again) {
                return;
            }
            if shared.settings.connections_max_fast {
                // With the spare, every waiting client can get the error, and none waits forever.
                state.refill();
            }
        }
        // The clients that wait are served before the listeners are polled again: otherwise lanes would wake
        // for the same connections.
        for socket in sockets {
            let (end, _) = self.accept(shared, socket, ACCEPTED_A_TURN, None, drop);
            if end == AcceptEnd::Closed {
                return;
            }
        }
        let mut state = self.state();
        let Some(pause) = state.paused.take() else { return };
        let gauges = &shared.gauges;
        let lasted = shared.clock.now().saturating_duration_since(pause.since);
        gauges.listen_disabled_micros.fetch_add(lasted.as_micros() as u64, Relaxed);
        gauges.accepting.store(true, Relaxed);
        self.reopen(&state, shared);
    }

    /// Runs `read`, which may use the spare's descriptor: no connection is accepted meanwhile.
    pub(crate) fn lend_spare(&self, shared: &Shared, read: impl FnOnce()) {
        {
            let mut state = self.state();
            state.lent = true;
            state.spare = None;
            self.open.store(false, Release);
        }
        read();
        let mut state = self.state();
        state.lent = false;
        state.refill();
        self.reopen(&state, shared);
    }

    /// Opens the spare descriptor again if it was lost; called once a second.
    pub(crate) fn refill(&self) {
        self.state().refill();
    }

    fn reopen(&self, state: &AcceptorState, shared: &Shared) {
        if state.paused.is_none() && !state.lent && !state.shut {
            self.open.store(true, Release);
            shared.lanes.iter().for_each(|lane| lane.waker.wake());
        }
    }

    fn state(&self) -> MutexGuard<'_, AcceptorState> {
        self.state.lock().expect("nobody panics with it held")
    }
}

impl AcceptorState {
    fn refill(&mut self) {
        if self.spare.is_none() && !self.shut {
            self.spare = spare_descriptor();
        }
    }

    /// Counts a failure to accept, and logs the first of a second.
    fn note_shortage(&mut self, error: Errno, shared: &Shared) {
        shared.gauges.accept_errors.fetch_add(1, Relaxed);
        self.shortages.since_logged += 1;
        let second = Some(shared.clock.seconds());
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

    /// Accepts one connection in place of the spare descriptor, sends it the error and closes it. False: this
    /// failed, and the client waits in the backlog.
    fn refuse_with_spare(&mut self, error: Errno, listener: &OwnedFd, shared: &Shared) -> bool {
        let helps = matches!(error, Errno::MFILE | Errno::NFILE) && shared.settings.connections_max_fast;
        if !helps || self.spare.take().is_none() {
            return false;
        }
        // Another thread may take the free descriptor first; then the next attempt fails and finds no spare.
        let accepted = acceptfrom_with(listener, SocketFlags::CLOEXEC);
        if let Ok((fd, _)) = &accepted {
            refuse(fd, shared);
        }
        drop(accepted);
        self.spare = spare_descriptor();
        true
    }
}

fn is_full(shared: &Shared) -> bool {
    shared.gauges.current.load(Relaxed) >= shared.settings.connections_max
}

/// Sends the error "no room"; the caller closes the connection.
fn refuse(fd: &OwnedFd, shared: &Shared) {
    shared.gauges.rejected.fetch_add(1, Relaxed);
    // A failed send needs no handling: the client has gone, or will see that the connection ends.
    let text = format!("{}\r\n", reply::error::TOO_MANY_CONNECTIONS);
    let _told = send(fd, text.as_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// Chooses the lane for a new connection by the number of connections of each lane.
fn choose(counts: impl Iterator<Item = usize>, own: Option<usize>) -> usize {
    let (mut fewest, mut least, mut of_own) = (0, usize::MAX, usize::MAX);
    for (lane, count) in counts.enumerate() {
        if count < least {
            (fewest, least) = (lane, count);
        }
        if own == Some(lane) {
            of_own = count;
        }
    }
    let keeps = of_own <= least.saturating_add(least / SLACK_PART);
    own.filter(|_| keeps).unwrap_or(fewest)
}

/// An unused event descriptor as the spare; None if no descriptor is left.
fn spare_descriptor() -> Option<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC).ok()
}

fn is_readable(fd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

/// The peer for limits: a client's IP address, or for a Unix socket the process. Processes outside of our
/// namespace, which all have the id 0, count as one peer.
fn peer_key(peer: Option<SocketAddr>, fd: &OwnedFd) -> PeerKey {
    match peer {
        // A client has the same key whether it connects by IPv4 or by an IPv4-mapped address.
        Some(address) => PeerKey::Address(address.ip().to_canonical()),
        // This uses nix since the credentials of rustix cannot hold process 0.
        None => PeerKey::Process(PeerCredentials.get(fd).map_or(0, |credentials| credentials.pid())),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use cattlegrid_config::{Command, parse_args};

    use super::*;
    use crate::lane::Lane;
    use crate::listen::Address;

    #[test]
    fn a_peer_is_an_address_or_a_process() {
        let (socket, _other) = UnixStream::pair().unwrap();
        let fd = OwnedFd::from(socket);
        let key = |address: &str| peer_key(Some(address.parse().unwrap()), &fd);
        assert_eq!(key("127.0.0.1:1"), PeerKey::Address("127.0.0.1".parse().unwrap()));
        assert_eq!(key("[::ffff:127.0.0.1]:2"), key("127.0.0.1:1"));
        assert_ne!(key("[::1]:1"), key("127.0.0.1:1"));
        assert_eq!(peer_key(None, &fd), PeerKey::Process(std::process::id().cast_signed()));
    }

    #[test]
    fn a_lane_keeps_what_it_accepts_unless_it_has_more_than_another() {
        let choose = |counts: &[usize], own| choose(counts.iter().copied(), own);
        assert_eq!(choose(&[3], Some(0)), 0);
        assert_eq!(choose(&[0, 0], Some(1)), 1);
        assert_eq!(choose(&[0, 1, 0], Some(1)), 0);
        assert_eq!(choose(&[8, 9, 8], Some(1)), 1, "one in eight more");
        assert_eq!(choose(&[9, 10, 8], Some(1)), 2);
        assert_eq!(choose(&[2, 1, 1], None), 1);
    }

    struct AcceptorBed {
        shared: Arc<Shared>,
        socket: ListeningSocket,
        clients: Vec<TcpStream>,
    }

    impl AcceptorBed {
        fn new(words: &[&str]) -> Self {
            let all = ["-m", "16"].iter().chain(words).copied();
            let Ok(Command::Serve(settings)) = parse_args(all) else { panic!("options") };
            let shared = crate::shared::build::alone(*settings);
            shared.acceptor.begin(&shared);
            let socket = TcpListener::bind("127.0.0.1:0").unwrap();
            socket.set_nonblocking(true).unwrap();
            let address = Address::Tcp(socket.local_addr().unwrap());
            let socket = ListeningSocket::new(Listener { fd: socket.into(), address, tls: false });
            Self { shared, socket, clients: Vec::new() }
        }

        fn connect(&mut self) {
            let Address::Tcp(address) = &self.socket.listener.address else { panic!("a path") };
            self.clients.push(TcpStream::connect(address).unwrap());
        }

        /// A lane accepts what waits; the lanes that get it, and the end.
        fn accept(&self, own: usize) -> (Vec<(usize, Arc<ConnectionInfo>)>, AcceptEnd) {
            let mut served = Vec::new();
            let keep = |info| served.push((own, info));
            let (end, handed_on) =
                self.shared.acceptor.accept(&self.shared, &self.socket, 16, Some(own), keep);
            let others = self.told();
            assert_eq!(handed_on, !others.is_empty());
            served.extend(others);
            (served, end)
        }

        /// Connections that lanes are told of.
        fn told(&self) -> Vec<(usize, Arc<ConnectionInfo>)> {
            let mut served = Vec::new();
            for (number, lane) in self.shared.lanes.iter().enumerate() {
                for message in lane.take_messages() {
                    let Message::Serve(info) = message else { panic!("another message") };
                    served.push((number, info));
                }
            }
            served
        }

        fn forget(&self, served: Vec<(usize, Arc<ConnectionInfo>)>) {
            for (lane, info) in served {
                self.shared.forget(lane, info);
            }
        }
    }

    #[test]
    fn connections_that_stay_are_spread_whichever_lane_accepts() {
        let mut bed = AcceptorBed::new(&["-t", "4"]);
        let mut lanes = Vec::new();
        let mut numbers = Vec::new();
        for _ in 0..8 {
            bed.connect();
            let (served, end) = bed.accept(2);
            assert_eq!(end, AcceptEnd::Enough);
            lanes.extend(served.iter().map(|(lane, _)| *lane));
            numbers.extend(served.iter().map(|(_, info)| info.number));
        }
        lanes.sort_unstable();
        assert_eq!(lanes, [0, 0, 1, 1, 2, 2, 3, 3]);
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn connections_that_close_again_stay_with_the_lane_that_accepts() {
        let mut bed = AcceptorBed::new(&["-t", "2"]);
        for own in [1, 1, 0, 1] {
            bed.connect();
            let (served, _) = bed.accept(own);
            assert_eq!(served[0].0, own);
            bed.forget(served);
        }
        assert!(bed.shared.connections.lock().unwrap().is_empty());
        assert_eq!(bed.shared.gauges.current.load(Relaxed), 0);
    }

    #[test]
    fn the_limit_pauses_the_acceptor_until_a_connection_has_gone() {
        let mut bed = AcceptorBed::new(&["-t", "2", "-c", "1", "-o", "no_maxconns_fast"]);
        (0..3).for_each(|_| bed.connect());
        let (served, end) = bed.accept(0);
        assert_eq!((served.len(), end), (1, AcceptEnd::Closed));
        let (shared, acceptor) = (&bed.shared, &bed.shared.acceptor);
        assert!(!acceptor.is_open() && !shared.gauges.accepting.load(Relaxed));
        assert_eq!(bed.accept(1).1, AcceptEnd::Closed);
        let sockets = std::slice::from_ref(&bed.socket);
        acceptor.retry(sockets, true, shared);
        assert!(!acceptor.is_open(), "still full");
        bed.forget(served);
        acceptor.retry(sockets, true, shared);
        assert_eq!(shared.gauges.current.load(Relaxed), 1, "the control thread has accepted the next");
        assert!(!acceptor.is_open(), "full again");
        assert_eq!(shared.gauges.listen_disabled.load(Relaxed), 1, "one pause");
        for left in [1, 0] {
            bed.forget(bed.told());
            acceptor.retry(sockets, true, shared);
            assert_eq!(shared.gauges.current.load(Relaxed), left);
        }
        assert!(acceptor.is_open() && shared.gauges.accepting.load(Relaxed));
    }

    #[test]
    fn at_the_limit_clients_are_told() {
        use std::io::Read as _;
        let mut bed = AcceptorBed::new(&["-c", "2"]);
        (0..5).for_each(|_| bed.connect());
        let (served, end) = bed.accept(0);
        assert_eq!((served.len(), end), (2, AcceptEnd::Enough));
        assert_eq!(bed.shared.gauges.rejected.load(Relaxed), 3);
        let mut text = String::new();
        bed.clients[4].read_to_string(&mut text).unwrap();
        assert_eq!(text, "ERROR Too many open connections\r\n");
        assert!(bed.shared.acceptor.is_open());
    }

    /// Through all steps of a lane: accept, first turn, pause, accept again, leave.
    #[test]
    fn a_lane_accepts_until_it_leaves() {
        use std::io::{Read as _, Write as _};
        let mut bed = AcceptorBed::new(&["-t", "1", "-c", "50"]);
        let (shared, Address::Tcp(address)) = (Arc::clone(&bed.shared), bed.socket.listener.address.clone())
        else {
            panic!("a path")
        };
        let mut lane = Lane::new(&shared, 0).unwrap();
        for _ in 0..50 {
            bed.connect();
            bed.clients.last().unwrap().write_all(b"mn\r\n").unwrap();
        }
        let AcceptorBed { socket, mut clients, .. } = bed;
        lane.accept_from(Arc::new([socket])).unwrap();
        let rounds = |lane: &mut Lane<'_>| {
            (0..12).for_each(|_| assert!(lane.round(Some(Duration::ZERO)).unwrap()));
        };
        rounds(&mut lane);
        for client in &mut clients {
            let mut reply = [0; 4];
            client.read_exact(&mut reply).unwrap();
            assert_eq!(&reply, b"MN\r\n");
        }
        // Files are read: the lane finds the acceptor paused, and is woken.
        let newcomer = TcpStream::connect(address);
        clients.pop();
        shared.acceptor.lend_spare(&shared, || rounds(&mut lane));
        assert_eq!(shared.gauges.current.load(Relaxed), 49);
        rounds(&mut lane);
        assert_eq!(shared.gauges.current.load(Relaxed), 50);
        drop((newcomer, clients));
        rounds(&mut lane);
        assert_eq!(shared.gauges.current.load(Relaxed), 0);
        shared.acceptor.shut();
        shared.lanes[0].tell(Message::Drain);
        assert!(!lane.round(None).unwrap(), "it has left");
        assert!(TcpStream::connect(address).is_err(), "the listener is closed");
    }

    #[test]
    fn nobody_accepts_while_files_are_read_or_the_server_leaves() {
        let mut bed = AcceptorBed::new(&[]);
        bed.connect();
        bed.shared.acceptor.lend_spare(&bed.shared, || assert_eq!(bed.accept(0).1, AcceptEnd::Closed));
        assert!(bed.shared.acceptor.is_open());
        bed.shared.acceptor.shut();
        bed.shared.acceptor.lend_spare(&bed.shared, || {});
        assert_eq!(bed.accept(0).1, AcceptEnd::Closed);
    }
}
