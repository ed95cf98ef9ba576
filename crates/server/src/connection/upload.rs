//! What becomes of input that a connection keeps: its memory, and how it is refused.
//!
//! Each byte that is kept counts. A command that has arrived in part, a part of a record of TLS, and whole
//! commands that may not be executed for now (the client does not read, a request waits, a wrong login waits
//! for its answer) are an [`Upload`](crate::uploads::Upload), whatever their size: [`crate::uploads`] decides
//! whether the connection may have the memory. What the next turn executes only passes.
//!
//! # Invariants
//! * A refused command is answered once, or not at all where its form asks for silence, in its place among
//!   the replies; none of its bytes is taken for anything else.

use std::sync::atomic::Ordering::Relaxed;

use cattlegrid_protocol::{Parsed, reply};

use super::arriving::PagedStore;
use super::input::Speaks;
use super::{Connection, Reason};
use crate::lane::handle::Message;
use crate::shared::Shared;
use crate::turns::Turn;
use crate::uploads::{Claim, Origin};

impl Connection {
    /// After a turn that leaves input, or had some: it counts. `goes_on`: the command at the front was there
    /// before.
    pub(super) fn note_upload(&mut self, goes_on: bool, turn: &mut Turn<'_>) {
        let need = self.input.need();
        if self.has_upload() && !(goes_on && need > 0) {
            self.end_upload(turn.shared);
        }
        // A data block that arrives is no silence; a refused one: see `drop_swallowed`.
        if !self.input.swallows() && self.awaits_block() {
            self.info.last_command.store(turn.now.second, Relaxed);
        }
        let bytes = self.gathered_bytes();
        // A refused block is not refused again for what has arrived of a record.
        let passes = need == 0 && (self.has_more() || self.input.swallows());
        self.pass(if passes { bytes } else { 0 }, turn.shared);
        self.input.is_counted = bytes > 0;
        if bytes > 0 && !passes && !self.claim(turn.lane, turn.shared, turn.now.ms) {
            let is_leaving = |upload| turn.shared.uploads.is_leaving(upload);
            let displaced = self.input.upload.as_ref().is_some_and(is_leaving);
            self.refuse_upload(displaced, turn);
        }
    }

    /// After the replies of a turn were sent: what was to pass and now waits for the client to read is an
    /// upload. False: it is refused, and the connection must be closed.
    #[cold]
    pub(crate) fn settle_input(&mut self, lane: usize, shared: &Shared, now_ms: u64) -> bool {
        if self.passing_bytes == 0 || self.has_more() || self.input.swallows() {
            return true;
        }
        self.pass(0, shared);
        let granted = self.claim(lane, shared, now_ms);
        if !granted {
            shared.uploads.count(false, true);
            shared.uploads.count_closed();
        }
        granted
    }

    /// Bytes of input that its next turn executes.
    pub(super) fn pass(&mut self, bytes: usize, shared: &Shared) {
        if bytes != self.passing_bytes {
            shared.uploads.pass(self.passing_bytes, bytes);
            shared.note_uploads();
            self.passing_bytes = bytes;
        }
    }

    /// Bytes of memory that input has which is kept.
    pub(super) fn gathered_bytes(&self) -> usize {
        let raw = self.tls.as_ref().map_or(0, |tls| tls.raw_bytes());
        self.input.bytes.capacity() + self.input.arriving().map_or(0, PagedStore::bytes) + raw
    }

    /// Nothing is kept any more that counts.
    pub(super) fn end_input(&mut self, shared: &Shared) {
        self.end_upload(shared);
        self.pass(0, shared);
    }

    /// The upload is over, if there is one.
    pub(super) fn end_upload(&mut self, shared: &Shared) {
        if let Some(upload) = self.input.upload.take() {
            shared.uploads.end(&upload);
            shared.note_uploads();
        }
    }

    /// An upload gives way to another; if it is over, nothing happens.
    #[cold]
    pub(crate) fn give_way(&mut self, upload: u64, turn: &mut Turn<'_>) {
        if self.input.upload.as_ref().is_some_and(|own| own.id() == upload) {
            self.refuse_upload(true, turn);
        }
    }

    /// Checks the buffer, for tests; the bytes that it keeps unsent.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn verify(&self, shared: &Shared) -> usize {
        let (bytes, caps) = (self.gathered_bytes(), &shared.caps);
        let need = self.input.need();
        assert!(!self.input.arrives() || self.input.bytes.is_empty() && need > self.input.speaks.end_bytes());
        let counted = self.input.upload.as_ref().map_or(0, crate::uploads::Upload::bytes);
        assert!(counted == 0 || self.passing_bytes == 0);
        assert_eq!(counted + self.passing_bytes, bytes, "input is not counted: {:?}", self.input);
        if counted > 0 && need > 0 {
            assert!(need > self.input.bytes.len() && self.input.used == 0);
        } else if need == 0 {
            // A line that is being answered, or one receive, and a record.
            assert!(bytes <= 2 * caps.get_line_bytes.max(caps.receive_bytes) + (256 << 10), "{bytes}");
        }
        self.verify_unsent()
    }

    /// Asks for the memory that its input has. False: it is refused.
    fn claim(&mut self, lane: usize, shared: &Shared, now_ms: u64) -> bool {
        let origin = Origin { peer: self.info.peer_key, lane, token: self.token };
        let bytes = self.gathered_bytes();
        match shared.uploads.claim(&mut self.input.upload, origin, bytes, now_ms) {
            Claim::Granted(leave) => {
                shared.note_uploads();
                for one in leave {
                    let message = Message::GiveWay { token: one.token, upload: one.upload };
                    shared.lanes[one.lane].tell(message);
                }
                true
            }
            Claim::Refused => false,
        }
    }

    /// There is no memory for the command at the front of `input`: a data block is refused as its line says
    /// and its rest is swallowed; of a line nothing is known, so that only the connection's end makes sure
    /// that its rest is not taken for another command.
    #[cold]
    pub(crate) fn refuse_upload(&mut self, displaced: bool, turn: &mut Turn<'_>) {
        self.end_upload(turn.shared);
        if self.input.need() == 0 {
            return self.refuse_waiting(displaced, turn);
        }
        let (input, scanned) = self.input.take_bytes();
        if let Some(arriving) = self.input.take_arriving() {
            turn.shared.uploads.count(displaced, false);
            if let Some(refused) = arriving.refusal(input.len(), self.input.speaks, turn.shared) {
                let refused = self.allowed(refused, turn.shared);
                self.refused(&refused, turn);
            }
            self.pass(self.gathered_bytes(), turn.shared);
            return self.publish(turn);
        }
        if input.is_empty() {
            // It failed meanwhile.
            return;
        }
        if self.input.has_run() {
            // It has come, except for its end.
            self.input.bytes = input;
            self.run_is_over();
            return self.pass(self.gathered_bytes(), turn.shared);
        }
        let parsed = self.parse(&input, scanned, turn.shared);
        if let Parsed::Incomplete { block: Some(refused), .. } | Parsed::Refused(refused) = parsed {
            turn.shared.uploads.count(displaced, false);
            self.refused(&refused, turn);
        } else {
            turn.shared.uploads.count(displaced, true);
            self.info.last_command.store(turn.now.second, Relaxed);
            if self.input.speaks == Speaks::Binary {
                turn.shared.uploads.count_closed();
            } else {
                reply::line(&mut turn.out.bytes, reply::error::OUT_OF_MEMORY_READING);
            }
            crate::log::info(format_args!("{}: closed, no memory for its request line", self.info.peer()));
            self.close(Reason::Error);
        }
        // Of a record that has arrived in part.
        self.pass(self.gathered_bytes(), turn.shared);
        self.publish(turn);
    }

    /// There is no memory for commands that wait, or for a part of a record: the connection is closed at
    /// once, and its replies are dropped, since their end would be taken for the end of what was asked.
    fn refuse_waiting(&mut self, displaced: bool, turn: &mut Turn<'_>) {
        if self.gathered_bytes() == 0 {
            // It failed meanwhile.
            return;
        }
        turn.shared.uploads.count(displaced, true);
        turn.shared.uploads.count_closed();
        crate::log::info(format_args!("{}: closed, no memory for commands that wait", self.info.peer()));
        self.fail();
        self.closing = Some(Reason::Unread);
    }
}
