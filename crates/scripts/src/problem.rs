//! What is wrong with a source, and where.

use std::fmt;
use std::path::PathBuf;

/// What is wrong with a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1; None: the file as a whole.
    pub line: Option<usize>,
    /// Whether the sources can be used.
    pub severity: Severity,
    /// What is wrong, and how to mend it.
    pub text: String,
}

/// Whether sources with a problem can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// They can.
    Warning,
    /// They cannot.
    Error,
}

impl fmt::Display for Problem {
    /// `FILE:LINE: TEXT`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
        }
        write!(f, " {}", self.text)
    }
}
