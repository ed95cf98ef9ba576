//! Runs and pages of a memory, whole, in pieces and at its limit.

use super::*;

const MIB: usize = 1 << 20;

#[test]
fn what_is_free_beyond_a_lowered_limit_goes_back() {
    let memory = Memory::new(8 * MIB).unwrap();
    let mut pages = PageSet::new(&memory);
    assert!(pages.grow(8 * MIB / PAGE_BYTES));
    pages.shrink(MIB / PAGE_BYTES);
    assert_eq!(memory.lock().touched(), 8 * MIB / PAGE_BYTES);
    memory.set_limit(2 * MIB).unwrap();
    memory.hold();
    assert!(memory.lock().touched() <= 2 * MIB / PAGE_BYTES);
    assert_eq!(memory.used_bytes(), MIB);
}

#[test]
fn runs_are_disjoint_and_come_back() {
    let memory = Memory::new(MIB).unwrap();
    let mut runs: Vec<Run> = (0..8).map(|_| memory.aligned(128 << 10).unwrap()).collect();
    assert!(memory.aligned(PAGE_BYTES).is_none());
    for (i, run) in runs.iter_mut().enumerate() {
        assert_eq!(run.offset() % run.len(), 0);
        run.bytes_mut().fill(i as u8);
    }
    for (i, run) in runs.iter().enumerate() {
        assert!(run.bytes().iter().all(|b| *b == i as u8));
    }
    runs.clear();
    assert_eq!(memory.used_bytes(), 0);
    assert_eq!(memory.scattered(MIB).unwrap().count(), 1);
}

#[test]
fn scattered_takes_the_last_page() {
    let memory = Memory::new(64 * PAGE_BYTES).unwrap();
    let mut pages: Vec<Option<Run>> = (0..64).map(|_| memory.aligned(PAGE_BYTES)).collect();
    pages.iter_mut().step_by(2).for_each(|p| *p = None);
    assert!(memory.scattered(33 * PAGE_BYTES).is_none());
    let runs = memory.scattered(32 * PAGE_BYTES).unwrap();
    assert_eq!((runs.len(), runs.count()), (32 * PAGE_BYTES, 32));
    assert_eq!(memory.free_bytes(), 0);
}

/// Bytes are found at every offset, a part goes back, and it grows again; in one run and in several.
#[test]
fn runs_are_one_row_of_bytes() {
    for step in [1, 2] {
        let memory = Memory::new(64 * PAGE_BYTES).unwrap();
        let mut pages: Vec<Option<Run>> = (0..64).map(|_| memory.aligned(PAGE_BYTES)).collect();
        pages.iter_mut().step_by(step).for_each(|page| *page = None);
        let others = memory.used_bytes();
        let mut runs = Runs::new(&memory);
        assert_eq!((runs.len(), runs.count(), runs.from(0).count(), runs.from(7).count()), (0, 0, 0, 0));
        for pages in [0, 3, 1, 4] {
            let before = runs.len();
            assert!(runs.grow(pages * PAGE_BYTES));
            assert_eq!(runs.len(), before + pages * PAGE_BYTES);
        }
        let mut n = 0_u64;
        for byte in runs.from_mut(0).flatten() {
            (*byte, n) = ((n % 251) as u8, n + 1);
        }
        assert_eq!(n as usize, runs.len());
        let check = |runs: &Runs, offset: usize| {
            assert!(runs.from(offset).flatten().copied().eq((offset..runs.len()).map(|n| (n % 251) as u8)));
        };
        for offset in [0, 1, 4_095, 4_096, 4_097, 12_287, 12_288, 20_000, 8 * 4_096 - 1, 8 * 4_096] {
            check(&runs, offset);
            assert_eq!(runs.from_mut(offset).map(|run| run.len()).sum::<usize>(), runs.len() - offset);
        }
        for bytes in [40_000, 7 * 4_096 + 1, 7 * 4_096, 5 * 4_096 - 1, 4_096, 1] {
            runs.truncate(bytes);
            assert_eq!(runs.len(), bytes.next_multiple_of(PAGE_BYTES).min(8 * PAGE_BYTES));
            assert_eq!(memory.used_bytes(), others + runs.len());
            check(&runs, 0);
        }
        assert!(!runs.grow(memory.free_bytes() + 1) && runs.grow(memory.free_bytes()));
        assert_eq!(memory.free_bytes(), 0);
        drop(runs);
        assert_eq!(memory.used_bytes(), others);
    }
}

#[test]
fn single_pages_are_taken_all_or_none_and_the_lowest_are_used_again() {
    let memory = Memory::new(64 * PAGE_BYTES).unwrap();
    let mut set = PageSet::new(&memory);
    assert!(set.grow(60));
    for number in 0..60 {
        set.page_mut(number).fill(number as u8);
    }
    let run = memory.aligned(PAGE_BYTES).unwrap();
    assert!(!set.grow(4));
    assert_eq!((set.len(), memory.free_bytes()), (60, 3 * PAGE_BYTES));
    assert!(set.grow(3));
    assert!(!set.grow(1));
    assert!((0..60).all(|number| set.page(number).iter().all(|byte| *byte == number as u8)));
    set.swap(0, 62);
    assert!(set.page(62).iter().all(|byte| *byte == 0));
    let lowest = set.order()[40..].iter().copied().min().unwrap();
    set.shrink(40);
    assert_eq!(memory.free_bytes(), 23 * PAGE_BYTES);
    assert!(set.grow(1));
    assert_eq!(set.order()[40], lowest);
    drop(set);
    assert_eq!(memory.used_bytes(), PAGE_BYTES);
    drop(run);
    assert_eq!(memory.scattered(64 * PAGE_BYTES).unwrap().count(), 1);
}

#[test]
fn the_numbers_of_pages_shrink_with_them() {
    let memory = Memory::new(8 << 20).unwrap();
    let mut set = PageSet::new(&memory);
    assert!(set.grow(2048));
    assert!(set.heap_bytes() >= 8192);
    set.shrink(100);
    assert!(set.heap_bytes() <= 1600, "{}", set.heap_bytes());
    assert_eq!(memory.used_bytes(), 100 * PAGE_BYTES);
}

#[test]
fn the_limit_moves() {
    let memory = Memory::new(MIB).unwrap();
    let all = memory.scattered(MIB).unwrap();
    if !cfg!(miri) {
        memory.set_limit(2 * MIB).unwrap();
        assert!(memory.scattered(MIB).is_some());
        assert!(memory.set_limit(5 * MIB).is_err());
    }
    memory.set_limit(MIB / 2).unwrap();
    assert_eq!(memory.free_bytes(), 0);
    drop(all);
    assert!(memory.scattered(MIB).is_none());
    assert!(memory.scattered(MIB / 2).is_some());
}

/// Every other page is free: half of the memory can be had as runs of 64 pages, and no more is resident than
/// before.
#[test]
fn pages_in_pieces_are_not_stranded() {
    if cfg!(miri) {
        return;
    }
    let memory = Memory::new(2 * MIB).unwrap();
    let mut pages: Vec<Option<Run>> = (0..512).map(|_| memory.aligned(PAGE_BYTES)).collect();
    pages.iter_mut().flatten().for_each(|page| page.bytes_mut().fill(7));
    pages.iter_mut().step_by(2).for_each(|page| *page = None);
    let mut runs = Vec::new();
    while let Some(mut run) = memory.aligned(64 * PAGE_BYTES) {
        run.bytes_mut().fill(runs.len() as u8);
        assert!(memory.lock().touched() <= 512);
        runs.push(run);
    }
    assert_eq!((runs.len(), memory.free_bytes(), memory.stranded_bytes(64 * PAGE_BYTES)), (4, 0, 0));
    assert!(pages.iter().flatten().all(|page| page.bytes().iter().all(|byte| *byte == 7)));
    assert!(runs.iter().enumerate().all(|(n, run)| run.bytes().iter().all(|byte| *byte == n as u8)));
    runs.clear();
    // The same pages in the pieces that were given back: zeros.
    let zeros = memory.scattered(MIB).unwrap();
    assert!(memory.lock().touched() <= 512 && zeros.len() == MIB);
    memory.set_locked();
    drop(zeros);
    assert!(memory.aligned(64 * PAGE_BYTES).is_some(), "what is mapped already is used");
}

#[test]
fn idle_pages_are_given_back_at_the_second_purge() {
    let memory = Memory::new(MIB).unwrap();
    let mut run = memory.aligned(PAGE_BYTES * 4).unwrap();
    run.bytes_mut().fill(7);
    assert_eq!(memory.purge(), 0);
    drop(run);
    assert_eq!(memory.purge(), 0);
    assert_eq!(memory.purge(), 4 * PAGE_BYTES);
    assert_eq!(memory.purge(), 0);
    assert!(memory.scattered(MIB).unwrap().from(0).flatten().all(|b| *b == 0));
}
