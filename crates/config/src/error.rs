//! Errors of command lines and rule files.

use std::fmt::Display;
use std::path::Path;

/// A mistake in a command line: one line with the option, the mistake, and the fix. For a rule file, a line
/// for each mistake.
///
/// The process exits with status 2.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(String);

impl UsageError {
    /// An error with this text: the option or subcommand, the mistake, and the fix.
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

/// Why a rule file cannot be used: a line for each mistake, with its place and the correct form.
///
/// The process exits with status 2.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", lines.join("\n"))]
pub struct ConfigError {
    lines: Vec<String>,
}

impl ConfigError {
    pub(crate) fn new(lines: Vec<String>) -> Self {
        Self { lines }
    }

    /// The error of a server with the file at `path`: its lines that do not name the file are about it as a
    /// whole.
    pub fn of(path: &Path, problem: impl Display) -> Self {
        let place = format!("{}:", path.display());
        let problem = problem.to_string();
        let line = |line: &str| {
            if line.starts_with(&place) { line.to_owned() } else { format!("{place} {line}") }
        };
        Self { lines: problem.lines().map(line).collect() }
    }

    /// An error of the file at `path`, without a line number.
    pub(crate) fn one(path: &Path, problem: impl Display) -> Self {
        Self { lines: vec![format!("{}: {problem}", path.display())] }
    }

    /// Returns these lines as an error, if there are any.
    pub(crate) fn if_any(lines: Vec<String>) -> Result<(), Self> {
        if lines.is_empty() { Ok(()) } else { Err(Self { lines }) }
    }

    /// The lines, at least one.
    pub fn lines(&self) -> &[String] {
        &self.lines
    }
}
