//! Measures a pool: throughput, CPU, latency, start, death. Prints `name value` lines; `bench/pool/run.py`
//! runs it and other pools, and makes the table.
//!
//! `bench_pool rust|python WHAT...` with what of: t1 t4 t5 t6 t8 t10 t11 floor, and with rust also: batch.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use cattlegrid_pool::{Args, Builder, Launch, Pool};

fn main() {
    if let Some(worker) = cattlegrid_worker::maybe_worker() {
        if std::env::var_os("BENCH_BATCH").is_some() {
            worker.serve_batch(64, |jobs| jobs.iter().map(|job| Ok(job.arg(0).to_vec())).collect());
        }
        worker.serve(|job| {
            match job.arg(0) {
                b"sleep" => pause(Duration::from_millis(100)),
                b"pid" => return Ok(std::process::id().to_string().into_bytes()),
                _ => {}
            }
            Ok(job.arg(0).to_vec())
        });
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some((kind, what)) = args.split_first() else { panic!("bench_pool rust|python WHAT...") };
    let launch = if kind == "python" {
        Launch::template("python3", ["-m", "cattlegrid.worker", "bench_app:work"])
    } else {
        Launch::rust()
    };
    for what in what {
        match what.as_str() {
            "t1" => throughput(&launch),
            "batch" => in_batches(&launch),
            "t4" => latency(&launch, "t4", 10, 20_000),
            "t5" => latency(&launch, "t5", 1 << 20, 200),
            "t6" => start(&launch),
            "t8" => death(&launch),
            "t10" => burst(&launch),
            "t11" => from_another_thread(&launch),
            "floor" => floor(),
            other => panic!("unknown measure {other}"),
        }
    }
}

fn builder(launch: &Launch) -> Builder {
    Pool::builder(launch.clone()).max(1).idle(1)
}

/// T1, T2, T3: jobs a second with the next job submitted in the callback of the last, on the pool's thread.
#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn throughput(launch: &Launch) {
    for (load, count) in [(1, 40_000_u64), (2, 80_000), (16, 400_000)] {
        let pool = builder(launch).load(load).spawn().wait().expect("a pool");
        let worker = pool.workers().wait()[0].pid;
        chain(&pool, 4 * load, count / 10);
        let (cpu, start) = (cpu_us(std::process::id()) + cpu_us(worker), now());
        chain(&pool, if load == 1 { 1 } else { 4 * load }, count);
        let took = micros(start);
        let cpu = cpu_us(std::process::id()) + cpu_us(worker) - cpu;
        say(&format!("jobs_per_s_load_{load}"), count as f64 / took * 1e6);
        say(&format!("cpu_us_load_{load}"), cpu / count as f64);
    }
}

/// The measurement T2 at load 16, for a worker that takes batches: single jobs, and batches of up to 16, of
/// which the worker has two.
#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn in_batches(launch: &Launch) {
    let count = 400_000_u64;
    for (batch, load) in [(1, 16), (16, 2)] {
        let pool = builder(&launch.clone().env("BENCH_BATCH", "1")).load(load).batch(batch).spawn().wait();
        let pool = pool.expect("a pool");
        let worker = pool.workers().wait()[0].pid;
        chain(&pool, 64, count / 10);
        let (cpu, start) = (cpu_us(std::process::id()) + cpu_us(worker), now());
        chain(&pool, 64, count);
        let took = micros(start);
        let cpu = cpu_us(std::process::id()) + cpu_us(worker) - cpu;
        say(&format!("jobs_per_s_batch_{batch}"), count as f64 / took * 1e6);
        say(&format!("cpu_us_batch_{batch}"), cpu / count as f64);
        let stats = pool.stats();
        if stats.batches > 0 {
            say(&format!("jobs_in_a_batch_{batch}"), stats.batched as f64 / stats.batches as f64);
        }
    }
}

fn chain(pool: &Pool, window: usize, count: u64) {
    let (sender, receiver) = mpsc::channel();
    let left = Arc::new(AtomicU64::new(count));
    let run = Arc::new(Chain { pool: pool.clone(), left, done: sender });
    for _ in 0..window {
        Chain::next(&run);
    }
    drop(run);
    while receiver.recv().is_ok() {}
}

struct Chain {
    pool: Pool,
    left: Arc<AtomicU64>,
    done: mpsc::Sender<()>,
}

impl Chain {
    fn next(run: &Arc<Self>) {
        if run.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_err() {
            run.done.send(()).ok();
            return;
        }
        let again = Arc::clone(run);
        run.pool.submit(["0123456789"], move |outcome| {
            outcome.expect("a reply");
            Self::next(&again);
        });
    }
}

/// T4, T5: one job at a time, timed on the pool's thread.
fn latency(launch: &Launch, name: &str, bytes: usize, count: usize) {
    let pool = builder(launch).load(1).spawn().wait().expect("a pool");
    let (sender, receiver) = mpsc::channel();
    let times = Arc::new(Mutex::new(Vec::with_capacity(count)));
    let payload = Arc::new(vec![b'x'; bytes]);
    one_by_one(&pool, &payload, &times, count, sender);
    receiver.recv().expect("the end");
    say(&format!("{name}_p50_us"), median(times.lock().expect("no panic").clone()));
}

fn one_by_one(
    pool: &Pool,
    payload: &Arc<Vec<u8>>,
    times: &Arc<Mutex<Vec<f64>>>,
    left: usize,
    done: mpsc::Sender<()>,
) {
    if left == 0 {
        done.send(()).ok();
        return;
    }
    let (again, payload, times, start) = (pool.clone(), Arc::clone(payload), Arc::clone(times), now());
    let args = Args::from([&payload[..]]);
    pool.submit(args, move |outcome| {
        outcome.expect("a reply");
        times.lock().expect("no panic").push(micros(start));
        one_by_one(&again, &payload, &times, left - 1, done);
    });
}

/// T6: from a job that needs a new worker to its reply. T7: private dirty memory of that worker.
fn start(launch: &Launch) {
    for (name, env) in [("t6", "0"), ("t6_50mb", "1")] {
        let pool = Pool::builder(launch.clone().env("BENCH_DATA", env))
            .max(1)
            .start(Duration::ZERO)
            .max_jobs(1)
            .max_jobs_jitter(0.0)
            .probe(false)
            .spawn()
            .wait()
            .expect("a pool");
        let mut times = Vec::new();
        for _ in 0..200 {
            let start = now();
            pool.call(["x"]).wait().expect("a reply");
            times.push(micros(start));
            while pool.stats().exited < pool.stats().spawned {
                pause(Duration::from_micros(200));
            }
        }
        say(&format!("{name}_p50_us"), median(times));
        let pool = builder(&launch.clone().env("BENCH_DATA", env)).spawn().wait().expect("a pool");
        pool.call(["gc"]).wait().expect("a reply");
        let worker = pool.workers().wait()[0].pid;
        let rollup = std::fs::read_to_string(format!("/proc/{worker}/smaps_rollup")).unwrap_or_default();
        let line = rollup.lines().find_map(|line| line.strip_prefix("Private_Dirty:")).unwrap_or("0");
        let kib: f64 = line.trim().trim_end_matches("kB").trim().parse().unwrap_or(0.0);
        say(&format!("{}_private_dirty_kib", name.replace("t6", "t7")), kib);
    }
}

/// T8: from SIGKILL of a worker in a job to the caller's error. T9 is a test (`tests/it/failures`).
fn death(launch: &Launch) {
    let pool =
        Pool::builder(launch.clone()).on_error(|_| {}).max(1).idle(1).start(Duration::ZERO).spawn().wait();
    let pool = pool.expect("a pool");
    let (mut errors, mut strength) = (Vec::new(), Vec::new());
    for _ in 0..100 {
        pool.ready(1).wait().expect("a worker");
        let pid = pool.call(["pid"]).wait().expect("a reply").text().parse().expect("a number");
        let call = pool.call(["sleep"]);
        pause(Duration::from_millis(2));
        let start = now();
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(pid).expect("a pid"),
            rustix::process::Signal::KILL,
        )
        .expect("alive");
        if call.wait().is_ok() {
            // On a busy machine the worker may not have begun the job: then another one has done it.
            continue;
        }
        errors.push(micros(start));
        pool.ready(1).wait().expect("a worker");
        pool.call(["pid"]).wait().expect("a reply");
        strength.push(micros(start));
    }
    errors.sort_by(f64::total_cmp);
    say("t8_p50_us", errors[errors.len() / 2]);
    say("t8_p99_us", errors[errors.len() * 99 / 100]);
    say("t8_full_strength_p50_us", median(strength));
}

/// T10: 40 jobs of 100 ms on an empty pool of up to 8.
fn burst(launch: &Launch) {
    let pool = Pool::builder(launch.clone()).max(8).load(1).start(Duration::ZERO).probe(false).spawn().wait();
    let pool = pool.expect("a pool");
    let start = now();
    let calls: Vec<_> = (0..40).map(|_| pool.call(["sleep"])).collect();
    for call in calls {
        call.wait().expect("a reply");
    }
    say("t10_s", micros(start) / 1e6);
}

/// T11: futures made and waited for on another thread, a window of 64.
fn from_another_thread(launch: &Launch) {
    for (load, count) in [(1, 40_000), (16, 300_000)] {
        let pool = builder(launch).load(load).spawn().wait().expect("a pool");
        let mut window = VecDeque::new();
        let start = now();
        for _ in 0..count {
            window.push_back(pool.call(["0123456789"]));
            if window.len() == if load == 1 { 64 } else { 512 } {
                window.pop_front().expect("not empty").wait().expect("a reply");
            }
        }
        for call in window {
            call.wait().expect("a reply");
        }
        say(&format!("t11_jobs_per_s_load_{load}"), f64::from(count) / micros(start) * 1e6);
    }
}

/// A ping-pong without any pool: what the machine allows at load 1.
fn floor() {
    let (mut here, mut there) = UnixStream::pair().expect("a pair");
    let thread = std::thread::spawn(move || {
        let mut bytes = [0; 64];
        while let Ok(count) = there.read(&mut bytes) {
            if count == 0 || there.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
    });
    let (cpu, start, mut bytes) = (cpu_us(std::process::id()), now(), [0; 64]);
    for _ in 0..40_000 {
        here.write_all(&bytes[..42]).expect("an echo");
        here.read_exact(&mut bytes[..42]).expect("an echo");
    }
    say("floor_us", micros(start) / 40_000.0);
    say("floor_cpu_us", (cpu_us(std::process::id()) - cpu) / 40_000.0);
    drop(here);
    thread.join().expect("no panic");
}

/// User and system time of a process, microseconds.
fn cpu_us(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
    let own: f64 = stat.split(' ').next().and_then(|field| field.parse().ok()).unwrap_or(0.0);
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let all: f64 = tasks
        .filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok())
        .filter_map(|stat| stat.split(' ').next().and_then(|field| field.parse::<f64>().ok()))
        .sum();
    if all > 0.0 { all / 1e3 } else { own / 1e3 }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn micros(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e6
}

fn say(name: &str, value: f64) {
    let mut out = std::io::stdout();
    writeln!(out, "{name} {value:.3}").expect("stdout");
}

#[expect(clippy::disallowed_methods, reason = "this program measures time")]
fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "a job that takes time, and a pause between measurements")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}
