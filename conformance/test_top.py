"""`cattlegrid top` in a terminal: a pty, whose screen pyte keeps."""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import termios
import threading
import time
import urllib.parse

import pyte
import pytest

import harness
from harness import free_port, tool, wait_until
from test_operations import make_certificate

pytestmark = pytest.mark.only_cattlegrid

SIZES = [(80, 24), (200, 50)]
RULES = """
[[rule]]
match = "page:{id}"
hold = "2s"

[[rule]]
match = "user:{id}"
grace = "10s"
tags = ["user:{id}"]
"""
COMPUTES = 0.2
CLIENTS = 25


class Terminal:
    """A program in a terminal of its own. `screen` is what a person sees, `sent` all that the program has written."""

    def __init__(self, words, columns, rows, **env):
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.ByteStream(self.screen)
        self.sent = b""
        self.master, self.slave = pty.openpty()
        self.size(columns, rows)
        self.before = termios.tcgetattr(self.slave)
        environ = {name: value for name, value in os.environ.items() if not name.startswith("LC_") and name not in ("NO_COLOR", "LANG")}
        environ |= {"TERM": "xterm-256color", "LANG": "C.UTF-8", **env}
        self.process = subprocess.Popen(
            [str(word) for word in words], stdin=self.slave, stdout=self.slave, stderr=self.slave, env=environ, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def size(self, columns, rows):
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, columns, rows):
        self.screen.resize(rows, columns)
        self.size(columns, rows)

    def read(self, seconds=0.05):
        while select.select([self.master], [], [], seconds)[0]:
            data = os.read(self.master, 1 << 16)
            self.sent += data
            self.stream.feed(data)
            seconds = 0
        return self.lines()

    def lines(self):
        return [line.rstrip() for line in self.screen.display]

    def text(self):
        return "\n".join(self.lines())

    def press(self, keys):
        os.write(self.master, keys.encode())

    def until(self, what, seconds=20):
        """Until the screen has this text, or this is true of its lines."""
        is_there = what if callable(what) else lambda lines: any(what in line for line in lines)
        end = time.monotonic() + seconds
        while True:
            lines = self.read()
            if is_there(lines):
                return lines
            assert time.monotonic() < end, f"not on the screen within {seconds} s: {what}\n{self.text()}"

    def ended(self, seconds=10):
        """The status, once it has ended and the terminal is as it was."""
        end = time.monotonic() + seconds
        while self.process.poll() is None:
            self.read()
            assert time.monotonic() < end, f"it has not ended\n{self.text()}"
        self.read()
        assert termios.tcgetattr(self.slave) == self.before, "the terminal is not as it was before"
        return self.process.returncode

    def is_given_back(self):
        """It has left the alternate screen, and shows the cursor."""
        return self.sent.rfind(b"\x1b[?1049l") > self.sent.rfind(b"\x1b[?1049h") and self.sent.rfind(b"\x1b[?25h") > self.sent.rfind(b"\x1b[?25l")

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminal(binary):
    with contextlib.ExitStack() as stack:

        def run(*words, columns=80, rows=24, **env):
            made = Terminal([binary, "top", *words], columns, rows, **env)
            stack.callback(made.close)
            return made

        yield run


@pytest.fixture
def memcached():
    server = harness.Server(tool("memcached"), "memcached")
    yield server
    server.clean()


@pytest.fixture
def ruled(start, open_dir):
    """A server with rules."""
    config = f"{open_dir}/rules.toml"
    with open(config, "w") as f:
        f.write(RULES)
    return start("--config", config, "-t", "2")


def stampede(server, keys=4):
    """Clients that all want the same few keys, and compute those for which they get a miss."""

    def run():
        with server.raw() as c:
            for number in range(keys):
                if c.get(b"page:%d" % number) is None:
                    time.sleep(COMPUTES)
                    c.set(b"page:%d" % number, b"x" * 100)
            c.get(b"user:1")
            c.get(b"plain")
            c.set(b"plain", b"1")
            c.ask(b"delete nothing\r\n")

    threads = [threading.Thread(target=run) for _ in range(CLIENTS)]
    [thread.start() for thread in threads]
    [thread.join(30) for thread in threads]


def figure(text, name, of=-1):
    """The number behind a name: the last one of its section, the total."""
    found = re.search(rf"(?:^|\s\s){re.escape(name)} {{2,}}((?:[\d.]+|-) +)?(\d[\d.]*)(?= {{2}}|$|\n)", text, re.M)
    assert found, f"{name} is not in\n{text}"
    return float(found.group(2))


REQUESTS = {"gets": "cmd_get", "hits": "get_hits", "misses": "get_misses", "stores": "cmd_set", "touches": "cmd_touch"}


def check_requests(text, stats):
    for name, line in REQUESTS.items():
        assert figure(text, name) == float(stats[line]), (name, line, text)
    assert figure(text, "deletes") == float(stats["delete_hits"]) + float(stats["delete_misses"])


def check_protection(text, rules, own):
    for name, lines in {
        "made": ("leases", "leases_stale", "leases_early"), "saved": ("computes_saved",), "held": ("held",), "stale served": ("stale_served",),
        "promoted": [f"promoted_{how}" for how in ("close", "deadline", "invalidated", "gave_up", "slot")], "fills stored": ("fills_stored",),
        "fills dropped": ("fills_dropped",), "failures": ("failures",),
    }.items():
        assert figure(text, name) == sum(float(rules[f"total:{line}"]) for line in lines), (name, text)
    assert figure(text, "held now") == float(own["held"])
    assert figure(text, "computing now") == float(own["leases"])


@pytest.mark.parametrize("columns, rows", SIZES)
def test_figures_are_those_of_stats(terminal, ruled, columns, rows):
    top = terminal(f"127.0.0.1:{ruled.port}", columns=columns, rows=rows)
    top.until("computations")
    stampede(ruled)
    # Rates of the load were seen, and are 0 again.
    lines = top.until(lambda lines: re.search(r"gets +0 +[1-9]", "\n".join(lines)))
    stats, rules, own = ruled.stats(), ruled.stats("rules"), ruled.stats("cattlegrid")
    assert float(rules["total:computes_saved"]) > 20, "there was a stampede"
    text = "\n".join(lines)
    check_requests(text, stats)
    check_protection(text, rules, own)
    ratio = float(stats["get_hits"]) / float(stats["cmd_get"])
    assert f"{ratio * 100:.1f} % since start" in text
    assert f"{rules['total:computes_saved']} since start" in text
    if columns == 200:
        assert figure(text, "items") == float(stats["curr_items"]) and figure(text, "evicted") == float(stats["evictions"])
        assert figure(text, "soft bumps") == 0 and figure(text, "threads") == 2
    # The table of rules, in totals.
    top.press("2t")
    lines = top.until(lambda lines: any("since start" in line for line in lines) and any("page:{id}" in line for line in lines))
    row = next(line.split() for line in lines if "page:{id}" in line)
    hits = sum(float(rules[f"1:{line}"]) for line in ("hits", "held_filled", "held_old")) / float(rules["1:gets"]) * 100
    made = sum(int(rules[f"1:{line}"]) for line in ("leases", "leases_stale", "leases_early"))
    assert row[:8] == ["1", "page:{id}", f"{hits:.1f}", rules["1:gets"], str(made), rules["1:computes_saved"], rules["1:held"], rules["1:stale_served"]]
    # All lines of a rule.
    top.press("\x1b[B\r")
    lines = top.until("rule 1: page:{id}")
    shown = {line.split()[0]: line.split()[-1] for line in lines[4:-1] if line}
    for name, value in shown.items():
        assert rules[f"1:{name}"] == value, name
    assert "held_filled" in shown
    top.press("\x1b")
    top.until("user:{id}")
    top.press("q")
    assert top.ended() == 0 and top.is_given_back()


@pytest.mark.parametrize("columns, rows", SIZES)
def test_memcached_of_debian(terminal, memcached, columns, rows):
    stampede(memcached)
    top = terminal(f"127.0.0.1:{memcached.port}", columns=columns, rows=rows)
    lines = top.until(lambda lines: re.search(r"gets +0 +[1-9]", "\n".join(lines)))
    assert " memcached 1.6." in lines[0]
    check_requests("\n".join(lines), memcached.stats())
    top.press("2")
    top.until("this server has none")
    top.press("7")
    top.until("memory by use")
    top.press("\x1b[F")
    row = next(line.split() for line in top.until("slab classes")[2:] if line.split()[:1] == ["1"])
    assert row[1:3] == ["96", "B"] and row[4] == memcached.stats("slabs")["1:used_chunks"]
    top.press("0/cmd_\r")
    lines = top.until("only rows with")
    stats = memcached.stats()
    shown = dict(line.split()[:2] for line in lines if line.startswith("cmd_"))
    assert len(shown) == 5 and all(stats[name] == value for name, value in shown.items())
    # A control key of ours would be an ordinary key of its, and a miss.
    top.press("6")
    top.until("slow log")
    top.press("8")
    top.until("this server has none")
    time.sleep(1.5)
    assert memcached.stats()["cmd_get"] == stats["cmd_get"]


def test_sizes_change(terminal, ruled):
    top = terminal(f"127.0.0.1:{ruled.port}")
    top.until("computations")
    top.resize(200, 50)
    top.until(lambda lines: len(lines) == 50 and lines[49].startswith("? help") and "drops by cause" in "\n".join(lines))
    top.resize(40, 10)
    top.until("The terminal has 40x10")
    top.resize(80, 24)
    top.until(lambda lines: lines[23].startswith("? help") and "computations" in "\n".join(lines))
    top.press("?")
    top.until("Ctrl-L")
    top.press("x")
    top.until("computations")


def test_a_server_that_starts_again_and_its_rates(terminal, start):
    port = free_port()
    server = start("-p", str(port))
    with server.raw() as c:
        for _ in range(500):
            c.get(b"x")
    top = terminal(f"127.0.0.1:{port}", "--interval", "0.5")
    top.until(lambda lines: re.search(r"gets +0 +500", "\n".join(lines)))
    server.stop()
    top.until("no answer since")
    top.until("connection refused")
    assert re.search(r"gets +0 +500", top.text()), "the last figures stay"
    faint = [top.screen.buffer[row][0] for row in range(8, 20)]
    assert all(cell.fg != "default" for cell in faint if cell.data.strip()), "greyed"
    server.start()
    seen = []

    def is_back(lines):
        text = "\n".join(lines)
        seen.extend(float(rate) for rate in re.findall(r"requests +([\d.]+)/s", text))
        return "no answer" not in text and re.search(r"gets +0 +0", text)

    top.until(is_back)
    assert all(rate < 100 for rate in seen), seen
    top.press("q")
    assert top.ended() == 0


def test_a_server_that_hangs_does_not_hold_the_keys_up(terminal):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # A machine that is busy is not busy each time.
        for is_last in (False, False, False, True):
            top = terminal(f"127.0.0.1:{listener.getsockname()[1]}")
            top.until("connecting")
            top.press("2")
            top.until("no answer yet")
            top.until("no answer within")
            begun = time.monotonic()
            top.press("q")
            assert top.ended() == 0
            took = time.monotonic() - begun
            if took < 3:
                break
            assert not is_last, took


@pytest.mark.parametrize("how", ["q", "\x03", signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1])
def test_the_terminal_is_given_back(terminal, ruled, how):
    top = terminal(f"127.0.0.1:{ruled.port}")
    top.until("computations")
    assert termios.tcgetattr(top.slave) != top.before
    top.press(how) if isinstance(how, str) else top.process.send_signal(how)
    assert top.ended() == 0
    assert top.is_given_back()


def test_it_ends_with_its_terminal(terminal, ruled):
    top = terminal(f"127.0.0.1:{ruled.port}")
    top.until("computations")
    os.close(top.slave)
    os.close(top.master)
    top.process.wait(10)
    top.master, top.slave = pty.openpty()


@pytest.mark.parametrize("how", ["\x1a", signal.SIGTSTP])
def test_it_stops_and_goes_on(terminal, ruled, how):
    top = terminal(f"127.0.0.1:{ruled.port}")
    top.until("computations")
    top.press(how) if isinstance(how, str) else top.process.send_signal(how)

    def state():
        top.read()
        with open(f"/proc/{top.process.pid}/stat") as f:
            return f.read().rsplit(") ", 1)[1][0]

    wait_until("it has stopped", lambda: state() == "T")
    top.read(0.2)
    assert top.is_given_back() and termios.tcgetattr(top.slave) == top.before
    top.screen.reset()
    top.process.send_signal(signal.SIGCONT)
    top.until("computations")
    assert not top.is_given_back() and termios.tcgetattr(top.slave) != top.before
    top.press("q")
    assert top.ended() == 0


def test_keys_do_not_speak_to_the_terminal(terminal, ruled, memcached):
    key = b"page:\x1b]0;owned\x07\x1b[2J\xc2\x9bx"
    for server in (ruled, memcached):
        top = terminal(f"127.0.0.1:{server.port}", "--view", "keys")
        end = time.monotonic() + 20
        with server.raw() as c:
            c.set(key, b"1")
            while "%1B" not in top.text():
                c.get(key)
                c.get(b"other")
                top.read(0.01)
                assert time.monotonic() < end, top.text()
        shown = re.search(r"page\S+", top.text()).group()
        assert urllib.parse.unquote(shown.rstrip("~")).startswith("page:\x1b]0;owned\x07\x1b[2J") and "%1B]" in shown, shown
        assert b"\x1b]0;owned" not in top.sent and b"\x9bx" not in top.sent
        top.press("q")
        assert top.ended() == 0
    with ruled.raw() as c:
        c.send(b"get page:\x1b[31mred\r\n")
        top = terminal(f"127.0.0.1:{ruled.port}", "--view", "slow")
        top.until(lambda lines: "%1B" in "\n".join(lines) and "being computed now" in "\n".join(lines))
        assert b"\x1b[31mred" not in top.sent


def test_plain_terminals(terminal, ruled, binary):
    colour = re.compile(rb"\x1b\[(?:\d+;)*(?:3[0-79]|4[0-79]|38;5;\d+|48;5;\d+)(?:;\d+)*m")
    address = f"127.0.0.1:{ruled.port}"
    top = terminal(address, LANG="C", NO_COLOR="1")
    top.until("computations")
    assert top.sent.isascii() and not [c for c in colour.findall(top.sent) if c not in (b"\x1b[39m", b"\x1b[49m")]
    top = terminal(address)
    top.until("computations")
    assert not top.sent.isascii() and colour.search(top.sent)
    top = terminal(address, TERM="dumb")
    assert top.ended() == 1 and "--once" in top.text() and b"\x1b" not in top.sent
    done = subprocess.run([binary, "top", address], capture_output=True, text=True, timeout=20)
    assert done.returncode == 1 and "no terminal" in done.stderr and "--once" in done.stderr and not done.stdout


def test_once(ruled, memcached, binary, start):
    def once(*words, status=0):
        done = subprocess.run([binary, "top", "--once", *words], capture_output=True, text=True, timeout=30)
        assert done.returncode == status, done.stderr
        return done.stdout if status == 0 else done.stderr

    stampede(ruled)
    stampede(memcached)
    stats, rules, own = ruled.stats(), ruled.stats("rules"), ruled.stats("cattlegrid")
    text = once(f"127.0.0.1:{ruled.port}")
    check_requests(text, stats)
    check_protection(text, rules, own)
    row = next(line.split() for line in text.splitlines() if "page:{id}" in line)
    assert row[3] == rules["1:gets"] and figure(text, "limit (-m)") == float(stats["limit_maxbytes"])
    assert text.isascii() and "\x1b" not in text
    check_requests(once(f"127.0.0.1:{memcached.port}"), memcached.stats())
    only = once(f"localhost:{ruled.port}", "--view", "rules")
    assert "page:{id}" in only and "limit (-m)" not in only
    assert "connection refused" in once(f"127.0.0.1:{free_port()}", status=1)
    other = start("-l", "[::1]", "-p", str(free_port(socket.AF_INET6, "::1")))
    assert "requests" in once(f"[::1]:{other.port}")


def test_logins_rights_tls_and_unix_sockets(start, binary, open_dir, terminal):
    users, config, login = f"{open_dir}/users", f"{open_dir}/rules.toml", f"{open_dir}/login"
    with open(users, "w") as f:
        f.write("boss:secret\nweb:other\n")
    with open(config, "w") as f:
        f.write(RULES + '\n[[user]]\nname = "web"\nrights = ["read", "write"]\n')
    server = start("-Y", users, "--config", config)
    address = f"127.0.0.1:{server.port}"

    def once(*words):
        return subprocess.run([binary, "top", "--once", *words], capture_output=True, text=True, timeout=30)

    def as_user(line, *words):
        with open(login, "w") as f:
            f.write(line + "\n")
        return once(address, "--login", login, *words)

    done = once(address)
    assert done.returncode == 1 and "--login FILE" in done.stderr
    done = as_user("boss:secret")
    assert done.returncode == 0 and "computations" in done.stdout and "user:{id}" in done.stdout
    done = as_user("web:wrong")
    assert done.returncode == 1 and "the login of web was refused" in done.stderr and "wrong" not in done.stderr
    done = as_user("web:other")
    assert done.returncode == 0 and "requests" in done.stdout and "stats rules: not allowed" in done.stdout

    # What a user may not see is asked for once a connection, so that the server's counter and log stay quiet.
    top = terminal(address, "--login", login, "--interval", "0.2")
    top.until("this user may see totals only")

    def not_allowed():
        with server.raw() as c:
            assert c.ask(b"set x 0 0 11\r\nboss secret\r\n") == b"STORED\r\n"
            return int(c.stats("cattlegrid")["not_allowed"])

    before = not_allowed()
    top.read(1)
    time.sleep(1)
    assert not_allowed() == before

    make_certificate(open_dir, issuer=make_certificate(open_dir, "ca"))
    server = start("-Z", "-o", f"ssl_chain_cert={open_dir}/cert.pem,ssl_key={open_dir}/key.pem")
    address = f"127.0.0.1:{server.port}"
    assert "requests" in once(address, "--tls").stdout
    assert "requests" in once(address, "--tls", "--tls-ca", f"{open_dir}/cacert.pem").stdout
    make_certificate(open_dir, "other")
    assert once(address, "--tls", "--tls-ca", f"{open_dir}/othercert.pem").returncode == 1
    assert once(address).returncode == 1
    path = f"{open_dir}/socket"
    start("-s", path)
    assert "requests" in once(path).stdout
