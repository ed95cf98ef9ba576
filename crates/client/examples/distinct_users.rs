//! The number of distinct users over all servers, from sketches (`hll`) that are merged here.
//!
//! ```sh
//! cargo run --example distinct_users -- 127.0.0.1:11211 127.0.0.1:11212 127.0.0.1:11213
//! ```
//! The servers are Cattlegrids with objects (`cattlegrid --objects DIR`, where DIR may be empty). Users are
//! counted in 16 parts, each a sketch of its own, so that the work is on all servers. One request to each
//! server brings the sketches.

#![expect(clippy::print_stdout, reason = "a program for the terminal")]

use cattlegrid_client::Client;
use cattlegrid_client::objects::{Call, Sketch};

const PARTS: u64 = 16;
const USERS: u64 = 10_000;
const VISITS: u64 = 30_000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut servers: Vec<String> = std::env::args().skip(1).collect();
    if servers.is_empty() {
        servers.push("127.0.0.1:11211".to_owned());
    }
    let client = Client::builder().servers(servers).build()?;
    let parts: Vec<String> = (0..PARTS).map(|part| format!("users{part}")).collect();
    for part in &parts {
        if client.call(Call::new("hll", "new", part)).await?.is_none() {
            return Err("the server has no objects: start it with --objects".into());
        }
    }

    // A visit is counted in any of the parts: a user who is in several of them counts once.
    let mut visits: Vec<Call> = parts.iter().map(|part| Call::new("hll", "add", part)).collect();
    for visit in 0..VISITS {
        let place = (visit / 7 % PARTS) as usize;
        visits[place] = visits[place].clone().arg(visit * 31 % USERS);
        if visits[place].name().len() > 230 {
            client.call(&visits[place]).await?;
            visits[place] = Call::new("hll", "add", &parts[place]);
        }
    }
    for rest in &visits {
        if rest.name().matches(':').count() > 2 {
            client.call(rest).await?;
        }
    }

    let mut one_by_one = 0;
    for part in &parts {
        let reply = client.call(Call::new("hll", "count", part)).await?.unwrap_or_default();
        one_by_one += String::from_utf8_lossy(&reply).parse::<u64>()?;
    }
    let merged = client.multi_call_fold("hll", "sketch", &parts, &[], Ok(Sketch::new()), |all, _, reply| {
        let mut all: Sketch = all?;
        if let Some(text) = reply.map_err(|error| error.to_string())? {
            all.merge(&Sketch::parse(&text).map_err(|error| error.to_string())?);
        }
        Ok::<_, String>(all)
    });
    println!("users of the parts, added up: {one_by_one}");
    println!("distinct users: {}, exactly {USERS}", merged.await?.count());
    for part in &parts {
        client.call(Call::new("hll", "drop", part)).await?;
    }
    Ok(())
}
