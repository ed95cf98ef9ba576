"""A worker without the SDK whose jobs and replies are JSON objects: ``what`` says what to do."""

import json
import sys


def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def work(line, job):
    what = job.get("what")
    if what == "line":
        # The job's line, as a reply.
        return say(line.rstrip("\n"))
    if what == "say":
        # The lines of `text`, with the job's id in the place of ID.
        return say(job["text"].replace("ID", job["id"]))
    if what == "exact":
        # A reply of as many bytes.
        return say('{"value":"' + "x" * (job["size"] - 12) + '"}')
    return say('{"what":"unknown"}')


say('{"ready":true}')
for line in sys.stdin:
    message = json.loads(line)
    if message["type"] == "retire":
        break
    if message["type"] == "job":
        work(line, message)
