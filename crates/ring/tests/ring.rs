//! Rings against libmemcached, and what adding, removing and taking down a server moves.
#![expect(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

use cattlegrid_ring::{Layout, Point, Ring, RingError, SERVERS_MAX, Server, key_hash};
use proptest::prelude::*;

fn servers(names: &[&str]) -> Vec<Server> {
    names.iter().map(|name| Server::parse(name.as_bytes()).expect("a server")).collect()
}

fn named(ring: &Ring, key: &[u8]) -> Option<Vec<u8>> {
    ring.find(key).map(|place| ring.servers()[place].name().to_vec())
}

/// The files say how they were made.
#[test]
fn keys_have_the_servers_that_libmemcached_gives_them() {
    assert_eq!(compared(include_str!("data/libmemcached.txt")), (8, 1200));
    assert_eq!(compared(include_str!("data/one_at_a_time.txt")), (4, 600));
}

/// Compares with the servers of keys in a file; how many rings and keys it has.
fn compared(text: &str) -> (u32, u32) {
    let mut ring = None;
    let (mut rings, mut keys) = (0, 0);
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        if let Some(line) = line.strip_prefix("ring ") {
            let (layout, names) = line.split_once(' ').unwrap();
            let layout = match layout {
                "plain" => Layout::Plain,
                "weighted" => Layout::Weighted,
                _ => Layout::OneAtATime,
            };
            let names: Vec<&str> = names.split(' ').collect();
            ring = Some(Ring::new(servers(&names), layout).unwrap());
            rings += 1;
            continue;
        }
        let (key, place) = line.rsplit_once(' ').unwrap();
        let found = ring.as_ref().unwrap().find(key.as_bytes());
        assert_eq!(found, Some(place.parse().unwrap()), "ring {rings}, key {key}");
        keys += 1;
    }
    (rings, keys)
}

/// libketama hashes `NAME-COUNTER`, whatever the port of the name is.
#[test]
fn only_the_default_port_makes_it_differ_from_libketama() {
    use md5::{Digest as _, Md5};

    let differ = |port: u16| {
        let names: Vec<String> = (1..=7).map(|n| format!("10.0.0.{n}:{port}")).collect();
        let mut points: Vec<(u32, usize)> = Vec::new();
        for (place, name) in names.iter().enumerate() {
            for counter in 0..40 {
                let hash: [u8; 16] = Md5::digest(format!("{name}-{counter}")).into();
                let words = hash.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
                points.extend(words.map(|word| (word, place)));
            }
        }
        points.sort_unstable();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let ring = Ring::new(servers(&names), Layout::Weighted).unwrap();
        let keys = (0..700).map(|n| format!("key:{n}"));
        keys.filter(|key| {
            let hash = key_hash(key.as_bytes());
            let (_, place) = points.iter().find(|(point, _)| *point >= hash).unwrap_or(&points[0]);
            ring.find(key.as_bytes()) != Some(*place)
        })
        .count()
    };
    assert_eq!(differ(11_212), 0);
    assert!(differ(11_211) > 500);
}

#[test]
fn a_key_after_the_last_point_goes_to_the_first() {
    let names = ["10.0.1.1=600", "10.0.1.2=300", "10.0.1.3=200", "10.0.1.4=350"];
    let ring = Ring::new(servers(&names), Layout::Weighted).unwrap();
    let last = ring.points().last().unwrap().hash;
    let beyond = (0..u32::MAX).map(|n| n.to_string()).find(|key| key_hash(key.as_bytes()) > last).unwrap();
    assert_eq!(ring.find(beyond.as_bytes()), Some(usize::from(ring.points()[0].server)));
    assert_eq!(key_hash(b""), 0xd98c_1dd4, "MD5 of nothing begins with d4 1d 8c d9");
}

#[test]
fn points_are_in_order_and_in_proportion() {
    let names = ["a=1", "b=2", "c=5"];
    let ring = Ring::new(servers(&names), Layout::Weighted).unwrap();
    assert!(ring.points().is_sorted());
    let count = |place: u16| ring.points().iter().filter(|point| point.server == place).count();
    assert_eq!((count(0), count(1), count(2)), (60, 120, 300));
    let plain = Ring::new(servers(&names), Layout::Plain).unwrap();
    assert_eq!(plain.points().len(), 300);
    assert!(Point { hash: 1, server: 9 } < Point { hash: 2, server: 0 });
}

#[test]
fn a_weight_that_rounds_to_nothing_gets_no_key() {
    let ring = Ring::new(servers(&["a=1", "b=65535"]), Layout::Weighted).unwrap();
    assert!((0..1000_u32).all(|n| ring.find(&n.to_le_bytes()) == Some(1)));
    assert!(ring.points().iter().all(|point| point.server == 1));
}

#[test]
fn lists_that_are_refused() {
    assert_eq!(Ring::new([], Layout::Plain), Err(RingError::NoServer));
    let twice = Ring::new(servers(&["a:11211", "b", "a"]), Layout::Weighted);
    assert_eq!(twice, Err(RingError::Twice("a".to_owned())), "the same points");
    let many = |count: usize| {
        let list = (0..count).map(|n| Server::new(format!("h{n}:1"), 1).unwrap());
        Ring::new(list, Layout::Plain).map(|ring| ring.points().len())
    };
    assert_eq!(many(SERVERS_MAX), Ok(SERVERS_MAX * 100));
    assert_eq!(many(SERVERS_MAX + 1), Err(RingError::TooMany));
}

#[test]
fn availability() {
    let mut ring = Ring::new(servers(&["a", "b", "c"]), Layout::Weighted).unwrap();
    assert_eq!(ring.position(b"b"), Some(1));
    assert_eq!(ring.position(b"d"), None);
    assert!(ring.set_available(0, false) && ring.set_available(2, false));
    assert!(!ring.set_available(3, false) && !ring.is_available(3));
    assert!((0..100_u32).all(|n| ring.find(&n.to_le_bytes()) == Some(1)));
    ring.set_available(1, false);
    assert_eq!(ring.find(b"key"), None);
    assert!(ring.set_available(0, true) && ring.is_available(0));
    assert_eq!(ring.find(b"key"), Some(0));
}

const KEYS: u32 = 1000;

fn key(n: u32) -> [u8; 5] {
    let mut key = [b'k'; 5];
    key[1..].copy_from_slice(&n.to_le_bytes());
    key
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: proptest::test_runner::RngSeed::Fixed(15), ..ProptestConfig::with_cases(12) })]

    /// A server that joins takes about its share, from all others; nothing moves between others. Leaving is
    /// the reverse.
    #[test]
    fn joining_moves_only_what_the_new_server_takes(count in 1_usize..12, seed in 0_u32..1000, plain: bool) {
        let layout = if plain { Layout::Plain } else { Layout::Weighted };
        let list: Vec<Server> =
            (0..=count).map(|n| Server::new(format!("s{seed}-{n}:1{n}"), 1).unwrap()).collect();
        let before = Ring::new(list[..count].to_vec(), layout).unwrap();
        let after = Ring::new(list, layout).unwrap();
        let mut moved = 0;
        for n in 0..KEYS {
            let (from, to) = (before.find(&key(n)).unwrap(), after.find(&key(n)).unwrap());
            if from != to {
                prop_assert_eq!(to, count, "a key moved between others");
                moved += 1;
            }
        }
        let share = f64::from(moved) / f64::from(KEYS) * f64::from(count as u32 + 1);
        prop_assert!((0.5..1.7).contains(&share), "{} of the fair share", share);
    }

    /// A server that is down loses all its keys and no other server loses any; with equal weights the ring
    /// without it gives the same.
    #[test]
    fn a_server_that_is_down_loses_only_its_own(count in 2_usize..12, down in 0_usize..12, seed in 0_u32..1000) {
        let down = down % count;
        let list: Vec<Server> = (0..count).map(|n| Server::new(format!("s{seed}-{n}"), 1).unwrap()).collect();
        let all = Ring::new(list.clone(), Layout::Weighted).unwrap();
        let mut without = all.clone();
        without.set_available(down, false);
        let mut fewer = list;
        fewer.remove(down);
        let fewer = Ring::new(fewer, Layout::Weighted).unwrap();
        for n in 0..KEYS {
            let (before, now) = (all.find(&key(n)).unwrap(), without.find(&key(n)).unwrap());
            prop_assert_ne!(now, down);
            if before != down {
                prop_assert_eq!(before, now);
            }
            prop_assert_eq!(named(&without, &key(n)), named(&fewer, &key(n)));
        }
    }

    /// Keys are shared in proportion to the weights.
    #[test]
    fn weights_are_shares(weights in prop::collection::vec(1_u32..6, 2..8)) {
        let list = weights.iter().enumerate().map(|(n, weight)| Server::new(format!("w{n}:1"), *weight).unwrap());
        let ring = Ring::new(list, Layout::Weighted).unwrap();
        let mut counts = vec![0_u32; weights.len()];
        for n in 0..KEYS {
            counts[ring.find(&key(n)).unwrap()] += 1;
        }
        let total: u32 = weights.iter().sum();
        for (count, weight) in counts.iter().zip(&weights) {
            let fair = f64::from(*weight) / f64::from(total);
            let share = f64::from(*count) / f64::from(KEYS) / fair;
            prop_assert!((0.4..1.8).contains(&share), "{} of the fair share", share);
        }
    }

    /// Any bytes are a key, and any bytes are read as a server or refused.
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let ring = Ring::new(servers(&["a", "b"]), Layout::Plain).unwrap();
        prop_assert!(ring.find(&bytes).is_some());
        if let Ok(server) = Server::parse(&bytes) {
            prop_assert!(Ring::new([server], Layout::Weighted).unwrap().find(&bytes) == Some(0));
        }
    }
}
