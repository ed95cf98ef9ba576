//! The replies that packets may have.
//!
//! A reply is matched by its opaque and opcode. If a reply does not belong to the first packet without one,
//! that packet was executed and has no reply: it is quiet, and it succeeded, or it is a get and missed.

use cattlegrid_protocol::{HEADER_BYTES, Packet, opcode};

use super::packets::KEPT;
use super::{Client, ExpectedReply, PendingCommand, ReplyMatch, show};
use crate::harness::book::{Book, KEYS, is_ruled};

/// A packet without its reply.
#[derive(Debug)]
pub(super) struct PendingPacket {
    pub(super) opcode: u8,
    pub(super) opaque: u32,
    pub(super) does: ExpectedPacket,
}

/// A packet and the replies that it may have.
#[derive(Debug, Clone, Copy)]
pub(super) enum ExpectedPacket {
    Get {
        key: usize,
    },
    Store {
        key: usize,
        serial: u64,
        cas: bool,
        too_large: bool,
    },
    Delete {
        key: usize,
        cas: bool,
    },
    /// `incr`, `decr`. `number`: the key's value is a number, if it has one.
    Count {
        number: bool,
        creates: bool,
    },
    Touch,
    Noop,
    Version,
    Stats {
        known: bool,
    },
    /// A store of a value that is never read.
    Fill,
    /// A store on the client's own key. `kept`: its value is [`KEPT`].
    Keep {
        too_large: bool,
        kept: bool,
    },
    /// A get of the client's own key.
    Kept,
    Unknown,
    /// A packet after which the connection ends, with a reply of this status; None: without a reply.
    End(Option<u16>),
}

/// The state of the client's own key, as known from replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum OwnKeyState {
    #[default]
    Unknown,
    /// The value is [`KEPT`], unless it was evicted.
    Kept,
    /// There is no value: a `set` was refused.
    Nothing,
}

const OK: u16 = 0x00;
const NOT_FOUND: u16 = 0x01;
const EXISTS: u16 = 0x02;
const TOO_LARGE: u16 = 0x03;
const NOT_STORED: u16 = 0x05;
const NOT_NUMERIC: u16 = 0x06;
const UNKNOWN_COMMAND: u16 = 0x81;
const NO_MEMORY: u16 = 0x82;

/// The text of an error.
fn text(status: u16) -> &'static str {
    match status {
        OK => "",
        NOT_FOUND => "Not found",
        EXISTS => "Data exists for key.",
        TOO_LARGE => "Too large.",
        0x04 => "Invalid arguments",
        NOT_STORED => "Not stored.",
        NOT_NUMERIC => "Non-numeric server-side value for incr or decr",
        UNKNOWN_COMMAND => "Unknown command",
        NO_MEMORY => "Out of memory",
        _ => panic!("{status:#x} is no status that may come"),
    }
}

/// A complete reply.
#[derive(Debug)]
struct PacketReply {
    opcode: u8,
    status: u16,
    opaque: u32,
    cas: u64,
    extras: Vec<u8>,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl PacketReply {
    /// Parses the first reply of `received`, and its length; None: it is incomplete.
    fn first(received: &[u8]) -> Option<(Self, usize)> {
        assert_eq!(received[0], 0x81, "no reply begins here: {}", show(received));
        let header = received.first_chunk::<HEADER_BYTES>()?;
        let number =
            |at: usize, len: usize| header[at..at + len].iter().fold(0, |n, b| n << 8 | u64::from(*b));
        let (key_len, extras_len, body_len) =
            (number(2, 2) as usize, number(4, 1) as usize, number(8, 4) as usize);
        assert_eq!(header[5], 0, "the data type");
        assert!(extras_len + key_len <= body_len, "lengths that contradict each other: {}", show(received));
        let body = received.get(HEADER_BYTES..HEADER_BYTES + body_len)?;
        let (extras, rest) = body.split_at(extras_len);
        let (key, value) = rest.split_at(key_len);
        let reply = Self {
            opcode: header[1],
            status: number(6, 2) as u16,
            opaque: number(12, 4) as u32,
            cas: number(16, 8),
            extras: extras.to_vec(),
            key: key.to_vec(),
            value: value.to_vec(),
        };
        Some((reply, HEADER_BYTES + body_len))
    }

    fn has_no_body(&self) -> bool {
        self.extras.is_empty() && self.key.is_empty() && self.value.is_empty()
    }

    /// Whether the reply is this error, with only its text as the body.
    fn is_error(&self, status: u16) -> bool {
        let is_text = self.extras.is_empty() && self.key.is_empty() && self.value == text(status).as_bytes();
        self.status == status && is_text && self.cas == 0
    }

    /// Whether the reply is a success without a body.
    fn is_done(&self) -> bool {
        self.status == OK && self.has_no_body()
    }
}

impl Client {
    /// Matches the next reply, and returns its length; None: it is incomplete.
    pub(super) fn match_packet(&mut self, at: usize, book: &mut Book) -> Option<usize> {
        let (reply, bytes) = PacketReply::first(&self.received[at..])?;
        loop {
            let asked = self.asked.front().unwrap_or_else(|| panic!("no request is open: {reply:?}"));
            // These bytes are the rest of a packet that was refused.
            let ExpectedReply::Packet(sent) = &asked.what else {
                assert_eq!(asked.unsent, 0, "{reply:?} before all of {asked:?}");
                self.asked.pop_front();
                continue;
            };
            if (sent.opaque, sent.opcode) != (reply.opaque, reply.opcode) {
                self.pass_quiet(book);
                continue;
            }
            match sent.matches(&reply, asked, self.own, book) {
                ReplyMatch::Begins => return Some(bytes),
                ReplyMatch::Last => {
                    self.drop_rest(book);
                    self.closing = true;
                    return Some(bytes);
                }
                ReplyMatch::Whole | ReplyMatch::None => {}
            }
            sent.executed(Some(&reply), asked.begun, book);
            self.own = sent.own_after(self.own, reply.status);
            let asked = self.asked.front_mut().expect("it was there");
            if asked.unsent == 0 {
                self.asked.pop_front();
            } else {
                asked.what = ExpectedReply::Silent;
            }
            return Some(bytes);
        }
    }

    /// Notes that the first packet has no reply, since this reply belongs to a later one.
    fn pass_quiet(&mut self, book: &mut Book) {
        let asked = self.asked.pop_front().expect("a packet is open");
        let ExpectedReply::Packet(sent) = &asked.what else { unreachable!("its caller has looked") };
        assert!(sent.is_quiet() && asked.unsent == 0, "no reply to {asked:?}");
        sent.executed(None, asked.begun, book);
        sent.fits_own(self.own, OK, book);
        self.own = sent.own_after(self.own, OK);
        book.silent += 1;
    }

    /// Notes that the connection has ended, or will, and that no packet after the first was executed.
    fn drop_rest(&mut self, book: &mut Book) {
        for asked in self.asked.drain(..) {
            if let ExpectedReply::Packet(PendingPacket {
                does: ExpectedPacket::Store { serial, .. }, ..
            }) = asked.what
            {
                book.refused(serial);
            }
        }
        self.unsent.clear();
        book.ended += 1;
    }

    /// Whether the connection may end here without a reply: only quiet packets precede the packet that ends
    /// it in this way.
    pub(super) fn ends_silently(&mut self, book: &mut Book) -> bool {
        let is_quiet = |asked: &PendingCommand| match &asked.what {
            ExpectedReply::Packet(sent) => sent.is_quiet(),
            _ => true,
        };
        let end = self.asked.iter().position(|asked| !is_quiet(asked));
        let Some(end) = end.filter(|at| {
            let asked = &self.asked[*at];
            let ends = matches!(
                asked.what,
                ExpectedReply::Packet(PendingPacket { does: ExpectedPacket::End(None), .. })
            );
            ends && asked.bytes - asked.unsent >= HEADER_BYTES
        }) else {
            return false;
        };
        for _ in 0..end {
            if let Some(PendingCommand { what: ExpectedReply::Packet(_), .. }) = self.asked.front() {
                self.pass_quiet(book);
            } else {
                self.asked.pop_front();
            }
        }
        self.drop_rest(book);
        true
    }
}

impl PendingPacket {
    /// Whether the packet may have no reply while the connection continues.
    pub(super) fn is_quiet(&self) -> bool {
        let packet = Packet { opcode: self.opcode, opaque: [0; 4] };
        packet.is_quiet() && !matches!(self.does, ExpectedPacket::End(_))
    }

    /// How a reply fits this packet. `own`: the state of the client's own key.
    fn matches(
        &self,
        reply: &PacketReply,
        asked: &PendingCommand,
        own: OwnKeyState,
        book: &mut Book,
    ) -> ReplyMatch {
        self.fits_own(own, reply.status, book);
        let has_failed = reply.status != OK;
        let no_memory = reply.is_error(NO_MEMORY) && asked.may_find_no_memory(book);
        let error_of = |all: &[u16]| all.contains(&reply.status) && reply.is_error(reply.status);
        let mut comes_early = false;
        let fits = match self.does {
            ExpectedPacket::Get { key } => self.fits_get(key, reply, asked.sent, book),
            ExpectedPacket::Kept => {
                assert!(
                    own != OwnKeyState::Kept || has_failed || reply.value == KEPT,
                    "{reply:?} to {self:?}"
                );
                matches!(reply.status, OK | NOT_FOUND)
            }
            ExpectedPacket::Store { too_large, .. } | ExpectedPacket::Keep { too_large, .. } => {
                comes_early = matches!(reply.status, NO_MEMORY | TOO_LARGE);
                let stored = reply.is_done() && !self.is_quiet();
                if too_large {
                    reply.is_error(TOO_LARGE)
                } else {
                    stored || no_memory || error_of(self.refusals())
                }
            }
            ExpectedPacket::Fill => {
                comes_early = has_failed;
                reply.is_done() && !self.is_quiet() || no_memory
            }
            ExpectedPacket::Delete { cas, .. } => {
                let refusals: &[u16] = if cas { &[NOT_FOUND, EXISTS] } else { &[NOT_FOUND] };
                reply.is_done() && !self.is_quiet() || error_of(refusals)
            }
            ExpectedPacket::Count { number, creates } => {
                let is_sum = reply.extras.is_empty() && reply.key.is_empty() && reply.value.len() == 8;
                match reply.status {
                    OK => number && is_sum && !self.is_quiet() && reply.cas != 0,
                    NOT_FOUND => !creates && error_of(&[NOT_FOUND]),
                    NOT_NUMERIC => !number && error_of(&[NOT_NUMERIC]),
                    _ => number && no_memory,
                }
            }
            ExpectedPacket::Touch => {
                let shows_flags = reply.extras == [0; 4] && reply.key.is_empty() && reply.value.is_empty();
                reply.status == OK && shows_flags || error_of(&[NOT_FOUND])
            }
            ExpectedPacket::Noop => reply.is_done() && reply.cas == 0,
            ExpectedPacket::Version => !has_failed && reply.value == crate::stats::VERSION.as_bytes(),
            ExpectedPacket::Stats { known: false } => error_of(&[NOT_FOUND]),
            ExpectedPacket::Stats { known: true } if reply.is_done() => true,
            ExpectedPacket::Stats { known: true } => {
                assert!(!has_failed && !reply.key.is_empty() && reply.extras.is_empty(), "{reply:?}");
                return ReplyMatch::Begins;
            }
            ExpectedPacket::Unknown => {
                comes_early = true;
                error_of(&[UNKNOWN_COMMAND])
            }
            ExpectedPacket::End(status) => {
                assert!(status.is_some_and(|status| reply.is_error(status)), "{reply:?} to {self:?}");
                return ReplyMatch::Last;
            }
        };
        assert!(fits, "{reply:?} is no reply to {asked:?}");
        assert!(asked.unsent == 0 || comes_early, "{reply:?} before all of {asked:?}");
        ReplyMatch::Whole
    }

    /// Checks a status against the state of the client's own key, which no other client writes.
    fn fits_own(&self, own: OwnKeyState, status: u16, book: &Book) {
        let is_there = match (self.does, self.opcode) {
            (ExpectedPacket::Kept, _) => status == OK,
            (ExpectedPacket::Keep { .. }, opcode::ADD | opcode::ADDQ) if status == OK => false,
            (ExpectedPacket::Keep { .. }, opcode::ADD | opcode::ADDQ) if status == EXISTS => true,
            (ExpectedPacket::Keep { .. }, opcode::SET | opcode::SETQ) => return,
            (ExpectedPacket::Keep { .. }, _) if status == OK => true,
            (ExpectedPacket::Keep { .. }, _) if matches!(status, NOT_FOUND | NOT_STORED) => false,
            _ => return,
        };
        let fits = match own {
            OwnKeyState::Unknown => true,
            OwnKeyState::Kept => is_there || book.evictions,
            OwnKeyState::Nothing => !is_there,
        };
        assert!(fits, "status {status} says {is_there} of {own:?}: {self:?}");
    }

    /// The state of the client's own key after this packet.
    fn own_after(&self, own: OwnKeyState, status: u16) -> OwnKeyState {
        let ExpectedPacket::Keep { kept, .. } = self.does else { return own };
        match (status, self.opcode) {
            (OK, _) if kept => OwnKeyState::Kept,
            (OK, _) => OwnKeyState::Unknown,
            (_, opcode::SET | opcode::SETQ) => OwnKeyState::Nothing,
            _ => own,
        }
    }

    /// Whether the reply is the hit of a get, or the miss of a loud get.
    fn fits_get(&self, key: usize, reply: &PacketReply, sent: u64, book: &mut Book) -> bool {
        let packet = Packet { opcode: self.opcode, opaque: [0; 4] };
        let name: &[u8] = if packet.returns_key() { KEYS[key].0.as_bytes() } else { b"" };
        if reply.status == OK {
            assert_eq!((&reply.extras[..], &reply.key[..]), (&[0; 4][..], name), "{self:?}");
            book.seen_as(key, reply.cas, &reply.value, sent);
            return true;
        }
        let is_miss = if name.is_empty() {
            reply.is_error(NOT_FOUND)
        } else {
            reply.status == NOT_FOUND
                && reply.key == name
                && reply.extras.is_empty()
                && reply.value.is_empty()
        };
        is_miss && !packet.is_quiet()
    }

    /// The errors of a store that is not refused for its length.
    fn refusals(&self) -> &'static [u16] {
        use opcode::{ADD, ADDQ, APPEND, APPENDQ, PREPEND, PREPENDQ, REPLACE, REPLACEQ};
        let compares = matches!(self.does, ExpectedPacket::Store { cas: true, .. });
        match (self.opcode, compares) {
            (APPEND | APPENDQ | PREPEND | PREPENDQ, true) => &[NOT_STORED, EXISTS],
            (APPEND | APPENDQ | PREPEND | PREPENDQ, false) => &[NOT_STORED],
            (_, true) => &[NOT_FOUND, EXISTS],
            (ADD | ADDQ, false) => &[EXISTS],
            (REPLACE | REPLACEQ, false) => &[NOT_FOUND],
            _ => &[],
        }
    }

    /// Notes what this reply, or its absence, says about values.
    fn executed(&self, reply: Option<&PacketReply>, begun: u64, book: &mut Book) {
        let status = reply.map_or(OK, |reply| reply.status);
        let extends =
            matches!(self.opcode, opcode::APPEND | opcode::APPENDQ | opcode::PREPEND | opcode::PREPENDQ);
        match self.does {
            ExpectedPacket::Store { key, serial, too_large, .. } => {
                assert!(!too_large || status == TOO_LARGE, "the refusal of {self:?} is said");
                if status == OK {
                    book.executed(serial);
                    if let Some(reply) = reply.filter(|_| !extends) {
                        book.stored_as(key, reply.cas, serial);
                    }
                    // Under a rule, a value that arrives too late is dropped, and the newer one stays.
                    if !extends && !is_ruled(key) {
                        book.note_removed(key, begun);
                    }
                    return;
                }
                let refused = matches!(status, TOO_LARGE | NO_MEMORY);
                if refused || !is_ruled(key) {
                    book.refused(serial);
                }
                if refused && matches!(self.opcode, opcode::SET | opcode::SETQ) {
                    book.note_removed(key, begun);
                }
            }
            // Under a rule, a CAS may be the token of a lease, which the delete gives up.
            ExpectedPacket::Delete { key, cas } if !cas || status == OK && !is_ruled(key) => {
                book.note_removed(key, begun);
            }
            _ => {}
        }
    }
}
