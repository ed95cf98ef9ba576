//! Stores keys on a ring of servers, or reads them.
//!
//! ```sh
//! printf 'page:1\npage:2\n' | cargo run -p cattlegrid-client --example ring -- ketama set 127.0.0.1:11211 127.0.0.1:11212=3
//! ```
//! The first argument is `ketama`, `ketama_weighted` or `rendezvous`, the second `set` or `get`, and the rest
//! are servers. Keys are read from the standard input, a line each. `set` stores each key as its own value;
//! `get` prints key, tab and value, or nothing for a key that is absent.

use std::error::Error;
use std::io::{self, Write as _};
use std::time::Duration;

use bytes::Bytes;
use cattlegrid_client::{Client, Sharding};

/// Keys of one request.
const BATCH: usize = 500;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let sharding = match words.next().as_deref() {
        Some("ketama") => Sharding::Ketama,
        Some("ketama_weighted") => Sharding::KetamaWeighted,
        Some("rendezvous") => Sharding::Rendezvous,
        _ => return Err("the first argument is ketama, ketama_weighted or rendezvous".into()),
    };
    let stores = match words.next().as_deref() {
        Some("set") => true,
        Some("get") => false,
        _ => return Err("the second argument is set or get".into()),
    };
    // Not a cache's: each key has to come.
    let limit = Duration::from_secs(30);
    let client =
        Client::builder().servers(words).sharding(sharding).timeout(limit).connect_timeout(limit).build()?;
    let keys = io::stdin().lines().collect::<Result<Vec<String>, _>>()?;
    let mut out = io::BufWriter::new(io::stdout());
    for keys in keys.chunks(BATCH) {
        if stores {
            let pairs: Vec<_> =
                keys.iter().map(|key| (key, Bytes::copy_from_slice(key.as_bytes()))).collect();
            for written in client.set_many(&pairs, 0).await {
                written?;
            }
        } else {
            for (key, value) in keys.iter().zip(client.get_many::<Bytes>(keys).await) {
                if let Some(value) = value? {
                    writeln!(out, "{key}\t{}", String::from_utf8_lossy(&value))?;
                }
            }
        }
    }
    out.flush()?;
    Ok(())
}
