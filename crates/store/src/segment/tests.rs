use super::*;
use crate::memory::PAGE_BYTES;

/// While a segment is collected, writers and other survivors leave what its pinned items need.
#[test]
fn writers_leave_room_for_pinned_items() {
    const BYTES: usize = 1024;
    let memory = Memory::new(1 << 20).unwrap();
    let mut log = Log::new(Arc::clone(&memory), 16 * BYTES, 1).unwrap();
    let _rest: Vec<Run> = std::iter::from_fn(|| memory.aligned(PAGE_BYTES)).collect();
    let weights = [Weight::plain(BYTES), Weight { pinned: true, ..Weight::plain(BYTES) }];
    let items: Vec<(u64, Weight)> = (0..16)
        .map(|n| {
            let (location, weight) =
                (log.append(SegmentQueue::Main, 0, BYTES).unwrap(), weights[usize::from(n >= 4)]);
            log.add(location, weight, NEVER, 1, 0);
            (location, weight)
        })
        .collect();
    assert!(log.append(SegmentQueue::Main, 0, BYTES).is_none(), "the last spare is the collector's");
    log.collect(0);
    let mut written = 0;
    for (from, weight) in items {
        if let Some(to) = log.append_survivor(SegmentQueue::Main, 0, BYTES, weight.pinned) {
            log.remove(from, weight);
            log.add(to, weight, NEVER, 1, 0);
        } else {
            assert!(!weight.pinned, "a pinned item has no room");
            log.remove(from, weight);
        }
        log.verify_room();
        if let Some(location) = log.append_anywhere(SegmentQueue::Main, 0, BYTES) {
            log.add(location, weights[0], NEVER, 1, 0);
            written += 1;
        }
        log.verify_room();
    }
    assert_eq!(written, 2, "two of the four that are not pinned had to leave for them");
    log.free(0, false);
    log.verify_room();
    assert!(!log.is_reserve_gone());
}

/// A class says the share, the place and the order of the ends of its items, for as many shares and TTLs as
/// there may be.
#[test]
fn a_class_is_of_one_share_and_one_place() {
    const YEAR: u32 = 365 * 86_400;
    for (keeps_all, short) in [(false, Place::Short), (true, Place::Long)] {
        let memory = Memory::new(1 << 20).unwrap();
        let mut log = Log::new(memory, 16 << 10, 8).unwrap();
        log.set_keeps_all(keeps_all);
        for share in 0..shares::COUNT as u8 {
            let ends = [1, 60, 86_400, YEAR, NEVER];
            for (bytes, place) in [(511, short), (512, Place::Long)] {
                let classes = ends.map(|dead_at| log.class(share, 0, dead_at, bytes));
                for class in classes {
                    assert_eq!((log.share_of(class), Place::of(class, false)), (share, place));
                    assert!(log.classes_of(share).contains(&class));
                }
                assert!(classes.is_sorted() && Log::dies_later(classes[4], classes[3]));
                assert!(Log::dies_later(classes[2], classes[1]) && !Log::dies_later(classes[1], classes[1]));
            }
            let [one, other] = [511, 512].map(|bytes| log.class(share, 0, NEVER, bytes));
            assert!(!Log::dies_later(one, other) && !Log::dies_later(other, one), "the size is no life");
        }
    }
}
