//! Signals as a readable descriptor.
//!
//! [`Signals::block`] must run before the first thread starts: threads inherit the mask, so that no signal
//! interrupts them and all arrive here. A program that is started with `std::process::Command` gets an empty
//! mask again.
//!
//! # Invariants
//! * The first SIGTERM, SIGINT or SIGUSR1 is [`Signal::Drain`], each later one [`Signal::LeaveNow`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigHandler, SigSet, Signal as Number};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// A signal's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Stop accepting, answer held requests, then end.
    Drain,
    /// End at once.
    LeaveNow,
    /// Read certificates and the authentication file again.
    Reload,
}

/// The signals of the process.
#[derive(Debug)]
pub struct Signals {
    fd: SignalFd,
    draining: bool,
}

impl Signals {
    /// Blocks SIGTERM, SIGINT, SIGHUP and SIGUSR1 for this thread and those it starts, and ignores SIGPIPE.
    pub fn block() -> io::Result<Self> {
        let mut set = SigSet::empty();
        for number in [Number::SIGTERM, Number::SIGINT, Number::SIGHUP, Number::SIGUSR1] {
            set.add(number);
        }
        set.thread_block()?;
        crate::sys::set_handler(Number::SIGPIPE, SigHandler::SigIgn)?;
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Self { fd, draining: false })
    }

    /// The next signal, if one has arrived; never waits.
    ///
    /// Poll the descriptor for reading, then call this until it returns None. Signals that were sent
    /// several times since the last call may arrive once: a second SIGTERM that is sent before the first is
    /// delivered counts as one.
    ///
    /// # Errors
    /// The descriptor cannot be read.
    #[expect(clippy::should_implement_trait, reason = "an error must reach the caller, and none is no end")]
    pub fn next(&mut self) -> io::Result<Option<Signal>> {
        let Some(info) = self.fd.read_signal()? else { return Ok(None) };
        let number = i32::try_from(info.ssi_signo).unwrap_or_default();
        if number == Number::SIGHUP as i32 {
            return Ok(Some(Signal::Reload));
        }
        let signal = if self.draining { Signal::LeaveNow } else { Signal::Drain };
        self.draining = true;
        Ok(Some(signal))
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::pthread::{pthread_kill, pthread_self};

    use super::*;

    /// Signals are sent to this thread alone, so that other tests do not see them.
    #[test]
    fn the_second_request_to_leave_is_to_leave_at_once() {
        let mut signals = Signals::block().unwrap();
        assert_eq!(signals.next().unwrap(), None);
        let mut send = |number| {
            pthread_kill(pthread_self(), number).unwrap();
            let signal = signals.next().unwrap();
            assert_eq!(signals.next().unwrap(), None);
            signal
        };
        assert_eq!(send(Number::SIGHUP), Some(Signal::Reload));
        assert_eq!(send(Number::SIGUSR1), Some(Signal::Drain));
        assert_eq!(send(Number::SIGHUP), Some(Signal::Reload));
        assert_eq!(send(Number::SIGINT), Some(Signal::LeaveNow));
        assert_eq!(send(Number::SIGTERM), Some(Signal::LeaveNow));
        pthread_kill(pthread_self(), Number::SIGPIPE).unwrap();
        assert_eq!(signals.next().unwrap(), None);
    }
}
