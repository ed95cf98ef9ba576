//! Addresses of servers as they are configured.

use std::path::PathBuf;
use std::sync::Arc;

use cattlegrid_ring::WEIGHT_MAX;

use crate::error::Error;
use crate::net::wire::line_text;

/// memcached's port.
pub(crate) const PORT: u16 = 11211;

/// Where a server is, and its share of the keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    /// The server's name in errors: the address as it was given, without the weight.
    pub(crate) name: Arc<str>,
    /// Where it listens.
    pub(crate) place: Endpoint,
    /// At least 1.
    pub(crate) weight: u32,
}

/// A socket's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// TCP.
    Tcp {
        /// A name or a number, without brackets.
        host: String,
        /// 1 and above.
        port: u16,
    },
    /// A Unix socket.
    Unix(PathBuf),
}

impl Address {
    /// Reads `host`, `host:port`, `[v6]`, `[v6]:port`, `unix:/path` or `/path`, with `=weight` after it or
    /// not.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let wrong = |why: &str| {
            let forms = "host, host:port, host:port=weight, [v6]:port, unix:/path";
            Err(Error::Usage(format!("server {}: {why}; possible are {forms}", line_text(text.as_bytes()))))
        };
        let (name, weight) = match text.rsplit_once('=') {
            Some((name, weight)) => match weight.parse() {
                Ok(weight @ 1..=WEIGHT_MAX) => (name, weight),
                _ => return wrong("the weight is not a number from 1 to 65535"),
            },
            None => (text, 1),
        };
        if name.is_empty() {
            return wrong("there is no host");
        }
        let path = name.strip_prefix("unix:").or(name.starts_with('/').then_some(name));
        if let Some(path) = path {
            if path.is_empty() {
                return wrong("the path is empty");
            }
            return Ok(Self { name: name.into(), place: Endpoint::Unix(path.into()), weight });
        }
        if name.contains("://") {
            return wrong("it is not a URL: leave out what is before the host");
        }
        if name.contains([',', ';']) {
            return wrong("several servers in one text: call server() for each of them, or servers()");
        }
        let (host, port) = match name.strip_prefix('[') {
            Some(rest) => match rest.split_once(']') {
                Some((host, "")) => (host, None),
                Some((host, port)) if port.starts_with(':') => (host, Some(&port[1..])),
                Some(_) => return wrong("after the bracket there must be :port or nothing"),
                None => return wrong("the bracket is not closed"),
            },
            None => match name.rsplit_once(':') {
                Some((host, _)) if host.contains(':') => {
                    return wrong(
                        "more than one colon: write one port only, and an IPv6 address in brackets",
                    );
                }
                Some((host, port)) => (host, Some(port)),
                None => (name, None),
            },
        };
        let port = match port.map(str::parse) {
            None => PORT,
            Some(Ok(port @ 1_u16..)) => port,
            Some(_) => return wrong("the port is not a number from 1 to 65535"),
        };
        if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return wrong("the host is empty or has blanks");
        }
        Ok(Self { name: name.into(), place: Endpoint::Tcp { host: host.into(), port }, weight })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(text: &str) -> (String, u16, u32) {
        match Address::parse(text).unwrap() {
            Address { place: Endpoint::Tcp { host, port }, weight, .. } => (host, port, weight),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn forms() {
        assert_eq!(tcp("cache1"), ("cache1".into(), 11211, 1));
        assert_eq!(tcp("cache1:1=7"), ("cache1".into(), 1, 7));
        assert_eq!(tcp("cache1=7"), ("cache1".into(), 11211, 7));
        assert_eq!(tcp("[::1]"), ("::1".into(), 11211, 1));
        assert_eq!(tcp("[::1]:65535=2"), ("::1".into(), 65535, 2));
        for text in ["/run/c.sock=3", "unix:/run/c.sock=3", "unix:///run/c.sock=3"] {
            let address = Address::parse(text).unwrap();
            assert_eq!((address.place, address.weight), (Endpoint::Unix("/run/c.sock".into()), 3));
        }
        assert_eq!(&*Address::parse("cache1:1=7").unwrap().name, "cache1:1");
    }

    #[test]
    fn what_is_no_address() {
        let wrong = [
            "", ":1", "a:", "a:0", "a:65536", "a:x", "a=0", "a=", "a=-1", "::1", "[::1", "[::1]1", "a b",
            "unix:",
        ];
        for text in wrong {
            assert!(matches!(Address::parse(text), Err(Error::Usage(_))), "{text}");
        }
        for (text, fix) in [
            ("http://host", "not a URL"),
            ("host:1:2", "one port only"),
            ("a:1,b:1", "server() for each"),
            ("[::1]x", ":port or nothing"),
            ("=65536", "1 to 65535"),
            ("a=65536", "1 to 65535"),
            ("=5", "no host"),
            ("::1", "in brackets"),
        ] {
            let Err(Error::Usage(message)) = Address::parse(text) else { panic!("{text}") };
            assert!(message.contains(&format!("\"{text}\"")) && message.contains(fix), "{message}");
        }
    }
}
