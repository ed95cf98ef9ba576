//! JSON lines: the protocol for programs without an SDK, translated from and to frames.
//!
//! Byte strings are JSON strings when they are UTF-8, otherwise `{"b64": "..."}`. At most one job is at such
//! a worker, so its lines need not repeat the id.
//!
//! # Invariants
//! * Any bytes are read without a panic: a line is valid frames or an error text of one short line.
//! * Each line that is written is one JSON object without a line feed inside.

use std::collections::BTreeMap;

use base64::{decode, encode};
use cattlegrid_worker::List;
use cattlegrid_worker::frame::{FrameError, Kind, VERSION};
use cattlegrid_worker::list::put_list;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// A line as a frame: kind, flags, id, body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JsonFrame {
    pub(crate) kind: Kind,
    pub(crate) flags: u8,
    pub(crate) id: u64,
    pub(crate) body: Vec<u8>,
}

/// Finds the ends of lines in a buffer that grows. No byte is examined twice, however many reads a long line
/// takes.
#[derive(Debug, Default)]
pub(crate) struct LineEnds {
    /// Bytes at the start of the buffer that are known to have no line end.
    known: usize,
}

impl LineEnds {
    /// Takes the first line from `buffer`: the line without its end, and its length in bytes with its end.
    /// `Ok(None)` while the end has not arrived; as for [`LineEnds::find`].
    ///
    /// # Errors
    /// [`FrameError::TooLong`] for a line of more than `max_frame` bytes, whether its end has arrived or not.
    /// The line feed and a carriage return before it do not count.
    pub(crate) fn take<'b>(
        &mut self,
        buffer: &'b [u8],
        max_frame: u32,
    ) -> Result<Option<(&'b [u8], usize)>, FrameError> {
        let end = self.find(buffer);
        let line = &buffer[..end.unwrap_or(buffer.len())];
        let len = line.strip_suffix(b"\r").unwrap_or(line).len();
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        if len > max_frame {
            return Err(FrameError::TooLong { len, max: max_frame });
        }
        Ok(end.map(|end| (buffer[..end].trim_ascii(), end + 1)))
    }

    /// Where the line at the start of `buffer` ends. `None`: not yet; the next call must be for the same
    /// buffer with more bytes. After a hit the next call must be for the bytes that follow the line.
    pub(crate) fn find(&mut self, buffer: &[u8]) -> Option<usize> {
        let known = self.known.min(buffer.len());
        let end = buffer[known..].iter().position(|byte| *byte == b'\n');
        self.known = if end.is_some() { 0 } else { buffer.len() };
        end.map(|end| known + end)
    }
}

/// The line for INIT.
pub(crate) fn init_line(out: &mut Vec<u8>, worker: u64, generation: u32, config: &[u8]) {
    put_line(
        out,
        &json!({"type": "init", "worker": worker, "generation": generation, "config": to_json(config)}),
    );
}

/// The line for JOB.
pub(crate) fn job_line(out: &mut Vec<u8>, id: u64, deadline_ms: u32, attempt: u32, args: List<'_>) {
    let args: Vec<Value> = args.iter().map(to_json).collect();
    // Ids exceed the integers of JavaScript, so they travel as text.
    put_line(
        out,
        &json!({"type": "job", "id": id.to_string(), "args": args, "deadline_ms": deadline_ms, "attempt": attempt}),
    );
}

/// The line for JOB whose one argument is the text of a JSON object: its members instead of `args`.
///
/// # Errors
/// Why the arguments are not one object, in a short line. Nothing was written then.
pub(crate) fn object_line(
    out: &mut Vec<u8>,
    id: u64,
    deadline_ms: u32,
    attempt: u32,
    args: List<'_>,
) -> Result<(), String> {
    let one = args.get(0).filter(|_| args.len() == 1).ok_or("a job of objects has one argument")?;
    let members: JsonFields<'_> = serde_json::from_slice(one)
        .map_err(|error| shown(&format!("the argument is not a JSON object: {error}")))?;
    let start = json!({"type": "job", "id": id.to_string(), "deadline_ms": deadline_ms, "attempt": attempt});
    let Value::Object(own) = &start else { return Err("no object".into()) };
    out.extend_from_slice(start.to_string().strip_suffix('}').unwrap_or_default().as_bytes());
    for (name, value) in members.iter().filter(|(name, _)| !own.contains_key(*name)) {
        out.extend_from_slice(format!(",{}:", Value::from(name.as_str())).as_bytes());
        // A line end can only stand between two parts of the text, where a blank means the same.
        out.extend(value.get().bytes().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte }));
    }
    out.extend_from_slice(b"}\n");
    Ok(())
}

/// The line for CANCEL.
pub(crate) fn cancel_line(out: &mut Vec<u8>, id: u64) {
    put_line(out, &json!({"type": "cancel", "id": id.to_string()}));
}

/// The line for RETIRE or PING.
pub(crate) fn plain_line(out: &mut Vec<u8>, kind: &str) {
    put_line(out, &json!({"type": kind}));
}

/// Reads a line of a worker; `current` is the job it has. With `objects` an object with none of the known
/// fields is the reply of its job.
///
/// A field that is `null` is as absent: serialisers write it for what a message does not have. So is the `id`
/// `""`, and with `objects` the `error` `""`. Only where nothing else makes a message of the line, `null` is
/// a result, or an event, without parts.
///
/// # Errors
/// Why the line is not part of the protocol, for the log: one short line.
pub(crate) fn read_line(line: &[u8], current: Option<u64>, objects: bool) -> Result<Vec<JsonFrame>, String> {
    // Numbers and objects go on as they are, so values are kept as their text.
    let mut fields: JsonFields<'_> = serde_json::from_slice(line).map_err(|error| {
        let other = serde_json::from_slice::<&RawValue>(line).is_ok();
        if other { "a line is not a JSON object".to_owned() } else { format!("not JSON: {error}") }
    })?;
    let has_null = |name: &str| !objects && fields.get(name).is_some_and(|value| value.get() == "null");
    let empty =
        [("result", Kind::Result), ("event", Kind::Event)].into_iter().find(|(name, _)| has_null(name));
    fields.retain(|name, value| !is_absent(name, value.get().as_bytes(), objects));
    let id = match fields.get("id") {
        None => current.unwrap_or(0),
        Some(id) => {
            let text = string(id).ok_or_else(|| format!("id {} is not a string", shown(id.get())))?;
            text.parse().map_err(|_| format!("id {} is not one of ours", shown(&text)))?
        }
    };
    let is_true = |name: &str| fields.get(name).is_some_and(|value| value.get() == "true");
    let frame = |kind, id, body| JsonFrame { kind, flags: 0, id, body };
    if is_true("ready") {
        let hello = cattlegrid_worker::message::Hello {
            version: VERSION,
            page: false,
            claims: false,
            batches: false,
            pid: 0,
            concurrency: 1,
            max_frame: u32::MAX,
            sdk: "json-lines".into(),
        };
        let mut bytes = Vec::new();
        hello.put(&mut bytes);
        let body = bytes.split_off(cattlegrid_worker::frame::HEADER_LEN);
        return Ok(vec![frame(Kind::Hello, 0, body), frame(Kind::Ready, 0, Vec::new())]);
    }
    if is_true("retire") {
        return Ok(vec![frame(Kind::Leave, 0, Vec::new())]);
    }
    if is_true("pong") {
        return Ok(vec![frame(Kind::Pong, 0, Vec::new())]);
    }
    if let Some(result) = fields.get("result") {
        let flags = if is_true("more") { cattlegrid_worker::frame::FLAG_MORE } else { 0 };
        return Ok(vec![JsonFrame { kind: Kind::Result, flags, id, body: list(result)? }]);
    }
    if let Some(error) = fields.get("error") {
        return Ok(vec![error_frame(error, id)?]);
    }
    if let Some(event) = fields.get("event") {
        return Ok(vec![frame(Kind::Event, id, list(event)?)]);
    }
    if let Some(progress) = fields.get("progress") {
        return Ok(vec![frame(Kind::Progress, id, from_json(progress)?)]);
    }
    if let Some(text) = fields.get("log") {
        let mut body = vec![3];
        body.extend(from_json(text)?);
        return Ok(vec![frame(Kind::Log, 0, body)]);
    }
    if objects && (fields.contains_key("id") || current.is_some()) {
        let mut body = Vec::with_capacity(line.len() + 10);
        put_list(&mut body, &[line.trim_ascii()]);
        return Ok(vec![frame(Kind::Result, id, body)]);
    }
    if let Some((_, kind)) = empty {
        let mut body = Vec::new();
        put_list::<&[u8]>(&mut body, &[]);
        let is_part = kind == Kind::Result && is_true("more");
        let flags = if is_part { cattlegrid_worker::frame::FLAG_MORE } else { 0 };
        return Ok(vec![JsonFrame { flags, ..frame(kind, id, body) }]);
    }
    Err(format!("a line with none of the known fields: {}", names(&fields)))
}

/// Whether a field with this value is as absent, in a line of a worker whose replies are objects or not.
pub(crate) fn is_absent(name: &str, value: &[u8], objects: bool) -> bool {
    value == b"null" || (value == b"\"\"" && (name == "id" || (name == "error" && objects)))
}

/// An error as an object with text in `code`, `message` and `detail` (a missing field and `null` are empty),
/// or as text, which is the message.
fn error_frame(error: &RawValue, id: u64) -> Result<JsonFrame, String> {
    let (fields, plain) = match string(error) {
        Some(message) => (JsonFields::new(), Some(message)),
        None => (object(error).ok_or("an error is neither a string nor an object")?, None),
    };
    let text = |name: &str| match fields.get(name) {
        None => Ok(String::new()),
        Some(value) if value.get() == "null" => Ok(String::new()),
        Some(value) => string(value).ok_or_else(|| format!("{name} of an error is not a string")),
    };
    let (code, message) = match plain {
        Some(message) => ("error".to_owned(), message),
        None => (text("code")?, text("message")?),
    };
    let retryable = fields.get("retryable").is_some_and(|value| value.get() == "true");
    let mut body = Vec::new();
    put_list(&mut body, &[code, message, text("detail")?]);
    let flags = if retryable { cattlegrid_worker::frame::FLAG_RETRYABLE } else { 0 };
    Ok(JsonFrame { kind: Kind::Error, flags, id, body })
}

/// An array becomes its parts, anything else one part.
fn list(value: &RawValue) -> Result<Vec<u8>, String> {
    let parts: Vec<Vec<u8>> = match value.get().as_bytes() {
        [b'[', ..] => {
            let items: Vec<&RawValue> =
                serde_json::from_str(value.get()).map_err(|error| error.to_string())?;
            items.into_iter().map(from_json).collect::<Result<_, _>>()?
        }
        _ => vec![from_json(value)?],
    };
    let mut body = Vec::new();
    put_list(&mut body, &parts);
    Ok(body)
}

fn to_json(bytes: &[u8]) -> Value {
    std::str::from_utf8(bytes).map_or_else(|_| json!({"b64": encode(bytes)}), Value::from)
}

/// A string gives its text, `{"b64": ...}` the bytes that it encodes, every other value its JSON text as it
/// was sent.
fn from_json(value: &RawValue) -> Result<Vec<u8>, String> {
    let text = value.get();
    if text.starts_with('"') {
        return Ok(string(value).ok_or("a string is not Unicode")?.into_bytes());
    }
    match object(value).as_ref().and_then(|fields| fields.get("b64").filter(|_| fields.len() == 1)) {
        Some(coded) => string(coded).as_deref().and_then(decode).ok_or_else(|| "b64 is not base64".into()),
        None => Ok(text.as_bytes().to_vec()),
    }
}

/// The text of a string; `None` for any other value.
fn string(value: &RawValue) -> Option<String> {
    serde_json::from_str(value.get()).ok()
}

/// The fields of an object; `None` for any other value.
fn object(value: &RawValue) -> Option<JsonFields<'_>> {
    serde_json::from_str(value.get()).ok()
}

/// An object whose values are not parsed.
type JsonFields<'a> = BTreeMap<String, &'a RawValue>;

fn put_line(out: &mut Vec<u8>, value: &Value) {
    out.extend_from_slice(value.to_string().as_bytes());
    out.push(b'\n');
}

fn names(fields: &JsonFields<'_>) -> String {
    fields.keys().take(5).map(|name| shown(name)).collect::<Vec<_>>().join(", ")
}

/// The beginning of what a worker wrote, for a message: a line can be as long as a frame.
fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARS).flat_map(char::escape_debug).collect()
}

/// Characters of a worker's word that a message shows.
const SHOWN_CHARS: usize = 40;

/// Standard base64 with padding.
pub mod base64 {
    use base64::Engine;
    use base64::alphabet::STANDARD;
    use base64::engine::{GeneralPurpose, GeneralPurposeConfig};

    /// The decoder accepts the same texts as Python's `base64.b64decode`: surplus bits of the last digit do
    /// not count.
    const ENGINE: GeneralPurpose =
        GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));

    /// The text of these bytes.
    pub fn encode(bytes: &[u8]) -> String {
        ENGINE.encode(bytes)
    }

    /// The bytes of this text; `None` when it is not base64, or lacks its padding.
    pub fn decode(text: &str) -> Option<Vec<u8>> {
        ENGINE.decode(text).ok()
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn the_vectors_of_rfc_4648() {
            for (plain, coded) in [
                ("", ""),
                ("f", "Zg=="),
                ("fo", "Zm8="),
                ("foo", "Zm9v"),
                ("foob", "Zm9vYg=="),
                ("foobar", "Zm9vYmFy"),
            ] {
                assert_eq!(encode(plain.as_bytes()), coded);
                assert_eq!(decode(coded).unwrap(), plain.as_bytes());
            }
            let all: Vec<u8> = (0..=255).collect();
            assert_eq!(decode(&encode(&all)), Some(all));
            assert_eq!(decode("Zg="), None);
            assert_eq!(decode("Z g="), None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str, current: u64) -> JsonFrame {
        let mut all = read_line(line.as_bytes(), Some(current), false).unwrap();
        assert_eq!(all.len(), 1);
        all.remove(0)
    }

    #[test]
    fn a_job_without_ids_is_answered() {
        let reply = one(r#"{"result": ["a", {"b64": "/w=="}, 7, null]}"#, 9);
        let parts: Vec<&[u8]> = List::parse(&reply.body).unwrap().iter().collect();
        assert_eq!((reply.kind, reply.id), (Kind::Result, 9));
        assert_eq!(parts, [&b"a"[..], &[0xff], b"7", b"null"]);
        assert_eq!(one(r#"{"id": "3", "result": "x"}"#, 9).id, 3);
        let error = one(r#"{"error": "no"}"#, 9);
        assert_eq!(List::parse(&error.body).unwrap().get(1), Some(&b"no"[..]));
    }

    /// Values of any length and depth: no number is parsed, and no field is reordered.
    #[test]
    fn values_are_passed_on_as_they_were_written() {
        let deep = "[".repeat(1_000) + &"]".repeat(1_000);
        let texts = [
            "12345678901234567890123",
            "1.10",
            "1e400",
            "-0",
            r#"{"b":1,"a":2}"#,
            r#"{ "b64" : "/w==", "x": [1.0 , 2] }"#,
            r#"{"a":1,"a":2}"#,
            "true",
            &deep,
        ];
        for text in texts {
            let reply = one(&format!(r#"{{"result": [{text} , "x"], "unknown": 1e999}}"#), 9);
            let parts: Vec<&[u8]> = List::parse(&reply.body).unwrap().iter().collect();
            assert_eq!(parts, [text.as_bytes(), b"x"]);
        }
        assert_eq!(one(r#"{"progress": 0.50}"#, 9).body, b"0.50");
        assert_eq!(one(r#"{"event": {"n": 1e400}}"#, 9).body, b"\x01\x0c{\"n\": 1e400}");
    }

    #[test]
    fn an_error_is_a_text_or_has_texts() {
        let error = one(r#"{"error": {"code": "c", "detail": null, "retryable": true}}"#, 9);
        let parts: Vec<&[u8]> = List::parse(&error.body).unwrap().iter().collect();
        assert_eq!((parts, error.flags), (vec![&b"c"[..], b"", b""], 2));
        for error in ["5", "[]", "true", r#"{"code": 5}"#, r#"{"message": ["m"]}"#, r#"{"detail": {}}"#] {
            assert!(
                read_line(format!(r#"{{"error": {error}}}"#).as_bytes(), None, false).is_err(),
                "{error}"
            );
        }
    }

    /// A serialiser may write `null` for a field that a message does not have.
    #[test]
    fn a_field_that_is_null_is_as_absent() {
        let read = |line: &str, objects| read_line(line.as_bytes(), Some(9), objects);
        let rest = r#""retire":false,"pong":false,"log":null,"progress":null,"more":null"#;
        let object = format!(r#"{{"id":null,"result":null,"error":null,"event":null,"value":"x",{rest}}}"#);
        let reply = read(&object, true).unwrap().remove(0);
        let parts: Vec<&[u8]> = List::parse(&reply.body).unwrap().iter().collect();
        assert_eq!((reply.kind, reply.id, parts), (Kind::Result, 9, vec![object.as_bytes()]));
        for (line, objects, kind) in [
            (r#"{"result":null,"error":"no","event":null}"#, false, Kind::Error),
            (r#"{"result":null,"error":null,"event":["e"]}"#, false, Kind::Event),
            (r#"{"result":"x","error":null}"#, false, Kind::Result),
            (r#"{"result":null,"event":null,"progress":"x"}"#, false, Kind::Progress),
            (r#"{"result":null,"log":"x"}"#, true, Kind::Log),
            (r#"{"result":null,"error":{"code":"c"},"value":null}"#, true, Kind::Error),
            (r#"{"error":"","value":"x"}"#, true, Kind::Result),
            (r#"{"error":""}"#, false, Kind::Error),
            (r#"{"result":null,"error":null,"event":null}"#, false, Kind::Result),
            (r#"{"event":null}"#, false, Kind::Event),
        ] {
            assert_eq!(read(line, objects).unwrap()[0].kind, kind, "{line}");
        }
        assert_eq!(one(r#"{"id":"","result":null}"#, 9).body, b"\0");
        for line in [r#"{"error":null}"#, r#"{"progress":null}"#, r#"{"log":null,"ready":null}"#] {
            assert!(read(line, false).unwrap_err().contains("none of the known fields"), "{line}");
        }
    }

    #[test]
    fn no_byte_of_a_long_line_is_looked_at_twice() {
        let mut ends = LineEnds::default();
        let mut buffer = vec![b'x'; 1000];
        assert_eq!(ends.find(&buffer), None);
        // It would be found if it were looked at again.
        buffer[10] = b'\n';
        buffer.extend_from_slice(b"yy\nzz\n");
        assert_eq!(ends.find(&buffer), Some(1002));
        assert_eq!(ends.find(b"zz\n"), Some(2), "from the start of the next line");
        for cut in 0..4 {
            assert_eq!(ends.find(&b"abc\n"[..cut]), None);
        }
        assert_eq!(ends.find(b"abc\n"), Some(3));
    }

    #[test]
    fn what_is_not_the_protocol_is_refused() {
        for line in ["", "hello", "[1]", "{}", r#"{"id": 3, "result": 1}"#, r#"{"result": {"b64": "!"}}"#] {
            assert!(read_line(line.as_bytes(), None, false).is_err(), "{line}");
        }
    }

    #[test]
    fn a_line_is_taken_or_refused_however_it_arrives() {
        assert_eq!(LineEnds::default().take(b" a \r\nb", 100), Ok(Some((&b"a"[..], 5))));
        assert_eq!(LineEnds::default().take(b"\n", 0), Ok(Some((&b""[..], 1))));
        assert_eq!(LineEnds::default().take(b"abc", 3), Ok(None));
        assert_eq!(LineEnds::default().take(b"abc\n", 3), Ok(Some((&b"abc"[..], 4))));
        assert_eq!(LineEnds::default().take(b"abc\r\n", 3), Ok(Some((&b"abc"[..], 5))));
        assert_eq!(LineEnds::default().take(b"abc\r", 3), Ok(None), "the end may follow");
        for bytes in [&b"abcd"[..], b"abcd\n", b"abcd\r", b"abcd\r\n", b"abc\r\r"] {
            assert_eq!(LineEnds::default().take(bytes, 3), Err(FrameError::TooLong { len: 4, max: 3 }));
        }
        assert_eq!(LineEnds::default().take(b"abc\rx", 3), Err(FrameError::TooLong { len: 5, max: 3 }));
    }

    #[test]
    fn what_is_refused_is_shown_in_a_short_line() {
        let long = "x\\n".repeat(100_000);
        let lines = [
            format!(r#"{{"id": "{long}", "result": 1}}"#),
            format!(r#"{{"id": ["{long}"], "result": 1}}"#),
            format!(r#"{{"{long}": 1}}"#),
        ];
        for line in lines {
            let error = read_line(line.as_bytes(), None, false).unwrap_err();
            assert!(error.len() < 400 && !error.contains('\n'), "{} bytes", error.len());
        }
    }

    #[test]
    fn an_object_that_is_no_other_message_is_the_reply() {
        let read = |line: &str, current| read_line(line.as_bytes(), current, true);
        let text = r#"{ "id":"3", "value":"x\n", "ttl": 1.50,"a":[ {"log":1} ] }"#;
        for current in [None, Some(9)] {
            let reply = read(text, current).unwrap().remove(0);
            let parts: Vec<&[u8]> = List::parse(&reply.body).unwrap().iter().collect();
            assert_eq!(
                (reply.kind, reply.flags, reply.id, parts),
                (Kind::Result, 0, 3, vec![text.as_bytes()])
            );
        }
        assert_eq!(read(r#"{"value":1}"#, Some(9)).unwrap()[0].id, 9);
        assert_eq!(read("{}", Some(9)).unwrap()[0].body, b"\x01\x02{}");
        for (known, kind) in [
            (r#"{"value":1,"error":"no"}"#, Kind::Error),
            (r#"{"value":1,"result":"x"}"#, Kind::Result),
            (r#"{"value":1,"event":"x"}"#, Kind::Event),
            (r#"{"value":1,"progress":"x"}"#, Kind::Progress),
            (r#"{"value":1,"log":"x"}"#, Kind::Log),
            (r#"{"value":1,"retire":true}"#, Kind::Leave),
            (r#"{"value":1,"pong":true}"#, Kind::Pong),
            (r#"{"value":1,"ready":true}"#, Kind::Hello),
        ] {
            let frames = read(known, Some(9)).unwrap();
            assert_eq!(frames[0].kind, kind, "{known}");
            assert_eq!(frames, read_line(known.as_bytes(), Some(9), false).unwrap());
        }
        for (line, current) in
            [(r#"{"value":1}"#, None), ("[1]", Some(9)), (r#"{"id":3,"value":1}"#, Some(9))]
        {
            assert!(read(line, current).is_err(), "{line}");
        }
    }

    #[test]
    fn a_job_of_an_object_is_one_line_with_its_members() {
        let line = |args: &[&[u8]]| {
            let (mut out, mut list) = (b"before\n".to_vec(), Vec::new());
            put_list(&mut list, args);
            let written = object_line(&mut out, u64::MAX, 5, 1, List::parse(&list).unwrap());
            assert_eq!(written.is_err(), out == b"before\n");
            written.map(|()| String::from_utf8(out.split_off(7)).unwrap())
        };
        let own = r#""attempt":1,"deadline_ms":5,"id":"18446744073709551615","type":"job""#;
        assert_eq!(line(&[b"{}"]).unwrap(), format!("{{{own}}}\n"));
        let text =
            "{\n \"key\": \"a\\nb\",\r\n\"args\":{\n},\"id\":\"1\",\"type\":1,\"n\":1.50,\"n\": 1e999 }";
        let all = format!("{{{own},\"args\":{{ }},\"key\":\"a\\nb\",\"n\":1e999}}\n");
        assert_eq!(line(&[text.as_bytes()]).unwrap(), all);
        let long = [b"{\"x".as_slice(), &[b'y'; 1_000]].concat();
        let bad: [&[&[u8]]; 7] =
            [&[], &[b""], &[b"{}", b"{}"], &[b"[]"], &[b"{"], &[b"{\"\xff\":1}"], &[&long]];
        for args in bad {
            let error = line(args).unwrap_err();
            assert!(!error.is_empty() && error.len() < 200 && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn lines_for_workers_are_single_lines() {
        let mut out = Vec::new();
        let mut args = Vec::new();
        put_list(&mut args, &[&b"a\nb"[..], &[0xff]]);
        job_line(&mut out, u64::MAX, 5, 1, List::parse(&args).unwrap());
        assert_eq!(out.split(|byte| *byte == b'\n').count(), 2);
        let value: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(value["id"], "18446744073709551615");
        assert_eq!(value["args"], json!(["a\nb", {"b64": "/w=="}]));
    }
}
