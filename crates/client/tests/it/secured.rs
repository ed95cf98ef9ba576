//! TLS, authentication and Unix sockets, with real servers.

#![cfg(feature = "tls")]
#![allow(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

use std::os::unix::fs::PermissionsExt;

use bytes::Bytes;
use cattlegrid_client::{Client, Error, Tls};
use cattlegrid_load::harness::until;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use crate::servers;
use crate::servers::{Kind, patient};

fn file(directory: &tempfile::TempDir, name: &str, text: &str) -> String {
    let path = directory.path().join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// An authority, as PEM, and what signs with it.
fn authority() -> (String, Issuer<'static, KeyPair>) {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    (pem, Issuer::new(params, key))
}

/// Chain and key of a certificate for this name.
fn identity(issuer: &Issuer<'static, KeyPair>, name: &str) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    (params.signed_by(&key, issuer).unwrap().pem(), key.serialize_pem())
}

#[test]
#[ignore = "needs servers: cargo xtask test --stage client"]
fn tls() {
    let directory = tempfile::tempdir().unwrap();
    let (trusted, issuer) = authority();
    let (chain, key) = identity(&issuer, "127.0.0.1");
    let chain = format!("ssl_chain_cert={}", file(&directory, "chain.pem", &chain));
    let key = format!("ssl_key={}", file(&directory, "key.pem", &key));
    let ca = format!("ssl_ca_cert={}", file(&directory, "ca.pem", &trusted));
    let words = ["-Z", "-o", &chain, "-o", &key, "-o", &ca];
    let server = Kind::Plain.start_with(&words);
    let strict = Kind::Plain.start_with(&[&words[..], &["-o", "ssl_verify_mode=2"]].concat());
    servers::run(async {
        let client = |server: &servers::Server, tls| patient([server.address()]).tls(tls).build().unwrap();
        let trusts = Tls::new(trusted.as_bytes()).unwrap();
        // Larger than any buffer on the way, and many commands at once.
        let value = (0..1_000_000_u32).map(|n| (n % 251) as u8).collect::<Bytes>();
        let secured = client(&server, trusts.clone());
        assert!(secured.set("large", &value, 0).await.unwrap().is_stored());
        let keys = ["large"; 40];
        for got in secured.get_many::<Bytes>(&keys).await {
            assert_eq!(got.unwrap().unwrap(), value);
        }
        // Another authority, another name, no TLS.
        let other = authority().0;
        let refused = client(&server, Tls::new(other.as_bytes()).unwrap()).get::<Bytes>("large").await;
        assert!(matches!(refused, Err(Error::Connection { .. })), "{refused:?}");
        let named = trusts.clone().server_name("elsewhere").unwrap();
        let refused = client(&server, named).get::<Bytes>("large").await;
        assert!(matches!(refused, Err(Error::Connection { .. })), "{refused:?}");
        assert!(Client::new(server.address()).unwrap().get::<Bytes>("large").await.is_err());
        // With a certificate of the client.
        let (chain, key) = identity(&issuer, "client");
        let tls = Tls::with_identity(trusted.as_bytes(), chain.as_bytes(), key.as_bytes()).unwrap();
        assert_eq!(client(&strict, tls).get::<Bytes>("none").await.unwrap(), None);
        assert!(client(&strict, trusts).get::<Bytes>("none").await.is_err());
    });
}

#[test]
#[ignore = "needs servers: cargo xtask test --stage client"]
fn authentication() {
    let directory = tempfile::tempdir().unwrap();
    let users = file(&directory, "users", "ada:secret\nbob:pass word\n");
    for kind in [Kind::Memcached, Kind::Plain] {
        let server = kind.start_with(&["-Y", &users]);
        servers::run(async {
            let client = |user, password| {
                // Cattlegrid answers a wrong password after a second.
                patient([server.address()]).credentials(user, password).build().unwrap()
            };
            assert_eq!(client("ada", "secret").get::<Bytes>("k").await.unwrap(), None);
            let refused = client("ada", "wrong").get::<Bytes>("k").await;
            assert!(
                matches!(&refused, Err(Error::Refused { line, .. }) if line.contains("authentication")),
                "{refused:?}"
            );
            let refused = patient([server.address()]).build().unwrap().get::<Bytes>("k").await;
            assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
            // memcached reads a password up to its first blank.
            let blank = client("bob", "pass word").get::<Bytes>("k").await;
            assert_eq!(blank.is_ok(), kind == Kind::Plain, "{blank:?}");
        });
    }
}

#[test]
fn credentials_that_no_file_can_have_are_refused() {
    let long = "x".repeat(252);
    let pairs =
        [("", "p"), ("u", ""), ("a b", "p"), ("a:b", "p"), ("u", "p\n"), ("u\r", "p"), ("ada", &long)];
    for (user, password) in pairs {
        let built = Client::builder().server("a").credentials(user, password).build();
        assert!(matches!(built, Err(Error::Usage(_))), "{user:?} {password:?}");
    }
    assert!(Client::builder().server("a").credentials("ada", &long[1..]).build().is_ok());
}

#[test]
#[ignore = "needs servers: cargo xtask test --stage client"]
fn unix_sockets() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let path = path.to_str().unwrap();
    let server =
        std::process::Command::new(servers::cattlegrid()).args(["-s", path, "-u", "root"]).spawn().unwrap();
    let server = Ends(server);
    servers::run(async {
        // The path is there before anyone listens.
        until("the server listens", || std::os::unix::net::UnixStream::connect(path).is_ok());
        for form in [path.to_owned(), format!("unix:{path}")] {
            let client = patient([&*form]).build().unwrap();
            assert!(client.set("k", &form, 0).await.unwrap().is_stored());
            assert_eq!(client.get::<String>("k").await.unwrap(), Some(form));
        }
    });
    drop(server);
}

/// Ends the process when it is dropped.
struct Ends(std::process::Child);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}
