//! Texts about the failure of a worker: its last output, and the likely cause.
//!
//! Sans-io: the driver passes what it has of a worker.
//!
//! # Invariants
//! * A text is one line, and has at most [`SHOWN_BYTES`] bytes of what the worker wrote.

use serde_json::value::RawValue;

use crate::launch::LaunchMode;

/// Bytes of a worker's output that a message shows.
pub(crate) const SHOWN_BYTES: usize = 80;

/// Facts about a worker or template that did not become ready.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StartReport<'a> {
    pub(crate) mode: LaunchMode,
    /// The end of what it wrote to its log: standard error, and standard output unless it is a socket.
    pub(crate) output: &'a str,
    /// Bytes that it wrote to its socket and that are no whole message.
    pub(crate) unread: &'a [u8],
    /// The exit status; `None` if it was killed.
    pub(crate) status: Option<i32>,
    /// Whether it was killed because its start took too long.
    pub(crate) is_late: bool,
}

impl StartReport<'_> {
    /// The likely cause; `None` where the program's own words say it.
    pub(crate) fn cause(&self) -> Option<String> {
        let says_nothing = self.status == Some(0) || self.is_late;
        match self.mode {
            LaunchMode::Template | LaunchMode::Exec if self.output.lines().any(|line| is_ready(line.as_bytes())) => {
                Some(JSON_LINES.into())
            }
            LaunchMode::Stdio if !self.unread.is_empty() => Some(of_frames(self.unread)),
            LaunchMode::JsonLines if !self.unread.is_empty() => Some(format!(
                "its standard output ends with {}, which has no line end: write whole lines, and flush after each",
                quoted(self.unread)
            )),
            _ if !says_nothing => None,
            LaunchMode::Template | LaunchMode::Exec | LaunchMode::Stdio if self.status == Some(0) => Some(
                "it ended without serving: a program with an SDK calls serve() at its end, a program of JSON lines is started with \
                 mode = \"jsonl\""
                    .into(),
            ),
            LaunchMode::Template | LaunchMode::Exec | LaunchMode::Stdio => {
                Some("it has not said that it is ready: does it call serve()?".into())
            }
            LaunchMode::JsonLines if self.status == Some(0) => Some(
                "it ended without a line {\"ready\":true}: does it call serve(), or read its standard input to the end? A program \
                 whose SDK does not speak JSON lines is started with mode = \"template\""
                    .into(),
            ),
            LaunchMode::JsonLines => Some(
                "nothing came on its standard output, where it writes {\"ready\":true} first: is it flushed after each line (in Python \
                 flush=True or python3 -u), and does it call serve()?"
                    .into(),
            ),
        }
    }
}

/// A line of a worker of JSON lines that is not part of the protocol: `reason`, what was printed, and the
/// likely cause. `greeted`: it has said that it is ready.
pub(crate) fn of_line(reason: &str, line: &[u8], greeted: bool) -> String {
    let is_message = matches!(line.trim_ascii_start().first(), Some(b'{'));
    let cause = match (greeted, is_message) {
        (false, false) => {
            "a banner or a print before {\"ready\":true}? Standard output is for messages only, print to standard error"
        }
        (false, true) => "the first line must be {\"ready\":true}",
        (true, false) => "a print? Standard output is for messages only, print to standard error",
        (true, true) => {
            "each job has one answer, with its id or without, and logs go to standard error or into {\"log\":\"...\"}"
        }
    };
    format!("it printed {}: {reason}; {cause}", quoted(line))
}

/// Bytes of a worker of frames that are none.
pub(crate) fn of_frames(bytes: &[u8]) -> String {
    let cause =
        if bytes.first() == Some(&b'{') { JSON_LINES } else { "its standard output is for frames only" };
    format!("it wrote {}: {cause}", quoted(bytes))
}

/// A worker of JSON lines that has answered none of its jobs, when the time of one is up. `unread`: a line
/// without its end.
pub(crate) fn of_silence(unread: &[u8]) -> String {
    if unread.is_empty() {
        return "it has written no answer yet: is its standard output flushed after each line (in Python flush=True or python3 -u)?"
            .into();
    }
    format!("its answer {} has no line end", quoted(unread))
}

const JSON_LINES: &str =
    "it speaks JSON lines, a program that does is started with mode = \"jsonl\" (Launch::json_lines)";

fn is_ready(line: &[u8]) -> bool {
    let fields = serde_json::from_slice::<std::collections::BTreeMap<String, &RawValue>>(line);
    fields.is_ok_and(|fields| fields.get("ready").is_some_and(|value| value.get() == "true"))
}

/// The beginning of what was printed, in quotes: whole characters, those of control as escapes.
fn quoted(bytes: &[u8]) -> String {
    let bytes = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
    let mut head = &bytes[..bytes.len().min(SHOWN_BYTES)];
    if let Err(error) = std::str::from_utf8(head)
        && error.error_len().is_none()
        && head.len() < bytes.len()
    {
        // It was cut within a character.
        head = &head[..error.valid_up_to()];
    }
    let mut text = String::from("\"");
    for char in String::from_utf8_lossy(head).chars() {
        if char.is_control() { text.extend(char.escape_default()) } else { text.push(char) }
    }
    text + if head.len() < bytes.len() { "...\"" } else { "\"" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_printed_is_shown_up_to_80_bytes() {
        for (printed, shown) in [
            ("hello\r\nmore", "\"hello\"".to_owned()),
            ("it's \"x\"\t\u{1b}[1m", "\"it's \"x\"\\t\\u{1b}[1m\"".to_owned()),
            ("", "\"\"".to_owned()),
            (&"x".repeat(80), format!("\"{}\"", "x".repeat(80))),
            (&"x".repeat(81), format!("\"{}...\"", "x".repeat(80))),
            (&format!("x{}", "\u{fc}".repeat(50)), format!("\"x{}...\"", "\u{fc}".repeat(39))),
        ] {
            assert_eq!(quoted(printed.as_bytes()), shown);
        }
        assert_eq!(quoted(b"a\xffb\xc3"), "\"a\u{fffd}b\u{fffd}\"");
    }

    #[test]
    fn a_start_that_failed_has_a_likely_cause() {
        let start = StartReport {
            mode: LaunchMode::Template,
            output: "",
            unread: b"",
            status: Some(0),
            is_late: false,
        };
        let of = |start: StartReport<'_>| start.cause().unwrap_or_default();
        let ready = "Loading\n{\"ready\": true}\n";
        for mode in [LaunchMode::Template, LaunchMode::Exec] {
            assert!(of(StartReport { mode, output: ready, ..start }).contains("mode = \"jsonl\""));
            assert!(of(StartReport { mode, ..start }).contains("calls serve()"));
            assert!(
                of(StartReport { mode, status: None, is_late: true, ..start })
                    .contains("does it call serve()?")
            );
            assert_eq!(of(StartReport { mode, status: Some(1), ..start }), "", "its own words say why");
            assert_eq!(of(StartReport { mode, status: None, ..start }), "");
        }
        let stdio = StartReport { mode: LaunchMode::Stdio, ..start };
        assert!(of(StartReport { unread: b"{\"ready\":true}\n", ..stdio }).contains("mode = \"jsonl\""));
        assert!(
            of(StartReport { unread: b"Loading", ..stdio })
                .contains("\"Loading\": its standard output is for frames")
        );
        let lines = StartReport { mode: LaunchMode::JsonLines, ..start };
        assert!(of(StartReport { unread: b"{\"ready\":true}", ..lines }).contains("has no line end"));
        assert!(of(StartReport { ..lines }).contains("does it call serve()"));
        assert!(of(StartReport { status: None, is_late: true, ..lines }).contains("flushed after each line"));
        assert_eq!(of(StartReport { status: Some(1), ..lines }), "");
    }

    #[test]
    fn a_line_names_what_was_printed_and_why() {
        let of = |line: &str, greeted| of_line("not JSON", line.as_bytes(), greeted);
        assert!(
            of("Loading model", false)
                .starts_with("it printed \"Loading model\": not JSON; a banner or a print before")
        );
        assert!(
            of("debug", true)
                .ends_with("; a print? Standard output is for messages only, print to standard error")
        );
        assert!(of("{\"value\":1}", false).ends_with("the first line must be {\"ready\":true}"));
        assert!(of("{\"value\":1}", true).contains("each job has one answer"));
        assert!(
            of_silence(b"").contains("flushed") && of_silence(b"{\"v").contains("\"{\"v\" has no line end")
        );
    }
}
