//! A proxy between a client and a server that counts round trips, and delays, loses and repeats replies.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use cattlegrid_protocol::{ParsedResponse, parse_response};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Passes bytes on, and counts. It ends when it is dropped.
pub struct Proxy {
    address: SocketAddr,
    counts: Arc<Counts>,
    accepting: JoinHandle<()>,
}

#[derive(Default)]
struct Counts {
    /// Times that a connection sent after it had received, or for the first time.
    trips: AtomicU64,
    connections: AtomicU64,
    sent: std::sync::Mutex<Vec<u8>>,
    /// Longest delay of a reply, in microseconds; each has another one.
    delay_us: AtomicU64,
    /// One reply of this many is lost or comes twice; 0: none.
    one_of: AtomicU64,
    /// Replies that were lost or came twice.
    faults: AtomicU64,
}

impl Proxy {
    /// In front of this server.
    pub async fn start(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let counts = Arc::new(Counts::default());
        let (server, shared) = (server.to_owned(), counts.clone());
        let accepting = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                shared.connections.fetch_add(1, SeqCst);
                let Ok(upstream) = TcpStream::connect(&server).await else { continue };
                connections.spawn(pass(client, upstream, shared.clone()));
            }
        });
        Self { address, counts, accepting }
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Round trips since the last call: how often the client sent and then waited, on all connections
    /// together.
    pub fn round_trips(&self) -> u64 {
        self.counts.sent.lock().expect("no panic").clear();
        self.counts.trips.swap(0, SeqCst)
    }

    /// The bytes that the client has sent since [`round_trips`](Self::round_trips) was called.
    pub fn sent(&self) -> String {
        String::from_utf8_lossy(&self.counts.sent.lock().expect("no panic")).into_owned()
    }

    /// From now on each reply is delayed, by this time at most and by half of it at least.
    pub fn delay(&self, most: Duration) {
        self.counts.delay_us.store(most.as_micros() as u64, SeqCst);
    }

    /// From now on one reply of about this many is lost or comes twice; 0: none.
    pub fn disturb(&self, one_of: u64) {
        self.counts.one_of.store(one_of, SeqCst);
    }

    /// Replies that were lost or came twice.
    pub fn faults(&self) -> u64 {
        self.counts.faults.load(SeqCst)
    }

    /// Connections that were made.
    pub fn connections(&self) -> u64 {
        self.counts.connections.load(SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn pass(client: TcpStream, server: TcpStream, counts: Arc<Counts>) {
    let [client_socket, server_socket] = [client, server].map(|socket| {
        socket.set_nodelay(true).expect("an option");
        socket.into_split()
    });
    let (mut from_client, mut to_client) = client_socket;
    let (mut from_server, mut to_server) = server_socket;
    let received = AtomicBool::new(true);
    let up = async {
        let mut buffer = vec![0; 65_536];
        while let Ok(read @ 1..) = from_client.read(&mut buffer).await {
            if received.swap(false, SeqCst) {
                counts.trips.fetch_add(1, SeqCst);
            }
            counts.sent.lock().expect("no panic").extend_from_slice(&buffer[..read]);
            if to_server.write_all(&buffer[..read]).await.is_err() {
                break;
            }
        }
    };
    let mut delays = 0_u64;
    let mut replies = Replies::default();
    let down = async {
        let mut buffer = vec![0; 65_536];
        while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
            received.store(true, SeqCst);
            let passed = replies.disturbed(&buffer[..read], &counts);
            let most = counts.delay_us.load(SeqCst);
            if most > 0 {
                let half = most / 2;
                tokio::time::sleep(Duration::from_micros(half + delays.wrapping_mul(7919) % (half + 1)))
                    .await;
                delays += 1;
            }
            if to_client.write_all(&passed).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}

/// Bytes from the server that are no whole reply yet.
#[derive(Default)]
struct Replies {
    partial: Vec<u8>,
}

impl Replies {
    /// The bytes that the client gets after these from the server: whole replies, some of them twice or not
    /// at all.
    fn disturbed(&mut self, bytes: &[u8], counts: &Counts) -> Vec<u8> {
        let one_of = counts.one_of.load(SeqCst);
        self.partial.extend_from_slice(bytes);
        if one_of == 0 {
            return std::mem::take(&mut self.partial);
        }
        let mut out = Vec::new();
        while let ParsedResponse::Complete { used, .. } = parse_response(&self.partial) {
            let reply: Vec<u8> = self.partial.drain(..used).collect();
            let dice = RandomState::new().build_hasher().finish();
            let times = if dice.is_multiple_of(one_of) { dice >> 32 & 2 } else { 1 };
            counts.faults.fetch_add(u64::from(times != 1), SeqCst);
            (0..times).for_each(|_| out.extend_from_slice(&reply));
        }
        out
    }
}
