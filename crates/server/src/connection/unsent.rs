//! Output that clients have not taken yet, and the memory that it may have.
//!
//! What a socket does not take at once is kept by its connection: replies, encrypted pieces of them, and
//! replies that stand behind a request that waits. All connections of the server share one cap,
//! `--unsent-memory`. Values for requests that wait are part of it, and values in pages of their own from
//! when they leave the store: until then they are the store's. A connection with output that its socket did
//! not take is not read in any case; when the sum reaches the high mark, three quarters of the cap, output is
//! scarce:
//!
//! 1. A connection is read only while its socket has room, has shorter turns, and executes less behind a
//!    request that waits.
//! 2. Connections whose clients have taken nothing for [`STALLED_MS`] are closed, those with most unsent
//!    bytes first, until the sum is below the high mark.
//!
//! When the sum passes the cap all the same, the lane that notices it closes connections of its own until the
//! sum is below: of the client address that has most unsent bytes among the lane's connections, the one with
//! most. A lane whose connections have less than its share of the cap closes none and tells the others, one
//! of which has more.
//!
//! Values that have left the store take memory from it: in sum they have a cap of their own, [`pinned_cap`],
//! above which the same is done with the connections that keep them.
//!
//! The sum and the choices are sans-io: time and identities are arguments. The sum is an atomic, changed when
//! what a connection keeps has changed. A value that several keep is in the sum of values once, and counts in
//! full for each of them.
//!
//! # Invariants
//! * The sum is what the connections have said last, and zero without connections.
//! * A connection that has nothing unsent is never chosen.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use cattlegrid_herd::PeerKey;
use cattlegrid_store::{HugeValue, PAGE_BYTES};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;

use super::Connection;
use crate::shared::Shared;

/// A client that has taken nothing for this long, in milliseconds, is stalled.
pub(crate) const STALLED_MS: u64 = 10_000;

/// Unsent output of the server. See the module's text.
#[derive(Debug)]
pub(crate) struct UnsentOutput {
    cap_bytes: usize,
    bytes: AtomicUsize,
    /// Lanes were told that the cap is passed, and none has looked yet.
    asked: AtomicBool,
    paused: AtomicU64,
    stalled: AtomicU64,
    displaced: AtomicU64,
}

/// A connection that keeps output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Keeper {
    /// The lane's token for the connection.
    pub(crate) token: u64,
    /// The client.
    pub(crate) peer: PeerKey,
    /// Bytes that the connection keeps, those of values that it shares with others included.
    pub(crate) bytes: usize,
    /// Bytes among them of values that have left the store.
    pub(crate) pinned: usize,
    /// Since when its client has taken nothing, in milliseconds; None: it is not the client that is waited
    /// for.
    pub(crate) idle_since_ms: Option<u64>,
}

impl UnsentOutput {
    /// Nothing yet; `cap_bytes` for all connections together.
    pub(crate) fn new(cap_bytes: usize) -> Self {
        Self {
            cap_bytes,
            bytes: AtomicUsize::new(0),
            asked: AtomicBool::new(false),
            paused: AtomicU64::new(0),
            stalled: AtomicU64::new(0),
            displaced: AtomicU64::new(0),
        }
    }

    /// A connection keeps `after` bytes, and has kept `before`.
    pub(crate) fn change(&self, before: usize, after: usize) {
        self.bytes.fetch_add(after.wrapping_sub(before), Relaxed);
    }

    /// Bytes that connections keep.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Whether connections are read only while their sockets have room. `values`: bytes of values for
    /// requests that wait.
    #[inline]
    pub(crate) fn is_scarce(&self, values: usize) -> bool {
        self.bytes() + values >= self.cap_bytes - self.cap_bytes / 4
    }

    /// Whether the sum is above the cap.
    #[inline]
    pub(crate) fn is_over(&self, values: usize) -> bool {
        self.bytes() + values > self.cap_bytes
    }

    /// The cap of the sum.
    pub(crate) fn cap_bytes(&self) -> usize {
        self.cap_bytes
    }

    /// Whether the other lanes must be told that the cap is passed.
    pub(crate) fn may_ask_others(&self) -> bool {
        !self.asked.swap(true, Relaxed)
    }

    /// A lane that was told looks now.
    pub(crate) fn others_asked(&self) {
        self.asked.store(false, Relaxed);
    }

    /// A connection was not read because its client had not taken what was sent.
    pub(crate) fn count_paused(&self) {
        self.paused.fetch_add(1, Relaxed);
    }

    /// A connection was closed: because its client took nothing (`stalled`), or because there was no room at
    /// all.
    pub(crate) fn count_closed(&self, stalled: bool) {
        let counter = if stalled { &self.stalled } else { &self.displaced };
        counter.fetch_add(1, Relaxed);
    }

    /// Times that a connection was not read because its client had not taken what was sent.
    pub(crate) fn paused(&self) -> u64 {
        self.paused.load(Relaxed)
    }

    /// Connections closed because their clients had taken nothing for [`STALLED_MS`].
    pub(crate) fn stalled(&self) -> u64 {
        self.stalled.load(Relaxed)
    }

    /// Connections closed because the cap was passed.
    pub(crate) fn displaced(&self) -> u64 {
        self.displaced.load(Relaxed)
    }

    /// Sets the counters to zero.
    pub(crate) fn reset_stats(&self) {
        for counter in [&self.paused, &self.stalled, &self.displaced] {
            counter.store(0, Relaxed);
        }
    }
}

/// Most bytes of values that have left the store and are still being sent, with `-m` of `memory_bytes`: a
/// quarter of it, and room for one item of `item_bytes_max` in any case.
pub(crate) fn pinned_cap(memory_bytes: usize, item_bytes_max: usize) -> usize {
    (memory_bytes / 4).max(item_bytes_max.next_multiple_of(PAGE_BYTES))
}

/// The connection to close when a cap is passed, of the keepers of one of `lanes` lanes: of the address with
/// most of what `bytes` counts the one with most. None: together they have less than the lane's share of
/// `cap_bytes`.
pub(crate) fn choose(
    keepers: impl Iterator<Item = Keeper>,
    bytes: impl Fn(&Keeper) -> usize,
    cap_bytes: usize,
    lanes: usize,
) -> Option<u64> {
    let mut shares = BTreeMap::<PeerKey, (usize, Keeper)>::new();
    let mut all = 0;
    for keeper in keepers.filter(|keeper| bytes(keeper) > 0) {
        all += bytes(&keeper);
        let (sum, largest) = shares.entry(keeper.peer).or_insert((0, keeper));
        *sum += bytes(&keeper);
        if bytes(&keeper) > bytes(largest) {
            *largest = keeper;
        }
    }
    let most = shares.into_values().max_by_key(|(sum, _)| *sum).filter(|_| all >= cap_bytes / lanes);
    most.map(|(_, largest)| largest.token)
}

/// The connections whose clients have taken nothing for [`STALLED_MS`], those with most bytes first.
pub(crate) fn stalled(keepers: impl Iterator<Item = Keeper>, now_ms: u64) -> Vec<u64> {
    let is_stalled = |since: u64| now_ms.saturating_sub(since) >= STALLED_MS;
    let mut stalled: Vec<Keeper> =
        keepers.filter(|keeper| keeper.bytes > 0 && keeper.idle_since_ms.is_some_and(is_stalled)).collect();
    stalled.sort_by_key(|keeper| std::cmp::Reverse(keeper.bytes));
    stalled.into_iter().map(|keeper| keeper.token).collect()
}

impl Connection {
    /// Tells the server's sum what it keeps now. True: that is more than before.
    #[cold]
    pub(crate) fn count_unsent(&mut self, shared: &Shared) -> bool {
        let before = self.unsent_bytes;
        let (own, values) = self.kept_bytes();
        if own != before {
            shared.unsent.change(before, own);
            self.unsent_bytes = own;
        }
        own > before || values > 0
    }

    /// This connection as a keeper of output, if it keeps any.
    pub(crate) fn keeper(&self) -> Option<Keeper> {
        if !self.has_unsent() {
            return None;
        }
        let (own, values) = self.kept_bytes();
        let pinned = self.pinned_bytes();
        Some(Keeper {
            token: self.token,
            peer: self.info.peer_key,
            bytes: own + values + pinned,
            pinned,
            idle_since_ms: self.is_stuck().then_some(self.taken_ms),
        })
    }

    /// Bytes that only this connection keeps, and bytes of values that it may share with others.
    pub(super) fn kept_bytes(&self) -> (usize, usize) {
        let (held, values) = self.replies.kept_bytes();
        let encrypted = self.tls.as_ref().map_or(0, |tls| tls.kept_bytes());
        (self.outbox.kept_bytes() + encrypted + held, values)
    }

    /// Bytes of values that have left the store and that it keeps, each once.
    fn pinned_bytes(&self) -> usize {
        let mut pinned = BTreeMap::new();
        let mut add = |huge: &Arc<HugeValue>| {
            if huge.is_pinned() {
                pinned.insert(Arc::as_ptr(huge).addr(), huge.held_bytes());
            }
        };
        self.outbox.each_huge(&mut add);
        self.replies.each_huge(&mut add);
        pinned.into_values().sum()
    }

    /// Unsent output is scarce, or was: whether the connection must be read all the same. It is while its
    /// socket has room, since then its client has taken most of what was sent.
    #[cold]
    pub(crate) fn may_be_read(&mut self, shared: &Shared) -> bool {
        let scarce = shared.is_output_scarce();
        self.read_ahead_bytes =
            if scarce { shared.caps.scarce_output_bytes } else { shared.caps.read_ahead_bytes };
        let waited = self.waits_for_room;
        self.waits_for_room = scarce && !self.is_stuck() && !self.has_room();
        if self.waits_for_room && !waited {
            shared.unsent.count_paused();
        }
        !self.waits_for_room
    }

    fn has_room(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.info.fd.as_fd(), PollFlags::OUT)];
        // What fails here fails when it is read, too.
        retry_on_intr(|| poll(&mut fds, Some(&Timespec::default()))).is_err() || !fds[0].revents().is_empty()
    }

    /// Checks the count, for tests.
    #[cfg(any(test, fuzzing))]
    pub(super) fn verify_unsent(&self) -> usize {
        assert_eq!(self.unsent_bytes, self.kept_bytes().0, "what it keeps is not counted");
        self.unsent_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keeper(token: u64, peer: i32, bytes: usize, idle_since_ms: impl Into<Option<u64>>) -> Keeper {
        let pinned = bytes / 10 * (token as usize % 2);
        Keeper { token, peer: PeerKey::Process(peer), bytes, pinned, idle_since_ms: idle_since_ms.into() }
    }

    #[test]
    fn scarce_from_three_quarters_and_over_above_all() {
        let unsent = UnsentOutput::new(1000);
        let edges = |unsent: &UnsentOutput, values| (unsent.is_scarce(values), unsent.is_over(values));
        unsent.change(0, 749);
        assert_eq!(edges(&unsent, 0), (false, false));
        assert_eq!(edges(&unsent, 1), (true, false), "values for requests that wait count");
        unsent.change(749, 1000);
        assert_eq!(edges(&unsent, 0), (true, false));
        assert_eq!(edges(&unsent, 1), (true, true));
        unsent.change(1000, 0);
        assert_eq!((unsent.bytes(), edges(&unsent, 0)), (0, (false, false)));
    }

    #[test]
    fn the_address_with_most_gives_its_largest() {
        let all = [keeper(1, 1, 50, 0), keeper(2, 2, 30, 0), keeper(3, 2, 40, 0), keeper(4, 3, 0, 0)];
        let largest =
            |cap, count: usize, lanes| choose(all.into_iter().take(count), |keeper| keeper.bytes, cap, lanes);
        assert_eq!(largest(100, 4, 1), Some(3), "50 of one address, 70 of the other");
        assert_eq!(largest(60, 2, 1), Some(1));
        assert_eq!(largest(121, 4, 1), None, "others have the rest");
        assert_eq!(largest(240, 4, 2), Some(3));
        assert_eq!(largest(242, 4, 2), None, "less than the share of one of two lanes");
        let pinned = |cap| choose(all.into_iter(), |keeper| keeper.pinned, cap, 1);
        assert_eq!((pinned(9), pinned(10)), (Some(1), None), "5 and 4 bytes are no longer in the store");
    }

    #[test]
    fn a_quarter_or_one_item_may_have_left_the_store() {
        assert_eq!(pinned_cap(64 << 20, 1 << 20), 16 << 20);
        assert_eq!(pinned_cap(4 << 20, 1 << 20), 1 << 20);
        assert_eq!(pinned_cap(2 << 20, (1 << 20) + 1), (1 << 20) + 4096);
    }

    #[test]
    fn others_are_told_once_until_one_looks() {
        let unsent = UnsentOutput::new(1);
        assert!(unsent.may_ask_others() && !unsent.may_ask_others());
        unsent.others_asked();
        assert!(unsent.may_ask_others());
    }

    #[test]
    fn stalled_for_ten_seconds_largest_first() {
        let all = [
            keeper(1, 1, 10, 5_000),
            keeper(2, 1, 20, 5_000),
            keeper(3, 1, 90, 5_001),
            keeper(4, 1, 90, None),
            keeper(5, 1, 0, 0),
        ];
        assert!(stalled(all.into_iter(), 14_999).is_empty());
        assert_eq!(stalled(all.into_iter(), 15_000), [2, 1]);
        assert_eq!(stalled(all.into_iter(), 15_001), [3, 2, 1]);
    }
}
