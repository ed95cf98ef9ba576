//! Data blocks that arrive in the pages in which their values will stay.
//!
//! A value too long for the log has pages of its own, and its bytes are received straight into them as soon
//! as its line is known. Pages are taken when bytes arrive, for [`Caps::piece_bytes`](crate::caps::Caps) or
//! for four times what has arrived, at most 16 times that, at a time; when the memory is full items are
//! evicted for them. The old value stays until the new one is whole. Where a block is not stored as it comes,
//! or no pages are available, it is gathered in the buffer like any other command: then the refusal is that
//! of a store which finds no room at its end.
//!
//! The receive behind a large value is a small one, since the next command is probably such a store as well:
//! most of its block then need not be copied.
//!
//! # Invariants
//! * While bytes of the value are missing the connection's buffer is empty. Afterwards it begins with the end
//!   of its block, CRLF; in the binary protocol there is none.
//! * Values that are not whole have at most one part in [`Caps::arriving_part`](crate::caps::Caps) of the
//!   memory.

use std::io::IoSliceMut;

use arrayvec::ArrayVec;
use cattlegrid_protocol::{Parsed, Refusal};
use cattlegrid_store::ArrivingValue;
use rustix::io::{Errno, readv};
use rustix::net::{RecvFlags, recv};

use super::input::{Front, Input, Speaks};
use super::{Connection, GROWTH_LARGE, Phase};
use crate::caps::Caps;
use crate::shared::Shared;
use crate::shortage;
use crate::turns::Turn;
use crate::watch::Topics;

/// A store whose line is known and whose data block arrives in pages.
#[derive(Debug)]
pub(super) struct PagedStore {
    /// The line with its end, or the packet up to its value.
    line: Box<[u8]>,
    value: ArrivingValue,
}

impl PagedStore {
    /// Bytes of the line, and of the value what has arrived or has room in its pages.
    pub(super) fn bytes(&self) -> usize {
        self.line.len() + self.value.filled() + self.value.room()
    }

    /// Bytes that have not come of the value and the end of its block, whatever has come of that.
    pub(super) fn missing(&self, speaks: Speaks) -> usize {
        self.value.missing() + speaks.end_bytes()
    }

    /// Bytes of the value are missing.
    pub(super) fn is_partial(&self) -> bool {
        self.value.missing() > 0
    }

    /// How to refuse it; `ended`: bytes of the block's end that have arrived.
    pub(super) fn refusal(&self, ended: usize, speaks: Speaks, shared: &Shared) -> Option<Refusal<'_>> {
        let Parsed::Incomplete { block: Some(refused), .. } = speaks.parse(&self.line, 0, &shared.limits)
        else {
            return None;
        };
        let arrived = self.value.filled() + ended;
        Some(Refusal { swallow: refused.swallow.saturating_sub(arrived as u64), ..refused })
    }
}

/// A value that grows takes pages for this many times what has arrived: few pieces make it cheap to receive
/// and to send.
const GROWTH: usize = 4;
/// Pieces of pages of one receive, and the room behind them.
const SLICES: usize = 16;
/// A value that grows takes at most this many times [`Caps::piece_bytes`](crate::caps::Caps) at once.
const PIECES_MAX: usize = 16;

impl Connection {
    /// Receives at the beginning of a command that is probably a large store: into `room`, which must have
    /// more than [`Caps::begin_bytes`](crate::caps::Caps), or, what is the block of a large value, into its
    /// pages. Returns how many bytes were received, and how many of them are in `room`.
    pub(super) fn receive_begin(
        &mut self,
        room: &mut [u8],
        shared: &Shared,
    ) -> rustix::io::Result<(usize, usize)> {
        let small = shared.caps.begin_bytes;
        let (_, received) = recv(self.fd(), &mut room[..small], RecvFlags::empty())?;
        // What is full is probably not all.
        if received < small || self.begin_to_arrive(&room[..received], shared.caps.piece_bytes, shared) == 0 {
            return Ok((received, received));
        }
        match self.receive_pages(room, shared) {
            Ok((more, behind)) => Ok((received + more, behind)),
            Err(Errno::AGAIN | Errno::INTR) => Ok((received, 0)),
            Err(error) => Err(error),
        }
    }

    /// What arrives next is executed next, whatever it is.
    pub(super) fn may_begin(&self) -> bool {
        self.input.is_at_a_command()
            && matches!(self.phase, Phase::Serving)
            && self.closing.is_none()
            && !self.is_held()
    }

    /// Takes what is there of the store at the front of `input`, if its block may arrive in pages: the bytes
    /// taken, or 0. `more`: bytes for which it takes pages as well.
    pub(super) fn begin_to_arrive(&mut self, input: &[u8], more: usize, shared: &Shared) -> usize {
        let speaks = match self.input.speaks {
            Speaks::Unknown => Speaks::by(input[0], shared),
            known => known,
        };
        let Some(head) = speaks.head_bytes(input) else { return 0 };
        let (line, block) = input.split_at(head);
        let Parsed::Complete { request, .. } = speaks.parse_apart(line, true, &shared.limits) else {
            return 0;
        };
        let len = request.block().map_or(0, |block| block.len());
        let is_allowed = self.limited.as_ref().is_none_or(|own| shared.engine.allows(&own.rights, &request));
        if block.len() >= len + speaks.end_bytes() || !is_allowed || !shared.engine.may_arrive(&request) {
            return 0;
        }
        let here = &block[..block.len().min(len)];
        let mut value = ArrivingValue::new(shared.engine.memory(), len);
        if !take_pages(&mut value, here.len() + more, shared) {
            return 0;
        }
        value.fill(here);
        self.input.speaks = speaks;
        self.input.front = Front::PagedStore(Box::new(PagedStore { line: line.into(), value }));
        line.len() + here.len()
    }

    /// Makes sure that the value that arrives has room in its pages; otherwise moves what has arrived to the
    /// buffer.
    ///
    /// # Errors
    /// There are no pages, and the system refuses the memory. Nothing has changed.
    pub(super) fn make_page_room(&mut self, shared: &Shared) -> Result<(), NoMemory> {
        let Front::PagedStore(arriving) = &mut self.input.front else { return Ok(()) };
        let value = &mut arriving.value;
        if value.room() > 0 || take_pages(value, piece(value.filled(), &shared.caps), shared) {
            return Ok(());
        }
        self.gather()
    }

    /// Copies a command whose block cannot go on in pages to the buffer, which is empty.
    #[cold]
    fn gather(&mut self) -> Result<(), NoMemory> {
        let Some(PagedStore { line, value }) = self.input.arriving() else { return Ok(()) };
        let bytes = line.len() + value.filled();
        let fits = bytes < GROWTH_LARGE || shortage::leaves_room(bytes);
        let mut gathered = Vec::new();
        if !fits || gathered.try_reserve_exact(bytes).is_err() {
            return Err(NoMemory);
        }
        gathered.extend_from_slice(line);
        value.slices().for_each(|slice| gathered.extend_from_slice(slice));
        let need = bytes + value.missing() + self.input.speaks.end_bytes();
        self.input.gathered(gathered, need);
        Ok(())
    }

    /// Receives into the pages of the value that arrives, which has some room, and what is behind it into
    /// `room`: returns how many bytes were received, and how many of them are in `room`.
    pub(super) fn receive_pages(
        &mut self,
        room: &mut [u8],
        shared: &Shared,
    ) -> rustix::io::Result<(usize, usize)> {
        let Self { input: Input { front: Front::PagedStore(arriving), .. }, info, .. } = self else {
            return Ok((0, 0));
        };
        let value = &mut arriving.value;
        // What is behind it may be another such value.
        let behind = room.len().min(shared.caps.begin_bytes);
        let mut received = 0;
        loop {
            let missing = value.missing();
            let mut slices = ArrayVec::<IoSliceMut<'_>, { SLICES + 1 }>::new();
            slices.extend(value.spare().take(SLICES).map(IoSliceMut::new));
            let into_pages: usize = slices.iter().map(|slice| slice.len()).sum();
            let is_last = into_pages == missing;
            if is_last {
                slices.push(IoSliceMut::new(&mut room[..behind]));
            }
            let n = match readv(&info.fd, &mut slices) {
                // An end is found again.
                Err(Errno::AGAIN | Errno::INTR) | Ok(0) if received > 0 => break,
                received => received?,
            };
            drop(slices);
            received += n;
            let landed = n.min(into_pages);
            value.advance(landed);
            if n > landed {
                return Ok((received, n - landed));
            }
            let is_drained = n < into_pages;
            if is_drained
                || is_last
                || received >= shared.caps.receive_bytes
                || value.room() == 0 && !take_pages(value, piece(value.filled(), &shared.caps), shared)
            {
                break;
            }
        }
        Ok((received, 0))
    }

    /// Takes what is there of a large store that begins with these decrypted bytes: the bytes taken, or 0.
    pub(super) fn begin_with(&mut self, plain: &[u8], shared: &Shared) -> usize {
        let may = plain.len() >= shared.caps.begin_bytes && self.may_begin();
        if may { self.begin_to_arrive(plain, 0, shared) } else { 0 }
    }

    /// Takes what was decrypted: into the pages of the value that arrives, and behind it into the buffer.
    ///
    /// # Errors
    /// The system refuses the memory.
    pub(super) fn take_plain(&mut self, mut plain: &[u8], shared: &Shared) -> Result<(), NoMemory> {
        plain = &plain[self.begin_with(plain, shared)..];
        while self.input.arrives() && !plain.is_empty() {
            self.make_page_room(shared)?;
            if let Front::PagedStore(arriving) = &mut self.input.front {
                plain = &plain[arriving.value.fill(plain)..];
            }
        }
        if !plain.is_empty() {
            if !self.make_room(plain.len(), &shared.caps) {
                return Err(NoMemory);
            }
            self.input.bytes.extend_from_slice(plain);
        }
        Ok(())
    }

    /// The value has arrived, and `rest` is what came behind it: executes its command. The bytes used of
    /// `rest`; None: the block's end has not come whole.
    pub(super) fn execute_arrived(&mut self, rest: &[u8], turn: &mut Turn<'_>) -> Option<usize> {
        let end = rest.get(..self.input.speaks.end_bytes())?;
        let PagedStore { line, value } = *self.input.take_arriving()?;
        self.input.expects_pages = true;
        if turn.shared.watchers.wanted().has(Topics::REQUESTS) {
            self.announce(&line, turn);
        }
        let command = self.input.speaks.parse_apart(&line, end == b"\r\n", &turn.shared.limits);
        let command = match &self.limited {
            // What was allowed when it began need not be now.
            Some(limited) if !turn.shared.engine.allows_parsed(&limited.rights, &command) => {
                command.not_allowed()
            }
            _ => command,
        };
        match command {
            Parsed::Complete { request, .. } => {
                self.begin_command(turn);
                let (shared, mut cx) = self.context(turn);
                let mut lock = shared.engine.shard_lock();
                let hash = shared.engine.hash(&request).expect("a store has a key");
                let parked =
                    shared.engine.execute_arrived(&request, hash, value.finish(), &mut lock, &mut cx);
                drop(lock);
                if let Some(parked) = parked {
                    self.park(parked, line.len(), turn);
                }
            }
            Parsed::Refused(refused) => self.refused(&refused, turn),
            Parsed::Incomplete { .. } => unreachable!("its line was whole when its block began"),
        }
        Some(end.len())
    }

    /// A refusal that leaves as it is a key that its user may not write.
    pub(super) fn allowed<'r>(&self, refused: Refusal<'r>, shared: &Shared) -> Refusal<'r> {
        match &self.limited {
            None => refused,
            Some(limited) => shared.engine.refused_allowed(&limited.rights, refused),
        }
    }

    /// No more of it will come: its pages go back.
    pub(super) fn give_up_arriving(&mut self, shared: &Shared) {
        if self.input.arriving().is_some() {
            self.input.clear();
            self.end_upload(shared);
            self.pass(self.gathered_bytes(), shared);
        }
    }
}

/// The system refuses memory.
#[derive(Debug)]
pub(super) struct NoMemory;

/// For how many bytes a value takes pages at a time.
fn piece(filled: usize, caps: &Caps) -> usize {
    (filled * GROWTH).clamp(caps.piece_bytes, PIECES_MAX * caps.piece_bytes)
}

/// Takes pages for `bytes` more bytes of a value, unless those of all values that are not whole would be too
/// many.
fn take_pages(value: &mut ArrivingValue, bytes: usize, shared: &Shared) -> bool {
    let memory = shared.engine.memory();
    let most = memory.limit_bytes() / shared.caps.arriving_part;
    memory.arriving_bytes() + value.lacks(bytes) <= most && shared.engine.grow(value, bytes)
}

#[cfg(test)]
mod tests;
