//! Makes entries of the events of a stream. It does no I/O.
//!
//! # Invariants
//! * Each transaction of the log becomes one entry, which ends where the transaction does.
//! * What a row bumps is known, or its entry bumps everything.

use std::collections::HashMap;

use crate::missing::Missing;
use crate::mysql::definitions::{TableDefinitions, TargetPurpose, TargetTable};
use crate::mysql::event::{
    BinlogEvent, EventHeader, HEADER_BYTES, QueryEvent, RowChange, RowsEvent, TableMap,
};
use crate::mysql::parts::{RowTarget, parts};
use crate::mysql::position::{BinlogPosition, BinlogTransaction, GtidOrigin};
use crate::mysql::statement::{Statement, may_be_written_otherwise, may_mention, may_name};
use crate::names::{NAMES_BYTES_MAX, Names};
use crate::tables::{LeftOut, Table};

/// Transactions that are prepared and neither committed nor rolled back, of which the tags are kept.
const PREPARED_MAX: usize = 1000;

/// The type of an event that has a compressed transaction.
const PAYLOAD: u8 = 40;

/// The part of a file's number that events have of an offset.
const LOW: u64 = 0xffff_ffff;

/// An event that the decoder makes of a part of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DecodedEvent {
    Entry {
        transaction: BinlogTransaction,
        names: Names,
    },
    Passed(BinlogPosition),
    Gap(String),
    /// A definition may have changed.
    Changed,
}

/// The last transaction of a stream: at the next connection it must come again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LastTransaction {
    pub(crate) start: BinlogPosition,
    pub(crate) end: BinlogPosition,
    pub(crate) gtid: Box<str>,
    pub(crate) time: u32,
}

/// State that a node needs to go on at a place for another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DecoderState {
    /// When the place's file was begun.
    pub(crate) file_time: u32,
    /// The last transaction, if it is before the place.
    pub(crate) last: Option<LastTransaction>,
    /// The number of the definitions, if they are known from the place on.
    pub(crate) definitions: Option<u64>,
}

/// State of a stream, and of the one before it.
#[derive(Debug)]
pub(crate) struct Decoder {
    pub(crate) definitions: TableDefinitions,
    pub(crate) left_out: LeftOut,
    /// Tables whose rows are not as the catalog says.
    odd: Vec<MismatchedTable>,
    tables: Vec<Table>,
    /// Whether names of tables count in small letters only.
    ignores_case: bool,
    place: BinlogPosition,
    /// The server has said where the stream is, or was told.
    is_placed: bool,
    base: String,
    has_checksum: bool,
    /// The file, and when it was begun.
    file: Option<(u64, u32)>,
    roles: HashMap<u64, TableRole>,
    open: Option<OpenTransaction>,
    prepared: Vec<(Box<str>, Names)>,
    last: Option<LastTransaction>,
    /// The transaction that must come first.
    expected: Option<LastTransaction>,
}

/// A table whose rows are not as the catalog says.
#[derive(Debug)]
struct MismatchedTable {
    /// The table's database and name.
    table: (String, String),
    what: String,
    /// The follower has been told that something is missing.
    is_said: bool,
}

#[derive(Debug)]
enum TableRole {
    Followed(Vec<RowTarget>),
    Other,
    Unknown(String),
}

#[derive(Debug)]
struct OpenTransaction {
    start: BinlogPosition,
    names: Names,
    gtid: Option<(GtidOrigin, u64)>,
    written: Box<str>,
    /// A statement was said to begin it, or need not be.
    has_begun: bool,
}

impl Decoder {
    pub(crate) fn new(tables: &[Table]) -> Self {
        Self {
            definitions: TableDefinitions::new(tables),
            left_out: LeftOut::default(),
            odd: Vec::new(),
            tables: tables.to_vec(),
            ignores_case: false,
            place: BinlogPosition::default(),
            is_placed: false,
            base: String::new(),
            has_checksum: false,
            file: None,
            roles: HashMap::new(),
            open: None,
            prepared: Vec::new(),
            last: None,
            expected: None,
        }
    }

    /// The decoder of a node that goes on at a place for another one.
    pub(crate) fn resumed(tables: &[Table], place: BinlogPosition, begun: DecoderState) -> Self {
        let mut decoder = Self::new(tables);
        (decoder.place, decoder.last) = (place, begun.last);
        decoder.file = Some((place.file, begun.file_time));
        decoder.definitions.goes_on(begun.definitions);
        decoder
    }

    /// The state that a node needs to go on at this place. `None`: no node can.
    pub(crate) fn begun(&self, place: BinlogPosition) -> Option<DecoderState> {
        let (_, file_time) = self.file.filter(|(number, _)| *number == place.file)?;
        let last = self.last.clone().filter(|last| last.end <= place);
        Some(DecoderState { file_time, last, definitions: self.definitions.mark(place) })
    }

    /// A stream begins at a place; `None`: where the server says. `resumes`: it goes on where the last one
    /// stopped.
    pub(crate) fn begins(
        &mut self,
        base: &str,
        place: Option<BinlogPosition>,
        resumes: bool,
        ignores_case: bool,
        has_checksum: bool,
    ) {
        self.expected = self.last.clone().filter(|last| resumes && Some(last.start) == place);
        if !resumes {
            (self.file, self.last) = (None, None);
            self.prepared.clear();
            self.definitions.begins(place.unwrap_or_default());
        }
        base.clone_into(&mut self.base);
        self.is_placed = place.is_some();
        (self.place, self.ignores_case, self.has_checksum) =
            (place.unwrap_or_default(), ignores_case, has_checksum);
        self.roles.clear();
        self.open = None;
    }

    /// Where a stream may go on, of which all before `obeyed` is obeyed: the last transaction comes again, if
    /// it is obeyed and in the same file. An earlier file may be gone.
    pub(crate) fn resume(&self, obeyed: BinlogPosition) -> BinlogPosition {
        let last = self.last.as_ref().filter(|last| last.end <= obeyed && last.start.file == obeyed.file);
        last.map_or(obeyed, |last| last.start)
    }

    /// The catalog was read, when definitions had changed as often and the log was at `head` afterwards;
    /// `None`: before the stream begins. Returns whether something is other than it was known to be.
    pub(crate) fn looked(
        &mut self,
        targets: Vec<TargetTable>,
        changes: Option<u64>,
        head: BinlogPosition,
    ) -> bool {
        let is_other = match changes {
            Some(changes) => self.definitions.read(targets, changes, head, self.place),
            None => self.definitions.opens(targets, head, self.place),
        };
        if is_other {
            self.odd.clear();
        }
        is_other
    }

    /// Requirements that the rows show not to be met. Further calls do not return them again.
    pub(crate) fn missing(&mut self) -> Vec<Missing> {
        let missing = |odd: &mut MismatchedTable| {
            odd.is_said = true;
            Missing {
                what: format!("{}, and stays so", odd.what),
                mend: "GRANT SELECT on the whole table; or SET GLOBAL binlog_row_metadata = FULL, so that the log names the columns".to_owned(),
                is_fatal: false,
            }
        };
        self.odd.iter_mut().map(missing).collect()
    }

    /// How far the stream is.
    pub(crate) fn place(&self) -> BinlogPosition {
        self.place
    }

    /// Takes an event. `is_cut`: it is longer.
    ///
    /// # Errors
    /// It cannot be read; says why.
    pub(crate) fn take(&mut self, bytes: &[u8], is_cut: bool) -> Result<Vec<DecodedEvent>, String> {
        let header = EventHeader::parse(bytes).ok_or("an event that is too short")?;
        let mut said = Vec::new();
        if is_cut {
            if header.kind == PAYLOAD {
                return Err("a compressed transaction is larger than 64 MiB".to_owned());
            }
            if let Some(open) = &mut self.open {
                open.names.all("a change is larger than 64 MiB");
            }
            self.advance(&header);
            return Ok(said);
        }
        // The description of a file tells how its events are written, and is itself written in one way.
        let event =
            BinlogEvent::parse(&header, bytes, self.has_checksum).map_err(|error| error.to_string())?;
        let is_of_file = !header.is_artificial && header.end != 0;
        match event {
            BinlogEvent::Rotate { file, offset } => {
                let (base, place) = BinlogPosition::of(&file, offset)
                    .ok_or_else(|| format!("a file of the log called `{file}`"))?;
                if base != self.base || place.file < self.place.file {
                    return Err(format!(
                        "the log goes on in `{file}`, before or beside {}",
                        self.place.name(&self.base)
                    ));
                }
                if self.is_placed && place.file > self.place.file + 1 {
                    said.push(DecodedEvent::Gap(format!(
                        "the log goes on in `{file}` after {}",
                        self.place.name(&self.base)
                    )));
                }
                self.is_placed = true;
                self.place = place.max(self.place);
                self.open = None;
                // Passed with the description of the file, which follows: without it no other node could go on
                // from this place.
            }
            BinlogEvent::Format { has_checksum, is_start } => {
                self.has_checksum = has_checksum;
                let file = (self.place.file, header.time);
                match self.file {
                    Some((number, _)) if number == file.0 && self.file != Some(file) => {
                        said.push(DecodedEvent::Gap(
                            "the log was begun anew, or is that of another server".to_owned(),
                        ));
                    }
                    Some((number, _)) if number != file.0 && is_start => {
                        said.push(DecodedEvent::Gap("the server was started again".to_owned()));
                    }
                    _ => {}
                }
                self.file = Some(file);
                if is_of_file {
                    self.advance(&header);
                }
                self.passed(&mut said);
            }
            BinlogEvent::Heartbeat { file, offset } => {
                self.beats(&file, offset.unwrap_or(header.end.into()), &mut said);
            }
            BinlogEvent::Payload(events) => {
                let mut rest = events.as_slice();
                while !rest.is_empty() {
                    let inner = EventHeader::parse(rest).ok_or("a compressed event that is too short")?;
                    let length = inner.length as usize;
                    if length < HEADER_BYTES || length > rest.len() {
                        return Err("a compressed event of a wrong length".to_owned());
                    }
                    let (one, others) = rest.split_at(length);
                    let event = BinlogEvent::parse(&inner, one, false).map_err(|error| error.to_string())?;
                    // The whole has a place, its parts have none.
                    if others.is_empty() {
                        self.advance(&header);
                    }
                    self.changed(event, inner.time, &mut said);
                    rest = others;
                }
            }
            event => {
                let start = self.place;
                if is_of_file {
                    self.advance(&header);
                }
                if event == BinlogEvent::Gtid(None) {
                    return Err("the log has a transaction without a number: gtid_mode must be ON".to_owned());
                }
                if let BinlogEvent::Gtid(_) | BinlogEvent::MariaGtid { .. } = &event {
                    // What has no end of its own ends here.
                    self.end_at(start, header.time, &mut said);
                    self.begin(&event, start);
                } else {
                    self.changed(event, header.time, &mut said);
                }
                if self.open.is_none() && !said.iter().any(|one| matches!(one, DecodedEvent::Entry { .. })) {
                    self.passed(&mut said);
                }
            }
        }
        Ok(said)
    }

    fn advance(&mut self, header: &EventHeader) {
        if header.end == 0 || header.is_artificial {
            return;
        }
        let offset = self.place.offset & !LOW | u64::from(header.end);
        // Only the lower half is written.
        self.place.offset = if offset + LOW / 2 < self.place.offset { offset + LOW + 1 } else { offset };
    }

    fn passed(&mut self, said: &mut Vec<DecodedEvent>) {
        self.definitions.reached(self.place);
        said.push(DecodedEvent::Passed(self.place));
    }

    fn beats(&mut self, file: &str, offset: u64, said: &mut Vec<DecodedEvent>) {
        let Some((_, place)) = BinlogPosition::of(file, offset) else { return };
        if self.open.is_none() && place.file == self.place.file && place > self.place {
            self.place = place;
        }
        if self.open.is_none() {
            self.passed(said);
        }
    }

    fn begin(&mut self, event: &BinlogEvent<'_>, start: BinlogPosition) {
        let (gtid, written, has_begun) = match event {
            BinlogEvent::Gtid(Some((uuid, tag, number))) => {
                let written = format!("{:032x}:{tag}:{number}", u128::from_be_bytes(*uuid));
                (Some(((*uuid, tag.clone()), *number)), written, false)
            }
            BinlogEvent::MariaGtid { domain, number, is_alone, .. } => {
                (None, format!("{domain}-{number}"), !is_alone)
            }
            _ => (None, String::new(), false),
        };
        self.open = Some(OpenTransaction {
            start,
            names: Names::default(),
            gtid,
            written: written.into(),
            has_begun,
        });
    }

    /// Takes what a transaction did.
    fn changed(&mut self, event: BinlogEvent<'_>, time: u32, said: &mut Vec<DecodedEvent>) {
        match event {
            BinlogEvent::Query(query) => self.query(&query, time, said),
            BinlogEvent::TableMap(map) => {
                let role = self.role(&map, said);
                self.roles.insert(map.id, role);
            }
            BinlogEvent::Rows(rows) => self.rows(&rows),
            BinlogEvent::Commit => self.end(time, said),
            BinlogEvent::Prepared { is_one_phase, id } => {
                if let (false, Some(open)) = (is_one_phase, &mut self.open) {
                    let names = std::mem::take(&mut open.names);
                    self.keep(id.into(), names);
                }
                self.end(time, said);
            }
            BinlogEvent::Incident => {
                said.push(DecodedEvent::Gap("the server says that its log may lack something".to_owned()));
            }
            _ => {}
        }
    }

    fn keep(&mut self, id: Box<str>, names: Names) {
        self.prepared.retain(|(other, _)| *other != id);
        self.prepared.push((id, names));
        let bytes: usize = self.prepared.iter().map(|(_, names)| names.bytes()).sum();
        // What is not kept bumps everything when it is committed.
        if self.prepared.len() > PREPARED_MAX || bytes > NAMES_BYTES_MAX {
            self.prepared.remove(0);
        }
    }

    fn query(&mut self, query: &QueryEvent<'_>, time: u32, said: &mut Vec<DecodedEvent>) {
        let sql = String::from_utf8_lossy(&query.sql);
        let statement = Statement::of(&sql);
        let start = self.place;
        let open = self.open.get_or_insert_with(|| OpenTransaction {
            start,
            names: Names::default(),
            gtid: None,
            written: "".into(),
            has_begun: false,
        });
        let is_inside = open.has_begun;
        match statement {
            Statement::Begin | Statement::XaStart => open.has_begun = true,
            Statement::Commit | Statement::Rollback => return self.end(time, said),
            Statement::XaCommit(id) => {
                let id = id.to_lowercase();
                let at = self.prepared.iter().position(|(other, _)| **other == *id);
                match at.map(|at| self.prepared.remove(at)) {
                    Some((_, names)) => open.names.extend(&names),
                    None => open.names.all("a transaction was committed that was prepared before"),
                }
                return self.end(time, said);
            }
            Statement::XaRollback(id) => {
                let id = id.to_lowercase();
                self.prepared.retain(|(other, _)| **other != *id);
                return self.end(time, said);
            }
            Statement::Truncate(_, _) if query.is_no_ascii => self.statement(&sql, true, query, said),
            Statement::Truncate(database, table) => self.truncate(&sql, database, &table, query.database),
            Statement::Data => self.statement(&sql, false, query, said),
            Statement::Definition => self.statement(&sql, true, query, said),
            Statement::Other => {}
        }
        if !is_inside && self.open.as_ref().is_some_and(|open| !open.has_begun) {
            self.end(time, said);
        }
    }

    fn is_same(&self, left: &str, right: &str) -> bool {
        if self.ignores_case { left.to_lowercase() == right.to_lowercase() } else { left == right }
    }

    fn truncate(&mut self, sql: &str, database: Option<String>, name: &str, default: &[u8]) {
        let database = database.unwrap_or_else(|| String::from_utf8_lossy(default).into_owned());
        let is_it =
            |table: &&Table| self.is_same(&table.schema, &database) && self.is_same(&table.name, name);
        let may_be = |own: &str, given: &str| self.is_same(own, given) || may_be_written_otherwise(sql, own);
        let may_be_it = |table: &&Table| may_be(&table.schema, &database) && may_be(&table.name, name);
        let found = self.tables.iter().find(is_it);
        let perhaps = self.tables.iter().find(may_be_it);
        let Some(open) = &mut self.open else { return };
        let Some(table) = found else {
            if let Some(table) = perhaps {
                open.names.all(&format!("{} was truncated, perhaps", table.full_name()));
            }
            return;
        };
        if table.truncate.is_empty() {
            open.names.all(&format!("{} was truncated", table.full_name()));
        }
        table.truncate.iter().for_each(|tag| open.names.add(table.scope, tag.as_bytes()));
    }

    /// A statement that changes rows or definitions, without saying which rows. One of a database with
    /// followed tables may change their rows through a view, a procedure or a trigger.
    fn statement(
        &mut self,
        sql: &str,
        is_definition: bool,
        query: &QueryEvent<'_>,
        said: &mut Vec<DecodedEvent>,
    ) {
        let default = String::from_utf8_lossy(query.database);
        let verb = sql.split_whitespace().next().unwrap_or_default();
        let is_of_database = is_definition && (may_mention(sql, "database") || may_mention(sql, "schema"));
        let hit = self.definitions.targets().iter().map(|target| &target.table).find(|table| {
            let is_in = self.is_same(&table.schema, &default);
            query.is_no_ascii
                || is_definition && may_name(sql, &default, &table.schema, &table.name)
                || !is_definition && is_in
                || (!is_definition || is_of_database) && may_mention(sql, &table.schema)
        });
        let Some(table) = hit else { return };
        let name = table.full_name();
        if let Some(open) = &mut self.open {
            open.names.all(&if is_definition {
                format!("the definition of {name} may have changed ({verb})")
            } else {
                format!("a statement is in the log in the place of rows ({verb}), perhaps of {name}: set binlog_format = ROW")
            });
        }
        if is_definition {
            self.definitions.changed();
            self.roles.clear();
            said.push(DecodedEvent::Changed);
        }
    }

    fn role(&mut self, map: &TableMap<'_>, said: &mut Vec<DecodedEvent>) -> TableRole {
        let (database, name) = (String::from_utf8_lossy(map.database), String::from_utf8_lossy(map.table));
        let of_name =
            |table: &Table| self.is_same(&table.schema, &database) && self.is_same(&table.name, &name);
        let targets: Vec<_> =
            self.definitions.targets().iter().filter(|target| of_name(&target.table)).collect();
        if targets.is_empty() {
            return TableRole::Other;
        }
        let is_followed = |target: &&&TargetTable| target.purpose == TargetPurpose::Followed;
        let is_known = self.definitions.is_known();
        if !is_known && map.names.is_none()
            || targets.iter().filter(is_followed).any(|target| target.columns.is_none())
        {
            return TableRole::Unknown(format!("the columns of {database}.{name} are not known yet"));
        }
        match parts(&targets, map) {
            Ok(parts) => {
                self.odd.retain(|odd| odd.table.0 != database || odd.table.1 != name);
                TableRole::Followed(parts)
            }
            Err(reason) => {
                let what = format!("{database}.{name} {reason}");
                let table = (database.into_owned(), name.into_owned());
                match self.odd.iter().find(|odd| odd.table == table) {
                    // Nothing is confirmed until it is mended, and then everything is flushed.
                    Some(odd) if odd.is_said => return TableRole::Other,
                    Some(_) => {}
                    // A statement may follow that made it what it is.
                    None if !self.definitions.is_sure(self.place) => {}
                    None => {
                        self.odd.push(MismatchedTable { table, what: what.clone(), is_said: false });
                        said.push(DecodedEvent::Changed);
                    }
                }
                TableRole::Unknown(what)
            }
        }
    }

    fn rows(&mut self, rows: &RowsEvent<'_>) {
        let Some(open) = &mut self.open else { return };
        match self.roles.get(&rows.table) {
            Some(TableRole::Followed(_)) if rows.change == RowChange::UpdateInPart => {
                open.names.all("updated rows are in the log in part: set binlog_row_value_options = ''");
            }
            Some(TableRole::Followed(parts)) => {
                for part in parts {
                    if let Err(reason) = part.changed(rows, &mut open.names, &mut self.left_out) {
                        open.names.all(&reason);
                    }
                }
            }
            Some(TableRole::Unknown(reason)) => open.names.all(reason),
            Some(TableRole::Other) | None => {}
        }
    }

    fn end(&mut self, time: u32, said: &mut Vec<DecodedEvent>) {
        self.end_at(self.place, time, said);
    }

    fn end_at(&mut self, end: BinlogPosition, time: u32, said: &mut Vec<DecodedEvent>) {
        let Some(open) = self.open.take() else { return };
        self.roles.clear();
        let last = LastTransaction { start: open.start, end, gtid: open.written, time };
        if let Some(expected) = self.expected.take()
            && expected != last
        {
            said.push(DecodedEvent::Gap(format!("the log has another transaction at {}", expected.start)));
        }
        self.last = Some(last);
        self.definitions.reached(end);
        said.push(DecodedEvent::Entry {
            transaction: BinlogTransaction { end, gtid: open.gtid },
            names: open.names,
        });
    }
}

#[cfg(test)]
mod tests;
