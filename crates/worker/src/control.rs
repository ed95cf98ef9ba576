//! The control socket between a parent and a template process: one datagram, one message.
//!
//! `SOCK_SEQPACKET` keeps message borders, so descriptors passed with a FORK can never be read with
//! the bytes of another FORK.
//!
//! # Invariant
//! Any datagram is decoded without a panic; a malformed or unknown one is `None`.

use std::io;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use crate::message::Fields;
use crate::setup::Setup;

/// A message on the control socket.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Control {
    /// Parent: fork a worker. Descriptors: job socket, log pipe (becomes 1 and 2).
    Fork {
        /// Echoed in the answers.
        slot: u32,
        /// Limits and privileges of the worker.
        setup: Setup,
    },
    /// Template: forked. Descriptor: pidfd of the worker, if there is one.
    Forked {
        /// From FORK.
        slot: u32,
        /// Process id of the worker, and of its process group.
        pid: u32,
    },
    /// Template: could not fork.
    Failed {
        /// From FORK.
        slot: u32,
        /// The system's reason.
        errno: i32,
    },
    /// Template: a worker has ended and was reaped, its process group killed.
    Exited {
        /// From FORK.
        slot: u32,
        /// Process id it had.
        pid: u32,
        /// Exit code 0..=255, or minus the signal.
        status: i32,
        /// Largest resident set it had, KiB.
        maxrss_kib: u64,
    },
    /// Template: loaded, send FORK.
    Ready {
        /// Protocol version.
        version: u16,
        /// Threads it has; more than 1 only if that was allowed.
        threads: u16,
        /// The worker's process id.
        pid: u32,
        /// Resident set, KiB.
        rss_kib: u64,
        /// Name and version of the SDK.
        sdk: String,
    },
    /// Template: cannot go on; it exits next. The text is for people.
    Fatal(String),
    /// Template: an event from its initialisation; the body is a list.
    Event(Vec<u8>),
}

impl Control {
    /// The bytes of the message.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        match self {
            Self::Fork { slot, setup } => {
                out.push(1);
                out.extend_from_slice(&slot.to_le_bytes());
                setup.encode(&mut out);
            }
            Self::Forked { slot, pid } => {
                out.push(2);
                out.extend_from_slice(&slot.to_le_bytes());
                out.extend_from_slice(&pid.to_le_bytes());
            }
            Self::Failed { slot, errno } => {
                out.push(3);
                out.extend_from_slice(&slot.to_le_bytes());
                out.extend_from_slice(&errno.to_le_bytes());
            }
            Self::Exited { slot, pid, status, maxrss_kib } => {
                out.push(4);
                out.extend_from_slice(&slot.to_le_bytes());
                out.extend_from_slice(&pid.to_le_bytes());
                out.extend_from_slice(&status.to_le_bytes());
                out.extend_from_slice(&maxrss_kib.to_le_bytes());
            }
            Self::Ready { version, threads, pid, rss_kib, sdk } => {
                out.push(5);
                out.extend_from_slice(&version.to_le_bytes());
                out.extend_from_slice(&threads.to_le_bytes());
                out.extend_from_slice(&pid.to_le_bytes());
                out.extend_from_slice(&rss_kib.to_le_bytes());
                out.extend_from_slice(sdk.as_bytes());
            }
            Self::Fatal(text) => {
                out.push(6);
                out.extend_from_slice(&text.as_bytes()[..text.len().min(MAX_TEXT)]);
            }
            Self::Event(list) => {
                out.push(7);
                out.extend_from_slice(list);
            }
        }
        out
    }

    /// Reads a message; `None` if it is malformed or unknown.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (&kind, rest) = bytes.split_first()?;
        let mut fields = Fields(rest);
        Some(match kind {
            1 => Self::Fork { slot: fields.u32()?, setup: Setup::decode(fields.0)? },
            2 => Self::Forked { slot: fields.u32()?, pid: fields.u32()? },
            3 => Self::Failed { slot: fields.u32()?, errno: fields.u32()?.cast_signed() },
            4 => Self::Exited {
                slot: fields.u32()?,
                pid: fields.u32()?,
                status: fields.u32()?.cast_signed(),
                maxrss_kib: fields.u64()?,
            },
            5 => Self::Ready {
                version: fields.u16()?,
                threads: fields.u16()?,
                pid: fields.u32()?,
                rss_kib: fields.u64()?,
                sdk: String::from_utf8_lossy(fields.0).into_owned(),
            },
            6 => Self::Fatal(String::from_utf8_lossy(rest).into_owned()),
            7 => Self::Event(rest.to_vec()),
            _ => return None,
        })
    }

    /// Sends the message with descriptors, at most 4.
    ///
    /// # Errors
    /// The error of `sendmsg`: `WouldBlock` on a full non-blocking socket, `BrokenPipe` when the
    /// other side is gone.
    pub fn send(&self, socket: BorrowedFd<'_>, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        send_with_fds(socket, &self.encode(), fds).map(drop)
    }
}

/// The contents of one datagram.
#[derive(Debug)]
pub struct Packet {
    /// The message; `None` if it is malformed, or the other side has closed (`closed`).
    pub message: Option<Control>,
    /// The other side has closed.
    pub closed: bool,
    /// Descriptors, close-on-exec set. Fewer than were sent when this process has no free numbers.
    pub fds: Vec<OwnedFd>,
}

/// Receives one message.
///
/// # Errors
/// The error of `recvmsg`; `WouldBlock` when a non-blocking socket has none.
pub fn receive(socket: BorrowedFd<'_>) -> io::Result<Packet> {
    let mut bytes = [0; MAX_TEXT + 64];
    let (count, fds, flags) = receive_with_fds(socket, &mut bytes)?;
    let message = if count == 0 || flags.contains(ReturnFlags::TRUNC) {
        None
    } else {
        Control::decode(&bytes[..count])
    };
    Ok(Packet { message, closed: count == 0, fds })
}

/// `sendmsg` with descriptors; returns the bytes taken.
///
/// # Errors
/// What the system reports; interrupted calls are repeated.
///
/// # Panics
/// With more than 4 descriptors.
pub fn send_with_fds(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)), "at most {MAX_FDS} descriptors");
    }
    loop {
        match rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

/// `recvmsg` with descriptors: bytes received, the descriptors, and flags: `TRUNC` when the datagram was cut
/// off, `CTRUNC` when there was no room for all descriptors.
///
/// # Errors
/// What the system reports; interrupted calls are repeated.
pub fn receive_with_fds(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
) -> io::Result<(usize, Vec<OwnedFd>, ReturnFlags)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        let parts = &mut [IoSliceMut::new(bytes)];
        match rustix::net::recvmsg(socket, parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(more) = message {
            fds.extend(more);
        }
    }
    Ok((got.bytes, fds, got.flags))
}

/// Most descriptors with one message.
const MAX_FDS: usize = 4;

/// Longest text or event of a template, bytes; longer texts are cut.
pub const MAX_TEXT: usize = 8_000;

#[cfg(all(test, not(miri)))]
mod tests {
    use std::os::fd::AsFd;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    #[test]
    fn messages_and_descriptors_arrive_together() {
        let flags = SocketFlags::CLOEXEC;
        let (parent, template) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let fork = Control::Fork { slot: 3, setup: Setup::default() };
        fork.send(parent.as_fd(), &[writer.as_fd()]).unwrap();
        Control::Fatal("x".repeat(9_000)).send(parent.as_fd(), &[]).unwrap();
        drop((writer, parent));
        let first = receive(template.as_fd()).unwrap();
        assert_eq!(first.message, Some(fork));
        rustix::io::write(&first.fds[0], b"!").unwrap();
        assert_eq!(rustix::io::read(&reader, &mut [0; 4]), Ok(1));
        let second = receive(template.as_fd()).unwrap().message;
        assert_eq!(second, Some(Control::Fatal("x".repeat(MAX_TEXT))));
        assert!(receive(template.as_fd()).unwrap().closed);
    }

    #[test]
    fn every_message_survives_the_wire() {
        for message in [
            Control::Forked { slot: 1, pid: 77 },
            Control::Failed { slot: 2, errno: 11 },
            Control::Exited { slot: 3, pid: 78, status: -9, maxrss_kib: 1 << 33 },
            Control::Ready { version: 1, threads: 1, pid: 5, rss_kib: 9, sdk: "rust".into() },
            Control::Event(vec![1, 1, b'e']),
        ] {
            assert_eq!(Control::decode(&message.encode()), Some(message));
        }
        assert_eq!(Control::decode(&[]), None);
        assert_eq!(Control::decode(&[99, 0]), None);
        assert_eq!(Control::decode(&[2, 0, 0]), None);
    }
}
