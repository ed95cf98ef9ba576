//! All keys of a user become invisible at once.
//!
//! ```sh
//! cargo run --example namespaces -- 127.0.0.1:11211
//! ```
#![expect(clippy::print_stdout, reason = "a program for the terminal")]

use std::time::Duration;

use cattlegrid_client::{Client, Namespacer, NamespacerOptions};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:11211".to_owned());
    let client = Client::new(&server)?;
    let names = Namespacer::new(client.clone(), NamespacerOptions::default()).await?;
    println!("the server has tags: {}", names.uses_tags());
    for user in [1234, 1235] {
        let key = names.key_of("profile", &[("userId", user)]).await?;
        client.set(&key, &format!("profile of {user}"), Duration::from_secs(60)).await?;
    }
    names.update("userId", 1234).await?;
    for user in [1234, 1235] {
        let key = names.key_of("profile", &[("userId", user)]).await?;
        println!("user {user}: {:?}", client.get::<String>(&key).await?);
    }
    Ok(())
}
