//! Tests of each rule by itself, then of random histories against a simple model of the rules.

use proptest::prelude::*;

use super::*;

const KIB: usize = 1 << 10;
const CAP: usize = 1000 * KIB;

/// Uploads, and the handles of their connections.
struct UploadsBed {
    uploads: Uploads,
    /// The handles by token.
    held: BTreeMap<u64, Upload>,
}

impl UploadsBed {
    fn new() -> Self {
        Self { uploads: Uploads::new(CAP), held: BTreeMap::new() }
    }

    /// Requests memory; returns the displaced uploads, None: refused.
    fn claim(&mut self, address: i32, token: u64, bytes: usize, now_ms: u64) -> Option<Vec<u64>> {
        let mut upload = self.held.remove(&token);
        let origin = Origin { peer: PeerKey::Process(address), lane: 3, token };
        let claim = self.uploads.claim(&mut upload, origin, bytes, now_ms);
        let granted = match claim {
            Claim::Granted(leave) => {
                self.held.insert(token, upload.unwrap());
                Some(leave.into_iter().inspect(|leave| assert_eq!(leave.lane, 3)).map(|leave| leave.token))
            }
            Claim::Refused => {
                if let Some(upload) = upload {
                    self.uploads.end(&upload);
                }
                None
            }
        };
        self.uploads.verify();
        granted.map(Iterator::collect)
    }

    fn end(&mut self, token: u64) {
        let upload = self.held.remove(&token).unwrap();
        self.uploads.end(&upload);
        self.uploads.verify();
    }
}

#[test]
fn nobody_gives_way_while_there_is_room() {
    let mut w = UploadsBed::new();
    assert_eq!(w.claim(1, 1, CAP / 2, 0), Some(vec![]));
    assert_eq!(w.claim(2, 2, CAP / 2, 1_000_000), Some(vec![]), "stalled, but there is room");
    w.end(1);
    assert_eq!(w.claim(2, 2, CAP, 1_000_000), Some(vec![]), "one may have it all");
    assert_eq!(w.uploads.bytes(), CAP);
}

#[test]
fn the_longest_silent_gives_way_after_ten_seconds() {
    let mut w = UploadsBed::new();
    for (token, at) in [(1, 50), (2, 40), (3, 60), (4, 9_000)] {
        assert_eq!(w.claim(7, token, CAP / 4, at), Some(vec![]));
    }
    // The address's own uploads of the same size stay until they are stalled.
    assert_eq!(w.claim(7, 9, CAP / 4, 40 + STALLED_MS - 1), None);
    assert_eq!(w.claim(7, 9, CAP / 4, 40 + STALLED_MS), Some(vec![2]));
    // An upload that has received a byte is not silent any more.
    assert_eq!(w.claim(7, 1, CAP / 4, 49 + STALLED_MS), Some(vec![]));
    assert_eq!(w.claim(7, 10, CAP / 4, 60 + STALLED_MS), Some(vec![3]));
    assert_eq!(w.claim(7, 11, CAP / 4, 61 + STALLED_MS), None);
}

#[test]
fn the_address_with_most_gives_way_then_the_one_that_waited_longest() {
    let mut w = UploadsBed::new();
    for (address, token, at) in [(1, 1, 3), (1, 2, 1), (1, 3, 2), (2, 4, 0)] {
        assert_eq!(w.claim(address, token, CAP / 4, at), Some(vec![]));
    }
    assert_eq!(w.claim(3, 5, CAP / 4, 4), Some(vec![2]));
    assert_eq!(w.claim(4, 6, CAP / 4, 4), Some(vec![3]), "it still has most");
    assert_eq!(w.claim(5, 7, CAP / 4, 4), None, "all have the same");
}

#[test]
fn an_address_displaces_only_larger_ones_of_its_own() {
    let mut w = UploadsBed::new();
    assert_eq!(w.claim(1, 1, 600 * KIB, 1), Some(vec![]));
    assert_eq!(w.claim(1, 2, 300 * KIB, 0), Some(vec![]));
    assert_eq!(w.claim(2, 3, 100 * KIB, 0), Some(vec![]));
    assert_eq!(w.claim(1, 4, 600 * KIB, 2), None);
    assert_eq!(w.claim(1, 4, 599 * KIB, 2), Some(vec![1]), "though the other has waited longer");
}

#[test]
fn growing_asks_as_well_and_counts_whole() {
    let mut w = UploadsBed::new();
    assert_eq!(w.claim(1, 1, 500 * KIB, 0), Some(vec![]));
    assert_eq!(w.claim(2, 2, 400 * KIB, 0), Some(vec![]));
    // 500 of the first, 510 of the second.
    assert_eq!(w.claim(2, 2, 510 * KIB, 1), None);
    assert_eq!(w.uploads.bytes(), 500 * KIB, "an upload that is refused is gone");
}

#[test]
fn what_leaves_is_not_counted_and_does_not_grow() {
    let mut w = UploadsBed::new();
    assert_eq!(w.claim(1, 1, CAP, 0), Some(vec![]));
    assert_eq!(w.claim(2, 2, CAP, 1), None, "it would have most");
    assert_eq!(w.claim(2, 2, CAP / 2, 1), Some(vec![1]));
    let leaving = &w.held[&1];
    assert!(w.uploads.is_leaving(leaving) && !w.uploads.is_leaving(&w.held[&2]));
    assert_eq!(w.uploads.bytes(), CAP + CAP / 2);
    assert_eq!(w.claim(1, 1, CAP, 1), Some(vec![]), "no growth, no question");
    assert_eq!(w.claim(1, 1, CAP + 1, 1), None);
    assert_eq!(w.uploads.bytes(), CAP / 2);
}

#[test]
fn no_more_than_the_cap_leaves_at_once() {
    let mut w = UploadsBed::new();
    assert_eq!(w.claim(1, 1, CAP, 0), Some(vec![]));
    assert_eq!(w.claim(2, 2, CAP / 2, 1), Some(vec![1]));
    assert_eq!(w.claim(2, 3, CAP / 2, 1), Some(vec![]));
    assert_eq!(w.claim(3, 4, CAP / 4, 1), None, "the lane of the first has not acted");
    w.end(1);
    assert_eq!(w.claim(3, 4, CAP / 4, 1), Some(vec![2]));
}

#[test]
fn who_cannot_be_helped_displaces_nobody() {
    let mut w = UploadsBed::new();
    assert_eq!(w.claim(1, 1, 400 * KIB, 0), Some(vec![]));
    assert_eq!(w.claim(2, 2, 600 * KIB, 20_000), Some(vec![]));
    // The first is stalled, but that is not enough, and then the newcomer's address has most.
    assert_eq!(w.claim(3, 3, 900 * KIB, 20_000), None);
    assert_eq!(w.claim(3, 3, 400 * KIB, 20_000), Some(vec![1]));
}

#[test]
fn counters_tell_refused_from_displaced() {
    let uploads = Uploads::new(CAP);
    uploads.count(false, false);
    uploads.count(false, true);
    uploads.count(true, false);
    assert_eq!((uploads.refused(), uploads.displaced(), uploads.lines_refused()), (2, 1, 1));
    uploads.reset_stats();
    assert_eq!((uploads.refused(), uploads.displaced(), uploads.lines_refused()), (0, 0, 0));
}

/// One upload in the model.
#[derive(Debug, Clone, Copy)]
struct ModelUpload {
    address: i32,
    token: u64,
    bytes: usize,
    last_ms: u64,
    order: u64,
}

/// The model of the rules, with one displaced upload at a time.
fn victims(mut all: Vec<ModelUpload>, address: i32, asks: usize, now_ms: u64) -> Option<Vec<u64>> {
    let mut out = Vec::new();
    while all.iter().map(|one| one.bytes).sum::<usize>() + asks > CAP {
        let stalled = all.iter().filter(|one| one.last_ms + STALLED_MS <= now_ms);
        let victim = stalled.min_by_key(|one| (one.last_ms, one.order)).copied().or_else(|| {
            let of = |who: i32| {
                let has = all.iter().filter(|one| one.address == who).map(|one| one.bytes).sum::<usize>();
                has + if who == address { asks } else { 0 }
            };
            let addresses = all.iter().map(|one| one.address).chain([address]);
            let most = addresses.max_by_key(|who| (of(*who), *who == address, *who)).unwrap();
            let its = all.iter().filter(|one| one.address == most && (most != address || one.bytes > asks));
            its.min_by_key(|one| (one.last_ms, one.order)).copied()
        })?;
        out.push(victim.token);
        all.retain(|one| one.token != victim.token);
    }
    Some(out)
}

proptest! {
    #[test]
    fn any_history_is_by_the_rules(
        steps in prop::collection::vec((0u64..24, 0i32..4, 1usize..600, 0u64..6_000, 0u8..8), 1..200),
    ) {
        let mut w = UploadsBed::new();
        let mut plain = BTreeMap::<u64, ModelUpload>::new();
        let (mut now_ms, mut order) = (0, 0);
        for (connection, address, kib, passes, what) in steps {
            now_ms += passes;
            let token = connection * 4 + u64::from(address.unsigned_abs());
            if what == 0 {
                if plain.remove(&token).is_some() {
                    w.end(token);
                }
                continue;
            }
            let before = plain.get(&token).copied();
            let bytes = before.map_or(0, |one| one.bytes) + kib * KIB;
            let others = plain.values().filter(|one| one.token != token).copied().collect();
            let expected = victims(others, address, bytes, now_ms);
            let addresses: BTreeSet<i32> =
                plain.values().map(|one| one.address).chain([address]).collect();
            let of_its_own: usize = plain.values().filter(|one| one.address == address && one.token != token)
                .map(|one| one.bytes).sum::<usize>() + bytes;
            prop_assert_eq!(w.claim(address, token, bytes, now_ms), expected.clone());
            if of_its_own <= CAP / addresses.len() {
                prop_assert!(expected.is_some(), "an equal share is never refused");
            }
            if let Some(victims) = expected {
                if before.is_none() {
                    order += 1;
                }
                let order = before.map_or(order, |one| one.order);
                plain.insert(token, ModelUpload { address, token, bytes, last_ms: now_ms, order });
                // In this test their lanes act at once.
                for victim in victims {
                    plain.remove(&victim);
                    w.end(victim);
                }
            } else {
                plain.remove(&token);
            }
            prop_assert_eq!(w.uploads.verify(), plain.len());
        }
    }
}
