"""A dependency and a decorator for FastAPI (and Starlette)::

    caching = Caching("10.0.0.1:11211,10.0.0.2:11211")
    app = FastAPI(lifespan=caching.lifespan)

    @app.get("/items/{item_id}")
    @caching.response("item:{item_id}", ttl=60, tags=["items"])
    async def item(item_id: int, db: Annotated[Db, Depends(db)]) -> Item: ...

    @app.put("/items/{item_id}")
    async def change(item_id: int, cache: Annotated[AsyncCache, Depends(caching)]) -> None:
        ...
        await cache.invalidate("items")
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import typing
from typing import Any, AsyncIterator, Awaitable, Callable, Dict, Iterable, List, Optional, Tuple, Union

from fastapi import Depends, Request, Response
from fastapi.encoders import jsonable_encoder
from fastapi.responses import FileResponse
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool

from . import _once
from .client import AsyncCache, UsageError, skip
from .client._options import expiration
from .client._template import call_of, compile_key, compile_tags

_MAGIC = b"cattlegrid.fastapi 1 "
"""What a response in the cache begins with: a line of JSON and the body follow."""
_PARAMETER = "cattlegrid_request"
_HANDLER = "_cattlegrid_handler"
_OPTIONS = (
    "response_model_include",
    "response_model_exclude",
    "response_model_by_alias",
    "response_model_exclude_unset",
    "response_model_exclude_defaults",
    "response_model_exclude_none",
)


class Caching:
    """A cache for an application: a dependency that is an :class:`cattlegrid.client.AsyncCache`, and decorators for its paths.

    The arguments are those of ``AsyncCache``. Each event loop has connections of its own, made when they are first used: so a process may
    be forked before, and tests may use a loop each.
    """

    def __init__(self, servers: Any, **options: Any) -> None:
        self._cache = AsyncCache(servers, **options)

    async def __call__(self) -> AsyncCache:
        """The cache: ``Depends(caching)``."""
        return self._cache

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Any) -> AsyncIterator[None]:
        """``FastAPI(lifespan=caching.lifespan)``: the connections are closed when the application ends. In a lifespan of your own::

            async with caching.lifespan(app):
                yield
        """
        try:
            yield
        finally:
            await self.close()

    async def close(self) -> None:
        """Closes the connections of this event loop. The next use opens them again."""
        await self._cache.close()

    def response(
        self,
        key: str,
        *,
        ttl: Any,
        tags: Union[str, Iterable[str]] = (),
        compute_time: Any = 2.0,
        wait: Any = None,
        grace: Any = None,
        when_unavailable: Optional[str] = None,
        on_not_stored: Any = None,
    ) -> Callable[[Callable[..., Any]], Callable[..., Awaitable[Any]]]:
        """Caches the response of a path operation: of many requests at the same time one runs the function, in all processes. Put it below
        the route's own decorator.

        ``key`` and ``tags`` have the parameters of the function in braces, as those of ``cached`` have: ``"item:{item_id}"``,
        ``"cart:{user.id}"``. **Whatever the response depends on has to be in the key**: who asks, too. Dependencies run for each request,
        before the cache is asked, so that what they refuse is never served from it.

        What is stored is the response that FastAPI makes of what the function returns, with the ``response_model`` and the options of the
        route: the body, the status, and the headers that the function has set. Headers that dependencies set are those of each request. A
        function may return a ``Response``, too. Not stored, so that each request runs the function, are exceptions such as
        ``HTTPException``, a status of 400 or more, a response to which the function sets a cookie, ``Cache-Control: no-store``, and a
        response that is streamed or a file.

        ``ttl``, ``compute_time``, ``wait``, ``grace``, ``when_unavailable`` and ``on_not_stored`` are those of ``get_or_compute``; a
        request whose wait has passed runs the function itself, as do those that wait for a computation that brings nothing to store.
        """
        names = [tags] if isinstance(tags, str) else list(tags)
        try:
            self._cache._codec.encode(b"")
        except ValueError as error:
            raise UsageError("responses are bytes, which the serializer of this Caching does not take") from error
        how = self._cache._options(
            compute_time, compute_time if wait is None else wait, grace, when_unavailable, on_not_stored
        )
        if how.busy is not None:
            raise UsageError("wait: a duration here, not a function")
        expiration(ttl)

        def decorate(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
            if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
                raise UsageError(f"{function.__name__} is a generator, whose response is a stream: it cannot be cached")
            call = call_of(function)
            make_key = compile_key(key, call, 0)
            make_tags = compile_tags(names, call)
            is_async = inspect.iscoroutinefunction(function)

            @functools.wraps(function)
            async def cached(*args: Any, **kwargs: Any) -> Any:
                request: Optional[_Request] = kwargs.pop(_PARAMETER, None)
                cache = self._cache
                subject = cache._calls.subject(make_key(*args, **kwargs), make_tags(*args, **kwargs) if make_tags else ())
                made: List[Any] = []

                async def compute() -> Any:
                    value = await function(*args, **kwargs) if is_async else await run_in_threadpool(function, *args, **kwargs)
                    if request is None:
                        if isinstance(value, Response):
                            raise TypeError(f"{function.__name__} returns a {type(value).__name__}, which is cached for requests only")
                        return jsonable_encoder(value)
                    stored = await request.stored(value)
                    made.append(value if stored is None or isinstance(value, Response) else request.response(stored))
                    return skip(None) if stored is None else stored

                outcome = await cache._run(_once.get_or_compute(cache._herd, subject, compute, expiration(ttl), how))
                if made:
                    return made[0]
                if not outcome.has_value:
                    value = await compute()
                    return made[0] if made else value
                if request is None:
                    return _content_of(outcome.value)
                return await request.found(outcome.value)

            cached.__signature__ = _signature(function)  # type: ignore[attr-defined]
            return cached

        return decorate


class _Request:
    """A request whose response is cached."""

    def __init__(self, request: Request, response: Response) -> None:
        self._request = request
        self._route = _route_of(request)
        self._given = response
        """To which dependencies and the function set headers and the status."""
        self._headers = list(response.headers.raw)
        self._status = response.status_code

    async def stored(self, value: Any) -> Optional[bytes]:
        """What the cache stores of what the function has returned. None: it is not cached."""
        if isinstance(value, Response):
            if not hasattr(value, "body") or hasattr(value, "body_iterator") or isinstance(value, FileResponse):
                return None
            return _pack(value, value.headers.raw, {"status": value.status_code, "is_set": True, "replaces": None})
        given = self._given.headers.raw
        added = [header for header in given if header not in self._headers]
        replaced = [name.decode("latin-1") for name, text in self._headers if (name, text) not in given]
        status = self._given.status_code if self._given.status_code != self._status else None
        response = await self._rendered(value, status)
        head = {"status": response.status_code, "is_set": status is not None, "replaces": replaced}
        return _pack(response, [*response.headers.raw, *added], head)

    async def found(self, value: Any) -> Response:
        """The response of what is in the cache: a response that was stored here, or a plain value, such as another program stores."""
        if isinstance(value, bytes) and value.startswith(_MAGIC):
            return self.response(value)
        response = await self._rendered(value, self._status)
        response.headers.raw.extend(self._headers)
        return response

    def response(self, stored: bytes) -> Response:
        """The response, with the headers that the dependencies of this request have set."""
        head, body = _unpack(stored)
        status = head["status"] if head["is_set"] or self._status is None else self._status
        response = Response(body, status)
        headers = [(name.encode("latin-1"), text.encode("latin-1")) for name, text in head["headers"]]
        if head["replaces"] is not None:  # as in FastAPI, a Response that the function has made gets none
            headers += [header for header in self._headers if header[0].decode("latin-1") not in head["replaces"]]
        response.raw_headers = headers
        return response

    async def _rendered(self, value: Any, status: Optional[int]) -> Response:
        """The response that the route makes of what its function returns."""
        scope = {**self._request.scope, _PARAMETER: (value, status)}
        return await _handler_of(self._route)(Request(scope, self._request.receive))


def _route_of(request: Request) -> Any:
    """What FastAPI knows of the path: its route, or that as a router has included it."""
    route = request.scope["route"]
    included = request.scope.get("fastapi")
    context = included.get("effective_route_context") if isinstance(included, dict) else None
    return context if getattr(context, "original_route", None) is route else route


def _handler_of(route: Any) -> Callable[[Request], Awaitable[Response]]:
    """Makes responses of values: that of a path operation with the options of this route, which returns the value that its request has."""
    handler: Optional[Callable[[Request], Awaitable[Response]]] = vars(route).get(_HANDLER)
    if handler is None:

        async def returns(request: Request, response: Response) -> Any:
            value, status = request.scope[_PARAMETER]
            if status is not None:
                response.status_code = status
            return value

        returns.__name__ = getattr(route.endpoint, "__name__", "endpoint")
        made = APIRoute(
            "/",
            returns,
            response_model=route.response_model,
            status_code=route.status_code,
            response_class=route.response_class,
            **{name: getattr(route, name) for name in _OPTIONS},
        )
        handler = made.get_route_handler()
        setattr(route, _HANDLER, handler)
    return handler


async def _context(request: Request, response: Response) -> _Request:
    return _Request(request, response)


def _pack(response: Response, headers: Iterable[Tuple[bytes, bytes]], head: Dict[str, Any]) -> Optional[bytes]:
    """A response as bytes; None: it is not cached. ``head``: its status, whether the function has set that, and which headers of
    dependencies the function has replaced (None: all)."""
    named = [(name.decode("latin-1"), text.decode("latin-1")) for name, text in headers]
    refuses = any(name.lower() == "cache-control" and "no-store" in text.lower() for name, text in named)
    if head["status"] >= 400 or refuses or any(name.lower() == "set-cookie" for name, _ in named):
        return None
    return b"%b%b\n%b" % (_MAGIC, json.dumps({**head, "headers": named}).encode(), bytes(response.body))


def _unpack(stored: bytes) -> Tuple[Dict[str, Any], bytes]:
    head, _, body = stored[len(_MAGIC) :].partition(b"\n")
    return json.loads(head), body


def _content_of(value: Any) -> Any:
    """What is in the cache for a caller of the function itself."""
    if not isinstance(value, bytes) or not value.startswith(_MAGIC):
        return value
    head, body = _unpack(value)
    is_json = any(name == "content-type" and text.startswith("application/json") for name, text in head["headers"])
    return json.loads(body) if is_json else body


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """The function's signature, with annotations that are texts read where it was written: FastAPI would read them in this module; and
    with a dependency of its own."""
    signature = inspect.signature(function)
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError:
        hints = {}
    parameters = [
        p.replace(annotation=hints.get(p.name, p.annotation)) if isinstance(p.annotation, str) else p
        for p in signature.parameters.values()
    ]
    last = [parameters.pop()] if parameters and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD else []
    own = inspect.Parameter(_PARAMETER, inspect.Parameter.KEYWORD_ONLY, default=Depends(_context), annotation=_Request)
    parameters = [*parameters, own, *last]
    return signature.replace(parameters=parameters, return_annotation=hints.get("return", signature.return_annotation))
