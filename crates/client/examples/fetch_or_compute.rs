//! A value that another part of the program computes: a token says who must, and a hint says what.
//!
//! ```sh
//! cargo run --example fetch_or_compute -- 127.0.0.1:11211
//! ```
#![expect(clippy::print_stdout, reason = "a program for the terminal")]

use std::time::Duration;

use cattlegrid_client::{Client, Fetched};

const KEY: &str = "example:picture";
const TTL: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:11211".to_owned());
    let client = Client::new(&server)?;
    client.delete(KEY).await?;

    let Fetched::<String, Client>::Compute { hint, token } =
        client.fetch_or_compute(KEY, TTL, b"cat.jpg").await?
    else {
        return Err("another program computes the same key".into());
    };
    println!("to compute: {}", String::from_utf8_lossy(&hint));
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.fetch_or_compute::<_, String>(KEY, TTL, b"cat.jpg").await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    println!("stored: {}", client.deliver(token, &"a small cat".to_owned()).await?);
    match waiting.await?? {
        Fetched::Hit(value) | Fetched::Value(value) => println!("the other caller has: {value}"),
        other => return Err(format!("unexpected: {other:?}").into()),
    }
    client.delete(KEY).await?;
    Ok(())
}
