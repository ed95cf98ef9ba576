//! Computing over a server without leases, in simulated time: each test is a few processes and a memcached in
//! memory.

#![allow(
    clippy::unwrap_used,
    clippy::unnecessary_wraps,
    clippy::unchecked_time_subtraction,
    clippy::unused_async,
    reason = "helpers of tests"
)]

use std::collections::HashMap;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::fake;
use crate::fake::Fake;
use cattlegrid_client::{
    Cache, Compute, ComputeError, Error, Expiration, Fetch, Fetched, Herd, Outcome, Value, WhenUnavailable,
};
use tokio::task::JoinSet;
use tokio::time::{self, Instant, sleep};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

type Got = Result<Outcome<String>, ComputeError<&'static str>>;

async fn at_once(value: &str) -> Result<String, &'static str> {
    Ok(value.to_owned())
}

async fn after(time: Duration, value: &str) -> Result<String, &'static str> {
    sleep(time).await;
    Ok(value.to_owned())
}

fn computed(value: &str) -> Got {
    Ok(Outcome::Computed { value: value.to_owned(), stored: true })
}

fn hit(value: &str) -> Got {
    Ok(Outcome::Hit(value.to_owned()))
}

fn stale(value: &str) -> Got {
    Ok(Outcome::Stale(value.to_owned()))
}

async fn get(herd: &Herd<Fake>, options: &Compute, value: &str) -> Got {
    herd.get_or_compute("k", options, || at_once(value)).await
}

/// Nothing is left of anything.
async fn at_rest(herds: &[&Herd<Fake>]) {
    sleep(SECOND / 5).await;
    for herd in herds {
        assert_eq!(herd.under_way(), 0);
    }
}

/// The results of `count` processes that ask at the same time, and the number of computations.
async fn together(herds: Vec<Herd<Fake>>, options: &Compute, time: Duration) -> (Vec<Got>, usize) {
    let computations = Arc::new(AtomicUsize::new(0));
    let mut callers = JoinSet::new();
    for herd in herds {
        let (options, computations) = (options.clone(), Arc::clone(&computations));
        callers.spawn(async move {
            let compute = || {
                let number = computations.fetch_add(1, Ordering::Relaxed);
                async move { after(time, &format!("v{number}")).await }
            };
            herd.get_or_compute("k", &options, compute).await
        });
    }
    let got = callers.join_all().await;
    (got, computations.load(Ordering::Relaxed))
}

#[tokio::test(start_paused = true)]
async fn a_cold_key_is_computed_once() {
    for tells_cas in [true, false] {
        let fake = Fake::new();
        fake.0.tells_cas.store(tells_cas, Ordering::Relaxed);
        let herds: Vec<_> = (0..50).map(|_| fake.herd()).collect();
        let options = Compute::new().expiration(SECOND * 60).wait(SECOND * 2);
        let began = Instant::now();
        let (got, computations) = together(herds.clone(), &options, 300 * MS).await;
        assert_eq!(computations, 1);
        assert_eq!(got.iter().filter(|got| **got == computed("v0")).count(), 1);
        assert_eq!(got.iter().filter(|got| **got == hit("v0")).count(), 49, "{got:?}");
        // The longest pause, and some exchanges.
        assert!(began.elapsed() < 420 * MS, "{:?}", began.elapsed());
        at_rest(&herds.iter().collect::<Vec<_>>()).await;
        assert_eq!(fake.ttl("k"), Some(60 + 3 - 1));
    }
}

#[tokio::test(start_paused = true)]
async fn callers_of_one_process_share_requests_and_the_computation() {
    let fake = Fake::new();
    let herd = fake.herd();
    let options = Compute::new().wait(SECOND * 2);
    let (got, computations) = together(vec![herd.clone(); 1000], &options, 300 * MS).await;
    assert_eq!(computations, 1);
    assert_eq!(got.iter().filter(|got| **got == hit("v0")).count(), 999);
    // The lock, two looks of the callers that gather, one every 100 ms, and the value.
    assert!(fake.trips() <= 10, "{}", fake.trips());
    let before = fake.trips();
    let (got, computations) = together(vec![herd.clone(); 1000], &options, 300 * MS).await;
    assert!(got.iter().all(|got| *got == hit("v0")) && computations == 0);
    assert!(fake.trips() - before <= 2, "{}", fake.trips() - before);
    at_rest(&[&herd]).await;
}

#[tokio::test(start_paused = true)]
async fn an_expired_value_is_served_to_all_but_one() {
    let fake = Fake::new();
    let (one, other) = (fake.herd(), fake.herd());
    let options = Compute::new().expiration(SECOND * 10).compute_time(SECOND * 2);
    assert_eq!(get(&one, &options, "old").await, computed("old"));
    sleep(SECOND * 9).await;
    assert_eq!(get(&other, &options, "new").await, hit("old"));
    sleep(SECOND + 100 * MS).await;
    let slow = tokio::spawn({
        let (one, options) = (one.clone(), options.clone());
        async move { one.get_or_compute("k", &options, || after(SECOND, "new")).await }
    });
    sleep(10 * MS).await;
    let began = Instant::now();
    assert_eq!(get(&other, &options, "never").await, stale("old"));
    assert_eq!(get(&one, &options, "never").await, stale("old"));
    assert!(began.elapsed() < 10 * MS);
    assert_eq!(slow.await.unwrap(), computed("new"));
    assert_eq!(get(&other, &options, "never").await, hit("new"));
    at_rest(&[&one, &other]).await;
}

#[tokio::test(start_paused = true)]
async fn no_value_is_served_after_its_expiry_and_grace() {
    let fake = Fake::new();
    let (one, other) = (fake.herd(), fake.herd());
    let options = Compute::new().expiration(SECOND * 10).compute_time(SECOND).wait(Duration::ZERO);
    assert_eq!(get(&one, &options, "old").await, computed("old"));
    // Computations that never end: each keeps the old value, none longer than its grace.
    let began = Instant::now();
    sleep(SECOND * 10).await;
    let mut callers = JoinSet::new();
    let mut last = Duration::ZERO;
    for _ in 0..100 {
        let (one, own) = (one.clone(), options.clone());
        callers.spawn(async move {
            drop(
                time::timeout(SECOND * 30, one.get_or_compute("k", &own, pending::<Result<String, &str>>))
                    .await,
            );
        });
        sleep(50 * MS).await;
        let looks = other.get_or_compute("k", &options, pending::<Result<String, &str>>);
        if let Ok(Ok(Outcome::Stale(_))) = time::timeout(20 * MS, looks).await {
            last = began.elapsed();
        }
    }
    assert!((SECOND * 11..SECOND * 12).contains(&last), "{last:?}");
    callers.abort_all();
}

#[tokio::test(start_paused = true)]
async fn a_computation_that_fails_panics_or_is_dropped_frees_the_key() {
    let fake = Fake::new();
    let (one, other) = (fake.herd(), fake.herd());
    let options = Compute::new().expiration(SECOND).compute_time(SECOND * 20).wait(SECOND * 10);
    for tells_cas in [true, false] {
        fake.0.tells_cas.store(tells_cas, Ordering::Relaxed);
        for with_old in [false, true] {
            for how in ["error", "panic", "drop"] {
                fake.remove("k");
                if with_old {
                    assert_eq!(get(&one, &options, "old").await, computed("old"));
                    sleep(SECOND * 2).await;
                }
                let failing = tokio::spawn({
                    let (one, options) = (one.clone(), options.clone());
                    async move {
                        let compute = || async {
                            sleep(100 * MS).await;
                            match how {
                                "error" => Err("failed"),
                                "panic" => panic!("as the test wants it"),
                                _ => pending().await,
                            }
                        };
                        let got: Got = one.get_or_compute("k", &options, compute).await;
                        assert_eq!(got, Err(ComputeError::Compute("failed")));
                    }
                });
                sleep(200 * MS).await;
                failing.abort();
                sleep(10 * MS).await;
                let began = Instant::now();
                assert_eq!(get(&other, &options, "new").await, computed("new"), "{how} {with_old}");
                assert!(began.elapsed() < 10 * MS);
            }
        }
    }
    at_rest(&[&one, &other]).await;
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_go_on_when_the_computation_fails() {
    let fake = Fake::new();
    let (one, other) = (fake.herd(), fake.herd());
    let options = Compute::new().wait(SECOND * 2);
    let failing = one.get_or_compute("k", &options, || async {
        sleep(300 * MS).await;
        Err::<String, _>("failed")
    });
    let same = async {
        sleep(100 * MS).await;
        one.get_or_compute("k", &options, || after(50 * MS, "same")).await
    };
    let another = async {
        sleep(100 * MS).await;
        other.get_or_compute("k", &options, || after(50 * MS, "another")).await
    };
    let began = Instant::now();
    let (failed, same, another) = tokio::join!(failing, same, another);
    assert_eq!(failed, Err(ComputeError::Compute("failed")));
    assert!(matches!(&same, Ok(Outcome::Computed { .. } | Outcome::Hit(_))), "{same:?}");
    assert_eq!(same.unwrap().value(), another.unwrap().value());
    assert!(began.elapsed() < 500 * MS);
    at_rest(&[&one, &other]).await;
}

#[tokio::test(start_paused = true)]
async fn a_lock_without_its_client_lasts_for_the_compute_time() {
    let fake = Fake::new();
    let (dead, other) = (fake.herd(), fake.herd());
    let options = Compute::new().compute_time(SECOND).wait(SECOND * 5);
    let stuck = dead.get_or_compute("k", &options, pending::<Result<String, &str>>);
    tokio::pin!(stuck);
    assert!(time::timeout(10 * MS, &mut stuck).await.is_err());
    let began = Instant::now();
    assert_eq!(get(&other, &options, "new").await, computed("new"));
    assert!((980 * MS..1150 * MS).contains(&began.elapsed()), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn who_waits_no_longer_gets_nothing_or_what_the_own_function_says() {
    let fake = Fake::new();
    let (one, other) = (fake.herd(), fake.herd());
    let options = Compute::new().wait(50 * MS);
    let slow = one.get_or_compute("k", &options, || after(SECOND, "new"));
    let rest = async {
        sleep(10 * MS).await;
        for herd in [&one, &other] {
            let began = Instant::now();
            assert_eq!(get(herd, &options, "never").await, Ok(Outcome::Busy));
            assert!((50 * MS..60 * MS).contains(&began.elapsed()), "{:?}", began.elapsed());
            let began = Instant::now();
            let own = || async { Some("own".to_owned()) };
            let got = herd.get_or_compute_or("k", &options, || at_once("never"), own).await;
            assert_eq!(got, Ok(Outcome::Waited("own".to_owned())));
            let got = herd.get_or_compute_or("k", &options, || at_once("never"), || async { None }).await;
            assert_eq!(got, Ok(Outcome::Busy));
            assert_eq!(get(herd, &options.clone().wait(Duration::ZERO), "never").await, Ok(Outcome::Busy));
            assert!(began.elapsed() < 10 * MS);
        }
    };
    assert_eq!(tokio::join!(slow, rest).0, computed("new"));
}

#[tokio::test(start_paused = true)]
async fn a_value_from_before_a_delete_is_not_stored_after_it() {
    for tells_cas in [true, false] {
        let fake = Fake::new();
        fake.0.tells_cas.store(tells_cas, Ordering::Relaxed);
        let (one, other) = (fake.herd(), fake.herd());
        let options = Compute::new().wait(SECOND);
        let slow = one.get_or_compute("k", &options, || after(SECOND, "old"));
        let rest = async {
            sleep(200 * MS).await;
            assert!(other.cache().delete(b"k").await.unwrap());
        };
        let (slow, ()) = tokio::join!(slow, rest);
        assert_eq!(slow, Ok(Outcome::Computed { value: "old".to_owned(), stored: false }));
        assert_eq!(fake.raw("k"), None);
        // The same with another client's computation in its place.
        let slow = one.get_or_compute("k", &options, || after(SECOND, "old"));
        let rest = async {
            sleep(200 * MS).await;
            assert!(other.cache().delete(b"k").await.unwrap());
            get(&other, &options, "new").await
        };
        let (slow, new) = tokio::join!(slow, rest);
        assert_eq!(new, computed("new"));
        assert_eq!(slow, Ok(Outcome::Computed { value: "old".to_owned(), stored: false }));
        assert_eq!(get(&one, &options, "never").await, hit("new"));
        at_rest(&[&one, &other]).await;
    }
}

/// A caller that arrives after a delete gets nothing that was read or computed before it, also within one
/// process.
#[tokio::test(start_paused = true)]
async fn who_arrives_after_a_delete_gets_nothing_older() {
    let fake = Fake::with_delay(20 * MS);
    let herd = fake.herd();
    let options = Compute::new().wait(SECOND * 5);
    let slow = herd.get_or_compute("k", &options, || after(SECOND, "old"));
    let rest = async {
        sleep(200 * MS).await;
        herd.cache().delete(b"k").await.unwrap();
        herd.get_or_compute("k", &options, || after(100 * MS, "new")).await
    };
    let (slow, new) = tokio::join!(slow, rest);
    assert_eq!(slow, Ok(Outcome::Computed { value: "old".to_owned(), stored: false }));
    assert_eq!(new, computed("new"));

    // A request is under way when the delete is acknowledged: its answer may be the old value.
    let early = herd.get_or_compute("k", &options, || at_once("never"));
    let late = async {
        sleep(15 * MS).await;
        fake.remove("k");
        herd.get_or_compute("k", &options, || at_once("newest")).await
    };
    let (early, late) = tokio::join!(early, late);
    assert_eq!((early, late), (hit("new"), computed("newest")));
    at_rest(&[&herd]).await;
}

#[tokio::test(start_paused = true)]
async fn a_computation_beyond_the_lock_in_the_server_is_stored_if_the_key_is_absent() {
    for (deleted_at, stored) in [(None, true), (Some(SECOND), false)] {
        let fake = Fake::new();
        let (one, other) = (fake.herd(), fake.herd());
        let options = Compute::new().compute_time(SECOND);
        let time = if deleted_at.is_some() { SECOND * 3 / 2 - 600 * MS } else { SECOND * 3 };
        let slow = one.get_or_compute("k", &options, || after(time, "late"));
        let rest = async {
            sleep(800 * MS).await;
            if deleted_at.is_some() {
                other.cache().delete(b"k").await.unwrap();
            }
        };
        let (slow, ()) = tokio::join!(slow, rest);
        assert_eq!(slow, Ok(Outcome::Computed { value: "late".to_owned(), stored }));
        assert_eq!(fake.raw("k").is_some(), stored);
    }
}

#[tokio::test(start_paused = true)]
async fn expirations_are_those_of_memcached() {
    let fake = Fake::new();
    let (one, other) = (fake.herd(), fake.herd());
    let forever = Compute::new().expiration(0);
    assert_eq!(get(&one, &forever, "for ever").await, computed("for ever"));
    sleep(SECOND * 86_400 * 400).await;
    assert_eq!(get(&other, &forever, "never").await, hit("for ever"));
    fake.remove("k");

    // Unix time.
    let began = Instant::now();
    let now = UNIX_EPOCH + SECOND * u32::try_from(fake::BEGIN).unwrap() + SECOND * 86_400 * 400;
    let seconds = now.duration_since(UNIX_EPOCH).unwrap().as_secs() as u32;
    let unix = Compute::new().expiration(seconds + 100);
    assert_eq!(get(&one, &unix, "a hundred seconds").await, computed("a hundred seconds"));
    assert!((102..=103).contains(&fake.ttl("k").unwrap()), "{:?}", fake.ttl("k"));
    sleep(SECOND * 98 - began.elapsed()).await;
    assert_eq!(get(&other, &unix, "never").await, hit("a hundred seconds"));
    sleep(SECOND * 3).await;
    let later = Compute::new().expiration(SECOND * 5);
    assert_eq!(get(&other, &later, "next").await, computed("next"));

    // Thirty days and the grace are more than memcached takes for seconds from now.
    fake.remove("k");
    let month = Compute::new().expiration(SECOND * 86_400 * 30);
    assert_eq!(get(&one, &month, "month").await, computed("month"));
    sleep(SECOND * 86_400 * 30 - SECOND * 10).await;
    assert_eq!(get(&other, &month, "never").await, hit("month"));

    // In the past: everyone gets the value that was computed for it, and it is not stored.
    fake.remove("k");
    let past = Compute::new().expiration(Expiration::At(SystemTime::UNIX_EPOCH));
    let not_stored = Ok(Outcome::Computed { value: "past".to_owned(), stored: false });
    assert_eq!(get(&one, &past, "past").await, not_stored);
    assert_eq!(fake.raw("k"), None);
}

#[tokio::test(start_paused = true)]
async fn extreme_times_neither_panic_nor_hang() {
    for time in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
        let fake = Fake::new();
        let herd = fake.herd();
        let options = Compute::new().compute_time(time).wait(time).expiration(time);
        let options = options.batch_compute_time(time);
        let got = get(&herd, &options, "v").await.unwrap();
        assert_eq!(got.value().as_deref(), Some("v"));
        let (got, _) =
            together(vec![fake.herd(), fake.herd(), herd.clone(), herd.clone()], &options, MS).await;
        assert_eq!(got.len(), 4);
    }
}

#[tokio::test(start_paused = true)]
async fn items_of_others_are_values_and_damaged_ones_are_replaced() {
    let fake = Fake::new();
    let herd = fake.herd();
    let options = Compute::new();
    fake.put("k", b"plain", 0);
    assert_eq!(get(&herd, &options, "never").await, hit("plain"));
    fake.put("k", b"", 7);
    assert_eq!(get(&herd, &options, "never").await, hit(""));
    for damaged in [
        &b""[..],
        b"\xc7",
        b"\xc7\x09aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        b"no header, but long enough for one",
    ] {
        fake.put("k", damaged, 0xca77_0001);
        assert_eq!(get(&herd, &options, "new").await, computed("new"));
        assert_eq!(get(&herd, &options, "never").await, hit("new"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_value_that_cannot_be_stored_is_returned_and_keeps_nobody() {
    let fake = Fake::new();
    fake.0.largest.store(60, Ordering::Relaxed);
    let options = Compute::new().compute_time(SECOND * 60);
    let large = "x".repeat(100);
    let herd = fake.herd();
    let (one, same) = tokio::join!(
        herd.get_or_compute("k", &options, || after(100 * MS, &large)),
        herd.get_or_compute("k", &options, || after(100 * MS, &large)),
    );
    let unstored = Ok(Outcome::Computed { value: large.clone(), stored: false });
    let (one, same) = if same == unstored { (same, one) } else { (one, same) };
    assert_eq!(one, unstored);
    assert_eq!(same, hit(&large));
    sleep(10 * MS).await;
    assert_eq!(fake.raw("k"), None);
    assert_eq!(get(&fake.herd(), &options, "small").await, computed("small"));
}

/// A server that was restarted gives the numbers of locks to other items: a result replaces its own lock
/// only.
#[tokio::test(start_paused = true)]
async fn a_server_that_is_restarted_counts_anew() {
    for tells_scope in [true, false] {
        for expired in [false, true] {
            let fake = Fake::new();
            fake.0.tells_scope.store(tells_scope, Ordering::Relaxed);
            let (one, other) = (fake.herd(), fake.herd());
            let options = Compute::new().compute_time(SECOND * 60).expiration(SECOND).wait(Duration::ZERO);
            if expired {
                assert_eq!(get(&one, &options, "first").await, computed("first"));
                sleep(SECOND * 2).await;
            }
            let call = |herd: &Herd<Fake>, time, value: &'static str| {
                let (herd, options) = (herd.clone(), options.clone());
                tokio::spawn(async move { herd.get_or_compute("k", &options, || after(time, value)).await })
            };
            let old = call(&one, SECOND * 3, "old");
            sleep(SECOND).await;
            fake.restart();
            if expired {
                fake.put("any", b"", 0);
            }
            let new = call(&other, SECOND * 5, "new");
            assert_eq!(old.await.unwrap(), Ok(Outcome::Computed { value: "old".to_owned(), stored: false }));
            assert_eq!(new.await.unwrap(), computed("new"), "{tells_scope} {expired}");
            at_rest(&[&one, &other]).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_server_a_call_fails_or_computes() {
    let fake = Fake::new();
    fake.0.is_down.store(true, Ordering::Relaxed);
    let herd = fake.herd();
    assert!(matches!(
        get(&herd, &Compute::new(), "v").await,
        Err(ComputeError::Cache(Error::Timeout { .. }))
    ));
    let compute = Compute::new().when_unavailable(WhenUnavailable::Compute);
    let got = get(&herd, &compute, "v").await;
    assert_eq!(got, Ok(Outcome::Computed { value: "v".to_owned(), stored: false }));
    let got = herd.get_or_compute(" ", &compute, || at_once("v")).await;
    assert!(matches!(got, Err(ComputeError::Cache(Error::Key(_)))));
    at_rest(&[&herd]).await;
}

/// A future that was begun and is not polled keeps nobody of its process longer than the wait.
#[tokio::test(start_paused = true)]
async fn a_caller_that_is_not_polled_keeps_no_other() {
    let fake = Fake::new();
    let herd = fake.herd();
    let options = Compute::new();
    let first = herd.get_or_compute("k", &options, || at_once("first"));
    tokio::pin!(first);
    // It has asked, and is not polled when the answer comes.
    assert!(time::timeout(Duration::ZERO, &mut first).await.is_err());
    sleep(10 * MS).await;
    assert_eq!(time::timeout(SECOND, get(&herd, &options, "second")).await.unwrap(), Ok(Outcome::Busy));
    assert_eq!(first.await, computed("first"));
    // Dropped before the answer comes: what it was granted is given up.
    fake.remove("k");
    let dropped = herd.get_or_compute("k", &options, || at_once("dropped"));
    assert!(time::timeout(Duration::ZERO, dropped).await.is_err());
    sleep(10 * MS).await;
    assert_eq!(fake.raw("k"), None);
    at_rest(&[&herd]).await;
}

type Many = Vec<Result<Outcome<String>, Error>>;

async fn many(
    herd: &Herd<Fake>,
    keys: &[&str],
    options: &Compute,
    time: Duration,
) -> (Many, Vec<Vec<String>>) {
    let asked = std::sync::Mutex::new(Vec::new());
    let compute = |keys: Vec<String>| {
        asked.lock().unwrap().push(keys.clone());
        async move {
            sleep(time).await;
            Ok::<_, &str>(
                keys.into_iter()
                    .filter(|key| key != "left-out")
                    .map(|key| (key.clone(), format!("<{key}>")))
                    .chain([("extra".to_owned(), "e".to_owned())])
                    .collect::<HashMap<_, _>>(),
            )
        }
    };
    let keys = keys.iter().map(|key| ((*key).to_owned(), Expiration::After(SECOND * 60)));
    let got = herd.get_or_compute_many(keys, options, compute).await.unwrap();
    (got, asked.into_inner().unwrap())
}

#[tokio::test(start_paused = true)]
async fn many_keys_take_one_round_trip_or_three() {
    let fake = Fake::new();
    let herd = fake.herd();
    let options = Compute::new();
    let (got, asked) = many(&herd, &["b", "a", "b", "left-out", "c"], &options, MS).await;
    assert_eq!(asked, [["b", "a", "left-out", "c"]]);
    let stored = |key: &str| Ok(Outcome::Computed { value: format!("<{key}>"), stored: true });
    assert_eq!(got, [stored("b"), stored("a"), stored("b"), Ok(Outcome::NotComputed), stored("c")]);
    // Asking; the locks; the values and the end of the lock that has none.
    assert_eq!(fake.trips(), 3);
    assert_eq!((fake.raw("left-out"), fake.raw("extra")), (None, None));
    let (got, asked) = many(&herd, &["c", "a", "b"], &options, MS).await;
    assert_eq!((fake.trips(), asked.len()), (4, 0));
    assert_eq!(got[0], Ok(Outcome::Hit("<c>".to_owned())));
    // Old values: served to others while they are computed again, in one batch with the missing ones.
    sleep(SECOND * 61).await;
    fake.remove("a");
    let before = fake.trips();
    let (got, asked) = many(&herd, &["a", "b", "c"], &options, MS).await;
    assert_eq!((fake.trips() - before, asked.len()), (4, 1), "an add and a cas at the same time");
    assert_eq!(got, [stored("a"), stored("b"), stored("c")]);
}

#[tokio::test(start_paused = true)]
async fn many_keys_of_which_others_compute_some() {
    let fake = Fake::new();
    let (one, other) = (fake.herd(), fake.herd());
    let options = Compute::new().wait(SECOND * 2);
    let slow = many(&one, &["a", "b"], &options, SECOND);
    let rest = async {
        sleep(100 * MS).await;
        let now = Compute::new().wait(Duration::ZERO);
        let (got, asked) = many(&other, &["a", "b"], &now, MS).await;
        assert_eq!((got, asked.len()), (vec![Ok(Outcome::Busy), Ok(Outcome::Busy)], 0));
        let busy = |keys: Vec<&'static str>| async move {
            assert_eq!(keys, ["b", "a"]);
            vec![("a", "own".to_owned())]
        };
        let keys = ["b", "a", "d", "a"].map(|key| (key, Expiration::Never));
        let compute = |keys: Vec<&'static str>| async move {
            assert_eq!(keys, ["d"]);
            Ok::<_, &str>(vec![("d", "D".to_owned())])
        };
        let got = other.get_or_compute_many_or(keys, &options, compute, busy).await.unwrap();
        let own = Ok(Outcome::Waited("own".to_owned()));
        let new = Ok(Outcome::Computed { value: "D".to_owned(), stored: true });
        assert_eq!(got, [Ok(Outcome::Busy), own.clone(), new, own]);
        // The own computation and the wait are at the same time.
        let began = Instant::now();
        let (got, asked) = many(&other, &["a", "c", "b"], &options, SECOND).await;
        assert_eq!(asked, [["c"]]);
        assert_eq!(got[0], Ok(Outcome::Hit("<a>".to_owned())));
        assert!(began.elapsed() < 1100 * MS, "{:?}", began.elapsed());
    };
    let ((got, _), ()) = tokio::join!(slow, rest);
    assert!(got.iter().all(Result::is_ok));
}

#[tokio::test(start_paused = true)]
async fn many_keys_are_locked_for_the_sum_and_freed_after_a_failure() {
    let fake = Fake::new();
    let herd = fake.herd();
    let options = Compute::new().compute_time(SECOND);
    let keys = || ["a", "b", "c"].map(|key| (key, Expiration::Never));
    let compute = |_| async {
        assert_eq!(fake.ttl("a"), Some(4));
        Err::<Vec<(&str, String)>, _>("failed")
    };
    assert_eq!(herd.get_or_compute_many(keys(), &options, compute).await, Err("failed"));
    assert_eq!(["a", "b", "c"].map(|key| fake.raw(key)), [None, None, None]);
    let dropped =
        herd.get_or_compute_many(keys(), &options, |_| pending::<Result<Vec<(&str, String)>, &str>>());
    assert!(time::timeout(10 * MS, dropped).await.is_err());
    sleep(10 * MS).await;
    assert_eq!(["a", "b", "c"].map(|key| fake.raw(key)), [None, None, None]);
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_many_wait_for_is_taken_over() {
    let fake = Fake::new();
    let (one, other) = (fake.herd(), fake.herd());
    let options = Compute::new().wait(SECOND);
    let failing = one.get_or_compute("a", &options, || async {
        sleep(300 * MS).await;
        Err::<String, _>("failed")
    });
    let rest = async {
        sleep(10 * MS).await;
        many(&other, &["a"], &options, MS).await
    };
    let (failed, (got, asked)) = tokio::join!(failing, rest);
    assert!(failed.is_err());
    assert_eq!((asked.len(), &got[0]), (1, &Ok(Outcome::Computed { value: "<a>".to_owned(), stored: true })));
}

fn token<T: std::fmt::Debug, C: Cache + 'static>(
    fetched: Fetched<T, C>,
) -> (String, cattlegrid_client::Token<C>) {
    match fetched {
        Fetched::Compute { hint, token } => (String::from_utf8(hint.to_vec()).unwrap(), token),
        other => panic!("{other:?}"),
    }
}

async fn fetch(herd: &Herd<Fake>, options: impl Into<Fetch>, hint: &str) -> Fetched<String, Fake> {
    herd.fetch_or_compute("k", options, hint.as_bytes()).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_token_is_delivered_to_those_who_wait() {
    let fake = Fake::new();
    let (one, other) = (fake.herd(), fake.herd());
    let (hint, first) = token(fetch(&one, SECOND * 3 / 2, "url").await);
    assert_eq!(hint, "url");
    let waiting = async { fetch(&other, SECOND, "other").await };
    let deliver = async {
        sleep(SECOND).await;
        assert!(one.deliver(first, &"value".to_owned()).await.unwrap());
    };
    let (got, ()) = tokio::join!(waiting, deliver);
    assert!(matches!(got, Fetched::Value(value) if value == "value"));
    assert!(matches!(fetch(&one, SECOND, "").await, Fetched::Hit(value) if value == "value"));
    assert!((1..=2).contains(&fake.ttl("k").unwrap()));
    sleep(SECOND * 2).await;
    let (_, next) = token(fetch(&one, SECOND, "next").await);
    assert_eq!(next.key(), b"k");
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_told_to_those_who_wait_and_to_no_other() {
    let fake = Fake::new();
    let (one, other) = (fake.herd(), fake.herd());
    let (_, first) = token(fetch(&one, SECOND, "url").await);
    let waiting = async { fetch(&other, SECOND, "other").await };
    let fail = async {
        sleep(SECOND).await;
        one.fail(first, "out of paper").await.unwrap();
    };
    let (got, ()) = tokio::join!(waiting, fail);
    assert!(matches!(got, Fetched::Error(text) if text == "out of paper"));
    let (hint, _) = token(fetch(&other, SECOND, "next").await);
    assert_eq!(hint, "next");
}

#[tokio::test(start_paused = true)]
async fn who_is_promoted_gets_the_first_hint() {
    let fake = Fake::new();
    let (one, other) = (fake.herd(), fake.herd());
    let options = Fetch::new(SECOND * 60).compute_timeout(SECOND);
    // Dropped; too late.
    for late in [false, true] {
        let (_, first) = token(fetch(&one, options, "first").await);
        let began = Instant::now();
        let waiting = async { fetch(&other, options, "other").await };
        let hold = async {
            sleep(500 * MS).await;
            if late { Some(first) } else { None }
        };
        let (got, first) = tokio::join!(waiting, hold);
        let (hint, second) = token(got);
        assert_eq!(hint, "first");
        let expected = if late { 990 * MS..1110 * MS } else { 490 * MS..620 * MS };
        assert!(expected.contains(&began.elapsed()), "{:?}", began.elapsed());
        if let Some(first) = first {
            assert!(!one.deliver(first, &"late".to_owned()).await.unwrap());
        }
        assert!(other.deliver(second, &"value".to_owned()).await.unwrap());
        fake.remove("k");
    }
    // A late result is stored if no other client computes.
    let (_, first) = token(fetch(&one, options, "first").await);
    sleep(SECOND * 3 / 2).await;
    assert!(one.deliver(first, &"late".to_owned()).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_token_ends() {
    let fake = Fake::new();
    let (one, other) = (fake.herd(), fake.herd());
    let (_, first) = token(fetch(&one, SECOND, "url").await);
    let began = Instant::now();
    assert!(matches!(fetch(&other, Fetch::new(SECOND).wait(SECOND), "").await, Fetched::Busy));
    assert!((SECOND..SECOND + 10 * MS).contains(&began.elapsed()));
    // A delete while it is computed: the value is not stored.
    fake.remove("k");
    assert!(!one.deliver(first, &"old".to_owned()).await.unwrap());
    assert_eq!(fake.raw("k"), None);
    let long = other.fetch_or_compute::<_, String>("k", SECOND, &[b' '; 200]).await;
    assert!(matches!(long, Err(Error::Usage(text)) if text.contains("600 bytes")));
}

#[test]
fn a_value_that_cannot_be_read_is_an_error() {
    assert!(u64::decode("x".into()).is_err());
}
