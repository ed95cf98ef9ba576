//! The server, asked over a socket by a thread of its own, so that a server that hangs holds no key up.
//!
//! # Invariants
//! * Every step has a deadline: [`CONNECT`] for a connection, [`ANSWER`] for all replies to what is asked at
//!   the same time.
//! * A large reply is asked for less often: at [`BYTES_PER_SECOND`] at most.
//! * What a user may not see, or a server does not know, is asked for once a connection.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufReader, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::Duration;

use cattlegrid_config::TopCommand;
use cattlegrid_load::Tls;
use cattlegrid_server::time::{nanos, unix_now};

use super::hot::{KeySketches, PAUSED, WATCHED, watch};
use super::model::ServerUpdate;
use super::reply::{StatsReply, StatsRequest, plain, read_line, read_reply, wrong};
use crate::socket::Socket;

/// Longest wait for a connection to each address.
const CONNECT: Duration = Duration::from_secs(2);
/// Longest wait for all replies.
const ANSWER: Duration = Duration::from_secs(5);
/// Between two attempts to connect.
const AGAIN_MS: u64 = 1000;
/// The limit of traffic for one group: a group is asked again only after its reply's bytes divided by this,
/// in seconds.
const BYTES_PER_SECOND: u64 = 256 << 10;
/// The requests that are sent whatever page is open.
const ALWAYS: [StatsRequest; 6] = [
    StatsRequest::Stats,
    StatsRequest::Cattlegrid,
    StatsRequest::Rules,
    StatsRequest::Tags,
    StatsRequest::Loaders,
    StatsRequest::Follow,
];

/// The requests that the screen needs.
#[derive(Debug, Clone)]
pub(super) struct PollSettings {
    pub(super) interval_ms: u64,
    pub(super) paused: bool,
    /// Beyond [`ALWAYS`].
    pub(super) asks: &'static [StatsRequest],
}

/// Milliseconds of a clock that never goes back.
pub(super) fn millis_now() -> u64 {
    nanos() / 1_000_000
}

/// How the server is reached.
#[derive(Debug)]
pub(super) struct StatsTarget {
    address: String,
    tls: Option<Tls>,
    /// User and password.
    login: Option<(String, String)>,
}

impl StatsTarget {
    /// # Errors
    /// The file of the login or of the authorities cannot be used; the text names it.
    pub(super) fn new(command: &TopCommand) -> Result<Self, String> {
        let tls = command.tls.then(|| Tls::new(&command.address, command.tls_ca.as_deref(), false));
        let login = command.login.as_ref().map(|file| {
            let failed = |what: &dyn std::fmt::Display| format!("--login {}: {what}", file.display());
            let text = fs::read_to_string(file).map_err(|error| failed(&error))?;
            let line = text.lines().next().unwrap_or_default();
            let (user, password) =
                line.split_once(':').ok_or_else(|| failed(&"its first line must be user:password"))?;
            Ok::<_, String>((user.to_owned(), password.to_owned()))
        });
        Ok(Self {
            address: command.address.clone(),
            tls: tls.transpose().map_err(|error| error.to_string())?,
            login: login.transpose()?,
        })
    }

    /// A connection, logged in.
    ///
    /// # Errors
    /// The system's, and what the server says to the login.
    pub(super) fn connect(&self) -> io::Result<StatsConnection> {
        let until = SharedDeadline::default();
        until.set(CONNECT + ANSWER);
        let socket = Socket::connect(&self.address, CONNECT)?;
        let socket = TimedSocket { socket, until: until.clone() };
        let stream: Box<dyn ByteStream> = match &self.tls {
            None => Box::new(socket),
            Some(tls) => Box::new(tls.over(socket)?),
        };
        let mut reader = BufReader::with_capacity(64 << 10, stream);
        if let Some((user, password)) = &self.login {
            let words = format!("{user} {password}");
            let request = format!("set login 0 0 {}\r\n{words}\r\n", words.len());
            reader.get_mut().write_all(request.as_bytes())?;
            reader.get_mut().flush()?;
            let said = plain(&read_line(&mut reader)?);
            if said != "STORED" {
                return Err(wrong(&format!("the login of {} was refused: {said}", plain(user.as_bytes()))));
            }
        }
        Ok(StatsConnection { reader, until })
    }
}

/// The moment at which waiting ends, in nanoseconds of the clock.
#[derive(Debug, Clone, Default)]
struct SharedDeadline(Arc<AtomicU64>);

impl SharedDeadline {
    fn set(&self, wait: Duration) {
        self.0.store(nanos().saturating_add(wait.as_nanos() as u64), Ordering::Relaxed);
    }

    fn left(&self) -> Option<Duration> {
        let left = self.0.load(Ordering::Relaxed).saturating_sub(nanos());
        (left > 0).then(|| Duration::from_nanos(left).max(Duration::from_millis(1)))
    }
}

/// A socket whose reads end at a moment, however slowly bytes come.
struct TimedSocket {
    socket: Socket,
    until: SharedDeadline,
}

impl Read for TimedSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.until.left().ok_or(io::ErrorKind::TimedOut)?;
        self.socket.set_read_timeout(left)?;
        self.socket.read(buffer)
    }
}

impl Write for TimedSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

/// Plain or over TLS.
trait ByteStream: Read + Write + Send {}

impl<S: Read + Write + Send> ByteStream for S {}

/// A connection to the server.
pub(super) struct StatsConnection {
    reader: BufReader<Box<dyn ByteStream>>,
    until: SharedDeadline,
}

/// When what is asked for.
#[derive(Debug, Default)]
struct PollSchedule {
    due_ms: BTreeMap<StatsRequest, u64>,
    /// There is a rule file: control keys are no ordinary ones, which a get of would count as a miss.
    has_rules: bool,
}

impl PollSchedule {
    /// The requests that are due, in the order of sending.
    fn due(&self, now_ms: u64, order: &PollSettings) -> Vec<StatsRequest> {
        let is_wanted = |ask: &StatsRequest| ALWAYS.contains(ask) || order.asks.contains(ask);
        let is_due = |ask: &StatsRequest| self.due_ms.get(ask).is_none_or(|due| *due <= now_ms);
        let may = |ask: &StatsRequest| !ask.is_get() || self.has_rules;
        StatsRequest::ALL.into_iter().filter(|ask| is_wanted(ask) && is_due(ask) && may(ask)).collect()
    }

    /// How long it is until something is due.
    fn wait_ms(&self, now_ms: u64, order: &PollSettings) -> u64 {
        let wanted = ALWAYS.iter().chain(order.asks).filter(|ask| !ask.is_get() || self.has_rules);
        let due = wanted.map(|ask| self.due_ms.get(ask).copied().unwrap_or(0)).min();
        due.unwrap_or(0).saturating_sub(now_ms)
    }

    fn answered(
        &mut self,
        ask: StatsRequest,
        now_ms: u64,
        reply: &StatsReply,
        bytes: usize,
        interval_ms: u64,
    ) {
        let next = match reply {
            StatsReply::Absent | StatsReply::Refused(_) => u64::MAX,
            StatsReply::Lines(_) | StatsReply::Value(_) => {
                let least = bytes as u64 * 1000 / BYTES_PER_SECOND;
                // A tick that comes a little early is not one too early.
                now_ms + interval_ms.max(least).saturating_sub(interval_ms / 20)
            }
        };
        if let (StatsRequest::Rules, StatsReply::Lines(group)) = (ask, reply) {
            self.has_rules = !group.blocks.is_empty();
        }
        self.due_ms.insert(ask, next);
    }
}

/// Asks a server.
pub(super) struct Poller {
    target: Arc<StatsTarget>,
    connection: Option<StatsConnection>,
    schedule: PollSchedule,
    own_gets: u64,
}

impl Poller {
    pub(super) fn new(target: Arc<StatsTarget>) -> Self {
        Self { target, connection: None, schedule: PollSchedule::default(), own_gets: 0 }
    }

    /// Asks for what is due, and gives each reply to `send`.
    ///
    /// # Errors
    /// There is no connection, or it has failed; the next call makes another one.
    pub(super) fn poll(
        &mut self,
        order: &PollSettings,
        mut send: impl FnMut(ServerUpdate),
    ) -> io::Result<()> {
        let result = self.try_poll(order, &mut send);
        if result.is_err() {
            self.connection = None;
        }
        result
    }

    fn try_poll(&mut self, order: &PollSettings, send: &mut impl FnMut(ServerUpdate)) -> io::Result<()> {
        let begun_ms = millis_now();
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => {
                self.schedule = PollSchedule::default();
                none.insert(self.target.connect()?)
            }
        };
        connection.until.set(ANSWER);
        let due = self.schedule.due(begun_ms, order);
        let mut request = String::new();
        for ask in &due {
            request.push_str(ask.command());
            request.push_str("\r\n");
        }
        connection.reader.get_mut().write_all(request.as_bytes())?;
        connection.reader.get_mut().flush()?;
        let own_gets = self.own_gets;
        for ask in due {
            let (reply, bytes) = read_reply(&mut connection.reader, ask)?;
            if let (StatsRequest::Stats, StatsReply::Refused(said)) = (ask, &reply) {
                let hint = if self.target.login.is_none() { "; --login FILE logs in" } else { "" };
                return Err(wrong(&format!("it answers {said:?}{hint}")));
            }
            self.own_gets += u64::from(ask.is_get());
            self.schedule.answered(ask, begun_ms, &reply, bytes, order.interval_ms);
            send(ServerUpdate::Reply { ask, at_ms: begun_ms, reply, own_gets });
        }
        send(ServerUpdate::Done { took_ms: millis_now() - begun_ms });
        Ok(())
    }
}

/// An error in the words of a banner.
pub(super) fn words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("no answer within {} s", ANSWER.as_secs())
        }
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        _ => {
            let text = error.to_string();
            if text.contains("InvalidContentType") {
                "it does not speak TLS at this address; leave --tls out".to_owned()
            } else if text.contains("CaUsedAsEndEntity") {
                "its certificate is that of an authority (CA:TRUE), which no server may show: make it one of its own".to_owned()
            } else {
                text
            }
        }
    }
}

/// Asks until the screen has gone.
pub(super) fn run(
    mut poller: Poller,
    mut order: PollSettings,
    orders: &Receiver<PollSettings>,
    updates: &SyncSender<ServerUpdate>,
) {
    let mut again_ms = 0;
    loop {
        let now_ms = millis_now();
        let wait = if order.paused {
            Duration::from_secs(3600)
        } else if again_ms > 0 {
            Duration::from_millis(std::mem::take(&mut again_ms))
        } else {
            Duration::from_millis(poller.schedule.wait_ms(now_ms, &order))
        };
        match orders.recv_timeout(wait) {
            Ok(new) => {
                // A shorter interval counts at once.
                if new.interval_ms < order.interval_ms {
                    poller.schedule.due_ms.retain(|_, due| *due == u64::MAX);
                }
                order = new;
                continue;
            }
            Err(RecvTimeoutError::Timeout) if order.paused => continue,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let mut is_gone = false;
        let result = poller.poll(&order, |update| is_gone |= updates.send(update).is_err());
        if let Err(error) = result {
            again_ms = AGAIN_MS;
            let (at_ms, unix_seconds) = (millis_now(), unix_now().as_secs());
            is_gone |= updates
                .send(ServerUpdate::Lost { at_ms, unix_seconds, why: words(&error), again_ms })
                .is_err();
        }
        if is_gone {
            return;
        }
    }
}

/// Watches requests for a second in four, while it is told to.
pub(super) fn run_hot(target: &StatsTarget, wanted: &Receiver<bool>, updates: &SyncSender<ServerUpdate>) {
    let mut counts = KeySketches::new();
    let mut is_on = false;
    loop {
        let told = if is_on {
            wanted.recv_timeout(PAUSED)
        } else {
            wanted.recv().map_err(|_| RecvTimeoutError::Disconnected)
        };
        match told {
            Ok(told) if told == is_on => continue,
            Ok(told) => is_on = told,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if !is_on {
            continue;
        }
        let update = match look(target, &mut counts, wanted, &mut is_on) {
            Ok(update) => update,
            Err(error) => ServerUpdate::Unwatched(words(&error)),
        };
        if is_on && updates.send(update).is_err() {
            return;
        }
    }
}

/// One look at the requests.
pub(super) fn look(
    target: &StatsTarget,
    counts: &mut KeySketches,
    wanted: &Receiver<bool>,
    is_on: &mut bool,
) -> io::Result<ServerUpdate> {
    let mut connection = target.connect()?;
    let dropped = dropped(&mut connection)?;
    let StatsConnection { reader, until } = connection;
    until.set(ANSWER);
    counts.begin();
    let begun = nanos();
    watch(reader.into_inner(), counts, || {
        // Each read returns now and then, to look at the time and at what is wanted.
        until.set(Duration::from_millis(50));
        if let Ok(told) = wanted.try_recv() {
            *is_on = told;
        }
        !*is_on || nanos() - begun >= WATCHED.as_nanos() as u64
    })?;
    let seconds = (nanos() - begun) as f64 / 1e9;
    // A connection that watches takes no other command.
    counts.left_out(self::dropped(&mut target.connect()?)?.saturating_sub(dropped));
    Ok(ServerUpdate::Hot(counts.end(seconds)))
}

/// How many events the server has not even written, since its queues were full; 0 if it does not say.
fn dropped(connection: &mut StatsConnection) -> io::Result<u64> {
    connection.until.set(ANSWER);
    connection.reader.get_mut().write_all(b"stats\r\n")?;
    connection.reader.get_mut().flush()?;
    let StatsReply::Lines(group) = read_reply(&mut connection.reader, StatsRequest::Stats)?.0 else {
        return Ok(0);
    };
    Ok(group.get("", "log_worker_dropped").and_then(|count| count.parse().ok()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(asks: &'static [StatsRequest]) -> PollSettings {
        PollSettings { interval_ms: 1000, paused: false, asks }
    }

    fn lines(text: &str) -> StatsReply {
        read_reply(&mut text.as_bytes(), StatsRequest::Rules).unwrap().0
    }

    #[test]
    fn views_and_rules_decide_what_is_asked_for() {
        let mut schedule = PollSchedule::default();
        assert_eq!(schedule.due(0, &order(&[])), ALWAYS);
        let slow = order(&[StatsRequest::Slow, StatsRequest::Leases]);
        assert!(!schedule.due(0, &slow).contains(&StatsRequest::Slow), "it may be an ordinary key");
        schedule.answered(StatsRequest::Rules, 0, &lines("STAT 1:match a\r\nEND\r\n"), 20, 1000);
        assert_eq!(schedule.due(0, &slow).last(), Some(&StatsRequest::Slow));
        assert!(!schedule.due(900, &slow).contains(&StatsRequest::Rules));
        assert!(schedule.due(950, &slow).contains(&StatsRequest::Rules));
    }

    #[test]
    fn large_replies_are_asked_for_less_often_and_refused_ones_no_more() {
        let mut schedule = PollSchedule::default();
        let mut answered = |ask, reply: &StatsReply, bytes| schedule.answered(ask, 0, reply, bytes, 1000);
        for ask in ALWAYS {
            answered(ask, &lines("END\r\n"), 5);
        }
        answered(StatsRequest::Rules, &lines("END\r\n"), 2 << 20);
        answered(StatsRequest::Tags, &StatsReply::Refused("not allowed".to_owned()), 20);
        assert_eq!(schedule.wait_ms(0, &order(&[])), 950);
        assert!(!schedule.due(7_900, &order(&[])).contains(&StatsRequest::Rules));
        assert!(schedule.due(8_000, &order(&[])).contains(&StatsRequest::Rules));
        assert!(!schedule.due(u64::MAX - 1, &order(&[])).contains(&StatsRequest::Tags));
    }

    #[test]
    fn a_server_that_hangs_or_trickles_is_left() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mut socket = Socket::connect(&address, CONNECT).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        peer.write_all(b"STAT pid 1\r\nSTAT up").unwrap();
        let until = SharedDeadline::default();
        until.set(Duration::from_millis(80));
        let mut reader = BufReader::new(TimedSocket { socket: socket.try_clone().unwrap(), until });
        let error = read_reply(&mut reader, StatsRequest::Stats).unwrap_err();
        assert_eq!(words(&error), "no answer within 5 s");
        // Bytes that come later are not waited for either.
        peer.write_all(b"time 1\r\n").unwrap();
        assert!(read_reply(&mut reader, StatsRequest::Stats).is_err());
        socket.flush().unwrap();
    }
}
