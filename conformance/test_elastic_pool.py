"""Pools that open and close connections while their threads compute: nothing from before a delete is served."""

import pytest

import elastic_pool
from crowd import write_rules

pytestmark = pytest.mark.only_cattlegrid


def test_a_pool_that_closes_connections_serves_nothing_old(start, open_dir):
    # What is learned from its computations would be 2 s: a thread that is later than that with its value is none of this.
    server = start("--config", write_rules(open_dir, elastic_pool.RULES + 'fill_window = "60s"\n'))
    hits, stale, fills = elastic_pool.run(server, 4, 16)
    print(f"{hits} hits, {fills} fills")
    assert hits > 20 and fills > 100
    assert stale == 0
