//! Many jobs at once, from an iterator: replies in the order of the items, or in the order in which jobs end.
//! For blocking callers.
//!
//! Arguments are taken from the iterator when there is room: at most twice as many jobs are outstanding as
//! the workers can hold, and no more than the queue takes. So an iterator may be infinite, and its arguments
//! are not all in memory at the same time.
//!
//! # Invariant
//! Each item taken from the iterator gives exactly one outcome.

use std::collections::VecDeque;
use std::iter::Fuse;
use std::sync::atomic::Ordering;
use std::sync::mpsc;

use crate::job::Outcome;
use crate::payload::Args;
use crate::pool::{Call, Pool};

impl Pool {
    /// Submits a job for each item. Returns an iterator of the outcomes in the order of the items. Dropping
    /// it cancels the outstanding jobs. Never use it on the pool's own thread.
    ///
    /// With [`crate::QueuePolicy::Reject`] the jobs of other callers may fill the queue: the outcome of a job
    /// that is refused is [`crate::Error::Rejected`].
    pub fn map<A>(&self, args: A) -> Map<A::IntoIter>
    where
        A: IntoIterator,
        A::Item: Into<Args>,
    {
        Map { pool: self.clone(), args: args.into_iter().fuse(), calls: VecDeque::new() }
    }

    /// Runs jobs as [`Pool::map`] does, but outcomes come in the order in which jobs end, each with the
    /// number of its item, counted from 0.
    /// When the iterator is dropped, outstanding jobs are finished and their outcomes are dropped.
    pub fn as_completed<A>(&self, args: A) -> AsCompleted<A::IntoIter>
    where
        A: IntoIterator,
        A::Item: Into<Args>,
    {
        let (sender, receiver) = mpsc::channel();
        let args = args.into_iter().fuse();
        AsCompleted { pool: self.clone(), args, submitted: 0, open: 0, sender, receiver }
    }

    /// Most outstanding jobs of one iterator: no more than the queue takes, even while there is no worker.
    fn width(&self) -> usize {
        let shared = self.shared();
        let held = shared.slack.load(Ordering::Relaxed);
        held.saturating_mul(2).min(shared.queue_limit).max(1)
    }
}

/// See [`Pool::map`].
#[derive(Debug)]
#[must_use = "jobs are submitted as outcomes are taken"]
pub struct Map<I: Iterator> {
    pool: Pool,
    args: Fuse<I>,
    calls: VecDeque<Call>,
}

impl<I> Iterator for Map<I>
where
    I: Iterator,
    I::Item: Into<Args>,
{
    type Item = Outcome;

    fn next(&mut self) -> Option<Outcome> {
        while self.calls.len() < self.pool.width()
            && let Some(args) = self.args.next()
        {
            self.calls.push_back(self.pool.call(args));
        }
        self.calls.pop_front().map(Call::wait)
    }
}

/// See [`Pool::as_completed`].
#[derive(Debug)]
#[must_use = "jobs are submitted as outcomes are taken"]
pub struct AsCompleted<I: Iterator> {
    pool: Pool,
    args: Fuse<I>,
    submitted: usize,
    /// Outstanding jobs and outcomes that were not taken yet.
    open: usize,
    sender: mpsc::Sender<(usize, Outcome)>,
    receiver: mpsc::Receiver<(usize, Outcome)>,
}

impl<I> Iterator for AsCompleted<I>
where
    I: Iterator,
    I::Item: Into<Args>,
{
    type Item = (usize, Outcome);

    fn next(&mut self) -> Option<(usize, Outcome)> {
        while self.open < self.pool.width()
            && let Some(args) = self.args.next()
        {
            let (number, sender) = (self.submitted, self.sender.clone());
            // The iterator may have been dropped; then the outcome is dropped, too.
            self.pool.submit(args, move |outcome| drop(sender.send((number, outcome))));
            self.submitted += 1;
            self.open += 1;
        }
        if self.open == 0 {
            return None;
        }
        self.open -= 1;
        self.receiver.recv().ok()
    }
}
