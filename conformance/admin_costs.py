"""What monitoring costs: instructions of a get with everything on and off, and the processor time of scrapes under load.

    python admin_costs.py --server ../target/fast/cattlegrid [--scrape-seconds 20]

"On" is `--admin` (with it the sketch of hot keys, and the scrapes themselves once a second), `--slow-log 1ms`, `--log-format json` and `-v`; the histogram
of latencies is always there. Instructions are those of the lane in the server as it ships, stepped through one by one, over gets that each come alone:
the difference between runs of two lengths, so that about one in 64 is sampled. It hardly depends on the load of the machine. Seconds of processor are the kernel's, of the thread `admin` and of all others, while
`cattlegrid bench` sends gets as fast as they are answered.
"""

import argparse
import ctypes
import os
import pathlib
import re
import statistics
import subprocess
import sys
import threading
import time
import urllib.request

import harness

ON = ("--slow-log", "1ms", "--log-format", "json", "-v")
GETS = (200, 2_248)


CLIENT = """
import socket, sys
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for _ in range(int(sys.argv[2])):
    s.sendall(b"get page:1\\r\\n")
    reply = s.recv(4096)
    while not reply.endswith(b"END\\r\\n"):
        reply += s.recv(4096)
"""
SEIZE, STEP, INTERRUPT, DETACH = 0x4206, 9, 0x4207, 17
WALL = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def ptrace(request, task):
    assert LIBC.ptrace(request, task, None, None) == 0, os.strerror(ctypes.get_errno())


def instructions(server, gets):
    """Of the lane that answers this many gets of a client: one step at a time, a system call is one."""
    lane = next(int(task.name) for task in pathlib.Path(f"/proc/{server.pid}/task").iterdir() if (task / "comm").read_text() == "lane 0\n")
    over, steps = threading.Event(), 0
    ptrace(SEIZE, lane)
    ptrace(INTERRUPT, lane)
    os.waitpid(lane, WALL)

    def ask():
        subprocess.run([sys.executable, "-c", CLIENT, str(server.port), str(gets)], check=True)
        over.set()
        # The lane sleeps: another client wakes it for its last step.
        server.connect().close()

    client = threading.Thread(target=ask)
    client.start()
    while not over.is_set():
        ptrace(STEP, lane)
        os.waitpid(lane, WALL)
        steps += 1
    ptrace(DETACH, lane)
    client.join()
    return steps


def per_get(program, args):
    """Between runs of two lengths."""
    server = harness.Server(program, "cattlegrid", ["-t", "1", *args])
    with server.raw() as raw:
        raw.set(b"page:1", b"x" * 100)
    few, many = (instructions(server, gets) for gets in GETS)
    server.clean()
    return (many - few) / (GETS[1] - GETS[0])


def seconds_of_threads(pid):
    """Seconds of processor by thread name."""
    found = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        name, fields = re.match(r"\d+ \((.*)\) (.*)", (task / "stat").read_text()).groups()
        ticks = sum(map(int, fields.split()[11:13]))
        # The kernel's ticks are too coarse for a thread that works for some milliseconds a second.
        exact = int((task / "schedstat").read_text().split()[0]) / 1e9
        found[name] = found.get(name, 0) + (exact or ticks / os.sysconf("SC_CLK_TCK"))
    return found


def under_load(program, args, port, seconds):
    """(seconds of the thread admin, of all others, gets, scrapes) while a load is on; `port`: scraped once a second, if there is one."""
    server = harness.Server(program, "cattlegrid", ["-t", "1", *args])
    address = f"127.0.0.1:{server.port}"
    fill = subprocess.run([program, "bench", address, "-s", "1"], capture_output=True, text=True, check=True)
    assert fill.returncode == 0
    load = subprocess.Popen(
        [program, "bench", address, "-c", "50", "-d", "4", "-s", str(seconds + 2)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    time.sleep(1)
    before, gets = seconds_of_threads(server.pid), int(server.stats()["cmd_get"])
    end, scrapes = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        if port:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as reply:
                assert b"cattlegrid" in reply.read()
            scrapes += 1
        time.sleep(1)
    after, gets = seconds_of_threads(server.pid), int(server.stats()["cmd_get"]) - gets
    load.communicate(timeout=60)
    server.clean()
    spent = {name: after[name] - before.get(name, 0) for name in after}
    admin = spent.pop("admin", 0.0)
    return admin, sum(spent.values()), gets, scrapes


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--scrape-seconds", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    program = str(pathlib.Path(asked.server).resolve())

    def on():
        port = harness.free_port()
        return (*ON, "--admin", f"127.0.0.1:{port}"), port

    off, all_on = per_get(program, ()), per_get(program, on()[0])
    print(f"instructions a get: off {off:.0f}, on {all_on:.0f}: {all_on - off:+.0f}")
    micros = {"off": [], "on": []}
    for _ in range(asked.rounds):
        for name in micros:
            args, port = on() if name == "on" else ((), None)
            admin, others, gets, scrapes = under_load(program, args, port, asked.scrape_seconds)
            micros[name].append(1e6 * others / gets)
            text = f"{name}: {gets / asked.scrape_seconds:,.0f} gets/s, {1e6 * others / gets:.3f} us of processor a get"
            if scrapes:
                text += f"; thread admin {100 * admin / asked.scrape_seconds:.2f} % of a core, {1000 * admin / scrapes:.2f} ms a scrape"
            print(text)
    middle = {name: statistics.median(all_of) for name, all_of in micros.items()}
    print(f"processor a get, medians: off {middle['off']:.3f} us, on {middle['on']:.3f} us: {100 * (middle['on'] / middle['off'] - 1):+.1f} %")


if __name__ == "__main__":
    main()
