"""Namespaces for asyncio: the same methods, the same numbers."""

import asyncio
import inspect

import pytest

from cattlegrid.client import AsyncCache, Cache
from cattlegrid.namespace import AsyncNamespacer, Namespacer, SettingsDiffer


def test_both_have_the_same_methods():
    def methods(kind):
        return {
            name: list(inspect.signature(member).parameters.values())[1:]
            for name, member in vars(kind).items()
            if inspect.isfunction(member) and not name.startswith("_")
        }

    ours, theirs = methods(Namespacer), methods(AsyncNamespacer)
    assert ours.keys() == theirs.keys()
    for name, parameters in ours.items():
        assert [p.name for p in parameters] == [p.name for p in theirs[name]], name
        assert inspect.iscoroutinefunction(getattr(AsyncNamespacer, name))


def test_the_shop_of_the_manual(three, run):
    async def shop():
        cache = AsyncCache(three.addresses)
        names = AsyncNamespacer(cache)
        assert await names.uses_tags() == (three.kind == "rules")
        blocking = Namespacer(Cache(three.addresses))
        user = {"userId": 12543}
        wanted = [("shoppingbasket", user), ("interests", user)]
        wanted += [("last", {**user, "prodId": id}) for id in (1, 2, 3)] + [("last", {"userId": 9, "prodId": 1})]

        async def found():
            keys = await names.keys_of(wanted)
            assert keys == blocking.keys_of(wanted)
            return [int(await cache.get(key) is not None) for key in keys]

        for key in await names.keys_of(wanted):
            await cache.set(key, "content")
        assert await found() == [1] * 6
        await names.update("prodId", 3)
        assert await found() == [1, 1, 1, 1, 0, 1]
        await names.update_many({"userId": 12543})
        assert await found() == [0, 0, 0, 0, 0, 1]
        blocking.update("userId", 9)
        assert await found() == [0] * 6
        assert await names.key("userId", 1) == (await names.keys([("userId", 1)]))[0]
        await names.flush_all_rolling()
        await cache.close()

    run(shop())


def test_updates_by_many_tasks_are_not_lost(single, run):
    async def work(names, process):
        for each in range(10):
            id = process * 100 + each
            key = await names.key("userId", id)
            await names.cache.set(key, "content")
            await names.update("userId", id)
            assert await names.cache.get(await names.key("userId", id)) is None

    async def tasks():
        names = AsyncNamespacer(AsyncCache(single.addresses))
        await asyncio.gather(*(work(names, process) for process in range(10)))
        await names.cache.close()

    run(tasks())
    # One namespacer in several event loops, one after the other.
    names = AsyncNamespacer(AsyncCache(single.addresses))
    for process in range(2):
        run(work(names, process))


def test_settings_of_others_are_checked(single, run):
    async def differ():
        cache = AsyncCache(single.addresses)
        await AsyncNamespacer(cache).open()
        with pytest.raises(SettingsDiffer):
            await AsyncNamespacer(cache, evidence_size=81).key("a", 1)
        await cache.close()

    run(differ())
