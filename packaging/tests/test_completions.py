"""The completions of bash, zsh and fish, and the man page: loaded by the real programs.

    python packaging/tests/test_completions.py
"""

import os
import pathlib
import pty
import select
import shutil
import signal
import subprocess
import tempfile
import time

PACKAGING = pathlib.Path(__file__).resolve().parent.parent
FOLDER = PACKAGING / "completions"

CASES = [
    ("cattlegrid ch", ["check"]),
    ("cattlegrid check --k", ["--key"]),
    ("cattlegrid --por", ["--port"]),
    ("cattlegrid serve --memory-l", ["--memory-limit"]),
    ("cattlegrid --log-format j", ["json"]),
    ("cattlegrid -B b", ["binary"]),
    ("cattlegrid follow f.toml --distribution ketama_", ["ketama_weighted"]),
    ("cattlegrid objects li", ["lint", "list"]),
    ("cattlegrid help ad", ["advise"]),
    ("cattlegrid bench x --connec", ["--connections"]),
    ("cattlegrid doctor --options-f", ["--options-file"]),
    ("cattlegrid doctor --pi", ["--pid", "--pidfile"]),
]
"""A line, and the words that can follow in its last place."""

BASH_ONLY = [
    ("cattlegrid -o idle_timeout=5,ssl_chain", ["idle_timeout=5,ssl_chain_cert="]),
    ("cattlegrid -m ", []),
    ("cattlegrid nodes --", ["--help"]),
]

TYPED = [
    ("--config ru", "--config rules.toml "),
    ("--config=ru", "--config=rules.toml "),
    ("-m 64 --log-format=j", "-m 64 --log-format=json "),
    ("-o ssl_chain", "-o ssl_chain_cert="),
    ("-o idle_timeout=5,ssl_chain", "-o idle_timeout=5,ssl_chain_cert="),
    ("-o ssl_key=ru", "-o ssl_key=rules.toml "),
    ("--config with", "--config with\\ blank.toml "),
    ("check \"with", "check \"with blank.toml\" "),
    ("--objects=di", "--objects=dir/"),
    ("doctor ru", "doctor rules.toml "),
    ("doctor --options-file=ru", "doctor --options-file=rules.toml "),
]
"""What stands behind `cattlegrid` in an interactive bash, and what TAB makes of it."""


def run(*command, text=None):
    # Without files beside it that could be meant.
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, cwd=folder)
    assert done.returncode == 0 and not done.stderr, (command, done)
    return done.stdout


def bash(line):
    """What bash offers: the function is called as bash calls it."""
    words = line.split(" ")
    listed = " ".join(f"'{word}'" for word in words)
    script = f"""
        source {FOLDER}/cattlegrid.bash
        COMP_WORDS=({listed}) COMP_CWORD={len(words) - 1}
        _cattlegrid 2>/dev/null
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    return sorted({word for word in run("bash", "--norc", "-c", script).split("\n") if word})


def typed(line):
    """What an interactive bash shows of a line and TAB."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("rules.toml", "with blank.toml"):
            (pathlib.Path(folder) / name).touch()
        (pathlib.Path(folder) / "dir").mkdir()
        child, terminal = pty.fork()
        if child == 0:
            os.chdir(folder)
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], os.environ | {"TERM": "dumb", "PS1": "> "})
        try:
            os.write(terminal, f"bind 'set bell-style none'; source '{FOLDER}/cattlegrid.bash'; PS1='rea''dy> '\n".encode())
            shown(terminal, lambda text: text.endswith("ready> "))
            os.write(terminal, f"cattlegrid {line}\t#".encode())
            # What is typed next is shown when the completion has ended.
            return shown(terminal, lambda text: text.endswith("#"))[:-1].removeprefix("cattlegrid ")
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(terminal)


def shown(terminal, is_all):
    text, until = "", time.monotonic() + 20
    while not is_all(text):
        ready, _, _ = select.select([terminal], [], [], max(0, until - time.monotonic()))
        assert ready, text
        text += os.read(terminal, 65536).decode()
    return text


def fish(line):
    script = f"source {FOLDER}/cattlegrid.fish; complete -C '{line}'"
    return sorted({line.split("\t")[0] for line in run("fish", "--no-config", "-c", script).splitlines()})


def main():
    passed = 0
    for line, expected in CASES + BASH_ONLY:
        assert bash(line) == expected, (line, bash(line))
        passed += 1
    for line, expected in TYPED:
        assert typed(line) == expected, (line, typed(line))
        passed += 1
    assert "complete -F _cattlegrid cattlegrid" in run("bash", "--norc", "-c", f"source {FOLDER}/cattlegrid.bash; complete -p cattlegrid")
    if shutil.which("fish"):
        for line, expected in CASES:
            assert fish(line) == expected, (line, fish(line))
            passed += 1
    if shutil.which("zsh"):
        run("zsh", "-f", "-c", f"autoload -Uz compinit && compinit -D -u && source {FOLDER}/_cattlegrid 2>/dev/null; (( $+functions[_cattlegrid_check] ))")
        passed += 1
    page = PACKAGING / "man/cattlegrid.1"
    run("man", "--warnings", "-l", str(page))
    if shutil.which("mandoc"):
        found = subprocess.run(["mandoc", "-Tlint", str(page)], capture_output=True, text=True).stdout
        wrong = [line for line in found.splitlines() if "STYLE" not in line and "missing date" not in line]
        assert not wrong, wrong
        passed += 1
    print(f"{passed + 2} passed, 0 failed")


main()
