//! Kinds of work on a cache, as rows of requests in a fixed order: sessions, preloads, mixed sizes, deletes,
//! loops, deploys. Each shows one thing that a cache keeps or loses. They run on real servers
//! (`cattlegrid-compare --parts work`) and on the store alone (`cattlegrid-store-bench work`).
//!
//! Zipf loads draw ranks with probability 1/(rank + offset)^exponent. All random numbers follow from the
//! seed.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;

use crate::loads;

mod changing;
mod sites;

/// Tallies of a kind of work.
pub const TALLIES: usize = 4;

/// A request. Keys are numbers; [`TALLIES`] tallies are kept, by which some of the gets are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// A get, and a set of `bytes` where it misses.
    Fill {
        /// The key.
        key: u64,
        /// Bytes of its value.
        bytes: u32,
        /// Seconds that it lives; 0: forever.
        ttl: u32,
        /// Where it is counted.
        tally: Option<usize>,
    },
    /// A get.
    Read {
        /// The key.
        key: u64,
        /// Bytes of its value.
        bytes: u32,
        /// Where it is counted.
        tally: Option<usize>,
    },
    /// A set, whatever is there.
    Set {
        /// The key.
        key: u64,
        /// Bytes of its value.
        bytes: u32,
    },
    /// A delete.
    Delete {
        /// The key.
        key: u64,
    },
}

/// The gets of a tally, and the hits among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Gets.
    pub gets: u64,
    /// Those that hit.
    pub hits: u64,
    /// Bytes of the values asked for.
    pub bytes: u64,
    /// Bytes of the values that hit.
    pub hit_bytes: u64,
}

impl Tally {
    /// Counts a get.
    pub fn count(&mut self, bytes: u32, hit: bool) {
        self.gets += 1;
        self.bytes += u64::from(bytes);
        if hit {
            self.hits += 1;
            self.hit_bytes += u64::from(bytes);
        }
    }

    /// Gets that hit, in per cent; of the bytes with `by_bytes`.
    #[expect(clippy::cast_precision_loss, reason = "bytes of a few hundred MiB")]
    pub fn percent(&self, by_bytes: bool) -> f64 {
        let (part, all) = if by_bytes { (self.hit_bytes, self.bytes) } else { (self.hits, self.gets) };
        100.0 * part as f64 / all.max(1) as f64
    }
}

/// A figure of a kind of work.
#[derive(Debug, Clone)]
pub struct Figure {
    /// The figure's name.
    pub name: &'static str,
    /// The index of its tally.
    pub tally: usize,
    /// The share of bytes, not of gets.
    pub by_bytes: bool,
}

/// Makes the requests of a kind of work from a seed.
type WorkRun = Box<dyn Fn(u64, RequestSink<'_>)>;

/// A kind of work. See the module's text.
pub struct Work {
    /// The name of the work.
    pub name: String,
    /// The limit, in MiB.
    pub memory_mib: u64,
    /// The figures that it shows.
    pub figures: Vec<Figure>,
    run: WorkRun,
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Work {
    /// Makes the requests, in order. `seed`: of the random numbers.
    pub fn run(&self, seed: u64, mut each: impl FnMut(Op)) {
        (self.run)(seed, &mut each);
    }
}

/// The name of a key: 16 hexadecimal digits.
pub fn name(key: u64) -> [u8; 16] {
    let mut name = [b'0'; 16];
    let mut left = key;
    for byte in name.iter_mut().rev() {
        *byte = b"0123456789abcdef"[(left & 15) as usize];
        left >>= 4;
    }
    name
}

struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(mix(seed) | 1)
    }

    /// By xorshift64*: S. Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled",
    /// 2016.
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn unit(&mut self) -> f64 {
        unit(self.next())
    }
}

/// The finaliser of `SplitMix64`.
fn mix(key: u64) -> u64 {
    let x = key.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// From 0 to 1.
#[expect(clippy::cast_precision_loss, reason = "53 bits")]
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

/// A number from 0 to 1 that belongs to a key.
fn of_key(key: u64) -> f64 {
    unit(mix(key))
}

struct Zipf {
    sums: Vec<f64>,
    random: Random,
}

impl Zipf {
    fn new(keys: u32, exponent: f64, seed: u64) -> Self {
        Self::offset(keys, exponent, 1.0, seed)
    }

    fn offset(keys: u32, exponent: f64, offset: f64, seed: u64) -> Self {
        let mut sum = 0.0;
        let sums = (0..keys).map(|rank| {
            sum += (f64::from(rank) + offset).powf(-exponent);
            sum
        });
        Self { sums: sums.collect(), random: Random::new(seed) }
    }

    fn next(&mut self) -> u64 {
        let at = self.random.unit() * self.sums[self.sums.len() - 1];
        self.sums.partition_point(|sum| *sum < at) as u64
    }
}

type RequestSink<'a> = &'a mut dyn FnMut(Op);

fn fill(key: u64, bytes: u32, tally: Option<usize>) -> Op {
    Op::Fill { key, bytes, ttl: 0, tally }
}

/// `count` gets, of which those from `from` on count.
fn zipf(
    zipf: &mut Zipf,
    count: u32,
    from: u32,
    base: u64,
    bytes: impl Fn(u64) -> u32,
    each: RequestSink<'_>,
) {
    for n in 0..count {
        let key = base + zipf.next();
        each(fill(key, bytes(key), (n >= from).then_some(0)));
    }
}

/// Keys of different kinds in one row.
const PAGES: u64 = 1 << 40;
const SESSIONS: u64 = 2 << 40;

/// 1.2 M gets of 200,000 pages of 500 bytes: they fill 64 MiB.
fn pages(seed: u64, each: RequestSink<'_>) {
    pages_of(200_000, seed, each);
}

/// Gets of this many pages of 500 bytes, six times as many.
fn pages_of(count: u32, seed: u64, each: RequestSink<'_>) {
    zipf(&mut Zipf::new(count, 0.8, seed + 7), count * 6, u32::MAX, PAGES, |_| 500, each);
}

/// Values written once and read once, `gap` writes later; `reads_first`: their clients get before they set.
fn sessions(count: u64, from: u64, gap: u64, (reads_first, tally): (bool, usize), each: RequestSink<'_>) {
    for n in 0..count {
        let key = SESSIONS + from + n;
        each(if reads_first { fill(key, 500, None) } else { Op::Set { key, bytes: 500 } });
        if n >= gap {
            let (key, tally) = (key - gap, Some(tally));
            each(if reads_first { fill(key, 500, tally) } else { Op::Read { key, bytes: 500, tally } });
        }
    }
}

fn preload(each: RequestSink<'_>) {
    (0..35_000).for_each(|n| each(Op::Set { key: SESSIONS * 2 + n, bytes: 1_000 }));
    (0..35_000).for_each(|n| each(Op::Read { key: SESSIONS * 2 + n, bytes: 1_000, tally: Some(0) }));
}

/// From 1 byte to 1 MB, every octave alike.
#[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "up to a million")]
fn log_uniform(key: u64) -> u32 {
    10_f64.powf(6.0 * of_key(key)) as u32
}

/// Writes of 13 MB of sessions: 500 bytes and about 60 beside each.
const GAP: u64 = 13_000_000 / 560;
/// The same of 1,000 bytes.
const GAP_LONG: u64 = 13_000_000 / 1060;

/// Adds up kinds of work.
#[derive(Default)]
struct WorkRows(Vec<Work>);

impl WorkRows {
    /// `figures`: a name for each tally.
    fn add(
        &mut self,
        name: &str,
        memory_mib: u64,
        figures: &[&'static str],
        run: impl Fn(u64, RequestSink<'_>) + 'static,
    ) -> &mut Work {
        let figures = figures.iter().enumerate();
        let figures = figures.map(|(tally, name)| Figure { name, tally, by_bytes: false }).collect();
        self.0.push(Work { name: name.to_owned(), memory_mib, figures, run: Box::new(run) });
        self.0.last_mut().expect("one was added")
    }
}

impl Work {
    /// Shows what was hit of the bytes as well.
    fn and_bytes(&mut self) {
        let bytes = self.figures.iter().map(|figure| Figure { by_bytes: true, ..figure.clone() });
        self.figures = self.figures.iter().cloned().chain(bytes.collect::<Vec<_>>()).collect();
    }

    /// Shows what was hit of the bytes alone.
    fn by_bytes(&mut self) {
        self.figures.iter_mut().for_each(|figure| figure.by_bytes = true);
    }
}

/// All kinds of work.
///
/// # Errors
/// A trace in `traces` cannot be read.
pub fn works(traces: &Path) -> Result<Vec<Work>> {
    let mut rows = WorkRows::default();
    sizes(&mut rows);
    popularity(&mut rows);
    blind(&mut rows);
    changing::changes(&mut rows);
    mixtures(&mut rows);
    distances(&mut rows);
    changing::daily(&mut rows);
    changing::unread(&mut rows);
    changing::beside_others(&mut rows);
    changing::few_short_ones(&mut rows);
    changing::lives_and_sizes(&mut rows);
    sites::sites(&mut rows);
    for load in loads::loads(traces, false)? {
        let Some(replay) = load.replay else { continue };
        let bytes = |key: u64| 500 + (mix(key) % 1001) as u32;
        for percent in [5, 20] {
            let all: u64 = (0..load.plan.keys).map(|key| u64::from(bytes(key)) + 60).sum();
            let memory_mib = (all * percent / 100).div_ceil(1 << 20);
            let trace = std::sync::Arc::clone(&replay);
            let name = load.name.split(',').next().unwrap_or_default();
            rows.add(&format!("{name}, {percent} % of its data"), memory_mib, &["hits"], move |_, each| {
                trace.iter().for_each(|key| each(fill(u64::from(*key), bytes(u64::from(*key)), Some(0))));
            });
        }
    }
    Ok(rows.0)
}

/// Large values beside small ones.
fn sizes(rows: &mut WorkRows) {
    for (name, memory_mib, keys) in
        [("1 B to 1 MB, Zipf 1.01", 64, 2_600), ("the same, 4 times as many", 256, 10_400)]
    {
        rows.add(name, memory_mib, &["hits"], move |seed, each| {
            let base = seed << 32;
            let mut ranks = Zipf::offset(keys, 1.01, 8.0, seed);
            zipf(&mut ranks, keys * 13, keys * 13 / 2, base, log_uniform, each);
        })
        .and_bytes();
    }
    for (name, share) in [
        ("5 % of 200 KB, others 200 B", [0.05, 0.05]),
        ("the same, popular ones large", [0.3, 0.0222]),
        ("the same, unpopular ones large", [0.01, 0.09]),
    ] {
        rows.add(name, 64, &["hits"], move |seed, each| {
            let few = if share[0] > share[1] { 3_000 } else { 15_000 };
            let bytes = |key| if of_key(key) < share[usize::from(key >= few)] { 200_000 } else { 200 };
            zipf(&mut Zipf::new(30_000, 1.0, seed + 14), 400_000, 200_000, 0, bytes, each);
        })
        .and_bytes();
    }
    rows.add("100 B, 2 KB and 20 KB, Zipf 1.0", 64, &["hits"], |seed, each| {
        let bytes = |key| [100, 2_000, 20_000][(mix(key) % 3) as usize];
        zipf(&mut Zipf::new(100_000, 1.0, seed + 16), 600_000, 300_000, 0, bytes, each);
    })
    .and_bytes();
    rows.add(
        "100 MB of one size after the other, the last 40 MB read",
        64,
        &["4 sizes up", "4 sizes down"],
        |_, each| {
            let mut base = SESSIONS;
            for (phase, bytes) in
                [100_u32, 1_000, 10_000, 100_000, 30_000, 3_000, 300, 50].into_iter().enumerate()
            {
                let (count, newest) =
                    (100_000_000 / u64::from(bytes + 90), 40_000_000 / u64::from(bytes + 90));
                (0..count).for_each(|n| each(Op::Set { key: base + n, bytes }));
                for n in count - newest..count {
                    each(Op::Read { key: base + n, bytes, tally: Some(phase / 4) });
                }
                base += count;
            }
        },
    )
    .by_bytes();
    rows.add("40 values of up to 900 KB and 500 of 100 B, all in use", 64, &["large", "small"], |_, each| {
        for key in 0..55_000 {
            (0..if key % 2 == 0 { 3 } else { 1 }).for_each(|_| each(fill(key, 1_000, None)));
        }
        let mut bytes = 20_000;
        for round in 0..300 {
            bytes = (bytes + 10_000).min(900_000);
            let tally = |tally| (round > 0).then_some(tally);
            for key in SESSIONS..SESSIONS + 40 {
                each(Op::Read { key, bytes: 1, tally: tally(0) });
                each(Op::Set { key, bytes });
            }
            for key in SESSIONS + 1_000..SESSIONS + 1_500 {
                each(fill(key, 100, tally(1)));
            }
            (0..20).for_each(|n| each(fill(PAGES + round * 20 + n, 1_000, None)));
        }
    });
}

/// Fills by popularity.
fn popularity(rows: &mut WorkRows) {
    for (name, exponent, keys) in
        [("Zipf 1.0", 1.0, 300_000), ("Zipf 0.9", 0.9, 300_000), ("Zipf 0.8", 0.8, 200_000)]
    {
        rows.add(name, 64, &["hits"], move |seed, each| {
            zipf(&mut Zipf::new(keys, exponent, seed + 3), 2_400_000, 1_200_000, 0, |_| 1_000, each);
        });
    }
    for memory_mib in [8, 256] {
        rows.add("Zipf 1.0", memory_mib, &["hits"], move |seed, each| {
            let count = memory_mib as u32 * 25_000 + 200_000;
            let mut ranks = Zipf::new(memory_mib as u32 * 5_000, 1.0, seed + 3);
            zipf(&mut ranks, count, count / 2, 0, |_| 1_000, each);
        });
    }
    rows.add("Zipf 1.0, written without a get, read without a fill", 64, &["hits"], |seed, each| {
        let mut ranks = Zipf::new(300_000, 1.0, seed + 15);
        for n in 0..800_000 {
            let (key, bytes, tally) = (ranks.next(), 1_000, (n > 400_000).then_some(0));
            each(if n % 3 == 0 { Op::Set { key, bytes } } else { Op::Read { key, bytes, tally } });
        }
    });
    rows.add("Zipf 1.0, 20 % overwrites of other sizes", 64, &["hits"], |seed, each| {
        let (mut ranks, mut random) = (Zipf::new(300_000, 1.0, seed + 9), Random::new(seed + 4));
        for n in 0..800_000 {
            let (key, bytes) = (ranks.next(), 600 + (random.next() % 800) as u32);
            let writes = random.unit() < 0.2;
            each(if writes { Op::Set { key, bytes } } else { fill(key, bytes, (n > 400_000).then_some(0)) });
        }
    });
}

/// Values that are stored without a get before.
fn blind(rows: &mut WorkRows) {
    for (name, gap) in [("sessions, read 13 MB later", GAP), ("sessions, read 26 MB later", 2 * GAP)] {
        rows.add(name, 64, &["first turnover", "later"], move |seed, each| {
            pages(seed, each);
            sessions(120_000, 0, gap, (false, 0), each);
            sessions(360_000, 1 << 30, gap, (false, 1), each);
        });
    }
    rows.add("sessions whose clients get first", 64, &["first turnover", "later"], |seed, each| {
        pages(seed, each);
        sessions(120_000, 0, GAP, (true, 0), each);
        sessions(360_000, 1 << 30, GAP, (true, 1), each);
    });
    for (name, reads_first) in
        [("sessions beside Zipf 1.0", false), ("the same, their clients get first", true)]
    {
        rows.add(name, 64, &["sessions", "Zipf"], move |seed, each| {
            let mut ranks = Zipf::new(300_000, 1.0, seed + 5);
            zipf(&mut ranks, 2_000_000, u32::MAX, 0, |_| 1_000, each);
            for n in 0..150_000 {
                let (key, bytes) = (SESSIONS + n, 1_000);
                let tally = |tally| (n > 50_000).then_some(tally);
                each(if reads_first { fill(key, bytes, None) } else { Op::Set { key, bytes } });
                if n >= GAP_LONG {
                    let (key, tally) = (key - GAP_LONG, tally(0));
                    each(if reads_first { fill(key, bytes, tally) } else { Op::Read { key, bytes, tally } });
                }
                (0..2).for_each(|_| each(fill(ranks.next(), bytes, tally(1))));
            }
        });
    }
    rows.add("sessions read after any time, beside Zipf 1.0", 64, &["sessions", "Zipf"], |seed, each| {
        let mut ranks = Zipf::new(300_000, 1.0, seed + 5);
        zipf(&mut ranks, 2_000_000, u32::MAX, 0, |_| 1_000, each);
        let (mut random, mut due) = (Random::new(seed + 6), BTreeMap::<u64, Vec<u64>>::new());
        for n in 0..150_000 {
            let (key, bytes) = (SESSIONS + n, 1_000);
            let tally = |tally| (n > 50_000).then_some(tally);
            each(Op::Set { key, bytes });
            due.entry(n + random.next() % GAP_LONG).or_default().push(key);
            let due = due.remove(&n).unwrap_or_default();
            for key in due {
                each(Op::Read { key, bytes, tally: tally(0) });
            }
            (0..2).for_each(|_| each(fill(ranks.next(), bytes, tally(1))));
        }
    });
    rows.add("Zipf 1.0 beside what is only written", 64, &["Zipf"], |seed, each| {
        let mut ranks = Zipf::new(300_000, 1.0, seed + 5);
        zipf(&mut ranks, 2_000_000, u32::MAX, 0, |_| 1_000, each);
        for n in 0..150_000 {
            each(Op::Set { key: SESSIONS + n, bytes: 1_000 });
            (0..2).for_each(|_| each(fill(ranks.next(), 1_000, (n > 50_000).then_some(0))));
        }
    });
    rows.add("35 MB preloaded, after 60,000 values read twice", 64, &["hits"], |_, each| {
        for from in (0..60_000).step_by(1_000) {
            let keys = from..from + 1_000;
            keys.clone().for_each(|key| each(Op::Set { key, bytes: 1_000 }));
            for _ in 0..2 {
                keys.clone().for_each(|key| each(Op::Read { key, bytes: 1_000, tally: None }));
            }
        }
        preload(each);
    });
    rows.add("the same, after Zipf 1.0", 64, &["hits"], |seed, each| {
        zipf(&mut Zipf::new(300_000, 1.0, seed + 5), 800_000, u32::MAX, 0, |_| 1_000, each);
        preload(each);
    });
    rows.add("the same, after sessions read 2 MB later", 64, &["hits"], |seed, each| {
        pages(seed, each);
        for n in 0..120_000 {
            each(Op::Set { key: SESSIONS + n, bytes: 500 });
            if n >= 2_000_000 / 560 {
                each(Op::Read { key: SESSIONS + n - 2_000_000 / 560, bytes: 500, tally: None });
            }
        }
        preload(each);
    });
}

/// Loads that suit an LRU queue, and mixtures that change in mid-run.
fn mixtures(rows: &mut WorkRows) {
    rows.add(
        "recent keys again: a key of the last requests, by exponential distance",
        64,
        &["hits"],
        |seed, each| {
            let (mut random, mut keys) = (Random::new(seed + 20), Vec::<u64>::new());
            for n in 0..600_000_u64 {
                #[expect(clippy::cast_sign_loss, reason = "a distance")]
                let distance = (-40_000.0 * (1.0 - random.unit()).ln()) as usize;
                let is_new = random.unit() < 0.25 || distance >= keys.len();
                let key = if is_new { n } else { keys[keys.len() - 1 - distance] };
                keys.push(key);
                each(fill(key, 1_000, (n > 200_000).then_some(0)));
            }
        },
    );
    rows.add(
        "Zipf 1.0 through a batch that fills 200 MB once",
        64,
        &["in the batch", "after it"],
        |seed, each| {
            let mut ranks = Zipf::new(300_000, 1.0, seed + 21);
            zipf(&mut ranks, 800_000, u32::MAX, 0, |_| 1_000, each);
            for n in 0..200_000 {
                each(fill(SESSIONS + n, 1_000, None));
                (0..2).for_each(|_| each(fill(ranks.next(), 1_000, Some(0))));
            }
            (0..200_000).for_each(|_| each(fill(ranks.next(), 1_000, Some(1))));
        },
    );
    rows.add(
        "alternately Zipf 1.0 and sessions alone, 100,000 requests each",
        64,
        &["Zipf", "sessions"],
        |seed, each| {
            let mut ranks = Zipf::new(300_000, 1.0, seed + 22);
            zipf(&mut ranks, 800_000, u32::MAX, 0, |_| 1_000, each);
            for turn in 0..8 {
                sessions(50_000, turn << 30, GAP, (false, 1), each);
                zipf(&mut ranks, 100_000, 0, 0, |_| 1_000, each);
            }
        },
    );
    rows.add("one set of 20,000 keys after the other, each read by Zipf 0.8", 64, &["hits"], |seed, each| {
        // Daily keys: yesterday's are of no use.
        for day in 0..12_u64 {
            let mut ranks = Zipf::new(20_000, 0.8, seed + 23 + day);
            zipf(&mut ranks, 60_000, if day > 1 { 0 } else { u32::MAX }, day << 32, |_| 2_000, each);
        }
    });
}

/// Values that are read again once, later, beside values in constant use.
fn distances(rows: &mut WorkRows) {
    // Bytes are those of the values that are filled in between.
    for (name, least, most) in [
        ("filled, read again after 45 MB, beside a hot set", 45_000_000, 45_000_001),
        ("filled, read again after 25 to 50 MB, beside a hot set", 25_000_000, 50_000_000),
    ] {
        rows.add(name, 64, &["read again", "hot"], move |seed, each| {
            let mut ranks = Zipf::new(20_000, 1.0, seed + 24);
            let (mut random, mut due) = (Random::new(seed + 25), BTreeMap::<u64, Vec<u64>>::new());
            for n in 0..300_000_u64 {
                let (key, bytes) = (PAGES + n, 2_000);
                let tally = |tally| (n > 100_000).then_some(tally);
                each(fill(key, bytes, None));
                due.entry(n + (least + random.next() % (most - least)) / 2_000).or_default().push(key);
                for key in due.remove(&n).unwrap_or_default() {
                    each(fill(key, bytes, tally(0)));
                }
                each(fill(ranks.next(), 300, tally(1)));
            }
        });
    }
    // Each session is written once and read once, when 13 to 26 MB of others were written.
    for (name, session, hot, keys, share) in [
        ("sessions of 5 KB beside Zipf 0.9 of 100 B", 5_000_u32, 100_u32, 750_000, (1, 50)),
        ("sessions of 20 KB beside Zipf 0.9 of 100 B", 20_000, 100, 750_000, (1, 100)),
        ("sessions of 50 KB beside Zipf 0.9 of 100 B", 50_000, 100, 750_000, (1, 150)),
        ("sessions of 200 KB beside Zipf 0.9 of 2 KB", 200_000, 2_000, 60_000, (1, 50)),
        ("sessions of 1 KB beside Zipf 0.9 of 10 KB", 1_000, 10_000, 12_000, (5, 1)),
        ("sessions of 200 B beside Zipf 0.9 of 20 KB", 200, 20_000, 6_000, (32, 1)),
        ("sessions of 1 KB beside Zipf 0.9 of 1 KB", 1_000, 1_000, 110_000, (1, 1)),
    ] {
        rows.add(name, 64, &["sessions", "Zipf"], move |seed, each| {
            let mut ranks = Zipf::new(keys, 0.9, seed + 26);
            let (mut random, mut due) = (Random::new(seed + 27), BTreeMap::<u64, Vec<u64>>::new());
            let all = 220_000_000 / u64::from(session);
            for n in 0..all {
                let tally = |tally| (n > all / 2).then_some(tally);
                each(Op::Set { key: SESSIONS + n, bytes: session });
                let later = (13_000_000 + random.next() % 13_000_000) / u64::from(session);
                due.entry(n + later).or_default().push(SESSIONS + n);
                for key in due.remove(&n).unwrap_or_default() {
                    each(Op::Read { key, bytes: session, tally: tally(0) });
                }
                let reads = if n % share.0 == 0 { share.1 } else { 0 };
                (0..reads).for_each(|_| each(fill(ranks.next(), hot, tally(1))));
            }
        });
    }
    for (name, gap, share) in [
        ("sessions, read 20 MB later, beside Zipf 0.9 of new keys", 20_000, 2),
        ("sessions, read 26 MB later, beside a quarter as much Zipf 0.9 of new keys", 26_000, 4),
    ] {
        rows.add(name, 64, &["sessions", "Zipf"], move |seed, each| {
            let mut ranks = Zipf::new(100_000, 0.9, seed + 28);
            zipf(&mut ranks, 192_000, u32::MAX, 0, |_| 1_000, each);
            for n in 0..250_000 {
                let (key, bytes) = (SESSIONS + n, 1_000);
                each(Op::Set { key, bytes });
                if n >= gap {
                    each(Op::Read { key: key - gap, bytes, tally: Some(0) });
                }
                if n % share == 0 {
                    each(fill(PAGES + ranks.next(), bytes, Some(1)));
                }
            }
        });
    }
    changing::changing(rows);
}
