//! Windows of time: minutes, hours, days, weeks and months of a zone, and windows of a fixed length.
//!
//! A calendar window ends where the next one begins in the zone: a day at midnight, a week on Monday, a month
//! on its first day. A window of a fixed length begins at a call. For UTC the boundaries are computed here.
//! Other zones use the time zone database that is compiled into the program, so that the machine's own zone
//! and files have no influence.
//!
//! # Invariants
//! * The end of a window is later than the time for which it was asked, and belongs to the next window.

use jiff::civil::Weekday;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Timestamp, ToSpan as _};

use crate::number;

const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;
/// Codes from this one on are calendar windows; a smaller code is a length in seconds.
const CALENDAR: u32 = 1 << 28;

/// A time zone, in which days, weeks and months begin.
#[derive(Debug, Clone)]
pub struct Zone(Option<TimeZone>);

impl Zone {
    /// UTC, which needs no look-up.
    pub const UTC: Self = Self(None);

    /// The zone with this name in the IANA database, such as `Europe/Berlin`, in upper or lower case.
    ///
    /// # Errors
    /// There is no such zone.
    pub fn named(name: &str) -> Result<Self, String> {
        if ["utc", "etc/utc"].contains(&name.to_ascii_lowercase().as_str()) {
            return Ok(Self::UTC);
        }
        let zone = TimeZoneDatabase::bundled().get(name);
        zone.map(|zone| Self(Some(zone))).map_err(|_| format!("objects: timezone: no zone {name:?}"))
    }

    /// The zone as a type of the crate `jiff`.
    pub fn time_zone(&self) -> TimeZone {
        self.0.clone().unwrap_or(TimeZone::UTC)
    }
}

/// A window of time, such as that of a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Window {
    Minute,
    Hour,
    Day,
    Week,
    Month,
    /// A window that begins at a call, and has this length in seconds: 1 s to 366 days.
    Seconds(u32),
}

impl Window {
    /// The texts that [`Window::read`] accepts, for messages and tables.
    pub(crate) const USAGE: &str =
        "minute, hour, day, week, month, or a length from 1s to 366d such as 90s, 5m, 2h or 1d";

    /// Parses a name, or a length with its unit: `90s`, `5m`, `2h`, `1d`.
    #[inline]
    pub(crate) fn read(text: &[u8]) -> Option<Self> {
        match text {
            b"minute" => return Some(Self::Minute),
            b"hour" => return Some(Self::Hour),
            b"day" => return Some(Self::Day),
            b"week" => return Some(Self::Week),
            b"month" => return Some(Self::Month),
            _ => {}
        }
        let has_unit = matches!(text, [.., b'0'..=b'9', b's' | b'm' | b'h' | b'd']);
        let ms = number::span_ms(text).filter(|_| has_unit)?;
        Some(Self::Seconds((ms / 1000) as u32))
    }

    /// The window's code in a state, below 2^29.
    #[inline]
    pub(crate) fn code(self) -> u32 {
        match self {
            Self::Seconds(seconds) => seconds,
            Self::Minute => CALENDAR,
            Self::Hour => CALENDAR + 1,
            Self::Day => CALENDAR + 2,
            Self::Week => CALENDAR + 3,
            Self::Month => CALENDAR + 4,
        }
    }

    /// The window with this code; for an unused code, the longest window.
    #[inline]
    pub(crate) fn of_code(code: u32) -> Self {
        match code.checked_sub(CALENDAR) {
            None => Self::Seconds(code),
            Some(0) => Self::Minute,
            Some(1) => Self::Hour,
            Some(2) => Self::Day,
            Some(3) => Self::Week,
            Some(_) => Self::Month,
        }
    }

    /// Appends the window's name.
    pub(crate) fn push(self, out: &mut Vec<u8>) {
        let name: &[u8] = match self {
            Self::Minute => b"minute",
            Self::Hour => b"hour",
            Self::Day => b"day",
            Self::Week => b"week",
            Self::Month => b"month",
            Self::Seconds(seconds) => {
                number::push_whole(out, u64::from(seconds));
                b"s"
            }
        };
        out.extend_from_slice(name);
    }

    /// Whether the window begins at a call, and not with the calendar.
    #[inline]
    pub(crate) fn begins_at_call(self) -> bool {
        matches!(self, Self::Seconds(_))
    }

    /// The usual length in milliseconds; a day or a month may be longer by hours where the zone's offset
    /// changes.
    #[inline]
    pub(crate) fn usual_ms(self) -> u64 {
        match self {
            Self::Minute => MINUTE_MS,
            Self::Hour => HOUR_MS,
            Self::Day => DAY_MS,
            Self::Week => 7 * DAY_MS,
            Self::Month => 31 * DAY_MS,
            Self::Seconds(seconds) => u64::from(seconds) * 1000,
        }
    }

    /// The end of the window that contains this time, or that begins now: Unix milliseconds, always later
    /// than `now_ms`.
    #[inline]
    pub(crate) fn end_after(self, now_ms: u64, zone: &Zone) -> u64 {
        let end = match (&zone.0, self) {
            (_, Self::Seconds(seconds)) => now_ms.saturating_add(u64::from(seconds) * 1000),
            (None, _) => self.end_in_utc(now_ms),
            // Times that the database does not cover, from the year 10000 on, are computed in UTC.
            (Some(zone), _) => self.end_in_zone(now_ms, zone).unwrap_or_else(|| self.end_in_utc(now_ms)),
        };
        end.max(now_ms.saturating_add(1))
    }

    fn end_in_utc(self, now_ms: u64) -> u64 {
        let next = |unit: u64| (now_ms / unit + 1).saturating_mul(unit);
        match self {
            Self::Minute => next(MINUTE_MS),
            Self::Hour => next(HOUR_MS),
            Self::Day => next(DAY_MS),
            // Unix time begins on a Thursday.
            Self::Week => ((now_ms / DAY_MS + 3) / 7 * 7 + 4).saturating_mul(DAY_MS),
            Self::Month => first_of_next_month(now_ms / DAY_MS).saturating_mul(DAY_MS),
            Self::Seconds(seconds) => now_ms.saturating_add(u64::from(seconds) * 1000),
        }
    }

    fn end_in_zone(self, now_ms: u64, zone: &TimeZone) -> Option<u64> {
        let now = Timestamp::from_millisecond(i64::try_from(now_ms).ok()?).ok()?;
        let unit_ms = match self {
            Self::Minute => MINUTE_MS,
            Self::Hour => HOUR_MS,
            Self::Day | Self::Week | Self::Month | Self::Seconds(_) => {
                let today = zone.to_datetime(now).date();
                let first = match self {
                    Self::Week => today.nth_weekday(1, Weekday::Monday).ok()?,
                    Self::Month => today.first_of_month().checked_add(1.month()).ok()?,
                    _ => today.tomorrow().ok()?,
                };
                // If midnight does not exist, the day begins at its first moment; if it occurs twice, at the
                // first.
                let end = zone.to_ambiguous_timestamp(first.to_datetime(jiff::civil::Time::midnight()));
                return u64::try_from(end.compatible().ok()?.as_millisecond()).ok();
            }
        };
        // An hour is that of the local clock, even if the offset is not a whole hour. An hour in which the
        // offset changes ends at the change.
        let offset_ms = i64::from(zone.to_offset(now).seconds()) * 1000;
        let local_ms = now_ms.checked_add_signed(offset_ms)?;
        let end_ms = ((local_ms / unit_ms + 1) * unit_ms).checked_add_signed(-offset_ms)?;
        let change = zone.following(now).next().filter(|change| change.offset() != zone.to_offset(now));
        let change_ms = change.and_then(|change| u64::try_from(change.timestamp().as_millisecond()).ok());
        Some(change_ms.map_or(end_ms, |change_ms| end_ms.min(change_ms)))
    }
}

/// The first day of the month after that of `day`, in days since 1970.
///
/// Source: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days` and
/// `days_from_civil`. Years begin in March, so that the leap day is the last day.
fn first_of_next_month(day: u64) -> u64 {
    let days = day + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    // Months are counted from March (0) to February (11), which March of the next year follows.
    let (year, month) = if month == 11 { (year + 1, 0) } else { (year, month + 1) };
    era * 146_097 + year * 365 + year / 4 - year / 100 + (153 * month + 2) / 5 - 719_468
}
