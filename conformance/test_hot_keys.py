"""The page of hot keys: what is asked for most is found, and its figures are right within what a sample allows."""

import random
import socket
import threading
import time

import pytest

from admin import Admin
from harness import wait_until

pytestmark = pytest.mark.only_cattlegrid


@pytest.fixture
def served(start):
    admin = Admin()
    return start("-t", "2", *admin.options()), admin


def load(server, keys, turns, pipelined=1):
    """Gets of keys that `keys()` draws, from eight connections; how many of each key."""
    asked = {}
    with_lock = threading.Lock()

    def one():
        own = {}
        with server.raw() as raw:
            for _ in range(turns // 8):
                drawn = [keys() for _ in range(pipelined)]
                raw.send(b"".join(b"get %s\r\n" % key for key in drawn))
                for key in drawn:
                    own[key] = own.get(key, 0) + 1
                    raw.until(b"END\r\n")
        with with_lock:
            for key, count in own.items():
                asked[key] = asked.get(key, 0) + count

    threads = [threading.Thread(target=one) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return asked


def test_hot_keys_and_shapes_are_found(served):
    server, admin = served
    with server.raw() as raw:
        raw.set(b"page:7", b"x" * 10)
        raw.set(b"blob:1", b"x" * 100_000)

    def keys():
        at = random.random()
        if at < 0.2:
            return b"page:7"
        if at < 0.25:
            return b"blob:1"
        return b"user:%d:name" % random.randrange(100_000)

    asked = load(server, keys, 40_000)
    page = admin.json("/hot")
    total = sum(asked.values())
    assert total / 64 / 2 < page["sampled"] < total / 64 * 2, page["sampled"]
    first = page["by_requests"][0]
    assert first["key"] == "page%3A7"
    # 8,000 of which 125 are sampled: three standard deviations.
    assert abs(first["gets"] - asked[b"page:7"]) < 0.35 * asked[b"page:7"], (first, asked[b"page:7"])
    assert first["misses"] == 0 and first["count"] - first["error"] <= first["gets"] <= first["count"]
    assert page["by_bytes"][0]["key"] == "blob%3A1"
    shapes = {one["shape"]: one for one in page["shapes"]}
    assert list(shapes)[0] == "user:{}:name" and set(shapes) == {"user:{}:name", "page:{}", "blob:{}"}
    users = shapes["user:{}:name"]
    assert users["misses"] == users["gets"] and abs(users["gets"] / total - 0.75) < 0.1, (users, total)


def test_requests_of_all_kinds_count(served):
    """`mg` in all its forms, and what changes a key without reading it."""
    server, admin = served
    turns = 12_000
    with server.raw() as raw:
        raw.set(b"found:a", b"x" * 100)
        raw.set(b"counter:a", b"0")
        forms = [
            (b"mg found:a v\r\n", b"VA 100"), (b"mg found:a k v q\r\nmn\r\n", b"VA 100"), (b"mg absent:a v\r\n", b"EN"), (b"mg absent:a v q\r\nmn\r\n", b"MN"),
            (b"incr counter:a 1\r\n", b""), (b"ma counter:a\r\n", b"HD"), (b"touch counter:a 0\r\n", b"TOUCHED"),
        ]
        for n in range(turns):
            data, reply = forms[n % len(forms)]
            raw.send(data)
            line = raw.line()
            assert line.startswith(reply), (data, line)
            if line.startswith(b"VA"):
                raw.line()
            if data.endswith(b"mn\r\n") and line != b"MN":
                assert raw.line() == b"MN"
    found = {one["key"]: one for one in admin.json("/hot")["by_requests"]}
    names = {"found%3Aa": (2, 2, 0), "absent%3Aa": (2, 2, 2), "counter%3Aa": (3, 0, 0)}
    for name, (requests, gets, misses) in names.items():
        each = turns / len(forms)
        for figure, expected in (("count", requests), ("gets", gets), ("misses", misses)):
            # 27 sampled turns of each form: four standard deviations.
            assert abs(found[name][figure] - expected * each) <= 0.8 * expected * each, (name, figure, found[name], each)


def test_regular_traffic_is_no_blind_spot(served):
    """A client that asks for 64 keys in the same order, in turns of their own: all are found."""
    server, admin = served
    with server.raw() as raw:
        for _ in range(400):
            for n in range(64):
                raw.send(b"get key:%d\r\n" % n)
                raw.until(b"END\r\n")
    found = {one["key"] for one in admin.json("/hot")["by_requests"]}
    assert len(found) >= 45, len(found)


def test_a_herd_is_seen(served):
    """Without a rule: 500 clients miss a key at once, and all store it."""
    server, admin = served
    sockets = [server.connect() for _ in range(500)]
    for _ in range(3):
        for s in sockets:
            s.sendall(b"get report\r\n")
        for s in sockets:
            s.recv(100)
        for s in sockets:
            s.sendall(b"set report 0 1 1\r\nx\r\n")
        for s in sockets:
            s.recv(100)
        with server.raw() as raw:
            raw.send(b"delete report\r\n")
            raw.line()
    for s in sockets:
        s.close()
    report = next(one for one in admin.json("/hot")["by_requests"] if one["key"] == "report")
    assert 500 <= report["misses"] <= 3000, report
    assert 0 < report["herd_misses"] <= report["misses"], report


def test_odd_keys_do_no_harm(served):
    server, admin = served
    with server.raw() as raw:
        for n in range(3000):
            raw.send(b"mg %s b v\r\n" % (b"/" + b"A" * 7 if n % 2 else b"AAECAw=="))
            raw.line()
            raw.send(b"get %s\r\n" % (b"k" * 250))
            raw.until(b"END\r\n")
    page = admin.json("/hot")
    assert all(len(one["key"]) <= 750 for one in page["by_requests"])


def test_without_pages_nothing_is_sampled_and_the_load_sees_fewer_turns(start):
    """Under load it looks at fewer turns: what it counts is bounded, and the estimate stands."""
    admin = Admin()
    server = start("-t", "1", *admin.options())
    asked = load(server, lambda: b"one", 24_000, pipelined=30)
    page = admin.json("/hot")
    [one] = page["by_requests"]
    total = asked[b"one"]
    print(f"{total} gets, {page['sampled']} sampled, estimated {one['gets']}")
    assert abs(one["gets"] - total) < 0.4 * total, (one, total)
