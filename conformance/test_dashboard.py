"""The dashboard of the admin address, in Chromium: what it shows, that it can be used by all, and what it costs."""

import contextlib
import gzip
import http.client
import json
import os
import pathlib
import signal
import threading
import time
import urllib.parse
import zlib

import pytest

from admin import Admin, without_checks
from browser import Browser
from crowd import write_rules
from harness import PROMPT, wait_until
from loaders import of_loader, of_rule
from test_operations import make_certificate

pytestmark = pytest.mark.only_cattlegrid

AXE = pathlib.Path(__file__).parent / "node" / "node_modules" / "axe-core" / "axe.min.js"
SHOTS = os.environ.get("CATTLEGRID_SHOTS")
"""A directory for the screenshots; without it they are only taken."""

MARKUP = "<img src=x onerror=document.title='broken'>"
RULES = f"""
[[rule]]
match = "page:{{id}}"
hold = "400ms"
tags = ["page:{{id}}"]
[[rule]]
match = "news:{{id}}"
hold = "2s"
grace = "30s"
[[rule]]
match = "<b>bold</b>:{MARKUP.replace(" ", "%")}:{{id}}"
hold = "1s"
[[rule]]
match = "slow:{{id}}"
hold = "100ms"
lease = "10s"
[[share]]
prefix = "shop:"
at_most = "50%"
[objects]
types = ["counter", "quota"]
"""
SCRIPT = """echo '{"ready":true}'; while read -r line; do case $line in *'"type":"job"'*) echo '{"value":"x"}';; *retire*) exit 0;;
*ping*) echo '{"pong":true}';; esac; done"""
RULES += of_rule("cold:{id}", "shell", terms="") + of_loader("shell", command=["/bin/sh", "-c", SCRIPT], mode="jsonl", dir="/")


@pytest.fixture(scope="module")
def browser():
    with contextlib.closing(Browser("--ignore-certificate-errors")) as one:
        yield one


@pytest.fixture
def page(browser):
    pages = []

    def open_page(url, **options):
        pages.append(browser.page(url, **options))
        return pages[-1]

    yield open_page
    for one in pages:
        one.close()


@pytest.fixture
def served(start, open_dir):
    """A server that has been used, and its pages."""
    admin = Admin()
    path = write_rules(open_dir, RULES)
    options = ("--config", path, "-m", "64", "-t", "2", "--slow-log", "20ms", *admin.options())
    server = start(*options)
    use(server)
    return server, admin


def use(server):
    with server.raw() as raw, server.raw() as other:
        for n in range(2000):
            raw.set(b"key:%d" % (n % 40), b"x" * 500)
            raw.get(b"key:%d" % (n % 40))
        raw.get(b"absent")
        assert raw.get(b"cold:1") == b"x"
        raw.set(b"huge", b"x" * 900_000)
        for n in range(12):
            # More slowly than the hold of the rule.
            assert raw.get(b"slow:%d" % n) is None
            other.send(b"get slow:%d\r\n" % n)
            assert other.line() == b"END"
            time.sleep(0.06)
            raw.set(b"slow:%d" % n, b"v")
        raw.get(b"page:1")
        other.send(b"get page:1\r\n")
        wait_until("it waits", lambda: raw.stats("cattlegrid")["held"] == "1")
        raw.set(b"page:1", b"value")
        other.until(b"END\r\n")
        raw.set(b"news:1", b"old", exptime=1)
        raw.send(b"delete @tag:page:1\r\n")
        raw.line()
        for n in range(3):
            raw.get(b"counter:add:hits:5")
        raw.send(b"get " + MARKUP.replace(" ", "/").encode() + b"\r\n" * 1)
        raw.line()
        key = MARKUP.replace(" ", "/").encode()
        for _ in range(2000):
            raw.get(key)
        bold = f"<b>bold</b>:{MARKUP.replace(' ', '%')}:1".encode()
        raw.get(bold)
        raw.set(bold, b"x")
        raw.get(bold)
        time.sleep(1.1)
        assert raw.get(b"news:1") is None
        other.send(b"get news:1\r\n")
        other.until(b"END\r\n")


def url(admin, scheme="http"):
    return f"{scheme}://127.0.0.1:{admin.port}/"


def live(page):
    page.until("document.querySelector('#link').dataset.state === 'live' && !document.querySelector('#figures').hidden")


FIGURES = "[...document.querySelectorAll('[data-stat]')].map(one => [one.dataset.stat, one.dataset.value, one.textContent])"


def events(admin, count, headers=None):
    """Some events of the stream: kind and data; with the bytes that came."""
    connection = http.client.HTTPConnection("127.0.0.1", admin.port, timeout=PROMPT)
    with contextlib.closing(connection):
        connection.request("GET", "/events", headers=headers or {})
        reply = connection.getresponse()
        assert reply.status == 200 and reply.getheader("Content-Type") == "text/event-stream"
        unpack = zlib.decompressobj(31) if reply.getheader("Content-Encoding") == "gzip" else None
        text, raw = "", 0
        while text.count("\n\n") < count:
            piece = reply.read1(1 << 16)
            assert piece, "the stream has ended"
            raw += len(piece)
            text += (unpack.decompress(piece) if unpack else piece).decode()
        lines = [one.split("\n") for one in text.split("\n\n")[:count]]
        return [(kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for kind, data in lines], raw


# --- the figures ---


def test_every_figure_is_that_of_stats(served, page):
    """All that the page shows under a name of `stats`, at rest, in the digits of `stats`."""
    server, admin = served
    one = page(url(admin))
    live(one)
    one.eval("document.querySelectorAll('details').forEach(one => { one.open = true })")
    one.until("document.querySelectorAll('#all-body dd').length > 30")
    # Figures that grow by looking at them, or with time.
    moving = {"uptime", "time", "rusage_user", "rusage_system", "clock", "bytes_read", "bytes_written", "total_connections", "reserved_fds"}
    moving |= {"curr_connections", "read_buf_bytes", "log_lines_written", "reload_time", "peers", "cmd_meta", "lock_waits", "misses_outstanding"}
    lines, same = {}, None
    for _ in range(10):
        for group in ("", "cattlegrid", "rules", "tags", "objects", "shares", "loaders"):
            lines |= {(f"stats {group}".strip(), name): value for name, value in server.stats(group).items()}
        same = set()
        wrong = []
        for name, value, shown in one.eval(FIGURES):
            expected = 0
            for part in name.split("+"):
                group, line = part.rsplit(" ", 1)
                if group.count(" ") == 2:  # a label stands before the line
                    group, label = group.rsplit(" ", 1)
                    line = label + line
                got = lines[(group, line)]
                expected = got if len(name.split("+")) == 1 else expected + int(got)
            if line in moving:
                continue
            as_number = lambda text: float(text) if text.replace(".", "", 1).isdigit() else text
            if as_number(str(expected)) != as_number(value):
                wrong.append((name, expected, value, shown))
            elif str(expected).isdigit() and not any(unit in shown for unit in ("B", "ms", " s", "%", "µs", "bytes")):
                assert shown.replace(",", "") == str(expected), (name, expected, shown)
            same.add(name)
        if not wrong:
            break
        time.sleep(1)
    assert not wrong, wrong
    assert len(same) > 150, len(same)
    text = one.text("main")
    assert {name.split()[-2] for name in same if name.startswith("stats loaders")} == {"shell:"} and one.text("#loaders")
    for word in ("computations saved", "held now", "promotions", "stale served", "bumps", "false stale", "evictions", "Hot keys", "Slowest"):
        assert word.lower() in text.lower(), word
    assert not one.complaints()


def test_advice_is_a_sentence_and_a_line_of_toml(served, page):
    server, admin = served
    (said,) = [one for one in admin.json("/advice")["advice"] if one["rule"] == "4"]
    assert said["about"] == "hold" and said["match"] == "slow:{id}"
    assert said["what"].startswith(("hold = 100 ms is shorter than p99 = ", "100 % of the gets that should wait got no value within hold = 100 ms"))
    assert said["toml"].startswith(("hold = \"", "grace = \""))
    line = f"{said['what']}: {said['toml']}"
    assert server.stats("rules")["4:advice"] == line
    assert next(rule for rule in admin.json("/rules")["rules"] if rule["rule"] == "4")["advice"] == line
    one = page(url(admin))
    live(one)
    assert said["what"] in one.text("#advice") and said["what"] in one.text("[data-rule='4']") and said["toml"] in one.text("#advice code")
    one.click("#advice .say button")
    one.until("['Copied', 'Selected'].includes(document.querySelector('#advice .say button').textContent)")


def test_names_of_keys_are_never_markup(served, page):
    server, admin = served
    one = page(url(admin))
    live(one)
    one.until("document.querySelector('#keys-body').textContent.includes('onerror')")
    assert one.eval("document.title") == "Cattlegrid" and one.eval("document.querySelectorAll('main img, main b').length") == 0
    assert "<b>bold</b>" in one.text("#rules") and "onerror" in one.text("#keys-body")
    # And a script that tries is stopped by the page's policy.
    with pytest.raises(AssertionError, match="TrustedHTML"):
        one.eval("document.querySelector('#main').innerHTML = '<p>x</p>'")


def test_values_are_never_shown(start, open_dir):
    admin = Admin()
    server = start("--config", write_rules(open_dir, RULES), *admin.options())
    with server.raw() as raw:
        for n in range(3000):
            raw.set(b"page:%d" % (n % 9), b"a-secret-value")
            raw.get(b"page:%d" % (n % 9))
    (_, snapshot), = events(admin, 1)[0]
    assert "a-secret-value" not in json.dumps(snapshot) and snapshot["hot"]["by_requests"]


# --- the stream ---


def test_events_are_a_snapshot_and_what_has_changed(served):
    server, admin = served
    (first, second, third), _ = events(admin, 3)
    assert first[0] == "full" and second[0] == third[0] == "patch"
    assert first[1]["stats"]["get_hits"] == int(server.stats()["get_hits"])
    assert first[1]["rules"]["1"]["match"] == "page:{id}" and len(first[1]) > 12
    assert "time_ms" in second[1] and "get_hits" not in second[1].get("stats", {}) and len(json.dumps(second[1])) < 1500
    packed, _ = events(admin, 2, {"Accept-Encoding": "gzip"})
    assert packed[0][1]["stats"]["get_hits"] == first[1]["stats"]["get_hits"]


def test_page_and_stream_are_small(served):
    """Below 60 KiB compressed: the page, and its stream of ten seconds under load."""
    server, admin = served
    bytes_of_page = 0
    for path in ("/", "/dashboard.css", "/dashboard.js", "/dashboard.svg"):
        connection = http.client.HTTPConnection("127.0.0.1", admin.port, timeout=PROMPT)
        with contextlib.closing(connection):
            connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
            reply = connection.getresponse()
            body = reply.read()
        assert reply.status == 200 and reply.getheader("Content-Encoding") == "gzip"
        assert gzip.decompress(body).decode() == admin.text(path)
        bytes_of_page += len(body)
    stop = threading.Event()

    def load():
        with server.raw() as raw:
            while not stop.is_set():
                use_a_bit(raw)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        _, of_stream = events(admin, 10, {"Accept-Encoding": "gzip"})
    finally:
        stop.set()
        thread.join()
    print(f"page {bytes_of_page} bytes, ten events {of_stream} bytes")
    assert bytes_of_page + of_stream < 60 << 10, (bytes_of_page, of_stream)


def use_a_bit(raw):
    for n in range(50):
        raw.get(b"page:%d" % n)
        raw.set(b"page:%d" % n, b"v" * n)


def test_streams_leave_room_for_probes(served):
    """All places of streams are taken, and none of those of probes; who does not read goes."""
    server, admin = served
    streams = []
    try:
        for _ in range(64):
            connection = http.client.HTTPConnection("127.0.0.1", admin.port, timeout=PROMPT)
            connection.request("GET", "/events")
            streams.append((connection, connection.getresponse()))
            assert streams[-1][1].status == 200
        status, _, text = admin.ask("/events")
        assert status == 503 and "as many dashboards" in text
        for _ in range(40):
            assert admin.ask("/healthz")[0] == 200
        assert "cattlegrid_" in admin.text("/metrics") and admin.ask("/readyz")[0] == 200
        for _, reply in streams:
            assert reply.readline() == b"event: full\n"
    finally:
        for connection, reply in streams:
            reply.close()
            connection.close()
    wait_until("places are free again", lambda: events_open(admin))


def events_open(admin):
    try:
        return events(admin, 1)
    except AssertionError:
        return None


def test_no_work_without_a_reader(served):
    server, admin = served
    events(admin, 2)
    time.sleep(2.5)
    ticks = lambda: sum(
        int(field)
        for task in os.listdir(f"/proc/{server.pid}/task")
        if open(f"/proc/{server.pid}/task/{task}/comm").read().strip() == "admin"
        for field in open(f"/proc/{server.pid}/task/{task}/schedstat").read().split()[:1]
    )
    before = ticks()
    time.sleep(3)
    assert ticks() - before < 3_000_000, "nanoseconds of the thread in three seconds"


def test_a_drain_ends_the_stream(served):
    server, admin = served
    with server.raw() as raw, server.raw() as other:
        raw.get(b"news:77")
        other.send(b"get news:77\r\n")  # it waits, so that the drain takes a moment
        connection = http.client.HTTPConnection("127.0.0.1", admin.port, timeout=PROMPT)
        with contextlib.closing(connection):
            connection.request("GET", "/events")
            reply = connection.getresponse()
            reply.readline()
            server.signal(signal.SIGTERM)
            text = reply.read().decode()
    assert text.endswith("event: end\ndata: draining\n\n"), text[-200:]


def test_pages_that_go_with_it(served):
    _, admin = served
    assert admin.json("/nodes") == []
    listed = admin.text("/pages")
    html = admin.text("/", headers={"Accept": "text/html"})
    for line in listed.splitlines():
        assert f'href="{line.split()[0]}"' in html, line
    _, headers, _ = admin.ask("/")
    headers = {name.lower(): value for name, value in headers.items()}
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy and "http" not in policy and "*" not in policy
    assert admin.ask("/", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"})[0] == 200, "a link from a chat"
    assert admin.ask("/events", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"})[0] == 403
    assert admin.ask("/", headers={"Sec-Fetch-Site": "cross-site"})[0] == 403
    assert admin.ask("/", headers={"Host": "evil.example"})[0] == 421
    assert admin.ask("/events", method="HEAD")[0] == 200


# --- in use ---


def test_by_keyboard(served, page):
    _, admin = served
    one = page(url(admin))
    live(one)
    one.key("Tab")
    assert one.eval("document.activeElement.className") == "skip"
    assert one.eval("document.activeElement.getBoundingClientRect().left") >= 0, "it is seen"
    one.key("Enter")
    one.until("document.activeElement.id === 'main'")
    one.eval("document.activeElement.blur(), document.querySelector('.skip').focus()")
    seen = []
    for _ in range(60):
        one.key("Tab")
        seen.append(one.eval("(a => a.id || a.hash || a.tagName)(document.activeElement)"))
        style = one.eval("(s => s.outlineStyle + s.outlineWidth)(getComputedStyle(document.activeElement))")
        assert seen[-1] == "BODY" or style == "solid3px", (seen[-1], style)
    assert seen[0] == "pause" and "#rules" in seen and "SUMMARY" in seen and seen.index("#now") < seen.index("#rules") < seen.index("SUMMARY")
    one.eval("document.querySelector('#pause').focus()")
    one.key(" ")
    assert one.eval("document.querySelector('#pause').getAttribute('aria-pressed')") == "true" and "paused at" in one.text("#link")
    before = one.eval("document.querySelector('#figures').dataset.time")
    time.sleep(1.5)
    assert one.eval("document.querySelector('#figures').dataset.time") == before
    one.key("Enter")
    live(one)
    one.eval("document.querySelector('#rule-cards summary').focus()")
    one.key("Enter")
    one.until("document.querySelector('#rule-cards details').open && document.querySelectorAll('#rule-cards details dd').length > 5")
    # An open part stays open, and keeps the focus, while figures change.
    time.sleep(2.2)
    assert one.eval("document.querySelector('#rule-cards details').open && document.activeElement.tagName") == "SUMMARY"


def test_counters_that_begin_anew(served, page):
    """After `stats reset` no ratio is above 1, and no rate below 0; boxes of one name do not pile up."""
    server, admin = served
    one = page(url(admin))
    live(one)
    with server.raw() as raw:
        for _ in range(20):
            raw.set(b"key", b"x")
            raw.get(b"key")
            raw.get(b"absent")
        one.until("(series.gets || []).some((rate) => rate > 0)")
        raw.send(b"stats reset\r\n")
        assert raw.line() == b"RESET"
        for _ in range(5):
            raw.get(b"key")
    one.until("state.stats.get_hits === 5")
    time.sleep(1.2)
    assert one.eval("Math.max(...series.share)") <= 1 and one.eval("Math.min(...series.gets, ...series.operations)") >= 0
    boxes = one.eval("""(() => { const list = document.createElement('div');
        for (let n = 0; n < 5; n++) say(list, [{about: 'loader', what: 'a', toml: 'max = 2'}, {about: 'loader', what: 'b'}]);
        return [list.children.length, list.children[1].querySelector('pre').hidden, list.textContent.includes('null')]; })()""")
    assert boxes == [2, True, False]


def test_a_hidden_tab_reads_nothing(served, page):
    _, admin = served
    one = page(url(admin))
    live(one)
    hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true}); document.dispatchEvent(new Event('visibilitychange'))"
    one.eval(hide % "true")
    one.until("document.querySelector('#link').textContent === 'not shown'")
    before = one.eval("document.querySelector('#figures').dataset.time")
    time.sleep(2)
    assert one.eval("document.querySelector('#figures').dataset.time") == before
    one.eval(hide % "false")
    one.until(f"document.querySelector('#figures').dataset.time !== '{before}'")
    live(one)
    assert not one.text("#banner")


def test_the_server_restarts(start, open_dir, page):
    admin = Admin()
    options = ("--config", write_rules(open_dir, RULES), *admin.options())
    server = start(*options)
    one = page(url(admin))
    live(one)
    process = one.text("#server")
    server.signal(signal.SIGKILL)
    one.until("document.querySelector('#banner').textContent.includes('does not answer since')")
    assert one.eval("document.body.classList.contains('stale')") and one.text("#tiles"), "old figures are there, and look old"
    shot(one, "lost")
    start(*options)
    live(one)
    assert not one.text("#banner") and one.text("#server") != process and not one.eval("document.body.classList.contains('stale')")


def test_a_token_is_asked_for(start, open_dir, page):
    token = os.path.join(open_dir, "token")
    with open(token, "w") as f:
        f.write("a-secret-of-32-bytes-0123456789\n")
    make_certificate(open_dir)
    admin = Admin(tls=without_checks(), host="0.0.0.0")
    tls = ("-o", f"ssl_chain_cert={open_dir}/cert.pem,ssl_key={open_dir}/key.pem")
    server = start("--config", write_rules(open_dir, RULES), *admin.options("--admin-token", token), *tls)
    for path in ("/", "/dashboard.css", "/dashboard.js", "/dashboard.svg"):
        assert admin.ask(path)[0] == 200, "it holds no figures"
    assert admin.ask("/events")[0] == admin.ask("/stats")[0] == admin.ask("/pages")[0] == admin.ask("/nodes")[0] == admin.ask("/advice")[0] == 401
    one = page(url(admin, "https"))
    one.until("!document.querySelector('#login').hidden")
    assert one.eval("document.activeElement.id") == "token" and one.eval("document.querySelector('#figures').hidden")
    audit(one)
    one.type("wrong")
    one.key("Enter")
    one.until("document.querySelector('#refused').textContent.includes('refuses')")
    one.type("\u2603")
    one.key("Enter")
    one.until("document.querySelector('#refused').textContent.includes('ASCII')")
    assert one.eval("sessionStorage.length") == 0
    one.type("a-secret-of-32-bytes-0123456789")
    one.key("Enter")
    live(one)
    assert "a-secret" not in one.eval("document.documentElement.outerHTML + document.cookie + location")
    one.go(url(admin, "https"))
    live(one)
    # A reader with an older token does not go on.
    with open(token, "w") as f:
        f.write("another-secret-of-32-bytes-01234\n")
    server.signal(signal.SIGHUP)
    one.until("!document.querySelector('#login').hidden")
    one.type("another-secret-of-32-bytes-01234")
    one.key("Enter")
    live(one)
    one.click("#pause")
    one.until("document.querySelector('#pause').textContent === 'Go on'")
    one.click("#forget")
    one.until("!document.querySelector('#login').hidden && sessionStorage.length === 0")
    one.type("another-secret-of-32-bytes-01234")
    one.key("Enter")
    live(one)
    assert one.eval("document.querySelector('#pause').textContent") == "Pause"
    one.click("#forget")
    one.until("!document.querySelector('#login').hidden && sessionStorage.length === 0")
    time.sleep(1.2)
    assert one.eval("document.querySelector('#figures').hidden && !document.querySelector('#login').hidden")
    assert "a-secret" not in server.log()


# --- for all ---


def audit(page):
    page.send("Page.setBypassCSP", enabled=True)
    page.eval(AXE.read_text() + "; 0")
    found = page.eval("axe.run({resultTypes: ['violations']}).then(r => r.violations.map(v => [v.id, v.nodes.map(n => n.html + ' ' + n.failureSummary).slice(0, 3)]))")
    assert not found, json.dumps(found, indent=1)[:4000]


def shot(page, name, whole=True):
    path = os.path.join(SHOTS or "/tmp", f"dashboard-{name}-{os.getpid()}.png" if not SHOTS else f"{name}.png")
    page.screenshot(path, whole)
    assert os.path.getsize(path) > 5000
    if not SHOTS:
        os.unlink(path)


@contextlib.contextmanager
def stampede(server):
    """Herds, without an end."""
    stop = threading.Event()

    def computes():
        n = 0
        with server.raw(40) as raw:
            while not stop.is_set():
                n += 1
                key = b"news:%d" % (n % 7 + 100)
                if raw.get(key) is None:
                    time.sleep(0.15)
                    raw.set(key, b"v", exptime=1)
                time.sleep(0.002)

    threads = [threading.Thread(target=computes) for _ in range(30)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_everyone_can_read_it(served, page):
    """At rest and during a stampede, light and dark, on a wall and on a phone: no fault that axe finds, nothing to scroll sideways."""
    server, admin = served
    one = page(url(admin))
    live(one)
    for state in ("rest", "stampede"):
        with stampede(server) if state == "stampede" else contextlib.nullcontext():
            time.sleep(12 if state == "stampede" else 1)
            for theme in ("light", "dark"):
                one.media(theme == "dark")
                for width, height in ((1280, 900), (390, 844)):
                    one.size(width, height)
                    time.sleep(0.3)
                    wide = one.eval("[document.documentElement.scrollWidth, innerWidth, [...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 90)).slice(0, 5)]")
                    assert wide[0] <= width and not wide[2], (width, wide)
                    shot(one, f"{state}-{theme}-{width}")
                    shot(one, f"{state}-{theme}-{width}-top", whole=False)
                    if not (state == "stampede" and width == 390):
                        audit(one)
    # Gets that are held in one second are answered in another.
    assert 0 < one.eval("Math.max(...series.share)") <= 1
    assert not one.complaints()
    one.media(False, reduced=True)
    assert one.eval("getComputedStyle(document.documentElement).scrollBehavior") == "auto"
    assert urllib.parse.urlparse(one.eval("location.href")).path == "/"
