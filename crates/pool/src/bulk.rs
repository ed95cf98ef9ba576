//! Many jobs at once, from an iterator: replies in order, or as they come. For blocking callers.
//!
//! Arguments are taken from the iterator as room comes up: at most twice as many jobs are on their way as the
//! workers can hold, and no more than the queue takes, so an iterator may be endless, and its arguments need not be in memory together.

use std::collections::VecDeque;
use std::iter::Fuse;
use std::sync::atomic::Ordering;
use std::sync::mpsc;

use crate::job::Outcome;
use crate::payload::Args;
use crate::pool::{Call, Pool};

impl Pool {
    /// Submits a job for each item; an iterator of their outcomes in the order of the items. Dropping it cancels the
    /// jobs on their way. Never use it on the pool's own thread.
    ///
    /// With [`crate::QueuePolicy::Reject`] jobs of others may fill the queue: those refused are
    /// [`crate::Error::Rejected`].
    pub fn map<A>(&self, args: A) -> Map<A::IntoIter>
    where
        A: IntoIterator,
        A::Item: Into<Args>,
    {
        Map { pool: self.clone(), args: args.into_iter().fuse(), calls: VecDeque::new() }
    }

    /// As [`Pool::map`], but outcomes come as jobs end, each with the number of its item, counted from 0. When it is
    /// dropped, jobs on their way are finished and their outcomes thrown away.
    pub fn as_completed<A>(&self, args: A) -> AsCompleted<A::IntoIter>
    where
        A: IntoIterator,
        A::Item: Into<Args>,
    {
        let (sender, receiver) = mpsc::channel();
        let args = args.into_iter().fuse();
        AsCompleted { pool: self.clone(), args, submitted: 0, open: 0, sender, receiver }
    }

    /// Most jobs on their way for one of these: no more than the queue takes, even while there is no worker.
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
    /// Jobs whose outcome was not taken yet.
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
            // Nobody may be left to listen.
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
