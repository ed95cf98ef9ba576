//! The thread that writes the log, and the write itself.
//!
//! The thread may wait in a write for ever: for a pipe without a reader, or a stopped terminal. No other
//! thread waits for it longer than the time given to [`super::flush`], and the end of the process ends it. A
//! line that cannot be written (closed, disk full) is dropped and counted, and not tried again.

use std::io;
use std::os::fd::AsFd;
use std::sync::PoisonError;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::{LOG, LogLine, queue::BATCH_MAX, state};
use crate::time::unix_now;

/// The time between two checks for suppressed lines to report.
const LOOK: Duration = Duration::from_secs(1);

/// The body of the thread.
pub(super) fn run() {
    // Whether the last line was written in part.
    let mut torn = false;
    loop {
        let lines = next_lines();
        let mut text = if torn { "\n".to_owned() } else { String::new() };
        for line in &lines {
            text.push_str(&line.text());
        }
        let written = write(io::stderr(), text.as_bytes());
        let mut state = state();
        match written {
            Ok(()) => {
                torn = false;
                state.written += lines.len() as u64;
            }
            Err(partly) => {
                torn |= partly;
                state.queue.count_lost(&lines);
            }
        }
    }
}

/// Waits for lines.
fn next_lines() -> Vec<LogLine> {
    let mut state = state();
    loop {
        let flushing = state.flushing;
        state.queue.report_limited(unix_now(), flushing);
        let lines = state.queue.take();
        if !lines.is_empty() {
            state.writing = true;
            return lines;
        }
        (state.writing, state.flushing) = (false, false);
        LOG.idle.notify_all();
        state = if state.queue.is_limiting() {
            LOG.work.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0
        } else {
            LOG.work.wait(state).unwrap_or_else(PoisonError::into_inner)
        };
    }
}

/// Writes all of `text`, however long it takes.
///
/// # Errors
/// The write failed; true: after a part was written.
fn write(fd: impl AsFd, text: &[u8]) -> Result<(), bool> {
    let mut rest = text;
    while !rest.is_empty() {
        match rustix::io::write(&fd, rest) {
            Ok(n) => rest = &rest[n..],
            Err(Errno::INTR) => {}
            // Another process that shares the descriptor has made it non-blocking.
            Err(Errno::AGAIN) => {
                let mut fds = [PollFd::new(&fd, PollFlags::OUT)];
                let _ready = poll(&mut fds, None);
            }
            Err(_) => return Err(rest.len() < text.len()),
        }
    }
    Ok(())
}

/// Writes all of `text`, waiting at most `patience` for room. A pipe that is ready has room for [`BATCH_MAX`]
/// bytes, so that the write itself does not wait.
///
/// # Errors
/// `TimedOut` without room in time, otherwise the system's error.
pub(super) fn write_within(fd: impl AsFd, text: &[u8], patience: Duration) -> io::Result<()> {
    let patience =
        Timespec { tv_sec: patience.as_secs().cast_signed(), tv_nsec: patience.subsec_nanos().into() };
    for mut rest in text.chunks(BATCH_MAX) {
        while !rest.is_empty() {
            let mut fds = [PollFd::new(&fd, PollFlags::OUT)];
            match poll(&mut fds, Some(&patience)) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            match rustix::io::write(&fd, rest) {
                Ok(n) => rest = &rest[n..],
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, pipe};

    use super::*;

    #[test]
    fn a_pipe_that_nobody_reads_is_waited_for_no_longer_than_said() {
        let (mut reader, writer) = pipe().unwrap();
        let text = [b'x'; 3 * BATCH_MAX];
        let mut taken = 0;
        let error = loop {
            match write_within(&writer, &text, Duration::from_millis(1)) {
                Ok(()) => taken += text.len(),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(taken > 0);
        reader.read_exact(&mut vec![0; 2 * BATCH_MAX]).unwrap();
        write_within(&writer, b"room again", Duration::from_millis(1)).unwrap();
    }

    #[test]
    fn a_pipe_whose_reader_has_gone_is_an_error_and_no_end() {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        assert_eq!(write(&writer, b"a line\n"), Err(false));
        let error = write_within(&writer, b"a line\n", Duration::from_secs(9)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
