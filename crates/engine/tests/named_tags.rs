//! Tags that a value brings itself, in its first line.

#![expect(clippy::unwrap_used, reason = "a test")]

use crate::world;

use cattlegrid_engine::rules::{Change, Rule, Rules};
use cattlegrid_herd::{LeaseTime, Owner, Policy, TagsInValue};
use world::{World, cascade, rule};

/// Only tags.
fn taken() -> Policy {
    Policy { leases: false, hold_ms: 0, tags_in_value: TagsInValue::Taken, ..Policy::default() }
}

fn leased() -> Policy {
    Policy { lease: LeaseTime::Fixed(3000), tags_in_value: TagsInValue::Taken, ..Policy::default() }
}

fn required() -> Policy {
    Policy { tags_in_value: TagsInValue::Required, ..leased() }
}

fn world() -> World {
    World::under(Rules::new(
        vec![
            rule(1, "v:{id}", taken(), &["v:{id}"]),
            rule(2, "page:{id}", leased(), &[]),
            Rule { negative_ttl_s: 5, ..rule(3, "must:{id}", required(), &["must:{id}"]) },
            rule(4, "plain:{id}", Policy { tags_in_value: TagsInValue::No, ..taken() }, &["plain"]),
        ],
        Vec::new(),
    ))
}

/// `set` and its value, for [`World::send`].
fn set(key: &str, value: &str) -> String {
    format!("set {key} 0 0 {}|{value}|", value.len())
}

/// A binary request that stores.
fn packet(opcode: u8, key: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0x80, opcode];
    bytes.extend_from_slice(&u16::try_from(key.len()).unwrap().to_be_bytes());
    bytes.extend_from_slice(&[8, 0, 0, 0]);
    bytes.extend_from_slice(&u32::try_from(8 + key.len() + value.len()).unwrap().to_be_bytes());
    bytes.extend_from_slice(&[0; 12 + 8]);
    bytes.extend_from_slice(key.as_bytes());
    bytes.extend_from_slice(value.as_bytes());
    bytes
}

/// The status and the body of each reply.
fn answers(mut sent: &[u8]) -> Vec<(u16, String)> {
    let mut all = Vec::new();
    while let [0x81, _, _, _, _, _, high, low, a, b, c, d, ..] = *sent {
        let end = 24 + u32::from_be_bytes([a, b, c, d]) as usize;
        all.push((u16::from_be_bytes([high, low]), String::from_utf8_lossy(&sent[24..end]).into_owned()));
        sent = &sent[end..];
    }
    all
}

#[test]
fn a_line_is_taken_off_and_names_the_tags() {
    let mut w = world();
    let c = w.connect();
    for (number, line) in ["@tags:a,b%2Cc\n", "@tags:b%2Cc,a\r\n"].into_iter().enumerate() {
        let key = format!("v:{number}");
        for tag in ["a", "b,c", &key] {
            w.expect(c, &set(&key, &format!("{line}@tags:x\nrest")), "STORED|");
            w.expect(c, &format!("mg {key} s v|"), "VA 12 s12|@tags:x\nrest|");
            w.expect(c, "md x G|", "HD|");
            w.expect(c, &format!("mg {key} s|"), "HD s12|");
            w.expect(c, &format!("md {tag} G|get {key}|"), "HD|END|");
        }
    }
    // An empty value.
    w.expect(c, &set("v:2", "@tags:a\n"), "STORED|");
    w.expect(c, "mg v:2 s v|", "VA 0 s0||");
    w.expect(c, "md a G|mg v:2 s|", "HD|EN|");
    // Where no rule says so the value is stored as it came.
    for key in ["plain:1", "free"] {
        w.expect(c, &set(key, "@tags:a\nx"), "STORED|");
        w.expect(c, &format!("md a G|mg {key} v|"), "HD|VA 9|@tags:a\nx|");
    }
}

#[test]
fn every_command_that_stores_a_whole_value_takes_the_line() {
    let value = "@tags:a\nx";
    for store in [
        "set v:1 0 0 9|V|",
        "set v:1 0 0 9 noreply|V|",
        "add v:1 0 0 9|V|",
        "replace v:1 0 0 9|V|",
        "cas v:1 0 0 9 CAS|V|",
        "ms v:1 9|V|",
        "ms v:1 9 MS q|V|",
        "ms v:1 9 ME|V|",
        "ms v:1 9 MR|V|",
        "ms v:1 9 CCAS|V|",
        "ms v:1 9 Gother|V|",
        "ms djox 9 b|V|",
    ] {
        let mut w = world();
        let c = w.connect();
        if !store.starts_with("add") && !store.contains("ME") {
            w.expect(c, "set v:1 0 0 3|old|", "STORED|");
        }
        let cas = w.ask(c, "mg v:1 c|");
        let cas = cas.trim_start_matches("HD c").trim_end_matches('|');
        let reply = w.ask(c, &store.replace("CAS", cas).replace('V', value));
        assert!(reply.is_empty() || ["STORED|", "HD|", "HD b|"].contains(&&*reply), "{store}: {reply}");
        w.expect(c, "mg v:1 s v|", "VA 1 s1|x|");
        w.expect(c, "md a G|get v:1|", "HD|END|");
    }
    // Binary: set, add, replace, and their quiet forms.
    for opcode in [1, 2, 3, 0x11, 0x12, 0x13] {
        let mut w = world();
        let c = w.connect();
        if ![2, 0x12].contains(&opcode) {
            w.expect(c, "set v:1 0 0 3|old|", "STORED|");
        }
        w.send_bytes(c, &packet(opcode, "v:1", value));
        let quiet = opcode > 0x10;
        let sent = w.take_sent(c);
        let expected = if quiet { vec![] } else { vec![(0, String::new())] };
        assert_eq!(answers(&sent), expected, "{opcode}");
        w.expect(c, "mg v:1 s v|md a G|get v:1|", "VA 1 s1|x|HD|END|");
    }
}

#[test]
fn the_size_that_a_store_shows_is_that_without_the_line() {
    let mut w = world();
    let c = w.connect();
    w.expect(c, "ms v:1 9 s|@tags:a\nx|", "HD s1|");
}

#[test]
fn a_malformed_line_is_refused_and_nothing_is_stored() {
    let (long, nine) = ("x".repeat(201), "a,b,c,d,e,f,g,h,i");
    let endless = "x,".repeat(2000);
    let (empty, too_long, many, blank, break_missing) = (
        "CLIENT_ERROR invalid tag: it is empty",
        "CLIENT_ERROR invalid tag: it is longer than 200 bytes",
        "CLIENT_ERROR invalid tag: an item has at most 8",
        "CLIENT_ERROR invalid tag: it has a blank or a control character",
        "CLIENT_ERROR invalid tag: a line of tags ends with a line break, within 2048 bytes",
    );
    for (names, error) in [
        ("\nx", empty),
        ("\r\nx", empty),
        ("a,\nx", empty),
        (&*format!("{long}\nx"), too_long),
        (&*format!("{nine}\nx"), many),
        // Together with the rule's.
        ("a,b,c,d,e,f,g,h\nx", many),
        ("a b\nx", blank),
        ("a\tb\nx", blank),
        ("a\r\r\nx", blank),
        ("a%2\nx", "CLIENT_ERROR invalid tag: write a comma as %2C and a per cent sign as %25"),
        ("a", break_missing),
        ("", break_missing),
        (&*format!("{endless}\nx"), break_missing),
        // In pages of its own.
        (&*format!("a b\n{}", "x".repeat(50_000)), blank),
        (&*"x".repeat(50_000), break_missing),
    ] {
        let mut w = world();
        let c = w.connect();
        let value = format!("@tags:{names}");
        w.expect(c, &set("v:1", &value), &format!("{error}|"));
        w.expect(c, &format!("ms v:1 {}|{value}|", value.len()), &format!("{error}|"));
        w.expect(c, &format!("ms v:1 {} q|{value}|", value.len()), &format!("{error}|"));
        w.expect(c, &format!("set v:1 0 0 {} noreply|{value}|", value.len()), "");
        for opcode in [1, 0x11] {
            w.send_bytes(c, &packet(opcode, "v:1", &value));
            let sent = w.take_sent(c);
            assert_eq!(answers(&sent), [(5, error.to_owned())]);
        }
        w.expect(c, "get v:1|", "END|");
        assert_eq!(w.count("stores_tags_invalid"), 6);
        assert_eq!(w.peek("v:1"), None);
    }
    // As with `G`, eight in all.
    let mut w = world();
    let c = w.connect();
    w.expect(c, "ms v:1 11 Ge,f,g|@tags:a,b\nx|", "HD|");
    w.expect(c, "ms v:1 13 Gc,d,e,f,g,h|@tags:a,b\nxyz|", &format!("{many}|"));
    w.expect(c, "get v:1|", "END|");
}

#[test]
fn a_value_without_the_line_is_refused_where_it_is_required() {
    let mut w = world();
    let [a, b] = [(); 2].map(|()| w.connect());
    for value in ["x", "", "tags:a\nx", &"x".repeat(50_000)] {
        w.expect(a, &set("must:1", value), "CLIENT_ERROR no tags|");
        w.expect(a, &format!("ms must:1 {} Ga|{value}|", value.len()), "CLIENT_ERROR no tags|");
        w.send_bytes(a, &packet(1, "must:1", value));
        let sent = w.take_sent(a);
        assert_eq!(answers(&sent), [(5, "CLIENT_ERROR no tags".to_owned())]);
    }
    let active = w.engine.shared().rules();
    let (_, state) = active.as_ref().unwrap().each().nth(2).unwrap();
    assert_eq!(state.counters().stores_without_tags.load(std::sync::atomic::Ordering::Relaxed), 12);
    drop(active);
    w.expect(a, &set("must:1", "@tags:a\nx"), "STORED|");
    w.expect(b, "get must:1|", "VALUE must:1 0 1|x|END|");
    // A negative answer has no value, and may have tags.
    w.expect(a, "ms must:2 0 n||", "HD|");
    w.expect(a, "ms must:3 8 n|@tags:a\n|", "HD|");
}

#[test]
fn what_is_made_of_a_value_keeps_its_tags() {
    let mut w = world();
    let c = w.connect();
    for change in ["append v:1 0 0 9|@tags:b\nx|", "prepend v:1 0 0 9|@tags:b\nx|", "incr v:1 1|"] {
        w.expect(c, &set("v:1", "@tags:a\n7"), "STORED|");
        let reply = w.ask(c, change);
        assert!(["STORED|", "8|"].contains(&&*reply), "{reply}");
        let shown = w.ask(c, "mg v:1 v|");
        assert_eq!(shown.contains("@tags:b"), change.contains("pend"), "{shown}");
        w.expect(c, "md b G|mg v:1|", "HD|HD|");
        w.expect(c, "md a G|mg v:1|", "HD|EN|");
    }
    // What an append makes of nothing is not looked at.
    w.expect(c, "ms v:2 9 MA N60|@tags:b\nx|", "HD|");
    w.expect(c, "mg v:2 v|", "VA 9|@tags:b\nx|");
}

#[test]
fn a_large_value_loses_its_line_too() {
    let mut w = world();
    let c = w.connect();
    let body: String = ('a'..='z').cycle().take(300_000).collect();
    let long: Vec<_> = (0..6).map(|n| format!("{n}{}", "y".repeat(199))).collect();
    for line in ["@tags:a\n".to_owned(), format!("@tags:a,{}\r\n", long.join(","))] {
        let value = format!("{line}{body}");
        w.expect(c, &format!("ms v:1 {} s|{value}|", value.len()), "HD s300000|");
        assert!(w.peek("v:1").unwrap() == body.as_bytes(), "the value without the line");
        w.expect(c, "mg v:1 s|", "HD s300000|");
        w.expect(c, "append v:1 0 0 3|end|mg v:1 s|", "STORED|HD s300003|");
        assert!(w.peek("v:1").unwrap() == format!("{body}end").as_bytes());
        w.expect(c, "md a G|mg v:1|", "HD|EN|");
    }
    // An append is not looked at.
    w.expect(c, "set v:1 0 0 1|x|", "STORED|");
    let value = format!("@tags:a\n{body}");
    w.expect(c, &format!("append v:1 0 0 {}|{value}|", value.len()), "STORED|");
    w.expect(c, "md a G|mg v:1 s|", "HD|HD s300009|");
}

#[test]
fn a_value_is_fenced_by_the_tags_of_its_line() {
    for (key, bump) in [("v:1", "md a G|"), ("page:1", "md a G|"), ("page:1", "delete @tag:b|")] {
        let mut w = world();
        let [a, b, c] = [(); 3].map(|()| w.connect());
        w.expect(a, &format!("get {key}|"), "END|");
        w.ask(b, bump);
        w.expect(a, &set(key, "@tags:a,b\nold"), "STORED|");
        assert_eq!(w.peek(key), None, "{key} {bump}");
        w.expect(c, &format!("get {key}|"), "END|");
        w.expect(c, &set(key, "@tags:a,b\nnew"), "STORED|");
        w.expect(a, &format!("get {key}|"), &format!("VALUE {key} 0 3|new|END|"));
        // A tag of another value is no reason.
        w.expect(a, &format!("delete {key}|get {key}|"), "DELETED|END|");
        w.expect(b, "md c G|", "HD|");
        w.expect(a, &set(key, "@tags:d\nnew"), "STORED|");
        w.expect(b, &format!("get {key}|"), &format!("VALUE {key} 0 3|new|END|"));
    }
}

#[test]
fn waiters_get_the_value_without_the_line() {
    let mut w = world();
    let [a, b, c] = [(); 3].map(|()| w.connect());
    w.expect(a, "get page:1|", "END|");
    w.expect(b, "get page:1|", "");
    w.expect(c, "mg page:1 s v N30 Pw400|", "");
    w.expect(a, &set("page:1", "@tags:a\nnew"), "STORED|");
    assert_eq!(w.replies(b), "VALUE page:1 0 3|new|END|");
    assert_eq!(w.replies(c), "VA 3 s3|new|");
}

#[test]
fn a_refused_line_passes_the_lease_on_and_leaves_no_old_value() {
    for value in ["@tags:\nx", "@tags:x"] {
        for owner in [Owner::Key, Owner::Connection] {
            let policy = Policy { owner, ..leased() };
            let mut w = World::under(Rules::new(vec![rule(1, "page:{id}", policy, &[])], Vec::new()));
            let [a, b] = [(); 2].map(|()| w.connect());
            w.expect(a, "get page:1|", "END|");
            w.expect(b, "get page:1|", "");
            assert!(w.ask(a, &set("page:1", value)).starts_with("CLIENT_ERROR invalid tag"));
            assert_eq!(w.replies(b), "END|", "it has the lease now");
            w.expect(b, &set("page:1", "@tags:a\nnew"), "STORED|");
            w.expect(a, "get page:1|", "VALUE page:1 0 3|new|END|");
            // An add that is refused leaves the value, a set does not.
            let add = format!("add page:1 0 0 {}|{value}|", value.len());
            assert!(w.ask(a, &add).starts_with("CLIENT_ERROR"));
            w.expect(a, "get page:1|", "VALUE page:1 0 3|new|END|");
            assert!(w.ask(b, &set("page:1", value)).starts_with("CLIENT_ERROR"));
            assert_eq!(w.peek("page:1"), None);
        }
    }
    // By token.
    let mut w = world();
    let [a, b] = [(); 2].map(|()| w.connect());
    let token = w.ask(a, "mg must:1 N30 c v|");
    let token = token.split_once(" c").unwrap().1.split([' ', '|']).next().unwrap();
    w.expect(b, "get must:1|", "");
    w.expect(a, &format!("ms must:1 1 C{token}|x|"), "CLIENT_ERROR no tags|");
    assert_eq!(w.replies(b), "END|");
}

#[test]
fn a_cascade_sees_the_value_stored_and_no_refused_one() {
    let cascade = cascade(&[Change::Set], "v:{id}", "list");
    let rules = vec![rule(1, "v:{id}", taken(), &[]), rule(2, "list", taken(), &["list"])];
    let mut w = World::under(Rules::new(rules, vec![cascade]));
    let c = w.connect();
    w.expect(c, &set("list", "x"), "STORED|");
    assert!(w.ask(c, &set("v:1", "@tags:\nx")).starts_with("CLIENT_ERROR"));
    w.expect(c, "mg list|", "HD|");
    w.expect(c, &set("v:1", "@tags:a\nx"), "STORED|");
    w.expect(c, "mg list|", "EN|");
}

#[test]
fn a_reload_concerns_what_is_stored_from_then_on() {
    let mut w = world();
    let c = w.connect();
    w.expect(c, &set("v:1", "@tags:a\nx"), "STORED|");
    let no = Policy { tags_in_value: TagsInValue::No, ..taken() };
    w.set_rules_to(Rules::new(vec![rule(1, "v:{id}", no, &["v:{id}"])], Vec::new()));
    w.expect(c, &set("v:2", "@tags:a\nx"), "STORED|");
    w.expect(c, "md a G|mg v:1|mg v:2 s|", "HD|EN|HD s9|");
}
