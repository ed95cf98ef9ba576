"""Addresses of servers as they are given."""

from __future__ import annotations

from typing import Iterable, List, NamedTuple, Optional, Tuple, Union

from ._errors import UsageError

PORT = 11211
"""memcached's port."""
WEIGHT_MAX = 65_535

_FORMS = "possible are host, host:port, host:port=weight, [v6]:port, unix:/path"


class Address(NamedTuple):
    """Where a server is, and its share of the keys."""

    name: str
    """As it was given, without the weight: the server's name in errors."""
    host: str
    port: int
    path: Optional[str]
    """Of a Unix socket."""
    weight: int

    @property
    def ring_name(self) -> str:
        """The name by which a server is hashed, as pylibmc makes it."""
        if self.path is not None:
            return (self.name[5:] if self.name.startswith("unix:") else self.name) + ":0"
        if self.name.startswith("["):
            host, _, port = self.name[1:].partition("]")
            return host + port
        return self.name


def parse(text: str) -> Address:
    """Reads ``host``, ``host:port``, ``[v6]``, ``[v6]:port``, ``unix:/path`` or ``/path``, with ``=weight`` after it or
    not.

    Raises :class:`UsageError`.
    """

    def wrong(why: str) -> UsageError:
        return UsageError(f"server {text!r}: {why}; {_FORMS}")

    name, weight = text, 1
    if "=" in text:
        name, _, digits = text.rpartition("=")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 9 and 1 <= int(digits) <= WEIGHT_MAX):
            raise wrong(f"the weight is not a number from 1 to {WEIGHT_MAX}")
        weight = int(digits)
    if not name:
        raise wrong("there is no host")
    if name.startswith(("unix:", "/")):
        path = name[5:] if name.startswith("unix:") else name
        if not path:
            raise wrong("the path is empty")
        if path.startswith("//"):
            path = path[1:] if path.startswith("///") else path
            path = "/" + path.lstrip("/")
        return Address(name, "", 0, path, weight)
    if "://" in name:
        raise wrong("it is not a URL: leave out what is before the host")
    host, port = _host(name, wrong)
    if port is None:
        number = PORT
    elif port.isascii() and port.isdigit() and len(port) < 6 and 1 <= int(port) <= 65535:
        number = int(port)
    else:
        raise wrong("the port is not a number from 1 to 65535")
    if not host or any(c.isspace() or ord(c) < 32 for c in host):
        raise wrong("the host is empty or has blanks")
    return Address(name, host, number, None, weight)


def _host(name: str, wrong: object) -> Tuple[str, Optional[str]]:
    assert callable(wrong)
    if name.startswith("["):
        host, closed, rest = name[1:].partition("]")
        if not closed:
            raise wrong("the bracket is not closed")
        if rest and not rest.startswith(":"):
            raise wrong("after the bracket there must be :port or nothing")
        return host, rest[1:] if rest else None
    host, colon, port = name.rpartition(":")
    if ":" in host:
        raise wrong("more than one colon: write one port only, and an IPv6 address in brackets")
    return (host, port) if colon else (name, None)


def parse_all(servers: Union[str, Iterable[object]]) -> List[Address]:
    """Servers as text with commas or blanks between them, or a list of texts and ``(host, port)`` pairs."""
    texts: List[str] = []
    if isinstance(servers, str):
        texts = servers.replace(",", " ").replace(";", " ").split()
    else:
        for server in servers:
            if isinstance(server, str):
                texts.append(server.strip())
            elif isinstance(server, (tuple, list)) and len(server) == 2 and isinstance(server[0], str):
                host, port = server
                texts.append(f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}")
            else:
                raise UsageError(f"server {server!r}: a text or a pair of host and port; {_FORMS}")
    if not texts:
        raise UsageError(f"there is no server; {_FORMS}")
    return [parse(text) for text in texts]
