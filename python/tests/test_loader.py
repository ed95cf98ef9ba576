"""Loaders as functions: jobs, values, what is refused and with which text."""

import datetime
import fractions
import re

import pytest
from cattlegrid import loader
from cattlegrid.loader import _answer, _job


def load(job):
    if job.args["id"] == "0":
        return loader.not_found(ttl=5)
    return loader.Value("page " + job.args["id"], ttl=60, tags=["page:" + job.args["id"]])


def test_a_decorated_function_is_called_by_a_unit_test():
    assert loader.load(load) is load and loader.batch(limit=2)(load) is load
    job = loader.job("page:42", {"id": "42"})
    assert load(job) == loader.Value(b"page 42", ttl=60, tags=["page:42"])
    assert load(loader.job(b"page:0", {"id": b"0"})) == loader.not_found(5) != loader.not_found()
    assert (job.rule, job.hint, job.stale, job.attempt, job.deadline) == ("test", None, None, 0, None)
    assert job.cancelled() is False
    assert repr(job) == "Job(key='page:42', args={'id': '42'}, rule='test')"
    job = loader.job("k", rule="k", hint="mobile", stale="ü", attempt=2, deadline=7.5)
    assert (job.hint, job.stale, job.attempt, job.deadline) == ("mobile", "ü".encode(), 2, 7.5)


def test_a_capture_that_the_rule_lacks_is_named():
    for args, names in (({"id": "42", "lang": "de"}, "id, lang"), ({}, "none")):
        job = loader.job("page:42", args, rule="page:{id}")
        with pytest.raises(KeyError, match=re.escape(f"the rule page:{{id}} has no capture 'ib'; its captures: {names}")):
            job.args["ib"]
        assert job.args.get("ib") is None and job.args == args


def test_bytes_that_are_no_text_come_back_unchanged():
    parts = [b"k\xff", b"r", b"h\xfe", b"1", b"s\xfd", b"id", b"\xfc"]
    job = _job.parse(parts, 0, None, None)
    assert (job.key, job.hint, job.stale, job.args) == ("k\udcff", "h\udcfe", b"s\xfd", {"id": "\udcfc"})
    result = loader.Value(job.key + job.args["id"], tags=["tag:" + job.args["id"], b"b"])
    assert _answer.parts(result) == [b"V", b"k\xff\xfc", b"", b"", b"tag:\xfc", b"b"]


@pytest.mark.parametrize("flag, stale, expected", [(b"", b"", None), (b"1", b"", b""), (b"1", b"old", b"old")])
def test_an_empty_old_value_is_not_the_same_as_none(flag, stale, expected):
    assert _job.parse([b"k", b"r", b"", flag, stale], 0, None, None).stale == expected


@pytest.mark.parametrize("count", [0, 1, 4, 6, 8])
def test_a_job_that_is_no_loaders_is_refused(count):
    with pytest.raises(ValueError, match=f"5 arguments and 2 for each capture, not {count}"):
        _job.parse([b""] * count, 0, None, None)


class Index:
    def __index__(self):
        return 7


def test_answers_on_the_wire():
    many = ["t%d" % n for n in range(8)]
    for result, parts in (
        ("ü", [b"V", "ü".encode(), b"", b""]),
        (bytearray(b"x"), [b"V", b"x", b"", b""]),
        (memoryview(b"x"), [b"V", b"x", b"", b""]),
        (b"", [b"V", b"", b"", b""]),
        (loader.Value("x", ttl=0), [b"V", b"x", b"0", b""]),
        (loader.Value("x", -1), [b"V", b"x", b"-1", b""]),
        (loader.Value("x", -(2**31), flags=2**32 - 1), [b"V", b"x", b"-2147483648", b"4294967295"]),
        (loader.Value("x", 2**31 - 1, flags=1), [b"V", b"x", b"2147483647", b"1"]),
        (loader.Value("x", Index(), flags=Index()), [b"V", b"x", b"7", b"7"]),
        (loader.Value("x", tags=many), [b"V", b"x", b"", b"", *(tag.encode() for tag in many)]),
        (loader.Value("x", tags={"a" * 200}), [b"V", b"x", b"", b"", b"a" * 200]),
        (loader.Value("x", tags=(tag for tag in "ab")), [b"V", b"x", b"", b"", b"a", b"b"]),
        (loader.not_found(), [b"N", b""]),
        (loader.not_found(1), [b"N", b"1"]),
        (loader.not_found(ttl=2**31 - 1), [b"N", b"2147483647"]),
    ):
        assert _answer.parts(result) == parts


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: {"a": 1}, "a value is bytes or str, not dict; for instance json.dumps(value)"),
        (lambda: 7, "a value is bytes or str, not int"),
        (lambda: [b"x"], "a value is bytes or str, not list"),
        (lambda: None, "a loader returned None; return loader.not_found()"),
        (lambda: loader.not_found, "a loader returned the function not_found; return loader.not_found()"),
        (lambda: (x for x in "ab"), "a loader returned a generator"),
        (lambda: loader.Value(None), "a value is bytes or str, not None"),
        (lambda: loader.Value("\ud800"), "surrogates not allowed"),
        (lambda: loader.Value("x", ttl="60"), "ttl is a whole number, not str"),
        (lambda: loader.Value("x", ttl=1.5), "ttl is a whole number, not float; int(1.5)"),
        (lambda: loader.Value("x", ttl=True), "ttl is a whole number, not bool"),
        (lambda: loader.Value("x", ttl=fractions.Fraction(3)), "ttl is a whole number, not Fraction"),
        (lambda: loader.Value("x", ttl=datetime.timedelta(1)), "not timedelta; int(ttl.total_seconds())"),
        (lambda: loader.Value("x", ttl=2**31), "ttl is -2147483648 to 2147483647, not 2147483648"),
        (lambda: loader.Value("x", ttl=-(2**31) - 1), "ttl is -2147483648 to 2147483647, not -2147483649"),
        (lambda: loader.Value("x", flags=2**32), "flags is 0 to 4294967295, not 4294967296"),
        (lambda: loader.Value("x", flags=-1), "flags is 0 to 4294967295, not -1"),
        (lambda: loader.Value("x", flags=None), "flags is a whole number, not None"),
        (lambda: loader.Value("x", flags=False), "flags is a whole number, not bool"),
        (lambda: loader.Value("x", tags="user:1"), "tags is a list, for instance ['user:1'], not str"),
        (lambda: loader.Value("x", tags=None), "tags is a list of str, not None"),
        (lambda: loader.Value("x", tags=["t"] * 9), "a value has at most 8 tags, not 9"),
        (lambda: loader.Value("x", tags=["t" * 201]), "a tag has 1 to 200 bytes, not 201: 'ttt"),
        (lambda: loader.Value("x", tags=["ü" * 101]), "a tag has 1 to 200 bytes, not 202"),
        (lambda: loader.Value("x", tags=[""]), "a tag has 1 to 200 bytes, not 0"),
        (lambda: loader.Value("x", tags=["a b"]), "a tag has no blanks and no control characters: 'a b'"),
        (lambda: loader.Value("x", tags=["a\n"]), "a tag has no blanks"),
        (lambda: loader.Value("x", tags=["a\x7f"]), "a tag has no blanks"),
        (lambda: loader.Value("x", tags=[7]), "a tag is str or bytes, not int: 7"),
        (lambda: loader.not_found(0), "ttl of not_found is 1 to 2147483647, not 0"),
        (lambda: loader.not_found(-5), "ttl of not_found is 1 to 2147483647, not -5"),
        (lambda: loader.not_found("5"), "ttl of not_found is a whole number, not str"),
        (lambda: loader.not_found(2**31), "ttl of not_found is 1 to 2147483647, not 2147483648"),
    ],
)
def test_a_bad_answer_names_the_fix(make, text):
    with pytest.raises((TypeError, ValueError), match=re.escape(text)):
        _answer.parts(make())


def test_results_of_a_batch_by_key_and_in_order():
    jobs = [loader.job(key) for key in ("a", "b", b"\xff", "a")]
    error = KeyError("x")
    assert _answer.spread(jobs, ["1", error, "3", "4"]) == ["1", error, "3", "4"]
    found = _answer.spread(jobs, {"a": "1", b"\xff": "bytes as a key"})
    assert (found[0], found[2], found[3]) == ("1", "bytes as a key", "1")
    assert isinstance(found[1], loader.Error)
    assert str(found[1]) == "the batch returned nothing for the key 'b'; give keys without a value loader.not_found()"
    for wrong, text in (
        (None, "a batch returns a dict by key, or a list in the order of the jobs, not None"),
        ("abcd", "a batch returns a dict by key, or a list in the order of the jobs, not str"),
        (["1"] * 3, "a batch of 4 jobs returned a list of 3; return one for each, or a dict by key"),
        (["1"] * 5, "a batch of 4 jobs returned a list of 5"),
    ):
        with pytest.raises((TypeError, ValueError), match=re.escape(text)):
            _answer.spread(jobs, wrong)


def test_a_limit_out_of_range_or_missing_is_refused():
    for limit in (0, 65536, True, "7"):
        with pytest.raises(ValueError, match="limit is a number from 1 to 65535"):
            loader.batch(limit=limit)
    with pytest.raises(ValueError, match=re.escape("limit is missing: write @loader.batch(limit=100)")):
        loader.batch(load)
    with pytest.raises(TypeError, match="an async def is served by @loader.load"):

        @loader.batch(limit=1)
        async def waiting(jobs):
            pass


def test_an_error_has_its_text_and_says_whether_to_try_again():
    error = loader.Error("the database is down", retryable=True)
    assert (str(error), error.code, error.retryable) == ("the database is down", "error", True)
    assert loader.Error("x").retryable is False
