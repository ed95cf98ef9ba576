//! Sharding and health: what ejecting, returning and adding a server moves, shares, and when a server is
//! tried.
#![expect(clippy::unwrap_used, reason = "a test may panic, its helpers too")]
#![expect(clippy::print_stdout, reason = "figures")]
#![expect(clippy::cast_precision_loss, reason = "small numbers")]
#![expect(clippy::disallowed_methods, reason = "times are counted from the start of a test")]

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use cattlegrid_client::route::{Event, Options, Route, object_route, server_name};
use cattlegrid_client::{Ejection, Sharding};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

const ALL: [Sharding; 3] = [Sharding::Ketama, Sharding::KetamaWeighted, Sharding::Rendezvous];
const SECOND: Duration = Duration::from_secs(1);
const ONCE: Ejection = Ejection { after_failures: 1, retry: SECOND };

fn route(weights: &[u32], options: Options, now: Instant) -> Route {
    let servers =
        weights.iter().enumerate().map(|(place, weight)| (format!("10.0.0.{place}:11211"), *weight));
    Route::new(servers, options, now).unwrap()
}

fn ejecting(sharding: Sharding, ejection: Ejection) -> Options {
    Options { sharding, ejection: Some(ejection), ..Options::default() }
}

fn places(route: &Route, keys: u32) -> Vec<usize> {
    (0..keys).map(|key| route.place(format!("key:{key}").as_bytes()).unwrap()).collect()
}

const EQUAL: &str = "304003334312202100220100443234430010430221421141433040444021";
const WEIGHTED: &str = "344044334312244444244404444434430232430224424441434444444021";

/// Made by a program in Python from the text of the module.
#[test]
fn rendezvous_is_as_its_text_says() {
    let names = ["10.0.0.1:11211", "10.0.0.2", "10.0.0.3:11212", "unix:/run/a.sock", "[::1]:22122"];
    let now = Instant::now();
    let options = Options { sharding: Sharding::Rendezvous, ..Options::default() };
    for (weights, expected) in [([1; 5], EQUAL), ([1, 2, 3, 4, 10], WEIGHTED)] {
        let route = Route::new(names.into_iter().zip(weights), options, now).unwrap();
        let found = (0..60).map(|key| route.place(format!("k{key}").as_bytes()).unwrap().to_string());
        assert_eq!(found.collect::<String>(), expected);
    }
}

#[test]
fn names_of_servers() {
    for (given, name) in [
        ("a", "a"),
        ("a:11211", "a:11211"),
        ("[::1]", "::1"),
        ("[::1]:22", "::1:22"),
        ("/run/m.sock", "/run/m.sock:0"),
        ("unix:/run/m.sock", "/run/m.sock:0"),
        ("", ""),
        ("[", "["),
    ] {
        assert_eq!(server_name(given), name);
    }
    let new =
        |names: &[&str]| Route::new(names.iter().map(|name| (*name, 1)), Options::default(), Instant::now());
    assert!(new(&[]).is_err() && new(&[""]).is_err() && new(&["a", "a:11211"]).is_err());
    assert!(Route::new([("a", 0)], Options::default(), Instant::now()).is_err());
}

#[test]
fn objects_are_routed_by_type_and_key() {
    for (call, route) in [
        ("quota:addandcheck:u1:10", "quota:u1"),
        ("quota:new:u1:10:hour", "quota:u1"),
        ("quota::u1", "quota:u1"),
        ("quota:take:a%3Ab:1", "quota:a%3Ab"),
        ("quota::a:b", "quota:a%3Ab"),
        ("set:put:", "set:"),
        ("quota:list", "quota:list"),
        ("plain", "plain"),
        ("", ""),
    ] {
        assert_eq!(object_route(call.as_bytes()), Cow::Borrowed(route.as_bytes()), "{call}");
    }
}

#[test]
fn one_server_has_all_keys_and_all_ejected_is_an_error() {
    let now = Instant::now();
    for sharding in ALL {
        for count in [1, 3] {
            let route = route(&vec![1; count], ejecting(sharding, ONCE), now);
            let own = route.place(b"key").unwrap();
            assert!(!route.has_ejected());
            for place in 0..count {
                assert_eq!(route.failed(place, now), Event::Ejected);
            }
            assert_eq!((route.place(b"key"), route.own_place(b"key")), (None, own));
            assert!(route.has_ejected());
            assert_eq!(route.next_probe(now + SECOND / 4), Some(SECOND * 3 / 4));
            assert_eq!(route.next_probe(now + SECOND * 2), Some(Duration::ZERO));
        }
    }
}

#[test]
fn without_ejection_nothing_changes() {
    let now = Instant::now();
    let route = route(&[1, 1, 1], Options::default(), now);
    let before = places(&route, 100);
    assert!((0..100).all(|_| route.failed(1, now) == Event::Nothing && route.is_available(1)));
    assert_eq!(places(&route, 100), before);
    assert!(route.due(now + 1000 * SECOND).is_empty() && route.next_probe(now).is_none());
    assert_eq!(route.failed(3, now), Event::Nothing);
    assert!(!route.is_available(3));
}

#[test]
fn failures_count_in_a_row() {
    let now = Instant::now();
    let three = Ejection { after_failures: 3, ..ONCE };
    let route = route(&[1, 1], ejecting(Sharding::Ketama, three), now);
    for _ in 0..10 {
        assert_eq!([route.failed(0, now), route.failed(0, now)], [Event::Nothing; 2]);
        route.succeeded(0);
    }
    assert_eq!([route.failed(0, now), route.failed(1, now), route.failed(0, now)], [Event::Nothing; 3]);
    assert_eq!(route.failed(0, now), Event::Ejected);
    assert_eq!(route.failed(0, now), Event::Nothing, "it is ejected once");
    assert_eq!((route.is_available(0), route.is_available(1)), (false, true));
    // A reply that comes late does not bring it back.
    route.succeeded(0);
    assert!(!route.is_available(0));
}

#[test]
fn probes_come_later_and_later_up_to_ten_times() {
    let begin = Instant::now();
    let route = route(&[1, 1], ejecting(Sharding::Ketama, ONCE), begin);
    route.failed(1, begin);
    let mut now = begin;
    for seconds in [1, 2, 4, 8, 10, 10, 10] {
        assert_eq!(route.next_probe(now), Some(seconds * SECOND));
        assert!(route.due(now + (seconds * SECOND).saturating_sub(Duration::from_millis(1))).is_empty());
        now += seconds * SECOND;
        let [probe] = route.due(now)[..] else { panic!("it is due") };
        assert_eq!((probe.place, probe.flush), (1, false));
        assert!(route.due(now).is_empty(), "it is named once");
        assert_eq!(route.probed(probe, false, now), Event::Nothing);
        assert!(!route.is_available(1));
    }
    now += 10 * SECOND;
    let lost = route.due(now);
    now += 10 * SECOND;
    let [probe] = route.due(now)[..] else { panic!("a probe of which nothing was told is repeated") };
    assert_eq!((probe, route.probed(probe, true, now)), (lost[0], Event::Returned));
    assert!(route.is_available(1) && route.next_probe(now).is_none());
    assert_eq!(route.probed(probe, true, now), Event::Nothing);
    // The next ejection begins anew, and a probe of the one before does not end it.
    assert_eq!(route.failed(1, now), Event::Ejected);
    assert_eq!(route.probed(lost[0], true, now), Event::Nothing);
    assert_eq!((route.is_available(1), route.next_probe(now)), (false, Some(SECOND)));
}

#[test]
fn a_server_that_returns_is_flushed_if_that_is_wanted() {
    let now = Instant::now();
    let options = Options { flush_on_return: true, ..ejecting(Sharding::Rendezvous, ONCE) };
    let route = route(&[1, 1, 1], options, now);
    route.failed(2, now);
    route.failed(0, now + SECOND / 2);
    assert_eq!(
        route.due(now + SECOND).iter().map(|probe| (probe.place, probe.flush)).collect::<Vec<_>>(),
        [(2, true)]
    );
    assert_eq!(route.next_probe(now + SECOND), Some(SECOND / 2));
    let places: BTreeSet<usize> = route.due(now + 3 * SECOND).iter().map(|probe| probe.place).collect();
    assert_eq!(places, BTreeSet::from([0, 2]));
}

#[test]
fn extreme_settings() {
    let now = Instant::now();
    let route_of = |after_failures, retry| {
        let route = route(&[1, 1], ejecting(Sharding::Ketama, Ejection { after_failures, retry }), now);
        (route.failed(0, now), route)
    };
    let (event, route) = route_of(0, Duration::ZERO);
    assert_eq!((event, route.next_probe(now)), (Event::Ejected, Some(Duration::from_millis(1))));
    let (event, route) = route_of(1, Duration::MAX);
    assert_eq!(event, Event::Ejected);
    assert!(route.next_probe(now).unwrap() > Duration::from_secs(1 << 40));
    assert!(route.due(now + Duration::from_secs(1 << 30)).is_empty());
    assert_eq!(route_of(u32::MAX, SECOND).0, Event::Nothing);
}

#[test]
fn reports_from_many_threads_eject_once() {
    let now = Instant::now();
    let four = Ejection { after_failures: 4, ..ONCE };
    for _ in 0..200 {
        let route = route(&[1, 1], ejecting(Sharding::Ketama, four), now);
        let ejected: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| (0..2).filter(|_| route.failed(0, now) == Event::Ejected).count()))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!((ejected, route.due(now + SECOND).len()), (1, 1));
    }
}

const KEYS: u32 = 2000;

fn sharding() -> impl Strategy<Value = Sharding> {
    prop::sample::select(ALL.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(15), ..ProptestConfig::with_cases(24) })]

    /// Whatever is ejected and returns in whatever order: a key is on its own server if that is available,
    /// else on another that is, and on the same one for the same set of servers.
    #[test]
    fn only_keys_of_ejected_servers_move(
        sharding in sharding(), weights in prop::collection::vec(1_u32..4, 2..8), steps in prop::collection::vec(0_usize..8, 1..12),
    ) {
        let mut now = Instant::now();
        let route = route(&weights, ejecting(sharding, ONCE), now);
        let own = places(&route, KEYS);
        let mut out = BTreeSet::new();
        for step in steps {
            let place = step % weights.len();
            now += SECOND * 100;
            if out.remove(&place) {
                for probe in route.due(now) {
                    let event = route.probed(probe, probe.place == place, now);
                    prop_assert_eq!(event, if probe.place == place { Event::Returned } else { Event::Nothing });
                }
            } else if out.len() + 1 < weights.len() {
                prop_assert_eq!(route.failed(place, now), Event::Ejected);
                out.insert(place);
            }
            for (own, place) in own.iter().zip(places(&route, KEYS)) {
                prop_assert!(!out.contains(&place));
                prop_assert!(out.contains(own) || place == *own);
            }
        }
    }

    /// The keys of an ejected server go where they were if it did not exist.
    #[test]
    fn ejected_is_as_absent(sharding in sharding(), count in 2_usize..8) {
        let now = Instant::now();
        let all = route(&vec![1; count], ejecting(sharding, ONCE), now);
        let fewer = route(&vec![1; count - 1], ejecting(sharding, ONCE), now);
        all.failed(count - 1, now);
        prop_assert_eq!(places(&all, KEYS), places(&fewer, KEYS));
    }

    /// A server that is added takes keys and nothing else moves; with rendezvous whatever the weights are.
    #[test]
    fn adding_moves_only_what_the_new_server_takes(sharding in sharding(), mut weights in prop::collection::vec(1_u32..6, 2..8)) {
        if sharding != Sharding::Rendezvous {
            weights.fill(1);
        }
        let now = Instant::now();
        let new = weights.len() - 1;
        let options = Options { sharding, ..Options::default() };
        let before = places(&route(&weights[..new], options, now), KEYS);
        let after = places(&route(&weights, options, now), KEYS);
        prop_assert!(before.iter().zip(&after).all(|(before, after)| after == before || *after == new));
        prop_assert!(after.contains(&new));
    }

    /// Rendezvous: shares are those of the weights, within 5 per cent and the spread of chance (4 standard
    /// deviations).
    #[test]
    fn shares_follow_weights(weights in prop::collection::vec(1_u32..6, 2..8)) {
        let now = Instant::now();
        let options = Options { sharding: Sharding::Rendezvous, ..Options::default() };
        let found = places(&route(&weights, options, now), 20_000);
        let total: u32 = weights.iter().sum();
        for (place, weight) in weights.iter().enumerate() {
            let fair = 20_000.0 * f64::from(*weight) / f64::from(total);
            let count = found.iter().filter(|found| **found == place).count() as f64;
            prop_assert!((count - fair).abs() < 0.05 * fair + 4.0 * fair.sqrt(), "{} instead of {}", count, fair);
        }
    }

    /// A change of one weight moves keys to that server only, or from it only.
    #[test]
    fn a_weight_that_grows_moves_keys_one_way(weights in prop::collection::vec(1_u32..6, 2..8), place in 0_usize..8) {
        let place = place % weights.len();
        let now = Instant::now();
        let options = Options { sharding: Sharding::Rendezvous, ..Options::default() };
        let mut more = weights.clone();
        more[place] += 2;
        let before = places(&route(&weights, options, now), KEYS);
        let after = places(&route(&more, options, now), KEYS);
        prop_assert!(before.iter().zip(&after).all(|(before, after)| after == before || *after == place));
    }

    #[test]
    fn any_bytes_have_a_route(sharding in sharding(), call in prop::collection::vec(any::<u8>(), 0..300)) {
        let now = Instant::now();
        let route = route(&[1, 2, 3], Options { sharding, ..Options::default() }, now);
        prop_assert!(route.place(&object_route(&call)).unwrap() < 3);
    }
}

/// By hand: `cargo nextest run --release -p cattlegrid-client --run-ignored only --no-capture route::`.
#[test]
#[ignore = "a measurement"]
fn time_of_a_search() {
    for sharding in ALL {
        for weights in [&[1][..], &[1; 5], &[1, 2, 3, 4, 5]] {
            let now = Instant::now();
            let route = route(weights, Options { sharding, ..Options::default() }, now);
            let keys: Vec<String> = (0..1000).map(|key| format!("user:{key}:profile:0123")).collect();
            let begin = Instant::now();
            let mut sum = 0;
            for _ in 0..2000 {
                for key in &keys {
                    sum += route.place(key.as_bytes()).unwrap();
                    route.succeeded(0);
                }
            }
            let counts = (0..weights.len()).map(|server| {
                (0..100_000).filter(|key| route.place(format!("{key}").as_bytes()) == Some(server)).count()
            });
            let counts: Vec<usize> = counts.collect();
            println!(
                "{sharding:?} {weights:?}: {:?} a key; shares {counts:?} ({sum})",
                begin.elapsed() / 2_000_000
            );
        }
    }
}
