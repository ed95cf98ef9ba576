//! A line of JSON that is longer than `max_frame`: scanned as it arrives, and not kept.
//!
//! The job must get its error and the worker must stay, so the pool must know what the line is: a reply, a
//! part of a reply, an event. The fields of the outer object say so. Only their names and the beginnings of
//! short values are kept, nothing of nested values. Whether the rest is JSON is not checked.
//!
//! # Invariants
//! * Every byte is examined once, and no more than [`TOKEN_MAX`] bytes of the line are held.
//! * A line has a limit: at [`LongLine::MOST`] bytes it is refused.

use serde_json::from_slice;

use crate::jsonl::is_absent;

/// The meaning of a line, known when it has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LongLineKind {
    /// The reply or the error of this job.
    Outcome(u64),
    /// A part of the reply of this job; more follows.
    Part(u64),
    /// An event or progress, as the word says, of this job; 0 without a job.
    Message(&'static str, u64),
    /// A line for the log.
    Log,
}

/// See the module.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not states of one machine")]
pub(crate) struct LongLine {
    /// Bytes so far.
    len: u64,
    /// The last one is a carriage return.
    at_return: bool,
    /// Objects and arrays that are open.
    depth: u64,
    in_string: bool,
    escaped: bool,
    /// The line does not begin with `{`, does not end with `}`, or has more text after the `}`.
    no_object: bool,
    was_open: bool,
    /// The beginning of the name or value that is being read, of the outer object.
    token: Vec<u8>,
    /// The name that was read last, if it is a known name.
    name: Option<Field>,
    id: Option<Vec<u8>>,
    more: bool,
    seen: [FieldPresence; FIELDS.len()],
    /// The beginning of the line, for messages.
    head: Vec<u8>,
}

/// Whether a line has a field, and how.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum FieldPresence {
    #[default]
    Nothing,
    /// The field is `null`.
    Null,
    /// The field is present, but counts as absent because replies are objects.
    InOthers,
    Yes,
}

/// Place of a name in [`FIELDS`].
type Field = usize;

impl LongLine {
    /// Length at which a line is refused, bytes: 4 GiB - 1, the limit of a frame.
    pub(crate) const MOST: u64 = u32::MAX as u64;

    /// Scans the next bytes. Returns the place of the line feed in `bytes`, if the line ends there.
    ///
    /// # Errors
    /// A text for a line of [`LongLine::MOST`] bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<Option<usize>, String> {
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let part = &bytes[..end.unwrap_or(bytes.len())];
        if let Some(last) = part.last() {
            self.at_return = *last == b'\r';
        }
        self.len += part.len() as u64;
        self.head.extend_from_slice(&part[..part.len().min(HEAD_MAX - self.head.len())]);
        if self.len() >= Self::MOST {
            return Err(format!("a line of {} bytes and more", Self::MOST));
        }
        let mut rest = part;
        while let Some((&byte, behind)) = rest.split_first() {
            rest = behind;
            self.read(byte);
            if self.in_string && !self.escaped && (self.depth > 1 || self.token.len() >= TOKEN_MAX) {
                // Of a long string only its end matters.
                let inside = rest.iter().position(|byte| matches!(byte, b'"' | b'\\'));
                rest = &rest[inside.unwrap_or(rest.len())..];
            }
        }
        Ok(end)
    }

    /// The first [`HEAD_MAX`] bytes of the line, for messages.
    pub(crate) fn head(&self) -> &[u8] {
        &self.head
    }

    /// Bytes of the line so far, without its end.
    pub(crate) fn len(&self) -> u64 {
        self.len - u64::from(self.at_return)
    }

    /// The meaning of the line, after its end; `current` is the job that the worker has, and `objects` as for
    /// `jsonl::read_line`.
    ///
    /// # Errors
    /// Why it is not part of the protocol, for the log: one short line.
    pub(crate) fn end(&self, current: Option<u64>, objects: bool) -> Result<LongLineKind, String> {
        if self.no_object || self.depth > 0 || !self.was_open {
            return Err(format!("a line of {} bytes that is not a JSON object", self.len()));
        }
        let id = match &self.id {
            None => current.unwrap_or(0),
            Some(id) => from_slice::<String>(id)
                .ok()
                .and_then(|id| id.parse().ok())
                .ok_or_else(|| format!("a line of {} bytes whose id is not one of ours", self.len()))?,
        };
        // In the order in which `jsonl::read_line` looks for the fields of a shorter line.
        let first = |wanted: &[FieldPresence]| {
            FIELDS.iter().zip(self.seen).find_map(|(name, seen)| wanted.contains(&seen).then_some(*name))
        };
        let known = if objects {
            first(&[FieldPresence::Yes])
        } else {
            first(&[FieldPresence::Yes, FieldPresence::InOthers])
        };
        let is_reply = objects && (self.id.is_some() || current.is_some());
        let is_null =
            |name: &&str| FIELDS.iter().zip(self.seen).any(|field| field == (name, FieldPresence::Null));
        let empty = || NULLS.into_iter().find(|name| !objects && is_null(name));
        match known.or_else(empty) {
            Some("result") if self.more => Ok(LongLineKind::Part(id)),
            Some("result" | "error") => Ok(LongLineKind::Outcome(id)),
            Some(what @ ("event" | "progress")) => Ok(LongLineKind::Message(what, id)),
            Some("log") => Ok(LongLineKind::Log),
            None if is_reply => Ok(LongLineKind::Outcome(id)),
            _ => Err(format!("a line of {} bytes, which is not a reply, event or log line", self.len())),
        }
    }

    fn read(&mut self, byte: u8) {
        if self.in_string {
            if self.escaped {
                self.escaped = false;
            } else if byte == b'\\' {
                self.escaped = true;
            } else if byte == b'"' {
                self.in_string = false;
            }
            return self.keep(byte);
        }
        match byte {
            b' ' | b'\t' | b'\r' => {}
            b'{' if self.depth == 0 && !self.was_open => (self.depth, self.was_open) = (1, true),
            _ if self.depth == 0 => self.no_object = true,
            b':' if self.depth == 1 => self.name = self.take_name(),
            b',' if self.depth == 1 => self.end_field(),
            b']' if self.depth == 1 => self.no_object = true,
            b'}' | b']' => {
                if self.depth == 1 {
                    self.end_field();
                }
                self.depth -= 1;
            }
            _ => {
                self.keep(byte);
                self.in_string = byte == b'"';
                self.depth += u64::from(matches!(byte, b'{' | b'['));
            }
        }
    }

    fn keep(&mut self, byte: u8) {
        if self.depth == 1 && self.token.len() < TOKEN_MAX {
            self.token.push(byte);
        }
    }

    fn take_name(&mut self) -> Option<Field> {
        let name: Option<String> = from_slice(&std::mem::take(&mut self.token)).ok();
        FIELDS.iter().position(|known| Some(*known) == name.as_deref())
    }

    /// Ends a field. If a name occurs twice, the last value counts.
    fn end_field(&mut self) {
        let value = std::mem::take(&mut self.token);
        let Some(field) = self.name.take() else { return };
        match FIELDS[field] {
            "id" => self.id = Some(value).filter(|value| !is_absent("id", value, false)),
            "more" => self.more = value == b"true",
            "ready" | "retire" | "pong" => {
                self.seen[field] = if value == b"true" { FieldPresence::Yes } else { FieldPresence::Nothing };
            }
            name => {
                self.seen[field] = match (is_absent(name, &value, false), is_absent(name, &value, true)) {
                    (true, _) => FieldPresence::Null,
                    (false, true) => FieldPresence::InOthers,
                    (false, false) => FieldPresence::Yes,
                }
            }
        }
    }
}

/// The known names; the kinds of lines come in the order in which `jsonl::read_line` looks for them.
const FIELDS: [&str; 10] =
    ["ready", "retire", "pong", "result", "error", "event", "progress", "log", "id", "more"];

/// Those that are a message without parts if nothing else makes one of the line.
const NULLS: [&str; 2] = ["result", "event"];

/// Bytes kept of the beginning of the line: as many as a message shows, and a character more.
const HEAD_MAX: usize = 84;

/// Bytes kept of a name or value: every character of the longest ones may be written as `\u0069`.
const TOKEN_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    /// The same for every split into two parts.
    fn end(line: &str) -> Result<LongLineKind, String> {
        let whole = end_of(&[line.as_bytes()]);
        for cut in 0..line.len() {
            let (head, tail) = line.as_bytes().split_at(cut);
            assert_eq!(end_of(&[head, tail]), whole, "{line} cut at {cut}");
        }
        whole
    }

    fn end_of(parts: &[&[u8]]) -> Result<LongLineKind, String> {
        let mut long = LongLine::default();
        for part in parts {
            assert_eq!(long.push(part), Ok(None));
        }
        assert_eq!(long.push(b"\nnext"), Ok(Some(0)));
        assert_eq!(long.len(), parts.iter().map(|part| part.len() as u64).sum::<u64>());
        assert!(long.token.capacity() <= 2 * TOKEN_MAX);
        long.end(Some(7), false)
    }

    #[test]
    fn a_line_is_known_by_its_fields() {
        for (line, what) in [
            (r#"{"result":"x"}"#, LongLineKind::Outcome(7)),
            (
                r#" { "id" : "3" , "result" : [ "a\"}" , {"id":"9","more":true} ] } "#,
                LongLineKind::Outcome(3),
            ),
            (r#"{"result":["x"],"id":"\u0033"}"#, LongLineKind::Outcome(3)),
            (r#"{"error":{"code":"event","event":[]}}"#, LongLineKind::Outcome(7)),
            (r#"{"more":true,"result":{"result":1}}"#, LongLineKind::Part(7)),
            (r#"{"more":true,"more":false,"result":1}"#, LongLineKind::Outcome(7)),
            (r#"{"event":["result"],"id":"18446744073709551615"}"#, LongLineKind::Message("event", u64::MAX)),
            (r#"{"x\\":"\\","progress":"\\\"result\":"}"#, LongLineKind::Message("progress", 7)),
            (r#"{"l\u006fg":"{\"result\":1}"}"#, LongLineKind::Log),
            (r#"{"log":"x","event":1,"result":2,"ready":false}"#, LongLineKind::Outcome(7)),
            (
                r#"{"id":null,"result":null,"error":null,"event": null ,"progress":"x"}"#,
                LongLineKind::Message("progress", 7),
            ),
            (r#"{"id":"","result":null,"log":null}"#, LongLineKind::Outcome(7)),
            (r#"{"result":"x","result":null,"event":"x"}"#, LongLineKind::Message("event", 7)),
            (r#"{"event":null,"error":"","x":1}"#, LongLineKind::Outcome(7)),
            (r#"{"event":null,"x":1}"#, LongLineKind::Message("event", 7)),
        ] {
            assert_eq!(end(line), Ok(what), "{line}");
        }
        let deep = format!(r#"{{"x":{}1{},"log":1}}"#, "[".repeat(500), "]".repeat(500));
        assert_eq!(end(&deep), Ok(LongLineKind::Log));
        let long = format!(r#"{{"{}":"{}\"","id":"5","result":1}}"#, "n".repeat(500), "log".repeat(500));
        assert_eq!(end(&long), Ok(LongLineKind::Outcome(5)));
    }

    #[test]
    fn what_is_not_the_protocol_is_refused_in_a_short_line() {
        let long = "9".repeat(1_000);
        for line in [
            "",
            "x",
            "{}",
            "[1]",
            r#""result""#,
            r#"{"result":1"#,
            r#"{"result":1]}"#,
            r#"{"result":1}}"#,
            r#"{"result":1} x"#,
            r#"{"result"}"#,
            r#"{"ready":true,"result":1}"#,
            r#"{"retire":true}"#,
            r#"{"pong":true}"#,
            r#"{"id":3,"result":1}"#,
            r#"{"id":"-1","result":1}"#,
            &format!(r#"{{"id":"{long}","result":1}}"#),
            r#"{"id":[],"result":1}"#,
            r#"{"error":null}"#,
            r#"{"progress":null,"log":null}"#,
        ] {
            let error = end(line).unwrap_err();
            assert!(error.len() < 100, "{line}: {error}");
        }
    }

    #[test]
    fn an_object_is_the_reply_of_its_job() {
        let end = |line: &[u8], current, objects| {
            let mut long = LongLine::default();
            assert_eq!(long.push(line), Ok(None));
            assert_eq!(long.push(b"\n"), Ok(Some(0)));
            long.end(current, objects)
        };
        for (line, current, what) in [
            (r#"{"value":"x","ttl":{"log":1}}"#, Some(7), LongLineKind::Outcome(7)),
            (r#"{"id":"3","value":"x"}"#, Some(7), LongLineKind::Outcome(3)),
            (r#"{"id":"3","value":"x"}"#, None, LongLineKind::Outcome(3)),
            (r#"{"ready":false,"retire":"no"}"#, Some(7), LongLineKind::Outcome(7)),
            (r#"{"value":"x","log":1}"#, Some(7), LongLineKind::Log),
            (
                r#"{"value":"x","log":null,"result":null,"error":"","event":null}"#,
                Some(7),
                LongLineKind::Outcome(7),
            ),
            (r#"{"event":null}"#, Some(7), LongLineKind::Outcome(7)),
            (r#"{"value":"x","more":true,"result":1}"#, Some(7), LongLineKind::Part(7)),
        ] {
            assert_eq!(end(line.as_bytes(), current, true), Ok(what), "{line}");
        }
        for (line, current, objects) in [
            (r#"{"value":"x"}"#, None, true),
            (r#"{"result":null,"value":"x"}"#, None, true),
            (r#"{"value":"x","ready":true}"#, Some(7), true),
            (r#"{"id":3,"value":"x"}"#, Some(7), true),
            (r#"{"value":"x"}"#, Some(7), false),
        ] {
            assert!(end(line.as_bytes(), current, objects).is_err(), "{line}");
        }
    }

    #[test]
    fn a_carriage_return_before_the_end_does_not_count() {
        let mut long = LongLine::default();
        assert_eq!(long.push(b"{\"log\":1}\r"), Ok(None));
        assert_eq!(long.push(b"\n"), Ok(Some(0)));
        assert_eq!((long.len(), long.end(None, false)), (9, Ok(LongLineKind::Log)));
    }

    #[test]
    fn a_line_that_does_not_end_is_refused() {
        let mut long = LongLine { len: LongLine::MOST - 3, ..LongLine::default() };
        assert_eq!(long.push(b"xx"), Ok(None));
        assert!(long.push(b"x").unwrap_err().contains("4294967295 bytes and more"));
    }
}
