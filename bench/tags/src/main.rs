//! The cost of bumps and look-ups of tags, and how often they err.
//!
//! Times are CPU time of the thread, medians of rounds in which the variants alternate, so that other work of the
//! machine affects all equally. Look-ups overlap as the processor executes them: it continues while a slot is being
//! read, since it guesses that the tag was not bumped.

#![expect(clippy::cast_precision_loss, reason = "times and shares need few digits")]

use std::fs;
use std::hint::black_box;
use std::io::Write;

use anyhow::{Context as _, Result, ensure};
use cattlegrid_tags::{BumpKind, TagHash, Tags, Validity, false_stale_share};
use clap::Parser;
use nix::time::{ClockId, clock_gettime};

/// Measures `cattlegrid-tags`.
///
/// Fails when a bumped tag is valid, memory grows, an estimate is off by more than 20 %, or bumps are slower than a
/// million a second. The limits of look-ups are printed only: they depend on what else the machine does.
#[derive(Debug, Parser)]
struct Options {
    /// Bytes of the arrays; 64 MiB are 2 Mi slots a row.
    #[arg(long, default_value_t = 64 << 20)]
    memory: usize,
    /// Distinct tags to bump.
    #[arg(long, default_value_t = 10_000_000)]
    bumps: u64,
    /// Rounds whose median counts.
    #[arg(long, default_value_t = 15)]
    rounds: usize,
}

const ITEMS: u64 = 200_000;
const TAGS: usize = 2;

fn main() -> Result<()> {
    let options = Options::parse();
    let mut out = std::io::stdout();
    look_ups(&options, &mut out)?;
    bumps(&options, &mut out)
}

/// A look-up of two tags compared with one of none.
fn look_ups(options: &Options, out: &mut impl Write) -> Result<()> {
    let tags = Tags::new(options.memory);
    // Every page is the process's own, and bumps of other tags are everywhere.
    let others = tags.bumps().slots_per_row() as u64 / 4;
    (1..=others).for_each(|number| bump(&tags, number));
    let last = tags.bumps().last_bump();
    let variants = [
        ("nothing bumped since", last),
        ("1,000 others bumped since", last - 1_000),
        ("100,000 others bumped since", last - 100_000),
    ];
    let mut times = vec![[Vec::new(), Vec::new()]; variants.len()];
    for round in 0..options.rounds as u64 {
        for (&(_, stamp), times) in variants.iter().zip(&mut times) {
            for (count, times) in [0, TAGS].into_iter().zip(times) {
                times.push(one_round(&tags, stamp, count, round * ITEMS)?);
            }
        }
    }
    writeln!(out, "## Look-ups, arrays of {} MiB\n", tags.bumps().memory_bytes() >> 20)?;
    writeln!(out, "| | ns without tags | ns with {TAGS} tags | difference | limit |")?;
    writeln!(out, "|---|---|---|---|---|")?;
    for (((name, _), times), limit) in variants.iter().zip(&mut times).zip([10, 60, 60]) {
        let [without, with] = times.each_mut().map(|times| median(times));
        writeln!(out, "| {name} | {without:.1} | {with:.1} | {:+.1} | {limit} |", with - without)?;
    }
    let [overlapped, chained] = random_reads(options)?;
    writeln!(
        out,
        "\nFor scale: a read of a random place in as much memory takes {overlapped:.1} ns overlapped,"
    )?;
    writeln!(out, "{chained:.1} ns when each place depends on the read before.")?;
    Ok(())
}

/// Nanoseconds of a read of a random place, overlapped and each depending on the one before.
fn random_reads(options: &Options) -> Result<[f64; 2]> {
    // Not zeros: those would be one shared page.
    let words: Vec<u64> = (1..=options.memory as u64 / 8).collect();
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..options.rounds as u64 {
        for (chained, times) in [0, 1].into_iter().zip(&mut times) {
            let begin = cpu_ns()?;
            let mut read = 0;
            for number in round * ITEMS..(round + 1) * ITEMS {
                let place = mix(number + (read & chained)) as usize % words.len();
                read = black_box(words[place]);
            }
            times.push((cpu_ns()? - begin) as f64 / ITEMS as f64);
        }
    }
    Ok(times.each_mut().map(|times| median(times)))
}

/// Nanoseconds of a look-up of an item with this stamp and this many tags.
fn one_round(tags: &Tags, stamp: u64, count: usize, first: u64) -> Result<f64> {
    // Tags that were never bumped, different ones in each round.
    let first = (1 << 40) + first;
    let begin = cpu_ns()?;
    let mut valid = 0;
    for item in first..first + ITEMS {
        let hashes = [mix(2 * item), mix(2 * item + 1)];
        let validity = tags.check(stamp, black_box(&hashes[..count]).iter().copied(), item << 20, 0);
        valid += u64::from(validity == Validity::Valid);
    }
    let time = (cpu_ns()? - begin) as f64 / ITEMS as f64;
    ensure!(black_box(valid) * 100 > ITEMS * 98, "{valid} of {ITEMS} look-ups valid");
    Ok(time)
}

/// Distinct tags, bumped once each: speed, memory, which tags are valid afterwards, and how often others err.
fn bumps(options: &Options, out: &mut impl Write) -> Result<()> {
    let tags = Tags::new(options.memory);
    let fresh = rss_kib()?;
    // The first fill of a page is the system's work: the limit on speed is for pages in use.
    let warm = options.bumps / 10;
    let (begin, memory) = (cpu_ns()?, tags.bumps().memory_bytes());
    (1..=warm).for_each(|number| bump(&tags, number));
    let (warmed, used) = (cpu_ns()?, rss_kib()?);
    (warm + 1..=options.bumps).for_each(|number| bump(&tags, number));
    let (end, after) = (cpu_ns()?, rss_kib()?);
    let cold_ns = (warmed - begin) as f64 / warm as f64;
    let bump_ns = (end - warmed) as f64 / (options.bumps - warm) as f64;
    writeln!(out, "\n## {} distinct tags, each bumped once\n", options.bumps)?;
    writeln!(out, "| | |\n|---|---|")?;
    writeln!(out, "| a bump, pages in use | {bump_ns:.0} ns, {:.1} M a second |", 1e3 / bump_ns)?;
    writeln!(out, "| the first {warm}, pages new | {cold_ns:.0} ns |")?;
    writeln!(
        out,
        "| resident, KiB | {fresh} with the arrays new, {used} after {warm} bumps, {after} after {} |",
        options.bumps
    )?;
    ensure!(tags.bumps().memory_bytes() == memory, "the arrays have grown");
    ensure!(after <= fresh + (memory as u64 >> 10) + 512, "memory has grown beyond the arrays");
    // An item of each tag, as young as an item that the bump invalidates can be.
    let valid = (1..=options.bumps)
        .filter(|&number| tags.check(number - 1, [hash(number).get()], number, 0) != Validity::Dead)
        .count();
    writeln!(out, "| bumped and still valid | {valid} |")?;
    ensure!(valid == 0, "{valid} bumped items are valid");

    let m = tags.bumps().slots_per_row();
    writeln!(
        out,
        "\n| tags bumped since | false stale, measured | estimated by the arrays | by the formula |"
    )?;
    writeln!(out, "|---|---|---|---|")?;
    for bumped in
        [100_000, 300_000, 1_000_000, 3_000_000, 10_000_000].into_iter().filter(|&n| n <= options.bumps)
    {
        let since = options.bumps - bumped;
        let asked = 2_000_000_u64;
        let others = (1 << 41)..(1 << 41) + asked;
        let stale = others.filter(|&n| tags.check(since, [hash(n).get()], n, 0) != Validity::Valid).count();
        let measured = stale as f64 / asked as f64;
        let (estimate, formula) = (tags.bumps().estimate(since), false_stale_share(bumped, m));
        writeln!(out, "| {bumped} | {measured:.5} | {estimate:.5} | {formula:.5} |")?;
        for told in [estimate, formula] {
            ensure!((measured / told - 1.0).abs() < 0.2, "{measured} measured, {told} told");
        }
    }
    ensure!(bump_ns < 1_000.0, "fewer than a million bumps a second");
    Ok(())
}

/// A tag's hash without the cost of hashing a name: a permutation.
fn hash(number: u64) -> TagHash {
    TagHash::from_stored(mix(number))
}

/// The finaliser of `SplitMix64`.
fn mix(number: u64) -> u64 {
    let mut x = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Bumps the tag of this number with this number.
fn bump(tags: &Tags, number: u64) {
    tags.bumps().bump(hash(number), BumpKind::Hard, || number);
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// CPU time of this thread.
fn cpu_ns() -> Result<u64> {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).context("the thread's CPU clock")?;
    Ok(u64::try_from(time.tv_sec())? * 1_000_000_000 + u64::try_from(time.tv_nsec())?)
}

fn rss_kib() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
