"""Values as bytes and flags: what the Rust client writes, and nothing that is read as something else."""

import pickle
import zlib

import pytest

from cattlegrid.client import _compression as compression
from cattlegrid.client._serializers import Codec

OURS = 0xCA770000


class Own:
    """A serializer of a program's own."""

    format = 9

    def dumps(self, value):
        return repr(value).encode()

    def loads(self, data):
        return eval(data)


@pytest.mark.parametrize(
    ("serializer", "value", "data", "flags"),
    [
        ("json", {"a": [1, "ä", None, True]}, '{"a":[1,"ä",null,true]}'.encode(), OURS | 0x10),
        ("json", None, b"null", OURS | 0x10),
        ("json", 18, b"18", OURS | 0x10),
        ("json", b"raw", b"raw", OURS),
        ("bytes", b"raw", b"raw", 0),
        ("text", "ä", "ä".encode(), 0),
        ("msgpack", {"a": b"\x00"}, b"\x81\xa1a\xc4\x01\x00", OURS | 0x20),
        ("msgpack", None, b"\xc0", OURS | 0x20),
        (Own(), (1, 2), b"(1, 2)", OURS | 0x90),
    ],
)
def test_golden(serializer, value, data, flags):
    codec = Codec(serializer)
    assert codec.encode(value) == (data, flags)
    assert codec.decode(data, flags) == value


def test_pickle_is_read_only_where_it_was_asked_for():
    codec = Codec("pickle")
    data, flags = codec.encode({1, 2})
    assert flags == OURS | 0xF0 and codec.decode(data, flags) == {1, 2}

    class Trap:
        def __reduce__(self):
            return pytest.fail, ("it was unpickled",)

    trap = pickle.dumps(Trap())
    for other in ("json", "bytes", "text", "msgpack", Own()):
        for written in (OURS | 0xF0, 1, OURS | 0xF2):
            with pytest.raises(ValueError):
                Codec(other).decode(trap, written)
    # Nor is what pymemcache or pylibmc has pickled, by a codec for pickles.
    for written in (0, 1, 16, OURS, OURS | 0x10):
        with pytest.raises(ValueError):
            codec.decode(trap, written)


@pytest.mark.parametrize("serializer", ["json", "bytes", "text", "msgpack", "pickle"])
def test_values_of_other_clients_and_formats_are_errors(serializer):
    codec = Codec(serializer)
    # pymemcache: 1 pickle, 2 and 4 numbers, 8 compressed, 16 text; pylibmc the same; others above.
    for flags in (1, 2, 4, 8, 16, 32, 0x100, OURS + 0x10000, 2**32 - 1):
        with pytest.raises(ValueError, match="another client wrote it"):
            codec.decode(b"5", flags)
    own = codec.encode(b"x" if serializer == "bytes" else "x")[1]
    for flags in (OURS | 0x10, OURS | 0x20, OURS | 0x30, OURS | 0xF0):
        if flags != own:
            with pytest.raises(ValueError, match="written as"):
                codec.decode(b"5", flags)
    with pytest.raises(ValueError, match="peek or get_or_compute"):
        codec.decode(b"5", OURS | 1)
    with pytest.raises(ValueError, match="later version"):
        codec.decode(b"5", OURS | 4)


def test_json_reads_what_loaders_and_other_programs_write():
    codec = Codec("json")
    assert codec.decode(b'{"a": 1}', 0) == {"a": 1}
    assert codec.decode(b"9 ", OURS | 0x10) == 9, "a decr leaves blanks"
    for data in (b"Hello", b"\xff", b""):
        with pytest.raises(ValueError, match="not JSON"):
            codec.decode(data, 0)
    with pytest.raises(ValueError):
        Codec("msgpack").decode(b"5", 0)


@pytest.mark.parametrize(
    "value", [{1: "a"}, {"a": {(1, 2): 3}}, [{None: 1}], float("nan"), [float("inf")], {1}, object()]
)
def test_what_json_would_change_is_refused(value):
    with pytest.raises(ValueError, match="cannot be written as JSON"):
        Codec("json").encode(value)


def test_other_types_are_refused_with_advice():
    for serializer, value, advice in [("bytes", "text", "text"), ("bytes", 5, "json"), ("text", b"x", "another")]:
        with pytest.raises(ValueError, match=advice):
            Codec(serializer).encode(value)
    with pytest.raises(ValueError, match="cannot be written"):
        Codec("msgpack").encode(2**70)
    with pytest.raises(ValueError, match="cannot be written"):
        Codec("pickle").encode(lambda: None)
    endless = []
    endless.append(endless)
    with pytest.raises(ValueError):
        Codec("json").encode([[[[endless]]]])


def test_choices():
    with pytest.raises(ValueError, match="there are bytes, text, json"):
        Codec("yaml")
    for number in (None, 0, 1, 15, 16, True, "9"):
        other = Own()
        other.format = number
        with pytest.raises(ValueError, match="from 8 to 14"):
            Codec(other)
    for limit in (-1, True):
        with pytest.raises(ValueError, match="compress_above"):
            Codec("json", limit)


def test_compression_is_marked():
    codec = Codec("json", compress_above=100)
    short, long = "x" * 90, "x" * 1000
    assert codec.encode(short) == (b'"' + short.encode() + b'"', OURS | 0x10)
    data, flags = codec.encode(long)
    assert flags == OURS | 0x12 and len(data) < 100
    assert Codec("json").decode(data, flags) == long, "read whether this one compresses or not"
    assert zlib.decompress(data) == b'"' + long.encode() + b'"'
    data, flags = codec.encode(long.encode())
    assert flags == OURS | 2 and codec.decode(data, flags) == long.encode()
    # What does not become smaller stays.
    import os

    noise = os.urandom(500)
    assert Codec("bytes", 0).encode(noise) == (noise, 0)
    assert Codec("bytes", 0).encode(b"x" * 500)[1] == OURS | 2


def test_damaged_and_huge_values_are_errors():
    data = compression.compress(b"x" * 1000)
    for wrong, text in [(b"junk", "damaged"), (data[:-1], "cut off"), (data + b"!", "append")]:
        with pytest.raises(ValueError, match=text):
            compression.decompress(wrong)
    assert compression.decompress(data, 1000) == b"x" * 1000
    with pytest.raises(ValueError, match="more than 999"):
        compression.decompress(data, 999)
