"""A headless Chromium that is driven over its DevTools protocol."""

import base64
import itertools
import json
import os
import re
import shutil
import subprocess
import tempfile
import time

import websocket

from harness import PROMPT

MISSING = "there is no chromium: conformance/chromium.sh installs it"


class Browser:
    """One browser, with pages."""

    def __init__(self, *options):
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        assert program, MISSING
        self.dir = tempfile.mkdtemp()
        command = [program, "--headless=new", "--remote-debugging-port=0", f"--user-data-dir={self.dir}", "--no-first-run", "--disable-gpu"]
        command += ["--disable-dev-shm-usage", "--hide-scrollbars", "--remote-allow-origins=*", "--force-device-scale-factor=1", "--disable-background-networking"]
        if os.geteuid() == 0:
            command.append("--no-sandbox")
        self.log = open(os.path.join(self.dir, "log"), "w+")
        self.process = subprocess.Popen([*command, *options, "about:blank"], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        end = time.monotonic() + 60
        while True:
            with open(self.log.name) as f:
                said = f.read()
            found = re.search(r"DevTools listening on (ws://\S+)", said)
            if found:
                break
            assert time.monotonic() < end and self.process.poll() is None, said
            time.sleep(0.05)
        self.socket = websocket.create_connection(found[1], timeout=PROMPT)
        self.numbers = itertools.count(1)
        self.events = []

    def send(self, method, session=None, **params):
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        self.socket.send(json.dumps(message))
        while True:
            got = json.loads(self.socket.recv())
            if got.get("id") == number:
                assert "error" not in got, (method, got)
                return got["result"]
            self.events.append(got)

    def page(self, url, width=1280, height=900, dark=False, reduced=False):
        return Page(self, url, width, height, dark, reduced)

    def close(self):
        try:
            self.send("Browser.close")
        except (OSError, websocket.WebSocketException):
            pass
        self.socket.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()
        shutil.rmtree(self.dir, ignore_errors=True)


class Page:
    def __init__(self, browser, url, width, height, dark, reduced):
        self.browser = browser
        self.target = browser.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.send("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.size(width, height)
        self.media(dark, reduced)
        self.go(url)

    def send(self, method, **params):
        return self.browser.send(method, self.session, **params)

    def go(self, url):
        self.send("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def size(self, width, height):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def media(self, dark, reduced=False):
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        features.append({"name": "prefers-reduced-motion", "value": "reduce" if reduced else "no-preference"})
        self.send("Emulation.setEmulatedMedia", features=features)

    def eval(self, text):
        """The value of an expression of JavaScript, waited for if it is a promise."""
        result = self.send("Runtime.evaluate", expression=text, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, (text[:200], result)
        return result["result"].get("value")

    def until(self, text, seconds=20):
        end = time.monotonic() + seconds
        while True:
            value = self.eval(text)
            if value:
                return value
            assert time.monotonic() < end, (text, self.text("body")[:600])
            time.sleep(0.05)

    def text(self, selector):
        return self.eval(f"(document.querySelector({json.dumps(selector)}) || {{}}).innerText || ''")

    def key(self, name, shift=False):
        codes = {"Tab": 9, "Enter": 13, " ": 32}
        params = {"key": name, "code": "Space" if name == " " else name, "windowsVirtualKeyCode": codes[name], "modifiers": 8 if shift else 0}
        text = {"Enter": "\r", " ": " "}.get(name)
        self.send("Input.dispatchKeyEvent", type="keyDown", **params, **({"text": text} if text else {}))
        self.send("Input.dispatchKeyEvent", type="keyUp", **params)

    def type(self, text):
        self.send("Input.insertText", text=text)

    def click(self, selector):
        self.eval(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center', behavior: 'instant'}})")
        x, y = self.eval(f"(r => [r.x + r.width / 2, r.y + r.height / 2])(document.querySelector({json.dumps(selector)}).getBoundingClientRect())")
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, path, whole=True):
        got = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **({"clip": self.whole()} if whole else {}))
        with open(path, "wb") as f:
            f.write(base64.b64decode(got["data"]))

    def whole(self):
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        return {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}

    def complaints(self):
        """What the browser has logged as errors, such as what the page's policy forbids."""
        self.eval("0")
        bad = []
        for event in self.browser.events:
            if event.get("sessionId") != self.session:
                continue
            entry = event["params"]
            if event["method"] == "Log.entryAdded" and entry["entry"]["level"] == "error":
                bad.append(entry["entry"]["text"] + " " + entry["entry"].get("url", ""))
            elif event["method"] == "Runtime.exceptionThrown":
                bad.append(entry["exceptionDetails"])
        return bad

    def close(self):
        self.browser.send("Target.closeTarget", targetId=self.target)
