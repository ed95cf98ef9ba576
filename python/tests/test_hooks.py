"""Hooks: what they are called with, and those that are an ``async def``."""

import asyncio
import random

import pytest
from cattlegrid import loader
from cattlegrid.worker import _frames as f
from cattlegrid.worker import _hooks
from test_loader_modes import Lines, Socket, run

PROGRAM = """
import asyncio, random
from cattlegrid import loader

SEEN = []

@loader.init
async def prepare():
    await asyncio.sleep(0)
    SEEN.append("init")

@loader.after_fork
def plain():
    SEEN.append("plain")

@loader.after_fork
def connect(config):
    SEEN.append(config)

@loader.after_fork
def default(text="default"):
    SEEN.append(text)

@loader.after_fork
def named(config="none"):
    SEEN.append(config.upper())

loader.after_fork(random.seed)

@loader.after_fork
async def open_connections(config):
    global LOOP
    await asyncio.sleep(0)
    LOOP = asyncio.get_running_loop()
    SEEN.append("async " + config)

@loader.load
ASYNC def load(job):
    SEEN.append(LOOP is asyncio.GET())
    return repr(SEEN)

loader.serve()
"""
SYNC = PROGRAM.replace("ASYNC ", "").replace("GET", "get_event_loop")
ASYNC = PROGRAM.replace("ASYNC", "async").replace("GET", "get_running_loop")
TEXT = "dsn=\u00fc"
SEEN = ["init", "plain", TEXT, "default", TEXT.upper(), "async " + TEXT, True]


@pytest.fixture
def ended():
    processes = []
    yield processes.append
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.parametrize("program", [SYNC, ASYNC])
def test_hooks_over_a_socket(tmp_path, ended, program):
    parent = Socket(tmp_path, program)
    ended(parent.process)
    parent.start(TEXT.encode())
    assert parent.load()[3].decode() == repr(SEEN)
    assert parent.load()[3].decode() == repr([*SEEN, True])
    parent.sock.close()


@pytest.mark.parametrize("program", [SYNC, ASYNC])
def test_hooks_by_json_lines(tmp_path, ended, program):
    pool = Lines(tmp_path, program, config=TEXT)
    ended(pool.process)
    assert pool.load() == {"value": repr(SEEN)}
    pool.process.stdin.close()
    pool.process.stdout.close()


@pytest.mark.parametrize("program", [SYNC, ASYNC])
def test_hooks_of_a_single_run(tmp_path, program):
    once = ("-m", "cattlegrid.loader", "app.py", "page:42")
    assert run(tmp_path, *once, "--init", TEXT, program=program).stdout.decode().endswith(repr(SEEN) + "\n")
    assert "'plain', '', 'default'" in run(tmp_path, *once, program=program).stdout.decode()


def test_a_hook_that_fails_is_a_failed_start(tmp_path, ended):
    program = "from cattlegrid import loader\n@loader.after_fork\nasync def f(config):\n    raise OSError('no ' + config)\n"
    parent = Socket(tmp_path, program + "@loader.load\ndef load(job): ...\nloader.serve()\n")
    ended(parent.process)
    with pytest.raises(AssertionError):
        parent.start(b"database")
    once = run(tmp_path, "-m", "cattlegrid.loader", "app.py", "k", "--init=database")
    assert once.returncode == 1 and b"OSError: no database" in once.stderr
    parent.sock.close()


def test_parameters_of_hooks():
    for hook in (lambda: 0, lambda text="x": 0, lambda *all: 0, random.seed, print):
        assert not _hooks.takes_config(hook), hook
    for hook in (lambda config: 0, lambda text: 0, lambda text, more=1: 0, lambda config=None: 0, lambda a=1, config=2: 0):
        assert _hooks.takes_config(hook), hook
    for hook in (lambda one, two: 0, lambda *, one: 0):
        with pytest.raises(TypeError, match=r"no parameters, or one: def <lambda>\(config\), not <lambda>\("):
            loader.after_fork(hook)


def test_an_init_function_that_wants_the_configuration_is_told_where_it_is():
    with pytest.raises(TypeError, match=r"is given to @loader.after_fork def <lambda>\(config\)"):
        loader.init(lambda config: 0)


WORKER = """
import asyncio
from cattlegrid import worker

@worker.init
async def load():
    await asyncio.sleep(0)
    global LOADED
    LOADED = b"loaded"

@worker.after_fork
async def connect(config):
    global LOOP
    await asyncio.sleep(0)
    LOOP = asyncio.get_running_loop(), config

@worker.job
async def work():
    return [LOADED, LOOP[1], str(LOOP[0] is asyncio.get_running_loop())]

worker.serve()
"""


def test_asynchronous_hooks_of_a_worker(tmp_path, ended):
    parent = Socket(tmp_path, WORKER)
    ended(parent.process)
    parent.start(b"config")
    parent.send(parent.job(1))
    assert f.decode_list(parent.receive()[3]) == [b"loaded", b"config", b"True"]
    # Tasks that run are ended with the worker, as by asyncio.run.
    parent.sock.close()


def test_a_program_of_frames_says_so_by_json_lines(tmp_path):
    ended = run(tmp_path, "app.py", program=WORKER, CATTLEGRID_MODE="jsonl")
    assert ended.returncode == 1 and b'start it in mode "template", "exec" or "stdio", not "jsonl"' in ended.stderr


def test_tasks_that_are_left_end_as_by_asyncio_run():
    said = []

    async def forever():
        try:
            await asyncio.sleep(3600)
        finally:
            said.append("ended")

    async def begin():
        asyncio.get_running_loop().create_task(forever())
        await asyncio.sleep(0)

    try:
        _hooks.run(begin())
        _hooks.end()
        assert said == ["ended"]
    finally:
        _hooks.STATE.loop.close()
        _hooks.STATE.loop = None
