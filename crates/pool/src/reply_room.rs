//! Room for the replies of several pools: bytes of memory that their frames take on their way from the
//! workers to their users.
//!
//! A pool takes room for a long frame when it knows how long the frame will be, and before it reads it.
//! Without room the worker is not read: it waits in its write, or for the next read of the pool, and nothing
//! is lost. Frames that wait stand in one line, over all pools, and get room in its order; so the longest is
//! not passed for ever by others.
//!
//! Sans-io except for the wake-ups.
//!
//! # Invariants
//! * The room in use is at most its bytes, except for a frame that is alone ([`RoomShared::fits`]) and for
//!   room that was taken without asking ([`RoomClient::take_over`]): short frames, and what must be read.
//! * While the first in the line fits, it does not wait: it was granted its room, and its pool was told.
//! * Pools are told when the lock is no longer held: an inbox has a lock of its own.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::inbox::{Inbox, InboxMessage};

/// The most bytes of replies of several pools together, until they are dropped: see
/// [`crate::Builder::reply_room`]. A clone is cheap and is the same room.
#[derive(Debug, Clone)]
pub struct ReplyRoom {
    shared: Arc<RoomShared>,
}

#[derive(Debug)]
struct RoomShared {
    max: usize,
    state: Mutex<RoomState>,
}

#[derive(Debug, Default)]
struct RoomState {
    /// Bytes that are held or granted.
    used: usize,
    /// Bytes of open lines, which `used` includes.
    open: usize,
    /// Whether an open line exceeds the limit.
    has_over: bool,
    last_ticket: u64,
    line: VecDeque<RoomRequest>,
    /// Tickets that were granted room and that their pools have not taken yet.
    granted: Vec<RoomGrant>,
}

#[derive(Debug, Clone, Copy)]
struct RoomGrant {
    ticket: u64,
    is_over: bool,
}

#[derive(Debug)]
struct RoomRequest {
    ticket: u64,
    bytes: usize,
    is_open: bool,
    inbox: Weak<Inbox>,
}

impl ReplyRoom {
    /// A room of this many bytes. A longer reply waits until no other reply is in it.
    pub fn new(bytes: usize) -> Self {
        Self { shared: Arc::new(RoomShared { max: bytes, state: Mutex::default() }) }
    }

    /// The room's size in bytes.
    pub fn max(&self) -> usize {
        self.shared.max
    }

    /// The bytes in use.
    pub fn used(&self) -> usize {
        self.shared.lock().used
    }
}

impl RoomShared {
    fn lock(&self) -> MutexGuard<'_, RoomState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self, state: &RoomState, bytes: usize) -> bool {
        bytes > self.max.saturating_sub(state.used)
    }

    /// Whether there is room for this many more bytes. Everything fits if only open lines are there, however
    /// long it is: otherwise it would wait forever.
    fn fits(&self, state: &RoomState, bytes: usize) -> bool {
        !self.is_over(state, bytes) || (state.used == state.open && !state.has_over)
    }

    /// Gives room. Returns whether this makes an open line exceed the limit.
    fn give(&self, state: &mut RoomState, bytes: usize, is_open: bool) -> bool {
        let is_over = is_open && self.is_over(state, bytes);
        state.used += bytes;
        if is_open {
            state.open += bytes;
        }
        state.has_over |= is_over;
        is_over
    }

    /// Grants room to the first tickets of the line, unlocks, and wakes their pools.
    fn grant(&self, mut state: MutexGuard<'_, RoomState>) {
        let mut told = Vec::new();
        while let Some(first) = state.line.front()
            && self.fits(&state, first.bytes)
            && let Some(first) = state.line.pop_front()
        {
            let is_over = self.give(&mut state, first.bytes, first.is_open);
            state.granted.push(RoomGrant { ticket: first.ticket, is_over });
            told.push(first.inbox);
        }
        drop(state);
        for inbox in told.iter().filter_map(Weak::upgrade) {
            inbox.send(InboxMessage::ReplyRoom);
        }
    }

    fn give_back(&self, room: &RoomPermit) {
        let mut state = self.lock();
        state.used -= room.bytes;
        state.shut(room.is_open, room.bytes, room.is_over);
        self.grant(state);
    }
}

impl RoomState {
    /// Takes room out of the sums of open room, because its line has ended or the room is given back.
    fn shut(&mut self, was_open: bool, bytes: usize, was_over: bool) {
        if was_open {
            self.open -= bytes;
        }
        self.has_over &= !was_over;
    }

    fn take_granted(&mut self, ticket: u64) -> Option<RoomGrant> {
        let at = self.granted.iter().position(|granted| granted.ticket == ticket)?;
        Some(self.granted.swap_remove(at))
    }
}

/// A pool's access to the room. Without a room everything fits.
#[derive(Debug)]
pub(crate) struct RoomClient {
    of: Option<(Arc<RoomShared>, Weak<Inbox>)>,
}

/// The answer to a request for room.
#[derive(Debug)]
pub(crate) enum RoomAnswer {
    Held(RoomPermit),
    Waits(Ticket),
}

/// Room that a reply has until this is dropped.
#[derive(Debug, Default)]
pub struct RoomPermit {
    of: Option<Arc<RoomShared>>,
    bytes: usize,
    /// Whether the line has not ended.
    is_open: bool,
    /// Whether this is the open line that may exceed the limit.
    is_over: bool,
}

/// A place in the line for room. Dropping it leaves the line.
#[derive(Debug)]
pub(crate) struct Ticket {
    of: Arc<RoomShared>,
    number: u64,
    /// The bytes that it waits for.
    bytes: usize,
    /// The room that an open line has already. Empty for a frame.
    held: RoomPermit,
}

impl RoomClient {
    pub(crate) fn new(room: Option<&ReplyRoom>, inbox: &Arc<Inbox>) -> Self {
        Self { of: room.map(|room| (Arc::clone(&room.shared), Arc::downgrade(inbox))) }
    }

    /// Whether there is a limit.
    pub(crate) fn is_limited(&self) -> bool {
        self.of.is_some()
    }

    /// Takes room, or a place in the line: after [`InboxMessage::ReplyRoom`] the ticket must be asked again.
    pub(crate) fn take(&self, bytes: usize) -> RoomAnswer {
        self.take_more(RoomPermit::default(), bytes, false)
    }

    /// Takes `bytes` more of room, as [`RoomClient::take`] does, for an open line that has `held`, which may
    /// be empty.
    pub(crate) fn grow(&self, held: RoomPermit, bytes: usize) -> RoomAnswer {
        self.take_more(held, bytes, true)
    }

    fn take_more(&self, mut held: RoomPermit, bytes: usize, is_open: bool) -> RoomAnswer {
        let Some((shared, inbox)) = &self.of else { return RoomAnswer::Held(held) };
        let mut state = shared.lock();
        if held.is_over || (state.line.is_empty() && shared.fits(&state, bytes)) {
            let is_over = shared.give(&mut state, bytes, is_open);
            held.gain(shared, bytes, is_open, is_over);
            return RoomAnswer::Held(held);
        }
        state.last_ticket += 1;
        let number = state.last_ticket;
        state.line.push_back(RoomRequest { ticket: number, bytes, is_open, inbox: Weak::clone(inbox) });
        held.is_open = is_open;
        RoomAnswer::Waits(Ticket { of: Arc::clone(shared), number, bytes, held })
    }

    /// Takes room even over the limit: bytes in a dead worker's socket must be read at once, or they are
    /// lost.
    pub(crate) fn take_over(&self, bytes: usize) -> RoomPermit {
        let Some((shared, _)) = &self.of else { return RoomPermit::default() };
        shared.lock().used += bytes;
        RoomPermit { of: Some(Arc::clone(shared)), bytes, ..RoomPermit::default() }
    }
}

impl RoomPermit {
    /// The size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn gain(&mut self, shared: &Arc<RoomShared>, bytes: usize, is_open: bool, is_over: bool) {
        self.of.get_or_insert_with(|| Arc::clone(shared));
        self.bytes += bytes;
        self.is_open = is_open;
        self.is_over |= is_over;
    }

    /// Changes the size, for a line or frame that has ended. More is taken even over the limit.
    pub(crate) fn resize(&mut self, bytes: usize) {
        let Some(shared) = &self.of else { return };
        let mut state = shared.lock();
        state.shut(self.is_open, self.bytes, self.is_over);
        state.used = state.used - self.bytes + bytes;
        (self.bytes, self.is_open, self.is_over) = (bytes, false, false);
        shared.grant(state);
    }

    /// Marks the line as ended.
    pub(crate) fn close(&mut self) {
        if self.is_open {
            self.resize(self.bytes);
        }
    }
}

impl Drop for RoomPermit {
    fn drop(&mut self) {
        if let Some(shared) = self.of.take() {
            shared.give_back(self);
        }
    }
}

impl Ticket {
    /// The room, if it was granted. Then the ticket is used up.
    pub(crate) fn room(&mut self) -> Option<RoomPermit> {
        let granted = self.of.lock().take_granted(self.number)?;
        let mut room = std::mem::take(&mut self.held);
        let is_open = room.is_open;
        room.gain(&self.of, self.bytes, is_open, granted.is_over);
        Some(room)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.of.lock();
        if let Some(granted) = state.take_granted(self.number) {
            state.used -= self.bytes;
            state.shut(self.held.is_open, self.bytes, granted.is_over);
        }
        state.line.retain(|waiting| waiting.ticket != self.number);
        self.of.grant(state);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn client(room: &ReplyRoom) -> (RoomClient, Arc<Inbox>) {
        let inbox = Arc::new(Inbox::new().unwrap());
        (RoomClient::new(Some(room), &inbox), inbox)
    }

    fn told(inbox: &Inbox) -> usize {
        let mut messages = Vec::new();
        inbox.take(&mut messages);
        messages.iter().filter(|message| matches!(message, InboxMessage::ReplyRoom)).count()
    }

    fn held(taken: RoomAnswer) -> RoomPermit {
        let RoomAnswer::Held(held) = taken else { panic!("there is no room") };
        held
    }

    fn ticket(taken: RoomAnswer) -> Ticket {
        let RoomAnswer::Waits(ticket) = taken else { panic!("there is room") };
        ticket
    }

    #[test]
    fn room_is_granted_in_the_order_of_the_line() {
        let room = ReplyRoom::new(100);
        let [(one, at_one), (two, at_two)] = [(); 2].map(|()| client(&room));
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
        let (client, inbox) = client(&room);
        let first = held(client.take(1));
        let mut long = ticket(client.take(1_000));
        drop(ticket(client.take(1)));
        drop(first);
        assert_eq!((told(&inbox), room.used()), (1, 1_000));
        let long = long.room().unwrap();
        let over = client.take_over(5);
        let next = ticket(client.take(1));
        drop(long);
        assert_eq!((told(&inbox), room.used()), (1, 6));
        // A pool that has ended is told nothing, and its tickets are left.
        drop(inbox);
        drop((over, next));
        assert_eq!(room.used(), 0);
    }

    #[test]
    fn an_open_line_keeps_what_it_has_and_no_more() {
        let room = ReplyRoom::new(100);
        let (client, inbox) = client(&room);
        let stuck = held(client.grow(RoomPermit::default(), 10));
        drop(held(client.take(90)));
        let frame = held(client.take(90));
        let mut more = ticket(client.grow(stuck, 5));
        assert!(more.room().is_none() && room.used() == 100);
        drop(frame);
        assert_eq!((told(&inbox), room.used()), (1, 15));
        let mut more = more.room().unwrap();
        more.close();
        // The line has become a frame: nothing may exceed the limit while it is there.
        drop(ticket(client.take(86)));
        drop(more);
        assert_eq!(room.used(), 0);
    }

    #[test]
    fn open_lines_that_have_all_room_end_one_after_the_other() {
        let room = ReplyRoom::new(100);
        let (client, _inbox) = client(&room);
        let [first, second, third] =
            [40, 30, 30].map(|bytes| held(client.grow(RoomPermit::default(), bytes)));
        let first = held(client.grow(first, 20));
        let mut second = ticket(client.grow(second, 20));
        let mut frame = ticket(client.take(10));
        // Only the first open line may continue, past all that wait.
        let mut first = held(client.grow(first, 40));
        assert_eq!(room.used(), 160);
        assert!(second.room().is_none() && frame.room().is_none());
        first.close();
        assert!(second.room().is_none(), "the first will give its room back");
        drop(first);
        let mut second = second.room().unwrap();
        let mut third = ticket(client.grow(third, 20));
        assert_eq!((second.bytes(), room.used(), frame.room().is_some()), (50, 90, true));
        assert!(third.room().is_some_and(|room| room.bytes() == 50), "a frame's room was given back");
        second.close();
        drop((second, frame, third));
        assert_eq!((room.used(), room.shared.lock().open), (0, 0));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Take(usize),
        TakeOver(usize),
        Open(usize),
        Grow(usize, usize),
        Close(usize),
        Drop(usize),
        Leave(usize),
        Resize(usize, usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (1..150_usize).prop_map(Step::Take),
            1 => (1..150_usize).prop_map(Step::TakeOver),
            3 => (1..60_usize).prop_map(Step::Open),
            6 => (0..8_usize, 1..60_usize).prop_map(|(at, bytes)| Step::Grow(at, bytes)),
            3 => (0..8_usize).prop_map(Step::Close),
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
            let (client, inbox) = client(&room);
            let (mut holds, mut line): (Vec<RoomPermit>, VecDeque<Ticket>) = Default::default();
            for step in steps {
                let (none_waits, open_alone) = (line.is_empty(), holds.iter().all(|held| held.is_open));
                let mut taken = None;
                match step {
                    Step::Take(bytes) => taken = Some((client.take(bytes), false)),
                    Step::TakeOver(bytes) => holds.push(client.take_over(bytes)),
                    Step::Open(bytes) => taken = Some((client.grow(RoomPermit::default(), bytes), false)),
                    Step::Grow(at, bytes) if at < holds.len() && holds[at].is_open => {
                        let held = holds.swap_remove(at);
                        let is_over = held.is_over;
                        taken = Some((client.grow(held, bytes), is_over));
                    }
                    Step::Close(at) if at < holds.len() => holds[at].close(),
                    Step::Drop(at) if at < holds.len() => drop(holds.remove(at)),
                    Step::Leave(at) if at < line.len() => drop(line.remove(at)),
                    Step::Resize(at, bytes) if at < holds.len() => holds[at].resize(bytes),
                    _ => {}
                }
                match taken {
                    Some((RoomAnswer::Held(held), was_over)) => {
                        prop_assert!(was_over || none_waits && (open_alone || room.used() <= 100));
                        holds.push(held);
                    }
                    Some((RoomAnswer::Waits(ticket), was_over)) => {
                        prop_assert!(!was_over, "the line over the limit waits");
                        line.push_back(ticket);
                    }
                    None => {}
                }
                let granted = told(&inbox);
                let mut got = 0;
                while let Some(held) = line.front_mut().and_then(Ticket::room) {
                    line.pop_front();
                    holds.push(held);
                    got += 1;
                }
                prop_assert_eq!(got, granted, "those that are told are the first in the line");
                let waiting = line.iter().map(|ticket| &ticket.held);
                let open: Vec<_> = holds.iter().chain(waiting.clone()).filter(|held| held.is_open).collect();
                let used: usize = holds.iter().chain(waiting).map(|held| held.bytes).sum();
                prop_assert_eq!(room.used(), used);
                prop_assert_eq!(room.shared.lock().open, open.iter().map(|held| held.bytes).sum::<usize>());
                prop_assert!(open.iter().filter(|held| held.is_over).count() <= 1);
                if let Some(first) = line.front() {
                    prop_assert!(room.used() + first.bytes > 100, "it waits beside free room");
                    let ends = |held: &RoomPermit| !held.is_open || held.is_over;
                    prop_assert!(holds.iter().any(ends), "all wait for each other");
                }
            }
            drop((holds, line));
            let state = room.shared.lock();
            prop_assert_eq!((state.used, state.open, state.has_over), (0, 0, false));
        }
    }
}
