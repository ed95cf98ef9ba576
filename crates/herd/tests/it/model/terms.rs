//! Keys, numbers and terms of the model: every limit of a rule is drawn small.

use std::cell::Cell;

use cattlegrid_herd::{
    AfterStart, Ambiguous, AskMode, Clock, Early, FillWindow, LeaseTime, OnBusy, Owner, Partial, Policy,
};

use crate::draw::Draw;

/// Keys; the first two have the same hash.
pub(super) const KEYS: [&[u8]; 6] = [b"k0", b"k1", b"k2", b"k3", b"k4", b"k5"];

pub(super) fn hash_of(key: usize) -> u64 {
    (key.max(1) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

pub(super) struct Numbers(pub(super) Cell<u64>);

impl Clock for Numbers {
    fn tick(&self) -> u64 {
        self.0.set(self.0.get() + 1);
        self.0.get()
    }

    fn last(&self) -> u64 {
        self.0.get()
    }
}

pub(super) fn policy(draw: &mut Draw<'_>) -> Policy {
    Policy {
        leases: !draw.once_in(8),
        loader: false,
        hold_ms: draw.choose(&[0, 10, 400, 60_000]),
        hold_many_ms: draw.choose(&[0, 10, 100]),
        partial: Partial::Answer,
        hold_behind_ms: 50,
        lease: draw.choose(&[
            LeaseTime::Auto,
            LeaseTime::Fixed(10),
            LeaseTime::Fixed(50),
            LeaseTime::Fixed(1_000),
            LeaseTime::Fixed(3_600_000),
        ]),
        close_grace_ms: draw.choose(&[0, 1, 50]),
        grace_s: draw.choose(&[0, 5]),
        early: draw.choose(&[Early::Off, Early::Auto, Early::Share(500_000)]),
        grace_on_error_s: draw.choose(&[0, 8]),
        wait_ms: draw.choose(&[0, 30]),
        ttl_jitter: 0,
        reentry: draw.choose(&[0, 1, 16]),
        pass_after: draw.choose(&[1, 2, 1_000_000]),
        pass_for_ms: draw.choose(&[1, 10, 120_000]),
        max_waiters: draw.choose(&[0, 1, 2, 1_000_000]),
        max_computers: draw.choose(&[1, 2, 4]),
        rule_computers: draw.choose(&[None, Some(1), Some(2)]),
        on_busy: draw.choose(&[OnBusy::Miss, OnBusy::Error]),
        owner: draw.choose(&[Owner::Key, Owner::Key, Owner::Connection]),
        fill_window: draw.choose(&[
            FillWindow::Auto,
            FillWindow::Fixed(10),
            FillWindow::Fixed(100),
            FillWindow::Fixed(3_000),
        ]),
        ambiguous: draw.choose(&[Ambiguous::Serve, Ambiguous::Drop]),
        after_start: draw.choose(&[AfterStart::Keep, AfterStart::Drop]),
        ..Policy::default()
    }
}

pub(super) fn how(draw: &mut Draw<'_>) -> AskMode {
    match draw.below(5) {
        1 => AskMode::Quiet,
        0 => AskMode::Explicit {
            detached: draw.once_in(2),
            lease_ms: draw.choose(&[None, Some(1), Some(10), Some(5_000)]),
        },
        _ => AskMode::Plain,
    }
}
