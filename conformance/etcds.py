"""An etcd of some servers on loopback, of Debian's `etcd-server`, in a folder that is gone afterwards."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

from harness import free_port, tool, wait_until


class Etcd:
    """`names` of its servers have their ports in `ports`. Elections are short, so that tests are."""

    def __init__(self, servers=3, options=(), tls=None):
        """`tls`: a folder with `ca.pem`, and `server` and `client` with `.pem` and `.key`; clients must show a certificate."""
        base = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="cattlegrid-etcd", dir=base))
        self.names = [f"e{number}" for number in range(servers)]
        self.ports = {name: free_port() for name in self.names}
        self.peers = {name: free_port() for name in self.names}
        self.token = f"cattlegrid-{os.getpid()}-{self.peers[self.names[0]]}"
        self.options = list(options)
        self.options += ["--heartbeat-interval", "50", "--election-timeout", "400"]
        self.processes, self.stopped = {}, set()
        self.env, self.scheme, self.user = {"ETCDCTL_API": "3"}, "http", []
        if tls:
            self.scheme = "https"
            self.options += ["--cert-file", f"{tls}/server.pem", "--key-file", f"{tls}/server.key",
                             "--client-cert-auth", "--trusted-ca-file", f"{tls}/ca.pem"]
            self.user = ["--cacert", f"{tls}/ca.pem", "--cert", f"{tls}/client.pem", "--key", f"{tls}/client.key"]
        for name in self.names:
            self.start(name, wait=False)
        self.wait()

    @property
    def endpoints(self):
        return [f"{self.scheme}://127.0.0.1:{port}" for port in self.ports.values()]

    def start(self, name, new=True, wait=True, force=()):
        peers = ",".join(f"{own}=http://127.0.0.1:{port}" for own, port in self.peers.items())
        client = f"{self.scheme}://127.0.0.1:{self.ports[name]}"
        peer = f"http://127.0.0.1:{self.peers[name]}"
        with open(self.directory / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [tool("etcd"), "--name", name, "--data-dir", self.directory / name, "--listen-client-urls", client,
                 "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                 "--initial-cluster", peers, "--initial-cluster-token", self.token, "--initial-cluster-state", "new",
                 *self.options, *force],
                stdout=log, stderr=log, env={**os.environ, "ETCD_UNSUPPORTED_ARCH": "arm64"})
        if wait:
            self.wait()

    def wait(self):
        def works():
            with contextlib.suppress(subprocess.CalledProcessError, subprocess.TimeoutExpired):
                return self.ctl("get", "none", timeout=5) is not None
            return False
        try:
            wait_until("etcd has a leader", works, 120)
        except AssertionError as error:
            said = {name: (self.directory / f"{name}.log").read_text(errors="replace")[-2000:] for name in self.names}
            ended = {name: process.poll() for name, process in self.processes.items()}
            raise AssertionError(f"{error}; ended: {ended}; {said}") from error

    def ctl(self, *arguments, timeout=20, endpoints=None):
        """The output of `etcdctl`."""
        command = [tool("etcdctl"), "--endpoints", ",".join(endpoints or self.endpoints), *self.user, *arguments]
        done = subprocess.run(command, env={**os.environ, **self.env}, capture_output=True, text=True, timeout=timeout)
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
        return done.stdout

    def leader(self):
        def find():
            with contextlib.suppress(subprocess.CalledProcessError, subprocess.TimeoutExpired, ValueError):
                for name in self.names:
                    if name in self.stopped or self.processes[name].poll() is not None:
                        continue
                    own = f"{self.scheme}://127.0.0.1:{self.ports[name]}"
                    status = json.loads(self.ctl("endpoint", "status", "-w", "json", endpoints=[own], timeout=5))[0]["Status"]
                    if status["leader"] == status["header"]["member_id"]:
                        return name
            return None
        return wait_until("etcd has a leader", find, 60)

    def revision(self):
        return json.loads(self.ctl("get", "none", "-w", "json"))["header"]["revision"]

    def compact(self):
        self.ctl("compact", str(self.revision()))

    def kill(self, name):
        self.processes[name].kill()
        self.processes[name].wait()
        self.stopped.discard(name)

    def freeze(self, name):
        self.processes[name].send_signal(signal.SIGSTOP)
        self.stopped.add(name)

    def thaw(self, name):
        self.processes[name].send_signal(signal.SIGCONT)
        self.stopped.discard(name)

    def restore(self, snapshot, token=None):
        """All servers begin anew with the data of a snapshot, as another cluster unless `token` is the last one's."""
        for name in self.names:
            self.kill(name)
            shutil.rmtree(self.directory / name)
        if token is None:
            self.token += "-again"
        peers = ",".join(f"{own}=http://127.0.0.1:{port}" for own, port in self.peers.items())
        for name in self.names:
            self.ctl("snapshot", "restore", str(snapshot), "--name", name, "--data-dir", str(self.directory / name),
                     "--initial-cluster", peers, "--initial-cluster-token", self.token,
                     "--initial-advertise-peer-urls", f"http://127.0.0.1:{self.peers[name]}", timeout=60)
            self.start(name, wait=False)
        self.wait()

    def clean(self):
        for name, process in self.processes.items():
            if process.poll() is None:
                if name in self.stopped:
                    process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)
