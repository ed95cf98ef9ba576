"""Nodes of a fleet obey each other's bumps, by way of a real etcd: unmodified clients, and faults."""

import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

import pylibmc
import pymemcache.client.base
import pymemcache.client.hash
import pytest

from etcds import Etcd
from follow_faults import Relay
from harness import PROMPT, free_port, wait_until
from nodes_faults import Fleet

pytestmark = pytest.mark.only_cattlegrid

RULES = """
[server]
node = "{node}"
{server}

[[rule]]
match = "page:{{user}}:{{n}}"
hold = "{hold}"
{rule}
tags = ["user:{{user}}"]

[[cascade]]
on = ["set", "delete"]
match = "user:{{user}}"
bump = ["user:{{user}}"]

[follow.bumps]
servers = [{servers}]
prefix = "/cattlegrid/shop"
{more}
"""

NOT_CONFIRMED = b"CLIENT_ERROR bump not confirmed"


@pytest.fixture(scope="module")
def module_etcd():
    etcd = Etcd()
    yield etcd
    etcd.clean()


@pytest.fixture
def etcd(module_etcd):
    """One for the tests of this file that leave it as it was; what is under its prefix is removed."""
    module_etcd.ctl("del", "--prefix", "/cattlegrid/shop/")
    yield module_etcd


@pytest.fixture
def own_etcd():
    made = []

    def make(*arguments, **more):
        made.append(Etcd(*arguments, **more))
        return made[-1]

    yield make
    for etcd in made:
        etcd.clean()


@pytest.fixture
def node(start, open_dir):
    """Starts a node, and waits until it is confirmed."""
    numbers = iter(range(100))

    def run(etcd, name=None, more="", rule="", server="", options=(), endpoints=None, wait=True, hold="400ms"):
        number = next(numbers)
        name = name or f"n{number}"
        servers = ", ".join(f'"{own}"' for own in endpoints or etcd.endpoints)
        file = f"{open_dir}/rules{number}.toml"
        with open(file, "w") as out:
            out.write(RULES.format(node=name, servers=servers, more=more, rule=rule, server=server, hold=hold))
        started = start("--config", file, *options)
        started.rules = file
        started.name = name
        if wait:
            until(started, "confirmed")
        return started

    return run


def client(server, **more):
    return pymemcache.client.base.Client(("127.0.0.1", server.port), timeout=30, default_noreply=False, **more)


def hashing(servers):
    return pymemcache.client.hash.HashClient([("127.0.0.1", s.port) for s in servers], timeout=30, default_noreply=False)


def log_of(server, name="bumps"):
    prefix = f"{name}:"
    return {key[len(prefix):]: value for key, value in server.stats("follow").items() if key.startswith(prefix)}


def until(server, state):
    wait_until(f"the log is {state}", lambda: log_of(server).get("state") == state, 60)


def nodes_of(server):
    return {own["name"]: own for own in json.loads(client(server).get("@nodes"))}


def ask(server, line, timeout=30):
    with server.connect(timeout) as connection:
        connection.sendall(line + b"\r\n")
        return connection.makefile("rb").readline().rstrip(b"\r\n")


def together(nodes):
    wait_until("all nodes are listed", lambda: all(len(nodes_of(own)) == len(nodes) for own in nodes), 30)


def fill(c, key, value):
    assert c.get(key) is None, key
    c.set(key, value)


def filled_for_good(server, user):
    """The name of a page that is filled so late after the events of the start that its value has no limited life."""
    numbers = iter(range(10_000))

    def fill_one():
        key = f"page:{user}:{next(numbers)}"
        fill(client(server), key, "old")
        with server.connect() as connection:
            file = connection.makefile("rb")
            connection.sendall(b"get @why:" + key.encode() + b"\r\n")
            assert file.readline().startswith(b"VALUE ")
            return key if json.loads(file.readline())["item"]["life"] is None else None

    return wait_until("a value is stored for good", fill_one, 60)


def test_a_bump_that_any_node_gets_is_obeyed_by_all(etcd, node):
    servers = [node(etcd) for _ in range(3)]
    together(servers)
    shop = hashing(servers)
    for n in range(30):
        fill(shop, f"page:1:{n}", f"old {n}")
        fill(shop, f"page:2:{n}", f"other {n}")
    assert sum(shop.get(f"page:1:{n}") is not None for n in range(30)) == 30
    # The client sends it to the one node that has the key `@tag:user:1`.
    assert shop.delete("@tag:user:1")
    def stay():
        return sum(client(own).get(f"page:1:{n}") is not None for own in servers for n in range(30))
    wait_until("no page stays", lambda: stay() == 0)
    assert sum(shop.get(f"page:2:{n}") is not None for n in range(30)) == 30
    bumps = [int(log_of(own)["sent"]) for own in servers]
    assert sorted(bumps) == [0, 0, 1]


def test_libmemcached_and_three_nodes(etcd, node):
    servers = [node(etcd) for _ in range(3)]
    together(servers)
    shop = pylibmc.Client([f"127.0.0.1:{own.port}" for own in servers], behaviors={"ketama": True})
    for n in range(30):
        assert shop.get(f"page:1:{n}") is None
        shop.set(f"page:1:{n}", "old")
    assert len(shop.get_multi([f"page:1:{n}" for n in range(30)])) == 30
    assert shop.delete("@tag:user:1")
    wait_until("no page stays", lambda: not shop.get_multi([f"page:1:{n}" for n in range(30)]))


def test_one_cold_key_and_200_clients(etcd, node):
    servers = [node(etcd, hold="10s") for _ in range(3)]
    together(servers)
    computed, values = [], []

    def run():
        shop = hashing(servers)
        value = shop.get("page:1:cold")
        if value is None:
            computed.append(1)
            time.sleep(0.2)
            shop.set("page:1:cold", "value")
            value = b"value"
        values.append(value)

    threads = [threading.Thread(target=run) for _ in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(computed) == 1 and values == [b"value"] * 200


def test_after_the_answer_to_a_barrier_no_page_stays(etcd, node):
    servers = [node(etcd) for _ in range(3)]
    together(servers)
    clients = [client(own) for own in servers]
    took = []
    for turn in range(20):
        for c in clients:
            c.set(f"page:1:{turn}", "old")
            fill(c, f"page:1:x{turn}", "old")
        begun = time.monotonic()
        assert ask(servers[turn % 3], b"md user:1 G B") == b"HD"
        took.append(time.monotonic() - begun)
        assert [c.get(f"page:1:x{turn}") for c in clients] == [None] * 3
    # It may be late each time for another reason, and is not in all of them.
    assert min(took) < 0.2
    assert all(own["applied"] > 0 for own in nodes_of(servers[0]).values())


@pytest.mark.parametrize("command, reply", [
    (b"delete @tag:user:1", b"DELETED"),
    (b"incr @tag:user:1 1", None),
    (b"md user:1 G", b"HD"),
    (b"md user:1 G I", b"HD"),
    (b"md user:1 G I T1", b"HD"),
    (b"ma user:1 G v", None),
    (b"get @bump:user:1", None),
    (b"gets other @bump:user:1 @bump:user:9", None),
    (b"get @flush:1", None),
    (b"set user:1 0 0 1\r\nx", b"STORED"),
    (b"ms user:1 1\r\nx", b"HD"),
    (b"delete user:1", b"NOT_FOUND"),
    (b"md user:1", b"NF"),
    (b"delete @tag:user:1 noreply\r\nmn", b"MN"),
    (b"md user:1 G q\r\nmn", b"MN"),
    (b"set user:1 0 0 1 noreply\r\nx\r\nmn", b"MN"),
])
def test_each_form_of_a_bump_travels(etcd, node, command, reply):
    one, other = node(etcd), node(etcd)
    together([one, other])
    c = client(other)
    fill(c, "page:1:1", "old")
    said = ask(one, command)
    assert said == reply if reply else not said.startswith((b"SERVER_ERROR", b"CLIENT_ERROR", b"ERROR")), said
    wait_until("it is obeyed", lambda: c.get("page:1:1") is None)


def test_binary_clients_and_prefixes(etcd, node):
    more = 'prefixes = [":1:"]'
    one, other = node(etcd, server=more), node(etcd, server=more)
    without = node(etcd)
    together([one, other, without])
    c = client(other)
    for key in ("page:1:1", ":1:page:1:1"):
        fill(c, key, "old")
    assert client(one).delete(":1:@tag:user:1")
    wait_until("it is obeyed", lambda: c.get(":1:page:1:1") is None)
    assert c.get("page:1:1") == b"old"
    import bmemcached
    binary = bmemcached.Client([f"127.0.0.1:{one.port}"])
    assert binary.delete("@tag:user:1")
    wait_until("it is obeyed", lambda: c.get("page:1:1") is None)
    assert log_of(without)["state"] == "confirmed"


def test_a_value_from_before_a_bump_of_another_node_is_not_kept(etcd, node):
    one, other = node(etcd), node(etcd)
    together([one, other])
    c = client(other)
    assert c.get("page:1:1") is None
    assert ask(one, b"md user:1 G B") == b"HD"
    c.set("page:1:1", "computed before")
    assert c.get("page:1:1") is None
    # And what a node computes after its own bump is not taken away by that bump.
    mine = client(one)
    for turn in range(50):
        assert mine.delete("@tag:user:1")
        fill(mine, f"page:1:m{turn}", "new")
        assert mine.get(f"page:1:m{turn}") == b"new"


def test_replies_wait_for_the_log_in_order_and_others_do_not(etcd, node):
    one = node(etcd)
    with one.connect() as connection:
        connection.sendall(b"set a 0 0 1\r\nx\r\ndelete @tag:user:1\r\nget a\r\ndelete @tag:user:2\r\nmn\r\n")
        read = connection.makefile("rb")
        lines = [read.readline() for _ in range(7)]
    assert lines == [b"STORED\r\n", b"DELETED\r\n", b"VALUE a 0 1\r\n", b"x\r\n", b"END\r\n", b"DELETED\r\n", b"MN\r\n"]
    # The second one may be in the log before it is asked about.
    assert int(log_of(one)["waited"]) >= 1
    # A client that sends no more is answered all the same.
    with one.connect() as connection:
        connection.sendall(b"delete @tag:user:1\r\n")
        connection.shutdown(1)
        assert connection.makefile("rb").read() == b"DELETED\r\n"


def test_barriers_and_nodes_need_a_fleet(start, open_dir):
    file = f"{open_dir}/rules.toml"
    with open(file, "w") as out:
        out.write('[[rule]]\nmatch = "page:{n}"\ngrace = "1s"\ntags = ["page:{n}"]\n')
    alone = start("--config", file)
    assert ask(alone, b"md page:1 G B") == b"CLIENT_ERROR no log of etcd is followed"
    assert ask(alone, b"get @nodes") == b"CLIENT_ERROR no log of etcd is followed"
    assert ask(alone, b"md page:1 B").startswith(b"CLIENT_ERROR")
    assert ask(alone, b"md page:1 G") == b"HD"


def test_the_list_of_nodes(etcd, node, binary):
    one, other = node(etcd, "shop-1"), node(etcd, "shop-2")
    together([one, other])
    listed = nodes_of(one)
    assert {own["state"] for own in listed.values()} == {"up"}
    assert listed["shop-2"]["address"] == f"127.0.0.1:{other.port}"
    assert listed["shop-1"]["self"] and not listed["shop-2"]["self"]
    table = subprocess.run([binary, "nodes", f"127.0.0.1:{other.port}"], capture_output=True, text=True, timeout=30)
    assert table.returncode == 0, table.stderr
    lines = table.stdout.splitlines()
    assert lines[0].split()[:3] == ["NAME", "ADDRESS", "STATE"]
    assert [line.split()[:3] for line in lines[1:]] == [
        ["shop-1", f"127.0.0.1:{one.port}", "up"], ["shop-2", f"127.0.0.1:{other.port}", "up"]]
    none = subprocess.run([binary, "nodes", f"127.0.0.1:{free_port()}"], capture_output=True, text=True, timeout=30)
    assert none.returncode == 1 and none.stderr


def test_a_node_that_leaves_is_draining_and_then_gone(etcd, node):
    # Their leases are those of the lag and 2 s more.
    one, other = node(etcd), node(etcd, options=("--drain", "5s"), hold="3s", more='max_lag = "60s"')
    together([one, other])
    watcher = client(one)
    states = []
    # A get that is held keeps it from leaving at once.
    fill_it = client(other)
    assert fill_it.get("page:1:1") is None
    with other.connect() as held:
        held.sendall(b"get page:1:1\r\n")
        wait_until("it is held", lambda: other.stats("cattlegrid")["held"] == "1")
        other.signal(signal.SIGTERM)
        end = time.monotonic() + 20
        while time.monotonic() < end:
            listed = {own["name"]: own["state"] for own in json.loads(watcher.get("@nodes"))}
            state = listed.get(other.name, "gone")
            if states[-1:] != [state]:
                states.append(state)
            if state == "gone":
                break
    assert states[0] in ("up", "draining") and states[-2:] == ["draining", "gone"], states
    # At once, not when its lease has run out; and no barrier waits for it.
    begun = time.monotonic()
    assert ask(one, b"md user:1 G B") == b"HD"
    assert time.monotonic() - begun < PROMPT
    # Nor for a node that has nothing to wait for, and leaves in a moment.
    third = node(etcd, more='max_lag = "60s"')
    wait_until("it is listed", lambda: third.name in nodes_of(one))
    third.stop()
    begun = time.monotonic()
    assert ask(one, b"md user:1 G B") == b"HD"
    assert time.monotonic() - begun < PROMPT


def test_two_nodes_of_one_name(etcd, node):
    one = node(etcd, "same")
    other = node(etcd, "same")
    wait_until("both are listed", lambda: len(nodes_of(one)) == 2)
    names = sorted(nodes_of(one))
    assert names[0] == "same" and names[1].startswith("same~"), names
    assert "give each server a name of its own" in other.log()
    c = client(other)
    fill(c, "page:1:1", "old")
    assert ask(one, b"md user:1 G B") == b"HD"
    assert c.get("page:1:1") is None
    fill(client(one), "page:1:1", "old")
    assert ask(other, b"md user:1 G B") == b"HD"
    assert client(one).get("page:1:1") is None
    one.stop()
    wait_until("it takes the name", lambda: list(nodes_of(other)) == ["same"], 20)


def test_a_node_that_was_killed_comes_back(etcd, node):
    one, other = node(etcd), node(etcd, "victim")
    together([one, other])
    other.kill()
    again = node(etcd, "victim")
    c = client(again)
    fill(c, "page:1:1", "old")
    assert ask(one, b"md user:1 G B") == b"HD"
    assert c.get("page:1:1") is None
    wait_until("it has its name again", lambda: sorted(nodes_of(one)) == sorted([one.name, "victim"]), 20)


def test_while_the_log_is_lost_bumps_are_obeyed_here_and_said_not_to_be_confirmed(own_etcd, node):
    etcd = own_etcd(1)
    one, other = node(etcd, more='max_lag = "1s"'), node(etcd, more='max_lag = "1s"')
    together([one, other])
    etcd.kill("e0")
    until(one, "lost")
    c, took = client(one), []
    for key, command in (("page:1:1", b"delete @tag:user:1"), ("page:1:2", b"md user:1 G"), ("page:1:3", b"set user:1 0 0 1\r\nx"),
                         ("page:1:4", b"get @bump:user:1"), ("page:1:5", b"md user:1 G B")):
        fill(c, key, "old")
        begun = time.monotonic()
        assert ask(one, command) == NOT_CONFIRMED
        took.append(time.monotonic() - begun)
        assert c.get(key) is None
        time.sleep(1.2)
    assert min(took) < 0.3, "at once"
    fill(client(other), "page:7:1", "old")
    assert ask(one, b"delete @tag:user:7") == NOT_CONFIRMED
    etcd.start("e0")
    until(one, "confirmed")
    # What was not confirmed is obeyed by the others when the log is back.
    wait_until("it is obeyed", lambda: client(other).get("page:7:1") is None)
    assert ask(one, b"delete @tag:user:1") == b"DELETED"
    assert int(log_of(one)["not_confirmed"]) >= 6


@pytest.mark.parametrize("is_binary", [False, True])
def test_libmemcached_goes_on_with_a_server_that_does_not_confirm(own_etcd, node, is_binary):
    """After a SERVER_ERROR it would ask the server nothing for two seconds."""
    etcd = own_etcd(1)
    one = node(etcd)
    etcd.kill("e0")
    until(one, "lost")
    shop = pylibmc.Client([f"127.0.0.1:{one.port}"], binary=is_binary, behaviors={"ketama": True, "remove_failed": 1})
    shop.set("plain", "value")
    for _ in range(20):
        # Over the binary protocol it is an answer like any other.
        with contextlib.suppress(pylibmc.Error):
            shop.delete("@tag:user:1")
        assert shop.get("plain") == "value"
    assert int(log_of(one)["not_confirmed"]) == 20
    # One tag, which waits for the log.
    assert log_of(one)["backlog"] == "1"


def test_barriers_one_after_the_other(etcd, node):
    """Each waits for a word of the other nodes, which have something to say every few milliseconds."""
    servers = [node(etcd) for _ in range(3)]
    together(servers)
    took = []
    with servers[0].connect(30) as connection:
        file = connection.makefile("rb")
        for _ in range(40):
            begun = time.monotonic()
            connection.sendall(b"md user:1 G B\r\n")
            assert file.readline() == b"HD\r\n"
            took.append(time.monotonic() - begun)
    # Without a word of the other nodes it is 100 ms, each time.
    assert min(took) < 0.05


def test_a_log_in_which_nothing_is_bumped_for_long_goes_on_after_a_compaction(own_etcd, node):
    etcd = own_etcd(1)
    one = node(etcd, rule='fill_window = "1s"')
    c = client(one)
    assert c.delete("@tag:user:1")
    stays = filled_for_good(one, 2)
    for number in range(30):
        etcd.ctl("put", "/elsewhere", str(number))
    written, flushes = etcd.revision(), log_of(one)["flushes"]
    begun = time.monotonic()
    wait_until("it is confirmed later than that", lambda: int(log_of(one)["lag_ms"]) / 1000 < time.monotonic() - begun - 1, 30)
    etcd.ctl("compact", str(written))
    etcd.kill("e0")
    until(one, "lost")
    etcd.start("e0")
    until(one, "confirmed")
    assert log_of(one)["flushes"] == flushes and c.get(stays) is not None


def test_something_else_writes_a_node_s_key(own_etcd, node):
    etcd = own_etcd(1)
    one = node(etcd)
    etcd.ctl("put", f"/cattlegrid/shop/node/{one.name}", "garbage")
    wait_until("it has another name", lambda: any(name.startswith(f"{one.name}~") for name in nodes_of(one)), 30)
    until(one, "confirmed")
    wait_until("it says so", lambda: "was not written by a node" in one.log())
    etcd.ctl("del", f"/cattlegrid/shop/node/{one.name}")
    wait_until("it has its own name again", lambda: list(nodes_of(one)) == [one.name], 30)


def test_a_name_that_a_lost_request_left_behind(own_etcd, node):
    """A request that was not answered in time was executed: the node is listed twice, under one lease, which it renews."""
    etcd = own_etcd(1)
    one = node(etcd)
    key = f"/cattlegrid/shop/node/{one.name}"
    [kv] = json.loads(etcd.ctl("get", key, "-w", "json"))["kvs"]
    value = etcd.ctl("get", key, "--print-value-only").rstrip("\n")
    etcd.ctl("put", f"{key}~dead", value, f"--lease={kv['lease']:x}")
    wait_until("it is listed twice", lambda: len(nodes_of(one)) == 2)
    wait_until("it is listed once", lambda: list(nodes_of(one)) == [one.name], 60)
    until(one, "confirmed")


def test_a_reply_waits_400_ms_at_most(own_etcd, node):
    etcd = own_etcd(1)
    one = node(etcd)
    etcd.freeze("e0")
    begun = time.monotonic()
    assert ask(one, b"delete @tag:user:1") == NOT_CONFIRMED
    took = time.monotonic() - begun
    assert 0.3 < took < PROMPT, took
    again = []
    for _ in range(10):
        begun = time.monotonic()
        assert ask(one, b"delete @tag:user:1") == NOT_CONFIRMED
        again.append(time.monotonic() - begun)
    assert min(again) < 0.3, "the log is known to be lost"
    etcd.thaw("e0")
    until(one, "confirmed")
    wait_until("it takes bumps", lambda: ask(one, b"delete @tag:user:1") == b"DELETED")


@pytest.mark.parametrize("reply", ["local", "barrier"])
def test_when_a_bump_is_answered_can_be_chosen(etcd, node, reply):
    more = f'bump_reply = "{reply}"'
    servers = [node(etcd, more=more) for _ in range(2)]
    together(servers)
    c = client(servers[1])
    for turn in range(10):
        fill(c, f"page:1:{turn}", "old")
        assert client(servers[0]).delete("@tag:user:1")
        if reply == "barrier":
            assert c.get(f"page:1:{turn}") is None
        else:
            wait_until("it is obeyed", lambda: c.get(f"page:1:{turn}") is None)
    assert (int(log_of(servers[0])["waited"]) > 0) == (reply == "barrier")


def test_a_leader_that_is_killed_or_frozen(own_etcd, node):
    etcd = own_etcd()
    servers = [node(etcd) for _ in range(3)]
    together(servers)
    for fault, mend in ((etcd.kill, lambda name: etcd.start(name, wait=False)), (etcd.freeze, etcd.thaw)):
        leader = etcd.leader()
        for c in map(client, servers):
            c.set("page:1:1", "old")
        fault(leader)
        wait_until("bumps are taken again", lambda: ask(servers[0], b"md user:1 G B") == b"HD", 30)
        assert all(client(own).get("page:1:1") is None for own in servers)
        mend(leader)
        etcd.wait()
        for own in servers:
            until(own, "confirmed")


def test_compacted_past_a_node(own_etcd, node):
    etcd = own_etcd()
    relays = [Relay(port) for port in etcd.ports.values()]
    one = node(etcd)
    other = node(etcd, more='max_lag = "1s"', endpoints=[f"http://127.0.0.1:{relay.port}" for relay in relays])
    together([one, other])
    c = client(other)
    fill(c, "page:1:1", "old")
    flushes = int(log_of(other)["flushes"])
    for relay in relays:
        relay.cut = {"up": True, "down": True}
    assert ask(one, b"delete @tag:user:1") == b"DELETED"
    for _ in range(3):
        ask(one, b"delete @tag:user:2")
    etcd.compact()
    until(other, "lost")
    for relay in relays:
        relay.cut = {"up": False, "down": False}
    until(other, "confirmed")
    assert c.get("page:1:1") is None
    assert int(log_of(other)["flushes"]) > flushes
    for relay in relays:
        relay.close()


@pytest.mark.parametrize("is_same_cluster", [False, True])
def test_restored_from_a_backup(own_etcd, node, is_same_cluster):
    etcd = own_etcd(1)
    one = node(etcd)
    c = client(one)
    fill(c, "page:9:1", "old")
    assert ask(one, b"delete @tag:user:1") == b"DELETED"
    snapshot = etcd.directory / "snapshot"
    etcd.ctl("snapshot", "save", str(snapshot))
    for _ in range(5):
        assert ask(one, b"delete @tag:user:1") == b"DELETED"
    flushes = int(log_of(one)["flushes"])
    etcd.restore(snapshot, token="same" if is_same_cluster else None)
    wait_until("all items with tags are computed again", lambda: int(log_of(one)["flushes"]) > flushes, 30)
    until(one, "confirmed")
    wait_until("it takes bumps", lambda: ask(one, b"delete @tag:user:1") == b"DELETED")
    assert c.get("page:9:1") is None


def test_a_frozen_node(etcd, node):
    """Its first answer knows; and a barrier waits until it can serve nothing older."""
    one, other = node(etcd, more='max_lag = "1s"'), node(etcd, more='max_lag = "1s"\nwhen_behind = "miss"')
    together([one, other])
    c = client(other)
    fill(c, "page:1:1", "old")
    time.sleep(0.5)
    other.signal(signal.SIGSTOP)
    begun = time.monotonic()
    assert ask(one, b"md user:1 G B") == b"HD"
    took = time.monotonic() - begun
    other.signal(signal.SIGCONT)
    assert c.get("page:1:1") is None
    assert took > 1, took
    until(other, "confirmed")


def test_a_minority(own_etcd, node):
    etcd = own_etcd()
    one = node(etcd, more='max_lag = "1s"')
    followers = [name for name in etcd.names if name != etcd.leader()]
    for name in followers:
        etcd.kill(name)
    wait_until("it is behind", lambda: log_of(one)["behind"] == "1", 20)
    assert ask(one, b"delete @tag:user:1") == NOT_CONFIRMED
    c = client(one)
    c.set("plain", "value")
    assert c.get("plain") == b"value"
    for name in followers:
        etcd.start(name, wait=False)
    until(one, "confirmed")


def test_out_of_quota(own_etcd, node):
    etcd = own_etcd(1, options=("--quota-backend-bytes", str(4 << 20)))
    one = node(etcd)
    with pytest.raises(subprocess.CalledProcessError):
        for n in range(200):
            etcd.ctl("put", f"/filler/{n}", "x" * 100_000)
    assert ask(one, b"delete @tag:user:1") == NOT_CONFIRMED
    wait_until("it is said", lambda: "etcdctl alarm disarm" in one.log())
    assert "etcdctl alarm disarm" in log_of(one)["missing"]
    assert log_of(one)["state"] == "confirmed", "what is written by others is still read"
    etcd.ctl("del", "--prefix", "/filler/")
    etcd.compact()
    etcd.ctl("defrag")
    etcd.ctl("alarm", "disarm")
    wait_until("it takes bumps", lambda: ask(one, b"delete @tag:user:1") == b"DELETED", 20)


def test_a_prefix_that_something_else_uses_and_other_releases(etcd, node):
    one = node(etcd)
    c = client(one)
    fill(c, "page:1:1", "old")
    etcd.ctl("put", "/cattlegrid/shop/bump/else", '{"not": "ours"}')
    etcd.ctl("put", "/cattlegrid/shop/node/else", "hello")
    etcd.ctl("put", "/cattlegrid/shop/other", "hello")
    wait_until("it is said", lambda: "/cattlegrid/shop/bump/else was not written by a node" in one.log())
    assert c.get("page:1:1") == b"old"
    assert list(nodes_of(one)) == [one.name]
    # An entry of a later format may bump anything.
    for value in ("cattlegrid 2 anything", "cattlegrid 1 00000000000000ff 1\nlater user:1"):
        etcd.ctl("put", "/cattlegrid/shop/bump/later", value)
        wait_until("everything is computed again", lambda: c.get("page:1:1") is None)
        c.set("page:1:1", "new")
        assert c.get("page:1:1") == b"new"
    etcd.ctl("put", "/cattlegrid/shop/bump/later", "cattlegrid 1 00000000000000ff 2 newword\nhard user:1")
    wait_until("it is obeyed", lambda: c.get("page:1:1") is None)
    until(one, "confirmed")


def test_with_authentication(own_etcd, node, open_dir, binary):
    etcd = own_etcd(1)
    etcd.ctl("user", "add", "root:secret")
    etcd.ctl("user", "grant-role", "root", "root")
    etcd.ctl("role", "add", "shop")
    etcd.ctl("role", "grant-permission", "shop", "readwrite", "--prefix=true", "/cattlegrid/shop/")
    etcd.ctl("user", "add", "shop:pass word")
    etcd.ctl("user", "grant-role", "shop", "shop")
    etcd.ctl("auth", "enable")
    etcd.user = ["--user", "root:secret"]
    with open(f"{open_dir}/password", "w") as out:
        out.write("pass word\n")
    url = f'kind = "etcd"\nurl = "etcd://shop@127.0.0.1:{etcd.ports["e0"]}/cattlegrid/shop"\npassword_file = "{open_dir}/password"'

    def rules(log):
        file = f"{open_dir}/{len(os.listdir(open_dir))}.toml"
        with open(file, "w") as out:
            out.write(f'[[rule]]\nmatch = "page:{{n}}"\nhold = "1s"\ntags = ["page:{{n}}"]\n[follow.bumps]\n{log}\n')
        return file

    def check(file):
        return subprocess.run([binary, "check", file, "--connect"], capture_output=True, text=True, timeout=60)

    good = check(rules(url))
    assert good.returncode == 0 and "ok, nothing is missing" in good.stdout, good
    bad = check(rules(url.replace("shop@", "shop:wrong@").split("\npassword_file")[0]))
    assert bad.returncode == 1 and "authentication failed" in bad.stdout, bad
    elsewhere = check(rules(url.replace("/cattlegrid/shop", "/elsewhere")))
    for part in ("permission denied", "etcdctl role grant-permission ROLE readwrite --prefix=true /elsewhere/"):
        assert elsewhere.returncode == 1 and part in elsewhere.stdout, elsewhere
    nothing = check(rules(f'url = "etcd://127.0.0.1:{free_port()}"'))
    assert nothing.returncode == 1 and "cannot connect" in nothing.stdout, nothing


def certificates(folder):
    """An authority, a certificate of a server on loopback and one of a client."""
    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=folder)
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=authority")
    for name, use in (("server", "serverAuth,clientAuth"), ("client", "clientAuth")):
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        with open(f"{folder}/{name}.ext", "w") as out:
            out.write(f"subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage={use}\n")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
                "-extfile", f"{name}.ext", "-out", f"{name}.pem")
    for file in os.listdir(folder):
        os.chmod(f"{folder}/{file}", 0o644)


def test_encrypted_and_with_certificates(own_etcd, node, open_dir, binary):
    folder = f"{open_dir}/tls"
    os.mkdir(folder)
    certificates(folder)
    etcd = own_etcd(1, tls=folder)
    own = f'ssl_ca = "{folder}/ca.pem"\nssl_cert = "{folder}/client.pem"\nssl_key = "{folder}/client.key"'
    one, other = node(etcd, more=own), node(etcd, more=own + '\nsslmode = "verify-ca"')
    together([one, other])
    c = client(other)
    fill(c, "page:1:1", "old")
    assert ask(one, b"md user:1 G B") == b"HD"
    assert c.get("page:1:1") is None
    for more, part in ((own.split("\n", 1)[1], "UnknownIssuer"), (own.split("\n", 1)[0], "ertificate")):
        bad = node(etcd, "bad", more=more, wait=False)
        wait_until(f"it says {part}", lambda bad=bad, part=part: part in log_of(bad).get("lost", ""), 20)
        checked = subprocess.run([binary, "check", bad.rules, "--connect"], capture_output=True, text=True, timeout=60)
        assert checked.returncode == 1, checked
        bad.stop()


def test_the_file_that_is_read_again(etcd, node):
    one, other = node(etcd), node(etcd)
    together([one, other])
    with open(one.rules) as file:
        text = file.read()
    with open(one.rules, "w") as out:
        out.write(text.replace('prefix = "/cattlegrid/shop"', 'prefix = "/cattlegrid/shop"\nbump_reply = "local"'))
    # Before it is, the log is confirmed and nothing has waited, too.
    one.reload()
    until(one, "confirmed")
    together([one, other])
    c = client(other)
    fill(c, "page:1:1", "old")
    assert ask(one, b"delete @tag:user:1") == b"DELETED"
    wait_until("it is obeyed", lambda: c.get("page:1:1") is None)
    assert log_of(one)["waited"] == "0"
    with open(one.rules, "w") as out:
        out.write(text[:text.index("[follow.bumps]")])
    one.reload()
    wait_until("it has left", lambda: len(nodes_of(other)) == 1, 60)
    assert ask(one, b"delete @tag:user:1") == b"DELETED"
    assert ask(one, b"get @nodes").startswith(b"CLIENT_ERROR")


def test_a_cluster_by_one_command(binary):
    command = [sys.executable, pathlib.Path(__file__).parent / "cluster.py", "--server-bin", binary, "--seconds", "6"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done
    assert "delete @tag:user:1, sent once: 0 and 30" in done.stdout, done.stdout
    assert "UPDATE of user 2 in the database: 0 and 0" in done.stdout, done.stdout
    oldest = int(done.stdout.split("the oldest page was ")[1].split()[0])
    assert oldest < 3000 + 1500, done.stdout


@pytest.mark.parametrize("number", range(5))
def test_faults_one_after_the_other(kind, binary, number):
    """A schedule of its own each time; `NODES_SEED` repeats one. `nodes_faults.py` runs as many as asked for."""
    seed = int(os.environ.get("NODES_SEED", 0)) or random.SystemRandom().randrange(1 << 30)
    fleet = Fleet(binary, kind, seed)
    try:
        fleet.run(20)
        assert not fleet.old, f"NODES_SEED={seed}: {fleet.old[:5]}; {fleet.report()}"
    finally:
        fleet.clean()
