"""Native collections as fields of types in Luau."""

import json

import pytest

from harness import wait_until
from scripted import types  # noqa: F401
from test_objects import call, steps

pytestmark = pytest.mark.only_cattlegrid


@pytest.fixture
def c(types):
    with types(sources=["seen"]).start().raw() as connection:
        yield connection


def test_collections_as_fields(c):
    steps(c, [("seen:visit:k:x", "NEW"), ("seen:visit:k:y", "NEW"), ("seen:visit:k:x", "AGAIN"), ("seen:count:k", "2"), ("seen:names:k", "x\r\ny\r\n"), ("seen:last:k:x", "visit 3"), ("seen:last:k:z", None)])
    dump = json.loads(call(c, "seen:dump:k"))
    assert dump == {"name": "a", "visits": 3, "all": ["x", "y"], "by": {"x": "visit 3", "y": "visit 2"}}
    assert call(c, "seen:visit_and_fail:k:lost").startswith("SERVER_ERROR script seen.visit_and_fail: seen.luau:")
    assert json.loads(call(c, "seen:dump:k")) == dump
    for n in range(3000):
        c.send(b"get seen:visit:k:m%04d\r\n" % n)
    assert c.ask(b"").count(b"\r\nNEW\r\n") == 3000
    assert call(c, "seen:count:k") == "3002" and call(c, "seen:last:k:m2999") == "visit 3003"
    size = int(call(c, "seen:size:k"))
    assert size > 3000 * 10
    steps(c, [("seen:forget:k", "FORGOTTEN"), ("seen:count:k", "0"), ("seen:names:k", ""), ("seen:last:k:x", "visit 3"), ("seen:visit:k:x", "NEW"), ("seen:count:k", "1")])
    for n in range(300):
        call(c, f"seen:visit:k:n{n}")
    assert call(c, "seen:count:k") == "301"
    assert call(c, "seen:drop:k") == "DELETED"
    wait_until("nothing is held", lambda: c.stats("objects")["bytes"] == "0", 60)
