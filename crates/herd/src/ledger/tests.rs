//! The ledger and the fence by themselves.

use super::*;
use crate::account::ShownValue;

const WINDOW: u32 = 1000;

struct Same;

impl ValueHashes for Same {
    fn fill(&self) -> u64 {
        7
    }

    fn shown(&self) -> Option<ShownValue> {
        None
    }
}

fn record(ledger: &mut Ledger, hash: u64, number: u64, now_ms: u64) -> bool {
    ledger.record(hash, number, Events::default(), now_ms, WINDOW)
}

fn fill(ledger: &mut Ledger, hash: u64, now_ms: u64) -> Judgement {
    let moment = FillMoment { now_ms, p99_ms: 1, strict: false };
    ledger.fill(hash, &Surroundings::default(), &moment, &Same).judgement
}

#[test]
fn what_a_key_takes() {
    assert_eq!((ENTRY_BYTES, ACCOUNT_BYTES), (93, 584));
}

#[test]
fn the_memory_is_bounded_and_losses_are_counted() {
    for bytes in [1 << 14, 1 << 18] {
        let mut ledger = Ledger::new(bytes);
        let mut kept = 0_usize;
        for n in 0..10_000_u64 {
            let hash = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            kept += usize::from(record(&mut ledger, hash, n, 0));
            // Every fourth key is missed twice.
            if n % 4 == 0 {
                record(&mut ledger, hash, n, 1);
            }
        }
        let used = ledger.len() * ENTRY_BYTES + ledger.apart * ACCOUNT_BYTES;
        assert!(used <= bytes * 7 / 8 && used > bytes * 7 / 8 - 2 * ACCOUNT_BYTES, "{used} of {bytes}");
        assert_eq!(kept, ledger.len());
        assert!(ledger.lost_slots() > 0 && ledger.apart > 0);
        ledger.sweep(10_000);
        assert_eq!((ledger.len(), ledger.apart, ledger.lost_slots()), (0, 0, 0));
    }
}

#[test]
fn a_lost_miss_is_remembered_for_its_slot() {
    let mut ledger = Ledger::with(2, 1);
    assert!(record(&mut ledger, 1, 10, 0) && record(&mut ledger, 2, 11, 0));
    assert!(!record(&mut ledger, 3, 12, 100));
    assert_eq!([1, 3, 9].map(|hash| ledger.oldest(hash, 300)), [Some(10), Some(12), Some(12)]);
    assert_eq!((ledger.slots_in_loss(300), ledger.slots_in_loss(1_100)), (1, 0));
    // A fill may be of the lost miss: the key's own stays on record.
    assert_eq!(fill(&mut ledger, 1, 300), Judgement::Clean { stamp: 10 });
    assert_eq!(ledger.oldest(1, 300), Some(10));
    assert_eq!(fill(&mut ledger, 9, 300), Judgement::Clean { stamp: 12 });
    assert_eq!(ledger.outstanding(1_000), 0);
    assert_eq!(fill(&mut ledger, 9, 1_100), Judgement::Write);
}

#[test]
fn after_a_start_what_may_be_of_a_lost_miss_is_not_taken_for_one_from_before() {
    let mut ledger = Ledger::with(2, 1);
    let start = Some(RecordStart { number: 5, at_ms: 0, until_ms: 60_000, drops: false });
    let hard = |number| Events { hard: number, ..Events::default() };
    let around = Surroundings { start, slot: hard(20), written: hard(20), ..Surroundings::default() };
    let moment = FillMoment { now_ms: 500, p99_ms: 100, strict: false };
    let judge = |ledger: &mut Ledger, around: &Surroundings| ledger.fill(3, around, &moment, &Same).judgement;
    // All misses since the start are on record: it belongs to none of them.
    assert_eq!(judge(&mut ledger, &around), Judgement::Unrecorded);
    // A crawler's misses fill the table, and the key's own finds no room.
    record(&mut ledger, 1, 10, 400);
    record(&mut ledger, 2, 11, 400);
    assert!(!record(&mut ledger, 3, 21, 450));
    let provisional = Judgement::Provisional { stamp: 20, until_ms: 900, instead: false };
    assert_eq!(judge(&mut ledger, &around), provisional);
    let drops = Surroundings { start: start.map(|start| RecordStart { drops: true, ..start }), ..around };
    assert_eq!(judge(&mut ledger, &drops), Judgement::Unrecorded);
}

#[test]
fn steady_losses_do_not_keep_a_number_for_ever() {
    let mut ledger = Ledger::with(1, 1);
    record(&mut ledger, 1, 1, 0);
    let window = u64::from(WINDOW);
    for n in 2..1_000 {
        let now_ms = n * 100;
        record(&mut ledger, 1, n, now_ms);
        record(&mut ledger, 2, n, now_ms);
        let oldest = ledger.oldest(3, now_ms).expect("it was lost");
        assert!(n - oldest <= 2 * window / 100, "{oldest} at {n}");
        // And what is lost counts for a window at least.
        assert!(n < 2 + window / 100 || oldest <= n - window / 100 + 1, "{oldest} at {n}");
    }
}

#[test]
fn a_fill_that_is_undone_comes_again_as_if_for_the_first_time() {
    for misses in 1..3 {
        let mut ledger = Ledger::with(10, 1);
        (0..misses).for_each(|n| assert!(record(&mut ledger, 1, 10 + n, n)));
        ledger.harden(1, 11);
        let first = fill(&mut ledger, 1, 5);
        let after = ledger.view(1, &Surroundings::default(), 5);
        ledger.undo(1);
        ledger.undo(1);
        assert_eq!(fill(&mut ledger, 1, 5), first);
        assert_eq!(ledger.view(1, &Surroundings::default(), 5), after);
    }
}

#[test]
fn a_token_takes_its_own_miss() {
    let mut ledger = Ledger::with(10, 1);
    record(&mut ledger, 1, 10, 0);
    record(&mut ledger, 1, 20, 10);
    let around = Surroundings::default();
    assert!(ledger.take(1, Some(10), &around, 20), "nothing old is open");
    assert_eq!(ledger.oldest(1, 20), Some(20));
    ledger.harden(1, 25);
    record(&mut ledger, 1, 30, 30);
    assert!(!ledger.take(1, Some(30), &around, 40), "20 is");
    assert!(ledger.take(1, Some(20), &around, 50));
    assert!(ledger.is_empty() && ledger.apart == 0);
}

#[test]
fn a_miss_keeps_the_longest_window_of_its_account() {
    let mut ledger = Ledger::with(10, 1);
    record(&mut ledger, 1, 10, 0);
    ledger.record(1, 20, Events::default(), 10, WINDOW / 10);
    assert_eq!(ledger.oldest(1, 999), Some(10));
    assert_eq!((ledger.oldest(1, 1000), ledger.oldest(1, 1010)), (Some(20), None));
}

#[test]
fn numbers_only_rise_and_kinds_are_apart() {
    let mut fence = Fence::new(5);
    assert_eq!(fence.slots(), 5);
    fence.raise_hard(9, 7);
    fence.raise_hard(9, 3);
    assert_eq!(fence.events(9), Events { hard: 7, soft: 0 });
    fence.raise_soft(9, 11);
    fence.raise_written(9, 13);
    assert_eq!(fence.events(9), Events { hard: 7, soft: 11 });
    assert_eq!(fence.events_and_writes(9), Events { hard: 13, soft: 11 });
}

#[test]
fn misses_do_not_grow_old_in_a_stop() {
    let mut ledger = Ledger::with(3, 1);
    assert!(record(&mut ledger, 1, 10, 0));
    // A key with an account, and a miss that finds no room.
    assert!(record(&mut ledger, 2, 11, 0) && record(&mut ledger, 2, 12, 500));
    assert!(record(&mut ledger, 3, 13, 500) && !record(&mut ledger, 4, 14, 500));
    ledger.delay(5_000, 5_500);
    assert_eq!((ledger.outstanding(5_999), ledger.slots_in_loss(6_499)), (3, 1));
    assert_eq!(ledger.outstanding(6_000), 2, "the first key's is a window old, without the stop");
    assert_eq!(ledger.outstanding(6_499), 2);
    assert_eq!((ledger.outstanding(6_500), ledger.slots_in_loss(6_500)), (0, 0));
    // A thread that was stopped in the middle of its work has a time of before.
    assert!(record(&mut ledger, 5, 15, 500));
    assert_eq!((ledger.outstanding(6_499), ledger.outstanding(6_500)), (1, 0));
}

#[test]
fn an_event_is_as_old_as_the_misses_before_it() {
    let hard = Events { hard: 20, soft: 0 };
    let mut ledger = Ledger::with(2, 1);
    record(&mut ledger, 1, 10, 0);
    ledger.harden(1, 20);
    ledger.record(1, 21, hard, 900, WINDOW);
    ledger.delay(5_000, 5_900);
    let around = Surroundings { outside: hard, ..Surroundings::default() };
    assert_eq!(ledger.view(1, &around, 5_999).old, 1);
    assert_eq!(ledger.view(1, &around, 6_000).old, 0);
}
