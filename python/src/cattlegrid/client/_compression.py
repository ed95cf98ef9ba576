"""Compression of values by zlib, as the Rust client does it: the mark is in the client flags."""

from __future__ import annotations

import zlib

DECOMPRESSED_MAX = 64 << 20
"""Largest value in bytes that is compressed, and largest decompressed one: a compressed value of a megabyte can stand
for a gigabyte, and must not take more of the reader's memory and time than this."""


def compress(data: bytes) -> bytes | None:
    """Smaller bytes that :func:`decompress` turns into these, or None."""
    if len(data) > DECOMPRESSED_MAX:
        return None
    smaller = zlib.compress(data, 1)
    return smaller if len(smaller) < len(data) else None


def decompress(data: bytes, limit: int = DECOMPRESSED_MAX) -> bytes:
    """What was compressed. ``ValueError`` says why it cannot be read."""
    decoder = zlib.decompressobj()
    try:
        whole = decoder.decompress(data, limit + 1)
    except zlib.error as error:
        raise ValueError(f"it is damaged: {error}") from None
    if len(whole) > limit:
        raise ValueError(f"it has more than {limit} bytes when decompressed")
    if not decoder.eof:
        raise ValueError("it is damaged: it is cut off")
    if decoder.unused_data:
        raise ValueError("it is damaged: bytes follow the compressed value, as after an append")
    return whole
