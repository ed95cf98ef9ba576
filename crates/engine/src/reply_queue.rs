//! The replies of one connection, in the order of its requests, while some of the requests wait.
//!
//! The queue is empty unless a request waits. From then on the output of later requests is queued behind it,
//! and is sent when everything before it has been sent. Nothing here reads a clock or a socket.
//!
//! # Invariants
//! * Replies leave in the order in which they came, each once.
//! * After [`ReplyQueue::pop_done`] the queue is empty or a request that waits is at its front.
//! * Every request that waits before a finished reply has been hurried.

use std::collections::VecDeque;
use std::sync::Arc;

use cattlegrid_store::HugeValue;

use crate::parked::ParkedRequest;
use crate::step::Output;

/// Takes the replies out of a lane's buffer, which is large and stays with the lane unless they fill half of
/// it.
fn take_output(out: &mut Output) -> Output {
    if out.bytes.len() >= out.bytes.capacity() / 2 {
        return std::mem::take(out);
    }
    let taken = Output { bytes: out.bytes.as_slice().into(), huge: std::mem::take(&mut out.huge) };
    out.bytes.clear();
    taken
}

/// The replies of one connection that stand behind a request that waits.
#[derive(Debug, Default)]
pub struct ReplyQueue {
    entries: VecDeque<QueuedReply>,
    /// Bytes that are kept: finished replies, and the lines of requests that wait.
    bytes: usize,
    /// The next command is not executed before a request that waits has been answered.
    blocked: bool,
}

#[derive(Debug)]
enum QueuedReply {
    /// Finished replies.
    Ready(Output),
    Held(HeldReply),
}

#[derive(Debug)]
struct HeldReply {
    waiting: Box<ParkedRequest>,
    line_bytes: usize,
    /// A finished reply waits behind it, and it was hurried.
    hurried: bool,
    /// The request was expired or released: the keys that are open come as wakes.
    ended: bool,
}

impl HeldReply {
    /// Whether it waits and its deadline counts.
    fn is_open(&self) -> bool {
        !self.ended && !self.waiting.is_done()
    }
}

impl ReplyQueue {
    /// Whether no request waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether the next command has to wait until a request that waits has been answered.
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Sets that. The next answer ends it.
    pub fn set_blocked(&mut self, blocked: bool) {
        self.blocked = blocked;
    }

    /// Whether no further command may be executed behind the requests that wait. `last`: number of the last
    /// request executed. `read_ahead`: most requests behind the first that waits; `most_bytes`: most bytes
    /// kept for them.
    pub fn is_full(&self, last: u64, read_ahead: u64, most_bytes: usize) -> bool {
        let front = self.front();
        self.blocked || self.bytes >= most_bytes || front != 0 && last.saturating_sub(front) >= read_ahead
    }

    /// The first request that waits; its reply is the next to be sent. 0: none waits.
    pub fn front(&self) -> u64 {
        let mut held = self.held();
        held.find(|held| !held.waiting.is_done()).map_or(0, |held| held.waiting.request())
    }

    /// Number of requests that wait.
    pub fn waiting(&self) -> usize {
        self.held().filter(|held| !held.waiting.is_done()).count()
    }

    /// The earliest deadline of a request, in milliseconds since the start; requests that were expired do not
    /// count.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        let open = self.held().filter(|held| held.is_open());
        // The call of an object has no deadline.
        open.map(|held| held.waiting.deadline_ms()).filter(|deadline_ms| *deadline_ms != u64::MAX).min()
    }

    /// Bytes of memory that are kept, and bytes of values that requests here share with others.
    pub fn kept_bytes(&self) -> (usize, usize) {
        self.entries.iter().fold((0, 0), |(own, shared), entry| match entry {
            QueuedReply::Ready(ready) => (own + ready.bytes.capacity(), shared),
            QueuedReply::Held(held) => {
                let (more, values) = held.waiting.kept_bytes();
                (own + more, shared + values)
            }
        })
    }

    /// Calls `each` with the values in their own pages that are kept.
    pub fn each_huge(&self, each: &mut dyn FnMut(&Arc<HugeValue>)) {
        for entry in &self.entries {
            match entry {
                QueuedReply::Ready(ready) => ready.huge.iter().for_each(|(_, huge)| each(huge)),
                QueuedReply::Held(held) => held.waiting.each_huge(each),
            }
        }
    }

    /// Takes finished replies, which are sent after everything that is queued.
    pub fn push(&mut self, out: &mut Output, now_ms: u64) {
        if out.is_empty() {
            return;
        }
        let out = take_output(out);
        self.bytes += out.len();
        self.hurry_before(self.entries.len(), now_ms);
        match self.entries.back_mut() {
            Some(QueuedReply::Ready(last)) => last.append(out),
            _ => self.entries.push_back(QueuedReply::Ready(out)),
        }
    }

    /// Takes a request that waits. `line_bytes`: the length of its line.
    pub fn park(&mut self, waiting: Box<ParkedRequest>, line_bytes: usize, now_ms: u64) {
        self.bytes += line_bytes;
        if waiting.is_done() {
            self.hurry_before(self.entries.len(), now_ms);
        }
        self.entries.push_back(QueuedReply::Held(HeldReply {
            waiting,
            line_bytes,
            hurried: false,
            ended: false,
        }));
    }

    /// Passes a wake to a request by `resolve`. False: the request is not queued any more.
    pub fn wake(&mut self, request: u64, now_ms: u64, resolve: impl FnOnce(&mut ParkedRequest)) -> bool {
        let found = self.entries.iter_mut().enumerate().find_map(|(at, entry)| match entry {
            QueuedReply::Held(held) if held.waiting.request() == request && !held.waiting.is_done() => {
                Some((at, held))
            }
            _ => None,
        });
        let Some((at, held)) = found else {
            return self.held().any(|held| held.waiting.request() == request);
        };
        resolve(&mut held.waiting);
        if held.waiting.is_done() {
            self.hurry_before(at, now_ms);
        }
        true
    }

    /// Lets `end` answer each request whose deadline has passed, once.
    pub fn expire(&mut self, now_ms: u64, end: impl FnMut(&mut ParkedRequest)) {
        self.end_those(now_ms, |held| held.waiting.deadline_ms() <= now_ms, end);
    }

    /// Lets `end` answer each request that waits for a value, once. A bump has little time anyway.
    pub fn release(&mut self, now_ms: u64, end: impl FnMut(&mut ParkedRequest)) {
        self.end_those(now_ms, |held| !held.waiting.is_bump(), end);
    }

    /// Moves the finished replies at the front to `out`. True: a request that had waited is among them.
    pub fn pop_done(&mut self, out: &mut Output) -> bool {
        let mut answered = false;
        while let Some(entry) = self.entries.pop_front() {
            match entry {
                QueuedReply::Ready(ready) => {
                    self.bytes -= ready.len();
                    out.append(ready);
                }
                QueuedReply::Held(held) if held.waiting.is_done() => {
                    self.bytes -= held.line_bytes;
                    held.waiting.write(out);
                    (answered, self.blocked) = (true, false);
                }
                waits @ QueuedReply::Held(_) => {
                    self.entries.push_front(waits);
                    return answered;
                }
            }
        }
        // A connection without a waiting request keeps no memory for it.
        *self = Self::default();
        answered
    }

    fn held(&self) -> impl Iterator<Item = &HeldReply> {
        self.entries.iter().filter_map(|entry| match entry {
            QueuedReply::Held(held) => Some(held),
            QueuedReply::Ready(_) => None,
        })
    }

    fn end_those(
        &mut self,
        now_ms: u64,
        which: impl Fn(&HeldReply) -> bool,
        mut end: impl FnMut(&mut ParkedRequest),
    ) {
        let mut last_done = 0;
        for (at, entry) in self.entries.iter_mut().enumerate() {
            let QueuedReply::Held(held) = entry else { continue };
            if held.is_open() && which(held) {
                held.ended = true;
                let before = held.waiting.deadline_ms();
                end(&mut held.waiting);
                // A request that was given more time is expired again.
                held.ended = !(before.saturating_add(1)..u64::MAX).contains(&held.waiting.deadline_ms());
                if held.waiting.is_done() {
                    last_done = at;
                }
            }
        }
        self.hurry_before(last_done, now_ms);
    }

    /// A finished reply is at this place: hurries the requests before it.
    fn hurry_before(&mut self, at: usize, now_ms: u64) {
        for entry in self.entries.range_mut(..at).rev() {
            let QueuedReply::Held(held) = entry else { continue };
            if held.hurried {
                // All before it have been hurried as well.
                return;
            }
            held.hurried = true;
            held.waiting.hurry(now_ms);
        }
    }
}

#[cfg(test)]
mod tests;
