//! Servers that are killed, stopped and restarted under load. The only test here that opens sockets: it
//! counts those of the process.
//!
//! `CATTLEGRID_CHAOS_SECONDS` (20) and `CATTLEGRID_CHAOS_SEED` say how long and with what; figures are
//! printed.
//!
//! ```sh
//! CATTLEGRID_CHAOS_SECONDS=600 cargo nextest run -p cattlegrid-client --run-ignored only --no-capture chaos::
//! ```
#![expect(clippy::unwrap_used, reason = "a test may panic, its helpers too")]
#![expect(clippy::print_stdout, reason = "figures")]
#![expect(
    clippy::disallowed_methods,
    reason = "servers fail at random times, and waits are for other processes"
)]

use std::collections::BTreeMap;
use std::fs;
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cattlegrid_client::{Client, Ejection, Error, Protocol, Sharding};
use cattlegrid_load::harness::comes_true;
use nix::sys::signal::Signal;

use crate::servers::{Kind, Server, patient};

const TIMEOUT: Duration = Duration::from_millis(300);
/// A request takes no longer: far more than the timeout, for a machine that has other work.
const LONGEST: Duration = Duration::from_secs(10);
const TASKS: u64 = 32;
/// Each task writes its own, so that writers of a key never race.
const KEYS: usize = 12 * TASKS as usize;
const EJECTION: Ejection = Ejection { after_failures: 2, retry: Duration::from_millis(200) };

/// A number generator whose sequence is known by its seed.
struct Dice(u64);

impl Dice {
    /// Below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
    }

    fn ms(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }
}

/// The calls of all tasks, and their results.
#[derive(Default)]
struct Seen {
    sets: AtomicU64,
    gets: AtomicU64,
    hits: AtomicU64,
    /// Values older than a version that was acknowledged before the get began: of a server that has returned,
    /// or of a set that timed out and was executed later.
    older: AtomicU64,
    longest_us: AtomicU64,
    errors: Mutex<BTreeMap<String, u64>>,
    /// Violations of the guarantees.
    faults: Mutex<Vec<String>>,
}

impl Seen {
    fn took(&self, what: &str, begin: Instant) {
        let took = begin.elapsed();
        self.longest_us.fetch_max(took.as_micros() as u64, Ordering::Relaxed);
        if took > LONGEST {
            self.fault(format!("{what} took {took:?}"));
        }
    }

    fn error(&self, error: &Error) {
        let kind = match error {
            Error::Connection { kind, .. } => format!("connection: {kind}"),
            Error::Timeout { .. } => "timeout".to_owned(),
            Error::Unavailable { message, .. } if message.contains("ejected") => "all ejected".to_owned(),
            Error::Unavailable { .. } => "back-off".to_owned(),
            Error::Server { line, .. } => line.clone(),
            other => {
                self.fault(format!("unexpected: {other}"));
                "unexpected".to_owned()
            }
        };
        *self.errors.lock().unwrap().entry(kind).or_default() += 1;
    }

    fn fault(&self, text: String) {
        self.faults.lock().unwrap().push(text);
    }
}

/// A key's newest versions: given out, and acknowledged.
#[derive(Default)]
struct Versions {
    next: AtomicU64,
    stored: AtomicU64,
}

fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// A value that says what it is: key, version, length and checksum, then bytes that depend on all of them.
fn value(key: usize, version: u64, size: usize) -> Bytes {
    let mut dice = Dice((key as u64 + 1) << 40 | version << 8 | 1);
    let body: Vec<u8> = (0..size).map(|_| dice.below(256) as u8).collect();
    let mut all = format!("{key} {version} {size} {:016x}\n", checksum(&body)).into_bytes();
    all.extend(body);
    all.into()
}

/// The version of a value of this key, or what is wrong with it.
fn version(key: usize, value: &[u8]) -> Result<u64, String> {
    let end = value.iter().position(|byte| *byte == b'\n').ok_or("no head")?;
    let head = std::str::from_utf8(&value[..end]).map_err(|_| "no head")?;
    let words: Vec<&str> = head.split(' ').collect();
    let [own, version, size, sum] = words[..] else { return Err(format!("head {head:?}")) };
    let body = &value[end + 1..];
    if own != key.to_string() {
        return Err(format!("the value of {own}"));
    }
    if size != body.len().to_string() || sum != format!("{:016x}", checksum(body)) {
        return Err(format!("torn: {head}, {} bytes", body.len()));
    }
    version.parse().map_err(|_| format!("head {head:?}"))
}

fn name(key: usize) -> String {
    format!("chaos:{key}")
}

struct Load {
    task: u64,
    client: Client,
    seen: Arc<Seen>,
    versions: Arc<Vec<Versions>>,
    stop: Arc<AtomicBool>,
}

impl Load {
    async fn run(self, mut dice: Dice) {
        while !self.stop.load(Ordering::Relaxed) {
            match dice.below(10) {
                0..3 => self.set(&mut dice).await,
                3..9 => self.get(&[dice.below(KEYS as u64) as usize]).await,
                _ => {
                    let keys: Vec<usize> = (0..20).map(|_| dice.below(KEYS as u64) as usize).collect();
                    self.get(&keys).await;
                }
            }
            tokio::time::sleep(dice.ms(0, 5)).await;
        }
    }

    async fn set(&self, dice: &mut Dice) {
        let key = (dice.below(KEYS as u64 / TASKS) * TASKS + self.task) as usize;
        let size = match dice.below(100) {
            0..85 => 10 + dice.below(2000),
            85..97 => 10 + dice.below(20_000),
            _ => 10 + dice.below(200_000),
        };
        let version = self.versions[key].next.fetch_add(1, Ordering::Relaxed) + 1;
        let value = value(key, version, size as usize);
        let begin = Instant::now();
        let stored = self.client.set(name(key), &value, 0).await;
        self.seen.took("set", begin);
        self.seen.sets.fetch_add(1, Ordering::Relaxed);
        match stored {
            Ok(_) => {
                self.versions[key].stored.fetch_max(version, Ordering::Relaxed);
            }
            Err(error) => self.seen.error(&error),
        }
    }

    async fn get(&self, keys: &[usize]) {
        let stored = |key: &usize| self.versions[*key].stored.load(Ordering::Relaxed);
        let before: Vec<u64> = keys.iter().map(stored).collect();
        let names: Vec<String> = keys.iter().map(|key| name(*key)).collect();
        let begin = Instant::now();
        let values = match &names[..] {
            [name] => vec![self.client.get::<Bytes>(name).await],
            names => self.client.get_many::<Bytes>(names).await,
        };
        self.seen.took("get", begin);
        assert_eq!(values.len(), keys.len());
        for ((key, before), value) in keys.iter().zip(before).zip(values) {
            self.seen.gets.fetch_add(1, Ordering::Relaxed);
            match value {
                Ok(None) => {}
                Ok(Some(value)) => {
                    self.seen.hits.fetch_add(1, Ordering::Relaxed);
                    match version(*key, &value) {
                        Ok(version) if version > self.versions[*key].next.load(Ordering::Relaxed) => {
                            self.seen.fault(format!("{key} has version {version}, which nobody wrote"));
                        }
                        Ok(version) if version < before => {
                            self.seen.older.fetch_add(1, Ordering::Relaxed);
                        }
                        Ok(_) => {}
                        Err(error) => self.seen.fault(format!("{key}: {error}")),
                    }
                }
                Err(error) => self.seen.error(&error),
            }
        }
    }
}

/// A server on a port of its own that is there or not, or stands still.
struct Node {
    kind: Kind,
    port: String,
    server: Option<Server>,
    is_stopped: bool,
    /// When it recovers.
    until: Option<Instant>,
}

impl Node {
    fn new(kind: Kind) -> Self {
        let server = kind.start_to_return();
        let port = server.address().rsplit_once(':').unwrap().1.to_owned();
        Self { kind, port, server: Some(server), is_stopped: false, until: None }
    }

    /// Lets it fail, and says how.
    fn fail(&mut self, dice: &mut Dice) -> &'static str {
        self.until = Some(Instant::now() + dice.ms(50, 2500));
        if dice.below(2) == 0 {
            self.server.as_ref().unwrap().signal(Signal::SIGSTOP);
            self.is_stopped = true;
            return "stopped";
        }
        if dice.below(3) == 0 {
            self.server.take().unwrap().stop();
            return "ended";
        }
        self.server = None;
        "killed"
    }

    fn recover(&mut self) {
        self.until = None;
        if std::mem::take(&mut self.is_stopped) {
            self.server.as_ref().unwrap().signal(Signal::SIGCONT);
            return;
        }
        self.server = Some(self.kind.start_with(&["-p", &self.port]));
    }
}

/// Lets servers fail and recover until `end`; how often each way.
fn disturb(nodes: &mut [Node], mut dice: Dice, end: Instant) -> BTreeMap<&'static str, u64> {
    let mut counts = BTreeMap::new();
    while Instant::now() < end {
        for node in nodes.iter_mut().filter(|node| node.until.is_some_and(|until| until <= Instant::now())) {
            node.recover();
        }
        let place = dice.below(nodes.len() as u64) as usize;
        if dice.below(4) == 0 && nodes[place].until.is_none() {
            *counts.entry(nodes[place].fail(&mut dice)).or_default() += 1;
        }
        thread::sleep(dice.ms(20, 200));
    }
    for node in nodes.iter_mut().filter(|node| node.until.is_some()) {
        node.recover();
    }
    counts
}

/// Number of sockets of this process.
fn sockets() -> usize {
    let all = fs::read_dir("/proc/self/fd").unwrap();
    let links = all.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
}

/// One client under load for this long, from its first connection to what is left of it.
fn round(nodes: &mut [Node], seed: u64, seconds: u64, number: u64) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let tasks = || runtime.metrics().num_alive_tasks();
    let before = sockets();
    let found = Arc::new(Seen::default());
    let servers: Vec<_> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
    // By a client that has time.
    let flushing = patient(servers.iter().map(String::as_str)).build().unwrap();
    let flushed = runtime.block_on(flushing.flush_all());
    assert!(flushed.iter().all(|(_, flushed)| flushed.is_ok()), "{flushed:?}");
    drop(flushing);
    let protocol = if number.is_multiple_of(2) { Protocol::Meta } else { Protocol::Text };
    let sharding = [Sharding::Rendezvous, Sharding::Ketama, Sharding::KetamaWeighted][number as usize % 3];
    let client = Client::builder().servers(servers).timeout(TIMEOUT).protocol(protocol).sharding(sharding);
    let client = client.connections(1 + number as usize % 2).flush_on_return(number % 8 >= 4);
    let ejects = number % 4 < 2;
    let client = if ejects { client.ejection(EJECTION) } else { client }.build().unwrap();
    let versions: Arc<Vec<Versions>> = Arc::new((0..KEYS).map(|_| Versions::default()).collect());
    // Versions of a round do not begin where those of another did.
    for version in versions.iter() {
        version.next.store(number << 32, Ordering::Relaxed);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let load: Vec<_> = (0..TASKS)
        .map(|task| {
            let load = Load {
                task,
                client: client.clone(),
                seen: found.clone(),
                versions: versions.clone(),
                stop: stop.clone(),
            };
            runtime.spawn(load.run(Dice(seed ^ (task + 1) << 20)))
        })
        .collect();
    let begin = Instant::now();
    let counts = disturb(nodes, Dice(seed), begin + Duration::from_secs(seconds));
    let at_rest = wait_for_all(&runtime, &client);
    stop.store(true, Ordering::Relaxed);
    for task in load {
        runtime.block_on(task).unwrap();
    }
    drop(client);
    let left = |what: &str, none_left: &dyn Fn() -> bool| {
        assert!(
            comes_true(Duration::from_secs(20), none_left),
            "{what}: {} tasks, {} sockets",
            tasks(),
            sockets()
        );
    };
    left("tasks are left", &|| tasks() == 0);
    // The runtime itself has a pair for signals, if at all.
    left("sockets are left", &|| sockets() <= before);
    println!(
        "round {number} ({protocol:?}, {sharding:?}, ejection {ejects}): {} sets, {} gets, {} hits, {} older, longest {:?}; \
         servers {counts:?}; errors {:?}; all answer again after {at_rest:?}",
        found.sets.load(Ordering::Relaxed),
        found.gets.load(Ordering::Relaxed),
        found.hits.load(Ordering::Relaxed),
        found.older.load(Ordering::Relaxed),
        Duration::from_micros(found.longest_us.load(Ordering::Relaxed)),
        found.errors.lock().unwrap(),
    );
    let faults = found.faults.lock().unwrap();
    assert!(faults.is_empty(), "{} faults, seed {seed}: {:?}", faults.len(), &faults[..faults.len().min(10)]);
    assert!(found.hits.load(Ordering::Relaxed) > 100, "nothing was tested");
}

/// Waits until every key can be read, and says how long that took.
fn wait_for_all(runtime: &tokio::runtime::Runtime, client: &Client) -> Duration {
    let begin = Instant::now();
    let keys: Vec<String> = (0..KEYS).map(name).collect();
    let answers = || runtime.block_on(client.get_many::<Bytes>(&keys)).iter().all(Result::is_ok);
    assert!(comes_true(Duration::from_secs(60), answers), "not all servers are used again");
    begin.elapsed()
}

#[test]
#[ignore = "needs servers: cargo xtask test --stage client"]
fn servers_fail_under_load() {
    let variable = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seconds = variable("CATTLEGRID_CHAOS_SECONDS").unwrap_or(20);
    let seed = variable("CATTLEGRID_CHAOS_SEED").unwrap_or_else(|| u64::from(process::id()));
    println!("seed {seed}");
    let mut nodes = [Kind::Memcached, Kind::Plain, Kind::Rules].map(Node::new);
    let rounds = (seconds / 15).clamp(4, 24);
    for round_number in 0..rounds {
        let seed = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ round_number << 8;
        round(&mut nodes, seed | 1, (seconds / rounds).max(1), round_number);
    }
}

#[test]
fn a_value_says_what_it_is() {
    let good = value(7, 9, 1000);
    assert_eq!(version(7, &good), Ok(9));
    assert_eq!(version(7, &value(7, 10, 0)), Ok(10));
    assert!(version(8, &good).unwrap_err().contains("the value of 7"));
    let mut torn = good.to_vec();
    torn[500] ^= 1;
    assert!(version(7, &torn).unwrap_err().contains("torn"));
    assert!(version(7, &good[..900]).unwrap_err().contains("torn"));
    assert!(version(7, &[&good[..], &good[..]].concat()).unwrap_err().contains("torn"));
    assert!(version(7, b"").is_err());
}
