//! Values that cannot be read as what the caller wants: an old version of a program has stored them, or
//! another one.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests")]

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use cattlegrid_client::{Client, Compute, Expiration, Fetch, Fetched, Outcome};
use tokio::time::{Instant, sleep};

use crate::servers::{Kind, Proxy, Server, begun, on_servers, patient, run};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn client(server: &Server) -> Client {
    patient([server.address()]).build().unwrap()
}

async fn get(client: &Client, key: &str, options: &Compute) -> Outcome<String> {
    client.get_or_compute(key, options, || async { Ok::<_, &str>("never".to_owned()) }).await.unwrap()
}

/// An unreadable value is computed again, once.
fn values_that_cannot_be_read(kind: Kind) {
    let server = kind.start();
    run(async {
        let (texts, numbers) = (client(&server), client(&server));
        let options = Compute::new().compute_time(SECOND * 10).expiration(SECOND * 600);
        let text = |value: &'static str| move || async move { Ok::<_, &str>(value.to_owned()) };
        let number = |value: u64| move || async move { Ok::<_, &str>(value) };
        let computed_number = |value| Outcome::Computed { value, stored: true };
        for (round, key) in [(0, "h:read"), (1, "plain:read")] {
            assert_eq!(
                texts.get_or_compute(key, &options, text("seven")).await.unwrap(),
                Outcome::Computed { value: "seven".to_owned(), stored: true }
            );
            assert_eq!(numbers.get_or_compute(key, &options, number(7)).await.unwrap(), computed_number(7));
            assert_eq!(numbers.get_or_compute(key, &options, number(8)).await.unwrap(), Outcome::Hit(7));
            assert_eq!(numbers.statistics().unreadable, round * 5 + 1);
            // Many, among values that can be read.
            let keys = |count: u64| {
                let keys = (0..count).map(move |n| (format!("{key}:{n}"), Expiration::After(SECOND * 600)));
                keys.collect::<Vec<_>>()
            };
            let fours =
                |keys: Vec<String>| async move { Ok::<_, &str>(keys.into_iter().map(|key| (key, 4_u64))) };
            drop(numbers.get_or_compute_many(keys(5), &options, fours).await.unwrap());
            let strings = |keys: Vec<String>| async move {
                Ok::<_, &str>(keys.into_iter().map(|key| (key, "text".to_owned())))
            };
            texts.delete(&format!("{key}:1")).await.unwrap();
            texts.delete(&format!("{key}:3")).await.unwrap();
            drop(texts.get_or_compute_many(keys(5), &options, strings).await.unwrap());
            let got =
                numbers.get_or_compute_many(keys(5), &options.clone().wait(Duration::ZERO), fours).await;
            let got: Vec<_> = got.unwrap().into_iter().map(Result::unwrap).collect();
            let (read, again) = (Outcome::Hit(4), computed_number(4));
            assert_eq!(got, [read.clone(), again.clone(), read.clone(), again, read], "{key}");
            assert_eq!(numbers.statistics().unreadable, round * 5 + 3);
            // Instead of waiting for others: no other client computes them.
            texts.delete(&format!("{key}:2")).await.unwrap();
            drop(texts.get_or_compute_many(keys(5), &options, strings).await.unwrap());
            let busy = |keys: Vec<String>| async move {
                assert!(keys.is_empty(), "{keys:?}");
                Vec::<(String, u64)>::new()
            };
            let got = numbers.get_or_compute_many_or(keys(5), &options, fours, busy).await.unwrap();
            assert_eq!(got[2], Ok(computed_number(4)));
            // A token.
            texts.set(format!("{key}:t").as_str(), &"text".to_owned(), 0).await.unwrap();
            let fetch = Fetch::new(SECOND * 60);
            let got = numbers.fetch_or_compute::<_, u64>(&format!("{key}:t"), fetch, b"hint").await.unwrap();
            let Fetched::Compute { token, hint } = got else { panic!("{got:?}") };
            assert_eq!(&hint[..], b"hint");
            assert!(numbers.deliver(token, &9_u64).await.unwrap());
            let got = numbers.fetch_or_compute::<_, u64>(&format!("{key}:t"), fetch, b"").await.unwrap();
            assert!(matches!(got, Fetched::Hit(9)));
            assert_eq!(numbers.statistics().unreadable, round * 5 + 5);
        }
    });
}
on_servers!(values_that_cannot_be_read);

/// An old value that cannot be read is none: the new one is waited for.
fn an_old_value_that_cannot_be_read(kind: Kind) {
    let server = kind.start();
    run(async {
        let (texts, numbers) = (client(&server), client(&server));
        let options = Compute::new().compute_time(SECOND * 20).expiration(SECOND);
        for key in ["h:old", "plain:old"] {
            let old = || async { Ok::<_, &str>(7_u64) };
            drop(numbers.get_or_compute(key, &options, old).await.unwrap());
            sleep(MS * 2500).await;
            let (finish, call) = begun(&texts, key, &options, "new".to_owned()).await;
            let waits = tokio::spawn({
                let (texts, options) = (texts.clone(), options.clone());
                async move { get(&texts, key, &options).await }
            });
            let stale = numbers.get_or_compute(key, &options, old).await.unwrap();
            assert_eq!(stale, Outcome::Stale(7), "{key}");
            sleep(MS * 300).await;
            finish.send(()).unwrap();
            // It took the old value for a text, which any bytes are.
            assert!(matches!(waits.await.unwrap(), Outcome::Stale(_) | Outcome::Hit(_)));
            drop(call.await.unwrap().unwrap());
            // The other way round.
            sleep(MS * 2500).await;
            let (finish, computing) = begun(&numbers, key, &options, 8_u64).await;
            let waits = tokio::spawn({
                let (other, options) = (client(&server), options.clone());
                async move { other.get_or_compute(key, &options, || async { Ok::<_, &str>(0_u64) }).await }
            });
            sleep(MS * 300).await;
            finish.send(()).unwrap();
            assert_eq!(
                computing.await.unwrap().unwrap(),
                Outcome::Computed { value: 8, stored: true },
                "{key}"
            );
            assert_eq!(waits.await.unwrap().unwrap(), Outcome::Hit(8), "{key}");
        }
    });
}
on_servers!(an_old_value_that_cannot_be_read);

/// All of many values: they are removed and computed again together, in as few round trips as a few are.
fn many_values_that_cannot_be_read(kind: Kind) {
    let server = kind.start();
    run(async {
        let proxy = Proxy::start(server.address()).await;
        let (texts, numbers) = (client(&server), patient([proxy.address().as_str()]).build().unwrap());
        numbers.get::<String>("connects").await.unwrap();
        let options = Compute::new().compute_time(SECOND).batch_compute_time(SECOND * 10);
        let keys = || (0..1_000).map(|n| (format!("h:{n}"), Expiration::After(SECOND * 600)));
        let strings = |keys: Vec<String>| async move {
            Ok::<_, &str>(keys.into_iter().map(|key| (key, "text".to_owned())))
        };
        drop(texts.get_or_compute_many(keys(), &options, strings).await.unwrap());
        proxy.round_trips();
        let calls = AtomicUsize::new(0);
        let fours = |keys: Vec<String>| {
            calls.fetch_add(1, SeqCst);
            async move { Ok::<_, &str>(keys.into_iter().map(|key| (key, 4_u64))) }
        };
        let began = Instant::now();
        let got = numbers.get_or_compute_many(keys(), &options, fours).await.unwrap();
        let (took, trips) = (began.elapsed(), proxy.round_trips());
        println!("{kind:?}: 1000 values computed again in {took:?} and {trips} round trips");
        assert!(got.iter().all(|got| *got == Ok(Outcome::Computed { value: 4, stored: true })));
        assert_eq!(calls.load(SeqCst), 1);
        // One by one they take two thousand; a proxy that is given few turns sees one reply as several.
        assert!(trips < 500, "{trips}");
    });
}
on_servers!(many_values_that_cannot_be_read);
