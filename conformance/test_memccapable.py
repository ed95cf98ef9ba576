"""libmemcached's own conformance program, over the text protocol."""

import re
import subprocess

from harness import tool

# memcached 1.6.45 itself fails these two: they want `delete` with arguments too many to be an error, which it no longer is.
KNOWN = {"ascii delete", "ascii delete noreply"}


def test_text_protocol(start, is_1_6_18):
    server = start()
    done = subprocess.run(
        [tool("memccapable"), "-h", "127.0.0.1", "-p", str(server.port), "-a", "-t", "20"],
        capture_output=True, text=True, timeout=200,
    )
    out = done.stdout + done.stderr
    # The name of a test goes to the standard output, and so does "[pass]"; "[FAIL]" goes to the other.
    results = dict(re.findall(r"(ascii \w+(?: noreply)?) +(\[pass\])?", done.stdout))
    failed = {name for name, result in results.items() if not result}
    assert len(results) == 27, out
    assert failed == (set() if is_1_6_18 else KNOWN), out
    assert server.running(), server.log()
