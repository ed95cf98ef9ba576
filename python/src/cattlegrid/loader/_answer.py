"""What a loader answers: values, that there is none, or errors. Each is checked when it is made."""

import operator

from ..worker._state import JobError
from ._job import raw

TAGS_MAX = 8
TAG_BYTES_MAX = 200
TTL_MAX = (1 << 31) - 1
_BLANKS = bytes(range(33)) + b"\x7f"


class Error(JobError):
    """Raise it to choose what the server is told: one line for people; ``retryable``: trying again may help."""

    def __init__(self, message, retryable=False, *, code="error", detail=""):
        super().__init__(code, message, detail=detail, retryable=retryable)

    def __str__(self):
        return str(self.message)


class Value:
    """A value to store.

    ``data``: bytes-like or ``str``. ``ttl``: whole seconds; 0: no expiry; below 0: given to waiting clients and not kept; ``None``:
    the rule's ``ttl``. ``tags``: up to 8 in addition to those of the rule, each of 1 to 200 bytes without blanks.
    ``flags``: client flags, 0 to 4294967295. ``TypeError`` or ``ValueError`` for anything else.
    """

    __slots__ = ("data", "flags", "tags", "ttl")

    def __init__(self, data, ttl=None, tags=(), flags=0):
        try:
            self.data = raw(data)
        except TypeError:
            raise TypeError(f"a value is bytes or str, not {_kind(data)}; for instance json.dumps(value)") from None
        self.ttl = None if ttl is None else _whole(ttl, "ttl", -TTL_MAX - 1, TTL_MAX)
        self.tags = () if tags == () else _tags(tags)
        self.flags = 0 if flags == 0 and type(flags) is int else _whole(flags, "flags", 0, (1 << 32) - 1)

    def __eq__(self, other):
        if not isinstance(other, Value):
            return NotImplemented
        return (self.data, self.ttl, self.tags, self.flags) == (other.data, other.ttl, other.tags, other.flags)

    __hash__ = None

    def __repr__(self):
        return f"Value({self.data!r}, ttl={self.ttl}, tags={list(self.tags)}, flags={self.flags})"


class NotFound:
    """The answer of :func:`not_found`; ``ttl`` in seconds or ``None``."""

    __slots__ = ("ttl",)

    def __init__(self, ttl=None):
        self.ttl = None if ttl is None else _whole(ttl, "ttl of not_found", 1, TTL_MAX)

    def __eq__(self, other):
        return self.ttl == other.ttl if isinstance(other, NotFound) else NotImplemented

    __hash__ = None

    def __repr__(self):
        return f"not_found(ttl={self.ttl})"


def not_found(ttl=None):
    """The answer that there is no such value: clients get a miss for ``ttl`` whole seconds (from 1), or for the rule's
    ``negative_ttl``, without a further job."""
    return NotFound(ttl)


def answer(result):
    """What a loader returned, as a :class:`Value` or :class:`NotFound`. ``TypeError`` names the fix."""
    if isinstance(result, (Value, NotFound)):
        return result
    if result is None:
        raise TypeError("a loader returned None; return loader.not_found() if there is no such value")
    if result is not_found:
        raise TypeError("a loader returned the function not_found; return loader.not_found()")
    if type(result).__name__ in ("coroutine", "generator", "async_generator"):
        raise TypeError(f"a loader returned a {type(result).__name__}; it is a plain def that returns, or an async def")
    return Value(result)


def parts(result):
    """The parts of a RESULT for what a loader returned."""
    result = answer(result)
    ttl = b"" if result.ttl is None else b"%d" % result.ttl
    if isinstance(result, NotFound):
        return [b"N", ttl]
    return [b"V", result.data, ttl, b"%d" % result.flags if result.flags else b"", *map(raw, result.tags)]


def spread(jobs, results):
    """The results of a batch function, one for each job in order: what a loader may return, or an exception."""
    if isinstance(results, dict):
        return [_of_key(job.key, results) for job in jobs]
    if not isinstance(results, (list, tuple)):
        raise TypeError(f"a batch returns a dict by key, or a list in the order of the jobs, not {_kind(results)}")
    if len(results) != len(jobs):
        raise ValueError(f"a batch of {len(jobs)} jobs returned a list of {len(results)}; return one for each, or a dict by key")
    return results


def _of_key(key, results):
    for known in (key, raw(key)):
        if known in results:
            return results[known]
    return Error(f"the batch returned nothing for the key {key!r}; give keys without a value loader.not_found()")


def _tags(tags):
    if isinstance(tags, (str, bytes, dict)):
        raise TypeError(f"tags is a list, for instance [{tags!r}], not {_kind(tags)}")
    try:
        tags = tuple(tags)
    except TypeError:
        raise TypeError(f"tags is a list of str, not {_kind(tags)}") from None
    if len(tags) > TAGS_MAX:
        raise ValueError(f"a value has at most {TAGS_MAX} tags, not {len(tags)}")
    for tag in tags:
        try:
            data = raw(tag)
        except TypeError:
            raise TypeError(f"a tag is str or bytes, not {_kind(tag)}: {tag!r}") from None
        if not 1 <= len(data) <= TAG_BYTES_MAX:
            raise ValueError(f"a tag has 1 to {TAG_BYTES_MAX} bytes, not {len(data)}: {tag[:40]!r}")
        if data.translate(None, _BLANKS) != data:
            raise ValueError(f"a tag has no blanks and no control characters: {tag!r}")
    return tags


def _whole(number, name, least, most):
    """``number`` as an ``int`` in a range."""
    try:
        if isinstance(number, bool):
            raise TypeError
        number = operator.index(number)
    except TypeError:
        fix = "; int(ttl.total_seconds())" if hasattr(number, "total_seconds") else ""
        fix = f"; int({number!r})" if isinstance(number, float) else fix
        raise TypeError(f"{name} is a whole number, not {_kind(number)}{fix}") from None
    if not least <= number <= most:
        raise ValueError(f"{name} is {least} to {most}, not {number}")
    return number


def _kind(value):
    return "None" if value is None else type(value).__name__
