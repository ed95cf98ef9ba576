//! Callers of one process share a computation, but none gets a value from before a delete or an update that was acknowledged before it
//! called.

#![expect(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use cattlegrid_client::{Client, Compute, Herd, Outcome};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use crate::servers::{Kind, Proxy, on_servers, patient, run};

fn connect(address: &str) -> Client {
    patient([address]).build().unwrap()
}

fn options() -> Compute {
    Compute::new().compute_time(Duration::from_secs(5))
}

/// The value is stored, and deleted by another client; the reply to the store is still under way.
fn a_value_whose_reply_is_late_is_joined_by_no_one(kind: Kind) {
    run(async {
        let server = kind.start();
        let proxy = Proxy::start(server.address()).await;
        let (herd, writer) = (Herd::new(connect(&proxy.address())), connect(server.address()));
        for round in 0..5 {
            let key = format!("h:late-{round}");
            let (begins, begun) = oneshot::channel();
            let (finish, finished) = oneshot::channel::<()>();
            let (first, of_first) = (herd.clone(), key.clone());
            let call = tokio::spawn(async move {
                let compute = || async move {
                    begins.send(()).unwrap();
                    finished.await.unwrap();
                    Ok::<_, String>("old".to_owned())
                };
                first.get_or_compute(&of_first, &options(), compute).await.unwrap()
            });
            begun.await.unwrap();
            proxy.delay(Duration::from_millis(400));
            finish.send(()).unwrap();
            // Over a server without leases the value has a header.
            while !is_stored(&server, &key).await {
                sleep(Duration::from_millis(1)).await;
            }
            assert!(writer.delete(&key).await.unwrap());
            let compute = || async { Ok::<_, String>("new".to_owned()) };
            let later = herd.get_or_compute(&key, &options(), compute).await;
            assert_eq!(later.unwrap(), Outcome::Computed { value: "new".to_owned(), stored: true });
            assert!(matches!(call.await.unwrap(), Outcome::Computed { .. }));
            proxy.delay(Duration::ZERO);
        }
    });
}
on_servers!(a_value_whose_reply_is_late_is_joined_by_no_one);

/// Whether the key has the value: its last bytes are `old`.
async fn is_stored(server: &cattlegrid_load::harness::Server, key: &str) -> bool {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut socket = tokio::net::TcpStream::connect(server.address()).await.unwrap();
    socket.write_all(format!("mg {key} v\r\nmn\r\n").as_bytes()).await.unwrap();
    let mut reply = Vec::new();
    while !reply.ends_with(b"MN\r\n") {
        assert!(socket.read_buf(&mut reply).await.unwrap() > 0);
    }
    reply.windows(5).any(|bytes| bytes == b"old\r\n")
}

const KEYS: usize = 4;
const READERS: usize = 24;

/// Versions of a key's data.
#[derive(Default)]
struct Data {
    current: AtomicU64,
    /// The newest one whose delete is acknowledged.
    deleted: AtomicU64,
}

/// Many callers of one process, values that are deleted all the time by it and by another client, and replies that come late: each read
/// has a value of the newest version whose delete was acknowledged before it began, or of a newer one.
fn reads_are_not_older_than_acknowledged_deletes(kind: Kind) {
    let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    threads.block_on(async {
        let server = kind.start();
        let proxy = Proxy::start(server.address()).await;
        let herd = Herd::new(connect(&proxy.address()));
        let data: Arc<[Data; KEYS]> = Arc::default();
        let until = Instant::now() + Duration::from_secs(4);
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..2 {
            let (writer, data) = if n == 0 {
                (herd.cache().clone(), data.clone())
            } else {
                (connect(server.address()), data.clone())
            };
            tasks.spawn(async move {
                let mut count = 0_u64;
                while Instant::now() < until {
                    // Each writer has keys of its own.
                    let at = (count as usize % (KEYS / 2)) * 2 + n;
                    let version = data[at].current.fetch_add(1, SeqCst) + 1;
                    writer.delete(&format!("h:key-{at}")).await.unwrap();
                    data[at].deleted.store(version, SeqCst);
                    count += 1;
                    sleep(Duration::from_micros(300 + count % 7 * 700)).await;
                }
                count
            });
        }
        for n in 0..READERS {
            let (herd, data) = (herd.clone(), data.clone());
            tasks.spawn(async move {
                let mut count = 0_u64;
                while Instant::now() < until {
                    let at = (count as usize + n) % KEYS;
                    let least = data[at].deleted.load(SeqCst);
                    let compute = || async {
                        let version = data[at].current.load(SeqCst);
                        sleep(Duration::from_micros(100 + count % 5 * 400)).await;
                        Ok::<_, String>(version.to_string())
                    };
                    let got = herd.get_or_compute(&format!("h:key-{at}"), &options(), compute).await.unwrap();
                    let shown = format!("{got:?}");
                    let version: u64 = got.value().unwrap().parse().unwrap();
                    assert!(
                        version >= least,
                        "{shown} after the delete of {least} was acknowledged, read {count} of {n}"
                    );
                    count += 1;
                }
                count
            });
        }
        for ms in [1, 3, 0, 2] {
            proxy.delay(Duration::from_millis(ms));
            sleep(Duration::from_secs(1)).await;
        }
        let counts = tasks.join_all().await;
        assert!(counts.iter().all(|count| *count > 50), "{counts:?}");
    });
}
on_servers!(reads_are_not_older_than_acknowledged_deletes);
