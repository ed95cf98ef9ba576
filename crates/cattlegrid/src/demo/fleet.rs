//! A fleet: an invalidation that is sent to one node is obeyed by all.
//!
//! The etcd is the machine's own, with its data in a temporary directory; where there is none the tour says
//! how to see it.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cattlegrid_load::harness::{Server, Start};
use cattlegrid_server::time::Clock;
use tempfile::TempDir;

use super::plain::PlainClient;
use super::protection::promise;
use super::scenes::Stage;
use super::{Act, DemoError, Scene, SceneOutcome, server};

/// This scene.
pub(super) const ACT: Act = Act {
    heads: &["a fleet of three nodes", "pages of user 1", "pages of user 2"],
    scenes: &[Scene { title: "one node is told, all obey", run: fleet }],
};

const NODES: usize = 3;
/// Pages of each user on each node.
const PAGES: usize = 4;
const USERS: [u32; 2] = [1, 2];
/// Longest time for the nodes to be confirmed, and for the pages to go.
const SOON: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(10);
/// Connections of a node that one client uses.
const CONNECTIONS: usize = 64;
const TELL: &str = "delete @tag:user:1";

fn rules(node: usize, etcd: u16) -> String {
    format!(
        "[server]\nnode = \"cache-{node}\"\n\n\
         [[rule]]\nmatch = \"page:{{user}}:{{n}}\"\nhold = \"400ms\"\ntags = [\"user:{{user}}\"]\n\n\
         [follow.bumps]\nservers = [\"http://127.0.0.1:{etcd}\"]\nprefix = \"/cattlegrid/demo\"\n"
    )
}

fn fleet(stage: &mut Stage) -> Result<SceneOutcome, DemoError> {
    let etcd = match EtcdProcess::start() {
        Ok(etcd) => etcd,
        Err(reason) => {
            let row = ["not shown, see below", "-", "-"].map(str::to_owned).to_vec();
            let note = format!(
                "A fleet is not shown: {reason}. With etcd (apt-get install etcd-server) the demo invalidates on one of three \
                 nodes, and all obey; `just cluster` shows more of it."
            );
            return Ok(SceneOutcome { rows: vec![row], note: Some(note) });
        }
    };
    let nodes = (1..=NODES).map(|node| server::start_with(CONNECTIONS, &rules(node, etcd.port)));
    let nodes: Vec<Server> = nodes.collect::<Result<_, _>>()?;
    let clients = nodes.iter().map(|node| PlainClient::open(node.address(), stage.meter()));
    let mut clients: Vec<PlainClient<'_>> = clients.collect::<Result<_, _>>()?;
    let clock = Clock::new();
    let begun = clock.now();
    for client in &mut clients {
        while client.text("follow", "bumps:state")? != "confirmed" {
            stage.pause(LOOK)?;
            promise(clock.now() < begun + SOON, || "a node's log is not confirmed".to_owned())?;
        }
        for key in USERS.iter().flat_map(|user| pages(*user)) {
            client.set(&key, "a page", 0)?;
        }
    }
    let stored = [NODES * PAGES; 2];
    let counted = count(&mut clients)?;
    promise(counted == stored, || format!("{counted:?} pages are stored instead of {stored:?}"))?;
    let mut rows = vec![row("all is stored", counted, "")];
    let (first, others) = clients.split_at_mut(1);
    first[0].expect(&format!("{TELL}\r\n"), "DELETED")?;
    let told = clock.now();
    for client in others {
        while !client.get(&pages(USERS[0]))?.is_empty() {
            promise(clock.now() < told + SOON, || "a node does not obey".to_owned())?;
        }
    }
    let within = clock.now().saturating_duration_since(told).as_millis() + 1;
    let counted = count(&mut clients)?;
    let left = [0, NODES * PAGES];
    promise(counted == left, || format!("{counted:?} pages are left instead of {left:?}"))?;
    rows.push(row(&format!("{TELL}, to one"), counted, &format!(", within {within} ms")));
    drop(clients);
    nodes.into_iter().for_each(Server::stop);
    Ok(SceneOutcome { rows, note: None })
}

fn pages(user: u32) -> Vec<String> {
    (1..=PAGES).map(|page| format!("page:{user}:{page}")).collect()
}

/// The pages of each user that all nodes have.
fn count(clients: &mut [PlainClient<'_>]) -> Result<[usize; 2], DemoError> {
    let mut counts = [0; 2];
    for client in clients {
        for (count, user) in counts.iter_mut().zip(USERS) {
            *count += client.get(&pages(user))?.len();
        }
    }
    Ok(counts)
}

fn row(title: &str, [first, second]: [usize; 2], how: &str) -> Vec<String> {
    let of = NODES * PAGES;
    vec![title.to_owned(), format!("{first} of {of}{how}"), format!("{second} of {of}")]
}

/// A server of etcd; ended when dropped.
struct EtcdProcess {
    _process: Server,
    port: u16,
    _directory: TempDir,
}

impl EtcdProcess {
    /// Starts one; why there is none.
    fn start() -> Result<Self, String> {
        if !cfg!(feature = "etcd") {
            return Err("this program was built without it".to_owned());
        }
        let program = program().ok_or("etcd is not installed")?;
        let directory = tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
        let data = directory.path().join("data");
        let [port, peers] = free_ports().map_err(|error| format!("no free port: {error}"))?;
        let [own, peer] = [port, peers].map(|port| format!("http://127.0.0.1:{port}"));
        let (data, cluster) = (data.to_string_lossy(), format!("demo={peer}"));
        let words = [
            ["--name", "demo"],
            ["--data-dir", &data],
            ["--listen-client-urls", &own],
            ["--advertise-client-urls", &own],
            ["--listen-peer-urls", &peer],
            ["--initial-advertise-peer-urls", &peer],
            ["--initial-cluster", &cluster],
            ["--heartbeat-interval", "20"],
            ["--election-timeout", "200"],
        ];
        // Ctrl-C is for the demo, which ends it.
        let start = Start { port: Some(port), own_group: true, ..Start::new(&program, words.as_flattened()) };
        let process = Server::start(&start).map_err(|error| format!("etcd: {error}"))?;
        Ok(Self { _process: process, port, _directory: directory })
    }
}

fn free_ports() -> std::io::Result<[u16; 2]> {
    // Both at once: they are different.
    let [one, other] = [TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?];
    Ok([one.local_addr()?.port(), other.local_addr()?.port()])
}

/// The first `etcd` of the path.
fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join("etcd")).find(|program| Path::is_file(program))
}
