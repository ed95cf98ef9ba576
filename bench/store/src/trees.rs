//! The tree outside the log: time of an operation on a tree of many members, and what it holds compared with
//! what the system reports as resident.
//!
//! Times are CPU time of the thread, as in [`crate::stalls`]; each is a mean over many operations on members
//! in an order without a pattern.

use std::fmt::Write as _;
use std::hint::black_box;
use std::ops::Bound;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use cattlegrid_store::{Memory, PAGE_BYTES, Tree};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use crate::soak::resident_bytes;
use crate::stalls::now;

/// Bytes of a member's key.
const KEY_BYTES: usize = 20;

/// Makes the key of a member with this number.
type KeyForm = fn(u64) -> [u8; KEY_BYTES];

const FORMS: [(&str, KeyForm); 2] = [("member:N", numbered), ("random", scrambled)];

/// The table for trees of `members` with values of `value_bytes`.
pub(crate) fn run(members: u64, value_bytes: usize) -> Result<String> {
    let mut text = format!(
        "{members} members of {KEY_BYTES} bytes, values of {value_bytes}; nanoseconds.\n\n\
         | keys | insert ascending | insert | insert with reserve | get | get changed place | rank | nth | next of a scan | \
         replace | remove | drop, us | held, % of keys and values | resident growth, % of held |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n"
    );
    for (name, key) in FORMS {
        let mut rng = SmallRng::seed_from_u64(1);
        let value = vec![b'v'; value_bytes];
        // The keys are made beforehand, so that what is measured is the tree.
        let mut keys: Vec<_> = (0..members).map(key).collect();
        let ascending = {
            let mut sorted = keys.clone();
            sorted.sort_unstable();
            let mut tree = new(&memory(members, value_bytes)?)?;
            each(&sorted, |key| tree.insert(key, &value).is_ok())?
        };
        keys.shuffle(&mut rng);
        let resident = resident_bytes()?;
        let memory = memory(members, value_bytes)?;
        let mut tree = new(&memory)?;
        let insert = each(&keys, |key| tree.insert(key, &value).is_ok())?;
        let grown = resident_bytes()?.saturating_sub(resident);
        let held = tree.held_bytes() + tree.heap_bytes();
        keys.shuffle(&mut rng);
        let get = each(&keys, |key| black_box(tree.get(key)).is_some())?;
        let change = each(&keys, |key| black_box(tree.get_mut(key)).is_some())?;
        let rank = each(&keys, |key| tree.rank(key).is_ok())?;
        let places: Vec<u64> = (0..members).map(|_| rng.random_range(0..members)).collect();
        let nth = each(&places, |place| black_box(tree.nth(*place)).is_some())?;
        let start = now()?;
        let mut count = 0_u64;
        tree.scan(Bound::Unbounded, |key, _| {
            count += u64::from(black_box(key).len() == KEY_BYTES);
            true
        });
        let next = per(now()? - start, count);
        let replace = each(&keys, |key| tree.insert(key, &value).is_ok())?;
        let percent = 100 * held as u64 / tree.bytes().max(1);
        let half = &keys[..keys.len() / 2];
        let remove = each(half, |key| tree.remove(key))?;
        let reserved = each(half, |key| {
            let is_done =
                tree.reserve_for(1, KEY_BYTES, value_bytes).is_ok() && tree.insert(key, &value).is_ok();
            tree.release_reserve();
            is_done
        })?;
        let start = now()?;
        drop(tree);
        let dropped = (now()? - start) / 1000;
        writeln!(
            text,
            "| {name} | {ascending} | {insert} | {reserved} | {get} | {change} | {rank} | {nth} | {next} | {replace} | {remove} | \
             {dropped} | {percent} | {} |",
            100 * grown / held as u64
        )?;
    }
    Ok(text)
}

/// Memory for a tree of these members.
fn memory(members: u64, value_bytes: usize) -> Result<Arc<Memory>> {
    let bytes = 2 * members as usize * (KEY_BYTES + value_bytes + 16) + 64 * PAGE_BYTES;
    Ok(Memory::new(bytes)?)
}

fn new(memory: &Arc<Memory>) -> Result<Tree> {
    Tree::new(memory).ok().context("not a page is free")
}

/// Mean nanoseconds of an operation on each of `all`, which says whether it has found what it should.
fn each<T>(all: &[T], mut operation: impl FnMut(&T) -> bool) -> Result<u64> {
    let start = now()?;
    let done = all.iter().filter(|one| operation(one)).count();
    let nanos = now()? - start;
    ensure!(done == all.len(), "the memory is too small, or a member is missing");
    Ok(per(nanos, all.len() as u64))
}

fn per(nanos: u64, count: u64) -> u64 {
    nanos / count.max(1)
}

fn numbered(n: u64) -> [u8; KEY_BYTES] {
    let mut key = *b"member:0000000000000";
    let mut n = n;
    for digit in key[7..].iter_mut().rev() {
        *digit = b'0' + (n % 10) as u8;
        n /= 10;
    }
    key
}

/// Each number has another key: the factor has no divisor of the modulus.
fn scrambled(n: u64) -> [u8; KEY_BYTES] {
    let n = u128::from(n + 1) * 6_180_339_887_499 % 10_000_000_000_000;
    numbered(n as u64).map(|byte| byte ^ 0x55)
}
