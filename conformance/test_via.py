"""One node of a fleet follows a database, and all obey it by way of the log of etcd: real servers, real faults."""

import json
import os
import random
import shutil
import signal
import subprocess
import time

import pymemcache.client.base
import pytest

import test_statistics
from etcds import Etcd
from follow_faults import Relay
from harness import free_port, wait_until
from via_faults import PRODUCTS, Fleet

pytestmark = pytest.mark.only_cattlegrid

RULES = """
[server]
node = "{node}"
{server}

[[rule]]
match = "page:{{row}}"
hold = "400ms"
owner = "connection"
fill_window = "2s"
tags = ["row:{{row}}"]

[follow.bumps]
servers = [{servers}]
prefix = "/cattlegrid/shop"

[follow.shop]
{database}
via = "bumps"
{more}

[[follow.shop.table]]
table = "{rows}"
bump = ["row:{{id}}"]
{table}
"""


@pytest.fixture(scope="module")
def etcd():
    made = Etcd()
    yield made
    made.clean()


@pytest.fixture(scope="module", params=list(PRODUCTS))
def product(request):
    if request.param == "mariadb" and not shutil.which("mariadbd"):
        pytest.skip("no MariaDB is installed")
    return PRODUCTS[request.param]


only_postgres = pytest.mark.parametrize("product", ["postgres"], indirect=True)
only_mariadb = pytest.mark.parametrize("product", ["mariadb"], indirect=True)


@pytest.fixture(scope="module")
def module_database(product):
    made = product.make()
    made.product = product
    yield made
    made.clean()


@pytest.fixture
def database(module_database, etcd):
    """One for the tests of this file, without a slot; and nothing is in the etcd. A test names it before `start`: then its servers have
    ended before its slot is dropped, and none takes it again."""
    etcd.ctl("del", "--prefix", "/cattlegrid/shop/")
    yield module_database
    if module_database.product is not PRODUCTS["postgres"]:
        return
    ended = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active_pid IS NOT NULL"
    drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
    wait_until("no node follows", lambda: module_database.sql(ended) == [], 30)
    module_database.sql(drop)


@pytest.fixture
def node(start, open_dir, etcd, product):
    numbers = iter(range(100))

    def run(database, name=None, server="", more="", table="", wait=True):
        number = next(numbers)
        name = name or f"n{number}"
        servers = ", ".join(f'"{own}"' for own in etcd.endpoints)
        started_file = f"{open_dir}/rules{number}.toml"
        text = RULES.format(node=name, servers=servers, database=product.keys(database.port), rows=product.rows, server=server,
                            more=more, table=table)
        with open(started_file, "w") as out:
            out.write(text)
        server = start("--config", started_file)
        server.rules, server.name, server.text = started_file, name, text
        if wait:
            until(server, "confirmed")
        return server

    yield run


def client(server):
    return pymemcache.client.base.Client(("127.0.0.1", server.port), timeout=30, default_noreply=False)


def log_of(server, name="shop"):
    prefix = f"{name}:"
    return {key[len(prefix):]: value for key, value in server.stats("follow").items() if key.startswith(prefix)}


def until(server, state, name="shop"):
    wait_until(f"the log is {state}", lambda: log_of(server, name).get("state") == state, 60)


def together(servers):
    nodes = lambda own: json.loads(client(own).get("@nodes"))
    wait_until("all nodes are listed", lambda: all(len(nodes(own)) == len(servers) for own in servers), 30)
    for own in servers:
        until(own, "confirmed")


def fill(server, key, value):
    c = client(server)
    assert c.get(key) is None, key
    c.set(key, value)


def confirmed(servers):
    """Waits until all nodes have confirmed what was committed until now."""
    asked = time.monotonic()

    def is_later(server):
        passed = time.monotonic() - asked
        said = log_of(server)
        return said["state"] == "confirmed" and int(said["lag_ms"]) + 2 < passed * 1000

    for server in servers:
        wait_until("the log is confirmed", lambda: is_later(server), 60)


def change(database, row):
    database.sql(f"UPDATE {database.product.rows} SET version = version + 1 WHERE id = {row}")


def leader_of(servers):
    def find():
        leaders = {log_of(own)["leader"] for own in servers}
        return leaders.pop() if len(leaders) == 1 and "" not in leaders else None
    led = lambda: next((own for own in servers if own.name == find()), None)
    return wait_until("all agree on who of them leads", led, 60)


def test_one_node_follows_and_all_obey(database, node):
    servers = [node(database) for _ in range(3)]
    together(servers)
    leader = leader_of(servers)
    assert leader is servers[0]
    for server in servers:
        for row in (1, 2):
            fill(server, f"page:{row}", "old")
    change(database, 1)
    for server in servers:
        wait_until("the page is gone", lambda: client(server).get("page:1") is None)
    assert [client(server).get("page:2") for server in servers] == [b"old"] * 3
    # The stream and the second connection of one node.
    assert database.product.followers(database) == 2
    flushes = [int(log_of(server)["flushes"]) + int(log_of(server, "bumps")["flushes"]) for server in servers]
    confirmed(servers)
    for server in servers:
        assert int(log_of(server)["lag_ms"]) < 3000
    after = [int(log_of(server)["flushes"]) + int(log_of(server, "bumps")["flushes"]) for server in servers]
    assert after == flushes, "only the beginning flushes"


@only_postgres
def test_statistics_are_those_of_the_documents(database, node):
    server = node(database)
    until(server, "confirmed", "bumps")
    documented = {name.removeprefix("{log}:") for name, _ in test_statistics.documented()["follow"]}
    of_fleet = {"nodes", "backlog", "sent", "waited", "not_confirmed"}
    assert set(log_of(server)) == documented - {"lost", "missing"} - of_fleet
    assert set(log_of(server, "bumps")) == documented - {"lost", "missing", "leader"}


def test_a_value_that_was_read_before_the_change_is_not_kept(database, node):
    servers = [node(database) for _ in range(2)]
    together(servers)
    for server in servers:
        slow = client(server)
        assert slow.get("page:3") is None
        change(database, 3)
        confirmed(servers)
        slow.set("page:3", "from before")
        assert client(server).get("page:3") is None


@only_postgres
def test_tags_behind_prefixes(database, node):
    servers = [node(database, server='prefixes = ["a:", "b:"]') for _ in range(2)]
    together(servers)
    keys = ["page:4", "a:page:4", "b:page:4", "a:page:5"]
    for server in servers:
        for key in keys:
            fill(server, key, "old")
    change(database, 4)
    for server in servers:
        wait_until("all are gone", lambda: client(server).get_many(keys) == {"a:page:5": b"old"})


@only_postgres
def test_nodes_with_other_prefixes(database, node):
    servers = [node(database), node(database, server='prefixes = ["a:", "b:"]')]
    together(servers)
    assert leader_of(servers) is servers[0]
    for key in ("page:4", "a:page:4", "b:page:4"):
        fill(servers[1], key, "old")
    change(database, 4)
    wait_until("all are gone", lambda: client(servers[1]).get_many(["page:4", "a:page:4", "b:page:4"]) == {})


@only_postgres
def test_tags_behind_some_prefixes(database, node):
    servers = [node(database, server='prefixes = ["a:", "b:"]', table='prefixes = ["b:"]') for _ in range(2)]
    together(servers)
    keys = ["page:4", "a:page:4", "b:page:4"]
    for server in servers:
        for key in keys:
            fill(server, key, "old")
    change(database, 4)
    for server in servers:
        wait_until("one is gone", lambda: set(client(server).get_many(keys)) == {"page:4", "a:page:4"})


@pytest.mark.parametrize("how", ["TERM", "KILL", "STOP"])
def test_another_node_goes_on_from_the_place_of_the_last_one(database, node, how):
    # The lease of a node that was killed runs out after 5 s.
    servers = [node(database, more='max_lag = "15s"') for _ in range(3)]
    together(servers)
    leader = leader_of(servers)
    others = [own for own in servers if own is not leader]
    for server in others:
        for row in range(10, 30):
            fill(server, f"page:{row}", "old")
    confirmed(servers)
    flushes = [(int(log_of(own)["flushes"]), int(log_of(own, "bumps")["flushes"])) for own in others]
    leader.signal(getattr(signal, f"SIG{how}"))
    if how == "KILL":
        leader.process.wait()
    # While no node follows.
    for row in range(10, 20):
        change(database, row)
    new = leader_of(others)
    assert new in others
    confirmed(others)
    for server in others:
        c = client(server)
        assert [row for row in range(10, 30) if c.get(f"page:{row}") is None] == list(range(10, 20))
    assert [(int(log_of(own)["flushes"]), int(log_of(own, "bumps")["flushes"])) for own in others] == flushes
    if how == "STOP":
        fill_from = client(others[0])
        leader.signal(signal.SIGCONT)
        until(leader, "confirmed")
        assert leader_of(servers) is new, "it does not take the lead back"
        change(database, 20)
        confirmed(servers)
        assert fill_from.get("page:20") is None
        if database.product is not PRODUCTS["postgres"]:
            return
        # Its stream was ended, and no one fights for the slot.
        pid = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = 'fleet'"
        before = database.sql(pid)
        time.sleep(2)
        assert database.sql(pid) == before != [(None,)]


def test_a_node_that_does_not_reach_the_database_leaves_it_to_another_one(database, node):
    way = Relay(database.port)
    first = node(way, more='max_lag = "15s"')
    others = [node(database, more='max_lag = "15s"') for _ in range(2)]
    servers = [first, *others]
    together(servers)
    assert leader_of(servers) is first
    for server in servers:
        fill(server, "page:31", "old")
    confirmed(servers)
    flushes = [int(log_of(own, "bumps")["flushes"]) for own in servers]
    way.cut = {"up": True, "down": True}
    change(database, 31)
    wait_until("another one leads", lambda: log_of(first)["leader"] in {own.name for own in others}, 60)
    confirmed(servers)
    for server in servers:
        assert client(server).get("page:31") is None
    assert [int(log_of(own, "bumps")["flushes"]) for own in servers] == flushes
    way.close()


@only_postgres
@pytest.mark.parametrize("how", ["TERM", "KILL"])
def test_what_was_left_out_of_the_log_before_another_node_goes_on(database, node, how):
    """A table is not published for a moment, which the node that leads would have noticed within 30 s."""
    servers = [node(database, more='max_lag = "15s"') for _ in range(2)]
    together(servers)
    leader = leader_of(servers)
    other = next(own for own in servers if own is not leader)
    fill(other, "page:32", "old")
    confirmed(servers)
    database.sql("ALTER PUBLICATION cattlegrid DROP TABLE rows", "UPDATE rows SET version = version + 1 WHERE id = 32",
                 "ALTER PUBLICATION cattlegrid ADD TABLE rows")
    leader.signal(getattr(signal, f"SIG{how}"))
    wait_until("the page is gone", lambda: client(other).get("page:32") is None, 60)
    confirmed([other])


@only_mariadb
@pytest.mark.parametrize("what", ["definition", "purge"])
def test_what_happens_to_the_binary_log_before_another_node_goes_on(own_database, node, etcd, what):
    etcd.ctl("del", "--prefix", "/cattlegrid/shop/")
    database = own_database()
    servers = [node(database, more='max_lag = "15s"') for _ in range(2)]
    together(servers)
    leader = leader_of(servers)
    other = next(own for own in servers if own is not leader)
    for row in (32, 33):
        fill(other, f"page:{row}", "old")
    confirmed(servers)
    # Its own, when it leads, and those of the other.
    flushes = lambda: int(log_of(other)["flushes"]) + int(log_of(other, "bumps")["flushes"])
    before = flushes()
    leader.signal(signal.SIGKILL)
    leader.process.wait()
    if what == "definition":
        database.sql("ALTER TABLE items ADD COLUMN first int NOT NULL DEFAULT 33 FIRST")
        change(database, 32)
        wait_until("the page is gone", lambda: client(other).get("page:32") is None, 60)
        # And then its columns are known again.
        confirmed([other])
        assert client(other).get("page:33") in (None, b"old")
        client(other).set("page:33", "new")
        change(database, 34)
        confirmed([other])
        assert client(other).get("page:33") == b"new"
        return
    change(database, 32)
    database.sql("FLUSH BINARY LOGS", "FLUSH BINARY LOGS")

    def is_purged():
        # Not while the database has not noticed that the node is gone, which reads them.
        logs = database.sql("SHOW BINARY LOGS")
        database.sql(f"PURGE BINARY LOGS TO '{logs[-1][0]}'")
        return len(logs) == 1

    wait_until("the log is purged", is_purged, 4)
    confirmed([other])
    assert flushes() > before
    assert [client(other).get(f"page:{row}") for row in (32, 33)] == [None, None]


@only_postgres
def test_all_nodes_say_what_keeps_the_leader_from_following(database, node):
    servers = [node(database) for _ in range(2)]
    together(servers)
    leader = leader_of(servers)
    other = next(own for own in servers if own is not leader)
    database.sql("ALTER PUBLICATION cattlegrid DROP TABLE rows")
    try:
        leader.signal(signal.SIGHUP)
        says = f"{leader.name} says: "
        wait_until("the other one knows", lambda: log_of(other).get("missing", "").startswith(says), 60)
        assert "ALTER PUBLICATION" in log_of(other)["missing"] and "rows" in log_of(other)["missing"]
        wait_until("it is behind", lambda: log_of(other)["behind"] == "1", 30)
        assert f"log shop: is behind until this is mended: {says}" in other.log()
    finally:
        database.sql("ALTER PUBLICATION cattlegrid ADD TABLE rows")
    confirmed(servers)
    assert "missing" not in log_of(other)
    database.stop()
    try:
        wait_until("it says why", lambda: "says: " in log_of(other).get("missing", ""), 60)
    finally:
        database.start()
    confirmed(servers)
    assert all("missing" not in log_of(own) for own in servers)


@only_postgres
def test_another_slot_is_another_way(database, node):
    first = node(database)
    second = node(database, wait=False)
    together([first, second])
    with open(second.rules, "w") as out:
        out.write(second.text.replace('slot = "fleet"', 'slot = "other"'))
    second.signal(signal.SIGHUP)
    wait_until("it says so", lambda: "in another way" in log_of(second).get("missing", ""), 30)
    assert "pg_drop_replication_slot" not in second.log(), "it never had one"
    first.stop()
    active = "SELECT slot_name FROM pg_replication_slots WHERE active"
    wait_until("it follows by its own", lambda: database.sql(active) == [("other",)], 30)
    confirmed([second])
    assert "missing" not in log_of(second)


@only_postgres
def test_two_fleets_do_not_take_a_slot_from_each_other(database, node, open_dir, start):
    first = node(database)
    file = f"{open_dir}/elsewhere.toml"
    with open(file, "w") as out:
        out.write(first.text.replace("/cattlegrid/shop", "/cattlegrid/elsewhere"))
    second = start("--config", file)
    said = lambda: log_of(second).get("missing", "") + log_of(second).get("lost", "")
    wait_until("it says so", lambda: "slot `fleet` is in use by process" in said(), 30)
    pid = database.sql("SELECT active_pid FROM pg_replication_slots")
    time.sleep(3)
    assert database.sql("SELECT active_pid FROM pg_replication_slots") == pid
    assert log_of(first)["state"] == "confirmed"


@only_postgres
def test_a_node_that_is_started_again_leads_under_its_name(database, node, start):
    first, second = node(database, "first"), node(database, "second")
    together([first, second])
    first.signal(signal.SIGKILL)
    first.process.wait()
    again = start("--config", first.rules)
    again.name = "first"
    until(again, "confirmed")
    # It may lead before its own name is free.
    listed = lambda: {own["name"] for own in json.loads(client(second).get("@nodes"))}
    wait_until("both agree on who of them leads", lambda: log_of(again)["leader"] == log_of(second)["leader"] in ("first", "second"), 60)
    wait_until("who leads is listed", lambda: log_of(again)["leader"] in listed(), 60)


def test_the_database_restarts(database, node):
    servers = [node(database) for _ in range(2)]
    together(servers)
    for server in servers:
        for row in (40, 41):
            fill(server, f"page:{row}", "old")
    confirmed(servers)
    database.stop()
    database.start()
    change(database, 40)
    confirmed(servers)
    for server in servers:
        c = client(server)
        # What a crash of MariaDB takes back is in no log: everything is invalidated.
        other = b"old" if database.product is PRODUCTS["postgres"] else None
        assert (c.get("page:40"), c.get("page:41")) == (None, other)


@only_postgres
def test_a_slot_that_is_made_anew_invalidates_everything_everywhere(database, node):
    servers = [node(database) for _ in range(2)]
    together(servers)
    for server in servers:
        fill(server, "page:42", "old")
    confirmed(servers)
    database.sql("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active_pid IS NOT NULL",
                 "SELECT pg_sleep(0.1)", "SELECT pg_drop_replication_slot('fleet')")
    change(database, 42)
    for server in servers:
        wait_until("the page is gone", lambda: client(server).get("page:42") is None, 30)
    confirmed(servers)


def test_without_a_database_all_are_behind(database, node):
    servers = [node(database, more='when_behind = "miss"') for _ in range(2)]
    together(servers)
    for server in servers:
        fill(server, "page:43", "old")
    database.stop()
    try:
        for server in servers:
            wait_until("the log is behind", lambda: log_of(server)["behind"] == "1", 30)
            wait_until("it is a miss", lambda: client(server).get("page:43") is None)
            assert log_of(server, "bumps")["state"] == "confirmed"
        leader = leader_of(servers)
        assert log_of(leader)["state"] == "lost"
    finally:
        database.start()
    confirmed(servers)


@only_postgres
def test_without_etcd_all_are_behind_and_nothing_is_lost(start, open_dir, own_database, product):
    etcd = Etcd()
    try:
        database = own_database()
        places = ", ".join(f'"{own}"' for own in etcd.endpoints)
        servers = []
        for number in range(2):
            file = f"{open_dir}/own{number}.toml"
            text = RULES.format(node=f"n{number}", servers=places, database=product.keys(database.port), rows=product.rows, server="", more="",
                                table="")
            with open(file, "w") as out:
                out.write(text)
            servers.append(start("--config", file))
            servers[-1].name = f"n{number}"
            until(servers[-1], "confirmed")
        together(servers)
        for server in servers:
            for row in (44, 45):
                fill(server, f"page:{row}", "old")
        confirmed(servers)
        for name in etcd.names:
            etcd.freeze(name)
        change(database, 44)
        for server in servers:
            wait_until("the log is behind", lambda: log_of(server)["behind"] == "1", 30)
        for name in etcd.names:
            etcd.thaw(name)
        confirmed(servers)
        for server in servers:
            wait_until("the page is gone", lambda: client(server).get("page:44") is None)
        # The database's log was kept until its bumps were in the log of etcd.
        snapshot = etcd.directory / "snapshot"
        etcd.ctl("snapshot", "save", str(snapshot), endpoints=etcd.endpoints[:1])
        for server in servers:
            assert client(server).get("page:46") is None
            client(server).set("page:46", "old")
        change(database, 46)
        etcd.restore(snapshot)
        confirmed(servers)
        for server in servers:
            assert client(server).get("page:46") is None
    finally:
        etcd.clean()


@pytest.fixture
def own_database(product):
    made = []

    def make():
        made.append(product.make())
        made[-1].product = product
        return made[-1]

    yield make
    for database in made:
        database.clean()


def processor(server):
    with open(f"/proc/{server.process.pid}/stat") as file:
        words = file.read().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@only_postgres
def test_a_node_that_waits_takes_no_processor(database, node, start, open_dir):
    """Without an etcd, without a database, and while another node leads."""
    servers = [node(database) for _ in range(2)]
    file = f"{open_dir}/nowhere.toml"
    places = servers[0].text.split("servers = [")[1].split("]")[0]
    with open(file, "w") as out:
        out.write(servers[0].text.replace(places, f'"http://127.0.0.1:{free_port()}"'))
    servers.append(start("--config", file))
    together(servers[:2])

    def rests():
        before = [processor(own) for own in servers]
        time.sleep(3)
        # All of it would be 3 s.
        assert max(processor(own) - was for own, was in zip(servers, before)) < 1
    rests()
    database.stop()
    try:
        rests()
        rests()
    finally:
        database.start()
    confirmed(servers[:2])


@only_postgres
def test_nodes_that_follow_other_tables_say_so(database, node):
    first = node(database)
    second = node(database, table='truncate = ["all"]', wait=False)
    wait_until("it says so", lambda: "follows other tables" in log_of(second).get("missing", ""), 30)
    assert log_of(second)["behind"] == "1" and log_of(second)["leader"] == first.name
    assert f"log shop: is behind until this is mended: {first.name}, which follows it for all, follows other tables" in second.log()
    with open(second.rules, "w") as out:
        out.write(first.text.replace('node = "n0"', 'node = "n1"'))
    second.signal(signal.SIGHUP)
    confirmed([first, second])
    assert "missing" not in log_of(second)
    # And when the one that leads reads its file again, it follows the other tables for both.
    for server in (first, second):
        with open(server.rules) as file:
            text = file.read()
        with open(server.rules, "w") as out:
            out.write(text + 'truncate = ["all"]\n')
        server.reload()
    confirmed([first, second])
    fill(second, "page:47", "old")
    change(database, 47)
    wait_until("the page is gone", lambda: client(second).get("page:47") is None)


@only_postgres
def test_a_transaction_that_runs_at_the_beginning(database, node):
    """It is in no entry of the log: a node that takes over knows of it, too."""
    with database.connect(autocommit=False) as open_one:
        open_one.execute("UPDATE rows SET version = version + 1 WHERE id = 48")
        first = node(database, wait=False)
        time.sleep(1)
        open_one.commit()
        until(first, "confirmed")
        second = node(database)
        together([first, second])
    fill(second, "page:48", "old")
    change(database, 48)
    wait_until("the page is gone", lambda: client(second).get("page:48") is None)


def test_many_rows(database, node):
    servers = [node(database) for _ in range(2)]
    together(servers)
    for server in servers:
        for row in range(50, 90):
            fill(server, f"page:{row}", "old")
    database.sql(f"UPDATE {database.product.rows} SET version = version + 1 WHERE id BETWEEN 50 AND 69")
    confirmed(servers)
    for server in servers:
        c = client(server)
        assert [row for row in range(50, 90) if c.get(f"page:{row}") is not None] == list(range(70, 90)), server.log()


@pytest.mark.parametrize("change, says", [
    ('via = "bumps"|via = "other"', 'follow shop: via "other": is no log of etcd of this file; name one'),
    ('via = "bumps"|via = "shop"', 'follow shop: via "shop": is no log of etcd of this file; name one'),
    ('slot = "fleet"|', "follow shop: via: needs a slot"),
    ('slot = "fleet"|slot = "fleet"\nagain = "5s"', "follow shop: again: with via it is that of the log of etcd; write it in [follow.bumps]"),
    ('slot = "fleet"|slot = "fleet"\nmax_lag = "1s"', "follow shop: max_lag is below that of follow bumps, by way of which it comes; raise it"),
    ('prefix = "/cattlegrid/shop"|via = "shop"', "follow bumps: via: the log is that of etcd, which has none; leave it out"),
])
def test_what_does_not_fit_is_refused(binary, open_dir, change, says):
    text = RULES.format(node="n", servers='"http://127.0.0.1:1"', database=PRODUCTS["postgres"].keys(1), rows="rows", server="", more="", table="")
    before, after = change.split("|")
    assert before in text
    file = f"{open_dir}/wrong.toml"
    with open(file, "w") as out:
        out.write(text.replace(before, after))
    checked = subprocess.run([binary, "check", file], capture_output=True, text=True)
    assert checked.returncode == 2 and says in checked.stdout + checked.stderr, checked.stdout + checked.stderr


@pytest.mark.parametrize("name", ["postgres", "postgres", "mariadb"])
def test_faults_one_after_the_other(kind, binary, name):
    """A schedule of its own each time; `VIA_SEED` repeats one. `via_faults.py` runs as many as asked for."""
    seed = int(os.environ.get("VIA_SEED", 0)) or random.SystemRandom().randrange(1 << 30)

    class Own(Fleet):
        product = PRODUCTS[name]

    fleet = Own(binary, kind, seed)
    try:
        fleet.run(20)
        print(f"seed {seed}: {fleet.report()}")
        assert not fleet.old, (seed, fleet.old[:5], fleet.report())
    finally:
        fleet.clean()
