//! The server from its settings to its end. This file is mostly about the order of the steps.

use std::sync::Arc;

use cattlegrid_config::{NamedFile, Settings};

use crate::admin::{self, BoundAdmin, Secrets};
use crate::auth::{self, AuthFile};
use crate::caps::Caps;
use crate::error::ServeError;
use crate::manager::Manager;
use crate::shared::build::{Ground, share};
use crate::signals::Signals;
use crate::sys::{self, PidFile};
use crate::tls::TlsAcceptor;
use crate::{control, listen, log, shortage};

/// Runs the server until a signal ends it.
pub fn serve(mut settings: Settings) -> Result<(), ServeError> {
    log::set_format(settings.log_format);
    log::set_verbosity(settings.verbosity);
    for line in &settings.notices {
        log::notice(line);
    }
    log::lines(log::Level::Warning, settings.warnings.join("\n"));
    // Paths come first: -d changes to `/` later, and a reload must find the same files as the start.
    let io = |what| move |error| ServeError::Io { what, error };
    let manager = Manager::of_environment();
    settings.make_paths_absolute().map_err(io("the current directory is unknown"))?;

    // The tests of types of objects have run. None of their threads may be left: -d forks, and signals are
    // not blocked yet.
    if let Some(own) = settings.objects.as_ref().and_then(|objects| objects.own.as_ref()) {
        own.host.rest();
    }

    // 1. The user for -u, so that a wrong name costs nothing. The process changes to it in step 7.
    let account = sys::account(settings.user.as_deref())?;

    // 2. Limits, while root may raise them.
    if settings.core_dumps {
        sys::raise_core_limit()?;
    }
    sys::raise_open_files(settings.connections_max, settings.threads, other_descriptors(&settings))?;
    if settings.lock_memory {
        sys::raise_locked_memory();
    }
    sys::return_large_blocks();
    sys::fit_address_space(settings.memory_bytes, settings.threads)?;
    warn_of_cgroup(&settings);

    // 3. Files that possibly only root can read, and whose errors belong on the terminal.
    let pwdb = std::env::var_os(auth::PWDB).filter(|path| !path.is_empty());
    if let (Some(file), Some(_), true) = (&settings.auth_file, &pwdb, settings.auth_binary()) {
        let (pwdb, file) = (auth::PWDB, file.display());
        log::notice(format_args!("{pwdb} is not read: -S and -Y log clients in against {file}"));
    }
    let auth = AuthFile::of_settings(&settings, pwdb)?;
    let grants = auth::rights::grants_of(auth.as_ref(), None, settings.rule_file.as_ref())?;
    if let (Some(auth), Some(grants)) = (&auth, grants) {
        if let Some(line) = grants.notice() {
            log::notice(line);
        }
        auth.grant(grants);
    }
    let tls = settings.tls.as_ref().map(TlsAcceptor::new).transpose()?;

    let secrets = Arc::new(Secrets::new(&settings)?);
    // What is wrong with settings is said before a socket is opened that may be taken.
    BoundAdmin::check(&settings, &secrets)?;

    // 4. Sockets, while root may use low ports. The access bits of the Unix socket are set by the mask of the
    // process, which still has one thread. With loaders, sockets listen in step 8: a client that connected
    // earlier would wait for the loaders.
    let listeners = listen::bind(&settings, account.as_ref())?;
    if settings.loaders().is_empty() {
        listeners.listen(&settings)?;
    }
    let admin = BoundAdmin::new(&settings, Arc::clone(&secrets))?;
    // The path may be relative, and -d changes the directory.
    let port_file = std::env::var_os("MEMCACHED_PORT_FILENAME").filter(|path| !path.is_empty());
    let port_file =
        port_file.map(std::path::absolute).transpose().map_err(io("the current directory is unknown"))?;

    // 5. Background: after all that may fail by a user's mistake, before the pid is written, and before
    // threads, which a fork would lose.
    let quiet = settings.verbosity == 0;
    let ready = if settings.daemon { Some(sys::daemonise(settings.core_dumps, quiet)?) } else { None };

    // 6. Signals: before threads, which inherit the mask, and before the pid file, whose readers may send a
    // signal at once. It waits until step 11 then.
    let mut signals = Signals::block().map_err(io("signals cannot be received"))?;

    // 7. Identity. Then memory, whose locks do not survive a fork. Privileges last, since locking needs one.
    if let Some(account) = &account {
        account.assume(settings.core_dumps)?;
        warn_of_files(&settings);
    }
    if settings.lock_memory {
        sys::lock_memory();
    }
    sys::drop_privileges(settings.privileges)?;

    // 8. Loaders: as the final user, and while errors can still be reported to the process that starts the
    // server. The pages for monitoring come first, and say that the server is starting.
    let admin = admin.map(BoundAdmin::start).transpose()?;
    if !settings.loaders().is_empty() {
        manager.starting("Starting loaders");
    }
    let Some((ground, must_reload)) = Ground::unless_told(&settings, &mut signals)? else { return Ok(()) };
    if !settings.loaders().is_empty() {
        listeners.listen(&settings)?;
    }

    // 9. Files, as the final user, as in memcached: root must not write in another user's directory, and this
    // user can remove only files that it can write. The pid is the daemon's.
    if let Some(path) = &port_file {
        listen::write_port_file(path, &listeners)?;
    }
    let pid_file = settings.pid_file.as_deref().and_then(PidFile::write);

    // 10. The sockets are open, and every client that connects now is served: the terminal is released.
    if let Some(ready) = ready {
        ready.report()?;
    }

    // 11. Threads. The thread that writes the log comes first, so that no other thread waits for standard
    // error.
    for listener in &listeners.sockets {
        log::info(format_args!("listening on {}", listener.address));
    }
    log::start().map_err(io("starting the log's thread"))?;
    let shared = share(settings, auth, tls, secrets, ground)?;
    let ended = control::run(&shared, listeners, signals, must_reload, admin.as_ref(), manager);
    drop(admin);

    // The pid file is removed last: it exists as long as the process.
    drop(pid_file);
    ended
}

/// Descriptors of rings, pools of loaders and monitoring.
fn other_descriptors(settings: &Settings) -> usize {
    let of_rings = if settings.io_uring { settings.threads } else { 0 };
    let of_admin = if settings.admin.is_some() { admin::DESCRIPTORS } else { 0 };
    of_rings + cattlegrid_loader::descriptors(settings.loaders()) + of_admin
}

/// The number of open files that the server needs at most, with all connections of `-c`.
pub fn descriptors_at_most(settings: &Settings) -> u64 {
    sys::open_files(settings.connections_max, settings.threads, other_descriptors(settings))
}

/// Warns of files that root has read and that the final user cannot: a reload of them fails, and changes
/// nothing.
fn warn_of_files(settings: &Settings) {
    let user = settings.user.as_deref().unwrap_or_default();
    for NamedFile { by, path, .. } in settings.named_files() {
        if let Err(error) = cattlegrid_config::open_file(&path) {
            log::warning(format_args!(
                "{by} {}: {user} (-u) cannot read it ({}): no reload (SIGHUP) takes anything in; chgrp and chmod g+r it, or \
                 setfacl -m u:{user}:r",
                path.display(),
                sys::reason(&error),
            ));
        }
    }
}

/// Warns if the process is in a control group with less memory than the server may take: the system would
/// kill it.
fn warn_of_cgroup(settings: &Settings) {
    let taken = memory_at_most(settings) as u64;
    if let Some(most) = shortage::cgroup_memory_max().filter(|most| *most < taken) {
        log::warning(format_args!(
            "the control group has {} MiB of memory (memory.max), and -m with what connections may take beside it is {} MiB: \
             the system may kill the server; lower -m or raise memory.max",
            most >> 20,
            taken >> 20,
        ));
    }
}

/// The most memory that the server takes, in bytes, without its loaders' processes and the system's buffers
/// of sockets. The sum has items, kept input (twice, since displaced uploads are freed when their lanes have
/// acted), unsent replies, connections, the threads' buffers, and a constant for the process.
pub fn memory_at_most(settings: &Settings) -> usize {
    let caps = Caps::new(settings.item_bytes_max, settings.unsent_bytes);
    let one = if settings.tls.is_some() { CONNECTION_BYTES + TLS_BYTES } else { CONNECTION_BYTES };
    let watchers = crate::watch::WATCHERS_MAX * settings.watcher_buffer_bytes;
    let threads = settings.threads * (LANE_BYTES + settings.lane_log_buffer_bytes);
    [
        2 * caps.uploads_bytes,
        caps.unsent_bytes,
        settings.connections_max.saturating_mul(one),
        watchers,
        threads,
        OWN_BYTES,
    ]
    .into_iter()
    .fold(settings.memory_bytes, usize::saturating_add)
}

/// An idle connection with its entries in all tables, in bytes.
const CONNECTION_BYTES: usize = 2 << 10;
/// The addition for a connection with TLS, in bytes.
const TLS_BYTES: usize = 6 << 10;
/// A lane's buffers for a receive and for the replies of a batch, in bytes.
const LANE_BYTES: usize = 2 << 20;
/// The program itself, its log and its tables, in bytes.
const OWN_BYTES: usize = 12 << 20;
