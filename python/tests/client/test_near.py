"""Values in this process: how long they live, what ends them, how many there are."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cattlegrid.client._errors import UsageError
from cattlegrid.client._near import ENTRY_BYTES, Near, NearCache, left_of, near_of


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def near(longest=1.0, max_bytes=1 << 20, clock=None):
    return Near(NearCache(max_bytes, longest), clock or Clock())


def put(cache, key, data, left=None):
    cache.insert(key, cache.reading(key), data, 7, left)


def test_an_entry_ends_with_its_value_and_at_the_limit():
    clock = Clock()
    cache = near(clock=clock)
    for left, end in [(0.3, 0.3), (5.0, 1.0), (None, 1.0)]:
        began = clock.now
        put(cache, b"k", b"v", left)
        clock.now = began + end - 0.001
        assert cache.get(b"k") == (b"v", 7)
        clock.now = began + end + 1e-9
        assert cache.get(b"k") is None and len(cache) == 0
    put(cache, b"k", b"v", 0.0)
    assert cache.get(b"k") is None
    assert [left_of(t) for t in (-1, 0, 1, 2)] == [None, 0.0, 0.0, 1.0]
    assert cache.hits == 3


def test_own_writes_end_entries_and_reads_under_way():
    cache = near()
    put(cache, b"k", b"old")
    before = cache.reading(b"k")
    with cache.writing([b"k"]):
        assert cache.get(b"k") is None
        during = cache.reading(b"k")
        cache.insert(b"k", before, b"old", 0, None)
        assert cache.get(b"k") is None, "read before the write was sent"
        cache.insert(b"k", during, b"either", 0, None)
    assert cache.get(b"k") is None, "read before the write was over"
    cache.insert(b"k", during, b"either", 0, None)
    assert cache.get(b"k") is None
    put(cache, b"k", b"new")
    assert cache.get(b"k") == (b"new", 7)
    before = cache.reading(b"k")
    cache.clear()
    cache.insert(b"k", before, b"old", 0, None)
    assert cache.get(b"k") is None and cache.used_bytes == 0


def test_memory_has_a_bound_and_the_oldest_make_room():
    cache = near(max_bytes=100 * (ENTRY_BYTES + 1010))
    for number in range(1000):
        put(cache, b"%010d" % number, b"x" * 1000)
        assert cache.get(b"0000000000") is not None, "it is used again and again"
    assert len(cache) == 100 and cache.used_bytes <= 100 * (ENTRY_BYTES + 1010)
    assert cache.get(b"%010d" % 500) is None and cache.get(b"%010d" % 999)
    put(cache, b"huge", b"x" * (1 << 20))
    assert cache.get(b"huge") is None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), max_size=200))
def test_no_value_from_before_an_own_write(steps):
    """Reads and writes have a beginning, a moment at the server, and an end, in any order."""
    cache = near(longest=3600)
    server, ended, reads, writes, version = {}, {}, [], [], 0
    for step, number in steps:
        key = b"%d" % number
        if step == 0:
            reads.append((key, cache.reading(key), server.get(key, 0)))
        elif step == 1 and reads:
            key, reading, seen = reads.pop(0)
            cache.insert(key, reading, b"%d" % seen, 0, None)
        elif step == 2:
            writing = cache.writing([key])
            writing.__enter__()
            writes.append([key, writing, None])
        elif step == 3:
            for write in writes:
                if write[2] is None:
                    version += 1
                    server[write[0]] = write[2] = version
                    break
        elif step == 4:
            for place, write in enumerate(writes):
                if write[2] is not None:
                    write[1].__exit__()
                    ended[write[0]] = write[2]
                    del writes[place]
                    break
        else:
            found = cache.get(key)
            assert found is None or int(found[0]) >= ended.get(key, 0)


def test_threads():
    cache = near(max_bytes=20 * (ENTRY_BYTES + 20))
    failures = []

    def work(seed):
        try:
            for number in range(3000):
                key = b"k%d" % ((number * seed) % 50)
                if number % 7 == 0:
                    with cache.writing([key]):
                        pass
                elif cache.get(key) is None:
                    put(cache, key, b"v")
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 3, 7, 11)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert cache.used_bytes == sum(ENTRY_BYTES + len(key) + 1 for key in cache._entries)


def test_options():
    assert near_of(None) is None and near_of(False) is None
    assert near_of(True)._longest == 1.0
    assert near_of("500ms")._longest == near_of(0.5)._longest == 0.5
    for wrong in ({"max_bytes": 0}, {"max_bytes": True}, {"longest": 0}, {"longest": "2h"}, {"longest": "x"}):
        with pytest.raises(UsageError):
            NearCache(**wrong)
