//! The library's functions in calls, from one to the next: states, tokens, times, and loops of its own that take long.

use std::time::Duration;

use crate::harness::Bench;
use cattlegrid_objects::{FollowUp, Zone};
use cattlegrid_scripts::Limits;
use nix::time::{ClockId, clock_gettime};

const HOUR_MS: u64 = 3_600_000;

/// A limit within windows of the calendar, as people write it with `os.date` and `os.time`.
const QUOTA: &str = "
    local Quota = {}

    local function next_hour()
        local date = os.date('*t')
        date.hour += 1
        date.min, date.sec = 0, 0
        return os.time(date)
    end

    function Quota.new(limit)
        return {limit = cg.number(limit, 1), used = 0, ends = next_hour()}
    end

    function Quota.add(self, n)
        if os.time() >= self.ends then
            self.used, self.ends = 0, next_hour()
        end
        local n = cg.integer(n, 1, 1)
        if self.used + n > self.limit then return -1 end
        self.used += n
        return 0
    end

    return Quota";

#[test]
fn a_quota_in_each_zone() {
    for zone in ["UTC", "America/Los_Angeles", "Asia/Kolkata"] {
        let mut bench = Bench::new(QUOTA);
        bench.zone = Zone::named(zone).unwrap();
        assert_eq!(bench.call("new:10"), "CREATED");
        assert_eq!(bench.call("add:10"), "0");
        assert_eq!(bench.call("add:1"), "-1", "{zone}");
        // 2023-11-14T22:13:20Z, and 16:43:20 or 3:43:20 after the half hour of Kolkata.
        let ends_ms = if zone == "Asia/Kolkata" { 1_700_001_000_000 } else { 1_700_002_800_000 };
        bench.now_ms = ends_ms - 1;
        assert_eq!(bench.call("add:1"), "-1", "{zone}");
        bench.now_ms = ends_ms;
        assert_eq!(bench.call("add"), "0", "{zone}");
        assert_eq!(
            bench.call("dump"),
            format!(r#"{{"ends":{},"limit":10,"used":1}}"#, (ends_ms + HOUR_MS) / 1000)
        );
        assert_eq!(bench.call("add:x"), "CLIENT_ERROR t.add: arg 1 must be a whole number");
    }
}

#[test]
fn a_retry_counts_once() {
    let mut bench = Bench::new(
        "local T = {}
        function T.new() return {n = 0} end
        function T.add(self, token)
            if not cg.once(token) then return self.n end
            self.n += 1
            return self.n
        end
        T.read = {peek = function(self, token) cg.once(token) return self.n end}
        return T",
    );
    assert_eq!(bench.call("new"), "CREATED");
    assert_eq!(bench.call("add:first"), "1");
    assert_eq!(bench.call("add:first"), "1");
    assert_eq!(bench.call("add:second"), "2");
    assert_eq!(bench.call("add:first"), "2");
    assert_eq!(bench.call("peek:second"), "2", "a token that is known changes nothing");
    assert_eq!(bench.call("peek:third"), "SERVER_ERROR script t.peek: read.peek changed its object");
    assert_eq!(bench.call("new"), "CREATED");
    assert_eq!(bench.call("add:second"), "1", "a new object has seen no token");
}

#[test]
fn a_call_that_fails_asks_for_nothing() {
    let mut bench = Bench::new(
        "local T = {}
        function T.new() return {n = 0} end
        function T.run(self, fail)
            self.n += 1
            cg.set('k', 'v'); cg.invalidate('t'); cg.load('k'); cg.tag('t'); cg.ttl(5)
            cg.event('seen', {n = self.n}); cg.log('line')
            if fail then cg.fail('no') end
            return self.n
        end
        return T",
    );
    assert_eq!(bench.call("new"), "CREATED");
    let (reply, done) = bench.call_done("run:yes");
    assert_eq!(reply, "CLIENT_ERROR t.run: no");
    let left = [
        FollowUp::Event { name: "seen".to_owned(), json: "{\"n\":1}".to_owned() },
        FollowUp::Log("line".to_owned()),
    ];
    assert_eq!((&*done.after, done.expires_ms), (&left[..], None));
    let (reply, done) = bench.call_done("run");
    assert_eq!((&*reply, done.after.len()), ("1", 5));
    assert_eq!(done.expires_ms, Some(Some(bench.now_ms + 5000)));
    assert_eq!(done.change.unwrap().tags, [b"t".to_vec()]);
}

/// Long enough for the watchdog to be woken up in time on a machine that is busy.
const LIMIT: Duration = Duration::from_millis(100);

/// The processor's time that this thread has used.
fn used() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("the thread has a clock").into()
}

/// Calls a method with this body, which would take longer than its limit in a function of the library.
#[track_caller]
fn takes_long(body: &str) {
    let text = format!(
        "local T = {{}}
        function T.new() return {{n = 1}} end
        function T.run(self) self.n = 2 {body} end
        return T"
    );
    let limits = Limits { time: LIMIT, memory_bytes: 64 << 20, state_max: 1 << 30 };
    let mut bench = Bench::with(&text, &limits);
    bench.settings.result_max = 1 << 30;
    assert_eq!(bench.call("new"), "CREATED");
    let mut attempts = (1..=3).map(|_| {
        let before = used();
        assert_eq!(bench.call("run"), "SERVER_ERROR script t.run: took longer than 100 ms");
        used().saturating_sub(before)
    });
    // On a busy machine the watchdog may be woken up late.
    assert!(attempts.any(|took| took < LIMIT * 2), "takes more than twice the limit: {body}");
    assert_eq!(bench.call("dump"), r#"{"n":1}"#);
}

#[test]
fn json_that_takes_long() {
    // The longest texts that are allowed.
    let names = "local t = table.create(100) for i = 1, 100 do t[i] = {} for k = 1, 700 do t[i]['n' .. k] = k end end";
    takes_long(&format!("{names} while true do cg.json.encode(t) end"));
    takes_long("local t = table.create(500000, 1) while true do cg.json.encode(t) end");
    takes_long("local t = table.create(500000, 1) while true do cg.event('e', {t = t}) end");
    takes_long("local text = '[' .. string.rep('1,', 500000) .. '1]' while true do cg.json.decode(text) end");
    takes_long(
        "local text = '[' .. string.rep('{\"a\":[]},', 100000) .. '1]' while true do cg.json.decode(text) end",
    );
}

#[test]
fn results_that_take_long() {
    takes_long("return table.create(3000000, true)");
    takes_long("local t = {} for i = 1, 10000 do t[i] = {a = table.create(200, i)} end return t");
}

#[test]
fn states_that_take_long() {
    takes_long("local t = table.create(3500000, 0) self.t = t while true do local x = 1 end");
}

#[test]
fn states_that_are_much_too_large_are_not_written_to_their_end() {
    let limits = Limits { time: Duration::from_secs(60), ..Limits::default() };
    let mut bench = Bench::with(
        "local T = {}
        function T.new() return {n = 1} end
        function T.numbers(self) self.t = table.create(900000, 1.5) end
        function T.wrong(self) self.t = table.create(900000, 1.5) self.t[900000] = print end
        return T",
        &limits,
    );
    bench.call("new");
    for method in ["numbers", "wrong"] {
        let reply = bench.call(method);
        assert!(reply.contains(": state too large (more than 11"), "{reply}");
        assert_eq!(bench.call("dump"), r#"{"n":1}"#);
    }
}
