"""Tags that keys do not show: in the first line of values, and announced, with unmodified clients over all protocols."""

import pathlib
import subprocess
import sys
import time

import pylibmc
import pytest
from pymemcache import serde
from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheClientError

from crowd import HOLDS, write_rules
from harness import MIB, tool
from packets import NOT_STORED, OK, SET, SETQ, connect, store

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "python" / "src"))

from cattlegrid.serde import Tagged, TagSerde  # noqa: E402

pytestmark = pytest.mark.only_cattlegrid

RULES = (
    '[[rule]]\nmatch = "v:{id}"\ntags_in_value = true\ntags = ["v:{id}"]\n'
    '[[rule]]\nmatch = "must:{id}"\ntags_in_value = "required"\n'
    '[[rule]]\nmatch = "said:{id}"\nannounced_tags = "required"\n'
    '[[rule]]\nmatch = "page:{id}"\ntags_in_value = true\n' + HOLDS
)


@pytest.fixture
def tagged(start, open_dir):
    """A server with rules for tags in values and announced ones."""
    return start("--config", write_rules(open_dir, RULES), "-I", "8m", "-m", "256")


def client(server, **options):
    return Client(("127.0.0.1", server.port), timeout=40, connect_timeout=40, default_noreply=False, **options)


def kept(c, key, value, **options):
    """Stores a value after a miss: soon after the server's start a value whose miss it does not know is not kept if it was invalidated."""
    c.get(key)
    return c.set(key, value, **options)


def refused_by(store_it):
    try:
        return not store_it()
    except (MemcacheClientError, pylibmc.Error):
        return True


def test_pymemcache_with_a_wrapped_serializer(tagged):
    """The line is before what the serializer has made, compressed or not."""
    page = {"user": 7, "text": "x" * 5000}
    for n, inner in enumerate((serde.pickle_serde, serde.compressed_serde, None)):
        c = client(tagged, serde=TagSerde(inner))
        value = page if inner else b"page"
        taken, must, other = (f"{kind}:{n}" for kind in ("v", "must", "other"))
        for key in (taken, must, other):
            assert kept(c, key, Tagged(value, ["user:7", "a,b"]))
            assert c.get(key) == value, key
        assert c.delete("@tag:a,b")
        assert c.get(taken) is None and c.get(must) is None
        assert c.get(other) == value, "no rule: the client takes the line off"
        assert kept(c, taken, value) and c.get(taken) == value
        with pytest.raises(MemcacheClientError, match="no tags"):
            c.set(must, value)
        c.close()
    # Without the wrapper a compressed value hides the line.
    c = client(tagged, serde=serde.compressed_serde)
    assert kept(c, "v:9", "@tags:a\n" + "x" * 5000) and c.get("v:9").startswith("@tags:a\n")
    with pytest.raises(MemcacheClientError, match="no tags"):
        c.set("must:1", "@tags:a\n" + "x" * 5000)


@pytest.mark.parametrize("protocol", ["text", "binary"])
def test_pylibmc(tagged, protocol):
    c = pylibmc.Client([tagged.address], binary=protocol == "binary")
    long = "x" * 100_000
    assert kept(c, "v:1", "@tags:a,b\nvalue") and c.get("v:1") == "value"
    assert c.delete("@tag:b") and c.get("v:1") is None
    assert kept(c, "must:1", "@tags:a\n" + long) and c.get("must:1") == long
    assert c.delete("@tag:a") and c.get("must:1") is None
    # Compressed, or pickled: the line is hidden.
    assert kept(c, "v:1", "@tags:a\n" + long, min_compress_len=1000) and c.get("v:1") == "@tags:a\n" + long
    assert refused_by(lambda: c.set("must:1", "@tags:a\n" + long, min_compress_len=1000))
    assert c.get("must:1") is None
    # It is not taken for a failure of the server, which libmemcached would use no more for a while.
    assert refused_by(lambda: c.set("v:1", "@tags:a b\nx")) and refused_by(lambda: c.set("@tags:free", "a"))
    # Its tags are announced.
    value = {"text": long}
    assert refused_by(lambda: c.set("said:1", value, min_compress_len=1000))
    assert c.set("@tags:said:1", "user:7,product:9")
    for tag in ("user:7", "product:9"):
        assert kept(c, "said:1", value, min_compress_len=1000) and c.get("said:1") == value
        assert c.delete(f"@tag:{tag}") and c.get("said:1") is None
    rules = tagged.stats("rules")
    assert (rules["3:stores_unannounced"], rules["3:tags_announced"], rules["2:stores_without_tags"]) == ("1", "1", "1")
    assert tagged.stats("cattlegrid")["announced_keys"] == "1"


@pytest.mark.parametrize("protocol", ["binary", "text"])
def test_php_memcached(tagged, protocol):
    lines = subprocess.run([tool("php"), HERE / "php" / "tags.php", str(tagged.port), protocol], capture_output=True, text=True, timeout=200)
    assert lines.returncode == 0 and len(lines.stdout.splitlines()) == 16, lines.stdout + lines.stderr


def test_dalli(tagged):
    lines = subprocess.run([tool("ruby"), "-W0", HERE / "ruby" / "tags.rb", str(tagged.port)], capture_output=True, text=True, timeout=200)
    assert lines.returncode == 0 and len(lines.stdout.splitlines()) == 10, lines.stdout + lines.stderr


@pytest.mark.parametrize("size", [100, 20_000, 40_000, 2 * MIB])
def test_values_that_arrive_in_parts(tagged, size):
    """However the line is cut, and in whatever pages the value lies."""
    body = bytes(i % 251 for i in range(size))
    value = b"@tags:a," + b"b" * 190 + b"\r\n" + body
    commands = {
        b"set v:1 0 0 %d\r\n%s\r\n" % (len(value), value): b"STORED",
        b"ms v:1 %d s\r\n%s\r\n" % (len(value), value): b"HD s%d" % size,
    }
    with tagged.raw() as raw:
        for command, reply in commands.items():
            start = command.index(b"@tags")
            for cut in (start - 2, start, start + 1, start + 7, start + 150, len(command) - 1):
                raw.send(command[:cut])
                time.sleep(0.02)
                raw.send(command[cut:])
                assert raw.line() == reply
                assert raw.get(b"v:1") == body
                raw.send(b"mg v:1 s\r\n")
                assert raw.line() == b"HD s%d" % size
                raw.send(b"md a G\r\nmg v:1\r\n")
                assert (raw.line(), raw.line()) == (b"HD", b"EN")
        # Without its end the line is refused, whole or in parts.
        endless = b"@tags:a" + body.replace(b"\n", b"x")
        raw.send(b"set v:1 0 0 %d\r\n%s\r\n" % (len(endless), endless))
        assert raw.line().startswith(b"CLIENT_ERROR invalid tag: "), size
        assert raw.get(b"v:1") is None
        assert raw.get(b"other") is None, "the connection goes on"
    assert tagged.running(), tagged.log()


def test_the_limit_is_that_of_what_arrives(start, open_dir):
    server = start("--config", write_rules(open_dir, RULES), "-I", "64k")
    with server.raw() as raw:
        body = b"x" * (65_000)
        assert raw.set(b"v:1", body) == b"STORED"
        line = b"@tags:" + b"a" * 200 + b"," + b"b" * 200 + b"," + b"c" * 200 + b"\n"
        assert raw.set(b"v:1", line + body) == b"SERVER_ERROR object too large for cache"
        assert raw.get(b"v:1") is None
        assert raw.set(b"v:1", line + body[len(line) :]) == b"STORED"
        assert raw.get(b"v:1") == body[len(line) :]


def test_malformed_lines_over_each_protocol(tagged):
    refused = b"CLIENT_ERROR invalid tag: "
    with tagged.raw() as raw, connect(tagged) as packets:
        for names in (b"\nx", b"a,\nx", b"a b\nx", b"a%\nx", b"x" * 201 + b"\nx", b"a,b,c,d,e,f,g,h\nx", b"a"):
            value = b"@tags:" + names
            assert raw.set(b"v:1", b"old") == b"STORED"
            assert raw.set(b"v:1", value).startswith(refused), names
            assert raw.get(b"v:1") is None, "the old value is not taken for the new one"
            raw.send(b"set v:1 0 0 %d noreply\r\n%s\r\n" % (len(value), value))
            raw.send(b"ms v:1 %d q\r\n%s\r\n" % (len(value), value))
            assert raw.line().startswith(refused)
            for opcode in (SET, SETQ):
                packets.send(store(b"v:1", value, opcode=opcode))
                reply = packets.reply()
                assert (reply.status, reply.value.startswith(refused)) == (NOT_STORED, True)
            assert raw.get(b"v:1") is None
        packets.send(store(b"v:1", b"@tags:a\nx") + store(b"said:1", b"x") + store(b"@tags:said:1", b"a") + store(b"said:1", b"x"))
        assert [packets.reply().status for _ in range(4)] == [OK, NOT_STORED, OK, OK]
        assert raw.get(b"v:1") == b"x"
        packets.send(store(b"@tags:none", b"a"))
        assert packets.reply().value == b"CLIENT_ERROR no rule covers none"


def test_waiters_of_a_refused_value_go_on(tagged):
    with tagged.raw() as first, tagged.raw() as second:
        assert first.get(b"page:1") is None
        second.send(b"get page:1\r\n")
        time.sleep(0.1)
        assert first.set(b"page:1", b"@tags:\nx").startswith(b"CLIENT_ERROR")
        assert second.line() == b"END", "it computes now"
        first.send(b"get page:1\r\n")
        assert second.set(b"page:1", b"@tags:a\nvalue") == b"STORED"
        assert first.until(b"END\r\n") == b"VALUE page:1 0 5\r\nvalue\r\nEND\r\n"


def test_a_value_computed_before_a_bump_is_not_kept(tagged):
    """The tag is known only when the value comes: in its line, or announced."""
    for key, announces in (("page:1", False), ("said:1", True)):
        computing, other = client(tagged), client(tagged)
        assert computing.get(key) is None
        assert other.delete("@tag:user:7")
        if announces:
            assert other.set(f"@tags:{key}", "user:7")
        assert computing.set(key, b"old" if announces else b"@tags:user:7\nold")
        assert other.get(key) is None
        assert other.set(key, b"new" if announces else b"@tags:user:7\nnew")
        assert computing.get(key) == b"new"


def test_another_prefix_of_control_keys(start, open_dir):
    rules = '[server]\ncontrol = "myapp:@"\n[[rule]]\nmatch = "myapp:said:{id}"\nannounced_tags = "required"\n'
    server = start("--config", write_rules(open_dir, rules))
    with server.raw() as raw:
        assert raw.set(b"@tags:myapp:said:1", b"a") == b"STORED"
        assert raw.get(b"@tags:myapp:said:1") == b"a", "an ordinary key"
        assert raw.set(b"myapp:said:1", b"x") == b"NOT_STORED"
        assert raw.set(b"myapp:@tags:myapp:said:1", b"a") == b"STORED"
        assert raw.set(b"myapp:said:1", b"x") == b"STORED"
