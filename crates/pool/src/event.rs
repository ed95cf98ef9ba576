//! Events of workers: handed to a callback, or to a bounded stream that holds its workers back.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::inbox::{Inbox, Message};
use crate::payload::Reply;

/// Something a worker said beside its replies.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// Number of the worker; 0 for the template.
    pub worker: u64,
    /// The tag of the job it belongs to (`JobBuilder::tag`, 0 if none was set); `None` for the worker itself.
    pub job: Option<u64>,
    /// What it said.
    pub parts: Reply,
}

/// A bounded stream of events (`Builder::event_stream`).
///
/// When it is full the pool stops reading from workers that have more; a synchronous worker then blocks
/// in `event`, as in the ancestor of this pool.
#[derive(Debug)]
pub struct Events {
    pub(crate) buffer: Arc<EventBuffer>,
    pub(crate) inbox: Arc<Inbox>,
}

/// What the pool's thread and the reader share.
#[derive(Debug)]
pub(crate) struct EventBuffer {
    state: Mutex<EventState>,
    arrived: Condvar,
    capacity: usize,
}

#[derive(Debug, Default)]
struct EventState {
    events: VecDeque<Event>,
    /// The pool waits for room.
    blocked: bool,
    closed: bool,
}

impl EventBuffer {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { state: Mutex::default(), arrived: Condvar::new(), capacity: capacity.max(1) }
    }

    /// Whether there is room; notes that the pool waits if there is not.
    pub(crate) fn has_room(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let room = state.closed || state.events.len() < self.capacity;
        state.blocked |= !room;
        room
    }

    /// Adds an event; the caller has asked for room.
    pub(crate) fn push(&self, event: Event) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.closed {
            state.events.push_back(event);
            self.arrived.notify_one();
        }
    }

    pub(crate) fn close(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.arrived.notify_all();
    }
}

impl Events {
    /// Blocks for the next event; `None` after the pool has ended and all events were taken.
    pub fn next_blocking(&mut self) -> Option<Event> {
        let mut state = self.buffer.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(event) = state.events.pop_front() {
                let resume = state.blocked && state.events.len() * 2 <= self.buffer.capacity;
                if resume {
                    state.blocked = false;
                }
                drop(state);
                if resume {
                    self.inbox.send(Message::ResumeEvents);
                }
                return Some(event);
            }
            if state.closed {
                return None;
            }
            state = self.buffer.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        // Nobody reads any more: later events are dropped instead of holding workers back.
        self.buffer.close();
        self.inbox.send(Message::ResumeEvents);
    }
}
