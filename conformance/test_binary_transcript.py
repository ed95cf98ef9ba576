"""The recorded answers of memcached 1.6.45 to packets of the binary protocol, replayed against the server."""

import pathlib
import re
import time
import tomllib

import binary_transcript
import packets
import pytest
import transcript

DATA = pathlib.Path(__file__).parent / "data"
RECORDING = DATA / "memcached-1.6.45-binary.jsonl.zst"

pytestmark = pytest.mark.only_1_6_45


def first_packet(case):
    """What a listed reply can name of it."""
    data = binary_transcript.Names().sent("".join(case["send"]))
    _, opcode, key_len, extras_len, _, _, _, opaque, _ = packets.HEADER.unpack_from(data)
    key_at = packets.HEADER.size + extras_len
    key = binary_transcript.to_hex(data[key_at : key_at + key_len])
    return {"opcode": f"{opcode:02x}", "opaque": opaque.hex(), "key": key}


def statistics(reply, leaves_out, adds):
    """A recorded list of statistics with other names."""
    recorded = {}
    for packet in reply.split(" "):
        name = re.sub("^.{16}(<len>|.{8}).{24}", "", packet).removesuffix("<v>")
        recorded[bytes.fromhex(name).decode()] = packet
    assert not set(leaves_out) - set(recorded), f"statistics that were never recorded: {leaves_out}"
    out = []
    for name, packet in recorded.items():
        if name not in leaves_out:
            out.append(packet)
        for added in (a for a, before in adds.items() if before == name):
            head = packet[:4] + f"{len(added):04x}" + packet[8 : packet.index("<len>") + len("<len>") + 24]
            out.append(head + added.encode().hex() + "<v>")
    return " ".join(out)


def listed(recording):
    """{case number: what is answered instead} of binary_differences.toml, of these cases."""
    with open(DATA / "binary_differences.toml", "rb") as f:
        entries = tomllib.load(f)["difference"]
    recorded = {c["case"]: c for c in transcript.load(RECORDING)}
    out = {}
    for entry in entries:
        assert entry["reason"].strip(), f"no reason given: {entry}"
        for number in entry["cases"]:
            assert number not in out, f"listed twice: {number}"
            assert number in recorded, f"binary_differences.toml names a case that was never recorded: {number}"
            case = recorded[number]
            got = case | {field: entry[field] for field in ("reply", "end", "seen") if field in entry}
            if "leaves_out" in entry or "adds" in entry:
                got["reply"] = statistics(case["reply"], entry.get("leaves_out", []), entry.get("adds", {}))
            for name, value in first_packet(case).items():
                got["reply"] = got["reply"].replace("{" + name + "}", value)
            assert not binary_transcript.is_near(case, got), f"listed, but as recorded: {number}"
            out[number] = got
    asked = {c["case"] for c in recording}
    return {number: case for number, case in out.items() if number in asked}


@pytest.fixture
def ports(start, open_dir):
    """Starts a server for each set of options that these cases need: {options: port}."""
    users = pathlib.Path(open_dir) / "users"
    users.write_text("user:pass\n")
    servers = []

    def run(recording):
        out = {}
        for options in dict.fromkeys(case["server"] for case in recording):
            own = [users if word == "users" else word for word in options.split()]
            servers.append(start(*binary_transcript.OPTIONS, *own))
            out[options] = servers[-1].port
        return out

    yield run
    for server in servers:
        assert server.running(), server.log()


def check(ports, recording, known, capsys):
    """Plays the cases; each must be answered as recorded, or as `known` says."""
    began = time.monotonic()
    unlisted, missing = [], set(known)
    for want, got in binary_transcript.differences(ports, recording, known):
        number = want["case"]
        missing.discard(number)
        if number not in known or not binary_transcript.is_near(known[number], got):
            unlisted.append(binary_transcript.describe(known.get(number, want), got))
    seconds = time.monotonic() - began
    with capsys.disabled():
        print(
            f"\n  binary transcript: {len(recording)} cases in {seconds:.1f} s, {len(known)} differences listed,"
            f" {len(missing)} of them not seen, {len(unlisted)} others"
        )
    assert not unlisted, f"{len(unlisted)} unlisted differences:\n" + "\n".join(unlisted[:40])
    assert not missing, f"listed differences that are gone; take them off the list: {sorted(missing)[:40]}"


def test_every_recorded_case(ports, capsys):
    recording = transcript.load(RECORDING)
    assert len(recording) == 2410
    check(ports(recording), recording, listed(recording), capsys)


def test_every_recorded_case_under_a_rule_without_leases(start, tmp_path, capsys):
    """Tags alone change no reply, but nothing is kept of a value that comes too late or has expired."""
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nmatch = "{key*}"\ntags = ["all", "{key}"]\nfill_window = "10ms"\n')
    recording = [c for c in transcript.load(RECORDING) if not c["server"] and not may_come_too_late(c)]
    assert len(recording) > 1900
    known = listed(recording)
    for case in recording:
        if re.fullmatch(r"(set|add|replace) exptime (2592001|1593835520|<now-10>)", case["state"]):
            # It has expired on arrival: it is not kept and has no CAS.
            known[case["case"]] = case | {"reply": re.sub(r"<c\d>", "0" * 16, case["reply"], count=1)}
    server = start(*binary_transcript.OPTIONS, "--config", rules)
    check({"": server.port}, recording, known, capsys)
    assert server.running(), server.log()


def test_every_recorded_case_under_a_rule_that_observes(start, tmp_path, capsys):
    """It changes nothing."""
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nmatch = "{key*}"\nmode = "observe"\ngrace = "30s"\ntags = ["all"]\ntags_in_value = "required"\n')
    recording = [c for c in transcript.load(RECORDING) if not c["server"]]
    server = start(*binary_transcript.OPTIONS, "--config", rules)
    check({"": server.port}, recording, listed(recording), capsys)
    assert int(server.stats("rules")["1:gets"]) > 100


def may_come_too_late(case):
    """Whether values are stored behind a delete of their key, which are dropped if the key was missed shortly before."""
    return case["state"].startswith("pipeline") and {0x04, 0x14} & set(opcodes(case["send"]))


def opcodes(pieces):
    data = binary_transcript.Names().sent("".join(pieces))
    while data:
        fields = packets.HEADER.unpack_from(data)
        yield fields[1]
        data = data[packets.HEADER.size + fields[6] :]


def test_the_replay_notices_a_difference(ports):
    """A recording with altered answers differs in exactly these cases."""
    cases = [c for c in transcript.load(RECORDING) if 1000 <= c["case"] < 1640]
    recording = list(binary_transcript.run(ports(cases), cases, listed(cases)))
    altered = []
    for field, end, other in (
        ("reply", "open", "00"),
        ("reply", "closed", "00"),
        ("reply", "silent", "00"),
        ("end", "open", "silent"),
        ("end", "closed", "open"),
        ("seen", "open", "EN\r\n"),
    ):
        case = next(c for c in recording if c["end"] == end and c["case"] not in altered and c.get(field) not in (None, other))
        altered.append(case["case"])
        case[field] = other
    assert sorted(altered) == [w["case"] for w, _ in binary_transcript.differences(ports(cases), recording, late=5)]
