//! The same with real nodes and a real etcd (`etcd` in the path, as Debian's `etcd-server` has it).

use std::path::Path;

use cattlegrid_client::route::{Options, Route};
use cattlegrid_load::harness::{Server, Start};
use nix::sys::signal::Signal;

use super::*;
use crate::servers::{Kind, begun, cattlegrid, until_held};

/// A fleet with an etcd of its own.
struct Fleet {
    etcd_port: u16,
    ports: Vec<u16>,
    servers: Vec<Option<Server>>,
    _etcd: Server,
    _data: tempfile::TempDir,
}

/// A port that is free, and that the system does not give to others: a node comes back to it.
fn own_port() -> u16 {
    use std::hash::{BuildHasher as _, Hasher as _, RandomState};
    loop {
        let port = 12_000 + (RandomState::new().build_hasher().finish() % 20_000) as u16;
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

impl Fleet {
    fn start(count: usize) -> Self {
        let data = tempfile::tempdir().unwrap();
        let (port, peers) = (own_port(), format!("http://127.0.0.1:{}", own_port()));
        let (own, cluster) = (format!("http://127.0.0.1:{port}"), format!("one={peers}"));
        let folder = data.path().to_str().unwrap();
        let words = [
            ["--name", "one"],
            ["--data-dir", folder],
            ["--listen-client-urls", &own],
            ["--advertise-client-urls", &own],
            ["--listen-peer-urls", &peers],
            ["--initial-advertise-peer-urls", &peers],
            ["--initial-cluster", &cluster],
            ["--heartbeat-interval", "50"],
            ["--election-timeout", "400"],
        ];
        let etcd = Start { port: Some(port), ..Start::new(Path::new("etcd"), words.as_flattened()) };
        let etcd = Server::start(&etcd).expect("etcd starts");
        let ports = (0..count).map(|_| own_port()).collect();
        let mut fleet = Self { etcd_port: port, ports, servers: Vec::new(), _etcd: etcd, _data: data };
        for at in 0..count {
            let server = Some(fleet.node(at));
            fleet.servers.push(server);
        }
        fleet
    }

    fn node(&self, at: usize) -> Server {
        let rules = format!(
            "[server]\nnode = \"n{at}\"\n[[rule]]\nmatch = \"h:{{id}}\"\nhold = \"20s\"\nlease = \"20s\"\ntags = [\"t:{{id}}\"]\n\
             [follow.bumps]\nservers = [\"http://127.0.0.1:{}\"]\nprefix = \"/cattlegrid/test\"\n",
            self.etcd_port
        );
        let (program, port) = (cattlegrid(), self.ports[at].to_string());
        let words = ["-l", "127.0.0.1", "-U", "0", "-p", &port];
        Server::start(&Start { rules: Some(&rules), ..Start::new(&program, &words) }).expect("a node starts")
    }

    /// A key under the rule that this node has.
    fn key_of(&self, at: usize) -> String {
        let all: Vec<_> = self.addresses(None).into_iter().collect();
        let servers = all.iter().map(|address| (address, 1));
        let route = Route::new(servers, Options::default(), Instant::now()).unwrap();
        let own = all.iter().position(|address| address.ends_with(&format!(":{}", self.ports[at])));
        let mut keys = (0..1000).map(|number| format!("h:{at}-{number}"));
        keys.find(|key| route.place(key.as_bytes()) == own).unwrap()
    }

    fn addresses(&self, without: Option<usize>) -> BTreeSet<String> {
        let ports = self.ports.iter().enumerate().filter(|(at, _)| Some(*at) != without);
        ports.map(|(_, port)| format!("127.0.0.1:{port}")).collect()
    }
}

async fn until_are(client: &Client, wanted: BTreeSet<String>) -> Duration {
    let began = Instant::now();
    until("the servers are others", async || {
        client.get::<String>("any").await.ok();
        servers(client) == wanted
    })
    .await;
    began.elapsed()
}

#[test]
#[ignore = "needs servers and etcd: cargo xtask test --stage client"]
#[expect(clippy::print_stdout, reason = "figures")]
fn a_fleet() {
    run(async {
        let mut fleet = tokio::task::spawn_blocking(|| Fleet::start(3)).await.unwrap();
        let seeds = fleet.ports[..2].iter().map(|port| format!("127.0.0.1:{port}"));
        let client = Client::builder().nodes(seeds).timeout(SOON).connect_timeout(SOON).build().unwrap();
        until_are(&client, fleet.addresses(None)).await;

        // A node leaves, at once since no request waits, and comes back. No request fails.
        let stop = Arc::new(AtomicBool::new(false));
        let tasks = load(&client, &stop);
        let server = fleet.servers[1].take().unwrap();
        server.signal(Signal::SIGTERM);
        println!("left out after {:?}", until_are(&client, fleet.addresses(Some(1))).await);
        tokio::task::block_in_place(|| server.stop());
        let again = tokio::task::block_in_place(|| fleet.node(1));
        fleet.servers[1] = Some(again);
        println!("back after {:?}", until_are(&client, fleet.addresses(None)).await);

        // The same while a value is computed that another client waits for.
        for leaving in [2, 0] {
            let options = Compute::new().compute_time(SOON);
            let key = fleet.key_of(leaving);
            let (finish, call) = begun(&client, &key, &options, "value".to_owned()).await;
            let server = fleet.servers[leaving].take().unwrap();
            // Another client waits for it, which is what the server stays for.
            let other = Client::builder().server(server.address()).timeout(SOON).build().unwrap();
            let waits = tokio::spawn({
                let (key, options) = (key.clone(), options.clone());
                async move {
                    let compute = || async { Err::<String, _>("it is computed already".to_owned()) };
                    other.get_or_compute(&key, &options, compute).await
                }
            });
            tokio::task::block_in_place(|| until_held(Kind::Rules, &server, 1));
            server.signal(Signal::SIGTERM);
            println!("left out after {:?}", until_are(&client, fleet.addresses(Some(leaving))).await);
            finish.send(()).unwrap();
            let outcome = call.await.unwrap().unwrap();
            assert!(matches!(outcome, Outcome::Computed { stored: true, .. }), "{outcome:?}");
            assert_eq!(waits.await.unwrap().unwrap(), Outcome::Hit("value".to_owned()));
            tokio::task::spawn_blocking(|| server.stop()).await.unwrap();
            let again = tokio::task::block_in_place(|| fleet.node(leaving));
            fleet.servers[leaving] = Some(again);
            println!("back after {:?}", until_are(&client, fleet.addresses(None)).await);
        }
        stop.store(true, SeqCst);
        let mut requests = 0;
        for task in tasks {
            requests += task.await.unwrap();
        }
        let counted = client.statistics();
        println!("{requests} rounds of requests, {counted:?}");
        assert!(requests > 100 && counted.timeouts == 0, "{counted:?}");

        // One is killed: it stays listed until its lease has run out, and its keys fail until then.
        drop(fleet.servers[1].take());
        println!("left out after its death: {:?}", until_are(&client, fleet.addresses(Some(1))).await);
        for number in 0..100 {
            client.set(format!("k{number}"), "v", 0).await.unwrap();
        }
        let again = tokio::task::block_in_place(|| fleet.node(1));
        fleet.servers[1] = Some(again);
        until_are(&client, fleet.addresses(None)).await;
        client.invalidate(&["t:1"]).await.unwrap();
    });
}
