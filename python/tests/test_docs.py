"""The code blocks of docs/python.md run as they stand, in their order, against real servers."""

import contextlib
import inspect
import io
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
DOCS = TESTS.parents[1] / "docs"
sys.path.insert(0, str(TESTS / "frameworks"))
import servers  # noqa: E402

RULES = """
[[rule]]
match = "page:{user}:{id}"
hold = "4s"
grace = "30s"

[objects]
"""

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


class User:
    id = 7


def prelude():
    """What the blocks need of the program in which they stand."""

    async def fetch(id):
        return f"page {id}"

    return {
        "__name__": "docs",
        "user": User(),
        "render": lambda user, id: f"<h1>Page {id}</h1>",
        "load": lambda id: None if id == 404 else f"loaded {id}",
        "encode": lambda hint: "a video",
        "store": lambda user, fence: None,
        "fetch": fetch,
    }


@pytest.fixture(scope="module")
def address():
    if servers.cattlegrid_binary() is None:
        missing = "the server's binary is missing: set CATTLEGRID_BIN"
        (pytest.fail if os.environ.get("CATTLEGRID_SET_UP") else pytest.skip)(missing)
    server = servers.Server("rules", rules=RULES)
    yield server.address
    server.stop()


def blocks(page):
    """The blocks of a page, each with the number of its first line."""
    text = (DOCS / page).read_text()
    return [(text.count("\n", 0, match.start()) + 2, match.group(1)) for match in BLOCK.finditer(text)]


def test_every_block_runs(address):
    pytest.importorskip("pymemcache")
    scope = prelude()
    found = blocks("python.md")
    assert len(found) >= 18
    host, port = address.split(":")
    for line, source in found:
        code = source.replace("127.0.0.1:11211", address).replace('("127.0.0.1", 11211)', f'("{host}", {port})')
        # Errors are shown with the line of the page.
        compiled = compile("\n" * (line - 1) + code, str(DOCS / "python.md"), "exec")
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compiled, scope)


def test_the_page_names_what_there_is():
    """Every name that the page shows in code is one of the package, and every public name is on the page."""
    import cattlegrid.client as client
    from cattlegrid.client._base import Base

    text = (DOCS / "python.md").read_text()
    unnamed = {name for name in client.__all__ if not re.search(rf"\b{name}\b", text)}
    assert unnamed <= NOT_ON_THE_PAGE, unnamed - NOT_ON_THE_PAGE
    table = text[text.index("## Options of Cache") : text.index("### Over another client")]
    options = {name for row in re.findall(r"^\| (`[^|]+`) \|", table, re.M) for name in re.findall(r"`(\w+)`", row)}
    known = set(inspect.signature(client.AsyncCache.__init__).parameters)
    known |= set(inspect.signature(Base.__init__).parameters)
    known -= {"self", "settings", "make_event"}
    assert options == known
    assert set(inspect.signature(client.Cache).parameters) == known - {"waiting_connections"}
    assert set(inspect.signature(client.AsyncCache).parameters) == known


NOT_ON_THE_PAGE = {
    "AsyncCachedFunction",
    "AsyncLock",
    "AsyncQuota",
    "AsyncToken",
    "Busy",
    "CachedFunction",
    "Called",
    "Fetched",
    "Key",
    "Last",
    "Lock",
    "Outcome",
    "Quota",
    "QuotaState",
    "Serializer",
    "Skip",
    "Stale",
    "Statistics",
    "Token",
}
"""Types of what calls return: their docstrings describe them."""


def test_memcached_runs_the_first_example():
    if shutil.which("memcached") is None:
        pytest.skip("memcached is missing")
    server = servers.Server("memcached")
    try:
        scope = prelude()
        for _line, source in blocks("python.md")[:4]:
            exec(source.replace("127.0.0.1:11211", server.address), scope)
    finally:
        server.stop()
