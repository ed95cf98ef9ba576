"""Values as bytes, and the client flags that say how they were written.

What is read is what was written: a value of another format, another client or a later version is a ``ValueError`` with
the reason, never a guess. The one exception is that JSON is read from values with the flags 0, as loaders and other
programs write it.
"""

from __future__ import annotations

import json
import pickle
from typing import Any, Protocol

from . import _compression as compression
from ._errors import UsageError
from ._flags import COMPRESSED, ENVELOPE, FORMAT_MASK, OURS, UPPER

_SHIFT = 4
_NAMES = {0: "plain bytes", 1: "JSON", 2: "MessagePack", 15: "pickle"}
_OWN_FORMATS = range(8, 15)


class Serializer(Protocol):
    """How values become bytes. A serializer of your own has a ``format`` from 8 to 14, which is stored in the client
    flags: what another serializer has written is then an error and not read as something else. ``loads`` raises
    ``ValueError`` for bytes that it cannot read."""

    format: int

    def dumps(self, value: Any) -> bytes:
        """The bytes of a value. ``TypeError`` or ``ValueError``: it has none."""

    def loads(self, data: bytes) -> Any:
        """The value of these bytes. ``ValueError``: they are none."""


class BytesSerializer:
    """``bytes`` as they are, with the client flags 0: what any client reads and writes."""

    format = 0

    def dumps(self, value: Any) -> bytes:
        if type(value) is bytes:
            return value
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        raise TypeError(f"a {type(value).__name__} is not bytes: encode it, or choose serializer='text' or 'json'")

    def loads(self, data: bytes) -> bytes:
        return data


class TextSerializer:
    """``str`` as UTF-8 with the client flags 0, as the Rust client stores a ``String``."""

    format = 0

    def dumps(self, value: Any) -> bytes:
        if not isinstance(value, str):
            raise TypeError(f"a {type(value).__name__} is not text: choose another serializer")
        return value.encode()

    def loads(self, data: bytes) -> str:
        return data.decode()


class JsonSerializer:
    """JSON: text, numbers, booleans, None, lists and dictionaries of them. Tuples are read as lists. ``bytes`` alone
    are stored as they are and read as bytes.

    What JSON would change is refused: keys that are not text, NaN and infinity.
    """

    format = 1

    def dumps(self, value: Any) -> bytes:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        # After it has seen that the value does not contain itself.
        _check_keys(value)
        return text.encode()

    def loads(self, data: bytes) -> Any:
        return json.loads(data)


class MessagePackSerializer:
    """MessagePack: what JSON has, and bytes. Tuples are read as lists. Needs the package ``msgpack``."""

    format = 2

    def __init__(self) -> None:
        try:
            import msgpack
        except ImportError:
            raise ImportError(
                "serializer='msgpack' needs the package msgpack: pip install 'cattlegrid[msgpack]'"
            ) from None
        self._pack, self._unpack = msgpack.packb, msgpack.unpackb

    def dumps(self, value: Any) -> bytes:
        try:
            return bytes(self._pack(value, use_bin_type=True))
        except OverflowError as error:
            raise ValueError(str(error)) from None

    def loads(self, data: bytes) -> Any:
        try:
            return self._unpack(data, raw=False, strict_map_key=False)
        except ValueError:
            raise
        except Exception as error:
            raise ValueError(f"not MessagePack: {error}") from None


class PickleSerializer:
    """Pickle: nearly every object of Python. **A program that can write to the cache can run code in those that read
    it.** Only a ``Cache`` that asks for it reads what it has written; all others refuse it.
    """

    format = 15

    def dumps(self, value: Any) -> bytes:
        try:
            return pickle.dumps(value, protocol=5)
        except (pickle.PicklingError, AttributeError) as error:
            raise TypeError(str(error)) from error

    def loads(self, data: bytes) -> Any:
        try:
            return pickle.loads(data)
        except Exception as error:
            raise ValueError(f"it cannot be unpickled: {error!r}") from error


_KNOWN: dict[str, Any] = {
    "bytes": BytesSerializer,
    "text": TextSerializer,
    "json": JsonSerializer,
    "msgpack": MessagePackSerializer,
    "pickle": PickleSerializer,
}


def serializer_of(choice: str | Serializer) -> Serializer:
    """The serializer of this name, or the one given. ``ValueError``: there is none, or its ``format`` is not its
    own."""
    if isinstance(choice, str):
        known = _KNOWN.get(choice)
        if known is None:
            raise UsageError(f"serializer {choice!r}: there are {', '.join(_KNOWN)}, and objects of your own")
        made: Serializer = known()
        return made
    number = getattr(choice, "format", None)
    if isinstance(choice, tuple(_KNOWN.values())):
        return choice
    if isinstance(number, bool) or not isinstance(number, int) or number not in _OWN_FORMATS:
        raise UsageError(f"a serializer of your own has a format from 8 to 14, not {number!r}")
    return choice


class Codec:
    """A serializer, and whether it compresses: values of more than ``compress_above`` bytes, if that makes them
    smaller."""

    __slots__ = ("_format", "_is_json", "compress_above", "serializer")

    def __init__(self, choice: str | Serializer = "json", compress_above: int | None = None) -> None:
        if compress_above is not None and (isinstance(compress_above, bool) or compress_above < 0):
            raise UsageError(f"compress_above {compress_above!r}: a number of bytes from 0 on")
        self.serializer = serializer_of(choice)
        self.compress_above = compress_above
        self._format = self.serializer.format << _SHIFT
        self._is_json = isinstance(self.serializer, JsonSerializer)

    def encode(self, value: Any) -> tuple[bytes, int]:
        """The bytes and flags of a value. ``ValueError``: it has none with this serializer."""
        bits = self._format
        try:
            if self._is_json and isinstance(value, (bytes, bytearray, memoryview)):
                # Marked as ours, so that it is not read as JSON.
                data, flags = bytes(value), OURS
                bits = 0
            else:
                data = self.serializer.dumps(value)
                flags = OURS | bits if bits else 0
        except Exception as error:
            # A serializer of the program's own may raise anything.
            raise ValueError(f"it cannot be written as {self._name(self._format)}: {error}") from error
        if self.compress_above is not None and len(data) > self.compress_above:
            smaller = compression.compress(data)
            if smaller is not None:
                return smaller, OURS | bits | COMPRESSED
        return data, flags

    def decode(self, data: bytes, flags: int) -> Any:
        """The value that was written with these flags. ``ValueError``: it is none of this serializer's."""
        if flags & UPPER != OURS:
            if flags or not (self._is_json or not self._format):
                raise ValueError(f"another client wrote it, with the flags {flags}")
            return self._loads(data)
        if flags & ~(UPPER | FORMAT_MASK | COMPRESSED):
            if flags & ENVELOPE:
                raise ValueError("get_or_compute wrote it: read it with peek or get_or_compute")
            raise ValueError(f"a later version of this client wrote it, with the flags {flags:#x}")
        written = flags & FORMAT_MASK
        if flags & COMPRESSED:
            data = compression.decompress(data)
        if written != self._format:
            if self._is_json and not written:
                return data
            raise ValueError(f"written as {self._name(written)}, but read as {self._name(self._format)}")
        return self._loads(data)

    def _loads(self, data: bytes) -> Any:
        try:
            return self.serializer.loads(data)
        except Exception as error:
            raise ValueError(f"not {self._name(self._format)}: {error}") from error

    @staticmethod
    def _name(bits: int) -> str:
        number = bits >> _SHIFT
        return _NAMES.get(number) or f"the format {number}"


def _check_keys(value: Any) -> None:
    """``TypeError`` for a dictionary whose keys JSON would turn into text."""
    rest = [value]
    while rest:
        one = rest.pop()
        if isinstance(one, dict):
            for key in one:
                if not isinstance(key, str):
                    raise TypeError(f"JSON has keys of text only, not {key!r}")
            rest.extend(part for part in one.values() if isinstance(part, (dict, list, tuple)))
        elif isinstance(one, (list, tuple)):
            rest.extend(part for part in one if isinstance(part, (dict, list, tuple)))
