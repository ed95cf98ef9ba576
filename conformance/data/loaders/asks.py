"""A loader that says who it is, and whether it is told that its value is no longer needed.

`who:ID` is the users, groups and home directories at the time of the imports, of `init` and of the job. `until:SECONDS:ID` lasts until it is told,
SECONDS at most; files of the directory SCENE get its ID: `begun`, then `told` or `untold`. `orphans:ID` leaves two processes behind that end by
themselves, and does not end. `SLOW_START` is for how many seconds the program starts.
"""

import json
import os
import subprocess
import time

from cattlegrid import loader


def who():
    return [os.getuid(), os.getgid(), os.getgroups(), os.environ.get("HOME")]


IMPORT, INIT = who(), []
time.sleep(float(os.environ.get("SLOW_START", "0")))


@loader.init
def init():
    INIT.extend(who())


def note(file, text):
    with open(os.path.join(os.environ["SCENE"], file), "a") as f:
        f.write(text + "\n")


@loader.load
def load(job):
    what, _, rest = job.args["what"].partition(":")
    if what == "who":
        return json.dumps([IMPORT, INIT, who()])
    if what == "orphans":
        subprocess.Popen(["sh", "-c", "setsid sleep 0.2 & setsid sleep 0.3 & sleep 60"])
        time.sleep(60)
    seconds, _, name = rest.partition(":")
    note("begun", name)
    end = time.monotonic() + float(seconds)
    while not job.cancelled() and time.monotonic() < end:
        time.sleep(0.005)
    note("told" if job.cancelled() else "untold", name)
    return "over"


loader.serve()
