//! Formats of numbers.

use std::fmt::Write as _;

/// The style of numbers and drawings on a screen or a printed page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NumberStyle {
    /// Whether whole numbers have all digits, and sizes are in bytes, for programs.
    pub(super) exact: bool,
    /// Whether only ASCII is used.
    pub(super) ascii: bool,
}

/// Largest whole number that is written with all digits.
const WHOLE_MAX: f64 = 9_999_999.0;

impl NumberStyle {
    /// Formats a count that the server has sent.
    pub(super) fn count(self, text: Option<&str>) -> String {
        match text {
            None => "-".to_owned(),
            Some(text) => match text.parse::<u64>() {
                Ok(number) if !self.exact && number as f64 > WHOLE_MAX => short(number as f64),
                _ => text.to_owned(),
            },
        }
    }

    /// Formats a computed number.
    pub(super) fn number(self, number: f64) -> String {
        // A sum of nothing is -0.
        let number = number + 0.0;
        if self.exact || number.abs() <= WHOLE_MAX { format!("{number:.0}") } else { short(number) }
    }

    pub(super) fn bytes(self, text: Option<&str>) -> String {
        match text.map(str::parse::<u64>) {
            Some(Ok(bytes)) if self.exact => bytes.to_string(),
            Some(Ok(bytes)) => size(bytes as f64),
            _ => "-".to_owned(),
        }
    }
}

/// Formats a rate per second: with one decimal below 10.
pub(super) fn rate(rate: Option<f64>) -> String {
    match rate {
        None => "-".to_owned(),
        Some(rate) if rate.abs() < 0.05 => "0".to_owned(),
        Some(rate) if rate.abs() < 9.95 => format!("{rate:.1}"),
        Some(rate) if rate.abs() <= WHOLE_MAX => format!("{rate:.0}"),
        Some(rate) => short(rate),
    }
}

/// Formats bytes per second.
pub(super) fn rate_of_bytes(rate: Option<f64>) -> String {
    rate.map_or_else(|| "-".to_owned(), size)
}

fn short(number: f64) -> String {
    let mut number = number;
    for unit in ["", "k", "M", "G", "T"] {
        if number.abs() < 9999.5 {
            return format!("{number:.0}{unit}");
        }
        number /= 1000.0;
    }
    format!("{number:.0}P")
}

pub(super) fn size(bytes: f64) -> String {
    let mut number = bytes;
    for unit in ["B", "KiB", "MiB", "GiB", "TiB"] {
        if number.abs() < 999.95 {
            return if unit == "B" { format!("{number:.0} B") } else { format!("{number:.1} {unit}") };
        }
        number /= 1024.0;
    }
    format!("{number:.0} PiB")
}

/// Formats a share from 0 to 1.
pub(super) fn share(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", share * 100.0))
}

/// Formats a time with its two largest units.
pub(super) fn seconds(seconds: u64) -> String {
    let parts = [(86_400, "d"), (3600, "h"), (60, "min"), (1, "s")];
    let first = parts.iter().position(|(unit, _)| seconds >= *unit).unwrap_or(3);
    let mut text = String::new();
    let mut rest = seconds;
    for (unit, name) in parts.iter().skip(first).take(2) {
        let _infallible = write!(text, "{}{} {name}", if text.is_empty() { "" } else { " " }, rest / unit);
        rest %= unit;
    }
    text
}

pub(super) fn millis(ms: f64) -> String {
    if ms < 0.9995 {
        format!("{:.0} us", ms * 1000.0)
    } else if ms < 9.995 {
        format!("{ms:.1} ms")
    } else if ms < 9999.5 {
        format!("{ms:.0} ms")
    } else {
        seconds((ms / 1000.0) as u64)
    }
}

/// The UTC time of day of a Unix time, such as `07:15:03 UTC`.
pub(super) fn time_of_day(unix_seconds: u64) -> String {
    let of_day = unix_seconds % 86_400;
    format!("{:02}:{:02}:{:02} UTC", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

/// A line of `width` columns, one for each of the last points. `most`: the value at full height; None: the
/// largest point.
pub(super) fn spark(points: &[Option<f64>], width: usize, most: Option<f64>, hand: NumberStyle) -> String {
    let shown = &points[points.len().saturating_sub(width)..];
    let most = most.unwrap_or_else(|| shown.iter().flatten().copied().fold(0.0, f64::max));
    let levels: &[char] = if hand.ascii {
        &['_', '.', '-', '=', '+', '*', '%', '#']
    } else {
        &['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█']
    };
    let of = |point: &Option<f64>| match point {
        None => ' ',
        Some(point) if most > 0.0 => levels[((point / most).clamp(0.0, 1.0) * 7.0).round() as usize],
        Some(_) => levels[0],
    };
    shown.iter().map(of).collect()
}

/// A bar of `width` columns, filled to `share`.
pub(super) fn bar(share: f64, width: usize, hand: NumberStyle) -> String {
    let full = ((share.clamp(0.0, 1.0) * width as f64).round() as usize).min(width);
    let (on, off) = if hand.ascii { ("#", ".") } else { ("█", "░") };
    on.repeat(full) + &off.repeat(width - full)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCREEN: NumberStyle = NumberStyle { exact: false, ascii: true };

    #[test]
    fn numbers_are_whole_until_they_are_long() {
        assert_eq!(SCREEN.count(Some("9999999")), "9999999");
        assert_eq!(SCREEN.count(Some("10000000")), "10M");
        assert_eq!(SCREEN.count(Some("18446744073709551615")), "18447P");
        assert_eq!(
            NumberStyle { exact: true, ..SCREEN }.count(Some("18446744073709551615")),
            "18446744073709551615"
        );
        assert_eq!(SCREEN.number(-0.0), "0");
        assert_eq!(SCREEN.count(None), "-");
        assert_eq!(SCREEN.count(Some("auto")), "auto");
        assert_eq!([0.0, 0.26, 9.94, 9.96, 1234.4].map(|r| rate(Some(r))), ["0", "0.3", "9.9", "10", "1234"]);
        assert_eq!(rate(Some(2.5e7)), "25M");
        assert_eq!(rate(None), "-");
    }

    #[test]
    fn sizes_times_and_shares() {
        assert_eq!(
            [0.0, 999.0, 1023.0, 1_048_576.0, 1e15].map(size),
            ["0 B", "999 B", "1.0 KiB", "1.0 MiB", "909.5 TiB"]
        );
        assert_eq!(
            [0, 59, 61, 3600, 90_061].map(seconds),
            ["0 s", "59 s", "1 min 1 s", "1 h 0 min", "1 d 1 h"]
        );
        assert_eq!([0.016, 1.5, 620.0, 61_000.0].map(millis), ["16 us", "1.5 ms", "620 ms", "1 min 1 s"]);
        assert_eq!(share(Some(0.9876)), "98.8 %");
        assert_eq!(time_of_day(1_795_936_228), "07:10:28 UTC");
    }

    #[test]
    fn drawings_have_their_width() {
        let points = [Some(0.0), None, Some(1.0), Some(0.5)];
        assert_eq!(spark(&points, 10, Some(1.0), SCREEN), "_ #+");
        assert_eq!(spark(&points, 2, None, NumberStyle { ascii: false, ..SCREEN }), "█▅");
        assert_eq!(spark(&[Some(0.0)], 3, None, SCREEN), "_");
        assert_eq!(bar(0.5, 6, SCREEN), "###...");
        assert_eq!(bar(7.0, 3, SCREEN), "###");
    }
}
