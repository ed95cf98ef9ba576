"""A worker of `jsonl` that writes the beginning of each answer, as many bytes as its argument says, and no more."""

import sys
import time

print('{"ready": true}', flush=True)
for line in sys.stdin:
    if '"type":"job"' in line:
        sys.stdout.write('{"result": "' + "x" * int(sys.argv[1]))
        sys.stdout.flush()
        time.sleep(600)
