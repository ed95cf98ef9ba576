"""`Caching.response`: what a path operation answers with it is what it answers without."""

import asyncio
import datetime
import decimal
import time
from typing import Any, Dict, List, Optional

import pytest

pytest.importorskip("fastapi")
pytestmark = pytest.mark.timeout(120)

from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, HTTPException, Request, Response  # noqa: E402
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse, StreamingResponse  # noqa: E402
from pydantic import BaseModel, ConfigDict, Field, SecretStr, computed_field  # noqa: E402
from servers import until  # noqa: E402

from cattlegrid.client import Cache, UsageError  # noqa: E402
from cattlegrid.fastapi import Caching  # noqa: E402


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.body = status, body
        self.headers = [(name.decode(), text.decode()) for name, text in headers]

    def header(self, name):
        return [text for given, text in self.headers if given == name]

    def __eq__(self, other):
        return (self.status, sorted(self.headers), self.body) == (other.status, sorted(other.headers), other.body)

    def __repr__(self):
        return f"{self.status} {self.headers} {self.body}"


async def ask(app, path, **headers):
    """The answer of an application to a GET."""
    path, _, query = path.partition("?")
    sent = []
    scope = {
        **{"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": ""},
        **{"scheme": "http", "http_version": "1.1", "server": ("test", 80), "client": ("test", 1), "asgi": {"version": "3.0"}},
        "headers": [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()],
    }

    received = []

    async def receive():
        if received:
            await asyncio.sleep(3600)  # the client stays
        received.append(1)
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    try:
        await app(scope, receive, send)
    except Exception:
        if not sent:
            raise
    body = b"".join(message.get("body", b"") for message in sent if message["type"] == "http.response.body")
    return Answer(sent[0]["status"], sent[0]["headers"], body)


@pytest.fixture
def caching(server):
    return Caching(server.address, timeout="2s")


class Renamed(BaseModel):
    name: str = Field(serialization_alias="fullName")


class Read(BaseModel):
    name: str = Field(validation_alias="full_name")


class Alias(BaseModel):
    name: str = Field(alias="fullName")


class Computed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int

    @computed_field
    @property
    def b(self) -> int:
        return self.a + 1


class Excluding(BaseModel):
    a: int
    secret: str = Field(exclude=True)


class Defaults(BaseModel):
    a: int = 1
    b: Optional[int] = None


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    day: datetime.date
    price: decimal.Decimal


class Number(BaseModel):
    number: float


class Base(BaseModel):
    a: int


class More(Base):
    b: int


class Secret(BaseModel):
    password: SecretStr


MODELS = {
    "serialization alias": (Renamed, lambda: Renamed(name="x"), {}),
    "validation alias": (Read, lambda: Read(full_name="x"), {}),
    "alias": (Alias, lambda: Alias(fullName="x"), {}),
    "by name": (Alias, lambda: Alias(fullName="x"), {"response_model_by_alias": False}),
    "computed": (Computed, lambda: Computed(a=1), {}),
    "excluded": (Excluding, lambda: Excluding(a=1, secret="s"), {}),
    "unset": (Defaults, lambda: Defaults(a=5), {"response_model_exclude_unset": True}),
    "none": (Defaults, lambda: Defaults(a=5), {"response_model_exclude_none": True}),
    "include": (Defaults, lambda: Defaults(a=5), {"response_model_include": {"b"}}),
    "strict": (Strict, lambda: Strict(day=datetime.date(2020, 1, 1), price=decimal.Decimal("1.10")), {}),
    "infinite": (Number, lambda: Number(number=float("inf")), {}),
    "filtered": (Base, lambda: More(a=1, b=2), {}),
    "secret": (Secret, lambda: Secret(password="p"), {}),
    "list": (List[Alias], lambda: [Alias(fullName="x")], {}),
    "nothing": (Optional[Base], lambda: None, {}),
    "numbered": (Dict[int, str], lambda: {1: "a"}, {}),
    "status": (Base, lambda: Base(a=1), {"status_code": 201}),
    "no model": (Any, lambda: {"a": datetime.date(2020, 1, 1)}, {"response_model": None}),
}


@pytest.mark.parametrize("name", MODELS)
def test_models(caching, name):
    model, make, options = MODELS[name]
    app, calls = FastAPI(), []

    async def plain():
        return make()

    async def cached():
        calls.append(1)
        return make()

    plain.__annotations__["return"] = cached.__annotations__["return"] = model
    app.get("/plain", **options)(plain)
    app.get("/cached", **options)(caching.response("cached", ttl=60)(cached))

    async def main():
        expected = await ask(app, "/plain")
        assert [await ask(app, "/cached"), await ask(app, "/cached")] == [expected, expected]
        assert len(calls) == (1 if expected.status < 400 else 2)  # older versions cannot send an infinite number

    asyncio.run(main())


def test_a_response_that_the_model_refuses_is_an_error_each_time(caching):
    app = FastAPI()

    @app.get("/")
    @caching.response("wrong", ttl=60)
    async def wrong() -> Base:
        return {"b": 1}

    async def main():
        assert [(await ask(app, "/")).status for _ in range(2)] == [500, 500]

    asyncio.run(main())


def test_headers(caching):
    """Those of the function are stored; those of a dependency are of each request."""
    app, calls, tasks = FastAPI(), [], []

    def visitor(response: Response, request: Request):
        response.headers["x-visitor"] = request.headers.get("visitor", "-")
        response.headers["x-language"] = "of the dependency"
        response.set_cookie("visitor", request.headers.get("visitor", "-"))

    @app.get("/{kind}", dependencies=[Depends(visitor)])
    @caching.response("headers:{kind}", ttl=60)
    async def view(kind: str, response: Response, background: BackgroundTasks):
        calls.append(kind)
        background.add_task(tasks.append, kind)
        response.headers["x-made"] = str(len(calls))
        response.headers["x-language"] = "of the function"
        response.status_code = 203
        if kind == "cookie":
            response.set_cookie("own", "1")
        if kind == "no-store":
            response.headers["cache-control"] = "no-store"
        return {"kind": kind}

    async def main():
        first, second = await ask(app, "/usual", visitor="a"), await ask(app, "/usual", visitor="b")
        assert calls == ["usual"] == tasks
        for answer, name in ((first, "a"), (second, "b")):
            assert answer.status == 203 and answer.body == b'{"kind":"usual"}'
            assert answer.header("x-visitor") == [name] and answer.header("x-made") == ["1"]
            assert answer.header("x-language") == ["of the function"]
            assert [text.split(";")[0] for text in answer.header("set-cookie")] == [f"visitor={name}"]
            assert answer.header("content-type") == ["application/json"] and answer.header("content-length") == ["16"]
        for kind in ("cookie", "no-store"):
            before = len(calls)
            answers = [await ask(app, f"/{kind}", visitor="a"), await ask(app, f"/{kind}", visitor="b")]
            assert len(calls) == before + 2 and [answer.header("x-visitor") for answer in answers] == [["a"], ["b"]]
        assert "own=1" in str(answers and (await ask(app, "/cookie")).headers)

    asyncio.run(main())


def test_responses_that_functions_make(caching):
    app, calls = FastAPI(), []

    @app.get("/{kind}")
    @caching.response("made:{kind}", ttl=60)
    def view(kind: str):
        calls.append(kind)
        return {
            "text": PlainTextResponse("a", 202, {"x-a": "1"}),
            "bytes": Response(b"\x00\xff", media_type="image/png"),
            "redirect": RedirectResponse("/elsewhere"),
            "error": JSONResponse({"no": 1}, 503),
            "stream": StreamingResponse(iter([b"a", b"b"])),
        }[kind]

    async def main():
        for kind, stored in {"text": True, "bytes": True, "redirect": True, "error": False, "stream": False}.items():
            del calls[:]
            first, second = await ask(app, f"/{kind}"), await ask(app, f"/{kind}")
            assert first == second and len(calls) == (1 if stored else 2), (kind, first, second)
        assert (await ask(app, "/bytes")).body == b"\x00\xff" and (await ask(app, "/stream")).body == b"ab"

    asyncio.run(main())


def test_a_router_that_is_included(caching):
    """Its options are those of the application that includes it."""

    class Loud(JSONResponse):
        def render(self, content):
            return super().render(content).upper()

    router, app, calls = APIRouter(), FastAPI(), []

    @router.get("/{item}")
    async def plain(item: str) -> str:
        return item

    @router.get("/cached/{item}")
    @caching.response("included:{item}", ttl=60)
    async def cached(item: str) -> str:
        calls.append(item)
        return item

    app.include_router(router, prefix="/in", default_response_class=Loud)

    async def main():
        assert (await ask(app, "/in/a")).body == b'"A"'
        assert [(await ask(app, "/in/cached/a")).body for _ in range(2)] == [b'"A"'] * 2 and calls == ["a"]

    asyncio.run(main())


def test_exceptions_are_not_waited_for(caching):
    """Requests that wait for a computation that fails compute at the same time."""
    app, running, most = FastAPI(), [], []

    @app.get("/{kind}")
    @caching.response("failing:{kind}", ttl=60, compute_time="5s")
    async def view(kind: str):
        running.append(1)
        most.append(len(running))
        await asyncio.sleep(0.3)
        running.pop()
        if kind == "raises":
            raise HTTPException(404)
        return JSONResponse({}, 503)

    async def main():
        for kind, status in (("raises", 404), ("returns", 503)):
            del most[:]
            begun = time.monotonic()
            answers = await asyncio.gather(*(ask(app, f"/{kind}") for _ in range(16)))
            assert [answer.status for answer in answers] == [status] * 16
            assert len(most) == 16 and max(most) > 8 and time.monotonic() - begun < 4, (most, time.monotonic() - begun)

    asyncio.run(main())


def test_values_of_other_programs_and_calls_of_the_function_itself(server, caching):
    app, calls = FastAPI(), []

    @app.get("/{item}")
    @caching.response("value:{item}", ttl=60)
    async def view(item: int, response: Response = None) -> Base:
        calls.append(item)
        return More(a=item, b=2)

    async def main():
        with Cache(server.address) as plain:
            plain.set("value:1", {"a": 7, "b": 8})
        assert (await ask(app, "/1")).body == b'{"a":7}' and not calls
        assert await view(item=2) == {"a": 2, "b": 2} == await view(item=2)
        assert (await ask(app, "/2")).body == b'{"a":2}' and calls == [2]
        assert (await ask(app, "/3")).body == b'{"a":3}' and await view(item=3) == {"a": 3} and calls == [2, 3]

    asyncio.run(main())


def test_what_is_refused_when_the_program_is_read(server):
    caching = Caching(server.address)
    with pytest.raises(UsageError):
        Caching(server.address, serializer="text").response("a", ttl=60)
    with pytest.raises(UsageError):

        @caching.response("a", ttl=60)
        async def stream():
            yield b"a"

    with pytest.raises(UsageError):
        caching.response("a", ttl=60, wait=lambda: 1)
    with pytest.raises(UsageError):
        caching.response("a", ttl="soon")


def test_one_text_is_one_tag(ruled):
    caching, app, calls = Caching(ruled.address), FastAPI(), []

    @app.get("/{item}")
    @caching.response("tagged:{item}", ttl=60, tags="item:{item}")
    async def view(item: int) -> int:
        calls.append(item)
        return len(calls)

    async def main():
        assert [(await ask(app, "/1")).body, (await ask(app, "/1")).body] == [b"1", b"1"]
        await (await caching()).invalidate("item:1")
        assert (await ask(app, "/1")).body == b"2"

    asyncio.run(main())


def test_event_loops(server):
    """A loop that has ended leaves no connection."""
    caching, app = Caching(server.address), FastAPI()

    @app.get("/")
    @caching.response("loop", ttl=60)
    async def view() -> int:
        return 1

    def connections():
        return int(next(line.split()[2] for line in server.ask("stats", b"END\r\n").splitlines() if line.startswith("STAT curr_connections ")))

    asyncio.run(ask(app, "/"))
    before = connections()
    for _ in range(30):
        assert asyncio.run(ask(app, "/")).body == b"1"
    # The server notices a little later that they are closed.
    until(lambda: connections() - before < 10, 30, "the connections are closed")
