"""libmemcached's own conformance program, over both protocols."""

import re
import subprocess

from harness import tool

# memcached 1.6.45 itself fails these two: they want `delete` with arguments too many to be an error, which it no longer is.
KNOWN = {"ascii delete", "ascii delete noreply"}


def results(server, option, word):
    """What each test of the program comes to, and all of its output."""
    done = subprocess.run(
        [tool("memccapable"), "-h", "127.0.0.1", "-p", str(server.port), option, "-t", "20"],
        capture_output=True, text=True, timeout=200,
    )
    out = done.stdout + done.stderr
    # The name of a test goes to the standard output, and so does "[pass]"; "[FAIL]" goes to the other.
    results = dict(re.findall(rf"({word} \w+(?: noreply)?) +(\[pass\])?", done.stdout))
    assert len(results) == 27, out
    assert server.running(), server.log()
    return {name for name, result in results.items() if not result}, out


def test_text_protocol(start, is_1_6_18):
    failed, out = results(start(), "-a", "ascii")
    assert failed == (set() if is_1_6_18 else KNOWN), out


def test_binary_protocol(start):
    failed, out = results(start(), "-b", "binary")
    assert not failed and "All tests passed" in out, out
