//! Arithmetic: `incr decr`, and what `ma` shares with them.

use cattlegrid_protocol::{Arith, reply};
use cattlegrid_store::{Attributes, Found, Lookup, Marks, NewValue, TAGS_MAX, Value};

use crate::reply::meta::Refusals;
use crate::rules::Change;
use crate::shard::put::WHOLE;
use crate::shard::{Flow, Shard};
use crate::step::Context;

/// The result of an addition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddOutcome {
    Is(u64, Found),
    NotNumeric,
    NotFound,
    Exists,
    NoRoom,
}

impl Shard {
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
        self.store.note_asked(found);
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
