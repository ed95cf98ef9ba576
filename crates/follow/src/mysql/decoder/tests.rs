use super::*;
use crate::log::Snapshot as _;
use crate::mysql::definitions::{CatalogColumn, TargetTable};
use crate::mysql::position::BinlogSnapshot;
use crate::mysql::value::ValueShape;
use crate::names::Name;
use crate::tables::Template;

/// Makes events as a server does.
struct EventLog {
    decoder: Decoder,
    /// The offset in the file.
    offset: u32,
    has_checksum: bool,
}

const ARTIFICIAL: u16 = 0x20;

fn header(kind: u8, length: usize, end: u32, flags: u16) -> Vec<u8> {
    let mut bytes = 7u32.to_le_bytes().to_vec();
    bytes.push(kind);
    bytes.extend_from_slice(&1u32.to_le_bytes());
    bytes.extend_from_slice(&(length as u32).to_le_bytes());
    bytes.extend_from_slice(&end.to_le_bytes());
    bytes.extend_from_slice(&flags.to_le_bytes());
    bytes
}

fn at(file: u64, offset: u64) -> BinlogPosition {
    BinlogPosition { file, offset }
}

fn users() -> Table {
    let mut table = Table::of("shop", "users");
    table.bump = vec![Template::parse("user:{id}").unwrap()];
    table
}

fn columns(names: &[&str]) -> Vec<TargetTable> {
    let column = |name: &&str| CatalogColumn {
        name: (*name).to_owned(),
        shape: ValueShape::Signed,
        written: "int(11)".to_owned(),
        is_virtual: false,
        is_hidden: false,
        is_row_end: false,
    };
    let columns = Some(names.iter().map(column).collect());
    vec![TargetTable { table: users(), purpose: TargetPurpose::Followed, columns }]
}

impl EventLog {
    /// Follows a table with two columns, `id` and `age`.
    fn new() -> Self {
        let mut decoder = Decoder::new(&[users()]);
        decoder.begins("bin", Some(at(1, 1000)), false, false, true);
        decoder.definitions.read(columns(&["id", "age"]), 0, at(1, 1000), at(1, 1000));
        let mut log = Self { decoder, offset: 1000, has_checksum: true };
        assert_eq!(log.format(100, ARTIFICIAL, false), [DecodedEvent::Passed(at(1, 1000))]);
        log
    }

    fn event(&mut self, kind: u8, content: &[u8], flags: u16) -> Result<Vec<DecodedEvent>, String> {
        let length = HEADER_BYTES + content.len() + if self.has_checksum { 4 } else { 0 };
        if flags & ARTIFICIAL == 0 {
            self.offset += length as u32;
        }
        let end = if flags & ARTIFICIAL == 0 { self.offset } else { 0 };
        let mut bytes = header(kind, length, end, flags);
        bytes.extend_from_slice(content);
        if self.has_checksum {
            let sum = crc32fast::hash(&bytes);
            bytes.extend_from_slice(&sum.to_le_bytes());
        }
        self.decoder.take(&bytes, false)
    }

    fn said(&mut self, kind: u8, content: &[u8]) -> Vec<DecodedEvent> {
        self.event(kind, content, 0).unwrap()
    }

    /// `time`: when the file was begun.
    fn format(&mut self, time: u32, flags: u16, is_start: bool) -> Vec<DecodedEvent> {
        let mut content = vec![4, 0];
        content.extend_from_slice(&[b'1'; 50]);
        content.extend_from_slice(&u32::from(is_start).to_le_bytes());
        content.extend_from_slice(&[19; 40]);
        content.push(1);
        let length = HEADER_BYTES + content.len() + 4;
        if flags & ARTIFICIAL == 0 {
            self.offset += length as u32;
        }
        let mut bytes = header(15, length, if flags & ARTIFICIAL == 0 { self.offset } else { 0 }, flags);
        bytes[..4].copy_from_slice(&time.to_le_bytes());
        bytes.extend_from_slice(&content);
        bytes.extend_from_slice(&[0; 4]);
        self.decoder.take(&bytes, false).unwrap()
    }

    fn gtid(&mut self, number: u64, flags: u8) -> Vec<DecodedEvent> {
        self.said(162, &[&number.to_le_bytes()[..], &[0; 4], &[flags], &[0; 6]].concat())
    }

    fn query(&mut self, sql: &str) -> Vec<DecodedEvent> {
        self.query_in("shop", sql)
    }

    fn query_in(&mut self, database: &str, sql: &str) -> Vec<DecodedEvent> {
        self.query_of(database, sql, 45)
    }

    /// `charset`: the number of the client's.
    fn query_of(&mut self, database: &str, sql: &str, charset: u16) -> Vec<DecodedEvent> {
        let mut variables = vec![0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 6, 3, b's', b't', b'd', 4];
        variables.extend_from_slice(&charset.to_le_bytes());
        variables.extend_from_slice(&[8, 0, 8, 0]);
        let mut content = vec![0; 8];
        content.push(database.len() as u8);
        content.extend_from_slice(&[0; 2]);
        content.extend_from_slice(&(variables.len() as u16).to_le_bytes());
        content.extend_from_slice(&variables);
        content.extend_from_slice(database.as_bytes());
        content.push(0);
        content.extend_from_slice(sql.as_bytes());
        self.said(2, &content)
    }

    fn map(&mut self, table: &str, types: &[u8]) -> Vec<DecodedEvent> {
        let mut content = vec![9, 0, 0, 0, 0, 0, 0, 0, 4];
        content.extend_from_slice(b"shop\0");
        content.push(table.len() as u8);
        content.extend_from_slice(table.as_bytes());
        content.push(0);
        content.push(types.len() as u8);
        content.extend_from_slice(types);
        content.extend_from_slice(&[0, 0]);
        self.said(19, &content)
    }

    /// Rows of two numbers. `present`: which columns they have.
    fn rows(&mut self, kind: u8, present: u8, rows: &[[i32; 2]]) -> Vec<DecodedEvent> {
        let mut content = vec![9, 0, 0, 0, 0, 0, 1, 0, 2, present];
        if kind == 24 {
            content.push(present);
        }
        for row in rows {
            content.push(0);
            for (at, value) in row.iter().enumerate() {
                if present >> at & 1 == 1 {
                    content.extend_from_slice(&value.to_le_bytes());
                }
            }
        }
        self.said(kind, &content)
    }

    /// One row, in a transaction of its own.
    fn insert(&mut self, number: u64, id: i32) -> Names {
        assert_eq!(self.gtid(number, 0), []);
        assert_eq!(self.map("users", &[3, 3]), []);
        assert_eq!(self.rows(23, 3, &[[id, 5]]), []);
        entry(self.said(16, &[0; 8]))
    }
}

fn entry(said: Vec<DecodedEvent>) -> Names {
    match said.into_iter().next() {
        Some(DecodedEvent::Entry { names, .. }) => names,
        other => panic!("{other:?}"),
    }
}

fn tags(names: Names) -> Vec<String> {
    let Names::Some { names, .. } = names else { panic!("{names:?}") };
    let text = |Name { tag, .. }: Name| String::from_utf8(tag.into_vec()).unwrap();
    let mut tags: Vec<_> = names.into_iter().map(text).collect();
    tags.sort();
    tags
}

fn reason(names: Names) -> String {
    let Names::All { reason } = names else { panic!("{names:?}") };
    reason.into()
}

#[test]
fn a_transaction_is_an_entry_behind_its_end() {
    let mut log = EventLog::new();
    log.gtid(1, 0);
    log.map("users", &[3, 3]);
    log.rows(24, 3, &[[1, 5], [1, 6], [2, 5], [3, 5]]);
    log.map("others", &[3]);
    log.rows(25, 3, &[[9, 9]]);
    log.map("users", &[3, 3]);
    log.rows(25, 3, &[[4, 5]]);
    let said = log.said(16, &[0; 8]);
    let end = at(1, log.offset.into());
    let [DecodedEvent::Entry { transaction, names }] = &said[..] else { panic!("{said:?}") };
    assert_eq!(transaction, &BinlogTransaction { end, gtid: None });
    assert_eq!(tags(names.clone()), ["user:1", "user:2", "user:3", "user:4"]);
    assert!(
        BinlogSnapshot::Before(end).sees(transaction)
            && !BinlogSnapshot::Before(at(1, end.offset - 1)).sees(transaction)
    );
    assert_eq!(log.decoder.place(), end);
}

#[test]
fn rows_in_part_or_of_another_width_bump_everything() {
    let mut log = EventLog::new();
    for (types, present, words) in [
        (&[3, 3][..], 1, "in the log in part"),
        (&[3, 3, 3], 3, "another number of columns"),
        (&[3, 5], 3, "type"),
    ] {
        log.gtid(1, 0);
        log.map("users", types);
        log.rows(23, present, &[[1, 5]]);
        let names = entry(log.said(16, &[0; 8]));
        match types {
            [3, 5] => assert_eq!(reason(names), "shop.users has columns of a type that is not known"),
            _ => assert!(reason(names.clone()).contains(words), "{names:?}"),
        }
    }
    assert_eq!(tags(log.insert(2, 1)), ["user:1"]);
}

#[test]
fn a_definition_that_may_have_changed_is_read_again_before_rows_are() {
    let mut log = EventLog::new();
    log.gtid(1, 1);
    let said = log.query("ALTER TABLE users ADD name int FIRST");
    assert_eq!(said[0], DecodedEvent::Changed);
    assert!(reason(entry(said[1..].to_vec())).contains("definition of shop.users may have changed"));
    assert_eq!(reason(log.insert(2, 1)), "the columns of shop.users are not known yet");
    let (changes, place) = (log.decoder.definitions.changes(), log.decoder.place());
    let head = BinlogPosition { offset: place.offset + 1, ..place };
    assert!(!log.decoder.definitions.read(columns(&["age", "id"]), changes, head, place));
    assert_eq!(
        reason(log.insert(3, 1)),
        "the columns of shop.users are not known yet",
        "it ends behind the head"
    );
    assert_eq!(tags(log.insert(4, 1)), ["user:5"]);
}

/// What is passed is acknowledged and said to the other nodes once: a log that does not grow passes nothing more.
#[test]
fn nothing_is_passed_before_another_node_could_go_on_from_it() {
    let mut log = EventLog::new();
    log.decoder = Decoder::new(&[users()]);
    log.decoder.begins("bin", Some(at(1, 1000)), false, false, true);
    let rotate = [&1000_u64.to_le_bytes()[..], b"bin.000001"].concat();
    assert_eq!(log.event(4, &rotate, ARTIFICIAL).unwrap(), []);
    assert_eq!(log.format(100, ARTIFICIAL, false), [DecodedEvent::Passed(at(1, 1000))]);
    assert!(log.decoder.begun(at(1, 1000)).is_some());
}

#[test]
fn rows_before_the_place_at_which_the_catalog_was_read() {
    let backlog = |log: &mut EventLog, head: u64| {
        let begun = log.decoder.begun(at(1, 1000)).unwrap();
        log.decoder = Decoder::resumed(&[users()], at(1, 1000), begun);
        log.decoder.begins("bin", Some(at(1, 1000)), true, false, true);
        let is_other = log.decoder.looked(columns(&["id", "age"]), None, at(1, head));
        log.offset = 1000;
        is_other
    };
    // Known as it was, and not: the second node has the gap, and no row invalidates everything.
    let mut log = EventLog::new();
    assert!(!backlog(&mut log, 5000));
    assert_eq!(tags(log.insert(1, 1)), ["user:1"]);
    log.decoder.definitions.changed();
    assert!(backlog(&mut log, 5000));
    for id in 1..4 {
        assert_eq!(tags(log.insert(1, id)), [format!("user:{id}")]);
    }
    // Rows of another width have their statement behind them.
    log.gtid(4, 0);
    log.map("users", &[3]);
    log.rows(23, 1, &[[1, 5]]);
    assert!(reason(entry(log.said(16, &[0; 8]))).contains("another number of columns"));
    assert_eq!(log.decoder.missing(), []);
    log.gtid(5, 1);
    assert!(log.query("ALTER TABLE users ADD age int").contains(&DecodedEvent::Changed));
}

#[test]
fn statements() {
    let mut log = EventLog::new();
    log.gtid(1, 0);
    log.query("UPDATE users SET age = 1");
    assert!(reason(entry(log.said(16, &[0; 8]))).contains("set binlog_format = ROW"));
    // Perhaps a view of users, or a table with a trigger.
    log.gtid(1, 0);
    log.query("UPDATE seen SET age = 1");
    assert!(reason(entry(log.said(16, &[0; 8]))).contains("set binlog_format = ROW"));
    log.gtid(1, 0);
    log.query_in("other", "UPDATE seen SET age = 1");
    assert!(entry(log.said(16, &[0; 8])).is_empty());
    for sql in ["UPDATE `Shop`.seen SET age = 1", "INSERT INTO log SELECT * FROM shop.users"] {
        log.gtid(1, 0);
        log.query_in("other", sql);
        assert!(reason(entry(log.said(16, &[0; 8]))).contains("set binlog_format = ROW"), "{sql}");
    }
    // Tables of the same name in another database.
    log.gtid(1, 0);
    log.query_in("other", "UPDATE users SET name = 'shopper'");
    assert!(entry(log.said(16, &[0; 8])).is_empty());
    for (database, sql) in [
        ("other", "CREATE TABLE users (id int)"),
        ("other", "/*!40000 ALTER TABLE `users` DISABLE KEYS */"),
        ("shop", "ALTER TABLE other.users ADD name int"),
        ("other", "TRUNCATE users"),
    ] {
        log.gtid(1, 1);
        assert!(entry(log.query_in(database, sql)).is_empty(), "{sql}");
    }
    // In this character set letters are written as signs: the text is not what it seems.
    for sql in ["TRUNCATE t{", "ALTER TABLE t{ ADD a int", "UPDATE t{ SET a = 1"] {
        for (charset, hits) in [(45, false), (10, true)] {
            log.gtid(1, 1);
            let said = log.query_of("other", sql, charset);
            let names = said.into_iter().find_map(|said| match said {
                DecodedEvent::Entry { names, .. } => Some(names),
                _ => None,
            });
            assert_eq!(!names.unwrap().is_empty(), hits, "{sql}");
        }
    }
    let (changes, place) = (log.decoder.definitions.changes(), log.decoder.place());
    log.decoder.looked(columns(&["id", "age"]), Some(changes), place);
    log.gtid(1, 0);
    log.query("SELECT change_all()");
    assert!(reason(entry(log.query("COMMIT"))).contains("SELECT"));
    log.gtid(1, 1);
    assert_eq!(reason(entry(log.query("TRUNCATE TABLE users"))), "shop.users was truncated");
    log.gtid(1, 1);
    assert!(entry(log.query("TRUNCATE TABLE other.users")).is_empty());
    log.gtid(1, 1);
    assert!(entry(log.query("GRANT SELECT ON users TO a")).is_empty());
}

#[test]
fn prepared_transactions_count_when_they_are_committed() {
    let mut log = EventLog::new();
    let prepared = |id: &[u8]| {
        let mut content = vec![0, 1, 0, 0, 0, id.len() as u8, 0, 0, 0, 0, 0, 0, 0];
        content.extend_from_slice(id);
        content
    };
    for (id, number) in [(&b"a"[..], 1), (b"b", 2)] {
        log.gtid(1, 64);
        log.map("users", &[3, 3]);
        log.rows(23, 3, &[[number, 5]]);
        log.query("XA END X'61',X'',1");
        assert!(entry(log.said(38, &prepared(id))).is_empty());
    }
    log.gtid(1, 1);
    assert!(entry(log.query("XA ROLLBACK X'62',X'',1")).is_empty());
    log.gtid(1, 1);
    assert_eq!(tags(entry(log.query("XA COMMIT X'61',X'',1"))), ["user:1"]);
    log.gtid(1, 1);
    assert!(reason(entry(log.query("XA COMMIT X'61',X'',1"))).contains("prepared before"));
}

#[test]
fn files_follow_each_other() {
    let mut log = EventLog::new();
    log.insert(1, 1);
    assert_eq!(log.said(4, &[&4u64.to_le_bytes()[..], b"bin.000002"].concat()), []);
    log.offset = 4;
    let said = log.format(200, 0, false);
    assert_eq!(said, [DecodedEvent::Passed(at(2, log.offset.into()))]);
    log.insert(2, 1);
    // The server was started again.
    log.said(4, &[&4u64.to_le_bytes()[..], b"bin.000003"].concat());
    log.offset = 4;
    assert!(
        matches!(&log.format(300, 0, true)[0], DecodedEvent::Gap(reason) if reason == "the server was started again")
    );
    assert!(log.event(4, &[&4u64.to_le_bytes()[..], b"bin.000001"].concat(), 0).is_err());
}

#[test]
fn where_a_stream_goes_on_the_last_transaction_comes_again() {
    let mut log = EventLog::new();
    log.insert(1, 1);
    let start = log.offset;
    log.insert(2, 2);
    let end = log.decoder.place();
    assert_eq!(log.decoder.resume(end), at(1, start.into()));
    assert_eq!(log.decoder.resume(at(1, 1000)), at(1, 1000), "it was not obeyed");
    assert_eq!(log.decoder.resume(at(2, 4)), at(2, 4), "its file may be gone");
    for (number, time, words) in
        [(2, 100, None), (3, 100, Some("another transaction")), (2, 101, Some("begun anew"))]
    {
        let last = log.decoder.last.clone();
        log.decoder.begins("bin", Some(log.decoder.resume(end)), true, false, true);
        log.offset = start;
        let mut said = log.format(time, ARTIFICIAL, false);
        log.gtid(number, 0);
        log.map("users", &[3, 3]);
        log.rows(23, 3, &[[2, 5]]);
        said.extend(log.said(16, &[0; 8]));
        let gap = said.iter().find_map(|said| match said {
            DecodedEvent::Gap(reason) => Some(reason.as_str()),
            _ => None,
        });
        assert_eq!(gap.is_some(), words.is_some(), "{said:?}");
        assert!(words.is_none_or(|words| gap.unwrap().contains(words)), "{gap:?}");
        (log.decoder.last, log.decoder.file) = (last, Some((1, 100)));
    }
}

#[test]
fn heartbeats_say_how_far_a_log_is_that_does_not_grow() {
    let mut log = EventLog::new();
    log.insert(1, 1);
    let end = log.decoder.place().offset as u32 + 50;
    let mut bytes = header(27, HEADER_BYTES + 14, end, ARTIFICIAL);
    bytes.extend_from_slice(b"bin.000001");
    let sum = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    assert_eq!(log.decoder.take(&bytes, false), Ok(vec![DecodedEvent::Passed(at(1, end.into()))]));
    bytes[4] ^= 1;
    assert!(log.decoder.take(&bytes, false).is_err(), "its sum is wrong");
}

#[test]
fn events_that_are_cut_anywhere_are_refused_or_read() {
    let mut log = EventLog::new();
    log.has_checksum = false;
    log.decoder.has_checksum = false;
    let map = [&[9, 0, 0, 0, 0, 0, 0, 0, 4][..], b"shop\0\x05users\0\x02\x03\x03\0\0"].concat();
    let rows = [9, 0, 0, 0, 0, 0, 1, 0, 2, 3, 0, 1, 0, 0, 0, 5, 0, 0, 0];
    for (kind, content) in [
        (19, &map[..]),
        (23, &rows),
        (162, &[0; 19]),
        (2, &[0; 30]),
        (38, &[0; 13]),
        (40, &[3, 1, 9]),
        (42, &[2; 40]),
    ] {
        for length in 0..content.len() {
            log.gtid(1, 0);
            log.map("users", &[3, 3]);
            drop(log.event(kind, &content[..length], 0));
        }
    }
    log.gtid(1, 0);
    log.map("users", &[3, 3]);
    log.event(23, &rows[..rows.len() - 1], 0).unwrap();
    assert_eq!(reason(entry(log.said(16, &[0; 8]))), "a row of shop.users cannot be read");
}
