//! Numbers in arguments and replies: read from bytes and appended as text without an allocation.
//!
//! Arguments are decimal. A sign `+`, blanks and digits that are missing make an argument no number at all; what a number
//! too large means is the method's decision.

/// A whole number of digits only. One above the largest counts as [`u64::MAX`].
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

/// Appends bytes as a string of JSON. Bytes that are not UTF-8 appear as the characters U+0080 to U+00FF.
pub(crate) fn push_json(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    for chunk in text.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '"' | '\\' => out.extend_from_slice(&[b'\\', character as u8]),
                '\0'..='\x1f' | '\x7f' => push_escaped(out, character as u8),
                _ => out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        for byte in chunk.invalid() {
            push_escaped(out, *byte);
        }
    }
    out.push(b'"');
}

fn push_escaped(out: &mut Vec<u8>, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.extend_from_slice(b"\\u00");
    out.extend_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
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
    fn strings_of_json() {
        assert_eq!(text(|out| push_json(out, b"plain")), r#""plain""#);
        assert_eq!(text(|out| push_json(out, b"a\"b\\c\n\x00")), r#""a\"b\\c\u000a\u0000""#);
        assert_eq!(text(|out| push_json(out, "\u{e9}\u{1f600}".as_bytes())), "\"\u{e9}\u{1f600}\"");
        assert_eq!(text(|out| push_json(out, b"\xff\xfe")), r#""\u00ff\u00fe""#);
    }
}
