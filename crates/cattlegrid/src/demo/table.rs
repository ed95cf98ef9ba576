//! Tables for the terminal.

use std::fmt::{self, Display};

/// Lines of cells under their heads.
pub(super) struct Table {
    /// The first line is the heads.
    lines: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(heads: &[&str]) -> Self {
        Self { lines: vec![heads.iter().map(|head| (*head).to_owned()).collect()] }
    }

    /// Adds lines of as many cells as there are heads.
    pub(super) fn add(&mut self, lines: Vec<Vec<String>>) {
        debug_assert!(lines.iter().all(|line| line.len() == self.lines[0].len()));
        self.lines.extend(lines);
    }
}

impl Display for Table {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width =
            |column: usize| self.lines.iter().map(|line| line[column].len()).max().unwrap_or_default();
        for line in &self.lines {
            for (column, cell) in line.iter().enumerate() {
                let width = width(column);
                // The first column holds words, the others numbers.
                if column == 0 {
                    write!(out, "{cell:<width$}")?;
                } else {
                    write!(out, "  {cell:>width$}")?;
                }
            }
            writeln!(out)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_to_the_left_numbers_to_the_right() {
        let mut table = Table::new(&["scene", "n"]);
        table.add(vec![vec!["a".to_owned(), "100".to_owned()]]);
        assert_eq!(table.to_string(), "scene    n\na      100\n");
    }
}
