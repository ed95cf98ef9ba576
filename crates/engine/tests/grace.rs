//! For how long an old value is served, and when it is refreshed: after its expiry, a soft invalidation, a
//! touch.

use crate::world;

use cattlegrid_herd::{Early, LeaseTime, Owner, Policy};
use world::World;

/// A value may be served for 5 s after its end. No get is held; the first client that misses has the lease
/// for a minute.
fn graced() -> Policy {
    Policy {
        grace_s: 5,
        hold_ms: 0,
        lease: LeaseTime::Fixed(60_000),
        owner: Owner::Connection,
        ..Policy::default()
    }
}

const VALUE: &str = "VALUE page:1 0 3|old|END|";

/// A world, a connection that stores and invalidates, and a reader.
fn world() -> (World, u64, u64) {
    let mut w = World::new(&[("page:{id}", graced())]);
    let [writer, reader] = [(); 2].map(|()| w.connect());
    (w, writer, reader)
}

/// Seconds, up to 100, after which a reader without the lease first gets no old value.
fn served_for(w: &mut World, reader: u64) -> u64 {
    let holder = w.connect();
    w.expect(holder, "get page:1|", "END|");
    for second in 0..100 {
        if w.ask(reader, "get page:1|") != VALUE {
            return second;
        }
        w.pass(1000);
    }
    100
}

#[test]
fn a_soft_invalidation_is_served_for_the_grace_whatever_the_expiry() {
    for invalidate in ["md page:1 I|", "md page:1 G I|", "md page G I|"] {
        for exptime in [0, 60, 100_000] {
            let (mut w, writer, reader) = world();
            w.expect(writer, &format!("set page:1 0 {exptime} 3|old|"), "STORED|");
            w.pass(20_000);
            w.expect(writer, invalidate, "HD|");
            assert_eq!(served_for(&mut w, reader), 5, "{invalidate} {exptime}");
        }
    }
}

#[test]
fn a_soft_invalidation_does_not_prolong_a_value_that_ends_sooner() {
    for invalidate in ["md page:1 I|", "md page:1 G I|"] {
        let (mut w, writer, reader) = world();
        w.expect(writer, "set page:1 0 10 3|old|", "STORED|");
        w.pass(13_000);
        w.expect(writer, invalidate, "HD|");
        assert_eq!(served_for(&mut w, reader), 2, "{invalidate}");
    }
}

#[test]
fn soft_invalidations_again_and_again_do_not_prolong_the_grace() {
    for (invalidate, least) in [("md page:1 I|", 5), ("md page:1 G I|", 5), ("md page G I|", 5)] {
        let (mut w, writer, reader) = world();
        w.expect(writer, "set page:1 0 0 3|old|", "STORED|");
        // The key is not read meanwhile.
        for _ in 0..12 {
            w.ask(writer, invalidate);
            w.pass(1000);
        }
        assert_eq!(w.ask(reader, "get page:1|"), "END|", "{invalidate}, {least}");
        let (mut w, writer, reader) = world();
        w.expect(writer, "set page:1 0 0 3|old|", "STORED|");
        w.expect(writer, invalidate, "HD|");
        let holder = w.connect();
        w.expect(holder, "get page:1|", "END|");
        let mut served = 0;
        for _ in 0..12 {
            served += u64::from(w.ask(reader, "get page:1|") == VALUE);
            w.ask(writer, invalidate);
            // The holder's lease is revoked: another client computes each time.
            w.ask(holder, "get page:1|");
            w.pass(1000);
        }
        assert!(served <= least, "{invalidate}: {served}");
    }
}

#[test]
fn a_second_soft_invalidation_brings_nothing_back() {
    for invalidate in ["md page:1 I|", "md page:1 G I|"] {
        let (mut w, writer, reader) = world();
        w.expect(writer, "set page:1 0 0 3|old|", "STORED|");
        w.expect(writer, invalidate, "HD|");
        w.pass(7000);
        w.ask(writer, invalidate);
        assert_eq!(served_for(&mut w, reader), 0, "{invalidate}");
    }
}

#[test]
fn the_time_that_md_gives_bounds_the_grace() {
    for (exptime, served) in [(2, 2), (30, 5), (0, 5)] {
        let (mut w, writer, reader) = world();
        w.expect(writer, "set page:1 0 60 3|old|", "STORED|");
        w.expect(writer, &format!("md page:1 I T{exptime}|"), "HD|");
        assert_eq!(served_for(&mut w, reader), served, "{exptime}");
    }
}

#[test]
fn a_rolling_flush_is_served_for_the_grace() {
    let (mut w, writer, reader) = world();
    w.expect(writer, "set page:1 0 0 3|old|", "STORED|");
    assert!(w.ask(writer, "get @flush:600|").starts_with("VALUE"));
    // Its time comes at some moment within ten minutes.
    while w.ask(reader, "get page:1|") == VALUE {
        w.pass(1000);
    }
    let served = (0..60).take_while(|_| {
        w.pass(1000);
        w.ask(writer, "get page:1|") == VALUE
    });
    let served = served.count();
    assert!((3..=5).contains(&served), "{served}");
}

#[test]
fn a_fill_that_is_stale_on_arrival_is_served_for_the_grace_from_its_miss() {
    for invalidate in ["md page:1 I|", "md page:1 G I|", "md page G I|"] {
        for exptime in [0, 60] {
            let (mut w, writer, reader) = world();
            let filler = w.connect();
            w.expect(filler, "get page:1|", "END|");
            w.pass(2000);
            w.ask(writer, invalidate);
            w.expect(filler, &format!("set page:1 0 {exptime} 3|old|"), "STORED|");
            assert_eq!(w.count("fills_stale"), 1);
            assert_eq!(served_for(&mut w, reader), 3, "{invalidate} {exptime}");
        }
    }
}

#[test]
fn without_grace_a_soft_invalidation_is_a_miss() {
    let mut w = World::new(&[("page:{id}", Policy { grace_s: 0, ..graced() })]);
    let [writer, reader] = [(); 2].map(|()| w.connect());
    w.expect(writer, "set page:1 0 0 3|old|", "STORED|");
    w.expect(writer, "md page:1 I|", "HD|");
    assert_eq!(served_for(&mut w, reader), 0);
    // A client that asks for the lease by name does not get it either.
    w.expect(reader, "mg page:1 v N30|", "VA 0 Z||");
    w.pass(61_000);
    w.expect(reader, "mg page:1 v N30|", "VA 0 W||");
}

#[test]
fn grace_is_that_of_the_rule_under_which_a_value_was_stored() {
    let (mut w, writer, reader) = world();
    w.expect(writer, "set page:1 0 10 3|old|", "STORED|");
    w.set_rules(&[("page:{id}", Policy { grace_s: 1000, ..graced() })]);
    w.pass(10_000);
    assert_eq!(served_for(&mut w, reader), 5);
    // A value that was stored before there was a rule.
    let (mut w, writer, reader) = world();
    w.set_rules(&[]);
    w.expect(writer, "set page:1 0 10 3|old|set page:2 0 0 3|old|", "STORED|STORED|");
    w.set_rules(&[("page:{id}", graced())]);
    w.expect(writer, "md page:2 I|", "HD|");
    let holder = w.connect();
    w.expect(holder, "get page:2|", "END|");
    w.expect(reader, "get page:2|", "END|");
    w.pass(10_000);
    assert_eq!(served_for(&mut w, reader), 0);
}

#[test]
fn grace_moves_with_the_expiry() {
    let touches: [fn(u64) -> String; 3] = [
        |exptime| format!("touch page:1 {exptime}|"),
        |exptime| format!("gat {exptime} page:1|"),
        |exptime| format!("mg page:1 T{exptime}|"),
    ];
    for touch in touches {
        for (stored, touched, ends) in [(3600, 10, 15), (10, 60, 65), (0, 10, 15), (10, 0, 100)] {
            let (mut w, writer, reader) = world();
            w.expect(writer, &format!("set page:1 0 {stored} 3|old|"), "STORED|");
            w.pass(1000);
            let touch = touch(touched);
            let reply = w.ask(writer, &touch);
            assert!(["TOUCHED|", VALUE, "HD|"].contains(&&*reply), "{touch}: {reply}");
            let fresh = if touched == 0 { 80 } else { touched };
            w.pass(fresh * 1000 - 1000);
            w.expect(reader, "get page:1|", VALUE);
            w.pass(1000);
            if touched == 0 {
                w.expect(reader, "get page:1|", VALUE);
            } else {
                assert_eq!(fresh + served_for(&mut w, reader), ends, "{touch} {stored} {touched}");
            }
        }
    }
}

#[test]
fn a_refresh_moves_with_the_expiry() {
    let policy = Policy { early: Early::Auto, grace_s: 0, lease: LeaseTime::Fixed(2000), ..graced() };
    for touch in ["touch page:1 400|", "gat 400 page:1|"] {
        let mut w = World::new(&[("page:{id}", policy)]);
        let [a, b] = [(); 2].map(|()| w.connect());
        // Computations take 2 s: the refresh is due 2 to 4 s before the expiry.
        for n in 2..5 {
            w.expect(a, &format!("get page:{n}|"), "END|");
            w.pass(1900);
            w.expect(a, &format!("set page:{n} 0 60 3|old|"), "STORED|");
        }
        w.expect(a, "set page:1 0 60 3|old|", "STORED|");
        w.pass(50_000);
        w.ask(b, touch);
        w.pass(30_000);
        w.expect(b, "get page:1|", VALUE);
        assert_eq!(w.count("leases_early"), 0, "{touch}: it lives for 370 s more");
        w.pass(368_000);
        w.expect(b, "get page:1|", "END|");
        w.expect(a, "get page:1|", VALUE);
        assert_eq!(w.count("leases_early"), 1, "{touch}: one refreshes it");
    }
}

#[test]
fn a_stale_value_is_not_touched() {
    let (mut w, writer, reader) = world();
    w.expect(writer, "set page:1 0 10 3|old|", "STORED|");
    w.pass(10_000);
    let holder = w.connect();
    w.expect(holder, "get page:1|", "END|");
    w.expect(reader, "touch page:1 100|", "NOT_FOUND|");
    w.expect(reader, "gat 100 page:1|", VALUE);
    w.expect(reader, "mg page:1 T100|", "HD Z X|");
    w.pass(5000);
    w.expect(reader, "get page:1|", "END|");
}

/// `ms` with `I` and an older CAS: the newer value is marked stale, and the value of the command, which may
/// be from before a delete, is not served.
#[test]
fn a_value_for_an_older_cas_marks_the_newer_one() {
    for explicit in ["", " E900000000"] {
        let (mut w, writer, reader) = world();
        let stored = w.ask(writer, "ms page:1 3 c|odd|");
        let older = stored.trim_end_matches('|').rsplit('c').next().map(str::to_owned).unwrap_or_default();
        w.expect(writer, "delete page:1|set page:1 0 60 3|old|", "DELETED|STORED|");
        w.expect(writer, &format!("ms page:1 3 C{older} I s k{explicit}|odd|"), "HD s3 kpage:1|");
        assert_eq!(served_for(&mut w, reader), 5, "for its grace from then on");
        w.expect(reader, "get page:1|", "END|");
        w.expect(reader, "mg page:1 v N30|", "VA 0 Z||");
    }
    // Without a grace it is a miss.
    let mut w = World::new(&[("page:{id}", Policy { grace_s: 0, ..graced() })]);
    let [writer, reader] = [(); 2].map(|()| w.connect());
    w.expect(writer, "set other 0 0 1|x|set page:1 0 60 3|old|", "STORED|STORED|");
    w.expect(writer, "ms page:1 3 C1 I|odd|get page:1|", "HD|END|");
    w.expect(reader, "mg page:1 v N30|", "VA 0 Z||");
}

/// `@why:` says what is left of the grace: all of it until the value expires.
#[test]
fn why_shows_the_grace_that_is_left() {
    let graces = |w: &mut World, key: &str| {
        let c = w.connect();
        let said = w.ask(c, &format!("get @why:{key}|"));
        let why: serde_json::Value = serde_json::from_str(said.split('|').nth(1).unwrap()).unwrap();
        ["ttl", "grace", "grace_on_error"].map(|name| why["item"][name].as_u64())
    };
    let policy = Policy { leases: true, hold_ms: 0, grace_s: 30, ..Policy::default() };
    let mut w = World::new(&[
        ("page:{id}", policy),
        ("long:{id}", Policy { grace_on_error_s: 3600, ..policy }),
        ("none:{id}", Policy { grace_s: 0, ..policy }),
    ]);
    let a = w.connect();
    for key in ["page:1", "long:1", "none:1"] {
        w.expect(a, &format!("set {key} 0 60 1|1|"), "STORED|");
    }
    w.expect(a, "set page:2 0 0 1|1|set page:3 0 60 1|1|incr page:3 1|", "STORED|STORED|2|");
    assert_eq!(graces(&mut w, "page:1"), [Some(60), Some(30), None]);
    assert_eq!(graces(&mut w, "long:1"), [Some(60), Some(30), Some(3600)]);
    assert_eq!(graces(&mut w, "none:1"), [Some(60), None, None]);
    assert_eq!(graces(&mut w, "page:2"), [None, Some(30), None], "it can be invalidated softly");
    assert_eq!(graces(&mut w, "page:3"), [Some(60), None, None], "it was changed in place");
    w.pass(70_000);
    assert_eq!(graces(&mut w, "page:1"), [Some(0), Some(20), None]);
    assert_eq!(graces(&mut w, "long:1"), [Some(0), Some(20), Some(3590)]);
    w.pass(30_000);
    assert_eq!(graces(&mut w, "long:1"), [Some(0), Some(0), Some(3560)]);
}
