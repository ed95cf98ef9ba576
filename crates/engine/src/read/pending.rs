//! A `get` while it is executed, piece by piece: how much at once, what came of it, and the keys that are not simply answered.

use cattlegrid_protocol::Keys;

use crate::read::get::Answer;
use crate::rules::decide::Holds;
use crate::step::Context;
use crate::wait::park::Parked;

/// How much of a `get` is executed at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Keys before these are answered already, and what was written of it may be sent.
    pub begun: bool,
    /// Until the output has this many bytes or more.
    pub bytes: usize,
    /// At most so many keys, above 0.
    pub keys: usize,
}

impl Piece {
    /// All of it.
    pub const ALL: Self = Self { begun: false, bytes: usize::MAX, keys: usize::MAX };
}

/// What became of a `get`.
#[derive(Debug)]
#[must_use]
pub enum Got<'k> {
    /// Answered; `END` is written.
    Done,
    /// These keys, one at least, are still to be answered.
    More(Keys<'k>),
    /// It waits; nothing is written.
    Parked(Box<Parked>),
}

/// The keys of a `get` that are neither hits nor simple misses.
pub(crate) struct Pending<'k> {
    /// Where its output begins.
    pub(crate) from: (usize, usize),
    /// It is to compute one of its keys.
    pub(crate) computes: bool,
    /// Keys for which the reply is `SERVER_ERROR busy`, if nothing of it was sent before.
    pub(crate) busy: Vec<(&'k [u8], u64)>,
    pub(crate) leased: Vec<LeasedKey<'k>>,
    /// Control keys, and their places in the output.
    pub(crate) control: Vec<(&'k [u8], (usize, usize))>,
}

/// A key that somebody else computes.
pub(crate) struct LeasedKey<'k> {
    pub(crate) key: &'k [u8],
    pub(crate) hash: u64,
    /// Its place in the output.
    pub(crate) at: (usize, usize),
    pub(crate) holds: Holds,
}

impl<'k> Pending<'k> {
    #[inline]
    pub(crate) fn new(cx: &Context<'_>) -> Self {
        Self {
            from: cx.out.place(),
            computes: false,
            busy: Vec::new(),
            leased: Vec::new(),
            control: Vec::new(),
        }
    }

    #[inline]
    pub(crate) fn note(&mut self, key: &'k [u8], hash: u64, answer: Answer, cx: &Context<'_>) {
        match answer {
            Answer::Hit | Answer::Miss => {}
            Answer::Compute => self.computes = true,
            Answer::Busy => self.busy.push((key, hash)),
            Answer::Control => self.control.push((key, cx.out.place())),
            Answer::Leased(holds) => self.leased.push(LeasedKey { key, hash, at: cx.out.place(), holds }),
        }
    }

    #[inline]
    pub(crate) fn is_special(&self) -> bool {
        !self.busy.is_empty() || !self.leased.is_empty() || !self.control.is_empty()
    }
}
