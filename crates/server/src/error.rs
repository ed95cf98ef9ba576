//! Errors that end the server.

use cattlegrid_config::{ConfigError, UsageError};
use cattlegrid_loader::StartError;

use crate::auth::AuthError;
use crate::listen::ListenError;
use crate::sys::SysError;
use crate::tls::TlsError;

/// Why the server did not start, or had to stop.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The file of users is missing or cannot be used.
    #[error(transparent)]
    Auth(#[from] AuthError),
    /// The rule file cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The rule file and the options contradict each other.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// A certificate, key or `ssl_*` option cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A socket cannot be opened.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A loader did not become ready.
    #[error(transparent)]
    Loader(#[from] StartError),
    /// The system refused a limit, a change of user, or to run in the background.
    #[error(transparent)]
    Sys(#[from] SysError),
    /// The admin address lacks its required protection.
    #[error("{0}")]
    Admin(String),
    /// Users' own types of objects cannot replace the ones in force.
    #[error("{0}")]
    Objects(String),
    /// A system call failed unexpectedly.
    #[error("{what}: {error}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// The error of the call.
        error: std::io::Error,
    },
}

impl ServeError {
    /// The exit status: 2 if the command line or a file that it names is at fault, otherwise 1.
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Admin(_)
            | Self::Auth(_)
            | Self::Config(_)
            | Self::Objects(_)
            | Self::Tls(_)
            | Self::Usage(_) => 2,
            Self::Listen(_) | Self::Loader(_) | Self::Sys(_) | Self::Io { .. } => 1,
        }
    }
}
