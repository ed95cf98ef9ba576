"""Keys of items."""

from __future__ import annotations

import re
from typing import Tuple, Union

from ._errors import InvalidKey, UsageError

KEY_MAX = 250
"""Longest key in bytes."""
TAG_MAX = 200
"""Longest tag in bytes."""
TAGS_MAX = 8
"""Most tags of an item."""

_BAD = re.compile(rb"[\x00-\x20\x7f]")


class Key:
    """A key with the tags of what is stored under it, such as that of a namespace. Text and bytes are keys without
    tags."""

    __slots__ = ("key", "tags")

    def __init__(self, key: Union[str, bytes], tags: Tuple[str, ...] = ()) -> None:
        self.key = key
        self.tags = tags

    def __str__(self) -> str:
        return self.key if isinstance(self.key, str) else self.key.decode("utf-8", "backslashreplace")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key!r}, {self.tags!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and other.key == self.key and other.tags == self.tags

    def __hash__(self) -> int:
        return hash((self.key, self.tags))


AnyKey = Union[str, bytes, Key]


def key_bytes(key: AnyKey, prefix: bytes = b"") -> bytes:
    """The key as servers know it.

    Raises :class:`InvalidKey`: it is empty, longer than 250 bytes, or has blanks or control characters.
    """
    if isinstance(key, str):
        try:
            data = prefix + key.encode()
        except UnicodeEncodeError:
            raise InvalidKey(f"the key {key!r} has characters that are not possible in UTF-8") from None
    elif isinstance(key, bytes):
        data = prefix + key
    elif isinstance(key, Key):
        return key_bytes(key.key, prefix)
    else:
        raise InvalidKey(f"a key is str, bytes or Key, not {type(key).__name__}")
    if len(data) > KEY_MAX:
        raise InvalidKey(f"the key {_shown(data)} is longer than {KEY_MAX} bytes")
    if len(data) == len(prefix):
        raise InvalidKey("the key is empty")
    bad = _BAD.search(data)
    if bad:
        raise InvalidKey(f"the key {_shown(data)} has a blank or control character, {bad.group()!r}")
    return data


def tag_text(tag: str) -> str:
    """Checks a tag: 1 to 200 bytes without blanks and control characters. Raises :class:`UsageError`."""
    if not isinstance(tag, str):
        raise UsageError(f"a tag is str, not {type(tag).__name__}")
    data = tag.encode("utf-8", "surrogateescape")
    if not 0 < len(data) <= TAG_MAX:
        raise UsageError(
            f"the tag {_shown(data)} is {'too long' if data else 'empty'}; possible are 1 to {TAG_MAX} bytes"
        )
    if _BAD.search(data):
        raise UsageError(f"the tag {_shown(data)} has blanks or control characters, which are not possible")
    return tag


def _shown(data: bytes) -> str:
    text = data[:100].decode("utf-8", "backslashreplace")
    return repr(text) + ("..." if len(data) > 100 else "")
