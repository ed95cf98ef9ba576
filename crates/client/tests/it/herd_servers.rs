//! Computing against servers: the same tests on memcached and on Cattlegrid, without and with a rule.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc, clippy::print_stdout, reason = "helpers of tests")]

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use crate::servers;
use crate::servers::{Kind, Server, begun, on_servers, patient, run, until_held};
use cattlegrid_client::{Client, Compute, ComputeError, Expiration, Fetch, Fetched, Key, Observer, Outcome};
use cattlegrid_load::harness::Start;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// Under the rule where there is one.
const KEY: &str = "h:1";

type Pending = Pin<Box<dyn Future<Output = ()> + Send>>;

fn client(server: &Server) -> Client {
    patient([server.address()]).build().unwrap()
}

/// Waits until a client has been told that another one computes: it has been answered more requests than
/// these. If the server holds requests, one is held then.
async fn waits(kind: Kind, server: &Server, client: &Client, answered: u64) {
    while client.statistics().requests <= answered {
        sleep(MS).await;
    }
    until_held(kind, server, 1);
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
        let options = Compute::new().compute_time(SECOND * 10).wait(SECOND * 20);
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
        let options = Compute::new().compute_time(SECOND * 20).wait(SECOND * 20);
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
        assert!(began.elapsed() < SECOND * 8, "{:?}", began.elapsed());
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
        let (begins, computes) = oneshot::channel();
        let (finish, finished) = oneshot::channel();
        let slow = tokio::spawn({
            let (one, options) = (one.clone(), options.clone());
            async move {
                let compute = || async move {
                    begins.send(()).unwrap();
                    finished.await.unwrap();
                    Ok::<_, &str>("new".to_owned())
                };
                one.get_or_compute(KEY, &options.expiration(0), compute).await.unwrap()
            }
        });
        computes.await.unwrap();
        let began = Instant::now();
        for client in [&one, &other, &one, &other] {
            assert_eq!(get(client, &options, "never").await, Outcome::Stale("old".to_owned()));
        }
        assert!(began.elapsed() < SECOND * 8, "{:?}", began.elapsed());
        finish.send(()).unwrap();
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
            let options = Compute::new().compute_time(SECOND * 10).expiration(expiration);
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
        let options = Compute::new().compute_time(SECOND * 10);
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
        // Delivered to a caller that waits; failed; dropped.
        for how in ["deliver", "fail", "drop"] {
            let key = format!("h:{how}");
            let first = one.fetch_or_compute::<_, String>(&key, options, b"the first hint").await.unwrap();
            let Fetched::Compute { hint, token } = first else { panic!("{first:?}") };
            assert_eq!(hint, "the first hint");
            let answered = other.statistics().requests;
            let waiting = tokio::spawn({
                let (other, key) = (other.clone(), key.clone());
                async move { other.fetch_or_compute::<_, String>(&key, options, b"another").await.unwrap() }
            });
            waits(kind, &server, &other, answered).await;
            let began = Instant::now();
            match how {
                "deliver" => assert!(one.deliver(token, &"value".to_owned()).await.unwrap()),
                "fail" => one.fail(token, "out of paper, 100 %").await.unwrap(),
                _ => drop(token),
            }
            let got = timeout(SECOND * 8, waiting).await.unwrap().unwrap();
            match (how, got) {
                // Over a server without leases the text is gone after a second or two: who looks later
                // computes.
                ("fail", Fetched::Compute { .. }) if kind != Kind::Rules && began.elapsed() > SECOND => {}
                ("deliver", Fetched::Value(value)) => assert_eq!(value, "value"),
                ("fail", Fetched::Error(text)) => assert_eq!(text, "out of paper, 100 %"),
                ("drop", Fetched::Compute { hint, .. }) => assert_eq!(hint, "the first hint"),
                other => panic!("{other:?}"),
            }
        }
        // Too late.
        let short = Fetch::new(SECOND * 60).compute_timeout(SECOND * 2).wait(SECOND * 20);
        let late = one.fetch_or_compute::<_, String>("h:late", short, b"the first hint").await.unwrap();
        let promoted = other.fetch_or_compute::<_, String>("h:late", short, b"another").await.unwrap();
        match (late, promoted) {
            (Fetched::Compute { token, .. }, Fetched::Compute { hint, .. }) => {
                assert_eq!(hint, "the first hint");
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

/// A key whose items have a tag.
#[derive(Clone)]
struct Tagged(&'static str, [String; 1]);

impl Key for Tagged {
    fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    fn tags(&self) -> &[String] {
        &self.1
    }
}

/// Invalidates a tag while two processes compute, one key and two.
async fn invalidated_while_computing(one: &Client, other: &Client, key: impl Fn(u8) -> Tagged, tag: &str) {
    let options = Compute::new().compute_time(SECOND * 10);
    let tags = [tag.to_owned()];
    let compute = || async {
        other.invalidate(&tags).await.unwrap();
        Ok::<_, &str>("old".to_owned())
    };
    let got = one.get_or_compute(key(1), &options, compute).await.unwrap();
    assert_eq!(got, Outcome::Computed { value: "old".to_owned(), stored: false });
    let next = || async { Ok::<_, &str>("next".to_owned()) };
    for client in [other, one] {
        let got = client.get_or_compute(key(1), &options, next).await.unwrap();
        assert!(got == computed("next") || got == hit("next"), "{got:?}");
    }
    let keys = || [2, 3].map(|number| (key(number), Expiration::After(SECOND * 60)));
    let compute = |keys: Vec<Tagged>| {
        let tags = &tags;
        async move {
            other.invalidate(tags).await.unwrap();
            Ok::<_, &str>(keys.into_iter().map(|key| (key, "old".to_owned())).collect::<Vec<_>>())
        }
    };
    let got = one.get_or_compute_many(keys(), &options, compute).await.unwrap();
    let refused = || Ok(Outcome::Computed { value: "old".to_owned(), stored: false });
    assert_eq!(got, [refused(), refused()]);
    let next = |keys: Vec<Tagged>| async move {
        Ok::<_, &str>(keys.into_iter().map(|key| (key, "next".to_owned())).collect::<Vec<_>>())
    };
    let got = other.get_or_compute_many(keys(), &options, next).await.unwrap();
    assert_eq!(got, [Ok(computed("next")), Ok(computed("next"))]);
    // What is in the cache has the tag.
    other.invalidate(&tags).await.unwrap();
    assert_eq!(one.get::<String>(key(1)).await.unwrap(), None);
    let statistics = one.statistics();
    assert_eq!((statistics.computations, statistics.computed, statistics.not_stored), (3, 3, 3));
}

#[test]
#[ignore = "needs servers: cargo xtask test --stage client"]
fn a_value_of_an_invalidated_tag_is_refused() {
    const NUMBERS: [[&str; 4]; 2] = [["", "h:1", "h:2", "h:3"], ["", "p:1", "p:2", "p:3"]];
    let server = Kind::Rules.start();
    run(async {
        // Leases, then locks.
        for names in NUMBERS {
            let key = |number: u8| Tagged(names[usize::from(number)], ["t:1".to_owned()]);
            invalidated_while_computing(&client(&server), &client(&server), key, "t:1").await;
        }
    });
}

#[test]
#[ignore = "needs servers: cargo xtask test --stage client"]
fn a_tag_of_a_rule_ends_its_leases() {
    const RULES: &str = "[[rule]]\nmatch = \"h:{id}\"\ntags = [\"t:{id}\"]\nlease = \"10s\"\nhold = \"4s\"\n";
    let words = ["-p", "-1", "-l", "127.0.0.1"];
    let server = Server::start(&Start { rules: Some(RULES), ..Start::new(&servers::cattlegrid(), &words) });
    let server = server.unwrap();
    run(async {
        let (one, other) = (client(&server), client(&server));
        let options = Compute::new().compute_time(SECOND * 10);
        let compute = || async {
            other.invalidate(&["t:1".to_owned()]).await.unwrap();
            // The right to compute is free at once.
            assert_eq!(get(&other, &options, "new").await, computed("new"));
            Ok::<_, &str>("old".to_owned())
        };
        let got = one.get_or_compute(KEY, &options, compute).await.unwrap();
        assert_eq!(got, Outcome::Computed { value: "old".to_owned(), stored: false });
        assert_eq!(get(&one, &options, "never").await, hit("new"));
    });
}

/// The older computation runs in the caller's process, and its value is stored: as an old one, which without
/// grace is none.
#[test]
#[ignore = "needs servers: cargo xtask test --stage client"]
fn who_comes_after_a_soft_invalidation_gets_nothing_older() {
    const RULES: &str = "[[rule]]\nmatch = \"h:{id}\"\ntags = [\"t:{id}\"]\nlease = \"10s\"\nhold = \"4s\"\n";
    let words = ["-p", "-1", "-l", "127.0.0.1"];
    let server = Server::start(&Start { rules: Some(RULES), ..Start::new(&servers::cattlegrid(), &words) });
    let server = server.unwrap();
    run(async {
        let (one, other) = (client(&server), client(&server));
        let options = Compute::new().compute_time(SECOND * 10);
        let (finish, first) = begun(&one, KEY, &options, "old".to_owned()).await;
        let mut raw = tokio::net::TcpStream::connect(server.address()).await.unwrap();
        raw.write_all(b"md t:1 G I\r\n").await.unwrap();
        let mut reply = [0; 4];
        raw.read_exact(&mut reply).await.unwrap();
        assert_eq!(&reply, b"HD\r\n");
        let (go_on, second) = begun(&other, KEY, &options, "new".to_owned()).await;
        let later = tokio::spawn({
            let (one, options) = (one.clone(), options.clone());
            async move { get(&one, &options, "never").await }
        });
        sleep(MS * 200).await;
        finish.send(()).unwrap();
        assert!(matches!(first.await.unwrap().unwrap(), Outcome::Computed { value, .. } if value == "old"));
        sleep(MS * 200).await;
        go_on.send(()).unwrap();
        assert!(matches!(second.await.unwrap().unwrap(), Outcome::Computed { value, .. } if value == "new"));
        assert_eq!(later.await.unwrap(), hit("new"));
    });
}

#[test]
#[ignore = "needs servers: cargo xtask test --stage client"]
fn a_ring_of_both_servers() {
    let servers = [Kind::Memcached.start(), Kind::Rules.start()];
    run(async {
        let ring = || {
            let addresses = servers.iter().map(Server::address);
            patient(addresses).build().unwrap()
        };
        let (one, other) = (ring(), ring());
        let options = Compute::new().compute_time(SECOND * 10).wait(SECOND * 10);
        // With a rule, if they are on the server that has it, and without.
        let keys: Vec<_> = (0..40).flat_map(|i| [format!("h:{i}"), format!("p:{i}")]).collect();
        for key in &keys {
            let slow = || async {
                sleep(20 * MS).await;
                Ok::<_, &str>(key.clone())
            };
            let (a, b) = tokio::join!(
                one.get_or_compute(key, &options, slow),
                other.get_or_compute(key, &options, slow)
            );
            let got = [a.unwrap(), b.unwrap()];
            assert!(got.contains(&computed(key)) && got.contains(&hit(key)), "{key} {got:?}");
        }
        for (client, which) in servers.iter().map(client).zip(["memcached", "Cattlegrid"]) {
            let here = client.get_many::<String>(&keys).await;
            for kind in ["h:", "p:"] {
                let of =
                    keys.iter().zip(&here).filter(|(key, got)| key.starts_with(kind) && got != &&Ok(None));
                assert!(of.count() > 4, "{which} has too few keys {kind}");
            }
        }
        assert_eq!(one.delete_many(&keys).await, vec![Ok(true); keys.len()]);
        let all = || keys.iter().map(|key| (key.clone(), Expiration::After(SECOND * 60)));
        let slow = |keys: Vec<String>| {
            let values: Vec<_> = keys.into_iter().map(|key| (key.clone(), key)).collect();
            async move {
                sleep(300 * MS).await;
                Ok::<_, &str>(values)
            }
        };
        let (a, b) = tokio::join!(
            one.get_or_compute_many(all(), &options, slow),
            other.get_or_compute_many(all(), &options, slow)
        );
        for ((key, a), b) in keys.iter().zip(a.unwrap()).zip(b.unwrap()) {
            let got = [a.unwrap(), b.unwrap()];
            assert!(got.contains(&computed(key)) && got.contains(&hit(key)), "{key} {got:?}");
        }
        // The same with tokens.
        for key in keys.iter().take(20) {
            one.delete(key).await.unwrap();
            let fetch = Fetch::new(SECOND * 60).compute_timeout(SECOND * 20);
            let got = one.fetch_or_compute::<_, String>(key, fetch, b"hint").await.unwrap();
            let Fetched::Compute { token, .. } = got else { panic!("{got:?}") };
            let answered = other.statistics().requests;
            let waiting = other.fetch_or_compute::<_, String>(key, fetch, b"hint");
            let delivering = async {
                while other.statistics().requests <= answered {
                    sleep(MS).await;
                }
                one.deliver(token, key).await.unwrap()
            };
            let (got, stored) = tokio::join!(waiting, delivering);
            assert!(stored && matches!(got, Ok(Fetched::Value(value)) if value == *key));
        }
    });
}

on_servers!(a_thousand_keys);
fn a_thousand_keys(kind: Kind) {
    let server = kind.start();
    run(async {
        let (one, other) = (client(&server), client(&server));
        let keys: Vec<_> = (0..1000).map(|i| format!("h:{i}")).collect();
        let all = || keys.iter().map(|key| (key.clone(), Expiration::After(SECOND * 60)));
        let options = Compute::new().batch_compute_time(SECOND * 10).wait(SECOND * 10);
        let value = |key: &str| key.repeat(20);
        let computations = AtomicUsize::new(0);
        let compute = |keys: Vec<String>| {
            computations.fetch_add(keys.len(), Ordering::Relaxed);
            let values: Vec<_> = keys.into_iter().map(|key| (key.clone(), value(&key))).collect();
            async move {
                sleep(300 * MS).await;
                Ok::<_, &str>(values)
            }
        };
        let (a, b) = tokio::join!(
            one.get_or_compute_many(all(), &options, compute),
            other.get_or_compute_many(all(), &options, compute)
        );
        for ((key, a), b) in keys.iter().zip(a.unwrap()).zip(b.unwrap()) {
            let got = [a.unwrap(), b.unwrap()];
            let value = value(key);
            assert!(got.contains(&computed(&value)), "{key} {got:?}");
            if kind != Kind::Rules {
                assert!(got.contains(&hit(&value)), "{key} {got:?}");
            }
        }
        // Of a server with leases a fill was refused in one of some thirty runs, without a known cause: that
        // key is computed again.
        let computations = computations.load(Ordering::Relaxed);
        println!("{kind:?}: {computations} computations");
        assert!(computations == 1000 || kind == Kind::Rules && computations < 1020, "{computations}");
        let never = |_: Vec<String>| async { Err::<Vec<(String, String)>, _>("computed again") };
        let again = one.get_or_compute_many(all(), &options, never).await.unwrap();
        for (key, got) in keys.iter().zip(again) {
            assert_eq!(got, Ok(hit(&value(key))));
        }
        let (one, other) = (one.statistics(), other.statistics());
        assert_eq!(one.computed + other.computed, computations as u64);
        assert_eq!(one.computed + other.computed + one.found + other.found, 3000);
        assert_eq!(one.computed + other.computed - one.not_stored - other.not_stored, 1000);
    });
}

/// Counts what it is told, by its name.
#[derive(Default)]
struct Told(Mutex<HashMap<String, u64>>);

impl Told {
    fn add(&self, name: &str) {
        *self.0.lock().unwrap().entry(name.to_owned()).or_default() += 1;
    }

    fn of(&self, name: &str) -> u64 {
        self.0.lock().unwrap().get(name).copied().unwrap_or(0)
    }
}

impl Observer for Told {
    fn computed(&self, _: &[u8], _: Duration, stored: bool) {
        self.add(if stored { "stored" } else { "not stored" });
    }

    fn outcome(&self, key: &[u8], outcome: Option<Outcome<()>>) {
        assert!(key.starts_with(b"h:"));
        self.add(match outcome {
            Some(Outcome::Hit(())) => "hit",
            Some(Outcome::Stale(())) => "stale",
            Some(Outcome::Computed { .. }) => "computed",
            Some(Outcome::Waited(())) => "waited",
            Some(Outcome::Busy) => "busy",
            Some(Outcome::NotComputed) => "not computed",
            None => "failed",
        });
    }
}

on_servers!(counted);
fn counted(kind: Kind) {
    let server = kind.start();
    run(async {
        let told = Arc::new(Told::default());
        let observed = patient([server.address()]).observer(told.clone()).build().unwrap();
        let other = client(&server);
        let options = Compute::new().compute_time(SECOND * 10).wait(50 * MS);
        // Computed, found, failed, refused.
        assert_eq!(get(&observed, &options, "v").await, computed("v"));
        assert_eq!(get(&observed, &options, "v").await, hit("v"));
        observed.delete(KEY).await.unwrap();
        let failing = || async { Err::<String, _>("failed") };
        assert!(observed.get_or_compute(KEY, &options, failing).await.is_err());
        sleep(200 * MS).await;
        let deleting = || async {
            other.delete(KEY).await.unwrap();
            Ok::<_, &str>("old".to_owned())
        };
        let refused = Outcome::Computed { value: "old".to_owned(), stored: false };
        assert_eq!(observed.get_or_compute(KEY, &options, deleting).await.unwrap(), refused);
        // Busy twice, the caller's own value, and a call that is dropped.
        let theirs = async |calls: &mut dyn FnMut() -> Pending| {
            let fetch = Fetch::new(SECOND * 60).compute_timeout(SECOND * 20);
            let got = other.fetch_or_compute::<_, String>(KEY, fetch, b"").await.unwrap();
            let Fetched::Compute { token, .. } = got else { panic!("{got:?}") };
            calls().await;
            assert!(other.deliver(token, &"theirs".to_owned()).await.unwrap());
        };
        theirs(&mut || {
            let (observed, options) = (observed.clone(), options.clone());
            Box::pin(async move {
                assert_eq!(get(&observed, &options, "never").await, Outcome::Busy);
                let own = || async { Some("own".to_owned()) };
                let never = || async { Err::<String, _>("never") };
                let got = observed.get_or_compute_or(KEY, &options, never, own).await.unwrap();
                assert_eq!(got, Outcome::Waited("own".to_owned()));
                let short = Fetch::new(SECOND * 60).wait(50 * MS);
                let got = observed.fetch_or_compute::<_, String>(KEY, short, b"").await.unwrap();
                assert!(matches!(got, Fetched::Busy), "{got:?}");
                let long = options.clone().wait(SECOND * 20);
                assert!(timeout(50 * MS, get(&observed, &long, "never")).await.is_err());
            })
        })
        .await;
        // Many: found, computed, left out, and a key that no server takes.
        let keys = [KEY, "h:2", "h:3", "h: "].map(|key| (key, Expiration::Never));
        let compute = |_: Vec<&'static str>| async { Ok::<_, &str>(vec![("h:2", "2".to_owned())]) };
        let got = observed.get_or_compute_many(keys, &options, compute).await.unwrap();
        assert_eq!(got[..2], [Ok(hit("theirs")), Ok(computed("2"))]);
        assert_eq!(got[2], Ok(Outcome::NotComputed));
        assert!(got[3].is_err());
        let failing = |_: Vec<&'static str>| async { Err::<Vec<(&'static str, String)>, _>("failed") };
        let absent = ["h:4", "h:5"].map(|key| (key, Expiration::Never));
        assert!(observed.get_or_compute_many(absent, &options, failing).await.is_err());
        // Tokens: delivered, failed, dropped, found.
        for how in ["deliver", "fail", "drop"] {
            let got = observed.fetch_or_compute::<_, String>("h:6", SECOND * 60, b"").await.unwrap();
            let Fetched::Compute { token, .. } = got else { panic!("{got:?}") };
            match how {
                "deliver" => {
                    assert!(observed.deliver(token, &"6".to_owned()).await.unwrap());
                    let got = observed.fetch_or_compute::<_, String>("h:6", SECOND * 60, b"").await.unwrap();
                    assert!(matches!(got, Fetched::Hit(value) if value == "6"));
                    observed.delete("h:6").await.unwrap();
                }
                "fail" => {
                    observed.fail(token, "failed").await.unwrap();
                    // Over a server with leases the text is told for a moment.
                    sleep(SECOND * 5 / 2).await;
                }
                _ => drop(token),
            }
        }
        let got = observed.statistics();
        let outcomes = [got.found, got.stale, got.computed, got.waited, got.busy, got.failed];
        assert_eq!(outcomes, [3, 0, 4, 1, 2, 7]);
        assert_eq!((got.computations, got.not_stored), (10, 1));
        let names = ["hit", "stale", "computed", "waited", "busy", "failed"];
        assert_eq!(names.map(|name| told.of(name)), [3, 0, 4, 1, 2, 6]);
        assert_eq!(told.of("not computed"), 1);
        assert_eq!((told.of("stored"), told.of("not stored")), (3, 7));
    });
}

on_servers!(after_a_delete);
/// The value that a miss before a delete was for is not wanted any more: an `add` now counts as that value.
fn after_a_delete(kind: Kind) {
    let server = kind.start();
    run(async {
        let options = Compute::new().compute_time(SECOND * 30).wait(SECOND * 30);
        for flushed in [false, true] {
            let key = if flushed { "t:flushed" } else { "t:deleted" };
            let clients: Vec<_> = (0..10).map(|_| client(&server)).collect();
            for client in &clients {
                assert_eq!(client.get::<String>(key).await.unwrap(), None);
            }
            if flushed {
                assert!(clients[0].flush_all().await.iter().all(|(_, flushed)| flushed.is_ok()));
            } else {
                clients[0].delete(key).await.unwrap();
            }
            let computations = Arc::new(AtomicUsize::new(0));
            let mut callers = JoinSet::new();
            let began = Instant::now();
            for client in clients.clone() {
                let (options, computations) = (options.clone(), computations.clone());
                callers.spawn(async move {
                    let compute = || async {
                        computations.fetch_add(1, Ordering::Relaxed);
                        sleep(300 * MS).await;
                        Ok::<_, &str>("v".to_owned())
                    };
                    client.get_or_compute(key, &options, compute).await.unwrap()
                });
            }
            // Nobody sees the item that is made before the lock.
            let looks = tokio::spawn({
                let client = clients[0].clone();
                async move {
                    let mut seen = Vec::new();
                    for _ in 0..200 {
                        seen.extend(client.get_item(key).await.unwrap().filter(|item| item.data.is_empty()));
                    }
                    seen
                }
            });
            let got = callers.join_all().await;
            println!("{kind:?}: all after {:?}", began.elapsed());
            assert_eq!(looks.await.unwrap(), []);
            assert_eq!(computations.load(Ordering::Relaxed), 1, "{got:?}");
            assert_eq!(got.iter().filter(|got| **got == computed("v")).count(), 1, "{got:?}");
            assert_eq!(got.iter().filter(|got| **got == hit("v")).count(), 9, "{got:?}");
            assert!(began.elapsed() < SECOND * 20, "{:?}", began.elapsed());
        }
    });
}

on_servers!(many_and_tokens_after_a_delete);
fn many_and_tokens_after_a_delete(kind: Kind) {
    let server = kind.start();
    run(async {
        let (one, other) = (client(&server), client(&server));
        let keys: Vec<_> = (0..20).map(|i| format!("t:{i}")).chain(["t:token".to_owned()]).collect();
        for key in &keys {
            assert_eq!(one.get::<String>(key).await.unwrap(), None);
            one.delete(key).await.unwrap();
        }
        let began = Instant::now();
        let options = Compute::new().compute_time(SECOND * 30).wait(SECOND * 30);
        let all = || keys[..20].iter().map(|key| (key.clone(), Expiration::Never));
        let compute = |keys: Vec<String>| async move {
            sleep(100 * MS).await;
            Ok::<_, &str>(keys.into_iter().map(|key| (key.clone(), key)).collect::<Vec<_>>())
        };
        let (mine, theirs) = tokio::join!(
            one.get_or_compute_many(all(), &options, compute),
            other.get_or_compute_many(all(), &options, compute)
        );
        for (key, both) in keys.iter().zip(mine.unwrap().into_iter().zip(theirs.unwrap())) {
            let both = (both.0.unwrap(), both.1.unwrap());
            let expected = [(computed(key), hit(key)), (hit(key), computed(key))];
            assert!(expected.contains(&both), "{both:?}");
        }
        let options = Fetch::new(SECOND * 60).compute_timeout(SECOND * 20);
        let first = one.fetch_or_compute::<_, String>("t:token", options, b"hint").await.unwrap();
        let Fetched::Compute { hint, token } = first else { panic!("{first:?}") };
        assert_eq!(hint, "hint");
        assert!(one.deliver(token, &"value".to_owned()).await.unwrap());
        let again = other.fetch_or_compute::<_, String>("t:token", options, b"").await.unwrap();
        assert!(matches!(again, Fetched::Hit(value) if value == "value"));
        assert!(began.elapsed() < SECOND * 20, "{:?}", began.elapsed());
    });
}

on_servers!(after_a_delete_in_text);
/// Where no lock can be taken, every caller computes, and no client waits for a computation that is not
/// there.
fn after_a_delete_in_text(kind: Kind) {
    let server = kind.start();
    run(async {
        let text = patient([server.address()]).protocol(cattlegrid_client::Protocol::Text).build().unwrap();
        assert_eq!(text.get::<String>("t:1").await.unwrap(), None);
        text.delete("t:1").await.unwrap();
        let options = Compute::new().compute_time(SECOND * 30).wait(SECOND * 30);
        let began = Instant::now();
        let stored = kind != Kind::Rules;
        for key in ["t:1", "t:1"] {
            let got =
                text.get_or_compute(key, &options, || async { Ok::<_, &str>("v".to_owned()) }).await.unwrap();
            let expected = Outcome::Computed { value: "v".to_owned(), stored };
            assert!(got == expected || stored && got == hit("v"), "{got:?}");
        }
        assert!(began.elapsed() < SECOND * 20, "{:?}", began.elapsed());
    });
}

on_servers!(a_changed_lock);
/// An `append` by another client ends a lock, and so does the end of the computation.
fn a_changed_lock(kind: Kind) {
    let server = kind.start();
    run(async {
        let (one, other) = (client(&server), client(&server));
        // Without a rule: a lock is seen by nobody under one with leases.
        let key = "plain:changed";
        let options = Compute::new().compute_time(SECOND * 30).wait(SECOND * 30);
        let began = Instant::now();
        for fails in [false, true] {
            let compute = || async {
                assert!(other.append(key, "tail").await.unwrap().is_stored());
                if fails { Err("failed") } else { Ok("old".to_owned()) }
            };
            let got = one.get_or_compute(key, &options, compute).await;
            let lost = Outcome::Computed { value: "old".to_owned(), stored: false };
            assert_eq!(got, if fails { Err(ComputeError::Compute("failed")) } else { Ok(lost) });
            let next = || async { Ok::<_, &str>("new".to_owned()) };
            assert_eq!(other.get_or_compute(key, &options, next).await.unwrap(), computed("new"));
            other.delete(key).await.unwrap();
        }
        assert!(began.elapsed() < SECOND * 20, "{:?}", began.elapsed());
    });
}

on_servers!(a_token_dropped_on_a_thread);
fn a_token_dropped_on_a_thread(kind: Kind) {
    let server = kind.start();
    run(async {
        let (one, other) = (client(&server), client(&server));
        let options = Fetch::new(SECOND * 60).compute_timeout(SECOND * 20);
        let first = one.fetch_or_compute::<_, String>(KEY, options, b"").await.unwrap();
        let Fetched::Compute { token, .. } = first else { panic!("{first:?}") };
        std::thread::spawn(move || drop(token)).join().unwrap();
        let next = timeout(SECOND * 8, other.fetch_or_compute::<_, String>(KEY, options, b"")).await;
        assert!(matches!(next.unwrap().unwrap(), Fetched::Compute { .. }));
    });
}

on_servers!(values_that_have_expired);
fn values_that_have_expired(kind: Kind) {
    let server = kind.start();
    run(async {
        let client = client(&server);
        for _ in 0..2 {
            let keys =
                [("h:1", Expiration::After(Duration::ZERO)), ("p:1", Expiration::After(Duration::ZERO))];
            let compute = |keys: Vec<&'static str>| async move {
                Ok::<_, &str>(keys.into_iter().map(|key| (key, "v".to_owned())).collect::<Vec<_>>())
            };
            let got = client.get_or_compute_many(keys, &Compute::new(), compute).await.unwrap();
            let expected = Outcome::Computed { value: "v".to_owned(), stored: false };
            assert_eq!(got, [Ok(expected.clone()), Ok(expected)]);
        }
    });
}
