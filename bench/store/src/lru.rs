//! One strict LRU list over all items in the place of the store, for a comparison of what is kept.
//!
//! No classes of sizes, no pages and no hash table count: only the bytes of keys and values, and those of a
//! header. A get and a set make an item the newest. An item leaves when it is the oldest and room is needed,
//! or when it is asked for after its end.

use lru::LruCache;

/// Bytes beside an item's key and value: the header of memcached 1.6 with the number for `cas`.
const HEADER: usize = 56;

struct Item {
    /// With the key and the header.
    bytes: usize,
    /// The second of its end; 0: never.
    expiry: u32,
}

/// Items in the order of their last use.
pub(crate) struct Lru {
    items: LruCache<Box<[u8]>, Item>,
    /// Bytes of all items.
    bytes: usize,
    most_bytes: usize,
    /// The present second.
    pub(crate) now: u32,
}

impl Lru {
    /// An empty cache for this many bytes.
    pub(crate) fn new(most_bytes: usize) -> Self {
        Self { items: LruCache::unbounded(), bytes: 0, most_bytes, now: 1 }
    }

    /// Reads a key. True: it is there.
    pub(crate) fn get(&mut self, key: &[u8]) -> bool {
        let Some(item) = self.items.get(key) else { return false };
        let is_live = item.expiry == 0 || item.expiry > self.now;
        if !is_live {
            self.delete(key);
        }
        is_live
    }

    /// Stores a value of this many bytes that lives `ttl` seconds, 0: forever.
    pub(crate) fn set(&mut self, key: &[u8], value_bytes: usize, ttl: u32) {
        let bytes = HEADER + key.len() + value_bytes;
        let expiry = if ttl == 0 { 0 } else { self.now + ttl };
        let old = self.items.put(key.into(), Item { bytes, expiry });
        self.bytes = self.bytes + bytes - old.map_or(0, |item| item.bytes);
        while self.bytes > self.most_bytes
            && let Some((_, oldest)) = self.items.pop_lru()
        {
            self.bytes -= oldest.bytes;
        }
    }

    /// Removes a key.
    pub(crate) fn delete(&mut self, key: &[u8]) {
        self.bytes -= self.items.pop(key).map_or(0, |item| item.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_and_what_is_used_stays() {
        // Room for three items of 1,000 bytes.
        let mut lru = Lru::new(3_000);
        let value = 1_000 - HEADER - 1;
        for key in [b"a", b"b", b"c"] {
            lru.set(key, value, 0);
        }
        assert!(lru.get(b"a"));
        lru.set(b"d", value, 0);
        assert!(!lru.get(b"b"), "the oldest");
        lru.set(b"c", value / 3, 0);
        lru.set(b"e", value / 3, 0);
        assert!(lru.get(b"a") && lru.get(b"c") && lru.get(b"d"), "the shorter value has made room");
        lru.delete(b"d");
        assert!(!lru.get(b"d"));
        assert_eq!(lru.bytes, 1_000 + 2 * (HEADER + 1 + value / 3));
    }

    #[test]
    fn an_item_ends_with_its_life() {
        let mut lru = Lru::new(1_000);
        lru.set(b"a", 10, 2);
        lru.now += 1;
        assert!(lru.get(b"a"));
        lru.now += 1;
        assert!(!lru.get(b"a"));
        assert_eq!(lru.bytes, 0);
    }
}
