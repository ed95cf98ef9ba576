"""In place of Flask-Caching's own conftest: an application with this back end, and a clock that waits."""

import math
import os
import socket
import time

import flask
import flask_caching as fsc
import pytest


@pytest.fixture
def app(request):
    app = flask.Flask(request.module.__name__, template_folder=os.path.dirname(__file__))
    app.testing = True
    app.config["CACHE_TYPE"] = "cattlegrid.flask_caching.CattlegridCache"
    app.config["CACHE_MEMCACHED_SERVERS"] = [f"127.0.0.1:{os.environ['CACHE_PORT']}"]
    return app


@pytest.fixture
def cache(app):
    cache = fsc.Cache(app)
    cache.clear()
    return cache


class _Clock:
    """Moves the clock of a server that can (CACHE_DEBUGTIME), else waits."""

    moved = 0

    def advance(self, seconds):
        if "CACHE_DEBUGTIME" in os.environ:
            with socket.create_connection(("127.0.0.1", int(os.environ["CACHE_PORT"])), 5) as connection:
                connection.sendall(b"debugtime %d\r\n" % math.ceil(seconds))
                assert connection.recv(100)[:5] not in (b"ERROR", b"CLIEN")
            self.moved += seconds
        elif seconds > 5:
            pytest.skip("only where the server's clock can be moved")
        else:
            # memcached counts whole seconds, and drops an item up to a second late.
            time.sleep(seconds + 0.3)

    def __call__(self):
        return time.time() + self.moved


@pytest.fixture
def clock():
    return _Clock()


@pytest.fixture(params=list(fsc.SUPPORTED_HASH_FUNCTIONS), ids=lambda method: method.__name__)
def hash_method(request):
    return request.param


@pytest.fixture
def redis_server():
    pytest.skip("a test of another back end")


@pytest.fixture(autouse=True)
def sleep(monkeypatch):
    """Tests that wait for expiry move the server's clock, where that is possible."""
    if "CACHE_DEBUGTIME" in os.environ:
        wait = time.sleep
        monkeypatch.setattr(time, "sleep", lambda seconds: _Clock().advance(seconds) if seconds >= 1 else wait(seconds))
