//! `quota`: the golden transcript, windows and their boundaries, clocks that jump, and a plain model.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_sign_loss,
    clippy::cast_possible_wrap,
    reason = "a test"
)]

use crate::world::{NEW_YEAR_MS, World};
use cattlegrid_objects::{Registry, Settings, TypeSettings};
use jiff::civil::date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _};
use proptest::prelude::*;

const QUOTA: u16 = 1;

fn at(text: &str) -> u64 {
    text.parse::<Timestamp>().unwrap().as_millisecond() as u64
}

fn compat() -> World {
    World::with(Settings { compat: true, ..Settings::default() })
}

#[test]
fn golden_transcript() {
    World::new().expect(&[
        ("quota:new:userKey:10:hour", "CREATED"),
        ("quota:addandcheck:userKey:10", "QUOTA_OK"),
        ("quota:addandcheck:userKey:1", "QUOTA_EXCEEDED"),
        ("quota:reset:userKey", "QUOTA_OK"),
        ("quota:addandcheck:userKey", "QUOTA_OK"),
        ("quota:peek:userKey", r#"{"limit":10,"used":1,"left":9,"resets_in":3600}"#),
        ("quota:dump:userKey", r#"{"limit":10,"used":1,"end_ms":1767229200000,"window":"hour"}"#),
    ]);
}

#[test]
fn absent_and_refused() {
    World::new().expect(&[
        ("quota:addandcheck:k:1", "MISS"),
        ("quota:reset:k", "MISS"),
        ("quota:peek:k", "MISS"),
        ("quota:new:k:10:year", "MISS"),
        ("quota:new:k:10:0s", "MISS"),
        ("quota:new:k:10:367d", "MISS"),
        ("quota:new:k:10:90", "MISS"),
        ("quota:new:k:10:90ms", "MISS"),
        ("quota:new:k:10:", "MISS"),
        ("quota:addandcheck:k:1", "MISS"),
    ]);
    compat().expect(&[("quota:new:k:10:year", "NOT_CREATED"), ("quota:addandcheck:k", "ERROR_CACHE_MISS")]);
}

#[test]
fn a_refused_new_leaves_the_object() {
    World::new().expect(&[
        ("quota:new:k:3:day", "CREATED"),
        ("quota:addandcheck:k:2", "QUOTA_OK"),
        ("quota:new:k:9:year", "MISS"),
        ("quota:new:k:x:day", "CLIENT_ERROR quota.new: arg 1 must be a number from 0 to 9223372036854775807"),
        ("quota:addandcheck:k:2", "QUOTA_EXCEEDED"),
        ("quota:new:k:3:day", "CREATED"),
        ("quota:addandcheck:k:2", "QUOTA_OK"),
    ]);
}

#[test]
fn arguments() {
    let positive = "CLIENT_ERROR quota.addandcheck: arg 1 must be a positive number";
    let limit = "arg 1 must be a number from 0 to 9223372036854775807";
    let window =
        "arg 3 must be minute, hour, day, week, month, or a length from 1s to 366d such as 90s, 5m, 2h or 1d";
    let mut world = World::new();
    world.expect(&[("quota:new:k:10:hour", "CREATED")]);
    for n in ["0", "-1", "1.5", "x", "", " 1", "+1", "1e1", "0x1"] {
        assert_eq!(world.call(&format!("quota:addandcheck:k:{n}")), positive, "{n:?}");
    }
    world.expect(&[
        ("quota:addandcheck:k:11", "QUOTA_EXCEEDED"),
        ("quota:addandcheck:k:99999999999999999999999", "QUOTA_EXCEEDED"),
        ("quota:addandcheck:k:10", "QUOTA_OK"),
        ("quota:addandcheck:k:18446744073709551615", "QUOTA_EXCEEDED"),
        ("quota:new:k:-1:hour", &format!("CLIENT_ERROR quota.new: {limit}")),
        ("quota:new:k:9223372036854775808:hour", &format!("CLIENT_ERROR quota.new: {limit}")),
        ("quota:new:k:10", "CLIENT_ERROR quota.new: takes limit window"),
        ("quota:addandcheck:k:1:2", "CLIENT_ERROR quota.addandcheck: takes [n]"),
        ("quota:reset:k:1", "CLIENT_ERROR quota.reset: takes no arguments"),
        ("quota:take:k:1:5:year", &format!("CLIENT_ERROR quota.take: {window}")),
        ("quota:take:k:0:5:hour", "CLIENT_ERROR quota.take: arg 1 must be a positive number"),
    ]);
}

#[test]
fn addandcheck_counts_any_number_as_cacheismo_does() {
    let mut world = compat();
    world.expect(&[
        ("quota:new:k:10:hour", "CREATED"),
        ("quota:addandcheck:k:0", "QUOTA_OK"),
        ("quota:addandcheck:k:2.5", "QUOTA_OK"),
        ("quota:peek:k", r#"{"limit":10,"used":2.5,"left":7.5,"resets_in":3600}"#),
        ("quota:dump:k", r#"{"limit":10,"end_ms":1767229200000,"used":2.5,"window":"hour"}"#),
        ("quota:addandcheck:k:8", "QUOTA_EXCEEDED"),
        ("quota:addandcheck:k:7", "QUOTA_OK"),
        ("quota:addandcheck:k:0.5", "QUOTA_OK"),
        ("quota:peek:k", r#"{"limit":10,"used":10,"left":0,"resets_in":3600}"#),
        ("quota:addandcheck:k:0", "QUOTA_OK"),
        ("quota:addandcheck:k:0.001", "QUOTA_EXCEEDED"),
        ("quota:addandcheck:k:-15", "QUOTA_OK"),
        ("quota:peek:k", r#"{"limit":10,"used":-5,"left":15,"resets_in":3600}"#),
        ("quota:addandcheck:k:15", "QUOTA_OK"),
        ("quota:addandcheck:k", "QUOTA_EXCEEDED"),
        ("quota:addandcheck:k:-1e308", "QUOTA_OK"),
        ("quota:addandcheck:k:-1e308", "QUOTA_OK"),
        ("quota:reset:k", "QUOTA_OK"),
        ("quota:addandcheck:k:10", "QUOTA_OK"),
        ("quota:addandcheck:k:-0.5", "QUOTA_OK"),
        ("quota:addandcheck:k:x", "CLIENT_ERROR quota.addandcheck: arg 1 must be a number"),
        ("quota:addandcheck:k:.5", "CLIENT_ERROR quota.addandcheck: arg 1 must be a number"),
        ("quota:addandcheck:absent:-1", "ERROR_CACHE_MISS"),
    ]);
    world.now_ms += 3_600_000;
    world.expect(&[("quota:peek:k", r#"{"limit":10,"used":0,"left":10,"resets_in":3600}"#)]);
    world.expect(&[("quota:addandcheck:k:10", "QUOTA_OK"), ("quota:addandcheck:k", "QUOTA_EXCEEDED")]);
}

#[test]
fn limits_at_their_edges() {
    World::new().expect(&[
        ("quota:new:none:0:hour", "CREATED"),
        ("quota:addandcheck:none", "QUOTA_EXCEEDED"),
        ("quota:new:all:9223372036854775807:hour", "CREATED"),
        ("quota:addandcheck:all:9223372036854775806", "QUOTA_OK"),
        ("quota:addandcheck:all:18446744073709551615", "QUOTA_EXCEEDED"),
        ("quota:addandcheck:all:2", "QUOTA_EXCEEDED"),
        ("quota:addandcheck:all:1", "QUOTA_OK"),
        ("quota:addandcheck:all:1", "QUOTA_EXCEEDED"),
    ]);
}

#[test]
fn a_call_at_the_end_is_in_the_next_window() {
    for (window, end) in [
        ("minute", "2026-01-30T10:21:00Z"),
        ("hour", "2026-01-30T11:00:00Z"),
        ("day", "2026-01-31T00:00:00Z"),
        ("week", "2026-02-02T00:00:00Z"),
        ("month", "2026-02-01T00:00:00Z"),
        ("90s", "2026-01-30T10:21:47.123Z"),
        ("5m", "2026-01-30T10:25:17.123Z"),
        ("2h", "2026-01-30T12:20:17.123Z"),
        ("1d", "2026-01-31T10:20:17.123Z"),
        ("366d", "2027-01-31T10:20:17.123Z"),
    ] {
        let mut world = World::new();
        world.now_ms = at("2026-01-30T10:20:17.123Z");
        assert_eq!(world.call(&format!("quota:new:k:1:{window}")), "CREATED");
        assert_eq!(world.call("quota:addandcheck:k"), "QUOTA_OK");
        world.now_ms = at(end) - 1;
        assert_eq!(world.call("quota:addandcheck:k"), "QUOTA_EXCEEDED", "{window}");
        assert!(world.call("quota:peek:k").ends_with("\"left\":0,\"resets_in\":1}"), "{window}");
        world.now_ms = at(end);
        assert!(world.call("quota:peek:k").starts_with(r#"{"limit":1,"used":0,"left":1"#), "{window}");
        assert_eq!(world.call("quota:addandcheck:k"), "QUOTA_OK", "{window}");
        assert_eq!(world.call("quota:addandcheck:k"), "QUOTA_EXCEEDED", "{window}");
    }
}

#[test]
fn a_fixed_length_begins_with_the_first_use() {
    let mut world = World::new();
    world.expect(&[("quota:new:k:2:90s", "CREATED")]);
    world.pass(1000);
    world.expect(&[
        ("quota:peek:k", r#"{"limit":2,"used":0,"left":2,"resets_in":0}"#),
        ("quota:addandcheck:k:3", "QUOTA_EXCEEDED"),
        ("quota:peek:k", r#"{"limit":2,"used":0,"left":2,"resets_in":0}"#),
        ("quota:addandcheck:k:1", "QUOTA_OK"),
    ]);
    world.pass(30);
    world.expect(&[("quota:peek:k", r#"{"limit":2,"used":1,"left":1,"resets_in":60}"#)]);
    world.expect(&[("quota:reset:k", "QUOTA_OK"), ("quota:addandcheck:k:2", "QUOTA_OK")]);
    world.pass(89);
    world.expect(&[("quota:addandcheck:k", "QUOTA_EXCEEDED")]);
    world.pass(1);
    world.expect(&[("quota:addandcheck:k", "QUOTA_OK")]);
}

#[test]
fn take_needs_no_new() {
    let mut world = World::new();
    world.pass(10);
    world.expect(&[
        ("quota:take:k:11:10:hour", "QUOTA_EXCEEDED"),
        ("quota:exists:k", "NOT_FOUND"),
        ("quota:take:k:6:10:hour", "QUOTA_OK"),
        ("quota:take:k:5:10:hour", "QUOTA_EXCEEDED"),
        ("quota:take:k:4:10:hour", "QUOTA_OK"),
        ("quota:addandcheck:k", "QUOTA_EXCEEDED"),
        ("quota:ttl:k", "3590"),
    ]);
    world.pass(3590);
    world.expect(&[("quota:exists:k", "NOT_FOUND"), ("quota:take:k:10:10:hour", "QUOTA_OK")]);
    // What `new` makes stays.
    world.expect(&[("quota:new:k:10:hour", "CREATED"), ("quota:ttl:k", "-1")]);
    world.expect(&[("quota:take:k:1:10:hour", "QUOTA_OK"), ("quota:ttl:k", "-1")]);
}

#[test]
fn take_with_another_limit_or_window() {
    let mut world = World::new();
    world.expect(&[
        ("quota:take:k:5:10:hour", "QUOTA_OK"),
        ("quota:take:k:1:5:hour", "QUOTA_EXCEEDED"),
        ("quota:peek:k", r#"{"limit":5,"used":5,"left":0,"resets_in":3600}"#),
        ("quota:take:k:1:6:hour", "QUOTA_OK"),
        ("quota:take:k:1:3:hour", "QUOTA_EXCEEDED"),
        ("quota:peek:k", r#"{"limit":3,"used":6,"left":0,"resets_in":3600}"#),
        // A longer window holds when the current one ends, a shorter one when it would end itself.
        ("quota:take:k:1:7:day", "QUOTA_OK"),
        ("quota:peek:k", r#"{"limit":7,"used":7,"left":0,"resets_in":3600}"#),
        ("quota:take:k:1:7:90s", "QUOTA_EXCEEDED"),
        ("quota:peek:k", r#"{"limit":7,"used":7,"left":0,"resets_in":90}"#),
    ]);
    world.pass(90);
    world.expect(&[("quota:take:k:1:7:day", "QUOTA_OK"), ("quota:ttl:k", "86310")]);
}

#[test]
fn clients_that_disagree_about_the_window_see_it_end() {
    let mut world = World::new();
    world.expect(&[("quota:take:k:1:1:90s", "QUOTA_OK")]);
    for _ in 0..8 {
        world.pass(10);
        world.expect(&[
            ("quota:take:k:1:1:60s", "QUOTA_EXCEEDED"),
            ("quota:take:k:1:1:90s", "QUOTA_EXCEEDED"),
        ]);
        if world.now_ms == NEW_YEAR_MS + 60_000 {
            break;
        }
    }
    world.now_ms = NEW_YEAR_MS + 70_000;
    world.expect(&[("quota:take:k:1:1:60s", "QUOTA_OK")]);
}

#[test]
fn a_clock_set_forward_ends_the_window_once() {
    let mut world = World::new();
    world.expect(&[("quota:new:k:1:day", "CREATED"), ("quota:addandcheck:k", "QUOTA_OK")]);
    world.pass(400 * 86_400);
    world.expect(&[("quota:addandcheck:k", "QUOTA_OK"), ("quota:addandcheck:k", "QUOTA_EXCEEDED")]);
}

#[test]
fn a_clock_set_back_keeps_what_is_used_and_ends_in_time() {
    for (window, seconds) in [("minute", 60), ("hour", 3600), ("day", 86_400), ("week", 345_600), ("90s", 90)]
    {
        let mut world = World::new();
        world.now_ms += 86_400_000; // a Friday
        let week = if window == "week" { 3 * 86_400 } else { seconds };
        assert_eq!(world.call(&format!("quota:new:k:2:{window}")), "CREATED");
        assert_eq!(world.call("quota:addandcheck:k:2"), "QUOTA_OK");
        world.now_ms -= 30 * 86_400_000; // a Wednesday
        let week = if window == "week" { 5 * 86_400 } else { week };
        assert_eq!(world.call("quota:addandcheck:k"), "QUOTA_EXCEEDED", "{window}");
        world.pass(1);
        assert_eq!(world.call("quota:addandcheck:k"), "QUOTA_EXCEEDED", "{window}");
        world.pass(week - 2);
        assert_eq!(world.call("quota:addandcheck:k"), "QUOTA_EXCEEDED", "{window}");
        world.pass(1);
        assert_eq!(world.call("quota:addandcheck:k"), "QUOTA_OK", "{window}");
    }
}

#[test]
fn a_type_may_create_and_expire() {
    let own = TypeSettings {
        ttl_s: 50,
        create: Some(vec![b"2".to_vec(), b"minute".to_vec()]),
        ..TypeSettings::new("quota")
    };
    let mut world = World::with(Settings { types: vec![own], ..Settings::default() });
    world.expect(&[
        ("quota:addandcheck:k:2", "QUOTA_OK"),
        ("quota:addandcheck:k", "QUOTA_EXCEEDED"),
        ("quota:ttl:k", "50"),
        ("quota:ttl:k:70", "70"),
        ("quota:new:k:2:minute", "CREATED"),
        ("quota:ttl:k", "50"),
    ]);
}

#[test]
fn zones() {
    for (zone, window, now, end) in [
        // Daylight saving time begins, and ends: days of 23 and 25 hours.
        ("America/Los_Angeles", "day", "2026-03-08T08:30:00Z", "2026-03-09T07:00:00Z"),
        ("America/Los_Angeles", "day", "2026-11-01T07:30:00Z", "2026-11-02T08:00:00Z"),
        ("America/Los_Angeles", "hour", "2026-11-01T08:30:00Z", "2026-11-01T09:00:00Z"),
        ("America/Los_Angeles", "hour", "2026-11-01T09:30:00Z", "2026-11-01T10:00:00Z"),
        ("America/Los_Angeles", "week", "2026-03-08T08:30:00Z", "2026-03-09T07:00:00Z"),
        ("America/Los_Angeles", "month", "2026-03-31T12:00:00Z", "2026-04-01T07:00:00Z"),
        ("America/Los_Angeles", "month", "2026-01-01T00:00:00Z", "2026-01-01T08:00:00Z"),
        ("Asia/Kolkata", "minute", "2026-01-01T00:00:30Z", "2026-01-01T00:01:00Z"),
        ("Asia/Kolkata", "hour", "2026-01-01T00:00:00Z", "2026-01-01T00:30:00Z"),
        ("Asia/Kolkata", "day", "2026-01-01T18:29:59.999Z", "2026-01-01T18:30:00Z"),
        ("Asia/Kolkata", "week", "2026-01-04T18:30:00Z", "2026-01-11T18:30:00Z"),
        ("Asia/Kolkata", "month", "2026-12-31T18:29:00Z", "2026-12-31T18:30:00Z"),
        // The offset changes by half an hour; the hour in which it does ends there.
        ("Australia/Lord_Howe", "hour", "2026-04-04T14:30:00Z", "2026-04-04T15:00:00Z"),
        ("Australia/Lord_Howe", "hour", "2026-04-04T15:00:00Z", "2026-04-04T15:30:00Z"),
        // Midnight comes twice, and is skipped.
        ("America/Havana", "day", "2025-11-01T12:00:00Z", "2025-11-02T04:00:00Z"),
        ("America/Havana", "day", "2025-11-02T04:30:00Z", "2025-11-03T05:00:00Z"),
        ("America/Havana", "day", "2025-03-08T12:00:00Z", "2025-03-09T05:00:00Z"),
        // A day that was left out.
        ("Pacific/Apia", "day", "2011-12-30T09:59:59Z", "2011-12-30T10:00:00Z"),
        ("utc", "day", "2026-03-08T08:30:00Z", "2026-03-09T00:00:00Z"),
    ] {
        let mut world = World::in_zone(zone);
        world.now_ms = at(now);
        assert_eq!(world.call(&format!("quota:take:k:1:1:{window}")), "QUOTA_OK");
        let dump = world.call("quota:dump:k");
        assert!(
            dump.contains(&format!("\"end_ms\":{},", at(end))),
            "{zone} {window} at {now}: {dump}, not {end}"
        );
    }
}

#[test]
fn unknown_zones() {
    for zone in ["Mars/Olympus", "", "UTC+1", "../etc/passwd"] {
        let settings = Settings { timezone: zone.to_owned(), ..Settings::default() };
        let error = Registry::new(settings).unwrap_err();
        assert_eq!(error, format!("objects: timezone: no zone {zone:?}"));
    }
}

#[test]
fn windows_at_the_ends_of_time() {
    for zone in ["UTC", "America/Los_Angeles"] {
        for now_ms in [0, 1, 3_600_000, 253_402_300_799_999, 253_402_300_800_000, u64::MAX - 1, u64::MAX] {
            for window in ["minute", "hour", "day", "week", "month", "90s", "366d"] {
                let mut world = World::in_zone(zone);
                world.now_ms = now_ms;
                let granted = world.call(&format!("quota:take:k:1:1:{window}"));
                assert_eq!(granted, "QUOTA_OK", "{zone} {window} at {now_ms}");
                world.call("quota:peek:k");
            }
        }
    }
}

/// Prints where windows end; [`the_zone_of_the_process_does_not_matter`] runs it under several values of TZ.
#[test]
fn ends_of_windows() {
    for zone in ["UTC", "America/Los_Angeles", "Asia/Kolkata"] {
        for window in ["minute", "hour", "day", "week", "month"] {
            let mut world = World::in_zone(zone);
            world.now_ms = at("2026-03-08T09:31:07Z");
            world.call(&format!("quota:take:k:1:1:{window}"));
            println!("ENDS {zone} {window} {}", world.call("quota:dump:k"));
        }
    }
}

#[test]
fn the_zone_of_the_process_does_not_matter() {
    let printed = |zone: &str| {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let output = child
            .args(["--exact", "quota::ends_of_windows", "--nocapture"])
            .env("TZ", zone)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let ends = text.lines().filter_map(|line| line.find("ENDS ").map(|at| line[at..].to_owned()));
        ends.collect::<Vec<_>>()
    };
    let expected = printed("UTC");
    assert_eq!(expected.len(), 15);
    for zone in ["America/Los_Angeles", "Asia/Kolkata"] {
        assert_eq!(printed(zone), expected, "TZ={zone}");
    }
}

/// What the model knows: windows as spans of the zone's calendar, told by jiff's own arithmetic.
struct Model {
    zone: TimeZone,
    window: &'static str,
    limit: u64,
    used: u64,
    end_ms: u64,
}

impl Model {
    fn boundary(&self, now_ms: u64) -> u64 {
        let now = Timestamp::from_millisecond(now_ms as i64).unwrap().to_zoned_datetime(self.zone.clone());
        let day = now.start_of_day().unwrap();
        let weekday = i64::from(now.weekday().to_monday_zero_offset());
        let end = match self.window {
            "day" => day.tomorrow().unwrap().start_of_day().unwrap(),
            "week" => (now.date() + (7 - weekday).days()).to_zoned_datetime(self.zone.clone()).unwrap(),
            "month" => {
                let first = date(now.year(), now.month(), 1) + 1.month();
                first.to_zoned_datetime(self.zone.clone()).unwrap()
            }
            "hour" | "minute" => {
                // Seconds go by one at a time until the clock shows a whole unit, or jumps.
                let mut next = now.timestamp().as_second() + 1;
                loop {
                    let before =
                        Timestamp::from_second(next - 1).unwrap().to_zoned_datetime(self.zone.clone());
                    let at = Timestamp::from_second(next).unwrap().to_zoned_datetime(self.zone.clone());
                    let is_whole = at.second() == 0 && (self.window == "minute" || at.minute() == 0);
                    if is_whole || at.offset() != before.offset() {
                        break at;
                    }
                    next += 1;
                }
            }
            length => {
                let seconds: u64 = length.trim_end_matches('s').parse().unwrap();
                return now_ms + seconds * 1000;
            }
        };
        end.timestamp().as_millisecond() as u64
    }

    fn usual_ms(&self) -> u64 {
        let day = 86_400_000;
        match self.window {
            "minute" => 60_000,
            "hour" => 3_600_000,
            "day" => day,
            "week" => 7 * day,
            "month" => 31 * day,
            length => length.trim_end_matches('s').parse::<u64>().unwrap() * 1000,
        }
    }

    fn add(&mut self, n: u64, now_ms: u64) -> &'static str {
        if now_ms >= self.end_ms {
            (self.used, self.end_ms) = (0, 0);
        } else if now_ms + self.usual_ms() < self.end_ms {
            self.end_ms = self.boundary(now_ms);
        }
        if u128::from(self.used) + u128::from(n) > u128::from(self.limit) {
            return "QUOTA_EXCEEDED";
        }
        if self.end_ms == 0 {
            self.end_ms = self.boundary(now_ms);
        }
        self.used += n;
        "QUOTA_OK"
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn agrees_with_a_model(
        zone in prop::sample::select(vec!["UTC", "America/Los_Angeles", "Asia/Kolkata", "Australia/Lord_Howe"]),
        window in prop::sample::select(vec!["minute", "hour", "day", "week", "month", "90s", "86400s"]),
        limit in prop_oneof![0_u64..12, Just(i64::MAX as u64)],
        start in 0_u64..366 * 86_400,
        steps in prop::collection::vec(
            (prop_oneof![4 => 0_i64..100_000, 2 => 0_i64..100_000_000, 1 => -4_000_000_000_i64..4_000_000_000],
             prop_oneof![9 => 1_u64..6, 1 => Just(u64::MAX)], 0_u8..20),
            1..60),
    ) {
        let mut world = World::in_zone(zone);
        world.now_ms = NEW_YEAR_MS + start * 1000;
        prop_assert_eq!(world.call(&format!("quota:new:k:{limit}:{window}")), "CREATED");
        let mut model =
            Model { zone: TimeZone::get(zone).unwrap(), window, limit, used: 0, end_ms: 0 };
        for (step, n, what) in steps {
            world.now_ms = world.now_ms.saturating_add_signed(step);
            if what == 0 {
                prop_assert_eq!(world.call("quota:reset:k"), "QUOTA_OK");
                (model.used, model.end_ms) = (0, 0);
                continue;
            }
            let expected = model.add(n, world.now_ms);
            prop_assert_eq!(world.call(&format!("quota:addandcheck:k:{n}")), expected, "at {}", world.now_ms);
        }
    }

    #[test]
    fn no_bytes_make_it_panic(
        calls in prop::collection::vec(
            (prop::sample::select(vec!["new", "addandcheck", "take", "reset", "peek", "dump", "ttl"]),
             prop::collection::vec(prop_oneof![
                prop::collection::vec(any::<u8>(), 0..24),
                "[0-9]{1,20}".prop_map(String::into_bytes),
                "[0-9]{1,3}[smhd]|hour|month".prop_map(String::into_bytes),
             ], 0..5),
             any::<u64>()),
            1..30),
    ) {
        let mut world = World::in_zone("America/Los_Angeles");
        for (method, arguments, now_ms) in calls {
            world.now_ms = now_ms / 2; // `ttl` adds to it
            let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
            world.call_with("quota", method, b"k", &arguments);
            prop_assert!(world.state(QUOTA, "k").is_none_or(|state| state.len() == 28));
        }
    }
}
