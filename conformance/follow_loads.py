"""An application that never deletes: writers change rows, readers read through the cache, and each value that is served is
compared with what was committed before its get was sent.

    python follow_loads.py --seconds 300 --writers 20 --readers 50
"""

import argparse
import bisect
import collections
import json
import pathlib
import random
import tempfile
import threading
import time

import psycopg
import pymemcache.client.base

ROWS = 200

RULES = """
[[rule]]
match = "page:{{id}}"
hold = "400ms"
grace = "{grace}"
tags = ["row:{{id}}"]

[follow.shop]
url = "postgres://postgres@127.0.0.1:{port}/postgres"
max_lag = "{max_lag}"
when_behind = "{when_behind}"
{more}

[[follow.shop.table]]
table = "public.rows"
bump = ["row:{{id}}"]
"""


def rules(port, grace="0s", max_lag="3s", when_behind="refresh", more=""):
    return RULES.format(port=port, grace=grace, max_lag=max_lag, when_behind=when_behind, more=more)


def prepare(database):
    database.sql(
        "CREATE TABLE rows (id int PRIMARY KEY, version int NOT NULL)",
        f"INSERT INTO rows SELECT n, 0 FROM generate_series(1, {ROWS}) n",
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
    """Threads of an application. `pause`: of a writer between two commits."""

    def __init__(self, database, port, writers=8, readers=12, pause=0.02, seed=1):
        self.database, self.port, self.pause = database, port, pause
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
                found = connection.execute("UPDATE rows SET version = version + 1 WHERE id = %s RETURNING version", (row,))
                self.commits.add(row, found.fetchone()[0], time.monotonic())
                self.written += 1
                time.sleep(draw.random() * 2 * self.pause)

    def read(self, draw):
        client = pymemcache.client.base.Client(("127.0.0.1", self.port), timeout=30, connect_timeout=5, no_delay=True)
        with self.database.connect() as connection:
            while not self.stop.is_set():
                row = draw.randint(1, ROWS)
                asked = time.monotonic()
                value = client.get(f"page:{row}")
                self.gets += 1
                if value is None:
                    found = connection.execute("SELECT version FROM rows WHERE id = %s", (row,)).fetchone()
                    time.sleep(draw.random() * 0.01)
                    client.set(f"page:{row}", str(found[0]))
                    self.computed += 1
                    continue
                self.hits += 1
                age = self.commits.age(row, int(value), asked)
                if age > 0:
                    with self.lock:
                        self.ages.append(age)

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
    options.add_argument("--settings", default="", help="lines of postgresql.conf")
    given = options.parse_args()
    database = Database(given.settings)
    with tempfile.TemporaryDirectory() as directory:
        prepare(database)
        file = pathlib.Path(directory) / "rules.toml"
        file.write_text(rules(database.port))
        server = harness.Server(given.server, "cattlegrid", ["--config", str(file)])
        try:
            harness.wait_until("the log is confirmed", lambda: server.stats("follow").get("shop:state") == "confirmed")
            with Load(database, server.port, given.writers, given.readers) as load:
                time.sleep(given.seconds)
            print(json.dumps(load.report(), indent=1))
            print(json.dumps(server.stats("follow"), indent=1))
        finally:
            server.clean()
            database.clean()


if __name__ == "__main__":
    main()
