//! The removal of variables that were meant for this process only.

use super::thread_count;

/// Removes variables from the environment if this process is known to have one thread; another thread could
/// be reading it.
pub(crate) fn scrub_env(names: &[&str]) {
    if thread_count() != Some(1) {
        return;
    }
    for name in names {
        // SAFETY: no other thread exists that could read or write the environment at the same time.
        unsafe { std::env::remove_var(name) };
    }
}
