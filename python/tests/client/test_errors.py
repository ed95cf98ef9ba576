"""Errors go from process to process, and say what was wrong; cached methods go with them."""

import concurrent.futures
import copy
import multiprocessing
import pickle

import pytest

import cattlegrid.namespace
from cattlegrid._plain import NotANumber
from cattlegrid.client import (
    AsyncCache,
    BusyError,
    Cache,
    CacheError,
    ConnectionFailed,
    InvalidKey,
    LockHeld,
    LockLost,
    NoObjects,
    NoTags,
    ProtocolError,
    RateLimited,
    Refused,
    ServerBusy,
    ServerFailure,
    SettingsDiffer,
    TimedOut,
    Unavailable,
    UnreadableValue,
    UsageError,
)
from cattlegrid.client._errors import CacheError as Base
from cattlegrid.loader import Error as LoadError
from cattlegrid.worker import JobError

ERRORS = [
    CacheError("it fails"),
    UsageError("not so"),
    InvalidKey("no key"),
    UnreadableValue(b"k\xff", "not JSON"),
    ServerFailure("s:1", "fails"),
    ConnectionFailed("s:1", "refused", ["s:1", "t:1"]),
    TimedOut("s:1", 0.5),
    Unavailable("s:1", "refused", 0.25),
    Refused("s:1", "CLIENT_ERROR bad"),
    ServerBusy("s:1", "SERVER_ERROR out of memory"),
    ProtocolError("s:1", "not a reply"),
    NoTags(),
    SettingsDiffer("differs"),
    BusyError("k"),
    NoObjects("quota:take:a:1:1:hour"),
    RateLimited("k", 3, "minute", 1.5),
    LockHeld("report", 2.5),
    LockLost("report"),
    NotANumber("no number"),
    cattlegrid.namespace.NamespaceError("another program"),
    cattlegrid.namespace.SettingsDiffer("___", "separator", ":", "."),
]


def kinds(base=Base):
    """All classes of errors of the package."""
    return {base}.union(*(kinds(each) for each in base.__subclasses__() if each.__module__.startswith("cattlegrid.")))


def test_the_list_is_complete():
    assert {type(error) for error in ERRORS} == kinds()


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__qualname__)
def test_errors_can_be_pickled_and_copied(error):
    copies = [pickle.loads(pickle.dumps(error, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    for other in [*copies, copy.copy(error), copy.deepcopy(error)]:
        assert type(other) is type(error)
        assert (str(other), repr(other), other.args) == (str(error), repr(error), error.args)
        assert other.__dict__ == error.__dict__


def test_errors_of_jobs_and_loaders_can_be_pickled_and_copied():
    for error in (JobError("late", "too late", detail="more", retryable=True), LoadError("no such", True, code="gone")):
        for other in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
            assert type(other) is type(error) and str(other) == str(error) and other.args == error.args
            assert other.__dict__ == error.__dict__


def test_an_error_that_names_all_servers_has_itself_in_its_results():
    error = ConnectionFailed("s:1", "refused")
    error.results = {"s:1": error, "t:1": True}
    for other in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert other is not error
        assert other.results["s:1"] is other and other.results["t:1"] is True


def fails(_):
    Cache("127.0.0.1:1").get("k")


def test_a_pool_of_processes_hears_of_errors():
    processes = multiprocessing.get_context("fork")
    with processes.Pool(1) as pool:
        with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:1") as failed:
            pool.map_async(fails, [1]).get(30)
        assert failed.value.servers == ("127.0.0.1:1",)
        assert pool.map_async(len, ["abc"]).get(30) == [3]
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=processes) as executor:
        with pytest.raises(ConnectionFailed):
            executor.submit(fails, 1).result(30)
        assert executor.submit(len, "abc").result(30) == 3


cache, tasks = Cache("127.0.0.1:1", testing="off"), AsyncCache("127.0.0.1:1", testing="off")


class Shop:
    def __init__(self, id):
        self.id = id

    def __eq__(self, other):
        return self.id == other.id

    __hash__ = None

    @cache.cached("price:{self.id}:{product}")
    def price(self, product, *, currency="EUR"):
        return f"{self.id} {product} {currency}"

    @cache.cached("shops:{country}")
    @classmethod
    def all_in(cls, country):
        return f"{cls.__name__} {country}"

    @classmethod
    @cache.cached("name:{country}")
    def name_in(cls, country):
        return f"{cls.__name__} {country}"

    @cache.cached("rate:{currency}")
    @staticmethod
    def rate(currency):
        return currency

    @tasks.cached("later:{self.id}")
    async def later(self):
        return self.id


class Stall(Shop):
    pass


def test_bound_methods_are_pickled_as_methods_are():
    for method, argument, result in [
        (Shop(7).price, "tea", "7 tea EUR"),
        (Stall(7).price, "tea", "7 tea EUR"),
        (Shop.all_in, "fr", "Shop fr"),
        (Stall.all_in, "fr", "Stall fr"),
        (Stall(7).all_in, "fr", "Stall fr"),
        (Stall.name_in, "fr", "Stall fr"),
        (Shop.rate, "EUR", "EUR"),
        (Shop(7).rate, "EUR", "EUR"),
    ]:
        for other in (pickle.loads(pickle.dumps(method)), copy.copy(method), copy.deepcopy(method)):
            assert other(argument) == result
    shop = Shop(7)
    assert copy.copy(shop.price) == shop.price
    assert pickle.loads(pickle.dumps(shop.later)).key() == "later:7"
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.map_async(Shop(7).price, ["tea", "cup"]).get(30) == ["7 tea EUR", "7 cup EUR"]


@cache.cached("article:{id}", tags=["articles:{id}"])
def article(id, lang="en"):
    return id


@cache.rate_limit("api:{user}", 100, "minute")
def api(user):
    return user


def test_errors_of_arguments_name_the_function():
    def plain(self, product, *, currency="EUR"):
        """As the undecorated one."""

    for call, text in [
        (lambda: article(), "article() missing 1 required positional argument: 'id'"),
        (lambda: article(1, 2, 3), "article() takes from 1 to 2 positional arguments but 3 were given"),
        (lambda: article(1, page=2), "article() got an unexpected keyword argument 'page'"),
        (lambda: article.key(), "article() missing 1 required positional argument: 'id'"),
        (lambda: article.tags(), "article() missing 1 required positional argument: 'id'"),
        (lambda: article.get_many([(1, 2, 3)]), "article() takes from 1 to 2 positional arguments but 3 were given"),
        (lambda: Shop(7).price(), "price() missing 1 required positional argument: 'product'"),
        (lambda: Shop(7).price.refresh(), "price() missing 1 required positional argument: 'product'"),
        (lambda: Shop.all_in(), "all_in() missing 1 required positional argument: 'country'"),
        (lambda: api(), "api() missing 1 required positional argument: 'user'"),
        (lambda: cache.cached("k:{x}")(lambda x: x)(), "<lambda>() missing 1 required positional argument: 'x'"),
    ]:
        with pytest.raises(TypeError) as wrong:
            call()
        # From Python 3.10 on with the class before it.
        assert str(wrong.value).endswith(text), str(wrong.value)
    with pytest.raises(TypeError) as own:
        plain(1)
    with pytest.raises(TypeError) as wrong:
        Shop(7).price()
    assert str(own.value).partition("() ")[2] == str(wrong.value).partition("() ")[2]
