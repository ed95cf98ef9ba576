//! Numbers in arguments, replies and states: parsed from bytes, and appended as text, without an allocation.
//!
//! Arguments are decimal, by one rule for shipped types and users' own: digits; before them `-` where the
//! number may be negative; after them, where it may have decimals, a point and digits, then `e` and an
//! exponent. So `+1`, `.5`, `5.`, blanks and `0x10` are not numbers. Each method decides how it treats a
//! number that is too large.

use std::io::Write as _;

use crate::arguments::Arguments;
use crate::call::CallError;
use crate::object::Object;

/// The milliseconds of a day.
const DAY_MS: u64 = 86_400_000;
/// The longest time in an argument, in milliseconds: 366 days.
pub(crate) const SPAN_MAX_MS: u64 = 366 * DAY_MS;
/// The description of a time in messages and tables.
pub(crate) const SPAN: &str = "a time from 1ms to 366d, such as 500ms, 30s, 5m, 2h or 1d (no unit: seconds)";

/// The largest limit of a quantity or a count.
const LIMIT_MAX: u64 = i64::MAX as u64;
/// The description of such a limit in messages.
const LIMIT: &str = "a number from 0 to 9223372036854775807";
/// The description of a positive number in messages.
const POSITIVE: &str = "a positive number";

/// The argument at a position, parsed by `read`; `what`: a description of valid arguments.
///
/// # Errors
/// The argument is missing, or `read` refuses it.
#[inline]
pub(crate) fn argument<T>(
    arguments: &Arguments<'_>,
    place: usize,
    what: &str,
    read: impl FnOnce(&[u8]) -> Option<T>,
) -> Result<T, CallError> {
    arguments.get(place).and_then(read).ok_or_else(|| CallError::argument(place, what))
}

/// The positive number at a position, which may be the largest; 1 if it is left out.
///
/// # Errors
/// The argument is not a positive number.
#[inline]
pub(crate) fn positive_or_1(arguments: &Arguments<'_>, place: usize) -> Result<u64, CallError> {
    if place >= arguments.len() {
        return Ok(1);
    }
    argument(arguments, place, POSITIVE, |text| whole(text).filter(|n| *n > 0))
}

/// The limit at a position, up to 2^63 - 1, so that the sum of a limit and a count of 64 bits does not wrap.
///
/// # Errors
/// The argument is not such a number.
#[inline]
pub(crate) fn limit(arguments: &Arguments<'_>, place: usize) -> Result<u64, CallError> {
    argument(arguments, place, LIMIT, |text| whole_within(text, 0, LIMIT_MAX))
}

/// A state of whole numbers of 8 bytes each, little-endian; None: it is absent.
#[inline]
pub(crate) fn words<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let (words, rest) = bytes.as_chunks::<8>();
    let words: &[[u8; 8]; N] = words.try_into().ok().filter(|_| rest.is_empty())?;
    Some(words.map(u64::from_le_bytes))
}

/// Stores a state of whole numbers.
#[inline]
pub(crate) fn set_words<const N: usize>(object: &mut Object<'_>, words: [u64; N]) {
    object.set(words.map(u64::to_le_bytes).as_flattened());
}

/// A whole number that has digits only. A number above the largest counts as [`u64::MAX`].
#[inline]
pub(crate) fn whole(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    let mut number = 0_u64;
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number = number.saturating_mul(10).saturating_add(u64::from(digit));
    }
    Some(number)
}

/// A whole number within these bounds.
#[inline]
pub(crate) fn whole_within(text: &[u8], least: u64, most: u64) -> Option<u64> {
    whole(text).filter(|number| (least..=most).contains(number))
}

/// A signed number of 64 bits: digits, with or without `-` before them.
#[inline]
pub(crate) fn signed(text: &[u8]) -> Option<i64> {
    match text.strip_prefix(b"-") {
        Some(digits) => 0_i64.checked_sub_unsigned(whole(digits)?),
        None => i64::try_from(whole(text)?).ok(),
    }
}

/// A number with up to six decimals, in millionths. A number above the largest counts as [`u64::MAX`].
pub(crate) fn millionths(text: &[u8]) -> Option<u64> {
    let (number, decimals) = match memchr::memchr(b'.', text) {
        Some(point) => (&text[..point], &text[point + 1..]),
        None => (text, b"0".as_slice()),
    };
    if decimals.len() > 6 {
        return None;
    }
    let scale = 10_u64.pow(6 - decimals.len() as u32);
    Some(whole(number)?.saturating_mul(1_000_000).saturating_add(whole(decimals)? * scale))
}

/// A finite number, which may have a sign, decimals and an exponent.
pub fn float(text: &[u8]) -> Option<f64> {
    let rest = after_digits(text.strip_prefix(b"-").unwrap_or(text))?;
    let rest = rest.strip_prefix(b".").map_or(Some(rest), after_digits)?;
    let exponent = rest.strip_prefix(b"e").or_else(|| rest.strip_prefix(b"E"));
    let rest = match exponent {
        Some(exponent) => {
            let sign = exponent.strip_prefix(b"-").or_else(|| exponent.strip_prefix(b"+"));
            after_digits(sign.unwrap_or(exponent))?
        }
        None => rest,
    };
    if !rest.is_empty() {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok().filter(|number: &f64| number.is_finite())
}

/// The text after its leading digits; None: it does not begin with a digit.
fn after_digits(text: &[u8]) -> Option<&[u8]> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    (digits > 0).then(|| &text[digits..])
}

/// A whole number of at most 2^53 in size, which the numbers of scripts can represent exactly.
#[expect(clippy::cast_precision_loss, reason = "up to 2^53 it is exact")]
pub fn whole_float(text: &[u8]) -> Option<f64> {
    const EXACT: u64 = 1 << 53;
    let (digits, sign) = text.strip_prefix(b"-").map_or((text, 1.0), |digits| (digits, -1.0));
    let number = whole(digits).filter(|number| *number <= EXACT)?;
    // The sum with 0.0 makes a zero positive.
    Some(sign * number as f64 + 0.0)
}

/// A time in milliseconds, 1 to [`SPAN_MAX_MS`]: a whole number with `ms`, `s`, `m`, `h` or `d`; without a
/// unit, in seconds.
#[inline]
pub(crate) fn span_ms(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let unit_ms = match &text[digits..] {
        b"ms" => 1,
        b"" | b"s" => 1000,
        b"m" => 60_000,
        b"h" => 3_600_000,
        b"d" => DAY_MS,
        _ => return None,
    };
    let span = whole(&text[..digits])?.saturating_mul(unit_ms);
    (1..=SPAN_MAX_MS).contains(&span).then_some(span)
}

/// Appends a number.
#[inline]
pub(crate) fn push_whole(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0_u8; 20];
    let mut from = digits.len();
    loop {
        from -= 1;
        digits[from] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[from..]);
}

/// Appends a number with its sign.
#[inline]
pub(crate) fn push_signed(out: &mut Vec<u8>, number: i64) {
    if number < 0 {
        out.push(b'-');
    }
    push_whole(out, number.unsigned_abs());
}

/// Appends milliseconds as seconds, with up to three decimals.
#[inline]
pub(crate) fn push_seconds(out: &mut Vec<u8>, ms: u64) {
    push_whole(out, ms / 1000);
    let rest = (ms % 1000) as u16;
    let digits = [b'0' + (rest / 100) as u8, b'0' + (rest / 10 % 10) as u8, b'0' + (rest % 10) as u8];
    if let Some(last) = digits.iter().rposition(|digit| *digit != b'0') {
        out.push(b'.');
        out.extend_from_slice(&digits[..=last]);
    }
}

/// Appends milliseconds as whole seconds, rounded up, so that the time is over then.
#[inline]
pub(crate) fn push_seconds_up(out: &mut Vec<u8>, ms: u64) {
    push_whole(out, ms.div_ceil(1000));
}

/// Appends a finite number: a whole number below 10^16 without point and exponent, others in the shortest
/// form that reads as the same number.
pub fn push_float(out: &mut Vec<u8>, number: f64) {
    if number.abs() < 1e16 && number.fract() == 0.0 {
        push_signed(out, number as i64);
        return;
    }
    let written = write!(out, "{number:?}");
    debug_assert!(written.is_ok(), "a Vec takes everything");
}

/// Appends names and whole numbers as an object of JSON.
pub(crate) fn push_fields(out: &mut Vec<u8>, fields: &[(&str, u64)]) {
    let mut before = "{\"";
    for (name, number) in fields {
        out.extend_from_slice(before.as_bytes());
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\":");
        push_whole(out, *number);
        before = ",\"";
    }
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(push: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        push(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn whole_numbers() {
        assert_eq!(whole(b"0"), Some(0));
        assert_eq!(whole(b"007"), Some(7));
        assert_eq!(whole(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(whole(b"18446744073709551616"), Some(u64::MAX), "too large counts as the largest");
        assert_eq!(whole(&[b'9'; 1000]), Some(u64::MAX));
        for no in [&b""[..], b"-1", b"+1", b" 1", b"1 ", b"1.0", b"x", b"1\0", b"\xff"] {
            assert_eq!(whole(no), None, "{no:?}");
        }
        assert_eq!(whole_within(b"5", 5, 5), Some(5));
        assert_eq!(whole_within(b"4", 5, 5), None);
        assert_eq!(whole_within(b"6", 5, 5), None);
    }

    #[test]
    fn signed_numbers() {
        for number in [0, 1, -1, i64::MAX, i64::MIN, i64::MIN + 1] {
            assert_eq!(signed(number.to_string().as_bytes()), Some(number));
            assert_eq!(text(|out| push_signed(out, number)), number.to_string());
        }
        assert_eq!(signed(b"-0"), Some(0));
        for no in [&b"9223372036854775808"[..], b"-9223372036854775809", b"--1", b"-", b"", b"1e3"] {
            assert_eq!(signed(no), None, "{no:?}");
        }
    }

    #[test]
    fn decimals() {
        assert_eq!(millionths(b"1"), Some(1_000_000));
        assert_eq!(millionths(b"0.5"), Some(500_000));
        assert_eq!(millionths(b"12.000001"), Some(12_000_001));
        assert_eq!(millionths(&[b'9'; 30]), Some(u64::MAX));
        for no in [&b"0.0000001"[..], b".5", b"5.", b"1.2.3", b"-1", b"1e3", b"", b"."] {
            assert_eq!(millionths(no), None, "{no:?}");
        }
    }

    #[test]
    fn floats() {
        for (written, read) in [("1", 1.0), ("-2.5", -2.5), ("1e3", 1000.0), ("0.1", 0.1), ("-0", 0.0)] {
            assert_eq!(float(written.as_bytes()), Some(read), "{written}");
        }
        for no in [
            "inf",
            "nan",
            "-inf",
            "1e999",
            "",
            "-",
            "+1",
            " 1",
            "1 ",
            ".5",
            "5.",
            "0x10",
            "1e",
            "-infinity1",
            "-.5",
            "-5.",
            "5.e3",
            "--1",
            "1e+",
            "1.5.5",
            "1_000",
            "e5",
            "1e5.5",
        ] {
            assert_eq!(float(no.as_bytes()), None, "{no}");
        }
        for (written, read) in [("1e+3", 1e3), ("1E-3", 1e-3), ("-12.25e2", -1225.0), ("007", 7.0)] {
            assert_eq!(float(written.as_bytes()), Some(read), "{written}");
        }
        for (written, read) in [("0", 0.0), ("-0", 0.0), ("-7", -7.0), ("9007199254740992", 2_f64.powi(53))] {
            assert_eq!(whole_float(written.as_bytes()).map(f64::to_bits), Some(read.to_bits()), "{written}");
        }
        for no in ["+1", ".5", "5.", "5.0", "1e3", "", "-", "9007199254740993", "-9007199254740993", " 1"] {
            assert_eq!(whole_float(no.as_bytes()), None, "{no}");
        }
        for (number, written) in [
            (0.0, "0"),
            (-0.0, "0"),
            (5.0, "5"),
            (-7.0, "-7"),
            (2.5, "2.5"),
            (9_007_199_254_740_993.0, "9007199254740992"),
            (1e16, "1e16"),
            (1e300, "1e300"),
            (0.1, "0.1"),
            (1.0 / 3.0, "0.3333333333333333"),
        ] {
            assert_eq!(text(|out| push_float(out, number)), written);
        }
    }

    #[test]
    fn spans() {
        for (written, ms) in [
            ("1ms", 1),
            ("90s", 90_000),
            ("90", 90_000),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("366d", SPAN_MAX_MS),
            ("31622400s", SPAN_MAX_MS),
        ] {
            assert_eq!(span_ms(written.as_bytes()), Some(ms), "{written}");
        }
        for no in
            ["0s", "0", "367d", "31622401s", "s", "", "-5s", "5w", "5 s", "99999999999999999999h", "1.5h"]
        {
            assert_eq!(span_ms(no.as_bytes()), None, "{no}");
        }
    }

    #[test]
    fn seconds() {
        for (ms, written) in [
            (0, "0"),
            (1, "0.001"),
            (10, "0.01"),
            (250, "0.25"),
            (1000, "1"),
            (61_500, "61.5"),
            (999, "0.999"),
        ] {
            assert_eq!(text(|out| push_seconds(out, ms)), written);
        }
        assert_eq!(text(|out| push_seconds(out, u64::MAX)), "18446744073709551.615");
        assert_eq!(text(|out| push_whole(out, u64::MAX)), u64::MAX.to_string());
    }
}
