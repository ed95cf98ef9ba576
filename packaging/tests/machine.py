"""A small Debian of its own, booted with a real systemd in namespaces, and what is done in it."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent


class LeftOut(Exception):
    """This machine cannot do it; the text says why."""


def wait_until(what, condition, seconds=20):
    """The first true value of `condition`; fails, saying `what`, after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        is_last = time.monotonic() > end
        if got := condition():
            return got
        if is_last:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.05)


def suite():
    """The code name of this machine's Debian."""
    words = dict(line.split("=", 1) for line in pathlib.Path("/etc/os-release").read_text().splitlines() if "=" in line)
    return words.get("VERSION_CODENAME", "").strip('"')


def make_root(path, packages):
    """Installs a minimal Debian of the same suite, from where this machine's own packages come."""
    if os.geteuid() != 0:
        raise LeftOut("only root can make and boot it")
    for program, package in [("mmdebstrap", "mmdebstrap"), ("systemd-nspawn", "systemd-container")]:
        if not shutil.which(program):
            raise LeftOut(f"{program} is missing: apt-get install {package}")
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(packages)}", suite(), str(path)]
    made = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if made.returncode:
        raise LeftOut(f"mmdebstrap: {made.stderr.strip()[-400:]}")


class Machine:
    """A root that has booted."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.log = tempfile.TemporaryFile()
        command = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--private-network", "--capability=CAP_IPC_LOCK", "--boot", "-D", str(path)]
        self.nspawn = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        try:
            self.leader = wait_until("systemd of the machine", self._leader, 30)
            state = wait_until("the machine is up", self._state, 60)
        except AssertionError as error:
            said = self.said()
            self.close()
            raise LeftOut(f"systemd-nspawn --boot: {error}: {said}") from error
        print(f"booted: {state}")

    def _leader(self):
        """The process that is number 1 in there: the last one in the line of only children that is systemd."""
        if self.nspawn.poll() is not None:
            raise AssertionError("it has ended")
        for pid in children(self.nspawn.pid):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/exe").endswith("/systemd"):
                    return pid
        return None

    def _state(self):
        state = self.sh("systemctl is-system-running", check=False).stdout.strip()
        return state if state in ("running", "degraded") else None

    def said(self):
        """The end of the console."""
        self.log.seek(0)
        return self.log.read()[-600:].decode(errors="replace")

    def enter(self, *words):
        """The words of a command in there."""
        return ["nsenter", "-t", str(self.leader), "-m", "-u", "-i", "-n", "-p", "-r", "-w", "--", *words]

    def sh(self, command, check=True):
        """Runs a command line in there."""
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
        done = subprocess.run(self.enter("sh", "-c", command), stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment)
        if check and done.returncode:
            raise AssertionError(f"{command}: status {done.returncode}\n{done.stdout}{done.stderr}\n{self.journal()}")
        return done

    def journal(self):
        return self.sh("journalctl --no-pager -n 40 -o cat -u cattlegrid -u memcached", check=False).stdout

    def show(self, unit, name):
        """A property of a unit."""
        return self.sh(f"systemctl show --value -p {name} {unit}").stdout.strip()

    def pid(self, unit):
        """The unit's main process as this machine numbers it."""
        own = self.show(unit, "MainPID")
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            with contextlib.suppress(OSError):
                numbers = status(pid)["NSpid"].split()
                if numbers[-1] == own and os.readlink(f"/proc/{pid}/ns/pid") == os.readlink(f"/proc/{self.leader}/ns/pid"):
                    return pid
        raise AssertionError(f"{unit}: no process {own}")

    def close(self):
        if self.nspawn.poll() is None:
            # What nspawn passes on as the order to power off.
            with contextlib.suppress(OSError, AttributeError):
                os.kill(self.leader, signal.SIGRTMIN + 4)
            try:
                self.nspawn.wait(20)
            except subprocess.TimeoutExpired:
                self.nspawn.kill()
                self.nspawn.wait()


def children(pid):
    """The children of a process, and theirs."""
    own = []
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        own += [int(word) for word in (task / "children").read_text().split()]
    return own + [deeper for child in own for deeper in children(child)]


def status(pid):
    """/proc/PID/status."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":", 1) for line in lines)


class Client:
    """pymemcache in a process of its own, in the network of the machine, with Python and libraries of outside."""

    def __init__(self, machine, address):
        command = ["nsenter", "-t", str(machine.leader), "-n", "--", sys.executable, str(HERE / "client.py"), json.dumps(address)]
        if isinstance(address, str):
            # A unix socket of the machine, by way of its root.
            command[-1] = json.dumps(f"/proc/{machine.leader}/root{address}")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.failures = []

    def __call__(self, *command):
        """Sends a command; a connection that is gone is another try, as an application has it, for 10 s."""

        def answered():
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
            answer = json.loads(self.process.stdout.readline())
            if "error" in answer:
                self.failures.append(answer["error"])
                return None
            return answer

        return wait_until(f"{command}: {self.failures[-1:]}", answered, 10)["result"]

    def close(self):
        self.process.stdin.close()
        self.process.wait(10)
