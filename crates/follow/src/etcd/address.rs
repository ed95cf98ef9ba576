//! Where an etcd is, and under which prefix the nodes of a fleet meet.

use std::fmt;

use crate::postgres::SslMode;

/// The port of a server that is named without one.
const PORT: u16 = 2379;

/// Most servers of an etcd.
const SERVERS_MAX: usize = 16;

/// Longest prefix, in bytes.
const PREFIX_MAX: usize = 200;

/// The prefix of keys that is used when none is named.
const DEFAULT_PREFIX: &str = "/cattlegrid";

/// An etcd.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdAddress {
    /// Hosts and ports of its servers, 1 to 16.
    pub servers: Vec<(String, u16)>,
    /// Before all keys: nodes that share it obey each other's bumps. Begins with `/`, and does not end with
    /// it.
    pub prefix: String,
    /// The user, if etcd has authentication.
    pub user: Option<String>,
    /// The user's password, if it is in the address.
    pub password: Option<String>,
    /// Whether connections are encrypted: never [`SslMode::Prefer`].
    pub ssl: SslMode,
}

/// The reason why a text is no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}: write etcd://[USER@]HOST:2379,HOST2:2379/PREFIX, or servers = [\"http://HOST:2379\"]")]
pub struct EtcdAddressError(String);

impl fmt::Debug for EtcdAddress {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for EtcdAddress {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("etcd://")?;
        if let Some(user) = &self.user {
            write!(f, "{}@", encode(user))?;
        }
        for (at, (host, port)) in self.servers.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
            write!(f, "{comma}{host}:{port}")?;
        }
        f.write_str(&self.prefix)
    }
}

impl EtcdAddress {
    /// Reads `etcd://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]...][/PREFIX][?sslmode=…]`.
    ///
    /// # Errors
    /// What is missing or unknown.
    pub fn parse(text: &str) -> Result<Self, EtcdAddressError> {
        let Some(rest) = text.strip_prefix("etcd://") else {
            return refuse("the address does not begin with etcd://");
        };
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (servers, prefix) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let (login, servers) = servers.rsplit_once('@').map_or((None, servers), |(l, s)| (Some(l), s));
        let (user, password) = match login.map(|login| login.split_once(':').ok_or(login)) {
            None => (None, None),
            Some(Ok((user, password))) => (Some(decode(user)?), Some(decode(password)?)),
            Some(Err(user)) => (Some(decode(user)?), None),
        };
        let mut place = Self {
            servers: Vec::new(),
            prefix: prefix_of(prefix)?,
            user: user.filter(|user| !user.is_empty()),
            password,
            ssl: SslMode::Disable,
        };
        for server in servers.split(',') {
            place.add_server(server)?;
        }
        for option in options.split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("sslmode", name)) => {
                    place.ssl = SslMode::of(name)
                        .map_err(|_| EtcdAddressError("its sslmode is unknown".to_owned()))?;
                }
                // What is behind the sign may be a password.
                _ => return refuse("behind the question mark there is no option but sslmode=MODE"),
            }
        }
        Ok(place)
    }

    /// Reads a list of `http://HOST:PORT` or `https://HOST:PORT`, all of one kind.
    ///
    /// # Errors
    /// What is missing or unknown.
    pub fn of_servers<'a>(
        servers: impl Iterator<Item = &'a str>,
        prefix: Option<&str>,
    ) -> Result<Self, EtcdAddressError> {
        let mut place = Self {
            servers: Vec::new(),
            prefix: prefix_of(prefix.unwrap_or(""))?,
            user: None,
            password: None,
            ssl: SslMode::Disable,
        };
        let mut encrypts = None;
        for server in servers {
            let (own, is_encrypted) = match (server.strip_prefix("http://"), server.strip_prefix("https://"))
            {
                (Some(own), _) => (own, false),
                (_, Some(own)) => (own, true),
                (None, None) => {
                    let number = place.servers.len() + 1;
                    return refuse(&format!("server {number} begins with neither http:// nor https://"));
                }
            };
            if *encrypts.get_or_insert(is_encrypted) != is_encrypted {
                return refuse("some servers are http:// and some https://");
            }
            place.add_server(own.strip_suffix('/').unwrap_or(own))?;
        }
        if encrypts == Some(true) {
            place.ssl = SslMode::VerifyFull;
        }
        if place.servers.is_empty() { refuse("no server is named") } else { Ok(place) }
    }

    /// Replaces the prefix.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn set_prefix(&mut self, prefix: &str) -> Result<(), EtcdAddressError> {
        if prefix.trim_end_matches('/').is_empty() {
            return refuse(&format!("the prefix is empty; leave it out for {DEFAULT_PREFIX}"));
        }
        self.prefix = prefix_of(prefix)?;
        Ok(())
    }

    /// Adds a server. An error does not show the refused text: there may be a password in it.
    fn add_server(&mut self, server: &str) -> Result<(), EtcdAddressError> {
        let number = self.servers.len() + 1;
        if server.contains('@') {
            return refuse(&format!("server {number} has a user, which is written once, before all servers"));
        }
        if server.contains('/') {
            return refuse(&format!("server {number} has a path; the prefix of keys is written in prefix"));
        }
        let (host, port) = match server.strip_prefix('[') {
            Some(rest) => match rest.split_once(']') {
                Some((host, port)) => (host, port.strip_prefix(':').unwrap_or(port)),
                None => return refuse(&format!("server {number} has no closing bracket")),
            },
            None => server.split_once(':').unwrap_or((server, "")),
        };
        let port = match port {
            "" => PORT,
            text => match text.parse() {
                Ok(port) if port > 0 => port,
                _ => return refuse(&format!("the port of server {number} is not 1 to 65535")),
            },
        };
        if host.is_empty() || host.contains(' ') {
            return refuse(&format!("server {number} has no host"));
        }
        let own = (host.to_owned(), port);
        if self.servers.contains(&own) {
            return refuse(&format!("server {number} is named twice"));
        }
        self.servers.push(own);
        if self.servers.len() > SERVERS_MAX {
            return refuse(&format!("more than {SERVERS_MAX} servers"));
        }
        Ok(())
    }
}

fn refuse<T>(what: &str) -> Result<T, EtcdAddressError> {
    Err(EtcdAddressError(what.to_owned()))
}

fn prefix_of(text: &str) -> Result<String, EtcdAddressError> {
    let prefix = decode(text.trim_end_matches('/'))?;
    if prefix.is_empty() {
        return Ok(DEFAULT_PREFIX.to_owned());
    }
    if !prefix.starts_with('/') {
        return refuse("the prefix does not begin with /");
    }
    if prefix.len() > PREFIX_MAX || prefix.chars().any(|char| char.is_control() || char == ' ') {
        return refuse(&format!("the prefix is longer than {PREFIX_MAX} bytes, or has blanks"));
    }
    Ok(prefix)
}

fn encode(text: &str) -> String {
    text.replace('%', "%25").replace('@', "%40").replace(':', "%3A").replace('/', "%2F")
}

/// `%40` is `@`.
fn decode(text: &str) -> Result<String, EtcdAddressError> {
    let decoded = crate::address::decode(text);
    decoded.map_err(|_| {
        EtcdAddressError(
            "it has a % that two digits do not follow (a % itself is %25), or is not UTF-8".to_owned(),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_and_short_addresses() {
        let whole = EtcdAddress::parse(
            "etcd://shop:p%40s@10.0.0.1:2379,[::1]:23790,etcd.internal/cattlegrid/shop/?sslmode=verify-ca",
        )
        .unwrap();
        assert_eq!(whole.servers.len(), 3);
        assert_eq!(whole.servers[1], ("::1".to_owned(), 23790));
        assert_eq!(whole.servers[2].1, 2379);
        assert_eq!((whole.prefix.as_str(), whole.ssl), ("/cattlegrid/shop", SslMode::VerifyCa));
        assert_eq!((whole.user.as_deref(), whole.password.as_deref()), (Some("shop"), Some("p@s")));
        assert_eq!(format!("{whole}{whole:?}").matches("p@s").count(), 0, "the password is shown");
        assert_eq!(
            whole.to_string(),
            "etcd://shop@10.0.0.1:2379,[::1]:23790,etcd.internal:2379/cattlegrid/shop"
        );
        let short = EtcdAddress::parse("etcd://localhost").unwrap();
        assert_eq!((short.prefix.as_str(), short.ssl, short.user), ("/cattlegrid", SslMode::Disable, None));
        let listed = EtcdAddress::of_servers(["https://a:1", "https://b"].into_iter(), Some("/x")).unwrap();
        assert_eq!((listed.prefix.as_str(), listed.ssl), ("/x", SslMode::VerifyFull));
        assert_eq!(EtcdAddress::parse(&listed.to_string()).unwrap().servers, listed.servers);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("http://a", "etcd://"),
            ("etcd:///x", "no host"),
            ("etcd://a:0/x", "port of server 1"),
            ("etcd://a,a/x", "named twice"),
            ("etcd://a/x y", "blanks"),
            ("etcd://a?ssl=1", "sslmode=MODE"),
            ("etcd://a?sslmode=on", "sslmode is unknown"),
            ("etcd://u:%4@a", "%"),
            ("etcd://[::1", "bracket"),
        ] {
            let error = EtcdAddress::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        for (servers, part) in [
            (&["a:1"][..], "neither"),
            (&["http://a", "https://b"], "some servers"),
            (&[], "no server"),
            (&["http://a/b"], "server 1 has a path"),
            (&["http://a", "http://u:secret@b"], "server 2 has a user"),
        ] {
            let error = EtcdAddress::of_servers(servers.iter().copied(), None).unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains("secret"), "{servers:?}: {error}");
        }
        for text in
            ["u:%zsecret@a", "u:s/ecret@a", "u:0,secret@a/b c", "u@a/p?password=secret", "u:secret @:1"]
        {
            let error = EtcdAddress::parse(&format!("etcd://{text}")).unwrap_err().to_string();
            assert!(!error.contains("ecret"), "{text}: {error}");
        }
        let mut place = EtcdAddress::parse("etcd://a").unwrap();
        for prefix in ["", "/", "//", "x"] {
            assert!(place.set_prefix(prefix).is_err(), "{prefix}");
        }
    }
}
