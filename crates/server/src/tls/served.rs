//! The certificate that a server shows to its clients, with any signer.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme};

/// The first certificate that the server at `address` shows, in DER. Only a handshake is sent, each part of
/// which may take `patience`. A server that then asks for a client's certificate is no error.
///
/// # Errors
/// The server cannot be reached, or does not speak TLS.
pub fn served(address: SocketAddr, patience: Duration) -> io::Result<Vec<u8>> {
    let provider = Arc::new(ring::default_provider());
    let any = Arc::new(AnyCertificate::new(&provider));
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(any)
        .with_no_client_auth();
    let name = ServerName::IpAddress(address.ip().into());
    let mut connection = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    let mut stream = TcpStream::connect_timeout(&address, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    let done = connection.complete_io(&mut stream);
    let certificate = connection.peer_certificates().and_then(|chain| Some(chain.first()?.to_vec()));
    match (certificate, done) {
        (Some(certificate), _) => Ok(certificate),
        (None, Err(error)) => Err(error),
        (None, Ok(_)) => Err(io::Error::other("it shows no certificate")),
    }
}

/// Accepts any server that has the key of its certificate: for inspecting the certificate, or for a load.
#[derive(Debug)]
pub struct AnyCertificate(WebPkiSupportedAlgorithms);

impl AnyCertificate {
    /// A verifier for the signatures that this provider supports.
    pub fn new(provider: &CryptoProvider) -> Self {
        Self(provider.signature_verification_algorithms)
    }
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
