//! What a connection has received and not executed: bytes, and what stands at their front.
//!
//! # Invariants
//! * `bytes` is empty unless a command has arrived in part, or commands are left over for the next turn.
//! * `upload` is there only while the command at the front is incomplete, and is of that command.

use std::mem::take;

use super::arriving::Arriving;
use super::execute::Unfinished;
use super::packets::Speaks;
use super::runs::RunRest;
use crate::uploads::Upload;

/// The unread input of a connection. See the module's text.
#[derive(Debug, Default)]
pub(super) struct Input {
    pub(super) bytes: Vec<u8>,
    /// Bytes at the front of `bytes` that are done with.
    pub(super) used: usize,
    pub(super) front: Front,
    /// The command at the front, if it is large and arrives in pieces.
    pub(super) upload: Option<Upload>,
    /// The last command was a store of a value that has pages of its own.
    pub(super) expects_pages: bool,
}

/// What stands at the front of the input.
#[derive(Debug, Default)]
pub(super) enum Front {
    /// A command that has not been looked at, or nothing.
    #[default]
    Idle,
    /// A part of a command: bytes in which no end of line was found, and bytes that there must be before it can be whole.
    Partial { scanned: usize, need: usize },
    /// This many bytes of a refused command, at least one, of which not all have come.
    Swallow(u64),
    /// A store whose data block arrives in pages, or has arrived.
    Arriving(Box<Arriving>),
    /// A `get` of which a part is answered.
    Unfinished(Unfinished),
    /// A run of quiet gets that must be held as a whole, and bytes that there must be before more of it has come.
    Run { rest: RunRest, need: usize },
}

impl Input {
    /// Bytes that there must be before a whole command can be among them; 0: there may be one.
    pub(super) fn need(&self, speaks: Speaks) -> usize {
        match &self.front {
            Front::Partial { need, .. } | Front::Run { need, .. } => *need,
            Front::Arriving(arriving) => {
                let missing = arriving.missing(speaks);
                if self.bytes.len() - self.used < missing { missing } else { 0 }
            }
            Front::Idle | Front::Swallow(_) | Front::Unfinished(_) => 0,
        }
    }

    /// What is at the front is looked at again. Bytes in which no end of line was found.
    pub(super) fn begin(&mut self) -> usize {
        match &mut self.front {
            Front::Partial { scanned, .. } => {
                let scanned = *scanned;
                self.front = Front::Idle;
                scanned
            }
            Front::Run { need, .. } => {
                *need = 0;
                0
            }
            Front::Idle | Front::Swallow(_) | Front::Arriving(_) | Front::Unfinished(_) => 0,
        }
    }

    /// What arrives next begins a command: nothing of an earlier receive is left over or incomplete.
    pub(super) fn is_at_a_command(&self) -> bool {
        let is_within = matches!(self.front, Front::Swallow(_) | Front::Arriving(_));
        self.bytes.is_empty() && self.upload.is_none() && !is_within
    }

    /// Bytes of a data block are missing, refused or not.
    pub(super) fn awaits_block(&self, speaks: Speaks) -> bool {
        self.swallows() || self.need(speaks) > self.bytes.len() + 1
    }

    pub(super) fn swallows(&self) -> bool {
        matches!(self.front, Front::Swallow(_))
    }

    /// Bytes to come are refused; 0: none.
    pub(super) fn swallow(&mut self, bytes: u64) {
        self.front = if bytes == 0 { Front::Idle } else { Front::Swallow(bytes) };
    }

    /// The `get` at the front goes on; whether a part of it was answered before.
    pub(super) fn take_unfinished(&mut self) -> bool {
        let is_begun = matches!(self.front, Front::Unfinished(_));
        if is_begun {
            self.front = Front::Idle;
        }
        is_begun
    }

    /// The store whose data block arrives, if there is one.
    pub(super) fn arriving(&self) -> Option<&Arriving> {
        if let Front::Arriving(arriving) = &self.front { Some(arriving) } else { None }
    }

    pub(super) fn take_arriving(&mut self) -> Option<Box<Arriving>> {
        match take(&mut self.front) {
            Front::Arriving(arriving) => Some(arriving),
            front => {
                self.front = front;
                None
            }
        }
    }

    /// A run of quiet gets is at the front, which must be held as a whole.
    #[inline]
    pub(super) fn has_run(&self) -> bool {
        matches!(self.front, Front::Run { .. })
    }

    /// How far its rest is known; it begins if it was not there.
    pub(super) fn take_run(&mut self) -> RunRest {
        if let Front::Run { rest, .. } = self.front {
            self.front = Front::Idle;
            rest
        } else {
            RunRest::Begins
        }
    }

    /// When the rest of a run must be here, in milliseconds.
    pub(super) fn run_until_ms(&self) -> Option<u64> {
        if let Front::Run { rest: RunRest::Awaited { until_ms }, .. } = self.front {
            Some(until_ms)
        } else {
            None
        }
    }

    /// What is done with is kept only until more is received.
    pub(super) fn drop_used(&mut self) {
        if self.used > 0 {
            self.bytes.drain(..take(&mut self.used));
        }
    }

    /// Forgets all, except for what the memory of an upload was counted by.
    pub(super) fn clear(&mut self) {
        *self = Self { upload: self.upload.take(), ..Self::default() };
    }

    /// The same bytes are at the front of a command that has arrived in part.
    pub(super) fn gathered(&mut self, bytes: Vec<u8>, need: usize) {
        (self.bytes, self.used) = (bytes, 0);
        self.front = Front::Partial { scanned: 0, need };
    }

    /// Takes the bytes out, and says how many of them no end of line was found in.
    pub(super) fn take_bytes(&mut self) -> (Vec<u8>, usize) {
        self.drop_used();
        let scanned = if let Front::Partial { scanned, .. } = self.front { scanned } else { 0 };
        if let Front::Partial { .. } = self.front {
            self.front = Front::Idle;
        }
        (take(&mut self.bytes), scanned)
    }
}
