//! A shadow: another server that gets the watched server's traffic, for a comparison.

mod pipes;
mod replay;

use std::collections::HashSet;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use cattlegrid_server::time::nanos;

use super::dump::{self, DumpExtent};
use super::link::{ServerStats, WatchedServer, problem_of};
use super::observations::{WatchEvent, WatchLine, decoded};
use super::tap::Tap;
use pipes::Pipes;
use replay::{Replay, ShadowCommandKind, ShadowTally};

/// Delay with which a line is repeated, in microseconds: lines come late, and out of order.
const DELAY_US: u64 = 1_500_000;
/// The period of commands that are sent before their replies are read, in microseconds.
const STEP_US: u64 = 1_000;
/// Longest wait for these replies, in nanoseconds.
const TURN_MAX: u64 = 20_000_000;
/// Most looks for these replies.
const TRIES_MAX: u32 = 30;
/// Most items that the shadow is given at the start.
const PRELOAD_MAX: usize = 1_000_000;
/// Longest wait at the end for replies that the shadow holds, in microseconds.
const END_US: u64 = 3_000_000;
/// Longest time until the line of a probe.
const PROBE: Duration = Duration::from_millis(1500);
/// The header of memcached's items in bytes, with CAS number and line end.
const MEMCACHED_HEADER: u64 = 48 + 8 + 1 + 2;
/// The header of Cattlegrid's items in bytes.
const CATTLEGRID_HEADER: u64 = 24;

/// A server that gets the same traffic.
pub(super) struct Shadow {
    server: WatchedServer,
    pipes: Pipes,
    replay: Replay,
    /// The least difference seen between the local clock and the server's, in microseconds.
    offset_us: Option<i128>,
    /// The time up to which lines were sent.
    sent_us: u64,
    before: ServerStats,
    preloaded: String,
    /// The reason why the comparison ended early.
    problem: Option<String>,
}

/// An item that the shadow is given at the start.
struct Preload {
    accessed: u64,
    key: Box<[u8]>,
    size: u32,
    /// The remaining time to live in seconds; 0: the item does not expire.
    ttl: u32,
    fetched: bool,
}

impl Shadow {
    /// Connects the shadow at `address`, and reads the watched server's statistics.
    ///
    /// # Errors
    /// Why the shadow cannot be used.
    pub(super) fn open(address: &str, watched: &WatchedServer) -> Result<Self, String> {
        let refuse = |why: &str| Err(format!("--shadow {address}: {why}"));
        if is_same_place(address, &watched.address) {
            return refuse("is the watched server itself; start a second one on another port");
        }
        let server = WatchedServer::plain(address);
        let own = server.stats("").map_err(|error| format!("--shadow {}", problem_of(address, &error)))?;
        let before = watched.stats("").map_err(|error| problem_of(&watched.address, &error))?;
        let items = own.number("curr_items");
        if items > 0 {
            return refuse(&format!("has {items} items already; start it anew, so that both begin alike"));
        }
        Ok(Self {
            server,
            pipes: Pipes::new(address),
            replay: Replay::new(),
            offset_us: None,
            sent_us: 0,
            before,
            preloaded: String::new(),
            problem: None,
        })
    }

    /// Checks that both are different servers: the watched server must not see requests to the shadow. It
    /// writes to neither.
    ///
    /// # Errors
    /// They are the same server.
    pub(super) fn probe(&self, tap: &mut Tap) -> Result<(), String> {
        let address = &self.server.address;
        let failed = |error: io::Error| format!("--shadow {}", problem_of(address, &error));
        let key = format!("cattlegrid.advise.probe.{}.{}", std::process::id(), nanos());
        let end = nanos() + u64::try_from(PROBE.as_nanos()).unwrap_or(0);
        let mut stream = self.server.connect().map_err(failed)?;
        let mut is_same = false;
        let mut asks = 0;
        while nanos() < end && !is_same {
            // Lines can be left out, so the probe asks several times.
            if asks < 5 {
                stream.write_all(format!("get {key}\r\n").as_bytes()).map_err(failed)?;
                asks += 1;
            }
            let note = |line: &str| is_same |= line.contains(&key);
            tap.lines(Duration::from_millis(100), note).map_err(|error| error.to_string())?;
        }
        if is_same {
            return Err(format!(
                "--shadow {address}: is the watched server itself by another address; start a second one on another port"
            ));
        }
        Ok(())
    }

    /// Stores the watched server's items in the shadow, by key and size, the least recently accessed ones
    /// first.
    pub(super) fn preload(&mut self, watched: &WatchedServer, mut stops: impl FnMut() -> bool) {
        let begun = nanos();
        let is_cattlegrid = watched.stats(" cattlegrid").is_ok_and(|stats| !stats.text("version").is_empty());
        let now = self.before.number("time");
        let mut items: Vec<Preload> = Vec::new();
        let mut left_out = 0_u64;
        let read = dump::read(watched, dump::TIME_MAX, &mut stops, |item| {
            if items.len() >= PRELOAD_MAX {
                left_out += 1;
                return;
            }
            let key = decoded(item.key).into_boxed_slice();
            let header = if is_cattlegrid { CATTLEGRID_HEADER } else { MEMCACHED_HEADER };
            let size = item.size.saturating_sub(header + key.len() as u64);
            let ttl = match item.expires {
                None => 0,
                Some(expires) if expires > now => expires - now,
                Some(_) => return,
            };
            items.push(Preload {
                accessed: item.accessed,
                key,
                size: u32::try_from(size).unwrap_or(0),
                ttl: u32::try_from(ttl).unwrap_or(0),
                fetched: item.fetched,
            });
        });
        let extent = match read {
            Ok(extent) => extent,
            Err(problem) => {
                self.preloaded = format!("# The shadow began empty: {problem}\n");
                return;
            }
        };
        items.sort_unstable_by_key(|item| item.accessed);
        let (count, expires_from_us) = (items.len(), now * 1_000_000);
        for Preload { key, size, ttl, fetched, .. } in items {
            let expires_us = if ttl == 0 { u64::MAX } else { expires_from_us + u64::from(ttl) * 1_000_000 };
            self.replay.preloaded(&key, ttl, expires_us);
            let value = replay::FillerValue { size, ttl, is_add: false };
            // Sends as fast as the shadow takes them.
            while self.problem.is_none() && self.pipes.open() > 2_000 {
                self.pump();
                self.rest(Duration::from_micros(100));
            }
            if self.problem.is_some() || stops() {
                break;
            }
            // Servers keep items that were fetched longer than others.
            let fetch = fetched.then(|| replay::ShadowCommand {
                connection: 0,
                key: key.clone(),
                what: ShadowCommandKind::Fetch,
            });
            let store = replay::ShadowCommand { connection: 0, key, what: ShadowCommandKind::Store(value) };
            for send in [Some(store), fetch].into_iter().flatten() {
                if let Err(error) = self.pipes.send(send, nanos()) {
                    self.problem = Some(error.to_string());
                }
            }
        }
        while self.problem.is_none() && self.pipes.open() > 0 && !stops() {
            self.pump();
            self.rest(Duration::from_micros(100));
        }
        let part = if extent == DumpExtent::Part || left_out > 0 { ", not all that it has" } else { "" };
        let ms = nanos().saturating_sub(begun) / 1_000_000;
        self.preloaded =
            format!("# The shadow was given {count} items of the watched server before{part}, in {ms} ms.\n");
    }

    /// Sets the clock by a line as it arrives.
    pub(super) fn arrives(&mut self, line: &WatchLine) {
        match line {
            WatchLine::Request(event) => {
                let offset = i128::from(nanos() / 1000) - i128::from(event.at.0);
                self.offset_us = Some(self.offset_us.map_or(offset, |least| least.min(offset)));
            }
            WatchLine::Skipped(_) => self.replay.is_incomplete = true,
            WatchLine::Other => {}
        }
    }

    /// Takes the next line in order.
    pub(super) fn push(&mut self, event: WatchEvent) {
        if self.problem.is_none() {
            self.replay.push(event);
        }
    }

    /// The watched server's clock, in microseconds; None: no line has come yet.
    pub(super) fn clock_us(&self) -> Option<u64> {
        u64::try_from(i128::from(nanos() / 1000) - self.offset_us?).ok()
    }

    /// Sends the commands that are due, and reads replies.
    pub(super) fn turn(&mut self) {
        let Some(until_us) = self.clock_us().map(|now_us| now_us.saturating_sub(DELAY_US)) else { return };
        let end = nanos().saturating_add(TURN_MAX);
        // In steps, each with its replies: a client that misses a key stores it before others look it up
        // later.
        while self.sent_us < until_us && self.problem.is_none() {
            let next_us = self.replay.next_us().map_or(until_us, |us| us.saturating_add(STEP_US));
            let is_late = nanos() >= end;
            self.sent_us = if is_late { until_us } else { next_us.min(until_us) };
            self.turn_to(self.sent_us);
            let mut tries = 0;
            while !is_late && tries < TRIES_MAX && self.problem.is_none() && self.pipes.is_waiting(nanos()) {
                self.rest(Duration::from_micros(30));
                self.pump();
                tries += 1;
            }
        }
        self.pump();
    }

    fn turn_to(&mut self, until_us: u64) {
        if self.problem.is_some() {
            return;
        }
        let Self { pipes, replay, .. } = self;
        let (mut result, now) = (Ok(()), nanos());
        let mut lost = 0;
        replay.due(until_us, &mut |send| {
            if result.is_ok() {
                let is_get = matches!(send.what, ShadowCommandKind::Get(_));
                match pipes.send(send, now) {
                    Ok(is_sent) => lost += u64::from(is_get && !is_sent),
                    Err(error) => result = Err(error),
                }
            }
        });
        replay.tally.open -= lost.min(replay.tally.open);
        match result {
            Ok(()) => self.pump(),
            Err(error) => self.problem = Some(error.to_string()),
        }
    }

    fn pump(&mut self) {
        let now_us = self.sent_us;
        let Self { pipes, replay, .. } = self;
        if let Err(error) = pipes.turn(nanos(), |key, id, is_hit| replay.answered(key, id, is_hit, now_us)) {
            self.problem = Some(error.to_string());
        }
    }

    /// Lets the shadow work for this time.
    #[expect(clippy::unused_self, reason = "it is the shadow that works meanwhile")]
    pub(super) fn rest(&self, time: Duration) {
        std::thread::park_timeout(time);
    }

    /// Whether all lines have been repeated and answered.
    pub(super) fn is_done(&self, ended_us: u64) -> bool {
        let late = self.clock_us().is_none_or(|now_us| now_us > ended_us + DELAY_US + END_US);
        self.problem.is_some() || late || self.replay.waiting() == 0 && self.pipes.open() == 0
    }

    /// The comparison, as comments of a rule file.
    ///
    /// # Errors
    /// The text so far and the reason, if the shadow was lost before the end.
    pub(super) fn report(&self, watched: &WatchedServer) -> (String, Option<String>) {
        let address = &self.server.address;
        if let Some(problem) = &self.problem {
            return (String::new(), Some(format!("--shadow {address}: {problem}")));
        }
        let stats = || Ok((watched.stats("")?, self.server.stats("")?));
        match stats() {
            Ok((real, own)) => (self.compare(&real, &own), None),
            Err(error) => {
                let error: io::Error = error;
                (String::new(), Some(format!("--shadow {}", problem_of(address, &error))))
            }
        }
    }

    fn compare(&self, real: &ServerStats, own: &ServerStats) -> String {
        let tally = &self.replay.tally;
        let mut text =
            format!("\n# Shadow {}: the same traffic, repeated by key and size.\n", self.server.address);
        text.push_str(&self.preloaded);
        let mut row = |name: &str, real: String, own: String| {
            // Writing to a string cannot fail.
            let _ok = writeln!(text, "# {name:<22} {real:>16} {own:>16}");
        };
        let percent = |hits: u64, gets: u64| {
            let hundredths = hits.saturating_mul(10_000) / gets.max(1);
            format!("{}.{:02} %", hundredths / 100, hundredths % 100)
        };
        row("", "watched".to_owned(), "shadow".to_owned());
        row("gets", tally.real_gets.to_string(), tally.gets.to_string());
        row("hits", tally.real_hits.to_string(), tally.hits.to_string());
        row("hit ratio", percent(tally.real_hits, tally.real_gets), percent(tally.hits, tally.gets));
        row("computations", tally.real_computed.to_string(), tally.computed.to_string());
        for name in ["curr_items", "bytes", "limit_maxbytes"] {
            row(name, real.number(name).to_string(), own.number(name).to_string());
        }
        let evicted = real.number("evictions").saturating_sub(self.before.number("evictions"));
        row("evictions", evicted.to_string(), own.number("evictions").to_string());
        self.say_more(&mut text, tally, real);
        text
    }

    fn say_more(&self, text: &mut String, tally: &ShadowTally, real: &ServerStats) {
        let mut say = |line: String| {
            text.push_str("# ");
            text.push_str(&line);
            text.push('\n');
        };
        if tally.made_up > 0 {
            say(format!(
                "{} of the shadow's computations are of hits of the watched server: their time is that of others of their shape.",
                tally.made_up
            ));
        }
        if tally.gone > 0 {
            say(format!(
                "{} items had gone without having expired or been evicted: they were deleted on the shadow, too.",
                tally.gone
            ));
        }
        if tally.touched > 0 {
            say(format!(
                "{} items outlived their time to live: they were touched on the shadow, too.",
                tally.touched
            ));
        }
        let since = |name: &str| real.number(name).saturating_sub(self.before.number(name));
        let others: u64 = OTHERS.iter().map(|name| since(name)).sum();
        if others > 0 {
            say(format!(
                "{others} of these requests look like gets, and were incr, decr, touch or a delete of what was not there: they are among the gets of both."
            ));
        }
        if self.pipes.left_out > 0 {
            say(format!("{} commands were left out: the shadow was too slow for them.", self.pipes.left_out));
        }
        if tally.open > 0 {
            say(format!("{} gets had no reply yet at the end.", tally.open));
        }
        if self.pipes.errors > 0 {
            say(format!(
                "The shadow answered {} errors, the last: {}",
                self.pipes.errors, self.pipes.last_error
            ));
        }
    }
}

/// Counters of memcached's requests whose look-ups have a line like that of a get.
const OTHERS: &[&str] =
    &["incr_hits", "incr_misses", "decr_hits", "decr_misses", "cmd_touch", "delete_misses"];

fn is_same_place(one: &str, other: &str) -> bool {
    if one == other {
        return true;
    }
    let all = |address: &str| -> HashSet<SocketAddr> {
        address.to_socket_addrs().map(Iterator::collect).unwrap_or_default()
    };
    !one.starts_with('/') && !other.starts_with('/') && !all(one).is_disjoint(&all(other))
}
