"""Values from 4 KiB to 3 MiB that are rewritten, changed, flushed, evicted or arriving while slow readers fetch them: each reply is one
version, whole, and none is older than what was stored before the request. `versions.py` alone runs longer.
"""

import os

import pytest

from harness import Server, allow_files
from versions import DISTURB, OPTIONS, WAYS, Run, Way, body, version_of

pytestmark = pytest.mark.only_cattlegrid

ROUNDS = int(os.environ.get("VERSIONS_ROUNDS", "3"))


@pytest.fixture(scope="module", params=WAYS)
def way_and_server(request, kind, binary, tmp_path_factory):
    allow_files(1000)
    directory = tmp_path_factory.mktemp("versions")
    directory.chmod(0o777)
    way = Way(request.param, str(directory))
    server = Server(binary, kind, [*OPTIONS, *way.options, "-u", "root"])
    yield way, server
    server.clean()


@pytest.mark.parametrize("disturb", DISTURB)
def test_each_reply_is_one_version(way_and_server, disturb):
    way, server = way_and_server
    run = Run(server, way, disturb, ROUNDS)()
    if disturb == "rewrite":
        assert run.most_pinned > 0, "no reader had to wait for a value that was replaced: the load is no test"
    assert server.running(), server.log()


def test_a_value_of_two_versions_is_seen():
    for size in (4_096, 60_001, 70_000):
        whole = body(7, size)
        assert version_of(whole, size) == 7
        assert version_of(b"<000001 <000000 " + whole + b">000000 >000001 ", size) == 7
        for mixed in (body(6, size)[:8] + whole[8:], whole[:4_000] + body(8, size)[4_000:], whole[:-1] + b"\r"):
            with pytest.raises(AssertionError):
                version_of(mixed, size)
        for broken in (whole[:-8], whole + b">000001 >000000 ", b"<000000 <000001 " + whole, whole + b">0000"):
            with pytest.raises(AssertionError):
                version_of(broken, size)
