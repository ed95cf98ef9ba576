//! The clients' knowledge of values: which values were sent for a key, and which must not be seen any more.
//!
//! A value is one or more pieces, each from one storing command: `<key>#<serial>#<bytes>#`, and filling that
//! looks like commands. Time is a count of events. A piece is dead for commands that were sent after the
//! proof that a later command has replaced or removed it.

use std::collections::BTreeMap;

/// The keys, and their base64 forms. Those from [`UNWRITTEN`] on are only read.
pub(super) const KEYS: [(&str, &str); 8] = [
    ("p0", "cDA="),
    ("p1", "cDE="),
    ("r:0", "cjow"),
    ("r:1", "cjox"),
    ("a0", "YTA="),
    ("flush_all", "Zmx1c2hfYWxs"),
    ("delete", "ZGVsZXRl"),
    ("quit", "cXVpdA=="),
];

/// The first key that is never written: lines may have any number of these.
pub(super) const UNWRITTEN: usize = 5;

/// The keys under the rule.
pub(super) const RULED: [usize; 2] = [2, 3];

/// Whether a key is under the rule.
pub(super) fn is_ruled(key: usize) -> bool {
    RULED.contains(&key)
}

/// Values that were sent, and counts of commands.
#[derive(Debug)]
pub(super) struct Book {
    /// Whether the server evicts; otherwise any write may find no memory.
    pub(super) evictions: bool,
    /// Commands that were sent completely.
    pub(super) commands: u64,
    /// Deletes sent.
    pub(super) deletes: u64,
    /// Connections that the server has counted as closed because their clients did not read.
    pub(super) closed: u64,
    /// Connections that were seen to end in this way.
    cut: u64,
    /// Quiet packets without a reply, as a later reply has proved.
    pub(super) silent: u64,
    /// Connections that ended after a packet that ends them.
    pub(super) ended: u64,
    now: u64,
    pieces: BTreeMap<u64, SentValue>,
    /// The pieces of the value with this CAS.
    by_cas: BTreeMap<(usize, u64), Vec<u64>>,
}

#[derive(Debug)]
struct SentValue {
    key: usize,
    /// When its writer knew that the command was executed.
    known: Option<u64>,
    /// Commands that are sent from then on must not see the piece.
    dead: Option<u64>,
}

impl Book {
    pub(super) fn new(evictions: bool) -> Self {
        Self {
            evictions,
            commands: 0,
            deletes: 0,
            closed: 0,
            cut: 0,
            silent: 0,
            ended: 0,
            now: 0,
            pieces: BTreeMap::new(),
            by_cas: BTreeMap::new(),
        }
    }

    /// Notes that a connection has ended in the middle. False: the server has not counted it.
    pub(super) fn may_be_cut(&mut self) -> bool {
        self.cut += 1;
        self.cut <= self.closed
    }

    /// Advances the time by one event.
    pub(super) fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// Makes a piece of at least `bytes` and returns its serial.
    pub(super) fn write(&mut self, key: usize, bytes: usize, out: &mut Vec<u8>) -> u64 {
        let serial = self.pieces.len() as u64 + 1;
        self.pieces.insert(serial, SentValue { key, known: None, dead: None });
        let name = KEYS[key].0;
        let head = (0..6)
            .map(|more| format!("{name}#{serial}#{}#", bytes.max(name.len() + 8 + more)))
            .find(|head| head.len() <= number_in(head))
            .expect("six digits at most");
        let end = out.len() + number_in(&head);
        out.extend_from_slice(head.as_bytes());
        while out.len() < end {
            let piece = &FILLING[..FILLING.len().min(end - out.len())];
            out.extend_from_slice(piece);
        }
        serial
    }

    /// Notes that a store was executed, as its writer knows now.
    pub(super) fn executed(&mut self, serial: u64) {
        let now = self.tick();
        self.pieces.get_mut(&serial).expect("it was written").known = Some(now);
    }

    /// Notes that a store was refused, or not executed: its value must not be seen.
    pub(super) fn refused(&mut self, serial: u64) {
        self.pieces.get_mut(&serial).expect("it was written").dead = Some(0);
    }

    /// Notes the CAS of a stored value; 0: it has none.
    pub(super) fn stored_as(&mut self, key: usize, cas: u64, serial: u64) {
        if cas != 0 {
            self.has_cas(key, cas, &[serial]);
        }
    }

    /// The latest CAS of a key that a client has seen.
    pub(super) fn last_cas(&self, key: usize) -> u64 {
        self.by_cas.range((key, 0)..=(key, u64::MAX)).next_back().map_or(0, |((_, cas), _)| *cas)
    }

    fn has_cas(&mut self, key: usize, cas: u64, serials: &[u64]) {
        let known = self.by_cas.entry((key, cas)).or_insert_with(|| serials.to_vec());
        assert_eq!(*known, serials, "two values of {} with the CAS {cas}", KEYS[key].0);
    }

    /// Notes that a command whose first byte was sent at `begun` has replaced or removed the value.
    pub(super) fn note_removed(&mut self, key: usize, begun: u64) {
        let now = self.tick();
        for piece in self.pieces.values_mut().filter(|piece| piece.key == key) {
            if piece.known.is_some_and(|known| known < begun) {
                piece.dead.get_or_insert(now);
            }
        }
    }

    /// The same as [`Book::seen`], with the value's CAS.
    pub(super) fn seen_as(&mut self, key: usize, cas: u64, value: &[u8], sent: u64) {
        assert_ne!(cas, 0, "a value without CAS");
        let serials = self.seen(key, value, sent);
        self.has_cas(key, cas, &serials);
    }

    /// Checks a value in the reply to a command that was sent at `sent`, and returns the serials of its
    /// pieces.
    pub(super) fn seen(&self, key: usize, mut value: &[u8], sent: u64) -> Vec<u64> {
        let mut serials = Vec::new();
        while !value.is_empty() {
            let head: Vec<&[u8]> = value.splitn(4, |b| *b == b'#').collect();
            let [name, serial, bytes, _] = head[..] else {
                panic!("a value that no client sent: {}", value[..value.len().min(80)].escape_ascii())
            };
            assert_eq!(name, KEYS[key].0.as_bytes(), "the value of another key");
            let number = |text: &[u8]| String::from_utf8_lossy(text).parse::<usize>().expect("a number");
            let (serial, bytes) = (number(serial) as u64, number(bytes));
            let head = name.len() + serial.to_string().len() + bytes.to_string().len() + 3;
            assert!(bytes <= value.len(), "cut off");
            let mut filling = value[head..bytes].chunks(FILLING.len());
            assert!(filling.all(|part| part == &FILLING[..part.len()]), "mixed up");
            let piece = self.pieces.get(&serial).expect("a client has sent it");
            assert_eq!(piece.key, key);
            assert!(
                piece.dead.is_none_or(|dead| sent <= dead),
                "an old value of {}: number {serial}, {piece:?}, in a reply to what was sent at {sent}",
                KEYS[key].0
            );
            serials.push(serial);
            value = &value[bytes..];
        }
        serials
    }
}

/// The number of bytes that a piece's head states.
fn number_in(head: &str) -> usize {
    head.rsplit('#').nth(1).and_then(|text| text.parse().ok()).expect("it was written above")
}

/// The last of these commands is the `flush` of a packet.
const FILLING: &[u8] =
    b"\r\nflush_all\r\ndelete p0\r\nget p1\r\nset p1 0 0 1\r\nx\r\nEND\r\nSTORED\r\nMN\r\n\
    \x80\x08\0\0\0\0\0\0\0\0\0\0flsh\0\0\0\0\0\0\0\0";
