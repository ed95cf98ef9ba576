"""Tags in values."""

import json

import pytest

from cattlegrid.serde import TagSerde, Tagged, line_of


class Json:
    """A serializer with flags, as pymemcache's are; its data is text."""

    def serialize(self, key, value):
        return json.dumps([key, value]), 3

    def deserialize(self, key, value, flags):
        assert flags == 3
        own, value = json.loads(value)
        assert own == key
        return value


def test_the_line_comes_before_the_serialized_value():
    serde = TagSerde(Json())
    data = serde.serialize("k", Tagged({"a": 1}, ["user:7", b"product:9"]))
    assert data == (b'@tags:user:7,product:9\n["k", {"a": 1}]', 3)
    assert serde.serialize("k", [1]) == (b'["k", [1]]', 3)
    assert serde.serialize("k", Tagged([1], ())) == (b'["k", [1]]', 3)
    assert TagSerde().serialize("k", Tagged(b"x\n", ["a"])) == (b"@tags:a\nx\n", 0)
    assert TagSerde().serialize("k", "\u00e4") == ("\u00e4".encode(), 0)


def test_what_is_read_has_no_line_wherever_it_was_stored():
    serde = TagSerde(Json())
    data, flags = serde.serialize("k", Tagged("\n", ["a"]))
    stored = data.split(b"\n", 1)[1]
    assert serde.deserialize("k", data, flags) == serde.deserialize("k", stored, flags) == "\n"
    assert TagSerde().deserialize("k", b"x", 0) == b"x"


def test_tags_by_a_function():
    serde = TagSerde(None, lambda key, value: [key] if value else None)
    assert serde.serialize("k", b"x") == (b"@tags:k\nx", 0)
    assert serde.serialize("k", b"") == (b"", 0)
    assert serde.serialize("k", Tagged(b"x", ["own"])) == (b"@tags:own\nx", 0), "its own tags alone"


def test_names_are_escaped_and_counted_once():
    assert line_of(["a,b", "50%", "a,b", "\u00e4"]) == "@tags:a%2Cb,50%25,\u00e4\n".encode()
    assert line_of(str(n % 8) for n in range(20)) == b"@tags:0,1,2,3,4,5,6,7\n"
    assert line_of(["%" * 200]) == b"@tags:" + b"%25" * 200 + b"\n"


@pytest.mark.parametrize("tags", [[""], ["x" * 201], ["a b"], ["a\n"], ["a\r"], ["\x7f"], [str(n) for n in range(9)], [f"{n}" + "%" * 199 for n in range(4)], "a", b"a"])
def test_tags_that_are_not_valid(tags):
    with pytest.raises(ValueError):
        line_of(tags)
    with pytest.raises(ValueError):
        TagSerde().serialize("k", Tagged(b"x", tags))


def test_a_value_that_looks_like_a_line_is_refused():
    for value in (b"@tags:a\nx", Tagged(b"@tags:a\nx", ["b"])):
        with pytest.raises(ValueError):
            TagSerde().serialize("k", value)
