//! `mg` and `md` of keys under a rule: leases asked for by name.

use cattlegrid_herd::{How, Kind, Waited};
use cattlegrid_protocol::{Meta, reply};
use cattlegrid_store::{Found, Lookup, Marks, NEVER};
use cattlegrid_tags::Kind as TagKind;

use crate::decide::{Decision, Holds, Query};
use crate::event::{EventKind, Interest, Looker};
use crate::meta::meta_get_miss;
use crate::meta_reply::{is_explicit, lease_reply, status_line};
use crate::park::{Form, Parked};
use crate::rules::Change;
use crate::shard::{Flow, Shard};
use crate::shared::Match;
use crate::step::Context;
use crate::waiting::TRIAL_MS;

/// What the `P` flag says: `w<ms>`, `h<text>`, `d`, `e<text>`, `l<ms>`, with commas between them. What is not understood
/// is advice not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Advice<'a> {
    /// `w`: hold me up to so many milliseconds.
    wait_ms: Option<u32>,
    /// `l`: my lease is to last so many milliseconds.
    lease_ms: Option<u32>,
    /// `h`: for whoever computes.
    hint: Option<&'a [u8]>,
    /// `d`: my lease outlives my connection.
    detached: bool,
    /// `e`: the computation failed.
    pub(crate) error: Option<&'a [u8]>,
}

/// Longest hold and lease that can be asked for, in milliseconds.
const ASKED_MAX_MS: u32 = 60_000;
/// Longest `P` flag in bytes.
const ADVICE_MAX: usize = 512;

impl<'a> Advice<'a> {
    pub(crate) fn of(meta: &Meta<'a>) -> Self {
        let mut advice = Self::default();
        let Some(token) = meta.flags.into_iter().find(|token| token[0] == b'P' && token.len() <= ADVICE_MAX)
        else {
            return advice;
        };
        for part in token[1..].split(|byte| *byte == b',') {
            match part.split_first() {
                Some((b'w', ms)) => advice.wait_ms = number(ms),
                Some((b'l', ms)) => advice.lease_ms = number(ms).filter(|ms| *ms > 0),
                Some((b'h', text)) => advice.hint = Some(text),
                Some((b'd', [])) => advice.detached = true,
                Some((b'e', text)) => advice.error = Some(text),
                _ => {}
            }
        }
        advice
    }
}

impl Advice<'_> {
    /// How a lease is asked for that `N` or `R` is about. `N` says for how long, as far as `l` does not.
    fn how(&self, meta: &Meta<'_>) -> How {
        let seconds = if meta.set.has(b'N') { u32::try_from(meta.set.vivify).unwrap_or(0) } else { 0 };
        let asked = (seconds > 0).then(|| seconds.saturating_mul(1000).min(ASKED_MAX_MS));
        How::Explicit { detached: self.detached, lease_ms: self.lease_ms.or(asked) }
    }
}

fn number(text: &[u8]) -> Option<u32> {
    let number: u32 = std::str::from_utf8(text).ok()?.parse().ok()?;
    Some(number.min(ASKED_MAX_MS))
}

impl Shard {
    /// Whether an `mg` has to look for the key's rule: not for a plain hit that needs no refresh.
    #[inline]
    pub(crate) fn may_be_ruled(&self, meta: &Meta<'_>, lookup: Lookup, cx: &Context<'_>) -> bool {
        let Lookup::Found(found) = lookup else { return true };
        let item = self.store.item(found);
        self.rolling || !item.is_plain(cx.step.now.second) || recache_due(meta, item.expiry(), cx)
    }

    /// `mg` of a key under a rule with leases that is absent, old, due for a refresh or a negative answer.
    #[cold]
    pub(crate) fn meta_get_ruled(
        &mut self,
        meta: &Meta<'_>,
        hash: u64,
        lookup: Lookup,
        ruled: &Match<'_>,
        cx: &mut Context<'_>,
    ) -> Flow {
        let (touches, explicit) = (meta.set.has(b'T'), is_explicit(meta));
        cx.step.counters.cmd_meta.add(1);
        cx.step.counters.cmd_get.add(1);
        if touches {
            cx.step.counters.cmd_touch.add(1);
        }
        let advice = Advice::of(meta);
        let query = Query {
            key: meta.key.bytes(),
            hash,
            how: if explicit { advice.how(meta) } else { How::Plain },
            prolongs: touches && !explicit,
            recache: meta.set.has(b'R').then(|| cx.step.now.expiry(meta.set.recache)),
            hint: advice.hint,
            hold_ms: explicit.then(|| advice.wait_ms.unwrap_or(0)),
        };
        match self.decide(&query, ruled, lookup, cx) {
            Decision::Fresh(found) => self.meta_hit(meta, hash, found, Mark::None, None, cx),
            Decision::Old(found, kind) => {
                let mark = match (kind, explicit) {
                    (Kind::Stale, _) => Mark::Lost(true),
                    (_, true) => Mark::Lost(false),
                    (_, false) => Mark::None,
                };
                self.meta_hit(meta, hash, found, mark, None, cx)
            }
            Decision::Negative => {
                meta_get_miss(meta, Lookup::Absent, touches, cx);
                Flow::Replied
            }
            Decision::Compute(grant, old) if explicit => {
                count_miss(touches, cx);
                let (token, hint) = (grant.record.number, grant.hint.as_deref());
                if let Some((found, kind)) = old {
                    return self.meta_hit(meta, hash, found, Mark::Won(token, kind == Kind::Stale), hint, cx);
                }
                lease_reply(meta, Some(token), hint, cx.out);
                Flow::Replied
            }
            Decision::Compute(..) | Decision::Miss => meta_miss(meta, cx),
            Decision::Leased(holds) => self.meta_wait(meta, &query, ruled, holds, cx),
            Decision::Busy => meta_busy(cx),
        }
    }

    fn meta_wait(
        &mut self,
        meta: &Meta<'_>,
        query: &Query<'_>,
        ruled: &Match<'_>,
        holds: Holds,
        cx: &mut Context<'_>,
    ) -> Flow {
        let touches = meta.set.has(b'T');
        match self.hold(query, ruled, 0, touches.then_some(meta.set.exptime), cx) {
            Waited::Waits(_) => {
                let full = cx.step.now.ms + u64::from(holds.one_ms);
                let deadline =
                    if holds.on_trial { full.min(cx.step.now.ms + u64::from(TRIAL_MS)) } else { full };
                let form = Form::Meta { meta: meta.to_owned(), verdict: None };
                let parked = Parked::new(cx.ticket.request, deadline, holds.behind_ms, touches, form);
                Flow::Parked(Box::new(parked.on_trial(holds.on_trial.then_some(full))))
            }
            Waited::Miss(_) => meta_miss(meta, cx),
            Waited::Busy => meta_busy(cx),
        }
    }

    /// A hit of a key under a rule, with what is said about its lease.
    fn meta_hit(
        &mut self,
        meta: &Meta<'_>,
        hash: u64,
        found: Found,
        mark: Mark,
        hint: Option<&[u8]>,
        cx: &mut Context<'_>,
    ) -> Flow {
        let flags = &meta.set;
        let (cas, size) = (self.store.item(found).cas(), self.store.item(found).value_len());
        let with_value = flags.has(b'v') && !(flags.has(b'C') && flags.compare_cas == cas);
        let token = if let Mark::Won(token, _) = mark { Some(token) } else { None };
        let (expiry, _) = self.meta_get_header(meta, found, false, with_value, token, cx);
        let out = &mut cx.out.bytes;
        if let Mark::Lost(_) = mark {
            reply::lost(out);
        }
        if let Mark::Lost(true) | Mark::Won(_, true) = mark {
            reply::stale(out);
        }
        if let Mark::Won(..) = mark {
            reply::won(out);
        }
        if let Some(hint) = hint {
            out.extend_from_slice(b" Ph");
            out.extend_from_slice(hint);
        }
        reply::end_line(out);
        if with_value {
            cx.out.value(self.store.item(found).value());
            reply::end_line(&mut cx.out.bytes);
        }
        if token.is_none() {
            if flags.has(b'T') {
                cx.step.counters.touch_hits.add(1);
            } else {
                cx.step.counters.get_hits.add(1);
            }
        }
        // An old value is not prolonged by those who read it.
        let old = matches!(mark, Mark::Lost(true) | Mark::Won(_, true));
        let found = match expiry.filter(|_| !old) {
            Some(expiry) => self.store.set_expiry(hash, found, expiry),
            None => found,
        };
        if !flags.has(b'u') {
            self.store.count_read(found);
        }
        cx.note(Interest::FETCHERS, meta.key.bytes(), || EventKind::Get {
            status: "found",
            size,
            by: Looker::Other,
        });
        if flags.has(b'T') && !old {
            self.cascade(meta.key.bytes(), hash, Change::Touch, cx.step.now);
        }
        Flow::Replied
    }

    /// `md` of a key under a rule.
    pub(crate) fn meta_delete_ruled(&mut self, meta: &Meta<'_>, hash: u64, cx: &mut Context<'_>) -> Flow {
        let (key, flags) = (meta.key.bytes(), &meta.set);
        let found = match self.lookup(hash, key, &cx.step) {
            Lookup::Found(found) => Some(found),
            _ => None,
        };
        let seen = found.filter(|found| !self.store.item(*found).marks().has(Marks::NEGATIVE));
        let compare = flags.has(b'C').then_some(flags.compare_cas);
        let is_items =
            compare.is_none_or(|cas| seen.is_some_and(|found| self.store.item(found).cas() == cas));
        let gives_up = compare.filter(|token| {
            !is_items && self.herd.as_ref().is_some_and(|herd| herd.is_current(hash, *token))
        });
        let kind = if flags.has(b'I') { TagKind::Soft } else { TagKind::Hard };
        let mut cascades = false;
        let status = if let Some(token) = gives_up {
            let text = Advice::of(meta).error.unwrap_or_default();
            let failed = self.with_herd(&mut cx.step, |herd, step| herd.failed(hash, token, text, step));
            cx.session.take_number(hash, token);
            if failed == Some(true) { reply::HD } else { reply::NF }
        } else {
            match seen {
                // Under a condition there was nothing to delete.
                None if compare.is_some() => reply::NF,
                None => {
                    // Known to be absent, or not there: a delete all the same, for what is being computed.
                    if flags.has(b'I') {
                        self.soften(key, hash, cx);
                    } else {
                        self.delete_ruled(key, hash, cx);
                    }
                    cascades = true;
                    reply::NF
                }
                Some(_) if !is_items => reply::EX,
                Some(stub) if self.gives_up_stub(meta, stub) => {
                    self.store.remove(hash, stub);
                    reply::HD
                }
                Some(found) => {
                    let size = self.store.item(found).value_len();
                    if flags.has(b'I') || flags.has(b'x') {
                        self.answer_all_own_waits(hash, cx);
                        if !self.invalidate_item(meta, hash, found, cx) {
                            return self.no_room(key.len() + 64, false, cx);
                        }
                        if flags.has(b'I') {
                            self.soften(key, hash, cx);
                        } else {
                            self.changed(key, hash, false, cx);
                        }
                    } else {
                        self.delete_ruled(key, hash, cx);
                    }
                    if !flags.has(b'I') {
                        cx.note(Interest::DELETIONS, key, || EventKind::Deleted { command: "md", size });
                    }
                    cascades = true;
                    reply::HD
                }
            }
        };
        if cascades {
            self.cascade_as(kind, key, hash, Change::Delete, cx.step.now);
        }
        cx.step.counters.cmd_meta.add(1);
        if status == reply::HD {
            cx.step.counters.delete_hits.add(1);
        } else {
            cx.step.counters.delete_misses.add(1);
        }
        if !(flags.has(b'q') && status == reply::HD) {
            status_line(&mut cx.out.bytes, status, meta);
        }
        Flow::Replied
    }

    fn soften(&mut self, key: &[u8], hash: u64, cx: &mut Context<'_>) {
        let number = self.shared.tick();
        self.invalidate_softly(key, hash, number, cx);
    }

    /// When a negative answer ends: at `expiry`, or as its key's rule says; None: never, which is refused.
    pub(crate) fn negative_expiry(&mut self, key: &[u8], expiry: u32, cx: &Context<'_>) -> Option<u32> {
        if expiry != NEVER {
            return Some(expiry);
        }
        let seconds = self.rule_of(key)?.negative_ttl_s;
        (seconds > 0).then(|| cx.step.now.second.saturating_add(seconds))
    }
}

/// What a hit says about the key's lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// Nothing.
    None,
    /// `W`: the lease is yours, this is its token. True: the value is old.
    Won(u64, bool),
    /// `Z`: somebody else computes. True: the value is old.
    Lost(bool),
}

/// Whether `R` asks for a value that expires then to be computed again.
fn recache_due(meta: &Meta<'_>, expiry: u32, cx: &Context<'_>) -> bool {
    meta.set.has(b'R') && expiry != NEVER && expiry < cx.step.now.expiry(meta.set.recache)
}

pub(crate) fn count_miss(touches: bool, cx: &Context<'_>) {
    if touches {
        cx.step.counters.touch_misses.add(1);
    } else {
        cx.step.counters.get_misses.add(1);
    }
}

/// A miss of a key under a rule: `Z` to one who has asked for the lease.
fn meta_miss(meta: &Meta<'_>, cx: &mut Context<'_>) -> Flow {
    count_miss(meta.set.has(b'T'), cx);
    if is_explicit(meta) {
        lease_reply(meta, None, None, cx.out);
    } else {
        meta_get_miss_uncounted(meta, cx);
    }
    Flow::Replied
}

fn meta_busy(cx: &mut Context<'_>) -> Flow {
    reply::line(&mut cx.out.bytes, reply::error::BUSY);
    Flow::Replied
}

/// `EN`, unless it is quiet.
fn meta_get_miss_uncounted(meta: &Meta<'_>, cx: &mut Context<'_>) {
    cx.note(Interest::FETCHERS, meta.key.bytes(), || EventKind::Get {
        status: "not_found",
        size: 0,
        by: Looker::Other,
    });
    if !meta.set.has(b'q') {
        status_line(&mut cx.out.bytes, reply::EN, meta);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cattlegrid_protocol::{Limits, Parsed, Request, parse};

    #[test]
    fn advice_is_read_as_far_as_it_is_understood() {
        let advice = |flags: &str| {
            let line = format!("mg k v {flags}\r\n");
            let Parsed::Complete { request: Request::MetaGet(meta), .. } =
                parse(line.as_bytes(), &Limits::default())
            else {
                panic!("{line:?}")
            };
            let Advice { wait_ms, lease_ms, hint, detached, error } = Advice::of(&meta);
            let text = |text: Option<&[u8]>| text.map(|text| String::from_utf8_lossy(text).into_owned());
            (wait_ms, lease_ms, text(hint), detached, text(error))
        };
        assert_eq!(advice("Pw400,hfast"), (Some(400), None, Some("fast".into()), false, None));
        assert_eq!(advice("Pd,l100,w"), (None, Some(100), None, true, None));
        assert_eq!(advice("Pesome%20text"), (None, None, None, false, Some("some%20text".into())));
        assert_eq!(advice("Pw99999999,x1"), (Some(60_000), None, None, false, None));
        assert_eq!(advice("N30"), (None, None, None, false, None));
    }
}
