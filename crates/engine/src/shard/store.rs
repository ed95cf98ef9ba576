//! Commands that store: `set add replace append prepend cas incr decr`, and what `ms` and `ma` share with
//! them.
//!
//! The reply is the caller's; a write counts and notes its own outcome. A key under a rule is written by
//! `write_ruled` and `fill`.

use cattlegrid_protocol::{Arith, Store as StoreRequest, StoreVerb, reply};
use cattlegrid_store::{Attributes, Lookup, Marks, NewValue, TAGS_MAX, Value};

use crate::event::{EventKind, Looker};
use crate::reply::meta::Refusals;
use crate::rules::Change;
use crate::shard::put::{
    AddOutcome, TagsRefused, WHOLE, Write, WriteData, WriteMode, WriteOutcome, note_refused,
};
use crate::shard::{Flow, Shard};
use crate::step::{Context, Interest};

impl Shard {
    pub(crate) fn classic_store(
        &mut self,
        request: &StoreRequest<'_>,
        hash: u64,
        data: WriteData<'_>,
        cx: &mut Context<'_>,
    ) -> Flow {
        let compare = if let StoreVerb::Cas(cas) = request.verb { cas } else { 0 };
        let write = Write {
            drops_old: matches!(request.verb, StoreVerb::Set),
            mode: WriteMode::of(request.verb),
            data,
            flags: request.flags,
            expiry: cx.step.now.expiry(request.exptime),
            compare,
            ..Write::set(request.key, hash, &[])
        };
        let text = match self.write(&write, cx) {
            WriteOutcome::Stored { .. } => reply::STORED,
            WriteOutcome::NotStored | WriteOutcome::Refused(TagsRefused::Unannounced) => reply::NOT_STORED,
            WriteOutcome::Exists => reply::EXISTS,
            WriteOutcome::NotFound => reply::NOT_FOUND,
            WriteOutcome::NoRoom(bytes) => {
                return self.refuse(&write, bytes, Refusals::classic(request.noreply), cx);
            }
            WriteOutcome::Refused(refused) => {
                Refusals::classic(request.noreply).write(&refused.line(), &mut cx.out.bytes);
                return Flow::Replied;
            }
        };
        if !request.noreply {
            cx.out.bytes.extend_from_slice(text);
        }
        Flow::Replied
    }

    /// Writes an item as its mode says. Counts and notes the write; the reply is the caller's.
    pub(crate) fn write(&mut self, write: &Write<'_>, cx: &mut Context<'_>) -> WriteOutcome {
        let observed = if self.observer.is_some() { self.observe_write(write, cx) } else { None };
        let outcome = match self.rule_of(write.key) {
            Some(ruled) => self.write_tagged(write, &ruled, cx),
            // A negative answer counts as absent for every command, but a new item replaces it.
            None => match self.find(write.hash, write.key, &cx.step) {
                Some(found) => self.write_over(write, found, cx),
                None => self.write_new(write, cx),
            },
        };
        if let Some(observed) = observed {
            self.observe_outcome(observed, write, outcome, cx);
        }
        match outcome {
            WriteOutcome::NoRoom(_) => return outcome,
            WriteOutcome::Refused(refused) => {
                if refused == TagsRefused::Unannounced {
                    cx.step.counters.cmd_set.add(1);
                }
                note_refused(write.key, write.mode, !write.takes_token, "not_stored", cx);
                return outcome;
            }
            _ => {}
        }
        cx.step.counters.cmd_set.add(1);
        if let WriteOutcome::Stored { .. } = outcome {
            self.cascade(write.key, write.hash, Change::Set, cx.step.now);
        }
        if write.mode == WriteMode::Cas {
            match outcome {
                WriteOutcome::Stored { .. } => cx.step.counters.cas_hits.add(1),
                WriteOutcome::NotFound => cx.step.counters.cas_misses.add(1),
                _ => cx.step.counters.cas_badval.add(1),
            }
        }
        let ttl = cx.step.now.left(write.expiry).unwrap_or(0);
        cx.note(Interest::MUTATIONS, write.key, || EventKind::Store {
            status: match outcome {
                WriteOutcome::Stored { .. } => "stored",
                WriteOutcome::Exists => "exists",
                WriteOutcome::NotFound => "not_found",
                _ => "not_stored",
            },
            command: write.mode.name(),
            ttl,
            size: if let WriteOutcome::Stored { size, .. } = outcome { size } else { write.data.len() },
            classic: !write.takes_token,
        });
        outcome
    }

    /// Executes a `set` that no client has sent, and whose result is not told to any. Returns why the value's
    /// tags are refused, if they are.
    ///
    /// # Errors
    /// The bytes for which there was no room: nothing has changed then. At its `last` try the write is
    /// refused instead.
    pub(crate) fn set(
        &mut self,
        write: &Write<'_>,
        last: bool,
        cx: &mut Context<'_>,
    ) -> Result<Option<TagsRefused>, usize> {
        self.advance(&cx.step);
        if self.is_named(write.key) {
            // Types were switched on in between.
            return Ok(None);
        }
        let noted = cx.step.effects.events.len();
        self.note_lookup(write.key, write.hash, Looker::Store, cx);
        match self.write(write, cx) {
            WriteOutcome::NoRoom(bytes) if last => {
                self.refuse_write(write, cx);
                Err(bytes)
            }
            WriteOutcome::NoRoom(bytes) => {
                cx.step.effects.events.truncate(noted);
                Err(bytes)
            }
            WriteOutcome::Refused(refused) => Ok(Some(refused)),
            _ => Ok(None),
        }
    }

    /// A write for which there is no room: an error.
    pub(crate) fn refuse(
        &mut self,
        write: &Write<'_>,
        bytes: usize,
        refusals: Refusals,
        cx: &mut Context<'_>,
    ) -> Flow {
        if !self.is_last_try() {
            return Flow::NeedsRoom(bytes);
        }
        refusals.write(reply::error::OUT_OF_MEMORY, &mut cx.out.bytes);
        self.refuse_write(write, cx);
        Flow::Replied
    }

    /// Refuses a write whose client is not told.
    pub(crate) fn refuse_write(&mut self, write: &Write<'_>, cx: &mut Context<'_>) {
        cx.step.counters.store_no_memory.add(1);
        self.refused(write, cx);
        note_refused(write.key, write.mode, !write.takes_token, "no_memory", cx);
    }

    pub(crate) fn classic_arith(&mut self, arith: &Arith<'_>, hash: u64, cx: &mut Context<'_>) -> Flow {
        let out = match self.add(arith.key, hash, arith.incr, arith.delta, 0, None, cx) {
            AddOutcome::Is(sum, _) => {
                if !arith.noreply {
                    reply::number(&mut cx.out.bytes, sum);
                    reply::end_line(&mut cx.out.bytes);
                }
                return Flow::Replied;
            }
            AddOutcome::NotFound => {
                count_arith_miss(arith.incr, cx);
                reply::NOT_FOUND
            }
            AddOutcome::Exists => reply::EXISTS,
            AddOutcome::NotNumeric => {
                // As in memcached, an error is not sent under `noreply` either.
                if !arith.noreply {
                    reply::line(&mut cx.out.bytes, reply::error::NOT_NUMERIC);
                }
                return Flow::Replied;
            }
            AddOutcome::NoRoom => {
                return self.no_room(arith.key.len() + 64, Refusals::classic(arith.noreply), cx);
            }
        };
        if !arith.noreply {
            cx.out.bytes.extend_from_slice(out);
        }
        Flow::Replied
    }

    /// Adds to or subtracts from an item's number; `compare`: the CAS that it must have, 0: any.
    #[expect(clippy::too_many_arguments, reason = "one call for `incr decr ma`, which share all of them")]
    pub(crate) fn add(
        &mut self,
        key: &[u8],
        hash: u64,
        incr: bool,
        delta: u64,
        compare: u64,
        explicit_cas: Option<u64>,
        cx: &mut Context<'_>,
    ) -> AddOutcome {
        let Some(found) = self.find(hash, key, &cx.step) else { return AddOutcome::NotFound };
        let item = self.store.item(found);
        let len = item.value_len();
        if len == 0 || !WHOLE.fits(key, item.flags(), len) {
            return AddOutcome::NotNumeric;
        }
        if compare != 0 && item.cas() != compare {
            return AddOutcome::Exists;
        }
        let Value::Inline(text) = item.value() else { return AddOutcome::NotNumeric };
        let Some(number) = parse_number(text) else { return AddOutcome::NotNumeric };
        let sum = if incr { number.wrapping_add(delta) } else { number.saturating_sub(delta) };
        if incr {
            cx.step.counters.incr_hits.add(1);
        } else {
            cx.step.counters.decr_hits.add(1);
        }
        let mut digits = std::mem::take(&mut self.scratch);
        digits.clear();
        reply::number(&mut digits, sum);
        let mut room = [0; TAGS_MAX];
        let old = item.attributes(&mut room);
        let (cas, stamp) = self.numbers(explicit_cas);
        let kept = self.kept_stamp(&item);
        let attributes = if digits.len() <= len {
            // The length stays, and the rest is filled with blanks; the marks stay too.
            digits.resize(len, b' ');
            Attributes { cas, stamp: kept.or(stamp), marks: old.marks.with(Marks::EDITED), ..old }
        } else {
            Attributes {
                cas,
                stamp: kept.or(stamp),
                accessed: cx.step.now.second,
                marks: Marks::EDITED,
                ..old
            }
        };
        let stored = self.store.put(hash, key, &attributes, NewValue::Inline([&digits, &[]]));
        self.keep_scratch(digits);
        if stored.is_ok() {
            self.changed(key, hash, false, cx);
            self.observe_change(key, hash, true, &cx.step);
            self.cascade(key, hash, Change::Incr, cx.step.now);
        }
        match (stored, self.store.lookup(hash, key)) {
            (Ok(()), Lookup::Found(found)) => AddOutcome::Is(sum, found),
            _ => AddOutcome::NoRoom,
        }
    }
}

/// A number as memcached's `strtoull` reads a value: blanks, a sign, digits, then a blank or the end.
fn parse_number(text: &[u8]) -> Option<u64> {
    // C's white space includes the vertical tab, Rust's does not.
    let blank = |b: u8| matches!(b, b' ' | b'\t'..=b'\r');
    let text = &text[text.iter().take_while(|b| blank(**b)).count()..];
    let (negative, text) = match text.split_first() {
        Some((b'-', rest)) => (true, rest),
        Some((b'+', rest)) => (false, rest),
        _ => (false, text),
    };
    let len = text.iter().take_while(|b| b.is_ascii_digit()).count();
    // In C a NUL ends the text.
    if len == 0 || text.get(len).is_some_and(|b| *b != 0 && !blank(*b)) {
        return None;
    }
    let number =
        text[..len].iter().try_fold(0_u64, |n, b| n.checked_mul(10)?.checked_add(u64::from(b - b'0')))?;
    if negative && number != 0 { None } else { Some(number) }
}

/// Counts arithmetic that finds no number and creates none: a number that is created is no miss, as in
/// memcached.
pub(crate) fn count_arith_miss(incr: bool, cx: &Context<'_>) {
    let counters = cx.step.counters;
    if incr { &counters.incr_misses } else { &counters.decr_misses }.add(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_strtoull_reads_them() {
        for (text, number) in [
            ("0", Some(0)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("00012", Some(12)),
            (" 1", Some(1)),
            ("1  ", Some(1)),
            ("1 a", Some(1)),
            ("1\0a", Some(1)),
            ("\x0b1\x0b", Some(1)),
            ("+7", Some(7)),
            ("-1", None),
            ("-0", Some(0)),
            ("1a", None),
            ("", None),
            ("  ", None),
            ("111111111111111111111111111111", None),
        ] {
            assert_eq!(parse_number(text.as_bytes()), number, "{text:?}");
        }
    }
}
