//! The hash of a value, to tell equal ones from different ones.

use cattlegrid_store::{Item, Marks, PAGE_BYTES, Store, Value};

use crate::shard::put::{Write, WriteData};

/// Of the bytes, flags and tags of a write.
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
