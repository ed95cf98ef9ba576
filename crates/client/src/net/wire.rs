//! Commands as bytes, and replies as values. No I/O.
//!
//! # Invariants
//! * A command has exactly one reply, also if that is an error: [`ExpectedReply`] says which elements can
//!   belong to it and which is the last one.
//! * Replies of the meta protocol name the number with which their command was sent, its opaque. Those of the
//!   others name at most a key, that of a value.
//! * Keys have been checked: 1 to 250 bytes without blanks and control characters.

use std::time::Duration;

use bytes::Bytes;
use cattlegrid_protocol::reply::number;
use cattlegrid_protocol::{BrokenResponse, ErrorKind, MetaStatus, Response, Status, Words};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, percent_encode};

use crate::error::Error;
use crate::item::{Item, Write};
use crate::metrics::RequestOutcome;

/// How commands are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Protocol {
    /// The meta commands: memcached 1.6.13 and later, Cattlegrid.
    #[default]
    Meta,
    /// The classic text commands, for servers and proxies without meta commands. Not possible with it: tags
    /// ([`Error::NoTags`]), leases (`get_or_compute` locks keys as over memcached, and a rule's `hold` and
    /// `grace` are not used), values in this process (feature `near-cache`: each read asks), and the new CAS
    /// number of a store.
    Text,
}

/// Longest P token that Cattlegrid takes, its letter included.
const ADVICE_MAX: usize = 512;

/// One command.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Command<'a> {
    /// Value and flags, with the CAS number or without.
    Get { key: &'a [u8], cas: bool },
    /// Value, flags, and the rest of the time to live, which only the meta protocol has.
    GetWithTime { key: &'a [u8] },
    /// A value, with a new expiry.
    GetAndTouch { key: &'a [u8], exptime: i32 },
    /// A value or the lease to compute it. `outlives`: the lease stays when its connection ends.
    Ask { key: &'a [u8], wait: Duration, lease: Duration, hint: Option<&'a str>, outlives: bool },
    /// Whether there is a value: no lease is given, and nothing is waited for.
    Look { key: &'a [u8] },
    /// Makes an item without a value.
    Claim { key: &'a [u8], exptime: u32 },
    /// Any of the stores. `token`: the CAS number of a cas.
    Store { verb: StoreVerb, write: Write<'a>, exptime: i32 },
    /// Adds or subtracts.
    Count { key: &'a [u8], by: u64, down: bool },
    /// Deletes, with the item's CAS number or without, with the text of a failed computation or without.
    Delete { key: &'a [u8], token: Option<u64>, failure: Option<&'a str> },
    /// A new expiry.
    Touch { key: &'a [u8], exptime: i32 },
    /// Invalidates a tag.
    Invalidate { tag: &'a str },
    /// The number of a tag: a question without effect that only servers with tags answer.
    TagNumber { tag: &'a str },
    /// `flush_all`.
    FlushAll,
    /// `version`.
    Version,
    /// `stats`, of a group or all.
    Stats { group: &'a str },
}

/// The verb of a store: its condition, and where the value goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreVerb {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    Cas(u64),
    /// A cas that is sent only on one of the connections of this process up to `connections`: the number is
    /// known from before the later ones were made, and the server may have been restarted in between.
    CasWithin {
        cas: u64,
        connections: u64,
    },
}

impl StoreVerb {
    fn text(self) -> &'static str {
        match self {
            Self::Set => "set",
            Self::Add => "add",
            Self::Replace => "replace",
            Self::Append => "append",
            Self::Prepend => "prepend",
            Self::Cas(_) | Self::CasWithin { .. } => "cas",
        }
    }

    fn mode(self) -> &'static [u8] {
        match self {
            Self::Set | Self::Cas(_) | Self::CasWithin { .. } => b"",
            Self::Add => b" ME",
            Self::Replace => b" MR",
            Self::Append => b" MA",
            Self::Prepend => b" MP",
        }
    }

    /// The CAS number that the item must have.
    fn cas(self) -> Option<u64> {
        match self {
            Self::Cas(cas) | Self::CasWithin { cas, .. } => Some(cas),
            _ => None,
        }
    }
}

impl Command<'_> {
    /// About how many bytes [`encode`](Self::encode) appends; at least the value's.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Store { write, .. } => {
                write.key.len() + write.data.len() + 96 + write.tags.iter().map(String::len).sum::<usize>()
            }
            Self::Ask { hint, .. } => 384 + hint.map_or(0, str::len),
            _ => 320,
        }
    }

    /// Whether replies to it name the number with which it was sent.
    pub(crate) fn is_numbered(&self, protocol: Protocol) -> bool {
        let classic =
            matches!(self, Self::FlushAll | Self::Version | Self::Stats { .. } | Self::Touch { .. });
        protocol == Protocol::Meta && !classic
    }

    /// Whether it may be sent on this connection of the process.
    pub(crate) fn goes_over(&self, connection: u64) -> bool {
        match self {
            Self::Store { verb: StoreVerb::CasWithin { connections, .. }, .. } => connection <= *connections,
            _ => true,
        }
    }

    /// Appends the request. `opaque`: the number that its reply is to name, if it can
    /// ([`is_numbered`](Self::is_numbered)).
    pub(crate) fn encode(&self, protocol: Protocol, opaque: u32, out: &mut Vec<u8>) {
        match (self, protocol) {
            (Self::FlushAll, _) => out.extend_from_slice(b"flush_all"),
            (Self::Version, _) => out.extend_from_slice(b"version"),
            (Self::Stats { group }, _) => words(out, "stats", group.as_bytes()),
            (Self::Touch { key, exptime }, _) => {
                words(out, "touch", key);
                out.push(b' ');
                signed(out, *exptime);
            }
            (Self::Invalidate { tag }, _) => {
                words(out, "md", tag.as_bytes());
                out.extend_from_slice(b" G");
            }
            (Self::TagNumber { tag }, _) => {
                words(out, "mg", tag.as_bytes());
                out.extend_from_slice(b" G v");
            }
            (_, Protocol::Meta) => self.encode_meta(out),
            (_, Protocol::Text) => self.encode_text(out),
        }
        if self.is_numbered(protocol) {
            out.extend_from_slice(b" O");
            number(out, opaque.into());
        }
        out.extend_from_slice(b"\r\n");
        if let Self::Store { write, .. } = self {
            out.extend_from_slice(write.data);
            out.extend_from_slice(b"\r\n");
        }
    }

    /// The line without its end.
    fn encode_meta(&self, out: &mut Vec<u8>) {
        match self {
            Self::Get { key, cas } => {
                words(out, "mg", key);
                out.extend_from_slice(if *cas { b" v f c" } else { b" v f" });
            }
            Self::GetWithTime { key } => {
                words(out, "mg", key);
                out.extend_from_slice(b" v f t");
            }
            Self::GetAndTouch { key, exptime } => {
                words(out, "mg", key);
                out.extend_from_slice(b" v f c T");
                signed(out, *exptime);
            }
            Self::Look { key } => {
                words(out, "mg", key);
                out.extend_from_slice(b" f");
            }
            Self::Ask { key, wait, lease, hint, outlives } => {
                words(out, "mg", key);
                out.extend_from_slice(b" v f c t R0 Pw");
                number(out, millis(*wait));
                if let Some(hint) = hint {
                    out.extend_from_slice(b",h");
                    out.extend_from_slice(hint.as_bytes());
                }
                if *outlives {
                    out.extend_from_slice(b",d");
                }
                out.extend_from_slice(b",l");
                number(out, millis(*lease).max(1));
            }
            Self::Claim { key, exptime } => {
                words(out, "mg", key);
                out.extend_from_slice(b" c N");
                number(out, (*exptime).into());
            }
            Self::Store { verb, write, exptime } => {
                words(out, "ms", write.key);
                out.push(b' ');
                number(out, write.data.len() as u64);
                out.extend_from_slice(verb.mode());
                if let Some(cas) = verb.cas() {
                    out.extend_from_slice(b" C");
                    number(out, cas);
                }
                if write.flags != 0 {
                    out.extend_from_slice(b" F");
                    number(out, write.flags.into());
                }
                if *exptime != 0 {
                    out.extend_from_slice(b" T");
                    signed(out, *exptime);
                }
                out.extend_from_slice(b" c");
                tags(out, write.tags);
            }
            Self::Count { key, by, down } => {
                words(out, "ma", key);
                out.extend_from_slice(if *down { b" MD v D" } else { b" v D" });
                number(out, *by);
            }
            Self::Delete { key, token, failure } => {
                words(out, "md", key);
                if let Some(token) = token {
                    out.extend_from_slice(b" C");
                    number(out, *token);
                }
                if let Some(failure) = failure {
                    out.extend_from_slice(b" Pe");
                    let failure = percent_encode(cut(failure, ADVICE_MAX - 2).as_bytes(), ESCAPED);
                    failure.for_each(|part| out.extend_from_slice(part.as_bytes()));
                }
            }
            _ => debug_assert!(false, "the same in both protocols: {self:?}"),
        }
    }

    /// The line without its end.
    fn encode_text(&self, out: &mut Vec<u8>) {
        match self {
            Self::Get { key, cas: false } | Self::GetWithTime { key } => words(out, "get", key),
            Self::Get { key, cas: true } | Self::Ask { key, .. } => words(out, "gets", key),
            Self::GetAndTouch { key, exptime } => {
                out.extend_from_slice(b"gats ");
                signed(out, *exptime);
                out.push(b' ');
                out.extend_from_slice(key);
            }
            Self::Store { verb, write, exptime } => {
                words(out, verb.text(), write.key);
                out.push(b' ');
                number(out, write.flags.into());
                out.push(b' ');
                signed(out, *exptime);
                out.push(b' ');
                number(out, write.data.len() as u64);
                if let Some(cas) = verb.cas() {
                    out.push(b' ');
                    number(out, cas);
                }
            }
            Self::Count { key, by, down } => {
                words(out, if *down { "decr" } else { "incr" }, key);
                out.push(b' ');
                number(out, *by);
            }
            Self::Delete { key, .. } => words(out, "delete", key),
            _ => debug_assert!(false, "the same in both protocols: {self:?}"),
        }
    }

    /// The command's name, as an [`Observer`](crate::Observer) is told it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Get { .. } | Self::GetWithTime { .. } => "get",
            Self::GetAndTouch { .. } => "get_and_touch",
            Self::Ask { .. } => "ask",
            Self::Look { .. } => "look",
            Self::Claim { .. } => "claim",
            Self::Store { verb, .. } => verb.text(),
            Self::Count { down: false, .. } => "incr",
            Self::Count { down: true, .. } => "decr",
            Self::Delete { .. } => "delete",
            Self::Touch { .. } => "touch",
            Self::Invalidate { .. } => "invalidate",
            Self::TagNumber { .. } => "tags",
            Self::FlushAll => "flush_all",
            Self::Version => "version",
            Self::Stats { .. } => "stats",
        }
    }

    /// The key whose item the command may change.
    pub(crate) fn written(&self) -> Option<&[u8]> {
        match self {
            Self::Store { write, .. } => Some(write.key),
            Self::Count { key, .. }
            | Self::Delete { key, .. }
            | Self::Touch { key, .. }
            | Self::GetAndTouch { key, .. } => Some(key),
            _ => None,
        }
    }

    /// The key of a read.
    pub(crate) fn read(&self) -> Option<&[u8]> {
        match self {
            Self::Get { key, .. }
            | Self::GetWithTime { key }
            | Self::GetAndTouch { key, .. }
            | Self::Ask { key, .. } => Some(key),
            _ => None,
        }
    }

    /// Which elements answer the command.
    pub(crate) fn expect(&self, protocol: Protocol) -> ExpectedReply {
        match (self, protocol) {
            (Self::FlushAll, _) => ExpectedReply::Flushed,
            (Self::Version, _) => ExpectedReply::Version,
            (Self::Stats { .. }, _) => ExpectedReply::Stats,
            (Self::Touch { .. }, _) => ExpectedReply::Touched,
            (Self::Invalidate { .. }, _) => ExpectedReply::Invalidated,
            (Self::TagNumber { .. }, _) => ExpectedReply::TagNumber,
            (Self::Store { .. }, Protocol::Meta) => ExpectedReply::MetaStored,
            (Self::Store { .. }, Protocol::Text) => ExpectedReply::Stored,
            (Self::Count { .. }, Protocol::Meta) => ExpectedReply::MetaNumber,
            (Self::Count { .. }, Protocol::Text) => ExpectedReply::Number,
            (Self::Delete { .. }, Protocol::Meta) => ExpectedReply::MetaDeleted,
            (Self::Delete { .. }, Protocol::Text) => ExpectedReply::Deleted,
            (Self::Claim { .. } | Self::Look { .. }, _) => ExpectedReply::Claimed,
            (_, Protocol::Meta) => ExpectedReply::MetaValue,
            (_, Protocol::Text) => ExpectedReply::Values,
        }
    }
}

macro_rules! expectations {
    ($($(#[$doc:meta])* $name:ident: $text:literal,)*) => {
        /// Which elements answer a command. An error line can answer any.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum ExpectedReply {
            $($(#[$doc])* #[doc = concat!("`", $text, "`")] $name,)*
        }

        impl ExpectedReply {
            /// The name of the expected reply, for errors.
            pub(crate) fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

expectations! {
    MetaValue: "VA or EN",
    MetaStored: "HD, NS, EX or NF",
    MetaNumber: "VA with a number, or NF",
    MetaDeleted: "HD, NF or EX",
    Claimed: "HD or EN",
    Invalidated: "HD",
    /// Also any other meta status.
    TagNumber: "VA or EN",
    /// At most one.
    Values: "the VALUE of the key, once, and END",
    Stored: "STORED, NOT_STORED, EXISTS or NOT_FOUND",
    Deleted: "DELETED or NOT_FOUND",
    Touched: "TOUCHED or NOT_FOUND",
    Number: "a number or NOT_FOUND",
    Flushed: "OK",
    Version: "VERSION",
    Stats: "STAT, END, OK or RESET",
}

/// Whether an element belongs to the reply of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ElementFit {
    /// A part, and more follow.
    Part,
    /// The last element.
    Last,
    /// No reply to it.
    Not,
}

impl ExpectedReply {
    /// Whether `response` belongs to the reply of a command that expects this. `key`: the key of a read, if
    /// its reply names it.
    pub(crate) fn fit(self, response: &Response<'_>, key: Option<&[u8]>) -> ElementFit {
        use {MetaStatus as M, Status as S};
        let meta = match response {
            Response::Meta { status, .. } => Some(*status),
            _ => None,
        };
        let word = match response {
            Response::Status(status) => Some(*status),
            _ => None,
        };
        let last = match (self, response) {
            (_, Response::Error { .. })
            | (Self::MetaValue | Self::TagNumber, Response::MetaValue { .. })
            | (Self::Number, Response::Number(_))
            | (Self::Stats | Self::Values, Response::End) => true,
            (Self::Values, Response::Value { key: named, .. }) => {
                return if key.is_none_or(|key| key == *named) { ElementFit::Part } else { ElementFit::Not };
            }
            (Self::Stats, Response::Stat { .. }) => return ElementFit::Part,
            (Self::MetaNumber, Response::MetaValue { data, .. }) => decimal(data).is_some(),
            (Self::MetaValue, _) => meta == Some(M::Miss),
            (Self::MetaNumber, _) => meta == Some(M::NotFound),
            (Self::TagNumber, _) => meta.is_some(),
            (Self::MetaStored, _) => meta.is_some_and(|meta| meta != M::Miss),
            (Self::MetaDeleted, _) => matches!(meta, Some(M::Done | M::NotFound | M::Exists)),
            (Self::Claimed, _) => matches!(meta, Some(M::Done | M::Miss)),
            (Self::Invalidated, _) => meta == Some(M::Done),
            (Self::Values, _) => false,
            (Self::Stored, _) => matches!(word, Some(S::Stored | S::NotStored | S::Exists | S::NotFound)),
            (Self::Deleted, _) => matches!(word, Some(S::Deleted | S::NotFound)),
            (Self::Touched, _) => matches!(word, Some(S::Touched | S::NotFound)),
            (Self::Number, _) => word == Some(S::NotFound),
            (Self::Flushed, _) => word == Some(S::Ok),
            (Self::Version, response) => {
                matches!(response, Response::Line(line) if line.starts_with(b"VERSION "))
            }
            (Self::Stats, _) => matches!(word, Some(S::Ok | S::Reset)),
        };
        if last { ElementFit::Last } else { ElementFit::Not }
    }
}

/// Whether a response names this number. Error lines cannot, and are let through.
pub(crate) fn names(response: &Response<'_>, opaque: u32) -> bool {
    let (Response::Meta { flags, .. } | Response::MetaValue { flags, .. }) = response else { return true };
    let is_it = |word: &[u8]| word.strip_prefix(b"O").and_then(decimal) == Some(opaque.into());
    // Servers repeat flags in their order, in which it is the last.
    flags.text().rsplit(|byte| *byte == b' ').next().is_some_and(is_it) || flags.clone().any(is_it)
}

/// Why bytes are no reply at all.
pub(crate) fn broken_text(why: BrokenResponse) -> &'static str {
    match why {
        BrokenResponse::LongLine => "a line that is too long",
        BrokenResponse::BadHeader => "a value whose first line is wrong",
        BrokenResponse::LargeData => "a value that is too large",
        BrokenResponse::BadData => "a value that does not end where its length says",
    }
}

/// The first line of some bytes for an error: in quotes, escaped, at most 100 bytes of it.
pub(crate) fn line_text(bytes: &[u8]) -> String {
    const LIMIT: usize = 100;
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let (cut, dots) = if line.len() > LIMIT { (&line[..LIMIT], "...") } else { (line, "") };
    format!("\"{}{dots}\"", cut.escape_ascii())
}

/// Checks a word that is sent: at most `limit` bytes without blanks and control characters. `what` names it.
pub(crate) fn check_word(what: &str, word: &str, limit: usize) -> Result<(), Error> {
    let shown = line_text(word.as_bytes());
    if word.is_empty() || word.len() > limit {
        let length = if word.is_empty() { "empty" } else { "too long" };
        return Err(Error::Usage(format!("{what} {shown} is {length}; possible are 1 to {limit} bytes")));
    }
    if word.bytes().any(|byte| byte <= b' ' || byte == 0x7f) {
        let text = format!("{what} {shown} has blanks or control characters, which are not possible");
        return Err(Error::Usage(text));
    }
    Ok(())
}

/// Longest tag, in bytes.
const TAG_MAX: usize = 200;
/// Most tags of an item.
const TAGS_MAX: usize = 8;

/// Checks a tag.
pub(crate) fn check_tag(tag: &str) -> Result<(), Error> {
    check_word("the tag", tag, TAG_MAX)
}

/// Checks the tags of a write.
pub(crate) fn check_tags(tags: &[String]) -> Result<(), Error> {
    if let Some(extra) = tags.get(TAGS_MAX) {
        let extra = line_text(extra.as_bytes());
        let text = format!(
            "more than {TAGS_MAX} tags of an item are not possible: the tag {extra} and all after it"
        );
        return Err(Error::Usage(text));
    }
    tags.iter().try_for_each(|tag| check_tag(tag))
}

/// A reply, with nothing borrowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    /// `VA` or `VALUE`.
    Value { item: Item, marks: MetaMarks },
    /// A meta status.
    Meta { status: MetaStatus, marks: MetaMarks },
    /// A word.
    Status(Status),
    /// A number.
    Number(u64),
    /// `END` alone.
    End,
    /// Any other line.
    Line(Bytes),
    /// `STAT` lines.
    Stats(Vec<(Bytes, Bytes)>),
    /// An error line.
    Error { kind: ErrorKind, line: Bytes },
    /// None: the command was not sent, because no connection is left that it [goes over](Command::goes_over).
    NotSent,
}

/// The flags of a meta reply besides those of the item.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct MetaMarks {
    /// `c`, of a reply without a value.
    pub(crate) cas: Option<u64>,
    /// `W`: this client computes.
    pub(crate) won: bool,
    /// `Z`: another one computes.
    pub(crate) busy: bool,
    /// `X`: the value is old.
    pub(crate) stale: bool,
    /// `t`: the rest of the time to live in seconds, -1 for ever.
    pub(crate) left: Option<i64>,
    /// `Ph` or `Pe`, decoded.
    pub(crate) text: Option<Bytes>,
}

impl Reply {
    /// Copies a response. `data`: makes the bytes of a value, which is the last part of the input.
    pub(crate) fn of(response: &Response<'_>, data: impl FnOnce(&[u8]) -> Bytes) -> Self {
        match response {
            Response::Value { flags, cas, data: value, .. } => {
                let item = Item { data: data(value), flags: *flags, cas: cas.unwrap_or(0) };
                Self::Value { item, marks: MetaMarks::default() }
            }
            Response::MetaValue { flags, data: value } => {
                let (client_flags, cas, marks) = marks(*flags);
                let item = Item { data: data(value), flags: client_flags, cas: cas.unwrap_or(0) };
                Self::Value { item, marks }
            }
            Response::Meta { status, flags } => {
                let (_, cas, marks) = marks(*flags);
                Self::Meta { status: *status, marks: MetaMarks { cas, ..marks } }
            }
            Response::Status(status) => Self::Status(*status),
            Response::Number(number) => Self::Number(*number),
            Response::End => Self::End,
            Response::MetaNoop => Self::Line(Bytes::from_static(b"MN")),
            Response::Stat { name, value } => {
                Self::Stats(vec![(Bytes::copy_from_slice(name), Bytes::copy_from_slice(value))])
            }
            Response::Error { kind, line } => Self::Error { kind: *kind, line: Bytes::copy_from_slice(line) },
            Response::Line(line) => Self::Line(Bytes::copy_from_slice(line)),
        }
    }

    /// Puts the bytes of a value in.
    pub(crate) fn set_data(&mut self, data: Bytes) {
        if let Self::Value { item, .. } = self {
            item.data = data;
        }
    }

    /// The reply of which `part` was an earlier element.
    pub(crate) fn after(self, part: Option<Self>) -> Self {
        match (part, self) {
            (Some(Self::Stats(mut all)), Self::Stats(more)) => {
                all.extend(more);
                Self::Stats(all)
            }
            (Some(part), Self::End) => part,
            (_, last) => last,
        }
    }

    /// The reply's first line or its kind, for errors.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Value { .. } => "a value".to_owned(),
            Self::Meta { status, .. } => match status {
                MetaStatus::Done => "HD",
                MetaStatus::Miss => "EN",
                MetaStatus::NotFound => "NF",
                MetaStatus::NotStored => "NS",
                MetaStatus::Exists => "EX",
            }
            .to_owned(),
            Self::Status(status) => match status {
                Status::Stored => "STORED",
                Status::NotStored => "NOT_STORED",
                Status::Exists => "EXISTS",
                Status::NotFound => "NOT_FOUND",
                Status::Deleted => "DELETED",
                Status::Touched => "TOUCHED",
                Status::Ok => "OK",
                Status::Reset => "RESET",
            }
            .to_owned(),
            Self::Number(_) => "a number".to_owned(),
            Self::End => "END".to_owned(),
            Self::Stats(_) => "statistics".to_owned(),
            Self::NotSent => "none".to_owned(),
            Self::Line(line) | Self::Error { line, .. } => line_text(line),
        }
    }

    /// The outcome of the request for a caller.
    pub(crate) fn outcome(&self) -> RequestOutcome {
        match self {
            Self::Value { item, marks } if (marks.won || marks.busy) && item.data.is_empty() => {
                RequestOutcome::Miss
            }
            Self::Value { .. } => RequestOutcome::Hit,
            Self::End | Self::Meta { status: MetaStatus::Miss, .. } => RequestOutcome::Miss,
            Self::Error { .. } => RequestOutcome::Error,
            _ => RequestOutcome::Done,
        }
    }

    /// The error, if it is an error line.
    pub(crate) fn checked(self, server: &str) -> Result<Self, Error> {
        let Self::Error { kind, line } = self else { return Ok(self) };
        let (server, line) = (server.to_owned(), String::from_utf8_lossy(&line).into_owned());
        Err(match kind {
            ErrorKind::Server => Error::Server { server, line },
            ErrorKind::Client | ErrorKind::Unknown => Error::Refused { server, line },
        })
    }
}

/// Client flags, CAS number and the rest.
fn marks(words: Words<'_>) -> (u32, Option<u64>, MetaMarks) {
    let mut marks = MetaMarks::default();
    let (mut flags, mut cas) = (0, None);
    for word in words {
        match word {
            b"W" => marks.won = true,
            b"Z" => marks.busy = true,
            b"X" => marks.stale = true,
            [b'f', digits @ ..] => flags = decimal(digits).unwrap_or(0) as u32,
            [b'c', digits @ ..] => cas = decimal(digits),
            b"t-1" => marks.left = Some(-1),
            [b't', digits @ ..] => marks.left = decimal(digits).and_then(|left| i64::try_from(left).ok()),
            [b'P', b'h' | b'e', text @ ..] => marks.text = Some(percent_decode(text).collect()),
            _ => {}
        }
    }
    (flags, cas, marks)
}

/// A number of at most 64 bits.
pub(crate) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |n, byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 { None } else { n.checked_mul(10)?.checked_add(digit.into()) }
    })
}

fn words(out: &mut Vec<u8>, verb: &str, word: &[u8]) {
    out.extend_from_slice(verb.as_bytes());
    if !word.is_empty() {
        out.push(b' ');
        out.extend_from_slice(word);
    }
}

fn signed(out: &mut Vec<u8>, n: i32) {
    if n < 0 {
        out.push(b'-');
    }
    number(out, n.unsigned_abs().into());
}

/// Whole milliseconds, rounded up, below 2^31.
fn millis(time: Duration) -> u64 {
    time.as_micros().div_ceil(1000).min(i32::MAX as u128) as u64
}

fn tags(out: &mut Vec<u8>, tags: &[String]) {
    for (i, tag) in tags.iter().enumerate() {
        out.extend_from_slice(if i == 0 { b" G" } else { b"," });
        for byte in tag.bytes() {
            match byte {
                b',' => out.extend_from_slice(b"%2C"),
                b'%' => out.extend_from_slice(b"%25"),
                byte => out.push(byte),
            }
        }
    }
}

/// All but letters, digits and `-._~`, which are sent as `%XX`.
pub(crate) const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The length of a text as it is sent.
pub(crate) fn escaped_len(text: &[u8]) -> usize {
    percent_encode(text, ESCAPED).map(str::len).sum()
}

/// The longest beginning of a text that can be sent in `limit` bytes.
pub(crate) fn cut(text: &str, limit: usize) -> &str {
    let mut length = 0;
    let fits = |(_, character): &(usize, char)| {
        length += escaped_len(character.encode_utf8(&mut [0; 4]).as_bytes());
        length <= limit
    };
    let end = text.char_indices().take_while(fits).last();
    end.map_or("", |(at, character)| &text[..at + character.len_utf8()])
}

/// The hint of an [`Ask`](crate::Ask) as it is sent.
pub(crate) fn hint(text: &[u8]) -> Result<String, Error> {
    // Letters, commas and the numbers of wait and lease.
    const LIMIT: usize = ADVICE_MAX - 32;
    if escaped_len(text) > LIMIT {
        return Err(Error::Usage(format!("a hint has more than {LIMIT} bytes when percent-encoded")));
    }
    Ok(percent_encode(text, ESCAPED).to_string())
}
