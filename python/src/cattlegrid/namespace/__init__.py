"""Namespaces: all keys of one user, product or template change at once, with a round trip or less for each key.

After Memcached.Namespacer. Rust, Python and any number of processes share one cache's numbers and evidence: the items
are those of docs/clients.md, byte for byte::

    cache = Cache("10.0.0.1:11211,10.0.0.2:11211")
    names = Namespacer(cache)

    key = names.key_of("lastWatched", {"userId": 12543, "prodId": 549})
    cache.set(key, "yesterday", "10m")
    names.update("userId", 12543)         # all keys of user 12543, in any process
"""

from __future__ import annotations

from ._errors import NamespaceError, SettingsDiffer
from ._key import NamespacedKey
from ._namespacer import AsyncNamespacer, Namespacer
from ._options import NamespacerOptions

__all__ = [
    "AsyncNamespacer",
    "NamespaceError",
    "NamespacedKey",
    "Namespacer",
    "NamespacerOptions",
    "SettingsDiffer",
]
