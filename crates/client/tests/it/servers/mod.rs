//! Servers that tests talk to: Debian's memcached, and Cattlegrid with and without rules.
//!
//! Tests that need them are marked `#[ignore = "needs servers: cargo xtask test --stage client"]`, so that a
//! run of tests alone neither builds nor needs a server, and says which tests it has left out. With servers
//! at hand:
//!
//! ```sh
//! cargo build --profile fast -p cattlegrid
//! CATTLEGRID_BIN=target/fast/cattlegrid cargo nextest run -p cattlegrid-client --run-ignored only
//! ```

#![allow(dead_code, unused_imports, unreachable_pub, clippy::missing_panics_doc, reason = "helpers of tests")]

use std::future::Future;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cattlegrid_client::{Client, ClientBuilder, Compute, ComputeError, Outcome, Value};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

mod crew;
mod proxy;

pub use cattlegrid_load::harness::Server;
use cattlegrid_load::harness::{Start, StartError, until};
pub use crew::{Ended, Ledger, Process};
pub use proxy::Proxy;

/// A rule for the keys that begin with `h:`, with all that helps computing. Of those that begin with `b:` one
/// get waits, and the others are refused. Those that begin with `t:` have tags, and no leases.
pub const RULES: &str = r#"
[[rule]]
match = "h:{id*}"
hold = "20s"
hold_many = "4s"
grace = "30s"
lease = "10s"

[[rule]]
match = "b:{id}"
hold = "20s"
max_waiters = 1
on_busy = "error"

[[rule]]
match = "t:{id}"
tags = ["tt:{id}"]
"#;

/// The kinds of servers in tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Debian's memcached.
    Memcached,
    /// Cattlegrid without a rule file.
    Plain,
    /// Cattlegrid with [`RULES`]: keys that begin with `h:` have a rule.
    Rules,
}

impl Kind {
    /// Starts one, on a free port, with these arguments in addition.
    pub fn start_with(self, words: &[&str]) -> Server {
        self.try_start_with(words).expect("the server starts")
    }

    fn try_start_with(self, words: &[&str]) -> Result<Server, StartError> {
        let program = match self {
            Self::Memcached => PathBuf::from("memcached"),
            Self::Plain | Self::Rules => cattlegrid(),
        };
        let mut all = vec!["-p", "-1", "-l", "127.0.0.1"];
        // memcached refuses to be root.
        if self == Self::Memcached {
            all.extend(["-u", "root"]);
        }
        all.extend(words);
        let rules = (self == Self::Rules).then_some(RULES);
        Server::start(&Start { rules, ..Start::new(&program, &all) })
    }

    /// Starts one that can be started on the same port again. The system gives such a port to nobody who asks
    /// for a free one, as it would give the port of a server that is gone.
    pub fn start_to_return(self) -> Server {
        const PORTS: std::ops::Range<u64> = 12_000..32_000;
        for _ in 0..50 {
            let random = RandomState::new().build_hasher().finish();
            let port = PORTS.start + random % (PORTS.end - PORTS.start);
            if let Ok(server) = self.try_start_with(&["-p", &port.to_string()]) {
                return server;
            }
        }
        panic!("no server starts on any of 50 ports");
    }

    /// Starts one, on a free port.
    pub fn start(self) -> Server {
        self.start_with(&[])
    }
}

/// The optimised Cattlegrid.
pub fn cattlegrid() -> PathBuf {
    let named = std::env::var_os("CATTLEGRID_BIN").map(PathBuf::from);
    // Relative to the repository, as the stages name it: tests run in the package's directory.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = named.map_or_else(|| root.join("target/fast/cattlegrid"), |path| root.join(path));
    assert!(
        program.exists(),
        "{} does not exist: `cargo build --profile fast -p cattlegrid` makes it, CATTLEGRID_BIN names another",
        program.display()
    );
    program
}

/// Limits of a client's time that no reply needs on any machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A client of these servers that gives them time: with the limits that clients have otherwise, a busy
/// machine is an error.
pub fn patient<'a>(addresses: impl IntoIterator<Item = &'a str>) -> ClientBuilder {
    Client::builder().servers(addresses).timeout(PATIENCE).connect_timeout(PATIENCE)
}

/// Waits until this many requests are held by a server that holds them: by another one, none is.
pub fn until_held(kind: Kind, server: &Server, count: u64) {
    if kind != Kind::Rules {
        return;
    }
    let mut client = server.connect().expect("it listens");
    until("requests are held", || {
        let stats = client.stats("cattlegrid").expect("statistics");
        let held = stats.iter().find(|(name, _)| name == "held").expect("the number of requests");
        held.1.parse::<u64>().expect("a number") >= count
    });
}

/// A computation in a task of its own, which has begun: what ends it, and its call.
pub async fn begun<T: Value + Send + 'static>(
    client: &Client,
    key: &str,
    options: &Compute,
    value: T,
) -> (oneshot::Sender<()>, JoinHandle<Result<Outcome<T>, ComputeError<String>>>) {
    let (begins, begun) = oneshot::channel();
    let (finish, finished) = oneshot::channel::<()>();
    let (client, key, options) = (client.clone(), key.to_owned(), options.clone());
    let call = tokio::spawn(async move {
        let compute = || async move {
            begins.send(()).expect("the test waits for it");
            finished.await.expect("the test ends it");
            Ok(value)
        };
        client.get_or_compute(&key, &options, compute).await
    });
    begun.await.expect("it is computed");
    (finish, call)
}

/// Waits while another process does something that cannot be seen from here.
pub fn pause(ms: u64) {
    #[expect(
        clippy::disallowed_methods,
        reason = "what another process does cannot be waited for otherwise"
    )]
    std::thread::sleep(Duration::from_millis(ms));
}

/// Runs a test of async code, and fails it after three minutes.
pub fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let limited = async { tokio::time::timeout(Duration::from_secs(180), test).await };
    runtime.block_on(limited).expect("the test ends within three minutes")
}

/// The same test against each of the servers: `on_servers!(name)` makes the tests `name::memcached`,
/// `name::plain` and `name::rules` of `fn name(kind: Kind)`.
macro_rules! on_servers {
    ($name:ident) => {
        mod $name {
            #[test]
            #[ignore = "needs servers: cargo xtask test --stage client"]
            fn memcached() {
                super::$name($crate::servers::Kind::Memcached);
            }

            #[test]
            #[ignore = "needs servers: cargo xtask test --stage client"]
            fn plain() {
                super::$name($crate::servers::Kind::Plain);
            }

            #[test]
            #[ignore = "needs servers: cargo xtask test --stage client"]
            fn rules() {
                super::$name($crate::servers::Kind::Rules);
            }
        }
    };
}
pub(crate) use on_servers;
