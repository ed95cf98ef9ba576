"""``cache_page`` with tags, where one process computes a page that is missing.

What is cached and under which key is decided by Django's own ``CacheMiddleware``: it is given a cache that takes leases, in place of
the cache itself. Django keeps two items for a page: the names of the headers that its response varies on, and the response. A request
that finds neither has the lease of the first, and gets that of the response when the view has ended and its key is known. What was
invalidated while the view ran is refused with the names, which are delivered with the tags for that reason; what is invalidated from then
on is refused with the response. What is asked of the cache are steps, which a blocking or an asynchronous driver does.

A response that is not cached, such as a response with a cookie, would make those that wait compute one after the other. So ``None`` is
stored for :data:`PASS` seconds in its place, which Django takes for a miss: until then all requests run the view at the same time. If
the view fails nothing is stored, and the requests that wait are told: they run it at the same time, too.
"""

from __future__ import annotations

import inspect
from functools import wraps
from typing import Any, Callable, Dict, Generator, List, Optional, Sequence, Set, Tuple, Union

from django.core.cache import caches
from django.core.exceptions import BadRequest, ImproperlyConfigured, PermissionDenied, SuspiciousOperation
from django.http import Http404, HttpRequest, HttpResponse
from django.http.multipartparser import MultiPartParserError
from django.middleware.cache import CacheMiddleware

from cattlegrid.client import Compute, Hit, Stale
from cattlegrid.client._template import tag_of

from ._backend import _list

Step = Tuple[Any, ...]
"""A method of the cache, its arguments, and its keyword arguments."""
Steps = Generator[Step, Any, Any]

PASS = 10
"""For how long a page that is not cached is computed by every request, in seconds; for the page's own timeout if that is shorter."""
MORE = 60
"""The names of the headers are kept for twice the page's timeout, and at least this many seconds longer than the page."""

Tags = Union[str, Sequence[str], Callable[..., Union[str, Sequence[str]]]]
_ANSWERS = (Http404, PermissionDenied, BadRequest, SuspiciousOperation, MultiPartParserError)
"""What a view raises for an answer with a status below 500."""
_HELD = "_cattlegrid_held"
"""The attribute of a request with the keys whose leases it has."""


def cache_page(
    timeout: Optional[float],
    *,
    cache: Optional[str] = None,
    key_prefix: Optional[str] = None,
    tags: Tags = (),
    compute_time: Any = None,
    wait: Any = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Django's ``cache_page``, with tags and a lease: of many requests for a page that is missing one runs the view.

    ``timeout``, ``cache`` and ``key_prefix`` are those of Django. ``tags``: a text or several, in which ``{name}`` is an argument of the
    view, such as ``"product:{pk}"``, with blanks and control characters percent-encoded; or a function of the request, the response and
    the arguments of the view, which returns the tags. ``compute_time`` and ``wait`` are those of
    :meth:`cattlegrid.django.Cache.get_or_set`. With a ``timeout`` below a second nothing is cached, and the cache is not asked.

    The view can be ``async def``; requests that wait for its page then wait in the event loop.
    """

    def decorate(view: Callable[..., Any]) -> Callable[..., Any]:
        def begin(request: HttpRequest, args: Sequence[Any], kwargs: Dict[str, Any]) -> _Page:
            if not hasattr(request, "META"):
                raise TypeError("cache_page didn't receive an HttpRequest: of a class decorate the method by @method_decorator")
            early = [] if callable(tags) else [tag_of(tag.format(*args, **kwargs)) for tag in _list(tags)]
            held = request.__dict__.setdefault(_HELD, set())
            leases = _Leases(caches[cache or "default"], compute_time, wait, early, cache or "default", held)

            def tags_of(response: HttpResponse) -> List[str]:
                return [str(tag) for tag in _list(tags(request, response, *args, **kwargs))] if callable(tags) else early

            return _Page(leases, request, tags_of, timeout, cache, key_prefix)

        if inspect.iscoroutinefunction(view):

            @wraps(view)
            async def asynchronous(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
                page = begin(request, args, kwargs)
                found = await page.do_async(page.look())
                if found is not None:
                    return found
                try:
                    response = await view(request, *args, **kwargs)
                except BaseException as error:
                    await page.do_async(page.abandon(error))
                    raise
                if _is_lazy(response):
                    page.leases.leave_event_loop()
                    return page.keep_later(response)
                return await page.do_async(page.keep(response))

            return asynchronous

        @wraps(view)
        def synchronous(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            page = begin(request, args, kwargs)
            found = page.do(page.look())
            if found is not None:
                return found
            try:
                response = view(request, *args, **kwargs)
            except BaseException as error:
                page.do(page.abandon(error))
                raise
            return page.keep_later(response) if _is_lazy(response) else page.do(page.keep(response))

        return synchronous

    return decorate


class _Page(CacheMiddleware):
    """A request of a page."""

    def __init__(
        self,
        leases: _Leases,
        request: HttpRequest,
        tags: Callable[[HttpResponse], List[str]],
        timeout: Optional[float],
        alias: Optional[str],
        key_prefix: Optional[str],
    ) -> None:
        super().__init__(_no_response, page_timeout=timeout, cache_alias=alias, key_prefix=key_prefix)
        self.leases = leases
        self._request = request
        self._tags = tags
        self._is_cached = timeout is None or timeout >= 1

    @property
    def cache(self) -> Any:
        """The cache of Django's code."""
        return self.leases

    def look(self) -> Steps:
        """The response, if it is there."""
        if not self._is_cached:
            self._request._cache_update_cache = self._request.method in ("GET", "HEAD")
            return None
        try:
            while True:
                try:
                    response: Optional[HttpResponse] = self.process_request(self._request)
                    break
                except _Unknown as unknown:
                    yield from self.leases.ask(unknown.key)
        except BaseException:
            yield from self.leases.release()
            raise
        if response is not None:
            yield from self.leases.release()
        return response

    def keep(self, response: HttpResponse) -> Steps:
        """Stores a response, if it may be cached."""
        leases = self.leases
        if not self._is_cached:
            return self.process_response(self._request, response)
        try:
            leases.tags = self._tags(response)
            response = self.process_response(self._request, response)
            yield from leases.store()
            if not leases.stored:
                yield from leases.fail() if response.status_code >= 500 else leases.pass_for(self._seconds())
        except Exception:
            yield from leases.fail()
            raise
        finally:
            yield from leases.release()
        return response

    def _seconds(self) -> float:
        return PASS if self.page_timeout is None else min(PASS, self.page_timeout)

    def keep_later(self, response: HttpResponse) -> HttpResponse:
        """Stores a response once it is rendered."""
        render = response.render

        def rendered() -> Any:
            # The response is pickled, which this function cannot be.
            del response.render
            try:
                return render()
            except BaseException as error:
                self.do(self.abandon(error))
                raise

        response.render = rendered
        response.add_post_render_callback(lambda rendered: self.do(self.keep(rendered)))
        return response

    def abandon(self, error: BaseException) -> Steps:
        """The view has raised this. A request that has ended before its view says nothing of the next."""
        try:
            if isinstance(error, _ANSWERS):
                yield from self.leases.pass_for(self._seconds())
            elif isinstance(error, Exception):
                yield from self.leases.fail()
        finally:
            yield from self.leases.release()

    def do(self, steps: Steps) -> Any:
        """Does the steps, blocking."""
        try:
            step = next(steps)
            while True:
                try:
                    result = getattr(self.leases.cache, step[0])(*step[1], **step[2])
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as end:
            return end.value

    async def do_async(self, steps: Steps) -> Any:
        """Does the steps in an event loop."""
        try:
            step = next(steps)
            while True:
                try:
                    result = await getattr(self.leases.cache, f"a{step[0]}")(*step[1], **step[2])
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as end:
            return end.value


class _Unknown(Exception):
    """Django's code asks for a key that was not asked for yet."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


class _Leases:
    """A cache as Django's middleware uses it, for one request: a key that is missing is leased, ``set`` fills it."""

    def __init__(
        self, cache: Any, compute_time: Any, wait: Any, tags: List[str], alias: str, held: Set[Tuple[str, str]]
    ) -> None:
        self.cache = cache
        self._has_leases = hasattr(cache, "fetch")
        # Locks have the tags, as far as they are known: where no rule keeps leases, an invalidation ends the lock.
        self._terms = {"compute_time": compute_time, "wait": wait, "tags": tags, "is_told": True}
        self._alias = alias
        self._held = held
        """The leases of this request, with those of the other ``cache_page`` around the same view."""
        self._is_inner = False
        self._values: Dict[str, Any] = {}
        self._tokens: Dict[str, Any] = {}
        self._old: Dict[str, List[str]] = {}
        self._stores: List[Tuple[str, Any, Optional[float]]] = []
        self.tags: List[str] = []
        self.stored = False

    def get(self, key: str) -> Any:
        """What is known of a key; None: it is missing."""
        if key not in self._values:
            raise _Unknown(key)
        return self._values[key]

    def ask(self, key: str) -> Steps:
        """Asks for a key; afterwards it is known."""
        if not self._has_leases:
            self._values[key] = yield "get", (key,), {}
            return
        if (self._alias, key) in self._held:
            # Of another ``cache_page`` around this one, which has just found it missing and is going to store it.
            self._values[key], self._is_inner = None, True
            return
        fetched = yield "fetch", (key,), self._terms
        self._values[key] = fetched.value if isinstance(fetched, (Hit, Stale)) else None
        if isinstance(fetched, Compute):
            self._take(key, fetched.token)
            # The names of the headers seldom change: with them the page is looked up, which another request may be computing.
            if fetched.stale is not None and isinstance(fetched.stale.value, list):
                self._values[key] = self._old[key] = fetched.stale.value

    def _take(self, key: str, token: Any) -> None:
        self._tokens[key] = token
        self._held.add((self._alias, key))

    def _let(self, key: str) -> Any:
        """The token of a key, which ends now; None: there is none."""
        token = self._tokens.pop(key, None)
        if token is not None:
            self._held.discard((self._alias, key))
        return token

    def set(self, key: str, value: Any, timeout: Optional[float]) -> None:
        """Notes what Django stores: the names of the headers, then the response."""
        self._stores.append((key, value, timeout))

    def store(self) -> Steps:
        """Stores it. A response with tags is not stored if this request had no lease before the view: what was invalidated is not known."""
        if self.tags and not self._has_leases:
            raise ImproperlyConfigured("cache_page got tags, and its cache is not cattlegrid.django.Cache")
        if self._is_inner:
            self.stored = bool(self._stores)
            return
        names = [each for each in self._stores if isinstance(each[1], list)]
        pages = [each for each in self._stores if not isinstance(each[1], list)]
        late = {key for key, _, _ in pages if key not in self._tokens}
        if any(key in self._tokens for key, _, _ in names):
            for key in late:
                yield from self._lease(key)
        is_current = False
        for key, value, timeout in names:
            is_current = yield from self._store_names(key, value, timeout)
        more = {"tags": self.tags} if self.tags else {}
        for key, value, timeout in pages:
            self.stored = True
            token = self._let(key)
            if token is not None and (is_current or key not in late):
                yield "deliver", (token, value, timeout), more
            elif token is not None:
                yield "give_up", (token,), {}
            elif not more:
                yield "set", (key, value, timeout), {}

    def _lease(self, key: str) -> Steps:
        """Takes the lease of a response that is there already. If there is none, another request computes it or has stored it."""
        fetched = yield "fetch", (key,), {**self._terms, "wait": 0}
        if isinstance(fetched, Compute):
            self._take(key, fetched.token)

    def _store_names(self, key: str, names: List[str], timeout: Optional[float]) -> Generator[Step, Any, bool]:
        """Stores the names of the headers: whether this request has had their lease, and nothing was invalidated since."""
        timeout = None if timeout is None else timeout + max(timeout, MORE)
        token = self._let(key)
        is_current = False
        if token is not None:
            is_current = bool((yield "deliver", (token, names, timeout), {"tags": self.tags} if self.tags else {}))
        if token is None or self.tags:
            # Without the tags: the names stay when the response is invalidated.
            yield "set", (key, names, timeout), {}
        return is_current

    def pass_for(self, seconds: float) -> Steps:
        """The requests that wait, and those of the next seconds, compute without a lease."""
        while self._tokens:
            yield "deliver", (self._let(next(iter(self._tokens))), None, seconds), {}

    def fail(self) -> Steps:
        """The requests that wait compute at once; those that come later as if there had been none."""
        for key in [key for key in self._tokens if key not in self._old]:
            yield "fail", (self._let(key),), {}

    def release(self) -> Steps:
        """Gives up what was not stored."""
        while self._tokens:
            key = next(iter(self._tokens))
            token = self._let(key)
            if key in self._old:
                yield "deliver", (token, self._old[key], MORE), {}
            else:
                yield "give_up", (token,), {}

    def leave_event_loop(self) -> None:
        """The tokens are used outside the event loop in which they were got."""
        if self._has_leases:
            self._tokens = {key: self.cache.client.resume(token.save()) for key, token in self._tokens.items()}


def _is_lazy(response: Any) -> bool:
    return hasattr(response, "render") and callable(response.render)


def _no_response(request: HttpRequest) -> HttpResponse:
    raise AssertionError("the view is called by the decorator")
