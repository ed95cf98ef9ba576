//! The protection of the admin address: the bearer token, and TLS beyond loopback. A reload reads both again.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use arc_swap::ArcSwap;
use cattlegrid_config::{Settings, read_file};
use rustls::ServerConfig;
use subtle::ConstantTimeEq as _;

use crate::error::ServeError;
use crate::log;
use crate::sys::reason;
use crate::tls::{TlsAcceptor, TlsError};

/// The longest token, in bytes.
const TOKEN_MAX: usize = 4096;
/// A token shorter than this many bytes causes a warning.
const TOKEN_SHORT: usize = 16;

/// The token and the TLS configuration; both are None without `--admin`.
#[derive(Debug, Default)]
pub(crate) struct Secrets {
    token: Option<TokenFile>,
    tls: Option<TlsAcceptor>,
    /// The number of replacements.
    generation: AtomicU64,
}

#[derive(Debug)]
struct TokenFile {
    path: PathBuf,
    text: ArcSwap<Vec<u8>>,
}

/// Secrets that a reload has read.
#[derive(Debug, Default)]
pub(crate) struct NewSecrets {
    token: Option<Vec<u8>>,
    tls: Option<Arc<ServerConfig>>,
}

impl Secrets {
    /// Reads the files that the settings name.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(crate) fn new(settings: &Settings) -> Result<Self, ServeError> {
        if settings.admin.is_none() {
            return Ok(Self::default());
        }
        let token = settings.admin_token.as_ref().map(|path| {
            let text = read_token(path)?;
            if text.len() < TOKEN_SHORT {
                log::warning(format_args!(
                    "--admin-token {}: a token of {} bytes can be guessed; take 32 random ones",
                    path.display(),
                    text.len()
                ));
            }
            Ok::<_, ServeError>(TokenFile { path: path.clone(), text: ArcSwap::from_pointee(text) })
        });
        let tls = settings.admin_tls.as_ref().map(TlsAcceptor::new).transpose()?;
        Ok(Self { token: token.transpose()?, tls, generation: AtomicU64::new(0) })
    }

    /// Missing options that are required beyond loopback.
    pub(super) fn missing_options(&self) -> Vec<&'static str> {
        let token = self.token.is_none().then_some("--admin-token <file>");
        let tls = self
            .tls
            .is_none()
            .then_some("-o ssl_chain_cert=<file> (with ssl_key if the key is in another file)");
        token.into_iter().chain(tls).collect()
    }

    /// Whether readers must send a token.
    pub(super) fn wants_token(&self) -> bool {
        self.token.is_some()
    }

    /// Whether `given` is the token. The time does not depend on how much of a guess is right.
    pub(super) fn is_token(&self, given: &[u8]) -> bool {
        self.token.as_ref().is_some_and(|token| token.text.load().ct_eq(given).into())
    }

    /// The TLS configuration of new connections.
    pub(super) fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.tls.as_ref().map(TlsAcceptor::config)
    }

    /// A number that changes with each [`Secrets::replace`]. Readers must then show the token again.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Relaxed)
    }

    /// Reads the files again, for [`Secrets::replace`].
    ///
    /// # Errors
    /// A file cannot be used.
    pub(crate) fn read_again(&self) -> Result<NewSecrets, ServeError> {
        let token = self.token.as_ref().map(|token| read_token(&token.path)).transpose()?;
        let tls =
            self.tls.as_ref().map(TlsAcceptor::read_again).transpose().map_err(|error: TlsError| error)?;
        Ok(NewSecrets { token, tls })
    }

    /// Replaces the secrets.
    pub(crate) fn replace(&self, newer: NewSecrets) {
        if let (Some(token), Some(text)) = (&self.token, newer.token) {
            token.text.store(Arc::new(text));
        }
        if let (Some(tls), Some(config)) = (&self.tls, newer.tls) {
            tls.replace(config);
        }
        self.generation.fetch_add(1, Relaxed);
    }
}

/// The first line of the file.
///
/// # Errors
/// The file cannot be read, or the line cannot be a token.
fn read_token(path: &Path) -> Result<Vec<u8>, ServeError> {
    let refuse = |why: String| ServeError::Admin(format!("--admin-token {}: {why}", path.display()));
    let bytes = read_file(path).map_err(|error| refuse(format!("cannot be read: {}", reason(&error))))?;
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii();
    if line.is_empty() {
        return Err(refuse("its first line is empty; it must be the token".to_owned()));
    }
    if line.len() > TOKEN_MAX {
        return Err(refuse(format!("its first line is longer than {TOKEN_MAX} bytes")));
    }
    if !line.iter().all(u8::is_ascii_graphic) {
        return Err(refuse("a token has printable characters of ASCII only, and no blanks".to_owned()));
    }
    Ok(line.to_vec())
}
