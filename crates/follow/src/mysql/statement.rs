//! What a statement in the log is. Nothing of it is understood but how it begins, and whether it has a name in it.

/// A kind of statement.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Statement<'a> {
    Begin,
    Commit,
    Rollback,
    /// Of a transaction with an `XID` of the client's.
    XaStart,
    XaCommit(&'a str),
    XaRollback(&'a str),
    /// A database, if one is named, and a table.
    Truncate(Option<String>, String),
    /// It changes rows, which are not in the log.
    Data,
    /// It changes a table or a database.
    Definition,
    /// It changes no row.
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

/// What is created, changed or dropped besides tables.
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
        let mut words = Words(sql);
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
                // `OR REPLACE`, `ALGORITHM = …`, `DEFINER = …` of views and routines, `ONLINE` and `IGNORE` of tables.
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

/// What follows the word FOR, outside of quotes.
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
struct Words<'a>(&'a str);

impl<'a> Iterator for Words<'a> {
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

/// Whether the statement may have this name in it: it is in the client's character set, and quotes in names are doubled there.
pub(crate) fn may_mention(sql: &str, name: &str) -> bool {
    mentions(sql, name) || may_be_written_otherwise(sql, name)
}

/// Whether the statement may have the name in it in another way than it is written.
pub(crate) fn may_be_written_otherwise(sql: &str, name: &str) -> bool {
    !name.is_ascii() && !sql.is_ascii() || name.contains(['`', '"'])
}

/// Whether the statement has this name in it, in letters of any size, and not as a part of another name.
fn mentions(sql: &str, name: &str) -> bool {
    let (sql, name) = (sql.to_lowercase(), name.to_lowercase());
    let mut from = 0;
    while let Some(at) = sql[from..].find(&name) {
        let (begin, end) = (from + at, from + at + name.len());
        let is_whole = !sql[..begin].ends_with(is_of_name) && !sql[end..].starts_with(is_of_name);
        if is_whole {
            return true;
        }
        from = begin + sql[begin..].chars().next().map_or(1, char::len_utf8);
    }
    false
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
}
