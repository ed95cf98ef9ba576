"""What `stats` says of reloads, of gets by rule and of free memory."""

import signal
import time

import pytest

from harness import wait_until

pytestmark = pytest.mark.only_cattlegrid


def test_the_last_reload(start, open_dir):
    path = open_dir + "/rules.toml"
    with open(path, "w") as f:
        f.write('[[rule]]\nmatch = "a:{b}"\n')
    began = int(time.time())
    server = start("--config", path)
    own = server.stats("cattlegrid")
    assert (own["reload_generation"], own["reload_error"]) == ("1", "none")
    assert began - 1 <= int(own["reload_time"]) <= time.time() + 1
    time.sleep(1.1)
    with open(path, "w") as f:
        f.write('[[rule]]\nmatch = "a:{b"\n')
    server.signal(signal.SIGHUP)
    wait_until("it has failed", lambda: server.stats("cattlegrid")["reload_error"] != "none")
    failed = server.stats("cattlegrid")
    assert failed["reload_generation"] == "1" and path + ":2: rule" in failed["reload_error"]
    assert int(failed["reload_time"]) > int(own["reload_time"])
    with open(path, "w") as f:
        f.write('[[rule]]\nmatch = "c"\n')
    server.signal(signal.SIGHUP)
    wait_until("it has taken effect", lambda: server.stats("cattlegrid")["reload_generation"] == "2")
    assert server.stats("cattlegrid")["reload_error"] == "none"


def test_gets_and_hits_by_rule(start, open_dir):
    path = open_dir + "/rules.toml"
    with open(path, "w") as f:
        f.write('[[rule]]\nmatch = "page:{id}"\nhold = "0s"\n[[rule]]\nmatch = "t:{id}"\ntags = ["t"]\n')
    server = start("--config", path, "-t", 1)
    with server.raw() as c:
        for n in range(10):
            c.set(b"page:%d" % n, b"v")
            c.set(b"t:%d" % n, b"v")
            c.set(b"none:%d" % n, b"v")
        for _ in range(3):
            c.ask(b"get " + b" ".join(b"page:%d" % n for n in range(12)) + b"\r\n")
        for line in (b"mg page:1 v\r\n", b"mg page:77 v\r\n", b"gat 0 page:2\r\n", b"mg t:1 v\r\n", b"mg t:77 v\r\n", b"get t:1 t:78\r\n", b"get none:1 none:99\r\n"):
            c.ask(line)
        rules = c.stats("rules")
        assert (rules["1:gets"], rules["1:hits"]) == ("39", "32")
        assert (rules["2:gets"], rules["2:hits"]) == ("4", "2")
        assert (rules["total:gets"], rules["total:hits"]) == ("43", "34")
        c.ask(b"delete @tag:t\r\n")
        c.ask(b"get t:1\r\n")
        assert (c.stats("rules")["2:gets"], c.stats("rules")["2:hits"]) == ("5", "2")
        # Beyond those that are counted one by one: as samples.
        for _ in range(50):
            c.ask(b"get page:1\r\n" * 1000)
        hits = int(c.stats("rules")["1:hits"])
        assert 0.9 * 50_032 < hits < 1.1 * 50_032


def test_free_memory_that_cannot_be_used(start):
    server = start("-m", 64, "-t", 1)
    with server.raw() as c:
        c.send(b"".join(b"set k%d 0 0 1000 noreply\r\n%s\r\n" % (n, b"x" * 1000) for n in range(20_000)))
        c.ask(b"")
        before = int(c.stats("cattlegrid")["segment_dead_bytes"])
        c.send(b"".join(b"delete k%d noreply\r\n" % n for n in range(0, 2000)))
        c.ask(b"")
        after = int(c.stats("cattlegrid")["segment_dead_bytes"])
        assert after != before and "memory_stranded" in c.stats("cattlegrid")
