"""Metrics and spans of OpenTelemetry, if the package ``opentelemetry-api`` is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ContextManager, List, Optional

from ._hooks import Observer

if TYPE_CHECKING:
    from ._outcome import NotStored


class OpenTelemetry(Observer):
    """An observer that makes metrics, and a span of each call that may compute::

        cache = Cache("10.0.0.1:11211", observer=OpenTelemetry())

    =========================================  =========  ==================================================
    metric                                     kind       attributes
    =========================================  =========  ==================================================
    ``cattlegrid.client.request.duration``     histogram  ``server.address``, ``db.operation.name``, ``outcome``
    ``cattlegrid.client.computation.duration`` histogram  ``stored``
    ``cattlegrid.client.outcomes``             counter    ``outcome``: ``hit``, ``stale``, ``computed`` ...
    ``cattlegrid.client.not_stored``           counter    ``reason``
    ``cattlegrid.client.connections``          counter    ``server.address``, ``event``
    =========================================  =========  ==================================================

    Durations are seconds. Spans are named after the call, and have ``cattlegrid.key``, or ``cattlegrid.keys``, their
    number; what the program's functions trace is inside them. Without providers those of the program
    (``set_meter_provider``) are used.

    ``keys``: whether spans have the key. Raises ``ImportError`` without OpenTelemetry.
    """

    def __init__(self, meter_provider: Any = None, tracer_provider: Any = None, keys: bool = True) -> None:
        try:
            from opentelemetry import metrics, trace
        except ImportError:
            raise ImportError("OpenTelemetry needs its API: pip install 'cattlegrid[otel]'") from None
        meter = metrics.get_meter("cattlegrid.client", meter_provider=meter_provider)
        self._trace = trace
        self._tracer = trace.get_tracer("cattlegrid.client", tracer_provider=tracer_provider)
        self._keys = keys
        self._requests = meter.create_histogram(
            "cattlegrid.client.request.duration", unit="s", description="Time of a request to a server."
        )
        self._computations = meter.create_histogram(
            "cattlegrid.client.computation.duration", unit="s", description="Time in which a value was computed."
        )
        self._outcomes = meter.create_counter(
            "cattlegrid.client.outcomes", unit="{key}", description="What get_or_compute has brought."
        )
        self._not_stored = meter.create_counter(
            "cattlegrid.client.not_stored", unit="{key}", description="Computed values that are not in the cache."
        )
        self._connections = meter.create_counter(
            "cattlegrid.client.connections", unit="{event}", description="Connections and servers that come and go."
        )

    def request(self, server: str, command: str, seconds: float, outcome: str) -> None:
        attributes = {"server.address": server, "db.operation.name": command, "outcome": outcome}
        self._requests.record(seconds, attributes)

    def connected(self, server: str) -> None:
        self._connections.add(1, {"server.address": server, "event": "connected"})

    def disconnected(self, server: str, message: str) -> None:
        self._connections.add(1, {"server.address": server, "event": "disconnected"})

    def ejected(self, server: str, message: str) -> None:
        self._connections.add(1, {"server.address": server, "event": "ejected"})

    def returned(self, server: str) -> None:
        self._connections.add(1, {"server.address": server, "event": "returned"})

    def computed(self, key: bytes, seconds: float, stored: bool) -> None:
        self._computations.record(seconds, {"stored": stored})

    def not_stored(self, key: bytes, why: NotStored) -> None:
        self._not_stored.add(1, {"reason": why.kind})

    def outcome(self, key: bytes, outcome: Optional[str]) -> None:
        self._outcomes.add(1, {"outcome": outcome or "failed"})
        span = self._trace.get_current_span()
        if getattr(span, "name", None) in ("get_or_compute", "refresh"):
            span.set_attribute("cattlegrid.outcome", outcome or "failed")

    def span(self, name: str, keys: List[bytes]) -> ContextManager[Any]:
        attributes: dict[str, Any] = {"db.system.name": "memcached"}
        if len(keys) != 1:
            attributes["cattlegrid.keys"] = len(keys)
        elif self._keys:
            attributes["cattlegrid.key"] = keys[0].decode("utf-8", "backslashreplace")
        span: ContextManager[Any] = self._tracer.start_as_current_span(name, attributes=attributes)
        return span
