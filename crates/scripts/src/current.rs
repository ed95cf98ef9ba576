//! The call that this thread runs, for library functions that the script calls.
//!
//! The VM calls a library function, and knows no lifetimes. The function reaches its call by [`with`],
//! through a pointer that [`enter`] keeps while the call runs.
//!
//! # Invariants
//! * The pointer is taken out while [`with`] runs, so that there is one reference at a time.

#![expect(unsafe_code, reason = "the call is reached through a pointer")]

use std::cell::Cell;
use std::ptr::NonNull;

use cattlegrid_objects::{FollowUp, PendingChanges, ScriptCall, ScriptWorld};

/// A call in progress.
pub(crate) struct CurrentCall<'a> {
    /// The method and its object.
    pub(crate) call: &'a ScriptCall<'a>,
    /// The data outside of the state that the call may read.
    pub(crate) world: &'a mut dyn ScriptWorld,
    /// The number of the call, unique for the thread: handles of other calls are refused.
    pub(crate) number: u64,
    /// The call's changes so far.
    pub(crate) written: CallEffects,
}

/// The changes and requests of a call so far.
#[derive(Debug, Default)]
pub(crate) struct CallEffects {
    pub(crate) fields: PendingChanges,
    /// The number of called methods of fields: each has its own random numbers.
    pub(crate) draws: u64,
    pub(crate) tags: Vec<Vec<u8>>,
    #[expect(clippy::option_option, reason = "no change is not the same as no end")]
    pub(crate) expires_ms: Option<Option<u64>>,
    pub(crate) after: Vec<FollowUp>,
    /// The hashes of tokens of `cg.once` for the new state, 8 bytes each; None: those of the old state.
    pub(crate) once: Option<Vec<u8>>,
    /// The state of `math.random`; None: it was not used yet.
    pub(crate) random: Option<u64>,
    /// The text of the last [`crate::library::Fail`] that the script has caught.
    pub(crate) caught: Option<String>,
    /// Whether a read found that an object has changed: the run must end, even if the script catches the
    /// error.
    pub(crate) has_moved: bool,
}

thread_local! {
    static CURRENT: Cell<Option<NonNull<CurrentCall<'static>>>> = const { Cell::new(None) };
    /// Whether a library function has panicked since the thread's last [`enter`].
    static HAS_PANICKED: Cell<bool> = const { Cell::new(false) };
}

/// Restores the previous pointer when it is dropped.
struct Restore(Option<NonNull<CurrentCall<'static>>>);

impl Drop for Restore {
    fn drop(&mut self) {
        CURRENT.set(self.0);
        if std::thread::panicking() {
            HAS_PANICKED.set(true);
        }
    }
}

/// Runs `run` with this call as the thread's.
pub(crate) fn enter<R>(current: &mut CurrentCall<'_>, run: impl FnOnce() -> R) -> R {
    // The lifetime is erased: `Restore` removes the pointer before `current` can be dropped.
    let pointer = NonNull::from(current).cast::<CurrentCall<'static>>();
    let _restore = Restore(CURRENT.replace(Some(pointer)));
    HAS_PANICKED.set(false);
    run()
}

/// Whether a library function has panicked in the thread's last call, even if a `coroutine.resume` of the
/// script took the panic for an error.
pub(crate) fn has_panicked() -> bool {
    HAS_PANICKED.get()
}

/// Calls `act` with the thread's call. None: no call runs, for example while sources are loaded, or this
/// `act` is within another one.
pub(crate) fn with<R>(act: impl FnOnce(&mut CurrentCall<'_>) -> R) -> Option<R> {
    let mut pointer = CURRENT.take()?;
    let _restore = Restore(Some(pointer));
    // SAFETY: `enter` has put the pointer there from a reference that it borrows until it has restored what
    // was before, and has not returned; the cell is empty while `act` runs, so there is no other reference.
    Some(act(unsafe { pointer.as_mut() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outside_of_a_call_there_is_none() {
        assert_eq!(with(|current| current.number), None);
    }
}
