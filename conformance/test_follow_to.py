"""`cattlegrid follow FILE --to SERVERS`: rows change in a real PostgreSQL, and keys are gone from real memcached servers, where
unmodified clients look for them. Deletes are by nobody else."""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import pylibmc
import pymemcache.client.base
import pymemcache.client.hash
import pytest

from database import Database
from harness import free_port, tool, wait_until

pytestmark = pytest.mark.only_cattlegrid

USERS = 60


def prepare(database):
    database.sql(
        "CREATE TABLE users (id int PRIMARY KEY, name text)",
        "CREATE TABLE orders (id int PRIMARY KEY, user_id int, state text, total int)",
        "ALTER TABLE orders REPLICA IDENTITY FULL",
        f"INSERT INTO users SELECT n, 'u' || n FROM generate_series(1, {USERS}) n",
        f"INSERT INTO orders SELECT n, n, 'new', 1 FROM generate_series(1, {USERS}) n",
        "CREATE PUBLICATION cattlegrid FOR TABLE users, orders",
    )


@pytest.fixture(scope="module")
def module_database():
    database = Database()
    prepare(database)
    yield database
    database.clean()


@pytest.fixture
def database(module_database):
    """A database that each test leaves without slots."""
    yield module_database
    drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active"
    wait_until("no slot is left", lambda: module_database.sql(drop, "SELECT 1 FROM pg_replication_slots") == [])


class Memcached:
    """A real memcached on a port that stays its own."""

    def __init__(self, *options, unix=None):
        self.port, self.unix = None if unix else free_port(), unix
        self.options = options
        self.process = None
        self.start()

    def start(self):
        where = ["-s", self.unix] if self.unix else ["-l", "127.0.0.1", "-p", str(self.port)]
        user = ["-u", "nobody"] if os.geteuid() == 0 else []
        command = [tool("memcached"), *where, "-U", "0", *user, *self.options]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until("memcached answers", self.answers)

    def answers(self):
        with contextlib.suppress(OSError, pymemcache.exceptions.MemcacheError):
            with self.client() as c:
                return c.version()

    @contextlib.contextmanager
    def client(self):
        c = pymemcache.client.base.Client(self.unix or ("127.0.0.1", self.port), timeout=30, default_noreply=False)
        yield c
        c.close()

    def get(self, key):
        with self.client() as c:
            return c.get(key)

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.process.kill()
        self.process.wait()

    @property
    def address(self):
        return self.unix or f"127.0.0.1:{self.port}"


@pytest.fixture
def servers():
    all_servers = [Memcached() for _ in range(3)]
    yield all_servers
    for server in all_servers:
        server.signal(signal.SIGCONT)
        server.kill()


TABLES = """
[[follow.shop.table]]
table = "users"
delete_keys = ["user:{id}", "profile:{id}"]

[[follow.shop.table]]
table = "orders"
delete_keys = ["order:{id}", "orders-of:{user_id}"]
columns = ["state"]
"""


def rules(database, more="", tables=TABLES):
    return f'[follow.shop]\nurl = "{database.url}"\nmax_lag = "1s"\n{more}\n{tables}'


class Follow:
    """A process that follows."""

    def __init__(self, binary, text, servers, *options):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="conformance-"))
        self.file, self.log_path = self.directory / "rules.toml", self.directory / "log"
        self.file.write_text(text)
        to = ",".join(server if isinstance(server, str) else server.address for server in servers)
        self.command = [str(binary), "follow", str(self.file), "--to", to, *options]
        self.process = None
        self.start()

    def start(self):
        with open(self.log_path, "ab") as log:
            before = self.log().count("is confirmed for the first time")
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until("the log is confirmed", lambda: self.log().count("is confirmed for the first time") > before, 60)

    def log(self):
        return self.log_path.read_text()

    def says(self, text, seconds=30):
        wait_until(f"the log says {text!r}", lambda: re.search(text, self.log()), seconds)

    def end(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(30)

    def clean(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


@pytest.fixture
def follow(binary, database):
    """Starts processes, which end before the database is looked at."""
    assert database.up
    all_follows = []

    def run(text, servers, *options):
        all_follows.append(Follow(binary, text, servers, *options))
        return all_follows[-1]

    yield run
    for own in all_follows:
        own.clean()


def keys_of(user):
    return [f"user:{user}", f"profile:{user}"]


def libmemcached(servers, **behaviors):
    return pylibmc.Client([server.address for server in servers], behaviors={"tcp_nodelay": True, **behaviors})


def fill(client, users=range(1, USERS + 1)):
    for user in users:
        for key in [*keys_of(user), f"order:{user}", f"orders-of:{user}", f"other:{user}"]:
            assert client.set(key, "old")


def gone(client, keys):
    wait_until(f"{keys} are gone", lambda: all(client.get(key) is None for key in keys))


def there(client, keys):
    assert [key for key in keys if client.get(key) is None] == []


KETAMA = [("ketama", {"ketama": True}), ("ketama_weighted", {"ketama_weighted": True}), ("all", {"ketama": True}), ("all", {})]


@pytest.mark.parametrize("distribution,behaviors", KETAMA)
def test_exactly_the_keys_of_changed_rows_are_gone(follow, database, servers, distribution, behaviors):
    own = follow(rules(database), servers, "--distribution", distribution)
    c = libmemcached(servers, **behaviors)
    fill(c)
    # Each server has some.
    assert all(any(server.get(f"user:{n}") for n in range(1, USERS + 1)) for server in servers)
    database.sql("UPDATE users SET name = name || '.' WHERE id <= 40")
    changed = [key for user in range(1, 41) for key in keys_of(user)]
    gone(c, changed)
    rest = [key for user in range(41, USERS + 1) for key in keys_of(user)]
    there(c, rest + [f"{kind}:{n}" for kind in ("order", "orders-of", "other") for n in range(1, USERS + 1)])
    assert own.end() == 0
    deletes = 80 * (3 if distribution == "all" else 1)
    assert f"ends: {deletes} deletes of 1 transactions, 80 found a value; 1 gaps, 0 flushes, 0 keys" in own.log()


def test_pymemcache_chooses_in_its_own_way(follow, database, servers):
    follow(rules(database), servers, "--distribution=all")
    c = pymemcache.client.hash.HashClient([("127.0.0.1", server.port) for server in servers], default_noreply=False)
    fill(c)
    database.sql("UPDATE users SET name = 'x' WHERE id IN (1, 2, 3)")
    gone(c, [key for user in (1, 2, 3) for key in keys_of(user)])
    there(c, keys_of(4) + ["other:1"])


def test_weights_and_a_unix_socket(follow, database, servers, open_dir):
    local = Memcached("-a", "0777", unix=f"{open_dir}/memcached")
    try:
        to = [f"{servers[0].address}:3", f"{servers[1].address}:1"]
        follow(rules(database), to, "--distribution", "ketama_weighted")
        weighted = pylibmc.Client([f"{servers[0].address}:3", f"{servers[1].address}:1"], behaviors={"ketama_weighted": True})
        follow(rules(database), [local])
        fill(weighted)
        assert sum(bool(servers[0].get(f"user:{n}")) for n in range(1, USERS + 1)) > USERS * 0.55
        with local.client() as c:
            fill(c)
            database.sql("UPDATE users SET name = 'x' WHERE id <= 20")
            changed = [key for user in range(1, 21) for key in keys_of(user)]
            gone(weighted, changed)
            gone(c, changed)
            there(weighted, keys_of(21))
            there(c, keys_of(21))
    finally:
        local.kill()


def test_inserts_updates_and_deletes(follow, database, servers):
    follow(rules(database), servers)
    c = libmemcached(servers, ketama=True)
    fill(c)
    there_before = ["orders-of:9", "order:9"]
    for key in keys_of(1000):
        c.set(key, "was missing")
    database.sql("INSERT INTO users VALUES (1000, 'new')")
    gone(c, keys_of(1000))
    # It moves from one user to another.
    database.sql("UPDATE orders SET user_id = 8 WHERE id = 7")
    gone(c, ["order:7", "orders-of:7", "orders-of:8"])
    there(c, ["order:8"])
    # None of `columns`; then one of them.
    database.sql("UPDATE orders SET total = 2 WHERE id = 9", "UPDATE orders SET state = 'paid' WHERE id = 10")
    gone(c, ["order:10", "orders-of:10"])
    there(c, there_before)
    # NULL names no key.
    c.set("orders-of:", "no user")
    database.sql("UPDATE orders SET user_id = NULL WHERE id = 11")
    gone(c, ["order:11", "orders-of:11"])
    there(c, ["orders-of:"])
    database.sql("DELETE FROM orders WHERE id = 12", "DELETE FROM users WHERE id = 1000")
    gone(c, ["order:12", "orders-of:12"])


def test_only_what_is_committed(follow, database, servers):
    own = follow(rules(database), servers)
    c = libmemcached(servers, ketama=True)
    fill(c)
    with database.connect(autocommit=False) as connection:
        connection.execute("UPDATE users SET name = 'never' WHERE id = 1")
        connection.rollback()
        for _ in range(5):
            connection.execute("UPDATE users SET name = name || 'x' WHERE id = 2")
        time.sleep(0.5)
        there(c, keys_of(1) + keys_of(2))
        connection.commit()
    gone(c, keys_of(2))
    there(c, keys_of(1))
    assert own.end(signal.SIGINT) == 0
    assert "ends: 2 deletes of 1 transactions, 2 found a value" in own.log()


def test_the_prefix_of_a_library_is_not_hashed(follow, database, servers):
    follow(rules(database), servers, "--prefix", "app:")
    c = libmemcached(servers, ketama=True)
    fill(c)
    for server in servers:
        with server.client() as own:
            for key in keys_of(5) + keys_of(6):
                if own.get(key):
                    own.set(f"app:{key}", "old")
    have = lambda: sum(bool(server.get(f"app:{key}")) for server in servers for key in keys_of(5))
    assert have() == 2
    database.sql("UPDATE users SET name = 'x' WHERE id = 5")
    wait_until("both are gone", lambda: have() == 0)
    there(c, keys_of(5))
    assert sum(bool(server.get(f"app:{key}")) for server in servers for key in keys_of(6)) == 2


def test_keys_that_memcached_does_not_take(follow, database, servers):
    tables = '[[follow.shop.table]]\ntable = "users"\ndelete_keys = ["name:{name}"]\n'
    database.sql("ALTER TABLE users REPLICA IDENTITY FULL")
    own = follow(rules(database, tables=tables), servers)
    c = libmemcached(servers, ketama=True)
    c.set("name:ok", "old")
    database.sql("UPDATE users SET name = 'a b' || E'\\r\\nflush_all' WHERE id = 13", "UPDATE users SET name = repeat('x', 300) WHERE id = 13",
                 "UPDATE users SET name = 'ok' WHERE id = 13")
    gone(c, ["name:ok"])
    own.says("which memcached does not take as a key")
    own.end()
    assert re.search(r"1 gaps, 0 flushes, [1-9]\d* keys left out", own.log()), own.log()
    database.sql("ALTER TABLE users REPLICA IDENTITY DEFAULT")


def test_a_server_is_killed_and_started_again(follow, database, servers):
    own = follow(rules(database, 'slot = "shop_to"'), servers)
    c = libmemcached(servers, ketama=True)
    fill(c)
    servers[1].kill()
    start = database.sql("SELECT pg_current_wal_lsn()")[0][0]
    database.sql("UPDATE users SET name = name || 'k'")
    own.says(f"server {servers[1].address}: does not answer")
    own.says("is behind, not confirmed for 1s")
    # The others are not kept waiting.
    alive = [servers[0], servers[2]]
    wait_until("gone", lambda: not any(server.get(key) for server in alive for n in range(1, USERS + 1) for key in keys_of(n)))
    time.sleep(2)
    # Nothing of it is acknowledged while one of them has not been told.
    reached = f"SELECT confirmed_flush_lsn > '{start}' FROM pg_replication_slots"
    assert database.sql(reached) == [(False,)]
    servers[1].start()
    # Clients may have filled it before it is told.
    own.says(f"server {servers[1].address}: answers again")
    own.says("is confirmed again")
    fill(libmemcached(servers, ketama=True), range(1, 3))
    database.sql("UPDATE users SET name = 'x' WHERE id <= 2")
    wait_until("gone", lambda: not any(server.get(key) for server in servers for n in (1, 2) for key in keys_of(n)))
    wait_until("it is acknowledged", lambda: database.sql(reached) == [(True,)])
    assert own.end() == 0


def test_a_server_is_stopped_for_three_seconds(follow, database, servers):
    own = follow(rules(database, 'slot = "shop_to"'), servers)
    c = libmemcached(servers, ketama=True)
    fill(c)
    servers[0].signal(signal.SIGSTOP)
    database.sql("UPDATE users SET name = name || 's'")
    time.sleep(3)
    servers[0].signal(signal.SIGCONT)
    gone(c, [key for user in range(1, USERS + 1) for key in keys_of(user)])
    own.says(f"server {servers[0].address}: does not answer.*no reply within 2s")
    own.says("answers again")
    there(c, [f"other:{n}" for n in range(1, USERS + 1)])
    assert own.end() == 0


def test_the_database_restarts(follow, database, servers):
    own = follow(rules(database, 'slot = "shop_to"'), servers)
    c = libmemcached(servers, ketama=True)
    fill(c)
    database.stop("immediate")
    own.says("no connection, it is tried again")
    own.says("is behind")
    database.start()
    database.sql("UPDATE users SET name = 'r' WHERE id = 1")
    gone(c, keys_of(1))
    own.says("goes on where it stopped")
    own.says("is confirmed again")
    there(c, keys_of(2) + ["other:1"])
    assert "not known which keys" not in own.log()


def test_nothing_is_lost_when_it_is_killed_with_a_permanent_slot(follow, database, servers):
    own = follow(rules(database, 'slot = "shop_to"'), servers, "--on-gap", "flush")
    own.says("all servers are emptied by flush_all: the log is followed from now on")
    c = libmemcached(servers, ketama=True)
    wait_until("the flushes are over", lambda: c.set("a", 1) and c.get("a"))
    time.sleep(1)
    fill(c)
    for turn in range(5):
        database.sql(*[f"UPDATE users SET name = 'k{turn}' WHERE id = {turn * 10 + n}" for n in range(1, 6)])
        own.process.kill()
        own.process.wait()
        database.sql(f"UPDATE users SET name = 'l{turn}' WHERE id BETWEEN {turn * 10 + 6} AND {turn * 10 + 9}")
        own.start()
    changed = [key for user in range(1, 50) if user % 10 for key in keys_of(user)]
    gone(c, changed)
    there(c, [key for user in (10, 20, 51, 60) for key in keys_of(user)] + ["other:1"])
    assert own.log().count("all servers are emptied") == 1, own.log()


def test_the_position_is_acknowledged_at_the_end(follow, database, servers):
    own = follow(rules(database, 'slot = "shop_to"'), servers)
    c = libmemcached(servers, ketama=True)
    fill(c)
    database.sql("UPDATE users SET name = 'p'")
    end = database.sql("SELECT pg_current_wal_lsn()")[0][0]
    gone(c, keys_of(1) + keys_of(USERS))
    assert own.end() == 0
    behind = database.sql(f"SELECT confirmed_flush_lsn >= '{end}' FROM pg_replication_slots")
    assert behind == [(True,)], database.sql("SELECT * FROM pg_replication_slots")
    # So nothing comes twice.
    own.start()
    own.end()
    assert "ends: 0 deletes of 0 transactions" in own.log()


def test_another_process_takes_over(follow, database, servers, binary):
    """Two have the same slot: one follows, and the other waits for it."""
    text = rules(database, 'slot = "shop_to"')
    first = follow(text, servers)
    c = libmemcached(servers, ketama=True)
    fill(c)
    second = Follow.__new__(Follow)
    second.directory = pathlib.Path(tempfile.mkdtemp(prefix="conformance-"))
    second.command, second.log_path = first.command, second.directory / "log"
    with open(second.log_path, "ab") as log:
        second.process = subprocess.Popen(second.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        second.says("no connection, it is tried again: .*shop_to")
        database.sql("UPDATE users SET name = 't' WHERE id = 1")
        gone(c, keys_of(1))
        first.process.kill()
        first.process.wait()
        database.sql("UPDATE users SET name = 't' WHERE id = 2")
        gone(c, keys_of(2))
        second.says("goes on where it stopped")
        there(c, keys_of(3))
        assert second.end() == 0 and "0 gaps" in second.log()
    finally:
        second.clean()


def test_truncate(follow, database, servers):
    database.sql("CREATE TABLE pages (id int PRIMARY KEY)", "CREATE TABLE notes (id int PRIMARY KEY)",
                 "ALTER PUBLICATION cattlegrid ADD TABLE pages, notes")
    tables = """
[[follow.shop.table]]
table = "pages"
delete_keys = ["page:{id}"]
truncate_keys = ["pages", "front"]
[[follow.shop.table]]
table = "notes"
delete_keys = ["note:{id}"]
"""
    own = follow(rules(database, tables=tables), servers)
    c = libmemcached(servers, ketama=True)
    for key in ("pages", "front", "page:1", "note:1"):
        c.set(key, "old")
    database.sql("TRUNCATE pages")
    gone(c, ["pages", "front"])
    there(c, ["page:1", "note:1"])
    database.sql("TRUNCATE notes")
    own.says(r"not known which keys changed, and nothing is deleted \(--on-gap warn\): public.notes was truncated")
    there(c, ["page:1", "note:1"])
    own.end()
    flushing = follow(rules(database, tables=tables), servers, "--on-gap=flush")
    flushing.says("all servers are emptied by flush_all: the log is followed from now on")
    time.sleep(1.1)
    assert c.set("note:1", "old") and c.get("note:1")
    database.sql("TRUNCATE notes")
    gone(c, ["note:1"])
    flushing.says("all servers are emptied by flush_all: public.notes was truncated")
    database.sql("DROP TABLE pages, notes")


def test_a_gap_warns_or_flushes(follow, database, servers):
    c = libmemcached(servers, ketama=True)
    warned = follow(rules(database), servers)
    warned.says("the slot is temporary")
    fill(c)
    cut = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active"
    database.sql(cut)
    warned.says("nothing is deleted .--on-gap warn.: entries were left out: the stream begins later")
    there(c, keys_of(1))
    warned.end()
    own = follow(rules(database), servers, "--on-gap", "flush")
    time.sleep(1.1)
    fill(c)
    database.sql(cut)
    own.says("all servers are emptied by flush_all: entries were left out")
    gone(c, keys_of(1) + ["other:1"])


def test_a_server_that_refuses_to_be_emptied(follow, database, servers):
    own_server = Memcached("-F")
    try:
        own = follow(rules(database), [own_server], "--on-gap", "flush")
        own.says("was not emptied, and may have old values until they expire: it answers CLIENT_ERROR flush_all not allowed")
        with own_server.client() as c:
            fill(c, [1, 2])
            database.sql("UPDATE users SET name = 'f' WHERE id = 1")
            gone(c, keys_of(1))
            there(c, keys_of(2))
    finally:
        own_server.kill()


def test_once_more_later(follow, database, servers):
    """What is not guaranteed, and what narrows it: a value that was read before the commit is stored after the delete."""
    follow(rules(database, 'again = "1s"'), servers)
    c = libmemcached(servers, ketama=True)
    fill(c)
    database.sql("UPDATE users SET name = 'a' WHERE id = 1")
    gone(c, keys_of(1))
    c.set("user:1", "read before the commit")
    gone(c, ["user:1"])
    c.set("user:1", "later still")
    time.sleep(2)
    assert c.get("user:1") == "later still"


def test_more_than_waits_comes_again_from_the_slot(follow, database, servers):
    """There is no memory for the deletes of a server that is away. None is lost, and the others go on."""
    own = follow(rules(database, 'slot = "shop_to"'), servers)
    c = libmemcached(servers, ketama=True)
    fill(c)
    servers[2].signal(signal.SIGSTOP)
    database.sql("UPDATE users SET name = name || 'm'")
    rows = "INSERT INTO users SELECT n, 'many' FROM generate_series({}, {}) n"
    for part in range(10):
        database.sql(rows.format(10_000_000 + part * 200_000, 10_000_000 + (part + 1) * 200_000 - 1))
    own.says(f"server {servers[2].address}: there is no memory for the .* deletes that wait for it: the log sends them again", 120)
    with open(f"/proc/{own.process.pid}/status") as file:
        resident = int(re.search(r"VmHWM:\s+(\d+) kB", file.read())[1])
    assert resident < 300_000, resident
    servers[2].signal(signal.SIGCONT)
    own.says("answers again, and lacks what the log has", 60)
    gone(c, [key for user in range(1, USERS + 1) for key in keys_of(user)])
    own.says("is confirmed again", 120)
    there(c, [f"other:{n}" for n in range(1, USERS + 1)])
    assert "not known which keys" not in own.log()
    database.sql("DELETE FROM users WHERE id >= 10000000")


def test_check_knows_such_a_file(binary, database, tmp_path, servers):
    file = tmp_path / "rules.toml"
    file.write_text(rules(database))
    run = lambda *words: subprocess.run([binary, *words], capture_output=True, text=True, timeout=60)
    shown = run("check", str(file), "--connect")
    assert shown.returncode == 0, shown
    assert 'delete_keys = ["user:{id}", "profile:{id}"]' in shown.stdout
    assert "# for `cattlegrid follow` only: " in shown.stdout and "nothing is missing" in shown.stdout
    again = tmp_path / "again.toml"
    again.write_text(shown.stdout)
    # A comment has the line, which is another one there.
    settings = lambda text: re.sub("(?m)^#.*\n", "", text)
    assert settings(run("check", str(again)).stdout) == settings(shown.stdout)
    # Its keys need columns, too.
    file.write_text(rules(database, tables='[[follow.shop.table]]\ntable = "users"\ndelete_keys = ["u:{nam}"]\n'))
    shown = run("check", str(file), "--connect")
    assert shown.returncode == 1 and "nam" in shown.stdout, shown
    # A server obeys tags.
    file.write_text(rules(database))
    server = run("--config", str(file), "-p", "0")
    assert server.returncode == 2 and f"{file}:6: follow shop: table public.users has delete_keys and no bump" in server.stderr, server


BUMPS = '[[follow.shop.table]]\ntable = "users"\nbump = ["user:{id}"]\n'
SHOP = '[follow.shop]\nurl = "postgres://a@127.0.0.1:1/shop"\n'


@pytest.mark.parametrize(
    "text,words,status,said",
    [
        (SHOP + BUMPS, [], 2, "rules.toml:3: follow shop: table public.users has no delete_keys"),
        (SHOP + BUMPS.replace("bump", "bumb"), [], 2, "did you mean bump?"),
        (SHOP + BUMPS.replace("bump", "delete_keys").replace("{id}", "{id} x"), [], 2, "no blanks"),
        (SHOP + BUMPS + "truncate_keys = [\"a\"]", [], 2, "belongs to delete_keys"),
        ("", [], 2, "has no log of a database"),
        ('[follow.b]\nservers = ["http://127.0.0.1:1"]', ["--log", "b"], 2, "is of etcd"),
        ('[follow.b]\nservers = ["http://127.0.0.1:1"]', [], 2, "has no log of a database"),
        (SHOP + BUMPS, ["--log", "b"], 2, "there is no [follow.b]"),
        (SHOP + BUMPS + (SHOP + BUMPS).replace(".shop", ".other"), [], 2, "has several logs; name one: --log shop or --log other"),
        (SHOP + BUMPS, ["--distribution", "modula"], 2, "there are ketama, ketama_weighted, all"),
        (SHOP + BUMPS, ["--on-gap", "x"], 2, "there are warn, flush"),
        (SHOP + BUMPS, ["--to", "127.0.0.1:1"], 2, "is there twice"),
        (SHOP + BUMPS, ["--to", "127.0.0.1:99999"], 2, "the port is not a number"),
        (SHOP + BUMPS, ["--tu", "b"], 2, "did you mean --to?"),
        ((SHOP + BUMPS).replace("bump", "delete_keys") + 'x = 1', [], 2, "rules.toml:6: "),
    ],
)
def test_what_is_wrong_is_said(binary, tmp_path, text, words, status, said):
    file = tmp_path / "rules.toml"
    file.write_text(text)
    command = [binary, "follow", str(file), "--to", "127.0.0.1:1", *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
    assert (ended.returncode, ended.stdout) == (status, ""), ended
    assert said in ended.stderr


def test_nothing_can_be_reached(binary, tmp_path):
    """It is tried again, and ends by a signal all the same."""
    file = tmp_path / "rules.toml"
    file.write_text((SHOP + BUMPS).replace("bump", "delete_keys"))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        command = [binary, "follow", str(file), "--to", f"127.0.0.1:1,127.0.0.1:{silent.getsockname()[1]}"]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        time.sleep(2)
        assert process.poll() is None
        process.terminate()
        _, said = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "log shop: no connection, it is tried again" in said and "server 127.0.0.1:1: does not answer" in said
    assert "ends: 0 deletes" in said
