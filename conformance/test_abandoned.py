"""Misses without a `set`: what they cost the clients that store, for a few seconds. `abandoned.py` takes the figures of the
documentation."""

import pytest

import abandoned
from crowd import HELD_ENDS

pytestmark = pytest.mark.only_cattlegrid


def test_misses_that_nobody_fills_cost_fewer_fills_by_connection(binary):
    seconds = 6
    key = abandoned.run(binary, "readers", "key", seconds)
    connection = abandoned.run(binary, "readers", "connection", seconds)
    assert key["fills_dropped_abandoned"] > 0, "nothing was dropped: the load is no test"
    assert connection["fills_dropped_abandoned"] == 0
    assert abandoned.dropped_share(connection)[0] < abandoned.dropped_share(key)[0]
    for counts in (key, connection):
        assert counts["held"] == sum(counts[name] for name in HELD_ENDS), counts
