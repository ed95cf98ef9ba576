//! What becomes of a large command that arrives in pieces: its memory, and how it is refused.
//!
//! A connection that waits for the rest of its command, of which [`Caps::upload_bytes`](crate::state::Caps) or more
//! have arrived, has an [`Upload`](crate::uploads::Upload). [`crate::uploads`] decides whether it may have the memory. A
//! buffer of which the front is a whole command is none: it belongs to a connection that may not execute for now,
//! because its client does not read or one of its requests waits; nothing is received into it, so that it has the size
//! of one receive at most, or of a long line that is being answered.
//!
//! # Invariants
//! * A refused command is answered once, or not at all where its form asks for silence, in its place among the replies;
//!   none of its bytes is taken for anything else.

use std::sync::atomic::Ordering::Relaxed;

use cattlegrid_protocol::{Parsed, reply};

use super::arriving::Arriving;
use super::input::Speaks;
use super::{Connection, Reason};
use crate::state::{Message, Shared};
use crate::turn::Turn;
use crate::uploads::{Claim, Origin};

impl Connection {
    /// After a receive of a part of a command, or of what ends one: it counts among the uploads if it is large. `goes_on`: it is the
    /// command that was there before.
    pub(super) fn note_upload(&mut self, goes_on: bool, turn: &mut Turn<'_>) {
        let need = self.input.need();
        if self.has_upload() && !(goes_on && need > 0) {
            self.end_upload(turn.shared);
        }
        // A data block that arrives is no silence; a refused one: see `drop_swallowed`.
        if need > self.input.bytes.len() + 1 {
            self.info.last_command.store(turn.now.second, Relaxed);
        }
        let is_large = self.has_upload() || self.gathered_bytes() >= turn.shared.caps.upload_bytes;
        if need > 0 && is_large {
            self.claim(turn);
        }
    }

    /// Bytes of memory that the command at the front has, which arrives in pieces.
    fn gathered_bytes(&self) -> usize {
        self.input.bytes.capacity() + self.input.arriving().map_or(0, Arriving::bytes)
    }

    /// The upload is over, if there is one.
    pub(super) fn end_upload(&mut self, shared: &Shared) {
        if let Some(upload) = self.input.upload.take() {
            shared.uploads.end(&upload);
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
        match &self.input.upload {
            Some(upload) => {
                assert!(need > self.input.bytes.len() && self.input.used == 0);
                assert_eq!(upload.bytes(), bytes);
            }
            None if need > 0 => assert!(bytes < caps.upload_bytes, "{bytes} bytes are not counted"),
            // A line that is being answered, or one receive.
            None => assert!(bytes <= 2 * caps.get_line_bytes.max(caps.receive_bytes), "{bytes}"),
        }
        self.verify_unsent()
    }

    #[cold]
    fn claim(&mut self, turn: &mut Turn<'_>) {
        let origin = Origin { peer: self.info.peer_key, lane: turn.lane, token: self.token };
        let (uploads, bytes) = (&turn.shared.uploads, self.gathered_bytes());
        match uploads.claim(&mut self.input.upload, origin, bytes, turn.now.ms) {
            Claim::Granted(leave) => {
                for one in leave {
                    let message = Message::GiveWay { token: one.token, upload: one.upload };
                    turn.shared.lanes[one.lane].tell(message);
                }
            }
            Claim::Refused => {
                let displaced = self.input.upload.as_ref().is_some_and(|upload| uploads.is_leaving(upload));
                self.refuse_upload(displaced, turn);
            }
        }
    }

    /// There is no memory for the command at the front of `input`: a data block is refused as its line says and its
    /// rest is swallowed; of a line nothing is known, so that only the connection's end makes sure that its rest is not
    /// taken for another command.
    #[cold]
    pub(crate) fn refuse_upload(&mut self, displaced: bool, turn: &mut Turn<'_>) {
        self.end_upload(turn.shared);
        let (input, scanned) = self.input.take_bytes();
        if let Some(arriving) = self.input.take_arriving() {
            turn.shared.uploads.count(displaced, false);
            if let Some(refused) = arriving.refusal(input.len(), self.input.speaks, turn.shared) {
                self.refused(&refused, turn);
            }
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
            return;
        }
        let parsed = self.input.speaks.parse(&input, scanned, &turn.shared.limits);
        if let Parsed::Incomplete { block: Some(refused), .. } = parsed {
            turn.shared.uploads.count(displaced, false);
            self.refused(&refused, turn);
        } else {
            turn.shared.uploads.count(displaced, true);
            self.info.last_command.store(turn.now.second, Relaxed);
            if self.input.speaks != Speaks::Binary {
                reply::line(&mut turn.out.bytes, reply::error::OUT_OF_MEMORY_READING);
            }
            crate::log::info(format_args!("{}: closed, no memory for its request line", self.info.peer()));
            self.close(Reason::Error);
        }
        self.publish(turn);
    }
}
