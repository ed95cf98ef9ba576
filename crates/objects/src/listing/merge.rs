//! Combinations of sets: the sorted members of several objects are merged while they are read.
//!
//! Each set has a buffer with members that were read and not used yet. The merge continues until it needs a
//! member of a set whose buffer is empty; then a piece of that set is read. For an intersection and a
//! difference, the piece begins at the first member that can matter. Pieces become smaller where members are
//! skipped, and larger where they are used, so that the cost is that of the smaller sets.
//!
//! # Invariants
//! * A buffer has at most [`PIECE_MAX`] bytes and one member.
//! * The steps of one read examine members of about as many bytes as its budget.

use std::ops::Bound;

use crate::object::StateView;

/// The way in which sets are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Combination {
    /// Members of any set.
    Union,
    /// Members of all sets.
    Intersection,
    /// Members of the first set that are in no other.
    Difference,
}

/// The smallest and the largest piece of a set, in bytes of members.
const PIECE_MIN: usize = 256;
const PIECE_MAX: usize = 16 << 10;

/// After a piece with fewer uses than this, the next piece is smaller.
const USES_FEW: usize = 8;

/// A combination of sets in progress.
#[derive(Debug)]
pub(super) struct Merge {
    combination: Combination,
    sources: Vec<MergeInput>,
    /// The set of which a piece is read next.
    wanted: usize,
    /// Whether that set must be read; otherwise the last read has only used up its budget.
    is_reading: bool,
}

/// A set, as far as it was read.
#[derive(Debug, Default)]
struct MergeInput {
    /// The position of the object among the keys of the listing.
    place: usize,
    /// Members that were read, each with a length of two bytes, little-endian, before it.
    buffer: Vec<u8>,
    /// The offset of the first unused member.
    at: usize,
    /// The last member that was read; empty: none was.
    last: Vec<u8>,
    /// Whether all members were read.
    is_done: bool,
    /// The size of the last piece, in bytes.
    piece: usize,
    /// The number of uses of that piece: members taken one by one, or several skipped at once.
    uses: usize,
}

/// The need of a step of the merge.
enum MergeNeed {
    /// A member of this set.
    Member(usize),
    /// Nothing: the merge is complete.
    Nothing,
}

impl Merge {
    /// A merge of sets. `places`: for each set the position of its object among the keys of the listing; the
    /// first is 0.
    pub(super) fn new(combination: Combination, places: Vec<usize>) -> Self {
        let source = |place| MergeInput { place, piece: PIECE_MIN, ..MergeInput::default() };
        let sources = places.into_iter().map(source).collect();
        Self { combination, sources, wanted: 0, is_reading: true }
    }

    pub(super) fn restart(&mut self) {
        let places = self.sources.iter().map(|source| source.place).collect();
        *self = Self::new(self.combination, places);
    }

    /// Reads a piece of the wanted object, and continues the merge. Returns the position of the object that
    /// is wanted next.
    pub(super) fn read(
        &mut self,
        view: StateView<'_>,
        budget: usize,
        out_max: usize,
        out: &mut Vec<u8>,
    ) -> Option<usize> {
        let mut budget = budget.max(1);
        if self.is_reading {
            let from = self.least();
            let source = &mut self.sources[self.wanted];
            source.pull(view, from.as_deref(), budget);
            budget = budget.saturating_sub(source.buffer.len()).max(1);
            self.is_reading = false;
        }
        while budget > 0 && out.len() <= out_max {
            let (need, looked_at) = self.step(out);
            match need {
                Some(MergeNeed::Nothing) => return None,
                Some(MergeNeed::Member(source)) => {
                    self.wanted = source;
                    self.is_reading = true;
                    break;
                }
                None => budget = budget.saturating_sub(looked_at),
            }
        }
        Some(self.sources[self.wanted].place)
    }

    /// The first member of the wanted set that can matter, as far as the others tell.
    fn least(&self) -> Option<Vec<u8>> {
        let heads = self.sources.iter().filter_map(MergeInput::head);
        match self.combination {
            Combination::Union => None,
            Combination::Intersection => heads.max().map(<[u8]>::to_vec),
            Combination::Difference if self.wanted == 0 => None,
            Combination::Difference => self.sources[0].head().map(<[u8]>::to_vec),
        }
    }

    /// Decides about one member. Returns the member that it needs, if it could not decide, and the number of
    /// examined bytes.
    fn step(&mut self, out: &mut Vec<u8>) -> (Option<MergeNeed>, usize) {
        match self.combination {
            Combination::Union => self.union(out),
            Combination::Intersection => self.intersection(out),
            Combination::Difference => self.difference(out),
        }
    }

    fn union(&mut self, out: &mut Vec<u8>) -> (Option<MergeNeed>, usize) {
        if let Some(empty) = self.sources.iter().position(MergeInput::is_short) {
            return (Some(MergeNeed::Member(empty)), 0);
        }
        let Some(least) = self.sources.iter().filter_map(MergeInput::head).min() else {
            return (Some(MergeNeed::Nothing), 0);
        };
        line(least, out);
        let written = out.len() - least.len() - 2..out.len() - 2;
        let looked_at = self.sources.len() * ENTRY_COST + least.len();
        for source in &mut self.sources {
            if source.head() == Some(&out[written.clone()]) {
                source.take();
            }
        }
        (None, looked_at)
    }

    fn intersection(&mut self, out: &mut Vec<u8>) -> (Option<MergeNeed>, usize) {
        if self.sources.iter().any(MergeInput::is_over) {
            return (Some(MergeNeed::Nothing), 0);
        }
        if let Some(empty) = self.sources.iter().position(MergeInput::is_short) {
            return (Some(MergeNeed::Member(empty)), 0);
        }
        let greatest = self.sources.iter().filter_map(MergeInput::head).max().map(<[u8]>::to_vec);
        let Some(greatest) = greatest else { return (Some(MergeNeed::Nothing), 0) };
        let mut is_common = true;
        let mut looked_at = 0;
        for source in &mut self.sources {
            looked_at += source.skip_below(&greatest);
            is_common &= source.head() == Some(&*greatest);
        }
        if is_common {
            line(&greatest, out);
            self.sources.iter_mut().for_each(MergeInput::take);
        }
        (None, looked_at)
    }

    fn difference(&mut self, out: &mut Vec<u8>) -> (Option<MergeNeed>, usize) {
        let Some((first, others)) = self.sources.split_first_mut() else {
            return (Some(MergeNeed::Nothing), 0);
        };
        let Some(member) = first.head() else {
            return (Some(if first.is_done { MergeNeed::Nothing } else { MergeNeed::Member(0) }), 0);
        };
        let mut looked_at = ENTRY_COST + member.len();
        let mut is_elsewhere = false;
        for (at, source) in others.iter_mut().enumerate() {
            looked_at += source.skip_below(member);
            if source.is_short() {
                return (Some(MergeNeed::Member(at + 1)), looked_at);
            }
            is_elsewhere |= source.head() == Some(member);
        }
        if !is_elsewhere {
            line(member, out);
        }
        first.take();
        (None, looked_at)
    }
}

/// The cost of examining a member, in bytes of the budget.
const ENTRY_COST: usize = 16;

impl MergeInput {
    /// The first unused member.
    fn head(&self) -> Option<&[u8]> {
        let (len, rest) = self.buffer.get(self.at..)?.split_first_chunk::<2>()?;
        rest.get(..usize::from(u16::from_le_bytes(*len)))
    }

    /// Uses the first member.
    fn take(&mut self) {
        self.advance();
        self.uses += 1;
    }

    fn advance(&mut self) {
        self.at += self.head().map_or(0, |head| head.len() + 2);
    }

    /// Whether the next member is not known yet.
    fn is_short(&self) -> bool {
        self.at == self.buffer.len() && !self.is_done
    }

    /// Whether there are no more members.
    fn is_over(&self) -> bool {
        self.at == self.buffer.len() && self.is_done
    }

    /// Skips members below this one. Returns the number of examined bytes.
    fn skip_below(&mut self, member: &[u8]) -> usize {
        let from = self.at;
        let mut skipped = 0;
        while self.head().is_some_and(|head| head < member) {
            self.advance();
            skipped += ENTRY_COST;
        }
        self.uses += usize::from(skipped > 0);
        ENTRY_COST + member.len() + self.at - from + skipped
    }

    /// Reads the next piece, which begins at `least` if that is further.
    fn pull(&mut self, view: StateView<'_>, least: Option<&[u8]>, budget: usize) {
        self.buffer.clear();
        self.at = 0;
        self.piece = match std::mem::take(&mut self.uses) {
            0 | 1 => self.piece / 2,
            2..USES_FEW => self.piece,
            USES_FEW.. => self.piece * 2,
        };
        self.piece = self.piece.clamp(PIECE_MIN, PIECE_MAX);
        let from = match least {
            Some(least) if *least > *self.last => Bound::Included(least),
            _ if self.last.is_empty() => Bound::Unbounded,
            _ => Bound::Excluded(&*self.last),
        };
        let most = self.piece.min(budget);
        let buffer = &mut self.buffer;
        let mut last_at = None;
        self.is_done = true;
        view.scan(from, |key, _| {
            if buffer.len() >= most {
                self.is_done = false;
                return false;
            }
            last_at = Some(buffer.len() + 2);
            buffer.extend_from_slice(&(key.len() as u16).to_le_bytes());
            buffer.extend_from_slice(key);
            true
        });
        if let Some(at) = last_at {
            self.last.clear();
            self.last.extend_from_slice(&self.buffer[at..]);
        }
    }
}

fn line(member: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(member);
    out.extend_from_slice(b"\r\n");
}
