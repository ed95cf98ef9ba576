//! What the server does about logs that invalidate: it obeys what they say, and moves the floor while one is
//! behind.

use cattlegrid_herd::WhenBehind;
use cattlegrid_tags::{BumpKind, CLASSES, FloorClass};

use crate::following::{FollowedLog, Log, LogState, MOVE_MS};
use crate::shared::EngineShared;
use crate::sync::Ordering;

impl EngineShared {
    /// Follows these logs from now on, and no others. What is known of a log that stays is kept; a new log is
    /// behind until it is confirmed.
    pub fn follow(&self, logs: Vec<FollowedLog>, now_ms: u64) {
        let mut guard = self.following().lock();
        let mut before = std::mem::take(&mut guard.logs);
        guard.logs = logs
            .into_iter()
            .map(|settings| match before.iter().position(|log| log.settings.is_of(&settings)) {
                Some(at) => Log { settings, state: before.swap_remove(at).state },
                None => Log {
                    state: LogState {
                        name: settings.name.clone(),
                        confirmed_ms: None,
                        behind_since_ms: None,
                        times_behind: 0,
                        flushes: 0,
                    },
                    settings,
                },
            })
            .collect();
        drop(guard);
        self.move_floor(now_ms);
    }

    /// Whether a log is followed.
    #[inline]
    pub fn follows(&self) -> bool {
        self.following().is_on()
    }

    /// Obeys what the time that has passed asks for. Each thread calls it when it has read its clock, before
    /// it executes requests that it received before.
    #[inline]
    pub fn pass_time(&self, now_ms: u64) {
        if self.following().is_due(now_ms) {
            self.move_floor(now_ms);
        }
    }

    #[cold]
    fn move_floor(&self, now_ms: u64) {
        let following = self.following();
        let mut guard = following.lock();
        guard.note(now_ms, || self.tick());
        // Of the logs that are behind, for each class: the highest number is that of the shortest distance.
        let mut shortest_ms = [[None::<u64>; 2]; CLASSES];
        for log in &mut guard.logs {
            let settings = &log.settings;
            let is_behind = log.state.confirmed_ms.is_none_or(|at_ms| now_ms > at_ms + settings.max_lag_ms);
            if !is_behind {
                log.state.behind_since_ms = None;
                continue;
            }
            if log.state.behind_since_ms.is_none() {
                log.state.times_behind += 1;
                log.state.behind_since_ms = Some(now_ms);
            }
            for (when_behind, shortest_ms) in settings.when_behind().into_iter().zip(&mut shortest_ms) {
                let kind = match when_behind {
                    WhenBehind::Refresh => BumpKind::Soft,
                    WhenBehind::Miss => BumpKind::Hard,
                    WhenBehind::Serve => continue,
                };
                let shortest = &mut shortest_ms[kind as usize];
                *shortest =
                    Some(shortest.map_or(settings.max_lag_ms, |other| other.min(settings.max_lag_ms)));
            }
        }
        let mut is_new = false;
        for (class, shortest_ms) in FloorClass::ALL.into_iter().zip(shortest_ms) {
            for (kind, age_ms) in [BumpKind::Hard, BumpKind::Soft].into_iter().zip(shortest_ms) {
                let Some(age_ms) = age_ms else { continue };
                // The next move comes later than now.
                let number = guard.number_at((now_ms + MOVE_MS).saturating_sub(age_ms), || self.tick());
                is_new |= self.tags().age_tagged(class, kind, number, now_ms, age_ms);
            }
        }
        let next_ms = guard.next_ms(now_ms);
        // Before the lock is free: a thread that does not wait for it finds the floor raised.
        following.look_ms.store(next_ms, Ordering::Release);
        drop(guard);
        if is_new {
            self.outside_event();
        }
    }

    /// All that a log had committed before this moment is obeyed.
    pub fn log_confirmed(&self, name: &str, asked_at_ms: u64, now_ms: u64) {
        let mut guard = self.following().lock();
        if let Some(log) = guard.logs.iter_mut().find(|log| &*log.settings.name == name) {
            log.state.confirmed_ms = log.state.confirmed_ms.max(Some(asked_at_ms));
        }
        drop(guard);
        self.move_floor(now_ms);
    }

    /// A log may have left something out: invalidates all items with tags, as `when_behind` says.
    pub fn flush_log(&self, name: &str, now_ms: u64) {
        let mut guard = self.following().lock();
        let log = guard.logs.iter_mut().find(|log| &*log.settings.name == name);
        let Some(log) = log else { return };
        log.state.flushes += 1;
        let kind =
            |when_behind| if when_behind == WhenBehind::Miss { BumpKind::Hard } else { BumpKind::Soft };
        let kinds = log.settings.when_behind().map(kind);
        drop(guard);
        self.note_time(now_ms);
        self.tags().flush_tagged(kinds, now_ms, || self.tick());
        self.outside_event();
    }

    /// How far each log has been obeyed.
    pub fn log_states(&self, now_ms: u64) -> Vec<LogState> {
        self.pass_time(now_ms);
        self.following().lock().logs.iter().map(|log| log.state.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use cattlegrid_tags::Validity;

    use super::*;
    use crate::following::{RING_MS, class_of};

    fn followed(when_behind: WhenBehind) -> FollowedLog {
        FollowedLog { name: "shop".into(), source: "a".into(), max_lag_ms: 3000, when_behind }
    }

    fn shared(when_behind: WhenBehind) -> EngineShared {
        let shared = EngineShared::new(false, 1 << 20, 1 << 16, 1);
        shared.follow(vec![followed(when_behind)], 10_000);
        shared
    }

    fn check(shared: &EngineShared, stamp: u64, tags: &[u64], now_ms: u64) -> Validity {
        shared.pass_time(now_ms);
        shared.tags().check(stamp, tags.iter().copied(), 7, now_ms)
    }

    #[test]
    fn nothing_is_looked_at_without_a_log() {
        let shared = EngineShared::new(false, 1 << 20, 1 << 16, 1);
        assert!(!shared.following().is_due(u64::MAX - 1));
        shared.follow(Vec::new(), 10_000);
        assert_eq!((shared.following().is_due(u64::MAX - 1), shared.clock()), (false, 0));
    }

    #[test]
    fn items_with_tags_are_old_at_the_distance() {
        let shared = shared(WhenBehind::Refresh);
        let stamp = shared.tick();
        for now_ms in (10_000..12_900).step_by(50) {
            assert_eq!(check(&shared, stamp, &[1], now_ms), Validity::Valid, "{now_ms}");
        }
        assert_eq!(check(&shared, stamp, &[1], 13_001), Validity::Stale);
        assert_eq!(check(&shared, stamp, &[], 13_001), Validity::Valid, "without tags");
        let since =
            shared.tags().stale_since_ms(stamp, ([1], FloorClass::default()), 7, 14_000, |number| number);
        assert_eq!(since, Some(13_001));
        let young = shared.tick();
        assert_eq!(check(&shared, young, &[1], 13_002), Validity::Valid);
    }

    #[test]
    fn tags_are_bumped_while_the_floor_moves() {
        let shared = shared(WhenBehind::Miss);
        let tag = shared.tag_hasher().hash_made(b"a");
        let now = |ms| crate::Now { second: (ms / 1000) as u32, ms, unix_of_zero: 0 };
        for now_ms in (10_000..20_000).step_by(25) {
            shared.pass_time(now_ms);
            let before = shared.tick();
            shared.bump(tag, BumpKind::Hard, now(now_ms));
            shared.bump(tag, BumpKind::Soft, now(now_ms));
            let after = shared.tick();
            assert_eq!(check(&shared, before, &[tag.get()], now_ms), Validity::Dead);
            assert_eq!(check(&shared, after, &[tag.get()], now_ms), Validity::Valid);
        }
        // Nothing was given out for long.
        shared.pass_time(40_000);
        shared.bump(tag, BumpKind::Hard, now(40_000));
        let after = shared.tick();
        assert_eq!(check(&shared, after, &[tag.get()], 40_001), Validity::Valid);
    }

    #[test]
    fn a_stop_is_noticed_before_anything_else() {
        let shared = shared(WhenBehind::Miss);
        shared.log_confirmed("shop", 10_500, 10_600);
        let stamp = shared.tick();
        assert_eq!(check(&shared, stamp, &[1], 13_500), Validity::Valid, "confirmed");
        assert_eq!(check(&shared, stamp, &[1], 60_000), Validity::Dead, "nothing ran meanwhile");
    }

    #[test]
    fn the_floor_stands_still_when_the_log_is_confirmed() {
        let shared = shared(WhenBehind::Refresh);
        let old = shared.tick();
        for now_ms in (10_000..15_000).step_by(20) {
            shared.pass_time(now_ms);
        }
        let young = shared.tick();
        assert_eq!(check(&shared, old, &[1], 15_000), Validity::Stale);
        shared.log_confirmed("shop", 14_990, 15_000);
        for now_ms in (15_000..17_900).step_by(20) {
            assert_eq!(check(&shared, young, &[1], now_ms), Validity::Valid, "{now_ms}");
        }
        assert_eq!(check(&shared, old, &[1], 15_001), Validity::Stale, "it is not taken back");
        assert_eq!(shared.log_states(15_001)[0].behind_since_ms, None);
        assert_eq!(check(&shared, young, &[1], 18_200), Validity::Stale, "behind again");
        assert_eq!(shared.log_states(18_200)[0].times_behind, 2);
    }

    #[test]
    fn served_though_it_is_behind() {
        let shared = shared(WhenBehind::Serve);
        let stamp = shared.tick();
        assert_eq!(check(&shared, stamp, &[1], 60_000), Validity::Valid);
        assert_eq!(shared.log_states(60_000)[0].behind_since_ms, Some(10_000));
    }

    #[test]
    fn a_rule_says_what_becomes_of_its_items() {
        const RULES: [Option<WhenBehind>; 4] =
            [None, Some(WhenBehind::Refresh), Some(WhenBehind::Miss), Some(WhenBehind::Serve)];
        let of_rule = |shared: &EngineShared, stamp, rule, now_ms| {
            shared.pass_time(now_ms);
            shared.tags().check_of(stamp, [1], 7, now_ms, || class_of(rule))
        };
        for log in [WhenBehind::Refresh, WhenBehind::Miss, WhenBehind::Serve] {
            let shared = shared(log);
            let stamp = shared.tick();
            let expected = |when_behind| match when_behind {
                WhenBehind::Refresh => Validity::Stale,
                WhenBehind::Miss => Validity::Dead,
                WhenBehind::Serve => Validity::Valid,
            };
            for rule in RULES {
                assert_eq!(of_rule(&shared, stamp, rule, 12_800), Validity::Valid, "{log:?}, {rule:?}");
            }
            for rule in RULES {
                let old = of_rule(&shared, stamp, rule, 13_100);
                assert_eq!(old, expected(rule.unwrap_or(log)), "{log:?}, {rule:?}");
            }
            // Each class has its own grace: that of the first ends with the floor that only the others know.
            let since =
                |rule| shared.tags().stale_since_ms(stamp, ([1], class_of(rule)), 7, 14_000, |number| number);
            assert_eq!(since(Some(WhenBehind::Refresh)), Some(13_100));
            assert_eq!((since(Some(WhenBehind::Miss)), since(Some(WhenBehind::Serve))), (None, None));
            shared.log_confirmed("shop", 13_100, 13_100);
            let after = shared.tick();
            shared.flush_log("shop", 13_150);
            for rule in RULES {
                let is_miss = rule.unwrap_or(log) == WhenBehind::Miss;
                let flushed = if is_miss { Validity::Dead } else { Validity::Stale };
                assert_eq!(of_rule(&shared, after, rule, 13_160), flushed, "{log:?}, {rule:?}");
                assert_eq!(of_rule(&shared, shared.tick(), rule, 13_160), Validity::Valid);
            }
        }
    }

    #[test]
    fn a_flush_concerns_items_with_tags() {
        for (when_behind, validity) in [
            (WhenBehind::Refresh, Validity::Stale),
            (WhenBehind::Serve, Validity::Stale),
            (WhenBehind::Miss, Validity::Dead),
        ] {
            let shared = shared(when_behind);
            let before = shared.tick();
            shared.flush_log("shop", 10_001);
            assert_eq!(check(&shared, before, &[1], 10_002), validity);
            assert_eq!(check(&shared, before, &[], 10_002), Validity::Valid);
            let tags = shared.tags();
            assert_eq!(tags.check_original(before, [1], 7, 10_002), Validity::Valid, "an object");
            let after = shared.tick();
            assert_eq!(check(&shared, after, &[1], 10_002), Validity::Valid);
        }
    }

    #[test]
    fn the_ring_never_invalidates_too_little() {
        // A write takes a number; a miss notes the last one, and here nothing else takes any.
        let moments: [fn(&EngineShared) -> u64; 2] = [EngineShared::tick, EngineShared::clock];
        for moment in moments {
            let shared = shared(WhenBehind::Miss);
            let mut given = Vec::new();
            let mut now_ms = 10_000;
            for step in 0..2000_u64 {
                now_ms += step * 7919 % 97;
                shared.pass_time(now_ms);
                given.push((moment(&shared), now_ms));
                for (stamp, at_ms) in given.iter().rev().take(400) {
                    let validity = check(&shared, *stamp, &[1], now_ms);
                    if now_ms > at_ms + 3000 {
                        assert_eq!(validity, Validity::Dead, "{}", now_ms - at_ms);
                    } else if now_ms + 2 * (RING_MS + 97) + MOVE_MS <= at_ms + 3000 {
                        assert_eq!(validity, Validity::Valid, "{}", now_ms - at_ms);
                    }
                }
            }
        }
    }

    #[test]
    fn two_logs_and_one_that_goes() {
        let shared = shared(WhenBehind::Serve);
        let other = FollowedLog {
            name: "stock".into(),
            source: "a".into(),
            max_lag_ms: 500,
            when_behind: WhenBehind::Miss,
        };
        shared.follow(vec![followed(WhenBehind::Serve), other], 10_000);
        let stamp = shared.tick();
        shared.log_confirmed("shop", 10_400, 10_400);
        assert_eq!(check(&shared, stamp, &[1], 10_700), Validity::Dead, "the second");
        let stamp = shared.tick();
        shared.follow(vec![followed(WhenBehind::Serve)], 10_700);
        assert_eq!(check(&shared, stamp, &[1], 13_000), Validity::Valid);
        assert_eq!(shared.log_states(13_000)[0].confirmed_ms, Some(10_400), "what is known is kept");
    }
}
