#!/usr/bin/env python3
"""Which files of the source a request passes, from the socket to the socket.

    bench/files.py target/release/cattlegrid [FILE]

The server must have been built with lines: CARGO_PROFILE_RELEASE_DEBUG=line-tables-only cargo build --release. It runs
under Callgrind (Debian's valgrind), which is switched on when the connections are open and warm. Counted are the files of
this repository of which the thread that serves has executed a line, inlined or not. Prints a list for a plain `get` and for
a miss of a key under a rule, the get that is held, the fill and the reply to both; with a FILE, as engine/src/event.rs, its lines.
"""

import itertools
import os
import re
import socket
import subprocess
import sys
import tempfile
import time

TIMES = 50
NUMBERS = itertools.count()


def connect(path):
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(60)
    client.connect(path)
    return client, client.makefile("rb")


def listens(path):
    """The server binds its socket before it listens, under Callgrind on a busy machine long before."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) == 0


def exchange(pair, request, end):
    pair[0].sendall(request)
    return read(pair, end)


def read(pair, end):
    lines = []
    while not lines or lines[-1] != end:
        line = pair[1].readline()
        assert line, "the server has closed the connection"
        lines.append(line)
    return lines


def plain_get(a, _b):
    reply = exchange(a, b"get plain\r\n", b"END\r\n")
    assert len(reply) == 3, reply


def held_miss(a, b):
    key = b"page:%d" % next(NUMBERS)
    assert exchange(a, b"get %s\r\n" % key, b"END\r\n") == [b"END\r\n"]
    b[0].sendall(b"get %s\r\n" % key)
    # The server executes what it has received before it sees the next command, on its only lane.
    assert exchange(a, b"get plain\r\n", b"END\r\n")
    assert exchange(a, b"set %s 0 0 5\r\nvalue\r\n" % key, b"STORED\r\n")
    assert len(read(b, b"END\r\n")) == 3


def files(server, name, act, wanted):
    with tempfile.TemporaryDirectory() as folder:
        rules = f"{folder}/rules.toml"
        with open(rules, "w") as file:
            file.write('[[rule]]\nmatch = "page:{id}"\nhold = "50s"\nlease = "60s"\n')
        path, out = f"{folder}/socket", f"{folder}/out"
        valgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes",
                    f"--callgrind-out-file={out}"]
        run = subprocess.Popen([*valgrind, server, "-s", path, "-t", "1", f"--config={rules}", "-m", "64", "-u", "root"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while not listens(path):
                assert run.poll() is None, "the server has ended"
                time.sleep(0.1)
            # The last free connection of a holder's client is not held.
            a, b, *_idle = [connect(path) for _ in range(4)]
            exchange(a, b"set plain 0 0 5\r\nvalue\r\n", b"STORED\r\n")
            for _ in range(5):
                act(a, b)
            subprocess.run(["callgrind_control", "-i", "on", str(run.pid)], check=True, stdout=subprocess.DEVNULL)
            for _ in range(TIMES):
                act(a, b)
            subprocess.run(["callgrind_control", "-i", "off", str(run.pid)], check=True, stdout=subprocess.DEVNULL)
        finally:
            run.terminate()
            run.wait()
        threads = [executed(f"{folder}/{file}") for file in os.listdir(folder) if file.startswith("out-")]
        lines = max(threads, key=lambda thread: sum(thread.values()))
        if not lines:
            sys.exit(f"{server} has no lines: build it with CARGO_PROFILE_RELEASE_DEBUG=line-tables-only")
        by_file = {}
        for (file, _), cost in lines.items():
            by_file[file] = by_file.get(file, 0) + cost
        print(f"{name}: {len(by_file)} files, {sum(by_file.values()) / TIMES:.0f} instructions")
        for file in sorted(by_file):
            print(f"    {by_file[file] / TIMES:8.1f} instructions  {file}")
            for (of, line), cost in sorted(lines.items()):
                if of == file and wanted and file.endswith(wanted):
                    print(f"        {cost / TIMES:8.1f}  line {line}")


def executed(profile):
    """Instructions by file and line of a thread."""
    names, current, costs, skip, at = {}, None, {}, False, 0
    with open(profile) as text:
        for line in text:
            if match := re.match(r"(fl|fi|fe)=\((\d+)\)(?: (.*))?$", line):
                if match[3]:
                    names[match[2]] = match[3]
                current = names[match[2]]
            elif match := re.match(r"cf[il]=\((\d+)\)(?: (.*))?$", line):
                if match[2]:
                    names[match[1]] = match[2]
            elif line.startswith("calls="):
                skip = True
            elif re.match(r"[+\-*\d]", line):
                # The first column is a line, or how far it is from the one before.
                where = line.split()[0]
                at = at + int(where) if where[0] in "+-" else at if where == "*" else int(where)
                # The line behind `calls` has what the called function costs.
                # Code of line 0 is the compiler's own.
                if not skip and at and current and "/rustc/" not in current and (match := re.search(r"(?:^|/)(crates/[^/]+/src/.*\.rs)$", current)):
                    costs[match[1], at] = costs.get((match[1], at), 0) + int(line.split()[1])
                skip = False
    return costs


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    wanted = sys.argv[2] if len(sys.argv) == 3 else None
    files(sys.argv[1], "plain get", plain_get, wanted)
    files(sys.argv[1], "held miss and its fill", held_miss, wanted)
