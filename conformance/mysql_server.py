"""A MariaDB server of the machine, or a MySQL server, in a folder that is gone afterwards."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

import pymysql

from harness import free_port, wait_until

OPTIONS = [
    "--bind-address=127.0.0.1", "--skip-networking=0", "--log-bin=bin", "--server-id=1", "--binlog-format=ROW",
    "--innodb-buffer-pool-size=32M", "--innodb-flush-log-at-trx-commit=2", "--max-connections=200", "--skip-name-resolve",
]


class Connection:
    """A connection whose errors are those of a connection that ended."""

    def __init__(self, **more):
        with self.errors():
            self.connection = pymysql.connect(autocommit=True, **more)

    @staticmethod
    @contextlib.contextmanager
    def errors():
        try:
            yield
        except pymysql.Error as error:
            raise OSError(str(error)) from None

    def execute(self, sql, arguments=None):
        with self.errors():
            cursor = self.connection.cursor()
            cursor.execute(sql, arguments)
            return cursor

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(pymysql.Error):
            self.connection.close()


class MysqlServer:
    """`binary`: "mariadbd", or the path of MySQL's `mysqld`, or a list with what it is run by."""

    def __init__(self, *options, binary="mariadbd", copy_of=None):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="cattlegrid-my"))
        self.directory.chmod(0o755)
        self.data = self.directory / "data"
        self.socket = str(self.directory / "socket")
        # A server that starts removes the temporary tables of others in the same folder.
        self.environment = {**os.environ, "TMPDIR": str(self.directory)}
        self.command = [binary] if isinstance(binary, str) else list(binary)
        self.options, self.port = list(options), free_port()
        self.process = None
        # It does not run as root.
        self.user = ["--user=mysql"] if os.geteuid() == 0 else []
        if self.user:
            shutil.chown(self.directory, "mysql")
        if copy_of:
            self.restore(copy_of)
        elif self.is_mariadb:
            self.run("mariadb-install-db", "--no-defaults", f"--datadir={self.data}", "--auth-root-authentication-method=normal",
                     "--skip-test-db", "--skip-name-resolve", *self.user)
        else:
            self.run(*self.command, "--no-defaults", "--initialize-insecure", f"--datadir={self.data}", *self.user)
        self.start()

    @property
    def is_mariadb(self):
        return "mariadbd" in self.command[-1]

    def run(self, *words):
        with open(self.directory / "run.log", "ab") as log:
            done = subprocess.run([str(word) for word in words], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                  env=self.environment)
        assert done.returncode == 0, (words, (self.directory / "run.log").read_text()[-2000:])

    def start(self, *more):
        words = [*self.command, "--no-defaults", f"--datadir={self.data}", f"--socket={self.hidden or self.socket}", f"--port={self.port}",
                 f"--pid-file={self.directory}/pid", f"--log-error={self.directory}/error.log", *OPTIONS, *self.user]
        if not self.is_mariadb:
            words += ["--mysqlx=OFF", "--gtid-mode=ON", "--enforce-gtid-consistency=ON"]
        with open(self.directory / "run.log", "ab") as log:
            self.process = subprocess.Popen([*words, *self.options, *more], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                            env=self.environment)
        wait_until("the database is up", self.is_up, 60)

    def is_up(self):
        assert self.process.poll() is None, (self.directory / "error.log").read_text()[-2000:]
        with contextlib.suppress(OSError):
            return self.sql("SELECT 1") == [(1,)]
        return False

    def stop(self, number=signal.SIGTERM):
        if self.process and self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(60)

    def kill(self):
        self.stop(signal.SIGKILL)

    def freeze(self, on=True):
        self.process.send_signal(signal.SIGSTOP if on else signal.SIGCONT)

    def end_followers(self):
        """Ends the connections of the servers that follow."""
        for (one,) in self.sql("SELECT id FROM information_schema.processlist WHERE user = 'cattlegrid'"):
            with contextlib.suppress(OSError):
                self.sql(f"KILL {one}")

    def alone(self, *statements):
        """Executes statements while only we can connect, and nothing follows; the rows of the last."""
        ours = (self.socket, self.port)
        try:
            self.hidden, self.port = str(self.directory / "hidden"), free_port()
            self.start()
            return self.sql(*statements)
        finally:
            self.stop()
            self.hidden = None
            self.socket, self.port = ours

    hidden = None

    def copy(self):
        """A copy of all files, while it is stopped."""
        copy = self.directory / f"copy{len(list(self.directory.iterdir()))}"
        self.run("cp", "-a", self.data, copy)
        return copy

    def restore(self, copy):
        shutil.rmtree(self.data, ignore_errors=True)
        self.run("cp", "-a", copy, self.data)

    def clean(self):
        self.stop(signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)

    def connect(self, user="root", password="", socket=None):
        return Connection(unix_socket=socket or self.socket, user=user, password=password, database=self.database)

    database = None

    def sql(self, *statements):
        """Executes them in one connection; the rows of the last."""
        with self.connect(socket=self.hidden) as connection:
            for statement in statements:
                found = connection.execute(statement)
            return list(found.fetchall())

    def prepare(self, rows):
        """A shop, and a user that follows it."""
        right = "BINLOG MONITOR" if self.is_mariadb else "REPLICATION CLIENT"
        self.sql(
            "CREATE DATABASE shop",
            "CREATE USER cattlegrid@'%' IDENTIFIED BY 'secret'",
            f"GRANT REPLICATION SLAVE, {right} ON *.* TO cattlegrid@'%'",
            "GRANT SELECT ON shop.* TO cattlegrid@'%'",
            "CREATE TABLE shop.items (id int PRIMARY KEY, version int NOT NULL, other int NOT NULL DEFAULT 0)",
            "CREATE TABLE shop.epoch (number int NOT NULL)",
            "INSERT INTO shop.epoch VALUES (0)",
            "INSERT INTO shop.items (id, version) VALUES " + ", ".join(f"({n}, 0)" for n in range(1, rows + 1)),
        )
        self.database = "shop"
        return self
