//! Histories of a database that one node follows for its fleet, by way of an etcd. `FOLLOW_SEED=n` runs one
//! of them.
//!
//! Whatever a node confirms of the database's log must be obeyed by it: each message takes its time, nodes
//! stop and go on, two nodes may lead, another node goes on where one stood, and the etcd is restored from a
//! backup.

use cattlegrid_follow::ResumePoint;
use cattlegrid_follow::etcd::{AskedRevisions, Claim, Feed, Sightings};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

const NODES: usize = 3;
const STEPS: usize = 2500;
const HISTORIES: u64 = 2_000;
const FOUND_WITHIN: u64 = 5_000;

/// A mistake that the simulation must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// A claim says what its node has seen when it is written.
    SeesTooLate,
    /// A revision that is as new as the question's answer counts.
    SameRevision,
    /// A claim is written before its bumps are.
    ClaimsEarly,
    /// A claim counts when it is in the log, before it has come.
    ReadsAhead,
    /// Revisions that were seen before etcd was restored count.
    KeepsSightings,
    /// Confirmations from before etcd was restored are claimed.
    KeepsSayings,
    /// A node goes on from what the last one had read, and not from what it had written.
    StandsAhead,
}

#[derive(Debug, Clone)]
enum What {
    Bumps(Vec<usize>),
    Claim(Claim),
    Other,
}

/// On its way to the etcd or from it.
#[derive(Debug)]
enum Message {
    /// A node's question for the revision, and of when.
    Asked {
        asked_ms: u64,
    },
    Told {
        asked_ms: u64,
        revision: u64,
    },
    /// `upto`: the last ticket.
    Put {
        what: What,
        upto: u64,
    },
    Done {
        revision: u64,
        upto: u64,
        position: Option<u64>,
    },
    /// The question for the database's head, and what had been seen then.
    Probe {
        asked_ms: u64,
    },
    /// All commits before this one have come.
    Probed {
        asked_ms: u64,
        commits: usize,
    },
}

#[expect(clippy::struct_excessive_bools, reason = "each is true or not whatever the others are")]
struct Node {
    feed: Feed,
    sightings: Sightings,
    asked: AskedRevisions,
    /// Revisions up to this one have come.
    stream: u64,
    /// The generation of the etcd to which it is connected.
    etcd: u64,
    obeyed: Vec<bool>,
    /// Until when it does nothing.
    stops_ms: u64,
    leads: bool,
    /// Commits that were read, and the tickets that were given.
    read: usize,
    tickets: u64,
    committed: u64,
    outbox: Vec<usize>,
    is_putting: bool,
    is_claiming: bool,
    is_probing: bool,
    standing: Option<ResumePoint>,
    messages: Vec<(u64, u64, Message)>,
}

struct World {
    draw: SmallRng,
    fault: Option<Fault>,
    now_ms: u64,
    /// When each commit was answered.
    commits: Vec<u64>,
    log: Vec<What>,
    generation: u64,
    backup: usize,
    nodes: Vec<Node>,
    confirmed: u64,
}

impl World {
    fn new(seed: u64, fault: Option<Fault>) -> Self {
        let node = |at| Node {
            feed: Feed::new("shop".to_owned(), 1),
            sightings: Sightings::default(),
            asked: AskedRevisions::default(),
            stream: 0,
            etcd: 0,
            obeyed: Vec::new(),
            stops_ms: 0,
            leads: at == 0,
            read: 0,
            tickets: 0,
            committed: 0,
            outbox: Vec::new(),
            is_putting: false,
            is_claiming: false,
            is_probing: false,
            standing: None,
            messages: Vec::new(),
        };
        Self {
            draw: SmallRng::seed_from_u64(seed),
            fault,
            now_ms: 1000,
            commits: Vec::new(),
            log: Vec::new(),
            generation: 0,
            backup: 0,
            nodes: (0..NODES).map(node).collect(),
            confirmed: 0,
        }
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn send(&mut self, at: usize, message: Message) {
        let longest = if self.draw.random_ratio(1, 10) { 2000 } else { 60 };
        let due_ms = self.now_ms + self.draw.random_range(1..longest);
        let etcd = self.nodes[at].etcd;
        self.nodes[at].messages.push((due_ms, etcd, message));
    }

    fn step(&mut self) -> Result<(), String> {
        self.now_ms += self.draw.random_range(0..30);
        match self.draw.random_range(0..100) {
            0..15 => self.commits.push(self.now_ms),
            15..20 => self.log.push(What::Other),
            20 => {
                let (at, for_ms) = (self.draw.random_range(0..NODES), self.draw.random_range(10..4000));
                self.nodes[at].stops_ms = self.now_ms + for_ms;
            }
            21 => {
                // Two may lead, or none for a while.
                let at = self.draw.random_range(0..NODES);
                let leads = !self.nodes[at].leads;
                self.lead(at, leads);
            }
            22 if self.draw.random_ratio(1, 4) => {
                self.log.truncate(self.backup);
                self.generation += 1;
            }
            23 => self.backup = self.log.len(),
            _ => {}
        }
        for at in 0..NODES {
            if self.now_ms >= self.nodes[at].stops_ms {
                self.run(at)?;
            }
        }
        Ok(())
    }

    fn lead(&mut self, at: usize, leads: bool) {
        let standing = self.log.iter().rev().find_map(|what| match what {
            What::Claim(claim) => claim.standing.clone(),
            What::Bumps(_) | What::Other => None,
        });
        let ahead = self.nodes.iter().map(|node| node.read).max().unwrap_or(0);
        let is_ahead = self.has(Fault::StandsAhead);
        let node = &mut self.nodes[at];
        node.leads = leads;
        node.feed.forget();
        if leads {
            let from = standing.and_then(|text| text.parse().ok()).unwrap_or(0);
            node.read = if is_ahead { ahead } else { from };
            node.standing = None;
        }
    }

    /// A node has connected to an etcd that was restored: everything is flushed, and revisions are other
    /// ones.
    fn reconnect(&mut self, at: usize) {
        let (revision, now) = (self.log.len() as u64, self.commits.len());
        let (keeps_sightings, keeps_sayings) =
            (self.has(Fault::KeepsSightings), self.has(Fault::KeepsSayings));
        let generation = self.generation;
        let node = &mut self.nodes[at];
        (node.etcd, node.stream) = (generation, revision);
        node.asked.clear();
        if !keeps_sightings {
            node.sightings.clear();
        }
        if !keeps_sayings {
            node.feed.forget();
        }
        node.obeyed = vec![true; now];
        (node.is_putting, node.is_claiming) = (false, false);
        // What was under way is written again.
        node.outbox = (0..node.read).collect();
        node.tickets += 1;
        node.messages
            .retain(|(_, _, message)| matches!(message, Message::Probe { .. } | Message::Probed { .. }));
    }

    fn run(&mut self, at: usize) -> Result<(), String> {
        if self.nodes[at].etcd != self.generation && self.draw.random_ratio(1, 10) {
            self.reconnect(at);
        }
        while let Some(due) = self.nodes[at].messages.iter().position(|(due_ms, ..)| *due_ms <= self.now_ms) {
            let (_, etcd, message) = self.nodes[at].messages.remove(due);
            let is_database = matches!(message, Message::Probe { .. } | Message::Probed { .. });
            if is_database || etcd == self.generation {
                self.take(at, message);
            }
        }
        if self.nodes[at].etcd == self.generation {
            self.stream(at)?;
        }
        if self.draw.random_ratio(1, 20) {
            self.send(at, Message::Asked { asked_ms: self.now_ms });
        }
        self.follow(at);
        Ok(())
    }

    fn take(&mut self, at: usize, message: Message) {
        let now_ms = self.now_ms;
        match message {
            Message::Asked { asked_ms } => {
                self.send(at, Message::Told { asked_ms, revision: self.log.len() as u64 });
            }
            Message::Told { asked_ms, revision } => {
                let revision =
                    if self.has(Fault::SameRevision) { revision.saturating_sub(1) } else { revision };
                self.nodes[at].asked.record(asked_ms, revision);
                self.nodes[at].sightings.see(revision, now_ms);
            }
            Message::Put { what, upto } => {
                let position = match &what {
                    What::Claim(claim) => claim.standing.as_ref().and_then(|text| text.parse().ok()),
                    What::Bumps(_) | What::Other => None,
                };
                self.log.push(what);
                self.send(at, Message::Done { revision: self.log.len() as u64, upto, position });
            }
            Message::Done { revision, upto, position } => {
                let node = &mut self.nodes[at];
                node.sightings.see(revision, now_ms);
                if upto == 0 {
                    node.is_claiming = false;
                    if let Some(position) = position {
                        node.feed.note_committed(position);
                    }
                } else {
                    (node.is_putting, node.committed) = (false, node.committed.max(upto));
                }
            }
            Message::Probe { asked_ms } => {
                self.send(at, Message::Probed { asked_ms, commits: self.commits.len() });
            }
            Message::Probed { asked_ms, commits } => {
                let sees_late = self.has(Fault::SeesTooLate);
                let node = &mut self.nodes[at];
                node.is_probing = false;
                if node.leads {
                    if node.read < commits {
                        node.outbox.extend(node.read..commits);
                        node.tickets += 1;
                        node.read = commits;
                    }
                    let seen = node.sightings.before(if sees_late { u64::MAX } else { asked_ms });
                    node.feed.confirm(seen, node.tickets, node.standing.clone());
                    let position = node.read as u64;
                    node.standing = Some(ResumePoint { position, text: position.to_string().into() });
                }
            }
        }
    }

    /// Takes what has come of the log.
    fn stream(&mut self, at: usize) -> Result<(), String> {
        let upto = self.draw.random_range(self.nodes[at].stream..=self.log.len() as u64);
        let ahead = self.has(Fault::ReadsAhead) && self.draw.random_ratio(1, 5);
        let from = self.nodes[at].stream;
        for revision in from..if ahead { self.log.len() as u64 } else { upto } {
            let what = self.log[revision as usize].clone();
            let node = &mut self.nodes[at];
            match what {
                What::Bumps(commits) if revision < upto => {
                    node.obeyed.resize(node.obeyed.len().max(self.commits.len()), false);
                    for commit in commits {
                        node.obeyed[commit] = true;
                    }
                }
                What::Claim(claim) => {
                    if let Some(asked_ms) = node.asked.obeyed(claim.seen) {
                        self.confirm(at, asked_ms)?;
                    }
                }
                What::Bumps(_) | What::Other => {}
            }
            if revision < upto {
                let node = &mut self.nodes[at];
                node.stream = revision + 1;
                node.sightings.see(revision + 1, self.now_ms);
            }
        }
        Ok(())
    }

    fn confirm(&mut self, at: usize, asked_ms: u64) -> Result<(), String> {
        self.confirmed += 1;
        let obeyed = &self.nodes[at].obeyed;
        let missing = self
            .commits
            .iter()
            .enumerate()
            .find(|(commit, at_ms)| **at_ms < asked_ms && !obeyed.get(*commit).copied().unwrap_or(false));
        match missing {
            Some((commit, at_ms)) => Err(format!(
                "{} ms: node {at} confirms {asked_ms} ms, and commit {commit} of {at_ms} ms is not obeyed",
                self.now_ms
            )),
            None => Ok(()),
        }
    }

    /// Follows the database, and writes what is due.
    fn follow(&mut self, at: usize) {
        if self.nodes[at].leads && !self.nodes[at].is_probing && self.draw.random_ratio(1, 10) {
            self.nodes[at].is_probing = true;
            self.send(at, Message::Probe { asked_ms: self.now_ms });
        }
        let early = self.has(Fault::ClaimsEarly);
        let node = &mut self.nodes[at];
        if !node.is_putting && !node.outbox.is_empty() {
            node.is_putting = true;
            let (commits, upto) = (std::mem::take(&mut node.outbox), node.tickets);
            self.send(at, Message::Put { what: What::Bumps(commits), upto });
        }
        let node = &mut self.nodes[at];
        if node.leads
            && !node.is_claiming
            && let Some((seen, standing)) = node.feed.take(if early { u64::MAX } else { node.committed })
        {
            node.is_claiming = true;
            let standing = standing.map(|standing| standing.text);
            let claim = Claim { instance: at as u64, mark: 1, seen, standing, says: None };
            self.send(at, Message::Put { what: What::Claim(claim), upto: 0 });
        }
    }
}

fn run(seed: u64, fault: Option<Fault>) -> Result<u64, String> {
    let mut world = World::new(seed, fault);
    for _ in 0..STEPS {
        world.step().map_err(|problem| format!("FOLLOW_SEED={seed}: {problem}"))?;
    }
    Ok(world.confirmed)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn what_a_node_confirms_it_has_obeyed() {
    if let Some(seed) = number("FOLLOW_SEED") {
        run(seed, None).unwrap();
        return;
    }
    let mut confirmed = 0;
    for seed in 0..number("FOLLOW_HISTORIES").unwrap_or(HISTORIES) {
        confirmed += run(seed, None).unwrap_or_else(|problem| panic!("{problem}"));
    }
    assert!(confirmed > HISTORIES, "claims confirm: {confirmed}");
}

#[test]
fn each_mistake_is_found() {
    for fault in [
        Fault::SeesTooLate,
        Fault::SameRevision,
        Fault::ClaimsEarly,
        Fault::ReadsAhead,
        Fault::KeepsSightings,
        Fault::KeepsSayings,
        Fault::StandsAhead,
    ] {
        let found = (0..FOUND_WITHIN).find(|seed| run(*seed, Some(fault)).is_err());
        assert!(found.is_some(), "{fault:?}");
    }
}
