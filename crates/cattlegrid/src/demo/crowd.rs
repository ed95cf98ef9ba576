//! Many clients of one key, each of which computes the value after a miss, as a client of plain memcached
//! does.
//!
//! All are played by one thread. A client asks; on a miss it computes, which takes a place of the [`Backend`]
//! for a while, stores the value and has it. Every value names the computation it came from, so that each
//! reply can be checked.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cattlegrid_load::{BenchError, Fault, Meter, Peer, Tally};
use cattlegrid_protocol::{ParsedResponse, Response, Status, parse_response};
use cattlegrid_server::poller::{Poller, Wish};
use cattlegrid_server::time::Clock;
use socket2::Socket;

use super::DemoError;

/// A backend that computes for the clients: at most a fixed number of keys at a time, first come first
/// served, each in the same time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Backend {
    pub(super) at_once: usize,
    pub(super) takes: Duration,
}

/// The task of all clients of a crowd: to get one key, and to compute it after a miss.
#[derive(Debug, Clone)]
pub(super) struct CrowdTask<'a> {
    pub(super) key: &'a str,
    /// The exptime of stored values.
    pub(super) exptime: u32,
    pub(super) backend: Backend,
    /// How long clients ask again after a value was stored; None: each client asks once.
    pub(super) again_for: Option<Duration>,
}

/// The replies that the clients got, counted.
pub(super) struct CrowdResult {
    /// The number of computations.
    pub(super) computed: u64,
    /// The number of gets answered with a value.
    pub(super) hits: u64,
    /// The number of hits while a computation was under way.
    pub(super) hits_meanwhile: u64,
    /// Times from a get to its value. Under `again_for` only gets that were answered during a computation.
    pub(super) tally: Tally,
}

/// Connected clients.
pub(super) struct Crowd<'m> {
    meter: &'m Meter,
    clock: Clock,
    poller: Poller,
    clients: Vec<CrowdClient>,
}

struct CrowdClient {
    socket: Socket,
    input: Vec<u8>,
    state: ClientState,
    asked: Instant,
    /// The lowest version that a reply may have: the last one stored before the get.
    floor: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientState {
    Idle,
    Asked,
    Computing,
    /// The client stores this version.
    Storing(u64),
}

/// A reply to a client.
enum CrowdReply {
    Miss,
    Hit(String),
    Stored,
}

/// A server that sends nothing for this long, while no client computes, counts as lost.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest time of a run.
const LONGEST: Duration = Duration::from_secs(60);
const ROUND: Duration = Duration::from_millis(50);

/// The state of a run.
struct CrowdRun<'a> {
    play: &'a CrowdTask<'a>,
    seen: CrowdResult,
    /// Clients that wait for the backend.
    queue: VecDeque<usize>,
    /// Clients that the backend computes for, each with the time when it is done, in order.
    busy: VecDeque<(Instant, usize)>,
    /// The last version whose store was acknowledged, with the time.
    stored: (u64, Option<Instant>),
    /// The number of clients that are not idle.
    active: usize,
    now: Instant,
}

impl<'m> Crowd<'m> {
    pub(super) fn open(peer: &Peer, size: usize, meter: &'m Meter) -> Result<Self, DemoError> {
        let (clock, poller) = (Clock::new(), Poller::new().map_err(DemoError::io("no epoll"))?);
        let mut clients = Vec::with_capacity(size);
        for token in 0..size {
            let socket = peer.connect()?;
            poller.add(&socket, token as u64, Wish::Read).map_err(DemoError::io("epoll"))?;
            let asked = clock.now();
            clients.push(CrowdClient {
                socket,
                input: Vec::new(),
                state: ClientState::Idle,
                asked,
                floor: 0,
            });
        }
        Ok(Self { meter, clock, poller, clients })
    }

    /// Sends a get of a key from all clients.
    pub(super) fn ask(&mut self, key: &str) -> Result<(), DemoError> {
        let line = format!("get {key}\r\n");
        for client in &mut self.clients {
            client.ask(&line, self.clock.now(), 0)?;
        }
        Ok(())
    }

    /// Runs until all clients have the value, or have asked for long enough.
    pub(super) fn run_until_done(&mut self, play: &CrowdTask<'_>) -> Result<CrowdResult, DemoError> {
        let start = self.clock.now();
        let seen = CrowdResult { computed: 0, hits: 0, hits_meanwhile: 0, tally: Tally::new() };
        let mut run = CrowdRun {
            play,
            seen,
            queue: VecDeque::new(),
            busy: VecDeque::new(),
            stored: (0, None),
            active: self.clients.iter().filter(|client| client.state != ClientState::Idle).count(),
            now: start,
        };
        let mut heard = start;
        let mut ready = Vec::new();
        while run.active > 0 {
            let due = run.busy.front().map(|(done, _)| done.saturating_duration_since(run.now));
            let waited =
                self.poller.wait(Some(due.unwrap_or(ROUND).min(ROUND)), |token| ready.push(token as usize));
            waited.map_err(DemoError::io("epoll"))?;
            run.now = self.clock.now();
            if self.meter.stop.load(Ordering::Relaxed) {
                return Err(BenchError::Interrupted.into());
            }
            if !ready.is_empty() || !run.busy.is_empty() {
                heard = run.now;
            } else if run.now.duration_since(heard) > PATIENCE {
                let silent = self.clients.iter().filter(|client| client.state != ClientState::Idle).count();
                return Err(DemoError::Broken(format!("{silent} clients have no answer after 30 seconds")));
            }
            if run.now.duration_since(start) > LONGEST {
                return Err(DemoError::Broken(format!("{}: no end after 60 seconds", play.key)));
            }
            // Arrived replies come first: on a slow machine they were sent before computations ended.
            for token in ready.drain(..) {
                self.receive(token, &mut run)?;
            }
            self.compute(&mut run)?;
        }
        run.seen.tally.elapsed = self.clock.now().duration_since(start);
        Ok(run.seen)
    }

    /// Ends computations that are done, and begins others if the backend has room.
    fn compute(&mut self, run: &mut CrowdRun<'_>) -> Result<(), DemoError> {
        while run.busy.front().is_some_and(|(done, _)| *done <= run.now) {
            let Some((_, token)) = run.busy.pop_front() else { break };
            run.seen.computed += 1;
            let version = run.seen.computed;
            let client = &mut self.clients[token];
            client.state = ClientState::Storing(version);
            let CrowdTask { key, exptime, .. } = run.play;
            let value = value(key, version);
            client.send(&format!("set {key} 0 {exptime} {}\r\n{value}\r\n", value.len()))?;
        }
        while run.busy.len() < run.play.backend.at_once
            && let Some(token) = run.queue.pop_front()
        {
            run.busy.push_back((run.now + run.play.backend.takes, token));
        }
        Ok(())
    }

    fn receive(&mut self, token: usize, run: &mut CrowdRun<'_>) -> Result<(), DemoError> {
        let client = &mut self.clients[token];
        if !client.receive()? {
            return Ok(());
        }
        while let Some(reply) = client.reply()? {
            self.meter.answered.fetch_add(1, Ordering::Relaxed);
            let under_way = !run.busy.is_empty();
            match (client.state, reply) {
                (ClientState::Asked, CrowdReply::Miss) => {
                    client.state = ClientState::Computing;
                    run.queue.push_back(token);
                    // The computation begins now, not in the next round.
                    if run.busy.len() < run.play.backend.at_once
                        && let Some(token) = run.queue.pop_front()
                    {
                        run.busy.push_back((self.clock.now() + run.play.backend.takes, token));
                    }
                    continue;
                }
                (ClientState::Asked, CrowdReply::Hit(text)) => {
                    check(run.play.key, &text, client.floor, run.seen.computed)?;
                    run.seen.hits += 1;
                    run.seen.hits_meanwhile += u64::from(under_way);
                }
                (ClientState::Storing(version), CrowdReply::Stored) => {
                    run.stored = (version.max(run.stored.0), run.stored.1.or(Some(run.now)));
                }
                (_, CrowdReply::Miss) => return Err(unexpected("END")),
                (_, CrowdReply::Hit(text)) => return Err(unexpected(&text)),
                (_, CrowdReply::Stored) => return Err(unexpected("STORED")),
            }
            if run.play.again_for.is_none() || under_way {
                run.seen.tally.answered(run.now.duration_since(client.asked));
            }
            client.state = ClientState::Idle;
            run.active -= 1;
            let goes_on = run.play.again_for.is_some_and(|time| {
                run.stored.1.is_none_or(|stored| run.now.saturating_duration_since(stored) < time)
            });
            if goes_on {
                run.active += 1;
                client.ask(&format!("get {}\r\n", run.play.key), self.clock.now(), run.stored.0)?;
            }
        }
        Ok(())
    }
}

impl CrowdClient {
    fn ask(&mut self, line: &str, now: Instant, floor: u64) -> Result<(), DemoError> {
        (self.state, self.asked, self.floor) = (ClientState::Asked, now, floor);
        self.send(line)
    }

    /// The socket takes a short request as a whole.
    fn send(&mut self, text: &str) -> Result<(), DemoError> {
        self.socket.write_all(text.as_bytes()).map_err(|error| lost(&error))
    }

    /// Receives bytes. Returns whether any came.
    fn receive(&mut self) -> Result<bool, DemoError> {
        let mut buffer = [0; 4096];
        match self.socket.read(&mut buffer) {
            Ok(0) => Err(lost(&io::ErrorKind::UnexpectedEof.into())),
            Ok(received) => {
                self.input.extend_from_slice(&buffer[..received]);
                Ok(true)
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(false)
            }
            Err(error) => Err(lost(&error)),
        }
    }

    /// The next complete reply.
    fn reply(&mut self) -> Result<Option<CrowdReply>, DemoError> {
        let (mut used, mut value) = (0, None);
        let reply = loop {
            let (response, bytes) = match parse_response(&self.input[used..]) {
                ParsedResponse::Complete { response, used } => (response, used),
                ParsedResponse::Partial { .. } => return Ok(None),
                ParsedResponse::Broken(_) => return Err(unexpected(&String::from_utf8_lossy(&self.input))),
            };
            used += bytes;
            match response {
                Response::Value { data, .. } if value.is_none() => value = Some(data),
                Response::End => {
                    break value.map_or(CrowdReply::Miss, |data| {
                        CrowdReply::Hit(String::from_utf8_lossy(data).into_owned())
                    });
                }
                Response::Status(Status::Stored) if value.is_none() => break CrowdReply::Stored,
                _ => return Err(unexpected(&String::from_utf8_lossy(&self.input[..used]))),
            }
        };
        self.input.drain(..used);
        Ok(Some(reply))
    }
}

/// The value that a computation of a key makes. Version 0 is the value from before the play.
pub(super) fn value(key: &str, version: u64) -> String {
    format!("{key}, version {version}")
}

fn check(key: &str, text: &str, floor: u64, computed: u64) -> Result<(), DemoError> {
    let number = text.strip_prefix(key).and_then(|rest| rest.strip_prefix(", version "));
    let version: Option<u64> = number.and_then(|number| number.parse().ok());
    match version {
        Some(version) if version < floor => Err(DemoError::Broken(format!(
            "{key}: version {version} was served, although version {floor} had been stored"
        ))),
        Some(version) if version <= computed => Ok(()),
        _ => Err(unexpected(text)),
    }
}

fn lost(error: &io::Error) -> DemoError {
    BenchError::Lost(format!("a client's connection: {error}")).into()
}

fn unexpected(answer: &str) -> DemoError {
    BenchError::Wrong(Fault::Unexpected { asked: "a get or set", answer: answer.to_owned() }).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_tells_its_version() {
        let key = "page:1";
        check(key, &value(key, 0), 0, 0).unwrap();
        check(key, &value(key, 12), 12, 12).unwrap();
        assert!(matches!(check(key, &value(key, 1), 2, 2), Err(DemoError::Broken(_))));
        assert!(check(key, &value(key, 3), 0, 2).is_err(), "no client has computed that");
        assert!(check(key, &value("page:2", 0), 0, 2).is_err());
    }
}
