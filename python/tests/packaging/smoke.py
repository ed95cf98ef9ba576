"""What an installed package has to do, run in a clean environment: `smoke.py ADDRESS`."""

import asyncio
import importlib.metadata
import sys
import threading
from pathlib import Path

import cattlegrid
from cattlegrid import loader, namespace, worker
from cattlegrid.client import AsyncCache, Cache

address = sys.argv[1]
folder = Path(cattlegrid.__file__).parent
assert sys.prefix in str(folder), f"not the installed package: {folder}"
assert (folder / "py.typed").exists()
assert loader and worker and namespace

distribution = importlib.metadata.distribution("cattlegrid")
files = [str(file) for file in distribution.files]
assert any("LICENSE-MIT" in file for file in files) and any("LICENSE-APACHE" in file for file in files), files
assert any(file.endswith("templatetags/cattlegrid.py") for file in files), files
assert not any("test" in Path(file).parts for file in files), files
required = [line for line in distribution.requires or [] if "extra ==" not in line]
assert not required, required
extras = set(distribution.metadata.get_all("Provides-Extra"))
assert extras == {"pymemcache", "emcache", "msgpack", "otel", "django", "dogpile", "flask", "fastapi", "celery", "test"}, extras
entries = {entry.name: entry.value for entry in distribution.entry_points if entry.group == "dogpile.cache"}
assert entries == {"cattlegrid.dogpile": "cattlegrid.dogpile:CattlegridBackend"}, entries
assert "# cattlegrid" in distribution.metadata.get_payload() or "# cattlegrid" in (distribution.metadata["Description"] or "")

computed = []


def compute():
    computed.append(1)
    return {"a": 1}


with Cache(address) as cache:
    cache.flush_all()
    threads = [threading.Thread(target=cache.get_or_compute, args=("key", compute), kwargs={"ttl": 60}) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.get_or_compute("key", compute, ttl=60) == {"a": 1}
    assert computed == [1], computed


async def main():
    async with AsyncCache(address) as cache:
        assert await cache.get_or_compute("key", compute, ttl=60) == {"a": 1}


asyncio.run(main())
assert computed == [1], computed
print("well")
