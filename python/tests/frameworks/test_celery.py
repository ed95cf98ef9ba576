"""The program of docs/python-celery.md, with a worker of Celery behind redis."""

import shutil
import signal
import subprocess
import sys
import time

import pages
import pytest
from servers import connects, free_port, until

pytest.importorskip("celery")
pytestmark = pytest.mark.timeout(150)


@pytest.fixture
def broker(tmp_path):
    """The address of a redis."""
    if not shutil.which("redis-server"):
        pytest.skip("redis-server is missing")
    pytest.importorskip("redis")
    port = free_port()
    process = subprocess.Popen(
        ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path)], stdout=subprocess.DEVNULL
    )
    until(lambda: connects(port), 20, "redis listens")
    yield f"redis://127.0.0.1:{port}/0"
    process.terminate()
    process.wait()


@pytest.fixture
def worker(server, broker, environment, tmp_path):
    """A worker of two processes: its log, and the environment of programs that give it tasks."""
    pages.write("python-celery.md", tmp_path, server.address)
    log = tmp_path / "log"
    environment = {**environment, "BROKER": broker}
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "reports", "worker", "--concurrency", "2", "--without-gossip", "--without-mingle", "-l", "INFO"],
            cwd=tmp_path,
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        until(lambda: " ready." in log.read_text() or process.poll() is not None, 60, "the worker is ready")
        assert process.poll() is None, log.read_text()
        yield log, environment
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def ask(number, folder, environment, processes=4):
    running = [
        subprocess.Popen([sys.executable, "-m", "ask_report", str(number)], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    return [line for process in running for line in process.communicate(timeout=60)[0].splitlines()]


def test_a_worker_delivers(worker, tmp_path):
    log, environment = worker
    environment = {**environment, "PYTHONPATH": f"{tmp_path}:{environment['PYTHONPATH']}"}
    assert ask(7, tmp_path, environment) == ["got report 7"] * 12
    assert log.read_text().count("computed 7") == 1
    begun = time.monotonic()
    assert ask(7, tmp_path, environment, 1) == ["got report 7"] * 3
    assert time.monotonic() - begun < 10
    answers = ask(-1, tmp_path, environment)
    assert set(answers) == {"failed no such report"}, answers
    assert 1 <= log.read_text().count("computed -1") <= 3
