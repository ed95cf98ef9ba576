"""Room is the server's, not a shard's: what is in use stays while anything cold is there, whichever thread or shard it is in."""

import bisect
import itertools
import json
import random

import pytest

from test_objects import objects  # noqa: F401

RULES = '[objects]\ntypes = ["quota", "set"]\n'
MEMBER = "m" * 200
BATCH = 50


def lines(c, requests, ends):
    """Pipelined requests; the reply to each until one of its ends."""
    c.send(b"".join(requests))
    replies = []
    for _ in requests:
        reply = []
        while not reply or reply[-1] not in ends and not reply[-1].startswith((b"SERVER_ERROR", b"CLIENT_ERROR")):
            line = c.line()
            reply.append(line)
            if line.startswith(b"VALUE "):
                reply.append(c.exactly(int(line.split()[3]) + 2)[:-2])
        replies.append(reply)
    return replies


def get(c, keys):
    found = []
    for at in range(0, len(keys), BATCH):
        for reply in lines(c, [b"get %s\r\n" % key.encode() for key in keys[at : at + BATCH]], [b"END"]):
            assert len(reply) in (1, 3), reply
            found.append(reply[1] if len(reply) == 3 else None)
    return found


def store(c, keys, length):
    for at in range(0, len(keys), BATCH):
        piece = [b"set %s 0 0 %d\r\n%s\r\n" % (key.encode(), length, b"v" * length) for key in keys[at : at + BATCH]]
        assert all(reply == [b"STORED"] for reply in lines(c, piece, [b"STORED"]))


@pytest.mark.parametrize("threads", ["1", "2", "4", "8"])
def test_objects_in_use_take_room_from_what_is_cold(objects, threads):  # noqa: F811
    """A set that every call uses grows to a third of the memory, in whichever shard it is; nearly all quotas that are used now and then keep their counts."""
    with objects(RULES, "-m", "64", "-t", threads).raw() as c:
        cold = [f"cold:{n}" for n in range(80_000)]
        for at in range(0, len(cold), 1000):
            get(c, cold[at : at + 1000])
            store(c, cold[at : at + 1000], 1000)
        quotas = [f"quota:take:u{n}:1:1000000:hour" for n in range(2_000)]
        assert get(c, ["set:new:big"]) == [b"CREATED"]
        members = rounds = 0
        while members * len(MEMBER) < 22 << 20:
            got = get(c, [f"set:add:big:{members + n}{MEMBER}" for n in range(2_000)])
            assert got == [b"1"] * 2_000
            members += 2_000
            rounds += 1
            assert get(c, ["set:count:big"]) == [b"%d" % members], f"the set is lost at {members * len(MEMBER) >> 20} MiB"
            if rounds % 10 == 0:
                assert get(c, quotas) == [b"QUOTA_OK"] * len(quotas)
                fresh = [f"new:{rounds}:{n}" for n in range(20)]
                store(c, fresh, 1000)
                assert all(get(c, fresh)), "what was just stored is gone"
        found = get(c, [f"quota:peek:u{n}" for n in range(2_000)])
        right = sum(1 for one in found if one is not None and json.loads(one)["used"] == rounds // 10)
        assert right >= 1_980, f"{right} of 2,000 quotas are right"


@pytest.mark.parametrize("threads", ["1", "4"])
def test_pinned_objects_leave_room_for_all_shards(objects, threads):  # noqa: F811
    """With 15 MiB of objects that are never evicted, what is stored is there at the next get, and so are all 4,000 objects at the end."""
    rules = RULES + 'pinned_max = "24MiB"\n[objects.set]\nevict = "never"\n'
    with objects(rules, "-m", "64", "-t", threads).raw() as c:
        names = [f"s{n}" for n in range(4_000)]
        assert get(c, [f"set:new:{name}" for name in names]) == [b"CREATED"] * len(names)
        for name in names:
            assert get(c, [f"set:add:{name}:{n}{'m' * 150}" for n in range(18)]) == [b"1"] * 18
        gone = 0
        for at in range(0, 100_000, BATCH):
            fresh = [f"o:{at + n}" for n in range(BATCH)]
            store(c, fresh, 500)
            gone += get(c, fresh).count(None)
        assert gone <= 10, f"{gone} of 100,000 are gone at the next get"
        assert get(c, [f"set:count:{name}" for name in names]) == [b"18"] * len(names)


def test_without_evictions_deleted_room_is_stored_in_again(start):
    """Under `-M` the room of what was deleted is found, down to a twentieth of the memory."""
    with start("-m", "64", "-M", "-t", "4", ours=[]).raw() as c:
        keys, stored = [], True
        while stored:
            piece = [f"k:{len(keys) + n}" for n in range(BATCH)]
            requests = [b"set %s 0 0 1000\r\n%s\r\n" % (key.encode(), b"v" * 1000) for key in piece]
            replies = lines(c, requests, [b"STORED"])
            stored = all(reply == [b"STORED"] for reply in replies)
            keys += [key for key, reply in zip(piece, replies) if reply == [b"STORED"]]
        deleted = [key for n, key in enumerate(keys) if n * 7 % 10 < 3]
        for at in range(0, len(deleted), BATCH):
            lines(c, [b"delete %s\r\n" % key.encode() for key in deleted[at : at + BATCH]], [b"DELETED"])
        again = 0
        for at in range(0, len(deleted), BATCH):
            requests = [b"set %s 0 0 1000\r\n%s\r\n" % (key.encode(), b"v" * 1000) for key in deleted[at : at + BATCH]]
            again += lines(c, requests, [b"STORED"]).count([b"STORED"])
        assert again >= len(deleted) * 0.95, f"{again} of {len(deleted)}"
        gone = set(deleted)
        assert all(get(c, [key for key in keys if key not in gone]))


def test_what_large_values_are_received_into_goes_back_to_the_system(start):
    """Values of 17 MB at 64 MiB, which are too large to be received into pages: the threads keep none of that memory."""
    server = start("-m", "64", "-I", "32m", "-t", "4", ours=[])
    value, clients = b"v" * (17 << 20), [server.raw() for _ in range(8)]
    for n in range(40):
        clients[n % 8].send(b"set k%d 0 0 %d\r\n%s\r\n" % (n, len(value), value))
        reply = clients[n % 8].line()
        assert reply == b"STORED", (n, reply)
    resident = server.rss() >> 20
    for client in clients:
        client.close()
    assert resident < 64 + 36, f"{resident} MiB"


@pytest.mark.parametrize("seed", [3, 4])
@pytest.mark.parametrize("command", [b"incr c%d 1\r\n", b"append c%d 0 0 1\r\n1\r\n"])
def test_counters_stay_beside_values_that_come_and_go(start, command, seed):
    """Counters that only `incr` asks for, and values that only `append` does, begin anew hardly ever while larger values are filled."""
    r = random.Random(seed)
    ranks = list(itertools.accumulate((rank + 1) ** -0.8 for rank in range(50_000)))
    value = b"v" * 4000
    found = asked = 0
    with start("-m", "16", "-t", "1").raw() as c:
        fills = []
        for batch in range(3_000):
            keys = [bisect.bisect(ranks, r.random() * ranks[-1]) for _ in range(80)]
            counters = [r.randrange(2_000) for _ in range(5)]
            c.send(b"".join(fills + [b"get v%d\r\n" % key for key in keys] + [command % counter for counter in counters]))
            fills = []
            for key in keys:
                line = c.line()
                if line == b"END":
                    length = 500 + key * 7919 % 3500
                    fills.append(b"set v%d 0 0 %d noreply\r\n%s\r\n" % (key, length, value[:length]))
                else:
                    c.exactly(int(line.split()[3]) + 7)
            for counter in counters:
                is_there = c.line() not in (b"NOT_FOUND", b"NOT_STORED")
                if not is_there:
                    fills.append(b"set c%d 0 0 1 noreply\r\n1\r\n" % counter)
                if batch > 1_500:
                    asked += 1
                    found += is_there
    assert found >= asked * 0.95, f"{found} of {asked}"
