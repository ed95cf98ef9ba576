//! The tags that a changed row of the log bumps.

use crate::mysql::definitions::{CatalogColumn, TargetPurpose, TargetTable};
use crate::mysql::event::{RowChange, RowsEvent, TableMap};
use crate::mysql::read::{ByteReader, bit};
use crate::mysql::value::{ValueLayout, ValueShape};
use crate::names::Names;
use crate::rows::{BoundTable, Cell, OldRow, Relation, ReplicaIdentity};
use crate::tables::{LeftOut, Template};

/// A target, as rows of its table are written.
#[derive(Debug)]
pub(crate) struct RowTarget {
    bound: BoundTable,
    purpose: TargetPurpose,
    name: String,
    columns: Vec<RowColumn>,
}

#[derive(Debug)]
struct RowColumn {
    layout: ValueLayout,
    /// None: the column is in no tag.
    shape: Option<ValueShape>,
    /// The row may lack it.
    may_lack: bool,
}

/// A value of a row.
enum RowValue<'a> {
    Null,
    Raw(&'a [u8]),
    Made(Vec<u8>),
}

/// The part of each target of a table.
///
/// # Errors
/// How the rows differ from the catalog.
pub(crate) fn parts(targets: &[&TargetTable], map: &TableMap<'_>) -> Result<Vec<RowTarget>, String> {
    let layouts = ValueLayout::all(map.types, map.meta).ok_or("has columns of a type that is not known")?;
    targets.iter().map(|target| RowTarget::new(target, map, &layouts)).collect()
}

impl RowTarget {
    fn new(target: &TargetTable, map: &TableMap<'_>, layouts: &[ValueLayout]) -> Result<Self, String> {
        let table = &target.table;
        let defined = target.columns.as_deref().ok_or("has no columns")?;
        let names: Vec<&str> = match &map.names {
            Some(names) => names.iter().map(String::as_str).collect(),
            None if defined.len() == layouts.len() => {
                defined.iter().map(|column| column.name.as_str()).collect()
            }
            None => return Err("was changed: its rows have another number of columns".to_owned()),
        };
        let is_tag = |name: &str| {
            table.bump.iter().flat_map(Template::columns).any(|own| own.eq_ignore_ascii_case(name))
        };
        let mut columns = Vec::with_capacity(layouts.len());
        for (name, layout) in names.iter().zip(layouts) {
            let definition = defined.iter().find(|column| column.name == **name);
            let shape = match (is_tag(name), definition) {
                (false, _) => None,
                (true, Some(CatalogColumn { shape, .. })) if layout.fits(shape) => Some(shape.clone()),
                (true, _) => return Err(format!("was changed: column {name} is of another type")),
            };
            let may_lack = shape.is_none() && definition.is_none_or(|column| column.is_virtual);
            columns.push(RowColumn { layout: *layout, shape, may_lack });
        }
        // Names of columns count in letters of any size.
        let as_written = |name: &str| {
            let own = table
                .bump
                .iter()
                .flat_map(Template::columns)
                .chain(table.columns.iter().flatten().map(String::as_str));
            own.into_iter().find(|own| own.eq_ignore_ascii_case(name)).unwrap_or(name).to_owned()
        };
        let relation = Relation {
            id: 0,
            schema: table.schema.clone(),
            name: table.name.clone(),
            identity: ReplicaIdentity::Full,
            columns: names
                .iter()
                .map(|name| crate::rows::Column { name: as_written(name), is_key: false })
                .collect(),
        };
        let bound =
            BoundTable::new(table, &relation).map_err(|lacking| format!("has no column {}", lacking.0))?;
        Ok(Self { bound, purpose: target.purpose.clone(), name: table.full_name(), columns })
    }

    /// Adds what the rows bump.
    ///
    /// # Errors
    /// That is not known; says why.
    pub(crate) fn changed(
        &self,
        rows: &RowsEvent<'_>,
        names: &mut Names,
        left_out: &mut LeftOut,
    ) -> Result<(), String> {
        if let (TargetPurpose::Parent { deletes, of }, RowChange::Delete) = (&self.purpose, rows.change) {
            return if *deletes { Err(self.cascades(of)) } else { Ok(()) };
        }
        if let (TargetPurpose::Parent { .. }, RowChange::Insert) = (&self.purpose, rows.change) {
            return Ok(());
        }
        let mut reader = ByteReader::new(&rows.written);
        let unread = || format!("a row of {} cannot be read", self.name);
        if rows.width != self.columns.len() {
            return Err(unread());
        }
        while !reader.rest().is_empty() {
            let first = self.row(&mut reader, rows.present)?.ok_or_else(unread)?;
            let second = match rows.change {
                RowChange::Update => Some(self.row(&mut reader, rows.present_after)?.ok_or_else(unread)?),
                _ => None,
            };
            let (first, second) = (cells(&first), second.as_deref().map(cells));
            match &self.purpose {
                TargetPurpose::Parent { of, .. } => {
                    if second.is_some_and(|second| self.bound.counts(&first, &second)) {
                        return Err(self.cascades(of));
                    }
                }
                TargetPurpose::Followed => match (rows.change, second) {
                    (RowChange::Insert, _) => self.bound.changed(None, Some(&first), names, left_out),
                    (_, new) => {
                        self.bound.changed(Some(&OldRow::Whole(first)), new.as_deref(), names, left_out);
                    }
                },
            }
        }
        Ok(())
    }

    fn cascades(&self, of: &str) -> String {
        format!("rows of {of} may have changed with a row of {} (cascade = \"flush\")", self.name)
    }

    /// One row. `None`: it ends too early.
    fn row<'a>(
        &self,
        reader: &mut ByteReader<'a>,
        present: &[u8],
    ) -> Result<Option<Vec<RowValue<'a>>>, String> {
        let count = (0..self.columns.len()).filter(|at| bit(present, *at)).count();
        let Some(nulls) = reader.take(count.div_ceil(8)) else { return Ok(None) };
        let (mut values, mut at) = (Vec::with_capacity(self.columns.len()), 0);
        for (number, column) in self.columns.iter().enumerate() {
            if !bit(present, number) {
                if column.may_lack {
                    values.push(RowValue::Null);
                    continue;
                }
                return Err(format!(
                    "rows of {} are in the log in part: set binlog_row_image = FULL",
                    self.name
                ));
            }
            at += 1;
            if bit(nulls, at - 1) {
                values.push(RowValue::Null);
                continue;
            }
            let Some(value) = column.layout.take(reader) else { return Ok(None) };
            values.push(match &column.shape {
                None => RowValue::Raw(value),
                Some(shape) => match column.layout.text(shape, value) {
                    Some(text) => RowValue::Made(text),
                    None => return Err(format!("a value of {} has no text", self.name)),
                },
            });
        }
        Ok(Some(values))
    }
}

fn cells<'a>(values: &'a [RowValue<'_>]) -> Vec<Cell<'a>> {
    let cell = |value: &'a RowValue<'_>| match value {
        RowValue::Null => Cell::Null,
        RowValue::Raw(bytes) => Cell::Text(bytes),
        RowValue::Made(bytes) => Cell::Text(bytes),
    };
    values.iter().map(cell).collect()
}
