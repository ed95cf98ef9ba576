"""memcached's own tests, `t/` of Debian's newest source package of it: those of the core and of the binary protocol.

They start `memcached-debug`, which here is a script that starts the server. It leaves out `-U`, since every test asks for UDP and
none of these uses it, and adds `-o debugtime`, which the build that memcached tests has always.
"""

import os
import re
import shlex
import subprocess

import pytest

from harness import ROOT

pytestmark = pytest.mark.only_cattlegrid

PLACE = ROOT / "target" / "conformance" / "memcached-tests"
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"

# Not run: patterns of names, each with why.
SLABS = "looks at slab classes, their pages or the items that one of them evicts; there is one class"
NOT_RUN = {
    r"(binary-|chunked-|error-)?extstore.*": "there is no extstore",
    r"proxy.*": "there is no proxy",
    r"restart": "there are no restart files",
    r"udp|issue_67|stats-conns": "there is no UDP",
    r"ssl_.*": "certificates of theirs; test_operations.py, test_tls_keys.py and test_binary_logins.py have TLS",
    r"whitespace|line-lengths": "looks at memcached's source",
    r"64bit": "looks at figures that a build for tests makes up",
    r"conn-limits": "limits memcached's objects of replies, of which there are none",
    r"dyn-maxbytes|issue_14|issue_42|issue_163|issue_22|lru|lru-maintainer|slabs-.*|slabs_reassign": SLABS,
    r"watcher": "waits for an eviction by a certain write: here segments are emptied ahead, a few items by one write and none by the next",
    r"lru-crawler": "counts what a crawler of slab classes reclaims",
    r"issue_140|issue_260|refhang|slabhang|misbehave": "skips itself",
    r"stress-memcached": "no test",
}
RUN = """
00-startup ascii-auth ascii-auth2 binary binary-get binary-sasl bogus-commands cas chunked-items daemonize dash-M evictions
expirations flags flush-all getandtouch getset idle-timeout incrdecr issue_104 issue_108 issue_152 issue_183 issue_192 issue_29
issue_3 issue_41 issue_50 issue_61 issue_68 issue_70 item_size_max malicious-commands maxconns metaget multiversioning
noreply quit shutdown stats stats-detail strtol-testing touch unixsocket watcher_connid
""".split()


def reason(name):
    return next((why for pattern, why in NOT_RUN.items() if re.fullmatch(pattern, name)), None)


def apt(*words):
    PLACE.mkdir(parents=True, exist_ok=True)
    options = {
        "Dir::Etc::sourcelist": PLACE / "sources.list", "Dir::Etc::sourceparts": "-", "Dir::State::lists": PLACE / "lists",
        "Dir::Cache": PLACE / "cache", "APT::Get::List-Cleanup": "0", "APT::Sandbox::User": "root",
    }
    command = ["apt-get", *(word for name, value in options.items() for word in ("-o", f"{name}={value}")), *words]
    return subprocess.run(command, cwd=PLACE, capture_output=True, text=True, timeout=600)


def source():
    """The unpacked source; fetched once, from where this machine has its packages."""
    found = sorted(PLACE.glob("memcached-*/t"))
    if found:
        return found[-1].parent
    said = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI)"], capture_output=True, text=True, check=True).stdout
    mirror = next(uri for uri in said.split() if re.search(r"/debian/?$", uri))
    for path in (PLACE / "lists" / "partial", PLACE / "cache" / "archives" / "partial"):
        path.mkdir(parents=True, exist_ok=True)
    for suite in ("sid", "testing", "stable"):
        (PLACE / "sources.list").write_text(f"deb-src [signed-by={KEYS}] {mirror} {suite} main\n")
        said = [apt("update"), apt("source", "--download-only", "memcached")]
        # What has come was checked, also where another file of the package is missing.
        for archive in PLACE.glob("memcached_*.orig.tar.*"):
            subprocess.run(["tar", "-xf", archive, "-C", PLACE], check=True)
        found = sorted(PLACE.glob("memcached-*/t"))
        if found:
            return found[-1].parent
    pytest.fail("\n".join(done.stdout + done.stderr for done in said))


@pytest.fixture(scope="module")
def tree(binary):
    """memcached's source with our server in the place of its program."""
    tree = source()
    program = tree / "memcached-debug"
    words = """#!/bin/bash
declare -a given
while [ $# -gt 0 ]; do
    if [ "$1" = -U ]; then shift 2; else given+=("$1"); shift; fi
done
exec %s -o debugtime "${given[@]}"
"""
    program.write_text(words % shlex.quote(os.path.abspath(binary)))
    (tree / "timedrun").write_text('#!/bin/sh\nshift\nexec "$@"\n')
    for path in (program, tree / "timedrun"):
        path.chmod(0o755)
    return tree


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", RUN)
def test_file(tree, name):
    done = subprocess.run(["perl", f"t/{name}.t"], cwd=tree, capture_output=True, text=True, timeout=800)
    failed = [line for line in done.stdout.splitlines() if line.startswith("not ok")]
    assert not failed and done.returncode == 0, "\n".join([*failed[:9], done.stderr[-2000:]])
    assert "# SKIP" not in done.stdout.split("\n", 1)[0], done.stdout


def test_every_file_is_run_or_said_why_not(tree, capsys):
    names = [path.stem for path in sorted((tree / "t").glob("*.t"))]
    left_out = {name: why for name in names if (why := reason(name))}
    assert set(names) - set(left_out) == set(RUN)
    with capsys.disabled():
        print(f"\n  {tree.name}: {len(RUN)} files run, {len(left_out)} not:")
        for why in dict.fromkeys(left_out.values()):
            print(f"    {why}: {' '.join(name for name in left_out if left_out[name] == why)}")
