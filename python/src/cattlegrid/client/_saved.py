"""The right to deliver a value, as text: for another process. The text is that of Cattlegrid's Rust client."""

from __future__ import annotations

import re
import time
from typing import Optional, Tuple

from . import _machine as m
from ._errors import InvalidKey, UsageError
from ._keys import key_bytes
from ._machine import Grant, Subject, Terms

VERSION = "cg1"
_KEPT = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/")
_ESCAPE = re.compile(r"%([0-9a-fA-F]{2})")


def _escaped(data: bytes) -> str:
    return "".join(chr(byte) if byte in _KEPT else f"%{byte:02X}" for byte in data)


def _unescaped(text: str) -> bytes:
    if "%" in _ESCAPE.sub("", text):
        raise ValueError(text)
    out = bytearray()
    at = 0
    for match in _ESCAPE.finditer(text):
        out += text[at : match.start()].encode() + bytes((int(match.group(1), 16),))
        at = match.end()
    return bytes(out + text[at:].encode())


def save(grant: Grant, ttl_ms: int, now_ms: int) -> str:
    """The text of a grant."""
    if grant.kind == m.LEASE:
        right = f"lease:{grant.token}:{grant.terms.lock_ms}:0:0"
    elif grant.kind == m.LOCK:
        began_ms = max(now_ms - int((time.monotonic() - grant.taken) * 1000), 0)
        right = f"lock:{grant.nonce}:{grant.terms.lock_ms}:{began_ms}:{grant.terms.keep_s}"
    else:
        right = "nothing:0:0:0:0"
    tags = "".join(":" + _escaped(tag.encode("utf-8", "surrogateescape")) for tag in grant.subject.tags)
    return f"{VERSION}:{ttl_ms}:{right}:{_escaped(grant.subject.key)}{tags}"


def resume(text: str, now_ms: int) -> Tuple[Grant, int]:
    """The grant of a text, and the time to live of its value in milliseconds. Raises :class:`UsageError`."""
    read = _read(text)
    if read is None:
        raise UsageError("this is not the text of a saved token")
    subject, ttl_ms, kind, (number, lock_ms, began_ms, keep_s) = read
    grant = Grant(subject, kind, Terms(lock_ms, keep_s, False))
    if kind == m.LEASE:
        grant.token = number
    elif kind == m.LOCK:
        # Its CAS number is not known here: it is found by its own number.
        grant.nonce = number
        grant.taken = time.monotonic() - max(now_ms - began_ms, 0) / 1000
    return grant, ttl_ms


def _read(text: str) -> Optional[Tuple[Subject, int, str, Tuple[int, int, int, int]]]:
    parts = text.split(":") if isinstance(text, str) else []
    if len(parts) < 8 or parts[0] != VERSION or parts[2] not in (m.LEASE, m.LOCK, m.NOTHING):
        return None
    try:
        numbers = [int(part) for part in (parts[1], *parts[3:7]) if part.isascii() and part.isdigit()]
        key = key_bytes(_unescaped(parts[7]))
        tags = tuple(_unescaped(part).decode() for part in parts[8:])
    except (ValueError, InvalidKey):
        return None
    if len(numbers) != 5 or max(numbers) >= 2**64:
        return None
    ttl_ms, number, lock_ms, began_ms, keep_s = numbers
    return Subject(key, tags, key), ttl_ms, parts[2], (number, lock_ms, began_ms, keep_s)
