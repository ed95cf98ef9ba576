"""Methods of ``Cache`` and ``AsyncCache``: cached functions, and objects of Cattlegrid."""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import (
    TYPE_CHECKING,
    Any,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    List,
    Literal,
    Optional,
    Sequence,
    Set,
    TypeVar,
    Union,
    cast,
    overload,
)

from . import _objects as objects
from . import _outcome as o
from ._cached import AsyncCachedFunction, CachedFunction, KeyOption, Settings, async_cached, cached, is_async
from ._errors import CacheError, UsageError
from ._machine import Batch, Sleep, Wait
from ._objects import Call, Called, LimitSteps, LockLost, LockSteps, QuotaState, QuotaSteps
from ._options import Duration, Ttl, expiration
from ._refresh import refresh
from ._template import call_of, compile_key
from ._wire import CALL, Command

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    from ._calls import Calls

    P = ParamSpec("P")

Window = Union[Duration, str]


def _asked(steps: objects.Steps, calls: Calls) -> Generator[Any, Any, Any]:
    """The machine of the client that makes these calls."""
    reply: Any = None
    prefix = calls.prefix
    try:
        while True:
            try:
                request = steps.send(reply)
            except StopIteration as end:
                return end.value
            if isinstance(request, (Sleep, Wait)):
                reply = yield request
                continue
            names = request.names
            commands = [Command(CALL, prefix + name) for name in names]
            for command, name in zip(commands, names):
                command.route = prefix + objects.route_of(name)
            got = yield Batch(commands)
            reply = [each if isinstance(each, CacheError) else each.data if each.kind == "VA" else None for each in got]
    finally:
        steps.close()


class Quota:
    """A quota of an object server, made by :meth:`Cache.quota`. May be used by many threads."""

    def __init__(self, cache: Any, steps: QuotaSteps) -> None:
        self._cache, self._steps = cache, steps

    def __repr__(self) -> str:
        return f"<quota {self._steps.name}: {self._steps.limit} in {self._steps.window}>"

    def take(self, n: int = 1) -> bool:
        """Whether ``n`` more are granted; false uses nothing. It is never sent twice: after an error it may have been
        counted."""
        return bool(self._cache._run_steps(self._steps.take(n)))

    def peek(self) -> QuotaState:
        """Limit, what is used and left, and the seconds until the window ends. Takes nothing."""
        return cast(QuotaState, self._cache._run_steps(self._steps.peek()))

    def reset(self) -> None:
        """Nothing is used any more."""
        self._cache._run_steps(self._steps.reset())


class AsyncQuota:
    """:class:`Quota` for asyncio."""

    def __init__(self, cache: Any, steps: QuotaSteps) -> None:
        self._cache, self._steps = cache, steps

    def __repr__(self) -> str:
        return f"<quota {self._steps.name}: {self._steps.limit} in {self._steps.window}>"

    async def take(self, n: int = 1) -> bool:
        """See :meth:`Quota.take`."""
        return bool(await self._cache._run_steps(self._steps.take(n)))

    async def peek(self) -> QuotaState:
        """See :meth:`Quota.peek`."""
        return cast(QuotaState, await self._cache._run_steps(self._steps.peek()))

    async def reset(self) -> None:
        """See :meth:`Quota.reset`."""
        await self._cache._run_steps(self._steps.reset())


class _LockState:
    """What a lock is, blocking or not."""

    def __init__(self, cache: Any, steps: LockSteps) -> None:
        self._cache, self._steps = cache, steps

    def __repr__(self) -> str:
        return f"<lock {self._steps.name}, {'taken' if self.is_taken else 'not taken'}>"

    @property
    def fence(self) -> int:
        """The fencing token: it grows from owner to owner. Give it to what the lock protects, which refuses smaller
        numbers than it has seen. Raises :class:`UsageError`: the lock is not taken."""
        if self._steps.fence is None:
            raise UsageError(f"the lock {self._steps.name} is not taken")
        return self._steps.fence

    @property
    def owner(self) -> str:
        """What this object is called by the server: other than all others."""
        return self._steps.owner

    @property
    def is_taken(self) -> bool:
        """Whether this object has taken it, and has not released it. Its time may be over."""
        return self._steps.fence is not None


class Lock(_LockState):
    """A lock of an object server, made by :meth:`Cache.lock`: a context manager whose value is the lock.

    It ends by itself after ``ttl``, so that a process that dies keeps it no longer than that. A holder that works
    longer than ``ttl`` is not stopped: call :meth:`renew`, and pass :attr:`fence` on. Each ``with`` needs its own
    object, and each thread too.
    """

    def acquire(self, wait: Optional[Duration] = None) -> int:
        """Takes the lock, and returns the fencing token. Waits for ``wait``, or for what :meth:`Cache.lock` was told.

        Raises :class:`LockHeld`: another has it, and the wait has passed; :class:`NoObjects`; :class:`UsageError`: this
        object has it.
        """
        fence = cast(int, self._cache._run_steps(self._steps.acquire(wait)))
        self._steps.fence = fence
        return fence

    def renew(self, ttl: Optional[Duration] = None) -> None:
        """The lock lasts for ``ttl`` from now on. Raises :class:`LockLost`: it has ended before."""
        self._cache._run_steps(self._steps.renew(ttl))

    def release(self) -> None:
        """Gives the lock back. Raises :class:`LockLost`: it has ended before, so that another may have had it."""
        self._cache._run_steps(self._steps.release())

    def holder(self) -> Optional[str]:
        """The name of the owner, which may be another; None: it is free."""
        return cast("Optional[str]", self._cache._run_steps(self._steps.holder()))

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if not self.is_taken:
            return
        try:
            self.release()
        except CacheError as failure:
            # What has failed inside is what the caller hears of. Without a failure, it must know that it was not alone.
            if kind is None and isinstance(failure, LockLost):
                raise


_undoing: Set[asyncio.Future[None]] = set()


class AsyncLock(_LockState):
    """:class:`Lock` for asyncio: ``async with``."""

    async def acquire(self, wait: Optional[Duration] = None) -> int:
        """See :meth:`Lock.acquire`. A task that is cancelled here does not keep the lock."""
        try:
            fence = cast(int, await self._cache._run_steps(self._steps.acquire(wait)))
            self._steps.fence = fence
            return fence
        except asyncio.CancelledError:
            # The server may have given it all the same.
            task = asyncio.ensure_future(self._undo())
            _undoing.add(task)
            task.add_done_callback(_undoing.discard)
            raise

    async def _undo(self) -> None:
        try:
            await self._cache._run_steps(self._steps.undo())
        except CacheError:
            return

    async def renew(self, ttl: Optional[Duration] = None) -> None:
        """See :meth:`Lock.renew`."""
        await self._cache._run_steps(self._steps.renew(ttl))

    async def release(self) -> None:
        """See :meth:`Lock.release`."""
        await self._cache._run_steps(self._steps.release())

    async def holder(self) -> Optional[str]:
        """See :meth:`Lock.holder`."""
        return cast("Optional[str]", await self._cache._run_steps(self._steps.holder()))

    async def __aenter__(self) -> AsyncLock:
        await self.acquire()
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        if not self.is_taken:
            return
        try:
            await asyncio.shield(self.release())
        except CacheError as failure:
            if kind is None and isinstance(failure, LockLost):
                raise


class _Limit:
    """What a decorator ``rate_limit`` does, blocking or not."""

    def __init__(self, key: KeyOption, limit: int, window: Window, algorithm: str, when_unavailable: str) -> None:
        if algorithm not in ("window", "sliding"):
            raise UsageError(f"algorithm {algorithm!r}: 'window' or 'sliding'")
        if when_unavailable not in ("fail", "allow"):
            raise UsageError(f"when_unavailable {when_unavailable!r}: 'fail' or 'allow'")
        self._key = key
        self.steps = LimitSteps(limit, window, algorithm == "sliding")
        self._allows = when_unavailable == "allow"

    def make_key(self, function: Any) -> Callable[..., Any]:
        """The function that makes the key of a call. A call's name has the method and the numbers besides it."""
        if isinstance(function, (classmethod, staticmethod)):
            raise UsageError("rate_limit stands below classmethod and staticmethod")
        return self._key if callable(self._key) else compile_key(self._key, call_of(function), 80)

    def passes(self, error: CacheError) -> bool:
        """Whether a call is made although the limit could not be asked for."""
        return self._allows and not isinstance(error, (objects.RateLimited, UsageError, objects.NoObjects))


class CacheMethods:
    """Methods of ``Cache``."""

    _run: Callable[[Any], Any]
    _calls: Any
    _herd: Any
    _options: Any
    _turns: Any

    skip = staticmethod(o.skip)
    """See :func:`skip`: ``return cache.skip(value)``, or ``return cache.skip`` for None."""

    def _run_steps(self, steps: objects.Steps) -> Any:
        return self._run(_asked(steps, self._calls))

    def cached(
        self,
        key: KeyOption,
        *,
        ttl: Ttl = 0,
        grace: Optional[Duration] = None,
        compute_time: Optional[Duration] = None,
        wait: Any = None,
        tags: Iterable[str] = (),
        negative_ttl: Ttl = None,
        on_not_stored: Optional[Callable[[Any, o.NotStored], Any]] = None,
        when_unavailable: Optional[str] = None,
    ) -> Callable[[Callable[P, o.Computed[R]]], CachedFunction[P, R]]:
        """Decorator: the results of a function are in the cache, under keys made from its arguments::

            @cache.cached("page:{user.id}:{id}", ttl="60s", compute_time="2s", tags=["user:{user.id}", "pages"])
            def page(user, id): ...

        ``key`` is a template that names arguments, their attributes and items, or a function of the arguments. What is
        cached when the function returns None: None, as any value, or for ``negative_ttl`` only. It may return
        :func:`skip` or :class:`Negative`. The rest is as for :meth:`get_or_compute`, with one exception: where another
        client computes and the wait has passed, :class:`BusyError` is raised.

        Raises :class:`UsageError` when the function is decorated: the template names no argument of it, or cannot be.
        """
        self._options(compute_time, wait, grace, when_unavailable, on_not_stored)
        settings = _settings(ttl, grace, compute_time, wait, tags, negative_ttl, on_not_stored, when_unavailable)
        return cached(cast(Any, self), key, settings)

    @overload
    def refresh(
        self,
        key: Any,
        fn: Callable[[], o.Computed[R]],
        *,
        ttl: Ttl = 0,
        grace: Optional[Duration] = None,
        compute_time: Optional[Duration] = None,
        wait: Any = None,
        tags: Union[str, Iterable[str]] = (),
        on_not_stored: Optional[Callable[[Any, o.NotStored], Any]] = None,
        when_unavailable: Optional[str] = None,
        outcome: Literal[False] = False,
    ) -> Optional[R]: ...

    @overload
    def refresh(
        self,
        key: Any,
        fn: Callable[[], o.Computed[R]],
        *,
        ttl: Ttl = 0,
        grace: Optional[Duration] = None,
        compute_time: Optional[Duration] = None,
        wait: Any = None,
        tags: Union[str, Iterable[str]] = (),
        on_not_stored: Optional[Callable[[Any, o.NotStored], Any]] = None,
        when_unavailable: Optional[str] = None,
        outcome: Literal[True],
    ) -> o.Outcome[R]: ...

    @overload
    def refresh(
        self,
        key: Any,
        fn: Callable[[], o.Computed[R]],
        *,
        ttl: Ttl = 0,
        grace: Optional[Duration] = None,
        compute_time: Optional[Duration] = None,
        wait: Any = None,
        tags: Union[str, Iterable[str]] = (),
        on_not_stored: Optional[Callable[[Any, o.NotStored], Any]] = None,
        when_unavailable: Optional[str] = None,
        outcome: bool = False,
    ) -> Any: ...

    def refresh(
        self,
        key: Any,
        fn: Callable[[], Any],
        *,
        ttl: Ttl = 0,
        grace: Optional[Duration] = None,
        compute_time: Optional[Duration] = None,
        wait: Any = None,
        tags: Union[str, Iterable[str]] = (),
        on_not_stored: Optional[Callable[[Any, o.NotStored], Any]] = None,
        when_unavailable: Optional[str] = None,
        outcome: bool = False,
    ) -> Any:
        """:meth:`get_or_compute`, as if the value had expired: it is computed now. Others get the old value meanwhile.
        If another client computes it already, its value is waited for, for ``compute_time`` at least; the result is
        None if it has not come by then."""
        how = self._options(compute_time, wait, grace, when_unavailable, on_not_stored)
        machine = refresh(self._herd, self._calls.subject(key, tags), fn, expiration(ttl), how)
        result = self._run(machine)
        return result if outcome else result.value

    def call(self, call: Union[str, bytes, Call]) -> Optional[bytes]:
        """Calls a method of an object of Cattlegrid, once: a name such as ``quota:take:alice:1:100:hour``, or a
        :class:`Call`, which makes names with escapes. None: the reply is a miss, or the server has no objects. Over
        several servers it goes to that of the object.

        Raises :class:`UsageError`: the name is not that of a call; :class:`Refused`, :class:`ServerBusy`: the method
        refuses.
        """
        return cast("Optional[bytes]", self._run_steps(objects.call_one(call)))

    def multi_call(self, object_type: str, method: str, keys: Sequence[str], *args: object) -> List[Called]:
        """Calls the same method of many objects of a type, with the same arguments: one request to each server that has
        any of them, all at once. The outcomes have the order of the keys; errors are in their places."""
        return cast("List[Called]", self._run_steps(objects.call_many(object_type, method, keys, args)))

    def quota(self, name: str, limit: int, window: Window) -> Quota:
        """A quota: ``cache.quota("alice", 100, "hour").take()``. ``window``: ``minute``, ``hour``, ``day``, ``week`` or
        ``month``, which begin on the server's clock, or a length of whole seconds, which begins with the first use. Its
        calls raise :class:`NoObjects` over a server without quotas."""
        return Quota(self, QuotaSteps(name, limit, window))

    def lock(self, name: str, ttl: Duration = 30, wait: Optional[Duration] = None) -> Lock:
        """A lock that one process has at a time: ``with cache.lock("report") as lock: ...``. Callers of one process take
        it in the order in which they came; those of several in any.

        :param ttl: after this time it ends by itself, 1 ms to 366 days.
        :param wait: how long to wait for it; None: until it is free.
        """
        return Lock(self, LockSteps(name, ttl, wait, self._turns))

    def rate_limit(
        self,
        key: KeyOption,
        limit: int,
        window: Window,
        *,
        algorithm: str = "window",
        when_unavailable: str = "fail",
    ) -> Callable[[F], F]:
        """Decorator: a function may be called ``limit`` times in ``window`` for each key; a call beyond that raises
        :class:`RateLimited` with ``retry_after`` and does not reach the function::

            @cache.rate_limit("api:{user.id}", 100, "minute")
            def api(user): ...

        :param key: as for :meth:`cached`.
        :param window: as for :meth:`quota`.
        :param algorithm: ``"window"``: a quota; ``"sliding"``: what was counted in the last ``window``, estimated.
        :param when_unavailable: ``"fail"`` or ``"allow"``, if the server cannot be asked.
        """
        rate = _Limit(key, limit, window, algorithm, when_unavailable)

        def decorate(function: F) -> F:
            if is_async(function):
                raise UsageError(f"{function!r} is an async def: use AsyncCache")
            make_key = rate.make_key(function)

            @functools.wraps(function)
            def limited(*args: Any, **kwargs: Any) -> Any:
                try:
                    self._run_steps(rate.steps.take(make_key(*args, **kwargs)))
                except CacheError as error:
                    if not rate.passes(error):
                        raise
                return function(*args, **kwargs)

            return cast(F, limited)

        return decorate


class AsyncCacheMethods:
    """Methods of ``AsyncCache``."""

    _run: Callable[[Any], Awaitable[Any]]
    _calls: Any
    _herd: Any
    _options: Any
    _turns: Any

    skip = staticmethod(o.skip)
    """See :func:`skip`: ``return cache.skip(value)``, or ``return cache.skip`` for None."""

    async def _run_steps(self, steps: objects.Steps) -> Any:
        return await self._run(_asked(steps, self._calls))

    def cached(
        self,
        key: KeyOption,
        *,
        ttl: Ttl = 0,
        grace: Optional[Duration] = None,
        compute_time: Optional[Duration] = None,
        wait: Any = None,
        tags: Iterable[str] = (),
        negative_ttl: Ttl = None,
        on_not_stored: Optional[Callable[[Any, o.NotStored], Any]] = None,
        when_unavailable: Optional[str] = None,
    ) -> Callable[[Callable[P, Awaitable[o.Computed[R]]]], AsyncCachedFunction[P, R]]:
        """See :meth:`Cache.cached`: of an ``async def``."""
        self._options(compute_time, wait, grace, when_unavailable, on_not_stored)
        settings = _settings(ttl, grace, compute_time, wait, tags, negative_ttl, on_not_stored, when_unavailable)
        return async_cached(cast(Any, self), key, settings)

    @overload
    async def refresh(
        self,
        key: Any,
        fn: Callable[[], Awaitable[o.Computed[R]]],
        *,
        ttl: Ttl = 0,
        grace: Optional[Duration] = None,
        compute_time: Optional[Duration] = None,
        wait: Any = None,
        tags: Union[str, Iterable[str]] = (),
        on_not_stored: Optional[Callable[[Any, o.NotStored], Any]] = None,
        when_unavailable: Optional[str] = None,
        outcome: Literal[False] = False,
    ) -> Optional[R]: ...

    @overload
    async def refresh(
        self,
        key: Any,
        fn: Callable[[], o.Computed[R]],
        *,
        ttl: Ttl = 0,
        grace: Optional[Duration] = None,
        compute_time: Optional[Duration] = None,
        wait: Any = None,
        tags: Union[str, Iterable[str]] = (),
        on_not_stored: Optional[Callable[[Any, o.NotStored], Any]] = None,
        when_unavailable: Optional[str] = None,
        outcome: Literal[False] = False,
    ) -> Optional[R]: ...

    @overload
    async def refresh(
        self,
        key: Any,
        fn: Callable[[], Awaitable[o.Computed[R]]],
        *,
        ttl: Ttl = 0,
        grace: Optional[Duration] = None,
        compute_time: Optional[Duration] = None,
        wait: Any = None,
        tags: Union[str, Iterable[str]] = (),
        on_not_stored: Optional[Callable[[Any, o.NotStored], Any]] = None,
        when_unavailable: Optional[str] = None,
        outcome: Literal[True],
    ) -> o.Outcome[R]: ...

    @overload
    async def refresh(
        self,
        key: Any,
        fn: Callable[[], o.Computed[R]],
        *,
        ttl: Ttl = 0,
        grace: Optional[Duration] = None,
        compute_time: Optional[Duration] = None,
        wait: Any = None,
        tags: Union[str, Iterable[str]] = (),
        on_not_stored: Optional[Callable[[Any, o.NotStored], Any]] = None,
        when_unavailable: Optional[str] = None,
        outcome: Literal[True],
    ) -> o.Outcome[R]: ...

    @overload
    async def refresh(
        self,
        key: Any,
        fn: Callable[[], Any],
        *,
        ttl: Ttl = 0,
        grace: Optional[Duration] = None,
        compute_time: Optional[Duration] = None,
        wait: Any = None,
        tags: Union[str, Iterable[str]] = (),
        on_not_stored: Optional[Callable[[Any, o.NotStored], Any]] = None,
        when_unavailable: Optional[str] = None,
        outcome: bool = False,
    ) -> Any: ...

    async def refresh(
        self,
        key: Any,
        fn: Callable[[], Any],
        *,
        ttl: Ttl = 0,
        grace: Optional[Duration] = None,
        compute_time: Optional[Duration] = None,
        wait: Any = None,
        tags: Union[str, Iterable[str]] = (),
        on_not_stored: Optional[Callable[[Any, o.NotStored], Any]] = None,
        when_unavailable: Optional[str] = None,
        outcome: bool = False,
    ) -> Any:
        """See :meth:`Cache.refresh`."""
        how = self._options(compute_time, wait, grace, when_unavailable, on_not_stored)
        machine = refresh(self._herd, self._calls.subject(key, tags), fn, expiration(ttl), how)
        result = await self._run(machine)
        return result if outcome else result.value

    async def call(self, call: Union[str, bytes, Call]) -> Optional[bytes]:
        """See :meth:`Cache.call`."""
        return cast("Optional[bytes]", await self._run_steps(objects.call_one(call)))

    async def multi_call(self, object_type: str, method: str, keys: Sequence[str], *args: object) -> List[Called]:
        """See :meth:`Cache.multi_call`."""
        return cast("List[Called]", await self._run_steps(objects.call_many(object_type, method, keys, args)))

    def quota(self, name: str, limit: int, window: Window) -> AsyncQuota:
        """See :meth:`Cache.quota`."""
        return AsyncQuota(self, QuotaSteps(name, limit, window))

    def lock(self, name: str, ttl: Duration = 30, wait: Optional[Duration] = None) -> AsyncLock:
        """See :meth:`Cache.lock`: ``async with cache.lock("report") as lock: ...``."""
        return AsyncLock(self, LockSteps(name, ttl, wait, self._turns))

    def rate_limit(
        self,
        key: KeyOption,
        limit: int,
        window: Window,
        *,
        algorithm: str = "window",
        when_unavailable: str = "fail",
    ) -> Callable[[F], F]:
        """See :meth:`Cache.rate_limit`: of an ``async def``."""
        rate = _Limit(key, limit, window, algorithm, when_unavailable)

        def decorate(function: F) -> F:
            if not inspect.iscoroutinefunction(function) and not is_async(function):
                raise UsageError(f"{function!r} is no async def: use Cache")
            make_key = rate.make_key(function)

            @functools.wraps(function)
            async def limited(*args: Any, **kwargs: Any) -> Any:
                try:
                    await self._run_steps(rate.steps.take(make_key(*args, **kwargs)))
                except CacheError as error:
                    if not rate.passes(error):
                        raise
                return await function(*args, **kwargs)

            return cast(F, limited)

        return decorate


def _settings(
    ttl: Ttl,
    grace: Optional[Duration],
    compute_time: Optional[Duration],
    wait: Any,
    tags: Iterable[str],
    negative_ttl: Ttl,
    on_not_stored: Optional[Callable[[Any, o.NotStored], Any]],
    when_unavailable: Optional[str],
) -> Settings:
    if isinstance(tags, str):
        raise UsageError(f"tags {tags!r}: give a list of them")
    expiration(ttl)
    expiration(negative_ttl)
    return Settings(ttl, grace, compute_time, wait, tuple(tags), negative_ttl, on_not_stored, when_unavailable)
