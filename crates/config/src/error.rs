//! Why a command line or a rule file cannot be used.

use std::fmt::Display;
use std::path::Path;

/// A command line that cannot be followed: one line with the option, what is wrong, and the fix; for a rule file
/// a line for each thing that is wrong with it.
///
/// The process leaves with status 2.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(String);

impl UsageError {
    /// With this text: the option or subcommand, what is wrong, and the fix.
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

/// Why a rule file cannot be used: a line for each thing that is wrong, with its place and what would be right.
///
/// The process leaves with status 2.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", lines.join("\n"))]
pub struct ConfigError {
    lines: Vec<String>,
}

impl ConfigError {
    pub(crate) fn new(lines: Vec<String>) -> Self {
        Self { lines }
    }

    /// What is wrong with the file at `path` as a whole.
    pub fn of(path: &Path, problem: impl Display) -> Self {
        Self::one(path, problem)
    }

    /// Of the file at `path`, without a line of it.
    pub(crate) fn one(path: &Path, problem: impl Display) -> Self {
        Self { lines: vec![format!("{}: {problem}", path.display())] }
    }

    /// These lines, if there are any.
    pub(crate) fn unless_none(lines: Vec<String>) -> Result<(), Self> {
        if lines.is_empty() { Ok(()) } else { Err(Self { lines }) }
    }

    /// The lines, at least one.
    pub fn lines(&self) -> &[String] {
        &self.lines
    }
}
