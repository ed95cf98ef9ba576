"""The test vectors of docs/worker-protocol.md, written and read."""

import pathlib
import struct

import pytest

from cattlegrid.worker import _frames as f
from cattlegrid.worker._link import Link

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "worker-protocol.md"


def block(name):
    return PAGE.read_text().split(f"```{name}\n")[1].split("```")[0].splitlines()


VECTORS = {name: bytes.fromhex(text) for name, text in (line.split() for line in block("vectors"))}


def written():
    yield "list-empty", f.encode_list([])
    yield "list-two", f.encode_list([b"key", b""])
    yield "list-long", f.encode_list([b"x" * 200])
    yield "hello", f.hello(4242, 8, f.HAS_PAGE, "test/1")
    yield "hello-claims", f.hello(4242, 8, f.HAS_PAGE | f.HAS_CLAIMS, "test/1")
    yield "hello-batches", f.hello(4242, 8, f.HAS_PAGE | f.HAS_CLAIMS | f.TAKES_BATCHES, "test/1")
    yield "init", f.frame(f.INIT, 0, struct.pack("<IIQ", 1 << 20, 3, 7) + f.encode_list([b"config"]))
    job = struct.pack("<II", 1500, 1) + f.encode_list([b"thumb", b"\xff\0"])
    yield "job", f.frame(f.JOB, 0x0102030405060708, job)
    yield "job-more", f.frame(f.JOB, 0x0102030405060708, job, f.FLAG_MORE)
    yield "cancel", f.frame(f.CANCEL, 9)
    yield "retire", f.frame(f.RETIRE)
    yield "ping", f.frame(f.PING, 5)
    yield "pong", f.frame(f.PONG, 5)
    yield "ready", f.frame(f.READY)
    yield "leave", f.frame(f.LEAVE)
    yield "skipped", f.frame(f.SKIPPED, 9)
    yield "result", f.frame(f.RESULT, 9, f.encode_list([b"ok"]))
    yield "result-more", f.frame(f.RESULT, 9, f.encode_list([b"part"]), f.FLAG_MORE)
    yield "error", f.error(9, "code", "message", "detail", True)
    yield "event", f.frame(f.EVENT, 0, f.encode_list([b"hello", b"world"]))
    yield "progress", f.frame(f.PROGRESS, 9, b"50%")
    yield "log", f.frame(f.LOG, 0, b"\x02careful")


def test_what_is_written_is_what_the_page_says():
    assert dict(written()) == VECTORS


def test_what_the_page_says_is_read():
    assert f.parse_init(VECTORS["init"][16:]) == (1 << 20, 3, 7, b"config")
    assert f.decode_list(VECTORS["job"], 24) == [b"thumb", b"\xff\0"]
    assert f.decode_list(VECTORS["list-long"]) == [b"x" * 200]


def test_a_list_is_whole_or_an_error_at_every_cut():
    data = f.encode_list([b"key", b"", b"x" * 200])
    for cut in range(len(data)):
        with pytest.raises(ValueError):
            f.decode_list(data[:cut])
    with pytest.raises(ValueError):
        f.decode_list(data + b"\0")


def test_what_a_job_may_return():
    assert f.parts_of(None) == []
    assert f.parts_of("ü") == ["ü".encode()]
    assert f.parts_of([b"a", "b", bytearray(b"c")]) == [b"a", b"b", b"c"]
    for wrong in (7, {"a": 1}, object()):
        with pytest.raises(TypeError):
            f.parts_of(wrong)


@pytest.mark.parametrize("line", block("claims"))
def test_claims_are_as_the_page_says(line):
    taken, start, end, begun, skipped = map(int, line.split())
    link = Link()
    link.page = memoryview(bytearray(4096)).cast("Q")
    link.page[2] = taken
    assert link.claim(start, end) == skipped
    assert (link.page[0], link.page[1], link.page[2]) == (0, begun, taken)
