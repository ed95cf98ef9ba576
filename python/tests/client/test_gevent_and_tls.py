"""Greenlets of gevent in place of threads, and connections over TLS."""

import os
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from herd_support import Server, missing, unused

from cattlegrid.client import CacheError

SOURCE = Path(__file__).parents[2] / "src"

GREENLETS = """
from gevent import monkey; monkey.patch_all()
import time, gevent
from cattlegrid.client import Cache

cache, count = Cache("{address}", timeout=20), []

def compute():
    count.append(1)
    time.sleep(0.3)
    return "v"

calls = [gevent.spawn(cache.get_or_compute, "h:1", compute, compute_time=10) for _ in range(50)]
gevent.joinall(calls, timeout=30, raise_error=True)
assert {{call.value for call in calls}} == {{"v"}} and len(count) == 1, count
values = {{f"k:{{n}}": "x" * 2000 for n in range(200)}}
assert cache.set_many(values) == [] and cache.get_many(values) == values
killed = gevent.spawn(cache.get_or_compute, "h:2", lambda: gevent.sleep(60), compute_time=60)
gevent.sleep(0.2)
killed.kill()
try:
    with gevent.Timeout(0.2):
        cache.get_or_compute("h:3", lambda: gevent.sleep(60), compute_time=60)
except gevent.Timeout:
    pass
began = time.monotonic()
assert cache.get_or_compute("h:2", lambda: 1, wait=20) == cache.get_or_compute("h:3", lambda: 1, wait=20) == 1
assert time.monotonic() - began < 5
"""


def test_greenlets(server, tmp_path):
    """A greenlet that is killed, or whose time is over, frees its key."""
    pytest.importorskip("gevent")
    program = tmp_path / "program.py"
    program.write_text(GREENLETS.format(address=server.address))
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    subprocess.run([sys.executable, str(program)], env=environment, check=True, timeout=90)


@pytest.fixture
def certificate(tmp_path):
    """A certificate for localhost, and its key."""
    program = shutil.which("openssl") or missing("openssl")
    files = [tmp_path / "chain.pem", tmp_path / "key.pem"]
    command = [program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-out", str(files[0]), "-keyout", str(files[1])]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return files


def test_tls(certificate, caches):
    chain, key = certificate
    options = ["-Z", "-o", f"ssl_chain_cert={chain}", "-o", f"ssl_key={key}"]
    with Server("rules", options=options) as server:
        address = f"localhost:{server.port}"
        for tls in (str(chain), ssl.create_default_context(cafile=str(chain))):
            cache = caches(address, tls=tls)
            assert cache.get_or_compute("h:1", lambda: {"a": 1}) == {"a": 1}
            values = {f"k:{number}": "x" * 5000 for number in range(200)}
            assert cache.set_many(values) == []
            assert cache.get_many(values) == values
            assert cache.get_or_compute_many(values, unused) == values
        # A certificate that no authority has signed.
        with pytest.raises(CacheError, match="certificate"):
            caches(address, tls=True).get("k")
        with pytest.raises(CacheError):
            caches(address, timeout=1, connect_timeout=1).get("k")
