//! What a connection keeps of output that its client has not taken: how it is counted, and what a connection may do while
//! such output is scarce. [`crate::unsent`] has the cap.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use cattlegrid_store::HugeValue;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;

use super::Connection;
use crate::shared::Shared;
use crate::unsent::Keeper;

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

    /// What it keeps, if anything.
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

    /// Its own bytes, and those of values that it may share with others.
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

    /// Unsent output is scarce, or was: whether the connection must be read all the same. It is while its socket has room,
    /// since then its client has taken most of what was sent.
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
