"""Types in Luau over a long time: calls, errors, breaches, evictions and reloads at once.

    script_soak.py [--server-bin PATH] [--seconds N] [--connections N]

Every reply must be possible for its call; the calls that took effect are counted and compared with the objects at the end.
The resident memory of the second half must not exceed that of the first by more than 8 MiB and a twentieth.

Ends with status 1 and a line that says why when something does not hold.
"""

import argparse
import os
import random
import re
import shutil
import signal
import tempfile
import threading
import time

import harness
from crowd import write_rules
from harness import MIB, wait_until

SOURCES = harness.ROOT / "conformance" / "scripts"
NAMES = ("tally", "probe", "runaway", "seen", "bag", "world")
SETTINGS = 'time_limit = "10ms"\nmemory_limit = "2MiB"\nstate_max = "8KiB"\n'
FAULTY = "local T = {}\nfunction T.new( return {} end\nreturn T\n"

ALLOWED = {
    "tally:take": rb"OK|FULL",
    "probe:put": rb"1",
    "probe:text": rb"v*",
    "probe:echo": rb"a\|b",
    "probe:object": rb"\{.*\}",
    "seen:visit": rb"NEW|AGAIN",
    "seen:count": rb"\d+",
    "seen:forget": rb"FORGOTTEN",
    "bag:union": rb"(\w+\r\n)*",
    "world:set": rb"SET",
    "world:get": rb"ABSENT|v*",
    "runaway:work": rb"DONE",
}
"""What a call answers when it is no miss."""

FAILS = (
    rb"SERVER_ERROR script (probe\.raises|probe\.nested|seen\.visit_and_fail): \w+\.luau:\d+: .*",
    rb"SERVER_ERROR script probe\.put: state too large \(\d+ bytes, state_max is 8192\): use cg\.set/cg\.map",
    rb"SERVER_ERROR script runaway\.\w+: .*(took longer than 10 ms|needed more than 2 MiB|stack overflow|too deep|too large).*",
    # On a busy machine any call may take longer.
    rb"SERVER_ERROR script \w+\.\w+: (took longer than 10 ms|needed more than 2 MiB)",
    rb"SERVER_ERROR script disabled: \w+\.\w+",
    rb"CLIENT_ERROR probe\.fails: not today",
    rb"CLIENT_ERROR bag\.new: the object exists",
    rb"SERVER_ERROR (busy|out of memory storing object)",
)
REPLY = re.compile(rb"(?:%s)\r\n" % b"|".join(FAILS))
RUNAWAYS = ("loop", "caught", "pattern", "sort", "text", "table", "deep", "coroutine", "sorted", "replaced", "repeated")


class Fault(Exception):
    """What does not hold."""


class Soak:
    def __init__(self, server, directory, seconds, connections):
        self.server, self.directory, self.seconds, self.connections = server, directory, seconds, connections
        self.over, self.faults = threading.Event(), []
        self.lock = threading.Lock()
        self.granted = self.calls = self.errors = self.reloads = self.refused = 0

    def name(self, chance, n):
        kind = chance.randrange(20)
        key = chance.randrange(3000)
        if kind < 6:
            return "tally:take", f"tally:take:own{n}"
        if kind < 8:
            return "probe:put", f"probe:put:k{key}:{'v' * chance.randrange(150)}"
        return chance.choice([
            ("probe:new", f"probe:new:k{key}:v"),
            ("probe:text", f"probe:text:k{key}"),
            ("probe:echo", f"probe:echo:k{key}:a:b"),
            ("probe:object", f"probe:object:k{key}"),
            ("probe:raises", f"probe:raises:k{key}"),
            ("probe:nested", f"probe:nested:k{key}"),
            ("probe:fails", f"probe:fails:k{key}"),
            ("seen:visit", f"seen:visit:s{key % 50}:m{chance.randrange(500)}"),
            ("seen:visit_and_fail", f"seen:visit_and_fail:s{key % 50}:x"),
            ("seen:count", f"seen:count:s{key % 50}"),
            ("seen:forget", f"seen:forget:s{key % 50}"),
            ("bag:new", f"bag:new:b{key % 20}:x:y:z"),
            ("bag:union", f"bag:union:b{key % 20}:b{(key + 1) % 20}"),
            ("world:set", f"world:set:w:plain{key}:{'v' * chance.randrange(150)}:100"),
            ("world:get", f"world:get:w:plain{key}"),
            ("runaway:work", f"runaway:work:k:{chance.randrange(2000)}"),
            ("runaway:stop", f"runaway:{chance.choice(RUNAWAYS)}:k{key % 50}"),
        ])

    def caller(self, n):
        chance, granted, calls, errors = random.Random(n), 0, 0, 0
        with self.server.raw(90) as c:
            # These calls, too, may take longer than their limit.
            wait_until("its object", lambda: b"\r\nCREATED\r\n" in c.ask(b"get tally:new:own%d:1000000000\r\n" % n))
            while not self.over.is_set():
                batch = [self.name(chance, n) for _ in range(chance.choice((1, 1, 5, 30)))]
                large = chance.random() < 0.05
                if large:
                    size = chance.randrange(12_000)
                    c.send(b"ms probe::k%d %d Aput\r\n%s\r\n" % (chance.randrange(3000), size, b"v" * size))
                c.send("".join(f"get {name}\r\n" for _, name in batch).encode())
                if large:
                    line = c.line() + b"\r\n"
                    if not (line in (b"HD\r\n", b"EN\r\n", b"NF\r\n") or REPLY.fullmatch(line)):
                        raise Fault(f"ms answered {line!r}")
                for method, name in batch:
                    calls += 1
                    line = c.line()
                    if line == b"END":
                        continue
                    head = b"VALUE %s 0 " % name.encode()
                    if line.startswith(head):
                        value = c.exactly(int(line[len(head):]))
                        if c.exactly(7) != b"\r\nEND\r\n":
                            raise Fault(f"{name}: no end")
                        if not (value == b"CREATED" or re.fullmatch(ALLOWED.get(method, rb"CREATED"), value, re.S)):
                            raise Fault(f"{name} answered {value[:100]!r}")
                        granted += method == "tally:take" and value == b"OK"
                    elif REPLY.fullmatch(line + b"\r\n"):
                        errors += 1
                    else:
                        raise Fault(f"{name} answered {line[:200]!r}")
            asked = b"get tally:left:own%d\r\n" % n
            got = wait_until("what is left", lambda: (got := c.ask(asked)) and not got.startswith(b"SERVER_ERROR") and got)
        left = re.fullmatch(rb"VALUE tally:left:own%d 0 \d+\r\n(\d+)\r\nEND\r\n" % n, got)
        if not left or 1_000_000_000 - int(left[1]) != granted:
            raise Fault(f"{granted} were granted, and left is {got!r}")
        with self.lock:
            self.granted, self.calls, self.errors = self.granted + granted, self.calls + calls, self.errors + errors

    def fill(self):
        """Plain values until the memory is full: what grows from then on is something else."""
        with self.server.raw(90) as c:
            for n in range(100_000):
                c.set(b"fill:%d" % n, b"v" * 50_000)
                if n % 50 == 0 and int(c.stats()["evictions"]) > 100:
                    return
        raise Fault("the memory is never full")

    def filler(self, _):
        """More of them: objects are evicted all the time."""
        n = 0
        with self.server.raw(90) as c:
            while not self.over.wait(0.005):
                n += 1
                c.set(b"fill:%d" % n, b"v" * 50_000)

    def reloader(self, _):
        n = 0
        while not self.over.wait(0.15):
            n += 1
            path = f"{self.directory}/probe.luau"
            text = FAULTY if n % 4 == 0 else (SOURCES / "probe.luau").read_text() + f"-- {n}\n"
            with open(path + ".part", "w") as f:
                f.write(text)
            os.replace(path + ".part", path)
            log = self.server.log_path
            seen = os.path.getsize(log)
            self.server.signal(signal.SIGHUP)

            def said():
                with open(log, errors="replace") as f:
                    f.seek(seen)
                    text = f.read()
                return "nothing reloaded" if "nothing reloaded" in text else "reloaded" in text

            end = time.monotonic() + 60
            while not (what := said()):
                if time.monotonic() > end:
                    raise Fault("a reload did not end")
                time.sleep(0.01)
            if (what == "nothing reloaded") != (n % 4 == 0):
                raise Fault(f"reload {n}: {what}")
            self.reloads, self.refused = self.reloads + 1, self.refused + (n % 4 == 0)

    def run(self):
        """Returns the resident bytes of each tenth of the time."""

        def guarded(act, n):
            try:
                act(n)
            except Exception as error:  # noqa: BLE001
                self.faults.append(error)
                self.over.set()

        self.fill()
        acts = [(self.caller, n) for n in range(self.connections)] + [(self.filler, 0), (self.reloader, 0)]
        threads = [threading.Thread(target=guarded, args=act) for act in acts]
        [thread.start() for thread in threads]
        resident, begin = [], time.monotonic()
        for tenth in range(1, 11):
            largest = 0
            while time.monotonic() < begin + self.seconds * tenth / 10 and not self.over.wait(0.05):
                largest = max(largest, self.server.rss())
            resident.append(largest)
        self.over.set()
        [thread.join(120) for thread in threads]
        if self.faults:
            raise self.faults[0]
        if any(thread.is_alive() for thread in threads):
            raise Fault("a caller still waits")
        return resident


def soak(binary, seconds=30.0, connections=6):
    """Returns what was measured, as a line."""
    directory = tempfile.mkdtemp(prefix="conformance-")
    os.chmod(directory, 0o755)
    types = f"{directory}/types"
    shutil.copytree(SOURCES, types, ignore=lambda _, names: [n for n in names if ".test" in n or n.endswith(".luau") and n.split(".")[0] not in (*NAMES, "window")])
    rules = write_rules(directory, f'[objects]\ndir = "{types}"\n{SETTINGS}[objects.tally]\nevict = "never"\n')
    server = harness.Server(binary, "cattlegrid", ["--config", rules, "-m", 64, "-t", 2, "-c", 256])
    try:
        run = Soak(server, types, seconds, connections)
        resident = run.run()
        stats, plain = server.stats("objects"), server.stats()
        # What is still held is let go, and each counter is what its parts add up to.
        wait_until("no call runs", lambda: server.stats("objects")["running"] == server.stats("objects")["busy"] == "0", 60)
        first, second = max(resident[2:6]), max(resident[6:])
        line = (
            f"{run.calls} calls, {run.errors} errors, {run.granted} grants, {run.reloads} reloads ({run.refused} refused), {plain['evictions']} evictions, "
            f"{stats['script_moved']} runs met another; resident MiB by tenths of the time {' '.join(f'{r / MIB:.0f}' for r in resident)}"
        )
        if second > first * 1.05 + 8 * MIB:
            raise Fault(f"the memory grows: {line}")
        if not (run.errors and run.granted and int(plain["evictions"]) and run.reloads > 1 and run.refused):
            raise Fault(f"not everything happened: {line}")
        if not server.running():
            raise Fault(server.log())
        return line
    finally:
        server.clean()
        shutil.rmtree(directory, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server-bin", default=os.environ.get("CATTLEGRID_BIN", str(harness.ROOT / "target/fast/cattlegrid")))
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--connections", type=int, default=6)
    given = parser.parse_args()
    print(soak(os.path.abspath(given.server_bin), given.seconds, given.connections))


if __name__ == "__main__":
    main()
