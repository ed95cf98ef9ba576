"""The state of a worker process and of the job that it is in."""


class JobError(Exception):
    """Raise it in a job to choose what the caller sees.

    ``code`` is a short word that programs compare, ``message`` one line for people, ``detail`` more of it, and
    ``retryable`` says that trying again may help.
    """

    def __init__(self, code, message="", *, detail="", retryable=False):
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.detail, self.retryable = code, message, detail, retryable

    def __reduce__(self):
        # A job may run in a pool of processes of its own. Exceptions are made anew by their texts, this one by its parts.
        return _restored, (type(self), self.args), self.__dict__


def _restored(kind, args):
    """An error that was pickled or copied, before it has its attributes."""
    error = kind.__new__(kind)
    error.args = args
    return error


class State:
    """One per process."""

    __slots__ = (
        "after_fork",
        "attempt",
        "batch",
        "control",
        "current",
        "deadline",
        "early",
        "id",
        "inherited",
        "inits",
        "is_async",
        "job",
        "keep",
        "left_early",
        "limits",
        "link",
        "loop",
        "main",
        "owners",
        "passed",
    )

    def __init__(self):
        self.link = None
        # The event loop of a worker that has used one.
        self.loop = None
        self.control = None
        self.id = 0
        self.deadline = 0
        self.attempt = 0
        # Of an asynchronous worker: a ContextVar with the job that a task works on.
        self.current = None
        self.job = None
        self.is_async = False
        # Of a worker that takes batches: pairs of a function and the largest batch it takes, and the jobs it is doing now.
        self.limits = []
        self.batch = []
        self.inits = []
        self.after_fork = []
        self.keep = []
        self.left_early = False
        # Events from before the connection to the pool.
        self.early = []
        # Finalizers that exist in the template, which runs them.
        self.inherited = []
        # Of a synchronous worker: the thread that does the jobs, and the jobs that other threads belong to.
        self.main = None
        self.owners = None
        # Descriptors that the pool passed, by name.
        self.passed = None


STATE = State()
