//! The admin address: pages for monitoring, over HTTP, on a thread of its own.
//!
//! ```text
//!   monitoring ──▶ at most 32 connections ──▶ guard: method, Host, site, token ──▶ page ──▶ one reply, then the end
//!                    10 s each, one request        who may read                      │
//!                                                                                   ▼
//!                                         the definitions of statistics, read as `stats` reads them
//!                                                                                   │ once a second for all
//!   dashboards ──▶ at most 64 further connections, each a stream of events ◀── snapshot, and what has changed since
//! ```
//! The thread reads what `stats` reads and takes the same locks as short; it serves no client of the cache, and no lane waits for it. It makes
//! pages for a tenth of its time at most: who asks more often waits.
//!
//! # Invariants
//! * Nothing here changes anything.
//! * Beyond loopback only `/healthz`, `/readyz` and the files of the dashboard, which hold no figures, are answered without the token, and nothing without TLS.
//! * Connections, their time, the sizes of their headers, and with them memory and descriptors have bounds.

use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use cattlegrid_config::Settings;
use tokio::runtime::Builder;
use tokio::sync::watch;

use crate::error::ServeError;
use crate::listen::{self, ListenError};
use crate::log;
use crate::shared::Shared;

mod connections;
mod dashboard;
mod events;
mod guard;
mod json;
mod metrics;
mod pages;
mod secrets;
mod snapshot;
#[cfg(test)]
mod tests;

use connections::Gate;
use guard::Hosts;
pub(crate) use secrets::Secrets;

/// Descriptors that the thread has open at most: connections, listeners, and those of its runtime.
pub(crate) const DESCRIPTORS: usize = connections::CONNECTIONS + events::STREAMS + 24;

/// The port of an address that names none.
pub(crate) const PORT: u16 = 11280;

/// Bound addresses, before the thread runs.
pub(crate) struct Bound {
    sockets: Vec<std::net::TcpListener>,
    addresses: Vec<SocketAddr>,
    hosts: Hosts,
    secrets: Arc<Secrets>,
}

/// The thread; dropping it ends it.
pub(crate) struct Admin {
    site: Arc<Site>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

/// What pages are made of.
struct Site {
    stage: Mutex<Stage>,
    hosts: Hosts,
    secrets: Arc<Secrets>,
}

/// How far the server has come.
#[derive(Clone)]
enum Stage {
    Starting,
    Serving(Arc<Shared>),
    /// It has left; what was shared must go.
    Gone,
}

impl Stage {
    /// It takes no new connection any more.
    fn is_leaving(&self) -> bool {
        match self {
            Self::Starting => false,
            Self::Serving(shared) => shared.gauges.leaving.load(Relaxed),
            Self::Gone => true,
        }
    }
}

impl Bound {
    /// Opens the sockets of `--admin`; None without it. Nothing listens yet.
    pub(crate) fn new(settings: &Settings, secrets: Arc<Secrets>) -> Result<Option<Self>, ServeError> {
        let Some(wanted) = &settings.admin else { return Ok(None) };
        let (mut sockets, mut addresses) = (Vec::new(), Vec::new());
        for (socket, address) in listen::bind_admin(wanted, PORT)? {
            sockets.push(socket);
            addresses.push(address);
        }
        let is_local = addresses.iter().all(|address| address.ip().is_loopback());
        if !is_local {
            let needs = secrets.lacks();
            if !needs.is_empty() {
                return Err(ServeError::Admin(format!(
                    "--admin {wanted}: other machines can reach it; add {}, or take an address of loopback such as 127.0.0.1:{PORT}",
                    needs.join(" and ")
                )));
            }
        }
        let hosts = if is_local { Hosts::local(wanted.host_text()) } else { Hosts::any() };
        Ok(Some(Self { sockets, addresses, hosts, secrets }))
    }

    /// Starts the thread, which answers from now on that the server is starting.
    pub(crate) fn start(self) -> Result<Admin, ServeError> {
        let Self { sockets, addresses, hosts, secrets } = self;
        let io = |what| move |error| ServeError::Io { what, error };
        let is_local = hosts.is_local();
        for (socket, address) in sockets.iter().zip(&addresses) {
            listen::listen_admin(socket).map_err(|error| {
                ListenError::new(format!("--admin {address}: {}", crate::sys::reason(&error)))
            })?;
            let scheme = if is_local { "http" } else { "https" };
            log::info(format_args!("pages for monitoring on {scheme}://{address}"));
        }
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(io("starting the thread of the admin address"))?;
        let site = Arc::new(Site { stage: Mutex::new(Stage::Starting), hosts, secrets });
        let (stop, stopped) = watch::channel(false);
        let gate = Gate::new(Arc::clone(&site), !is_local);
        let thread = std::thread::Builder::new()
            .name("admin".to_owned())
            .spawn(move || {
                runtime.block_on(gate.run(sockets, stopped));
                // What connections still wait for ends with them.
                runtime.shutdown_background();
            })
            .map_err(io("starting the thread of the admin address"))?;
        Ok(Admin { site, stop, thread: Some(thread) })
    }
}

impl Admin {
    /// The server serves.
    pub(crate) fn serving(&self, shared: &Arc<Shared>) {
        *self.site.stage() = Stage::Serving(Arc::clone(shared));
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        *self.site.stage() = Stage::Gone;
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error("the thread of the admin address panicked");
        }
    }
}

impl Site {
    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy, so that no page is made with it locked.
    fn now(&self) -> Stage {
        self.stage().clone()
    }
}
