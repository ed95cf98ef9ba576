"""Checked by mypy, never run: what type checkers know of cached functions."""

from __future__ import annotations

from typing import List, Optional

from typing_extensions import assert_type

from cattlegrid.client import AsyncCache, Cache

cache = Cache("127.0.0.1:11211")
tasks = AsyncCache("127.0.0.1:11211")


class User:
    id = 7


@cache.cached("page:{user.id}:{id}", ttl="60s", grace="30s", compute_time="2s", tags=["user:{user.id}", "pages"])
def page(user: User, id: int, *, lang: str = "en") -> str:
    return f"{user.id} {id}"


assert_type(page(User(), 1), str)
assert_type(page.refresh(User(), id=1, lang="de"), str)
assert_type(page.forget(User(), 1), bool)
assert_type(page.key(User(), 1), str)
assert_type(page.get_many([(User(), 1)]), List[str])
assert_type(page.last.outcome, Optional[str])
page(User())  # type: ignore[call-arg]
page(User(), "1")  # type: ignore[arg-type]
page.refresh(User(), nobody=1)  # type: ignore[call-arg]
page.key()  # type: ignore[call-arg]


class Shop:
    id = 3

    @cache.cached("shop:{self.id}:{product}")
    def price(self, product: str) -> int:
        return len(product)

    @tasks.cached("shop:{self.id}:{product}")
    async def later(self, product: str) -> int:
        return len(product)


assert_type(Shop().price("tea"), int)
assert_type(Shop().price.refresh("tea"), int)
assert_type(Shop().price.get_many(["tea"]), List[int])
Shop().price(1)  # type: ignore[arg-type]


@tasks.cached("page:{id}")
async def page_async(id: int) -> str:
    return str(id)


@cache.rate_limit("api:{user.id}", 100, "minute")
def api(user: User, n: int) -> str:
    return str(n)


@tasks.rate_limit("api:{user.id}", 100, "minute")
async def api_async(user: User, n: int) -> str:
    return str(n)


async def program() -> None:
    assert_type(await page_async(1), str)
    assert_type(await page_async.refresh(1), str)
    assert_type(await page_async.get_many([1]), List[str])
    assert_type(await page_async.forget(1), bool)
    assert_type(page_async.key(1), str)
    await page_async("1")  # type: ignore[arg-type]
    assert_type(await Shop().later("tea"), int)
    assert_type(await api_async(User(), 1), str)
    assert_type(await tasks.quota("alice", 100, "hour").take(), bool)
    async with tasks.lock("x") as lock:
        assert_type(lock.fence, int)


assert_type(api(User(), 1), str)
api(User())  # type: ignore[call-arg]
assert_type(cache.quota("alice", 100, "hour").take(), bool)
with cache.lock("x") as taken:
    assert_type(taken.fence, int)
