"""Test suites of clients, from their source distributions.

A suite is downloaded by pip once into target/conformance/suites, with what it needs besides the environment of setup.sh, and runs in a
process of its own, in a copy of its directory. That takes a package index; where there is none the test fails and says so.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

from harness import ROOT

STORE = ROOT / "target" / "conformance" / "suites"
#: Of a whole suite, in seconds.
LIMIT = 60


def pip(*arguments):
    done = subprocess.run([sys.executable, "-m", "pip", *arguments], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, f"pip {' '.join(arguments)}: no package index? {done.stdout[-2000:]}{done.stderr[-2000:]}"


def source(name, version):
    """The directory of a source distribution, unpacked."""
    place = STORE / f"{name}-{version}"
    if not place.exists():
        STORE.mkdir(parents=True, exist_ok=True)
        print(f"suites: downloading {name} {version} into target/conformance/suites")
        pip("download", "--quiet", "--no-deps", "--no-binary", name, "--dest", str(STORE), f"{name}=={version}")
        archive = next(STORE.glob(f"{name.replace('-', '_')}-{version}.tar.gz"))
        unpacked = STORE / f"unpacked-{os.getpid()}"
        with tarfile.open(archive) as tar:
            tar.extractall(unpacked, filter="data")
        next(unpacked.iterdir()).rename(place)
        unpacked.rmdir()
    return place


def packages(*wanted):
    """A directory with these packages, to be put into PYTHONPATH."""
    place = STORE / "packages" / "+".join(wanted)
    if not place.exists():
        print(f"suites: installing {' '.join(wanted)} into target/conformance/suites")
        half = place.with_name(f"{place.name}-{os.getpid()}")
        pip("install", "--quiet", "--no-deps", "--target", str(half), *wanted)
        half.rename(place)
    return place


def copy(directory, to, changes, files={}):
    """A copy of a directory of tests, in which these texts are replaced, a text for a regular expression: in all, or in the file of this name."""
    shutil.copytree(directory, to)
    for file in pathlib.Path(to).glob("*.py"):
        text = file.read_text()
        for pattern, new in [*changes.items(), *files.get(file.name, {}).items()]:
            text = re.sub(pattern, new, text)
        file.write_text(text)


def run(directory, *arguments, env):
    """Runs pytest there: what it prints, and the outcome of each test by its name."""
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "--tb=short", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=directory, env=dict(os.environ, **env), capture_output=True, text=True, timeout=LIMIT)
    lines = re.findall(r"^(PASSED|FAILED|ERROR|SKIPPED) (?:\[\d+\] )?(\S+)", done.stdout, re.M)
    return done.stdout + done.stderr, {name: outcome for outcome, name in lines}
