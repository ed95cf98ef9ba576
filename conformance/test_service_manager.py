"""What a service manager is told and passes on: readiness, reloads, the end, signs of life, sockets."""

import contextlib
import ctypes
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
from conftest import server_bin
from harness import PROMPT, free_port, wait_until

PASS_ON = """
import os, sys
count = int(sys.argv[1])
kept = [os.dup(int(word)) for word in sys.argv[2:2 + count]]
for place, fd in enumerate(kept):
    os.dup2(fd, 100 + place)
for place in range(count):
    os.dup2(100 + place, 3 + place)
    os.set_inheritable(3 + place, True)
os.environ["LISTEN_PID"], os.environ["LISTEN_FDS"] = os.environ.get("AS_PID") or str(os.getpid()), str(count)
os.execv(sys.argv[2 + count], sys.argv[2 + count:])
"""
"""A parent that passes sockets on, as sd_listen_fds(3) has it."""


class Manager:
    """The socket of a service manager, and the process that it has started."""

    def __init__(self, folder, binary):
        self.binary = binary
        self.path = folder / "notify"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self.path))
        self.socket.settimeout(2 * PROMPT)
        self.process = None

    def start(self, *options, sockets=(), **environment):
        environment = {**os.environ, "NOTIFY_SOCKET": str(self.path), **environment}
        fds = [one.fileno() for one in sockets]
        command = [self.binary, *options]
        if sockets:
            command = [sys.executable, "-c", PASS_ON, str(len(fds)), *map(str, fds), *command]
        self.process = subprocess.Popen(command, env=environment, pass_fds=fds, stderr=subprocess.PIPE)
        return self.process

    def message(self):
        """The next one, as a dictionary."""
        return dict(line.split("=", 1) for line in self.socket.recv(4096).decode().splitlines())

    def until(self, name):
        """The next one that has this name."""
        while True:
            message = self.message()
            if name in message:
                return message

    def close(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process:
            self.process.stderr.close()
        self.socket.close()


@pytest.fixture
def manager(tmp_path, request):
    own = Manager(tmp_path, server_bin(request.config))
    yield own
    own.close()


def listening(family=socket.AF_INET, address=("127.0.0.1", 0)):
    own = socket.socket(family)
    own.bind(address)
    own.listen()
    return own


def version(address, family=socket.AF_INET):
    with socket.socket(family) as client:
        client.settimeout(2 * PROMPT)
        client.connect(address)
        client.sendall(b"version\r\n")
        return client.recv(100)


def test_ready_reloading_and_stopping(manager, tmp_path):
    rules, port = tmp_path / "rules.toml", free_port()
    rules.write_text("[[rule]]\nmatch = 'page:{id}'\nhold = '400ms'\n")
    process = manager.start("-p", str(port), "--config", str(rules))
    assert manager.message() == {"READY": "1", "STATUS": f"Serving on 127.0.0.1:{port}"}
    assert version(("127.0.0.1", port)).startswith(b"VERSION")

    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    process.send_signal(signal.SIGHUP)
    message = manager.message()
    assert message["RELOADING"] == "1" and before <= int(message["MONOTONIC_USEC"]) <= before + 60_000_000
    assert manager.message() == {"READY": "1", "STATUS": f"Serving on 127.0.0.1:{port}"}

    rules.write_text("[[rule]]\nmatch = 'page:{id}'\nholt = '400ms'\n")
    process.send_signal(signal.SIGHUP)
    assert manager.message()["RELOADING"] == "1"
    message = manager.message()
    assert message["READY"] == "1" and f"nothing reloaded: {rules}:3: " in message["STATUS"], message

    process.send_signal(signal.SIGTERM)
    message = manager.message()
    assert message["STOPPING"] == "1" and int(message["EXTEND_TIMEOUT_USEC"]) == 10_000_000
    assert process.wait(2 * PROMPT) == 0


def test_ready_comes_after_the_loaders(manager, tmp_path):
    """And every reload ends in one READY=1, also of several that are asked for together."""
    program = tmp_path / "slow.sh"
    program.write_text("sleep 1\nprintf '{\"ready\":true}\\n'\nwhile read -r line; do :; done\n")
    rules = tmp_path / "rules.toml"
    rules.write_text(
        "[[rule]]\nmatch = 'page:{id}'\nloader = 'slow'\n[loader.slow]\ncommand = ['sh', 'slow.sh']\nmode = 'jsonl'\nidle = 1\n"
    )
    began = time.monotonic()
    process = manager.start("-p", str(free_port()), "--config", str(rules))
    assert manager.message() == {"STATUS": "Starting loaders"}
    assert manager.message()["READY"] == "1" and time.monotonic() - began > 0.9
    for _ in range(2):
        process.send_signal(signal.SIGHUP)
        assert manager.message()["RELOADING"] == "1"
    assert manager.message()["READY"] == "1"
    manager.socket.settimeout(2)
    with pytest.raises(TimeoutError):
        manager.message()


def test_signs_of_life_until_a_lane_hangs(manager):
    process = manager.start("-p", str(free_port()), "-t", "2", WATCHDOG_USEC="400000")
    manager.until("READY")
    began = time.monotonic()
    for _ in range(8):
        assert manager.message() == {"WATCHDOG": "1"}
    assert time.monotonic() - began > 0.5, "four in each interval"

    threads = pathlib.Path(f"/proc/{process.pid}/task")
    lane = next(int(task.name) for task in threads.iterdir() if (task / "comm").read_text().strip() == "lane 1")
    libc = ctypes.CDLL(None, use_errno=True)
    zero = (ctypes.c_long(0), ctypes.c_long(0))
    seize, interrupt, detach, wall = 0x4206, 0x4207, 17, 0x40000000
    if libc.ptrace(seize, lane, *zero) != 0:
        pytest.skip(f"ptrace: {os.strerror(ctypes.get_errno())}")
    assert libc.ptrace(interrupt, lane, *zero) == 0
    os.waitpid(lane, wall)
    # One may be on its way.
    manager.socket.settimeout(1)
    with pytest.raises(TimeoutError):
        for _ in range(3):
            manager.message()
    assert libc.ptrace(detach, lane, *zero) == 0
    manager.socket.settimeout(2 * PROMPT)
    assert manager.message() == {"WATCHDOG": "1"}
    process.terminate()
    assert process.wait(2 * PROMPT) == 0


def test_sockets_that_are_passed_replace_the_addresses(manager, tmp_path):
    tcp, path = listening(), tmp_path / "socket"
    unix = listening(socket.AF_UNIX, str(path))
    unused = free_port()
    process = manager.start("-p", str(unused), "-l", "127.0.0.1", sockets=[tcp, unix])
    assert manager.until("READY")["STATUS"] == f"Serving on 127.0.0.1:{tcp.getsockname()[1]} and {path}"
    assert version(tcp.getsockname()).startswith(b"VERSION") and version(str(path), socket.AF_UNIX).startswith(b"VERSION")
    with pytest.raises(ConnectionRefusedError):
        version(("127.0.0.1", unused))
    process.terminate()
    assert process.wait(2 * PROMPT) == 0
    assert path.exists(), "it is the manager's"
    # They still listen: the next server gets the connections that come meanwhile.
    with socket.create_connection(tcp.getsockname()) as waiting:
        waiting.settimeout(2 * PROMPT)
        waiting.sendall(b"version\r\n")
        manager.start(sockets=[tcp])
        assert waiting.recv(100).startswith(b"VERSION")


def test_sockets_that_are_meant_for_another_process_are_left_alone(manager):
    tcp, port = listening(), free_port()
    manager.start("-p", str(port), sockets=[tcp], AS_PID="1")
    assert manager.until("READY")["STATUS"] == f"Serving on 127.0.0.1:{port}"


@pytest.mark.parametrize(
    "make, error",
    [
        (lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM), "descriptor 3 of LISTEN_FDS: it is no stream socket, and there is no UDP"),
        (lambda: open(os.devnull), "descriptor 3 of LISTEN_FDS: it is no socket"),
    ],
)
def test_what_cannot_be_used_is_an_error(manager, make, error):
    with contextlib.closing(make()) as passed:
        process = manager.start(sockets=[passed])
        assert process.wait(2 * PROMPT) == 1
        assert error in process.stderr.read().decode()


def test_systemd_starts_it_with_the_first_client(request):
    activate = shutil.which("systemd-socket-activate")
    if not activate:
        pytest.skip("systemd-socket-activate is not installed")
    port = free_port()
    process = subprocess.Popen([activate, "-l", f"127.0.0.1:{port}", server_bin(request.config)], stderr=subprocess.DEVNULL)
    try:

        def answers():
            with contextlib.suppress(OSError):
                return version(("127.0.0.1", port))

        assert wait_until("it serves", answers).startswith(b"VERSION")
    finally:
        process.terminate()
        assert process.wait(2 * PROMPT) == 0
