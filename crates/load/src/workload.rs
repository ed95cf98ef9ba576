//! The requests of a load: which keys, how often, and with what values and lifetimes.
//!
//! A key is a number below [`Plan::keys`]; its name, value size and lifetime follow from it, so that any
//! reply can be checked. A [`Supply`] draws the requests.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use rand_distr::{Distribution as _, LogNormal, Zipf};

use crate::verify::mix;

/// A load.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The number of different keys.
    pub keys: u64,
    /// Length of a key in bytes: at least 6 letters and the digits of `keys` - 1, and at most 250.
    pub key_bytes: usize,
    /// Sizes of values.
    pub sizes: Sizes,
    /// Lifetimes.
    pub ttls: Ttls,
    /// Client flags of every value; checked on every hit.
    pub flags: u32,
    /// Share of gets among the requests, 0.0..=1.0; the rest are sets.
    pub get_share: f64,
    /// The number of keys in a get.
    pub multiget: usize,
    /// How often each key is asked for.
    pub popularity: Popularity,
    /// After this many draws the least popular key takes the place of the most popular one; 0: never.
    pub drift: u64,
    /// The share of the gets' keys that are asked for only once, 0.0..=1.0. They are numbered from
    /// [`Plan::keys`].
    pub one_hit_share: f64,
    /// Whether each key that a get has missed is set.
    pub fill_on_miss: bool,
    /// The seed of all random numbers.
    pub seed: u64,
    /// The first letters of each key, so that a run does not read another run's values.
    pub run: [u8; RUN_LETTERS],
}

/// Letters of [`Plan::run`].
const RUN_LETTERS: usize = 6;

impl Plan {
    /// Letters for [`Plan::run`] that no later or simultaneous run has.
    pub fn new_run() -> [u8; RUN_LETTERS] {
        let now = cattlegrid_server::time::unix_now().as_nanos() as u64;
        let mut number = mix(now ^ u64::from(std::process::id()) << 40);
        std::array::from_fn(|_| {
            let letter = b"abcdefghijklmnopqrstuvwxyz"[(number % 26) as usize];
            number /= 26;
            letter
        })
    }

    /// Appends the name of key `id`, [`Plan::key_bytes`] long.
    pub fn write_key(&self, id: u64, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + self.key_bytes, b'0');
        let (run, digits) = out[start..].split_at_mut(RUN_LETTERS);
        run.copy_from_slice(&self.run);
        let mut rest = id;
        for digit in digits.iter_mut().rev() {
            if rest == 0 {
                break;
            }
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
    }

    /// The number of the key with this name; None: the plan has no such key.
    pub fn id(&self, name: &[u8]) -> Option<u64> {
        let digits = name.strip_prefix(&self.run).filter(|_| name.len() == self.key_bytes)?;
        let id = digits.iter().try_fold(0_u64, |id, digit| {
            let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
            id.checked_mul(10)?.checked_add(digit)
        })?;
        (id < self.keys || self.one_hit_share > 0.0).then_some(id)
    }

    /// Bytes in the value of key `id`.
    pub fn value_bytes(&self, id: u64) -> usize {
        self.sizes.of(mix(id ^ self.seed << 32))
    }

    /// The lifetime of key `id` in seconds; 0: for ever.
    pub fn ttl_seconds(&self, id: u64) -> u32 {
        self.ttls.0.of(mix(id ^ !self.seed << 32))
    }
}

/// Numbers with weights: `100` or `100:9,5000:1`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Weights {
    /// Each number, with the sum of the weights up to it.
    numbers: Vec<(u32, u64)>,
}

impl Weights {
    fn of(&self, hash: u64) -> u32 {
        let total = self.numbers.last().map_or(1, |last| last.1);
        let point = hash % total;
        self.numbers.iter().find(|(_, sum)| point < *sum).map_or(0, |(number, _)| *number)
    }
}

impl FromStr for Weights {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut sum = 0;
        let mut numbers = Vec::new();
        for part in text.split(',') {
            let (number, weight) = part.split_once(':').unwrap_or((part, "1"));
            let number = number.parse().map_err(|_| format!("{number:?} is not a whole number"))?;
            let weight: u32 = weight.parse().map_err(|_| format!("{weight:?} is not a weight, 0 or more"))?;
            sum += u64::from(weight);
            numbers.push((number, sum));
        }
        if sum == 0 { Err("all weights are 0".to_owned()) } else { Ok(Self { numbers }) }
    }
}

/// Sizes of values in bytes: `100`, `50-500`, `100:9,5000:1` or `lognormal:MEDIAN,SIGMA`.
#[derive(Debug, Clone, PartialEq)]
pub struct Sizes(SizesKind);

#[derive(Debug, Clone, PartialEq)]
enum SizesKind {
    Weighted(Weights),
    Range(u32, u32),
    LogNormal(LogNormal<f64>),
}

/// Largest size of a value in bytes.
const VALUE_BYTES_MAX: u32 = 64 << 20;
/// Largest value of a log-normal mix: memcached's item limit is 1 MiB, key and header included.
const LOGNORMAL_BYTES_MAX: f64 = 1_000_000.0;

impl Sizes {
    /// One size for all values.
    pub fn fixed(bytes: u32) -> Self {
        Self(SizesKind::Weighted(Weights { numbers: vec![(bytes, 1)] }))
    }

    fn of(&self, hash: u64) -> usize {
        match &self.0 {
            SizesKind::Weighted(sizes) => sizes.of(hash) as usize,
            SizesKind::Range(low, high) => *low as usize + (hash % u64::from(high - low + 1)) as usize,
            SizesKind::LogNormal(sizes) => {
                let size = sizes.sample(&mut SmallRng::seed_from_u64(hash));
                #[expect(clippy::cast_sign_loss, reason = "clamped to what fits")]
                let size = size.clamp(1.0, LOGNORMAL_BYTES_MAX) as usize;
                size
            }
        }
    }
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let kind = if let Some(list) = text.strip_prefix("lognormal:") {
            let wrong = || format!("{list:?} is not MEDIAN,SIGMA, such as 200,1.0");
            let (median, sigma) = list.split_once(',').ok_or_else(wrong)?;
            let median: f64 = median.parse().map_err(|_| wrong())?;
            let sigma: f64 = sigma.parse().map_err(|_| wrong())?;
            if !(1.0..=LOGNORMAL_BYTES_MAX).contains(&median) || !(0.0..=5.0).contains(&sigma) {
                return Err("the median must be 1 to 1000000 bytes, sigma 0 to 5".to_owned());
            }
            SizesKind::LogNormal(LogNormal::new(median.ln(), sigma).map_err(|_| wrong())?)
        } else if let Some((low, high)) = text.split_once('-') {
            let read = |text: &str| text.parse().map_err(|_| format!("{text:?} is not a whole number"));
            let (low, high) = (read(low)?, read(high)?);
            if low > high || high > VALUE_BYTES_MAX {
                return Err(format!("the range must rise and end at {VALUE_BYTES_MAX} at most"));
            }
            SizesKind::Range(low, high)
        } else {
            let sizes: Weights = text.parse()?;
            if sizes.numbers.iter().any(|(bytes, _)| *bytes > VALUE_BYTES_MAX) {
                return Err(format!("values have {VALUE_BYTES_MAX} bytes at most"));
            }
            SizesKind::Weighted(sizes)
        };
        Ok(Self(kind))
    }
}

/// Lifetimes in seconds, 0 for ever: `60` or `10:50,3600:40,0:10`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ttls(Weights);

impl Ttls {
    /// No lifetimes: every value stays for ever.
    pub fn never() -> Self {
        Self(Weights { numbers: vec![(0, 1)] })
    }
}

impl FromStr for Ttls {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ttls: Weights = text.parse()?;
        // A larger number would mean a date.
        if ttls.numbers.iter().any(|(seconds, _)| *seconds > TTL_SECONDS_MAX) {
            return Err(format!("a lifetime is {TTL_SECONDS_MAX} seconds (30 days) at most"));
        }
        Ok(Self(ttls))
    }
}

const TTL_SECONDS_MAX: u32 = 30 * 24 * 60 * 60;

/// How often each key is asked for: `uniform` or `zipf:EXPONENT`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Popularity {
    /// All keys equally often.
    Uniform,
    /// The n-th most popular key in proportion to n to the power of minus this exponent, 0.0..=10.0.
    Zipf(f64),
}

impl FromStr for Popularity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "uniform" {
            return Ok(Self::Uniform);
        }
        let exponent =
            text.strip_prefix("zipf:").ok_or("must be uniform or zipf:EXPONENT, such as zipf:1.0")?;
        match exponent.parse() {
            Ok(exponent) if (0.0..=10.0).contains(&exponent) => Ok(Self::Zipf(exponent)),
            _ => Err(format!("{exponent:?} is not an exponent, 0.0 to 10.0")),
        }
    }
}

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// A get of the keys just appended.
    Get,
    /// A set of the one key just appended.
    Set,
}

/// A source of requests.
pub trait Supply: Send {
    /// Appends the keys of the next request to `keys`; None at the end.
    fn next(&mut self, keys: &mut Vec<u64>) -> Option<Op>;
}

/// Random requests by popularity, without end.
#[derive(Debug)]
pub struct Mix {
    plan: Arc<Plan>,
    rng: SmallRng,
    zipf: Option<Zipf<f64>>,
    drawn: u64,
    /// The next key of those that are asked for once.
    one_hit: u64,
}

/// Most threads that draw keys which are asked for once.
const STREAMS: u64 = 256;
/// The number of such keys after which a stream starts again. Their numbers have at most ten digits.
const ONE_HITS: u64 = 30_000_000;

impl Mix {
    /// A mix for one thread. `stream`: the thread's number, so that threads do not draw the same keys.
    pub fn new(plan: Arc<Plan>, stream: u64) -> Self {
        let zipf = match plan.popularity {
            Popularity::Uniform => None,
            #[expect(clippy::cast_precision_loss, reason = "no plan has 2^53 keys")]
            Popularity::Zipf(exponent) => Zipf::new(plan.keys as f64, exponent).ok(),
        };
        let rng = SmallRng::seed_from_u64(mix(plan.seed.wrapping_add(stream)));
        let one_hit = plan.keys + stream % STREAMS;
        Self { plan, rng, zipf, drawn: 0, one_hit }
    }

    fn draw(&mut self) -> u64 {
        let keys = self.plan.keys;
        let rank = match &self.zipf {
            None => self.rng.random_range(0..keys),
            #[expect(clippy::cast_sign_loss, reason = "ranks start at 1")]
            Some(zipf) => (zipf.sample(&mut self.rng) as u64 - 1).min(keys - 1),
        };
        self.drawn += 1;
        if self.plan.drift == 0 {
            return rank;
        }
        // The ranks move over the keys: each key becomes the most popular one at once, and then fades.
        let newest = self.drawn / self.plan.drift % keys;
        (newest + keys - rank) % keys
    }
}

impl Supply for Mix {
    fn next(&mut self, keys: &mut Vec<u64>) -> Option<Op> {
        let get = self.plan.get_share >= 1.0 || self.rng.random::<f64>() < self.plan.get_share;
        for _ in 0..if get { self.plan.multiget } else { 1 } {
            let once = get && self.plan.one_hit_share > 0.0;
            if once && self.rng.random::<f64>() < self.plan.one_hit_share {
                keys.push(self.one_hit);
                let next = self.one_hit - self.plan.keys + STREAMS;
                self.one_hit = self.plan.keys + next % (ONE_HITS * STREAMS);
            } else {
                let id = self.draw();
                keys.push(id);
            }
        }
        Some(if get { Op::Get } else { Op::Set })
    }
}

/// Sets every key once. Clones share the work.
#[derive(Debug, Clone)]
pub struct Fill {
    next: Arc<AtomicU64>,
    keys: u64,
}

impl Fill {
    /// The stores of all keys of a plan.
    pub fn new(plan: &Plan) -> Self {
        Self { next: Arc::default(), keys: plan.keys }
    }
}

impl Supply for Fill {
    fn next(&mut self, keys: &mut Vec<u64>) -> Option<Op> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        (id < self.keys).then(|| {
            keys.push(id);
            Op::Set
        })
    }
}

/// Gets of recorded keys in their order. Clones share the position.
#[derive(Debug, Clone)]
pub struct Replay {
    trace: Arc<[u32]>,
    next: Arc<AtomicU64>,
}

impl Replay {
    /// A replay of these keys, numbered from 0, in the order of the trace.
    pub fn new(trace: Arc<[u32]>) -> Self {
        Self { trace, next: Arc::default() }
    }

    /// Parses the format of the ARC traces: a line `START COUNT ...` asks for `COUNT` keys from `START` on.
    ///
    /// The keys are renumbered in the order of their first use. Returns the trace and the number of keys.
    pub fn parse(text: &str) -> Result<(Arc<[u32]>, u64), String> {
        let mut numbers = std::collections::HashMap::new();
        let mut trace = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let wrong = || format!("line {}: {line:?} is not START COUNT ...", index + 1);
            let mut words = line.split_ascii_whitespace().map(str::parse::<u64>);
            let (Some(Ok(start)), Some(Ok(count))) = (words.next(), words.next()) else {
                return Err(wrong());
            };
            for block in start..start.checked_add(count).ok_or_else(wrong)? {
                let number = u32::try_from(numbers.len()).map_err(|_| wrong())?;
                trace.push(*numbers.entry(block).or_insert(number));
            }
        }
        if trace.is_empty() {
            Err("it is empty".to_owned())
        } else {
            Ok((trace.into(), numbers.len() as u64))
        }
    }
}

impl Supply for Replay {
    fn next(&mut self, keys: &mut Vec<u64>) -> Option<Op> {
        let place = self.next.fetch_add(1, Ordering::Relaxed) as usize;
        self.trace.get(place).map(|id| {
            keys.push(u64::from(*id));
            Op::Get
        })
    }
}

#[cfg(test)]
mod tests;
