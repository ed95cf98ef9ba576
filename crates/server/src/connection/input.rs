//! What a connection has received and not executed: bytes, what stands at their front, and which protocol
//! they are in.
//!
//! # Invariants
//! * The first byte of a connection decides what it speaks, and that stays so.
//! * `bytes` is empty unless a command has arrived in part, or commands are left over for the next turn.
//! * `upload` is of what is kept: of the command at the front if that is incomplete, otherwise of commands
//!   that wait.

use std::mem::take;

use cattlegrid_config::Protocol;
use cattlegrid_engine::Progress;
use cattlegrid_protocol::{
    BINARY_MAGIC, HEADER_BYTES, KEY_MAX, Limits, Packet, PacketStatus, Parsed, Refusal, RefusalCause,
    parse_apart, parse_from, parse_packet, parse_packet_apart, reply,
};

use super::arriving::PagedStore;
use super::execute::PartialGet;
use super::runs::RunRest;
use crate::shared::Shared;
use crate::uploads::Upload;

/// The unread input of a connection. See the module's text.
#[derive(Debug, Default)]
pub(super) struct Input {
    pub(super) speaks: Speaks,
    pub(super) bytes: Vec<u8>,
    /// Bytes at the front of `bytes` that are done with.
    pub(super) used: usize,
    pub(super) front: Front,
    /// What is kept, if it counts among the uploads.
    pub(super) upload: Option<Upload>,
    /// There is an upload, or a part of a record of TLS: after each receive its bytes are counted anew.
    pub(super) is_counted: bool,
    /// The last command was a store of a value that has pages of its own.
    pub(super) expects_pages: bool,
}

/// The protocol of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Speaks {
    /// Nothing has come.
    #[default]
    Unknown,
    Text,
    Binary,
}

impl Speaks {
    /// What a connection speaks whose first byte is `first`.
    pub(super) fn by(first: u8, shared: &Shared) -> Self {
        match shared.settings.protocol {
            Protocol::Binary => Self::Binary,
            Protocol::Auto if first == BINARY_MAGIC => Self::Binary,
            Protocol::Auto | Protocol::Ascii => Self::Text,
        }
    }

    #[inline]
    pub(super) fn parse<'i>(self, input: &'i [u8], scanned: usize, limits: &Limits) -> Parsed<'i> {
        match self {
            Self::Binary => parse_packet(input, limits),
            _ => parse_from(input, scanned, limits),
        }
    }

    /// Parses the beginning of a store, up to its data block.
    pub(super) fn parse_apart<'i>(self, head: &'i [u8], is_ended: bool, limits: &Limits) -> Parsed<'i> {
        match self {
            Self::Binary => parse_packet_apart(head, limits),
            _ => parse_apart(head, is_ended, limits),
        }
    }

    /// Bytes that follow a data block.
    pub(super) fn end_bytes(self) -> usize {
        if self == Self::Binary { 0 } else { 2 }
    }

    /// Bytes of the command at the front of `input` up to its data block, if it may have one and they have
    /// come.
    pub(super) fn head_bytes(self, input: &[u8]) -> Option<usize> {
        if self == Self::Binary {
            let header = input.first_chunk::<HEADER_BYTES>()?;
            let key = usize::from(u16::from_be_bytes([header[2], header[3]]));
            let head = HEADER_BYTES + usize::from(header[4]) + key;
            return (key <= KEY_MAX && input.len() >= head).then_some(head);
        }
        let line = &input[..input.len().min(cattlegrid_protocol::LINE_MAX + 1)];
        memchr::memchr(b'\n', line).map(|lf| lf + 1)
    }
}

/// The rest of a refused command, which is dropped. As in memcached it is answered behind it: a client that
/// sends all of its request before it reads takes an earlier answer for another request's.
#[derive(Debug, Clone, Copy)]
pub(super) struct Swallow {
    /// Bytes that have not come, at least one.
    pub(super) left: u64,
    pub(super) answer: Answer,
}

/// The answer to a refused command.
#[derive(Debug, Clone, Copy)]
pub(super) enum Answer {
    /// A line; empty: none.
    Line(&'static str),
    Packet(Packet, PacketStatus),
    /// A packet that its user may not send.
    NotAllowed(Packet),
}

impl Answer {
    pub(super) fn of(refused: &Refusal<'_>) -> Self {
        match refused.packet {
            Some((packet, _)) if matches!(refused.cause, RefusalCause::NotAllowed(_)) => {
                Self::NotAllowed(packet)
            }
            Some((packet, status)) => Self::Packet(packet, status),
            None => Self::Line(refused.reply),
        }
    }

    pub(super) fn write(self, out: &mut Vec<u8>) {
        match self {
            Self::Line("") => {}
            Self::Line(line) => reply::line(out, line),
            Self::Packet(packet, status) => reply::packet::error(out, packet, status),
            // libmemcached takes a server out of use after any other error but that of a miss.
            Self::NotAllowed(packet) => {
                reply::packet::not_stored_line(out, packet, reply::error::NOT_ALLOWED);
            }
        }
    }
}

/// The state of the command at the front of the input.
#[derive(Debug, Default)]
pub(super) enum Front {
    /// A command that has not been looked at, or nothing.
    #[default]
    Idle,
    /// A part of a command: bytes in which no end of line was found, bytes that there must be before it can
    /// be whole, and whether all but its data block has come.
    Partial { scanned: usize, need: usize, awaits_block: bool },
    /// A refused command of which not all has come.
    Swallow(Swallow),
    /// A store whose data block arrives in pages, or has arrived.
    PagedStore(Box<PagedStore>),
    /// A `get` of which a part is answered.
    PartialGet(PartialGet),
    /// A run of quiet gets that must be held as a whole, and bytes that there must be before more of it has
    /// come.
    Run { rest: RunRest, need: usize },
}

impl Input {
    /// Nothing is at the front that was looked at.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.front, Front::Idle)
    }

    /// Bytes that there must be before a whole command can be among them; 0: there may be one.
    pub(super) fn need(&self) -> usize {
        match &self.front {
            Front::Partial { need, .. } | Front::Run { need, .. } => *need,
            Front::PagedStore(arriving) => {
                let missing = arriving.missing(self.speaks);
                if self.bytes.len() - self.used < missing { missing } else { 0 }
            }
            Front::Idle | Front::Swallow(_) | Front::PartialGet(_) => 0,
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
            Front::Idle | Front::Swallow(_) | Front::PagedStore(_) | Front::PartialGet(_) => 0,
        }
    }

    /// What arrives next begins a command: nothing of an earlier receive is left over or incomplete.
    pub(super) fn is_at_a_command(&self) -> bool {
        let is_within = matches!(self.front, Front::Swallow(_) | Front::PagedStore(_));
        self.bytes.is_empty() && self.need() == 0 && !is_within
    }

    /// Bytes of a data block are missing, refused or not.
    pub(super) fn awaits_block(&self) -> bool {
        match &self.front {
            Front::Partial { awaits_block, .. } => *awaits_block,
            Front::PagedStore(_) | Front::Swallow(_) => true,
            Front::Idle | Front::PartialGet(_) | Front::Run { .. } => false,
        }
    }

    pub(super) fn swallows(&self) -> bool {
        matches!(self.front, Front::Swallow(_))
    }

    /// A command is refused of which this many bytes have not come; returns the answer if there are none.
    #[must_use]
    pub(super) fn swallow(&mut self, left: u64, answer: Answer) -> Option<Answer> {
        self.front = if left == 0 { Front::Idle } else { Front::Swallow(Swallow { left, answer }) };
        (left == 0).then_some(answer)
    }

    /// The `get` at the front goes on: what became of the part of it that was executed before.
    pub(super) fn take_progress(&mut self) -> Progress {
        let Front::PartialGet(unfinished) = &self.front else { return Progress::New };
        let progress = unfinished.progress;
        self.front = Front::Idle;
        progress
    }

    /// The store whose data block arrives, if there is one.
    pub(super) fn arriving(&self) -> Option<&PagedStore> {
        if let Front::PagedStore(arriving) = &self.front { Some(arriving) } else { None }
    }

    /// Bytes of a value are missing that arrives in pages.
    #[inline]
    pub(super) fn arrives(&self) -> bool {
        self.arriving().is_some_and(PagedStore::is_partial)
    }

    /// The value has arrived, and nothing of its command is missing.
    #[inline]
    pub(super) fn has_arrived(&self) -> bool {
        self.arriving().is_some_and(|arriving| arriving.missing(self.speaks) == 0)
    }

    /// The value has arrived, and of these bytes behind it more are needed to end its block: a turn that ends
    /// now has nothing left to do.
    #[inline]
    pub(super) fn lacks_end(&self, behind: usize) -> bool {
        self.arriving().is_some() && behind < self.speaks.end_bytes()
    }

    pub(super) fn take_arriving(&mut self) -> Option<Box<PagedStore>> {
        match take(&mut self.front) {
            Front::PagedStore(arriving) => Some(arriving),
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

    /// Forgets what has come, except for what the memory of an upload was counted by.
    pub(super) fn clear(&mut self) {
        let (upload, is_counted) = (self.upload.take(), self.is_counted);
        *self = Self { speaks: self.speaks, upload, is_counted, ..Self::default() };
    }

    /// The same bytes are at the front of a command that has arrived in part.
    pub(super) fn gathered(&mut self, bytes: Vec<u8>, need: usize) {
        (self.bytes, self.used) = (bytes, 0);
        self.front = Front::Partial { scanned: 0, need, awaits_block: true };
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
