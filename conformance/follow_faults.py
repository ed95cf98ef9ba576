"""Faults of a database, of the link to it and of the server, one after the other, while an application reads and writes.

What is committed is kept by each of them, except for a restore: then the data are those of the backup, and count as a new version
from the moment at which the database is there again.
"""

import contextlib
import os
import pathlib
import random
import select
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time

import psycopg

from database import Database

HERE = pathlib.Path(__file__).resolve().parent


class Relay:
    """A link to the database that can be cut in each direction, or be slow."""

    def __init__(self, port):
        self.to = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.cut = {"up": False, "down": False}
        self.delay = 0.0
        self.made = self.stranded = 0
        self.stop = threading.Event()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while not self.stop.is_set():
            with contextlib.suppress(OSError):
                near, _ = self.listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self.to))
                except OSError:
                    near.close()
                    continue
                self.made += 1
                for way, one, other in (("up", near, far), ("down", far, near)):
                    threading.Thread(target=self.pump, args=(way, one, other, self.made), daemon=True).start()

    def strand(self):
        """The connections that there are stay open and say nothing any more, as behind a firewall that has forgotten them."""
        self.stranded = self.made

    def pump(self, way, one, other, number):
        with contextlib.suppress(OSError):
            while not self.stop.is_set():
                if self.cut[way] or number <= self.stranded:
                    time.sleep(0.02)
                    continue
                ready, _, _ = select.select([one], [], [], 0.1)
                if not ready:
                    continue
                data = one.recv(65536)
                while self.cut[way] and not self.stop.is_set():
                    time.sleep(0.02)
                time.sleep(self.delay)
                if not data:
                    break
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self):
        self.stop.set()
        self.listener.close()


class WallClock:
    """The wall clock of the programs that are started with `environment`: that of the machine plus `step` seconds. Clocks that only
    go forward are not changed, as they are not when a machine's time is set."""

    def __init__(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="cattlegrid-clock"))
        self.directory.chmod(0o755)
        self.file, library = self.directory / "offset", self.directory / "clock.so"
        self.set(0)
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, HERE / "wall_clock.c"], check=True)
        self.environment = {"LD_PRELOAD": str(library), "CLOCK_OFFSET": str(self.file)}

    def set(self, seconds):
        # In place: the programs have mapped it.
        with open(self.file, "r+b" if self.file.exists() else "w+b") as file:
            file.write(struct.pack("q", round(seconds * 1e9)))

    def clean(self):
        shutil.rmtree(self.directory, ignore_errors=True)


class Scene:
    """A primary and its successors, the link to it, a server and a load."""

    SETTINGS = """
max_slot_wal_keep_size = 4MB
min_wal_size = 2MB
max_wal_size = 4MB
synchronous_commit = {commit}
"""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        # Where a commit is answered before it is on disk, nothing is killed: it would lose what was answered.
        self.is_safe = self.draw.random() < 0.7
        self.wall = WallClock()
        settings = self.SETTINGS.format(commit="on" if self.is_safe else "off")
        self.database = Database(settings, segment_mib=1, environment=self.wall.environment)
        self.databases = [self.database]
        self.relay = Relay(self.database.port)
        self.server = self.load = None
        self.epoch, self.done = 0, []

    def clean(self):
        self.relay.close()
        for database in self.databases:
            database.clean()
        self.wall.clean()

    def run(self, seconds, server, load):
        """Faults for that long; `done`: which, and for how long each."""
        self.server, self.load = server, load
        only = os.environ.get("FOLLOW_FAULTS", "").split()
        faults = [name for name in dir(self) if name.startswith("do_") and (not only or name.removeprefix("do_") in only)]
        if not self.is_safe:
            faults = [name for name in faults if name not in ("do_kill", "do_promote")]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            fault, length = self.draw.choice(faults), self.draw.uniform(0.3, 6)
            self.done.append((round(time.monotonic() - load.begun, 1), fault.removeprefix("do_"), round(length, 2)))
            getattr(self, fault)(length)
            time.sleep(self.draw.uniform(0.2, 3))

    def do_nothing(self, length):
        time.sleep(length)

    def do_kill(self, length):
        self.database.kill()
        time.sleep(length / 3)
        self.database.start()

    def do_restart(self, length):
        self.database.stop()
        time.sleep(length / 3)
        self.database.start()

    def do_freeze(self, length):
        self.database.freeze()
        time.sleep(length)
        self.database.freeze(on=False)

    def do_freeze_server(self, length):
        self.server.signal(signal.SIGSTOP)
        time.sleep(length)
        self.server.signal(signal.SIGCONT)

    def do_kill_server(self, length):
        self.server.signal(signal.SIGKILL)
        self.server.process.wait(20)
        time.sleep(length / 6)
        self.server.start()
        self.load.port = self.server.port

    def cut(self, *ways, length):
        for way in ways:
            self.relay.cut[way] = True
        time.sleep(length)
        for way in ways:
            self.relay.cut[way] = False

    def do_cut_up(self, length):
        self.cut("up", length=length)

    def do_cut_down(self, length):
        self.cut("down", length=length)

    def do_cut_both(self, length):
        self.cut("up", "down", length=length)

    def do_slow(self, length):
        self.relay.delay = self.draw.uniform(0.01, 0.4)
        time.sleep(length)
        self.relay.delay = 0.0

    def do_end(self, length):
        with contextlib.suppress(psycopg.Error):
            self.database.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'cattlegrid'")

    def do_drop_slot(self, length):
        with contextlib.suppress(psycopg.Error):
            self.database.sql(
                "SELECT pg_terminate_backend(active_pid, 1000) FROM pg_replication_slots WHERE active_pid IS NOT NULL",
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active",
            )

    def do_lose_log(self, length):
        """More log than a slot may keep, while the link is cut."""
        self.relay.cut = {"up": True, "down": True}
        with contextlib.suppress(psycopg.Error):
            for _ in range(8):
                self.database.sql("SELECT pg_logical_emit_message(false, 'other', 'x')", "SELECT pg_switch_wal()")
            self.database.sql("CHECKPOINT")
        time.sleep(length / 3)
        self.relay.cut = {"up": False, "down": False}

    def do_set_clock(self, length):
        """Of the database and of the server."""
        self.wall.set(self.draw.choice([-3600, -5, 5, 3600]))
        time.sleep(length / 2)
        self.wall.set(0)

    def do_promote(self, length):
        """A synchronous standby has all that was answered. The primary is killed, and stays so."""
        standby = self.database.standby()
        self.databases.append(standby)
        self.database.synchronous("walreceiver")
        # What waits from now on waits for it; and what was answered before is before this.
        with self.database.connect() as connection:
            connection.execute("SET synchronous_commit = on")
            connection.execute("UPDATE epoch SET number = number")
        self.database.kill()
        time.sleep(length / 3)
        standby.promote()
        self.database = self.load.database = standby
        self.relay.to = standby.port

    def do_restore(self, length):
        """All files as they were some seconds ago, slots included: by its identity it is the same log."""
        self.database.stop()
        copy = self.database.copy()
        self.database.start()
        time.sleep(length)
        self.database.stop("immediate")
        self.database.restore(copy)
        self.epoch += 1
        self.database.alone(f"UPDATE epoch SET number = {self.epoch}")
        self.load.restored(self.epoch, self.database.alone("SELECT id, version FROM rows"))
        self.database.start()
