//! The sending side of a worker: frames are collected and written together.
//!
//! One write for all replies of a batch makes small jobs cheap. But a finished reply must not wait for a slow
//! job behind it, so before the next job starts:
//! * replies are written when their batch began more than [`HOLD`] ago;
//! * younger replies are left to the *flusher*, a thread that checks every [`LOOK`] while there are pending
//!   frames, and sleeps without a timer otherwise. It starts with the first such batch: a worker at load 1
//!   never has one.
//!
//! A loader's replies are all written before its next job starts ([`Outbox::hold_nothing`]): its clients wait
//! for them, and the next job may end the process.
//!
//! # Invariants
//! * Frames leave whole and in the order in which they were appended.
//! * A pending frame is written within about [`HOLD`] + [`LOOK`], or when its batch ends.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// The sending half of a worker's connection.
#[derive(Debug)]
pub(crate) struct Outbox {
    fd: OwnedFd,
    /// Frames not yet written. Held while writing, so that frames never interleave.
    pending: Mutex<OutputBuffer>,
    holds_nothing: AtomicBool,
    flusher: OnceLock<Thread>,
    /// The flusher sleeps without a timer and wants `unpark`.
    flusher_sleeps: AtomicBool,
}

/// How much memory an emptied buffer keeps: page faults cost more than the bytes of a long frame, so a buffer
/// stays long while long frames come.
#[derive(Debug, Default)]
pub(crate) struct Shrink {
    /// Short uses in a row.
    short: u32,
}

impl Shrink {
    /// Call when `buffer` was emptied after it had held `used` bytes.
    #[inline]
    pub(crate) fn after(&mut self, buffer: &mut Vec<u8>, used: usize) {
        self.short = if used > KEEP { 0 } else { self.short.saturating_add(1) };
        if buffer.capacity() > KEEP {
            buffer.shrink_to(if self.short < SHORT { KEEP_LONG } else { KEEP });
        }
    }
}

/// Frames not yet written.
#[derive(Debug, Default)]
pub(crate) struct OutputBuffer {
    /// Whole frames.
    pub(crate) bytes: Vec<u8>,
    shrink: Shrink,
    /// When the first job of their batch began; set by [`Outbox::before_job`].
    since: Option<Instant>,
}

impl Outbox {
    pub(crate) fn new(fd: OwnedFd) -> Arc<Self> {
        Arc::new(Self {
            fd,
            pending: Mutex::default(),
            holds_nothing: AtomicBool::new(false),
            flusher: OnceLock::new(),
            flusher_sleeps: AtomicBool::new(true),
        })
    }

    /// From now on replies are written before the next job starts.
    pub(crate) fn hold_nothing(&self) {
        self.holds_nothing.store(true, Ordering::Relaxed);
    }

    /// The pending bytes, to append frames to.
    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, OutputBuffer> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a frame with `write`, and sends at once when much has piled up.
    #[inline]
    pub(crate) fn push(&self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut pending = self.lock();
        write(&mut pending.bytes);
        if pending.bytes.len() >= FULL {
            self.write(&mut pending);
        }
    }

    /// Writes everything; blocks while the parent does not read.
    pub(crate) fn flush(&self) {
        let mut pending = self.lock();
        if !pending.bytes.is_empty() {
            self.write(&mut pending);
        }
    }

    /// Call between two jobs of one batch, which began at `batch`: see the module's rule.
    pub(crate) fn before_job(self: &Arc<Self>, batch: Instant) {
        let mut pending = self.lock();
        if pending.bytes.is_empty() {
            return;
        }
        let first = pending.since.is_none();
        let since = *pending.since.get_or_insert(batch);
        if self.holds_nothing.load(Ordering::Relaxed) || now().saturating_duration_since(since) > HOLD {
            return self.write(&mut pending);
        }
        if !first {
            return;
        }
        drop(pending);
        let flusher = self.flusher.get_or_init(|| self.start_flusher());
        if self.flusher_sleeps.swap(false, Ordering::SeqCst) {
            flusher.unpark();
        }
    }

    fn write(&self, pending: &mut OutputBuffer) {
        let mut rest = &pending.bytes[..];
        while !rest.is_empty() {
            match rustix::io::write(&self.fd, rest) {
                Ok(count) => rest = &rest[count..],
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => wait_writable(&self.fd),
                // The parent has gone, or has closed this connection: there is no work left.
                Err(_) => std::process::exit(0),
            }
        }
        let used = pending.bytes.len();
        pending.bytes.clear();
        pending.shrink.after(&mut pending.bytes, used);
        pending.since = None;
    }

    fn start_flusher(self: &Arc<Self>) -> Thread {
        let outbox = Arc::clone(self);
        let started = std::thread::Builder::new().name("flusher".into()).spawn(move || outbox.run_flusher());
        // Without a thread (a limit on processes) replies wait for their batch; nothing is lost.
        started.map_or_else(|_| std::thread::current(), |handle| handle.thread().clone())
    }

    fn run_flusher(&self) {
        let mut quiet = 0;
        loop {
            if quiet < QUIET {
                std::thread::park_timeout(LOOK);
            } else {
                self.flusher_sleeps.store(true, Ordering::SeqCst);
                std::thread::park();
                quiet = 0;
                continue;
            }
            quiet += 1;
            let mut pending = self.lock();
            if let Some(since) = pending.since {
                quiet = 0;
                if now() - since > HOLD {
                    self.write(&mut pending);
                }
            }
        }
    }
}

fn wait_writable(fd: &impl AsFd) {
    use rustix::event::{PollFd, PollFlags, poll};
    // An error here shows up again at the next write.
    poll(&mut [PollFd::new(fd, PollFlags::OUT)], None).ok();
}

#[expect(clippy::disallowed_methods, reason = "the file measures how long a finished reply has waited")]
fn now() -> Instant {
    Instant::now()
}

/// Sends an error and ends; for failures before the first job.
pub(crate) fn die(outbox: &Outbox, max_frame: u32, error: &crate::message::ErrorBody) -> ! {
    outbox.push(|out| error.put_within(out, 0, max_frame));
    outbox.flush();
    std::process::exit(1)
}

/// Whether `error` only means that a call should be repeated.
pub(crate) fn is_retry(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

/// How long a finished reply may wait for its batch.
const HOLD: Duration = Duration::from_micros(200);

/// Interval of the flusher's checks.
const LOOK: Duration = Duration::from_micros(400);

/// Checks without work before the flusher sleeps without a timer: 20 ms.
const QUIET: u32 = 50;

/// Pending bytes from which they are written at once.
const FULL: usize = 256 << 10;

/// Capacity kept between batches, bytes.
const KEEP: usize = 64 << 10;

/// The same while long frames are sent, bytes.
const KEEP_LONG: usize = 4 << 20;

/// Short batches after which the buffer shrinks again.
const SHORT: u32 = 16;

#[cfg(all(test, not(miri)))]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    #[test]
    fn a_buffer_stays_long_while_long_frames_come() {
        let mut shrink = Shrink::default();
        let mut buffer = Vec::with_capacity(1 << 20);
        shrink.after(&mut buffer, 1 << 20);
        (0..SHORT - 1).for_each(|_| shrink.after(&mut buffer, 10));
        assert!(buffer.capacity() >= 1 << 20);
        shrink.after(&mut buffer, 10);
        assert!(buffer.capacity() < 1 << 20);
        let mut buffer = Vec::with_capacity(KEEP_LONG * 2);
        shrink.after(&mut buffer, KEEP_LONG * 2);
        assert!(buffer.capacity() < KEEP_LONG * 2);
    }

    #[test]
    fn a_loaders_reply_leaves_before_its_next_job_starts() {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (parent, worker) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let outbox = Outbox::new(worker);
        outbox.hold_nothing();
        for reply in [&b"first"[..], b"other"] {
            outbox.push(|out| out.extend_from_slice(reply));
            outbox.before_job(now());
            let mut bytes = [0; 16];
            assert_eq!(rustix::io::read(&parent, &mut bytes), Ok(5), "it is there already");
        }
        assert!(outbox.flusher.get().is_none());
    }

    #[test]
    fn a_finished_reply_does_not_wait_for_the_job_behind_it() {
        let flags = SocketFlags::CLOEXEC;
        let (parent, worker) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let outbox = Outbox::new(worker);
        outbox.push(|out| out.extend_from_slice(b"first"));
        outbox.before_job(now());
        // The job "runs" without an end: this thread never calls the outbox again. Blocks until the reply
        // arrives.
        let mut bytes = [0; 16];
        assert_eq!(rustix::io::read(&parent, &mut bytes), Ok(5));
        // The same after the flusher went to sleep without a timer.
        while !outbox.flusher_sleeps.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        outbox.push(|out| out.extend_from_slice(b"second"));
        outbox.before_job(now());
        assert_eq!(rustix::io::read(&parent, &mut bytes), Ok(6));
    }
}
