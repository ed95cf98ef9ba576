"""What a fleet costs: the time until a bump is obeyed by all nodes, alone and during an election; bumps a second with one node, three, and
many that are simulated; the processor's time of a hit, with a log and without; memory.

    python nodes_costs.py --server-bin ../target/release/cattlegrid
"""

import argparse
import pathlib
import shutil
import socket
import subprocess
import tempfile
import threading
import time

from etcds import Etcd
from harness import Server, wait_until

RULES = """
[[rule]]
match = "page:{{user}}"
tags = ["user:{{user}}"]
owner = "connection"
{log}
"""

LOG = """
[follow.bumps]
servers = [{servers}]
bump_reply = "{reply}"
"""


def percentiles(times):
    times = sorted(times)
    return ", ".join(f"{name} {times[min(int(len(times) * part), len(times) - 1)] * 1000:.1f} ms"
                     for name, part in (("p50", 0.5), ("p99", 0.99), ("longest", 1)))


class Talk:
    def __init__(self, server):
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        self.read = self.socket.makefile("rb")

    def ask(self, data, lines=1):
        self.socket.sendall(data)
        return [self.read.readline() for _ in range(lines)]

    def get(self, key):
        first = self.ask(b"get %s\r\n" % key)[0]
        if first == b"END\r\n":
            return None
        value = self.read.readline()
        self.read.readline()
        return value


def start(options, folder, etcd=None, reply="commit"):
    servers = ", ".join(f'"{own}"' for own in etcd.endpoints) if etcd else ""
    file = folder / f"{time.monotonic_ns()}.toml"
    file.write_text(RULES.format(log=LOG.format(servers=servers, reply=reply) if etcd else ""))
    server = Server(options.server_bin, "cattlegrid", ["--config", str(file), "-t", "2"])
    if etcd:
        wait_until("it is confirmed", lambda: server.stats("follow").get("bumps:state") == "confirmed", 60)
    return server


def lag(servers, count):
    """From before a bump is sent until no node serves the page."""
    talks = [Talk(server) for server in servers]
    times, replies = [], []
    for turn in range(count):
        for talk in talks:
            while talk.get(b"page:1") is None:
                talk.ask(b"set page:1 0 0 1\r\nx\r\n")
        begun = time.monotonic()
        talks[turn % len(talks)].ask(b"delete @tag:user:1\r\n")
        replies.append(time.monotonic() - begun)
        for talk in talks:
            while talk.get(b"page:1") is not None:
                pass
        times.append(time.monotonic() - begun)
    return times, replies


def rate(servers, seconds, tags=100_000):
    """Bumps that all nodes have obeyed in a second: pipelined, of tags that all differ, by two connections a node."""
    sent, stop = [0], threading.Event()

    def run(server, base):
        talk, number = Talk(server), base
        while not stop.is_set():
            lines = b"".join(b"delete @tag:t:%d\r\n" % ((number + n) % tags) for n in range(200))
            talk.ask(lines, 200)
            number += 200
            sent[0] += 200
    threads = [threading.Thread(target=run, args=(server, at * 10_000)) for at, server in enumerate(servers * 2)]
    begun, before = time.monotonic(), [int(s.stats("follow")["bumps:bumps"]) for s in servers]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    took = time.monotonic() - begun
    time.sleep(1)
    obeyed = [int(s.stats("follow")["bumps:bumps"]) - b for s, b in zip(servers, before)]
    return sent[0] / took, [own / took for own in obeyed]


def cpu_of_hits(server, seconds=5):
    talk = Talk(server)
    talk.get(b"page:1")
    talk.ask(b"set page:1 0 0 1\r\nx\r\n")
    lines, count = b"get page:1\r\n" * 100, 0
    before, end = server.cpu_seconds(), time.monotonic() + seconds
    while time.monotonic() < end:
        talk.ask(lines, 300)
        count += 100
    return (server.cpu_seconds() - before) / count * 1e6


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server-bin", required=True)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=5)
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="cattlegrid-costs"))
    etcd, servers = Etcd(), []
    try:
        alone = start(options, folder)
        print(f"without a log: {cpu_of_hits(alone):.2f} us of the processor a hit; {alone.rss() >> 10} KiB")
        servers = [start(options, folder, etcd) for _ in range(3)]
        print(f"with a log: {cpu_of_hits(servers[0]):.2f} us a hit; {servers[0].rss() >> 10} KiB")
        before, begun = servers[0].cpu_seconds(), time.monotonic()
        time.sleep(5)
        print(f"at rest: {(servers[0].cpu_seconds() - before) / (time.monotonic() - begun) * 100:.2f} % of a processor")
        times, replies = lag(servers, options.count)
        print(f"obeyed by all of 3: {percentiles(times)}; replies: {percentiles(replies)}")
        slow, fast = rate(servers[:1], options.seconds), rate(servers, options.seconds)
        print(f"bumps a second: one writes {slow[0]:.0f}; three write {fast[0]:.0f}, each obeys {min(fast[1]):.0f} of others")
        watches = [subprocess.Popen(["etcdctl", "--endpoints", etcd.endpoints[n % 3], "watch", "--prefix", "/cattlegrid/"],
                                    stdout=subprocess.DEVNULL) for n in range(97)]
        time.sleep(3)
        times, _ = lag(servers, options.count // 4)
        crowd = rate(servers, options.seconds)
        print(f"beside 97 watches of nodes that are simulated: {percentiles(times)}; three write {crowd[0]:.0f} a second")
        for watch in watches:
            watch.kill()
            watch.wait()
        elections = []
        for _ in range(5):
            talk, leader = Talk(servers[0]), etcd.leader()
            etcd.kill(leader)
            begun = time.monotonic()
            while talk.ask(b"md user:1 G B\r\n") != [b"HD\r\n"]:
                time.sleep(0.01)
            elections.append(time.monotonic() - begun)
            etcd.start(leader)
            wait_until("all are confirmed", lambda: all(s.stats("follow")["bumps:state"] == "confirmed" for s in servers), 30)
        print(f"barriers again after the leader was killed: {percentiles(elections)}")
        print(f"memory at the end: {[server.rss() >> 10 for server in servers]} KiB; etcd: {etcd.ctl('endpoint', 'status')}")
    finally:
        for server in [alone, *servers]:
            server.clean()
        etcd.clean()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
