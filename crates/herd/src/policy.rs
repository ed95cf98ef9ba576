//! The terms under which a rule protects its keys, and their defaults.

/// How long the holder of a lease may compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LeaseTime {
    /// Four times the learned p99, within [`LEASE_MIN_MS`]..=[`LEASE_MAX_MS`]; [`LEASE_UNLEARNED_MS`] until enough
    /// computations were seen.
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

/// The automatic fill window, in milliseconds. Longer than any computation that is worth its value: a miss that is
/// filled later than its window is not known any more.
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

/// To which miss a fill without a token belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Owner {
    /// Any miss of the key, of any connection: the key's account decides. Right for connection pools.
    #[default]
    Key,
    /// A miss of the connection that fills.
    Connection,
}

/// What becomes of a fill that may be older than a delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ambiguous {
    /// It may be served for a time ([`crate::Judgement::Provisional`]).
    #[default]
    Serve,
    /// It is dropped.
    Drop,
}

/// What becomes of a fill without a record, for one fill window after a start or a change of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AfterStart {
    /// It is kept, unless its key was deleted or invalidated since the start.
    #[default]
    Keep,
    /// It is dropped.
    Drop,
}

/// The terms of one rule. Times are in milliseconds, except for `grace_s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Whether misses under the rule are leased: it names one of `hold lease grace early`. Otherwise misses are
    /// recorded and fills are fenced, and nothing else is done.
    pub leases: bool,
    /// The server's own loader computes the values: it holds the leases, and clients wait.
    pub loader: bool,
    /// Longest hold of a get of one key; 0..=60,000.
    pub hold_ms: u32,
    /// The same for a get of several keys.
    pub hold_many_ms: u32,
    /// The remaining hold of a get as soon as a finished reply waits behind it.
    pub hold_behind_ms: u32,
    /// How long a holder may compute.
    pub lease: LeaseTime,
    /// How long a fill is waited for after the holder's orderly close.
    pub close_grace_ms: u32,
    /// Seconds for which the old value is served after its expiry while one client refreshes it.
    pub grace_s: u32,
    /// Whether one reader is sent to refresh a value before it expires.
    pub early: bool,
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
    /// To which miss a fill without a token belongs.
    pub owner: Owner,
    /// How long a miss is remembered.
    pub fill_window: FillWindow,
    /// What becomes of a fill that may be older than a delete.
    pub ambiguous: Ambiguous,
    /// What becomes of a fill that may be older than the start.
    pub after_start: AfterStart,
}

impl Default for Policy {
    /// The terms of a rule that names only `lease`.
    fn default() -> Self {
        Self {
            leases: true,
            loader: false,
            hold_ms: 400,
            hold_many_ms: 100,
            hold_behind_ms: 50,
            lease: LeaseTime::Auto,
            close_grace_ms: 50,
            grace_s: 0,
            early: false,
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
        }
    }
}
