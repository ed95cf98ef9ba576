"""Cached functions: keys, outcomes, many at once, refresh and forget, methods, and what is refused when they are
decorated."""

import asyncio
import copy
import inspect
import pickle
import threading
import time

import pytest

from cattlegrid.client import (
    AsyncCache,
    BusyError,
    Cache,
    CacheError,
    Negative,
    NoTags,
    Skip,
    UsageError,
    skip,
)


class User:
    def __init__(self, id):
        self.id = id


U = User(7)


@pytest.fixture
def cache(server):
    with Cache(server.address) as cache:
        yield cache


class Counted:
    """Counts calls of a function."""

    def __init__(self, answer=lambda *args, **more: args, takes=0.0):
        self.calls, self.answer, self.takes = [], answer, takes

    def __call__(self, *args, **kwargs):
        self.calls.append(args)
        time.sleep(self.takes)
        return self.answer(*args, **kwargs)


def made(cache, counted, template="page:{user.id}:{id}", **options):
    @cache.cached(template, **options)
    def page(user, id, *, lang="en"):
        """The page."""
        return counted(user.id, id)

    return page


def test_the_example(cache):
    counted = Counted()
    page = made(cache, counted, ttl="60s", grace="30s", compute_time="2s")
    assert page.last.outcome is None
    assert page(U, 1) == (7, 1) and page.last.outcome == "computed" and page.last.stored
    assert page(U, 1) == [7, 1] and page.last.outcome == "hit" and page.last.key == "page:7:1"
    assert page(user=U, id=1) == page(U, id="1") == [7, 1], "a number and its text are one key"
    assert page.key(U, 1) == "page:7:1" and page.tags(U, 1) == ()
    assert counted.calls == [(7, 1)]
    assert cache.get("page:7:1") == [7, 1]
    assert page.__wrapped__(U, 2) == (7, 2) and page.__doc__ == "The page." and page.__name__ == "page"
    assert str(inspect.signature(page)) == "(user, id, *, lang='en')"
    with pytest.raises(TypeError, match="id"):
        page(U)


def test_many_at_once(cache):
    counted = Counted()
    page = made(cache, counted, ttl=60)
    page(U, 1)
    before = cache.statistics().requests
    assert page.get_many([(U, 3), (U, 1), (U, 2), (U, 3)]) == [(7, 3), [7, 1], (7, 2), (7, 3)]
    assert page.last.outcomes == ("computed", "hit", "computed", "computed") and page.last.outcome == "mixed"
    assert counted.calls == [(7, 1), (7, 3), (7, 2)]
    assert cache.statistics().requests - before <= 3 + 2 + 2
    assert page.get_many([(U, 1), (U, 2)]) == [[7, 1], [7, 2]] and page.last.outcome == "hit"
    assert page.get_many([]) == []

    @cache.cached("square:{n}")
    def square(n):
        if n == 3:
            raise KeyError(n)
        return n * n

    assert square.get_many([1, 2, (4,)]) == [1, 4, 16], "a single argument needs no tuple"
    with pytest.raises(KeyError):
        square.get_many([3, 5])
    assert square(5) == 25 and square.last.outcome == "hit", "the others are stored"


def test_refresh_and_forget(cache):
    numbers = iter(range(100))
    page = made(cache, Counted(lambda *_: next(numbers)), ttl=60)
    assert page.refresh(U, 1) == 0 and page.last.outcome == "computed"
    assert page(U, 1) == 0
    assert page.refresh(U, 1) == 1 and page.last.stored
    assert page(U, 1) == 1 and page.last.outcome == "hit"
    assert page.forget(U, 1) is True and page.forget(U, 1) is False
    assert page(U, 1) == 2 and page.last.outcome == "computed"
    cache.set("page:7:5", "by a plain set", 60)
    assert page.refresh(U, 5) == 3 and page(U, 5) == 3


def test_others_get_the_old_value_during_a_refresh(server):
    caches = [Cache(server.address), Cache(server.address)]
    started, go = threading.Event(), threading.Event()
    numbers = iter(range(100))

    def compute():
        number = next(numbers)
        if number:
            started.set()
            assert go.wait(10)
        return number

    def refresh(which=0):
        got.append(caches[which].refresh("page:1:1", compute, ttl=60, compute_time=10))

    assert caches[0].get_or_compute("page:1:1", compute, ttl=60) == 0
    got = []
    thread = threading.Thread(target=refresh)
    thread.start()
    assert started.wait(10)
    assert caches[1].get_or_compute("page:1:1", compute, ttl=60, compute_time=10) == 0, "the old one"
    second = threading.Thread(target=refresh, args=(1,))
    second.start()
    time.sleep(0.1)
    go.set()
    thread.join()
    second.join()
    assert got == [1, 1] and next(numbers) == 2, "two refreshes at once are one computation"
    assert caches[1].get("page:1:1") == 1


def test_a_refresh_that_fails_or_is_deleted_under(cache):
    def failing():
        raise KeyError("x")

    assert cache.set("a", "old", 60)
    with pytest.raises(KeyError):
        cache.refresh("a", failing, ttl=60)
    assert cache.get("a") == "old"
    assert cache.get_or_compute("b", lambda: "old", ttl=60) == "old"
    with pytest.raises(KeyError):
        cache.refresh("b", failing, ttl=60)
    assert cache.get_or_compute("b", lambda: "new", ttl=60) == "old"

    def deleted():
        cache.delete("b")
        return "late"

    outcome = cache.refresh("b", deleted, ttl=60, outcome=True)
    assert (outcome.value, outcome.stored, outcome.why) == ("late", False, "fenced")
    assert cache.get("b") is None


def test_a_refresh_that_fails_does_not_make_a_value_live_for_ever(cache):
    assert cache.set("c", "old", 2)

    def failing():
        raise KeyError("x")

    with pytest.raises(KeyError):
        cache.refresh("c", failing, ttl=60)
    end = time.monotonic() + 5
    while cache.get("c") is not None:
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.parametrize("how", ["text", "pymemcache"])
def test_without_meta_commands(server, how):
    if how == "text":
        cache = Cache(server.address, protocol="text")
    else:
        base = pytest.importorskip("pymemcache.client.base")
        host, port = server.address.split(":")
        cache = Cache(base.Client((host, int(port))))
    numbers = iter(range(100))
    page = made(cache, Counted(lambda *_: next(numbers)), ttl=60)
    assert page(U, 1) == page(U, 1) == 0 and page.last.outcome == "hit"
    assert page.refresh(U, 1) == 1 and page(U, 1) == 1
    assert page.get_many([(U, 1), (U, 2)]) == [1, 2]
    assert page.forget(U, 1) and page(U, 1) == 3

    def failing():
        raise KeyError("x")

    with pytest.raises(KeyError):
        cache.refresh(page.key(U, 1), failing, ttl=60)
    assert page(U, 1) == 3


def test_failures_free_the_key_and_are_not_cached(cache):
    answers = iter([KeyError("x"), "found"])

    def answer(*_):
        value = next(answers)
        if isinstance(value, Exception):
            raise value
        return value

    page = made(cache, Counted(answer), ttl=60)
    with pytest.raises(KeyError):
        page(U, 1)
    assert page.last.outcome == "failed"
    assert page(U, 1) == "found"


def test_none_is_a_value_unless_something_else_is_said(cache):
    counted = Counted(lambda *_: None)
    page = made(cache, counted, ttl=60)
    assert page(U, 1) is None and page(U, 1) is None and page.last.outcome == "hit"
    assert len(counted.calls) == 1
    short = made(cache, counted, "short:{user.id}:{id}", ttl=3600, negative_ttl="1s")
    assert short(U, 1) is None and short(U, 1) is None and short.last.outcome == "hit"
    time.sleep(2.1)
    assert short(U, 1) is None and short.last.outcome in ("computed", "stale")

    never = made(cache, Counted(lambda *_: skip("not today")), "never:{user.id}:{id}")
    assert never(U, 1) == never(U, 1) == "not today"
    assert never.last.outcome == "computed" and not never.last.stored and never.last.why == "skipped"
    for nothing in (cache.skip, Skip, skip(), cache.skip(None)):
        counted = Counted(lambda *_, nothing=nothing: nothing)
        nothing_kept = made(cache, counted, "nothing:{user.id}:{id}")
        assert nothing_kept(U, 1) is None and nothing_kept(U, 1) is None and len(counted.calls) == 2
        assert nothing_kept.get_many([(U, 1), (U, 2)]) == [None, None] and cache.get("nothing:7:1") is None
    own = made(cache, Counted(lambda *_: Negative("10s", "nobody")), "own:{user.id}:{id}")
    assert own(U, 1) == own(U, 1) == "nobody" and own.last.outcome == "hit"
    assert own.get_many([(U, 1), (U, 2)]) == ["nobody", "nobody"]


def test_tags(cache, server):
    counted = Counted()
    page = made(cache, counted, ttl=60, tags=["user:{user.id}", "pages"])
    assert page.tags(U, 1) == ("user:7", "pages")
    if server.kind == "memcached":
        with pytest.raises(NoTags):
            page(U, 1)
        return
    if server.kind == "plain":
        with pytest.raises(CacheError):
            cache.invalidate("pages")
        return
    page.get_many([(U, 1), (User(8), 1)])
    page(U, 2)
    cache.invalidate("user:7")
    page.get_many([(U, 1), (U, 2), (User(8), 1)])
    assert page.last.outcomes == ("computed", "computed", "hit")
    cache.invalidate(page.tags(U, 1)[1:])
    page(User(8), 1)
    assert page.last.outcome == "computed"


def test_many_threads_compute_once_and_have_their_own_last(cache):
    counted = Counted(takes=0.2)
    page = made(cache, counted, ttl=60, compute_time=5)
    got = []

    def work():
        page(U, 1)
        got.append(page.last.outcome)

    threads = [threading.Thread(target=work) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(counted.calls) == 1 and sorted(got) == ["computed"] + ["hit"] * 11
    assert page.last.outcome is None, "of this thread"


def test_busy_is_an_error_or_what_wait_returns(server):
    caches = [Cache(server.address), Cache(server.address)]
    go, started = threading.Event(), threading.Event()

    def slow(*_):
        started.set()
        go.wait(10)
        return "late"

    first = made(caches[0], Counted(slow), ttl=60, compute_time=10)
    thread = threading.Thread(target=first, args=(U, 1))
    thread.start()
    assert started.wait(10)
    page = made(caches[1], Counted(), ttl=60, compute_time=10, wait="100ms")
    with pytest.raises(BusyError, match="page:7:1"):
        page(U, 1)
    assert page.last.outcome == "busy"
    with pytest.raises(BusyError):
        page.get_many([(U, 1)])
    instead = made(caches[1], Counted(), ttl=60, compute_time=10, wait=lambda: "instead")
    assert instead(U, 1) == "instead" and instead.last.outcome == "waited"
    go.set()
    thread.join()
    assert page(U, 1) == "late"


def test_while_the_server_is_gone():
    cache = Cache("127.0.0.1:1", timeout=0.2)
    with pytest.raises(CacheError):
        made(cache, Counted())(U, 1)
    page = made(cache, Counted(), when_unavailable="compute")
    assert page(U, 1) == (7, 1) and page.last.outcome == "computed" and not page.last.stored
    assert page.get_many([(U, 1), (U, 2)]) == [(7, 1), (7, 2)]


def test_methods(cache):
    class Shop:
        name = "shop"

        def __init__(self, id):
            self.id = id

        @cache.cached("shop:{self.id}:price:{product}", ttl=60)
        def price(self, product, *, vat=True):
            return [self.id, product]

        @cache.cached("class:{cls.name}:{n}", ttl=60)
        @classmethod
        def of_class(cls, n):
            return [cls.name, n]

        @cache.cached("static:{n}", ttl=60)
        @staticmethod
        def of_nothing(n):
            return n

        @classmethod
        @cache.cached("inner:{cls.name}:{n}", ttl=60)
        def inner(cls, n):
            return [cls.name, n]

    class Other(Shop):
        name = "other"

    shop = Shop(1)
    assert shop.price("tea") == [1, "tea"] and Shop(2).price("tea") == [2, "tea"]
    assert shop.price.key("tea") == "shop:1:price:tea" == Shop.price.key(shop, "tea")
    assert shop.price("tea") and shop.price.last.outcome == "hit" and Shop.price(shop, "tea") == [1, "tea"]
    assert shop.price.get_many(["tea", ("cup",)]) == [[1, "tea"], [1, "cup"]]
    assert shop.price.last.outcomes == ("hit", "computed")
    assert shop.price.refresh("tea") == [1, "tea"] and shop.price.forget(product="tea") is True
    assert shop.price.__wrapped__("tea") == [1, "tea"] and shop.price == shop.price and shop.price != Shop(1).price
    assert Shop.of_class(1) == ["shop", 1] and Other.of_class(1) == ["other", 1] and shop.of_class(1) == ["shop", 1]
    assert Shop.of_class.key(1) == "class:shop:1" and Other.of_class.get_many([1, 2]) == [["other", 1], ["other", 2]]
    assert Shop.of_nothing(3) == shop.of_nothing(3) == 3 and shop.of_nothing.key(3) == "static:3"
    assert Shop.inner(1) == ["shop", 1] and Other.inner(1) == ["other", 1] and Shop.inner(1) == ["shop", 1]


@pytest.mark.parametrize(
    "template", ["page", "page:{nobody}", "page:{}", "page:{0}", "page:{id", "{user.id}{id}", "a b{id}"]
)
def test_templates_that_cannot_be_are_refused_when_decorated(cache, template):
    with pytest.raises(UsageError):
        made(cache, Counted(), template)


def test_options_that_cannot_be_are_refused_when_decorated(cache):
    for options in (
        {"ttl": "sixty"},
        {"tags": "pages"},
        {"tags": ["{nobody}"]},
        {"compute_time": "x"},
        {"grace": -1},
        {"wait": "x"},
        {"negative_ttl": "x"},
        {"when_unavailable": "x"},
    ):
        with pytest.raises(UsageError):
            made(cache, Counted(), **options)

    async def coroutine(user, id):
        pass

    with pytest.raises(UsageError, match="AsyncCache"):
        cache.cached("page:{id}")(coroutine)
    with pytest.raises(UsageError, match="use Cache"):
        AsyncCache("127.0.0.1:1").cached("page:{id}")(lambda id: id)
    with pytest.raises(TypeError):
        cache.cached()


def test_a_function_makes_the_key(cache):
    counted = Counted()

    @cache.cached(lambda user, id: f"own:{user.id}:{id}", ttl=60)
    def page(user, id):
        return counted(user.id, id)

    assert page(U, 1) == (7, 1) and page(U, 1) == [7, 1] and page.key(U, 1) == "own:7:1"


def test_the_prefix_of_the_cache_and_long_keys(server):
    cache = Cache(server.address, prefix="shop:1:")
    page = made(cache, Counted(), ttl=60)
    assert page(User("x" * 400), 1) and page(User("x" * 400), 1)[1] == 1 and page.last.outcome == "hit"
    assert page(User("x" * 401), 1) and page.last.outcome == "computed"
    assert len(page.key(User("x" * 400), 1)) < 60
    assert Cache(server.address).get("shop:1:" + page.key(User("x" * 400), 1)) is not None


def module_level(cache):
    @cache.cached("pickled:{n}")
    def function(n):
        return n

    return function


def test_a_cached_function_is_pickled_by_its_name(cache):
    global pickled
    pickled = module_level(cache)
    pickled.__qualname__ = "pickled"
    assert pickle.loads(pickle.dumps(pickled)) is pickled
    assert copy.copy(pickled) is pickled


def test_two_functions_with_one_template_are_warned_of(cache):
    scope = {"cache": cache, "__name__": "one"}
    exec("def one(id): ...\ndef two(id): ...", scope)
    cache.cached("same:{id}")(scope["one"])
    cache.cached("same:{id}")(scope["one"])
    with pytest.warns(UserWarning, match="share their values"):
        cache.cached("same:{id}")(scope["two"])


def test_async_functions(server, run):
    async def program():
        cache = AsyncCache(server.address)
        calls = []

        @cache.cached("page:{user.id}:{id}", ttl="60s", compute_time="5s", negative_ttl="10s")
        async def page(user, id):
            """The page."""
            calls.append((user.id, id))
            await asyncio.sleep(0.1)
            if id == 13:
                raise KeyError(id)
            return None if id == 0 else [user.id, id, len(calls)]

        @cache.cached("quick:{n}")
        async def quick(n):
            await asyncio.sleep(0.5)
            return n

        assert inspect.iscoroutinefunction(page.__call__) and page.__doc__ == "The page."
        got = []

        async def one():
            got.append((await page(U, 1), page.last.outcome))

        await asyncio.gather(*(one() for _ in range(10)))
        assert len(calls) == 1 and sorted(kind for _, kind in got) == ["computed"] + ["hit"] * 9
        assert page.last.outcome is None, "of this task"
        assert await page(U, 1) == [7, 1, 1] and page.last.outcome == "hit"
        assert page.key(U, 1) == "page:7:1"
        many = await page.get_many([(U, 1), (U, 2)])
        assert many == [[7, 1, 1], [7, 2, 2]] and page.last.outcomes == ("hit", "computed")
        began = time.monotonic()
        assert len(await quick.get_many(range(16))) == 16 and time.monotonic() - began < 6, "at the same time"
        with pytest.raises(KeyError):
            await page.get_many([(U, 13), (U, 2)])
        calls.remove((7, 13))
        assert await page.refresh(U, 1) == [7, 1, 3] and await page(U, 1) == [7, 1, 3]
        assert await page.forget(U, 1) is True and await page.forget(U, 1) is False
        assert await page(U, 0) is None and await page(U, 0) is None and page.last.outcome == "hit"
        with pytest.raises(KeyError):
            await page(U, 13)
        assert page.last.outcome == "failed"
        assert await page.__wrapped__(U, 5)

        class Shop:
            id = 3

            @cache.cached("shop:{self.id}:{n}")
            async def price(self, n):
                return n

            @cache.cached("cls:{cls.id}:{n}")
            @classmethod
            async def of_class(cls, n):
                return n

        shop = Shop()
        assert await shop.price(1) == 1 and shop.price.key(1) == "shop:3:1"
        assert await shop.price.get_many([1, 2]) == [1, 2] and await shop.price.refresh(1) == 1
        assert await Shop.of_class(1) == 1 and await shop.price.forget(1) is True
        await cache.close()

    run(program())


def test_a_cancelled_computation_frees_its_key(server, run):
    async def program():
        cache, other = AsyncCache(server.address), AsyncCache(server.address)
        entered = asyncio.Event()

        @cache.cached("slow:{n}", compute_time="20s")
        async def slow(n):
            entered.set()
            await asyncio.sleep(60)

        @other.cached("slow:{n}", compute_time="20s")
        async def quick(n):
            return "quick"

        task = asyncio.ensure_future(slow(1))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.wait_for(quick(1), 10) == "quick"
        await cache.close()
        await other.close()

    run(program())


def test_none_is_not_kept_for_no_time(cache):
    calls = []

    for number, none in enumerate([0, "0s", 0.0]):

        @cache.cached(f"nothing:{number}:{{id}}", ttl="60s", negative_ttl=none)
        def find(id):
            calls.append(id)

        assert find(1) is None and find(1) is None
    assert len(calls) == 6


def test_a_month_and_a_day_in_seconds(cache):
    cache.set("long", "here", ttl=31 * 86400)
    assert cache.get("long") == "here"
    assert cache.get_or_compute("longer", lambda: "once", ttl=31 * 86400) == "once"
    assert cache.get_or_compute("longer", lambda: "twice", ttl=31 * 86400) == "once"
