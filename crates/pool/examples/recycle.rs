//! Workers that leak memory, and a pool that replaces them before they use too much.
//!
//! `cargo run -p cattlegrid-pool --example recycle`. The program is its own worker: `Launch::rust`.

use std::io::Write;
use std::time::Duration;

use cattlegrid_pool::{Error, Launch, Pool};

fn main() -> Result<(), Error> {
    if let Some(worker) = cattlegrid_worker::maybe_worker() {
        let mut leak: Vec<Vec<u8>> = Vec::new();
        worker.serve(move |_| {
            leak.push(vec![1; 8 << 20]);
            Ok(format!("worker {} holds {} MiB", std::process::id(), leak.len() * 8))
        });
    }
    let pool = Pool::builder(Launch::rust())
        .max(1)
        .max_rss(128 << 20)
        // A second limit: no worker does more than a thousand jobs, whatever its memory.
        .max_jobs(1_000)
        .start(Duration::ZERO)
        .spawn()
        .wait()?;
    let mut out = std::io::stdout();
    let mut last = String::new();
    while pool.stats().retired < 2 {
        last = pool.call(["grow"]).wait()?.text();
        // A leak at the pace of a real one; the memory is looked at once a second.
        std::thread::park_timeout(Duration::from_millis(100));
    }
    let stats = pool.stats();
    writeln!(out, "{last}; {} workers retired by memory, {} jobs lost", stats.retired, stats.lost).ok();
    pool.shutdown().wait();
    Ok(())
}
