"""Loaders at the edges: limits of 0, 1 and the largest, every form of a get, and clients that leave.

What a worker does is decided by the key (`data/loaders/pages.py`).
"""

import base64
import json
import socket
import time

import pytest

import harness
from crowd import Crowd, until_held
from harness import wait_until
from loaders import ask, meta, of_loader, of_rule, rules, value
from test_herd import raws

pytestmark = pytest.mark.only_cattlegrid


# Settings


def test_a_hold_of_zero(scene):
    """No client waits, and each value is there for the next get."""
    server = scene.start(rules('hold = "0s"\n'))
    with server.raw() as c:
        assert c.get(b"page:1") is None
        wait_until("its value", lambda: c.get(b"page:1") == b"1=0")
        c.send(b"get page:2 page:3\r\n")
        assert c.until(b"END\r\n") == b"END\r\n"
        wait_until("their values", lambda: c.get(b"page:2") == b"2=0" and c.get(b"page:3") == b"3=0")
    assert scene.rule_stats()["held"] == "0"
    assert sorted(scene.keys()) == ["page:1", "page:2", "page:3"]


def test_no_room_for_waiters(scene):
    """`max_waiters = 2`: the third is answered at once, and gets the value afterwards."""
    server = scene.start(rules('hold = "30s"\nmax_waiters = 2\non_busy = "error"\n'))
    scene.close_gate()
    a, b, c = raws(server, 3)
    for waiting in (a, b):
        waiting.send(b"get page:1\r\n")
    until_held(server, 2)
    c.send(b"get page:1\r\n")
    assert value(c) == b"SERVER_ERROR busy"
    scene.open_gate()
    assert value(a) == value(b) == c.get(b"page:1") == b"1=0"
    assert scene.keys() == ["page:1"]


def test_one_job_of_a_rule_at_a_time(scene):
    """`rule_computers = 1`: further keys wait for their turn within `hold`."""
    server = scene.start(of_rule("page:{id}", terms='hold = "30s"\nrule_computers = 1\n') + of_rule("code:{id}") + of_loader())
    scene.close_gate()
    waiting = raws(server, 5)
    for n, c in enumerate(waiting):
        c.send(b"get page:%d\r\n" % n)
    until_held(server, 5)
    scene.until_jobs(1)
    with server.raw() as c:
        assert c.get(b"code:1") == b"first", "the other rule has no such limit"
    assert len(scene.jobs()) == 2
    assert scene.stats()["jobs"] == 2
    scene.open_gate()
    assert [value(c) for c in waiting] == [b"%d=0" % n for n in range(5)]
    assert scene.check_sums()["jobs"] == 6


def test_the_shortest_times(scene):
    """Jobs that cannot end in time are misses, and nothing else suffers."""
    server = scene.start(rules('hold = "2s"\n', timeout="10ms", kill_grace="1ms", start="0s", stop="0s", max=1, queue=1))
    with server.raw(40) as c:
        for n in range(5):
            assert c.get(b"do:wait:60000:%d" % n) is None
    stats = scene.check_sums()
    assert stats["values"] == 0 and stats["timeouts"] >= 1, stats
    assert server.running()
    scene.end()


def test_the_largest_settings(scene):
    largest = {"max": 1024, "load": 65535, "batch": 10000, "queue": 1000000, "timeout": "30m", "kill_grace": "1m", "start_timeout": "1h", "stop": "1d", "retries": 100}
    scene.write("batches", "65535")
    server = scene.start_wide(rules('hold = "1m"\nmax_waiters = 1000000\nttl = "3650d"\nnegative_ttl = "30d"\ngrace = "30d"\n', **largest))
    with Crowd(server, 200) as crowd:
        crowd.send(lambda place: b"get page:%d\r\n" % place)
        assert len({reply for _, reply, _ in crowd.replies(200)}) == 200
    assert scene.check_sums()["values"] == 200
    scene.end()


def test_workers_that_are_replaced_after_each_job(scene):
    server = scene.start(rules(max_jobs=1, max=2, start="0s"))
    with server.raw(60) as c:
        for n in range(20):
            assert c.get(b"page:%d" % n) == b"%d=0" % n
    jobs = scene.jobs()
    assert len({job["pid"] for job in jobs}) == len(jobs) == 20
    assert scene.check_sums()["lost"] == 0


def test_idle_workers_and_spares(scene):
    server = scene.start(rules(idle=2, max=2, spare=1))
    wait_until("they are ready", lambda: scene.stats()["idle"] == 2)
    with server.raw() as c:
        assert c.get(b"page:1") == b"1=0"
    scene.end()


def test_several_loaders_in_one_get(scene):
    scene.write("say", '{"id":"ID","value":"line"}')
    server = scene.start(of_rule("page:{id}") + of_rule("line:{id}", "lines") + of_loader() + of_loader("lines", "lines.py", mode="jsonl"))
    with server.raw() as c:
        assert c.set(b"plain", b"p") == b"STORED"
        c.send(b"get line:1 page:1 plain nothing line:2 page:2\r\n")
        expected = b"VALUE line:1 0 4\r\nline\r\nVALUE page:1 0 3\r\n1=0\r\nVALUE plain 0 1\r\np\r\nVALUE line:2 0 4\r\nline\r\nVALUE page:2 0 3\r\n2=0\r\nEND\r\n"
        assert c.until(b"END\r\n") == expected
    assert scene.stats("lines")["values"] == scene.stats()["values"] == 2


def test_the_same_key_twice_in_one_get(scene):
    server = scene.start()
    with server.raw() as c:
        c.send(b"get page:1 page:1 page:1\r\n")
        assert c.until(b"END\r\n") == b"VALUE page:1 0 3\r\n1=0\r\n" * 3 + b"END\r\n"
    assert scene.keys() == ["page:1"]


def test_a_get_of_many_keys_without_a_value(scene):
    """One of which fails, one is not found, one is too large: the others are there."""
    server = scene.start(rules('hold = "30s"\n', start="0s"))
    with server.raw(60) as c:
        c.send(b"get page:1 do:fail:no:1 do:missing:60:1 do:size:3000000:1 do:exit:3:1 page:2\r\n")
        assert c.until(b"END\r\n") == b"VALUE page:1 0 3\r\n1=0\r\nVALUE page:2 0 3\r\n2=0\r\nEND\r\n"


# Forms of commands


def test_every_form_of_a_get(scene):
    server = scene.start()
    with server.raw() as c:
        assert ask(c, b"gets page:1").split()[:4] == [b"VALUE", b"page:1", b"0", b"3"]
        assert c.until(b"END\r\n") == b"1=0\r\nEND\r\n"
        assert ask(c, b"gat 100 page:2") == b"VALUE page:2 0 3"
        assert c.until(b"END\r\n") == b"2=0\r\nEND\r\n"
        assert ask(c, b"gats 100 page:3").startswith(b"VALUE page:3 0 3 ")
        assert c.until(b"END\r\n") == b"3=0\r\nEND\r\n"
        # Quiet: a hit is told, and what is not found is not.
        c.send(b"mg page:4 q v N30 Pw20000\r\nmg do:missing:60:1 q v N30 Pw20000\r\nmn\r\n")
        assert c.until_mn() == b"VA 3\r\n4=0\r\n"
        assert meta(c, b"mg page:5 v k O123 N30 Pw20000") == (b"VA 3 kpage:5 O123", b"5=0")
        assert meta(c, b"mg cGFnZTo2 b v k N30 Pw20000") == (b"VA 3 kcGFnZTo2 b", b"6=0")
        # Byte by byte, and with double blanks.
        for byte in b"get  page:7\r\n":
            c.send(bytes([byte]))
        assert value(c) == b"7=0"
    assert len(scene.jobs()) == 8


def test_commands_that_are_no_gets_start_no_job(scene):
    server = scene.start()
    with server.raw() as c:
        for line in (b"touch page:1 10", b"incr page:1 1", b"decr page:1 1", b"delete page:1", b"md page:1"):
            assert ask(c, line) in (b"NOT_FOUND", b"NF"), line
        assert ask(c, b"append page:1 0 0 1\r\nx") == b"NOT_STORED"
        assert ask(c, b"replace page:1 0 0 1\r\nx") == b"NOT_STORED"
        assert ask(c, b"add page:2 0 0 1\r\nx") == b"STORED"
        assert ask(c, b"me page:3") == b"EN"
    assert scene.stats()["jobs"] == 0


def test_what_is_stored_while_a_job_runs(scene):
    """`add` finds nothing and stores; `incr` and `touch` find nothing."""
    server = scene.start()
    scene.close_gate()
    a, c = raws(server, 2)
    a.send(b"get page:1\r\n")
    scene.until_jobs(1)
    assert ask(c, b"touch page:1 10") == ask(c, b"incr page:1 1") == b"NOT_FOUND"
    assert ask(c, b"add page:1 0 0 2\r\nme") == b"STORED"
    assert value(a) == b"me"
    scene.open_gate()
    scene.check_sums()
    assert c.get(b"page:1") == b"me"


def test_pipelined_behind_a_get_that_waits(scene):
    """A get that is read ahead starts its job at once; replies keep their order."""
    server = scene.start(rules('hold = "30s"\nhold_behind = "30s"\n'))
    scene.close_gate()
    with server.raw() as c:
        c.send(b"get page:1\r\nget page:2\r\nset plain 0 0 1\r\np\r\nget plain\r\nget page:1\r\n")
        scene.until_jobs(2)
        scene.open_gate()
        assert value(c) == b"1=0" and value(c) == b"2=0"
        assert c.line() == b"STORED"
        assert value(c) == b"p" and value(c) == b"1=0"
    assert len(scene.jobs()) == 2


def test_a_set_behind_a_get_of_the_same_connection(scene):
    """The get is answered first, as a miss; what is stored stays."""
    server = scene.start()
    scene.close_gate()
    with server.raw() as c:
        c.send(b"get page:1\r\n")
        scene.until_jobs(1)
        c.send(b"set page:1 0 0 2\r\nme\r\n")
        assert value(c) is None
        assert c.line() == b"STORED"
        scene.open_gate()
        scene.check_sums()
        assert c.get(b"page:1") == b"me"


def test_get_after_get_on_one_connection(scene):
    """Replies keep their order, pipelined and with hits between."""
    server = scene.start(rules('hold = "30s"\nhold_behind = "30s"\n'))
    with server.raw() as c:
        assert c.set(b"plain", b"p") == b"STORED"
        c.send(b"".join(b"get do:wait:%d:%d\r\nget plain\r\n" % (50 - n, n) for n in range(20)))
        for n in range(20):
            assert value(c) == b"waited"
            assert value(c) == b"p"


def test_hold_ends_before_the_job(scene):
    """A job that takes longer than clients wait goes on, and its value is there for the next."""
    server = scene.start(rules('hold = "300ms"\n'))
    scene.close_gate()
    a, b = raws(server, 2)
    a.send(b"get page:1\r\n")
    assert value(a) is None
    assert meta(b, b"mg page:1 v N30 Pw300")[0] == b"VA 0 Z"
    scene.open_gate()
    # No get waits for it any more: another hold could end.
    scene.check_sums()
    assert a.get(b"page:1") == b"1=0"
    assert scene.keys() == ["page:1"]
    assert scene.rule_stats()["hold_expired"] == "2"


# Keys


def test_keys_that_are_no_text(scene):
    """Bytes that are not UTF-8, and keys in base64, in every mode."""
    modes = ("template", "exec", "stdio", "jsonl")
    text = "".join(of_rule(mode + ":{a}:{b*}", mode) + of_loader(mode, mode=mode) for mode in modes)
    server = scene.start(text)
    keys = [b":\xff\xfe:\xe2\x82", b":\x01:\x7f\x80", b':"\\:{"a":1}', ":ä:€".encode()]
    with server.raw() as c:
        for mode in modes:
            for rest in keys:
                key = mode.encode() + rest
                _, a, b = key.split(b":", 2)
                expected = mode + ":{a}:{b*} " + str([("a", text_of(a)), ("b", text_of(b))])
                expected = expected.encode("utf-8", "surrogateescape")
                assert c.get(key) == expected, (mode, key)
            key = base64.b64encode(mode.encode() + b":a b:\r\n\x00")
            head, got = meta(c, b"mg %s v k b" % key)
            if got is None or head.endswith(b"Z"):
                head, got = meta(c, b"mg %s v b N30 Pw20000" % key)
            assert got == (mode + ":{a}:{b*} " + str([("a", "a b"), ("b", "\r\n\x00")])).encode(), (mode, head)


def text_of(data):
    return data.decode("utf-8", "surrogateescape")


# Clients that leave


def test_a_client_that_sends_no_more(scene):
    """`printf 'get page:1\\r\\n' | nc`: an answer, and the value is there for others."""
    server = scene.start()
    scene.close_gate()
    with server.raw() as c:
        c.send(b"get page:1\r\n")
        until_held(server, 1)
        c.sock.shutdown(socket.SHUT_WR)
        assert c.closed().startswith(b"END\r\n")
    scene.open_gate()
    with server.raw() as c:
        assert c.get(b"page:1") == b"1=0"
    assert scene.keys() == ["page:1"]


def test_hundreds_of_clients_that_leave(scene):
    """Their jobs end, and nothing waits for them."""
    server = scene.start_wide(rules(max=2))
    scene.close_gate()
    with Crowd(server, 300) as crowd:
        crowd.send(lambda place: b"get page:%d\r\n" % (place % 50))
        until_held(server, 300)
        for who in list(crowd.order):
            crowd.drop(who)
    until_held(server, 0)
    scene.open_gate()
    stats = scene.check_sums()
    assert stats["jobs"] == 50, stats
    wait_until("no lease", lambda: not server.stats("leases"))
    with server.raw() as c:
        wait_until("connections are gone", lambda: c.stats()["curr_connections"] == "1")


def test_a_value_that_finds_no_memory(scene):
    """`-M` and a full store: the waiters are answered, and it is counted."""
    server = scene.start(rules('hold = "2s"\n', timeout="20s"), "-M", "-m", "8", "-I", "512k")
    with server.raw() as c:
        n = 0
        while c.set(b"fill:%d" % n, b"x" * 10_000) == b"STORED":
            n += 1
            assert n < 10_000
        since = time.monotonic()
        got = c.get(b"do:size:400000:1")
        assert got in (None, b"x" * 400_000)
        assert time.monotonic() - since < 2 + 2 * harness.PROMPT
    wait_until("it is counted", lambda: scene.stats()["not_stored"] == 1)
    wait_until("the log says so", lambda: "no memory" in scene.whole_log())
    assert server.running()


def test_values_from_nothing_to_the_largest(scene):
    server = scene.start(None, "-I", "8m", "-m", "256")
    with server.raw(60) as c:
        for size in (0, 1, 2, 511, 4096, 65535, 65536, 65537, 1 << 20, 7 << 20):
            assert c.get(b"do:size:%d:1" % size) == b"x" * size, size
    scene.check_sums()


def test_json_lines_of_large_values(scene):
    """Twice the bytes of a value fit in a line."""
    server = scene.start(rules(mode="jsonl"), "-I", "2m", "-m", "64")
    with server.raw(60) as c:
        assert c.get(b"do:size:2000000:1") == b"x" * 2_000_000
        assert c.get(b"do:size:2200000:1") is None
        assert c.get(b"page:1") == b"1=0"


def test_json_lines_with_escapes(scene):
    """A value is as large as what its text stands for, and what a serialiser writes for fields that are not set does no harm."""
    server = scene.start(of_rule("line:{id}", "lines") + of_loader("lines", "lines.py", mode="jsonl"), "-I", "1m")
    with server.raw(60) as c:
        scene.write("say", '{"id":"ID","value":"' + "\\u0041" * 900_000 + '"}')
        assert c.get(b"line:escapes") == b"A" * 900_000
        for n, field in enumerate(("error", "result", "event", "progress", "log", "not_found", "tags", "ttl")):
            scene.write("say", '{"id":"ID","value":"v","%s":null}' % field)
            assert c.get(b"line:%d" % n) == b"v", field
        scene.write("say", '{"id":"ID","result":null,"error":"no","event":null,"value":null}')
        assert c.get(b"line:error") is None
    stats = scene.check_sums("lines")
    assert (stats["values"], stats["errors"], stats["lost"], stats["killed"]) == (9, 1, 0, 0), stats


def whole_lines(scene):
    """The lines of the log, without one that is being written."""
    return scene.whole_log().rpartition("\n")[0].splitlines()


def test_the_log_as_objects(scene):
    """`--log-format json`: each line of a loader is one object."""
    server = scene.start(rules('hold = "5s"\n'), "--log-format", "json")
    with server.raw() as c:
        assert c.get(b"do:oops:x:1") is None
    wait_until("the log has it", lambda: any("loader pages" in line and "KeyError" in line for line in whole_lines(scene)))
    lines = [json.loads(line) for line in whole_lines(scene) if line.startswith("{")]
    assert any("KeyError" in json.dumps(line) for line in lines), lines
