//! Reloads, on a thread of their own, since a loader may take seconds to start. The control thread waits only
//! until the files are read, for a bounded time in which it lends a descriptor.
//!
//! One reload runs at a time. If another is requested meanwhile, it follows once, and reads the files as they
//! are then; a reload that waits for loaders is abandoned in its favour. A reload reads everything (SIGHUP),
//! or only the types of objects (their directory has changed).
//!
//! # Invariants
//! * After the last [`Reloads::ask`], a reload begins that reads the files again.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::log;
use crate::manager::Manager;
use crate::shared::Shared;

pub(crate) mod in_force;

/// The longest time that the control thread waits for files to be read; it accepts no connection meanwhile.
const LENT: Duration = Duration::from_millis(200);

/// The reloads of the server.
#[derive(Debug)]
pub(crate) struct Reloads {
    progress: Arc<Progress>,
    manager: Arc<Manager>,
}

/// The results of reloads.
#[derive(Debug, Default, Clone)]
pub(crate) struct ReloadStatus {
    /// The number of reloads that took effect.
    pub(crate) count: u64,
    /// The Unix time at the end of the last reload, or of the start.
    pub(crate) unix: u64,
    /// Why the last reload failed; None: it took effect.
    pub(crate) error: Option<String>,
}

impl ReloadStatus {
    /// Notes the end of a reload.
    pub(crate) fn note(&mut self, error: Option<String>, unix: u64) {
        self.count += u64::from(error.is_none());
        (self.unix, self.error) = (unix, error);
    }
}

#[derive(Debug, Default)]
struct Progress {
    state: Mutex<ReloadState>,
    /// Notifies that files were read.
    read: Condvar,
}

#[derive(Debug, Default)]
struct ReloadState {
    /// Whether the thread runs.
    runs: bool,
    /// Whether it is reading files.
    reads: bool,
    /// The scope of another reload that is requested.
    again: Option<ReloadScope>,
    /// Whether the service manager was told of a reload, and not yet of its end.
    is_told: bool,
}

/// The scope of a reload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ReloadScope {
    /// Users' own types of objects.
    Objects,
    /// All files.
    All,
}

impl Reloads {
    /// No reload runs. `manager` is told of reloads of all files.
    pub(crate) fn new(manager: Arc<Manager>) -> Self {
        Self { progress: Arc::default(), manager }
    }

    /// Requests a reload, now or after the one that runs. Returns when the files of a reload that begins now
    /// were read, or after [`LENT`]. It waits neither for loaders nor for the tests of types of objects.
    pub(crate) fn ask(&self, shared: &Arc<Shared>, extent: ReloadScope) {
        let mut state = lock(&self.progress);
        if extent == ReloadScope::All {
            // Set under the lock, so that its end is reported later.
            state.is_told = true;
            self.manager.reloading();
        }
        if state.runs {
            return state.again = state.again.max(Some(extent));
        }
        (state.runs, state.reads) = (true, true);
        drop(state);
        let (shared, progress) = (Arc::clone(shared), Arc::clone(&self.progress));
        let manager = Arc::clone(&self.manager);
        let thread = std::thread::Builder::new().name("reload".to_owned());
        if let Err(error) = thread.spawn(move || run(&shared, &progress, &manager, extent)) {
            let told = std::mem::take(&mut *lock(&self.progress)).is_told;
            if told {
                self.manager.reloaded(Some("no thread for it"));
            }
            return log::error(format_args!("nothing reloaded: no thread for it: {error}"));
        }
        let reads = |state: &mut ReloadState| state.reads;
        let waited = self.progress.read.wait_timeout_while(lock(&self.progress), LENT, reads);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

fn run(shared: &Arc<Shared>, progress: &Progress, manager: &Manager, mut extent: ReloadScope) {
    loop {
        let done = || {
            lock(progress).reads = false;
            progress.read.notify_all();
        };
        let reloaded = match extent {
            // A loader that does not become ready must not delay a corrected file.
            ReloadScope::All => shared.reload(done, || lock(progress).again != Some(ReloadScope::All)),
            ReloadScope::Objects => shared.reload_objects(),
        };
        let error = reloaded.as_ref().err().map(ToString::to_string);
        shared.reload_status().note(error.clone(), crate::time::unix_now().as_secs());
        match reloaded {
            Ok(()) => {
                if extent == ReloadScope::All {
                    let follows = shared.in_force().rule_file.as_ref().map(|file| file.follows.clone());
                    shared.follows.follow(shared, &follows.unwrap_or_default());
                }
                log::notice("reloaded");
            }
            Err(error) => {
                let text = error.to_string();
                let lines: Vec<_> = text.lines().map(|line| format!("nothing reloaded: {line}")).collect();
                log::lines(log::Level::Error, lines.join("\n"));
            }
        }
        let mut state = lock(progress);
        let again = std::mem::take(&mut state.again);
        (state.runs, state.reads) = (again.is_some(), false);
        progress.read.notify_all();
        let Some(again) = again else {
            // Checked under the lock: no reload was requested since.
            if std::mem::take(&mut state.is_told) {
                manager.reloaded(error.as_deref());
            }
            return;
        };
        extent = again;
    }
}

fn lock(progress: &Progress) -> MutexGuard<'_, ReloadState> {
    progress.state.lock().unwrap_or_else(PoisonError::into_inner)
}
