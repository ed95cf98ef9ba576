//! The same client for programs without async (feature `blocking`).
//!
//! Any number of threads can share a [`Client`]; their commands are sent together, as those of tasks are.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use cattlegrid_client::blocking::Client;
//!
//! let client = Client::new("127.0.0.1:11211")?;
//! client.set("greeting", &"hello".to_owned(), Duration::from_secs(60))?;
//! assert_eq!(client.get::<String>("greeting")?.as_deref(), Some("hello"));
//! # Ok::<(), cattlegrid_client::Error>(())
//! ```
//! # Panics
//! All methods that ask a server panic in an async task, whose thread they would block: use [`crate::Client`]
//! there.
//!
//! # How it works
//! A client has a runtime without threads. Of the threads that wait for replies one waits for the sockets,
//! reads the replies of all, and wakes the others; when it has its own, another takes its place. So a thread
//! that is alone reads its reply itself. Functions of the program never run while their thread does this work
//! for others.

mod client;
mod computing;
mod desk;
mod names;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::time::Instant;

use crate::error::Error;

pub use client::Client;
pub use computing::{Fetched, Herd, Token};
pub use names::Namespacer;

/// After this long without a call the sockets are looked at before the next one: the server may have closed
/// them.
const QUIET: Duration = Duration::from_millis(20);

/// A runtime that any thread can drive.
#[derive(Debug)]
struct Driver {
    /// None only while it is dropped.
    runtime: Option<Runtime>,
    began: Instant,
    /// End of the last call, in milliseconds since `began`.
    last_ms: AtomicU64,
}

impl Driver {
    fn new() -> Result<Arc<Self>, Error> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Error::Usage(format!("no runtime: {error}")))?;
        Ok(Arc::new(Self { runtime: Some(runtime), began: Instant::now(), last_ms: AtomicU64::new(0) }))
    }

    fn ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Runs a future to its end. Called from any number of threads at once.
    fn run<F: Future>(&self, future: F) -> F::Output {
        let Some(runtime) = &self.runtime else { unreachable!("it is dropped last") };
        let quiet = self.ms().saturating_sub(self.last_ms.load(Ordering::Relaxed));
        let output = runtime.block_on(async {
            if u128::from(quiet) >= QUIET.as_millis() {
                // The first lets the runtime look at the sockets, the second their tasks.
                tokio::task::yield_now().await;
                tokio::task::yield_now().await;
            }
            future.await
        });
        self.last_ms.store(self.ms(), Ordering::Relaxed);
        output
    }

    /// Drops something whose end is told to a server, and lets that be sent.
    fn give_up<T>(&self, what: T) {
        if Handle::try_current().is_ok() {
            // In a task of another runtime this thread must not block: it is sent when a thread next uses the
            // client.
            let _entered = self.runtime.as_ref().map(Runtime::enter);
            drop(what);
            return;
        }
        self.run(async {
            drop(what);
            tokio::time::sleep(Duration::from_millis(1)).await;
        });
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Nothing is waited for: this thread may be one that must not block.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
