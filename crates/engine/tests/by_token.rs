//! Values that are filled without a connection, only by the lease's token. One scene each.

#![allow(clippy::many_single_char_names, clippy::unwrap_used, reason = "connections a, b, c")]

use crate::world::World;
use cattlegrid_engine::{Filled, TokenFill};
use cattlegrid_herd::{LeaseTime, Policy};

fn world() -> World {
    let policy = Policy { lease: LeaseTime::Fixed(3000), grace_s: 60, ..Policy::default() };
    World::new(&[("page:{id}", policy)])
}

fn value(token: u64, data: &str) -> TokenFill<'_> {
    TokenFill { key: b"page:1", token, data: data.as_bytes(), flags: 7, exptime: 0, negative: false }
}

/// The connection takes the lease of the key.
fn lease(w: &mut World, connection: u64) -> u64 {
    let won = w.ask(connection, "mg page:1 c N30|");
    let token = won.split(['c', ' ']).nth(2).and_then(|token| token.parse().ok());
    token.unwrap_or_else(|| panic!("no lease: {won}"))
}

#[test]
fn the_waiters_get_the_value() {
    let mut w = world();
    let [a, b, c] = [(); 3].map(|()| w.connect());
    let token = lease(&mut w, a);
    w.expect(b, "get page:1|", "");
    w.expect(c, "mg page:1 v f N30 Pw400|", "");
    assert_eq!(w.fill(&value(token, "hi")), Filled::Stored);
    assert_eq!(w.replies(b), "VALUE page:1 7 2|hi|END|");
    assert_eq!(w.replies(c), "VA 2 f7|hi|");
    w.expect(a, "get page:1|", "VALUE page:1 7 2|hi|END|");
    assert_eq!((w.count("fills_stored"), w.engine.leases()), (1, 0));
    // The token was used.
    assert_eq!(w.fill(&value(token, "ho")), Filled::Unknown);
    w.expect(a, "get page:1|", "VALUE page:1 7 2|hi|END|");
    // The connection that took the lease has no open miss any more: its value is an ordinary write.
    w.expect(a, "set page:1 0 0 3|own|", "STORED|");
    w.expect(b, "get page:1|", "VALUE page:1 0 3|own|END|");
}

#[test]
fn a_value_invalidated_meanwhile_is_not_stored() {
    for (event, counter) in [("delete page:1|", "fills_dropped"), ("mg @bump:page v|", "fills_dropped")] {
        let mut w = world();
        let [a, b] = [(); 2].map(|()| w.connect());
        let token = lease(&mut w, a);
        w.ask(b, event);
        assert_eq!(w.fill(&value(token, "old")), Filled::Late, "{event}");
        w.expect(b, "get page:1|", "END|");
        assert_eq!(w.count(counter), 1, "{event}");
    }
}

#[test]
fn a_value_softened_meanwhile_is_stored_as_stale() {
    let mut w = world();
    let [a, b, c] = [(); 3].map(|()| w.connect());
    let token = lease(&mut w, a);
    w.ask(b, "md page:1 I|");
    assert_eq!(w.fill(&value(token, "old")), Filled::Stored);
    assert_eq!(w.count("fills_stale"), 1);
    w.expect(b, "get page:1|", "END|");
    w.expect(c, "get page:1|", "VALUE page:1 7 3|old|END|");
}

#[test]
fn an_unknown_token_changes_nothing() {
    let mut w = world();
    let [a, b] = [(); 2].map(|()| w.connect());
    assert_eq!(w.fill(&value(1, "x")), Filled::Unknown, "no lease");
    let token = lease(&mut w, a);
    w.expect(b, "get page:1|", "");
    assert_eq!(w.fill(&value(token + 1, "x")), Filled::Unknown, "not its token");
    let unruled = TokenFill { key: b"other", ..value(token, "x") };
    assert_eq!(w.fill(&unruled), Filled::Unknown, "not its key, which has no rule");
    assert_eq!(w.fill(&TokenFill { key: b"page:2", ..unruled }), Filled::Unknown, "not its key");
    assert_eq!((w.replies(b).as_str(), w.engine.leases()), ("", 1), "it goes on");
    assert_eq!(w.fill(&value(token, "y")), Filled::Stored);
    assert_eq!(w.replies(b), "VALUE page:1 7 1|y|END|");
}

#[test]
fn an_expired_value_goes_to_the_waiters() {
    let mut w = world();
    let [a, b] = [(); 2].map(|()| w.connect());
    let token = lease(&mut w, a);
    w.expect(b, "get page:1|", "");
    assert_eq!(w.fill(&TokenFill { exptime: -1, ..value(token, "now") }), Filled::Stored);
    assert_eq!(w.replies(b), "VALUE page:1 7 3|now|END|");
    w.expect(b, "get page:1|", "END|");
}

#[test]
fn a_negative_answer_needs_an_end() {
    let mut w = world();
    let [a, b] = [(); 2].map(|()| w.connect());
    let token = lease(&mut w, a);
    w.expect(b, "get page:1|", "");
    let absent = TokenFill { negative: true, ..value(token, "") };
    assert_eq!(w.fill(&absent), Filled::NeedsTtl);
    assert_eq!((w.replies(b).as_str(), w.engine.leases()), ("", 1), "it goes on");
    assert_eq!(w.fill(&TokenFill { exptime: 10, ..absent }), Filled::Stored);
    assert_eq!((w.replies(b), w.count("negatives")), ("END|".into(), 1));
}

#[test]
fn a_value_that_is_too_large_passes_the_lease_on() {
    let mut w = world();
    let [a, b] = [(); 2].map(|()| w.connect());
    let token = lease(&mut w, a);
    w.expect(b, "mg page:1 c N30 Pw400|", "");
    let large = "x".repeat(9 << 20);
    assert_eq!(w.fill(&value(token, &large)), Filled::Refused);
    let won = w.replies(b);
    assert!(won.starts_with("HD c") && won.ends_with(" W|"), "{won}");
    // A value in its own pages is stored as any other.
    let next: u64 = won.split(['c', ' ']).nth(2).unwrap().parse().unwrap();
    assert_eq!(w.fill(&value(next, &large[..4 << 20])), Filled::Stored);
    w.expect(a, "mg page:1 s|", &format!("HD s{}|", 4 << 20));
}

#[test]
fn a_failure_reaches_the_waiters_that_asked_for_the_lease() {
    let mut w = world();
    let [a, b, c] = [(); 3].map(|()| w.connect());
    let token = lease(&mut w, a);
    w.expect(b, "mg page:1 v N30 Pw400|", "");
    w.expect(c, "get page:1|", "");
    assert!(!w.fail("page:1", token + 1, "no"));
    assert!(w.fail("page:1", token, "out%20of%20paper"));
    assert_eq!(w.replies(b), "EN Peout%20of%20paper|");
    assert_eq!(w.replies(c), "END|", "it computes");
    assert!(!w.fail("page:1", token, "again"));
    assert_eq!(w.fill(&value(token, "late")), Filled::Unknown);
}
