//! The calendar date and clock time of a moment, in the formats of `strftime` in the C locale.

use std::io::Write as _;

use jiff::fmt::strtime::BrokenDownTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ZonedDateTime};
use mlua::{Lua, Table};

/// The letters of a format.
pub(super) const LETTERS: &str = "%aAbBcdHIjmMpSUwWxXyYzZ";

/// A moment in a zone.
#[derive(Debug)]
pub(super) struct Date(ZonedDateTime);

impl Date {
    pub(super) fn of(moment: Timestamp, zone: &TimeZone) -> Self {
        Self(moment.to_zoned_datetime(zone.clone()))
    }

    /// The fields that `os.time` takes, with the day of the week from Sunday, 1, and the day of the year from
    /// 1.
    pub(super) fn table(&self, lua: &Lua) -> mlua::Result<Table> {
        let table = lua.create_table_with_capacity(0, 9)?;
        let time = &self.0;
        let fields = [
            ("year", i32::from(time.year())),
            ("month", i32::from(time.month())),
            ("day", i32::from(time.day())),
            ("hour", i32::from(time.hour())),
            ("min", i32::from(time.minute())),
            ("sec", i32::from(time.second())),
            ("wday", i32::from(time.weekday().to_sunday_one_offset())),
            ("yday", i32::from(time.day_of_year())),
        ];
        for (name, value) in fields {
            table.raw_set(name, value)?;
        }
        table.raw_set("isdst", time.time_zone().to_offset_info(time.timestamp()).dst().is_dst())?;
        Ok(table)
    }

    /// Appends the date in a format.
    ///
    /// # Errors
    /// A letter that is not in [`LETTERS`].
    pub(super) fn format(&self, format: &[u8], out: &mut Vec<u8>) -> Result<(), u8> {
        let time = BrokenDownTime::from(&self.0);
        let mut rest = format.iter();
        while let Some(byte) = rest.next() {
            match (byte, rest.as_slice().first()) {
                (b'%', Some(letter)) => {
                    rest.next();
                    self.letter(&time, *letter, out)?;
                }
                _ => out.push(*byte),
            }
        }
        Ok(())
    }

    fn letter(&self, time: &BrokenDownTime, letter: u8, out: &mut Vec<u8>) -> Result<(), u8> {
        let year_of_century = self.0.year().rem_euclid(100);
        let written = match letter {
            // This also works for years for which jiff has no two digits.
            b'y' => write!(out, "{year_of_century:02}"),
            b'x' => write!(out, "{:02}/{:02}/{year_of_century:02}", self.0.month(), self.0.day()),
            // The offset has no seconds, which zones had before there was a standard time.
            b'z' => {
                let seconds = self.0.offset().seconds();
                let (sign, minutes) = (if seconds < 0 { '-' } else { '+' }, seconds.unsigned_abs() / 60);
                write!(out, "{sign}{:02}{:02}", minutes / 60, minutes % 60)
            }
            letter => {
                let own = [b'%', letter];
                let format: &[u8] = match letter {
                    b'c' => b"%a %b %e %H:%M:%S %-Y",
                    b'X' => b"%H:%M:%S",
                    b'Y' => b"%-Y",
                    _ if LETTERS.as_bytes().contains(&letter) => &own,
                    other => return Err(other),
                };
                let text = time.to_string(format).unwrap_or_default();
                out.write_all(text.as_bytes())
            }
        };
        debug_assert!(written.is_ok(), "a Vec takes everything");
        Ok(())
    }
}
