//! Interleavings of a worker that claims its jobs and a parent that takes them back, with all values that the
//! memory model allows a load to see.
//!
//! `cargo xtask test --stage models`.

use std::ops::Range;

use ::loom::sync::Arc;
use ::loom::thread;
use cattlegrid_worker::claim::Claims;

/// Jobs that were sent.
const SENT: u64 = 3;

/// A worker that claims all jobs in these ranges. Returns the jobs that it may begin.
fn work(claims: &Claims, ranges: &[Range<u64>]) -> Vec<u64> {
    ranges.iter().flat_map(|range| claims.claim(range.clone())).collect()
}

/// The parent's knowledge of the jobs that it has taken back.
#[derive(Default)]
struct Parent {
    /// Sent to another worker already.
    taken: Vec<u64>,
    /// Begun, or about to be skipped: the worker says which.
    open: Vec<u64>,
}

impl Parent {
    fn take_back(&mut self, claims: &Claims, end: u64) {
        let before = claims.begun();
        let begun = claims.take_back(end);
        assert!(begun >= before, "it never falls");
        // A worker that has claimed a job may not have seen yet that the parent wants it: also a job that was
        // begun `before`.
        self.open.extend(0..end.min(begun));
        self.taken.extend(begun..end);
    }

    /// Every job has one place when the worker has said which jobs it skipped.
    fn check(&self, begun: &[u64], sent: u64) {
        for number in 0..sent {
            let (ours, theirs) = (self.taken.contains(&number), begun.contains(&number));
            assert!(!(ours && theirs), "{number} was begun and taken back");
            assert!(ours || theirs || self.open.contains(&number), "{number} is nowhere");
        }
    }
}

#[test]
fn a_job_is_begun_or_taken_back() {
    ::loom::model(|| {
        let claims = Arc::new(Claims::new());
        let worker = Arc::clone(&claims);
        let worker = thread::spawn(move || work(&worker, &[0..1, 1..2, 2..3]));
        let mut parent = Parent::default();
        parent.take_back(&claims, SENT);
        parent.check(&worker.join().unwrap(), SENT);
    });
}

#[test]
fn it_may_be_asked_for_twice() {
    ::loom::model(|| {
        let claims = Arc::new(Claims::new());
        let worker = Arc::clone(&claims);
        let worker = thread::spawn(move || work(&worker, &[0..1, 1..2, 2..3]));
        let mut parent = Parent::default();
        parent.take_back(&claims, 2);
        parent.take_back(&claims, SENT);
        parent.check(&worker.join().unwrap(), SENT);
    });
}

#[test]
fn a_claim_of_several_jobs_is_cut_at_one_place() {
    ::loom::model(|| {
        let claims = Arc::new(Claims::new());
        let worker = Arc::clone(&claims);
        let worker = thread::spawn(move || work(&worker, &[0..1, 1..3]));
        let mut parent = Parent::default();
        parent.take_back(&claims, 2);
        let begun = worker.join().unwrap();
        parent.check(&begun, SENT);
        assert!(begun.contains(&2), "the last job was not asked for");
    });
}

/// The worker ends at any point: jobs that it had begun are below `begun`, and jobs of the parent are not.
#[test]
fn a_death_in_between_leaves_no_doubt() {
    for jobs in 0..=SENT {
        ::loom::model(move || {
            let claims = Arc::new(Claims::new());
            let worker = Arc::clone(&claims);
            let worker = thread::spawn(move || (0..jobs).flat_map(|job| claims_one(&worker, job)).collect());
            let mut parent = Parent::default();
            parent.take_back(&claims, SENT);
            let begun: Vec<u64> = worker.join().unwrap();
            assert_eq!(claims.begun(), jobs);
            assert!(begun.iter().all(|job| *job < jobs && !parent.taken.contains(job)));
            // The others belong to the parent already, or it finds that they were not begun.
            assert!((jobs..SENT).all(|job| parent.taken.contains(&job)));
        });
    }
}

fn claims_one(claims: &Claims, job: u64) -> Range<u64> {
    claims.claim(job..job + 1)
}
