"""Everything of the documentation of Cache::Memcached::Turnstile, for one key and for many."""

import time

import pytest
from herd_support import Call, Held, Relay, in_time, unused

from cattlegrid.client import UsageError


def kind_of(outcome):
    return outcome.kind, outcome.value


def test_a_missing_value_is_computed_and_stored(server, caches):
    cache = caches(server)
    got = cache.get_or_compute("t:1", lambda: {"a": [1]}, ttl=60, compute_time=1, wait=0.1, outcome=True)
    assert kind_of(got) == ("computed", {"a": [1]})
    assert got.stored
    assert cache.get_or_compute("t:1", unused) == {"a": [1]}


def test_an_expiration_is_in_seconds(server, caches):
    cache = caches(server)

    def stored(number):
        key = f"t:seconds-{number}"
        cache.get_or_compute(key, lambda: 1, ttl=1)
        assert cache.get(key) == 1
        return key

    key = in_time(0.9, stored)
    time.sleep(1.1)
    assert cache.get(key) is None
    got = cache.get_or_compute(key, lambda: 2, ttl=1, outcome=True)
    assert kind_of(got) == ("computed", 2)


def test_an_expiration_of_zero_is_never_and_above_30_days_a_unix_time(server, caches):
    cache = caches(server)
    now = time.time()
    cache.get_or_compute("t:never", lambda: 1)
    cache.get_or_compute("t:unix", lambda: 1, ttl=int(now) + 3)
    past = cache.get_or_compute("t:past", lambda: 1, ttl=int(now) - 5, outcome=True)
    assert (past.value, past.stored, past.why) == (1, False, "expired")
    far = cache.get_or_compute("t:far", lambda: 1, ttl="40d", outcome=True)
    assert far.stored
    assert cache.get("t:unix") == cache.get("t:never") == cache.get("t:far") == 1
    time.sleep(max(now + 4.2 - time.time(), 0))
    assert cache.get("t:unix") is None
    assert cache.get("t:never") == 1


def test_the_old_value_is_served_while_one_computes(server, caches):
    cache = caches(server)
    cache.get_or_compute("t:old", lambda: "old", ttl=1, compute_time=5)
    time.sleep(1.1)
    held = Held(cache, "t:old", "new", ttl=60, compute_time=5).begun()
    others = [Call(caches(server).get_or_compute, "t:old", unused, compute_time=5, outcome=True) for _ in range(5)]
    assert {kind_of(other.result()) for other in others} == {("stale", "old")}
    assert held.finish().stored
    assert cache.get_or_compute("t:old", unused) == "new"


def test_the_old_value_is_served_for_its_grace_only(memcached, caches):
    cache = caches(memcached)
    cache.get_or_compute("t:grace", lambda: "old", ttl=1, compute_time=5, grace="500ms")
    time.sleep(2.1)
    held = Held(cache, "t:grace", "new", compute_time=5).begun()
    got = caches(memcached).get_or_compute("t:grace", unused, wait=0, outcome=True)
    assert kind_of(got) == ("busy", None)
    held.finish()


def test_without_options_a_call_waits_for_a_tenth_of_a_second(server, caches):
    held = Held(caches(server), "t:wait", "v", compute_time=10).begun()
    other = caches(server)
    other.get("connect")
    began = time.monotonic()
    assert other.get_or_compute("t:wait", unused) is None
    assert 0.09 < time.monotonic() - began < 8
    assert other.get_or_compute("t:wait", unused, default="none") == "none"
    held.finish()


def test_the_wait_is_the_compute_time_if_that_is_given(server, caches):
    held = Held(caches(server), "t:wait", "v", compute_time=10).begun()
    other = caches(server)
    began = time.monotonic()
    assert other.get_or_compute("t:wait", unused, compute_time=0.6, outcome=True).kind == "busy"
    assert 0.59 < time.monotonic() - began < 8
    held.finish()


def test_after_the_wait_the_value_is_fetched_once_more(server, caches):
    held = Held(caches(server), "t:again", "v", compute_time=10).begun()
    waits = Call(caches(server).get_or_compute, "t:again", unused, wait=0.7, outcome=True)
    time.sleep(0.3)
    held.finish()
    assert kind_of(waits.result()) == ("hit", "v")


def test_a_wait_of_zero_asks_once(memcached, caches):
    held = Held(caches(memcached), "t:zero", "v", compute_time=10).begun()
    with Relay(memcached.port) as relay:
        other = caches(relay)
        other.get("connect")
        relay.round_trips()
        assert other.get_or_compute("t:zero", unused, wait=0, outcome=True).kind == "busy"
        assert relay.round_trips() == 1
    held.finish()


def test_a_function_is_called_in_place_of_waiting(server, caches):
    held = Held(caches(server), "t:busy", "v", compute_time=10).begun()
    other = caches(server)
    began = time.monotonic()
    got = other.get_or_compute("t:busy", unused, wait=lambda: "mine", outcome=True)
    assert kind_of(got) == ("waited", "mine")
    assert other.get_or_compute("t:busy", unused, wait=lambda: None) is None
    assert time.monotonic() - began < 5

    def custom():
        # Wait, then retry, as the page has it.
        held.finish()
        return caches(server).get_or_compute("t:busy", unused, wait=lambda: None)

    assert other.get_or_compute("t:busy", unused, wait=custom) == "v"
    # It is not called where there is a value.
    assert other.get_or_compute("t:busy", unused, wait=unused) == "v"


def test_a_lock_ends_when_the_compute_time_has_passed(server, caches):
    held = Held(caches(server), "t:lock", "late", compute_time=1).begun()
    began = time.monotonic()
    got = caches(server).get_or_compute("t:lock", lambda: "next", wait=20, compute_time=10, outcome=True)
    assert kind_of(got) == ("computed", "next")
    assert 0.5 < time.monotonic() - began < 5
    late = held.finish()
    assert (late.value, late.stored) == ("late", False)


def test_many_keys_with_an_expiration_each(server, caches):
    cache = caches(server)
    asked = []

    def compute(keys):
        asked.append(keys)
        return [key.upper() for key in keys]

    cache.get_or_compute("t:b", lambda: "there")
    got = cache.get_or_compute_many([("t:a", 1), ("t:b", 60), ("t:c", 60)], compute, compute_time=1)
    assert got == {"t:a": "T:A", "t:b": "there", "t:c": "T:C"}
    assert asked == [["t:a", "t:c"]]
    time.sleep(1.1)
    got = cache.get_or_compute_many(["t:a", "t:b", "t:c"], compute, ttl=60, outcome=True)
    assert [got[key].kind for key in ("t:a", "t:b", "t:c")] == ["computed", "hit", "hit"]
    assert asked[1:] == [["t:a"]]


def test_the_function_of_many_keys_may_leave_some_out(server, caches):
    cache = caches(server)
    got = cache.get_or_compute_many(["t:1", "t:2"], lambda keys: {"t:2": 2, "other": 3}, outcome=True)
    assert (got["t:1"].kind, got["t:2"].kind) == ("not_computed", "computed")
    assert cache.get_or_compute_many(["t:1", "t:2"], lambda keys: {}) == {"t:2": 2}
    # It is free at once.
    assert cache.get_or_compute("t:1", lambda: 1) == 1


def test_a_list_of_another_length_is_an_error(server, caches):
    cache = caches(server)
    with pytest.raises(UsageError, match="1 values for 2 keys"):
        cache.get_or_compute_many(["t:1", "t:2"], lambda keys: [1])
    with pytest.raises(UsageError, match="a dictionary"):
        cache.get_or_compute_many(["t:1", "t:2"], lambda keys: 7)
    assert cache.get_or_compute("t:1", lambda: 1) == 1


def test_keys_of_others_are_waited_for_and_a_function_gets_those_that_cannot_be_had(server, caches):
    held = Held(caches(server), "t:2", "theirs", compute_time=10).begun()
    cache = caches(server)
    keys = ["t:1", "t:2", "t:3"]
    told = []

    def busy(keys):
        told.append(keys)
        return {"t:2": "mine", "t:9": "other"}

    got = cache.get_or_compute_many(keys, lambda keys: list(keys), wait=busy, outcome=True)
    assert told == [["t:2"]]
    assert [kind_of(got[key]) for key in keys] == [("computed", "t:1"), ("waited", "mine"), ("computed", "t:3")]
    assert cache.get_or_compute_many(keys, unused, wait=lambda keys: {}) == {"t:1": "t:1", "t:3": "t:3"}
    began = time.monotonic()
    assert cache.get_or_compute_many(keys, unused, wait=0.2) == {"t:1": "t:1", "t:3": "t:3"}
    assert 0.19 < time.monotonic() - began < 8
    waits = Call(cache.get_or_compute_many, keys, unused, wait=20)
    time.sleep(0.2)
    held.finish()
    assert waits.result() == {"t:1": "t:1", "t:2": "theirs", "t:3": "t:3"}


def test_many_keys_are_locked_for_the_sum_of_their_compute_times(memcached, caches):
    cache, other = caches(memcached), caches(memcached)

    def compute(keys):
        time.sleep(1.5)
        return dict.fromkeys(keys, "first")

    # Four times 0.6 s: no other client computes in the 1.5 s.
    call = Call(cache.get_or_compute_many, [f"t:{n}" for n in range(4)], compute, compute_time=0.6, outcome=True)
    time.sleep(1)
    assert other.get_or_compute("t:0", unused, wait=10) == "first"
    assert all(outcome.stored for outcome in call.result().values())
    call = Call(cache.get_or_compute_many, ["t:8", "t:9"], compute, batch_compute_time=0.5, outcome=True)
    time.sleep(1)
    assert other.get_or_compute("t:8", lambda: "second", wait=0) == "second"
    assert [outcome.stored for outcome in call.result().values()] == [False, True]


def test_a_failure_frees_all_keys(server, caches):
    cache = caches(server)

    def fails(keys):
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        cache.get_or_compute_many(["t:1", "t:2"], fails, compute_time=20)
    began = time.monotonic()
    assert cache.get_or_compute_many(["t:1", "t:2"], lambda keys: keys, wait=10) == {"t:1": "t:1", "t:2": "t:2"}
    assert time.monotonic() - began < 5


def test_a_key_that_occurs_twice_is_computed_once(server, caches):
    asked = []

    def compute(keys):
        asked.append(keys)
        return dict.fromkeys(keys, 1)

    assert caches(server).get_or_compute_many(["t:1", b"t:1", "t:1"], compute) == {"t:1": 1, b"t:1": 1}
    assert asked == [["t:1"]]


def test_no_keys(server, caches):
    assert caches(server).get_or_compute_many([], unused) == {}
    assert caches(server).get_many([]) == {}


def test_round_trips_of_one_key(server, caches):
    with Relay(server.port) as relay:
        cache = caches(relay)
        cache.get("connect")
        for key, leased in (("h:1", server.has_rule), ("n:1", False)):
            relay.round_trips()
            cache.get_or_compute(key, lambda: 1)
            assert relay.round_trips() == (2 if leased else 3), key
            cache.get_or_compute(key, unused)
            assert relay.round_trips() == 1, key


def test_five_hundred_keys_are_three_round_trips(server, caches):
    with Relay(server.port) as relay:
        cache = caches(relay)
        cache.get("connect")
        relay.round_trips()
        keys = [f"n:{number}" for number in range(500)]
        assert cache.get_or_compute_many(keys, lambda keys: keys) == dict(zip(keys, keys))
        # Large requests are sent in pieces, which a relay may see between replies.
        assert relay.round_trips() <= 6
        assert cache.get_or_compute_many(keys, unused) == dict(zip(keys, keys))
        assert relay.round_trips() <= 2
