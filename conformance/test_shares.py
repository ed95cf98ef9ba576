"""Shares: two applications with one server, of which one floods; bounds, their statistics and their reload."""

import os
import random
import signal
from contextlib import closing

import pytest
from pymemcache.client.base import Client

from admin import Admin
from harness import wait_until

pytestmark = pytest.mark.only_cattlegrid

MEBIBYTE = 1 << 20


def rules(path, *shares):
    text = "".join(
        f'[[share]]\nprefix = "{prefix}"\nat_least = "{least}%"\nat_most = "{most}%"\n' for prefix, least, most in shares
    )
    with open(path, "w") as f:
        f.write(text)
    return path


@pytest.fixture
def config(open_dir):
    return os.path.join(open_dir, "rules.toml")


class Shop:
    """An application that reads through the cache: of its pages few are popular."""

    def __init__(self, server, pages, seed=7):
        self.client = Client(server.address, no_delay=True)
        self.random = random.Random(seed)
        self.pages = pages

    def gets(self, count):
        """Gets in batches, each miss computed and stored. Returns the share of hits."""
        hits = 0
        for _ in range(count // 50):
            keys = [f"shop:{int(self.pages * self.random.random() ** 3)}" for _ in range(50)]
            found = self.client.get_many(keys)
            hits += sum(key in found for key in keys)
            missing = {key: b"p" * 400 for key in keys if key not in found}
            if missing:
                self.client.set_many(missing, noreply=True)
        return hits / count


def flood(server, name, start, count, length=400):
    with closing(Client(server.address, no_delay=True)) as client:
        for n in range(start, start + count, 100):
            client.set_many({f"{name}:{i}": b"f" * length for i in range(n, n + 100)}, noreply=True)
        client.version()


@pytest.mark.parametrize("options", [("-t", "1"), ("-t", "4")])
def test_a_flood_costs_the_other_no_hits(start, config, options):
    """The working set of the shop, 10 MiB of 32, fits into what it has at least: with the flood beside it has as many hits."""
    ratios = {}
    for name, shares in (("share", (("shop:", 40, 100),)), ("none", ())):
        server = start("-m", "32", *options, "--config", rules(config, *shares))
        shop = Shop(server, pages=20_000)
        shop.gets(60_000)
        alone = shop.gets(20_000)
        ratio = []
        for step in range(10):
            flood(server, "crawler", step * 15_000, 15_000)
            ratio.append(shop.gets(2_000))
        ratios[name] = alone, sum(ratio) / len(ratio)
        shop.client.close()
    alone, beside = ratios["share"]
    assert beside > alone - 0.01, ratios
    # Without shares this flood is felt: the test shows something.
    assert ratios["none"][1] < beside - 0.03, ratios


def test_a_share_keeps_to_its_most(start, config):
    """Also where there is room; large values, and an object as well."""
    server = start("-m", "64", "-t", "4", "--config", rules(config, ("big:", 0, 10), ("small:", 0, 5)))
    for name, length, count in (("big", 100_000, 400), ("small", 300, 40_000)):
        flood(server, name, 0, count, length)
    with server.raw() as raw, closing(Client(server.address, no_delay=True)) as client:
        stats = raw.stats("shares")
        for number, prefix in ((1, "big:"), (2, "small:")):
            of = lambda name, number=number: stats[f"{number}:{name}"]
            assert of("prefix") == prefix
            most, held = int(of("at_most_bytes")), int(of("bytes"))
            assert most // 2 < held < most * 1.2, (prefix, held, most)
            assert int(of("evictions")) > 0
        # What was stored last is there, and keys of no share were left alone.
        assert client.get("big:399") and client.get("small:39999")
        assert stats["0:evictions"] == "0" and "0:prefix" not in stats
        client.set("other", "x", noreply=False)
        assert int(raw.stats("shares")["0:items"]) == 1


def test_objects_count_by_their_keys(start, config):
    path = rules(config, ("shop:", 0, 50))
    with open(path, "a") as f:
        f.write('[server]\nprefixes = ["shop:"]\n[objects]\n')
    server = start("--config", path)
    with server.raw() as raw:
        items = lambda: [int(raw.stats("shares")[f"{number}:items"]) for number in (1, 0)]
        raw.get(b"counter:add:alice:1")
        assert items() == [0, 1]
        raw.get(b"shop:counter:add:alice:1")
        assert items() == [1, 1]
        raw.get(b"counter:add:shop%3Abob:1")
        assert items() == [2, 1]


def test_bounds_are_reloaded(start, config):
    server = start("-m", "32", "--config", rules(config, ("shop:", 0, 100)))
    flood(server, "shop", 0, 40_000)
    held = lambda: int(server.stats("shares")["1:bytes"])
    assert held() > 15 * MEBIBYTE
    rules(config, ("shop:", 0, 25), ("more:", 0, 10))
    server.signal(signal.SIGHUP)
    # It shrinks without a request.
    wait_until("it shrinks", lambda: held() < 9 * MEBIBYTE)
    wait_until("the log says it", lambda: 'share "more:" is new: needs a restart' in server.log())
    assert "shares changed: shop: (at_most: \"100%\" -> \"25%\")" in server.log()
    assert "2:prefix" not in server.stats("shares")
    rules(config, ("shop:", 30, 25))
    server.signal(signal.SIGHUP)
    wait_until("it is refused", lambda: "is more than at_most" in server.log())
    assert int(server.stats("shares")["1:at_most_bytes"]) < 9 * MEBIBYTE


def test_a_smaller_memory_has_smaller_shares(start, config):
    server = start("-m", "64", "--config", rules(config, ("shop:", 50, 60)))
    most = lambda: int(server.stats("shares")["1:at_most_bytes"])
    before = most()
    with server.raw() as raw:
        raw.send(b"cache_memlimit 32\r\n")
        assert raw.line() == b"OK"
    assert most() < before * 0.6


def test_monitoring_has_them(start, config):
    admin = Admin()
    server = start("--config", rules(config, ("shop:", 20, 60)), *admin.options())
    flood(server, "shop", 0, 1_000)
    stats = server.stats("shares")
    series = admin.series()
    assert series['cattlegrid_share_items{share="1"}'] == stats["1:items"] == "1000"
    assert any('prefix="shop:"' in name for name in series)
    [shop, others] = admin.json("/shares")["shares"]
    assert (shop["prefix"], str(shop["bytes"]), others["items"]) == ("shop:", stats["1:bytes"], 0)


def test_nothing_is_said_without_shares(start, config):
    server = start("--config", rules(config))
    assert server.stats("shares") == {}
    assert start().stats("shares") == {}
