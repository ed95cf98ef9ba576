//! The clients, and how their callers share them.

use std::future::Future;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use async_memcached::AsciiProtocol as _;
use bytes::Bytes;
use cattlegrid_client::{Client, Compute};
use tokio::runtime::{Builder, Runtime};

/// The key of all gets.
const KEY: &str = "bench:client:key";
/// A get may take this long.
const LIMIT: Duration = Duration::from_secs(1);
/// Bytes of its value.
const SIZE: usize = 100;

/// A client, and the kind of its callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Tasks share a client.
    Own(Threads),
    /// The same with `get_or_compute`, each task of a key of its own, whose value is there.
    OwnComputing(Threads),
    /// Each task has a client: a method borrows it until the reply is there.
    AsyncMemcached(Threads),
    /// The same, and each get has a timeout, as those of this client have.
    AsyncMemcachedTimeout(Threads),
    /// Threads share a client without async.
    OwnBlocking,
    /// Threads share a client with a pool of as many connections.
    Memcache,
}

/// The runtime of tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Threads {
    Current,
    Two,
}

/// Gets this often from each caller.
pub(crate) type WayRun = Box<dyn FnMut(u64) -> Result<()>>;

impl Way {
    pub(crate) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for threads in [Threads::Current, Threads::Two] {
            all.extend([
                Self::Own(threads),
                Self::OwnComputing(threads),
                Self::AsyncMemcached(threads),
                Self::AsyncMemcachedTimeout(threads),
            ]);
        }
        all.extend([Self::OwnBlocking, Self::Memcache]);
        all
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Own(Threads::Current) => "`cattlegrid-client`, runtime of one thread",
            Self::Own(Threads::Two) => "`cattlegrid-client`, two threads",
            Self::OwnComputing(Threads::Current) => {
                "`cattlegrid-client`, `get_or_compute`, runtime of one thread"
            }
            Self::OwnComputing(Threads::Two) => "`cattlegrid-client`, `get_or_compute`, two threads",
            Self::AsyncMemcached(Threads::Current) => "`async-memcached`, runtime of one thread",
            Self::AsyncMemcached(Threads::Two) => "`async-memcached`, two threads",
            Self::AsyncMemcachedTimeout(Threads::Current) => {
                "`async-memcached` with `tokio::time::timeout`, runtime of one thread"
            }
            Self::AsyncMemcachedTimeout(Threads::Two) => {
                "`async-memcached` with `tokio::time::timeout`, two threads"
            }
            Self::OwnBlocking => "`cattlegrid-client`, blocking",
            Self::Memcache => "`memcache`",
        }
    }

    /// The client that this one is compared with.
    pub(crate) fn rival(self) -> Self {
        match self {
            Self::Own(threads) | Self::AsyncMemcachedTimeout(threads) => Self::AsyncMemcached(threads),
            Self::OwnComputing(threads) => Self::Own(threads),
            Self::OwnBlocking => Self::Memcache,
            rival => rival,
        }
    }

    /// Connects.
    pub(crate) fn prepare(self, address: &str, callers: usize) -> Result<WayRun> {
        match self {
            Self::Own(threads) => {
                let runtime = threads.runtime()?;
                let client = Client::builder().server(address).build()?;
                Ok(Box::new(move |gets| {
                    let clients = std::iter::repeat_n(client.clone(), callers);
                    run_tasks(&runtime, clients.collect(), move |client| async move {
                        for _ in 0..gets {
                            let value: Option<Bytes> = client.get(KEY).await?;
                            check(value.as_deref())?;
                        }
                        Ok(client)
                    })
                    .map(drop)
                }))
            }
            Self::OwnComputing(threads) => {
                let runtime = threads.runtime()?;
                let client = Client::builder().server(address).build()?;
                Ok(Box::new(move |gets| {
                    let clients = (0..callers).map(|n| (client.clone(), format!("bench:computed:{n}")));
                    run_tasks(&runtime, clients.collect(), move |(client, key)| async move {
                        let options = Compute::new();
                        for _ in 0..gets {
                            let compute = || async { Ok::<_, std::io::Error>(Bytes::from(vec![b'v'; SIZE])) };
                            let outcome = client.get_or_compute(&key, &options, compute).await?;
                            check(outcome.value().as_deref())?;
                        }
                        Ok((client, key))
                    })
                    .map(drop)
                }))
            }
            Self::AsyncMemcached(threads) | Self::AsyncMemcachedTimeout(threads) => {
                let limited = matches!(self, Self::AsyncMemcachedTimeout(_));
                let runtime = threads.runtime()?;
                let mut clients = Vec::new();
                for _ in 0..callers {
                    clients.push(runtime.block_on(async_memcached::Client::new(format!("tcp://{address}")))?);
                }
                Ok(Box::new(move |gets| {
                    clients =
                        run_tasks(&runtime, std::mem::take(&mut clients), move |mut client| async move {
                            for _ in 0..gets {
                                let value = if limited {
                                    tokio::time::timeout(LIMIT, client.get(KEY)).await??
                                } else {
                                    client.get(KEY).await?
                                };
                                check(value.and_then(|value| value.data).as_deref())?;
                            }
                            Ok(client)
                        })?;
                    Ok(())
                }))
            }
            Self::OwnBlocking => {
                let client = cattlegrid_client::blocking::Client::new(address)?;
                Ok(Box::new(move |gets| {
                    run_threads(callers, || {
                        for _ in 0..gets {
                            let value: Option<Bytes> = client.get(KEY)?;
                            check(value.as_deref())?;
                        }
                        Ok(())
                    })
                }))
            }
            Self::Memcache => {
                let client = memcache::Client::with_pool_size(
                    format!("memcache://{address}"),
                    u32::try_from(callers)?,
                )?;
                Ok(Box::new(move |gets| {
                    run_threads(callers, || {
                        for _ in 0..gets {
                            let value: Option<Vec<u8>> = client.get(KEY)?;
                            check(value.as_deref())?;
                        }
                        Ok(())
                    })
                }))
            }
        }
    }
}

impl Threads {
    fn runtime(self) -> Result<Runtime> {
        let mut builder = match self {
            Self::Current => Builder::new_current_thread(),
            Self::Two => Builder::new_multi_thread(),
        };
        Ok(builder.worker_threads(2).enable_all().build()?)
    }
}

#[expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Stores the value that all get.
pub(crate) fn store(address: &str) -> Result<()> {
    let client = memcache::Client::connect(format!("memcache://{address}"))?;
    Ok(client.set(KEY, [b'v'; SIZE].as_slice(), 0)?)
}

fn check(value: Option<&[u8]>) -> Result<()> {
    ensure!(value.is_some_and(|value| value.len() == SIZE && value[SIZE - 1] == b'v'), "another value");
    Ok(())
}

/// A task for each client. They give their clients back.
fn run_tasks<C, F>(runtime: &Runtime, clients: Vec<C>, work: impl Fn(C) -> F) -> Result<Vec<C>>
where
    C: Send + 'static,
    F: Future<Output = Result<C>> + Send + 'static,
{
    runtime.block_on(async {
        let tasks: Vec<_> = clients.into_iter().map(|client| tokio::spawn(work(client))).collect();
        let mut clients = Vec::new();
        for task in tasks {
            clients.push(task.await??);
        }
        Ok(clients)
    })
}

fn run_threads(callers: usize, work: impl Fn() -> Result<()> + Sync) -> Result<()> {
    if callers == 1 {
        return work();
    }
    let all_there = Arc::new(Barrier::new(callers));
    std::thread::scope(|scope| {
        let (work, all_there) = (&work, &all_there);
        let threads: Vec<_> = (0..callers)
            .map(|_| {
                scope.spawn(move || {
                    all_there.wait();
                    work()
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("a caller panicked"))?)
    })
}
