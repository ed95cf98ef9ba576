//! `#` on tables that are no lists: it counts the entries 1, 2, 3 and so on, and none that have names.
//!
//! All uses of a local, or of fields of one name, are taken together: what is put into it, and under which keys.
//!
//! # Invariants
//! * A table of which anything is unknown, as a result of a function or an argument of one, is not reported.

use std::collections::BTreeMap;

use super::Found;

/// Where a table is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place<'s> {
    /// The local with this number.
    Local(usize),
    /// A field, of whatever table.
    Field(&'s str),
}

/// What is known of a table.
#[derive(Debug, Default)]
struct Known {
    /// The line at which an entry has a name.
    named_at: Option<usize>,
    /// It has numbered entries, or entries that nothing is known of.
    may_be_list: bool,
}

/// What is known of all tables of a file.
#[derive(Debug, Default)]
pub(super) struct Tables<'s> {
    known: BTreeMap<Place<'s>, Known>,
    /// Where `#` is used: the line, the table, its name.
    lengths: Vec<(usize, Place<'s>, &'s str)>,
}

impl<'s> Tables<'s> {
    /// An entry has a name.
    pub(super) fn named(&mut self, place: Place<'s>, line: usize) {
        self.known.entry(place).or_default().named_at.get_or_insert(line);
    }

    /// It has numbered entries, or nothing is known of them.
    pub(super) fn may_be_list(&mut self, place: Place<'s>) {
        self.known.entry(place).or_default().may_be_list = true;
    }

    /// `#name`
    pub(super) fn length(&mut self, place: Place<'s>, name: &'s str, line: usize) {
        self.lengths.push((line, place, name));
    }

    /// Reports.
    pub(super) fn report(&self, found: &mut Found<'_>) {
        for (line, place, name) in &self.lengths {
            let Some(Known { named_at: Some(at), may_be_list: false }) = self.known.get(place) else {
                continue;
            };
            found.warning(
                *line,
                format!(
                    "#{name} counts the entries 1, 2, 3 and so on, and {name} has entries with names (line {at}): \
                     count them in a loop, or keep their number in a field"
                ),
            );
        }
    }
}
