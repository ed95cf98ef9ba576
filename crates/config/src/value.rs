//! The kinds of values of options and keys: the allowed values, how they are read from a word of the command
//! line, and how messages describe them. `toml_value.rs` reads the same kinds from a rule file.

use std::time::Duration;

/// The kind of an option's or a key's value.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ValueKind {
    /// No value: the option is a switch.
    None,
    /// An optional value that is not read, for options without effect.
    Any,
    /// A whole number in `min..=max`.
    Number { unit: &'static str, min: i64, max: i64 },
    /// Bytes, in `min..=max`.
    Size { min: u64, max: u64 },
    /// A time in `min..=max` milliseconds.
    Ms { min: u64, max: u64 },
    /// `"auto"`, or a time in `min..=max` milliseconds.
    AutoMs { min: u64, max: u64 },
    /// `0%` to `max`%, or 0.
    Percent { max: u8 },
    /// `"off"`, `"auto"`, or a table with a `share` of `min..=max` parts per million.
    Share { min: u32, max: u32 },
    /// A time of whole seconds, `0..=max` milliseconds.
    Seconds { max: u64 },
    /// Access bits in octal, 0 to 777.
    Octal,
    /// One of `names`; those in `refused` are errors with a reason.
    Choice { names: &'static [&'static str], refused: &'static [(&'static str, &'static str)] },
    /// A string of at most `max` bytes, described as `what`. On the command line it is not empty; in a rule
    /// file it has no blanks.
    Text { what: &'static str, max: usize },
    /// A list of strings, described as `what`.
    List { what: &'static str },
    /// A list of strings and numbers, described as `what`; a number is taken as its text.
    Words { what: &'static str },
    /// Any string of at most `max` bytes, described as `what`; it may have blanks and line breaks.
    Free { what: &'static str, max: usize },
    /// `true` or `false`.
    Flag,
    /// `true`, `false` or a word.
    FlagOr { word: &'static str },
}

/// The `what` of a [`ValueKind::Text`] that may contain a password, and is not shown in messages.
pub(crate) const URL: &str = "URL";

/// A value that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OptionValue {
    /// No value: of a switch, or a value that is not read.
    None,
    Number(i64),
    Bytes(u64),
    Ms(u64),
    /// `"auto"`.
    Auto,
    Seconds(u32),
    Percent(u8),
    /// Parts per million.
    Share(u32),
    Octal(u32),
    Text(TextValue),
    List(Vec<TextValue>),
    Flag(bool),
}

/// A string and its offset in the file; 0 on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TextValue {
    pub(crate) text: String,
    pub(crate) offset: usize,
}

/// The place of a value, which determines its units and quotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValueSyntax {
    /// A word of the command line.
    CommandLine,
    /// A value of the rule file.
    RuleFile,
}

/// A unit's name, and its multiple of the smallest unit.
pub(crate) type Unit = (&'static str, u64);

pub(crate) const SECOND: u64 = 1000;
pub(crate) const MINUTE: u64 = 60 * SECOND;
pub(crate) const HOUR: u64 = 60 * MINUTE;
pub(crate) const DAY: u64 = 24 * HOUR;

const TIMES: &[Unit] = &[("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", SECOND), ("ms", 1)];
/// The units of time in messages.
const UNITS: &str = "ms, s, m, h or d";
/// memcached's units of size, which may be upper or lower case.
const LETTERS: &[Unit] = &[
    ("g", 1 << 30),
    ("G", 1 << 30),
    ("m", 1 << 20),
    ("M", 1 << 20),
    ("k", 1 << 10),
    ("K", 1 << 10),
    ("", 1),
];
const BINARY: &[Unit] = &[("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

/// The message of a row whose kind does not fit its field, which tests exclude for every row.
const FITS: &str = "the row's kind and range fit its field";

impl OptionValue {
    /// The number of a [`ValueKind::Number`].
    pub(crate) fn number<T: TryFrom<i64>>(&self) -> T {
        if let Self::Number(number) = self { T::try_from(*number).ok() } else { None }.expect(FITS)
    }

    /// The bytes of a [`ValueKind::Size`].
    pub(crate) fn bytes(&self) -> usize {
        if let Self::Bytes(bytes) = self { usize::try_from(*bytes).ok() } else { None }.expect(FITS)
    }

    /// The milliseconds of a [`ValueKind::Ms`] or [`ValueKind::AutoMs`]; None for `"auto"`.
    pub(crate) fn ms_or_auto(&self) -> Option<u32> {
        if let Self::Ms(ms) = self { Some(u32::try_from(*ms).expect(FITS)) } else { None }
    }

    /// The milliseconds of a [`ValueKind::Ms`].
    pub(crate) fn ms(&self) -> u32 {
        self.ms_or_auto().expect(FITS)
    }

    /// The time of a [`ValueKind::Ms`].
    pub(crate) fn duration(&self) -> Duration {
        if let Self::Ms(ms) = self { Some(Duration::from_millis(*ms)) } else { None }.expect(FITS)
    }

    /// The seconds of a [`ValueKind::Seconds`].
    pub(crate) fn seconds(&self) -> u32 {
        if let Self::Seconds(seconds) = self { Some(*seconds) } else { None }.expect(FITS)
    }

    /// The number of a [`ValueKind::Percent`].
    pub(crate) fn percent(&self) -> u8 {
        if let Self::Percent(percent) = self { Some(*percent) } else { None }.expect(FITS)
    }

    /// The parts per million of a [`ValueKind::Share`]; None for a word.
    pub(crate) fn share(&self) -> Option<u32> {
        if let Self::Share(ppm) = self { Some(*ppm) } else { None }
    }

    /// The bits of a [`ValueKind::Octal`].
    pub(crate) fn octal(&self) -> u32 {
        if let Self::Octal(bits) = self { Some(*bits) } else { None }.expect(FITS)
    }

    /// The text of a [`ValueKind::Text`], [`ValueKind::Free`] or [`ValueKind::Choice`].
    pub(crate) fn text(&self) -> &str {
        &self.placed().text
    }

    /// The text of [`Self::text`], with its offset.
    pub(crate) fn placed(&self) -> &TextValue {
        if let Self::Text(text) = self { Some(text) } else { None }.expect(FITS)
    }

    /// The texts of a [`ValueKind::List`] or [`ValueKind::Words`].
    pub(crate) fn list(&self) -> &[TextValue] {
        if let Self::List(list) = self { Some(&list[..]) } else { None }.expect(FITS)
    }

    /// Whether a [`ValueKind::FlagOr`] is true; None for its word.
    pub(crate) fn flag_or_word(&self) -> Option<bool> {
        if let Self::Flag(is) = self { Some(*is) } else { None }
    }

    /// Whether a [`ValueKind::Flag`] is true.
    pub(crate) fn flag(&self) -> bool {
        if let Self::Flag(is) = self { Some(*is) } else { None }.expect(FITS)
    }
}

impl ValueKind {
    /// Whether an option of this kind takes a value.
    pub(crate) fn is_wanted(self) -> bool {
        !matches!(self, Self::None)
    }

    /// Whether an option of `-o` may be given without its value.
    pub(crate) fn is_optional(self) -> bool {
        matches!(self, Self::None | Self::Any)
    }

    /// The placeholder of the value in the help, such as `<num>`.
    pub(crate) fn placeholder(self) -> String {
        match self {
            Self::None => String::new(),
            Self::Any => "<value>".to_owned(),
            Self::Number { .. } => "<num>".to_owned(),
            Self::Size { .. } => "<size>".to_owned(),
            Self::Ms { .. } | Self::AutoMs { .. } | Self::Seconds { .. } => "<time>".to_owned(),
            Self::Percent { .. } | Self::Share { .. } => "<share>".to_owned(),
            Self::Octal => "<mask>".to_owned(),
            Self::Choice { .. } => "<name>".to_owned(),
            Self::Text { what, .. }
            | Self::List { what }
            | Self::Words { what }
            | Self::Free { what, .. } => format!("<{what}>"),
            Self::Flag => "<true|false>".to_owned(),
            Self::FlagOr { word } => format!("<true|false|{word}>"),
        }
    }

    /// The allowed values in words, for messages and the reference.
    pub(crate) fn describe(self, place: ValueSyntax) -> String {
        let quoted = place == ValueSyntax::RuleFile;
        match self {
            Self::None => "none".to_owned(),
            Self::Any => "any".to_owned(),
            Self::Number { unit, min, max } => {
                let unit = if unit.is_empty() { String::new() } else { format!(" of {unit}") };
                if min == max {
                    format!("{min} only")
                } else if max >= i64::from(i32::MAX) {
                    format!("a whole number{unit}, {min} or more")
                } else {
                    format!("a whole number{unit}, {min} to {max}")
                }
            }
            Self::Size { min, max } if quoted => {
                format!("a size, \"{}\" to \"{}\"", show_size(min), show_size(max))
            }
            Self::Size { min, max } => {
                let short = |bytes| show_size(bytes).replace("iB", "").to_lowercase();
                format!("bytes, or with a suffix k, m or g; {} to {}", short(min), short(max))
            }
            Self::Ms { min, max } if !quoted => {
                let least = if min == 0 { String::new() } else { format!(", {} or more", show_ms(min)) };
                let most =
                    if max == u64::MAX { String::new() } else { format!(", {} at most", show_ms(max)) };
                format!("a whole number with {UNITS} (plain: seconds){least}{most}")
            }
            Self::Ms { min, max } => {
                format!("a time in {UNITS}, \"{}\" to \"{}\"", show_ms(min), show_ms(max))
            }
            Self::AutoMs { min, max } => {
                format!("\"auto\" or a time in {UNITS}, \"{}\" to \"{}\"", show_ms(min), show_ms(max))
            }
            Self::Seconds { max } => {
                format!("a time of whole seconds, in s, m, h or d, \"0s\" to \"{}\"", show_ms(max))
            }
            Self::Percent { max } => format!("a share in per cent, \"0%\" to \"{max}%\""),
            Self::Share { min, max } => {
                format!("\"off\", \"auto\" or {{ share = {} to {} }}", show_share(min), show_share(max))
            }
            Self::Octal => "access bits in octal, 0 to 777".to_owned(),
            Self::Choice { names, .. } if quoted => format!("\"{}\"", names.join("\" or \"")),
            Self::Choice { names, .. } => names.join(", "),
            Self::Text { what, max } if quoted => format!("a {what}, up to {max} bytes without blanks"),
            Self::Text { what, .. } => format!("a {what}"),
            Self::List { what } => format!("a list of {what}, such as [\"...\"]"),
            Self::Words { what } => format!("a list of {what}: texts and numbers"),
            Self::Free { what, max } => format!("a {what}, up to {max} bytes"),
            Self::Flag => "true or false".to_owned(),
            Self::FlagOr { word } => format!("true, false or \"{word}\""),
        }
    }

    /// Reads a word of the command line.
    ///
    /// # Errors
    /// The text continues a sentence that began with the option's name.
    pub(crate) fn read(self, text: Option<&str>) -> Result<OptionValue, String> {
        let text = text.unwrap_or_default();
        let wrong = || format!("{text}: must be {}", self.describe(ValueSyntax::CommandLine));
        let words = |given: Option<OptionValue>| given.ok_or_else(wrong);
        match self {
            Self::None | Self::Any => Ok(OptionValue::None),
            Self::Number { unit, min, max } => {
                // memcached reads the digits and ignores the rest.
                let digits = if unit == "MiB" { text.strip_suffix(['m', 'M']).unwrap_or(text) } else { text };
                let number = digits.parse::<i64>().ok().filter(|number| (min..=max).contains(number));
                words(number.map(OptionValue::Number))
            }
            Self::Size { min, max } => {
                let bytes = read_units(text, LETTERS).filter(|bytes| (min..=max).contains(bytes));
                words(bytes.map(OptionValue::Bytes))
            }
            Self::Ms { min, max } => {
                let ms = read_units(text, TIMES).or_else(|| whole(text)?.checked_mul(SECOND));
                words(ms.filter(|ms| (min..=max).contains(ms)).map(OptionValue::Ms))
            }
            Self::Octal => {
                let bits = u32::from_str_radix(text, 8).ok();
                words(bits.filter(|bits| *bits <= 0o777 && !text.starts_with('+')).map(OptionValue::Octal))
            }
            Self::Choice { names, refused } => {
                if let Some((_, reason)) = refused.iter().find(|(name, _)| *name == text) {
                    return Err(format!("{text}: {reason}"));
                }
                if names.contains(&text) {
                    return Ok(OptionValue::Text(TextValue { text: text.to_owned(), offset: 0 }));
                }
                Err(format!("{text}: must be one of {}", self.describe(ValueSyntax::CommandLine)))
            }
            Self::Text { .. } if text.is_empty() => {
                Err(format!("\"\": must be {}", self.describe(ValueSyntax::CommandLine)))
            }
            Self::Text { .. } => Ok(OptionValue::Text(TextValue { text: text.to_owned(), offset: 0 })),
            Self::AutoMs { .. }
            | Self::Percent { .. }
            | Self::Share { .. }
            | Self::Seconds { .. }
            | Self::List { .. }
            | Self::Words { .. }
            | Self::Free { .. }
            | Self::Flag
            | Self::FlagOr { .. } => {
                unreachable!("only keys of the rule file are of this kind")
            }
        }
    }
}

/// `400ms`, `30s`, `5m`, `1h` or `7d` in milliseconds; `0` too.
pub(crate) fn read_ms(text: &str) -> Option<u64> {
    if text == "0" { Some(0) } else { read_units(text, TIMES) }
}

/// `10`, `10KiB`, `10MiB`, `1GiB`, and memcached's `k m g` in either case, in bytes.
pub(crate) fn read_size(text: &str) -> Option<u64> {
    read_units(text, BINARY).or_else(|| read_units(text, LETTERS))
}

/// Digits followed by one of these units.
fn read_units(text: &str, units: &[Unit]) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let (_, each) = units.iter().find(|(name, _)| *name == &text[digits.len()..])?;
    whole(digits)?.checked_mul(*each)
}

/// Digits only: no sign, no blanks.
fn whole(digits: &str) -> Option<u64> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// A time in the largest unit that is exact: `400ms`, `30s`.
pub(crate) fn show_ms(ms: u64) -> String {
    if ms == 0 { "0s".to_owned() } else { show_units(ms, TIMES) }
}

/// A size in the largest unit that is exact: `64KiB`.
pub(crate) fn show_size(bytes: u64) -> String {
    show_units(bytes, BINARY)
}

/// Parts per million as a decimal fraction: `0.1`.
pub(crate) fn show_share(ppm: u32) -> String {
    let digits = format!("{:06}", ppm % 1_000_000);
    format!("{}.{}", ppm / 1_000_000, digits.trim_end_matches('0'))
}

/// The number in the largest unit of which it is a multiple, or without a unit.
fn show_units(number: u64, units: &[Unit]) -> String {
    let exact = |(_, each): &&Unit| number > 0 && number.is_multiple_of(*each);
    units
        .iter()
        .find(exact)
        .map_or_else(|| number.to_string(), |(name, each)| format!("{}{name}", number / each))
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
        assert_eq!((read_ms("0"), show_ms(0)), (Some(0), "0s".to_owned()));
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

    #[test]
    fn sizes_on_the_command_line_take_letters_and_nothing_else() {
        let kind = ValueKind::Size { min: 0, max: u64::MAX };
        for (text, bytes) in [("1024", 1024), ("1k", 1024), ("2M", 2 << 20), ("1g", 1 << 30)] {
            assert_eq!(kind.read(Some(text)), Ok(OptionValue::Bytes(bytes)), "{text}");
        }
        for text in
            ["", "k", "-1k", "+1", "1kk", "1 k", "1KiB", "1.5m", "99999999999999999999", "99999999999999g"]
        {
            assert!(kind.read(Some(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn times_on_the_command_line_are_seconds_unless_they_say_otherwise() {
        let kind = ValueKind::Ms { min: 0, max: u64::MAX };
        for (text, ms) in [("5", 5_000), ("5s", 5_000), ("250ms", 250), ("2m", 120_000), ("1h", 3_600_000)] {
            assert_eq!(
                kind.read(Some(text)).map(|given| given.duration()),
                Ok(Duration::from_millis(ms)),
                "{text}"
            );
        }
        for text in ["", "s", "-5s", "5 s", "5sec", "1.5s", "99999999999999999999d"] {
            assert!(kind.read(Some(text)).is_err(), "{text}");
        }
        let bounded = ValueKind::Ms { min: 1, max: 60_000 };
        let said =
            "0: must be a whole number with ms, s, m, h or d (plain: seconds), 1ms or more, 1m at most";
        assert_eq!(bounded.read(Some("0")), Err(said.to_owned()));
    }
}
