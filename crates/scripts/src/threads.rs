//! The VMs of a thread: one for each of the last two [`crate::Scripts`] that it has run, so that calls of an
//! older set can run while a newer one is in force.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use arrayvec::ArrayVec;

use crate::call::BoundVm;
use crate::raw_call;

/// The most VMs of a thread.
const KEPT: usize = 2;

thread_local! {
    /// The VMs with the numbers of their `Scripts`; the last used one is first.
    static VMS: RefCell<ArrayVec<(u64, Rc<BoundVm>), KEPT>> = const { RefCell::new(ArrayVec::new_const()) };
    /// Whether a VM was dropped that may have had much memory.
    static HAS_DROPPED: Cell<bool> = const { Cell::new(false) };
}

/// The thread's VM for the `Scripts` with this number, made by `open` if there is none.
pub(crate) fn vm<E>(number: u64, open: impl FnOnce() -> Result<BoundVm, E>) -> Result<Rc<BoundVm>, E> {
    let found = VMS.with_borrow_mut(|vms| {
        let place = vms.iter().position(|(own, _)| *own == number)?;
        if place > 0 {
            vms.swap(0, place);
        }
        Some(Rc::clone(&vms[0].1))
    });
    if let Some(found) = found {
        return Ok(found);
    }
    if HAS_DROPPED.take() {
        raw_call::give_back_memory();
    }
    let made = Rc::new(open()?);
    let old = VMS.with_borrow_mut(|vms| {
        let old = if vms.is_full() { vms.pop() } else { None };
        vms.insert(0, (number, Rc::clone(&made)));
        old
    });
    drop(old);
    Ok(made)
}

/// Drops the thread's VM for the `Scripts` with this number when it does not run any more. The next VM that
/// is opened first returns the memory to the system, which the allocator keeps otherwise, since other values
/// lie in between.
pub(crate) fn forget(number: u64) {
    let old = VMS.with_borrow_mut(|vms| {
        let place = vms.iter().position(|(own, _)| *own == number)?;
        Some(vms.remove(place))
    });
    drop(old);
    HAS_DROPPED.set(true);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use crate::vm::{Program, Vm};
    use std::sync::Arc;

    fn opened(number: u64) -> (Rc<BoundVm>, bool) {
        let mut is_new = false;
        let bound = vm(number, || {
            is_new = true;
            Vm::open(&Program::default(), &Limits::default()).map(|vm| BoundVm {
                vm,
                types: Vec::new(),
                bytes: Arc::default(),
                has_run: Cell::default(),
            })
        });
        (bound.unwrap_or_else(|error| panic!("{error:?}")), is_new)
    }

    #[test]
    fn a_thread_keeps_the_two_that_it_used_last() {
        assert_eq!([1, 1, 2, 1, 2].map(|number| opened(number).1), [true, false, true, false, false]);
        assert!(opened(3).1, "in the place of 1");
        assert_eq!([2, 3, 1].map(|number| opened(number).1), [false, false, true]);
        assert_eq!(VMS.with_borrow(ArrayVec::len), KEPT);
        forget(1);
        forget(1);
        assert_eq!(VMS.with_borrow(ArrayVec::len), 1);
        assert!(opened(1).1);
        let kept = opened(1).0;
        forget(1);
        assert_eq!(kept.vm.lua.load("return 1").eval::<u8>().ok(), Some(1), "it lives as long as it is used");
    }
}
