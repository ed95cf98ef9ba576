"""Spans of an observer around the calls that may compute. Without an observer that makes spans the calls are as they
are."""

from __future__ import annotations

import functools
import inspect
from typing import Any, ContextManager, List, Optional

from ._hooks import Observer, log
from ._keys import key_bytes

TRACED = ("get_or_compute", "get_or_compute_many", "fetch_or_compute", "refresh")
"""The calls that have spans."""


def trace_calls(cache: Any, observer: Optional[Observer]) -> None:
    """Puts the spans of this observer around the calls of this cache."""
    if observer is None or not makes_spans(observer):
        return
    for name in TRACED:
        setattr(cache, name, _traced(cache, observer, name))


def makes_spans(observer: Observer) -> bool:
    """Whether the observer, or one of several, makes spans."""
    several = getattr(observer, "observers", None)
    if several is not None:
        return any(makes_spans(each) for each in several)
    return type(observer).span is not Observer.span


def _traced(cache: Any, observer: Observer, name: str) -> Any:
    method = getattr(cache, name)
    prefix = cache._prefix

    def span_of(keys: Any) -> Optional[ContextManager[Any]]:
        try:
            return observer.span(name, _names(keys if name == "get_or_compute_many" else [keys], prefix))
        except Exception:
            log.exception("the observer has failed in span")
            return None

    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def call_async(key: Any, *args: Any, **kwargs: Any) -> Any:
            key = list(key) if name == "get_or_compute_many" else key
            span = span_of(key)
            if span is None:
                return await method(key, *args, **kwargs)
            with span:
                return await method(key, *args, **kwargs)

        return call_async

    @functools.wraps(method)
    def call(key: Any, *args: Any, **kwargs: Any) -> Any:
        key = list(key) if name == "get_or_compute_many" else key
        span = span_of(key)
        if span is None:
            return method(key, *args, **kwargs)
        with span:
            return method(key, *args, **kwargs)

    return call


def _names(keys: List[Any], prefix: bytes) -> List[bytes]:
    return [key_bytes(key[0] if type(key) is tuple else key, prefix) for key in keys]
