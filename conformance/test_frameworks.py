"""Unmodified frameworks, each with its own defaults, on the server under the rule of README.md and on memcached without one: computed values
are never more than on memcached, after deletes never more than twice as many. `framework_loads.py` prints the figures.
"""

import concurrent.futures

import framework_loads
import pytest
from crowd import HELD_ENDS, rule, show, until_held, write_rules
from framework_loads import FRAMEWORKS, steps

pytestmark = [pytest.mark.only_cattlegrid, pytest.mark.timeout(600)]

AT_A_TIME = 3


@pytest.fixture(scope="module")
def measured(request, binary):
    """The results of a framework. The selected ones run a few at a time, since they wait more than they work; a test that is repeated
    measures again."""
    pool = concurrent.futures.ThreadPoolExecutor(AT_A_TIME)
    reference = request.config.getoption("--reference-bin")

    def submit(name):
        return pool.submit(framework_loads.both, name, binary, reference)

    selected = [item.callspec.params["name"] for item in request.session.items if item.name.startswith("test_computations[")]
    running = {name: submit(name) for name in selected}
    yield lambda name: (running.pop(name, None) or submit(name)).result()
    pool.shutdown(cancel_futures=True)


def most(framework, step, theirs):
    """Computed values at most."""
    # Where the framework lets one client compute anyway, the numbers are small: those of the expiries that fall into the step, and of
    # the lists that were asked for before the first was stored.
    if framework.own_lock:
        return 2 * theirs + 2
    return 2 * theirs if "delete" in step else theirs


TIME_LIMITS = ("gomemcache", "memjs")
"""Frameworks whose clients wait for 100 and 500 ms: an error where the machine is busy."""


def late(rules):
    """Clients that the server did not keep waiting for the whole computation, because that, or they, had no processor for long: holds of 400
    ms that have run out, leases that have passed on, connections that were closed. Each may compute, where another one has."""
    return sum(int(rules[f"total:{name}"]) for name in HELD_ENDS if name not in ("held_filled", "held_own_write"))


def not_held(rules):
    """Gets that the server answered as misses without holding them: of the client that computes, over the connection that others of its
    process share, and those for which a hold of 400 ms would not do, since computing has taken longer. On a busy machine a list of keys is
    computed twice so, and once on memcached, whose clients have come one after the other."""
    return sum(int(rules[f"total:{name}"]) for name in ("reentries", "busy_prediction", "last_free_kept"))


def is_herd(theirs, ours, rules):
    """Whether the clients of memcached came together. On a busy machine one after the other may come when the value is there."""
    alone = max(1, ours["cold"]["computed"] - late(rules))
    return theirs["cold"]["computed"] >= 4 * alone


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_computations(measured, capsys, name):
    framework = FRAMEWORKS[name]
    for _ in range(4):
        theirs, ours, rules = measured(name)
        if framework.own_lock or is_herd(theirs, ours, rules):
            break
    ends = {end: rules[f"total:{end}"] for end in HELD_ENDS if rules[f"total:{end}"] != "0"}
    show(capsys, f"{name}: {late(rules)} clients late, {not_held(rules)} not held, {ends}")
    for step in (step["name"] for step in steps(framework)):
        show(capsys, f"{name}, {step}: {framework_loads.row(theirs[step], ours[step])}")
    for step in (step["name"] for step in steps(framework)):
        computed = ours[step]["computed"]
        most_computed = most(framework, step, theirs[step]["computed"]) + late(rules) + not_held(rules)
        assert computed <= most_computed, (step, computed, theirs[step]["computed"], late(rules), not_held(rules))
        errors = [error for error in ours[step]["errors"] if name not in TIME_LIMITS or "wrong" in error]
        assert not errors, (step, errors[:3])
    if not framework.own_lock:
        assert is_herd(theirs, ours, rules), "no herd, the load is no test"
    assert int(rules["total:leases"]) > 0, "no key is under the rule"


def test_gets_of_one_connection_wait_together(start, open_dir):
    """Clients that share a connection, as Node's, send many gets: each is held at once, not when those before it are answered."""
    server = start("--config", write_rules(open_dir, rule()))
    count = 500
    gets = [b"get page:%d\r\n" % n for n in range(count)]
    with server.raw() as first, server.raw() as second:
        first.send(b"".join(gets))
        assert all(first.line() == b"END" for _ in range(count))
        second.send(b"".join(gets))
        until_held(server, count)
        first.send(b"".join(b"set page:%d 0 60 1\r\n%d\r\n" % (n, n % 10) for n in range(count)))
        for n in range(count):
            assert [second.line() for _ in range(3)] == [b"VALUE page:%d 0 1" % n, b"%d" % (n % 10), b"END"]
