"""The short form of `script_soak.py`; `SCRIPT_SOAK_SECONDS=600` is the long one."""

import os

import pytest

import script_soak
from crowd import show

pytestmark = pytest.mark.only_cattlegrid


def test_calls_breaches_evictions_and_reloads_at_once(binary, capsys):
    show(capsys, script_soak.soak(binary, float(os.environ.get("SCRIPT_SOAK_SECONDS", 30))))
