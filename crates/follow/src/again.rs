//! Names that are bumped once more after a time, each once for all entries of a part of that time, in bounded
//! memory.

use std::collections::VecDeque;

use crate::names::{NAMES_BYTES_MAX, Names};

/// Parts of the time: names of one part are bumped together, so up to a part later than each asks for.
const PARTS: u64 = 16;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct RepeatedBumps {
    /// After which names are bumped once more, in milliseconds; 0: they are not.
    after_ms: u64,
    /// When each part began, and its names.
    parts: VecDeque<(u64, Names)>,
    bytes: usize,
}

impl RepeatedBumps {
    /// Nothing is bumped once more yet.
    pub(crate) fn new(after_ms: u64) -> Self {
        Self { after_ms, parts: VecDeque::new(), bytes: 0 }
    }

    fn part_ms(&self) -> u64 {
        self.after_ms / PARTS
    }

    /// Memory of the names, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Notes names that are bumped now. When there is no memory for them everything is bumped with this part,
    /// once.
    pub(crate) fn note(&mut self, names: &Names, now_ms: u64) {
        if self.after_ms == 0 || names.is_empty() {
            return;
        }
        let part_ms = self.part_ms();
        if self.parts.back().is_none_or(|(began_ms, _)| now_ms >= began_ms + part_ms) {
            self.parts.push_back((now_ms, Names::default()));
        }
        let Some((_, part)) = self.parts.back_mut() else { return };
        self.bytes -= part.bytes();
        part.extend(names);
        if self.bytes + part.bytes() > NAMES_BYTES_MAX {
            part.all("more tags to bump once more than there is memory for");
        }
        self.bytes += part.bytes();
    }

    /// Names of which the time has come.
    pub(crate) fn take(&mut self, now_ms: u64) -> Option<Names> {
        if self.next_ms()? > now_ms {
            return None;
        }
        let (_, names) = self.parts.pop_front()?;
        self.bytes -= names.bytes();
        Some(names)
    }

    /// When [`RepeatedBumps::take`] has something.
    pub(crate) fn next_ms(&self) -> Option<u64> {
        self.parts.front().map(|(began_ms, _)| began_ms + self.part_ms() + self.after_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(tags: std::ops::Range<u32>) -> Names {
        let mut names = Names::default();
        tags.for_each(|tag| names.add(0, &tag.to_be_bytes()));
        names
    }

    #[test]
    fn a_name_that_is_bumped_often_is_there_once_a_part() {
        let mut again = RepeatedBumps::new(1600);
        for now_ms in 0..1600 {
            again.note(&names(0..20), now_ms);
        }
        assert_eq!(again.bytes(), 16 * names(0..20).bytes());
        assert_eq!(again.next_ms(), Some(1700));
        let mut taken = Vec::new();
        for now_ms in 0..4000 {
            taken.extend(again.take(now_ms).map(|names| (now_ms, names)));
        }
        let due: Vec<u64> = (1..=16).map(|part| 1600 + part * 100).collect();
        assert_eq!(taken.iter().map(|(at_ms, _)| *at_ms).collect::<Vec<_>>(), due);
        assert!(taken.iter().all(|(_, all)| *all == names(0..20)));
        assert_eq!(again.bytes(), 0);
    }

    #[test]
    fn what_does_not_fit_is_everything_once_a_part() {
        let mut again = RepeatedBumps::new(1600);
        for now_ms in 0..1600 {
            let from = now_ms as u32 * 1000;
            again.note(&names(from..from + 1000), now_ms);
            assert!(again.bytes() <= NAMES_BYTES_MAX);
        }
        let all =
            std::iter::from_fn(|| again.take(u64::MAX)).filter(|part| matches!(part, Names::All { .. }));
        assert!((1..=16).contains(&all.count()));
        assert_eq!(again.bytes(), 0);
        // There is room again.
        again.note(&names(0..1), 5000);
        assert_eq!(again.take(10_000), Some(names(0..1)));
    }

    #[test]
    fn without_a_time_nothing_is_noted() {
        let mut again = RepeatedBumps::new(0);
        again.note(&names(0..1), 0);
        assert_eq!(again.next_ms(), None);
    }
}
