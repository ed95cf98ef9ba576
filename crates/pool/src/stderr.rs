//! The default log: standard error, written by a thread of its own.
//!
//! Standard error may be closed, or a pipe without a reader. A pool must neither fail nor wait for that: it
//! hands its lines over and goes on. One thread, shared by all pools of the process, writes them; it may wait
//! without a limit. Lines that do not fit into [`ROOM`] are dropped and counted.
//!
//! # Invariants
//! * The lock is never held while something is written.
//! * Errors of standard error are ignored: there is no place left to report them to.

use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Hands bytes over; returns how many were dropped: all or none.
pub(crate) fn write(text: &[u8]) -> usize {
    let log = LOG.get_or_init(StderrLog::start);
    let mut state = log.lock();
    if !log.runs || state.bytes.len() + text.len() > ROOM {
        state.dropped += text.len() as u64;
        return text.len();
    }
    state.bytes.extend_from_slice(text);
    log.changed.notify_all();
    0
}

/// Waits until everything is written, or `limit` has passed.
pub(crate) fn flush(limit: Duration) {
    if let Some(log) = LOG.get() {
        let busy = |state: &mut LogBuffer| state.writing || !state.bytes.is_empty();
        drop(log.changed.wait_timeout_while(log.lock(), limit, busy));
    }
}

static LOG: OnceLock<StderrLog> = OnceLock::new();

struct StderrLog {
    state: Mutex<LogBuffer>,
    changed: Condvar,
    /// There is a thread that writes.
    runs: bool,
}

#[derive(Default)]
struct LogBuffer {
    bytes: Vec<u8>,
    writing: bool,
    /// Bytes dropped since the last line that reported them.
    dropped: u64,
}

impl StderrLog {
    fn start() -> Self {
        let thread = std::thread::Builder::new().name("pool-log".into()).spawn(|| {
            // A closed pipe is an error here and no signal, whatever the program does about SIGPIPE.
            cattlegrid_worker::sys::block_signals();
            LOG.wait().run();
        });
        Self { state: Mutex::default(), changed: Condvar::new(), runs: thread.is_ok() }
    }

    fn lock(&self) -> MutexGuard<'_, LogBuffer> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        loop {
            let mut state = self.lock();
            while state.bytes.is_empty() {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let mut bytes = std::mem::take(&mut state.bytes);
            if state.dropped > 0 {
                let note = format!("cattlegrid-pool: {} bytes of log were dropped\n", state.dropped);
                bytes.extend_from_slice(note.as_bytes());
                state.dropped = 0;
            }
            state.writing = true;
            drop(state);
            write_all(&bytes);
            self.lock().writing = false;
            self.changed.notify_all();
        }
    }
}

/// Does not use `std::io::stderr`: its lock would be held while this thread waits, and every `eprintln!` of
/// the program would wait, too.
fn write_all(mut bytes: &[u8]) {
    use rustix::event::{PollFd, PollFlags, poll};
    let stderr = rustix::stdio::stderr();
    while !bytes.is_empty() {
        match rustix::io::write(stderr, bytes) {
            Ok(0) => return,
            Ok(count) => bytes = &bytes[count..],
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => {
                poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], None).ok();
            }
            Err(_) => return,
        }
    }
}

/// Most bytes that wait to be written.
const ROOM: usize = 256 << 10;
