"""`lru_crawler metadump` and `mgdump`: their form, one at a time, short turns, readers that do not read."""

import re
import threading
import time

import pytest

from harness import wait_until

FORMS = pytest.mark.parametrize("form, end", [(b"metadump", b"END\r\n"), (b"mgdump", b"EN\r\n")])
BUSY = b"BUSY currently processing crawler request"


def fill(c, count, size=20):
    c.send(b"".join(b"set dump-%d 5 0 %d noreply\r\n%s\r\n" % (i, size, b"x" * size) for i in range(count)))
    c.ask(b"")


def stuck(server, form):
    """A connection whose dump is longer than what the system buffers, and that reads only the first line."""
    c = server.raw()
    c.send(b"lru_crawler %s all\r\n" % form)
    assert c.line() == b"OK"
    return c


@pytest.mark.only_1_6_45
def test_the_form_of_a_metadump(start):
    with start().raw() as c:
        fill(c, 1)
        c.send(b"lru_crawler metadump all\r\n")
        assert re.fullmatch(
            rb"OK\r\nkey=dump-0 exp=-1 la=\d+ cas=\d+ fetch=no cls=1 size=\d+ flags=5 \nEND\r\n", c.until(b"END\r\n")
        )
        c.send(b"lru_crawler mgdump hash\r\n")
        assert c.until(b"EN\r\n") == b"OK\r\nmg dump-0\r\nEN\r\n"


@pytest.mark.only_1_6_45
@FORMS
def test_classes(start, form, end):
    """All items are in class 1 here, and a class without items is an empty dump."""
    with start().raw() as c:
        fill(c, 3)
        for classes, keys in ((b"all", 3), (b"hash", 3)):
            c.send(b"lru_crawler %s %s\r\n" % (form, classes))
            assert c.until(end).count(b"dump-") == keys
        for classes in (b"63", b"40,41"):
            c.send(b"lru_crawler %s %s\r\n" % (form, classes))
            assert c.until(end) == b"OK\r\n" + end
        for classes in (b"0", b"64", b"1,", b"x", b"1,x"):
            c.send(b"lru_crawler %s %s\r\n" % (form, classes))
            assert c.line() == b"BADCLASS invalid class id"
        c.send(b"lru_crawler %s\r\n" % form)
        assert c.line() == b"ERROR"


@pytest.mark.only_cattlegrid
@FORMS
def test_class_1_has_all(start, form, end):
    with start().raw() as c:
        fill(c, 3)
        for classes in (b"1", b"7,1", b"1,7"):
            c.send(b"lru_crawler %s %s\r\n" % (form, classes))
            assert c.until(end).count(b"dump-") == 3


@pytest.mark.only_1_6_45
@FORMS
def test_a_dump_behind_other_commands(start, form, end):
    """Refused when replies of the same packet are not sent yet; what follows a dump is answered behind it."""
    with start().raw() as c:
        fill(c, 2)
        c.send(b"mg none v\r\nlru_crawler %s all\r\nmn\r\n" % form)
        assert c.until_mn() == b"EN\r\nERROR cannot pipeline other commands before %s\r\n" % form
        c.send(b"lru_crawler %s all\r\nmn\r\nlru_crawler %s all\r\n" % (form, form))
        got = c.until(b"before %s\r\n" % form)
        assert got.count(b"dump-") == 2
        assert got.endswith(end + b"MN\r\nERROR cannot pipeline other commands before %s\r\n" % form)


def test_dumps_that_are_not_allowed(start, is_1_6_18):
    with start("-X").raw() as c:
        c.send(b"lru_crawler metadump all\r\n")
        assert c.line() == b"ERROR metadump not allowed"
        if not is_1_6_18:
            c.send(b"lru_crawler mgdump all\r\n")
            assert c.line() == b"ERROR key dump not allowed"


@pytest.mark.only_1_6_45
@FORMS
def test_one_dump_at_a_time(start, form, end):
    server = start("-m", "128", "-t", 2)
    with server.raw() as c:
        fill(c, 200_000)
        with stuck(server, form) as s:
            for other in (b"metadump", b"mgdump", b"crawl"):
                for _ in range(4):  # on every thread
                    # It takes a little of its dump, so that it is not silent for too long however long all of this takes.
                    assert s.sock.recv(1 << 16)
                    with server.raw() as d:
                        d.send(b"lru_crawler %s all\r\n" % other)
                        assert d.line() == BUSY
            assert c.stats()["lru_crawler_running"] == "1"
            c.send(b"lru_crawler %s 99\r\n" % form)
            assert c.line() == b"BADCLASS invalid class id"

        def again():
            c.send(b"lru_crawler %s all\r\n" % form)
            return c.line() == b"OK"

        wait_until("the reader that has gone makes room", again)
        assert c.until(b"\r\n" + end if form == b"mgdump" else b"\n" + end).count(b"dump-") == 200_000
        assert c.stats()["lru_crawler_running"] == "0"
        assert int(c.stats()["lru_crawler_starts"]) == 2


@pytest.mark.only_cattlegrid
@FORMS
def test_a_reader_that_does_not_read(start, form, end):
    """After 5 s its connection is closed, without the end of the dump, and the place is free."""
    server = start("-m", "128", "-t", 2)
    with server.raw() as c:
        fill(c, 200_000)
        began = time.monotonic()
        with stuck(server, form) as s:
            wait_until("it is closed", lambda: c.stats("cattlegrid")["dumps_stalled"] == "1", 30)
            assert time.monotonic() - began > 4

            def again():
                c.send(b"lru_crawler %s all\r\n" % form)
                return c.line() == b"OK"

            wait_until("its place is free", again)
            c.until(end)
            assert not s.closed(30).endswith(end)


@pytest.mark.only_cattlegrid
def test_a_slow_reader_is_served(start):
    """It takes a little each second, for longer than a reader may be silent."""
    server = start("-m", "128", "-t", 2)
    with server.raw() as c:
        fill(c, 60_000)
        with server.raw(20) as s:
            s.send(b"lru_crawler metadump all\r\n")
            for _ in range(8):
                time.sleep(1)
                for _ in range(4):
                    s.buffer += s.sock.recv(1 << 16)
            assert s.until(b"\nEND\r\n").count(b"dump-") == 60_000
        assert c.stats("cattlegrid")["dumps_stalled"] == "0"


@pytest.mark.only_cattlegrid
@pytest.mark.parametrize("form", [b"metadump", b"mgdump"])
def test_no_key_twice_under_writes(start, form):
    """Items move, the index grows and shrinks: each key that is there all the time is listed once."""
    server = start("-m", 256, "-t", 2)
    with server.raw(60) as c, server.raw(60) as d:
        fill(c, 100_000)
        stop = threading.Event()

        def write():
            turn = 0
            while not stop.is_set():
                keys = range(turn % 50 * 2000, turn % 50 * 2000 + 2000)
                d.send(b"".join(b"set dump-%d 0 0 %d noreply\r\n%s\r\n" % (i, 10 + turn % 90, b"x" * (10 + turn % 90)) for i in keys))
                d.send(b"".join(b"set new-%d-%d 0 0 1 noreply\r\nx\r\n" % (turn, i) for i in range(2000)))
                if turn > 3:
                    d.send(b"".join(b"delete new-%d-%d noreply\r\n" % (turn - 4, i) for i in range(2000)))
                assert d.ask(b"mn\r\n") == b"MN\r\n"
                turn += 1

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(3):
                c.send(b"lru_crawler %s all\r\n" % form)
                text = c.until(b"END\r\n" if form == b"metadump" else b"EN\r\n")
                keys = re.findall(rb"(?:key=|mg )(\S+)", text)
                assert len(keys) == len(set(keys))
                assert sum(key.startswith(b"dump-") for key in keys) == 100_000
        finally:
            stop.set()
            writer.join()
