"""The argument of a loader: a key, and what is known about it.

Byte strings that come from clients are ``str``: UTF-8, where bytes that are not are kept as lone surrogates (PEP 383), so
that ``text.encode("utf-8", "surrogateescape")`` gives the bytes back. The old value is ``bytes``.
"""

_FIXED = 5
"""Parts of a job before its captures."""


class Job:
    """A key to load.

    ``key``: ``str``. ``args``: what the captures of the rule's pattern matched, a ``dict`` of ``str``. ``rule``: text of that
    pattern. ``hint``: what a client said about the value that it wants, or ``None``. ``stale``: ``bytes``, the old value if
    there is one and the loader asks for it (``stale = true``), else ``None``. ``deadline``: ``time.monotonic()`` at
    which the value is no longer waited for, or ``None``. ``attempt``: 0 at first, then 1 for every retry.
    """

    __slots__ = ("_current", "args", "attempt", "deadline", "hint", "key", "rule", "stale")

    def __init__(self, key, args, rule, hint, stale, attempt, deadline, current=None):
        self.key, self.rule, self.hint, self.stale = key, rule, hint, stale
        self.args, self.attempt, self.deadline = args, attempt, deadline
        self._current = current

    def cancelled(self):
        """Whether the value is no longer needed. One system call in a synchronous worker; ``False`` in a unit test."""
        return self._current is not None and self._current.cancelled()

    def __repr__(self):
        return f"Job(key={self.key!r}, args={dict(self.args)!r}, rule={self.rule!r})"


class Args(dict):
    """The captures of a key. A name that the rule's pattern does not have is a ``KeyError`` that says which it has."""

    __slots__ = ("rule",)

    def __missing__(self, name):
        names = ", ".join(self) or "none"
        raise KeyError(f"the rule {self.rule} has no capture {name!r}; its captures: {names}")


def job(key, args=(), *, rule="test", hint=None, stale=None, attempt=0, deadline=None):
    """A :class:`Job` for a unit test. ``key`` and the values of ``args`` may be ``str`` or ``bytes``."""
    captures = Args({text(name): text(value) for name, value in dict(args).items()})
    captures.rule = rule
    hint = None if hint is None else text(hint)
    return Job(text(key), captures, rule, hint or None, None if stale is None else raw(stale), attempt, deadline)


def parse(parts, attempt, deadline, current):
    """The job of the arguments of a JOB frame. ``ValueError`` if they are not those of a loader's job."""
    if len(parts) < _FIXED or len(parts) % 2 == 0:
        raise ValueError(
            f"a loader's job has 5 arguments and 2 for each capture, not {len(parts)}: "
            "this program serves loaders only, or is older than the server"
        )
    key, rule, hint, has_stale, stale = parts[:_FIXED]
    rule = text(rule)
    args = Args()
    args.rule = rule
    for at in range(_FIXED, len(parts), 2):
        args[text(parts[at])] = text(parts[at + 1])
    stale = stale if has_stale else None
    return Job(text(key), args, rule, text(hint) or None, stale, attempt, deadline, current)


def text(data):
    """Bytes from a client as ``str``."""
    return data if isinstance(data, str) else data.decode("utf-8", "surrogateescape")


def raw(data):
    """``str`` or a bytes-like object as ``bytes``. ``TypeError`` for others; a lone surrogate that stands for no byte is a
    ``UnicodeEncodeError``."""
    if isinstance(data, str):
        return data.encode("utf-8", "surrogateescape")
    return data if type(data) is bytes else bytes(memoryview(data))
