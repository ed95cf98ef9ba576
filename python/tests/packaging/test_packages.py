"""The wheel and the source distribution, installed into clean environments of the oldest and the newest Python."""

import fcntl
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PYTHON = HERE.parents[1]
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "frameworks")]
import environments  # noqa: E402
import servers  # noqa: E402

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The two files, built by PEP 517 from a copy of the folder. The first of several processes of pytest builds them
    for all."""
    pytest.importorskip("build")
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    out = shared / "dist"
    with (shared / "dist.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (out / "complete").exists():
            source = tmp_path_factory.mktemp("source") / "python"
            ignored = shutil.ignore_patterns("*.egg-info", "__pycache__", ".*", "build", "dist")
            shutil.copytree(PYTHON, source, ignore=ignored)
            run(sys.executable, "-m", "build", "--outdir", out, source)
            (out / "complete").touch()
    return out


@pytest.fixture(scope="module")
def memcached():
    server = servers.Server("memcached")
    yield server
    server.stop()


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, env=clean())
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


def clean():
    """The environment without this test's own paths."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}


def test_contents(built):
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    modules = {str(path.relative_to(PYTHON / "src")) for path in (PYTHON / "src").rglob("*.py")}
    assert modules | {"cattlegrid/py.typed"} == {name for name in names if name.startswith("cattlegrid/")}
    inside = {name.split("/", 1)[1] for name in tarfile.open(sdist).getnames() if "/" in name}
    assert {f"src/{module}" for module in modules} <= inside
    assert {"README.md", "LICENSE-MIT", "LICENSE-APACHE", "pyproject.toml"} <= inside


def test_licences_are_those_of_the_repository():
    for name in ("LICENSE-MIT", "LICENSE-APACHE"):
        assert (PYTHON / name).read_bytes() == (PYTHON.parent / name).read_bytes()


PYTHONS = environments.interpreters()


@pytest.mark.parametrize("minor", sorted({min(PYTHONS), max(PYTHONS)}))
@pytest.mark.parametrize("form", ["wheel", "sdist"])
def test_install(built, memcached, tmp_path, minor, form):
    (package,) = built.glob("*.whl" if form == "wheel" else "*.tar.gz")
    venv = tmp_path / "venv"
    if int(importlib.metadata.version("pip").partition(".")[0]) > 22:
        # By the pip that is there: one in each environment takes longer than all else.
        run(PYTHONS[minor], "-m", "venv", "--without-pip", venv)
        run(sys.executable, "-m", "pip", "--python", venv / "bin/python", "install", "--quiet", package)
    else:
        run(PYTHONS[minor], "-m", "venv", venv)
        run(venv / "bin/python", "-m", "pip", "install", "--quiet", package)
    assert "well" in run(venv / "bin/python", HERE / "smoke.py", memcached.address)
