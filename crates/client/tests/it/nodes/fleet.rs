//! Nodes of a fleet that are tasks of the test: items in memory, and a list that the test writes.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::connections::peer::unnumbered;

/// The token of all leases.
pub(super) const TOKEN: u64 = 77;

/// One node.
pub(super) struct Node {
    pub(super) address: String,
    pub(super) seen: Arc<Seen>,
    task: Option<JoinHandle<()>>,
}

/// State that its connections share with the test.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) items: Mutex<HashMap<String, Vec<u8>>>,
    /// The answer to `get @nodes`; None: a miss.
    pub(super) list: Mutex<Option<String>>,
    /// Questions for the list.
    pub(super) questions: AtomicUsize,
    /// Connections with other requests, until now and open.
    pub(super) connections: AtomicUsize,
    pub(super) open: AtomicUsize,
    /// Stores and deletes with a token.
    pub(super) fills: Mutex<Vec<String>>,
    /// Reads of keys that begin with `held:` wait while this is true.
    pub(super) holds: watch::Sender<bool>,
    /// Such reads that have come.
    pub(super) held: AtomicUsize,
}

impl Node {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, seen) = (listener.local_addr().unwrap().to_string(), Arc::new(Seen::default()));
        let mut node = Self { address, seen, task: None };
        node.serve(listener);
        node
    }

    fn serve(&mut self, listener: TcpListener) {
        let seen = self.seen.clone();
        self.task = Some(tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connections.spawn(serve(stream, seen.clone()));
            }
        }));
    }

    /// Closes its listener and all connections.
    pub(super) async fn stop(&mut self) {
        let task = self.task.take().unwrap();
        task.abort();
        drop(task.await);
        // The tasks of its connections end a little later.
        while self.seen.open.load(SeqCst) > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Serves again, under the same address and with its items.
    pub(super) async fn start_again(&mut self) {
        let end = tokio::time::Instant::now() + Duration::from_secs(60);
        let listener = loop {
            match TcpListener::bind(&self.address).await {
                Ok(listener) => break listener,
                Err(error) => assert!(tokio::time::Instant::now() < end, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        self.serve(listener);
    }

    pub(super) fn count(&self) -> usize {
        self.seen.items.lock().unwrap().len()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// Counts a connection as open.
struct Open(Arc<Seen>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, SeqCst);
    }
}

async fn serve(stream: TcpStream, seen: Arc<Seen>) {
    let (mut stream, mut open) = (BufReader::new(stream), None);
    let mut line = String::new();
    while stream.read_line(&mut line).await.is_ok_and(|read| read > 0) {
        let (request, number) = unnumbered(line.trim_end());
        let words: Vec<_> = request.split(' ').collect();
        let number = number.map(|number| format!(" {number}")).unwrap_or_default();
        if words[1] != "@nodes" {
            open.get_or_insert_with(|| {
                seen.connections.fetch_add(1, SeqCst);
                seen.open.fetch_add(1, SeqCst);
                Open(seen.clone())
            });
        }
        let mut data = Vec::new();
        if words[0] == "ms" {
            data.resize(words[2].parse::<usize>().unwrap() + 2, 0);
            stream.read_exact(&mut data).await.unwrap();
            data.truncate(data.len() - 2);
        }
        let reply = answer(&seen, &words, data, &number).await;
        if stream.write_all(&reply).await.is_err() {
            return;
        }
        line.clear();
    }
}

async fn answer(seen: &Seen, words: &[&str], data: Vec<u8>, number: &str) -> Vec<u8> {
    let key = words[1];
    let token = words.iter().find_map(|word| word.strip_prefix('C'));
    if let Some(token) = token {
        seen.fills.lock().unwrap().push(format!("{} {key} {token}", words[0]));
    }
    if key.starts_with("held:") && words[0] == "mg" {
        let mut holds = seen.holds.subscribe();
        seen.held.fetch_add(1, SeqCst);
        holds.wait_for(|holds| !holds).await.unwrap();
    }
    let value =
        |data: &[u8]| [format!("VA {} f0{number}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat();
    match words[0] {
        "mg" if key == "@nodes" => {
            seen.questions.fetch_add(1, SeqCst);
            let list = seen.list.lock().unwrap();
            list.as_ref()
                .map_or_else(|| format!("EN{number}\r\n").into_bytes(), |list| value(list.as_bytes()))
        }
        "mg" => match seen.items.lock().unwrap().get(key) {
            Some(data) => value(data),
            None if key.starts_with("lease:") => format!("VA 0 f0 c{TOKEN} W{number}\r\n\r\n").into_bytes(),
            None => format!("EN{number}\r\n").into_bytes(),
        },
        "ms" => {
            seen.items.lock().unwrap().insert(key.to_owned(), data);
            format!("HD c7{number}\r\n").into_bytes()
        }
        "md" => format!("HD{number}\r\n").into_bytes(),
        other => panic!("{other}"),
    }
}

/// The list of nodes with these states.
pub(super) fn list<'a>(nodes: impl IntoIterator<Item = (&'a Node, &'a str)>) -> String {
    let mut text = String::new();
    for (node, state) in nodes {
        let comma = if text.is_empty() { "" } else { "," };
        let address = &node.address;
        write!(
            text,
            r#"{comma}{{"address":"{address}","applied":1,"lag_ms":1,"max_lag_ms":3000,"name":"n","self":false,"state":"{state}","version":"0"}}"#
        )
        .unwrap();
    }
    format!("[{text}]")
}

/// All these nodes answer this list.
pub(super) fn publish(nodes: &[Node], list: &str) {
    for node in nodes {
        *node.seen.list.lock().unwrap() = Some(list.to_owned());
    }
}
