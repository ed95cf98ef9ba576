"""Client flags: how the bytes of a value are read.

Flags are 0 for plain bytes. Otherwise the upper half is ``0xca77``, and the lower half has the marks below. Values with
any other flags were written by another client.
"""

from __future__ import annotations

OURS = 0xCA77_0000
UPPER = 0xFFFF_0000
ENVELOPE = 0x01
"""The header of ``get_or_compute`` precedes the value."""
COMPRESSED = 0x02
"""Compressed by zlib."""
FORMAT_MASK = 0xF0
FORMAT_BYTES = 0x00
FORMAT_JSON = 0x10
FORMAT_MSGPACK = 0x20
FORMAT_PICKLE = 0xF0
"""Of this package only: the Rust client refuses it."""


def with_envelope(flags: int) -> int:
    """The flags of an item whose value has these, behind a header."""
    return OURS | ENVELOPE | (flags & ~UPPER if flags & UPPER == OURS else 0)


def without_envelope(flags: int) -> int | None:
    """The flags of the value behind a header; None: there is no header."""
    if flags & UPPER != OURS or not flags & ENVELOPE:
        return None
    return flags & ~ENVELOPE
