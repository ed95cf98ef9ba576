"""Values over real servers: what is written is read, and what other clients have written is never read as something
else."""

import pytest

from cattlegrid.client import AsyncCache, Cache, Outcome, UnreadableValue

VALUES = {
    "json": [{"a": [1, None, True, "ä"]}, "text", 5, None, b"5", b"raw", [1, [2]], ""],
    "bytes": [b"raw", b"", bytes(range(256))],
    "text": ["text", "ä", "5", ""],
    "msgpack": [{"a": b"x"}, 5, None, b"5", "text", [1]],
    "pickle": [{1, 2}, (1, 2), None, b"x", "text"],
}


@pytest.mark.parametrize("compress_above", [None, 0])
@pytest.mark.parametrize("serializer", list(VALUES))
def test_what_is_written_is_read(server, serializer, compress_above, run):
    cache = Cache(server.address, serializer=serializer, compress_above=compress_above)
    tasks = AsyncCache(server.address, serializer=serializer)
    for number, value in enumerate(VALUES[serializer]):
        for key in (f"k{number}", f"page:1:{number}"):
            # Under a rule a value that no miss precedes may be taken for one from before the flush.
            assert cache.get(key) is None
            assert cache.set(key, value, 60) and cache.get(key) == value and type(cache.get(key)) is type(value)
            assert cache.delete(key)
            for _ in range(2):
                got = cache.get_or_compute(key, lambda value=value: value, ttl=60)
                assert got == value and type(got) is type(value)
            assert cache.get(key) == cache.peek(key) == value and type(cache.get(key)) is type(value)
            assert cache.get_many([key]) == {key: value}
            found = cache.get_or_compute_many([key], None)
            assert found == {key: value} and type(found[key]) is type(value)
            assert run(once(tasks, key)) == value


async def once(tasks, key):
    value = await tasks.get(key)
    await tasks.close()
    return value


def test_numbers_can_be_counted(server):
    cache = Cache(server.address)
    cache.set("n", 9)
    assert cache.incr("n", 5) == 14 and cache.get("n") == 14 and cache.decr("n", 6) == 8 and cache.get("n") == 8


@pytest.mark.parametrize("serializer", ["json", "bytes", "text", "msgpack", "pickle"])
def test_values_of_pymemcache(server, serializer):
    base = pytest.importorskip("pymemcache.client.base")
    serde = pytest.importorskip("pymemcache.serde")
    host, port = server.address.split(":")
    cache = Cache(server.address, serializer=serializer)
    new = {"bytes": b"new", "json": "new"}.get(serializer, "new")
    for choice, value in [
        (serde.pickle_serde, {"a": 1}),
        (serde.pickle_serde, 5),
        (serde.pickle_serde, "text"),
        (serde.compressed_serde, b"x" * 1000),
    ]:
        client = base.Client((host, int(port)), serde=choice)
        client.set("theirs", value, noreply=False)
        with pytest.raises(UnreadableValue, match="another client wrote it"):
            cache.get("theirs")
        assert cache.statistics().unreadable >= 0
        outcome = cache.get_or_compute("theirs", lambda: new, ttl=60, outcome=True)
        assert isinstance(outcome, Outcome) and outcome.kind == "computed" and outcome.value == new
        assert cache.get("theirs") == new
        client.close()
    # Plain bytes have the flags 0 with every client.
    client = base.Client((host, int(port)))
    client.set("plain", b'"new"' if serializer == "json" else b"new", noreply=False)
    if serializer in ("json", "bytes", "text"):
        assert cache.get("plain") == new
    else:
        with pytest.raises(UnreadableValue):
            cache.get("plain")
    client.close()


def test_values_of_pylibmc(server):
    pylibmc = pytest.importorskip("pylibmc")
    client = pylibmc.Client([server.address])
    cache = Cache(server.address)
    for value in (5, 2**40, True, "text", {"a": 1}):
        client.set("theirs", value)
        with pytest.raises(UnreadableValue):
            cache.get("theirs")
        assert cache.get_or_compute("theirs", lambda: "new") == "new"
        assert cache.delete("theirs")
    client.set("theirs", b"x" * 5000, min_compress_len=100)
    with pytest.raises(UnreadableValue):
        cache.get("theirs")


def test_two_serializers_replace_each_other_and_read_nothing_wrong(server):
    caches = {name: Cache(server.address, serializer=name) for name in VALUES}
    for writer, values in VALUES.items():
        for reader, cache in caches.items():
            if reader == writer:
                continue
            value, other = values[0], VALUES[reader][0]
            caches[writer].set("k", value)
            if (writer, reader) in (("bytes", "text"), ("text", "bytes")):
                continue
            try:
                got = cache.get("k")
            except UnreadableValue:
                assert cache.get_or_compute("k", lambda other=other: other) == other
            else:
                pytest.fail(f"{reader} has read {got!r} of {writer}") if got != value else None
            cache.delete("k")


def test_values_that_cannot_be_written_are_errors_and_free_the_key(server):
    cache = Cache(server.address)
    for value in ({1: 2}, object(), {1}, float("nan")):
        with pytest.raises(UnreadableValue, match="cannot be written as JSON"):
            cache.set("k", value)
        with pytest.raises(UnreadableValue):
            cache.get_or_compute("k", lambda value=value: value, compute_time=60)
    assert cache.get_or_compute("k", lambda: "fine", compute_time=60) == "fine"
