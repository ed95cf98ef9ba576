//! Gets of many keys, or behind many values, of which a loader computes some: all parts wait.

use crate::world::World;
use cattlegrid_engine::LoadOutcome;
use cattlegrid_herd::{LeaseTime, Policy, RECORDS_MAX};

fn world() -> World {
    let policy =
        Policy { loader: true, lease: LeaseTime::Fixed(6000), hold_many_ms: 400, ..Policy::default() };
    World::new(&[("page:{id}", policy)])
}

/// The token of the only job.
fn job(w: &World) -> u64 {
    let [token] = w.tokens()[..] else { panic!("jobs: {:?}", w.tokens()) };
    token
}

const HI: &str = "VALUE page:1 0 2|hi|END|";

#[test]
fn parts_of_a_get_behind_values_that_were_sent_wait_too() {
    for (comes, rest) in
        [(true, "VALUE page:1 0 2|hi|VALUE other 0 3|xxx|END|"), (false, "VALUE other 0 3|xxx|END|")]
    {
        let mut w = world();
        let [a, b] = [(); 2].map(|()| w.connect());
        w.expect(b, "set other 0 0 3|xxx|", "STORED|");
        w.most = 10;
        w.expect(a, "get other page:1 other|", "VALUE other 0 3|xxx|");
        if comes {
            let token = job(&w);
            assert_eq!(w.finish_with(token, "hi"), LoadOutcome::Stored);
        } else {
            w.pass(399);
            assert_eq!(w.replies(a), "");
            w.pass(1);
        }
        assert_eq!(w.replies(a), rest);
    }
}

#[test]
fn a_get_of_more_keys_than_are_withheld_waits() {
    let mut w = world();
    let [a, b] = [(); 2].map(|()| w.connect());
    let keys = |count: usize| (0..count).map(|n| format!(" k{n}")).collect::<Vec<_>>().concat();
    w.expect(a, &format!("get page:1{}|", keys(RECORDS_MAX)), "");
    w.expect(b, &format!("get{} page:1|", keys(5 * RECORDS_MAX)), "");
    let token = job(&w);
    assert_eq!(w.finish_with(token, "hi"), LoadOutcome::Stored);
    assert_eq!(w.replies(a), HI);
    assert_eq!(w.replies(b), HI);
}
