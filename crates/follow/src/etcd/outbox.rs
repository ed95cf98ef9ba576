//! Bumps on their way into the log: lanes leave them here, and the source takes them in batches.
//!
//! Each bump has a *ticket*, and tickets are committed in order: one batch is under way at a time. While the
//! log is lost, bumps are kept up to [`BACKLOG_MAX`]; if there are more, one bump of everything takes their
//! place. A bump whose commit is not confirmed is written again when the log is back. If it is then in the
//! log twice, that costs a computation.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use crate::etcd::entry::Bump;

/// Most bumps of a batch.
pub const BATCH_MAX: usize = 500;
/// Most bytes of the lines of a batch. etcd refuses requests of 1.5 MiB.
pub const BATCH_BYTES_MAX: usize = 512 << 10;
/// Most bumps that are kept while the log is lost.
pub const BACKLOG_MAX: usize = 100_000;
/// Most bytes of the lines of these bumps.
pub const BACKLOG_BYTES_MAX: usize = 8 << 20;

/// See the module's text. `W`: a request that waits for a ticket.
#[derive(Debug)]
pub struct Outbox<W> {
    /// Lines in order of their tickets, each line once.
    lines: VecDeque<(u64, Arc<[u8]>)>,
    present: HashSet<Arc<[u8]>>,
    bytes: usize,
    /// The last ticket given out; `committed`: the last one committed.
    last: u64,
    committed: u64,
    under_way: Option<OutboxBatch>,
    waiters: Vec<(u64, bool, W)>,
    is_up: bool,
}

/// A batch of lines, written by one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxBatch {
    /// The lines with their tickets, in order.
    pub lines: Vec<(u64, Arc<[u8]>)>,
    /// Whether a client waits until all nodes have obeyed.
    pub has_barrier: bool,
}

/// Whether a request has to wait for a ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TicketState {
    /// The ticket is committed.
    Over,
    /// The waiter will be told.
    Waits,
    /// The log is lost.
    Lost,
}

/// Waiters whose bump was committed.
#[derive(Debug, PartialEq, Eq)]
pub struct CommittedWaiters<W> {
    /// Waiters that need nothing more.
    pub committed: Vec<W>,
    /// Waiters that also wait for all nodes.
    pub barriers: Vec<W>,
}

impl<W> Default for Outbox<W> {
    fn default() -> Self {
        Self {
            lines: VecDeque::new(),
            present: HashSet::new(),
            bytes: 0,
            last: 0,
            committed: 0,
            under_way: None,
            waiters: Vec::new(),
            is_up: false,
        }
    }
}

impl<W> Outbox<W> {
    /// Adds the line of a bump that this node has obeyed. Returns the ticket.
    pub fn push(&mut self, line: &[u8]) -> u64 {
        if let Some(own) = self.present.get(line) {
            // The same line waits already: it is committed later than now, which is enough.
            let found = self.lines.iter().find(|(_, other)| other == own);
            if let Some((ticket, _)) = found.filter(|_| self.lines.len() <= BATCH_MAX) {
                return *ticket;
            }
            return self.last;
        }
        if self.lines.len() >= BACKLOG_MAX || self.bytes + line.len() > BACKLOG_BYTES_MAX {
            self.lines.clear();
            self.present.clear();
            self.bytes = 0;
            return self.push(b"all");
        }
        self.last += 1;
        self.insert_last(self.last, line.into());
        self.last
    }

    /// Lets `who` wait for a ticket, if it is not committed yet. `is_barrier`: until all nodes have obeyed.
    pub fn wait(&mut self, ticket: u64, is_barrier: bool, who: W) -> TicketState {
        if self.committed >= ticket && !is_barrier {
            return TicketState::Over;
        }
        if !self.is_up {
            return TicketState::Lost;
        }
        let waits = self.lines.front().is_some_and(|(first, _)| *first <= ticket);
        // The ticket's batch does not ask the nodes for records, or nothing would be written: the next batch
        // does.
        let ticket = if is_barrier && !waits { self.push(&Bump::Nothing.line()) } else { ticket };
        self.waiters.push((ticket, is_barrier, who));
        TicketState::Waits
    }

    /// Whether there are lines to write now.
    pub fn is_ready(&self) -> bool {
        self.under_way.is_none() && !self.lines.is_empty()
    }

    /// Takes the next batch, if none is under way.
    pub fn begin(&mut self) -> Option<OutboxBatch> {
        if !self.is_ready() {
            return None;
        }
        let (mut lines, mut bytes) = (Vec::new(), 0);
        while let Some((_, line)) = self.lines.front()
            && lines.len() < BATCH_MAX
            && (lines.is_empty() || bytes + line.len() <= BATCH_BYTES_MAX)
        {
            bytes += line.len() + 1;
            if let Some((ticket, line)) = self.lines.pop_front() {
                self.present.remove(&line);
                self.bytes -= line.len();
                lines.push((ticket, line));
            }
        }
        let upto = lines.last().map_or(0, |(ticket, _)| *ticket);
        let has_barrier = self.waiters.iter().any(|(ticket, is_barrier, _)| *is_barrier && *ticket <= upto);
        let batch = OutboxBatch { lines, has_barrier };
        self.under_way = Some(batch.clone());
        Some(batch)
    }

    /// Records that the batch under way is in the log.
    pub fn commit(&mut self) -> CommittedWaiters<W> {
        let upto = self.under_way.take().and_then(|batch| batch.lines.last().map(|(ticket, _)| *ticket));
        self.committed = self.committed.max(upto.unwrap_or(0));
        let mut turn = CommittedWaiters { committed: Vec::new(), barriers: Vec::new() };
        let committed = self.committed;
        for (_, is_barrier, who) in self.waiters.extract_if(.., |(ticket, ..)| *ticket <= committed) {
            if is_barrier { turn.barriers.push(who) } else { turn.committed.push(who) }
        }
        turn
    }

    /// Takes the batch under way back, because it was refused or its result is not known: it is written
    /// again.
    pub fn give_back(&mut self) {
        let Some(batch) = self.under_way.take() else { return };
        for (ticket, line) in batch.lines.into_iter().rev() {
            if self.present.insert(Arc::clone(&line)) {
                self.bytes += line.len();
                self.lines.push_front((ticket, line));
            }
        }
    }

    /// Records whether the log takes bumps. When it stops, returns the waiters: their bumps are not
    /// confirmed.
    pub fn set_up(&mut self, is_up: bool) -> Vec<W> {
        self.is_up = is_up;
        let waiters = if is_up { Vec::new() } else { std::mem::take(&mut self.waiters) };
        waiters.into_iter().map(|(_, _, who)| who).collect()
    }

    /// The last ticket up to which all bumps are in the log.
    pub fn committed(&self) -> u64 {
        self.committed
    }

    /// Whether the log takes bumps.
    pub fn is_up(&self) -> bool {
        self.is_up
    }

    /// The number of bumps that are not in the log yet.
    pub fn backlog(&self) -> usize {
        self.lines.len() + self.under_way.as_ref().map_or(0, |batch| batch.lines.len())
    }

    fn insert_last(&mut self, ticket: u64, line: Arc<[u8]>) {
        self.bytes += line.len();
        self.present.insert(Arc::clone(&line));
        self.lines.push_back((ticket, line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(batch: &OutboxBatch) -> Vec<&[u8]> {
        batch.lines.iter().map(|(_, line)| &**line).collect()
    }

    #[test]
    fn a_ticket_is_over_when_its_batch_is_committed() {
        let mut outbox = Outbox::default();
        assert!(outbox.set_up(true).is_empty());
        let (a, b) = (outbox.push(b"a"), outbox.push(b"b"));
        assert_eq!(outbox.push(b"a"), a, "once a batch");
        assert_eq!(outbox.wait(a, false, "a"), TicketState::Waits);
        let batch = outbox.begin().unwrap();
        assert_eq!(texts(&batch), [b"a", b"b"]);
        let again = outbox.push(b"a");
        assert!(again > b, "what is under way may be older than this bump");
        assert_eq!(outbox.wait(again, false, "again"), TicketState::Waits);
        assert_eq!(outbox.begin(), None, "one batch at a time");
        assert_eq!(outbox.commit().committed, ["a"]);
        assert_eq!(outbox.wait(b, false, "b"), TicketState::Over);
        assert_eq!(texts(&outbox.begin().unwrap()), [b"a"]);
        assert_eq!(outbox.commit().committed, ["again"]);
    }

    #[test]
    fn barriers_are_told_apart() {
        let mut outbox = Outbox::default();
        outbox.set_up(true);
        let a = outbox.push(b"a");
        outbox.wait(a, true, "barrier");
        outbox.wait(a, false, "plain");
        assert!(outbox.begin().unwrap().has_barrier);
        assert_eq!(outbox.commit(), CommittedWaiters { committed: vec!["plain"], barriers: vec!["barrier"] });
        let b = outbox.push(b"b");
        outbox.wait(b, false, "b");
        assert!(!outbox.begin().unwrap().has_barrier);
        // Too late for that batch: the next one has it, and nothing else.
        assert_eq!(outbox.wait(b, true, "late"), TicketState::Waits);
        assert_eq!(outbox.commit().committed, ["b"]);
        let next = outbox.begin().unwrap();
        assert_eq!((texts(&next), next.has_barrier), (vec![&b"nothing"[..]], true));
        assert_eq!(outbox.commit().barriers, ["late"]);
        assert_eq!(outbox.wait(b, true, "later"), TicketState::Waits);
        assert!(outbox.begin().unwrap().has_barrier);
    }

    #[test]
    fn what_was_not_confirmed_is_written_again_in_order() {
        let mut outbox = Outbox::default();
        outbox.set_up(true);
        let a = outbox.push(b"a");
        outbox.push(b"b");
        outbox.wait(a, false, "a");
        outbox.begin().unwrap();
        outbox.push(b"b");
        outbox.push(b"c");
        assert_eq!(outbox.set_up(false), ["a"]);
        outbox.give_back();
        assert_eq!(outbox.wait(a, false, "late"), TicketState::Lost);
        outbox.set_up(true);
        assert_eq!(texts(&outbox.begin().unwrap()), [b"a", b"b", b"c"]);
        assert!(outbox.commit().committed.is_empty());
        assert_eq!(outbox.backlog(), 0);
    }

    #[test]
    fn batches_and_the_backlog_have_their_size() {
        let mut outbox: Outbox<()> = Outbox::default();
        for number in 0..=BATCH_MAX {
            outbox.push(number.to_string().as_bytes());
        }
        assert_eq!(outbox.begin().unwrap().lines.len(), BATCH_MAX);
        outbox.commit();
        assert_eq!(outbox.begin().unwrap().lines.len(), 1);
        outbox.commit();
        for number in 0..=BACKLOG_MAX {
            outbox.push(number.to_string().as_bytes());
        }
        assert_eq!(texts(&outbox.begin().unwrap()), [b"all"], "more than are kept are everything");
        outbox.commit();
        let long = vec![b'x'; 4000];
        for number in 0..3 * BACKLOG_BYTES_MAX / 4000 {
            outbox.push(&[&long[..], number.to_string().as_bytes()].concat());
            assert!(outbox.bytes <= BACKLOG_BYTES_MAX);
        }
        let batch = outbox.begin().unwrap();
        assert!(batch.lines.iter().map(|(_, line)| line.len()).sum::<usize>() <= BATCH_BYTES_MAX);
    }
}
