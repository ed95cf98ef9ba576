"""What `contrib/` has for monitoring systems: it is well-formed, its alerts fire, and the series that it names are served."""

import json
import os
import re
import subprocess

import pytest

from admin import Admin
from harness import ROOT, free_port, tool, wait_until

pytestmark = pytest.mark.only_cattlegrid
CONTRIB = ROOT / "contrib"
SERIES = re.compile(r"\bcattlegrid_\w+")

LOADER = """
from cattlegrid import loader

@loader.load
def load(job): return "x"

loader.serve()
"""


@pytest.fixture
def served(start, open_dir):
    """A server with something of everything, and its pages."""
    program, config = os.path.join(open_dir, "pages.py"), os.path.join(open_dir, "rules.toml")
    with open(program, "w") as f:
        f.write(LOADER)
    with open(config, "w") as f:
        f.write(
            '[[rule]]\nmatch = "page:{id}"\nhold = "1s"\n[[rule]]\nmatch = "load:{id}"\nloader = "pages"\n'
            f'[loader.pages]\ncommand = ["python3", "{program}"]\nenv = ["PATH", "PYTHONPATH"]\n[objects]\n'
        )
    admin = Admin()
    server = start("--config", config, "-m", "32", *admin.options(), env={"PYTHONPATH": str(ROOT / "python" / "src")})
    with server.raw() as raw:
        for n in range(200):
            raw.set(b"key:%d" % n, b"x")
            raw.get(b"key:%d" % n)
        raw.get(b"page:1")
        raw.set(b"page:1", b"x")
        assert raw.get(b"load:1") == b"x"
        raw.get(b"counter:add:hits:5")
    return server, admin


def documented():
    """Series that `docs/statistics.md` has, for what no short test brings about: those of logs."""
    return {"cattlegrid_follow_behind", "cattlegrid_follow_lag_seconds"}


def known(admin):
    names = {re.match(r"\w+", name)[0] for name in admin.series()}
    return names | documented()


def expressions(dashboard):
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


def test_alert_rules():
    for words in (("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml"), ("check", "config", "prometheus.yml")):
        done = subprocess.run([tool("promtool"), *words], cwd=CONTRIB / "prometheus", capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
    text = (CONTRIB / "prometheus" / "alerts.yml").read_text()
    alerts = re.findall(r"^      - alert: (\w+)$", text, re.M)
    assert len(alerts) == 12 == len(set(alerts))
    assert text.count("description:") == 12


def test_series_that_are_named_are_served(served):
    _, admin = served
    names = known(admin)
    for name in set(SERIES.findall((CONTRIB / "prometheus" / "alerts.yml").read_text())):
        assert name in names, f"alerts.yml: {name}"
    dashboard = json.loads((CONTRIB / "grafana" / "cattlegrid.json").read_text())
    for title, expression in expressions(dashboard):
        for name in SERIES.findall(expression):
            assert name in names, f"{title}: {name}"
    pages = None
    for line in (CONTRIB / "collectd" / "cattlegrid.conf").read_text().splitlines():
        if found := re.search(r'<URL "http://127.0.0.1:11280(/\w+)">', line):
            pages = admin.json(found[1])
        elif found := re.search(r'<Key "([\w/]+)">', line):
            value = pages
            for part in found[1].split("/"):
                value = value[part]
            assert isinstance(value, (int, float)), line


def test_a_real_prometheus_understands_all_expressions(served, open_dir):
    _, admin = served
    port, config = free_port(), os.path.join(open_dir, "prometheus.yml")
    with open(config, "w") as f:
        f.write(
            "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
            f"rule_files: ['{CONTRIB}/prometheus/alerts.yml']\n"
            f"scrape_configs: [{{job_name: cattlegrid, static_configs: [{{targets: ['127.0.0.1:{admin.port}']}}]}}]\n"
        )
    command = [tool("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={open_dir}/data", f"--web.listen-address=127.0.0.1:{port}"]
    with open(os.path.join(open_dir, "log"), "w") as log:
        prometheus = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        there = Admin(port=port)

        def query(text):
            from urllib.parse import quote

            return there.json("/api/v1/query?query=" + quote(text))["data"]["result"]

        def has_scraped():
            try:
                return len(query("count_over_time(up[1m]) > 3"))
            except (OSError, AssertionError):
                return None

        wait_until("it has scraped", has_scraped, 60)
        dashboard = json.loads((CONTRIB / "grafana" / "cattlegrid.json").read_text())
        empty = []
        for title, expression in expressions(dashboard):
            text = expression.replace("$__rate_interval", "1m").replace("$instance", ".*")
            if not query(text):
                empty.append(title)
        assert empty == ["Lag of logs"], empty
        alerts = there.json("/api/v1/alerts")["data"]["alerts"]
        assert {alert["labels"]["alertname"] for alert in alerts} <= {"CattlegridRestarted"}, alerts
    finally:
        prometheus.terminate()
        prometheus.wait(30)
