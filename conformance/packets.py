"""Packets of the binary protocol, byte by byte: requests are made, replies are taken apart."""

import struct
from typing import NamedTuple

from harness import PROMPT, Raw

HEADER = struct.Struct("!BBHBBHI4sQ")
"""Magic, opcode, length of the key, of the extras, data type, vbucket or status, length of the body, opaque, CAS."""

GET, SET, ADD, REPLACE, DELETE, INCREMENT, DECREMENT, QUIT, FLUSH, GETQ, NOOP, VERSION, GETK, GETKQ, APPEND, PREPEND = range(16)
STAT, SETQ, ADDQ, REPLACEQ, DELETEQ, INCREMENTQ, DECREMENTQ, QUITQ, FLUSHQ, APPENDQ, PREPENDQ = range(16, 27)
TOUCH, GAT, GATQ = 0x1C, 0x1D, 0x1E
SASL_LIST, SASL_AUTH, SASL_STEP, GATK, GATKQ = range(0x20, 0x25)

OK, NOT_FOUND, EXISTS, TOO_LARGE, INVALID, NOT_STORED, NOT_NUMERIC = range(7)
AUTH_ERROR, AUTH_CONTINUE = 0x20, 0x21
UNKNOWN, NO_MEMORY, INTERNAL, BUSY = 0x81, 0x82, 0x84, 0x85

NO_CREATE = 0xFFFFFFFF
"""The exptime of an `incr` or `decr` that does not make the item."""


def packet(opcode, key=b"", value=b"", extras=b"", opaque=0, cas=0, magic=0x80):
    """A request. `opaque`: a number, or four bytes."""
    if not isinstance(opaque, bytes):
        opaque = struct.pack("!I", opaque)
    body = extras + key + value
    return HEADER.pack(magic, opcode, len(key), len(extras), 0, 0, len(body), opaque, cas) + body


def store(key, value, opcode=SET, flags=0, exptime=0, **fields):
    return packet(opcode, key, value, struct.pack("!II", flags, exptime), **fields)


def count(key, delta=1, initial=0, exptime=NO_CREATE, opcode=INCREMENT, **fields):
    return packet(opcode, key, b"", struct.pack("!QQI", delta, initial, exptime), **fields)


def touch(key, exptime, opcode=TOUCH, **fields):
    return packet(opcode, key, b"", struct.pack("!I", exptime), **fields)


def multi_get(keys, opcode=GETKQ):
    """Quiet gets of these keys, numbered from 1, and a noop with the number 0."""
    return b"".join(packet(opcode, key, opaque=n) for n, key in enumerate(keys, 1)) + packet(NOOP)


def plain(user, password, opcode=SASL_AUTH, mechanism=b"PLAIN", authzid=b"", **fields):
    """A login."""
    return packet(opcode, mechanism, b"\0".join((authzid, user, password)), **fields)


class Reply(NamedTuple):
    opcode: int
    status: int
    opaque: int
    cas: int
    extras: bytes
    key: bytes
    value: bytes


def take(data):
    """The first reply in these bytes and what is behind it, or None."""
    if len(data) < HEADER.size:
        return None
    magic, opcode, key, extras, kind, status, body, opaque, cas = HEADER.unpack_from(data)
    assert magic == 0x81 and kind == 0 and key + extras <= body, data[:64]
    end = HEADER.size + body
    if len(data) < end:
        return None
    key_at = HEADER.size + extras
    parts = data[HEADER.size : key_at], data[key_at : key_at + key], data[key_at + key : end]
    return Reply(opcode, status, int.from_bytes(opaque, "big"), cas, *parts), data[end:]


def replies(data):
    """All replies in these bytes, which must be whole."""
    out = []
    while data:
        reply, data = take(data) or (None, None)
        assert reply, "cut in the middle of a reply"
        out.append(reply)
    return out


class Binary(Raw):
    """A connection of the binary protocol."""

    def reply(self):
        while (got := take(self.buffer)) is None:
            self.fill()
        reply, self.buffer = got
        return reply

    def ask(self, data):
        """The reply to one request."""
        self.send(data)
        return self.reply()

    def replies(self, count):
        return [self.reply() for _ in range(count)]

    def until_noop(self):
        """Replies up to that of a noop, which is left out."""
        out = []
        while (reply := self.reply()).opcode != NOOP:
            out.append(reply)
        assert reply.status == OK
        return out

    def get(self, key, opcode=GET):
        """The value, or None."""
        reply = self.ask(packet(opcode, key))
        assert reply.status in (OK, NOT_FOUND), reply
        return reply.value if reply.status == OK else None

    def set(self, key, value, **fields):
        """The status."""
        return self.ask(store(key, value, **fields)).status

    def stats(self, argument=""):
        self.send(packet(STAT, argument.encode()))
        out = {}
        while (reply := self.reply()).key:
            out[reply.key.decode()] = reply.value.decode()
        assert reply.status == OK, reply
        return out


def connect(server, timeout=2 * PROMPT):
    return Binary(server.connect(timeout))
