//! Random operations on a store, compared with a plain map; the whole structure is walked now and then.
#![no_main]

#[path = "../../crates/store/tests/it/model/mod.rs"]
mod model;

use cattlegrid_store::Share;
use libfuzzer_sys::arbitrary::{Arbitrary, Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use model::{Model, Op};

#[derive(Debug)]
struct Ops {
    evictions: bool,
    has_shares: bool,
    ops: Vec<Op>,
}

impl<'a> Arbitrary<'a> for Ops {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let (evictions, has_shares) = (u.arbitrary()?, u.arbitrary()?);
        let mut ops = Vec::new();
        while !u.is_empty() && ops.len() < 4_000 {
            ops.push(op(u)?);
        }
        Ok(Self { evictions, has_shares, ops })
    }
}

fn op(u: &mut Unstructured<'_>) -> Result<Op> {
    let key = u.int_in_range(0..=2_000_u16)?;
    let ttl = *u.choose(&[0, 0, 1, 7, 300, 5_000_000])?;
    Ok(match u.int_in_range(0..=15_u8)? {
        0..=3 => {
            let most = *u.choose(&[10, 300, 3_000, 60_000])?;
            Op::Put { key, len: u.int_in_range(0..=most)?, ttl, flags: u.arbitrary::<u8>()?.into() }
        }
        4 | 5 => Op::Get { key },
        6 => Op::Delete { key },
        7 => Op::Touch { key, ttl },
        8 => Op::Cas { key },
        9 => Op::Wait { seconds: u.int_in_range(0..=3)? },
        10 => Op::Tick,
        12..=15 => object_op(u, key % 300, ttl)?,
        _ => match u.int_in_range(0..=2_u8)? {
            0 => Op::Flush,
            1 => Op::GiveBack { bytes: u.int_in_range(1..=200_000)? },
            _ => Op::Purge,
        },
    })
}

fn object_op(u: &mut Unstructured<'_>, key: u16, ttl: u32) -> Result<Op> {
    let from = u.int_in_range(0..=255_u8)?.into();
    Ok(match u.int_in_range(0..=12_u8)? {
        0 | 1 => {
            let most = *u.choose(&[10, 300, 3_000, 60_000])?;
            Op::PutObject { key, len: u.int_in_range(0..=most)?, ttl, pinned: u.arbitrary()? }
        }
        2 => Op::PutTree { key, entries: from, ttl, pinned: u.arbitrary()? },
        3 | 4 => Op::GetObject { key },
        5 => Op::EditObject { key },
        6 => Op::Grow { key, from, entries: u.int_in_range(0..=99)?, len: u.int_in_range(0..=2_000)? },
        7 => Op::Shrink { key, from, entries: u.int_in_range(0..=255)? },
        8 => Op::Drop { key },
        9 => Op::TouchObject { key, ttl },
        10 => Op::Pin { key, on: u.arbitrary()? },
        11 => Op::End { kind: (key % 5) as u8 },
        _ => Op::Reclaim,
    })
}

fuzz_target!(|ops: Ops| {
    let share = |prefix: &[u8], at_least, at_most| Share { prefix: prefix.into(), at_least, at_most };
    let shares = [share(&[1], 0.2, 0.4), share(&[2], 0.0, 0.1), share(b"key:1", 0.1, 0.3)];
    let shares = if ops.has_shares && ops.evictions { &shares[..] } else { &[] };
    let mut model = Model::sharing(1 << 20, ops.evictions, shares);
    for (i, op) in ops.ops.iter().enumerate() {
        model.step(op);
        if i % 512 == 511 {
            model.store.verify();
        }
    }
    model.store.verify();
});
