"""Checked by mypy, never run: what type checkers know of cached functions."""

from __future__ import annotations

from typing import Any, List, Optional, Union

from typing_extensions import assert_type

from cattlegrid.client import AsyncCache, Cache, Negative, Outcome, skip

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

    @cache.cached("shops:{country}")
    @classmethod
    def all_in(cls, country: str) -> List[int]:
        return [cls.id]

    @cache.cached("rate:{currency}")
    @staticmethod
    def rate(currency: str) -> float:
        return 1.0

    @cache.cached("rates")
    @staticmethod
    def rates() -> List[float]:
        return [1.0]

    @classmethod
    @cache.cached("name:{lang}")
    def name_in(cls, lang: str) -> str:
        return lang

    @tasks.cached("shops:{country}")
    @classmethod
    async def later_in(cls, country: str) -> List[int]:
        return [cls.id]

    @tasks.cached("rate:{currency}")
    @staticmethod
    async def later_rate(currency: str) -> float:
        return 1.0


class Stall(Shop):
    pass


for shop in (Shop(), Stall()):
    assert_type(shop.all_in("fr"), List[int])
    assert_type(shop.rate("EUR"), float)
    assert_type(shop.rates(), List[float])
    assert_type(shop.name_in("fr"), str)
assert_type(Shop.all_in("fr"), List[int])
assert_type(Stall.all_in.get_many(["fr"]), List[List[int]])
assert_type(Shop.rate.refresh("EUR"), float)
assert_type(Shop.rates(), List[float])
assert_type(Shop.name_in("fr"), str)
assert_type(Shop.price(Shop(), "tea"), int)
Shop.all_in(1)  # type: ignore[arg-type]
Shop.rate()  # type: ignore[call-arg]
Shop().rate(1)  # type: ignore[arg-type]


@cache.cached("article:{id}")
def article(id: int) -> Optional[str]:
    if id == 0:
        return Negative("5s")
    if id == 1:
        return skip("draft")
    if id == 2:
        return cache.skip("draft")
    return skip() if id == 3 else "text"


@tasks.cached("article:{id}")
async def article_async(id: int) -> Union[str, None, Negative]:
    return Negative("5s") if id else "text"


assert_type(article(1), Optional[str])


def number() -> int:
    return 1


def number_or_none() -> Union[int, Negative]:
    return 1


async def number_async() -> int:
    return 1


assert_type(cache.get_or_compute("k", number), Optional[int])
assert_type(cache.get_or_compute("k", number_or_none, default="none", ttl=5), Union[int, str])
assert_type(cache.get_or_compute("k", number, wait=lambda: "none"), Union[int, str])
assert_type(cache.get_or_compute("k", number, outcome=True), Outcome[int])
assert_type(cache.refresh("k", number), Optional[int])
assert_type(cache.refresh("k", number, outcome=True).value, int)
cache.get_or_compute("k", number, outcome=True, tll=3)  # type: ignore[call-overload]
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
    assert_type(await Shop.later_in("fr"), List[int])
    assert_type(await Shop().later_in("fr"), List[int])
    assert_type(await Shop.later_rate("EUR"), float)
    assert_type(await Shop().later_rate("EUR"), float)
    assert_type(await article_async(1), Optional[str])
    assert_type(await tasks.get_or_compute("k", number), Optional[int])
    assert_type(await tasks.get_or_compute("k", number_async), Optional[int])
    assert_type(await tasks.get_or_compute("k", number_async, default="none"), Union[int, str])
    assert_type(await tasks.get_or_compute("k", number_async, outcome=True), Outcome[int])
    some: Any = await tasks.get_or_compute("k", number_async, wait=number_async)
    assert_type(await tasks.refresh("k", number_async), Optional[int])
    assert_type(await tasks.refresh("k", number_async, outcome=True), Outcome[int])
    assert_type(await api_async(User(), 1), str)
    assert_type(await tasks.quota("alice", 100, "hour").take(), bool)
    async with tasks.lock("x") as lock:
        assert_type(lock.fence, int)


assert_type(api(User(), 1), str)
api(User())  # type: ignore[call-arg]
assert_type(cache.quota("alice", 100, "hour").take(), bool)
with cache.lock("x") as taken:
    assert_type(taken.fence, int)
