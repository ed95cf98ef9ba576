"""A worker of `jsonl` that writes the first 200,000 bytes of each answer, and no more."""

import sys
import time

print('{"ready": true}', flush=True)
for line in sys.stdin:
    if '"type":"job"' in line:
        sys.stdout.write('{"result": "' + "x" * 200_000)
        sys.stdout.flush()
        time.sleep(600)
