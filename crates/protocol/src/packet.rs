//! The binary grammar: packets of a header of 24 bytes, extras, a key and a value.
//!
//! ```text
//!   0x80 | opcode | key length, 2 | extras length | data type | vbucket, 2 | body length, 4 | opaque, 4 | CAS, 8
//! ```
//! Numbers are big-endian. The body is extras, key and value. Data type and vbucket are ignored, as memcached
//! does. Packets become the requests that the other grammars make: a store is an `ms` with its CAS as `C`,
//! `delete` an `md`, `incr` an `ma` that creates the item unless its exptime is [`NO_VIVIFY`].
//! [`reply::packet`](crate::reply::packet) writes the replies.
//!
//! # Refusals
//! They are those of memcached 1.6.45. After lengths that contradict each other nothing can be trusted: the
//! connection is closed. Where memcached goes on with the rest of such a packet as if it were the next one,
//! it is closed as well. The body of an unknown command is dropped.
//!
//! # Invariants
//! * The result does not depend on how the input is split into reads.
//! * A packet is refused for its lengths, or is a request; only a store waits for its value.

use crate::command::{
    Admin, Block, KEY_MAX, Meta, MetaFlags, MetaKey, PacketCommand, PacketGet, Parsed, Refusal, RefusalCause,
    Request, StoreRefusal, Touch,
};
use crate::line::{FlagTokens, Limits, Words};

/// First byte of a request of the binary protocol.
pub const BINARY_MAGIC: u8 = 0x80;
/// Bytes of a packet before its body.
pub const HEADER_BYTES: usize = 24;
/// Largest body in bytes, as in memcached 1.6.45.
const BODY_MAX: usize = 1 << 30;
/// The exptime of an `incr` or `decr` that does not create an item.
const NO_VIVIFY: u32 = u32::MAX;

/// The opcodes of memcached 1.6.45 and libmemcached's `protocol_binary.h`.
pub mod opcode {
    #![expect(missing_docs, reason = "they are the protocol's names")]
    pub const GET: u8 = 0x00;
    pub const SET: u8 = 0x01;
    pub const ADD: u8 = 0x02;
    pub const REPLACE: u8 = 0x03;
    pub const DELETE: u8 = 0x04;
    pub const INCREMENT: u8 = 0x05;
    pub const DECREMENT: u8 = 0x06;
    pub const QUIT: u8 = 0x07;
    pub const FLUSH: u8 = 0x08;
    pub const GETQ: u8 = 0x09;
    pub const NOOP: u8 = 0x0a;
    pub const VERSION: u8 = 0x0b;
    pub const GETK: u8 = 0x0c;
    pub const GETKQ: u8 = 0x0d;
    pub const APPEND: u8 = 0x0e;
    pub const PREPEND: u8 = 0x0f;
    pub const STAT: u8 = 0x10;
    pub const SETQ: u8 = 0x11;
    pub const ADDQ: u8 = 0x12;
    pub const REPLACEQ: u8 = 0x13;
    pub const DELETEQ: u8 = 0x14;
    pub const INCREMENTQ: u8 = 0x15;
    pub const DECREMENTQ: u8 = 0x16;
    pub const QUITQ: u8 = 0x17;
    pub const FLUSHQ: u8 = 0x18;
    pub const APPENDQ: u8 = 0x19;
    pub const PREPENDQ: u8 = 0x1a;
    pub const TOUCH: u8 = 0x1c;
    pub const GAT: u8 = 0x1d;
    pub const GATQ: u8 = 0x1e;
    pub const SASL_LIST: u8 = 0x20;
    pub const SASL_AUTH: u8 = 0x21;
    pub const SASL_STEP: u8 = 0x22;
    pub const GATK: u8 = 0x23;
    pub const GATKQ: u8 = 0x24;
}

/// The fields of a packet that its reply repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// The command.
    pub opcode: u8,
    /// The client's number for its request.
    pub opaque: [u8; 4],
}

impl Packet {
    /// A success, and the miss of a get, is not answered.
    #[inline]
    pub fn is_quiet(self) -> bool {
        use opcode::{ADDQ, DECREMENTQ, DELETEQ, FLUSHQ, GATKQ, GATQ, GETKQ, GETQ, QUITQ, REPLACEQ};
        use opcode::{APPENDQ, INCREMENTQ, PREPENDQ, SETQ};
        matches!(
            self.opcode,
            GETQ | GETKQ
                | GATQ
                | GATKQ
                | SETQ
                | ADDQ
                | REPLACEQ
                | DELETEQ
                | INCREMENTQ
                | DECREMENTQ
                | QUITQ
                | FLUSHQ
                | APPENDQ
                | PREPENDQ
        )
    }

    /// `set`: when it is refused, the old value could be taken for the new one.
    #[inline]
    pub fn is_set(self) -> bool {
        matches!(self.opcode, opcode::SET | opcode::SETQ)
    }

    /// The reply of a get has the key, that of a miss too.
    #[inline]
    pub fn returns_key(self) -> bool {
        matches!(self.opcode, opcode::GETK | opcode::GETKQ | opcode::GATK | opcode::GATKQ)
    }
}

/// The status of a reply in the binary protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum PacketStatus {
    /// Done.
    Ok = 0x00,
    /// No such item, or statistic.
    NotFound = 0x01,
    /// The item has another CAS; `add` of an item that is there.
    Exists = 0x02,
    /// The value is larger than [`Limits::max_item_bytes`] allows.
    TooLarge = 0x03,
    /// The packet breaks the grammar, or names something that cannot be.
    InvalidArguments = 0x04,
    /// `append prepend` without an item.
    NotStored = 0x05,
    /// `incr decr` of a value that is not a number.
    NotNumeric = 0x06,
    /// Not logged in.
    Unauthenticated = 0x20,
    /// The login goes on with another step.
    Continue = 0x21,
    /// No such command.
    UnknownCommand = 0x81,
    /// There is no memory for the item.
    OutOfMemory = 0x82,
    /// The server, or a method of an object, has failed.
    Internal = 0x84,
    /// Waiting would not help, and the rule says not to answer a miss.
    Busy = 0x85,
}

impl PacketStatus {
    /// The text of an error, as memcached has it.
    pub fn text(self) -> &'static str {
        match self {
            Self::Ok | Self::Continue => "",
            Self::NotFound => "Not found",
            Self::Exists => "Data exists for key.",
            Self::TooLarge => "Too large.",
            Self::InvalidArguments => "Invalid arguments",
            Self::NotStored => "Not stored.",
            Self::NotNumeric => "Non-numeric server-side value for incr or decr",
            Self::Unauthenticated => "Auth failure.",
            Self::UnknownCommand => "Unknown command",
            Self::OutOfMemory => "Out of memory",
            Self::Internal => "Internal error",
            Self::Busy => "Busy",
        }
    }
}

/// The fields of a header that a command looks at.
struct Header {
    packet: Packet,
    extras_len: usize,
    key_len: usize,
    body_len: usize,
    cas: u64,
}

impl Header {
    #[inline]
    fn of(bytes: &[u8; HEADER_BYTES]) -> Self {
        Self {
            packet: Packet { opcode: bytes[1], opaque: four(bytes, 12) },
            extras_len: usize::from(bytes[4]),
            key_len: usize::from(u16::from_be_bytes([bytes[2], bytes[3]])),
            body_len: u32::from_be_bytes(four(bytes, 8)) as usize,
            cas: u64::from_be_bytes(eight(bytes, 16)),
        }
    }

    /// Bytes up to the value.
    #[inline]
    fn head_len(&self) -> usize {
        HEADER_BYTES + self.extras_len + self.key_len
    }

    fn value_len(&self) -> usize {
        self.body_len - self.extras_len - self.key_len
    }
}

/// Parses the first packet of `input`, on a connection that speaks the binary protocol.
///
/// ```
/// use cattlegrid_protocol::{Limits, Parsed, Request, opcode, parse_packet};
///
/// let mut packet = [0; 25];
/// (packet[0], packet[1], packet[3], packet[11], packet[24]) = (0x80, opcode::GETK, 1, 1, b'a');
/// let Parsed::Complete { request: Request::PacketGet(get), used: 25 } =
///     parse_packet(&packet, &Limits::default())
/// else { panic!() };
/// assert_eq!(get.key, b"a");
/// ```
#[inline]
pub fn parse_packet<'a>(input: &'a [u8], limits: &Limits) -> Parsed<'a> {
    parse(input, false, limits)
}

/// Parses the packet of a store up to its value, which was received elsewhere: this is what [`parse_packet`]
/// returns for all of it, but that the value is [`Block::Apart`] and that `used` does not count it.
pub fn parse_packet_apart<'a>(head: &'a [u8], limits: &Limits) -> Parsed<'a> {
    parse(head, true, limits)
}

#[inline]
fn parse<'a>(input: &'a [u8], apart: bool, limits: &Limits) -> Parsed<'a> {
    let Some(bytes) = input.first_chunk::<HEADER_BYTES>() else {
        return Parsed::Incomplete { need: HEADER_BYTES, block: None };
    };
    if bytes[0] != BINARY_MAGIC {
        return crate::line::close(input);
    }
    let header = Header::of(bytes);
    if header.key_len > KEY_MAX {
        return close(input, header.packet, PacketStatus::InvalidArguments);
    }
    let head_len = header.head_len();
    if input.len() < head_len {
        return Parsed::Incomplete { need: head_len, block: None };
    }
    if header.extras_len + header.key_len > header.body_len {
        return close(input, header.packet, PacketStatus::UnknownCommand);
    }
    if header.body_len > BODY_MAX {
        return close(input, header.packet, PacketStatus::InvalidArguments);
    }
    let (extras, key) = input[HEADER_BYTES..head_len].split_at(header.extras_len);
    command(input, &header, extras, key, apart, limits)
        .unwrap_or_else(|| close(input, header.packet, PacketStatus::InvalidArguments))
}

/// None: its lengths are not those of its command.
#[inline]
fn command<'a>(
    input: &'a [u8],
    header: &Header,
    extras: &'a [u8],
    key: &'a [u8],
    apart: bool,
    limits: &Limits,
) -> Option<Parsed<'a>> {
    let Header { packet, .. } = *header;
    let used = header.head_len();
    let value_len = header.value_len();
    let complete = |request| Some(Parsed::Complete { request, used });
    let packet_command = |command| complete(Request::Packet(packet, command));
    let is_bare = header.body_len == 0;
    let has_key = !key.is_empty();
    match packet.opcode {
        opcode::GET | opcode::GETQ | opcode::GETK | opcode::GETKQ
            if has_key && extras.is_empty() && value_len == 0 =>
        {
            complete(Request::PacketGet(PacketGet { key, exptime: None, packet }))
        }
        opcode::GAT | opcode::GATQ | opcode::GATK | opcode::GATKQ
            if has_key && extras.len() == 4 && value_len == 0 =>
        {
            let exptime = Some(i64::from(u32::from_be_bytes(four(extras, 0))));
            complete(Request::PacketGet(PacketGet { key, exptime, packet }))
        }
        opcode::TOUCH if has_key && extras.len() == 4 && value_len == 0 => {
            let exptime = i64::from(u32::from_be_bytes(four(extras, 0)));
            complete(Request::Touch(Touch { key, exptime, noreply: false, packet: Some(packet) }))
        }
        opcode::SET | opcode::SETQ | opcode::ADD | opcode::ADDQ | opcode::REPLACE | opcode::REPLACEQ
            if has_key && extras.len() == 8 =>
        {
            let mode = match packet.opcode {
                _ if header.cas != 0 => b'S',
                opcode::ADD | opcode::ADDQ => b'E',
                opcode::REPLACE | opcode::REPLACEQ => b'R',
                _ => b'S',
            };
            let mut set = flags_of(header, b"MFT");
            set.mode = mode;
            set.client_flags = u32::from_be_bytes(four(extras, 0));
            set.exptime = i64::from(u32::from_be_bytes(four(extras, 4)));
            Some(store(input, header, key, set, apart, limits))
        }
        opcode::APPEND | opcode::APPENDQ | opcode::PREPEND | opcode::PREPENDQ
            if has_key && extras.is_empty() =>
        {
            let mut set = flags_of(header, b"M");
            set.mode = if matches!(packet.opcode, opcode::APPEND | opcode::APPENDQ) { b'A' } else { b'P' };
            Some(store(input, header, key, set, apart, limits))
        }
        opcode::DELETE | opcode::DELETEQ if has_key && extras.is_empty() && value_len == 0 => {
            complete(Request::MetaDelete(meta(packet, key, flags_of(header, b""))))
        }
        opcode::INCREMENT | opcode::INCREMENTQ | opcode::DECREMENT | opcode::DECREMENTQ
            if has_key && extras.len() == 20 && value_len == 0 =>
        {
            let exptime = u32::from_be_bytes(four(extras, 16));
            let mut set = flags_of(header, if exptime == NO_VIVIFY { b"MDv" } else { b"MDvNJ" });
            set.mode =
                if matches!(packet.opcode, opcode::INCREMENT | opcode::INCREMENTQ) { b'I' } else { b'D' };
            set.delta = u64::from_be_bytes(eight(extras, 0));
            set.initial = u64::from_be_bytes(eight(extras, 8));
            set.vivify = exptime.into();
            complete(Request::MetaArith(meta(packet, key, set)))
        }
        opcode::NOOP if is_bare => packet_command(PacketCommand::Noop),
        opcode::VERSION if is_bare => packet_command(PacketCommand::Admin(Admin::Version)),
        opcode::QUIT | opcode::QUITQ if is_bare => packet_command(PacketCommand::Admin(Admin::Quit)),
        opcode::FLUSH | opcode::FLUSHQ if !has_key && value_len == 0 && matches!(extras.len(), 0 | 4) => {
            let delay = if extras.is_empty() { 0 } else { u32::from_be_bytes(four(extras, 0)) };
            let noreply = packet.is_quiet();
            packet_command(PacketCommand::Admin(Admin::FlushAll { delay: delay.into(), noreply }))
        }
        opcode::STAT if extras.is_empty() && value_len == 0 => {
            packet_command(PacketCommand::Admin(Admin::Stats(Words { rest: key })))
        }
        opcode::SASL_LIST if is_bare => packet_command(PacketCommand::SaslList),
        opcode::SASL_AUTH | opcode::SASL_STEP if has_key && extras.is_empty() => {
            let all = used + value_len;
            if value_len > SASL_MAX {
                return None;
            }
            let Some(data) = input.get(used..all) else {
                return Some(Parsed::Incomplete { need: all, block: None });
            };
            let first = packet.opcode == opcode::SASL_AUTH;
            let command = PacketCommand::SaslAuth { mechanism: key, data, first };
            Some(Parsed::Complete { request: Request::Packet(packet, command), used: all })
        }
        known if is_known(known) => None,
        _ => {
            let all = HEADER_BYTES + header.body_len;
            Some(Parsed::Refused(dropped(input, all, packet, PacketStatus::UnknownCommand)))
        }
    }
}

/// Whether memcached 1.6.45 has this command.
fn is_known(opcode: u8) -> bool {
    opcode <= opcode::GATKQ && !matches!(opcode, 0x1b | 0x1f)
}

/// The numbers that a header has for any command, with these letters.
#[inline]
fn flags_of(header: &Header, letters: &[u8]) -> MetaFlags {
    let mut set = MetaFlags { compare_cas: header.cas, ..MetaFlags::default() };
    for letter in letters {
        set.letters |= 1 << (letter - b'A');
    }
    if header.cas != 0 {
        set.letters |= 1 << (b'C' - b'A');
    }
    if header.packet.is_quiet() {
        set.letters |= 1 << (b'q' - b'A');
    }
    set
}

fn meta(packet: Packet, key: &[u8], set: MetaFlags) -> Meta<'_> {
    Meta { key: MetaKey::plain(key), flags: FlagTokens::default(), set, packet: Some(packet) }
}

fn store<'a>(
    input: &'a [u8],
    header: &Header,
    key: &'a [u8],
    set: MetaFlags,
    apart: bool,
    limits: &Limits,
) -> Parsed<'a> {
    let (begin, len) = (header.head_len(), header.value_len());
    let all = begin + len;
    let refuse = |cause: RefusalCause, status| {
        let verb = set.store_verb();
        let store = Some(StoreRefusal { sent_key: key, is_binary: false, verb, classic: false });
        let token = set.has(b'C').then_some(set.compare_cas);
        let invalidate = (header.packet.is_set() || token.is_some()).then_some(key);
        Refusal { invalidate, store, token, cause, ..dropped(input, all, header.packet, status) }
    };
    // An append is refused by what it makes.
    if !limits.fits(key, set.client_flags, len) {
        return Parsed::Refused(refuse(RefusalCause::TooLarge, PacketStatus::TooLarge));
    }
    let meta = meta(header.packet, key, set);
    if apart {
        return Parsed::Complete { request: Request::MetaSet(meta, Block::Apart(len)), used: begin };
    }
    if let Some(value) = input.get(begin..all) {
        return Parsed::Complete { request: Request::MetaSet(meta, Block::Here(value)), used: all };
    }
    let block = Some(refuse(RefusalCause::NoMemory, PacketStatus::OutOfMemory));
    Parsed::Incomplete { need: all, block }
}

/// Refuses a packet of `all` bytes.
#[cold]
fn dropped(input: &[u8], all: usize, packet: Packet, status: PacketStatus) -> Refusal<'_> {
    let used = all.min(input.len());
    let packet = Some((packet, status));
    Refusal { swallow: (all - used) as u64, packet, ..Refusal::with("", used) }
}

/// Refuses a packet whose length cannot be trusted.
#[cold]
fn close(input: &[u8], packet: Packet, status: PacketStatus) -> Parsed<'_> {
    Parsed::Refused(Refusal { close: true, ..dropped(input, input.len(), packet, status) })
}

#[inline]
fn four(bytes: &[u8], at: usize) -> [u8; 4] {
    *bytes[at..].first_chunk().expect("the caller has looked")
}

#[inline]
fn eight(bytes: &[u8], at: usize) -> [u8; 8] {
    *bytes[at..].first_chunk().expect("the caller has looked")
}

/// Most bytes of what is sent to log in: two names and a password, of which each has a line of a password
/// file at most.
const SASL_MAX: usize = 4 << 10;
