//! Rules that observe: clients are answered as if there were none, and what the rules would do is counted.
//!
//! `OBSERVED_HISTORIES=n` sets the number of histories, `OBSERVED_SEED=n` runs one.

#![expect(clippy::many_single_char_names, reason = "connections a, b, c")]

use std::sync::Arc;

use cattlegrid_engine::Interest;
use cattlegrid_engine::rules::{Rule, Rules};
use cattlegrid_herd::{Early, FillWindow, LeaseTime, Owner, Policy, TagsInValue};

use crate::sim::rng::Rng;
use crate::world;
use world::World;

fn policy() -> Policy {
    Policy { observe: true, lease: LeaseTime::Fixed(3000), ..Policy::default() }
}

fn observed(policy: Policy) -> World {
    World::new(&[("page:{id}", policy)])
}

#[test]
fn a_herd_is_counted_and_nobody_waits() {
    let mut w = observed(policy());
    let all: Vec<u64> = (0..1000).map(|_| w.connect()).collect();
    for one in &all {
        w.expect(*one, "get page:1|", "END|");
    }
    w.pass(200);
    for one in &all {
        w.expect(*one, "set page:1 0 0 1|x|", "STORED|");
    }
    let counts = ["gets", "hits", "leases", "held", "held_filled", "computes_saved", "writes_unmissed"];
    assert_eq!(counts.map(|name| w.count(name)), [1000, 0, 1, 999, 999, 999, 0]);
    w.expect(all[0], "set page:1 0 0 1|x|", "STORED|");
    w.expect(all[0], "get page:1|", "VALUE page:1 0 1|x|END|");
    assert_eq!(["gets", "hits", "writes_unmissed"].map(|name| w.count(name)), [1001, 1, 1]);
    assert_eq!((w.engine.held(), w.engine.leases(), w.next_deadline()), (0, 0, None));
}

#[test]
fn a_computation_that_takes_too_long_saves_nothing() {
    let mut w = observed(Policy { hold_ms: 100, ..policy() });
    for _ in 0..20 {
        w.expect_herd(5, 900);
        w.expect_delete();
    }
    assert_eq!(w.count("computes_saved"), 0);
    assert!(w.count("hold_expired") > 0, "until it is learned");
    assert!(w.count("busy_prediction") > 40, "{}", w.count("busy_prediction"));
    let learned = w.engine.shared().rules().as_ref().unwrap().each().next().unwrap().1.learned_ms();
    assert_eq!(learned, Some([900; 3]));
}

#[test]
fn leases_pass_on_as_they_would() {
    let mut w = observed(policy());
    let [a, b, c, d] = [(); 4].map(|()| w.connect());
    // The holder is gone, and another has asked.
    for one in [a, b] {
        w.expect(one, "get page:1|", "END|");
    }
    w.close(a, false);
    assert_eq!((w.count("promoted_close"), w.count("unset")), (1, 0));
    w.expect(b, "set page:1 0 0 1|x|", "STORED|");
    // A delete while two compute: what was computed before it would be dropped, or shown for a time.
    for one in [b, c] {
        w.expect(one, "get page:2|", "END|");
    }
    w.expect(d, "delete page:2|", "NOT_FOUND|");
    assert_eq!(w.count("promoted_invalidated"), 1);
    w.pass(100);
    w.expect(b, "set page:2 0 0 1|x|", "STORED|");
    assert_eq!(w.count("fills_dropped") + w.count("fills_provisional"), 1);
    w.expect(c, "set page:2 0 0 1|y|", "STORED|");
    // Alone: its fill is older for certain.
    w.expect(b, "get page:3|", "END|");
    w.expect(d, "delete page:3|", "NOT_FOUND|");
    w.expect(b, "set page:3 0 0 1|x|", "STORED|");
    assert_eq!(w.count("fills_dropped_old"), 1);
    w.expect(c, "get page:3|", "VALUE page:3 0 1|x|END|");
}

#[test]
fn a_key_that_is_never_filled_would_be_let_pass() {
    let mut w = observed(Policy { lease: LeaseTime::Fixed(100), ..policy() });
    let a = w.connect();
    for _ in 0..10 {
        w.expect(a, "get page:1|", "END|");
        w.pass(200);
    }
    assert_eq!((w.count("leases"), w.count("unset"), w.count("pass_entered")), (2, 2, 1));
    assert_eq!(w.count("pass_misses"), 8);
    w.expect(a, "set page:1 0 0 1|x|", "STORED|");
    w.expect(a, "delete page:1|", "DELETED|");
    w.expect(a, "get page:1|", "END|");
    assert_eq!(w.count("leases"), 3, "it was filled");
}

#[test]
fn old_values_would_be_served_and_refreshed_early() {
    let mut w = observed(Policy { grace_s: 30, hold_ms: 0, ..policy() });
    w.expect_expiry();
    assert_eq!(["leases_stale", "stale_served", "computes_saved"].map(|n| w.count(n)), [1, 9, 9]);
    let mut w = observed(Policy { early: Early::Share(500_000), hold_ms: 0, ..policy() });
    w.expect_expiry();
    assert_eq!(["leases_early", "stale_served", "computes_saved"].map(|n| w.count(n)), [1, 0, 9]);
    let mut w = observed(Policy { hold_ms: 0, ..policy() });
    w.expect_expiry();
    assert_eq!(["leases", "busy_no_hold", "computes_saved"].map(|n| w.count(n)), [1, 9, 0]);
}

#[test]
fn a_loader_would_have_had_its_jobs() {
    let mut w = observed(Policy { loader: true, ..policy() });
    w.expect_herd(10, 50);
    assert!(w.jobs.is_empty());
    assert_eq!(["loads", "held", "computes_saved"].map(|n| w.count(n)), [1, 10, 10]);
}

#[test]
fn what_finds_no_room_is_counted() {
    let mut w = observed(policy());
    let a = w.connect();
    for n in 0..20_000 {
        w.expect(a, &format!("get page:{n}|"), "END|");
    }
    assert!(w.count("observed_lost") > 10_000);
    w.pass(70_000);
    let before = w.count("observed_lost");
    w.expect(a, "get page:x|", "END|");
    assert_eq!(w.count("observed_lost"), before, "there is room again");
}

#[test]
fn why_says_which_rule_observes() {
    let mut w = World::new(&[("page:{id}", policy()), ("{any*}", Policy::default())]);
    let a = w.connect();
    let why = w.ask(a, "get @why:page:1|");
    let why: serde_json::Value = serde_json::from_str(why.split('|').nth(1).unwrap()).unwrap();
    assert_eq!((&why["rule"]["number"], &why["observed"]["number"]), (&2.into(), &1.into()));
    // The rule behind it applies.
    let b = w.connect();
    w.expect(a, "get page:1|", "END|");
    w.expect(b, "get page:1|", "");
    w.expect(a, "set page:1 0 0 1|x|", "STORED|");
    assert_eq!(w.replies(b), "VALUE page:1 0 1|x|END|");
    assert_eq!((w.count("leases"), w.count("held")), (1, 0), "of what the other rule leaves");
}

#[test]
fn rules_change_between_observe_and_on_while_clients_compute() {
    let mut w = observed(policy());
    let [a, b, c] = [(); 3].map(|()| w.connect());
    for one in [a, b] {
        w.expect(one, "get page:1|", "END|");
    }
    w.set_rules(&[("page:{id}", Policy { observe: false, ..policy() })]);
    assert_eq!(w.count("leases"), 0, "it counts from the beginning");
    w.expect(c, "get page:1|", "END|");
    w.expect(b, "get page:1|", "");
    w.set_rules(&[("page:{id}", policy())]);
    assert_eq!(w.replies(b), "END|");
    for one in [a, b, c] {
        w.expect(one, "set page:1 0 0 1|x|", "STORED|");
    }
    w.check();
    assert_eq!((w.engine.held(), w.engine.leases()), (0, 0));
}

impl World {
    /// Clients miss a key at the same time, and each stores it later.
    fn expect_herd(&mut self, clients: usize, ms: u64) {
        let all: Vec<u64> = (0..clients).map(|_| self.connect()).collect();
        for one in &all {
            self.expect(*one, "get page:1|", "END|");
        }
        self.pass(ms);
        for one in &all {
            self.expect(*one, "set page:1 0 0 1|x|", "STORED|");
        }
    }

    fn expect_delete(&mut self) {
        let one = self.connect();
        self.expect(one, "delete page:1|", "DELETED|");
        self.pass(5_000);
    }

    /// A value that is in use expires, and ten clients miss it.
    fn expect_expiry(&mut self) {
        let one = self.connect();
        self.expect(one, "set page:1 0 4 1|x|", "STORED|");
        self.pass(3_500);
        self.expect(one, "get page:1|", "VALUE page:1 0 1|x|END|");
        // An item beside it that lives, or upkeep would have taken its memory back.
        self.expect(one, "set other:1 0 4 1|x|", "STORED|");
        self.pass(1_000);
        self.expect_herd(10, 50);
    }
}

const HISTORIES: u64 = 3_000;
const STEPS: u64 = 150;

/// Every request is answered, byte for byte, as by an engine without the rules that observe; and stored,
/// numbered and noted alike.
#[test]
fn nothing_changes_for_clients() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let histories = number("OBSERVED_HISTORIES").unwrap_or(HISTORIES);
    let mut counted = 0;
    for seed in number("OBSERVED_SEED").map_or(0..histories, |seed| seed..seed + 1) {
        let run = std::panic::catch_unwind(|| history(seed));
        let Ok(of_run) = run else { panic!("OBSERVED_SEED={seed}") };
        counted += of_run;
    }
    assert!(counted > histories / 2, "rules have observed: {counted}");
}

fn draw(rng: &mut Rng) -> Policy {
    Policy {
        observe: true,
        leases: !rng.one_in(5),
        loader: rng.one_in(4),
        hold_ms: rng.of(&[0, 50, 400]),
        lease: rng.of(&[LeaseTime::Auto, LeaseTime::Fixed(100), LeaseTime::Fixed(1000)]),
        grace_s: rng.of(&[0, 1, 5]),
        grace_on_error_s: rng.of(&[0, 12]),
        ttl_jitter: rng.of(&[0, 50]),
        early: rng.of(&[Early::Off, Early::Auto, Early::Share(500_000)]),
        pass_after: rng.of(&[1, 2]),
        pass_for_ms: 1500,
        max_waiters: rng.of(&[1, 2, 1024]),
        rule_computers: rng.of(&[None, Some(1)]),
        owner: rng.of(&[Owner::Key, Owner::Connection]),
        fill_window: rng.of(&[FillWindow::Auto, FillWindow::Fixed(500)]),
        tags_in_value: rng.of(&[TagsInValue::No, TagsInValue::Taken, TagsInValue::Required]),
        needs_announced_tags: rng.one_in(3),
        ..Policy::default()
    }
}

/// The same list without the rules that observe.
fn without(rules: &Rules) -> Rules {
    let kept = rules.rules().iter().filter(|rule| !rule.policy.observe);
    let numbered = (1..).zip(kept).map(|(number, rule)| Rule { number, ..(**rule).clone() });
    Rules::new(numbered.collect(), rules.all_cascades().cloned().collect())
}

fn history(seed: u64) -> u64 {
    let mut rng = Rng(seed);
    let mut list = vec![("page:{id}", draw(&mut rng)), ("user:{id}", draw(&mut rng))];
    if rng.one_in(3) {
        list.push(("{any*}", Policy { observe: false, loader: false, ..draw(&mut rng) }));
    }
    let all = world::rules(&list);
    let mut worlds = [World::under(without(&all)), World::new(&list)];
    let mut open = Vec::new();
    for w in &mut worlds {
        w.interest = Interest::from_bits(u8::MAX);
    }
    let mut is_on = true;
    for step in 0..STEPS {
        if open.len() < 2 || open.len() < 6 && rng.one_in(8) {
            let [a, b] = worlds.each_mut().map(World::connect);
            assert_eq!(a, b);
            open.push(a);
        }
        let at = rng.below(open.len() as u64) as usize;
        match rng.below(24) {
            0 => {
                let (ms, orderly) = (rng.of(&[10, 200, 900, 2500]), rng.one_in(2));
                if rng.one_in(2) {
                    let one = open.swap_remove(at);
                    for w in &mut worlds {
                        w.close(one, orderly);
                    }
                } else {
                    for w in &mut worlds {
                        w.pass(ms);
                    }
                }
            }
            1..=4 => {
                let ms = rng.below(200);
                for w in &mut worlds {
                    w.pass(ms);
                }
            }
            6 if rng.one_in(4) => {
                worlds.iter_mut().for_each(World::flush);
            }
            5 if rng.one_in(8) => {
                is_on = !is_on;
                let rules = if is_on { list.clone() } else { list[1..].to_vec() };
                worlds[1].set_rules(&rules);
                let rules = without(&world::rules(&rules));
                worlds[0].set_rules_to(rules);
            }
            _ => {
                let line = command(&mut rng, step);
                for w in &mut worlds {
                    w.send(open[at], &line);
                }
            }
        }
        let [a, b] = worlds.each_mut().map(|w| {
            let replies: Vec<String> = open.iter().map(|one| w.replies(*one)).collect();
            let events = std::mem::take(&mut w.events);
            (
                replies,
                events,
                w.engine.shared().clock(),
                w.engine.held(),
                w.engine.usage().0.items,
                w.next_deadline(),
            )
        });
        assert_eq!(a, b, "step {step}");
        assert!(worlds[1].jobs.is_empty(), "no loader is asked");
    }
    let counts = worlds.each_ref().map(|w| format!("{:?}", w.counters));
    assert_eq!(counts[0], counts[1]);
    let active = worlds[1].engine.shared().rules();
    let states =
        active.as_ref().into_iter().flat_map(|active| active.each()).map(|(_, state)| Arc::clone(state));
    states.map(|state| state.counters().values().iter().sum::<u64>()).sum()
}

fn command(rng: &mut Rng, step: u64) -> String {
    let key = format!("{}:{}", rng.of(&["page", "page", "user", "gone", "other"]), rng.below(3));
    let ttl = rng.of(&[0, 0, 1, 3, -1]);
    let value = rng.of(&["x", "1", "@tags:a\r\nx", "longer"]);
    let data = format!("{}|{value}|", value.len());
    let verb = rng.of(&["set", "set", "set", "add", "replace", "append", "prepend"]);
    match rng.below(24) {
        0..=5 => format!("{} {key}|", rng.of(&["get", "gets"])),
        6 => format!("get {key} page:1 user:2 other:1|"),
        7..=10 => format!("{verb} {key} {} {ttl} {data}", rng.below(3)),
        11 => format!("set {key} 0 {ttl} {} noreply|{value}|", value.len()),
        12 => format!("cas {key} 0 0 {} {}|{value}|", value.len(), rng.below(step + 2)),
        13 | 14 => format!("delete {key}|"),
        15 => format!("{} {key} 1|", rng.of(&["incr", "decr"])),
        16 => format!("{} {ttl} {key}|", rng.of(&["gat", "gats"])),
        17 => format!("touch {key} {ttl}|"),
        18 => {
            let flags = rng.of(&[
                "v",
                "N5 v t",
                "R3 v c",
                "T2 v",
                "",
                "N0 s v f",
                "v q k",
                "h l t v",
                "E9 N5 c v",
                "k O1 v Pw50",
            ]);
            format!("mg {key} {flags}|")
        }
        19 => {
            let flags = rng.of(&["", "T1", "ME", "MA N3", "I C3", "q", "E77", "MR c"]);
            format!("ms {key} {} {flags}|{value}|", value.len())
        }
        20 => format!("md {key} {}|", rng.of(&["", "I", "q", "x", "C5", "I T2"])),
        21 => format!("ma {key} {}|", rng.of(&["", "N3 J7", "MD", "D2 t v c"])),
        22 => format!("mg page:0 v q k|mg page:1 v q k|mg {key} v q k|mn|"),
        _ => match rng.below(4) {
            0 => format!("delete @tag:page:{}|", rng.below(3)),
            1 => format!("set @tags:{key} 0 0 1|a|"),
            2 => format!("me {key}|"),
            _ => format!("get @tag:page:{}|", rng.below(3)),
        },
    }
}
