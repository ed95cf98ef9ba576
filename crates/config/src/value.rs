//! The kinds of values options take: what is allowed, how to read it, how to say so.

/// What an option takes after its name.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Value {
    /// Nothing: the option is a switch.
    None,
    /// A whole number in `min..=max`.
    Number { unit: &'static str, min: i64, max: i64 },
    /// A whole number in `min..=max`, or nothing, which stands for `absent`.
    Optional { min: i64, max: i64, absent: i64 },
    /// A decimal number strictly between `above` and `below`.
    Decimal { above: f64, below: f64 },
    /// Bytes, with an optional suffix k, m or g, in `min..=max`.
    Size { min: u64, max: u64 },
    /// Whole seconds, or a number with `ms`, `s`, `m`, `h` or `d`.
    Duration,
    /// Access bits in octal, 0 to 777.
    Octal,
    /// One of `names`; those in `refused` have a reason of their own.
    Choice { names: &'static [&'static str], refused: &'static [(&'static str, &'static str)] },
    /// Any text but the empty one, called `what`.
    Text { what: &'static str },
}

/// A value that was read.
#[derive(Debug, Clone)]
pub(crate) enum Given {
    None,
    Number(i64),
    Decimal(String),
    Bytes(u64),
    Duration(std::time::Duration),
    Octal(u32),
    Text(String),
}

impl Given {
    /// As memcached's `stats settings` would print it.
    pub(crate) fn as_setting(&self) -> String {
        match self {
            Self::None => "yes".to_owned(),
            Self::Number(number) => number.to_string(),
            Self::Decimal(text) | Self::Text(text) => text.clone(),
            Self::Bytes(bytes) => bytes.to_string(),
            Self::Duration(duration) => duration.as_secs().to_string(),
            Self::Octal(bits) => format!("{bits:o}"),
        }
    }

    /// The number of a [`Value::Number`], whose range the table has made to fit.
    pub(crate) fn number<T: TryFrom<i64>>(&self) -> T {
        match self {
            Self::Number(number) => T::try_from(*number).ok(),
            _ => None,
        }
        .expect("the row takes a number whose range fits its setting")
    }

    /// The text of a [`Value::Text`] or [`Value::Choice`].
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            _ => "",
        }
    }
}

impl Value {
    pub(crate) fn is_wanted(&self) -> bool {
        !matches!(self, Self::None)
    }

    /// Whether the option may come without it.
    pub(crate) fn is_optional(&self) -> bool {
        matches!(self, Self::None | Self::Optional { .. })
    }

    /// The value's stand-in in the help, such as `<num>`.
    pub(crate) fn placeholder(&self) -> String {
        match self {
            Self::None => String::new(),
            Self::Number { .. } | Self::Optional { .. } | Self::Decimal { .. } => "<num>".to_owned(),
            Self::Size { .. } => "<size>".to_owned(),
            Self::Duration => "<time>".to_owned(),
            Self::Octal => "<mask>".to_owned(),
            Self::Choice { .. } => "<name>".to_owned(),
            Self::Text { what } => format!("<{what}>"),
        }
    }

    /// What is allowed, in words, for messages and the reference.
    pub(crate) fn describe(&self) -> String {
        match *self {
            Self::None => "none".to_owned(),
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
            Self::Optional { min, max, absent } => {
                format!("a whole number, {min} to {max}, or none for {absent}")
            }
            Self::Decimal { above, below } if below == f64::INFINITY => format!("a number above {above}"),
            Self::Decimal { above, below } => format!("a number above {above} and below {below}"),
            Self::Size { min, max } => {
                format!("bytes, or with a suffix k, m or g; {} to {}", short_size(min), short_size(max))
            }
            Self::Duration => "a whole number with ms, s, m, h or d (plain: seconds)".to_owned(),
            Self::Octal => "access bits in octal, 0 to 777".to_owned(),
            Self::Choice { names, .. } => names.join(", "),
            Self::Text { what } => format!("a {what}"),
        }
    }

    /// Reads `text`; the error continues a sentence that began with the option's name.
    pub(crate) fn read(&self, text: Option<&str>) -> Result<Given, String> {
        if let (Self::Optional { absent, .. }, None) = (self, text) {
            return Ok(Given::Number(*absent));
        }
        let text = text.unwrap_or_default();
        let wrong = || format!("{text}: must be {}", self.describe());
        match *self {
            Self::None => Ok(Given::None),
            // memcached reads the digits and leaves the rest.
            Self::Number { unit: "MiB", min, max } => {
                match text.strip_suffix(['m', 'M']).unwrap_or(text).parse::<i64>() {
                    Ok(number) if (min..=max).contains(&number) => Ok(Given::Number(number)),
                    _ => Err(wrong()),
                }
            }
            Self::Number { min, max, .. } | Self::Optional { min, max, .. } => match text.parse::<i64>() {
                Ok(number) if (min..=max).contains(&number) => Ok(Given::Number(number)),
                _ => Err(wrong()),
            },
            Self::Decimal { above, below } => match text.parse::<f64>() {
                Ok(number) if number > above && number < below => Ok(Given::Decimal(text.to_owned())),
                _ => Err(wrong()),
            },
            Self::Size { min, max } => match read_size(text) {
                Some(bytes) if (min..=max).contains(&bytes) => Ok(Given::Bytes(bytes)),
                _ => Err(wrong()),
            },
            Self::Duration => read_duration(text).map(Given::Duration).ok_or_else(wrong),
            Self::Octal => match u32::from_str_radix(text, 8) {
                Ok(bits) if bits <= 0o777 && !text.starts_with('+') => Ok(Given::Octal(bits)),
                _ => Err(wrong()),
            },
            Self::Choice { names, refused } => {
                if let Some((_, reason)) = refused.iter().find(|(name, _)| *name == text) {
                    return Err(format!("{text}: {reason}"));
                }
                if names.contains(&text) {
                    return Ok(Given::Text(text.to_owned()));
                }
                Err(format!("{text}: must be one of {}", self.describe()))
            }
            Self::Text { .. } if text.is_empty() => Err(format!("\"\": must be {}", self.describe())),
            Self::Text { .. } => Ok(Given::Text(text.to_owned())),
        }
    }
}

/// `10`, `10k`, `10m` or `1g` (either case) in bytes; nothing if it is no such text or too large.
fn read_size(text: &str) -> Option<u64> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 1 << 10),
        b'm' | b'M' => (&text[..text.len() - 1], 1 << 20),
        b'g' | b'G' => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    whole(digits)?.checked_mul(unit)
}

fn read_duration(text: &str) -> Option<std::time::Duration> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let ms = match &text[digits.len()..] {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    whole(digits)?.checked_mul(ms).map(std::time::Duration::from_millis)
}

/// Digits only: no sign, no blanks.
fn whole(digits: &str) -> Option<u64> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

fn short_size(bytes: u64) -> String {
    match bytes {
        _ if bytes > 0 && bytes.is_multiple_of(1 << 30) => format!("{}g", bytes >> 30),
        _ if bytes > 0 && bytes.is_multiple_of(1 << 20) => format!("{}m", bytes >> 20),
        _ if bytes > 0 && bytes.is_multiple_of(1 << 10) => format!("{}k", bytes >> 10),
        _ => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn sizes_take_suffixes_and_nothing_else() {
        for (text, bytes) in
            [("1024", Some(1024)), ("1k", Some(1024)), ("2M", Some(2 << 20)), ("1g", Some(1 << 30))]
        {
            assert_eq!(read_size(text), bytes, "{text}");
        }
        for text in ["", "k", "-1k", "+1", "1kk", "1 k", "1.5m", "99999999999999999999", "99999999999999g"] {
            assert_eq!(read_size(text), None, "{text}");
        }
    }

    #[test]
    fn durations_are_seconds_unless_they_say_otherwise() {
        for (text, ms) in [("5", 5_000), ("5s", 5_000), ("250ms", 250), ("2m", 120_000), ("1h", 3_600_000)] {
            assert_eq!(read_duration(text), Some(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "s", "-5s", "5 s", "5sec", "1.5s", "99999999999999999999d"] {
            assert_eq!(read_duration(text), None, "{text}");
        }
    }
}
