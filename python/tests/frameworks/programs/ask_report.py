"""Three threads that ask for a report, and print what they get. Arguments: the report's number."""

import sys
import threading

import reports


def say(line):
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def ask():
    try:
        say(f"got {reports.report(int(sys.argv[1]))}")
    except RuntimeError as error:
        say(f"failed {error}")


threads = [threading.Thread(target=ask) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
