//! One connection of a real lane, and what it answers however its commands are cut.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use cattlegrid_config::Settings;
use cattlegrid_herd::PeerKey;
use cattlegrid_store::PAGE_BYTES;

use crate::caps::Caps;
use crate::connection::info::ConnectionInfo;
use crate::lane::Lane;
use crate::lane::handle::Message;
use crate::listen::Address;
use crate::listen::ListenerInfo;
use crate::shared::Shared;
use crate::shared::build::{Ground, share};
use crate::time::Clock;

/// Longest value in the log of the test's server.
const INLINE_MAX: usize = 4 << 10;
/// Largest item.
const ITEM_MAX: usize = 40 << 10;

/// Small enough that a block of a few pages meets every branch.
fn caps() -> Caps {
    Caps {
        growth_bytes: 16 << 10,
        receive_bytes: 24 << 10,
        receive_room_bytes: 1 << 10,
        begin_bytes: 600,
        piece_bytes: 5 << 10,
        arriving_part: 4,
        ..Caps::new(ITEM_MAX, 1 << 20)
    }
}

fn server(caps: Caps, evictions: bool) -> Arc<Shared> {
    server_with(caps, evictions, Settings::default().requests_per_event)
}

/// `most`: commands of a turn.
fn server_with(caps: Caps, evictions: bool, most: usize) -> Arc<Shared> {
    let mut settings = Settings::default();
    settings.requests_per_event = most;
    settings.threads = 1;
    settings.memory_bytes = 4 << 20;
    settings.item_bytes_max = ITEM_MAX;
    settings.evictions = evictions;
    let ground = Ground::with(&settings, Clock::standing(), caps).unwrap();
    share(settings, None, None, Arc::default(), ground).unwrap()
}

/// A lane, and clients of it.
struct Bed<'s> {
    shared: &'s Shared,
    lane: Lane<'s>,
    /// Most bytes that values which are not whole had.
    arriving: usize,
}

impl<'s> Bed<'s> {
    fn new(shared: &'s Shared) -> Self {
        Self { shared, lane: Lane::new(shared, 0).unwrap(), arriving: 0 }
    }

    fn connect(&mut self) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        for end in [&ours, &theirs] {
            end.set_nonblocking(true).unwrap();
        }
        let gauges = &self.shared.gauges;
        let info = Arc::new(ConnectionInfo {
            number: gauges.total.load(Relaxed) + 1,
            address: None,
            peer_key: PeerKey::Process(1),
            listener: Arc::new(ListenerInfo {
                fd: -1,
                address: Address::Unix(PathBuf::from("test")),
                tls: false,
            }),
            last_command: AtomicU32::new(0),
            writing: false.into(),
            held: false.into(),
            doing: 0.into(),
            fd: theirs.into(),
        });
        self.shared.count_in(0);
        self.shared.lanes[0].tell(Message::Serve(info));
        self.rounds();
        ours
    }

    fn rounds(&mut self) {
        for _ in 0..6 {
            assert!(self.lane.round(Some(Duration::ZERO)).unwrap());
            self.lane.verify();
            self.shared.uploads.verify();
            self.arriving = self.arriving.max(self.shared.engine.memory().arriving_bytes());
        }
    }

    /// Sends all, as the socket takes it; the replies so far.
    fn send(&mut self, client: &mut UnixStream, mut bytes: &[u8]) -> Vec<u8> {
        let mut replies = Vec::new();
        while !bytes.is_empty() {
            match client.write(bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            self.rounds();
            replies.extend(read(client));
        }
        self.rounds();
        replies.extend(read(client));
        replies
    }
}

/// All that there is to read.
fn read(client: &mut UnixStream) -> Vec<u8> {
    let mut room = vec![0; 64 << 10];
    let mut all = Vec::new();
    loop {
        match client.read(&mut room) {
            Ok(0) => return all,
            Ok(n) => all.extend_from_slice(&room[..n]),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                return all;
            }
        }
    }
}

fn value(len: usize) -> Vec<u8> {
    // What looks like commands must not be one.
    b"\r\nflush_all\r\nset k 0 0 1\r\nx\r\n".iter().copied().cycle().take(len).collect()
}

fn command(line: &str, len: usize, end: &[u8]) -> Vec<u8> {
    [line.replace("LEN", &len.to_string()).as_bytes(), b"\r\n", &value(len), end].concat()
}

/// What `pieces` are answered by a server of their own, and the most that arrived in pages. `most`: commands of a turn.
fn answers(caps: Caps, most: usize, pieces: &[&[u8]]) -> (Vec<u8>, usize) {
    let shared = server_with(caps, true, most);
    let mut bed = Bed::new(&shared);
    let mut client = bed.connect();
    let mut replies = Vec::new();
    for piece in pieces {
        replies.extend(bed.send(&mut client, piece));
    }
    let memory = shared.engine.memory();
    assert_eq!(memory.arriving_bytes(), 0, "every block is whole");
    assert_eq!(shared.lanes[0].counters.cmd_flush.get(), 0);
    assert_eq!(shared.uploads.verify(), 0);
    (replies, bed.arriving)
}

/// Lines of stores, of a key that has the CAS 7 and the value `old`.
const LINES: [&str; 27] = [
    "set k 5 0 LEN",
    "set  k 5  0 LEN ",
    "set k 5 0 LEN noreply",
    "set new 5 0 LEN",
    "set k 0 -1 LEN",
    "add k 0 0 LEN",
    "add new 0 0 LEN",
    "replace k 0 0 LEN",
    "replace new 0 0 LEN noreply",
    "append k 0 0 LEN",
    "prepend k 0 0 LEN noreply",
    "cas k 0 0 LEN 7",
    "cas k 0 0 LEN 8",
    "cas new 0 0 LEN 7 noreply",
    "ms k LEN",
    "ms aw== LEN b k O123 s c E9",
    "ms k LEN q F3",
    "ms k LEN C7 E9 c",
    "ms k LEN C6 I E9",
    "ms k LEN ME q k",
    "ms new LEN MR s",
    "ms k LEN MA E9",
    "ms k LEN MP E9",
    "ms new LEN MA N0 E9 s",
    "ms k LEN T-1",
    "ms k LEN MX",
    "set k x 0 LEN",
];

/// Before and behind the store. The first makes the next receive a small one.
const BEFORE: [&[u8]; 2] = [b"ms k 3 E7\r\nold\r\n", b"mn\r\n"];
const BEHIND: &[u8] = b"mn\r\nmg k f s c v\r\nmg new f s v\r\nms other 3\r\nend\r\nget other\r\n";

fn check(line: &str, len: usize, end: &[u8]) -> usize {
    let large = command("set large 0 0 LEN", 5_000, b"\r\n");
    let store = command(line, len, end);
    let line_len = store.len() - len - end.len();
    let mut arrived = 0;
    for before in [&[BEFORE[0], BEFORE[1]].concat()[..], &[BEFORE[0], &large].concat()] {
        let all = [before, &store, BEHIND].concat();
        let at_once = Caps { receive_bytes: 1 << 20, begin_bytes: 1 << 20, ..caps() };
        let (expected, in_pages) = answers(at_once, 256, &[&all]);
        assert_eq!(in_pages, 0, "all of it came at once");
        let from = before.len();
        let (data, data_end) = (from + line_len, from + line_len + len);
        let cuts = [
            vec![],
            vec![data],
            vec![data - 1],
            vec![data + 1],
            vec![from, data],
            vec![from, data + 599],
            vec![from, data + PAGE_BYTES, data + 2 * PAGE_BYTES],
            vec![data_end + 1],
            vec![from, data_end],
            vec![from, data_end + 1],
            vec![from, data, data_end - 1],
            vec![from, data, data_end],
            vec![from, data + 700, data_end + 1],
            vec![from, data + 1, data_end + 2],
            vec![from, data, data_end, data_end + 1, data_end + 2],
            (from..all.len()).step_by(997).collect(),
            (from + 600..all.len()).step_by(PAGE_BYTES).collect(),
        ];
        for mut cuts in cuts {
            cuts.retain(|cut| *cut < all.len());
            cuts.push(all.len());
            let mut at = 0;
            let pieces: Vec<&[u8]> =
                cuts.iter().map(|cut| &all[std::mem::replace(&mut at, *cut).min(*cut)..*cut]).collect();
            // With pages, with few, and with none; in turns of few commands, so that one ends at each place.
            for (part, most) in [(4, 256), (4 << 20 >> 13, 256), (usize::MAX, 256), (4, 1), (4, 2), (4, 3)] {
                let (replies, in_pages) = answers(Caps { arriving_part: part, ..caps() }, most, &pieces);
                assert!(
                    replies == expected,
                    "{line} {len} {end:?} cut at {cuts:?}, a part in {part}, {most} a turn: {} instead of {}",
                    replies.escape_ascii(),
                    expected.escape_ascii()
                );
                assert!(in_pages <= (4 << 20) / part);
                arrived += usize::from(in_pages > 0);
            }
        }
    }
    arrived
}

#[test]
fn a_store_is_answered_the_same_however_it_arrives() {
    for line in LINES {
        let arrived = check(line, 9_001, b"\r\n");
        let is_gathered =
            ["append", "prepend", "MA", "MP", "MX", "x 0"].iter().any(|word| line.contains(word));
        // In some the line before it arrives in pages.
        assert!(arrived > 10 || is_gathered, "{line}: {arrived}");
    }
}

#[test]
fn blocks_about_the_threshold_and_at_the_edges_of_pages_and_pieces() {
    for len in [
        INLINE_MAX - 1,
        INLINE_MAX,
        INLINE_MAX + 1,
        2 * PAGE_BYTES,
        2 * PAGE_BYTES + 1,
        5 << 10,
        (5 << 10) + 1,
        ITEM_MAX - 65,
        ITEM_MAX - 60,
        ITEM_MAX - 59,
        ITEM_MAX,
    ] {
        check("set k 5 0 LEN", len, b"\r\n");
        check("ms k LEN s", len, b"\r\n");
    }
}

#[test]
fn a_block_without_its_end_is_refused_and_nothing_else() {
    for end in [&b"xy"[..], b"\rx", b"x\n", b"\n\r"] {
        for line in ["set k 5 0 LEN", "set k 5 0 LEN noreply", "ms k LEN q", "cas k 0 0 LEN 7"] {
            check(line, 9_001, end);
        }
    }
}

#[test]
fn what_is_announced_takes_nothing_and_what_is_cut_gives_back() {
    let shared = server(caps(), true);
    let mut bed = Bed::new(&shared);
    let memory = shared.engine.memory();
    let mut other = bed.connect();
    assert_eq!(bed.send(&mut other, b"set k 0 0 3\r\nold\r\n"), b"STORED\r\n");
    let used = memory.used_bytes();
    let mut clients: Vec<_> = (0..50).map(|_| bed.connect()).collect();
    for client in &mut clients {
        assert_eq!(bed.send(client, b"set k 0 0 20000\r\n"), b"");
    }
    assert_eq!((memory.used_bytes(), memory.arriving_bytes()), (used, 0));
    let client = &mut clients[0];
    bed.send(client, &vec![b'x'; 10_000]);
    assert_eq!(bed.send(&mut other, b"get k\r\n"), b"VALUE k 0 3\r\nold\r\nEND\r\n", "it is not whole");
    let taken = memory.arriving_bytes();
    assert!((10_000..=20_000_usize.next_multiple_of(PAGE_BYTES)).contains(&taken), "{taken}");
    assert_eq!(memory.used_bytes(), used + taken);
    // All ways to end it.
    client.shutdown(Shutdown::Write).unwrap();
    bed.rounds();
    assert_eq!((memory.used_bytes(), memory.arriving_bytes()), (used, 0));
    bed.send(&mut clients[1], &vec![b'x'; 19_999]);
    clients.remove(1);
    bed.rounds();
    assert_eq!((memory.used_bytes(), memory.arriving_bytes()), (used, 0));
    bed.send(&mut clients[1], &vec![b'x'; 20_000]);
    bed.send(&mut clients[1], b"\r");
    clients[1].shutdown(Shutdown::Write).unwrap();
    bed.rounds();
    assert_eq!((memory.used_bytes(), memory.arriving_bytes()), (used, 0));
    assert_eq!(bed.send(&mut clients[2], &vec![b'x'; 20_000]), b"");
    assert_eq!(bed.send(&mut clients[2], b"\r\n"), b"STORED\r\n");
    assert_eq!(memory.arriving_bytes(), 0);
    clients.clear();
    bed.rounds();
    assert_eq!(shared.gauges.current.load(Relaxed), 1);
    assert_eq!(shared.uploads.verify(), 0);
}

/// Uploads of 8,000 bytes are refused when they begin: the reply comes at once, and the rest is dropped.
#[test]
fn a_refused_upload_gives_its_pages_back_and_stays_in_step() {
    for (line, reply) in [("set k 0 0 LEN", true), ("set k 0 0 LEN noreply", false), ("ms k LEN q", true)] {
        for sent in [5_000, 20_000, 20_001] {
            let caps = Caps { growth_bytes: 4_000, uploads_bytes: 3_999, ..caps() };
            let shared = server(caps, true);
            let mut bed = Bed::new(&shared);
            let mut client = bed.connect();
            assert_eq!(bed.send(&mut client, b"set k 0 0 3\r\nold\r\n"), b"STORED\r\n");
            let all = command(line, 20_000, b"\r\n");
            let (first, rest) = all.split_at(all.len() - 20_002 + sent);
            let expected: &[u8] = if reply { b"SERVER_ERROR out of memory storing object\r\n" } else { b"" };
            let (line, block) = first.split_at(all.len() - 20_002);
            bed.send(&mut client, line);
            assert_eq!(bed.send(&mut client, block), b"", "it is answered behind its block");
            assert_eq!(shared.engine.memory().arriving_bytes(), 0);
            let replies = bed.send(&mut client, &[rest, b"get k\r\nmn\r\n"].concat());
            assert_eq!(replies, [expected, b"END\r\nMN\r\n"].concat());
            assert_eq!((shared.uploads.refused(), shared.uploads.verify()), (1, 0));
        }
    }
}

/// Where nothing is evicted a full server answers as a store that finds no room, and the connection stays in step.
#[test]
fn without_room_the_store_is_refused_at_its_end() {
    let shared = server(caps(), false);
    let mut bed = Bed::new(&shared);
    let mut client = bed.connect();
    let store = |n: usize| command(&format!("set k{n} 0 0 LEN"), 39_000, b"\r\n");
    let mut replies = Vec::new();
    for n in 0..200 {
        for piece in store(n).chunks(7_000) {
            replies.extend(bed.send(&mut client, piece));
        }
    }
    let replies = String::from_utf8(replies).unwrap();
    let (stored, refused): (Vec<_>, Vec<_>) = replies.lines().partition(|line| *line == "STORED");
    assert!(stored.len() > 50 && refused.len() > 50, "{} {}", stored.len(), refused.len());
    assert!(refused.iter().all(|line| *line == "SERVER_ERROR out of memory storing object"));
    assert_eq!(stored.len() + refused.len(), 200);
    assert_eq!((shared.engine.memory().arriving_bytes(), shared.uploads.refused()), (0, 0));
    assert_eq!(bed.send(&mut client, b"mn\r\n"), b"MN\r\n");
}
