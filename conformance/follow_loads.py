"""An application that never deletes: writers change rows, readers read through the cache, and each value that is served is
compared with what was committed before its get was sent.

    python follow_loads.py --seconds 300 --writers 20 --readers 50
"""

import argparse
import bisect
import collections
import json
import os
import pathlib
import random
import tempfile
import threading
import time

import psycopg
import pymemcache.client.base

ROWS = 200

EPOCH = 1_000_000
"""More versions of a row than there are between two restores."""

VERSION = f"version + {EPOCH} * (SELECT number FROM epoch)"

RULES = """
[[rule]]
match = "page:{{id}}"
hold = "400ms"
grace = "{grace}"
tags = ["row:{{id}}"]
{rule}

[follow.shop]
url = "postgres://postgres@127.0.0.1:{port}/postgres"
max_lag = "{max_lag}"
when_behind = "{when_behind}"
{more}

[[follow.shop.table]]
table = "public.rows"
bump = ["row:{{id}}"]
"""


def rules(port, grace="0s", max_lag="3s", when_behind="refresh", more="", rule=""):
    return RULES.format(port=port, grace=grace, max_lag=max_lag, when_behind=when_behind, more=more, rule=rule)


def prepare(database):
    database.sql(
        "CREATE TABLE rows (id int PRIMARY KEY, version int NOT NULL)",
        f"INSERT INTO rows SELECT n, 0 FROM generate_series(1, {ROWS}) n",
        # Of a database that was restored: the versions of before count as older.
        "CREATE TABLE epoch (number int NOT NULL)",
        "INSERT INTO epoch VALUES (0)",
        "CREATE PUBLICATION cattlegrid FOR TABLE rows",
    )


class Commits:
    """When each version of each row was answered."""

    def __init__(self):
        self.lock = threading.Lock()
        self.versions = collections.defaultdict(lambda: ([0], [0.0]))

    def add(self, row, version, at):
        with self.lock:
            versions, times = self.versions[row]
            place = bisect.bisect(versions, version)
            versions.insert(place, version)
            times.insert(place, at)

    def age(self, row, version, asked):
        """For how long a newer version had been answered when a get was sent; 0: it was the newest."""
        with self.lock:
            versions, times = self.versions[row]
            newer = min(times[bisect.bisect(versions, version):], default=asked)
            return max(0.0, asked - newer)


class Load:
    """Threads of an application. `pause`: of a writer between two commits, in seconds; `think`: of a reader between two gets."""

    table = "rows"

    def __init__(self, database, port, writers=8, readers=12, pause=0.02, seed=1, think=0.0):
        self.database, self.port, self.pause = database, port, pause
        self.think = think
        self.worst, self.begun = (0.0,), time.monotonic()
        self.commits, self.ages, self.errors = Commits(), [], []
        self.gets = self.hits = self.computed = self.written = 0
        self.stop = threading.Event()
        self.lock = threading.Lock()
        jobs = [(self.write, seed * 1000 + n) for n in range(writers)]
        jobs += [(self.read, seed * 1000 + 500 + n) for n in range(readers)]
        self.threads = [threading.Thread(target=self.guard, args=job, daemon=True) for job in jobs]

    def guard(self, job, seed):
        """A database or a server that is not there is no fault of the load: it goes on."""
        while not self.stop.is_set():
            try:
                job(random.Random(seed))
            except (psycopg.Error, OSError) as error:
                self.errors.append(error)
                time.sleep(0.05)
            except pymemcache.exceptions.MemcacheError as error:
                self.errors.append(error)

    def write(self, draw):
        with self.database.connect() as connection:
            while not self.stop.is_set():
                row = draw.randint(1, ROWS)
                # The version must be known although the reply may be lost: then nobody was told of the commit.
                found = connection.execute("UPDATE rows SET version = version + 1 WHERE id = %s RETURNING " + VERSION, (row,))
                self.commits.add(row, found.fetchone()[0], time.monotonic())
                self.written += 1
                time.sleep(draw.random() * 2 * self.pause)

    def read(self, draw):
        client = pymemcache.client.base.Client(("127.0.0.1", self.port), timeout=30, connect_timeout=5, no_delay=True)
        with self.database.connect() as connection:
            while not self.stop.is_set():
                if self.think:
                    time.sleep(draw.random() * 2 * self.think)
                row = draw.randint(1, ROWS)
                asked = time.monotonic()
                value = client.get(f"page:{row}")
                self.gets += 1
                if value is None:
                    found = connection.execute(f"SELECT {VERSION} FROM {self.table} WHERE id = %s", (row,)).fetchone()
                    time.sleep(draw.random() * 0.01)
                    client.set(f"page:{row}", str(found[0]))
                    self.computed += 1
                    continue
                self.hits += 1
                age = self.commits.age(row, int(value), asked)
                if age > 0:
                    with self.lock:
                        self.ages.append(age)
                        self.worst = max(self.worst, (round(age, 2), round(asked - self.begun, 2), f"row {row}", int(value)))

    def restored(self, epoch, rows):
        """The database has these rows again, from now on."""
        for row, version in rows:
            self.commits.add(row, EPOCH * epoch + version, time.monotonic())

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join(40)

    def longest(self):
        with self.lock:
            return max(self.ages, default=0.0)

    def report(self):
        with self.lock:
            ages = sorted(self.ages)
        share = lambda part: ages[min(len(ages) - 1, int(part * len(ages)))] * 1000 if ages else 0.0
        return {
            "gets": self.gets, "hits": self.hits, "computed": self.computed, "written": self.written,
            "older than a commit": len(ages), "p50 ms": round(share(0.5), 2), "p99 ms": round(share(0.99), 2),
            "longest ms": round(share(1), 2), "errors": len(self.errors),
        }


def main():
    import harness
    from database import Database

    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--server", default=str(harness.ROOT / "target/fast/cattlegrid"))
    options.add_argument("--seconds", type=float, default=30)
    options.add_argument("--writers", type=int, default=20)
    options.add_argument("--readers", type=int, default=50)
    options.add_argument("--think", type=float, default=0.0, help="seconds of a reader between two gets: without it the load is as much "
                         "as the machine can do, and what is measured is how long threads wait for a processor")
    options.add_argument("--pause", type=float, default=0.02, help="seconds of a writer between two commits")
    options.add_argument("--settings", default="", help="lines of postgresql.conf")
    options.add_argument("--rule", default="", help="lines of the rule, such as 'ambiguous = \"drop\"'")
    options.add_argument("--standby", choices=("none", "slow", "stops"), default="none",
                         help="a synchronous standby that applies 200 ms later, or is stopped for 2 s in each 10 s")
    given = options.parse_args()
    database = Database(given.settings)
    standby = standby_of(database, given.standby)
    with tempfile.TemporaryDirectory() as directory:
        prepare(database)
        file = pathlib.Path(directory) / "rules.toml"
        file.write_text(rules(database.port, rule=given.rule))
        server = harness.Server(given.server, "cattlegrid", ["--config", str(file)])
        try:
            harness.wait_until("the log is confirmed", lambda: server.stats("follow").get("shop:state") == "confirmed")
            with Load(database, server.port, given.writers, given.readers, given.pause, think=given.think) as load:
                end = time.monotonic() + given.seconds
                while time.monotonic() < end:
                    time.sleep(max(0.0, min(8, end - time.monotonic())))
                    if given.standby == "stops":
                        standby.freeze()
                        time.sleep(2)
                        standby.freeze(on=False)
                if standby:
                    # Else the writers that wait for it wait for good.
                    database.synchronous("")
            print(json.dumps({**load.report(), "load average": os.getloadavg()[1]}, indent=1))
            print(json.dumps(server.stats("follow"), indent=1))
            print(json.dumps({key: value for key, value in server.stats("rules").items() if "fills_" in key}))
        finally:
            server.clean()
            if standby:
                standby.clean()
            database.clean()


def standby_of(database, kind):
    if kind == "none":
        return None
    standby = database.standby()
    if kind == "slow":
        standby.sql("ALTER SYSTEM SET recovery_min_apply_delay = '200ms'", "SELECT pg_reload_conf()")
        database.sql("ALTER SYSTEM SET synchronous_commit = 'remote_apply'", "SELECT pg_reload_conf()")
    database.synchronous("walreceiver")
    return standby


if __name__ == "__main__":
    main()
