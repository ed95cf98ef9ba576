//! The test vectors of `docs/worker-protocol.md`, written and read.

use std::collections::BTreeMap;

use cattlegrid_worker::List;
use cattlegrid_worker::claim::Claims;
use cattlegrid_worker::frame::{FLAG_MORE, FLAG_RETRYABLE, HEADER_LEN, Kind, put_frame, take_frame};
use cattlegrid_worker::list::put_list;
use cattlegrid_worker::message::{ErrorBody, Hello, Init, JobBody};

/// A block of the page.
fn block(name: &str) -> &'static str {
    let page = include_str!("../../../../docs/worker-protocol.md");
    let rest = page.split_once(&format!("```{name}\n")).expect("a block").1;
    rest.split_once("```").expect("its end").0
}

fn vectors() -> BTreeMap<String, Vec<u8>> {
    let block = block("vectors");
    let bytes = |hex: &str| -> Result<Vec<u8>, std::num::ParseIntError> {
        (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16)).collect()
    };
    let line = |line: &str| {
        let (name, hex) = line.split_once(' ')?;
        Some((name.to_owned(), bytes(hex.trim()).ok()?))
    };
    block.lines().map(|text| line(text).expect("name and hex")).collect()
}

fn frame(kind: Kind, flags: u8, id: u64, body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    put_frame(&mut out, kind, flags, id, body);
    out
}

fn list(parts: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    put_list(&mut out, parts);
    out
}

#[test]
fn what_is_written_is_what_the_page_says() {
    let mut ours = BTreeMap::new();
    let mut say = |name: &str, bytes: Vec<u8>| ours.insert(name.to_owned(), bytes);
    say("list-empty", list(&[]));
    say("list-two", list(&[b"key", b""]));
    say("list-long", list(&[&[b'x'; 200]]));
    let mut out = Vec::new();
    let mut hello = Hello {
        version: 1,
        page: true,
        claims: false,
        batches: false,
        pid: 4242,
        concurrency: 8,
        max_frame: 1 << 26,
        sdk: "test/1".to_owned(),
    };
    hello.put(&mut out);
    say("hello", out);
    let mut out = Vec::new();
    hello.claims = true;
    hello.put(&mut out);
    say("hello-claims", out);
    let mut out = Vec::new();
    hello.batches = true;
    hello.put(&mut out);
    say("hello-batches", out);
    let mut out = Vec::new();
    Init { max_frame: 1 << 20, generation: 3, worker: 7, config: b"config" }.put(&mut out);
    say("init", out);
    for (name, flags) in [("job", 0), ("job-more", FLAG_MORE)] {
        say(
            name,
            frame(Kind::Job, flags, 0x0102_0304_0506_0708, |out| {
                out.extend_from_slice(&JobBody::prefix(1500, 1));
                put_list(out, &[&b"thumb"[..], &[0xff, 0]]);
            }),
        );
    }
    for (name, kind, id) in [
        ("cancel", Kind::Cancel, 9),
        ("retire", Kind::Retire, 0),
        ("ping", Kind::Ping, 5),
        ("pong", Kind::Pong, 5),
        ("ready", Kind::Ready, 0),
        ("leave", Kind::Leave, 0),
        ("skipped", Kind::Skipped, 9),
    ] {
        say(name, frame(kind, 0, id, |_| {}));
    }
    say("result", frame(Kind::Result, 0, 9, |out| put_list(out, &[b"ok"])));
    say("result-more", frame(Kind::Result, FLAG_MORE, 9, |out| put_list(out, &[b"part"])));
    let mut out = Vec::new();
    let [code, message, detail] = ["code", "message", "detail"].map(str::to_owned);
    ErrorBody { code, message, detail, retryable: true }.put(&mut out, 9);
    say("error", out);
    say("event", frame(Kind::Event, 0, 0, |out| put_list(out, &[b"hello", b"world"])));
    say("progress", frame(Kind::Progress, 0, 9, |out| out.extend_from_slice(b"50%")));
    say("log", frame(Kind::Log, 0, 0, |out| out.extend_from_slice(b"\x02careful")));
    assert_eq!(ours, vectors());
}

#[test]
fn what_the_page_says_is_read() {
    let vectors = vectors();
    for (name, bytes) in vectors.iter().filter(|(name, _)| !name.starts_with("list")) {
        let (header, body, rest) = take_frame(bytes, 1 << 20).expect(name).expect(name);
        assert!(rest.is_empty() && body.len() == bytes.len() - HEADER_LEN, "{name}");
        assert_eq!(format!("{:?}", header.kind).to_lowercase(), name.split('-').next().expect("a word"));
    }
    let hello = |name: &str| Hello::parse(&vectors[name][HEADER_LEN..]).expect("a worker");
    assert!(hello("hello-batches").batches && !hello("hello-claims").batches);
    let job = JobBody::parse(&vectors["job"][HEADER_LEN..]).expect("a job");
    assert_eq!((job.deadline_ms, job.attempt, job.args.get(1)), (1500, 1, Some(&[0xff, 0][..])));
    let error = ErrorBody::parse(FLAG_RETRYABLE, &vectors["error"][HEADER_LEN..]).expect("an error");
    assert!(error.retryable && error.detail == "detail");
    assert_eq!(List::parse(&vectors["list-long"]).expect("a list").get(0).map(<[u8]>::len), Some(200));
}

/// Each line: the word `taken`, the numbers that a worker claims, what `begun` is then, and how many it has
/// to skip.
#[test]
fn claims_are_as_the_page_says() {
    let mut lines = 0;
    for line in block("claims").lines() {
        let words: Vec<u64> = line.split_whitespace().map(|word| word.parse().expect("a number")).collect();
        let [taken, start, end, begun, skipped] = words[..] else { panic!("five numbers: {line}") };
        let claims = Claims::new();
        claims.take_back(taken);
        let own = claims.claim(start..end);
        assert_eq!((claims.begun(), own.start - start, own.end), (begun, skipped, end), "{line}");
        lines += 1;
    }
    assert!(lines >= 18);
}
