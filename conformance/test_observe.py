"""Rules with `mode = "observe"`: clients are answered as by a server without them, and what the rule would do is counted, about as much as it
does when it is switched on.

`OBSERVE_SECONDS=30` is the long form.
"""

import json
import os
import random
import signal
import subprocess
import threading
import time
import urllib.request

import pytest

import differential
import transcript
from crowd import HELD_ENDS, rule, show, write_rules
from harness import free_port, wait_until

pytestmark = pytest.mark.only_cattlegrid

SECONDS = float(os.environ.get("OBSERVE_SECONDS", 6))
ALL = 'hold = "400ms"\ngrace = "30s"\nearly = "auto"\nttl_jitter = "50%"\ntags = ["all", "{key}"]\ntags_in_value = "required"\n'
OBSERVE = 'mode = "observe"\n'


def no_rules(directory):
    return write_rules(directory, "[server]\n")


def stats(server, number=1):
    """The lines of a rule, by name; numbers as numbers."""
    lines = {k.split(":", 1)[1]: v for k, v in server.stats("rules").items() if k.startswith(f"{number}:")}
    return {name: int(text) if text.isdigit() else text for name, text in lines.items()}


def test_every_recorded_command_is_answered_as_without_the_rule(start, open_dir):
    """CAS numbers included: both servers are new."""
    expected = [dict(case) for case in transcript.run(start("--config", no_rules(open_dir)).port)]
    for terms in (ALL, 'announced_tags = "required"\ntags = ["{key}"]\n'):
        server = start("--config", write_rules(open_dir, rule("{key*}", OBSERVE + terms)))
        different = list(transcript.differences(server.port, expected))
        assert not different, different[:5]
        assert stats(server)["gets"] > 1000


@pytest.mark.timeout(300)
def test_random_streams_are_answered_as_without_the_rule(start, open_dir, capsys):
    plain = start("--config", no_rules(open_dir), "-m", "512")
    server = start("--config", write_rules(open_dir, rule("{key*}", OBSERVE + ALL)), "-m", "512")
    differ, reports, unstable = differential.compare(server.port, plain.port, 600, 43)
    with capsys.disabled():
        print("\n  differential, observed: " + differential.summary(differ, 43, reports, unstable))
    assert not reports, "\n".join(reports)
    assert not unstable, "\n".join(unstable)
    assert stats(server)["leases"] > 0


class Load:
    """Threads that ask for some keys, which live for a second, and compute what they miss. The same numbers each time."""

    THREADS, KEYS, PAUSE_S, TTL_S = 24, 6, 0.02, 1

    def __init__(self, server, compute_s, seconds=SECONDS):
        self.server, self.compute_s, self.end = server, compute_s, time.monotonic() + seconds
        self.computed = self.gets = 0
        self.failed, self.slowest_s = [], 0.0
        self.lock = threading.Lock()

    def run(self, seed):
        rng = random.Random(seed)
        try:
            with self.server.raw(20) as raw:
                while time.monotonic() < self.end:
                    key = b"page:%d" % rng.randrange(self.KEYS)
                    began = time.monotonic()
                    found = raw.get(key)
                    took = time.monotonic() - began
                    if found is None:
                        time.sleep(self.compute_s)
                        raw.send(b"set %s 0 %d 1\r\nx\r\n" % (key, self.TTL_S))
                        assert raw.line() == b"STORED"
                    with self.lock:
                        self.gets += 1
                        self.computed += found is None
                        self.slowest_s = max(self.slowest_s, took)
                    time.sleep(rng.uniform(0, 2 * self.PAUSE_S))
        except Exception as error:
            self.failed.append(error)

    def __enter__(self):
        self.threads = [threading.Thread(target=self.run, args=(n,), daemon=True) for n in range(self.THREADS)]
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        for thread in self.threads:
            thread.join(60)
        assert not self.failed, self.failed[:3]


@pytest.mark.parametrize("terms", ['hold = "400ms"', 'hold = "400ms"\ngrace = "10s"', 'hold = "30ms"'], ids=["hold", "grace", "too short"])
def test_what_would_have_been_saved_is_what_is_saved(start, open_dir, capsys, terms):
    """The same load under the rule in both modes. Per get: the loads are as long as one another, but not of as many gets."""
    compute_s = 0.15
    observed = start("--config", write_rules(open_dir, rule("page:{id}", OBSERVE + terms)))
    on = start("--config", write_rules(open_dir, rule("page:{id}", terms)))
    loads = []
    for server in (observed, on):
        with Load(server, compute_s) as load:
            pass
        loads.append((load, stats(server)))
    (before, would), (after, does) = loads
    said, saved = would["computes_saved"], before.computed - after.computed * before.gets / after.gets
    show(
        capsys,
        f"{before.computed} computations of {before.gets} gets observed, would have saved {said}; on: {after.computed} of {after.gets}, "
        f"saved {saved:.0f} of as many gets, {does['computes_saved']} by its own count",
    )
    assert would["gets"] - would["hits"] == before.computed, "every miss is a computation today"
    if "30ms" in terms:
        assert said <= 0.2 * before.computed and saved <= 0.2 * before.computed, "waiting does not help"
        assert would["busy_prediction"] > would["hold_expired"]
        return
    assert said == pytest.approx(saved, rel=0.2)
    assert would["leases"] + would["leases_stale"] + said + would["hold_expired"] == pytest.approx(before.computed, rel=0.1)
    assert would["p50_ms"] == pytest.approx(1000 * compute_s, rel=0.5)


def test_switched_on_and_back_under_load(start, open_dir):
    """No client is lost or stuck, and each mode counts for itself."""
    path = write_rules(open_dir, rule("page:{id}", OBSERVE))
    server = start("--config", path)
    modes = []
    with Load(server, 0.1) as load:
        for n in range(8):
            observes = n % 2 == 1
            with open(path, "w") as f:
                f.write(rule("page:{id}", OBSERVE if observes else 'mode = "on"\nhold = "400ms"\n'))
            server.process.send_signal(signal.SIGHUP)
            wait_until("the reload", lambda: stats(server)["mode"] == ("observe" if observes else "on"))
            time.sleep(SECONDS / 10)
            now = stats(server)
            modes.append((now["mode"], now["computes_saved"]))
            assert now["gets"] < load.gets + 100 or n == 0
    assert [mode for mode, _ in modes] == ["on", "observe"] * 4
    assert load.slowest_s < 5, "no client waits for ever"
    counted = stats(server)
    assert counted["held"] - sum(counted[end] for end in HELD_ENDS) <= Load.KEYS * Load.THREADS
    assert server.stats("cattlegrid")["held"] == "0"
    assert server.stats("cattlegrid")["leases"] == "0"


def test_a_loader_of_rules_that_observe_is_not_started(start, open_dir):
    text = '[loader.pages]\ncommand = ["/does/not/exist"]\nmode = "exec"\n'
    text = text.replace("/does/not/exist", "/bin/false")
    server = start("--config", write_rules(open_dir, rule("page:{id}", OBSERVE + 'loader = "pages"\n') + text))
    with server.raw() as raw:
        assert raw.get(b"page:1") is None
        raw.send(b"set page:1 0 0 1\r\nx\r\n")
        assert raw.line() == b"STORED"
    counted = stats(server)
    assert (counted["mode"], counted["loads"], counted["computes_saved"]) == ("observe", 1, 1)
    assert not [line for line in server.stats("loaders") if line.startswith("pages")]


def test_everything_says_that_it_observes(start, open_dir, binary):
    path = write_rules(open_dir, rule("page:{id}", OBSERVE + 'tags = ["page:{id}"]\nhold = "1s"') + rule("page:{name}", 'hold = "2s"'))
    port = free_port()
    server = start("--config", path, "--admin", f"127.0.0.1:{port}")
    with server.raw() as raw:
        for _ in range(3):
            raw.get(b"page:1")
        why = json.loads(raw.get(b"@why:page:1"))
        assert (why["rule"]["match"], why["observed"]["match"], why["observed"]["mode"]) == ("page:{name}", "page:{id}", "observe")
        assert why["tags"] == []
    assert (stats(server)["mode"], stats(server, 2)["mode"]) == ("observe", "on")
    assert stats(server)["leases"] == 1
    assert server.stats("rules")["total:gets"] == str(stats(server, 2)["gets"]), "sums leave out what is only counted as if"

    def page(what):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{what}", timeout=10) as reply:
            return reply.read().decode()

    assert [one["mode"] for one in json.loads(page("rules"))["rules"]] == ["observe", "on"]
    assert 'mode="observe"' in page("metrics")
    said = subprocess.run([binary, "check", path, "--key", "page:1"], capture_output=True, text=True, timeout=20).stdout
    assert "rule 2: page:{name}" in said and "observed, which changes nothing, by rule 1: page:{id}" in said
    assert 'mode = "observe"' in said
