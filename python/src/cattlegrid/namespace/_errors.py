"""Errors of namespaces, besides those of the cache."""

from __future__ import annotations

from cattlegrid.client import CacheError
from cattlegrid.client import SettingsDiffer as ClientSettingsDiffer


class NamespaceError(CacheError):
    """A namespace's record or number cannot be used: another program or version has written it, or it is evicted again
    and again."""


class SettingsDiffer(NamespaceError, ClientSettingsDiffer):
    """Other processes use the prefix with another option: its name, its value here and there."""

    def __init__(self, prefix: str, option: str, here: str, there: str) -> None:
        super().__init__(f"the namespaces {prefix!r} are used by others with {option} {there}, here it is {here}")
        self.prefix, self.option, self.here, self.there = prefix, option, here, there
