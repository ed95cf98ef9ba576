"""The recorded answers of memcached 1.6.45, replayed against the server."""

import pathlib
import time
import tomllib

import pytest
import transcript

DATA = pathlib.Path(__file__).parent / "data"


def listed(recording):
    """{case number: (reply, reason)} of differences.toml."""
    with open(DATA / "differences.toml", "rb") as f:
        entries = tomllib.load(f).get("difference", [])
    out = {}
    for entry in entries:
        assert entry["reason"].strip(), f"no reason given: {entry}"
        for state in entry["states"]:
            cases = [c["case"] for c in recording if c["state"] == state and c["send"] == entry["send"]]
            assert cases, f"differences.toml names a case that was never recorded: {state} {entry['send']!r}"
            for case in cases:
                assert case not in out, f"listed twice: {state} {entry['send']!r}"
                out[case] = entry["reply"], entry["reason"]
    return out


def test_every_recorded_case(start, is_1_6_18, capsys):
    recording = transcript.load(DATA / "memcached-1.6.45.jsonl.zst")
    assert len(recording) == 17330
    if is_1_6_18:
        known = {c["case"]: (c["reply"], "1.6.18") for c in transcript.load(DATA / "memcached-1.6.18.differences.jsonl.zst")}
    else:
        known = listed(recording)
    server = start()
    began = time.monotonic()
    seen, unlisted = set(), []
    for want, got in transcript.differences(server.port, recording):
        case = want["case"]
        if case in known and transcript.near(known[case][0], got["reply"]):
            seen.add(case)
        else:
            unlisted.append((want, got))
    seconds = time.monotonic() - began
    missing = sorted(set(known) - seen - {w["case"] for w, _ in unlisted})
    with capsys.disabled():
        print(
            f"\n  transcript: {len(recording)} cases in {seconds:.1f} s, {len(recording) - len(seen) - len(unlisted)} equal,"
            f" {len(seen)} listed differences seen, {len(unlisted)} unlisted, {len(missing)} listed but not seen"
        )
    lines = [f"{w['state']}: {w['send']!r}\n    want {w['reply']!r}\n    got  {g['reply']!r}" for w, g in unlisted[:40]]
    assert not unlisted, f"{len(unlisted)} unlisted differences:\n" + "\n".join(lines)
    assert not missing, f"listed differences that are gone; take them off differences.toml: {missing[:40]}"
    assert server.running(), server.log()


def test_every_recorded_case_under_a_rule_without_leases(start, kind, tmp_path):
    """Tags alone change no reply except to flags of ours. A miss is forgotten at once: otherwise a value could come too late for it."""
    if kind != "cattlegrid":
        pytest.skip("rules are ours")
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nmatch = "{key*}"\ntags = ["all", "{key}"]\nfill_window = "10ms"\n')
    recording = transcript.load(DATA / "memcached-1.6.45.jsonl.zst")
    known = listed(recording)
    ours = {"ms K 1 n\r\nx\r\n", "ms K 1 G\r\nx\r\n", "mg K G\r\n", "md K G\r\n", "ma K G\r\n"}
    server = start("--config", rules)
    unlisted = [
        (want, got)
        for want, got in transcript.differences(server.port, recording)
        if want["send"] not in ours
        and not (want["case"] in known and transcript.near(known[want["case"]][0], got["reply"]))
    ]
    lines = [f"{w['state']}: {w['setup']!r} {w['send']!r}\n    want {w['reply']!r}\n    got  {g['reply']!r}" for w, g in unlisted[:40]]
    assert not unlisted, f"{len(unlisted)} differences:\n" + "\n".join(lines)


def test_the_replay_notices_a_difference(start):
    """A recording with one altered reply differs in exactly that case."""
    server = start()
    expected = transcript.load(DATA / "memcached-1.6.45.jsonl.zst")
    recording = [dict(c) for c in transcript.run(server.port, expected)]
    recording[100]["reply"] += "x"
    assert [w["case"] for w, _ in transcript.differences(start().port, recording)] == [100]
