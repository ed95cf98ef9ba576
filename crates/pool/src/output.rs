//! Bytes to be sent to a worker: small frames are copied together, large arguments are not copied.
//!
//! # Invariant
//! Bytes leave in the order in which they were added, however little the socket takes at a time.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::AsFd;

use bytes::{Buf, Bytes};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// Written first, in order.
    sealed: VecDeque<Bytes>,
    /// Written last; frames are appended here.
    tail: Vec<u8>,
}

/// The result of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlushState {
    /// Nothing is left.
    All,
    /// The socket is full.
    Blocked,
    /// The worker has closed its end.
    Broken,
}

impl Output {
    /// Where small frames are appended.
    #[inline]
    pub(crate) fn tail(&mut self) -> &mut Vec<u8> {
        &mut self.tail
    }

    /// Appends bytes, without copying if they are many.
    #[inline]
    pub(crate) fn push(&mut self, bytes: &Bytes) {
        if bytes.len() < LARGE {
            self.tail.extend_from_slice(bytes);
        } else {
            self.seal();
            self.sealed.push_back(bytes.clone());
        }
    }

    /// Whether everything was written.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.tail.is_empty() && self.sealed.is_empty()
    }

    /// Writes as much as the socket takes.
    pub(crate) fn flush(&mut self, socket: &impl AsFd) -> FlushState {
        use rustix::net::SendFlags;
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        while !self.is_empty() {
            let sent = if self.sealed.is_empty() {
                rustix::net::send(socket, &self.tail, flags)
            } else {
                let tail = std::iter::once(&self.tail[..]).filter(|tail| !tail.is_empty());
                let parts: Vec<_> =
                    self.sealed.iter().map(|part| &part[..]).chain(tail).take(64).map(IoSlice::new).collect();
                rustix::net::sendmsg(socket, &parts, &mut rustix::net::SendAncillaryBuffer::default(), flags)
            };
            match sent {
                Ok(count) => self.advance(count),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return FlushState::Blocked,
                Err(_) => return FlushState::Broken,
            }
        }
        FlushState::All
    }

    fn advance(&mut self, mut count: usize) {
        while let Some(part) = self.sealed.front_mut() {
            let step = count.min(part.len());
            part.advance(step);
            count -= step;
            if !part.is_empty() {
                return;
            }
            self.sealed.pop_front();
        }
        if count == self.tail.len() {
            self.tail.clear();
            self.tail.shrink_to(KEEP);
        } else if count > 0 {
            self.tail.drain(..count);
            self.seal();
        }
    }

    fn seal(&mut self) {
        if !self.tail.is_empty() {
            self.sealed.push_back(std::mem::take(&mut self.tail).into());
        }
    }
}

/// Length from which arguments are not copied, bytes.
const LARGE: usize = 16 << 10;

/// Capacity kept when everything was written, bytes.
const KEEP: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn order_is_kept_across_small_large_and_blocked_writes() {
        let (pool, mut worker) = UnixStream::pair().unwrap();
        let mut output = Output::default();
        let mut expected = Vec::new();
        for round in 0..40_u8 {
            let small = vec![round; 100];
            let large = Bytes::from(vec![round + 100; LARGE + usize::from(round)]);
            output.push(&Bytes::from(small.clone()));
            output.push(&large);
            output.tail().push(round);
            expected.extend_from_slice(&small);
            expected.extend_from_slice(&large);
            expected.push(round);
        }
        let mut got = Vec::new();
        while got.len() < expected.len() {
            let flushed = output.flush(&pool);
            assert_ne!(flushed, FlushState::Broken);
            let mut chunk = vec![0; 10_000];
            let count = worker.read(&mut chunk).unwrap();
            got.extend_from_slice(&chunk[..count]);
        }
        assert!(output.is_empty());
        assert!(got == expected);
        drop(worker);
        output.tail().push(1);
        assert_eq!(output.flush(&pool), FlushState::Broken);
    }
}
