"""The completions of bash, zsh and fish, and the man page: loaded by the real programs.

    python packaging/tests/test_completions.py
"""

import pathlib
import shutil
import subprocess
import tempfile

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
]
"""A line, and the words that can follow in its last place."""

BASH_ONLY = [
    ("cattlegrid -o idle_timeout=5,ssl_chain", ["idle_timeout=5,ssl_chain_cert="]),
    ("cattlegrid -m ", []),
    ("cattlegrid nodes --", ["--help"]),
]


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


def fish(line):
    script = f"source {FOLDER}/cattlegrid.fish; complete -C '{line}'"
    return sorted({line.split("\t")[0] for line in run("fish", "--no-config", "-c", script).splitlines()})


def main():
    passed = 0
    for line, expected in CASES + BASH_ONLY:
        assert bash(line) == expected, (line, bash(line))
        passed += 1
    assert "complete -o filenames -F _cattlegrid cattlegrid" in run("bash", "--norc", "-c", f"source {FOLDER}/cattlegrid.bash; complete -p cattlegrid")
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
