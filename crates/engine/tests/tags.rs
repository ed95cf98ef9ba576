//! Invalidation by name, as clients see it, on a simulated clock.

#![expect(clippy::unwrap_used, reason = "a test")]

use crate::world;

use cattlegrid_engine::rules::{Change, Rules};
use cattlegrid_herd::{Ambiguous, LeaseTime, Owner, Policy};
use cattlegrid_protocol::{Limits, Parsed, parse};
use world::{World, cascade, rule};

fn tags_only() -> Policy {
    Policy { leases: false, hold_ms: 0, ..Policy::default() }
}

fn leased() -> Policy {
    Policy { lease: LeaseTime::Fixed(3000), owner: Owner::Connection, ..Policy::default() }
}

/// Keys of a shop: the pages that a user looked at, the user's basket, and pages of products.
fn shop() -> World {
    World::under(Rules::new(
        vec![
            rule(1, "prodLastWatched:{user}:{product}", tags_only(), &["user:{user}", "product:{product}"]),
            rule(2, "shoppingbasket:{user}", tags_only(), &["user:{user}"]),
            rule(3, "page:{id}", Policy { grace_s: 30, ..leased() }, &["page:{id}"]),
            rule(4, "fresh:{id}", leased(), &["fresh:{id}"]),
        ],
        vec![
            cascade(&[Change::Delete, Change::Set], "user:{u}", "user:{u}"),
            cascade(&[Change::Incr], "ns:{n}", "ns:{n}"),
            cascade(&[Change::Touch], "touched:{n}", "ns:{n}"),
        ],
    ))
}

#[test]
fn tags_of_a_user_and_of_a_product() {
    let mut w = shop();
    let c = w.connect();
    for product in [11, 12, 13, 54_929_873] {
        w.expect(c, &format!("set prodLastWatched:12543:{product} 0 0 1|x|"), "STORED|");
    }
    w.expect(c, "set shoppingbasket:12543 0 0 1|x|set shoppingbasket:7 0 0 1|x|", "STORED|STORED|");
    w.expect(c, "set prodLastWatched:7:54929873 0 0 1|x|set prodLastWatched:7:11 0 0 1|x|", "STORED|STORED|");
    w.expect(c, "delete @tag:user:12543|", "DELETED|");
    w.expect(c, "get prodLastWatched:12543:11 prodLastWatched:12543:54929873 shoppingbasket:12543|", "END|");
    let left = "VALUE prodLastWatched:7:54929873 0 1|x|VALUE prodLastWatched:7:11 0 1|x|END|";
    w.expect(c, "get prodLastWatched:7:54929873 prodLastWatched:7:11|", left);
    w.expect(c, "delete @tag:product:54929873 noreply|", "");
    w.expect(
        c,
        "get prodLastWatched:7:54929873 prodLastWatched:7:11 shoppingbasket:7|",
        "VALUE prodLastWatched:7:11 0 1|x|VALUE shoppingbasket:7 0 1|x|END|",
    );
    w.expect(c, "incr prodLastWatched:7:54929873 1|", "NOT_FOUND|");
    w.expect(c, "set prodLastWatched:7:54929873 0 0 1|y|", "STORED|");
    w.expect(c, "get prodLastWatched:7:54929873|", "VALUE prodLastWatched:7:54929873 0 1|y|END|");
}

#[test]
fn a_value_computed_before_a_bump_is_not_served_after_it() {
    let mut w = shop();
    let [a, b, c] = [(); 3].map(|()| w.connect());
    w.expect(a, "get fresh:1|", "END|");
    w.expect(b, "get fresh:1|", "");
    w.expect(c, "delete @tag:fresh:1|", "DELETED|");
    w.pass(10);
    assert_eq!(w.replies(b), "END|", "one new lease");
    w.expect(a, "set fresh:1 0 0 3|old|", "STORED|");
    w.expect(c, "get fresh:1|", "");
    w.expect(b, "set fresh:1 0 0 3|new|", "STORED|");
    assert_eq!(w.replies(c), "VALUE fresh:1 0 3|new|END|");
    // The same without a lease, and with only a tag.
    w.expect(a, "get shoppingbasket:1|", "END|");
    w.expect(c, "delete @tag:user:1|", "DELETED|");
    w.expect(a, "set shoppingbasket:1 0 0 3|old|", "STORED|");
    w.expect(b, "get shoppingbasket:1|", "END|");
}

#[test]
fn a_soft_bump_leaves_the_old_value_to_all_but_one() {
    let mut w = shop();
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "set page:1 0 0 3|old|set fresh:1 0 0 3|old|", "STORED|STORED|");
    w.expect(a, "md page:1 G I|md fresh:1 G I q|", "HD|");
    w.expect(a, "get page:1|", "END|");
    w.expect(b, "get page:1|", "VALUE page:1 0 3|old|END|");
    w.expect(b, "gets fresh:1|", "END|");
    w.expect(a, "set page:1 0 0 3|new|", "STORED|");
    w.expect(b, "get page:1|", "VALUE page:1 0 3|new|END|");
    w.expect(a, "md page:1 G I|md page:1 G|", "HD|HD|");
    w.expect(b, "get page:1|", "END|");
    // A later soft bump does not soften an earlier hard one.
    w.expect(a, "set page:2 0 0 3|old|md page:2 G|md page:2 G I|", "STORED|HD|HD|");
    w.expect(b, "get page:2|", "END|");
    // The CAS of a softly invalidated item is no longer valid.
    let cas = w.ask(b, "set page:3 0 0 1|x|gets page:3|");
    let cas = cas.split(['|', ' ']).nth(5).unwrap().to_owned();
    w.expect(a, "md page:3 G I|", "HD|");
    w.expect(b, &format!("cas page:3 0 0 1 {cas}|y|"), "EXISTS|");
}

#[test]
fn tags_that_a_client_names() {
    let mut w = shop();
    let c = w.connect();
    w.expect(c, "ms free 1 Gcolour:red,a%2Cb|x|ms page:9 1 Gcolour:red|y|", "HD|HD|");
    w.expect(c, "mg free v|", "VA 1|x|");
    w.expect(c, "append free 0 0 1|z|mg free v|", "STORED|VA 2|xz|");
    w.expect(c, "md a,b G|mg free v|", "HD|EN|");
    w.expect(c, "get page:9|", "VALUE page:9 0 1|y|END|");
    let number: u64 = w.ask(c, "ma colour:red G v|").split('|').nth(1).unwrap().parse().unwrap();
    w.expect(c, "get page:9|", "END|");
    let shown = w.ask(c, "mg colour:red G v|");
    assert!(shown.split('|').nth(1).unwrap().starts_with(&format!("{number} 0 ")), "{shown}");
}

#[test]
fn a_get_sent_after_a_bump_does_not_get_a_value_computed_before_it() {
    let policy = Policy { owner: Owner::Key, ..leased() };
    let fills = [
        "ms h:1 3 T60 Gcolour|old|",
        "ms h:1 3 T-1 Gcolour|old|",
        "ms h:1 3 T0 Gshape,colour|old|",
        "ms h:1 3 ME Gcolour|old|",
        "ms h:1 3 T60 Gcolour CTOKEN|old|",
        "ms h:1 3 T-1 Gcolour CTOKEN|old|",
    ];
    for soft in ["", " I"] {
        for fill in fills {
            for waits in ["get h:1|", "mg h:1 v|", "mg h:1 v c N30 Pw400|", "gat 60 h:1|"] {
                let mut w = World::under(Rules::new(vec![rule(1, "h:{id}", policy, &[])], Vec::new()));
                let [a, b, c, writer] = [(); 4].map(|()| w.connect());
                let scene = format!("{soft} {fill} {waits}");
                let won = w.ask(a, if fill.contains("TOKEN") { "mg h:1 c N30|" } else { "get h:1|" });
                let fill = fill.replace("TOKEN", won.split(['c', ' ']).nth(2).unwrap_or_default());
                w.expect(b, waits, "");
                w.expect(writer, &format!("md colour G{soft}|"), "HD|");
                w.expect(c, waits, "");
                let said = w.ask(a, &fill);
                let (before, after) = (w.replies(b), w.replies(c));
                assert!(!after.contains("old"), "{scene}: {said} {after}");
                // Before a soft bump the old value is allowed.
                assert_eq!(before.contains("old"), soft == " I", "{scene}: {said} {before}");
                let later = w.connect();
                assert!(!w.ask(later, "get h:1|").contains("old"), "{scene}");
            }
        }
    }
}

#[test]
fn gets_of_a_control_key_has_a_cas_to_read() {
    let mut w = shop();
    let c = w.connect();
    w.expect(c, "gets @tag:x|", "VALUE @tag:x 0 12 0|0 0 0.000000|END|");
}

#[test]
fn bad_tags_and_control_keys_change_nothing() {
    let mut w = shop();
    let c = w.connect();
    let many = (0..9).map(|n| format!("t{n}")).collect::<Vec<_>>().join(",");
    let long = "x".repeat(201);
    for (flag, error) in [
        (many.as_str(), "CLIENT_ERROR invalid tag: an item has at most 8|"),
        ("a,,b", "CLIENT_ERROR invalid tag: it is empty|"),
        ("a%20", "CLIENT_ERROR invalid tag: write a comma as %2C and a per cent sign as %25|"),
        (long.as_str(), "CLIENT_ERROR invalid tag: it is longer than 200 bytes|"),
    ] {
        w.expect(c, &format!("ms free 1 G{flag}|x|"), error);
        w.expect(c, "mg free v|", "EN|");
    }
    // Together with the tags of the rule.
    let eight = (0..8).map(|n| format!("t{n}")).collect::<Vec<_>>().join(",");
    w.expect(c, &format!("ms free 1 G{eight}|x|"), "HD|");
    let error = "CLIENT_ERROR invalid tag: an item has at most 8|";
    w.expect(c, &format!("ms page:1 1 G{eight}|x|"), error);
    let unknown = "CLIENT_ERROR unknown control key|";
    for command in [
        "get @nothing|",
        "set @tag:x 0 0 1|x|",
        "delete @bump:x|",
        "incr @tag:x 2|",
        "decr @tag:x 1|",
        "touch @tag:x 0|",
        "get page:1 @what:x|",
        "get @why:|",
        "mg @nothing v|",
        "mg @why: v|",
        "md @bump:x|",
        "md @nothing q|",
        "ma @bump:x|",
        "ma @tag:x MD|",
        "ma @tag:x D2 v|",
        "ms @tag:x 1|x|",
    ] {
        w.expect(c, command, unknown);
    }
    w.expect(c, "delete @tag:|", "CLIENT_ERROR invalid tag: it is empty|");
    w.expect(c, "get @bump:|", "CLIENT_ERROR invalid tag: it is empty|");
    w.expect(c, "mg @bump: v|md @tag: q|", &"CLIENT_ERROR invalid tag: it is empty|".repeat(2));
    w.expect(c, "mg @flush:0 v|", "CLIENT_ERROR flush: seconds must be 1 to 86400|");
    for seconds in ["", "0", "x", "86401", "-1"] {
        let error = "CLIENT_ERROR flush: seconds must be 1 to 86400|";
        w.expect(c, &format!("get @flush:{seconds}|"), error);
    }
    assert_eq!(w.engine.shared().tags().bumps().last_bump(), 0);
}

#[test]
fn rules_with_tags_take_no_memory_before_the_first_bump() {
    let rules = Rules::new(vec![rule(1, "basket:{user}", tags_only(), &["user:{user}"])], Vec::new());
    let mut w = World::under(rules);
    let c = w.connect();
    let (before, limit) = (w.engine.memory().limit_bytes(), w.engine.limit_bytes());
    w.expect(c, "set basket:1 0 0 1|x|ms basket:2 1 Gred|x|get @tag:user:1|", &{
        let none = "VALUE @tag:user:1 0 12|0 0 0.000000|END|";
        format!("STORED|HD|{none}")
    });
    assert_eq!(w.engine.memory().limit_bytes(), before);
    for _ in 0..2 {
        w.expect(c, "delete @tag:user:1|get basket:1|", "DELETED|END|");
        assert_eq!(before - w.engine.memory().limit_bytes(), 1 << 20, "once");
    }
    assert_eq!(w.engine.limit_bytes(), limit, "it is a part of the limit");
}

#[test]
fn control_keys_in_a_get() {
    let mut w = shop();
    let c = w.connect();
    w.expect(
        c,
        "set shoppingbasket:1 0 0 1|x|set shoppingbasket:2 0 0 1|y|set z 0 0 1|z|",
        "STORED|STORED|STORED|",
    );
    let got = w.ask(c, "get @bump:user:1 z @bump:user:2|");
    let lines: Vec<&str> = got.split('|').collect();
    assert!(lines[0].starts_with("VALUE @bump:user:1 0 "), "{got}");
    assert_eq!(lines[2..4], ["VALUE z 0 1", "z"], "{got}");
    let (one, two): (u64, u64) = (lines[1].parse().unwrap(), lines[5].parse().unwrap());
    assert!(two > one);
    w.expect(c, "get shoppingbasket:1 shoppingbasket:2|", "END|");
    let got = w.ask(c, "get @tag:user:1|");
    assert!(got.split('|').nth(1).unwrap().starts_with(&format!("{one} 0 0.")), "{got}");
    let number: u64 = w.ask(c, "incr @tag:user:1 1|").trim_end_matches('|').parse().unwrap();
    assert!(number > two);
}

#[test]
fn control_keys_by_meta_commands() {
    let mut w = shop();
    let c = w.connect();
    let fill = |w: &mut World| {
        w.expect(c, "set shoppingbasket:1 0 0 1|x|", "STORED|");
        w.expect(c, "mg shoppingbasket:1 v|", "VA 1|x|");
    };
    let gone = |w: &mut World| w.expect(c, "mg shoppingbasket:1|", "EN|");
    let last = |w: &mut World| -> u64 {
        let shown = w.ask(c, "mg @tag:user:1 v|");
        shown.split(['|', ' ']).nth(2).unwrap().parse().unwrap()
    };
    for (line, reply) in [
        ("md @tag:user:1|", "HD|"),
        ("md @tag:user:1 q|", ""),
        ("md @tag:user:1 k Oab|", "HD k@tag:user:1 Oab|"),
        // `@tag:user:1` and `@bump:user:1`.
        ("md QHRhZzp1c2VyOjE= b k|", "HD kQHRhZzp1c2VyOjE= b|"),
        ("mg QGJ1bXA6dXNlcjox b|", "HD|"),
        ("mg @bump:user:1|", "HD|"),
        ("mg @bump:user:1 q Ox|", "HD Ox|"),
        ("ma @tag:user:1|", "HD|"),
        ("ma @tag:user:1 D1 MI Ox|", "HD Ox|"),
        ("ma @tag:user:1 q|", ""),
        ("md @tag:user:1 I|", "HD|"),
    ] {
        fill(&mut w);
        let before = last(&mut w);
        w.expect(c, line, reply);
        assert!(last(&mut w) > before, "{line}");
        gone(&mut w);
    }
    fill(&mut w);
    // Each shows the number that it has taken.
    for line in ["ma @tag:user:1 v|", "mg @bump:user:1 v|", "ma user:1 G v|"] {
        let shown = w.ask(c, line);
        assert_eq!(shown.split('|').nth(1).unwrap().parse(), Ok(last(&mut w)), "{shown}");
    }
    let shown = w.ask(c, "mg @tag:user:1 s f c t l h k Oab v|");
    let text = shown.split('|').nth(1).unwrap();
    let len = text.len();
    assert_eq!(shown, format!("VA {len} s{len} f0 c0 t-1 l0 h0 k@tag:user:1 Oab|{text}|"));
    // The same as by `get`.
    let (meta, classic) = (w.ask(c, "mg @why:page:1 v k|"), w.ask(c, "get @why:page:1|"));
    let json = classic.split('|').nth(1).unwrap();
    assert_eq!(meta, format!("VA {} k@why:page:1|{json}|", json.len()));
    let number = w.ask(c, "mg @flush:60 v|");
    let number: u64 = number.split('|').nth(1).unwrap().parse().unwrap();
    assert_eq!(
        w.engine.shared().tags().floors().rolling().map(|floor| floor.number).collect::<Vec<_>>(),
        [number]
    );
}

/// A get with a control key does not wait; a key that another client computes is a miss, and its fill counts
/// as of this miss.
#[test]
fn a_get_with_a_control_key_is_answered_at_once() {
    let mut w = shop();
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "get page:9|", "END|");
    let got = w.ask(b, "get @tag:x page:9|");
    assert!(got.starts_with("VALUE @tag:x 0 ") && got.ends_with("|END|"), "{got}");
    w.expect(a, "delete page:9|", "NOT_FOUND|");
    w.expect(b, "set page:9 0 0 3|old|", "STORED|");
    w.expect(a, "get page:9|", "END|");
}

#[test]
fn a_change_of_one_key_invalidates_others() {
    let mut w = shop();
    let c = w.connect();
    let fill = |w: &mut World| {
        w.ask(c, "set shoppingbasket:5 0 0 1|x|ms n 1 Gns:1|x|");
        w.expect(c, "get shoppingbasket:5 n|", "VALUE shoppingbasket:5 0 1|x|VALUE n 0 1|x|END|");
    };
    fill(&mut w);
    w.expect(c, "delete user:5|get shoppingbasket:5|", "NOT_FOUND|END|");
    fill(&mut w);
    w.expect(c, "set user:5 0 0 1|x|get shoppingbasket:5|", "STORED|END|");
    fill(&mut w);
    w.expect(c, "add user:5 0 0 1|x|", "NOT_STORED|");
    w.expect(c, "get shoppingbasket:5|", "VALUE shoppingbasket:5 0 1|x|END|");
    w.expect(c, "set ns:1 0 0 1|1|", "STORED|");
    w.expect(c, "get n|incr ns:1 1|get n|", "VALUE n 0 1|x|END|2|END|");
    fill(&mut w);
    w.expect(c, "touch touched:1 0|get n|", "NOT_FOUND|VALUE n 0 1|x|END|");
    w.expect(c, "set touched:1 0 0 1|x|touch touched:1 0|get n|", "STORED|TOUCHED|END|");
}

#[test]
fn a_rolling_flush_spreads_over_its_period() {
    let mut w = shop();
    let c = w.connect();
    let keys: Vec<String> = (0..2000)
        .map(|n| if n % 2 == 0 { format!("plain:{n}") } else { format!("shoppingbasket:{n}") })
        .collect();
    for key in &keys {
        w.expect(c, &format!("set {key} 0 0 1|x|"), "STORED|");
    }
    w.ask(c, "get @flush:60|");
    let served = |w: &mut World| {
        keys.iter().filter(|key| w.ask(c, &format!("get {key}|")).starts_with("VALUE")).count()
    };
    assert_eq!(served(&mut w), 2000);
    w.pass(30_000);
    let half = served(&mut w);
    assert!((900..=1100).contains(&half), "{half}");
    w.expect(c, "set plain:0 0 0 1|y|", "STORED|");
    w.expect(c, "set shoppingbasket:1 0 0 1|y|", "STORED|");
    w.pass(30_000);
    assert_eq!(served(&mut w), 2, "what was stored since");
    w.expect(c, "delete @tag:user:1|get shoppingbasket:1 plain:0|", "DELETED|VALUE plain:0 0 1|y|END|");
    w.flush();
    w.expect(c, "get plain:0|", "END|");
}

/// The hash of a key.
fn hash_of(w: &World, key: &str) -> u64 {
    let line = format!("touch {key} 0\r\n");
    let Parsed::Complete { request, .. } = parse(line.as_bytes(), &Limits::default()) else { unreachable!() };
    w.engine.hash(&request).unwrap()
}

/// For ten keys that are computed and waited for, `begin` begins to invalidate them over two seconds, each at
/// a moment of its own, which `moment` gives. When each waiter was answered, in milliseconds after the moment
/// of its key.
fn promoted_after(
    pattern: &str,
    begin: impl Fn(&mut World),
    moment: impl Fn(&World, u64) -> u64,
) -> Vec<u64> {
    let policy = Policy { lease: LeaseTime::Fixed(20_000), hold_ms: 20_000, ..leased() };
    let mut w = World::under(Rules::new(vec![rule(1, pattern, policy, &["shelf"])], Vec::new()));
    let keys: Vec<String> = (0..10).map(|n| pattern.replace("{id}", &n.to_string())).collect();
    let [holder, late, writer] = [(); 3].map(|()| w.connect());
    let waiters: Vec<u64> = keys.iter().map(|_| w.connect()).collect();
    for (key, waiter) in keys.iter().zip(&waiters) {
        w.expect(holder, &format!("get {key}|"), "END|");
        w.expect(*waiter, &format!("get {key}|"), "");
    }
    w.pass(100);
    begin(&mut w);
    let moments: Vec<u64> = keys.iter().map(|key| moment(&w, hash_of(&w, key))).collect();
    // This lease is given after the invalidation, which does not concern it.
    let young = pattern.replace("{id}", "young");
    w.expect(holder, &format!("get {young}|"), "END|");
    w.expect(late, &format!("get {young}|"), "");
    w.pass(10);
    let first = *moments.iter().min().unwrap();
    assert!(w.next_deadline().is_some_and(|at| at >= first), "nothing is searched before that");
    let mut after = vec![None; keys.len()];
    for _ in 0..2_000 {
        w.pass(1);
        for ((waiter, moment), after) in waiters.iter().zip(&moments).zip(&mut after) {
            if after.is_none() && !w.replies(*waiter).is_empty() {
                *after = Some(w.ms.checked_sub(*moment).expect("not before its moment"));
            }
        }
    }
    assert_eq!(w.replies(late), "", "it waits");
    w.expect(writer, &format!("set {young} 0 0 1|x|"), "STORED|");
    assert_eq!(w.replies(late), format!("VALUE {young} 0 1|x|END|"));
    after.into_iter().map(|after| after.expect("each was answered")).collect()
}

#[test]
fn a_rolling_flush_revokes_each_lease_at_the_moment_of_its_key() {
    let moment = |w: &World, hash: u64| {
        let floor = w.engine.shared().tags().floors().rolling().next().unwrap();
        floor.moment_ms(hash)
    };
    let begin = |w: &mut World| {
        let c = w.connect();
        w.ask(c, "get @flush:2|");
    };
    let after = promoted_after("shelf:{id}", begin, moment);
    assert!(after.iter().all(|ms| *ms <= 10), "{after:?}");
}

/// Items of one shelf, which are served for 30 seconds after they became old.
fn shelf() -> World {
    let policy = Policy { grace_s: 30, ..leased() };
    World::under(Rules::new(vec![rule(1, "shelf:{id}", policy, &["shelf"])], Vec::new()))
}

/// When the first gradual purge of the tag `shelf` reaches a key.
fn purged_at(w: &World, hash: u64) -> u64 {
    let shared = w.engine.shared();
    let purges = shared.tags().purges_of(shared.tag_hasher().hash(b"shelf").unwrap());
    purges[0].moment_ms(hash)
}

#[test]
fn a_gradual_purge_revokes_each_lease_at_the_moment_of_its_key() {
    let begin = |w: &mut World| {
        let c = w.connect();
        w.expect(c, "md shelf G I T2|", "HD|");
    };
    let after = promoted_after("shelf:{id}", begin, purged_at);
    assert!(after.iter().all(|ms| *ms <= 10), "{after:?}");
}

#[test]
fn a_gradual_purge_reaches_each_item_in_its_time() {
    let mut w = shelf();
    let c = w.connect();
    let keys: Vec<String> = (0..400).map(|n| format!("shelf:{n}")).collect();
    for key in &keys {
        w.expect(c, &format!("set {key} 0 0 1|x|"), "STORED|");
    }
    w.expect(c, "set other 0 0 1|x|md shelf G I T60 q|", "STORED|");
    let start = w.ms;
    let moments: Vec<u64> = keys.iter().map(|key| purged_at(&w, hash_of(&w, key))).collect();
    let standing = |w: &mut World, key: &str| {
        let why = w.ask(c, &format!("get @why:{key}|"));
        ["fresh", "stale", "absent"]
            .into_iter()
            .find(|name| why.contains(&format!("\"standing\":\"{name}\"")))
    };
    let served = |w: &mut World| {
        keys.iter().filter(|key| standing(w, key) == Some("fresh")).count() * 100 / keys.len()
    };
    assert_eq!(served(&mut w), 100);
    w.pass(15_000);
    assert!((70..=80).contains(&served(&mut w)), "{}", served(&mut w));
    // What is stored while it runs is not concerned.
    w.expect(c, "set shelf:young 0 0 1|y|", "STORED|");
    w.pass(15_000);
    assert!((45..=55).contains(&served(&mut w)), "{}", served(&mut w));
    // Grace counts from the moment of the item, during the period and after it. Times of items are in
    // seconds.
    for at_ms in (35_000..=85_000).step_by(10_000) {
        w.pass(start + at_ms - w.ms);
        for (key, moment) in keys.iter().zip(&moments) {
            let (old_s, now_s) = (moment / 1000, w.ms / 1000);
            let expected = match now_s.checked_sub(old_s) {
                Some(0) | None if w.ms < *moment => Some("fresh"),
                Some(0..30) => Some("stale"),
                // Removed when it was found.
                _ => None,
            };
            assert_eq!(standing(&mut w, key), expected, "{key} at {now_s}, old since {moment}");
        }
    }
    w.pass(start + 91_000 - w.ms);
    assert!(keys.iter().all(|key| standing(&mut w, key).is_none()));
    w.expect(c, "get shelf:young other|", "VALUE shelf:young 0 1|y|VALUE other 0 1|x|END|");
}

#[test]
fn after_its_moment_one_client_computes_and_the_others_get_the_old_value() {
    let mut w = shelf();
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "set shelf:1 0 0 3|old|md shelf G I T60|", "STORED|HD|");
    let moment = purged_at(&w, hash_of(&w, "shelf:1"));
    w.pass(moment - 1 - w.ms);
    w.expect(a, "get shelf:1|", "VALUE shelf:1 0 3|old|END|");
    w.pass(1);
    w.expect(a, "get shelf:1|", "END|");
    w.expect(b, "get shelf:1|", "VALUE shelf:1 0 3|old|END|");
    w.expect(a, "set shelf:1 0 0 3|new|", "STORED|");
    w.pass(70_000);
    w.expect(b, "get shelf:1|", "VALUE shelf:1 0 3|new|END|");
}

#[test]
fn a_value_computed_before_a_gradual_purge_becomes_old_at_its_moment() {
    for late in [false, true] {
        let mut w = shelf();
        let [a, b, c] = [(); 3].map(|()| w.connect());
        w.expect(a, "get shelf:1|", "END|");
        w.expect(c, "md shelf G I T2|", "HD|");
        let moment = purged_at(&w, hash_of(&w, "shelf:1"));
        w.pass(if late { moment - w.ms } else { 1 });
        w.expect(a, "set shelf:1 0 0 3|old|", "STORED|");
        if !late {
            w.expect(b, "get shelf:1|", "VALUE shelf:1 0 3|old|END|");
            w.pass(moment - w.ms);
        }
        w.expect(b, "get shelf:1|", "END|");
        w.expect(c, "get shelf:1|", "VALUE shelf:1 0 3|old|END|");
        w.expect(b, "set shelf:1 0 0 3|new|", "STORED|");
        w.pass(5_000);
        w.expect(c, "get shelf:1|", "VALUE shelf:1 0 3|new|END|");
    }
}

#[test]
fn without_grace_a_gradual_purge_leaves_misses() {
    let mut w = shop();
    let c = w.connect();
    w.expect(c, "set shoppingbasket:1 0 0 1|x|ms free 1 Guser:1|x|md user:1 G I T1|", "STORED|HD|HD|");
    w.expect(c, "get shoppingbasket:1 free|", "VALUE shoppingbasket:1 0 1|x|VALUE free 0 1|x|END|");
    w.pass(1000);
    w.expect(c, "get shoppingbasket:1 free|", "END|");
    w.expect(c, "incr shoppingbasket:1 1|", "NOT_FOUND|");
}

#[test]
fn a_gradual_purge_says_what_is_wrong_with_it() {
    let mut w = shop();
    let c = w.connect();
    w.expect(c, "set shoppingbasket:1 0 0 1|x|", "STORED|");
    let range = "CLIENT_ERROR gradual purge: T must be 1 to 86400|";
    let not_soft = "CLIENT_ERROR a gradual purge is soft: T needs I|";
    for (line, error) in [
        ("md user:1 G I T0|", range),
        ("md user:1 G I T-1|", range),
        ("md user:1 G I T86401 q|", range),
        ("ma user:1 G I T0 v|", range),
        ("md @tag:user:1 I T2147483647|", range),
        ("md user:1 G T60|", not_soft),
        ("md user:1 G T60 q|", not_soft),
        ("ma user:1 G T60 v|", not_soft),
        ("md @tag:user:1 T60|", not_soft),
    ] {
        w.expect(c, line, error);
    }
    assert_eq!(w.engine.shared().tags().bumps().last_bump(), 0, "nothing was invalidated");
    w.expect(c, "get shoppingbasket:1|", "VALUE shoppingbasket:1 0 1|x|END|");
    // As before, `T` means nothing to a question.
    w.expect(c, "mg user:1 G T60 v|", "VA 12|0 0 0.000000|");
}

#[test]
fn the_last_of_too_many_gradual_purges_takes_effect_at_once() {
    let mut w = shop();
    let c = w.connect();
    w.expect(c, "set shoppingbasket:64 0 0 1|x|", "STORED|");
    for n in 0..64 {
        w.expect(c, &format!("md user:{n} G I T60 k|"), &format!("HD kuser:{n}|"));
    }
    w.expect(c, "get shoppingbasket:64|", "VALUE shoppingbasket:64 0 1|x|END|");
    w.expect(c, "md user:64 G I T60|get shoppingbasket:64|", "HD T0|END|");
    w.expect(c, "md user:64 G I T60 q k|md user:64 G I T60 k O7|", "HD kuser:64 O7 T0|");
    let shown = w.ask(c, "ma @tag:user:64 I T60 v|");
    let number = w.engine.shared().tags().bumps().last_bump().to_string();
    assert_eq!(shown, format!("VA {} T0|{number}|", number.len()));
    let stats = w.engine.shared().tags().stats();
    assert_eq!((stats.gradual_purges, stats.gradual_at_once, stats.soft_bumps), (64, 4, 4));
    assert_eq!(w.engine.shared().tags().purges_running(w.ms), 64);
    w.pass(60_000);
    w.expect(c, "md user:64 G I T60|", "HD|");
    assert_eq!(w.engine.shared().tags().purges_running(w.ms), 1);
}

#[test]
fn a_gradual_purge_is_shown() {
    let mut w = shelf();
    let c = w.connect();
    w.expect(c, "set shelf:1 0 0 1|x|", "STORED|");
    assert!(!w.ask(c, "get @why:shelf:1|").contains("gradual"));
    let shown = w.ask(c, "ma shelf G I T60 v|");
    let number = shown.split('|').nth(1).unwrap().to_owned();
    let left = purged_at(&w, hash_of(&w, "shelf:1")) - w.ms;
    let expect = |w: &mut World, left: u64, seconds: u64| {
        let why = w.ask(c, "get @why:shelf:1|");
        let part = format!(
            "\"gradual\":[{{\"moment_in_ms\":{left},\"number\":{number},\"seconds\":60}}],\"hard\":0"
        );
        assert!(why.contains(&part), "{part} in {why}");
        let last = w.ask(c, "get @tag:shelf|");
        assert!(last.split('|').nth(1).unwrap().starts_with(&format!("{number} {seconds} ")), "{last}");
    };
    expect(&mut w, left, 0);
    w.pass(60_000);
    expect(&mut w, 0, 60);
    // When the grace of the last item is over, it is a hard one.
    w.pass(30_000);
    let why = w.ask(c, "get @why:shelf:1|");
    assert!(!why.contains("gradual") && why.contains(&format!("\"hard\":{number}")), "{why}");
}

#[test]
fn the_reason_why_a_key_is_served_or_not() {
    let mut w = shop();
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "get page:7|", "END|");
    w.expect(b, "get page:7|", "");
    let why = w.ask(a, "get @why:page:7|");
    let json = why.split('|').nth(1).unwrap();
    for part in [
        r#""match":"page:{id}""#,
        r#""tag":"page:7""#,
        r#""waiters":1"#,
        r#""kind":"absent""#,
        r#""item":null"#,
    ] {
        assert!(json.contains(part), "{part} in {json}");
    }
    w.ask(a, "set page:7 0 100 1|x|");
    let why = w.ask(a, "get @why:page:7|");
    assert!(why.contains(r#""standing":"fresh""#) && why.contains(r#""ttl":100"#), "{why}");
    assert!(w.ask(a, "get @why:nothing|").contains(r#""rule":null"#));
}

/// Every command that makes an item under a rule, and those that make a new item of an old one: a bump of the
/// rule's tag, or of a tag that the client has named, invalidates it.
#[test]
fn whatever_makes_an_item_gives_it_its_tags() {
    let made = [
        ("ma n:1 N60 J5|", "HD|"),
        ("ma n:1 N60 J5|ma n:1 D2|", "HD|HD|"),
        ("ms n:1 1 MA N60|x|", "HD|"),
        ("set n:1 0 0 1|x|md n:1 x|", "STORED|HD|"),
        ("set n:1 0 0 1|x|md n:1 x|append n:1 0 0 1|y|", "STORED|HD|STORED|"),
        ("ms n:1 1 Gnamed|x|md n:1 x|append n:1 0 0 1|y|", "HD|HD|STORED|"),
    ];
    for policy in [tags_only(), leased(), Policy { owner: Owner::Key, ..leased() }] {
        for (commands, replies) in made {
            for tag in ["n:1", "named"] {
                let mut w =
                    World::under(Rules::new(vec![rule(1, "n:{id}", policy, &["n:{id}"])], Vec::new()));
                let c = w.connect();
                w.expect(c, commands, replies);
                assert!(w.ask(c, "mg n:1 s|").starts_with("HD s"), "{commands}");
                w.expect(c, &format!("delete @tag:{tag}|"), "DELETED|");
                let gone = tag == "n:1" || commands.contains("Gnamed");
                assert_eq!(w.ask(c, "mg n:1|"), if gone { "EN|" } else { "HD|" }, "{commands} and {tag}");
            }
        }
    }
}

/// A holder misses, its rule's tag is bumped, and then the rule has other tags.
#[test]
fn a_fill_is_fenced_though_the_rule_has_lost_the_tag() {
    for owner in [Owner::Key, Owner::Connection] {
        for tags in [&[][..], &["u:{id}"]] {
            let policy = Policy { owner, ..leased() };
            let mut w = World::under(Rules::new(vec![rule(1, "p:{id}", policy, &["p:{id}"])], Vec::new()));
            let [a, b] = [(); 2].map(|()| w.connect());
            w.expect(a, "get p:1|", "END|");
            w.expect(b, "delete @tag:p:1|", "DELETED|");
            w.set_rules_to(Rules::new(vec![rule(1, "p:{id}", policy, tags)], Vec::new()));
            w.expect(a, "set p:1 0 0 3|old|", "STORED|");
            w.expect(b, "get p:1|", "END|");
        }
    }
}

/// The `t` of a value in its grace is the time that is left, which `T` does not prolong.
#[test]
fn an_old_value_does_not_say_that_it_was_prolonged() {
    let mut w = shop();
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "set page:1 0 0 3|old|", "STORED|");
    w.expect(a, "md page:1 I|", "HD|");
    w.expect(a, "get page:1|", "END|");
    w.expect(b, "mg page:1 T100 v t|", "VA 3 t0 Z X|old|");
    w.expect(b, "mg page:1 v t|", "VA 3 t0 Z X|old|");
}

/// A miss from before a gradual purge is never filled: what is stored after the moment of the key may be its
/// value, and is old after a time; it is not old at once, again and again.
#[test]
fn a_miss_from_before_a_gradual_purge_does_not_make_all_later_values_old() {
    for purge in ["md page:1 G I T1|", "md page:1 G I|"] {
        for grace_s in [0, 30] {
            let policy = Policy { grace_s, hold_ms: 0, ..Policy::default() };
            let mut w =
                World::new(&[("page:{id}", policy), ("other:{id}", Policy { grace_s: 300, ..policy })]);
            let [gone, writer, a] = [(); 3].map(|()| w.connect());
            w.expect(gone, "get page:1|", "END|");
            w.expect(writer, purge, "HD|");
            w.pass(1100);
            let (mut computed, mut asked) = (0, 0);
            for _ in 0..300 {
                asked += 1;
                if w.ask(a, "get page:1|") == "END|" {
                    computed += 1;
                    w.expect(a, "set page:1 0 0 1|x|", "STORED|");
                }
                w.pass(100);
            }
            assert!(computed <= 12, "{purge} {grace_s}: {computed} of {asked} gets computed");
        }
    }
}

/// Two computations meet the moment of a purge.
#[test]
fn values_on_both_sides_of_the_moment_of_a_purge() {
    for first in 0..2 {
        let mut w = World::new(&[("page:{id}", Policy { hold_ms: 5000, ..Policy::default() })]);
        let [a, b, writer] = [(); 3].map(|()| w.connect());
        w.expect(a, "get page:1|", "END|");
        w.expect(b, "get page:1|", "");
        w.expect(writer, "md page:1 G I T1|", "HD|");
        w.pass(1100);
        assert_eq!(w.replies(b), "END|", "it was told at the moment");
        for by in if first == 0 { [a, b] } else { [b, a] } {
            w.expect(by, "set page:1 0 0 1|x|", "STORED|");
            w.expect(writer, "get page:1|", "VALUE page:1 0 1|x|END|");
        }
    }
}

/// `ambiguous = "drop"`: what may be older than a soft invalidation is old at once.
#[test]
fn nothing_that_may_be_older_than_a_soft_invalidation_is_shown_as_new_where_it_is_to_be_dropped() {
    for invalidate in ["md page:1 I|", "md page:1 G I|"] {
        let policy = Policy { ambiguous: Ambiguous::Drop, hold_ms: 2000, ..Policy::default() };
        let mut w = World::new(&[("page:{id}", policy)]);
        let [a, b, c, writer] = [(); 4].map(|()| w.connect());
        w.expect(a, "get page:1|", "END|");
        w.ask(writer, invalidate);
        w.expect(b, "get page:1|", "END|");
        w.expect(c, "get page:1|", "");
        w.pass(500);
        w.expect(a, "set page:1 0 0 3|old|", "STORED|");
        w.send(writer, "get page:1|");
        w.pass(5000);
        let said = w.replies(c) + &w.replies(writer);
        assert!(!said.contains("old"), "{invalidate}: {said}");
    }
}

/// Without a grace the time ends in a millisecond, not in the next second.
#[test]
fn what_may_be_older_than_a_soft_invalidation_is_shown_for_four_times_the_usual_time() {
    let policy = Policy { hold_ms: 0, ..Policy::default() };
    let mut w = World::new(&[("page:{id}", policy)]);
    let [a, b, writer] = [(); 3].map(|()| w.connect());
    for n in 10..30 {
        w.expect(a, &format!("get page:{n}|"), "END|");
        w.pass(50);
        w.expect(a, &format!("set page:{n} 0 0 1|x|"), "STORED|");
    }
    w.expect(a, "get page:1|", "END|");
    w.expect(writer, "md page:1 I|", "NF|");
    w.expect(b, "get page:1|", "END|");
    w.expect(a, "set page:1 0 0 3|old|", "STORED|");
    w.pass(199);
    w.expect(writer, "get page:1|", "VALUE page:1 0 3|old|END|");
    w.pass(1);
    w.expect(writer, "get page:1|", "END|");
}
