//! Many clients ask for one cold key at once.
//!
//! Round by round: every connection sends a get of a key that was never set. Each client that is told that it
//! is missing computes it, which takes a given time, and sets it. A client that gets the value with its first
//! get was *held* by the server, since the value did not exist when it asked. A round ends when all have the
//! value.

use std::collections::VecDeque;
use std::fmt::{self, Display};
use std::io::{self, Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cattlegrid_server::poller::{Poller, Wish};
use cattlegrid_server::time::Clock;
use serde::Serialize;
use socket2::Socket;

use crate::driver::Peer;
use crate::report::micros;
use crate::verify::{Contents, Fault};
use crate::wire::{Element, Memcached, Wire};
use crate::workload::Plan;
use crate::{BenchError, Meter, Process, Spread, Tally, Until, count};

/// The results of stampedes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StampedeReport {
    /// The number of keys, one after the other.
    pub rounds: u64,
    /// The number of clients that ask for each key.
    pub connections: u64,
    /// The time of one computation in milliseconds.
    pub compute_ms: u64,
    /// Gets that were answered with a miss, after which the client computed.
    pub computations: u64,
    /// Computations per round; None without rounds.
    pub computations_per_round: Option<Spread>,
    /// Gets that the server answered late, with the value.
    pub held: u64,
    /// Median time from a get until its client had the value, computed or received, in microseconds.
    pub p50_us: f64,
    /// The time that one client in a hundred exceeds, in microseconds.
    pub p99_us: f64,
    /// The time that one client in a thousand exceeds, in microseconds.
    pub p999_us: f64,
    /// The longest time in microseconds.
    pub max_us: f64,
    /// The time of all rounds in seconds.
    pub seconds: f64,
    /// Processor time of the server per client and round in microseconds, if its process is known.
    pub cpu_us_per_get: Option<f64>,
}

/// Sends a get from all connections at once, round by round, until the end. A round that has begun is
/// finished.
///
/// [`Until::Requests`] counts gets. There is at least one round, and at most one for each key of the plan.
pub fn stampede(
    plan: &Arc<Plan>,
    address: &str,
    pid: Option<u32>,
    connections: usize,
    compute: Duration,
    until: Until,
    meter: &Meter,
) -> Result<StampedeReport, BenchError> {
    stampede_over(&Memcached, plan, address, pid, connections, compute, until, meter)
}

/// Runs [`stampede`] in this protocol.
#[expect(clippy::too_many_arguments, reason = "those of a stampede, and the protocol")]
pub(crate) fn stampede_over<W: Wire + Clone>(
    wire: &W,
    plan: &Arc<Plan>,
    address: &str,
    pid: Option<u32>,
    connections: usize,
    compute: Duration,
    until: Until,
    meter: &Meter,
) -> Result<StampedeReport, BenchError> {
    let process = pid.map(Process::new).transpose().map_err(BenchError::io("no process of this pid"))?;
    let cpu =
        || process.map(Process::cpu_time).transpose().map_err(BenchError::io("the server's processor time"));
    let peer = Peer::new(address, plan)?;
    let crowd = StampedeRun::open(wire.clone(), plan, &peer, connections, compute)?;
    let before = cpu()?;
    let mut report = crowd.run(until, meter)?;
    let gets = report.rounds * report.connections;
    #[expect(clippy::cast_precision_loss, reason = "no run has 2^53 gets")]
    let per_get = |time: Duration| time.as_secs_f64() * 1e6 / gets as f64;
    report.cpu_us_per_get = cpu()?.zip(before).map(|(after, before)| per_get(after.saturating_sub(before)));
    Ok(report)
}

struct StampedeRun<'a, W> {
    wire: W,
    plan: &'a Plan,
    contents: Contents,
    clock: Clock,
    poller: Poller,
    clients: Vec<StampedeClient>,
    compute: Duration,
    buffer: Vec<u8>,
    /// Clients that compute, with the time when each began. All computations take equally long.
    computing: VecDeque<(Instant, usize)>,
    tally: Tally,
    held: u64,
}

struct StampedeClient {
    socket: Socket,
    input: Vec<u8>,
    asked: Instant,
    state: ClientState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientState {
    /// The client has sent its get.
    Asking,
    Computing,
    /// The client has sent its set.
    Setting,
    HasIt,
}

/// A server that sends nothing for this long after the longest computation counts as lost.
const PATIENCE: Duration = Duration::from_secs(70);
/// The version that all clients write.
const VERSION: u32 = 1;

impl<'a, W: Wire + Clone> StampedeRun<'a, W> {
    fn open(
        wire: W,
        plan: &'a Plan,
        peer: &Peer,
        connections: usize,
        compute: Duration,
    ) -> Result<Self, BenchError> {
        let clock = Clock::new();
        let poller = Poller::new().map_err(BenchError::io("no epoll"))?;
        let mut clients = Vec::with_capacity(connections);
        for token in 0..connections {
            let socket = peer.connect()?;
            poller.add(&socket, token as u64, Wish::Read).map_err(BenchError::io("epoll"))?;
            clients.push(StampedeClient {
                socket,
                input: Vec::new(),
                asked: clock.now(),
                state: ClientState::HasIt,
            });
        }
        Ok(Self {
            wire,
            plan,
            contents: Contents::new(plan.seed),
            clock,
            poller,
            clients,
            compute,
            buffer: vec![0; 64 << 10],
            computing: VecDeque::new(),
            tally: Tally::new(),
            held: 0,
        })
    }

    fn run(mut self, until: Until, meter: &Meter) -> Result<StampedeReport, BenchError> {
        let start = self.clock.now();
        let mut per_round = Vec::new();
        let (mut computations, mut rounds) = (0, 0);
        loop {
            let computed = self.round(rounds, meter)?;
            computations += computed;
            #[expect(clippy::cast_precision_loss, reason = "at most 100000")]
            per_round.push(computed as f64);
            rounds += 1;
            self.tally.elapsed = self.clock.now().duration_since(start);
            let over = match until {
                Until::Elapsed(time) => self.tally.elapsed >= time,
                Until::Requests(number) => self.tally.requests >= number,
                Until::Exhausted => false,
            };
            if over || rounds == self.plan.keys {
                break;
            }
        }
        let us = |share| self.tally.latency(share).as_secs_f64() * 1e6;
        Ok(StampedeReport {
            rounds,
            connections: self.clients.len() as u64,
            compute_ms: u64::try_from(self.compute.as_millis()).unwrap_or(u64::MAX),
            computations,
            computations_per_round: Spread::of(per_round),
            held: self.held,
            p50_us: us(0.5),
            p99_us: us(0.99),
            p999_us: us(0.999),
            max_us: us(1.0),
            seconds: self.tally.elapsed.as_secs_f64(),
            cpu_us_per_get: None,
        })
    }

    /// Runs the round of one key. Returns how many clients have computed it.
    fn round(&mut self, id: u64, meter: &Meter) -> Result<u64, BenchError> {
        let mut key = Vec::new();
        self.plan.write_key(id, &mut key);
        let mut request = Vec::new();
        self.wire(ClientState::Asking, id).get(key.chunks_exact(key.len()), &mut request);
        for client in &mut self.clients {
            client.asked = self.clock.now();
            client.state = ClientState::Asking;
            send(&client.socket, &request)?;
        }
        let mut set = Vec::new();
        let bytes = self.plan.value_bytes(id);
        let wire = self.wire(ClientState::Setting, id);
        wire.set(&key, self.plan.flags, self.plan.ttl_seconds(id), bytes, &mut set);
        self.contents.write(id, VERSION, bytes, &mut set);
        wire.end_set(&mut set);

        let (mut waiting, mut computed) = (self.clients.len(), 0);
        let mut heard = self.clock.now();
        let mut ready = Vec::new();
        while waiting > 0 {
            let now = self.clock.now();
            while let Some((since, token)) = self.computing.front().copied()
                && now.duration_since(since) >= self.compute
            {
                self.computing.pop_front();
                self.clients[token].state = ClientState::Setting;
                send(&self.clients[token].socket, &set)?;
                heard = now;
            }
            let next = self
                .computing
                .front()
                .map(|(since, _)| self.compute.saturating_sub(now.duration_since(*since)));
            let timeout = next.unwrap_or(PATIENCE);
            self.poller
                .wait(Some(timeout), |token| ready.push(token as usize))
                .map_err(BenchError::io("epoll"))?;
            let now = self.clock.now();
            if !ready.is_empty() {
                heard = now;
            } else if self.computing.is_empty() && now.duration_since(heard) >= PATIENCE {
                return Err(self.silent(&format!("no answer for {} seconds", PATIENCE.as_secs())));
            }
            for token in ready.drain(..) {
                self.receive(token)?;
                while let Some(step) = self.digest(token, id, now)? {
                    if step == ClientState::Computing {
                        computed += 1;
                    } else {
                        waiting -= 1;
                        meter.answered.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        }
        Ok(computed)
    }

    /// The protocol for the request of a client in this state: each request has a number of its own.
    fn wire(&self, state: ClientState, id: u64) -> W {
        self.wire.numbered((id as u32).wrapping_mul(2).wrapping_add(u32::from(state == ClientState::Setting)))
    }

    fn silent(&self, how: &str) -> BenchError {
        let doubt = if self.tally.requests == 0 { self.wire.doubt() } else { "" };
        BenchError::Lost(format!("{how}{doubt}"))
    }

    fn receive(&mut self, token: usize) -> Result<(), BenchError> {
        loop {
            let client = &mut self.clients[token];
            match client.socket.read(&mut self.buffer) {
                Ok(0) => return Err(self.silent("the server closed a connection")),
                Ok(n) => client.input.extend_from_slice(&self.buffer[..n]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(BenchError::Lost(error.to_string())),
            }
        }
    }

    /// Reads a reply, if it is complete. Returns the client's next state.
    fn digest(&mut self, token: usize, id: u64, now: Instant) -> Result<Option<ClientState>, BenchError> {
        let wire = self.wire(self.clients[token].state, id);
        let client = &mut self.clients[token];
        let keys = usize::from(client.state == ClientState::Asking);
        let Some((element, mut used)) = wire.read(keys, 0, &client.input)? else { return Ok(None) };
        match (client.state, element) {
            (ClientState::Asking, Element::Named { data, .. }) => {
                // The value and its END must have come.
                let Some((Element::End, end)) = wire.read(1, 1, &client.input[used..])? else {
                    return Ok(None);
                };
                used += end;
                right(self.plan, &self.contents, id, data)?;
                self.held += 1;
                client.state = ClientState::HasIt;
            }
            (ClientState::Asking, Element::Found { data, .. }) => {
                right(self.plan, &self.contents, id, data)?;
                self.held += 1;
                client.state = ClientState::HasIt;
            }
            (ClientState::Asking, Element::End | Element::Next(None)) => {
                self.computing.push_back((now, token));
                client.state = ClientState::Computing;
            }
            (ClientState::Setting, Element::Stored | Element::Refused) => client.state = ClientState::HasIt,
            (_, element) => {
                let answer = format!("{element:?}");
                return Err(Fault::Unexpected { asked: "nothing", answer }.into());
            }
        }
        client.input.drain(..used);
        if client.state == ClientState::HasIt {
            self.tally.answered(now.duration_since(client.asked));
        }
        Ok(Some(client.state))
    }
}

/// Whether the value is that of key `id`.
fn right(plan: &Plan, contents: &Contents, id: u64, data: &[u8]) -> Result<(), Fault> {
    let stored = plan.value_bytes(id);
    if data.len() != stored {
        return Err(Fault::Length { id, bytes: data.len(), stored });
    }
    if contents.check(id, data)?.is_some_and(|version| version != VERSION) {
        return Err(Fault::Content { id });
    }
    Ok(())
}

/// Sends a request to a server that waits for one.
fn send(mut socket: &Socket, request: &[u8]) -> Result<(), BenchError> {
    socket.write_all(request).map_err(|error| BenchError::Lost(error.to_string()))
}

impl Display for StampedeReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rounds, connections) = (count(self.rounds), count(self.connections));
        writeln!(out, "stampedes     {rounds} in {:.2} s, {connections} clients each", self.seconds)?;
        write!(out, "computed      {} times, {} ms each", count(self.computations), self.compute_ms)?;
        if let Some(Spread { median, low, high }) = self.computations_per_round {
            write!(out, "; per stampede {median:.0} ({low:.0} .. {high:.0})")?;
        }
        writeln!(out, "\nheld          {} clients", count(self.held))?;
        let [p50, p99, p999, max] = [self.p50_us, self.p99_us, self.p999_us, self.max_us].map(micros);
        writeln!(out, "had it after  p50 {p50}, p99 {p99}, p99.9 {p999}, longest {max}")?;
        if let Some(cpu) = self.cpu_us_per_get {
            writeln!(out, "server CPU    {cpu:.2} us per client")?;
        }
        write!(out, "verified      every reply")
    }
}
