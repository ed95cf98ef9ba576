//! Properties of the parser for any bytes: shared by the property tests, the soak test and the fuzz targets.

use cattlegrid_protocol::reply::error;
use cattlegrid_protocol::{
    Block, Limits, Parsed, Refusal, RefusalCause, Request, Store, parse, parse_apart, parse_from,
};

/// The results of parsing a stream, in an order that must not depend on how it was split.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A request, printed, and its length.
    Request(String, usize),
    /// A refusal: reply, bytes dropped in all, the key to invalidate.
    Refused(&'static str, u64, Option<String>),
    /// The stream ended in the middle of something.
    Partial,
    /// The connection was closed, with this reply.
    Closed(&'static str),
}

/// Limits under which little input reaches all branches.
pub(crate) const LIMITS: Limits =
    Limits { max_item_bytes: 4096, max_get_line_bytes: 8192, debugtime: true, extensions: false };

/// Feeds `stream` in the given chunks (the last one repeats), as a connection would.
pub(crate) fn drive(stream: &[u8], chunks: &[usize], limits: &Limits) -> Vec<Event> {
    let mut events = Vec::new();
    let (mut start, mut end, mut scanned, mut swallow) = (0, 0, 0, 0u64);
    let mut chunks = chunks.iter().copied();
    let mut chunk = usize::MAX;
    while end < stream.len() {
        chunk = chunks.next().unwrap_or(chunk).max(1);
        end = end.saturating_add(chunk).min(stream.len());
        loop {
            let dropped = swallow.min((end - start) as u64);
            start += usize::try_from(dropped).expect("at most what has arrived");
            swallow -= dropped;
            if start == end {
                scanned = 0;
                break;
            }
            let input = &stream[start..end];
            match parse_from(input, scanned, limits) {
                Parsed::Incomplete { need, block } => {
                    assert!(need > input.len(), "{need} of {}", input.len());
                    if let Some(refused) = block {
                        block_ok(&refused, input, need, limits);
                        apart_ok(input, need, None, limits);
                    }
                    scanned = input.len();
                    break;
                }
                Parsed::Complete { request, used } => {
                    assert!((1..=input.len()).contains(&used));
                    walk(&request);
                    if let Request::Store(Store { data, .. }) | Request::MetaSet(_, data) = &request {
                        assert!(data.here().is_some());
                        apart_ok(input, used, Some(&request), limits);
                    }
                    events.push(Event::Request(format!("{request:?}"), used));
                    start += used;
                }
                Parsed::Refused(refused) => {
                    assert!((1..=input.len()).contains(&refused.used));
                    if refused.close {
                        events.push(Event::Closed(refused.reply));
                        return events;
                    }
                    let key = refused.invalidated().map(|key| format!("{:?}", key.bytes()));
                    assert_eq!(key.is_some(), refused.invalidate.is_some());
                    events.push(Event::Refused(refused.reply, refused.used as u64 + refused.swallow, key));
                    start += refused.used;
                    swallow = refused.swallow;
                }
            }
            scanned = 0;
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
    assert_eq!(drive(stream, &[3, 1, 17, 2, 100, 5], limits), whole);
    assert_eq!(drive(stream, &[2049, 1], limits), whole);
    whole
}

/// As [`check`], and at every single split.
pub(crate) fn check_splits(stream: &[u8], limits: &Limits) {
    let whole = check(stream, limits);
    for split in 1..stream.len() {
        assert_eq!(drive(stream, &[split, usize::MAX], limits), whole, "split at {split}");
    }
}

/// Incomplete input needs exactly the missing bytes of a data block.
pub(crate) fn check_need(request: &[u8], line: usize, limits: &Limits) {
    for len in 0..request.len() {
        let Parsed::Incomplete { need, block } = parse(&request[..len], limits) else {
            assert_eq!(len, 0, "{:?}", &request[..len]);
            continue;
        };
        assert_eq!(need, if len < line { len + 1 } else { request.len() });
        assert_eq!(block.is_some(), len >= line);
    }
}

/// A refusal while a data block is incomplete drops the rest of it, and answers as for a whole line with a
/// value that is too large.
fn block_ok(refused: &Refusal<'_>, input: &[u8], need: usize, limits: &Limits) {
    assert_eq!((refused.used, refused.swallow), (input.len(), (need - input.len()) as u64));
    assert_eq!((refused.cause, refused.close), (RefusalCause::NoMemory, false));
    assert!(refused.reply.is_empty() || refused.reply == error::OUT_OF_MEMORY);
    let small = Limits { max_item_bytes: 0, ..*limits };
    let Parsed::Refused(too_large) = parse(input, &small) else {
        panic!("a store that fits nowhere: {input:?}");
    };
    assert_eq!(too_large.cause, RefusalCause::TooLarge);
    assert_eq!(too_large.reply.is_empty(), refused.reply.is_empty());
    let same = Refusal { reply: too_large.reply, cause: RefusalCause::TooLarge, ..refused.clone() };
    assert_eq!(same, too_large);
}

/// The line at the front of `input`, whose command with its data block is `all` bytes long, is the same
/// request when the block is elsewhere: `whole`, if the block is there.
fn apart_ok(input: &[u8], all: usize, whole: Option<&Request<'_>>, limits: &Limits) {
    let line = input.iter().position(|byte| *byte == b'\n').expect("the line is whole") + 1;
    let len = all - line - 2;
    let Parsed::Complete { mut request, used } = parse_apart(&input[..line], true, limits) else {
        panic!("{:?}", &input[..line]);
    };
    assert_eq!(used, line);
    let (Request::Store(Store { data, .. }) | Request::MetaSet(_, data)) = &mut request else {
        panic!("{request:?} has no block");
    };
    assert_eq!((*data, data.len(), data.here()), (Block::Apart(len), len, None));
    if let Some(whole) = whole {
        *data = Block::Here(&input[line..line + len]);
        assert_eq!(request, *whole);
    }
    let mut broken = input[..line].to_vec();
    broken.resize(all, b'x');
    let (Parsed::Refused(apart), Parsed::Refused(here)) =
        (parse_apart(&input[..line], false, limits), parse(&broken, limits))
    else {
        panic!("{:?} without an end", &input[..line]);
    };
    assert_eq!(apart, Refusal { used: line, ..here });
}

/// Reads everything that a request borrows and checks its invariants.
fn walk(request: &Request<'_>) {
    let key = match request {
        Request::Get(get) => {
            assert!(get.keys.clone().count() > 0);
            for key in get.keys.clone() {
                key_ok(key.expect("long keys are refused"));
            }
            return;
        }
        Request::Store(store) => store.key,
        Request::Arith(arith) => arith.key,
        Request::Touch(touch) => touch.key,
        Request::Delete(delete) => delete.key,
        Request::MetaGet(meta)
        | Request::MetaDelete(meta)
        | Request::MetaArith(meta)
        | Request::MetaSet(meta, _) => {
            let mut letters = 0;
            for token in meta.flags {
                assert!(meta.set.has(token[0]));
                letters += 1;
            }
            assert_eq!(meta.set.letters.count_ones(), letters);
            assert_eq!(meta.set.has(b'b'), meta.key.is_binary());
            meta.key.bytes()
        }
        Request::MetaDebug(key) => key.bytes(),
        Request::MetaNoop | Request::Admin(_) => return,
        Request::PacketGet(_) | Request::Packet(..) => panic!("a line is no packet: {request:?}"),
    };
    if matches!(request, Request::Store(_) | Request::Arith(_) | Request::Touch(_) | Request::Delete(_)) {
        key_ok(key);
    }
    assert!((1..=250).contains(&key.len()));
}

fn key_ok(key: &[u8]) {
    assert!((1..=250).contains(&key.len()));
    assert!(!key.contains(&b' ') && !key.contains(&b'\n'));
}
