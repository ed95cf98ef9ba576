//! Errors.
//!
//! Texts have no numbers that differ from one failure to the next, so that logs can group them: those are
//! fields. Those of [`Error::Usage`] say what the program has passed.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Why a command failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A key that no server takes.
    #[error("{0}")]
    Key(#[source] KeyError),
    /// The connection to a server could not be made or has ended. Whether a command that was sent has been
    /// executed is not known.
    #[error("{server}: {kind}: {message}")]
    Connection {
        /// The server's address.
        server: String,
        /// By the system.
        kind: io::ErrorKind,
        /// In words.
        message: String,
        /// The error of the system or of TLS, if there is one.
        source: Option<Cause>,
    },
    /// No reply within the timeout.
    #[error("{server}: no reply within {limit:?}")]
    Timeout {
        /// The server's address.
        server: String,
        /// The timeout.
        limit: Duration,
    },
    /// The server has failed lately and is not asked before its back-off ends, or no server of the ring is
    /// available.
    #[error("{server}: not asked before its back-off ends: {message}")]
    Unavailable {
        /// The server's address.
        server: String,
        /// Until it is asked again.
        left: Duration,
        /// The last failure.
        message: String,
        /// The same as an error, if a server has failed.
        source: Option<Cause>,
    },
    /// The server refuses the command: its line that begins with `CLIENT_ERROR` or `ERROR`. A server or proxy
    /// without meta commands answers `ERROR` to all that are written with
    /// [`Protocol::Meta`](crate::Protocol::Meta).
    #[error("{server} refuses the command: {line}{}", without_meta(line))]
    Refused {
        /// The server's address.
        server: String,
        /// The server's line as it was sent.
        line: String,
    },
    /// The server cannot do it now: its line that begins with `SERVER_ERROR`.
    #[error("{server} cannot do it: {line}")]
    Server {
        /// The server's address.
        server: String,
        /// The server's line as it was sent.
        line: String,
    },
    /// Bytes that are no reply to what was sent. The connection was closed.
    #[error("{server}: not a reply to the command: {message}")]
    Protocol {
        /// The server's address.
        server: String,
        /// The rule of the protocol that the reply breaks.
        message: String,
    },
    /// A value that cannot be read as the type that was asked for, or written.
    #[error("value of {key}: {message}")]
    Value {
        /// The key, as far as it is text.
        key: String,
        /// Why the value cannot be read or written.
        message: String,
    },
    /// The server, or one of them, has no tags: it is memcached, or Cattlegrid without a rule file (which may
    /// be empty), or the client was built with [`Protocol::Text`](crate::Protocol::Text).
    #[error(
        "not all servers have tags: they need Cattlegrid with a rule file, and a client with Protocol::Meta"
    )]
    NoTags,
    /// The options of a [`Namespacer`](crate::Namespacer) differ from those of other processes with the same
    /// prefix.
    #[error("namespaces with the prefix {prefix}: {option} is {here} in this process and {there} in others")]
    SettingsDiffer {
        /// The prefix of the namespaces.
        prefix: String,
        /// The option.
        option: &'static str,
        /// The option's value in this process.
        here: String,
        /// The option's value in the record that other processes have written.
        there: String,
    },
    /// A call that cannot be made so: what is wrong and what would be right.
    #[error("{0}")]
    Usage(String),
}

/// The reason why bytes are no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// No bytes.
    #[error("a key is empty")]
    Empty,
    /// More than 250 bytes.
    #[error("a key is longer than 250 bytes")]
    Long(usize),
    /// A blank or a control character.
    #[error("a key has a blank or a control character")]
    Byte {
        /// The byte.
        byte: u8,
        /// The byte's place in the key, from 0.
        at: usize,
    },
}

/// The advice for the user of a server or proxy without meta commands.
fn without_meta(line: &str) -> &'static str {
    if line == "ERROR" {
        " (it does not know this command; a server or proxy without meta commands needs `.protocol(Protocol::Text)`)"
    } else {
        ""
    }
}

/// The error behind an [`Error`]. Two are equal if their texts are.
#[derive(Clone)]
pub struct Cause(Arc<dyn StdError + Send + Sync>);

impl Cause {
    /// This error.
    pub fn new(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self(error.into().into())
    }
}

impl std::ops::Deref for Cause {
    type Target = dyn StdError + Send + Sync;

    /// The error: to downcast it, or for the rest of its chain.
    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl PartialEq for Cause {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_string() == other.0.to_string()
    }
}

impl Eq for Cause {}

impl fmt::Debug for Cause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}
