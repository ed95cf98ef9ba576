//! One client: the commands that it sends, and the replies that each may have.
//!
//! Replies are matched to commands one to one and in order. A command that asks for silence has no reply. A
//! quiet `ms`, which may have a reply, is followed by `mn`, so that each line can be assigned; a quiet `mg`
//! has its opaque for that. A client speaks one protocol: [`packets`] has the packets, [`answers`] their
//! replies.

mod answers;
mod packets;

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use cattlegrid_protocol::{MetaStatus, ParsedResponse, Response, opcode, parse_response};

use super::book::{Book, KEYS, UNWRITTEN, is_ruled};
use super::{Choices, ITEM_MAX, caps};
use answers::{OwnKeyState, PendingPacket};
use packets::key_of_many;

/// A client, its connection, and the commands without replies.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is true or not whatever the others are")]
pub(super) struct Client {
    stream: UnixStream,
    /// The client's number, unique on the server.
    number: u64,
    /// Whether it speaks the binary protocol.
    binary: bool,
    /// Whether it reads whenever it can; otherwise only in its turn.
    eager: bool,
    /// Bytes not sent yet, of commands in `asked`.
    unsent: VecDeque<u8>,
    /// Commands without their replies.
    asked: VecDeque<PendingCommand>,
    received: Vec<u8>,
    half_closed: bool,
    /// Whether the server has said that it closes, or the client has sent a command that closes the
    /// connection.
    closing: bool,
    over: bool,
    opaques: u64,
    /// The number of packets so far.
    packets: u32,
    /// The state of the client's own key.
    own: OwnKeyState,
}

#[derive(Debug)]
struct PendingCommand {
    what: ExpectedReply,
    /// Length of the command, in bytes.
    bytes: usize,
    /// The number of its bytes that are not sent yet.
    unsent: usize,
    /// When its first byte was sent.
    begun: u64,
    /// When its last byte was sent.
    sent: u64,
}

/// A command and the replies that it may have.
#[derive(Debug)]
enum ExpectedReply {
    /// `get gets gat gats`: keys whose values may still follow.
    Get(VecDeque<usize>),
    /// `mg`, whose reply has the opaque.
    MetaGet {
        key: usize,
        opaque: String,
        quiet: bool,
    },
    /// A classic store.
    Store {
        verb: &'static str,
        key: usize,
        serial: u64,
        noreply: bool,
        too_large: bool,
    },
    /// `ms`, with its mode.
    MetaSet {
        mode: &'static str,
        key: usize,
        serial: u64,
        opaque: String,
        quiet: bool,
        too_large: bool,
    },
    /// `delete`, `md`.
    Delete {
        key: usize,
        noreply: bool,
    },
    /// A command with one of these lines as its reply. A line that begins with a digit stands for any number.
    Line(&'static [&'static str]),
    /// A command without a reply.
    Silent,
    Noop,
    Packet(PendingPacket),
}

/// Bytes of the shortest command that may arrive in part and be refused.
const PARTIAL_LEAST: usize = 16;

const NO_MEMORY: &str = "SERVER_ERROR out of memory storing object";
const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";
const NO_MEMORY_READING: &str = "SERVER_ERROR out of memory reading request";
/// A placeholder for any number.
const NUMBER: &str = "0";

impl Client {
    pub(super) fn new(stream: UnixStream, number: u64, eager: bool, binary: bool) -> Self {
        Self {
            stream,
            number,
            binary,
            eager,
            unsent: VecDeque::new(),
            asked: VecDeque::new(),
            received: Vec::new(),
            half_closed: false,
            closing: false,
            over: false,
            opaques: 0,
            packets: 0,
            own: OwnKeyState::default(),
        }
    }

    /// Whether the client reads whenever it can.
    pub(super) fn is_eager(&self) -> bool {
        self.eager
    }

    /// Whether the connection is closed in an orderly way.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// Whether all commands that were sent have their replies.
    pub(super) fn is_answered(&self) -> bool {
        self.asked.iter().all(PendingCommand::may_have_no_reply)
            && self.unsent.is_empty()
            && !self.half_closed
    }

    /// Whether the client sends more commands.
    pub(super) fn may_ask(&self) -> bool {
        !self.over && !self.half_closed && !self.closing && self.asked.len() <= 40
    }

    /// Chooses a command, without sending it.
    pub(super) fn command(&mut self, choices: &mut Choices<'_>, book: &mut Book) {
        if !self.may_ask() {
            return;
        }
        if self.binary {
            return self.packet(choices, book);
        }
        match choices.below(16) {
            0..=2 => self.get(choices),
            3 => self.meta_get(choices),
            4 => {
                let first = choices.below(KEYS.len() as u64) as usize;
                self.run_of_meta_gets(first, choices);
            }
            5..=8 => self.store(choices, book),
            9..=11 => self.meta_set(choices, book),
            12 => self.delete(choices, book),
            13 => self.count(choices),
            14 => self.fill(choices),
            _ => match choices.below(4) {
                0 => self.ask(b"mn\r\n", ExpectedReply::Noop),
                1 => self.ask(b"version\r\n", ExpectedReply::Line(&["VERSION 1.6.45"])),
                2 => self.ask(b"bogus\r\n", ExpectedReply::Line(&["ERROR"])),
                _ => self.ask(b"touch p0 100\r\n", ExpectedReply::Line(&["TOUCHED", "NOT_FOUND"])),
            },
        }
    }

    fn get(&mut self, choices: &mut Choices<'_>) {
        let verb = choices.one_of(&["get", "gets", "gat 100", "gats  100"]);
        // The counts are short, longer than the least upload, and longer than the receive buffer.
        let count = choices.one_of(&[1, 1, 2, 5, 3_000, 7_000, 9_000]);
        let (first, step) = (choices.below(8) as usize, choices.one_of(&[0, 1, 3]));
        let keys: Vec<usize> = (0..count).map(|n| key_of_many(first + n * step, n)).collect();
        let mut line = verb.as_bytes().to_vec();
        for key in &keys {
            line.extend_from_slice(blank(choices, count < 9).as_bytes());
            line.extend_from_slice(KEYS[*key].0.as_bytes());
            if line.len() > caps().get_line_bytes - 32 {
                break;
            }
        }
        let words = line.split(|b| *b == b' ').filter(|word| !word.is_empty()).count();
        let keys = keys[..words - 1 - usize::from(verb.starts_with("gat"))].to_vec();
        line.extend_from_slice(b"\r\n");
        self.ask(&line, ExpectedReply::Get(keys.into()));
    }

    fn meta_get(&mut self, choices: &mut Choices<'_>) {
        let key = choices.below(KEYS.len() as u64) as usize;
        let quiet = choices.below(3) == 0;
        self.meta_get_of(key, quiet, choices);
        if quiet {
            self.ask(b"mn\r\n", ExpectedReply::Noop);
        }
    }

    fn meta_get_of(&mut self, key: usize, quiet: bool, choices: &mut Choices<'_>) {
        let (word, base64) = form_of(key, choices);
        let opaque = self.opaque();
        let q = if quiet { " q" } else { "" };
        let line = format!("mg{}{word} v k {opaque}{q}{base64}\r\n", blank(choices, true));
        self.ask(line.as_bytes(), ExpectedReply::MetaGet { key, opaque, quiet });
    }

    /// Chooses a run of quiet gets from this key on.
    pub(super) fn run_of_gets(&mut self, first: usize, choices: &mut Choices<'_>, book: &mut Book) {
        if self.binary {
            self.run_of_packets(first, choices, book);
        } else {
            self.run_of_meta_gets(first, choices);
        }
    }

    /// Chooses a run of quiet `mg`, and a command that ends it, or none for now.
    fn run_of_meta_gets(&mut self, first: usize, choices: &mut Choices<'_>) {
        let count = choices.one_of(&[2, 2, 3, 5, 8, 12, 70]);
        let step = choices.one_of(&[0, 1, 1, 3]);
        for n in 0..count {
            self.meta_get_of(key_of_many(first + n * step, n), true, choices);
        }
        match choices.below(8) {
            0..=3 => self.ask(b"mn\r\n", ExpectedReply::Noop),
            4 => self.meta_get_of(first, false, choices),
            5 => self.get_one(first),
            6 => self.ask(b"version\r\n", ExpectedReply::Line(&["VERSION 1.6.45"])),
            _ => {}
        }
    }

    fn store(&mut self, choices: &mut Choices<'_>, book: &mut Book) {
        let verb =
            choices.one_of(&["set", "set", "set", "add", "replace", "append", "prepend", "cas", "set"]);
        let key = choices.below(UNWRITTEN as u64) as usize;
        let noreply = choices.below(3) == 0;
        let (value, serial, too_large) = value(choices, book, key);
        let mut line = verb.to_owned();
        let len = value.len().to_string();
        for word in [KEYS[key].0, "0", "0", &len] {
            line.push_str(blank(choices, true));
            line.push_str(word);
        }
        if verb == "cas" {
            line.push_str(" 1");
        }
        if noreply {
            line.push_str(" noreply");
        }
        self.ask_with(&line, &value, ExpectedReply::Store { verb, key, serial, noreply, too_large });
    }

    /// Stores a small value, which a refusal of the next one must remove.
    pub(super) fn set_small(&mut self, key: usize, book: &mut Book) {
        if self.binary {
            return self.set_small_packet(key, book);
        }
        let mut value = Vec::new();
        let serial = book.write(key, 0, &mut value);
        let line = format!("set {} 0 0 {}", KEYS[key].0, value.len());
        let what = ExpectedReply::Store { verb: "set", key, serial, noreply: false, too_large: false };
        self.ask_with(&line, &value, what);
    }

    /// Gets one key.
    pub(super) fn get_one(&mut self, key: usize) {
        if self.binary {
            return self.get_packet(opcode::GETK, key);
        }
        self.ask(format!("get {}\r\n", KEYS[key].0).as_bytes(), ExpectedReply::Get([key].into()));
    }

    fn meta_set(&mut self, choices: &mut Choices<'_>, book: &mut Book) {
        let key = choices.below(UNWRITTEN as u64) as usize;
        self.meta_set_of(key, choices, book);
    }

    /// Stores by `ms`, or by a packet, in any form.
    pub(super) fn store_any(&mut self, key: usize, choices: &mut Choices<'_>, book: &mut Book) {
        if self.binary {
            self.store_packet(key, choices, book);
        } else {
            self.meta_set_of(key, choices, book);
        }
    }

    fn meta_set_of(&mut self, key: usize, choices: &mut Choices<'_>, book: &mut Book) {
        let (word, base64) = form_of(key, choices);
        let mode = choices.one_of(&["", "", "MS", "ME", "MR", "MA", "MP", "C1"]);
        let quiet = choices.below(2) == 0;
        let (value, serial, too_large) = value(choices, book, key);
        let opaque = self.opaque();
        let q = if quiet { " q" } else { "" };
        let line = format!("ms{}{word} {} {opaque} {mode}{q}{base64}", blank(choices, true), value.len());
        self.ask_with(
            line.trim_end(),
            &value,
            ExpectedReply::MetaSet { mode, key, serial, opaque, quiet, too_large },
        );
        if quiet {
            self.ask(b"mn\r\n", ExpectedReply::Noop);
        }
    }

    /// Deletes a key and gets it, so that the client has the lease of a key under the rule.
    pub(super) fn miss(&mut self, key: usize, book: &mut Book) {
        book.deletes += 1;
        if self.binary {
            self.delete_quietly(key);
        } else {
            let line = format!("delete {} noreply\r\n", KEYS[key].0);
            self.ask(line.as_bytes(), ExpectedReply::Delete { key, noreply: true });
        }
        self.get_one(key);
    }

    fn delete(&mut self, choices: &mut Choices<'_>, book: &mut Book) {
        let (key, word, base64) = key(choices);
        book.deletes += 1;
        if !base64.is_empty() || choices.below(2) == 0 {
            self.ask(
                format!("md {word}{base64}\r\n").as_bytes(),
                ExpectedReply::Delete { key, noreply: false },
            );
        } else {
            let noreply = choices.below(2) == 0;
            let silent = if noreply { " noreply" } else { "" };
            self.ask(format!("delete {word}{silent}\r\n").as_bytes(), ExpectedReply::Delete { key, noreply });
        }
    }

    /// Counts, on a key of its own.
    fn count(&mut self, choices: &mut Choices<'_>) {
        let by = choices.one_of(&["1", "1000000000000", "9000000000000000000"]);
        match choices.below(4) {
            0 => self.ask(b"set n 0 0 1 noreply\r\n1\r\n", ExpectedReply::Silent),
            1 => self.ask(format!("incr n {by} noreply\r\n").as_bytes(), ExpectedReply::Silent),
            2 => self.ask(b"decr n 1\r\n", ExpectedReply::Line(&["NOT_FOUND", NUMBER])),
            _ => {
                self.ask(
                    format!("incr n {by}\r\n").as_bytes(),
                    ExpectedReply::Line(&["NOT_FOUND", NUMBER, NO_MEMORY]),
                );
            }
        }
    }

    /// Fills the store with values that are never read.
    fn fill(&mut self, choices: &mut Choices<'_>) {
        let (number, len) = (choices.below(256), choices.one_of(&[100, 3_000, 30_000, 60_000]));
        let line = format!("set f{number} 0 0 {len} noreply");
        self.ask_with(&line, &vec![b'f'; len], ExpectedReply::Silent);
    }

    /// Sends this many bytes of values that stay.
    pub(super) fn fill_up(&mut self, bytes: usize) {
        let mut left = bytes;
        while left > 0 {
            // Small values use the room that is left between the large ones.
            let len = [300, 3_000, 30_000].into_iter().rfind(|len| left > 10 * len).unwrap_or(300).min(left);
            let line = format!("set q{left} 0 0 {len} noreply");
            self.ask_with(&line, &vec![b'q'; len], ExpectedReply::Silent);
            left -= len;
        }
    }

    /// Whether all chosen commands are sent.
    pub(super) fn has_sent_all(&self) -> bool {
        self.unsent.is_empty()
    }

    fn opaque(&mut self) -> String {
        self.opaques += 1;
        format!("O{}", self.opaques)
    }

    fn ask_with(&mut self, line: &str, value: &[u8], what: ExpectedReply) {
        let mut bytes = line.as_bytes().to_vec();
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(value);
        bytes.extend_from_slice(b"\r\n");
        self.ask(&bytes, what);
    }

    fn ask(&mut self, bytes: &[u8], what: ExpectedReply) {
        self.unsent.extend(bytes);
        self.asked.push_back(PendingCommand {
            what,
            bytes: bytes.len(),
            unsent: bytes.len(),
            begun: 0,
            sent: 0,
        });
    }

    /// Sends at most `most` bytes, as far as the socket takes them.
    pub(super) fn flush(&mut self, most: usize, book: &mut Book) {
        let mut left = most.min(self.unsent.len());
        while left > 0 && !self.over {
            let (first, _) = self.unsent.as_slices();
            let sent = match self.stream.write(&first[..first.len().min(left)]) {
                Ok(sent) => sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
                    // Earlier replies are still to be read, and tell why.
                    self.unsent.clear();
                    return;
                }
            };
            self.unsent.drain(..sent);
            left -= sent;
            let now = book.tick();
            let mut rest = sent;
            for asked in self.asked.iter_mut().filter(|asked| asked.unsent > 0) {
                let part = asked.unsent.min(rest);
                if part == 0 {
                    break;
                }
                if asked.begun == 0 {
                    asked.begun = now;
                }
                asked.unsent -= part;
                rest -= part;
                if asked.unsent == 0 {
                    asked.sent = now;
                    book.commands += 1;
                }
            }
        }
    }

    /// Closes the sending direction, unless a command is partly sent.
    pub(super) fn half_close(&mut self) {
        if self.unsent.is_empty() && !self.half_closed {
            self.half_closed = true;
            // The server may have closed already.
            let _gone = self.stream.shutdown(Shutdown::Write);
        }
    }

    /// Reads all available bytes, and matches them with the commands.
    pub(super) fn read(&mut self, book: &mut Book) {
        if self.over {
            return;
        }
        let mut room = [0; 16 << 10];
        let ended = loop {
            match self.stream.read(&mut room) {
                Ok(0) => break true,
                Ok(n) => self.received.extend_from_slice(&room[..n]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break false,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                    break true;
                }
            }
        };
        let mut at = 0;
        while at < self.received.len() {
            assert!(!self.closing, "after the last reply: {}", show(&self.received[at..]));
            let used = if self.binary { self.match_packet(at, book) } else { self.match_next(at, book) };
            let Some(used) = used else { break };
            at += used;
        }
        self.received.drain(..at);
        if ended {
            let in_order = self.closing
                || self.half_closed && !self.waits_for_replies()
                || self.received.is_empty() && self.ends_silently(book);
            assert!(
                self.received.is_empty() && in_order || book.may_be_cut(),
                "closed without a word, after {:?}, before {:?}",
                show(&self.received),
                self.asked
            );
            self.over = true;
        }
    }

    /// Whether a command that was sent completely waits for its reply.
    fn waits_for_replies(&self) -> bool {
        self.asked.iter().any(|asked| asked.unsent == 0 && !asked.may_have_no_reply())
    }

    /// Sends a command whose reply proves that all commands before it are executed.
    pub(super) fn ask_for_proof(&mut self) {
        if self.over || self.half_closed || self.closing {
            return;
        }
        if self.binary {
            self.prove();
        } else {
            self.ask(b"mn\r\n", ExpectedReply::Noop);
        }
    }

    /// Matches the next reply, and returns its length; None: it is incomplete.
    fn match_next(&mut self, at: usize, book: &mut Book) -> Option<usize> {
        let reply = &self.received[at..];
        let (response, bytes) = match parse_response(reply) {
            ParsedResponse::Complete { response, used } => (response, used),
            ParsedResponse::Partial { .. } => return None,
            ParsedResponse::Broken(why) => panic!("{why:?}: {}", show(reply)),
        };
        let line_end = memchr::memchr(b'\n', reply).expect("an element has a line");
        let line = String::from_utf8_lossy(&reply[..line_end]).trim_end_matches('\r').to_owned();
        loop {
            let asked =
                self.asked.front_mut().unwrap_or_else(|| panic!("no request is open: {}", show(reply)));
            match asked.matches(&line, response, book) {
                ReplyMatch::Whole => {}
                ReplyMatch::Begins => return Some(bytes),
                ReplyMatch::None => {
                    // The command has no reply, and this reply belongs to a later one: so the command was
                    // executed.
                    let asked = self.asked.pop_front().expect("it is the front");
                    assert_eq!(asked.unsent, 0, "{line} before all of {asked:?}");
                    asked.executed("", book);
                    continue;
                }
                ReplyMatch::Last => {
                    self.closing = true;
                    self.asked.clear();
                    self.unsent.clear();
                    return Some(bytes);
                }
            }
            let asked = self.asked.front_mut().expect("it is the front");
            let asked =
                PendingCommand { what: std::mem::replace(&mut asked.what, ExpectedReply::Silent), ..*asked };
            asked.executed(&line, book);
            if asked.unsent == 0 {
                self.asked.pop_front();
            }
            return Some(bytes);
        }
    }
}

/// How a reply fits a command.
enum ReplyMatch {
    /// The reply is the command's last.
    Whole,
    /// The reply is the command's, and more will follow.
    Begins,
    /// The command has no reply.
    None,
    /// The same as [`ReplyMatch::Whole`], and the connection ends.
    Last,
}

impl PendingCommand {
    /// Whether the command has no reply, or is quiet.
    fn may_have_no_reply(&self) -> bool {
        match &self.what {
            ExpectedReply::Silent
            | ExpectedReply::Store { noreply: true, .. }
            | ExpectedReply::Delete { noreply: true, .. }
            | ExpectedReply::MetaGet { quiet: true, .. } => true,
            ExpectedReply::Packet(sent) => sent.is_quiet(),
            _ => false,
        }
    }

    /// Whether there may be no memory for the command. Where the server evicts, only partly received commands
    /// are refused.
    fn may_find_no_memory(&self, book: &Book) -> bool {
        self.bytes >= PARTIAL_LEAST || !book.evictions
    }

    fn matches(&mut self, line: &str, response: Response<'_>, book: &Book) -> ReplyMatch {
        if line == NO_MEMORY_READING {
            // The line had arrived in part: the connection is closed.
            return ReplyMatch::Last;
        }
        if let ExpectedReply::Get(keys) = &mut self.what {
            assert_eq!(self.unsent, 0, "{line} before all of it was sent");
            return value_of(keys, line, response, self.sent, book);
        }
        let refused = |too_large: bool| {
            if too_large { line == TOO_LARGE } else { line == NO_MEMORY && self.may_find_no_memory(book) }
        };
        let one_of = |all: &[&str]| all.contains(&line.split(' ').next().unwrap_or_default());
        // A refusal is sent as soon as the line has arrived, any other reply when the whole command has.
        let fits = match &self.what {
            ExpectedReply::Get(_) | ExpectedReply::Packet(_) => unreachable!("matched elsewhere"),
            ExpectedReply::MetaGet { key, opaque, quiet } => match response {
                Response::MetaValue { flags, data }
                    if flags.clone().any(|flag| flag == opaque.as_bytes()) =>
                {
                    book.seen(*key, data, self.sent);
                    return ReplyMatch::Whole;
                }
                // The quiet get missed.
                _ if *quiet => return ReplyMatch::None,
                Response::Meta { status: MetaStatus::Miss, mut flags } => {
                    flags.any(|flag| flag == opaque.as_bytes())
                }
                _ => false,
            },
            ExpectedReply::Silent
            | ExpectedReply::Store { noreply: true, .. }
            | ExpectedReply::Delete { noreply: true, .. } => {
                return ReplyMatch::None;
            }
            ExpectedReply::Store { too_large, verb, .. } => {
                refused(*too_large)
                    || !too_large
                        && match *verb {
                            "set" => line == "STORED",
                            "cas" => ["STORED", "EXISTS", "NOT_FOUND"].contains(&line),
                            _ => ["STORED", "NOT_STORED"].contains(&line),
                        }
            }
            ExpectedReply::MetaSet { too_large, opaque, quiet, .. } => {
                if *quiet && line == "MN" {
                    assert!(!too_large, "its refusal is said");
                    return ReplyMatch::None;
                }
                refused(*too_large)
                    || !too_large
                        && (one_of(&["NS", "EX", "NF"]) || !quiet && one_of(&["HD"]))
                        && line.split(' ').any(|word| word == opaque)
            }
            ExpectedReply::Delete { .. } => ["DELETED", "NOT_FOUND", "HD", "NF"].contains(&line),
            ExpectedReply::Line(all) => {
                all.contains(&line) || all.contains(&NUMBER) && line.bytes().all(|b| b.is_ascii_digit())
            }
            ExpectedReply::Noop => line == "MN",
        };
        assert!(fits, "{line:?} is no reply to {self:?}");
        assert!(self.unsent == 0 || line == NO_MEMORY || line == TOO_LARGE, "{line} before all of {self:?}");
        ReplyMatch::Whole
    }

    /// Notes what this reply, or its absence, says about values.
    fn executed(&self, line: &str, book: &mut Book) {
        let refused = line.starts_with("SERVER_ERROR");
        let word = line.split(' ').next().unwrap_or_default();
        match self.what {
            ExpectedReply::Store { verb, key, serial, noreply, too_large } => {
                let stored = line == "STORED" || noreply && !too_large;
                if stored {
                    book.executed(serial);
                }
                // Under a rule, a value that arrives too late is dropped, and the newer one stays.
                let replaced = match verb {
                    "set" => stored && !is_ruled(key) || refused || noreply && too_large,
                    "add" | "replace" | "cas" => line == "STORED" && !is_ruled(key),
                    _ => false,
                };
                if replaced {
                    book.note_removed(key, self.begun);
                }
            }
            ExpectedReply::MetaSet { mode, key, serial, quiet, .. } => {
                let stored = word == "HD" || quiet && line.is_empty();
                if stored {
                    book.executed(serial);
                }
                if refused || stored && !is_ruled(key) && !matches!(mode, "MA" | "MP") {
                    book.note_removed(key, self.begun);
                }
            }
            ExpectedReply::Delete { key, .. } => book.note_removed(key, self.begun),
            _ => {}
        }
    }
}

/// Matches the next `VALUE`, of one of the keys in their order, or `END`.
fn value_of(
    keys: &mut VecDeque<usize>,
    line: &str,
    response: Response<'_>,
    sent: u64,
    book: &Book,
) -> ReplyMatch {
    let (name, data) = match response {
        Response::End => return ReplyMatch::Whole,
        Response::Value { key, flags: 0, data, .. } => (key, data),
        _ => panic!("{line:?} is no reply to a get"),
    };
    let place = keys.iter().position(|key| KEYS[*key].0.as_bytes() == name);
    let place = place.unwrap_or_else(|| panic!("{line}: was not asked for, or not there"));
    book.seen(keys[place], data, sent);
    keys.drain(..=place);
    ReplyMatch::Begins
}

/// The blanks between two words.
fn blank(choices: &mut Choices<'_>, chosen: bool) -> &'static str {
    if chosen && choices.below(6) == 0 { "  " } else { " " }
}

/// A key, as it is sent, and the flag for its form.
fn key(choices: &mut Choices<'_>) -> (usize, &'static str, &'static str) {
    let key = choices.below(KEYS.len() as u64) as usize;
    let (word, flag) = form_of(key, choices);
    (key, word, flag)
}

fn form_of(key: usize, choices: &mut Choices<'_>) -> (&'static str, &'static str) {
    let (plain, base64) = KEYS[key];
    if choices.below(2) == 0 { (plain, "") } else { (base64, " b") }
}

/// A value, its serial, and whether it is too large.
fn value(choices: &mut Choices<'_>, book: &mut Book, key: usize) -> (Vec<u8>, u64, bool) {
    let bytes =
        choices.one_of(&[0, 30, 300, 3_000, 15_000, 20_000, 30_000, 50_000, ITEM_MAX - 200, ITEM_MAX]);
    let mut value = Vec::new();
    let serial = book.write(key, bytes, &mut value);
    (value, serial, bytes == ITEM_MAX)
}

fn show(reply: &[u8]) -> String {
    reply[..reply.len().min(200)].escape_ascii().to_string()
}
