//! A server as a ring knows it: its name and its weight.

use std::fmt::{self, Display};

use crate::RingError;

/// Longest name of a server in bytes.
pub const NAME_MAX: usize = 255;
/// Largest weight of a server.
pub const WEIGHT_MAX: u32 = 65_535;

/// The port that the names of points leave out, as libmemcached's do.
const DEFAULT_PORT: &[u8] = b":11211";

/// A server. Its name is `host:port`; without a port it is that of port 11211.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Server {
    name: Box<[u8]>,
    weight: u32,
}

impl Server {
    /// A server with this name, 1 to [`NAME_MAX`] bytes, and weight, 1 to [`WEIGHT_MAX`]: its share of the
    /// keys is its share of the weights.
    ///
    /// # Errors
    /// [`RingError::Name`], [`RingError::Weight`].
    pub fn new(name: impl AsRef<[u8]>, weight: u32) -> Result<Self, RingError> {
        let name = name.as_ref();
        if !(1..=NAME_MAX).contains(&name.len()) {
            return Err(RingError::Name);
        }
        if !(1..=WEIGHT_MAX).contains(&weight) {
            return Err(RingError::Weight);
        }
        Ok(Self { name: name.into(), weight })
    }

    /// Reads `NAME` or `NAME=WEIGHT`; without a weight it is 1.
    ///
    /// # Errors
    /// [`RingError::Name`], [`RingError::Weight`].
    pub fn parse(text: &[u8]) -> Result<Self, RingError> {
        let Some(at) = text.iter().rposition(|byte| *byte == b'=') else { return Self::new(text, 1) };
        let digits = &text[at + 1..];
        if !(1..=9).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
            return Err(RingError::Weight);
        }
        Self::new(&text[..at], digits.iter().fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0')))
    }

    /// The server's name.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// The server's weight.
    pub fn weight(&self) -> u32 {
        self.weight
    }

    /// The beginning of its points' names: the server's name without the default port.
    pub fn point_name(&self) -> &[u8] {
        match self.name.strip_suffix(DEFAULT_PORT) {
            Some(host) if !host.is_empty() => host,
            _ => &self.name,
        }
    }
}

/// `NAME=WEIGHT`, as [`Server::parse`] reads it.
impl Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", String::from_utf8_lossy(&self.name), self.weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read() {
        let read = |text: &[u8]| Server::parse(text).map(|server| server.to_string());
        assert_eq!(read(b"a:11211").unwrap(), "a:11211=1");
        assert_eq!(read(b"a=b=7").unwrap(), "a=b=7", "the last sign counts");
        assert_eq!(read(b"a=65535").unwrap(), "a=65535");
        for text in ["a=0", "a=65536", "a=", "a=-1", "a=1x", "a=4294967297", "a=99999999999999999999"] {
            assert_eq!(read(text.as_bytes()), Err(RingError::Weight), "{text}");
        }
        assert_eq!(read(b""), Err(RingError::Name));
        assert_eq!(read(b"=3"), Err(RingError::Name));
        assert!(Server::new(vec![b'x'; NAME_MAX], 1).is_ok());
        assert_eq!(Server::new(vec![b'x'; NAME_MAX + 1], 1), Err(RingError::Name));
    }

    #[test]
    fn the_default_port_is_not_part_of_points() {
        let point_name = |name: &str| Server::new(name, 1).unwrap().point_name().to_vec();
        assert_eq!(point_name("a:11211"), b"a");
        assert_eq!(point_name("a"), b"a");
        assert_eq!(point_name("a:112112"), b"a:112112");
        assert_eq!(point_name(":11211"), b":11211");
    }
}
