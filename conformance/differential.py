#!/usr/bin/env python3
"""Random command streams to two servers; their replies must be equal, byte for byte after masking.

    differential.py PORT_A PORT_B [--streams 1000] [--from N] [--seed N] [--large] [--tls]

A stream is made from a seed: valid and broken commands, classic and meta, with every verb and flag, binary data, long
keys, odd whitespace, bare line feeds and absurd lengths, cut into sends at random places. A command with an answer of
its own ends it, so that everything before is compared. (Half-closing would not do: memcached may then drop replies that
it has not written yet.) A stream with different
replies is shrunk to a minimal one and printed with its seed; `--seed N` runs just that one. `--large`: values of up to 100 KB instead,
many around sizes at which servers store or receive them otherwise. `--tls`: the first server is spoken to over TLS.

The reference is Debian's memcached 1.6.18 while the servers follow 1.6.45. `KNOWN` lists how the two differ and what is
done about it: forms that are not generated, and replies that are normalised. The recorded answers of 1.6.45 itself
(transcript.py) cover what is left out here.
"""

import argparse
import base64
import itertools
import random
import re
import select
import socket
import ssl
import sys
import time

KNOWN = [
    # (what differs between 1.6.18 and 1.6.45, how it is handled here)
    ("missing arguments, blank lines and unknown words of one letter: ERROR became CLIENT_ERROR bad command line format", "normalised"),
    ("md: `invalid or duplicate flag` became `invalid flag` or `duplicate flag`; a key that is not base64 got a reply of its own", "normalised"),
    ("ms: `incorrect length for M token` became `invalid mode for ms M token`", "normalised"),
    ("a key or flags too large, a bad expiry or CAS in a storage command: the data block is swallowed now", "not generated with a data block"),
    ("E(token) on mg ms md ma, mg C(token), ms s, ms N, md x, ma O, ma k, me b are new", "not generated"),
    ("delete with arguments too many is accepted", "not generated"),
    ("gat and gats without a key: END became an error", "not generated"),
    ("ma with N and q: HD for an item that it made is kept back now", "not generated"),
    ("ma with a key too long: `bad command line format` became `invalid or duplicate flag`", "not generated"),
    ("the remaining time of an item that has expired underflows", "normalised"),
    ("an opaque token too long: other flags have already had their effect when it is refused", "not generated"),
    ("bget, an old alias of get; gat with one word", "no line of random letters can be one"),
    ("ma with T when the number gains a digit: memcached makes a new item and gives the time to the old one", "T not generated on ma"),
    ("md and ma with T and no number: another error", "not generated"),
    ("shutdown, refresh_certs: other words", "not generated"),
    ("stats, lru, slabs, lru_crawler, watch: other numbers", "not generated"),
    ("values within 1 KiB below the item limit: how much of the limit is the item's header differs between servers", "not generated"),
    ("a line of more than 2,048 bytes without its end closes the connection, unless the end came with the same read", "only get and gets, which may be longer"),
    ("a key too long in get, gets, gat, gats: memcached also drops replies to earlier commands that it has not written yet", "not generated"),
    ("counting on a blank or empty value: memcached reads on into the memory behind it", "not generated: a stream has counters or blank values"),
    ("numbers from 2^63 on: memcached looks for a minus sign in the memory behind them", "not generated"),
    ("h after a counter changed: memcached makes a new item, never fetched, if a reply with the old one is still being written", "not generated with counters"),
    (
        "counting what an earlier reply, still being written, or a background thread refers to: memcached makes a new item instead of padding the old one",
        "waits for the replies before it counts; padding of numbers is normalised, s on mg is not generated with counters",
    ),
    ("mg with both b and N returns the key undecoded", "not generated"),
    ("a length far above the item limit: memcached holds its answer back until all of the block has come", "not generated"),
    ("times beyond 2^31 (the year 2038) overflow", "not generated"),
    ("a length above 2^31 is taken modulo 2^32", "not generated"),
    ("CAS values and times", "masked; remaining times may differ by some seconds"),
    ("flush_all with a delay: memcached forgets an earlier flush by it, as far as the crawler has not been there", "not generated"),
]

NORMALISE = [
    (re.compile(p), r)
    for p, r in [
        (rb"(?m)^(?:CLIENT_ERROR bad command line format[^\r\n]*|ERROR)\r$", b"<bad line>\r"),
        (rb"CLIENT_ERROR (?:invalid or duplicate flag|invalid flag|duplicate flag|error decoding key)", b"<bad flag>"),
        (rb"CLIENT_ERROR (?:incorrect length for M token|invalid mode for ms M token)", b"<bad mode>"),
        (rb"(?m)^(VALUE [^ \r\n]+ \d+ \d+) \d+\r$", rb"\1 <cas>\r"),
        (rb"(?m)^((?:HD|VA|EN|NS|EX|NF)[^\r\n]*?) c\d+", rb"\1 c<cas>"),
        (rb"(?m)^((?:HD|VA)[^\r\n]*?) l\d+", rb"\1 l<age>"),
        (rb"(?m)^(ME [^\r\n]*)\r$", lambda m: re.sub(rb"(exp|la|cas|cls|size)=-?\d+", rb"\1=<n>", m.group(0))),
        (rb"(?m)^((?:HD|VA)[^\r\n]* t)(?:0|42949\d{5})(?=[ \r])", rb"\1<past>"),
        (rb"(?m)^VERSION [^\r\n]*", b"VERSION"),
        (rb"(?m)^(VALUE [^ \r\n]+ \d+|VA) \d+([^\r\n]*)\r\n(\d+) +\r$", lambda m: b"%s %d%s\r\n%s\r" % (m[1], len(m[3]), m[2], m[3])),
    ]
]
BASE64_KEY = re.compile(rb"<B64 ([^ >]+)>")


def binary_key(match):
    """A key of bytes that no plain key may have."""
    return base64.b64encode(b"\0\r\n " + match.group(1))


UNSTABLE = "did not happen again"
WAIT = b"<WAIT>"
"""In front of a command: send it only once all before is answered."""
QUIT = b"quit\r\n"

CAS_WANTED = re.compile(rb"<CAS ([^ >]+)>")
REMAINING = re.compile(rb"(?m)^((?:HD|VA)[^\r\n]* t)(\d+)")


def normal(reply):
    for pattern, replacement in NORMALISE:
        reply = pattern.sub(replacement, reply)
    return reply


TICKS = 10
"""Seconds by which remaining times may differ: a stream may be held up in its middle. The times in streams differ by more."""


def equal(a, b):
    """Equal after normalising, except for remaining times that differ by some seconds."""
    a, b = normal(a), normal(b)
    if a == b:
        return True
    ta, tb = REMAINING.findall(a), REMAINING.findall(b)
    return (
        len(ta) == len(tb)
        and REMAINING.sub(rb"\1", a) == REMAINING.sub(rb"\1", b)
        and all(abs(int(x[1]) - int(y[1])) <= TICKS for x, y in zip(ta, tb))
    )


class Stream:
    """The commands of one seed. Keys begin with a placeholder, which each run replaces by digits of its own."""

    PLACEHOLDER = b"~PREFIX~"
    BREAKS = True

    def __init__(self, seed):
        self.seed = seed
        self.r = random.Random(seed)
        r = self.r
        self.keys = [self.PLACEHOLDER + suffix for suffix in (b"a", b"b", b"c" * r.choice((1, 60)), b"d" * (250 - 8))]
        self.broken = self.BREAKS and r.random() < 0.5
        """Whether commands with a wrong framing occur; then nothing large does."""
        self.counts = not self.broken and r.random() < 0.6
        """Whether there are counters; then the framing is right and no value is blank."""
        self.commands = [self.command() for _ in range(r.choice((1, 3, 10, 10, 30, 60)))]
        if not self.broken and r.random() < 0.1:
            self.commands.append(QUIT)
        self.cuts = r.random()
        """How finely it is cut: 0 one send, near 1 many."""

    # Parts

    def key(self):
        return self.r.choice(self.keys[:3] if self.r.random() < 0.95 else self.keys)

    def bad_key(self):
        return self.r.choice((self.PLACEHOLDER + b"x" * 243, b"k" * 1000))

    def number(self):
        r = self.r
        return r.choice((b"0", b"1", b"5", b"10", b"99", b"100", b"%d" % r.getrandbits(r.choice((8, 32)))))

    def bad_number(self):
        return self.r.choice((b"-1", b"x", b"1x", b"18446744073709551616", b"99999999999999999999999", b"", b"0x10", b"1.5"))

    def exptime(self):
        return self.r.choice((b"0", b"0", b"0", b"100", b"2591999", b"-1", b"2000000000"))

    def flags(self):
        return self.r.choice((b"0", b"0", b"1", b"65535", b"4294967295"))

    def data(self):
        data = self.any_data()
        return data if not self.counts or data.strip() else b"abc"

    def any_data(self):
        r = self.r
        kind = r.random()
        if kind < 0.3:
            return b"%d" % r.choice((0, 1, 9, 10, 99, r.getrandbits(40)))
        if kind < 0.4:
            return b""
        if kind < 0.6:
            return r.choice((b"\r\n", b"abc", b"END\r\n", b"\n", b"get a\r\n", b" 1", b"007", b"1 ", b"-1"))
        if self.broken:
            return bytes(r.choice(b"dc123 \r\nget") for _ in range(r.randrange(200)))
        if kind < 0.97:
            return r.randbytes(r.choice((1, 10, 100, 1000, 2047, 2048, 2049, 5000, 20000)))
        return r.randbytes(r.choice((100_000, 500_000, (1 << 20) - 2048, (1 << 20) + 1, (1 << 20) + 100)))

    def cas(self, key):
        """A CAS that is surely wrong, or (`<CAS key>`) the one the key has when the stream gets there."""
        wrong = self.r.choice((b"0", b"1", b"9999999999999"))
        return wrong if self.broken or self.r.random() < 0.5 else b"<CAS %s>" % key

    def space(self):
        return b" " if self.r.random() < 0.98 else self.r.choice((b"  ", b"    "))

    def line(self, *words):
        out = words[0]
        for word in words[1:]:
            out += self.space() + word
        r = self.r.random()
        return out + (b"\r\n" if r < 0.93 else b"\n" if r < 0.97 else b" \r\n")

    def noreply(self):
        return (b"noreply",) if self.r.random() < 0.15 else ()

    # Commands

    def command(self):
        r = self.r
        roll = r.random()
        if self.broken and roll < 0.15:
            return self.broken_command()
        if roll < 0.30:
            return self.storage()
        if roll < 0.42:
            return self.retrieval()
        if roll < 0.50 and self.counts:
            return WAIT + self.line(r.choice((b"incr", b"decr")), self.key(), self.number(), *self.noreply())
        if roll < 0.55:
            return self.line(b"delete", self.key(), *r.choice(((), (), (b"0",), (b"noreply",))))
        if roll < 0.60:
            return self.line(b"touch", self.key(), self.exptime(), *self.noreply())
        if roll < 0.72:
            return self.meta_get()
        if roll < 0.84:
            return self.meta_set()
        if roll < 0.89:
            return self.meta_delete()
        if roll < 0.95 and self.counts:
            return self.meta_arithmetic()
        return r.choice(
            (
                self.line(b"mn"),
                self.line(b"me", self.key()),
                self.line(b"version"),
                self.line(b"verbosity", b"0"),
                self.line(b"verbosity", b"0", b"noreply"),
                self.line(b"flush_all"),
                self.line(b"flush_all", b"noreply"),
                self.line(b"flush_all", b"0"),
            )
        )

    def storage(self):
        verb = self.r.choice((b"set", b"set", b"set", b"add", b"replace", b"append", b"prepend", b"cas"))
        value = self.data()
        if self.counts and verb in (b"append", b"prepend"):
            value = b"x" + value  # else numbers would grow out of bounds
        words = [verb, self.key(), self.flags(), self.exptime(), b"%d" % len(value)]
        if verb == b"cas":
            words.append(self.cas(words[1]))
        return self.line(*words, *self.noreply()) + value + b"\r\n"

    def retrieval(self):
        r = self.r
        verb = r.choice((b"get", b"get", b"gets", b"gat", b"gats"))
        keys = [self.key() for _ in range(r.choice((1, 1, 1, 2, 5, 30)) if len(self.keys[2]) < 50 or verb in (b"get", b"gets") else 2)]
        return self.line(verb, *((self.exptime(),) if verb.startswith(b"gat") else ()), *keys)

    def meta_words(self, verb, key, flags, extra=()):
        r = self.r
        if r.random() < 0.05 and len(key) < 100 and not any(f.startswith(b"N") for f in flags):
            key = b"<B64 %s>" % key
            flags = [*flags, b"b"]
        too_long = [f for f in flags if f.startswith(b"O") and len(f) > 32]
        flags = too_long or list(flags)
        r.shuffle(flags)
        return self.line(verb, key, *extra, *flags)

    def some(self, choices, most=4):
        r = self.r
        picked = r.sample(choices, min(len(choices), r.randrange(most + 1)))
        out, seen = [], set()
        for f in picked:
            if f[:1] not in seen or r.random() < 0.02:
                seen.add(f[:1])
                out.append(f)
        return out

    def token_flags(self):
        r = self.r
        return [b"O" + r.choice((b"1", b"opaque", b"x" * 31)), b"q", b"k"]

    def odd(self, flags):
        """Now and then a flag that is not one, or a number that is none."""
        r = self.r
        if r.random() < 0.04:
            return [*flags, r.choice((b"d", b"z", b"A", b"y", b"P1", b"Labc"))]
        return flags

    def meta_get(self):
        r = self.r
        t = r.choice((b"0", b"100", b"-1", b"5000"))
        choices = [b"c", b"f", b"t", b"u", b"v", b"v", b"T" + t, b"R" + r.choice((b"30", b"0", b"1000"))]
        if not self.counts:
            choices += [b"h", b"s", b"N" + r.choice((b"30", b"0"))]
        flags = self.odd(self.some(choices + self.token_flags(), 6))
        return self.meta_words(b"mg", self.key(), flags)

    def meta_set(self):
        r = self.r
        value = self.data()
        if self.counts:
            value = value if value.isdigit() else b"x" + value
        key = self.key()
        choices = [b"c", b"F" + self.flags(), b"T" + self.exptime(), b"I", b"C" + self.cas(key)]
        modes = b"RSErseQ" if self.counts and value.isdigit() else b"APRSEaprseQ"
        choices.append(b"M" + bytes([r.choice(modes)]))
        flags = self.some(choices + self.token_flags())
        if r.random() < 0.03:
            flags.append(r.choice((b"d", b"z", b"P1")))
        return self.meta_words(b"ms", key, flags, (b"%d" % len(value),)) + value + b"\r\n"

    def meta_delete(self):
        key = self.key()
        choices = [b"I", b"T" + self.exptime(), b"C" + self.cas(key)]
        return self.meta_words(b"md", key, self.odd(self.some(choices + self.token_flags())))

    def meta_arithmetic(self):
        r = self.r
        choices = [b"t", b"c", b"v", b"v", b"q", b"N" + r.choice((b"30", b"0")), b"J" + self.number(), b"D" + self.number()]
        key = self.key()
        choices += [b"M" + r.choice((b"I", b"D", b"+", b"-", b"i", b"d", b"x")), b"C" + self.cas(key)]
        flags = self.odd(self.some(choices))
        if any(f.startswith(b"N") for f in flags):
            flags = [f for f in flags if f != b"q"]
        return WAIT + self.meta_words(b"ma", key, flags)

    def broken_command(self):
        r = self.r
        value = self.data()
        n = len(value)
        return r.choice(
            (
                # Data longer or shorter than announced, and lines that end otherwise.
                lambda: self.line(b"set", self.key(), b"0", b"0", b"%d" % max(0, n - r.randrange(1, 4))) + value + b"\r\n",
                lambda: self.line(b"set", self.key(), b"0", b"0", b"%d" % (n + r.randrange(1, 4))) + value + b"\r\n",
                lambda: self.line(b"set", self.key(), b"0", b"0", b"%d" % n) + value + b"\n",
                lambda: self.line(b"ms", self.key(), b"%d" % max(0, n - r.randrange(1, 4))) + value + b"\r\n",
                lambda: self.line(b"ms", self.key(), b"%d" % (n + r.randrange(1, 4))) + value + b"\r\n",
                # Lengths that are none.
                lambda: self.line(b"set", self.key(), b"0", b"0", r.choice((b"-1", b"-100", b"x", b"2147483647"))),
                # Words missing.
                lambda: self.line(r.choice((b"get", b"gets", b"gat", b"gats", b"set", b"incr", b"touch", b"delete", b"mg", b"ms", b"md", b"ma", b"me", b"cas"))),
                lambda: self.line(b"set", self.key()),
                lambda: self.line(b"incr", self.key()),
                lambda: self.line(b"touch", self.key()),
                # Numbers that are none.
                lambda: self.line(r.choice((b"incr", b"decr")), self.key(), self.bad_number() or b"x"),
                lambda: self.line(b"touch", self.key(), b"x"),
                lambda: self.line(b"gat", b"x", self.key()),
                lambda: self.line(b"flush_all", b"x"),
                lambda: self.line(b"mg", self.key(), b"v", r.choice((b"Tx", b"Nx", b"Rx"))),
                lambda: self.line(b"ma", self.keys[0] + b"absent", r.choice((b"Dx", b"Jx", b"Nx", b"D-1"))),
                # Keys too long.
                lambda: self.line(r.choice((b"delete", b"mg", b"md", b"me")), self.bad_key()),
                lambda: self.line(r.choice((b"incr", b"decr", b"touch")), self.bad_key(), b"1"),
                # No command.
                lambda: b"\r\n",
                lambda: b"\n",
                lambda: self.line(r.choice((b"bogus", b"SET", b"GET", b"Get", b"getx", b"mgx", b"zz", b"999"))),
                lambda: b" \r\n",
            )
        )()


class LargeStream(Stream):
    """With values of up to 100 KB, all of them framed as announced except for ends that are none."""

    BREAKS = False
    EDGES = (4_096, 8_192, 16_384, 32_768, 65_536)

    def any_data(self):
        r = self.r
        kind = r.random()
        if kind < 0.25:
            return super().any_data()
        if kind < 0.5:
            return r.randbytes(r.randrange(100_001))
        # The item, or the command, may be what has the size.
        return r.randbytes(r.choice(self.EDGES) + r.choice((0, 0, -48, -64, -88, 2)) + r.randrange(-3, 4))

    def storage(self):
        if self.r.random() < 0.06 and not self.counts:
            value = b"x" * (self.r.choice(self.EDGES) + self.r.randrange(-3, 4))
            return self.line(b"set", self.key(), b"0", b"0", b"%d" % len(value)) + value + self.r.choice((b"yy\r\n", b"\ry\r\n", b"y\n\r\n"))
        return super().storage()


class Peer:
    """One of the two servers."""

    def __init__(self, port, context=None):
        """`context`: for TLS."""
        self.port, self.context = port, context

    def connect(self):
        s = socket.create_connection(("127.0.0.1", self.port), 10)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self.context.wrap_socket(s) if self.context else s

    def open(self):
        self.socket = self.connect()
        self.socket.setblocking(False)
        self.reply, self.ended = bytearray(), False

    def read(self, seconds):
        """Takes what has come, waiting up to `seconds` for the first of it; False if nothing came."""
        buffered = self.context and self.socket.pending()
        if self.ended or not (buffered or select.select([self.socket], [], [], seconds)[0]):
            return False
        try:
            got = self.socket.recv(1 << 18)
        except ssl.SSLWantReadError:
            return True
        except ConnectionError:
            got = b""
        self.reply += got
        self.ended = not got
        return True

    def send(self, data):
        """Sends, reading along so that neither side waits for the other. A server that closed early shows in its reply."""
        view = memoryview(data)
        while view:
            try:
                view = view[self.socket.send(view) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                select.select([self.socket], [self.socket], [], 10)
            except ConnectionError:
                return
            self.read(0)

    def until(self, end=None, seconds=10):
        """Reads until the reply ends with `end`, if that is given, or the server closes."""
        while not self.ended and not (end and self.reply.endswith(end)):
            if not self.read(seconds):
                self.reply += b"<nothing more within %d s>" % seconds
                return

    def cas_of(self, key):
        """The CAS of a key, as another connection sees it; 0 if it is absent."""
        with self.connect() as s:
            s.sendall(b"mg %s c\r\n" % key)
            got = b""
            while not got.endswith(b"\r\n"):
                got += s.recv(4096)
        found = re.match(rb"HD c(\d+)", got)
        return found.group(1) if found else b"0"

    def close(self):
        self.socket.close()
        return bytes(self.reply)


class Differ:
    """Runs streams against two servers."""

    def __init__(self, port_a, port_b, stream=Stream, context=None):
        """`context`: the first server is spoken to over TLS."""
        self.peers, self.stream = (Peer(port_a, context), Peer(port_b)), stream
        self.streams = self.commands = self.bytes = 0
        self.prefixes = itertools.count(random.SystemRandom().randrange(90_000_000))

    def run(self, commands, cuts, seed):
        """The two replies to a stream."""
        prefix = b"%08d" % (next(self.prefixes) % 100_000_000)
        commands = [BASE64_KEY.sub(binary_key, c.replace(Stream.PLACEHOLDER, prefix)) for c in commands]
        self.bytes += sum(map(len, commands))
        replies = []
        for peer in self.peers:
            peer.open()
            together = b""
            for i, command in enumerate(commands):
                wanted = CAS_WANTED.search(command)
                if wanted or command.startswith(WAIT):
                    mark = b"%s-mark%d" % (prefix, i)
                    self.send(peer, together + b"mg %s k\r\n" % mark, cuts, seed)
                    peer.until(b"EN k%s\r\n" % mark)
                    together = b""
                    if wanted:
                        command = command.replace(wanted.group(0), peer.cas_of(wanted.group(1)))
                together += command.removeprefix(WAIT)
            if commands[-1] == QUIT:
                self.send(peer, together, cuts, seed)
                peer.until()
            else:
                # Blank lines first: a block that is a few bytes short takes them as its rest.
                mark = b"%s-end" % prefix
                self.send(peer, together + b"\r\n" * 5 + b"mg %s k\r\n" % mark, cuts, seed)
                peer.until(b"EN k%s\r\n" % mark)
            replies.append(peer.close())
        return replies

    def send(self, peer, data, cuts, seed):
        for piece in self.cut(data, cuts, seed):
            peer.send(piece)
            if self.stream is LargeStream and cuts > 0.5 and len(piece) % 4 == 0:
                time.sleep(0.0005)  # so that pieces are received apart

    @staticmethod
    def cut(data, cuts, seed):
        """The sends that `data` is cut into."""
        if cuts < 0.3 or not data:
            return [data]
        r = random.Random(seed)
        count = min(200, len(data), 1 + len(data) // 20) if cuts > 0.9 else r.randrange(1, 8)
        places = sorted(r.randrange(len(data)) for _ in range(count))
        return [p for p in (data[a:b] for a, b in zip([0, *places], [*places, len(data)])) if p]

    def differs(self, commands, cuts, seed):
        a, b = self.run(commands, cuts, seed)
        return not equal(a, b)

    def surely(self, commands, cuts, seed):
        """Differs twice in a row: shrinking must not wander off to what happens once in a while."""
        return self.differs(commands, cuts, seed) and self.differs(commands, cuts, seed)

    def flush(self):
        """Makes room: large values would be evicted, and which, is each server's own affair."""
        for peer in self.peers:
            with peer.connect() as s:
                s.sendall(b"flush_all\r\n")
                assert s.recv(100) == b"OK\r\n"

    def check(self, seed):
        """None, or the shrunk stream as (commands, reply, reply)."""
        stream = self.stream(seed)
        if self.stream is LargeStream:
            self.flush()
        self.streams += 1
        self.commands += len(stream.commands)
        first = self.run(stream.commands, stream.cuts, seed)
        if equal(*first):
            return None
        return self.shrink(stream, first)

    def shrink(self, stream, first):
        """Fewer commands, fewer words, shorter values, one send, as long as the replies differ."""
        commands, cuts, seed = list(stream.commands), stream.cuts, stream.seed
        if not any(self.differs(commands, cuts, seed) for _ in range(5)):
            return commands, *first, UNSTABLE
        if self.surely(commands, 0, seed):
            cuts = 0
        size = max(1, len(commands) // 2)
        while True:
            at = 0
            shrunk = False
            while at < len(commands):
                fewer = commands[:at] + commands[at + size :]
                if fewer and self.surely(fewer, cuts, seed):
                    commands, shrunk = fewer, True
                else:
                    at += size
            if size == 1 and not shrunk:
                break
            size = max(1, size // 2)
        for i, command in enumerate(commands):
            line, end, data = command.partition(b"\n")
            words = line.split(b" ")
            # Only what may be left out: further keys and flags. The rest would make another fault of it.
            first = {b"get": 2, b"gets": 2, b"gat": 3, b"gats": 3, b"mg": 2, b"md": 2, b"ms": 3, b"ma": 2, WAIT + b"ma": 2}.get(words[0])
            for w in range(len(words) - 1, first - 1 if first else len(words), -1):
                fewer = b" ".join(words[:w] + words[w + 1 :]) + (b"\r" * line.endswith(b"\r") if w == len(words) - 1 else b"") + end + data
                if self.surely([*commands[:i], fewer, *commands[i + 1 :]], cuts, seed):
                    del words[w]
                    commands[i] = fewer
                    if line.endswith(b"\r") and not words[-1].endswith(b"\r"):
                        words[-1] += b"\r"
        for _ in range(5):
            a, b = self.run(commands, cuts, seed)
            if not equal(a, b):
                return commands, a, b, "one send" if not cuts else "cut as the seed says"
        return stream.commands, *first, UNSTABLE


def show(data, start=0):
    """`data` in Python's notation, at most some hundred bytes of it, from shortly before `start`."""
    begin = max(0, start - 80)
    part = bytes(data[begin : begin + 300])
    before, after = "... " * (begin > 0), f" ... ({len(data)} bytes)" * (begin + 300 < len(data))
    return f"{before}{part!r}{after}"


def report(seed, found):
    commands, a, b, how = found
    na, nb = normal(a), normal(b)
    at = next((i for i, (x, y) in enumerate(zip(na, nb)) if x != y), min(len(na), len(nb)))
    lines = [f"seed {seed}: replies differ ({how}); again: DIFFERENTIAL_SEED={seed} DIFFERENTIAL_STREAMS=1 conformance/run.sh test_differential.py -k same_replies"]
    lines += [f"  {len(commands)} commands:"]
    lines += [f"    {show(c)}" for c in commands[:20]] + ["    ..."] * (len(commands) > 20)
    lines += [f"  A: {show(na, at)}", f"  B: {show(nb, at)}"]
    return "\n".join(lines)


def compare(port_a, port_b, streams, first_seed, most=10, **settings):
    """Runs `streams` streams, the first with the seed `first_seed` and each next one with the next number.

    Returns the `Differ`, the reports of at most `most` differing streams, and of those that differed only once.
    """
    differ = Differ(port_a, port_b, **settings)
    reports, unstable = [], []
    for seed in range(first_seed, first_seed + streams):
        if len(reports) >= most:
            break
        found = differ.check(seed)
        if found:
            (unstable if found[3] == UNSTABLE else reports).append(report(seed, found))
    return differ, reports, unstable


def tls_context():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def summary(differ, first_seed, reports, unstable):
    return (
        f"{differ.streams} streams from seed {first_seed}, {differ.commands} commands, {differ.bytes >> 20} MiB:"
        f" {len(reports)} differ, {len(unstable)} differed once and not again"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("port_a", type=int, help="the server to test")
    parser.add_argument("port_b", type=int, help="the reference")
    parser.add_argument("--streams", type=int, default=1000, help="how many to run")
    parser.add_argument("--seed", type=int, help="run only this stream")
    parser.add_argument("--from", dest="first", type=int, default=random.SystemRandom().randrange(1 << 32), help="first seed")
    parser.add_argument("--large", action="store_true", help="values of up to 100 KB")
    parser.add_argument("--tls", action="store_true", help="the first server is spoken to over TLS")
    args = parser.parse_args()
    settings = {"stream": LargeStream if args.large else Stream, "context": tls_context() if args.tls else None}
    if args.seed is not None:
        found = Differ(args.port_a, args.port_b, **settings).check(args.seed)
        print(report(args.seed, found) if found else f"seed {args.seed}: equal")
        sys.exit(bool(found))
    differ, reports, unstable = compare(args.port_a, args.port_b, args.streams, args.first, **settings)
    for text in reports + unstable:
        print(text)
    print(summary(differ, args.first, reports, unstable))
    sys.exit(bool(reports))


if __name__ == "__main__":
    main()
