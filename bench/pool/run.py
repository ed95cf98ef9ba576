"""Runs the pool's benchmark beside Python's pools, alternately, and prints medians and ratios."""

import concurrent.futures
import multiprocessing
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ANCESTOR = HERE / "anyevent_fork_pool.pl"
ROUNDS = int(os.environ.get("ROUNDS", "3"))

RATIOS = [
    *((f"T1 jobs/s, load {n}", f"rust_jobs_per_s_load_{n}", f"anyevent_jobs_per_s_load_{n}") for n in (1, 2, 16)),
    *((f"T2 CPU/job, load {n}", f"rust_cpu_us_load_{n}", f"anyevent_cpu_us_load_{n}") for n in (1, 2, 16)),
    *(
        (f"T3 jobs/s, load {n}", f"python_jobs_per_s_load_{n}", f"{other}_jobs_per_s_load_{n}")
        for other in ("ppe", "loky")
        for n in (1, 2, 16)
    ),
    ("T4 latency", "rust_t4_p50_us", "anyevent_p50_us"),
    ("T4 latency", "python_t4_p50_us", "anyevent_p50_us"),
    ("T5 1 MiB", "rust_t5_p50_us", "anyevent_1mib_p50_us"),
    ("T5 1 MiB", "python_t5_p50_us", "anyevent_1mib_p50_us"),
    ("T6 start", "rust_t6_p50_us", "anyevent_start_p50_us"),
    ("T6 start", "python_t6_p50_us", "python_fork_start_p50_us"),
    ("T6 start, 50 MB", "python_t6_50mb_p50_us", "python_fork_50mb_start_p50_us"),
    ("T8 death", "python_t8_p50_us", "python_fork_death_p50_us"),
]
"""What is divided by what, where both were measured."""


def echo(x):
    return x


def windowed(submit, window, count):
    """Jobs a second with `window` futures outstanding."""
    start = time.perf_counter()
    pending = [submit(echo, b"0123456789") for _ in range(window)]
    for n in range(count):
        pending[n % window].result()
        pending[n % window] = submit(echo, b"0123456789")
    for future in pending:
        future.result()
    return (count + window) / (time.perf_counter() - start)


def latency(call, payload, count):
    times = []
    for _ in range(count):
        start = time.perf_counter()
        call(payload)
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)


def cpu_us(pids):
    """User and system time of processes with all their threads, microseconds."""
    total = 0
    for pid in pids:
        for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1000


def executor(name, make):
    out = {}
    with make() as pool:
        pool.submit(echo, b"").result()
        pids = [os.getpid(), *pool._processes]
        for load, window, count in ((1, 2, 3000), (2, 4, 6000), (16, 32, 15000)):
            cpu = cpu_us(pids)
            out[f"{name}_jobs_per_s_load_{load}"] = windowed(pool.submit, window, count)
            out[f"{name}_cpu_us_load_{load}"] = (cpu_us(pids) - cpu) / (count + window)
        out[f"{name}_p50_us"] = latency(lambda x: pool.submit(echo, x).result(), b"0123456789", 2000)
        out[f"{name}_1mib_p50_us"] = latency(lambda x: pool.submit(echo, x).result(), b"x" * (1 << 20), 60)
    return out


def forkserver():
    context = multiprocessing.get_context("forkserver")
    out = {}
    with context.Pool(1) as pool:
        pool.apply(echo, (b"",))
        out["forkserver_p50_us"] = latency(lambda x: pool.apply(echo, (x,)), b"0123456789", 2000)
        start = time.perf_counter()
        for _ in pool.imap(echo, [b"0123456789"] * 15000, 1):
            pass
        out["forkserver_jobs_per_s"] = 15000 / (time.perf_counter() - start)
    times = []
    for _ in range(10):
        start = time.perf_counter()
        process = context.Process(target=echo, args=(b"",))
        process.start()
        process.join()
        times.append((time.perf_counter() - start) * 1e6)
    out["forkserver_start_p50_us"] = statistics.median(times)
    return out


def fork_floor(name, megabytes):
    """What a bare fork of Python costs: until the child's first answer, and from SIGKILL until its socket closes."""
    command = [sys.executable, HERE / "fork_floor.py", str(megabytes)]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    start, death = map(float, text.split())
    return {f"{name}_start_p50_us": start, f"{name}_death_p50_us": death}


def ancestor():
    text = subprocess.run(["perl", ANCESTOR], check=True, stdout=subprocess.PIPE, text=True).stdout
    return {f"anyevent_{name}": float(value) for name, value in (line.split() for line in text.splitlines())}


def ours(kind, *what):
    binary = ROOT / "target" / "fast" / "examples" / "bench_pool"
    env = dict(os.environ, PYTHONPATH=f"{ROOT / 'python' / 'src'}:{HERE}")
    text = subprocess.run([binary, kind, *what], env=env, check=True, stdout=subprocess.PIPE, text=True).stdout
    return {f"{kind}_{name}": float(value) for name, value in (line.split() for line in text.splitlines())}


def main():
    build = ["cargo", "build", "-j1", "--profile", "fast", "-p", "cattlegrid-pool", "--example", "bench_pool"]
    subprocess.run(build, cwd=ROOT, check=True)
    contenders = [
        lambda: ours("rust", "floor", "t1", "batch", "t4", "t5", "t6", "t8", "t10", "t11"),
        lambda: ours("python", "t1", "t4", "t5", "t6", "t8", "t11"),
        lambda: fork_floor("python_fork", 0),
        lambda: fork_floor("python_fork_50mb", 50),
        lambda: executor("ppe", lambda: concurrent.futures.ProcessPoolExecutor(1)),
        forkserver,
    ]
    try:
        import loky

        contenders.append(lambda: executor("loky", lambda: loky.ProcessPoolExecutor(1)))
    except ImportError:
        print("loky is not installed; left out", file=sys.stderr)
    if shutil.which("perl") and subprocess.run(["perl", "-c", ANCESTOR], stderr=subprocess.DEVNULL).returncode == 0:
        contenders.append(ancestor)
    else:
        print("AnyEvent::Fork::Pool is not installed; left out", file=sys.stderr)
    results = {}
    for _ in range(ROUNDS):
        for contender in contenders:
            for name, value in contender().items():
                results.setdefault(name, []).append(value)
    medians = {name: statistics.median(values) for name, values in results.items()}
    for name, value in medians.items():
        print(f"{name:36} {value:14.2f}   {min(results[name]):14.2f} .. {max(results[name]):.2f}")
    print()
    floor = medians["rust_floor_cpu_us"]
    for kind in ("rust", "python"):
        each = [medians[f"{kind}_cpu_us_load_{load}"] / floor for load in (1, 2, 16)]
        print(f"{kind}: CPU a job at load 1, 2, 16, in ping-pongs: {', '.join(f'{one:.2f}' for one in each)}")
    for label, mine, other in RATIOS:
        if mine in medians and other in medians:
            print(f"{label}: {mine} / {other} = {medians[mine] / medians[other]:.2f}")


if __name__ == "__main__":
    main()
