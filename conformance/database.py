"""A PostgreSQL server of the machine's own release, in a folder that is gone afterwards."""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile

import psycopg

from harness import free_port, wait_until

SETTINGS = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
wal_level = logical
fsync = off
shared_buffers = 16MB
max_wal_senders = 10
max_connections = 120
"""


def binaries():
    """The programs of the newest release that is installed."""
    releases = [path for path in pathlib.Path("/usr/lib/postgresql").iterdir() if path.name.isdigit()]
    return max(releases, key=lambda path: int(path.name)) / "bin"


class Database:
    """The server does not run as root: then it runs as the user `postgres`, which its package makes."""

    def __init__(self, settings="", segment_mib=16, environment=None, primary=None):
        """`segment_mib`: size of a file of the log. `primary`: it is a standby of this one."""
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="cattlegrid-pg"))
        self.directory.chmod(0o777)
        self.data = self.directory / "data"
        self.port = free_port()
        self.up = False
        self.environment = environment or {}
        if primary:
            self.run("pg_basebackup", "-D", self.data, "-d", primary.url, "-c", "fast", "-R")
        else:
            self.run("initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-N", "--no-instructions",
                     f"--wal-segsize={segment_mib}")
            self.configure(f"{SETTINGS}\n{settings}\n")
        self.configure(f"port = {self.port}\n")
        self.start()

    @property
    def url(self):
        return f"postgres://postgres@127.0.0.1:{self.port}/postgres"

    def standby(self):
        """A new one, which follows this one."""
        return Database(environment=self.environment, primary=self)

    def synchronous(self, names):
        """Commits wait for a standby from now on, `walreceiver`, as ours are called; "": for none."""
        self.sql(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'", "SELECT pg_reload_conf()")
        has_read = lambda: self.sql("SHOW synchronous_standby_names") == [(names,)]
        wait_until("the setting is read", has_read)
        counted = "SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')"
        wait_until("the standby is synchronous", lambda: not names or self.sql(counted) == [(1,)])

    def promote(self):
        self.run("pg_ctl", "-D", self.data, "-w", "-t", "60", "promote")

    def copy(self):
        """A copy of all files, while it is stopped."""
        copy = self.directory / f"copy{len(list(self.directory.iterdir()))}"
        self.as_server("cp", "-a", self.data, copy)
        return copy

    def restore(self, copy):
        shutil.rmtree(self.data)
        self.as_server("mv", copy, self.data)

    def alone(self, statement):
        """Executes a statement while only we can connect, and nothing follows."""
        port = free_port()
        self.run("pg_ctl", "-D", self.data, "-l", self.directory / "log", "-w", "-t", "60", "-o", f"-p {port}", "start")
        self.up = True
        try:
            with self.connect(port=port) as connection:
                found = connection.execute(statement)
                return found.fetchall() if found.description else None
        finally:
            self.stop()

    def as_server(self, *command, **more):
        command = [str(word) for word in command]
        if os.geteuid() == 0:
            command = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--", *command]
        environment = {**os.environ, **self.environment}
        return subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/", env=environment, **more)

    def run(self, program, *arguments):
        return self.as_server(binaries() / program, *arguments)

    def configure(self, text):
        self.as_server("tee", "-a", self.data / "postgresql.conf", input=text.encode())

    def start(self):
        log = self.directory / "log"
        try:
            self.run("pg_ctl", "-D", self.data, "-l", log, "-w", "-t", "60", "start")
        except subprocess.CalledProcessError as error:
            raise AssertionError(f"PostgreSQL does not start:\n{log.read_text()[-3000:]}") from error
        self.up = True

    def stop(self, mode="fast"):
        if self.up:
            self.run("pg_ctl", "-D", self.data, "-m", mode, "-w", "stop")
            self.up = False

    @property
    def pid(self):
        return int((self.data / "postmaster.pid").read_text().splitlines()[0])

    def children(self):
        found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.pid)], capture_output=True, text=True)
        return [int(pid) for pid in found.stdout.split()]

    def kill(self):
        """As when the machine is switched off."""
        for pid in [self.pid, *self.children()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        pid = self.pid
        wait_until("the database has ended", lambda: not pathlib.Path(f"/proc/{pid}").exists())
        self.up = False

    def freeze(self, on=True):
        for pid in [self.pid, *self.children()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP if on else signal.SIGCONT)

    def connect(self, **more):
        more = {"dbname": "postgres", "user": "postgres", "autocommit": True, "port": self.port, **more}
        return psycopg.connect(host="127.0.0.1", connect_timeout=10, **more)

    def sql(self, *statements):
        """The rows of the last statement."""
        with self.connect() as connection:
            for statement in statements:
                found = connection.execute(statement)
            return found.fetchall() if found.description else None

    def log(self):
        return re.sub(r"(?m)^.*checkpoint.*\n", "", (self.directory / "log").read_text(errors="replace"))

    def clean(self):
        with contextlib.suppress(subprocess.CalledProcessError, OSError):
            if self.up:
                self.freeze(on=False)
            self.stop("immediate")
        shutil.rmtree(self.directory, ignore_errors=True)
