"""What the options of rules do that renew values: `ttl_jitter`, `early`, `wait`, `grace_on_error`, and the gradual purge of a tag, compared
with memcached and with the same rule without the option.

    target/conformance/venv/bin/python conformance/refresh_loads.py --server-bin target/fast/cattlegrid [--rounds 3] [--rows jitter ...]

For each row the same load runs on memcached, on the server under the rule without the option and under the rule with it, all at the same
time, each on a server of its own; with `--apart` one after the other. Threads with a connection each read keys, compute what they miss
and set it. Printed is a line for each target, with medians of the rounds:

* `gets`: all gets that are counted, those from the time on at which the row begins to count; `computed`: computations that began
* `most_in_half_s`: the largest number of computations that began within any 0.5 s
* `waited`: gets that missed or were held. `slow`: gets that took longer than 20 ms for their caller, with the computation after a miss,
  on a busy machine also others; `p99_ms`, `p999_ms`: of the same times
* `get_p99_ms`: of the gets alone, so that of those that waited
* `outdated`: the share of gets that were answered with a version older than the newest that the source had when the get was sent
* `failed`: errors that callers saw, `attempts`: computations begun while the backend was down, `served`: the share of the gets sent
  while it was down that got a value, `renewed_s`: how long after it was up again the last key was computed
* the lines of `stats rules` that the row is about, as they have risen since the row begins to count

Rows: `jitter` keys are stored together and expire together. `early` values are renewed before they expire, `early-popular` of keys that
all threads read all the time, so that all would wait. `wait` gets wait for the
new value before they get the old one; the old one is a moment older than its time to live, so the share changes little. `wait-bursts`
the same where it matters: a key is read by all threads at once, and then by none for longer than its time to live. `error` the backend
is down for a while. `purge` a tag is invalidated, at once and gradually: only where it is named. It begins a minute
after the server's start: before, values are taken for such that may have been computed before the start, and soon become old.
"""

import argparse
import concurrent.futures
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from crowd import percentiles
from harness import Server

HOLD = 'hold = "400ms"\n'

# Seconds. ttl: of a value. computing: from, to. think: between the gets of a thread. count_from: gets before are not counted. down: the
# backend is down from, to. rises: between the versions of a key. burst: a key is read by all threads at once, the keys in turn. settle:
# after the server's start.
ROWS = {
    "jitter": {
        "load": {"keys": 400, "ttl": 10, "threads": 8, "seconds": 35, "computing": [0.002, 0.002], "think": 0.006, "stored": True},
        "targets": {"hold": HOLD, "jitter 10%": HOLD + 'ttl_jitter = "10%"\n', "jitter 50%": HOLD + 'ttl_jitter = "50%"\n'},
        "show": ["gets", "computed", "most_in_half_s", "ttl_shortened"],
    },
    "early": {
        "load": {"keys": 20, "ttl": 10, "threads": 16, "seconds": 34, "computing": [0.1, 0.1], "think": 0.04, "count_from": 12},
        "targets": {"hold": HOLD, "early 0.1": HOLD + "early = { share = 0.1 }\n", "early auto": HOLD + 'early = "auto"\n'},
        "show": ["gets", "computed", "waited", "slow", "p99_ms", "p999_ms", "leases_early"],
    },
    "early-popular": {
        "load": {"keys": 2, "ttl": 10, "threads": 16, "seconds": 34, "computing": [0.1, 0.1], "think": 0.04, "count_from": 12},
        "targets": {"hold": HOLD, "early 0.1": HOLD + "early = { share = 0.1 }\n", "early auto": HOLD + 'early = "auto"\n'},
        "show": ["gets", "computed", "waited", "slow", "p99_ms", "p999_ms", "leases_early"],
    },
    "wait": {
        "load": {"keys": 20, "ttl": 2, "threads": 16, "seconds": 20, "computing": [0.01, 0.03], "think": 0.02, "count_from": 3, "rises": 1},
        "targets": {"grace": 'grace = "30s"\n', "wait 50ms": 'grace = "30s"\nwait = "50ms"\n'},
        "show": ["gets", "computed", "outdated", "get_p99_ms", "p99_ms", "stale_served", "held_filled", "held_old"],
    },
    "wait-bursts": {
        "load": {"keys": 20, "ttl": 2, "threads": 16, "seconds": 20, "computing": [0.01, 0.03], "burst": 0.2, "count_from": 4.5, "rises": 1},
        "targets": {"grace": 'grace = "30s"\n', "wait 50ms": 'grace = "30s"\nwait = "50ms"\n'},
        "show": ["gets", "computed", "outdated", "get_p99_ms", "p99_ms", "stale_served", "held_filled", "held_old"],
    },
    "error": {
        "load": {"keys": 20, "ttl": 2, "threads": 16, "seconds": 30, "computing": [0.05, 0.05], "think": 0.02, "down": [5, 20]},
        "targets": {"grace": HOLD + 'grace = "2s"\n', "on_error 1h": HOLD + 'grace = "2s"\ngrace_on_error = "1h"\n'},
        "show": ["gets", "failed", "attempts", "served", "renewed_s", "get_p99_ms", "p99_ms", "stale_served", "stale_on_error"],
    },
    "purge": {
        "load": {"keys": 400, "ttl": 0, "threads": 8, "seconds": 20, "computing": [0.002, 0.002], "think": 0.006, "stored": True, "purge": 5},
        "targets": {"at once": HOLD + 'grace = "30s"\ntags = ["all"]\n', "within 10 s": HOLD + 'grace = "30s"\ntags = ["all"]\n'},
        "settle": 61,
        "purges": {"at once": "md all G I\r\n", "within 10 s": "md all G I T10\r\n"},
        "show": ["gets", "computed", "most_in_half_s"],
    },
}

USUAL = ["jitter", "early", "early-popular", "wait", "wait-bursts", "error"]


class Down(Exception):
    """The backend is down."""


class Load:
    """The threads of one target. `seen` has for each get: when it was sent, how long it took, how long with the computation, its
    result ("hit", "missed", "failed"), whether what it was answered with was outdated, and the key."""

    def __init__(self, row, port, seed):
        self.row, self.port, self.seed = row, port, seed
        chance = random.Random(seed)
        self.phases = [chance.random() for _ in range(row["keys"])]
        self.seen, self.begun, self.before = [], [], {}

    def connect(self):
        from pymemcache.client.base import Client

        return Client(("127.0.0.1", self.port), no_delay=True, timeout=30)

    def now(self):
        return time.monotonic() - self.start

    def version(self, key, at):
        """The newest version that the source has. Keys rise at different times."""
        rises = self.row.get("rises")
        return int(at / rises + self.phases[key]) if rises else 0

    def compute(self, key, chance):
        began = self.now()
        self.begun.append(began)
        value = b"%d" % self.version(key, began)
        time.sleep(chance.uniform(*self.row["computing"]))
        begin, end = self.row.get("down", (0, 0))
        if begin <= began < end:
            raise Down
        return value

    def read(self, client, key, chance):
        name, sent = f"key:{key}", self.now()
        value = client.get(name)
        answered, came, outdated = self.now(), "hit", False
        if value is not None:
            outdated = int(value) < self.version(key, sent)
        else:
            try:
                client.set(name, self.compute(key, chance), expire=self.row["ttl"], noreply=False)
                came = "missed"
            except Down:
                came = "failed"
        self.seen.append((sent, answered - sent, self.now() - sent, came, outdated, key))

    def alone(self, number):
        """Reads keys at random, thinking in between."""
        chance, client = random.Random(self.seed * 1000 + number), self.connect()
        time.sleep(chance.random() * self.row["think"])
        while self.now() < self.row["seconds"]:
            self.read(client, chance.randrange(self.row["keys"]), chance)
            time.sleep(chance.uniform(0, self.row["think"]))
        client.close()

    def together(self, number):
        """Reads the keys in turn, each at the same time as all other threads."""
        chance, client, turn = random.Random(self.seed * 1000 + number), self.connect(), 0
        while (at := turn * self.row["burst"]) < self.row["seconds"]:
            time.sleep(max(0, at + chance.random() * 0.005 - self.now()))
            self.read(client, turn % self.row["keys"], chance)
            turn += 1
        client.close()

    def purge(self):
        client = self.connect()
        time.sleep(max(0, self.row["purge"] - self.now()))
        if command := self.row.get("purge_by"):
            client.raw_command(command.encode().removesuffix(b"\r\n"))
        else:
            client.delete_many([f"key:{key}" for key in range(self.row["keys"])], noreply=False)
        client.close()

    def note_before(self):
        """The lines of `stats rules` when the row begins to count."""
        time.sleep(max(0, self.row["count_from"] - self.now()))
        self.before = self.rule()

    def rule(self):
        client = self.connect()
        lines = {name.decode(): value for name, value in client.stats("rules").items()}
        client.close()
        return {name[2:]: int(value) for name, value in lines.items() if name.startswith("1:") and str(value).isdigit()}

    def run(self):
        self.start = time.monotonic()
        if self.row.get("stored"):
            client = self.connect()
            client.set_many({f"key:{key}": b"0" for key in range(self.row["keys"])}, expire=self.row["ttl"], noreply=False)
            client.close()
        act = self.together if "burst" in self.row else self.alone
        threads = [threading.Thread(target=act, args=[n]) for n in range(self.row["threads"])]
        if "purge" in self.row:
            threads.append(threading.Thread(target=self.purge))
        if self.row["ruled"] and "count_from" in self.row:
            threads.append(threading.Thread(target=self.note_before))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.result()

    def result(self):
        count_from = self.row.get("count_from", 0)
        seen = [get for get in self.seen if get[0] >= count_from]
        begun = sorted(at for at in self.begun if at >= count_from)
        begin, end = self.row.get("down", (0, 0))
        while_down = [came for sent, _, _, came, *_ in seen if begin <= sent < end]
        _, p99, _ = percentiles([get[2] for get in seen])
        _, get_p99, _ = percentiles([get[1] for get in seen])
        wholes = sorted(get[2] for get in seen)
        rule = self.rule() if self.row["ruled"] else {}
        rule = {name: risen for name, value in rule.items() if (risen := value - self.before.get(name, 0))}
        return {
            "rule": rule,
            "waited": sum(get[3] != "hit" for get in seen) + rule.get("held", 0) - rule.get("hold_expired", 0),
            "gets": len(seen),
            "computed": len(begun),
            "most_in_half_s": most_within(begun, 0.5),
            "slow": sum(whole > 0.02 for whole in wholes),
            "p99_ms": round(p99 * 1000, 1),
            "p999_ms": round(wholes[len(wholes) * 999 // 1000] * 1000, 1),
            "get_p99_ms": round(get_p99 * 1000, 1),
            "outdated": round(sum(get[4] for get in seen) / len(seen), 4),
            "failed": sum(get[3] == "failed" for get in seen),
            "attempts": sum(begin <= at < end for at in begun),
            "served": round(sum(came == "hit" for came in while_down) / max(1, len(while_down)), 3),
            "renewed_s": round(max(self.renewed(key, end) for key in range(self.row["keys"])), 1),
        }

    def renewed(self, key, since):
        """How long after this time the key was computed; if it was not, the time until the end."""
        return min((get[0] for get in self.seen if get[5] == key and get[0] >= since and get[3] == "missed"), default=self.row["seconds"]) - since


def most_within(times, seconds):
    """The largest number of these times, which are in order, within a number of seconds."""
    most = first = 0
    for last, at in enumerate(times):
        while times[first] <= at - seconds:
            first += 1
        most = max(most, last - first + 1)
    return most


def measure(binary, row, target, seed):
    """The load's result on a server of its own, from a process of its own; for memcached `target` is None."""
    load = {**row["load"], "ruled": target is not None}
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        arguments = []
        if target is not None:
            file.write(f'[[rule]]\nmatch = "key:{{id}}"\n{row["targets"][target]}')
            file.flush()
            arguments = ["--config", file.name]
            load["purge_by"] = row.get("purges", {}).get(target)
        server = Server(pathlib.Path(binary).resolve(), "memcached" if target is None else "cattlegrid", arguments)
        try:
            time.sleep(row.get("settle", 0))
            command = [sys.executable, __file__, "--child", json.dumps(load), str(server.port), str(seed)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout)
        finally:
            server.clean()


def all_targets(binary, row, seed, apart=False):
    """The results of the same load on memcached and under each rule of the row, at the same time or one after the other."""
    names = ["memcached", *row["targets"]]
    with concurrent.futures.ThreadPoolExecutor(1 if apart else len(names)) as pool:
        runs = {
            name: pool.submit(measure, "/usr/bin/memcached", row, None, seed)
            if name == "memcached"
            else pool.submit(measure, binary, row, name, seed)
            for name in names
        }
        return {name: run.result() for name, run in runs.items()}


def show(name, row, rounds):
    """Prints a line for each target, of the medians of the rounds."""
    print(f"\n{name:12} {'':12}" + "".join(f"{column:>15}" for column in row["show"]), flush=True)
    for target in rounds[0]:
        line = f"{'':12} {target:12}"
        for column in row["show"]:
            values = [got[target].get(column, got[target]["rule"].get(column, 0)) for got in rounds]
            # memcached has no rules.
            has = column in rounds[0][target] or target != "memcached"
            line += f"{round(statistics.median(values), 4) if has else '':>15}"
        print(line, flush=True)


def main():
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(Load(json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])).run()))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server-bin", required=True)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--rows", nargs="*", choices=ROWS, default=USUAL)
    parser.add_argument("--apart", action="store_true", help="the targets one after the other")
    parser.add_argument("--json", help="a file for the results of each round, a line each")
    given = parser.parse_args()
    for name in given.rows:
        rounds = []
        for seed in range(1, given.rounds + 1):
            rounds.append(all_targets(given.server_bin, ROWS[name], seed, given.apart))
            if given.json:
                with open(given.json, "a") as file:
                    file.write(json.dumps({"row": name, "seed": seed, "results": rounds[-1]}) + "\n")
        show(name, ROWS[name], rounds)


if __name__ == "__main__":
    main()
