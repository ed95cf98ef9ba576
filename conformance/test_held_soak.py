"""The short form of `held_soak.py`: thousands held at once, and clients that are killed while they wait."""

import pytest

import held_soak
from crowd import show
from harness import PROMPT

pytestmark = pytest.mark.only_cattlegrid


def test_many_held_at_once(binary, open_dir, capsys):
    for bytes_each, (p50, _, most), after in held_soak.many(binary, open_dir, connections=3000, keys=300):
        show(
            capsys,
            f"3,000 held on 300 keys: {bytes_each:.0f} bytes each, answered {p50 * 1000:.0f} ms (p50) to {most * 1000:.0f} ms "
            f"after their fill, the last {after * 1000:.0f} ms after the last fill",
        )
        assert bytes_each < 10 * 1024
        assert after < PROMPT


def test_clients_killed_in_stampedes(binary, open_dir, capsys):
    killed, answers, longest, counts = held_soak.kill(binary, open_dir, seconds=10)
    show(
        capsys,
        f"{killed} processes killed, {answers} answers to survivors, longest {longest:.2f} s; held {counts['held']}, "
        f"promoted {counts['promoted_close']}, saved {counts['computes_saved']}",
    )
    assert killed > 5 and answers > 100 and int(counts["held"]) > 100
    assert longest < 20
