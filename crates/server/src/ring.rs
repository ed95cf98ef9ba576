//! Sends to several sockets in one system call, by `io_uring` (option `-o io_uring`).
//!
//! Each lane has its own ring. A send never waits, so that the kernel completes it within the call. The
//! caller sends the rest in the usual way, and gets errors there.
//!
//! # Invariants
//! * Between calls the kernel has no request of a ring, and so no buffer.
//! * A ring in whose queue requests were left is closed: the next call would submit them.

#![expect(
    unsafe_code,
    reason = "the kernel reads buffers by address; it has finished with them when a call returns"
)]

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::time::Duration;

use arrayvec::ArrayVec;
use io_uring::squeue::Entry;
use io_uring::{EnterFlags, IoUring, opcode, types};
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::process::{Resource, getrlimit};

use crate::log;

/// The most sends in one call.
const SENDS: usize = crate::turns::BATCH;
/// The least number of descriptors that must stay free for others.
const SPARE_DESCRIPTORS: u64 = 64;

/// The ring of a lane.
#[derive(Default)]
pub(crate) struct Ring {
    /// None if the ring could not be made, or the kernel reported a failure.
    uring: Option<IoUring>,
}

/// Bytes to be sent to a socket.
pub(crate) struct Offer<'a> {
    pub(crate) fd: BorrowedFd<'a>,
    pub(crate) bytes: &'a [u8],
    /// The number of bytes that the socket has taken. None: it was not tried, or refused.
    pub(crate) taken: Option<usize>,
}

impl Ring {
    /// A ring for the calling thread, the only one that can use it.
    ///
    /// # Errors
    /// The system refuses; [`advice`] says what may help.
    pub(crate) fn new() -> io::Result<Self> {
        let modern = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_submit_all()
            .build(SENDS as u32);
        let uring = match modern {
            // The fallback is for Linux before 6.1.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => IoUring::new(SENDS as u32)?,
            modern => modern?,
        };
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        if limit.saturating_sub(SPARE_DESCRIPTORS) < u64::from(uring.as_raw_fd().unsigned_abs()) {
            return Err(Errno::MFILE.into());
        }
        Ok(Self { uring: Some(uring) })
    }

    pub(crate) fn is_open(&self) -> bool {
        self.uring.is_some()
    }

    /// Sends all offers, of which each socket may have one, and notes how many bytes each has taken. At most
    /// [`SENDS`] are sent.
    ///
    /// # Errors
    /// The kernel did not take all requests. The ring is closed then, and unsent offers are still to be sent.
    pub(crate) fn send_all(&mut self, offers: &mut [Offer<'_>]) -> io::Result<()> {
        let Some(uring) = &mut self.uring else { return Ok(()) };
        let requests = offers.iter().enumerate().filter_map(|(number, offer)| {
            let len = u32::try_from(offer.bytes.len()).ok()?;
            let send = opcode::Send::new(types::Fd(offer.fd.as_raw_fd()), offer.bytes.as_ptr(), len);
            Some(send.flags(FLAGS.bits().cast_signed()).build().user_data(number as u64))
        });
        let requests: ArrayVec<Entry, SENDS> = requests.take(SENDS).collect();
        // SAFETY: each request reads the bytes of an offer. They are borrowed until this function returns,
        // which is after `exchange`.
        let exchanged = unsafe {
            exchange(uring, &requests, |number, result| {
                if let (Some(offer), Ok(taken)) = (offers.get_mut(number as usize), usize::try_from(result)) {
                    offer.taken = Some(taken.min(offer.bytes.len()));
                }
            })
        };
        if exchanged.is_err() {
            self.uring = None;
        }
        exchanged
    }
}

/// A send waits for nothing, and a closed connection is an error.
const FLAGS: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);

/// The remedy for an error of [`Ring::new`], in words.
pub(crate) fn advice(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::PERM | Errno::ACCESS) => {
            "see the sysctl kernel.io_uring_disabled, and seccomp profiles of containers"
        }
        Some(Errno::NOSYS) => "the kernel has none, or a seccomp profile hides it",
        Some(Errno::MFILE | Errno::NFILE) => "raise `ulimit -n`, or lower -c",
        Some(Errno::NOMEM) => "raise `ulimit -l`, or free memory",
        _ => "leave the option out",
    }
}

/// Submits the requests and waits for all that were submitted. `done` gets the number (`user_data`) and the
/// result of each.
///
/// # Errors
/// Some requests were not submitted. They are still in the queue, so that the ring must not be used again.
///
/// # Safety
/// Buffers and descriptors of the requests must stay valid and unchanged until this returns.
unsafe fn exchange(
    uring: &mut IoUring,
    requests: &[Entry],
    mut done: impl FnMut(u64, i32),
) -> io::Result<()> {
    let unfinished = AbortGuard;
    let mut queue = uring.submission();
    // SAFETY: the caller keeps what they refer to until this function returns; it returns when all that were
    // submitted are completed, and does not unwind (`AbortGuard`). Those that were not submitted are never
    // read.
    let pushed = unsafe { queue.push_multiple(requests) };
    drop(queue);
    let error = match pushed {
        Ok(()) => uring.submit_and_wait(requests.len()).err(),
        Err(_) => Some(io::Error::other("its queue is full")),
    };
    // The number is read from the queue, whatever the call returned.
    let left = uring.submission().len();
    let mut pending = if pushed.is_ok() { requests.len() - left } else { 0 };
    loop {
        for completion in uring.completion() {
            pending = pending.checked_sub(1).expect("a completion for each request");
            done(completion.user_data(), completion.result());
        }
        if pending == 0 {
            break;
        }
        // SAFETY: there is no argument, and nothing is submitted.
        let waited =
            unsafe { uring.submitter().enter::<()>(0, pending as u32, EnterFlags::GETEVENTS.bits(), None) };
        match waited {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => panic!("the kernel has requests of io_uring and does not end them: {error}"),
        }
    }
    std::mem::forget(unfinished);
    if left == 0 && pushed.is_ok() {
        return Ok(());
    }
    Err(error.unwrap_or_else(|| io::Error::other(format!("{left} requests were not taken"))))
}

/// Ends the process if it is dropped: the kernel may still read buffers that are about to be freed.
struct AbortGuard;

impl Drop for AbortGuard {
    fn drop(&mut self) {
        log::error(
            "io_uring: sends may still be under way, and their buffers cannot be kept: the server ends",
        );
        log::flush(Duration::from_secs(1));
        std::process::abort();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn pair() -> (UnixStream, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (ours, theirs)
    }

    fn offer<'a>(stream: &'a UnixStream, bytes: &'a [u8]) -> Offer<'a> {
        Offer { fd: stream.as_fd(), bytes, taken: None }
    }

    fn taken(offers: &[Offer<'_>]) -> Vec<Option<usize>> {
        offers.iter().map(|offer| offer.taken).collect()
    }

    fn received(stream: &mut UnixStream) -> Vec<u8> {
        let mut buffer = vec![0; 1 << 20];
        stream.set_nonblocking(true).unwrap();
        let n = stream.read(&mut buffer).unwrap_or(0);
        buffer.truncate(n);
        buffer
    }

    /// Fills a socket.
    fn fill(mut stream: &UnixStream) {
        while stream.write(&[b'f'; 4096]).is_ok() {}
    }

    /// A ring; none, and a line that says so, where the system forbids them.
    fn ring() -> Option<Ring> {
        match Ring::new() {
            Err(error)
                if matches!(
                    Errno::from_io_error(&error),
                    Some(Errno::PERM | Errno::ACCESS | Errno::NOSYS)
                ) =>
            {
                eprintln!("not tested: io_uring: {error}");
                None
            }
            ring => Some(ring.expect("the system has one")),
        }
    }

    /// Both kinds of rings that there may be.
    fn rings() -> impl Iterator<Item = Ring> {
        let plain = |modern| [modern, Ring { uring: Some(IoUring::new(SENDS as u32).unwrap()) }];
        ring().into_iter().flat_map(plain)
    }

    #[test]
    fn many_batches_are_sent_whole() {
        for mut ring in rings() {
            let mut pairs: Vec<_> = (0..SENDS).map(|_| pair()).collect();
            for round in 0..1000 {
                let count = round % SENDS + 1;
                let texts: Vec<Vec<u8>> = (0..count).map(|n| vec![(round + n) as u8; 1 + 7 * n]).collect();
                let mut offers: Vec<_> =
                    pairs.iter().zip(&texts).map(|((ours, _), text)| offer(ours, text)).collect();
                ring.send_all(&mut offers).unwrap();
                assert_eq!(taken(&offers), texts.iter().map(|text| Some(text.len())).collect::<Vec<_>>());
                for ((_, theirs), text) in pairs.iter_mut().zip(&texts) {
                    assert_eq!(received(theirs), *text);
                }
            }
        }
    }

    #[test]
    fn a_send_says_what_its_socket_has_taken() {
        for mut ring in rings() {
            let large = vec![b'l'; 8 << 20];
            let ((good, mut reader), (short, mut slow), (full, _stuck), (dead, gone)) =
                (pair(), pair(), pair(), pair());
            fill(&full);
            drop(gone);
            let file = std::fs::File::open("/dev/null").unwrap();
            let mut offers = [
                offer(&full, b"full"),
                offer(&dead, b"dead"),
                offer(&short, &large),
                Offer { fd: file.as_fd(), bytes: b"no socket", taken: None },
                offer(&good, b"good"),
            ];
            ring.send_all(&mut offers).unwrap();
            let taken = taken(&offers);
            assert_eq!((taken[0], taken[1], taken[3], taken[4]), (None, None, None, Some(4)));
            let some = taken[2].expect("the socket has room for some");
            assert!(0 < some && some < large.len(), "{some}");
            assert_eq!(received(&mut reader), b"good");
            let mut arrived = 0;
            while arrived < some {
                let more = received(&mut slow);
                assert!(!more.is_empty() && more.iter().all(|byte| *byte == b'l'));
                arrived += more.len();
            }
            assert_eq!((arrived, received(&mut slow).len()), (some, 0));
            assert!(ring.is_open());
        }
    }

    #[test]
    fn of_too_many_some_are_left() {
        let Some(mut ring) = ring() else { return };
        let pairs: Vec<_> = (0..SENDS + 2).map(|_| pair()).collect();
        let mut offers: Vec<_> = pairs.iter().map(|(ours, _)| offer(ours, b"x")).collect();
        ring.send_all(&mut offers).unwrap();
        let (sent, left) = offers.split_at(SENDS);
        assert!(
            sent.iter().all(|offer| offer.taken == Some(1)) && left.iter().all(|offer| offer.taken.is_none())
        );
    }

    /// The kernel refuses the call: a ring is for the thread that has made it.
    #[test]
    fn a_ring_that_fails_is_closed_and_sends_nothing() {
        let Some(mut ring) = ring() else { return };
        let (ours, mut theirs) = pair();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                for is_error in [true, false] {
                    let mut offers = [offer(&ours, b"a"), offer(&ours, b"b")];
                    assert_eq!(ring.send_all(&mut offers).is_err(), is_error);
                    assert_eq!((taken(&offers), ring.is_open()), (vec![None, None], false));
                }
            });
            thread.join().unwrap();
        });
        assert_eq!(received(&mut theirs), b"");
    }

    /// A request that the kernel refuses to take ends the submission, in plain rings; what was submitted
    /// before it is waited for.
    #[test]
    fn what_was_submitted_is_waited_for() {
        let Some(_) = ring() else { return };
        let soon = types::Timespec::new().nsec(50_000_000);
        let (ours, mut theirs) = pair();
        let send = |number| {
            let send = opcode::Send::new(types::Fd(ours.as_raw_fd()), b"x".as_ptr(), 1);
            send.build().user_data(number)
        };
        let refused = opcode::Send::new(types::Fd(ours.as_raw_fd()), b"y".as_ptr(), 1).ioprio(u16::MAX);
        let requests = [
            opcode::Timeout::new(&raw const soon).build().user_data(0),
            send(1),
            refused.build().user_data(2),
            send(3),
        ];
        let mut uring = IoUring::new(SENDS as u32).unwrap();
        let mut results = vec![None; requests.len()];
        // SAFETY: what the requests refer to lives longer than the call.
        let exchanged = unsafe {
            exchange(&mut uring, &requests, |number, result| results[number as usize] = Some(result))
        };
        assert!(exchanged.is_err());
        let (late, invalid) = (-Errno::TIME.raw_os_error(), -Errno::INVAL.raw_os_error());
        assert_eq!(results, [Some(late), Some(1), Some(invalid), None]);
        drop(uring);
        assert_eq!(received(&mut theirs), b"x");
    }
}
