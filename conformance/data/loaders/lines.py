"""A worker that says what it is told to: JSON lines, one after the other, without the package.

A job is answered with the contents of the file `say` in the directory SCENE, in which ID stands for the job's number, and for
nothing more: what is written is not checked here. An empty file: no answer. `exit`: the process ends.
"""

import json
import os
import sys
import time

SCENE = os.environ["SCENE"]


def say(text):
    os.write(1, text.encode() + b"\n")


say('{"ready":true}')
for line in sys.stdin:
    message = json.loads(line)
    if message["type"] == "retire":
        break
    if message["type"] == "ping":
        say('{"pong":true}')
    if message["type"] != "job":
        continue
    with open(os.path.join(SCENE, "jobs"), "a") as jobs:
        jobs.write(json.dumps(message) + "\n")
    with open(os.path.join(SCENE, "say")) as f:
        answer = f.read()
    if answer == "exit":
        os._exit(0)
    if answer == "close":
        os.closerange(0, 3)
        time.sleep(600)
    if answer:
        say(answer.replace("ID", message["id"]))
