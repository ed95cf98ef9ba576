//! The number of slots that hold a number above a given one, from which the share of false stale answers is
//! estimated.
//!
//! It would be enough to count bumps if each were of another tag. But a tag that is bumped a million times
//! raises the same two slots a million times, so the slots are counted, by the *epoch* in which they were
//! last raised. An epoch has a 256th as many bumps as a row has slots; the last 1024 epochs are kept. Older
//! ones do not matter: after four bumps for each slot 96 % of all other tags look bumped.
//!
//! # Invariant
//! Each slot of a row is counted in at most one epoch: that of its last raise.

use std::collections::VecDeque;

/// Rows of the sketch.
pub(crate) const ROWS: usize = 2;

/// Slots in use by the age of their numbers, for one kind of bump.
#[derive(Debug)]
pub(crate) struct Occupancy {
    /// Oldest first. A slot that was last raised before the first epoch is not counted.
    epochs: VecDeque<Epoch>,
    slots_per_row: u64,
    used: [u64; ROWS],
    /// The last number noted.
    last: u64,
    bumps: u64,
}

#[derive(Debug, Clone, Copy)]
struct Epoch {
    /// The epoch's first number.
    start: u64,
    /// Bumps in it.
    bumps: u64,
    /// Slots of each row last raised in it.
    slots: [u64; ROWS],
}

const EPOCHS: usize = 1024;
const EPOCHS_PER_ROW: u64 = 256;

impl Occupancy {
    /// For rows of this many slots, all unused.
    pub(crate) fn new(slots_per_row: usize) -> Self {
        Self {
            epochs: VecDeque::new(),
            slots_per_row: slots_per_row as u64,
            used: [0; ROWS],
            last: 0,
            bumps: 0,
        }
    }

    /// A bump has raised a slot of each row from `old` (0: unused) to `number`, the highest yet.
    pub(crate) fn note(&mut self, number: u64, old: [u64; ROWS]) {
        self.bumps += 1;
        self.last = number;
        let stride = (self.slots_per_row / EPOCHS_PER_ROW).max(1);
        if self.epochs.back().is_none_or(|epoch| epoch.bumps == stride) {
            if self.epochs.len() == EPOCHS {
                self.epochs.pop_front();
            }
            self.epochs.push_back(Epoch { start: number, bumps: 0, slots: [0; ROWS] });
        }
        (0..ROWS).for_each(|row| self.forget(row, old[row]));
        let now = self.epochs.back_mut().expect("an epoch was begun if there was none");
        now.bumps += 1;
        now.slots.iter_mut().for_each(|count| *count += 1);
    }

    /// A slot of one row was raised from `old` (0: unused) to `number`, which was given out some time ago.
    pub(crate) fn note_late(&mut self, row: usize, number: u64, old: u64) {
        self.forget(row, old);
        self.last = self.last.max(number);
        if let Some(at) = self.epoch_of(number) {
            self.epochs[at].slots[row] += 1;
        }
    }

    /// A slot of a row holds another number from now on.
    fn forget(&mut self, row: usize, old: u64) {
        if old == 0 {
            self.used[row] += 1;
        } else if let Some(at) = self.epoch_of(old) {
            self.epochs[at].slots[row] -= 1;
        }
    }

    /// Share of tags that look bumped above `since` although they were not: those of which both slots are
    /// above it.
    ///
    /// Within an epoch numbers are taken to be spread evenly.
    pub(crate) fn false_share(&self, since: u64) -> f64 {
        if since >= self.last {
            return 0.0;
        }
        let at = self.epoch_of(since);
        let mut raised = [0.0; ROWS];
        for epoch in self.epochs.iter().skip(at.map_or(0, |at| at + 1)) {
            (0..ROWS).for_each(|row| raised[row] += epoch.slots[row] as f64);
        }
        if let Some(at) = at {
            let Epoch { start, slots, .. } = self.epochs[at];
            let end = self.epochs.get(at + 1).map_or(self.last + 1, |next| next.start);
            let above = (end - 1).saturating_sub(since) as f64 / (end - start) as f64;
            (0..ROWS).for_each(|row| raised[row] += above * slots[row] as f64);
        } else {
            // Older than the first epoch: every slot in use may have been raised since.
            (0..ROWS).for_each(|row| raised[row] = self.used[row] as f64);
        }
        raised.iter().map(|raised| raised / self.slots_per_row as f64).product()
    }

    /// Slots of the fuller row that were ever raised.
    pub(crate) fn used(&self) -> u64 {
        self.used[0].max(self.used[1])
    }

    /// Bumps noted.
    pub(crate) fn bumps(&self) -> u64 {
        self.bumps
    }

    fn epoch_of(&self, number: u64) -> Option<usize> {
        self.epochs.partition_point(|epoch| epoch.start <= number).checked_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows as plain vectors, with slots chosen by an arbitrary rule.
    struct Rows {
        slots: [Vec<u64>; ROWS],
        occupancy: Occupancy,
    }

    impl Rows {
        fn new(slots: usize) -> Self {
            Self { slots: [vec![0; slots], vec![0; slots]], occupancy: Occupancy::new(slots) }
        }

        fn bump(&mut self, number: u64, places: [usize; ROWS]) {
            let old = [0, 1].map(|row| std::mem::replace(&mut self.slots[row][places[row]], number));
            self.occupancy.note(number, old);
        }

        fn share_above(&self, since: u64) -> f64 {
            let share = |row: &Vec<u64>| {
                row.iter().filter(|&&number| number > since).count() as f64 / row.len() as f64
            };
            self.slots.iter().map(share).product()
        }
    }

    #[test]
    fn it_says_what_counting_the_slots_would_say() {
        let mut rows = Rows::new(1024);
        let mut random = 1_u64;
        for number in 1..=20_000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            rows.bump(number * 3, [(random >> 40) as usize % 1024, (random >> 50) as usize % 1024]);
            if number % 500 == 0 {
                for back in [0, 1, 10, 100, 1_000, 2_000, 4_000] {
                    let since = (number * 3).saturating_sub(back * 3);
                    let (told, counted) = (rows.occupancy.false_share(since), rows.share_above(since));
                    assert!(
                        (told - counted).abs() < 0.006,
                        "{number}, {back} ago: {told}, counted {counted}"
                    );
                }
            }
        }
        assert_eq!(rows.occupancy.bumps(), 20_000);
        assert_eq!(rows.occupancy.used(), 1024);
        assert!(rows.occupancy.false_share(0) > 0.99, "before all that is told apart");
    }

    #[test]
    fn what_is_raised_late_is_counted_where_it_belongs() {
        let mut rows = Rows::new(64);
        let mut random = 1_u64;
        for number in 1..=5_000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let place = (random >> 40) as usize % 64;
            if number % 3 == 0 {
                // An older number: the slot is raised only if it is below it.
                let (row, late) = ((random >> 60) as usize % 2, number - number / 7);
                let old = rows.slots[row][place];
                if old < late {
                    rows.slots[row][place] = late;
                    rows.occupancy.note_late(row, late, old);
                }
            } else {
                rows.bump(number, [place, (random >> 50) as usize % 64]);
            }
        }
        let told = rows.occupancy.false_share(4_950);
        assert!((told - rows.share_above(4_950)).abs() < 0.1, "{told} {}", rows.share_above(4_950));
    }

    #[test]
    fn one_tag_bumped_often_counts_once() {
        let mut rows = Rows::new(1024);
        (1..=100_000).for_each(|number| rows.bump(number, [5, 9]));
        assert_eq!(rows.occupancy.used(), 1);
        assert!(rows.occupancy.false_share(0) < 1e-5);
    }

    #[test]
    fn nothing_is_false_before_the_first_bump_and_after_the_last() {
        let mut rows = Rows::new(16);
        assert!(rows.occupancy.false_share(0) == 0.0);
        rows.bump(5, [1, 1]);
        assert!(rows.occupancy.false_share(5) == 0.0 && rows.occupancy.false_share(9) == 0.0);
        assert!(rows.occupancy.false_share(4) > 0.0);
    }
}
