//! The terms under which a rule protects its keys, and their defaults.

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
