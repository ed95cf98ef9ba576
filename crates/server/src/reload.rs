//! Reloads, on a thread of their own: a loader may take seconds to start, and the control thread waits for nothing.
//!
//! One reload runs at a time. Another one that is asked for while it runs follows it, once: it reads the files as they are
//! then.
//!
//! # Invariants
//! * After the last [`Reloads::ask`] a reload begins that reads the files anew.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::log;
use crate::state::Shared;

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Reloads(Arc<Mutex<State>>);

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
    /// Reads everything anew, now or after the reload that runs.
    pub(crate) fn ask(&self, shared: &Arc<Shared>) {
        let mut state = lock(&self.0);
        if state.runs {
            return state.again = true;
        }
        (state.runs, state.reads) = (true, true);
        drop(state);
        let (shared, state) = (Arc::clone(shared), Arc::clone(&self.0));
        let thread = std::thread::Builder::new().name("reload".to_owned());
        if let Err(error) = thread.spawn(move || run(&shared, &state)) {
            *lock(&self.0) = State::default();
            log::error(format_args!("nothing reloaded: no thread for it: {error}"));
        }
    }

    /// Whether files are read now, each of which needs a descriptor.
    pub(crate) fn reads(&self) -> bool {
        lock(&self.0).reads
    }
}

fn run(shared: &Shared, state: &Mutex<State>) {
    loop {
        match shared.reload(|| lock(state).reads = false) {
            Ok(()) => log::notice("reloaded"),
            Err(error) => {
                let text = error.to_string();
                let lines: Vec<_> = text.lines().map(|line| format!("nothing reloaded: {line}")).collect();
                log::lines(log::Level::Error, lines.join("\n"));
            }
        }
        let mut state = lock(state);
        let again = std::mem::take(&mut state.again);
        (state.runs, state.reads) = (again, again);
        if !again {
            return;
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
