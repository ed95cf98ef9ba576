//! Which server a key is on: sharding, and the health of servers. No connection is opened here, and time is
//! an argument.
//!
//! ```
//! use std::time::{Duration, Instant};
//! use cattlegrid_client::route::{Ejection, Event, Options, Route};
//!
//! # #[expect(clippy::disallowed_methods, reason = "a program")]
//! let now = Instant::now();
//! let ejection = Ejection { after_failures: 2, retry: Duration::from_secs(1) };
//! let options = Options { ejection: Some(ejection), ..Options::default() };
//! let route = Route::new([("10.0.0.1:11211", 1), ("10.0.0.2:11211", 3)], options, now)?;
//! let own = route.place(b"page:42").ok_or("none")?;
//! route.failed(own, now);
//! assert_eq!(route.failed(own, now), Event::Ejected);
//! assert_ne!(route.place(b"page:42"), Some(own));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Rendezvous hashing
//! For programs in other languages, which must find the same servers. All numbers have 64 bits and wrap.
//!
//! 1. `fnv(bytes)`: FNV-1a. Start with `0xcbf29ce484222325`; for each byte: exclusive or with the byte, then
//!    multiply by `0x100000001b3`.
//! 2. `mix(x)`: `x += 0x9e3779b97f4a7c15`; `x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9`; `x = (x ^ (x >> 27)) *
//!    0x94d049bb133111eb`; `x ^ (x >> 31)` (`SplitMix64`).
//! 3. For a key and a server: `u = ((mix(fnv(key) ^ fnv(name)) >> 12) + 0.5) / 2^52`, and the score is
//!    `weight / -ln(u)`. The key is on the server with the highest score, on the first of the list if two
//!    have the same.
//!
//! The name of a server is `host:port` as it was given, without `:11211`; see [`server_name`].
//!
//! # Invariants
//! * Ejecting a server moves only its own keys, and when it returns all of them come back.
//! * Adding a server moves only keys that it takes (ketama with equal weights, and rendezvous).
//! * An ejected server gets no key until a probe of this ejection has succeeded.
//! * [`Route::place`] takes no lock.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cattlegrid_ring::{Layout, Ring, RingError, Server};

mod place;

use place::Placement;
pub(crate) use place::{SPLIT_STEP, fnv, mix};

/// How keys are spread over servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Sharding {
    /// The points of pylibmc with `{"ketama": True}`, and of libmemcached with `MEMCACHED_BEHAVIOR_KETAMA`:
    /// 100 points for each server of libmemcached's own hash, or, when a weight is above 1, points in
    /// proportion to the weights.
    Ketama,
    /// The points of pylibmc with `{"ketama_weighted": True}`, of libmemcached with
    /// `MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED`, and of most clients that know weights: points of MD5, 160 for a
    /// server of average weight.
    #[default]
    KetamaWeighted,
    /// The server with the highest score for the key, see the module's text. Shares are within 1% of the
    /// weights, where ketama's are up to 15% off with 5 servers; a change of a weight moves the fewest keys.
    Rendezvous,
}

/// When a server that fails is taken out, so that its keys go to others, and when it is tried again.
///
/// A failure is a connection that cannot be made, that breaks before its first reply, or on which nothing has
/// come within the timeout; replies that are errors are not failures. A CAS number or a lease of one server
/// means nothing to the server that gets the key after it: read again before a `cas`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ejection {
    /// After this many failures in a row; 0 is as 1.
    pub after_failures: u32,
    /// Until the first probe, at least 1 ms. Each probe that fails doubles the time to the next one, up to
    /// ten times this.
    pub retry: Duration,
}

/// How a [`Route`] works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// How keys are spread.
    pub sharding: Sharding,
    /// None: no server is ejected, and commands for a server that fails are errors.
    pub ejection: Option<Ejection>,
    /// A server that returns gets `flush_all` first: it may have values that were changed on other servers
    /// since. A write whose reply did not come in time may still be executed after that, if the server had
    /// stopped and goes on.
    pub flush_on_return: bool,
}

/// The change that a report has caused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// No server's state.
    Nothing,
    /// The server was ejected: its keys go to others from now on.
    Ejected,
    /// The server has returned, and gets its keys from now on.
    Returned,
}

/// An ejected server that must be tried now; the outcome goes to [`Route::probed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// Place of the server.
    pub place: usize,
    /// Whether the probe must be `flush_all`, and succeeds only when that was answered `OK`.
    pub flush: bool,
    ejection: u64,
}

/// The servers of a client, and the search for the server of a key. See the module's text.
#[derive(Debug)]
pub struct Route {
    placement: Placement,
    states: Box<[ServerState]>,
    options: Options,
    /// Times are counted from here.
    began: Instant,
    /// When the next probe is due, in microseconds; [`NEVER`]: no server is ejected.
    next_us: AtomicU64,
    /// Servers that were ejected or have returned.
    changes: AtomicU64,
    ejected: Mutex<Ejections>,
}

#[derive(Debug)]
struct ServerState {
    /// Written only by the holder of [`Route::ejected`].
    is_available: AtomicBool,
    /// In a row.
    failures: AtomicU32,
}

#[derive(Debug, Default)]
struct Ejections {
    /// Number of ejections so far.
    ejections: u64,
    /// Servers that are ejected.
    list: Vec<EjectedServer>,
}

/// A server that is ejected.
#[derive(Debug)]
struct EjectedServer {
    place: usize,
    /// Number of its ejection.
    ejection: u64,
    /// When it is tried again.
    next_us: u64,
    /// The time after that to the next try.
    wait_us: u64,
}

const NEVER: u64 = u64::MAX;
/// More changes than a route ever has.
const GENERATION: u64 = 1 << 32;
/// Largest multiple of [`Ejection::retry`] between two probes.
const RETRIES_MAX: u64 = 10;

impl Route {
    /// A route to these servers, given as their [names](server_name) and weights (1 to 65535), all of them
    /// available. Places in this list stand for servers.
    ///
    /// # Errors
    /// No server or more than 1000, a name that is empty or longer than 255 bytes, a weight out of range, a
    /// server twice.
    pub fn new<N: AsRef<str>>(
        servers: impl IntoIterator<Item = (N, u32)>,
        options: Options,
        now: Instant,
    ) -> Result<Self, RingError> {
        let servers = servers
            .into_iter()
            .map(|(name, weight)| Server::new(server_name(name.as_ref()).as_ref(), weight));
        let servers: Vec<Server> = servers.collect::<Result<_, _>>()?;
        let layout = match options.sharding {
            Sharding::Ketama => Layout::OneAtATime,
            Sharding::KetamaWeighted | Sharding::Rendezvous => Layout::Weighted,
        };
        let ring = Ring::new(servers, layout)?;
        let placement = match (ring.servers(), options.sharding) {
            ([_], _) => Placement::One,
            (servers, Sharding::Rendezvous) => Placement::rendezvous(servers),
            _ => Placement::ring(&ring, layout),
        };
        let state = |_| ServerState { is_available: AtomicBool::new(true), failures: AtomicU32::new(0) };
        Ok(Self {
            placement,
            states: (0..ring.servers().len()).map(state).collect(),
            options,
            began: now,
            next_us: AtomicU64::new(NEVER),
            changes: AtomicU64::new(0),
            ejected: Mutex::default(),
        })
    }

    /// Takes the place of `old`, whose servers may be others: those that are in both stay ejected, and keep
    /// the number of their ejection. `place`: where a server of `old` is now. [`changes`](Self::changes) of
    /// the two are never equal.
    pub(crate) fn take_over(&mut self, old: &Self, place: impl Fn(usize) -> Option<usize>) {
        self.began = old.began;
        self.changes = AtomicU64::new((old.changes() / GENERATION + 1) * GENERATION);
        let mut ejected = Ejections::default();
        {
            let before = old.lock();
            ejected.ejections = before.ejections;
            for out in &before.list {
                if let Some(place) = place(out.place) {
                    self.states[place].is_available.store(false, Ordering::Release);
                    ejected.list.push(EjectedServer { place, ..*out });
                }
            }
        }
        self.note_next(&ejected);
        self.ejected = Mutex::new(ejected);
    }

    /// The place of a key's server among those that are not ejected. None: all are.
    #[inline]
    pub fn place(&self, key: &[u8]) -> Option<usize> {
        self.placement.find(key, |place| self.is_available(place))
    }

    /// The place of a key's server when none is ejected.
    pub fn own_place(&self, key: &[u8]) -> usize {
        self.placement.find(key, |_| true).unwrap_or(0)
    }

    /// Whether any server is ejected.
    #[inline]
    pub fn has_ejected(&self) -> bool {
        self.next_us.load(Ordering::Acquire) != NEVER
    }

    /// Whether servers that fail are ejected.
    pub fn ejects(&self) -> bool {
        self.options.ejection.is_some()
    }

    /// Whether a server that returns is flushed first.
    pub fn flushes_on_return(&self) -> bool {
        self.options.flush_on_return
    }

    /// How often a server was ejected or has returned: as long as this is the same, each key has the same
    /// server.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Whether a server gets keys. False for places that there are not.
    pub fn is_available(&self, place: usize) -> bool {
        self.states.get(place).is_some_and(|state| state.is_available.load(Ordering::Acquire))
    }

    /// A server has failed; see [`Ejection`] for what counts.
    pub fn failed(&self, place: usize, now: Instant) -> Event {
        let (Some(ejection), Some(state)) = (self.options.ejection, self.states.get(place)) else {
            return Event::Nothing;
        };
        if !state.is_available.load(Ordering::Acquire) {
            return Event::Nothing;
        }
        let failures = state.failures.fetch_add(1, Ordering::AcqRel).saturating_add(1);
        if failures < ejection.after_failures.max(1) {
            return Event::Nothing;
        }
        let mut ejected = self.lock();
        if !state.is_available.load(Ordering::Acquire) {
            return Event::Nothing;
        }
        state.is_available.store(false, Ordering::Release);
        self.changes.fetch_add(1, Ordering::AcqRel);
        ejected.ejections += 1;
        let wait_us = retry_us(ejection);
        let next_us = self.us(now).saturating_add(wait_us);
        let number = ejected.ejections;
        ejected.list.push(EjectedServer { place, ejection: number, next_us, wait_us });
        self.note_next(&ejected);
        Event::Ejected
    }

    /// A server has answered on a new connection; any reply counts, errors too. A server that is ejected
    /// stays so: only a probe brings it back.
    #[inline]
    pub fn succeeded(&self, place: usize) {
        if let Some(state) = self.states.get(place)
            && state.failures.load(Ordering::Relaxed) > 0
        {
            state.failures.store(0, Ordering::Release);
        }
    }

    /// The servers that must be tried now. Each is named once; if its outcome is not told, it is named again
    /// at its next time.
    pub fn due(&self, now: Instant) -> Vec<Probe> {
        let now_us = self.us(now);
        let Some(ejection) = self.options.ejection else { return Vec::new() };
        if self.next_us.load(Ordering::Acquire) > now_us {
            return Vec::new();
        }
        let longest = retry_us(ejection).saturating_mul(RETRIES_MAX);
        let mut ejected = self.lock();
        let mut probes = Vec::new();
        for out in ejected.list.iter_mut().filter(|out| out.next_us <= now_us) {
            out.wait_us = out.wait_us.saturating_mul(2).min(longest);
            out.next_us = now_us.saturating_add(out.wait_us);
            probes.push(Probe {
                place: out.place,
                flush: self.options.flush_on_return,
                ejection: out.ejection,
            });
        }
        self.note_next(&ejected);
        probes
    }

    /// The outcome of a probe. What belongs to an earlier ejection of the server changes nothing.
    pub fn probed(&self, probe: Probe, succeeded: bool, now: Instant) -> Event {
        let mut ejected = self.lock();
        let Some(at) = ejected.list.iter().position(|out| out.ejection == probe.ejection) else {
            return Event::Nothing;
        };
        if !succeeded {
            let out = &mut ejected.list[at];
            out.next_us = self.us(now).saturating_add(out.wait_us);
            self.note_next(&ejected);
            return Event::Nothing;
        }
        let out = ejected.list.swap_remove(at);
        let state = &self.states[out.place];
        state.failures.store(0, Ordering::Release);
        state.is_available.store(true, Ordering::Release);
        self.changes.fetch_add(1, Ordering::AcqRel);
        self.note_next(&ejected);
        Event::Returned
    }

    /// The time until [`due`](Self::due) names a server; None: no server is ejected.
    pub fn next_probe(&self, now: Instant) -> Option<Duration> {
        let next_us = self.next_us.load(Ordering::Acquire);
        (next_us != NEVER).then(|| Duration::from_micros(next_us.saturating_sub(self.us(now))))
    }

    fn lock(&self) -> MutexGuard<'_, Ejections> {
        self.ejected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_next(&self, ejected: &Ejections) {
        let next = ejected.list.iter().map(|out| out.next_us.min(NEVER - 1)).min();
        self.next_us.store(next.unwrap_or(NEVER), Ordering::Release);
    }

    fn us(&self, now: Instant) -> u64 {
        let us = now.saturating_duration_since(self.began).as_micros();
        u64::try_from(us).map_or(NEVER - 1, |us| us.min(NEVER - 1))
    }
}

fn retry_us(ejection: Ejection) -> u64 {
    u64::try_from(ejection.retry.as_micros()).map_or(NEVER - 1, |us| us.clamp(1000, NEVER - 1))
}

/// The name by which a server is hashed, as pylibmc makes it: `host:port` as it was given, an address is not
/// looked up. `[::1]:22122` is `::1:22122`, and a Unix socket (`/path` or `unix:/path`) is `/path:0`. A name
/// without a port is that of port 11211.
pub fn server_name(server: &str) -> Cow<'_, str> {
    let path = server.strip_prefix("unix:").unwrap_or(server);
    if path.starts_with('/') {
        return Cow::Owned(format!("{path}:0"));
    }
    match server.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, port)) => Cow::Owned(format!("{host}{port}")),
        None => Cow::Borrowed(server),
    }
}

/// The text by whose hash a call of an object is routed, `type:key`, so that all calls on an object go to one
/// server. For `quota:addandcheck:u1:10` and for `quota::u1` that is `quota:u1`; escapes (`%3A`, `%25`) stay
/// as they are, and colons in the key of the second form become `%3A`. A name without a key is routed by its
/// whole text.
pub fn object_route(call: &[u8]) -> Cow<'_, [u8]> {
    let mut parts = call.splitn(3, |byte| *byte == b':');
    let (Some(kind), Some(method), Some(rest)) = (parts.next(), parts.next(), parts.next()) else {
        return Cow::Borrowed(call);
    };
    let mut route = Vec::with_capacity(call.len());
    route.extend_from_slice(kind);
    route.push(b':');
    if method.is_empty() {
        for byte in rest {
            if *byte == b':' { route.extend_from_slice(b"%3A") } else { route.push(*byte) }
        }
    } else {
        route.extend(rest.iter().take_while(|byte| **byte != b':'));
    }
    Cow::Owned(route)
}
