//! A job that has ended, on its way to the thread that stores its result.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use cattlegrid_engine::{Load, LoadEnd, LoadFailure, LoadOutcome};

use crate::answer::LoaderAnswer;
use crate::counts::BytesInTransit;
use crate::program::LoaderProgram;

/// The end of a job. Its result counts as in transit until this is dropped.
#[derive(Debug)]
pub struct Finished {
    /// The load as it was ordered, without the old value.
    pub(crate) load: Load,
    pub(crate) result: Result<LoaderAnswer, Failure>,
    /// The loader; None: there is no loader of this name.
    pub(crate) program: Option<Arc<LoaderProgram>>,
    pub(crate) _room: Option<BytesInTransit>,
}

/// The reason why there is no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) text: String,
    pub(crate) cause: LoadFailure,
}

impl Finished {
    /// The load as it was ordered.
    pub fn load(&self) -> &Load {
        &self.load
    }

    /// Passes the result, in the form that the engine takes, to `use_it`.
    pub fn with_end<R>(&self, use_it: impl FnOnce(&LoadEnd<'_>) -> R) -> R {
        match &self.result {
            Ok(answer) => answer.with_end(use_it),
            Err(Failure { text, cause }) => {
                let text = encoded(text);
                use_it(&LoadEnd::Failed { text: text.as_bytes(), cause: *cause })
            }
        }
    }

    /// Counts the outcome of storing the result.
    pub fn landed(self, landed: LoadOutcome) {
        let Some(program) = &self.program else { return };
        let counts = program.counts();
        match landed {
            LoadOutcome::Stored | LoadOutcome::Failed => {}
            LoadOutcome::Late => _ = counts.late.fetch_add(1, Relaxed),
            LoadOutcome::NoRoom | LoadOutcome::TooLarge | LoadOutcome::TooManyTags => {
                counts.not_stored.fetch_add(1, Relaxed);
                let why = match landed {
                    LoadOutcome::NoRoom => "there is no memory for the value",
                    LoadOutcome::TooLarge => "the value, with its key, is larger than -I allows",
                    _ => "the value and its rule have more tags together than an item may have (8)",
                };
                program.report_job(&self.load, why, "");
            }
        }
    }
}

/// The text for clients: percent-encoded, so that it has neither blanks nor line ends, and cut to
/// [`TEXT_BYTES_MAX`].
fn encoded(text: &str) -> String {
    let mut out = String::new();
    for char in text.chars() {
        let before = out.len();
        let mut bytes = [0; 4];
        for byte in char.encode_utf8(&mut bytes).bytes() {
            if byte.is_ascii_graphic() && !matches!(byte, b'%' | b',') {
                out.push(byte as char);
            } else {
                // Writing to a string cannot fail.
                let _ok = write!(out, "%{byte:02X}");
            }
        }
        if out.len() > TEXT_BYTES_MAX {
            out.truncate(before);
            break;
        }
    }
    out
}

/// Most bytes of a text for clients; the same as of a text from clients.
pub(crate) const TEXT_BYTES_MAX: usize = 500;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_for_clients_have_no_blanks_and_are_cut() {
        assert_eq!(encoded("no luck: 5 %,\r\nSTORED \u{fc}"), "no%20luck:%205%20%25%2C%0D%0ASTORED%20%C3%BC");
        assert_eq!(encoded(&"x".repeat(500)).len(), 500);
        assert_eq!(encoded(&"x".repeat(501)).len(), 500);
        // A character is never cut in the middle.
        assert_eq!(encoded(&"\u{fc}".repeat(500)), "%C3%BC".repeat(83));
    }
}
