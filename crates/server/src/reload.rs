//! Reloads, on a thread of their own: a loader may take seconds to start. The control thread waits for the files to be read,
//! for which it lends a descriptor, for a bounded time, and for nothing else.
//!
//! One reload runs at a time. Another one that is asked for while it runs follows it, once: it reads the files as they are
//! then. A reload that still waits for loaders gives way to it. A reload reads everything (SIGHUP), or the types of objects only (their directory has changed).
//!
//! # Invariants
//! * After the last [`Reloads::ask`] a reload begins that reads the files anew.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::log;
use crate::manager::Manager;
use crate::shared::Shared;

pub(crate) mod in_force;

/// How long the control thread waits for files to be read: it accepts no connection meanwhile.
const LENT: Duration = Duration::from_millis(200);

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Reloads {
    progress: Arc<Progress>,
    manager: Arc<Manager>,
}

/// How reloads have gone.
#[derive(Debug, Default, Clone)]
pub(crate) struct ReloadStatus {
    /// Reloads that have taken effect.
    pub(crate) count: u64,
    /// Unix time at the end of the last one, or of the start.
    pub(crate) unix: u64,
    /// Why the last one has changed nothing.
    pub(crate) error: Option<String>,
}

impl ReloadStatus {
    /// A reload has ended.
    pub(crate) fn note(&mut self, error: Option<String>, unix: u64) {
        self.count += u64::from(error.is_none());
        (self.unix, self.error) = (unix, error);
    }
}

#[derive(Debug, Default)]
struct Progress {
    state: Mutex<ReloadState>,
    /// Files were read.
    read: Condvar,
}

#[derive(Debug, Default)]
struct ReloadState {
    /// The thread runs.
    runs: bool,
    /// It reads files.
    reads: bool,
    /// Another reload is asked for.
    again: Option<Extent>,
    /// The service manager was told of a reload, and not yet of its end.
    is_told: bool,
}

/// What is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Extent {
    /// The types of objects of users' own.
    Objects,
    /// All files.
    All,
}

impl Reloads {
    /// None runs; the service manager is told of those of all files.
    pub(crate) fn new(manager: Arc<Manager>) -> Self {
        Self { progress: Arc::default(), manager }
    }

    /// Reads anew, now or after the reload that runs. Comes back when the files of a reload that begins now were read, or
    /// after [`LENT`]: it waits for no loader, and not for the tests of types of objects.
    pub(crate) fn ask(&self, shared: &Arc<Shared>, extent: Extent) {
        let mut state = lock(&self.progress);
        if extent == Extent::All {
            // Under the lock: its end is told after it.
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

fn run(shared: &Arc<Shared>, progress: &Progress, manager: &Manager, mut extent: Extent) {
    loop {
        let done = || {
            lock(progress).reads = false;
            progress.read.notify_all();
        };
        let reloaded = match extent {
            // A loader that does not get ready must not keep back what was mended since.
            Extent::All => shared.reload(done, || lock(progress).again != Some(Extent::All)),
            Extent::Objects => shared.reload_objects(),
        };
        let error = reloaded.as_ref().err().map(ToString::to_string);
        shared.reload_status().note(error.clone(), crate::time::unix_now().as_secs());
        match reloaded {
            Ok(()) => {
                if extent == Extent::All {
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
            // Under the lock: no reload was asked for since.
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
