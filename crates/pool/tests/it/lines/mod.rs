//! Properties of the lines of JSON between a parent and a worker without an SDK, for any bytes and for lines
//! drawn from a grammar.
//!
//! * No bytes make the reader panic. A line is a few valid frames or an error of one short line.
//! * The frames, and the error that ends them, are the same however the lines are split, and at most a
//!   line of the agreed size is kept between two reads. A longer line is skipped.
//! * A parent writes one line each time; a worker that sends the same texts back is understood.

use std::collections::BTreeMap;

use cattlegrid_worker::List;
use cattlegrid_worker::frame::{FLAG_MORE, FLAG_RETRYABLE, Kind, VERSION};
use cattlegrid_worker::list::put_list;
use cattlegrid_worker::message::{ErrorBody, Hello};
use serde_json::value::RawValue;

use crate::draw::Draw;
use crate::jsonl::{self, JsonFrame};
use crate::long_line::{LongLine, LongLineKind};

/// Lines drawn from `bytes`.
pub(crate) fn check(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    let max_frame = draw.choose(&[0, 2, 60, 1_000, u32::MAX]);
    let current = draw.choose(&[None, Some(0), Some(7), Some(u64::MAX)]);
    let objects = draw.choose(&[false, true]);
    let cuts: Vec<usize> = (0..draw.below(16)).map(|_| draw.below(64)).collect();
    match draw.below(4) {
        0 => check_splits(draw.rest(), max_frame, (current, objects), &cuts),
        1 => check_written(&mut draw),
        _ => {
            let mut stream = Vec::new();
            while !draw.is_done() && stream.len() < 1 << 16 {
                put_drawn(&mut stream, &mut draw);
            }
            check_splits(&stream, max_frame, (current, objects), &cuts);
        }
    }
}

/// The job that the worker has, and whether its replies are objects.
type AtWorker = (Option<u64>, bool);

/// The frames of some lines, and the error that ended them.
#[derive(Debug, Default)]
struct Taken {
    frames: Vec<JsonFrame>,
    longs: Vec<(u64, LongLineKind)>,
    long: Option<LongLine>,
    refused: Option<String>,
}

impl Taken {
    /// Takes all whole lines off `bytes`; returns how many bytes they had.
    fn take(&mut self, bytes: &[u8], max_frame: u32, worker: AtWorker) -> usize {
        let (current, objects) = worker;
        let mut used = 0;
        while self.refused.is_none() {
            if let Some(long) = &mut self.long {
                let Some(end) = long.push(&bytes[used..]).expect("far from its end") else {
                    return bytes.len();
                };
                used += end + 1;
                let len = long.len();
                assert!(len > max_frame.into());
                match long.end(current, objects) {
                    Ok(what) => self.longs.push((len, what)),
                    Err(error) => {
                        assert!(!error.is_empty() && error.len() < 100, "{error}");
                        self.refused = Some(error);
                    }
                }
                self.long = None;
                continue;
            }
            match jsonl::LineEnds::default().take(&bytes[used..], max_frame) {
                Ok(Some((line, len))) => {
                    assert!(line.len() < len && len <= max_frame as usize + 2);
                    used += len;
                    if line.is_empty() {
                        continue;
                    }
                    match jsonl::read_line(line, current, objects) {
                        Ok(frames) => {
                            check_frames(&frames, line, current);
                            self.frames.extend(frames);
                        }
                        Err(error) => {
                            assert!(!error.is_empty() && error.len() < 1_000, "{} bytes", error.len());
                            assert!(!error.chars().any(char::is_control), "{error:?}");
                            self.refused = Some(error);
                        }
                    }
                }
                Ok(None) => break,
                Err(_) => self.long = Some(LongLine::default()),
            }
        }
        used
    }
}

fn check_splits(stream: &[u8], max_frame: u32, worker: AtWorker, cuts: &[usize]) {
    let mut whole = Taken::default();
    whole.take(stream, max_frame, worker);
    let mut split = Taken::default();
    let mut buffer = Vec::new();
    let mut rest = stream;
    let mut lens = cuts.iter().copied().chain([1, 2, 3, 40]).cycle();
    while !rest.is_empty() && split.refused.is_none() {
        let (part, after) = rest.split_at(lens.next().unwrap_or(1).min(rest.len()));
        buffer.extend_from_slice(part);
        rest = after;
        let used = split.take(&buffer, max_frame, worker);
        buffer.drain(..used);
        if split.refused.is_none() {
            assert!(buffer.len() <= max_frame as usize + 1, "no more than a line is kept");
        }
    }
    let all = |taken: &Taken| (taken.longs.clone(), taken.refused.clone(), taken.long.is_some());
    assert_eq!(split.frames, whole.frames, "cut as {cuts:?}");
    assert_eq!(all(&split), all(&whole), "cut as {cuts:?}");
}

/// The frames of one line are such as a worker with an SDK could have sent.
fn check_frames(frames: &[JsonFrame], line: &[u8], current: Option<u64>) {
    assert!(!frames.is_empty());
    let fields: BTreeMap<String, &RawValue> = serde_json::from_slice(line).expect("it was read");
    let given = fields.get("id").filter(|id| !jsonl::is_absent("id", id.get().as_bytes(), false));
    let id = match given.map(|id| serde_json::from_str::<String>(id.get())) {
        Some(id) => id.ok().and_then(|id| id.parse().ok()).expect("any other id is refused"),
        None => current.unwrap_or(0),
    };
    for frame in frames {
        let known = match frame.kind {
            Kind::Result => FLAG_MORE,
            Kind::Error => FLAG_RETRYABLE,
            _ => 0,
        };
        assert_eq!(frame.flags & !known, 0, "{frame:?}");
        // Lengths take the place of quotes and commas.
        assert!(frame.body.len() <= 2 * line.len() + 40, "{} of {}", frame.body.len(), line.len());
        match frame.kind {
            Kind::Result | Kind::Event => {
                assert_eq!(frame.id, id);
                assert!(List::parse(&frame.body).is_some(), "{frame:?}");
            }
            Kind::Error => {
                assert_eq!(frame.id, id);
                assert!(ErrorBody::parse(frame.flags, &frame.body).is_some(), "{frame:?}");
            }
            Kind::Progress => assert_eq!(frame.id, id),
            Kind::Log => assert!(frame.id == 0 && !frame.body.is_empty()),
            Kind::Hello => {
                let hello = Hello::parse(&frame.body).expect("a whole one");
                assert_eq!((hello.version, hello.concurrency, frame.id), (VERSION, 1, 0));
            }
            Kind::Ready | Kind::Leave | Kind::Pong => assert!(frame.id == 0 && frame.body.is_empty()),
            other => panic!("{other:?} is not a worker's"),
        }
    }
}

/// Lines for a worker, and their texts sent back.
fn check_written(draw: &mut Draw<'_>) {
    let (id, deadline_ms, attempt) = (draw.long(), draw.number(), draw.number());
    let parts: Vec<&[u8]> = (0..draw.below(5))
        .map(|_| {
            let len = draw.below(40);
            draw.bytes(len)
        })
        .collect();
    let mut args = Vec::new();
    put_list(&mut args, &parts);
    let mut line = Vec::new();
    jsonl::job_line(&mut line, id, deadline_ms, attempt, List::parse(&args).expect("written by us"));
    let job = only_line(&line);
    assert_eq!((&job["deadline_ms"], &job["attempt"]), (&deadline_ms.into(), &attempt.into()));
    let answer = serde_json::json!({"id": job["id"], "result": job["args"]}).to_string();
    let frames = jsonl::read_line(answer.as_bytes(), None, false).expect("a result");
    assert_eq!((frames.len(), frames[0].id), (1, id));
    assert!(List::parse(&frames[0].body).expect("a list").iter().eq(parts.iter().copied()));

    let object = serde_json::json!({"key": job["args"], "id": "not this one"}).to_string();
    let (mut args, mut line) = (Vec::new(), Vec::new());
    put_list(&mut args, &[object]);
    let list = List::parse(&args).expect("written by us");
    jsonl::object_line(&mut line, id, deadline_ms, attempt, list).expect("an object");
    assert_eq!(only_line(&line)["key"], job["args"]);
    assert_eq!(only_line(&line)["id"], job["id"]);
    let reply = line.trim_ascii();
    let frames = jsonl::read_line(reply, None, true).expect("a reply");
    assert_eq!((frames.len(), frames[0].id), (1, id));
    assert!(List::parse(&frames[0].body).expect("a list").iter().eq([reply]));

    let config = draw.bytes(60);
    let mut line = Vec::new();
    jsonl::init_line(&mut line, id, attempt, config);
    let progress = serde_json::json!({"progress": only_line(&line)["config"]}).to_string();
    let frames = jsonl::read_line(progress.as_bytes(), Some(id), false).expect("progress");
    assert_eq!((frames[0].id, &frames[0].body[..]), (id, config));

    let mut lines = Vec::new();
    jsonl::cancel_line(&mut lines, id);
    assert_eq!(only_line(&lines)["id"], id.to_string());
    lines.clear();
    jsonl::plain_line(&mut lines, draw.choose(&["retire", "ping"]));
    only_line(&lines);
}

fn only_line(written: &[u8]) -> serde_json::Value {
    let line = written.strip_suffix(b"\n").expect("a whole line");
    assert!(!line.contains(&b'\n'));
    serde_json::from_slice(line).expect("JSON")
}

/// Appends a line such as a worker might write: valid or nearly valid.
fn put_drawn(stream: &mut Vec<u8>, draw: &mut Draw<'_>) {
    let start = stream.len();
    let mut line = String::new();
    line.push('{');
    for number in 0..=draw.below(4) {
        if number > 0 {
            line.push(',');
        }
        line.push_str(draw.choose(&[
            r#""ready":true"#,
            r#""retire":true"#,
            r#""pong":true"#,
            r#""pong":1"#,
            r#""more":true"#,
            r#""id":"7""#,
            r#""id":"18446744073709551615""#,
            r#""id":"18446744073709551616""#,
            r#""id":"+3""#,
            r#""id":3"#,
            r#""id":null,"result":null,"error":null,"event":null"#,
            "",
            "",
            "",
            "",
            "",
            "",
        ]));
        if line.ends_with(['{', ',']) {
            line.push_str(draw.choose(&[
                r#""result":"#,
                r#""result":"#,
                r#""error":"#,
                r#""event":"#,
                r#""progress":"#,
                r#""log":"#,
                r#""id":"#,
                r#""a\nkey\u0000 that is unknown and long enough to be cut in messages":"#,
            ]));
            put_value(&mut line, draw, 6);
        }
    }
    line.push_str(draw.choose(&["}", "}", "}", "}", "", "}}", "} x"]));
    stream.extend_from_slice(line.as_bytes());
    if draw.once_in(16) {
        let at = start + draw.below(stream.len() - start);
        stream[at] = draw.byte();
    }
    stream.extend_from_slice(draw.choose(&["\n", "\n", "\n", "\r\n", "\n\n", ""]).as_bytes());
}

fn put_value(line: &mut String, draw: &mut Draw<'_>, depth: usize) {
    match draw.below(if depth == 0 { 6 } else { 10 }) {
        0 => line.push_str(draw.choose(&["null", "true", "false", "0", "-1", "1e15", "1e999", "0.1", "nul"])),
        1 => line.push_str(draw.choose(&[
            r#""""#,
            r#""text""#,
            r#""\n\t\u0000\u2028""#,
            r#""\ud83d\ude00""#,
            r#""\ud800""#,
            r#""öä€""#,
        ])),
        2 => line.push_str(&draw.long().to_string()),
        3 => line.push_str(draw.choose(&[
            r#"{"b64":"/w=="}"#,
            r#"{"b64":""}"#,
            r#"{"b64":"===="}"#,
            r#"{"b64":"A==="}"#,
            r#"{"b64":"AB=C"}"#,
            r#"{"b64":"AAAAA"}"#,
            r#"{"b64":7}"#,
            r#"{"b64":"/w==","x":1}"#,
        ])),
        4 => {
            let digits: String =
                (0..draw.below(20)).map(|_| draw.choose(&['A', 'z', '/', '+', '=', '9'])).collect();
            line.extend([r#"{"b64":""#, &digits, r#""}"#]);
        }
        5 => line.push_str(r#"{"code":"c","message":"m","detail":"d","retryable":true}"#),
        6 => {
            let depth = draw.choose(&[1, 30, 126, 127, 128, 500]);
            line.push_str(&"[".repeat(depth));
            line.push_str(&"]".repeat(depth));
        }
        7 => {
            line.push_str(r#"{"message":"#);
            put_value(line, draw, depth - 1);
            line.push('}');
        }
        _ => {
            line.push('[');
            for number in 0..draw.below(4) {
                if number > 0 {
                    line.push(',');
                }
                put_value(line, draw, depth - 1);
            }
            line.push(']');
        }
    }
}
