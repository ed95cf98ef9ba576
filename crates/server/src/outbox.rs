//! What a connection still has to send: bytes and huge values, in order.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::sync::Arc;

use arrayvec::ArrayVec;
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

type Slices<'a> = ArrayVec<IoSlice<'a>, SLICES>;

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

    /// Adds bytes behind what waits, without the first `sent` of them if nothing waits. The memory of many is
    /// taken over.
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

    /// The first bytes that lie together; empty if nothing waits.
    pub(crate) fn first(&self) -> &[u8] {
        match self.pieces.front() {
            Some(Piece::Bytes(bytes)) => &bytes[self.sent..],
            Some(Piece::Huge(huge)) => huge.slice_from(self.sent),
            None => &[],
        }
    }

    /// Sends what waits and then `out`, as far as the socket takes it; the rest waits. Returns the bytes
    /// sent.
    pub(crate) fn send(&mut self, fd: impl AsFd, out: &mut Output) -> io::Result<usize> {
        if !self.is_empty() {
            self.push_output(out);
            return self.flush(fd);
        }
        if out.huge.is_empty() {
            if out.bytes.is_empty() {
                return Ok(0);
            }
            let sent = send_now(fd, &out.bytes)?;
            if sent < out.bytes.len() {
                self.push_all(std::mem::take(&mut out.bytes), sent);
            }
            return Ok(sent);
        }
        let (sent, offered) = send_slices(&fd, &slices_of(out))?;
        if sent == out.len() {
            return Ok(sent);
        }
        self.push_output(out);
        self.advance(sent);
        Ok(if sent == offered { sent + self.flush(fd)? } else { sent })
    }

    /// Sends what the socket takes; returns the bytes sent.
    pub(crate) fn flush(&mut self, fd: impl AsFd) -> io::Result<usize> {
        let mut total = 0;
        while !self.pieces.is_empty() {
            let (sent, offered) = send_slices(&fd, &self.slices())?;
            total += sent;
            self.advance(sent);
            if sent < offered {
                break;
            }
        }
        Ok(total)
    }

    fn slices(&self) -> Slices<'_> {
        let mut skip = self.sent;
        let mut slices = Slices::new();
        for piece in &self.pieces {
            if slices.is_full() {
                break;
            }
            match piece {
                Piece::Bytes(bytes) => slices.push(IoSlice::new(&bytes[skip..])),
                Piece::Huge(huge) => push_huge(huge, skip, &mut slices),
            }
            skip = 0;
        }
        slices
    }

    /// The first `sent` bytes are done with.
    pub(crate) fn advance(&mut self, sent: usize) {
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

/// The first bytes of `out`, as many as there are slices for.
fn slices_of(out: &Output) -> Slices<'_> {
    let mut slices = Slices::new();
    let mut at = 0;
    for (place, huge) in &out.huge {
        if at < *place && !slices.is_full() {
            slices.push(IoSlice::new(&out.bytes[at..*place]));
        }
        at = *place;
        push_huge(huge, 0, &mut slices);
    }
    if at < out.bytes.len() && !slices.is_full() {
        slices.push(IoSlice::new(&out.bytes[at..]));
    }
    slices
}

fn push_huge<'h>(huge: &'h HugeValue, from: usize, slices: &mut Slices<'h>) {
    let room = slices.remaining_capacity();
    slices.extend(huge.slices_from(from).take(room).map(IoSlice::new));
}

/// Sends once: how many bytes the socket took, and of how many.
fn send_slices(fd: impl AsFd, slices: &[IoSlice<'_>]) -> io::Result<(usize, usize)> {
    let offered = slices.iter().map(|slice| slice.len()).sum();
    loop {
        match sendmsg(&fd, slices, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL) {
            Ok(sent) => return Ok((sent, offered)),
            Err(Errno::AGAIN) => return Ok((0, offered)),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
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

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;

    use cattlegrid_store::{Memory, PAGE_BYTES};

    use super::*;

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i % 251) as u8).collect()
    }

    /// Values in pages, in one run and in many, with bytes before, between and behind them: longer than the
    /// socket's room, and of more slices than one call takes.
    #[test]
    fn replies_arrive_whole_and_in_order() {
        let memory = Memory::new(1024 * PAGE_BYTES).unwrap();
        let whole = HugeValue::new(&memory, &[&pattern(40_000)]).unwrap();
        // Every other page is free: a run is a page.
        let mut taken: Vec<_> = std::iter::from_fn(|| memory.aligned(PAGE_BYTES)).collect();
        taken.retain({
            let mut number = 0;
            move |_| {
                number += 1;
                number % 2 == 0
            }
        });
        let cut = HugeValue::new(&memory, &[&pattern(100 * PAGE_BYTES)]).unwrap();
        assert!(cut.slices().count() > SLICES);
        for values in
            [vec![&whole], vec![&cut], vec![&whole; 3], vec![&whole, &cut, &whole], vec![&whole; 100]]
        {
            for (before, behind) in [(0, 0), (20, 2), (0, 7), (200_000, 0)] {
                let (server, mut client) = UnixStream::pair().unwrap();
                server.set_nonblocking(true).unwrap();
                client.set_nonblocking(true).unwrap();
                let (mut out, mut outbox) = (Output::default(), Outbox::default());
                let mut all = Vec::new();
                for value in &values {
                    out.bytes.extend_from_slice(&pattern(before));
                    all.extend_from_slice(&pattern(before));
                    out.huge.push((out.bytes.len(), Arc::clone(value)));
                    value.slices().for_each(|slice| all.extend_from_slice(slice));
                }
                out.bytes.extend_from_slice(&pattern(behind));
                all.extend_from_slice(&pattern(behind));
                let mut sent = outbox.send(&server, &mut out).unwrap();
                assert_eq!(outbox.is_empty(), sent == all.len());
                out.clear();
                // What is sent later comes behind it.
                out.bytes.extend_from_slice(b"END\r\n");
                all.extend_from_slice(b"END\r\n");
                let mut arrived = Vec::new();
                loop {
                    sent += outbox.send(&server, &mut out).unwrap();
                    out.clear();
                    let before = arrived.len();
                    // It ends when nothing more is there.
                    let _would_block = client.read_to_end(&mut arrived);
                    if arrived.len() == before && outbox.is_empty() {
                        break;
                    }
                }
                assert_eq!((sent, arrived.len()), (all.len(), all.len()));
                assert!(arrived == all, "{} values, {before} bytes before each", values.len());
            }
        }
    }
}
