//! Addresses to listen on, from `-l` and `-p`.

use std::fmt;
use std::net::Ipv6Addr;

use crate::protocol::Protocol;

/// The port from `-p`, for addresses without a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TcpPort {
    /// `-p 0`: no TCP, except for addresses with their own port.
    None,
    /// `-p -1`: for each address the kernel chooses a free port.
    Ephemeral,
    /// A given port.
    Fixed(u16),
}

impl fmt::Display for TcpPort {
    /// The number that `-p` takes, and that memcached's `stats settings` shows.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => write!(f, "0"),
            Self::Ephemeral => write!(f, "-1"),
            Self::Fixed(port) => write!(f, "{port}"),
        }
    }
}

/// The host of an address to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// `*`: every address of the machine, IPv4 and IPv6.
    Any,
    /// A name or a numeric address, without brackets.
    Named(String),
}

/// One entry of `-l`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenAddress {
    /// The host.
    pub host: Host,
    /// The port, if the entry has one; otherwise that of `-p` is used.
    pub port: Option<u16>,
    /// Under `-Z`: whether connections to this address speak TLS (no `notls:` prefix).
    pub tls: bool,
    /// Under `-Z`: whether clients of this address need a certificate: `mtls:` yes, `btls:` no, None as
    /// `ssl_verify_mode` says.
    pub peer: Option<bool>,
    /// The protocol that a `proto[...]` prefix states, which has no effect.
    pub(crate) protocol: Option<Protocol>,
}

impl ListenAddress {
    /// The default entry, `127.0.0.1`.
    ///
    /// memcached's default is every address; but an open cache on a public address is an attack amplifier.
    pub fn loopback() -> Self {
        Self { host: Host::Named("127.0.0.1".to_owned()), port: None, tls: true, peer: None, protocol: None }
    }

    /// The host as given; `*` for all addresses.
    pub fn host_text(&self) -> &str {
        match &self.host {
            Host::Any => "*",
            Host::Named(host) => host,
        }
    }

    /// Parses `host`, `host:port`, `[v6]`, `[v6]:port` or a bare IPv6 address, with or without a prefix such
    /// as `notls:`.
    ///
    /// # Errors
    /// The mistake in the text.
    pub(super) fn parse(entry: &str) -> Result<Self, String> {
        let mut text = entry;
        let (mut tls, mut peer, mut protocol) = (true, None, None);
        loop {
            if let Some(rest) = text.strip_prefix("mtls:") {
                (text, tls, peer) = (rest, true, Some(true));
            } else if let Some(rest) = text.strip_prefix("btls:") {
                (text, tls, peer) = (rest, true, Some(false));
            } else if let Some(rest) = text.strip_prefix("notls:") {
                (text, tls, peer) = (rest, false, None);
            } else if let Some((rest, own)) =
                PROTOCOLS.iter().find_map(|(name, own)| Some((text.strip_prefix(name)?, *own)))
            {
                (text, protocol) = (rest, Some(own));
            } else if text.starts_with("proto[") {
                return Err(format!(
                    "{entry}: only proto[ascii], proto[binary], proto[auto] and proto[negotiating] are known"
                ));
            } else if text.starts_with("tag[") || text.starts_with("tag_") {
                return Err(format!("{entry}: tags of listeners belong to the proxy, which is not built in"));
            } else {
                break;
            }
        }
        let (host, port) = split_port(text).map_err(|problem| format!("{entry}: {problem}"))?;
        let host = if host == "*" { Host::Any } else { Host::Named(host.to_owned()) };
        Ok(Self { host, port, tls, peer, protocol })
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.tls, self.peer) {
            (false, _) => write!(f, "notls:")?,
            (true, Some(true)) => write!(f, "mtls:")?,
            (true, Some(false)) => write!(f, "btls:")?,
            (true, None) => {}
        }
        match (&self.host, self.port) {
            (Host::Any, None) => write!(f, "*"),
            (Host::Any, Some(port)) => write!(f, "*:{port}"),
            (Host::Named(host), None) => write!(f, "{host}"),
            (Host::Named(host), Some(port)) if host.contains(':') => write!(f, "[{host}]:{port}"),
            (Host::Named(host), Some(port)) => write!(f, "{host}:{port}"),
        }
    }
}

/// The protocol prefixes of addresses. They have no effect: all addresses accept the same protocols.
const PROTOCOLS: [(&str, Protocol); 4] = [
    ("proto[ascii]:", Protocol::Ascii),
    ("proto[binary]:", Protocol::Binary),
    ("proto[auto]:", Protocol::Auto),
    ("proto[negotiating]:", Protocol::Auto),
];

fn split_port(text: &str) -> Result<(&str, Option<u16>), String> {
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or("the [ of an IPv6 address has no ]")?;
        host.parse::<Ipv6Addr>().map_err(|_| format!("{host} is not an IPv6 address"))?;
        match (rest, rest.strip_prefix(':')) {
            ("", _) => (host, None),
            (_, Some(port)) => (host, Some(port)),
            _ => return Err(format!("after ] comes :port, not {rest}")),
        }
    } else if text.parse::<Ipv6Addr>().is_ok() {
        (text, None)
    } else {
        match text.rsplit_once(':') {
            Some((host, _)) if host.contains(':') => {
                return Err("an IPv6 address with a port is written [address]:port".to_owned());
            }
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        }
    };
    if host.is_empty() {
        return Err("the address is empty; name a host, or * for all".to_owned());
    }
    let port = match port {
        None => None,
        Some(text) => Some(
            text.parse::<u16>()
                .ok()
                .filter(|port| *port > 0 && !text.starts_with('+'))
                .ok_or_else(|| format!("{text} is not a port; a port is 1 to 65535"))?,
        ),
    };
    Ok((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_every_form() {
        let named = |host: &str, port, tls| ListenAddress {
            host: Host::Named(host.to_owned()),
            port,
            tls,
            peer: None,
            protocol: None,
        };
        let speaks = |protocol, address| ListenAddress { protocol: Some(protocol), ..address };
        let peer = |peer| ListenAddress { peer: Some(peer), ..named("a", Some(1), true) };
        for (text, address) in [
            ("127.0.0.1", named("127.0.0.1", None, true)),
            ("localhost:11212", named("localhost", Some(11212), true)),
            ("[::1]:11212", named("::1", Some(11212), true)),
            ("[::1]", named("::1", None, true)),
            ("::1", named("::1", None, true)),
            ("notls:127.0.0.1:1", named("127.0.0.1", Some(1), false)),
            ("proto[ascii]:notls:a", speaks(Protocol::Ascii, named("a", None, false))),
            ("proto[binary]:a:1", speaks(Protocol::Binary, named("a", Some(1), true))),
            ("proto[auto]:a", speaks(Protocol::Auto, named("a", None, true))),
            ("mtls:a:1", peer(true)),
            ("btls:proto[negotiating]:a:1", speaks(Protocol::Auto, peer(false))),
            ("*", ListenAddress { host: Host::Any, ..named("", None, true) }),
            ("*:5", ListenAddress { host: Host::Any, ..named("", Some(5), true) }),
        ] {
            assert_eq!(ListenAddress::parse(text).as_ref(), Ok(&address), "{text}");
        }
    }

    #[test]
    fn addresses_that_make_no_sense() {
        for (text, part) in [
            ("127.0.0.1:abc", "abc is not a port"),
            ("127.0.0.1:0", "0 is not a port"),
            ("127.0.0.1:65536", "65536 is not a port"),
            (":11211", "the address is empty"),
            ("[::1", "has no ]"),
            ("[fooble]:1", "fooble is not an IPv6 address"),
            ("[::1]1", "after ] comes :port"),
            ("::1:x:11211", "[address]:port"),
            ("tag[a]:127.0.0.1", "proxy"),
            ("proto[proxy]:127.0.0.1", "proto[ascii]"),
        ] {
            let problem = ListenAddress::parse(text).expect_err(text);
            assert!(problem.contains(part) && problem.starts_with(text), "{text}: {problem}");
        }
    }

    #[test]
    fn an_address_prints_as_it_is_written() {
        for text in ["127.0.0.1", "notls:a:1", "mtls:a:1", "btls:a", "[::1]:5", "::1", "*", "*:5"] {
            assert_eq!(ListenAddress::parse(text).unwrap().to_string(), text);
        }
    }
}
