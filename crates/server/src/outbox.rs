//! What a connection still has to send: bytes and huge values, in order.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::sync::Arc;

use cattlegrid_engine::Output;
use cattlegrid_store::HugeValue;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, send, sendmsg};

/// Replies that did not fit into the socket yet.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that are gone.
    sent: usize,
}

#[derive(Debug)]
enum Piece {
    Bytes(Vec<u8>),
    Huge(Arc<HugeValue>),
}

/// A buffer of this many bytes is kept as it is, a smaller one is copied.
const TAKEN_OVER: usize = 128 << 10;
/// Slices handed to the system in one call.
const SLICES: usize = 64;

impl Outbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Bytes of memory that it keeps, without values in pages of their own: [`Outbox::each_huge`].
    pub(crate) fn kept_bytes(&self) -> usize {
        let bytes = |piece: &Piece| if let Piece::Bytes(bytes) = piece { bytes.capacity() } else { 0 };
        self.pieces.iter().map(bytes).sum()
    }

    /// Calls `each` with the values in pages of their own.
    pub(crate) fn each_huge(&self, each: &mut dyn FnMut(&Arc<HugeValue>)) {
        for piece in &self.pieces {
            if let Piece::Huge(huge) = piece {
                each(huge);
            }
        }
    }

    /// Adds bytes behind what waits.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if let Some(Piece::Bytes(last)) = self.pieces.back_mut() {
            last.extend_from_slice(bytes);
        } else if !bytes.is_empty() {
            self.pieces.push_back(Piece::Bytes(bytes.to_vec()));
        }
    }

    /// Adds bytes behind what waits, without the first `sent` of them if nothing waits. The memory of many is taken over.
    pub(crate) fn push_all(&mut self, mut bytes: Vec<u8>, sent: usize) {
        debug_assert!(sent == 0 || self.is_empty(), "only of the first piece some may be gone");
        if bytes.len() < TAKEN_OVER {
            self.push(&bytes[sent..]);
        } else if sent < bytes.len() {
            bytes.shrink_to_fit();
            self.sent += sent;
            self.pieces.push_back(Piece::Bytes(bytes));
        }
    }

    /// Adds replies behind what waits.
    pub(crate) fn push_output(&mut self, output: &mut Output) {
        let mut at = 0;
        for (place, huge) in output.huge.drain(..) {
            self.push(&output.bytes[at..place]);
            self.pieces.push_back(Piece::Huge(huge));
            at = place;
        }
        if at == 0 && output.bytes.len() >= TAKEN_OVER {
            return self.push_all(std::mem::take(&mut output.bytes), 0);
        }
        self.push(&output.bytes[at..]);
        output.bytes.clear();
    }

    /// Takes the first bytes off, `most` at most, and hands them to `to` in order.
    pub(crate) fn take(
        &mut self,
        most: usize,
        mut to: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut left = most;
        while left > 0 && !self.pieces.is_empty() {
            let len = {
                let slices = self.slices();
                let first: &[u8] = slices.first().map_or(&[], |slice| slice);
                let part = &first[..first.len().min(left)];
                to(part)?;
                part.len()
            };
            left -= len;
            self.advance(len);
        }
        Ok(())
    }

    /// Sends what the socket takes; returns the bytes sent.
    pub(crate) fn flush(&mut self, fd: impl AsFd) -> io::Result<usize> {
        let mut total = 0;
        while !self.pieces.is_empty() {
            let sent = {
                let slices = self.slices();
                match sendmsg(&fd, &slices, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL) {
                    Ok(sent) => sent,
                    Err(Errno::AGAIN) => break,
                    Err(Errno::INTR) => continue,
                    Err(error) => return Err(error.into()),
                }
            };
            total += sent;
            self.advance(sent);
        }
        Ok(total)
    }

    fn slices(&self) -> Vec<IoSlice<'_>> {
        let mut skip = self.sent;
        let mut slices = Vec::with_capacity(self.pieces.len().min(SLICES));
        for piece in &self.pieces {
            match piece {
                Piece::Bytes(bytes) => slices.push(IoSlice::new(&bytes[skip..])),
                Piece::Huge(huge) => {
                    let mut at = skip;
                    while slices.len() < SLICES && at < huge.len() {
                        let slice = huge.slice_from(at);
                        at += slice.len();
                        slices.push(IoSlice::new(slice));
                    }
                }
            }
            skip = 0;
            if slices.len() >= SLICES {
                break;
            }
        }
        slices
    }

    fn advance(&mut self, sent: usize) {
        self.sent += sent;
        while let Some(first) = self.pieces.front() {
            let len = match first {
                Piece::Bytes(bytes) => bytes.len(),
                Piece::Huge(huge) => huge.len(),
            };
            if self.sent < len {
                return;
            }
            self.sent -= len;
            self.pieces.pop_front();
        }
    }
}

/// Sends bytes; returns how many the socket took.
pub(crate) fn send_now(fd: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match send(&fd, bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => return Ok(sent),
            Err(Errno::AGAIN) => return Ok(0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
