"""As `nodes_faults.py`, of a fleet of which one node follows a database for all: clients change rows, and never invalidate.

    python via_faults.py --schedules 100 --seconds 30 --server-bin ../target/release/cattlegrid

`VIA_DATABASE=mariadb`: with a MariaDB, or the MySQL of `MYSQLD`, in the place of a PostgreSQL.
"""

import contextlib
import os
import random
import signal
import time

import psycopg

import nodes_faults
from database import Database
from follow_faults import Relay
from follow_loads import prepare
from mysql_server import MysqlServer
from nodes_faults import MAX_LAG, ROWS, SLACK, Conversation

RULES = """
[server]
node = "n{number}"

[[rule]]
match = "page:{{row}}"
hold = "200ms"
owner = "connection"
ambiguous = "drop"
tags = ["row:{{row}}"]

[follow.bumps]
servers = [{servers}]
max_lag = "2s"
when_behind = "miss"

[follow.shop]
{database}
via = "bumps"
max_lag = "2s"
when_behind = "miss"

[[follow.shop.table]]
table = "{rows}"
bump = ["row:{{id}}"]
"""


class Postgres:
    """What tests need to know of a database; its table has the columns `id` and `version`."""

    rows = "rows"

    @staticmethod
    def make():
        database = Database()
        prepare(database)
        return database

    @staticmethod
    def keys(port):
        """Those of the log."""
        return f'url = "postgres://postgres@127.0.0.1:{port}/postgres"\nslot = "fleet"'

    @staticmethod
    def change(connection, row):
        """Changes a row; its version. None: there is no such row."""
        found = connection.execute("UPDATE rows SET version = version + 1 WHERE id = %s RETURNING version", (row,)).fetchone()
        return found and found[0]

    @staticmethod
    def followers(database):
        """How many connections there are that follow."""
        return database.sql("SELECT count(*) FROM pg_stat_replication")[0][0]

    @staticmethod
    def end_followers(database):
        database.sql("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active_pid IS NOT NULL")


class Mysql:
    rows = "items"

    @staticmethod
    def make():
        return MysqlServer("--sync-binlog=0", binary=os.environ.get("MYSQLD", "mariadbd").split()).prepare(1000)

    @staticmethod
    def keys(port):
        return f'url = "mysql://cattlegrid:secret@127.0.0.1:{port}/shop"'

    @staticmethod
    def change(connection, row):
        return connection.execute("UPDATE items SET version = LAST_INSERT_ID(version + 1) WHERE id = %s", (row,)).lastrowid

    @staticmethod
    def followers(database):
        return database.sql("SELECT count(*) FROM information_schema.processlist WHERE user = 'cattlegrid'")[0][0]

    @staticmethod
    def end_followers(database):
        database.end_followers()


PRODUCTS = {"postgres": Postgres, "mariadb": Mysql}


class Fleet(nodes_faults.Fleet):
    logs = ("bumps", "shop")
    enough = (100, 0)
    product = PRODUCTS[os.environ.get("VIA_DATABASE", "postgres")]

    def prepare(self):
        self.database = self.product.make()
        self.ways = []

    def rules(self, number, servers):
        self.ways.append(Relay(self.database.port))
        return RULES.format(number=number, servers=servers, database=self.product.keys(self.ways[-1].port), rows=self.product.rows)

    def query(self, connection, asks):
        """The connection, and what is asked of it; None for what there is not."""
        try:
            connection = connection or self.database.connect()
            return connection, asks(connection)
        except (psycopg.Error, OSError):
            if connection is not None:
                with contextlib.suppress(psycopg.Error, OSError):
                    connection.__exit__(None, None, None)
            time.sleep(0.1)
            return None, None

    def write(self, seed):
        draw, connection = random.Random(seed), None
        while not self.stop.is_set():
            row = draw.randrange(ROWS)
            connection, version = self.query(connection, lambda own: self.product.change(own, row + 1))
            at = time.monotonic()
            if version:
                with self.lock:
                    self.replies[b"changed"] = self.replies.get(b"changed", 0) + 1
                    self.committed[row].append((version, at))
            time.sleep(draw.uniform(0, 0.1))

    def read(self, seed):
        draw, connection = random.Random(seed), None
        talks = [(number, Conversation(port)) for number, port in enumerate(self.ports)]
        ask = f"SELECT version FROM {self.product.rows} WHERE id = %s"
        while not self.stop.is_set():
            row, (number, talk) = draw.randrange(ROWS), draw.choice(talks)
            sent = time.monotonic()
            reply = talk.ask(f"get page:{row + 1}\r\n".encode(), b"END\r\n")
            if reply is None:
                time.sleep(0.05)
            elif reply == b"END\r\n":
                self.misses += 1
                connection, found = self.query(connection, lambda own: own.execute(ask, (row + 1,)).fetchone())
                if found:
                    time.sleep(draw.uniform(0, 0.02))
                    text = str(found[0]).encode()
                    talk.ask(b"set page:%d 0 60 %d\r\n%s\r\n" % (row + 1, len(text), text), b"STORED\r\n")
            else:
                self.hits += 1
                self.check(sent, number, row, int(reply.split(b"\r\n")[1]))
                time.sleep(draw.uniform(0, 0.004))

    def check(self, sent, number, row, version):
        with self.lock:
            newer = [(own, at) for own, at in self.committed[row] if own > version and at < sent - MAX_LAG - SLACK]
        if newer:
            own, at = newer[0]
            self.old.append(f"{sent - self.begun:.2f} s: node {number} serves row {row + 1} as of {version}, "
                            f"{own} was committed {sent - at:.2f} s before")

    def leader(self):
        """The node that follows the database, as far as one of them knows."""
        for server in self.servers:
            with contextlib.suppress(OSError, KeyError, StopIteration):
                name = server.stats("follow")["shop:leader"]
                return next(own for number, own in enumerate(self.servers) if name == f"n{number}")
        return self.servers[0]

    def do_kill_follower(self, length):
        server = self.leader()
        server.kill()
        time.sleep(length)
        server.start()

    def do_freeze_follower(self, length):
        server = self.leader()
        server.signal(signal.SIGSTOP)
        time.sleep(length * 2)
        server.signal(signal.SIGCONT)

    def do_end_stream(self, length):
        with contextlib.suppress(OSError):
            self.product.end_followers(self.database)
        time.sleep(length / 4)

    def do_database_restarts(self, length):
        self.database.stop()
        time.sleep(length / 2)
        self.database.start()

    def do_database_is_killed(self, length):
        self.database.kill()
        time.sleep(length / 2)
        self.database.start()

    def do_database_freezes(self, length):
        self.database.freeze()
        time.sleep(length)
        self.database.freeze(on=False)

    def do_database_is_cut_off(self, length):
        ways = self.draw.choice([self.ways, [self.draw.choice(self.ways)]])
        for way in ways:
            way.cut = self.draw.choice([{"up": True, "down": True}, {"up": True, "down": False}, {"up": False, "down": True}])
        time.sleep(length * 1.5)
        for way in ways:
            way.cut = {"up": False, "down": False}

    def clean(self):
        super().clean()
        for way in self.ways:
            way.close()
        self.database.clean()


if __name__ == "__main__":
    nodes_faults.main(Fleet)
