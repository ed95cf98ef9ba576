//! The packets that a client of the binary protocol sends.
//!
//! Gets are sent alone and in runs of quiet gets. A run ends with a `noop`, a loud get or another command, or
//! is left without an end for now. [`super::answers`] has the replies.

use cattlegrid_protocol::{BINARY_MAGIC, HEADER_BYTES, KEY_MAX, opcode};

use super::answers::{ExpectedPacket, PendingPacket};
use super::{Client, ExpectedReply, value};
use crate::harness::book::{Book, KEYS, UNWRITTEN};
use crate::harness::{Choices, ITEM_MAX};

/// The exptime of an `incr` that does not create an item.
const NO_VIVIFY: [u8; 4] = [0xff; 4];
/// The exptime of an item, in seconds.
const EXPTIME: [u8; 4] = 100_u32.to_be_bytes();
/// The client flags and the exptime of a store.
const SET_EXTRAS: [u8; 8] = [0; 8];
/// The value of a client's own key: see [`Client::keep`].
pub(super) const KEPT: &[u8] = b"kept";

/// The fields of a packet.
#[derive(Debug, Clone, Copy, Default)]
struct PacketFields<'a> {
    opcode: u8,
    cas: u64,
    extras: &'a [u8],
    key: &'a [u8],
    value: &'a [u8],
}

impl PacketFields<'_> {
    fn bytes(&self, opaque: u32) -> Vec<u8> {
        let body = self.extras.len() + self.key.len() + self.value.len();
        let mut bytes = vec![BINARY_MAGIC, self.opcode];
        bytes.extend_from_slice(&(self.key.len() as u16).to_be_bytes());
        bytes.extend_from_slice(&[self.extras.len() as u8, 0, 0, 0]);
        bytes.extend_from_slice(&(body as u32).to_be_bytes());
        bytes.extend_from_slice(&opaque.to_be_bytes());
        bytes.extend_from_slice(&self.cas.to_be_bytes());
        for part in [self.extras, self.key, self.value] {
            bytes.extend_from_slice(part);
        }
        bytes
    }
}

impl Client {
    /// Chooses a packet or a run of packets, without sending it.
    pub(super) fn packet(&mut self, choices: &mut Choices<'_>, book: &mut Book) {
        match choices.below(16) {
            0 | 1 => {
                let (key, opcode) = (any_key(choices), choices.one_of(&GETS));
                self.get_packet(opcode, key);
            }
            2..=4 => {
                let first = any_key(choices);
                self.run_of_packets(first, choices, book);
            }
            5..=9 => {
                let key = choices.below(UNWRITTEN as u64) as usize;
                self.store_packet(key, choices, book);
            }
            10 => self.delete_packet(choices, book),
            11 => self.count_packet(choices),
            12 => self.fill_packet(choices),
            13 => self.keep(choices),
            14 => self.unknown(choices),
            _ => match choices.below(8) {
                0 | 1 => self.prove(),
                2 | 3 => {
                    let key = any_key(choices);
                    let fields = PacketFields { opcode: opcode::TOUCH, extras: &EXPTIME, ..of_key(key) };
                    self.send(fields, ExpectedPacket::Touch);
                }
                4 | 5 => self.send(
                    PacketFields { opcode: opcode::VERSION, ..PacketFields::default() },
                    ExpectedPacket::Version,
                ),
                6 => {
                    let key: &[u8] = choices.one_of(&[b"".as_slice(), b"settings", b"none such"]);
                    let does = ExpectedPacket::Stats { known: key != b"none such" };
                    self.send(PacketFields { opcode: opcode::STAT, key, ..PacketFields::default() }, does);
                }
                _ => {
                    self.end(choices);
                    // The packets after it are not executed.
                    self.store_packet(0, choices, book);
                }
            },
        }
    }

    /// Sends a `noop`, whose reply proves that the quiet commands before it are executed.
    pub(super) fn prove(&mut self) {
        self.send(PacketFields { opcode: opcode::NOOP, ..PacketFields::default() }, ExpectedPacket::Noop);
    }

    /// Chooses a get with this opcode.
    pub(super) fn get_packet(&mut self, opcode: u8, key: usize) {
        let touches = matches!(opcode, opcode::GAT | opcode::GATQ | opcode::GATK | opcode::GATKQ);
        let extras: &[u8] = if touches { &EXPTIME } else { &[] };
        self.send(PacketFields { opcode, extras, ..of_key(key) }, ExpectedPacket::Get { key });
    }

    /// Chooses a run of quiet gets from this key on, and its end.
    pub(super) fn run_of_packets(&mut self, first: usize, choices: &mut Choices<'_>, book: &mut Book) {
        // The counts are short, longer than a held run, and longer than the look-ahead.
        let count = choices.one_of(&[1, 2, 2, 2, 3, 3, 3, 5, 5, 5, 8, 8, 8, 12, 70, 1_100]);
        let opcode =
            choices.one_of(&[opcode::GETQ, opcode::GETKQ, opcode::GETKQ, opcode::GATQ, opcode::GATKQ]);
        let step = choices.one_of(&[0, 1, 1, 3]);
        for n in 0..count {
            self.get_packet(opcode, key_of_many(first + n * step, n));
        }
        match choices.below(8) {
            0..=2 => self.prove(),
            3 => self.get_packet(opcode::GET, any_key(choices)),
            4 => self.get_packet(opcode::GETK, any_key(choices)),
            5 => {
                let key = choices.below(UNWRITTEN as u64) as usize;
                self.store_packet(key, choices, book);
            }
            6 => self.delete_packet(choices, book),
            _ => {}
        }
    }

    /// Chooses a store of any form.
    pub(super) fn store_packet(&mut self, key: usize, choices: &mut Choices<'_>, book: &mut Book) {
        let opcode = choices.one_of(&[
            opcode::SET,
            opcode::SET,
            opcode::SET,
            opcode::SETQ,
            opcode::SETQ,
            opcode::ADD,
            opcode::ADDQ,
            opcode::REPLACE,
            opcode::REPLACEQ,
            opcode::APPEND,
            opcode::APPENDQ,
            opcode::PREPEND,
            opcode::PREPENDQ,
        ]);
        let cas = any_cas(key, choices, book);
        let (value, serial, too_large) = value(choices, book, key);
        let fields = PacketFields { opcode, cas, extras: extras_of(opcode), value: &value, ..of_key(key) };
        self.send(fields, ExpectedPacket::Store { key, serial, cas: cas != 0, too_large });
    }

    /// Stores a small value, which a refusal of the next one must remove.
    pub(super) fn set_small_packet(&mut self, key: usize, book: &mut Book) {
        let mut value = Vec::new();
        let serial = book.write(key, 0, &mut value);
        let fields = PacketFields { opcode: opcode::SET, extras: &SET_EXTRAS, value: &value, ..of_key(key) };
        self.send(fields, ExpectedPacket::Store { key, serial, cas: false, too_large: false });
    }

    fn delete_packet(&mut self, choices: &mut Choices<'_>, book: &mut Book) {
        let key = any_key(choices);
        let cas = any_cas(key, choices, book);
        book.deletes += 1;
        let opcode = choices.one_of(&[opcode::DELETE, opcode::DELETEQ]);
        self.send(PacketFields { opcode, cas, ..of_key(key) }, ExpectedPacket::Delete { key, cas: cas != 0 });
    }

    pub(super) fn delete_quietly(&mut self, key: usize) {
        self.send(
            PacketFields { opcode: opcode::DELETEQ, ..of_key(key) },
            ExpectedPacket::Delete { key, cas: false },
        );
    }

    /// Counts, on a key of its own; its values are not recorded.
    fn count_packet(&mut self, choices: &mut Choices<'_>) {
        let opcode =
            choices.one_of(&[opcode::INCREMENT, opcode::INCREMENTQ, opcode::DECREMENT, opcode::DECREMENTQ]);
        let delta = choices.one_of(&[1, 1_000_000_000_000, 9_000_000_000_000_000_000_u64]);
        let (number, creates) = (choices.below(4) != 0, choices.below(2) == 0);
        let mut extras = delta.to_be_bytes().to_vec();
        extras.extend_from_slice(&5_u64.to_be_bytes());
        extras.extend_from_slice(if number && creates { &EXPTIME } else { &NO_VIVIFY });
        let key = if number { b"n" } else { KEYS[any_key(choices)].0.as_bytes() };
        let does = ExpectedPacket::Count { number, creates: number && creates };
        self.send(PacketFields { opcode, extras: &extras, key, ..PacketFields::default() }, does);
    }

    /// Fills the store with values that are never read.
    fn fill_packet(&mut self, choices: &mut Choices<'_>) {
        let (number, len) = (choices.below(256), choices.one_of(&[100, 3_000, 30_000, 60_000]));
        let opcode = choices.one_of(&[opcode::SET, opcode::SETQ]);
        let value = vec![b'f'; len];
        for more in 0..choices.one_of(&[1, 1, 1, 30]) {
            let key = format!("f{}", number + more);
            let fields =
                PacketFields { opcode, extras: &SET_EXTRAS, key: key.as_bytes(), value: &value, cas: 0 };
            self.send(fields, ExpectedPacket::Fill);
        }
    }

    /// Sets a key that no other client knows, and sends stores to it. A refused store leaves it unchanged; a
    /// refused `set` removes it.
    fn keep(&mut self, choices: &mut Choices<'_>) {
        let key = format!("own{}", self.number);
        let fields = PacketFields { key: key.as_bytes(), ..PacketFields::default() };
        if choices.below(3) != 0 {
            let set = PacketFields { opcode: opcode::SET, extras: &SET_EXTRAS, value: KEPT, ..fields };
            self.send(set, ExpectedPacket::Keep { too_large: false, kept: true });
        }
        for _ in 0..choices.below(3) {
            let opcode = choices.one_of(&[
                opcode::SET,
                opcode::SETQ,
                opcode::ADD,
                opcode::ADDQ,
                opcode::REPLACE,
                opcode::REPLACEQ,
                opcode::APPEND,
                opcode::PREPENDQ,
            ]);
            let len = choices.one_of(&[10, 3_000, 20_000, 50_000, ITEM_MAX]);
            let value = vec![b'o'; len];
            let store = PacketFields { opcode, extras: extras_of(opcode), value: &value, ..fields };
            self.send(store, ExpectedPacket::Keep { too_large: len == ITEM_MAX, kept: false });
        }
        self.send(PacketFields { opcode: opcode::GETK, ..fields }, ExpectedPacket::Kept);
    }

    /// Sends a command that does not exist, with a body that must be skipped.
    fn unknown(&mut self, choices: &mut Choices<'_>) {
        let opcode = choices.one_of(&[0x1b, 0x1f, 0x25, 0x30, 0x80, 0xff]);
        let body = vec![BINARY_MAGIC; choices.one_of(&[0, 1, 24, 100, 5_000, 20_000, 70_000])];
        let extras = &body[..body.len().min(choices.below(5) as usize)];
        let key = &body[..(body.len() - extras.len()).min(choices.below(9) as usize)];
        let value = &body[extras.len() + key.len()..];
        self.send(PacketFields { opcode, extras, key, value, cas: 7 }, ExpectedPacket::Unknown);
    }

    /// Sends a packet after which the connection ends.
    fn end(&mut self, choices: &mut Choices<'_>) {
        let (invalid, unknown) = (Some(0x04), Some(0x81));
        let get = PacketFields { opcode: opcode::GET, key: b"p0", ..PacketFields::default() };
        let set = PacketFields { opcode: opcode::SET, extras: &SET_EXTRAS, ..get };
        let long = [b'k'; KEY_MAX + 1];
        // The fields, the changed byte of the header, and the status of the reply.
        let (fields, (at, byte), status) = match choices.below(14) {
            0 => (PacketFields { key: &long, ..get }, (0, BINARY_MAGIC), invalid),
            // The stated body is shorter than its parts.
            1 => (get, (11, 1), unknown),
            2 => (set, (4, 12), unknown),
            3 => (set, (8, 0x41), invalid),
            4 => (PacketFields { extras: &EXPTIME, ..get }, (0, BINARY_MAGIC), invalid),
            5 => (PacketFields { value: &long, ..get }, (0, BINARY_MAGIC), invalid),
            6 => (PacketFields { extras: &EXPTIME, ..set }, (0, BINARY_MAGIC), invalid),
            7 => (PacketFields { opcode: opcode::NOOP, ..get }, (0, BINARY_MAGIC), invalid),
            8 => (PacketFields { opcode: opcode::INCREMENTQ, ..set }, (0, BINARY_MAGIC), invalid),
            9 => (PacketFields { key: b"", ..get }, (0, BINARY_MAGIC), invalid),
            10 => (get, (0, 0x81), None),
            11 => (set, (0, b'g'), None),
            12 => {
                (PacketFields { opcode: opcode::QUIT, ..PacketFields::default() }, (0, BINARY_MAGIC), Some(0))
            }
            _ => (PacketFields { opcode: opcode::QUITQ, ..PacketFields::default() }, (0, BINARY_MAGIC), None),
        };
        // The first byte of a connection selects the protocol.
        let (at, byte, status) = if self.packets == 0 && at == 0 && byte != BINARY_MAGIC {
            (11, 1, unknown)
        } else {
            (at, byte, status)
        };
        let opaque = self.next_packet();
        let mut bytes = fields.bytes(opaque);
        bytes[at] = byte;
        let does = ExpectedPacket::End(status);
        self.ask(&bytes, ExpectedReply::Packet(PendingPacket { opcode: fields.opcode, opaque, does }));
    }

    fn send(&mut self, fields: PacketFields<'_>, does: ExpectedPacket) {
        let opaque = self.next_packet();
        self.ask(
            &fields.bytes(opaque),
            ExpectedReply::Packet(PendingPacket { opcode: fields.opcode, opaque, does }),
        );
    }

    /// The opaque of the next packet, unique for this client.
    fn next_packet(&mut self) -> u32 {
        self.packets += 1;
        self.packets.rotate_right(8)
    }
}

const GETS: [u8; 8] = [
    opcode::GET,
    opcode::GETK,
    opcode::GETQ,
    opcode::GETKQ,
    opcode::GAT,
    opcode::GATK,
    opcode::GATQ,
    opcode::GATKQ,
];

fn of_key(key: usize) -> PacketFields<'static> {
    PacketFields { key: KEYS[key].0.as_bytes(), ..PacketFields::default() }
}

fn any_key(choices: &mut Choices<'_>) -> usize {
    choices.below(KEYS.len() as u64) as usize
}

/// The key at position `n` of a command with many: values are those of few keys.
pub(super) fn key_of_many(key: usize, n: usize) -> usize {
    match key % KEYS.len() {
        key if key < UNWRITTEN && n >= 5 => UNWRITTEN + key % 3,
        key => key,
    }
}

/// No CAS, the one that was seen last, or another.
fn any_cas(key: usize, choices: &mut Choices<'_>, book: &Book) -> u64 {
    match choices.below(8) {
        0 | 1 => book.last_cas(key),
        2 => book.last_cas(key) + 1,
        _ => 0,
    }
}

/// The extras of a store.
fn extras_of(opcode: u8) -> &'static [u8] {
    use opcode::{APPEND, APPENDQ, PREPEND, PREPENDQ};
    if matches!(opcode, APPEND | APPENDQ | PREPEND | PREPENDQ) { &[] } else { &SET_EXTRAS }
}

const _: () = assert!(HEADER_BYTES == 24, "what `Fields::bytes` writes");
