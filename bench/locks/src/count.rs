//! Waits of threads that execute batches on one engine.

use std::sync::Barrier;
use std::thread;

use anyhow::{Context as _, Result, ensure};
use cattlegrid_engine::Engine;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

use crate::Options;
use crate::batch::{KEYS, Lane, Until, Work, engine};

/// What a key takes in the phases of a batch when one thread executes it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Phases {
    /// Parse, prefetch, execute; nanoseconds of CPU time.
    pub(crate) key_ns: [f64; 3],
}

/// What was counted.
#[derive(Debug)]
pub(crate) struct Count {
    pub(crate) phases: Phases,
    /// Waits per 1,000 batches: quartile, median, quartile.
    pub(crate) waits: [f64; 3],
    /// CPU time of a key, divided by that with one thread in the same turn.
    pub(crate) cpu: f64,
    /// CPU time of the threads divided by the time that passed.
    pub(crate) busy: f64,
}

impl Count {
    pub(crate) fn take(work: Work, shards: usize, options: &Options, outside_ns: u64) -> Result<Self> {
        let engine = engine(shards)?;
        Lane::fill(&engine);
        let (mut waits, mut cpu, mut busy) = (Vec::new(), Vec::new(), Vec::new());
        let mut times: [Vec<f64>; 3] = Default::default();
        for _ in 0..options.turns {
            let mut lane = Lane::new(&engine, work, 1);
            let mut before = 0.0;
            for (until, times) in
                [Until::Parsed, Until::Prefetched, Until::Executed].into_iter().zip(&mut times)
            {
                let begin = cpu_ns()?;
                (0..options.batches).for_each(|number| lane.run(number, until));
                let time = (cpu_ns()? - begin) as f64 / (options.batches * KEYS) as f64;
                times.push(time - before);
                before = time;
            }
            let before_waits = engine.lock_waits();
            let turn = together(&engine, work, options, outside_ns)?;
            let batches = (options.threads * options.batches) as f64;
            waits.push((engine.lock_waits() - before_waits) as f64 * 1e3 / batches);
            let outside = outside_ns as f64 / KEYS as f64;
            cpu.push((turn.cpu_ns / batches / KEYS as f64 - outside) / before);
            busy.push(turn.cpu_ns / turn.elapsed_ns / options.threads as f64);
        }
        ensure!(waits.iter().all(|waits| waits.is_finite()), "no batches");
        let quartiles = [1, 2, 3].map(|quarter| quantile(&mut waits, quarter));
        let key_ns = times.each_mut().map(|times| quantile(times, 2));
        Ok(Self {
            phases: Phases { key_ns },
            waits: quartiles,
            cpu: quantile(&mut cpu, 2),
            busy: quantile(&mut busy, 2),
        })
    }
}

struct Turn {
    cpu_ns: f64,
    elapsed_ns: f64,
}

/// All threads at once.
fn together(engine: &Engine, work: Work, options: &Options, outside_ns: u64) -> Result<Turn> {
    let barrier = Barrier::new(options.threads);
    thread::scope(|scope| {
        let one = |number: usize| {
            let barrier = &barrier;
            move || -> Result<(f64, f64)> {
                pin(number)?;
                let mut lane = Lane::new(engine, work, 1 + number as u64);
                barrier.wait();
                let (begin, cpu) = (clock_ns(ClockId::CLOCK_MONOTONIC)?, cpu_ns()?);
                for batch in 0..options.batches {
                    lane.run(batch, Until::Executed);
                    if outside_ns > 0 {
                        let until = clock_ns(ClockId::CLOCK_MONOTONIC)? + outside_ns;
                        while clock_ns(ClockId::CLOCK_MONOTONIC)? < until {}
                    }
                }
                Ok(((cpu_ns()? - cpu) as f64, (clock_ns(ClockId::CLOCK_MONOTONIC)? - begin) as f64))
            }
        };
        let threads: Vec<_> = (0..options.threads).map(|number| scope.spawn(one(number))).collect();
        let mut turn = Turn { cpu_ns: 0.0, elapsed_ns: 0.0 };
        for thread in threads {
            let (cpu, elapsed) = thread.join().expect("a thread's requests are answered")?;
            turn.cpu_ns += cpu;
            turn.elapsed_ns = turn.elapsed_ns.max(elapsed);
        }
        Ok(turn)
    })
}

/// Keeps this thread on a processor of its own.
fn pin(number: usize) -> Result<()> {
    let mut processors = CpuSet::new();
    processors.set(number)?;
    sched_setaffinity(Pid::from_raw(0), &processors).context("as many processors as threads")
}

fn quantile(values: &mut [f64], quarter: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() - 1) * quarter / 4]
}

/// CPU time of this thread.
fn cpu_ns() -> Result<u64> {
    clock_ns(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

fn clock_ns(clock: ClockId) -> Result<u64> {
    let time = clock_gettime(clock).context("a clock")?;
    Ok(u64::try_from(time.tv_sec())? * 1_000_000_000 + u64::try_from(time.tv_nsec())?)
}
