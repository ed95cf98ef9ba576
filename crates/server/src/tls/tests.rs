//! Handshakes in memory, with certificates made by the test.

use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, ProtocolVersion, ServerConnection};

use super::*;

/// An authority, a server's certificate and a client's, in files.
pub(super) struct TestCertificates {
    dir: tempfile::TempDir,
    authority: Issuer<'static, KeyPair>,
    authority_der: CertificateDer<'static>,
}

pub(super) struct Identity {
    pem: String,
    key: KeyPair,
    chain: Vec<CertificateDer<'static>>,
}

impl TestCertificates {
    pub(super) fn new() -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "authority");
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let files = Self {
            dir: tempfile::tempdir().unwrap(),
            authority_der: certificate.der().clone(),
            authority: Issuer::new(params, key),
        };
        std::fs::write(files.path("ca.pem"), certificate.pem()).unwrap();
        files.write_server();
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn identity(&self, name: &str) -> Identity {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.authority).unwrap();
        Identity { pem: certificate.pem(), key, chain: vec![certificate.der().clone()] }
    }

    /// A new certificate for the server: `chain.pem`, `key.pem`, `key.der`, and both in `both.pem`.
    fn write_server(&self) -> CertificateDer<'static> {
        let server = self.identity("localhost");
        let key = server.key.serialize_pem();
        std::fs::write(self.path("chain.pem"), &server.pem).unwrap();
        std::fs::write(self.path("key.pem"), &key).unwrap();
        std::fs::write(self.path("key.der"), server.key.serialize_der()).unwrap();
        std::fs::write(self.path("both.pem"), format!("{}{key}", server.pem)).unwrap();
        server.chain[0].clone()
    }

    pub(super) fn settings(&self) -> TlsSettings {
        TlsSettings {
            chain_cert: self.path("chain.pem"),
            key: Some(self.path("key.pem")),
            ..TlsSettings::default()
        }
    }

    pub(super) fn client(
        &self,
        identity: Option<Identity>,
        versions: &[&'static SupportedProtocolVersion],
    ) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority_der.clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let key = PrivatePkcs8KeyDer::from(identity.key.serialize_der()).into();
                builder.with_client_auth_cert(identity.chain, key).unwrap()
            }
        }
    }
}

pub(super) const BOTH: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];

/// Exchanges messages until both sides have finished the handshake.
fn shake(acceptor: &TlsAcceptor, client: &Arc<ClientConfig>) -> Result<ClientConnection, rustls::Error> {
    let mut server = ServerConnection::new(acceptor.config.load_full()).unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut client = ClientConnection::new(Arc::clone(client), name).unwrap();
    while client.is_handshaking() || server.is_handshaking() || client.wants_write() || server.wants_write() {
        let mut wire = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut wire).unwrap();
        }
        let mut rest = &wire[..];
        while !rest.is_empty() {
            server.read_tls(&mut rest).unwrap();
            server.process_new_packets()?;
        }
        wire.clear();
        while server.wants_write() {
            server.write_tls(&mut wire).unwrap();
        }
        let mut rest = &wire[..];
        while !rest.is_empty() {
            client.read_tls(&mut rest).unwrap();
            client.process_new_packets()?;
        }
    }
    Ok(client)
}

fn problem(settings: &TlsSettings) -> String {
    TlsAcceptor::new(settings).unwrap_err().to_string()
}

#[test]
fn keys_of_their_own_in_the_chain_and_in_der() {
    let files = TestCertificates::new();
    let client = Arc::new(files.client(None, BOTH));
    let der =
        TlsSettings { key: Some(files.path("key.der")), key_format: KeyFormat::Der, ..files.settings() };
    let both = TlsSettings { chain_cert: files.path("both.pem"), key: None, ..files.settings() };
    for settings in [files.settings(), der, both] {
        shake(&TlsAcceptor::new(&settings).unwrap(), &client).unwrap();
    }
}

#[test]
fn the_oldest_version_is_kept_to() {
    let files = TestCertificates::new();
    let old = Arc::new(files.client(None, &[&TLS12]));
    let connection = shake(&TlsAcceptor::new(&files.settings()).unwrap(), &old).unwrap();
    assert_eq!(connection.protocol_version(), Some(ProtocolVersion::TLSv1_2));
    let settings = TlsSettings { min_version: TlsVersion::Tls13, ..files.settings() };
    let acceptor = TlsAcceptor::new(&settings).unwrap();
    assert!(shake(&acceptor, &old).is_err());
    let connection = shake(&acceptor, &Arc::new(files.client(None, BOTH))).unwrap();
    assert_eq!(connection.protocol_version(), Some(ProtocolVersion::TLSv1_3));
}

#[test]
fn certificates_of_clients_are_ignored_checked_or_required() {
    let files = TestCertificates::new();
    let stranger = TestCertificates::new();
    for (mode, without, known, unknown) in [
        (VerifyMode::None, true, true, true),
        (VerifyMode::Request, true, true, false),
        (VerifyMode::Require, false, true, false),
        (VerifyMode::Once, false, true, false),
    ] {
        let settings =
            TlsSettings { verify_mode: mode, ca_cert: Some(files.path("ca.pem")), ..files.settings() };
        let acceptor = TlsAcceptor::new(&settings).unwrap();
        let served =
            |identity, versions| shake(&acceptor, &Arc::new(files.client(identity, versions))).is_ok();
        for versions in [&[&TLS13][..], &[&TLS12][..]] {
            assert_eq!(served(None, versions), without, "{mode:?} without");
            assert_eq!(served(Some(files.identity("me")), versions), known, "{mode:?} known");
            // Under mode 0, a client that chooses a certificate by the authorities that it is told of may
            // send none; ours always sends its certificate.
            assert_eq!(served(Some(stranger.identity("me")), versions), unknown, "{mode:?} unknown");
        }
    }
}

#[test]
fn a_reload_counts_for_new_connections_and_keeps_the_old_on_error() {
    let files = TestCertificates::new();
    let client = Arc::new(files.client(None, BOTH));
    let acceptor = TlsAcceptor::new(&files.settings()).unwrap();
    let seen = || shake(&acceptor, &client).unwrap().peer_certificates().unwrap()[0].clone().into_owned();
    let first = seen();
    std::fs::write(files.path("chain.pem"), "nonsense").unwrap();
    assert!(acceptor.reload().unwrap_err().to_string().contains("has no certificate"));
    assert_eq!(seen(), first);
    let second = files.write_server();
    acceptor.reload().unwrap();
    assert_eq!(seen(), second);
    std::fs::write(files.path("key.pem"), KeyPair::generate().unwrap().serialize_pem()).unwrap();
    let error = acceptor.reload().unwrap_err().to_string();
    assert!(error.contains("cannot be used together"), "{error}");
    assert_eq!(seen(), second);
}

#[test]
fn sessions_are_resumed_only_if_asked_for() {
    let files = TestCertificates::new();
    for (session_cache, versions) in
        [(true, &[&TLS12][..]), (true, &[&TLS13]), (false, &[&TLS12]), (false, &[&TLS13])]
    {
        let acceptor = TlsAcceptor::new(&TlsSettings { session_cache, ..files.settings() }).unwrap();
        let client = Arc::new(files.client(None, versions));
        let first = shake(&acceptor, &client).unwrap().handshake_kind();
        let second = shake(&acceptor, &client).unwrap().handshake_kind();
        assert_eq!(first, Some(rustls::HandshakeKind::Full));
        let resumed = second == Some(rustls::HandshakeKind::Resumed);
        assert_eq!(resumed, session_cache, "{versions:?}");
    }
}

#[test]
fn cipher_suites_by_their_openssl_names() {
    let names = |list: &str| -> Vec<&str> {
        let suites = choose_suites(list).unwrap();
        suites.iter().map(|suite| OPENSSL_NAMES.iter().find(|(_, own)| own == suite).unwrap().0).collect()
    };
    let all13: Vec<&str> = OPENSSL_NAMES[..3].iter().map(|(name, _)| *name).collect();
    assert_eq!(
        names("ECDHE-RSA-AES128-GCM-SHA256:ECDHE-RSA-AES256-GCM-SHA384"),
        [&["ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES256-GCM-SHA384"][..], &all13].concat()
    );
    assert_eq!(names("TLS_AES_128_GCM_SHA256"), ["TLS_AES_128_GCM_SHA256"]);
    assert_eq!(names("HIGH:!aNULL:!MD5").len(), 9);
    assert_eq!(names("HIGH:!ECDHE-RSA-AES128-GCM-SHA256").len(), 8);
    let error = choose_suites("RC4-MD5").unwrap_err().to_string();
    assert!(
        error.starts_with("-o ssl_ciphers RC4-MD5: is not spoken; there are HIGH and TLS_AES"),
        "{error}"
    );
    assert!(choose_suites("TLS_AES_128_GCM_SHA256:!TLS_AES_128_GCM_SHA256").is_err());

    let files = TestCertificates::new();
    let settings =
        TlsSettings { ciphers: Some("ECDHE-ECDSA-CHACHA20-POLY1305".to_owned()), ..files.settings() };
    let acceptor = TlsAcceptor::new(&settings).unwrap();
    let connection = shake(&acceptor, &Arc::new(files.client(None, &[&TLS12]))).unwrap();
    let suite = connection.negotiated_cipher_suite().unwrap();
    assert_eq!(suite, suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256);
    let settings = TlsSettings { ciphers: Some("TLS_AES_128_GCM_SHA256".to_owned()), ..files.settings() };
    TlsAcceptor::new(&settings).unwrap();
}

#[test]
fn files_that_make_no_sense() {
    let files = TestCertificates::new();
    let nowhere = files.path("nowhere");
    let missing = problem(&TlsSettings { chain_cert: nowhere.clone(), ..files.settings() });
    assert_eq!(
        missing,
        format!("-o ssl_chain_cert {}: cannot be read: No such file or directory", nowhere.display())
    );
    let missing = problem(&TlsSettings { key: Some(nowhere.clone()), ..files.settings() });
    assert!(missing.starts_with("-o ssl_key "), "{missing}");
    let no_key = problem(&TlsSettings { key: None, ..files.settings() });
    assert!(no_key.contains("has no private key in PEM"), "{no_key}");
    let pem_as_der = problem(&TlsSettings { key_format: KeyFormat::Der, ..files.settings() });
    assert!(pem_as_der.starts_with("-o ssl_key "), "{pem_as_der}");
    for ca_cert in [nowhere, files.path("key.pem")] {
        let settings =
            TlsSettings { verify_mode: VerifyMode::Require, ca_cert: Some(ca_cert), ..files.settings() };
        assert!(problem(&settings).starts_with("-o ssl_ca_cert "));
    }
}

#[test]
fn a_certificate_says_for_how_long_it_is_valid_and_whether_it_has_names() {
    let files = TestCertificates::new();
    let server = validities("ssl_chain_cert", &files.path("chain.pem")).unwrap();
    assert!(server.len() == 1 && server[0].has_names && server[0].from < server[0].until, "{server:?}");
    let authority = validities("ssl_ca_cert", &files.path("ca.pem")).unwrap();
    assert!(!authority[0].has_names);
    assert!(validities("ssl_ca_cert", &files.path("key.pem")).is_err());
    let der = files.write_server();
    assert!(is_first_of(&files.path("chain.pem"), &der).unwrap());
    assert!(!is_first_of(&files.path("ca.pem"), &der).unwrap());
    assert_eq!(Validity::of(b"nonsense"), None);
}
