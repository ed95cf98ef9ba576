"""Exceptions that raise when they are asked for their text, and exceptions with too long a text."""

from cattlegrid import worker


class NoText(Exception):
    def __str__(self):
        raise ValueError("no text")

    __repr__ = __str__


class TextIsNumber(Exception):
    def __str__(self):
        return 5


class Leaves(Exception):
    def __str__(self):
        raise SystemExit(7)


class Nameless(type):
    def __getattribute__(cls, name):
        if name in ("__name__", "__qualname__", "__module__"):
            raise ValueError("no name")
        return super().__getattribute__(name)


class NoName(Exception, metaclass=Nameless):
    pass


class NoTraceback(Exception):
    @property
    def __traceback__(self):
        raise ValueError("no traceback")


class Bare(worker.JobError):
    def __init__(self):
        pass


class Undecided:
    def __bool__(self):
        raise ValueError("neither")


def caused():
    error = RuntimeError("outer")
    error.__cause__ = NoText()
    return error


def job_error():
    error = worker.JobError(5, detail=None, retryable=1)
    error.message = NoText()
    return error


ODD = {
    "no-text": NoText,
    "number": TextIsNumber,
    "leaves": Leaves,
    "no-name": lambda: NoName("said"),
    "no-traceback": lambda: NoTraceback("said"),
    "caused": caused,
    "surrogates": lambda: ValueError("a\ud800b"),
    "long": lambda: ValueError("x" * (100 << 20)),
    "bare": Bare,
    "job-error": job_error,
    "undecided": lambda: worker.JobError("code", "message", retryable=Undecided()),
}
