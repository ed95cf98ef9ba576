//! A walk of a whole store that checks its invariants, for tests and fuzz targets.

use std::collections::BTreeMap;

use crate::counters::StoreUsage;
use crate::holdings::ObjectUsage;
use crate::item;
use crate::segment::{SegmentQueue, SegmentState};
use crate::shares::{COUNT, ShareSet};
use crate::store::Store;

/// The sums of a walk.
#[derive(Default)]
struct WalkSums {
    items: usize,
    bytes: usize,
    outside: usize,
    pinned_bytes: usize,
    pinned_outside: usize,
    stubs: (usize, usize),
}

impl Store {
    /// Walks the whole structure.
    ///
    /// # Panics
    /// Where an invariant does not hold.
    pub fn verify(&self) {
        let mut named = self.index.verify(|location| self.hash_at(location));
        named.sort_unstable();
        assert!(named.windows(2).all(|w| w[0] != w[1]), "two entries name one item");
        let mut found = Vec::new();
        let (mut outside_count, mut queues, mut share_bytes) =
            (0, [[(0_usize, 0_usize, 0_usize); SegmentQueue::COUNT]; COUNT], [0_usize; COUNT]);
        let mut counted = StoreUsage { queue_items: [0; 3], ..self.usage() };
        (counted.items, counted.bytes, counted.huge_bytes, counted.segments) = (0, 0, 0, 0);
        (counted.objects, counted.object_bytes, counted.pinned_bytes) = (0, 0, 0);
        counted.tree_bytes = self.graveyard.held_bytes() as u64;
        let mut types = BTreeMap::<u16, ObjectUsage>::new();
        for (index, segment) in self.log.iter() {
            let from = self.walk.as_ref().map_or(0, |w| if w.segment == index { w.at } else { 0 });
            let (mut sums, mut at) = (WalkSums::default(), 0);
            crate::segment::walk(&self.log, index, |location, allotted| {
                let content = self.log.bytes(location);
                if !item::is_dead(content) {
                    assert!(at >= from, "the collector left a live item behind");
                    assert!(
                        self.is_dead(content) || !segment.is_dead(self.now, self.floor),
                        "a dead segment holds a live item"
                    );
                    let weight = self.weigh(location);
                    assert_eq!(weight.bytes, allotted);
                    sums.bytes += allotted;
                    sums.items += 1;
                    sums.outside += weight.outside;
                    if weight.pinned {
                        sums.pinned_bytes += weight.bytes;
                        sums.pinned_outside += weight.outside;
                        let dead_at = item::dead_at(content);
                        let in_time = dead_at == item::NEVER || segment.reap_at <= dead_at;
                        assert!(in_time, "not reclaimed in time");
                    }
                    if weight.is_stub() {
                        sums.stubs = (sums.stubs.0 + 1, sums.stubs.1 + weight.bytes);
                    }
                    if let Some(number) = item::outside_number(content) {
                        let queue = weight.is_stub().then_some((segment.share, segment.queue));
                        assert_eq!(self.outside.queue_of(number), queue, "the list of what is outside");
                        assert_eq!(self.outside.hash_of(number), Some(self.hash_at(location)));
                    }
                    let item = self.item_of(content);
                    let share = self.log.share(item.key(), item.is_object());
                    assert_eq!(share, segment.share, "a segment holds items of another share");
                    outside_count += usize::from(item::outside_number(content).is_some());
                    counted.tree_bytes += item.tree().map_or(0, |tree| tree.held_bytes() as u64);
                    if let Some(holding) = self.holding(location) {
                        types.entry(holding.type_id).or_default().add(&holding.usage);
                        counted.objects += 1;
                        counted.object_bytes += holding.usage.held_bytes();
                        counted.pinned_bytes += if weight.pinned { holding.usage.held_bytes() } else { 0 };
                    }
                    found.push(location);
                }
                at += allotted;
            });
            let accounts = (segment.live_bytes, segment.live_items, segment.outside_bytes);
            assert_eq!((sums.bytes, sums.items, sums.outside), accounts);
            assert_eq!(
                (sums.pinned_bytes, sums.pinned_outside),
                (segment.pinned_bytes, segment.pinned_outside),
                "pinned items of a segment"
            );
            assert_eq!(sums.stubs, segment.stubs, "stubs of a segment");
            let mean = segment.stored();
            assert!(mean <= self.log.now(), "stored in the future");
            let is_walked = self.walk.is_some_and(|w| w.segment == index);
            assert_eq!(segment.state == SegmentState::Collected, is_walked);
            assert_eq!(segment.share, self.log.share_of(segment.class));
            let queue = &mut queues[usize::from(segment.share)][segment.queue as usize];
            queue.0 += self.log.segment_bytes() + sums.outside;
            queue.1 += sums.pinned_bytes + sums.pinned_outside;
            queue.2 += sums.items;
            share_bytes[usize::from(segment.share)] += sums.bytes + sums.outside;
            counted.items += sums.items as u64;
            counted.queue_items[segment.queue as usize] += sums.items as u64;
            counted.bytes += (sums.bytes + sums.outside) as u64;
            counted.huge_bytes += sums.outside as u64;
            counted.segments += 1;
        }
        counted.huge_bytes -= counted.tree_bytes - self.graveyard.held_bytes() as u64;
        found.sort_unstable();
        assert_eq!(found, named, "the index and the log name different items");
        assert_eq!(outside_count, self.outside.verify(), "what is outside the log and its items");
        for share in ShareSet::ALL.iter(self.memory.shares().count()) {
            let accounts = SegmentQueue::ALL.map(|queue| self.log.queue(ShareSet::one(share), queue));
            let counted = accounts.map(|account| (account.bytes, account.pinned, account.items));
            assert_eq!(counted, queues[usize::from(share)], "queues of a share");
            if self.log.has_shares() {
                assert_eq!(self.log.share_bytes(share), share_bytes[usize::from(share)], "bytes of a share");
                assert!(self.log.untold(share).unsigned_abs() < crate::shares::TOLD);
            }
        }
        self.log.verify_room();
        self.graveyard.verify();
        assert!(types.iter().map(|(id, usage)| (*id, *usage)).eq(self.object_usage().iter().copied()));
        assert_eq!(counted, self.usage(), "what is counted at each change is what there is");
        assert!(self.memory.pinned_object_bytes() as u64 >= counted.pinned_bytes);
    }
}
