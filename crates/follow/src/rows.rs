//! The tags that a changed row bumps: templates filled with the columns of the old row and of the new one.

use crate::names::Names;
use crate::tables::{LeftOut, Table, Template, TemplatePiece};

/// Longest tag, in bytes: longer than any that a rule makes of a key. A longer one is left out, and counted.
const TAG_BYTES_MAX: usize = 1000;

/// The definition of a table for the changes that follow.
#[derive(Debug, PartialEq, Eq, Clone)]
pub(crate) struct Relation {
    pub(crate) id: u32,
    pub(crate) schema: String,
    pub(crate) name: String,
    /// The columns of an old row that are sent.
    pub(crate) identity: ReplicaIdentity,
    pub(crate) columns: Vec<Column>,
}

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) enum ReplicaIdentity {
    /// The primary key, or the key of an index.
    Key,
    /// The whole row.
    Full,
    Nothing,
}

#[derive(Debug, PartialEq, Eq, Clone)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) is_key: bool,
}

/// The old row of a change, as far as it is sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum OldRow<'a> {
    /// The columns of its key; the others are NULL.
    Key(Row<'a>),
    Whole(Row<'a>),
}

pub(crate) type Row<'a> = Vec<Cell<'a>>;

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) enum Cell<'a> {
    Null,
    /// A long value that is stored apart and was not changed, so that it is not sent.
    Unchanged,
    Text(&'a [u8]),
}

/// A table as the stream describes it, with the places of its columns.
#[derive(Debug)]
pub(crate) struct BoundTable {
    pub(crate) scope: u8,
    templates: Vec<Vec<TemplatePart>>,
    /// The places of the columns whose changes count; `None`: all count.
    columns: Option<Vec<usize>>,
    width: usize,
    pub(crate) truncate: Vec<String>,
    pub(crate) name: String,
    /// Whether the old tags of a changed row are known only if the whole old row is sent.
    pub(crate) needs_whole: bool,
}

#[derive(Debug)]
enum TemplatePart {
    Text(Box<str>),
    Column(usize),
}

/// A column that the stream does not have.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoColumn(pub(crate) String);

impl BoundTable {
    pub(crate) fn new(table: &Table, relation: &Relation) -> Result<Self, NoColumn> {
        let place = |name: &str| {
            let at = relation.columns.iter().position(|column| column.name == name);
            at.ok_or_else(|| NoColumn(name.to_owned()))
        };
        let bind = |template: &Template| {
            let part = |part: &TemplatePiece| match part {
                TemplatePiece::Text(text) => Ok(TemplatePart::Text(text.as_str().into())),
                TemplatePiece::Column(name) => place(name).map(TemplatePart::Column),
            };
            template.parts.iter().map(part).collect::<Result<Vec<_>, _>>()
        };
        let columns = table.columns.as_ref().map(|names| names.iter().map(|name| place(name)).collect());
        Ok(Self {
            scope: table.scope,
            templates: table.bump.iter().map(bind).collect::<Result<_, _>>()?,
            columns: columns.transpose()?,
            width: relation.columns.len(),
            truncate: table.truncate.clone(),
            name: format!("{}.{}", table.schema, table.name),
            needs_whole: without_old(table, relation).is_some(),
        })
    }

    /// Whether the old tags of a row that was changed or deleted are not known.
    pub(crate) fn lacks(&self, old: Option<&OldRow<'_>>) -> bool {
        self.needs_whole && !matches!(old, Some(OldRow::Whole(_)))
    }

    /// Adds the tags of a changed row. `old` is `None` if the row is new, or its key did not change.
    pub(crate) fn changed(
        &self,
        old: Option<&OldRow<'_>>,
        new: Option<&[Cell<'_>]>,
        names: &mut Names,
        left_out: &mut LeftOut,
    ) {
        if let (Some(OldRow::Whole(old)), Some(new)) = (old, new)
            && !self.counts(old, new)
        {
            return;
        }
        if let Some(old) = old {
            let (row, is_key) = match old {
                OldRow::Key(row) => (row, true),
                OldRow::Whole(row) => (row, false),
            };
            self.add(row, None, is_key, names, left_out);
        }
        if let Some(new) = new {
            let whole = old.and_then(|old| match old {
                OldRow::Whole(row) => Some(row.as_slice()),
                OldRow::Key(_) => None,
            });
            self.add(new, whole, false, names, left_out);
        }
    }

    /// Whether a column changed whose changes count.
    pub(crate) fn counts(&self, old: &[Cell<'_>], new: &[Cell<'_>]) -> bool {
        let is_changed = |at: usize| match (old.get(at), new.get(at)) {
            (_, Some(Cell::Unchanged)) => false,
            (old, new) => old != new,
        };
        match &self.columns {
            Some(columns) => {
                // A row that moves to other tags counts always.
                let of_tags = self.templates.iter().flatten().filter_map(|part| match part {
                    TemplatePart::Column(at) => Some(*at),
                    TemplatePart::Text(_) => None,
                });
                columns.iter().copied().chain(of_tags).any(is_changed)
            }
            None => (0..self.width).any(is_changed),
        }
    }

    /// Adds the tags of one row. `is_key`: only the key's columns are known, so NULL in others is not
    /// counted.
    fn add(
        &self,
        row: &[Cell<'_>],
        old: Option<&[Cell<'_>]>,
        is_key: bool,
        names: &mut Names,
        left_out: &mut LeftOut,
    ) {
        let mut tag = Vec::new();
        for template in &self.templates {
            tag.clear();
            let is_whole = template.iter().all(|part| {
                let text = match part {
                    TemplatePart::Text(text) => Some(text.as_bytes()),
                    TemplatePart::Column(at) => match (row.get(*at), old.and_then(|old| old.get(*at))) {
                        (Some(Cell::Text(text)), _) | (Some(Cell::Unchanged), Some(Cell::Text(text))) => {
                            Some(*text)
                        }
                        _ => None,
                    },
                };
                text.inspect(|text| tag.extend_from_slice(text)).is_some()
            });
            if !is_whole {
                left_out.null += u64::from(!is_key);
            } else if tag.len() > TAG_BYTES_MAX {
                left_out.long += 1;
            } else {
                names.add(self.scope, &tag);
            }
        }
    }
}

/// The first column of a tag whose old value the stream does not have.
pub(crate) fn without_old<'t>(table: &'t Table, relation: &Relation) -> Option<&'t str> {
    let is_sent = |name: &str| match relation.identity {
        ReplicaIdentity::Full => true,
        ReplicaIdentity::Key => relation.columns.iter().any(|column| column.name == name && column.is_key),
        ReplicaIdentity::Nothing => false,
    };
    table.bump.iter().flat_map(Template::columns).find(|name| !is_sent(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Name;
    use crate::tables::Template;

    fn orders(identity: ReplicaIdentity) -> Relation {
        let column = |name: &str| Column { name: name.to_owned(), is_key: name == "id" };
        Relation {
            id: 1,
            schema: "public".to_owned(),
            name: "orders".to_owned(),
            identity,
            columns: ["id", "user_id", "state"].map(column).to_vec(),
        }
    }

    fn table() -> Table {
        let mut table = Table::named("public.orders").unwrap();
        table.bump = ["user:{user_id}", "order:{id}"].map(|text| Template::parse(text).unwrap()).to_vec();
        table
    }

    fn tags(table: &Table, old: Option<&OldRow<'_>>, new: Option<&[Cell<'_>]>) -> (Vec<String>, LeftOut) {
        let bound = BoundTable::new(table, &orders(ReplicaIdentity::Full)).unwrap();
        let (mut names, mut left_out) = (Names::default(), LeftOut::default());
        bound.changed(old, new, &mut names, &mut left_out);
        let Names::Some { names, .. } = names else { panic!("all") };
        let text = |Name { tag, .. }: Name| String::from_utf8(tag.into_vec()).unwrap();
        let mut tags: Vec<_> = names.into_iter().map(text).collect();
        tags.sort();
        (tags, left_out)
    }

    const fn text(text: &str) -> Cell<'_> {
        Cell::Text(text.as_bytes())
    }

    #[test]
    fn a_row_that_moves_reaches_both() {
        let old = OldRow::Whole(vec![text("1"), text("7"), text("new")]);
        let (tags, left_out) = tags(&table(), Some(&old), Some(&[text("1"), text("8"), Cell::Unchanged]));
        assert_eq!(tags, ["order:1", "user:7", "user:8"]);
        assert_eq!(left_out, LeftOut::default());
    }

    #[test]
    fn only_changes_that_count_are_bumped() {
        let table = Table { columns: Some(vec!["state".to_owned()]), ..table() };
        let old = OldRow::Whole(vec![text("1"), text("7"), text("new")]);
        let none: [String; 0] = [];
        assert_eq!(tags(&table, Some(&old), Some(&[text("1"), text("7"), Cell::Unchanged])).0, none);
        assert_eq!(
            tags(&table, Some(&old), Some(&[text("1"), text("7"), text("paid")])).0,
            ["order:1", "user:7"]
        );
        let moved = tags(&table, Some(&old), Some(&[text("1"), text("8"), text("new")])).0;
        assert_eq!(moved, ["order:1", "user:7", "user:8"], "it moves");
        // Without its old values each update counts.
        assert_eq!(tags(&table, None, Some(&[text("1"), text("7"), text("new")])).0, ["order:1", "user:7"]);
    }

    #[test]
    fn null_is_left_out_and_counted() {
        let (tags, left_out) = tags(&table(), None, Some(&[text("1"), Cell::Null, text("new")]));
        assert_eq!((tags, left_out.null), (vec!["order:1".to_owned()], 1));
        let long = "x".repeat(TAG_BYTES_MAX - "user:".len());
        let (tags, left_out) = self::tags(&table(), None, Some(&[text("1"), text(&long), Cell::Null]));
        assert_eq!((tags.len(), left_out.long), (2, 0), "the longest tag");
        let longer = format!("{long}x");
        let (tags, left_out) = self::tags(&table(), None, Some(&[text("1"), text(&longer), Cell::Null]));
        assert_eq!((tags.len(), left_out.long), (1, 1));
    }

    #[test]
    fn a_deleted_row_by_its_key() {
        let old = OldRow::Key(vec![text("1"), Cell::Null, Cell::Null]);
        let (tags, left_out) = tags(&table(), Some(&old), None);
        assert_eq!((tags, left_out), (vec!["order:1".to_owned()], LeftOut::default()));
        assert_eq!(without_old(&table(), &orders(ReplicaIdentity::Key)), Some("user_id"));
        assert_eq!(without_old(&table(), &orders(ReplicaIdentity::Nothing)), Some("user_id"));
        assert_eq!(without_old(&table(), &orders(ReplicaIdentity::Full)), None);
    }

    #[test]
    fn a_column_that_is_not_there() {
        let table = Table { columns: Some(vec!["total".to_owned()]), ..table() };
        assert_eq!(
            BoundTable::new(&table, &orders(ReplicaIdentity::Full)).err(),
            Some(NoColumn("total".to_owned()))
        );
    }
}
