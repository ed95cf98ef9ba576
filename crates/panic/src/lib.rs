//! The consequence of a panic: it ends the process, or only the code that a thread runs guarded.
//!
//! A program calls [`install`] first. From then on a panic is printed and aborts the process, unless its
//! thread runs inside [`guarded`]: then it is printed, unwinds to there and is an error like any other. The
//! pool runs callbacks so, a worker its jobs. While a thread has an [`Unguarded`], as it has with each
//! shard's lock, its panics abort even inside `guarded`: what the lock guards may be half changed, and must
//! not go on serving.
//!
//! Two numbers of the thread decide, and are read by the panic hook, before anything unwinds: how many
//! `guarded` it is in, and how many `Unguarded` it has. Neither reading nor changing them takes a lock or
//! allocates.
//!
//! | what panics | what happens |
//! |---|---|
//! | code in `guarded` | an error of that call; the thread goes on |
//! | the same, `guarded` in `guarded` | an error of the inner call; the outer one goes on |
//! | code with an `Unguarded`, whether made inside or outside `guarded` | abort |
//! | a thread that guarded code has started | abort: no thread inherits a guard |
//! | a guarded thread while another one has an `Unguarded` | an error: each thread has its own numbers |
//! | a destructor, while a panic unwinds through it | abort, by the language: a second panic cannot unwind |
//! | the destructor of the panic's payload | printed; the payload's memory is not given back |
//! | guarded code that has a standard mutex locked | an error, and the mutex is poisoned: see below |
//!
//! A standard mutex is no [`Unguarded`]. Where its data is valid after every statement its owner ignores the
//! poison; elsewhere the next `lock().expect()` panics, which aborts in a thread that is not guarded, and
//! fails one more call in one that is. The half changed data is not used either way.
//!
//! In a program that has not called [`install`] `guarded` catches all panics, also with an `Unguarded`; a
//! shard's lock is then poisoned, and every later use of that shard panics.
//!
//! # Invariants
//! * With the hook installed no panic unwinds past an [`Unguarded`].
//! * [`guarded`] never unwinds.

use std::any::Any;
use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

/// Makes panics of unguarded threads abort the process, after the panic hook of before has printed them.
/// Calling it again changes nothing.
///
/// A program that sets a panic hook later by itself takes this one out; [`print_with`] keeps it.
///
/// # Panics
/// In a thread that is panicking.
pub fn install() {
    if !ABORTS.swap(true, Ordering::SeqCst) {
        print_with(std::panic::take_hook());
    }
}

/// Prints panics with `print` from now on, instead of the hook of before; whether they abort stays as it is.
/// A panic in `print` aborts.
///
/// # Panics
/// In a thread that is panicking.
pub fn print_with(print: impl Fn(&PanicHookInfo<'_>) + Send + Sync + 'static) {
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        if ABORTS.load(Ordering::SeqCst) && !is_guarded() {
            std::process::abort();
        }
    }));
}

/// Runs `code`; a panic in it costs no more than its result. May be nested, without a limit.
///
/// What `code` has half changed when it panics is as it left it. Values that it owns are dropped on the way,
/// also guarded.
///
/// # Errors
/// The panic's text, when `code` panics.
pub fn guarded<R>(code: impl FnOnce() -> R) -> Result<R, Panic> {
    caught(code).map_err(|payload| {
        let text = payload.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        // The destructor of a payload may panic, and that of the payload of this panic, and so on.
        if let Err(endless) = caught(|| drop(payload)) {
            std::mem::forget(endless);
        }
        Panic { text }
    })
}

fn caught<R>(code: impl FnOnce() -> R) -> Result<R, Box<dyn Any + Send>> {
    GUARDS.set(GUARDS.get() + 1);
    let result = catch_unwind(AssertUnwindSafe(code));
    GUARDS.set(GUARDS.get() - 1);
    result
}

/// Whether a panic of this thread would go no further than the [`guarded`] that it is in.
pub fn is_guarded() -> bool {
    GUARDS.get() > 0 && UNGUARDED.get() == 0
}

/// A panic that [`guarded`] has caught. It has been printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Panic {
    text: Option<String>,
}

impl Panic {
    /// The text that was given to `panic!`; `None` if it was not text.
    pub fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }
}

/// While it lives, panics of this thread abort the process, inside [`guarded`] as well. Costs an addition and
/// a subtraction. It stays with its thread.
#[derive(Debug)]
pub struct Unguarded(PhantomData<*const ()>);

impl Unguarded {
    /// From now on.
    #[inline]
    #[expect(clippy::new_without_default, reason = "it is an act, not a value")]
    pub fn new() -> Self {
        UNGUARDED.set(UNGUARDED.get() + 1);
        Self(PhantomData)
    }
}

impl Drop for Unguarded {
    #[inline]
    fn drop(&mut self) {
        UNGUARDED.set(UNGUARDED.get() - 1);
    }
}

/// Panics of unguarded threads abort.
static ABORTS: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// How many [`guarded`] this thread is in.
    static GUARDS: Cell<usize> = const { Cell::new(0) };
    /// How many [`Unguarded`] this thread has.
    static UNGUARDED: Cell<usize> = const { Cell::new(0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_guarded_inside_guarded_and_without_unguarded() {
        assert!(!is_guarded());
        guarded(|| {
            assert!(is_guarded());
            let outer = Unguarded::new();
            assert!(!is_guarded());
            let inner = Unguarded::new();
            drop(outer);
            assert!(!is_guarded(), "in any order");
            guarded(|| assert!(!is_guarded(), "inside an Unguarded nothing is guarded")).unwrap();
            drop(inner);
            assert!(is_guarded());
            assert!(!std::thread::spawn(is_guarded).join().unwrap(), "no thread inherits it");
        })
        .unwrap();
        assert!(!is_guarded());
    }

    #[test]
    fn a_panic_ends_the_inner_one_and_leaves_the_numbers_as_they_were() {
        let outer = guarded(|| {
            let inner = guarded(|| {
                // What std's hook prints goes to the output of this test.
                let _unguarded = Unguarded::new();
                guarded(|| ()).unwrap();
                panic!("number {}", 7)
            });
            assert_eq!(inner.unwrap_err().text(), Some("number 7"));
            assert!(is_guarded());
            "went on"
        });
        assert_eq!(outer, Ok("went on"));
        assert_eq!((GUARDS.get(), UNGUARDED.get()), (0, 0));
    }

    #[test]
    fn the_text_is_what_panic_was_given() {
        let text = |code: fn()| guarded(code).unwrap_err().text().map(str::to_owned);
        assert_eq!(text(|| panic!("as it is")).as_deref(), Some("as it is"));
        assert_eq!(text(|| std::panic::panic_any(7)), None);
    }

    /// A value whose destructor panics with another one, `.0` times.
    struct Bomb(u32);

    impl Drop for Bomb {
        fn drop(&mut self) {
            if self.0 > 0 {
                std::panic::panic_any(Self(self.0 - 1));
            }
        }
    }

    #[test]
    fn the_destructor_of_a_payload_may_panic() {
        for depth in 0..4 {
            assert_eq!(guarded(|| std::panic::panic_any(Bomb(depth))), Err(Panic { text: None }));
            assert_eq!((GUARDS.get(), UNGUARDED.get()), (0, 0));
        }
    }

    #[test]
    fn code_that_unwinds_may_guard_in_its_destructors() {
        struct Guards;
        impl Drop for Guards {
            fn drop(&mut self) {
                assert!(is_guarded(), "the panic that unwinds is not caught yet");
                assert_eq!(guarded(|| panic!("the second")).unwrap_err().text(), Some("the second"));
            }
        }
        let caught = guarded(|| {
            let _guards = Guards;
            panic!("the first")
        });
        assert_eq!(caught.unwrap_err().text(), Some("the first"));
    }
}
