//! Callers of one process share a computation, but none gets a value from before a delete or an update that
//! was acknowledged before it called.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may panic, and says what it has measured"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use cattlegrid_client::{Client, Compute, Expiration, Fetch, Fetched, Herd, Outcome};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use crate::servers::{Kind, Proxy, begun, on_servers, patient, run};

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
            let (finish, call) = begun(herd.cache(), &key, &options(), "old".to_owned()).await;
            proxy.delay(Duration::from_millis(400));
            finish.send(()).unwrap();
            // Over a server without leases the value has a header.
            while !is_stored(&server, &key).await {
                sleep(Duration::from_millis(1)).await;
            }
            assert!(writer.delete(&key).await.unwrap());
            let compute = || async { Ok::<_, String>("new".to_owned()) };
            let later = herd.cache().get_or_compute(&key, &options(), compute).await;
            assert_eq!(later.unwrap(), Outcome::Computed { value: "new".to_owned(), stored: true });
            assert!(matches!(call.await.unwrap().unwrap(), Outcome::Computed { .. }));
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
/// Reads or deletes of a task, at least: on a busy machine they take longer than the time of the test.
const ENOUGH: u64 = 50;

/// Versions of a key's data.
#[derive(Default)]
struct Data {
    current: AtomicU64,
    /// The newest one whose delete is acknowledged.
    deleted: AtomicU64,
}

/// Many callers of one process, values that are deleted all the time by it and by another client, and replies
/// that come late: each read has a value of the newest version whose delete was acknowledged before it began,
/// or of a newer one.
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
                while Instant::now() < until || count <= ENOUGH {
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
                while Instant::now() < until || count <= ENOUGH {
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
        println!("{:?}", tasks.join_all().await);
    });
}
on_servers!(reads_are_not_older_than_acknowledged_deletes);

/// A computation that a delete has made void keeps neither the callers that have joined it nor those that
/// come.
fn a_void_computation_keeps_nobody(kind: Kind) {
    run(async {
        let server = kind.start();
        let (herd, writer) = (Herd::new(connect(server.address())), connect(server.address()));
        let options = options().compute_time(Duration::from_secs(9));
        for round in 0..3 {
            let key = format!("h:void-{round}");
            let first = tokio::spawn({
                let (herd, key, options) = (herd.clone(), key.clone(), options.clone());
                async move {
                    let compute = || async {
                        sleep(Duration::from_secs(4)).await;
                        Ok::<_, String>("old".to_owned())
                    };
                    herd.get_or_compute(&key, &options, compute).await.unwrap()
                }
            });
            let new = || {
                let (herd, key, options) = (herd.clone(), key.clone(), options.clone());
                tokio::spawn(async move {
                    let compute = || async { Ok::<_, String>("new".to_owned()) };
                    let got = herd.get_or_compute(&key, &options, compute).await.unwrap();
                    (got.value().unwrap(), Instant::now())
                })
            };
            sleep(Duration::from_millis(300)).await;
            let joined = [new(), new()];
            sleep(Duration::from_millis(300)).await;
            writer.delete(&key).await.unwrap();
            let deleted = Instant::now();
            let later = [new(), new()];
            for call in joined.into_iter().chain(later) {
                let (value, at) = call.await.unwrap();
                assert_eq!(value, "new");
                let took = at - deleted;
                assert!(took < Duration::from_secs(2), "{took:?}");
            }
            assert_eq!(first.await.unwrap(), Outcome::Computed { value: "old".to_owned(), stored: false });
        }
    });
}
on_servers!(a_void_computation_keeps_nobody);

/// Many callers of one process wait for what another one computes: what they ask does not grow with their
/// number.
fn callers_that_wait_share_what_they_ask(kind: Kind) {
    run(async {
        let server = kind.start();
        let proxy = Proxy::start(server.address()).await;
        let (herd, other) = (Herd::new(connect(&proxy.address())), Herd::new(connect(server.address())));
        herd.cache().get::<String>("connects").await.unwrap();
        let options = options().compute_time(Duration::from_secs(20));
        let keys: Vec<String> = (0..3).map(|n| format!("h:many-{n}")).collect();
        let fetch = Fetch::new(Duration::from_secs(60)).compute_timeout(Duration::from_secs(20));
        let Fetched::Compute { token, .. } =
            other.fetch_or_compute::<_, String>("h:one", fetch, b"").await.unwrap()
        else {
            panic!("it is missing")
        };
        let (begins, begun) = oneshot::channel();
        let computing = tokio::spawn({
            let (other, keys, options) = (other.clone(), keys.clone(), options.clone());
            async move {
                let begins = std::sync::Mutex::new(Some(begins));
                let compute = |keys: Vec<String>| {
                    begins.lock().unwrap().take().unwrap().send(()).unwrap();
                    async move {
                        sleep(Duration::from_secs(2)).await;
                        Ok::<_, String>(keys.into_iter().map(|key| (key, "many".to_owned())))
                    }
                };
                let keys = keys.into_iter().map(|key| (key, Expiration::Never));
                drop(other.get_or_compute_many(keys, &options, compute).await.unwrap());
            }
        });
        begun.await.unwrap();
        proxy.round_trips();
        let mut callers = tokio::task::JoinSet::new();
        for n in 0..600 {
            let (herd, keys, options) = (herd.clone(), keys.clone(), options.clone());
            callers.spawn(async move {
                if n % 2 == 0 {
                    let got = herd.fetch_or_compute::<_, String>("h:one", fetch, b"").await.unwrap();
                    let (Fetched::Value(value) | Fetched::Hit(value)) = got else { panic!("{got:?}") };
                    assert_eq!(value, "one");
                    return;
                }
                let never = |_: Vec<String>| async { Ok::<Vec<(String, String)>, String>(Vec::new()) };
                let keys = keys.into_iter().map(|key| (key, Expiration::Never));
                for got in herd.get_or_compute_many(keys, &options, never).await.unwrap() {
                    assert_eq!(got.unwrap(), Outcome::Hit("many".to_owned()));
                }
            });
        }
        sleep(Duration::from_secs(2)).await;
        assert!(other.deliver(token, &"one".to_owned()).await.unwrap());
        callers.join_all().await;
        computing.await.unwrap();
        let asked = proxy.sent().matches("mg h:").count();
        println!("{kind:?}: 600 callers that wait for 2 s have asked for {asked} values");
        // Each of the 300 has asked for its three keys once.
        assert!((900..3000).contains(&asked), "{asked}");
    });
}
on_servers!(callers_that_wait_share_what_they_ask);

/// The server lets one request wait, and refuses the others: those of the process that computes get the value
/// nevertheless.
fn callers_of_the_process_that_computes_are_not_refused(kind: Kind) {
    run(async {
        let server = kind.start();
        let herd = Herd::new(connect(server.address()));
        let options = options().compute_time(Duration::from_secs(20));
        for round in 0..3 {
            let key = format!("b:busy-{round}");
            let mut callers = tokio::task::JoinSet::new();
            for _ in 0..50 {
                let (herd, key, options) = (herd.clone(), key.clone(), options.clone());
                callers.spawn(async move {
                    let compute = || async {
                        sleep(Duration::from_millis(700)).await;
                        Ok::<_, String>("value".to_owned())
                    };
                    herd.get_or_compute(&key, &options, compute).await
                });
                if round == 2 {
                    sleep(Duration::from_millis(5)).await;
                }
            }
            let got = callers.join_all().await;
            let computed = got.iter().filter(|got| matches!(got, Ok(Outcome::Computed { .. }))).count();
            let hits = got.iter().filter(|got| **got == Ok(Outcome::Hit("value".to_owned()))).count();
            assert_eq!((computed, hits), (1, 49), "{got:?}");
        }
    });
}
on_servers!(callers_of_the_process_that_computes_are_not_refused);
