//! The server from its settings to its end; the order of the steps is the point of this file.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use cattlegrid_engine::{Engine, EngineConfig};
use cattlegrid_protocol::Limits;

use crate::auth::{AuthError, AuthFile};
use crate::detail::Detail;
use crate::dump::Dumps;
use crate::listen::{self, ListenError};
use crate::poller::Waker;
use crate::shortage::Shortage;
use crate::signals::Signals;
use crate::state::{Caps, Gauges, Shared, WorkerPart, rules_config};
use crate::sys::{self, PidFile, SysError};
use crate::time::Clock;
use crate::tls::{TlsAcceptor, TlsError};
use crate::unsent::Unsent;
use crate::uploads::Uploads;
use crate::watch::Watchers;
use crate::{control, log, shortage};
use cattlegrid_config::ConfigError;
use cattlegrid_config::Settings;

/// Why the server did not start, or had to stop.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The file of `-Y` cannot be used.
    #[error(transparent)]
    Auth(#[from] AuthError),
    /// The rule file cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A certificate, key or `ssl_*` option cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A socket cannot be opened.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The system refused a limit, an identity or the background.
    #[error(transparent)]
    Sys(#[from] SysError),
    /// A system call failed that never should.
    #[error("{what}: {error}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// The call's error.
        error: std::io::Error,
    },
}

impl ServeError {
    /// The status to leave with: 2 if the command line or a file it names is to blame, otherwise 1.
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Auth(_) | Self::Config(_) | Self::Tls(_) => 2,
            Self::Listen(_) | Self::Sys(_) | Self::Io { .. } => 1,
        }
    }
}

/// Runs the server until a signal ends it.
pub fn serve(mut settings: Settings) -> Result<(), ServeError> {
    log::set_format(settings.log_format);
    log::set_verbosity(settings.verbosity);
    for line in &settings.notices {
        log::notice(line);
    }
    // Paths first: -d moves to / later, and a reload must find the files that the start has found.
    let io = |what| move |error| ServeError::Io { what, error };
    settings.make_paths_absolute().map_err(io("the current directory is unknown"))?;

    // 1. Who to become: a name that is wrong should cost nothing. Nothing changes yet.
    let account = sys::account(settings.user.as_deref())?;

    // 2. Limits, while root may raise them.
    if settings.core_dumps {
        sys::raise_core_limit()?;
    }
    sys::raise_open_files(settings.connections_max, settings.threads)?;
    if settings.lock_memory {
        sys::raise_locked_memory();
    }
    sys::fit_address_space(settings.memory_bytes, settings.threads)?;
    warn_of_cgroup(&settings);

    // 3. Files that root alone may be able to read, and whose errors belong on the terminal.
    let auth = settings.auth_file.as_deref().map(AuthFile::load).transpose()?;
    let tls = settings.tls.as_ref().map(TlsAcceptor::new).transpose()?;

    // 4. Sockets, while root may take low ports. The access bits of the unix socket go through the process's
    //    mask: still one thread.
    let listeners = listen::bind(&settings, account.as_ref())?;
    // Its path may be relative, and -d moves.
    let port_file = std::env::var_os("MEMCACHED_PORT_FILENAME").filter(|path| !path.is_empty());
    let port_file =
        port_file.map(std::path::absolute).transpose().map_err(io("the current directory is unknown"))?;

    // 5. Background: after everything that may fail by a user's mistake, before the pid is written down and
    //    before threads, which a fork would lose.
    let quiet = settings.verbosity == 0;
    let ready = if settings.daemon { Some(sys::daemonise(settings.core_dumps, quiet)?) } else { None };

    // 6. Signals: before threads, which inherit the mask, and before the pid file, whose readers may send one
    //    at once: it waits for step 10 then.
    let signals = Signals::block().map_err(io("signals cannot be received"))?;

    // 7. Identity; then memory, whose locks do not survive a fork; privileges last, since locking needs one.
    if let Some(account) = &account {
        account.become_it(settings.core_dumps)?;
    }
    if settings.lock_memory {
        sys::lock_memory();
    }
    sys::give_up(settings.privileges)?;

    // 8. Files, as the user that we are now, as in memcached: in a directory of somebody else root must not write, and
    //    what this user cannot write it could not remove in the end. The daemon's pid.
    if let Some(path) = &port_file {
        listen::write_port_file(path, &listeners)?;
    }
    let pid_file = settings.pid_file.as_deref().and_then(PidFile::write);

    // 9. The sockets are open, so whoever connects now will be served: let the terminal go.
    if let Some(ready) = ready {
        ready.report()?;
    }

    // 10. Threads; first the one that writes the log, so that none of the others ever waits for standard error.
    for listener in &listeners.sockets {
        log::info(format_args!("listening on {}", listener.address));
    }
    log::start().map_err(io("starting the log's thread"))?;
    let shared = share(settings, auth, tls)?;
    let ended = control::run(&shared, listeners, signals);

    // The pid file goes last: while it is there the process is.
    drop(pid_file);
    ended
}

/// In a control group that has less memory than the server may take, the system ends it.
fn warn_of_cgroup(settings: &Settings) {
    let caps = Caps::new(settings.item_bytes_max, settings.unsent_bytes);
    let taken = (settings.memory_bytes + caps.uploads_bytes + caps.unsent_bytes) as u64;
    if let Some(most) = shortage::cgroup_memory_max().filter(|most| *most < taken) {
        log::warning(format_args!(
            "the control group has {} MiB of memory (memory.max), and -m with what connections may take beside it is {} MiB: \
             the system may kill the server; lower -m or raise memory.max",
            most >> 20,
            taken >> 20,
        ));
    }
}

/// What all threads share.
pub(crate) fn share(
    settings: Settings,
    auth: Option<AuthFile>,
    tls: Option<TlsAcceptor>,
) -> Result<Arc<Shared>, ServeError> {
    let caps = Caps::new(settings.item_bytes_max, settings.unsent_bytes);
    share_under(settings, auth, tls, Clock::new(), caps)
}

/// As [`share`], with another clock and other caps.
pub(crate) fn share_under(
    settings: Settings,
    auth: Option<AuthFile>,
    tls: Option<TlsAcceptor>,
    clock: Clock,
    caps: Caps,
) -> Result<Arc<Shared>, ServeError> {
    let io = |what| move |error| ServeError::Io { what, error };
    let engine = Engine::new(EngineConfig {
        memory_bytes: settings.memory_bytes,
        threads: settings.threads,
        evictions: settings.evictions,
        hide_cas: !settings.cas,
        max_item_bytes: settings.item_bytes_max,
        large_pages: settings.large_pages,
        tag_bytes: settings.rule_file.as_ref().map_or(0, |_| settings.protection.tag_bytes),
        allows_flush: settings.flush,
        explain: |why| serde_json::to_string(why).unwrap_or_default(),
        seed: random_seed(),
    })
    .map_err(io("there is no memory for the items: -m is too large for this machine, or too small"))?;
    if let Some(file) = &settings.rule_file {
        engine
            .set_rules(Some(Arc::clone(&file.rules)), &rules_config(&settings.protection))
            .map_err(io("there is no memory for the rules"))?;
    }
    let gauges = Gauges::default();
    gauges.certificates_read.store(clock.seconds(), Relaxed);
    let workers = (0..settings.threads).map(|_| WorkerPart::new()).collect::<Result<_, _>>();
    let watchers = Watchers::new(settings.threads, settings.worker_log_buffer_bytes);
    watchers.log_requests(settings.verbosity >= log::REQUESTS);
    Ok(Arc::new(Shared {
        clock,
        auth,
        tls,
        engine,
        workers: workers.map_err(io("a worker cannot be made"))?,
        watchers,
        detail: Detail::new(settings.stat_detail, settings.stat_delimiter),
        limits: Limits {
            max_item_bytes: settings.item_bytes_max,
            debugtime: settings.debugtime,
            extensions: settings.rule_file.is_some(),
            max_get_line_bytes: caps.get_line_bytes,
        },
        gauges,
        uploads: Uploads::new(caps.uploads_bytes),
        shortage: Shortage::default(),
        dumps: Dumps::default(),
        unsent: Unsent::new(caps.unsent_bytes),
        caps,
        connections: Mutex::default(),
        listeners: Mutex::default(),
        control: Waker::new().map_err(io("a worker cannot be made"))?,
        stop_asked: AtomicBool::new(false),
        settings,
    }))
}

/// A seed that nobody outside the process knows, from the system's random numbers.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(std::process::id())
}
