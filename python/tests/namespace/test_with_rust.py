"""Rust and Python share one cache's numbers and evidence: each sees the updates of the other in its next key."""

import time

import pytest
from namespace_kit import Several

from cattlegrid.client import Cache
from cattlegrid.namespace import Namespacer
from cattlegrid.namespace._record import Record


@pytest.mark.parametrize("first", ["rust", "python"])
def test_keys_are_the_same_and_updates_are_seen(three, rust, first):
    cache = Cache(three.addresses)
    names = Namespacer(cache)
    if first == "python":
        names.open()
    other = rust(three.addresses)
    assert other.ready == ("ready tags" if names.uses_tags() else "ready numbers")

    def same(id):
        key = names.key("userId", id)
        assert other.ask("key", "userId", id) == " ".join([key, *key.tags])
        both = names.key_of("last:watched", [("userId", id), ("prodId", "a%b|c")])
        assert other.ask("of", "last:watched", "userId", id, "prodId", "a%b|c") == " ".join([both, *both.tags])
        return key

    for turn in range(60):
        id = turn % 11
        key = same(id)
        cache.set(key, "by python")
        if turn % 2:
            names.update("userId", id)
        else:
            assert other.ask("update", "userId", id) == "done"
        after = same(id)
        assert cache.get(after) is None
        if not names.uses_tags():
            assert after != key


def test_values_that_rust_stores_are_updated_by_python(single, rust):
    names = Namespacer(Cache(single.addresses, serializer="text"))
    other = rust(single.addresses)
    for id in range(20):
        assert other.ask("set", "content", "userId", id) == "done"
        assert other.ask("get", "userId", id) == "content"
        assert names.cache.get(names.key("userId", id)) == "content"
        names.update("userId", id)
        assert other.ask("get", "userId", id) == ""


def test_rolling_flushes_are_shared(rust):
    several = Several("memcached", 2)
    try:
        cache = Cache(several.addresses)
        names = Namespacer(cache)
        other = rust(several.addresses)
        ids = list(range(200))
        for flush in (names.flush_all_rolling, lambda: other.ask("flush")) * 3:
            flush()
            keys = names.keys([("userId", id) for id in ids])
            differ = [id for id, key in zip(ids, keys) if other.ask("key", "userId", id) != key]
            # A key whose time has come between the two questions.
            assert len(differ) <= 2
            names.update("userId", 3)
            assert other.ask("key", "userId", 3) == names.key("userId", 3)
    finally:
        several.stop()


def test_evidence_fills_alike(rust):
    """After hundreds of updates by both in turns the muddled evidence has begun one flush, and both agree on all
    keys."""
    several = Several("memcached", 1)
    try:
        cache = Cache(several.addresses)
        names = Namespacer(cache)
        other = rust(several.addresses)
        for id in range(450):
            if id % 2:
                names.update("userId", id)
            else:
                other.ask("update", "userId", id)
        time.sleep(0.01)
        data = Cache(several.addresses, serializer="bytes").get("___record")
        assert Record.decode(data).encode() == data, "byte for byte"
        keys = names.keys([("prodId", id) for id in range(300)])
        differ = [key for id, key in enumerate(keys) if other.ask("key", "prodId", id) != key]
        assert len(differ) <= 3
        assert 100 < sum("|" in key for key in keys) < 220, "half of them may have been updated"
    finally:
        several.stop()


def test_settings_of_rust_are_checked(single, rust):
    from cattlegrid.namespace import SettingsDiffer

    rust(single.addresses)
    with pytest.raises(SettingsDiffer, match="rolling_period"):
        Namespacer(Cache(single.addresses), rolling_period=60).open()
