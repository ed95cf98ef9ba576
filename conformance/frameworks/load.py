"""The load that every program of this folder puts on a cache, for Python: processes with threads that run a plan.

A plan is JSON: `start` (Unix time), `processes`, `threads` (of each process), `steps`. A step has a name, begins `at` seconds after the
start and takes `seconds` (0: one request of each thread). A request asks for all `keys`; what is missing is computed, which takes
`compute` seconds, and stored for `ttl` seconds. Threads wait `think` seconds between requests. With `delete_every` a process of its own
deletes the keys at that interval. With `shift` each thread asks for keys of its own, `count` of them (only in Python's programs, of one process). A program prints, as JSON, for each step: `computed` (values), `ms` (of each request), `errors`.
"""

import json
import os
import sys
import threading
import time


def value_of(key):
    return f"the value of {key} " * 20


def empty():
    return {"computed": 0, "ms": [], "errors": []}


def until(moment):
    time.sleep(max(0.0, moment - time.time()))


class Counter:
    """What one process has seen of a step."""

    def __init__(self, step):
        self.step, self.result, self.lock = step, empty(), threading.Lock()

    def compute(self, *keys):
        """The values, after the time that computing takes."""
        with self.lock:
            self.result["computed"] += len(keys)
        time.sleep(self.step["compute"])
        return [value_of(key) for key in keys]

    def request(self, step, act):
        begun = time.monotonic()
        try:
            got = act()
            error = None if got == [value_of(key) for key in step["keys"]] else f"wrong: {got!r:.200}"
        except Exception as failure:
            error = repr(failure)
        with self.lock:
            self.result["ms"].append((time.monotonic() - begun) * 1000)
            if error:
                self.result["errors"].append(error)


def of_thread(step, number):
    """A step as this thread has it."""
    if "shift" not in step:
        return step
    first, count = number * step["shift"], step["count"]
    name = step["name"].replace(" ", "-")
    return {**step, "keys": [f"page:{name}{first + n}" for n in range(count)], "path": f"get_many/page:{name}/{first}/{count}"}


def act(plan, number, client, counters):
    """One thread. `client(step, counter)` does a request and returns the values."""
    for counter in counters:
        step = of_thread(counter.step, number)
        until(plan["start"] + step["at"])
        end = plan["start"] + step["at"] + step["seconds"]
        while True:
            counter.request(step, lambda: client(step, counter))
            time.sleep(step["think"])
            if time.time() >= end:
                break


def process(plan, connect):
    counters = [Counter(step) for step in plan["steps"]]
    threads = [threading.Thread(target=lambda n=n: act(plan, n, connect(), counters)) for n in range(plan["threads"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {c.step["name"]: c.result for c in counters}


def deleter(plan, delete):
    for step in plan["steps"]:
        every = step.get("delete_every")
        if every:
            at, end = plan["start"] + step["at"] + every, plan["start"] + step["at"] + step["seconds"]
            while at < end:
                until(at)
                for key in step["keys"]:
                    delete(key)
                at += every
    return {}


def merge(results):
    out = {}
    for result in results:
        for name, one in result.items():
            into = out.setdefault(name, empty())
            into["computed"] += one["computed"]
            into["ms"] += one["ms"]
            into["errors"] += one["errors"]
    return out


def fork(work):
    """Runs it in a process of its own; the descriptor its result comes from."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(reader)
        with os.fdopen(writer, "w") as out:
            json.dump(work(), out)
        os._exit(0)
    os.close(writer)
    return reader


def main(connect, delete):
    """`connect()` gives a thread its client, `delete(key)` deletes."""
    plan = json.loads(sys.argv[2])
    readers = [fork(lambda: process(plan, connect)) for _ in range(plan["processes"])]
    readers.append(fork(lambda: deleter(plan, delete)))
    print(json.dumps(merge(json.load(os.fdopen(reader)) for reader in readers)))
