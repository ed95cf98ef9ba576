//! Whether the definition of what is followed was changed between two looks into the catalog, though it may
//! be the same again.

use std::collections::{BTreeMap, HashSet, VecDeque};

use crate::mark::Fingerprint;

/// Truncating transactions that are remembered.
const TRUNCATED_MAX: usize = 1000;

/// The result of a look into the catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DefinitionsLook {
    Same,
    /// A table was changed by a transaction that may have truncated it, and has not come yet.
    Doubtful,
    Changed,
}

/// The definitions that were seen last.
#[derive(Debug, Default)]
pub(crate) struct SeenDefinitions {
    /// None: there was no look.
    seen: Option<(String, BTreeMap<u32, u32>)>,
    /// The number of the definitions that another node had seen that followed before.
    other: Option<u64>,
    /// The stream had these, in the order in which they came.
    truncated: VecDeque<u32>,
    is_doubted: bool,
}

impl SeenDefinitions {
    /// `other`: the number of what another node had seen that followed before.
    pub(crate) fn after(other: Option<u64>) -> Self {
        Self { other, ..Self::default() }
    }

    /// A number of what was seen last.
    pub(crate) fn number(&self) -> u64 {
        self.seen.as_ref().map_or(0, |(text, tables)| number(text, tables))
    }

    /// The stream has a transaction that truncates tables.
    pub(crate) fn truncated(&mut self, transaction: u32) {
        if self.truncated.len() == TRUNCATED_MAX {
            self.truncated.pop_front();
        }
        self.truncated.push_back(transaction);
    }

    /// Takes a look. `text`: of all definitions; `tables`: which transaction has written each table's row of
    /// the catalog last, by its number. TRUNCATE writes it, too.
    pub(crate) fn look(&mut self, text: String, tables: BTreeMap<u32, u32>) -> DefinitionsLook {
        let Some((seen, before)) = &self.seen else {
            let is_other = self.other.take().is_some_and(|other| other != number(&text, &tables));
            self.seen = Some((text, tables));
            return if is_other { DefinitionsLook::Changed } else { DefinitionsLook::Same };
        };
        let truncated: HashSet<u32> = self.truncated.iter().copied().collect();
        let is_explained = |(table, transaction): (&u32, &u32)| {
            before.get(table).is_none_or(|before| before == transaction) || truncated.contains(transaction)
        };
        let (is_same_text, are_explained) = (*seen == text, tables.iter().all(is_explained));
        if is_same_text && !are_explained && !self.is_doubted {
            self.is_doubted = true;
            return DefinitionsLook::Doubtful;
        }
        self.is_doubted = false;
        self.seen = Some((text, tables));
        if is_same_text && are_explained { DefinitionsLook::Same } else { DefinitionsLook::Changed }
    }
}

fn number(text: &str, tables: &BTreeMap<u32, u32>) -> u64 {
    let mut mark = Fingerprint::default();
    mark.add(text);
    for (table, transaction) in tables {
        mark.add(&format!("{table} {transaction}"));
    }
    mark.number()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(definitions: &mut SeenDefinitions, text: &str, transaction: u32) -> DefinitionsLook {
        definitions.look(text.to_owned(), BTreeMap::from([(1, transaction), (2, 7)]))
    }

    #[test]
    fn another_text_is_a_change() {
        let mut own = SeenDefinitions::default();
        assert_eq!(look(&mut own, "a", 5), DefinitionsLook::Same);
        assert_eq!(look(&mut own, "a", 5), DefinitionsLook::Same);
        assert_eq!(look(&mut own, "b", 5), DefinitionsLook::Changed);
        assert_eq!(look(&mut own, "b", 5), DefinitionsLook::Same);
    }

    #[test]
    fn a_truncated_table_is_the_same_one() {
        let mut own = SeenDefinitions::default();
        look(&mut own, "a", 5);
        own.truncated(9);
        assert_eq!(look(&mut own, "a", 9), DefinitionsLook::Same);
        // Its transaction comes after the look.
        assert_eq!(look(&mut own, "a", 11), DefinitionsLook::Doubtful);
        own.truncated(11);
        assert_eq!(look(&mut own, "a", 11), DefinitionsLook::Same);
        // It was something else.
        assert_eq!(look(&mut own, "a", 12), DefinitionsLook::Doubtful);
        assert_eq!(look(&mut own, "a", 12), DefinitionsLook::Changed);
        assert_eq!(look(&mut own, "a", 12), DefinitionsLook::Same);
        // Both: what came later counts.
        own.truncated(13);
        assert_eq!(look(&mut own, "a", 14), DefinitionsLook::Doubtful);
        assert_eq!(look(&mut own, "b", 14), DefinitionsLook::Changed);
        for transaction in 0..2 * TRUNCATED_MAX as u32 {
            own.truncated(transaction);
        }
        assert_eq!(own.truncated.len(), TRUNCATED_MAX);
    }

    #[test]
    fn another_node_had_seen_the_same_or_not() {
        let mut first = SeenDefinitions::default();
        look(&mut first, "a", 5);
        let number = first.number();
        assert_eq!(look(&mut SeenDefinitions::after(Some(number)), "a", 5), DefinitionsLook::Same);
        assert_eq!(look(&mut SeenDefinitions::after(Some(number)), "a", 6), DefinitionsLook::Changed);
        let mut other = SeenDefinitions::after(Some(number));
        assert_eq!(
            (look(&mut other, "b", 5), look(&mut other, "b", 5)),
            (DefinitionsLook::Changed, DefinitionsLook::Same)
        );
    }
}
