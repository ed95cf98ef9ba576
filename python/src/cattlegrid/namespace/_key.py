"""Keys and tags as text.

Names and ids are percent-encoded, upper case: all bytes that are not visible ASCII, the bytes of the separator, ``%``,
``,`` and ``|``. The separator therefore stands between parts only, and different parts give different keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Mapping, NamedTuple, Sequence, Union

from ..client._errors import UsageError
from ._evidence import hash_of

KEY_MAX = 250
NAMESPACES_MAX = 7
"""Namespaces of a key: one of the eight tags of an item is the master's."""
TAG_MAX = 200
NUMBER_DIGITS = 16
COUNTER_MARK = "|"

Pairs = Union[Mapping[str, object], Iterable["tuple[str, object]"]]
"""Namespaces of a key, by name: a mapping or pairs of name and id."""


class NamespacedKey(str):
    """A key made by a namespacer: a ``str`` of at most 250 bytes of ASCII, with :attr:`tags`.

    It is good for one read or write, and for the write after a read that found nothing: later, make it again. A value
    that is stored under a key made before an update is not seen after it.
    """

    __slots__ = ("tags",)

    tags: tuple[str, ...]
    """What the item must be tagged with; empty without tags. A ``Cache`` takes them from the key."""

    def __new__(cls, text: str, tags: Iterable[str] = ()) -> NamespacedKey:
        self = str.__new__(cls, text)
        self.tags = tuple(tags)
        return self

    def __getnewargs__(self) -> tuple[str, tuple[str, ...]]:  # type: ignore[override]
        return str(self), self.tags


class Namespace(NamedTuple):
    """A namespace, such as ``userId:1234``."""

    text: str
    hash: int


class Logical(NamedTuple):
    """A key without its numbers. The hash decides when the key changes in a rolling flush."""

    name: str | None
    namespaces: tuple[Namespace, ...]
    hash: int


def id_text(id: object) -> str:
    """The text of an id. ``TypeError``: it has none that other processes would find too."""
    if type(id) is str:
        return id
    if isinstance(id, str):
        return str.__str__(id)
    if isinstance(id, int) and not isinstance(id, bool):
        return int.__repr__(id)
    plain = type(id).__str__ is object.__str__ and type(id).__repr__ is object.__repr__
    if id is None or plain or isinstance(id, (bool, float, bytes, bytearray, list, tuple, dict, set)):
        raise TypeError(f"the id of a namespace is a text or a whole number, not {id!r}")
    return str(id)


@dataclass(frozen=True)
class Naming:
    """How names become text. ``master``: keys begin with a master number."""

    prefix: str
    separator: str
    tags: bool
    master: bool

    def record_key(self) -> str:
        """Key of the record."""
        return f"{self.prefix}record"

    def counter_key(self, namespace: Namespace) -> str:
        """Key of a namespace's own number."""
        return f"{self.prefix}counter{COUNTER_MARK}{namespace.text}"

    def tag(self, namespace: Namespace) -> str:
        """The tag of a namespace."""
        return self.prefix + namespace.text

    def master_tag(self, master: int) -> str:
        """The tag of all keys of a window."""
        return f"{self.prefix}{master:016x}"

    def namespace(self, name: str, id: object) -> Namespace:
        """A namespace. ``ValueError``: a part is empty, or it is too long for its own key or tag."""
        own = id_text(id)
        if not isinstance(name, str):
            raise TypeError(f"the name of a namespace is a text, not {name!r}")
        if not name or not own:
            raise UsageError(f"namespace {name!r} with the id {own!r}: neither may be empty")
        text = self.encoded(name) + self.separator + self.encoded(own)
        namespace = Namespace(text, hash_of(text))
        long = len(self.counter_key(namespace))
        if long > KEY_MAX:
            raise UsageError(f"the key of {text} has {long} bytes, at most {KEY_MAX} are possible")
        long = len(self.tag(namespace))
        if self.tags and long > TAG_MAX:
            raise UsageError(f"{text}: a tag has {long} bytes, at most {TAG_MAX} are possible")
        return namespace

    def single(self, name: str, id: object) -> Logical:
        """A key of one namespace only."""
        return self._logical(None, (self.namespace(name, id),))

    def named(self, name: str, namespaces: Pairs) -> Logical:
        """A key with a name and its namespaces."""
        if not name:
            raise UsageError("the name of a key is empty")
        parts = tuple(self.namespace(*pair) for pair in pairs_of(namespaces))
        return self._logical(self.encoded(name), parts)

    def _logical(self, name: str | None, namespaces: tuple[Namespace, ...]) -> Logical:
        count = len(namespaces)
        if not 1 <= count <= NAMESPACES_MAX:
            raise UsageError(f"a key of {count} namespaces: 1 to {NAMESPACES_MAX} are possible")
        bare = self._text(Logical(name, namespaces, 0), None, ())
        # With all numbers that it can have: a key must not become too long by an update.
        counters = 0 if self.tags else count * (NUMBER_DIGITS + len(COUNTER_MARK))
        master = NUMBER_DIGITS + len(self.separator) if self.master else 0
        long = len(bare) + counters + master
        if long > KEY_MAX:
            raise UsageError(f"the key {bare} can have {long} bytes, at most {KEY_MAX} are possible")
        return Logical(name, namespaces, hash_of(bare))

    def key(self, logical: Logical, master: int | None, counters: Sequence[int | None]) -> NamespacedKey:
        """The key with its numbers. ``counters`` are those of the namespaces in their order, or none at all."""
        tags: list[str] = []
        if self.tags:
            tags = list(dict.fromkeys(self.tag(namespace) for namespace in logical.namespaces))
            if master is not None:
                tags.append(self.master_tag(master))
        return NamespacedKey(self._text(logical, master, counters), tags)

    def _text(self, logical: Logical, master: int | None, counters: Sequence[int | None]) -> str:
        parts = [] if master is None else [f"{master:016x}"]
        if logical.name is not None:
            parts.append(logical.name)
        for place, namespace in enumerate(logical.namespaces):
            counter = counters[place] if place < len(counters) else None
            parts.append(namespace.text if counter is None else f"{namespace.text}{COUNTER_MARK}{counter:016x}")
        return self.prefix + self.separator.join(parts)

    def encoded(self, text: str) -> str:
        """A part of a key."""
        refused = b"%,|" + self.separator.encode()
        out = []
        for byte in text.encode():
            out.append(chr(byte) if 0x21 <= byte <= 0x7E and byte not in refused else f"%{byte:02X}")
        return "".join(out)


def pairs_of(namespaces: Pairs) -> list[tuple[str, object]]:
    """The pairs of a mapping, or of an iterable of pairs. ``TypeError``: one is no pair."""
    if isinstance(namespaces, Mapping):
        return list(namespaces.items())
    if isinstance(namespaces, str):
        raise TypeError(f"{namespaces!r} is no list of pairs of name and id")
    pairs = []
    for pair in namespaces:
        if isinstance(pair, str) or len(pair) != 2:
            raise TypeError(f"{pair!r} is no pair of name and id")
        pairs.append((pair[0], pair[1]))
    return pairs


def number(data: bytes) -> int | None:
    """A namespace's own number as it is stored: 16 hexadecimal digits."""
    digits = b"0123456789abcdefABCDEF"
    if len(data) != NUMBER_DIGITS or not all(byte in digits for byte in data):
        return None
    return int(data, 16)
