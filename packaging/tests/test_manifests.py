"""The container file, compose.yaml, the manifest of Kubernetes and the bill of materials: linted, and in agreement with what the server does.

    target/package/venv/bin/python packaging/tests/test_manifests.py PROGRAM
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import compose_spec
import kubernetes_validate
import yaml
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PACKAGING = ROOT / "packaging"
MIB = 1 << 20


def check(program, text):
    """The rule file in `text` is one."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        subprocess.run([program, "check", file.name], check=True, stdout=subprocess.DEVNULL)


def container():
    linter = pathlib.Path(sys.executable).parent / "hadolint"
    done = subprocess.run([linter, PACKAGING / "container/Containerfile"], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stdout, done
    lines = (PACKAGING / "container/Containerfile").read_text().splitlines()
    assert "USER 65532:65532" in lines and any(line.startswith("HEALTHCHECK") for line in lines)


def compose():
    text = (PACKAGING / "container/compose.yaml").read_text()
    compose_spec.PyCompose.from_yaml(text).validate()
    service = yaml.safe_load(text)["services"]["cattlegrid"]
    memory = int(service["command"][service["command"].index("-m") + 1])
    assert int(service["mem_limit"].removesuffix("m")) >= memory + 300
    assert int(service["stop_grace_period"].removesuffix("s")) >= 10
    assert service["read_only"] and service["cap_drop"] == ["ALL"]


def kubernetes(program):
    documents = list(yaml.safe_load_all((PACKAGING / "kubernetes/cattlegrid.yaml").read_text()))
    for document in documents:
        kubernetes_validate.validate(document, "1.37", strict=True)
    by_kind = {document["kind"]: document for document in documents}
    rules = by_kind["ConfigMap"]["data"]["cattlegrid.toml"]
    check(program, rules)
    spec = by_kind["StatefulSet"]["spec"]["template"]["spec"]
    [one] = spec["containers"]
    sleep = one["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert 'drain = "5s"' in rules and spec["terminationGracePeriodSeconds"] >= sleep + 5 + 5
    assert 'memory_limit = "256MiB"' in rules and int(one["resources"]["limits"]["memory"].removesuffix("Mi")) >= 256 + 300
    assert one["securityContext"]["capabilities"]["drop"] == ["ALL"] and spec["securityContext"]["runAsNonRoot"]
    labels = by_kind["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    assert by_kind["Service"]["spec"]["selector"].items() <= labels.items()
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert one[probe]["exec"]["command"][:2] == ["/cattlegrid", "ping"]


def bill():
    path = ROOT / "target/package/cattlegrid.cdx.json"
    text = path.read_text()
    error = JsonStrictValidator(SchemaVersion.V1_5).validate_str(text)
    assert error is None, error
    names = {component["name"] for component in json.loads(text)["components"]}
    assert {"rustls", "hyper", "mlua", "cattlegrid-engine"} <= names and "proptest" not in names, sorted(names)


def main(program):
    container()
    compose()
    kubernetes(program)
    check(program, (PACKAGING / "debian/cattlegrid.toml").read_text())
    bill()
    print("5 passed, 0 failed")


main(sys.argv[1])
