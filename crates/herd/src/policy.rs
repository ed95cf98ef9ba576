//! A rule's terms, with their defaults, and what is counted under it.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// How long the holder of a lease may compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LeaseTime {
    /// Four times the learned p99, within [`LEASE_MIN_MS`]..=[`LEASE_MAX_MS`]; [`LEASE_UNLEARNED_MS`] until
    /// enough computations were seen.
    #[default]
    Auto,
    /// This number of milliseconds.
    Fixed(u32),
}

/// Shortest automatic lease, in milliseconds.
pub const LEASE_MIN_MS: u32 = 500;
/// Longest automatic lease, in milliseconds.
pub const LEASE_MAX_MS: u32 = 30_000;
/// The automatic lease before anything is learned, in milliseconds.
pub const LEASE_UNLEARNED_MS: u32 = 3_000;

/// The automatic fill window, in milliseconds. Longer than any computation that is worth its value: a miss
/// that is filled later than its window is not known any more.
pub const FILL_WINDOW_AUTO_MS: u32 = 60_000;

/// How long a miss is remembered for the fill that belongs to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FillWindow {
    /// [`FILL_WINDOW_AUTO_MS`].
    #[default]
    Auto,
    /// This number of milliseconds.
    Fixed(u32),
}

/// The answer to a client for which waiting does not help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnBusy {
    /// A miss, as memcached would answer.
    #[default]
    Miss,
    /// `SERVER_ERROR busy`.
    Error,
}

/// What becomes of a get of several keys that has the lease of one of them while other clients have those of
/// others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Partial {
    /// The get is answered at once: the others' keys are misses.
    #[default]
    Answer,
    /// The get waits for the others' keys first. The time of its own leases begins when it is answered.
    Wait,
}

/// The miss to which a fill without a token belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Owner {
    /// Any miss of the key, of any connection: the key's account decides. Right for connection pools.
    #[default]
    Key,
    /// A miss of the connection that fills.
    Connection,
}

/// The treatment of a fill that may be older than a delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ambiguous {
    /// The value may be served for a time ([`crate::Judgement::Provisional`]).
    #[default]
    Serve,
    /// The value is dropped.
    Drop,
}

/// Whether the first line of a value may name the value's tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TagsInValue {
    /// The value is stored as it comes.
    #[default]
    No,
    /// A line of tags is taken off the value.
    Taken,
    /// Tags are taken from the value's first line, and a value without such a line is refused.
    Required,
}

/// What becomes of items with tags while a log that invalidates is behind, when they are older than its
/// `max_lag`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum WhenBehind {
    /// They are old values: one client computes, and the others get the old one for as long as its grace
    /// allows.
    #[default]
    Refresh,
    /// They are misses.
    Miss,
    /// They are served.
    Serve,
}

/// The treatment of a fill without a record, for one fill window after a start or a change of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AfterStart {
    /// The fill is kept, unless its key was deleted or invalidated since the start.
    #[default]
    Keep,
    /// The fill is dropped.
    Drop,
}

/// When one reader is sent to refresh a value before it expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Early {
    /// Never.
    #[default]
    Off,
    /// Depending on how long the rule's values take to compute ([`crate::refresh_lead_s`]).
    Auto,
    /// In the last part of its time to live, in parts per million: 1..=900,000.
    Share(u32),
}

/// The terms of one rule. Times are in milliseconds, or in seconds where the name ends in `_s`.
#[expect(clippy::struct_excessive_bools, reason = "each is a key of its own in the rule file")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Whether misses under the rule are leased: it names one of `hold lease grace early`. Otherwise misses
    /// are recorded and fills are fenced, and nothing else is done.
    pub leases: bool,
    /// The server's own loader computes the values: it holds the leases, and clients wait.
    pub loader: bool,
    /// Longest hold of a get of one key; 0..=60,000.
    pub hold_ms: u32,
    /// How long a get of several keys is held, in milliseconds.
    pub hold_many_ms: u32,
    /// Whether a get of several keys that computes some of them waits for the others.
    pub partial: Partial,
    /// The remaining hold of a get as soon as a finished reply waits behind it.
    pub hold_behind_ms: u32,
    /// How long a holder may compute.
    pub lease: LeaseTime,
    /// How long a fill is waited for after the holder's orderly close.
    pub close_grace_ms: u32,
    /// Seconds for which the old value is served after its expiry while one client refreshes it.
    pub grace_s: u32,
    /// Seconds for which it is served after its expiry while computing fails; not less than `grace_s` counts.
    pub grace_on_error_s: u32,
    /// How long a get waits for the new value before it gets the old one.
    pub wait_ms: u32,
    /// Whether and when one reader is sent to refresh a value before it expires.
    pub early: Early,
    /// By how much of it a time to live is shortened at most, at random, in per cent; 0..=90.
    pub ttl_jitter: u8,
    /// Misses that a holder may see on its own lease; 0..=16.
    pub reentry: u8,
    /// Leases that end unfilled before a key is let pass; at least 1.
    pub pass_after: u32,
    /// How long it is let pass at first; doubles up to 120 s.
    pub pass_for_ms: u32,
    /// Most waiters of one key.
    pub max_waiters: u32,
    /// Most clients that compute one key, before others get `on_busy`.
    pub max_computers: u32,
    /// Most leases of the rule that compute at once; None: no limit.
    pub rule_computers: Option<u32>,
    /// The answer when waiting does not help.
    pub on_busy: OnBusy,
    /// The miss to which a fill without a token belongs.
    pub owner: Owner,
    /// How long a miss is remembered.
    pub fill_window: FillWindow,
    /// The treatment of a fill that may be older than a delete.
    pub ambiguous: Ambiguous,
    /// The treatment of a fill that may be older than the start.
    pub after_start: AfterStart,
    /// Whether a value's first line may name its tags.
    pub tags_in_value: TagsInValue,
    /// A value whose tags were not announced before is not stored.
    pub needs_announced_tags: bool,
    /// What becomes of old values while a log is behind; None: what the log says.
    pub when_behind: Option<WhenBehind>,
    /// Nothing changes for clients: its keys are as keys without a rule, and what the rule would do is
    /// counted ([`crate::Observer`]).
    pub observe: bool,
}

impl Policy {
    /// Seconds for which an old value is kept after its expiry.
    pub fn kept_s(&self) -> u32 {
        self.grace_s.max(self.grace_on_error_s)
    }

    /// The seconds by which a time to live of `ttl_s` seconds is shortened: up to `ttl_jitter`, by a number
    /// that is `drawn` evenly from all numbers.
    ///
    /// Keys that are stored together would otherwise expire together.
    pub fn shortened_s(&self, ttl_s: u32, drawn: u64) -> u32 {
        let most = u64::from(ttl_s) * u64::from(self.ttl_jitter) / 100;
        ((u128::from(drawn) * u128::from(most + 1)) >> 64) as u32
    }
}

impl Default for Policy {
    /// The terms of a rule that names only `lease`.
    fn default() -> Self {
        Self {
            leases: true,
            loader: false,
            hold_ms: 400,
            hold_many_ms: 400,
            partial: Partial::Answer,
            hold_behind_ms: 50,
            lease: LeaseTime::Auto,
            close_grace_ms: 50,
            grace_s: 0,
            grace_on_error_s: 0,
            wait_ms: 0,
            early: Early::Off,
            ttl_jitter: 0,
            reentry: 1,
            pass_after: 2,
            pass_for_ms: 10_000,
            max_waiters: 1024,
            max_computers: 4,
            rule_computers: None,
            on_busy: OnBusy::Miss,
            owner: Owner::Key,
            fill_window: FillWindow::Auto,
            ambiguous: Ambiguous::Serve,
            after_start: AfterStart::Keep,
            tags_in_value: TagsInValue::No,
            needs_announced_tags: false,
            when_behind: None,
            observe: false,
        }
    }
}

/// Upper bounds of the histogram of waits, in milliseconds; the last bucket has no bound.
pub const WAIT_BUCKETS_MS: [u32; 7] = [1, 10, 50, 100, 250, 500, 1000];

macro_rules! rule_counters {
    ($($(#[doc = $doc:literal])+ $name:ident),+ $(,)?) => {
        /// What happened under a rule, named as in `stats rules`. A field's text is the help of its
        /// statistic.
        #[derive(Debug, Default)]
        pub struct RuleCounters {
            $($(#[doc = $doc])+ pub $name: AtomicU64,)+
            /// Waits that ended, by how long they took: see [`WAIT_BUCKETS_MS`].
            pub waits_ms: [AtomicU64; WAIT_BUCKETS_MS.len() + 1],
            /// Milliseconds of all these waits together.
            pub waited_ms: AtomicU64,
        }

        impl RuleCounters {
            /// Names, in the order of [`RuleCounters::values`].
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),+];

            /// The meaning of each counter, in the same order: one sentence or more in plain text.
            pub const HELP: &'static [&'static str] = &[$(concat!($($doc),+).trim_ascii_start()),+];

            /// All counts but the histogram.
            pub fn values(&self) -> [u64; Self::NAMES.len()] {
                [$(self.$name.load(Relaxed)),+]
            }

            /// Sets all counters to 0.
            pub fn reset(&self) {
                $(self.$name.store(0, Relaxed);)+
                self.waits_ms.iter().chain([&self.waited_ms]).for_each(|count| count.store(0, Relaxed));
            }
        }
    };
}

rule_counters! {
    /// Keys asked for by gets of any kind, calls and control keys aside. Beyond 1,024 hits a second of one
    /// shard hits are counted in samples of one in 64, so that a rule costs a hit next to nothing.
    gets,
    /// Keys of these that were answered with a stored value at once, old values included. Held gets that got
    /// one count in `held_filled` and `held_old` instead; all others are misses.
    hits,
    /// Leases granted at a miss.
    leases,
    /// Leases granted to refresh a value that had expired or was softly invalidated.
    leases_stale,
    /// Leases granted to refresh a value before it expires.
    leases_early,
    /// Gets held; a get of several keys counts once for each. Each ends in one of the lines `held_old` to
    /// `held_unruled`, `promoted_close` to `promoted_slot`, `hold_expired`, `released` and `cycles_avoided`.
    held,
    /// Computations avoided: held gets that got the value, and old values served while a lease refreshed
    /// them.
    computes_saved,
    /// Old values served after their expiry or a soft invalidation.
    stale_served,
    /// Old values of these that were served past `grace`, because computing fails (`grace_on_error`).
    stale_on_error,
    /// Waiters that got the lease because the holder's connection closed.
    promoted_close,
    /// Waiters that got the lease because the holder's time was up.
    promoted_deadline,
    /// Waiters that got the lease because the key was deleted or invalidated.
    promoted_invalidated,
    /// Waiters that got the lease because the holder gave up or its fill came too late.
    promoted_gave_up,
    /// Waiters that got the lease because a slot of `rule_computers` became free.
    promoted_slot,
    /// Held gets whose hold ended without a value.
    hold_expired,
    /// Keys of these that were asked for by a get of several keys, which waits for `hold_many`. Each counts
    /// in `hold_expired` as well.
    hold_expired_many,
    /// Held gets that got the old value when their `wait` had passed, or because waiting did not help any
    /// more.
    held_old,
    /// Held gets of the holder itself, answered as misses after 10 ms in which nothing else came on their
    /// connection.
    held_reentered,
    /// Held gets answered by a fill: with the value, or with the answer that the key is absent.
    held_filled,
    /// Held gets answered as misses because their own connection wrote the key.
    held_own_write,
    /// Held gets answered at once because of another key of the same get.
    held_withdrawn,
    /// Held gets whose connection was closed or reset.
    held_gone,
    /// Held gets answered as misses because their key is let pass from now on.
    held_passed,
    /// Held gets whose computation failed: those that asked for the lease got the error; under a loader the
    /// others got the old value, or the answer `on_busy`.
    held_failed,
    /// Held gets answered as misses because no rule with leases covers their key any more.
    held_unruled,
    /// Gets not held because the key has `max_waiters`.
    busy_waiters,
    /// Gets not held because the server has its `waiters`.
    busy_all_waiters,
    /// Gets not held because the computation is expected to take longer than the hold.
    busy_prediction,
    /// Keys of these that were asked for by a get of several keys, which waits for `hold_many`. Each counts
    /// in `busy_prediction` as well.
    busy_prediction_many,
    /// Gets not held because the rule's `hold` is 0.
    busy_no_hold,
    /// Gets not held because 8,192 keys wait for a slot of `rule_computers` already.
    busy_queue,
    /// Gets not held because the computation failed a short time ago.
    busy_failed,
    /// Misses without a lease, and not held, because the rule has its share of the leases.
    busy_leases,
    /// Leases asked for by name for longer than their rule's `lease` that were ended to make room for
    /// another.
    leases_displaced,
    /// Holds that ended with the answer `on_busy` because `max_computers` clients compute the key already.
    busy_computers,
    /// Holds that ended with the answer `on_busy` because no slot of `rule_computers` became free.
    busy_slots,
    /// Computations begun beyond `rule_computers` by a connection that computes under the rule already.
    nested,
    /// Held gets answered when their client sent no more, or the server stopped.
    released,
    /// Misses of a holder on its own lease.
    reentries,
    /// Held gets answered as misses because connections would have waited for each other.
    cycles_avoided,
    /// Gets not held because theirs is the last free connection of the client that computes.
    last_free_kept,
    /// Misses of commands read ahead, which get no lease.
    misses_behind,
    /// Times that a key was let pass because it is never filled.
    pass_entered,
    /// Misses of keys that are let pass.
    pass_misses,
    /// Leases that ended without a fill: nothing was stored in their time, or the holder's value was refused
    /// or dropped.
    unset,
    /// Computations that failed, as their holder said; of a loader also those whose worker was lost, whose
    /// time was up, or whose answer could not be used.
    failures,
    /// Jobs begun for the rule's loader; each for one key.
    loads,
    /// Jobs of these for a refresh, for which no client waited at the beginning.
    loads_refresh,
    /// Jobs of these that took the place of a job without a value: its key was invalidated meanwhile, its
    /// worker was lost, or its loader was replaced before it was begun.
    loads_again,
    /// Jobs that were not begun because two of their key ran already; each begins when one of those has
    /// ended, if a client still waits.
    loads_put_off,
    /// Results of jobs that were dropped because their lease had ended: the key was invalidated or stored
    /// meanwhile.
    loads_late,
    /// Jobs that the loader could not take: its queue was full, or it could not be started.
    loads_refused,
    /// Fills stored.
    fills_stored,
    /// Fills of these of which it is certain, by equal values, that they are newer than the last delete or
    /// invalidation. Each counts in `fills_stored` as well.
    fills_proved,
    /// Fills of these that may be older than it, and are served for a limited time. Each counts in
    /// `fills_stored` as well.
    fills_provisional,
    /// Fills dropped because the key was deleted or invalidated after their miss, or may have been.
    fills_dropped,
    /// Fills of these that are certainly older than the last delete or invalidation.
    fills_dropped_old,
    /// Fills of these that may have been newer: other misses from before it may be open.
    fills_dropped_ambiguous,
    /// Fills of these whose miss was before the start, or before their key had its rule, with a delete or
    /// invalidation since then.
    fills_dropped_unrecorded,
    /// Fills without a token that came on the connection that was answered the miss.
    fills_own,
    /// Fills without a token that came on another connection, as in pools.
    fills_crossed,
    /// Values that got a limited life because another value came which may be newer.
    values_doubted,
    /// Values whose limited life a command has found to be over. If the first one comes a second later or
    /// more, the value has expired instead, as `get_expired` counts.
    lives_ended,
    /// Values of a limited life that ended because all misses from before the last delete or invalidation
    /// were filled.
    lives_closed,
    /// Misses for which `ledger_memory` had no room.
    misses_lost,
    /// Fills stored as stale because the key was softly invalidated after their miss.
    fills_stale,
    /// Negative answers stored.
    negatives,
    /// Values stored with a time to live that was shortened (`ttl_jitter`).
    ttl_shortened,
    /// Tags announced for a key (`@tags:KEY`).
    tags_announced,
    /// Values not stored because no tags were announced for their key (`announced_tags`).
    stores_unannounced,
    /// Values refused because they do not begin with a line of tags (`tags_in_value`).
    stores_without_tags,
    /// Values refused because the tags in their first line, or together with those of the rule, the command
    /// and the announcements, are invalid or more than 8.
    stores_tags_invalid,
    /// Values stored by a command that may be a fill, though no miss of their key was open. Counted by rules
    /// that only observe.
    writes_unmissed,
    /// Misses of which a rule that only observes could not say what it would do: there was no room for their
    /// key.
    observed_lost,
}

impl RuleCounters {
    /// Counts `gets` gets of a key; `is_hit`: they were answered with a stored value at once.
    #[inline]
    pub fn count_get(&self, gets: u64, is_hit: bool) {
        self.gets.fetch_add(gets, Relaxed);
        if is_hit {
            self.hits.fetch_add(gets, Relaxed);
        }
    }

    /// Held gets that have ended: each counts in exactly one of these. The difference from `held` still
    /// waits.
    #[cfg(any(test, fuzzing, feature = "verify"))]
    pub fn held_ended(&self) -> u64 {
        let ends = [
            &self.held_filled,
            &self.held_old,
            &self.promoted_close,
            &self.promoted_deadline,
            &self.promoted_invalidated,
            &self.promoted_gave_up,
            &self.promoted_slot,
            &self.hold_expired,
            &self.held_reentered,
            &self.released,
            &self.cycles_avoided,
            &self.held_own_write,
            &self.held_withdrawn,
            &self.held_gone,
            &self.held_passed,
            &self.held_failed,
            &self.held_unruled,
        ];
        ends.iter().map(|counter| counter.load(Relaxed)).sum()
    }

    /// A wait ended after `ms` milliseconds.
    pub fn waited(&self, ms: u64) {
        self.waited_all(1, ms);
    }

    /// This many waits ended after `ms` milliseconds each.
    pub(crate) fn waited_all(&self, waits: u64, ms: u64) {
        let bucket = WAIT_BUCKETS_MS.iter().position(|most| ms <= u64::from(*most));
        self.waits_ms[bucket.unwrap_or(WAIT_BUCKETS_MS.len())].fetch_add(waits, Relaxed);
        self.waited_ms.fetch_add(waits * ms, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_to_live_are_shortened_evenly() {
        let policy = Policy { ttl_jitter: 10, ..Policy::default() };
        let drawn = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut seen = [0_u32; 7];
        (0..70_000).for_each(|n| seen[policy.shortened_s(60, drawn(n)) as usize] += 1);
        assert!(seen.iter().all(|count| (9_500..10_500).contains(count)), "{seen:?}");
        assert_eq!((policy.shortened_s(9, u64::MAX), policy.shortened_s(10, u64::MAX)), (0, 1));
        assert_eq!(Policy::default().shortened_s(u32::MAX, u64::MAX), 0);
        let most = Policy { ttl_jitter: 90, ..Policy::default() };
        assert_eq!(most.shortened_s(u32::MAX, u64::MAX), 3_865_470_565);
    }
}
