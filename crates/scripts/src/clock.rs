//! The time of a call: `cg.now`, `cg.now_ms` and `os`.
//!
//! All of them return the time at which the call began, which does not change while it runs. `os.date` and
//! `os.time` use the zone of the rule file, UTC by default; the machine's zone and the variable `TZ` have no
//! influence.

mod date;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use mlua::{Lua, Table, Value};

use crate::library::arguments::{fault, number, text};
use crate::library::call;
use crate::raw_call;
use crate::state::format::WHOLE_MAX;

/// The seconds of a day.
const DAY_S: i128 = 86_400;
/// The longest format in bytes; a letter of it becomes up to 24 bytes.
const FORMAT_MAX: usize = 1024;

/// Adds the functions to `cg`, and to a new `os`.
///
/// # Errors
/// Memory is short.
pub(crate) fn install(lua: &Lua, cg: &Table) -> mlua::Result<()> {
    cg.raw_set("now", raw_call::now(lua)?)?;
    cg.raw_set("now_ms", raw_call::now_ms(lua)?)?;
    let os = lua.create_table()?;
    os.raw_set("clock", lua.create_function(|lua, ()| now_s(lua, "os.clock"))?)?;
    os.raw_set("time", lua.create_function(time)?)?;
    os.raw_set("date", lua.create_function(date_of)?)?;
    os.raw_set(
        "difftime",
        lua.create_function(|lua, (end, begin): (Value, Value)| {
            let begin = match begin {
                Value::Nil => 0.0,
                begin => number(lua, &begin, "os.difftime", 2)?,
            };
            Ok(number(lua, &end, "os.difftime", 1)? - begin)
        })?,
    )?;
    lua.globals().raw_set("os", os)
}

fn now_s(lua: &Lua, name: &str) -> mlua::Result<f64> {
    call(lua, name, |current| Ok(current.call.now_ms as f64 / 1000.0))
}

/// The time in seconds: that of the call, or of a table `{year=, month=, day=, hour=, min=, sec=}`, whose
/// fields may exceed their usual bounds.
fn time(lua: &Lua, table: Value) -> mlua::Result<f64> {
    let table = match table {
        Value::Nil => {
            let now_ms = call(lua, "os.time", |current| Ok(current.call.now_ms))?;
            return Ok((now_ms / 1000) as f64);
        }
        Value::Table(table) => table,
        _ => {
            return Err(fault(
                lua,
                "os.time: the argument must be a table such as {year=2026, month=1, day=31}",
            ));
        }
    };
    let field = |name: &str, default: Option<i128>| -> mlua::Result<i128> {
        let value = match table.raw_get::<Value>(name)? {
            Value::Nil => None,
            Value::Integer(number) => Some(number as f64),
            Value::Number(number) => Some(number),
            Value::String(text) => text.to_str().ok().and_then(|text| text.trim().parse().ok()),
            _ => Some(f64::NAN),
        };
        match (value, default) {
            (Some(value), _) if value.abs() <= WHOLE_MAX => Ok(value as i128),
            (Some(_), _) => Err(fault(lua, &format!("os.time: field '{name}' must be a number up to 2^53"))),
            (None, Some(default)) => Ok(default),
            (None, None) => Err(fault(lua, &format!("os.time: field '{name}' is missing"))),
        }
    };
    let (year, month, day) = (field("year", None)?, field("month", None)?, field("day", None)?);
    let (hour, min, sec) = (field("hour", Some(12))?, field("min", Some(0))?, field("sec", Some(0))?);
    let is_dst = match table.raw_get::<Value>("isdst")? {
        Value::Boolean(is_dst) => Some(is_dst),
        _ => None,
    };
    let month = year * 12 + month - 1;
    let days = days_from_civil(month.div_euclid(12), month.rem_euclid(12) + 1) + day - 1;
    let local_s = days * DAY_S + hour * 3600 + min * 60 + sec;
    let zone = zone(lua, "os.time")?;
    let seconds = i64::try_from(local_s).ok().and_then(|local_s| from_local(local_s, is_dst, &zone));
    seconds
        .map(|seconds| seconds as f64)
        .ok_or_else(|| fault(lua, "os.time: the year is not within -9999 and 9999"))
}

/// The moment at which clocks of a zone show a time, which is given in seconds as if in UTC. A time that
/// clocks skip is computed with the offset before the change. A time that occurs twice is the first, unless
/// `is_dst` selects one. None: the time is out of range.
fn from_local(local_s: i64, is_dst: Option<bool>, zone: &TimeZone) -> Option<i64> {
    let local = local_of(local_s)?;
    let ambiguous = zone.to_ambiguous_timestamp(local);
    let first = ambiguous.compatible().ok()?;
    let is_wrong = is_dst.is_some_and(|is_dst| is_dst != zone.to_offset_info(first).dst().is_dst());
    let moment = if ambiguous.is_ambiguous() && is_wrong {
        let second = ambiguous.later().ok()?;
        // In a gap both differ from the local time: only an equal time counts.
        if zone.to_datetime(second) == local { second } else { first }
    } else {
        first
    };
    Some(moment.as_second())
}

fn local_of(local_s: i64) -> Option<DateTime> {
    Some(TimeZone::UTC.to_datetime(Timestamp::from_second(local_s).ok()?))
}

/// The days from 1970-01-01 to the first day of a month, 1 to 12.
///
/// Source: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `days_from_civil`.
fn days_from_civil(year: i128, month: i128) -> i128 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// Formats a time by a format of `strftime`, or makes a table for `*t`; a `!` before it means UTC.
fn date_of(lua: &Lua, (format, time): (Value, Value)) -> mlua::Result<Value> {
    let format = match &format {
        Value::Nil => b"%c".to_vec(),
        format => text(lua, format, "os.date", 1)?.to_vec(),
    };
    let seconds = match time {
        Value::Nil => now_s(lua, "os.date")?,
        time => number(lua, &time, "os.date", 2)?,
    };
    if format.len() > FORMAT_MAX {
        return Err(fault(lua, &format!("os.date: a format has up to {FORMAT_MAX} bytes")));
    }
    let (format, zone) = match format.strip_prefix(b"!") {
        Some(format) => (format, TimeZone::UTC),
        None => (&*format, zone(lua, "os.date")?),
    };
    // `as` converts a number that is too large to the largest one, which is not a valid time.
    let moment = Timestamp::from_second(seconds.floor() as i64)
        .map_err(|_| fault(lua, "os.date: the year is not within -9999 and 9999"))?;
    let date = date::Date::of(moment, &zone);
    if format == b"*t" {
        return date.table(lua).map(Value::Table);
    }
    let mut out = Vec::new();
    date.format(format, &mut out).map_err(|letter| {
        let letter = char::from(letter);
        fault(lua, &format!("os.date: '%{letter}' is not one of {}", date::LETTERS))
    })?;
    Ok(Value::String(lua.create_string(&out)?))
}

fn zone(lua: &Lua, name: &str) -> mlua::Result<TimeZone> {
    call(lua, name, |current| Ok(current.call.zone.time_zone()))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use cattlegrid_objects::Zone;

    use crate::testing::{TestSetting, eval, vm};

    const ZONES: [&str; 5] =
        ["UTC", "America/Los_Angeles", "Asia/Kolkata", "Europe/Berlin", "Australia/Lord_Howe"];

    fn zone(name: &str) -> TestSetting {
        TestSetting { zone: Zone::named(name).unwrap(), ..TestSetting::default() }
    }

    #[test]
    fn times() {
        let lua = vm();
        let setting = TestSetting::default();
        for (source, text) in [
            (
                "cg.now(), cg.now_ms(), os.time(), os.clock()",
                "1700000000.5 1700000000500 1700000000 1700000000.5",
            ),
            (
                "os.date(), os.date('%Y-%m-%dT%H:%M:%S%z')",
                "Tue Nov 14 22:13:20 2023 2023-11-14T22:13:20+0000",
            ),
            ("os.time{year = 2026, month = 13, day = 1, hour = 24}", "1798848000"),
            ("os.time{year = 2027, month = 1, day = 2, hour = 0}", "1798848000"),
            ("os.time{year = 2026, month = 1, day = 0, hour = 0}", "1767139200"),
            ("os.time{year = 1970, month = 1, day = 1, hour = 0, sec = 1e6}", "1000000"),
            ("os.difftime(5, 2), os.difftime(5)", "3 5"),
        ] {
            assert_eq!(eval(&lua, &setting, &format!("return {source}")), text, "{source}");
        }
        assert_eq!(
            eval(&lua, &zone("Asia/Tokyo"), "return os.date('%H %Z'), os.date('!%H %Z')"),
            "07 JST 22 UTC"
        );
    }

    #[test]
    fn every_letter_of_a_format() {
        let lua = vm();
        // As `strftime` of the GNU library writes them.
        let letters = "%a %A %b %B %c %d %H %I %j %m %M %p %S %U %w %W %x %X %y %Y %z %Z";
        for (name, text) in [
            (
                "America/Los_Angeles",
                "Thu Thursday May May Thu May 28 13:26:40 2026 28 13 01 148 05 26 PM 40 21 4 21 05/28/26 13:26:40 26 2026 -0700 PDT",
            ),
            (
                "Asia/Kolkata",
                "Fri Friday May May Fri May 29 01:56:40 2026 29 01 01 149 05 56 AM 40 21 5 21 05/29/26 01:56:40 26 2026 +0530 IST",
            ),
            (
                "Pacific/Apia",
                "Fri Friday May May Fri May 29 09:26:40 2026 29 09 09 149 05 26 AM 40 21 5 21 05/29/26 09:26:40 26 2026 +1300 +13",
            ),
        ] {
            let source = format!("return os.date('{letters}', 1780000000)");
            assert_eq!(eval(&lua, &zone(name), &source), text, "{name}");
        }
        let utc = TestSetting::default();
        for (source, text) in [
            ("os.date('a%%b%', 0)", "a%b%"),
            ("os.date('', 0)", ""),
            (
                "os.date('%I %p', 0), os.date('%I %p', 43200), os.date('%U %W', 1767484800)",
                "12 AM 12 PM 01 00",
            ),
            ("os.date('%Y', -62135596801)", "0"),
            ("os.date('%Q', 0)", "test.luau:1: os.date: '%Q' is not one of %aAbBcdHIjmMpSUwWxXyYzZ"),
            ("os.date('%E', 0)", "test.luau:1: os.date: '%E' is not one of %aAbBcdHIjmMpSUwWxXyYzZ"),
            ("os.date('%c', 1e18)", "test.luau:1: os.date: the year is not within -9999 and 9999"),
            ("os.date('%c', -1e300)", "test.luau:1: os.date: the year is not within -9999 and 9999"),
            ("os.date('%c', 0 / 0)", "test.luau:1: os.date: argument 2 must be a number, and is NaN"),
            ("#os.date(string.rep('%c', 512), 0)", "12288"),
            ("os.date(string.rep('x', 1025), 0)", "test.luau:1: os.date: a format has up to 1024 bytes"),
        ] {
            assert_eq!(eval(&lua, &utc, &format!("return {source}")), text, "{source}");
        }
    }

    #[test]
    fn fields_beyond_their_bounds() {
        let lua = vm();
        // As `mktime` of the GNU library counts them.
        let source = "return os.time{year = 2026, month = 13, day = 32, hour = 25, min = 61, sec = 61}";
        for (name, text) in [
            ("America/Los_Angeles", "1801562521"),
            ("Asia/Kolkata", "1801513921"),
            ("Europe/Berlin", "1801530121"),
        ] {
            assert_eq!(eval(&lua, &zone(name), source), text, "{name}");
        }
        let utc = TestSetting::default();
        for (source, text) in [
            ("os.time{year = 2026, month = 0, day = 1, hour = 0}", "1764547200"),
            ("os.time{year = 2026, month = -11, day = 1, hour = 0}", "1735689600"),
            ("os.time{year = 2026, month = 3, day = -1, hour = 0}", "1772150400"),
            ("os.time{year = 1970, month = 1, day = 1, hour = 0, min = -1}", "-60"),
            ("os.time{year = 1970, month = 1, day = '2', hour = 0.9}", "86400"),
            ("os.time{year = 1970, month = 1, day = 1}", "43200"),
            ("os.time{year = 0, month = 12 * 1970 + 1, day = 1, hour = 0}", "0"),
            (
                "os.time{year = 2^53, month = -2^53, day = 1}",
                "test.luau:1: os.time: the year is not within -9999 and 9999",
            ),
            (
                "os.time{year = 9999, month = 12, day = 40}",
                "test.luau:1: os.time: the year is not within -9999 and 9999",
            ),
            ("os.time{year = 2026, month = 1}", "test.luau:1: os.time: field 'day' is missing"),
            (
                "os.time{year = 2026, month = 1, day = {}}",
                "test.luau:1: os.time: field 'day' must be a number up to 2^53",
            ),
            (
                "os.time{year = 2026, month = 1, day = 1e300}",
                "test.luau:1: os.time: field 'day' must be a number up to 2^53",
            ),
            (
                "os.time{year = 2026, month = 1, day = 0/0}",
                "test.luau:1: os.time: field 'day' must be a number up to 2^53",
            ),
            (
                "os.time(5)",
                "test.luau:1: os.time: the argument must be a table such as {year=2026, month=1, day=31}",
            ),
        ] {
            assert_eq!(eval(&lua, &utc, &format!("return {source}")), text, "{source}");
        }
    }

    #[test]
    fn hours_that_come_twice_or_never() {
        let (lua, la) = (vm(), zone("America/Los_Angeles"));
        for (fields, text) in [
            ("month = 3, day = 8, hour = 2, min = 30", "1772965800"),
            ("month = 3, day = 8, hour = 2, min = 30, isdst = true", "1772965800"),
            ("month = 3, day = 8, hour = 2, min = 30, isdst = false", "1772965800"),
            ("month = 11, day = 1, hour = 1, min = 30", "1793521800"),
            ("month = 11, day = 1, hour = 1, min = 30, isdst = true", "1793521800"),
            ("month = 11, day = 1, hour = 1, min = 30, isdst = false", "1793525400"),
            ("month = 7, day = 1, hour = 0, isdst = false", "1782889200"),
        ] {
            let source = format!("return os.time{{year = 2026, {fields}}}");
            assert_eq!(eval(&lua, &la, &source), text, "{fields}");
        }
    }

    #[test]
    fn a_date_is_the_time_that_it_was_made_of() {
        let lua = vm();
        // The months of 2026 in which offsets change, in steps that meet each change from both sides.
        let source = "for _, month in {3, 4, 10, 11} do
                for t = os.time{year = 2026, month = month, day = 1}, os.time{year = 2026, month = month + 1, day = 1}, 1787 do
                    local back = os.time(os.date('*t', t))
                    assert(back == t, os.date('%c %Z', t) .. ' ' .. back - t)
                    assert(os.date('!*t', t).sec == t % 60)
                end
            end
            return 'ok'";
        for name in ZONES {
            assert_eq!(eval(&lua, &zone(name), source), "ok", "{name}");
        }
    }

    /// Windows of a date whose fields are counted up.
    const QUOTA: &str = "
        local function next_window(kind)
            local date = os.date('*t')
            date.min, date.sec = 0, 1
            if kind == 'hour' then
                date.hour += 1
            else
                date.hour = 0
                if kind == 'month' then date.month += 1; date.day = 1 else date.day += 1 end
            end
            return os.time(date)
        end
        local made = {limit = tonumber('10'), used = 0, ends = next_window(KIND)}
        local function add(n)
            if os.time() > made.ends then made.used = 0; made.ends = next_window(KIND) end
            if made.used + n > made.limit then return -1 end
            made.used += n
            return 0
        end
        local left = made.ends - os.time()
        return add(10), add(1), left > 0 and left <= MOST";

    #[test]
    fn a_quota_of_a_window() {
        let lua = vm();
        // A day in summer, and the last half hour of a year.
        for now_s in [1_780_000_000_u64, 1_798_761_000] {
            for (kind, most) in [("hour", 3601), ("day", 25 * 3600 + 1), ("month", 31 * 86_400 + 3601)] {
                let source = QUOTA.replace("KIND", &format!("'{kind}'")).replace("MOST", &most.to_string());
                for name in ZONES {
                    let setting = TestSetting { now_ms: now_s * 1000, ..zone(name) };
                    assert_eq!(eval(&lua, &setting, &source), "0 -1 true", "{kind} {name}");
                }
            }
        }
    }

    #[test]
    fn the_machines_zone_does_not_matter() {
        let this = std::env::current_exe().unwrap();
        for name in ["UTC", "America/Los_Angeles", "Asia/Kolkata"] {
            let mut child = Command::new(&this);
            child
                .args(["--exact", "clock::tests::a_quota_of_a_window", "clock::tests::times"])
                .env("TZ", name);
            let output = child.output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("2 passed"), "{name}: {text}");
        }
    }
}
