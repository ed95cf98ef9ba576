"""Namespaces over real servers: the manual of the original, several processes, losses, rolling flushes."""

import logging
import os
import threading
import time

import pytest
from namespace_kit import Several, started

from cattlegrid.client import Cache, CacheError
from cattlegrid.namespace import NamespacedKey, NamespaceError, Namespacer, NamespacerOptions, SettingsDiffer
from cattlegrid.namespace._record import Record


def test_the_shop_of_the_manual(three):
    cache = Cache(three.addresses)
    names = Namespacer(cache)
    # Without a rule file Cattlegrid is as memcached.
    assert names.uses_tags() == (three.kind == "rules")
    user = {"userId": 12543}
    products = [{**user, "prodId": id} for id in (54929873, 92298748, 87391001, 7894234)]
    others = [{"userId": 9, "prodId": 54929873}, {"userId": 9, "prodId": 1}]
    wanted = [("shoppingbasket", user), ("interests", user)]
    wanted += [("prodLastWatched", both) for both in products + others]

    def found():
        return [int(cache.get(key) is not None) for key in names.keys_of(wanted)]

    for key in names.keys_of(wanted):
        assert cache.set(key, "content")
    assert found() == [1] * 8
    names.update("prodId", 7894234)
    assert found() == [1, 1, 1, 1, 1, 0, 1, 1]
    names.update("userId", 12543)
    assert found() == [0, 0, 0, 0, 0, 0, 1, 1]
    names.update_many([("prodId", 54929873), ("prodId", 3)])
    assert found() == [0, 0, 0, 0, 0, 0, 0, 1]


def test_usage_as_in_the_original(single):
    """``cache.Store(..., ns.GetNamespaced("userId", 1234), userData)``, ``Get``, ``UpdateNamespace``."""
    cache = Cache(single.addresses)
    ns = Namespacer(cache)
    assert cache.set(ns.key("userId", 1234), {"name": "Ada"})
    assert cache.get(ns.key("userId", "1234")) == {"name": "Ada"}
    ns.update("userId", 1234)
    assert cache.get(ns.key("userId", 1234)) is None
    assert ns.keys([("userId", 1), ("userId", 2)]) == [ns.key("userId", 1), ns.key("userId", 2)]
    # Under get_or_compute, too.
    assert cache.get_or_compute(ns.key("userId", 1234), lambda: "new") == "new"
    assert cache.get(ns.key("userId", 1234)) == "new"
    ns.update("userId", 1234)
    assert cache.get_or_compute(ns.key("userId", 1234), lambda: "newer") == "newer"


@pytest.mark.parametrize("optimize", [True, False])
def test_an_update_by_one_process_is_seen_by_the_next_key_of_the_other(three, optimize):
    caches = [Cache(three.addresses), Cache(three.addresses)]
    options = NamespacerOptions(optimize_with_default_counter_and_evidence=optimize)
    one, two = (Namespacer(cache, options) for cache in caches)
    for turn in range(100):
        id = turn % 7
        caches[0].set(one.key("userId", id), "content")
        assert caches[1].get(two.key("userId", id)) == "content"
        updates, reads = (one, two) if turn % 2 == 0 else (two, one)
        updates.update("userId", id)
        assert caches[1].get(reads.key("userId", id)) is None


def test_updates_by_several_at_once_are_not_lost(three):
    failed = []
    shared = Namespacer(Cache(three.addresses))

    def work(process):
        try:
            # Some with a namespacer of their own, some with one together.
            names = shared if process % 2 else Namespacer(Cache(three.addresses))
            for each in range(25):
                id = process * 100 + each
                key = names.key("userId", id)
                names.cache.set(key, "content")
                names.update("userId", id)
                assert names.cache.get(names.key("userId", id)) is None, id
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(process,)) for process in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_nothing_of_before_returns_when_something_is_lost(single):
    cache = Cache(single.addresses)
    names = Namespacer(cache)
    for turn in range(12):
        key = names.key("userId", 1)
        assert cache.get(key) is None
        cache.set(key, "old")
        names.update("userId", 1)
        lost = ["___counter|userId:1", "___record"][turn % 2]
        assert cache.delete(lost) or names.uses_tags()
        if turn % 3 == 0:
            names = Namespacer(cache)


def test_a_rolling_flush_changes_keys_evenly(three):
    now = [1_700_000_000.0]
    options = NamespacerOptions(rolling_period=60, clock=lambda: now[0])
    cache = Cache(three.addresses)
    ours = Namespacer(cache, options)
    other = Namespacer(cache, prefix="other:", rolling_period=60)
    cache.set(other.key("userId", 1), "theirs")
    cache.set("userId:1", "plain")
    ids = [("userId", id) for id in range(1000)]
    for key in ours.keys(ids):
        cache.set(key, "old")
    ours.flush_all_rolling()
    for second, least, most in [(0, 1000, 1000), (15, 700, 800), (30, 450, 550), (60, 0, 0)]:
        now[0] = 1_700_000_000.0 + second
        found = len(cache.get_many(ours.keys(ids)))
        assert least <= found <= most, second
        # Updates work throughout.
        cache.set(ours.key("userId", second), "new")
        assert cache.get(ours.key("userId", second)) == "new"
        ours.update("userId", second)
        assert cache.get(ours.key("userId", second)) is None
        cache.set(ours.key("userId", second), "newer")
        ours.update("userId", second)
    assert cache.get(other.key("userId", 1)) == "theirs" and cache.get("userId:1") == "plain"


def test_no_rolling_flush_without_the_optimization(memcached_address):
    names = Namespacer(Cache(memcached_address), optimize_with_default_counter_and_evidence=False)
    with pytest.raises(ValueError, match="no rolling flush"):
        names.flush_all_rolling()


@pytest.fixture
def memcached_address():
    server = started("memcached")
    yield server.address
    server.stop()


def test_muddled_evidence_begins_a_rolling_flush(memcached_address):
    cache = Cache(memcached_address, serializer="bytes")
    names = Namespacer(cache, evidence_size=2)

    def windows():
        return len(Record.decode(cache.get("___record")).windows)

    before = names.key("prodId", 1)
    for id in range(20):
        names.update("userId", id)
    assert windows() == 2
    assert names.key("prodId", 1).startswith(before), "it keeps its window for its phase"
    for id in range(20, 60):
        names.update("userId", id)
    assert windows() == 2, "not another while one is in force"
    never = Namespacer(cache, prefix="never:", evidence_size=2, reset_when_evidence_muddled=False)
    for id in range(60):
        never.update("userId", id)
    assert len(Record.decode(cache.get("never:record")).windows) == 1


def test_seven_to_eight_per_cent_of_keys_cost_a_second_read_after_100_updates(memcached_address):
    cache = Cache(memcached_address)
    names = Namespacer(cache)
    for id in range(100):
        names.update("userId", id)
    keys = names.keys([("prodId", id) for id in range(5000)])
    assert 0.06 <= sum("|" in key for key in keys) / 5000 <= 0.09


def test_settings_of_others_are_checked(memcached_address):
    cache = Cache(memcached_address)
    Namespacer(cache).open()
    for option, value in [
        ("separator", "/"),
        ("optimize_with_default_counter_and_evidence", False),
        ("evidence_size", 81),
        ("reset_when_evidence_muddled", False),
        ("rolling_period", 179),
    ]:
        names = Namespacer(cache, **{option: value})
        for call in (names.open, lambda names=names: names.key("a", 1), lambda names=names: names.update("a", 1)):
            with pytest.raises(SettingsDiffer) as differ:
                call()
            assert differ.value.option == option and differ.value.prefix == "___"
    with pytest.raises(TypeError, match="and not both"):
        Namespacer(cache, NamespacerOptions(), prefix="a")
    with pytest.raises(ValueError, match="evidence_size"):
        Namespacer(cache, evidence_size=0)


def test_items_of_other_programs_are_errors(memcached_address):
    cache = Cache(memcached_address, serializer="bytes")
    names = Namespacer(cache)
    names.update("userId", 1)
    cache.set("___counter|userId:1", b"12")
    with pytest.raises(NamespaceError, match="userId:1"):
        names.key("userId", 1)
    cache.set("___record", b"hello, world")
    with pytest.raises(NamespaceError, match="CGNS"):
        names.key("userId", 1)
    assert cache.get("___record") == b"hello, world", "it stays as it is"


def test_what_a_key_costs(single):
    cache = Cache(single.addresses)
    names = Namespacer(cache)
    key = names.key("userId", 1)
    assert isinstance(key, NamespacedKey) and isinstance(key, str)

    def requests(call):
        before = cache.statistics().requests
        call()
        return cache.statistics().requests - before

    if single.kind == "rules":
        assert requests(lambda: [names.key("userId", id) for id in range(100)]) <= 2, "the record once a second"
        assert key.tags == ("___userId:1", key.tags[1])
    else:
        assert requests(lambda: names.key("userId", 1)) == 1
        names.update("userId", 1)
        assert requests(lambda: names.key("userId", 1)) <= 3, "the record, and its number"
        assert requests(lambda: names.key("userId", 1)) == 2
        assert key.tags == ()


def test_a_value_stored_under_an_old_key_is_not_found(single):
    cache = Cache(single.addresses)
    names = Namespacer(cache)
    old = names.key("userId", 1)
    names.update("userId", 1)
    assert cache.get_or_compute(old, lambda: "old") == "old"
    if single.kind != "rules":
        cache.set(old, "old")
        assert cache.get(names.key("userId", 1)) is None
    time.sleep(0.01)
    names.update("userId", 1)
    assert cache.get(names.key("userId", 1)) is None


def test_tags_and_numbers_take_turns(caplog):
    """A server with tags is replaced by one without, and back; keys of before are not found, and no process is
    stopped."""
    with_tags, without = Several("rules", 1), Several("plain", 1)
    caplog.set_level(logging.WARNING, "cattlegrid.namespace")
    try:
        now = [time.time()]
        tagged = Namespacer(Cache(with_tags.addresses, serializer="bytes"), clock=lambda: now[0])
        tagged.cache.set(tagged.key("userId", 1), b"old")
        record = tagged.cache.get("___record")
        # The other server has the record of the first, as if it had taken its place.
        second = Cache(without.addresses, serializer="bytes")
        second.set("___record", record)
        names = Namespacer(second, clock=lambda: now[0])
        names.open()
        now[0] += 6
        key = names.key("userId", 1)
        assert not names.uses_tags() and key.tags == ()
        assert "no tags any more" in caplog.text
        second.set(key, b"new")
        names.update("userId", 1)
        assert second.get(names.key("userId", 1)) is None
        # A process that was using tags notices it within five seconds, or at its next update.
        third = Namespacer(Cache(with_tags.addresses), clock=lambda: now[0])
        assert third.uses_tags()
        third._cache = second
        third.update("userId", 2)
        assert not third.uses_tags()
        # Processes that may not use tags are told of a record that wants them.
        fourth = Namespacer(Cache(with_tags.addresses), use_tags=False)
        with pytest.raises(SettingsDiffer, match="tags"):
            fourth.key("userId", 1)
    finally:
        with_tags.stop()
        without.stop()


def test_another_library_is_the_client(memcached_address):
    pymemcache = pytest.importorskip("pymemcache.client.base")
    serde = pytest.importorskip("pymemcache.serde")
    host, port = memcached_address.split(":")
    cache = Cache(memcached_address, serializer="bytes")
    ours = Namespacer(cache, evidence_size=600)
    for choice in (None, serde.pickle_serde, serde.compressed_serde):
        client = pymemcache.Client((host, int(port)), serde=choice)
        try:
            theirs = Namespacer(client, evidence_size=600)
        except CacheError:
            pytest.fail("a client of pymemcache is not taken")
        for id in range(5):
            client.set(theirs.key("userId", id), b"content", noreply=False)
            assert cache.get(ours.key("userId", id)) == b"content"
            ours.update("userId", id)
            assert client.get(theirs.key("userId", id)) is None
            client.set(theirs.key("userId", id), b"content", noreply=False)
            theirs.update("userId", id)
            assert cache.get(ours.key("userId", id)) is None
        assert Record.decode(cache.get("___record"))
        client.close()


def test_after_a_fork_while_another_thread_has_the_turn(memcached_address):
    names = Namespacer(Cache(memcached_address))
    key = names.key("userId", 1)
    names._turn.acquire()
    names._machine._lock.acquire()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            names.update("userId", 1)
            status = 0 if names.key("userId", 1) != key else 2
        finally:
            os._exit(status)
    names._turn.release()
    names._machine._lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert names.key("userId", 1) != key
