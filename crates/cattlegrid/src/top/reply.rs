//! Replies of `stats`, as blocks of lines, and those of control keys.
//!
//! # Invariants
//! * What is kept of the server's text is printable ASCII: [`plain`] escapes all else, so that no key and no
//!   pattern speaks to the terminal.
//! * A reply has [`REPLY_MAX`] bytes at most.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufRead, Read as _};

/// Most bytes of a reply. A reply with a thousand rules is shorter.
pub(super) const REPLY_MAX: usize = 16 << 20;
/// Most bytes of a line.
const LINE_MAX: u64 = 64 << 10;

/// A request for one kind of statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum StatsRequest {
    Stats,
    Cattlegrid,
    Rules,
    Tags,
    Loaders,
    Follow,
    Objects,
    Shares,
    Latency,
    Leases,
    Slabs,
    Items,
    Slow,
    Nodes,
}

impl StatsRequest {
    pub(super) const ALL: [Self; 14] = [
        Self::Stats,
        Self::Cattlegrid,
        Self::Rules,
        Self::Tags,
        Self::Loaders,
        Self::Follow,
        Self::Objects,
        Self::Shares,
        Self::Latency,
        Self::Leases,
        Self::Slabs,
        Self::Items,
        Self::Slow,
        Self::Nodes,
    ];

    pub(super) fn command(self) -> &'static str {
        match self {
            Self::Stats => "stats",
            Self::Cattlegrid => "stats cattlegrid",
            Self::Rules => "stats rules",
            Self::Tags => "stats tags",
            Self::Loaders => "stats loaders",
            Self::Follow => "stats follow",
            Self::Objects => "stats objects",
            Self::Shares => "stats shares",
            Self::Latency => "stats latency",
            Self::Leases => "stats leases",
            Self::Slabs => "stats slabs",
            Self::Items => "stats items",
            Self::Slow => "get @slow",
            Self::Nodes => "get @nodes",
        }
    }

    /// Whether the request is a get, which the server counts.
    pub(super) fn is_get(self) -> bool {
        matches!(self, Self::Slow | Self::Nodes)
    }

    /// Whether names of the reply's lines begin with a label.
    fn has_labels(self) -> bool {
        !matches!(self, Self::Stats | Self::Cattlegrid | Self::Leases)
    }
}

/// Lines by name.
pub(super) type NamedLines = BTreeMap<Box<str>, Box<str>>;

/// The lines with the same label, such as those of a rule.
#[derive(Debug, Clone, Default)]
pub(super) struct LabelledBlock {
    pub(super) label: Box<str>,
    pub(super) lines: NamedLines,
}

/// The reply to a command of `stats`.
#[derive(Debug, Clone, Default)]
pub(super) struct StatsGroup {
    /// Lines without a label.
    pub(super) top: NamedLines,
    /// The blocks in the order of the reply.
    pub(super) blocks: Vec<LabelledBlock>,
    places: HashMap<Box<str>, usize>,
}

impl StatsGroup {
    pub(super) fn block(&self, label: &str) -> Option<&LabelledBlock> {
        self.blocks.get(*self.places.get(label)?)
    }

    /// The value of a line. An empty label means a line without label.
    pub(super) fn get(&self, label: &str, name: &str) -> Option<&str> {
        let lines = if label.is_empty() { &self.top } else { &self.block(label)?.lines };
        lines.get(name).map(AsRef::as_ref)
    }

    fn insert(&mut self, ask: StatsRequest, name: &str, value: &str) {
        match name.rsplit_once(':') {
            Some((label, name)) if ask.has_labels() => {
                let at = *self.places.entry(label.into()).or_insert_with(|| {
                    self.blocks.push(LabelledBlock { label: label.into(), lines: NamedLines::new() });
                    self.blocks.len() - 1
                });
                self.blocks[at].lines.insert(name.into(), value.into());
            }
            _ => {
                self.top.insert(name.into(), value.into());
            }
        }
    }
}

/// A server's reply.
#[derive(Debug, Clone)]
pub(super) enum StatsReply {
    Lines(StatsGroup),
    /// The value of a control key.
    Value(Vec<u8>),
    /// The server has no such command or key.
    Absent,
    /// The server's refusal: the user has no right, or must log in.
    Refused(String),
}

/// Reads the reply to a command. Also returns its length in bytes.
///
/// # Errors
/// The reader's error; `InvalidData` for bytes that are no reply; `UnexpectedEof` if the connection ends.
pub(super) fn read_reply(reader: &mut impl BufRead, ask: StatsRequest) -> io::Result<(StatsReply, usize)> {
    let mut group = StatsGroup::default();
    let mut value = None;
    let mut bytes = 0;
    loop {
        let line = read_line(reader)?;
        bytes += line.len();
        if bytes > REPLY_MAX {
            return Err(wrong("its reply does not end"));
        }
        let text = plain(&line);
        let mut words = text.splitn(3, ' ');
        match (words.next().unwrap_or_default(), words.next(), words.next()) {
            ("END", None, _) if ask.is_get() => {
                return Ok((value.map_or(StatsReply::Absent, StatsReply::Value), bytes));
            }
            ("END", None, _) => return Ok((StatsReply::Lines(group), bytes)),
            ("ERROR", None, _) | ("SERVER_ERROR", ..) => return Ok((StatsReply::Absent, bytes)),
            // The reply to `get @nodes` of a server without a log of etcd.
            ("CLIENT_ERROR", Some(first), rest) => {
                let said = format!("{first} {}", rest.unwrap_or_default());
                let is_right = said.starts_with("not allowed") || said.starts_with("unauthenticated");
                return Ok((if is_right { StatsReply::Refused(said) } else { StatsReply::Absent }, bytes));
            }
            ("STAT", Some(name), value) => group.insert(ask, name, value.unwrap_or_default()),
            ("VALUE", Some(_), Some(rest)) if ask.is_get() => {
                let length = rest.split(' ').nth(1).and_then(|length| length.parse().ok());
                let length: usize =
                    length.filter(|length| *length <= REPLY_MAX).ok_or_else(|| wrong(&text))?;
                let mut data = vec![0; length + 2];
                reader.read_exact(&mut data)?;
                data.truncate(length);
                bytes += length;
                value = Some(data);
            }
            _ => return Err(wrong(&format!("it answers {:?}", text.chars().take(60).collect::<String>()))),
        }
    }
}

/// Reads a line, and returns it without its end.
pub(super) fn read_line(reader: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    reader.take(LINE_MAX).read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') {
        let is_long = line.len() + 1 >= LINE_MAX as usize;
        return Err(if is_long { wrong("it does not speak memcached's text protocol") } else { closed() });
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    Ok(line)
}

pub(super) fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "it has closed the connection")
}

/// Text that is safe for a terminal: bytes that are not printable ASCII are written as `%` and two digits, as
/// the server writes keys.
pub(super) fn plain(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        if byte == b' ' || byte.is_ascii_graphic() {
            text.push(char::from(byte));
        } else {
            let _infallible = write!(text, "%{byte:02X}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(ask: StatsRequest, text: &str) -> io::Result<StatsReply> {
        read_reply(&mut text.as_bytes(), ask).map(|(reply, _)| reply)
    }

    fn group(ask: StatsRequest, text: &str) -> StatsGroup {
        match reply(ask, text).unwrap() {
            StatsReply::Lines(group) => group,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lines_are_sorted_by_their_label() {
        let text = "STAT 1:match page:{id}\r\nSTAT 1:gets 7\r\nSTAT 10:gets 8\r\nSTAT 2:gets 9\r\n\
                    STAT total:gets 24\r\nSTAT hint_1 x:y z\r\nEND\r\n";
        let rules = group(StatsRequest::Rules, text);
        let labels: Vec<&str> = rules.blocks.iter().map(|block| &*block.label).collect();
        assert_eq!(labels, ["1", "10", "2", "total"]);
        assert_eq!(rules.get("1", "match"), Some("page:{id}"));
        assert_eq!((rules.get("2", "gets"), rules.get("3", "gets")), (Some("9"), None));
        assert_eq!(rules.get("", "hint_1"), Some("x:y z"));
        let objects = group(
            StatsRequest::Objects,
            "STAT set:items 1\r\nSTAT set:add:calls 3\r\nSTAT busy 0\r\nEND\r\n",
        );
        assert_eq!((objects.get("set:add", "calls"), objects.get("", "busy")), (Some("3"), Some("0")));
        assert_eq!(group(StatsRequest::Stats, "STAT pid\r\nEND\r\n").get("", "pid"), Some(""));
        let leases = group(StatsRequest::Leases, "STAT a:b token=1 kind=absent\r\nEND\r\n");
        assert_eq!(leases.get("", "a:b"), Some("token=1 kind=absent"));
    }

    #[test]
    fn other_servers_and_users_without_rights() {
        assert!(matches!(reply(StatsRequest::Cattlegrid, "ERROR\r\n"), Ok(StatsReply::Absent)));
        assert!(matches!(
            reply(StatsRequest::Nodes, "CLIENT_ERROR no log of etcd is followed\r\n"),
            Ok(StatsReply::Absent)
        ));
        let Ok(StatsReply::Refused(said)) = reply(StatsRequest::Rules, "CLIENT_ERROR not allowed\r\n") else {
            panic!()
        };
        assert_eq!(said.trim(), "not allowed");
        assert!(matches!(
            reply(StatsRequest::Stats, "CLIENT_ERROR unauthenticated\r\n"),
            Ok(StatsReply::Refused(_))
        ));
        let Ok(StatsReply::Value(value)) =
            reply(StatsRequest::Slow, "VALUE @slow 0 6\r\nEND\r\nx\r\nEND\r\n")
        else {
            panic!()
        };
        assert_eq!(value, b"END\r\nx");
        assert!(matches!(reply(StatsRequest::Slow, "END\r\n"), Ok(StatsReply::Absent)));
    }

    #[test]
    fn what_is_no_reply_is_an_error() {
        let kind = |text: &str| reply(StatsRequest::Stats, text).unwrap_err().kind();
        assert_eq!(kind("STAT pid 1\r\n"), io::ErrorKind::UnexpectedEof);
        assert_eq!(kind("STAT pi"), io::ErrorKind::UnexpectedEof);
        assert_eq!(kind("HTTP/1.1 400 Bad Request\r\n"), io::ErrorKind::InvalidData);
        assert_eq!(kind(&"x".repeat(70_000)), io::ErrorKind::InvalidData);
        assert!(reply(StatsRequest::Slow, "VALUE @slow 0 99999999999\r\n").is_err());
        let endless = format!("STAT a {}\r\n", "b".repeat(60_000)).repeat(REPLY_MAX / 60_000 + 1);
        assert_eq!(kind(&endless), io::ErrorKind::InvalidData);
    }

    #[test]
    fn nothing_of_the_server_speaks_to_the_terminal() {
        assert_eq!(plain(b"a\x1b]0;x\x07b\x9b c\xc3\xa9"), "a%1B]0;x%07b%9B c%C3%A9");
        let rules = group(StatsRequest::Rules, "STAT 1:match a\u{1b}[2Jb\r\nEND\r\n");
        assert_eq!(rules.get("1", "match"), Some("a%1B[2Jb"));
    }
}
