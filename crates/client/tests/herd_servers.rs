//! Computing against servers: the same tests on memcached and on Cattlegrid, without and with a rule.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc, clippy::print_stdout, reason = "helpers of tests")]

mod servers;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use cattlegrid_client::{Client, Compute, ComputeError, Expiration, Fetch, Fetched, Outcome};
use servers::{Kind, run};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// Under the rule where there is one.
const KEY: &str = "h:1";

fn client(server: &servers::Server) -> Client {
    Client::new(server.address()).unwrap()
}

async fn get(client: &Client, options: &Compute, value: &str) -> Outcome<String> {
    client.get_or_compute(KEY, options, || async { Ok::<_, &str>(value.to_owned()) }).await.unwrap()
}

fn computed(value: &str) -> Outcome<String> {
    Outcome::Computed { value: value.to_owned(), stored: true }
}

fn hit(value: &str) -> Outcome<String> {
    Outcome::Hit(value.to_owned())
}

on_servers!(cold_key);
fn cold_key(kind: Kind) {
    let server = kind.start();
    run(async {
        let computations = Arc::new(AtomicUsize::new(0));
        let options = Compute::new().wait(SECOND * 20);
        let mut callers = JoinSet::new();
        let began = Instant::now();
        for _ in 0..20 {
            let (client, options, computations) = (client(&server), options.clone(), computations.clone());
            callers.spawn(async move {
                let compute = || async {
                    computations.fetch_add(1, Ordering::Relaxed);
                    sleep(300 * MS).await;
                    Ok::<_, &str>("v".to_owned())
                };
                client.get_or_compute(KEY, &options, compute).await.unwrap()
            });
        }
        let got = callers.join_all().await;
        println!("{kind:?}: all after {:?}", began.elapsed());
        assert_eq!(computations.load(Ordering::Relaxed), 1);
        assert_eq!(got.iter().filter(|got| **got == computed("v")).count(), 1);
        assert_eq!(got.iter().filter(|got| **got == hit("v")).count(), 19);
    });
}

on_servers!(failing);
fn failing(kind: Kind) {
    let server = kind.start();
    run(async {
        let (one, other) = (client(&server), client(&server));
        // No caller waits for the time of the lock.
        let options = Compute::new().compute_time(SECOND * 8).wait(SECOND * 8);
        let began = Instant::now();
        let failed =
            one.get_or_compute::<_, String, _, _, _>(KEY, &options, || async { Err("failed") }).await;
        assert_eq!(failed, Err(ComputeError::Compute("failed")));
        assert_eq!(get(&other, &options, "new").await, computed("new"));
        // Dropped.
        other.delete(KEY).await.unwrap();
        let pending = one.get_or_compute(KEY, &options, std::future::pending::<Result<String, &str>>);
        assert!(timeout(100 * MS, pending).await.is_err());
        assert_eq!(get(&other, &options, "newer").await, computed("newer"));
        assert!(began.elapsed() < SECOND * 4, "{:?}", began.elapsed());
    });
}

on_servers!(stale);
fn stale(kind: Kind) {
    let server = kind.start();
    run(async {
        let (one, other) = (client(&server), client(&server));
        let options = Compute::new().expiration(SECOND).compute_time(SECOND * 10);
        assert_eq!(get(&one, &options, "old").await, computed("old"));
        sleep(SECOND * 5 / 2).await;
        let slow = tokio::spawn({
            let (one, options) = (one.clone(), options.clone());
            async move {
                let compute = || async {
                    sleep(SECOND).await;
                    Ok::<_, &str>("new".to_owned())
                };
                one.get_or_compute(KEY, &options.expiration(0), compute).await.unwrap()
            }
        });
        sleep(200 * MS).await;
        let began = Instant::now();
        for client in [&one, &other, &one, &other] {
            assert_eq!(get(client, &options, "never").await, Outcome::Stale("old".to_owned()));
        }
        assert!(began.elapsed() < 700 * MS);
        assert_eq!(slow.await.unwrap(), computed("new"));
        assert_eq!(get(&other, &options, "never").await, hit("new"));
    });
}

on_servers!(expirations);
fn expirations(kind: Kind) {
    let server = kind.start();
    run(async {
        let client = client(&server);
        #[expect(clippy::disallowed_methods, reason = "the server has this clock")]
        let now = SystemTime::now();
        let hour = Expiration::At(now + SECOND * 3600);
        let month = Expiration::After(SECOND * 86_400 * 30);
        for expiration in [Expiration::Never, 0.into(), hour, month, Expiration::After(SECOND * 86_400 * 400)]
        {
            let options = Compute::new().expiration(expiration);
            assert_eq!(get(&client, &options, "v").await, computed("v"), "{expiration:?}");
            sleep(50 * MS).await;
            assert_eq!(get(&client, &options, "never").await, hit("v"), "{expiration:?}");
            assert!(client.delete(KEY).await.unwrap());
        }
        let past = Compute::new().expiration(Expiration::At(now - SECOND * 3600));
        for value in ["a", "b"] {
            let got = get(&client, &past, value).await;
            assert_eq!(got, Outcome::Computed { value: value.to_owned(), stored: false });
        }
    });
}

on_servers!(deleted);
fn deleted(kind: Kind) {
    let server = kind.start();
    run(async {
        let (one, other) = (client(&server), client(&server));
        let options = Compute::new().compute_time(SECOND * 10);
        for again in [false, true] {
            let compute = || async {
                other.delete(KEY).await.unwrap();
                if again {
                    assert_eq!(get(&other, &options, "new").await, computed("new"));
                }
                Ok::<_, &str>("old".to_owned())
            };
            let got = one.get_or_compute(KEY, &options, compute).await.unwrap();
            assert_eq!(got, Outcome::Computed { value: "old".to_owned(), stored: false });
            let expected = if again { hit("new") } else { computed("next") };
            assert_eq!(get(&other, &options, "next").await, expected);
            other.delete(KEY).await.unwrap();
        }
    });
}

on_servers!(many);
fn many(kind: Kind) {
    let server = kind.start();
    run(async {
        let client = client(&server);
        let keys = || ["h:1", "h:2", "h:3", "h:2", "h:4"].map(|key| (key, Expiration::After(SECOND * 60)));
        let options = Compute::new();
        let compute = |keys: Vec<&'static str>| async move {
            assert_eq!(keys, ["h:1", "h:2", "h:3", "h:4"]);
            Ok::<_, &str>(vec![("h:3", "3".to_owned()), ("h:2", "2".to_owned()), ("h:1", "1".to_owned())])
        };
        let got = client.get_or_compute_many(keys(), &options, compute).await.unwrap();
        let expected = ["1", "2", "3", "2"].map(|value| Ok(computed(value)));
        assert_eq!(got[..4], expected);
        assert_eq!(got[4], Ok(Outcome::NotComputed));
        let compute = |keys: Vec<&'static str>| async move {
            assert_eq!(keys, ["h:4"]);
            Ok::<_, &str>(vec![("h:4", "4".to_owned())])
        };
        let got = client.get_or_compute_many(keys(), &options, compute).await.unwrap();
        assert_eq!(got[..4], ["1", "2", "3", "2"].map(|value| Ok(hit(value))));
        assert_eq!(got[4], Ok(computed("4")));
    });
}

on_servers!(tokens);
fn tokens(kind: Kind) {
    let server = kind.start();
    run(async {
        let (one, other) = (client(&server), client(&server));
        let options = Fetch::new(SECOND * 60).compute_timeout(SECOND * 20);
        // A server with leases tells a waiter its own hint.
        let waiters = if kind == Kind::Rules { "another" } else { "the first hint" };
        // Delivered to a caller that waits; failed; dropped.
        for how in ["deliver", "fail", "drop"] {
            let key = format!("h:{how}");
            let first = one.fetch_or_compute::<_, String>(&key, options, b"the first hint").await.unwrap();
            let Fetched::Compute { hint, token } = first else { panic!("{first:?}") };
            assert_eq!(hint, "the first hint");
            let waiting = tokio::spawn({
                let (other, key) = (other.clone(), key.clone());
                async move { other.fetch_or_compute::<_, String>(&key, options, b"another").await.unwrap() }
            });
            sleep(300 * MS).await;
            match how {
                "deliver" => assert!(one.deliver(token, &"value".to_owned()).await.unwrap()),
                "fail" => one.fail(token, "out of paper, 100 %").await.unwrap(),
                _ => drop(token),
            }
            let got = timeout(SECOND * 5, waiting).await.unwrap().unwrap();
            match (how, got) {
                ("deliver", Fetched::Value(value)) => assert_eq!(value, "value"),
                ("fail", Fetched::Error(text)) => assert_eq!(text, "out of paper, 100 %"),
                ("drop", Fetched::Compute { hint, .. }) => assert_eq!(hint, waiters),
                other => panic!("{other:?}"),
            }
        }
        // Too late.
        let short = Fetch::new(SECOND * 60).compute_timeout(SECOND);
        let late = one.fetch_or_compute::<_, String>("h:late", short, b"the first hint").await.unwrap();
        let promoted = other.fetch_or_compute::<_, String>("h:late", short, b"another").await.unwrap();
        match (late, promoted) {
            (Fetched::Compute { token, .. }, Fetched::Compute { hint, .. }) => {
                assert_eq!(hint, waiters);
                println!(
                    "{kind:?}: a late value is stored: {}",
                    one.deliver(token, &"late".to_owned()).await.unwrap()
                );
            }
            others => panic!("{others:?}"),
        }
        let again = one.fetch_or_compute::<_, String>("h:deliver", options, b"").await.unwrap();
        assert!(matches!(again, Fetched::Hit(value) if value == "value"));
        let next = one.fetch_or_compute::<_, String>("h:fail", options, b"next").await.unwrap();
        assert!(matches!(next, Fetched::Compute { hint, .. } if hint == "next"));
    });
}
