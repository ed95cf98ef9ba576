"""Every line of `stats` is documented with its kind, every documented line is printed, and figures are exact at once."""

import re

import pytest

from crowd import write_rules
from harness import ROOT, wait_until
from test_operations import make_certificate, tls

pytestmark = pytest.mark.only_cattlegrid

RULES = '[objects]\n[[rule]]\nmatch = "page:{id}"\nhold = "1s"\nlease = "60s"\ntags = ["page:{id}"]\n[[rule]]\nmatch = "other"\n'
# The same with a loader, which is asked for nothing.
LOADER = """
[[rule]]
match = "load:{id}"
loader = "pages"
[loader.pages]
mode = "jsonl"
command = ["sh", "-c", '''echo '{"ready":true}'; cat >/dev/null''']
"""
# What no short test can bring about: see their meaning in docs/statistics.md.
RARE = {"noted_share", "{rule}:advice", "{rule}:prefix", "false_stale", "hint_{number}"}
# What a line begins with, and what stands there.
PREFIXES = {"{rule}:": r"(\d+|total):", "{loader}:": r"pages:", "{type}:{method}:": r"[a-z]+:[a-zA-Z]+:", "{type}:": r"[a-z]+:", "{family}:": r"[a-z]+:"}


def documented():
    """By section, the lines of docs/statistics.md as (name, kind)."""
    sections, current = {}, None
    for line in (ROOT / "docs" / "statistics.md").read_text().splitlines():
        if line.startswith("## `stats"):
            current = sections.setdefault(line.strip("# `").removeprefix("stats").strip(), [])
        elif line.startswith("## "):
            current = None
        elif current is not None and (row := re.match(r"\| `([^`]+)` \| (counter|gauge|text) \|", line)):
            current.append((row[1], row[2]))
    return sections


def pattern(name):
    """Matches what is printed for a documented name."""
    prefix, rest = next(((p, name.removeprefix(p)) for p in PREFIXES if name.startswith(p)), ("", name))
    parts = re.split(r"(\{\w+\})", rest)
    text = "".join(r"\d+" if part.startswith("{") else re.escape(part) for part in parts)
    return re.compile(PREFIXES.get(prefix, "") + text)


def check(section, printed, rows, seen):
    patterns = [(name, kind, pattern(name)) for name, kind in rows]
    for line, value in printed.items():
        fitting = [(name, kind) for name, kind, wanted in patterns if wanted.fullmatch(line)]
        assert len(fitting) == 1, f"stats {section}: {line} is documented as {fitting}"
        name, kind = fitting[0]
        assert kind == "text" or re.fullmatch(r"\d+(\.\d+)?", value), f"stats {section}: {line} {value} is a {kind}"
        seen.add((section, name))


def test_every_line_is_documented_and_every_documented_line_is_printed(start, open_dir):
    sections, seen = documented(), set()
    fields = {name for name, _ in sections.pop("leases")}
    # Those of databases: test_follow.py.
    sections.pop("follow")
    assert set(sections) == {"", "items", "slabs", "sizes", "conns", "cattlegrid", "rules", "tags", "loaders", "objects", "latency", "shares"}
    rules = write_rules(open_dir, RULES + LOADER + '[[share]]\nprefix = "shop:"\nat_least = "5%"\n')
    make_certificate(open_dir)
    with_tls = ("-Z", "-o", f"ssl_chain_cert={open_dir}/cert.pem,ssl_key={open_dir}/key.pem")
    for args in [("--config", rules, "-o", "idle_timeout=600"), with_tls]:
        server = start(*args)
        with tls(server) if "-Z" in args else server.raw() as c:
            c.set(b"k", b"v")
            # So that one is sampled, of this thread.
            c.ask(b"get k\r\n" * 200)
            if "--config" in args:
                # Learned times, a lease, a slow flush and a delayed one.
                c.ask(b"get page:1\r\nset page:1 0 0 1\r\nx\r\nget page:2\r\nget @flush:900\r\nget set:new:s set:put:s:a\r\nflush_all 900\r\n")
                leases = c.stats("leases")
                assert len(leases) == 1 and {f.split("=")[0] for f in re.findall(r"\w+=\w+", *leases.values())} == fields
            for section, rows in sections.items():
                check(section, c.stats(section), rows, seen)
    missing = {(section, name) for section, rows in sections.items() for name, _ in rows} - seen
    assert {name for _, name in missing} == RARE


def test_what_commands_change_is_exact_at_the_next_stats(start, open_dir):
    with start("--config", write_rules(open_dir, RULES)).raw() as c:
        for n in range(1, 200):
            c.set(b"k%d" % n, b"v" * 100)
            stats = c.stats()
            assert (stats["curr_items"], stats["total_items"], stats["cmd_set"]) == (str(n),) * 3
            assert int(stats["bytes"]) > n * 100
        assert c.stats("items")["items:1:number"] == "199" and c.stats("slabs")["1:used_chunks"] == "199"
        c.ask(b"delete k1\r\n")
        assert c.stats()["curr_items"] == "198"
        c.ask(b"get page:1\r\n")
        own = c.stats("cattlegrid")
        assert (own["leases"], own["misses_outstanding"]) == ("1", "1")
        assert c.stats("rules")["1:leases"] == "1"
        c.set(b"page:1", b"v")
        own = c.stats("cattlegrid")
        assert (own["leases"], own["misses_outstanding"]) == ("0", "0")
        assert (own["items_small"], own["items_blind"], own["items_main"]) == ("1", "198", "0")
        assert c.stats("rules")["total:fills_stored"] == "1"


def test_misses_that_are_too_old_leave(start, open_dir):
    rules = '[[rule]]\nmatch = "page:{id}"\nfill_window = "3s"\nlease = "100ms"\n'
    server = start("--config", write_rules(open_dir, rules))
    with server.raw() as c:
        # In one packet, so that they are counted before the first is too old.
        c.send(b"".join(b"get page:%d\r\n" % n for n in range(20)) + b"stats cattlegrid\r\n")
        assert b"STAT misses_outstanding 20\r\n" in c.until(b"END\r\nSTAT") + c.until(b"\r\nEND\r\n")
        wait_until("they are forgotten", lambda: c.stats("cattlegrid")["misses_outstanding"] == "0", 60)
