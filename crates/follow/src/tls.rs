//! How a server's certificate is verified: the modes of libpq, and by its rules.
//!
//! The chain is verified by rustls where it can, and here where OpenSSL, which libpq asks, accepts more: a
//! certificate that is signed by itself and is itself trusted, certificates of version 1, and those that say
//! that they are an authority's, as `openssl req -x509` makes them.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::address::SslMode;
use crate::x509::Certificate;

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
        /// The fault of the file.
        reason: String,
    },
    /// No file of the system's is there.
    #[error("the system has no file of trusted authorities ({}); name one with ssl_ca", SYSTEM_FILES.join(", "))]
    NoSystemFile,
    /// The library's.
    #[error("TLS cannot be set up")]
    Library(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// A client's configuration for this host. `ca`: a file of certificates in PEM that are trusted; `None`:
/// those of the system. It is read only where a certificate is verified: as in libpq, that is also so for
/// `require` with a `ca`.
///
/// `own`: files in PEM with a certificate of the client's own and its key, for a server that asks for one.
///
/// # Errors
/// A file cannot be read, or has no certificates.
pub fn client_config(
    mode: SslMode,
    ca: Option<&Path>,
    host: &str,
    own: Option<(&Path, &Path)>,
) -> Result<Arc<ClientConfig>, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::Library(Box::new(error)))?;
    let trusted = match (mode, ca) {
        (SslMode::VerifyCa | SslMode::VerifyFull, _) | (SslMode::Require, Some(_)) => Some(trusted(ca)?),
        (SslMode::Disable | SslMode::Prefer | SslMode::Require, _) => None,
    };
    let host = (mode == SslMode::VerifyFull).then(|| host.to_owned());
    let algorithms = provider.signature_verification_algorithms;
    let verifier = Verifier { algorithms, trusted, host };
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
    let Some((certificate, key)) = own else { return Ok(Arc::new(builder.with_no_client_auth())) };
    let failed = |file: &Path, reason: String| TlsError::File { file: file.display().to_string(), reason };
    let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect);
    let chain = chain.map_err(|error| failed(certificate, error.to_string()))?;
    let read = PrivateKeyDer::from_pem_file(key).map_err(|error| failed(key, error.to_string()))?;
    let config = builder.with_client_auth_cert(chain, read);
    Ok(Arc::new(config.map_err(|error| failed(certificate, error.to_string()))?))
}

fn trusted(ca: Option<&Path>) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let file = match ca {
        Some(file) => file,
        None => {
            SYSTEM_FILES.iter().map(Path::new).find(|file| file.exists()).ok_or(TlsError::NoSystemFile)?
        }
    };
    let failed = |reason: String| TlsError::File { file: file.display().to_string(), reason };
    let mut all = Vec::new();
    for certificate in CertificateDer::pem_file_iter(file).map_err(|error| failed(error.to_string()))? {
        let certificate = certificate.map_err(|error| failed(error.to_string()))?;
        let is_read = Certificate::parse(&certificate).is_ok();
        // Of the system's, some may be of kinds that are not known here.
        match (is_read, ca) {
            (true, _) => all.push(certificate),
            (false, Some(_)) => return Err(failed("it has a certificate that cannot be read".to_owned())),
            (false, None) => {}
        }
    }
    if all.is_empty() { Err(failed("it has no certificate".to_owned())) } else { Ok(all) }
}

#[derive(Debug)]
struct Verifier {
    algorithms: WebPkiSupportedAlgorithms,
    /// None: any certificate is accepted.
    trusted: Option<Vec<CertificateDer<'static>>>,
    /// None: a certificate for any name is accepted.
    host: Option<String>,
}

const fn refused<T>(error: CertificateError) -> Result<T, Error> {
    Err(Error::InvalidCertificate(error))
}

fn parsed<'a>(certificate: &'a CertificateDer<'_>) -> Result<Certificate<'a>, Error> {
    Certificate::parse(certificate).or(refused(CertificateError::BadEncoding))
}

/// Refuses a certificate out of its time.
fn in_time(certificate: &Certificate<'_>, now: UnixTime) -> Result<(), Error> {
    let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    match certificate.valid {
        (from, _) if seconds < from => refused(CertificateError::NotValidYet),
        (_, to) if seconds > to => refused(CertificateError::Expired),
        _ => Ok(()),
    }
}

impl Verifier {
    /// Whether what is trusted vouches for the certificate.
    fn verify_chain(
        &self,
        der: &CertificateDer<'_>,
        own: &Certificate<'_>,
        intermediates: &[CertificateDer<'_>],
        trusted: &[CertificateDer<'static>],
        now: UnixTime,
    ) -> Result<(), Error> {
        in_time(own, now)?;
        if own.is_self_issued() && trusted.iter().any(|root| root.as_ref() == der.as_ref()) {
            return Self::verify_alone(own);
        }
        let (mut roots, mut others) = (RootCertStore::empty(), intermediates.to_vec());
        let mut issued = refused(CertificateError::UnknownIssuer);
        for root in trusted {
            let Ok(parsed) = Certificate::parse(root) else { continue };
            // A chain ends at a certificate that is signed by itself. Others of the file help to get there.
            if !parsed.is_self_issued() {
                others.push(root.clone());
                continue;
            }
            let is_issuer = parsed.subject == own.issuer;
            match in_time(&parsed, now) {
                Ok(()) if is_issuer && issued.is_err() => issued = self.verify_issued(own, &parsed),
                Err(error) if is_issuer && issued.is_err() => issued = Err(error),
                Err(_) => continue,
                Ok(()) => {}
            }
            if in_time(&parsed, now).is_ok() {
                // What rustls cannot use is no end of its chains.
                drop(roots.add(root.clone()));
            }
        }
        if !own.is_v3 || own.is_ca == Some(true) || roots.is_empty() {
            return issued;
        }
        let end = ParsedCertificate::try_from(der)?;
        verify_server_cert_signed_by_trust_anchor(&end, &roots, &others, now, self.algorithms.all)
    }

    /// A certificate that is trusted itself.
    fn verify_alone(own: &Certificate<'_>) -> Result<(), Error> {
        if own.has_unknown_limits {
            return refused(CertificateError::UnhandledCriticalExtension);
        }
        if own.is_for_servers { Ok(()) } else { refused(CertificateError::InvalidPurpose) }
    }

    /// A certificate that one that is trusted has signed, without others between them.
    fn verify_issued(&self, own: &Certificate<'_>, root: &Certificate<'_>) -> Result<(), Error> {
        Self::verify_alone(own)?;
        if root.has_unknown_limits
            || root.is_ca == Some(false)
            || !root.may_sign
            || root.is_v3 && root.is_ca.is_none()
        {
            return refused(CertificateError::UnknownIssuer);
        }
        let is_signed = self.algorithms.all.iter().any(|algorithm| {
            algorithm.signature_alg_id().as_ref() == own.signature_algorithm
                && algorithm.public_key_alg_id().as_ref() == root.key_algorithm
                && algorithm.verify_signature(root.key, own.signed, own.signature).is_ok()
        });
        if is_signed { Ok(()) } else { refused(CertificateError::BadSignature) }
    }

    /// Verifies a signature as rustls does, for certificates of versions that it does not read.
    fn verify_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let own = parsed(certificate)?;
        let known = self.algorithms.mapping.iter().find(|(scheme, _)| *scheme == signed.scheme);
        let is_signed = known.is_some_and(|(_, algorithms)| {
            algorithms.iter().any(|algorithm| {
                algorithm.public_key_alg_id().as_ref() == own.key_algorithm
                    && algorithm.verify_signature(own.key, message, signed.signature()).is_ok()
            })
        });
        if is_signed {
            Ok(HandshakeSignatureValid::assertion())
        } else {
            refused(CertificateError::BadSignature)
        }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(trusted) = &self.trusted else { return Ok(ServerCertVerified::assertion()) };
        let own = parsed(end_entity)?;
        self.verify_chain(end_entity, &own, intermediates, trusted, now)?;
        match &self.host {
            Some(host) if !own.is_for_host(host) => refused(CertificateError::NotValidForName),
            _ => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        if parsed(cert)?.is_v3 {
            return verify_tls12_signature(message, cert, signed, &self.algorithms);
        }
        self.verify_signature(message, cert, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        if parsed(cert)?.is_v3 {
            return verify_tls13_signature(message, cert, signed, &self.algorithms);
        }
        let is_old = [
            SignatureScheme::RSA_PKCS1_SHA256,
            SignatureScheme::RSA_PKCS1_SHA384,
            SignatureScheme::RSA_PKCS1_SHA512,
        ];
        if is_old.contains(&signed.scheme) {
            return refused(CertificateError::BadSignature);
        }
        self.verify_signature(message, cert, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
