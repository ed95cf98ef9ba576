"""Tables and servers of MariaDB that are not the usual ones: hidden columns, versions, views, engines, large rows, several databases,
another primary. With `MYSQLD` the same of MySQL."""

import time

import pytest

from follow_faults import Relay
from follow_loads import ROWS
from harness import wait_until
from mysql_server import MysqlServer
from test_follow_mysql import (
    BINARY, checked, flushes, gone, is_mariadb, log_of, only_mariadb, own_database, pytestmark, rules,  # noqa: F401
)
from test_follow import client, confirmed, started, until

OWNER = 'owner = "connection"'


def table(name, bump, more=""):
    return f'[[follow.shop.table]]\ntable = "{name}"\nbump = ["{bump}"]\n{more}\n'


@pytest.fixture(scope="module")
def module_database():
    database = MysqlServer(binary=BINARY)
    yield database
    database.clean()


def emptied(database):
    """As it was at first, except for its log."""
    database.database = None
    own = ("information_schema", "mysql", "performance_schema", "sys")
    names = [name for (name,) in database.sql("SHOW DATABASES") if name not in own]
    users = database.sql("SELECT user, host FROM mysql.user WHERE user = 'cattlegrid'")
    database.sql("SET foreign_key_checks = 0", *(f"DROP DATABASE {name}" for name in names), *(f"DROP USER '{user}'@'{host}'" for user, host in users),
                 "SET GLOBAL binlog_row_metadata = MINIMAL")
    return database.prepare(ROWS)


@pytest.fixture
def shop(start, open_dir, module_database, own_database, binary):
    """Makes tables of a database, and a server that follows those."""

    def make(*statements, tables="", options=(), rights=()):
        database = own_database(*options) if options else emptied(module_database)
        if statements:
            database.sql(*statements)
        for right in rights:
            database.sql(f"GRANT SELECT ON {right}.* TO cattlegrid@'%'")
        text = rules(database.port, rule=OWNER, tables=tables)
        server = started(start, open_dir, text)
        until(server, "confirmed")
        with open(f"{open_dir}/check.toml", "w") as out:
            out.write(text)
        database.lacks = lambda: checked(binary, f"{open_dir}/check.toml")[1]
        return server, database, client(server)

    yield make


def test_columns_that_only_the_rows_have(shop):
    if is_mariadb:
        made = [
            "CREATE TABLE a (t text UNIQUE, id int PRIMARY KEY, v int)",
            "CREATE TABLE b (id int PRIMARY KEY, v int) WITH SYSTEM VERSIONING",
            "CREATE TABLE c (rs timestamp(6) GENERATED ALWAYS AS ROW START INVISIBLE, re timestamp(6) GENERATED ALWAYS AS ROW END INVISIBLE,"
            " id int, v int, PRIMARY KEY (id, re), PERIOD FOR SYSTEM_TIME (rs, re)) WITH SYSTEM VERSIONING",
            "CREATE TABLE d (t text UNIQUE, id int PRIMARY KEY, v int) WITH SYSTEM VERSIONING",
        ]
    else:
        made = ["SET GLOBAL show_gipk_in_create_table_and_information_schema = OFF", "SET sql_generate_invisible_primary_key = ON",
                *(f"CREATE TABLE {name} (id int, v int)" for name in "abcd")]
    tables = "".join(table(name, "row:{id}", 'columns = ["v"]' if name in "bc" else "") for name in "abcd")
    server, database, c = shop(*made, *(f"INSERT INTO {name} (id, v) VALUES (1, 0), (2, 0)" for name in "abcd"), tables=tables)
    assert "ok, nothing is missing" in database.lacks()
    keys = ["page:1", "page:2", "page:3"]
    for metadata in ("MINIMAL", "FULL"):
        database.sql(f"SET GLOBAL binlog_row_metadata = {metadata}")
        for name in "abcd":
            by = lambda *statements: gone(server, c, keys, lambda: database.sql(*statements))
            assert by(f"UPDATE {name} SET v = v + 1 WHERE id = 1") == {"page:1"}, (name, metadata, server.log())
            assert by(f"DELETE FROM {name} WHERE id = 2") == {"page:2"}, (name, metadata)
            assert by(f"INSERT INTO {name} (id, v) VALUES (2, 5)") == {"page:2"}, (name, metadata)
    assert flushes(server) == 1, server.log()


def test_statements_that_reach_a_table_through_a_view_or_a_trigger(shop):
    server, database, c = shop("CREATE VIEW seen AS SELECT * FROM items", "CREATE TABLE other (id int)",
                               "CREATE TRIGGER t AFTER INSERT ON other FOR EACH ROW UPDATE items SET version = version + 1")
    for change in ("UPDATE seen SET version = version + 1 WHERE id = 3", "INSERT INTO other VALUES (1)"):
        before = flushes(server)
        assert gone(server, c, ["page:3"], lambda: database.sql("SET binlog_format = STATEMENT", change)) == {"page:3"}, change
        assert flushes(server) > before and "set binlog_format = ROW" in server.log()


@only_mariadb
def test_statements_behind_settings(shop):
    """`SET STATEMENT ... FOR`, by which careful migrations are run."""
    server, database, c = shop("CREATE TABLE p (id int PRIMARY KEY)", tables=table("p", "row:{id}"))
    settings = "SET STATEMENT lock_wait_timeout = 5, max_statement_time = 9 FOR"
    for change in ("TRUNCATE TABLE p", "ALTER TABLE p ADD COLUMN c int FIRST", "RENAME TABLE p TO q, q TO p"):
        before = flushes(server)
        assert gone(server, c, ["page:3"], lambda: database.sql(f"{settings} {change}")) == {"page:3"}, change
        assert flushes(server) > before


def test_other_statements_in_the_place_of_rows(shop, tmp_path):
    server, database, c = shop()
    file = tmp_path / "rows"
    file.write_text("3\t4\t5\n")
    for directory in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        directory.chmod(0o755)
    database.sql("SET GLOBAL local_infile = ON")
    changes = [f"LOAD DATA INFILE '{file}' REPLACE INTO TABLE shop.items"]
    if is_mariadb:
        changes.append("ANALYZE UPDATE shop.items SET version = version + 1 WHERE id = 3")
    for change in changes:
        before = flushes(server)
        statements = ["SET binlog_format = STATEMENT", "CREATE DATABASE IF NOT EXISTS elsewhere", "USE elsewhere", change]
        assert gone(server, c, ["page:3"], lambda: database.sql(*statements)) == {"page:3"}, change
        assert flushes(server) > before
    # A table of the same name is another one.
    before = flushes(server)
    statements = ["CREATE TABLE elsewhere.items (id int)", "ALTER TABLE elsewhere.items ADD a int", "USE elsewhere", "TRUNCATE items",
                  "/*!40000 ALTER TABLE `items` DISABLE KEYS */", "SET binlog_format = STATEMENT", "INSERT INTO items VALUES (1, 2)", "DROP TABLE items"]
    assert gone(server, c, ["page:3"], lambda: database.sql(*statements)) == set()
    assert flushes(server) == before, server.log()


def test_rights_that_hide_what_is_needed(shop):
    """Foreign keys of parents, columns, and accounts with a host."""
    server, database, c = shop(
        "CREATE DATABASE other", "CREATE TABLE other.grand (id int PRIMARY KEY)",
        "CREATE TABLE other.parents (id int PRIMARY KEY, grand int, FOREIGN KEY (grand) REFERENCES other.grand (id) ON DELETE CASCADE)",
        "CREATE TABLE children (id int PRIMARY KEY, parent int, FOREIGN KEY (parent) REFERENCES other.parents (id) ON DELETE CASCADE)",
        rights=["other"], tables=table("children", "row:{id}", 'cascade = "flush"'))
    right = "BINLOG MONITOR" if is_mariadb else "REPLICATION CLIENT"
    if is_mariadb:
        database.sql("REVOKE SELECT ON other.* FROM cattlegrid@'%'")
        assert "GRANT SELECT ON `other`.`parents` TO 'cattlegrid'@'%'" in database.lacks()
        database.sql("GRANT SELECT ON `other`.`parents` TO 'cattlegrid'@'%'")
        assert "GRANT SELECT ON `other`.`grand` TO 'cattlegrid'@'%'" in database.lacks()
        database.sql("GRANT SELECT ON `other`.`grand` TO 'cattlegrid'@'%'")
        assert "ok, nothing is missing" in database.lacks()
    database.sql("REVOKE SELECT ON shop.* FROM cattlegrid@'%'", "GRANT SELECT (id, version) ON shop.items TO cattlegrid@'%'",
                 "GRANT SELECT (id) ON shop.children TO cattlegrid@'%'")
    said = database.lacks()
    for name in ("items", "children"):
        assert f"GRANT SELECT ON `shop`.`{name}` TO 'cattlegrid'@'%'" in said, said
    # The account that signs in is not always one of any host.
    database.sql("DROP USER cattlegrid@'%'", "CREATE USER cattlegrid@'127.0.0.1' IDENTIFIED BY 'secret'")
    for _ in range(4):
        said = database.lacks()
        grants = [line.split("#   ", 1)[1].split(", or ")[-1] for line in said.splitlines() if "GRANT " in line]
        if not grants:
            break
        database.sql(*grants)
    assert "ok, nothing is missing" in said and right, said


def test_tables_of_several_databases(shop):
    """Tables of one name, each in its own database, and another that nothing follows."""
    made = [f"CREATE DATABASE {name}" for name in ("first", "second", "third")]
    made += [f"CREATE TABLE {name}.items (id int PRIMARY KEY, v int)" for name in ("first", "second", "third")]
    tables = table("first.items", "row:{id}") + table("second.items", "row:2{id}")
    server, database, c = shop(*made, tables=tables, rights=("first", "second"))
    keys = ["page:1", "page:21", "page:5"]
    by = lambda *statements: gone(server, c, keys, lambda: database.sql(*statements))
    assert by("INSERT INTO first.items VALUES (1, 0)") == {"page:1"}
    assert by("INSERT INTO second.items VALUES (1, 0)") == {"page:21"}
    assert by("INSERT INTO third.items VALUES (1, 0)", "DROP DATABASE third") == set()
    assert by("USE second", "UPDATE items SET v = 2", "USE first", "UPDATE items SET v = 2", "UPDATE shop.items SET version = 1 WHERE id = 5") == set(keys)
    assert by("START TRANSACTION", "DELETE FROM first.items", "DELETE FROM second.items", "ROLLBACK") == set()
    assert flushes(server) == 1, server.log()


@pytest.mark.parametrize("engine", ["MyISAM", *(["Aria"] if is_mariadb else [])])
def test_tables_without_transactions(start, open_dir, own_database, binary, engine):
    """`check` names them, the log is behind, and what they say is obeyed all the same."""
    database = own_database()
    database.sql(f"CREATE TABLE old (id int PRIMARY KEY, v int) ENGINE = {engine}", "INSERT INTO old VALUES (1, 0)")
    text = rules(database.port, rule=OWNER, tables=table("old", "row:{id}"))
    server = started(start, open_dir, text)
    says = f"shop.old is of the engine {engine}, without transactions"
    wait_until("it is said", lambda: says in server.log(), 30)
    with open(f"{open_dir}/check.toml", "w") as out:
        out.write(text)
    status, said = checked(binary, f"{open_dir}/check.toml")
    assert status == 1 and says in said and "ALTER TABLE `shop`.`old` ENGINE = InnoDB" in said, said
    wait_until("it is behind", lambda: log_of(server)["behind"] == "1", 20)
    database.sql("ALTER TABLE old ENGINE = InnoDB")
    until(server, "confirmed")
    c = client(server)
    assert gone(server, c, ["page:1"], lambda: database.sql("UPDATE old SET v = 1")) == {"page:1"}


def test_large_rows(shop):
    """Rows of more than one packet, and of more than the largest event that is read."""
    log = "--innodb-log-file-size=256M" if is_mariadb else "--innodb-redo-log-capacity=512M"
    server, database, c = shop("CREATE TABLE large (id int PRIMARY KEY, v longblob)", tables=table("large", "row:{id}"),
                               options=["--max-allowed-packet=200M", log])
    keys = ["page:1", "page:2"]
    for mib in (1, 16, 40):
        for less in (0, 100):
            change = f"INSERT INTO large VALUES (1, REPEAT('x', ({mib} << 20) - {less}))"
            assert gone(server, c, keys, lambda: database.sql("DELETE FROM large", change)) == {"page:1"}, mib
    assert flushes(server) == 1, server.log()
    assert gone(server, c, keys, lambda: database.sql("DELETE FROM large", "INSERT INTO large VALUES (1, REPEAT('x', 70 << 20))")) == set(keys)
    assert "a change is larger than 64 MiB" in server.log()
    before = flushes(server)
    assert gone(server, c, keys, lambda: database.sql("INSERT INTO large VALUES (2, 'x')")) == {"page:2"}
    assert flushes(server) == before
    with open(f"/proc/{server.process.pid}/status") as file:
        peak = next(int(line.split()[1]) >> 10 for line in file if line.startswith("VmHWM"))
    assert peak < 250, peak


def test_a_password_that_a_program_prints(start, open_dir, own_database, tmp_path):
    """It is run for each connection: a password that was changed is known at the next one."""
    database = own_database()
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    text = rules(database.port, rule=OWNER, more=f'password_command = ["cat", "{secret}"]').replace(":secret@", "@")
    server = started(start, open_dir, text)
    until(server, "confirmed")
    c = client(server)
    database.sql("ALTER USER cattlegrid@'%' IDENTIFIED BY 'another'")
    database.end_followers()
    wait_until("it is refused", lambda: "Access denied" in server.log(), 30)
    secret.write_text("another\n")
    until(server, "confirmed")
    assert gone(server, c, ["page:1"], lambda: database.sql("UPDATE items SET version = 1 WHERE id = 1")) == {"page:1"}
    assert flushes(server) == 1 and "secret" not in server.log().replace(str(secret), ""), server.log()


def test_a_replica_is_promoted(start, open_dir, own_database):
    """Another server at the address, with the same rows: its log is another one, and all items are computed again once."""
    primary = own_database("--log-slave-updates=ON", "--sync-binlog=0")
    primary.sql("CREATE USER replica@'%' IDENTIFIED BY 'secret'", "GRANT REPLICATION SLAVE ON *.* TO replica@'%'")
    primary.stop()
    copy = primary.copy()
    (copy / "auto.cnf").unlink(missing_ok=True)
    primary.start()
    replica = own_database("--server-id=2", "--log-slave-updates=ON", "--sync-binlog=0", copy_of=copy)
    replica.database = "shop"
    way = Relay(primary.port)
    try:
        if is_mariadb:
            at = primary.sql("SELECT @@gtid_binlog_pos")[0][0]
            replica.sql(f"SET GLOBAL gtid_slave_pos = '{at}'",
                        f"CHANGE MASTER TO master_host = '127.0.0.1', master_port = {primary.port}, master_user = 'replica',"
                        " master_password = 'secret', master_use_gtid = slave_pos", "START SLAVE")
        else:
            replica.sql(f"CHANGE REPLICATION SOURCE TO source_host = '127.0.0.1', source_port = {primary.port}, source_user = 'replica',"
                        " source_password = 'secret', source_auto_position = 1, get_source_public_key = 1", "START REPLICA")
        server = started(start, open_dir, rules(way.port, rule=OWNER))
        until(server, "confirmed")
        c = client(server)
        assert gone(server, c, ["page:1"], lambda: primary.sql("UPDATE items SET version = 5 WHERE id = 1")) == {"page:1"}
        wait_until("it is replicated", lambda: replica.sql("SELECT version FROM items WHERE id = 1") == [(5,)], 30)
        before = flushes(server)
        c.get("page:2"), c.set("page:2", "old")
        primary.kill()
        replica.sql(*(["STOP SLAVE", "RESET SLAVE ALL"] if is_mariadb else ["STOP REPLICA", "RESET REPLICA ALL"]))
        way.to = replica.port
        replica.sql("UPDATE items SET version = 6 WHERE id = 2")
        wait_until("it follows the other", lambda: flushes(server) == before + 1, 30)
        confirmed(server)
        assert c.get("page:2") is None
        assert " and is " in server.log(), server.log()
        assert gone(server, c, ["page:1", "page:3"], lambda: replica.sql("UPDATE items SET version = 7 WHERE id = 1")) == {"page:1"}
        assert flushes(server) == before + 1, server.log()
    finally:
        way.close()


def test_the_wall_clock_is_set(shop):
    """Of the server's transactions, which are in the log: an hour back, and forward."""
    server, database, c = shop()
    now = int(time.time())
    for at in (now - 3600, now + 3600, now):
        change = [f"SET timestamp = {at}", "UPDATE items SET version = version + 1 WHERE id = 1"]
        assert gone(server, c, ["page:1", "page:2"], lambda: database.sql(*change)) == {"page:1"}
        database.sql(f"SET timestamp = {at}", "FLUSH BINARY LOGS")
    database.end_followers()
    assert gone(server, c, ["page:1", "page:2"], lambda: database.sql("UPDATE items SET version = 0 WHERE id = 1")) == {"page:1"}
    assert flushes(server) == 1, server.log()
