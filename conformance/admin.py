"""Asks the admin address of a server."""

import http.client
import json
import re
import socket
import ssl

from harness import PROMPT, free_port

TIMES = {"ms": 1e3, "us": 1e6, "s": 1, "seconds": 1}


class Admin:
    """The pages of a server that was started with `options()`."""

    def __init__(self, host="127.0.0.1", port=None, token=None, tls=None):
        self.host, self.port, self.token, self.tls = host, port or free_port(), token, tls

    def options(self, *more):
        return ("--admin", f"{self.host}:{self.port}", *more)

    def ask(self, path, method="GET", headers=None, timeout=PROMPT):
        """Status, headers and body."""
        if self.tls:
            connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout, context=self.tls)
        else:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        headers = dict(headers or {})
        if self.token:
            headers.setdefault("Authorization", f"Bearer {self.token}")
        try:
            connection.request(method, path, headers=headers)
            reply = connection.getresponse()
            return reply.status, dict(reply.getheaders()), reply.read().decode()
        finally:
            connection.close()

    def text(self, path, **more):
        status, _, body = self.ask(path, **more)
        assert status == 200, (path, status, body)
        return body

    def json(self, path):
        return json.loads(self.text(path))

    def series(self, accept=None):
        """All of `/metrics`: name and labels, in the order of the text, to the value as text."""
        text = self.text("/metrics", headers={"Accept": accept} if accept else {})
        return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))

    def raw(self, data, timeout=PROMPT):
        """What is answered to these bytes until the connection ends."""
        with socket.create_connection(("127.0.0.1", self.port), timeout) as s:
            s.sendall(data)
            got = b""
            while True:
                try:
                    piece = s.recv(1 << 16)
                except ConnectionError:
                    return got
                if not piece:
                    return got
                got += piece


def without_checks():
    """TLS to a certificate of nobody's."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def words(name, unit):
    """A name of `stats` as `/metrics` has it, and what its value is divided by: words for a unit go, the unit comes last."""
    parts = name.split("_")
    if unit == "bytes":
        return "_".join([p for p in parts if p != "bytes"] + ["bytes"]), 1
    divisor = {"milliseconds": 1e3, "microseconds": 1e6, "seconds": 1, "Unix time": 1}.get(unit)
    if divisor is None:
        return name, 1
    return "_".join([p for p in parts if p not in TIMES] + ["seconds"]), divisor


def documented(text):
    """The lines of `docs/statistics.md`: for each section its rows, as name, kind, unit and meaning."""
    sections, rows = {}, None
    for line in text.splitlines():
        if line.startswith("## "):
            rows = sections.setdefault(line.strip("# `"), [])
        found = re.match(r"^\| `([^`]+)` \| (\w+) \| ([^|]*) \| (.*) \|$", line)
        if found and rows is not None:
            rows.append((found[1], found[2], found[3].strip(), found[4]))
    return sections
