//! The client without async: threads, functions that block, and being dropped anywhere.

#![cfg(feature = "blocking")]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test; it has no clock of its own")]

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cattlegrid_client::blocking::{Client, Fetched, Namespacer};
use cattlegrid_client::{Compute, ComputeError, Expiration, NamespacerOptions, Outcome};

use crate::servers;
use crate::servers::{Kind, Server, on_servers, patient};

fn client_of(server: &Server) -> Client {
    patient([server.address()]).build_blocking().unwrap()
}

fn threads_share_a_client(kind: Kind) {
    let server = kind.start();
    let client = client_of(&server);
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
    let server = kind.start_to_return();
    let (address, port) =
        (server.address().to_owned(), server.address().rsplit(':').next().unwrap().to_owned());
    let client = client_of(&server);
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
#[ignore = "needs servers: cargo xtask test --stage client"]
fn it_can_be_dropped_in_a_task() {
    let server = Kind::Memcached.start();
    let client = client_of(&server);
    client.set("k", &"v".to_owned(), 0).unwrap();
    servers::run(async {
        drop(client.clone());
        drop(client);
        drop(Client::new("127.0.0.1:1").unwrap());
    });
    for runtime in [tokio::runtime::Builder::new_current_thread().build(), tokio::runtime::Runtime::new()] {
        let client = client_of(&server);
        assert_eq!(client.get::<String>("k").unwrap().as_deref(), Some("v"));
        let runtime = runtime.unwrap();
        runtime.block_on(async move { drop(client) });
    }
}

#[test]
#[ignore = "needs servers: cargo xtask test --stage client"]
fn a_thread_that_waits_takes_over_from_one_that_is_done() {
    // One thread after the other leaves while others wait: a thread must read the replies of all.
    let server = Kind::Memcached.start();
    let client = patient([server.address()]).timeout(Duration::from_secs(60)).build_blocking().unwrap();
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
    assert!(start.elapsed() < Duration::from_secs(50), "no reply has waited for a timeout");
}

fn a_function_that_computes_keeps_nobody_waiting(kind: Kind) {
    let server = kind.start();
    let client = client_of(&server);
    let options = Compute::new().compute_time(Duration::from_secs(20)).expiration(Duration::from_secs(60));
    let (gets, computed) = (AtomicU64::new(0), AtomicU64::new(0));
    let begun = Barrier::new(2);
    let compute = |value: &str| {
        computed.fetch_add(1, Ordering::Relaxed);
        begun.wait();
        // Until the other thread has got a hundred replies.
        while gets.load(Ordering::Relaxed) < 100 {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        Ok::<_, String>(value.to_owned())
    };
    std::thread::scope(|scope| {
        let slow = scope.spawn({
            let (client, options, compute) = (&client, &options, &compute);
            move || client.get_or_compute("h:slow", options, || compute("one"))
        });
        begun.wait();
        for _ in 0..100 {
            assert_eq!(client.get::<String>("absent").unwrap(), None);
            gets.fetch_add(1, Ordering::Relaxed);
        }
        let same = client.get_or_compute("h:slow", &options, || compute("two")).unwrap();
        assert_eq!(same.value().as_deref(), Some("one"));
        assert_eq!(slow.join().unwrap().unwrap().value().as_deref(), Some("one"));
    });
    assert_eq!(computed.into_inner(), 1);
}
on_servers!(a_function_that_computes_keeps_nobody_waiting);

fn functions_that_fail_or_panic_free_the_key(kind: Kind) {
    let server = kind.start();
    let client = client_of(&server);
    let options = Compute::new().compute_time(Duration::from_secs(30)).wait(Duration::from_secs(10));
    let start = Instant::now();
    let failed = client.get_or_compute("h:k", &options, || Err::<String, _>("no"));
    assert!(matches!(failed, Err(ComputeError::Compute("no"))), "{failed:?}");
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        client.get_or_compute::<_, String, String>("h:k", &options, || panic!("in a function"))
    }));
    assert!(panicked.is_err());
    // A token that is dropped, in a task too.
    let Fetched::<String>::Compute { token, .. } =
        client.fetch_or_compute("h:f", Duration::from_secs(60), b"").unwrap()
    else {
        panic!("a token");
    };
    drop(token);
    let other = client_of(&server);
    let computed = other.get_or_compute("h:k", &options, || Ok::<_, String>("v".to_owned())).unwrap();
    assert!(matches!(computed, Outcome::Computed { stored: true, .. }), "{computed:?}");
    let Fetched::<String>::Compute { token, .. } =
        other.fetch_or_compute("h:f", Duration::from_secs(60), b"").unwrap()
    else {
        panic!("a token");
    };
    assert!(other.deliver(token, &"f".to_owned()).unwrap());
    assert!(start.elapsed() < Duration::from_secs(9), "no call has waited");
    let many = [("h:k", Expiration::Never), ("h:l", Expiration::Never)];
    let values = client.get_or_compute_many(many, &options, |keys| {
        assert_eq!(keys, ["h:l"]);
        Ok::<_, String>([("h:l", "w".to_owned())])
    });
    let values: Vec<_> = values.unwrap().into_iter().map(|value| value.unwrap().value().unwrap()).collect();
    assert_eq!(values, ["v", "w"]);
    let Fetched::<String>::Compute { token, .. } =
        client.fetch_or_compute("h:g", Duration::from_secs(60), b"").unwrap()
    else {
        panic!("a token");
    };
    servers::run(async move { drop(token) });
}
on_servers!(functions_that_fail_or_panic_free_the_key);

fn namespaces(kind: Kind) {
    let server = kind.start();
    let client = client_of(&server);
    let names = Namespacer::new(&client, NamespacerOptions::default()).unwrap();
    let key = names.key("user", 7).unwrap();
    client.set(&key, &"v".to_owned(), 0).unwrap();
    assert_eq!(client.get::<String>(names.key("user", 7).unwrap()).unwrap().as_deref(), Some("v"));
    names.update("user", 7).unwrap();
    assert_eq!(client.get::<String>(names.key("user", 7).unwrap()).unwrap(), None);
}
on_servers!(namespaces);

fn instead_of_waiting_a_function_is_called(kind: Kind) {
    let server = kind.start();
    let [client, other] = [(); 2].map(|()| client_of(&server));
    let options = Compute::new().compute_time(Duration::from_secs(30)).wait(Duration::from_secs(20));
    let compute = |value: &'static str| move || Ok::<_, String>(value.to_owned());
    let never = || -> Option<String> { panic!("the key is free") };
    let first = client.get_or_compute_or("h:k", &options, compute("one"), never).unwrap();
    assert!(matches!(&first, Outcome::Computed { value, stored: true } if value == "one"), "{first:?}");
    let start = Instant::now();
    let Fetched::<String>::Compute { token, .. } =
        other.fetch_or_compute("h:f", Duration::from_secs(60), b"").unwrap()
    else {
        panic!("a token");
    };
    for instead in [Some("instead"), None] {
        let busy = || instead.map(str::to_owned);
        let got = client.get_or_compute_or("h:f", &options, compute("two"), busy).unwrap();
        match (&got, instead) {
            (Outcome::Waited(value), Some(instead)) => assert_eq!(value, instead),
            (Outcome::Busy, None) => {}
            _ => panic!("{got:?}"),
        }
    }
    // Both functions of many keys, in one call: one key is there, one is computed elsewhere, one is missing.
    let keys = ["h:k", "h:f", "h:new", "h:left"].map(|key| (key, Expiration::Never));
    let values = client.get_or_compute_many_or(
        keys,
        &options,
        |keys| {
            assert_eq!(keys, ["h:new", "h:left"]);
            Ok::<_, String>([("h:new", "computed".to_owned())])
        },
        |keys| {
            assert_eq!(keys, ["h:f"]);
            [("h:f", "instead".to_owned())]
        },
    );
    let values: Vec<_> = values.unwrap().into_iter().map(|value| value.unwrap().value()).collect();
    let expected = [Some("one"), Some("instead"), Some("computed"), None];
    assert_eq!(values, expected.map(|value| value.map(str::to_owned)));
    let failed = client.get_or_compute_many_or(
        [("h:f", Expiration::Never), ("h:other", Expiration::Never)],
        &options,
        |_| Err::<Vec<(&str, String)>, _>("no"),
        |_| Vec::new(),
    );
    assert!(matches!(failed, Err(ComputeError::Compute("no"))), "{failed:?}");
    assert!(start.elapsed() < Duration::from_secs(15), "no call has waited");
    drop(token);
}
on_servers!(instead_of_waiting_a_function_is_called);
