//! The two ends of tuning: lowest latency, and highest throughput of small jobs.
//!
//! `cargo run --release -p cattlegrid-pool --example settings`

use std::collections::VecDeque;
use std::io::Write;
use std::time::{Duration, Instant};

use cattlegrid_pool::{Builder, Error, Launch, Pool, ncpu};

fn main() -> Result<(), Error> {
    if let Some(worker) = cattlegrid_worker::maybe_worker() {
        worker.serve(|job| Ok(job.arg(0).to_vec()));
    }
    let cpus = ncpu(2).available;
    // One job at a worker, and all workers always there: no job ever waits for a start or for another job.
    let latency = Pool::builder(Launch::rust()).load(1).max(cpus).idle(cpus);
    // Many small jobs at each worker: one write carries many jobs, one read many replies.
    let throughput = Pool::builder(Launch::rust()).load(16).max(cpus).start(Duration::ZERO);
    measure("low latency", latency)?;
    measure("high throughput", throughput)
}

fn measure(name: &str, builder: Builder) -> Result<(), Error> {
    let pool = builder.spawn().wait()?;
    let alone = time(|| pool.call(["ping"]).wait().map(drop))?;
    let mut window = VecDeque::new();
    let many = time(|| {
        for _ in 0..20_000 {
            window.push_back(pool.call(["ping"]));
            if window.len() > 256 {
                window.pop_front().map_or(Ok(()), |call| call.wait().map(drop))?;
            }
        }
        window.drain(..).try_for_each(|call| call.wait().map(drop))
    })?;
    let rate = 20_000.0 / many.as_secs_f64();
    writeln!(std::io::stdout(), "{name}: one job {alone:?}, {rate:.0} jobs/s").ok();
    pool.shutdown().wait();
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "an example that measures time")]
fn time(work: impl FnOnce() -> Result<(), Error>) -> Result<Duration, Error> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed())
}
