//! The receiving side of a worker: the job socket, read in batches, and cancellations seen early.
//!
//! A job that asks whether it is cancelled reads ahead; those bytes are kept for the loop.
//!
//! # Invariants
//! * A worker ends when its parent closes the socket, or breaks the protocol.
//! * Bytes are handed on in order, whether they were read by the loop or ahead.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::control::receive_with_fds;
use crate::frame::{HEADER_LEN, Header, Kind, MAX_FRAME_DEFAULT, START_MAX, VERSION, take_frame};
use crate::message::{ErrorBody, Hello, Init};
use crate::outbox::{Outbox, Shrink, die, is_retry};
use crate::sys::Page;

/// A worker's connection to its parent.
#[derive(Debug)]
pub(crate) struct Link {
    rx: OwnedFd,
    /// Where replies go.
    pub(crate) outbox: Arc<Outbox>,
    /// The claims of this worker's jobs.
    pub(crate) claimed: ClaimTracker,
    /// Longest body that the parent accepts; before INIT, the length that every parent accepts.
    pub(crate) max_frame: u32,
    /// Number of this worker.
    pub(crate) worker: u64,
    /// Generation of the program.
    pub(crate) generation: u32,
    /// Bytes read while a job was running (it asked whether it is cancelled).
    ahead: Vec<u8>,
    scan: CancelScan,
    shrink: Shrink,
    /// When the last bytes arrived; deadlines are counted from here.
    pub(crate) received: Instant,
    /// RETIRE was asked for or received.
    pub(crate) leaving: bool,
}

impl Link {
    /// Sends HELLO and reads INIT; returns the link and the configuration bytes.
    ///
    /// Ends the process when the parent goes away or breaks the protocol.
    pub(crate) fn open(rx: OwnedFd, tx: OwnedFd, serves: ServeMode, is_socket: bool) -> (Self, Vec<u8>) {
        let outbox = Outbox::new(tx);
        let hello = Hello {
            version: VERSION,
            page: is_socket,
            claims: is_socket,
            batches: matches!(serves, ServeMode::Batches(_)),
            pid: std::process::id(),
            concurrency: match serves {
                ServeMode::Jobs(at_once) | ServeMode::Batches(at_once) => at_once,
            },
            max_frame: MAX_FRAME_DEFAULT,
            sdk: concat!("rust/", env!("CARGO_PKG_VERSION")).into(),
        };
        outbox.push(|out| hello.put(out));
        let mut link = Self {
            rx,
            outbox,
            claimed: ClaimTracker::default(),
            max_frame: START_MAX,
            worker: 0,
            generation: 0,
            ahead: Vec::new(),
            scan: CancelScan::default(),
            shrink: Shrink::default(),
            received: now(),
            leaving: false,
        };
        let config = link.read_init(is_socket);
        (link, config)
    }

    fn read_init(&mut self, is_socket: bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        loop {
            match take_frame(&bytes, MAX_FRAME_DEFAULT) {
                Ok(Some((header, body, rest))) if header.kind == Kind::Init => {
                    let Some(init) = Init::parse(body) else { break };
                    self.max_frame = init.max_frame;
                    (self.worker, self.generation) = (init.worker, init.generation);
                    let config = init.config.to_vec();
                    self.scan.feed(rest);
                    self.ahead = rest.to_vec();
                    return config;
                }
                Ok(None) => {}
                Ok(Some(_)) | Err(_) => break,
            }
            let mut chunk = [0; 4096];
            let (count, fds) = self.receive(&mut chunk, is_socket);
            if count == 0 {
                std::process::exit(0);
            }
            bytes.extend_from_slice(&chunk[..count]);
            if let Some(fd) = fds.first() {
                match Page::map(fd) {
                    Ok(page) => self.claimed.page = Some(page),
                    Err(error) => self.refuse("setup", &format!("the progress page: {error}")),
                }
            }
        }
        self.refuse("protocol", "expected INIT")
    }

    /// Sends the reason why this worker cannot start, and ends the process.
    fn refuse(&self, code: &str, message: &str) -> ! {
        let (code, message) = (code.into(), message.into());
        die(
            &self.outbox,
            self.max_frame,
            &ErrorBody { code, message, detail: String::new(), retryable: false },
        )
    }

    /// Waits for bytes. HELLO goes out first, unless there is no need to wait: then it goes with READY.
    fn receive(&self, chunk: &mut [u8], is_socket: bool) -> (usize, Vec<OwnedFd>) {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if !matches!(poll(&mut [PollFd::new(&self.rx, PollFlags::IN)], Some(&now)), Ok(1..)) {
            self.outbox.flush();
        }
        loop {
            let got = if is_socket {
                receive_with_fds(self.rx.as_fd(), chunk).map(|(count, fds, flags)| {
                    if flags.contains(rustix::net::ReturnFlags::CTRUNC) {
                        self.refuse("setup", "no descriptor is free for the progress page");
                    }
                    (count, fds)
                })
            } else {
                rustix::io::read(&self.rx, &mut *chunk).map(|count| (count, Vec::new())).map_err(Into::into)
            };
            match got {
                Ok(got) => return got,
                Err(error) if is_retry(&error) => self.wait(),
                Err(_) => std::process::exit(0),
            }
        }
    }

    fn wait(&self) {
        use rustix::event::{PollFd, PollFlags, poll};
        poll(&mut [PollFd::new(&self.rx, PollFlags::IN)], None).ok();
    }

    /// Reads more into `buffer`, whose first `used` bytes are processed; the `whole` bytes behind them are
    /// whole frames. Blocks for at least one byte.
    ///
    /// Ends the process when the parent has closed: a worker does not outlive its parent.
    pub(crate) fn fill(&mut self, buffer: &mut Vec<u8>, used: usize, whole: usize) {
        if used == buffer.len() {
            buffer.clear();
            self.shrink.after(buffer, used);
        } else {
            buffer.drain(..used);
        }
        if !self.ahead.is_empty() {
            buffer.append(&mut self.ahead);
            return;
        }
        // A long frame is read in as few calls as the socket allows.
        let part = &buffer[whole..];
        let missing = match Header::decode(part, u32::MAX) {
            Ok(Some(header)) => (HEADER_LEN + header.len as usize).saturating_sub(part.len()),
            _ => 0,
        };
        let room = BUFFER - part.len().min(BUFFER - 4096);
        buffer.reserve(missing.max(room));
        let start = buffer.len();
        loop {
            match rustix::io::read(&self.rx, rustix::buffer::spare_capacity(buffer)) {
                Ok(0) => std::process::exit(0),
                Ok(_) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => self.wait(),
                Err(_) => std::process::exit(0),
            }
        }
        self.received = now();
        self.scan.feed(&buffer[start..]);
    }

    /// Looks for a CANCEL of `id` without blocking: one `poll`, and a `read` when something came.
    pub(crate) fn is_cancelled(&mut self, id: u64) -> bool {
        use rustix::event::{PollFd, PollFlags, poll};
        let zero = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        while !self.scan.contains(id) && self.ahead.len() < AHEAD_MAX {
            let mut poll_fd = [PollFd::new(&self.rx, PollFlags::IN)];
            if !matches!(poll(&mut poll_fd, Some(&zero)), Ok(1..)) {
                break;
            }
            let start = self.ahead.len();
            self.ahead.reserve(BUFFER);
            match rustix::io::read(&self.rx, rustix::buffer::spare_capacity(&mut self.ahead)) {
                Ok(count) if count > 0 => self.scan.feed(&self.ahead[start..]),
                // The parent has gone, which counts as a cancellation.
                _ => return true,
            }
        }
        self.scan.contains(id)
    }

    /// Whether a CANCEL for `id` has been read; forgets it.
    #[inline]
    pub(crate) fn take_cancelled(&mut self, id: u64) -> bool {
        self.scan.take(id)
    }

    /// When a job with `deadline_ms` left on arrival must be done.
    pub(crate) fn deadline(&self, deadline_ms: u32) -> Option<Instant> {
        (deadline_ms > 0).then(|| self.received + Duration::from_millis(deadline_ms.into()))
    }

    /// Asks to be retired; once.
    pub(crate) fn leave(&mut self) {
        if !std::mem::replace(&mut self.leaving, true) {
            self.outbox.push(|out| crate::frame::put_frame(out, Kind::Leave, 0, 0, |_| {}));
        }
    }

    /// Takes the reading half away, for a reader thread.
    pub(crate) fn into_parts(self) -> (OwnedFd, Vec<u8>, Arc<Outbox>, ClaimTracker, u32) {
        (self.rx, self.ahead, self.outbox, self.claimed, self.max_frame)
    }
}

/// A link that the loop and the jobs of a synchronous worker use. A job may be handed to another thread
/// during its call.
#[derive(Debug)]
pub(crate) struct LinkState(Mutex<Link>);

impl LinkState {
    pub(crate) fn new(link: Link) -> Self {
        Self(Mutex::new(link))
    }

    /// The link, when no job is under way.
    #[inline]
    pub(crate) fn own(&mut self) -> &mut Link {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// The link, for a job. Never held while code of the program runs.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Link> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where replies go, and the longest body that the parent accepts.
    pub(crate) fn outbox(&self) -> (Arc<Outbox>, u32) {
        let link = self.lock();
        (Arc::clone(&link.outbox), link.max_frame)
    }
}

/// The kind of a worker, which HELLO says.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ServeMode {
    /// This many jobs at the same time, from 1.
    Jobs(u32),
    /// One batch at a time, of at most this many jobs, 1 to 65535.
    Batches(u32),
}

#[expect(clippy::disallowed_methods, reason = "a worker's deadlines count from the arrival of a job")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The jobs of a worker by their numbers, in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct ClaimTracker {
    /// Absent over pipes.
    page: Option<Page>,
    /// Jobs claimed so far.
    count: u64,
}

impl ClaimTracker {
    /// Claims the next job that came. False when it was taken back: it must not be begun.
    #[inline]
    pub(crate) fn next(&mut self) -> bool {
        self.skip_of(1) == 0
    }

    /// Claims the next `jobs` that came, together. Returns how many of them were taken back: the first ones,
    /// which must not be begun.
    #[inline]
    pub(crate) fn skip_of(&mut self, jobs: u64) -> u64 {
        let numbers = self.count..self.count + jobs;
        self.count = numbers.end;
        self.page.as_ref().map_or(0, |page| page.claims().claim(numbers.clone()).start - numbers.start)
    }
}

/// The ids of the CANCEL frames in a stream that arrives in these parts, for the fuzz target `frames`.
#[cfg(fuzzing)]
pub fn cancels_in<'a>(parts: impl Iterator<Item = &'a [u8]>) -> Vec<u64> {
    let mut scan = CancelScan::default();
    parts.for_each(|part| scan.feed(part));
    scan.ids
}

/// Follows the byte stream and notes the ids of CANCEL frames before the loop reaches them.
#[derive(Debug, Default)]
struct CancelScan {
    head: [u8; HEADER_LEN],
    have: usize,
    skip: usize,
    ids: Vec<u64>,
}

impl CancelScan {
    fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.skip > 0 {
                let step = self.skip.min(bytes.len());
                self.skip -= step;
                bytes = &bytes[step..];
                continue;
            }
            let step = (HEADER_LEN - self.have).min(bytes.len());
            self.head[self.have..self.have + step].copy_from_slice(&bytes[..step]);
            self.have += step;
            bytes = &bytes[step..];
            if self.have < HEADER_LEN {
                return;
            }
            self.have = 0;
            let [l0, l1, l2, l3, kind, _, _, _, i0, i1, i2, i3, i4, i5, i6, i7] = self.head;
            self.skip = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
            if kind == Kind::Cancel as u8 {
                self.ids.push(u64::from_le_bytes([i0, i1, i2, i3, i4, i5, i6, i7]));
            }
        }
    }

    fn contains(&self, id: u64) -> bool {
        self.ids.contains(&id)
    }

    #[inline]
    fn take(&mut self, id: u64) -> bool {
        if self.ids.is_empty() {
            return false;
        }
        let before = self.ids.len();
        self.ids.retain(|other| *other != id);
        self.ids.len() < before
    }
}

/// Size of one read, bytes.
const BUFFER: usize = 64 << 10;

/// Most bytes read ahead by a running job.
const AHEAD_MAX: usize = 8 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::put_frame;

    #[test]
    fn a_cancel_is_seen_at_every_split_and_taken_once() {
        let mut bytes = Vec::new();
        put_frame(&mut bytes, Kind::Job, 0, 5, |out| out.extend_from_slice(&[3; 40]));
        put_frame(&mut bytes, Kind::Cancel, 0, 5, |_| {});
        put_frame(&mut bytes, Kind::Job, 0, 6, |out| out.push(0));
        for cut in 0..bytes.len() {
            let mut scan = CancelScan::default();
            scan.feed(&bytes[..cut]);
            scan.feed(&bytes[cut..]);
            assert!(scan.contains(5) && !scan.contains(6), "cut at {cut}");
            assert!(scan.take(5));
            assert!(!scan.take(5));
        }
    }
}
