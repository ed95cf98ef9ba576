"""Computing over any server: what to do about an item that was read, and about the reply to each command. No I/O.

The functions here are generators: they yield :class:`Batch`, :class:`Sleep`, :class:`Wait`, :class:`Invoke` and
:class:`Spawn`, and a driver, blocking or of asyncio, does what they say and sends the result in, or throws the
exception.

Over a server without leases the lock of a computation is the item itself: a lock without a value where there was none
(``add``), else the old value marked as being computed again (``cas``). The result replaces this lock, and nothing else,
by ``cas``: whatever happened to the key since has removed the lock, and then the result is not stored.

* Only a client that has stored a lock, or has a server's lease, computes.
* What a client removes or replaces is what it has read: every write is an ``add`` or a ``cas``.
* What is replaced by the CAS number of a lock is the lock: the number is sent only where it is valid (:class:`Scope`).
  Elsewhere the lock's own number is compared first.
* The exception: a lock without tags whose time in the server has passed. Then ``add`` stores the result.
"""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Dict, Generator, List, NamedTuple, Optional, Protocol, Sequence, Tuple, Union

from . import _outcome as o
from ._envelope import (
    Again,
    Damaged,
    Failed,
    Lock,
    Locked,
    Record,
    Stored,
    Value,
    open_record,
    record_flags,
    record_nonce,
    seal,
)
from ._errors import CacheError, Refused, ServerBusy, UsageError
from ._flags import OURS, UPPER, with_envelope, without_envelope
from ._keys import AnyKey
from ._near import Near
from ._options import LONGEST_MS, PASSED, Expiration, exptime, unix_ms
from ._wire import ADD, ASK, CAS, CLAIM, GET, NOT_SENT, Command, Reply, Scope, ask, delete, store

TRIES = 3
"""How often a lock that another client has just removed or taken is looked at before the caller waits."""
CLAIM_SECONDS = 2
"""How many seconds an item without a value stays if its client does not make it a lock at once."""
FAILURE_MS = 2000
"""How long the text of a failed computation stays for the callers that wait for it."""


class Batch:
    """Send these commands, each to the server of its key, all at once. Result: a reply or error for each."""

    __slots__ = ("commands",)

    def __init__(self, commands: List[Command]) -> None:
        self.commands = commands


class Sleep:
    """Wait this many seconds."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class Wait:
    """Wait until the waiter is woken, this many seconds at most."""

    __slots__ = ("seconds", "waiter")

    def __init__(self, waiter: Waiter, seconds: float) -> None:
        self.waiter = waiter
        self.seconds = seconds


class Invoke:
    """Call a function of the program. Result: what it returns; under asyncio an awaitable is awaited."""

    __slots__ = ("args", "function")

    def __init__(self, function: Callable[..., Any], args: Tuple[Any, ...] = ()) -> None:
        self.function = function
        self.args = args


class Spawn:
    """Let this generator run by itself; its errors reach no caller."""

    __slots__ = ("machine",)

    def __init__(self, machine: Machine) -> None:
        self.machine = machine


Op = Union[Batch, Sleep, Wait, Invoke, Spawn]
Machine = Generator[Op, Any, Any]
Replies = List[Union[Reply, CacheError]]


class Event(Protocol):
    """What a waiter is woken by: ``threading.Event`` has it."""

    def set(self) -> None:
        """Wakes."""


class Waiter:
    """A caller that waits for what another caller of this process finds or computes."""

    __slots__ = ("arrival", "event", "found", "has_new")

    def __init__(self, event: Any, arrival: int) -> None:
        self.event = event
        self.arrival = arrival
        self.found: Optional[Found] = None
        self.has_new = False
        """Whether it has been woken since it began to wait."""

    def wake(self, found: Optional[Found]) -> None:
        """Wakes it; ``found`` is its answer, if it is one."""
        if found is not None:
            self.found = found
        self.has_new = True
        self.event.set()


class Transport(Protocol):
    """What a driver tells the machines of its connections."""

    def scope(self) -> Optional[Scope]:
        """Where CAS numbers are valid that come with replies to what is sent from now on; None: not known."""


class Terms(NamedTuple):
    """How a client computes."""

    lock_ms: int
    """How long its lock is valid."""
    keep_s: int
    """How long the server keeps the lock: longer by a second, in which a delete is still noticed, and by another, since
    servers count whole seconds and drop an item up to a second early."""
    stale: bool = True
    """Whether the old value is of use while a new one is computed."""
    awaited: Optional[int] = None
    """The number of a lock that this client waits for: if that computation fails, it is told."""

    def is_late(self, since: float) -> bool:
        """Whether the server may have dropped a lock that was taken this long ago only because its time has passed."""
        return since >= self.keep_s - 1


def terms(lock_ms: int, stale: bool = True) -> Terms:
    """The terms of a lock that is valid for this long."""
    return Terms(lock_ms, -(-lock_ms // 1000) + 2, stale)


def fetch_terms(lock_ms: int) -> Terms:
    """Those of a token. Kept twice as long, so that a late result is stored if no other client computes."""
    return Terms(lock_ms, 2 * -(-lock_ms // 1000) + 1, False)


class Subject(NamedTuple):
    """What a computation is about."""

    key: bytes
    tags: Tuple[str, ...] = ()
    """Tags of everything that is written, locks included: invalidating a tag ends the computation."""
    given: AnyKey = b""
    """The key as the caller named it."""


HIT = "hit"
STALE = "stale"
GRANTED = "granted"
BUSY_SERVER = "busy by server"
BUSY_LOCK = "busy by lock"
BUSY_CHANGING = "busy changing"
FAILED = "failed"
ALONE = "alone"
"""Each caller computes for itself."""
BUSY = frozenset((BUSY_SERVER, BUSY_LOCK, BUSY_CHANGING))


class Found:
    """What asking for a value has brought."""

    __slots__ = ("grant", "hint", "kind", "nonce", "stored", "text")

    def __init__(
        self,
        kind: str,
        stored: Optional[Stored] = None,
        grant: Optional[Grant] = None,
        nonce: int = 0,
        hint: bytes = b"",
        text: bytes = b"",
    ) -> None:
        self.kind = kind
        self.stored = stored
        self.grant = grant
        self.nonce = nonce
        self.hint = hint
        self.text = text


class Locking(NamedTuple):
    """A lock before it is written."""

    cas: Optional[int]
    """The CAS number of the item that it replaces; None: there is none, the command is ``add``."""
    old: Optional[Stored] = None
    """The old value, if it may still be served."""
    hint: Optional[bytes] = None
    """The hint of the lock that it replaces."""


LEASE = "lease"
LOCK = "lock"
NOTHING = "nothing"


class Grant:
    """The right to compute a value. It has to be ended by :func:`settle`."""

    __slots__ = (
        "began",
        "cas",
        "hint",
        "is_over",
        "kind",
        "nonce",
        "old",
        "on_end",
        "pid",
        "scope",
        "subject",
        "taken",
        "terms",
        "token",
    )

    def __init__(self, subject: Subject, kind: str, terms: Terms) -> None:
        self.subject = subject
        self.kind = kind
        """``lease`` of a server; ``lock`` in place of the item; ``nothing``: the value is not stored."""
        self.terms = terms
        self.token = 0
        self.nonce = 0
        self.cas: Optional[int] = None
        """The CAS number of the lock, if it is known and where it is valid."""
        self.scope: Optional[Scope] = None
        self.began = self.taken = time.monotonic()
        self.old: Optional[Stored] = None
        self.hint: Optional[bytes] = None
        self.on_end: Optional[Any] = None
        """The callers of this process that wait for the end: :class:`Running`."""
        self.pid = os.getpid()
        self.is_over = False


class Fill(NamedTuple):
    """The value that a computation has brought."""

    data: bytes
    flags: int
    expiration: Expiration
    grace_ms: Optional[int]
    """How long it is served after its expiry, over a server without leases. None: the server alone knows its expiry."""


class Ending(NamedTuple):
    """How a computation ends: with a value, or without one. A text is told to the callers that wait for it."""

    fill: Optional[Fill] = None
    text: Optional[str] = None
    skips: bool = False
    """There is a value, and it is not to be stored: callers need not compute one after the other."""


class End(NamedTuple):
    """How a computation has ended, for the callers of this process that wait for it."""

    kind: str
    """``stored``: the value is in the cache, and nothing has happened to the key since; ``unstorable``: it cannot be
    stored; ``failed``: with its text; ``skipped``: it is not to be stored; ``again``: look again."""
    stored: Optional[Stored] = None
    text: bytes = b""


Kept = Union[None, o.NotStored]
"""None: the value is in the cache."""


def open_item(reply: Reply) -> Record:
    """The record of an item."""
    flags = without_envelope(reply.flags)
    if flags is None:
        return Value(Stored(reply.data, reply.flags))
    return open_record(reply.data, flags)


def value_of(reply: Reply) -> Optional[Stored]:
    """The value of an item that its server has judged."""
    record = open_item(reply)
    return record.stored if isinstance(record, (Value, Again)) else None


First = Tuple[Union[Reply, CacheError], Optional[Scope]]
"""The reply or error of the first question, and where a CAS number in it is valid."""


SLOW_KEYS = 1000
"""Most keys of which it is known that computing them takes longer than was estimated."""


class Asker:
    """Asks servers for values and for the right to compute them, and ends computations."""

    def __init__(self, transport: Transport, clock: Callable[[], float]) -> None:
        self.transport = transport
        self.clock = clock
        self.near: Optional[Near] = None
        """Values in this process's memory: what is stored here ends their entries."""
        self.slow_ms: Dict[bytes, int] = {}
        """Keys whose computation has taken longer than their lock was valid, and how long the next lock is valid: twice as
        long as that took. Else each computation would be overtaken by the next, and none be stored."""

    def now_ms(self) -> int:
        """Unix milliseconds."""
        return int(self.clock() * 1000)

    def acquire(
        self, subject: Subject, how: Terms, wait_ms: int, hint: bytes, outlives: bool, first: Optional[First] = None
    ) -> Generator[Op, Any, Found]:
        """Asks for a value, and for the right to compute it if it is missing or has expired."""
        refused = 0
        for _ in range(TRIES):
            scope = self.transport.scope()
            if first is not None:
                (asked, scope), first = first, None
                reply = one([asked])
            else:
                reply = one((yield Batch([ask(subject.key, how.lock_ms, wait_ms, hint, outlives)])))
            found = self.judge(subject, reply, how)
            if isinstance(found, Found):
                return found
            attempt = Attempt(self, subject, found, how, hint)
            written: Union[Reply, CacheError]
            try:
                if found.cas is None and refused > 0:
                    written = (yield from self.claim([attempt], scope))[0]
                else:
                    written = (yield Batch([attempt.command(scope)]))[0]
            except GeneratorExit:
                raise  # dropped: nothing can be sent any more
            except BaseException:
                # The server may have stored it all the same.
                yield Spawn(self.settle([(attempt.grant(None), Ending())]))
                raise
            refused += attempt.is_refused(written)
            taken = attempt.judge(written)
            if isinstance(taken, CacheError):
                if not isinstance(taken, (Refused, ServerBusy)):
                    yield Spawn(self.settle([(attempt.grant(None), Ending())]))
                raise taken
            if taken is not None:
                return taken
        if refused == TRIES:
            return without_lock(subject, how)
        return Found(BUSY_CHANGING)

    def attempt(self, subject: Subject, locking: Locking, how: Terms) -> Attempt:
        """A lock that is about to be written."""
        return Attempt(self, subject, locking, how, b"")

    def claim(self, attempts: List[Attempt], scope: Optional[Scope]) -> Generator[Op, Any, Replies]:
        """Writes locks of absent keys whose ``add`` was refused: Cattlegrid drops a value that was computed before a
        delete, and takes the ``add`` for such a value."""
        replies: Replies = yield Batch([Command(CLAIM, at.subject.key, exptime=CLAIM_SECONDS) for at in attempts])
        out: Replies = []
        won, unknown = [], []
        for at, reply in zip(attempts, replies):
            if isinstance(reply, Refused):
                out.append(Reply("NS"))
            elif isinstance(reply, CacheError):
                out.append(reply)
            elif reply.kind == "HD" and reply.won and not reply.stale and reply.cas:
                won.append((len(out), at.command(scope, reply.cas)))
                out.append(Reply("NF"))
            else:
                if reply.kind in ("EN", "END"):
                    # It makes no such items: another client was faster, and may have given up since.
                    unknown.append((len(out), at.command(scope)))
                out.append(Reply("NS"))
        if unknown:
            added: Replies = yield Batch([command for _, command in unknown])
            for (place, _), reply in zip(unknown, added):
                out[place] = reply
        if won:
            swapped: Replies = yield Batch([command for _, command in won])
            for (place, _), reply in zip(won, swapped):
                out[place] = Reply("NF") if reply is NOT_SENT else reply
        return out

    def judge(self, subject: Subject, reply: Reply, how: Terms) -> Union[Found, Locking]:
        """What an answer means."""
        kind = reply.kind
        if kind == "EN" or kind == "END":
            if reply.text is not None:
                return Found(FAILED, text=reply.text)
            return Locking(None)
        if kind != "VA":
            raise UsageError(f"unexpected reply: {reply}")
        if reply.won:
            grant = Grant(subject, LEASE, how)
            grant.token = reply.cas or 0
            grant.hint = reply.text
            if reply.stale or reply.data:
                grant.old = value_of(reply)
            return Found(GRANTED, grant=grant)
        if reply.stale:
            old = value_of(reply)
            return Found(BUSY_SERVER) if old is None else Found(STALE, old)
        if reply.busy and not reply.data:
            return Found(BUSY_SERVER)
        return self.decide(open_item(reply), reply.cas or 0, how)

    def decide(self, record: Record, cas: int, how: Terms) -> Union[Found, Locking]:
        """What to do about an item of a server without leases."""
        now_ms = self.now_ms()
        if isinstance(record, (Value, Again)):
            stored = record.stored
            if isinstance(record, Value) and stored.is_fresh(now_ms):
                return Found(HIT, stored)
            usable = stored if how.stale and stored.is_usable(now_ms) else None
            if isinstance(record, Again) and now_ms < record.lock.until_ms:
                return Found(BUSY_LOCK, nonce=record.lock.nonce) if usable is None else Found(STALE, usable)
            return Locking(cas, usable)
        if isinstance(record, Locked):
            if now_ms < record.lock.until_ms:
                return Found(BUSY_LOCK, nonce=record.lock.nonce, hint=record.hint)
            return Locking(cas, None, record.hint)
        if isinstance(record, Failed) and how.awaited == record.lock.nonce:
            return Found(FAILED, text=record.text)
        return Locking(cas)

    def settle(self, all_: Sequence[Tuple[Grant, Ending]]) -> Generator[Op, Any, List[Union[Kept, CacheError]]]:
        """Ends computations, with as few round trips as possible, and tells the callers that wait: for each None if its
        value was stored, or why not, or the error."""
        keys = [grant.subject.key for grant, ending in all_ if ending.fill is not None]
        if self.near is None or not keys:
            return (yield from self._settle(all_))
        with self.near.writing(keys):
            return (yield from self._settle(all_))

    def _settle(self, all_: Sequence[Tuple[Grant, Ending]]) -> Generator[Op, Any, List[Union[Kept, CacheError]]]:
        settling = [_Settling(self, grant, ending) for grant, ending in all_ if not grant.is_over]
        for each in settling:
            each.grant.is_over = True
            self._note_time(each.grant, each.ending)
            # Before anything is sent: the server may have stored the value, and the key may have been deleted after
            # that, long before the reply is here. The callers that have joined arrived before all this.
            if each.grant.on_end is not None:
                each.grant.on_end.leave()
        try:
            yield from self._rounds(settling)
            results = [each.result() for each in settling]
            refused = []
            ends = [(each.grant.on_end, each.end()) for each in settling]
            for each in settling:
                if each.leaves_lock():
                    if each.changed:
                        each.grant.cas, each.grant.old = None, None
                    refused.append(_Settling(self, each.grant, Ending()))
            if refused:
                yield from self._rounds(refused)
            for running, end in ends:
                if running is not None:
                    running.end(end)
        finally:
            for each in settling:
                if each.grant.on_end is not None:
                    each.grant.on_end.end(End("again"))
        return results

    def _note_time(self, grant: Grant, ending: Ending) -> None:
        took_ms = int((time.monotonic() - grant.taken) * 1000)
        key = grant.subject.key
        if grant.kind != LOCK or ending.fill is None or (took_ms <= grant.terms.lock_ms and key not in self.slow_ms):
            return
        if len(self.slow_ms) >= SLOW_KEYS:
            self.slow_ms.clear()
        self.slow_ms[key] = min(2 * took_ms, LONGEST_MS)

    def terms_of(self, key: bytes, how: Terms) -> Terms:
        """The terms of a lock of this key."""
        lock_ms = self.slow_ms.get(key, 0)
        if lock_ms <= how.lock_ms:
            return how
        return how._replace(lock_ms=lock_ms, keep_s=how.keep_s + -(-(lock_ms - how.lock_ms) // 1000))

    def _rounds(self, settling: List[_Settling]) -> Generator[Op, Any, None]:
        while True:
            going = [each for each in settling if not each.is_done]
            if not going:
                return
            scope = self.transport.scope()
            replies = yield Batch([each.command() for each in going])
            for each, reply in zip(going, replies):
                each.go_on(reply, scope)


def one(replies: Replies) -> Reply:
    """The reply to a single command. Raises its error."""
    reply = replies[0]
    if isinstance(reply, CacheError):
        raise reply
    return reply


def without_lock(subject: Subject, how: Terms) -> Found:
    """The right to compute a value that cannot be stored: no lock was taken, and no other client has one."""
    return Found(GRANTED, grant=Grant(subject, NOTHING, how))


class Attempt:
    """A lock that is being written."""

    def __init__(self, asker: Asker, subject: Subject, locking: Locking, how: Terms, hint: bytes) -> None:
        now_ms = asker.now_ms()
        self.subject = subject
        self.locking = locking
        self.terms = how
        self.nonce = int.from_bytes(os.urandom(8), "big")
        lock = Lock(now_ms + how.lock_ms, self.nonce)
        keep_ms = how.keep_s * 1000
        self._record: Record
        if locking.old is None:
            self._record = Locked(hint if locking.hint is None else locking.hint, lock)
        else:
            # An old value is kept for as long as it may be served, whatever becomes of the computation.
            self._record = Again(locking.old, lock)
            keep_ms = max(keep_ms, locking.old.dead_ms - now_ms)
        self._exptime = exptime(("after", keep_ms), now_ms) or PASSED
        self.scope = asker.transport.scope()
        # The lock's time begins later in the server than here: it is sent after this.
        self.taken = time.monotonic()

    def command(self, scope: Optional[Scope], cas: Optional[int] = None) -> Command:
        """The command that writes it; ``scope`` is where the number is valid that it replaces."""
        cas = self.locking.cas if cas is None else cas
        data, flags = seal(self._record), with_envelope(record_flags(self._record))
        key, tags = self.subject.key, self.subject.tags
        if cas is None:
            return store(ADD, key, data, flags, self._exptime, tags)
        return store(CAS, key, data, flags, self._exptime, tags, cas, scope)

    def is_refused(self, written: Union[Reply, CacheError]) -> bool:
        """Whether the key was absent and no lock could be taken."""
        return self.locking.cas is None and not isinstance(written, CacheError) and written.kind in ("NS", "NOT_STORED")

    def grant(self, cas: Optional[int]) -> Grant:
        """The right to compute."""
        grant = Grant(self.subject, LOCK, self.terms)
        grant.nonce = self.nonce
        if cas is not None and self.scope is not None:
            grant.cas, grant.scope = cas, self.scope
        grant.taken = self.taken
        grant.old, grant.hint = self.locking.old, self.locking.hint
        return grant

    def judge(self, written: Union[Reply, CacheError]) -> Union[Found, CacheError, None]:
        """What the reply to it means. None: another client was faster."""
        if isinstance(written, CacheError):
            return written
        if written.kind in ("HD", "STORED"):
            return Found(GRANTED, grant=self.grant(written.cas))
        if written.kind in ("EX", "EXISTS") and self.locking.old is not None:
            return Found(STALE, self.locking.old)
        return None


_FILL = "fill"
_GIVE_UP = "give up"
_READ = "read"
_CAS = "cas"
_ADD = "add"
_DONE = "done"


class _Settling:
    """A computation that ends."""

    def __init__(self, asker: Asker, grant: Grant, ending: Ending) -> None:
        self.grant = grant
        self.ending = ending
        self.changed = False
        self.passed = False
        """The value has expired already, and its lock is removed."""
        self._reads = 0
        self._cas = grant.cas
        self._scope = grant.scope
        self._stored = self._fenced = False
        self._error: Optional[CacheError] = None
        now_ms = asker.now_ms()
        sealed = None
        if ending.fill is not None:
            sealed = _sealed_value(ending.fill, grant.kind == LEASE, now_ms)
            self.passed = sealed is None
        if grant.kind == LEASE:
            self._next = _GIVE_UP if sealed is None else _FILL
        elif grant.kind == LOCK:
            self._next = _READ if grant.cas is None else _CAS
        else:
            self._next = _DONE
        self._sealed = sealed or self._end_of_lock(now_ms)

    def _end_of_lock(self, now_ms: int) -> Tuple[bytes, int, int]:
        """What replaces the lock if there is no value."""
        grant, text = self.grant, self.ending.text
        record: Record
        if text is not None and grant.kind == LOCK:
            record = Failed(text.encode("utf-8", "replace"), Lock(0, grant.nonce))
            return seal(record), with_envelope(0), exptime(("after", FAILURE_MS), now_ms) or PASSED
        if grant.old is not None and grant.old.is_usable(now_ms):
            record = Value(grant.old)
            left = grant.old.dead_ms - now_ms
            when: Expiration = ("after", left) if grant.old.dead_ms else None
            last = exptime(when, now_ms)
            return seal(record), with_envelope(grant.old.flags), PASSED if last is None else last
        return b"", 0, PASSED

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to send."""
        return self._next is _DONE

    def command(self) -> Command:
        """What is sent next."""
        key, tags = self.grant.subject.key, self.grant.subject.tags
        step = self._next
        if step is _GIVE_UP:
            return delete(key, self.grant.token, self.ending.text)
        if step is _READ:
            return Command(GET, key)
        data, flags, last = self._sealed
        if step is _FILL:
            return store(CAS, key, data, flags, last, tags, self.grant.token)
        if step is _CAS:
            return store(CAS, key, data, flags, last, tags, self._cas, self._scope)
        return store(ADD, key, data, flags, last, tags)

    def go_on(self, reply: Union[Reply, CacheError], scope: Optional[Scope]) -> None:
        """After the reply to it. ``scope`` is where a CAS number in it is valid."""
        step, self._next = self._next, _DONE
        if isinstance(reply, CacheError):
            self._error = reply
            return
        kind = reply.kind
        is_stored = kind in ("HD", "STORED")
        if step is _GIVE_UP:
            self._stored = self._fenced = self.passed
        elif step is _READ:
            self._read(reply, scope)
        elif step is _FILL:
            self._stored = self._fenced = is_stored
        elif step is _ADD:
            self._stored = is_stored
        elif reply is NOT_SENT:
            # The number may be that of another item by now: the lock is looked for.
            self._next = _READ if self._reads < TRIES else _DONE
        elif is_stored:
            self._stored = self._fenced = True
        elif kind in ("EX", "EXISTS"):
            self.changed = True
        elif self._is_late():
            self._next = _ADD

    def _read(self, reply: Reply, scope: Optional[Scope]) -> None:
        self._reads += 1
        if reply.kind == "VA" and not (reply.busy and not reply.data):
            if record_nonce(open_item(reply)) == self.grant.nonce:
                self._cas, self._scope, self._next = reply.cas, scope, _CAS
        elif self._is_late():
            self._next = _ADD

    def _is_late(self) -> bool:
        """Whether the lock's time in the server may have passed, so that the value is stored nevertheless. Not one with
        tags: the server judges it by the time at which it comes, and would serve it although a tag was invalidated
        since the computation began."""
        return (
            self.grant.kind == LOCK
            and self.ending.fill is not None
            and not self.passed
            and not self.grant.subject.tags
            and self.grant.terms.is_late(time.monotonic() - self.grant.taken)
        )

    def leaves_lock(self) -> bool:
        """Whether the lock may still be there although its computation has ended."""
        if self.grant.kind == NOTHING:
            return False
        return self.changed or (self.ending.fill is not None and self._error is not None)

    def end(self) -> End:
        """What it is to the callers of this process that wait."""
        fill = self.ending.fill
        if fill is None:
            if self.ending.text is None:
                return End("skipped" if self.ending.skips else "again")
            return End("failed", text=self.ending.text.encode("utf-8", "replace"))
        stored = Stored(fill.data, fill.flags)
        if (self._stored and self.passed) or self._error is not None or self.grant.kind == NOTHING:
            return End("unstorable", stored)
        return End("stored", stored) if self._stored and self._fenced else End("again")

    def result(self) -> Union[Kept, CacheError]:
        """None: the value was stored."""
        if self._error is not None:
            return self._error
        if self._stored and not self.passed and self.ending.fill is not None:
            return None
        if self.passed:
            return o.NotStored(o.EXPIRED)
        grant = self.grant
        if grant.kind == NOTHING:
            return o.NotStored(o.NO_LEASE)
        since = grant.began if grant.kind == LEASE else grant.taken
        late = (time.monotonic() - since) * 1000 >= grant.terms.lock_ms
        return o.NotStored(o.LATE if late else o.FENCED)


def _sealed_value(fill: Fill, leased: bool, now_ms: int) -> Optional[Tuple[bytes, int, int]]:
    """A value in the form of the server: bytes, flags, exptime. None: it has expired already."""
    at_ms = unix_ms(fill.expiration, now_ms)
    if at_ms is not None and at_ms <= now_ms:
        # In its grace it could be served, but no caller would find it fresh.
        return None
    stored = Stored(fill.data, fill.flags)
    grace_ms = None if leased else fill.grace_ms
    if grace_ms is not None and at_ms is not None:
        soft_ms = max(at_ms, 1)
        stored = Stored(fill.data, fill.flags, soft_ms, soft_ms + grace_ms)
    last = exptime(fill.expiration, now_ms, grace_ms or 0)
    if last is None:
        return None
    if fill.flags and fill.flags & UPPER != OURS and not stored.soft_ms:
        # The format of another client, such as Django's: as that client stores it.
        return fill.data, fill.flags, last
    return seal(Value(stored)), with_envelope(fill.flags), last


def not_stored_of(end: Union[Kept, CacheError]) -> Kept:
    """The end of a computation without its errors."""
    if not isinstance(end, CacheError):
        return end
    return o.NotStored(o.TOO_LARGE, end) if is_too_large(end) else o.NotStored(o.FAILED, end)


def is_too_large(error: CacheError) -> bool:
    """Whether the server takes no value of this size."""
    return isinstance(error, ServerBusy) and "too large" in error.line


__all__ = [
    "ASK",
    "Asker",
    "Batch",
    "Damaged",
    "End",
    "Ending",
    "Fill",
    "Found",
    "Grant",
    "Invoke",
    "Machine",
    "Op",
    "Sleep",
    "Spawn",
    "Subject",
    "Terms",
    "Transport",
    "Wait",
    "Waiter",
    "fetch_terms",
    "not_stored_of",
    "terms",
]
