//! Tags that clients announce for a key before they store it, since the command with which they store cannot
//! name them.
//!
//! They are kept by key, not by connection: clients with a pool announce on one connection and store on
//! another. A store does not use them up: another client may be computing the same key. They end a time after
//! the last announcement, the rule's `fill_window`, as the misses do that they are about. A delete of the
//! key, a flush and a bump of the tag leave them: a client that computes stores after it.
//!
//! Only the key's hash is kept. Two keys with the same hash have each other's tags: an extra miss, never an
//! old value.
//!
//! # Invariants
//! * The keys of all shards are counted in one number, which is at most [`ANNOUNCED_MAX`].

use std::collections::HashMap;

use cattlegrid_tags::{TagError, TagList};

use crate::sync::{AtomicUsize, Ordering};

/// Keys for which tags may be announced at a time.
pub(crate) const ANNOUNCED_MAX: usize = 1 << 16;

/// The announcements for the keys of one shard.
#[derive(Debug, Default)]
pub(crate) struct Announced {
    by_key: HashMap<u64, Announcement>,
}

#[derive(Debug, Clone, Copy)]
struct Announcement {
    tags: TagList,
    until_ms: u64,
}

/// Why tags cannot be announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnnounceError {
    Tags(TagError),
    /// There are [`ANNOUNCED_MAX`] other keys.
    Full,
}

impl Announced {
    /// There are none: asked at each store under a rule.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// The tags announced for the key with this hash, and when they end.
    pub(crate) fn of(&self, hash: u64, now_ms: u64) -> Option<(&TagList, u64)> {
        let announcement = self.by_key.get(&hash).filter(|announcement| announcement.until_ms > now_ms)?;
        Some((&announcement.tags, announcement.until_ms))
    }

    /// Announces tags until `until_ms`, together with those announced before. `own`: those of the key's rule,
    /// with which they must fit. An error changes nothing.
    pub(crate) fn announce(
        &mut self,
        hash: u64,
        tags: &TagList,
        own: &TagList,
        (now_ms, until_ms): (u64, u64),
        count: &AtomicUsize,
    ) -> Result<(), AnnounceError> {
        let known = self.of(hash, now_ms).map(|(tags, until_ms)| (*tags, until_ms));
        let (known, ends_ms) = known.unwrap_or_default();
        let tags = known.union(tags).map_err(AnnounceError::Tags)?;
        own.union(&tags).map_err(AnnounceError::Tags)?;
        // What has ended and is not removed yet has its place.
        if !self.by_key.contains_key(&hash) && !take_place(count) {
            return Err(AnnounceError::Full);
        }
        // A reload may have shortened the window.
        let until_ms = ends_ms.max(until_ms);
        self.by_key.insert(hash, Announcement { tags, until_ms });
        Ok(())
    }

    /// What is announced ends this many milliseconds later.
    pub(crate) fn delay(&mut self, ms: u64) {
        self.by_key.values_mut().for_each(|announcement| announcement.until_ms += ms);
    }

    /// Lets go of what has ended.
    pub(crate) fn sweep(&mut self, now_ms: u64, count: &AtomicUsize) {
        if self.is_empty() {
            return;
        }
        let before = self.by_key.len();
        self.by_key.retain(|_, announcement| announcement.until_ms > now_ms);
        let left = self.by_key.len();
        count.fetch_sub(before - left, Ordering::Relaxed);
        if self.by_key.capacity() > 4 * left + 64 {
            self.by_key.shrink_to(2 * left);
        }
    }
}

fn take_place(count: &AtomicUsize) -> bool {
    let taken = count.fetch_add(1, Ordering::Relaxed) < ANNOUNCED_MAX;
    if !taken {
        count.fetch_sub(1, Ordering::Relaxed);
    }
    taken
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use cattlegrid_tags::TagHasher;

    use super::*;

    fn tags(text: &str) -> TagList {
        TagHasher::new(7).parse_list(text.as_bytes()).expect("tags")
    }

    fn announce(
        all: &mut Announced,
        hash: u64,
        text: &str,
        now_ms: u64,
        count: &AtomicUsize,
    ) -> Result<(), AnnounceError> {
        all.announce(hash, &tags(text), &tags("own"), (now_ms, now_ms + 100), count)
    }

    #[test]
    fn announcements_are_united_until_a_time_after_the_last() {
        let (mut all, count) = (Announced::default(), AtomicUsize::new(0));
        announce(&mut all, 1, "a", 0, &count).unwrap();
        announce(&mut all, 1, "b,a", 60, &count).unwrap();
        assert_eq!(all.of(1, 159), Some((&tags("a,b"), 160)));
        assert_eq!((all.of(1, 160), all.of(2, 60)), (None, None));
        all.sweep(159, &count);
        assert!(!all.is_empty());
        // What has ended does not count any more.
        announce(&mut all, 1, "c", 160, &count).unwrap();
        assert_eq!(all.of(1, 160), Some((&tags("c"), 260)));
        assert_eq!(count.load(Ordering::Relaxed), 1);
        all.sweep(260, &count);
        assert!(all.is_empty() && count.load(Ordering::Relaxed) == 0);
    }

    #[test]
    fn more_than_eight_change_nothing() {
        let (mut all, count) = (Announced::default(), AtomicUsize::new(0));
        announce(&mut all, 1, "a,b,c,d,e,f", 0, &count).unwrap();
        announce(&mut all, 1, "g,own", 10, &count).unwrap();
        let many = Err(AnnounceError::Tags(TagError::TooMany));
        assert_eq!(announce(&mut all, 1, "h", 20, &count), many);
        assert_eq!(all.of(1, 20), Some((&tags("a,b,c,d,e,f,g,own"), 110)));
        assert_eq!(announce(&mut all, 2, "a,b,c,d,e,f,g,h", 20, &count), many, "together with the rule's");
        assert_eq!((all.of(2, 20), count.load(Ordering::Relaxed)), (None, 1));
    }

    #[test]
    fn there_are_no_more_than_fit() {
        let (mut all, count) = (Announced::default(), AtomicUsize::new(0));
        for hash in 0..ANNOUNCED_MAX as u64 {
            announce(&mut all, hash, "a", 0, &count).unwrap();
        }
        assert_eq!(announce(&mut all, u64::MAX, "a", 50, &count), Err(AnnounceError::Full));
        assert_eq!(all.of(u64::MAX, 50), None);
        announce(&mut all, 7, "b", 50, &count).unwrap();
        let grown = all.by_key.capacity();
        all.sweep(100, &count);
        assert_eq!(count.load(Ordering::Relaxed), 1);
        assert!(all.by_key.capacity() < grown / 100, "its memory has gone back");
        announce(&mut all, u64::MAX, "a", 100, &count).unwrap();
        assert_eq!(all.of(u64::MAX, 100), Some((&tags("a"), 200)));
        let bytes = size_of::<(u64, Announcement)>() + 1;
        // A table has up to twice as many places, and while it grows there is the one of half the size as
        // well.
        assert!(3 * ANNOUNCED_MAX * bytes <= 17 << 20, "as the manual says");
    }
}
