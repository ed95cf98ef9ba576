use std::sync::Arc;

use cattlegrid_protocol::{Limits, Parsed, Request, parse};
use cattlegrid_store::{HugeValue, Memory};
use proptest::prelude::*;

use super::*;
use crate::parked::{ParkedForm, ReplyPart};
use crate::reply::get::{AskedKey, GetEnd};

/// How long a hurried request may still wait, in milliseconds.
const BEHIND_MS: u64 = 50;

/// A request that waits for this number of keys; its reply is its number in brackets, as [`shown`] prints it.
fn waits(request: u64, deadline_ms: u64, keys: u8) -> Box<ParkedRequest> {
    let line = format!("mg key O{request}\r\n");
    let Parsed::Complete { request: Request::MetaGet(meta), .. } = parse(line.as_bytes(), &Limits::default())
    else {
        panic!("{line:?}")
    };
    let part = ReplyPart::Key { slot: 0, asked: AskedKey::meta(&meta).to_owned(), verdict: None };
    let form = ParkedForm::Get { parts: vec![part], end: GetEnd::Nothing };
    let mut parked = ParkedRequest::new(request, deadline_ms, BEHIND_MS as u32, false, form);
    parked.set_open(keys);
    Box::new(parked)
}

fn shown(out: &Output) -> String {
    String::from_utf8_lossy(&out.bytes).replace("EN O", "[").replace("\r\n", "]")
}

fn text(text: &str) -> Output {
    Output { bytes: text.into(), ..Output::default() }
}

fn park(queue: &mut ReplyQueue, request: u64, deadline_ms: u64) {
    queue.park(waits(request, deadline_ms, 1), 10, 0);
}

fn done(parked: &mut ParkedRequest) {
    parked.set_open(0);
}

fn popped(queue: &mut ReplyQueue) -> (bool, String) {
    let mut out = Output::default();
    let answered = queue.pop_done(&mut out);
    (answered, shown(&out))
}

/// Bytes of their replies.
const READ_AHEAD_BYTES: usize = 1 << 10;
const READ_AHEAD: u64 = 64;

#[test]
fn a_finished_reply_waits_for_those_before_it() {
    let mut queue = ReplyQueue::default();
    queue.push(&mut text("a"), 0);
    park(&mut queue, 2, 400);
    queue.push(&mut text("b"), 0);
    queue.push(&mut text("c"), 0);
    park(&mut queue, 5, 400);
    assert_eq!((queue.front(), popped(&mut queue)), (2, (false, "a".to_owned())));
    assert!(queue.wake(5, 0, done));
    assert_eq!((queue.front(), popped(&mut queue)), (2, (false, String::new())));
    assert!(queue.wake(2, 0, done));
    assert_eq!((queue.front(), popped(&mut queue)), (0, (true, "[2]bc[5]".to_owned())));
    assert!(queue.is_empty());
    assert!(!queue.wake(2, 0, |_| unreachable!("it has left")));
}

#[test]
fn a_finished_reply_hurries_all_before_it_and_silence_none() {
    let mut queue = ReplyQueue::default();
    park(&mut queue, 1, 400);
    queue.push(&mut Output::default(), 10);
    park(&mut queue, 2, 300);
    assert_eq!(queue.next_deadline_ms(), Some(300));
    park(&mut queue, 3, 500);
    assert!(queue.wake(2, 100, done));
    assert_eq!(queue.next_deadline_ms(), Some(100 + BEHIND_MS), "the first is hurried");
    assert!(queue.wake(1, 120, done));
    assert_eq!(popped(&mut queue).1, "[1][2]");
    assert_eq!(queue.next_deadline_ms(), Some(500), "nothing is behind the third");
    queue.push(&mut text("x"), 200);
    queue.push(&mut text("y"), 230);
    assert_eq!(queue.next_deadline_ms(), Some(200 + BEHIND_MS), "the first of them counts");
}

#[test]
fn each_request_is_ended_once() {
    let mut queue = ReplyQueue::default();
    park(&mut queue, 1, 100);
    park(&mut queue, 2, 200);
    let mut ended = Vec::new();
    queue.expire(99, |parked| ended.push(parked.request()));
    queue.expire(100, |parked| ended.push(parked.request()));
    queue.expire(150, |parked| ended.push(parked.request()));
    assert_eq!(
        queue.next_deadline_ms(),
        Some(200),
        "what was ended has no deadline, though it is not done yet"
    );
    queue.release(150, |parked| ended.push(parked.request()));
    queue.release(150, |parked| ended.push(parked.request()));
    assert_eq!((ended, queue.next_deadline_ms()), (vec![1, 2], None));
    assert!(queue.wake(1, 160, done) && queue.wake(2, 160, done));
    assert_eq!(popped(&mut queue), (true, "[1][2]".to_owned()));
}

#[test]
fn it_is_full_by_commands_and_by_bytes() {
    let mut queue = ReplyQueue::default();
    assert!(!queue.is_full(u64::MAX, READ_AHEAD, READ_AHEAD_BYTES), "nothing waits");
    park(&mut queue, 7, 400);
    assert!(!queue.is_full(7 + READ_AHEAD - 1, READ_AHEAD, READ_AHEAD_BYTES));
    assert!(queue.is_full(7 + READ_AHEAD, READ_AHEAD, READ_AHEAD_BYTES));
    queue.push(&mut Output { bytes: vec![b'x'; READ_AHEAD_BYTES - 11], ..Output::default() }, 0);
    assert!(!queue.is_full(7, READ_AHEAD, READ_AHEAD_BYTES));
    queue.push(&mut text("x"), 0);
    assert!(queue.is_full(7, READ_AHEAD, READ_AHEAD_BYTES), "the line of the request counts too");
    park(&mut queue, 20, 400);
    assert!(queue.wake(7, 0, done));
    assert!(popped(&mut queue).0);
    assert!(
        !queue.is_full(7 + READ_AHEAD, READ_AHEAD, READ_AHEAD_BYTES),
        "counted from the next one that waits"
    );
}

#[test]
fn a_blocked_queue_is_full_until_a_request_is_answered() {
    let mut queue = ReplyQueue::default();
    queue.push(&mut text("a"), 0);
    park(&mut queue, 1, 400);
    park(&mut queue, 2, 400);
    queue.set_blocked(true);
    assert_eq!(popped(&mut queue), (false, "a".to_owned()));
    assert!(queue.is_blocked() && queue.is_full(2, READ_AHEAD, READ_AHEAD_BYTES));
    assert!(queue.wake(1, 0, done));
    assert!(popped(&mut queue).0);
    assert!(!queue.is_blocked() && !queue.is_full(2, READ_AHEAD, READ_AHEAD_BYTES));
}

#[test]
fn huge_values_keep_their_place() {
    let memory = Memory::new(4 << 20).unwrap();
    let huge = Arc::new(HugeValue::new(&memory, &[&vec![b'v'; 300 << 10]]).unwrap());
    let mut queue = ReplyQueue::default();
    park(&mut queue, 1, 400);
    queue.push(&mut text("ab"), 0);
    let value = Output { bytes: b"cd".into(), huge: vec![(1, Arc::clone(&huge))] };
    let mut out = value;
    queue.push(&mut out, 0);
    assert!(out.is_empty());
    assert!(queue.is_full(1, READ_AHEAD, READ_AHEAD_BYTES), "what is kept from being freed counts");
    assert!(queue.wake(1, 0, done));
    assert!(queue.pop_done(&mut out));
    assert_eq!(shown(&out), "[1]abcd");
    assert_eq!(out.huge.iter().map(|(at, _)| *at).collect::<Vec<_>>(), ["EN O1\r\nabc".len()]);
}

#[derive(Debug, Clone)]
enum Op {
    Push(usize),
    Park { keys: u8, hold_ms: u64 },
    Wake(prop::sample::Index),
    Expire(u64),
    Release,
    Pop,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0_usize..4).prop_map(Op::Push),
        4 => (0_u8..4, 1_u64..200).prop_map(|(keys, hold_ms)| Op::Park { keys, hold_ms }),
        4 => any::<prop::sample::Index>().prop_map(Op::Wake),
        2 => (0_u64..120).prop_map(Op::Expire),
        1 => Just(Op::Release),
        2 => Just(Op::Pop),
    ]
}

/// A reply of the model: its text, and for a request that waits its number and its open keys.
#[derive(Debug, Clone)]
struct Reply {
    text: String,
    request: u64,
    open: u8,
    deadline_ms: u64,
    hurried: bool,
    ended: bool,
}

proptest! {
    /// The model is a plain list of all replies, from which the finished ones are removed at the front.
    #[test]
    fn replies_leave_in_order_and_once(ops in prop::collection::vec(op(), 1..80)) {
        let mut queue = ReplyQueue::default();
        let mut model: Vec<Reply> = Vec::new();
        let (mut now, mut request) = (1000, 0);
        let mut left = (String::new(), String::new());
        for op in ops {
            match op {
                Op::Push(len) => {
                    request += 1;
                    let said: String = format!("{request} ").repeat(len);
                    queue.push(&mut text(&said), now);
                    let reply = Reply { text: said, request: 0, open: 0, deadline_ms: 0, hurried: true, ended: true };
                    model.push(reply);
                }
                Op::Park { keys, hold_ms } => {
                    request += 1;
                    let deadline_ms = now + hold_ms;
                    queue.park(waits(request, deadline_ms, keys), 1, now);
                    let text = format!("[{request}]");
                    model.push(Reply { text, request, open: keys, deadline_ms, hurried: false, ended: false });
                }
                Op::Wake(index) if request > 0 => {
                    let which = index.index(request as usize) as u64 + 1;
                    let known = model.iter_mut().find(|reply| reply.request == which);
                    let found = queue.wake(which, now, |parked| parked.set_open(parked.open().saturating_sub(1)));
                    prop_assert_eq!(found, known.is_some());
                    if let Some(reply) = known {
                        reply.open = reply.open.saturating_sub(1);
                    }
                }
                Op::Wake(_) => {}
                Op::Expire(ms) => {
                    now += ms;
                    let mut ended = Vec::new();
                    // An odd request is answered by this, an even one by a wake that is on its way.
                    queue.expire(now, |parked| {
                        ended.push(parked.request());
                        parked.set_open(parked.open() * u8::from(parked.request() % 2 == 0));
                    });
                    let due = |reply: &Reply| reply.deadline_ms <= now;
                    prop_assert_eq!(ended, end(&mut model, due));
                }
                Op::Release => {
                    let mut ended = Vec::new();
                    queue.release(now, |parked| {
                        ended.push(parked.request());
                        parked.set_open(parked.open() * u8::from(parked.request() % 2 == 0));
                    });
                    prop_assert_eq!(ended, end(&mut model, |_| true));
                }
                Op::Pop => {
                    let mut out = Output::default();
                    queue.pop_done(&mut out);
                    left.0 += &shown(&out);
                    let open = model.iter().position(|reply| reply.open > 0).unwrap_or(model.len());
                    left.1.extend(model.drain(..open).map(|reply| reply.text));
                    prop_assert_eq!(queue.is_empty(), model.is_empty());
                }
            }
            for at in 0..model.len() {
                let behind = model[at + 1..].iter().any(|reply| reply.open == 0 && !reply.text.is_empty());
                if behind && !model[at].hurried {
                    model[at].hurried = true;
                    model[at].deadline_ms = model[at].deadline_ms.min(now + BEHIND_MS);
                }
            }
            let waiting = || model.iter().filter(|reply| reply.open > 0);
            prop_assert_eq!(queue.front(), waiting().map(|reply| reply.request).next().unwrap_or(0));
            let next = waiting().filter(|reply| !reply.ended).map(|reply| reply.deadline_ms).min();
            prop_assert_eq!(queue.next_deadline_ms(), next);
            let bytes = |reply: &Reply| if reply.request > 0 { 1 } else { reply.text.len() };
            prop_assert_eq!(queue.bytes, model.iter().map(bytes).sum::<usize>());
            prop_assert_eq!(&left.0, &left.1);
        }
    }
}

/// Ends the requests of the model that wait, are not ended and `fit`, as the queue must; returns their
/// numbers.
fn end(model: &mut [Reply], fit: impl Fn(&Reply) -> bool) -> Vec<u64> {
    let mut ended = Vec::new();
    for reply in model.iter_mut().filter(|reply| reply.open > 0 && !reply.ended) {
        if fit(reply) {
            reply.ended = true;
            reply.open *= u8::from(reply.request % 2 == 0);
            ended.push(reply.request);
        }
    }
    ended
}
