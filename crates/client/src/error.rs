//! Errors.

use std::io;
use std::time::Duration;

/// Why a command failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A key that no server takes.
    #[error("{0}")]
    Key(KeyError),
    /// The connection to a server could not be made or has ended. Whether a command that was sent has been executed is not known.
    #[error("{server}: {kind}: {message}")]
    Connection {
        /// The server's address.
        server: String,
        /// By the system.
        kind: io::ErrorKind,
        /// In words.
        message: String,
    },
    /// No reply within the timeout.
    #[error("{server}: no reply within {limit:?}")]
    Timeout {
        /// The server's address.
        server: String,
        /// The timeout.
        limit: Duration,
    },
    /// The server has failed lately and is not asked before its back-off ends, or no server of the ring is available.
    #[error("{server}: not asked for another {left:?}: {message}")]
    Unavailable {
        /// The server's address.
        server: String,
        /// Until it is asked again.
        left: Duration,
        /// The last failure.
        message: String,
    },
    /// The server refuses the command: its line that begins with `CLIENT_ERROR` or `ERROR`.
    #[error("{server} refuses the command: {line}")]
    Refused {
        /// The server's address.
        server: String,
        /// As sent.
        line: String,
    },
    /// The server cannot do it now: its line that begins with `SERVER_ERROR`.
    #[error("{server} cannot do it: {line}")]
    Server {
        /// The server's address.
        server: String,
        /// As sent.
        line: String,
    },
    /// Bytes that are no reply to what was sent. The connection was closed.
    #[error("{server}: not a reply to the command: {message}")]
    Protocol {
        /// The server's address.
        server: String,
        /// What is wrong.
        message: String,
    },
    /// A value that cannot be read as the type that was asked for, or written.
    #[error("value of {key}: {message}")]
    Value {
        /// The key, as far as it is text.
        key: String,
        /// What is wrong.
        message: String,
    },
    /// The server, or one of them, has no tags.
    #[error("not all servers have tags")]
    NoTags,
    /// The options of a [`Namespacer`](crate::Namespacer) differ from those of other processes with the same prefix.
    #[error("namespaces with the prefix {prefix}: {option} is {here} in this process and {there} in others")]
    SettingsDiffer {
        /// The prefix of the namespaces.
        prefix: String,
        /// The option.
        option: &'static str,
        /// Its value in this process.
        here: String,
        /// Its value in the record that other processes have written.
        there: String,
    },
    /// A call that cannot be made so: what is wrong and what would be right.
    #[error("{0}")]
    Usage(String),
}

/// What is wrong with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// No bytes.
    #[error("a key is empty")]
    Empty,
    /// More than 250 bytes.
    #[error("a key has {0} bytes, at most 250 are possible")]
    Long(usize),
    /// A blank or a control character.
    #[error("a key has the byte {byte:#04x} at {at}: blanks and control characters are not possible")]
    Byte {
        /// The byte.
        byte: u8,
        /// Its place, from 0.
        at: usize,
    },
}
