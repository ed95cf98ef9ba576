"""Clients that put a text before every key: Django's `:1:`, the namespace of a Rails application, the prefix of a client."""

import json
import pathlib
import signal
import subprocess
import threading

import pylibmc
import pymemcache.client.base
import pytest

from crowd import until_held
from harness import free_port, wait_until

pytestmark = pytest.mark.only_cattlegrid

PREFIXES = [":1:", "shop:", "shop:production:1:"]

RULES = """
[[rule]]
match = "page:{user}:{id}"
hold = "2s"
tags = ["user:{user}", "pages"]

[[rule]]
match = "basket:{user}"
tags = ["user:{user}"]

[objects]
"""


def started(start, open_dir, prefixes=PREFIXES, rules=RULES, *options):
    file = pathlib.Path(open_dir) / "rules.toml"
    file.write_text(f"[server]\nprefixes = {json.dumps(prefixes)}\n" + rules)
    return start("--config", str(file), *options)


def client(server, prefix=""):
    """An unmodified client that puts the prefix before every key, control keys included."""
    return pymemcache.client.base.Client(("127.0.0.1", server.port), key_prefix=prefix.encode(), timeout=10)


def test_each_prefix_is_a_namespace_of_its_own(start, open_dir):
    server = started(start, open_dir)
    clients = {prefix: client(server, prefix) for prefix in ["", *PREFIXES]}
    for prefix, one in clients.items():
        one.set("page:7:1", prefix or "none")
        one.set("basket:7", prefix or "none")
    for bumped, one in clients.items():
        assert one.delete("@tag:user:7", noreply=False)
        for prefix, other in clients.items():
            expected = None if prefix == bumped else (prefix or "none").encode()
            assert other.get("basket:7") == expected, (prefix, bumped)
        one.set("basket:7", bumped or "none")


def test_one_client_behind_a_prefix_computes_and_the_others_get_its_value(start, open_dir):
    server = started(start, open_dir)
    computed, got = [], []

    def visit():
        one = client(server, ":1:")
        value = one.get("page:7:1")
        if value is None:
            computed.append(1)
            until_held(server, 7)
            one.set("page:7:1", "new")
            value = b"new"
        got.append(value)

    threads = [threading.Thread(target=visit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(computed), got) == (1, [b"new"] * 8)


def test_objects_behind_a_prefix_are_others(start, open_dir):
    server = started(start, open_dir)
    plain, django = client(server), client(server, ":1:")
    assert plain.get("counter:add:visits:5") == b"5"
    assert django.get("counter:add:visits:1") == b"1"
    assert plain.get("counter:get:visits") == b"5"
    assert django.delete("counter::visits", noreply=False)
    assert plain.get("counter:get:visits") == b"5"
    assert plain.get(":1:counter:get:visits") != b"5"
    raw = server.raw()
    raw.send(b"lru_crawler metadump all\r\n")
    assert b"key=counter%3A%3Avisits" in raw.until(b"END\r\n")


@pytest.mark.parametrize("is_binary", [False, True])
def test_pylibmc_behind_a_prefix(start, open_dir, is_binary):
    server = started(start, open_dir)
    one = pylibmc.Client([f"127.0.0.1:{server.port}"], binary=is_binary, behaviors={"receive_timeout": 10_000_000})
    one.set(":1:page:7:1", "x")
    one.set("page:7:1", "y")
    assert one.delete(":1:@tag:pages")
    assert one.get_multi([":1:page:7:1", "page:7:1"]) == {"page:7:1": "y"}
    said = one.get(":1:@why:page:7:1")
    assert json.loads(said)["prefix"] == ":1:"


def test_why_and_check_tell_of_the_prefix(start, open_dir):
    server = started(start, open_dir)
    django = client(server, ":1:")
    django.set("page:7:1", "x")
    why = json.loads(django.get("@why:page:7:1"))
    assert (why["key"], why["prefix"], why["rule"]["match"]) == (":1:page:7:1", ":1:", "page:{user}:{id}")
    assert "hint" not in why
    why = json.loads(client(server).get("@why::2:page:7:1"))
    assert why["rule"] is None
    assert why["hint"] == 'it would have rule 1 behind ":2:": add ":2:" to prefixes in [server]'
    # The whole key behind the prefix is that key, too.
    assert json.loads(django.get("@why::1:page:7:1")) == json.loads(django.get("@why:page:7:1"))
    for key in ["lock:page:7:1", "@:page:7:1", ":1:lock:x"]:
        # `lock` is a type of objects, and `page` none of its methods.
        assert "prefix" not in json.loads(client(server).get("@why:" + key)).get("hint", ""), key
    with pytest.raises(pymemcache.exceptions.MemcacheClientError, match="no flush of a prefix"):
        django.get("@flush:10")


def test_a_prefix_that_the_server_does_not_know_is_found(start, open_dir):
    server = started(start, open_dir, prefixes=[])
    django = client(server, ":1:")
    for number in range(200):
        django.get(f"page:{number}:1")
        django.get(f"session:{number}")
    hint = wait_until("the hint", lambda: server.stats("rules").get("hint_1"))
    assert hint.startswith("rule 1 `page:{user}:{id}` has matched no key; "), hint
    assert hint.endswith('sampled keys would match behind ":1:": add prefixes = [":1:"] to [server]'), hint
    wait_until("the line", lambda: 'add prefixes = [":1:"] to [server]' in server.log())
    django.get("page:1:1")
    assert server.log().count("add prefixes") == 1
    # A rule that has keys gives no hint: others may be other keys on purpose.
    client(server).set("page:1:1", "x")
    assert "hint_1" not in server.stats("rules")


def test_check_asks_a_server(start, open_dir, binary):
    server = started(start, open_dir, prefixes=[])
    file = str(pathlib.Path(open_dir) / "rules.toml")

    def check(address):
        return subprocess.run([binary, "check", file, "--server", address], capture_output=True, text=True, timeout=60)

    address = f"127.0.0.1:{server.port}"
    said = check(address)
    assert said.returncode == 0, said.stderr
    assert f"# server {address}: rule 1 `page:{{user}}:{{id}}` has matched no key\n" in said.stdout
    django = client(server, ":1:")
    for number in range(200):
        django.get(f"page:{number}:1")
    said = check(address).stdout
    assert said.count("rule 1 `page") == 1 and 'add prefixes = [":1:"] to [server]' in said, said
    plain = client(server)
    plain.set("page:7:1", "x")
    plain.set("basket:7", "x")
    assert "has matched no key" not in check(address).stdout
    # No server, and one without rules.
    absent = check(f"127.0.0.1:{free_port()}")
    assert absent.returncode == 1 and "check --server 127.0.0.1:" in absent.stderr
    bare = check(f"127.0.0.1:{start().port}")
    assert bare.returncode == 1 and "has no rule file; start it with --config" in bare.stderr


def test_control_keys_and_calls_behind_an_unknown_prefix_are_found(start, open_dir):
    server = started(start, open_dir, prefixes=[])
    rails = client(server, "shop:production:")
    for number in range(5):
        assert not rails.delete(f"@tag:user:{number}", noreply=False)
        rails.get(f"quota:take:{number}")
    hint = wait_until("the hint", lambda: server.stats("rules").get("hint_1"))
    assert 'behind "shop:production:"' in hint, hint


def test_prefixes_of_a_reload_need_a_restart(start, open_dir):
    server = started(start, open_dir, prefixes=[":1:"])
    django = client(server, ":1:")
    django.set("basket:7", "x")
    file = pathlib.Path(open_dir) / "rules.toml"
    file.write_text('[server]\nprefixes = ["shop:"]\n' + RULES)
    server.signal(signal.SIGHUP)
    wait_until("the line", lambda: "needs a restart" in server.log())
    assert django.get("basket:7") == b"x"
    assert django.delete("@tag:user:7", noreply=False)
    assert django.get("basket:7") is None
