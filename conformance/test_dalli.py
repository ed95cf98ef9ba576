"""Dalli (Ruby), as Debian has it, over the binary protocol, its default there."""

import pathlib
import subprocess

import pytest

from crowd import WIDE_FENCE, rule, write_rules
from harness import tool, wait_until
from test_operations import users  # noqa: F401

RUBY = pathlib.Path(__file__).parent / "ruby"


def start_ruby(script, *args):
    return subprocess.Popen(
        [tool("ruby"), "-W0", RUBY / script, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(process, status=0):
    """What it has printed. Its own assertions decide."""
    out, errors = process.communicate(timeout=200)
    assert process.returncode == status, out + errors
    return out.splitlines() if status == 0 else errors


def test_every_operation(start):
    server = start()
    assert len(ended(start_ruby("dalli.rb", server.port))) == 15
    assert server.running(), server.log()


@pytest.mark.only_cattlegrid
def test_logging_in(start, users):  # noqa: F811
    server = start("-S", "-Y", users)
    assert len(ended(start_ruby("dalli.rb", server.port, "username=alice", "password=secret"))) == 15
    errors = ended(start_ruby("dalli.rb", server.port, "username=alice", "password=wrong"), 1)
    assert "Error authenticating: 0x20" in errors, errors
    ended(start_ruby("dalli.rb", server.port), 1)


@pytest.mark.only_cattlegrid
def test_a_herd_of_processes(start, open_dir):
    """Each process computes what it misses in a multi-get, then fetches one key more."""
    server = start("--config", write_rules(open_dir, WIDE_FENCE + rule()), "-m", 1024)
    first = start_ruby("herd.rb", server.port, "first")
    assert first.stdout.readline() == "missed 10\n"
    others = [start_ruby("herd.rb", server.port) for _ in range(8)]
    assert ended(first) == ["computed 10"]
    for other in others:
        lines = ended(other)
        assert lines == ["missed 0", "computed 0"]
    rules = server.stats("rules")
    assert (rules["total:leases"], rules["total:held"]) == ("10", "80")
    wait_until("they are gone", lambda: int(server.stats()["curr_connections"]) <= 2)
