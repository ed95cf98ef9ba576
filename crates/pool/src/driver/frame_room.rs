//! Room for what workers say: a long frame is read when there is room for it, see [`crate::ReplyRoom`].
//!
//! ```text
//!   header read ──take──▶ room ──▶ body read ──▶ reply, with its room ──▶ dropped by its user
//!                   └──no room──▶ the worker is not read, until its ticket is granted
//! ```
//! Short replies count, and are read whether there is room or not: so they never wait behind long ones. A
//! line of JSON takes room as it arrives.
//!
//! A reply in chunks takes room for the longest reply at its first chunk. Until its last chunk its worker is
//! read whether there is room or not, so that each reply that was begun can be ended: what follows in the
//! socket may be in front of its chunks.
//!
//! # Invariants
//! * A worker has room, or a ticket, for one frame at most: that at the start of its input.
//! * A worker whose end is known is read to the end, over the limit.

use cattlegrid_worker::frame::{FLAG_MORE, Header, Kind};

use crate::driver::Driver;
use crate::driver::traffic::BUFFER;
use crate::reply_room::{RoomAnswer, RoomPermit};
use crate::worker::{FrameRoom, WorkerProcess};

impl Driver {
    /// Whether the frame with this header may be read now. If not, its worker is not read until it may.
    pub(super) fn has_frame_room(&mut self, slot: usize, header: Header) -> bool {
        if !self.reply_room.is_limited() {
            return true;
        }
        let len = header.len as usize;
        let job = self.jobs.get(header.id).filter(|_| header.kind == Kind::Result);
        let begins = job.is_some_and(|job| job.room.is_none()) && header.flags & FLAG_MORE != 0;
        if begins {
            self.has_room_for(slot, len.saturating_add(self.base.options().max_reply))
        } else if len > SHORT {
            self.has_room_for(slot, len)
        } else {
            job.is_none() || self.has_room_over(slot, len)
        }
    }

    /// Whether the worker has room, as [`Driver::has_frame_room`] says it, for a line of JSON of which
    /// `arrived` bytes have come, and not the end.
    pub(super) fn has_line_room(&mut self, slot: usize, arrived: usize) -> bool {
        if arrived <= SHORT || !self.reply_room.is_limited() {
            return true;
        }
        let wanted = arrived + (arrived / 4).max(BUFFER);
        let Some(worker) = self.fleet.get_mut(slot) else { return true };
        let held = match std::mem::take(&mut worker.room) {
            FrameRoom::None => RoomPermit::default(),
            FrameRoom::Held(held) if held.bytes() < arrived => held,
            room => {
                worker.room = room;
                return !worker.waits_for_room();
            }
        };
        let more = wanted - held.bytes();
        if self.is_read_anyway(slot) {
            let room = self.reply_room.take_over(wanted);
            return self.keep_room(slot, RoomAnswer::Held(room));
        }
        let taken = self.reply_room.grow(held, more);
        self.keep_room(slot, taken)
    }

    /// The line has ended: how long it is, is known.
    pub(super) fn close_line(&mut self, slot: usize) {
        if let Some(worker) = self.fleet.get_mut(slot)
            && let FrameRoom::Held(held) = &mut worker.room
        {
            held.close();
        }
    }

    /// Whether the worker has room, as [`Driver::has_frame_room`] says it, for a frame of this many bytes.
    fn has_room_for(&mut self, slot: usize, bytes: usize) -> bool {
        let Some(worker) = self.fleet.get(slot) else { return true };
        match worker.room {
            FrameRoom::Held(_) => return true,
            FrameRoom::Waits(_) => return false,
            FrameRoom::None => {}
        }
        if self.is_read_anyway(slot) {
            return self.has_room_over(slot, bytes);
        }
        let taken = self.reply_room.take(bytes);
        self.keep_room(slot, taken)
    }

    /// Returns whether it is room.
    fn keep_room(&mut self, slot: usize, taken: RoomAnswer) -> bool {
        let Some(worker) = self.fleet.get_mut(slot) else { return true };
        match taken {
            RoomAnswer::Held(room) => {
                worker.room = FrameRoom::Held(room);
                true
            }
            RoomAnswer::Waits(ticket) => {
                worker.room = FrameRoom::Waits(ticket);
                self.base.counters().reply_waits.add(1);
                self.fleet.watch_socket(slot, &self.base);
                false
            }
        }
    }

    /// Takes room, whether there is any or not. Returns true.
    fn has_room_over(&mut self, slot: usize, bytes: usize) -> bool {
        if let Some(worker) = self.fleet.get_mut(slot)
            && matches!(worker.room, FrameRoom::None)
        {
            worker.room = FrameRoom::Held(self.reply_room.take_over(bytes));
        }
        true
    }

    /// Whether its end is known, or a reply of it has come in part.
    fn is_read_anyway(&self, slot: usize) -> bool {
        let has_begun = |id| self.jobs.get(id).is_some_and(|job| job.room.is_some());
        let of = |worker: &WorkerProcess| {
            worker.has_ended || worker.in_flight.iter().any(|sent| has_begun(sent.id))
        };
        self.fleet.get(slot).is_some_and(of)
    }

    /// Reads on from the workers whose replies were granted room.
    pub(super) fn resume_replies(&mut self) {
        for slot in self.fleet.slots(WorkerProcess::waits_for_room) {
            let Some(worker) = self.fleet.get_mut(slot) else { continue };
            let FrameRoom::Waits(ticket) = &mut worker.room else { continue };
            let Some(room) = ticket.room() else { continue };
            worker.room = FrameRoom::Held(room);
            self.fleet.watch_socket(slot, &self.base);
            self.process_input(slot);
        }
    }

    /// The room of the reply that is complete now, whose last frame has `len` bytes: that of the frame, or of
    /// all its chunks.
    pub(super) fn take_reply_room(&mut self, slot: usize, id: u64, len: usize) -> Option<RoomPermit> {
        let worker = self.fleet.get_mut(slot)?;
        let FrameRoom::Held(of_frame) = std::mem::take(&mut worker.room) else { return None };
        let job = self.jobs.get_mut(id)?;
        let chunks = job.chunks.as_ref().map_or(0, |(_, bytes)| bytes.len());
        let mut room = job.room.take().unwrap_or(of_frame);
        room.resize(chunks + len);
        Some(room)
    }

    /// Keeps the room of a first chunk for all of the reply.
    pub(super) fn keep_chunk_room(&mut self, slot: usize, id: u64) {
        let Some(worker) = self.fleet.get_mut(slot) else { return };
        let Some(job) = self.jobs.get_mut(id).filter(|job| job.room.is_none()) else { return };
        if let FrameRoom::Held(mut room) = std::mem::take(&mut worker.room) {
            room.resize(self.base.options().max_reply);
            job.room = Some(room);
        }
    }

    /// The frame was handled.
    pub(super) fn free_frame_room(&mut self, slot: usize) {
        if let Some(worker) = self.fleet.get_mut(slot) {
            worker.room = FrameRoom::None;
        }
    }
}

/// A frame or line of at most this many bytes does not wait: 64 KiB, and what a loader's answer says besides
/// its value.
const SHORT: usize = BUFFER + (4 << 10);
