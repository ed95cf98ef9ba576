//! A `get` while it is executed, piece by piece: the size of a piece, its result, and the keys that are
//! neither hits nor plain misses.

use cattlegrid_protocol::Keys;

use crate::parked::ParkedRequest;
use crate::query::HoldLimits;
use crate::reply::get::AskedKey;
use crate::shard::flow::KeyAnswer;
use crate::step::Context;

/// The outcome of the earlier keys of a `get`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// There are none.
    New,
    /// They are answered already, and their output may have been sent.
    Begun,
    /// Some of them waited, or wait, since this time in milliseconds since the start, as
    /// [`ParkedRequest::since_ms`] says: the time of a wait is that of all pieces together.
    Waits(u64),
}

impl Progress {
    /// Whether there are earlier keys.
    pub fn is_begun(self) -> bool {
        self != Self::New
    }
}

impl From<bool> for Progress {
    /// Whether there are earlier keys, all of which are answered.
    fn from(is_begun: bool) -> Self {
        if is_begun { Self::Begun } else { Self::New }
    }
}

/// How much of a `get` is executed at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetPiece {
    /// The outcome of earlier keys.
    pub progress: Progress,
    /// The piece ends when the output has this many bytes or more.
    pub bytes: usize,
    /// Most keys of the piece, above 0.
    pub keys: usize,
}

impl GetPiece {
    /// The whole `get` as one piece.
    pub const ALL: Self = Self { progress: Progress::New, bytes: usize::MAX, keys: usize::MAX };
}

/// The result of a piece of a `get`.
#[derive(Debug)]
#[must_use]
pub enum PieceResult<'k> {
    /// Answered; `END` is written.
    Done,
    /// These keys, at least one, are still to answer.
    More(Keys<'k>),
    /// The `get` waits; nothing is written, except what was answered before an object's call.
    Parked(Box<ParkedRequest>),
    /// The `get` waits, and these keys, at least one, are still to answer: at once, behind what waits, if
    /// [`ParkedRequest::since_ms`] says so, or after it.
    ParkedMore(Box<ParkedRequest>, Keys<'k>),
}

/// The keys of a `get` that are neither hits nor plain misses.
pub(crate) struct Pending<'k> {
    /// Where its output begins.
    pub(crate) from: (usize, usize),
    /// Hashes of the keys of which the `get` has the lease, and its tokens.
    pub(crate) computes: Vec<(u64, u64)>,
    /// Keys for which the reply is `SERVER_ERROR busy`, if nothing of the `get` was sent before.
    pub(crate) busy: Vec<(AskedKey<'k>, u64)>,
    pub(crate) leased: Vec<LeasedKey<'k>>,
    /// Control keys, and their places in the output.
    pub(crate) control: Vec<(&'k [u8], (usize, usize))>,
    /// The call of an object comes next, which is made after the wait.
    pub(crate) call_next: bool,
}

/// A key that another client computes.
#[derive(Clone, Copy)]
pub(crate) struct LeasedKey<'k> {
    pub(crate) asked: AskedKey<'k>,
    pub(crate) hash: u64,
    /// The key's place in the output.
    pub(crate) at: (usize, usize),
    pub(crate) holds: HoldLimits,
}

impl<'k> Pending<'k> {
    /// No key yet, of a `get` whose output begins there.
    #[inline]
    pub(crate) fn at(from: (usize, usize)) -> Self {
        let (computes, busy, leased, control) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { from, computes, busy, leased, control, call_next: false }
    }

    #[inline]
    pub(crate) fn note(&mut self, asked: AskedKey<'k>, hash: u64, answer: KeyAnswer, cx: &Context<'_>) {
        match answer {
            // Calls of objects are executed at once.
            KeyAnswer::Hit | KeyAnswer::Miss | KeyAnswer::Object(_) => {}
            KeyAnswer::Compute => self.computes(hash, cx),
            KeyAnswer::Busy => self.busy.push((asked, hash)),
            KeyAnswer::Control => self.control.push((asked.key, cx.out.place())),
            KeyAnswer::Leased(holds) => {
                self.leased.push(LeasedKey { asked, hash, at: cx.out.place(), holds });
            }
        }
    }

    /// The leased keys as those of a part of a get, which the others follow.
    pub(crate) fn of_part(&self) -> Self {
        let of_part = |key: &LeasedKey<'k>| LeasedKey { asked: key.asked.of_part(), ..*key };
        let leased = self.leased.iter().map(of_part).collect();
        Self {
            from: self.from,
            computes: self.computes.clone(),
            busy: Vec::new(),
            leased,
            control: Vec::new(),
            call_next: self.call_next,
        }
    }

    /// Notes that the `get` was given the lease of this key.
    pub(crate) fn computes(&mut self, hash: u64, cx: &Context<'_>) {
        // A session that remembers no more computes as well.
        self.computes.push((hash, cx.session.last_lease(hash).unwrap_or(0)));
    }

    /// Whether its client must hear of a lease now, before the keys that others compute are there.
    pub(crate) fn must_answer(&self) -> bool {
        !self.computes.is_empty() && !self.partial_waits()
    }

    /// Whether a lease of it is no reason not to wait for the keys that others compute.
    pub(crate) fn partial_waits(&self) -> bool {
        self.leased.iter().all(|leased| leased.holds.partial_waits)
    }

    #[inline]
    pub(crate) fn is_special(&self) -> bool {
        !self.busy.is_empty() || !self.leased.is_empty() || !self.control.is_empty()
    }
}
