//! The kind of a statement in the log. Only its beginning is parsed, and whether a name is in it.

/// A kind of statement.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Statement<'a> {
    Begin,
    Commit,
    Rollback,
    /// The begin of a transaction with an `XID` of the client's.
    XaStart,
    XaCommit(&'a str),
    XaRollback(&'a str),
    /// A database, if one is named, and a table.
    Truncate(Option<String>, String),
    /// The statement changes rows, which are not in the log.
    Data,
    /// The statement changes a table or a database.
    Definition,
    /// The statement changes no row.
    Other,
}

/// Statements that change rows of no table, nor a definition.
const HARMLESS: [&str; 15] = [
    "SAVEPOINT",
    "RELEASE",
    "GRANT",
    "REVOKE",
    "ANALYZE",
    "OPTIMIZE",
    "REPAIR",
    "CHECK",
    "FLUSH",
    "SET",
    "KILL",
    "USE",
    "RENAME USER",
    "INSTALL",
    "UNINSTALL",
];

/// Kinds of objects besides tables that are created, changed or dropped.
const OF_NO_TABLE: [&str; 16] = [
    "USER",
    "ROLE",
    "VIEW",
    "FUNCTION",
    "PROCEDURE",
    "TRIGGER",
    "EVENT",
    "SERVER",
    "INDEX",
    "UNIQUE",
    "FULLTEXT",
    "SPATIAL",
    "TEMPORARY",
    "AGGREGATE",
    "TABLESPACE",
    "RESOURCE",
];

impl<'a> Statement<'a> {
    pub(crate) fn of(sql: &'a str) -> Self {
        let sql = without_comments(sql);
        let mut words = SqlWords(sql);
        let first = words.next().unwrap_or_default().to_ascii_uppercase();
        let after = words.0;
        let mut second = words.next().unwrap_or_default().to_ascii_uppercase();
        match first.as_str() {
            "BEGIN" => Self::Begin,
            "START" if second == "TRANSACTION" => Self::Begin,
            "COMMIT" => Self::Commit,
            "ROLLBACK" if second == "TO" => Self::Other,
            "ROLLBACK" => Self::Rollback,
            "XA" => match second.as_str() {
                "START" | "BEGIN" => Self::XaStart,
                "COMMIT" => Self::XaCommit(words.0.trim()),
                "ROLLBACK" => Self::XaRollback(words.0.trim()),
                _ => Self::Other,
            },
            "TRUNCATE" => {
                truncated(if second == "TABLE" { words.0 } else { after }).unwrap_or(Self::Definition)
            }
            "CREATE" | "ALTER" | "DROP" | "RENAME" => {
                // `OR REPLACE`, `ALGORITHM = …`, `DEFINER = …` of views and routines, `ONLINE` and `IGNORE`
                // of tables.
                while matches!(second.as_str(), "OR" | "REPLACE" | "ONLINE" | "OFFLINE" | "IGNORE") {
                    second = words.next().unwrap_or_default().to_ascii_uppercase();
                }
                let is_of_none = OF_NO_TABLE.contains(&second.as_str())
                    || matches!(
                        second.as_str(),
                        "ALGORITHM" | "DEFINER" | "SQL" | "UNDO" | "LOGFILE" | "PACKAGE"
                    );
                if is_of_none { Self::Other } else { Self::Definition }
            }
            "SET" if second == "STATEMENT" => behind_for(words.0).map_or(Self::Data, Self::of),
            // Of MariaDB, a statement that is carried out and explained.
            "ANALYZE" if !matches!(second.as_str(), "TABLE" | "TABLES" | "LOCAL" | "NO_WRITE_TO_BINLOG") => {
                Self::Data
            }
            first if HARMLESS.contains(&first) => Self::Other,
            _ => Self::Data,
        }
    }
}

/// The text after the word FOR, outside of quotes.
fn behind_for(text: &str) -> Option<&str> {
    let (mut quote, mut at_begin) = (None, true);
    for (at, letter) in text.char_indices() {
        match quote {
            Some(open) => quote = (letter != open).then_some(open),
            None if matches!(letter, '\'' | '"' | '`') => quote = Some(letter),
            None => {
                let word = text.get(at..at + 3).filter(|_| at_begin);
                if word.is_some_and(|word| word.eq_ignore_ascii_case("for"))
                    && !text[at + 3..].starts_with(is_of_name)
                {
                    return Some(&text[at + 3..]);
                }
            }
        }
        at_begin = !is_of_name(letter);
    }
    None
}

/// Words of letters, digits and `_`, whatever is between them.
struct SqlWords<'a>(&'a str);

impl<'a> Iterator for SqlWords<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let text = self.0.trim_start_matches(|letter: char| !is_of_name(letter));
        let end = text.find(|letter: char| !is_of_name(letter)).unwrap_or(text.len());
        let (word, rest) = text.split_at(end);
        self.0 = rest;
        (!word.is_empty()).then_some(word)
    }
}

fn is_of_name(letter: char) -> bool {
    letter.is_alphanumeric() || matches!(letter, '_' | '$')
}

/// Without the comments and blanks at its beginning. What `/*!` begins is no comment.
fn without_comments(mut sql: &str) -> &str {
    loop {
        sql = sql.trim_start();
        let rest = if let Some(rest) = sql.strip_prefix("/*!").or_else(|| sql.strip_prefix("/*M!")) {
            return rest.trim_start_matches(|letter: char| letter.is_ascii_digit()).trim_start();
        } else if let Some(rest) = sql.strip_prefix("/*") {
            rest.split_once("*/").map(|(_, rest)| rest)
        } else if sql.starts_with('#') || sql.starts_with("-- ") || sql.starts_with("--\n") {
            sql.split_once('\n').map(|(_, rest)| rest)
        } else {
            return sql;
        };
        match rest {
            Some(rest) => sql = rest,
            None => return "",
        }
    }
}

/// The table of a TRUNCATE: `a`, `` `a` ``, `a.b`.
fn truncated(text: &str) -> Option<Statement<'static>> {
    let (first, rest) = name(text.trim_start())?;
    match rest.trim_start().strip_prefix('.') {
        Some(rest) => Some(Statement::Truncate(Some(first), name(rest.trim_start())?.0)),
        None => Some(Statement::Truncate(None, first)),
    }
}

/// A name at the beginning, in quotes or not, and what follows it.
pub(crate) fn name(text: &str) -> Option<(String, &str)> {
    let quote = text.chars().next().filter(|quote| matches!(quote, '`' | '"'));
    let Some(quote) = quote else {
        let end = text.find(|letter: char| !is_of_name(letter)).unwrap_or(text.len());
        let (word, rest) = text.split_at(end);
        return (!word.is_empty()).then(|| (word.to_owned(), rest));
    };
    let (mut found, mut rest) = (String::new(), &text[1..]);
    loop {
        let (before, after) = rest.split_once(quote)?;
        found.push_str(before);
        rest = after;
        match rest.strip_prefix(quote) {
            Some(after) => {
                found.push(quote);
                rest = after;
            }
            None => return Some((found, rest)),
        }
    }
}

/// Whether the statement may have this name in it: it is in the client's character set, and quotes in names
/// are doubled there.
pub(crate) fn may_mention(sql: &str, name: &str) -> bool {
    mentions(sql, name) || may_be_written_otherwise(sql, name)
}

/// Whether the statement may have the name in it in another way than it is written.
pub(crate) fn may_be_written_otherwise(sql: &str, name: &str) -> bool {
    !name.is_ascii() && !sql.is_ascii() || name.contains(['`', '"'])
}

/// Whether the statement, of a session whose database is `default`, may name this table: without a database
/// where the session's is the table's, or the text has that name in it elsewhere; or with the name of its
/// database.
pub(crate) fn may_name(sql: &str, default: &str, database: &str, table: &str) -> bool {
    if default.to_lowercase() != database.to_lowercase() && !may_mention(sql, database) {
        return false;
    }
    if may_be_written_otherwise(sql, table) {
        return true;
    }
    let sql = without_comments(sql).to_lowercase();
    let is_of_other = |at: usize| {
        let qualifier = qualifier(&sql[..at]);
        qualifier
            .is_some_and(|own| own != database.to_lowercase() && !may_be_written_otherwise(own, database))
    };
    places(&sql, &table.to_lowercase()).any(|at| !is_of_other(at))
}

/// The name before the `.` at the end of a text that a name follows. `None`: there is none, or it is not
/// surely one.
fn qualifier(before: &str) -> Option<&str> {
    // What is in a comment may stand in between.
    if before.contains("--") || before.contains('#') {
        return None;
    }
    let before = before.strip_suffix(['`', '"']).unwrap_or(before);
    let before = before.trim_end().strip_suffix('.')?;
    let unquoted = before.trim_end();
    if let Some(quote @ ('`' | '"')) = unquoted.chars().next_back() {
        let (_, name) = unquoted[..unquoted.len() - 1].rsplit_once(quote)?;
        return (!name.is_empty()).then_some(name);
    }
    // `TABLE .users` has no name before the `.`. What cannot be read may be of a name.
    let is_none = |letter: char| !is_of_name(letter) && letter.is_ascii();
    let begin = before.rfind(is_none).map_or(0, |at| at + 1);
    (begin < before.len()).then(|| &before[begin..])
}

/// Whether the statement has this name in it, in letters of any size, and not as a part of another name.
fn mentions(sql: &str, name: &str) -> bool {
    places(&sql.to_lowercase(), &name.to_lowercase()).next().is_some()
}

/// Where a name is in a text, and not as a part of another name; both are in small letters.
fn places<'a>(sql: &'a str, name: &'a str) -> impl Iterator<Item = usize> + 'a {
    sql.match_indices(name).map(|(at, _)| at).filter(move |at| {
        !sql[..*at].ends_with(is_of_name) && !sql[at + name.len()..].starts_with(is_of_name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds() {
        let table = |database: Option<&str>, table: &str| {
            Statement::Truncate(database.map(str::to_owned), table.to_owned())
        };
        for (sql, kind) in [
            ("BEGIN", Statement::Begin),
            ("START TRANSACTION", Statement::Begin),
            ("COMMIT", Statement::Commit),
            ("ROLLBACK", Statement::Rollback),
            ("ROLLBACK TO `a`", Statement::Other),
            ("SAVEPOINT `a`", Statement::Other),
            ("XA START X'61',X'',1", Statement::XaStart),
            ("XA END X'61',X'',1", Statement::Other),
            ("XA COMMIT X'61',X'',1", Statement::XaCommit("X'61',X'',1")),
            ("XA ROLLBACK X'61',X'',1", Statement::XaRollback("X'61',X'',1")),
            ("truncate users", table(None, "users")),
            ("TRUNCATE TABLE `shop`.`us``ers` /* a */", table(Some("shop"), "us`ers")),
            ("TRUNCATE shop . users WAIT 3", table(Some("shop"), "users")),
            ("/* a tool */ alter table users add c int", Statement::Definition),
            ("/*!40000 ALTER TABLE users DISABLE KEYS */", Statement::Definition),
            ("# a\n-- b\n DROP TABLE a", Statement::Definition),
            ("RENAME TABLE a TO b", Statement::Definition),
            ("CREATE OR REPLACE TABLE a (b int)", Statement::Definition),
            ("CREATE TABLE a (b int)", Statement::Definition),
            ("CREATE TEMPORARY TABLE a (b int)", Statement::Other),
            ("CREATE DEFINER=`a`@`b` TRIGGER c", Statement::Other),
            ("CREATE OR REPLACE ALGORITHM=MERGE VIEW a AS SELECT 1", Statement::Other),
            ("DROP DATABASE shop", Statement::Definition),
            ("GRANT SELECT ON shop.users TO a", Statement::Other),
            ("insert into users values (1)", Statement::Data),
            ("WITH a AS (SELECT 1) UPDATE users", Statement::Data),
            ("/* never closed", Statement::Data),
            ("SET STATEMENT lock_wait_timeout=5 FOR TRUNCATE shop.p", table(Some("shop"), "p")),
            ("set statement a='x for y', b=1 for\nALTER TABLE a ADD b int", Statement::Definition),
            ("SET STATEMENT before_for=1 FOR DELETE FROM a", Statement::Data),
            ("SET STATEMENT max_statement_time=1", Statement::Data),
            ("SET PASSWORD FOR a = 'b'", Statement::Other),
            ("ANALYZE UPDATE a SET b = 1", Statement::Data),
            ("ANALYZE FORMAT=JSON DELETE FROM a", Statement::Data),
            ("ANALYZE LOCAL TABLE a", Statement::Other),
        ] {
            assert_eq!(Statement::of(sql), kind, "{sql}");
        }
    }

    #[test]
    fn names_in_statements() {
        assert!(mentions("UPDATE `Users` SET a = 1", "users"));
        assert!(mentions("UPDATE users_old, shop.users SET a = 1", "users"));
        assert!(!mentions("UPDATE users_old SET a = 1", "users"));
        assert!(!mentions("UPDATE ausers SET a = 1", "users"));
        assert!(mentions("ALTER TABLE `größe`", "größe"));
        assert!(
            may_mention("ALTER TABLE `gr\u{fffd}\u{fffd}e`", "größe")
                && !may_mention("ALTER TABLE a", "größe")
        );
        assert!(may_mention("ALTER TABLE `a``b`", "a`b") && !may_mention("ALTER TABLE größe", "users"));
    }

    #[test]
    fn names_of_tables_are_those_of_a_database() {
        for (default, sql) in [
            ("shop", "ALTER TABLE users ADD a int"),
            ("shop", "ALTER TABLE `Users` ADD a int"),
            ("shop", "ALTER TABLE .users ADD a int"),
            ("shop", "RENAME TABLE tenant7.users TO users"),
            ("shop", "ALTER TABLE tenant7./* a */users ADD a int"),
            ("shop", "ALTER TABLE tenant7.\n# a\nusers ADD a int"),
            ("tenant7", "ALTER TABLE shop.users ADD a int"),
            ("tenant7", "DROP TABLE IF EXISTS `SHOP` . `users`"),
            ("tenant7", "ALTER TABLE \"shop\".\"users\" ADD a int"),
            ("tenant7", "ALTER TABLE shop.old RENAME users"),
            ("tenant7", "RENAME TABLE users TO users_old, shop.users TO a"),
            ("", "/*!40000 ALTER TABLE shop.users DISABLE KEYS */"),
        ] {
            assert!(may_name(sql, default, "shop", "users"), "{sql}");
        }
        for (default, sql) in [
            ("tenant7", "ALTER TABLE users ADD a int"),
            ("tenant7", "CREATE TABLE `users` (a int)"),
            ("tenant7", "/*!40000 ALTER TABLE users DISABLE KEYS */"),
            ("shop", "ALTER TABLE tenant7.users ADD a int"),
            ("shop", "-- a tool\nDROP TABLE `tenant7` . `users`"),
            ("shop", "CREATE TABLE \"tenant7\".\"users\" (a int)"),
            ("", "DROP TABLE tenant7.users"),
            ("shop", "ALTER TABLE users_old ADD a int"),
        ] {
            assert!(!may_name(sql, default, "shop", "users"), "{sql}");
        }
        assert!(may_name("ALTER TABLE gr\u{fffd}\u{fffd}e ADD a int", "shop", "shop", "größe"));
        assert!(!may_name("ALTER TABLE gr\u{fffd}\u{fffd}e ADD a int", "tenant7", "shop", "größe"));
        assert!(may_name("ALTER TABLE users ADD a int", "BÜD", "büd", "users"));
        assert!(may_name("ALTER TABLE b\u{fffd}d.users ADD a int", "shop", "büd", "users"));
    }
}
