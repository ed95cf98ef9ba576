//! The longest operations, while the index grows and while the collector runs.
//!
//! Times are CPU time of the thread, page faults included, so that what else the machine does is left out; each
//! has the clock's own 0.2 us in it. An empty loop is measured beside each operation: what is long there
//! (interrupts, faults of the host), the machine has done.

use std::fmt::Write as _;
use std::hint::black_box;

use anyhow::Result;
use hdrhistogram::Histogram;
use nix::time::{ClockId, clock_gettime};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::cache::Cache;
use crate::mixes::Mix;

/// Nanoseconds, to three digits.
type Times = Histogram<u64>;

/// Rounds of the loop that is measured beside each operation.
const IDLE_ROUNDS: u64 = 300;

/// The table: sets and gets by turns at `memory_bytes`, for each kind of values but the huge ones.
pub(crate) fn run(memory_bytes: usize) -> Result<String> {
    let mut text = format!(
        "`-m {}`, CPU time in microseconds.\n\n| values | phase | operation | count | p50 | p99 | p99.9 | p99.99 | most |\n\
         |---|---|---|---|---|---|---|---|---|\n",
        memory_bytes >> 20
    );
    for mix in [Mix::Tiny, Mix::Fixed, Mix::Web, Mix::Bimodal] {
        let mut cache = Cache::new(memory_bytes, 1)?;
        let mut rng = SmallRng::seed_from_u64(1);
        let room = memory_bytes / mix.item_bytes();
        let value = vec![b'v'; 1 << 20];
        // New keys until memory is full, then three times as many again.
        for (phase, from, to) in
            [("index grows", 0, room * 3 / 4), ("collector runs", room * 3 / 4, room * 4)]
        {
            let (mut sets, mut gets, mut idle) = (times()?, times()?, times()?);
            for id in from as u64..to as u64 {
                let len = mix.value_bytes(id, memory_bytes);
                let key = name(id);
                let start = now()?;
                black_box(cache.set(&key, &value[..len], 0));
                let set = now()?;
                black_box((0..IDLE_ROUNDS).fold(id, |sum, n| black_box(sum.rotate_left(5) ^ n)));
                let nothing = now()?;
                let key = name(rng.random_range(id.saturating_sub(room as u64)..=id));
                let before = now()?;
                black_box(cache.get(&key));
                let get = now()?;
                sets.saturating_record(set.saturating_sub(start));
                idle.saturating_record(nothing.saturating_sub(set));
                gets.saturating_record(get.saturating_sub(before));
                if id.is_multiple_of(100_000) {
                    cache.now += 1;
                    cache.tick();
                }
            }
            for (name, times) in [("set", &sets), ("get", &gets), ("empty loop", &idle)] {
                write!(text, "| {} | {phase} | {name} | {} |", mix.name(), times.len())?;
                for quantile in [0.5, 0.99, 0.999, 0.9999, 1.0] {
                    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of some seconds")]
                    let micros = times.value_at_quantile(quantile) as f64 / 1000.0;
                    write!(text, " {micros:.1} |")?;
                }
                text.push('\n');
            }
        }
    }
    Ok(text)
}

fn times() -> Result<Times> {
    Ok(Histogram::new_with_bounds(1, 60_000_000_000, 3)?)
}

fn name(id: u64) -> [u8; 32] {
    let mut key = [b'k'; 32];
    key[..8].copy_from_slice(&id.to_le_bytes());
    key
}

/// CPU time of this thread in nanoseconds.
fn now() -> Result<u64> {
    let time: std::time::Duration = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into();
    Ok(time.as_nanos() as u64)
}
