//! The results of a run, and their form for people.

use std::fmt::{self, Display};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::Cpu;

/// The counts of one run of one session, or of several.
#[derive(Debug, Clone)]
pub struct Tally {
    /// Requests answered. A get of many keys is one request.
    pub requests: u64,
    /// Keys asked for.
    pub keys_got: u64,
    /// Keys found.
    pub hits: u64,
    /// Sets that were stored.
    pub sets: u64,
    /// Sets for which the server had no memory.
    pub refused: u64,
    /// Handshakes of TLS.
    pub handshakes: u64,
    /// Handshakes that resumed a TLS session.
    pub resumed: u64,
    /// The time from the first request to the last reply.
    pub elapsed: Duration,
    /// Times from sending a request to its reply, in nanoseconds.
    latency: Histogram<u64>,
}

/// Longest latency that is recorded, in nanoseconds. Longer ones count as this.
const LATENCY_NANOS_MAX: u64 = 60_000_000_000;
/// Significant digits of latencies: errors are below 1 %.
const DIGITS: u8 = 2;

impl Tally {
    /// An empty tally.
    #[expect(clippy::new_without_default, reason = "an empty run is no default")]
    pub fn new() -> Self {
        Self {
            requests: 0,
            keys_got: 0,
            hits: 0,
            sets: 0,
            refused: 0,
            handshakes: 0,
            resumed: 0,
            elapsed: Duration::ZERO,
            latency: empty(),
        }
    }

    /// Counts an answered request with its latency.
    pub fn answered(&mut self, after: Duration) {
        self.requests += 1;
        self.latency.saturating_record(u64::try_from(after.as_nanos()).unwrap_or(LATENCY_NANOS_MAX));
    }

    /// Adds the counts of another thread at the same time.
    pub fn add_beside(&mut self, other: &Self) {
        let elapsed = self.elapsed.max(other.elapsed);
        self.add_after(other);
        self.elapsed = elapsed;
    }

    /// Adds the counts of another time.
    pub fn add_after(&mut self, other: &Self) {
        self.requests += other.requests;
        self.keys_got += other.keys_got;
        self.hits += other.hits;
        self.sets += other.sets;
        self.refused += other.refused;
        self.handshakes += other.handshakes;
        self.resumed += other.resumed;
        self.elapsed += other.elapsed;
        self.latency += &other.latency;
    }

    /// The number of keys asked for and of sets, by which costs are divided.
    pub fn operations(&self) -> u64 {
        self.keys_got + self.sets + self.refused
    }

    /// The latency that this share of the requests did not exceed.
    pub fn latency(&self, share: f64) -> Duration {
        Duration::from_nanos(self.latency.value_at_quantile(share))
    }
}

fn empty() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NANOS_MAX, DIGITS).expect("the bounds are constants, and valid")
}

/// A run as people and programs read it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Requests answered.
    pub requests: u64,
    /// Keys asked for and sets.
    pub operations: u64,
    /// Sets that were stored.
    pub sets: u64,
    /// Sets for which the server had no memory.
    pub refused_sets: u64,
    /// The time of the run in seconds.
    pub seconds: f64,
    /// Requests answered per second.
    pub requests_per_second: f64,
    /// The share of keys asked for that were found, 0.0..=1.0; None if no key was asked for.
    pub hit_ratio: Option<f64>,
    /// Median latency of a request in microseconds.
    pub p50_us: f64,
    /// The latency that one request in ten exceeds, in microseconds.
    pub p90_us: f64,
    /// The latency that one request in a hundred exceeds, in microseconds.
    pub p99_us: f64,
    /// The latency that one request in a thousand exceeds, in microseconds.
    pub p999_us: f64,
    /// The longest latency in microseconds.
    pub max_us: f64,
    /// Processor time of the server per operation in microseconds, if its process is known.
    pub cpu_us_per_operation: Option<f64>,
    /// The part of it in user mode. It is exact to some per cent, because the system counts in steps of 10
    /// ms.
    pub user_cpu_us_per_operation: Option<f64>,
    /// The part of it in the kernel.
    pub system_cpu_us_per_operation: Option<f64>,
    /// Handshakes of TLS in the run.
    pub handshakes: u64,
    /// Handshakes that resumed a TLS session.
    pub resumed_handshakes: u64,
}

impl Report {
    /// The report of a run. `cpu`: the processor time that the server's process used in it.
    #[expect(clippy::cast_precision_loss, reason = "no run has 2^53 requests")]
    pub fn new(tally: &Tally, cpu: Option<Cpu>) -> Self {
        let us = |share| tally.latency(share).as_secs_f64() * 1e6;
        let seconds = tally.elapsed.as_secs_f64();
        let operations = tally.operations();
        let cpu = cpu.filter(|_| operations > 0);
        let cost = cpu.map(|cpu| cpu.total.as_secs_f64() * 1e6 / operations as f64);
        let user = cost.zip(cpu.and_then(Cpu::user_share)).map(|(cost, share)| cost * share);
        Self {
            requests: tally.requests,
            operations,
            sets: tally.sets,
            refused_sets: tally.refused,
            seconds,
            requests_per_second: if seconds > 0.0 { tally.requests as f64 / seconds } else { 0.0 },
            hit_ratio: (tally.keys_got > 0).then(|| tally.hits as f64 / tally.keys_got as f64),
            p50_us: us(0.5),
            p90_us: us(0.9),
            p99_us: us(0.99),
            p999_us: us(0.999),
            max_us: us(1.0),
            cpu_us_per_operation: cost,
            user_cpu_us_per_operation: user,
            system_cpu_us_per_operation: cost.zip(user).map(|(cost, user)| cost - user),
            handshakes: tally.handshakes,
            resumed_handshakes: tally.resumed,
        }
    }
}

impl Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "requests      {} in {:.2} s", count(self.requests), self.seconds)?;
        #[expect(clippy::cast_sign_loss, reason = "a rate is not negative")]
        let rate = self.requests_per_second as u64;
        writeln!(out, "throughput    {} requests/s", count(rate))?;
        if let Some(ratio) = self.hit_ratio {
            writeln!(out, "hit ratio     {:.2} %", ratio * 100.0)?;
        }
        writeln!(
            out,
            "latency       p50 {}, p90 {}, p99 {}, p99.9 {}\nlongest       {}",
            micros(self.p50_us),
            micros(self.p90_us),
            micros(self.p99_us),
            micros(self.p999_us),
            micros(self.max_us)
        )?;
        if self.refused_sets > 0 {
            writeln!(out, "refused sets  {}", count(self.refused_sets))?;
        }
        if self.handshakes > 0 {
            let [all, resumed] = [self.handshakes, self.resumed_handshakes].map(count);
            writeln!(out, "handshakes    {all}, {resumed} of them resumed")?;
        }
        if let Some(cpu) = self.cpu_us_per_operation {
            write!(out, "server CPU    {cpu:.2} us per key got or set")?;
            if let Some((user, system)) = self.user_cpu_us_per_operation.zip(self.system_cpu_us_per_operation)
            {
                write!(out, " (user {user:.2}, kernel {system:.2})")?;
            }
            writeln!(out)?;
        }
        write!(out, "verified      every reply")
    }
}

/// A number with commas: `1234567` as `1,234,567`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A time in microseconds, as `87 us`, `1.52 ms` or `2.10 s`.
pub fn micros(us: f64) -> String {
    match us {
        _ if us < 10.0 => format!("{us:.1} us"),
        _ if us < 1e3 => format!("{us:.0} us"),
        _ if us < 1e6 => format!("{:.2} ms", us / 1e3),
        _ => format!("{:.2} s", us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(latencies_us: std::ops::RangeInclusive<u64>) -> Tally {
        let mut tally = Tally::new();
        latencies_us.for_each(|us| tally.answered(Duration::from_micros(us)));
        tally.keys_got = tally.requests;
        tally.hits = tally.requests / 4;
        tally.elapsed = Duration::from_secs(2);
        tally
    }

    #[test]
    fn percentiles_ratios_and_costs() {
        let ms = Duration::from_millis;
        let report = Report::new(&tally(1..=1000), Some(Cpu { total: ms(3), user: ms(10), system: ms(30) }));
        for (got, wanted) in [
            (report.p50_us, 500.0),
            (report.p90_us, 900.0),
            (report.p99_us, 990.0),
            (report.p999_us, 999.0),
            (report.max_us, 1000.0),
            (report.requests_per_second, 500.0),
            (report.hit_ratio.unwrap(), 0.25),
            (report.cpu_us_per_operation.unwrap(), 3.0),
            (report.user_cpu_us_per_operation.unwrap(), 0.75),
            (report.system_cpu_us_per_operation.unwrap(), 2.25),
        ] {
            assert!((got / wanted - 1.0).abs() < 0.02, "{got} {wanted}");
        }
        let text = report.to_string();
        assert!(text.starts_with("requests      1,000 in 2.00 s\nthroughput    500 requests/s\n"), "{text}");
        assert!(text.contains("hit ratio     25.00 %\n"), "{text}");
        assert!(
            text.contains("\nserver CPU    3.00 us per key got or set (user 0.75, kernel 2.25)\n"),
            "{text}"
        );
        let greeted = Tally { handshakes: 1200, resumed: 1199, ..tally(1..=10) };
        let text = Report::new(&greeted, None).to_string();
        assert!(text.contains("\nhandshakes    1,200, 1,199 of them resumed\n"), "{text}");
    }

    #[test]
    fn an_empty_run_divides_by_nothing() {
        let report = Report::new(&Tally::new(), Some(Cpu::default()));
        assert_eq!((report.hit_ratio, report.cpu_us_per_operation), (None, None));
        let short =
            Report::new(&tally(1..=10), Some(Cpu { total: Duration::from_millis(3), ..Cpu::default() }));
        assert!(short.cpu_us_per_operation.is_some() && short.user_cpu_us_per_operation.is_none());
        assert!(!serde_json::to_string(&report).unwrap().contains("NaN"));
    }

    #[test]
    fn sums_beside_and_after() {
        let mut beside = tally(1..=10);
        beside.add_beside(&tally(11..=20));
        assert_eq!((beside.requests, beside.elapsed), (20, Duration::from_secs(2)));
        beside.add_after(&tally(1..=10));
        assert_eq!((beside.requests, beside.elapsed), (30, Duration::from_secs(4)));
    }

    #[test]
    fn numbers_for_people() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([1.54, 87.0, 1520.0, 2.1e6].map(micros), ["1.5 us", "87 us", "1.52 ms", "2.10 s"]);
    }
}
