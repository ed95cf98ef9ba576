//! Computing over a server without leases: all orders of the steps of three clients, with what else can
//! happen to the key.
//!
//! The decisions are those of `herd/plain.rs` and the bytes those of `herd/envelope.rs`; the server is a
//! model of memcached: one item, its CAS number and its time to live. Each command is a step, and so is the
//! moment at which a computation reads its source, and that at which it ends. A [`Trouble`] can happen
//! before, between and after any of these steps: each order is tried with each trouble at each place, and
//! with each two troubles.
//!
//! States that are reached in several orders are checked once; the orders are counted all the same. That the
//! model notices faults is shown by clients with a fault on purpose: [`Fault`].

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::unnecessary_wraps, reason = "helpers of tests")]

#[expect(dead_code, reason = "the part of the crate that decides, of which this needs a part")]
#[path = "../../src/herd/envelope.rs"]
mod envelope;
#[expect(dead_code, reason = "the part of the crate that decides, of which this needs a part")]
#[path = "../../src/herd/found.rs"]
mod found;
#[expect(dead_code, reason = "the part of the crate that decides, of which this needs a part")]
#[path = "../../src/herd/plain.rs"]
mod plain;

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use cattlegrid_client::{Expiration, Written};
use envelope::{ItemRecord, StoredValue};
use found::SearchResult;
use plain::{LockTerms, NewLock, SettleStep};

/// When a test begins, in Unix milliseconds, and the times of the values and locks.
const BEGIN: u64 = 1_000_000;
const EXPIRATION: u64 = 10_000;
const TERMS: LockTerms = LockTerms { lock_ms: 2_000, keep_s: 3, stale: true, awaited: None };
const GRACE: u64 = 3_000;

/// Events besides the clients' steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Trouble {
    /// A writer changes the source and deletes the key.
    Delete,
    /// The server evicts the item.
    Evict,
    /// The lock's time passes.
    LockPasses,
    /// The lock's time passes in the server as well.
    ItemPasses,
    /// A computation that runs fails, or its client gives up.
    Fail,
    /// A client dies.
    Die,
}

const TROUBLES: [Trouble; 6] =
    [Trouble::Delete, Trouble::Evict, Trouble::LockPasses, Trouble::ItemPasses, Trouble::Fail, Trouble::Die];

/// Faults of a client, which the model must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Fault {
    None,
    /// Stores its value whatever the key is.
    FillsBySet,
    /// Stores its value if the key is absent.
    FillsByAdd,
    /// Replaces an expired value without comparing.
    LocksBySet,
    /// Computes without a lock if another client has one.
    ComputesWhenBusy,
    /// Serves an expired value for ever.
    ServesForEver,
    /// Leaves its lock when it fails.
    LeavesLock,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Item {
    record: Bytes,
    cas: u64,
    dies_ms: u64,
}

/// Where a client is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum At {
    /// About to read.
    Read {
        retried: bool,
    },
    /// About to write its lock.
    Lock {
        retried: bool,
        locking: Hashed,
    },
    /// About to read the source.
    Begin(Held),
    /// About to end the computation.
    Computing(Held, u32),
    /// About to store or to remove the lock.
    Settle {
        held: Held,
        version: Option<u32>,
        next: Step,
    },
    Done,
    Dead,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Hashed {
    cas: Option<u64>,
    old: Option<(Bytes, u64, u64)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Held {
    nonce: u64,
    cas: Option<u64>,
    taken_ms: u64,
    old: Option<(Bytes, u64, u64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Step {
    Read,
    Cas(u64),
    Add,
    Set,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    now_ms: u64,
    item: Option<Item>,
    next_cas: u64,
    next_nonce: u64,
    source: u32,
    /// Values of smaller versions were deleted, and the delete is acknowledged.
    deleted_below: u32,
    /// A computation may be under way beside another for as many reasons as this.
    causes: u32,
    computations: u32,
    /// Computations that have not brought a value.
    failures: u32,
    /// A value was stored although its lock was gone: a delete could not be noticed.
    unfenced: bool,
    clients: Vec<At>,
    left: Vec<Trouble>,
}

fn stored((data, soft_ms, dead_ms): &(Bytes, u64, u64)) -> StoredValue {
    StoredValue { data: data.clone(), flags: 0, soft_ms: *soft_ms, dead_ms: *dead_ms }
}

fn parts(stored: StoredValue) -> (Bytes, u64, u64) {
    (stored.data, stored.soft_ms, stored.dead_ms)
}

fn value(version: u32, now_ms: u64) -> ItemRecord {
    let soft_ms = now_ms + EXPIRATION;
    let data = Bytes::copy_from_slice(&version.to_be_bytes());
    ItemRecord::Value(StoredValue { data, flags: 0, soft_ms, dead_ms: soft_ms + GRACE })
}

fn version(data: &Bytes) -> u32 {
    u32::from_be_bytes(data[..].try_into().unwrap())
}

impl World {
    /// `expired`: the key has an expired value, within its grace.
    fn new(clients: usize, expired: bool, left: Vec<Trouble>) -> Self {
        let item = expired.then(|| Item {
            record: value(0, BEGIN - EXPIRATION - 1).seal(),
            cas: 1,
            dies_ms: BEGIN - 1 + GRACE,
        });
        Self {
            now_ms: BEGIN,
            item,
            next_cas: 2,
            next_nonce: 1,
            source: 1,
            deleted_below: 0,
            causes: 0,
            computations: 0,
            failures: 0,
            unfenced: false,
            clients: vec![At::Read { retried: false }; clients],
            left,
        }
    }

    fn seen(&self) -> Option<(ItemRecord, u64)> {
        self.item.as_ref().map(|item| (ItemRecord::open(&item.record, 0), item.cas))
    }

    fn put(&mut self, record: &ItemRecord, keep: Expiration) -> Written {
        let cas = self.next_cas;
        self.next_cas += 1;
        let keep_ms = match keep {
            Expiration::After(time) => (time.as_millis() as u64).div_ceil(1000) * 1000,
            _ => u64::MAX / 2,
        };
        self.item = Some(Item { record: record.seal(), cas, dies_ms: self.now_ms + keep_ms });
        Written::Stored { cas: Some(cas) }
    }

    fn add(&mut self, record: &ItemRecord, keep: Expiration) -> Written {
        if self.item.is_some() { Written::NotStored } else { self.put(record, keep) }
    }

    fn cas(&mut self, record: &ItemRecord, keep: Expiration, cas: u64) -> Written {
        match &self.item {
            None => Written::NotFound,
            Some(item) if item.cas != cas => Written::Exists,
            Some(_) => self.put(record, keep),
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        if self.item.as_ref().is_some_and(|item| item.dies_ms <= self.now_ms) {
            self.item = None;
        }
    }

    /// Checks that an answer to a client is new enough.
    fn serve(&self, stored: &StoredValue, fresh: bool) -> Result<(), String> {
        let version = version(&stored.data);
        if fresh && !stored.is_fresh(self.now_ms) {
            return Err("an expired value is served as fresh".to_owned());
        }
        // The version of an old value is not known here: all are from before any delete.
        if stored.dead_ms <= self.now_ms && stored.dead_ms != 0 {
            return Err("a value is served after its expiry and grace".to_owned());
        }
        if version < self.deleted_below && !self.unfenced {
            return Err(format!("a value of version {version} is read after its delete"));
        }
        Ok(())
    }

    fn computing(&self) -> u32 {
        self.clients.iter().filter(|at| matches!(at, At::Begin(_) | At::Computing(..))).count() as u32
    }

    fn can_step(&self, client: usize) -> bool {
        !matches!(self.clients[client], At::Done | At::Dead)
    }

    /// The next step of a client.
    fn step(&mut self, client: usize, fault: Fault) -> Result<(), String> {
        let at = self.clients[client].clone();
        self.clients[client] = match at {
            At::Read { retried } => self.read(retried, fault)?,
            At::Lock { retried, locking } => self.lock(retried, locking, fault)?,
            At::Begin(held) => At::Computing(held, self.source),
            At::Computing(held, version) => {
                let next = match fault {
                    Fault::FillsBySet => Step::Set,
                    Fault::FillsByAdd => Step::Add,
                    _ => step_of(plain::settle(held.cas)).unwrap(),
                };
                At::Settle { held, version: Some(version), next }
            }
            At::Settle { held, version, next } => self.settle(held, version, next),
            At::Done | At::Dead => at,
        };
        if self.computing() > 1 + self.causes {
            return Err(format!("{} computations, but {} causes", self.computing(), self.causes));
        }
        Ok(())
    }

    fn read(&mut self, retried: bool, fault: Fault) -> Result<At, String> {
        Ok(match plain::decide(self.now_ms, self.seen(), &TERMS) {
            SearchResult::Hit(stored) => {
                self.serve(&stored, true)?;
                At::Done
            }
            SearchResult::Stale(stored) => {
                self.serve(&stored, false)?;
                At::Done
            }
            SearchResult::Busy(_) if fault == Fault::ComputesWhenBusy => {
                self.computations += 1;
                At::Begin(Held { nonce: 0, cas: Some(0), taken_ms: self.now_ms, old: None })
            }
            SearchResult::Busy(_) | SearchResult::Failed(_) if retried => At::Done,
            SearchResult::Busy(_) | SearchResult::Failed(_) => At::Read { retried: true },
            SearchResult::Compute(mut locking) => {
                if fault == Fault::ServesForEver
                    && let Some((ItemRecord::Value(stored) | ItemRecord::Again(stored, _), _)) = self.seen()
                {
                    self.serve(&stored, false)?;
                    locking.old = Some(stored);
                }
                let locking = Hashed { cas: locking.cas, old: locking.old.map(parts) };
                At::Lock { retried, locking }
            }
        })
    }

    fn lock(&mut self, retried: bool, hashed: Hashed, fault: Fault) -> Result<At, String> {
        let locking = NewLock { cas: hashed.cas, old: hashed.old.as_ref().map(stored), hint: None };
        let nonce = self.next_nonce;
        self.next_nonce += 1;
        let (record, keep) = plain::lock(self.now_ms, &locking, &Bytes::new(), nonce, &TERMS);
        let written = match locking.cas {
            _ if fault == Fault::LocksBySet => self.put(&record, keep),
            Some(cas) => self.cas(&record, keep, cas),
            None => self.add(&record, keep),
        };
        Ok(match plain::locked(written, &locking) {
            Some(SearchResult::Compute(cas)) => {
                self.computations += 1;
                // Every second client is told no CAS number, as text commands do.
                let cas = cas.filter(|_| nonce % 2 == 1);
                At::Begin(Held { nonce, cas, taken_ms: self.now_ms, old: hashed.old })
            }
            // It was read before: the delete may have come since, but this client had asked before it.
            Some(_) => At::Done,
            None if retried => At::Done,
            None => At::Read { retried: true },
        })
    }

    fn settle(&mut self, held: Held, version: Option<u32>, next: Step) -> At {
        let late = version.is_some() && TERMS.is_late(Duration::from_millis(self.now_ms - held.taken_ms));
        let freed = plain::freed(self.now_ms, held.old.as_ref().map(stored).as_ref());
        let write = match version {
            Some(version) => {
                let keep = Expiration::After(Duration::from_millis(EXPIRATION + GRACE));
                Some((value(version, self.now_ms), keep))
            }
            None => freed,
        };
        let nothing = (ItemRecord::Damaged, Expiration::Never);
        let gone = write.is_none();
        let (record, keep) = write.unwrap_or(nothing);
        let settle = match next {
            Step::Read => plain::settle_read(self.seen(), held.nonce, late),
            Step::Cas(cas) => {
                let written = self.cas(&record, keep, cas);
                if gone && written.is_stored() {
                    self.item = None;
                }
                plain::settle_cas(written, late)
            }
            Step::Add => {
                let written = self.add(&record, keep);
                self.unfenced |= written.is_stored() && late;
                plain::settle_add(written)
            }
            Step::Set => {
                self.put(&record, keep);
                SettleStep::Lost
            }
        };
        match step_of(settle) {
            Some(next) => At::Settle { held, version, next },
            None => At::Done,
        }
    }

    /// All that this trouble can do now.
    fn troubled(&self, trouble: Trouble, fault: Fault) -> Vec<Self> {
        let mut next = self.clone();
        match trouble {
            Trouble::Delete => {
                next.source += 1;
                next.deleted_below = next.source;
                next.item = None;
                next.causes += 1;
            }
            Trouble::Evict => {
                next.item = None;
                next.causes += 1;
            }
            Trouble::LockPasses => {
                next.pass(TERMS.lock_ms);
                next.causes += 1;
            }
            Trouble::ItemPasses => {
                next.pass(u64::from(TERMS.keep_s) * 1000 - 500);
                next.item = None;
                next.causes += 1;
            }
            Trouble::Fail | Trouble::Die => {
                let mut all = Vec::new();
                for (client, at) in self.clients.iter().enumerate() {
                    let (At::Begin(held) | At::Computing(held, _)) = at else { continue };
                    let mut next = self.clone();
                    next.failures += 1;
                    let next_step = step_of(plain::settle(held.cas)).unwrap();
                    let leaves = trouble == Trouble::Die || fault == Fault::LeavesLock;
                    next.clients[client] = if leaves {
                        At::Dead
                    } else {
                        At::Settle { held: held.clone(), version: None, next: next_step }
                    };
                    all.push(next);
                }
                return all;
            }
        }
        vec![next]
    }

    /// After all: the key is not blocked, and a lock is left by dead clients only.
    fn end(&self, dead: bool) -> Result<(), String> {
        if self.computations > 1 + self.causes + self.failures {
            let (causes, failures) = (self.causes, self.failures);
            return Err(format!("{} computations, {causes} causes, {failures} failures", self.computations));
        }
        let mut next = self.clone();
        for time in [0, TERMS.lock_ms] {
            next.pass(time);
            match plain::decide(next.now_ms, next.seen(), &TERMS) {
                SearchResult::Hit(stored) => return next.serve(&stored, true),
                SearchResult::Compute(_) => return Ok(()),
                _ if time == 0 && dead => {}
                other => return Err(format!("the key is left locked: {other:?}")),
            }
        }
        Err("the key is left locked for ever".to_owned())
    }
}

fn step_of(settle: SettleStep) -> Option<Step> {
    match settle {
        SettleStep::Read => Some(Step::Read),
        SettleStep::Cas(cas) => Some(Step::Cas(cas)),
        SettleStep::Add => Some(Step::Add),
        SettleStep::Stored { .. } | SettleStep::Lost => None,
    }
}

/// How many orders there are from here; an error: what goes wrong in one of them.
fn orders(world: World, fault: Fault, known: &mut HashMap<World, u64>) -> Result<u64, String> {
    if let Some(count) = known.get(&world) {
        return Ok(*count);
    }
    let mut count = 0;
    let mut ended = true;
    for client in 0..world.clients.len() {
        if world.can_step(client) {
            ended = false;
            let mut next = world.clone();
            next.step(client, fault)
                .map_err(|error| format!("{error}\n  client {client} at {:?}", world.clients[client]))?;
            count += orders(next, fault, known)
                .map_err(|error| format!("{error}\n  client {client} at {:?}", world.clients[client]))?;
        }
    }
    for (place, trouble) in world.left.iter().enumerate() {
        for mut next in world.troubled(*trouble, fault) {
            next.left.remove(place);
            count += orders(next, fault, known).map_err(|error| format!("{error}\n  {trouble:?}"))?;
        }
    }
    if ended {
        world.end(world.clients.contains(&At::Dead) && fault != Fault::LeavesLock)?;
        count += 1;
    }
    known.insert(world, count);
    Ok(count)
}

/// All orders with these troubles, on a cold key and on an expired value.
fn all(clients: usize, troubles: &[Trouble], fault: Fault) -> Result<u64, String> {
    let mut sum = 0;
    for expired in [false, true] {
        let world = World::new(clients, expired, troubles.to_vec());
        sum += orders(world, fault, &mut HashMap::new())
            .map_err(|error| format!("{fault:?} {troubles:?} expired: {expired}: {error}"))?;
    }
    Ok(sum)
}

#[test]
fn three_clients_without_trouble_compute_once() {
    let count = all(3, &[], Fault::None).unwrap();
    println!("{count} orders of three clients");
    assert!(count > 1000, "{count}");
}

#[test]
fn three_clients_with_a_trouble_at_every_place() {
    let mut sum = 0;
    for trouble in TROUBLES {
        let count = all(3, &[trouble], Fault::None).unwrap();
        println!("{count} orders of three clients with {trouble:?}");
        sum += count;
    }
    println!("{sum} orders of three clients with one trouble");
}

/// All orders of this many clients with any two troubles.
fn two_troubles(clients: usize) {
    let mut sum = 0;
    for (place, first) in TROUBLES.iter().enumerate() {
        for second in &TROUBLES[place..] {
            sum += all(clients, &[*first, *second], Fault::None).unwrap();
        }
    }
    println!("{sum} orders of {clients} clients with two troubles");
}

#[test]
fn two_clients_with_two_troubles_at_every_place() {
    two_troubles(2);
}

#[test]
#[ignore = "takes a minute: cargo nextest run -p cattlegrid-client --run-ignored only interleavings::"]
fn three_clients_with_two_troubles_at_every_place() {
    two_troubles(3);
}

#[test]
fn faults_are_found() {
    let faults = [
        (Fault::FillsBySet, &[Trouble::Delete][..], "is read after its delete"),
        (Fault::FillsByAdd, &[], "left locked"),
        (Fault::LocksBySet, &[], "2 computations, "),
        (Fault::ComputesWhenBusy, &[], "2 computations, "),
        (Fault::ServesForEver, &[Trouble::LockPasses, Trouble::LockPasses], "after its expiry and grace"),
        (Fault::LeavesLock, &[Trouble::Fail], "left locked"),
    ];
    for (fault, troubles, expected) in faults {
        let error = all(3, troubles, fault).expect_err(&format!("{fault:?} is not found"));
        println!("{error}\n");
        assert!(error.contains(expected), "{fault:?}: {error}");
    }
}
