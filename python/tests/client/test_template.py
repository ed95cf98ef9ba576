"""Keys and tags from arguments: readable, the same for the same call, and never shared by different ones."""

import datetime
import decimal
import enum
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cattlegrid.client._errors import UsageError
from cattlegrid.client._template import call_of, compile_key, compile_tags


class User:
    def __init__(self, id):
        self.id = id
        self.names = {"first": "Ada"}


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


def key_of(template, function, prefix_bytes=0):
    return compile_key(template, call_of(function), prefix_bytes)


def page(user, id, *, size=10, **more):
    """Never called."""


def test_keys_are_readable_and_follow_the_signature():
    key = key_of("page:{user.id}:{id}", page)
    assert key(User(7), 1) == key(User(7), id=1) == key(id=1, user=User(7)) == "page:7:1"
    key = key_of("page:{user.names[first]}:{id}:{size}", page)
    assert key(User(7), "a b") == "page:Ada:a%20b:10"
    assert key(User(7), "a", size=20) == "page:Ada:a:20"
    key = key_of("p:{id}:{rest}:{named}", lambda id, *rest, **named: None)
    assert key(1) == "p:1:%l:%d"
    assert key(1, 2, 3, a=4) == "p:1:%l%5B2%5D,%5B3%5D:%d%5Ba%5D=%5B4%5D".replace("%5B", "[").replace("%5D", "]")
    assert key_of("all", lambda: None)() == "all"
    assert key_of("{when:%Y-%m-%d}", lambda when: None)(datetime.datetime(2026, 1, 2, 3)) == "2026-01-02"
    assert key_of("{{{id}}}", lambda id: None)(5) == "{5}"
    assert key_of("a'\"{id}\\{b!s}", lambda id, b: None)(5, User) == f"a'\"5\\{str(User).replace(' ', '%20')}"
    with pytest.raises(TypeError, match="id"):
        key_of("page:{user.id}:{id}", page)(User(7))


def test_positional_only_arguments():
    scope = {}
    exec("def page(a, b=2, /, c=3): ...", scope)
    key = key_of("{a}:{b}:{c}", scope["page"])
    assert key(1) == "1:2:3" and key(1, 5, c=6) == "1:5:6"
    with pytest.raises(TypeError):
        key(a=1)


def test_values():
    key = key_of("{x}", lambda x: None)
    for value, text in [
        (0, "0"),
        (-5, "-5"),
        (1.5, "1.5"),
        ("", "%_"),
        (None, "%None"),
        (True, "%True"),
        ("ä:%", "%C3%A4%3A%25"),
        (b"\x00a", "%b%00a"),
        (Colour.RED, "red"),
        (Level.HIGH, "3"),
        (decimal.Decimal("1.50"), "1.50"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        (datetime.timedelta(seconds=1), "0%3A00%3A01"),
        ([], "%l"),
        ((1, "a,b"), "%l[1],[a%252Cb]"),
        ({3, 20}, "%s[20],[3]"),
        ({"b": 1, "a": None}, "%d[a]=[%25None],[b]=[1]"),
    ]:
        assert key(value) == text
        assert key_of("{x}", lambda x: None)(value) == text


@pytest.mark.parametrize("value", [User(1), object(), User, len, [User(1)], {"a": object()}])
def test_objects_without_a_text_of_their_own(value):
    with pytest.raises(UsageError, match="name an attribute"):
        key_of("{x}", lambda x: None)(value)


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.binary(max_size=4) | st.floats(allow_nan=False)
)
VALUES = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(st.text(max_size=3), SCALARS, max_size=3)


def same(one, other):
    """Whether two values may share a key: a number and its text, a list and a tuple."""
    plain = (str, int, float)
    if isinstance(one, bool) or isinstance(other, bool) or one is None or other is None:
        return one is other
    if isinstance(one, plain) and isinstance(other, plain):
        return str(one) == str(other)
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return one == other


@pytest.mark.parametrize("template", ["k:{a}:{b}", "{a}-{b}", "{a},[{b}]", "x{a}x-1{b}1", "{a}={b}"])
def test_calls_share_a_key_only_by_the_same_text(template):
    key = key_of(template, lambda a, b: None)

    @given(VALUES, VALUES, VALUES, VALUES)
    def check(a, b, c, d):
        one, other = key(a, b), key(c, d)
        assert (one == other) == (same(a, c) and same(b, d))
        assert 0 < len(one) <= 250 and all("!" <= character <= "~" for character in one)

    check()


@given(st.text(max_size=400), st.text(max_size=400), st.text(max_size=5))
def test_long_keys_stay_distinct_and_keep_their_form(a, b, c):
    key = key_of("page:{a}:{b}", lambda a, b: None, 20)
    keys = {key(x, y) for x in (a, a + "1", c) for y in (b, b + "2", c)}
    assert len(keys) == len({(x, y) for x in (a, a + "1", c) for y in (b, b + "2", c)})
    assert all(len(one) <= 230 and one.count(":") == 2 for one in keys)


def test_the_longest_value_is_hashed():
    key = key_of("page:{a}:{b}", lambda a, b: None)
    text = key("x" * 300, 7)
    assert text.startswith("page:%#") and text.endswith(":7") and len(text) == len("page:%#:7") + 32
    assert key("x" * 243, 7) == f"page:{'x' * 243}:7"
    assert key("x" * 244, 7).startswith("page:%#")
    assert key("%#" + "0" * 32, 7) == f"page:%25%23{'0' * 32}:7".replace("%23", "#"), "no text is a hash"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("page", "names no argument"),
        ("page:{user}", "names no argument"),
        ("page:{}", "names no argument"),
        ("page:{0}", "names no argument"),
        ("page:{b.}", "attributes"),
        ("page:{b.1x}", "no name of an attribute"),
        ("page:{b.class}", "no name of an attribute"),
        ("page:{b[}", "expected"),
        ("page:{b", "expected"),
        ("{a}{b}", "separator"),
        ("{a}x{b}", "separator"),
        ("{a}%{b}", "separator"),
        ("a page {b}", "visible ASCII"),
        ("seite:ä{b}", "visible ASCII"),
        ("{a:{b}}", "depends"),
        ("{a!x}", "conversion"),
        ("x" * 217 + "{a}", "251"),
        ("", "names no argument"),
    ],
)
def test_templates_that_cannot_be_are_refused_when_decorated(template, text):
    with pytest.raises(UsageError, match=text):
        key_of(template, lambda a, b: None)


def test_tags_are_what_an_f_string_makes():
    def tags_of(templates, function=page):
        return compile_tags(templates, call_of(function))

    make = tags_of(["user:{user.id}", "pages", "x{id!s}'\"", "s:{size:03d}"])
    assert make(User(7), 1) == ("user:7", "pages", "x1'\"", "s:010")
    assert tags_of(["{id}"])(User(7), "a:50% ä") == ("a:50%%20ä",), "blanks are not possible in tags"
    assert tags_of(["{id}"])(User(7), None) == ("None",)
    (long,) = tags_of(["t:{id}"])(User(7), "x" * 300)
    assert len(long) == 200 and long.startswith("t:xxx")
    assert tags_of([]) is None
    for wrong in ("pages", ["{nobody}"], [""], [str(n) for n in range(9)]):
        with pytest.raises(UsageError):
            tags_of(wrong)
