//! How a server's certificate is verified: the modes of libpq.

use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::postgres::address::SslMode;

/// Where systems keep the authorities that they trust: Debian, Red Hat, Alpine and BSD.
const SYSTEM_FILES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Why there is no way to verify certificates.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file of certificates cannot be read, or has none.
    #[error("{file}: {reason}")]
    File {
        /// The file.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No file of the system's is there.
    #[error("the system has no file of trusted authorities ({}); name one with ssl_ca", SYSTEM_FILES.join(", "))]
    NoSystemFile,
    /// The library's.
    #[error("TLS cannot be set up")]
    Library(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// A client's configuration. `ca`: a file of authorities in PEM; `None`: those of the system. It is read only where a certificate is
/// verified.
///
/// # Errors
/// The file cannot be read, or has no certificates.
pub fn client_config(mode: SslMode, ca: Option<&Path>) -> Result<Arc<ClientConfig>, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let library = |error: Error| TlsError::Library(Box::new(error));
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(library)?;
    let checks = match mode {
        SslMode::Disable | SslMode::Prefer | SslMode::Require => None,
        SslMode::VerifyCa | SslMode::VerifyFull => Some(roots(ca)?),
    };
    let verifier = match checks {
        None => None,
        Some(roots) => {
            let builder = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
            Some(builder.build().map_err(|error| TlsError::Library(Box::new(error)))?)
        }
    };
    let verifier = Verifier { provider, checks: verifier, any_name: mode != SslMode::VerifyFull };
    Ok(Arc::new(
        builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth(),
    ))
}

fn roots(ca: Option<&Path>) -> Result<RootCertStore, TlsError> {
    let file = match ca {
        Some(file) => file,
        None => {
            SYSTEM_FILES.iter().map(Path::new).find(|file| file.exists()).ok_or(TlsError::NoSystemFile)?
        }
    };
    let failed = |reason: String| TlsError::File { file: file.display().to_string(), reason };
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(file).map_err(|error| failed(error.to_string()))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| failed(error.to_string()))?;
        // Of the system's, some may be of kinds that are not known here.
        let added = roots.add(certificate);
        if let (Err(error), Some(_)) = (added, ca) {
            return Err(failed(error.to_string()));
        }
    }
    if roots.is_empty() { Err(failed("it has no certificate".to_owned())) } else { Ok(roots) }
}

#[derive(Debug)]
struct Verifier {
    provider: Arc<CryptoProvider>,
    /// None: any certificate.
    checks: Option<Arc<WebPkiServerVerifier>>,
    any_name: bool,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(verifier) = &self.checks else { return Ok(ServerCertVerified::assertion()) };
        match verifier.verify_server_cert(end_entity, intermediates, name, ocsp, now) {
            // The name is the last thing that is verified.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.any_name => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
