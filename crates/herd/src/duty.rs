//! A duty that must be discharged: in debug builds a value with an open duty panics when it is dropped.
//!
//! A type whose values must not be lost has a field of this type, and discharges it in the methods that pass
//! the value on. Release builds have neither the field's byte nor the check.

/// A duty that must be discharged; a debug build panics when it is dropped open.
#[derive(Debug)]
pub(crate) struct Duty {
    #[cfg(debug_assertions)]
    what: &'static str,
}

impl Duty {
    /// `what` must be done; it is shown in the panic message.
    pub(crate) fn new(what: &'static str) -> Self {
        #[cfg(debug_assertions)]
        return Self { what };
        #[cfg(not(debug_assertions))]
        {
            _ = what;
            Self {}
        }
    }

    /// The duty is done.
    pub(crate) fn discharge(self) {
        std::mem::forget(self);
    }
}

#[cfg(debug_assertions)]
impl Drop for Duty {
    fn drop(&mut self) {
        // A second panic while the first unwinds would end the process.
        assert!(std::thread::panicking(), "dropped before this was done: {}", self.what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_discharged_duty_does_not_panic() {
        Duty::new("nothing").discharge();
    }

    #[test]
    #[cfg_attr(debug_assertions, should_panic(expected = "was done: keep it"))]
    fn an_open_duty_panics_when_it_is_dropped() {
        drop(Duty::new("keep it"));
    }
}
