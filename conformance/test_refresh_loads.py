"""The options of rules that renew values do what they are for, compared with memcached and with the same rule without the option. A few seconds of two
of the loads; `refresh_loads.py` takes the figures of the documentation. The margins are wide: the tests run beside compilers and other tests."""

import time

import pytest

import refresh_loads
from crowd import write_rules

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


@pytest.mark.parametrize("jitter", [0, 80])
def test_keys_stored_together_do_not_expire_together(start, open_dir, jitter):
    """By the times that the server tells, so that no busy machine changes them."""
    terms = f'ttl_jitter = "{jitter}%"\n' if jitter else ""
    server = start("--config", write_rules(open_dir, f'[[rule]]\nmatch = "key:{{id}}"\n{refresh_loads.HOLD}{terms}'))
    expiries = []
    with server.raw(60) as c:
        for n in range(200):
            assert c.set(b"key:%d" % n, b"x", exptime=1000) == b"STORED"
            c.send(b"mg key:%d t\r\n" % n)
            expiries.append(time.monotonic() + int(c.line().removeprefix(b"HD t")))
        shortened = int(server.stats("rules")["1:ttl_shortened"])
    # Of 1000 s up to 800 are taken off.
    assert max(expiries) - min(expiries) < (1000 if jitter else 100)
    most = refresh_loads.most_within(sorted(expiries), 100)
    if jitter:
        assert most < 80 and shortened > 150, (most, shortened)
    else:
        assert most == 200 and shortened == 0, (most, shortened)


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
