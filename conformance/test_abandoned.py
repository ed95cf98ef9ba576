"""Misses without a `set`: what they cost the clients that store, for a few seconds. `abandoned.py` takes the figures of the
documentation."""

import pytest

import abandoned
from crowd import HELD_ENDS

pytestmark = pytest.mark.only_cattlegrid


def test_misses_that_nobody_fills_cost_fewer_fills_by_connection(binary):
    # Fixed, so that a client that is not scheduled for seconds neither loses its own miss nor teaches the server a long lease.
    terms = 'lease = "500ms"\nfill_window = "60s"\n'
    seconds = 6
    while abandoned.dropped_share(key := abandoned.run(binary, "readers", "key", seconds, terms=terms))[1] < 0.1:
        # On a slow machine it takes longer until enough keys were deleted.
        seconds *= 2
        assert seconds < 60, f"hardly anything was dropped, the load is no test: {key}"
    connection = abandoned.run(binary, "readers", "connection", seconds, terms=terms)
    assert connection["fills_dropped_abandoned"] == 0
    assert abandoned.dropped_share(connection)[0] < abandoned.dropped_share(key)[0]
    for counts in (key, connection):
        assert counts["held"] == sum(counts[name] for name in HELD_ENDS), counts
