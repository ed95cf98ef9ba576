//! Sketches in a budget that is too small: calls are refused, and what is refused changes nothing.
#![allow(dead_code, reason = "the caller is shared")]

use crate::caller::{Answer, Objects, SplitMix64};
use cattlegrid_objects::Settings;

#[test]
fn what_is_refused_changes_nothing() {
    for pages in [4, 8, 16, 24] {
        let mut objects = Objects::new(Settings::default(), pages * 4096);
        let (mut draws, mut refused) = (SplitMix64(pages as u64), 0);
        for key in [b"A", b"B", b"C"] {
            objects.call("topk", "new", key, &[b"300"]);
            objects.call("recent", "new", key, &[b"300"]);
            objects.call("bloom", "new", key, &[b"20000"]);
        }
        for _ in 0..3000 {
            let key = [b"A", b"B", b"C"][draws.below(3) as usize];
            let item = format!("{:040}", draws.below(500));
            let methods =
                [("topk", "hit"), ("recent", "add"), ("bloom", "add"), ("hll", "add"), ("consistent", "new")];
            let (object_type, method) = methods[draws.below(5) as usize];
            let before = objects.call(object_type, "dump", key, &[]);
            if objects.call(object_type, method, key, &[item.as_bytes()]) == Answer::NoRoom {
                refused += 1;
                assert_eq!(objects.call(object_type, "dump", key, &[]), before);
            }
        }
        assert!(refused > 0, "{pages} pages");
    }
}
