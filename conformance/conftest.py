"""Fixtures of the conformance suite: which server it runs against, and servers to talk to."""

import itertools
import os
import tempfile

import pytest

import harness
from loaders import Scene

# Workers of servers that are started from here would lose the rest of a long line of JSON when a signal interrupts its write
# (docs/loaders.md).
os.environ.pop("PYTHONUNBUFFERED", None)


def pytest_addoption(parser):
    parser.addoption("--server-bin", help="server to test (default: $CATTLEGRID_BIN, target/fast/cattlegrid, target/release/cattlegrid)")
    parser.addoption("--server-kind", choices=("cattlegrid", "memcached"), help="default: by what the server's -V prints")
    parser.addoption("--reference-bin", default="memcached", help="memcached to compare with (default: the one in the path)")


def pytest_configure(config):
    config.addinivalue_line("markers", "only_1_6_45: memcached 1.6.18 answers otherwise; not run against it")
    config.addinivalue_line("markers", "only_cattlegrid: a promise of ours that memcached does not make")


def server_bin(config):
    given = config.getoption("--server-bin") or os.environ.get("CATTLEGRID_BIN")
    candidates = [given] if given else [harness.ROOT / "target" / p / "cattlegrid" for p in ("fast", "release")]
    for path in candidates:
        path = os.path.abspath(path)
        if os.access(path, os.X_OK):
            return path
    raise pytest.UsageError("no server to test: build it, set CATTLEGRID_BIN or give --server-bin PATH")


def server_kind(config):
    return config.getoption("--server-kind") or harness.kind_of(server_bin(config))


def pytest_report_header(config):
    return f"server under test: {server_kind(config)}, {os.path.basename(server_bin(config))}"


def pytest_collection_modifyitems(config, items):
    """What memcached does not promise is deselected there, so that a skip never hides anything."""
    if server_kind(config) != "memcached":
        return
    out = [i for i in items if i.get_closest_marker("only_cattlegrid") or i.get_closest_marker("only_1_6_45")]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [i for i in items if i not in out]


@pytest.fixture(scope="session")
def kind(request):
    """"cattlegrid" or "memcached"."""
    return server_kind(request.config)


@pytest.fixture(scope="session")
def binary(request):
    return server_bin(request.config)


@pytest.fixture(scope="session")
def is_1_6_18(kind, binary):
    """Whether the server is Debian's memcached 1.6.18, which differs from 1.6.45 in known ways."""
    if kind != "memcached":
        return False
    import subprocess

    return "1.6.18" in subprocess.run([binary, "-V"], capture_output=True, text=True).stdout


@pytest.fixture
def start(kind, binary):
    """Starts servers with extra arguments; they are stopped after the test. `ours=` is added for cattlegrid only."""
    servers = []

    def run(*args, ours=(), env=None):
        if kind == "cattlegrid":
            args += tuple(ours)
        servers.append(harness.Server(binary, kind, args, env))
        return servers[-1]

    yield run
    for server in servers:
        server.clean()


@pytest.fixture(scope="module")
def module_server(kind, binary):
    server = harness.Server(binary, kind)
    yield server
    server.clean()


@pytest.fixture(scope="module")
def module_big_server(kind, binary):
    server = harness.Server(binary, kind, ["-I", "8m", "-m", "256"])
    yield server
    server.clean()


def checked(server):
    if not server.running():
        server.start()
    yield server
    assert server.running(), f"the server died with {server.process.returncode}\n{server.log()}"


@pytest.fixture
def server(module_server):
    """A server with default options, one for the tests of a file; each must leave it alive."""
    yield from checked(module_server)


@pytest.fixture
def big_server(module_big_server):
    """A server with `-I 8m`."""
    yield from checked(module_big_server)


@pytest.fixture
def raw(server):
    with server.raw() as c:
        yield c


@pytest.fixture
def open_dir():
    """A directory that a server which gave up root can write to."""
    with tempfile.TemporaryDirectory(prefix="conformance-") as d:
        os.chmod(d, 0o777)
        yield d


@pytest.fixture
def scene(start, open_dir):
    """A directory for a server with loaders, which is not started yet."""
    made = Scene(start, open_dir)
    yield made
    made.clean()


_numbers = itertools.count()


@pytest.fixture
def key():
    """A key that no other test uses (text)."""
    return f"key-{os.getpid()}-{next(_numbers)}"
