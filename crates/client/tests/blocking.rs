//! The client without async: threads, functions that block, and being dropped anywhere.

#![cfg(feature = "blocking")]

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cattlegrid_client::blocking::Client;

mod servers;
use servers::Kind;

fn threads_share_a_client(kind: Kind) {
    let server = kind.start();
    let client = Client::new(server.address()).unwrap();
    let all_there = Barrier::new(8);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (client, all_there) = (&client, &all_there);
            scope.spawn(move || {
                all_there.wait();
                for round in 0..300 {
                    let (key, value) = (format!("k:{thread}:{}", round % 7), format!("{thread} {round}"));
                    assert!(client.set(&key, &value, 60).unwrap().is_stored());
                    assert_eq!(client.get::<String>(&key).unwrap(), Some(value));
                    client.incr("all", 1).unwrap();
                }
            });
        }
    });
    assert_eq!(client.get::<u64>("all").unwrap(), None);
    client.set("all", &5_u64, 0).unwrap();
    assert_eq!(client.incr("all", 2).unwrap(), Some(7));
    let stats = client.stats("").remove(0).1.unwrap();
    let connections = stats.iter().find(|(name, _)| name == "curr_connections").unwrap();
    assert!(connections.1.parse::<u64>().unwrap() <= 4, "they share connections: {connections:?}");
}
on_servers!(threads_share_a_client);

fn a_closed_connection_is_noticed_before_the_next_write(kind: Kind) {
    let server = kind.start();
    let (address, port) =
        (server.address().to_owned(), server.address().rsplit(':').next().unwrap().to_owned());
    let client = Client::new(&address).unwrap();
    assert!(client.set("k", &"v".to_owned(), 0).unwrap().is_stored());
    server.stop();
    let server = kind.start_with(&["-p", &port]);
    assert_eq!(server.address(), address);
    std::thread::park_timeout(Duration::from_millis(200));
    // A write is not repeated: it succeeds only on a new connection.
    assert!(client.set("k", &"v".to_owned(), 0).unwrap().is_stored());
}
on_servers!(a_closed_connection_is_noticed_before_the_next_write);

#[test]
#[ignore = "needs servers: cargo xtask test client"]
fn it_can_be_dropped_in_a_task() {
    let server = Kind::Memcached.start();
    let client = Client::new(server.address()).unwrap();
    client.set("k", &"v".to_owned(), 0).unwrap();
    servers::run(async {
        drop(client.clone());
        drop(client);
        drop(Client::new("127.0.0.1:1").unwrap());
    });
    for runtime in [tokio::runtime::Builder::new_current_thread().build(), tokio::runtime::Runtime::new()] {
        let client = Client::new(server.address()).unwrap();
        assert_eq!(client.get::<String>("k").unwrap().as_deref(), Some("v"));
        let runtime = runtime.unwrap();
        runtime.block_on(async move { drop(client) });
    }
}

#[test]
#[ignore = "needs servers: cargo xtask test client"]
fn a_thread_that_waits_takes_over_from_one_that_is_done() {
    // One thread after the other leaves while others wait: somebody must read the replies of all.
    let server = Kind::Memcached.start();
    let client =
        Client::builder().server(server.address()).timeout(Duration::from_secs(20)).build_blocking().unwrap();
    let gets = AtomicU64::new(0);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 1..=16_u64 {
            let (client, gets) = (&client, &gets);
            scope.spawn(move || {
                for _ in 0..thread * 50 {
                    client.get::<String>("absent").unwrap();
                    gets.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(gets.into_inner(), 50 * 16 * 17 / 2);
    assert!(start.elapsed() < Duration::from_secs(15), "no reply has waited for a timeout");
}
