//! How a client speaks TLS: whom it trusts, and whether it resumes sessions.

use std::io;
use std::path::Path;
use std::sync::Arc;

use cattlegrid_server::tls::AnyCertificate;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::BenchError;

/// How connections to a server speak TLS.
#[derive(Debug, Clone)]
pub struct Tls {
    pub(crate) config: ClientConfig,
    /// Whom the certificate must be for.
    pub(crate) name: ServerName<'static>,
    /// New connections resume the sessions of closed ones.
    pub(crate) resumes: bool,
}

impl Tls {
    /// For the server at `address`, as [`crate::Peer::new`] takes it. Its certificate must be of one of the
    /// authorities in the PEM file `ca`; without one any certificate is right. `resumes`: connections that
    /// replace others resume their sessions.
    ///
    /// # Errors
    /// The file cannot be used, or the host is no name that a certificate could be for.
    pub fn new(address: &str, ca: Option<&Path>, resumes: bool) -> Result<Self, BenchError> {
        let host = match address.rsplit_once(':') {
            Some((host, _)) if !address.contains('/') => host.trim_matches(['[', ']']),
            _ => "localhost",
        };
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| BenchError::File(format!("{address}: {error}")))?;
        let provider = Arc::new(ring::default_provider());
        let verifier: Arc<dyn ServerCertVerifier> = match ca {
            None => Arc::new(AnyCertificate::new(&provider)),
            Some(file) => authorities(file, &provider)?,
        };
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| BenchError::File(error.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        Ok(Self { config, name, resumes })
    }

    /// TLS over a stream that blocks. The handshake takes place with the first bytes.
    ///
    /// # Errors
    /// The settings of TLS do not fit each other.
    pub fn over<S: io::Read + io::Write>(&self, stream: S) -> io::Result<StreamOwned<ClientConnection, S>> {
        let config = Arc::new(self.config.clone());
        let connection = ClientConnection::new(config, self.name.clone()).map_err(io::Error::other)?;
        Ok(StreamOwned::new(connection, stream))
    }
}

fn authorities(
    file: &Path,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, BenchError> {
    let wrong =
        |what: &dyn std::fmt::Display| BenchError::File(format!("--tls-ca {}: {what}", file.display()));
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(|error| wrong(&error))? {
        let added = certificate.map_err(|error| wrong(&error)).map(|certificate| roots.add(certificate))?;
        added.map_err(|error| wrong(&error))?;
    }
    let builder = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    Ok(builder.build().map_err(|error| wrong(&error))?)
}
