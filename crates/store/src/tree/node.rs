//! A page of a tree: entries in order of their keys, found by binary search.
//!
//! ```text
//!  0       2       4       6       8       10      12
//! ┌───────┬───────┬───────┬───────┬───────┬───────┬────────────┬──────────────┬──────────────────┐
//! │ level │ count │ heap  │ used  │ prefix│       │ slots ───▶ │     free     │ ◀─── entries     │
//! └───────┴───────┴───────┴───────┴───────┴───────┴────────────┴──────────────┴──────────────────┘
//!  slot of a leaf:  head u32, offset u16
//!  slot above it:   head u32, offset u16, child u32, entries below the child u48
//!  entry: 11 bits length of the key, 11 bits length of the value, 1 bit "the value is elsewhere"; key; value
//! ```
//!
//! All numbers are little-endian. A *head* is the four bytes of the key that follow the first `prefix` bytes,
//! as a big-endian number, so that a search reads slots, and of the entries only those whose head is the
//! key's. Removed entries leave holes, which are closed when an insert needs the room.
//!
//! # Invariants
//! * Keys ascend; the first entry of a page above the leaves has an empty key and stands for all keys below
//!   the second.
//! * All keys (but that first one) begin with the same `prefix` bytes.
//! * `used` is the sum of [`space`] over the entries; slots, free space and entries do not overlap.

use std::cmp::Ordering;

use crate::memory::{PAGE_BYTES, Page};

/// Bytes of a page for slots and entries.
pub(super) const ROOM: usize = PAGE_BYTES - HEADER;
/// Most bytes of an entry and its slot: any page that such an entry makes too full can be divided in two that
/// are not.
pub(super) const ENTRY_MAX: usize = ROOM / 2;

const HEADER: usize = 12;
const LEVEL: usize = 0;
const COUNT: usize = 2;
const HEAP: usize = 4;
const USED: usize = 6;
const PREFIX: usize = 8;

/// Bytes that the processor loads at once, and how often it does for the slots of 120 entries.
const LINE: usize = 64;
const LINES_AHEAD: usize = 12;

const LEAF_SLOT: usize = 6;
const INNER_SLOT: usize = 16;
const ENTRY_HEADER: usize = 3;
const LEN_MASK: u32 = 0x7ff;
const ELSEWHERE: u32 = 1 << 22;

/// Bytes that an entry with its slot takes of a page.
pub(super) fn space(level: usize, key: usize, value: usize) -> usize {
    slot_bytes(level) + ENTRY_HEADER + key + value
}

#[inline]
fn slot_bytes(level: usize) -> usize {
    if level == 0 { LEAF_SLOT } else { INNER_SLOT }
}

/// What an entry has beside its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryContent<'a> {
    /// In a leaf: the value.
    Here(&'a [u8]),
    /// In a leaf: the value's number in the table of those with pages of their own.
    Elsewhere(u32),
    /// Above: the page below, and the number of entries in its part of the tree.
    Child(u32, u64),
}

impl EntryContent<'_> {
    /// Bytes of the entry that follow the key.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Here(value) => value.len(),
            Self::Elsewhere(_) => 4,
            Self::Child(..) => 0,
        }
    }
}

/// A page, to read.
#[derive(Clone, Copy)]
pub(super) struct TreePage<'a>(pub(super) &'a Page);

impl<'a> TreePage<'a> {
    /// Pages from here to the leaves: 0 for a leaf.
    #[inline]
    pub(super) fn level(self) -> usize {
        self.u16(LEVEL)
    }

    /// Loads what a search will read of it, at once: the search by itself waits for one line after the other.
    #[inline]
    pub(super) fn load(self) {
        std::hint::black_box((0..LINES_AHEAD).fold(0, |sum, line| sum ^ self.0[line * LINE]));
    }

    /// Number of entries.
    #[inline]
    pub(super) fn count(self) -> usize {
        self.u16(COUNT)
    }

    /// Bytes of slots and entries.
    pub(super) fn used(self) -> usize {
        self.u16(USED)
    }

    /// Bytes for further slots and entries.
    pub(super) fn free(self) -> usize {
        ROOM - self.used()
    }

    /// The key of entry `index`.
    #[inline]
    pub(super) fn key(self, index: usize) -> &'a [u8] {
        let at = self.offset(index);
        let header = self.header(at);
        &self.0[at + ENTRY_HEADER..][..(header & LEN_MASK) as usize]
    }

    /// What entry `index` has beside its key.
    #[inline]
    pub(super) fn content(self, index: usize) -> EntryContent<'a> {
        if self.level() > 0 {
            return EntryContent::Child(self.child(index), self.below(index));
        }
        let at = self.offset(index);
        let header = self.header(at);
        let at = at + ENTRY_HEADER + (header & LEN_MASK) as usize;
        if header & ELSEWHERE != 0 {
            return EntryContent::Elsewhere(self.u32(at));
        }
        EntryContent::Here(&self.0[at..at + (header >> 11 & LEN_MASK) as usize])
    }

    /// The page below entry `index`.
    #[inline]
    pub(super) fn child(self, index: usize) -> u32 {
        self.u32(HEADER + index * INNER_SLOT + 6)
    }

    /// Number of entries in the part of the tree below entry `index`.
    #[inline]
    pub(super) fn below(self, index: usize) -> u64 {
        let at = HEADER + index * INNER_SLOT + 10;
        u64::from(self.u32(at)) | (self.u16(at + 4) as u64) << 32
    }

    /// Number of entries in the parts below the first `count` entries.
    pub(super) fn below_first(self, count: usize) -> u64 {
        (0..count).map(|index| self.below(index)).sum()
    }

    /// Bytes that entry `index` takes with its slot.
    pub(super) fn space(self, index: usize) -> usize {
        let header = self.header(self.offset(index));
        let value = if header & ELSEWHERE != 0 { 4 } else { header >> 11 & LEN_MASK };
        space(self.level(), (header & LEN_MASK) as usize, value as usize)
    }

    /// The place of a key: `Err` is where it would be, the number of entries with smaller keys.
    pub(super) fn search(self, key: &[u8]) -> Result<usize, usize> {
        let (first, count) = (self.first(), self.count());
        if first >= count {
            return Err(count);
        }
        let prefix = self.prefix();
        let own = &self.key(first)[..prefix];
        match own.cmp(&key[..prefix.min(key.len())]) {
            Ordering::Less => return Err(count),
            Ordering::Greater => return Err(first),
            Ordering::Equal => {}
        }
        let (mut from, mut to) = self.same_head(first, count, head(key, prefix));
        while from < to {
            let middle = usize::midpoint(from, to);
            match self.key(middle)[prefix..].cmp(&key[prefix..]) {
                Ordering::Less => from = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => to = middle,
            }
        }
        Err(from)
    }

    /// The place of a key in a leaf, if it is there: reads less than [`TreePage::search`] where all keys
    /// begin alike.
    #[inline]
    pub(super) fn find(self, key: &[u8]) -> Option<usize> {
        let prefix = self.prefix();
        if key.len() < prefix {
            return None;
        }
        let (mut from, mut to) = self.same_head(0, self.count(), head(key, prefix));
        while from < to {
            let middle = usize::midpoint(from, to);
            let own = self.key(middle);
            match own[prefix..].cmp(&key[prefix..]) {
                Ordering::Less => from = middle + 1,
                // The search took for granted that it begins as all keys here do.
                Ordering::Equal => return (own == key).then_some(middle),
                Ordering::Greater => to = middle,
            }
        }
        None
    }

    /// Above the leaves: the entry whose part of the tree a key belongs to.
    #[inline]
    pub(super) fn descend(self, key: &[u8]) -> usize {
        match self.search(key) {
            Ok(index) => index,
            Err(index) => index.saturating_sub(1),
        }
    }

    /// Entries from `first` on whose head is this.
    #[inline]
    fn same_head(self, first: usize, count: usize, head: u32) -> (usize, usize) {
        let from = self.heads_below(first, count, |own| own < head);
        if from == count || self.head(from) != head {
            return (from, from);
        }
        if from + 1 == count || self.head(from + 1) != head {
            return (from, from + 1);
        }
        (from, self.heads_below(from + 1, count, |own| own <= head))
    }

    /// The first entry from `first` on for which `is_below` is false; without branches that the processor
    /// could mispredict.
    #[inline]
    fn heads_below(self, first: usize, count: usize, is_below: impl Fn(u32) -> bool) -> usize {
        let (mut from, mut len) = (first, count - first);
        while len > 1 {
            let half = len / 2;
            from += usize::from(is_below(self.head(from + half - 1))) * half;
            len -= half;
        }
        from + usize::from(len == 1 && is_below(self.head(from)))
    }

    /// The first entry with a key that is compared.
    fn first(self) -> usize {
        usize::from(self.level() > 0)
    }

    fn prefix(self) -> usize {
        self.u16(PREFIX)
    }

    #[inline]
    fn slot(self, index: usize) -> usize {
        HEADER + index * slot_bytes(self.level())
    }

    #[inline]
    fn head(self, index: usize) -> u32 {
        self.u32(self.slot(index))
    }

    #[inline]
    fn offset(self, index: usize) -> usize {
        self.u16(self.slot(index) + 4)
    }

    #[inline]
    fn header(self, at: usize) -> u32 {
        let bytes = &self.0[at..at + ENTRY_HEADER];
        u32::from(bytes[0]) | u32::from(bytes[1]) << 8 | u32::from(bytes[2]) << 16
    }

    #[inline]
    fn u16(self, at: usize) -> usize {
        let bytes = &self.0[at..at + 2];
        usize::from(u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    #[inline]
    fn u32(self, at: usize) -> u32 {
        let bytes = &self.0[at..at + 4];
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    /// Walks the page.
    ///
    /// # Panics
    /// Where an invariant of this file does not hold.
    #[cfg(any(test, fuzzing, feature = "verify"))]
    pub(super) fn verify(self) {
        let (count, first, prefix) = (self.count(), self.first(), self.prefix());
        let slots_end = HEADER + count * slot_bytes(self.level());
        let mut spans = Vec::new();
        let mut used = 0;
        for index in 0..count {
            let at = self.offset(index);
            let entry = self.space(index) - slot_bytes(self.level());
            spans.push(at..at + entry);
            used += self.space(index);
            if index < first {
                assert!(self.key(index).is_empty(), "the first key above the leaves is empty");
                continue;
            }
            let key = self.key(index);
            assert!(index == first || self.key(index - 1) < key, "keys ascend");
            assert_eq!(key[..prefix], self.key(first)[..prefix], "all keys begin alike");
            assert_eq!(self.head(index), head(key, prefix), "the head is the key's");
        }
        assert_eq!(used, self.used());
        spans.sort_unstable_by_key(|span| span.start);
        assert!(spans.windows(2).all(|w| w[0].end <= w[1].start), "entries overlap");
        assert!(spans.last().is_none_or(|span| span.end <= PAGE_BYTES));
        assert!(spans.first().is_none_or(|span| span.start >= self.u16(HEAP)));
        assert!(slots_end <= self.u16(HEAP));
    }
}

/// A page, to change. The caller has seen that there is room.
pub(super) struct TreePageMut<'a>(pub(super) &'a mut Page);

impl<'a> TreePageMut<'a> {
    /// The page, to read.
    #[inline]
    pub(super) fn node(&self) -> TreePage<'_> {
        TreePage(self.0)
    }

    /// Makes it a page without entries.
    pub(super) fn clear(&mut self, level: usize) {
        self.set_u16(LEVEL, level);
        self.set_u16(COUNT, 0);
        self.set_u16(HEAP, PAGE_BYTES);
        self.set_u16(USED, 0);
        self.set_u16(PREFIX, 0);
    }

    /// Adds an entry behind the others. [`TreePageMut::seal`] must follow the last.
    pub(super) fn push(&mut self, key: &[u8], content: EntryContent<'_>) {
        let count = self.node().count();
        self.write(count, key, content, 0);
        self.set_u16(COUNT, count + 1);
    }

    /// Finds what all keys begin with, and the heads.
    pub(super) fn seal(&mut self) {
        let node = self.node();
        let (first, count) = (node.first(), node.count());
        let prefix = if first < count { common(node.key(first), node.key(count - 1)) } else { 0 };
        self.set_u16(PREFIX, prefix);
        for index in 0..count {
            let own = if index < first { 0 } else { head(self.node().key(index), prefix) };
            let slot = self.node().slot(index);
            self.set_u32(slot, own);
        }
    }

    /// Inserts an entry at `index`, between smaller and larger keys. Its space must be free.
    pub(super) fn insert(&mut self, index: usize, key: &[u8], content: EntryContent<'_>) {
        let node = self.node();
        let (level, count, first) = (node.level(), node.count(), node.first());
        let slot = slot_bytes(level);
        let slots_end = HEADER + count * slot;
        if slots_end + space(level, key.len(), content.len()) > node.u16(HEAP) {
            self.close_holes();
        }
        let node = self.node();
        let prefix = node.prefix();
        // The only key with a head yet says what a second one has in common with it.
        let is_alike = count > first && {
            let own = &node.key(first)[..prefix];
            key.len() >= prefix && key[..prefix] == *own
        };
        let at = HEADER + index * slot;
        self.0.copy_within(at..slots_end, at + slot);
        self.set_u16(COUNT, count + 1);
        self.write(index, key, content, if is_alike { head(key, prefix) } else { 0 });
        if !is_alike {
            self.seal();
        }
    }

    /// Removes entry `index`. Above the leaves the page below the first entry goes with the second's key, so
    /// that an empty key stays in front.
    pub(super) fn remove(&mut self, index: usize) {
        let mut index = index;
        let node = self.node();
        let count = node.count();
        if node.level() > 0 && index == 0 && count > 1 {
            let (child, below) = (node.child(1), node.below(1));
            self.set_child(0, child);
            self.set_below(0, below);
            index = 1;
        }
        let node = self.node();
        let slot = slot_bytes(node.level());
        let (offset, space) = (node.offset(index), node.space(index));
        self.set_u16(USED, self.node().used() - space);
        if offset == self.node().u16(HEAP) {
            self.set_u16(HEAP, offset + space - slot);
        }
        self.0.copy_within(HEADER + (index + 1) * slot..HEADER + count * slot, HEADER + index * slot);
        self.set_u16(COUNT, count - 1);
    }

    /// The value of entry `index` of a leaf, to change; None: it is elsewhere.
    pub(super) fn into_value(self, index: usize) -> Option<&'a mut [u8]> {
        let node = self.node();
        let at = node.offset(index);
        let header = node.header(at);
        let at = at + ENTRY_HEADER + (header & LEN_MASK) as usize;
        (header & ELSEWHERE == 0).then(|| &mut self.0[at..at + (header >> 11 & LEN_MASK) as usize])
    }

    /// Sets the page below entry `index`.
    pub(super) fn set_child(&mut self, index: usize, child: u32) {
        self.set_u32(HEADER + index * INNER_SLOT + 6, child);
    }

    /// Sets the number of entries below entry `index`.
    pub(super) fn set_below(&mut self, index: usize, below: u64) {
        let at = HEADER + index * INNER_SLOT + 10;
        self.0[at..at + 6].copy_from_slice(&below.to_le_bytes()[..6]);
    }

    /// Copies the entries together, so that all that is free is in one piece.
    pub(super) fn close_holes(&mut self) {
        let old = *self.0;
        let old = TreePage(&old);
        self.clear(old.level());
        for index in 0..old.count() {
            self.push(old.key(index), old.content(index));
        }
        self.seal();
    }

    fn write(&mut self, index: usize, key: &[u8], content: EntryContent<'_>, head: u32) {
        let node = self.node();
        let level = node.level();
        let space = space(level, key.len(), content.len());
        let used = node.used() + space;
        let at = node.u16(HEAP) - (space - slot_bytes(level));
        let slot = node.slot(index);
        self.set_u16(USED, used);
        self.set_u16(HEAP, at);
        self.set_u32(slot, head);
        self.set_u16(slot + 4, at);
        let mut header = key.len() as u32;
        match content {
            EntryContent::Here(value) => {
                header |= (value.len() as u32) << 11;
                self.0[at + ENTRY_HEADER + key.len()..][..value.len()].copy_from_slice(value);
            }
            EntryContent::Elsewhere(number) => {
                header |= ELSEWHERE;
                self.set_u32(at + ENTRY_HEADER + key.len(), number);
            }
            EntryContent::Child(child, below) => {
                self.set_child(index, child);
                self.set_below(index, below);
            }
        }
        self.0[at..at + ENTRY_HEADER].copy_from_slice(&header.to_le_bytes()[..ENTRY_HEADER]);
        self.0[at + ENTRY_HEADER..][..key.len()].copy_from_slice(key);
    }

    fn set_u16(&mut self, at: usize, value: usize) {
        debug_assert!(u16::try_from(value).is_ok());
        self.0[at..at + 2].copy_from_slice(&(value as u16).to_le_bytes());
    }

    fn set_u32(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
}

/// The four bytes of a key that follow the first `prefix`, zeros behind its end.
#[inline]
fn head(key: &[u8], prefix: usize) -> u32 {
    let rest = &key[prefix..];
    if let Some(bytes) = rest.first_chunk::<4>() {
        return u32::from_be_bytes(*bytes);
    }
    let mut bytes = [0; 4];
    bytes[..rest.len()].copy_from_slice(rest);
    u32::from_be_bytes(bytes)
}

/// Number of bytes that two keys begin with alike.
pub(super) fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
