"""The log of MariaDB invalidates: an unmodified client that never deletes, a real server, and real faults. With `MYSQLD`, the path of
MySQL's server, or what it is run by, the same of MySQL."""

import concurrent.futures
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pymemcache.client.base
import pytest

from follow_faults import Relay, Scene
from follow_loads import EPOCH, ROWS, Load
from harness import free_port, wait_until
from mysql_server import MysqlServer
from test_follow import SLACK, client, confirmed, fill, log_of, resident, started, until

BINARY = os.environ.get("MYSQLD", "mariadbd").split()

pytestmark = [
    pytest.mark.only_cattlegrid,
    pytest.mark.skipif(not shutil.which(BINARY[0]), reason="no MariaDB is installed"),
]

is_mariadb = BINARY == ["mariadbd"]
only_mariadb = pytest.mark.skipif(not is_mariadb, reason="it is MariaDB's")

RULES = """
[[rule]]
match = "page:{{id}}"
hold = "400ms"
grace = "{grace}"
tags = ["row:{{id}}"]
{rule}

[follow.shop]
url = "mysql://cattlegrid:secret@127.0.0.1:{port}/shop"
max_lag = "{max_lag}"
{more}

[[follow.shop.table]]
table = "items"
bump = ["row:{{id}}"]
"""


def rules(port, grace="0s", max_lag="3s", more="", rule="", tables=""):
    return RULES.format(port=port, grace=grace, max_lag=max_lag, more=more, rule=rule) + tables


class MysqlLoad(Load):
    table = "items"

    def write(self, draw):
        with self.database.connect() as connection:
            epoch = connection.execute("SELECT number FROM epoch").fetchone()[0]
            while not self.stop.is_set():
                row = draw.randint(1, ROWS)
                changed = "UPDATE items SET version = LAST_INSERT_ID(version + 1) WHERE id = %s"
                version = connection.execute(changed, (row,)).lastrowid
                self.commits.add(row, version + EPOCH * epoch, time.monotonic())
                self.written += 1
                time.sleep(draw.random() * 2 * self.pause)


@pytest.fixture(scope="module")
def module_database():
    database = MysqlServer(binary=BINARY).prepare(ROWS)
    yield database
    database.clean()


@pytest.fixture
def database(module_database):
    """One for the tests of this file that leave it as it was."""
    yield module_database


@pytest.fixture
def own_database():
    databases = []

    def make(*options, copy_of=None):
        databases.append(MysqlServer(*options, binary=BINARY, copy_of=copy_of))
        return databases[-1] if copy_of else databases[-1].prepare(ROWS)

    yield make
    for database in databases:
        database.clean()


def checked(binary, file):
    done = subprocess.run([binary, "check", file, "--connect"], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout


def flushes(server):
    return int(log_of(server)["flushes"])


def test_a_changed_row_invalidates_what_was_made_from_it(start, open_dir, database):
    server = started(start, open_dir, rules(database.port))
    until(server, "confirmed")
    c = client(server)
    fill(c, "page:1", "old")
    fill(c, "page:2", "other")
    c.set("plain", "untagged")
    database.sql("UPDATE items SET version = version + 1 WHERE id = 1")
    wait_until("the page is gone", lambda: c.get("page:1") is None)
    c.set("page:1", "new")
    assert (c.get("page:1"), c.get("page:2"), c.get("plain")) == (b"new", b"other", b"untagged")
    bumps = int(log_of(server)["bumps"])
    database.sql("UPDATE items SET version = version + 1 WHERE id > 100")
    confirmed(server)
    assert int(log_of(server)["bumps"]) == bumps + 100
    assert flushes(server) == 1, server.log()


TAGS = """
[[follow.shop.table]]
table = "orders"
bump = ["user:{user_id}", "order:{id}", "state:{state}"]
columns = ["state"]
truncate = ["orders"]

[[follow.shop.table]]
table = "kinds"
bump = ["u:{u}", "d:{d}", "dt:{dt}", "dd:{dd}", "b:{b}", "l:{l}", "s:{s}", "n:{n}"]
"""


@pytest.fixture
def shop(start, open_dir, own_database):
    database = own_database()
    unique = "uuid" if is_mariadb else "char(36)"
    database.sql(
        "CREATE TABLE orders (id bigint unsigned PRIMARY KEY, user_id int, state enum('new', 'it''s paid'), total decimal(10, 2), note text)",
        f"CREATE TABLE kinds (n tinyint PRIMARY KEY, u {unique}, d decimal(6, 2), dt datetime(3), dd date, b binary(4),"
        " l varchar(9) CHARACTER SET latin1, s set('a', 'b', 'c'))",
    )
    # A value after two misses is one of this connection.
    owner = 'owner = "connection"\n'
    rule = owner + "".join(
        f'[[rule]]\nmatch = "{name}:{{v}}"\nhold = "400ms"\n{owner}tags = ["{tag}:{{v}}"]\n'
        for name, tag in [("pu", "user"), ("po", "order"), ("ps", "state"), ("tu", "u"), ("td", "d"), ("tdd", "dd"), ("tb", "b"),
                          ("tl", "l"), ("ts", "s"), ("tn", "n")]
    ) + f'[[rule]]\nmatch = "all"\nhold = "400ms"\n{owner}tags = ["orders"]\n'
    server = started(start, open_dir, rules(database.port, rule=rule, tables=TAGS))
    until(server, "confirmed")
    return server, database, client(server)


def gone(server, c, keys, *change):
    """Which of the keys are invalidated by a change."""
    for key in keys:
        wait_until("it is kept", lambda key=key: c.get(key) == b"old" or not c.set(key, "old"))
    for one in change:
        one()
    confirmed(server)
    return {key for key in keys if c.get(key) is None}


def test_what_is_invalidated(shop):
    server, database, c = shop
    keys = ["pu:7", "pu:8", "po:10", "ps:new", "all", "page:1"]

    def by(*statements):
        return gone(server, c, keys, lambda: database.sql(*statements))

    assert by("INSERT INTO orders VALUES (10, 7, 'new', 1.5, 'x')") == {"pu:7", "po:10", "ps:new"}
    assert by("UPDATE orders SET total = 3 WHERE id = 10") == set(), "only a change of state counts"
    assert by("UPDATE orders SET user_id = 8 WHERE id = 10") == {"pu:7", "pu:8", "po:10", "ps:new"}, "it moves"
    assert by("UPDATE orders SET state = 'it''s paid' WHERE id = 10") == {"pu:8", "po:10", "ps:new"}
    null = int(log_of(server)["null_left_out"])
    assert by("UPDATE orders SET user_id = NULL WHERE id = 10") == {"pu:8", "po:10"}
    assert int(log_of(server)["null_left_out"]) == null + 1
    assert by("DELETE FROM orders WHERE id = 10") == {"po:10"}
    assert by("BEGIN", "INSERT INTO orders VALUES (10, 7, 'new', 1.5, 'x')", "ROLLBACK") == set()
    assert by("BEGIN", "SAVEPOINT a", "INSERT INTO orders VALUES (10, 7, 'new', 1.5, 'x')", "ROLLBACK TO a",
              "INSERT INTO orders VALUES (11, 8, NULL, 1.5, 'x')", "COMMIT") == {"pu:8"}
    assert by("TRUNCATE orders") == {"all"}
    assert by("CREATE TABLE other (id int)", "INSERT INTO other VALUES (1)", "DROP TABLE other") == set()
    assert by("FLUSH BINARY LOGS", "UPDATE items SET version = 9 WHERE id = 1") == {"page:1"}
    assert flushes(server) == 1, server.log()
    # Prepared, and only later committed.
    assert by("XA START 'q'", "INSERT INTO orders VALUES (12, 7, 'new', 1, '')", "XA END 'q'", "XA PREPARE 'q'") == set()
    assert by("XA COMMIT 'q'") == {"pu:7", "ps:new"}
    assert flushes(server) == 1, server.log()


def test_values_of_all_types_that_tags_may_have(shop):
    server, database, c = shop
    number = "11b93fa2-ebca-11f1-b432-02fc00000001"
    keys = [f"tu:{number}", "td:12.50", "tdd:2026-02-03", "tb:01020000", "tl:é".encode(), "ts:a,c", "tn:-5"]
    insert = f"INSERT INTO kinds VALUES (-5, '{number}', 12.5, '2026-01-02 03:04:05.678', '2026-02-03', 0x0102, 'é', 'a,c')"
    assert gone(server, c, keys, lambda: database.sql(insert)) == set(keys)


def test_what_invalidates_everything_is_said(shop):
    server, database, c = shop

    def all_by(words, *statements):
        before = flushes(server)
        assert gone(server, c, ["page:5"], lambda: database.sql(*statements)) == {"page:5"}
        assert flushes(server) > before and words in server.log(), server.log()

    all_by("shop.items was truncated", "TRUNCATE TABLE `shop`.`items`")
    all_by("definition of shop.items may have changed", "ALTER TABLE items ADD COLUMN more int FIRST")
    # And then its columns are known again.
    wait_until("it goes on", lambda: gone(server, c, ["page:5", "page:6"], lambda: database.sql(
        "REPLACE INTO items (id, version) VALUES (5, 1)")) == {"page:5"})
    all_by("in the place of rows", "SET binlog_format = STATEMENT", "UPDATE items SET version = 2")
    all_by("in the log in part", "SET binlog_row_image = MINIMAL", "UPDATE items SET version = 3")
    all_by("definition of shop.items may have changed", "RENAME TABLE items TO items_2", "RENAME TABLE items_2 TO items")
    said = server.log()
    assert "set binlog_format = ROW" in said and "set binlog_row_image = FULL" in said


@only_mariadb
def test_compressed_events(start, open_dir, own_database):
    database = own_database("--log-bin-compress=ON", "--log-bin-compress-min-len=10")
    server = started(start, open_dir, rules(database.port))
    until(server, "confirmed")
    c = client(server)
    database.sql("ALTER TABLE items ADD COLUMN text varchar(500)")
    confirmed(server)
    before = flushes(server)
    change = f"UPDATE items SET version = 5, text = '{'x' * 400}' WHERE id < 50"
    assert gone(server, c, ["page:1", "page:49", "page:50"], lambda: database.sql(change)) == {"page:1", "page:49"}
    assert flushes(server) == before, server.log()


@only_mariadb
def test_names_in_any_case_triggers_partitions_and_columns_that_the_log_names(start, open_dir, own_database):
    database = own_database("--lower-case-table-names=1", "--binlog-row-metadata=FULL")
    database.sql(
        "CREATE TABLE days (id int, at int, PRIMARY KEY (id, at)) PARTITION BY RANGE (at) (PARTITION a VALUES LESS THAN (10), PARTITION b VALUES LESS THAN (20))",
        "CREATE TABLE sources (n int)",
        "CREATE TRIGGER changes AFTER INSERT ON sources FOR EACH ROW UPDATE items SET version = version + 1 WHERE id = NEW.n",
    )
    table = '[[follow.shop.table]]\ntable = "SHOP.Days"\nbump = ["row:{ID}"]\n'
    text = rules(database.port, rule='owner = "connection"', tables=table)
    server = started(start, open_dir, text.replace('table = "items"', 'table = "Items"'))
    until(server, "confirmed")
    c = client(server)
    keys = ["page:1", "page:2", "page:3"]
    assert gone(server, c, keys, lambda: database.sql("INSERT INTO sources VALUES (2)")) == {"page:2"}
    assert gone(server, c, keys, lambda: database.sql("INSERT INTO Days VALUES (1, 5), (3, 15)")) == {"page:1", "page:3"}
    assert flushes(server) == 1, server.log()
    assert gone(server, c, keys, lambda: database.sql("ALTER TABLE Days TRUNCATE PARTITION a")) == set(keys)
    # What follows a change of the definition at once needs no look into the catalog.
    database.sql("ALTER TABLE items ADD COLUMN first int FIRST", "UPDATE items SET version = 5 WHERE id = 1")
    confirmed(server)
    assert flushes(server) == 3 and "not known yet" not in server.log(), server.log()
    assert gone(server, c, keys, lambda: database.sql("UPDATE items SET version = 6 WHERE id = 1")) == {"page:1"}


def test_an_application_that_never_deletes(start, open_dir, database):
    seconds = float(os.environ.get("FOLLOW_SECONDS", "15"))
    server = started(start, open_dir, rules(database.port))
    until(server, "confirmed")
    with MysqlLoad(database, server.port, writers=20, readers=50, pause=0.1, think=0.05) as load:
        time.sleep(seconds)
    report = load.report()
    print(report, log_of(server))
    assert report["written"] > 200 and report["hits"] > 1000, report
    assert not load.errors, load.errors[:3]
    assert load.longest() < 3 + SLACK, report
    said = log_of(server)
    assert said["state"] == "confirmed" and said["times_behind"] == "1", said


def test_a_transaction_of_many_rows(start, open_dir, own_database):
    database = own_database()
    server = started(start, open_dir, rules(database.port, max_lag="60s"))
    until(server, "confirmed")
    before = resident(server)
    c = client(server)
    fill(c, "page:77", "old")
    database.sql("CREATE TABLE numbers (n int)", "INSERT INTO numbers VALUES (0),(1),(2),(3),(4),(5),(6),(7),(8),(9)")
    many = " CROSS JOIN ".join(f"numbers a{n}" for n in range(5))
    total = " + ".join(f"{10 ** n} * a{n}.n" for n in range(5))
    database.sql(f"INSERT INTO items (id, version) SELECT 1000 + {total}, 0 FROM {many}")
    database.sql("BEGIN", *(f"UPDATE items SET version = version + 1, other = {n}" for n in range(5)), "COMMIT")
    confirmed(server)
    assert c.get("page:77") is None
    assert flushes(server) == 1, server.log()
    assert resident(server) - before < 100 << 20


def test_a_connection_that_is_lost_goes_on_where_it_stopped(start, open_dir, database):
    relay = Relay(database.port)
    server = started(start, open_dir, rules(relay.port, max_lag="30s"))
    until(server, "confirmed")
    c = client(server)
    before = flushes(server)
    for _ in range(3):
        fill(c, "page:3", "old")
        fill(c, "page:4", "other")
        relay.cut = {"up": True, "down": True}
        database.sql("UPDATE items SET version = version + 1 WHERE id = 3")
        database.end_followers()
        relay.cut = {"up": False, "down": False}
        wait_until("it goes on", lambda: c.get("page:3") is None, 30)
        assert c.get("page:4") == b"other"
        c.delete("page:4")
        confirmed(server)
    assert flushes(server) == before, server.log()
    assert int(log_of(server)["connects"]) > 3
    relay.close()


def after(server, database, c, change):
    """Two pages, a change that nothing may survive, and the state afterwards."""
    confirmed(server)
    for key in ("page:8", "page:9"):
        if c.get(key) is None:
            c.set(key, "old")
    before = flushes(server)
    change()
    confirmed(server)
    assert (c.get("page:8"), c.get("page:9")) == (None, None), server.log()
    assert flushes(server) > before
    # And it follows.
    if c.get("page:9") is None:
        c.set("page:9", "new")
    database.sql("UPDATE items SET version = version + 1 WHERE id = 9")
    confirmed(server)
    assert c.get("page:9") is None


def test_gaps_are_noticed(start, open_dir, own_database):
    database = own_database("--sync-binlog=1")
    server = started(start, open_dir, rules(database.port, max_lag="60s"))
    until(server, "confirmed")
    c = client(server)

    def restart(number):
        database.stop(number)
        database.start()

    def purge():
        server.signal(signal.SIGSTOP)
        database.end_followers()
        database.sql("UPDATE items SET version = version + 1 WHERE id = 8")
        for _ in range(3):
            database.sql("FLUSH BINARY LOGS")
        last = database.sql("SHOW BINARY LOGS")[-1][0]
        time.sleep(1)
        database.sql(f"PURGE BINARY LOGS TO '{last}'")
        server.signal(signal.SIGCONT)

    def reset():
        database.sql("RESET MASTER" if is_mariadb else "RESET BINARY LOGS AND GTIDS")

    def restore():
        database.stop()
        copy = database.copy()
        database.start()
        confirmed(server)
        database.sql("UPDATE items SET version = 77 WHERE id = 8")
        confirmed(server)
        database.kill()
        database.restore(copy)
        database.start()

    for change in (lambda: restart(signal.SIGTERM), lambda: restart(signal.SIGKILL), purge, reset, restore):
        after(server, database, c, change)


@pytest.mark.parametrize("way", ["repeatable read", "read committed", "get first", "again"])
def test_the_trap_of_repeatable_read(start, open_dir, database, way):
    """A transaction's first read fixes what all its reads see. A value that is computed in it after a miss is old, and is stored after
    the invalidation: it stays, unless the level is READ COMMITTED, the get comes before the first read, or it is invalidated again."""
    more = 'again = "2s"' if way == "again" else ""
    server = started(start, open_dir, rules(database.port, more=more))
    until(server, "confirmed")
    c = client(server)
    database.sql("UPDATE items SET version = 1 WHERE id = 20")
    with database.connect() as connection:
        level = "READ COMMITTED" if way == "read committed" else "REPEATABLE READ"
        connection.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
        connection.execute("START TRANSACTION")
        if way == "get first":
            assert c.get("page:20") is None
        # Any table.
        connection.execute("SELECT * FROM epoch").fetchall()
        database.sql("UPDATE items SET version = 2 WHERE id = 20")
        confirmed(server)
        if way != "get first":
            assert c.get("page:20") is None
        read = connection.execute("SELECT version FROM items WHERE id = 20").fetchone()[0]
        c.set("page:20", str(read))
        connection.execute("COMMIT")
    if way == "again":
        assert (read, c.get("page:20")) == (1, b"1")
        wait_until("it is invalidated again", lambda: c.get("page:20") is None, 10)
        return
    kept = c.get("page:20")
    if way == "repeatable read":
        assert (read, kept) == (1, b"1"), "the trap is gone: then the documents are wrong"
    elif way == "read committed":
        assert (read, kept) == (2, b"2")
    else:
        assert (read, kept) == (1, None)


@pytest.mark.parametrize("level, shown, kept", [
    ("", "READ-COMMITTED", "2"), ("repeatable read", "REPEATABLE-READ", "1"), ("read committed", "READ-COMMITTED", "2"),
])
def test_django_has_the_trap_only_if_it_is_asked_for(start, open_dir, database, level, shown, kept):
    server = started(start, open_dir, rules(database.port))
    until(server, "confirmed")
    database.sql("UPDATE items SET version = 1 WHERE id = 50")
    confirmed(server)
    words = [sys.executable, os.path.join(os.path.dirname(__file__), "mysql_django.py"), database.socket, level, str(server.port)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as django:
        assert django.stdout.readline().strip() == shown
        assert django.stdout.readline().strip() == "change"
        database.sql("UPDATE items SET version = 2 WHERE id = 50")
        confirmed(server)
        django.stdin.write("\n")
        django.stdin.flush()
        assert django.stdout.readline().split() == [kept, kept]


def test_what_a_server_lacks_is_said_with_the_statement_that_mends_it(own_database, binary, open_dir):
    database = own_database()
    file = f"{open_dir}/rules.toml"

    def said(text, tables=""):
        with open(file, "w") as out:
            out.write(text + tables)
        return checked(binary, file)

    good = rules(database.port)
    assert said(good) == (0, said(good)[1]) and "ok, nothing is missing" in said(good)[1]
    database.sql(
        "SET GLOBAL binlog_format = MIXED", "SET GLOBAL binlog_row_image = MINIMAL", "SET GLOBAL binlog_expire_logs_seconds = 60",
        "CREATE TABLE parents (id int PRIMARY KEY)",
        "CREATE TABLE children (id int PRIMARY KEY, parent int, f double, j json, FOREIGN KEY (parent) REFERENCES parents (id) ON DELETE CASCADE)",
        "CREATE TABLE old (id int PRIMARY KEY) ENGINE = MyISAM",
        "CREATE VIEW seen AS SELECT * FROM parents",
    )
    table = '[[follow.shop.table]]\ntable = "{}"\nbump = ["x:{{{}}}"]\n'.format
    tables = table("children", "id") + table("old", "id") + table("seen", "id") + table("none", "id")
    status, text = said(good, tables)
    wanted = [
        "binlog_format is MIXED", "SET GLOBAL binlog_format = 'ROW'", "binlog_row_image is MINIMAL", "SET GLOBAL binlog_row_image = 'FULL'",
        "is kept for 60 s", "SET GLOBAL binlog_expire_logs_seconds = 86400", "shop.old is of the engine MyISAM",
        "ALTER TABLE `shop`.`old` ENGINE = InnoDB", "shop.seen is a view", "there is no table shop.none",
    ]
    if is_mariadb:
        wanted += ["rows of shop.children change with those of shop.parents (ON DELETE CASCADE", 'cascade = "flush"']
    for words in wanted:
        assert words in text, (words, text)
    assert status == 1
    for words, column in [("has no column `nothing`", "nothing"), ("column `f` is of type double", "f")]:
        text = said(good, table("children", column) + 'cascade = "parent"\n')[1]
        assert words in text, text
    database.sql("SET GLOBAL binlog_format = ROW", "SET GLOBAL binlog_row_image = FULL", "SET GLOBAL binlog_expire_logs_seconds = 86400")
    assert said(good)[0] == 0
    database.sql("CREATE USER poor@'%' IDENTIFIED BY 'secret'", "GRANT SELECT ON shop.* TO poor@'%'")
    status, text = said(good.replace("cattlegrid:", "poor:"))
    assert status == 1 and "GRANT REPLICATION SLAVE" in text, text
    assert "secret" not in text
    status, text = said(good.replace(":secret", ":wrong"))
    assert status == 1 and "Access denied" in text and "wrong" not in text, text
    status, text = said(good.replace("max_lag", "server_id = 1\nmax_lag"))
    assert status == 1 and "server_id = 1 is that of the server itself" in text, text


def test_a_commit_that_waits_for_a_replica_is_obeyed_when_it_is_visible(start, open_dir, own_database):
    """With semi-synchronous replication a commit is in the log seconds before readers see it. What is computed meanwhile is old."""
    database = own_database()
    role = "master" if is_mariadb else "source"
    if not is_mariadb:
        database.sql("INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'")
    server = started(start, open_dir, rules(database.port, max_lag="60s"))
    until(server, "confirmed")
    c = client(server)
    # No replica is there, so each commit waits for this long, and the first that has waited without success ends that.
    database.sql(f"SET GLOBAL rpl_semi_sync_{role}_timeout = 4000", f"SET GLOBAL rpl_semi_sync_{role}_wait_point = AFTER_SYNC",
                 f"SET GLOBAL rpl_semi_sync_{role}_enabled = ON")
    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        commit = pool.submit(database.sql, "UPDATE items SET version = 7 WHERE id = 30")
        time.sleep(1.5)
        # It is in the log, and the server has read it.
        status = "SHOW MASTER STATUS" if is_mariadb else "SHOW BINARY LOG STATUS"
        name = database.sql(status)[0][0]
        assert any("items" in str(row) for row in database.sql(f"SHOW BINLOG EVENTS IN '{name}'"))
        assert c.get("page:30") is None
        old = database.sql("SELECT version FROM items WHERE id = 30")[0][0]
        c.set("page:30", str(old))
        assert (old, c.get("page:30")) == (0, b"0")
        assert not commit.done()
        commit.result(30)
    assert time.monotonic() - begun > 3.5
    confirmed(server)
    assert c.get("page:30") is None
    assert flushes(server) == 1, server.log()


def certified(directory):
    """A certificate that is its own authority, and its key."""
    words = "req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 10 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    subprocess.run(["openssl", *words.split()], cwd=directory, check=True, capture_output=True)
    for name in ("key.pem", "cert.pem"):
        os.chmod(directory / name, 0o644)
    return directory / "cert.pem", directory / "key.pem"


def test_encrypted_connections(binary, open_dir, own_database, tmp_path):
    for directory in (tmp_path, *tmp_path.parents):
        if directory.owner() == tmp_path.owner() and directory != directory.parent and "pytest" in str(directory):
            directory.chmod(0o755)
    cert, key = certified(tmp_path)
    database = own_database(f"--ssl-cert={cert}", f"--ssl-key={key}")
    database.sql("ALTER USER cattlegrid@'%' REQUIRE SSL")
    file = f"{open_dir}/rules.toml"

    def said(mode, ca, host="localhost"):
        more = f'sslmode = "{mode}"\n' + (f'ssl_ca = "{ca}"' if ca else "")
        with open(file, "w") as out:
            out.write(rules(database.port, more=more).replace("127.0.0.1", host))
        return checked(binary, file)

    assert said("require", None)[0] == 0, said("require", None)
    assert said("prefer", None)[0] == 0
    assert said("verify-full", cert)[0] == 0, said("verify-full", cert)
    status, text = said("verify-full", cert, "127.0.0.1")
    assert status == 1 and "TLS with" in text, text
    assert said("disable", None)[0] == 1
    other = tmp_path / "other"
    other.mkdir()
    assert said("verify-ca", certified(other)[0])[0] == 1


def test_keys_are_deleted_on_memcached(binary, open_dir, database):
    memcached_port = free_port()
    file = f"{open_dir}/rules.toml"
    with open(file, "w") as out:
        text = rules(database.port).replace('bump = ["row:{id}"]', 'delete_keys = ["page:{id}"]')
        out.write(text)
    memcached = subprocess.Popen(["memcached", "-p", str(memcached_port), "-l", "127.0.0.1", "-U", "0", "-u", "nobody"])
    log = open(f"{open_dir}/log", "wb")
    follower = subprocess.Popen([binary, "follow", file, "--to", f"127.0.0.1:{memcached_port}"], stdout=log, stderr=log)
    said = lambda: open(f"{open_dir}/log").read()
    try:
        wait_until("it follows", lambda: "is confirmed for the first time" in said(), 30)
        c = pymemcache.client.base.Client(("127.0.0.1", memcached_port), timeout=10, default_noreply=False)
        c.set("page:40", "old")
        c.set("page:41", "other")
        database.sql("UPDATE items SET version = version + 1 WHERE id = 40")
        wait_until("it is deleted", lambda: c.get("page:40") is None)
        # A lost connection is no gap.
        memcached.send_signal(signal.SIGSTOP)
        database.sql("UPDATE items SET version = version + 1 WHERE id = 41")
        database.end_followers()
        memcached.send_signal(signal.SIGCONT)
        wait_until("it is deleted, too", lambda: c.get("page:41") is None, 30)
        follower.terminate()
        assert follower.wait(20) == 0
        assert "1 gaps, 0 flushes" in said(), said()
    finally:
        for process in (follower, memcached):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(10)


@only_mariadb
def test_rows_that_foreign_keys_change(start, open_dir, own_database):
    database = own_database()
    database.sql(
        "CREATE TABLE parents (id int PRIMARY KEY, name varchar(9))",
        "CREATE TABLE children (id int PRIMARY KEY, parent int, FOREIGN KEY (parent) REFERENCES parents (id) ON DELETE CASCADE ON UPDATE CASCADE)",
        "INSERT INTO parents VALUES (1, 'a'), (2, 'b')", "INSERT INTO children VALUES (7, 1)",
    )
    table = '[[follow.shop.table]]\ntable = "children"\nbump = ["row:{id}"]\n'
    server = started(start, open_dir, rules(database.port, tables=table))
    wait_until("it is said", lambda: 'write cascade = "flush" for shop.children' in server.log())
    assert log_of(server)["state"] != "confirmed"
    server.stop()
    server = started(start, open_dir, rules(database.port, tables=table + 'cascade = "flush"\n'))
    until(server, "confirmed")
    c = client(server)
    assert gone(server, c, ["page:7"], lambda: database.sql("UPDATE parents SET name = 'c'", "INSERT INTO parents VALUES (3, 'd')")) == set()
    assert gone(server, c, ["page:7"], lambda: database.sql("UPDATE parents SET id = 5 WHERE id = 1")) == {"page:7"}
    assert gone(server, c, ["page:7"], lambda: database.sql("DELETE FROM parents WHERE id = 5")) == {"page:7"}
    assert 'rows of shop.children may have changed with a row of shop.parents (cascade = "flush")' in server.log()


@pytest.mark.skipif(is_mariadb, reason="it is MySQL's")
def test_transactions_with_tags_and_compressed_ones(start, open_dir, own_database):
    database = own_database()
    mine = "SET gtid_next = 'AUTOMATIC:blue'"
    database.sql(mine, "UPDATE items SET version = 1 WHERE id = 1")
    server = started(start, open_dir, rules(database.port))
    until(server, "confirmed")
    c = client(server)
    assert gone(server, c, ["page:1", "page:2"], lambda: database.sql(mine, "UPDATE items SET version = 2 WHERE id = 1")) == {"page:1"}
    compress = "SET binlog_transaction_compression = ON"
    change = "UPDATE items SET version = 3 WHERE id < 100"
    assert gone(server, c, ["page:1", "page:100"], lambda: database.sql(compress, change)) == {"page:1"}
    assert flushes(server) == 1, server.log()


def test_two_servers_of_one_number(start, open_dir, database):
    first = started(start, open_dir, rules(database.port, more="server_id = 4711"))
    until(first, "confirmed")
    started(start, open_dir, rules(database.port, more="server_id = 4711"))
    wait_until("it is said", lambda: "server_id = 4711" in first.log(), 30)
    assert "each server needs its own" in first.log()
    own = database.sql("SELECT @@server_id")[0][0]
    third = started(start, open_dir, rules(database.port, more=f"server_id = {own}"))
    until(third, "confirmed")
    assert third.log().count(f"server_id = {own} is that of the server itself: name another one") == 1, third.log()


class MysqlScene(Scene):
    """A server of MariaDB, the link to it, a server and a load."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.is_safe = True
        self.database = MysqlServer("--sync-binlog=0", binary=BINARY).prepare(ROWS)
        self.relay = Relay(self.database.port)
        self.server = self.load = None
        self.epoch, self.done = 0, []

    def clean(self):
        self.relay.close()
        self.database.clean()

    # Of PostgreSQL.
    do_drop_slot = do_lose_log = do_set_clock = do_promote = Scene.do_nothing

    def do_end(self, length):
        with contextlib.suppress(OSError):
            self.database.end_followers()

    def do_purge(self, length):
        self.relay.cut = {"up": True, "down": True}
        with contextlib.suppress(OSError):
            self.database.end_followers()
            time.sleep(length / 3)
            self.database.sql("FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
            last = self.database.sql("SHOW BINARY LOGS")[-1][0]
            self.database.sql(f"PURGE BINARY LOGS TO '{last}'")
        self.relay.cut = {"up": False, "down": False}

    def do_rotate(self, length):
        with contextlib.suppress(OSError):
            self.database.sql("FLUSH BINARY LOGS")

    def do_reset(self, length):
        with contextlib.suppress(OSError):
            self.database.sql("RESET MASTER" if is_mariadb else "RESET BINARY LOGS AND GTIDS")

    def do_change_definition(self, length):
        """Columns change their places."""
        name = f"more_{len(self.done)}"
        with contextlib.suppress(OSError):
            self.database.sql("SET lock_wait_timeout = 5", f"ALTER TABLE items ADD COLUMN {name} int FIRST")
            time.sleep(length / 3)
            self.database.sql("SET lock_wait_timeout = 5", f"ALTER TABLE items DROP COLUMN {name}")

    def do_statements(self, length):
        with contextlib.suppress(OSError):
            self.database.sql("SET binlog_format = STATEMENT", "UPDATE items SET other = other + 1 WHERE id < 9")

    def do_restore(self, length):
        """All files as they were some seconds ago, with the log that was there then."""
        self.database.stop()
        copy = self.database.copy()
        self.database.start()
        time.sleep(length)
        self.database.kill()
        self.database.restore(copy)
        self.epoch += 1
        rows = self.database.alone(f"UPDATE shop.epoch SET number = {self.epoch}", "SELECT id, version FROM shop.items")
        self.load.restored(self.epoch, rows)
        self.database.start()


SEEDS = int(os.environ.get("FOLLOW_SEEDS", "1"))


# `FOLLOW_SEEDS=100` runs that many, by hand; `FOLLOW_SEED=7` one of them.
@pytest.mark.parametrize("seed", [int(os.environ["FOLLOW_SEED"])] if "FOLLOW_SEED" in os.environ else range(SEEDS))
def test_faults_one_after_the_other(start, open_dir, seed):
    scene = MysqlScene(seed)
    try:
        text = rules(scene.relay.port, max_lag="2s", more='when_behind = "miss"')
        server = started(start, open_dir, text)
        until(server, "confirmed")
        with MysqlLoad(scene.database, server.port, writers=4, readers=6, seed=seed, think=0.005) as load:
            scene.run(float(os.environ.get("FOLLOW_SECONDS", "20")), server, load)
            until(server, "confirmed")
            time.sleep(1)
        report = load.report()
        print(f"seed {seed}: {report} {load.worst} {scene.done}")
        assert load.longest() < 2 + SLACK, (load.worst, report, scene.done, server.log())
        assert report["hits"] > 50 and report["written"] > 50, report
    finally:
        scene.clean()
