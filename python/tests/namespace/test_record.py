"""Records, hashes, keys and tags: the bytes that the Rust client has."""

import pytest

from cattlegrid.namespace import _evidence as evidence
from cattlegrid.namespace._key import NamespacedKey, Naming, number
from cattlegrid.namespace._options import NamespacerOptions
from cattlegrid.namespace._record import Record, Settings

EVIDENCE_MAX = 8192


def hash_of(text: str) -> int:
    return evidence.hash_of(text)


def ten_seconds(**more) -> Settings:
    return Settings.of(NamespacerOptions(evidence_size=2, rolling_period=10, **more), False)


def naming(tags: bool = False, master: bool = True) -> Naming:
    return Naming("___", ":", tags, master)


def test_hashes_are_the_published_ones():
    assert hash_of("") == 0xCBF29CE484222325
    assert hash_of("a") == 0xAF63DC4C8601EC8C
    assert hash_of("foobar") == 0x85944171F73967E8
    assert [evidence.mix(1_234_567, n) for n in (1, 2)] == [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]


def test_places_differ_and_are_inside_for_every_size():
    for size in (1, 2, 3, 80, EVIDENCE_MAX):
        for id in range(500):
            first, second = evidence.places(hash_of(f"userId:{id}"), size)
            assert first != second and 0 <= first < size * 8 and 0 <= second < size * 8


def test_muddled_from_half_of_the_namespaces_on():
    bits = bytearray(80)
    updates = 0
    while not evidence.muddled(bits):
        evidence.mark(bits, hash_of(f"userId:{updates}"))
        updates += 1
    assert 363 <= updates <= 423, "393 is the mean"
    marked = sum(evidence.marked(bits, hash_of(f"prodId:{id}")) for id in range(10_000))
    assert 4_600 <= marked <= 5_400
    # Seven to eight per cent after 100 updates, as the manual says.
    bits = bytearray(80)
    for id in range(100):
        evidence.mark(bits, hash_of(f"userId:{id}"))
    assert 0.06 <= sum(evidence.marked(bits, hash_of(f"prodId:{id}")) for id in range(10_000)) / 10_000 <= 0.09


def test_phases_are_spread_over_the_period():
    phases = [evidence.phase_ms(hash_of(f"___userId:{id}"), 180_000) for id in range(10_000)]
    assert max(phases) < 180_000
    for share in (10, 50, 90):
        assert abs(sum(phase < 1_800 * share for phase in phases) - share * 100) < 250


def test_the_record_is_the_documented_one():
    record = Record.new(ten_seconds(), 0x0102030405060708, 9)
    record.windows[0].evidence[:] = b"\x80\x01"
    assert record.flush(2**64 - 1, 0x0A0B) == []
    expected = b"CGNS\x01\x06\x00\x02\x00\x00\x27\x10\x01:\x02"
    expected += b"\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\0\0\x0a\x0b\0\0"
    expected += b"\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\0\0\0\0\x09\x80\x01"
    assert record.encode() == expected
    assert Record.decode(expected) == record


@pytest.mark.parametrize("tags", [False, True])
@pytest.mark.parametrize("optimize", [False, True])
def test_every_kind_of_record_is_read_as_written(tags, optimize):
    options = NamespacerOptions(optimize_with_default_counter_and_evidence=optimize, separator="::")
    record = Record.new(Settings.of(options, tags), 1, 2)
    assert Record.decode(record.encode()) == record
    if record.settings.windows:
        for start in range(5):
            record.flush(start, start)
        assert len(record.windows) == 4
        assert Record.decode(record.encode()) == record


def test_anything_else_is_an_error():
    whole = Record.new(ten_seconds(), 1, 2).encode()
    for end in range(len(whole)):
        with pytest.raises(ValueError):
            Record.decode(whole[:end])
    with pytest.raises(ValueError, match="follow"):
        Record.decode(whole + b"\0")
    for at, byte, text in [(0, ord("X"), "CGNS"), (4, 2, "version 2"), (5, 0x86, "flags"), (14, 5, "windows")]:
        other = bytearray(whole)
        other[at] = byte
        with pytest.raises(ValueError, match=text):
            Record.decode(bytes(other))


def test_windows_change_by_phase_and_end():
    record = Record.new(ten_seconds(), 1, 0)
    assert record.flush(2, 100_000) == []
    key = hash_of("___userId:7")
    phase = evidence.phase_ms(key, 10_000)

    def master(now_ms: int) -> int:
        return record.window(key, now_ms).master

    assert master(0) == 1
    assert master(100_000 + phase - 1) == 1
    assert master(100_000 + phase) == 2
    assert record.flush(3, 109_999) == []
    assert master(109_999) == 2
    assert record.flush(4, 110_000) == [1], "the first flush is over"
    assert record.flush(5, 110_001) == []
    assert record.flush(6, 110_002) == [2], "a fifth window ends the oldest"
    assert master(110_002) == 3, "the oldest left, though its time has not come"


def test_an_update_is_noted_in_all_windows_and_muddled_evidence_begins_one_flush():
    record = Record.new(ten_seconds(), 1, 0)
    record.flush(2, 5)
    assert record.update(hash_of("userId:1"), 9, 6)
    assert all(evidence.marked(window.evidence, hash_of("userId:1")) for window in record.windows)
    assert not record.update(hash_of("userId:1"), 9, 7), "noted already"
    assert record.update(hash_of("userId:1"), 9, 20_000), "the old window is dropped"
    assert len(record.windows) == 1
    for never, most in ((True, 1), (False, 2)):
        record = Record.new(ten_seconds(reset_when_evidence_muddled=not never), 1, 0)
        for id in range(100):
            record.update(hash_of(f"userId:{id}"), 100 + id, 50)
        assert len(record.windows) == most


def test_each_option_that_differs_is_named():
    here = Settings.of(NamespacerOptions(), False)
    others = [
        (Settings.of(NamespacerOptions(), True), "the way of invalidation"),
        (Settings.of(NamespacerOptions(separator="/"), False), "separator"),
        (Settings.of(NamespacerOptions(optimize_with_default_counter_and_evidence=False), False), "optimize_with"),
        (Settings.of(NamespacerOptions(evidence_size=81), False), "evidence_size"),
        (Settings.of(NamespacerOptions(reset_when_evidence_muddled=False), False), "reset_when_evidence_muddled"),
        (Settings.of(NamespacerOptions(rolling_period=179), False), "rolling_period"),
    ]
    for there, option in others:
        name, own, other = here.difference(there)
        assert name.startswith(option) and own != other
    assert here.difference(here) is None


def test_keys_are_the_documented_ones():
    counters = naming()
    logical = counters.named("last", [("userId", "12543"), ("prodId", 54929873)])
    key = counters.key(logical, 0xAB, [1, None])
    assert key == "___00000000000000ab:last:userId:12543|0000000000000001:prodId:54929873" and key.tags == ()
    without = naming(master=False)
    assert without.key(without.single("userId", 1234), None, [2**64 - 1]) == "___userId:1234|ffffffffffffffff"
    tagged = naming(tags=True)
    key = tagged.key(logical, 0xAB, [])
    assert key == "___00000000000000ab:last:userId:12543:prodId:54929873"
    assert key.tags == ("___userId:12543", "___prodId:54929873", "___00000000000000ab")
    assert counters.record_key() == "___record"
    assert counters.counter_key(logical.namespaces[0]) == "___counter|userId:12543"
    assert counters.named("last", {"userId": 12543, "prodId": 54929873}) == logical
    assert counters.namespace("ä b", "\x7f,~").text == "%C3%A4%20b:%7F%2C~"
    assert Naming("___", "::", False, True).namespace("a:", ":b").text == "a%3A::%3Ab"


def test_different_parts_give_different_keys():
    own = naming()

    def text(name, pairs):
        return own.key(own.named(name, pairs), 0xAB, [])

    assert text("a:b", [("c", "d")]) != text("a", [("b:c", "d")])
    assert text("n", [("a:b", "c")]) != text("n", [("a", "b:c")])
    assert text("n", [("a", "b%3Ac")]) != text("n", [("a", "b:c")])
    assert text("n", [("a", "b|0000000000000001")]) != own.key(own.named("n", [("a", "b")]), 0xAB, [1])
    assert own.key(own.single("n", "a"), 0xAB, []) != text("n", [("a", "b")])


def test_limits_are_errors():
    own = naming()
    for pairs, text in [([], "0 namespaces"), ([("a", 1)] * 8, "8 namespaces"), ([("a", "")], "empty")]:
        with pytest.raises(ValueError, match=text):
            own.named("n", pairs)
    own.named("n", [("a", 1)] * 7)
    with pytest.raises(ValueError, match="empty"):
        own.named("", [("a", 1)])
    # prefix 3, master 17, name and separator 2, `a:`, counter 17: 41, and the id.
    fits = own.named("n", [("a", "x" * 209)])
    assert len(own.key(fits, 1, [1])) == 250
    with pytest.raises(ValueError, match="251"):
        own.named("n", [("a", "x" * 210)])
    with pytest.raises(ValueError, match="263"):
        own.namespace("a", "x" * 250)
    naming(tags=True).namespace("a", "x" * 195)
    with pytest.raises(ValueError, match="201"):
        naming(tags=True).namespace("a", "x" * 196)


@pytest.mark.parametrize("id", [None, True, 1.0, b"x", object(), [1], {"a": 1}])
def test_ids_that_other_processes_would_not_find(id):
    with pytest.raises(TypeError):
        naming().namespace("userId", id)


def test_numbers_are_sixteen_digits():
    assert number(b"00000000000000ff") == 255
    for wrong in (b"ff", b"", b"00000000000000fg", b"00000000000000ff0", b"\xff0000000000000ff", b"0x000000000000ff"):
        assert number(wrong) is None


@pytest.mark.parametrize(
    ("option", "value"),
    [("prefix", p) for p in ("", "a" * 101, "a b", "ä", "a%", "a,")]
    + [("separator", s) for s in ("", ":::::", "a", "%", ":|", "ä")]
    + [("evidence_size", n) for n in (0, 8193, 1.5, True)]
    + [("rolling_period", n) for n in (0.999, 1.0005, 86_401, float("nan"))],
)
def test_options_out_of_range_are_named(option, value):
    with pytest.raises(ValueError, match=option):
        NamespacerOptions(**{option: value})


def test_options_at_their_limits():
    NamespacerOptions(prefix="a" * 100, separator="::::", evidence_size=1, rolling_period=1)
    NamespacerOptions(prefix="x", separator="#", evidence_size=8192, rolling_period=86_400)


def test_a_key_is_text_and_keeps_its_tags():
    import copy
    import pickle

    key = NamespacedKey("k", ["a"])
    for other in (key, copy.copy(key), pickle.loads(pickle.dumps(key))):
        assert other == "k" and other.tags == ("a",)
