"""The record: one item for each prefix, with the settings, the numbers that stand for all namespaces, and the evidence.

The format is that of docs/clients.md, "Stored formats". Numbers are big-endian. A rolling flush adds a window without
evidence at the front. A key uses the newest window that began at least the key's phase ago, or the oldest of all. A
window is dropped with the next change once a newer one began at least a period ago, and the oldest of five at once: its
keys change early.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from . import _evidence as evidence
from ._options import NamespacerOptions

MAGIC = b"CGNS"
VERSION = 1
TAGS = 1
OPTIMIZE = 2
RESET = 4
WINDOWS_MAX = 4


@dataclass(frozen=True)
class Settings:
    """What must be equal in all processes."""

    tags: bool
    optimize: bool
    reset_when_muddled: bool
    evidence_size: int
    period_ms: int
    separator: str

    @classmethod
    def of(cls, options: NamespacerOptions, tags: bool) -> Settings:
        """Of options that were checked."""
        return cls(
            tags,
            options.optimize_with_default_counter_and_evidence,
            options.reset_when_evidence_muddled,
            options.evidence_size,
            options.period_ms,
            options.separator,
        )

    @property
    def windows(self) -> bool:
        """Whether there are master numbers."""
        return self.tags or self.optimize

    @property
    def evidence_bytes(self) -> int:
        """Bytes of evidence in each window."""
        return 0 if self.tags else self.evidence_size

    def difference(self, there: Settings) -> tuple[str, str, str] | None:
        """The first option that differs from the record's: its name, its value here and there."""

        def kind(settings: Settings) -> str:
            return "tags" if settings.tags else "counters"

        for name, here, other in [
            ("the way of invalidation", kind(self), kind(there)),
            ("separator", repr(self.separator), repr(there.separator)),
            ("optimize_with_default_counter_and_evidence", self.optimize, there.optimize),
            ("evidence_size", self.evidence_size, there.evidence_size),
            ("reset_when_evidence_muddled", self.reset_when_muddled, there.reset_when_muddled),
            ("rolling_period", f"{self.period_ms / 1000:g} s", f"{there.period_ms / 1000:g} s"),
        ]:
            if here != other:
                return name, str(here), str(other)
        return None


@dataclass
class Window:
    """A number that stands for all namespaces, when it was drawn, and what was updated since."""

    master: int
    start_ms: int
    evidence: bytearray


@dataclass
class Record:
    """The record. Windows are newest first."""

    settings: Settings
    windows: list[Window] = field(default_factory=list)

    @classmethod
    def new(cls, settings: Settings, master: int, now_ms: int) -> Record:
        """A record where none was: all keys are new."""
        record = cls(settings)
        if settings.windows:
            record._push(master, now_ms)
        return record

    def began_ms(self) -> int | None:
        """When it was made, or a time after that: that of its oldest window. None without windows."""
        return self.windows[-1].start_ms if self.windows else None

    def window(self, key: int, now_ms: int) -> Window | None:
        """The window of the key with this hash; None without the optimization."""
        if not self.windows:
            return None
        if len(self.windows) > 1:
            phase_ms = evidence.phase_ms(key, self.settings.period_ms)
            for window in self.windows:
                if window.start_ms + phase_ms <= now_ms:
                    return window
        return self.windows[-1]

    def update(self, namespace: int, master: int, now_ms: int) -> bool:
        """Notes that a namespace was updated, in all windows; begins a rolling flush with ``master`` if there are too
        many. False: the record needs no change."""
        changed = bool(self._drop_old(now_ms))
        for window in self.windows:
            changed |= evidence.mark(window.evidence, namespace)
        # The new window needs no mark: its master number is in no key yet.
        if self.settings.reset_when_muddled and len(self.windows) == 1 and evidence.muddled(self.windows[0].evidence):
            self._push(master, now_ms)
            changed = True
        return changed

    def flush(self, master: int, now_ms: int) -> list[int]:
        """Begins a rolling flush. Returns the master numbers of the windows that it ends."""
        dropped = self._drop_old(now_ms)
        self._push(master, now_ms)
        dropped.extend(window.master for window in self.windows[WINDOWS_MAX:])
        del self.windows[WINDOWS_MAX:]
        return dropped

    def _push(self, master: int, now_ms: int) -> None:
        self.windows.insert(0, Window(master, now_ms, bytearray(self.settings.evidence_bytes)))

    def _drop_old(self, now_ms: int) -> list[int]:
        """Drops the windows that no key uses any more, and returns their master numbers."""
        for place, window in enumerate(self.windows):
            if window.start_ms + self.settings.period_ms <= now_ms:
                dropped = [old.master for old in self.windows[place + 1 :]]
                del self.windows[place + 1 :]
                return dropped
        return []

    def encode(self) -> bytes:
        """As it is stored."""
        own = self.settings
        flags = (TAGS if own.tags else 0) | (OPTIMIZE if own.optimize else 0) | (RESET if own.reset_when_muddled else 0)
        separator = own.separator.encode()
        out = [
            MAGIC,
            struct.pack(">BBHIB", VERSION, flags, own.evidence_size, own.period_ms, len(separator)),
            separator,
        ]
        out.append(bytes([len(self.windows)]))
        for window in self.windows:
            out += [struct.pack(">QQ", window.master, window.start_ms), bytes(window.evidence)]
        return b"".join(out)

    @classmethod
    def decode(cls, data: bytes) -> Record:
        """Reads what :meth:`encode` has written. ``ValueError`` says what is wrong."""
        rest = _Rest(data)
        if rest.take(4) != MAGIC:
            raise ValueError("it does not begin with CGNS, so another program has written it")
        version, flags = rest.take(2)
        if version != VERSION:
            raise ValueError(f"it has version {version}, and version {VERSION} is known")
        if flags & ~(TAGS | OPTIMIZE | RESET):
            raise ValueError(f"it has the flags {flags:#04x}, some of which are not known")
        evidence_size, period_ms, long = struct.unpack(">HIB", rest.take(7))
        try:
            separator = rest.take(long).decode()
        except UnicodeDecodeError:
            raise ValueError("its separator is not text") from None
        settings = Settings(
            bool(flags & TAGS), bool(flags & OPTIMIZE), bool(flags & RESET), evidence_size, period_ms, separator
        )
        (windows,) = rest.take(1)
        possible = 1 <= windows <= WINDOWS_MAX if settings.windows else windows == 0
        if not possible or evidence_size == 0:
            raise ValueError(f"it has {windows} windows of {evidence_size} bytes")
        record = cls(settings)
        for _ in range(windows):
            master, start_ms = struct.unpack(">QQ", rest.take(16))
            record.windows.append(Window(master, start_ms, bytearray(rest.take(settings.evidence_bytes))))
        if rest.at != len(data):
            raise ValueError(f"{len(data) - rest.at} bytes follow its end")
        return record


class _Rest:
    """Bytes that are read one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data, self.at = data, 0

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self._data):
            raise ValueError("it is cut off")
        part, self.at = self._data[self.at : end], end
        return part
