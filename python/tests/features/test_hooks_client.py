"""What a client counts and tells, and OpenTelemetry."""

import threading

import pytest

from cattlegrid.client import Cache, Observer, OpenTelemetry, Statistics, skip
from cattlegrid.client._hooks import Metrics


class Notes(Observer):
    def __init__(self):
        self.told = []

    def request(self, server, command, seconds, outcome):
        assert seconds >= 0 and server
        self.told.append(f"{command} {outcome}")

    def connected(self, server):
        self.told.append("connected")

    def computed(self, key, seconds, stored):
        self.told.append(f"computed {key.decode()} {stored}")

    def not_stored(self, key, why):
        self.told.append(f"not stored {key.decode()} {why.kind}")

    def outcome(self, key, outcome):
        self.told.append(f"outcome {key.decode()} {outcome}")


def test_an_observer_is_told(server):
    notes, more = Notes(), Notes()
    with Cache(server.address, observer=[notes, more]) as cache:
        cache.get_or_compute("a", lambda: 1, ttl=60)
        cache.get_or_compute("a", lambda: 1, ttl=60)
        cache.get_or_compute("b", lambda: skip(1))
        with pytest.raises(KeyError):
            cache.get_or_compute("c", lambda: {}["x"])
        cache.get("a")
        cache.get("absent")
        cache.delete("a")
    assert more.told == notes.told and notes.told[0] == "connected"
    events = [each for each in notes.told if each.split()[0] in ("computed", "outcome", "not")]
    assert events == [
        "computed a True",
        "outcome a computed",
        "outcome a hit",
        "computed b False",
        "not stored b skipped",
        "outcome b computed",
        "computed c False",
        "outcome c None",
    ]
    assert notes.told[-3:] == ["get hit", "get miss", "delete done"]
    counted = cache.statistics()
    assert isinstance(counted, Statistics)
    assert (counted.computations, counted.computed, counted.found, counted.failed) == (3, 2, 1, 1)
    assert (counted.not_stored, counted.not_stored_skipped, counted.connections) == (1, 1, 1)
    assert counted.requests == len([each for each in notes.told if each.split()[0] in ("get", "add", "cas", "delete")])
    assert counted.hits >= 2 and counted.misses >= 2 and counted.errors == 0


def test_an_observer_that_fails_changes_nothing(memcached, caplog):
    class Failing(Observer):
        def outcome(self, key, outcome):
            raise RuntimeError("as told")

        def span(self, name, keys):
            raise RuntimeError("as told")

    with Cache(memcached.address, observer=Failing()) as cache:
        assert cache.get_or_compute("a", lambda: 1) == 1 == cache.get_or_compute("a", lambda: 2)
    assert "the observer has failed in outcome" in caplog.text and "failed in span" in caplog.text


def test_no_increment_is_lost_between_threads():
    metrics = Metrics()

    def work():
        for _ in range(20_000):
            metrics.request("s", "get", 0.0, "hit")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (metrics.statistics().requests, metrics.statistics().hits) == (80_000, 80_000)
    with pytest.raises(TypeError):
        Metrics(observer=print)


def test_near(server):
    """Values in this process end by time only, where another process writes; own writes are seen at once."""
    ours, theirs = Cache(server.address, near="10s"), Cache(server.address)
    ours.set("k", 1)
    assert ours.get("k") == 1 and ours.get("k") == 1 and ours.statistics().near_hits == 1
    theirs.set("k", 2)
    assert ours.get("k") == 1, "by time only"
    assert ours.gets("k")[0] == 2 and ours.get_or_compute("k", lambda: 3) == 2, "these ask the server"
    assert ours.get_many(["k"]) == {"k": 1}
    ours.set("k", 3)
    assert ours.get("k") == 3
    ours.delete("k")
    assert ours.get("k") is None
    short = Cache(server.address, near="300ms")
    theirs.set("k", 4)
    assert short.get("k") == 4
    theirs.set("k", 5)
    assert short.get("k") == 4
    threading.Event().wait(0.35)
    assert short.get("k") == 5


@pytest.fixture
def telemetry():
    sdk = pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    reader, exporter, tracing = InMemoryMetricReader(), InMemorySpanExporter(), TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(exporter))
    assert sdk
    return OpenTelemetry(MeterProvider([reader]), tracing), reader, exporter, tracing


def points(reader):
    found = {}
    for resource in reader.get_metrics_data().resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    name = metric.name.replace("cattlegrid.client.", "")
                    number = getattr(point, "count", None)
                    kept = sorted(item for item in point.attributes.items() if item[0] != "server.address")
                    values = ",".join(str(value) for _, value in kept)
                    found[f"{name} {values}"] = point.value if number is None else number
    return found


def test_metrics_and_spans_of_opentelemetry(server, telemetry, run):
    observer, reader, exporter, tracing = telemetry
    tracer = tracing.get_tracer("program")

    def compute():
        with tracer.start_as_current_span("inside"):
            return 1

    with Cache(server.address, observer=observer) as cache:
        cache.get_or_compute("a", compute)
        cache.get_or_compute("a", compute)
        cache.get_or_compute_many(["a", "b"], lambda keys: [2] * len(keys))

        @cache.cached("page:{n}")
        def page(n):
            return compute()

        page(1)
        page.refresh(1)
    found = points(reader)
    assert found["outcomes hit"] == 2 and found["outcomes computed"] == 4
    assert found["computation.duration True"] == 4 and found["connections connected"] == 1
    assert found["request.duration get,hit"] >= 2
    spans = exporter.get_finished_spans()
    names = [span.name for span in spans]
    calls = ["get_or_compute", "get_or_compute", "get_or_compute_many", "get_or_compute", "refresh"]
    assert [name for name in names if name != "inside"] == calls
    by_id = {span.context.span_id: span for span in spans}
    parents = [by_id[span.parent.span_id].name for span in spans if span.name == "inside"]
    assert parents == ["get_or_compute", "get_or_compute", "refresh"]
    first, second = (span for span in spans if span.attributes.get("cattlegrid.key") == "a")
    assert [span.attributes["cattlegrid.outcome"] for span in (first, second)] == ["computed", "hit"]
    assert next(span for span in spans if span.name == "get_or_compute_many").attributes["cattlegrid.keys"] == 2

    async def program():
        from cattlegrid.client import AsyncCache

        cache = AsyncCache(server.address, observer=observer)

        async def compute_async():
            return compute()

        exporter.clear()
        assert await cache.get_or_compute("c", compute_async) == 1
        await cache.close()

    run(program())
    inside, outside = exporter.get_finished_spans()
    assert (inside.name, outside.name) == ("inside", "get_or_compute")
    assert inside.parent.span_id == outside.context.span_id
