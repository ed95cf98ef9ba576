//! A database with a log, a network that delays, stops and loses, and a node with a cache: all in memory,
//! from one seed.

use std::collections::VecDeque;

use cattlegrid_follow::{Action, Follower, FollowerEvent, Log, Names, Settings, Snapshot};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

pub(crate) const MAX_LAG_MS: u64 = 3000;
const ROWS: usize = 3;
/// Between two entries of the ring of the floor that moves.
const RING_MS: u64 = 100;

#[derive(Debug)]
pub(crate) struct Memory;

impl Log for Memory {
    type Position = u64;
    type Transaction = u64;
    type Snapshot = Seen;
    type Identity = u64;
}

/// The snapshot of a reader: it sees all transactions below `next` that do not run.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    next: u64,
    running: Vec<u64>,
    fault: Option<Fault>,
    /// The stream began at such a snapshot, as that of a binary log does: nothing that was not visible is
    /// before it.
    is_whole: bool,
}

impl Seen {
    /// All below `next`.
    pub(crate) fn all(next: u64) -> Self {
        Self::running_are(next, &[])
    }

    /// All but one.
    pub(crate) fn but(next: u64, running: u64) -> Self {
        Self::running_are(next, &[running])
    }

    pub(crate) fn running_are(next: u64, running: &[u64]) -> Self {
        Self { next, running: running.to_vec(), fault: None, is_whole: false }
    }
}

impl Snapshot<u64> for Seen {
    fn sees(&self, transaction: &u64) -> bool {
        self.fault == Some(Fault::BumpOnArrival)
            || *transaction < self.next && !self.running.contains(transaction)
    }

    fn running(&self) -> Vec<u64> {
        if self.fault == Some(Fault::NothingRan) || self.is_whole { Vec::new() } else { self.running.clone() }
    }
}

/// A mistake in a source, an engine or a follower, which the simulation must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// An arrived entry is confirmed without a head.
    NoHeadCheck,
    /// A head is what has arrived.
    TrustOpenStream,
    /// The head is smaller than the last commit.
    HeadTooLow,
    /// An entry is bumped on arrival.
    BumpOnArrival,
    /// Transactions that ran when the stream began are forgotten.
    NothingRan,
    /// No flush where the stream was broken.
    NoFlush,
    /// The floor does not move.
    FloorStands,
    /// The ring is rounded towards valid.
    RingRoundedUp,
    /// A head of another server counts.
    AnyServer,
    /// A stream that begins later is said to resume.
    SaysItResumes,
    /// Acknowledged on arrival.
    AcknowledgedOnArrival,
    /// Another node that goes on does not know which transactions ran when everything was flushed.
    ForgetsRunning,
    /// A stream continues silently where the slot has been lost, or the log was purged.
    StandsAnywhere,
    /// A stream of a binary log begins at its end, not at a snapshot.
    BeginsAtEnd,
    /// That the server was started again is passed over.
    StartUnnoticed,
    /// That the log was begun anew is passed over.
    ResetUnnoticed,
}

/// A binary log: it is kept with and without readers, and a reader says from where on it wants it.
#[derive(Debug, Default)]
struct Binlog {
    /// All before it was purged.
    first: u64,
    /// Ranges that a crash has removed from the ends of files: after the first position, and before the
    /// second.
    lost: Vec<(u64, u64)>,
    /// How often it was begun anew.
    epoch: u64,
    /// That of the last stream.
    known_epoch: u64,
    /// The stream has told it.
    is_told: bool,
}

struct Transaction {
    id: u64,
    row: usize,
    is_logged: bool,
}

struct Record {
    position: u64,
    transaction: u64,
    row: Option<usize>,
    /// The server was started.
    is_start: bool,
}

/// A change of a row that readers see: when, and the version from then on.
struct Change {
    at_ms: u64,
    version: u64,
}

struct Stream {
    /// The next record, by position.
    next: u64,
    silent_until_ms: u64,
}

struct Asked {
    number: u64,
    sampled: Option<(u64, u64, Seen)>,
    lost: bool,
}

struct Item {
    version: u64,
    stamp: u64,
}

struct Computing {
    row: usize,
    stamp: u64,
    read: Option<u64>,
}

pub(crate) struct World {
    rng: SmallRng,
    fault: Option<Fault>,
    pub(crate) now_ms: u64,
    follower: Follower<Memory>,
    again_ms: u64,
    // The database.
    server: u64,
    end: u64,
    log: VecDeque<Record>,
    running: Vec<Transaction>,
    next_transaction: u64,
    rows: [Vec<Change>; ROWS],
    /// The position that is acknowledged; the largest one: it was dropped. None: the slot is temporary.
    slot: Option<u64>,
    /// In the place of a slot.
    binlog: Option<Binlog>,
    /// The identity of the server that the stream comes from.
    identity: u64,
    /// Where another node goes on: the server, the position, and what ran when everything was flushed last.
    standing: Option<(u64, u64, Vec<u64>)>,
    standing_epoch: u64,
    // The network.
    stream: Option<Stream>,
    connects: bool,
    /// From where on the node wants the stream.
    resume: Option<u64>,
    asked: Option<Asked>,
    // The node.
    number: u64,
    bumps: [u64; ROWS],
    floor: u64,
    confirmed_ms: Option<u64>,
    ring: VecDeque<(u64, u64)>,
    items: [Option<Item>; ROWS],
    computing: Vec<Computing>,
    pub(crate) counts: Counts,
}

/// Counts of events, which show that histories are not empty.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) hits: u64,
    pub(crate) behind: u64,
    pub(crate) bumps: u64,
    pub(crate) flushes: u64,
    pub(crate) confirmed: u64,
    pub(crate) acknowledged: u64,
    pub(crate) nudges: u64,
    pub(crate) disconnects: u64,
    pub(crate) taken_over: u64,
}

impl World {
    /// `has_binlog`: the database is as MySQL, not as PostgreSQL.
    pub(crate) fn new(seed: u64, fault: Option<Fault>, has_binlog: bool) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let again_ms = if rng.random_bool(0.2) { 500 } else { 0 };
        let permanent = rng.random_bool(0.5);
        Self {
            rng,
            fault,
            now_ms: 10_000,
            follower: Follower::new(Settings { max_lag_ms: MAX_LAG_MS, again_ms }),
            again_ms,
            server: 1,
            end: 1,
            log: VecDeque::new(),
            running: Vec::new(),
            next_transaction: 1,
            rows: std::array::from_fn(|_| vec![Change { at_ms: 0, version: 0 }]),
            identity: 0,
            standing: None,
            standing_epoch: 0,
            slot: (permanent && !has_binlog).then_some(0),
            binlog: has_binlog.then(Binlog::default),
            stream: None,
            connects: false,
            resume: None,
            asked: None,
            number: 1,
            bumps: [0; ROWS],
            floor: 0,
            confirmed_ms: None,
            ring: VecDeque::new(),
            items: std::array::from_fn(|_| None),
            computing: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// One event. An error is a value that is older than promised.
    pub(crate) fn step(&mut self) -> Result<(), String> {
        // More often while it matters what ran when everything was flushed.
        let runs = self.standing.as_ref().is_some_and(|(_, _, running)| !running.is_empty());
        if runs && self.rng.random_ratio(1, 30) {
            self.take_over();
        }
        match self.rng.random_range(0..1000) {
            0..90 => self.begin(),
            90..170 => self.log_commit(),
            170..250 => self.end_transaction(),
            250..480 => self.get()?,
            480..560 => self.read(),
            560..650 => self.store(),
            650..800 => self.deliver(),
            800..900 => self.answer(),
            900..905 => self.lose(),
            905..910 => self.silence(),
            910..912 => self.freeze(),
            912..914 => self.promote(),
            914..916 => self.lose_log(),
            916..918 => self.take_over(),
            918..930 => self.connect(),
            930..932 => self.restart(),
            _ => self.pass_time(),
        }
        Ok(())
    }

    /// The slot was dropped, or the log purged, or begun anew.
    fn lose_log(&mut self) {
        self.slot = self.slot.and(Some(u64::MAX));
        if self.binlog.is_none() {
            return;
        }
        // What a crash would need is not purged: all that is logged has been carried out.
        for ended in std::mem::take(&mut self.running) {
            if ended.is_logged {
                self.change(ended.row);
            }
        }
        let Some(binlog) = &mut self.binlog else { return };
        binlog.first = self.end;
        self.log.clear();
        if self.rng.random_bool(0.5) {
            // The same places again.
            (binlog.epoch, binlog.first) = (binlog.epoch + 1, 1);
            binlog.lost.clear();
            self.end = self.end / 2 + 1;
        }
        // A stream reads what it has open, but not of a log that was begun anew.
        self.lose();
    }

    /// The server is killed and started: the end of its log may be gone, and so may be what it had shown, or
    /// what it would have.
    fn restart(&mut self) {
        let Some(binlog) = &mut self.binlog else { return };
        let kept =
            if self.rng.random_bool(0.5) { self.end } else { self.end.saturating_sub(4).max(binlog.first) };
        let gone: Vec<usize> =
            self.log.iter().filter(|record| record.position > kept).filter_map(|record| record.row).collect();
        self.log.retain(|record| record.position <= kept);
        self.end += 10;
        binlog.lost.push((kept, self.end));
        self.log.push_back(Record { position: self.end, transaction: 0, row: None, is_start: true });
        for ended in std::mem::take(&mut self.running) {
            if ended.is_logged && !gone.contains(&ended.row) {
                self.change(ended.row);
            }
        }
        for row in gone {
            self.change(row);
        }
        self.lose();
    }

    fn begin(&mut self) {
        let row = self.rng.random_range(0..ROWS);
        if self.running.iter().all(|other| other.row != row) {
            self.running.push(Transaction { id: self.next_transaction, row, is_logged: false });
            self.next_transaction += 1;
        }
    }

    /// A commit is in the log; readers do not see it yet.
    fn log_commit(&mut self) {
        let Some(i) = self.some(self.running.len()) else { return };
        let transaction = &mut self.running[i];
        if std::mem::replace(&mut transaction.is_logged, true) {
            return;
        }
        self.end += 2;
        let (transaction, row) = (transaction.id, Some(transaction.row));
        self.log.push_back(Record { position: self.end, transaction, row, is_start: false });
    }

    /// Readers see it, and its client has the reply; or it is rolled back.
    fn end_transaction(&mut self) {
        let Some(i) = self.some(self.running.len()) else { return };
        if !self.running[i].is_logged && self.rng.random_bool(0.8) {
            return;
        }
        let ended = self.running.swap_remove(i);
        if ended.is_logged {
            self.change(ended.row);
        }
    }

    fn change(&mut self, row: usize) {
        let version = self.version(row) + 1;
        self.rows[row].push(Change { at_ms: self.now_ms, version });
    }

    fn version(&self, row: usize) -> u64 {
        self.rows[row].last().map_or(0, |change| change.version)
    }

    /// The new primary has all transactions up to one of them; the rows of the others are as they were.
    fn promote(&mut self) {
        self.server += 1;
        let kept = self.rng.random_bool(0.5);
        for row in 0..ROWS {
            if !kept && self.rng.random_bool(0.5) {
                self.change(row);
            }
        }
        for lost in std::mem::take(&mut self.running) {
            if lost.is_logged && kept {
                self.change(lost.row);
            }
        }
        self.log.clear();
        if self.rng.random_bool(0.5) {
            self.end = self.end / 2 + 1;
        }
        if let Some(binlog) = &mut self.binlog {
            *binlog = Binlog { first: self.end, epoch: binlog.epoch + 1, ..Binlog::default() };
        }
        self.slot = self.slot.and(Some(u64::MAX));
        if self.rng.random_bool(0.5) {
            // The old server is gone, and says nothing any more.
            if let Some(stream) = &mut self.stream {
                stream.silent_until_ms = u64::MAX;
            }
        } else {
            self.lose();
        }
    }

    fn get(&mut self) -> Result<(), String> {
        let row = self.rng.random_range(0..ROWS);
        let floor = self.moving_floor();
        let valid = self.items[row].as_ref().filter(|item| {
            item.stamp >= self.bumps[row] && item.stamp >= self.floor && item.stamp >= floor.unwrap_or(0)
        });
        let Some(item) = valid else {
            self.number += 1;
            self.computing.push(Computing { row, stamp: self.number, read: None });
            return Ok(());
        };
        self.counts.hits += 1;
        self.counts.behind += u64::from(floor.is_some());
        let Some(change) = self.rows[row].iter().find(|change| change.version > item.version) else {
            return Ok(());
        };
        let confirmed = self.confirmed_ms.is_some_and(|confirmed_ms| change.at_ms < confirmed_ms);
        if confirmed || change.at_ms + MAX_LAG_MS < self.now_ms {
            return Err(format!(
                "row {row} is served as version {}, though version {} was answered at {}; now {}, confirmed {:?}",
                item.version, change.version, change.at_ms, self.now_ms, self.confirmed_ms
            ));
        }
        Ok(())
    }

    /// While it is behind, the number below which items do not count.
    fn moving_floor(&self) -> Option<u64> {
        let since_ms = self.now_ms - MAX_LAG_MS;
        if self.fault == Some(Fault::FloorStands)
            || self.confirmed_ms.is_some_and(|confirmed_ms| confirmed_ms >= since_ms)
        {
            return None;
        }
        if self.fault == Some(Fault::RingRoundedUp) {
            let older = self.ring.iter().rev().find(|(at_ms, _)| *at_ms < since_ms);
            return Some(older.map_or(0, |(_, number)| *number));
        }
        let first = self.ring.iter().find(|(at_ms, _)| *at_ms >= since_ms);
        Some(first.map_or(self.number + 1, |(_, number)| *number))
    }

    fn read(&mut self) {
        let Some(i) = self.some(self.computing.len()) else { return };
        let version = self.version(self.computing[i].row);
        self.computing[i].read.get_or_insert(version);
    }

    fn store(&mut self) {
        let Some(i) = self.some(self.computing.len()) else { return };
        let Some(version) = self.computing[i].read else { return };
        let Computing { row, stamp, .. } = self.computing.swap_remove(i);
        self.items[row] = Some(Item { version, stamp });
    }

    /// The stream brings the next record, or says how far it is.
    fn deliver(&mut self) {
        let Some(stream) = &mut self.stream else { return };
        if stream.silent_until_ms > self.now_ms {
            return;
        }
        if let Some(binlog) = self.binlog.as_mut().filter(|binlog| !binlog.is_told) {
            binlog.is_told = true;
            let is_other = binlog.known_epoch != binlog.epoch;
            binlog.known_epoch = binlog.epoch;
            if is_other && self.fault != Some(Fault::ResetUnnoticed) {
                return self.tell(FollowerEvent::Gap { reason: "the log was begun anew".to_owned() });
            }
        }
        let Some(stream) = &mut self.stream else { return };
        let next = self.log.iter().find(|record| record.position > stream.next);
        let is_start =
            next.is_some_and(|record| record.is_start) && self.fault != Some(Fault::StartUnnoticed);
        let told = match next {
            Some(record) => {
                stream.next = record.position;
                match record.row {
                    Some(row) => {
                        let mut names = Names::default();
                        names.add(0, &[row as u8]);
                        FollowerEvent::Entry {
                            position: record.position,
                            transaction: record.transaction,
                            names,
                            is_own: false,
                        }
                    }
                    None => FollowerEvent::Passed { position: record.position },
                }
            }
            // A transaction that is open keeps it from saying more.
            None if self.running.is_empty() || self.binlog.is_some() => {
                stream.next = self.end;
                FollowerEvent::Passed { position: self.end }
            }
            None => return,
        };
        let position = stream.next;
        if is_start {
            self.tell(FollowerEvent::Gap { reason: "the server was started again".to_owned() });
        }
        self.tell(told);
        if self.fault == Some(Fault::NoHeadCheck) {
            self.confirmed_ms = Some(self.now_ms);
        }
        if self.fault == Some(Fault::AcknowledgedOnArrival) {
            self.slot = self.slot.map(|slot| slot.max(position));
        }
    }

    /// The second connection: the question reaches the server, later the reply the node.
    fn answer(&mut self) {
        let trust = self.fault == Some(Fault::TrustOpenStream);
        let arrived = self.stream.as_ref().map_or(0, |stream| stream.next);
        let Some(asked) = &mut self.asked else { return };
        let Some((identity, head, snapshot)) = asked.sampled.take() else {
            let running = self.running.iter().map(|transaction| transaction.id).collect();
            let is_whole = self.binlog.is_some();
            let snapshot = Seen { next: self.next_transaction, running, fault: self.fault, is_whole };
            let head = match self.fault {
                Some(Fault::HeadTooLow) => self.end.saturating_sub(3),
                _ if trust => arrived,
                _ => self.end,
            };
            asked.sampled = Some((self.server, head, snapshot));
            return;
        };
        let (number, lost) = (asked.number, asked.lost);
        self.asked = None;
        if lost {
            return;
        }
        let identity = if self.fault == Some(Fault::AnyServer) { self.identity } else { identity };
        // A server that is silent for a while may be reading.
        let is_silent = self
            .stream
            .as_ref()
            .is_some_and(|stream| stream.silent_until_ms > self.now_ms && stream.silent_until_ms != u64::MAX);
        let works = is_silent && self.rng.random_bool(0.5);
        self.tell(FollowerEvent::Probed { number, identity, head, snapshot, works });
    }

    fn lose(&mut self) {
        if self.stream.take().is_some() {
            if let Some(asked) = &mut self.asked {
                asked.lost = self.rng.random_bool(0.5);
            }
            self.tell(FollowerEvent::Lost { reason: "lost".to_owned() });
        }
    }

    fn silence(&mut self) {
        let for_ms = self.rng.random_range(0..12_000);
        if let Some(stream) = &mut self.stream {
            stream.silent_until_ms = stream.silent_until_ms.max(self.now_ms.saturating_add(for_ms));
        }
    }

    /// Another node of the fleet follows the database from now on. What is obeyed is obeyed by all.
    fn take_over(&mut self) {
        // What waits to be bumped once more is the node's own, and gone with it.
        if self.slot.is_none() && self.binlog.is_none() || self.again_ms > 0 {
            return;
        }
        if let Some(binlog) = &mut self.binlog {
            binlog.known_epoch = self.standing_epoch;
        }
        let settings = Settings { max_lag_ms: MAX_LAG_MS, again_ms: 0 };
        self.follower = match self.standing.clone() {
            Some((server, position, mut running)) => {
                if self.fault == Some(Fault::ForgetsRunning) {
                    running.clear();
                }
                Follower::resumed(settings, server, position, running)
            }
            None => Follower::new(settings),
        };
        (self.stream, self.asked, self.connects) = (None, None, false);
        self.counts.taken_over += 1;
        self.follower.tick(self.now_ms);
        self.act();
    }

    /// The node is stopped, and its first request comes before anything else.
    fn freeze(&mut self) {
        self.now_ms += self.rng.random_range(0..6000);
    }

    fn connect(&mut self) {
        if !std::mem::take(&mut self.connects) {
            return;
        }
        if self.rng.random_bool(0.2) {
            return self.tell(FollowerEvent::Lost { reason: "refused".to_owned() });
        }
        if self.binlog.is_some() {
            return self.connect_to_binlog();
        }
        let stands = self.slot.is_some_and(|slot| slot > 0 && slot != u64::MAX);
        // A slot that was made anew stands behind what was obeyed, by this node or another one.
        let is_behind = !matches!(self.fault, Some(Fault::StandsAnywhere | Fault::AcknowledgedOnArrival))
            && self.resume.is_none_or(|resume| self.slot.is_some_and(|slot| slot > resume));
        let resumes = stands && !is_behind;
        let next = match self.slot {
            Some(slot) if stands => slot,
            _ => self.end,
        };
        self.slot = self.slot.map(|_| next);
        self.stream = Some(Stream { next, silent_until_ms: 0 });
        self.identity = self.server;
        self.tell(FollowerEvent::Connected {
            identity: self.server,
            resumes: resumes || self.fault == Some(Fault::SaysItResumes),
        });
    }

    fn connect_to_binlog(&mut self) {
        let Some(binlog) = &mut self.binlog else { return };
        let known = self.resume.filter(|_| self.identity == self.server);
        let is_there = |at: u64| {
            at >= binlog.first
                && at <= self.end
                && !binlog.lost.iter().any(|(from, to)| at > *from && at < *to)
        };
        let resume = known.filter(|at| is_there(*at) || self.fault == Some(Fault::StandsAnywhere));
        // The place of a snapshot: all before it is visible.
        let is_open =
            |record: &&Record| self.running.iter().any(|own| own.is_logged && own.id == record.transaction);
        let first_open = self.log.iter().find(is_open).map(|record| record.position - 1);
        let begins = first_open.filter(|_| self.fault != Some(Fault::BeginsAtEnd)).unwrap_or(self.end);
        if resume.is_none() {
            binlog.known_epoch = binlog.epoch;
        }
        binlog.is_told = false;
        self.stream = Some(Stream { next: resume.unwrap_or(begins), silent_until_ms: 0 });
        self.identity = self.server;
        let resumes = resume.is_some() || self.fault == Some(Fault::SaysItResumes);
        self.tell(FollowerEvent::Connected { identity: self.server, resumes });
    }

    fn pass_time(&mut self) {
        let most = if self.rng.random_bool(0.2) { 400 } else { 20 };
        self.now_ms += self.rng.random_range(1..most);
        // The node's upkeep: the time first, then the next number.
        if self.ring.back().is_none_or(|(at_ms, _)| self.now_ms >= at_ms + RING_MS) {
            self.ring.push_back((self.now_ms, self.number + 1));
            if self.ring.len() > 64 {
                self.ring.pop_front();
            }
        }
        if self.follower.next_ms().is_some_and(|next_ms| next_ms <= self.now_ms) {
            self.follower.tick(self.now_ms);
            self.act();
        }
    }

    fn tell(&mut self, told: FollowerEvent<Memory>) {
        self.follower.handle(told, self.now_ms);
        self.act();
    }

    fn act(&mut self) {
        while let Some(action) = self.follower.poll_action() {
            match action {
                Action::Bump(Names::Some { names, .. }) => {
                    for name in names {
                        self.number += 1;
                        self.bumps[usize::from(name.tag[0])] = self.number;
                        self.counts.bumps += 1;
                    }
                }
                Action::Bump(Names::All { .. }) => panic!("a flush"),
                Action::Flush(_) => {
                    self.counts.flushes += 1;
                    if self.fault != Some(Fault::NoFlush) {
                        self.number += 1;
                        self.floor = self.number;
                    }
                }
                Action::Confirmed { asked_at_ms } => {
                    self.counts.confirmed += 1;
                    let before_ms = self.confirmed_ms.unwrap_or(0);
                    assert!(self.fault.is_some() || before_ms <= asked_at_ms, "it goes back");
                    self.confirmed_ms = Some(before_ms.max(asked_at_ms));
                }
                Action::Acknowledge(position) => {
                    self.counts.acknowledged += 1;
                    self.slot = self.slot.map(|slot| if slot == u64::MAX { slot } else { position });
                    if let Some(running) = self.follower.running() {
                        self.standing_epoch = self.binlog.as_ref().map_or(0, |binlog| binlog.known_epoch);
                        self.standing = Some((self.identity, position, running.to_vec()));
                    }
                }
                Action::Probe { number } => self.asked = Some(Asked { number, sampled: None, lost: false }),
                Action::Nudge => {
                    self.counts.nudges += 1;
                    if self.binlog.is_none() {
                        self.end += 2;
                        let record =
                            Record { position: self.end, transaction: 0, row: None, is_start: false };
                        self.log.push_back(record);
                    }
                }
                Action::Connect { resume } => (self.connects, self.resume) = (true, resume),
                Action::Disconnect { .. } => {
                    self.counts.disconnects += 1;
                    self.stream = None;
                }
            }
        }
    }

    fn some(&mut self, of: usize) -> Option<usize> {
        (of > 0).then(|| self.rng.random_range(0..of))
    }

    /// The state at rest: everything that was logged is visible, nothing is lost any more; then time passes.
    pub(crate) fn settle(&mut self) -> Result<(), String> {
        for transaction in std::mem::take(&mut self.running) {
            if transaction.is_logged {
                self.change(transaction.row);
            }
        }
        if let Some(stream) = &mut self.stream
            && stream.silent_until_ms != u64::MAX
        {
            stream.silent_until_ms = 0;
        }
        let end_ms = self.now_ms + 60_000;
        while self.now_ms < end_ms {
            match self.rng.random_range(0..6) {
                0 => self.get()?,
                1 => self.deliver(),
                2 | 3 => self.answer(),
                4 => self.connect(),
                _ => self.pass_time(),
            }
        }
        let (state, since_ms) = (self.follower.state(), self.now_ms - MAX_LAG_MS);
        if self.fault.is_none() && state.confirmed_ms.is_none_or(|confirmed_ms| confirmed_ms < since_ms) {
            return Err(format!("nothing is confirmed at rest: {state:?}, now {}", self.now_ms));
        }
        if state.waiting > 0 {
            return Err(format!("entries wait though all is visible: {state:?}"));
        }
        Ok(())
    }
}
