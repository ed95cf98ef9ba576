//! Keys without a lease for a while: keys that are never filled, and keys whose computation failed recently.
//!
//! A key whose leases end unfilled `pass_after` times in a row is let pass: its gets are misses without a
//! lease and are not held, first for `pass_for_ms`, then for twice as long each time, up to [`PASS_MAX_MS`].
//! After a failed computation the next one begins at once; from its beginning on, no further lease is granted
//! for a back-off of [`BACK_OFF_MS`] to [`BACK_OFF_MAX_MS`]. A fill removes the entry. What says that the
//! next computation may go better ends the back-off: an event of the key, of its tags or of all keys, or
//! other rules and loaders.

use std::collections::HashMap;

use crate::hash::BuildIdentity;

/// Longest time for which a key is let pass, in milliseconds.
pub(crate) const PASS_MAX_MS: u64 = 120_000;
/// The back-off after the first failure, in milliseconds; it doubles with each further one.
pub(crate) const BACK_OFF_MS: u64 = 1_000;
/// Longest back-off, in milliseconds.
pub(crate) const BACK_OFF_MAX_MS: u64 = 30_000;

/// The state of a key whose computations do not succeed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FailingKey {
    /// Number of leases in a row that ended unfilled.
    unset: u32,
    /// Until then gets pass without a lease and without a hold.
    pass_until_ms: u64,
    pass_for_ms: u64,
    /// The computation failed: when the next one has begun, no further lease is granted for this time.
    back_off_ms: u64,
    back_off_until_ms: u64,
    /// A holder or a loader has said that it failed. Otherwise leases ended unfilled, which matters only
    /// while there is an old value.
    said: bool,
    /// The clock's number when a computation failed last.
    failed_at: u64,
    /// When the entry was last used.
    used_ms: u64,
}

impl FailingKey {
    fn restart(&mut self) {
        // Until it is filled it goes on being one that fails, whose old value is served meanwhile.
        self.back_off_ms = self.back_off_ms.min(1);
        self.back_off_until_ms = 0;
    }
}

/// Keys that are let pass. Bounded: a key that does not fit is treated as any other key.
#[derive(Debug)]
pub(crate) struct PassList {
    keys: HashMap<u64, FailingKey, BuildIdentity>,
    most: usize,
}

impl PassList {
    pub(crate) fn new(most: usize) -> Self {
        Self { keys: HashMap::with_hasher(BuildIdentity), most: most.max(1) }
    }

    pub(crate) fn passes(&self, hash: u64, now_ms: u64) -> bool {
        self.keys.get(&hash).is_some_and(|key| key.pass_until_ms > now_ms)
    }

    /// `has_old`: there is an old value to serve; `event`: the last one outside the shard that concerns the
    /// key.
    pub(crate) fn backs_off(&self, hash: u64, has_old: bool, event: u64, now_ms: u64) -> bool {
        let backs_off = |key: &FailingKey| {
            (key.said || has_old) && key.back_off_until_ms > now_ms && event <= key.failed_at
        };
        self.keys.get(&hash).is_some_and(backs_off)
    }

    /// A soft event of the key, which leaves its old value: its next computation begins at once.
    pub(crate) fn restart(&mut self, hash: u64) {
        if let Some(key) = self.keys.get_mut(&hash) {
            key.restart();
        }
    }

    /// A hard event of the key: it is as if no computation had failed.
    pub(crate) fn forgive(&mut self, hash: u64) {
        if let Some(key) = self.keys.get_mut(&hash) {
            (key.back_off_ms, key.back_off_until_ms, key.said) = (0, 0, false);
        }
    }

    /// The next computation of each key begins at once.
    pub(crate) fn restart_all(&mut self) {
        self.keys.values_mut().for_each(FailingKey::restart);
    }

    /// Whether a computation has failed since the key was last filled.
    pub(crate) fn is_failing(&self, hash: u64) -> bool {
        self.keys.get(&hash).is_some_and(|key| key.back_off_ms > 0)
    }

    /// Milliseconds until the next computation of a key that [`PassList::is_failing`].
    pub(crate) fn fails_for_ms(&self, hash: u64, now_ms: u64) -> Option<u64> {
        let key = self.keys.get(&hash).filter(|key| key.back_off_ms > 0)?;
        Some(key.back_off_until_ms.saturating_sub(now_ms))
    }

    /// A lease ended unfilled by a holder whose connection is open. True: the key is let pass from now on.
    pub(crate) fn unset(&mut self, hash: u64, after: u32, pass_for_ms: u32, now_ms: u64) -> bool {
        let Some(key) = self.key(hash, now_ms) else { return false };
        key.unset += 1;
        if key.unset < after {
            return false;
        }
        let twice = key.pass_for_ms * 2;
        key.pass_for_ms = twice.clamp(u64::from(pass_for_ms), PASS_MAX_MS.max(u64::from(pass_for_ms)));
        key.pass_until_ms = now_ms + key.pass_for_ms;
        // The next unfilled lease lets it pass again.
        key.unset = after - 1;
        true
    }

    /// A computation failed, as its holder or loader `said`, or because its lease ended unfilled: the next
    /// one begins at once, and the ones after it once per back-off.
    ///
    /// `number`: the clock's.
    pub(crate) fn failed(&mut self, hash: u64, said: bool, number: u64, now_ms: u64) {
        let Some(key) = self.key(hash, now_ms) else { return };
        key.said |= said;
        key.failed_at = number;
        key.back_off_ms = (key.back_off_ms * 2).clamp(BACK_OFF_MS, BACK_OFF_MAX_MS);
    }

    /// A computation begins.
    pub(crate) fn begun(&mut self, hash: u64, now_ms: u64) {
        if let Some(key) = self.keys.get_mut(&hash).filter(|key| key.back_off_ms > 0) {
            key.back_off_until_ms = now_ms + key.back_off_ms;
            key.used_ms = now_ms;
        }
    }

    /// The key was filled.
    pub(crate) fn filled(&mut self, hash: u64) {
        self.keys.remove(&hash);
    }

    /// Bytes of memory, an upper estimate.
    pub(crate) fn bytes(&self) -> usize {
        self.keys.capacity() * (size_of::<(u64, FailingKey)>() + 1) * 8 / 7
    }

    fn key(&mut self, hash: u64, now_ms: u64) -> Option<&mut FailingKey> {
        if self.keys.len() >= self.most && !self.keys.contains_key(&hash) {
            self.keys.retain(|_, key| key.used_ms + 2 * PASS_MAX_MS > now_ms);
            if self.keys.len() >= self.most {
                return None;
            }
        }
        let key = self.keys.entry(hash).or_default();
        key.used_ms = now_ms;
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_help_ends_a_back_off() {
        let failing = |n: u64| {
            let mut list = PassList::new(10);
            for _ in 0..n {
                list.failed(1, true, 5, 0);
            }
            list.begun(1, 0);
            list
        };
        for n in 1..9 {
            let mut list = failing(n);
            assert!(
                list.backs_off(1, false, 5, 999) && !list.backs_off(1, false, 6, 0),
                "an event outside the shard"
            );
            // Another failure.
            list.failed(1, true, 6, 0);
            list.begun(1, 0);
            assert!(list.backs_off(1, false, 6, 999));
            for restart in [
                |list: &mut PassList| list.restart(1),
                PassList::restart_all,
                |list: &mut PassList| list.forgive(1),
            ] {
                let mut list = failing(n);
                restart(&mut list);
                assert!(!list.backs_off(1, true, 0, 0));
                list.begun(1, 0);
                list.failed(1, true, 5, 100);
                list.begun(1, 100);
                assert!(
                    list.backs_off(1, false, 0, 1_099) && !list.backs_off(1, false, 0, 1_100),
                    "the first back-off again"
                );
            }
        }
    }

    #[test]
    fn let_pass_after_two_and_for_twice_as_long_each_time() {
        let mut list = PassList::new(10);
        assert!(!list.unset(1, 2, 10_000, 0));
        assert!(!list.passes(1, 0));
        assert!(list.unset(1, 2, 10_000, 5));
        assert!(list.passes(1, 10_004) && !list.passes(1, 10_005));
        assert!(list.unset(1, 2, 10_000, 20_000), "once more is enough");
        assert!(list.passes(1, 39_999) && !list.passes(1, 40_000));
        for n in 1..10 {
            list.unset(1, 2, 10_000, n * 1_000_000);
        }
        assert!(list.passes(1, 9_119_999) && !list.passes(1, 9_120_000), "up to two minutes");
        list.filled(1);
        assert!(!list.passes(1, 9_000_001));
        assert!(!list.unset(1, 2, 10_000, 9_000_002));
    }

    #[test]
    fn backs_off_longer_each_time() {
        let mut list = PassList::new(1);
        list.begun(1, 0);
        list.failed(1, true, 5, 0);
        assert!(!list.backs_off(1, false, 5, 0), "the next begins at once");
        list.begun(1, 0);
        assert!(list.backs_off(1, false, 5, 999) && !list.backs_off(1, false, 5, 1000));
        list.failed(1, true, 5, 500);
        assert!(list.backs_off(1, false, 5, 999), "no sooner than that");
        list.begun(1, 1000);
        assert!(list.backs_off(1, false, 5, 2999) && !list.backs_off(1, false, 5, 3000));
        list.failed(2, true, 5, 1000);
        list.begun(2, 1000);
        assert!(!list.backs_off(2, false, 5, 1001), "no room");
    }

    #[test]
    fn what_ended_unfilled_backs_off_only_beside_an_old_value() {
        let mut list = PassList::new(1);
        list.failed(1, false, 5, 0);
        list.begun(1, 0);
        assert!(list.backs_off(1, true, 5, 999) && !list.backs_off(1, false, 5, 999));
        list.failed(1, true, 5, 0);
        assert!(list.backs_off(1, false, 5, 999));
        list.filled(1);
        assert!(!list.backs_off(1, true, 5, 0));
    }
}
