"""The programs of docs/python-fastapi.md, served by 4 processes of uvicorn."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pages
import pytest
from servers import free_port, until

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytestmark = pytest.mark.timeout(120)


class Site:
    def __init__(self, folder, server, environment):
        pages.write("python-fastapi.md", folder, server.address)
        self.port = free_port()
        self.log = folder / "log"
        program = "tagged:app" if server.kind == "rules" else "app:app"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "uvicorn", "--port", str(self.port), "--workers", "4", "--log-level", "warning", program],
                cwd=folder,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def ask(self, path, method="GET"):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            return error.code

    def crowd(self, path, number):
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(self.ask(path))) for _ in range(number)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(answers) == number
        return answers

    def computed(self, item):
        return self.log.read_text().split("\n").count(f"computed {item}")

    def answers(self):
        try:
            return self.ask("/items/404") == 404
        except OSError:
            assert self.process.poll() is None, self.log.read_text()
            return False


@pytest.fixture
def site(server, environment, tmp_path):
    site = Site(tmp_path, server, environment)
    try:
        until(site.answers, 60, "the site answers")
        yield site
    finally:
        site.process.send_signal(signal.SIGINT)
        try:
            site.process.wait(10)
        except subprocess.TimeoutExpired:
            site.process.kill()
            site.process.wait()


def test_four_processes_compute_once(site, server):
    answers = site.crowd("/items/1", 64)
    assert {json.dumps(answer) for answer in answers} == {json.dumps(answers[0])} and answers[0]["name"] == "bolt"
    assert site.computed(1) == 1
    assert site.crowd("/names/1", 16) == ["bolt"] * 16
    assert site.computed(1) == 2
    assert site.crowd("/items/404", 4) == [404] * 4
    site.ask("/items/1?name=screw", "PUT")
    site.ask("/items/1")
    assert site.computed(1) == 3
    if server.kind == "rules":
        site.crowd("/tagged/2", 16)
        site.ask("/tags/item:2", "DELETE")
        site.crowd("/tagged/2", 16)
        assert site.computed(2) == 2


def test_decorator(server):
    """What the decorator does to a path operation."""
    from fastapi import FastAPI
    from fastapi.responses import PlainTextResponse

    from cattlegrid.fastapi import Caching

    caching = Caching(server.address)
    app = FastAPI(lifespan=caching.lifespan)
    calls = []

    @app.get("/sync/{item}")
    @caching.response("sync:{item}:{size}", ttl=60)
    def sync(item: int, size: int = 1) -> dict:
        calls.append(item)
        return {"item": item, "size": size}

    @app.get("/wrong")
    @caching.response("wrong", ttl=60)
    def wrong():
        return PlainTextResponse("a")

    assert [p["name"] for p in app.openapi()["paths"]["/sync/{item}"]["get"]["parameters"]] == ["item", "size"]

    async def main():
        assert await sync(item=1) == {"item": 1, "size": 1} == await sync(item=1, size=1)
        assert calls == [1]
        assert (await sync(item=1, size=2))["size"] == 2
        assert await sync(2) == {"item": 2, "size": 1}
        with pytest.raises(TypeError):
            await wrong()
        async with caching.lifespan(app):
            assert await caching() is await caching()

    asyncio.run(main())
