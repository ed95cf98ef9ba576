#!/usr/bin/env python3
"""What open dashboards cost: CPU time of the thread `admin` while the server is loaded, without and with 1 and 50 streams.

    python3 bench/dashboards.py target/fast/cattlegrid [--seconds 20] [--rules 50] [--plain]

Load: `cattlegrid bench` with 50 connections, on keys of which half have rules. The streams ask for gzip, as browsers do, unless --plain.
"""

import argparse
import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import time


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def cpu_ns(pid, name):
    """CPU time of the threads of this name."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/comm") as f:
            if f.read().strip() == name:
                with open(f"/proc/{pid}/task/{task}/schedstat") as f:
                    total += int(f.read().split()[0])
    return total


class Streams:
    """Readers of the stream, in a thread."""

    def __init__(self, port, count, plain):
        self.bytes, self.stops = 0, False
        self.selector = selectors.DefaultSelector()
        encoding = "" if plain else "Accept-Encoding: gzip\r\n"
        for _ in range(count):
            s = socket.create_connection(("127.0.0.1", port))
            s.sendall(f"GET /events HTTP/1.1\r\nHost: localhost\r\n{encoding}\r\n".encode())
            self.selector.register(s, selectors.EVENT_READ)
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self):
        while not self.stops:
            for key, _ in self.selector.select(0.2):
                got = key.fileobj.recv(1 << 16)
                assert got, "a stream has ended"
                self.bytes += len(got)

    def close(self):
        self.stops = True
        self.thread.join()
        for key in list(self.selector.get_map().values()):
            key.fileobj.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("server")
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--rules", type=int, default=50)
    parser.add_argument("--plain", action="store_true")
    given = parser.parse_args()
    port, admin = free_port(), free_port()
    with tempfile.TemporaryDirectory() as directory:
        rules = os.path.join(directory, "rules.toml")
        with open(rules, "w") as f:
            for n in range(given.rules):
                f.write(f'[[rule]]\nmatch = "{chr(97 + n % 26)}{n}:{{id}}"\nhold = "1s"\ngrace = "10s"\n')
        log = open(os.path.join(directory, "log"), "w")
        words = [given.server, "-p", str(port), "-t", "2", "-m", "256", "--config", rules, "--admin", f"127.0.0.1:{admin}"]
        server = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            for _ in range(200):
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except OSError:
                    time.sleep(0.05)
            under_rules(port, given.rules)
            print("| dashboards | requests/s | CPU of `admin`, of a core | bytes of a stream a second |\n|---|---|---|---|")
            for count in (0, 1, 50):
                measure(given, port, admin, server.pid, count)
        finally:
            server.terminate()
            server.wait()


def under_rules(port, count):
    """So that each rule has figures."""
    with socket.create_connection(("127.0.0.1", port)) as s:
        for n in range(count):
            name = f"{chr(97 + n % 26)}{n}:1"
            s.sendall(f"get {name}\r\nset {name} 0 0 1\r\nx\r\nget {name}\r\n".encode())
        time.sleep(0.5)
        s.recv(1 << 20)


def measure(given, port, admin, pid, count):
    streams = Streams(admin, count, given.plain)
    busy, stop = threading.Event(), threading.Event()

    def change():
        """Figures of all rules change between two events."""
        busy.set()
        while not stop.is_set():
            under_rules(port, given.rules)

    changer = threading.Thread(target=change)
    changer.start()
    words = [given.server, "bench", f"127.0.0.1:{port}", "-c", "50", "-d", "4", "-s", str(given.seconds), "--json"]
    load = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    time.sleep(3)
    began, before, bytes_before = time.monotonic(), cpu_ns(pid, "admin"), streams.bytes
    time.sleep(given.seconds - 5)
    spent = (cpu_ns(pid, "admin") - before) / (time.monotonic() - began) / 1e9
    took = (streams.bytes - bytes_before) / (time.monotonic() - began) / max(count, 1)
    out, _ = load.communicate()
    stop.set()
    changer.join()
    streams.close()
    said = json.loads(out)
    print(f"| {count} | {find(said):,.0f} | {spent * 100:.2f} % | {took:,.0f} |")
    sys.stdout.flush()


def find(said):
    """The requests a second that the load driver says."""
    if isinstance(said, dict):
        for name, value in said.items():
            if "per_second" in name and isinstance(value, (int, float)):
                return value
        said = list(said.values())
    if isinstance(said, list):
        for one in said:
            if isinstance(one, (dict, list)) and (found := find(one)):
                return found
    return 0


if __name__ == "__main__":
    main()
