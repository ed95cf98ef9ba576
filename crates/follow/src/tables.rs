//! Tables that are followed, and the templates of the tags that their rows bump, such as `user:{user_id}`.

use std::fmt;

/// A table that is followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// The table's schema; `public` if the setting has none.
    pub schema: String,
    /// The table's name.
    pub name: String,
    /// Templates of the tags that each changed row bumps.
    pub bump: Vec<Template>,
    /// An update bumps only if one of these changed; `None`: any column.
    pub columns: Option<Vec<String>>,
    /// Tags that TRUNCATE bumps; empty: everything is invalidated.
    pub truncate: Vec<String>,
    /// A number of the caller's, given with each of its names.
    pub scope: u8,
    /// How rows are treated that a foreign key changes, and that are in no log: MySQL and MariaDB.
    pub cascade: Cascade,
}

/// How rows of a table are treated that a foreign key changes, and that are in no log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cascade {
    /// A table with such a key is not followed.
    #[default]
    Refused,
    /// A change of the other table's row that may change rows of this one bumps everything.
    Flush,
    /// The tags of the other table's row are enough.
    Parent,
}

impl Cascade {
    /// All that can be named, by the names that a rule file has.
    pub const NAMES: [&'static str; 2] = ["flush", "parent"];

    /// By its name in a rule file.
    pub fn named(name: &str) -> Self {
        if name == "flush" { Self::Flush } else { Self::Parent }
    }

    /// The variant's name in a rule file.
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::Refused => None,
            Self::Flush => Some("flush"),
            Self::Parent => Some("parent"),
        }
    }
}

/// A tag with columns of a row in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    text: String,
    pub(crate) parts: Vec<TemplatePiece>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TemplatePiece {
    Text(String),
    Column(String),
}

/// The reason why a template or a table's name is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// A brace without its counterpart, or a column without a name.
    #[error("`{0}`: a column is written `{{name}}`, for example `user:{{user_id}}`")]
    Template(String),
    /// Neither `table` nor `schema.table`.
    #[error("`{0}` is no table: write `schema.table`, for example `public.users`")]
    Name(String),
}

impl Template {
    /// Reads `user:{user_id}`.
    ///
    /// # Errors
    /// A brace without its counterpart, or a column without a name.
    pub fn parse(text: &str) -> Result<Self, TableError> {
        let refuse = || Err(TableError::Template(text.to_owned()));
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some(at) = rest.find(['{', '}']) {
            let (before, from) = rest.split_at(at);
            let Some(end) = from.find('}') else { return refuse() };
            let column = from.get(1..end).unwrap_or_default();
            if column.is_empty() || column.contains('{') {
                return refuse();
            }
            if !before.is_empty() {
                parts.push(TemplatePiece::Text(before.to_owned()));
            }
            parts.push(TemplatePiece::Column(column.to_owned()));
            rest = &from[end + 1..];
        }
        if !rest.is_empty() {
            parts.push(TemplatePiece::Text(rest.to_owned()));
        }
        if parts.is_empty() { refuse() } else { Ok(Self { text: text.to_owned(), parts }) }
    }

    /// The template as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The columns in it.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            TemplatePiece::Column(name) => Some(name.as_str()),
            TemplatePiece::Text(_) => None,
        })
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Table {
    /// A table by its name, which bumps nothing yet. Letters count as they are written, capitals too; a part
    /// in double quotes may have any character, with a double quote written twice.
    ///
    /// # Errors
    /// More than one dot outside of quotes, or an empty part.
    pub fn named(name: &str) -> Result<Self, TableError> {
        Self::named_in(name, "public")
    }

    /// The same, in this schema if the name has none.
    ///
    /// # Errors
    /// As of [`Table::named`].
    pub fn named_in(name: &str, schema: &str) -> Result<Self, TableError> {
        let refuse = || TableError::Name(name.to_owned());
        let (first, rest) = part(name).ok_or_else(refuse)?;
        let (schema, table) = match rest.strip_prefix('.') {
            Some(rest) => (first, part(rest).filter(|(_, rest)| rest.is_empty()).ok_or_else(refuse)?.0),
            None if rest.is_empty() => (schema.to_owned(), first),
            None => return Err(refuse()),
        };
        Ok(Self::of(&schema, &table))
    }

    /// A table of a schema, which bumps nothing yet.
    pub fn of(schema: &str, name: &str) -> Self {
        Self {
            schema: schema.to_owned(),
            name: name.to_owned(),
            bump: Vec::new(),
            columns: None,
            truncate: Vec::new(),
            scope: 0,
            cascade: Cascade::default(),
        }
    }

    /// `schema.table`, as [`Table::named`] reads it.
    pub fn full_name(&self) -> String {
        let shown = |part: &str| {
            if part.contains(['.', '"']) {
                format!("\"{}\"", part.replace('"', "\"\""))
            } else {
                part.to_owned()
            }
        };
        format!("{}.{}", shown(&self.schema), shown(&self.name))
    }
}

/// The first part of a name, and what follows it.
fn part(text: &str) -> Option<(String, &str)> {
    let Some(mut rest) = text.strip_prefix('"') else {
        let (part, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
        return (!part.is_empty() && !part.contains('"')).then(|| (part.to_owned(), rest));
    };
    let mut part = String::new();
    loop {
        let (before, after) = rest.split_once('"')?;
        part.push_str(before);
        match after.strip_prefix('"') {
            Some(after) => {
                part.push('"');
                rest = after;
            }
            None => return (!part.is_empty()).then_some((part, after)),
        }
    }
}

/// Counts of parts of rows that were left out of tags.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct LeftOut {
    /// A column was NULL, or too long to be sent.
    pub null: u64,
    /// The tag has more than 1,000 bytes.
    pub long: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_and_names() {
        for text in ["", "user:{", "user:}", "user:{}", "user:{{id}}", "a}b{"] {
            assert!(Template::parse(text).is_err(), "{text}");
        }
        assert_eq!(Template::parse("{a}:{b}x").unwrap().columns().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(Template::parse("prices").unwrap().columns().count(), 0);
        for name in ["", ".users", "public.", "a.b.c", "\"\"", "\"a", "\"a\"b", "a\"b", "\"a\".b.c", "a.\"\""]
        {
            assert!(Table::named(name).is_err(), "{name}");
        }
        assert_eq!(Table::named("users").unwrap().schema, "public");
        for (text, schema, name, again) in [
            ("Users", "public", "Users", "public.Users"),
            ("\"App\".\"a.b\"", "App", "a.b", "App.\"a.b\""),
            ("s.\"a\"\"b\"", "s", "a\"b", "s.\"a\"\"b\""),
        ] {
            let table = Table::named(text).unwrap();
            assert_eq!((table.schema.as_str(), table.name.as_str()), (schema, name));
            assert_eq!(table.full_name(), again);
            assert_eq!(Table::named(again), Ok(table));
        }
    }
}
