//! The behaviour of the engine for clients: no sockets, time as an argument.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::cell::Cell;
use std::sync::Arc;

use cattlegrid_engine::{
    Context, Counters, Effects, Engine, EngineConfig, GetPiece, Interest, Now, Output, PREFETCH_MAX,
    PieceResult, Step, Ticket,
};
use cattlegrid_herd::{Caller, PeerKey, Session};
use cattlegrid_objects::{Registry, Settings};
use cattlegrid_protocol::{Limits, Parsed, Request, parse};

/// A client of an engine with its own time.
struct Client {
    engine: Arc<Engine>,
    counters: Counters,
    now: Now,
    interest: Interest,
    /// Most bytes of replies before a `get` pauses.
    most: usize,
    most_keys: usize,
    pauses: usize,
    session: Session,
    effects: Effects,
}

impl Client {
    fn new(memory_bytes: usize, evictions: bool) -> Self {
        Self::for_workers(4, memory_bytes, evictions)
    }

    fn for_workers(threads: usize, memory_bytes: usize, evictions: bool) -> Self {
        Self::with_clock(threads, memory_bytes, evictions, || 0)
    }

    fn with_clock(threads: usize, memory_bytes: usize, evictions: bool, nanos: fn() -> u64) -> Self {
        let config = EngineConfig {
            memory_bytes,
            threads,
            evictions,
            hide_cas: false,
            large_pages: false,
            max_item_bytes: 64 << 20,
            tag_bytes: 1 << 20,
            allows_flush: true,
            explain: |_| String::new(),
            nanos,
            seed: 7,
            shares: Vec::new(),
            prefixes: cattlegrid_engine::Prefixes::default(),
        };
        Self::of(Arc::new(Engine::new(config).unwrap()), 1)
    }

    /// Another client of the same engine.
    fn of(engine: Arc<Engine>, number: u32) -> Self {
        let peer = engine.shared().peers().join(PeerKey::Process(1));
        Self {
            engine,
            session: Session::new(Arc::new(Caller::new(u64::from(number), 0, 0, peer))),
            effects: Effects::default(),
            counters: Counters::default(),
            now: Now { second: 2, ms: 2_000, unix_of_zero: 1_700_000_000 },
            interest: Interest::none(),
            most: usize::MAX,
            most_keys: usize::MAX,
            pauses: 0,
        }
    }

    /// The replies to some requests, which are executed as one batch.
    fn ask(&mut self, input: impl AsRef<[u8]>) -> Vec<u8> {
        let limits = Limits { max_item_bytes: 64 << 20, extensions: true, ..Limits::default() };
        let mut rest = input.as_ref();
        let mut batch = Vec::new();
        while !rest.is_empty() {
            let Parsed::Complete { request, used } = parse(rest, &limits) else {
                panic!("not a command: {:?}", rest.escape_ascii().to_string())
            };
            batch.push((self.engine.hash(&request).unwrap(), request));
            rest = &rest[used..];
        }
        let mut replies = Vec::new();
        let mut lock = self.engine.shard_lock();
        for part in batch.chunks(PREFETCH_MAX) {
            lock.prefetch(&part.iter().map(|(hash, _)| *hash).collect::<Vec<_>>());
            for (hash, request) in part {
                let mut rest = match request {
                    Request::Get(get) => Some(get.clone()),
                    _ => None,
                };
                let (mut begun, mut more) = (false, true);
                while more {
                    more = false;
                    let mut out = Output::default();
                    let mut cx = Context {
                        step: Step {
                            now: self.now,
                            counters: &self.counters,
                            interest: self.interest,
                            effects: &mut self.effects,
                        },
                        ticket: Ticket { connection: 1, request: 1 },
                        session: &mut self.session,
                        out: &mut out,
                    };
                    if let Some(get) = &mut rest {
                        let piece =
                            GetPiece { progress: begun.into(), bytes: self.most, keys: self.most_keys };
                        let hash = self.engine.hash(&Request::Get(get.clone())).unwrap_or(*hash);
                        match self.engine.get(get, hash, piece, &mut lock, &mut cx) {
                            PieceResult::Done => {}
                            PieceResult::More(left) => {
                                *get = get.with_keys(left);
                                (begun, more) = (true, true);
                            }
                            PieceResult::Parked(_) | PieceResult::ParkedMore(..) => {
                                panic!("nothing is held without rules")
                            }
                        }
                    } else {
                        assert!(self.engine.execute(request, *hash, &mut lock, &mut cx).is_none());
                    }
                    self.pauses += usize::from(more);
                    append(&out, &mut replies);
                }
            }
        }
        replies
    }

    #[track_caller]
    fn expect(&mut self, input: &str, reply: &str) {
        let got = self.ask(input.replace('|', "\r\n"));
        assert_eq!(String::from_utf8_lossy(&got).replace("\r\n", "|"), reply, "to {input:?}");
    }

    fn set(&mut self, key: &str, value: &[u8]) -> Vec<u8> {
        let mut input = format!("set {key} 0 0 {}\r\n", value.len()).into_bytes();
        input.extend_from_slice(value);
        input.extend_from_slice(b"\r\n");
        self.ask(input)
    }
}

/// Adds the replies as a socket would see them.
fn append(out: &Output, replies: &mut Vec<u8>) {
    let mut at = 0;
    for (place, huge) in &out.huge {
        replies.extend_from_slice(&out.bytes[at..*place]);
        huge.slices().for_each(|s| replies.extend_from_slice(s));
        at = *place;
    }
    replies.extend_from_slice(&out.bytes[at..]);
}

const MIB: usize = 1 << 20;

/// Workers whose batches use the same shards in opposite orders do not block each other, and a client that
/// sees a write also sees the writes before it. With 32 shards a batch cannot keep all that it uses.
#[test]
fn workers_that_meet_do_not_block_and_keep_the_order_of_their_requests() {
    for (workers, shards) in [(4, 8), (8, 32)] {
        let writer = Client::for_workers(workers, 256 * MIB, true);
        assert_eq!(writer.engine.shard_count(), shards);
        write_and_read_in_opposite_orders(writer);
    }
}

fn write_and_read_in_opposite_orders(mut writer: Client) {
    const LAST: usize = 10_000;
    let names: Vec<String> = (0..PREFETCH_MAX).map(|n| format!("key{n}")).collect();
    for name in &names {
        assert_eq!(writer.set(name, b"000000"), b"STORED\r\n");
    }
    let engine = Arc::clone(&writer.engine);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..=LAST {
                let batch: Vec<_> =
                    names.iter().map(|name| format!("set {name} 0 0 6 noreply\r\n{n:06}\r\n")).collect();
                assert_eq!(writer.ask(batch.concat()), b"");
            }
        });
        for number in 2..4 {
            let (names, engine) = (&names, Arc::clone(&engine));
            scope.spawn(move || {
                let mut reader = Client::of(engine, number);
                // As one command, or as several.
                let ask = match number {
                    2 => format!(
                        "get {}\r\n",
                        names.iter().rev().map(String::as_str).collect::<Vec<_>>().join(" ")
                    ),
                    _ => {
                        names.iter().rev().map(|name| format!("get {name}\r\n")).collect::<Vec<_>>().concat()
                    }
                };
                let mut seen = 0;
                while seen < LAST {
                    let replies = String::from_utf8(reader.ask(&ask)).unwrap();
                    let values: Vec<usize> = replies
                        .lines()
                        .filter(|line| line.len() == 6)
                        .map(|line| line.parse().unwrap())
                        .collect();
                    assert_eq!(values.len(), names.len(), "{replies:?}");
                    assert!(values.is_sorted(), "a later write without an earlier one: {values:?}");
                    seen = values[0];
                }
            });
        }
    });
}

#[test]
fn a_batch_is_executed_in_its_order_whatever_shards_it_meets() {
    let mut c = Client::new(64 * MIB, true);
    assert!(c.engine.shard_count() > 2);
    let (mut input, mut wanted) = (Vec::new(), Vec::new());
    for n in 0..100 {
        let huge = "y".repeat(if n % 10 == 0 { MIB } else { 1 });
        let len = huge.len();
        input.push(format!(
            "get k{n}|set k{n} 0 0 2|{n:02}|get k{n} k{n}|append k{n} 0 0 {len}|{huge}|get k{n}|"
        ));
        let value = format!("VALUE k{n} 0 2|{n:02}|");
        wanted
            .push(format!("END|STORED|{value}{value}END|STORED|VALUE k{n} 0 {}|{n:02}{huge}|END|", len + 2));
    }
    c.expect(&input.concat(), &wanted.concat());
}

#[test]
fn the_first_tag_in_a_batch_takes_its_memory_from_full_shards() {
    let mut c = Client::new(16 * MIB, true);
    for n in 0..2000 {
        c.set(&format!("fill{n}"), &[b'x'; 10_000]);
    }
    let limit = c.engine.memory().limit_bytes();
    // One batch: the shard of the first is still locked when the second comes.
    c.expect("set a 0 0 1|x|md user:1 G|set b 0 0 1|y|", "STORED|HD|STORED|");
    assert!(c.engine.memory().limit_bytes() < limit);
    assert!(c.engine.memory().used_bytes() <= c.engine.memory().limit_bytes());
}

#[test]
fn items_expire_at_their_second() {
    let mut c = Client::new(8 * MIB, true);
    c.expect("set a 5 10 1|x|get a|", "STORED|VALUE a 5 1|x|END|");
    c.now.second += 9;
    c.expect("get a|", "VALUE a 5 1|x|END|");
    c.now.second += 1;
    c.expect("get a|add a 0 0 1|y|get a|", "END|STORED|VALUE a 0 1|y|END|");
    c.expect("set b 0 -1 1|x|get b|", "STORED|END|");
    c.expect("set b 0 1700000020 1|x|get b|", "STORED|VALUE b 0 1|x|END|");
    c.now.second = 20;
    c.expect("get b|", "END|");
    assert_eq!(c.counters.get_expired.get(), 3);
}

#[test]
fn a_flush_kills_earlier_items_and_nothing_else() {
    let mut c = Client::new(8 * MIB, true);
    c.expect("set a 0 0 1|1|ms b 1 E1|2|", "STORED|HD|");
    c.engine.shared().flush(c.now.second, c.now.second);
    c.expect("get a b|incr a 1|", "END|NOT_FOUND|");
    // An item with a CAS of the client's own still counts as of its store.
    c.expect("ms b 1 E1|2|mg b c v|set a 0 0 1|1|", "HD|VA 1 c1|2|STORED|");
    c.engine.shared().flush(c.now.second + 5, c.now.second);
    c.now.second += 4;
    c.expect("get a b|incr a 1|", "VALUE a 0 1|1|VALUE b 0 1|2|END|2|");
    c.now.second += 1;
    c.expect("get a b|set a 0 0 1|9|get a|", "END|STORED|VALUE a 0 1|9|END|");
}

#[test]
fn values_of_every_size_come_back_whole() {
    let mut c = Client::new(64 * MIB, true);
    let mut sizes =
        vec![0, 1, 7, 8, 100, 4_095, 4_096, 4_097, 40_000, 262_143, 262_144, 1_000_000, 20_000_000];
    sizes.extend(32_700..32_840);
    for size in sizes {
        let value: Vec<u8> = (0..size).map(|i: usize| (i * 31 % 251) as u8).collect();
        assert_eq!(c.set("k", &value), b"STORED\r\n", "{size}");
        let reply = c.ask("get k\r\n");
        let header = format!("VALUE k 0 {size}\r\n");
        assert!(reply.starts_with(header.as_bytes()) && reply.ends_with(b"\r\nEND\r\n"));
        assert!(reply[header.len()..reply.len() - 7] == value[..], "{size}");
        assert_eq!(c.ask("append k 0 0 3\r\nend\r\n"), b"STORED\r\n");
        assert_eq!(c.ask("prepend k 0 0 3\r\nbeg\r\n"), b"STORED\r\n");
        let reply = c.ask("mg k v\r\n");
        let header = format!("VA {}\r\nbeg", size + 6);
        assert!(reply.starts_with(header.as_bytes()), "{size}");
        assert!(reply.ends_with(b"end\r\n"));
    }
}

#[test]
fn an_append_beyond_the_largest_item_is_not_stored() {
    let mut c = Client::new(256 * MIB, true);
    assert_eq!(c.set("k", &vec![b'x'; (64 << 20) - 100]), b"STORED\r\n");
    c.expect("append k 0 0 30|012345678901234567890123456789|", "STORED|");
    c.expect("append k 0 0 30|012345678901234567890123456789|", "NOT_STORED|");
    c.expect("mg k s|", "HD s67108794|");
}

#[test]
fn one_huge_value_after_another_takes_its_room_from_all_shards() {
    let mut c = Client::new(64 * MIB, true);
    assert!(c.engine.shard_count() > 1);
    for n in 0..200_000 {
        assert_eq!(c.set(&format!("small:{n}"), &[b'x'; 200]), b"STORED\r\n");
    }
    for n in 0..50_u8 {
        let value = vec![n; 30 * MIB];
        assert_eq!(c.set(&format!("huge:{n}"), &value), b"STORED\r\n", "{n}");
        let reply = c.ask(format!("get huge:{n}\r\n"));
        let value_at = reply.iter().position(|b| *b == b'\n').unwrap() + 1;
        assert_eq!(reply.len() - value_at, 30 * MIB + 7);
        assert!(reply[value_at..reply.len() - 7].iter().all(|b| *b == n), "{n}");
    }
    for n in 0..1_000 {
        assert_eq!(c.set(&format!("after:{n}"), &[b'x'; 200]), b"STORED\r\n");
    }
    assert!(c.engine.memory().used_bytes() <= 64 * MIB);
}

/// What one thread has freed, another one may take: none is told that there is no memory while there is
/// something to evict.
#[test]
fn threads_that_take_memory_from_each_other_all_store() {
    let engine = Client::for_workers(4, 24 * MIB, true).engine;
    let value = vec![b'x'; 3 * MIB];
    std::thread::scope(|scope| {
        for number in 1..=4 {
            let (engine, value) = (Arc::clone(&engine), &value);
            scope.spawn(move || {
                let mut client = Client::of(engine, number);
                for n in 0..400 {
                    let bytes = [3 * MIB, 70_000, 4_096, 300_000][n % 4];
                    let key = format!("{number}:{}", n % 40);
                    assert_eq!(
                        client.set(&key, &value[..bytes]),
                        b"STORED\r\n",
                        "{n} of {number}: {bytes} bytes"
                    );
                }
            });
        }
    });
}

#[test]
fn without_evictions_a_full_server_says_so_and_forgets_the_old_value() {
    let mut c = Client::new(8 * MIB, false);
    assert_eq!(c.set("old", b"value"), b"STORED\r\n");
    let value = vec![b'x'; 10_000];
    let mut stored = 0;
    while c.set(&format!("k{stored}"), &value) == b"STORED\r\n" {
        stored += 1;
        assert!(stored < 1_000, "8 MiB cannot hold this");
    }
    assert!(stored > 600, "{stored} values of 10 kB in 8 MiB");
    let refused = c.set("old", &value);
    assert_eq!(refused, b"SERVER_ERROR out of memory storing object\r\n");
    c.expect("get old|", "END|");
    for n in 0..stored {
        assert!(c.ask(format!("get k{n}\r\n")).len() > 10_000, "nothing was evicted");
    }
    c.expect("delete k0|delete k1|delete k2|", "DELETED|DELETED|DELETED|");
    let huge = vec![b'x'; 7 * MIB];
    assert_eq!(c.set("huge", &huge), refused);
}

/// As in memcached: only `set`, and `ms` in any mode, drop the old value; `noreply` silences errors, `q` does
/// not.
#[test]
fn refused_writes_answer_and_drop_the_old_value_as_their_form_says() {
    const SAID: &str = "SERVER_ERROR out of memory storing object|";
    // In the log, and in its own pages.
    for len in [10_000, 600_000] {
        let value = "x".repeat(len);
        let mut c = Client::new(8 * MIB, false);
        assert_eq!(c.set("tiny", b"1"), b"STORED\r\n");
        assert_eq!(c.set("old", b"o"), b"STORED\r\n");
        let mut stored = 0;
        while c.set(&format!("k{stored}"), value.as_bytes()) == b"STORED\r\n" {
            stored += 1;
        }
        for (command, reply, keeps) in [
            ("add new 0 0 LEN", SAID, true),
            ("add new 0 0 LEN noreply", "", true),
            ("replace old 0 0 LEN", SAID, true),
            ("replace old 0 0 LEN noreply", "", true),
            ("append old 0 0 LEN", SAID, true),
            ("append old 0 0 LEN noreply", "", true),
            ("prepend old 0 0 LEN", SAID, true),
            ("cas old 0 0 LEN CAS", SAID, true),
            ("cas old 0 0 LEN CAS noreply", "", true),
            ("set old 0 0 LEN", SAID, false),
            ("set old 0 0 LEN noreply", "", false),
            ("ms old LEN", SAID, false),
            ("ms old LEN q", SAID, false),
            ("ms b2xk LEN b q", SAID, false),
            ("ms old LEN q MR", SAID, false),
            ("ms old LEN CCAS", SAID, false),
        ] {
            c.ask("delete old\r\n");
            assert_eq!(c.set("old", b"o"), b"STORED\r\n");
            let cas = c.ask("mg old c\r\n");
            let cas = String::from_utf8(cas).unwrap();
            let cas = cas.trim_end().strip_prefix("HD c").unwrap();
            let line = command.replace("LEN", &len.to_string()).replace("CAS", cas);
            let said = c.ask(format!("{line}\r\n{value}\r\n"));
            assert_eq!(said, reply.replace('|', "\r\n").as_bytes(), "{line}");
            c.expect("get old|", if keeps { "VALUE old 0 1|o|END|" } else { "END|" });
        }
        assert_eq!(c.counters.store_no_memory.get(), 17);
    }
}

/// A number that grows by a digit is stored again.
#[test]
fn counting_without_memory_says_so_but_not_under_noreply() {
    let mut c = Client::new(8 * MIB, false);
    let mut full = 0;
    while c.set(&format!("k{full}"), b"9") == b"STORED\r\n" {
        full += 1;
    }
    // A change in place needs no room; some shard has none for a longer number.
    let mut refused = 0;
    for n in 0..full {
        let before = c.counters.store_no_memory.get();
        let said = c.ask(format!("incr k{n} 1000000000000000000 noreply\r\n"));
        assert_eq!(said, b"", "k{n}");
        refused += c.counters.store_no_memory.get() - before;
        if refused > 3 {
            let said = c.ask(format!("incr k{n} 1000000000000000000\r\n"));
            assert_eq!(said, b"SERVER_ERROR out of memory storing object\r\n");
            return;
        }
    }
    panic!("{full} numbers grew without room");
}

#[test]
fn the_limit_can_be_lowered_and_raised() {
    let mut c = Client::new(32 * MIB, true);
    let fill = |c: &mut Client| {
        for n in 0..300_000 {
            assert_eq!(c.set(&format!("k{n}"), &[b'x'; 100]), b"STORED\r\n");
        }
        c.engine.usage().0.items
    };
    let before = fill(&mut c);
    c.engine.set_memory_limit(16 * MIB, usize::MAX).unwrap();
    assert!(c.engine.memory().used_bytes() <= 16 * MIB);
    let lowered = fill(&mut c);
    assert!(lowered * 10 < before * 6, "{lowered} of {before}");
    c.engine.set_memory_limit(32 * MIB, usize::MAX).unwrap();
    let raised = fill(&mut c);
    assert!(raised * 10 > before * 9, "{raised} of {before}");
    assert!(c.engine.set_memory_limit(1 << 40, usize::MAX).is_err());
}

/// The limit is lowered first, and then evicted for. What comes in between is stored, at the old values'
/// cost.
#[test]
fn a_store_while_the_limit_is_being_lowered_finds_room() {
    for size in [100, 10_000, 300_000, 3_000_000] {
        let mut c = Client::new(64 * MIB, true);
        for n in 0..400 {
            assert_eq!(c.set(&format!("k{n}"), &vec![b'x'; 200_000]), b"STORED\r\n");
        }
        c.engine.memory().set_limit(24 * MIB).unwrap();
        for n in 0..20 {
            assert_eq!(
                c.set(&format!("new{n}"), &vec![b'x'; size]),
                b"STORED\r\n",
                "value {n} of {size} bytes"
            );
        }
        c.engine.set_memory_limit(24 * MIB, usize::MAX).unwrap();
        assert!(c.engine.memory().used_bytes() <= 24 * MIB);
    }
}

#[test]
fn a_long_multi_get_pauses_and_goes_on_where_it_was() {
    let mut c = Client::new(64 * MIB, true);
    let mut line = String::from("get");
    let mut expected = Vec::new();
    for n in 0..1_000 {
        let value = vec![b'a' + (n % 26) as u8; n * 37 % 50_000];
        c.set(&format!("k{n}"), &value);
        line.extend([format!(" k{n}"), format!(" missing{n}")]);
        expected.extend_from_slice(format!("VALUE k{n} 0 {}\r\n", value.len()).as_bytes());
        expected.extend_from_slice(&value);
        expected.extend_from_slice(b"\r\n");
    }
    expected.extend_from_slice(b"END\r\n");
    line += "\r\n";
    c.most = 64 << 10;
    assert!(c.ask(line.clone()) == expected);
    assert!(c.pauses > 100, "{}", c.pauses);
    for keys in [7, 33, 2_000] {
        (c.most, c.most_keys, c.pauses) = (usize::MAX, keys, 0);
        assert!(c.ask(line.clone()) == expected);
        assert_eq!(c.pauses, 1_999 / keys, "pieces of {keys} keys");
    }
}

#[test]
fn a_multi_get_that_finds_nothing_pauses_too() {
    let mut c = Client::new(8 * MIB, true);
    c.most_keys = 100;
    let line = format!("gets{}{}\r\n", " absent".repeat(1_000), " ".repeat(500));
    assert!(c.ask(line) == b"END\r\n");
    assert_eq!((c.pauses, c.counters.get_misses.get()), (9, 1_000));
}

#[test]
fn events_are_noted_only_when_wanted() {
    let mut c = Client::new(8 * MIB, true);
    c.expect("set a 0 0 1|x|get a b|delete a|", "STORED|VALUE a 0 1|x|END|DELETED|");
    assert!(c.effects.events.is_empty());
    c.interest = Interest::FETCHERS.with(Interest::MUTATIONS).with(Interest::DELETIONS);
    c.expect("set a 0 0 1|x|get a b|delete a|", "STORED|VALUE a 0 1|x|END|DELETED|");
    // The set and the delete begin with a look-up each.
    assert_eq!(c.effects.events.len(), 6);
    c.effects.events.clear();
    c.interest = Interest::EVICTIONS;
    for n in 0..100_000 {
        c.set(&format!("k{n}"), &[b'x'; 100]);
    }
    let evictions = c.engine.usage().1.evictions;
    assert!(evictions > 1_000);
    assert_eq!(c.effects.events.len() as u64, evictions);
}

#[test]
fn dead_segments_go_back_to_the_memory_by_themselves() {
    let mut c = Client::new(64 * MIB, true);
    for n in 0..100_000 {
        c.ask(format!("set k{n} 0 30 100\r\n{n:0100}\r\n"));
    }
    let full = c.engine.memory().used_bytes();
    c.now.second += 31;
    let mut rounds = 0;
    while c.engine.tick(c.now) {
        rounds += 1;
    }
    assert!(rounds > 10, "a bounded piece at a time");
    assert_eq!(c.engine.usage().0.items, 0);
    assert!(c.engine.memory().used_bytes() < full / 4, "{} of {full}", c.engine.memory().used_bytes());
}

#[test]
fn every_item_is_seen_by_a_scan() {
    let mut c = Client::new(64 * MIB, true);
    for n in 0..50_000 {
        c.set(&format!("k{n}"), b"v");
    }
    let mut seen = std::collections::HashSet::new();
    let mut cursor = Some(cattlegrid_engine::Cursor::default());
    while let Some(at) = cursor {
        cursor = c.engine.list(at, 64, |item| assert!(seen.insert(item.key().to_vec()), "twice"));
    }
    assert_eq!(seen.len(), 50_000);
}

/// Items move while they are listed: new keys split buckets, removed ones merge them, and what is written
/// again is elsewhere.
#[test]
fn a_list_has_each_key_once_whatever_is_written() {
    let mut c = Client::new(64 * MIB, true);
    let key = |n: u32| format!("k{n}");
    (0..20_000).for_each(|n| _ = c.set(&key(n), b"v"));
    for grows in [true, false] {
        let mut seen = std::collections::HashMap::new();
        let mut cursor = Some(cattlegrid_engine::Cursor::default());
        let mut step = 0;
        while let Some(at) = cursor {
            cursor = c.engine.list(at, 32, |item| *seen.entry(item.key().to_vec()).or_insert(0) += 1);
            step += 1;
            for n in step * 40..(step + 1) * 40 {
                if grows {
                    c.set(&key(20_000 + n), b"new");
                    c.set(&key(n % 20_000), &[b'x'; 700][..(n % 700) as usize]);
                } else if n < 100_000 {
                    c.ask(format!("delete {}\r\n", key(20_000 + n)));
                }
            }
        }
        assert!(seen.values().all(|times| *times == 1), "a key twice, {grows}");
        assert!((0..20_000).all(|n| seen.contains_key(key(n).as_bytes())), "a key is left out, {grows}");
    }
}

#[test]
fn calls_of_objects_that_take_long_end_a_piece_of_a_get() {
    thread_local!(static CLOCK: Cell<u64> = const { Cell::new(0) });
    // Each reading comes 300 us after the one before.
    let clock = || CLOCK.with(|clock| clock.replace(clock.get() + 300_000));
    let mut client = Client::with_clock(1, 16 << 20, true, clock);
    client.engine.set_objects(Some(Arc::new(Registry::new(Settings::default()).unwrap())));
    let block = |n: u32| format!("VALUE counter:add:k:1 0 {}|{n}|", n.to_string().len());
    for (calls, pauses) in [(1, 0), (4, 0), (5, 1), (12, 2)] {
        (client.pauses, client.most_keys) = (0, usize::MAX);
        client.ask("delete counter::k\r\n");
        let blocks: String = (1..=calls).map(block).collect::<Vec<_>>().concat();
        client.expect(&format!("get{}|", " counter:add:k:1".repeat(calls as usize)), &(blocks + "END|"));
        assert_eq!(client.pauses, pauses, "{calls} calls");
    }
}
