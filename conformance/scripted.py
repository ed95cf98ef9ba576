"""Servers with types in Luau: their directory, their rule file, and calls by name.

The sources of `scripts/` are copied into a directory of the server's own, so that a test can change, add and remove them.
"""

import os
import pathlib
import shutil
import signal
import subprocess

import pytest

from crowd import write_rules
from harness import ROOT, wait_until

SOURCES = ROOT / "conformance" / "scripts"

NAMES = sorted(path.stem for path in SOURCES.glob("*.luau") if ".test" not in path.name)
"""The types of `scripts/`."""


class Types:
    """A directory of types and a rule file that names it; servers are started with both."""

    def __init__(self, start, directory, sources=NAMES, settings="", rules="", lib=True):
        """`settings`: further lines of `[objects]`; `rules`: what follows that table."""
        self._start, self.settings, self.rules = start, settings, rules
        self.path = pathlib.Path(directory) / "types"
        self.path.mkdir()
        if lib:
            shutil.copytree(SOURCES / "lib", self.path / "lib")
        for name in sources:
            shutil.copy(SOURCES / f"{name}.luau", self.path)
        for path in [self.path, *self.path.rglob("*")]:
            path.chmod(0o755)
        self.rule_file = write_rules(directory, self.text())
        self.server = None

    def text(self):
        # Where a test does not say how long a call may take, the machine may be slow.
        limit = "" if "time_limit" in self.settings else 'time_limit = "1s"\n'
        return f'[objects]\ndir = "{self.path}"\n{limit}{self.settings}\n{self.rules}\n'

    def start(self, *args, **options):
        self.server = self._start("--config", self.rule_file, *args, **options)
        return self.server

    def write(self, name, text):
        """A whole source, put in place in one step."""
        file = self.path / name
        part = file.with_suffix(".part")
        part.write_text(text)
        part.chmod(0o644)
        os.replace(part, file)

    def remove(self, name):
        (self.path / name).unlink()

    def set_rules(self, settings="", rules=""):
        self.settings, self.rules = settings, rules
        with open(self.rule_file, "w") as f:
            f.write(self.text())

    def reload(self):
        """Asks for it, and does not wait for the result."""
        self.server.signal(signal.SIGHUP)

    def reloaded(self):
        """Reloads; the lines that the server has logged when it has taken or refused the set."""
        seen = len(self.log())
        self.reload()
        self.until_logged("reloaded", seen)
        return self.log()[seen:]

    def log(self):
        """All lines of the server's log."""
        with open(self.server.log_path, errors="replace") as f:
            return f.read().splitlines()

    def until_logged(self, text, seen=0):
        """Waits until a line behind the first `seen` ones has this text; that line."""
        return wait_until(f"the log says {text!r}", lambda: next((line for line in self.log()[seen:] if text in line), None), 90)

    def check(self, binary):
        """`cattlegrid check` of the rule file: status and text."""
        done = subprocess.run([binary, "check", self.rule_file], capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def types(start, open_dir):
    """Makes a directory of types; see [`Types`]."""
    return lambda *args, **options: Types(start, open_dir, *args, **options)


def own(name, body):
    """A small source: `body` defines methods of `T`."""
    return f"local T = {{ create = {{}} }}\nfunction T.new() return {{}} end\n{body}\nreturn T\n"
