"""The text of an exception, also when its class raises while the text is made.

``__str__`` and the other methods run the program's code, which may raise, too. That must not end the worker: the job gets
its error, with as much text as can be made.
"""

import traceback

from ._state import JobError


def told(error):
    """Code, message, detail and whether trying again may help: all of ``str`` but the last. Never raises."""
    try:
        if isinstance(error, JobError):
            return (
                text(error.code),
                text(error.message),
                text(error.detail),
                bool(error.retryable),
            )
    except BaseException:
        # Its __init__ did not run, or an attribute raises. It is reported like any other exception.
        pass
    return "exception", message(error), trace(error)[-TRACEBACK_MAX:], False


def message(error):
    """Type and text of an exception in one ``str``."""
    return f"{name(error)}: {text(error)}"


def text(value):
    """``str(value)``, without characters that UTF-8 cannot encode, or the reason why it cannot be made."""
    try:
        return str.encode(str(value), "utf-8", "replace").decode()
    except BaseException as error:
        return f"(its text cannot be made: {name(error)})"


def name(error):
    """Name of the type, past a metaclass that has its own."""
    try:
        return str.encode(_NAME(type(error)), "utf-8", "replace").decode()
    except BaseException:
        return "exception"


def trace(error):
    """The traceback, or as much of it as can be made."""
    for lines in (
        lambda: traceback.format_exception(type(error), error, error.__traceback__),
        lambda: [*traceback.format_tb(error.__traceback__), message(error), "\n"],
    ):
        try:
            return text("".join(lines()))
        except BaseException:
            pass
    return ""


_NAME = type.__dict__["__name__"].__get__
TRACEBACK_MAX = 64_000
"""Characters of a traceback that are sent; the end is kept."""
