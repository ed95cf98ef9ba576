//! Reloads, on a thread of their own: a loader may take seconds to start. The control thread waits for the files to be read,
//! for which it lends a descriptor, and for nothing else.
//!
//! One reload runs at a time. Another one that is asked for while it runs follows it, once: it reads the files as they are
//! then.
//!
//! # Invariants
//! * After the last [`Reloads::ask`] a reload begins that reads the files anew.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::log;
use crate::state::Shared;

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Reloads(Arc<Progress>);

#[derive(Debug, Default)]
struct Progress {
    state: Mutex<State>,
    /// Files were read.
    read: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The thread runs.
    runs: bool,
    /// It reads files.
    reads: bool,
    /// Another reload is asked for.
    again: bool,
}

impl Reloads {
    /// Reads everything anew, now or after the reload that runs. Comes back when the files of a reload that begins now were
    /// read: it waits for no loader.
    pub(crate) fn ask(&self, shared: &Arc<Shared>) {
        let mut state = lock(&self.0);
        if state.runs {
            return state.again = true;
        }
        (state.runs, state.reads) = (true, true);
        drop(state);
        let (shared, progress) = (Arc::clone(shared), Arc::clone(&self.0));
        let thread = std::thread::Builder::new().name("reload".to_owned());
        if let Err(error) = thread.spawn(move || run(&shared, &progress)) {
            *lock(&self.0) = State::default();
            return log::error(format_args!("nothing reloaded: no thread for it: {error}"));
        }
        let reads = |state: &mut State| state.reads;
        drop(self.0.read.wait_while(lock(&self.0), reads).unwrap_or_else(PoisonError::into_inner));
    }
}

fn run(shared: &Shared, progress: &Progress) {
    loop {
        let done = || {
            lock(progress).reads = false;
            progress.read.notify_all();
        };
        match shared.reload(done) {
            Ok(()) => log::notice("reloaded"),
            Err(error) => {
                let text = error.to_string();
                let lines: Vec<_> = text.lines().map(|line| format!("nothing reloaded: {line}")).collect();
                log::lines(log::Level::Error, lines.join("\n"));
            }
        }
        let mut state = lock(progress);
        let again = std::mem::take(&mut state.again);
        (state.runs, state.reads) = (again, false);
        progress.read.notify_all();
        if !again {
            return;
        }
    }
}

fn lock(progress: &Progress) -> MutexGuard<'_, State> {
    progress.state.lock().unwrap_or_else(PoisonError::into_inner)
}
