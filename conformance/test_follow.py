"""The log of a database invalidates: an unmodified client that never deletes, and a real PostgreSQL with real faults."""

import concurrent.futures
import contextlib
import os
import random
import signal
import socket
import subprocess
import threading
import time

import pymemcache.client.base
import pytest

import follow_loads
import test_statistics
from database import Database
from follow_faults import Scene
from follow_loads import Load, prepare, rules
from harness import free_port, wait_until

pytestmark = pytest.mark.only_cattlegrid

# Beyond `max_lag`: of the floor's ring and its moves 150 ms, and what threads of a loaded machine wait.
SLACK = 1.5


@pytest.fixture(scope="module")
def module_database():
    database = Database()
    prepare(database)
    yield database
    database.clean()


@pytest.fixture
def database(module_database):
    """One for the tests of this file that leave it as it was."""
    yield module_database


@pytest.fixture
def own_database():
    databases = []

    def make(settings=""):
        databases.append(Database(settings))
        prepare(databases[-1])
        return databases[-1]

    yield make
    for database in databases:
        database.clean()


def started(start, open_dir, text, *options):
    file = f"{open_dir}/rules.toml"
    with open(file, "w") as out:
        out.write(text)
    return start("--config", file, *options)


def client(server, **more):
    return pymemcache.client.base.Client(("127.0.0.1", server.port), timeout=30, default_noreply=False, **more)


def fill(c, key, value):
    """As an application does: a value after a miss. (A `set` alone, in a server's first minute, has a short life.)"""
    assert c.get(key) is None, key
    c.set(key, value)


def log_of(server, name="shop"):
    prefix = f"{name}:"
    return {key[len(prefix):]: value for key, value in server.stats("follow").items() if key.startswith(prefix)}


def resident(server):
    """Bytes of memory."""
    with open(f"/proc/{server.process.pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def until(server, state, name="shop"):
    wait_until(f"the log is {state}", lambda: log_of(server, name).get("state") == state, 60)


def confirmed(server, name="shop"):
    """Waits until all that was committed until now is obeyed."""
    asked = time.monotonic()

    def is_later():
        passed = time.monotonic() - asked
        said = log_of(server, name)
        return said.get("state") == "confirmed" and int(said["lag_ms"]) + 2 < passed * 1000

    wait_until("the log is confirmed", is_later, 60)


def test_a_changed_row_invalidates_what_was_made_from_it(start, open_dir, database):
    server = started(start, open_dir, rules(database.port))
    until(server, "confirmed")
    c = client(server)
    c.set("page:1", "old")
    c.set("page:2", "other")
    c.set("plain", "untagged")
    database.sql("UPDATE rows SET version = version + 1 WHERE id = 1")
    wait_until("the page is gone", lambda: c.get("page:1") is None)
    c.set("page:1", "new")
    assert (c.get("page:1"), c.get("page:2"), c.get("plain")) == (b"new", b"other", b"untagged")
    database.sql("UPDATE rows SET version = version + 1 WHERE id > 100")
    confirmed(server)
    assert int(log_of(server)["bumps"]) == 101


def test_statistics_are_those_of_the_documents(start, open_dir, database):
    server = started(start, open_dir, rules(database.port))
    until(server, "confirmed")
    documented = {name.removeprefix("{log}:") for name, _ in test_statistics.documented()["follow"]}
    # Lines of a log of etcd, and of a log with `via`.
    others = {"nodes", "backlog", "sent", "waited", "not_confirmed", "leader"}
    assert others < documented
    assert set(log_of(server)) == documented - {"lost", "missing"} - others


def test_a_value_that_was_read_before_the_change_is_not_kept(start, open_dir, database):
    server = started(start, open_dir, rules(database.port))
    until(server, "confirmed")
    slow, quick = client(server), client(server)
    assert slow.get("page:7") is None
    database.sql("UPDATE rows SET version = version + 1 WHERE id = 7")
    confirmed(server)
    slow.set("page:7", "read before the change")
    assert quick.get("page:7") is None


def test_an_application_that_never_deletes(start, open_dir, database):
    server = started(start, open_dir, rules(database.port))
    until(server, "confirmed")
    with Load(database, server.port) as load:
        time.sleep(6)
    report = load.report()
    assert report["written"] > 200 and report["hits"] > 1000, report
    assert not load.errors, load.errors[:3]
    assert load.longest() < 3 + SLACK, report
    said = log_of(server)
    assert said["state"] == "confirmed" and said["times_behind"] == "1", said


def test_behind_every_prefix_or_those_of_the_table(start, open_dir, database):
    text = '[server]\nprefixes = [":1:", "api:"]\n' + rules(database.port)
    server = started(start, open_dir, text)
    until(server, "confirmed")
    keys = ["page:1", ":1:page:1", "api:page:1"]
    c = client(server)
    for key in keys:
        c.set(key, "old")
    database.sql("UPDATE rows SET version = version + 1 WHERE id = 1")
    confirmed(server)
    assert c.get_many(keys) == {}
    server.stop()
    server = started(start, open_dir, text + 'prefixes = ["", "api:"]\n')
    until(server, "confirmed")
    c = client(server)
    for key in keys:
        c.set(key, "old")
    database.sql("UPDATE rows SET version = version + 1 WHERE id = 1")
    confirmed(server)
    assert c.get_many(keys) == {":1:page:1": b"old"}


def test_each_rule_says_what_is_served_while_the_database_is_down(start, open_dir, own_database):
    database = own_database()
    names = ["refresh", "miss", "serve"]
    rule = '[[rule]]\nmatch = "{0}:{{id}}"\nhold = "0s"\ngrace = "60s"\ntags = ["row:{{id}}"]\nwhen_behind = "{0}"\n'
    more_rules = "".join(rule.format(name) for name in names)
    text = more_rules + rules(database.port, grace="60s", max_lag="1s", when_behind="miss")
    server = started(start, open_dir, text)
    until(server, "confirmed")
    c, other = client(server), client(server)
    keys = [f"{name}:1" for name in names] + ["page:1"]
    for key in keys:
        c.set(key, "old")
    database.stop("immediate")
    until(server, "lost")
    time.sleep(1.5)
    both = [(c.get(key), other.get(key)) for key in keys]
    # The rule `page:{id}` says nothing, and its log says "miss".
    assert both == [(None, b"old"), (None, None), (b"old", b"old"), (None, None)]
    # A reload counts at once, for what is stored already.
    c.set("serve:2", "old")
    time.sleep(1.2)
    assert c.get("serve:2") == b"old"
    with open(f"{open_dir}/rules.toml", "w") as out:
        out.write(text.replace('when_behind = "serve"', 'when_behind = "miss"'))
    server.signal(signal.SIGHUP)
    wait_until("the other setting counts", lambda: c.get("serve:2") is None)


@pytest.mark.parametrize("rule", ["", 'hold = "400ms"', 'owner = "connection"', 'grace = "10s"'])
def test_fresh_values_are_kept_while_the_log_is_behind(start, open_dir, rule):
    """One client on its own, of whose misses none takes a number that anything else would take."""
    follow = (
        '[follow.shop]\nkind = "postgres"\nurl = "postgres://nobody@127.0.0.1:{port}/gone"\nmax_lag = "1s"\nwhen_behind = "miss"\n'
        '[[follow.shop.table]]\ntable = "rows"\nbump = ["row:{id}"]\n'
    ).replace("{port}", str(free_port()))
    server = started(start, open_dir, f'[[rule]]\nmatch = "page:{{id}}"\ntags = ["row:{{id}}"]\n{rule}\n' + follow)
    until(server, "lost")
    c = client(server)
    time.sleep(1.5)
    for _ in range(3):
        assert c.get("page:1") is None
        assert c.set("page:1", "fresh", noreply=False)
        since = time.monotonic()
        answers = [c.get("page:1") for _ in range(10)]
        assert answers == [b"fresh"] * 10 or time.monotonic() - since > 0.5
        time.sleep(1.3)
        # Older than `max_lag`.
    # Without a reader too, nothing that is older is served.
    assert c.get("page:1") is None


@pytest.mark.parametrize("when_behind", ["refresh", "miss", "serve"])
def test_what_is_served_while_the_database_is_down(start, open_dir, own_database, when_behind):
    database = own_database()
    text = rules(database.port, grace="60s", max_lag="1s", when_behind=when_behind)
    server = started(start, open_dir, text)
    until(server, "confirmed")
    c, other = client(server), client(server)
    c.set("page:1", "old")
    c.set("plain", "untagged")
    database.stop("immediate")
    until(server, "lost")
    time.sleep(1.5)
    first, second = c.get("page:1"), other.get("page:1")
    expected = {
        # One client is sent to compute, and the others get the old value.
        "refresh": (None, b"old"),
        # One computes, and the other waits for it as long as `hold` says.
        "miss": (None, None),
        "serve": (b"old", b"old"),
    }
    assert (first, second) == expected[when_behind]
    assert c.get("plain") == b"untagged"
    database.start()
    until(server, "confirmed")
    confirmed(server)
    fill(c, "page:2", "new")
    assert c.get("page:2") == b"new"
    database.sql("UPDATE rows SET version = version + 1 WHERE id = 2")
    confirmed(server)
    assert c.get("page:2") is None


def test_what_changed_while_it_was_not_connected(start, open_dir, own_database):
    """A temporary slot begins anew: everything with tags is computed again. A permanent one goes on."""
    for slot, flushes in (("temporary", "2"), ("cattlegrid", "1")):
        database = own_database()
        server = started(start, open_dir, rules(database.port, max_lag="10s", more=f'slot = "{slot}"'))
        until(server, "confirmed")
        c = client(server)
        c.set("page:1", "old")
        c.set("page:2", "other")
        # The connections of the server end; a row is changed before it is back.
        with database.connect() as connection:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'cattlegrid'")
            connection.execute("UPDATE rows SET version = version + 1 WHERE id = 1")
        wait_until("it is connected again", lambda: log_of(server)["connects"] == "2")
        confirmed(server)
        assert c.get("page:1") is None
        assert log_of(server)["flushes"] == flushes
        assert c.get("page:2") == (None if slot == "temporary" else b"other")
        server.stop()
        if slot != "temporary":
            assert database.sql("SELECT slot_name FROM pg_replication_slots") == [(slot,)]


def test_a_value_is_not_made_from_what_is_not_visible_yet(start, open_dir, own_database):
    """A commit that waits for a standby is in the log, and readers do not see it."""
    database = own_database()
    server = started(start, open_dir, rules(database.port))
    until(server, "confirmed")
    c = client(server)
    database.sql("ALTER SYSTEM SET synchronous_standby_names = 'none'", "SELECT pg_reload_conf()")
    time.sleep(0.5)

    def write():
        with database.connect() as connection, contextlib.suppress(Exception):
            connection.execute("UPDATE rows SET version = 77 WHERE id = 3")

    writer = threading.Thread(target=write)
    writer.start()
    wait_until("the commit waits", lambda: log_of(server)["waiting"] == "1")
    assert c.get("page:3") is None
    [(version,)] = database.sql("SELECT version FROM rows WHERE id = 3")
    c.set("page:3", str(version))
    assert version != 77
    database.sql("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
    writer.join(30)
    assert database.sql("SELECT version FROM rows WHERE id = 3") == [(77,)]
    confirmed(server)
    assert c.get("page:3") is None, "the value of before the commit"


def test_rows_that_no_page_is_made_from_are_not_recorded(start, open_dir, own_database):
    database = own_database()
    text = rules(database.port, max_lag="60s").replace('hold = "400ms"', 'hold = "400ms"\nfill_window = "1s"')
    server = started(start, open_dir, text)
    until(server, "confirmed")
    c = client(server)
    tags = lambda: {name.decode(): value for name, value in c.stats("tags").items()}
    wait_until("bumps may be left out", lambda: "noted_share" in tags())
    fill(c, "page:1", "old")
    before = tags()
    database.sql("INSERT INTO rows SELECT n, 0 FROM generate_series(1001, 51000) n")
    confirmed(server)
    after = tags()
    left_out = int(after["left_out"]) - int(before["left_out"])
    recorded = int(after["hard_bumps"]) - int(before["hard_bumps"])
    assert left_out + recorded == 50_000 and recorded < 500, (left_out, recorded)
    assert c.get("page:1") == b"old"
    assert int(c.get("@tag:row:2000").split()[0]) > 0, "known all the same"
    # A miss, and a value whose tag its client names: both obey rows that changed in between.
    assert c.get("page:2") is None
    database.sql("UPDATE rows SET version = 2 WHERE id IN (1, 2, 3)")
    confirmed(server)
    assert c.get("page:1") is None
    c.set("page:2", "old")
    assert c.get("page:2") is None
    miss = tags()["last_bump"]
    assert c.get("page:900") is None
    database.sql("UPDATE rows SET version = 3 WHERE id = 40000")
    confirmed(server)
    assert tags()["last_bump"] == miss, "not recorded"
    assert c.raw_command("ms page:900 3 Grow:40000\r\nold").startswith(b"HD")
    assert c.get("page:900") is None
    # Those that are gone are forgotten, and other rules are another beginning.
    server.signal(signal.SIGHUP)
    wait_until("everything is recorded", lambda: "noted_share" not in tags())
    wait_until("bumps may be left out", lambda: "noted_share" in tags())
    assert float(tags()["noted_share"]) < 0.001


def test_truncate_and_null(start, open_dir, own_database):
    database = own_database()
    database.sql("CREATE TABLE tags (id int PRIMARY KEY, row int)", "ALTER TABLE tags REPLICA IDENTITY FULL",
                 "ALTER PUBLICATION cattlegrid ADD TABLE tags")
    text = rules(database.port) + '\n[[follow.shop.table]]\ntable = "tags"\nbump = ["row:{row}"]\ntruncate = ["row:5"]\n'
    server = started(start, open_dir, text)
    until(server, "confirmed")
    c = client(server)

    def stored():
        for row in range(1, 7):
            c.set(f"page:{row}", "v")

    def gone():
        confirmed(server)
        return [row for row in range(1, 7) if c.get(f"page:{row}") is None]

    stored()
    database.sql("INSERT INTO tags VALUES (1, 1), (2, NULL)")
    assert gone() == [1]
    stored()
    database.sql("UPDATE tags SET row = 2 WHERE id = 1")
    assert gone() == [1, 2], "where it was and where it is"
    stored()
    database.sql("TRUNCATE tags")
    assert gone() == [5]
    stored()
    # It looks into the catalog, twice where it is in doubt: a table that was truncated is not one that was changed.
    flushes = log_of(server)["flushes"]
    for _ in range(3):
        database.sql("TRUNCATE tags")
        server.signal(signal.SIGHUP)
        time.sleep(1.5)
    assert log_of(server)["flushes"] == flushes
    stored()
    database.sql("TRUNCATE rows")
    assert gone() == [1, 2, 3, 4, 5, 6]
    said = log_of(server)
    assert said["null_left_out"] == "1" and said["flushes"] == "2"
    assert "public.rows was truncated" in server.log()


def test_a_change_while_there_was_no_publication(start, open_dir, own_database):
    database = own_database()
    server = started(start, open_dir, rules(database.port, more='slot = "own"'))
    until(server, "confirmed")
    c = client(server)
    c.set("page:1", "old")
    database.sql("DROP PUBLICATION cattlegrid", "UPDATE rows SET version = version + 1 WHERE id = 1")
    wait_until("it is behind", lambda: log_of(server)["behind"] == "1", 60)
    database.sql("CREATE PUBLICATION cattlegrid FOR TABLE rows")
    # The database can never read that change for the slot: it is made anew.
    wait_until("it is confirmed again", lambda: log_of(server)["state"] == "confirmed", 60)
    assert c.get("page:1") is None
    c.set("page:2", "old")
    database.sql("UPDATE rows SET version = version + 1 WHERE id = 2")
    wait_until("the page is gone", lambda: c.get("page:2") is None)


def test_a_million_rows_in_one_transaction(start, open_dir, own_database):
    database = own_database()
    database.sql("CREATE TABLE many (id int PRIMARY KEY, row int)", "ALTER PUBLICATION cattlegrid ADD TABLE many")
    text = rules(database.port, max_lag="60s") + '\n[[follow.shop.table]]\ntable = "many"\nbump = ["row:{row}"]\n'
    server = started(start, open_dir, text)
    wait_until("what is missing is said", lambda: "missing" in log_of(server))
    assert log_of(server)["state"] == "connected"
    # Without the old rows of `many` it is not followed: it says so, and how it is mended.
    assert "ALTER TABLE public.many REPLICA IDENTITY FULL" in log_of(server)["missing"]
    database.sql("ALTER TABLE many REPLICA IDENTITY FULL")
    server.signal(signal.SIGHUP)
    until(server, "confirmed")
    c = client(server)
    fill(c, "page:7", "old")
    before = resident(server)
    database.sql("INSERT INTO many SELECT n, n % 500 FROM generate_series(1, 1000000) n")
    confirmed(server)
    assert c.get("page:7") is None
    said = log_of(server)
    assert int(said["bumps"]) == 500, said
    fill(c, "page:999", "kept")
    # More tags than there is memory for: everything with tags, once.
    flushes = int(said["flushes"])
    database.sql("UPDATE many SET row = id")
    confirmed(server)
    assert c.get("page:999") is None
    assert int(log_of(server)["flushes"]) == flushes + 1
    assert resident(server) < before + (200 << 20)


def test_partitions_count_as_their_table(start, open_dir, own_database):
    for via_root in (False, True):
        database = own_database()
        database.sql(
            "CREATE TABLE parts (id int, at int, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)",
            "CREATE TABLE parts_old PARTITION OF parts FOR VALUES FROM (0) TO (10)",
            "CREATE TABLE parts_new PARTITION OF parts FOR VALUES FROM (10) TO (20)",
            "ALTER PUBLICATION cattlegrid ADD TABLE parts",
            f"ALTER PUBLICATION cattlegrid SET (publish_via_partition_root = {via_root})",
        )
        text = rules(database.port) + '\n[[follow.shop.table]]\ntable = "parts"\nbump = ["row:{id}"]\n'
        server = started(start, open_dir, text)
        until(server, "confirmed")
        c = client(server)
        c.set("page:1", "old")
        c.set("page:2", "old")
        database.sql("INSERT INTO parts VALUES (1, 5), (2, 15)")
        confirmed(server)
        assert c.get_many(["page:1", "page:2"]) == {}, via_root
        server.stop()


def test_tables_that_are_made_later_count(start, open_dir, own_database, binary):
    """A partition and an heir; those of a table that is not followed cost nothing."""
    database = own_database()
    database.sql(
        "CREATE TABLE days (id int, day int, PRIMARY KEY (id, day)) PARTITION BY LIST (day)",
        "CREATE TABLE days_1 PARTITION OF days FOR VALUES IN (1)",
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent)",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "ALTER PUBLICATION cattlegrid ADD TABLE parent, other",
    )
    more = "".join(f'\n[[follow.shop.table]]\ntable = "{name}"\nbump = ["row:{{id}}"]\n' for name in ("days", "parent"))
    text = rules(database.port, max_lag="60s") + more
    server = started(start, open_dir, text)
    wait_until("the table is missing", lambda: "missing" in log_of(server))
    assert "ADD TABLE public.days" in log_of(server)["missing"] and "days_1" not in log_of(server)["missing"].split(": ")[-1]
    database.sql("ALTER PUBLICATION cattlegrid ADD TABLE days")
    server.signal(signal.SIGHUP)
    until(server, "confirmed")
    c = client(server)

    def goes(statement, key):
        fill(c, key, "old")
        database.sql(statement)
        confirmed(server)
        assert c.get(key) is None, statement
        assert log_of(server)["state"] == "confirmed"

    flushes = int(log_of(server)["flushes"])
    goes("INSERT INTO child VALUES (1)", "page:1")
    goes("INSERT INTO other VALUES (1); INSERT INTO days VALUES (2, 1)", "page:2")
    assert int(log_of(server)["flushes"]) == flushes
    database.sql("CREATE TABLE days_2 PARTITION OF days FOR VALUES IN (2)")
    goes("INSERT INTO days VALUES (3, 2)", "page:3")
    time.sleep(1)
    goes("INSERT INTO days VALUES (4, 2)", "page:4")
    assert "public.days_2 is new" in server.log()


def test_a_definition_that_was_changed_and_changed_back(start, open_dir, own_database):
    database = own_database()
    server = started(start, open_dir, rules(database.port, max_lag="60s"))
    until(server, "confirmed")
    flushes = int(log_of(server)["flushes"])
    database.sql("ALTER PUBLICATION cattlegrid DROP TABLE rows", "UPDATE rows SET version = 9", "ALTER PUBLICATION cattlegrid ADD TABLE rows")
    server.signal(signal.SIGHUP)
    wait_until("it is noticed", lambda: int(log_of(server)["flushes"]) == flushes + 1)
    database.sql("ALTER TABLE rows RENAME id TO x", "UPDATE rows SET version = 10", "ALTER TABLE rows RENAME x TO id")
    server.signal(signal.SIGHUP)
    wait_until("it is noticed", lambda: int(log_of(server)["flushes"]) >= flushes + 2)
    assert "definition of a table that is followed was changed" in server.log()
    confirmed(server)
    time.sleep(1)
    # Another look at the same definitions is nothing new.
    flushes = int(log_of(server)["flushes"])
    server.signal(signal.SIGHUP)
    time.sleep(1)
    confirmed(server)
    assert int(log_of(server)["flushes"]) == flushes


def test_long_tags_and_tables_without_a_key(start, open_dir, own_database, binary):
    database = own_database()
    database.sql("CREATE TABLE names (name text PRIMARY KEY)", "CREATE TABLE plain (a int)",
                 "ALTER PUBLICATION cattlegrid ADD TABLE names")
    text = rules(database.port) + '\n[[follow.shop.table]]\ntable = "names"\nbump = ["row:{name}"]\n'
    server = started(start, open_dir, text)
    until(server, "confirmed")
    c = client(server)
    for length in (195, 196, 197, 232, 245):
        name = "q" * length
        fill(c, f"page:{name}", "old")
        database.sql(f"INSERT INTO names VALUES ('{name}')")
        confirmed(server)
        assert c.get(f"page:{name}") is None, length
    with open(f"{open_dir}/plain.toml", "w") as out:
        out.write(rules(database.port) + '\n[[follow.shop.table]]\ntable = "plain"\nbump = ["all"]\n')
    checked = subprocess.run([binary, "check", f"{open_dir}/plain.toml", "--connect"], capture_output=True, text=True, timeout=60).stdout
    assert checked.index("ALTER TABLE public.plain REPLICA IDENTITY FULL") < checked.index("ADD TABLE public.plain"), checked


def test_a_password_command_that_leaves_something_behind(start, open_dir, database):
    more = 'password_command = ["sh", "-c", "echo secret; sleep 30 & exit 0"]'
    server = started(start, open_dir, rules(database.port, more=more))
    until(server, "confirmed")
    begun = time.monotonic()
    server.stop()
    assert time.monotonic() - begun < 25, "what is left sleeps for 30 s"


def test_check_does_not_wait_for_what_a_password_command_leaves_behind(open_dir, binary):
    with open(f"{open_dir}/rules.toml", "w") as out:
        out.write(rules(1, more='password_command = ["sh", "-c", "echo why >&2; echo secret; sleep 30 & exit 0"]'))
    begun = time.monotonic()
    checked = subprocess.run([binary, "check", f"{open_dir}/rules.toml", "--connect"], capture_output=True, text=True, timeout=60)
    assert time.monotonic() - begun < 25 and checked.returncode == 1, checked
    assert "why" in checked.stderr and "refused" in checked.stdout + checked.stderr, checked


def test_slots_that_cannot_be_followed_and_slots_that_stay(start, open_dir, own_database, binary):
    database = own_database()
    database.sql("SELECT pg_create_logical_replication_slot('own', 'test_decoding')")
    server = started(start, open_dir, rules(database.port, more='slot = "own"'))
    until(server, "lost")
    words = "slot `own` is of another plugin, kind or database"
    assert words in log_of(server)["lost"]
    checked = subprocess.run([binary, "check", f"{open_dir}/rules.toml", "--connect"], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 1 and words in checked.stdout
    database.sql("SELECT pg_drop_replication_slot('own')")
    until(server, "confirmed")
    with open(f"{open_dir}/rules.toml", "w") as out:
        out.write(rules(database.port))
    server.signal(signal.SIGHUP)
    wait_until("it is said", lambda: "SELECT pg_drop_replication_slot('own')" in server.log())
    until(server, "confirmed")
    active = "SELECT active FROM pg_replication_slots WHERE slot_name = 'own'"
    wait_until("no connection has it", lambda: database.sql(active) == [(False,)])
    database.sql("SELECT pg_drop_replication_slot('own')")


def test_tables_made_and_filled_while_the_catalog_is_read(start, open_dir, own_database):
    """Partitions that come at any moment, each with a row at once."""
    database = own_database()
    database.sql("CREATE TABLE days (id int, day int, PRIMARY KEY (id, day)) PARTITION BY LIST (day)",
                 "ALTER PUBLICATION cattlegrid ADD TABLE days")
    text = rules(database.port, max_lag="60s") + '\n[[follow.shop.table]]\ntable = "days"\nbump = ["row:{id}"]\n'
    server = started(start, open_dir, text)
    until(server, "confirmed")
    c = client(server)
    with database.connect() as connection:
        for day in range(1, 40):
            key = f"page:{1000 + day}"
            fill(c, key, "old")
            server.signal(signal.SIGHUP)
            time.sleep(random.random() * 0.03)
            connection.execute(f"CREATE TABLE days_{day} PARTITION OF days FOR VALUES IN ({day})")
            connection.execute(f"INSERT INTO days VALUES ({1000 + day}, {day})")
            confirmed(server)
            assert c.get(key) is None, day


def test_connections_that_are_given_up_end(start, open_dir, own_database):
    """While a slot waits for an open transaction the database looks whether their client is still there."""
    database = own_database()
    with database.connect(autocommit=False) as connection:
        connection.execute("UPDATE rows SET version = version + 1 WHERE id = 1")
        server = started(start, open_dir, rules(database.port))
        senders = lambda: database.sql("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender'")[0][0]
        wait_until("it waits", lambda: senders() >= 2)
        for number in range(4):
            with open(f"{open_dir}/rules.toml", "w") as out:
                out.write(rules(database.port, max_lag=f"{number + 4}s"))
            server.signal(signal.SIGHUP)
            time.sleep(0.4)
        wait_until("the others have ended", lambda: senders() <= 2, 30)
    until(server, "confirmed")


@pytest.mark.parametrize(
    "break_it, mend_it, words",
    [
        ("DROP PUBLICATION cattlegrid", "CREATE PUBLICATION cattlegrid FOR TABLE rows",
         "CREATE PUBLICATION \"cattlegrid\" FOR TABLE public.rows"),
        ("ALTER PUBLICATION cattlegrid SET (publish = 'insert')",
         "ALTER PUBLICATION cattlegrid SET (publish = 'insert, update, delete, truncate')", "leaves out inserts, updates"),
        ("ALTER PUBLICATION cattlegrid SET TABLE other", "ALTER PUBLICATION cattlegrid SET TABLE rows",
         "ALTER PUBLICATION \"cattlegrid\" ADD TABLE public.rows"),
        ("ALTER TABLE rows RENAME TO r", "ALTER TABLE r RENAME TO rows", "there is no table public.rows"),
        ("ALTER TABLE rows RENAME id TO number", "ALTER TABLE rows RENAME number TO id", "has no column `id`"),
        ("ALTER TABLE rows REPLICA IDENTITY NOTHING", "ALTER TABLE rows REPLICA IDENTITY DEFAULT",
         "ALTER TABLE public.rows REPLICA IDENTITY FULL"),
        ("ALTER PUBLICATION cattlegrid SET TABLE rows WHERE (id > 5)", "ALTER PUBLICATION cattlegrid SET TABLE rows",
         "leaves out rows or columns"),
    ],
)
def test_what_is_missing_is_said_with_what_mends_it(start, open_dir, own_database, binary, break_it, mend_it, words):
    database = own_database()
    database.sql("CREATE TABLE other (id int PRIMARY KEY)")
    file = f"{open_dir}/checked.toml"
    with open(file, "w") as out:
        out.write(rules(database.port))

    def check():
        return subprocess.run([binary, "check", file, "--connect"], capture_output=True, text=True, timeout=60)

    good = check()
    assert good.returncode == 0 and "ok, nothing is missing" in good.stdout, good
    server = started(start, open_dir, rules(database.port))
    until(server, "confirmed")
    database.sql(break_it)
    bad = check()
    assert bad.returncode == 1 and words in bad.stdout, bad
    server.signal(signal.SIGHUP)
    wait_until("the log is behind", lambda: log_of(server)["behind"] == "1", 60)
    said = log_of(server)
    assert words in said.get("missing", "") + said.get("lost", ""), said
    assert words in server.log()
    database.sql(mend_it)
    wait_until("it is mended", lambda: log_of(server)["state"] == "confirmed", 60)
    c = client(server)
    c.set("page:9", "old")
    database.sql("UPDATE rows SET version = version + 1 WHERE id = 9")
    confirmed(server)
    assert c.get("page:9") is None


@pytest.mark.parametrize(
    "url, words",
    [
        ("postgres://postgres@127.0.0.1:{port}/nothing", 'database "nothing" does not exist'),
        ("postgres://nobody@127.0.0.1:{port}/postgres", 'role "nobody" does not exist'),
        ("postgres://plain@127.0.0.1:{port}/postgres", "ALTER ROLE \"plain\" REPLICATION"),
        ("postgres://postgres@127.0.0.1:{free}/postgres", "refused"),
        ("postgres://postgres@no-such-host.invalid/postgres", "cannot connect"),
        ("postgres://postgres@127.0.0.1:{port}/postgres?sslmode=require", "does not encrypt"),
    ],
)
def test_a_database_that_cannot_be_reached_stops_nothing(start, open_dir, database, binary, url, words):
    database.sql("DO $$ BEGIN CREATE ROLE plain LOGIN; EXCEPTION WHEN duplicate_object THEN END $$")
    url = url.format(port=database.port, free=free_port())
    text = rules(database.port).replace(f"postgres://postgres@127.0.0.1:{database.port}/postgres", url)
    server = started(start, open_dir, text)
    until(server, "lost")
    said = log_of(server)
    assert words in said["lost"], said
    wait_until("it is said", lambda: words in server.log())
    c = client(server)
    c.set("page:1", "v")
    assert c.get("page:1") == b"v"
    checked = subprocess.run([binary, "check", f"{open_dir}/rules.toml", "--connect"], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 1 and words in checked.stdout, checked
    # The same file with a database that is there: no restart is needed.
    with open(f"{open_dir}/rules.toml", "w") as out:
        out.write(rules(database.port))
    server.signal(signal.SIGHUP)
    until(server, "confirmed")


def test_passwords(start, open_dir, own_database):
    database = own_database()
    database.sql("SET password_encryption = 'scram-sha-256'; CREATE ROLE scram LOGIN SUPERUSER PASSWORD 'p@ss word'",
                 "SET password_encryption = 'md5'; CREATE ROLE old LOGIN SUPERUSER PASSWORD 'p@ss word'")
    with open(database.data / "pg_hba.conf") as file:
        kept = file.read()
    database.as_server("tee", database.data / "pg_hba.conf", input=(
        "host all scram,plain 127.0.0.1/32 scram-sha-256\nhost replication scram 127.0.0.1/32 scram-sha-256\n"
        "host all old 127.0.0.1/32 md5\n" + kept).encode())
    database.sql("SELECT pg_reload_conf()")
    url = f"postgres://postgres@127.0.0.1:{database.port}/postgres"
    with open(f"{open_dir}/password", "w") as out:
        out.write("p@ss word\n")
    for user in ("scram", "old"):
        for more, given in (
            ('password_file = "password"', ""),
            ("""password_command = ["sh", "-c", "echo 'p@ss word'"]""", ""),
            ("", ":p%40ss%20word"),
        ):
            text = rules(database.port, more=more).replace(url, url.replace("postgres@", f"{user}{given}@"))
            server = started(start, open_dir, text)
            until(server, "confirmed")
            assert "p@ss" not in server.log()
            server.stop()
    for more, words in (
        ("", "asks for a password, and none is set"),
        ('password_command = ["false"]', "password_command false: ended with"),
        ('password_command = ["echo", "wrong"]', "password authentication failed"),
    ):
        server = started(start, open_dir, rules(database.port, more=more).replace(url, url.replace("postgres@", "scram@")))
        until(server, "lost")
        assert words in log_of(server)["lost"], log_of(server)
        server.stop()


def test_mistakes_of_the_file(open_dir, binary):
    good = rules(5432)
    for text, words in (
        (good.replace("postgres://postgres@", "http://postgres@"), "does not begin with postgres://"),
        (good.replace('url =', '# url ='), "lacks url"),
        (good.replace("row:{id}\"]", "row:{id\"]"), "a column is written {name}".replace("{name}", "`{name}`")),
        (good.replace('"public.rows"', '"a.b.c"'), "is no table"),
        (good.replace('max_lag = "3s"', 'max_lag = "1ms"'), "max_lag"),
        (good.replace('when_behind = "refresh"', 'when_behind = "wait"'), "when_behind"),
        (good.replace("[follow.shop]", '[follow.shop]\nkind = "mysql"'), "does not begin with mysql://"),
        (good.replace("[follow.shop]", "[follow.shop]\npublicatoin = 1"), "publication"),
        (good.split("[[follow.shop.table]]")[0], "lacks tables"),
        (good + 'prefixes = ["shop:"]\n', "is not one of [server] prefixes"),
        (good.replace("[follow.shop]", '[follow.shop]\npassword_file = "nothing"'), "cannot be used"),
        (good.replace("[follow.shop]", '[follow.shop]\nslot = "A-b"'), "lower-case"),
    ):
        with open(f"{open_dir}/bad.toml", "w") as out:
            out.write(text)
        checked = subprocess.run([binary, "check", f"{open_dir}/bad.toml"], capture_output=True, text=True, timeout=60)
        assert checked.returncode == 2 and words in checked.stderr, (words, checked)


def test_a_server_that_was_stopped_serves_nothing_old_when_it_goes_on(start, open_dir, database):
    server = started(start, open_dir, rules(database.port, max_lag="1s"))
    until(server, "confirmed")
    c = client(server)
    c.set("page:11", "old")
    c.set("page:12", "old")
    server.signal(signal.SIGSTOP)
    try:
        database.sql("UPDATE rows SET version = version + 1 WHERE id = 11")
        time.sleep(2.5)
        raw = socket.create_connection(("127.0.0.1", server.port), timeout=10)
        raw.sendall(b"get page:11\r\nget page:12\r\n")
        c.sock.sendall(b"get page:11\r\n")
    finally:
        server.signal(signal.SIGCONT)
    assert c.sock.recv(100) == b"END\r\n"
    reply = b""
    while reply.count(b"END\r\n") < 2:
        reply += raw.recv(1000)
    assert b"old" not in reply
    until(server, "confirmed")


@pytest.mark.parametrize("when_behind", ["miss", "refresh"])
def test_a_value_that_was_on_its_way_while_the_server_was_stopped(start, open_dir, database, when_behind):
    """By the clock its miss is too old to be remembered; but its client was quick. It is too old for a log that is behind, and for what
    was committed meanwhile."""
    text = rules(database.port, max_lag="1s", when_behind=when_behind).replace("hold =", 'lease = "500ms"\nfill_window = "1s"\nhold =')
    server = started(start, open_dir, text)
    until(server, "confirmed")
    # After the start no such value of a tag that was invalidated is kept anyway.
    time.sleep(1.5)
    raw = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    lines = raw.makefile("rb")
    keys = [f"page:{n}".encode() for n in range(13, 23)]
    for key in keys:
        raw.sendall(b"get %s\r\n" % key)
        assert lines.readline() == b"END\r\n"
    server.stop_all_threads()
    try:
        raw.sendall(b"".join(b"set %s 0 0 3 noreply\r\nold\r\n" % key for key in keys))
        database.sql("UPDATE rows SET version = version + 1 WHERE id BETWEEN 13 AND 22")
        time.sleep(2.5)
        raw.sendall(b"get %s\r\n" % b" ".join(keys))
    finally:
        server.signal(signal.SIGCONT)
    assert lines.readline() == b"END\r\n"
    until(server, "confirmed")
    assert all(client(server).get(key.decode()) is None for key in keys)


SEEDS = int(os.environ.get("FOLLOW_SEEDS", "5"))
AT_ONCE = int(os.environ.get("FOLLOW_AT_ONCE", "3"))


def faults_one_after_the_other(start, directory, seed):
    scene = Scene(seed)
    try:
        prepare(scene.database)
        more = 'slot = "kept"' if seed % 2 else ""
        file = f"{directory}/{seed}.toml"
        with open(file, "w") as out:
            # With a short window, bumps of tags that nothing has are left out for most of the time.
            window = '\nfill_window = "1s"' if seed % 3 else ""
            text = rules(scene.relay.port, max_lag="2s", when_behind="miss", more=more)
            out.write(text.replace('hold = "400ms"', f'hold = "400ms"{window}'))
        server = start("--config", file, env=scene.wall.environment)
        until(server, "confirmed")
        with Load(scene.database, server.port, writers=4, readers=6, seed=seed, think=0.005) as load:
            scene.run(float(os.environ.get("FOLLOW_SECONDS", "30")), server, load)
            until(server, "confirmed")
            time.sleep(1)
        report = load.report()
        assert load.longest() < 2 + SLACK, (load.worst, report)
        assert report["hits"] > 50 and report["written"] > 50, report
        return f"seed {seed}: {report} {load.worst} {scene.done}"
    except BaseException as error:
        print(f"FOLLOW_SEED={seed}: {scene.done}: {error!r}\n{scene.server.log() if scene.server else ''}", flush=True)
        raise AssertionError(f"FOLLOW_SEED={seed}: {scene.done}: {error}") from error
    finally:
        scene.clean()


# `FOLLOW_SEEDS=100` runs that many, by hand; `FOLLOW_SEED=7` one of them.
@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_faults_one_after_the_other(start, open_dir, first):
    seeds = range(first, min(first + AT_ONCE, SEEDS))
    if "FOLLOW_SEED" in os.environ:
        seeds = [int(os.environ["FOLLOW_SEED"])]
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for report in pool.map(lambda seed: faults_one_after_the_other(start, open_dir, seed), seeds):
            print(report)
