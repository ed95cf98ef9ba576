"""The requests of a namespacer as commands of the client. No I/O."""

from __future__ import annotations

from typing import Any, Callable, Generator, List, Optional

from cattlegrid.client import CacheError
from cattlegrid.client._calls import Calls
from cattlegrid.client._machine import Batch, Invoke, one
from cattlegrid.client._wire import ADD, CAS, GET, SET, Command, Reply, store

from . import _machine as m

STORED = frozenset(("HD", "STORED"))


def over_cache(
    steps: Generator[m.Request, Any, Any], calls: Calls, acquire: Callable[[], Any], release: Callable[[], Any]
) -> Generator[Any, Any, Any]:
    """The machine of the client that does these steps. ``acquire`` waits for the turn, ``release`` ends it."""
    reply: Any = None
    failure: Optional[BaseException] = None
    has_turn = False
    try:
        while True:
            try:
                request = steps.send(reply) if failure is None else steps.throw(failure)
            except StopIteration as end:
                return end.value
            reply = failure = None
            try:
                if isinstance(request, m.Turn):
                    if not has_turn:
                        yield Invoke(acquire)
                        has_turn = True
                else:
                    reply = yield from _asked(request, calls)
            except CacheError as error:
                failure = error
    finally:
        if has_turn:
            release()


def _asked(request: m.Request, calls: Calls) -> Generator[Any, Any, Any]:
    if isinstance(request, m.HasTags):
        return (yield from calls.has_tags())
    if isinstance(request, m.Invalidate):
        return (yield from calls.invalidate(request.tags, False))
    if isinstance(request, m.Get):
        return _data(one((yield Batch([Command(GET, _key(calls, request.key))]))))
    if isinstance(request, m.Gets):
        reply = one((yield Batch([Command(GET, _key(calls, request.key))])))
        data = _data(reply)
        return None if data is None else (data, reply.cas)
    if isinstance(request, m.GetMany):
        replies = yield Batch([Command(GET, _key(calls, key)) for key in request.keys])
        return [_data(reply) for reply in _checked(replies)]
    if isinstance(request, m.Add):
        return one((yield Batch([store(ADD, _key(calls, request.key), request.data)]))).kind in STORED
    if isinstance(request, m.Cas):
        return one((yield Batch([store(CAS, _key(calls, request.key), request.data, cas=request.cas)]))).kind in STORED
    assert isinstance(request, (m.AddMany, m.SetMany))
    verb = ADD if isinstance(request, m.AddMany) else SET
    replies = yield Batch([store(verb, _key(calls, key), data) for key, data in request.items])
    return [reply.kind in STORED for reply in _checked(replies)]


def _key(calls: Calls, key: str) -> bytes:
    return calls.prefix + key.encode()


def _data(reply: Reply) -> Optional[bytes]:
    return reply.data if reply.kind == "VA" and not (reply.won and not reply.data) else None


def _checked(replies: Any) -> List[Reply]:
    for reply in replies:
        if isinstance(reply, CacheError):
            raise reply
    return list(replies)
