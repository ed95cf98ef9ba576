"""The Debian package from its installation to its purge, in a machine of its own with a real systemd, while clients go on.

    python packaging/tests/life_cycle.py PACKAGE.deb NEWER_PACKAGE.deb

The machine has Debian's memcached with a configuration that was changed. Needs root, mmdebstrap and systemd-nspawn, and pymemcache for this Python.
"""

import contextlib
import ctypes
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from machine import HERE, ROOT, Client, LeftOut, Machine, make_root, status, wait_until

PACKAGES = ["systemd", "systemd-sysv", "dbus", "adduser", "init-system-helpers", "memcached", "libstdc++6"]
CONF = HERE / "memcached.conf"
EXAMPLES = ROOT / "examples"

REPLACE = "systemctl disable --now memcached && systemctl enable --now cattlegrid"
BACK = "systemctl disable --now cattlegrid && systemctl enable --now memcached"

SETTINGS = [
    "maxbytes", "maxconns", "tcpport", "udpport", "inter", "verbosity", "evictions", "domain_socket", "umask", "num_threads", "item_size_max",
    "reqs_per_event", "cas_enabled", "flush_enabled", "dump_enabled", "idle_timeout", "tcp_backlog", "auth_enabled_sasl", "binding_protocol",
]  # fmt: skip
"""What `stats settings` must say of both servers alike."""

GONE = ["/etc/cattlegrid", "/usr/bin/cattlegrid", "/usr/share/doc/cattlegrid", "/run/cattlegrid", "/usr/share/man/man1/cattlegrid.1.gz"]

passed = 0


def step(text):
    """Says what was shown."""
    global passed
    passed += 1
    print(f"ok {passed}: {text}", flush=True)


def settings(client):
    found = client("stats", "settings")
    return {name: found[name] for name in SETTINGS if name in found}


def files(machine):
    """Everything that a package could leave behind, and every account."""
    found = machine.sh(
        "find / -xdev \\( -path /proc -o -path /sys -o -path /tmp -o -path /var/tmp -o -path /var/log -o -path /var/cache -o -path /root "
        "-o -path /var/lib/dpkg -o -path /var/lib/systemd -o -path /run/systemd -o -path /run/log -o -path /run/user -o -path /run/dbus "
        "-o -path /dev \\) -prune -o -print; find /run/memcached /run/cattlegrid 2>/dev/null; cut -d: -f1 /etc/passwd /etc/group; "
        "ls /var/lib/systemd/deb-systemd-helper-enabled",
        check=False,
    ).stdout
    own = ("/etc/passwd-", "/etc/group-", "/etc/shadow-", "/etc/gshadow-", "/etc/subuid", "/etc/subgid")
    return {line for line in found.splitlines() if not line.startswith(own)}


def starts_beside_memcached(machine, client, package):
    """The package is installed, and memcached goes on until it is replaced by the documented command; and back."""
    before = settings(client)
    assert before["tcpport"] == "11311" and before["maxbytes"] == str(100 << 20), before
    assert before["inter"] == "127.0.0.1,127.0.0.2", before
    client("set", "key", "of memcached")
    own = machine.pid("memcached")
    said = machine.sh(f"dpkg -i /tmp/{package}").stdout
    assert REPLACE in said and BACK in said, said
    assert machine.pid("memcached") == own and client("get", "key") == "of memcached" and not client.failures
    assert machine.sh("systemctl is-enabled cattlegrid", check=False).stdout.strip() == "disabled"
    step("installed where memcached runs, which goes on as it was")

    machine.sh(REPLACE)
    assert machine.show("memcached", "ActiveState") == "inactive"
    assert client("get", "key") is None, "it is another server"
    client("set", "key", "of cattlegrid")
    assert client("get", "key") == "of cattlegrid"
    after = settings(client)
    different = {name: (before[name], after.get(name)) for name in before if before[name] != after.get(name)}
    assert not different, different
    other = Client(machine, ["127.0.0.2", 11311])
    assert other("get", "key") == "of cattlegrid"
    other.close()
    assert client.process.poll() is None
    step(f"memcached replaced: the same client, {len(before)} settings the same; {len(client.failures)} calls had to be tried again")


def runs_as_the_unit_says(machine):
    own = machine.pid("cattlegrid")
    lines = status(own)
    assert lines["NoNewPrivs"].strip() == "1" and int(lines["CapBnd"], 16) == 0 and lines["Seccomp"].strip() == "2", lines
    account = machine.sh("id -u cattlegrid").stdout.strip()
    assert set(lines["Uid"].split()) == {account}, lines["Uid"]
    text = machine.show("cattlegrid", "StatusText")
    assert text == "Serving on 127.0.0.1:11311 and 127.0.0.2:11311", text
    assert machine.show("cattlegrid", "Type") == "notify"
    assert int(pathlib.Path(f"/proc/{own}/limits").read_text().split("Max open files")[1].split()[0]) >= 512
    assert machine.sh("stat -c %U /run/memcached").stdout.strip() == "cattlegrid"
    assert machine.sh("cat /run/memcached/memcached.pid").stdout.strip() == machine.show("cattlegrid", "MainPID")
    said = machine.sh("systemd-analyze --man=no verify cattlegrid.service cattlegrid.socket 2>&1", check=False)
    assert said.returncode == 0 and "cattlegrid" not in said.stdout, said.stdout
    exposure = machine.sh("systemd-analyze security --no-pager cattlegrid.service | tail -1").stdout.strip()
    machine.sh("systemd-analyze security --no-pager --threshold=30 cattlegrid.service")
    step(f"its own user, no privileges, a filter of system calls; {exposure.split(': ', 1)[-1]}")


def memcached_comes_back(machine, client):
    """To start one stops the other, in both directions."""
    machine.sh("systemctl start memcached")
    assert machine.show("cattlegrid", "ActiveState") == "inactive"
    client("set", "key", "of memcached again")
    assert client("get", "key") == "of memcached again" and "cattlegrid" not in str(client("version"))
    wait_until("memcached has its directory back", lambda: machine.sh("stat -c %U /run/memcached").stdout.strip() == "memcache")
    machine.sh("systemctl start cattlegrid")
    assert machine.show("memcached", "ActiveState") == "inactive"
    assert client("get", "key") is None
    machine.sh(BACK)
    assert client("get", "key") is None
    assert machine.show("memcached", "ActiveState") == "active"
    machine.sh(REPLACE)
    step("and back by one command, twice")


def reloads(machine, client):
    rules = machine.path / "etc/cattlegrid/cattlegrid.toml"
    own = machine.pid("cattlegrid")
    # As the file that is installed says.
    assert machine.sh("cattlegrid check /etc/cattlegrid/cattlegrid.toml").stdout
    rules.write_text(rules.read_text() + "\n[[rule]]\nmatch = 'page:{id}'\nholt = '400ms'\n")
    machine.sh("systemctl reload cattlegrid")
    wait_until("a mistake is in the status", lambda: "nothing reloaded" in machine.show("cattlegrid", "StatusText"))
    assert "holt" in machine.show("cattlegrid", "StatusText") and machine.show("cattlegrid", "ActiveState") == "active"
    rules.write_text(rules.read_text().replace("holt", "hold"))
    machine.sh("systemctl reload cattlegrid")
    wait_until("the mistake is gone", lambda: machine.show("cattlegrid", "StatusText").startswith("Serving on 127.0.0.1:11311 and 127.0.0.2:11311"))
    wait_until("and from the status", lambda: "nothing" not in machine.show("cattlegrid", "StatusText"))
    assert client("stats", "rules") and machine.pid("cattlegrid") == own
    step("reloaded, with a mistake and without")


def loaders_objects_and_unix_sockets(machine):
    """What the unit forbids stops nothing that the server does."""
    folder = machine.path / "etc/cattlegrid"
    for name in ("loaders", "objects"):
        (folder / name).mkdir()
    shutil.copy(EXAMPLES / "loaders/greetings.sh", folder / "loaders")
    for path in (EXAMPLES / "objects/own").glob("flag*"):
        shutil.copy(path, folder / "objects")
    rules = folder / "cattlegrid.toml"
    kept, conf = rules.read_text(), machine.path / "etc/memcached.conf"
    rules.write_text(
        kept + "\n[[rule]]\nmatch = 'greeting:{name}'\nloader = 'greetings'\n\n[loader.greetings]\n"
        "command = ['sh', 'loaders/greetings.sh']\nmode = 'jsonl'\nidle = 1\n\n[objects]\ndir = 'objects'\n"
    )
    conf.write_text("-s /run/memcached/memcached.sock\n-a 0770\n-u memcache\n-k\n-L\n-r\n-m 64\n-o io_uring\n")
    machine.sh("systemctl restart cattlegrid")
    client = Client(machine, "/run/memcached/memcached.sock")
    # The first worker may start for longer than a get is held.
    until = time.monotonic() + 60
    while client("get", "greeting:Ada") != "Hello, Ada!":
        assert time.monotonic() < until, "no worker has answered"
    assert client("get", "flag:new:checkout:100") == "CREATED" and client("get", "flag:on:checkout:ada") == "1"
    client("set", "key", "value")
    assert client("get", "key") == "value"
    assert not client.failures, client.failures
    client.close()
    owner = machine.sh("stat -c '%U %G %a' /run/memcached/memcached.sock").stdout.strip()
    assert owner == "cattlegrid memcache 770", owner
    own = machine.pid("cattlegrid")
    limits, log = pathlib.Path(f"/proc/{own}/limits").read_text(), machine.sh("journalctl -o cat -u cattlegrid --since -5s").stdout
    warnings = [line for line in log.splitlines() if "warning" in line]
    if limits.split("Max locked memory")[1].split()[0] == "unlimited":
        locked = int(status(own)["VmLck"].split()[0])
        assert locked > 10_000, f"-k: {locked} KiB are locked"
    else:
        print("not shown: -k: systemd cannot raise the limit on locked memory in namespaces of this machine")
        warnings = [line for line in warnings if "mlockall" not in line]
    assert not warnings, warnings
    step("a loader, a type of objects, -L, io_uring and a unix socket of memcache's group under the unit")
    rules.write_text(kept)
    shutil.copy(CONF, conf)
    machine.sh("systemctl restart cattlegrid")


def a_lane_that_hangs(machine, client):
    """The watchdog of systemd starts another server."""
    drop_in = machine.path / "etc/systemd/system/cattlegrid.service.d"
    drop_in.mkdir()
    (drop_in / "watchdog.conf").write_text("[Service]\nWatchdogSec=2\n")
    machine.sh("systemctl daemon-reload && systemctl restart cattlegrid")
    own, began = machine.pid("cattlegrid"), int(machine.show("cattlegrid", "NRestarts"))
    # Alive, and with a client that asks for nothing.
    time.sleep(3)
    assert machine.pid("cattlegrid") == own and int(machine.show("cattlegrid", "NRestarts")) == began
    lane = next(
        int(task.name) for task in pathlib.Path(f"/proc/{own}/task").iterdir() if (task / "comm").read_text().strip() == "lane 1"
    )
    reap = stop_thread(lane)

    def another():
        reap()
        return int(machine.show("cattlegrid", "NRestarts")) == began + 1

    wait_until("another server", another, 15)
    wait_until("it serves", lambda: machine.show("cattlegrid", "ActiveState") == "active")
    client("set", "key", "after the watchdog")
    assert client("get", "key") == "after the watchdog"
    assert "lane 1 has not answered" in machine.journal()
    shutil.rmtree(drop_in)
    machine.sh("systemctl daemon-reload && systemctl restart cattlegrid")
    step("a lane that hangs: the watchdog starts another server")


def stop_thread(thread):
    """Stops one thread, as only a debugger can; what is returned collects the thread when it was killed."""
    libc = ctypes.CDLL(None, use_errno=True)
    seize, interrupt, wall = 0x4206, 0x4207, 0x40000000
    arguments = (ctypes.c_long(0), ctypes.c_long(0))
    assert libc.ptrace(seize, thread, *arguments) == 0, os.strerror(ctypes.get_errno())
    assert libc.ptrace(interrupt, thread, *arguments) == 0, os.strerror(ctypes.get_errno())

    def collect():
        with contextlib.suppress(ChildProcessError):
            os.waitpid(thread, os.WNOHANG | wall)

    return collect


def upgrade(machine, client, package):
    """To a newer version: it is restarted, and what was configured stays."""
    own, version = machine.pid("cattlegrid"), machine.sh("dpkg-query -W -f '${Version}' cattlegrid").stdout
    rules = (machine.path / "etc/cattlegrid/cattlegrid.toml").read_text()
    machine.sh(f"dpkg --force-confold -i /tmp/{package}")
    assert machine.sh("dpkg-query -W -f '${Version}' cattlegrid").stdout != version
    assert machine.pid("cattlegrid") != own and machine.show("cattlegrid", "ActiveState") == "active"
    assert (machine.path / "etc/cattlegrid/cattlegrid.toml").read_text() == rules
    client("set", "key", "newer")
    assert client("get", "key") == "newer"
    assert machine.sh("systemctl is-enabled cattlegrid").stdout.strip() == "enabled"
    # A service that does not run is not started, and memcached, which does, is not stopped.
    machine.sh("systemctl start memcached")
    machine.sh(f"dpkg --force-confold -i /tmp/{package}")
    assert machine.show("cattlegrid", "ActiveState") == "inactive" and machine.show("memcached", "ActiveState") == "active"
    machine.sh("systemctl start cattlegrid")
    step("upgraded: restarted where it ran, left alone where it did not")


def sockets(machine):
    """The socket unit: connections wait for the server, also while it is restarted."""
    machine.sh("systemctl stop cattlegrid && systemctl start cattlegrid.socket")
    assert machine.show("cattlegrid", "ActiveState") == "inactive"
    client = Client(machine, ["127.0.0.1", 11211])
    client("set", "key", "by the socket")
    assert client("get", "key") == "by the socket" and machine.show("cattlegrid", "ActiveState") == "active"
    assert machine.show("cattlegrid", "StatusText") == "Serving on 127.0.0.1:11211"
    machine.sh("systemctl restart cattlegrid")
    fresh = Client(machine, ["127.0.0.1", 11211])
    assert fresh("get", "key") is None and not fresh.failures
    client.close()
    fresh.close()
    machine.sh("systemctl start memcached")
    assert machine.show("cattlegrid.socket", "ActiveState") == "inactive", "it has stopped both"
    step("started by its socket, restarted without a refused connection")


def installed_again(machine, package):
    """After a removal, where both start with the machine by then: memcached goes on, and this one is switched off and says so."""
    machine.sh("systemctl enable --now memcached && systemctl enable cattlegrid && dpkg --remove cattlegrid")
    own = machine.pid("memcached")
    said = machine.sh(f"dpkg -i /tmp/{package}").stdout
    assert REPLACE in said and BACK in said, said
    assert machine.pid("memcached") == own and machine.show("cattlegrid", "ActiveState") == "inactive"
    assert machine.sh("systemctl is-enabled cattlegrid", check=False).stdout.strip() == "disabled"
    assert machine.sh("systemctl is-enabled memcached").stdout.strip() == "enabled"
    step("installed again where memcached is enabled: it goes on, alone")


def purge(machine, client, before):
    machine.sh("systemctl start cattlegrid")
    machine.sh("dpkg --remove cattlegrid")
    assert machine.sh("systemctl is-active cattlegrid", check=False).stdout.strip() != "active"
    assert (machine.path / "etc/cattlegrid/cattlegrid.toml").exists(), "a removal keeps what was configured"
    machine.sh("dpkg --purge cattlegrid")
    # The links are of memcached's script for other inits, which its being switched off leaves.
    left = {line for line in files(machine) - before if not line.startswith("/etc/rc")}
    assert not left, sorted(left)
    assert not [path for path in GONE if (machine.path / path[1:]).exists()]
    machine.sh("systemctl enable --now memcached")
    client("set", "key", "of memcached once more")
    assert client("get", "key") == "of memcached once more"
    assert machine.sh("stat -c %U /run/memcached").stdout.strip() == "memcache"
    step("removed and purged: no file and no user is left, and memcached is back")


def alone(machine, package):
    """Without memcached and its configuration: 127.0.0.1, 64 MiB."""
    machine.sh("dpkg --purge memcached && test ! -e /etc/memcached.conf && rm -rf /run/memcached")
    before = files(machine)
    machine.sh(f"dpkg -i /tmp/{package}")
    assert machine.show("cattlegrid", "ActiveState") == "active"
    assert machine.sh("systemctl is-enabled cattlegrid").stdout.strip() == "enabled"
    client = Client(machine, ["127.0.0.1", 11211])
    found = settings(client)
    assert (found["maxbytes"], found["inter"], found["tcpport"]) == (str(64 << 20), "127.0.0.1", "11211"), found
    client("set", "@tag:x", "an ordinary key")
    assert client("get", "@tag:x") == "an ordinary key", "no key has a meaning of its own"
    machine.sh("dpkg --remove cattlegrid")
    assert machine.show("cattlegrid", "ActiveState") == "inactive"
    machine.sh(f"dpkg -i /tmp/{package}")
    assert machine.show("cattlegrid", "ActiveState") == "active", "started after a removal, too"
    machine.sh("dpkg --purge cattlegrid")
    assert not machine.sh("ss -ltn 2>/dev/null | grep 11211 || pidof cattlegrid", check=False).stdout
    left = files(machine) - before
    assert not left, sorted(left)
    client.close()
    step("alone: started by its installation and by the next one, with defaults; purged")


def life(machine, first, newer):
    client = Client(machine, ["127.0.0.1", 11311])
    wait_until("memcached serves", lambda: client("set", "key", "value"))
    client.failures.clear()
    before = files(machine)
    starts_beside_memcached(machine, client, first)
    runs_as_the_unit_says(machine)
    memcached_comes_back(machine, client)
    reloads(machine, client)
    loaders_objects_and_unix_sockets(machine)
    a_lane_that_hangs(machine, client)
    upgrade(machine, client, newer)
    sockets(machine)
    installed_again(machine, newer)
    purge(machine, client, before)
    client.close()
    alone(machine, newer)


def main(packages):
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    target = ROOT / "target/package"
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="machine-", dir=target) as folder:
        path = pathlib.Path(folder) / "root"
        machine = None
        try:
            make_root(path, PACKAGES)
            print(f"made in {time.monotonic() - began:.0f} s", flush=True)
            shutil.copy(CONF, path / "etc/memcached.conf")
            machine = Machine(path)
            # /tmp is emptied by the boot.
            for package in packages:
                machine.sh(f"cat > /tmp/{package.name} < /dev/null")
                shutil.copy(package, f"/proc/{machine.leader}/root/tmp/{package.name}")
            life(machine, *(package.name for package in packages))
        except LeftOut as reason:
            print(f"package: not tested on this machine: {reason}")
            return
        except AssertionError:
            if machine:
                print(machine.journal())
            raise
        finally:
            if machine:
                machine.close()
            # mmdebstrap leaves them when it cannot go on, on a full disk for instance.
            for own in ("proc", "sys", "dev"):
                if os.path.ismount(path / own):
                    subprocess.run(["umount", "--lazy", path / own], check=True)
    print(f"{passed} passed, 0 failed")
    print(f"in {time.monotonic() - began:.0f} s")


main([pathlib.Path(name).resolve() for name in sys.argv[1:]])
