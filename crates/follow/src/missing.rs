//! What a database lacks.

use std::fmt;

/// Something that is missing, and how it is mended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// What is missing.
    pub what: String,
    /// The statement or setting that mends it.
    pub mend: String,
    /// It keeps the stream from beginning at all.
    pub is_fatal: bool,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.mend)
    }
}
