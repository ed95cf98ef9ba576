//! The pool alone: the same worker and the same jobs, without a server.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use anyhow::{Context as _, Result};
use cattlegrid_pool::{Launch, Pool};
use cattlegrid_worker::loader::wire::job_parts;

use crate::clients::CONNECTIONS;

/// A pool with one worker.
pub(crate) struct LonePool {
    pool: Pool,
    pub(crate) worker: u32,
}

impl LonePool {
    /// `batch`: jobs of a call.
    pub(crate) fn start(program: &Path, batch: usize) -> Result<Self> {
        let mut words = vec![program.as_os_str()];
        if batch > 1 {
            words.push("batch".as_ref());
        }
        let builder = Pool::builder(Launch::template("python3", words)).max(1).idle(1).load(2).batch(batch);
        let pool = builder.spawn().wait()?;
        let worker = pool.workers().wait().first().context("a worker")?.pid;
        Ok(Self { pool, worker })
    }

    /// Runs `count` jobs, 64 of them at a time: each submits the next one when it has ended.
    pub(crate) fn run(&self, count: usize) {
        let (sender, receiver) = mpsc::channel();
        let chain =
            Arc::new(JobChain { pool: self.pool.clone(), next: AtomicUsize::new(0), count, done: sender });
        for _ in 0..CONNECTIONS {
            JobChain::submit(&chain);
        }
        drop(chain);
        // The end of the last one.
        while receiver.recv().is_ok() {}
    }

    pub(crate) fn end(self) {
        self.pool.shutdown().wait();
    }
}

struct JobChain {
    pool: Pool,
    next: AtomicUsize,
    count: usize,
    done: mpsc::Sender<()>,
}

impl JobChain {
    fn submit(chain: &Arc<Self>) {
        let number = chain.next.fetch_add(1, Ordering::Relaxed);
        if number >= chain.count {
            // The receiver waits for the end of all chains.
            return chain.done.send(()).unwrap_or_default();
        }
        let (again, id) = (Arc::clone(chain), number.to_string());
        let key = format!("page:{id}");
        let captures = [("id", &id)];
        let job = job_parts(key.as_bytes(), "page:{id}", b"", None, &captures);
        chain.pool.submit(job, move |outcome| {
            outcome.expect("the worker answers");
            Self::submit(&again);
        });
    }
}
