//! Histories of a database, a network and a node. `FOLLOW_SEED=n` runs one of them, `FOLLOW_HISTORIES=n` says
//! how many.

use crate::world::{Counts, Fault, World};

const STEPS: usize = 1500;
const HISTORIES: u64 = 20_000;
/// Most histories until a fault is found.
const FOUND_WITHIN: u64 = 20_000;

fn history(seed: u64, fault: Option<Fault>, has_binlog: bool, counts: &mut Counts) -> Result<(), String> {
    let mut world = World::new(seed, fault, has_binlog);
    for _ in 0..STEPS {
        world.step()?;
    }
    world.settle()?;
    let of_this = world.counts;
    counts.hits += of_this.hits;
    counts.behind += of_this.behind;
    counts.bumps += of_this.bumps;
    counts.flushes += of_this.flushes;
    counts.confirmed += of_this.confirmed;
    counts.acknowledged += of_this.acknowledged;
    counts.nudges += of_this.nudges;
    counts.disconnects += of_this.disconnects;
    counts.taken_over += of_this.taken_over;
    Ok(())
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

fn no_value_is_older(has_binlog: bool) {
    let mut counts = Counts::default();
    let seeds = match number("FOLLOW_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("FOLLOW_HISTORIES").unwrap_or(HISTORIES),
    };
    for seed in seeds {
        if let Err(error) = history(seed, None, has_binlog, &mut counts) {
            panic!("FOLLOW_SEED={seed}: {error}");
        }
    }
    let Counts { hits, behind, bumps, flushes, confirmed, acknowledged, nudges, disconnects, taken_over } =
        counts;
    let all = [hits, behind, bumps, flushes, confirmed, acknowledged, nudges, disconnects, taken_over];
    assert!(number("FOLLOW_SEED").is_some() || all.iter().all(|count| *count > 100), "{counts:?}");
    eprintln!("{counts:?}");
}

#[test]
fn no_value_is_older_than_promised() {
    no_value_is_older(false);
}

#[test]
fn no_value_is_older_than_promised_with_a_binary_log() {
    no_value_is_older(true);
}

fn are_found(faults: &[Fault], has_binlog: bool) {
    for fault in faults {
        let found = (0..FOUND_WITHIN)
            .find(|seed| history(*seed, Some(*fault), has_binlog, &mut Counts::default()).is_err());
        eprintln!("{fault:?}: {found:?}");
        assert!(found.is_some(), "{fault:?} is not found in {FOUND_WITHIN} histories");
    }
}

#[test]
fn each_fault_is_found() {
    let faults = [
        Fault::NoHeadCheck,
        Fault::TrustOpenStream,
        Fault::HeadTooLow,
        Fault::BumpOnArrival,
        Fault::NothingRan,
        Fault::NoFlush,
        Fault::FloorStands,
        Fault::RingRoundedUp,
        Fault::AnyServer,
        Fault::SaysItResumes,
        Fault::AcknowledgedOnArrival,
        Fault::ForgetsRunning,
        Fault::StandsAnywhere,
    ];
    are_found(&faults, false);
}

#[test]
fn each_fault_is_found_with_a_binary_log() {
    let faults = [
        Fault::NoHeadCheck,
        Fault::TrustOpenStream,
        Fault::HeadTooLow,
        Fault::BumpOnArrival,
        Fault::NoFlush,
        Fault::AnyServer,
        Fault::SaysItResumes,
        Fault::StandsAnywhere,
        Fault::BeginsAtEnd,
        Fault::StartUnnoticed,
        Fault::ResetUnnoticed,
    ];
    are_found(&faults, true);
}
