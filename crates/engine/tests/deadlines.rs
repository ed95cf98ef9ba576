//! The memory that leases leave: none that grows with their number.

use crate::world;

use cattlegrid_engine::RulesConfig;
use cattlegrid_herd::{LEASE_BYTES, Policy};
use world::{World, config};

/// Short leases, each of which is filled, while a long lease that was granted first goes on.
#[test]
fn finished_leases_behind_a_long_one_leave_nothing() {
    let rules = RulesConfig { ledger_bytes: 1 << 20, ..config() };
    let mut w = World::with(&[("page:{id}", Policy::default())], &rules, 64 << 20, 1);
    let [long, short] = [(); 2].map(|()| w.connect());
    assert!(w.ask(long, "mg page:long c N60|").contains('W'));
    let mut most = 0;
    for n in 0..100_000 {
        // All of them would end later than the long one.
        let won = w.ask(short, "mg page:1 c N60|");
        let token = won.split([' ', '|']).find_map(|word| word.strip_prefix('c')).expect("it has won");
        let stored = w.ask(short, &format!("ms page:1 1 T-1 C{token}|x|"));
        assert_eq!(stored, "HD|");
        if n % 1000 == 999 {
            w.pass(1);
            let usage = w.engine.herd_usage();
            most = most.max(usage.deadlines);
            assert!(usage.leases_bytes <= rules.ledger_bytes / 2, "{} bytes", usage.leases_bytes);
        }
    }
    assert_eq!((most, w.engine.herd_usage().leases), (1, 1), "deadlines of leases that have ended");
    w.engine.verify();
}

/// As many leases as a shard may have, all of which end unfilled: the tables stay within the bytes that a
/// lease is counted for.
#[test]
fn the_memory_that_unfilled_leases_leave_is_counted() {
    let rules = RulesConfig { ledger_bytes: 1 << 20, ..config() };
    let policy = Policy { pass_for_ms: 120_000, pass_after: 1, ..Policy::default() };
    let mut w = World::with(&[("page:{id}", policy)], &rules, 64 << 20, 1);
    for round in 0..3 {
        for n in 0..3_000 {
            let one = w.connect();
            w.send(one, &format!("get page:{round}-{n}|"));
            w.close(one, n % 2 == 0);
            let detached = w.connect();
            w.send(detached, &format!("mg page:{round}-{n}-d c N60 Pd|"));
            w.close(detached, true);
        }
        let usage = w.engine.herd_usage();
        assert_eq!(usage.leases, usage.deadlines);
        let most = rules.ledger_bytes / 2 / LEASE_BYTES;
        assert!(usage.leases <= most && usage.leases_bytes <= rules.ledger_bytes / 2, "{usage:?}");
        w.pass(70_000);
        assert_eq!(w.engine.herd_usage().deadlines, 0);
    }
}
