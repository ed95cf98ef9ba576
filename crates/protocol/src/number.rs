//! Decimal numbers as memcached reads them.
//!
//! There are two families. The lenient one follows C's `strtol`: an optional sign, digits, then the end of
//! the word, or white space (a tab) and anything. It reads the client flags and the exptime of a classic
//! store. The strict one, for every other number, takes digits only, after a `-` where a number may be
//! negative.
//!
//! # Invariant
//! A number out of range is refused, except where memcached takes it: client flags and the exptime of a
//! classic store keep their lower 32 bits.

/// The exptime of a store: `strtol`, of whose 64 bits memcached keeps the lower 32. Clients rely on that:
/// some send 4294967295 for -1.
#[inline]
pub(crate) fn exptime_of_store(word: &[u8]) -> Option<i64> {
    signed(word).map(|n| i64::from(n as i32))
}

/// The exptime of `touch`, `gat`, `T`, `N` and `R`: 32 bits with a sign, strict.
#[inline]
pub(crate) fn exptime(word: &[u8]) -> Option<i64> {
    strict_i32(word).map(i64::from)
}

/// A CAS, delta or initial value: 64 bits, digits only, at most 22 of them.
#[inline]
pub(crate) fn unsigned(word: &[u8]) -> Option<u64> {
    digits(word, 22)
}

/// `strtoull`, which negates after a minus sign. As in memcached the result is refused where it would be
/// negative with a sign.
#[inline]
fn lenient_unsigned(word: &[u8]) -> Option<u64> {
    match word {
        [b'-', rest @ ..] => lenient(rest).map(u64::wrapping_neg).filter(|n| n >> 63 == 0),
        [b'+', rest @ ..] => lenient(rest),
        _ => lenient(word),
    }
}

/// The client flags of a classic store: 64 bits are read and the lower 32 kept, as memcached does.
#[inline]
pub(crate) fn client_flags_of_store(word: &[u8]) -> Option<u32> {
    lenient_unsigned(word).map(|n| n as u32)
}

/// The length of a data block; `None` also when it exceeds 31 bits together with its CRLF.
#[inline]
pub(crate) fn data_len(word: &[u8]) -> Option<usize> {
    let n = strict_i32(word)?;
    if (0..=i32::MAX - 2).contains(&n) { usize::try_from(n).ok() } else { None }
}

/// A number of 32 bits with a sign, as memcached reads it outside the fields of a classic store: digits with
/// an optional `-`, at most 11 characters. As there, a `-` alone is 0.
#[inline]
pub fn strict_i32(word: &[u8]) -> Option<i32> {
    let (negative, digits) = match word {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, word),
    };
    if word.is_empty() || word.len() > 11 {
        return None;
    }
    let mut n = 0i64;
    for &b in digits {
        n = n * 10 + i64::from(digit(b)?);
    }
    i32::try_from(if negative { -n } else { n }).ok()
}

/// A number of 32 bits without a sign, as memcached's administrative commands and the flag `F` read it:
/// digits only, at most 11 characters.
#[inline]
pub fn strict_u32(word: &[u8]) -> Option<u32> {
    if word.is_empty() || word.len() > 11 {
        return None;
    }
    let mut n = 0u64;
    for &b in word {
        n = n * 10 + u64::from(digit(b)?);
    }
    u32::try_from(n).ok()
}

/// A number of 64 bits: digits only, at most 20 of them.
#[inline]
pub(crate) fn strict_u64(word: &[u8]) -> Option<u64> {
    digits(word, 20)
}

/// 64 bits in 1 to `most` digits.
#[inline]
fn digits(word: &[u8], most: usize) -> Option<u64> {
    if word.is_empty() || word.len() > most {
        return None;
    }
    word.iter().try_fold(0_u64, |n, &b| n.checked_mul(10)?.checked_add(digit(b)?.into()))
}

/// `strtol`: 64 bits.
#[inline]
fn signed(word: &[u8]) -> Option<i64> {
    match word {
        [b'-', rest @ ..] => 0_i64.checked_sub_unsigned(lenient(rest)?),
        [b'+', rest @ ..] => i64::try_from(lenient(rest)?).ok(),
        _ => i64::try_from(lenient(word)?).ok(),
    }
}

/// At least one digit, then the end or white space.
#[inline]
fn lenient(word: &[u8]) -> Option<u64> {
    let mut n = 0u64;
    let mut len = 0;
    for &b in word {
        let Some(d) = digit(b) else { break };
        // 19 digits always fit.
        n = if len < 19 { n * 10 + u64::from(d) } else { n.checked_mul(10)?.checked_add(u64::from(d))? };
        len += 1;
    }
    let ended = word.get(len).is_none_or(|&b| matches!(b, b'\t' | 0x0b | 0x0c | b'\r'));
    (len > 0 && ended).then_some(n)
}

#[inline]
fn digit(b: u8) -> Option<u8> {
    let d = b.wrapping_sub(b'0');
    (d < 10).then_some(d)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exptimes_have_32_bits() {
        assert_eq!(exptime_of_store(b"+7"), Some(7));
        assert_eq!(exptime(b"-7"), Some(-7));
        assert_eq!(exptime(b"2147483647"), Some(2_147_483_647));
        assert_eq!(exptime(b"2147483648"), None);
        assert_eq!(exptime_of_store(b"4294967295"), Some(-1));
        assert_eq!((exptime(b"-"), exptime_of_store(b"-")), (Some(0), None));
        for bad in ["", "x", "1x", "--1", "1.5", "99999999999999999999999"] {
            assert_eq!(exptime(bad.as_bytes()), None, "{bad}");
            assert_eq!(exptime_of_store(bad.as_bytes()), None, "{bad}");
        }
        for bad in ["+7", "7\t", "7\r", "000000000007"] {
            assert_eq!(exptime(bad.as_bytes()), None, "{bad}");
            assert_eq!(exptime_of_store(bad.as_bytes()), Some(7), "{bad}");
        }
    }

    #[test]
    fn unsigned_takes_all_of_64_bits() {
        assert_eq!(unsigned(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(unsigned(b"18446744073709551616"), None);
        assert_eq!(unsigned(b"99999999999999999999"), None);
        assert_eq!(unsigned(b"0000000000000000000012"), Some(12), "22 digits");
        for bad in ["", "-1", "-0", "+5", "5\t", "5\r", "5\tx", "00000000000000000000012"] {
            assert_eq!(unsigned(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn client_flags_keep_the_lower_half() {
        assert_eq!(client_flags_of_store(b"4294967295"), Some(u32::MAX));
        assert_eq!(client_flags_of_store(b"4294967296"), Some(0));
        assert_eq!(client_flags_of_store(b"000000000000000000000000000012"), Some(12));
        assert_eq!(client_flags_of_store(b"5\tx"), Some(5));
        assert_eq!(client_flags_of_store(b"-1"), None);
    }

    #[test]
    fn lengths_are_strict() {
        assert_eq!(data_len(b"0"), Some(0));
        assert_eq!(data_len(b"2147483645"), Some(2_147_483_645));
        assert_eq!(data_len(b"-"), Some(0), "as memcached");
        for bad in ["2147483646", "-1", "", "+1", "1\t", "000000000001", "x"] {
            assert_eq!(data_len(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(strict_i32(b"-2147483648"), Some(i32::MIN));
        assert_eq!(strict_u32(b"4294967295"), Some(u32::MAX));
        assert_eq!(strict_u32(b"4294967296"), None);
    }
}
