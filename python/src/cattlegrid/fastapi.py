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
import typing
from typing import Any, AsyncIterator, Awaitable, Callable, Iterable

from fastapi.encoders import jsonable_encoder
from starlette.concurrency import run_in_threadpool

from .client import AsyncCache
from .client._template import call_of, compile_key, compile_tags


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
        tags: Iterable[str] = (),
        compute_time: Any = 2.0,
        wait: Any = None,
        **options: Any,
    ) -> Callable[[Callable[..., Any]], Callable[..., Awaitable[Any]]]:
        """Caches what a path operation returns: of many requests at the same time one runs the function, in all processes. Put it below
        the route's own decorator.

        ``key`` and ``tags`` have the parameters of the function in braces, as those of ``cached`` have: ``"item:{item_id}"``,
        ``"cart:{user.id}"``. **Whatever the response depends on has to be in the key**: who asks, too. Dependencies run for each request,
        before the cache is asked, so that what they refuse is never served from it.

        The value is stored as ``jsonable_encoder`` makes it, and ``response_model`` is applied to hits as well. A function that returns a
        ``Response`` is not possible: TypeError. An exception, such as ``HTTPException``, is not cached. ``options``, ``ttl``,
        ``compute_time`` and ``wait`` are those of ``get_or_compute``; a request whose wait has passed runs the function itself.
        """

        def decorate(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
            call = call_of(function)
            make_key = compile_key(key, call, 0)
            make_tags = compile_tags(list(tags), call)
            is_async = inspect.iscoroutinefunction(function)

            @functools.wraps(function)
            async def cached(*args: Any, **kwargs: Any) -> Any:
                async def compute() -> Any:
                    value = await function(*args, **kwargs) if is_async else await run_in_threadpool(function, *args, **kwargs)
                    if hasattr(value, "body") and hasattr(value, "status_code"):
                        raise TypeError(f"{function.__name__} returns a {type(value).__name__}, which cannot be cached: return the content")
                    return jsonable_encoder(value)

                cache = await self()
                outcome = await cache.get_or_compute(
                    make_key(*args, **kwargs),
                    compute,
                    ttl=ttl,
                    tags=make_tags(*args, **kwargs) if make_tags else (),
                    compute_time=compute_time,
                    wait=compute_time if wait is None else wait,
                    outcome=True,
                    **options,
                )
                return outcome.value if outcome.has_value else await compute()

            cached.__signature__ = _signature(function)  # type: ignore[attr-defined]
            return cached

        return decorate


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """The function's signature, with annotations that are texts read where it was written: FastAPI would read them in this module."""
    signature = inspect.signature(function)
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError:
        return signature
    parameters = [p.replace(annotation=hints.get(p.name, p.annotation)) for p in signature.parameters.values()]
    return signature.replace(parameters=parameters, return_annotation=hints.get("return", signature.return_annotation))
