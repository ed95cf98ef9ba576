//! Bumps by a log of tags that no item and no open miss has are left out, and nothing else is.

#![allow(clippy::many_single_char_names, reason = "connections a, b, c")]

use crate::world;

use cattlegrid_engine::FollowedLog;
use cattlegrid_herd::{FillWindow, LeaseTime, Policy, WhenBehind};
use cattlegrid_tags::{BumpKind, PrefixId};
use world::World;

const WINDOW_MS: u64 = 5000;

fn leased() -> Policy {
    Policy {
        lease: LeaseTime::Fixed(60_000),
        fill_window: FillWindow::Fixed(WINDOW_MS as u32),
        ..Policy::default()
    }
}

/// A rule that only names tags.
fn unleased() -> Policy {
    Policy { leases: false, hold_ms: 0, ..leased() }
}

fn follow(w: &World) {
    let log = FollowedLog {
        name: "shop".into(),
        source: "".into(),
        max_lag_ms: 600_000,
        when_behind: WhenBehind::Serve,
    };
    w.engine.follow_logs(vec![log], w.ms);
}

/// Whether bumps can be left out.
fn selects(w: &World) -> bool {
    w.engine.shared().tags().noted_share().is_some()
}

/// Passes time in steps: the engine does a piece of its upkeep in each second.
fn pass(w: &mut World, ms: u64) {
    (0..ms / 250).for_each(|_| w.pass(250));
}

/// Passes time until a generation of notes has ended that begins now.
fn renew(w: &mut World) {
    w.engine.renew_notes_soon();
    pass(w, WINDOW_MS + 5000);
    assert!(selects(w));
}

/// A world in which bumps are left out.
fn followed(policy: Policy) -> World {
    let mut w = World::new(&[("page:{id}", policy)]);
    follow(&w);
    assert!(!selects(&w));
    renew(&mut w);
    w
}

/// A row has changed. Whether the bump was recorded.
fn bump(w: &mut World, tag: &str) -> bool {
    let left_out = |w: &World| w.engine.shared().tags().stats().left_out;
    let before = left_out(w);
    w.engine.bump_followed(PrefixId::NONE, tag.as_bytes(), BumpKind::Hard, w.now());
    w.pass(1);
    left_out(w) == before
}

#[test]
fn tags_that_nothing_has_are_left_out() {
    let mut w = followed(leased());
    let a = w.connect();
    assert!(!bump(&mut w, "page:1"));
    w.expect(a, "get page:1|", "END|");
    w.expect(a, "set page:1 0 0 3|new|get page:1|", "STORED|VALUE page:1 0 3|new|END|");
    assert!(bump(&mut w, "page:1") && !bump(&mut w, "page:2"));
    w.expect(a, "get page:1|", "END|");
}

#[test]
fn an_item_from_before_the_log_was_followed_is_noted() {
    let mut w = World::new(&[("page:{id}", unleased())]);
    let a = w.connect();
    for n in 0..1000 {
        w.expect(a, &format!("set page:{n} 0 0 3|old|"), "STORED|");
    }
    follow(&w);
    assert!(bump(&mut w, "page:0"), "everything is recorded at first");
    renew(&mut w);
    assert!((1..1000).all(|n| bump(&mut w, &format!("page:{n}"))));
    for n in 0..1000 {
        w.expect(a, &format!("get page:{n}|"), "END|");
    }
}

#[test]
fn a_miss_that_is_open_outlives_a_generation() {
    for policy in [unleased(), leased()] {
        let mut w = followed(policy);
        let a = w.connect();
        w.expect(a, "get page:1|", "END|");
        w.engine.renew_notes_soon();
        // Longer than the walk, and less than the window.
        pass(&mut w, WINDOW_MS - 1000);
        assert!(bump(&mut w, "page:1"));
        w.expect(a, "set page:1 0 0 3|old|get page:1|", "STORED|END|");
    }
}

#[test]
fn a_lease_outlives_generations_and_is_revoked() {
    let mut w = followed(leased());
    let [a, b] = [(); 2].map(|()| w.connect());
    let won = w.ask(a, "mg page:1 v c N60|");
    let token = won.strip_prefix("VA 0 c").and_then(|rest| rest.strip_suffix(" W||")).expect(&won).to_owned();
    renew(&mut w);
    renew(&mut w);
    w.expect(b, "get page:1|", "");
    assert!(bump(&mut w, "page:1"));
    assert_eq!(w.replies(b), "END|", "it computes instead");
    w.expect(a, &format!("ms page:1 3 C{token}|old|"), "NF|");
    w.expect(b, "set page:1 0 0 3|new|get page:1|", "STORED|VALUE page:1 0 3|new|END|");
}

#[test]
fn a_tag_that_comes_with_the_value_obeys_what_was_left_out() {
    for policy in [unleased(), leased()] {
        let mut w = followed(policy);
        let a = w.connect();
        w.expect(a, "get page:1|", "END|");
        assert!(!bump(&mut w, "user:7"));
        w.expect(a, "ms page:1 3 Guser:7|old|mg page:1 v|", "HD|EN|");
        w.expect(a, "set page:1 0 0 3|new|get page:1|", "STORED|VALUE page:1 0 3|new|END|");
        w.expect(a, "ms page:2 3 Guser:7|new|mg page:2 v|", "HD|VA 3|new|");
        assert!(bump(&mut w, "user:7"));
        w.expect(a, "mg page:2 v|", "EN|");
    }
}

#[test]
fn what_is_gone_is_forgotten() {
    let mut w = followed(unleased());
    let a = w.connect();
    w.expect(a, "set page:1 0 0 3|new|", "STORED|");
    renew(&mut w);
    assert!(bump(&mut w, "page:1"), "the item has it");
    w.expect(a, "get page:1|", "END|");
    renew(&mut w);
    renew(&mut w);
    assert!(!bump(&mut w, "page:1"));
}

#[test]
fn other_rules_begin_anew() {
    let mut w = followed(leased());
    let a = w.connect();
    w.expect(a, "get page:1|", "END|");
    w.set_rules(&[("page:{id}", unleased())]);
    assert!(!selects(&w) && bump(&mut w, "page:1") && bump(&mut w, "page:2"));
    renew(&mut w);
    assert!(!bump(&mut w, "page:2"));
}
