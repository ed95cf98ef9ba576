"""Commands as bytes, and replies as values. No I/O.

* A command has exactly one reply, also if that is an error.
* Replies of the meta protocol end with the number with which their command was sent, its opaque; a reply with another
  number, or of a kind that does not belong to the command, breaks the connection, so that no answer is ever taken for
  that of another command.
* Keys have been checked: 1 to 250 bytes without blanks and control characters.
"""

from __future__ import annotations

from typing import Dict, FrozenSet, List, Optional, Sequence, Tuple

from ._errors import CacheError, ProtocolError, Refused, ServerBusy

META = "meta"
TEXT = "text"

ASK = "ask"
GET = "get"
GAT = "gat"
LOOK = "look"
CLAIM = "claim"
SET = "set"
ADD = "add"
REPLACE = "replace"
APPEND = "append"
PREPEND = "prepend"
CAS = "cas"
INCR = "incr"
DECR = "decr"
DELETE = "delete"
TOUCH = "touch"
INVALIDATE = "invalidate"
TAG_NUMBER = "tags"
FLUSH = "flush_all"
VERSION = "version"
STATS = "stats"
CALL = "call"
PROBE = "probe"

STORES = frozenset((SET, ADD, REPLACE, APPEND, PREPEND, CAS))
READS = frozenset((GET, ASK, LOOK, TAG_NUMBER, VERSION, STATS, PROBE))
_CLASSIC = frozenset((TOUCH, FLUSH, VERSION, STATS, CALL, PROBE))
_MODES = {SET: b"", CAS: b"", ADD: b" ME", REPLACE: b" MR", APPEND: b" MA", PREPEND: b" MP"}
ADVICE_MAX = 512
LINE_MAX = 65536


class Command:
    """One command. :attr:`verb` is its name, as hooks are told it."""

    __slots__ = ("cas", "data", "exptime", "flags", "head", "key", "route", "scope", "tags", "verb", "wait")

    def __init__(
        self,
        verb: str,
        key: bytes,
        head: bytes = b"",
        data: bytes = b"",
        flags: int = 0,
        exptime: int = 0,
        cas: Optional[int] = None,
        tags: Sequence[str] = (),
        scope: Optional[Scope] = None,
        wait: float = 0.0,
    ) -> None:
        self.verb = verb
        self.key = key
        self.head = head
        """The rest of the line, of verbs that have one of their own."""
        self.data = data
        self.flags = flags
        self.exptime = exptime
        self.cas = cas
        self.tags = tags
        self.scope = scope
        """Sent only where the CAS number is valid; otherwise the reply is :data:`NOT_SENT`."""
        self.route: Optional[bytes] = None
        """Sent to the server of this in place of the key."""
        self.wait = wait
        """How many seconds the server may hold it."""

    def __repr__(self) -> str:
        return f"Command({self.verb}, {self.key!r})"


class Scope(tuple):  # type: ignore[type-arg]
    """Where a CAS number means the same item: on the connections that there were (their number), and as long as each
    key has the same server (the number of changes of that)."""

    __slots__ = ()

    @property
    def connections(self) -> int:
        """Connections made until then."""
        return int(self[0])

    @property
    def route(self) -> int:
        """Changes of the servers of keys until then."""
        return int(self[1])


class Reply:
    """A reply."""

    __slots__ = ("busy", "cas", "data", "flags", "kind", "left", "line", "opaque", "stale", "stats", "text", "won")

    def __init__(
        self, kind: str, data: bytes = b"", flags: int = 0, cas: Optional[int] = None, line: bytes = b""
    ) -> None:
        self.kind = kind
        """``VA`` for a value, otherwise the first word: ``EN``, ``HD``, ``STORED``, ``ERROR``, ``NUMBER`` and so on."""
        self.data = data
        self.flags = flags
        self.cas = cas
        self.line = line
        self.opaque = -1
        """The number with which its command was sent, if it names it."""
        self.won = False
        """This client computes."""
        self.busy = False
        """Another one computes."""
        self.stale = False
        """The value is old."""
        self.left: Optional[int] = None
        """The rest of the time to live in seconds, -1 for ever."""
        self.text: Optional[bytes] = None
        """A hint, or the text of a failure."""
        self.stats: Dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Reply({self.kind}, {self.data[:40]!r}, flags={self.flags}, cas={self.cas})"


NOT_SENT = Reply("NOT_SENT")
"""The command was not sent: no connection is left on which its CAS number is valid."""


def ask(key: bytes, lease_ms: int, wait_ms: int = 0, hint: bytes = b"", outlives: bool = False) -> Command:
    """A value, or the lease to compute it."""
    return Command(ASK, key, ask_head(lease_ms, wait_ms, hint, outlives), wait=wait_ms / 1000)


def ask_head(lease_ms: int, wait_ms: int = 0, hint: bytes = b"", outlives: bool = False) -> bytes:
    """The flags of an ``ask``."""
    head = b" v f c t R0 Pw%d" % wait_ms
    if hint:
        head += b",h" + percent(hint, ADVICE_MAX - 32)
    if outlives:
        head += b",d"
    return head + b",l%d" % max(lease_ms, 1)


def store(
    verb: str,
    key: bytes,
    data: bytes,
    flags: int = 0,
    exptime: int = 0,
    tags: Sequence[str] = (),
    cas: Optional[int] = None,
    scope: Optional[Scope] = None,
) -> Command:
    """Any of the stores."""
    return Command(verb, key, data=data, flags=flags, exptime=exptime, tags=tags, cas=cas, scope=scope)


def delete(key: bytes, token: Optional[int] = None, failure: Optional[str] = None) -> Command:
    """Deletes; with the CAS number of a lease it gives that up, with the text of a failure or without."""
    head = b"" if token is None else b" C%d" % token
    if failure is not None:
        head += b" Pe" + percent(failure.encode("utf-8", "replace"), ADVICE_MAX - 2)
    return Command(DELETE, key, head)


def encode(command: Command, meta: bool, opaque: int) -> bytes:
    """The request. ``opaque``: the number that its reply is to name, if it can."""
    verb = command.verb
    if verb == ASK and meta:
        return b"mg %b%b O%d\r\n" % (command.key, command.head, opaque)
    if verb in _CLASSIC:
        return _encode_classic(command)
    if verb == INVALIDATE:
        return b"md %b G%b O%d\r\n" % (command.key, command.head, opaque)
    if verb == TAG_NUMBER:
        return b"mg %b G v O%d\r\n" % (command.key, opaque)
    return _encode_meta(command, opaque) if meta else _encode_text(command)


def _encode_classic(command: Command) -> bytes:
    verb = command.verb
    if verb == TOUCH:
        return b"touch %b %d\r\n" % (command.key, command.exptime)
    if verb == CALL:
        return b"get %b\r\n" % command.key
    if verb == FLUSH:
        return b"flush_all%b\r\n" % command.head
    if verb == PROBE:
        return b"mn\r\n"
    return verb.encode() + (b" " + command.key if command.key else b"") + b"\r\n"


def _encode_meta(command: Command, opaque: int) -> bytes:
    verb, key = command.verb, command.key
    if verb == GET:
        return b"mg %b v f c%b O%d\r\n" % (key, command.head, opaque)
    if verb in STORES:
        line = b"ms %b %d%b" % (key, len(command.data), _MODES[verb])
        if command.cas is not None:
            line += b" C%d" % command.cas
        if command.flags:
            line += b" F%d" % command.flags
        if command.exptime:
            line += b" T%d" % command.exptime
        line += b" c"
        if command.tags:
            line += b" G" + b",".join(
                tag.encode("utf-8", "surrogateescape").replace(b"%", b"%25").replace(b",", b"%2C")
                for tag in command.tags
            )
        return b"%b%b O%d\r\n%b\r\n" % (line, command.head, opaque, command.data)
    if verb == DELETE:
        return b"md %b%b O%d\r\n" % (key, command.head, opaque)
    if verb == LOOK:
        return b"mg %b f O%d\r\n" % (key, opaque)
    if verb == GAT:
        return b"mg %b v f c T%d%b O%d\r\n" % (key, command.exptime, command.head, opaque)
    if verb == CLAIM:
        return b"mg %b c N%d O%d\r\n" % (key, command.exptime, opaque)
    return b"ma %b%b v D%b O%d\r\n" % (key, b" MD" if verb == DECR else b"", command.head, opaque)


def _encode_text(command: Command) -> bytes:
    verb, key = command.verb, command.key
    if verb in (GET, ASK, LOOK):
        return b"gets %b\r\n" % key
    if verb == GAT:
        return b"gats %d %b\r\n" % (command.exptime, key)
    if verb in STORES:
        number = b" %d" % command.cas if command.cas is not None else b""
        name = b"cas" if number else verb.encode()
        line = b"%b %b %d %d %d%b" % (name, key, command.flags, command.exptime, len(command.data), number)
        return b"%b\r\n%b\r\n" % (line, command.data)
    if verb == DELETE:
        return b"delete %b\r\n" % key
    if verb in (INCR, DECR):
        return b"%b %b %b\r\n" % (verb.encode(), key, command.head)
    raise AssertionError(verb)


_VALUES = frozenset(("VA", "END"))
_EXPECTED: Dict[Tuple[str, bool], FrozenSet[str]] = {}


def _expectations() -> None:
    meta = {
        ASK: ("VA", "EN"),
        GET: ("VA", "EN"),
        GAT: ("VA", "EN"),
        LOOK: ("HD", "EN"),
        CLAIM: ("HD", "EN"),
        INCR: ("VA", "NF"),
        DECR: ("VA", "NF"),
        DELETE: ("HD", "NF", "EX"),
        INVALIDATE: ("HD",),
        TAG_NUMBER: ("VA", "EN", "HD", "NF"),
    }
    text = {
        INCR: ("NUMBER", "NOT_FOUND"),
        DECR: ("NUMBER", "NOT_FOUND"),
        DELETE: ("DELETED", "NOT_FOUND"),
        INVALIDATE: ("HD",),
        TAG_NUMBER: ("VA", "EN", "HD", "NF"),
    }
    both = {
        TOUCH: ("TOUCHED", "NOT_FOUND"),
        FLUSH: ("OK",),
        VERSION: ("VERSION",),
        STATS: ("STATS", "OK", "RESET"),
        PROBE: ("MN",),
    }
    for verb in STORES:
        meta[verb] = ("HD", "NS", "EX", "NF")
        text[verb] = ("STORED", "NOT_STORED", "EXISTS", "NOT_FOUND")
    for verb, kinds in meta.items():
        _EXPECTED[verb, True] = frozenset(kinds)
    for verb, kinds in text.items():
        _EXPECTED[verb, False] = frozenset(kinds)
    for verb, kinds in both.items():
        _EXPECTED[verb, True] = _EXPECTED[verb, False] = frozenset(kinds)


_expectations()


def is_numbered(command: Command, meta: bool) -> bool:
    """Whether replies to it end with its opaque."""
    return command.verb in (INVALIDATE, TAG_NUMBER) or (meta and command.verb not in _CLASSIC)


def check(command: Command, meta: bool, opaque: int, reply: Reply, server: str) -> Optional[CacheError]:
    """Why this is no reply to the command, so that the connection has to be closed; None: it is one.

    An error line is a reply to any.
    """
    if reply.kind == "ERROR":
        return None
    if not is_numbered(command, meta):
        expected = _EXPECTED.get((command.verb, meta), _VALUES)
        if reply.kind in expected and (expected is not _VALUES or reply.kind == "END" or reply.text == command.key):
            if expected is _VALUES:
                reply.text = None
            return None
    elif reply.opaque == opaque and reply.kind in _EXPECTED[command.verb, meta]:
        return None
    return ProtocolError(server, f"not a reply to the command: {reply.line[:100]!r}")


def error_of(reply: Reply, server: str) -> Optional[CacheError]:
    """The error, if the reply is an error line."""
    if reply.kind != "ERROR":
        return None
    line = reply.line.decode("utf-8", "backslashreplace")
    return ServerBusy(server, line) if line.startswith("SERVER_ERROR") else Refused(server, line)


def breaks(reply: Reply) -> bool:
    """Whether the rest of the connection may be out of step after this error line."""
    return reply.line.startswith(
        (b"CLIENT_ERROR bad data chunk", b"CLIENT_ERROR line too long", b"ERROR", b"SERVER_ERROR out of memory")
    )


class Broken(Exception):
    """Bytes that are no reply at all."""


class Parser:
    """Replies from bytes as they come."""

    __slots__ = ("_buffer", "_part", "_stats", "need")

    def __init__(self) -> None:
        self._buffer: bytes = b""
        self._part: Optional[Reply] = None
        self._stats: List[Tuple[str, str]] = []
        self.need = 0
        """About how many bytes are missing to the next reply, if that is known."""

    def feed(self, data: bytes) -> None:
        """Adds what has come."""
        if not self._buffer:
            self._buffer = data
        else:
            if not isinstance(self._buffer, bytearray):
                self._buffer = bytearray(self._buffer)  # type: ignore[assignment]
            self._buffer += data

    @property
    def is_empty(self) -> bool:
        """Whether nothing has come that was not taken."""
        return not self._buffer and self._part is None

    def next(self, command: Command) -> Optional[Reply]:
        """The reply to this command; None: it has not come in whole. Raises :class:`Broken`."""
        if self.need > 0 and len(self._buffer) < self.need:
            return None
        while True:
            reply = self._element(command.verb == STATS)
            if reply is None:
                return None
            kind = reply.kind
            if kind == "VALUE":
                if self._part is not None:
                    raise Broken("more than one value")
                reply.kind = "VA"
                self._part = reply
            elif kind == "STAT":
                continue
            elif kind == "END":
                if command.verb == STATS:
                    reply = Reply("STATS")
                    reply.stats = dict(self._stats)
                    self._stats = []
                    return reply
                part, self._part = self._part, None
                return part or reply
            else:
                if self._part is not None and kind != "ERROR":
                    raise Broken("a value without END")
                self._part = None
                return reply

    def _take(self, to: int) -> None:
        self.need = 0
        buffer = self._buffer
        if to == len(buffer):
            self._buffer = b""
        elif isinstance(buffer, bytearray):
            del buffer[:to]
        else:
            self._buffer = buffer[to:]

    def _element(self, is_stats: bool) -> Optional[Reply]:
        buffer = self._buffer
        end = buffer.find(b"\r\n")
        if end < 0:
            if len(buffer) > LINE_MAX:
                raise Broken("a line that is too long")
            return None
        line = bytes(buffer[:end])
        words = line.split(b" ")
        first = words[0]
        if first in (b"VA", b"VALUE"):
            meta = first == b"VA"
            try:
                size = int(words[1] if meta else words[3])
            except (IndexError, ValueError):
                raise Broken("a value whose first line is wrong") from None
            stop = end + 2 + size
            if size < 0:
                raise Broken("a value whose first line is wrong")
            if len(buffer) < stop + 2:
                self.need = stop + 2
                return None
            if buffer[stop : stop + 2] != b"\r\n":
                raise Broken("a value that does not end where its length says")
            data = bytes(buffer[end + 2 : stop])
            self._take(stop + 2)
            if meta:
                reply = Reply("VA", data, line=line)
                _marks(reply, words, 2)
                return reply
            try:
                reply = Reply("VALUE", data, int(words[2]), int(words[4]) if len(words) > 4 else None, line)
            except ValueError:
                raise Broken("a value whose first line is wrong") from None
            reply.text = words[1]
            return reply
        self._take(end + 2)
        if is_stats and first == b"STAT":
            name, _, value = line[5:].partition(b" ")
            self._stats.append((name.decode("utf-8", "replace"), value.decode("utf-8", "replace")))
            return Reply("STAT")
        if first in (b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR"):
            return Reply("ERROR", line=line)
        if first.isdigit():
            return Reply("NUMBER", first, line=line)
        reply = Reply(first.decode("ascii", "replace"), line=line)
        if len(first) == 2 and len(words) > 1:
            _marks(reply, words, 1)
        return reply


def _marks(reply: Reply, words: List[bytes], start: int) -> None:
    """Client flags, CAS number and the rest."""
    try:
        for word in words[start:]:
            mark = word[:1]
            if mark == b"f":
                reply.flags = int(word[1:])
            elif mark == b"c":
                reply.cas = int(word[1:])
            elif mark == b"O":
                reply.opaque = int(word[1:])
            elif mark == b"t":
                reply.left = int(word[1:])
            elif mark == b"W":
                reply.won = True
            elif mark == b"Z":
                reply.busy = True
            elif mark == b"X":
                reply.stale = True
            elif mark == b"P" and word[1:2] in (b"h", b"e"):
                reply.text = unpercent(word[2:])
    except ValueError:
        raise Broken("a number that is none") from None


_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~")
_ENCODED = [bytes((byte,)) if byte in _PLAIN else b"%%%02X" % byte for byte in range(256)]


def percent(text: bytes, limit: int) -> bytes:
    """As much of a text as fits into ``limit`` bytes when all but letters, digits and ``-._~`` is written as ``%XX``.
    Never half a character of UTF-8."""
    out = b"".join([_ENCODED[byte] for byte in text])
    if len(out) <= limit:
        return out
    parts: List[bytes] = []
    size = whole = 0
    for byte in text:
        if byte & 0xC0 != 0x80:
            whole = len(parts)
        part = _ENCODED[byte]
        size += len(part)
        if size > limit:
            return b"".join(parts[:whole])
        parts.append(part)
    return b"".join(parts)


def unpercent(text: bytes) -> bytes:
    """Decodes ``%XX``. A per cent sign without two digits stays."""
    if b"%" not in text:
        return text
    first, *rest = text.split(b"%")
    out = [first]
    for part in rest:
        try:
            if len(part) < 2 or not part[:2].isalnum():
                raise ValueError
            out.append(bytes((int(part[:2], 16),)) + part[2:])
        except ValueError:
            out.append(b"%" + part)
    return b"".join(out)
