//! The binary grammar: which packets are requests, how the others are refused, and what replies look like.

use cattlegrid_protocol::{
    Admin, Block, Limits, Packet, PacketCommand, PacketStatus, Parsed, Refusal, RefusalCause, Request,
    opcode, parse_packet, reply,
};
use proptest::prelude::*;

use crate::packet_stream::{OPAQUE, check, extras_of, packet};

fn limits() -> Limits {
    Limits::default()
}

fn request(input: &[u8]) -> Request<'_> {
    match parse_packet(input, &limits()) {
        Parsed::Complete { request, used } => {
            assert_eq!(used, input.len());
            request
        }
        other => panic!("{other:?}"),
    }
}

fn refused(input: &[u8]) -> Refusal<'_> {
    match parse_packet(input, &limits()) {
        Parsed::Refused(refused) => refused,
        other => panic!("{other:?}"),
    }
}

/// The status of a packet after which the connection is closed.
fn closed(input: &[u8]) -> PacketStatus {
    let refused = refused(input);
    assert!(refused.close && refused.used == input.len() && refused.swallow == 0 && refused.reply.is_empty());
    refused.packet.expect("it is a packet").1
}

#[test]
fn stores() {
    let extras = [0, 0, 0, 9, 0xff, 0xff, 0xff, 0xff];
    for (op, cas, letters, mode) in [
        (opcode::SET, 0, "MFT", b'S'),
        (opcode::SETQ, 0, "MFTq", b'S'),
        (opcode::ADD, 0, "MFT", b'E'),
        (opcode::ADDQ, 7, "MFTqC", b'S'),
        (opcode::REPLACE, 0, "MFT", b'R'),
        (opcode::REPLACEQ, 7, "MFTqC", b'S'),
    ] {
        let input = packet(op, cas, &extras, b"k\0\r\n", b"value");
        let Request::MetaSet(meta, Block::Here(b"value")) = request(&input) else { panic!("{op}") };
        assert_eq!(meta.key.bytes(), b"k\0\r\n");
        assert_eq!(meta.packet, Some(Packet { opcode: op, opaque: OPAQUE }));
        assert_eq!((meta.set.mode, meta.set.client_flags, meta.set.compare_cas), (mode, 9, cas));
        assert_eq!(meta.set.exptime, i64::from(u32::MAX), "the year 2106");
        assert_eq!(meta.set.letters.count_ones() as usize, letters.len());
        assert!(letters.bytes().all(|letter| meta.set.has(letter)), "{op}");
    }
    for (op, mode) in [(opcode::APPEND, b'A'), (opcode::APPENDQ, b'A'), (opcode::PREPEND, b'P')] {
        let input = packet(op, 3, &[], b"k", b"");
        let Request::MetaSet(meta, Block::Here(b"")) = request(&input) else { panic!("{op}") };
        assert!(meta.set.mode == mode && meta.set.has(b'C') && meta.set.compare_cas == 3);
    }
}

#[test]
fn numbers_and_times() {
    let extras = [[0, 0, 0, 0, 0, 0, 0, 3], [0, 0, 0, 0, 0, 0, 1, 0]].concat();
    for (exptime, vivifies) in [([0, 0, 0, 100], true), ([0xff; 4], false), ([0xff, 0xff, 0xff, 0xfe], true)]
    {
        let input = packet(opcode::DECREMENT, 0, &[&extras[..], &exptime].concat(), b"n", b"");
        let Request::MetaArith(meta) = request(&input) else { panic!() };
        assert_eq!((meta.set.delta, meta.set.mode, meta.set.has(b'N')), (3, b'D', vivifies));
        assert!(
            !vivifies || meta.set.initial == 256 && meta.set.vivify == i64::from(u32::from_be_bytes(exptime))
        );
    }
    let input = packet(opcode::GATKQ, 0, &[0, 0, 0, 60], b"k", b"");
    let Request::PacketGet(get) = request(&input) else { panic!() };
    assert!(get.exptime == Some(60) && get.packet.is_quiet() && get.packet.returns_key());
    let input = packet(opcode::TOUCH, 0, &[0xff; 4], b"k", b"");
    let Request::Touch(touch) = request(&input) else { panic!() };
    assert!(touch.exptime == i64::from(u32::MAX) && touch.packet.is_some());
    let input = packet(opcode::FLUSHQ, 0, &[0, 0, 0, 60], b"", b"");
    let Request::Packet(_, PacketCommand::Admin(admin)) = request(&input) else { panic!() };
    assert_eq!(admin, Admin::FlushAll { delay: 60, noreply: true });
}

#[test]
fn lengths_that_are_not_those_of_the_command_close() {
    use PacketStatus::{InvalidArguments, UnknownCommand};
    for op in 0..=0x24 {
        let known = !matches!(op, 0x1b | 0x1f);
        let mut shorter = packet(op, 0, &[], b"key", b"");
        shorter[11] -= 1;
        assert_eq!(closed(&shorter), UnknownCommand, "{op:#x}");
        let long = packet(op, 0, &[], &[b'k'; 251], b"");
        assert_eq!(closed(&long), InvalidArguments, "{op:#x}");
        let mut huge = packet(op, 0, &[], b"key", b"");
        huge[8..12].copy_from_slice(&((1_u32 << 30) + 1).to_be_bytes());
        assert_eq!(closed(&huge), InvalidArguments, "{op:#x}");
        if known {
            assert_eq!(closed(&packet(op, 0, &[0; 9], b"key", b"")), InvalidArguments, "{op:#x}");
        }
    }
    for op in [opcode::GET, opcode::DELETE, opcode::TOUCH, opcode::INCREMENT, opcode::SET, opcode::APPEND] {
        let extras: &[u8] = match op {
            opcode::SET => &[0; 8],
            opcode::TOUCH => &[0; 4],
            opcode::INCREMENT => &[0; 20],
            _ => &[],
        };
        assert_eq!(closed(&packet(op, 0, extras, b"", b"")), InvalidArguments, "{op:#x} without a key");
        if !matches!(op, opcode::SET | opcode::APPEND) {
            // memcached takes the rest of it for the next packet.
            assert_eq!(closed(&packet(op, 0, extras, b"k", b"v")), InvalidArguments, "{op:#x}");
        }
    }
}

#[test]
fn the_body_of_an_unknown_command_is_dropped() {
    for op in [0x1b, 0x1f, 0x25, 0x30, 0x3c, 0x40, 0xff] {
        let input = packet(op, 0, &[1; 8], b"key", b"value");
        let unknown = Some((Packet { opcode: op, opaque: OPAQUE }, PacketStatus::UnknownCommand));
        let all = refused(&input);
        assert!(!all.close && all.used == input.len() && all.swallow == 0 && all.packet == unknown);
        let part = refused(&input[..input.len() - 2]);
        assert!(!part.close && part.used == input.len() - 2 && part.swallow == 2);
    }
}

#[test]
fn a_store_that_is_too_large_or_finds_no_memory() {
    let limits = Limits { max_item_bytes: 200, ..limits() };
    let input = packet(opcode::SET, 9, &[0; 8], b"key", &[b'v'; 200]);
    let Parsed::Refused(refused) = parse_packet(&input[..100], &limits) else { panic!() };
    assert_eq!((refused.used, refused.swallow, refused.close), (100, input.len() as u64 - 100, false));
    assert_eq!(refused.packet.unwrap().1, PacketStatus::TooLarge);
    assert_eq!(
        (refused.cause, refused.invalidate, refused.token),
        (RefusalCause::TooLarge, Some(&b"key"[..]), Some(9))
    );
    assert!(refused.drops_old());
    let input = packet(opcode::REPLACE, 9, &[0; 8], b"key", &[b'v'; 200]);
    let Parsed::Refused(replace) = parse_packet(&input, &limits) else { panic!() };
    assert!(replace.invalidate.is_some() && !replace.drops_old(), "its lease ends, the value stays");
    let input = packet(opcode::ADD, 0, &[0; 8], b"key", &[b'v'; 100]);
    let Parsed::Incomplete { need, block: Some(refused) } = parse_packet(&input[..50], &limits) else {
        panic!()
    };
    assert_eq!((need, refused.used, refused.swallow), (input.len(), 50, input.len() as u64 - 50));
    assert_eq!((refused.packet.unwrap().1, refused.invalidate), (PacketStatus::OutOfMemory, None));
}

#[test]
fn a_bad_magic_closes_without_a_word() {
    for magic in [0x00, 0x81, b'g'] {
        let mut input = packet(opcode::NOOP, 0, &[], b"", b"");
        input[0] = magic;
        let refused = refused(&input);
        assert!(refused.close && refused.packet.is_none() && refused.reply.is_empty());
    }
}

#[test]
fn replies() {
    let written = |write: &dyn Fn(&mut Vec<u8>, Packet), opcode| {
        let mut out = Vec::new();
        write(&mut out, Packet { opcode, opaque: OPAQUE });
        out
    };
    let value = |out: &mut Vec<u8>, packet| {
        reply::packet::value_header(out, packet, b"key", 0x0102_0304, 5, 0x0506);
    };
    assert_eq!(
        written(&value, opcode::GETKQ),
        b"\x81\x0d\0\x03\x04\0\0\0\0\0\0\x0cwxyz\0\0\0\0\0\0\x05\x06\x01\x02\x03\x04key"
    );
    assert_eq!(written(&value, opcode::GET)[..12], *b"\x81\0\0\0\x04\0\0\0\0\0\0\x09");
    let miss = |out: &mut Vec<u8>, packet| reply::packet::miss(out, packet, b"key");
    assert_eq!(written(&miss, opcode::GETK), b"\x81\x0c\0\x03\0\0\0\x01\0\0\0\x03wxyz\0\0\0\0\0\0\0\0key");
    assert_eq!(written(&miss, opcode::GET), b"\x81\0\0\0\0\0\0\x01\0\0\0\x09wxyz\0\0\0\0\0\0\0\0Not found");
    assert_eq!(written(&miss, opcode::GATQ), b"");
    let sum = |out: &mut Vec<u8>, packet| reply::packet::sum(out, packet, 258, 1);
    assert!(written(&sum, opcode::INCREMENT).ends_with(b"\x01\0\0\0\0\0\0\x01\x02"));
    assert_eq!(written(&sum, opcode::INCREMENTQ), b"");
    for (line, status, text) in [
        (reply::error::BUSY, 0x85, reply::error::BUSY),
        (reply::error::OUT_OF_MEMORY, 0x82, "Out of memory"),
        (reply::error::NOT_NUMERIC, 0x06, "Non-numeric server-side value for incr or decr"),
        ("CLIENT_ERROR take: amount is no number", 0x04, "CLIENT_ERROR take: amount is no number"),
        ("SERVER_ERROR take: failed", 0x84, "SERVER_ERROR take: failed"),
    ] {
        let out = written(&|out, packet| reply::packet::error_line(out, packet, line), opcode::GETQ);
        assert_eq!((&out[6..8], &out[24..]), (&[0, status][..], text.as_bytes()), "{line}");
    }
}

prop_compose! {
    /// A packet, mostly of a command with the lengths that it should have.
    fn some_packet()(
        op in prop_oneof![8 => 0_u8..=0x24, 1 => any::<u8>()],
        cas in prop_oneof![Just(0), any::<u64>()],
        extras in prop_oneof![
            6 => Just(None), 1 => proptest::collection::vec(any::<u8>(), 0..25).prop_map(Some)
        ],
        key in proptest::collection::vec(any::<u8>(), 0..20),
        value in prop_oneof![Just(vec![]), proptest::collection::vec(any::<u8>(), 0..40)],
    ) -> Vec<u8> {
        let extras = extras.unwrap_or_else(|| vec![1; extras_of(op)]);
        packet(op, cas, &extras, &key, &value)
    }
}

proptest! {
    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200), magic: bool) {
        let mut bytes = bytes;
        if magic && !bytes.is_empty() {
            bytes[0] = 0x80;
        }
        check(&bytes, &limits());
    }

    #[test]
    fn streams(packets in proptest::collection::vec(some_packet(), 0..8), cut in 0_usize..40) {
        let mut stream = packets.concat();
        stream.truncate(stream.len().saturating_sub(cut));
        check(&stream, &Limits { max_item_bytes: 110, ..limits() });
    }

    /// What a packet is does not depend on how much of it has come, and more is asked for until it is known.
    #[test]
    fn pieces(input in some_packet(), behind in proptest::collection::vec(any::<u8>(), 0..30)) {
        let whole = parse_packet(&input, &limits());
        for len in 0..input.len() {
            match (parse_packet(&input[..len], &limits()), &whole) {
                (Parsed::Incomplete { need, block }, _) => {
                    assert!(need > len && need <= input.len(), "{need} of {}", input.len());
                    if let Some(refused) = block {
                        assert_eq!(refused.used as u64 + refused.swallow, input.len() as u64);
                        let Parsed::Complete { request: Request::MetaSet(..), .. } = whole else { panic!("{whole:?}") };
                    }
                }
                (Parsed::Refused(early), Parsed::Refused(late)) => {
                    assert_eq!((early.packet, early.close), (late.packet, late.close));
                    let dropped = early.used as u64 + early.swallow;
                    assert!(early.close || dropped == late.used as u64 + late.swallow);
                }
                (part, _) => panic!("{part:?} of {whole:?}"),
            }
        }
        let more = [&input[..], &behind].concat();
        match (parse_packet(&more, &limits()), whole) {
            (Parsed::Refused(a), Parsed::Refused(b)) => assert_eq!((a.packet, a.close), (b.packet, b.close)),
            (a, b) => assert_eq!(a, b),
        }
    }
}
