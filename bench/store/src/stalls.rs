//! The longest operations, while the index grows and while the collector runs.
//!
//! Times are CPU time of the thread, page faults included, so that what else the machine does is left out;
//! each has the clock's own 0.2 us in it. An empty loop is measured next to each operation: what is long
//! there (interrupts, faults of the host), the machine has done.

use std::fmt::Write as _;
use std::hint::black_box;

use anyhow::Result;
use hdrhistogram::Histogram;
use nix::sys::resource::{UsageWho, getrusage};
use nix::time::{ClockId, clock_gettime};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::cache::Cache;
use crate::mixes::Mix;

/// Nanoseconds, to three digits.
type TimeHistogram = Histogram<u64>;

/// Rounds of the loop that is measured next to each operation.
const IDLE_ROUNDS: u64 = 300;

/// Number of the longest sets of each phase whose work is printed.
const LONGEST: usize = 5;

/// The kinds of values that are measured by default.
pub(crate) const MIXES: [Mix; 4] = [Mix::Tiny, Mix::Fixed, Mix::Web, Mix::Bimodal];

/// The tables: times of alternate sets and gets at `memory_bytes` for each kind of values, then what the
/// longest sets did.
pub(crate) fn run(memory_bytes: usize, mixes: &[Mix]) -> Result<String> {
    let mut longest_sets = String::from(
        "\nThe longest sets. Items: left by the collector, moved, or found dead; segments: collected whole because there was no room. \
         KiB: growth of what the store holds of the memory. Faults and switches: of the process, meanwhile.\n\n\
         | values | phase | key | us | evicted | moved | dead | segments | index KiB | ghost KiB | log KiB | faults | switches |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    let mut text = format!(
        "`-m {}`, CPU time in microseconds.\n\n| values | phase | operation | count | p50 | p99 | p99.9 | p99.99 | most |\n\
         |---|---|---|---|---|---|---|---|---|\n",
        memory_bytes >> 20
    );
    for &mix in mixes {
        let mut cache = Cache::new(memory_bytes, 1)?;
        let mut rng = SmallRng::seed_from_u64(1);
        let room = memory_bytes / mix.item_bytes();
        let value = vec![b'v'; 1 << 20];
        // New keys until the memory is full, then three times this number.
        for (phase, from, to) in
            [("index grows", 0, room * 3 / 4), ("collector runs", room * 3 / 4, room * 4)]
        {
            let (mut sets, mut gets, mut idle) = (times()?, times()?, times()?);
            let mut longest: Vec<SetWork> = Vec::new();
            for id in from as u64..to as u64 {
                let len = mix.value_bytes(id, memory_bytes);
                let key = name(id);
                let work = SetWork::begin(&cache, id)?;
                let start = now()?;
                black_box(cache.set(&key, &value[..len], 0));
                let set = now()?;
                black_box((0..IDLE_ROUNDS).fold(id, |sum, n| black_box(sum.rotate_left(5) ^ n)));
                let nothing = now()?;
                work.end(&cache, set.saturating_sub(start), &mut longest)?;
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
            for work in longest {
                writeln!(longest_sets, "| {} | {phase} | {work} |", mix.name())?;
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
    Ok(text + &longest_sets)
}

/// The work of a set: the difference of the counters after and before it.
#[derive(Debug, Clone, Copy, Default)]
struct SetWork {
    key: u64,
    nanos: u64,
    /// Evicted, moved and dead items, segments collected urgently; KiB of index, ghost queue and log; page
    /// faults, switches.
    counts: [i64; 9],
}

impl SetWork {
    fn begin(cache: &Cache, key: u64) -> Result<Self> {
        Ok(Self { key, nanos: 0, counts: counts(cache)? })
    }

    /// Keeps it in `longest` if it is among the [`LONGEST`].
    fn end(mut self, cache: &Cache, nanos: u64, longest: &mut Vec<Self>) -> Result<()> {
        if longest.len() == LONGEST && longest.last().is_some_and(|last| last.nanos >= nanos) {
            return Ok(());
        }
        self.nanos = nanos;
        self.counts.iter_mut().zip(counts(cache)?).for_each(|(count, after)| *count = after - *count);
        longest.push(self);
        longest.sort_by_key(|work| std::cmp::Reverse(work.nanos));
        longest.truncate(LONGEST);
        Ok(())
    }
}

impl std::fmt::Display for SetWork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        #[expect(clippy::cast_precision_loss, reason = "nanoseconds of some seconds")]
        let micros = self.nanos as f64 / 1000.0;
        write!(f, "{} | {micros:.1}", self.key)?;
        self.counts.iter().try_for_each(|count| write!(f, " | {count}"))
    }
}

fn counts(cache: &Cache) -> Result<[i64; 9]> {
    let mut sums = [0; 9];
    for store in &cache.shards {
        let (stats, held) = (store.stats(), store.held());
        let items =
            [stats.evictions, stats.moved, stats.reclaimed, stats.collected_in_haste].map(u64::cast_signed);
        let kib = [held.index, held.ghost, held.log].map(|bytes| (bytes >> 10).cast_signed() as i64);
        sums.iter_mut().zip(items.into_iter().chain(kib)).for_each(|(sum, count)| *sum += count);
    }
    let usage = getrusage(UsageWho::RUSAGE_THREAD)?;
    sums[7] = usage.minor_page_faults() + usage.major_page_faults();
    sums[8] = usage.voluntary_context_switches() + usage.involuntary_context_switches();
    Ok(sums)
}

fn times() -> Result<TimeHistogram> {
    Ok(Histogram::new_with_bounds(1, 60_000_000_000, 3)?)
}

fn name(id: u64) -> [u8; 32] {
    let mut key = [b'k'; 32];
    key[..8].copy_from_slice(&id.to_le_bytes());
    key
}

/// CPU time of this thread in nanoseconds.
pub(crate) fn now() -> Result<u64> {
    let time: std::time::Duration = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into();
    Ok(time.as_nanos() as u64)
}
