"""php-memcached (on the C library libmemcached), as Debian has it, over both protocols."""

import pathlib
import subprocess

import pytest

from crowd import WIDE_FENCE, rule, write_rules
from harness import tool
from test_operations import users  # noqa: F401

PHP = pathlib.Path(__file__).parent / "php"


def start_php(script, *args):
    return subprocess.Popen([tool("php"), PHP / script, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process, status=0):
    """What it has printed. Its own assertions decide."""
    out, errors = process.communicate(timeout=200)
    assert process.returncode == status, out + errors
    return out.splitlines() if status == 0 else errors


@pytest.mark.parametrize("protocol", ["binary", "text"])
def test_every_operation(start, protocol):
    server, second = start(), start()
    assert len(ended(start_php("memcached.php", server.port, f"second={second.port}", f"protocol={protocol}"))) == 15
    assert server.running() and second.running(), server.log() + second.log()


@pytest.mark.only_cattlegrid
def test_logging_in(start, users):  # noqa: F811
    server = start("-S", "-Y", users)
    assert len(ended(start_php("memcached.php", server.port, "username=alice", "password=secret"))) == 15
    for wrong in (["username=alice", "password=wrong"], []):
        assert "storage: " in ended(start_php("memcached.php", server.port, "tests=storage", *wrong), 1)


@pytest.mark.only_cattlegrid
def test_a_herd_of_processes(start, open_dir):
    """Each process computes what it misses in a multi-get."""
    server = start("--config", write_rules(open_dir, WIDE_FENCE + rule()), "-m", 1024)
    first = start_php("herd.php", server.port, "first")
    assert first.stdout.readline() == "missed 10\n"
    others = [start_php("herd.php", server.port) for _ in range(8)]
    assert ended(first) == ["computed 10"]
    for other in others:
        assert ended(other) == ["missed 0", "computed 0"]
    rules = server.stats("rules")
    assert (rules["total:leases"], rules["total:held"]) == ("10", "80")
