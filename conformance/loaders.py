"""Servers with loaders: a directory with the rule file and the files by which tests and workers talk.

The workers are `data/loaders/pages.py` (its head says what its keys do) and `data/loaders/lines.py`. Every process of a scene has the
variable SCENE, so those that were left behind are found under any parent.
"""

import json
import os
import pathlib
import shutil
import signal
import sys
import tempfile

import harness
from crowd import HELD_ENDS, WIDE_FENCE, held, write_rules
from harness import wait_until

PROGRAMS = harness.ROOT / "conformance" / "data" / "loaders"
PACKAGE = harness.ROOT / "python" / "src"

ENDS = "values not_found errors lost timeouts refused cancelled".split()
"""The counters of `stats loaders` of which each job ends in one."""

PASSED_ON = ["PATH", "HOME", "LANG", "PYTHONPATH", "SCENE"]

LONG = 'hold = "30s"\n'


def toml(table):
    """Settings as lines; texts, numbers, truth values and lists of them."""
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in table.items())


def of_loader(name="pages", program="pages.py", **settings):
    """A `[loader.NAME]` that runs one of `PROGRAMS`: one job at a worker, so that a job at the gate delays no other, and time enough."""
    all = {"command": [sys.executable, str(PROGRAMS / program)], "env": PASSED_ON, "load": 1, "timeout": "60s", **settings}
    return f"[loader.{name}]\n{toml(all)}\n"


def by_default(name="pages", program="pages.py", mode="template", **settings):
    """The same with no setting but what it needs."""
    settings = {"command": [sys.executable, str(PROGRAMS / program)], "env": PASSED_ON, "mode": mode, **settings}
    return f"[loader.{name}]\n{toml(settings)}\n"


def of_rule(match, name="pages", terms=LONG):
    return f"[[rule]]\nmatch = {json.dumps(match)}\nloader = {json.dumps(name)}\n{terms}\n"


def rules(terms=LONG, **settings):
    """Rules for the keys of `pages.py`, and its loader."""
    return "".join(of_rule(match, terms=terms) for match in ("page:{id}", "code:{id}", "do:{what}:{with}:{id}")) + of_loader(**settings)


class Scene:
    """A server with loaders in a directory of its own."""

    def __init__(self, start, parent):
        self.start_server, self.server = start, None
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="scene-", dir=parent))
        os.chmod(self.dir, 0o777)
        self.env = {"SCENE": str(self.dir), "PYTHONPATH": str(PACKAGE), "PYTHONDONTWRITEBYTECODE": "1"}
        self.config = None

    def start_wide(self, text, *args):
        """As `start`, for many keys at once of which each must be computed once."""
        return self.start(WIDE_FENCE + text, "-m", "1024", *args)

    def start(self, text=None, *args):
        """Starts the server with this rule file."""
        self.config = write_rules(self.dir, rules() if text is None else text)
        self.server = self.start_server("--config", self.config, *args, env=self.env)
        return self.server

    # Files by which workers are told what to do.

    def write(self, name, text):
        """Replaces a file, at once for all readers."""
        with tempfile.NamedTemporaryFile("w", dir=self.dir, delete=False) as f:
            f.write(text)
        os.chmod(f.name, 0o644)
        os.rename(f.name, self.dir / name)

    def remove(self, name):
        os.unlink(self.dir / name)

    def close_gate(self):
        self.write("gate", "")

    def open_gate(self):
        self.remove("gate")

    def jobs(self):
        """The jobs that workers have begun, in order."""
        try:
            with open(self.dir / "jobs") as f:
                return [json.loads(line) for line in f]
        except FileNotFoundError:
            return []

    def keys(self):
        return [job["key"] for job in self.jobs()]

    def calls(self):
        """How many jobs each call of a batch had."""
        with open(self.dir / "calls") as f:
            return [int(line) for line in f]

    def until_jobs(self, count):
        wait_until(f"{count} jobs have begun", lambda: len(self.jobs()) >= count, 60)
        assert len(self.jobs()) == count, self.keys()

    # What the server says.

    def stats(self, name="pages"):
        """`stats loaders` of one loader; numbers as such."""
        found = {}
        for line, value in self.server.stats("loaders").items():
            if line.startswith(name + ":"):
                found[line[len(name) + 1 :]] = int(value) if value.lstrip("-").isdigit() else value
        return found

    def rule_stats(self, number=1):
        prefix = f"{number}:"
        return {name[len(prefix) :]: value for name, value in self.server.stats("rules").items() if name.startswith(prefix)}

    def check_sums(self, name="pages"):
        """Each job has ended in one way, and so has each get of the first rule that was held."""
        wait_until("no job runs", lambda: self.stats(name)["running"] == 0, 60)
        # A job ends before its result is stored or dropped.
        wait_until("no result is on its way", lambda: self.stats(name)["bytes"] == 0, 60)
        if held(self.server) == 0:
            counts = self.rule_stats()
            assert int(counts["held"]) == sum(int(counts[end]) for end in HELD_ENDS), counts
        stats = self.stats(name)
        assert stats["jobs"] == sum(stats[end] for end in ENDS), stats
        assert stats["bytes"] == 0, stats
        return stats

    def whole_log(self):
        return pathlib.Path(self.server.log_path).read_text(errors="replace")

    def rewrite(self, text):
        with open(self.config, "w") as f:
            f.write(text)

    def reload(self, seconds=60):
        """SIGHUP; whether it was taken."""
        before = self.reloads()
        self.server.signal(signal.SIGHUP)
        wait_until("reloaded, or said why not", lambda: self.reloads() != before, seconds)
        return self.reloads()[0] > before[0]

    def reloads(self):
        """Reloads that were taken, and those that were not."""
        taken = refused = 0
        for line in self.whole_log().splitlines():
            # A reload that was refused has a line for each mistake.
            is_refused = "nothing reloaded" in line
            refused += is_refused
            taken += line.endswith("reloaded") and not is_refused
        return taken, refused

    # Processes.

    def processes(self):
        """Pids of all processes of this scene but the server."""
        mark, found = f"SCENE={self.dir}".encode(), []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
            except OSError:
                continue
            if mark in environment and state != "Z" and (self.server is None or int(pid) != self.server.pid):
                found.append(int(pid))
        return found

    def templates(self):
        """Processes of the loader that are children of the server."""
        return [pid for pid in self.processes() if parent(pid) == self.server.pid]

    def until_no_processes(self):
        wait_until("its processes are gone", lambda: not self.processes(), 60)

    def end(self):
        """The server stops, and nothing is left of it."""
        if self.server is not None:
            status = self.server.stop()
            assert status == 0, f"left with {status}\n{self.server.log()}"
        self.until_no_processes()

    def clean(self):
        if self.server is not None:
            self.server.clean()
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        shutil.rmtree(self.dir, ignore_errors=True)


def parent(pid):
    try:
        return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return None


def workers(scene):
    """Processes that a template has forked."""
    templates = set(scene.templates())
    return [pid for pid in scene.processes() if parent(pid) in templates]


def ask(raw, line):
    """The first line of the reply."""
    raw.send(line + b"\r\n")
    return raw.line()


def value(raw):
    """The value that a `get` sent before is answered with; None for a miss, or the line of an error."""
    head = raw.line()
    if head == b"END":
        return None
    if not head.startswith(b"VALUE "):
        return head
    data = raw.exactly(int(head.split()[3]))
    assert raw.exactly(7) == b"\r\nEND\r\n"
    return data


def meta(raw, line):
    """The reply to an `mg` with v: its head, and the value if there is one."""
    head = ask(raw, line)
    if not head.startswith(b"VA "):
        return head, None
    data = raw.exactly(int(head.split()[1]))
    assert raw.exactly(2) == b"\r\n"
    return head, data
