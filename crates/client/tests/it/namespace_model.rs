//! Namespaces over a cache in memory: what the original library did wrong, each option, and a model.
//!
//! The model lets several processes update, flush, make keys, read and write in any order of their single
//! commands, while items are evicted and time passes. Its oracle knows nothing of numbers and evidence, only
//! when things were done.

#![expect(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

mod fake;
mod ways;

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use cattlegrid_client::{Cache, Error, Key as _, NamespacedKey, Namespacer, NamespacerOptions, Write};
use fake::{Deed, Fake, Task, run_interleaved};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

type Names = Namespacer<Fake>;

/// Options whose clock is the fake's.
fn options(fake: &Fake) -> NamespacerOptions {
    let clock = fake.clone();
    NamespacerOptions::default().clock(move || UNIX_EPOCH + Duration::from_millis(1_000_000 + clock.now_ms()))
}

async fn process(fake: &Fake) -> Names {
    Namespacer::new(fake.clone(), options(fake)).await.unwrap()
}

fn plain_options(fake: &Fake) -> NamespacerOptions {
    options(fake).optimize_with_default_counter_and_evidence(false)
}

/// Stores content under a key, as a client's `set` does.
async fn set(fake: &Fake, key: &NamespacedKey, content: &str) {
    let write = Write { key: key.bytes(), data: content.as_bytes(), flags: 0, exptime: 0, tags: key.tags() };
    assert!(fake.set(write).await.unwrap().is_stored());
}

async fn content(fake: &Fake, key: &NamespacedKey) -> Option<String> {
    let item = fake.get(key.bytes()).await.unwrap()?;
    Some(String::from_utf8(item.data.to_vec()).unwrap())
}

/// Each way that namespaces work: the cache, its options.
fn ways() -> [(&'static str, Fake, NamespacerOptions); 3] {
    let [plain, counters, tags] = [Fake::new(), Fake::new(), Fake::with_tags()];
    let options = (options(&plain), plain_options(&counters), options(&tags));
    [("evidence", plain, options.0), ("counters", counters, options.1), ("tags", tags, options.2)]
}

// What the original does wrong.

/// The original reads the evidence into an array of the wrong size in a second process, which then sees no
/// update at all.
#[tokio::test]
async fn a_second_process_sees_evidence_of_any_size() {
    for size in [1, 7, 80, 8192] {
        let fake = Fake::new();
        let options = || options(&fake).evidence_size(size).reset_when_evidence_muddled(false);
        let first = Namespacer::new(fake.clone(), options()).await.unwrap();
        let old = first.key("userId", 1).await.unwrap();
        first.update("userId", 1).await.unwrap();
        let second = Namespacer::new(fake.clone(), options()).await.unwrap();
        let new = second.key("userId", 1).await.unwrap();
        assert_ne!(new, old, "{size}");
        assert_eq!(first.key("userId", 1).await.unwrap(), new);
        second.update("userId", 1).await.unwrap();
        assert_ne!(first.key("userId", 1).await.unwrap(), new);
    }
}

/// The original begins a lost counter at the same number again, and the keys of before return with their
/// content.
#[tokio::test]
async fn an_evicted_counter_or_record_never_brings_old_content_back() {
    for (way, fake, options) in ways() {
        let names = Namespacer::new(fake.clone(), options).await.unwrap();
        let mut seen = Vec::new();
        for round in 0..100 {
            let key = names.key("userId", 1).await.unwrap();
            assert_eq!(content(&fake, &key).await, None, "{way} {round}");
            set(&fake, &key, "old").await;
            seen.push(key);
            names.update("userId", 1).await.unwrap();
            match round % 3 {
                0 => drop(fake.evict("___counter|userId:1")),
                1 => drop(fake.evict("___record")),
                _ => {}
            }
            fake.advance_ms(1_000);
        }
        for _ in 0..3 {
            fake.evict("___counter|userId:1");
            let key = names.key("userId", 1).await.unwrap();
            assert_eq!(content(&fake, &key).await, None, "{way}");
            assert!(way == "tags" || !seen.contains(&key));
        }
    }
}

/// The original marks an update during a rolling flush in one window only: it is lost for keys of the other.
#[tokio::test]
async fn an_update_during_a_rolling_flush_counts_in_both_windows() {
    for with_tags in [false, true] {
        let fake = if with_tags { Fake::with_tags() } else { Fake::new() };
        let names = process(&fake).await;
        names.flush_all_rolling().await.unwrap();
        // In the middle half of the keys have changed.
        for step in 1..=9 {
            fake.advance_ms(18_000);
            for id in 0..50 {
                let key = names.key("userId", id).await.unwrap();
                set(&fake, &key, "old").await;
                names.update("userId", id).await.unwrap();
                let after = names.key("userId", id).await.unwrap();
                assert_eq!(content(&fake, &after).await, None, "{step} {id}");
            }
        }
    }
}

/// In the original a value that was computed before an update and is stored after it is served as a fresh
/// one.
#[tokio::test]
async fn a_value_computed_before_an_update_and_stored_after_it_is_not_seen() {
    let fake = Fake::new();
    for options in [options(&fake).prefix("a"), plain_options(&fake).prefix("b")] {
        let names = Namespacer::new(fake.clone(), options).await.unwrap();
        for _ in 0..3 {
            let before = names.key_of("page", &[("userId", 1), ("prodId", 2)]).await.unwrap();
            assert_eq!(content(&fake, &before).await, None);
            names.update("prodId", 2).await.unwrap();
            set(&fake, &before, "computed from the old product").await;
            let after = names.key_of("page", &[("userId", 1), ("prodId", 2)]).await.unwrap();
            assert_eq!(content(&fake, &after).await, None);
        }
    }
}

// What each option does.

#[tokio::test]
async fn keys_stay_until_their_namespace_is_updated() {
    for (way, fake, options) in ways() {
        let [first, second] =
            [options.clone(), options].map(|options| Namespacer::new(fake.clone(), options));
        let (first, second) = (first.await.unwrap(), second.await.unwrap());
        let ids: Vec<_> = (0..50).map(|id| ("userId", id)).collect();
        let before = first.keys(&ids).await.unwrap();
        assert_eq!(second.keys(&ids).await.unwrap(), before, "{way}");
        for key in &before {
            set(&fake, key, "content").await;
        }
        first.update("userId", 7).await.unwrap();
        let after = second.keys(&ids).await.unwrap();
        for (id, (before, after)) in before.iter().zip(&after).enumerate() {
            assert_eq!(content(&fake, after).await.is_none(), id == 7, "{way} {id}");
            assert_eq!(before == after, id != 7 || way == "tags", "{way} {id}");
        }
        // One update is seen by every key of the namespace, and by no other.
        let both = |names: &Names| {
            let names = names.clone();
            async move { names.key_of("last", &[("userId", 7), ("prodId", 9)]).await.unwrap() }
        };
        for name in ["userId", "prodId"] {
            let key = both(&first).await;
            set(&fake, &key, "content").await;
            second.update("userId", 9).await.unwrap();
            second.update("prodId", 7).await.unwrap();
            assert_eq!(content(&fake, &both(&first).await).await.as_deref(), Some("content"), "{way}");
            second.update(name, if name == "userId" { 7 } else { 9 }).await.unwrap();
            assert_eq!(content(&fake, &both(&first).await).await, None, "{way}");
        }
    }
}

#[tokio::test]
async fn all_keys_begin_with_the_prefix() {
    for (way, fake, options) in ways() {
        let options = options.prefix("shop/").separator("::");
        let names = Namespacer::new(fake.clone(), options).await.unwrap();
        for id in 0..20 {
            names.update("userId", id).await.unwrap();
            let key = names.key_of("a::b", &[("userId", id), ("prodId", 1)]).await.unwrap();
            assert!(key.as_str().contains("a%3A%3Ab::userId::"), "{key}");
            set(&fake, &key, "").await;
        }
        if way != "counters" {
            names.flush_all_rolling().await.unwrap();
        }
        let keys = fake.keys();
        assert!(keys.len() > 20 && keys.iter().all(|key| key.starts_with("shop/")), "{keys:?}");
    }
}

#[tokio::test]
async fn prefixes_do_not_affect_each_other() {
    for with_tags in [false, true] {
        let fake = if with_tags { Fake::with_tags() } else { Fake::new() };
        let ours = process(&fake).await;
        let other = Namespacer::new(fake.clone(), options(&fake).prefix("other")).await.unwrap();
        let key = other.key("userId", 1).await.unwrap();
        set(&fake, &key, "theirs").await;
        fake.put("userId:1", "no namespace");
        ours.update("userId", 1).await.unwrap();
        ours.flush_all_rolling().await.unwrap();
        fake.advance_ms(200_000);
        ours.flush_all_rolling().await.unwrap();
        assert_eq!(other.key("userId", 1).await.unwrap(), key);
        assert_eq!(content(&fake, &key).await.as_deref(), Some("theirs"));
        assert!(fake.value("userId:1").is_some());
    }
}

/// The share of keys that need their namespace's own number: 7 to 8 % after 100 updates, half after 393.
#[tokio::test]
async fn evidence_spares_most_reads() {
    const PROBES: u64 = 20_000;
    for (updates, least, most) in [(0, 0, 0), (100, 6, 9), (393, 46, 54)] {
        let fake = Fake::new();
        let names = process(&fake).await;
        for id in 0..updates {
            names.update("userId", id).await.unwrap();
        }
        fake.take_asked();
        for id in 0..PROBES {
            names.key("prodId", id).await.unwrap();
        }
        let asked = fake.take_asked();
        let more = asked.reads - PROBES;
        assert!(
            (PROBES * least / 100..=PROBES * most / 100).contains(&more),
            "{updates}: {more} of {PROBES}"
        );
        eprintln!("{updates} updates: {more} of {PROBES} keys need another read");
    }
}

#[tokio::test]
async fn muddled_evidence_begins_a_rolling_flush() {
    for reset in [true, false] {
        let fake = Fake::new();
        let options = options(&fake).reset_when_evidence_muddled(reset);
        let names = Namespacer::new(fake.clone(), options).await.unwrap();
        let probes: Vec<_> = (0..2_000).map(|id| ("prodId", id)).collect();
        for id in 0..450 {
            names.update("userId", id).await.unwrap();
        }
        fake.advance_ms(180_000);
        fake.take_asked();
        names.keys(&probes).await.unwrap();
        let read = fake.take_asked().keys_read - 1;
        if reset {
            assert!(read < 200, "{read} of 2000 after the flush");
        } else {
            assert!(read > 1_000, "{read} of 2000 without a flush");
        }
    }
}

#[tokio::test]
async fn a_rolling_flush_changes_keys_evenly_over_its_period() {
    for with_tags in [false, true] {
        let fake = if with_tags { Fake::with_tags() } else { Fake::new() };
        let period = Duration::from_secs(60);
        let names = Namespacer::new(fake.clone(), options(&fake).rolling_period(period)).await.unwrap();
        let ids: Vec<_> = (0..10_000).map(|id| ("userId", id)).collect();
        names.update("userId", 5).await.unwrap();
        let before = names.keys(&ids).await.unwrap();
        names.flush_all_rolling().await.unwrap();
        let mut changed = HashSet::new();
        for second in (0..=60).step_by(4) {
            let after = names.keys(&ids).await.unwrap();
            for (id, (before, after)) in before.iter().zip(&after).enumerate() {
                if before == after {
                    assert!(!changed.contains(&id), "{id} has changed back");
                } else {
                    changed.insert(id);
                }
            }
            let expected = 10_000 * second / 60;
            assert!(changed.len().abs_diff(expected) < 200, "{} at {second} s", changed.len());
            fake.advance_ms(4_000);
        }
        assert_eq!(changed.len(), 10_000, "updated namespaces too");
    }
}

/// An updated namespace has a number of its own, which a flush does not change. It must not lead back to what
/// was stored before the flush when the bits of the new window are set by other namespaces.
#[tokio::test]
async fn content_from_before_a_flush_does_not_return_with_a_number() {
    let fake = Fake::new();
    let options = options(&fake).evidence_size(1).reset_when_evidence_muddled(false);
    let names = Namespacer::new(fake.clone(), options).await.unwrap();
    names.update("userId", 1).await.unwrap();
    let old = names.key("userId", 1).await.unwrap();
    assert!(old.as_str().contains('|'), "{old}");
    set(&fake, &old, "old").await;
    names.flush_all_rolling().await.unwrap();
    fake.advance_ms(180_000);
    for id in 2..50 {
        names.update("userId", id).await.unwrap();
    }
    let new = names.key("userId", 1).await.unwrap();
    assert!(new.as_str().contains('|'), "{new}");
    assert_eq!(content(&fake, &new).await, None);
}

#[tokio::test]
async fn different_settings_are_an_error_at_once_and_later() {
    let fake = Fake::new();
    let others = [
        (options(&fake).evidence_size(81), "evidence_size"),
        (options(&fake).separator("/"), "separator"),
        (options(&fake).reset_when_evidence_muddled(false), "reset_when_evidence_muddled"),
        (options(&fake).rolling_period(Duration::from_secs(60)), "rolling_period"),
        (plain_options(&fake), "optimize_with_default_counter_and_evidence"),
    ];
    for (other, name) in others {
        let named = |error: Error| match error {
            Error::SettingsDiffer { prefix, option, here, there } => {
                assert!(prefix == "___" && option == name && here != there, "{option}");
            }
            other => panic!("{name}: {other}"),
        };
        fake.evict("___record");
        let first = process(&fake).await;
        named(Namespacer::new(fake.clone(), other.clone()).await.unwrap_err());
        // The record is lost, and the other process is the first to write one.
        fake.evict("___record");
        let second = Namespacer::new(fake.clone(), other).await.unwrap();
        named(first.key("userId", 1).await.unwrap_err());
        named(first.update("userId", 1).await.unwrap_err());
        named(first.flush_all_rolling().await.unwrap_err());
        second.key("userId", 1).await.unwrap();
        fake.evict("___record");
        fake.advance_ms(1_000);
        first.key("userId", 1).await.unwrap();
        named(second.key("userId", 1).await.unwrap_err());
        named(second.update("userId", 1).await.unwrap_err());
    }
    let tagged = Fake::with_tags();
    let first = process(&tagged).await;
    assert!(first.uses_tags());
    let without = Namespacer::new(tagged.clone(), options(&tagged).use_tags(false)).await;
    assert!(matches!(without, Err(Error::SettingsDiffer { option: "the way of invalidation", .. })));
    tagged.evict("___record");
    let without = Namespacer::new(tagged.clone(), options(&tagged).use_tags(false)).await.unwrap();
    assert!(!without.uses_tags());
    tagged.advance_ms(1_000);
    // Numbers work over all servers: who may use tags follows.
    let key = without.key("userId", 1).await.unwrap();
    first.update("userId", 1).await.unwrap();
    assert!(!first.uses_tags());
    assert_ne!(without.key("userId", 1).await.unwrap(), key);
    assert_eq!(first.key("userId", 1).await.unwrap(), without.key("userId", 1).await.unwrap());
}

#[tokio::test]
async fn a_record_of_another_kind_is_an_error_and_stays() {
    for data in [&b"7"[..], b"CGNS\x02\x06\0\0\0\0\0\0\0\0", b""] {
        let fake = Fake::new();
        let names = process(&fake).await;
        fake.put("___record", data);
        for result in [
            Namespacer::new(fake.clone(), options(&fake)).await.map(drop),
            names.key("userId", 1).await.map(drop),
            names.update("userId", 1).await,
            names.flush_all_rolling().await,
        ] {
            assert!(matches!(&result, Err(Error::Value { key, .. }) if key == "___record"), "{result:?}");
        }
        assert_eq!(fake.value("___record").unwrap(), data);
    }
    let fake = Fake::new();
    let names = process(&fake).await;
    names.update("userId", 1).await.unwrap();
    fake.put("___counter|userId:1", "8");
    let error = names.key("userId", 1).await;
    assert!(matches!(&error, Err(Error::Value { key, .. }) if key == "___counter|userId:1"), "{error:?}");
}

#[tokio::test]
async fn keys_cost_the_round_trips_that_are_documented() {
    let fake = Fake::new();
    let names = process(&fake).await;
    let ids: Vec<_> = (0..100).map(|id| ("userId", id)).collect();
    names.update_many(&ids[..10]).await.unwrap();
    fake.take_asked();
    names.key("userId", 50).await.unwrap();
    assert_eq!(fake.take_asked().reads, 1, "a namespace that was not updated");
    names.key_of("page", &[("userId", 1), ("userId", 2), ("userId", 50)]).await.unwrap();
    let asked = fake.take_asked();
    assert_eq!((asked.reads, asked.keys_read, asked.writes), (2, 3, 0), "all numbers at once");
    names.keys(&ids).await.unwrap();
    assert_eq!(fake.take_asked().reads, 2);
    let two = [("userId", 1), ("userId", 2)];
    let batch = [("a", &two[..]), ("b", &two[..1])];
    names.keys_of(&batch).await.unwrap();
    let asked = fake.take_asked();
    assert_eq!((asked.reads, asked.keys_read), (2, 3), "each number once");
    assert!(names.keys::<u8>(&[]).await.unwrap().is_empty());

    for fake in [Fake::with_tags(), Fake::new()] {
        let tags = fake.has_tags().await.unwrap();
        let options = if tags { options(&fake) } else { plain_options(&fake) };
        let names = Namespacer::new(fake.clone(), options).await.unwrap();
        names.keys(&ids).await.unwrap();
        fake.take_asked();
        for _ in 0..9 {
            fake.advance_ms(100);
            names.key("userId", 1).await.unwrap();
        }
        let reads = if tags { 0 } else { 9 };
        assert_eq!(fake.take_asked().reads, reads);
        fake.advance_ms(100);
        names.keys(&ids).await.unwrap();
        assert_eq!(fake.take_asked().reads, if tags { 1 } else { 2 }, "the record once a second");
    }
}

#[tokio::test]
async fn wrong_calls_are_errors() {
    let fake = Fake::new();
    let names = process(&fake).await;
    let long = "x".repeat(230);
    assert!(matches!(names.key("userId", &long).await, Err(Error::Key(_))));
    assert!(matches!(names.key("", 1).await, Err(Error::Usage(_))));
    assert!(matches!(names.key_of::<u8>("a", &[]).await, Err(Error::Usage(_))));
    assert!(matches!(names.key_of("a", &[("b", 1); 8]).await, Err(Error::Usage(_))));
    let wrong = Namespacer::new(fake.clone(), options(&fake).evidence_size(0)).await;
    assert!(matches!(wrong, Err(Error::Usage(_))));
    let plain = Namespacer::new(fake.clone(), plain_options(&fake).prefix("plain")).await.unwrap();
    assert!(matches!(plain.flush_all_rolling().await, Err(Error::Usage(_))));
}

/// Another process is faster whenever this one wants to write, and everything that is written is evicted at
/// once.
#[tokio::test]
async fn lost_races_and_lost_items_do_not_stop_anything() {
    let fake = Fake::new();
    let names = process(&fake).await;
    let other = process(&fake).await;
    names.update("userId", 1).await.unwrap();
    fake.evict("___counter|userId:1");
    fake.before(|command, key| match (command, key) {
        ("add", b"___counter|userId:1") => vec![Deed::Set(key.to_vec(), b"00000000000000aa".to_vec())],
        _ => Vec::new(),
    });
    let key = names.key("userId", 1).await.unwrap();
    assert!(key.as_str().ends_with("userId:1|00000000000000aa"), "{key}");
    fake.before(|command, key| match (command, key) {
        ("get", b"___counter|userId:1") => vec![Deed::Evict(key.to_vec())],
        _ => Vec::new(),
    });
    let [first, second] = [names.key("userId", 1).await.unwrap(), other.key("userId", 1).await.unwrap()];
    assert_ne!(first, second, "a number that is lost at once is new each time");
    fake.before(|command, key| match (command, key) {
        ("cas", b"___record") => vec![Deed::Evict(key.to_vec())],
        _ => Vec::new(),
    });
    names.update("userId", 2).await.unwrap();
    names.flush_all_rolling().await.unwrap();
}

#[tokio::test]
async fn many_processes_update_at_once() {
    let fake = Fake::new();
    let before = process(&fake).await.keys(&ids(0..50)).await.unwrap();
    let processes: Vec<_> = {
        let mut all = Vec::new();
        for _ in 0..50 {
            all.push(process(&fake).await);
        }
        all
    };
    let fake = fake.stepwise();
    let update = |(id, names): (u64, &Names)| {
        let names = names.clone();
        Box::pin(async move { names.update("userId", id).await.unwrap() }) as Task<'_>
    };
    let tasks = (0..).zip(&processes).map(update).collect();
    let mut random = SmallRng::seed_from_u64(1);
    run_interleaved(tasks, |count| random.random_range(0..count));
    let after = process(&fake).await.keys(&ids(0..50)).await.unwrap();
    assert!(before.iter().zip(&after).all(|(before, after)| before != after));
}

fn ids(range: std::ops::Range<u64>) -> Vec<(&'static str, u64)> {
    range.map(|id| ("userId", id)).collect()
}

// The model.

const PERIOD_MS: u64 = 4_000;
/// With tags another process knows a flush by then.
const COPY_MS: u64 = 1_000;

/// A namespace of the model and the time at which an update of it began and was acknowledged. None: a flush.
struct Done {
    namespace: Option<(&'static str, u64)>,
    began: u64,
    acknowledged: u64,
    acknowledged_ms: u64,
}

/// A content: where it belongs, and when its key had been made or, with tags, when it had been stored.
struct Content {
    made: u64,
}

#[derive(Default)]
struct Oracle {
    clock: u64,
    done: Vec<Done>,
    contents: Vec<Content>,
    /// Reads that found content.
    hits: u64,
    /// Reads that found none.
    misses: u64,
}

impl Oracle {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Fails if the content must not be seen by a read whose key was asked for at `asked` and `asked_ms`.
    fn check(&self, content: usize, key: &Logical, asked: u64, asked_ms: u64, late_ms: u64, period_ms: u64) {
        let content = &self.contents[content];
        for done in &self.done {
            let after = content.made < done.began && done.acknowledged < asked;
            if let Some(namespace) = done.namespace {
                assert!(
                    !(after && key.1.contains(&namespace)),
                    "content from before an update of {namespace:?}"
                );
            } else {
                let changed_ms = done.acknowledged_ms + phase_ms(key, period_ms) + late_ms;
                assert!(!(after && asked_ms >= changed_ms), "content from before a flush");
            }
        }
    }
}

type Logical = (&'static str, Vec<(&'static str, u64)>);

/// When a key changes in a rolling flush, by the documented formula.
fn phase_ms(key: &Logical, period_ms: u64) -> u64 {
    let mut text = format!("___{}", key.0);
    for (name, id) in &key.1 {
        write!(text, ":{name}:{id}").unwrap();
    }
    let start = text.into_bytes().into_iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let mut number = start.wrapping_add(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(3));
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^= number >> 31;
    ((u128::from(number) * u128::from(period_ms)) >> 64) as u64
}

fn a_namespace(random: &mut SmallRng) -> (&'static str, u64) {
    (["userId", "prodId"][random.random_range(0..2)], random.random_range(0..3))
}

fn a_key(random: &mut SmallRng) -> Logical {
    let count = random.random_range(1..=2);
    (["page", "list"][random.random_range(0..2)], (0..count).map(|_| a_namespace(random)).collect())
}

/// A process: operations one after another.
async fn lives(names: &Names, fake: &Fake, oracle: &Mutex<Oracle>, seed: u64, course: Course, flushes: bool) {
    let quiet = course == Course::Quiet;
    let mut random = SmallRng::seed_from_u64(seed);
    for _ in 0..12 {
        match random.random_range(0..100) {
            0..20 if !quiet => {
                let namespace = a_namespace(&mut random);
                let began = oracle.lock().unwrap().tick();
                names.update(namespace.0, namespace.1).await.unwrap();
                acknowledge(oracle, fake, Some(namespace), began);
            }
            20..24 if !quiet && flushes => {
                let began = oracle.lock().unwrap().tick();
                names.flush_all_rolling().await.unwrap();
                acknowledge(oracle, fake, None, began);
            }
            24..34 if !quiet => {
                let keys = fake.keys();
                if !keys.is_empty() {
                    fake.evict(&keys[random.random_range(0..keys.len())]);
                }
            }
            34..35 if course == Course::Replaced => {
                let part = random.random_range(0..=4);
                let mut goes = SmallRng::seed_from_u64(random.random());
                fake.replace_servers(random.random(), |_| goes.random_range(0..4) < part);
            }
            34..46 => fake.advance_ms(random.random_range(0..PERIOD_MS / 2)),
            _ => reads(names, fake, oracle, &a_key(&mut random), random.random_bool(0.7)).await,
        }
    }
}

fn acknowledge(oracle: &Mutex<Oracle>, fake: &Fake, namespace: Option<(&'static str, u64)>, began: u64) {
    let mut oracle = oracle.lock().unwrap();
    let acknowledged = oracle.tick();
    oracle.done.push(Done { namespace, began, acknowledged, acknowledged_ms: fake.now_ms() });
}

/// Makes a key, reads it, and stores content if there is none.
async fn reads(names: &Names, fake: &Fake, oracle: &Mutex<Oracle>, key: &Logical, stores: bool) {
    let (asked, asked_ms) = (oracle.lock().unwrap().tick(), fake.now_ms());
    let namespaced = names.key_of(key.0, &key.1).await.unwrap();
    let made = oracle.lock().unwrap().tick();
    let tagged = !cattlegrid_client::Key::tags(&namespaced).is_empty();
    let (late_ms, period_ms) = (if tagged { COPY_MS } else { 0 }, PERIOD_MS);
    if let Some(found) = content(fake, &namespaced).await {
        let mut oracle = oracle.lock().unwrap();
        oracle.hits += 1;
        let (content, name) = found.split_once(' ').unwrap();
        assert_eq!(name, format!("{key:?}"), "content of another key");
        oracle.check(content.parse().unwrap(), key, asked, asked_ms, late_ms, period_ms);
        return;
    }
    oracle.lock().unwrap().misses += 1;
    if stores {
        let content = {
            let mut oracle = oracle.lock().unwrap();
            oracle.contents.push(Content { made });
            oracle.contents.len() - 1
        };
        let text = format!("{content} {key:?}");
        let write = Write {
            key: namespaced.as_str().as_bytes(),
            data: text.as_bytes(),
            flags: 0,
            exptime: 0,
            tags: cattlegrid_client::Key::tags(&namespaced),
        };
        // A server that has lost its tags refuses it.
        drop(fake.set(write).await);
        if tagged {
            // A tag counts from the store on.
            let mut oracle = oracle.lock().unwrap();
            let now = oracle.tick();
            oracle.contents[content].made = now;
        }
    }
}

/// The course of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Course {
    /// No updates, flushes and evictions.
    Quiet,
    Usual,
    /// Servers are replaced by others with tags or without.
    Replaced,
}

/// One history; hits and misses.
fn history(seed: u64, fake: &Fake, optimize: bool, course: Course) -> (u64, u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let oracle = Mutex::new(Oracle::default());
    // Few bits: many collisions, and muddled after a few updates.
    let options = options(fake)
        .evidence_size(random.random_range(1..=3))
        .rolling_period(Duration::from_millis(PERIOD_MS))
        .reset_when_evidence_muddled(random.random_bool(0.5))
        .optimize_with_default_counter_and_evidence(optimize);
    let processes = Arc::new(Mutex::new(Vec::new()));
    let starts = (0..random.random_range(2..=4)).map(|_| {
        let (fake, options, processes) = (fake.clone(), options.clone(), Arc::clone(&processes));
        let start = async move {
            let names = Namespacer::new(fake, options).await.unwrap();
            processes.lock().unwrap().push(names);
        };
        Box::pin(start) as Task<'_>
    });
    run_interleaved(starts.collect(), |count| random.random_range(0..count));
    let processes = std::mem::take(&mut *processes.lock().unwrap());
    let flushes = optimize || processes[0].uses_tags();
    let tasks = processes.iter().enumerate().map(|(number, names)| {
        let seed = seed.wrapping_mul(31).wrapping_add(number as u64);
        Box::pin(lives(names, fake, &oracle, seed, course, flushes)) as Task<'_>
    });
    run_interleaved(tasks.collect(), |count| random.random_range(0..count));
    let oracle = oracle.into_inner().unwrap();
    (oracle.hits, oracle.misses)
}

fn histories(count: u64, fake: impl Fn() -> Fake, optimize: bool, course: Course) {
    let first: u64 = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let (mut hits, mut misses) = (0, 0);
    for seed in first..first + count {
        let run = std::panic::AssertUnwindSafe(|| history(seed, &fake().stepwise(), optimize, course));
        let Ok(found) = std::panic::catch_unwind(run) else { panic!("SEED={seed} repeats it") };
        hits += found.0;
        misses += found.1;
    }
    // What servers had that are replaced is gone.
    let least = if course == Course::Replaced { count / 2 } else { count };
    assert!(hits > least && misses > least, "{hits} hits and {misses} misses show nothing");
}

#[test]
fn with_evidence_nothing_old_is_ever_seen() {
    histories(1_500, Fake::new, true, Course::Usual);
}

#[test]
fn with_counters_alone_nothing_old_is_ever_seen() {
    histories(700, Fake::new, false, Course::Usual);
}

#[test]
fn with_tags_nothing_old_is_ever_seen() {
    histories(700, Fake::with_tags, true, Course::Usual);
}

#[test]
fn with_servers_that_gain_and_lose_tags_nothing_old_is_ever_seen() {
    histories(2_000, Fake::with_tags, true, Course::Replaced);
    histories(2_000, Fake::new, true, Course::Replaced);
}

/// Without updates, flushes and evictions all processes have the same keys: each content is computed once.
#[test]
fn undisturbed_keys_are_the_same_for_all() {
    for seed in 0..200 {
        for (fake, optimize) in [(Fake::new(), true), (Fake::new(), false), (Fake::with_tags(), true)] {
            let shared = fake.clone();
            let (hits, _) = history(seed, &fake.stepwise(), optimize, Course::Quiet);
            let kept = shared.keys().into_iter().filter(|key| key.contains("page") || key.contains("list"));
            let names: Vec<_> = kept.map(|key| shared.value(&key).unwrap()).collect();
            let logical: HashSet<_> = names
                .iter()
                .map(|value| String::from_utf8_lossy(value).split_once(' ').unwrap().1.to_owned())
                .collect();
            assert_eq!(logical.len(), names.len(), "one key for each content, seed {seed}");
            assert!(hits > 0 || names.len() > 3);
        }
    }
}
