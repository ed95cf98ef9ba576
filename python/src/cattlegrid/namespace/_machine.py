"""What a namespacer asks of a cache, without asking: generators that yield requests and are sent the replies.

A reply to ``Get`` and ``GetMany`` has the bytes of items, or None; to ``Gets`` bytes and CAS number, or None; to
``Add`` and ``Cas`` whether it was stored. ``Turn`` waits until no other task of this process changes the record; the
driver ends it with the call.

Invariants, which all processes rely on:

* An update is acknowledged after its counter is replaced and its two evidence bits are set in every window. A key made
  afterwards differs from every key of this namespace made before, in each window.
* Numbers are random, 64 bits, from the operating system; never clocks, never the successor of another number.
"""

from __future__ import annotations

import logging
import secrets
import threading
from typing import Any, Callable, Dict, Generator, List, NamedTuple, Optional, Sequence, Tuple, TypeVar, Union

from cattlegrid.client import NoTags

from . import _evidence as evidence
from ._errors import NamespaceError, SettingsDiffer
from ._key import Logical, Namespace, NamespacedKey, Naming, number
from ._options import NamespacerOptions
from ._record import Record, Settings

log = logging.getLogger("cattlegrid.namespace")

COPY_MS = 1_000
"""Age of a copy of the record at most."""
ASK_MS = 5_000
"""While tags are used the servers are asked this often whether they have them still."""
CHANGING_MS = 3 * COPY_MS
"""For this long after the way has changed an update is made in both: other processes may have copies of the old
record."""
WAYS = 4
"""Tries to update while the way changes."""
TRIES = 16
"""Tries to read or create an item that disappears again and again."""
CHANGES = 1_000
"""Tries to change the record while others change it. In each round one of them succeeds."""


class Get(NamedTuple):
    """``get`` of a key."""

    key: str


class Gets(NamedTuple):
    """``gets`` of a key."""

    key: str


class GetMany(NamedTuple):
    """``get`` of many keys; the reply is a list in their order."""

    keys: Sequence[str]


class Add(NamedTuple):
    """``add``, without an expiry."""

    key: str
    data: bytes


class AddMany(NamedTuple):
    """``add`` of many keys; the reply is a list in their order."""

    items: Sequence[Tuple[str, bytes]]


class SetMany(NamedTuple):
    """``set`` of many keys. A failure of one is raised."""

    items: Sequence[Tuple[str, bytes]]


class Cas(NamedTuple):
    """``cas``, without an expiry."""

    key: str
    data: bytes
    cas: Any


class HasTags(NamedTuple):
    """Whether all servers have tags."""


class Invalidate(NamedTuple):
    """Invalidates tags on every server. ``NoTags`` is raised if one has none."""

    tags: Sequence[str]


class Turn(NamedTuple):
    """Waits for the turn to change the record."""


Request = Union[Get, Gets, GetMany, Add, AddMany, SetMany, Cas, HasTags, Invalidate, Turn]
T = TypeVar("T")
Steps = Generator[Request, Any, T]


class Machine:
    """The state of a namespacer in this process, and its calls as generators."""

    def __init__(self, options: NamespacerOptions) -> None:
        self.options = options
        self.settings = tuple(Settings.of(options, tags) for tags in (False, True))
        self.namings = tuple(
            Naming(options.prefix, options.separator, settings.tags, settings.windows) for settings in self.settings
        )
        self.record_key = self.namings[0].record_key()
        # What this process knows of the way that all use; guarded by the lock.
        self._lock = threading.Lock()
        self._opened = False
        self._tags = False
        self._changed_ms: Optional[int] = None
        self._asked_ms = 0
        self._copy: Optional[Tuple[Record, int]] = None

    def forget(self) -> None:
        """In a process that was forked: the lock may be held by a thread of the parent."""
        self._lock = threading.Lock()

    @property
    def tags(self) -> bool:
        """Whether tags are used, as far as is known."""
        return self._tags

    @property
    def naming(self) -> Naming:
        """How names become text."""
        return self.namings[self._tags]

    def open(self) -> Steps[None]:
        """Reads the record of the prefix, or creates it, and asks whether the servers have tags; once."""
        if self._opened:
            return
        tags = False
        if self.options.use_tags:
            tags = yield HasTags()
        now_ms = self._now_ms()
        with self._lock:
            if self._opened:
                return
            self._tags, self._asked_ms = tags, now_ms
        record = yield from self._recent()
        with self._lock:
            if record.began_ms() is None:
                # Nor can it be known what others have seen before.
                self._changed_ms = now_ms
            self._opened = True

    def keys(self, logicals: Callable[[Naming], List[Logical]]) -> Steps[List[NamespacedKey]]:
        """Keys, with one read of the record and at most one of all numbers."""
        yield from self.open()
        all_keys = logicals(self.naming)
        record = yield from self._record()
        settings, naming = record.settings, self.namings[record.settings.tags]
        now_ms = self._now_ms()
        windows = [record.window(logical.hash, now_ms) for logical in all_keys]
        wanted: Dict[str, str] = {}
        own: List[List[bool]] = []
        for logical, window in zip(all_keys, windows):
            flags = [
                not settings.tags and (window is None or evidence.marked(window.evidence, namespace.hash))
                for namespace in logical.namespaces
            ]
            own.append(flags)
            for namespace, flag in zip(logical.namespaces, flags):
                if flag:
                    wanted.setdefault(namespace.text, naming.counter_key(namespace))
        found = yield from self._counters(list(wanted.values()))
        numbers = dict(zip(wanted, found))
        keys = []
        for logical, window, flags in zip(all_keys, windows, own):
            counters = [numbers[ns.text] if flag else None for ns, flag in zip(logical.namespaces, flags)]
            keys.append(naming.key(logical, None if window is None else window.master, counters))
        return keys

    def update(self, pairs: Callable[[Naming], List[Namespace]]) -> Steps[None]:
        """Invalidates all keys of namespaces."""
        yield from self.open()
        namespaces = pairs(self.naming)
        if not namespaces:
            return
        failed: Exception = self._unstable(WAYS)
        for _ in range(WAYS):
            settings = self.settings[self._tags]
            # The record tells the way, and whether other processes have other options: they would not see this update.
            copy = None
            if settings.tags or not settings.optimize:
                copy = yield from self._recent()
            is_tags = copy is not None and copy.settings.tags
            if is_tags:
                try:
                    yield from self._invalidate(namespaces)
                except NoTags as error:
                    failed = error
                    yield from self._tags_are_refused()
                    continue
            if copy is not None and is_tags and not self._is_changing(copy):
                return
            record = yield from self._update_numbers(namespaces)
            if not is_tags and self._is_changing(record):
                # For those that have tags still, and a copy of a record that wants them.
                try:
                    yield from self._invalidate(namespaces)
                except Exception as error:
                    log.debug("tags of %s were not invalidated: %s", self.options.prefix, error)
            if record.settings.tags == is_tags:
                return
        raise failed

    def flush(self) -> Steps[None]:
        """Begins a rolling flush."""
        yield from self.open()
        no_flush = "without optimize_with_default_counter_and_evidence there is no rolling flush"
        if not self.settings[self._tags].windows:
            raise ValueError(no_flush)
        master, now_ms = random_number(), self._now_ms()
        ended: List[int] = []

        def apply(record: Record) -> bool:
            ended.clear()
            if record.settings.windows:
                ended.extend(record.flush(master, now_ms))
            return record.settings.windows

        record = yield from self._change(apply)
        if not record.settings.windows:
            raise ValueError(no_flush)
        log.info("rolling flush of %s begins", self.options.prefix)
        if record.settings.tags:
            self._keep(record, self._now_ms())
            if ended:
                # Keys that were handed out under these numbers long ago are misses too.
                try:
                    yield Invalidate([self.naming.master_tag(number) for number in ended])
                except NoTags:
                    # Then the record is replaced, and all keys are new.
                    yield from self._tags_are_refused()

    def _is_changing(self, record: Record) -> bool:
        """Whether other processes may still use the other way: this one has noticed a change lately, or the record is
        new."""
        now_ms = self._now_ms()

        def is_late(at_ms: Optional[int]) -> bool:
            return at_ms is not None and now_ms - at_ms < CHANGING_MS

        return self.options.use_tags and (is_late(self._changed_ms) or is_late(record.began_ms()))

    def _record(self) -> Steps[Record]:
        """The record as keys need it."""

        def is_copied(settings: Settings) -> bool:
            return settings.tags or not settings.optimize

        if is_copied(self.settings[self._tags]):
            record = yield from self._recent()
            if is_copied(record.settings):
                return record
        # With numbers, the record shows what was updated: a copy would hide it.
        return (yield from self._read())

    def _invalidate(self, namespaces: Sequence[Namespace]) -> Steps[None]:
        yield Invalidate([self.namings[1].tag(namespace) for namespace in namespaces])

    def _update_numbers(self, namespaces: Sequence[Namespace]) -> Steps[Record]:
        """Replaces the numbers of namespaces, and notes it in the record, unless that is one for tags."""
        naming, settings = self.namings[0], self.settings[0]
        yield SetMany([(naming.counter_key(namespace), _digits(random_number())) for namespace in namespaces])
        if not settings.optimize:
            return (yield from self._recent())
        # After the counters: otherwise a key made in between would change twice.
        master, now_ms = random_number(), self._now_ms()

        def apply(record: Record) -> bool:
            if record.settings.tags:
                return False
            changes = [record.update(namespace.hash, master, now_ms) for namespace in namespaces]
            return any(changes)

        return (yield from self._change(apply))

    def _recent(self) -> Steps[Record]:
        """The record, read a second ago at most."""
        now_ms = self._now_ms()
        copy = self._copy
        if copy is not None and 0 <= now_ms - copy[1] < COPY_MS:
            return copy[0]
        record = yield from self._read()
        self._keep(record, now_ms)
        return record

    def _keep(self, record: Record, at_ms: int) -> None:
        """Keeps what was asked for at this time, unless another task has asked later."""
        now_ms = self._now_ms()
        with self._lock:
            if self._copy is None or not at_ms + 1 <= self._copy[1] <= now_ms:
                self._copy = (record, at_ms)

    def _read(self) -> Steps[Record]:
        """Reads the record, or creates it."""
        for _ in range(TRIES):
            data = yield Get(self.record_key)
            if data is not None:
                record = self._checked(data)
                if (yield from self._is_possible(record)):
                    return record
                yield from self._leave_tags()
                continue
            created = yield from self._create()
            if created is not None:
                return created
        raise self._unstable(TRIES)

    def _create(self) -> Steps[Optional[Record]]:
        """Writes a record where none is; None: one is."""
        # The servers may be others than before.
        tags = False
        if self.options.use_tags:
            tags = yield from self._ask_for_tags()
        record = Record.new(self.settings[tags], random_number(), self._now_ms())
        stored = yield Add(self.record_key, record.encode())
        if not stored:
            return None
        log.debug("no record of the namespaces %s: all keys are new", self.options.prefix)
        self._note(record)
        return record

    def _ask_for_tags(self) -> Steps[bool]:
        self._asked_ms = self._now_ms()
        return bool((yield HasTags()))

    def _is_possible(self, record: Record) -> Steps[bool]:
        """Whether the servers can do what the record wants."""
        if not record.settings.tags or 0 <= self._now_ms() - self._asked_ms < ASK_MS:
            return True
        try:
            return (yield from self._ask_for_tags())
        except Exception:
            # A server that cannot be asked decides nothing.
            return True

    def _tags_are_refused(self) -> Steps[None]:
        """Asks the servers, whatever another task of this process has asked and has no answer to yet."""
        if not (yield from self._ask_for_tags()):
            yield from self._leave_tags()
        self._copy = None

    def _leave_tags(self) -> Steps[None]:
        """Replaces a record that wants tags, which not all servers have any more."""
        item = yield Gets(self.record_key)
        if item is not None and self._checked(item[0]).settings.tags:
            record = Record.new(self.settings[0], random_number(), self._now_ms())
            log.warning("%s: a server has no tags any more: numbers are used", self.options.prefix)
            yield Cas(self.record_key, record.encode(), item[1])

    def _change(self, apply: Callable[[Record], bool]) -> Steps[Record]:
        """Changes the record, unless ``apply`` says that it needs no change. A new record needs none: all keys
        differ."""
        yield Turn()
        for _ in range(CHANGES):
            item = yield Gets(self.record_key)
            if item is None:
                created = yield from self._create()
                if created is not None:
                    return created
                continue
            record = self._checked(item[0])
            if not (yield from self._is_possible(record)):
                yield from self._leave_tags()
                continue
            if not apply(record):
                return record
            if (yield Cas(self.record_key, record.encode(), item[1])):
                return record
        raise self._unstable(CHANGES)

    def _checked(self, data: bytes) -> Record:
        try:
            record = Record.decode(data)
        except ValueError as error:
            raise NamespaceError(f"{self.record_key}: {error}") from None
        # The way is what the record says, if this process may use tags at all.
        own = self.settings[record.settings.tags and self.options.use_tags]
        difference = own.difference(record.settings)
        if difference is not None:
            raise SettingsDiffer(self.options.prefix, *difference)
        self._note(record)
        return record

    def _note(self, record: Record) -> None:
        """Takes the way of the record from now on."""
        with self._lock:
            if self._tags != record.settings.tags:
                self._tags = record.settings.tags
                self._changed_ms = self._now_ms()
                self._copy = None

    def _counters(self, keys: Sequence[str]) -> Steps[List[int]]:
        """The numbers under these keys. An absent number is replaced by a new one."""
        numbers: Dict[str, int] = {}
        missing = list(keys)
        for _ in range(TRIES):
            if not missing:
                break
            absent = []
            for key, data in zip(missing, (yield GetMany(missing))):
                if data is None:
                    absent.append((key, random_number()))
                    continue
                own = number(data)
                if own is None:
                    raise NamespaceError(f"{key}: not a namespace's number: another program has written it")
                numbers[key] = own
            missing = []
            if absent:
                stored = yield AddMany([(key, _digits(own)) for key, own in absent])
                for (key, own), done in zip(absent, stored):
                    if done:
                        numbers[key] = own
                    else:
                        # Another process was faster.
                        missing.append(key)
        # Evicted as fast as they are written: a number that only this key has finds nothing, which is right.
        return [numbers[key] if key in numbers else random_number() for key in keys]

    def _unstable(self, tries: int) -> NamespaceError:
        return NamespaceError(f"{self.record_key}: it was changed or evicted by others {tries} times in succession")

    def _now_ms(self) -> int:
        return max(0, int(self.options.clock() * 1000))


def random_number() -> int:
    """64 bits from the operating system."""
    return secrets.randbits(64)


def _digits(own: int) -> bytes:
    return b"%016x" % own
