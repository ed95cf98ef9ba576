"""Values that say which version they are, rewritten while slow readers fetch them.

    versions.py --server-bin PATH [--way tcp|unix|tls] [--disturb NAME] [--rounds N] [--seed N]

A version is a number that fills the whole value, 8 bytes each, and is also its client flags; what is appended and prepended is
numbered. So a reply shows whether it is one version, whole, and whether it is older than what was stored when it was asked for.
Each key has one writer; readers ask in every form, several requests at once, through small buffers, and pause before and while
they read. `DISTURB` has what writers do besides. Runs all ways and disturbances by default.
"""

import argparse
import base64
import os
import pathlib
import random
import socket
import ssl
import tempfile
import threading
import time

from harness import MIB, Closed, Raw, Server, allow_files, wait_until
from test_operations import make_certificate

SIZES = (4_096, 16_384, 60_000, 65_536, 70_000, 300_000, 524_288, MIB - 300, 3 * MIB)
"""On both sides of where values get pages of their own, and around them."""
READERS = 16
WRITERS = 3
COUNTER = b"counter"
STALL = 60.0


def body(version, size):
    unit = b"%07d|" % version
    return (unit * (size // 8 + 1))[:size]


def version_of(value, size):
    """The version of a value of `size` bytes without what was appended and prepended; fails if it is not whole."""
    at, marks = 0, []
    while value[at : at + 1] == b"<":
        marks.append(bytes(value[at : at + 8]))
        at += 8
    assert sorted(marks, reverse=True) == marks, f"prepended out of order: {marks[:5]}"
    end = at + size
    assert len(value) >= end and (len(value) - end) % 8 == 0, f"{len(value)} bytes, {at} of them prepended, and the value has {size}"
    marks = [bytes(value[i : i + 8]) for i in range(end, len(value), 8)]
    assert sorted(marks) == marks and all(m[:1] == b">" for m in marks), f"appended out of order: {marks[:5]}"
    version = int(value[at : at + 7])
    whole = body(version, size)
    if value[at:end] != whole:
        first = next(i for i in range(size) if value[at + i] != whole[i])
        raise AssertionError(f"version {version} until byte {first} of {size}, then {bytes(value[at + first : at + first + 24])!r}")
    return version


class Slow(Raw):
    """Reads in small pieces, with a pause behind some of them."""

    def __init__(self, sock, chance):
        super().__init__(sock)
        self.chance, self.chunk = chance, chance.choice((4_096, 16_384, 65_536))

    def receive(self, count):
        if self.chance.random() < 0.1:
            time.sleep(self.chance.uniform(0, 0.01))
        try:
            got = self.sock.recv(min(count, self.chunk))
        except (ConnectionError, ssl.SSLError):
            got = b""
        if not got:
            raise Closed(self.buffer)
        return got

    def fill(self):
        self.buffer += self.receive(self.chunk)

    def exactly(self, count):
        out, self.buffer = bytearray(self.buffer[:count]), self.buffer[count:]
        while len(out) < count:
            out += self.receive(count - len(out))
        return out


class Key:
    """A key, its size, and what is known of its versions."""

    def __init__(self, name, size):
        self.name, self.size = name, size
        self.begun = self.stored = 0
        self.refused = set()
        """Versions that were never sent whole."""
        self.emptied = False
        """Its value may be removed (`md x`)."""

    def next(self):
        self.begun += 1
        return self.begun

    def check(self, value, flags, floor):
        """`value` is one version, not older than `floor`."""
        if not value and self.emptied:
            return
        version = version_of(value, self.size)
        assert flags is None or version == flags, f"flags of {flags}, value of {version}"
        assert floor <= version <= self.begun, f"version {version}, {floor} was stored before the request, {self.begun} is the last"
        assert version not in self.refused, f"version {version} was never whole"


class Way:
    """How clients connect."""

    def __init__(self, name, directory):
        self.name, self.options, self.context = name, ["-l", "127.0.0.1"], None
        if name == "unix":
            self.options = ["-s", os.path.join(directory, "socket")]
        elif name == "tls":
            make_certificate(directory)
            self.options += ["-Z", "-o", f"ssl_chain_cert={directory}/cert.pem,ssl_key={directory}/key.pem"]
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            self.context.check_hostname, self.context.verify_mode = False, ssl.CERT_NONE

    def socket(self, server, narrow=0):
        """`narrow`: bytes of its receive buffer, 0 for the usual."""
        s = socket.socket(socket.AF_UNIX if server.unix else socket.AF_INET)
        if narrow:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, narrow)
            if not server.unix:
                # Else a window smaller than a segment of the loopback opens by timers only.
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400)
        s.settimeout(STALL)
        s.connect(server.unix or ("127.0.0.1", server.port))
        return self.context.wrap_socket(s) if self.context else s

    def raw(self, server):
        return Raw(self.socket(server))


class Run:
    """Writers and readers on one server, until each reader has asked `rounds` times."""

    def __init__(self, server, way, disturb, rounds, seed=1, sizes=SIZES):
        self.server, self.way, self.disturb, self.rounds, self.seed = server, way, disturb, rounds, seed
        self.keys = [Key(b"v%d" % n, size) for n, size in enumerate(sizes)]
        self.over = threading.Event()
        self.errors, self.lock = [], threading.Lock()
        self.values = self.misses = self.closed = self.most_pinned = 0

    def __call__(self):
        with self.way.raw(self.server) as c:
            memory = 64 if self.disturb in ("memlimit", "pressure") else 128
            c.send(b"flush_all\r\ncache_memlimit %d\r\nset %s 0 0 20\r\n%020d\r\n" % (memory, COUNTER, 0))
            assert [c.line() for _ in range(3)] == [b"OK", b"OK", b"STORED"]
            displaced = int(c.stats("cattlegrid")["unsent_displaced"])
            readers = [threading.Thread(target=self.guard, args=(self.reader, n)) for n in range(READERS)]
            writers = [threading.Thread(target=self.guard, args=(self.writer, n)) for n in range(WRITERS)]
            for thread in writers:
                thread.start()
            # Else readers that are quick find nothing.
            wait_until("each key was stored", lambda: self.errors or all(key.stored for key in self.keys), STALL)
            for thread in readers:
                thread.start()
            while any(thread.is_alive() for thread in readers):
                self.most_pinned = max(self.most_pinned, int(c.stats("cattlegrid")["pinned_bytes"]))
                time.sleep(0.01)
            self.over.set()
            for thread in writers:
                thread.join(STALL)
            if self.errors:
                raise self.errors[0]
            left = {}

            def nothing_is_left():
                left.update(c.stats("cattlegrid"))
                return all(left[name] == "0" for name in ("unsent_bytes", "pinned_bytes", "partial_bytes"))

            wait_until("nothing is unsent, pinned or arriving", nothing_is_left)
            displaced = int(left["unsent_displaced"]) - displaced
            assert self.closed <= displaced, f"{self.closed} connections were closed, {displaced} of them displaced"
            assert self.values > READERS, "most were misses"
        return self

    def guard(self, work, number):
        try:
            work(number, random.Random(f"{self.seed} {work.__name__} {number} {self.disturb}"))
        except Exception as error:
            self.errors.append(error)
            self.over.set()

    # Readers

    def reader(self, number, chance):
        done = 0
        while done < self.rounds and not self.over.is_set():
            with Slow(self.way.socket(self.server, chance.choice((8_192, 16_384, 65_536))), chance) as c:
                try:
                    while done < self.rounds and not self.over.is_set():
                        done += self.ask(c, chance)
                        if chance.random() < 0.1:
                            break
                except Closed:
                    self.closed += 1
                    done += 1

    def ask(self, c, chance):
        """Sends some requests at once, waits, and checks the replies; how many had a value."""
        forms = [chance.choice((self.get, self.get_many, self.meta, self.meta_quiet)) for _ in range(chance.choice((1, 1, 2, 4)))]
        requests, checks = b"", []
        for form in forms:
            request, check = form(chance)
            requests += request
            checks.append(check)
        c.send(requests)
        if chance.random() < 0.5:
            time.sleep(chance.uniform(0, 0.15))
        found = 0
        for check in checks:
            found += check(c)
        with self.lock:
            self.values += found
        return 1

    def floors(self, keys):
        return {key.name: (key, key.stored) for key in keys}

    def get(self, chance, many=1):
        keys = [chance.choice(self.keys) for _ in range(many)]
        floors = self.floors(keys)
        verb = chance.choice((b"get", b"gets", b"gat 1000", b"gats 1000") if self.disturb != "expiry" else (b"get", b"gets"))
        names = [key.name for key in keys]
        names.insert(chance.randrange(len(names) + 1), COUNTER)

        def check(c):
            asked, found = iter(names), 0
            while (line := c.line()) != b"END":
                words = line.split()
                assert words[0] == b"VALUE" and len(words) == (5 if verb.startswith((b"gets", b"gats")) else 4), line
                assert words[1] in asked, f"{words[1]} is out of order in {names}"
                value = c.exactly(int(words[3]))
                assert c.exactly(2) == b"\r\n"
                if words[1] == COUNTER:
                    assert len(value) == 20 and value.strip().isdigit(), value
                else:
                    key, floor = floors[words[1]]
                    key.check(value, int(words[2]), floor)
                    found += 1
            return found

        return verb + b" " + b" ".join(names) + b"\r\n", check

    def get_many(self, chance):
        return self.get(chance, chance.randrange(2, 6))

    def meta(self, chance, quiet=b""):
        key = chance.choice(self.keys)
        (_, floor) = self.floors([key])[key.name]
        flags = [b"k", b"v", b"s", b"f", b"t", b"c", b"Oopaque", b"h", b"l"]
        flags = [b"v", b"s", b"f"] if chance.random() < 0.3 else flags
        chance.shuffle(flags)
        name = key.name
        if chance.random() < 0.2:
            name, flags = base64.b64encode(name), [*flags, b"b"]

        def check(c):
            line = c.line()
            words = line.split()
            if words[0] == b"EN":
                return 0
            if quiet and words[0] == b"MN":
                return 0
            assert words[0] == b"VA", line
            value = c.exactly(int(words[1]))
            assert c.exactly(2) == b"\r\n"
            got = {word[:1]: word[1:].decode() for word in words[2:]}
            assert set(got) >= {flag[:1] for flag in flags if flag not in (b"v", b"b")}, (line, flags)
            assert int(got[b"s"]) == len(value), line
            key.check(value, int(got[b"f"]), floor)
            assert not quiet or c.line() == b"MN"
            return 1

        return b"mg %s %s%s\r\n" % (name, b" ".join(flags), quiet), check

    def meta_quiet(self, chance):
        request, check = self.meta(chance, b" q")
        return request + b"mn\r\n", check

    # Writers

    def writer(self, number, chance):
        mine = self.keys[number::WRITERS]
        disturb = DISTURB[self.disturb]
        with self.way.raw(self.server) as c:
            for key in mine:
                self.store(c, key, chance)
            while not self.over.is_set():
                key = chance.choice(mine)
                self.store(c, key, chance)
                disturb(self, c, key, chance)
                time.sleep(chance.choice((0, 0.001, 0.005)))

    def store(self, c, key, chance, exptime=0):
        version = key.next()
        value = body(version, key.size)
        verb = chance.choice(("set", "ms", "noreply", "cas"))
        if verb == "cas":
            # Another writer may flush, and it may be evicted or marked stale meanwhile.
            cas = self.cas_of(c, key, chance)
            verb = "set" if cas is None else "cas"
        if verb == "ms":
            c.send(b"ms %s %d F%d T%d\r\n%s\r\n" % (key.name, key.size, version, exptime, value))
            line = c.line()
            assert line == b"HD", line
        elif verb == "noreply":
            c.send(b"set %s %d %d %d noreply\r\n%s\r\nmn\r\n" % (key.name, version, exptime, key.size, value))
            line = c.line()
            assert line == b"MN", line
        elif verb == "cas":
            c.send(b"cas %s %d %d %d %d\r\n%s\r\n" % (key.name, version, exptime, key.size, cas, value))
            line = c.line()
            assert line in (b"STORED", b"EXISTS", b"NOT_FOUND"), line
            if line != b"STORED":
                key.refused.add(version)
                return
        else:
            c.send(b"set %s %d %d %d\r\n%s\r\n" % (key.name, version, exptime, key.size, value))
            line = c.line()
            assert line == b"STORED", line
        key.stored = version

    def cas_of(self, c, key, chance):
        """The unique of its value; None: it has none."""
        if chance.random() < 0.9:
            c.send(b"mg %s c k\r\n" % key.name)
            line = c.line()
            return int(line.split()[1][1:]) if line.startswith(b"HD") else None
        # Over a connection of its own, which reads a value and may be displaced for it, as those of readers.
        try:
            with self.way.raw(self.server) as reader:
                reader.send(b"gets %s\r\n" % key.name)
                words = reader.line().split()
                if words[0] != b"VALUE":
                    return None
                reader.exactly(int(words[3]) + 7)
                return int(words[4])
        except (Closed, ssl.SSLError):
            self.closed += 1
            return None

    def rewrite(self, c, key, chance):
        pass

    def grow(self, c, key, chance):
        for n in range(chance.randrange(1, 4)):
            mark = b"%06d" % n
            for request in (
                b"append %s 0 0 8\r\n>%s \r\n" % (key.name, mark),
                b"ms %s 8 MP\r\n<%s \r\n" % (key.name, mark),
            ):
                c.send(request)
                line = c.line()
                assert line in (b"STORED", b"HD", b"NOT_STORED", b"NS"), line

    def touch(self, c, key, chance):
        c.send(b"touch %s 1000\r\n" % key.name)
        c.line()
        c.send(b"incr %s 7\r\n" % COUNTER)
        c.line()
        c.send(b"mg %s T500\r\n" % key.name)
        c.line()
        c.send(b"md %s I T300\r\n" % key.name)
        c.line()

    def flush(self, c, key, chance):
        if chance.random() < 0.5:
            return
        key.emptied = True
        c.send(chance.choice((b"flush_all\r\n", b"delete %s\r\n" % key.name, b"md %s\r\n" % key.name, b"md %s x\r\n" % key.name)))
        c.line()
        c.send(b"add %s 0 0 20\r\n%020d\r\n" % (COUNTER, 0))
        c.line()
        self.store(c, key, chance)

    def expiry(self, c, key, chance):
        self.store(c, key, chance, 1)
        if chance.random() < 0.1:
            c.send(b"touch %s -1\r\n" % key.name)
            c.line()

    def memlimit(self, c, key, chance):
        if chance.random() < 0.1:
            c.send(b"cache_memlimit %d\r\n" % chance.choice((24, 32, 64, 128)))
            assert c.line() == b"OK"
        self.pressure(c, key, chance)

    def pressure(self, c, key, chance):
        others = b""
        for _ in range(8):
            size = chance.choice((1_000, 20_000, 50_000, 90_000))
            others += b"set other:%d 0 0 %d noreply\r\n%s\r\n" % (chance.randrange(3_000), size, b"o" * size)
        c.send(others)
        # Each is read now and then, so that not all are of no use.
        assert c.ask(b"mg other:%d\r\n" % chance.randrange(3_000)) in (b"HD\r\n", b"EN\r\n")

    def pieces(self, c, key, chance):
        """The next version arrives in pieces; three of four times not all of it does, or not as announced."""
        version = key.next()
        value = body(version, key.size)
        head = chance.choice((b"set %s %d 0 %d\r\n", b"set %s %d 0 %d noreply\r\n", b"ms %s F%d S%d\r\n"))
        if head.startswith(b"ms"):
            head = b"ms %s %d F%d\r\n" % (key.name, key.size, version)
        else:
            head %= (key.name, version, key.size)
        fate = chance.choice(("whole", "cut", "reset", "bad"))
        if fate != "whole":
            key.refused.add(version)
        stream = head + value + (b"\r\n" if fate == "whole" else b"zz")
        if fate in ("cut", "reset"):
            stream = stream[: chance.randrange(1, len(head) + len(value))]
        upload = self.way.socket(self.server)
        try:
            at = 0
            for place in sorted(chance.randrange(len(stream)) for _ in range(chance.randrange(1, 6))) + [len(stream)]:
                upload.sendall(stream[at:place])
                at = place
                time.sleep(chance.uniform(0, 0.01))
            if fate == "reset":
                upload.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            elif fate in ("whole", "bad"):
                # The rest of the line behind a bad block is discarded.
                upload.sendall(b"\r\nmn\r\n" * (1 + (fate == "bad")))
                line = (raw := Raw(upload)).line()
                quiet = b"noreply" in head
                want = (b"STORED", b"HD") if fate == "whole" else (b"CLIENT_ERROR bad data chunk",)
                assert line in want or quiet and line in (b"MN", b"ERROR", b"CLIENT_ERROR bad command line format", *want), (fate, head, line)
                while line != b"MN":
                    line = raw.line()
                if fate == "whole":
                    key.stored = version
        finally:
            upload.close()
        if chance.random() < 0.5:
            # What was there before is there still.
            floor = key.stored
            try:
                with self.way.raw(self.server) as other:
                    value = other.get(key.name)
            except (Closed, ssl.SSLError):
                self.closed += 1
            else:
                assert value is not None, f"{head} {fate}: the old value is gone"
                key.check(value, None, floor)


DISTURB = {
    name: getattr(Run, name) for name in ("rewrite", "grow", "touch", "flush", "expiry", "memlimit", "pressure", "pieces")
}
WAYS = ("tcp", "unix", "tls")
OPTIONS = ["-m", "128", "-I", "4m", "-t", "2"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--server-bin", required=True)
    parser.add_argument("--way", choices=WAYS)
    parser.add_argument("--disturb", choices=sorted(DISTURB))
    parser.add_argument("--rounds", type=int, default=100, help="requests of each reader")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    allow_files(1000)
    for way in [args.way] if args.way else WAYS:
        with tempfile.TemporaryDirectory(prefix="versions-") as directory:
            os.chmod(directory, 0o777)
            way = Way(way, directory)
            server = Server(pathlib.Path(args.server_bin).resolve(), "cattlegrid", [*OPTIONS, *way.options])
            try:
                for disturb in [args.disturb] if args.disturb else DISTURB:
                    since = time.monotonic()
                    run = Run(server, way, disturb, args.rounds, args.seed)()
                    print(
                        f"{way.name:5} {disturb:9} {run.values:6} values, {sum(key.begun for key in run.keys):6} versions,"
                        f" at most {run.most_pinned / MIB:5.1f} MiB pinned, {run.closed} connections displaced, {time.monotonic() - since:.1f} s",
                        flush=True,
                    )
            finally:
                server.clean()


if __name__ == "__main__":
    main()
