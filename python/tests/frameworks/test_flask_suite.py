"""Flask-Caching's own tests that ask for a cache, over each kind of server."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sources import source_of

pytest.importorskip("flask_caching")
pytestmark = pytest.mark.timeout(400)

HERE = Path(__file__).resolve().parent
MODULES = ["test_cache.py", "test_memoize.py", "test_view.py", "test_templates.py", "test_cattlegrid.py"]

# Tests of Flask-Caching that do not pass, and why.
EXCEPTIONS = {
    "test_cache_delete_many": "before Flask-Caching 2.4 it expects that a key which is missing ends delete_many, and later that it does not",
}


@pytest.fixture(scope="module")
def tests_of_flask_caching(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flask") / "tests"
    shutil.copytree(source_of("Flask-Caching") / "tests", folder)
    for name in ("conftest.py", "test_cattlegrid.py"):
        shutil.copy(HERE / "flask_suite" / name, folder / name)
    return folder


def test_tests_of_flask_caching_pass(tests_of_flask_caching, server, environment):
    there = [name for name in MODULES if (tests_of_flask_caching / name).exists()]
    if server.kind == "memcached" and "clock.advance" not in (tests_of_flask_caching / "test_memoize.py").read_text():
        there = ["test_cache.py", "test_cattlegrid.py"]  # the others wait two minutes for expiries
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rfEs", "-p", "no:cacheprovider", "--reruns", "2", *there],
        cwd=tests_of_flask_caching,
        env={
            **environment,
            "CACHE_PORT": str(server.port),
            **({} if server.kind == "memcached" else {"CACHE_DEBUGTIME": "1"}),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    report = done.stdout + done.stderr
    failed = set(re.findall(r"^(?:FAILED|ERROR) \S+?::(\S+)", report, re.MULTILINE))
    assert done.returncode in (0, 1) and {name.split("[")[0] for name in failed} <= set(EXCEPTIONS), report[-6000:]
    assert int(re.search(r"(\d+) passed", report).group(1)) >= 20 * len(there), report[-2000:]
