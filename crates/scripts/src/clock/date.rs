//! A moment as a calendar and a clock show it, in the formats of `strftime` in the C locale.

use std::io::Write as _;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use mlua::{Lua, Table};

/// The letters of a format.
pub(super) const LETTERS: &str = "%aAbBcdHIjmMpSUwWxXyYzZ";

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A moment in a zone.
#[derive(Debug)]
pub(super) struct Date {
    time: DateTime,
    /// 0 is Sunday.
    weekday: usize,
    is_dst: bool,
    zone: String,
    offset_s: i32,
}

impl Date {
    pub(super) fn of(moment: Timestamp, zone: &TimeZone) -> Self {
        let time = zone.to_datetime(moment);
        let offset = zone.to_offset_info(moment);
        Self {
            time,
            weekday: time.weekday().to_sunday_zero_offset() as usize,
            is_dst: offset.dst().is_dst(),
            zone: offset.abbreviation().to_owned(),
            offset_s: offset.offset().seconds(),
        }
    }

    /// The fields that `os.time` takes, and the day of the week from Sunday, 1, and of the year from 1.
    pub(super) fn table(&self, lua: &Lua) -> mlua::Result<Table> {
        let table = lua.create_table_with_capacity(0, 9)?;
        let time = &self.time;
        let fields = [
            ("year", i32::from(time.year())),
            ("month", i32::from(time.month())),
            ("day", i32::from(time.day())),
            ("hour", i32::from(time.hour())),
            ("min", i32::from(time.minute())),
            ("sec", i32::from(time.second())),
            ("wday", self.weekday as i32 + 1),
            ("yday", i32::from(time.day_of_year())),
        ];
        for (name, value) in fields {
            table.raw_set(name, value)?;
        }
        table.raw_set("isdst", self.is_dst)?;
        Ok(table)
    }

    /// Appends it in a format.
    ///
    /// # Errors
    /// The letter that is none of [`LETTERS`].
    pub(super) fn format(&self, format: &[u8], out: &mut Vec<u8>) -> Result<(), u8> {
        let mut rest = format.iter();
        while let Some(byte) = rest.next() {
            match (byte, rest.as_slice().first()) {
                (b'%', Some(letter)) => {
                    rest.next();
                    self.letter(*letter, out)?;
                }
                _ => out.push(*byte),
            }
        }
        Ok(())
    }

    fn letter(&self, letter: u8, out: &mut Vec<u8>) -> Result<(), u8> {
        let time = &self.time;
        let (day_of_week, day_of_year) = (self.weekday as i16, time.day_of_year() - 1);
        let hour_of_12 = (time.hour() + 11) % 12 + 1;
        let month = MONTHS[usize::from(time.month().unsigned_abs() - 1)];
        let day = DAYS[self.weekday];
        let written = match letter {
            b'%' => write!(out, "%"),
            b'a' => write!(out, "{}", &day[..3]),
            b'A' => write!(out, "{day}"),
            b'b' => write!(out, "{}", &month[..3]),
            b'B' => write!(out, "{month}"),
            b'c' => {
                let (day, month) = (&day[..3], &month[..3]);
                write!(out, "{day} {month} {:>2} ", time.day()).and_then(|()| {
                    write!(
                        out,
                        "{:02}:{:02}:{:02} {}",
                        time.hour(),
                        time.minute(),
                        time.second(),
                        time.year()
                    )
                })
            }
            b'd' => write!(out, "{:02}", time.day()),
            b'H' => write!(out, "{:02}", time.hour()),
            b'I' => write!(out, "{hour_of_12:02}"),
            b'j' => write!(out, "{:03}", day_of_year + 1),
            b'm' => write!(out, "{:02}", time.month()),
            b'M' => write!(out, "{:02}", time.minute()),
            b'p' => write!(out, "{}", if time.hour() < 12 { "AM" } else { "PM" }),
            b'S' => write!(out, "{:02}", time.second()),
            // Weeks of the year, from its first Sunday or Monday.
            b'U' => write!(out, "{:02}", (day_of_year + 7 - day_of_week) / 7),
            b'W' => write!(out, "{:02}", (day_of_year + 7 - (day_of_week + 6) % 7) / 7),
            b'w' => write!(out, "{day_of_week}"),
            b'x' => write!(out, "{:02}/{:02}/{:02}", time.month(), time.day(), time.year().rem_euclid(100)),
            b'X' => write!(out, "{:02}:{:02}:{:02}", time.hour(), time.minute(), time.second()),
            b'y' => write!(out, "{:02}", time.year().rem_euclid(100)),
            b'Y' => write!(out, "{}", time.year()),
            b'z' => {
                let minutes = self.offset_s.unsigned_abs() / 60;
                let sign = if self.offset_s < 0 { '-' } else { '+' };
                write!(out, "{sign}{:02}{:02}", minutes / 60, minutes % 60)
            }
            b'Z' => write!(out, "{}", self.zone),
            other => return Err(other),
        };
        debug_assert!(written.is_ok(), "a Vec takes everything");
        Ok(())
    }
}
