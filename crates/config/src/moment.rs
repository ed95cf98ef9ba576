//! Parsing of moments and of steps of a clock.

use jiff::Timestamp;

use crate::value::read_ms;

/// The latest moment that a clock can be set to, Unix time in milliseconds: the year 2100.
pub const MOMENT_MAX_MS: u64 = 4_102_444_800_000;

/// Parses a moment, in RFC 3339 such as `2026-01-01T00:00:00Z` or as Unix seconds. Returns Unix milliseconds,
/// 0 to [`MOMENT_MAX_MS`].
///
/// # Errors
/// The text continues a sentence that began with the moment.
pub fn parse_moment(text: &str) -> Result<u64, String> {
    let seconds = || text.parse::<u64>().ok().filter(|_| !text.starts_with('+'))?.checked_mul(1000);
    let stamp = || u64::try_from(text.parse::<Timestamp>().ok()?.as_millisecond()).ok();
    seconds().or_else(stamp).filter(|ms| *ms <= MOMENT_MAX_MS).ok_or_else(|| {
        "must be a time such as 2026-01-01T00:00:00Z, or Unix seconds, from 1970 to 2100".to_owned()
    })
}

/// Parses a step of a clock: a time with ms, s, m, h or d. Returns milliseconds, 0 to [`MOMENT_MAX_MS`].
///
/// # Errors
/// The text continues a sentence that began with the step.
pub fn parse_step(text: &str) -> Result<u64, String> {
    read_ms(text)
        .filter(|ms| *ms <= MOMENT_MAX_MS)
        .ok_or_else(|| "must be a time with ms, s, m, h or d, such as 90s".to_owned())
}

/// A moment in Unix milliseconds, at most [`MOMENT_MAX_MS`], in the form that [`parse_moment`] reads.
pub fn show_moment(ms: u64) -> String {
    let stamp = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    stamp.map_or_else(|| ms.to_string(), |stamp| stamp.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments() {
        for (text, ms) in [
            ("0", 0),
            ("1700000000", 1_700_000_000_000),
            ("2026-01-01T00:00:00Z", 1_767_225_600_000),
            ("2026-01-01T00:00:00.25Z", 1_767_225_600_250),
            ("2026-01-01T01:00:00+01:00", 1_767_225_600_000),
            ("2100-01-01T00:00:00Z", MOMENT_MAX_MS),
            ("4102444800", MOMENT_MAX_MS),
        ] {
            assert_eq!(parse_moment(text), Ok(ms), "{text}");
            assert_eq!(parse_moment(&show_moment(ms)), Ok(ms), "{text}");
        }
        let wrong = ["", "-1", "+1", "now", "2026-01-01", "2026-13-01T00:00:00Z", "1969-12-31T23:59:59Z"];
        let too_late = ["4102444801", "2100-01-01T00:00:01Z", "18446744073709551615", "18446744073709551616"];
        for text in wrong.iter().chain(&too_late) {
            assert!(parse_moment(text).unwrap_err().starts_with("must be a time such as"), "{text}");
        }
    }

    #[test]
    fn steps() {
        for (text, ms) in [("90s", 90_000), ("0s", 0), ("1ms", 1), ("1h", 3_600_000), ("31d", 2_678_400_000)]
        {
            assert_eq!(parse_step(text), Ok(ms), "{text}");
        }
        for text in ["", "90", "s", "-1s", "1y", "99999999999d"] {
            assert!(parse_step(text).unwrap_err().starts_with("must be a time with ms"), "{text}");
        }
    }
}
