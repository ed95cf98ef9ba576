"""What unmodified frameworks compute, on the server under the rule of README.md and on memcached without one, both at the same time.

    target/conformance/venv/bin/python conformance/framework_loads.py --server-bin target/fast/cattlegrid [--rounds 3] [--table long] [NAME ...]

The programs in `frameworks/` run a plan: 32 clients ask for a key that is missing; for a list of 5 and of 50 keys that are missing; for a
key that expires after a second; for a key that is deleted every 0.3 s. With `--table long` also: deleted every 4 s and every 20 s.
Printed are computed values and the times of the requests, computing included.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import harness
from harness import Server, tool

HERE = pathlib.Path(__file__).parent / "frameworks"
CLIENTS = 32


@dataclasses.dataclass(frozen=True)
class Framework:
    command: tuple
    """Its arguments come after the port and the plan."""
    processes: int = 8
    prefix: str = ""
    """What it puts before each key."""
    match: str = "page:{id}"
    hold: str = "400ms"
    ttl: int = 1
    """Seconds, of the key that expires."""
    compute: float = 0.1
    backend: str = ""
    """Of Django, whose site is served by gunicorn."""
    own_lock: bool = False
    """It lets one client of a host compute by itself."""


def python(script, *args):
    return (sys.executable, HERE / script), args


def program(interpreter, script, *args):
    return (interpreter, HERE / script), args


FRAMEWORKS = {
    **{
        f"django-{backend}": Framework(python("http_load.py"), 1, ":1:", backend=name)
        for backend, name in (("pymemcache", "PyMemcacheCache"), ("pylibmc", "PyLibMCCache"))
    },
    **{
        f"dogpile-{backend}-{lock}": Framework(python("dogpile_load.py", backend, lock), own_lock=lock == "lock")
        for backend in ("memcached", "pylibmc", "bmemcached", "pymemcache")
        for lock in ("alone", "lock")
    },
    "dalli": Framework(program("ruby", "rails.rb", "dalli"), prefix="app:"),
    "rails": Framework(program("ruby", "rails.rb", "store"), prefix="app:"),
    "rails-race": Framework(program("ruby", "rails.rb", "race"), prefix="app:"),
    "php-memcached": Framework(program("php", "store.php", "memcached"), prefix="app:"),
    "laravel": Framework(program("php", "store.php", "laravel"), prefix="app:"),
    "symfony": Framework(program("php", "store.php", "symfony"), prefix="app:", match="{version}:page.{id}", ttl=2, own_lock=True),
    "memjs": Framework(program("node", "node.js", "memjs"), 4),
    "node-memcached": Framework(program("node", "node.js", "memcached"), 4),
    "gomemcache": Framework(((), ()), 1, hold="70ms", compute=0.03),
}


def rules(framework, partial=None):
    """The rule of README.md for the keys of a framework."""
    server = f'[server]\nprefixes = ["{framework.prefix}"]\n' if framework.prefix else ""
    head = f'match = "{framework.match}"\nhold = "{framework.hold}"\ngrace = "30s"\ntags = ["page:{{id}}", "pages"]\n'
    if partial:
        head += f'partial = "{partial}"\n'
    text = f"{server}[[rule]]\n{head}"
    if framework.backend:
        for match, tags in (
            ("views.decorators.cache.cache_page.{site}.GET.{url}.{rest*}", '["pages:{site}"]'),
            ("views.decorators.cache.cache_header.{site}.{rest*}", '["pages:{site}"]'),
            ("template.cache.{name}.{hash}", '["fragments:{name}"]'),
        ):
            text += f'[[rule]]\nmatch = "{match}"\nhold = "400ms"\ngrace = "30s"\ntags = {tags}\n'
    return text


def steps(framework, long=False):
    """The plan's steps, one after the other."""
    compute = framework.compute
    plan = [
        {"name": "cold", "keys": ["page:cold"], "ttl": 60, "seconds": 0},
        {"name": "list of 5", "keys": [f"page:five{n}" for n in range(5)], "ttl": 60, "seconds": 0, "path": "get_many/page:five/0/5"},
        {"name": "list of 50", "keys": [f"page:fifty{n}" for n in range(50)], "ttl": 60, "seconds": 0, "path": "get_many/page:fifty/0/50"},
        {"name": "expiry", "keys": ["page:expiry"], "ttl": framework.ttl, "seconds": 3.2},
        {"name": "deletes", "keys": ["page:deletes"], "ttl": 60, "seconds": 2.2, "delete_every": 0.3},
    ]
    if framework.backend:
        plan += [
            {"name": "cache_page", "keys": ["page"], "ttl": 60, "seconds": 0, "path": "page/page"},
            {"name": "cache_page expiry", "keys": ["pages"], "ttl": 1, "seconds": 2.2, "path": "page/pages"},
            {"name": "fragment", "keys": ["part"], "ttl": 60, "seconds": 0, "path": "fragment/part"},
            {"name": "overlapping lists of 5", "keys": [], "count": 5, "shift": 2, "ttl": 60, "seconds": 0},
            {"name": "overlapping lists of 50", "keys": [], "count": 50, "shift": 10, "ttl": 60, "seconds": 0},
            {"name": "sessions", "keys": ["none"], "ttl": 60, "seconds": 0.5, "path": "visit"},
        ]
    if long:
        plan += [
            {"name": "deletes every 4 s", "keys": ["page:four"], "ttl": 60, "seconds": 17.0, "delete_every": 4.0},
            {"name": "deletes every 20 s", "keys": ["page:twenty"], "ttl": 60, "seconds": 65.0, "delete_every": 20.0},
        ]
    at = 0.0
    for step in plan:
        step.update(at=at, compute=compute, think=0.1)
        step.setdefault("path", f"get_or_set/{''.join(step['keys'][:1])}")
        at += step["seconds"] + 0.6 + compute
    return plan


class Site:
    """Django's, served by gunicorn: two processes with a thread for each client."""

    def __init__(self, backend, port, counts):
        self.port, self.counts = harness.free_port(), counts
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", "--workers", "2", "--threads", str(CLIENTS), "--keep-alive", "60", "--no-control-socket",
             "--bind", f"127.0.0.1:{self.port}", "--log-level", "warning", "django_site:application"],
            cwd=HERE,
            env=dict(os.environ, CACHE_PORT=str(port), CACHE_BACKEND=backend, COUNTS=counts),
        )

    def ready(self):
        import urllib.request

        def answers():
            assert self.process.poll() is None, "the site has ended"
            try:
                return urllib.request.urlopen(f"http://127.0.0.1:{self.port}/visit").status == 200
            except OSError:
                return False

        harness.wait_until("the site answers", answers, 60)

    def computed(self, step):
        path = os.path.join(self.counts, step)
        return os.path.getsize(path) if os.path.exists(path) else 0

    def stop(self):
        self.process.terminate()
        self.process.wait()


def built_gomemcache(directory):
    """The program; Debian has the client's source."""
    path = os.path.join(directory, "gomemcache")
    env = dict(os.environ, GOPATH="/usr/share/gocode", GO111MODULE="off", GOCACHE=os.path.join(directory, "cache"))
    subprocess.run([tool("go"), "build", "-o", path, HERE / "gomemcache.go"], env=env, check=True, timeout=300)
    return path


def run(name, servers, long=False):
    """The steps' results on each server, which run at the same time."""
    framework, plan, sites = FRAMEWORKS[name], steps(FRAMEWORKS[name], long), []
    with tempfile.TemporaryDirectory(prefix="frameworks-") as directory:
        program, args = framework.command
        if name == "gomemcache":
            program = (built_gomemcache(directory),)
        ports = [server.port for server in servers]
        try:
            if framework.backend:
                for number, port in enumerate(ports):
                    counts = os.path.join(directory, str(number))
                    os.mkdir(counts)
                    sites.append(Site(framework.backend, port, counts))
                for site in sites:
                    site.ready()
                ports = [site.port for site in sites]
            text = {"start": time.time() + 3.0, "processes": framework.processes, "threads": CLIENTS // framework.processes, "steps": plan}
            running = [
                subprocess.Popen([*map(str, program), str(port), json.dumps(text), *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                for port in ports
            ]
            ended = [process.communicate(timeout=240) for process in running]
            for process, (_, errors) in zip(running, ended):
                assert process.returncode == 0, errors
            results = [json.loads(out) for out, _ in ended]
            for site, result in zip(sites, results):
                for step in plan:
                    result[step["name"]]["computed"] = site.computed(step["name"])
            return results
        finally:
            for site in sites:
                site.stop()


def both(name, binary, memcached="memcached", long=False, partial=None):
    """(memcached's results, the server's, and its `stats rules`)."""
    with tempfile.TemporaryDirectory(prefix="frameworks-") as directory:
        os.chmod(directory, 0o755)
        path = os.path.join(directory, "rules.toml")
        pathlib.Path(path).write_text(rules(FRAMEWORKS[name], partial))
        os.chmod(path, 0o644)
        started = []
        try:
            started.append(Server(memcached, "memcached"))
            started.append(Server(binary, "cattlegrid", ["--config", path]))
            theirs, ours = run(name, started, long)
            return theirs, ours, started[1].stats("rules")
        finally:
            for server in started:
                server.clean()


def row(theirs, ours):
    def times(result):
        return f"{statistics.median(result['ms']):.0f} / {max(result['ms']):.0f}"

    return (
        f"| {theirs['computed']} | {ours['computed']} | {times(theirs)} | {times(ours)} |"
        + (f" errors: {len(theirs['errors'])}, {len(ours['errors'])}" if theirs["errors"] or ours["errors"] else "")
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server-bin", required=True)
    parser.add_argument("--memcached", default="memcached")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--table", choices=("short", "long"), default="short")
    parser.add_argument("--partial", choices=("answer", "wait"))
    parser.add_argument("names", nargs="*", metavar="NAME", default=list(FRAMEWORKS))
    arguments = parser.parse_args()
    binary = os.path.abspath(arguments.server_bin)
    for name in arguments.names:
        for _ in range(arguments.rounds):
            theirs, ours, _ = both(name, binary, arguments.memcached, arguments.table == "long", arguments.partial)
            for step in theirs:
                print(f"| {name} | {step} {row(theirs[step], ours[step])}", flush=True)
                for error in sorted(set(ours[step]["errors"]))[:3]:
                    print("   ", error[:300])


if __name__ == "__main__":
    main()
