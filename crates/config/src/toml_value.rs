//! The kinds of values a rule file has: what is allowed, how to read it, how to say so.

use toml::Spanned;
use toml::de::{DeInteger, DeValue};

/// What a key of the file takes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// Text of at most so many bytes without blanks, called `what`.
    Text { what: &'static str, max: usize },
    /// A list of texts, called `what`.
    List { what: &'static str },
    /// A time in `min..=max` milliseconds.
    Ms { min: u64, max: u64 },
    /// `"auto"`, or a time in `min..=max` milliseconds.
    AutoMs { min: u64, max: u64 },
    /// A time of whole seconds, `0..=max` milliseconds.
    Seconds { max: u64 },
    /// A whole number.
    Number { min: i64, max: i64 },
    /// Bytes, in `min..=max`.
    Size { min: u64, max: u64 },
    /// One of these.
    Choice(&'static [&'static str]),
}

/// A value that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Given {
    Text(Text),
    List(Vec<Text>),
    /// `"auto"`.
    Auto,
    Ms(u32),
    Seconds(u32),
    Number(u32),
    Bytes(u64),
    Choice(&'static str),
}

/// A text and where it begins in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Text {
    pub(crate) text: String,
    pub(crate) offset: usize,
}

const SECOND: u64 = 1000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

impl Kind {
    /// What is allowed, in words, for messages and the reference.
    pub(crate) fn describe(self) -> String {
        match self {
            Self::Text { what, max } => format!("{what}, up to {max} bytes without blanks"),
            Self::List { what } => format!("a list of {what}, such as [\"...\"]"),
            Self::Ms { min, max } => format!("a time, \"{}\" to \"{}\"", show_ms(min), show_ms(max)),
            Self::AutoMs { min, max } => {
                format!("\"auto\" or a time, \"{}\" to \"{}\"", show_ms(min), show_ms(max))
            }
            Self::Seconds { max } => format!("a time of whole seconds, \"0s\" to \"{}\"", show_ms(max)),
            Self::Number { min, max } => format!("a whole number, {min} to {max}"),
            Self::Size { min, max } => format!("a size, \"{}\" to \"{}\"", show_size(min), show_size(max)),
            Self::Choice(names) => format!("\"{}\"", names.join("\" or \"")),
        }
    }

    /// Reads a value; the error continues a sentence that began with the key.
    pub(crate) fn read(self, value: &Spanned<DeValue<'_>>) -> Result<Given, String> {
        let given = value.get_ref();
        let wrong = || format!("{}: must be {}", show(given), self.describe());
        // A number of milliseconds or seconds without its unit is a mistake waiting to be made; 0 is 0.
        let ms = || match given {
            DeValue::Integer(number) if integer(number) == Some(0) => Some(0),
            DeValue::String(text) => read_ms(text),
            _ => None,
        };
        let in_ms = |min, max| {
            ms().filter(|ms| (min..=max).contains(ms)).and_then(|ms| u32::try_from(ms).ok()).ok_or_else(wrong)
        };
        match self {
            Self::Text { max, .. } => match given {
                DeValue::String(text)
                    if text.len() <= max && !text.chars().any(|c| c.is_whitespace() || c.is_control()) =>
                {
                    Ok(Given::Text(Text { text: text.to_string(), offset: value.span().start }))
                }
                _ => Err(wrong()),
            },
            Self::List { .. } => match given {
                DeValue::Array(list) => list.iter().map(text_of).collect::<Option<_>>().map(Given::List),
                _ => None,
            }
            .ok_or_else(wrong),
            Self::AutoMs { .. } if given.as_str() == Some("auto") => Ok(Given::Auto),
            Self::Ms { min, max } | Self::AutoMs { min, max } => in_ms(min, max).map(Given::Ms),
            Self::Seconds { max } => match ms() {
                Some(ms) if ms <= max && ms % SECOND == 0 => {
                    u32::try_from(ms / SECOND).map(Given::Seconds).map_err(|_| wrong())
                }
                _ => Err(wrong()),
            },
            Self::Number { min, max } => match given {
                DeValue::Integer(number) => integer(number)
                    .filter(|number| (min..=max).contains(number))
                    .and_then(|number| u32::try_from(number).ok())
                    .map(Given::Number)
                    .ok_or_else(wrong),
                _ => Err(wrong()),
            },
            Self::Size { min, max } => match given {
                DeValue::Integer(number) => integer(number).and_then(|number| u64::try_from(number).ok()),
                DeValue::String(text) => read_size(text),
                _ => None,
            }
            .filter(|bytes| (min..=max).contains(bytes))
            .map(Given::Bytes)
            .ok_or_else(wrong),
            Self::Choice(names) => match given.as_str() {
                Some(text) => names.iter().find(|name| **name == text).map(|name| Given::Choice(name)),
                None => None,
            }
            .ok_or_else(wrong),
        }
    }
}

fn text_of(value: &Spanned<DeValue<'_>>) -> Option<Text> {
    Some(Text { text: value.get_ref().as_str()?.to_owned(), offset: value.span().start })
}

/// A value as messages show it: short ones as they are, long ones by their type.
pub(crate) fn show(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("{text:?}"),
        DeValue::Integer(number) => {
            integer(number).map_or_else(|| number.as_str().to_owned(), |n| n.to_string())
        }
        DeValue::Boolean(is) => is.to_string(),
        _ => format!("a {}", value.type_str()),
    }
}

/// The number, if it is none too large.
pub(crate) fn integer(number: &DeInteger<'_>) -> Option<i64> {
    i64::from_str_radix(&number.as_str().replace('_', ""), number.radix()).ok()
}

/// `400ms`, `30s`, `5m`, `1h` or `7d` in milliseconds; `0` too.
pub(crate) fn read_ms(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ms" => 1,
        "s" => SECOND,
        "m" => MINUTE,
        "h" => HOUR,
        "d" => DAY,
        "" if digits == "0" => 1,
        _ => return None,
    };
    whole(digits)?.checked_mul(unit)
}

/// `10`, `10KiB`, `10MiB`, `1GiB`, and `k m g` in either case as memcached has them, in bytes.
pub(crate) fn read_size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" => 1,
        "KiB" | "k" | "K" => 1 << 10,
        "MiB" | "m" | "M" => 1 << 20,
        "GiB" | "g" | "G" => 1 << 30,
        _ => return None,
    };
    whole(digits)?.checked_mul(unit)
}

/// Digits only: no sign, no blanks.
fn whole(digits: &str) -> Option<u64> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// A time in the largest unit that says it exactly: `400ms`, `30s`.
pub(crate) fn show_ms(ms: u64) -> String {
    for (unit, name) in [(DAY, "d"), (HOUR, "h"), (MINUTE, "m"), (SECOND, "s")] {
        if ms > 0 && ms.is_multiple_of(unit) {
            return format!("{}{name}", ms / unit);
        }
    }
    if ms == 0 { "0s".to_owned() } else { format!("{ms}ms") }
}

/// A size in the largest unit that says it exactly: `64KiB`.
pub(crate) fn show_size(bytes: u64) -> String {
    for (shift, name) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes > 0 && bytes.is_multiple_of(1 << shift) {
            return format!("{}{name}", bytes >> shift);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, ms) in [("400ms", 400), ("30s", 30_000), ("5m", 300_000), ("1h", HOUR), ("2d", 2 * DAY)] {
            assert_eq!(read_ms(text), Some(ms), "{text}");
            assert_eq!(show_ms(ms), text);
        }
        assert_eq!(read_ms("0"), Some(0));
        for text in ["", "5", "s", "-5s", "5 s", "5sec", "1.5s", "99999999999999999999d"] {
            assert_eq!(read_ms(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_have_both_kinds_of_units() {
        for (text, bytes) in [("10", 10), ("3KiB", 3 << 10), ("64MiB", 64 << 20), ("1GiB", 1 << 30)] {
            assert_eq!(read_size(text), Some(bytes), "{text}");
            assert_eq!(show_size(bytes), text);
        }
        assert_eq!(read_size("2k"), Some(2048));
        for text in ["", "k", "-1k", "1KB", "1 k", "1.5m", "99999999999999g"] {
            assert_eq!(read_size(text), None, "{text}");
        }
    }
}
