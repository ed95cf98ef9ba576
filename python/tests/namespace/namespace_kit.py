"""Servers and processes of the Rust client for the tests of this folder."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parents[1]
sys.path.insert(0, str(TESTS / "frameworks"))
import servers  # noqa: E402

RULES = """
[[rule]]
match = "page:{user}:{id}"
hold = "4s"
"""


def missing(what):
    (pytest.fail if os.environ.get("CATTLEGRID_SET_UP") else pytest.skip)(f"{what} is missing")


def started(kind, rules=RULES):
    """A server that runs; where there is none, the test is skipped, unless CATTLEGRID_SET_UP says that all is there."""
    if not (shutil.which("memcached") if kind == "memcached" else servers.cattlegrid_binary()):
        missing("memcached" if kind == "memcached" else "the server's binary: set CATTLEGRID_BIN")
    return servers.Server(kind, rules=rules)


class Several:
    """Servers of a kind."""

    def __init__(self, kind, count):
        self.kind = kind
        self.running = [started(kind) for _ in range(count)]
        self.addresses = [server.address for server in self.running]

    def stop(self):
        for server in self.running:
            server.stop()


class Rust:
    """A process of the Rust client with a namespacer."""

    def __init__(self, addresses, prefix="___"):
        named = os.environ.get("CLIENT_FIXTURE")
        places = [Path(named)] if named else [ROOT / "target" / kind / "client-fixture" for kind in ("fast", "debug")]
        path = next((path for path in places if path.exists()), None)
        if path is None:
            missing("client-fixture of the Rust client: cargo build -p cattlegrid-client --bin client-fixture")
        command = [str(path), ",".join(addresses), "names", prefix]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ready = self.process.stdout.readline().strip()

    def ask(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().rstrip("\n")

    def stop(self):
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()
