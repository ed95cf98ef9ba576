"""Servers for these tests: processes on a free port of the loopback address."""

import errno
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

RULES = """
[server]
prefixes = [":1:", "shop:1:"]

[[rule]]
match = "page:{id}"
hold  = "4s"
grace = "30s"
"""


def free_port():
    """A port that nothing uses, and that nothing takes before a server does: the system gives no connection one below 32768
    by itself (Linux), and servers' usual ones are below 20000."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_768)
        with socket.socket() as own:
            try:
                own.bind(("127.0.0.1", port))
                return port
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise


def cattlegrid_binary():
    """The server's binary: CATTLEGRID_BIN, or target/fast/cattlegrid; None: there is none."""
    named = os.environ.get("CATTLEGRID_BIN")
    root = Path(__file__).resolve().parents[3]
    path = (Path.cwd() / named if not Path(named).is_absolute() else Path(named)) if named else root / "target/fast/cattlegrid"
    if not path.exists() and named:
        path = root / named
    return str(path) if path.exists() else None


class Server:
    """A server that runs. :attr:`kind` is ``"memcached"``, ``"plain"`` (Cattlegrid without a rule file) or ``"rules"``."""

    def __init__(self, kind, rules=RULES):
        self.kind, self.port = kind, free_port()
        self.folder = tempfile.mkdtemp(prefix="cattlegrid-frameworks-")
        if kind == "memcached":
            command = ["memcached", "-l", "127.0.0.1", "-U", "0"]
            if os.getuid() == 0:
                command += ["-u", "nobody"]
        else:
            command = [cattlegrid_binary(), "-o", "debugtime"]
            if kind == "rules":
                path = Path(self.folder, "rules.toml")
                path.write_text(rules)
                command += ["--config", str(path)]
        self.process = subprocess.Popen([*command, "-p", str(self.port)], stderr=subprocess.DEVNULL)
        self.address = f"127.0.0.1:{self.port}"
        until(lambda: connects(self.port), 20, f"{command[0]} listens")

    def ask(self, line, end=b"\r\n"):
        """The reply to a line, until `end`."""
        with socket.create_connection(("127.0.0.1", self.port), 5) as connection:
            connection.settimeout(5)
            connection.sendall(line.encode() + b"\r\n")
            reply = b""
            while not reply.endswith(end):
                reply += connection.recv(65536) or end
            return reply.decode("utf-8", "replace")

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def connects(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    except OSError:
        return False


def until(holds, seconds, what):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.02)
