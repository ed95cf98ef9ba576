"""Reloads of types in Luau: under load, with faulty sources, by watching the directory; types that come, change and go."""

import threading
import time

import pytest

from harness import wait_until
from scripted import own, types  # noqa: F401
from test_loader_reload import Readers
from test_objects import call, steps

pytestmark = pytest.mark.only_cattlegrid


def versioned(number):
    return own("", f"function T.version_is(self) return {number} end\nfunction T.add(self) self.n = (self.n or 0) + 1 return self.n end")


class Scene:
    """What [`Readers`] asks for."""

    def __init__(self, server):
        self.server = server


@pytest.mark.parametrize("threads", ["1", "4"])
def test_no_call_is_lost_in_reloads(types, threads):
    """Every call is answered, by the sources of before or of after, and counted; none goes back to older sources."""
    made = types(sources=["tally"])
    made.write("what.luau", versioned(0))
    server = made.start("-t", threads)
    latest, granted = [0] * 4, [0] * 4
    with server.raw(60) as c:
        steps(c, [("tally:new:k:1000000000", "CREATED")])

    def read(c, n, _):
        got = c.ask(b"get what:version_is:k\r\nget tally:take:k\r\nget what:add:k%d\r\nget tally:take:k\r\n" % n)
        assert b"ERROR" not in got and got.count(b"VALUE ") == 4 and got.count(b"\r\nOK\r\n") == 2, got
        version = int(got.split(b"\r\n")[1])
        assert version >= latest[n], "older sources answer again"
        latest[n] = version
        granted[n] += 1
        assert b"\r\n%d\r\nEND\r\n" % granted[n] in got, "a call of it was lost"

    with Readers(Scene(server), 4, read, pause=0) as readers:
        for number in range(1, 31):
            made.write("what.luau", versioned(number))
            lines = made.reloaded()
            assert not any("nothing reloaded" in line for line in lines), lines
            with server.raw(60) as c:
                assert call(c, "what:version_is:x") == str(number), "a call after the reload is a call of the new sources"
            readers.check()
    readers.check()
    assert sum(granted) > 30
    with server.raw(60) as c:
        assert int(call(c, "tally:left:k")) == 1_000_000_000 - 2 * sum(granted)


FAULTS = {
    "syntax": ("what.luau", "local T = {}\nfunction T.new( return {} end\nreturn T\n", "what.luau:2"),
    "global": ("what.luau", own("", "function T.x(self) return nowhere(self) end"), "nowhere"),
    "assigned": ("what.luau", own("", "function T.x(self) count = 1 end"), "count"),
    "raises": ("what.luau", "error('while loading')", "what.luau:1"),
    "test": ("what.test.luau", 'local t = cg.test\nlocal w = t.new("what", "k")\nt.eq(w:version_is(), "7")\n', "what.test.luau:3"),
    "name": ("Bad-Name.luau", versioned(1), "Bad-Name"),
    "entry": ("what.luau", own("", "T.unknown = 1"), "unknown"),
    "library": ("lib/window.luau", "return {", "window.luau"),
    "module": ("what.luau", 'local x = require("lib/absent")\n' + versioned(1), "lib/absent"),
    "outside": ("what.luau", 'local x = require("../rules")\n' + versioned(1), "what.luau:1"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_set_changes_nothing(types, binary, fault):
    made = types(sources=["tally"])
    made.write("what.luau", versioned(1))
    made.write("named.luau", 'local window = require("lib/window")\n' + own("", "function T.name(self) return window.name(5) end"))
    server = made.start()
    name, text, says = FAULTS[fault]
    with server.raw(60) as c:
        steps(c, [("what:version_is:k", "1"), ("what:add:k", "1"), ("named:name:n", "visit 5"), ("tally:new:t:5", "CREATED")])
        before = (made.path / name).read_text() if (made.path / name).exists() else None
        # Sound changes of other files come with it: all or nothing.
        made.write("tally.luau", (made.path / "tally.luau").read_text().replace('"OK"', '"FINE"'))
        made.write(name, text)
        lines = made.reloaded()
        assert any("nothing reloaded" in line for line in lines) and any(says in line for line in lines), lines
        steps(c, [("what:version_is:k", "1"), ("what:add:k", "2"), ("tally:take:t", "OK")])
        status, said = made.check(binary)
        assert status == 2 and says in said, said
        # Mended, all of it is there, and the objects are.
        if before is None:
            made.remove(name)
        else:
            made.write(name, before)
        lines = made.reloaded()
        assert not any("nothing reloaded" in line for line in lines), lines
        steps(c, [("what:add:k", "3"), ("tally:take:t", "FINE"), ("tally:left:t", "3")])


def test_a_directory_that_is_absent_or_empty(types, binary):
    made = types(sources=[], lib=False)
    server = made.start()
    with server.raw() as c:
        assert c.set(b"tally:take:k", b"v") == b"STORED"
        made.settings = f'dir = "{made.path}-absent"'
        with open(made.rule_file, "w") as f:
            f.write(f'[objects]\ndir = "{made.path}-absent"\n')
        status, said = made.check(binary)
        assert status == 2 and "-absent" in said
        lines = made.reloaded()
        assert any("nothing reloaded" in line for line in lines)
        assert c.get(b"tally:take:k") == b"v"


def test_a_watched_directory(types):
    made = types(sources=["tally"], settings="watch = true")
    made.write("what.luau", versioned(1))
    server = made.start()
    with server.raw(60) as c:
        steps(c, [("what:version_is:k", "1"), ("tally:new:t:5", "CREATED")])
        made.write("what.luau", versioned(2))
        wait_until("the change is seen", lambda: call(c, "what:version_is:k") == "2", 60)
        made.write("new.luau", versioned(7))
        wait_until("a new type is seen", lambda: call(c, "new:version_is:k") == "7", 60)
        # A faulty set is said once, and again only when it has changed.
        seen = len(made.log())
        made.write("what.luau", "return {")
        made.until_logged("what.luau:1", seen)
        time.sleep(3.5)  # three polls
        assert sum("what.luau:1" in line for line in made.log()[seen:]) == 1, made.log()[seen:]
        assert call(c, "what:version_is:k") == "2"
        made.write("what.luau", versioned(3))
        wait_until("the mended source is seen", lambda: call(c, "what:version_is:k") == "3", 60)
        made.remove("new.luau")
        wait_until("a type that is gone is seen", lambda: c.ask(b"set new:version_is:k 0 0 1\r\nv\r\n") == b"STORED\r\n", 60)
        assert call(c, "tally:left:t") == "5"


def test_without_watch_nothing_is_read_by_itself(types):
    made = types(sources=[])
    made.write("what.luau", versioned(1))
    with made.start().raw(60) as c:
        made.write("what.luau", versioned(2))
        time.sleep(2.5)  # two polls of a server that watches
        assert call(c, "what:version_is:k") == "1"
        made.reloaded()
        assert call(c, "what:version_is:k") == "2"


def test_types_replace_shipped_ones_and_go(types):
    """A source with a shipped type's name takes its place: its objects are others."""
    made = types(sources=[])
    server = made.start()
    with server.raw(60) as c:
        steps(c, [("counter:add:k:5", "5"), ("quota:new:q:5:hour", "CREATED")])
        made.write("counter.luau", own("", "function T.add(self, n: string) self.n = (self.n or 100) + cg.integer(n, 1) return self.n end"))
        lines = made.reloaded()
        assert any("counter" in line for line in lines), lines
        wait_until("the objects of the shipped type are gone", lambda: c.stats()["curr_items"] == "1", 60)
        steps(c, [("counter:add:k:5", "105"), ("counter:add:k:5", "110"), ("quota:exists:q", "EXISTS")])
        assert c.ask(b"set counter:get:k 0 0 1\r\nv\r\n") == b"STORED\r\n", "a name that is not a method of it is a plain key"
        made.remove("counter.luau")
        lines = made.reloaded()
        assert any("counter" in line for line in lines), lines
        wait_until("its objects are gone, and the plain key", lambda: c.stats()["curr_items"] == "1", 60)
        steps(c, [("counter:get:k", None), ("counter:add:k:5", "5"), ("quota:exists:q", "EXISTS")])
        made.write("gone.luau", versioned(1))
        made.reloaded()
        steps(c, [("gone:add:k", "1")])
        made.remove("gone.luau")
        made.reloaded()
        assert c.ask(b"set gone:add:k 0 0 1\r\nv\r\n") == b"STORED\r\n"
        wait_until("its objects are gone", lambda: "gone:items" not in c.stats("objects"), 60)


def test_states_of_an_older_version_migrate(types):
    made = types(sources=[])
    made.write("moved.luau", own("", "function T.get(self) return self.a or 'none' end function T.set(self, v: string) self.a = v return 'SET' end"))
    with made.start().raw(60) as c:
        steps(c, [("moved:set:k:old", "SET"), ("moved:set:l:other", "SET")])
        made.write(
            "moved.luau",
            own("", "T.version = 2\nfunction T.migrate(old, from) return { b = old.a .. ' from ' .. from } end\nfunction T.get(self) return self.b or 'none' end\nfunction T.keep(self) self.kept = true return 'KEPT' end"),
        )
        made.reloaded()
        steps(c, [("moved:get:k", "old from 1"), ("moved:get:k", "old from 1"), ("moved:keep:k", "KEPT"), ("moved:get:k", "old from 1"), ("moved:get:new", "none")])
        # A migration that fails is an error of each call, and leaves the state.
        made.write("moved.luau", own("", "T.version = 3\nfunction T.migrate(old, from) error('cannot') end\nfunction T.get(self) return self.b end"))
        made.reloaded()
        assert call(c, "moved:get:k").startswith("SERVER_ERROR script moved.") and "cannot" in call(c, "moved:get:l")
        made.write("moved.luau", own("", "T.version = 4\nfunction T.migrate(old, from) old.from = from return old end\nfunction T.get(self) return `{self.b or self.a} {self.from}` end"))
        made.reloaded()
        steps(c, [("moved:get:k", "old from 1 2"), ("moved:get:l", "other 1")])


def test_reloads_while_calls_wait(types):
    """Calls in an object's queue are answered, by the sources that they came with or by newer ones."""
    made = types(sources=["runaway"], settings='time_limit = "1s"')
    server = made.start("-t", "4")
    with server.raw(120) as c:
        assert call(c, "runaway:work:k:1") == "DONE"
        waiting = [server.raw(120) for _ in range(16)]
        source = (made.path / "runaway.luau").read_text()
        for turn in range(3):
            for w in waiting:
                w.send(b"get runaway:work:k:100000\r\n" * 5)
            made.write("runaway.luau", source.replace('"DONE"', f'"DONE{turn}"'))
            made.reloaded()
            for w in waiting:
                for _ in range(5):
                    assert b"\r\nDONE" in w.until(b"END\r\n")
        assert call(c, "runaway:count:k") == str(1 + 3 * 16 * 5)
        wait_until("no call runs", lambda: c.stats("objects")["busy"] == c.stats("objects")["running"] == "0")


def test_a_type_goes_while_its_calls_wait(types):
    made = types(sources=["runaway", "tally"], settings='time_limit = "1s"')
    server = made.start("-t", "4")
    with server.raw(120) as c:
        assert call(c, "runaway:work:k:1") == "DONE"
        source = (made.path / "runaway.luau").read_text()
        waiting = [server.raw(120) for _ in range(16)]
        for _ in range(3):
            for w in waiting:
                w.send(b"get runaway:work:k:100000\r\nget runaway:work:k:100000\r\nmn\r\n")
            made.remove("runaway.luau")
            made.reloaded()
            for w in waiting:
                got = w.until_mn()
                assert got.count(b"END\r\n") == 2 and b"ERROR" not in got, got
            made.write("runaway.luau", source)
            made.reloaded()
            wait_until("no call runs", lambda: c.stats("objects")["busy"] == c.stats("objects")["running"] == "0")
            assert call(c, "runaway:work:k:1") == "DONE"


def test_reloads_from_several_sides_at_once(types):
    """SIGHUP again and again while files change: the last state of the directory is what answers."""
    made = types(sources=["tally"], settings="watch = true")
    made.write("what.luau", versioned(0))
    server = made.start("-t", "2")
    over = threading.Event()

    def signals():
        while not over.is_set():
            made.reload()
            over.wait(0.01)

    sender = threading.Thread(target=signals)
    sender.start()
    try:
        for number in range(1, 20):
            made.write("what.luau", versioned(number) if number % 3 else "return 5")
            time.sleep(0.05)
        made.write("what.luau", versioned(99))
    finally:
        over.set()
        sender.join(60)
    with server.raw(60) as c:
        wait_until("the last sources answer", lambda: call(c, "what:version_is:k") == "99", 60)
    assert server.running()
