"""As `nodes_faults.py`, of a fleet of which one node follows a database for all: clients change rows, and never invalidate.

    python via_faults.py --schedules 100 --seconds 30 --server-bin ../target/release/cattlegrid
"""

import contextlib
import random
import signal
import time

import psycopg

import nodes_faults
from database import Database
from follow_faults import Relay
from follow_loads import prepare
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
url = "postgres://postgres@127.0.0.1:{database}/postgres"
via = "bumps"
slot = "fleet"
max_lag = "2s"
when_behind = "miss"

[[follow.shop.table]]
table = "rows"
bump = ["row:{{id}}"]
"""


class Fleet(nodes_faults.Fleet):
    logs = ("bumps", "shop")

    def prepare(self):
        self.database = Database()
        prepare(self.database)
        self.ways = []

    def rules(self, number, servers):
        self.ways.append(Relay(self.database.port))
        return RULES.format(number=number, servers=servers, database=self.ways[-1].port)

    def query(self, connection, statement, *values):
        """The connection, and the first row; None for what there is not."""
        try:
            connection = connection or self.database.connect()
            return connection, connection.execute(statement, values).fetchone()
        except psycopg.Error:
            if connection is not None:
                with contextlib.suppress(psycopg.Error):
                    connection.close()
            time.sleep(0.1)
            return None, None

    def write(self, seed):
        draw, connection = random.Random(seed), None
        while not self.stop.is_set():
            row = draw.randrange(ROWS)
            change = "UPDATE rows SET version = version + 1 WHERE id = %s RETURNING version"
            connection, found = self.query(connection, change, row + 1)
            at = time.monotonic()
            if found:
                with self.lock:
                    self.replies[b"changed"] = self.replies.get(b"changed", 0) + 1
                    self.committed[row].append((found[0], at))
            time.sleep(draw.uniform(0, 0.1))

    def read(self, seed):
        draw, connection = random.Random(seed), None
        talks = [(number, Conversation(port)) for number, port in enumerate(self.ports)]
        while not self.stop.is_set():
            row, (number, talk) = draw.randrange(ROWS), draw.choice(talks)
            sent = time.monotonic()
            reply = talk.ask(f"get page:{row + 1}\r\n".encode(), b"END\r\n")
            if reply is None:
                time.sleep(0.05)
            elif reply == b"END\r\n":
                self.misses += 1
                connection, found = self.query(connection, "SELECT version FROM rows WHERE id = %s", row + 1)
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
        end = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active_pid IS NOT NULL"
        self.database.sql(end)
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
