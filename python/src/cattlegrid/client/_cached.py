"""The decorator ``cached``: a function whose results are in the cache, under keys made from its arguments.

What both kinds of function share is :class:`_Shared`; the rest is there twice, blocking and for asyncio.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import warnings
from contextvars import ContextVar
from typing import (
    TYPE_CHECKING,
    Any,
    Awaitable,
    Callable,
    Coroutine,
    Dict,
    Generic,
    Iterable,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Type,
    TypeVar,
    Union,
    cast,
    overload,
)

from . import _outcome as o
from ._base import MISSING, ask_head_of
from ._errors import CacheError, UsageError
from ._keys import Key, key_bytes
from ._machine import Ending, terms
from ._options import Duration, Ttl, expiration
from ._template import call_of, compile_key, compile_tags
from ._wire import ASK, Command, Reply

R = TypeVar("R")
T = TypeVar("T")

AT_A_TIME = 16
"""Computations of one ``get_many`` under asyncio that run at the same time."""

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    from ._async_cache import AsyncCache
    from ._cache import Cache

    P = ParamSpec("P")
    Q = ParamSpec("Q")

    class _Typed(Generic[P, R]):
        pass

else:
    # Names only: subscripts mean nothing to this class.
    P = Q = TypeVar("P")

    class _Typed:
        def __class_getitem__(cls, item: Any) -> Any:
            return cls


class BusyError(CacheError):
    """Another client computes the value of a cached function, and it was not there when the wait had passed.
    :attr:`key` names it."""

    def __init__(self, key: str) -> None:
        super().__init__(f"{key}: another client computes it, and the wait has passed")
        self.key = key


class Last(NamedTuple):
    """What the last call of a cached function by this thread or task has brought."""

    outcome: Optional[str] = None
    """``"hit"``, ``"stale"``, ``"computed"``, ``"waited"``, ``"busy"`` or ``"failed"``; of many keys with different
    ones ``"mixed"``. None: there was no call."""
    key: Optional[str] = None
    stored: bool = False
    """Whether a computed value is in the cache."""
    why: Optional[o.NotStored] = None
    """Why it is not."""
    outcomes: Tuple[str, ...] = ()
    """Those of ``get_many``, in the order of the calls."""


class Settings(NamedTuple):
    """What is the same for all calls of a cached function."""

    ttl: Ttl = 0
    grace: Optional[Duration] = None
    compute_time: Optional[Duration] = None
    wait: Any = None
    tags: Tuple[str, ...] = ()
    negative_ttl: Ttl = None
    on_not_stored: Optional[Callable[[Any, o.NotStored], Any]] = None
    when_unavailable: Optional[str] = None

    def compute_options(self) -> Dict[str, Any]:
        """The options of ``get_or_compute``."""
        options: Dict[str, Any] = {"ttl": self.ttl, "outcome": True}
        for name in ("grace", "compute_time", "wait", "on_not_stored", "when_unavailable"):
            value = getattr(self, name)
            if value is not None:
                options[name] = value
        return options


KeyOption = Union[str, Callable[..., str]]


class _Shared(_Typed[P, R]):
    """A cached function, as far as it is the same blocking and for asyncio."""

    __wrapped__: Callable[P, Any]

    def __init__(self, cache: Any, function: Any, key: KeyOption, settings: Settings) -> None:
        self._binds = "self"
        if isinstance(function, (classmethod, staticmethod)):
            self._binds = "cls" if isinstance(function, classmethod) else ""
            function = function.__func__
        if not callable(function):
            raise UsageError(f"a cached function is a function, not {function!r}")
        self._cache = cache
        self._function: Callable[..., Any] = function
        self._settings = settings
        self._negative = settings.negative_ttl is not None
        call = call_of(function)
        prefix = len(cache.prefix.encode() if isinstance(cache.prefix, str) else cache.prefix)
        self._make_key = key if callable(key) else compile_key(key, call, prefix)
        self._make_tags = compile_tags(settings.tags, call)
        self._options = settings.compute_options()
        self._last: ContextVar[Tuple[Any, ...]] = ContextVar("cattlegrid.last", default=())
        functools.update_wrapper(self, function)  # type: ignore[arg-type]
        if isinstance(key, str):
            _warn_of_same(cache, key, function)

    def __repr__(self) -> str:
        return f"<cached {getattr(self, '__qualname__', self._function)!s}>"

    def __reduce__(self) -> str:
        # By name, as functions are.
        return cast(str, self.__qualname__)  # type: ignore[attr-defined]

    @property
    def last(self) -> Last:
        """What the last call by this thread or task has brought."""
        return Last(*self._last.get())

    def key(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """The key of this call, without the prefix of the cache."""
        return cast(str, self._make_key(*args, **kwargs))

    def tags(self, *args: P.args, **kwargs: P.kwargs) -> Tuple[str, ...]:
        """The tags of this call's value."""
        return () if self._make_tags is None else cast("Tuple[str, ...]", self._make_tags(*args, **kwargs))

    def _name(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        """The key with its tags."""
        key = self._make_key(*args, **kwargs)
        return key if self._make_tags is None else Key(key, self._make_tags(*args, **kwargs))

    def _answer(self, value: Any) -> Any:
        """What a computation stores of what the function has returned."""
        if self._negative and value is None:
            return o.Negative(self._settings.negative_ttl, None)
        return value

    def _ended(self, name: Any, outcome: o.Outcome[Any]) -> Any:
        """Notes an outcome, and is its value."""
        kind = outcome.kind
        key = str(name) if type(name) is Key else name
        self._last.set(Last(kind, key, outcome.stored, outcome.why))
        if kind == o.BUSY:
            raise BusyError(key)
        return outcome.value

    def _failed(self, name: Any) -> None:
        self._last.set(Last(o.FAILED, str(name)))

    def _names(self, calls: Iterable[Any]) -> Tuple[List[Any], Dict[Any, Tuple[Any, ...]]]:
        """The keys of many calls, in their order, and the arguments of each key."""
        names: List[Any] = []
        arguments: Dict[Any, Tuple[Any, ...]] = {}
        for call in calls:
            args = call if isinstance(call, tuple) else (call,)
            name = self._name(args, {})
            names.append(name)
            arguments.setdefault(name, args)
        return names, arguments

    def _ended_many(
        self, names: Sequence[Any], found: Dict[Any, o.Outcome[Any]], failures: List[BaseException]
    ) -> List[Any]:
        """The values of many calls."""
        kinds = tuple(found[name].kind for name in names)
        mixed = kinds[0] if len(set(kinds)) == 1 else "mixed" if kinds else None
        self._last.set(Last(mixed, outcomes=kinds))
        if failures:
            raise failures[0]
        for name in names:
            outcome = found[name]
            if outcome.kind == o.FAILED:
                raise cast(BaseException, outcome.error)
            if outcome.kind == o.BUSY:
                raise BusyError(str(name))
        return [found[name].value for name in names]


def _unwrapped(value: Any) -> Any:
    return value.value if isinstance(value, (o.Skip, o.Negative)) else value


_TEMPLATES = "_cattlegrid_templates"


def _warn_of_same(cache: Any, key: str, function: Any) -> None:
    """Warns if another function of the cache has the same template: both would read each other's values."""
    known: Dict[str, str] = cache.__dict__.setdefault(_TEMPLATES, {}) if hasattr(cache, "__dict__") else {}
    name = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', '?')}"
    other = known.setdefault(key, name)
    if other != name and "<locals>" not in name and "<lambda>" not in name:
        warnings.warn(f"{name} and {other} have the same key {key!r}: they share their values", stacklevel=5)


class CachedFunction(_Shared[P, R]):
    """A function whose results are in the cache, made by :meth:`Cache.cached`."""

    def __init__(self, cache: Any, function: Any, key: KeyOption, settings: Settings) -> None:
        super().__init__(cache, function, key, settings)
        self._how = cache._options(
            settings.compute_time, settings.wait, settings.grace, settings.when_unavailable, settings.on_not_stored
        )
        self._head = ask_head_of(self._how.lock_ms)
        # A key that was made from a template needs no check. Around traced calls there are spans.
        self._is_direct = isinstance(key, str) and "get_or_compute" not in vars(cache)
        self._prefix: bytes = cache._prefix

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if not self._is_direct:
            return self._called(args, kwargs)
        key = self._make_key(*args, **kwargs)
        cache = self._cache
        data = self._prefix + key.encode()
        transport = cache._transport
        scope = transport.scope()
        reply = transport.one(Command(ASK, data, self._head))
        if type(reply) is Reply:
            value = cache._hit(reply)
            if value is not MISSING:
                cache.metrics.outcome(data, o.HIT)
                self._last.set((o.HIT, key))
                return cast(R, value)
        return self._missed(key, args, kwargs, (reply, scope))

    def _missed(self, key: str, args: Any, kwargs: Any, first: Any) -> R:
        """What is not plainly a hit."""
        cache = self._cache
        try:
            name = key if self._make_tags is None else Key(key, self._make_tags(*args, **kwargs))
            subject = cache._calls.subject(name, ())
        except BaseException:
            self._give_back(key, first[0])
            raise
        try:
            machine = cache._herd.get_or_compute(
                subject,
                lambda: self._answer(self._function(*args, **kwargs)),
                expiration(self._settings.ttl),
                self._how,
                first,
            )
            outcome = cache._run(machine)
        except BaseException:
            self._failed(name)
            raise
        return cast(R, self._ended(name, outcome))

    def _give_back(self, key: str, reply: Any) -> None:
        """The question may have brought a lease, and there are no tags to compute with."""
        if type(reply) is Reply and reply.won:
            cache = self._cache
            found = cache._herd.asker.judge(cache._calls.subject(key, ()), reply, terms(self._how.lock_ms))
            cache._run(cache._herd.asker.settle([(found.grant, Ending())]))

    def _called(self, args: Any, kwargs: Any) -> R:
        name = self._name(args, kwargs)
        try:
            outcome = self._cache.get_or_compute(
                name, lambda: self._answer(self._function(*args, **kwargs)), **self._options
            )
        except BaseException:
            self._failed(name)
            raise
        return cast(R, self._ended(name, outcome))

    def refresh(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Computes the value now, though there is one, and stores it for all. Others get the old value meanwhile. If
        another client computes it already, its value is waited for."""
        name = self._name(args, kwargs)
        try:
            outcome = self._cache.refresh(name, lambda: self._answer(self._function(*args, **kwargs)), **self._options)
        except BaseException:
            self._failed(name)
            raise
        return cast(R, self._ended(name, outcome))

    def forget(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Deletes the value of this call: whether there was one. A value that is being computed is not stored."""
        return cast(bool, self._cache.delete(self._make_key(*args, **kwargs)))

    def get_many(self, calls: Iterable[Any]) -> List[R]:
        """The values of many calls, in their order: each is a tuple of positional arguments, or the only argument. The
        servers are asked once for all; what is missing is computed one after the other, and stored together. If the
        function fails for some of them, the others are stored, and the first failure is raised."""
        names, arguments = self._names(calls)
        failures: List[BaseException] = []

        def compute(missing: Sequence[Any]) -> Dict[Any, Any]:
            values = {}
            for name in missing:
                try:
                    values[name] = self._answer(self._function(*arguments[name]))
                except Exception as error:
                    failures.append(error)
            return values

        if not names:
            return []
        found = self._cache.get_or_compute_many(list(arguments), compute, **self._options)
        return self._ended_many(names, found, failures)

    # Type checkers see through classmethod and staticmethod below ``cached``: a first argument says which it is.
    @overload
    def __get__(  # type: ignore[misc]
        self: Callable[Concatenate[Type[T], Q], R], instance: None, owner: Type[T]
    ) -> BoundFunction[Q, R]: ...

    @overload
    def __get__(self, instance: None, owner: Any = None) -> CachedFunction[P, R]: ...

    @overload
    def __get__(  # type: ignore[misc]
        self: Callable[Concatenate[Type[T], Q], R], instance: T, owner: Any = None
    ) -> BoundFunction[Q, R]: ...

    @overload
    def __get__(
        self: Callable[Concatenate[T, Q], R], instance: T, owner: Any = None
    ) -> BoundFunction[Q, R]: ...

    @overload
    def __get__(self, instance: object, owner: Any = None) -> CachedFunction[P, R]: ...

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        bound = _bound_to(self, instance, owner)
        return self if bound is None else BoundFunction(self, bound[0])


class AsyncCachedFunction(_Shared[P, R]):
    """An ``async def`` whose results are in the cache, made by :meth:`AsyncCache.cached`."""

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        name = self._name(args, kwargs)

        async def compute() -> Any:
            return self._answer(await self._function(*args, **kwargs))

        try:
            outcome = await self._cache.get_or_compute(name, compute, **self._options)
        except BaseException:
            self._failed(name)
            raise
        return cast(R, self._ended(name, outcome))

    async def refresh(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Computes the value now, though there is one, and stores it for all. Others get the old value meanwhile. If
        another client computes it already, its value is waited for."""
        name = self._name(args, kwargs)

        async def compute() -> Any:
            return self._answer(await self._function(*args, **kwargs))

        try:
            outcome = await self._cache.refresh(name, compute, **self._options)
        except BaseException:
            self._failed(name)
            raise
        return cast(R, self._ended(name, outcome))

    async def forget(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Deletes the value of this call: whether there was one. A value that is being computed is not stored."""
        return cast(bool, await self._cache.delete(self._make_key(*args, **kwargs)))

    async def get_many(self, calls: Iterable[Any]) -> List[R]:
        """The values of many calls, in their order: each is a tuple of positional arguments, or the only argument. The
        servers are asked once for all; what is missing is computed, up to 16 at a time, and stored together. If the
        function fails for some of them, the others are stored, and the first failure is raised."""
        names, arguments = self._names(calls)
        failures: List[BaseException] = []

        async def compute(missing: Sequence[Any]) -> Dict[Any, Any]:
            values: Dict[Any, Any] = {}
            rest = iter(missing)

            async def work() -> None:
                for name in rest:
                    try:
                        values[name] = self._answer(await self._function(*arguments[name]))
                    except Exception as error:
                        failures.append(error)

            await asyncio.gather(*(work() for _ in range(min(AT_A_TIME, len(missing)))))
            return values

        if not names:
            return []
        found = await self._cache.get_or_compute_many(list(arguments), compute, **self._options)
        return self._ended_many(names, found, failures)

    # Type checkers see through classmethod and staticmethod below ``cached``: a first argument says which it is.
    @overload
    def __get__(  # type: ignore[misc]
        self: Callable[Concatenate[Type[T], Q], Coroutine[Any, Any, R]], instance: None, owner: Type[T]
    ) -> AsyncBoundFunction[Q, R]: ...

    @overload
    def __get__(self, instance: None, owner: Any = None) -> AsyncCachedFunction[P, R]: ...

    @overload
    def __get__(  # type: ignore[misc]
        self: Callable[Concatenate[Type[T], Q], Coroutine[Any, Any, R]], instance: T, owner: Any = None
    ) -> AsyncBoundFunction[Q, R]: ...

    @overload
    def __get__(
        self: Callable[Concatenate[T, Q], Coroutine[Any, Any, R]], instance: T, owner: Any = None
    ) -> AsyncBoundFunction[Q, R]: ...

    @overload
    def __get__(self, instance: object, owner: Any = None) -> AsyncCachedFunction[P, R]: ...

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        bound = _bound_to(self, instance, owner)
        return self if bound is None else AsyncBoundFunction(self, bound[0])


def _bound_to(shared: _Shared[Any, Any], instance: Any, owner: Any) -> Optional[Tuple[Any]]:
    """The first argument of a method; None: there is none."""
    binds = shared._binds
    if binds == "cls":
        return (type(instance) if owner is None else owner,)
    return None if instance is None or not binds else (instance,)


class _Bound(_Typed[P, R]):
    """A cached method of an object or class."""

    def __init__(self, cached: Any, instance: Any) -> None:
        self._cached = cached
        self.__self__ = instance
        self.__func__ = cached
        self.__wrapped__ = functools.partial(cached._function, instance)
        self.__name__: str = getattr(cached, "__name__", "cached")
        self.__doc__ = getattr(cached, "__doc__", None)

    def __repr__(self) -> str:
        return f"<bound {self._cached!r} of {self.__self__!r}>"

    def __reduce__(self) -> Tuple[Any, ...]:
        # As a method is: its object, and its name there.
        return getattr, (self.__self__, self.__name__)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Bound) and other._cached is self._cached and other.__self__ is self.__self__

    def __hash__(self) -> int:
        return hash((id(self._cached), id(self.__self__)))

    @property
    def last(self) -> Last:
        """See :attr:`CachedFunction.last`: of the method, whatever its object."""
        return cast(Last, self._cached.last)

    def key(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """See :meth:`CachedFunction.key`."""
        return cast(str, self._cached.key(self.__self__, *args, **kwargs))

    def tags(self, *args: P.args, **kwargs: P.kwargs) -> Tuple[str, ...]:
        """See :meth:`CachedFunction.tags`."""
        return cast("Tuple[str, ...]", self._cached.tags(self.__self__, *args, **kwargs))

    def _calls(self, calls: Iterable[Any]) -> List[Tuple[Any, ...]]:
        return [(self.__self__, *(call if isinstance(call, tuple) else (call,))) for call in calls]


class BoundFunction(_Bound[P, R]):
    """A cached method of an object or class."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return cast(R, self._cached(self.__self__, *args, **kwargs))

    def refresh(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """See :meth:`CachedFunction.refresh`."""
        return cast(R, self._cached.refresh(self.__self__, *args, **kwargs))

    def forget(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """See :meth:`CachedFunction.forget`."""
        return cast(bool, self._cached.forget(self.__self__, *args, **kwargs))

    def get_many(self, calls: Iterable[Any]) -> List[R]:
        """See :meth:`CachedFunction.get_many`: without the object."""
        return cast("List[R]", self._cached.get_many(self._calls(calls)))


class AsyncBoundFunction(_Bound[P, R]):
    """A cached ``async`` method of an object or class."""

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return cast(R, await self._cached(self.__self__, *args, **kwargs))

    async def refresh(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """See :meth:`AsyncCachedFunction.refresh`."""
        return cast(R, await self._cached.refresh(self.__self__, *args, **kwargs))

    async def forget(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """See :meth:`AsyncCachedFunction.forget`."""
        return cast(bool, await self._cached.forget(self.__self__, *args, **kwargs))

    async def get_many(self, calls: Iterable[Any]) -> List[R]:
        """See :meth:`AsyncCachedFunction.get_many`: without the object."""
        return cast("List[R]", await self._cached.get_many(self._calls(calls)))


def is_async(function: Any) -> bool:
    """Whether this is an ``async def``, or a method that is one."""
    if isinstance(function, (classmethod, staticmethod)):
        function = function.__func__
    while isinstance(function, functools.partial):
        function = function.func
    if not callable(function):
        return False
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _check_generator(function: Any) -> None:
    """Raises :class:`UsageError` for a generator."""
    function = getattr(function, "__func__", function)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(f"{function!r} is a generator, which cannot be cached: return a list")


def cached(cache: Cache, key: KeyOption, settings: Settings) -> Callable[[Callable[P, o.Computed[R]]], CachedFunction[P, R]]:
    """The decorator of :meth:`Cache.cached`."""

    def decorate(function: Callable[P, o.Computed[R]]) -> CachedFunction[P, R]:
        _check_generator(function)
        if is_async(function):
            raise UsageError(f"{function!r} is an async def: use AsyncCache")
        return CachedFunction(cache, function, key, settings)

    return decorate


def async_cached(
    cache: AsyncCache, key: KeyOption, settings: Settings
) -> Callable[[Callable[P, Awaitable[o.Computed[R]]]], AsyncCachedFunction[P, R]]:
    """The decorator of :meth:`AsyncCache.cached`."""

    def decorate(function: Callable[P, Awaitable[o.Computed[R]]]) -> AsyncCachedFunction[P, R]:
        _check_generator(function)
        if not is_async(function):
            raise UsageError(f"{function!r} is no async def: use Cache")
        return AsyncCachedFunction(cache, function, key, settings)

    return decorate


__all__ = ["AsyncCachedFunction", "BusyError", "CachedFunction", "Last", "key_bytes"]
