"""What following a database costs: memory and processor time at rest and for each entry, entries a second, a large transaction.

    python follow_costs.py --server ../target/fast/cattlegrid

`--database mysql`: of MariaDB, or of the MySQL of `MYSQLD`. It has no slot in which entries wait: they wait while a link is cut.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import tempfile
import threading
import time

import harness
from database import Database, binaries
from follow_faults import Relay
from follow_loads import ROWS, prepare, rules
from mysql_server import MysqlServer

CHANGE = f"\\set id random(1, {ROWS})\nUPDATE rows SET version = version + 1 WHERE id = :id;\n"


def memory(server, field="VmRSS"):
    """MiB."""
    with open(f"/proc/{server.pid}/status") as file:
        return round(int(re.search(rf"{field}:\s+(\d+)", file.read())[1]) / 1024, 1)


def processor(server):
    """Seconds."""
    with open(f"/proc/{server.pid}/stat") as file:
        fields = file.read().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def said(server):
    return {key.removeprefix("shop:"): value for key, value in server.stats("follow").items()}


def obeyed(server, seconds=600):
    """Waits until all that was committed until now is obeyed; how long that took."""
    asked = time.monotonic()

    def is_later():
        found = said(server)
        return found.get("state") == "confirmed" and int(found["lag_ms"]) + 2 < (time.monotonic() - asked) * 1000

    harness.wait_until("the log is confirmed", is_later, seconds)
    return time.monotonic() - asked


class Costs:
    def __init__(self, program, seconds):
        self.program, self.seconds = program, seconds
        self.database = Database()
        prepare(self.database)
        self.directory = tempfile.TemporaryDirectory()
        self.file = pathlib.Path(self.directory.name) / "rules.toml"
        self.script = pathlib.Path(self.directory.name) / "change.sql"
        self.script.write_text(CHANGE)

    def rules(self, **more):
        return rules(self.database.port, **more)

    def server(self, text):
        self.file.write_text(text)
        return harness.Server(self.program, "cattlegrid", ["--config", str(self.file)])

    def flood(self, *how):
        """Transactions of one changed row; how many, and how many a second."""
        begun = time.monotonic()
        command = [binaries() / "pgbench", "-n", "-c", "4", "-j", "1", "-f", self.script, *how, self.database.url]
        text = subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout
        count = int(re.search(r"transactions actually processed: (\d+)", text)[1])
        return count, round(count / (time.monotonic() - begun))

    def at_rest(self):
        found = {}
        for name, text in (("none", ""), ("followed", self.rules())):
            server = self.server(text)
            try:
                if text:
                    obeyed(server)
                time.sleep(2)
                before = processor(server)
                time.sleep(self.seconds)
                share = (processor(server) - before) / self.seconds
                found[name] = {"MiB": memory(server), "processor, % of one": round(share * 100, 2)}
            finally:
                server.clean()
        return found

    def entries(self):
        """Live, as fast as the database commits; and those that wait in a slot when the server starts."""
        text = self.rules(max_lag="10m", more='slot = "kept"')
        server = self.server(text)
        try:
            obeyed(server)
            used, bumps = processor(server), int(said(server)["bumps"])
            count, rate = self.flood("-T", str(self.seconds))
            behind = obeyed(server)
            used, bumps = processor(server) - used, int(said(server)["bumps"]) - bumps
            live = {"committed a second": rate, "behind at the end, ms": round(behind * 1000), "processor, µs an entry": round(used / count * 1e6, 1),
                    "bumped": bumps, "committed": count}
            server.stop()
            count, _ = self.flood("-t", "25000")
            server.start()
            begun = time.monotonic()
            used = processor(server)
            obeyed(server)
            took = time.monotonic() - begun
            used = processor(server) - used
            waiting = {"entries": count, "a second": round(count / took), "processor, µs an entry": round(used / count * 1e6, 1),
                       "bumped": int(said(server)["bumps"])}
            return {"live": live, "waiting in a slot": waiting}
        finally:
            server.clean()
            self.database.sql("SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE active")
            self.database.sql("SELECT pg_drop_replication_slot('kept')")

    many = ("CREATE TABLE many (id int PRIMARY KEY, row int)", "ALTER PUBLICATION cattlegrid ADD TABLE many",
            "ALTER TABLE many REPLICA IDENTITY FULL")
    changes = (
        ("500 tags", "INSERT INTO many SELECT n, n % 500 FROM generate_series(1, 1000000) n"),
        ("600,000 tags", "UPDATE many SET row = id % 600000"),
        ("2,000,000 tags", "UPDATE many SET row = -id"),
    )
    column = "row"

    def large(self):
        """One transaction of a million rows: 500 tags, and as many tags as rows."""
        self.database.sql(*self.many)
        text = self.rules(max_lag="10m") + f'\n[[follow.shop.table]]\ntable = "many"\nbump = ["row:{{{self.column}}}"]\n'
        server = self.server(text)
        try:
            obeyed(server)
            found = {}
            for name, statement in self.changes:
                with open(f"/proc/{server.pid}/clear_refs", "w") as file:
                    file.write("5")  # The peak begins anew.
                before, used, begun = memory(server), processor(server), time.monotonic()
                self.database.sql(statement)
                committed = time.monotonic()
                obeyed(server)
                found[name] = {
                    "transaction, s": round(committed - begun, 1), "obeyed after, s": round(time.monotonic() - committed, 2),
                    "processor, s": round(processor(server) - used, 2),
                    "MiB before": before, "at the peak": memory(server, "VmHWM"), "after": memory(server),
                    "bumps": int(said(server)["bumps"]), "flushes": int(said(server)["flushes"]),
                }
            return found
        finally:
            server.clean()

    def clean(self):
        self.database.clean()
        self.directory.cleanup()


class MysqlCosts(Costs):
    many = ("CREATE TABLE many (id int PRIMARY KEY, n int)",)
    numbers = "(WITH RECURSIVE d AS (SELECT 0 AS v UNION ALL SELECT v + 1 FROM d WHERE v < 9) SELECT a.v + 10 * b.v + 100 * c.v + 1000 * d.v " \
              "+ 10000 * e.v + 100000 * f.v + 1 AS n FROM d a, d b, d c, d d, d e, d f) x"
    changes = (
        ("500 tags", f"INSERT INTO many SELECT n, n % 500 FROM {numbers}"),
        ("600,000 tags", "UPDATE many SET n = id % 600000"),
        ("2,000,000 tags", "UPDATE many SET n = -id"),
    )
    column = "n"

    def __init__(self, program, seconds):
        self.program, self.seconds = program, seconds
        self.database = MysqlServer("--sync-binlog=0", binary=os.environ.get("MYSQLD", "mariadbd").split()).prepare(ROWS)
        self.way = Relay(self.database.port)
        self.directory = tempfile.TemporaryDirectory()
        self.file = pathlib.Path(self.directory.name) / "rules.toml"

    def rules(self, port=None, **more):
        text = rules(port or self.database.port, **more).replace("public.rows", "items")
        return re.sub(r'url = ".*"', f'url = "mysql://cattlegrid:secret@127.0.0.1:{port or self.database.port}/shop"', text)

    def flood(self, threads=4, seconds=None, pause=0):
        """Transactions of one changed row; how many, and how many a second. Four connections, each of them changes its rows in a procedure."""
        self.database.sql("DROP PROCEDURE IF EXISTS change_for", """
            CREATE PROCEDURE change_for(seconds int) BEGIN
              DECLARE until datetime(6) DEFAULT SYSDATE(6) + INTERVAL seconds SECOND;
              WHILE SYSDATE(6) < until DO
                UPDATE items SET version = version + 1 WHERE id = 1 + FLOOR(RAND() * %d);
              END WHILE;
            END""" % ROWS)
        total = "SELECT SUM(version) FROM items"
        before, begun = self.database.sql(total)[0][0], time.monotonic()
        all_threads = [threading.Thread(target=self.database.sql, args=(f"CALL change_for({seconds or self.seconds})",)) for _ in range(threads)]
        for own in all_threads:
            own.start()
        for own in all_threads:
            own.join()
        count = int(self.database.sql(total)[0][0] - before)
        return count, round(count / (time.monotonic() - begun))

    def entries(self):
        server = self.server(self.rules(max_lag="10m"))
        try:
            obeyed(server)
            used, bumps = processor(server), int(said(server)["bumps"])
            count, rate = self.flood()
            behind = obeyed(server)
            used, bumps = processor(server) - used, int(said(server)["bumps"]) - bumps
            live = {"committed a second": rate, "behind at the end, ms": round(behind * 1000), "processor, µs an entry": round(used / count * 1e6, 1),
                    "bumped": bumps, "committed": count}
            beside = self.writers(server)
        finally:
            server.clean()
        server = self.server(self.rules(self.way.port, max_lag="10m"))
        try:
            obeyed(server)
            flushes, bumps = int(said(server)["flushes"]), int(said(server)["bumps"])
            self.way.cut = {"up": True, "down": True}
            time.sleep(0.5)
            count, _ = self.flood()
            used, begun = processor(server), time.monotonic()
            self.way.cut = {"up": False, "down": False}
            obeyed(server)
            took = time.monotonic() - begun
            used = processor(server) - used
            assert int(said(server)["flushes"]) == flushes
            waiting = {"entries": count, "a second": round(count / took), "processor, µs an entry": round(used / count * 1e6, 1),
                       "bumped": int(said(server)["bumps"]) - bumps}
            return {"live": live, "waiting behind a link": waiting, "20 writers": beside}
        finally:
            server.clean()

    def writers(self, server):
        """As an application does: 20 connections, 200 commits a second in all."""
        stop, counts = threading.Event(), [0] * 20

        def write(number):
            with self.database.connect() as connection:
                while not stop.wait(0.1):
                    connection.execute("UPDATE items SET version = version + 1 WHERE id = %s", (number + 1,))
                    counts[number] += 1
        threads = [threading.Thread(target=write, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        used = processor(server)
        time.sleep(self.seconds)
        used = processor(server) - used
        stop.set()
        for thread in threads:
            thread.join()
        return {"commits a second": round(sum(counts) / self.seconds), "processor, % of one": round(used / self.seconds * 100, 2)}

    def clean(self):
        self.way.close()
        super().clean()


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--server", default=str(harness.ROOT / "target/fast/cattlegrid"))
    options.add_argument("--seconds", type=float, default=20)
    options.add_argument("--database", choices=("postgres", "mysql"), default="postgres")
    given = options.parse_args()
    costs = (Costs if given.database == "postgres" else MysqlCosts)(given.server, int(given.seconds))
    try:
        found = {"at rest": costs.at_rest(), "entries": costs.entries(), "a million rows": costs.large(), "load average": os.getloadavg()[0]}
        print(json.dumps(found, indent=1, ensure_ascii=False))
    finally:
        costs.clean()


if __name__ == "__main__":
    main()
