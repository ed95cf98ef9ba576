"""Options of a namespacer, and their ranges."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Callable

from ..client._errors import UsageError
from ._evidence import EVIDENCE_MAX

PREFIX_MAX = 100
SEPARATOR_MAX = 4
_PUNCTUATION = frozenset("!\"#$&'()*+-./:;<=>?@[\\]^_`{}~")


@dataclass(frozen=True)
class NamespacerOptions:
    """Options of a :class:`Namespacer`. They must be the same in all processes that use the same prefix, in any
    language, which is checked: :class:`SettingsDiffer`.

    To change them, use another prefix, or stop all processes, delete the item ``PREFIXrecord`` and start them with the
    new ones. ``ValueError`` names the first option that is out of its range.
    """

    prefix: str = "___"
    """All keys in the cache that the namespacer uses begin with this text: 1 to 100 bytes of ASCII without blanks,
    control characters, ``%`` and ``,``; it should not begin with ``@``, as Cattlegrid's control keys do. No prefix in
    use may be the beginning of another."""

    separator: str = ":"
    """Stands between the parts of a key: 1 to 4 ASCII punctuation characters other than ``%``, ``,`` and ``|``. In
    names and ids it is percent-encoded."""

    optimize_with_default_counter_and_evidence: bool = True
    """Whether one master number stands for all namespaces that were not updated. Without it the numbers of all
    namespaces are read for each key, and there is no rolling flush. No effect on a cache with tags."""

    evidence_size: int = 80
    """Size of the evidence in bytes, 1 to 8192. With 80, 7 to 8 % of the keys need their namespace's own number after
    100 updates, and half of them after 393."""

    reset_when_evidence_muddled: bool = True
    """Whether an update begins a rolling flush when half of the keys need their namespace's own number."""

    rolling_period: float = 180.0
    """The time in seconds over which the keys change in a rolling flush, 1 s to 1 day in whole milliseconds."""

    use_tags: bool = True
    """Whether the tags of the servers are used if all of them have some."""

    clock: Callable[[], float] = field(default=time.time, repr=False, compare=False)
    """Where the present time comes from, in seconds of Unix time. For tests of rolling flushes."""

    def __post_init__(self) -> None:
        prefix, separator = self.prefix, self.separator
        if not 1 <= len(prefix) <= PREFIX_MAX or not all(0x21 <= ord(c) <= 0x7E for c in prefix):
            raise UsageError(
                f"prefix {prefix!r}: 1 to {PREFIX_MAX} bytes of ASCII without blanks and controls are possible"
            )
        if "%" in prefix or "," in prefix:
            raise UsageError(f"prefix {prefix!r}: the characters % and , are not possible")
        if not 1 <= len(separator) <= SEPARATOR_MAX or not _PUNCTUATION.issuperset(separator):
            raise UsageError(
                f"separator {separator!r}: 1 to {SEPARATOR_MAX} of the punctuation of ASCII except % , | are possible"
            )
        size = self.evidence_size
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= EVIDENCE_MAX:
            raise UsageError(f"evidence_size {size}: 1 to {EVIDENCE_MAX} bytes are possible")
        period = self.rolling_period
        if not 1 <= period <= 86_400 or abs(period * 1000 - self.period_ms) > 1e-6:
            raise UsageError(f"rolling_period {period} s: 1 to 86400 s in whole milliseconds are possible")

    @property
    def period_ms(self) -> int:
        """The rolling period in milliseconds."""
        return round(self.rolling_period * 1000)
