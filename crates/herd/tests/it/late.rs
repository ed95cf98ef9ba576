//! Decisions that come late: between the deadline of a lease and the timer that acts on it.

use std::sync::Arc;

use cattlegrid_herd::{
    Ask, AskMode, Caller, Clock, Effects, FillWindow, Herd, HerdConfig, HerdStep, HoldTerms, LeaseKind,
    LeaseLimit, LeaseTime, PeerKey, Peers, Policy, Role, RuleState, Session, WaitAnswer,
};

struct Seven;

impl Clock for Seven {
    fn tick(&self) -> u64 {
        7
    }

    fn last(&self) -> u64 {
        7
    }
}

/// A request that waits is answered after all, at the moment in which it was given the lease, and the lease's
/// deadline has passed: its miss counts for a fill window, not for seven weeks.
#[test]
fn the_miss_of_a_lease_whose_time_is_up_ends_with_its_window() {
    let policy = Policy {
        lease: LeaseTime::Fixed(10),
        fill_window: FillWindow::Fixed(500),
        pass_after: 9,
        ..Policy::default()
    };
    let rule = Arc::new(RuleState::new(policy));
    let peers = Peers::default();
    let session = |number: u64| {
        let peer = peers.join(PeerKey::Process(number as i32));
        Session::new(Arc::new(Caller::new(number, 0, number, peer)))
    };
    let (mut holder, mut waiter) = (session(1), session(2));
    let mut herd = Herd::new(HerdConfig {
        leases: LeaseLimit::new(10),
        ended: 10,
        ledger_bytes: 1 << 16,
        fence_bytes: 1 << 10,
    });
    let ask = Ask {
        key: b"k",
        hash: 3,
        rule: &rule,
        found: LeaseKind::Absent,
        how: AskMode::Plain,
        outside: cattlegrid_herd::Events::default(),
        tags: &[],
        hint: None,
        hold_ms: 400,
        wait_ms: 0,
    };
    let hold = HoldTerms { request: 1, slot: 0, touch: None, room: true, many: false };
    let mut effects = Effects::default();
    let mut at = |now_ms: u64, act: &mut dyn FnMut(&mut Herd, &mut HerdStep<'_, ()>)| {
        act(&mut herd, &mut HerdStep { now_ms, clock: &Seven, effects: &mut effects });
    };
    at(0, &mut |herd, step| {
        let Role::Compute(grant) = herd.ask(&ask, &holder, step) else { panic!("no lease") };
        let _told = grant.accept(&mut holder, step.now_ms);
    });
    at(1, &mut |herd, step| assert!(matches!(herd.ask(&ask, &waiter, step), Role::Leased)));
    at(1, &mut |herd, step| {
        assert!(matches!(herd.wait(&ask, &hold, &mut waiter, step), WaitAnswer::Waits(_)));
    });
    at(10, &mut Herd::handle_timeouts);
    at(25, &mut |herd, step| {
        let record = herd.promoted(3, 2, step);
        assert!(record.leased);
        assert_eq!(record.until_ms, 25 + 500);
    });
    assert_eq!(effects.wakes.len(), 1);
}
