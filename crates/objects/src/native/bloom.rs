//! `bloom`: whether an item was seen, with a chosen error rate, in about ten bits for each item.
//!
//! A blocked Bloom filter: an item belongs to one block of 4096 bits, and has k bits there, so that a call
//! reads one block. Sources: Bloom, "Space/time trade-offs in hash coding with allowable errors", CACM 13
//! (1970); Putze, Sanders, Singler, "Cache-, hash- and space-efficient Bloom filters", WEA 2007, for blocks,
//! and for the error rate when the number of items in a block has a Poisson distribution ([`error_rate`]).
//! The number of blocks follows from that rate.
//!
//! The state is a collection of members:
//! ```text
//!   0                        n, p, blocks, k, answers NEW
//!   1 block, 4 bytes         512 bytes; absent: all zeros
//! ```
//!
//! # Invariants
//! * An item that was added is always SEEN.
//! * Any other item is SEEN at a rate of at most p until n different items were added, and at a higher rate
//!   after that.

use crate::arguments::Arguments;
use crate::call::{CallContext, CallError, MethodReply};
use crate::method::{ObjectType, OnAbsent, method};
use crate::native::set::SplitMix64;
use crate::native::sketch::{HEADER, MemberKey, hash, inline, item, key, make_absent, number};
use crate::number::{float, push_whole};
use crate::object::{Object, StateView};

/// The number of bits in a block.
const BLOCK_BITS: u32 = 4096;
const BLOCK_BYTES: usize = BLOCK_BITS as usize / 8;
/// The most blocks: 64 MiB of bits.
const BLOCKS_MAX: u32 = 1 << 17;
/// The most bits of an item.
const HASHES_MAX: u32 = 20;
const ITEMS: u64 = 10_000;
const ITEMS_MAX: u64 = 1_000_000_000;
const RATE: f64 = 0.01;
const RATE_MIN: f64 = 0.000_001;
const RATE_MAX: f64 = 0.5;

const BLOCK: u8 = 1;

/// The type `bloom`.
pub(crate) static BLOOM: ObjectType = ObjectType {
    name: "bloom",
    id: 14,
    doc: "Whether an item was seen, with a chosen rate of errors, in little memory.",
    methods: &[
        method(
            "new",
            (0, 2),
            "[n] [p]",
            "CREATED: for n (10000) items, with a rate of errors of p (0.01), 0.000001 to 0.5; at most 64 MiB",
            OnAbsent::Runs,
            new,
        ),
        method(
            "add",
            (1, 1),
            "item",
            "NEW: it was never added; SEEN: it was, or this is an error",
            OnAbsent::Runs,
            add,
        ),
        method("has", (1, 1), "item", "NEW, SEEN: what add would answer", OnAbsent::Miss, has),
        method(
            "count",
            (0, 0),
            "",
            "number of answers NEW: different items, except for errors",
            OnAbsent::Miss,
            count,
        ),
    ],
    dump: Some(dump),
};

/// The parameters of a filter, and its count.
#[derive(Debug, Clone, Copy, PartialEq)]
struct FilterHeader {
    items: u64,
    rate: f64,
    blocks: u32,
    hashes: u32,
    count: u64,
}

impl FilterHeader {
    const BYTES: usize = 32;

    /// The smallest filter for this number of items and this error rate; None: it has more than
    /// [`BLOCKS_MAX`] blocks.
    #[expect(clippy::cast_precision_loss, clippy::cast_sign_loss, reason = "up to 10^9, and positive")]
    fn choose(items: u64, rate: f64) -> Option<Self> {
        let bits_an_item = -rate.log2() / std::f64::consts::LN_2;
        let hashes = (-rate.log2()).round().clamp(1.0, f64::from(HASHES_MAX)) as u32;
        let items_f64 = items as f64;
        let least = (items_f64 * bits_an_item / f64::from(BLOCK_BITS)).ceil().max(1.0);
        if least > f64::from(BLOCKS_MAX) {
            return None;
        }
        let mut blocks = least as u32;
        while error_rate(items_f64, blocks, hashes) > rate {
            blocks += (blocks / 64).max(1);
        }
        (blocks <= BLOCKS_MAX).then_some(Self { items, rate, blocks, hashes, count: 0 })
    }

    fn read(view: StateView<'_>) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = inline(view.member(&HEADER)?).try_into().ok()?;
        let (words, _) = bytes.as_chunks::<8>();
        let both = u64::from_le_bytes(words[2]);
        Some(Self {
            items: u64::from_le_bytes(words[0]),
            rate: f64::from_le_bytes(words[1]),
            blocks: (both >> 32) as u32,
            hashes: both as u32,
            count: u64::from_le_bytes(words[3]),
        })
    }

    fn write(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let both = u64::from(self.blocks) << 32 | u64::from(self.hashes);
        bytes[..8].copy_from_slice(&self.items.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.rate.to_le_bytes());
        bytes[16..24].copy_from_slice(&both.to_le_bytes());
        bytes[24..].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }

    /// The positions of an item's bits.
    fn bits_of(&self, item: &[u8]) -> Bits {
        let hash = hash(item);
        let block = ((hash >> 32) * u64::from(self.blocks)) >> 32;
        let mut stream = SplitMix64(hash);
        let mut places = [0; HASHES_MAX as usize];
        for five in places.chunks_mut(5) {
            let mut word = stream.next();
            for place in five {
                *place = (word % u64::from(BLOCK_BITS)) as u16;
                word /= u64::from(BLOCK_BITS);
            }
        }
        Bits { block: key(BLOCK, [&(block as u32).to_be_bytes(), &[]]), places, used: self.hashes as usize }
    }
}

/// The positions of an item's bits.
#[derive(Debug)]
struct Bits {
    /// The key of the block.
    block: MemberKey,
    places: [u16; HASHES_MAX as usize],
    used: usize,
}

impl Bits {
    fn places(&self) -> impl Iterator<Item = (usize, u8)> + '_ {
        self.places.iter().take(self.used).map(|place| (usize::from(place / 8), 1 << (place % 8)))
    }

    fn set(&self, block: &mut [u8]) {
        for (byte, bit) in self.places() {
            if let Some(byte) = block.get_mut(byte) {
                *byte |= bit;
            }
        }
    }

    /// Whether all bits are set.
    fn are_set(&self, view: StateView<'_>) -> bool {
        let Some(value) = view.member(&self.block) else { return false };
        let block = inline(value);
        self.places().all(|(byte, bit)| block.get(byte).is_some_and(|byte| byte & bit != 0))
    }
}

fn new(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let items = number(arguments, 0, (1, ITEMS, ITEMS_MAX), "a number from 1 to 1000000000")?;
    let rate = match arguments.get(1) {
        Some(text) => float(text)
            .filter(|rate| (RATE_MIN..=RATE_MAX).contains(rate))
            .ok_or_else(|| CallError::argument(1, "a number from 0.000001 to 0.5"))?,
        None => RATE,
    };
    let Some(header) = FilterHeader::choose(items, rate) else {
        return Err(CallError::Client("such a filter has more than 64 MiB".to_owned()));
    };
    object.set(&[]);
    object.members().put(&HEADER, &header.write())?;
    Ok(context.created())
}

fn add(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let item = item(arguments, 0)?;
    make_absent(object, context, new)?;
    let view = object.view();
    let Some(mut header) = FilterHeader::read(view) else { return Ok(MethodReply::Miss) };
    let bits = header.bits_of(item);
    if bits.are_set(view) {
        return Ok(context.text(b"SEEN"));
    }
    let has_block = view.member(&bits.block).is_some();
    header.count += 1;
    let mut members = object.members();
    if !has_block {
        members.reserve(1)?;
        members.put(&bits.block, &[0; BLOCK_BYTES])?;
    }
    if let Some(block) = members.get_mut(&bits.block) {
        bits.set(block);
    }
    if let Some(bytes) = members.get_mut(&HEADER) {
        bytes.copy_from_slice(&header.write());
    }
    Ok(context.text(b"NEW"))
}

fn has(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let item = item(arguments, 0)?;
    let view = object.view();
    let Some(header) = FilterHeader::read(view) else { return Ok(MethodReply::Miss) };
    let is_seen = header.bits_of(item).are_set(view);
    Ok(context.text(if is_seen { b"SEEN" } else { b"NEW" }))
}

fn count(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    push_whole(context.out, FilterHeader::read(object.view()).map_or(0, |header| header.count));
    Ok(MethodReply::Value)
}

fn dump(view: StateView<'_>, _: &CallContext<'_>, out: &mut Vec<u8>) {
    let Some(header) = FilterHeader::read(view) else { return };
    let FilterHeader { items, rate, blocks, hashes, count } = header;
    let bits = u64::from(blocks) * u64::from(BLOCK_BITS);
    let text = format!(
        "{{\"n\":{items},\"p\":{rate},\"bits\":{bits},\"hashes\":{hashes},\"blocks\":{blocks},\"blocks_used\":{},\"count\":{count}}}",
        view.members().saturating_sub(1)
    );
    out.extend_from_slice(text.as_bytes());
}

/// The share of items that are SEEN though they were never added, when `items` others were. It is the mean
/// over the number of items in a block, which has a Poisson distribution, up to six standard deviations from
/// its mean.
fn error_rate(items: f64, blocks: u32, hashes: u32) -> f64 {
    let rate = |in_block: f64| {
        let unset = (in_block * f64::from(hashes) * (-1.0 / f64::from(BLOCK_BITS)).ln_1p()).exp();
        (1.0 - unset).powi(hashes.cast_signed())
    };
    if blocks == 1 {
        return rate(items);
    }
    let mean = items / f64::from(blocks);
    let middle = mean.floor();
    let reach = 6.0 * mean.sqrt();
    // The weights are relative to that of the middle.
    let (mut sum, mut weights) = (rate(middle), 1.0);
    let (mut above, mut weight) = (middle, 1.0);
    while above < middle + reach {
        above += 1.0;
        weight *= mean / above;
        sum += weight * rate(above);
        weights += weight;
    }
    let (mut below, mut weight) = (middle, 1.0);
    while below > 0.0 && below > middle - reach {
        weight *= below / mean;
        below -= 1.0;
        sum += weight * rate(below);
        weights += weight;
    }
    sum / weights
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let header = FilterHeader::choose(ITEMS, RATE).unwrap();
        assert_eq!((header.hashes, header.blocks), (7, 24));
        let one = FilterHeader::choose(1, 0.5).unwrap();
        assert_eq!((one.hashes, one.blocks), (1, 1));
        let fine = FilterHeader::choose(ITEMS, RATE_MIN).unwrap();
        assert_eq!(fine.hashes, 20);
        assert!(FilterHeader::choose(ITEMS_MAX, RATE).is_none());
        assert!(FilterHeader::choose(50_000_000, RATE).unwrap().blocks <= BLOCKS_MAX);
    }

    #[test]
    fn the_rate_of_one_block_is_blooms() {
        // (1 - (1 - 1/4096)^(7 * 427))^7
        let rate = error_rate(427.0, 1, 7);
        assert!((0.0098..0.0104).contains(&rate), "{rate}");
        let many = error_rate(427.0 * 1000.0, 1000, 7);
        assert!(many > rate && many < rate * 1.1, "blocks differ in load: {many}");
        assert!(error_rate(1.0, 1, 1) < error_rate(2.0, 1, 1));
    }
}
