"""Pools that open and close connections while their threads compute: nothing from before a delete is served if the rule says so, and
little of it otherwise."""

import pytest

import elastic_pool
from crowd import write_rules

pytestmark = pytest.mark.only_cattlegrid


def test_a_pool_that_closes_connections_serves_nothing_old(start, open_dir):
    # What is learned from its computations would be 2 s: a thread that is later than that with its value is none of this.
    strict = 'fill_window = "60s"\nambiguous = "drop"\n'
    server = start("--config", write_rules(open_dir, elastic_pool.RULES + strict))
    hits, stale, fills = elastic_pool.run(server, 4, 16)
    print(f"{hits} hits, {fills} fills")
    assert hits > 20 and fills > 100
    assert stale == 0


def test_a_pool_that_closes_connections_is_served_fewer_old_values_than_by_memcached(start, open_dir):
    # Two hundred deletes a second: with memcached every third hit is old.
    server = start("--config", write_rules(open_dir, elastic_pool.RULES))
    hits, stale, fills = elastic_pool.run(server, 4, 16)
    print(f"{stale} of {hits} hits were old, {fills} fills")
    assert hits > 20 and fills > 100
    assert int(server.stats("rules")["1:fills_provisional"]) > 0
    # They are gone within four times the usual time.
    with server.raw() as connection:
        connection.send(b"delete page:0\r\n")
        assert connection.line() in (b"DELETED", b"NOT_FOUND")
        assert connection.get(b"page:0") is None
