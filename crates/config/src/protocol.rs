//! `-B`: the protocols that connections may use, and the effect of `-S` and `-Y` on them.
//!
//! Text clients log in under `-Y`, binary clients under `-S`. A protocol whose clients cannot log in is not
//! accepted, since no command may be executed before a login.

use crate::error::UsageError;

/// The protocols that connections may use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Protocol {
    /// All; the first byte of a connection tells which.
    #[default]
    Auto,
    /// The text protocol, with meta commands.
    Ascii,
    /// The binary protocol.
    Binary,
}

impl Protocol {
    /// The protocol for a value of `-B`, one of [`NAMES`].
    pub(crate) fn of_name(name: &str) -> Self {
        match name {
            "ascii" => Self::Ascii,
            "binary" => Self::Binary,
            _ => Self::Auto,
        }
    }

    /// The name in `stats settings`.
    pub fn stat(self) -> &'static str {
        match self {
            Self::Auto => "auto-negotiate",
            Self::Ascii => "ascii",
            Self::Binary => "binary",
        }
    }

    /// The protocol for the value `given` of `-B`, under `-Y` if `auth_text`, and under `-S` if
    /// `auth_binary`.
    ///
    /// # Errors
    /// No protocol is left.
    pub(crate) fn in_force(
        given: Option<Self>,
        auth_text: bool,
        auth_binary: bool,
    ) -> Result<Self, UsageError> {
        let (protocol, problem) = match (auth_text, auth_binary) {
            (false, false) => return Ok(given.unwrap_or_default()),
            (true, false) => (
                Self::Ascii,
                "-B: under -Y alone only text clients can log in; leave -B out, or add -S so that binary clients log in \
                 by SASL",
            ),
            (false, true) => (
                Self::Binary,
                "-B: under -S alone only binary clients can log in; leave -B out, or add -Y <file> so that text clients \
                 log in too",
            ),
            (true, true) => {
                (Self::Auto, "-B: under -S with -Y both text and binary clients log in; leave -B out")
            }
        };
        match given {
            Some(given) if given != protocol => Err(UsageError::new(problem)),
            _ => Ok(protocol),
        }
    }
}

/// The values of `-B`.
pub(crate) const NAMES: &[&str] = &["auto", "ascii", "binary"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_is_taken_or_refused() {
        use Protocol::{Ascii, Auto, Binary};
        for (auth_text, auth_binary, alone, taken) in [
            (false, false, Auto, &[Auto, Ascii, Binary][..]),
            (true, false, Ascii, &[Ascii]),
            (false, true, Binary, &[Binary]),
            (true, true, Auto, &[Auto]),
        ] {
            assert_eq!(Protocol::in_force(None, auth_text, auth_binary), Ok(alone));
            for given in [Auto, Ascii, Binary] {
                let in_force = Protocol::in_force(Some(given), auth_text, auth_binary);
                assert_eq!(in_force.is_ok(), taken.contains(&given), "{given:?} {auth_text} {auth_binary}");
                assert!(in_force.is_err() || in_force == Ok(given));
            }
        }
    }

    #[test]
    fn every_name_has_its_protocol() {
        assert_eq!(
            NAMES.iter().map(|name| Protocol::of_name(name).stat()).collect::<Vec<_>>(),
            ["auto-negotiate", "ascii", "binary"]
        );
    }
}
