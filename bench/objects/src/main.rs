//! The cost of calls of objects, shipped and in Luau, compared with a plain get and with a script of Redis;
//! the memory that objects take; and the time that others wait for methods that are stopped.
//!
//! CPU is that of the server's process. The loads of a table take turns, so that other work of the machine
//! affects all; a figure is the median of the rounds, a ratio the median of the ratios within each round,
//! with quartiles.

#![expect(clippy::cast_precision_loss, reason = "counts and bytes of this machine")]

mod clients;
mod runaways;

use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cattlegrid_load::harness::{Server, Start, comes_true};
use cattlegrid_load::{Process, Spread};
use clap::Parser;

use clients::{Clients, Exchange, stat};

/// Measures calls of objects and their memory.
#[derive(Debug, Parser)]
struct Options {
    /// The server's program.
    #[arg(long, value_name = "PATH", default_value = "target/fast/cattlegrid")]
    server: PathBuf,
    /// The program to compare with.
    #[arg(long, value_name = "PATH", default_value = "redis-server")]
    redis: PathBuf,
    /// Rounds, 1 to 1000.
    #[arg(long, value_name = "N", default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Requests of a load in a round, 1000 to 10000000.
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(1000..=10_000_000))]
    requests: u32,
    /// Objects and members of the large tables, 1000 to 10000000.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1000..=10_000_000))]
    large: u32,
    /// The parts to measure.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "calls,members,memory,runaways")]
    parts: Vec<String>,
}

/// Quotas, plain values and counters of Redis.
const KEYS: usize = 10_000;
const CONNECTIONS: usize = 8;
const PIPELINE: usize = 32;
/// Free pages are given back to the system once they have been idle for 30 to 60 s.
const GIVEN_BACK: Duration = Duration::from_secs(90);
/// Where `share.luau` is: a quota in Luau, whose name is as long as that of the shipped one.
const TYPES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/types");
/// A script with the replies of `quota:addandcheck`.
const SCRIPT: &str = "local n = redis.call('INCRBY', KEYS[1], ARGV[1]); \
    if n <= tonumber(ARGV[2]) then return 'QUOTA_OK' end; return 'QUOTA_EXCEEDED'";

/// Measures, and prints a table.
type Part = fn(&Options, &mut dyn Write) -> Result<()>;
/// Makes this many objects, members or keys.
type Fill = fn(&Server, usize) -> Result<()>;

fn main() -> Result<()> {
    let options = Options::parse();
    let mut out = std::io::stdout();
    let parts: [(&str, Part); 4] =
        [("calls", calls), ("members", members), ("memory", memory), ("runaways", runaways)];
    for name in &options.parts {
        let part = parts.iter().find(|(own, _)| own == name);
        part.with_context(|| format!("no part {name}; there are calls, members, memory and runaways"))?.1(
            &options, &mut out,
        )?;
    }
    Ok(())
}

/// A load, and its CPU for a request in each round, in microseconds.
struct Load<'a> {
    name: String,
    server: &'a Server,
    clients: Clients,
    depth: usize,
    requests: usize,
    exchange: Box<dyn Fn(usize) -> Exchange>,
    sent: usize,
    cpu_us: Vec<f64>,
}

impl<'a> Load<'a> {
    fn new(
        name: &str,
        server: &'a Server,
        depth: usize,
        requests: usize,
        exchange: impl Fn(usize) -> Exchange + 'static,
    ) -> Result<Self> {
        let clients = Clients::open(server.address(), CONNECTIONS)?;
        let (name, exchange) = (name.to_owned(), Box::new(exchange));
        Ok(Self { name, server, clients, depth, requests, exchange, sent: 0, cpu_us: Vec::new() })
    }

    fn round(&mut self) -> Result<()> {
        let process = Process::new(self.server.pid())?;
        let before = process.cpu_time()?;
        let (sent, exchange) = (&mut self.sent, &self.exchange);
        self.clients.run(self.requests, self.depth, || {
            *sent += 1;
            exchange(*sent - 1)
        })?;
        self.cpu_us.push(micros(process.cpu_time()?.saturating_sub(before)) / self.requests as f64);
        Ok(())
    }
}

/// Rounds of all loads, in an order that changes.
fn rounds(loads: &mut [Load<'_>], count: u32) -> Result<()> {
    // The first one reaches all keys and is left out.
    for turn in 0..=count as usize {
        for step in 0..loads.len() {
            let place = (turn + step) % loads.len();
            loads[place].round()?;
        }
    }
    for load in loads {
        load.cpu_us.remove(0);
    }
    Ok(())
}

/// A row for each load; ratios are to the load at `base`.
fn table(loads: &[Load<'_>], base: &str, out: &mut dyn Write) -> Result<()> {
    let base_load = loads.iter().find(|load| load.name == base).context("no such load")?;
    writeln!(out, "| | CPU, us | to {base} |\n|---|---|---|")?;
    for load in loads {
        let own = Spread::of(load.cpu_us.iter().copied()).context("no rounds")?;
        let ratio = Spread::of(load.cpu_us.iter().zip(&base_load.cpu_us).map(|(own, base)| own / base));
        let ratio = ratio.context("no rounds")?;
        writeln!(
            out,
            "| {} | {:.3} | {:.2} ({:.2} .. {:.2}) |",
            load.name, own.median, ratio.median, ratio.low, ratio.high
        )?;
    }
    writeln!(out)?;
    Ok(())
}

/// A plain get, quotas, shipped and in Luau, and Redis, pipelined and one by one.
fn calls(options: &Options, out: &mut dyn Write) -> Result<()> {
    let server = start_with(&options.server, 256, 1, &format!("[objects]\ndir = {TYPES:?}\n"))?;
    let redis = start_redis(&options.redis)?;
    let mut clients = Clients::open(server.address(), 1)?;
    // Keys of one length, as long as the names of the calls.
    let plain = |n: usize| format!("plain:..............:{:06}:1", n % KEYS);
    let mut n = 0;
    clients.run(KEYS, PIPELINE, || {
        n += 1;
        let request = format!("set {} 0 0 8\r\nQUOTA_OK\r\n", plain(n - 1)).into_bytes();
        Exchange { request, reply: b"STORED\r\n".to_vec() }
    })?;
    let mut n = 0;
    clients.run(KEYS, PIPELINE, || {
        n += 1;
        Exchange::get(&format!("quota:new:{:06}:1000000000:day", n - 1), "CREATED")
    })?;
    let mut n = 0;
    clients.run(KEYS, PIPELINE, || {
        n += 1;
        Exchange::get(&format!("share:new:{:06}:1000000000:86400", n - 1), "CREATED")
    })?;
    let sha = load_script(&redis)?;
    for depth in [PIPELINE, 1] {
        let requests = if depth == 1 { options.requests / 4 } else { options.requests } as usize;
        let sha = sha.clone();
        let mut loads = [
            Load::new("plain get", &server, depth, requests, move |n| Exchange::get(&plain(n), "QUOTA_OK"))?,
            Load::new("quota:addandcheck", &server, depth, requests, |n| {
                Exchange::get(&format!("quota:addandcheck:{:06}:1", n % KEYS), "QUOTA_OK")
            })?,
            Load::new("mg quota::K A", &server, depth, requests, |n| {
                let request = format!("mg quota::{:06} v Aaddandcheck:1\r\n", n % KEYS).into_bytes();
                Exchange { request, reply: b"VA 8\r\nQUOTA_OK\r\n".to_vec() }
            })?,
            Load::new("share:addandcheck, Luau", &server, depth, requests, |n| {
                Exchange::get(&format!("share:addandcheck:{:06}:1", n % KEYS), "QUOTA_OK")
            })?,
            Load::new("share:full, Luau, changes nothing", &server, depth, requests, |n| {
                Exchange::get(&format!("share:full:{:06}", n % KEYS), "0")
            })?,
            Load::new("counter:max", &server, depth, requests, |n| {
                Exchange::get(&format!("counter:max:{:06}:1", n % KEYS), "1")
            })?,
            Load::new("Redis EVALSHA, INCRBY", &redis, depth, requests, move |n| {
                let key = format!("{:06}", n % KEYS);
                Exchange::resp(&["EVALSHA", &sha, "1", &key, "1", "1000000000"], "$8\r\nQUOTA_OK\r\n")
            })?,
        ];
        rounds(&mut loads, options.rounds)?;
        writeln!(out, "## {depth} requests at a time, {CONNECTIONS} connections\n")?;
        table(&loads, "plain get", out)?;
    }
    Ok(())
}

/// Calls of a set of many members and of one of 100.
fn members(options: &Options, out: &mut dyn Write) -> Result<()> {
    let server = start(&options.server, 1024)?;
    let large = options.large as usize;
    fill_set(&server, "small", 100)?;
    fill_set(&server, "large", large)?;
    let mut loads = Vec::new();
    for (name, members) in [("small", 100), ("large", large)] {
        let requests = options.requests as usize / 4;
        let call = |method: &'static str, value: String| {
            // A step that reaches all members in another order than the bytes'.
            move |n: usize| {
                let key = format!("set:{method}:{name}:m{:08}", n.wrapping_mul(2_654_435_761) % members);
                Exchange::get(&key, &value)
            }
        };
        let title = |method| format!("{method}, {name}");
        loads.push(Load::new(
            &title("exist"),
            &server,
            PIPELINE,
            requests,
            call("exist", "EXISTS".to_owned()),
        )?);
        loads.push(Load::new(&title("put"), &server, PIPELINE, requests, call("put", "SUCCESS".to_owned()))?);
        loads.push(Load::new(&title("put and delete"), &server, PIPELINE, requests, move |n| {
            let method = if n.is_multiple_of(2) { "put" } else { "delete" };
            Exchange::get(&format!("set:{method}:{name}:x{:08}", n / 2 % members), "SUCCESS")
        })?);
        let count = format!("set:count:{name}");
        loads.push(Load::new(&title("count"), &server, PIPELINE, requests, move |_| {
            Exchange::get(&count, &members.to_string())
        })?);
    }
    rounds(&mut loads, options.rounds)?;
    writeln!(out, "## Sets of 100 and of {large} members, {PIPELINE} requests at a time\n")?;
    table(&loads, "exist, small", out)
}

/// Plain gets of other connections while methods are stopped at their limit.
fn runaways(options: &Options, out: &mut dyn Write) -> Result<()> {
    let directory = tempfile::tempdir()?;
    // The server may have given up root.
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755))?;
    for (name, text) in runaways::sources() {
        std::fs::write(directory.path().join(name), text)?;
    }
    let rules = format!("[objects]\ndir = \"{}\"\n", directory.path().display());
    runaways::measure(&start_with(&options.server, 256, 2, &rules)?, options.rounds, out)
}

/// Growth of the process and of what the server accounts for, and what is left after a drop.
fn memory(options: &Options, out: &mut dyn Write) -> Result<()> {
    let large = options.large as usize;
    writeln!(out, "## Memory of {large} objects, members or keys\n")?;
    writeln!(
        out,
        "| | resident, bytes each | accounted | accounted / resident | resident after the drop, share |"
    )?;
    writeln!(out, "|---|---|---|---|---|")?;
    let kinds: [(&str, &str, Fill); 3] = [
        ("quotas", "flush_all", fill_quotas),
        ("a set", "delete set::large", |server, count| fill_set(server, "large", count)),
        ("a map", "delete map::large", fill_map),
    ];
    for (name, end, fill) in kinds {
        let server = start(&options.server, 2048)?;
        let process = Process::new(server.pid())?;
        let used = || stat(server.address(), "cattlegrid", "memory_used");
        let (resident, accounted) = (process.resident_bytes()?, used()?);
        fill(&server, large)?;
        let (grown, counted) = (process.resident_bytes()? - resident, used()? - accounted);
        let reply: &[u8] = if end == "flush_all" { b"OK\r\n" } else { b"DELETED\r\n" };
        let exchange = Exchange { request: format!("{end}\r\n").into_bytes(), reply: reply.to_vec() };
        Clients::open(server.address(), 1)?.run(1, 1, || exchange.clone())?;
        let left = || Ok::<_, std::io::Error>(process.resident_bytes()?.saturating_sub(resident));
        comes_true(GIVEN_BACK, || left().is_ok_and(|left| left < grown / 20));
        let left = left()?;
        let each = |bytes: u64| bytes as f64 / large as f64;
        writeln!(
            out,
            "| {name} | {:.1} | {:.1} | {:.3} | {:.3} |",
            each(grown),
            each(counted),
            counted as f64 / grown as f64,
            left as f64 / grown as f64
        )?;
    }
    Ok(())
}

fn fill_quotas(server: &Server, count: usize) -> Result<()> {
    let mut n = 0;
    Clients::open(server.address(), 1)?.run(count, 64, || {
        n += 1;
        Exchange::get(&format!("quota:new:user{:08}:1000:hour", n - 1), "CREATED")
    })
}

/// A set of members `m00000000` and on.
fn fill_set(server: &Server, name: &str, count: usize) -> Result<()> {
    fill(server, count, &format!("set:new:{name}"), |n| format!("set:put:{name}:m{n:08}"))
}

fn fill_map(server: &Server, count: usize) -> Result<()> {
    fill(server, count, "map:new:large", |n| format!("map:put:large:k{n:08}:v{n:015}"))
}

fn fill(server: &Server, count: usize, new: &str, call: impl Fn(usize) -> String) -> Result<()> {
    let mut clients = Clients::open(server.address(), 1)?;
    clients.run(1, 1, || Exchange::get(new, "CREATED"))?;
    let mut n = 0;
    clients.run(count, 64, || {
        n += 1;
        Exchange::get(&call(n - 1), "SUCCESS")
    })
}

/// A server with one thread, this much memory and objects.
fn start(program: &Path, memory_mib: u64) -> Result<Server> {
    start_with(program, memory_mib, 1, "[objects]\n")
}

fn start_with(program: &Path, memory_mib: u64, threads: u32, rules: &str) -> Result<Server> {
    let (memory, threads) = (memory_mib.to_string(), threads.to_string());
    let mut words = vec!["-l", "127.0.0.1", "-p", "-1", "-t", &threads, "-m", &memory];
    if nix::unistd::geteuid().is_root() {
        words.extend(["-u", "root"]);
    }
    let program = std::path::absolute(program)?;
    let start = Start { rules: Some(rules), ..Start::new(&program, &words) };
    Server::start(&start).with_context(|| program.display().to_string())
}

/// Redis keeps nothing on disk.
fn start_redis(program: &Path) -> Result<Server> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let text = port.to_string();
    let words =
        ["--bind", "127.0.0.1", "--port", &text, "--save", "", "--appendonly", "no", "--daemonize", "no"];
    let start = Start { port: Some(port), ..Start::new(program, &words) };
    Server::start(&start).with_context(|| program.display().to_string())
}

/// The script's name.
fn load_script(redis: &Server) -> Result<String> {
    use std::io::Read as _;
    let mut stream = std::net::TcpStream::connect(redis.address())?;
    stream.write_all(&Exchange::resp(&["SCRIPT", "LOAD", SCRIPT], "").request)?;
    let mut reply = [0; 47];
    stream.read_exact(&mut reply)?;
    let text = String::from_utf8_lossy(&reply).into_owned();
    ensure!(text.starts_with("$40\r\n"), "SCRIPT LOAD: {text}");
    Ok(text[5..45].to_owned())
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
