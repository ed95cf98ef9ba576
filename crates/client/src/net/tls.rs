//! TLS: what servers are trusted, and how this client identifies itself.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::rustls;

use crate::error::Error;

/// How connections are encrypted: [`ClientBuilder::tls`](crate::ClientBuilder::tls).
#[derive(Debug, Clone)]
pub struct Tls {
    config: Arc<ClientConfig>,
    name: Option<ServerName<'static>>,
}

impl Tls {
    /// Trusts servers whose certificate one of these authorities has signed, PEM. Certificates of the system
    /// are not used.
    ///
    /// # Errors
    /// [`Error::Usage`]: no certificate, or a certificate that cannot be read.
    pub fn new(authorities: &[u8]) -> Result<Self, Error> {
        Self::with(authorities, None)
    }

    /// [`new`](Self::new), for servers that ask clients for a certificate: the client's chain and private
    /// key, PEM.
    ///
    /// # Errors
    /// [`Error::Usage`]: a certificate or the key is missing, cannot be read, or they do not belong together.
    pub fn with_identity(authorities: &[u8], chain: &[u8], key: &[u8]) -> Result<Self, Error> {
        Self::with(authorities, Some((chain, key)))
    }

    /// Any configuration of rustls.
    pub fn from_config(config: Arc<ClientConfig>) -> Self {
        Self { config, name: None }
    }

    /// The name that the servers' certificates must have. Without it: the host of each address. A server on a
    /// Unix socket needs it.
    ///
    /// # Errors
    /// [`Error::Usage`]: it is neither a DNS name nor an address.
    pub fn server_name(mut self, name: &str) -> Result<Self, Error> {
        self.name = Some(server_name(name)?);
        Ok(self)
    }

    fn with(authorities: &[u8], identity: Option<(&[u8], &[u8])>) -> Result<Self, Error> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(authorities)? {
            roots.add(certificate).map_err(|error| usage("an authority's certificate", &error))?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| usage("TLS", &error))?
            .with_root_certificates(roots);
        let config = match identity {
            None => config.with_no_client_auth(),
            Some((chain, key)) => {
                let key =
                    PrivateKeyDer::from_pem_slice(key).map_err(|error| usage("the private key", &error))?;
                let config = config.with_client_auth_cert(certificates(chain)?, key);
                config.map_err(|error| usage("the client's certificate", &error))?
            }
        };
        Ok(Self::from_config(Arc::new(config)))
    }

    /// The connector to a server of this name.
    pub(crate) fn connector(&self) -> tokio_rustls::TlsConnector {
        self.config.clone().into()
    }

    /// The name that the certificate of a server must have.
    pub(crate) fn name_of(&self, host: Option<&str>) -> Result<ServerName<'static>, Error> {
        match (&self.name, host) {
            (Some(name), _) => Ok(name.clone()),
            (None, Some(host)) => server_name(host),
            (None, None) => {
                Err(Error::Usage("TLS on a Unix socket needs the server's name: server_name()".to_owned()))
            }
        }
    }
}

fn server_name(name: &str) -> Result<ServerName<'static>, Error> {
    ServerName::try_from(name.to_owned()).map_err(|error| usage("the server's name", &error))
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(|error| usage("a certificate", &error))?;
    if all.is_empty() {
        return Err(Error::Usage("no certificate: PEM with BEGIN CERTIFICATE is wanted".to_owned()));
    }
    Ok(all)
}

fn usage(what: &str, error: &dyn std::fmt::Display) -> Error {
    Error::Usage(format!("{what}: {error}"))
}
