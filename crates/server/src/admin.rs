//! The admin address: pages for monitoring, over HTTP, on a thread of its own.
//!
//! ```text
//!   monitoring ──▶ at most 32 connections ──▶ guard: method, Host, site, token ──▶ page ──▶ reply, end
//!                    10 s each, one request        who may read                      │
//!                                                                                   ▼
//!                                         the definitions of statistics, read as `stats` reads them
//!                                                                                   │ once a second for all
//!   dashboards ──▶ at most 64 further connections, each a stream of events ◀── snapshot, and changes
//! ```
//! The thread reads what `stats` reads, and holds the same locks for as short a time. It serves no client of
//! the cache, and no lane waits for it. It spends at most a tenth of its time on making pages: more frequent
//! requests wait.
//!
//! # Invariants
//! * No page changes any state.
//! * Beyond loopback only `/healthz`, `/readyz` and the files of the dashboard, which hold no figures, are
//!   answered without the token, and nothing without TLS.
//! * Connections, their time, the sizes of their headers, and with them memory and descriptors have bounds.

use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use cattlegrid_config::{ListenAddress, Settings};
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

/// The most descriptors that the thread has open: connections, listeners, and those of its runtime.
pub(crate) const DESCRIPTORS: usize = connections::CONNECTIONS + events::STREAMS + 24;

/// The port of an `--admin` address without a port.
pub(crate) const PORT: u16 = 11280;

/// The bound addresses, before the thread runs.
pub(crate) struct BoundAdmin {
    sockets: Vec<std::net::TcpListener>,
    addresses: Vec<SocketAddr>,
    hosts: Hosts,
    secrets: Arc<Secrets>,
}

/// The handle of the admin thread, which ends when this is dropped.
pub(crate) struct Admin {
    site: Arc<Site>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

/// The state from which pages are made.
struct Site {
    stage: Mutex<Stage>,
    hosts: Hosts,
    secrets: Arc<Secrets>,
}

/// The server's progress from start to end.
#[derive(Clone)]
enum Stage {
    Starting,
    Serving(Arc<Shared>),
    /// The server has left; this thread must not keep what it shared.
    Gone,
}

impl Stage {
    /// Whether the server takes no new connections any more.
    fn is_leaving(&self) -> bool {
        match self {
            Self::Starting => false,
            Self::Serving(shared) => shared.gauges.leaving.load(Relaxed),
            Self::Gone => true,
        }
    }
}

impl BoundAdmin {
    /// Checks the options of `--admin` before anything is opened.
    ///
    /// # Errors
    /// Other machines can reach the address, and an option that is required then is missing.
    pub(crate) fn check(settings: &Settings, secrets: &Secrets) -> Result<(), ServeError> {
        let Some(wanted) = &settings.admin else { return Ok(()) };
        // A name that is not known, or has an address of loopback too, is judged when it is opened.
        let addresses = listen::admin_addresses(wanted, PORT).unwrap_or_default();
        let is_reached = !addresses.is_empty()
            && !addresses.iter().any(|address| address.ip().to_canonical().is_loopback());
        if is_reached { Self::protected(wanted, secrets) } else { Ok(()) }
    }

    /// Refuses an address that other machines can reach without the options that it requires.
    fn protected(wanted: &ListenAddress, secrets: &Secrets) -> Result<(), ServeError> {
        let needs = secrets.missing_options();
        if needs.is_empty() {
            return Ok(());
        }
        Err(ServeError::Admin(format!(
            "--admin {wanted}: other machines can reach it; add {}, or take an address of loopback such as 127.0.0.1:{PORT}",
            needs.join(" and ")
        )))
    }

    /// Opens the sockets of `--admin`, without listening on them. None: the option is not set.
    ///
    /// # Errors
    /// An address cannot be opened.
    pub(crate) fn new(settings: &Settings, secrets: Arc<Secrets>) -> Result<Option<Self>, ServeError> {
        let Some(wanted) = &settings.admin else { return Ok(None) };
        let (mut sockets, mut addresses) = (Vec::new(), Vec::new());
        for (socket, address) in listen::bind_admin(wanted, PORT)? {
            sockets.push(socket);
            addresses.push(address);
        }
        let is_local = addresses.iter().all(|address| address.ip().to_canonical().is_loopback());
        if !is_local {
            Self::protected(wanted, &secrets)?;
        }
        let hosts = if is_local { Hosts::local(wanted.host_text()) } else { Hosts::any() };
        Ok(Some(Self { sockets, addresses, hosts, secrets }))
    }

    /// Starts the thread, whose pages say that the server is starting until [`Admin::serving`] is called.
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
                // Tasks of open connections end here.
                runtime.shutdown_background();
            })
            .map_err(io("starting the thread of the admin address"))?;
        Ok(Admin { site, stop, thread: Some(thread) })
    }
}

impl Admin {
    /// Makes all pages available: the server serves clients.
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

    /// A copy of the stage, so that the lock is not held while a page is made.
    fn now(&self) -> Stage {
        self.stage().clone()
    }
}
