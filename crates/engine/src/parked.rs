//! Gets that cannot be answered at once, and all requests that wait: what a get lacks while it is executed,
//! how a request waits, and how it is woken.
//!
//! A `get` is executed piece by piece ([`GetPiece`]), and collects the keys that are neither hits nor plain
//! misses ([`Pending`]).
//!
//! A request that is held leaves a [`ParkedRequest`] instead of its reply. The server keeps it in its place
//! among the connection's replies, passes the [`crate::Wake`]s that come to it, and writes its reply when it
//! is done.
//!
//! # Invariants
//! * A key's verdict is set once; a request is done when all its keys have one.

use std::sync::Arc;

use cattlegrid_herd::{LateLease, LateNotice, Session};
use cattlegrid_protocol::{Keys, reply};
use cattlegrid_store::HugeValue;

use crate::counters::Counters;
use crate::delivered::{CALL_SLOT, DeliveredValue, Verdict};
use crate::query::{HoldLimits, KeyAnswer};
use crate::reply::call::OwnedCallForm;
use crate::reply::get::{AskedKey, GetEnd, OwnedAskedKey};
use crate::reply::meta::Refusals;
use crate::step::Context;
use crate::step::Output;

/// How long a get of a connection that computes its key is held on trial, to see whether something else is
/// sent on the connection, in milliseconds.
pub(crate) const TRIAL_MS: u32 = 10;

/// The reply to a bump that is obeyed here, and of which it is not known that the others obey it. After a
/// `SERVER_ERROR`, and after a status of the binary protocol other than 5, libmemcached asks the server
/// nothing for two seconds.
pub(crate) const NOT_CONFIRMED: &str = "CLIENT_ERROR bump not confirmed";

/// A request that waits.
#[derive(Debug)]
pub struct ParkedRequest {
    request: u64,
    deadline_ms: u64,
    /// The full deadline, if its connection turns out to be shared; the wait is a trial until then.
    full_ms: Option<u64>,
    hold_behind_ms: u32,
    /// Keys still waited for.
    open: u16,
    /// A `gat`, or an `mg` with `T`: it is counted as a touch.
    touches: bool,
    /// Since when its get waits, if parts of it behind this one wait as well.
    since_ms: Option<u64>,
    /// The leases that it has, if it waits for its other keys nevertheless; None: a lease ends the wait.
    computes: Option<Vec<LateLease>>,
    form: ParkedForm,
}

/// The form of the reply.
#[derive(Debug)]
pub(crate) enum ParkedForm {
    /// A get of one or many keys, and what follows them.
    Get { parts: Vec<ReplyPart>, end: GetEnd },
    /// The call of an object, and its result. `is_barrier`: the next command of its connection has to wait
    /// for it.
    Call { shape: OwnedCallForm, is_barrier: bool, verdict: Option<Verdict> },
    /// A bump that has been obeyed, and the reply to it if it is confirmed.
    Bump { done: Output, refusals: Refusals, is_confirmed: bool },
}

/// A piece of the reply to a get.
#[derive(Debug)]
pub(crate) enum ReplyPart {
    /// Keys that were answered at once.
    Done(Output),
    /// A key that is waited for.
    Key { slot: u16, asked: OwnedAskedKey, verdict: Option<Verdict> },
}

impl ParkedRequest {
    pub(crate) fn new(
        request: u64,
        deadline_ms: u64,
        hold_behind_ms: u32,
        touches: bool,
        form: ParkedForm,
    ) -> Self {
        let open = match &form {
            ParkedForm::Get { parts, .. } => {
                parts.iter().filter(|part| matches!(part, ReplyPart::Key { .. })).count()
            }
            ParkedForm::Call { .. } | ParkedForm::Bump { .. } => 1,
        };
        let open = open as u16;
        Self {
            request,
            deadline_ms,
            full_ms: None,
            hold_behind_ms,
            open,
            touches,
            since_ms: None,
            computes: None,
            form,
        }
    }

    /// The request.
    pub fn request(&self) -> u64 {
        self.request
    }

    /// When its time is up, in milliseconds since the start; then [`crate::Engine::expire`] is due.
    /// Afterwards `u64::MAX`, or another time at which it must be expired again.
    pub fn deadline_ms(&self) -> u64 {
        self.deadline_ms
    }

    /// A finished reply waits behind it: shortens the remaining time to `hold_behind`.
    pub fn hurry(&mut self, now_ms: u64) {
        if self.deadline_ms != u64::MAX {
            self.deadline_ms = self.deadline_ms.min(now_ms + u64::from(self.hold_behind_ms));
        }
    }

    /// When the get of which this is a part began to wait, in milliseconds since the start; None: the other
    /// parts wait until this one is executed. With a time they need not, since a loader computes this part's
    /// values. When that get began to wait, in milliseconds since the start.
    pub fn since_ms(&self) -> Option<u64> {
        self.since_ms
    }

    /// Sets that.
    #[must_use]
    pub(crate) fn since(mut self, since_ms: Option<u64>) -> Self {
        self.since_ms = since_ms;
        self
    }

    /// Makes it a trial, which continues until `full_ms` if its connection turns out to be shared.
    #[must_use]
    pub(crate) fn on_trial(mut self, full_ms: Option<u64>) -> Self {
        self.full_ms = full_ms;
        self
    }

    /// Lets it wait although it has these leases, or gets some.
    #[must_use]
    pub(crate) fn partial(mut self, computes: Vec<LateLease>) -> Self {
        self.computes = Some(computes);
        self
    }

    /// Continues, when the time of the request is up, a trial if its connection is shared. True: it waits
    /// until `full_ms`.
    pub(crate) fn extend_trial(&mut self, session: &mut Session) -> bool {
        let full_ms = self.full_ms.take().filter(|_| session.shares(self.request));
        if let Some(full_ms) = full_ms {
            self.deadline_ms = full_ms;
        }
        full_ms.is_some()
    }

    /// Notes that the request was expired; the keys that are open come as wakes.
    pub(crate) fn never_again(&mut self) {
        self.deadline_ms = u64::MAX;
    }

    /// Bytes kept for the reply: its own, and those of values that it shares with other requests.
    pub fn kept_bytes(&self) -> (usize, usize) {
        let value = |verdict: &Option<Verdict>| match verdict {
            Some(Verdict::Value(value)) => value.copied_bytes(),
            _ => 0,
        };
        let keys = self.computes.iter().flatten().map(|late| late.key.len() + size_of::<LateLease>()).sum();
        match &self.form {
            ParkedForm::Get { parts, .. } => parts.iter().fold((keys, 0), |(own, shared), part| match part {
                ReplyPart::Done(done) => (own + done.bytes.capacity(), shared),
                ReplyPart::Key { asked, verdict, .. } => (own + asked.bytes(), shared + value(verdict)),
            }),
            ParkedForm::Call { shape, verdict, .. } => (shape.bytes(), value(verdict)),
            ParkedForm::Bump { done, .. } => (done.bytes.capacity(), 0),
        }
    }

    /// Calls `each` with the values in their own pages that are kept for the reply.
    pub fn each_huge(&self, each: &mut dyn FnMut(&Arc<HugeValue>)) {
        let value = |verdict: &Option<Verdict>, each: &mut dyn FnMut(&Arc<HugeValue>)| {
            if let Some(Verdict::Value(value)) = verdict
                && let DeliveredValue::Huge(huge) = &value.value
            {
                each(huge);
            }
        };
        match &self.form {
            ParkedForm::Get { parts, .. } => parts.iter().for_each(|part| match part {
                ReplyPart::Done(done) => done.huge.iter().for_each(|(_, huge)| each(huge)),
                ReplyPart::Key { verdict, .. } => value(verdict, each),
            }),
            ParkedForm::Call { verdict, .. } => value(verdict, each),
            ParkedForm::Bump { done, .. } => done.huge.iter().for_each(|(_, huge)| each(huge)),
        }
    }

    /// Whether the next command of its connection must not be executed before it has ended: it may change
    /// something then.
    pub fn is_barrier(&self) -> bool {
        matches!(self.form, ParkedForm::Call { is_barrier: true, .. })
    }

    /// Whether it is the reply to a bump, which waits though its client sends no more.
    pub fn is_bump(&self) -> bool {
        matches!(self.form, ParkedForm::Bump { .. })
    }

    /// Ends the wait for a bump that was not confirmed in time. False: it is no bump.
    pub(crate) fn end_bump(&mut self) -> bool {
        if self.is_bump() {
            self.open = 0;
        }
        self.is_bump()
    }

    /// Whether no key is waited for any more: the reply can be written.
    pub fn is_done(&self) -> bool {
        self.open == 0
    }

    /// Takes a wake of this request. A key whose verdict is known, and every key of a request that is done,
    /// is left as it is. Counts a hit or a miss.
    pub fn resolve(
        &mut self,
        slot: u16,
        verdict: Verdict,
        session: &mut Session,
        now_ms: u64,
        counters: &Counters,
    ) {
        if let ParkedForm::Bump { is_confirmed, .. } = &mut self.form {
            if self.open > 0 && slot == CALL_SLOT {
                *is_confirmed = matches!(verdict, Verdict::Miss { .. });
                self.open = 0;
            }
            return;
        }
        if let ParkedForm::Call { shape, verdict: place, .. } = &mut self.form {
            if place.is_none() && slot == CALL_SLOT {
                shape.count(&verdict, counters);
                *place = Some(verdict);
                self.open -= 1;
            }
            return;
        }
        if !session.waits().iter().any(|wait| wait.request == self.request && wait.slot == slot) {
            return;
        }
        if let (Verdict::Busy { .. }, ParkedForm::Get { end: GetEnd::Classic, .. }) = (&verdict, &self.form) {
            session.note_unseen(self.request);
        }
        session.end_wait(self.request, slot);
        if let Some(record) = verdict.record() {
            session.record(*record, now_ms);
            match (self.computes.is_some(), record.leased) {
                (true, true) => self.waits_with_lease(slot, (record.hash, record.number), session, now_ms),
                // A client that got a lease must hear of it now, not when its other keys are there.
                (false, true) => self.deadline_ms = self.deadline_ms.min(now_ms),
                (_, false) => {}
            }
        }
        let place = match &mut self.form {
            ParkedForm::Get { parts, .. } => parts.iter_mut().find_map(|part| match part {
                ReplyPart::Key { slot: own, verdict, .. } if *own == slot => Some(verdict),
                _ => None,
            }),
            ParkedForm::Call { .. } | ParkedForm::Bump { .. } => None,
        };
        if let Some(place @ None) = place {
            count(&verdict, self.touches, counters);
            *place = Some(verdict);
            self.open -= 1;
        }
        if self.open == 0
            && let Some(computes) = self.computes.take()
        {
            let told = if self.is_busy() { LateNotice::Never } else { LateNotice::Answered };
            for late in computes {
                session.note_late(LateLease { told, ..late });
            }
        }
    }

    /// Notes that the request was given a lease, and waits for its other keys nevertheless.
    fn waits_with_lease(&mut self, slot: u16, (hash, token): (u64, u64), session: &mut Session, now_ms: u64) {
        let ParkedForm::Get { parts, .. } = &self.form else { return };
        let key = parts.iter().find_map(|part| match part {
            ReplyPart::Key { slot: own, asked, .. } if *own == slot => Some(asked.key()),
            _ => None,
        });
        let Some(key) = key else { return };
        // A request that was expired waits for wakes that are on their way.
        let until_ms = if self.deadline_ms == u64::MAX { now_ms } else { self.deadline_ms };
        let late = LateLease { key: key.into(), hash, token, told: LateNotice::Waits(until_ms) };
        session.note_late(late.clone());
        self.computes.get_or_insert_default().push(late);
    }

    /// Whether its reply is `SERVER_ERROR busy` as a whole.
    fn is_busy(&self) -> bool {
        matches!(&self.form, ParkedForm::Get { parts, end } if is_busy(parts, *end))
    }

    /// Writes the reply.
    pub fn write(self, out: &mut Output) {
        match self.form {
            ParkedForm::Get { parts, end } => write_get(parts, end, out),
            ParkedForm::Bump { done, is_confirmed: true, .. } => out.append(done),
            ParkedForm::Bump { refusals, .. } => refusals.write_not_stored(NOT_CONFIRMED, &mut out.bytes),
            ParkedForm::Call { shape, verdict, .. } => {
                let verdict = verdict.unwrap_or(Verdict::Miss { record: None, hint: None });
                shape.write(&verdict, out);
            }
        }
    }
}

/// Counts a hit or a miss.
pub(crate) fn count(verdict: &Verdict, touches: bool, counters: &Counters) {
    match (verdict, touches) {
        (Verdict::Busy { .. }, _) => {}
        (Verdict::Value(_), true) => counters.touch_hits.add(1),
        (Verdict::Value(_), false) => counters.get_hits.add(1),
        (_, true) => counters.touch_misses.add(1),
        (_, false) => counters.get_misses.add(1),
    }
}

/// Whether a reply of these parts is an error as a whole.
fn is_busy(parts: &[ReplyPart], end: GetEnd) -> bool {
    let busy = |part: &ReplyPart| matches!(part, ReplyPart::Key { verdict: Some(Verdict::Busy { .. }), .. });
    end == GetEnd::Classic && parts.iter().any(busy)
}

fn write_get(parts: Vec<ReplyPart>, end: GetEnd, out: &mut Output) {
    if is_busy(&parts, end) {
        return reply::line(&mut out.bytes, reply::error::BUSY);
    }
    for part in parts {
        match part {
            ReplyPart::Done(done) => out.append(done),
            ReplyPart::Key { asked, verdict, .. } => asked.write(verdict, out),
        }
    }
    end.write(&mut out.bytes);
}

/// A part of a classic reply of which some keys wait: cuts off what was written since `from`.
pub(crate) fn done_part(parts: &mut Vec<ReplyPart>, cx: &mut Context<'_>, from: (usize, usize)) {
    let done = cx.out.split_off(from);
    if !done.is_empty() {
        parts.push(ReplyPart::Done(done));
    }
}

/// For tests of the reply queue: they set the number of open keys themselves.
#[cfg(test)]
impl ParkedRequest {
    pub(crate) fn open(&self) -> u8 {
        self.open as u8
    }

    pub(crate) fn set_open(&mut self, open: u8) {
        self.open = open.into();
    }
}

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
