//! The call that this thread runs, for functions that the script calls.
//!
//! A function of the library is called by the VM, which knows nothing of lifetimes. It reaches its call by [`with`], through a
//! pointer that [`enter`] keeps for as long as the call runs.
//!
//! # Invariants
//! * The pointer is taken out while [`with`] runs, so there is one reference at a time.

#![expect(unsafe_code, reason = "the call is reached through a pointer")]

use std::cell::Cell;
use std::ptr::NonNull;

use cattlegrid_objects::{After, Pending, ScriptCall, World};

/// A call under way.
pub(crate) struct Current<'a> {
    /// What is called.
    pub(crate) call: &'a ScriptCall<'a>,
    /// Reads what is outside of the state.
    pub(crate) world: &'a mut dyn World,
    /// Another number for each call of the thread: handles of other calls are refused.
    pub(crate) number: u64,
    /// What has been written so far.
    pub(crate) written: CallEffects,
}

/// What a call has written so far.
#[derive(Debug, Default)]
pub(crate) struct CallEffects {
    pub(crate) fields: Pending,
    /// Methods of fields that were called: each draws its own random numbers.
    pub(crate) draws: u64,
    pub(crate) tags: Vec<Vec<u8>>,
    #[expect(clippy::option_option, reason = "no change is not the same as no end")]
    pub(crate) expires_ms: Option<Option<u64>>,
    pub(crate) after: Vec<After>,
    /// Hashes of tokens of `cg.once` that the state keeps, 8 bytes each; None: as it had them.
    pub(crate) once: Option<Vec<u8>>,
    /// State of `math.random`; None: it was not asked yet.
    pub(crate) random: Option<u64>,
    /// The text of the last [`crate::library::Fail`] that the script has caught.
    pub(crate) caught: Option<String>,
    /// A read found that an object has moved: the run must end, whatever the script catches.
    pub(crate) has_moved: bool,
}

thread_local! {
    static CURRENT: Cell<Option<NonNull<Current<'static>>>> = const { Cell::new(None) };
    /// A function of the library has panicked since the thread's last [`enter`].
    static HAS_PANICKED: Cell<bool> = const { Cell::new(false) };
}

/// Puts back what was there before.
struct Restore(Option<NonNull<Current<'static>>>);

impl Drop for Restore {
    fn drop(&mut self) {
        CURRENT.set(self.0);
        if std::thread::panicking() {
            HAS_PANICKED.set(true);
        }
    }
}

/// Runs `run` with this call as the thread's.
pub(crate) fn enter<R>(current: &mut Current<'_>, run: impl FnOnce() -> R) -> R {
    // The lifetime is erased: `Restore` takes the pointer out before `current` can go.
    let pointer = NonNull::from(current).cast::<Current<'static>>();
    let _restore = Restore(CURRENT.replace(Some(pointer)));
    HAS_PANICKED.set(false);
    run()
}

/// Whether a function of the library has panicked in the thread's last call, also if a `coroutine.resume` of the script took
/// the panic for an error.
pub(crate) fn has_panicked() -> bool {
    HAS_PANICKED.get()
}

/// Calls `act` with the thread's call; None: no call runs, as while sources are loaded, or `act` is called by another `act`.
pub(crate) fn with<R>(act: impl FnOnce(&mut Current<'_>) -> R) -> Option<R> {
    let mut pointer = CURRENT.take()?;
    let _restore = Restore(Some(pointer));
    // SAFETY: `enter` has put the pointer there from a reference that it borrows until it has restored what was before, and
    // has not returned; the cell is empty while `act` runs, so there is no other reference.
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
