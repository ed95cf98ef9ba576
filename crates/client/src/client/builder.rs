//! Options of a client.

use std::sync::Arc;
use std::time::Duration;

use crate::calls::setters;
use crate::client::nodes::{ListSource, Nodes};
use crate::client::servers::{ServerSource, Servers};
use crate::client::{Client, ClientInner};
use crate::error::Error;
use crate::herd::Flights;
use crate::key;
use crate::metrics::{Metrics, Observer};
#[cfg(feature = "near-cache")]
use crate::near::{Near, NearCache};
use crate::net::address::Address;
use crate::net::node::NodeSettings;
#[cfg(feature = "tls")]
use crate::net::tls::Tls;
use crate::net::wire::Protocol;
use crate::route::{Ejection, Options, Sharding};

/// Most shared connections to a server.
const CONNECTIONS_MAX: usize = 1024;
/// Most waiting connections to a server.
const WAITING_MAX: usize = 65_536;

/// Options of a [`Client`]: [`Client::builder`].
#[derive(Debug, Clone)]
#[must_use]
pub struct ClientBuilder {
    servers: Vec<String>,
    settings: NodeSettings,
    credentials: Option<(String, String)>,
    compress_above: Option<usize>,
    #[cfg(feature = "near-cache")]
    near: Option<NearCache>,
    route: Options,
    nodes: Option<Vec<String>>,
    nodes_interval: Duration,
    nodes_key: String,
}

impl Default for ClientBuilder {
    fn default() -> Self {
        let settings = NodeSettings {
            protocol: Protocol::Meta,
            timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(1),
            retry_reads: true,
            connections: 1,
            waiting_connections: 64,
            login: None,
            #[cfg(feature = "tls")]
            tls: None,
            metrics: Arc::default(),
        };
        Self {
            servers: Vec::new(),
            settings,
            credentials: None,
            route: Options::default(),
            compress_above: None,
            #[cfg(feature = "near-cache")]
            near: None,
            nodes: None,
            nodes_interval: Duration::from_secs(1),
            nodes_key: "@nodes".to_owned(),
        }
    }
}

impl ClientBuilder {
    /// Adds a server: `host`, `host:port`, `[v6]:port`, `unix:/path` or `/path`, and `=WEIGHT` after it for a
    /// weight other than 1. Without a port it is 11211. The order of servers matters to those kinds of
    /// sharding where it does.
    pub fn server(mut self, server: impl Into<String>) -> Self {
        self.servers.push(server.into());
        self
    }

    /// Adds servers.
    pub fn servers<S: Into<String>>(mut self, servers: impl IntoIterator<Item = S>) -> Self {
        self.servers.extend(servers.into_iter().map(Into::into));
        self
    }

    /// Takes the servers from the list of a fleet's nodes (`[follow.NAME]` of etcd), in the place of
    /// [`server`](Self::server) and [`servers`](Self::servers): a server that joins gets its keys, a server
    /// that leaves gives them up, and no program is started again. `seeds` are asked for the list first: a
    /// few nodes, or a name behind which one of them is.
    ///
    /// Nodes that are `up` are the servers, under the addresses of the list; nodes that are `joining` only if
    /// none is up; others get no keys. The sharding is over those addresses with equal weights, so that other
    /// clients that were given the same find the same keys on the same servers. While no list was had, the
    /// seeds themselves are the servers; when none is had later, or it names no server, the last stays.
    ///
    /// The list is asked for while the client is used: before the first command and after a pause, for at
    /// most half of [`timeout`](Self::timeout), and otherwise in the background. A command whose connection
    /// fails is sent once more if its key has another server by then, for which up to 250 ms are waited once
    /// a second; not one with a CAS number or the token of a lease, and not [`call`](Client::call).
    ///
    /// What a change leaves on the server that a key was on before stays there, and is read again when the
    /// change is undone: invalidate by tags, which reach all nodes, where that must not be.
    pub fn nodes<S: Into<String>>(mut self, seeds: impl IntoIterator<Item = S>) -> Self {
        self.nodes.get_or_insert_default().extend(seeds.into_iter().map(Into::into));
        self
    }

    /// The client. Nothing is connected yet.
    ///
    /// # Errors
    /// [`Error::Usage`]: there is no server, an address is none, or an option has a value that makes no
    /// sense.
    pub fn build(self) -> Result<Client, Error> {
        let source = self.source()?;
        let mut settings = self.settings;
        // Clones of a builder make clients with counters of their own.
        settings.metrics = Arc::new(settings.metrics.anew());
        if let Some((user, password)) = &self.credentials {
            check_credentials(user, password)?;
            let text = format!("{user} {password}");
            settings.login = Some(format!("set auth 0 0 {}\r\n{text}\r\n", text.len()).into_bytes());
        }
        for (option, time) in [("timeout", settings.timeout), ("connect_timeout", settings.connect_timeout)] {
            if time.is_zero() {
                return Err(Error::Usage(format!("{option} is 0: nothing can be done in it")));
            }
        }
        let (shared, waiting) = (settings.connections, settings.waiting_connections);
        for (option, count, possible) in
            [("connections", shared, 1..=CONNECTIONS_MAX), ("waiting_connections", waiting, 0..=WAITING_MAX)]
        {
            if !possible.contains(&count) {
                let (least, most) = (possible.start(), possible.end());
                return Err(Error::Usage(format!("{option} is {count}: possible are {least} to {most}")));
            }
        }
        let settings = Arc::new(settings);
        let (addresses, asking) = source;
        let servers = Servers::new(addresses, self.route, &settings)
            .map_err(|error| Error::Usage(error.to_string()))?;
        let source = match asking {
            None => ServerSource::Fixed(Arc::new(servers)),
            Some(asking) => {
                ServerSource::Listed(Arc::new(Nodes::new(asking, servers, self.route, &settings)))
            }
        };
        #[cfg(feature = "near-cache")]
        let near = self.near.map(Near::new);
        #[cfg(not(feature = "near-cache"))]
        let near = None;
        let compress_above = self.compress_above;
        let flights = Arc::new(Flights::new());
        Ok(Client { inner: Arc::new(ClientInner { source, settings, compress_above, flights, near }) })
    }

    /// The first servers, and how the list of others is asked for.
    fn source(&self) -> Result<(Vec<Address>, Option<ListSource>), Error> {
        let wrong = |text: &str| Err(Error::Usage(text.to_owned()));
        let given = self.nodes.as_ref().unwrap_or(&self.servers);
        if given.is_empty() {
            return wrong("a client without servers: call server() or nodes()");
        }
        let addresses = given.iter().map(|server| Address::parse(server));
        let mut addresses: Vec<Address> = addresses.collect::<Result<_, _>>()?;
        if self.nodes.is_none() {
            return Ok((addresses, None));
        }
        if !self.servers.is_empty() {
            return wrong("server() and nodes(): the servers are given or those of a list");
        }
        if addresses.iter().any(|address| address.weight != 1) {
            return wrong("nodes() with a weight: those of a list have equal ones");
        }
        if self.nodes_interval < Duration::from_millis(1) {
            return wrong("nodes_interval is below 1 ms");
        }
        key::check(self.nodes_key.as_bytes()).map_err(Error::Key)?;
        let (seeds, key, interval) = (addresses.clone(), self.nodes_key.clone(), self.nodes_interval);
        addresses.sort_by(|one, other| one.name.cmp(&other.name));
        addresses.dedup_by(|one, other| one.name == other.name);
        Ok((addresses, Some(ListSource { seeds, key, interval })))
    }
}

setters! {
impl ClientBuilder {
    /// How often the list of [`nodes`](Self::nodes) is asked for, a quarter more or less, at least 1 ms. A
    /// server that fails has it asked for at once. Default: 1 s.
    pub fn nodes_interval(interval: Duration) => nodes_interval = interval;

    /// The key of the list of [`nodes`](Self::nodes), for servers whose control keys begin with something
    /// else than `@`. Default: `@nodes`.
    pub fn nodes_key(key: impl Into<String>) => nodes_key = key.into();

    /// Connections to each server that commands share, 1 to 1024. Default: 1, which is enough for most
    /// programs.
    pub fn connections(count: usize) => settings.connections = count;

    /// At most this many connections to each server, 0 to 65536, for requests that the server holds while
    /// another client computes. Beyond them, and if none can be made, the client asks repeatedly. 0: it
    /// always does. Default: 64.
    pub fn waiting_connections(count: usize) => settings.waiting_connections = count;

    /// No command takes longer, all together. Requests that a server holds have the time of their wait in
    /// addition. Default: 1 s.
    pub fn timeout(limit: Duration) => settings.timeout = limit;

    /// Connecting takes at most this long, authentication included. Default: 1 s.
    pub fn connect_timeout(limit: Duration) => settings.connect_timeout = limit;

    /// Whether a read is sent once more when its connection breaks: if no byte of its reply has come, if the
    /// connection had worked before, and if the server is not in its back-off. The time for both is that of
    /// one command. Reads of keys that begin with `@`, `get_and_touch`, and [`call`](Client::call) are never
    /// sent twice. Default: true.
    pub fn retry_reads(retry: bool) => settings.retry_reads = retry;

    /// How keys are spread over servers. Default: [`Sharding::KetamaWeighted`].
    pub fn sharding(sharding: Sharding) => route.sharding = sharding;

    /// A server that fails is taken out, its keys go to others, and it is tried again while the client is
    /// used. Default: none is taken out, and commands for a server that fails are errors.
    pub fn ejection(ejection: Ejection) => route.ejection = Some(ejection);

    /// Whether an ejected server gets `flush_all` before it gets keys again; see
    /// [`Options::flush_on_return`]. Default: false.
    pub fn flush_on_return(flush: bool) => route.flush_on_return = flush;

    /// Which commands are sent. Default: [`Protocol::Meta`].
    pub fn protocol(protocol: Protocol) => settings.protocol = protocol;

    /// User and password, as memcached's ASCII authentication wants them (`memcached -Y`).
    ///
    /// Cattlegrid takes a password with blanks in it. memcached reads it only up to its first blank: a user
    /// whose line in memcached's file has such a password cannot log in with any client.
    pub fn credentials(user: impl Into<String>, password: impl Into<String>) => credentials = Some((user.into(), password.into()));

    /// Encrypts all connections.
    #[cfg(feature = "tls")]
    pub fn tls(tls: Tls) => settings.tls = Some(tls);

    /// Values of more than this many bytes are stored compressed (zlib), if that makes them smaller. Values
    /// of more than 64 MiB are never compressed. Compressed values are read without this option too; `append`
    /// and `prepend` damage them. Default: none are.
    #[cfg(feature = "compression")]
    pub fn compress_above(bytes: usize) => compress_above = Some(bytes);

    /// Keeps values of the busiest keys in this process: for [`Client::get`] and [`Client::get_many`] over
    /// [`Protocol::Meta`]. What other clients write is not noticed while a value is kept. Default: none are.
    #[cfg(feature = "near-cache")]
    pub fn near_cache(settings: NearCache) => near = Some(settings);

    /// Gets told what the client does. Default: no observer.
    pub fn observer(observer: Arc<dyn Observer>) => settings.metrics = Arc::new(Metrics::new(Some(observer)));
}
}

/// Refuses what no server can find among the lines `user:password` of its file.
fn check_credentials(user: &str, password: &str) -> Result<(), Error> {
    const LINE_MAX: usize = 255;
    let wrong = if user.is_empty() || password.is_empty() {
        "user and password must not be empty"
    } else if user.contains([' ', ':', '\r', '\n', '\0']) {
        "a user must not have blanks, colons, line ends or zero bytes"
    } else if password.contains(['\r', '\n', '\0']) {
        "a password must not have line ends or zero bytes"
    } else if user.len() + 1 + password.len() > LINE_MAX {
        "user and password must not be longer than 254 bytes together"
    } else {
        return Ok(());
    };
    Err(Error::Usage(wrong.to_owned()))
}
