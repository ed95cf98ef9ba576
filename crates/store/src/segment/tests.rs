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
