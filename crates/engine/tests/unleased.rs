//! Rules without leases (`tags` alone, or nothing): for a client the keys work as in memcached, with stubs
//! and marks. The effects of the rule, fences and tags, show only when a value comes too late or a tag is
//! invalidated.

#![expect(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

use crate::world;

use std::fmt::Write as _;

use cattlegrid_engine::rules::{Pattern, Rule, Rules, TagTemplate};
use cattlegrid_herd::{FillWindow, Owner, Policy};
use world::World;

fn unleased(owner: Owner, fill_window: FillWindow, tags: &[&str]) -> World {
    let pattern = Pattern::parse("k:{id}").unwrap();
    let tags = tags.iter().map(|tag| TagTemplate::parse(tag, Some(&pattern)).unwrap()).collect();
    let policy = Policy { leases: false, hold_ms: 0, owner, fill_window, ..Policy::default() };
    World::under(Rules::new(
        vec![Rule { number: 1, pattern, policy, tags, negative_ttl_s: 0, loading: None, prefix: None }],
        Vec::new(),
    ))
}

fn tagged() -> World {
    unleased(Owner::Key, FillWindow::Auto, &["k:{id}", "all"])
}

/// The CAS in a reply.
fn cas(reply: &str) -> u64 {
    let word = reply.split([' ', '|']).find(|word| word.len() > 1 && word.starts_with('c'));
    word.and_then(|word| word[1..].parse().ok()).unwrap_or_else(|| panic!("{reply}"))
}

#[test]
fn one_client_wins_and_the_others_are_told() {
    let mut w = tagged();
    let [a, b] = [(); 2].map(|()| w.connect());
    let token = cas(&w.ask(a, "mg k:1 v c N30|"));
    w.expect(b, "mg k:1 v N30|", "VA 0 Z||");
    w.expect(b, "mg k:1 v|", "VA 0 Z||");
    w.expect(b, "get k:1|", "VALUE k:1 0 0||END|");
    w.expect(b, "add k:1 0 0 1|x|", "NOT_STORED|");
    w.expect(a, &format!("ms k:1 2 T60 C{token}|hi|"), "HD|");
    w.expect(b, "mg k:1 v N30|", "VA 2|hi|");
    // Deleted, expired, invalidated by tag: the next one wins.
    for (end, wait_ms) in [("delete k:2|", 0), ("md k:2 G|", 0), ("delete @tag:all|", 0), ("", 31_000)] {
        w.expect(a, "mg k:2 v N30|", "VA 0 W||");
        w.expect(b, "mg k:2 v N30|", "VA 0 Z||");
        w.ask(b, end);
        w.pass(wait_ms);
        w.expect(b, "mg k:2 v N30|", "VA 0 W||");
        w.expect(a, "delete k:2|", "DELETED|");
    }
}

#[test]
fn an_item_marked_stale_is_won_once() {
    let mut w = tagged();
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "set k:1 0 0 3|old|md k:1 I T30|", "STORED|HD|");
    w.expect(a, "mg k:1 v|", "VA 3 X W|old|");
    w.expect(b, "mg k:1 v|", "VA 3 Z X|old|");
    w.expect(b, "get k:1|", "VALUE k:1 0 3|old|END|");
    w.expect(a, "set k:1 0 20 3|new|", "STORED|");
    w.expect(b, "mg k:1 v|", "VA 3|new|");
    w.expect(a, "mg k:1 v R30|mg k:1 v R30|", "VA 3 W|new|VA 3 Z|new|");
    // By tag, without a grace, it is a miss.
    w.expect(b, "md k:1 G I|get k:1|", "HD|END|");
}

/// A client that won, a client that was told that another has won, and a client that was told nothing: their
/// values count as of their misses.
#[test]
fn misses_are_recorded_however_they_are_answered() {
    let events = ["delete k:1|", "md k:1|", "delete @tag:all|", "md k:1 G|", "set k:1 0 0 3|new|"];
    for owner in [Owner::Key, Owner::Connection] {
        for event in events {
            for (before, asks) in [
                ("", "mg k:1 v N30|"),
                ("mg k:1 N30|", "mg k:1 v N30|"),
                ("mg k:1 N30|", "mg k:1 v|"),
                ("", "mg k:1 v|"),
                ("", "mg k:1 v R30|"),
                ("set k:1 0 9 1|x|", "mg k:1 v R30|"),
                ("set k:1 0 9 1|x|md k:1 I|", "mg k:1 v|"),
                ("ms k:1 0 n T9||", "mg k:1 v N30|"),
            ] {
                let mut w = unleased(owner, FillWindow::Auto, &["k:{id}", "all"]);
                let [a, b, c] = [(); 3].map(|()| w.connect());
                let scene = format!("{owner:?} {before} {asks} {event}");
                w.ask(b, before);
                let miss = w.ask(a, asks);
                assert!(
                    miss.starts_with("EN") || miss.contains('W') || miss.contains('Z'),
                    "{scene}: {miss}"
                );
                w.ask(c, event);
                w.expect(a, "set k:1 0 0 3|old|", "STORED|");
                // With `owner = "key"` an ordinary write can be replaced by a fill, as in memcached.
                if owner == Owner::Connection || !event.starts_with("set") {
                    assert!(!w.ask(b, "get k:1|").contains("old"), "{scene}");
                }
            }
        }
    }
}

#[test]
fn a_value_that_comes_too_late_leaves_no_stub_behind() {
    let mut w = tagged();
    let [a, b, c] = [(); 3].map(|()| w.connect());
    // A tag that the holder names was invalidated meanwhile.
    let token = cas(&w.ask(a, "mg k:1 c N30|"));
    w.expect(c, "md colour G|", "HD|");
    w.expect(a, &format!("ms k:1 3 C{token} Gcolour|old|"), "EX|");
    w.expect(b, "mg k:1 v N30|", "VA 0 W||");
    w.expect(b, "ms k:1 3 Gcolour|new|", "HD|");
    // The same by a plain set.
    w.expect(a, "mg k:2 N30|", "HD W|");
    w.expect(c, "md colour G|", "HD|");
    w.expect(a, "ms k:2 3 Gcolour|old|", "HD|");
    w.expect(b, "mg k:2 v N30|", "VA 0 W||");
}

#[test]
fn a_negative_answer_makes_no_stub() {
    let mut w = tagged();
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "mg k:1 N30|ms k:1 0 n T5||", "HD W|HD|");
    w.expect(b, "mg k:1 v N30|mg k:1 v N30 R30|mg k:1 v|get k:1|", "EN|EN|EN|END|");
    w.pass(5000);
    w.expect(b, "mg k:1 v N30|mg k:1 v N30|", "VA 0 W||VA 0 Z||");
}

/// Splitmix64.
struct Rng(u64);

impl Rng {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % most
    }

    fn of<'t>(&mut self, list: &[&'t str]) -> &'t str {
        list[self.below(list.len() as u64) as usize]
    }
}

/// A command about one of few keys. `CAS0` and `CAS1` stand for the last CAS that was shown, and the one
/// before.
fn command(rng: &mut Rng) -> String {
    let key = format!("k:{}", rng.below(3));
    let data = rng.of(&["", "x", "7", "12"]);
    let len = data.len();
    let ttl = rng.of(&["", "", " T0", " T1", " T3", " T-1"]);
    let exptime = rng.of(&["0", "0", "1", "3", "-1"]);
    let cas = rng.of(&["", "", " CCAS0", " CCAS1", " C3", " C900000000"]);
    let explicit = rng.of(&["", "", "", " E5", " E900000007"]);
    match rng.below(16) {
        0..6 => {
            let vivify = rng.of(&["", " N1", " N2", " N30"]);
            let recache = rng.of(&["", " R1", " R30"]);
            let shown = rng.of(&["", " v", " v c", " s t f h l c k Oq", " v q", " v c u"]);
            let compare = rng.of(&["", "", "", " CCAS0"]);
            format!("mg {key}{shown}{vivify}{recache}{ttl}{explicit}{compare}|")
        }
        6..9 => {
            let mode = rng.of(&["", "", "", " ME", " MA", " MP", " MR", " MS", " MA N2", " ME N2", " MR N2"]);
            let stale = rng.of(&["", "", " I"]);
            format!("ms {key} {len}{ttl}{mode}{cas}{explicit}{stale} c s|{data}|")
        }
        9 => {
            let how = rng.of(&["", " I", " I", " x", " I x"]);
            let ttl = if how.contains('I') { ttl } else { "" };
            format!("md {key}{how}{ttl}{cas}{explicit}{} k|", rng.of(&["", " q"]))
        }
        10 => {
            let mode = rng.of(&["", " MD", " D3"]);
            let vivify = rng.of(&["", " N3 J5"]);
            format!("ma {key} v c t{mode}{vivify}{ttl}{cas}{explicit}|")
        }
        11 => format!("{} {key} 0 {exptime} {len}|{data}|", rng.of(&["set", "add", "replace", "append"])),
        12 => format!("cas {key} 0 {exptime} {len} {}|{data}|", rng.of(&["CAS0", "CAS1", "3"])),
        13 => match rng.below(4) {
            0 | 1 => format!("delete {key}|"),
            2 => format!("incr {key} 3|"),
            _ => format!("touch {key} {exptime}|"),
        },
        14 => format!("{} {exptime} {key}|", rng.of(&["gat", "gats"])),
        _ => format!("{} {key}|", rng.of(&["get", "gets"])),
    }
}

/// A reply with its CAS values removed.
fn mask(reply: &str) -> (String, Vec<u64>) {
    let mut found = Vec::new();
    let masked = reply.split('|').map(|line| {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let gets = words[0] == "VALUE" && words.len() == 5;
        let masked = words.iter().enumerate().map(|(n, word)| {
            let number = if gets && n == 4 { Some(word.as_str()) } else { word.strip_prefix('c') };
            match number.and_then(|number| number.parse().ok()).filter(|_| n > 0) {
                Some(cas) => {
                    found.push(cas);
                    "c".to_owned()
                }
                None => word.clone(),
            }
        });
        masked.collect::<Vec<_>>().join(" ")
    });
    (masked.collect::<Vec<_>>().join("|"), found)
}

/// Every miss is forgotten before the next command, so that no value comes too late: then the rule has no
/// visible effect.
#[test]
fn replies_are_those_of_a_server_without_rules() {
    const HISTORIES: u64 = 250;
    const COMMANDS: u64 = 250;
    let (mut won, mut lost, mut stale) = (0, 0, 0);
    for seed in 0..HISTORIES {
        let mut rng = Rng(seed);
        let owner = if rng.below(2) == 0 { Owner::Key } else { Owner::Connection };
        let tags: &[&str] = if rng.below(2) == 0 { &["k:{id}", "all"] } else { &[] };
        let mut ruled = unleased(owner, FillWindow::Fixed(10), tags);
        let mut plain = World::new(&[]);
        plain.set_rules(&[]);
        let connections = [(); 2].map(|()| (ruled.connect(), plain.connect()));
        // The numbers that commands invent are below and above all that are given out.
        let advance = "set other 0 0 1|x|".repeat(20);
        ruled.ask(connections[0].0, &advance);
        plain.ask(connections[0].1, &advance);
        let mut seen = [(0, 0); 2];
        let mut history = String::new();
        for _ in 0..COMMANDS {
            let (of_ruled, of_plain) = connections[rng.below(2) as usize];
            let line = command(&mut rng);
            let with = |cas: [u64; 2]| {
                line.replace("CAS0", &cas[0].to_string()).replace("CAS1", &cas[1].to_string())
            };
            let (one, other) = (
                ruled.ask(of_ruled, &with(seen.map(|pair| pair.0))),
                plain.ask(of_plain, &with(seen.map(|pair| pair.1))),
            );
            writeln!(history, "{:>6} {line}   {one}   {other}", plain.ms).unwrap();
            let ((one, of_one), (other, of_other)) = (mask(&one), mask(&other));
            assert_eq!(one, other, "seed {seed}\n{history}");
            for pair in of_one.into_iter().zip(of_other).filter(|(a, b)| *a != 0 && *b != 0) {
                seen = [pair, seen[0]];
            }
            let first = one.split('|').next().unwrap();
            won += u64::from(first.ends_with(" W"));
            lost += u64::from(first.ends_with(" Z") || first.contains(" Z "));
            stale += u64::from(first.contains(" X"));
            let ms = [30, 30, 30, 400, 1100][rng.below(5) as usize];
            ruled.pass(ms);
            plain.pass(ms);
        }
    }
    assert!(won > 1000 && lost > 1000 && stale > 200, "{won} {lost} {stale}");
}
