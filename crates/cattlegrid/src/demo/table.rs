//! Tables for the terminal.

use std::fmt::{self, Display};

/// Lines of cells under their heads.
pub(super) struct DemoTable {
    /// The first line is the heads.
    lines: Vec<Vec<String>>,
}

impl DemoTable {
    pub(super) fn new(heads: &[&str]) -> Self {
        Self { lines: vec![heads.iter().map(|head| (*head).to_owned()).collect()] }
    }

    /// Adds lines of as many cells as there are heads.
    pub(super) fn add(&mut self, lines: Vec<Vec<String>>) {
        debug_assert!(lines.iter().all(|line| line.len() == self.lines[0].len()));
        self.lines.extend(lines);
    }
}

impl Display for DemoTable {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
            self.lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default()
        };
        let numbers: usize = (1..self.lines[0].len()).map(|column| width(column) + 2).sum();
        // The first column holds words, the others numbers. Words that leave no room for these have a line of
        // their own.
        let fits = width(0) + numbers <= WIDTH;
        for line in &self.lines {
            match (&line[0], width(0)) {
                (words, width) if fits => write!(out, "{words:<width$}")?,
                (words, _) => writeln!(out, "{words}")?,
            }
            for (column, cell) in line.iter().enumerate().skip(1) {
                let width = width(column);
                write!(out, "  {cell:>width$}")?;
            }
            writeln!(out)?;
        }
        Ok(())
    }
}

/// A sentence in lines that fit a terminal.
pub(super) fn wrapped(text: &str) -> String {
    let mut lines = String::new();
    let mut column = 0;
    for word in text.split(' ') {
        let width = word.chars().count();
        if column > 0 && column + 1 + width > WIDTH {
            lines.push('\n');
            column = 0;
        } else if column > 0 {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(word);
        column += width;
    }
    lines
}

/// Columns of a terminal.
const WIDTH: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_to_the_left_numbers_to_the_right() {
        let mut table = DemoTable::new(&["scene", "n"]);
        table.add(vec![vec!["a".to_owned(), "100".to_owned()]]);
        assert_eq!(table.to_string(), "scene    n\na      100\n");
    }
    #[test]
    fn what_is_too_wide_is_folded() {
        let mut table = DemoTable::new(&["a scene with many words", "n", "m"]);
        let words = "w".repeat(70);
        table.add(vec![vec![words.clone(), "100".to_owned(), "2,000,000".to_owned()]]);
        let text = table.to_string();
        assert_eq!(text, format!("a scene with many words\n    n          m\n{words}\n  100  2,000,000\n"));
        let long = wrapped(&"word ".repeat(40));
        assert!(long.lines().count() == 3 && long.lines().all(|line| line.len() <= 80), "{long}");
        assert_eq!(wrapped("short"), "short");
    }
}
