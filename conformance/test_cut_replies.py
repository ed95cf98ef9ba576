"""Connections that are cut in mid-reply and in mid-value leave nothing behind. `cut_replies.py` alone cuts a million."""

import os

import pytest

import cut_replies
from harness import MIB

pytestmark = pytest.mark.only_cattlegrid


@pytest.mark.parametrize("tls_share, connections", [(0.0, 5000), (1.0, 1000)])
def test_nothing_is_left(binary, open_dir, tls_share, connections, capsys):
    server, ports = cut_replies.start(binary, open_dir)
    try:
        cut_replies.cut(server, ports, 300, 1, tls_share, 1)
        before = cut_replies.settled(server)
        seconds, most = cut_replies.cut(server, ports, connections, os.cpu_count() or 1, tls_share, 2)
        after = cut_replies.settled(server)
        with capsys.disabled():
            print(f"\n  {connections} cut, {connections / seconds:.0f}/s, at most {most / MIB:.1f} MiB pinned")
        assert not cut_replies.left(before, after)
        assert server.running(), server.log()
    finally:
        server.clean()
