"""mypy --strict knows the types of cached functions, and finds what is wrong in calls of them."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


def test_types_of_cached_functions(tmp_path):
    pytest.importorskip("mypy")
    pytest.importorskip("typing_extensions")
    options = ["--strict", "--cache-dir", str(tmp_path), "--config-file", str(HERE.parents[1] / "pyproject.toml")]
    command = [sys.executable, "-m", "mypy", *options, str(HERE / "typed.py")]
    ran = subprocess.run(command, cwd=HERE.parents[1], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


def test_the_types_need_nothing_at_run_time():
    program = "import sys\nsys.modules['typing_extensions'] = None\nimport cattlegrid.client, cattlegrid.namespace\n"
    program += "wrong = {'pymemcache', 'emcache', 'opentelemetry', 'msgpack', 'django', 'pytest'} & set(sys.modules)\n"
    program += "assert not wrong, wrong\n"
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": str(HERE.parents[1] / "src")})
