"""The options of rules that renew values do what they are for, compared with memcached and with the same rule without the option. A few seconds of three
of the loads; `refresh_loads.py` takes the figures of the documentation. The margins are wide: the tests run beside compilers and other tests."""

import pytest

import refresh_loads

pytestmark = pytest.mark.only_cattlegrid


def results(binary, name, targets, **load):
    """Of the row with these targets and with this changed in its load."""
    row = refresh_loads.ROWS[name]
    got = refresh_loads.all_targets(binary, {**row, "load": {**row["load"], **load}, "targets": targets}, 1)
    print(got)
    return got


def counted(result, name):
    """A line of `stats rules`."""
    return result["rule"].get(name, 0)


def test_keys_stored_together_do_not_expire_together(binary):
    hold = refresh_loads.HOLD
    targets = {"without": hold, "with": hold + 'ttl_jitter = "80%"\n'}
    # Of 6 s 0 to 4 are taken off: a third of the keys expires in one second at most, those included that were stored again. Few keys and
    # few gets, so that a busy machine reads nearly all keys in half a second.
    got = results(binary, "jitter", targets, keys=60, threads=4, think=0.02, ttl=6, seconds=7.5)
    most = {target: of["most_in_half_s"] for target, of in got.items()}
    assert most["with"] < 0.7 * most["without"] and most["with"] < 0.7 * most["memcached"], got
    assert counted(got["with"], "ttl_shortened") > 30 and not counted(got["without"], "ttl_shortened"), got


def test_gets_that_wait_get_the_new_value(binary):
    grace = 'grace = "30s"\n'
    # With so long a wait a busy machine changes nothing.
    got = results(binary, "wait-bursts", {"without": grace, "with": grace + 'wait = "5s"\n'}, keys=10, burst=0.3, seconds=9, count_from=3.1)
    assert counted(got["without"], "stale_served"), f"no get met a computation, the load is no test: {got}"
    assert counted(got["with"], "held_filled"), got
    assert got["with"]["outdated"] < 0.5 * got["without"]["outdated"], got
    # Neither of them computes what another client does.
    assert max(got["with"]["computed"], got["without"]["computed"]) < 0.7 * got["memcached"]["computed"], got


def test_old_values_while_the_backend_is_down(binary):
    terms = refresh_loads.HOLD + 'grace = "1s"\nlease = "500ms"\n'
    got = results(
        binary, "error", {"without": terms, "with": terms + 'grace_on_error = "1h"\n'}, keys=10, ttl=1, threads=8, seconds=9.5, down=[1.5, 9]
    )
    for other in ("without", "memcached"):
        assert got["with"]["failed"] < 0.6 * got[other]["failed"], got
        assert got["with"]["attempts"] < 0.6 * got[other]["attempts"], got
        assert got["with"]["served"] > got[other]["served"] + 0.1, got
    assert counted(got["with"], "stale_on_error") and not counted(got["without"], "stale_on_error"), got
