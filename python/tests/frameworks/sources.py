"""Source distributions of frameworks, whose own tests these tests run: fetched by pip once, into target/python/sources.

Environment: CATTLEGRID_SOURCES, another folder."""

import fcntl
import importlib.metadata
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def source_of(distribution):
    """The unpacked source distribution of the installed version. Skips the test where it cannot be fetched, unless
    CATTLEGRID_SET_UP says that the network has it."""
    version = importlib.metadata.version(distribution)
    folder = Path(os.environ.get("CATTLEGRID_SOURCES") or ROOT / "target/python/sources")
    folder.mkdir(parents=True, exist_ok=True)
    name = distribution.lower().replace("-", "_").replace(".", "_")
    with (folder / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # processes of pytest-xdist fetch it once
        found = unpacked(folder, name, version)
        if found:
            return found
        fetched = subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"),
                *("--dest", str(folder), f"{distribution}=={version}"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        for archive in folder.glob(f"*-{version}.tar.gz"):
            if archive.name.lower().replace("-", "_").replace(".", "_").startswith(name):
                with tarfile.open(archive) as tar:
                    tar.extractall(folder)
        found = unpacked(folder, name, version)
    if not found:
        message = f"the source distribution of {distribution} {version} cannot be fetched: {fetched.stderr.strip()[-300:]}"
        (pytest.fail if os.environ.get("CATTLEGRID_SET_UP") else pytest.skip)(message)
    return found


def unpacked(folder, name, version):
    for path in folder.iterdir():
        if path.is_dir() and path.name.endswith(f"-{version}"):
            if path.name[: -len(version) - 1].lower().replace("-", "_").replace(".", "_") == name:
                return path
    return None
