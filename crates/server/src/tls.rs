//! TLS: the configuration of `-Z` and the `ssl_*` options, replaceable while the server runs.
//!
//! A connection keeps the configuration with which it began; a reload applies to later connections. Sessions
//! are resumed by tickets, which the client keeps and whose keys belong to a configuration: after a reload
//! each handshake is a full one.

use std::io;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use cattlegrid_config::read_file;
use cattlegrid_config::{KeyFormat, TlsSettings, TlsVersion, VerifyMode};
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, UnbufferedServerConnection, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig, SupportedCipherSuite, SupportedProtocolVersion};

use crate::sys::reason;

mod certificate;
mod clients;
mod der;
mod keys;
mod served;
mod session;

use certificate::Certificate;
use clients::ClientVerifier;
use keys::{ENCRYPTED, is_encrypted, problem_of_key, problem_of_pem};

pub use served::{AnyCertificate, served};
pub(crate) use session::TlsSession;

/// The message of a certificate, key or option that cannot be used: which and why.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TlsError(String);

/// Makes TLS connections; shared by all threads.
#[derive(Debug)]
pub struct TlsAcceptor {
    settings: TlsSettings,
    config: ArcSwap<ServerConfig>,
}

impl TlsAcceptor {
    /// Reads certificates and key.
    ///
    /// # Errors
    /// A file or an option cannot be used.
    pub fn new(settings: &TlsSettings) -> Result<Self, TlsError> {
        let config = ArcSwap::new(read(settings)?);
        Ok(Self { settings: settings.clone(), config })
    }

    /// The server's side of a new connection, under the latest configuration.
    ///
    /// # Errors
    /// The configuration does not allow a connection.
    pub fn new_connection(&self) -> Result<UnbufferedServerConnection, rustls::Error> {
        UnbufferedServerConnection::new(self.config.load_full())
    }

    /// The latest configuration.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.config.load_full()
    }

    /// Reads certificates and key again, for [`TlsAcceptor::replace`].
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn read_again(&self) -> Result<Arc<ServerConfig>, TlsError> {
        read(&self.settings)
    }

    /// Uses this configuration for new connections.
    pub fn replace(&self, config: Arc<ServerConfig>) {
        self.config.store(config);
    }

    /// Reads certificates and key again and uses them.
    ///
    /// # Errors
    /// A file cannot be used; the old ones stay.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.read_again().map(|config| self.replace(config))
    }
}

/// The validity of a certificate, and whether it has names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// The first valid second, as Unix time.
    pub from: i64,
    /// The last valid second, as Unix time.
    pub until: i64,
    /// Whether the certificate has alternative names (hosts, addresses), by which clients recognise its
    /// server.
    pub has_names: bool,
}

/// The validities of the certificates in the file `path` of the option `option`, in their order. Certificates
/// other than X.509 are left out.
///
/// # Errors
/// The file cannot be read, or has no certificate.
pub fn validities(option: &str, path: &Path) -> Result<Vec<Validity>, TlsError> {
    let all = certificates(option, path)?;
    Ok(all.iter().filter_map(|der| Validity::of(der)).collect())
}

impl Validity {
    /// The validity of a certificate in DER; None: `der` is not a certificate.
    pub fn of(der: &[u8]) -> Option<Self> {
        let certificate = Certificate::read(der)?;
        let (from, until) = certificate.valid;
        Some(Self { from, until, has_names: certificate.has_names() })
    }
}

/// Whether the first certificate in the file of `ssl_chain_cert` is `der`.
///
/// # Errors
/// The file cannot be read, or has no certificate.
pub fn is_first_of(path: &Path, der: &[u8]) -> Result<bool, TlsError> {
    Ok(certificates("ssl_chain_cert", path)?.first().is_some_and(|first| first.as_ref() == der))
}

fn read(settings: &TlsSettings) -> Result<Arc<ServerConfig>, TlsError> {
    let mut provider = ring::default_provider();
    if let Some(list) = &settings.ciphers {
        provider.cipher_suites = choose_suites(list)?;
    }
    let provider = Arc::new(provider);
    let versions: &[&SupportedProtocolVersion] = match settings.min_version {
        TlsVersion::Tls12 => &[&TLS13, &TLS12],
        TlsVersion::Tls13 => &[&TLS13],
    };
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .map_err(|error| TlsError(format!("-o ssl_ciphers: nothing is left to speak: {error}")))?;
    let builder = match clients(settings, &provider)? {
        None => builder.with_no_client_auth(),
        Some(clients) => builder.with_client_cert_verifier(Arc::new(clients)),
    };
    let own = SingleCertAndKey::from(certified_key(settings, &provider)?);
    let mut config = builder.with_cert_resolver(Arc::new(own));
    config.session_storage = Arc::new(NoServerSessionStorage {});
    if settings.session_cache {
        // The client keeps the session, encrypted with keys of this configuration. After a reload, which may
        // trust other clients, it cannot be resumed.
        config.ticketer = ring::Ticketer::new()
            .map_err(|error| TlsError(format!("-o ssl_session_cache: no keys for tickets: {error}")))?;
    } else {
        config.send_tls13_tickets = 0;
    }
    Ok(Arc::new(config))
}

fn unreadable(option: &str, path: &Path, why: impl std::fmt::Display) -> TlsError {
    TlsError(format!("-o {option} {}: {why}", path.display()))
}

fn contents(option: &str, path: &Path) -> Result<Vec<u8>, TlsError> {
    read_file(path).map_err(|error: io::Error| {
        unreadable(option, path, format_args!("cannot be read: {}", reason(&error)))
    })
}

fn certificates(option: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = contents(option, path)?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match certificates {
        Ok(certificates) if certificates.is_empty() => {
            Err(unreadable(option, path, "has no certificate; it must be PEM"))
        }
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(unreadable(option, path, problem_of_pem(&error))),
    }
}

fn private_key(settings: &TlsSettings) -> Result<PrivateKeyDer<'static>, TlsError> {
    let (option, path) = key_file(settings);
    let bytes = contents(option, path)?;
    match settings.key_format {
        // The chain file is PEM, whatever the format of a separate key file.
        KeyFormat::Der if settings.key.is_some() => {
            let problem = problem_of_key(&bytes);
            PrivateKeyDer::try_from(bytes)
                .map_err(|why| unreadable(option, path, problem.unwrap_or_else(|| why.to_owned())))
        }
        _ if is_encrypted(&bytes) => Err(unreadable(option, path, ENCRYPTED)),
        _ => PrivateKeyDer::from_pem_slice(&bytes)
            // This follows OpenSSL: the label may say RSA or EC although the contents are PKCS#8.
            .map(|key| PrivateKeyDer::try_from(key.secret_der().to_vec()).unwrap_or(key))
            .map_err(|why| match why {
                pem::Error::NoItemsFound => unreadable(option, path, "has no private key in PEM"),
                why => unreadable(option, path, problem_of_pem(&why)),
            }),
    }
}

fn key_file(settings: &TlsSettings) -> (&'static str, &Path) {
    match &settings.key {
        Some(path) => ("ssl_key", path),
        None => ("ssl_chain_cert", &settings.chain_cert),
    }
}

/// The verifier of clients' certificates; None: clients are not asked for a certificate.
fn clients(
    settings: &TlsSettings,
    provider: &Arc<CryptoProvider>,
) -> Result<Option<ClientVerifier>, TlsError> {
    if settings.verify_mode == VerifyMode::None {
        return Ok(None);
    }
    let required = settings.verify_mode != VerifyMode::Request;
    let provider = Arc::clone(provider);
    let Some(path) = &settings.ca_cert else {
        return Ok(Some(ClientVerifier {
            required,
            by_rustls: None,
            roots: Vec::new(),
            certificates: Vec::new(),
            provider,
        }));
    };
    let certificates = certificates("ssl_ca_cert", path)?;
    let mut roots = RootCertStore::empty();
    for certificate in &certificates {
        roots.add(certificate.clone()).map_err(|error| unreadable("ssl_ca_cert", path, error))?;
    }
    let anchors = roots.roots.clone();
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let by_rustls = builder.build().map_err(|error| unreadable("ssl_ca_cert", path, error))?;
    Ok(Some(ClientVerifier { required, by_rustls: Some(by_rustls), roots: anchors, certificates, provider }))
}

/// The certificate and its key. They are compared here, since rustls compares them only for X.509 version 3.
fn certified_key(settings: &TlsSettings, provider: &CryptoProvider) -> Result<CertifiedKey, TlsError> {
    let chain = certificates("ssl_chain_cert", &settings.chain_cert)?;
    let key = private_key(settings)?;
    let (option, path) = key_file(settings);
    if let Some(problem) = problem_of_key(key.secret_der()) {
        return Err(unreadable(option, path, problem));
    }
    let key = provider
        .key_provider
        .load_private_key(key)
        .map_err(|error| unreadable(option, path, format_args!("is a key that cannot be used: {error}")))?;
    let of_certificate = Certificate::read(&chain[0]);
    let Some(of_certificate) = of_certificate else {
        return Err(unreadable("ssl_chain_cert", &settings.chain_cert, "is no certificate of X.509"));
    };
    if key.public_key().is_some_and(|own| own.as_ref() != of_certificate.key_info) {
        return Err(unreadable(
            "ssl_chain_cert",
            &settings.chain_cert,
            format_args!(
                "certificate and key cannot be used together: the first certificate is not that of the key in {}",
                path.display()
            ),
        ));
    }
    Ok(CertifiedKey::new(chain, key))
}

/// The suites of an OpenSSL list, in its order. TLS 1.3 keeps all its suites unless the list names one of
/// them, since OpenSSL's list is about TLS 1.2.
fn choose_suites(list: &str) -> Result<Vec<SupportedCipherSuite>, TlsError> {
    let known = |name: &str| {
        let place = OPENSSL_NAMES.iter().position(|(own, _)| own.eq_ignore_ascii_case(name))?;
        Some(OPENSSL_NAMES[place].1)
    };
    let all = || OPENSSL_NAMES.iter().map(|(_, suite)| *suite);
    let mut chosen: Vec<SupportedCipherSuite> = Vec::new();
    let mut without = Vec::new();
    for name in list.split([':', ',', ' ']).filter(|name| !name.is_empty()) {
        if let Some(name) = name.strip_prefix(['!', '-']) {
            // Suites that are excluded by class (aNULL, MD5, RC4, ...) do not exist here anyway.
            without.extend(known(name));
        } else if matches!(name, "ALL" | "DEFAULT" | "HIGH") {
            chosen.extend(all().filter(|suite| suite.tls13().is_none()));
        } else {
            chosen.push(known(name).ok_or_else(|| {
                let names: Vec<&str> = OPENSSL_NAMES.iter().map(|(name, _)| *name).collect();
                TlsError(format!(
                    "-o ssl_ciphers {name}: is not spoken; there are HIGH and {}",
                    names.join(", ")
                ))
            })?);
        }
    }
    if chosen.iter().all(|suite| suite.tls13().is_none()) {
        chosen.extend(all().filter(|suite| suite.tls13().is_some()));
    }
    chosen.retain(|suite| !without.contains(suite));
    let mut seen = Vec::new();
    chosen.retain(|suite| {
        let new = !seen.contains(&suite.suite());
        seen.push(suite.suite());
        new
    });
    if chosen.is_empty() {
        return Err(TlsError(format!("-o ssl_ciphers {list}: leaves no cipher suite")));
    }
    Ok(chosen)
}

use rustls::crypto::ring::cipher_suite as suite;

const OPENSSL_NAMES: &[(&str, SupportedCipherSuite)] = &[
    ("TLS_AES_256_GCM_SHA384", suite::TLS13_AES_256_GCM_SHA384),
    ("TLS_CHACHA20_POLY1305_SHA256", suite::TLS13_CHACHA20_POLY1305_SHA256),
    ("TLS_AES_128_GCM_SHA256", suite::TLS13_AES_128_GCM_SHA256),
    ("ECDHE-ECDSA-AES256-GCM-SHA384", suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE-RSA-AES256-GCM-SHA384", suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE-ECDSA-CHACHA20-POLY1305", suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("ECDHE-RSA-CHACHA20-POLY1305", suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
    ("ECDHE-ECDSA-AES128-GCM-SHA256", suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("ECDHE-RSA-AES128-GCM-SHA256", suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
];

#[cfg(test)]
mod tests;
