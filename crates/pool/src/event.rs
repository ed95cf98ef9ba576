//! Events of workers: handed to a callback, or to a bounded stream.
//!
//! When the stream is full, the pool does not read from workers that have more events, so these workers wait.
//! The reader tells the pool to go on when half of the buffer is free.
//!
//! # Invariant
//! No event that was put into the stream is lost, except when [`Events`] is dropped.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use cattlegrid_panic::guarded;

use crate::inbox::{Inbox, InboxMessage};
use crate::payload::Reply;

/// A message of a worker that is not part of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// Number of the worker; 0 for the template.
    pub worker: u64,
    /// The tag of the job it belongs to (`JobBuilder::tag`, 0 if none was set); `None` for the worker itself.
    pub job: Option<u64>,
    /// The parts of the event.
    pub parts: Reply,
}

/// A bounded stream of events (`Builder::event_stream`).
///
/// When it is full the pool stops reading from workers that have more; a synchronous worker then blocks
/// in `event`, as in `AnyEvent::Fork::Pool`.
///
/// It is an iterator that blocks; [`Events::recv`] is for async callers, and with the feature `stream` it is
/// a `futures_core::Stream`.
#[derive(Debug)]
pub struct Events {
    pub(crate) buffer: Arc<EventBuffer>,
    pub(crate) inbox: Arc<Inbox>,
}

/// The buffer that the pool's thread and the reader share.
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
    /// The task that waits.
    waker: Option<Waker>,
}

impl EventState {
    /// Tells the task that waits; its waker is the program's code.
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            guarded(|| waker.wake()).ok();
        }
    }
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
            state.wake();
        }
    }

    pub(crate) fn close(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.closed = true;
        state.wake();
        drop(state);
        self.arrived.notify_all();
    }
}

impl Events {
    /// The next event, for async callers; `None` after the pool has ended and all events were taken. Dropping
    /// the future loses no event.
    pub async fn recv(&mut self) -> Option<Event> {
        std::future::poll_fn(|context| self.poll_recv(context)).await
    }

    /// Polls for the next event, as [`Events::recv`] awaits it, for futures and streams made by hand.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let mut state = self.buffer.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.events.is_empty() && !state.closed {
            state.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(self.take_one(state))
    }

    /// Takes an event if there is one, and lets the pool go on when half of the buffer is free.
    fn take_one(&self, mut state: MutexGuard<'_, EventState>) -> Option<Event> {
        let event = state.events.pop_front()?;
        let resume = state.blocked && state.events.len() * 2 <= self.buffer.capacity;
        if resume {
            state.blocked = false;
        }
        drop(state);
        if resume {
            self.inbox.send(InboxMessage::ResumeEvents);
        }
        Some(event)
    }
}

impl Iterator for Events {
    type Item = Event;

    /// Blocks for the next event; `None` after the pool has ended and all events were taken.
    fn next(&mut self) -> Option<Event> {
        let mut state = self.buffer.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.events.is_empty() && !state.closed {
            state = self.buffer.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        self.take_one(state)
    }
}

#[cfg(feature = "stream")]
impl futures_core::Stream for Events {
    type Item = Event;

    fn poll_next(mut self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.poll_recv(context)
    }
}
