"""A memcached client that computes each missing value once.

::

    from cattlegrid.client import Cache

    cache = Cache("10.0.0.1:11211,10.0.0.2:11211")
    page = cache.get_or_compute("page:42", lambda: render(42), ttl="60s", compute_time="2s")

It works with any memcached. With Cattlegrid the server holds the callers that wait, notices at once when the computing
process dies, and refuses values that were computed before a delete.
"""

from ._async_cache import AsyncCache, AsyncToken
from ._cache import Cache, Token
from ._cached import AsyncCachedFunction, BusyError, CachedFunction, Last
from ._errors import (
    CacheError,
    ConnectionFailed,
    InvalidKey,
    NoTags,
    ProtocolError,
    Refused,
    ServerBusy,
    ServerFailure,
    SettingsDiffer,
    TimedOut,
    Unavailable,
    UnreadableValue,
    UsageError,
)
from ._hooks import Observer, Statistics
from ._keys import Key
from ._methods import AsyncLock, AsyncQuota, Lock, Quota
from ._near import NearCache
from ._objects import Call, Called, LockHeld, LockLost, NoObjects, QuotaState, RateLimited
from ._otel import OpenTelemetry
from ._outcome import Busy, Compute, Error, Fetched, Hit, Negative, NotStored, Outcome, Skip, Stale, Value, skip
from ._ring import Ejection
from ._serializers import Serializer

__all__ = [
    "AsyncCache",
    "AsyncCachedFunction",
    "AsyncLock",
    "AsyncQuota",
    "AsyncToken",
    "Busy",
    "BusyError",
    "Cache",
    "CacheError",
    "CachedFunction",
    "Call",
    "Called",
    "Compute",
    "ConnectionFailed",
    "Ejection",
    "Error",
    "Fetched",
    "Hit",
    "InvalidKey",
    "Key",
    "Last",
    "Lock",
    "LockHeld",
    "LockLost",
    "NearCache",
    "Negative",
    "NoObjects",
    "NoTags",
    "NotStored",
    "Observer",
    "OpenTelemetry",
    "Outcome",
    "ProtocolError",
    "Quota",
    "QuotaState",
    "RateLimited",
    "Refused",
    "Serializer",
    "ServerBusy",
    "ServerFailure",
    "SettingsDiffer",
    "Skip",
    "Stale",
    "Statistics",
    "TimedOut",
    "Token",
    "Unavailable",
    "UnreadableValue",
    "UsageError",
    "Value",
    "skip",
]
