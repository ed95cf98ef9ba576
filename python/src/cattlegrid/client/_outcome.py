"""What the calls that compute bring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Optional, TypeVar, Union, cast

T = TypeVar("T")

HIT = "hit"
STALE = "stale"
COMPUTED = "computed"
WAITED = "waited"
BUSY = "busy"
NOT_COMPUTED = "not_computed"
FAILED = "failed"

FENCED = "fenced"
LATE = "late"
EXPIRED = "expired"
TOO_LARGE = "too_large"
NO_LEASE = "no_lease"
SKIPPED = "skipped"

_TEXTS = {
    FENCED: "the key was deleted, changed or invalidated while its value was computed",
    LATE: "computing took longer than its compute_time",
    EXPIRED: "the value has expired already",
    TOO_LARGE: "the value is too large for the server",
    NO_LEASE: "the server had no lease for the key",
    FAILED: "the value could not be stored",
    SKIPPED: "the function has returned it with skip",
}


class NotStored:
    """Why a computed value is not in the cache.

    :attr:`kind`: ``"fenced"``: the key was deleted or changed, or a tag of it invalidated, while it was computed;
    ``"late"``: computing took longer than ``compute_time``, and another client may have stored a value since;
    ``"expired"``: it had expired already; ``"too_large"``: the server takes no value of this size (``-I``);
    ``"no_lease"``: the server had no lease and took no lock for the key; ``"failed"``: the server could not be asked,
    or has refused the value: :attr:`error`; ``"skipped"``: the function said so.
    """

    __slots__ = ("error", "kind")

    def __init__(self, kind: str, error: Optional[BaseException] = None) -> None:
        self.kind = kind
        self.error = error

    def __str__(self) -> str:
        return _TEXTS[self.kind] + (f": {self.error}" if self.error else "")

    def __repr__(self) -> str:
        return f"NotStored({self.kind!r})"

    def __eq__(self, other: object) -> bool:
        return (
            self.kind == other if isinstance(other, str) else isinstance(other, NotStored) and other.kind == self.kind
        )

    def __hash__(self) -> int:
        return hash(self.kind)


class Outcome(Generic[T]):
    """What ``get_or_compute`` has brought, with ``outcome=True``.

    :attr:`kind`:

    * ``"hit"``: the value was in the cache, or another caller has just computed it;
    * ``"stale"``: the old value; another client computes;
    * ``"computed"``: this caller has computed it; :attr:`stored` says whether it is in the cache, else :attr:`why` says
      why not;
    * ``"waited"``: another client computes, and this is what the function ``wait`` has returned;
    * ``"busy"``: another client computes, and its value was not there when the wait had passed: :attr:`value` is the
      default;
    * ``"not_computed"``: the function that computes many values has not returned one for this key;
    * ``"failed"``: of many keys only: the server of this key could not be asked: :attr:`error`.
    """

    __slots__ = ("error", "kind", "stored", "value", "why")

    def __init__(
        self,
        kind: str,
        value: Any = None,
        stored: bool = False,
        why: Optional[NotStored] = None,
        error: Optional[Exception] = None,
    ) -> None:
        self.kind = kind
        self.value: T = value
        self.stored = stored
        self.why = why
        self.error = error

    @property
    def has_value(self) -> bool:
        """Whether there is a value."""
        return self.kind not in (BUSY, NOT_COMPUTED, FAILED)

    def __repr__(self) -> str:
        more = f", stored={self.stored}" if self.kind == COMPUTED else ""
        return f"Outcome({self.kind!r}, {self.value!r}{more})"


@dataclass(frozen=True)
class Hit(Generic[T]):
    """The value was there. Over a server with leases and a ``grace`` this can be the old value, while another client
    computes."""

    value: T


@dataclass(frozen=True)
class Stale(Generic[T]):
    """The value has expired, and another client computes the next."""

    value: T


@dataclass(frozen=True)
class Value(Generic[T]):
    """Another caller has delivered the value while this one waited."""

    value: T


@dataclass(frozen=True)
class Compute(Generic[T]):
    """This caller must compute the value, then ``deliver`` it, ``fail`` or ``give_up``."""

    token: Any
    """The right to deliver: :class:`Token` or :class:`AsyncToken`."""
    hint: bytes = b""
    """The hint of the caller that asked first, as far as it is known."""
    stale: Optional[Hit[T]] = None
    """The old value, if it may be served: in a ``Hit``."""


@dataclass(frozen=True)
class Error:
    """Another caller's computation has failed: its text."""

    text: str


@dataclass(frozen=True)
class Busy:
    """Other callers compute, and no value was there when the wait had passed."""


Fetched = Union[Hit[T], Stale[T], Value[T], Compute[T], Error, Busy]


if TYPE_CHECKING:
    _InPlaceOfAValue = Any
    """A function may return it whatever its annotation says of its values."""
else:
    _InPlaceOfAValue = object


class Skip(_InPlaceOfAValue):  # type: ignore[misc]
    """Returned by a function that computes: its value goes to the caller and is not stored. ``Skip(value)``, see
    :func:`skip`."""

    __slots__ = ("value",)

    def __init__(self, value: Any = None) -> None:
        self.value = value


_NONE: Any = None


def skip(value: T = _NONE) -> T:
    """``return skip(value)``: the caller gets the value, and it is not stored. The callers that wait meanwhile, and the
    next, compute for themselves."""
    return cast(T, Skip(value))


class Negative(_InPlaceOfAValue):  # type: ignore[misc]
    """Returned by a function that computes: there is no such thing, and this is known for ``ttl`` (see
    ``get_or_compute``).

    The caller, and others as long as it is kept, get ``value``.
    """

    __slots__ = ("ttl", "value")

    def __init__(self, ttl: Any, value: Any = None) -> None:
        self.ttl = ttl
        self.value = value


Computed = Union[T, Skip, Negative]
"""What a function that computes returns."""
