"""`cattlegrid doctor`: what it says of real situations, and that the server does what it says."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time

import pytest

import harness
from database import Database
from harness import free_port, tool, wait_until
from test_operations import make_certificate

pytestmark = pytest.mark.only_cattlegrid
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
NO_START = "The server does not start"
OF_THE_MACHINE = {"CPUs", "CPU quota", "swap", "control group", "memory", "clock", "somaxconn", "listen queue"}
"""What a machine that the tests run on may lack."""


class Report:
    """What it has printed, as JSON."""

    def __init__(self, words, before=(), seconds=60, **options):
        begun = time.monotonic()
        done = subprocess.run([*before, *map(str, words), "--json"], capture_output=True, text=True, timeout=seconds, **options)
        self.seconds = time.monotonic() - begun
        self.status, self.errors = done.returncode, done.stderr
        assert self.status in (0, 1), (self.status, done.stdout, done.stderr)
        self.all = json.loads(done.stdout)
        assert (self.status == 1) == (self.all["problems"] > 0), self.all

    def of(self, check):
        """Findings of a check: `problem: FOUND WHY CHANGE`."""
        found = [f for f in self.all["findings"] if f["check"] == check]
        return [f"{f['level']}: {f['found']} {f['why']} {f['change']}" for f in found]

    def one(self, check, *parts):
        found = self.of(check)
        assert len(found) == 1, (check, self.all)
        for part in parts:
            assert part in found[0], (part, found[0])
        return found[0]

    def checks(self):
        return {f["check"] for f in self.all["findings"]}

    def passed(self):
        return {p["check"] for p in self.all["passed"]}


@pytest.fixture
def program(binary, open_dir):
    """A copy that other users can run."""
    copy = shutil.copy(binary, open_dir + "/cattlegrid")
    os.chmod(copy, 0o755)
    return copy


def ends_at_once(words, before=(), **options):
    """Whether the server with these words does not start."""
    process = subprocess.Popen([*before, *map(str, words)], stderr=subprocess.DEVNULL, **options)
    try:
        return process.wait(3) != 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        process.kill()
        process.wait()


def test_a_healthy_setup_has_nothing_to_change(binary):
    words = [binary, "doctor", "-u", "nobody", "-t", "1", "-p", free_port()]
    report = Report(words)
    assert report.status == 0 and report.checks() <= OF_THE_MACHINE, report.all
    assert {"open files", "port", "who may connect"} <= report.passed()
    text = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=60)
    assert text.returncode == 0 and " checks passed\n" in text.stdout and "ok  " not in text.stdout
    if not report.all["findings"]:
        assert "nothing to change" in text.stdout
    verbose = subprocess.run([*map(str, words), "-v"], capture_output=True, text=True, timeout=60).stdout
    assert verbose.count("\nok  ") + verbose.startswith("ok  ") == len(report.all["passed"])


def test_bad_options_are_usage_errors(binary, tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text("[[rule]]\nmatch = \"page:{id}\"\nhodl = \"1s\"\n")
    for words, part in ((["--nonsense"], "--nonsense"), (["-c", "many"], "-c"), (["--pid", "0"], "--pid 0: no process; is the unit running?"), (["/none.toml"], "/none.toml"),
                        ([rules], "hodl"), (["--pid", "4194305"], "no such process"), (["a.toml", "b.toml"], "one file")):
        done = subprocess.run([binary, "doctor", *map(str, words)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and part in done.stderr and not done.stdout, (words, done)
    done = subprocess.run([binary, "doctor", "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith("Usage: cattlegrid doctor")


def test_a_port_that_memcached_has(binary, program):
    port = free_port()
    other = subprocess.Popen([tool("memcached"), "-u", "nobody", "-l", "127.0.0.1", "-p", str(port), "-U", "0"])
    try:
        wait_until("memcached listens", lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0)
        words = [binary, "-p", port]
        Report([binary, "doctor", *words[1:]]).one("port", "problem: ", f"taken by memcached, process {other.pid}", "disable --now memcached", NO_START)
        assert ends_at_once(words)
        # Who may not see its descriptors asks it, and believes it if it sees such a process: /proc may hide those of others (hidepid).
        seen = subprocess.run([*NOBODY, "test", "-e", f"/proc/{other.pid}/stat"], timeout=60).returncode == 0
        said = f"taken by memcached, process {other.pid}" if seen else "its process cannot be seen"
        Report([program, "doctor", *words[1:]], NOBODY).one("port", said)
    finally:
        other.terminate()
        other.wait()
    report = Report([binary, "doctor", "-p", port])
    assert report.of("port") == []
    socket.create_server(("127.0.0.1", port)).close()


def test_what_it_says_does_not_start_does_not(program, open_dir):
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(open_dir + "/taken")
    listening.listen()
    with open(open_dir + "/plain", "w"):
        pass
    port = free_port()
    nobody, files = list(NOBODY), ["prlimit", "--nofile=200:300", *NOBODY]
    for check, words, before in (
        ("port", ["-l", "192.0.2.7", "-p", port], []),
        ("unix socket", ["-s", open_dir + "/" + "x" * 110], []),
        ("unix socket", ["-s", open_dir + "/taken"], []),
        ("unix socket", ["-s", open_dir + "/plain"], []),
        ("unix socket", ["-s", open_dir + "/none/socket"], []),
        ("open files", ["-p", port, "-c", "301"], files),
        ("user", ["-p", port, "-u", "no-such-user"], []),
        ("admin", ["-p", port, "--admin", "0.0.0.0"], []),
        ("port", ["-p", port, "-l", "127.0.0.1,127.0.0.1"], []),
        ("users", ["-p", port, "-Y", open_dir + "/plain"], []),
        ("core files", ["-p", port, "-r"], ["prlimit", "--core=0:0", *NOBODY]),
        ("address space", ["-p", port, "-m", "3000"], ["prlimit", "--as=2000000000"]),
    ):
        Report([program, "doctor", *words], before).one(check, "problem: ", NO_START)
        assert ends_at_once([program, *words], before), words
    Report([program, "doctor", "-p", port, "-c", "280"], files).one("open files", "300 are allowed", "LimitNOFILE=")
    assert not ends_at_once([program, "-p", str(port), "-c", "280"], files)
    assert Report([program, "doctor", "-p", port, "-c", "200"], files).of("open files") == []
    if not ends_at_once(["true"], nobody):
        Report([program, "doctor", "-p", port, "-k"], ["prlimit", "--memlock=65536", *NOBODY]).one("locked memory", "64 KiB are allowed")


def test_ports_that_need_a_capability(program):
    with open("/proc/sys/net/ipv4/ip_unprivileged_port_start") as f:
        first = int(f.read())
    if first > 80:
        Report([program, "doctor", "-p", "79"], NOBODY).one("port", "problem: ", "may not listen on 127.0.0.1:79", "CAP_NET_BIND_SERVICE")
        assert ends_at_once([program, "-p", "79"], NOBODY)
    assert Report([program, "doctor", "-p", free_port()], NOBODY).of("port") == []


def test_the_length_of_the_queue(binary):
    """In a network of its own, whose limit is its own."""
    script = "echo 16 > /proc/sys/net/core/somaxconn && exec \"$@\""
    inside = ["unshare", "--net", "sh", "-c", script, "sh"]
    if subprocess.run([*inside, "true"], capture_output=True, timeout=60).returncode:
        pytest.skip("no namespace of networks can be made here")
    Report([binary, "doctor"], inside).one("somaxconn", "advice: 16 ", "-b is 1024", "sysctl -w net.core.somaxconn=1024")
    assert Report([binary, "doctor", "-b", "16"], inside).of("somaxconn") == []


@pytest.fixture
def control_group():
    """Makes a group with this much memory; a file to which a process writes its id to be in it."""
    made = []

    def make(mib):
        for top, limit in (("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")):
            group = f"{top}/cattlegrid-doctor-{os.getpid()}"
            if not os.path.exists(f"{top}/cgroup.procs"):
                continue
            try:
                os.mkdir(group)
                made.append(group)
                with open(f"{group}/{limit}", "w") as f:
                    f.write(str(mib << 20))
                return f"{group}/cgroup.procs"
            except OSError:
                continue
        pytest.skip("no control group can be made here")

    yield make
    for group in made:
        wait_until("the group is empty", lambda: not open(f"{group}/cgroup.procs").read())
        os.rmdir(group)


def test_a_control_group_with_less_memory_than_items(binary, control_group):
    """And the system does end the server there."""
    inside = ["sh", "-c", f"echo $$ > {control_group(48)} && exec \"$@\"", "sh"]
    port = free_port()
    Report([binary, "doctor", "-p", port], inside).one("control group", "problem: 48 MiB of memory", "-m is 64 MiB", "all items are lost")
    Report([binary, "doctor", "-p", port, "-m", "8", "-I", "1m"], inside).one("control group", "advice: 48 MiB")
    server = subprocess.Popen([*inside, binary, "-p", str(port)], stderr=subprocess.DEVNULL)
    try:
        wait_until("it listens", lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0)
        assert f"process {server.pid}" in Report([binary, "doctor", "-p", port]).all["server"]
        with socket.create_connection(("127.0.0.1", port)) as client:
            for n in range(3000):
                try:
                    client.sendall(b"set k%d 0 0 30000 noreply\r\n%s\r\n" % (n, b"x" * 30000))
                except OSError:
                    break
        wait_until("the system has ended it", lambda: server.poll() is not None)
        assert server.returncode == -signal.SIGKILL
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize("days, level, said", [(-1, "problem", "expired"), (10, "advice", "expires in "), (300, None, None)])
def test_the_age_of_a_certificate(binary, open_dir, days, level, said):
    make = ["openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-subj", "/CN=x", "-addext",
            "subjectAltName=DNS:cache.example", "-keyout", "key.pem", "-out", "cert.pem"]
    if days < 0:
        subprocess.run([*make[:1], "req", "-new", *make[3:-1], "x.csr"], check=True, cwd=open_dir, capture_output=True)
        subprocess.run(["openssl", "x509", "-req", "-in", "x.csr", "-signkey", "key.pem", "-days", str(days), "-out", "cert.pem"],
                       check=True, cwd=open_dir, capture_output=True)
    else:
        subprocess.run([*make, "-days", str(days)], check=True, cwd=open_dir, capture_output=True)
    os.chmod(open_dir + "/key.pem", 0o600)
    words = [binary, "doctor", "-p", free_port(), "-Z", "-o", f"ssl_chain_cert={open_dir}/cert.pem,ssl_key={open_dir}/key.pem"]
    found = [f for f in Report(words).of("certificate") if "subjectAltName" not in f]
    assert [f.startswith(f"{level}: ") and said in f for f in found] == ([True] if level else []), found


def test_keys_that_do_not_fit_and_names_that_are_missing(binary, open_dir):
    make_certificate(open_dir)
    make_certificate(open_dir, "other")
    options = f"ssl_chain_cert={open_dir}/cert.pem,ssl_key={open_dir}/otherkey.pem"
    report = Report([binary, "doctor", "-p", free_port(), "-Z", "-o", options])
    report.one("certificate", "problem: ", "cannot be used together", NO_START)
    subprocess.run(["openssl", "req", "-x509", "-nodes", "-newkey", "rsa:2048", "-subj", "/CN=x", "-days", "300", "-keyout", "k.pem", "-out", "c.pem"],
                   check=True, cwd=open_dir, capture_output=True)
    report = Report([binary, "doctor", "-p", free_port(), "-Z", "-o", f"ssl_chain_cert={open_dir}/c.pem,ssl_key={open_dir}/k.pem"])
    report.one("certificate", "advice: ", "has no subjectAltName")


def test_a_certificate_that_was_renewed_and_not_read(binary, start, open_dir):
    make_certificate(open_dir)
    options = ["-Z", "-o", f"ssl_chain_cert={open_dir}/cert.pem,ssl_key={open_dir}/key.pem"]
    server = start(*options)
    assert "is not that of" not in str(Report([binary, "doctor", "--pid", server.pid]).all)
    make_certificate(open_dir)
    for words in (["--pid", server.pid], ["-p", server.port, *options]):
        found = Report([binary, "doctor", *words]).of("certificate")
        assert any("is not that of ssl_chain_cert" in one and "SIGHUP" in one for one in found), found
        assert sum("expires in" in one for one in found) == 2, found
    server.signal(signal.SIGHUP)
    wait_until("it shows the new one", lambda: "is not that of" not in str(Report([binary, "doctor", "--pid", server.pid]).all))


def test_files_that_others_can_read_and_the_server_cannot(program, tmp_path_factory):
    directory = tmp_path_factory.mktemp("secrets")
    for part in (directory, *directory.parents):
        if str(part).startswith("/tmp/"):
            os.chmod(part, 0o755)
    users = directory / "users"
    users.write_text("a:b\n")
    users.chmod(0o644)
    Report([program, "doctor", "-p", free_port(), "-Y", users]).one("secrets", "problem: ", "mode 0644", f"chmod o-rwx {users}")
    users.chmod(0o600)
    assert Report([program, "doctor", "-p", free_port(), "-Y", users]).of("secrets") == []
    Report([program, "doctor", "-p", free_port(), "-Y", users], NOBODY).one("file", "cannot be read by this user", "Permission denied")
    # Root reads it at the start, the user that the server becomes cannot at SIGHUP.
    Report([program, "doctor", "-p", free_port(), "-u", "nobody", "-Y", users]).one("file", "cannot be read by nobody (-u)", "SIGHUP")


def test_loaders(binary, open_dir):
    loader = open_dir + "/load"
    rules = open_dir + "/rules.toml"
    with open(rules, "w") as f:
        f.write(f'[[rule]]\nmatch = "page:{{id}}"\nloader = "pages"\n[loader.pages]\ncommand = ["{loader}"]\nmode = "jsonl"\n')
    words = [binary, "doctor", rules, "-p", str(free_port()), "-u", "nobody"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "cannot be used: No such file" in done.stderr, done
    with open(loader, "w") as f:
        f.write("#!/none/python3\n")
    os.chmod(loader, 0o700)
    if os.geteuid() == 0:
        Report(words).one("loader", "problem: pages: nobody cannot run", "chmod +x")
    os.chmod(loader, 0o755)
    Report(words).one("loader", "the interpreter of", "/none/python3, does not exist")
    with open(loader, "w") as f:
        f.write("#!/bin/sh\ncat\n")
    assert Report(words).of("loader") == []


def follow(open_dir, url, more=""):
    rules = open_dir + "/rules.toml"
    with open(rules, "w") as f:
        f.write(f'[[rule]]\nmatch = "page:{{id}}"\ntags = ["page:{{id}}"]\n[follow.shop]\nkind = "postgres"\nurl = "{url}"\n'
                f'publication = "cache"\n{more}\n[[follow.shop.table]]\ntable = "pages"\nbump = ["page:{{id}}"]\n')
    return rules


def test_a_database_that_does_not_answer_and_a_database_that_is_away(binary, open_dir):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        rules = follow(open_dir, f"postgres://me@127.0.0.1:{silent.getsockname()[1]}/shop")
        report = Report([binary, "doctor", rules, "-p", free_port()])
        report.one("followed log", "problem: shop (", "no answer within 5 s")
        assert report.seconds < 20
    rules = follow(open_dir, f"postgres://me@127.0.0.1:{free_port()}/shop")
    Report([binary, "doctor", rules, "-p", free_port()]).one("followed log", "problem: shop (", "refused")


def test_a_database_that_lacks_something(binary, open_dir):
    database = Database()
    try:
        database.sql("CREATE TABLE pages (id int PRIMARY KEY)")
        words = [binary, "doctor", follow(open_dir, database.url), "-p", free_port()]
        assert "CREATE PUBLICATION" in Report(words).of("followed log")[0]
        database.sql("CREATE PUBLICATION cache FOR TABLE pages")
        assert Report(words).of("followed log") == []
    finally:
        database.clean()


def test_a_server_that_runs(binary, start):
    server = start("-c", "30", "-m", "70")
    report = Report([binary, "doctor", "--pid", server.pid])
    assert f"process {server.pid}" in report.all["server"]
    assert {"open files", "connections", "reload", "resident memory"} <= report.passed() and report.status == 0, report.all
    # Found by its port; these options are not those it has.
    report = Report([binary, "doctor", "-p", server.port, "-m", "80"])
    assert f"process {server.pid}" in report.all["server"] and report.of("port") == []
    report.one("options", "has -m 70 now", "these options say 80")
    clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(40)]
    wait_until("connections are refused", lambda: any(c.recv(100) for c in clients[-3:]))
    [client.close() for client in clients]
    wait_until("there is room again", lambda: ends_well(server))
    Report([binary, "doctor", "--pid", server.pid]).one("connections", "problem: ", "refused at the limit of -c 30", "-c 64")


def ends_well(server):
    try:
        return server.stats()["rejected_connections"] != "0"
    except (harness.Closed, OSError, KeyError, AssertionError):
        # Among them the answer that there are too many connections.
        return False


def test_a_server_that_does_not_answer(binary):
    port, addresses = free_port(), "127.0.0.1,127.0.0.2,127.0.0.3"
    server = subprocess.Popen([binary, "-p", str(port), "-l", addresses], stderr=subprocess.DEVNULL)
    try:
        wait_until("it listens", lambda: socket.socket().connect_ex(("127.0.0.3", port)) == 0)
        server.send_signal(signal.SIGSTOP)
        for words in (["--pid", server.pid], ["-p", port, "-l", addresses]):
            report = Report([binary, "doctor", *words])
            assert report.status == 1 and report.seconds < 5, (report.seconds, report.all)
            found = report.of("answer")
            assert len(found) == 3 and all("does not answer within 2 s" in one for one in found), report.all
        done = subprocess.run([binary, "ping", f"127.0.0.1:{port}"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and "no answer within 2 s" in done.stderr, done
    finally:
        server.kill()
        server.wait()


def test_a_server_with_a_unix_socket_alone(program, open_dir):
    path = open_dir + "/socket"
    server = subprocess.Popen([program, "-s", path, "-a", "0700"], stderr=subprocess.DEVNULL)
    try:
        wait_until("it listens", lambda: socket.socket(socket.AF_UNIX).connect_ex(path) == 0)
        for words in (["--pid", server.pid], ["-s", path]):
            report = Report([program, "doctor", *words])
            assert report.of("unix socket") == [] and f"process {server.pid}" in report.all["server"], report.all
            assert "connections" in report.passed(), report.all
        if os.geteuid() == 0:
            report = Report([program, "doctor", "-s", path], NOBODY)
            assert "unix socket" in {u["check"] for u in report.all["unseen"]} and "unix socket" not in report.passed(), report.all
    finally:
        server.terminate()
        server.wait()


def test_a_process_that_is_another_program(binary):
    other = subprocess.Popen(["sleep", "60"])
    try:
        done = subprocess.run([binary, "doctor", "--pid", str(other.pid)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and "this process is sleep" in done.stderr, done
    finally:
        other.kill()
        other.wait()


def test_a_server_in_another_pid_namespace(binary):
    port = free_port()
    inside = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*inside, "true"], capture_output=True, timeout=60).returncode or os.geteuid():
        pytest.skip("no namespace of processes can be made here")
    server = start_in(inside, binary, port)
    try:
        # Who sees this process does not see the server, nor takes process 1 for it.
        outside = Report([binary, "doctor", "-p", port], ["unshare", "--pid", "--fork", "--mount-proc"])
        assert outside.all["server"] == "the server that runs" and outside.of("open files") == [], outside.all
        assert any("another pid namespace?" in u["how"] for u in outside.all["unseen"]), outside.all
    finally:
        server.kill()
        server.wait()


def start_in(inside, binary, port):
    server = subprocess.Popen([*inside, binary, "-p", str(port)], stderr=subprocess.DEVNULL)
    wait_until("it listens", lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0)
    return server


def test_a_server_that_runs_with_a_small_limit(binary, start):
    server = start("-c", "100")
    subprocess.run(["prlimit", f"--nofile=120:20000", f"--pid={server.pid}"], check=True, timeout=60)
    Report([binary, "doctor", "--pid", server.pid]).one("open files", "problem: 120 are allowed (limit of the running server)", "LimitNOFILE=")


def test_a_reload_that_changed_nothing(binary, start, open_dir):
    rules = open_dir + "/rules.toml"
    with open(rules, "w") as f:
        f.write('[[rule]]\nmatch = "page:{id}"\nhold = "1s"\n')
    server = start("--config", rules)
    with open(rules, "w") as f:
        f.write('[[rule]]\nmatch = "page:{id}"\nhodl = "1s"\n')
    server.signal(signal.SIGHUP)
    wait_until("the reload has failed", lambda: server.stats("cattlegrid")["reload_error"] != "none")
    report = Report([binary, "doctor", "--pid", server.pid])
    report.one("reload", "problem: ", "changed nothing", "hodl")
    report.one("options", "wrong now", "hodl")


def test_a_daemon_whose_paths_are_relative(binary, open_dir):
    with open(open_dir + "/rules.toml", "w") as f:
        f.write('[[rule]]\nmatch = "page:{id}"\nhold = "1s"\n')
    port = free_port()
    subprocess.run([binary, "-d", "-p", str(port), "--config", "rules.toml", "-P", open_dir + "/pid"], cwd=open_dir, check=True, timeout=60)
    pid = int(open(open_dir + "/pid").read())
    try:
        report = Report([binary, "doctor", "--pid", pid])
        assert [u["check"] for u in report.all["unseen"]] == ["options"] and report.of("options") == [], report.all
        report = Report([binary, "doctor", "-p", port, "rules.toml"], cwd=open_dir)
        assert report.all["unseen"] == [] and f"process {pid}" in report.all["server"], report.all
    finally:
        os.kill(pid, signal.SIGTERM)
        wait_until("it has ended", lambda: not os.path.exists(f"/proc/{pid}/exe"))


def test_it_changes_nothing(binary, open_dir):
    """It opens no file for writing, and leaves nothing behind."""
    before = sorted(os.listdir(open_dir))
    Report([binary, "doctor", "-s", open_dir + "/socket", "-P", open_dir + "/pid", "-p", free_port()], cwd=open_dir)
    assert sorted(os.listdir(open_dir)) == before


def test_an_open_cache(binary):
    for words in (["-l", "0.0.0.0"], ["-l", "*"]):
        Report([binary, "doctor", *words, "-p", free_port()]).one("who may connect", "problem: ", "open to every network")
    assert Report([binary, "doctor", "-l", "127.0.0.1", "-p", free_port()]).of("who may connect") == []
