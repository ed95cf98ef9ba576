//! The ring: servers, their points in order, and the search for a key's server.
//!
//! Source of the layouts: libmemcached 1.1.4, `src/libmemcached/hosts.cc` (`update_continuum`) and `hash.cc`
//! (`dispatch_host`), checked against that library by `tests/ring.rs`.

use std::collections::HashSet;
use std::io::Write as _;

use md5::{Digest, Md5};

use crate::RingError;
use crate::server::Server;

/// Most servers of a ring.
pub const SERVERS_MAX: usize = 1000;

/// How many points a server has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// 100 points for each server, whatever its weight: libmemcached's `MEMCACHED_BEHAVIOR_KETAMA` with
    /// `MEMCACHED_BEHAVIOR_HASH` of MD5.
    Plain,
    /// 160 points for a server of average weight, in proportion to the weights, down to none: libmemcached's
    /// `MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED`. libketama differs in the port 11211, which it hashes as a part
    /// of the name.
    Weighted,
    /// 100 points for each server, of another hash, [`one_at_a_time`]; that is also the hash of keys. As soon
    /// as one weight is above 1, the points are those of [`Layout::Weighted`], and the hash of keys stays the
    /// other one: libmemcached's `MEMCACHED_BEHAVIOR_KETAMA` and no other behavior set, pylibmc's
    /// `{"ketama": True}`.
    OneAtATime,
}

impl Layout {
    /// The place of a key on the circle.
    pub fn key_hash(self, key: &[u8]) -> u32 {
        match self {
            Self::Plain | Self::Weighted => key_hash(key),
            Self::OneAtATime => one_at_a_time(key),
        }
    }
}

/// A point of a server. Points are in order of their hashes, those of the same hash in order of their
/// servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Point {
    /// The point's place on the circle.
    pub hash: u32,
    /// Place of the server in the list of servers.
    pub server: u16,
}

/// Servers and their points. See the crate's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ring {
    servers: Vec<Server>,
    available: Vec<bool>,
    points: Vec<Point>,
    layout: Layout,
}

impl Ring {
    /// A ring of these servers, all of them available. Takes about 12 us a server.
    ///
    /// # Errors
    /// [`RingError::NoServer`], [`RingError::TooMany`], [`RingError::Twice`].
    pub fn new(servers: impl IntoIterator<Item = Server>, layout: Layout) -> Result<Self, RingError> {
        let servers: Vec<Server> = servers.into_iter().take(SERVERS_MAX + 1).collect();
        match servers.len() {
            0 => return Err(RingError::NoServer),
            1..=SERVERS_MAX => {}
            _ => return Err(RingError::TooMany),
        }
        let mut names = HashSet::new();
        if let Some(again) = servers.iter().find(|server| !names.insert(server.point_name())) {
            return Err(RingError::Twice(String::from_utf8_lossy(again.name()).into_owned()));
        }
        let total: u64 = servers.iter().map(|server| u64::from(server.weight())).sum();
        let of_points = match layout {
            Layout::OneAtATime if servers.iter().any(|server| server.weight() > 1) => Layout::Weighted,
            layout => layout,
        };
        let mut points = Vec::new();
        for (place, server) in servers.iter().enumerate() {
            let hashes = match of_points {
                Layout::Plain | Layout::OneAtATime => 100,
                Layout::Weighted => weighted_hashes(server.weight(), total, servers.len()),
            };
            for counter in 0..hashes {
                let (words, used) = hash_words(server.point_name(), counter, of_points);
                points.extend(words[..used].iter().map(|hash| Point { hash: *hash, server: place as u16 }));
            }
        }
        points.sort_unstable();
        Ok(Self { available: vec![true; servers.len()], servers, points, layout })
    }

    /// The servers, in the order in which they were given; places in this list stand for servers.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The points, in order. A key's server is that of the first whose hash is not below
    /// [`Layout::key_hash`], or else of the first.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// Place of the server with this name.
    pub fn position(&self, name: &[u8]) -> Option<usize> {
        self.servers.iter().position(|server| server.name() == name)
    }

    /// The place of a key's server among those that are available; None: none is.
    pub fn find(&self, key: &[u8]) -> Option<usize> {
        let hash = self.layout.key_hash(key);
        let from = self.points.partition_point(|point| point.hash < hash);
        let (before, after) = self.points.split_at(from);
        let mut servers = after.iter().chain(before).map(|point| usize::from(point.server));
        servers.find(|server| self.available[*server])
    }

    /// Whether keys go to this server. False for places that there are not.
    pub fn is_available(&self, place: usize) -> bool {
        self.available.get(place).is_some_and(|available| *available)
    }

    /// Lets keys go to a server or not. False: there is no such place.
    pub fn set_available(&mut self, place: usize, available: bool) -> bool {
        self.available.get_mut(place).map(|own| *own = available).is_some()
    }
}

/// The place of a key on the circle in most layouts: the first four bytes of its MD5, little-endian.
pub fn key_hash(key: &[u8]) -> u32 {
    words(&Md5::digest(key).into())[0]
}

/// Bob Jenkins's one-at-a-time hash, libmemcached's default. Bytes from 0x80 are negative numbers in it, as
/// `char` is in C on x86; libmemcached on ARM has other hashes for keys with such bytes.
pub fn one_at_a_time(key: &[u8]) -> u32 {
    let mut hash = key.iter().fold(0_u32, |hash, byte| {
        let hash = hash.wrapping_add_signed(i32::from(byte.cast_signed()));
        let hash = hash.wrapping_add(hash << 10);
        hash ^ (hash >> 6)
    });
    hash = hash.wrapping_add(hash << 3);
    hash ^= hash >> 11;
    hash.wrapping_add(hash << 15)
}

/// The hashes of `NAME-COUNTER`, and how many of them are points.
fn hash_words(name: &[u8], counter: u32, layout: Layout) -> ([u32; 4], usize) {
    let mut digits = [0; 12];
    let mut rest = &mut digits[..];
    write!(rest, "-{counter}").expect("eleven bytes at most");
    let left = rest.len();
    let digits = &digits[..digits.len() - left];
    if layout == Layout::OneAtATime {
        return ([one_at_a_time(&[name, digits].concat()), 0, 0, 0], 1);
    }
    let words = words(&Md5::new().chain_update(name).chain_update(digits).finalize().into());
    (words, if layout == Layout::Plain { 1 } else { words.len() })
}

fn words(digest: &[u8; 16]) -> [u32; 4] {
    let (words, _) = digest.as_chunks::<4>();
    std::array::from_fn(|word| u32::from_le_bytes(words[word]))
}

/// Number of hashes, four points each, of a server of this weight. In single precision and in libmemcached's
/// order of operations: the rounding decides.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "as libmemcached; nothing is negative"
)]
fn weighted_hashes(weight: u32, total: u64, servers: usize) -> u32 {
    let share = weight as f32 / total as f32;
    (share * 160.0 / 4.0 * servers as f32 + 0.000_000_000_1).floor() as u32
}
