"""What goes wrong: functions, servers, connections, values, clocks, keys."""

import socket
import threading
import time

import pytest
from herd_support import Call, Held, Relay, Server, in_time, unused, until

from cattlegrid.client import (
    CacheError,
    Compute,
    ConnectionFailed,
    Ejection,
    InvalidKey,
    Negative,
    NoTags,
    ProtocolError,
    TimedOut,
    Unavailable,
    UnreadableValue,
    UsageError,
    skip,
)


@pytest.mark.parametrize("failure", [KeyError("no"), KeyboardInterrupt(), SystemExit(3), StopIteration(1)])
def test_an_exception_of_the_function_frees_the_key(server, blocking, failure):
    def fails():
        raise failure

    cache = blocking(server)
    with pytest.raises((type(failure), RuntimeError)) as caught:
        cache.get_or_compute("h:1", fails, compute_time=30)
    assert failure in (caught.value, caught.value.__cause__)
    began = time.monotonic()
    assert blocking(server).get_or_compute("h:1", lambda: 2, wait=20) == 2
    assert time.monotonic() - began < 15
    assert cache.under_way() == 0


def test_an_old_value_outlives_a_failure(memcached, caches):
    cache = caches(memcached)
    cache.get_or_compute("k", lambda: "old", ttl=1, compute_time=5)
    time.sleep(1.1)

    def fails():
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        cache.get_or_compute("k", fails, compute_time=5)
    held = Held(cache, "k", "new", compute_time=5).begun()
    assert caches(memcached).get_or_compute("k", unused, wait=0) == "old"
    assert held.finish().stored


def test_a_dropped_token_frees_the_key(server, caches):
    cache = caches(server)
    first = cache.fetch_or_compute("h:1", 60, compute_timeout=30)
    assert isinstance(first, Compute)
    del first
    began = time.monotonic()
    assert isinstance(caches(server).fetch_or_compute("h:1", 60, wait=20), Compute)
    assert time.monotonic() - began < 5


def test_a_token_that_is_given_up_frees_the_key_and_is_used_once(server, caches):
    cache = caches(server)
    token = cache.fetch_or_compute("h:1").token
    cache.give_up(token)
    assert token.is_over
    for use in (lambda: cache.deliver(token, 1), lambda: cache.fail(token), lambda: cache.give_up(token), token.save):
        with pytest.raises(UsageError, match="used already"):
            use()
    second = cache.fetch_or_compute("h:1", wait=10)
    assert cache.deliver(second.token, [1], ttl=60) is None
    assert cache.peek("h:1") == [1]


def test_the_primitive(server, caches):
    cache = caches(server)
    got = cache.fetch("h:1", ttl=1, compute_time=5)
    assert (type(got).__name__, got.stale) == ("Compute", None)
    other = caches(server)
    assert type(other.fetch("h:1", wait=0)).__name__ == "Busy"
    assert cache.deliver(got.token, "v") is None
    got = other.fetch("h:1")
    assert (type(got).__name__, got.value) == ("Hit", "v")
    # An expired value comes with the token, and to the others as stale.
    time.sleep(2.1 if server.has_rule else 1.1)
    got = cache.fetch("h:1", compute_time=5)
    assert (type(got).__name__, got.stale and got.stale.value) == ("Compute", "v")
    stale = other.fetch("h:1", wait=0)
    assert (type(stale).__name__, stale.value) == ("Stale", "v")
    assert cache.deliver(got.token, "w") is None
    assert other.get("h:1") == "w"


def test_a_saved_token_is_delivered_elsewhere(server, caches):
    token = caches(server).fetch_or_compute("h:1", "90s", outlives_process=True).token
    text = token.save()
    assert token.is_over
    other = caches(server)
    waits = Call(caches(server).fetch_or_compute, "h:1", 60)
    time.sleep(0.1)
    assert other.deliver(other.resume(text), {"a": 1}) is None
    assert waits.result().value == {"a": 1}
    # Of two that use the same text the first stores its value.
    assert other.deliver(other.resume(text), 2).kind == "fenced"


def test_a_value_that_is_skipped_or_negative(server, caches):
    cache = caches(server)
    outcome = cache.get_or_compute("h:1", lambda: skip(5), outcome=True)
    assert (outcome.value, outcome.stored, outcome.why) == (5, False, "skipped")

    def negative(number):
        key = f"h:negative-{number}"
        assert cache.get_or_compute(key, lambda: Negative("1s", None), ttl=600, outcome=True).stored
        assert cache.get_or_compute(key, unused, outcome=True).kind == "hit"
        return key

    key = in_time(0.9, negative)
    time.sleep(1.2)
    got = cache.get_or_compute(key, lambda: 7, ttl=600, wait=3, outcome=True)
    assert got.value in (None, 7)
    many = cache.get_or_compute_many(["h:2", "h:3"], lambda keys: [skip(2), 3], outcome=True)
    assert [(one.value, one.stored) for one in many.values()] == [(2, False), (3, True)]


def test_a_value_that_is_too_large(server, caches):
    cache = caches(server, serializer="bytes")
    large = b"x" * (2 << 20)
    told = []
    outcome = cache.get_or_compute(
        "h:1", lambda: large, on_not_stored=lambda key, why: told.append(why.kind), outcome=True
    )
    assert (outcome.value == large, outcome.stored, told) == (True, False, ["too_large"])
    assert cache.get("h:1") is None
    with pytest.raises(CacheError, match="too large"):
        cache.set("h:1", large)
    assert cache.set_many({"h:1": large, "h:2": b"small"}) == ["h:1"]
    assert cache.get_many(["h:1", "h:2"]) == {"h:2": b"small"}
    # It is free at once.
    assert cache.get_or_compute("h:1", lambda: b"s", wait=10) == b"s"


def test_large_values_and_many_of_them(plain, caches):
    cache = caches(plain, serializer="bytes")
    values = {f"k:{n}": bytes([n % 256]) * 20_000 for n in range(300)}
    assert cache.set_many(values) == []
    assert cache.get_many(values) == values
    assert cache.get_or_compute_many(list(values), unused) == values


def test_a_value_that_cannot_be_written_frees_the_key(server, caches):
    cache = caches(server)
    with pytest.raises(UnreadableValue, match="h:1"):
        cache.get_or_compute("h:1", lambda: object())
    assert cache.get_or_compute("h:1", lambda: 1, wait=10) == 1
    with pytest.raises(UnreadableValue):
        cache.set("h:1", object())


def test_values_that_cannot_be_read_are_computed_again(server, caches):
    text, cache = caches(server, serializer="bytes"), caches(server, serializer="msgpack")
    for key in ("h:1", "h:2"):
        text.get_or_compute(key, lambda: b"bytes")
    with pytest.raises(UnreadableValue):
        cache.get("h:1")
    got = cache.get_or_compute("h:1", lambda: [1], outcome=True)
    assert (got.kind, got.value, got.stored) == ("computed", [1], True)
    assert cache.get_or_compute_many(["h:1", "h:2"], lambda keys: [[2]]) == {"h:1": [1], "h:2": [2]}
    assert cache.statistics().unreadable == 2


def test_an_old_value_that_cannot_be_read_counts_as_none(memcached, caches):
    caches(memcached, serializer="bytes").get_or_compute("k", lambda: b"old", ttl=1, compute_time=9)
    time.sleep(1.1)
    cache = caches(memcached, serializer="msgpack")
    held = Held(caches(memcached, serializer="msgpack"), "k", "new", compute_time=9).begun()
    assert cache.get_or_compute("k", unused, wait=0.2, outcome=True).kind == "busy"
    waits = Call(cache.get_or_compute, "k", unused, wait=20)
    held.finish()
    assert waits.result() == "new"


def test_damaged_items_count_as_absent(memcached, caches):
    flags = 0xCA77_0001
    for number, data in enumerate((b"", b"\xc7", b"\xc7\x02" + bytes(20), b"\xc7\x09" + bytes(40), b"\0" * 60)):
        key = f"k:{number}"
        memcached.ask(b"set %b %d 0 %d\r\n%b\r\n" % (key.encode(), flags, len(data), data))
        cache = caches(memcached)
        assert cache.get(key) is None
        got = cache.get_or_compute(key, lambda: 1, outcome=True)
        assert (got.kind, got.stored) == ("computed", True)
        assert cache.get(key) == 1


@pytest.mark.parametrize("key", ["a b", "", "x" * 251, "new\nline", "\x00", b"a\tb", 5, None])
def test_nothing_is_sent_for_keys_that_no_server_takes(memcached, caches, key):
    with Relay(memcached.port) as relay:
        cache = caches(relay)
        cache.get("connect")
        relay.round_trips()
        calls = [
            lambda: cache.get(key),
            lambda: cache.set(key, 1),
            lambda: cache.delete(key),
            lambda: cache.get_many(["fine", key]),
            lambda: cache.set_many({"fine": 1, key: 2}),
            lambda: cache.incr(key),
            lambda: cache.peek(key),
            lambda: cache.get_or_compute(key, unused),
            lambda: cache.get_or_compute_many(["fine", key], unused),
            lambda: cache.fetch_or_compute(key),
        ]
        for call in calls:
            with pytest.raises(InvalidKey):
                call()
        assert relay.round_trips() == 0


@pytest.mark.parametrize("key", ["seite:ä", "日本", b"\xff\xfe", "x" * 250, "a\u00a0b", "a%20b"])
def test_other_keys_are_possible(server, caches, key):
    cache = caches(server)
    assert cache.get_or_compute(key, lambda: 1) == 1
    assert cache.get_many([key]) == {key: 1}
    assert cache.delete(key)


@pytest.mark.parametrize(
    "options",
    [
        {"compute_time": -1},
        {"compute_time": "x"},
        {"wait": -1},
        {"grace": "x"},
        {"ttl": "x"},
        {"when_unavailable": "no"},
    ]
    + [{"tags": ["a b"]}, {"tags": [str(n) for n in range(9)]}, {"tags": 5}],
)
def test_wrong_options_are_errors_before_anything_is_computed(memcached, caches, options):
    with pytest.raises((UsageError, TypeError)):
        caches(memcached).get_or_compute("k", unused, **options)
    assert caches(memcached).get("k") is None


@pytest.mark.parametrize(
    "settings",
    [
        {"timeout": 0},
        {"timeout": "x"},
        {"sharding": "modulo"},
        {"protocol": "binary"},
        {"username": "u"},
        {"prefix": "a b"},
    ]
    + [{"ejection": 3}, {"serializer": "xml"}, {"compress_above": -1}, {"tls": 5}],
)
def test_wrong_settings(settings, blocking):
    with pytest.raises(ValueError):
        blocking("127.0.0.1:1", **settings)


def test_a_server_that_is_gone_fails_soon_and_is_asked_again_after_its_back_off(server, caches):
    cache = caches(server, timeout=1, connect_timeout=1)
    assert cache.set("k", 1)
    server.stop()
    began = time.monotonic()
    for _ in range(20):
        with pytest.raises((ConnectionFailed, Unavailable)):
            cache.get("k")
    with pytest.raises((ConnectionFailed, Unavailable)):
        cache.get_or_compute_many(["a", "b"], unused)
    outcomes = cache.get_or_compute_many(["a", "b"], unused, outcome=True)
    assert all(isinstance(outcome.error, CacheError) for outcome in outcomes.values())
    outcomes = cache.get_or_compute_many(["a", "b"], lambda keys: keys, when_unavailable="compute", outcome=True)
    assert [(one.value, one.stored, one.why) for one in outcomes.values()] == [
        ("a", False, "failed"),
        ("b", False, "failed"),
    ]
    assert time.monotonic() - began < 15
    server.start()
    until(lambda: answers(cache), 10)


def answers(cache):
    try:
        return cache.set("k", 2)
    except CacheError:
        return False


def test_a_server_that_does_not_answer(memcached, caches):
    with Relay(memcached.port) as relay:
        cache = caches(relay, timeout=0.3)
        cache.set("k", 1)
        relay.is_deaf = True
        for call in (
            lambda: cache.get("k"),
            lambda: cache.get_or_compute("k", unused),
            lambda: cache.set("k", 2),
            lambda: cache.get_many(["k", "l"]),
        ):
            began = time.monotonic()
            with pytest.raises((TimedOut, Unavailable)):
                call()
            assert time.monotonic() - began < 10
        relay.is_deaf = False
        until(lambda: answers(cache), 10)
        assert cache.get("k") == 2


def test_connections_that_break_while_idle_are_made_anew(server, caches):
    with Relay(server.port) as relay:
        cache = caches(relay)
        for work in (
            lambda: cache.set("k", 1),
            lambda: cache.get("k"),
            lambda: cache.get_or_compute("h:k", lambda: 1),
            lambda: cache.delete("k"),
            lambda: cache.get_many(["k", "h:k"]),
        ):
            work()
            relay.cut()
            time.sleep(0.5)  # in which the client's loop sees it
        assert cache.set("k", 2)


def test_a_connection_that_breaks_in_mid_reply_gives_no_other_key_an_answer(memcached, caches):
    """Replies are cut at every place, by connections that end and by replies that stop."""
    direct = caches(memcached, serializer="text")
    for number in range(20):
        direct.set(f"k:{number}", f"value of k:{number}" * 3)
    cut = threading.local()
    cut.at = 0
    state = {"left": None}

    def change(data):
        if state["left"] is None:
            return data
        left, state["left"] = state["left"], None
        return data[:left] if left else None

    with Relay(memcached.port, change) as relay:
        cache = caches(relay, serializer="text", timeout=0.15)
        for at in range(0, 100, 3):
            state["left"] = at
            for turn in range(4):
                key = f"k:{(at + turn) % 20}"
                try:
                    got = cache.get(key)
                    assert got == f"value of {key}" * 3
                    many = cache.get_many([key, "k:1", "missing"])
                    assert many == {key: f"value of {key}" * 3, "k:1": "value of k:1" * 3}
                except CacheError:
                    time.sleep(0.06)


def test_a_server_that_answers_something_else(memcached, caches):
    wrong = {"data": None}

    def change(data):
        return data if wrong["data"] is None else wrong["data"]

    with Relay(memcached.port, change) as relay:
        cache = caches(relay, timeout=1)
        cache.set("k", 1)
        for data in (
            b"VA 1 O99999\r\n1\r\n",
            b"HELLO\r\n",
            b"VA 5 O1\r\nabcdefghij\r\n",
            b"\0\0\0\r\n",
            b"VALUE k 0 1\r\nx\r\nEND\r\n",
        ):
            wrong["data"] = data
            with pytest.raises(CacheError) as caught:
                cache.get("k")
            assert isinstance(caught.value, (ProtocolError, Unavailable)), caught.value
            wrong["data"] = None
            until(lambda: answers(cache), 10)
        assert cache.get("k") == 2


def test_a_server_without_meta_commands(memcached, caches):
    """Old memcached and proxies answer ERROR to all of them, or close the connection."""
    for closes in (False, True):
        with OldServer(memcached.port, closes) as old:
            cache = caches(old)
            assert cache.set("k", {"a": 1})
            assert cache.get("k") == {"a": 1}
            assert cache.get_or_compute(f"c:{closes}", lambda: "v", outcome=True).stored
            assert cache.get_or_compute(f"c:{closes}", unused) == "v"
            held = Held(caches(old), f"d:{closes}", "slow", compute_time=10).begun()
            waits = Call(caches(old).get_or_compute, f"d:{closes}", unused, wait=20)
            time.sleep(0.1)
            assert held.finish().stored
            assert waits.result() == "slow"
            assert cache.get_or_compute_many(["k", "m"], lambda keys: [2]) == {"k": {"a": 1}, "m": 2}
            assert cache.incr("n") is None
            assert cache.touch("k", 60)
            assert cache.peek("k") == {"a": 1}
            assert cache.gets("k")[1] > 0
            assert cache.cas("k", 5, cache.gets("k")[1]) is True
            assert cache.delete("k")
            with pytest.raises(NoTags):
                cache.set("k", 1, tags=["t"])
            with pytest.raises(NoTags):
                cache.invalidate("t")
            assert old.refused, "it was asked once for each connection"


def test_the_protocol_can_be_chosen(server, caches):
    text, meta = caches(server, protocol="text"), caches(server, protocol="meta")
    assert text.get_or_compute("n:1", lambda: [1]) == [1]
    assert meta.get_or_compute("n:1", unused) == [1]


class OldServer:
    """A server that does not know the meta commands, in front of memcached."""

    def __init__(self, port, closes):
        self._target, self._closes = port, closes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.refused = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        with client, socket.create_connection(("127.0.0.1", self._target)) as server:
            server.settimeout(5)
            lines = client.makefile("rb")
            while True:
                line = lines.readline()
                if not line:
                    return
                words = line.split()
                if words[0] in (b"mn", b"mg", b"ms", b"md", b"ma", b"me"):
                    self.refused += 1
                    if self._closes:
                        return
                    client.sendall(b"ERROR\r\n")
                    continue
                data = b""
                if words[0] in (b"set", b"add", b"cas", b"replace", b"append", b"prepend"):
                    data = lines.read(int(words[4]) + 2)
                server.sendall(line + data)
                reply = b""
                is_get = words[0] in (b"get", b"gets")
                while not reply.endswith(b"END\r\n" if is_get else b"\r\n"):
                    reply += server.recv(1 << 16)
                client.sendall(reply)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._listener.close()


def test_locks_are_compared_with_the_clocks_of_the_clients(memcached, blocking):
    held = Held(blocking(memcached), "k", "late", compute_time=30).begun()
    ahead = blocking(memcached, clock=lambda: time.time() + 31)
    assert ahead.get_or_compute("k", lambda: "early", wait=0) == "early"
    late = held.finish()
    assert (late.value, late.stored) == ("late", False)
    behind = blocking(memcached, clock=lambda: time.time() - 3600)
    assert behind.get_or_compute("k", unused) == "early"
    # A clock that is behind finds an expired value fresh, as long as the server keeps it.
    blocking(memcached).get_or_compute("e", lambda: 1, ttl=1, compute_time=9)
    time.sleep(1.2)
    assert behind.get_or_compute("e", unused) == 1
    assert blocking(memcached).get_or_compute("e", lambda: 2) == 2


def test_a_server_that_was_restarted_does_not_take_another_items_number(memcached, caches):
    """It counts anew: the number of the lock is that of another client's item by now."""
    cache = caches(memcached)
    for number in range(3):
        cache.set(f"n:{number}", 1)
    held = Held(cache, "k", "before", compute_time=30).begun()
    memcached.stop()
    memcached.start()
    other = caches(memcached)
    for _ in range(10):
        other.set("k", "after")
        other.gets("k")
    outcome = held.finish()
    assert (outcome.value, outcome.stored) == ("before", False)
    assert other.get("k") == "after"


def test_a_lock_that_was_changed_is_removed(memcached, caches):
    held = Held(caches(memcached), "k", "v", compute_time=30).begun()
    memcached.ask(b"append k 0 0 1\r\nx\r\n")
    assert not held.finish().stored
    assert caches(memcached).get_or_compute("k", lambda: "next", wait=10) == "next"


def test_servers_that_fail_are_ejected_and_return(caches):
    with Server("memcached") as first, Server("memcached") as second:
        cache = caches(
            [first.address, second.address],
            timeout=1,
            connect_timeout=1,
            ejection=Ejection(2, 0.2),
            flush_on_return=True,
        )
        keys = [f"k:{number}" for number in range(40)]
        assert cache.set_many(dict.fromkeys(keys, 1)) == []
        of_second = [key for key in keys if second.item(key) is not None]
        assert 0 < len(of_second) < 40
        second.stop()
        until(lambda: stored(cache, of_second), 10)
        assert cache.statistics().ejections == 1
        assert cache.get_or_compute(of_second[0], unused) == 2
        second.start()
        until(lambda: cache.get_many(keys) is not None and cache.statistics().returns == 1, 10)
        assert cache.get_or_compute(of_second[0], lambda: 3) == 3
        assert second.item(of_second[0]) is not None


def stored(cache, keys):
    try:
        return cache.set_many(dict.fromkeys(keys, 2)) == []
    except CacheError:
        return False


def test_without_ejection_only_the_keys_of_a_failed_server_fail(caches):
    with Server("memcached") as first, Server("rules") as second:
        cache = caches([first.address, second.address], timeout=1, connect_timeout=1)
        keys = [f"h:{number}" for number in range(40)]
        assert cache.get_or_compute_many(keys, lambda keys: keys) == dict(zip(keys, keys))
        of_second = [key for key in keys if second.item(key) is not None]
        assert 0 < len(of_second) < 40
        assert cache.get_many(keys) == dict(zip(keys, keys))
        with pytest.raises(NoTags):
            cache.invalidate("t")
        second.stop()
        outcomes = cache.get_or_compute_many(keys, unused, outcome=True)
        assert {key for key, outcome in outcomes.items() if outcome.error} == set(of_second)
        assert {outcome.kind for outcome in outcomes.values()} == {"hit", "failed"}


def test_tags_and_invalidation(caches):
    rules = '[server]\nprefixes = ["p:"]\n'
    with Server("rules", rules) as first, Server("rules", rules) as second:
        for prefix in ("", "p:", "q:"):
            cache = caches([first.address, second.address], prefix=prefix)
            keys = [f"k:{number}" for number in range(20)]
            for key in keys:
                cache.set(key, 1, tags=["user:7", "a,b%"])
                cache.get_or_compute(f"c{key}", lambda: 2, tags=["user:7"])
            cache.set("other", 1)
            assert len(cache.get_many(keys)) == 20
            assert cache.invalidate("user:7") == {first.address: True, second.address: True}
            assert cache.get_many([*keys, *(f"c{key}" for key in keys), "other"]) == {"other": 1}
            cache.set("k", 1, tags="x")
            assert cache.invalidate(["x", "y"])
            assert cache.get("k") is None
            held = Held(cache, "h", "before", tags=["t"]).begun()
            cache.invalidate("t")
            assert not held.finish().stored, "it was computed before the invalidation"
        second.stop()
        cache = caches([first.address, second.address], timeout=1, connect_timeout=1)
        with pytest.raises((ConnectionFailed, Unavailable)) as caught:
            cache.invalidate("user:7")
        assert caught.value.servers == (second.address,)
        assert caught.value.results[first.address] is True


def test_a_prefix(server, caches):
    cache, bare = caches(server, prefix=":1:"), caches(server)
    cache.set("k", 1)
    cache.get_or_compute("c", lambda: 2)
    assert bare.get_many([":1:k", ":1:c", "k"]) == {":1:k": 1, ":1:c": 2}
    assert cache.get_many(["k", "c"]) == {"k": 1, "c": 2}


def test_authentication(blocking, caches, tmp_path):
    users = tmp_path / "users"
    users.write_text("name:secret\n")
    users.chmod(0o644)
    tmp_path.chmod(0o755)
    for parent in list(tmp_path.parents)[:3]:
        if str(parent) != "/tmp":
            parent.chmod(0o755)
    for kind in ("memcached", "plain"):
        with Server(kind, options=["-Y", str(users)]) as server:
            cache = caches(server, username="name", password="secret")
            assert cache.get_or_compute("k", lambda: 1) == 1
            wrong = caches(server, username="name", password="wrong")
            with pytest.raises(CacheError, match="authentication"):
                wrong.get("k")
