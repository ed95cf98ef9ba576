//! Thumbnails made by Python workers on all processors, forked from one template.
//!
//! `cargo run -p cattlegrid-pool --example thumbnails`

use std::io::Write;
use std::time::Duration;

use cattlegrid_pool::{Error, Launch, Pool, ncpu};

fn main() -> Result<(), Error> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let launch = Launch::template("python3", ["-m", "cattlegrid.worker", "thumbs:thumbnail"])
        .env("PYTHONPATH", format!("{root}/python/src:{root}/crates/pool/examples/workers"));
    // CPU-bound: as many workers as processors, and one job waiting at each.
    let pool = Pool::builder(launch)
        .max(ncpu(2).available)
        .load(2)
        .start(Duration::ZERO)
        .job_timeout(Duration::from_secs(60))
        .spawn()
        .wait()?;
    let images: Vec<Vec<u8>> = (0..12).map(image).collect();
    let calls: Vec<_> = images.iter().map(|image| pool.call([&image[..], b"8"])).collect();
    let mut out = std::io::stdout();
    for (n, call) in calls.into_iter().enumerate() {
        let thumbnail = call.wait()?.into_bytes();
        writeln!(out, "image {n}: {} bytes -> {} bytes", images[n].len(), thumbnail.len()).ok();
    }
    match pool.call(["no image", "8"]).wait() {
        Err(Error::Worker { message, .. }) => {
            writeln!(out, "and a file that is not a picture: {message}").ok()
        }
        other => writeln!(out, "{other:?}").ok(),
    };
    let stats = pool.stats();
    writeln!(
        out,
        "{} jobs, {} workers, median run {:?}",
        stats.completed,
        stats.spawned,
        stats.run.quantile(0.5)
    )
    .ok();
    pool.shutdown().wait();
    Ok(())
}

/// A picture of 320 x 240 with a gradient.
fn image(seed: u32) -> Vec<u8> {
    let mut bytes = b"P6\n320 240\n255\n".to_vec();
    for y in 0..240_u32 {
        for x in 0..320_u32 {
            bytes.extend([(x + seed * 20) as u8, (y + seed) as u8, (x * y / 300) as u8]);
        }
    }
    bytes
}
