//! Histories of an etcd, its links and nodes with caches. `FOLLOW_SEED=n` runs one of them,
//! `FOLLOW_HISTORIES=n` says how many.
//!
//! A writer changes a row and then sends its bump to any node. The reply to a bump is given when it is in the
//! log, that to a barrier when all nodes have obeyed. No node may serve what is older than a barrier's reply,
//! or than §4 of the user's documents allows.

use std::collections::{HashMap, VecDeque};

use cattlegrid_follow::etcd::{Bump, Fleet, NodeRecord, NodeState, Outbox, OutboxBatch, TicketState};
use cattlegrid_follow::{Action, Follower, FollowerEvent, Log, Names, Settings, Snapshot};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

const MAX_LAG_MS: u64 = 3000;
const LEASE_MS: u64 = 5000;
const NODES: usize = 3;
const ROWS: usize = 2;
const RING_MS: u64 = 100;
const STEPS: usize = 3000;
const HISTORIES: u64 = 5_000;
const FOUND_WITHIN: u64 = 20_000;

/// A mistake that the simulation must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// A stream that is open counts as a confirmation.
    TrustOpenStream,
    /// The head is what the stream has brought.
    HeadOfStream,
    /// A head of another cluster counts.
    AnyCluster,
    /// The floor does not move while a node is behind.
    FloorStands,
    /// Compacted entries are left out silently.
    SaysItResumes,
    /// No flush where something was left out.
    NoFlush,
    /// An entry of another node is taken for one's own.
    AllAreOwn,
    /// A node says that it has obeyed what has not arrived.
    SaysTooMuch,
    /// A barrier does not wait for nodes whose lease has run out.
    ForgetsGone,
    /// A bump is answered before it is in the log.
    CommitsEarly,
    /// A batch that failed is not written again, and its client is told that it was.
    DropsBatch,
}

struct Etcd;

impl Log for Etcd {
    type Position = u64;
    type Transaction = ();
    type Snapshot = All;
    type Identity = u64;
    const IS_VISIBLE_ON_ARRIVAL: bool = true;
}

#[derive(Debug, Clone)]
struct All;

impl Snapshot<()> for All {
    fn sees(&self, (): &()) -> bool {
        true
    }

    fn running(&self) -> Vec<()> {
        Vec::new()
    }
}

#[derive(Clone)]
struct Written {
    revision: u64,
    what: What,
}

#[derive(Clone)]
enum What {
    Bumps {
        by: usize,
        rows: Vec<usize>,
        has_barrier: bool,
    },
    Listed {
        node: usize,
        record: Option<NodeRecord>,
    },
    /// A key that is none of ours.
    Other,
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

/// A bump whose reply is waited for: the row's version when it was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Waiter {
    row: usize,
    version: u64,
}

#[expect(clippy::struct_excessive_bools, reason = "each is true or not whatever the others are")]
struct Node {
    follower: Follower<Etcd>,
    outbox: Outbox<Waiter>,
    fleet: Fleet<Waiter>,
    /// The revision up to which the stream has brought everything; None: there is no connection.
    stream: Option<u64>,
    /// The connection is to a server of before a restore, which says nothing any more.
    is_silent: bool,
    /// A connection is wanted, from this revision on.
    connects: bool,
    resume: Option<u64>,
    cluster: u64,
    asked: Option<(u64, Option<(u64, u64)>)>,
    put: Option<OutboxBatch>,
    cut_until_ms: u64,
    /// The watch brings nothing until then, while requests are answered.
    slow_until_ms: u64,
    frozen_until_ms: u64,
    lease_until_ms: u64,
    applied: u64,
    barrier_at: u64,
    is_listed: bool,
    listed_at: u64,
    has_begun: bool,
    /// From this revision on all others have had it in their lists, and know when it has gone.
    known_at: Option<u64>,
    confirmed_ms: Option<u64>,
    number: u64,
    bumps: [u64; ROWS],
    floor: u64,
    ring: VecDeque<(u64, u64)>,
    items: [Option<Item>; ROWS],
    computing: Vec<Computing>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    hits: u64,
    behind: u64,
    flushes: u64,
    confirmed: u64,
    committed: u64,
    barriers: u64,
    failed: u64,
}

struct World {
    rng: SmallRng,
    fault: Option<Fault>,
    now_ms: u64,
    cluster: u64,
    log: Vec<Written>,
    revision: u64,
    compacted: u64,
    versions: [u64; ROWS],
    /// For each row: when a version's bump was in the log, and when its barrier was answered.
    committed: [Vec<(u64, u64)>; ROWS],
    /// Versions whose barriers were answered, and the revisions of their bumps.
    passed: [Vec<(u64, u64)>; ROWS],
    revisions: HashMap<Waiter, u64>,
    nodes: Vec<Node>,
    /// The last node is there from some moment on.
    starts_late: bool,
    counts: Counts,
}

impl Node {
    fn new() -> Self {
        Self {
            follower: Follower::new(Settings { max_lag_ms: MAX_LAG_MS, again_ms: 0 }),
            outbox: Outbox::default(),
            fleet: Fleet::default(),
            stream: None,
            is_silent: false,
            connects: false,
            resume: None,
            cluster: 0,
            asked: None,
            put: None,
            cut_until_ms: 0,
            slow_until_ms: 0,
            frozen_until_ms: 0,
            lease_until_ms: 0,
            applied: 0,
            barrier_at: 0,
            is_listed: false,
            listed_at: 0,
            has_begun: false,
            known_at: None,
            confirmed_ms: None,
            number: 1,
            bumps: [0; ROWS],
            floor: 0,
            ring: VecDeque::new(),
            items: [const { None }; ROWS],
            computing: Vec::new(),
        }
    }

    fn record(&self, node: usize) -> NodeRecord {
        NodeRecord {
            instance: node as u64 + 1,
            state: NodeState::Up,
            address: String::new(),
            applied: self.applied,
            max_lag_ms: MAX_LAG_MS,
            lag_ms: None,
            release: String::new(),
        }
    }

    fn moving_floor(&self, fault: Option<Fault>, now_ms: u64) -> Option<u64> {
        let since_ms = now_ms - MAX_LAG_MS;
        if fault == Some(Fault::FloorStands) || self.confirmed_ms.is_some_and(|at_ms| at_ms >= since_ms) {
            return None;
        }
        let first = self.ring.iter().find(|(at_ms, _)| *at_ms >= since_ms);
        Some(first.map_or(self.number + 1, |(_, number)| *number))
    }
}

impl World {
    fn new(seed: u64, fault: Option<Fault>) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let starts_late = rng.random_bool(0.5);
        Self {
            rng,
            starts_late,
            fault,
            now_ms: 10_000,
            cluster: 1,
            log: Vec::new(),
            revision: 1,
            compacted: 0,
            versions: [0; ROWS],
            committed: [const { Vec::new() }; ROWS],
            passed: [const { Vec::new() }; ROWS],
            revisions: HashMap::new(),
            nodes: (0..NODES).map(|_| Node::new()).collect(),
            counts: Counts::default(),
        }
    }

    fn step(&mut self) -> Result<(), String> {
        let node = self.rng.random_range(0..NODES);
        if self.starts_late
            && node == NODES - 1
            && self.nodes[node].stream.is_none()
            && !self.nodes[node].has_begun
        {
            self.nodes[node].has_begun = self.rng.random_bool(0.01);
            return Ok(());
        }
        let awake = self.nodes[node].frozen_until_ms <= self.now_ms;
        match self.rng.random_range(0..2000) {
            0..20 => self.write(node, false),
            20..30 => self.write(node, !self.starts_late || node < NODES - 1),
            30..530 if awake => self.get(node)?,
            530..730 if awake => self.read(node),
            730..930 if awake => self.store(node),
            930..1230 if awake => self.deliver(node),
            1230..1390 if awake => self.answer(node),
            1390..1530 if awake => self.put(node),
            1530..1580 if awake => self.keep_seat(node),
            1580..1630 if awake => self.connect(node),
            1630..1634 => self.lose(node),
            1634..1637 => self.nodes[node].cut_until_ms = self.now_ms + self.rng.random_range(0..9000),
            1637..1639 => self.nodes[node].frozen_until_ms = self.now_ms + self.rng.random_range(0..9000),
            1639..1642 => self.compacted = self.revision,
            1642..1643 => self.restore(),
            1643..1650 => self.append(What::Other),
            1650..1656 => self.nodes[node].slow_until_ms = self.now_ms + self.rng.random_range(0..2000),
            _ => self.pass_time(),
        }
        Ok(())
    }

    /// All nodes are there, and know each other, except for the last, which may start later: it serves when
    /// it is listed, and takes no barriers, since it does not know which nodes have gone before.
    fn begin(&mut self) {
        let here = NODES - usize::from(self.starts_late);
        while self.nodes[..here].iter().any(|node| node.fleet.nodes().count() < here) {
            for node in 0..here {
                self.connect(node);
                self.answer(node);
                if !self.nodes[node].is_listed {
                    self.keep_seat(node);
                }
                self.deliver(node);
            }
            self.pass_time();
        }
    }

    fn append(&mut self, what: What) {
        self.revision += 1;
        self.log.push(Written { revision: self.revision, what });
    }

    fn is_cut(&self, node: usize) -> bool {
        self.nodes[node].cut_until_ms > self.now_ms
    }

    /// A row is changed, and then bumped at a node, which obeys at once.
    fn write(&mut self, node: usize, is_barrier: bool) {
        let row = self.rng.random_range(0..ROWS);
        self.versions[row] += 1;
        let own = &mut self.nodes[node];
        if own.frozen_until_ms > self.now_ms {
            return;
        }
        own.number += 1;
        own.bumps[row] = own.number;
        let bump = Bump::Tag { is_soft: false, prefix: Vec::new(), name: vec![b'0' + row as u8] };
        let ticket = own.outbox.push(&bump.line());
        let waiter = Waiter { row, version: self.versions[row] };
        let waits = own.outbox.wait(ticket, is_barrier, waiter);
        if self.fault == Some(Fault::CommitsEarly) && waits == TicketState::Waits && !is_barrier {
            self.committed[row].push((self.now_ms, waiter.version));
        }
    }

    /// A batch leaves, or its answer comes. A node that loses the connection in between knows nothing of it.
    fn put(&mut self, node: usize) {
        if self.nodes[node].stream.is_none() || self.nodes[node].is_silent || self.is_cut(node) {
            return;
        }
        let now_ms = self.now_ms;
        let Some(batch) = self.nodes[node].put.take() else {
            self.nodes[node].put = self.nodes[node].outbox.begin();
            return;
        };
        let row_of = |line: &[u8]| match Bump::parse(line) {
            Some(Bump::Tag { name, .. }) => Some(usize::from(name[0] - b'0')),
            _ => None,
        };
        let rows = batch.lines.iter().filter_map(|(_, line)| row_of(line)).collect();
        if self.fault != Some(Fault::DropsBatch) || self.rng.random_bool(0.9) {
            self.append(What::Bumps { by: node, rows, has_barrier: batch.has_barrier });
        }
        if self.rng.random_bool(0.1) {
            // Written, and the answer is lost.
            return self.lose(node);
        }
        let revision = self.revision;
        let turn = self.nodes[node].outbox.commit();
        for Waiter { row, version } in turn.committed {
            self.counts.committed += 1;
            self.committed[row].push((now_ms, version));
        }
        self.revisions.extend(turn.barriers.iter().map(|waiter| (*waiter, revision)));
        if !turn.barriers.is_empty() {
            self.nodes[node].fleet.wait(node as u64 + 1, revision, now_ms, turn.barriers);
        }
        self.look_at_barriers(node);
    }

    fn look_at_barriers(&mut self, node: usize) {
        for Waiter { row, version } in self.nodes[node].fleet.take_passed(self.now_ms) {
            self.counts.barriers += 1;
            let revision = self.revisions.get(&Waiter { row, version }).copied().unwrap_or(0);
            self.passed[row].push((version, revision));
        }
    }

    /// The lease is renewed, and the record says what is new.
    fn keep_seat(&mut self, node: usize) {
        if self.nodes[node].stream.is_none() || self.nodes[node].is_silent || self.is_cut(node) {
            return;
        }
        self.nodes[node].lease_until_ms = self.now_ms + LEASE_MS;
        if !std::mem::replace(&mut self.nodes[node].is_listed, true) {
            self.nodes[node].listed_at = self.revision + 1;
        }
        let mut record = self.nodes[node].record(node);
        if self.fault == Some(Fault::SaysTooMuch) {
            record.applied = self.revision;
        }
        self.append(What::Listed { node, record: Some(record) });
    }

    fn get(&mut self, node: usize) -> Result<(), String> {
        let row = self.rng.random_range(0..ROWS);
        let (fault, now_ms) = (self.fault, self.now_ms);
        let own = &mut self.nodes[node];
        let floor = own.moving_floor(fault, now_ms);
        let valid = own.items[row].as_ref().filter(|item| {
            item.stamp >= own.bumps[row] && item.stamp >= own.floor && item.stamp >= floor.unwrap_or(0)
        });
        let Some(item) = valid else {
            own.number += 1;
            own.computing.push(Computing { row, stamp: own.number, read: None });
            return Ok(());
        };
        self.counts.hits += 1;
        self.counts.behind += u64::from(floor.is_some());
        let version = item.version;
        let error =
            |why: String| Err(format!("node {node} serves row {row} as of {version}, {why}; now {now_ms}"));
        // What is in no list, and has not been known, is bounded by `max_lag` only.
        let counts = |revision: u64| {
            own.known_at.is_some_and(|at| at < revision) || own.is_listed && own.listed_at < revision
        };
        if self.passed[row].iter().any(|(newer, revision)| version < *newer && counts(*revision)) {
            return error(format!("though these barriers were answered: {:?}", self.passed[row]));
        }
        let newer = self.committed[row].iter().find(|(_, newer)| *newer > version);
        if let Some((at_ms, newer)) = newer {
            let confirmed = own.confirmed_ms.is_some_and(|confirmed_ms| *at_ms < confirmed_ms);
            if confirmed || at_ms + MAX_LAG_MS < now_ms {
                return error(format!(
                    "though {newer} was in the log at {at_ms}, confirmed {:?}",
                    own.confirmed_ms
                ));
            }
        }
        Ok(())
    }

    fn read(&mut self, node: usize) {
        let Some(i) = self.some(self.nodes[node].computing.len()) else { return };
        let computing = &mut self.nodes[node].computing[i];
        computing.read.get_or_insert(self.versions[computing.row]);
    }

    fn store(&mut self, node: usize) {
        let Some(i) = self.some(self.nodes[node].computing.len()) else { return };
        let own = &mut self.nodes[node];
        let Some(version) = own.computing[i].read else { return };
        let Computing { row, stamp, .. } = own.computing.swap_remove(i);
        own.items[row] = Some(Item { version, stamp });
    }

    fn deliver(&mut self, node: usize) {
        let is_slow = self.nodes[node].slow_until_ms > self.now_ms;
        let is_silent = self.nodes[node].is_silent || self.is_cut(node) || is_slow;
        let Some(at) = self.nodes[node].stream.filter(|_| !is_silent) else { return };
        let Some(written) = self.log.iter().find(|written| written.revision > at).cloned() else { return };
        self.nodes[node].stream = Some(written.revision);
        match written.what {
            What::Other => {}
            What::Listed { node: other, record } => {
                let (name, now_ms) = (format!("n{other}"), self.now_ms);
                if other == node && record.is_none() {
                    self.nodes[node].is_listed = false;
                }
                let has_seen = |own: &Node| own.fleet.get(&format!("n{other}")).is_some();
                match record {
                    Some(record) => {
                        self.nodes[node].fleet.put(name, record);
                        let by_all = (0..NODES).filter(|at| *at != other).all(|at| has_seen(&self.nodes[at]));
                        let revision = self.revision;
                        let own = &mut self.nodes[other];
                        own.known_at = own.known_at.or(by_all.then_some(revision));
                    }
                    None if self.fault == Some(Fault::ForgetsGone) => {
                        let gone =
                            NodeRecord { state: NodeState::Draining, ..self.nodes[other].record(other) };
                        self.nodes[node].fleet.put(name.clone(), gone);
                        self.nodes[node].fleet.remove(&name, now_ms);
                    }
                    None => self.nodes[node].fleet.remove(&name, now_ms),
                }
                self.look_at_barriers(node);
            }
            What::Bumps { by, rows, has_barrier } => {
                let mut names = Names::default();
                for row in &rows {
                    names.add(0, &[*row as u8]);
                }
                let is_own = by == node || self.fault == Some(Fault::AllAreOwn);
                if has_barrier && by != node {
                    self.nodes[node].barrier_at = written.revision;
                }
                self.tell(
                    node,
                    FollowerEvent::Entry { position: written.revision, transaction: (), names, is_own },
                );
                if self.nodes[node].barrier_at == written.revision {
                    self.keep_seat(node);
                }
            }
        }
        self.nodes[node].fleet.see(written.revision);
        self.look_at_barriers(node);
        if self.fault == Some(Fault::TrustOpenStream) {
            self.nodes[node].confirmed_ms = Some(self.now_ms);
        }
    }

    fn answer(&mut self, node: usize) {
        if self.is_cut(node) {
            return;
        }
        let is_bump = |written: &&Written| matches!(written.what, What::Bumps { .. });
        let head = self.log.iter().rev().find(is_bump).map_or(0, |written| written.revision);
        let (cluster, fault) = (self.cluster, self.fault);
        let own = &mut self.nodes[node];
        let arrived = own.stream.unwrap_or(0);
        match &mut own.asked {
            Some((_, sampled @ None)) => {
                let head = if fault == Some(Fault::HeadOfStream) { head.min(arrived) } else { head };
                *sampled = Some((cluster, head));
            }
            Some((number, Some((cluster, head)))) => {
                let identity = if fault == Some(Fault::AnyCluster) { own.cluster } else { *cluster };
                let told = FollowerEvent::Probed {
                    number: *number,
                    identity,
                    head: *head,
                    snapshot: All,
                    works: false,
                };
                own.asked = None;
                self.tell(node, told);
            }
            None => {}
        }
    }

    fn lose(&mut self, node: usize) {
        if self.nodes[node].stream.is_some() {
            self.unlink(node);
            self.tell(node, FollowerEvent::Lost { reason: "lost".to_owned() });
        }
    }

    fn unlink(&mut self, node: usize) {
        let own = &mut self.nodes[node];
        own.stream = None;
        own.put = None;
        own.outbox.give_back();
        self.counts.failed += own.outbox.set_up(false).len() as u64;
    }

    /// The log is that of a backup, as another cluster; what was lost of it was obeyed by some.
    fn restore(&mut self) {
        self.cluster += 1;
        let kept = self.rng.random_range(0..=self.log.len());
        self.log.truncate(kept);
        self.revision = self.log.last().map_or(1, |written| written.revision);
        self.compacted = self.compacted.min(self.revision);
        let now_ms = self.now_ms;
        for node in 0..NODES {
            if self.rng.random_bool(0.5) {
                self.lose(node);
            } else {
                self.nodes[node].is_silent = true;
            }
            // What was promised of bumps that are lost is kept by the flush of each node, once it is
            // connected again.
            for row in &mut self.committed {
                for (at_ms, _) in row.iter_mut() {
                    *at_ms = (*at_ms).max(now_ms);
                }
            }
        }
        // A barrier that waits for what is gone is not answered.
        for node in &mut self.nodes {
            node.fleet.take_all();
            node.is_listed = false;
            node.known_at = node.known_at.map(|_| 0);
        }
        // The machine's own promise ends with its data.
        self.passed = [const { Vec::new() }; ROWS];
    }

    fn connect(&mut self, node: usize) {
        if !std::mem::take(&mut self.nodes[node].connects) {
            return;
        }
        let resume = self.nodes[node].resume;
        if self.is_cut(node) || self.rng.random_bool(0.2) {
            return self.tell(node, FollowerEvent::Lost { reason: "refused".to_owned() });
        }
        let (cluster, revision, now_ms) = (self.cluster, self.revision, self.now_ms);
        let is_same = self.nodes[node].cluster == cluster;
        let resumes = resume.filter(|at| is_same && *at <= revision && *at >= self.compacted);
        let from = resumes.unwrap_or(revision);
        let mut listed: Vec<Option<NodeRecord>> = vec![None; NODES];
        for written in &self.log {
            if let What::Listed { node, record } = &written.what {
                listed[*node].clone_from(record);
            }
        }
        let listed =
            listed.into_iter().enumerate().filter_map(|(other, record)| Some((format!("n{other}"), record?)));
        let own = &mut self.nodes[node];
        own.fleet.replace(listed, now_ms);
        own.fleet.see(from);
        if resumes.is_none() {
            (own.applied, own.barrier_at) = (0, from);
        }
        (own.stream, own.cluster, own.is_silent) = (Some(from), cluster, false);
        own.outbox.set_up(true);
        let says = self.fault == Some(Fault::SaysItResumes);
        self.tell(node, FollowerEvent::Connected { identity: cluster, resumes: resumes.is_some() || says });
        self.tell(node, FollowerEvent::Passed { position: from });
        self.look_at_barriers(node);
    }

    fn pass_time(&mut self) {
        let most = if self.rng.random_bool(0.2) { 400 } else { 20 };
        self.now_ms += self.rng.random_range(1..most);
        for node in 0..NODES {
            if self.nodes[node].is_listed && self.nodes[node].lease_until_ms < self.now_ms {
                self.nodes[node].is_listed = false;
                self.append(What::Listed { node, record: None });
            }
            if self.nodes[node].frozen_until_ms > self.now_ms {
                continue;
            }
            let now_ms = self.now_ms;
            let own = &mut self.nodes[node];
            if own.ring.back().is_none_or(|(at_ms, _)| now_ms >= at_ms + RING_MS) {
                own.ring.push_back((now_ms, own.number + 1));
                if own.ring.len() > 64 {
                    own.ring.pop_front();
                }
            }
            if own.follower.next_ms().is_some_and(|next_ms| next_ms <= now_ms) {
                own.follower.tick(now_ms);
                self.act(node);
            }
            self.look_at_barriers(node);
        }
    }

    fn tell(&mut self, node: usize, told: FollowerEvent<Etcd>) {
        self.nodes[node].follower.handle(told, self.now_ms);
        self.act(node);
    }

    fn act(&mut self, node: usize) {
        while let Some(action) = self.nodes[node].follower.poll_action() {
            let own = &mut self.nodes[node];
            match action {
                Action::Bump(Names::Some { names, .. }) => {
                    for name in names {
                        own.number += 1;
                        own.bumps[usize::from(name.tag[0])] = own.number;
                    }
                }
                Action::Bump(Names::All { .. }) => panic!("a flush"),
                Action::Flush(_) => {
                    self.counts.flushes += 1;
                    if self.fault != Some(Fault::NoFlush) {
                        own.number += 1;
                        own.floor = own.number;
                    }
                }
                Action::Confirmed { asked_at_ms } => {
                    self.counts.confirmed += 1;
                    own.confirmed_ms = own.confirmed_ms.max(Some(asked_at_ms));
                }
                Action::Acknowledge(position) => own.applied = position,
                Action::Probe { number } => own.asked = Some((number, None)),
                Action::Nudge => {}
                Action::Connect { resume } => (own.connects, own.resume) = (true, resume),
                Action::Disconnect { .. } => self.unlink(node),
            }
        }
    }

    fn some(&mut self, of: usize) -> Option<usize> {
        (of > 0).then(|| self.rng.random_range(0..of))
    }
}

#[test]
fn entries_are_bumped_on_arrival_and_own_ones_only_once_more_later() {
    let names = |tag: &[u8]| {
        let mut names = Names::default();
        names.add(0, tag);
        names
    };
    let actions =
        |follower: &mut Follower<Etcd>| -> Vec<_> { std::iter::from_fn(|| follower.poll_action()).collect() };
    for again_ms in [0, 500] {
        let mut follower = Follower::<Etcd>::new(Settings { max_lag_ms: MAX_LAG_MS, again_ms });
        follower.tick(1000);
        follower.handle(FollowerEvent::Connected { identity: 1, resumes: false }, 1000);
        follower.handle(FollowerEvent::Passed { position: 10 }, 1000);
        follower.handle(
            FollowerEvent::Probed { number: 1, identity: 1, head: 10, snapshot: All, works: false },
            1000,
        );
        drop(actions(&mut follower));
        let own = FollowerEvent::Entry { position: 11, transaction: (), names: names(b"own"), is_own: true };
        follower.handle(own, 1001);
        assert_eq!(actions(&mut follower), [Action::Acknowledge(11)], "it was obeyed before it was written");
        let other =
            FollowerEvent::Entry { position: 12, transaction: (), names: names(b"other"), is_own: false };
        follower.handle(other, 1002);
        assert_eq!(actions(&mut follower), [Action::Bump(names(b"other")), Action::Acknowledge(12)]);
        assert_eq!(follower.state().waiting, 0);
        // Those of one sixteenth of the time together.
        for (at_ms, is_due) in [(1500, false), (1502 + again_ms / 16, again_ms > 0)] {
            follower.tick(at_ms);
            let bumps = actions(&mut follower).into_iter().filter(|action| matches!(action, Action::Bump(_)));
            let mut both = names(b"own");
            both.add(0, b"other");
            let expected = is_due.then_some(Action::Bump(both));
            assert_eq!(bumps.collect::<Vec<_>>(), expected.into_iter().collect::<Vec<_>>());
        }
        assert_eq!(follower.state().names_bytes, 0);
    }
}

fn history(seed: u64, fault: Option<Fault>, counts: &mut Counts) -> Result<(), String> {
    let mut world = World::new(seed, fault);
    world.begin();
    for _ in 0..STEPS {
        world.step()?;
    }
    let of_this = world.counts;
    counts.hits += of_this.hits;
    counts.behind += of_this.behind;
    counts.flushes += of_this.flushes;
    counts.confirmed += of_this.confirmed;
    counts.committed += of_this.committed;
    counts.barriers += of_this.barriers;
    counts.failed += of_this.failed;
    Ok(())
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn no_node_serves_what_is_older_than_promised() {
    let mut counts = Counts::default();
    let seeds = match number("FOLLOW_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("FOLLOW_HISTORIES").unwrap_or(HISTORIES),
    };
    for seed in seeds {
        if let Err(error) = history(seed, None, &mut counts) {
            panic!("FOLLOW_SEED={seed}: {error}");
        }
    }
    let Counts { hits, behind, flushes, confirmed, committed, barriers, failed } = counts;
    let all = [hits, behind, flushes, confirmed, committed, barriers, failed];
    assert!(number("FOLLOW_SEED").is_some() || all.iter().all(|count| *count > 100), "{counts:?}");
    eprintln!("{counts:?}");
}

#[test]
fn each_mistake_of_a_fleet_is_found() {
    let faults = [
        Fault::TrustOpenStream,
        Fault::HeadOfStream,
        Fault::AnyCluster,
        Fault::FloorStands,
        Fault::SaysItResumes,
        Fault::NoFlush,
        Fault::AllAreOwn,
        Fault::SaysTooMuch,
        Fault::ForgetsGone,
        Fault::CommitsEarly,
        Fault::DropsBatch,
    ];
    for fault in faults {
        let found =
            (0..FOUND_WITHIN).find(|seed| history(*seed, Some(fault), &mut Counts::default()).is_err());
        eprintln!("{fault:?}: {found:?}");
        assert!(found.is_some(), "{fault:?} is not found in {FOUND_WITHIN} histories");
    }
}
