//! A duty that must be discharged: in debug builds a value that bears one panics when it is dropped before.
//!
//! A type whose values must not get lost has a field of this type, and discharges it in the methods that pass the value on.
//! Release builds have neither the field's byte nor the check.

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Duty {
    #[cfg(debug_assertions)]
    what: &'static str,
}

impl Duty {
    /// `what` is to be done, for the message.
    pub(crate) fn new(what: &'static str) -> Self {
        #[cfg(debug_assertions)]
        return Self { what };
        #[cfg(not(debug_assertions))]
        {
            _ = what;
            Self {}
        }
    }

    /// It is done.
    pub(crate) fn discharge(self) {
        std::mem::forget(self);
    }
}

#[cfg(debug_assertions)]
impl Drop for Duty {
    fn drop(&mut self) {
        // A panic while another unwinds would end the process.
        assert!(std::thread::panicking(), "dropped, and this was to be done: {}", self.what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_discharged_is_quiet() {
        Duty::new("nothing").discharge();
    }

    #[test]
    #[cfg_attr(debug_assertions, should_panic(expected = "to be done: keep it"))]
    fn what_is_dropped_before_panics() {
        drop(Duty::new("keep it"));
    }
}
