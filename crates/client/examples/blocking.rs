//! The client without async: threads share it.
//!
//! ```sh
//! cargo run --example blocking --features blocking -- 127.0.0.1:11211
//! ```
#![expect(clippy::print_stdout, reason = "a program for the terminal")]

use std::time::Duration;

use cattlegrid_client::blocking::Client;
use cattlegrid_client::{Compute, Json};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:11211".to_owned());
    let client = Client::new(&server)?;
    client.set("example:visits", &0_u64, Duration::from_secs(60))?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| (0..100).try_for_each(|_| client.incr("example:visits", 1).map(drop))))
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| "a thread panicked")?.map_err(|error| error.to_string())
        })
    })?;
    println!("visits: {:?}", client.get::<u64>("example:visits")?);

    let options = Compute::new().expiration(Duration::from_secs(60));
    client.delete("example:primes")?;
    for _ in 0..2 {
        let primes = client.get_or_compute("example:primes", &options, || {
            println!("computing");
            Ok::<_, String>(Json(vec![2, 3, 5, 7]))
        })?;
        println!("primes: {:?}", primes.value().map(|Json(primes)| primes));
    }
    client.delete("example:primes")?;
    client.delete("example:visits")?;
    Ok(())
}
