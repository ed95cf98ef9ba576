//! `hll`: an estimate of the number of distinct items, from 12 KiB of registers.
//!
//! The crate `cattlegrid_hll` has the registers and the estimate.
//!
//! The state is sparse at first: 3 bytes for each register that is not 0, in order,
//! ```text
//!   | register, 14 bits, and rank, 6 bits, in 24 bits: big-endian |
//! ```
//! Above [`FLAT_MAX`] bytes it is dense: 16 members in a tree, each with 1024 registers of 6 bits.
//!
//! `sketch` returns the registers as text, for clients that merge sketches of several servers. The digits are
//! those of base64 (A is 0). The text is the digit 1 (the version of the hash, the registers and this text),
//! then whichever is shorter of
//! the digit 1 (the version: of the hash, the registers and this text), then whichever is shorter,
//! ```text
//!   s | register, 3 digits, and rank, 1 digit | ...     registers that are not 0, ascending
//!   d | rank, 1 digit | ...                             all registers
//! ```
//! Equal registers have equal texts.
//!
//! # Invariant
//! A register never falls, so that the order of items makes no difference.

use std::ops::Bound;

use cattlegrid_hll::{Counts, RANK_MAX, REGISTERS, digit, estimate, register_and_rank};

use crate::arguments::{ARGUMENTS_MAX, Arguments};
use crate::call::{CallContext, CallError, MethodReply};
use crate::listing::Listing;
use crate::members::FLAT_MAX;
use crate::method::{ObjectType, OnAbsent, method, of_several};

use crate::native::sketch::{hash, inline, make_absent};
use crate::number::push_whole;
use crate::object::{Object, StateChange, StateView};
use crate::registry::OBJECT_KEY_MAX;

/// The number of registers in a member of the dense form.
const PART: usize = 1024;
/// The size of such a member, in bytes.
const PART_BYTES: usize = PART * 6 / 8;
/// The space of the dense form's members.
const PARTS: u8 = 1;
/// The size of an entry of the sparse form, in bytes.
const ENTRY: usize = 3;
/// The largest sparse form, in bytes.
const SPARSE_MAX: usize = FLAT_MAX / ENTRY * ENTRY;

/// The first byte of a sketch as text.
const SKETCH_VERSION: &[u8] = b"1";
/// The characters of a register in the text that leaves out registers that are 0.
const SKETCH_ENTRY: usize = 4;

/// The type `hll`.
pub(crate) static HLL: ObjectType = ObjectType {
    name: "hll",
    id: 13,
    doc: "The number of distinct items, estimated within about 1 %.",
    methods: &[
        method("new", (0, 0), "", "CREATED", OnAbsent::Runs, new),
        method(
            "add",
            (1, ARGUMENTS_MAX),
            "item [item ...]",
            "1: the object has changed, 0: it has not",
            OnAbsent::Runs,
            add,
        ),
        method(
            "count",
            (0, 0),
            "",
            "number of distinct items, with a standard error of 0.81 %",
            OnAbsent::Miss,
            count,
        ),
        of_several(&method(
            "merge",
            (1, ARGUMENTS_MAX),
            "key [key ...]",
            "number of distinct items of this object and the others together; none is changed",
            OnAbsent::Miss,
            merge,
        )),
        method(
            "sketch",
            (0, 0),
            "",
            "its registers as text, which clients can merge",
            OnAbsent::Miss,
            sketch,
        ),
    ],
    dump: Some(dump),
};

fn new(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    object.set(&[]);
    Ok(context.created())
}

fn add(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    make_absent(object, context, new)?;
    let mut ranks = arguments.iter().map(|item| register_and_rank(hash(item)));
    let is_changed = match object.view() {
        StateView::Tree(_) | StateView::Layer(_) => add_dense(object, ranks),
        StateView::Bytes(_) | StateView::Absent => loop {
            let Some((register, rank)) = ranks.next() else {
                break !matches!(object.change, StateChange::None);
            };
            if !add_sparse(object, register, rank) {
                make_dense(object)?;
                add_dense(object, std::iter::once((register, rank)).chain(ranks));
                break true;
            }
        },
    };
    Ok(context.text(if is_changed { b"1" } else { b"0" }))
}

fn count(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    push_whole(context.out, estimate(&counts_of(object.view())));
    Ok(MethodReply::Value)
}

fn merge(
    object: &mut Object<'_>,
    others: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let mut keys: Vec<Box<[u8]>> = vec![object.key().into()];
    for (place, key) in others.iter().enumerate() {
        if !(1..=OBJECT_KEY_MAX).contains(&key.len()) {
            return Err(CallError::argument(place, &format!("a key of 1 to {OBJECT_KEY_MAX} bytes")));
        }
        if !keys.iter().any(|own| **own == *key) {
            keys.push(key.into());
        }
    }
    Ok(MethodReply::List(Listing::fold(keys, fold, finish).with_settings(context.settings)))
}

fn sketch(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let (view, out) = (object.view(), &mut *context.out);
    let filled = REGISTERS - counts_of(view)[0] as usize;
    out.extend_from_slice(SKETCH_VERSION);
    if filled * SKETCH_ENTRY < REGISTERS {
        out.push(b's');
        each_register(view, |register, rank| {
            let place = [register >> 12, register >> 6, register].map(digit);
            out.extend_from_slice(&place);
            out.push(digit(usize::from(rank)));
        });
    } else {
        out.push(b'd');
        let from = out.len();
        out.resize(from + REGISTERS, digit(0));
        each_register(view, |register, rank| out[from + register] = digit(usize::from(rank)));
    }
    Ok(MethodReply::Value)
}

/// Merges a state into registers of one byte each.
fn fold(registers: &mut Vec<u8>, view: StateView<'_>) {
    registers.resize(REGISTERS, 0);
    each_register(view, |register, rank| registers[register] = registers[register].max(rank));
}

fn finish(registers: &[u8], out: &mut Vec<u8>) {
    push_whole(out, estimate(&cattlegrid_hll::counts(registers)));
}

fn dump(view: StateView<'_>, _: &CallContext<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"count\":");
    push_whole(out, estimate(&counts_of(view)));
    out.extend_from_slice(b",\"registers\":");
    push_whole(out, REGISTERS as u64);
    out.extend_from_slice(b",\"form\":");
    out.extend_from_slice(if matches!(view, StateView::Tree(_) | StateView::Layer(_)) {
        b"\"dense\"}"
    } else {
        b"\"sparse\"}"
    });
}

/// Raises a register of the sparse form. False: there is no room, and nothing has changed.
fn add_sparse(object: &mut Object<'_>, register: usize, rank: u8) -> bool {
    let (entries, _) = object.bytes().as_chunks::<ENTRY>();
    match entries.binary_search_by_key(&register, |entry| read_entry(*entry).0) {
        Ok(place) => {
            if read_entry(entries[place]).1 < rank {
                let at = place * ENTRY;
                object.edit()[at..at + ENTRY].copy_from_slice(&write_entry(register, rank));
            }
        }
        Err(_) if object.bytes().len() >= SPARSE_MAX => return false,
        Err(place) => {
            let at = place * ENTRY;
            object.edit().splice(at..at, write_entry(register, rank));
        }
    }
    true
}

/// Moves the registers to the dense form.
fn make_dense(object: &mut Object<'_>) -> Result<(), CallError> {
    let mut parts = [[0; PART_BYTES]; REGISTERS / PART];
    each_register(object.view(), |register, rank| {
        write_register(&mut parts[register / PART], register % PART, rank);
    });
    object.set(&[]);
    let mut members = object.members();
    for (place, part) in parts.iter().enumerate() {
        members.put(&[PARTS, place as u8], part)?;
    }
    Ok(())
}

/// Raises registers of the dense form in place. True: one has changed.
fn add_dense(object: &mut Object<'_>, ranks: impl Iterator<Item = (usize, u8)>) -> bool {
    let view = object.view();
    let raises = ranks.filter(|(register, rank)| dense_register(view, *register) < *rank);
    let raises: Vec<(usize, u8)> = raises.collect();
    if raises.is_empty() {
        return false;
    }
    let mut members = object.members();
    for (register, rank) in raises {
        let part = members.get_mut(&[PARTS, (register / PART) as u8]);
        if let Some(part) = part.and_then(|part| <&mut [u8; PART_BYTES]>::try_from(part).ok())
            && read_register(part, register % PART) < rank
        {
            write_register(part, register % PART, rank);
        }
    }
    true
}

fn dense_register(view: StateView<'_>, register: usize) -> u8 {
    let part = view.member(&[PARTS, (register / PART) as u8]).map_or(&[][..], inline);
    part.try_into().map_or(0, |part| read_register(part, register % PART))
}

fn read_entry(entry: [u8; ENTRY]) -> (usize, u8) {
    let word = u32::from_be_bytes([0, entry[0], entry[1], entry[2]]);
    ((word >> 6) as usize & (REGISTERS - 1), word as u8 & 63)
}

fn write_entry(register: usize, rank: u8) -> [u8; ENTRY] {
    let [_, entry @ ..] = ((register as u32) << 6 | u32::from(rank)).to_be_bytes();
    entry
}

fn read_register(part: &[u8; PART_BYTES], register: usize) -> u8 {
    let at = register / 4 * 3;
    let word = u32::from_le_bytes([part[at], part[at + 1], part[at + 2], 0]);
    (word >> (register % 4 * 6)) as u8 & 63
}

fn write_register(part: &mut [u8; PART_BYTES], register: usize, rank: u8) {
    let (at, shift) = (register / 4 * 3, register % 4 * 6);
    let word = u32::from_le_bytes([part[at], part[at + 1], part[at + 2], 0]);
    let [low, middle, high, _] = (word & !(63 << shift) | u32::from(rank & 63) << shift).to_le_bytes();
    part[at..at + 3].copy_from_slice(&[low, middle, high]);
}

/// Calls `each` with the registers that are not 0 and their ranks.
fn each_register(view: StateView<'_>, mut each: impl FnMut(usize, u8)) {
    match view {
        StateView::Absent => {}
        StateView::Bytes(bytes) => {
            let (entries, _) = bytes.as_chunks::<ENTRY>();
            entries.iter().map(|entry| read_entry(*entry)).for_each(|(register, rank)| each(register, rank));
        }
        StateView::Tree(_) | StateView::Layer(_) => view.scan(Bound::Unbounded, |key, value| {
            let place = key.get(1).map_or(0, |place| usize::from(*place) % (REGISTERS / PART));
            if let Ok(part) = inline(value).try_into() {
                let part: &[u8; PART_BYTES] = part;
                // Three bytes have four registers.
                for (four, bytes) in part.as_chunks::<3>().0.iter().enumerate() {
                    let word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]);
                    for own in 0..4 {
                        let rank = (word >> (own * 6)) as u8 & 63;
                        if rank > 0 {
                            each(place * PART + four * 4 + own, rank);
                        }
                    }
                }
            }
            true
        }),
    }
}

/// The number of registers with each rank.
fn counts_of(view: StateView<'_>) -> Counts {
    let mut counts = [0; RANK_MAX + 1];
    counts[0] = REGISTERS as u32;
    each_register(view, |_, rank| {
        counts[0] -= 1;
        counts[usize::from(rank).min(RANK_MAX)] += 1;
    });
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_are_packed() {
        let mut part = [0; PART_BYTES];
        for register in 0..PART {
            write_register(&mut part, register, (register % 64) as u8);
        }
        write_register(&mut part, 5, 63);
        write_register(&mut part, 5, 1);
        for register in 0..PART {
            let rank = if register == 5 { 1 } else { (register % 64) as u8 };
            assert_eq!(read_register(&part, register), rank);
        }
        for (register, rank) in [(0, 1), (REGISTERS - 1, 51), (77, 63)] {
            assert_eq!(read_entry(write_entry(register, rank)), (register, rank));
        }
    }
}
