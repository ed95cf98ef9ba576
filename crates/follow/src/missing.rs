//! Requirements that a database does not meet.

use std::fmt;

/// Something that is missing, and how it is mended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// The requirement.
    pub what: String,
    /// The statement or setting that mends it.
    pub mend: String,
    /// Whether the stream cannot begin without it.
    pub is_fatal: bool,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.mend)
    }
}
