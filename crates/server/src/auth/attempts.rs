//! The limit of wrong logins of a client address.
//!
//! After [`ATTEMPTS_MAX`] wrong logins within [`WINDOW_MS`], further logins of the address are not checked:
//! right or wrong, they are answered as wrong, and their connections are closed. So a guesser gains nothing
//! by opening more connections. An IPv6 address counts by its first 64 bits, which one subscriber has.
//! Attempts by a Unix socket count for the process.
//!
//! Sans-io: time and addresses are arguments.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cattlegrid_herd::PeerKey;

/// Wrong logins of one address within [`WINDOW_MS`] after which logins are not checked.
pub(crate) const ATTEMPTS_MAX: u32 = 100;

/// How long wrong logins count, from the first on, in milliseconds.
pub(crate) const WINDOW_MS: u64 = 60_000;

/// The most addresses that are remembered. Wrong logins of further addresses do not count.
const ADDRESSES_MAX: usize = 65_536;

/// Shortest time between two searches of a full table for addresses that no longer count, in milliseconds.
const SWEEP_MS: u64 = 1000;

/// Wrong logins by address.
#[derive(Debug, Default)]
pub(crate) struct Attempts(Mutex<AttemptTable>);

#[derive(Debug, Default)]
struct AttemptTable {
    counts: HashMap<PeerKey, AttemptCount>,
    swept_ms: u64,
}

#[derive(Debug, Clone, Copy)]
struct AttemptCount {
    since_ms: u64,
    count: u32,
}

impl AttemptCount {
    fn is_over(self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.since_ms) >= WINDOW_MS
    }
}

impl Attempts {
    /// Whether a login of this client is checked.
    pub(crate) fn may_try(&self, peer: PeerKey, now_ms: u64) -> bool {
        let table = self.lock();
        let tried = table.counts.get(&key(peer));
        tried.is_none_or(|tried| tried.is_over(now_ms) || tried.count < ATTEMPTS_MAX)
    }

    /// Counts a wrong login.
    pub(crate) fn note_wrong(&self, peer: PeerKey, now_ms: u64) {
        let mut table = self.lock();
        let AttemptTable { counts, swept_ms } = &mut *table;
        if counts.len() >= ADDRESSES_MAX && !counts.contains_key(&key(peer)) {
            if now_ms >= *swept_ms + SWEEP_MS {
                *swept_ms = now_ms;
                counts.retain(|_, tried| !tried.is_over(now_ms));
            }
            if counts.len() >= ADDRESSES_MAX {
                return;
            }
        }
        let tried = counts.entry(key(peer)).or_insert(AttemptCount { since_ms: now_ms, count: 0 });
        if tried.is_over(now_ms) {
            *tried = AttemptCount { since_ms: now_ms, count: 0 };
        }
        tried.count = tried.count.saturating_add(1);
    }

    fn lock(&self) -> MutexGuard<'_, AttemptTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(peer: PeerKey) -> PeerKey {
    match peer {
        PeerKey::Address(IpAddr::V6(address)) if address.to_ipv4_mapped().is_none() => {
            let net = u128::from(address) >> 64 << 64;
            PeerKey::Address(IpAddr::V6(Ipv6Addr::from(net)))
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_of_an_address_are_counted_in_a_window() {
        let attempts = Attempts::default();
        let (one, other) = (PeerKey::Address([192, 0, 2, 1].into()), PeerKey::Process(7));
        for _ in 0..ATTEMPTS_MAX {
            assert!(attempts.may_try(one, 1000));
            attempts.note_wrong(one, 1000);
        }
        assert!(!attempts.may_try(one, 1000) && attempts.may_try(other, 1000));
        assert!(!attempts.may_try(one, 999 + WINDOW_MS));
        assert!(attempts.may_try(one, 1000 + WINDOW_MS));
        attempts.note_wrong(one, 1000 + WINDOW_MS);
        assert!(attempts.may_try(one, 1000 + WINDOW_MS), "the count begins anew");
    }

    #[test]
    fn addresses_of_a_network_of_version_6_are_one() {
        let attempts = Attempts::default();
        let at = |text: &str| PeerKey::Address(text.parse().unwrap());
        (0..ATTEMPTS_MAX).for_each(|n| attempts.note_wrong(at(&format!("2001:db8:1:2::{n:x}")), 0));
        assert!(!attempts.may_try(at("2001:db8:1:2:ffff::1"), 0));
        assert!(attempts.may_try(at("2001:db8:1:3::1"), 0));
        (0..ATTEMPTS_MAX).for_each(|_| attempts.note_wrong(at("::ffff:192.0.2.1"), 0));
        assert!(attempts.may_try(at("::ffff:192.0.2.2"), 0));
    }

    #[test]
    fn the_table_is_bounded() {
        let attempts = Attempts::default();
        let fill = |from: i32, now_ms| {
            (from..from + 70_000).for_each(|process| attempts.note_wrong(PeerKey::Process(process), now_ms));
        };
        fill(0, 0);
        assert_eq!(attempts.lock().counts.len(), ADDRESSES_MAX);
        fill(100_000, WINDOW_MS);
        assert!(attempts.lock().counts.len() <= ADDRESSES_MAX);
        assert!(
            attempts.lock().counts.contains_key(&PeerKey::Process(100_000)),
            "those that are over have made room"
        );
    }
}
