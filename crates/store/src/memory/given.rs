//! What a thread has given back to memories: the use of a memory does not say it, since other threads take and
//! give back pages at the same time.

use std::cell::Cell;

use super::PAGE_BYTES;

thread_local! {
    /// Pages that this thread has given back, of all memories, less those that it has taken.
    static GIVEN: Cell<isize> = const { Cell::new(0) };
}

/// Pages were given back by this thread, or, below 0, taken.
#[inline]
pub(super) fn note(pages: isize) {
    GIVEN.set(GIVEN.get() + pages);
    #[cfg(test)]
    if pages > 0 {
        gift::call();
    }
}

/// What this thread has given back since this was made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GivenBack(isize);

impl GivenBack {
    /// Nothing yet.
    pub(crate) fn new() -> Self {
        Self(GIVEN.get())
    }

    /// The bytes, less those that it has taken; 0 when it has taken more.
    pub(crate) fn bytes(self) -> usize {
        usize::try_from(GIVEN.get() - self.0).unwrap_or(0) * PAGE_BYTES
    }
}

/// What a test does between what a thread gives back and its next step, as another thread may at any time.
#[cfg(test)]
pub(crate) mod gift {
    use std::cell::RefCell;

    type Gift = Box<dyn FnMut()>;

    thread_local! {
        static DONE: RefCell<Option<Gift>> = const { RefCell::new(None) };
    }

    /// While this exists, what [`at_gift`] was given is called.
    pub(crate) struct AtGift;

    impl Drop for AtGift {
        fn drop(&mut self) {
            let done = DONE.take();
            // What it has taken goes back now.
            drop(done);
        }
    }

    /// Calls `done` whenever this thread has given pages back.
    pub(crate) fn at_gift(done: impl FnMut() + 'static) -> AtGift {
        DONE.set(Some(Box::new(done)));
        AtGift
    }

    pub(super) fn call() {
        // Not for what it gives back itself.
        let Some(mut done) = DONE.take() else { return };
        done();
        DONE.set(Some(done));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;

    #[test]
    fn what_others_take_and_give_back_does_not_count() {
        let memory = Memory::new(64 * PAGE_BYTES).expect("a little memory");
        let own = memory.scattered(8 * PAGE_BYTES).expect("it is free");
        let given = GivenBack::new();
        let theirs = std::thread::scope(|scope| {
            let take = || memory.scattered(30 * PAGE_BYTES).expect("it is free");
            scope.spawn(take).join().expect("it does not panic")
        });
        drop(own);
        assert_eq!((memory.used_bytes(), given.bytes()), (30 * PAGE_BYTES, 8 * PAGE_BYTES));
        std::thread::scope(|scope| scope.spawn(move || drop(theirs)).join().expect("it does not panic"));
        assert_eq!((memory.used_bytes(), given.bytes()), (0, 8 * PAGE_BYTES));
        let more = memory.aligned(16 * PAGE_BYTES).expect("it is free");
        assert_eq!(given.bytes(), 0, "it has taken more");
        drop(more);
        assert_eq!(given.bytes(), 8 * PAGE_BYTES);
    }
}
