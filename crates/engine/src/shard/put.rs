//! What a write is, and how the store puts its value in the place of what is there: what
//! `set add replace append prepend cas`, `ms`, fills and loads share. And the hash of a value, which tells
//! equal values from different ones.

use std::fmt::{self, Display};
use std::sync::Arc;

use cattlegrid_herd::{Filler, Session};
use cattlegrid_protocol::{Block, Limits, StoreVerb};
use cattlegrid_store::{
    Attributes, Found, HugeValue, Item, Life, Marks, NEVER, NewValue, PAGE_BYTES, Store, TAGS_MAX, Value,
};
use cattlegrid_tags::{TagError, TagList};

use crate::event::EventKind;
use crate::shard::Shard;
use crate::step::{Context, Interest};

/// Items that memcached keeps in one piece; in larger ones it does not look for a number (`slab_chunk_max`,
/// 512 KiB).
pub(crate) const WHOLE: Limits =
    Limits { max_item_bytes: 512 << 10, max_get_line_bytes: 0, debugtime: false, extensions: false };

/// Largest buffer kept between requests, in bytes.
const SCRATCH_MAX: usize = 256 << 10;

/// How a write relates to the open misses of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FillKind {
    /// Not a fill.
    No,
    /// A fill of the miss with this number, which was answered on the same connection.
    Of(u64),
    /// A fill of the miss with this number, which it has shown as a token.
    ByToken(u64),
    /// A fill of any open miss of the key, if there is one: its account decides. `strict`: what is not known
    /// to be new is dropped.
    Any { strict: bool },
}

/// A write as a fill, and who fills.
pub(crate) struct FillWrite<'a> {
    pub(crate) fill: FillKind,
    pub(crate) by: Filler,
    /// The session of the connection; None: the filler has no connection, but a token.
    pub(crate) session: Option<&'a mut Session>,
    /// The item that a reader would get now, apart from old values in their grace.
    pub(crate) shown: Option<Found>,
}

/// How a write treats the present value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteMode {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    /// Only over an item with the CAS of [`Write::compare`].
    Cas,
}

/// A write, of any command.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is true or not whatever the others are")]
pub(crate) struct Write<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) hash: u64,
    pub(crate) mode: WriteMode,
    pub(crate) data: WriteData<'a>,
    pub(crate) flags: u32,
    pub(crate) expiry: u32,
    /// The CAS that the item must have; 0 is none.
    pub(crate) compare: u64,
    /// The CAS to give the item instead of the next number.
    pub(crate) explicit_cas: Option<u64>,
    /// A lower CAS than the item's stores the value as stale (`I`).
    pub(crate) or_stale: bool,
    /// An append to an absent key stores with this expiry (`N`).
    pub(crate) vivify: Option<u32>,
    /// `compare` may be the token of a lease (`ms`).
    pub(crate) takes_token: bool,
    /// When it is refused the old value must go.
    pub(crate) drops_old: bool,
    /// The key is known to be absent.
    pub(crate) negative: bool,
    /// Tags that the client names.
    pub(crate) tags: TagList,
}

/// The data of a write.
#[derive(Debug, Clone)]
pub(crate) enum WriteData<'a> {
    /// They fit the log.
    Inline(&'a [u8]),
    /// They are too long for it, and in pages of their own.
    Huge(Arc<HugeValue>),
}

/// The result of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteOutcome {
    /// Stored under this CAS, with `size` bytes of value.
    Stored {
        cas: u64,
        size: usize,
    },
    NotStored,
    Exists,
    NotFound,
    /// The value would be longer than 4 GiB.
    NoRoom(usize),
    /// The value's tags cannot be taken. The write is counted as any refused value.
    Refused(TagsRefused),
}

/// Why a value is refused for its tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TagsRefused {
    Invalid(TagError),
    /// The value names no tag, and must.
    Missing,
    /// None were announced for its key, and must be. The client is told that the value is not stored.
    Unannounced,
}

impl Shard {
    /// Stores an item's value again with other attributes. False: no room.
    pub(crate) fn rewrite(
        &mut self,
        key: &[u8],
        hash: u64,
        found: Found,
        attributes: &Attributes<'_>,
    ) -> bool {
        match self.store.item(found).value() {
            Value::Huge(huge) => {
                let huge = Arc::clone(huge);
                self.store.put(hash, key, attributes, NewValue::Huge(huge)).is_ok()
            }
            Value::Inline(value) => {
                let mut copy = std::mem::take(&mut self.scratch);
                copy.clear();
                copy.extend_from_slice(value);
                let stored = self.store.put(hash, key, attributes, NewValue::Inline([&copy, &[]]));
                self.keep_scratch(copy);
                stored.is_ok()
            }
        }
    }
}

impl FillKind {
    /// The number of its miss, if it is known.
    pub(crate) fn number(self) -> Option<u64> {
        match self {
            Self::No | Self::Any { .. } => None,
            Self::Of(number) | Self::ByToken(number) => Some(number),
        }
    }

    pub(crate) fn token(self) -> Option<u64> {
        if let Self::ByToken(token) = self { Some(token) } else { None }
    }
}

impl Display for TagsRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(error) => error.fmt(f),
            Self::Missing => f.write_str("no tags"),
            Self::Unannounced => f.write_str("no tags were announced"),
        }
    }
}

impl From<TagError> for TagsRefused {
    fn from(error: TagError) -> Self {
        Self::Invalid(error)
    }
}

impl TagsRefused {
    /// The error that the client gets.
    pub(crate) fn line(self) -> String {
        format!("CLIENT_ERROR {self}")
    }
}

impl<'a> WriteData<'a> {
    /// A data block; `huge`, if it is in pages of its own.
    ///
    /// # Panics
    /// It is apart, and not in pages.
    pub(crate) fn of(block: Block<'a>, huge: Option<Arc<HugeValue>>) -> Self {
        match huge {
            Some(huge) => Self::Huge(huge),
            None => Self::Inline(block.here().expect("what is apart is in pages")),
        }
    }

    /// Bytes of the data.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Inline(bytes) => bytes.len(),
            Self::Huge(huge) => huge.len(),
        }
    }

    /// A line of tags was taken off it.
    #[inline]
    pub(crate) fn is_cut(&self) -> bool {
        if let Self::Huge(huge) = self { huge.front_len() > 0 } else { false }
    }

    /// The data as a value to store.
    pub(crate) fn to_value(&self) -> NewValue<'a> {
        match self {
            Self::Inline(bytes) => NewValue::Inline([bytes, &[]]),
            Self::Huge(huge) => NewValue::Huge(Arc::clone(huge)),
        }
    }

    /// The bytes, in pieces.
    fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let (bytes, huge) = match self {
            Self::Inline(bytes) => (Some(*bytes), None),
            Self::Huge(huge) => (None, Some(huge)),
        };
        bytes.into_iter().chain(huge.into_iter().flat_map(|huge| huge.slices()))
    }
}

impl<'a> Write<'a> {
    /// A plain `set` without flags or expiry.
    pub(crate) fn set(key: &'a [u8], hash: u64, data: &'a [u8]) -> Self {
        Self {
            key,
            hash,
            mode: WriteMode::Set,
            data: WriteData::Inline(data),
            flags: 0,
            expiry: NEVER,
            compare: 0,
            explicit_cas: None,
            or_stale: false,
            vivify: None,
            takes_token: false,
            drops_old: true,
            negative: false,
            tags: TagList::new(),
        }
    }

    /// A `set` or `ms` that was refused. `token`: the `C` of an `ms`.
    pub(crate) fn refused(key: &'a [u8], hash: u64, token: Option<u64>) -> Self {
        let mode = if token.is_some() { WriteMode::Cas } else { WriteMode::Set };
        let (compare, takes_token) = (token.unwrap_or(0), token.is_some());
        Self { mode, compare, takes_token, ..Self::set(key, hash, &[]) }
    }
}

impl Shard {
    pub(crate) fn write_new(&mut self, write: &Write<'_>, cx: &mut Context<'_>) -> WriteOutcome {
        let expiry = match (write.mode, write.vivify) {
            (WriteMode::Set | WriteMode::Add, _) => write.expiry,
            (WriteMode::Append | WriteMode::Prepend, Some(expiry)) => expiry,
            (WriteMode::Cas, _) => return WriteOutcome::NotFound,
            (WriteMode::Append | WriteMode::Prepend | WriteMode::Replace, _) => {
                return WriteOutcome::NotStored;
            }
        };
        self.put(write, expiry, Marks::none(), None, cx)
    }

    pub(crate) fn write_over(
        &mut self,
        write: &Write<'_>,
        found: Found,
        cx: &mut Context<'_>,
    ) -> WriteOutcome {
        let item = self.store.item(found);
        // What replaces a value by its CAS was made from it, and may be as old.
        let (cas, expiry, life) = (item.cas(), item.expiry(), item.life());
        match write.mode {
            WriteMode::Add => WriteOutcome::NotStored,
            WriteMode::Cas if write.compare == cas => self.put(write, write.expiry, Marks::none(), life, cx),
            WriteMode::Cas if write.or_stale && write.compare != 0 && write.compare < cas => {
                let won = if item.marks().has(Marks::WON) { Marks::WON } else { Marks::none() };
                self.put(write, expiry, Marks::STALE.with(won), life, cx)
            }
            WriteMode::Cas => WriteOutcome::Exists,
            WriteMode::Set | WriteMode::Replace => self.put(write, write.expiry, Marks::none(), None, cx),
            WriteMode::Append | WriteMode::Prepend if write.compare != 0 && write.compare != cas => {
                WriteOutcome::Exists
            }
            WriteMode::Append | WriteMode::Prepend => self.extend(write, found, cx),
        }
    }

    /// Stores the data as they came.
    fn put(
        &mut self,
        write: &Write<'_>,
        expiry: u32,
        marks: Marks,
        life: Option<Life>,
        cx: &mut Context<'_>,
    ) -> WriteOutcome {
        let size = write.data.len();
        self.shared.note_named(write.tags.hashes(), cx.step.now.ms);
        let (cas, stamp) = self.numbers(write.explicit_cas);
        let attributes = Attributes {
            flags: write.flags,
            expiry,
            accessed: cx.step.now.second,
            cas,
            stamp,
            tags: write.tags.hashes(),
            marks: if write.negative { marks.with(Marks::NEGATIVE) } else { marks },
            ..Attributes::default()
        };
        let attributes = attributes.with_life(life);
        match self.store.put(write.hash, write.key, &attributes, write.data.to_value()) {
            Ok(()) => WriteOutcome::Stored { cas: self.shown_cas(cas), size },
            Err(_) => WriteOutcome::NoRoom(size),
        }
    }

    /// Stores the old value with the data before or after it; everything else stays as it was.
    fn extend(&mut self, write: &Write<'_>, found: Found, cx: &mut Context<'_>) -> WriteOutcome {
        let old = self.store.item(found);
        let size = old.value_len() + write.data.len();
        if !self.shared.fits(write.key, old.flags(), size) {
            return WriteOutcome::NotStored;
        }
        self.store.note_asked(found);
        let (cas, stamp) = self.numbers(write.explicit_cas);
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let mut room = [0; TAGS_MAX];
        let item = self.store.item(found);
        // What lies in the log may move while room is made.
        let value = match item.value() {
            Value::Inline(bytes) => {
                scratch.extend_from_slice(bytes);
                None
            }
            Value::Huge(huge) => Some(Arc::clone(huge)),
        };
        let attributes = Attributes {
            cas,
            stamp: self.kept_stamp(&item).or(stamp),
            accessed: cx.step.now.second,
            marks: Marks::EDITED,
            ..item.attributes(&mut room)
        };
        let stored = self.put_joined(write, &attributes, value, &scratch);
        self.keep_scratch(scratch);
        if stored {
            WriteOutcome::Stored { cas: self.shown_cas(cas), size }
        } else {
            WriteOutcome::NoRoom(size)
        }
    }

    /// The stamp of an item that is changed in place, if it has its own or rules could ask for it: the item
    /// counts as of the same moment after the change.
    pub(crate) fn kept_stamp(&self, item: &Item<'_>) -> Option<u64> {
        let mut room = [0; TAGS_MAX];
        if self.herd.is_some() { Some(item.stamp()) } else { item.attributes(&mut room).stamp }
    }

    /// Stores `huge`, or the bytes in `scratch` if there is none, with the data before or after it.
    fn put_joined(
        &mut self,
        write: &Write<'_>,
        attributes: &Attributes<'_>,
        huge: Option<Arc<HugeValue>>,
        scratch: &[u8],
    ) -> bool {
        let old = huge.map_or(WriteData::Inline(scratch), WriteData::Huge);
        let parts = if write.mode == WriteMode::Append { [&old, &write.data] } else { [&write.data, &old] };
        let len = old.len() + write.data.len();
        let value = match (parts, old.len()) {
            ([WriteData::Inline(first), WriteData::Inline(second)], _)
                if len <= self.store.config().inline_max() =>
            {
                Some(NewValue::Inline([first, second]))
            }
            // The old value keeps its pages until the new one has its own.
            (_, old_len) if len + old_len <= self.store.memory_limit() / 2 => {
                let slices: Vec<&[u8]> = parts.iter().flat_map(|part| part.slices()).collect();
                self.store.huge_value(&slices).map(NewValue::Huge)
            }
            _ => {
                let mut joined = Vec::new();
                let fits = joined.try_reserve_exact(len).is_ok();
                if fits {
                    let slices = parts.iter().flat_map(|part| part.slices());
                    slices.for_each(|slice| joined.extend_from_slice(slice));
                }
                drop(old);
                fits.then(|| self.store.huge_value(&[&joined])).flatten().map(NewValue::Huge)
            }
        };
        value.is_some_and(|value| self.store.put(write.hash, write.key, attributes, value).is_ok())
    }

    /// The CAS of a write, and its stamp if that is another number.
    pub(crate) fn numbers(&self, explicit_cas: Option<u64>) -> (u64, Option<u64>) {
        let number = self.shared.tick();
        explicit_cas.map_or((number, None), |cas| (cas, Some(number)))
    }

    /// Keeps the buffer for the next request, unless it has grown large.
    pub(crate) fn keep_scratch(&mut self, mut scratch: Vec<u8>) {
        scratch.clear();
        if scratch.capacity() <= SCRATCH_MAX {
            self.scratch = scratch;
        }
    }
}

impl WriteMode {
    /// The mode of a classic command.
    pub(crate) fn of(verb: StoreVerb) -> Self {
        match verb {
            StoreVerb::Set => Self::Set,
            StoreVerb::Add => Self::Add,
            StoreVerb::Replace => Self::Replace,
            StoreVerb::Append => Self::Append,
            StoreVerb::Prepend => Self::Prepend,
            StoreVerb::Cas(_) => Self::Cas,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Set => "set",
            Self::Add => "add",
            Self::Replace => "replace",
            Self::Append => "append",
            Self::Prepend => "prepend",
            Self::Cas => "cas",
        }
    }
}

/// Notes a store that is refused with this status. As in memcached its time to live and size are not known.
pub(crate) fn note_refused(
    key: &[u8],
    mode: WriteMode,
    classic: bool,
    status: &'static str,
    cx: &mut Context<'_>,
) {
    cx.note(Interest::MUTATIONS, key, || EventKind::Store {
        status,
        command: mode.name(),
        ttl: 0,
        size: 0,
        classic,
    });
}

/// The hash of the bytes, flags and tags of a write.
pub(crate) fn hash_write(store: &Store, write: &Write<'_>, tags: &[u64]) -> u64 {
    let value = match &write.data {
        WriteData::Inline(bytes) => Value::Inline(bytes),
        WriteData::Huge(huge) => Value::Huge(huge),
    };
    hash(store, value, write.flags, write.negative, tags.iter().copied())
}

/// The hash of an item's value.
pub(crate) fn hash_item(store: &Store, item: &Item<'_>) -> u64 {
    hash(store, item.value(), item.flags(), item.marks().has(Marks::NEGATIVE), item.tags())
}

fn hash(store: &Store, value: Value<'_>, flags: u32, negative: bool, tags: impl Iterator<Item = u64>) -> u64 {
    let mut hash = u64::from(flags) << 1 | u64::from(negative);
    // Fibonacci hashing between the parts: the order counts.
    let mut add = |part: u64| hash = (hash.rotate_left(23) ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    tags.for_each(&mut add);
    match value {
        Value::Inline(bytes) => bytes.chunks(PAGE_BYTES).for_each(|page| add(store.hash_bytes(page))),
        Value::Huge(huge) => {
            let mut offset = 0;
            while offset < huge.len() {
                // Its pages, whichever lie side by side: a line of tags that was taken off leaves a part of
                // the first.
                let left = PAGE_BYTES - (huge.front_len() + offset) % PAGE_BYTES;
                let page = huge.slice_from(offset);
                let page = &page[..page.len().min(left)];
                add(store.hash_bytes(page));
                offset += page.len();
            }
        }
    }
    hash
}
