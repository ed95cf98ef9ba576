//! JSON strings from any bytes.
//!
//! Valid UTF-8 is written unchanged, except that quotes, backslashes and control characters are escaped. A
//! byte that is not part of valid UTF-8 is written as `\u0080` to `\u00ff`. These escapes have no other use,
//! since the characters U+0080 to U+00FF are written unchanged. So the text distinguishes both, and a JSON
//! parser reads the byte as the character with that number.

/// The least number of bytes for [`escape`], except for the last ones: more than the longest character.
pub(super) const PIECE_MIN: usize = 16;

/// Writes a string with its quotes.
pub fn string(bytes: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    escape(bytes, true, out);
    out.push(b'"');
}

/// Writes the inside of a string, and returns the number of bytes used. Unless `is_last`, bytes of an
/// incomplete character at the end are not used.
pub(super) fn escape(bytes: &[u8], is_last: bool, out: &mut Vec<u8>) -> usize {
    let mut rest = bytes;
    loop {
        let (valid, broken) = match std::str::from_utf8(rest) {
            Ok(_) => (rest, None),
            Err(error) => (&rest[..error.valid_up_to()], Some(error.error_len())),
        };
        characters(valid, out);
        rest = &rest[valid.len()..];
        let wrong = match broken {
            None => return bytes.len(),
            Some(None) if !is_last => return bytes.len() - rest.len(),
            Some(None) => rest.len(),
            Some(Some(wrong)) => wrong,
        };
        rest[..wrong].iter().for_each(|byte| code(*byte, out));
        rest = &rest[wrong..];
    }
}

/// Writes valid UTF-8.
fn characters(mut text: &[u8], out: &mut Vec<u8>) {
    let is_special = |byte: &u8| *byte < 0x20 || matches!(byte, b'"' | b'\\' | 0x7f);
    while let Some(at) = text.iter().position(is_special) {
        out.extend_from_slice(&text[..at]);
        match text[at] {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            byte => code(byte, out),
        }
        text = &text[at + 1..];
    }
    out.extend_from_slice(text);
}

fn code(byte: u8, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.extend_from_slice(b"\\u00");
    out.push(DIGITS[usize::from(byte >> 4)]);
    out.push(DIGITS[usize::from(byte & 15)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(bytes: &[u8]) -> String {
        let mut out = Vec::new();
        string(bytes, &mut out);
        String::from_utf8(out).expect("it is UTF-8 whatever the bytes are")
    }

    #[test]
    fn strings() {
        assert_eq!(whole(b""), r#""""#);
        assert_eq!(whole(b"a\"b\\c\r\n\t\x01\x7f"), r#""a\"b\\c\r\n\t\u0001\u007f""#);
        assert_eq!(whole("é€😀".as_bytes()), "\"é€😀\"");
        assert_eq!(whole(b"a\xffb"), r#""a\u00ffb""#);
        assert_eq!(whole(b"\xe2\x82"), r#""\u00e2\u0082""#, "a character that is cut off");
        assert_eq!(whole(b"\xe2\x82x"), r#""\u00e2\u0082x""#);
    }

    #[test]
    fn pieces_give_what_the_whole_gives() {
        let text = "aé€😀\"".as_bytes().iter().copied().chain([0xff, 0xe2, 0x82, b'x', 0xf0, 0x9f]);
        let bytes: Vec<u8> = text.collect();
        for split in 0..=bytes.len() {
            let mut out = vec![b'"'];
            let first = escape(&bytes[..split], false, &mut out);
            assert!(split - first < 4, "only a part of a character is left");
            assert_eq!(escape(&bytes[first..], true, &mut out), bytes.len() - first);
            out.push(b'"');
            assert_eq!(String::from_utf8(out).unwrap(), whole(&bytes), "split at {split}");
        }
    }
}
