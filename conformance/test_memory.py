"""Ten times its memory is stored: what fits is never refused, what is read is what was stored, memory stays bounded."""

import hashlib
import math
import random

MIB = 1 << 20
LIMIT_MIB = 64
LARGEST = MIB - 8192
BLOCK = random.Random(64).randbytes(2 * MIB)


def content(key, size):
    """Bytes that follow from the key alone."""
    digest = hashlib.sha256(key).digest()
    at = int.from_bytes(digest[:4], "big") % MIB
    return (digest + BLOCK[at : at + size])[:size]


def size_of(number):
    """Mixed sizes, 0 bytes to nearly 1 MiB, as many of each order of magnitude, by the key's number."""
    r = random.Random(number)
    kind = r.random()
    if kind < 0.01:
        return 0
    if kind < 0.03:
        return LARGEST
    return int(math.exp(r.uniform(0, math.log(LARGEST))))


def check(c, numbers):
    """Reads keys in one multi-get; (hits, wrong)."""
    keys = {b"mem-%d" % n: n for n in numbers}
    c.send(b"get " + b" ".join(keys) + b"\r\n")
    hits, wrong = 0, []
    while (line := c.line()) != b"END":
        _, key, flags, size = line.split()
        data = c.exactly(int(size) + 2)
        number = keys[key]
        if data != content(key, size_of(number)) + b"\r\n" or int(flags) != number % 65536:
            wrong.append((key, size))
        hits += 1
    return hits, wrong


def test_ten_times_the_memory(start, kind, capsys):
    server = start("-m", str(LIMIT_MIB), "-t", "2")
    r = random.Random(10)
    stored = number = hits = misses = recent_hits = 0
    refused, wrong, most_rss = {}, [], 0
    with server.raw(30) as c:
        before = server.rss()
        while stored < 10 * LIMIT_MIB * MIB:
            batch = range(number, number + 20)
            for n in batch:
                value = content(b"mem-%d" % n, size_of(n))
                stored += len(value)
                c.send(b"set mem-%d %d 0 %d\r\n" % (n, n % 65536, len(value)) + value + b"\r\n")
            for n in batch:
                line = c.line()
                if line != b"STORED":
                    refused[line] = refused.get(line, 0) + 1
            number += 20
            most_rss = max(most_rss, server.rss())
            older = [r.randrange(number) for _ in range(10)]
            got, bad = check(c, older)
            hits, misses, wrong = hits + got, misses + len(set(older)) - got, wrong + bad
            got, bad = check(c, batch)
            recent_hits, wrong = recent_hits + got, wrong + bad
        kept = 0
        for at in range(0, number, 100):
            got, bad = check(c, range(at, min(number, at + 100)))
            kept, wrong = kept + got, wrong + bad
        most_rss = max(most_rss, server.rss())
        stats = c.stats()
    bound = LIMIT_MIB * 1.1 * MIB + 16 * MIB
    with capsys.disabled():
        print(
            f"\n  memory: {number} values, {stored / MIB:.0f} MiB, into -m {LIMIT_MIB}: RSS {before / MIB:.1f} -> {most_rss / MIB:.1f} MiB"
            f" (bound {bound / MIB:.1f}); {kept} items kept, {int(stats['bytes']) / MIB:.1f} MiB by its own count, {stats['evictions']} evicted;"
            f" just stored: {recent_hits}/{number} read back; any earlier: {hits} hits, {misses} misses; refused: {refused or 'none'}"
        )
    assert not wrong, wrong[:10]
    assert most_rss < bound
    assert int(stats["evictions"]) > 0
    assert hits > 0 and kept > 0
    if kind == "cattlegrid":
        assert not refused
        assert recent_hits > 0.99 * number, "what was just stored is there"
        assert int(stats["bytes"]) > 0.5 * LIMIT_MIB * MIB, "the memory is used"
    else:
        # memcached's slab classes run out of pages for large values.
        assert set(refused) <= {b"SERVER_ERROR out of memory storing object"}


def test_overwriting_and_deleting_does_not_leak(start):
    """The same keys over and over at changing sizes: no evictions, and the memory does not grow."""
    server = start("-m", str(LIMIT_MIB))
    with server.raw(30) as c:

        def rounds(count):
            for i in range(count):
                for n in range(50):
                    size = (n * 7919 + i * 104729) % 100_000
                    value = content(b"k%d" % n, size)
                    c.send(b"set k%d 0 0 %d\r\n" % (n, size) + value + b"\r\nget k%d\r\n" % n)
                    assert c.line() == b"STORED"
                    assert c.line() == b"VALUE k%d 0 %d" % (n, size)
                    assert c.exactly(size + 7) == value + b"\r\nEND\r\n"
                    if n % 3 == 0:
                        c.send(b"delete k%d\r\n" % n)
                        assert c.line() == b"DELETED"

        rounds(20)
        rss = server.rss()
        rounds(60)
        stats = c.stats()
        assert int(stats["curr_items"]) == 33
        assert server.rss() < max(rss, LIMIT_MIB * MIB) + 24 * MIB
        with_all_gone = c.ask(b"".join(b"delete k%d noreply\r\n" % n for n in range(50)))
        assert with_all_gone == b"" and c.stats()["curr_items"] == "0"


def test_small_items(start, capsys):
    """Many tiny items: the overhead of an item is bounded too."""
    server = start("-m", str(LIMIT_MIB))
    with server.raw(30) as c:
        for part in range(40):
            c.send(b"".join(b"set tiny-%d-%d 0 0 4 noreply\r\nabcd\r\n" % (part, i) for i in range(25_000)))
            c.ask(b"")
        stats = c.stats()
        items, rss = int(stats["curr_items"]), server.rss()
        with capsys.disabled():
            print(f"\n  memory: 1,000,000 items of 4 bytes into -m {LIMIT_MIB}: {items} kept, RSS {rss / MIB:.1f} MiB")
        assert items > 300_000
        assert rss < LIMIT_MIB * 1.1 * MIB + 16 * MIB
        assert c.ask(b"get tiny-39-24999\r\n") == b"VALUE tiny-39-24999 0 4\r\nabcd\r\nEND\r\n"
