"""Users with rights (`[[user]]`): every command of the three protocols by every kind of user, and the ways round that there might be.

The tables below name what each command needs. They are compared with the parsers' own lists of commands, flags and opcodes, so that a
command which is added later fails here until it has a row.
"""

import base64
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import time

import bmemcached
import pylibmc
import pymemcache.client.base
import pymemcache.exceptions
import pytest

import packets
from harness import PROMPT, Closed, wait_until
from packets import (
    AUTH_ERROR, GAT, GATK, GATKQ, GATQ, GET, GETK, GETKQ, GETQ, NOOP, NOT_STORED, OK, UNKNOWN, count, packet, plain, store, touch,
)
from test_operations import login

pytestmark = pytest.mark.only_cattlegrid

SOURCES = pathlib.Path(__file__).resolve().parent.parent / "crates"

NO = b"CLIENT_ERROR not allowed\r\n"

RULES = """
[server]
prefixes = ["ns:", "ns:deep:"]

[[rule]]
match = "page:{id}"
hold = "2s"
tags = ["page:{id}"]

[[rule]]
match = "later"
tags_in_value = false

[[cascade]]
on = ["set"]
match = "shop:cause:{id}"
bump = ["effect"]

[objects]

[[user]]
name = "reader"
rights = ["read"]

[[user]]
name = "writer"
rights = ["read", "write"]

[[user]]
name = "putter"
rights = ["write"]

[[user]]
name = "shop"
prefix = "shop:"

[[user]]
name = "spaced"
rights = ["read", "write", "control"]
prefix = "ns:"

[[user]]
name = "admin"
rights = ["admin"]

[[user]]
name = "none"
rights = []
"""

ALL = {"read", "write", "control", "admin"}
USERS = {
    "reader": ({"read"}, ""),
    "writer": ({"read", "write"}, ""),
    "putter": ({"write"}, ""),
    "shop": (ALL, "shop:"),
    "spaced": ({"read", "write", "control"}, "ns:"),
    "admin": ({"admin"}, ""),
    "none": (set(), ""),
    "boss": (ALL, ""),
}

R, W, RW, C, A, CA = {"read"}, {"write"}, {"read", "write"}, {"control"}, {"admin"}, {"control", "admin"}
FREE = set()

KEYS = ["plain", "shop:k", "ns:k"]
"""One of nobody's, and one of each user with a prefix."""

# {k}: a key, which a user with a prefix may use if it is behind it.
KEYED = [
    ("get", "get {k}", R), ("gets", "gets {k}", R), ("gat", "gat 100 {k}", RW), ("gats", "gats 100 {k}", RW),
    ("set", "set {k} 0 0 3\r\nnew", W), ("add", "add {k} 0 0 3\r\nnew", W), ("replace", "replace {k} 0 0 3\r\nnew", W),
    ("append", "append {k} 0 0 3\r\nnew", W), ("prepend", "prepend {k} 0 0 3\r\nnew", W), ("cas", "cas {k} 0 0 3 1\r\nnew", W),
    ("incr", "incr {k} 1", W), ("decr", "decr {k} 1", W), ("touch", "touch {k} 100", W), ("delete", "delete {k}", W),
    ("mg", "mg {k} v", R), ("ms", "ms {k} 3\r\nnew", W), ("md", "md {k}", W), ("ma", "ma {k}", W), ("me", "me {k}", R),
    ("mg", "mg {k} v T100", RW), ("mg", "mg {k} v N30", RW), ("mg", "mg {k} v R30", RW), ("mg", "mg {k} v N30 E5", RW),
    ("mg", "mg {k} s v f c t h l k q", R), ("mg", "mg {k} v E7", RW),
    ("ms", "ms {k} 3 MA\r\nnew", W), ("ms", "ms {k} 3 MP\r\nnew", W), ("ms", "ms {k} 3 ME\r\nnew", W), ("ms", "ms {k} 3 MR\r\nnew", W),
    ("ms", "ms {k} 3 T0 F5 E9 C1 I\r\nnew", W), ("ms", "ms {k} 3 q\r\nnew", W), ("ms", "ms {k} 0 n\r\n", W),
    ("ms", "ms {k} 3 Gtag\r\nnew", W), ("md", "md {k} q", W), ("md", "md {k} I T30", W), ("md", "md {k} x", W),
    ("ma", "ma {k} MD D2 v q", W), ("ma", "ma {k} N60 J5 v", W),
    ("set", "set @tags:{k} 0 0 3\r\ntag", W), ("ms", "ms @tags:{k} 3\r\ntag", W),
    # A refused store takes the old value away.
    ("set", "set {k} 0 0 2000000\r\n" + "x" * 2_000_000, W), ("ms", "ms {k} 2000000\r\n" + "x" * 2_000_000, W),
]

# {k} with its colon escaped.
OBJECTS = [
    ("quota:take:{k}:1:10:hour", W), ("quota:peek:{k}:10:hour", R), ("set:put:{k}:a", W), ("set:exist:{k}:a", R), ("set:getall:{k}", R),
    ("set:union:{k}:{k}", R), ("counter:add:{k}:1", W), ("counter:get:{k}", R), ("set:dump:{k}", R), ("set:ttl:{k}", R), ("set:ttl:{k}:50", W),
    ("set:drop:{k}", W),
]
OBJECT_COMMANDS = [
    ("mg set::{k} v Aexist:a", R), ("mg set::{k} v Aput:b", W), ("ms set::{k} 1 Aput\r\nc", W), ("ms set::{k} 1 Aexist\r\na", R),
    ("delete set::{k}", W), ("md set::{k}", W),
]

# {s}: nothing, or a prefix of the server's.
CONTROL = [
    "delete {s}@tag:t", "incr {s}@tag:t 1", "get {s}@tag:t", "gets {s}@bump:t", "get {s}@bump:t {s}@bump:u", "mg {s}@tag:t v", "md {s}@tag:t", "ma {s}@tag:t v",
    "md {s}t G", "md {s}t G I T60", "ma {s}t G v", "mg {s}t G v", "md {s}t G B", "get {s}@why:k", "mg {s}@why:k v",
]
CONTROL_OF_ALL = ["get @flush:1", "get @nodes", "get @slow", "get @nothing", "touch @tag:t 1", "get ns:@nodes", "get ns:@flush:1", "get @tags:plain", "mg plain G v"]

ADMIN = [
    ("version", "version", FREE), ("stats", "stats", FREE), ("stats", "stats items", FREE), ("stats", "stats slabs", FREE), ("mn", "mn", FREE),
    ("stats", "stats settings", A), ("stats", "stats conns", A), ("stats", "stats sizes", A), ("stats", "stats cattlegrid", A), ("stats", "stats rules", A),
    ("stats", "stats tags", A), ("stats", "stats loaders", A), ("stats", "stats follow", A), ("stats", "stats objects", A), ("stats", "stats latency", A),
    ("stats", "stats leases", CA), ("stats", "stats cachedump 1 0", CA), ("stats", "stats detail dump", CA), ("stats", "stats detail off", CA), ("stats", "stats nothing", A),
    ("flush_all", "flush_all 1000000", CA), ("flush_all", "flush_all 1000000 noreply", CA), ("lru_crawler", "lru_crawler metadump all", CA), ("lru_crawler", "lru_crawler mgdump all", CA),
    ("lru_crawler", "lru_crawler enable", A), ("lru_crawler", "lru_crawler crawl all", A), ("lru", "lru mode flat", A), ("slabs", "slabs automove 0", A),
    ("verbosity", "verbosity 0", A), ("verbosity", "verbosity 0 noreply", A), ("cache_memlimit", "cache_memlimit 64", A), ("refresh_certs", "refresh_certs", A), ("shutdown", "shutdown", A),
    ("shutdown", "shutdown graceful", A), ("debugtime", "debugtime 0", A), ("stats", "stats reset", A),
]
ALONE = {"quit": FREE, "watch": CA}
"""They take the connection over."""


def write(path, text):
    pathlib.Path(path).write_text(text)
    return str(path)


@pytest.fixture
def files(open_dir):
    return write(f"{open_dir}/users", "".join(f"{name}:pw\n" for name in USERS)), write(f"{open_dir}/rules.toml", RULES)


@pytest.fixture
def server(start, files):
    return start("-S", "-Y", files[0], "--config", files[1], "-o", "debugtime", "-m", "64", "-t", 2)


def text(server, user):
    c = server.raw()
    assert login(c, user, "pw") == b"STORED"
    return c


def binary(server, user):
    c = packets.connect(server)
    assert c.ask(plain(user.encode(), b"pw")).status == OK
    return c


def is_allowed(user, needs, key=None):
    """Without a key: about all keys, unless nothing is needed."""
    rights, prefix = USERS[user]
    return needs <= rights and (key or "").startswith(prefix if key or needs else "")


def fill(boss):
    """The same state, whatever was done before."""
    for key in KEYS:
        assert boss.set(key.encode(), b"7") == b"STORED"
        name = key.replace(":", "%3A")
        boss.ask(f"delete set::{name}\r\ndelete quota::{name}\r\ndelete counter::{name}\r\n".encode())
        boss.ask(f"get set:new:{name}\r\nget set:put:{name}:a\r\nget counter:new:{name}\r\nget quota:take:{name}:1:10:hour\r\n".encode())


def state(boss):
    lines = [f"mg {key} v f s c k" for key in KEYS]
    for key in KEYS:
        name = key.replace(":", "%3A")
        lines += [f"get {kind}:dump:{name}" for kind in ("set", "counter", "quota")]
    lines += ["get @tag:t @tag:u", "get ns:@tag:t", "get @tag:plain"]
    return boss.ask("".join(line + "\r\n" for line in lines).encode()) + boss.stats("cattlegrid")["memory_limit"].encode()


def attempt(c, boss, line, may):
    """Sends the line; the reply, after looking whether it is as it should be."""
    fill(boss)
    before = state(boss)
    reply = c.ask(line.encode() + b"\r\n")
    noreply = line.endswith("noreply")
    if may:
        assert reply != NO, line[:80]
    else:
        assert reply == (b"" if noreply else NO), (line[:80], reply[:200])
        assert state(boss) == before, line[:80]
    assert c.ask(b"") == b"", f"{line[:80]}: the connection is out of step"
    return reply


# The tables are whole


def test_every_command_has_a_row():
    parse = (SOURCES / "protocol/src/parse.rs").read_text()
    admin = (SOURCES / "protocol/src/admin.rs").read_text()
    names = set(re.findall(r'^\s*b"(\w+)"[^\n]*=>', parse + admin.split("#[cfg(test)]")[0], re.M))
    assert {"get", "mg", "watch", "flush_all"} <= names
    rows = {name for name, *_ in KEYED + ADMIN} | set(ALONE)
    assert names - rows == set(), "commands without a row"


def test_every_opcode_has_a_row():
    source = (SOURCES / "protocol/src/packet.rs").read_text()
    opcodes = {int(number, 16) for number in re.findall(r"pub const \w+: u8 = (0x\w\w);", source)} - {0x80}
    assert opcodes == set(OPCODES) | SASL


def test_every_flag_of_mg_is_tried(server):
    source = (SOURCES / "protocol/src/meta.rs").read_text()
    known = re.search(r'const KNOWN: u64 = mask\(b"(\w+)"\)', source)[1]
    harmless = set("bcfhklqstvOPL")
    with text(server, "reader") as c:
        for letter in known:
            token = {"T": "T30", "N": "N30", "R": "R30", "E": "E5", "C": "C5", "D": "D1", "J": "J1", "M": "MI", "F": "F1", "O": "O1", "P": "Ph1", "L": "L1"}.get(letter, letter)
            key = "cGxhaW4=" if letter == "b" else "plain"
            assert (c.ask(f"mg {key} {token}\r\n".encode()) == NO) == (letter not in harmless), letter


# Every command by every user


@pytest.mark.parametrize("user", USERS)
def test_text_and_meta(server, user):
    with text(server, user) as c, text(server, "boss") as boss:
        for _, line, needs in KEYED:
            for key in KEYS:
                attempt(c, boss, line.format(k=key), is_allowed(user, needs, key))
        for _, line, needs in ADMIN:
            attempt(c, boss, line, is_allowed(user, needs))


@pytest.mark.parametrize("user", USERS)
def test_base64_keys(server, user):
    with text(server, user) as c, text(server, "boss") as boss:
        for key in KEYS:
            sent = base64.b64encode(key.encode()).decode()
            for line, needs in (("mg {k} b v k", R), ("ms {k} 3 b\r\nnew", W), ("md {k} b", W), ("ma {k} b", W), ("me {k} b", R)):
                attempt(c, boss, line.format(k=sent), is_allowed(user, needs, key))
            for line in ("mg {k} b v", "ms {k} 3 b\r\nnew"):
                # It looks like one of the user's own.
                fake = "shop:" + base64.b64encode(b"shop:k").decode()
                c.ask(line.format(k=fake).encode() + b"\r\n")
            assert boss.get(b"plain") == b"7"


@pytest.mark.parametrize("user", USERS)
def test_objects(server, user):
    with text(server, user) as c, text(server, "boss") as boss:
        for key in KEYS:
            name = key.replace(":", "%3A")
            for call, needs in OBJECTS:
                call = call.format(k=name)
                for line in (f"get {call}", f"gets {call}", f"mg {call} v"):
                    attempt(c, boss, line, is_allowed(user, needs, key))
            for line, needs in OBJECT_COMMANDS:
                attempt(c, boss, line.format(k=name), is_allowed(user, needs, key))
            if USERS[user][1]:
                # An object of the user's own that reads another's.
                own = USERS[user][1].replace(":", "%3A") + "k"
                attempt(c, boss, f"get set:union:{own}:{name}", is_allowed(user, R, key))
                attempt(c, boss, f"mg set::{own} v Aunion:{name}", is_allowed(user, R, key))
                attempt(c, boss, f"ms set::{own} {len(key)} Aunion\r\n{key}", is_allowed(user, R, key))
        attempt(c, boss, "get set:methods", is_allowed(user, R, USERS[user][1]))
        # Behind a prefix of the server's.
        attempt(c, boss, "get ns:quota:take:k:1:10:hour", is_allowed(user, W, "ns:"))
        attempt(c, boss, "get ns:deep:quota:take:k:1:10:hour", is_allowed(user, W, "ns:"))


@pytest.mark.parametrize("user", USERS)
def test_control_keys(server, user):
    rights, prefix = USERS[user]
    with text(server, user) as c, text(server, "boss") as boss:
        for line in CONTROL:
            attempt(c, boss, line.format(s=""), "control" in rights and not prefix)
            for space in ("ns:", "ns:deep:"):
                attempt(c, boss, line.format(s=space), "control" in rights and space.startswith(prefix))
            attempt(c, boss, line.format(s="shop:"), "@" not in line and not prefix and "control" in rights) if "G" in line else None
        for line in CONTROL_OF_ALL:
            attempt(c, boss, line, "control" in rights and not prefix)


@pytest.mark.parametrize("user", USERS)
def test_what_takes_the_connection_over(server, user):
    with text(server, user) as c:
        c.send(b"watch mutations\r\n")
        assert c.line() == (b"OK" if is_allowed(user, CA) else NO[:-2])
    with text(server, user) as c:
        c.send(b"quit\r\n")
        assert c.closed() == b""


# The binary protocol

SASL = {packets.SASL_LIST, packets.SASL_AUTH, packets.SASL_STEP}
OPCODES = {
    0x00: (R, packet), 0x01: (W, store), 0x02: (W, store), 0x03: (W, store), 0x04: (W, packet), 0x05: (W, count), 0x06: (W, count), 0x07: (FREE, None), 0x08: (CA, "flush"),
    0x09: (R, packet), 0x0A: (FREE, None), 0x0B: (FREE, None), 0x0C: (R, packet), 0x0D: (R, packet), 0x0E: (W, "join"), 0x0F: (W, "join"), 0x10: (FREE, None),
    0x11: (W, store), 0x12: (W, store), 0x13: (W, store), 0x14: (W, packet), 0x15: (W, count), 0x16: (W, count), 0x17: (FREE, None), 0x18: (CA, "flush"),
    0x19: (W, "join"), 0x1A: (W, "join"), 0x1C: (W, touch), 0x1D: (RW, touch), 0x1E: (RW, touch), 0x23: (RW, touch), 0x24: (RW, touch),
}
QUIET_GETS = {GETQ, GETKQ, GATQ, GATKQ}


def request(opcode, key):
    _, make = OPCODES.get(opcode, (None, None))
    if make is store:
        return store(key, b"new", opcode=opcode)
    if make is count:
        return count(key, opcode=opcode)
    if make is touch:
        return touch(key, 100, opcode=opcode)
    if make == "join":
        return packet(opcode, key, b"new")
    if make == "flush":
        return packet(opcode, extras=b"\0\x0f\0\0")
    return packet(opcode, key) if make is packet else packet(opcode)


@pytest.mark.parametrize("user", USERS)
def test_binary(server, user):
    c = binary(server, user)
    with text(server, "boss") as boss:
        for opcode in range(0x40):
            if opcode in SASL | {0x07, 0x17}:
                continue
            for key in KEYS:
                needs, make = OPCODES.get(opcode, (FREE, None))
                may = is_allowed(user, needs, key) if make not in (None, "flush") else is_allowed(user, needs)
                fill(boss)
                before = state(boss)
                c.send(request(opcode, key.encode()) + packet(NOOP, opaque=99))
                got = []
                while (reply := c.reply()).opaque != 99:
                    got.append(reply)
                refused = [reply for reply in got if reply.value == NO[:-2]]
                if may:
                    assert not refused, (hex(opcode), key)
                    if opcode not in OPCODES:
                        assert [reply.status for reply in got] == [UNKNOWN]
                else:
                    expected = [] if opcode in QUIET_GETS else [NOT_STORED]
                    assert [reply.status for reply in got] == expected and got == refused, (hex(opcode), key, got)
                    assert state(boss) == before, (hex(opcode), key)
        for key, needs in (("", FREE), ("items", FREE), ("settings", A), ("reset", A), ("detail on", CA), ("detail dump", CA), ("detailx", CA), ("cattlegrid", A), ("settingsx", A), ("leases", CA)):
            c.send(packet(packets.STAT, key.encode()) + packet(NOOP))
            got = c.until_noop()
            may = is_allowed(user, needs)
            assert (got[0].value == NO[:-2] and got[0].status == NOT_STORED) == (not may), key
    for opcode in (0x07, 0x17):
        with binary(server, user) as other:
            other.send(packet(opcode))
            other.closed()
    c.close()


def test_a_binary_multi_get_of_which_one_key_is_outside(server):
    with text(server, "boss") as boss, binary(server, "shop") as c:
        fill(boss)
        for opcode in (GETKQ, GETQ):
            c.send(packets.multi_get([b"shop:k", b"plain", b"shop:k"], opcode=opcode))
            assert [(reply.opaque, reply.value) for reply in c.until_noop()] == [(1, b"7"), (3, b"7")]
        c.send(store(b"shop:q", b"1", opcode=packets.SETQ, opaque=1) + store(b"plain", b"1", opcode=packets.SETQ, opaque=2) + packet(GET, b"shop:q", opaque=3))
        assert [(reply.opaque, reply.status) for reply in c.replies(2)] == [(2, NOT_STORED), (3, OK)]
        assert boss.get(b"plain") == b"7"


# Ways round


def test_multi_gets_are_refused_as_a_whole(server):
    with text(server, "boss") as boss, text(server, "shop") as c:
        fill(boss)
        for line in ("get shop:k plain", "get plain shop:k", "gets shop:k shop:k plain", "gat 5 shop:k plain", "get shop:k @tag:t", "get shop:k @bump:t", "get shop:k set:getall:plain"):
            assert c.ask(line.encode() + b"\r\n") == NO, line
        assert boss.ttl(b"shop:k") == -1 and boss.ask(b"get @tag:t\r\n").count(b"VALUE") == 1
        many = b" ".join(b"shop:%d" % n for n in range(30_000))
        assert c.ask(b"get " + many + b"\r\n") == b"END\r\n"
        assert c.ask(b"get " + many + b" plain\r\n") == NO
        assert c.ask(b"get " + many + b" shop:k\r\n") == b"VALUE shop:k 0 1\r\n7\r\nEND\r\n"


def test_keys_at_the_edges(server):
    with text(server, "boss") as boss, text(server, "shop") as c:
        for key in ("shop", "shop:", "Shop:k", "shop%3Ak", "shop;k", "s", "shop\x00:k", "xshop:k", "shop:" + "x" * 245):
            is_inside = key.startswith("shop:")
            assert (c.ask(f"set {key} 0 0 1\r\nx\r\n".encode()) == b"STORED\r\n") == is_inside, key
            assert (boss.ask(f"get {key}\r\n".encode()) != b"END\r\n") == is_inside, key
        assert c.ask(b"set " + b"shop:" + b"x" * 246 + b" 0 0 1\r\nx\r\n").startswith(b"CLIENT_ERROR bad")
        assert c.ask(b"get  plain\r\n") == NO and c.ask(b"get shop:k \t plain\r\n") != b"VALUE"
        assert c.ask(b"  get plain\r\n") in (NO, b"ERROR\r\n")
        with binary(server, "shop") as b:
            for key in (b"shop:\xff\0\r\n", b"sho", b"shop:k\r\nget plain"):
                assert (b.ask(store(key, b"x")).status == OK) == key.startswith(b"shop:")


def test_a_refused_store_is_swallowed_however_it_comes(server):
    with text(server, "boss") as boss, text(server, "reader") as c:
        fill(boss)
        for size in (0, 3, 100_000, 900_000, 3_000_000):
            block = b"set plain 0 0 %d\r\n" % size + b"get plain\r\n" * (size // 11) + b"x" * (size % 11) + b"\r\n"
            for line, reply in ((block, NO), (block.replace(b"%d\r\n" % size, b"%d noreply\r\n" % size, 1), b"")):
                for step in (len(line), 65_536, 997):
                    if len(line) // step > 500:
                        continue
                    for at in range(0, len(line), step):
                        c.send(line[at : at + step])
                    assert c.ask(b"") == reply, (size, step)
        for n in range(1, 30):
            line = b"ms plain 3 q\r\nnew\r\n"
            c.send(line[:n])
            time.sleep(0.002)
            assert c.ask(line[n:]) == NO, n
        assert boss.get(b"plain") == b"7"
    with binary(server, "reader") as b, text(server, "boss") as boss:
        for size in (0, 900_000, 3_000_000):
            line = store(b"plain", b"x" * size, opaque=1) + packet(GET, b"plain", opaque=2)
            for at in range(0, len(line), 65_536):
                b.send(line[at : at + 65_536])
            first, second = b.replies(2)
            assert (first.status, first.value, second.value) == (NOT_STORED, NO[:-2], b"7"), size


def test_large_values_of_ones_own(server):
    value = bytes(range(256)) * 3500
    with text(server, "shop") as c, text(server, "boss") as boss:
        assert c.set(b"shop:large", value) == b"STORED" and c.get(b"shop:large") == value
        assert c.set(b"large", value) == NO[:-2] and boss.get(b"large") is None


def test_noreply(server):
    with text(server, "boss") as boss, text(server, "reader") as c:
        fill(boss)
        lines = ["set plain 0 0 1 noreply\r\nx", "delete plain noreply", "incr plain 1 noreply", "touch plain 1 noreply", "flush_all noreply", "verbosity 2 noreply", "cache_memlimit 8 noreply"]
        assert c.ask("".join(line + "\r\n" for line in lines).encode()) == b""
        assert boss.get(b"plain") == b"7"
        assert boss.stats("cattlegrid")["not_allowed"] == str(len(lines))


def test_before_and_after_logins(server):
    with text(server, "boss") as boss:
        fill(boss)
    c = binary(server, "boss")
    # What is pipelined behind a login has the rights of that user.
    c.send(packet(GET, b"plain", opaque=1) + plain(b"shop", b"pw", opaque=2) + packet(GET, b"plain", opaque=3) + packet(GET, b"shop:k", opaque=4) + plain(b"boss", b"pw", opaque=5) + packet(GET, b"plain", opaque=6))
    assert [(reply.opaque, reply.status) for reply in c.replies(6)] == [(1, OK), (2, OK), (3, NOT_STORED), (4, OK), (5, OK), (6, OK)]
    # A login that fails leaves no rights.
    c.send(plain(b"boss", b"wrong", opaque=1) + packet(GET, b"plain", opaque=2))
    assert [reply.status for reply in c.replies(2)] == [AUTH_ERROR, AUTH_ERROR]
    c.closed()
    c = binary(server, "shop")
    assert c.ask(plain(b"boss", b"wrong")).status == AUTH_ERROR
    assert c.ask(plain(b"shop", b"pw")).status == OK
    assert c.ask(packet(GET, b"plain")).status == NOT_STORED
    # Neither does the identity to act as.
    assert c.ask(plain(b"shop", b"pw", authzid=b"boss")).status == AUTH_ERROR
    with server.raw() as t:
        t.send(b"set x 0 0 7\r\nshop pw\r\nget plain\r\nget shop:k\r\nset x 0 0 7\r\nboss pw\r\nget plain\r\nmn\r\n")
        assert t.until_mn() == b"STORED\r\n" + NO + b"VALUE shop:k 0 1\r\n7\r\nEND\r\n" + NO + NO


def test_held_gets_keep_their_rights_and_nothing_overtakes(server):
    with text(server, "boss") as boss, text(server, "reader") as c, text(server, "shop") as shop:
        assert boss.ask(b"get page:1\r\n") == b"END\r\n", "it has the lease"
        c.send(b"get page:1\r\nset plain 0 0 1\r\nx\r\nmg page:1 v q\r\ndelete page:1\r\nmn\r\n")
        assert shop.ask(b"get page:1\r\n") == NO, "no waiting either"
        assert boss.set(b"page:1", b"v") == b"STORED"
        assert c.until_mn() == b"VALUE page:1 0 1\r\nv\r\nEND\r\n" + NO + b"VA 1\r\nv\r\n" + NO
        # A token does not help who may not write.
        line = boss.ask(b"mg page:2 v c N30\r\n")
        token = re.search(rb" c(\d+)", line)[1]
        for line in (b"ms page:2 1 C%s\r\nx\r\n" % token, b"md page:2 C%s\r\n" % token, b"md page:2 C%s Pefailed\r\n" % token):
            assert c.ask(line) == NO and shop.ask(line) == NO


def test_a_cascade_is_the_operators(server):
    with text(server, "boss") as boss, text(server, "shop") as c:
        boss.ask(b"ms any 1 Geffect\r\nx\r\n")
        assert c.set(b"shop:cause:1", b"x") == b"STORED"
        assert boss.get(b"any") is None


def test_tags_of_a_namespace(server):
    with text(server, "boss") as boss, text(server, "spaced") as c:
        boss.ask(b"ms any 1 Gt\r\nx\r\n")
        c.ask(b"ms ns:any 1 Gt\r\nx\r\n")
        assert c.ask(b"delete ns:@tag:t\r\n") == b"DELETED\r\n"
        assert boss.get(b"any") == b"x" and boss.get(b"ns:any") is None
        assert c.ask(b"set ns:@tags:later 0 0 1\r\nu\r\n") == b"STORED\r\n"
        c.set(b"ns:later", b"x")
        assert c.ask(b"md ns:u G\r\n") == b"HD\r\n" and boss.get(b"ns:later") is None
        assert c.ask(b"set @tags:ns:later 0 0 1\r\nu\r\n") == b"STORED\r\n", "a key of its own"
        assert c.ask(b"set @tags:plain 0 0 1\r\nu\r\n") == NO
        assert c.ask(b"get ns:@why:later\r\n").startswith(b"VALUE ns:@why:later")


def reload(server, count):
    server.signal(signal.SIGHUP)
    wait_until("the reload", lambda: server.log().count(": reloaded") + server.log().count("nothing reloaded") >= count)


def test_a_reload_takes_rights_away_at_once(server, files):
    with text(server, "boss") as boss, text(server, "writer") as c, binary(server, "writer") as b, text(server, "boss") as watcher, text(server, "reader") as gone:
        fill(boss)
        watcher.send(b"watch mutations\r\n")
        assert watcher.line() == b"OK"
        c.send(b"set plain 0 0 500000\r\n" + b"x" * 400_000)
        time.sleep(0.1)
        write(files[1], RULES.replace('rights = ["read", "write"]', 'rights = ["read"]', 1) + '[[user]]\nname = "boss"\nrights = ["read", "write", "control"]\n')
        reload(server, 1)
        c.send(b"x" * 100_000 + b"\r\n")
        assert c.ask(b"") == NO, "it came in part"
        assert c.ask(b"set plain 0 0 1\r\nx\r\nget plain\r\n") == NO + b"VALUE plain 0 1\r\n7\r\nEND\r\n"
        assert b.ask(packet(packets.DELETE, b"plain")).status == NOT_STORED
        assert boss.ask(b"stats settings\r\n") == NO
        watcher.closed()
        # A user leaves.
        write(files[0], "".join(f"{name}:pw\n" for name in USERS if name != "reader"))
        reload(server, 2)
        assert "nothing reloaded" in server.log() and f"{files[1]}:" in server.log() and 'user "reader": is not in -Y' in server.log()
        assert gone.ask(b"get plain\r\n").startswith(b"VALUE")
        write(files[1], RULES.replace('[[user]]\nname = "reader"\nrights = ["read"]\n', ""))
        reload(server, 3)
        assert gone.ask(b"get plain\r\nversion\r\ndelete plain\r\nflush_all\r\n") == NO + b"VERSION 1.6.45\r\n" + NO + NO
        # Rights are given back, and limits taken away.
        write(files[0], "".join(f"{name}:pw\n" for name in USERS))
        write(files[1], RULES.split("[[user]]")[0])
        reload(server, 4)
        assert gone.ask(b"get plain\r\n").startswith(b"VALUE") and c.ask(b"flush_all\r\n") == b"OK\r\n"


def test_unix_sockets_and_switches(start, files, open_dir):
    server = start("-s", f"{open_dir}/socket", "-Y", files[0], "--config", files[1], "-F", "-X", "-W")
    with text(server, "shop") as c, text(server, "boss") as boss:
        assert c.ask(b"get plain\r\nset plain 0 0 1\r\nx\r\nset shop:k 0 0 1\r\nx\r\n") == NO + NO + b"STORED\r\n"
        for line in (b"flush_all", b"watch", b"stats cachedump 1 0", b"lru_crawler metadump all"):
            assert c.ask(line + b"\r\n") == NO
            said = boss.ask(line + b"\r\n")
            assert b"not allowed" in said and said != NO, line


def test_others_have_a_table(start, files):
    write(files[1], '[[user]]\nname = "*"\nrights = ["read"]\n[[user]]\nname = "boss"\n')
    server = start("-Y", files[0], "--config", files[1])
    with text(server, "none") as c, text(server, "boss") as boss:
        assert boss.set(b"k", b"v") == b"STORED" and c.get(b"k") == b"v" and c.set(b"k", b"w") == NO[:-2]
    assert "with all rights" not in server.log()


def test_realms(start, open_dir):
    users = write(f"{open_dir}/pwdb", "bob@host:pw\n")
    rules = write(f"{open_dir}/rules.toml", '[[user]]\nname = "bob@host"\nrights = ["read"]\n')
    server = start("-S", "--config", rules, env={"MEMCACHED_SASL_PWDB": users})
    for name in ("bob", "bob@host"):
        with binary(server, name) as c:
            assert c.set(b"k", b"v") == NOT_STORED and c.get(b"k") is None


def test_what_the_log_and_the_statistics_say(server):
    with text(server, "reader") as c, text(server, "boss") as boss:
        for n in range(100):
            c.ask(b"set secretkey%d 0 0 11\r\nsecretvalue\r\n" % n)
        c.ask(b"delete secretkey\r\n")
        assert boss.stats("cattlegrid")["not_allowed"] == "101"
    def refusals():
        return [line for line in server.log().splitlines() if "is not allowed" in line]

    wait_until("the log's thread has written both", lambda: len(refusals()) >= 2)
    lines = refusals()
    assert len(lines) == 2 and lines[0].endswith('user "reader" is not allowed: set') and lines[1].endswith("delete"), lines
    assert "secret" not in server.log()
    assert 'with all rights: "boss"; ' in server.log()


@pytest.mark.parametrize(("table", "options", "problem"), [
    ('name = "eve"', ("-Y", "USERS"), 'rules.toml:1: user "eve": is not in -Y'),
    ('name = "boss"', (), 'rules.toml:1: user "boss": clients of this server need not log in; name a file of users by -Y'),
    ('name = "boss"\nprefix = ""', ("-Y", "USERS"), "prefix: is empty; leave it out"),
    ('name = "boss"\nrights = ["reed"]', ("-Y", "USERS"), "is unknown; did you mean read?"),
    ('name = "boss"\nrights = ["read", "read"]', ("-Y", "USERS"), "is there twice"),
    ('name = "boss"\n[[user]]\nname = "boss"', ("-Y", "USERS"), "has a table in line 1 already"),
])
def test_mistakes(binary, files, table, options, problem):
    write(files[1], f"[[user]]\n{table}\n")
    options = [files[0] if word == "USERS" else word for word in options]
    done = subprocess.run([binary, "-p", "-1", "--config", files[1], *options], capture_output=True, text=True, timeout=PROMPT)
    assert done.returncode == 2 and problem in done.stderr, done.stderr


def test_check_knows_the_users(binary, files):
    def said():
        return subprocess.run([binary, "check", files[1]], capture_output=True, text=True, timeout=PROMPT)

    table = '[[user]]\nname = "eve"\n'
    write(files[1], table)
    assert said().returncode == 0, "which users there are is not known"
    write(files[1], f'[server]\nauth_file = "{files[0]}"\n{table}')
    done = said()
    assert done.returncode == 2 and 'rules.toml:3: user "eve": is not in -Y' in done.stderr, done
    write(files[1], f'[server]\nauth_file = "{files[0]}"\n{table}'.replace("eve", "boss"))
    assert said().returncode == 0


# A user behind a prefix who tries everything at random


class Fuzz:
    OUTSIDE = ["plain", "shopx", "shop", "ns:k", "ns:deep:k", "other:1", "page:1"]

    def __init__(self, seed):
        self.random = random.Random(seed)

    def key(self):
        own = ["shop:k", "shop:1", "shop:cause:2", "shop:" + "y" * 200]
        return self.random.choice(own * 2 + self.OUTSIDE)

    def line(self):
        pick = self.random.choice
        key = self.key()
        name = key.replace(":", pick(["%3A", "%3a", ":"]))
        line = pick([
            lambda: pick(KEYED[:-2])[1].format(k=key), lambda: pick(KEYED[:-2])[1].format(k=key), lambda: pick(OBJECT_COMMANDS)[0].format(k=name),
            lambda: pick(["get ", "mg ", "gat 9 ", "delete ", "incr "]) + pick(OBJECTS)[0].format(k=name), lambda: pick(CONTROL).format(s=pick(["", "ns:", "shop:"])),
            lambda: pick(CONTROL_OF_ALL), lambda: pick([line for name, line, _ in ADMIN if "noreply" not in line]),
            lambda: "get " + " ".join(self.key() for _ in range(self.random.randint(1, 6))),
            lambda: f"mg {base64.b64encode(key.encode()).decode()} b v k", lambda: f"ms {base64.b64encode(key.encode()).decode()} 3 b\r\nnew",
            lambda: f"set {key} 0 0 3 noreply\r\nnew", lambda: f"set {key} 0 0 30\r\nget plain\r\nmg plain v\r\nnew", lambda: f"set {key} 0 0 x",
            lambda: f"set {key} 0 0 1200000\r\n" + "z" * 1_200_000 if self.random.random() < 0.1 else "mn",
        ])()
        if self.random.random() < 0.05:
            at = self.random.randrange(len(line) + 1)
            line = line[:at] + pick([" ", "\0", "\r\n", "\t", "@", ":"]) + line[at:]
        return line.encode() + b"\r\n"

    def packet(self):
        pick = self.random.choice
        opcode = pick([opcode for opcode in range(0x40) if opcode not in SASL | {0x07, 0x17}])
        key = pick([self.key(), self.key(), "@tag:t", "ns:@bump:t", "@flush:1", "set:getall:plain", "quota:take:plain:1:9:hour", "shop:@tag:t"])
        if opcode == packets.STAT:
            return packet(opcode, pick([b"", b"items", b"detail dump", b"reset", b"settings"]))
        return request(opcode, key.encode())


def test_nothing_of_others_is_seen_or_changed(server):
    for seed in range(12):
        fuzz = Fuzz(seed)
        with text(server, "boss") as boss:
            for key in Fuzz.OUTSIDE:
                assert boss.set(key.encode(), b"SECRET-" + key.encode()) == b"STORED"
            boss.ask(b"get set:new:plain\r\nget set:put:plain:SECRET-member\r\nget set:new:ns%3Ak\r\n")
            ask = b"".join(b"mg %s v f s c t k\r\n" % key.encode() for key in Fuzz.OUTSIDE) + b"get set:dump:plain\r\nget set:dump:ns%3Ak\r\nget @tag:t @tag:u @tag:tag\r\nget ns:@tag:t\r\n"
            before = boss.ask(ask)
            is_text = seed % 2 == 0
            c = text(server, "shop") if is_text else binary(server, "shop")
            data = b"".join(fuzz.line() if is_text else fuzz.packet() for _ in range(400))
            end = b"version\r\n" if is_text else packet(packets.VERSION)
            c.sock.settimeout(0.005)
            got, at = b"", 0
            data += end
            while at < len(data):
                step = fuzz.random.choice([1, 7, 100, 5000, 100_000])
                try:
                    at += c.sock.send(data[at : at + step])
                except TimeoutError:
                    pass
                except ConnectionError:
                    break
                try:
                    got += c.sock.recv(1 << 20)
                except TimeoutError:
                    pass
                except ConnectionError:
                    break
            c.sock.settimeout(0.3)
            try:
                while not (got.endswith(b"VERSION 1.6.45\r\n") or got.endswith(b"1.6.45")):
                    more = c.sock.recv(1 << 20)
                    if not more:
                        break
                    got += more
            except (TimeoutError, ConnectionError):
                pass
            c.close()
            assert b"SECRET" not in got and b"other:1" not in got, seed
            assert boss.ask(ask) == before, seed
            assert b"not allowed" in got, seed


# Objects' methods that a reader may call


def test_methods_that_read_change_nothing(server):
    source = (SOURCES / "objects/src/registry.rs").read_text()
    table = source[source.index("const READING") :]
    methods = re.findall(r'\("(\w+)", "(\w+)"\)', table[: table.index("];")])
    assert len(methods) > 40
    makes = {
        "bloom": "new:{k}:100:1", "board": "incr:{k}:m:5", "bucket": "take:{k}:1:10:1", "consistent": "new:{k}:a:b", "counter": "add:{k}:5", "gcra": "take:{k}:1:1:1:minute",
        "hll": "add:{k}:x", "lock": "take:{k}:me:60", "map": "new:{k}", "queue": "push:{k}:x", "quota": "take:{k}:1:10:hour", "recent": "add:{k}:x", "sem": "take:{k}:me:3:60",
        "set": "new:{k}", "sliding": "hit:{k}:10:60", "swcounter": "new:{k}:4", "topk": "hit:{k}:x",
    }
    with text(server, "boss") as boss, text(server, "reader") as c:
        boss.ask(b"".join(b"get %s:%s\r\n" % (kind.encode(), how.format(k="o").encode()) for kind, how in makes.items()))
        boss.ask(b"get map:put:o:x:1\r\nget set:put:o:x\r\nget set:put:o:y\r\nget swcounter:add:o:2\r\n")
        for kind, method in methods:
            for key in ("o", "absent"):
                dump = f"get {kind}:exists:{key}\r\nget {kind}:dump:{key}\r\nget {kind}:size:{key}\r\n".encode()
                # What is left of a time is not changed by the call.
                look = lambda: re.sub(rb"\d+", b"#", boss.ask(dump)) if kind in ("lock", "sem", "bucket", "gcra", "sliding", "quota") else boss.ask(dump)  # noqa: B023, E731
                before = look()
                for arguments in ("", ":x", ":o", ":1", ":10:60", ":10:hour", ":10:1", ":1:1:minute", ":1:5", ":0:9"):
                    reply = c.ask(f"get {kind}:{method}:{key}{arguments}\r\n".encode())
                    assert reply != NO, (kind, method)
                assert look() == before, (kind, method, key)


# Clients


def test_pymemcache(server):
    c = pymemcache.client.base.Client(("127.0.0.1", server.port), timeout=10)
    sock = socket.create_connection(("127.0.0.1", server.port), 10)
    sock.sendall(b"set x 0 0 7\r\nshop pw\r\n")
    assert sock.recv(100) == b"STORED\r\n"
    c.sock = sock
    assert c.set("shop:k", "v", noreply=False) and c.get("shop:k") == b"v"
    for call in (lambda: c.get("plain"), lambda: c.get_many(["shop:k", "plain"]), lambda: c.delete("plain", noreply=False), lambda: c.incr("plain", 1), lambda: c.set("plain", "v", noreply=False)):
        with pytest.raises(pymemcache.exceptions.MemcacheClientError, match="not allowed"):
            call()
        if c.sock is None:
            # It closes after any error; with a login of its own it would come back.
            sock = socket.create_connection(("127.0.0.1", server.port), 10)
            sock.sendall(b"set x 0 0 7\r\nshop pw\r\n")
            assert sock.recv(100) == b"STORED\r\n"
            c.sock = sock
        assert c.get("shop:k") == b"v"
    c.set("plain", "v", noreply=True)
    assert c.get("shop:k") == b"v"


def test_the_client_of_this_project(server, monkeypatch):
    """A refused invalidation is no server without tags."""
    monkeypatch.syspath_prepend(str(pathlib.Path(__file__).parents[1] / "python" / "src"))
    from cattlegrid.client import Cache, Refused

    address = f"127.0.0.1:{server.port}"
    with Cache(address, username="shop", password="pw") as cache:
        for call in (lambda: cache.invalidate("t"), cache.has_tags, lambda: cache.set("plain", "v")):
            with pytest.raises(Refused, match="not allowed"):
                call()
        cache.set("shop:k", "v")
        assert cache.get("shop:k") == "v"


def test_bmemcached(server):
    c = bmemcached.Client([server.address], "shop", "pw", socket_timeout=10)
    assert c.set("shop:k", "v")
    for call in (lambda: c.get("plain"), lambda: c.set("plain", "v"), lambda: c.delete("plain"), lambda: c.incr("plain", 1), lambda: c.flush_all()):
        with pytest.raises(bmemcached.exceptions.MemcachedException, match="not allowed"):
            call()
        assert c.get("shop:k") == "v"
    assert c.get_multi(["shop:k", "plain", "shop:absent"]) == {"shop:k": "v"}
    assert c.get("shop:k") == "v"


def test_pylibmc(server, open_dir):
    """In a process of its own: see `test_binary_logins.py`."""
    import glob

    [directory] = glob.glob("/usr/lib/*/sasl2")
    program = """
import pylibmc, sys
c = pylibmc.Client([sys.argv[1]], binary=True, username="shop", password="pw")
assert c.set("shop:k", "v")
for index, call in enumerate((lambda: c.get("plain"), lambda: c.delete("plain"), lambda: c.incr("plain", 1), lambda: c.touch("plain", 5))):
    try:
        assert call() is None
    except pylibmc.ServerDown:
        print("taken out of use")
    except pylibmc.Error:
        print("refused")
    else:
        # The first get of a process.
        print("refused" if index == 0 else "answered")
    assert c.get("shop:k") == "v"
assert c.set("plain", "v") is False and c.add("plain", "v") is False and c.get("shop:k") == "v"
assert c.get_multi(["shop:k", "plain", "shop:absent"]) == {"shop:k": "v"}
assert c.get("shop:k") == "v"
"""
    done = subprocess.run([sys.executable, "-c", program, server.address], env={**os.environ, "SASL_PATH": directory}, capture_output=True, text=True, timeout=6 * PROMPT)
    assert done.returncode == 0 and done.stdout == "refused\n" * 4, done


def test_values_and_passwords_are_in_no_log(start, files):
    server = start("-S", "-Y", files[0], "--config", files[1], "-vvv")
    with text(server, "boss") as watcher, binary(server, "boss") as c, text(server, "boss") as t:
        watcher.send(b"watch rawcmds\r\n")
        assert watcher.line() == b"OK"
        assert c.ask(plain(b"shop", b"pw")).status == OK
        assert c.ask(plain(b"boss", b"pw")).status == OK
        for value in (b"SECRET", b"SECRET" * 100_000):
            assert c.set(b"binkey", value) == OK and c.get(b"binkey") == value and c.get(b"binkey", opcode=GETK) == value
            c.ask(packet(packets.APPEND, b"binkey", b"SECRET"))
            assert t.set(b"txtkey", value) == b"STORED" and t.get(b"txtkey") == value
        wait_until("the log", lambda: server.log().count("binkey") >= 10)
        time.sleep(0.2)
        seen = watcher.sock.recv(1 << 20) + server.log().encode()
        assert b"txtkey" in seen and b"SECRET" not in seen and b"\\x00pw" not in seen and b"\0pw" not in seen and b"%00pw" not in seen
