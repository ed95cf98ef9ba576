//! The kinds of values that options and keys take: what is allowed, how it is read from a word of the command line, how
//! it is said. `toml_value.rs` reads the same kinds from a rule file.

use std::time::Duration;

/// What an option or a key takes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// Nothing: the option is a switch.
    None,
    /// Anything or nothing, which is not read: for options without effect.
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
    /// One of `names`; those in `refused` have a reason of their own.
    Choice { names: &'static [&'static str], refused: &'static [(&'static str, &'static str)] },
    /// Text of at most `max` bytes, called `what`. On the command line it is not empty; in a rule file it has no blanks.
    Text { what: &'static str, max: usize },
    /// A list of texts, called `what`.
    List { what: &'static str },
    /// A list of texts and numbers, called `what`; a number is its text.
    Words { what: &'static str },
    /// Any text of at most `max` bytes, called `what`; blanks and line breaks too.
    Free { what: &'static str, max: usize },
    /// `true` or `false`.
    Flag,
    /// `true`, `false` or a word.
    FlagOr { word: &'static str },
}

/// What a [`Kind::Text`] is called that may have a password in it: messages do not show it.
pub(crate) const URL: &str = "URL";

/// A value that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OptionValue {
    /// Of a switch, or of what is not read.
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
    Text(Text),
    List(Vec<Text>),
    Flag(bool),
}

/// A text and where it begins in its file; 0 on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Text {
    pub(crate) text: String,
    pub(crate) offset: usize,
}

/// Where a value is written: units and quotes differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// A word of the command line.
    CommandLine,
    /// A value of the rule file.
    RuleFile,
}

/// A unit's name, and how many of the smallest unit it has.
pub(crate) type Unit = (&'static str, u64);

pub(crate) const SECOND: u64 = 1000;
pub(crate) const MINUTE: u64 = 60 * SECOND;
pub(crate) const HOUR: u64 = 60 * MINUTE;
pub(crate) const DAY: u64 = 24 * HOUR;

const TIMES: &[Unit] = &[("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", SECOND), ("ms", 1)];
/// As messages name them.
const UNITS: &str = "ms, s, m, h or d";
/// As memcached has them, in either case.
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

/// What a row promises of its field; every row is read in a test.
const FITS: &str = "the row's kind and range fit its field";

impl OptionValue {
    /// The number of a [`Kind::Number`].
    pub(crate) fn number<T: TryFrom<i64>>(&self) -> T {
        if let Self::Number(number) = self { T::try_from(*number).ok() } else { None }.expect(FITS)
    }

    /// The bytes of a [`Kind::Size`].
    pub(crate) fn bytes(&self) -> usize {
        if let Self::Bytes(bytes) = self { usize::try_from(*bytes).ok() } else { None }.expect(FITS)
    }

    /// The milliseconds of a [`Kind::Ms`] or [`Kind::AutoMs`]; None for `"auto"`.
    pub(crate) fn ms_or_auto(&self) -> Option<u32> {
        if let Self::Ms(ms) = self { Some(u32::try_from(*ms).expect(FITS)) } else { None }
    }

    /// The milliseconds of a [`Kind::Ms`].
    pub(crate) fn ms(&self) -> u32 {
        self.ms_or_auto().expect(FITS)
    }

    /// The time of a [`Kind::Ms`].
    pub(crate) fn duration(&self) -> Duration {
        if let Self::Ms(ms) = self { Some(Duration::from_millis(*ms)) } else { None }.expect(FITS)
    }

    /// The seconds of a [`Kind::Seconds`].
    pub(crate) fn seconds(&self) -> u32 {
        if let Self::Seconds(seconds) = self { Some(*seconds) } else { None }.expect(FITS)
    }

    /// The number of a [`Kind::Percent`].
    pub(crate) fn percent(&self) -> u8 {
        if let Self::Percent(percent) = self { Some(*percent) } else { None }.expect(FITS)
    }

    /// The parts per million of a [`Kind::Share`]; None for a word.
    pub(crate) fn share(&self) -> Option<u32> {
        if let Self::Share(ppm) = self { Some(*ppm) } else { None }
    }

    /// The bits of a [`Kind::Octal`].
    pub(crate) fn octal(&self) -> u32 {
        if let Self::Octal(bits) = self { Some(*bits) } else { None }.expect(FITS)
    }

    /// The text of a [`Kind::Text`], [`Kind::Free`] or [`Kind::Choice`].
    pub(crate) fn text(&self) -> &str {
        &self.placed().text
    }

    /// The same, with where it begins.
    pub(crate) fn placed(&self) -> &Text {
        if let Self::Text(text) = self { Some(text) } else { None }.expect(FITS)
    }

    /// The texts of a [`Kind::List`] or [`Kind::Words`].
    pub(crate) fn list(&self) -> &[Text] {
        if let Self::List(list) = self { Some(&list[..]) } else { None }.expect(FITS)
    }

    /// Whether a [`Kind::FlagOr`] is true; None for its word.
    pub(crate) fn flag_or_word(&self) -> Option<bool> {
        if let Self::Flag(is) = self { Some(*is) } else { None }
    }

    /// Whether a [`Kind::Flag`] is true.
    pub(crate) fn flag(&self) -> bool {
        if let Self::Flag(is) = self { Some(*is) } else { None }.expect(FITS)
    }
}

impl Kind {
    /// Whether an option of this kind takes a value.
    pub(crate) fn is_wanted(self) -> bool {
        !matches!(self, Self::None)
    }

    /// Whether an option of `-o` may come without it.
    pub(crate) fn is_optional(self) -> bool {
        matches!(self, Self::None | Self::Any)
    }

    /// The value's stand-in in the help, such as `<num>`.
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

    /// What is allowed, in words, for messages and the reference.
    pub(crate) fn describe(self, place: Place) -> String {
        let quoted = place == Place::RuleFile;
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

    /// Reads a word of the command line; the error continues a sentence that began with the option's name.
    pub(crate) fn read(self, text: Option<&str>) -> Result<OptionValue, String> {
        let text = text.unwrap_or_default();
        let wrong = || format!("{text}: must be {}", self.describe(Place::CommandLine));
        let words = |given: Option<OptionValue>| given.ok_or_else(wrong);
        match self {
            Self::None | Self::Any => Ok(OptionValue::None),
            Self::Number { unit, min, max } => {
                // memcached reads the digits and leaves the rest.
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
                    return Ok(OptionValue::Text(Text { text: text.to_owned(), offset: 0 }));
                }
                Err(format!("{text}: must be one of {}", self.describe(Place::CommandLine)))
            }
            Self::Text { .. } if text.is_empty() => {
                Err(format!("\"\": must be {}", self.describe(Place::CommandLine)))
            }
            Self::Text { .. } => Ok(OptionValue::Text(Text { text: text.to_owned(), offset: 0 })),
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

/// `10`, `10KiB`, `10MiB`, `1GiB`, and `k m g` in either case as memcached has them, in bytes.
pub(crate) fn read_size(text: &str) -> Option<u64> {
    read_units(text, BINARY).or_else(|| read_units(text, LETTERS))
}

/// Digits and one of these units behind them.
fn read_units(text: &str, units: &[Unit]) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let (_, each) = units.iter().find(|(name, _)| *name == &text[digits.len()..])?;
    whole(digits)?.checked_mul(*each)
}

/// Digits only: no sign, no blanks.
fn whole(digits: &str) -> Option<u64> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// A time in the largest unit that says it exactly: `400ms`, `30s`.
pub(crate) fn show_ms(ms: u64) -> String {
    if ms == 0 { "0s".to_owned() } else { show_units(ms, TIMES) }
}

/// A size in the largest unit that says it exactly: `64KiB`.
pub(crate) fn show_size(bytes: u64) -> String {
    show_units(bytes, BINARY)
}

/// Parts per million as a decimal fraction: `0.1`.
pub(crate) fn show_share(ppm: u32) -> String {
    let digits = format!("{:06}", ppm % 1_000_000);
    format!("{}.{}", ppm / 1_000_000, digits.trim_end_matches('0'))
}

/// In the largest unit of which it is a multiple, or the number alone.
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
        let kind = Kind::Size { min: 0, max: u64::MAX };
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
        let kind = Kind::Ms { min: 0, max: u64::MAX };
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
        let bounded = Kind::Ms { min: 1, max: 60_000 };
        let said =
            "0: must be a whole number with ms, s, m, h or d (plain: seconds), 1ms or more, 1m at most";
        assert_eq!(bounded.read(Some("0")), Err(said.to_owned()));
    }
}
