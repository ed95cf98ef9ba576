//! The bytes of an item in the log.
//!
//! ```text
//!  0   1     2     4            8       12        16      24
//! | kl | sl | state | value len | expiry | accessed | cas | flags? stamp? grace? refresh? tags? | key | value |
//! ```
//! An item with a life has no grace and is never due: `refresh` then has its highest bit set and holds the
//! end of the life, by which the expiry is bounded too ([`Life`]).
//!
//! Little-endian, 8-byte aligned, padded to a multiple of 8. `kl` is the key's length. Optional fields are
//! there when their bit in `state` is. `sl` and the top bits of `state` count the slack behind the value, in
//! units of 8 bytes, so that a value can be rewritten in place. Instead of a huge value or a tree the item
//! has its number in the store's table of what is outside the log.
//!
//! The mark object is part of an item's name: it says in which domain the key is.
//!
//! # Invariant
//! The lengths in the header always describe the bytes that follow: all writes of an item are in this file.

use std::sync::Arc;

use crate::huge::HugeValue;
use crate::outside::OutsideValue;
use crate::tree::Tree;

mod life;

use life::{HAS_LIFE, IS_PROVISIONAL, LIFE_MS, earlier, second_of_end};
pub use life::{Life, Refresh};

/// Bytes before the optional fields.
pub(crate) const HEADER: usize = 24;
/// Most tags an item can carry.
pub const TAGS_MAX: usize = 8;
/// Most slack in bytes: 10 bits of 8-byte units.
pub(crate) const SLACK_MAX: usize = 1023 * 8;
/// Bytes of the number of what is outside the log.
pub(crate) const OUTSIDE_REF: usize = 4;
/// An item without expiry.
pub const NEVER: u32 = 0;

/// Properties of an item that take one bit each. Kept across rewrites unless the writer changes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Marks(u16);

impl Marks {
    /// Read at least once since it was stored.
    pub const FETCHED: Self = Self(1 << 6);
    /// Marked stale by an invalidation.
    pub const STALE: Self = Self(1 << 7);
    /// A client was told to recompute it.
    pub const WON: Self = Self(1 << 8);
    /// A negative answer: known to be absent.
    pub const NEGATIVE: Self = Self(1 << 9);
    /// An object's state. Its key is in another domain than those of plain items; its first two bytes are the
    /// number of the object's type, little-endian.
    pub const OBJECT: Self = Self(1 << 10);
    /// An object that is never evicted. Shares its bit with [`Marks::WON`], which objects do not have.
    pub const PINNED: Self = Self::WON;
    /// Last changed by arithmetic, append or prepend.
    pub const EDITED: Self = Self(1 << 12);

    /// No mark.
    pub const fn none() -> Self {
        Self(0)
    }

    /// The marks of both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// These marks without those of the other.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether it is an object that is never evicted.
    #[inline]
    pub const fn is_pinned(self) -> bool {
        self.has(Self::OBJECT.with(Self::PINNED))
    }

    /// Whether all of the other's marks are set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

const HAS_FLAGS: u16 = 1;
const HAS_STAMP: u16 = 1 << 1;
const HAS_GRACE: u16 = 1 << 2;
const HAS_REFRESH: u16 = 1 << 3;
const HAS_TAGS: u16 = 1 << 4;
/// The value is not in the log: a huge value or a tree.
const IS_OUTSIDE: u16 = 1 << 5;
/// No longer in the index: its bytes wait for the collector.
const IS_DEAD: u16 = 1 << 11;
const MARKS: u16 =
    Marks::FETCHED.0 | Marks::STALE.0 | Marks::WON.0 | Marks::NEGATIVE.0 | Marks::OBJECT.0 | Marks::EDITED.0;
/// The ghost queue knew it when it was stored, and the walk of the main queue has not yet met it.
const IS_RETURNED: u16 = 1 << 13;
const SLACK_HIGH_SHIFT: u32 = 14;

/// Bytes of the optional fields except tags, by the low four bits of the state.
const OPTIONAL: [u8; 16] = {
    let mut table = [0_u8; 16];
    let mut bits = 0;
    while bits < 16 {
        table[bits] = 4 * (bits as u8 & 1)
            + 8 * (bits as u8 >> 1 & 1)
            + 4 * (bits as u8 >> 2 & 1)
            + 4 * (bits as u8 >> 3);
        bits += 1;
    }
    table
};

/// The fields of an item other than key and value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attributes<'a> {
    /// Client flags.
    pub flags: u32,
    /// Second (since the server's start) at which it expires; [`NEVER`] is never.
    pub expiry: u32,
    /// Second of the last access.
    pub accessed: u32,
    /// The CAS.
    pub cas: u64,
    /// The number it counts as of, when that is not its CAS.
    pub stamp: Option<u64>,
    /// Seconds for which it may be served stale after its expiry; 0 is not at all.
    pub grace_s: u32,
    /// When it should be refreshed, or its limited life ([`Attributes::with_life`]).
    pub refresh: Refresh,
    /// Hashes of its tags, [`TAGS_MAX`] at most.
    pub tags: &'a [u64],
    /// The marks.
    pub marks: Marks,
}

impl Attributes<'_> {
    /// The second from which it is dead: its expiry and its grace are over. [`NEVER`]: never.
    pub(crate) fn dead_at(&self) -> u32 {
        end_of_grace(self.expiry, self.grace_s)
    }

    /// The limited life, if the item has one.
    pub fn life(&self) -> Option<Life> {
        self.refresh.life(self.expiry)
    }

    /// These attributes with a limited life: the item has neither grace nor refresh, and expires in the
    /// second of its end at the latest.
    #[must_use]
    pub fn with_life(self, life: Option<Life>) -> Self {
        let Some(life) = life else { return self };
        let expiry = earlier(self.expiry, second_of_end(life.ends_ms));
        let left = (u64::from(expiry) * 1000).saturating_sub(life.ends_ms);
        let left = u32::try_from(left).unwrap_or(0) & LIFE_MS;
        let provisional = if life.provisional { IS_PROVISIONAL } else { 0 };
        Self { expiry, grace_s: 0, refresh: Refresh(HAS_LIFE | provisional | left), ..self }
    }
}

/// What must be checked before an item's value is sent to a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadCheck {
    /// Nothing: every reader may get the value, and nothing is due.
    Nothing,
    /// The item's tags: every reader may get the value if none of them was bumped.
    Tags,
    /// The rule of the item's key: the item is old, negative, or due for a refresh.
    Rule,
}

/// A stored item.
#[derive(Clone, Copy)]
pub struct Item<'a> {
    bytes: &'a [u8],
    outside: Option<&'a OutsideValue>,
}

/// An item's value.
#[derive(Debug, Clone, Copy)]
pub enum Value<'a> {
    /// In the log: copy it while the store is locked.
    Inline(&'a [u8]),
    /// In pages of its own: keep the `Arc` and send it without the lock.
    Huge(&'a Arc<HugeValue>),
}

impl Value<'_> {
    /// Bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Inline(bytes) => bytes.len(),
            Self::Huge(huge) => huge.len(),
        }
    }

    /// No bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the bytes to `out`.
    pub fn copy_to(&self, out: &mut Vec<u8>) {
        match self {
            Self::Inline(bytes) => out.extend_from_slice(bytes),
            Self::Huge(huge) => huge.slices().for_each(|s| out.extend_from_slice(s)),
        }
    }
}

impl<'a> Item<'a> {
    /// `bytes` begin with an item's header and hold all of it.
    #[inline]
    pub(crate) fn new(bytes: &'a [u8], outside: Option<&'a OutsideValue>) -> Self {
        Self { bytes, outside }
    }

    /// The key.
    #[inline]
    pub fn key(&self) -> &'a [u8] {
        let at = key_offset(self.bytes);
        &self.bytes[at..at + usize::from(self.bytes[0])]
    }

    /// Whether it is an object.
    #[inline]
    pub fn is_object(&self) -> bool {
        is_object(self.bytes)
    }

    /// The number of an object's type and the object's own key; `None` of a plain item.
    pub fn object(&self) -> Option<(u16, &'a [u8])> {
        let (type_id, key) = self.key().split_first_chunk::<2>().filter(|_| self.is_object())?;
        Some((u16::from_le_bytes(*type_id), key))
    }

    /// Bytes of the budget that its value holds outside the log.
    #[inline]
    pub(crate) fn outside_bytes(&self) -> usize {
        self.outside.map_or(0, OutsideValue::held_bytes)
    }

    /// Whether its value is a tree.
    #[inline]
    pub fn is_tree(&self) -> bool {
        matches!(self.outside, Some(OutsideValue::Tree(_)))
    }

    /// The tree that it has as its value.
    pub fn tree(&self) -> Option<&'a Tree> {
        match self.outside {
            Some(OutsideValue::Tree(tree)) => Some(tree),
            _ => None,
        }
    }

    /// The value; empty if it is a tree.
    #[inline]
    pub fn value(&self) -> Value<'a> {
        match self.outside {
            Some(OutsideValue::Huge(huge)) => return Value::Huge(huge),
            Some(OutsideValue::Tree(_)) => return Value::Inline(&[]),
            None => (),
        }
        let at = key_offset(self.bytes) + usize::from(self.bytes[0]);
        Value::Inline(&self.bytes[at..at + self.value_len()])
    }

    /// Bytes of the value; 0 if it is a tree.
    #[inline]
    pub fn value_len(&self) -> usize {
        u32_at(self.bytes, 4) as usize
    }

    /// Client flags.
    #[inline]
    pub fn flags(&self) -> u32 {
        if state(self.bytes) & HAS_FLAGS == 0 { 0 } else { u32_at(self.bytes, HEADER) }
    }

    /// The item's CAS.
    #[inline]
    pub fn cas(&self) -> u64 {
        u64_at(self.bytes, 16)
    }

    /// The number it counts as of.
    #[inline]
    pub fn stamp(&self) -> u64 {
        stamp(self.bytes)
    }

    /// Second at which it expires; [`NEVER`] is never.
    #[inline]
    pub fn expiry(&self) -> u32 {
        u32_at(self.bytes, 8)
    }

    /// Second of the last access.
    #[inline]
    pub fn accessed(&self) -> u32 {
        u32_at(self.bytes, 12)
    }

    /// The item's marks.
    #[inline]
    pub fn marks(&self) -> Marks {
        marks(self.bytes)
    }

    /// Whether it has a tag.
    #[inline]
    pub fn has_tags(&self) -> bool {
        state(self.bytes) & HAS_TAGS != 0
    }

    /// What must be checked at second `now` before the item's value is sent to a reader.
    #[inline]
    pub fn read_check(&self, now: u32) -> ReadCheck {
        const SPECIAL: u16 = Marks::STALE.0 | Marks::NEGATIVE.0;
        let state = state(self.bytes);
        // Most items, first.
        if state & (SPECIAL | HAS_GRACE | HAS_REFRESH | HAS_TAGS) == 0 {
            ReadCheck::Nothing
        } else if state & SPECIAL != 0 || state & (HAS_GRACE | HAS_REFRESH) != 0 && self.is_over_or_due(now) {
            ReadCheck::Rule
        } else if state & HAS_TAGS != 0 {
            ReadCheck::Tags
        } else {
            ReadCheck::Nothing
        }
    }

    /// Whether it has expired or should be refreshed.
    #[inline]
    fn is_over_or_due(&self, now: u32) -> bool {
        // With a life this is always so: its bit is above all seconds.
        self.expiry() != NEVER && self.expiry() <= now.saturating_add(refresh(self.bytes))
    }

    /// Hashes of its tags.
    pub fn tags(&self) -> impl Iterator<Item = u64> + use<'a> {
        let bytes = self.bytes;
        let state = state(bytes);
        let at = HEADER + usize::from(OPTIONAL[usize::from(state & 15)]);
        let count = if state & HAS_TAGS == 0 { 0 } else { usize::from(bytes[at]) };
        (0..count).map(move |i| u64_at(bytes, at + 1 + 8 * i))
    }

    /// Seconds for which it may be served stale after its expiry; 0 is not at all.
    pub fn grace_s(&self) -> u32 {
        grace_s(self.bytes)
    }

    /// The second from which it is dead: its expiry and its grace are over. [`NEVER`]: never.
    pub fn dead_at(&self) -> u32 {
        dead_at(self.bytes)
    }

    /// The second from which on it should be refreshed, if that is ever.
    pub fn refresh_at(&self) -> Option<u32> {
        let (expiry, lead_s) = (self.expiry(), self.refresh_lead_s());
        (expiry != NEVER && lead_s != 0).then(|| expiry.saturating_sub(lead_s))
    }

    /// Seconds before its expiry from which on it should be refreshed; 0 is never.
    pub fn refresh_lead_s(&self) -> u32 {
        let refresh = refresh(self.bytes);
        if refresh & HAS_LIFE == 0 { refresh } else { 0 }
    }

    /// The item's limited life, if it has one.
    #[inline]
    pub fn life(&self) -> Option<Life> {
        Refresh(refresh(self.bytes)).life(self.expiry())
    }

    /// All fields other than key and value; the tags are put into `room`.
    pub fn attributes<'r>(&self, room: &'r mut [u64; TAGS_MAX]) -> Attributes<'r> {
        let mut count = 0;
        for (slot, tag) in room.iter_mut().zip(self.tags()) {
            *slot = tag;
            count += 1;
        }
        Attributes {
            flags: self.flags(),
            expiry: self.expiry(),
            accessed: self.accessed(),
            cas: self.cas(),
            stamp: (state(self.bytes) & HAS_STAMP != 0).then(|| self.stamp()),
            grace_s: self.grace_s(),
            refresh: Refresh(refresh(self.bytes)),
            tags: &room[..count],
            marks: self.marks(),
        }
    }

    /// Bytes it takes in the log and outside it, without slack: memcached's `size`. Of a tree all pages that
    /// it holds.
    pub fn size(&self) -> usize {
        let tree_bytes = self.outside.map_or(0, OutsideValue::tree_bytes);
        key_offset(self.bytes) + usize::from(self.bytes[0]) + self.value_len() + tree_bytes
    }
}

/// Bytes that an item needs, a multiple of 8.
pub(crate) fn needed(attributes: &Attributes<'_>, key: usize, stored_value: usize) -> usize {
    let tags = if attributes.tags.is_empty() { 0 } else { 1 + 8 * attributes.tags.len() };
    let optional = usize::from(OPTIONAL[usize::from(optional_bits(attributes) & 15)]) + tags;
    (HEADER + optional + key + stored_value).next_multiple_of(8)
}

/// Writes an item over `into` and takes its whole length: the bytes beyond [`needed`] are slack.
///
/// `stored`: the value's parts, or the number of what is `outside` the log.
pub(crate) fn write(
    into: &mut [u8],
    key: &[u8],
    attributes: &Attributes<'_>,
    value_len: usize,
    outside: bool,
    stored: [&[u8]; 2],
) {
    let needed = needed(attributes, key.len(), stored[0].len() + stored[1].len());
    let slack = (into.len() - needed) / 8;
    debug_assert!(slack * 8 <= SLACK_MAX && key.len() <= 255 && u32::try_from(value_len).is_ok());
    let state = optional_bits(attributes)
        | attributes.marks.0
        | if outside { IS_OUTSIDE } else { 0 }
        | ((slack >> 8) as u16) << SLACK_HIGH_SHIFT;
    into[0] = key.len() as u8;
    into[1] = slack as u8;
    into[2..4].copy_from_slice(&state.to_le_bytes());
    into[4..8].copy_from_slice(&(value_len as u32).to_le_bytes());
    into[8..12].copy_from_slice(&attributes.expiry.to_le_bytes());
    into[12..16].copy_from_slice(&attributes.accessed.to_le_bytes());
    into[16..24].copy_from_slice(&attributes.cas.to_le_bytes());
    let mut at = HEADER;
    let mut put = |bytes: &[u8]| {
        into[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    if attributes.flags != 0 {
        put(&attributes.flags.to_le_bytes());
    }
    if let Some(stamp) = attributes.stamp {
        put(&stamp.to_le_bytes());
    }
    if attributes.grace_s != 0 {
        put(&attributes.grace_s.to_le_bytes());
    }
    if attributes.refresh.0 != 0 {
        put(&attributes.refresh.0.to_le_bytes());
    }
    if !attributes.tags.is_empty() {
        put(&[attributes.tags.len() as u8]);
        attributes.tags.iter().for_each(|t| put(&t.to_le_bytes()));
    }
    put(key);
    put(stored[0]);
    put(stored[1]);
}

fn optional_bits(attributes: &Attributes<'_>) -> u16 {
    debug_assert!(attributes.tags.len() <= TAGS_MAX);
    let bit = |on: bool, bit: u16| if on { bit } else { 0 };
    bit(attributes.flags != 0, HAS_FLAGS)
        | bit(attributes.stamp.is_some(), HAS_STAMP)
        | bit(attributes.grace_s != 0, HAS_GRACE)
        | bit(attributes.refresh.0 != 0, HAS_REFRESH)
        | bit(!attributes.tags.is_empty(), HAS_TAGS)
}

/// Bytes of the item with its slack.
#[inline]
pub(crate) fn allotted(bytes: &[u8]) -> usize {
    let state = state(bytes);
    let stored = if state & IS_OUTSIDE == 0 { u32_at(bytes, 4) as usize } else { OUTSIDE_REF };
    let slack = usize::from(bytes[1]) | usize::from(state >> SLACK_HIGH_SHIFT) << 8;
    (key_offset(bytes) + usize::from(bytes[0]) + stored).next_multiple_of(8) + slack * 8
}

/// Whether it is the item of this key, among objects or among plain items.
#[inline]
pub(crate) fn is_named(bytes: &[u8], key: &[u8], among_objects: bool) -> bool {
    is_object(bytes) == among_objects && Item::new(bytes, None).key() == key
}

/// Whether it is a plain item whose value is in the log.
#[inline]
pub(crate) fn is_plain_inline(bytes: &[u8]) -> bool {
    state(bytes) & (Marks::OBJECT.0 | IS_OUTSIDE) == 0
}

#[inline]
pub(crate) fn is_object(bytes: &[u8]) -> bool {
    state(bytes) & Marks::OBJECT.0 != 0
}

/// The value in the log; `None`: it is outside.
pub(crate) fn value_mut(bytes: &mut [u8]) -> Option<&mut [u8]> {
    if state(bytes) & IS_OUTSIDE != 0 {
        return None;
    }
    let at = key_offset(bytes) + usize::from(bytes[0]);
    let len = u32_at(bytes, 4) as usize;
    Some(&mut bytes[at..at + len])
}

/// The number of its value in the table of what is outside the log; `None`: the value is in the log.
#[inline]
pub(crate) fn outside_number(bytes: &[u8]) -> Option<u32> {
    if state(bytes) & IS_OUTSIDE == 0 {
        return None;
    }
    Some(u32_at(bytes, key_offset(bytes) + usize::from(bytes[0])))
}

#[inline]
pub(crate) fn is_dead(bytes: &[u8]) -> bool {
    state(bytes) & IS_DEAD != 0
}

pub(crate) fn set_dead(bytes: &mut [u8]) {
    set_state(bytes, state(bytes) | IS_DEAD);
}

/// Notes that the ghost queue knew it.
pub(crate) fn set_returned(bytes: &mut [u8]) {
    set_state(bytes, state(bytes) | IS_RETURNED);
}

/// Whether the ghost queue knew it; true once.
pub(crate) fn take_returned(bytes: &mut [u8]) -> bool {
    let state = state(bytes);
    let is_returned = state & IS_RETURNED != 0;
    if is_returned {
        set_state(bytes, state & !IS_RETURNED);
    }
    is_returned
}

/// The second from which it is dead: its expiry and its grace are over. [`NEVER`]: never.
#[inline]
pub(crate) fn dead_at(bytes: &[u8]) -> u32 {
    end_of_grace(u32_at(bytes, 8), grace_s(bytes))
}

/// Grace is counted from the expiry, so it moves with the expiry.
#[inline]
fn end_of_grace(expiry: u32, grace_s: u32) -> u32 {
    if expiry == NEVER { NEVER } else { expiry.saturating_add(grace_s) }
}

/// The field of the refresh lead; 0 if there is none.
#[inline]
fn refresh(bytes: &[u8]) -> u32 {
    let state = state(bytes);
    if state & HAS_REFRESH == 0 {
        return 0;
    }
    u32_at(bytes, HEADER + usize::from(OPTIONAL[usize::from(state & 7)]))
}

#[inline]
pub(crate) fn stamp(bytes: &[u8]) -> u64 {
    let state = state(bytes);
    if state & HAS_STAMP == 0 {
        return u64_at(bytes, 16);
    }
    u64_at(bytes, HEADER + usize::from(OPTIONAL[usize::from(state & 1)]))
}

#[inline]
pub(crate) fn marks(bytes: &[u8]) -> Marks {
    Marks(state(bytes) & MARKS)
}

pub(crate) fn set_marks(bytes: &mut [u8], marks: Marks) {
    set_state(bytes, state(bytes) & !MARKS | marks.0);
}

/// The end of a life does not move: an item that has one expires then at the latest.
pub(crate) fn set_expiry(bytes: &mut [u8], expiry: u32) {
    let has_life = refresh(bytes) & HAS_LIFE != 0;
    let expiry = if has_life { earlier(expiry, u32_at(bytes, 8)) } else { expiry };
    bytes[8..12].copy_from_slice(&expiry.to_le_bytes());
}

pub(crate) fn set_accessed(bytes: &mut [u8], second: u32) {
    bytes[12..16].copy_from_slice(&second.to_le_bytes());
}

/// Whether it has a stamp besides its CAS.
#[inline]
pub(crate) fn has_stamp(bytes: &[u8]) -> bool {
    state(bytes) & HAS_STAMP != 0
}

/// The CAS of the item in `bytes`.
#[inline]
pub(crate) fn cas(bytes: &[u8]) -> u64 {
    u64_at(bytes, 16)
}

/// The second of its last use.
#[inline]
pub(crate) fn accessed(bytes: &[u8]) -> u32 {
    u32_at(bytes, 12)
}

/// The second at which it expires.
#[inline]
pub(crate) fn expiry(bytes: &[u8]) -> u32 {
    u32_at(bytes, 8)
}

/// Notes that it was used at this second.
#[inline]
pub(crate) fn set_used(bytes: &mut [u8], second: u32) {
    let state = state(bytes);
    if u32_at(bytes, 12) != second {
        set_accessed(bytes, second);
    }
    if state & Marks::FETCHED.0 == 0 {
        set_state(bytes, state | Marks::FETCHED.0);
    }
}

pub(crate) fn set_cas(bytes: &mut [u8], cas: u64) {
    bytes[16..24].copy_from_slice(&cas.to_le_bytes());
}

#[inline]
fn key_offset(bytes: &[u8]) -> usize {
    let state = state(bytes);
    let at = HEADER + usize::from(OPTIONAL[usize::from(state & 15)]);
    if state & HAS_TAGS == 0 { at } else { at + 1 + 8 * usize::from(bytes[at]) }
}

#[inline]
fn grace_s(bytes: &[u8]) -> u32 {
    let state = state(bytes);
    if state & HAS_GRACE == 0 {
        return 0;
    }
    u32_at(bytes, HEADER + usize::from(OPTIONAL[usize::from(state & 3)]))
}

#[inline]
fn state(bytes: &[u8]) -> u16 {
    u16::from_le_bytes([bytes[2], bytes[3]])
}

fn set_state(bytes: &mut [u8], state: u16) {
    bytes[2..4].copy_from_slice(&state.to_le_bytes());
}

#[inline]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

#[inline]
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_plain_item_of_132_bytes_takes_160() {
        let attributes = Attributes { cas: 1, ..Attributes::default() };
        assert_eq!(needed(&attributes, 32, 100), 160);
        assert_eq!(needed(&Attributes { flags: 1, ..attributes }, 32, 100), 160);
    }

    /// Also where two keys of both domains have one hash.
    #[test]
    fn the_domain_is_part_of_the_name() {
        for marks in [Marks::none(), Marks::OBJECT, Marks::WON, Marks::OBJECT.with(Marks::PINNED)] {
            let attributes = Attributes { marks, ..Attributes::default() };
            let mut bytes = vec![0; needed(&attributes, 3, 1)];
            write(&mut bytes, b"\x07\0k", &attributes, 1, false, [b"v", b""]);
            let is_object = marks.has(Marks::OBJECT);
            assert!(is_named(&bytes, b"\x07\0k", is_object) && !is_named(&bytes, b"\x07\0k", !is_object));
            assert!(!is_named(&bytes, b"\x07\0l", is_object));
            assert_eq!(Item::new(&bytes, None).object(), is_object.then_some((7, &b"k"[..])));
            assert_eq!(value_mut(&mut bytes), Some(&mut b"v".to_owned()[..]));
        }
    }

    #[test]
    fn grace_and_refresh_move_with_the_expiry() {
        let attributes =
            Attributes { expiry: 100, grace_s: 5, refresh: Refresh::lead(10), ..Attributes::default() };
        let mut bytes = vec![0; needed(&attributes, 1, 1)];
        write(&mut bytes, b"k", &attributes, 1, false, [b"v", b""]);
        let item = |bytes: &[u8], now| {
            (dead_at(bytes), Item::new(bytes, None).read_check(now) == ReadCheck::Nothing)
        };
        assert_eq!(item(&bytes, 89), (105, true));
        assert_eq!(item(&bytes, 90), (105, false));
        set_expiry(&mut bytes, 50);
        assert_eq!((item(&bytes, 39), item(&bytes, 40)), ((55, true), (55, false)));
        set_expiry(&mut bytes, NEVER);
        assert_eq!(item(&bytes, u32::MAX), (NEVER, true));
        set_expiry(&mut bytes, u32::MAX);
        assert_eq!(item(&bytes, 1).0, u32::MAX);
    }

    #[test]
    fn the_end_of_a_life_does_not_move() {
        let life = |ends_ms| Some(Life { ends_ms, provisional: true });
        let attributes =
            Attributes { expiry: NEVER, grace_s: 9, ..Attributes::default() }.with_life(life(100_250));
        let mut bytes = vec![0; needed(&attributes, 1, 1)];
        write(&mut bytes, b"k", &attributes, 1, false, [b"v", b""]);
        let item = |bytes: &[u8]| (Item::new(bytes, None).life(), dead_at(bytes));
        assert_eq!(item(&bytes), (life(100_250), 101), "without grace");
        for longer in [NEVER, 102, u32::MAX] {
            set_expiry(&mut bytes, longer);
            assert_eq!(item(&bytes), (life(100_250), 101));
        }
        set_expiry(&mut bytes, 50);
        assert_eq!(item(&bytes), (life(49_250), 50), "it expires before");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            flags: u32, expiry: u32, accessed: u32, cas: u64, stamp: Option<u64>, grace_s: u32,
            lead_s in 0..HAS_LIFE, life: Option<(u32, bool)>,
            tags in prop::collection::vec(any::<u64>(), 0..=TAGS_MAX), marks: u16,
            key in prop::collection::vec(any::<u8>(), 1..=250), value in prop::collection::vec(any::<u8>(), 0..600),
            cut in 0_usize..600, slack in 0_usize..=SLACK_MAX / 8,
        ) {
            let attributes = Attributes {
                flags,
                expiry,
                accessed,
                cas,
                stamp,
                grace_s,
                refresh: Refresh::lead(lead_s),
                tags: &tags,
                marks: Marks(marks & MARKS),
            };
            let life = life.map(|(ends_ms, provisional)| Life { ends_ms: ends_ms.into(), provisional });
            let attributes = attributes.with_life(life);
            let needed = needed(&attributes, key.len(), value.len());
            let mut bytes = vec![0xEE; needed + slack * 8 + 8];
            let end = bytes.len() - 8;
            let (a, b) = value.split_at(cut.min(value.len()));
            write(&mut bytes[..end], &key, &attributes, value.len(), false, [a, b]);
            prop_assert_eq!(allotted(&bytes), end);
            prop_assert_eq!(&bytes[end..], &[0xEE; 8]);
            let item = Item::new(&bytes[..end], None);
            prop_assert_eq!(item.key(), &key[..]);
            prop_assert!(matches!(item.value(), Value::Inline(v) if v == &value[..]));
            let mut room = [0; TAGS_MAX];
            prop_assert_eq!(item.attributes(&mut room), attributes);
            if let Some(life) = life {
                let ends_ms = life.ends_ms.min(u64::from(attributes.expiry) * 1000);
                prop_assert_eq!(item.life(), Some(Life { ends_ms, ..life }));
                prop_assert_eq!((item.grace_s(), item.refresh_at()), (0, None));
            }
            prop_assert!(life.is_none() || item.read_check(0) == ReadCheck::Rule);
            prop_assert_eq!(item.stamp(), stamp.unwrap_or(cas));
            prop_assert_eq!(item.dead_at(), attributes.dead_at());
            set_dead(&mut bytes);
            prop_assert!(is_dead(&bytes));
            prop_assert_eq!(allotted(&bytes), end);
        }
    }
}
