//! Properties of the binary grammar for any bytes: shared by the property tests and the fuzz target.

use cattlegrid_protocol::{
    Block, KEY_MAX, Limits, Packet, PacketStatus, Parsed, Refusal, RefusalCause, Request, parse_packet,
    parse_packet_apart,
};

/// The results of parsing a stream, in an order that must not depend on how it was split.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A request, printed, and its length.
    Request(String, usize),
    /// A refusal: its packet and status, bytes dropped in all, the key to invalidate.
    Refused(Option<(Packet, PacketStatus)>, u64, Option<Vec<u8>>),
    /// The stream ended in the middle of something.
    Partial,
    /// The connection was closed, with this error or none.
    Closed(Option<(Packet, PacketStatus)>),
}

/// A header with these lengths; `body` is what follows it.
pub(crate) fn packet(opcode: u8, cas: u64, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let body = extras.len() + key.len() + value.len();
    let mut out = vec![0x80, opcode];
    out.extend((key.len() as u16).to_be_bytes());
    out.extend([extras.len() as u8, 0, 0, 0]);
    out.extend((body as u32).to_be_bytes());
    out.extend(OPAQUE);
    out.extend(cas.to_be_bytes());
    [&out, extras, key, value].concat()
}

/// The opaque of all packets.
pub(crate) const OPAQUE: [u8; 4] = *b"wxyz";

/// Length of the extras that a command should have.
pub(crate) fn extras_of(opcode: u8) -> usize {
    match opcode {
        0x01..=0x03 | 0x11..=0x13 => 8,
        0x05 | 0x06 | 0x15 | 0x16 => 20,
        0x1c..=0x1e | 0x23 | 0x24 => 4,
        _ => 0,
    }
}

/// Feeds `stream` in the given chunks (the last one repeats), as a connection would.
pub(crate) fn drive(stream: &[u8], chunks: &[usize], limits: &Limits) -> Vec<Event> {
    let mut events = Vec::new();
    let (mut start, mut end, mut need, mut swallow) = (0, 0, 0, 0u64);
    let mut chunks = chunks.iter().copied();
    let mut chunk = usize::MAX;
    while end < stream.len() {
        chunk = chunks.next().unwrap_or(chunk).max(1);
        end = end.saturating_add(chunk).min(stream.len());
        loop {
            let dropped = swallow.min((end - start) as u64);
            start += usize::try_from(dropped).expect("at most what has arrived");
            swallow -= dropped;
            let input = &stream[start..end];
            // A connection asks again when what was needed is there.
            if input.is_empty() || input.len() < need {
                break;
            }
            match parse_packet(input, limits) {
                Parsed::Incomplete { need: more, block } => {
                    assert!(more > input.len(), "{more} of {}", input.len());
                    if let Some(refused) = block {
                        block_ok(&refused, input, more);
                        apart_ok(input, more, None, limits);
                    }
                    need = more;
                    break;
                }
                Parsed::Complete { request, used } => {
                    assert!((24..=input.len()).contains(&used));
                    walk(&request);
                    if matches!(request, Request::MetaSet(..)) {
                        apart_ok(input, used, Some(&request), limits);
                    }
                    events.push(Event::Request(format!("{request:?}"), used));
                    start += used;
                }
                Parsed::Refused(refused) => {
                    assert!((1..=input.len()).contains(&refused.used) && refused.reply.is_empty());
                    if refused.close {
                        events.push(Event::Closed(refused.packet));
                        return events;
                    }
                    let key = refused.invalidated().map(|key| key.bytes().to_vec());
                    assert!(refused.drops_old() || refused.token.is_some() || key.is_none());
                    events.push(Event::Refused(refused.packet, refused.used as u64 + refused.swallow, key));
                    start += refused.used;
                    swallow = refused.swallow;
                }
            }
            need = 0;
        }
    }
    if start < end || swallow > 0 {
        events.push(Event::Partial);
    }
    events
}

/// Checks that the results are the same whole, byte by byte and in other pieces. Returns them.
pub(crate) fn check(stream: &[u8], limits: &Limits) -> Vec<Event> {
    let whole = drive(stream, &[usize::MAX], limits);
    assert_eq!(drive(stream, &[1], limits), whole);
    assert_eq!(drive(stream, &[24, 1, 23, 2, 100, 5], limits), whole);
    assert_eq!(drive(stream, &[25, 31, 7], limits), whole);
    whole
}

/// A refusal while a value is incomplete drops the rest of it.
fn block_ok(refused: &Refusal<'_>, input: &[u8], need: usize) {
    assert_eq!((refused.used, refused.swallow), (input.len(), (need - input.len()) as u64));
    assert_eq!((refused.cause, refused.close), (RefusalCause::NoMemory, false));
    let (packet, status) = refused.packet.expect("it is a packet");
    assert_eq!((packet.opcode, status), (input[1], PacketStatus::OutOfMemory));
}

/// The packet at the front of `input`, `all` bytes long, is the same request when its value is elsewhere:
/// `whole`, if it is there.
fn apart_ok(input: &[u8], all: usize, whole: Option<&Request<'_>>, limits: &Limits) {
    let head = 24 + usize::from(input[4]) + usize::from(u16::from_be_bytes([input[2], input[3]]));
    let Parsed::Complete { mut request, used } = parse_packet_apart(&input[..head], limits) else {
        panic!("{:?}", &input[..head]);
    };
    let Request::MetaSet(_, data) = &mut request else { panic!("{request:?} has no value") };
    assert_eq!((used, *data), (head, Block::Apart(all - head)));
    if let Some(whole) = whole {
        *data = Block::Here(&input[head..all]);
        assert_eq!(request, *whole);
    }
}

/// Reads everything that a request borrows and checks its invariants.
fn walk(request: &Request<'_>) {
    let key = match request {
        Request::PacketGet(get) => get.key,
        Request::Touch(touch) => touch.key,
        Request::MetaSet(meta, data) => {
            assert!(data.here().is_some());
            meta.key.bytes()
        }
        Request::MetaDelete(meta) | Request::MetaArith(meta) => meta.key.bytes(),
        Request::Packet(..) => return,
        _ => panic!("not of a packet: {request:?}"),
    };
    assert!((1..=KEY_MAX).contains(&key.len()));
}
