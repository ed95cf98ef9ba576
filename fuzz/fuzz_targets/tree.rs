//! Random operations on a tree whose budget is used up again and again, compared with a plain map; the tree is walked now and then.
#![no_main]

#[path = "../../crates/store/tests/it/tree/model.rs"]
mod model;

use libfuzzer_sys::arbitrary::{Arbitrary, Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use model::{Key, Model, Op, SHAPES};

#[derive(Debug)]
struct Ops(usize, Vec<Op>);

impl<'a> Arbitrary<'a> for Ops {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let pages = *u.choose(&[64, 256, 1024])?;
        let keys = *u.choose(&[50, 1_000, u16::MAX])?;
        let mut ops = Vec::new();
        while !u.is_empty() && ops.len() < 2_000 {
            ops.push(op(u, keys)?);
        }
        Ok(Self(pages, ops))
    }
}

fn op(u: &mut Unstructured<'_>, keys: u16) -> Result<Op> {
    let key = Key(u.int_in_range(0..=SHAPES - 1)?, u.int_in_range(0..=keys)?);
    Ok(match u.int_in_range(0..=15_u8)? {
        0..=5 => {
            let most = *u.choose(&[0, 20, 300, 2_100, 20_000])?;
            Op::Insert { key, len: u.int_in_range(0..=most)? }
        }
        6..=9 => Op::Remove { key },
        10 => Op::Get { key },
        11 => Op::Nth { place: u.int_in_range(0..=keys)? },
        12 => Op::Scan { key, count: u.int_in_range(1..=40)? },
        13 => Op::Reserved {
            from: key,
            count: u.int_in_range(1..=80)?,
            step: u.arbitrary()?,
            len: u.int_in_range(0..=1_000)?,
        },
        14 => Op::Leave { pages: *u.choose(&[0, 1, 2, 5, 20, 10_000])? },
        _ => Op::TakeApart { pages: u.int_in_range(1..=30)? },
    })
}

fuzz_target!(|ops: Ops| {
    let mut model = Model::new(ops.0);
    for (n, op) in ops.1.iter().enumerate() {
        model.step(op);
        if n % 64 == 63 {
            model.verify();
        }
    }
    model.verify();
    model.end();
});
