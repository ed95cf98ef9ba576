"""Python environments for the tests of this package, in target/python: `oldest` and `newest`, of the oldest and the newest Python
from 3.9 on that this machine has (python3.N on the PATH, or in ~/.pyenv). With only one Python they are the same.

    python3 python/tests/environments.py                      makes them, with what requirements.txt says; quick if they are there
    python3 python/tests/environments.py newest ARGUMENT ...  runs pytest with these arguments in `newest`
    python3 python/tests/environments.py oldest ARGUMENT ...  the same in `oldest`; nothing, if it is the same Python

CATTLEGRID_TEST_SERVERS names the servers that most tests run over, of `memcached plain rules`; in `oldest` it is `memcached rules` without it.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "target/python"
REQUIREMENTS = Path(__file__).resolve().parent / "requirements.txt"
OLDEST, NEWEST = 9, 13
"""Minor versions of Python 3 that the package is for."""


def interpreters():
    """The Pythons of this machine, by minor version."""
    found = {}
    if sys.version_info[0] == 3 and OLDEST <= sys.version_info[1] <= NEWEST:
        found[sys.version_info[1]] = Path(sys.executable)
    for minor in range(OLDEST, NEWEST + 1):
        path = shutil.which(f"python3.{minor}")
        if path and runs(path, minor):
            found[minor] = Path(path)
    for path in sorted(Path.home().glob(".pyenv/versions/3.*/bin/python3")):
        match = re.search(r"/3\.(\d+)", str(path))
        if match and OLDEST <= int(match.group(1)) <= NEWEST and runs(path, int(match.group(1))):
            found[int(match.group(1))] = path
    return found


def runs(path, minor):
    """Whether it is this Python: with pyenv a name on the PATH can be an empty promise."""
    code = f"import ensurepip, venv, sys; sys.exit(sys.version_info[:2] != (3, {minor}))"
    return subprocess.run([str(path), "-c", code], capture_output=True, check=False).returncode == 0


def make():
    """Both environments; how long it takes is that of pip."""
    TARGET.mkdir(parents=True, exist_ok=True)
    with (TARGET / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = interpreters()
        chosen = {"oldest": min(found), "newest": max(found)}
        installing = [install(minor, found[minor]) for minor in sorted(set(chosen.values()))]
        for process in filter(None, installing):
            if process.wait():
                sys.exit("pip has failed")
        for name, minor in chosen.items():
            folder = TARGET / f"venv-3.{minor}"
            (folder / ".requirements").write_text(stamp())
            link = TARGET / name
            link.unlink(missing_ok=True)
            link.symlink_to(folder.name)


def stamp():
    return hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()


def install(minor, python):
    """Begins to install one environment, if it is not as requirements.txt says."""
    folder = TARGET / f"venv-3.{minor}"
    mark = folder / ".requirements"
    if mark.exists() and mark.read_text() == stamp():
        return None
    print(f"installing Python packages into {folder.relative_to(ROOT)}", flush=True)
    subprocess.run([str(python), "-m", "venv", "--clear", str(folder)], check=True)
    return subprocess.Popen([str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--requirement", str(REQUIREMENTS)])


def test(name, arguments):
    """Runs pytest."""
    folder = (TARGET / name).resolve()
    if name == "oldest" and folder == (TARGET / "newest").resolve():
        print(f"this machine has one Python that the package is for, {folder.name[5:]}, which has run the tests already")
        return
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python/src"), "CATTLEGRID_SET_UP": "1"}
    if name == "oldest":
        # A server without rules is asked in the same way as memcached.
        environment.setdefault("CATTLEGRID_TEST_SERVERS", "memcached rules")
    print(f"Python {folder.name[5:]}", flush=True)
    sys.exit(subprocess.run([str(folder / "bin/python"), "-m", "pytest", *arguments], env=environment, cwd=ROOT, check=False).returncode)


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in ("oldest", "newest"):
        test(sys.argv[1], sys.argv[2:])
    elif not sys.argv[1:]:
        make()
    else:
        sys.exit(__doc__)
