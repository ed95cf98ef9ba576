"""The test suite of python-binary-memcached, from its source distribution, on sockets, TCP, IPv6, SASL and TLS with its own certificates.

No test is left out. Its servers have fixed ports there; here they have free ones, and what it starts as `memcached` is the server under test. The suite's
`conftest.py` is not in the distribution: that below starts the same servers.
"""

import os

import pytest

import suites
from harness import free_port

pytestmark = pytest.mark.only_cattlegrid  # memcached has to be built with SASL and TLS for it

VERSION = "0.33.0"

CONFTEST = '''
import pytest

IPV6_PORT = {ipv6}


@pytest.fixture
def memcached_ipv6():
    pass


@pytest.fixture
def memcached_sasl():
    return {sasl}, "user", "password"
'''


@pytest.fixture
def suite(start, binary, tmp_path):
    """Its tests in a directory of their own with servers: what runs some of them, and how many of them there must be."""
    directory = suites.source("python-binary-memcached", VERSION)
    needs = suites.packages("trustme==1.2.1", "idna==3.20")
    unix = str(tmp_path / "memcached.sock")
    start("-s", unix)
    tcp, second, ipv6 = start(), start(), start("-l", "::1")
    (tmp_path / "users").write_text("user:password\n")
    sasl = start("-S", "-Y", str(tmp_path / "users"))
    programs = tmp_path / "bin"
    programs.mkdir()
    os.symlink(binary, programs / "memcached")
    tls = free_port()
    tests = tmp_path / "test"
    # Ports that are only names for its hashing stay.
    changes = {
        r"/tmp/memcached\.sock": unix,
        r"\{(|host)\}:11211": rf"{{\1}}:{tcp.port}",
        r"\{host\}:5000": f"{{host}}:{second.port}",
        r"\"-p5001\"": f'"-p{tls}", "-l127.0.0.1"',
        r"\{\}:5001": f"{{}}:{tls}",
        r"time\.sleep\(0\.1\)": "time.sleep(1)",
    }
    at_the_default_port = {r"Protocol\(os\.environ\[\"MEMCACHED_HOST\"\]\)": f'Protocol("127.0.0.1:{tcp.port}")'}
    suites.copy(directory / "test", tests, changes, {"test_auth.py": at_the_default_port})
    (tests / "conftest.py").write_text(CONFTEST.format(ipv6=ipv6.port, sasl=sasl.port))
    env = {
        "MEMCACHED_HOST": "127.0.0.1",
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": f"{needs}:{tests}",
    }

    def run(least, *arguments):
        out, outcomes = suites.run(tests, *arguments, env=env)
        wrong = {name: outcome for name, outcome in outcomes.items() if outcome != "PASSED"}
        assert not wrong and len(outcomes) >= least, out
        for server in (tcp, second, ipv6, sasl):
            assert server.running(), server.log()

    return run


def test_all_but_tls(suite):
    suite(255, "--ignore=test_tls.py")


def test_tls_with_its_own_certificates(suite):
    """It starts the server with `ssl_verify_mode=1` and without a certificate authority, as memcached can be started."""
    suite(40, "test_tls.py")
