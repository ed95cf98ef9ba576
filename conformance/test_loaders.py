"""Values that loaders compute, as clients see them: one job for each key, for any number of clients.

What a worker does is decided by the key (`data/loaders/pages.py`), and jobs wait at a gate where an order must be certain. Terms are
long wherever a test is not about time.
"""

import collections
import json
import sys
import threading
import time

import pytest
from pymemcache.client.base import Client

import harness
from crowd import Crowd, percentiles, show, until_held
from harness import wait_until
from loaders import LONG, ask, by_default, meta, of_loader, of_rule, rules, value
from test_herd import plain, raws, together

pytestmark = pytest.mark.only_cattlegrid


# One job for each key


def waits(scene):
    """The histogram of the first rule: {most milliseconds, or None: count}."""
    found = {name: int(count) for name, count in scene.rule_stats().items() if name.startswith("waits_")}
    return {None if name == "waits_longer" else int(name.removeprefix("waits_to_").removesuffix("ms")): count for name, count in found.items()}


@pytest.mark.parametrize("ms, runs", [(300, 1), (400, 5)])
def test_five_hundred_clients_one_job(scene, capsys, ms, runs):
    """With the time of the requirement, and five times with 400 ms: the histogram has a line at 500 ms, 100 ms later."""
    scene.write("delay", str(ms / 1000))
    server = scene.start(None, "-c", 2000)
    with server.raw() as c:
        assert c.get(b"page:warm") == b"warm=0"
    shares, late = [], []
    for run in range(runs):
        before, held_before = waits(scene), int(scene.rule_stats()["held"])
        with Crowd(server, 500) as crowd:
            begun = time.monotonic()
            crowd.send(b"get page:%d\r\n" % run)
            replies = crowd.replies(500)
        assert {reply for _, reply, _ in replies} == {b"VALUE page:%d 0 3\r\n%d=0\r\nEND\r\n" % (run, run)}
        assert scene.keys().count(f"page:{run}") == 1
        waited = {most: count - before[most] for most, count in waits(scene).items()}
        # A get that comes after the job, on a busy machine, does not wait.
        held = int(scene.rule_stats()["held"]) - held_before
        assert 1 <= sum(waited.values()) == held <= 500
        shares.append(sum(count for most, count in waited.items() if most is not None and most <= 500) / held)
        late.append(percentiles([at - begun for _, _, at in replies])[1] * 1000 - ms)
    show(
        capsys,
        f"500 clients, one job of {ms} ms: share of waits up to 500 ms by the server's histogram {sorted(shares)}, "
        f"p99 of the clients' replies after the job's time {[round(x) for x in sorted(late)]} ms",
    )
    assert sorted(late)[runs // 2] < harness.PROMPT * 1000
    stats = scene.check_sums()
    assert stats["jobs"] == stats["values"] == runs + 1


def test_five_hundred_threads_of_pymemcache(scene):
    harness.allow_files(2000)
    scene.write("delay", "0.3")
    server = scene.start(None, "-c", 2000)
    clients = [plain(server) for _ in range(500)]
    assert set(together(500, lambda n: clients[n].get("page:1"))) == {b"1=0"}
    assert scene.keys() == ["page:1"]
    for client in clients:
        client.close()


def test_two_hundred_keys_at_once(scene):
    server = scene.start_wide(rules(max=4, load=2))
    keys = [b"page:%d" % n for n in range(200)]
    with Crowd(server, 200) as crowd:
        crowd.send(lambda place: b"get %s\r\n" % keys[place])
        replies = crowd.replies(200)
    assert {reply for _, reply, _ in replies} == {b"VALUE page:%d 0 %d\r\n%d=0\r\nEND\r\n" % (n, len(b"%d=0" % n), n) for n in range(200)}
    assert sorted(scene.keys()) == sorted(key.decode() for key in keys)
    stats = scene.check_sums()
    assert stats["jobs"] == stats["values"] == 200
    assert len({job["pid"] for job in scene.jobs()}) <= 4
    assert stats["spawned"] <= 4


def test_one_get_of_fifty_keys_is_one_call(scene):
    scene.write("batches", "50")
    server = scene.start_wide(rules(batch=50, max=1))
    keys = [f"page:{n}" for n in range(50)]
    with server.raw() as c:
        c.send(("get " + " ".join(keys) + "\r\n").encode())
        text = c.until(b"END\r\n")
    assert text == b"".join(b"VALUE page:%d 0 %d\r\n%d=0\r\n" % (n, len(b"%d=0" % n), n) for n in range(50)) + b"END\r\n"
    assert scene.calls() == [50]
    assert scene.keys() == keys


def test_batches_are_as_large_as_both_sides_allow(scene):
    """The loader takes 50, the rule file allows 16."""
    scene.write("batches", "50")
    server = scene.start_wide(rules(batch=16, max=1))
    assert len(plain(server).get_many([f"page:{n}" for n in range(100)])) == 100
    calls = scene.calls()
    assert sum(calls) == 100 and max(calls) == 16, calls


def test_a_batch_with_an_error_and_a_missing_value(scene):
    scene.write("batches", "50")
    server = scene.start(rules(batch=50, max=1))
    with server.raw() as c:
        c.send(b"get page:1 do:missing:60:1 page:2\r\n")
        assert c.until(b"END\r\n") == b"VALUE page:1 0 3\r\n1=0\r\nVALUE page:2 0 3\r\n2=0\r\nEND\r\n"
    stats = scene.check_sums()
    assert (stats["values"], stats["not_found"]) == (2, 1)


def test_many_clients_and_keys_are_a_few_batches(scene):
    scene.write("batches", "100")
    server = scene.start_wide(rules(batch=100, max=2))
    scene.close_gate()
    with Crowd(server, 200) as crowd:
        crowd.send(lambda place: b"get page:%d\r\n" % (place // 2))
        until_held(server, 200)
        scene.open_gate()
        replies = crowd.replies(200)
    assert len({reply for _, reply, _ in replies}) == 100
    assert sorted(scene.keys()) == sorted(f"page:{n}" for n in range(100))
    assert sum(scene.calls()) == 100


# Invalidation while a job runs


INVALIDATIONS = {
    "delete": (b"delete page:1", b"DELETED NOT_FOUND"),
    "bump": (b"incr @tag:all 1", None),
    "flush": (b"flush_all", b"OK"),
    "soft": (b"md page:1 I", b"HD NF"),
}


@pytest.mark.parametrize("how", INVALIDATIONS)
def test_waiters_get_what_is_computed_after(scene, how):
    line, replies = INVALIDATIONS[how]
    server = scene.start(rules(LONG_TAGGED))
    scene.close_gate()
    a, b, writer = raws(server, 3)
    a.send(b"get page:1\r\n")
    scene.until_jobs(1)
    scene.write("version-1", "1")
    reply = ask(writer, line)
    assert replies is None or reply in replies.split(), reply
    scene.until_jobs(2)
    b.send(b"get page:1\r\n")
    until_held(server, 2)
    scene.open_gate()
    assert value(a) == value(b) == writer.get(b"page:1") == b"1=1"
    assert len(scene.jobs()) == 2
    wait_until("both jobs have ended", lambda: scene.stats()["running"] == 0)
    stats = scene.check_sums()
    assert (stats["jobs"], stats["values"], stats["late"]) == (2, 2, 1)


def test_several_deletes_share_one_job(scene):
    server = scene.start(rules(LONG_TAGGED))
    scene.close_gate()
    waiting = raws(server, 5)
    writer = server.raw()
    for c in waiting:
        c.send(b"get page:1\r\n")
    scene.until_jobs(1)
    for version in range(1, 8):
        scene.write("version-1", str(version))
        ask(writer, b"delete page:1")
        scene.until_jobs(2)
    until_held(server, 5)
    scene.open_gate()
    assert {value(c) for c in waiting} == {b"1=7"}
    assert len(scene.jobs()) == 3
    stats = scene.check_sums()
    assert (stats["jobs"], stats["late"]) == (3, 2), stats


def test_a_job_that_no_worker_has_begun_is_withdrawn(scene):
    server = scene.start(rules(max=1, load=1))
    scene.close_gate()
    a, b, writer = raws(server, 3)
    a.send(b"get do:gate:-:1\r\n")
    scene.until_jobs(1)
    b.send(b"get page:2\r\n")
    until_held(server, 2)
    assert ask(writer, b"set page:2 0 0 1\r\nw") == b"STORED"
    assert value(b) == b"w"
    wait_until("it is withdrawn", lambda: scene.stats()["cancelled"] == 1)
    scene.open_gate()
    assert value(a) == b"waited"
    assert scene.keys() == ["do:gate:-:1"]
    assert writer.get(b"page:2") == b"w"


def test_what_a_client_stores_during_a_job_stays(scene):
    server = scene.start()
    scene.close_gate()
    a, writer = raws(server, 2)
    a.send(b"get page:1\r\n")
    scene.until_jobs(1)
    assert ask(writer, b"set page:1 5 0 5\r\nmine!") == b"STORED"
    assert value(a) == b"mine!"
    scene.open_gate()
    assert scene.check_sums()["late"] == 1
    assert writer.get(b"page:1") == b"mine!"


def test_nothing_from_before_an_invalidation_is_served_after_it(scene, capsys):
    """The oracle: what is acknowledged before a get is sent must be seen by it."""
    server = scene.start(rules(LONG_TAGGED, max=4))
    scene.write("delay", "0.005")
    acknowledged, over, failed = collections.Counter(), threading.Event(), []
    answers = collections.Counter()

    def write():
        version = 0
        # The first one meets a job.
        scene.until_jobs(4)
        with server.raw(60) as c:
            while version < 150 and not failed:
                version += 1
                key = version % 4
                scene.write(f"version-{key}", str(version))
                kind = version % 5
                if kind == 4:
                    ask(c, b"incr @tag:all 1")
                elif kind == 3:
                    ask(c, b"flush_all")
                else:
                    ask(c, b"delete page:%d" % key)
                acknowledged[key] = version
                if version == 1:
                    scene.open_gate()
                over.wait(0.02)
                # Where jobs take longer than this, none would be in time.
                wait_until("values keep pace", lambda: failed or answers["values"] > version, 60)

    def read(n):
        try:
            with server.raw(60) as c:
                while not over.is_set():
                    key = n % 4
                    least = acknowledged[key]
                    got = c.get(b"page:%d" % key)
                    answers["misses" if got is None else "values"] += 1
                    if got is not None:
                        id, version = got.decode().split("=")
                        assert int(id) == key and int(version) >= least, (got, least)
        except Exception as error:
            failed.append(error)

    readers = [threading.Thread(target=read, args=(n,), daemon=True) for n in range(12)]
    scene.close_gate()
    for reader in readers:
        reader.start()
    try:
        write()
    finally:
        over.set()
        for reader in readers:
            reader.join(60)
    assert not failed, failed[:3]
    stats = scene.check_sums()
    show(capsys, f"150 invalidations of 4 keys: {dict(answers)}, {stats['jobs']} jobs, {stats['late']} of them late")
    assert answers["values"] > 150 and answers["misses"] <= answers["values"] // 20, answers
    assert stats["late"] > 0, "no invalidation met a job: the load is no test"


LONG_TAGGED = 'hold = "30s"\ntags = ["all"]\n'


# What a value carries


def test_ttl_flags_and_tags_of_a_value(scene):
    server = scene.start(rules('hold = "30s"\nttl = "50s"\ntags = ["all"]\n'))
    with server.raw() as c:
        assert meta(c, b"mg do:ttl:100:1 v t") [0].startswith(b"VA 1 t")
        assert c.get(b"do:ttl:100:1") == b"v"
        assert 90 <= int(ask(c, b"mg do:ttl:100:1 t").split()[1][1:]) <= 100
        assert c.get(b"page:1") == b"1=0"
        assert 40 <= int(ask(c, b"mg page:1 t").split()[1][1:]) <= 50, "the rule's"
        assert c.get(b"do:ttl:0:1") == b"v"
        assert ask(c, b"mg do:ttl:0:1 t") == b"HD t-1"
        c.send(b"get do:flags:4294967295:1\r\n")
        assert c.until(b"END\r\n") == b"VALUE do:flags:4294967295:1 4294967295 1\r\nv\r\nEND\r\n"
        # Its own tags and its rule's invalidate it.
        for tag in (b"t0", b"t6", b"all"):
            assert c.get(b"do:tags:7:1") == b"v"
            before = len(scene.jobs())
            assert c.get(b"do:tags:7:1") == b"v"
            assert len(scene.jobs()) == before
            ask(c, b"incr @tag:%s 1" % tag)
            assert c.get(b"do:tags:7:1") == b"v"
            assert len(scene.jobs()) == before + 1, tag
    scene.check_sums()


def test_a_ttl_below_zero_is_for_the_waiters(scene):
    server = scene.start()
    scene.close_gate()
    waiting = raws(server, 4)
    for c in waiting:
        c.send(b"get do:once:-:1\r\n")
    until_held(server, 4)
    scene.open_gate()
    assert {value(c) for c in waiting} == {b"once"}
    assert len(scene.jobs()) == 1
    with server.raw() as c:
        assert c.get(b"do:once:-:1") == b"once"
    assert len(scene.jobs()) == 2, "it was not kept"


def test_too_many_tags(scene):
    """Eight are allowed beside none of the rule; nine are the loader's mistake, and so are eight beside one of the rule."""
    server = scene.start(rules() + of_rule("tagged:{what}:{with}:{id}", terms=LONG + 'tags = ["one"]\n'))
    with server.raw() as c:
        assert c.get(b"do:tags:8:1") == b"v"
        assert c.get(b"do:tags:9:1") is None
    wait_until("the log says so", lambda: "at most 8 tags" in scene.whole_log())


def test_a_value_of_json_lines_with_too_many_tags(scene):
    text = of_rule("page:{id}", "lines") + of_rule("tagged:{id}", "lines", LONG + 'tags = ["one"]\n')
    server = scene.start(text + of_loader("lines", "lines.py", mode="jsonl"))
    with server.raw() as c:
        for count, key, reply in ((8, b"page:1", b"v"), (9, b"page:2", None), (8, b"tagged:1", None), (7, b"tagged:2", b"v")):
            tags = ",".join(f'"t{n}"' for n in range(count))
            scene.write("say", '{"id":"ID","value":"v","tags":[%s]}' % tags)
            assert c.get(key) == reply, (count, key)
    wait_until("the log says so", lambda: "tags: 9 of them; at most 8" in scene.whole_log())
    stats = scene.check_sums("lines")
    assert (stats["errors"], stats["not_stored"]) == (1, 1), stats


def test_not_found(scene):
    server = scene.start(rules('hold = "30s"\nnegative_ttl = "100s"\n'))
    with server.raw() as c:
        for ask_for in (b"do:missing:60:1", b"do:missing:-:1"):
            before = len(scene.jobs())
            for _ in range(3):
                assert c.get(ask_for) is None
                assert ask(c, b"mg %s v N30 Pw1000" % ask_for) == b"EN"
            assert len(scene.jobs()) == before + 1
        # The answer counts for a second.
        assert c.get(b"do:missing:1:2") is None
        count = len(scene.jobs())

        def again():
            assert c.get(b"do:missing:1:2") is None
            return len(scene.jobs()) == count + 1

        wait_until("its second is over", again)
        assert c.set(b"do:missing:60:1", b"now") == b"STORED"
        assert c.get(b"do:missing:60:1") == b"now"
    assert scene.check_sums()["not_found"] == 4


def test_a_value_at_the_largest_size(scene):
    """-I bounds a value as it bounds a client's set."""
    server = scene.start(rules('hold = "20s"\n'), "-I", "64k", "-m", "64")
    with server.raw() as c:
        most = 65536
        while c.set(b"do:size:%d:1" % most, b"x" * most) != b"STORED":
            most -= 1
        for size, fits in ((0, True), (most, True), (most + 1, False), (65536, False), (65536 + 65536, False), (10 << 20, False)):
            got = c.get(b"do:size:%d:2" % size)
            assert got == (b"x" * size if fits else None), size
        assert c.get(b"page:1") == b"1=0"
    stats = scene.check_sums()
    assert stats["errors"] + stats["not_stored"] == 4 - (most == 65536), stats


# Defaults


@pytest.mark.parametrize("settings", [{}, {"start": "0s"}], ids=["default", "at-once"])
@pytest.mark.parametrize("mode", ["template", "exec", "stdio", "jsonl"])
def test_a_slow_key_does_not_keep_another_one_waiting(scene, mode, settings):
    """With no option set: as many keys are computed at once as there may be workers, and the next when one has ended."""
    # But the time of a job: they wait until all workers have started.
    server = scene.start(rules().split("[loader")[0] + by_default(mode=mode, timeout="60s", **settings))
    scene.close_gate()
    clients = raws(server, 5)
    for n, c in enumerate(clients):
        c.send(b"get page:%d\r\n" % n)
        scene.until_jobs(min(n + 1, 4))
    # A delete's job begins at once too, where there is a worker for it.
    until_held(server, 5)
    scene.open_gate()
    assert [value(c) for c in clients] == [b"%d=0" % n for n in range(5)]
    scene.close_gate()
    a, b, writer = raws(server, 3)
    a.send(b"get page:again\r\n")
    scene.until_jobs(6)
    assert ask(writer, b"delete page:again") == b"NOT_FOUND"
    b.send(b"get page:again\r\n")
    scene.until_jobs(7)
    scene.open_gate()
    assert (value(a), value(b)) == (b"again=0", b"again=0")
    assert scene.check_sums()["values"] == 7


CRASHES = """
import os
from cattlegrid import loader

@loader.after_fork
def begin():
    global begun
    begun = os.open(os.path.join(os.environ["SCENE"], "begun"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

@loader.load
def load(job):
    os.write(begun, job.key.encode() + b"\\n")
    if "bad" in job.key:
        os._exit(9)
    return job.key

loader.serve()
"""
"""Both functions take some microseconds."""


@pytest.mark.parametrize("mode", ["template", "exec"])
def test_a_crash_takes_no_finished_values_with_it(scene, mode):
    """A worker has several jobs at a time. What it has computed when another one ends its process is not computed again."""
    scene.write("crashes.py", CRASHES)
    command = [sys.executable, str(scene.dir / "crashes.py")]
    server = scene.start(of_rule("page:{id}") + of_loader(command=command, load=8, max=1, mode=mode, start="0s"))
    # A pool whose workers crash all the time waits before it starts the next.
    keys = [b"page:%s-%d" % (b"bad" if n % 6 == 5 else b"good", n) for n in range(24)]
    clients = raws(server, len(keys))
    for c, key in zip(clients, keys):
        c.send(b"get %s\r\n" % key)
    assert [value(c) for c in clients] == [key if b"good" in key else None for key in keys]
    begun = collections.Counter((scene.dir / "begun").read_text().split())
    assert {key: count for key, count in begun.items() if "good" in key and count > 1} == {}


@pytest.mark.parametrize("mode", ["template", "exec", "stdio"])
def test_a_page_of_fragments_of_the_same_rule(scene, mode):
    """The loader asks the server for another key of its own loader."""
    server = scene.start(rules().split("[loader")[0] + by_default(mode=mode, timeout="60s"))
    with server.raw() as c:
        for n in range(5):
            since = time.monotonic()
            assert c.get(b"do:part:%d:%d" % (server.port, n)) == bytes(range(256))
            assert time.monotonic() - since < 20, "not by the end of hold"
            assert ask(c, b"delete do:bytes:-:part") == b"DELETED"


# What a job knows


def test_what_a_job_is_told(scene):
    server = scene.start(of_rule("page:{id}", terms='hold = "30s"\ngrace = "60s"\nttl = "1s"\n') + of_loader(stale=True))
    with server.raw() as c:
        assert meta(c, b"mg page:1 v N30 Pw20000,hlike%20this%2c%20please") == (b"VA 3", b"1=0")
        [job] = scene.jobs()
        assert (job["key"], job["args"], job["rule"]) == ("page:1", {"id": "1"}, "page:{id}")
        assert (job["hint"], job["stale"], job["attempt"]) == ("like this, please", None, 0)
        scene.write("version-1", "1")

        def refreshed():
            got = c.get(b"page:1")
            assert got in (b"1=0", b"1=1")
            return len(scene.jobs()) > 1

        wait_until("a refresh", refreshed)
        job = scene.jobs()[1]
        assert (job["stale"], job["hint"]) == ("1=0", None)
        wait_until("the new value", lambda: c.get(b"page:1") == b"1=1")


def test_the_old_value_is_carried_only_where_it_is_asked_for(scene):
    server = scene.start(of_rule("page:{id}", terms='hold = "30s"\ngrace = "60s"\nttl = "1s"\n') + of_loader())
    with server.raw() as c:
        assert c.get(b"page:1") == b"1=0"

        def refreshed():
            assert c.get(b"page:1") == b"1=0"
            return len(scene.jobs()) > 1

        wait_until("a refresh", refreshed)
    assert scene.jobs()[1]["stale"] is None


def test_retries(scene):
    server = scene.start(rules(retries=2))
    with server.raw() as c:
        assert c.get(b"do:again:2:1") == b"attempt 2"
        assert [job["attempt"] for job in scene.jobs()] == [0, 1, 2]
        assert c.get(b"do:again:3:1") is None
        assert [job["attempt"] for job in scene.jobs()] == [0, 1, 2] * 2
    stats = scene.check_sums()
    assert (stats["jobs"], stats["values"], stats["errors"]) == (2, 1, 1)


def test_what_a_worker_is_given(scene):
    server = scene.start()
    with server.raw() as c:
        assert c.get(b"do:nice:-:1") == b"500", "the system ends workers first"
        names = set(json.loads(c.get(b"do:environment:-:1")))
    assert names <= {"PATH", "HOME", "LANG", "PYTHONPATH", "SCENE", "LC_CTYPE"} | {n for n in names if n.startswith("CATTLEGRID_")}, names
    assert "MEMCACHED_PORT_FILENAME" not in names


# Meta commands


def test_no_client_wins_under_a_loader(scene):
    server = scene.start(rules('hold = "30s"\ngrace = "60s"\n'))
    scene.close_gate()
    a, b, c = raws(server, 3)
    assert meta(a, b"mg page:1 v c N30") == (b"VA 0 c0 Z", b"")
    assert meta(b, b"mg page:1 v N30") == (b"VA 0 Z", b"")
    scene.until_jobs(1)
    c.send(b"mg page:1 v N30 Pw30000\r\n")
    until_held(server, 1)
    scene.open_gate()
    assert c.line() == b"VA 3" and c.exactly(5) == b"1=0\r\n"
    # Soon to expire: everyone has the value, and a job refreshes it.
    assert ask(a, b"set page:2 0 20 3\r\nold") == b"STORED"
    scene.close_gate()
    head, got = meta(a, b"mg page:2 v R30")
    assert (head.split()[0], got) == (b"VA", b"old") and b"W" not in head.split() and b"Z" in head.split()
    scene.until_jobs(2)
    head, got = meta(b, b"mg page:2 v R30")
    assert got == b"old" and b"W" not in head.split()
    scene.open_gate()
    wait_until("the new value", lambda: b.get(b"page:2") == b"2=0")
    assert scene.check_sums()["refreshes"] == 1


def test_the_error_of_a_job_reaches_clients_that_asked_for_it(scene):
    server = scene.start(rules('hold = "30s"\non_busy = "error"\n'))
    a, b, c = raws(server, 3)
    a.send(b"mg do:fail:no%20such%20table:1 v N30 Pw30000\r\n".replace(b"%20", b"-"))
    assert a.line() == b"EN Peno-such-table"
    for n in range(20):
        since = time.monotonic()
        b.send(b"get do:fail:other:%d\r\n" % n)
        assert value(b) == b"SERVER_ERROR busy"
        jobs = len(scene.jobs())
        # It backs off: no job at once.
        c.send(b"get do:fail:other:%d\r\n" % n)
        assert value(c) == b"SERVER_ERROR busy"
        more = len(scene.jobs()) - jobs
        # After a second it has backed off, and nothing can be said of this key.
        if time.monotonic() - since < 0.9:
            break
    assert more == 0
    wait_until("the log says so", lambda: "no-such-table" in scene.whole_log())
    # An exception is an error of its job only.
    assert ask(a, b"mg do:oops:x:1 v N30 Pw30000").startswith(b"EN Pe")
    wait_until("the log says why", lambda: "Traceback" in scene.whole_log() or scene.stats()["log_left_out"] > 0)
    stats = scene.check_sums()
    assert stats["errors"] == len(scene.jobs()) >= 3 and stats["crashed"] == 0, stats
    with server.raw() as c:
        assert c.get(b"page:1") == b"1=0"


def test_text_of_an_error_is_one_word_for_the_client(scene):
    """Blanks and line ends of a worker's text cannot break the protocol."""
    scene.write("say", '{"id":"ID","error":"two words\\r\\nEND\\r\\n%41"}')
    text = of_rule("page:{id}", "lines") + of_loader("lines", "lines.py", mode="jsonl")
    server = scene.start(text)
    with server.raw() as c:
        line = ask(c, b"mg page:1 v N30 Pw20000")
        assert line.startswith(b"EN Pe") and line.count(b" ") == 1, line
        assert ask(c, b"mn") == b"MN"


def test_the_queue_is_full(scene):
    server = scene.start(rules('hold = "30s"\non_busy = "error"\n', max=1, load=1, queue=1))
    scene.close_gate()
    waiting = raws(server, 2)
    waiting[0].send(b"get do:gate:-:1\r\n")
    scene.until_jobs(1)
    waiting[1].send(b"get do:gate:-:2\r\n")
    until_held(server, 2)
    wait_until("one is in the queue", lambda: scene.stats()["queued"] == 1)
    with server.raw() as c:
        for n in range(3, 6):
            c.send(b"get do:gate:-:%d\r\n" % n)
            assert value(c) == b"SERVER_ERROR busy"
        scene.open_gate()
        assert [value(w) for w in waiting] == [b"waited"] * 2
        # A full queue does not make a key back off.
        assert c.get(b"do:gate:-:3") == b"waited"
    stats = scene.check_sums()
    assert (stats["refused"], stats["values"]) == (3, 3)


def test_a_job_clients_wait_for_goes_before_refreshes(scene):
    """Refreshes are low, and one whose old value is gone is raised."""
    server = scene.start(of_rule("page:{id}", terms='hold = "30s"\ngrace = "60s"\n') + of_rule("do:{what}:{with}:{id}") + of_loader(max=1, load=1))
    scene.close_gate()
    a, b, c, d = raws(server, 4)
    for n in range(5):
        assert ask(a, b"set page:%d 0 20 3\r\nold" % n) == b"STORED"
    b.send(b"get do:gate:-:1\r\n")
    scene.until_jobs(1)
    for n in range(5):
        meta(a, b"mg page:%d v R30" % n)
    c.send(b"get page:new\r\n")
    until_held(server, 2)
    assert ask(a, b"md page:4") == b"HD"
    d.send(b"get page:4\r\n")
    until_held(server, 3)
    scene.open_gate()
    assert value(b) == b"waited" and value(c) == b"new=0" and value(d) == b"4=0"
    scene.check_sums()
    keys = scene.keys()
    assert set(keys[1:3]) == {"page:new", "page:4"}, keys


# Statistics and what operators see


def test_statistics_of_a_job_that_runs(scene):
    server = scene.start(rules(stop="60s"))
    scene.close_gate()
    a, b = raws(server, 2)
    a.send(b"get page:1\r\n")
    scene.until_jobs(1)
    # The worker begins before the pool says so.
    wait_until("a worker is busy", lambda: scene.stats()["busy"] == 1)
    stats = scene.stats()
    assert (stats["running"], stats["busy"], stats["workers"], stats["jobs"], stats["max"], stats["mode"]) == (1, 1, 1, 1, 4, "template")
    why = b.get(b"@why:page:1").decode()
    assert '"job":"running"' in why, why
    leases = server.stats("leases")
    assert "loader pages" in " ".join(f"{k} {v}" for k, v in leases.items()), leases
    scene.open_gate()
    assert value(a) == b"1=0"
    scene.check_sums()
    wait_until("the worker is idle", lambda: scene.stats()["idle"] == 1)
    assert server.stats("leases") == {} or not any("page:1" in k for k in server.stats("leases"))
    assert server.stats()["cmd_set"] == "0", "a loader's value is no set"
    # Counters begin again, and those of what runs stay.
    b.send(b"stats reset\r\n")
    assert b.line() == b"RESET"
    assert scene.stats()["jobs"] == 0
    assert b.get(b"page:2") == b"2=0"
    assert scene.check_sums()["values"] == 1


def test_a_closed_connection_withdraws_nothing(scene):
    server = scene.start()
    scene.close_gate()
    a, b = raws(server, 2)
    a.send(b"get page:1\r\n")
    scene.until_jobs(1)
    a.close()
    until_held(server, 0)
    b.send(b"get page:1\r\n")
    until_held(server, 1)
    scene.open_gate()
    assert value(b) == b"1=0"
    assert scene.keys() == ["page:1"]


def test_keys_of_no_rule_know_no_loader(scene):
    server = scene.start()
    client = Client(("127.0.0.1", server.port), timeout=40)
    assert client.get("plain") is None
    assert client.set("plain", b"1", noreply=False)
    assert client.get("plain") == b"1"
    assert scene.jobs() == []
