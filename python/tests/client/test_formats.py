"""Stored formats, byte for byte those of the Rust client; placement of keys; addresses, durations, keys and replies."""

import datetime
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cattlegrid.client import InvalidKey, Key, UsageError
from cattlegrid.client import _envelope as envelope
from cattlegrid.client import _options as options
from cattlegrid.client import _ring as ring
from cattlegrid.client import _saved as saved
from cattlegrid.client import _servers as servers
from cattlegrid.client import _wire as wire
from cattlegrid.client._envelope import Again, Damaged, Failed, Lock, Locked, Stored, Value, open_record, seal
from cattlegrid.client._flags import OURS, with_envelope, without_envelope
from cattlegrid.client._keys import key_bytes, tag_text
from cattlegrid.client._machine import Grant, Subject, Terms

RING_DATA = Path(__file__).parents[3] / "crates" / "ring" / "tests" / "data"


def test_the_bytes_are_those_of_the_rust_client():
    """The same literals as in ``crates/client/src/herd/envelope.rs``."""
    stored = Stored(b"v", 0, 0x0102, 0x0304)
    lock = Lock(0x0506, 0x0708_090A_0B0C_0D0E)
    value = b"\xc7\x00\0\0\0\0\0\0\x01\x02\0\0\0\0\0\0\x03\x04v"
    again = b"\xc7\x01\0\0\0\0\0\0\x01\x02\0\0\0\0\0\0\x03\x04\0\0\0\0\0\0\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0ev"
    locked = b"\xc7\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0eh"
    for record, data in [(Value(stored), value), (Again(stored, lock), again), (Locked(b"h", lock), locked)]:
        assert seal(record) == data
        assert open_record(data, 0) == record
    assert seal(Failed(b"h", lock)) == locked[:1] + b"\x03" + locked[2:]
    assert (envelope.SHORT_SIZE, envelope.LONG_SIZE) == (18, 34)


def test_what_is_too_short_or_begins_otherwise_is_damaged():
    whole = seal(Locked(b"", Lock(1, 2)))
    for length in range(len(whole)):
        assert open_record(whole[:length], 0) == Damaged()
    assert open_record(whole[:1] + b"\x04" + whole[2:], 0) == Damaged()
    assert open_record(b"\0" + whole[1:], 0) == Damaged()


numbers = st.integers(0, 2**64 - 1)
values = st.builds(Stored, st.binary(max_size=50), st.integers(0, 2**32 - 1), numbers, numbers)
locks = st.builds(Lock, numbers, numbers)
records = st.one_of(
    st.builds(Value, values),
    st.builds(Again, values, locks),
    st.builds(Locked, st.binary(max_size=50), locks),
    st.builds(Failed, st.binary(max_size=50), locks),
)


@given(records)
def test_what_is_sealed_is_opened(record):
    assert open_record(seal(record), envelope.record_flags(record)) == record


@given(st.binary(max_size=80), st.integers(0, 5))
def test_any_bytes_are_opened(data, kind):
    for each in (data, bytes((0xC7, kind)) + data[2:]):
        record = open_record(each, 0)
        assert not isinstance(record, (Value, Again)) or seal(record) == each


def test_flags():
    for flags in (0, OURS | 0x10, OURS | 0x22):
        marked = with_envelope(flags)
        assert without_envelope(flags) is None
        assert marked & 0xFFFF_0001 == 0xCA77_0001
        assert without_envelope(marked) & 0xFFFF == flags & 0xFFFF
    assert with_envelope(0x1234) == 0xCA77_0001, "another client's flags are not kept"
    assert without_envelope(1) is None
    assert without_envelope(2**32 - 1) is None


def grant_of(kind, subject, lock_ms=30_000, keep_s=61):
    grant = Grant(subject, kind, Terms(lock_ms, keep_s, False))
    grant.token, grant.nonce = 42, 2**64 - 1
    return grant


@pytest.mark.parametrize("kind", ["lease", "lock", "nothing"])
@pytest.mark.parametrize("tags", [(), ("user:1", "a%b,ä")])
def test_a_saved_token_is_read_as_it_was_written(kind, tags):
    subject = Subject(b"page:\xff%:1", tags)
    text = saved.save(grant_of(kind, subject), 1500, 1_000_000)
    assert text.isascii()
    assert text.isprintable()
    grant, ttl_ms = saved.resume(text, 1_000_100)
    assert (grant.kind, grant.subject.key, grant.subject.tags, ttl_ms) == (kind, subject.key, tags, 1500)
    assert saved.save(grant, ttl_ms, 1_000_100) == text


def test_the_text_of_a_token_is_that_of_the_rust_client():
    grant = grant_of("lease", Subject(b"k"))
    assert saved.save(grant, 1000, 0) == "cg1:1000:lease:42:30000:0:0:k"
    grant = grant_of("lock", Subject(b"page:1", ("a,b",)))
    assert saved.save(grant, 60_000, 7_000) == f"cg1:60000:lock:{2**64 - 1}:30000:7000:61:page%3A1:a%2Cb"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cg2:1000:lease:5:30000:0:0:k",
        "cg1:1000:lease:x:30000:0:0:k",
        "cg1:1:lease:5:3:0:0:",
        "cg1:1:lease:5:3:0:0:%2",
    ]
    + ["cg1:1:lease:5:3:0:0:a%20b", "cg1:1:no:5:3:0:0:k", "cg1:1:lease:99999999999999999999:3:0:0:k", "k", None]
    + ["cg1:1000:lease:5:30000:0:0:k"[:cut] for cut in range(27)],
)
def test_other_texts_are_refused(text):
    with pytest.raises(UsageError):
        saved.resume(text, 0)


def parsed(name, sharding):
    """As ``crates/ring/tests/ring.rs`` reads the file."""
    placing, count, is_ours = None, 0, False
    for line in (RING_DATA / name).read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        if line.startswith("ring "):
            _, layout, *named = line.split()
            is_ours = layout != "plain"
            pairs = [server.rpartition("=") for server in named]
            placing = ring.Placing([(host, int(weight)) for host, _, weight in pairs], sharding)
        elif is_ours:
            key, _, place = line.rpartition(" ")
            assert placing.find(key.encode(), {}) == int(place), key
            count += 1
    return count


def test_rendezvous_is_that_of_the_rust_client():
    """The same names and places as in ``crates/client/tests/it/route.rs``."""
    source = (RING_DATA.parents[2] / "client" / "tests" / "it" / "route.rs").read_text()
    names = ["10.0.0.1:11211", "10.0.0.2", "10.0.0.3:11212", "unix:/run/a.sock", "[::1]:22122"]
    ring_names = [servers.parse(name).ring_name for name in names]
    for weights, constant in [([1] * 5, "EQUAL"), ([1, 2, 3, 4, 10], "WEIGHTED")]:
        expected = re.search(rf'const {constant}: &str =\s*"(\d+)"', source).group(1)
        placing = ring.Placing(list(zip(ring_names, weights)), ring.RENDEZVOUS)
        assert "".join(str(placing.find(b"k%d" % key, {})) for key in range(60)) == expected


def test_keys_are_where_libmemcached_has_them():
    assert parsed("libmemcached.txt", ring.KETAMA_WEIGHTED) > 100
    assert parsed("one_at_a_time.txt", ring.KETAMA) > 100


def test_hashes_are_those_of_the_text():
    assert ring.fnv(b"") == 0xCBF2_9CE4_8422_2325
    assert ring.fnv(b"foobar") == 0x8594_4171_F739_67E8
    assert ring.mix(0) == 0xE220_A839_7B1D_CDAF
    assert ring.key_hash(b"") == 0xD98C_1DD4


def test_an_ejected_server_moves_only_its_keys_and_comes_back():
    for sharding in ring.SHARDINGS:
        route = ring.Route([(f"10.0.0.{n}:11211", n) for n in range(1, 6)], sharding, ring.Ejection(2, 1.0))
        keys = [b"key:%d" % n for n in range(500)]
        before = [route.place(key) for key in keys]
        assert not route.failed(2, 10.0)
        assert route.failed(2, 10.0)
        assert route.changes == 1
        after = [route.place(key) for key in keys]
        assert all(new == old or old == 2 for old, new in zip(before, after))
        assert 2 not in after
        assert route.due(10.9) == []
        assert route.due(11.0) == [2]
        assert route.due(11.5) == []
        assert route.due(13.0) == [2]
        assert route.returned(2)
        assert [route.place(key) for key in keys] == before
        for place in range(5):
            route.failed(place, 20.0)
            route.failed(place, 20.0)
        assert route.place(b"k") is None


def test_a_success_ends_a_row_of_failures():
    route = ring.Route([("a", 1), ("b", 1)], ring.KETAMA, ring.Ejection(2, 1.0))
    assert not route.failed(0, 0.0)
    route.succeeded(0)
    assert not route.failed(0, 0.0)


@pytest.mark.parametrize(
    ("text", "host", "port", "path", "weight", "name"),
    [
        ("cache1", "cache1", 11211, None, 1, "cache1"),
        ("cache1:1=7", "cache1", 1, None, 7, "cache1:1"),
        ("cache1=7", "cache1", 11211, None, 7, "cache1"),
        ("[::1]", "::1", 11211, None, 1, "::1"),
        ("[::1]:65535=2", "::1", 65535, None, 2, "::1:65535"),
        ("/run/c.sock=3", "", 0, "/run/c.sock", 3, "/run/c.sock:0"),
        ("unix:/run/c.sock", "", 0, "/run/c.sock", 1, "/run/c.sock:0"),
    ],
)
def test_addresses(text, host, port, path, weight, name):
    address = servers.parse(text)
    assert (address.host, address.port, address.path, address.weight, address.ring_name) == (
        host,
        port,
        path,
        weight,
        name,
    )


@pytest.mark.parametrize(
    "text",
    [
        ":1",
        "a:",
        "a:0",
        "a:65536",
        "a:x",
        "a=0",
        "a=",
        "a=-1",
        "::1",
        "[::1",
        "[::1]1",
        "unix:",
        "http://host",
        "host:1:2",
    ]
    + ["=65536", "a=65536", "=5"],
)
def test_what_is_no_address(text):
    with pytest.raises(UsageError):
        servers.parse(text)


def test_lists_of_addresses():
    names = [address.name for address in servers.parse_all("a:1, b:2;c d=3")]
    assert names == ["a:1", "b:2", "c", "d"]
    assert [a.name for a in servers.parse_all([("a", 1), "b", ("::1", 3)])] == ["a:1", "b", "[::1]:3"]
    for wrong in ("", [], [3], [("a",)]):
        with pytest.raises(UsageError):
            servers.parse_all(wrong)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (0, 0),
        (1, 1),
        (0.25, 0.25),
        ("400ms", 0.4),
        ("60s", 60),
        ("5m", 300),
        ("2h", 7200),
        ("1d", 86400),
        (" 1.5 s ", 1.5),
    ]
    + [(datetime.timedelta(minutes=2), 120)],
)
def test_durations(given, seconds):
    assert options.seconds(given) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "wrong", ["", "5", "s", "-1s", "1 week", -1, float("nan"), None, [], True, datetime.timedelta(-1)]
)
def test_what_is_no_duration(wrong):
    with pytest.raises(UsageError):
        options.seconds(wrong)


def test_expirations_are_those_of_memcached():
    now = 1_700_000_000_000
    exptime = lambda ttl, grace=0: options.exptime(options.expiration(ttl), now, grace)  # noqa: E731
    assert [exptime(ttl) for ttl in (None, 0, 1, 0.1, 60, 2_592_000, "30d", "1500ms")] == [
        0,
        0,
        1,
        1,
        60,
        2_592_000,
        2_592_000,
        2,
    ]
    assert exptime("31d") == exptime(31 * 86400) == 1_700_000_000 + 31 * 86400, "seconds, however many"
    assert exptime(999_999_999) == 2**31 - 1 and exptime(1_000_000_000) is None, "a Unix time, of 2001"
    assert exptime(1_700_000_100) == 100, "a Unix time"
    assert exptime(1_600_000_000) is None
    assert exptime(-1) is None
    assert exptime(2**63) == exptime(2**40) == 0, "times beyond any clock are never"
    assert exptime(60, 3000) == 63
    assert options.plain_exptime(-1, now) == options.PASSED
    at = datetime.datetime.fromtimestamp(1_700_000_030, datetime.timezone.utc)
    assert exptime(at) == 30
    for wrong in ("x", [], True, float("nan")):
        with pytest.raises(UsageError):
            options.expiration(wrong)


def test_extreme_times_count_as_the_nearest_that_is_possible():
    assert options.milliseconds(0, "t") == 1
    assert options.milliseconds("30d", "t") == options.milliseconds(1e18, "t") == 86_400_000
    assert options.milliseconds(0.0001, "t") == 1


@pytest.mark.parametrize(
    "key", ["", b"", "a b", "a\nb", b"a\0b", "\x7f", "x" * 251, "ä" * 126, "\ud800", 5, None, Key("")]
)
def test_keys_that_no_server_takes(key):
    with pytest.raises(InvalidKey):
        key_bytes(key)


def test_keys():
    assert key_bytes("seite:ä") == "seite:ä".encode()
    assert key_bytes(b"\xff" * 250) == b"\xff" * 250
    assert key_bytes(Key("k", ("t",)), b"p:") == b"p:k"
    with pytest.raises(InvalidKey):
        key_bytes("x" * 248, b"p:1")
    for tag in ("", "a b", "x" * 201, 5):
        with pytest.raises(UsageError):
            tag_text(tag)


def replies(data, command, pieces):
    parser = wire.Parser()
    out = []
    for at in range(0, len(data), pieces):
        parser.feed(data[at : at + pieces])
        while True:
            reply = parser.next(command)
            if reply is None:
                break
            out.append(reply)
    assert parser.is_empty
    return out


@pytest.mark.parametrize("pieces", [1, 2, 7, 1000])
def test_replies_come_in_any_pieces(pieces):
    command = wire.ask(b"k", 2000)
    data = b"VA 5 f3396796417 c12 t-1 O7\r\na\r\nbc\r\nEN\r\nVA 0 c9 f0 W Z X O3\r\n\r\nHD c5 O1\r\nSERVER_ERROR no\r\n"
    first, second, third, fourth, fifth = replies(data, command, pieces)
    assert (first.data, first.flags, first.cas, first.left, first.opaque) == (b"a\r\nbc", 3396796417, 12, -1, 7)
    assert second.kind == "EN"
    assert (third.won, third.busy, third.stale, third.opaque) == (True, True, True, 3)
    assert (fourth.kind, fourth.cas) == ("HD", 5)
    assert (fifth.kind, fifth.line) == ("ERROR", b"SERVER_ERROR no")
    get = wire.Command(wire.GET, b"k")
    first, second, third = replies(b"VALUE k 3 2 9\r\nab\r\nEND\r\nEND\r\nSTORED\r\n", get, pieces)
    assert (first.kind, first.data, first.flags, first.cas) == ("VA", b"ab", 3, 9)
    assert (second.kind, third.kind) == ("END", "STORED")
    (stats,) = replies(b"STAT a 1\r\nSTAT b c d\r\nEND\r\n", wire.Command(wire.STATS, b""), pieces)
    assert stats.stats == {"a": "1", "b": "c d"}


@pytest.mark.parametrize(
    "data",
    [b"VA x\r\n", b"VA -1\r\n", b"VA\r\n", b"VA 1 O1\r\nabc\r\n", b"VALUE k 0\r\n", b"x" * 70_000, b"VA 1 fx\r\na\r\n"],
)
def test_what_is_no_reply(data):
    parser = wire.Parser()
    parser.feed(data)
    with pytest.raises(wire.Broken):
        parser.next(wire.ask(b"k", 1))


@given(st.binary(max_size=300))
def test_any_bytes_are_a_reply_or_none(data):
    parser = wire.Parser()
    parser.feed(data)
    try:
        while parser.next(wire.Command(wire.GET, b"k")) is not None:
            pass
    except wire.Broken:
        pass


@given(st.binary(max_size=100))
def test_percent_is_undone(text):
    assert wire.unpercent(wire.percent(text, 10_000)) == text


def test_percent_is_cut_between_characters():
    assert wire.percent("ä".encode() * 1000, 460) == b"%C3%A4" * 76
    assert wire.unpercent(b"100%, 5%2") == b"100%, 5%2"
