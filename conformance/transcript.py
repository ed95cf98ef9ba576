#!/usr/bin/env python3
"""What memcached answers to a table of command x flag x state of the key: recording and replaying it.

    transcript.py PORT                      print the answers of the server on loopback, one JSON object a line
    transcript.py PORT --check FILE.zst     compare with a recording; print the differences; exit 1 if there are any

A case: {"case": number, "state": name, "setup": [...], "send": "...", "reply": "..."} (text is latin-1). CAS values,
sizes in `me` and other numbers that differ between servers are masked as <n>. Each case has a key of its own, written
`K`. `<silent>`: no answer within 0.7 s; `<closed>`: the connection was closed. In a replay only what was silent when it was
recorded is silent after 0.7 s; the rest is waited for.
"""

import io
import itertools
import json
import re
import socket
import sys
import time

import zstandard

MASK = [
    (re.compile(p), r)
    for p, r in [
        (r"(?m)(^(?:VALUE \S+ \d+ \d+) )\d+", r"\1<n>"),
        (r"(?<= )c\d+", "c<n>"),
        (r"cas=\d+", "cas=<n>"),
        (r"size=\d+", "size=<n>"),
        (r"cls=\d+", "cls=<n>"),
        (r"la=\d+", "la=<n>"),
        (r"(?m)^VERSION .*", "VERSION <v>"),
    ]
]
REMAINING_TTL = re.compile(r"(?<= )(t|exp=)(\d+)")
TICKS = 5
"""Seconds that may pass between the commands of a case. The times of the table differ by more."""
SILENT = "<silent>"
LATE = 30
"""Seconds without an answer after which a replay takes a connection for silent that was not."""


def mask(text):
    for pattern, replacement in MASK:
        text = pattern.sub(replacement, text)
    return text


class Connection:
    """One connection that is opened again when the server closes it or falls silent."""

    def __init__(self, port):
        self.port = port
        self.open()

    def open(self):
        self.socket = socket.create_connection(("127.0.0.1", self.port), LATE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(0.7)

    def reopen(self):
        self.socket.close()
        self.open()

    def ask(self, data, recorded=None):
        """Sends `data` and `mn`; the reply is everything before `MN`. `recorded`: the answer to expect, None while recording."""
        got, end = b"", time.monotonic() + LATE
        try:
            self.socket.sendall(data.encode("latin1") + b"mn\r\n")
            while not got.endswith(b"MN\r\n"):
                try:
                    part = self.socket.recv(65536)
                except TimeoutError:
                    reply = mask(got.decode("latin1")) + SILENT
                    if recorded in (None, reply) or time.monotonic() > end:
                        self.reopen()
                        return reply
                    continue
                if not part:
                    raise ConnectionError
                got += part
        except ConnectionError:
            self.reopen()
            return mask(got.decode("latin1")) + "<closed>"
        return mask(got[:-4].decode("latin1"))


STATES = {
    "absent": [],
    "present": ["set K 7 100 3\r\nabc\r\n"],
    "no-ttl": ["set K 0 0 3\r\nabc\r\n"],
    "number": ["set K 0 0 2\r\n10\r\n"],
    "empty": ["set K 0 0 0\r\n\r\n"],
    "negative-ttl": ["set K 0 -1 3\r\nabc\r\n"],
    "stale": ["set K 7 100 3\r\nabc\r\n", "md K I T30\r\n"],
    "stale-won": ["set K 7 100 3\r\nabc\r\n", "md K I T30\r\n", "mg K v\r\n"],
    "vivified": ["mg K N30\r\n"],
    "vivified-twice": ["mg K N30\r\n", "mg K N30\r\n"],
    "recache-won": ["set K 0 20 3\r\nabc\r\n", "mg K R30\r\n"],
    "value-dropped": ["set K 7 100 3\r\nabc\r\n", "md K x\r\n"],
    "fetched": ["set K 7 100 3\r\nabc\r\n", "get K\r\n"],
    "deleted": ["set K 7 100 3\r\nabc\r\n", "delete K\r\n"],
    "own-cas": ["ms K 3 E100 T90\r\nabc\r\n"],
}
MG = ["c", "f", "h", "k", "q", "s", "t", "u", "v", "Oq1", "E77", "N30", "R30", "R1000", "T50", "T0", "T-1", "C100", "C1", "C9999999999999", "P1", "Lx"]
MS = ["c", "k", "q", "s", "b", "Oq1", "F9", "I", "T50", "T0", "T-1", "E77", "C100", "C1", "C9999999999999", "MA", "MP", "MR", "MS", "ME", "Ma", "Mzz", "N30", "Fx", "Tx", "S3", "P1"]
MD = ["I", "q", "k", "x", "b", "Oq1", "T50", "C100", "C1", "C9999999999999", "E77", "I T50", "P1"]
MA = ["N30", "J13", "D5", "D0", "T50", "MI", "MD", "M+", "M-", "Mi", "Md", "Mx", "q", "t", "c", "v", "k", "Oq1", "C100", "C1", "C9999999999999", "E77", "Dx", "Jx", "N30 J13", "N30 J13 v", "v D18446744073709551615", "MD D100 v"]
BADFLAGS = list("adegijmnoprwyzABGHKQUVY")


def cases():
    for st in STATES:
        for n in (0, 1, 2):
            for fl in itertools.combinations(MG, n):
                if n == 2 and fl[0][0] == fl[1][0]:
                    continue
                yield st, "mg K " + " ".join(fl) + "\r\n"
        for trio in ("N30 v t", "R30 v t c", "v k q", "s v k t f c h l"[:-2], "k Oabc v q", "N30 q v", "v N30 T60", "c t v E5"):
            yield st, "mg K %s\r\n" % trio
        for n in (0, 1, 2):
            for fl in itertools.combinations(MS, n):
                if n == 2 and fl[0][0] == fl[1][0]:
                    continue
                yield st, "ms K 2 %s\r\nzz\r\nmg K v f t s\r\n" % " ".join(fl)
        for n in (0, 1, 2):
            for fl in itertools.combinations(MD, n):
                if n == 2 and fl[0][0] == fl[1][0]:
                    continue
                yield st, "md K %s\r\nmg K v f t\r\nget K\r\n" % " ".join(fl)
            for fl in itertools.combinations(MA, n):
                if n == 2 and fl[0][0] == fl[1][0]:
                    continue
                yield st, "ma K %s\r\nget K\r\n" % " ".join(fl)
        for c in ("get K", "gets K", "gat 50 K", "gats 50 K", "gat x K", "touch K 50", "touch K x", "touch K", "touch K 50 noreply", "delete K", "delete K 0", "delete K 5",
                  "delete K noreply", "delete K foo", "incr K 1", "incr K 18446744073709551615", "incr K -1", "incr K x", "incr K", "incr K 1 noreply",
                  "decr K 1", "decr K 100", "me K", "me K b", "get K K", "get K missing K", "gets K missing", "gat 50 K missing"):
            yield st, c + "\r\nmg K v t f\r\n"
        for verb in ("set", "add", "replace", "append", "prepend"):
            for tail in ("5 0 2", "5 100 2", "0 -1 2", "4294967295 0 2", "4294967296 0 2", "-1 0 2", "x 0 2", "0 x 2", "0 0 2 noreply"):
                yield st, "%s K %s\r\nzz\r\nmg K v f t\r\n" % (verb, tail)
        for cas in ("100", "999", "0", "x", "-1", "18446744073709551615"):
            yield st, "cas K 5 0 2 %s\r\nzz\r\nmg K v f\r\n" % cas
    for k in ("k" * 250, "k" * 251, "a\tb", "\x01ctl", "\xc3\xa9"):
        for c in ("get %s", "delete %s", "incr %s 1", "touch %s 1", "mg %s v", "md %s", "ma %s"):
            yield "absent", c % k + "\r\n"
        yield "absent", "set %s 0 0 1\r\nx\r\n" % k
        yield "absent", "ms %s 1\r\nx\r\n" % k
    for f in BADFLAGS:
        for c in ("mg K %s", "md K %s", "ma K %s"):
            yield "present", c % f + "\r\n"
        yield "present", "ms K 1 %s\r\nx\r\n" % f
    for f in ("v v", "t t", "k k", "T5 T6", "Oa Ob", "c c c", "P1 P2", "L1 L2"):
        yield "present", "mg K %s\r\n" % f
    for c in ("", " ", "get", "gets", "gat", "gat 1", "gats 1", "set", "set a", "set a 0", "set a 0 0", "mg", "ms", "ms a", "ms a x", "md", "ma", "me", "cas a 0 0 1", "incr", "incr a", "decr a",
              "touch", "touch a", "delete", "bogus", "GET a", "Get a", "version", "version x", "verbosity", "verbosity 1", "verbosity x", "flush_all noreply", "flush_all x", "flush_all -1", "mnx",
              "stats bogus", "refresh_certs", "misbehave", "debugtime 1", "extstore x", "quitx"):
        yield "absent", c + "\r\n"
    for c in ("set K 0 0 2\r\nxyz\r\n", "set K 0 0 4\r\nab\r\nc\r\n", "set K 0 0 0\r\n\r\n", "set K 0 0 -1\r\nx\r\n", "set K 0 0 2147483647\r\nx\r\n", "set K 0 0 1048577\r\n" + "x" * 1048577 + "\r\n",
              "ms K 2\r\nxyz\r\n", "ms K -1\r\nx\r\n", "ms K 1048577\r\n" + "x" * 1048577 + "\r\n", "ms S100 2\r\nab\r\n", "ms K 2 q\r\nab\r\n", "append K 0 0 1 noreply\r\nx\r\n"):
        yield "present", c + "get K\r\n"
    for k in ("Zm9v", "Zm9vIGJhcg==", "!!!", "Zm9", "="):
        yield "absent", "ms %s 2 b k T0\r\nhi\r\nmg %s b k v\r\nmd %s b k q\r\nmg foo v\r\n" % (k, k, k)
    for v in ("0", "9", "99", "18446744073709551615", "18446744073709551616", "-1", "1a", " 1", "", "00012", "1" * 30):
        for c in ("incr K 1", "decr K 1", "ma K v", "ma K MD v D20", "incr K 18446744073709551615"):
            yield "absent", "set K 0 0 %d\r\n%s\r\n%s\r\nget K\r\n" % (len(v), v, c)


def run(port, recording=None):
    """Asks the server everything; yields one dictionary a case. `recording`: the answers to expect, if there are some."""
    c = Connection(port)
    for i, (state, send) in enumerate(cases()):
        key = f"t{i}"
        if state == "absent" or i > 17000:  # these can leave a connection out of step
            c.reopen()
        with_key = lambda text: re.sub(r"\bK\b", key, text)
        for s in STATES[state]:
            c.ask(with_key(s), None if recording is None else "")
        reply = c.ask(with_key(send), None if recording is None else with_key(recording[i]["reply"]))
        short = send if len(send) < 400 else send[:60] + "<%d bytes>" % len(send)
        yield {"case": i, "state": state, "setup": STATES[state], "send": short, "reply": re.sub(rf"\b{key}\b", "K", reply)}


def near(a, b):
    """Equal except for remaining TTLs that differ by some seconds (a case can straddle the clock's ticks)."""
    if a == b:
        return True
    return REMAINING_TTL.sub(r"\1", a) == REMAINING_TTL.sub(r"\1", b) and all(
        abs(int(x) - int(y)) <= TICKS for (_, x), (_, y) in zip(REMAINING_TTL.findall(a), REMAINING_TTL.findall(b))
    )


def load(path):
    """The cases of a compressed recording."""
    with open(path, "rb") as f:
        text = zstandard.ZstdDecompressor().stream_reader(f).read()
    return [json.loads(line) for line in io.BytesIO(text)]


def differences(port, recording):
    """(recorded, seen) for each case answered otherwise."""
    for want, got in itertools.zip_longest(recording, run(port, recording)):
        assert want and got and want["send"] == got["send"] and want["state"] == got["state"], (want, got)
        if not near(want["reply"], got["reply"]):
            yield want, got


def main():
    port = int(sys.argv[1])
    if "--check" not in sys.argv:
        for case in run(port):
            print(json.dumps(case))
        return
    recording = load(sys.argv[sys.argv.index("--check") + 1])
    count = 0
    for want, got in differences(port, recording):
        count += 1
        print(json.dumps({"case": want["case"], "state": want["state"], "send": want["send"], "want": want["reply"], "got": got["reply"]}))
    print(f"{len(recording)} cases, {count} differ", file=sys.stderr)
    sys.exit(bool(count))


if __name__ == "__main__":
    main()
