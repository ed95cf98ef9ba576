//! Terms of a rule, drawn at random.

use cattlegrid_herd::{Early, FillWindow, LeaseTime, OnBusy, Owner, Partial, Policy};

use super::{Rng, WINDOW_MS};

pub(super) fn draw_policy(rng: &mut Rng, owner: Owner) -> Policy {
    Policy {
        owner,
        loader: rng.one_in(3),
        hold_ms: rng.of(&[0, 50, 400, 400, 800]),
        hold_many_ms: rng.of(&[0, 100, 400]),
        partial: rng.of(&[Partial::Answer, Partial::Wait]),
        hold_behind_ms: rng.of(&[0, 50]),
        lease: rng.of(&[
            LeaseTime::Auto,
            LeaseTime::Fixed(100),
            LeaseTime::Fixed(500),
            LeaseTime::Fixed(1000),
        ]),
        close_grace_ms: rng.of(&[0, 50]),
        grace_s: rng.of(&[0, 0, 1, 5]),
        grace_on_error_s: rng.of(&[0, 0, 3, 12]),
        wait_ms: rng.of(&[0, 0, 30, 200]),
        ttl_jitter: rng.of(&[0, 0, 50]),
        early: rng.of(&[Early::Off, Early::Auto, Early::Share(500_000)]),
        reentry: rng.of(&[0, 1, 2]),
        pass_after: rng.of(&[1, 2, 5]),
        pass_for_ms: 1500,
        max_waiters: rng.of(&[1, 2, 1024]),
        max_computers: rng.of(&[1, 2, 4]),
        rule_computers: rng.of(&[None, None, Some(1), Some(2)]),
        on_busy: rng.of(&[OnBusy::Miss, OnBusy::Miss, OnBusy::Error]),
        fill_window: rng.of(&[FillWindow::Auto, FillWindow::Fixed(WINDOW_MS as u32)]),
        ..Policy::default()
    }
}
