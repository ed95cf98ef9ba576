"""Invalidation by name with an unmodified client: tags, cascades, rolling flushes, and what a value computed before an
invalidation is worth after it."""

import json

import pytest
from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheClientError

from crowd import HOLDS, show, until_held, write_rules
from harness import wait_until

pytestmark = pytest.mark.only_cattlegrid

# Some connections here only look: what they miss they never store.
SHOP = (
    '[[rule]]\nmatch = "prodLastWatched:{user}:{product}"\ntags = ["user:{user}", "product:{product}"]\n'
    'owner = "connection"\n'
    '[[rule]]\nmatch = "shoppingbasket:{user}"\ntags = ["user:{user}"]\nowner = "connection"\n'
    '[[rule]]\nmatch = "page:{id}"\ntags = ["page:{id}"]\ngrace = "60s"\n' + HOLDS + "\n"
    '[[rule]]\nmatch = "fresh:{id}"\ntags = ["fresh:{id}"]\n' + HOLDS + "\n"
    '[[cascade]]\non = ["delete", "set"]\nmatch = "user:{u}"\nbump = ["user:{u}"]\n'
    '[[cascade]]\non = ["incr"]\nmatch = "ns:{n}"\nbump = ["user:{n}"]\n'
    '[[cascade]]\non = ["touch"]\nmatch = "touched:{n}"\nbump = ["user:{n}"]\n'
    '[[cascade]]\non = ["flush"]\nbump = ["everything"]\n'
)


@pytest.fixture
def shop(start, open_dir):
    """Starts a server with the shop's rules."""

    def run(*args, rules=SHOP):
        return start("--config", write_rules(open_dir, rules), *args)

    return run


def client(server):
    return Client(("127.0.0.1", server.port), timeout=40, connect_timeout=40, default_noreply=False)


PRODUCTS = (11, 12, 13, 14, 54929873)
USERS = (12543, 7, 8)


def fill(c):
    """Five last watched products and a basket for each user, after a look: soon after the server's start a value whose miss it does
    not know is not stored if it was invalidated."""

    def store(key, value):
        c.get(key)
        assert c.set(key, value.encode())

    for user in USERS:
        for product in PRODUCTS:
            store(f"prodLastWatched:{user}:{product}", f"{user} saw {product}")
        store(f"shoppingbasket:{user}", f"basket of {user}")
    assert c.set("other", b"untouched")


def present(server):
    """The shop's keys that are there."""
    c = client(server)
    keys = [f"prodLastWatched:{u}:{p}" for u in USERS for p in PRODUCTS] + [f"shoppingbasket:{u}" for u in USERS]
    found = c.get_many(keys + ["other"])
    c.close()
    assert found.pop("other") == b"untouched"
    return set(found)


def test_a_user_and_a_product(shop):
    server = shop()
    c = client(server)
    fill(c)
    assert len(present(server)) == 18
    assert c.delete("@tag:user:12543") is True
    left = present(server)
    assert len(left) == 12 and not any(":12543" in key for key in left), "his six keys, and no other"
    assert {f"prodLastWatched:{u}:54929873" for u in (7, 8)} <= left
    assert c.delete("@tag:product:54929873") is True
    assert present(server) == {key for key in left if not key.endswith(":54929873")}
    fill(c)
    assert len(present(server)) == 18, "what is stored after counts"
    assert c.delete("@tag:of-no-item") is True


def test_several_at_once_and_numbers(shop):
    server = shop()
    c = client(server)
    fill(c)
    numbers = c.get_many(["@bump:user:7", "@bump:product:11"])
    assert len(numbers) == 2 and int(numbers["@bump:user:7"]) < int(numbers["@bump:product:11"])
    left = present(server)
    assert left == {f"prodLastWatched:{u}:{p}" for u in (12543, 8) for p in PRODUCTS if p != 11} | {
        "shoppingbasket:12543",
        "shoppingbasket:8",
    }
    number = c.incr("@tag:user:8", 1)
    assert number > int(numbers["@bump:product:11"])
    last, since, estimate = c.get("@tag:user:8").split()
    assert int(last) == number and int(since) >= 0 and 0 <= float(estimate) <= 1
    assert not any(":8" in key and "54929873" not in key for key in present(server))
    # Whatever else asks for the number: it does not change it.
    assert c.get("@tag:user:8").split()[0] == c.gets("@tag:user:8")[0].split()[0] == last
    assert c.get_many(["other", "@tag:user:8", "absent"])["other"] == b"untouched"


def test_why(shop):
    server = shop()
    c = client(server)
    fill(c)
    why = json.loads(c.get("@why:prodLastWatched:7:11"))
    assert why["rule"]["match"] == "prodLastWatched:{user}:{product}"
    assert [tag["tag"] for tag in why["tags"]] == ["user:7", "product:11"]
    assert why["item"]["standing"] == "fresh" and why["lease"] is None
    c.delete("@tag:user:7")
    why = json.loads(c.get("@why:prodLastWatched:7:11"))
    assert why["item"] is None and why["tags"][0]["hard"] > 0
    assert json.loads(c.get("@why:other"))["rule"] is None
    for key in ('quote"d', "back\\slash", "é", "x" * 240):
        assert json.loads(c.get(f"@why:{key}".encode()))["item"] is None
    with server.raw() as raw:
        raw.send(b"get page:5\r\n")
        assert raw.line() == b"END"
        lease = json.loads(c.get("@why:page:5"))["lease"]
        assert lease["kind"] == "absent" and lease["waiters"] == 0 and lease["holder"]


def ask(raw, line):
    raw.send(line + b"\r\n")
    return raw.line()


def test_meta_commands(shop):
    server = shop()
    c = client(server)
    fill(c)
    with server.raw() as raw:
        assert ask(raw, b"md user:7 G") == b"HD"
        assert not any(":7:" in key for key in present(server))
        assert ask(raw, b"ma user:8 G v").startswith(b"VA ")
        number = raw.line()
        assert ask(raw, b"mg user:8 G v").startswith(b"VA ")
        assert raw.line().split()[0] == number
        assert {key for key in present(server)} == {f"prodLastWatched:12543:{p}" for p in PRODUCTS} | {"shoppingbasket:12543"}
        # Tags that a client names, also for keys without a rule.
        assert ask(raw, b"ms free 1 T60 Gcolour:red,a%2Cb\r\nx") == b"HD"
        assert ask(raw, b"ms page:9 1 Gcolour:red\r\ny") == b"HD"
        assert c.get_many(["free", "page:9"]) == {"free": b"x", "page:9": b"y"}
        assert raw.ask(b"md colour:red G q\r\n") == b""
        assert c.get("free") is None and c.get("page:9") is None
        assert ask(raw, b"ms free 1 Ga%2Cb\r\nx") == b"HD" and c.delete("@tag:a,b") and c.get("free") is None


def test_a_soft_bump_under_grace(shop):
    server = shop()
    a, b = client(server), client(server)
    assert a.set("page:1", b"old") and a.set("fresh:1", b"old")
    with server.raw() as raw:
        assert ask(raw, b"md page:1 G I") == b"HD"
        assert ask(raw, b"md fresh:1 G I") == b"HD"
    assert a.get("page:1") is None, "one computes"
    assert [b.get("page:1") for _ in range(3)] == [b"old"] * 3, "the others get the old value"
    assert a.set("page:1", b"new") and b.get("page:1") == b"new"
    assert b.get("fresh:1") is None, "without grace it is a miss"


def test_cascades(shop):
    server = shop()
    c = client(server)
    for act in (
        lambda: c.delete("user:7") is False,  # also when there is no such key
        lambda: c.set("user:7", b"changed"),
        lambda: c.delete("user:7"),
        lambda: c.set("ns:7", b"1") and c.incr("ns:7", 1) == 2,
        lambda: c.set("touched:7", b"1") and c.touch("touched:7", 100),
    ):
        fill(c)
        assert len(present(server)) == 18
        assert act()
        left = present(server)
        assert len(left) == 12 and not any(":7" in key for key in left)
    with server.raw() as raw:
        assert ask(raw, b"ms tagged 1 Geverything\r\nx") == b"HD"
    before = int(c.get("@tag:everything").split()[0])
    assert c.flush_all()
    assert int(c.get("@tag:everything").split()[0]) > before and c.get("tagged") is None


def test_errors(shop):
    server = shop("-F")
    c = client(server)
    with server.raw() as raw:
        nine = b",".join(b"t%d" % n for n in range(9))
        for tags in (nine, b"x" * 201, b"a,,b", b""):
            assert ask(raw, b"ms free 1 G%s\r\nx" % tags).startswith(b"CLIENT_ERROR invalid tag"), tags
            assert raw.get(b"free") is None
        assert ask(raw, b"ms free 1 G%s\r\nx" % b",".join(b"t%d" % n for n in range(8))) == b"HD"
    for act in (
        lambda: c.get("@nothing"),
        lambda: c.get("@tagg:x"),
        lambda: c.set("@tag:x", b"v"),
        lambda: c.touch("@tag:x", 1),
        lambda: c.decr("@tag:x", 1),
        lambda: c.delete("@bump:x"),
        lambda: c.get("@tag:" + "x" * 201),
        lambda: c.get("@flush:0"),
        lambda: c.get("@flush:60"),  # -F
    ):
        with pytest.raises(MemcacheClientError):
            act()
        assert c.set("still", b"there") and c.get("still") == b"there"


def test_without_rules_the_prefix_means_nothing(start):
    c = client(start())
    assert c.set("@tag:x", b"v") and c.get("@tag:x") == b"v" and c.delete("@tag:x") and c.get("@why:x") is None


def test_a_rolling_flush(shop, capsys):
    server = shop("-o", "debugtime", "-m", 64)
    c = client(server)
    keys = [f"plain:{n}" for n in range(2000)] + [f"shoppingbasket:{n}" for n in range(2000)]
    assert c.set_many({key: b"old" for key in keys}) == []
    assert int(c.get("@flush:60")) > 0

    def old():
        found = {}
        for begin in range(0, len(keys), 100):
            found.update(c.get_many(keys[begin : begin + 100]))
        return [key for key, value in found.items() if value == b"old"]

    shares = [len(old()) / len(keys)]
    assert c.set("plain:0", b"new") and c.delete("@tag:user:5")
    for _ in range(4):
        with server.raw() as raw:
            assert ask(raw, b"debugtime 15") == b"OK"
        shares.append(len(old()) / len(keys))
    show(capsys, "rolling flush over 60 s, share of old values served every 15 s: " + " ".join(f"{s:.3f}" for s in shares))
    assert shares[0] > 0.8, "it has just begun"
    for at, share in enumerate(shares[1:4], 1):
        # It may be some seconds later than the clock was set, on a slow machine.
        assert 1 - at / 4 - 0.2 < share < 1 - at / 4 + 0.04
    assert shares[4] == 0
    assert c.get("plain:0") == b"new", "what was stored since stays"
    assert c.set("shoppingbasket:5", b"new") and c.get("shoppingbasket:5") == b"new"


def test_computed_before_a_bump_stored_after_it(shop):
    server = shop()
    a, b, c = client(server), client(server), client(server)
    # With a tag only.
    assert a.get("shoppingbasket:1") is None
    assert b.delete("@tag:user:1")
    assert a.set("shoppingbasket:1", b"old") is True
    assert c.get("shoppingbasket:1") is None
    # Under a lease: a waiter computes again, and the old holder's value is not stored.
    assert a.get("fresh:1") is None
    with server.raw(40) as waiter:
        waiter.send(b"get fresh:1\r\n")
        until_held(server, 1)
        assert b.delete("@tag:fresh:1")
        assert waiter.line() == b"END", "one new lease"
        assert a.set("fresh:1", b"old") is True
        assert json.loads(c.get("@why:fresh:1"))["item"] is None


def test_computed_before_a_soft_bump_stored_after_it(shop):
    server = shop(rules=SHOP.replace(HOLDS, HOLDS + 'owner = "connection"\n'))
    a, b, c = client(server), client(server), client(server)
    assert a.get("page:1") is None
    with server.raw(40) as waiter:
        waiter.send(b"get page:1\r\n")
        until_held(server, 1)
        assert ask(server.raw(), b"md page:1 G I") == b"HD"
        assert waiter.line() == b"END", "one new lease"
        assert a.set("page:1", b"old") is True
        assert [b.get("page:1"), c.get("page:1")] == [b"old", b"old"], "stale: served while the new one is computed"
        assert waiter.set(b"page:1", b"new") == b"STORED"
        assert b.get("page:1") == b"new"
    assert wait_until("no lease", lambda: json.loads(c.get("@why:page:1"))["lease"] is None, 40)


def test_an_old_value_is_served_for_the_grace_after_a_soft_invalidation(start, open_dir):
    """With a time to live of an hour, none at all, and by key and by tag; a touch moves both ends."""
    rules = '[[rule]]\nmatch = "page:{id}"\nhold = "0ms"\ngrace = "20s"\nlease = "10m"\ntags = ["page:{id}"]\n'
    server = start("--config", write_rules(open_dir, rules), "-o", "debugtime")
    with server.raw() as a, server.raw() as b:

        def served(key):
            """For how many times ten seconds `b` is served the old value while `a` computes."""
            assert a.get(key) is None
            for tens in range(10):
                if b.get(key) is None:
                    return tens
                b.send(b"debugtime 10\r\n")
                assert b.line() == b"OK"
            return 10

        cases = [(b"md page:%d I\r\n", 0), (b"md page:%d I\r\n", 3600), (b"md page:%d G I\r\n", 0), (b"md page:%d G I\r\n", 3600)]
        for n, (invalidate, exptime) in enumerate(cases):
            key = b"page:%d" % n
            assert a.set(key, b"old", exptime=exptime) == b"STORED"
            a.send(invalidate % n)
            assert a.line() == b"HD"
            assert 1 <= served(key) <= 2
        assert a.set(b"page:9", b"old", exptime=3600) == b"STORED"
        b.send(b"touch page:9 1\r\ndebugtime 1\r\n")
        assert (b.line(), b.line()) == (b"TOUCHED", b"OK")
        assert served(b"page:9") <= 2


def test_a_get_after_a_bump_of_a_named_tag_is_not_given_what_was_computed_before_it(start, open_dir):
    rules = '[[rule]]\nmatch = "h:{id}"\nhold = "60s"\nlease = "30s"\n'
    server = start("--config", write_rules(open_dir, rules), "-o", "debugtime")
    with server.raw(40) as a, server.raw(40) as b, server.raw(40) as c:
        assert a.get(b"h:1") is None
        c.send(b"md colour G\r\n")
        assert c.line() == b"HD"
        b.send(b"get h:1\r\n")
        wait_until("b is held", lambda: c.stats("cattlegrid")["held"] == "1")
        a.send(b"ms h:1 3 T60 Gcolour\r\nold\r\n")
        assert a.line() == b"HD"
        assert b.line() == b"END"
        # It computes now, and c waits until its time is up.
        c.send(b"get h:1\r\n")
        wait_until("c is held", lambda: a.stats("cattlegrid")["held"] == "1")
        a.send(b"debugtime 31\r\n")
        assert a.line() == b"OK" and c.line() == b"END"
