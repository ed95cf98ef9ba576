"""dogpile.cache's own tests of back ends and mutexes, over each kind of server."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import KINDS, started

pytest.importorskip("dogpile.cache")
pytestmark = pytest.mark.timeout(400)

# Tests of dogpile.cache that do not pass, and why. Empty: all pass.
EXCEPTIONS = {}


CLASSES = ["Distributed", "WithTimeout", "NotDistributed", "Expiring", "Serializer", "Tagged", "Mutex", "MutexWithTimeout"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CLASSES)
def test_tests_of_dogpile_pass(kind, name, environment, tmp_path):
    """Each class has a server of its own, since they use the same keys."""
    if name == "Tagged" and kind != "rules":
        pytest.skip("only servers with rules have tags")
    server = started(kind)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-rfEs", "-p", "no:cacheprovider", "--rootdir", tmp_path, f"dogpile_suite.py::Test{name}"],
            cwd=Path(__file__).resolve().parent,
            env={**environment, "CACHE_PORT": str(server.port), **({"CACHE_TAGS": "1"} if kind == "rules" else {})},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        server.stop()
    report = done.stdout + done.stderr
    failed = set(re.findall(r"^(?:FAILED|ERROR) \S+::(\w+::\w+)", report, re.MULTILINE))
    assert done.returncode in (0, 1) and failed <= set(EXCEPTIONS), report[-6000:]
    assert int(re.search(r"(\d+) passed", report).group(1)) >= (4 if "Mutex" in name else 20), report[-2000:]
