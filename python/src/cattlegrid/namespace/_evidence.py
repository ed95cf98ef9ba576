"""Evidence: bits that show which namespaces were not updated since their window began.

An update sets two bits, at places that a hash of the namespace gives. A namespace of which one bit is not set was not
updated; one with both bits set may have been. The bits are numbered from the lowest of the first byte.

``mix(n)`` is the n-th number, from 1, of the generator SplitMix64 that begins with the 64-bit FNV-1a hash of the text.
"""

from __future__ import annotations

EVIDENCE_MAX = 8192
"""Largest evidence in bytes."""

_MASK = (1 << 64) - 1
_FNV_START = 0xCBF29CE484222325
_FNV_PRIME = 0x00000100000001B3
_SPLIT_STEP = 0x9E3779B97F4A7C15


def hash_of(text: str) -> int:
    """64-bit FNV-1a of a text, from which all other hashes are made."""
    number = _FNV_START
    for byte in text.encode():
        number = ((number ^ byte) * _FNV_PRIME) & _MASK
    return number


def mix(number: int, n: int) -> int:
    """The ``n``-th number of SplitMix64, from 1, beginning with this hash."""
    number = (number + _SPLIT_STEP * n) & _MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return number ^ (number >> 31)


def places(number: int, size: int) -> tuple[int, int]:
    """Two different places in ``size`` bytes of evidence, at least one byte."""
    bits = size * 8
    first = mix(number, 1) % bits
    return first, (first + 1 + mix(number, 2) % (bits - 1)) % bits


def phase_ms(number: int, period_ms: int) -> int:
    """How long after the beginning of a rolling flush of this period the key changes: less than the period."""
    return (mix(number, 3) * period_ms) >> 64


def mark(evidence: bytearray, namespace: int) -> bool:
    """Notes an update of the namespace with this hash. True if a bit was not set before. Empty evidence has no bits."""
    if not evidence:
        return False
    news = not marked(evidence, namespace)
    for place in places(namespace, len(evidence)):
        evidence[place // 8] |= 1 << (place % 8)
    return news


def marked(evidence: bytes | bytearray, namespace: int) -> bool:
    """Whether the namespace with this hash may have been updated. With empty evidence: no."""
    if not evidence:
        return False
    return all(evidence[place // 8] >> (place % 8) & 1 for place in places(namespace, len(evidence)))


def muddled(evidence: bytes | bytearray) -> bool:
    """Whether at least half of all namespaces count as updated: the share of bits that are set, squared, is 0.5 or
    more."""
    if not evidence:
        return False
    ones = bin(int.from_bytes(evidence, "big")).count("1")
    bits = len(evidence) * 8
    return 2 * ones * ones >= bits * bits
