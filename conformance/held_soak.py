"""Held requests by the thousand, and clients that are killed while they wait.

    held_soak.py [--server-bin PATH] [--seconds N] [--connections N] [--part many|kill]

`many`: 10,000 connections held at once on 1,000 keys. What a held request costs in memory beside an idle connection, how
long after the last fill the last one is answered, and whether each gets its own answer, once.
`kill`: processes that stampede and are killed at random. Every held request of a survivor is answered once and in time;
afterwards nothing waits and no lease is left.

Ends with status 1 and a line that says why when something does not hold.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time

import harness
from crowd import HELD_ENDS, WIDE_FENCE, Crowd, percentiles, rule, write_rules

RULES = WIDE_FENCE + rule(terms='hold = "60s"\nlease = "60s"')


def gauge(server, name, which="cattlegrid"):
    return int(server.stats(which)[name])


def settle(server, name, value, seconds=60, which="cattlegrid"):
    harness.wait_until(f"{name} is {value}", lambda: gauge(server, name, which) == value, seconds)


def many(binary, directory, connections=10_000, keys=1_000):
    """Returns what was measured."""
    server = harness.Server(
        binary, "cattlegrid", ["--config", write_rules(directory, RULES), "-c", connections + keys + 1000, "-t", 2, "-m", 1024]
    )
    try:
        with Crowd(server, keys) as holders, Crowd(server, connections) as crowd:
            # All are accepted: what is compared is the same connection, idle and held.
            # The idle state is measured after a first stampede too, so that tables that stay are in both.
            measured = []
            settle(server, "curr_connections", keys + connections + 1, which="")
            for generation in range(2):
                idle = server.rss()
                holders.send(lambda place: b"get page:%d-%d\r\n" % (generation, place))
                assert {reply for _, reply, _ in holders.replies(keys, 60)} == {b"END\r\n"}
                crowd.send(lambda place: b"get page:%d-%d\r\n" % (generation, place % keys))
                settle(server, "held", connections)
                busy = server.rss()
                assert crowd.silent(), "answered before a value was stored"
                name = {who: b"%d-%d" % (generation, place % keys) for place, who in enumerate(crowd.order)}
                filled, replies = {}, []
                for place, who in enumerate(holders.order):
                    text = b"%d-%d" % (generation, place)
                    holders.send(b"set page:%s 0 0 %d\r\n%s\r\n" % (text, len(text), text), who)
                    filled[text] = time.monotonic()
                    replies += crowd.poll_once(0)
                last_fill = time.monotonic()
                replies += crowd.replies(connections - len(replies), 60)
                assert {reply for _, reply, _ in holders.replies(keys, 60)} == {b"STORED\r\n"}
                assert len({who for who, _, _ in replies}) == connections, "each is answered once"
                for who, reply, _ in replies:
                    text = name[who]
                    assert reply == b"VALUE page:%s 0 %d\r\n%s\r\nEND\r\n" % (text, len(text), text), reply
                settle(server, "held", 0)
                settle(server, "leases", 0)
                assert crowd.silent()
                wakes = [at - filled[name[who]] for who, _, at in replies]
                measured.append(((busy - idle) / (connections + keys), percentiles(wakes), max(at for _, _, at in replies) - last_fill))
            return measured
    finally:
        server.clean()


# One process of the second part: connections that ask for the same keys, and fill what they miss after a while.

CHILD = """
import os, select, socket, sys, time, random
port, seconds, keys, lanes = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
deadline = 20.0
chance, poll, end = random.Random(os.getpid()), select.poll(), time.monotonic() + seconds
class Lane:
    def __init__(self):
        self.s = socket.create_connection(("127.0.0.1", port), 30)
        self.buffer, self.answers, self.fill_at, self.longest = b"", 0, None, 0.0
        poll.register(self.s, select.POLLIN)
        self.ask()
    def ask(self):
        self.key = b"page:%d" % chance.randrange(keys)
        self.s.sendall(b"get %s\\r\\n" % self.key)
        self.since = time.monotonic()
    def store(self):
        # A short life: the next stampede comes soon.
        self.s.sendall(b"set %s 0 %d %d\\r\\n%s\\r\\n" % (self.key, chance.choice((-1, -1, -1, 1)), len(self.key), self.key))
        self.since, self.fill_at = time.monotonic(), None
lanes = {l.s.fileno(): l for l in [Lane() for _ in range(lanes)]}
while any(l.since is not None for l in lanes.values()) or any(l.fill_at for l in lanes.values()):
    now = time.monotonic()
    for l in lanes.values():
        if l.fill_at and l.fill_at <= now:
            l.store()
    for number, _ in poll.poll(10):
        l = lanes[number]
        got = l.s.recv(65536)
        if not got:
            sys.exit("closed")
        l.buffer += got
        if l.buffer == b"END\\r\\n":
            l.fill_at, next_one = time.monotonic() + chance.uniform(0.001, 0.05), False
        elif l.buffer == b"STORED\\r\\n" or l.buffer == b"VALUE %s 0 %d\\r\\n%s\\r\\nEND\\r\\n" % (l.key, len(l.key), l.key):
            next_one = True
        elif l.buffer.endswith((b"END\\r\\n", b"STORED\\r\\n")):
            sys.exit("asked for %r, answered %r" % (l.key, l.buffer))
        else:
            continue
        l.longest = max(l.longest, time.monotonic() - l.since)
        l.buffer, l.answers, l.since = b"", l.answers + 1, None
        if next_one and time.monotonic() < end:
            l.ask()
    late = [l for l in lanes.values() if l.since is not None and time.monotonic() - l.since > deadline]
    if late:
        sys.exit("no answer for %.1f s: %r" % (deadline, late[0].key))
print(sum(l.answers for l in lanes.values()), max(l.longest for l in lanes.values()))
"""


def kill(binary, directory, seconds=60.0, processes=8, lanes=20, keys=10, seed=1):
    """Returns (processes killed, answers of survivors, longest wait in seconds, the rule's counts)."""
    chance = random.Random(seed)
    rules = rule(terms='hold = "2s"\nlease = "500ms"\nclose_grace = "50ms"')
    server = harness.Server(binary, "cattlegrid", ["--config", write_rules(directory, rules), "-c", 4000, "-t", 2])
    running, killed, answers, longest = [], 0, 0, 0.0

    def spawn(lifetime):
        arguments = [sys.executable, "-c", CHILD, str(server.port), str(lifetime), str(keys), str(lanes)]
        return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    try:
        end = time.monotonic() + seconds
        # Two live to the end, so that there are always waiters that outlive a holder.
        survivors = [spawn(seconds) for _ in range(2)]
        while (left := end - time.monotonic()) > 0:
            while len(running) < processes - len(survivors):
                running.append(spawn(left))
            time.sleep(chance.uniform(0.02, 0.3))  # the time of the next death is what is random
            victim = running.pop(chance.randrange(len(running)))
            if victim.poll() is None:
                victim.send_signal(signal.SIGKILL)
                killed += 1
            victim.communicate()
        for child in survivors + running:
            out, error = child.communicate(timeout=60)
            assert child.returncode == 0, f"a survivor: {error}"
            count, wait = out.split()
            answers, longest = answers + int(count), max(longest, float(wait))
        settle(server, "held", 0)
        settle(server, "leases", 0)
        conns = server.stats("conns")
        assert not any(state == "conn_waiting" for state in conns.values()), "parked"
        assert server.running(), server.log()
        counts = {name.split(":")[-1]: value for name, value in server.stats("rules").items()}
        ended = {name: int(counts[name]) for name in HELD_ENDS}
        assert int(counts["held"]) == sum(ended.values()), f"{counts['held']} held, not the sum of {ended}"
        return killed, answers, longest, counts
    finally:
        for child in running:
            if child.poll() is None:
                child.kill()
                child.communicate()
        server.clean()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server-bin", default=os.environ.get("CATTLEGRID_BIN", str(harness.ROOT / "target/release/cattlegrid")))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--part", choices=("many", "kill"))
    given = parser.parse_args()
    binary = os.path.abspath(given.server_bin)
    if given.part != "kill":
        for n, (bytes_each, (p50, p99, most), after) in enumerate(many(binary, None, given.connections)):
            print(
                f"stampede {n + 1}: {bytes_each:.0f} bytes a held request; wake-up p50 {p50 * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms, "
                f"most {most * 1000:.1f} ms; the last {after * 1000:.1f} ms after the last fill"
            )
    if given.part != "many":
        killed, answers, longest, counts = kill(binary, None, given.seconds)
        print(f"{killed} processes killed, {answers} answers to survivors, longest {longest:.2f} s; {counts}")


if __name__ == "__main__":
    main()
