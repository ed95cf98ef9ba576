use cattlegrid_protocol::{Limits, Parsed, Request, parse_packet, reply};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use super::*;

/// The number of the first packet: those of a request go past the last number.
const FIRST: u32 = u32::MAX - 1;
const WIRE: Binary = Binary { first: FIRST };

fn packet(opcode: u8, opaque: u32) -> cattlegrid_protocol::Packet {
    cattlegrid_protocol::Packet { opcode, opaque: opaque.to_be_bytes() }
}

/// The server's reply to a packet of this opcode and opaque.
fn answer(opcode: u8, opaque: u32, write: impl FnOnce(&mut Vec<u8>, cattlegrid_protocol::Packet)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out, packet(opcode, opaque));
    out
}

fn value(opcode: u8, opaque: u32, key: &[u8], flags: u32, data: &[u8]) -> Vec<u8> {
    answer(opcode, opaque, |out, packet| {
        reply::packet::value_header(out, packet, key, flags, data.len(), 9);
        out.extend_from_slice(data);
    })
}

fn status(opcode: u8, opaque: u32, status: PacketStatus) -> Vec<u8> {
    answer(opcode, opaque, |out, packet| reply::packet::error(out, packet, status))
}

fn done(opcode: u8, opaque: u32) -> Vec<u8> {
    answer(opcode, opaque, |out, packet| reply::packet::done(out, packet, 9))
}

/// The element that the whole reply gives. Each beginning of the reply must give the same element or wait for
/// more bytes.
fn read(keys: usize, reply: &[u8]) -> Result<Option<(Element<'_>, usize)>, Fault> {
    let whole = WIRE.read(keys, 0, reply);
    for cut in 0..reply.len() {
        match WIRE.read(keys, 0, &reply[..cut]) {
            Ok(None) => {}
            cut_off => assert_eq!(cut_off, whole, "cut at {cut}: {}", reply.escape_ascii()),
        }
    }
    whole
}

#[track_caller]
fn check_fault(keys: usize, reply: &[u8], part: &str) {
    let fault = read(keys, reply).expect_err(part).to_string();
    assert!(fault.contains(part), "{part}: {fault}");
}

#[test]
fn requests_as_the_server_reads_them() {
    let mut out = Vec::new();
    WIRE.get(b"a".chunks_exact(1), &mut out);
    WIRE.get(b"ab".chunks_exact(1), &mut out);
    WIRE.set(b"key", 5, 60, 3, &mut out);
    out.extend_from_slice(b"abc");
    WIRE.end_set(&mut out);
    let (mut rest, mut seen) = (&out[..], Vec::new());
    while !rest.is_empty() {
        let Parsed::Complete { request, used } = parse_packet(rest, &Limits::default()) else {
            panic!("{}", rest.escape_ascii())
        };
        seen.push(match request {
            Request::PacketGet(get) => format!("{:?} {}", get.packet, get.key.escape_ascii()),
            Request::MetaSet(set, block) => {
                let (flags, exptime) = (set.set.client_flags, set.set.exptime);
                format!("{:?} {flags} {exptime} {block:?}", set.packet)
            }
            other => format!("{other:?}"),
        });
        rest = &rest[used..];
    }
    let get = |opcode, opaque, key| format!("{:?} {key}", packet(opcode, opaque));
    let noop = Request::Packet(packet(opcode::NOOP, 0), cattlegrid_protocol::PacketCommand::Noop);
    let set = format!("{:?} 5 60 {:?}", Some(packet(opcode::SET, FIRST)), {
        cattlegrid_protocol::Block::Here(b"abc")
    });
    let expected = [
        get(opcode::GET, FIRST, "a"),
        get(opcode::GETKQ, FIRST, "a"),
        get(opcode::GETKQ, u32::MAX, "b"),
        format!("{noop:?}"),
        set,
    ];
    assert_eq!(seen, expected);
}

#[test]
fn the_reply_to_one_key() {
    let reply = value(opcode::GET, FIRST, b"k", 7, b"a\nb");
    let found = Element::Found { flags: 7, data: b"a\nb" };
    assert_eq!(read(1, &reply), Ok(Some((found, 31))));
    let two = [reply, status(opcode::GET, FIRST, PacketStatus::NotFound)].concat();
    assert_eq!(read(1, &two[31..]), Ok(Some((Element::Next(None), 33))));
    assert!(matches!(read(1, &two), Ok(Some((Element::Found { .. }, 31)))), "the next reply is left alone");
    let empty = value(opcode::GET, FIRST, b"k", u32::MAX, b"");
    assert_eq!(read(1, &empty), Ok(Some((Element::Found { flags: u32::MAX, data: b"" }, 28))));
}

#[test]
fn the_reply_to_several_keys() {
    let last = value(opcode::GETKQ, u32::MAX, b"k", 7, b"ab");
    let placed = Element::Placed { place: 1, key: b"k", flags: 7, data: b"ab" };
    assert_eq!(read(2, &last), Ok(Some((placed, 31))));
    assert_eq!(read(2, &done(opcode::NOOP, 0)), Ok(Some((Element::End, 24))));
    check_fault(2, &value(opcode::GETKQ, 0, b"k", 7, b"ab"), "opcode 0x0d instead of 0x0a");
    check_fault(2, &done(opcode::NOOP, u32::MAX), "opcode 0x0a instead of 0x0d");
    check_fault(3, &done(opcode::NOOP, 2), "opaque 2 instead of 4294967294 to 1");
    // A quiet get has no reply to a miss.
    check_fault(2, &status(opcode::GETKQ, FIRST, PacketStatus::NotFound), "status 0x01 Not found");
}

#[test]
fn the_reply_to_a_set() {
    assert_eq!(read(0, &done(opcode::SET, FIRST)), Ok(Some((Element::Stored, 24))));
    for refusal in REFUSALS {
        let reply = status(opcode::SET, FIRST, refusal);
        assert_eq!(read(0, &reply), Ok(Some((Element::Refused, reply.len()))), "{refusal:?}");
    }
    for (other, part) in [
        (PacketStatus::NotFound, "set was answered with \"status 0x01 Not found\""),
        (PacketStatus::NotStored, "status 0x05"),
        (PacketStatus::InvalidArguments, "status 0x04"),
        (PacketStatus::Unauthenticated, "status 0x20 Auth failure."),
        (PacketStatus::UnknownCommand, "status 0x81"),
    ] {
        check_fault(0, &status(opcode::SET, FIRST, other), part);
    }
    // A get is answered with a value or a miss, as in the text protocol.
    let busy = answer(opcode::GET, FIRST, |out, packet| {
        reply::packet::error_line(out, packet, reply::error::BUSY);
    });
    check_fault(1, &busy, "get was answered with \"status 0x85 SERVER_ERROR busy");
}

#[test]
fn headers_that_answer_something_else() {
    check_fault(1, &status(opcode::GET, 7, PacketStatus::NotFound), "opaque 7 instead of 4294967294 to");
    check_fault(0, &done(opcode::SET, FIRST.wrapping_sub(1)), "opaque 4294967293");
    check_fault(1, &done(opcode::SET, FIRST), "opcode 0x01 instead of 0x00");
    check_fault(1, &value(opcode::GETK, FIRST, b"k", 7, b"ab"), "opcode 0x0c instead of 0x00");
    let right = value(opcode::GET, FIRST, b"k", 7, b"ab");
    for (at, byte, part) in [
        (4, 31, "a body of 6 bytes with 31 of extras and 0 of key"),
        (4, 3, "3 of extras"),
        (3, 1, "1 of key"),
        (5, 1, "data type 1"),
        (8, 0xff, "a body of 4278190086 bytes"),
        (7, 0x81, "status 0x81"),
    ] {
        let mut wrong = right.clone();
        wrong[at] = byte;
        check_fault(1, &wrong, part);
    }
    let mut stored = done(opcode::SET, FIRST);
    stored[11] = 1;
    stored.push(b'x');
    check_fault(0, &stored, "a body of 1 bytes");
}

#[test]
fn replies_in_text() {
    let not_binary = "\"ERROR\" is not a packet: the server does not speak the binary protocol";
    for (reply, part) in [
        (&b"ERROR\r\n"[..], not_binary),
        (b"ERROR\r\nERROR\r\n", not_binary),
        (b"CLIENT_ERROR bad command line format\r\n", "does not speak the binary protocol"),
        (b"-ERR unknown command\r\n", "does not speak the binary protocol"),
        (b"ERROR Too many open connections\r\n", "get was answered with \"ERROR Too many open connections\""),
        (&[b'x'; TEXT_SHOWN], "get was answered with \"xxx"),
        (b"\x80\n", "get was answered with"),
    ] {
        check_fault(1, reply, part);
    }
    assert_eq!(read(1, b"ERROR\r"), Ok(None), "the line may go on");
}

/// Replies with some bytes changed: each start of one gives what the whole gives, or waits.
#[test]
fn any_reply_in_any_pieces() {
    let mut rng = SmallRng::seed_from_u64(1);
    let replies = [
        (0, done(opcode::SET, FIRST)),
        (0, status(opcode::SET, FIRST, PacketStatus::Busy)),
        (1, value(opcode::GET, FIRST, b"k", 7, b"a\nb")),
        (1, status(opcode::GET, FIRST, PacketStatus::NotFound)),
        (2, value(opcode::GETKQ, u32::MAX, b"key", 7, b"ab")),
        (2, done(opcode::NOOP, 0)),
    ];
    for _ in 0..20_000 {
        let (keys, mut reply) = replies[rng.random_range(0..replies.len())].clone();
        for _ in 0..rng.random_range(1..4) {
            let at = rng.random_range(0..reply.len());
            reply[at] = if rng.random() { rng.random_range(0..4) } else { rng.random() };
        }
        if let Ok(Some((_, used))) = read(keys, &reply) {
            assert!((HEADER_BYTES..=reply.len()).contains(&used));
        }
    }
}
