//! Waiting for many descriptors at once, and being woken by other threads.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;

/// A set of descriptors to wait for, each known by a token.
pub struct Poller {
    epoll: OwnedFd,
    events: Vec<Event>,
}

/// What a descriptor is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// Something to read, or the peer's end.
    Read,
    /// Room for writing.
    Write,
    /// Either.
    Both,
    /// The peer's end, said once: it stays true, and the connection may not be able to act on it at once.
    HangUp,
    /// Nothing: there is work left.
    Nothing,
}

/// Descriptors reported by one wait.
const EVENTS: usize = 256;

impl Poller {
    /// Without descriptors yet.
    pub fn new() -> io::Result<Self> {
        Ok(Self { epoll: epoll::create(CreateFlags::CLOEXEC)?, events: Vec::with_capacity(EVENTS) })
    }

    /// Waits for this descriptor, too, until it is closed or removed; `wait` reports it by `token`.
    pub fn add(&self, fd: impl AsFd, token: u64, wish: Wish) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(token), wish.flags())?)
    }

    /// Waits for connections of a listener, too. Of several threads that wait for one, one is woken for a
    /// connection.
    pub fn listen(&self, fd: impl AsFd, token: u64) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::EXCLUSIVE;
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(token), flags)?)
    }

    /// Waits for something else of a descriptor that was added.
    pub fn modify(&self, fd: impl AsFd, token: u64, wish: Wish) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, fd, EventData::new_u64(token), wish.flags())?)
    }

    /// Stops waiting for a descriptor that stays open.
    pub fn remove(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, fd)?)
    }

    /// Waits for the first descriptor, for ever without `timeout`; calls `each` with the tokens of those
    /// ready.
    pub fn wait(&mut self, timeout: Option<Duration>, mut each: impl FnMut(u64)) -> io::Result<()> {
        self.events.clear();
        let timeout = timeout.map(|t| Timespec {
            tv_sec: t.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: t.subsec_nanos().into(),
        });
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        self.events.iter().for_each(|event| each(event.data.u64()));
        Ok(())
    }
}

impl Wish {
    /// Errors and hang-ups are always reported.
    fn flags(self) -> EventFlags {
        match self {
            Self::Read => EventFlags::IN,
            Self::Write => EventFlags::OUT,
            Self::Both => EventFlags::IN | EventFlags::OUT,
            Self::HangUp => EventFlags::RDHUP | EventFlags::ET,
            Self::Nothing => EventFlags::empty(),
        }
    }
}

/// Wakes a thread that waits in a [`Poller`].
#[derive(Debug)]
pub(crate) struct Waker(OwnedFd);

impl Waker {
    /// Not woken yet.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Makes the descriptor ready. Safe to call any number of times.
    pub(crate) fn wake(&self) {
        // Fails only when the count is full, and then it is ready anyway.
        let _ready = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// The thread is awake: take the calls back.
    pub(crate) fn reset(&self) {
        let mut count = [0; 8];
        let _none = rustix::io::read(&self.0, &mut count);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
