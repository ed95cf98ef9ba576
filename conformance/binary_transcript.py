#!/usr/bin/env python3
"""What memcached answers to packets of the binary protocol: replaying a recording, whose format `data/README.md` describes.

    binary_transcript.py PORT --check FILE.zst [OPTIONS]    play the cases recorded with these options (none: the default)
                                                            against a fresh server on loopback; print the differences;
                                                            exit 1 if there are any

The cases are played in the order of the recording, each when the one before has its answer. A connection that was silent
when it was recorded stays open once its reply has come, and is looked at again when all are played. Any other is waited for.
"""

import json
import re
import socket
import sys
import time

from packets import HEADER, NOOP, OK, STAT, VERSION, packet
from transcript import LATE, load, near

OPTIONS = ["-t", "1", "-m", "64"]
"""Options of every recorded server, besides its own."""
SILENT = 0.5
"""Seconds without an answer after which a connection was recorded as silent."""
PAUSE = 0.0003
"""Seconds between the pieces of a case."""
PATIENCE = 90
"""Seconds that a replay waits without success for all cases together; after that it takes a connection for silent at once."""

REPLY = 0x81
PING = 0x7E7E7E7E
TAILS = {
    "noop": (packet(NOOP, opaque=PING), packet(NOOP, opaque=PING, magic=REPLY)),
    "mn": (b"mn\r\n", b"MN\r\n"),
    "none": (b"", None),
}
"""What is sent behind a case, and its answer."""
TOKEN = re.compile(r"<c(\d+)>|<now([+-]\d+)>|\[(..)\*(\d+)\]")
RUN = re.compile(rb"(.)\1{47}", re.S)


def to_hex(data):
    """Hex; 48 and more of the same byte as [hh*n]."""
    out, at = [], 0
    while run := RUN.search(data, at):
        rest = data[run.start() :].lstrip(run[1])
        out.append(f"{data[at:run.start()].hex()}[{run[1].hex()}*{len(data) - run.start() - len(rest)}]")
        at = len(data) - len(rest)
    return "".join(out) + data[at:].hex()


class Names:
    """Reads and writes bytes as the recording does; the CAS values of a case get their names in the order in which they appear."""

    def __init__(self):
        self.cas = {}

    def name(self, cas):
        return f"<c{self.cas.setdefault(cas, len(self.cas) + 1)}>"

    def reply(self, data):
        out = []
        while len(data) >= HEADER.size and data[0] == REPLY:
            _, opcode, key_len, _, _, status, body_len, opaque, cas = HEADER.unpack_from(data)
            end = HEADER.size + body_len
            if len(data) < end:
                break
            body, length, masked = data[HEADER.size : end], f"{body_len:08x}", ""
            if opcode == STAT and key_len and status == OK:
                body, length, masked = body[:key_len], "<len>", "<v>"
            elif opcode == VERSION and status == OK:
                body, length, masked = b"", "<len>", "<version>"
            cas = self.name(cas) if cas else "0" * 16
            out.append(data[:8].hex() + length + opaque.hex() + cas + to_hex(body) + masked)
            data = data[end:]
        return " ".join(out + [to_hex(data)] if data else out)

    def seen(self, text):
        named = re.sub(r"(?<= )c([1-9]\d*)", lambda m: "c" + self.name(int(m[1])), text, count=1)
        return re.sub(r"(?<= )t(\d{9,})", "t<far>", named)

    def sent(self, text):
        numbers = dict(enumerate(self.cas, 1))

        def expand(match):
            cas, seconds, byte, count = match.groups()
            if cas:
                return f"{numbers.get(int(cas), 0xDEADBEEF):016x}"
            return f"{int(time.time()) + int(seconds):08x}" if seconds else byte * int(count)

        return bytes.fromhex(TOKEN.sub(expand, text))


class Conversation:
    """A connection and what has come on it since something was asked."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), LATE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.got, self.is_closed, self.answer = bytearray(), False, None

    def close(self):
        self.socket.close()

    def send(self, pieces, tail):
        """The pieces, each a write of its own, the last one with the tail."""
        ping, self.answer = TAILS[tail]
        self.got = bytearray()
        self.socket.settimeout(LATE)
        try:
            for piece in pieces[:-1]:
                self.socket.sendall(piece)
                time.sleep(PAUSE)
            self.socket.sendall(pieces[-1] + ping)
        except OSError:
            pass  # Closed by a piece before; that is read next.

    def read(self, seconds):
        """Whether something has come, and be it the end."""
        self.socket.settimeout(seconds)
        try:
            part = self.socket.recv(1 << 20)
        except (TimeoutError, BlockingIOError):
            return False
        except OSError:
            part = b""
        self.got += part
        self.is_closed = not part
        return True

    def is_over(self):
        return self.is_closed or self.answer is not None and self.answer in self.got

    def read_until(self, is_done, seconds):
        end = time.monotonic() + seconds
        while not self.is_over() and not is_done():
            if not self.read(max(end - time.monotonic(), 0)):
                return False
        return True

    def ask(self, data, tail):
        self.send([data], tail)
        self.read_until(lambda: False, LATE)
        return self.result()

    def result(self):
        """What came before the answer to the tail, and how it ended. What is behind that answer was not recorded."""
        got = bytes(self.got)
        if self.answer is not None and self.answer in got:
            return got.partition(self.answer)[0], "open"
        return got, "closed" if self.is_closed else "silent"


class Replay:
    """Plays cases. `ports`: {options: port}."""

    def __init__(self, ports, late):
        self.ports, self.texts, self.late, self.patience = ports, {}, late, PATIENCE

    def text(self, options):
        """The second connection to a server."""
        kept = self.texts.get(options)
        if not kept or kept.is_closed:
            kept = self.texts[options] = Conversation(self.ports[options])
        return kept

    def play(self, case, expected):
        """The connection, the names, and the answers so far. `expected`: the reply and the end."""
        names, options = Names(), case["server"]
        c = Conversation(self.ports[options])
        for entry in case["setup"]:
            if entry.startswith("text:"):
                self.text(options).ask(entry.removeprefix("text:").encode("latin1"), "mn")
            else:
                names.reply(c.ask(names.sent(entry), "noop")[0])
        c.send([names.sent(piece) for piece in case["send"]], case["tail"])
        began = time.monotonic()
        reply, end = expected
        is_done = (lambda: names.reply(bytes(c.got)) == reply) if end == "silent" else lambda: False
        if not c.read_until(is_done, min(self.late, max(self.patience, SILENT))):
            self.patience -= time.monotonic() - began
        got = case | {"reply": names.reply(c.result()[0]), "end": c.result()[1]}
        if "look" in case:
            text, end = self.text(options).ask(case["look"].encode("latin1") + b"\r\n", "mn")
            got["seen"] = names.seen(text.decode("latin1")) + ("" if end == "open" else f"<{end}>")
        return c, names, got

    def run(self, recording, known):
        played = []
        for case in recording:
            expected = known.get(case["case"], case)
            c, names, got = self.play(case, (expected["reply"], expected["end"]))
            if c.is_over():
                c.close()
            played.append((c, names, got))
        time.sleep(SILENT)
        for c, names, got in played:
            if not c.is_over():
                while not c.is_over() and c.read(0):
                    pass
                c.close()
                reply, got["end"] = c.result()
                got["reply"] = names.reply(reply)
            yield got
        for text in self.texts.values():
            text.close()


def run(ports, recording, known={}, late=LATE):
    """Each case with the answers of these servers, {options: port}. `known`: {case number: the case with other answers}.
    What was recorded, or is known, is only looked at to know what to wait for, at most `late` seconds."""
    return Replay(ports, late).run(recording, known)


def is_near(a, b):
    """Equal except for remaining TTLs that differ by some seconds."""
    return (a["reply"], a["end"]) == (b["reply"], b["end"]) and near(a.get("seen", ""), b.get("seen", ""))


def differences(ports, recording, known={}, late=LATE):
    """(recorded, seen) for each case answered otherwise than recorded."""
    for want, got in zip(recording, run(ports, recording, known, late), strict=True):
        if not is_near(want, got):
            yield want, got


def describe(want, got):
    """What a difference is, in lines."""
    lines = [f"{want['case']} {want['server']} {want['state']}: {' '.join(want['send'])[:200]}"]
    for field in ("reply", "end", "seen"):
        if want.get(field) != got.get(field):
            lines += [f"    want {field} {want.get(field)!r}", f"    got  {field} {got.get(field)!r}"]
    return "\n".join(lines)


def main():
    port, options = int(sys.argv[1]), " ".join(sys.argv[4:])
    recording = [c for c in load(sys.argv[3]) if c["server"] == options]
    count = 0
    for want, got in differences({options: port}, recording):
        count += 1
        print(json.dumps({"want": want, "got": {k: got.get(k) for k in ("reply", "end", "seen")}}))
    print(f"{len(recording)} cases, {count} differ", file=sys.stderr)
    sys.exit(bool(count))


if __name__ == "__main__":
    main()
