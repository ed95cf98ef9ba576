//! The waiters of all keys of a shard: queues in order of arrival; a place is found and left in constant
//! time.
//!
//! Queues are doubly linked lists through one table of places. Index 0 means none.

use std::sync::Arc;

use crate::ask::AskMode;
use crate::caller::Caller;
use crate::lease::LeaseKind;

/// A waiter's place in its queue. Never reused: an id of a place that was left is not found again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WaiterId {
    index: u32,
    generation: u32,
}

/// A request's wait for one key.
#[derive(Debug, Clone)]
pub struct Waiter {
    /// The connection.
    pub caller: Arc<Caller>,
    /// The connection's request.
    pub request: u64,
    /// Which of the request's keys.
    pub slot: u16,
    /// How the client asked: a client that asked for the lease (`mg` with `Pw`) is told tokens and errors.
    pub how: AskMode,
    /// The clock's number when the wait began.
    pub since: u64,
    /// When the wait began, in milliseconds since the start.
    pub since_ms: u64,
    /// The last soft event of the key before that: a value that is older is not given to this client.
    pub softened: u64,
    /// The value that the key had then: if it is served, it is the answer when the wait is over.
    pub found: LeaseKind,
    /// The exptime of a `gat`: the value of the reply is touched.
    pub touch: Option<i64>,
    /// The request is a get of several keys.
    pub many: bool,
}

impl Waiter {
    /// Whether the client asked for the lease.
    pub fn is_explicit(&self) -> bool {
        self.how.is_explicit()
    }
}

/// The first and the last place of a queue.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WaiterQueue {
    head: u32,
    tail: u32,
    len: u32,
}

impl WaiterQueue {
    pub(crate) fn len(&self) -> u32 {
        self.len
    }
}

/// All waiters of a shard, in queues.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    /// Place 0 is never used.
    places: Vec<WaiterPlace>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct WaiterPlace {
    generation: u32,
    prev: u32,
    next: u32,
    waiter: Option<Waiter>,
}

impl Waiters {
    pub(crate) fn push(&mut self, queue: &mut WaiterQueue, waiter: Waiter) -> WaiterId {
        if self.places.is_empty() {
            self.places.push(WaiterPlace { generation: 0, prev: 0, next: 0, waiter: None });
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(WaiterPlace { generation: 0, prev: 0, next: 0, waiter: None });
            (self.places.len() - 1) as u32
        });
        let place = &mut self.places[index as usize];
        (place.prev, place.next, place.waiter) = (queue.tail, 0, Some(waiter));
        let generation = place.generation;
        if queue.tail == 0 {
            queue.head = index;
        } else {
            self.places[queue.tail as usize].next = index;
        }
        queue.tail = index;
        queue.len += 1;
        WaiterId { index, generation }
    }

    pub(crate) fn get(&self, id: WaiterId) -> Option<&Waiter> {
        let place = self.places.get(id.index as usize)?;
        place.waiter.as_ref().filter(|_| place.generation == id.generation)
    }

    /// Takes a waiter out of its queue.
    pub(crate) fn unlink(&mut self, queue: &mut WaiterQueue, id: WaiterId) -> Option<Waiter> {
        self.get(id)?;
        Some(self.take(queue, id.index))
    }

    /// Takes the waiter at a place that was found.
    pub(crate) fn take(&mut self, queue: &mut WaiterQueue, index: u32) -> Waiter {
        let place = &mut self.places[index as usize];
        let (prev, next) = (place.prev, place.next);
        let waiter = place.waiter.take().expect("a linked place has a waiter");
        place.generation = place.generation.wrapping_add(1);
        if prev == 0 {
            queue.head = next;
        } else {
            self.places[prev as usize].next = next;
        }
        if next == 0 {
            queue.tail = prev;
        } else {
            self.places[next as usize].prev = prev;
        }
        queue.len -= 1;
        self.free.push(index);
        waiter
    }

    /// Takes the first waiter that `fits`, looking at `most` of them.
    pub(crate) fn pop_if(
        &mut self,
        queue: &mut WaiterQueue,
        most: usize,
        fits: impl Fn(&Waiter) -> bool,
    ) -> Option<Waiter> {
        let at = self.find(queue, most, fits)?.0;
        Some(self.take(queue, at))
    }

    /// The place of the first waiter that `fits`, looking at `most` of them, and the waiter.
    pub(crate) fn find(
        &self,
        queue: &WaiterQueue,
        most: usize,
        fits: impl Fn(&Waiter) -> bool,
    ) -> Option<(u32, &Waiter)> {
        let mut at = queue.head;
        for _ in 0..most {
            let place = self.places.get(at as usize).filter(|_| at != 0)?;
            if let Some(waiter) = place.waiter.as_ref().filter(|waiter| fits(waiter)) {
                return Some((at, waiter));
            }
            at = place.next;
        }
        None
    }

    /// Takes the head.
    pub(crate) fn pop(&mut self, queue: &mut WaiterQueue) -> Option<Waiter> {
        self.pop_if(queue, 1, |_| true)
    }

    /// The waiters of a queue, in order.
    pub(crate) fn iter(&self, queue: &WaiterQueue) -> impl Iterator<Item = &Waiter> {
        let mut at = queue.head;
        std::iter::from_fn(move || {
            let place = self.places.get(at as usize).filter(|_| at != 0)?;
            at = place.next;
            place.waiter.as_ref()
        })
    }

    /// Waiters in all queues.
    pub(crate) fn len(&self) -> usize {
        (self.places.len().saturating_sub(1)) - self.free.len()
    }
}
