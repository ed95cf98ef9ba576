"""A worker without the SDK that writes lines of JSON of the requested lengths."""

import json
import os
import sys


def say(value, end="\n"):
    sys.stdout.write((value if isinstance(value, str) else json.dumps(value)) + end)
    sys.stdout.flush()


def work(id, what, size="0", end="\n"):
    text = "ü" * (int(size) // 2)
    if what == "pid":
        return say({"result": str(os.getpid())})
    if what == "result":
        return say({"result": text})
    if what == "id-last":
        return say({"result": [text, {"id": "1"}], "id": id})
    if what == "error":
        return say({"id": id, "error": {"code": "code", "message": text}})
    if what == "other-id":
        return say({"id": str(int(id) + 1), "result": text})
    if what == "no-object":
        return say('{"result": "' + text + '"]')
    if what == "exact":
        # With what goes around it.
        return say('{"result":"' + "x" * (int(size) - 13) + '"}', end)
    if what == "endless-parts":
        while True:
            say({"result": "p" * 100_000, "more": True})
    if what == "endless":
        while True:
            sys.stdout.write("x" * 65536)
    if what == "part":
        for part in ("p" * 10, text, "p" * 10):
            say({"result": part, "more": True})
    if what in ("event", "progress", "log"):
        say({what: "short"})
        say({what: text})
        say({what: "behind"})
    return say({"result": "done"})


# With an argument, an event of as many bytes comes with the first line.
say('{"ready":true}' + "".join('\n{"event":"' + "e" * int(size) + '"}' for size in sys.argv[1:]))
for line in sys.stdin:
    message = json.loads(line)
    if message["type"] == "retire":
        break
    if message["type"] == "job":
        work(message["id"], *message["args"])
