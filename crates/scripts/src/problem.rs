//! Problems in sources.

use std::fmt;
use std::path::PathBuf;

/// A problem in a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1; None: the problem concerns the whole file.
    pub line: Option<usize>,
    /// Whether the sources can be used.
    pub severity: Severity,
    /// The mistake, and its correction.
    pub text: String,
}

/// Whether sources with a problem can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// They can be used.
    Warning,
    /// They cannot be used.
    Error,
}

impl fmt::Display for Problem {
    /// The form is `FILE:LINE: TEXT`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
        }
        write!(f, " {}", self.text)
    }
}
