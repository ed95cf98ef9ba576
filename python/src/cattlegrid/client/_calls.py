"""The calls of :class:`Cache` and :class:`AsyncCache`, as machines. No I/O."""

from __future__ import annotations

import contextlib
from typing import (
    Any,
    Callable,
    ContextManager,
    Dict,
    Generator,
    Iterable,
    List,
    Mapping,
    Optional,
    Protocol,
    Sequence,
    Tuple,
    Union,
)

from . import _machine as m
from ._envelope import Damaged, Failed, Locked
from ._errors import CacheError, ConnectionFailed, NoTags, ProtocolError, Refused, UnreadableValue, UsageError
from ._flags import without_envelope
from ._herd import Codec, Herd, Search
from ._keys import TAGS_MAX, AnyKey, key_bytes, tag_text
from ._machine import Batch, Ending, Fill, Replies, Subject
from ._near import Near, left_of
from ._options import (
    COMPUTE_TIMEOUT,
    HINT_MAX,
    LONGEST_MS,
    Duration,
    Ttl,
    expiration,
    milliseconds,
    plain_exptime,
    seconds,
)
from ._wire import (
    CALL,
    FLUSH,
    GAT,
    GET,
    INVALIDATE,
    LOOK,
    STATS,
    TAG_NUMBER,
    TOUCH,
    VERSION,
    Command,
    Reply,
    Scope,
    ask,
    delete,
    percent,
    store,
    unpercent,
)

Call = Generator[Any, Any, Any]
Tags = Union[str, Iterable[str]]


class ToAll:
    """Send these commands to every server. Result: the names of the servers, and the replies of each."""

    __slots__ = ("commands",)

    def __init__(self, commands: List[Command]) -> None:
        self.commands = commands


class Transport(Protocol):
    """What the calls ask of a driver's connections, besides I/O."""

    has_tags: bool
    """Whether tags can be named, if the servers have them."""

    def scope(self) -> Optional[Scope]:
        """See :class:`_machine.Transport`."""


def tags_of(tags: Tags, key: AnyKey = b"") -> Tuple[str, ...]:
    """Checked tags: those given, and those of the key. Raises :class:`UsageError`."""
    given = (tags,) if isinstance(tags, str) else tuple(tags)
    own = () if type(key) is str else getattr(key, "tags", ())
    if not given and not own:
        return ()
    every = tuple(dict.fromkeys((*own, *(tag_text(tag) for tag in given))))
    if len(every) > TAGS_MAX:
        raise UsageError(f"more than {TAGS_MAX} tags of an item are not possible: {every[TAGS_MAX]!r} and all after it")
    return every


class Calls:
    """Machines of all calls but those that compute."""

    def __init__(
        self, herd: Herd, transport: Transport, codec: Codec, prefix: bytes, clock: Callable[[], float]
    ) -> None:
        self.herd = herd
        self._transport = transport
        self._codec = codec
        self.prefix = prefix
        self._clock = clock
        self.near: Optional[Near] = None
        self.patience = b""
        """Flags of a plain read: how long a server may hold it, so that it is answered before the client gives up."""

    def _near_for(self, key: AnyKey, data: bytes) -> Optional[Near]:
        """The near cache, if it is used for this key: what is invalidated by its tags keeps its key."""
        near = self.near
        if near is None or bool(getattr(key, "tags", None)) or data.startswith(b"@"):
            return None
        return near

    def _writing(self, *keys: bytes) -> ContextManager[Any]:
        """Around an own write."""
        return _NOTHING if self.near is None else self.near.writing(keys)

    def subject(self, key: AnyKey, tags: Tags) -> Subject:
        """What a computation is about. Raises :class:`InvalidKey`, :class:`UsageError`, :class:`NoTags`."""
        return Subject(key_bytes(key, self.prefix), self._tags(tags, key), key)

    def _tags(self, tags: Tags, key: AnyKey) -> Tuple[str, ...]:
        every = tags_of(tags, key)
        if every and not self._transport.has_tags:
            raise NoTags()
        return every

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def value(self, key: bytes, reply: Reply, default: Any) -> Any:
        """The value of an item, or the default: it is absent, has expired or is being computed. Raises
        :class:`UnreadableValue`."""
        if reply.kind != "VA" or (reply.busy and not reply.stale and not reply.data):
            return default
        record = m.open_item(reply)
        if isinstance(record, (Locked, Failed, Damaged)) or not record.stored.is_fresh(self._now_ms()):
            return default
        try:
            return self._codec.decode(record.stored.data, record.stored.flags)
        except ValueError as error:
            raise UnreadableValue(key, str(error)) from error

    def get(self, key: AnyKey, default: Any) -> Call:
        """``get``."""
        data = key_bytes(key, self.prefix)
        near = self._near_for(key, data)
        if near is not None:
            item = near.get(data)
            if item is not None:
                self.herd.observer.near_hit()
                return self.value(data, Reply("VA", *item), default)
            reading = near.reading(data)
            reply = m.one((yield Batch([Command(GET, data, b" t" + self.patience)])))
            _keep(near, data, reading, reply)
            return self.value(data, reply, default)
        return self.value(data, m.one((yield Batch([Command(GET, data, self.patience)]))), default)

    def gets(self, key: AnyKey, default: Any) -> Call:
        """``gets``."""
        data = key_bytes(key, self.prefix)
        reply = m.one((yield Batch([Command(GET, data, self.patience)])))
        missing = object()
        value = self.value(data, reply, missing)
        return (default, None) if value is missing else (value, reply.cas)

    def get_and_touch(self, key: AnyKey, ttl: Ttl, default: Any) -> Call:
        """``gat``."""
        data = key_bytes(key, self.prefix)
        command = Command(GAT, data, self.patience, exptime=plain_exptime(ttl, self._now_ms()))
        with self._writing(data):
            return self.value(data, m.one((yield Batch([command]))), default)

    def peek(self, key: AnyKey, default: Any) -> Call:
        """Looks without computing, waiting or taking a lease."""
        data = key_bytes(key, self.prefix)
        reply = m.one((yield Batch([Command(LOOK, data)])))
        if reply.kind != "HD":
            # Text commands bring the value at once.
            return self.value(data, reply, default)
        if reply.stale:
            return default
        reply = m.one((yield Batch([ask(data, 1000)])))
        if reply.won:
            # It has gone or is due for a refresh: that is for a client that computes.
            yield Batch([delete(data, reply.cas)])
            return self.value(data, reply, default) if reply.data else default
        return default if reply.stale else self.value(data, reply, default)

    def get_many(self, keys: Iterable[AnyKey]) -> Call:
        """The values that there are, by the keys as they were given."""
        named = {key: key_bytes(key, self.prefix) for key in keys}
        if not named:
            return {}
        missing = object()
        values = {}
        if self.near is not None:
            return (yield from self._get_many_near(self.near, named))
        replies = yield Batch([Command(GET, data, self.patience) for data in named.values()])
        for (key, data), reply in zip(named.items(), _checked(replies)):
            value = self.value(data, reply, missing)
            if value is not missing:
                values[key] = value
        return values

    def _get_many_near(self, near: Near, named: Dict[AnyKey, bytes]) -> Call:
        replies: Dict[AnyKey, Reply] = {}
        asked: Dict[AnyKey, Any] = {}
        for key, data in named.items():
            item = near.get(data) if self._near_for(key, data) is not None else None
            if item is None:
                asked[key] = near.reading(data)
            else:
                self.herd.observer.near_hit()
                replies[key] = Reply("VA", *item)
        if asked:
            got = _checked((yield Batch([Command(GET, named[key], b" t" + self.patience) for key in asked])))
            for (key, reading), reply in zip(asked.items(), got):
                if self._near_for(key, named[key]) is not None:
                    _keep(near, named[key], reading, reply)
                replies[key] = reply
        missing = object()
        values = {key: self.value(data, replies[key], missing) for key, data in named.items()}
        return {key: value for key, value in values.items() if value is not missing}

    def _store(self, verb: str, key: AnyKey, value: Any, ttl: Ttl, tags: Tags, cas: Optional[int] = None) -> Command:
        name = key_bytes(key, self.prefix)
        try:
            data, flags = self._codec.encode(value)
        except ValueError as error:
            raise UnreadableValue(name, str(error)) from error
        return store(verb, name, data, flags, plain_exptime(ttl, self._now_ms()), self._tags(tags, key), cas)

    def store(self, verb: str, key: AnyKey, value: Any, ttl: Ttl, tags: Tags) -> Call:
        """``set``, ``add`` and ``replace``: whether it was stored."""
        command = self._store(verb, key, value, ttl, tags)
        with self._writing(command.key):
            reply = m.one((yield Batch([command])))
        return reply.kind in ("HD", "STORED")

    def cas(self, key: AnyKey, value: Any, cas: int, ttl: Ttl, tags: Tags) -> Call:
        """``cas``: True if it was stored, False if the item has changed, None if there is none."""
        command = self._store("cas", key, value, ttl, tags, cas)
        with self._writing(command.key):
            kind = m.one((yield Batch([command]))).kind
        return None if kind in ("NF", "NOT_FOUND") else kind in ("HD", "STORED")

    def join(self, verb: str, key: AnyKey, data: bytes) -> Call:
        """``append`` and ``prepend``."""
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise UsageError(f"{verb}: bytes, not {type(data).__name__}")
        command = store(verb, key_bytes(key, self.prefix), bytes(data))
        with self._writing(command.key):
            return m.one((yield Batch([command]))).kind in ("HD", "STORED")

    def set_many(self, values: Mapping[Any, Any], ttl: Ttl, tags: Tags) -> Call:
        """The keys that were not stored."""
        commands = [self._store("set", key, value, ttl, tags) for key, value in values.items()]
        with self._writing(*(command.key for command in commands)):
            replies: Replies = (yield Batch(commands)) if commands else []
        failed = []
        for key, reply in zip(values, replies):
            if isinstance(reply, CacheError):
                if not m.is_too_large(reply):
                    raise reply
                failed.append(key)
            elif reply.kind not in ("HD", "STORED"):
                failed.append(key)
        return failed

    def delete(self, key: AnyKey) -> Call:
        """Whether there was an item."""
        data = key_bytes(key, self.prefix)
        with self._writing(data):
            return _done(m.one((yield Batch([delete(data)]))))

    def delete_many(self, keys: Iterable[AnyKey]) -> Call:
        """Of each key whether there was an item."""
        named = {key: key_bytes(key, self.prefix) for key in keys}
        with self._writing(*named.values()):
            replies: Replies = (yield Batch([delete(data) for data in named.values()])) if named else []
        return {key: _done(reply) for key, reply in zip(named, _checked(replies))}

    def touch(self, key: AnyKey, ttl: Ttl) -> Call:
        """Whether there is an item."""
        data = key_bytes(key, self.prefix)
        with self._writing(data):
            return _done(m.one((yield Batch([Command(TOUCH, data, exptime=plain_exptime(ttl, self._now_ms()))]))))

    def count(self, verb: str, key: AnyKey, by: int) -> Call:
        """``incr`` and ``decr``: the new number, None if there is no item."""
        if not isinstance(by, int) or not 0 <= by < 2**64:
            raise UsageError(f"{verb}: a whole number from 0 to 2**64 - 1, not {by!r}")
        data = key_bytes(key, self.prefix)
        with self._writing(data):
            reply = m.one((yield Batch([Command(verb, data, b"%d" % by)])))
        return int(reply.data) if reply.kind in ("VA", "NUMBER") else None

    def flush_all(self, delay: Duration) -> Call:
        """Every server drops all items."""
        head = b" %d" % int(seconds(delay, "delay")) if delay else b""
        servers = yield ToAll([Command(FLUSH, b"", head)])
        self._clear_near()
        return _every(servers)

    def version(self) -> Call:
        """The version of every server."""
        servers = yield ToAll([Command(VERSION, b"")])
        _every(servers)
        return {name: replies[0].line[8:].decode("utf-8", "replace") for name, replies in servers}

    def stats(self, group: str) -> Call:
        """The statistics of every server."""
        servers = yield ToAll([Command(STATS, group.encode())])
        _every(servers)
        return {name: replies[0].stats for name, replies in servers}

    def call(self, call: AnyKey, route: bytes) -> Call:
        """``get`` of a call, sent once to the server of its object: the bytes of the reply; None: a miss."""
        data = key_bytes(call, self.prefix)
        command = Command(CALL, data)
        command.route = self.prefix + route
        reply = m.one((yield Batch([command])))
        return reply.data if reply.kind == "VA" else None

    def invalidate(self, tags: Tags, soft: bool) -> Call:
        """Invalidates all items with any of the tags, on every server."""
        names = [tag_text(tag) for tag in ((tags,) if isinstance(tags, str) else tags)]
        if not names:
            return {}
        if not self._transport.has_tags:
            raise NoTags()
        head = b" I" if soft else b""
        prefixes = [b""]
        if self.prefix:
            prefixes = yield from self._tag_prefixes()
        commands = [
            Command(INVALIDATE, prefix + tag.encode("utf-8", "surrogateescape"), head)
            for tag in names
            for prefix in prefixes
        ]
        self._clear_near()
        servers = yield ToAll(commands)
        self._clear_near()
        return _every(servers, tags=True)

    def _clear_near(self) -> None:
        if self.near is not None:
            self.near.clear()

    def _tag_prefixes(self) -> Generator[Any, Any, List[bytes]]:
        """Before which names the servers have the tags of this cache's keys: they know its prefix (``prefixes`` of
        ``[server]``) or not."""
        probe = b"@tag:cattlegrid"
        servers = yield ToAll([Command(CALL, probe), Command(CALL, self.prefix + probe)])
        prefixes = set()
        for _, replies in servers:
            known = [not isinstance(reply, CacheError) and reply.kind == "VA" for reply in replies]
            if known[1]:
                prefixes.add(self.prefix)
            elif known[0]:
                prefixes.add(b"")
            elif not isinstance(replies[0], CacheError):
                prefixes.update((b"", self.prefix))
        return sorted(prefixes) or [b""]

    def has_tags(self) -> Call:
        """Whether every server has tags."""
        if not self._transport.has_tags:
            return False
        # Any name will do: the question creates nothing.
        servers = yield ToAll([Command(TAG_NUMBER, b"cattlegrid")])
        errors = [replies[0] for _, replies in servers if isinstance(replies[0], CacheError)]
        # One server without tags decides, though another cannot be reached.
        if any(_is_no_tags(error) for error in errors):
            return False
        if errors:
            raise errors[0]
        return True

    def search(
        self,
        key: AnyKey,
        tags: Tags,
        hint: Union[str, bytes],
        timeout: Duration,
        wait: Optional[Duration],
        outlives: bool,
    ) -> Search:
        """What ``fetch_or_compute`` looks for. Raises :class:`UsageError`."""
        data = hint.encode() if isinstance(hint, str) else bytes(hint)
        if len(percent(data, 1 << 30)) > HINT_MAX:
            raise UsageError(f"a hint has at most {HINT_MAX} bytes when percent-encoded")
        lock_ms = milliseconds(COMPUTE_TIMEOUT if timeout is None else timeout, "compute_timeout")
        waits = 2 * lock_ms / 1000 if wait is None else min(seconds(wait, "wait"), LONGEST_MS / 1000)
        search = Search(self.subject(key, tags), m.fetch_terms(lock_ms), waits, True, data)
        search.outlives = outlives
        return search

    def fill(self, grant: m.Grant, value: Any, ttl: Ttl, grace_ms: Optional[int]) -> Tuple[Ending, bool]:
        """How a token ends with which this value is delivered, and whether it is not stored."""
        when = expiration(ttl)
        if when is not None and when[0] == "after" and grace_ms is None:
            when = ("after", max(when[1], 1))
        ending, _, skipped = self.herd.ending(grant.subject.key, value, when, grace_ms)
        return ending, skipped


def Routed(command: Command, route: bytes) -> Command:
    """A command that is sent to the server of another key."""
    command.route = route
    return command


def cut(text: str) -> str:
    """As much of a text as can be sent."""
    data = percent(text.encode("utf-8", "replace"), HINT_MAX)
    return unpercent(data).decode("utf-8", "replace") or "failed"


_NOTHING = contextlib.nullcontext()


def _keep(near: Near, key: bytes, reading: Any, reply: Reply) -> None:
    """Keeps a plain value in this process; not those of ``get_or_compute``."""
    if (
        reply.kind == "VA"
        and reply.left is not None
        and without_envelope(reply.flags) is None
        and not (reply.busy or reply.stale)
    ):
        near.insert(key, reading, reply.data, reply.flags, left_of(reply.left))


def _done(reply: Reply) -> bool:
    return reply.kind in ("HD", "DELETED", "TOUCHED")


def _checked(replies: Replies) -> List[Reply]:
    out = []
    for reply in replies:
        if isinstance(reply, CacheError):
            raise reply
        out.append(reply)
    return out


def _is_no_tags(error: CacheError) -> bool:
    """Whether a server that answers so has no tags; a user who is not allowed to invalidate is told that."""
    return isinstance(error, NoTags) or (isinstance(error, Refused) and "not allowed" not in error.line)


def _every(servers: Sequence[Tuple[str, Replies]], tags: bool = False) -> Dict[str, bool]:
    """True for every server. Raises an error that names those that failed; its ``results`` has what each has said."""
    results: Dict[str, Any] = {}
    for name, replies in servers:
        errors = [reply for reply in replies if isinstance(reply, CacheError)]
        results[name] = errors[0] if errors else True
    failed = {name: error for name, error in results.items() if error is not True}
    if not failed:
        return results
    if tags and any(_is_no_tags(error) for error in failed.values()):
        raised: CacheError = NoTags()
    elif len(failed) == 1:
        raised = next(iter(failed.values()))
    else:
        raised = ConnectionFailed(", ".join(failed), "; ".join(map(str, failed.values())), list(failed))
    raised.results = results  # type: ignore[attr-defined]
    raised.servers = tuple(failed)  # type: ignore[attr-defined]
    raise raised


__all__ = ["Calls", "Fill", "ProtocolError", "Routed", "Tags", "ToAll", "cut", "tags_of"]
