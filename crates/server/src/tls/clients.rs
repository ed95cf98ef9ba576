//! Verification of clients' certificates by the authorities of `ssl_ca_cert`.
//!
//! rustls verifies certificates of version 3. This verifier accepts some that rustls refuses and memcached
//! accepts: certificates of version 1 (which `openssl x509 -req` makes without extensions) that an authority
//! of the file has signed directly, and certificates that are themselves in the file. Without a file, no
//! certificate is valid.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer, TrustAnchor, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, PeerMisbehaved, SignatureScheme,
};

use super::certificate::{Certificate, public_key};
use super::der::{SEQUENCE, take_tagged};

/// The verifier of clients' certificates.
#[derive(Debug)]
pub(super) struct ClientVerifier {
    /// Whether clients must have a certificate.
    pub(super) required: bool,
    /// The verifier for certificates of version 3; None without authorities.
    pub(super) by_rustls: Option<Arc<dyn ClientCertVerifier>>,
    /// The authorities.
    pub(super) roots: Vec<TrustAnchor<'static>>,
    /// The authorities' certificates.
    pub(super) certificates: Vec<CertificateDer<'static>>,
    pub(super) provider: Arc<CryptoProvider>,
}

impl ClientVerifier {
    fn algorithms(&self) -> &WebPkiSupportedAlgorithms {
        &self.provider.signature_verification_algorithms
    }

    /// Verifies a certificate that is in the file, or of version 1 and signed by an authority of the file.
    ///
    /// # Errors
    /// The certificate is neither, or not valid at this time.
    fn verify_here(&self, der: &CertificateDer<'_>, now: UnixTime) -> Result<(), CertificateError> {
        let certificate = Certificate::read(der).ok_or(CertificateError::BadEncoding)?;
        if !certificate.is_valid_at(now.as_secs()) {
            return Err(CertificateError::Expired);
        }
        if self.certificates.iter().any(|own| own == der) {
            return Ok(());
        }
        if certificate.version != 1 {
            return Err(CertificateError::UnknownIssuer);
        }
        let issuers = self
            .roots
            .iter()
            .filter(|root| root.subject.as_ref() == certificate.issuer && root.name_constraints.is_none());
        let has_signed = |root: &TrustAnchor<'_>| {
            let Some((kind, key)) = public_key(root.subject_public_key_info.as_ref()) else { return false };
            self.algorithms().all.iter().any(|algorithm| {
                algorithm.public_key_alg_id().as_ref() == kind
                    && algorithm.signature_alg_id().as_ref() == certificate.algorithm
                    && algorithm.verify_signature(key, certificate.signed, certificate.signature).is_ok()
            })
        };
        if issuers.into_iter().any(has_signed) { Ok(()) } else { Err(CertificateError::UnknownIssuer) }
    }

    fn verify_tls12_by_version_1(
        &self,
        message: &[u8],
        key_info: &[u8],
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let bad = || Error::InvalidCertificate(CertificateError::BadSignature);
        let contents = take_tagged(&mut &*key_info, SEQUENCE).ok_or_else(bad)?.contents;
        let (kind, key) = public_key(contents).ok_or_else(bad)?;
        let of_scheme = self.algorithms().mapping.iter().find(|(scheme, _)| *scheme == dss.scheme);
        let (_, algorithms) = of_scheme.ok_or(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme)?;
        let is_good = algorithms.iter().any(|algorithm| {
            algorithm.public_key_alg_id().as_ref() == kind
                && algorithm.verify_signature(key, message, dss.signature()).is_ok()
        });
        if is_good { Ok(HandshakeSignatureValid::assertion()) } else { Err(bad()) }
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.required
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.by_rustls.as_ref().map_or(&[], |by_rustls| by_rustls.root_hint_subjects())
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let Some(by_rustls) = &self.by_rustls else {
            return Err(CertificateError::UnknownIssuer.into());
        };
        by_rustls.verify_client_cert(end_entity, intermediates, now).or_else(|error| {
            self.verify_here(end_entity, now).map(|()| ClientCertVerified::assertion()).map_err(|_| error)
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        match Certificate::read(cert).filter(|certificate| certificate.version == 1) {
            Some(certificate) => self.verify_tls12_by_version_1(message, certificate.key_info, dss),
            None => verify_tls12_signature(message, cert, dss, self.algorithms()),
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        match Certificate::read(cert).filter(|certificate| certificate.version == 1) {
            Some(certificate) => {
                let key_info = SubjectPublicKeyInfoDer::from(certificate.key_info);
                verify_tls13_signature_with_raw_key(message, &key_info, dss, self.algorithms())
            }
            None => verify_tls13_signature(message, cert, dss, self.algorithms()),
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms().supported_schemes()
    }
}
