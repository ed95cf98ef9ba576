//! The replies that packets may have.
//!
//! A reply is matched by its opaque and opcode. A reply that is not of the first packet without a reply proves that this one was
//! executed and has none: it is quiet, and it succeeded, or it is a get and missed.

use cattlegrid_protocol::{HEADER_BYTES, Packet, opcode};

use super::packets::KEPT;
use super::{Client, Match, PendingCommand, What, show};
use crate::harness::book::{Book, KEYS, is_ruled};

/// A packet without its reply yet.
#[derive(Debug)]
pub(super) struct PendingPacket {
    pub(super) opcode: u8,
    pub(super) opaque: u32,
    pub(super) does: Does,
}

/// What a packet does, as far as its replies are concerned.
#[derive(Debug, Clone, Copy)]
pub(super) enum Does {
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
    /// `incr`, `decr`. `number`: of the key whose value is one, if it has any.
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
    /// A store of the client's own key. `kept`: of the value [`KEPT`].
    Keep {
        too_large: bool,
        kept: bool,
    },
    /// A get of it.
    Kept,
    Unknown,
    /// The connection ends after a reply with this status; None: without one.
    End(Option<u16>),
}

/// What a client's own key has, as its replies say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Own {
    #[default]
    Unknown,
    /// [`KEPT`], unless it was evicted.
    Kept,
    /// Nothing: a `set` was refused.
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

/// A reply that is there whole.
#[derive(Debug)]
struct Reply {
    opcode: u8,
    status: u16,
    opaque: u32,
    cas: u64,
    extras: Vec<u8>,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Reply {
    /// The first of `received`, and its length. None: it is not there whole.
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

    /// An error is its text and nothing else.
    fn is_error(&self, status: u16) -> bool {
        let is_text = self.extras.is_empty() && self.key.is_empty() && self.value == text(status).as_bytes();
        self.status == status && is_text && self.cas == 0
    }

    /// A success without a body.
    fn is_done(&self) -> bool {
        self.status == OK && self.has_no_body()
    }
}

impl Client {
    /// Matches the next reply; the bytes it has. None: it is not there whole.
    pub(super) fn match_packet(&mut self, at: usize, book: &mut Book) -> Option<usize> {
        let (reply, bytes) = Reply::first(&self.received[at..])?;
        loop {
            let asked = self.asked.front().unwrap_or_else(|| panic!("no request is open: {reply:?}"));
            // The rest of a packet that was refused.
            let What::Packet(sent) = &asked.what else {
                assert_eq!(asked.unsent, 0, "{reply:?} before all of {asked:?}");
                self.asked.pop_front();
                continue;
            };
            if (sent.opaque, sent.opcode) != (reply.opaque, reply.opcode) {
                self.pass_quiet(book);
                continue;
            }
            match sent.matches(&reply, asked, self.own, book) {
                Match::Begins => return Some(bytes),
                Match::Last => {
                    self.drop_rest(book);
                    self.closing = true;
                    return Some(bytes);
                }
                Match::Whole | Match::None => {}
            }
            sent.executed(Some(&reply), asked.begun, book);
            self.own = sent.own_after(self.own, reply.status);
            let asked = self.asked.front_mut().expect("it was there");
            if asked.unsent == 0 {
                self.asked.pop_front();
            } else {
                asked.what = What::Silent;
            }
            return Some(bytes);
        }
    }

    /// The first packet has no reply: what comes is a later one's.
    fn pass_quiet(&mut self, book: &mut Book) {
        let asked = self.asked.pop_front().expect("a packet is open");
        let What::Packet(sent) = &asked.what else { unreachable!("its caller has looked") };
        assert!(sent.is_quiet() && asked.unsent == 0, "no reply to {asked:?}");
        sent.executed(None, asked.begun, book);
        sent.fits_own(self.own, OK, book);
        self.own = sent.own_after(self.own, OK);
        book.silent += 1;
    }

    /// The connection has ended, or will, and nothing from the second packet on was executed.
    fn drop_rest(&mut self, book: &mut Book) {
        for asked in self.asked.drain(..) {
            if let What::Packet(PendingPacket { does: Does::Store { serial, .. }, .. }) = asked.what {
                book.refused(serial);
            }
        }
        self.unsent.clear();
        book.ended += 1;
    }

    /// Whether the connection may end here without a reply: only quiet packets come before the packet that ends it so.
    pub(super) fn ends_silently(&mut self, book: &mut Book) -> bool {
        let is_quiet = |asked: &PendingCommand| match &asked.what {
            What::Packet(sent) => sent.is_quiet(),
            _ => true,
        };
        let end = self.asked.iter().position(|asked| !is_quiet(asked));
        let Some(end) = end.filter(|at| {
            let asked = &self.asked[*at];
            let ends = matches!(asked.what, What::Packet(PendingPacket { does: Does::End(None), .. }));
            ends && asked.bytes - asked.unsent >= HEADER_BYTES
        }) else {
            return false;
        };
        for _ in 0..end {
            if let Some(PendingCommand { what: What::Packet(_), .. }) = self.asked.front() {
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
    /// It may have no reply, and the connection goes on.
    pub(super) fn is_quiet(&self) -> bool {
        let packet = Packet { opcode: self.opcode, opaque: [0; 4] };
        packet.is_quiet() && !matches!(self.does, Does::End(_))
    }

    /// How a reply of it fits. `own`: what its client's own key has.
    fn matches(&self, reply: &Reply, asked: &PendingCommand, own: Own, book: &mut Book) -> Match {
        self.fits_own(own, reply.status, book);
        let has_failed = reply.status != OK;
        let no_memory = reply.is_error(NO_MEMORY) && asked.may_find_no_memory(book);
        let error_of = |all: &[u16]| all.contains(&reply.status) && reply.is_error(reply.status);
        let mut comes_early = false;
        let fits = match self.does {
            Does::Get { key } => self.fits_get(key, reply, asked.sent, book),
            Does::Kept => {
                assert!(own != Own::Kept || has_failed || reply.value == KEPT, "{reply:?} to {self:?}");
                matches!(reply.status, OK | NOT_FOUND)
            }
            Does::Store { too_large, .. } | Does::Keep { too_large, .. } => {
                comes_early = matches!(reply.status, NO_MEMORY | TOO_LARGE);
                let stored = reply.is_done() && !self.is_quiet();
                if too_large {
                    reply.is_error(TOO_LARGE)
                } else {
                    stored || no_memory || error_of(self.refusals())
                }
            }
            Does::Fill => {
                comes_early = has_failed;
                reply.is_done() && !self.is_quiet() || no_memory
            }
            Does::Delete { cas, .. } => {
                let refusals: &[u16] = if cas { &[NOT_FOUND, EXISTS] } else { &[NOT_FOUND] };
                reply.is_done() && !self.is_quiet() || error_of(refusals)
            }
            Does::Count { number, creates } => {
                let is_sum = reply.extras.is_empty() && reply.key.is_empty() && reply.value.len() == 8;
                match reply.status {
                    OK => number && is_sum && !self.is_quiet() && reply.cas != 0,
                    NOT_FOUND => !creates && error_of(&[NOT_FOUND]),
                    NOT_NUMERIC => !number && error_of(&[NOT_NUMERIC]),
                    _ => number && no_memory,
                }
            }
            Does::Touch => {
                let shows_flags = reply.extras == [0; 4] && reply.key.is_empty() && reply.value.is_empty();
                reply.status == OK && shows_flags || error_of(&[NOT_FOUND])
            }
            Does::Noop => reply.is_done() && reply.cas == 0,
            Does::Version => !has_failed && reply.value == crate::stats::VERSION.as_bytes(),
            Does::Stats { known: false } => error_of(&[NOT_FOUND]),
            Does::Stats { known: true } if reply.is_done() => true,
            Does::Stats { known: true } => {
                assert!(!has_failed && !reply.key.is_empty() && reply.extras.is_empty(), "{reply:?}");
                return Match::Begins;
            }
            Does::Unknown => {
                comes_early = true;
                error_of(&[UNKNOWN_COMMAND])
            }
            Does::End(status) => {
                assert!(status.is_some_and(|status| reply.is_error(status)), "{reply:?} to {self:?}");
                return Match::Last;
            }
        };
        assert!(fits, "{reply:?} is no reply to {asked:?}");
        assert!(asked.unsent == 0 || comes_early, "{reply:?} before all of {asked:?}");
        Match::Whole
    }

    /// Checks what a status says of its client's own key, which no other client writes.
    fn fits_own(&self, own: Own, status: u16, book: &Book) {
        let is_there = match (self.does, self.opcode) {
            (Does::Kept, _) => status == OK,
            (Does::Keep { .. }, opcode::ADD | opcode::ADDQ) if status == OK => false,
            (Does::Keep { .. }, opcode::ADD | opcode::ADDQ) if status == EXISTS => true,
            (Does::Keep { .. }, opcode::SET | opcode::SETQ) => return,
            (Does::Keep { .. }, _) if status == OK => true,
            (Does::Keep { .. }, _) if matches!(status, NOT_FOUND | NOT_STORED) => false,
            _ => return,
        };
        let fits = match own {
            Own::Unknown => true,
            Own::Kept => is_there || book.evictions,
            Own::Nothing => !is_there,
        };
        assert!(fits, "status {status} says {is_there} of {own:?}: {self:?}");
    }

    /// What its client's own key has after it.
    fn own_after(&self, own: Own, status: u16) -> Own {
        let Does::Keep { kept, .. } = self.does else { return own };
        match (status, self.opcode) {
            (OK, _) if kept => Own::Kept,
            (OK, _) => Own::Unknown,
            (_, opcode::SET | opcode::SETQ) => Own::Nothing,
            _ => own,
        }
    }

    /// The hit of a get, or the miss of a loud one.
    fn fits_get(&self, key: usize, reply: &Reply, sent: u64, book: &mut Book) -> bool {
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

    /// Errors of a store that is not refused for its length.
    fn refusals(&self) -> &'static [u16] {
        use opcode::{ADD, ADDQ, APPEND, APPENDQ, PREPEND, PREPENDQ, REPLACE, REPLACEQ};
        let compares = matches!(self.does, Does::Store { cas: true, .. });
        match (self.opcode, compares) {
            (APPEND | APPENDQ | PREPEND | PREPENDQ, true) => &[NOT_STORED, EXISTS],
            (APPEND | APPENDQ | PREPEND | PREPENDQ, false) => &[NOT_STORED],
            (_, true) => &[NOT_FOUND, EXISTS],
            (ADD | ADDQ, false) => &[EXISTS],
            (REPLACE | REPLACEQ, false) => &[NOT_FOUND],
            _ => &[],
        }
    }

    /// Notes what its execution, with this reply or none, says of values.
    fn executed(&self, reply: Option<&Reply>, begun: u64, book: &mut Book) {
        let status = reply.map_or(OK, |reply| reply.status);
        let extends =
            matches!(self.opcode, opcode::APPEND | opcode::APPENDQ | opcode::PREPEND | opcode::PREPENDQ);
        match self.does {
            Does::Store { key, serial, too_large, .. } => {
                assert!(!too_large || status == TOO_LARGE, "the refusal of {self:?} is said");
                if status == OK {
                    book.executed(serial);
                    if let Some(reply) = reply.filter(|_| !extends) {
                        book.stored_as(key, reply.cas, serial);
                    }
                    // Under a rule a value that comes too late is dropped, and the newer one stays.
                    if !extends && !is_ruled(key) {
                        book.gone(key, begun);
                    }
                    return;
                }
                let refused = matches!(status, TOO_LARGE | NO_MEMORY);
                if refused || !is_ruled(key) {
                    book.refused(serial);
                }
                if refused && matches!(self.opcode, opcode::SET | opcode::SETQ) {
                    book.gone(key, begun);
                }
            }
            // Under a rule a CAS may be the token of a lease, which is given up.
            Does::Delete { key, cas } if !cas || status == OK && !is_ruled(key) => book.gone(key, begun),
            _ => {}
        }
    }
}
