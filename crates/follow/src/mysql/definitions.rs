//! How the tables that are followed are defined, and from which place of the log on that is so.
//!
//! The log names a table's columns by their numbers only. Their names are read from the database as it is,
//! which may be later than the place at which the stream is: so what was read counts from the place on that
//! the log had reached afterwards, if no statement before that place changes a definition. Until then a row
//! of a followed table invalidates everything.

use crate::mark::Fingerprint;
use crate::mysql::position::BinlogPosition;
use crate::mysql::value::ValueShape;
use crate::tables::Table;

/// A column, as the catalog has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CatalogColumn {
    pub(crate) name: String,
    pub(crate) shape: ValueShape,
    /// The column's type as the catalog writes it.
    pub(crate) written: String,
    /// Whether the column is computed, and may be in no row.
    pub(crate) is_virtual: bool,
    /// The catalog does not have it.
    pub(crate) is_hidden: bool,
    /// A version of a row ends when it changes.
    pub(crate) is_row_end: bool,
}

/// The purpose of reading a table's rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TargetPurpose {
    /// Their tags are bumped.
    Followed,
    /// When one is deleted, if `deletes`, or its columns change, rows of this table do, too, which are not in
    /// the log.
    Parent { deletes: bool, of: String },
}

/// A table whose rows are looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TargetTable {
    pub(crate) table: Table,
    pub(crate) purpose: TargetPurpose,
    /// In the order of the log; `None`: there is no such table.
    pub(crate) columns: Option<Vec<CatalogColumn>>,
}

/// Definitions read from the catalog that are not in force yet.
#[derive(Debug)]
struct PendingDefinitions {
    targets: Vec<TargetTable>,
    /// From where on it is known to be so.
    from: BinlogPosition,
}

/// The definitions of the tables, as far as they are known.
#[derive(Debug, Default)]
pub(crate) struct TableDefinitions {
    targets: Vec<TargetTable>,
    is_known: bool,
    read: Option<PendingDefinitions>,
    /// From where on they are known.
    since: BinlogPosition,
    /// Statements so far that may have changed a definition.
    changes: u64,
    /// The stream is the first of a node that goes on for another one.
    goes_on: bool,
    /// The number of the definitions at the stream's beginning, as far as the other node knew them.
    expected: Option<u64>,
}

impl TableDefinitions {
    /// Those of these tables are not known yet.
    pub(crate) fn new(tables: &[Table]) -> Self {
        let target = |table: &Table| TargetTable {
            table: table.clone(),
            purpose: TargetPurpose::Followed,
            columns: None,
        };
        Self { targets: tables.iter().map(target).collect(), ..Self::default() }
    }

    /// The first stream will go on where another node stood, which knew definitions of this number, if any.
    pub(crate) fn goes_on(&mut self, expected: Option<u64>) {
        (self.goes_on, self.expected) = (true, expected);
    }

    /// A stream begins at a place, and not where the last one stopped: what is known is so from there on, or
    /// the catalog says otherwise.
    pub(crate) fn begins(&mut self, at: BinlogPosition) {
        (self.goes_on, self.expected, self.since) = (false, None, at);
    }

    /// A number of what is known from this place on, which is the same for the same definitions.
    pub(crate) fn mark(&self, from: BinlogPosition) -> Option<u64> {
        self.is_sure(from).then(|| mark(&self.targets))
    }

    /// The tables whose rows are looked at.
    pub(crate) fn targets(&self) -> &[TargetTable] {
        &self.targets
    }

    /// Whether the columns are those of the rows that come now.
    pub(crate) fn is_known(&self) -> bool {
        self.is_known
    }

    /// A number that is another one when a statement came that may have changed a definition.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// The log has a statement that may have changed a definition.
    pub(crate) fn changed(&mut self) {
        self.changes += 1;
        self.is_known = false;
        self.read = None;
    }

    /// The catalog was read: after the change of this number had come, and before the log was at `from`.
    /// `at`: where the stream is. Returns whether something is other than it was known to be, though no
    /// statement has said so.
    pub(crate) fn read(
        &mut self,
        targets: Vec<TargetTable>,
        changes: u64,
        from: BinlogPosition,
        at: BinlogPosition,
    ) -> bool {
        if changes != self.changes || self.is_known && self.targets == targets {
            return false;
        }
        let is_other = self.is_known;
        self.is_known = false;
        self.read = Some(PendingDefinitions { targets, from });
        self.reached(at);
        is_other
    }

    /// The catalog was read before the stream begins at `at`, and before the log was at `head`. Returns
    /// whether something may have been other than it is, though no statement says so.
    pub(crate) fn opens(
        &mut self,
        targets: Vec<TargetTable>,
        head: BinlogPosition,
        at: BinlogPosition,
    ) -> bool {
        let (goes_on, expected) = (std::mem::take(&mut self.goes_on), self.expected.take());
        self.read = None;
        if self.is_known && self.targets == targets {
            return false;
        }
        // As they are now, and no statement since has changed them back: as they were all the time.
        let is_same = expected.is_some_and(|expected| expected == mark(&targets));
        let is_other = self.is_known || goes_on && !is_same;
        (self.targets, self.is_known) = (targets, true);
        self.since = if is_same { at.min(head) } else { head };
        is_other
    }

    /// Whether no statement is still to come that made the definitions what they are.
    pub(crate) fn is_sure(&self, at: BinlogPosition) -> bool {
        self.is_known && self.since <= at
    }

    /// The stream has reached a place.
    pub(crate) fn reached(&mut self, at: BinlogPosition) {
        if let Some(read) = self.read.take_if(|read| read.from <= at) {
            (self.targets, self.is_known, self.since) = (read.targets, true, at);
        }
    }

    /// Whether what was read has not been reached yet.
    pub(crate) fn is_waiting(&self) -> bool {
        self.read.is_some()
    }
}

fn mark(targets: &[TargetTable]) -> u64 {
    let mut mark = Fingerprint::default();
    mark.add(&format!("{targets:?}"));
    mark.number()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(columns: &[&str]) -> Vec<TargetTable> {
        let column = |name: &&str| CatalogColumn {
            name: (*name).to_owned(),
            shape: ValueShape::Signed,
            written: "int(11)".to_owned(),
            is_virtual: false,
            is_hidden: false,
            is_row_end: false,
        };
        let table = Table::named("shop.users").unwrap();
        let columns = Some(columns.iter().map(column).collect());
        vec![TargetTable { table, purpose: TargetPurpose::Followed, columns }]
    }

    fn at(offset: u64) -> BinlogPosition {
        BinlogPosition { file: 1, offset }
    }

    #[test]
    fn what_was_read_counts_from_its_place_on() {
        let mut own = TableDefinitions::new(&[Table::named("shop.users").unwrap()]);
        assert!(!own.is_known() && own.targets().len() == 1);
        assert!(!own.read(targets(&["id"]), 0, at(200), at(100)));
        own.reached(at(199));
        assert!(!own.is_known() && own.is_waiting());
        own.reached(at(200));
        assert!(own.is_known() && own.targets() == targets(&["id"]));
        // The same again.
        assert!(!own.read(targets(&["id"]), 0, at(900), at(300)) && own.is_known());
    }

    #[test]
    fn a_statement_in_between_takes_it_back() {
        let mut own = TableDefinitions::new(&[]);
        own.read(targets(&["id"]), 0, at(200), at(100));
        own.changed();
        own.reached(at(300));
        assert!(!own.is_known(), "the statement may be later than what was read");
        assert!(!own.read(targets(&["id"]), 0, at(200), at(300)) && !own.is_known(), "it was asked before");
        own.read(targets(&["id", "name"]), 1, at(300), at(300));
        assert!(own.is_known());
    }

    #[test]
    fn what_was_read_before_a_stream_counts_at_once() {
        let mut own = TableDefinitions::new(&[]);
        own.begins(at(100));
        assert!(!own.opens(targets(&["id"]), at(200), at(100)));
        assert!(own.is_known() && !own.is_waiting() && own.targets() == targets(&["id"]));
        // A statement before 200 may have made them so.
        assert!(!own.is_sure(at(199)) && own.mark(at(199)).is_none() && own.mark(at(200)).is_some());
        own.changed();
        assert!(!own.is_known());
        // The log was begun anew.
        let mut own = TableDefinitions::new(&[]);
        own.opens(targets(&["id"]), at(900), at(900));
        own.begins(at(4));
        assert!(!own.opens(targets(&["id"]), at(50), at(4)));
        assert!(own.mark(at(4)).is_some(), "another node can go on");
        // And the table is another one.
        own.begins(at(4));
        assert!(own.opens(targets(&["key"]), at(50), at(4)) && own.is_known());
        assert!(own.mark(at(4)).is_none() && own.mark(at(50)).is_some());
    }

    #[test]
    fn another_node_goes_on_with_what_was_known() {
        let known = |columns: &[&str]| {
            let mut own = TableDefinitions::new(&[]);
            own.opens(targets(columns), at(100), at(100));
            own
        };
        let first = known(&["id", "name"]);
        assert_eq!(first.mark(at(99)), None, "known from 100 on only");
        let mark = first.mark(at(150));
        assert!(mark.is_some() && mark != known(&["id"]).mark(at(150)));
        for (mark, columns, is_same) in
            [(mark, ["id", "name"], true), (mark, ["name", "id"], false), (None, ["id", "name"], false)]
        {
            let mut other = TableDefinitions::new(&[]);
            other.goes_on(mark);
            assert_eq!(other.opens(targets(&columns), at(500), at(150)), !is_same, "everything, once");
            assert!(other.is_known() && !other.is_waiting(), "no row is of a table that is not known");
            assert_eq!(other.is_sure(at(150)), is_same);
        }
        // A stream that begins elsewhere.
        let mut other = TableDefinitions::new(&[]);
        other.goes_on(mark);
        other.begins(at(300));
        assert!(
            !other.opens(targets(&["name", "id"]), at(500), at(300)),
            "everything is invalidated as it is"
        );
    }

    #[test]
    fn a_change_that_no_statement_says() {
        let mut own = TableDefinitions::new(&[]);
        own.read(targets(&["id"]), 0, at(1), at(1));
        assert!(own.read(targets(&["key"]), 0, at(200), at(100)) && !own.is_known());
        own.reached(at(200));
        assert!(own.is_known());
    }
}
