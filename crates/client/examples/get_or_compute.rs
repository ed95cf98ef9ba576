//! One computation for many callers that miss the same key at once.
//!
//! ```sh
//! cargo run --example get_or_compute -- 127.0.0.1:11211
//! ```
#![expect(clippy::print_stdout, reason = "a program for the terminal")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cattlegrid_client::{Client, Compute};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:11211".to_owned());
    let computations = Arc::new(AtomicU64::new(0));
    let options = Compute::new().compute_time(Duration::from_secs(5)).expiration(Duration::from_secs(60));
    // Clients of their own, as in several processes.
    let clients = (0..4).map(|_| Client::new(&server)).collect::<Result<Vec<_>, _>>()?;
    clients[0].delete("example:report").await?;
    let callers = (0..40).map(|caller| {
        let (client, options, computations) =
            (clients[caller % 4].clone(), options.clone(), computations.clone());
        tokio::spawn(async move {
            let report = client.get_or_compute("example:report", &options, || async {
                computations.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(300)).await;
                Ok::<_, std::io::Error>("a report that takes 300 ms".to_owned())
            });
            report.await.map(cattlegrid_client::Outcome::value)
        })
    });
    let callers: Vec<_> = callers.collect();
    let mut reports = 0;
    for caller in callers {
        if caller.await??.as_deref() == Some("a report that takes 300 ms") {
            reports += 1;
        }
    }
    println!("callers with the report: {reports}, computations: {}", computations.load(Ordering::Relaxed));
    clients[0].delete("example:report").await?;
    Ok(())
}
