"""Certificates and keys of every kind that the `openssl` command makes by default, and what is said of those that cannot be used."""

import os
import ssl
import subprocess

import pytest

from harness import Closed, Raw
from test_operations import make_certificate, tls

pytestmark = pytest.mark.only_cattlegrid
VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
KEYS = {
    "rsa": ("genrsa", "-out", "{}", "2048"),
    "rsa-4096": ("genrsa", "-out", "{}", "4096"),
    "pkcs8": ("genpkey", "-algorithm", "RSA", "-out", "{}"),
    "ec": ("ecparam", "-name", "prime256v1", "-genkey", "-out", "{}"),
    "ec-384": ("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-384", "-out", "{}"),
    "ed25519": ("genpkey", "-algorithm", "ED25519", "-out", "{}"),
}


class Files:
    """Files that `openssl` writes."""

    def __init__(self, directory):
        self.dir = directory

    def path(self, name):
        return f"{self.dir}/{name}"

    def openssl(self, *words, **options):
        done = subprocess.run(["openssl", *words], capture_output=True, text=True, cwd=self.dir, timeout=60, **options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def key(self, name, kind="ec"):
        self.openssl(*(word.format(name + ".key") for word in KEYS[kind]))

    def authority(self, name="ca", *more):
        """As `req -x509` makes one: version 3."""
        self.key(name)
        self.openssl("req", "-x509", "-new", "-key", name + ".key", "-subj", "/CN=" + name, "-days", "3", "-out", name + ".pem", *more)

    def version_1(self, name, kind="ec", ca="ca", *more):
        """As `x509 -req` makes one without extensions: version 1."""
        self.key(name, kind)
        self.openssl("req", "-new", "-key", name + ".key", "-subj", "/CN=" + name, "-out", name + ".csr")
        signer = ("-CA", ca + ".pem", "-CAkey", ca + ".key", "-CAcreateserial") if ca else ("-signkey", name + ".key")
        self.openssl("x509", "-req", "-in", name + ".csr", *signer, "-days", "2", "-out", name + ".pem", *more)
        assert "Version: 1 (0x0)" in self.openssl("x509", "-in", name + ".pem", "-noout", "-text")

    def options(self, name, *more):
        return ("-Z", "-o", ",".join((f"ssl_chain_cert={self.path(name + '.pem')},ssl_key={self.path(name + '.key')}", *more)))


@pytest.fixture
def files(open_dir):
    return Files(open_dir)


def served(server, files, name=None, version=None):
    """Whether a client with this certificate is served. Under TLS 1.3 a refusal comes behind the handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if version:
        context.minimum_version = context.maximum_version = version
    if name:
        context.load_cert_chain(files.path(name + ".pem"), files.path(name + ".key"))
    try:
        with Raw(context.wrap_socket(server.connect())) as c:
            return c.ask(b"mn\r\n") == b"MN\r\n"
    except (OSError, Closed):
        return False


@pytest.mark.parametrize("kind", KEYS)
def test_servers_of_version_1(start, files, kind):
    files.authority()
    files.version_1("server", kind)
    server = start(*files.options("server"))
    for version in VERSIONS:
        with tls(server, version) as c:
            assert c.set(b"k", b"v") == b"STORED" and c.get(b"k") == b"v"
        checked = files.openssl(
            "s_client", "-connect", f"127.0.0.1:{server.port}", "-CAfile", "ca.pem", "-verify_return_error",
            "-tls1_2" if version == VERSIONS[0] else "-tls1_3", input="quit\n",
        )
        assert "Verify return code: 0 (ok)" in checked


@pytest.mark.parametrize("ca_of_version_1", [False, True])
@pytest.mark.parametrize("kind", ["rsa", "ec", "ed25519"])
def test_clients_of_version_1(start, files, kind, ca_of_version_1):
    files.authority() if not ca_of_version_1 else files.version_1("ca", "rsa", None)
    files.authority("strangers")
    files.version_1("server")
    files.version_1("client", kind)
    files.version_1("stranger", kind, "strangers")
    files.authority("impostor", "-subj", "/CN=ca")
    files.version_1("false", kind, "impostor")
    files.openssl("x509", "-req", "-in", "client.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "-1", "-out", "old.pem")
    os.link(files.path("client.key"), files.path("old.key"))
    for mode in (1, 2):
        server = start(*files.options("server", f"ssl_verify_mode={mode}", "ssl_ca_cert=" + files.path("ca.pem")))
        for version in VERSIONS:
            assert served(server, files, "client", version), (mode, version)
            for name in ("stranger", "false", "old"):
                assert not served(server, files, name, version), (mode, version, name)
            assert served(server, files, None, version) == (mode == 1)


def test_a_client_whose_certificate_is_in_the_file_of_authorities(start, files):
    """Self-signed, as `req -x509` makes one."""
    files.authority("server")
    files.authority("client")
    files.authority("stranger")
    server = start(*files.options("server", "ssl_verify_mode=2", "ssl_ca_cert=" + files.path("client.pem")))
    for version in VERSIONS:
        assert served(server, files, "client", version)
        assert not served(server, files, "stranger", version)


@pytest.mark.parametrize("mode", [1, 2, 3])
def test_without_authorities_the_server_starts(start, files, mode):
    files.authority("server")
    files.authority("client")
    server = start(*files.options("server", f"ssl_verify_mode={mode}"))
    for version in VERSIONS:
        assert served(server, files, None, version) == (mode == 1)
        assert not served(server, files, "client", version)
    assert "-o ssl_verify_mode without -o ssl_ca_cert=<file>: no certificate of a client is good" in server.log()


def refused(binary, files, option="ssl_key", key="server.key", more=()):
    words = (f"ssl_chain_cert={files.path('server.pem')}", f"ssl_key={files.path(key)}", *more)
    user = ("-u", "root") if os.geteuid() == 0 else ()
    done = subprocess.run([binary, *user, "-p", "-1", "-Z", "-o", ",".join(words)], capture_output=True, text=True, timeout=20)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1 and f"-o {option} {files.dir}/" in done.stderr, done.stderr
    return done.stderr


@pytest.mark.parametrize("bits", [1024, 8192])
def test_rsa_keys_that_are_too_short_or_too_long(binary, files, bits):
    files.authority("server")
    primes = ("-primes", "4") if bits == 8192 else ()
    for form in ((), ("-traditional",)):
        files.openssl("genrsa", *form, "-out", "rsa.key", *primes, str(bits))
        said = refused(binary, files, key="rsa.key")
        assert f"is an RSA key of {bits} bits, which cannot be used; use one of 2048 to 4096 bits" in said


@pytest.mark.parametrize(
    "words, more",
    [
        (("pkcs8", "-topk8", "-passout", "pass:x"), ()),
        (("pkcs8", "-topk8", "-v1", "PBE-SHA1-3DES", "-passout", "pass:x"), ()),
        (("pkcs8", "-topk8", "-passout", "pass:x", "-outform", "DER"), ("ssl_keyformat=DER",)),
        (("rsa", "-aes256", "-traditional", "-passout", "pass:x"), ()),
        (("ec", "-aes256", "-passout", "pass:x"), ()),
    ],
)
def test_encrypted_keys(binary, files, words, more):
    files.authority("server")
    files.key("plain", "ec" if words[0] == "ec" else "rsa")
    files.openssl(*words, "-in", "plain.key", "-out", "encrypted.key")
    said = refused(binary, files, key="encrypted.key", more=more)
    assert "is an encrypted key, and the server does not ask for a pass phrase; write it without one: openssl pkey -in" in said


def test_files_that_are_cut_off(binary, files):
    files.authority("server")
    files.key("rsa", "rsa")
    for kind in ("rsa", "server"):
        with open(files.path(kind + ".key")) as f:
            text = f.read()
        for cut in (len(text) // 2, len(text) - 20, 20):
            with open(files.path("cut.key"), "w") as f:
                f.write(text[:cut])
            said = refused(binary, files, key="cut.key")
            assert any(words in said for words in ("is cut off", "has no private key in PEM")), said
            assert "[45" not in said and "failed to parse" not in said, "bytes or a parser's words"
    files.openssl("pkey", "-in", "rsa.key", "-outform", "DER", "-out", "whole.der")
    with open(files.path("whole.der"), "rb") as f, open(files.path("cut.der"), "wb") as g:
        g.write(f.read()[:-100])
    assert "is cut off" in refused(binary, files, key="cut.der", more=("ssl_keyformat=DER",))
    with open(files.path("server.pem")) as f:
        text = f.read()
    with open(files.path("server.pem"), "w") as f:
        f.write(text[: len(text) // 2])
    said = refused(binary, files, "ssl_chain_cert")
    assert "is cut off: the line -----END CERTIFICATE----- is missing" in said


def test_a_key_of_another_certificate(binary, files):
    files.authority("server")
    files.key("other")
    assert "the first certificate is not that of the key in" in refused(binary, files, "ssl_chain_cert", "other.key")
    files.authority("ca")
    files.version_1("server")
    assert "the first certificate is not that of the key in" in refused(binary, files, "ssl_chain_cert", "other.key")
    make_certificate(files.dir)
