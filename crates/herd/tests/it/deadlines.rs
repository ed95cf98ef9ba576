//! The memory that millions of leases leave: none that grows with their number.

use std::cell::Cell;
use std::sync::Arc;

use cattlegrid_herd::{
    Ask, AskMode, Caller, Clock, Effects, Filler, Herd, HerdConfig, HerdStep, LEASE_BYTES, LeaseKind,
    LeaseLimit, PeerKey, Peers, Policy, Role, RuleState, Session,
};

struct Numbers(Cell<u64>);

impl Clock for Numbers {
    fn tick(&self) -> u64 {
        self.0.set(self.0.get() + 1);
        self.0.get()
    }

    fn last(&self) -> u64 {
        self.0.get()
    }
}

/// Short leases, each of which is filled before its deadline, while a long lease that was granted first goes
/// on.
#[test]
fn millions_of_finished_leases_behind_a_long_one_leave_nothing() {
    const LEASES: usize = 1000;
    let config = HerdConfig {
        leases: LeaseLimit::new(LEASES),
        ended: LEASES,
        ledger_bytes: 1 << 16,
        fence_bytes: 1 << 10,
    };
    let (mut herd, clock) = (Herd::new(config), Numbers(Cell::new(0)));
    let rule = Arc::new(RuleState::new(Policy::default()));
    let peers = Peers::default();
    let mut session = Session::new(Arc::new(Caller::new(1, 0, 1, peers.join(PeerKey::Process(1)))));
    let mut most_bytes = 0;
    for n in 0..3_000_000_u64 {
        let mut effects = Effects::<()>::default();
        let mut step = HerdStep { now_ms: n / 100, clock: &clock, effects: &mut effects };
        let ask = Ask {
            key: b"k",
            hash: n.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            rule: &rule,
            found: LeaseKind::Absent,
            how: AskMode::Explicit { detached: false, lease_ms: Some(60_000) },
            outside: cattlegrid_herd::Events::default(),
            tags: &[],
            hint: None,
            hold_ms: 0,
            wait_ms: 0,
        };
        let Role::Compute(grant) = herd.ask(&ask, &session, &mut step) else { panic!("no lease") };
        let (token, _hint) = grant.accept(&mut session, step.now_ms);
        // The first lease goes on.
        if n > 0 {
            let by = Filler { connection: Some(1), token: Some(token), pooled: false };
            assert!(herd.stored(ask.hash, ask.key, by, None, &mut step).is_empty());
            herd.use_token(ask.hash, token, &cattlegrid_herd::Surroundings::default(), step.now_ms);
        }
        assert_eq!((herd.len(), herd.deadlines()), (1, 1));
        most_bytes = most_bytes.max(herd.leases_bytes());
    }
    assert_eq!(herd.next_deadline_ms(), Some(60_000));
    assert!(most_bytes <= LEASES * LEASE_BYTES, "{most_bytes} bytes");
    herd.verify();
}
