//! Room for the replies of several pools: bytes of memory that their frames take on their way from the workers to their users.
//!
//! A pool takes room for a long frame when it knows how long the frame will be, and before it reads it. Without room the worker
//! is not read: it waits in its write, or for the next read of the pool, and nothing is lost. Frames that wait stand in one line,
//! over all pools, and get room in its order; so the longest is not passed for ever by others.
//!
//! Sans-io except for the wake-ups.
//!
//! # Invariants
//! * The room in use is at most its bytes, except for a frame that is alone ([`Shared::fits`]) and for room that was taken without
//!   asking ([`Door::take_over`]): short frames, and what must be read.
//! * While the first in the line fits, it does not wait: it was granted its room, and its pool was told.
//! * Pools are told when the lock is no longer held: an inbox has a lock of its own.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::inbox::{Inbox, Message};

/// Most bytes of replies of several pools together, until they are dropped: see [`crate::Builder::reply_room`]. Cheap to
/// clone; the clones are one room.
#[derive(Debug, Clone)]
pub struct ReplyRoom {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes that are held or granted.
    used: usize,
    last_ticket: u64,
    line: VecDeque<Waiting>,
    /// Tickets with room that their pools have not taken yet.
    granted: Vec<u64>,
}

#[derive(Debug)]
struct Waiting {
    ticket: u64,
    bytes: usize,
    inbox: Weak<Inbox>,
}

impl ReplyRoom {
    /// Room of this many bytes. A reply that is longer waits until no other has any.
    pub fn new(bytes: usize) -> Self {
        Self { shared: Arc::new(Shared { max: bytes, state: Mutex::default() }) }
    }

    /// How many bytes there are.
    pub fn max(&self) -> usize {
        self.shared.max
    }

    /// How many are in use now.
    pub fn used(&self) -> usize {
        self.shared.lock().used
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is room for this many more bytes. What is alone fits, however long it is: otherwise it would wait for ever.
    fn fits(&self, state: &State, bytes: usize) -> bool {
        state.used == 0 || bytes <= self.max.saturating_sub(state.used)
    }

    /// Grants room to those at the head of the line, unlocks, and tells their pools.
    fn settle(&self, mut state: MutexGuard<'_, State>) {
        let mut told = Vec::new();
        while let Some(first) = state.line.front()
            && self.fits(&state, first.bytes)
            && let Some(first) = state.line.pop_front()
        {
            state.used += first.bytes;
            state.granted.push(first.ticket);
            told.push(first.inbox);
        }
        drop(state);
        for inbox in told.iter().filter_map(Weak::upgrade) {
            inbox.send(Message::ReplyRoom);
        }
    }

    fn give_back(&self, bytes: usize) {
        let mut state = self.lock();
        state.used -= bytes;
        self.settle(state);
    }
}

/// A pool's way into the room; without a room everything fits.
#[derive(Debug)]
pub(crate) struct Door {
    of: Option<(Arc<Shared>, Weak<Inbox>)>,
}

/// Room, or a place in the line.
#[derive(Debug)]
pub(crate) enum Taken {
    Held(RoomHeld),
    Waits(Ticket),
}

/// Room that a reply has until this is dropped.
#[derive(Debug, Default)]
pub struct RoomHeld {
    of: Option<Arc<Shared>>,
    bytes: usize,
}

/// A place in the line; dropped, it is left.
#[derive(Debug)]
pub(crate) struct Ticket {
    of: Arc<Shared>,
    number: u64,
    bytes: usize,
}

impl Door {
    pub(crate) fn new(room: Option<&ReplyRoom>, inbox: &Arc<Inbox>) -> Self {
        Self { of: room.map(|room| (Arc::clone(&room.shared), Arc::downgrade(inbox))) }
    }

    /// Whether there is a limit.
    pub(crate) fn is_limited(&self) -> bool {
        self.of.is_some()
    }

    /// Takes room, or a place in the line: [`Message::ReplyRoom`] says when to ask the ticket again.
    pub(crate) fn take(&self, bytes: usize) -> Taken {
        let Some((shared, inbox)) = &self.of else { return Taken::Held(RoomHeld::default()) };
        let mut state = shared.lock();
        if state.line.is_empty() && shared.fits(&state, bytes) {
            state.used += bytes;
            return Taken::Held(RoomHeld { of: Some(Arc::clone(shared)), bytes });
        }
        state.last_ticket += 1;
        let ticket = state.last_ticket;
        state.line.push_back(Waiting { ticket, bytes, inbox: Weak::clone(inbox) });
        Taken::Waits(Ticket { of: Arc::clone(shared), number: ticket, bytes })
    }

    /// Takes room, whether there is any or not: what is in a dead worker's socket is read at once, or lost.
    pub(crate) fn take_over(&self, bytes: usize) -> RoomHeld {
        let Some((shared, _)) = &self.of else { return RoomHeld::default() };
        shared.lock().used += bytes;
        RoomHeld { of: Some(Arc::clone(shared)), bytes }
    }
}

impl RoomHeld {
    /// How many bytes it is.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Changes how much it is. More is taken whether there is any or not.
    pub(crate) fn resize(&mut self, bytes: usize) {
        let Some(shared) = &self.of else { return };
        let mut state = shared.lock();
        state.used = state.used - self.bytes + bytes;
        self.bytes = bytes;
        shared.settle(state);
    }
}

impl Drop for RoomHeld {
    fn drop(&mut self) {
        if let Some(shared) = self.of.take() {
            shared.give_back(self.bytes);
        }
    }
}

impl Ticket {
    /// The room, if it was granted. The ticket is void then.
    pub(crate) fn room(&mut self) -> Option<RoomHeld> {
        let mut state = self.of.lock();
        let at = state.granted.iter().position(|ticket| *ticket == self.number)?;
        state.granted.swap_remove(at);
        Some(RoomHeld { of: Some(Arc::clone(&self.of)), bytes: self.bytes })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.of.lock();
        if let Some(at) = state.granted.iter().position(|ticket| *ticket == self.number) {
            state.granted.swap_remove(at);
            state.used -= self.bytes;
        }
        state.line.retain(|waiting| waiting.ticket != self.number);
        self.of.settle(state);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn door(room: &ReplyRoom) -> (Door, Arc<Inbox>) {
        let inbox = Arc::new(Inbox::new().unwrap());
        (Door::new(Some(room), &inbox), inbox)
    }

    fn told(inbox: &Inbox) -> usize {
        let mut messages = Vec::new();
        inbox.take(&mut messages);
        messages.iter().filter(|message| matches!(message, Message::ReplyRoom)).count()
    }

    fn held(taken: Taken) -> RoomHeld {
        let Taken::Held(held) = taken else { panic!("there is no room") };
        held
    }

    fn ticket(taken: Taken) -> Ticket {
        let Taken::Waits(ticket) = taken else { panic!("there is room") };
        ticket
    }

    #[test]
    fn room_is_granted_in_the_order_of_the_line() {
        let room = ReplyRoom::new(100);
        let [(one, at_one), (two, at_two)] = [(); 2].map(|()| door(&room));
        let [mut first, second] = [60, 40].map(|bytes| held(one.take(bytes)));
        let mut long = ticket(one.take(50));
        let mut short = ticket(two.take(1));
        drop(second);
        assert!(long.room().is_none() && short.room().is_none(), "the first in the line does not fit");
        first.resize(50);
        assert_eq!((told(&at_one), told(&at_two)), (1, 0));
        let long = long.room().unwrap();
        assert_eq!((room.used(), short.room().is_none()), (100, true));
        drop(long);
        assert_eq!((told(&at_one), told(&at_two), room.used()), (0, 1, 51));
        drop(short);
        drop(first);
        assert_eq!(room.used(), 0);
    }

    #[test]
    fn what_is_longer_than_the_room_waits_until_it_is_alone() {
        let room = ReplyRoom::new(100);
        let (door, inbox) = door(&room);
        let first = held(door.take(1));
        let mut long = ticket(door.take(1_000));
        drop(ticket(door.take(1)));
        drop(first);
        assert_eq!((told(&inbox), room.used()), (1, 1_000));
        let long = long.room().unwrap();
        let over = door.take_over(5);
        let next = ticket(door.take(1));
        drop(long);
        assert_eq!((told(&inbox), room.used()), (1, 6));
        // A pool that has ended is told nothing, and its tickets are left.
        drop(inbox);
        drop((over, next));
        assert_eq!(room.used(), 0);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Take(usize),
        TakeOver(usize),
        Drop(usize),
        Leave(usize),
        Resize(usize, usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (1..150_usize).prop_map(Step::Take),
            1 => (1..150_usize).prop_map(Step::TakeOver),
            4 => (0..8_usize).prop_map(Step::Drop),
            1 => (0..8_usize).prop_map(Step::Leave),
            1 => (0..8_usize, 1..150_usize).prop_map(|(at, bytes)| Step::Resize(at, bytes)),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_none_waits_beside_free_room(steps in steps()) {
            let room = ReplyRoom::new(100);
            let (door, inbox) = door(&room);
            let (mut holds, mut line): (Vec<RoomHeld>, VecDeque<Ticket>) = Default::default();
            for step in steps {
                let at_once = room.used() == 0;
                match step {
                    Step::Take(bytes) => match door.take(bytes) {
                        Taken::Held(held) => {
                            prop_assert!(line.is_empty() && (at_once || room.used() <= 100));
                            holds.push(held);
                        }
                        Taken::Waits(ticket) => line.push_back(ticket),
                    },
                    Step::TakeOver(bytes) => holds.push(door.take_over(bytes)),
                    Step::Drop(at) if at < holds.len() => drop(holds.remove(at)),
                    Step::Leave(at) if at < line.len() => drop(line.remove(at)),
                    Step::Resize(at, bytes) if at < holds.len() => holds[at].resize(bytes),
                    Step::Drop(_) | Step::Leave(_) | Step::Resize(..) => {}
                }
                let granted = told(&inbox);
                let mut got = 0;
                while let Some(held) = line.front_mut().and_then(Ticket::room) {
                    line.pop_front();
                    holds.push(held);
                    got += 1;
                }
                prop_assert_eq!(got, granted, "those that are told are the first in the line");
                prop_assert_eq!(room.used(), holds.iter().map(|held| held.bytes).sum::<usize>());
                if let Some(first) = line.front() {
                    prop_assert!(room.used() > 0 && room.used() + first.bytes > 100, "it waits beside free room");
                }
            }
            drop((holds, line));
            prop_assert_eq!(room.used(), 0);
        }
    }
}
