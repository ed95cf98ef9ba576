//! The lines of a rule file's tables and keys, for `check --key`.

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};

/// The lines of a rule file's rules and loaders.
#[derive(Debug, Clone, Default)]
pub(crate) struct TableLocations {
    /// The rules, by their position in the file.
    rules: Vec<TableLines>,
    /// The loaders, by name.
    loaders: BTreeMap<String, TableLines>,
}

/// The lines of a table, from 1.
#[derive(Debug, Clone, Default)]
pub(crate) struct TableLines {
    /// The line at which the table begins.
    pub(crate) table: usize,
    keys: BTreeMap<String, usize>,
}

impl TableLocations {
    /// Finds the lines of the tables `[[rule]]` and `[loader]` in `text`.
    pub(crate) fn of(rules: &[(usize, &DeTable<'_>)], loaders: Option<&DeValue<'_>>, text: &str) -> Self {
        let ends: Vec<usize> = memchr::memchr_iter(b'\n', text.as_bytes()).collect();
        let line = |offset: usize| ends.partition_point(|end| *end < offset) + 1;
        let lines = |offset: usize, table: &DeTable<'_>| TableLines {
            table: line(offset),
            keys: table.keys().map(|key| (key.get_ref().to_string(), line(key.span().start))).collect(),
        };
        let loaders = match loaders {
            Some(DeValue::Table(all)) => Some(all),
            _ => None,
        };
        let each = loaders.into_iter().flat_map(|all| all.iter()).filter_map(|(name, value)| {
            let DeValue::Table(table) = value.get_ref() else { return None };
            Some((name.get_ref().to_string(), lines(name.span().start, table)))
        });
        Self {
            rules: rules.iter().map(|(offset, table)| lines(*offset, table)).collect(),
            loaders: each.collect(),
        }
    }

    /// The lines of the rule with this number.
    pub(crate) fn rule(&self, number: u32) -> Option<&TableLines> {
        self.rules.get(number as usize - 1)
    }

    pub(crate) fn loader(&self, name: &str) -> Option<&TableLines> {
        self.loaders.get(name)
    }
}

impl TableLines {
    /// The line of a key; None: the table does not have it.
    pub(crate) fn of_key(&self, name: &str) -> Option<usize> {
        self.keys.get(name).copied()
    }
}
