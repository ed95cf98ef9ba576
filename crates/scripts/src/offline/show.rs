//! Texts of any bytes as parts of a message.

/// The most bytes of a text that a message has.
pub(super) const SHOWN_MAX: usize = 400;

/// A text whose control characters, and bytes that are not UTF-8, are escaped.
pub fn escaped(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    push_escaped(bytes, false, &mut out);
    out
}

/// The same as a literal of Luau, in quotes.
pub fn quoted(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() + 2);
    out.push('"');
    push_escaped(bytes, true, &mut out);
    out.push('"');
    out
}

/// A text, escaped, or its beginning and its length.
pub(super) fn head(text: &str) -> String {
    if text.len() <= SHOWN_MAX {
        return escaped(text.as_bytes());
    }
    let end = (0..=SHOWN_MAX).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}... ({} bytes)", escaped(&text.as_bytes()[..end]), text.len())
}

fn push_escaped(bytes: &[u8], is_quoted: bool, out: &mut String) {
    for chunk in bytes.utf8_chunks() {
        for char in chunk.valid().chars() {
            match char {
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '"' | '\\' if is_quoted => out.extend(['\\', char]),
                _ if char.is_control() => push_bytes(char.encode_utf8(&mut [0; 4]).as_bytes(), out),
                _ => out.push(char),
            }
        }
        push_bytes(chunk.invalid(), out);
    }
}

fn push_bytes(bytes: &[u8], out: &mut String) {
    for byte in bytes {
        out.push_str("\\x");
        for digit in [byte >> 4, byte & 15] {
            out.extend(char::from_digit(digit.into(), 16));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_can_be_told_apart() {
        assert_eq!(
            quoted("é\"\\ \n\r\t\0\x1b\x7f\u{85}".as_bytes()),
            r#""é\"\\ \n\r\t\x00\x1b\x7f\xc2\x85""#
        );
        assert_eq!(quoted(b"a\xff\xe2\x82z"), r#""a\xff\xe2\x82z""#);
        assert_eq!(escaped(b"\"\\\x01"), r#""\\x01"#);
        assert_eq!(head(&"é".repeat(300)), format!("{}... (600 bytes)", "é".repeat(200)));
    }
}
