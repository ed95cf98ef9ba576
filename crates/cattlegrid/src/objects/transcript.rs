//! Transcripts: requests as a client types them, each followed by the exact lines of its reply.
//!
//! ```text
//!   [objects]                              optional settings, as in a rule file, before everything else
//!   timezone = "Europe/Berlin"
//!
//!   -- a comment
//!   @ 2026-01-01T00:00:00Z                 sets the clock; after the first request it only goes forward
//!   get counter:add:visits:1
//!   VALUE counter:add:visits:1 0 1
//!   1
//!   END
//!   + 90s                                  moves it forward
//! ```
//! A reply has as many lines as the engine answers: they are compared with the lines that follow. Blank lines between
//! requests count for nothing. Lines end with LF or CRLF.

use std::path::Path;

use cattlegrid_config::{
    ConfigError, MOMENT_MAX_MS, RuleFile, Settings, UsageError, parse_moment, parse_step,
};

use super::ObjectsError;
use super::client::{ObjectClient, SendResult, TOO_LATE};
use crate::own_types::TYPES;

/// The clock of a transcript that does not set it: 2026-01-01T00:00:00Z, a Thursday.
const START_MS: u64 = 1_767_225_600_000;

/// Runs the transcript `text`, which is in `file`. Its number of requests, or the first difference. `dir`: types of users' own,
/// unless its settings name others.
///
/// # Errors
/// It is no transcript, or its settings cannot be used.
pub(super) fn run(
    file: &Path,
    text: &[u8],
    dir: Option<&Path>,
) -> Result<Result<usize, String>, ObjectsError> {
    let wrong = |number: usize, problem: &str| {
        let place = if number == 0 { String::new() } else { format!("{number}:") };
        ObjectsError::from(UsageError::new(format!("{}:{place} {problem}", file.display())))
    };
    if text.starts_with(BOM) {
        return Err(wrong(1, "begins with a byte order mark: save the file without it"));
    }
    let lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').map(without_cr).collect();
    let head = lines.iter().take_while(|line| !begins_body(line)).count();
    let strange = lines[..head].iter().position(|line| !is_setting(line));
    if let Some(place) = strange.filter(|_| !is_table(&lines[..head])) {
        let shown = lines[place].escape_ascii();
        return Err(wrong(place + 1, &format!("{shown}: is no request, comment, time or setting")));
    }
    let settings_text = String::from_utf8_lossy(&lines[..head].join(&b'\n')).into_owned();
    let settings = settings(file, &settings_text, dir)?;
    let clock = Clock::Set(START_MS);
    let mut script = Script { file, lines, at: head, settings, clock, requests: 0 };
    while script.at < script.lines.len() {
        if let Some(difference) = script.step()? {
            return Ok(Err(difference));
        }
    }
    if script.requests == 0 {
        return Err(wrong(0, "has no requests, such as get counter:add:visits:1"));
    }
    Ok(Ok(script.requests))
}

/// Those of a server whose rule file at `path` has this text; without `[objects]` all types are switched on.
pub(super) fn settings(path: &Path, text: &str, dir: Option<&Path>) -> Result<Settings, ConfigError> {
    let has_table = text.lines().any(|line| line.trim_start().starts_with("[objects"));
    let text = if has_table { text.to_owned() } else { format!("{text}\n[objects]\n") };
    let file = RuleFile::parse_beside(path, &text, dir, TYPES)?;
    file.settings_with(dir).map_err(|error| ConfigError::of(path, error))
}

/// A transcript on its way.
struct Script<'t> {
    file: &'t Path,
    lines: Vec<&'t [u8]>,
    /// The next line.
    at: usize,
    settings: Settings,
    clock: Clock,
    requests: usize,
}

/// The clock, and with the first request the client that has it.
enum Clock {
    /// Any moment can be set: Unix time in milliseconds.
    Set(u64),
    /// It only goes forward.
    Runs(Box<ObjectClient>),
}

impl Clock {
    fn set(&mut self, unix_ms: u64) -> Result<(), String> {
        match self {
            Self::Set(ms) => *ms = unix_ms,
            Self::Runs(client) => client.set_time(unix_ms)?,
        }
        Ok(())
    }

    fn wait(&mut self, ms: u64) -> Result<(), String> {
        let now = match self {
            Self::Set(now) => *now,
            Self::Runs(client) => client.unix_ms(),
        };
        let next = now.saturating_add(ms);
        if next > MOMENT_MAX_MS { Err(TOO_LATE.to_owned()) } else { self.set(next) }
    }
}

impl Script<'_> {
    /// A line that is not a reply, and the reply if it is a request. A difference, if there is one.
    fn step(&mut self) -> Result<Option<String>, ObjectsError> {
        let line = self.lines[self.at];
        let number = self.at + 1;
        let text = String::from_utf8_lossy(line);
        let text = text.trim();
        let file = self.file.display();
        let wrong =
            |problem: &str| ObjectsError::from(UsageError::new(format!("{file}:{number}: {problem}")));
        self.at += 1;
        if text.is_empty() || text.starts_with("--") {
            return Ok(None);
        }
        if let Some(moment) = text.strip_prefix('@') {
            let moment = moment.trim();
            let set = parse_moment(moment).and_then(|ms| self.clock.set(ms));
            return set.map(|()| None).map_err(|problem| wrong(&format!("@ {moment}: {problem}")));
        }
        if let Some(step) = text.strip_prefix('+') {
            let step = step.trim();
            let set = parse_step(step).and_then(|ms| self.clock.wait(ms));
            return set.map(|()| None).map_err(|problem| wrong(&format!("+ {step}: {problem}")));
        }
        if !is_request(line) {
            let shown = line.escape_ascii();
            let hint = if is_request(line.trim_ascii_start()) {
                ": requests begin at the first column"
            } else if self.requests == 0 || line.first().is_some_and(u8::is_ascii_lowercase) {
                ": it is no request"
            } else {
                ""
            };
            return Ok(Some(format!("{file}:{number}: expected {shown}\n  got nothing more{hint}")));
        }
        if let Clock::Set(ms) = self.clock {
            self.clock = Clock::Runs(Box::new(ObjectClient::new(&self.settings, ms)?));
        }
        let Clock::Runs(client) = &mut self.clock else { unreachable!("it was set above") };
        let mut request = [line, b"\r\n"].concat();
        let replies = loop {
            match client.send(&request) {
                SendResult::Replies(replies) => break replies,
                SendResult::Incomplete => {
                    let Some(data) = self.lines.get(self.at) else {
                        return Err(wrong("the data block is missing"));
                    };
                    request.extend_from_slice(data);
                    request.extend_from_slice(b"\r\n");
                    self.at += 1;
                }
            }
        };
        self.requests += 1;
        Ok(self.compare(&replies))
    }

    /// Compares a reply with the lines that follow.
    fn compare(&mut self, replies: &[u8]) -> Option<String> {
        for got in replies.strip_suffix(b"\n")?.split(|byte| *byte == b'\n').map(without_cr) {
            let expected = self.lines.get(self.at).copied();
            if expected != Some(got) {
                let same =
                    expected.map_or(0, |line| line.iter().zip(got).take_while(|(a, b)| a == b).count());
                let expected = expected.map_or("the end of the file".to_owned(), |line| shown(line, same));
                let (file, number) = (self.file.display(), self.at + 1);
                return Some(format!("{file}:{number}: expected {expected}\n  got {}", shown(got, same)));
            }
            self.at += 1;
        }
        None
    }
}

/// A line, or the part of a long one around its byte `place`, with its length.
fn shown(line: &[u8], place: usize) -> String {
    if line.len() <= SHOWN_MAX {
        return line.escape_ascii().to_string();
    }
    let first = place.saturating_sub(SHOWN_BEFORE).min(line.len() - SHOWN_MAX);
    let last = first + SHOWN_MAX;
    let dots = |is_cut: bool| if is_cut { "..." } else { "" };
    let (before, after) = (dots(first > 0), dots(last < line.len()));
    format!("{before}{}{after} ({} bytes)", line[first..last].escape_ascii(), line.len())
}

/// Bytes of a line in a message, and of those before the first difference.
const SHOWN_MAX: usize = 400;
const SHOWN_BEFORE: usize = 100;
/// What some editors write at the beginning of a file.
const BOM: &[u8] = b"\xef\xbb\xbf";

/// Whether settings have a table, so that any line may be a part of a value.
fn is_table(lines: &[&[u8]]) -> bool {
    lines.iter().any(|line| line.trim_ascii_start().starts_with(b"["))
}

/// A blank line, a comment or a setting.
fn is_setting(line: &[u8]) -> bool {
    let line = line.trim_ascii();
    line.is_empty() || line.starts_with(b"#") || line.starts_with(b"[") || line.contains(&b'=')
}

fn without_cr(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Where the settings end.
fn begins_body(line: &[u8]) -> bool {
    line.starts_with(b"--") || line.starts_with(b"@") || line.starts_with(b"+") || is_request(line)
}

fn is_request(line: &[u8]) -> bool {
    let word = line.split(|byte| *byte == b' ').next().unwrap_or_default();
    COMMANDS.contains(&word) && (line.len() > word.len() || word == b"mn")
}

/// Commands of clients about keys.
const COMMANDS: [&[u8]; 20] = [
    b"get", b"gets", b"gat", b"gats", b"set", b"add", b"replace", b"append", b"prepend", b"cas", b"incr",
    b"decr", b"touch", b"delete", b"mg", b"ms", b"md", b"ma", b"me", b"mn",
];
