"""What a followed database may be like: its certificate, its tables, its standbys, and what becomes of its log."""

import contextlib
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import time

import psycopg
import pytest

from database import Database
from follow_faults import Relay
from follow_loads import prepare, rules
from harness import wait_until
from test_follow import client, confirmed, fill, log_of, own_database, started, until  # noqa: F401  (a fixture)

pytestmark = pytest.mark.only_cattlegrid


def checked(binary, file):
    done = subprocess.run([binary, "check", file, "--connect"], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout


def root(directory, days=10):
    (directory / "authority").write_text("basicConstraints=critical,CA:TRUE")
    openssl(directory, ROOT[0], ROOT[1].format(days=days))


def openssl(directory, *commands):
    for command in commands:
        subprocess.run(["openssl", *shlex.split(command)], check=True, cwd=directory, capture_output=True)


ROOT = (
    "req -nodes -newkey rsa:2048 -subj '/CN=Root' -keyout root.key -out root.csr",
    "x509 -req -in root.csr -signkey root.key -extfile authority -days {days} -out root.crt",
)
REQUEST = "req -nodes -newkey rsa:2048 -subj '/CN={name}' -keyout server.key -out server.csr"
SIGN = "x509 -req -in server.csr -CA root.crt -CAkey root.key -CAcreateserial -days {days} -out server.crt"
ALONE = "req -x509 -nodes -newkey {key} -days {days} -subj '/CN={name}' -keyout server.key -out server.crt"


def alone(name="localhost", more="", days=10, key="rsa:2048"):
    """Signed by itself, and itself what is trusted."""

    def make(directory):
        openssl(directory, f"{ALONE.format(name=name, days=days, key=key)} {more}")
        shutil.copy(directory / "server.crt", directory / "trusted.crt")

    return make


def version_1_over(directory):
    openssl(directory, REQUEST.format(name="localhost"), "x509 -req -in server.csr -signkey server.key -days -1 -out server.crt")
    shutil.copy(directory / "server.crt", directory / "trusted.crt")


def signed(name="localhost", extensions="", days=10, root_days=10, trusts="root.crt"):
    """Signed by an authority; without extensions it is of version 1, as in PostgreSQL's own example."""

    def make(directory):
        root(directory, root_days)
        openssl(directory, REQUEST.format(name=name))
        (directory / "extensions").write_text(extensions.replace(";", "\n"))
        openssl(directory, SIGN.format(days=days) + (" -extfile extensions" if extensions else ""))
        shutil.copy(directory / trusts, directory / "trusted.crt")

    return make


def by_another(directory):
    signed()(directory)
    root(directory)
    shutil.copy(directory / "root.crt", directory / "trusted.crt")


def chained(trusts):
    """Root, intermediate, server: the server sends its own and the intermediate's."""

    def make(directory):
        root(directory)
        openssl(directory, REQUEST.format(name="Between"), SIGN.format(days=10) + " -extfile authority")
        for name in ("crt", "key"):
            os.rename(directory / f"server.{name}", directory / f"between.{name}")
        openssl(directory, REQUEST.format(name="x"))
        (directory / "extensions").write_text("subjectAltName=DNS:localhost")
        openssl(directory, SIGN.replace("root.", "between.").format(days=10) + " -extfile extensions")
        with open(directory / "server.crt", "a") as out:
            out.write((directory / "between.crt").read_text())
        shutil.copy(directory / trusts, directory / "trusted.crt")

    return make


CERTIFICATES = {
    "alone": alone(),
    "alone, of a curve": alone(key="ec -pkeyopt ec_paramgen_curve:prime256v1"),
    "alone, another name": alone("other.example"),
    "alone, an address": alone("x", "-addext subjectAltName=IP:127.0.0.1"),
    "alone, no authority": alone("x", "-addext subjectAltName=DNS:localhost -addext basicConstraints=critical,CA:FALSE"),
    "alone, a common name that does not count": alone("localhost", "-addext subjectAltName=DNS:other.example"),
    "alone, a common name beside an address": alone("localhost", "-addext subjectAltName=IP:10.0.0.1"),
    "alone, for clients": alone(more="-addext extendedKeyUsage=clientAuth"),
    "alone, for signatures of authorities": alone(more="-addext keyUsage=keyCertSign"),
    "alone, over": version_1_over,
    "version 1": signed(),
    "version 1, an address as common name": signed("127.0.0.1"),
    "version 3": signed("x", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
    "version 3, an address as common name beside a name": signed("127.0.0.1", "subjectAltName=DNS:other.example"),
    "version 3, an address as common name beside another": signed("127.0.0.1", "subjectAltName=IP:10.0.0.1"),
    "version 3, an address as a name": signed("x", "subjectAltName=DNS:127.0.0.1"),
    "version 3, an authority": signed("localhost", "basicConstraints=CA:TRUE"),
    "version 3, for clients": signed("localhost", "basicConstraints=CA:FALSE;extendedKeyUsage=clientAuth"),
    "version 3, over": signed("localhost", "basicConstraints=CA:FALSE", days=-1),
    "version 1, root over": signed(root_days=-1),
    "version 3, root over": signed("localhost", "basicConstraints=CA:FALSE", root_days=-1),
    "version 1 itself, without its root": signed(trusts="server.crt"),
    "of another root": by_another,
    "chain": chained("root.crt"),
    "chain without its root": chained("between.crt"),
}


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory):
    database = Database()
    prepare(database)
    database.directory.chmod(0o777)
    yield database
    database.clean()


def certify(database, directory):
    for part in ("crt", "key"):
        database.as_server("tee", database.data / f"server.{part}", input=(directory / f"server.{part}").read_bytes())
        database.as_server("chmod", "600", database.data / f"server.{part}")
    database.sql("ALTER SYSTEM SET ssl = on", "SELECT pg_reload_conf()")


@pytest.mark.parametrize("name", CERTIFICATES)
def test_certificates_are_verified_as_libpq_does(encrypted, binary, open_dir, tmp_path, name):
    CERTIFICATES[name](tmp_path)
    certify(encrypted, tmp_path)
    trusted, answers = tmp_path / "trusted.crt", {}

    def libpq(host, mode):
        try:
            psycopg.connect(host=host, port=encrypted.port, user="postgres", dbname="postgres", sslmode=mode, sslrootcert=str(trusted)).close()
        except psycopg.OperationalError as error:
            assert "certificate" in str(error) or "SSL" in str(error), error
            return False
        return True

    # The new certificate is there when libpq finds the right serial number: sessions are made by new processes.
    serial = subprocess.run(["openssl", "x509", "-in", str(tmp_path / "server.crt"), "-noout", "-serial"], capture_output=True, text=True).stdout
    shown = f"openssl s_client -starttls postgres -connect 127.0.0.1:{encrypted.port} </dev/null 2>/dev/null | openssl x509 -noout -serial"
    wait_until("the certificate is in use", lambda: subprocess.run(shown, shell=True, capture_output=True, text=True).stdout == serial)
    for host in ("localhost", "127.0.0.1"):
        for mode in ("require", "verify-ca", "verify-full"):
            file = f"{open_dir}/{host}-{mode}.toml"
            url = f"postgres://postgres@{host}:{encrypted.port}/postgres"
            with open(file, "w") as out:
                out.write(rules(encrypted.port, more=f'sslmode = "{mode}"\nssl_ca = "{trusted}"').replace(encrypted.url, url))
            status, said = checked(binary, file)
            assert status == 0 or "TLS with" in said, said
            answers[host, mode] = (libpq(host, mode), status == 0, said)
    assert all(theirs == ours for theirs, ours, _ in answers.values()), answers


def test_what_cannot_be_followed_is_said_with_the_reason(own_database, binary, open_dir):
    database = own_database()
    database.sql(
        "CREATE SCHEMA app", 'CREATE TABLE app."Users" (id int PRIMARY KEY, "Name" text)', 'CREATE TABLE "dot.ted" (id int PRIMARY KEY)',
        "CREATE TABLE guarded (id int PRIMARY KEY)", "ALTER TABLE guarded ENABLE ROW LEVEL SECURITY", "ALTER TABLE guarded FORCE ROW LEVEL SECURITY",
        "CREATE UNLOGGED TABLE fast (id int PRIMARY KEY)",
        "CREATE TABLE sums (id int PRIMARY KEY, a int, b int GENERATED ALWAYS AS (a * 2) STORED)",
        'CREATE VIEW seen AS SELECT * FROM rows JOIN app."Users" USING (id)', "CREATE VIEW twice AS SELECT * FROM seen",
        "CREATE MATERIALIZED VIEW kept AS SELECT * FROM rows", "CREATE SEQUENCE counted",
        "CREATE FOREIGN DATA WRAPPER nothing", "CREATE SERVER far FOREIGN DATA WRAPPER nothing", "CREATE FOREIGN TABLE away (id int) SERVER far",
        'ALTER PUBLICATION cattlegrid ADD TABLE app."Users", "dot.ted", guarded, sums',
        "CREATE TABLE years (id int, year int) PARTITION BY LIST (year)",
        "CREATE TABLE year_1 PARTITION OF years FOR VALUES IN (1)", "ALTER TABLE year_1 ADD PRIMARY KEY (id)",
        "CREATE UNLOGGED TABLE year_2 PARTITION OF years FOR VALUES IN (2)", "ALTER TABLE year_2 ADD PRIMARY KEY (id)",
        "CREATE FOREIGN TABLE year_3 PARTITION OF years FOR VALUES IN (3) SERVER far",
        "CREATE TABLE later (id int PRIMARY KEY DEFERRABLE)", "ALTER PUBLICATION cattlegrid ADD TABLE later",
    )
    tag = "x:{id}"

    def said(table, tag=tag):
        file = f"{open_dir}/one.toml"
        with open(file, "w") as out:
            out.write(rules(database.port) + f"\n[[follow.shop.table]]\ntable = '{table}'\nbump = ['{tag}']\n")
        return checked(binary, file)

    for table in ("app.Users", 'app."Users"', '"dot.ted"', "guarded", 'public."dot.ted"'):
        assert said(table) == (0, said(table)[1]), said(table)
    for table, tag_, words in (
        ("users", tag, ["there is no table public.users", "write table = 'app.Users'"]),
        ("app.users", tag, ["there is no table app.users", "write table = 'app.Users'"]),
        ("dot_ted", tag, ["there is no table public.dot_ted", "name a table of this database"]),
        ("app.Users", "x:{name}", ['app."Users" has no column `name`', "write {Name}"]),
        ("fast", tag, ["is unlogged", "ALTER TABLE public.fast SET LOGGED"]),
        ("sums", "x:{b}", ["has `b`, which is generated", "(a * 2)"]),
        ("seen", tag, ["is a view", 'name the tables that it reads: app."Users", public.rows']),
        ("twice", tag, ["is a view", 'app."Users", public.rows']),
        ("kept", tag, ["is a materialized view", "public.rows"]),
        ("counted", tag, ["is no table"]),
        ("away", tag, ["is a foreign table", "follow that server"]),
        ("years", tag, ["public.year_2 is unlogged", "ALTER TABLE public.year_2 SET LOGGED", "public.year_3 is a foreign table"]),
        ("later", tag, ["a deferrable one", "ALTER TABLE public.later REPLICA IDENTITY FULL"]),
        ("pg_catalog.pg_class", "x:{relname}", ["belongs to the system", "leave it out"]),
        ("information_schema.tables", "x:{table_name}", ["belongs to the system"]),
    ):
        status, text = said(table, tag_)
        assert status == 1 and all(word in text for word in words), (table, text)
    with database.connect() as temporary:
        temporary.execute("CREATE TEMPORARY TABLE passing (id int PRIMARY KEY)")
        [(schema,)] = temporary.execute("SELECT nspname FROM pg_namespace WHERE oid = pg_my_temp_schema()").fetchall()
        status, text = said(f"{schema}.passing")
        assert status == 1 and "is temporary" in text, text


def test_what_is_said_of_publications_mends_it(own_database, binary, open_dir):
    database = own_database()
    database.sql(
        "CREATE TABLE years (id int, year int, PRIMARY KEY (id, year)) PARTITION BY LIST (year)",
        "CREATE TABLE year_1 PARTITION OF years FOR VALUES IN (1)",
        "CREATE PUBLICATION by_root FOR TABLE rows, years WITH (publish_via_partition_root)",
        "CREATE PUBLICATION fewer FOR TABLE rows WHERE (id > 3)",
    )
    file = f"{open_dir}/published.toml"

    def said(publication, more=""):
        with open(file, "w") as out:
            out.write(rules(database.port, more=f'publication = "{publication}"') + more)
        return checked(binary, file)

    part = "\n[[follow.shop.table]]\ntable = 'year_1'\nbump = ['x:{id}']\n"
    status, text = said("by_root", part)
    assert status == 1 and "sends the changes of public.year_1 as those of public.years" in text, text
    assert "write table = 'public.years'" in text and said("by_root", part.replace("year_1", "public.years"))[0] == 0
    for publication, more in (("by_root", part), ("fewer", "")):
        status, text = said(publication, more)
        [statement] = [line.split("  ", 1)[1].split(", or")[0] for line in text.splitlines() if line.startswith("#   ALTER")]
        database.sql(*statement.split(";"))
        assert said(publication, more)[0] == 0, (statement, said(publication, more))


def test_an_encrypted_connection_that_is_refused_is_made_without(own_database, binary, open_dir, tmp_path):
    database = own_database()
    CERTIFICATES["alone"](tmp_path)
    certify(database, tmp_path)
    lines = "hostnossl all all 127.0.0.1/32 trust\nhostnossl replication all 127.0.0.1/32 trust\n"
    database.as_server("tee", database.data / "pg_hba.conf", input=lines.encode())
    database.stop()
    database.start()
    file = f"{open_dir}/plain.toml"
    for mode, good in (("prefer", True), ("require", False)):
        with open(file, "w") as out:
            out.write(rules(database.port, more=f'sslmode = "{mode}"'))
        assert (checked(binary, file)[0] == 0) is good, checked(binary, file)


def test_a_slot_that_another_uses_is_named(start, own_database, binary, open_dir):
    database = own_database()
    server = started(start, open_dir, rules(database.port, more='slot = "own"'))
    until(server, "confirmed")
    # The file of a server that runs.
    assert checked(binary, f"{open_dir}/rules.toml")[0] == 0
    other = start("--config", f"{open_dir}/rules.toml")
    until(other, "lost")
    words = "slot `own` is in use by process"
    assert words in log_of(other)["lost"] and "`cattlegrid` from 127.0.0.1" in log_of(other)["lost"]
    server.stop()
    until(other, "confirmed")
    other.stop()
    receiver = subprocess.Popen(
        ["pg_recvlogical", "-d", database.url, "-S", "own", "--start", "-o", "proto_version=1", "-o", "publication_names=cattlegrid", "-f", "-"],
        stdout=subprocess.DEVNULL,
    )
    try:
        active = "SELECT count(*) FROM pg_replication_slots WHERE active"
        wait_until("the slot is in use", lambda: database.sql(active) == [(1,)])
        status, said = checked(binary, f"{open_dir}/rules.toml")
        assert status == 1 and words in said and "pg_recvlogical" in said and "pg_terminate_backend" in said, said
    finally:
        receiver.send_signal(signal.SIGINT)
        receiver.wait(20)


def test_a_server_that_would_count_as_a_standby_does_not_follow(start, own_database, binary, open_dir):
    """Commits would wait until it has obeyed them, and it waits until they are visible."""
    database = own_database()
    server = started(start, open_dir, rules(database.port))
    until(server, "confirmed")
    database.sql("ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'", "SELECT pg_reload_conf()")
    until(server, "lost")
    wait_until("it is said", lambda: "counts this server among the standbys" in log_of(server).get("lost", ""))
    status, said = checked(binary, f"{open_dir}/rules.toml")
    assert status == 1 and "ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1" in said, said
    standby = database.standby()
    try:
        database.sql("ALTER SYSTEM SET synchronous_standby_names = 'walreceiver'", "SELECT pg_reload_conf()")
        until(server, "confirmed")
        c = client(server)
        fill(c, "page:1", "old")
        database.sql("UPDATE rows SET version = version + 1 WHERE id = 1")
        confirmed(server)
        assert c.get("page:1") is None
    finally:
        standby.clean()


def changed_behind_its_back(start, open_dir, database, change, max_lag="60s"):
    """Two values before and after what `change` does: none of them may be served from then on, though the log is never behind."""
    server = started(start, open_dir, rules(database.port, max_lag=max_lag, more='slot = "kept"'))
    until(server, "confirmed")
    c = client(server)
    fill(c, "page:2", "other")
    change(server, c)
    confirmed(server)
    return server, c


def test_a_database_that_was_restored_from_its_files(start, open_dir, own_database):
    """The slot is there, and so are system identifier and timeline; the log has other transactions at the same places."""
    database = own_database()

    def change(server, c):
        database.sql("UPDATE rows SET version = 5 WHERE id = 3")
        confirmed(server)
        database.stop()
        copy = database.copy()
        database.start()
        confirmed(server)
        database.sql("UPDATE rows SET version = 6 WHERE id = 1")
        confirmed(server)
        fill(c, "page:1", "6")
        database.stop("immediate")
        database.restore(copy)
        # It grows beyond where it was.
        database.alone("SELECT count(pg_logical_emit_message(true, 'x', repeat('x', 100))) FROM generate_series(1, 2000)")
        database.start()

    server, c = changed_behind_its_back(start, open_dir, database, change)
    assert c.get("page:1") is None
    assert "the database was restored" in server.log()
    assert database.sql("SELECT version FROM rows WHERE id = 1") == [(0,)]


def test_a_restart_is_no_restore(start, open_dir, own_database):
    database = own_database()
    for mode in ("fast", "immediate"):

        def change(server, c):
            database.sql("UPDATE rows SET version = version + 1 WHERE id = 1")
            confirmed(server)
            fill(c, "page:1", "6")
            database.stop(mode)
            database.start()

        server, c = changed_behind_its_back(start, open_dir, database, change)
        # What the slot had not noted yet comes again.
        assert (c.get("page:2"), log_of(server)["flushes"]) == (b"other", "1")
        server.stop()


def test_a_base_backup_of_before(start, open_dir, own_database):
    """It has no slots."""
    database = own_database()
    backup = database.directory / "backup"

    def change(server, c):
        database.run("pg_basebackup", "-D", backup, "-d", database.url, "-c", "fast")
        database.sql("UPDATE rows SET version = 6 WHERE id = 1")
        confirmed(server)
        fill(c, "page:1", "6")
        database.stop("immediate")
        database.restore(backup)
        database.start()

    server, c = changed_behind_its_back(start, open_dir, database, change)
    assert c.get_many(["page:1", "page:2"]) == {}
    assert int(log_of(server)["flushes"]) == 2


def test_a_slot_that_was_made_anew_or_moved(start, open_dir, own_database):
    database = own_database()

    def anew():
        database.sql("SELECT pg_drop_replication_slot('kept')", "UPDATE rows SET version = version + 1 WHERE id = 1",
                     "SELECT pg_create_logical_replication_slot('kept', 'pgoutput')")

    def moved():
        database.sql("UPDATE rows SET version = version + 1 WHERE id = 1", "SELECT pg_replication_slot_advance('kept', pg_current_wal_lsn())")

    for act in (anew, moved):

        def change(server, c):
            fill(c, "page:1", "old")
            server.signal(signal.SIGSTOP)
            database.sql("SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE active")
            act()
            server.signal(signal.SIGCONT)

        server, c = changed_behind_its_back(start, open_dir, database, change)
        assert c.get("page:1") is None, act
        server.stop()


def test_a_slot_whose_log_is_gone(start, open_dir):
    database = Database("max_slot_wal_keep_size = 1MB\nmin_wal_size = 2MB\nmax_wal_size = 2MB", segment_mib=1)
    try:
        prepare(database)

        def change(server, c):
            fill(c, "page:1", "old")
            server.signal(signal.SIGSTOP)
            database.sql("SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE active",
                         "UPDATE rows SET version = version + 1 WHERE id = 1")
            for _ in range(6):
                database.sql("SELECT pg_logical_emit_message(false, 'x', 'x')", "SELECT pg_switch_wal()")
            database.sql("CHECKPOINT")
            assert database.sql("SELECT wal_status FROM pg_replication_slots") == [("lost",)]
            server.signal(signal.SIGCONT)

        server, c = changed_behind_its_back(start, open_dir, database, change)
        assert c.get("page:1") is None
        assert database.sql("SELECT wal_status <> 'lost' FROM pg_replication_slots") == [(True,)]
    finally:
        database.clean()


def test_a_slot_whose_files_are_gone(start, open_dir, own_database):
    """It does not say so: the database finds out when it looks for them."""
    database = own_database()

    def change(server, c):
        fill(c, "page:1", "old")
        server.signal(signal.SIGSTOP)
        database.sql("UPDATE rows SET version = version + 1 WHERE id = 1", "CHECKPOINT")
        database.stop("immediate")
        database.run("pg_resetwal", "-f", "-D", str(database.data))
        database.start()
        server.signal(signal.SIGCONT)

    server, c = changed_behind_its_back(start, open_dir, database, change)
    assert c.get("page:1") is None
    assert "has already been removed" in server.log()


def test_a_slot_is_taken_back_from_a_connection_that_is_lost(start, open_dir, own_database):
    """The database would notice after a minute only (wal_sender_timeout)."""
    database = own_database()
    relay = Relay(database.port)
    try:
        server = started(start, open_dir, rules(relay.port, max_lag="500ms", more='slot = "kept"'))
        until(server, "confirmed")
        relay.strand()
        wait_until("the log is behind", lambda: log_of(server)["behind"] == "1", 60)
        began = time.monotonic()
        until(server, "confirmed")
        # Five seconds without a reply, and a pause before the next attempt.
        assert time.monotonic() - began < 30, server.log()
    finally:
        relay.close()


def test_a_large_transaction_is_waited_for(start, open_dir, own_database):
    """The database says nothing while it reads it, and begins anew at the next connection."""
    database = own_database("logical_decoding_work_mem = 64kB")
    database.sql("CREATE TABLE beside (id int, text text)")
    server = started(start, open_dir, rules(database.port, max_lag="500ms", more='slot = "kept"'))
    until(server, "confirmed")
    losses, rows, took = log_of(server)["losses"], 1_000_000, 0.0
    # A stream may be silent for 5 s; how many rows the database reads within them depends on the machine.
    while took < 7:
        database.sql(f"INSERT INTO beside SELECT n, 'x' FROM generate_series(1, {rows}) n")
        began = time.monotonic()
        [(head,)] = database.sql("SELECT pg_current_wal_lsn()")
        waits = f"SELECT confirmed_flush_lsn >= '{head}' FROM pg_replication_slots"
        wait_until("it is past the transaction", lambda: database.sql(waits) == [(True,)], 120)
        took, rows = time.monotonic() - began, rows * 2
        assert log_of(server)["losses"] == losses, server.log()
        assert rows < 100_000_000, "no test: all was read in no time"
    until(server, "confirmed")


def test_a_log_of_another_database_begins_behind(start, open_dir, own_database):
    database = own_database()
    server = started(start, open_dir, rules(database.port))
    until(server, "confirmed")
    with open(f"{open_dir}/rules.toml", "w") as out:
        out.write(rules(database.port).replace("/postgres\"", "/nothing\""))
    server.signal(signal.SIGHUP)
    wait_until("the log is behind", lambda: log_of(server)["behind"] == "1", 60)
    said = server.log().split("/nothing has confirmed", 1)[1]
    wait_until("the reason is said", lambda: 'database "nothing" does not exist' in server.log())
    assert "log shop: is confirmed" not in said, said
    # The same database with other tables is the same log.
    with open(f"{open_dir}/rules.toml", "w") as out:
        out.write(rules(database.port))
    server.signal(signal.SIGHUP)
    until(server, "confirmed")


def test_a_standby_that_is_promoted(start, open_dir, own_database):
    """At the address of the primary that is gone, as behind a name or a proxy."""
    database = own_database()
    standby = database.standby()

    def change(server, c):
        fill(c, "page:1", "old")
        database.synchronous("walreceiver")
        database.kill()
        standby.stop()
        standby.configure(f"port = {database.port}\n")
        standby.start()
        standby.port = database.port
        time.sleep(0.5)
        assert log_of(server)["state"] != "confirmed"
        standby.promote()
        standby.sql("UPDATE rows SET version = version + 1 WHERE id = 1")

    try:
        server, c = changed_behind_its_back(start, open_dir, database, change)
        assert c.get_many(["page:1", "page:2"]) == {}
        assert "timeline 2" in server.log()
    finally:
        standby.clean()


def test_the_log_says_that_it_begins_behind_and_when_it_is_confirmed_first(start, open_dir, own_database):
    database = own_database()
    database.stop()
    server = started(start, open_dir, rules(database.port, max_lag="1s"))
    until(server, "lost")
    time.sleep(2)
    begins = "log shop: is behind until postgres://postgres@127.0.0.1"
    assert server.log().count(begins) == 1 and "items with tags that are older than 1s are computed again" in server.log()
    assert "for the first time, after" not in server.log()
    database.start()
    until(server, "confirmed")
    wait_until("it is said", lambda: "log shop: is confirmed for the first time, after" in server.log())
    with contextlib.suppress(psycopg.Error):
        database.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'cattlegrid'")
    wait_until("it is connected again", lambda: log_of(server)["connects"] == "2")
    confirmed(server)
    assert server.log().count("for the first time, after") == 1 and server.log().count(begins) == 1


def test_what_a_slot_waits_for_is_said(start, open_dir, own_database, binary):
    database = own_database("max_prepared_transactions=2")
    text = rules(database.port)
    with psycopg.connect(database.url) as session, psycopg.connect(database.url) as other:
        session.execute("INSERT INTO rows VALUES (900, 0)")
        session.execute("PREPARE TRANSACTION 'forgotten'")
        session.commit()
        other.execute("INSERT INTO rows VALUES (901, 0)")
        server = started(start, open_dir, text)
        wait_until("both are named", lambda: "terminate_backend" in server.log() and "forgotten" in server.log(), 30)
        assert "a slot cannot be made" in log_of(server)["missing"]
        said = server.log()
        assert "COMMIT PREPARED 'forgotten' or ROLLBACK PREPARED 'forgotten'" in said, said
        assert f"SELECT pg_terminate_backend({other.info.backend_pid})" in said, said
        other.commit()
    database.sql("ROLLBACK PREPARED 'forgotten'")
    until(server, "confirmed")
    assert "missing" not in log_of(server)
    # Young transactions are none of `check`'s business.
    assert checked(binary, f"{open_dir}/rules.toml")[0] == 0


def test_a_table_that_inherits_later_is_to_be_added(start, open_dir, own_database):
    database = own_database()
    database.sql("CREATE TABLE more (extra int, PRIMARY KEY (id)) INHERITS (rows)", "ALTER PUBLICATION cattlegrid ADD TABLE more")
    server = started(start, open_dir, rules(database.port))
    until(server, "confirmed")
    database.sql("CREATE TABLE most (extra int, PRIMARY KEY (id)) INHERITS (rows)")
    server.signal(signal.SIGHUP)
    mend = "ALTER PUBLICATION \"cattlegrid\" ADD TABLE public.most"
    wait_until("it is said", lambda: mend in log_of(server).get("missing", ""), 30)
    database.sql(mend)
    until(server, "confirmed")


def test_a_password_command_is_ended_with_what_it_has_started(start, open_dir, own_database):
    database = own_database()
    mark = pathlib.Path(open_dir) / "started"
    more = f"password_command = [\"sh\", \"-c\", \"sleep 7000 & echo $! > {mark}; wait\"]"
    server = started(start, open_dir, rules(database.port, more=more))
    wait_until("it is run", lambda: mark.exists() and mark.read_text().strip())
    pid = int(mark.read_text())
    assert running(pid)
    with open(f"{open_dir}/rules.toml", "w") as out:
        out.write(rules(database.port))
    server.signal(signal.SIGHUP)
    until(server, "confirmed")
    wait_until("it is gone", lambda: not running(pid))
    assert "within 10 s" not in server.log()


def running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_replica_identity_that_is_taken_away_is_noticed_by_its_first_change(start, open_dir, own_database):
    """A row that moves to another tag: the old one is not sent, and what it was is not known."""
    database = own_database()
    database.sql(
        "CREATE TABLE orders (id int PRIMARY KEY, owner int)", "ALTER TABLE orders REPLICA IDENTITY FULL",
        "INSERT INTO orders SELECT n, n FROM generate_series(1, 9) n", "ALTER PUBLICATION cattlegrid ADD TABLE orders",
    )
    more = "\n[[follow.shop.table]]\ntable = 'orders'\nbump = ['owner:{owner}']\n[[rule]]\nmatch = 'owner:{id}'\ntags = ['owner:{id}']\n"
    server = started(start, open_dir, rules(database.port) + more)
    until(server, "confirmed")
    c = client(server)
    for round_, statements in enumerate([[], ["ALTER TABLE orders REPLICA IDENTITY DEFAULT"]]):
        confirmed(server)
        if statements:
            database.sql(*statements)
        for change, key in (("UPDATE orders SET owner = owner + 100 WHERE id = %d", "owner:%d"), ("DELETE FROM orders WHERE id = %d", "owner:%d")):
            number = 2 * round_ + (1 if change.startswith("UPDATE") else 2)
            fill(c, key % number, b"old")
            database.sql(change % number)
            wait_until(f"{change % number}", lambda key=key % number: c.get(key) is None)
    wait_until("it is said", lambda: "ALTER TABLE public.orders REPLICA IDENTITY FULL" in log_of(server).get("missing", ""), 30)
    database.sql("ALTER TABLE orders REPLICA IDENTITY FULL")
    until(server, "confirmed")
    fill(c, "owner:5", b"old")
    fill(c, "owner:6", b"old")
    database.sql("UPDATE orders SET owner = 105 WHERE id = 5")
    wait_until("as before", lambda: c.get("owner:5") is None)
    assert c.get("owner:6") == b"old"


def test_a_check_says_what_would_keep_a_server_from_following(start, own_database, binary, open_dir):
    database = own_database("max_replication_slots = 1\nmax_wal_senders = 3\n")
    file = f"{open_dir}/one.toml"

    def said(more=""):
        with open(file, "w") as out:
            out.write(rules(database.port, more=more))
        return checked(binary, file)

    assert said()[0] == 0
    database.sql("SELECT pg_create_physical_replication_slot('own')")
    for words in ("all 1 replication slots are in use (max_replication_slots)", "ALTER SYSTEM SET max_replication_slots = 6"):
        status, text = said()
        assert status == 1 and words in text, text
    status, text = said("slot = 'own'")
    assert status == 1 and "slot `own` is of another plugin, kind or database" in text and "does not fit" not in text, text
    database.sql("SELECT pg_drop_replication_slot('own')")
    receivers = []
    try:
        for _ in range(2):
            receivers.append(subprocess.Popen(
                ["pg_receivewal", "-d", database.url, "-D", str(open_dir), "--no-loop"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            ))
            count = len(receivers)
            wait_until("it receives", lambda count=count: database.sql("SELECT count(*) FROM pg_stat_replication") == [(count,)], 20)
        status, text = said()
        assert status == 1 and "fewer than two of 3 connections for replication are free (max_wal_senders)" in text, text
    finally:
        for receiver in receivers:
            receiver.terminate()
            receiver.wait(20)
    wait_until("they are gone", lambda: database.sql("SELECT count(*) FROM pg_stat_replication") == [(0,)], 20)
    database.sql("CREATE ROLE guest LOGIN REPLICATION", "REVOKE CONNECT ON DATABASE postgres FROM PUBLIC")
    with open(file, "w") as out:
        out.write(rules(database.port).replace("postgres://postgres@", "postgres://guest@"))
    status, text = checked(binary, file)
    assert status == 1 and 'GRANT CONNECT ON DATABASE "postgres" TO "guest"' in text, text


def test_no_error_shows_a_password(start, own_database, binary, open_dir):
    file = f"{open_dir}/one.toml"
    for url in ("postgres://a@127.0.0.1:1/shop?password=SECRET", "postgres://a:SEC%zzSECRET@127.0.0.1:1/shop"):
        with open(file, "w") as out:
            out.write(rules(1).replace("postgres://postgres@127.0.0.1:1/postgres", url))
        done = subprocess.run([binary, "check", file], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and "url" in done.stderr + done.stdout and "SECRET" not in done.stderr + done.stdout, done
