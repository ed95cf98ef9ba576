//! `cattlegrid bench`: the options, and what is done with them.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cattlegrid_server::sys;
use clap::Parser;
use serde::Serialize;

use crate::identity::identity;
use crate::progress::Progress;
use crate::stampede::stampede_over;
use crate::{
    BenchError, Binary, Cpu, Memcached, Meter, Peer, Plan, Popularity, Replay, Report, Shape, Sizes, Spread,
    Tally, Target, Tls, Ttls, Until, Wire, count,
};

/// Loads a memcached-protocol server and verifies every reply.
///
/// Each connection sends a batch of requests, waits for all replies, and sends the next. Values follow from
/// their key and version, so wrong, stale and foreign values are found; the first one ends the run with
/// status 1. The keys of each run are its own; whatever the server holds besides is left alone.
#[derive(Debug, Clone, Parser)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
#[command(name = "cattlegrid bench", bin_name = "cattlegrid bench")]
pub struct BenchOptions {
    /// The server: HOST:PORT, or the path of a unix socket (with a /).
    #[arg(value_name = "ADDR")]
    address: String,
    /// Connections, 1 to 100000.
    #[arg(long, short = 'c', value_name = "N", default_value_t = 50, value_parser = in_range(1, 100_000))]
    connections: u64,
    /// Threads that drive them, 1 to 256.
    #[arg(long, short = 't', value_name = "N", default_value_t = 1, value_parser = in_range(1, 256))]
    threads: u64,
    /// Requests a connection sends before it waits for their replies, 1 to 10000.
    #[arg(long, short = 'd', value_name = "N", default_value_t = 1, value_parser = in_range(1, 10_000))]
    depth: u64,
    /// Keys that one get asks for, 1 to 1000.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = in_range(1, 1000))]
    multiget: u64,
    /// Speak memcached's binary protocol, to both servers with --vs: GET and SET, and GETKQ for each key and
    /// NOOP where --multiget asks for several. Without this: the text protocol.
    #[arg(long)]
    binary: bool,
    /// Close each connection after its batch, and open another one for the next: connect, get, close. To
    /// 127.0.0.1 the connections come from 250 addresses of this machine in turn, since a closed one keeps
    /// its port for a minute.
    #[arg(long)]
    reconnect: bool,
    /// Speak TLS, and accept any certificate.
    #[arg(long)]
    tls: bool,
    /// Accept only certificates of the authorities in this PEM file that are for the host of ADDR.
    #[arg(long, value_name = "FILE", requires = "tls")]
    tls_ca: Option<PathBuf>,
    /// With --tls --reconnect: each connection resumes the session of the one that it replaces. Without this
    /// each handshake is a full one.
    #[arg(long, requires = "tls", requires = "reconnect")]
    resume: bool,
    /// How long to measure each server, in seconds, 0.1 to 86400.
    #[arg(long, short = 's', value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    seconds: Duration,
    /// How many requests to measure, instead of a time; sets that fill misses come on top.
    #[arg(long, short = 'n', value_name = "N", conflicts_with = "seconds", value_parser = in_range(1, 1 << 40))]
    requests: Option<u64>,
    /// Share of the run that comes first and is not counted, 0.0 to 0.9.
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = warmup)]
    warmup: f64,
    /// Different keys, 1 to 100000000; each takes this program 8 bytes of memory.
    #[arg(long, short = 'k', value_name = "N", default_value_t = 100_000, value_parser = in_range(1, 100_000_000))]
    keys: u64,
    /// Length of a key in bytes, 16 to 250.
    #[arg(long, value_name = "BYTES", default_value_t = 32, value_parser = in_range(16, 250))]
    key_size: u64,
    /// Bytes of a value: 100, 50-500, 100:9,5000:1 (with weights), or lognormal:MEDIAN,SIGMA.
    #[arg(long, value_name = "SIZES", default_value = "100")]
    value_size: Sizes,
    /// Lifetimes in seconds, 0 for ever: 60, or 10:50,3600:40,0:10 (with weights).
    #[arg(long, value_name = "TTLS", default_value = "0")]
    ttl: Ttls,
    /// Client flags of every value.
    #[arg(long, value_name = "FLAGS", default_value_t = 0)]
    flags: u32,
    /// How many gets come to how many sets.
    #[arg(long, value_name = "GETS:SETS", default_value = "9:1", value_parser = ratio)]
    ratio: f64,
    /// How often each key is asked for: uniform, or zipf:EXPONENT with an exponent of 0.0 to 10.0.
    #[arg(long, value_name = "POPULARITY", default_value = "uniform")]
    distribution: Popularity,
    /// Let the most popular key fade and a new one take its place every N draws of a thread; 0: never.
    #[arg(long, value_name = "N", default_value_t = 0)]
    drift: u64,
    /// Share of the gets' keys that are never asked for again, 0.0 to 1.0.
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = share)]
    one_hit: f64,
    /// Set each key that a get has missed. Without this every key is set once before the measurement.
    #[arg(long)]
    fill_on_miss: bool,
    /// Ask for the keys of this trace, in its order and to its end, and set what is missed. A line START
    /// COUNT ... (the ARC traces' .lis format) stands for COUNT keys from START on.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["vs", "seconds", "requests", "keys", "ratio", "distribution", "drift", "one_hit", "multiget", "fill_on_miss"])]
    trace: Option<PathBuf>,
    /// Instead of a mix: all connections ask for one key that was never set; each client that misses it
    /// computes for this many milliseconds, 0 to 60000, and sets it. Then comes the next key. With -n: this
    /// many gets.
    #[arg(long, value_name = "MS", value_parser = in_range(0, 60_000), conflicts_with_all = ["vs", "trace", "warmup", "reconnect", "tls", "ratio", "distribution", "drift", "multiget", "fill_on_miss", "one_hit", "depth", "threads"])]
    stampede: Option<u64>,
    /// The server's process on this machine: shows its processor time per key got or set.
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// A second server: both get the same load alternately, and are compared.
    #[arg(long, value_name = "ADDR")]
    vs: Option<String>,
    /// The second server's process.
    #[arg(long, value_name = "PID", requires = "vs")]
    vs_pid: Option<u32>,
    /// With --vs: how many turns each server gets, 2 to 1000.
    #[arg(long, value_name = "N", default_value_t = 10, requires = "vs", value_parser = in_range(2, 1000))]
    turns: u64,
    /// Start of the random numbers.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The command line of `cattlegrid bench`.
#[derive(Debug)]
pub enum BenchCommand {
    /// Load a server.
    Load(Box<BenchOptions>),
    /// Print this, the help.
    Help(String),
}

impl BenchCommand {
    /// Reads `words`, of which the first stands for the program's name.
    ///
    /// # Errors
    /// [`BenchError::Usage`].
    pub fn parse(words: &[String]) -> Result<Self, BenchError> {
        match BenchOptions::try_parse_from(words) {
            Ok(options) => Ok(Self::Load(Box::new(options))),
            Err(error) if !error.use_stderr() => Ok(Self::Help(error.render().to_string())),
            Err(error) => {
                // What clap says in several lines, as one; its usage and hints follow an empty line.
                let text = error.render().to_string();
                let lines = text.lines().map(str::trim).take_while(|line| !line.is_empty());
                let line = lines.collect::<Vec<_>>().join(" ");
                Err(BenchError::Usage(line.strip_prefix("error: ").unwrap_or(&line).to_owned()))
            }
        }
    }
}

fn in_range(low: u64, high: u64) -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(low..=high)
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse().ok().filter(|number: &f64| (0.1..=86_400.0).contains(number));
    number.map(Duration::from_secs_f64).ok_or_else(|| "must be 0.1 to 86400".to_owned())
}

fn warmup(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share: &f64| (0.0..=0.9).contains(share));
    share.ok_or_else(|| "must be 0.0 to 0.9".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share: &f64| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "must be 0.0 to 1.0".to_owned())
}

/// The share of gets in `GETS:SETS`.
fn ratio(text: &str) -> Result<f64, String> {
    let parts = text.split_once(':').and_then(|(gets, sets)| {
        let parts: (u32, u32) = (gets.parse().ok()?, sets.parse().ok()?);
        (parts != (0, 0)).then_some(parts)
    });
    let (gets, sets) = parts.ok_or("must be two whole numbers, not both 0, such as 9:1")?;
    Ok(f64::from(gets) / (f64::from(gets) + f64::from(sets)))
}

/// Runs the load; the text to print.
pub fn bench(options: &BenchOptions) -> Result<String, BenchError> {
    // Both servers' connections are open at once. What is too much will be said when it cannot be opened.
    let connections = options.connections * if options.vs.is_some() { 2 } else { 1 };
    sys::raise_open_files(connections as usize, options.threads as usize, 0)
        .map_err(|error| BenchError::File(error.to_string()))?;
    let progress = Progress::start();
    if options.binary {
        load(options, &Binary::default(), &progress.meter)
    } else {
        load(options, &Memcached, &progress.meter)
    }
}

fn load<W: Wire + Clone + Send>(
    options: &BenchOptions,
    wire: &W,
    meter: &Meter,
) -> Result<String, BenchError> {
    match (&options.vs, options.stampede) {
        (_, Some(compute_ms)) => crowd(options, wire, Duration::from_millis(compute_ms), meter),
        (None, None) => single(options, wire, meter),
        (Some(other), None) => versus(options, wire, other, meter),
    }
}

fn crowd<W: Wire + Clone>(
    options: &BenchOptions,
    wire: &W,
    compute: Duration,
    meter: &Meter,
) -> Result<String, BenchError> {
    let plan = Arc::new(options.plan(options.keys, false));
    let until = options.part(options.requests, 1.0);
    let connections = options.connections as usize;
    let pid = options.pid;
    let report = stampede_over(wire, &plan, &options.address, pid, connections, compute, until, meter)?;
    Ok(if options.json { json(&report) } else { format!("{report}\n") })
}

impl BenchOptions {
    fn plan(&self, keys: u64, replay: bool) -> Plan {
        Plan {
            keys,
            key_bytes: self.key_size as usize,
            sizes: self.value_size.clone(),
            ttls: self.ttl.clone(),
            flags: self.flags,
            get_share: if replay { 1.0 } else { self.ratio },
            multiget: self.multiget as usize,
            popularity: self.distribution,
            drift: self.drift,
            one_hit_share: self.one_hit,
            fill_on_miss: self.fill_on_miss || replay,
            seed: self.seed,
            run: Plan::new_run(),
        }
    }

    fn open<W: Wire + Clone + Send>(
        &self,
        wire: &W,
        plan: Plan,
        address: &str,
        pid: Option<u32>,
        meter: &Meter,
    ) -> Result<Target<W>, BenchError> {
        let tls = self.tls.then(|| Tls::new(address, self.tls_ca.as_deref(), self.resume)).transpose()?;
        let shape = Shape {
            threads: self.threads as usize,
            connections: self.connections as usize,
            depth: self.depth as usize,
            reconnects: self.reconnect,
            tls,
        };
        let fill = !plan.fill_on_miss;
        let mut target = Target::open(wire, &Arc::new(plan), address, pid, &shape)?;
        if fill {
            target.fill(meter)?;
        }
        Ok(target)
    }

    /// This share of the run.
    fn part(&self, total: Option<u64>, share: f64) -> Until {
        #[expect(clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a share of a count")]
        match total {
            Some(total) => Until::Requests(((total as f64 * share).round() as u64).max(1)),
            None => Until::Elapsed(self.seconds.mul_f64(share)),
        }
    }
}

fn single<W: Wire + Clone + Send>(
    options: &BenchOptions,
    wire: &W,
    meter: &Meter,
) -> Result<String, BenchError> {
    let mut keys = options.keys;
    let mut total = options.requests;
    let mut replay = None;
    if let Some(file) = &options.trace {
        let wrong =
            |what: &dyn std::fmt::Display| BenchError::File(format!("--trace {}: {what}", file.display()));
        let text = fs::read_to_string(file).map_err(|error| wrong(&error))?;
        let (trace, different) = Replay::parse(&text).map_err(|error| wrong(&error))?;
        keys = different;
        total = Some(trace.len() as u64);
        replay = Some(Replay::new(trace));
    }
    let mut target =
        options.open(wire, options.plan(keys, replay.is_some()), &options.address, options.pid, meter)?;
    if let Some(replay) = &replay {
        target.supply(replay);
    }
    if options.warmup > 0.0 {
        target.run(options.part(total, options.warmup), meter)?;
    }
    // A trace is followed to its end.
    let rest = if replay.is_some() { Until::Exhausted } else { options.part(total, 1.0 - options.warmup) };
    let (tally, cpu) = target.run(rest, meter)?;
    let report = Report::new(&tally, cpu);
    Ok(if options.json { json(&report) } else { format!("{report}\n") })
}

/// Two servers, alternately.
#[derive(Debug, Serialize)]
struct Comparison<'a> {
    /// The whole of each server's turns.
    servers: [(&'a str, Report); 2],
    /// The version that each server reports.
    identities: [Option<String>; 2],
    /// The first server's figure divided by the second one's, turn by turn.
    throughput_ratio: Option<Spread>,
    p50_ratio: Option<Spread>,
    p99_ratio: Option<Spread>,
    p999_ratio: Option<Spread>,
    cpu_ratio: Option<Spread>,
    /// The turns themselves.
    turns: Vec<[Report; 2]>,
}

fn versus<W: Wire + Clone + Send>(
    options: &BenchOptions,
    wire: &W,
    other: &str,
    meter: &Meter,
) -> Result<String, BenchError> {
    let plan = options.plan(options.keys, false);
    let names = [&options.address, other];
    if let (Ok(one), Ok(two)) = (Peer::new(names[0], &plan), Peer::new(other, &plan))
        && one.is_at(&two)
    {
        let text = format!(
            "--vs {other}: is the same server, and both runs would store the same keys; name another one"
        );
        return Err(BenchError::Usage(text));
    }
    // Over TLS they are not asked.
    let ask =
        |address| Peer::new(address, &plan).ok().filter(|_| !options.tls).and_then(|peer| identity(&peer));
    let identities = names.map(ask);
    let mut targets = [
        options.open(wire, plan.clone(), names[0], options.pid, meter)?,
        options.open(wire, plan.clone(), names[1], options.vs_pid, meter)?,
    ];
    if options.warmup > 0.0 {
        for target in &mut targets {
            target.run(options.part(options.requests, options.warmup), meter)?;
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "at most 1000")]
    let until = options.part(options.requests, (1.0 - options.warmup) / options.turns as f64);
    let mut sums = [Tally::new(), Tally::new()];
    let mut cpus = [Some(Cpu::default()); 2];
    let mut turns = Vec::new();
    for turn in 0..options.turns {
        let mut reports = [None, None];
        // The order changes, so that neither always follows the other.
        for place in [turn % 2, 1 - turn % 2].map(|place| place as usize) {
            let (tally, cpu) = targets[place].run(until, meter)?;
            sums[place].add_after(&tally);
            cpus[place] = cpus[place].zip(cpu).map(|(sum, cpu)| sum.and(cpu));
            reports[place] = Some(Report::new(&tally, cpu));
        }
        if let [Some(one), Some(two)] = reports {
            turns.push([one, two]);
        }
    }
    let ratio = |figure: &dyn Fn(&Report) -> Option<f64>| {
        Spread::of(
            turns.iter().filter_map(|[one, two]| Some(figure(one)? / figure(two).filter(|two| *two > 0.0)?)),
        )
    };
    let comparison = Comparison {
        servers: std::array::from_fn(|place| (names[place], Report::new(&sums[place], cpus[place]))),
        identities,
        throughput_ratio: ratio(&|report| Some(report.requests_per_second)),
        p50_ratio: ratio(&|report| Some(report.p50_us)),
        p99_ratio: ratio(&|report| Some(report.p99_us)),
        p999_ratio: ratio(&|report| Some(report.p999_us)),
        cpu_ratio: ratio(&|report| report.cpu_us_per_operation),
        turns,
    };
    Ok(if options.json { json(&comparison) } else { comparison.text() })
}

impl Comparison<'_> {
    fn text(&self) -> String {
        let mut text = String::new();
        let names: [String; 2] = std::array::from_fn(|place| {
            let address = self.servers[place].0;
            self.identities[place]
                .as_ref()
                .map_or_else(|| address.to_owned(), |is| format!("{address} ({is})"))
        });
        for (name, (_, report)) in names.iter().zip(&self.servers) {
            write!(text, "{name}\n{report}\n\n").expect("writing to a String cannot fail");
        }
        let turns = count(self.turns.len() as u64);
        write!(text, "{}\n  / {}\nmedian of {turns} turns (quartiles)\n", names[0], names[1])
            .expect("writing to a String cannot fail");
        for (name, ratio) in [
            ("throughput", self.throughput_ratio),
            ("p50", self.p50_ratio),
            ("p99", self.p99_ratio),
            ("p99.9", self.p999_ratio),
            ("server CPU", self.cpu_ratio),
        ] {
            if let Some(Spread { median, low, high }) = ratio {
                writeln!(text, "{name:<12}  {median:.2} ({low:.2} .. {high:.2})")
                    .expect("writing to a String cannot fail");
            }
        }
        text
    }
}

fn json(value: &impl Serialize) -> String {
    let text = serde_json::to_string_pretty(value).expect("reports have only names and finite numbers");
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<BenchCommand, BenchError> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        BenchCommand::parse(&words)
    }

    #[test]
    fn a_command_line() {
        let depth =
            |command| if let BenchCommand::Load(options) = command { Some(options.depth) } else { None };
        assert_eq!(parse(&["bench", "localhost:11211", "--depth", "32"]).map(depth).unwrap(), Some(32));
        let help = |command| if let BenchCommand::Help(text) = command { text } else { String::new() };
        assert!(help(parse(&["bench", "--help"]).unwrap()).contains("Usage: "));
    }

    #[test]
    fn what_cannot_be_followed_is_one_line() {
        for (words, part) in [
            (&["bench"][..], "the following required arguments were not provided: <ADDR>"),
            (&["bench", "x:1", "--fooble"], "unexpected argument '--fooble' found"),
            (&["bench", "x:1", "--depth", "0"], "invalid value '0' for '--depth <N>': 0 is not in 1..=10000"),
            (&["bench", "x:1", "--value-size", "9-1"], "for '--value-size <SIZES>': the range must rise"),
            (&["bench", "x:1", "--ratio", "0:0"], "for '--ratio <GETS:SETS>'"),
            (&["bench", "x:1", "--vs-pid", "1"], "required arguments were not provided: --vs <ADDR>"),
            (&["bench", "x:1", "--tls-ca", "x"], "required arguments were not provided: --tls"),
            (&["bench", "x:1", "--tls", "--resume"], "required arguments were not provided: --reconnect"),
            (&["bench", "x:1", "--stampede", "1", "--reconnect"], "cannot be used with"),
            (&["bench", "x:1", "--seconds", "1", "--requests", "1"], "cannot be used with"),
        ] {
            let error = parse(words).expect_err(part).to_string();
            assert!(error.contains(part) && !error.contains('\n'), "{words:?}: {error}");
        }
    }
}
