//! Random clients against one real lane, round by round, for the fuzz target and the seeded test of
//! connections.
//!
//! A byte string decides everything: who connects from where, what is sent and in which pieces, when the
//! server has a round, who reads, when time passes, and who leaves. Sockets are pairs, the clock moves only
//! when it is advanced, and every limit is low enough to be reached: see [`caps`]. The harness checks:
//!
//! * Every command has its replies, in order, of the kind that it can have; silent forms have none
//!   ([`client`]).
//! * A packet has the reply with its opaque and opcode, with a status that it can have. After a packet that
//!   breaks the grammar the connection ends, and nothing behind it is executed.
//! * Every value belongs to its key, was sent by a client, and is not older than a write, delete or refusal
//!   that its reader could know of ([`book`]).
//! * Text in a line or a data block is never executed as a command: nothing is flushed, and only the
//!   requested keys are deleted.
//! * Uploads and unsent output stay within their limits, are counted exactly, and are all gone at the end, as
//!   are held requests. Each connection that is closed for its unsent output is counted.

mod book;
mod client;

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use cattlegrid_config::Settings;
use cattlegrid_engine::RulesConfig;
use cattlegrid_engine::rules::{Pattern, Rule, Rules};
use cattlegrid_herd::{LeaseTime, PeerKey, Policy, TagsInValue};
use socket2::SockRef;

use crate::caps::Caps;
use crate::connection::info::ConnectionInfo;
use crate::lane::Lane;
use crate::lane::handle::Message;
use crate::listen::Address;
use crate::listen::ListenerInfo;
use crate::shared::Shared;
use crate::shared::build::{Ground, share};
use crate::time::Clock;
use book::{Book, RULED};
use client::Client;

/// The counts of a run.
#[derive(Debug, Default, Clone, Copy)]
pub struct Report {
    /// Decisions taken.
    pub steps: u64,
    /// Commands that were sent completely.
    pub commands: u64,
    /// Quiet packets that were executed and have no reply.
    pub silent: u64,
    /// Connections that ended after a packet that ends them.
    pub ended: u64,
    /// Uploads refused.
    pub refused: u64,
    /// Uploads displaced by others.
    pub displaced: u64,
    /// Lines refused, with their connections closed.
    pub lines_refused: u64,
    /// Writes, including uploads, for which there was no memory.
    pub no_memory: u64,
    /// Times a connection had to wait for its turn.
    pub yields: u64,
    /// Gets that were held.
    pub held: u64,
    /// Times that a client was not served because it had not taken its replies.
    pub paused: u64,
    /// Connections closed because their clients took nothing for long.
    pub stalled: u64,
    /// Connections closed because there was no memory for their replies.
    pub unread: u64,
}

/// Largest item, in bytes.
const ITEM_MAX: usize = 64 << 10;
/// The most clients at once.
const CLIENTS_MAX: usize = 10;
/// The most bytes of replies that clients have not taken, in all.
const UNSENT_MAX: usize = 3 << 10;
/// Client addresses.
const PEERS: u64 = 3;
/// Rounds at the end in which everything must be answered.
const LAST_ROUNDS: usize = 3_000;

/// Limits that a few commands reach.
fn caps() -> Caps {
    Caps {
        growth_bytes: 16 << 10,
        uploads_bytes: 72 << 10,
        output_bytes: 4 << 10,
        turn_keys: 100,
        scarce_output_bytes: 1 << 10,
        encrypted_bytes: 4 << 10,
        unsent_bytes: UNSENT_MAX,
        read_ahead_bytes: 8 << 10,
        receive_bytes: 24 << 10,
        receive_room_bytes: 1 << 10,
        scarce_receive_bytes: 700,
        get_line_bytes: 64 << 10,
        begin_bytes: 600,
        piece_bytes: 5 << 10,
        arriving_part: 64,
    }
}

/// Executes the decisions in `input`.
///
/// # Panics
/// A check fails.
pub fn run(input: &[u8]) -> Report {
    let mut choices = Choices(input);
    let kind = choices.below(6);
    let evictions = kind % 3 != 0;
    // Where the kernel refuses `io_uring`, the lane sends as without it.
    let shared = server(evictions, kind >= 3);
    let mut world = Simulation {
        shared: &shared,
        lane: Lane::new(&shared, 0).expect("descriptors for a test"),
        clients: Vec::new(),
        book: Book::new(evictions),
        listener: Arc::new(ListenerInfo {
            fd: -1,
            address: Address::Unix(PathBuf::from("harness")),
            tls: false,
        }),
        report: Report::default(),
    };
    if !evictions {
        world.fill(choices.one_of(&[0, 3 << 20, 4 << 20, 5 << 20]));
    }
    while !choices.0.is_empty() {
        world.step(&mut choices);
        world.report.steps += 1;
    }
    world.finish()
}

fn server(evictions: bool, io_uring: bool) -> Arc<Shared> {
    let mut settings = Settings::default();
    settings.threads = 1;
    settings.memory_bytes = 4 << 20;
    settings.item_bytes_max = ITEM_MAX;
    settings.evictions = evictions;
    settings.io_uring = io_uring;
    settings.requests_per_event = 4;
    settings.protection.read_ahead = 3;
    let ground = Ground::with(&settings, Clock::standing(), caps()).expect("a small server can be made");
    let shared = share(settings, None, None, Arc::default(), ground).expect("a small server can be made");
    let policy = Policy {
        lease: LeaseTime::Fixed(2_000),
        hold_ms: 3_000,
        tags_in_value: TagsInValue::Taken,
        ..Policy::default()
    };
    let pattern = Pattern::parse("r:{id}").expect("a pattern");
    let rule =
        Rule { number: 1, pattern, policy, tags: Vec::new(), negative_ttl_s: 0, loading: None, prefix: None };
    let config = RulesConfig {
        tag_bytes: 64 << 10,
        ledger_bytes: 64 << 10,
        fence_bytes: 64 << 10,
        waiters: 4,
        control: (*b"@").into(),
        prefixes: cattlegrid_engine::Prefixes::default(),
    };
    shared
        .engine
        .set_rules(Some(Arc::new(Rules::new(vec![rule], Vec::new()))), &config, 0)
        .expect("memory for one rule");
    shared
}

/// Decisions, from bytes; 0 when no bytes are left.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// A decision in `0..n`; `n` is at most 65,536.
    fn below(&mut self, n: u64) -> u64 {
        let high = if n > 256 { u64::from(self.byte()) << 8 } else { 0 };
        (high | u64::from(self.byte())) % n
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

struct Simulation<'s> {
    shared: &'s Shared,
    lane: Lane<'s>,
    clients: Vec<Client>,
    book: Book,
    listener: Arc<ListenerInfo>,
    report: Report,
}

impl Drop for Simulation<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            crate::log::error(format_args!("in step {}", self.report.steps));
        }
    }
}

impl Simulation<'_> {
    fn step(&mut self, choices: &mut Choices<'_>) {
        let what = choices.below(20);
        if self.clients.is_empty() || what == 0 && self.clients.len() < CLIENTS_MAX {
            return self.connect(choices.below(PEERS), choices.below(2) != 0, choices.below(2) != 0);
        }
        let at = choices.below(self.clients.len() as u64) as usize;
        match what {
            1..=6 => {
                let client = &mut self.clients[at];
                client.command(choices, &mut self.book);
                match choices.below(4) {
                    0 => {}
                    1 => self.flush(at, choices),
                    _ => self.clients[at].flush(usize::MAX, &mut self.book),
                }
            }
            7 | 8 => self.flush(at, choices),
            9..=11 => (0..=choices.below(3)).for_each(|_| self.round()),
            12 => self.shared.clock.advance(choices.one_of(&[1, 1, 2, 5, 11])),
            13 | 14 => self.clients[at].read(&mut self.book),
            15 | 16 => self.replace(at, choices),
            17 => match choices.below(8) {
                0 => {
                    self.clients.swap_remove(at);
                }
                1 => self.clients[at].half_close(),
                _ => self.hold(at, choices),
            },
            _ => {
                self.round();
                let eager = self.clients.iter_mut().filter(|client| client.is_eager());
                eager.for_each(|client| client.read(&mut self.book));
            }
        }
        self.clients.retain(|client| !client.is_over());
    }

    /// A client replaces a value that it knows, by a value that may be refused while it arrives.
    fn replace(&mut self, at: usize, choices: &mut Choices<'_>) {
        if !self.clients[at].may_ask() {
            return;
        }
        let key = choices.below(5) as usize;
        self.clients[at].set_small(key, &mut self.book);
        self.clients[at].flush(usize::MAX, &mut self.book);
        self.round();
        self.clients[at].read(&mut self.book);
        if self.clients[at].may_ask() {
            self.clients[at].store_any(key, choices, &mut self.book);
            self.clients[at].get_one(key);
            self.flush(at, choices);
            self.round();
            self.clients[at].read(&mut self.book);
        }
    }

    /// A client with the lease of a key, for which another client's gets are held, may fill it.
    fn hold(&mut self, holder: usize, choices: &mut Choices<'_>) {
        let waiter = choices.below(self.clients.len() as u64) as usize;
        let key = choices.one_of(&RULED);
        if !self.clients[holder].may_ask() || !self.clients[waiter].may_ask() {
            return;
        }
        self.clients[holder].miss(key, &mut self.book);
        self.clients[holder].flush(usize::MAX, &mut self.book);
        self.round();
        self.clients[waiter].run_of_gets(key, choices, &mut self.book);
        self.flush(waiter, choices);
        self.round();
        if choices.below(3) != 0 && self.clients[holder].may_ask() {
            self.clients[holder].store_any(key, choices, &mut self.book);
            self.flush(holder, choices);
        }
    }

    /// Fills the memory, of which little or none is left where nothing is evicted.
    fn fill(&mut self, bytes: usize) {
        self.connect(0, true, false);
        self.clients[0].fill_up(bytes);
        while !self.clients[0].has_sent_all() {
            self.clients[0].flush(usize::MAX, &mut self.book);
            self.round();
        }
    }

    /// Sends a part of the waiting bytes.
    fn flush(&mut self, at: usize, choices: &mut Choices<'_>) {
        let most = choices.one_of(&[1, 2, 17, 300, 5_000, 17_000, 30_000]);
        self.clients[at].flush(most, &mut self.book);
    }

    fn connect(&mut self, peer: u64, eager: bool, binary: bool) {
        let (ours, theirs) = UnixStream::pair().expect("descriptors for a test");
        for end in [&ours, &theirs] {
            end.set_nonblocking(true).expect("a socket can be told");
        }
        // A small buffer makes a client that does not read noticeable.
        SockRef::from(&theirs).set_send_buffer_size(4 << 10).expect("a socket can be told");
        let gauges = &self.shared.gauges;
        let info = Arc::new(ConnectionInfo {
            number: gauges.total.load(Relaxed) + 1,
            address: None,
            peer_key: PeerKey::Process(i32::try_from(peer).expect("few")),
            listener: Arc::clone(&self.listener),
            last_command: AtomicU32::new(0),
            writing: false.into(),
            held: false.into(),
            doing: 0.into(),
            fd: theirs.into(),
        });
        self.shared.count_in(0);
        let number = info.number;
        self.shared.lanes[0].tell(Message::Serve(info));
        self.clients.push(Client::new(ours, number, eager, binary));
    }

    fn round(&mut self) {
        assert!(self.lane.round(Some(Duration::ZERO)).expect("the poller works"), "nobody told it to leave");
        self.lane.verify();
        self.shared.uploads.verify();
        let unsent = &self.shared.unsent;
        assert!(unsent.bytes() <= UNSENT_MAX, "{} bytes unsent", unsent.bytes());
        self.book.closed = unsent.stalled() + unsent.displaced() + self.shared.uploads.closed();
    }

    /// Sends and reads everything; then all clients leave.
    fn finish(mut self) -> Report {
        self.clients.iter_mut().for_each(Client::ask_for_proof);
        for round in 0.. {
            for client in &mut self.clients {
                client.flush(usize::MAX, &mut self.book);
            }
            self.round();
            self.clients.iter_mut().for_each(|client| client.read(&mut self.book));
            self.clients.retain(|client| !client.is_over());
            if self.clients.iter().all(Client::is_answered) {
                break;
            }
            assert!(round < LAST_ROUNDS, "commands without an answer: {:#?}", self.clients);
            if round % 32 == 31 {
                self.shared.clock.advance(1);
            }
        }
        self.clients.clear();
        // Commands of clients that have left are still executed.
        for round in 0..LAST_ROUNDS {
            self.round();
            if self.shared.gauges.current.load(Relaxed) == 0 {
                break;
            }
            if round % 32 == 31 {
                self.shared.clock.advance(1);
            }
        }
        let (shared, counters) = (self.shared, &self.shared.lanes[0].counters);
        assert_eq!(shared.uploads.verify(), 0, "uploads of connections that are gone");
        assert_eq!(shared.gauges.current.load(Relaxed), 0, "connections that are gone");
        assert_eq!(shared.engine.held(), 0);
        shared.engine.verify();
        assert_eq!(counters.cmd_flush.get(), 0, "nobody flushes");
        let deleted = counters.delete_hits.get() + counters.delete_misses.get();
        assert!(deleted <= self.book.deletes, "{deleted} of {} deletes", self.book.deletes);
        let (uploads, unsent) = (&shared.uploads, &shared.unsent);
        assert_eq!(unsent.bytes(), 0, "output of connections that are gone");
        assert_eq!(shared.engine.delivered_bytes(), 0, "values for requests that are answered");
        let rules = shared.engine.shared().rules();
        let held = rules
            .as_ref()
            .map_or(0, |active| active.each().map(|(_, state)| state.counters().held.load(Relaxed)).sum());
        Report {
            commands: self.book.commands,
            silent: self.book.silent,
            ended: self.book.ended,
            refused: uploads.refused(),
            displaced: uploads.displaced(),
            lines_refused: uploads.lines_refused(),
            no_memory: counters.store_no_memory.get(),
            yields: counters.conn_yields.get(),
            held,
            paused: unsent.paused(),
            stalled: unsent.stalled(),
            unread: unsent.displaced(),
            ..self.report
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{RngExt as _, SeedableRng as _};

    use super::*;

    /// The seeds of `CONNECTION_SEEDS` (`from..to`, or one), else these.
    fn seeds() -> std::ops::Range<u64> {
        let number = |text: &str| text.parse::<u64>().expect("CONNECTION_SEEDS is FROM..TO or one number");
        match std::env::var("CONNECTION_SEEDS").ok().as_deref() {
            None => 0..40,
            Some(given) => match given.split_once("..") {
                Some((from, to)) => number(from)..number(to),
                None => number(given)..number(given) + 1,
            },
        }
    }

    #[test]
    fn random_clients_get_what_they_sent_for() {
        struct SeedReport(u64);
        impl Drop for SeedReport {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    crate::log::error(format_args!(
                        "again: CONNECTION_SEEDS={} cargo nextest run -p cattlegrid-server harness",
                        self.0
                    ));
                }
            }
        }
        let seeds = seeds();
        let many = seeds.end - seeds.start >= 40;
        let mut sum = Report::default();
        for seed in seeds {
            let _tell = SeedReport(seed);
            let mut random = SmallRng::seed_from_u64(seed);
            let input: Vec<u8> = (0..random.random_range(1_000..8_000)).map(|_| random.random()).collect();
            let report = run(&input);
            sum.steps += report.steps;
            sum.commands += report.commands;
            sum.silent += report.silent;
            sum.ended += report.ended;
            sum.refused += report.refused;
            sum.displaced += report.displaced;
            sum.lines_refused += report.lines_refused;
            sum.no_memory += report.no_memory;
            sum.yields += report.yields;
            sum.held += report.held;
            sum.paused += report.paused;
            sum.stalled += report.stalled;
            sum.unread += report.unread;
        }
        crate::log::notice(format_args!("{sum:?}"));
        if many {
            // Every cap was reached.
            assert!(sum.refused > 20 && sum.displaced > 20 && sum.lines_refused > 5, "{sum:?}");
            assert!(sum.no_memory > sum.refused && sum.yields > 100 && sum.held > 100, "{sum:?}");
            assert!(sum.silent > 1_000 && sum.ended > 10, "{sum:?}");
            assert!(sum.paused > 5 && sum.stalled > 1 && sum.unread > 5, "{sum:?}");
        }
    }
}
