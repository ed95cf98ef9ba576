"""Private keys of every kind that OpenSSL makes, and the counters of TLS."""

import os
import re
import socket
import subprocess
import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from harness import wait_until
from test_operations import make_certificate, tls

pytestmark = pytest.mark.only_cattlegrid
PKCS8, TRADITIONAL = PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL


def write(directory, key, form, label=None):
    """Key and certificate; `label`: what the PEM says instead of what is in it."""
    import datetime

    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "keys")])
    now = datetime.datetime.now(datetime.timezone.utc)
    no_hash = isinstance(key, (ed25519.Ed25519PrivateKey, ed448.Ed448PrivateKey))
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
    builder = builder.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=1))
    certificate = builder.sign(key, None if no_hash else hashes.SHA256())
    text = key.private_bytes(Encoding.PEM, form, NoEncryption()).decode()
    if label:
        text = re.sub("(BEGIN|END) .*PRIVATE KEY", rf"\1 {label}", text)
    with open(directory + "/key.pem", "w") as f:
        f.write(text)
    with open(directory + "/cert.pem", "wb") as f:
        f.write(certificate.public_bytes(Encoding.PEM))
    return ("-Z", "-o", f"ssl_chain_cert={directory}/cert.pem,ssl_key={directory}/key.pem")


def rsa_key():
    return rsa.generate_private_key(65537, 2048)


@pytest.mark.parametrize(
    "make, form, label",
    [
        (rsa_key, TRADITIONAL, None),
        (rsa_key, PKCS8, None),
        (rsa_key, PKCS8, "RSA PRIVATE KEY"),
        (lambda: ec.generate_private_key(ec.SECP256R1()), TRADITIONAL, None),
        (lambda: ec.generate_private_key(ec.SECP384R1()), PKCS8, "EC PRIVATE KEY"),
        (ed25519.Ed25519PrivateKey.generate, PKCS8, None),
    ],
)
def test_keys_that_load(start, open_dir, make, form, label):
    with tls(start(*write(open_dir, make(), form, label))) as c:
        assert c.set(b"k", b"v") == b"STORED"


@pytest.mark.parametrize(
    "kind, make, form",
    [
        ("P-521", lambda: ec.generate_private_key(ec.SECP521R1()), PKCS8),
        ("P-521", lambda: ec.generate_private_key(ec.SECP521R1()), TRADITIONAL),
        ("P-224", lambda: ec.generate_private_key(ec.SECP224R1()), PKCS8),
        ("secp256k1", lambda: ec.generate_private_key(ec.SECP256K1()), TRADITIONAL),
        ("Ed448", ed448.Ed448PrivateKey.generate, PKCS8),
        ("DSA", lambda: dsa.generate_private_key(2048), PKCS8),
    ],
)
def test_keys_that_do_not_are_named(binary, open_dir, kind, make, form):
    user = ("-u", "root") if os.geteuid() == 0 else ()
    words = [binary, *user, "-p", "-1", *write(open_dir, make(), form)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=20)
    assert done.returncode == 2
    expected = f"key.pem: is a {kind} key, which cannot be used; use RSA, ECDSA with P-256 or P-384, or Ed25519"
    assert expected in done.stderr, done.stderr


def test_counters(start, open_dir):
    make_certificate(open_dir)
    server = start("-Z", "-o", f"ssl_chain_cert={open_dir}/cert.pem,ssl_key={open_dir}/key.pem", "-t", 1)
    with tls(server) as c:
        assert {c.stats()[name] for name in ("ssl_handshake_errors", "ssl_proto_errors")} == {"0"}
        with socket.create_connection(("127.0.0.1", server.port), 5) as s:
            s.sendall(b"version\r\n" * 10)
            wait_until("a handshake has failed", lambda: c.stats()["ssl_handshake_errors"] == "1")
        with socket.create_connection(("127.0.0.1", server.port), 5):
            pass
        wait_until("one was broken off", lambda: c.stats()["ssl_handshake_errors"] == "2")
        d = tls(server)
        assert d.set(b"k", b"v") == b"STORED"
        os.write(d.sock.fileno(), b"not a record at all")
        wait_until("the rules are broken", lambda: c.stats()["ssl_proto_errors"] == "1")
        assert c.stats()["ssl_handshake_errors"] == "2"
        d.close()

        def age():
            return int(c.stats()["time_since_server_cert_refresh"])

        wait_until("the certificates are two seconds old", lambda: age() >= 2)
        since = time.monotonic()
        c.send(b"refresh_certs\r\n")
        assert c.line() == b"OK"
        assert age() <= time.monotonic() - since + 1
    assert "ssl_handshake_errors" not in start().stats()
