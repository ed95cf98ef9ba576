"""Pages: `cache_page` with tags, headers and leases, in one process and in a site of 8 processes under gunicorn."""

import asyncio
import subprocess
import sys
import threading
import time
import urllib.request

import pytest
from conftest import started

pytest.importorskip("django")
pytestmark = pytest.mark.timeout(120)

from django.core.cache import cache as default_cache  # noqa: E402
from django.core.exceptions import ImproperlyConfigured, PermissionDenied  # noqa: E402
from django.http import Http404, HttpResponse  # noqa: E402
from django.template import engines  # noqa: E402
from django.template.response import TemplateResponse  # noqa: E402
from django.test import RequestFactory, override_settings  # noqa: E402
from django_settings import use  # noqa: E402
from servers import free_port, until  # noqa: E402

from cattlegrid.django import cache_page  # noqa: E402

REQUESTS = RequestFactory()


@pytest.fixture
def cache(ruled):
    with use(ruled.address) as cache:
        yield cache


def counting(**options):
    """A view that counts its calls, which are its content."""
    calls = []

    @cache_page(60, **options)
    def view(request, *args, **kwargs):
        calls.append(request)
        return HttpResponse(str(len(calls)))

    view.calls = calls
    return view


def get(view, path="/", *args, **more):
    kwargs = more.pop("kwargs", {})
    return view(REQUESTS.get(path, **more), *args, **kwargs).content.decode()


def test_tags(cache):
    view = counting(tags=["page:{pk}", "pages"])
    assert [get(view, "/1", kwargs={"pk": 1}), get(view, "/2", kwargs={"pk": 2}), get(view, "/1", kwargs={"pk": 1})] == ["1", "2", "1"]
    cache.invalidate("page:1")
    assert [get(view, "/1", kwargs={"pk": 1}), get(view, "/2", kwargs={"pk": 2})] == ["3", "2"]
    cache.invalidate("pages", soft=True)
    assert get(view, "/2", kwargs={"pk": 2}) == "4"

    by_function = counting(tags=lambda request, response, **kwargs: [f"size:{len(response.content)}", f"path:{request.path}"])
    assert get(by_function, "/f") == "1"
    cache.invalidate("path:/f")
    assert get(by_function, "/f") == "2"
    cache.invalidate("size:1")
    assert get(by_function, "/f") == "3"


def test_headers_that_a_page_varies_on(cache):
    calls = []

    @cache_page(60, tags=["t"])
    def view(request):
        calls.append(1)
        return HttpResponse(f"{request.headers.get('X-Language')} {len(calls)}", headers={"Vary": "X-Language"})

    def ask(language):
        return view(REQUESTS.get("/", HTTP_X_LANGUAGE=language)).content.decode()

    assert [ask("de"), ask("fr"), ask("de"), ask("fr")] == ["de 1", "fr 2", "de 1", "fr 2"]
    cache.invalidate("t")
    assert [ask("fr"), ask("de"), ask("fr")] == ["fr 3", "de 4", "fr 3"]


def test_cache_headers_are_those_of_django(cache):
    view = counting()
    response = view(REQUESTS.get("/"))
    assert response["Cache-Control"] == "max-age=60" and response["Expires"]
    assert view(REQUESTS.get("/"))["Expires"] == response["Expires"]


def test_methods(cache):
    view = counting()
    assert view(REQUESTS.post("/")).content == b"1"
    assert view(REQUESTS.get("/")).content == b"2"
    assert view(REQUESTS.head("/")).content == b"2"
    assert view(REQUESTS.post("/")).content == b"3"
    assert view(REQUESTS.head("/other")).content == b"4"
    assert view(REQUESTS.head("/other")).content == b"4"
    begun = time.monotonic()
    assert view(REQUESTS.get("/other")).content == b"5"
    assert time.monotonic() - begun < 3.5, "the lease of the page was kept"


@pytest.mark.parametrize("change", ["private", "cookie", "error", "stream"])
def test_what_is_not_cached_is_not_waited_for(server, change):
    from django.http import StreamingHttpResponse

    with use(server.address):
        running = []
        most = []

        @cache_page(60)
        def view(request):
            running.append(1)
            most.append(len(running))
            time.sleep(0.2)
            running.pop()
            if change == "stream":
                return StreamingHttpResponse(["a"])
            response = HttpResponse("a", status=404 if change == "error" else 200)
            if change == "private":
                response["Cache-Control"] = "private"
            if change == "cookie":
                response.set_cookie("a", "b")
                response["Vary"] = "Cookie"
            return response

        view(REQUESTS.get("/"))
        begun = time.monotonic()
        threads = [threading.Thread(target=lambda: view(REQUESTS.get("/"))) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(most) == 7 and max(most) > 2, most
        assert time.monotonic() - begun < 3.5


def test_a_view_that_fails(server):
    with use(server.address):
        fails = [True]

        @cache_page(60)
        def view(request):
            if fails:
                fails.pop()
                raise ZeroDivisionError
            return HttpResponse("well")

        with pytest.raises(ZeroDivisionError):
            view(REQUESTS.get("/"))
        begun = time.monotonic()
        assert get(view) == "well" and time.monotonic() - begun < 3.5


def at_once(view, number=12, path="/", **more):
    """The answers to requests at the same time, and how long they took."""
    answers = []

    def request():
        try:
            answers.append(view(REQUESTS.get(path, **more)).status_code)
        except Exception as error:
            answers.append(type(error).__name__)

    threads = [threading.Thread(target=request) for _ in range(number)]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == number
    return answers, time.monotonic() - begun


def refuse(error):
    raise error


ENDS = {
    "404": lambda: HttpResponse("no", status=404),
    "302": lambda: HttpResponse("no", status=302),
    "500": lambda: HttpResponse("no", status=500),
    "Http404": lambda: refuse(Http404()),
    "PermissionDenied": lambda: refuse(PermissionDenied()),
    "RuntimeError": lambda: refuse(RuntimeError()),
    "rendering": lambda: TemplateResponse(REQUESTS.get("/"), engines["django"].from_string("{{ fails }}"), {"fails": lambda: 1 / 0}),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("knows", [False, True])
def test_requests_of_a_page_that_cannot_be_kept_do_not_run_one_after_the_other(server, end, knows):
    """`knows`: the names of the headers on which the page varies are in the cache."""
    with use(server.address):
        calls, well = [], [1] * knows

        @cache_page(60)
        def view(request):
            calls.append(1)
            if well:
                well.pop()
                return HttpResponse("well", headers={"Vary": "X-Number"})
            time.sleep(0.5)  # one after the other they would take 6 s
            response = ENDS[end]()
            return response.render() if end == "rendering" else response

        if knows:
            assert get(view, HTTP_X_NUMBER="1") == "well"
        before = len(calls)
        answers, took = at_once(view)
        assert len(calls) == before + 12 and len(set(answers)) == 1
        assert took < 4, took
        answers, took = at_once(view)
        assert len(calls) == before + 24 and took < 4, took


def test_a_failure_is_not_remembered(server):
    """The next request of a page whose view has failed stores it; a 404 is passed for some seconds, but not beyond an invalidation."""
    with use(server.address) as cache:
        fails = [1]
        view_calls = []

        @cache_page(60)
        def view(request):
            view_calls.append(1)
            if fails:
                fails.pop()
                raise RuntimeError
            return HttpResponse("well")

        with pytest.raises(RuntimeError):
            get(view)
        assert [get(view), get(view)] == ["well", "well"] and len(view_calls) == 2
        if server.kind != "rules":
            return
        there = []
        made = []

        @cache_page(60, tags=["t"])
        def other(request):
            made.append(1)
            if not there:
                raise Http404
            return HttpResponse("there")

        with pytest.raises(Http404):
            get(other, "/other")
        there.append(1)
        cache.invalidate("t")
        assert [get(other, "/other"), get(other, "/other")] == ["there", "there"] and len(made) == 2


@pytest.mark.parametrize("kind", ["plain", "lazy", "async"])
def test_a_timeout_of_0_switches_caching_off(server, kind):
    with use(server.address):
        calls = []
        if kind == "async":

            @cache_page(0)
            async def view(request):
                calls.append(1)
                return HttpResponse("a")

            responses = [asyncio.run(view(REQUESTS.get("/"))) for _ in range(2)]
        else:

            @cache_page(0)
            def view(request):
                calls.append(1)
                time.sleep(0.3)
                return TemplateResponse(request, engines["django"].from_string("a")) if kind == "lazy" else HttpResponse("a")

            answers, took = at_once(view)
            assert answers == [200] * 12 and len(calls) == 12 and took < 3
            responses = [view(REQUESTS.get("/")), view(REQUESTS.get("/"))]
            responses = [response.render() if kind == "lazy" else response for response in responses]
        assert [response["Cache-Control"] for response in responses] == ["max-age=0"] * 2
        assert len(calls) in (2, 14)


def test_nested_decorators_do_not_wait_for_each_other(server):
    with use(server.address):
        calls = []

        @cache_page(60)
        @cache_page(30)
        def view(request):
            calls.append(1)
            return HttpResponse(str(len(calls)))

        begun = time.monotonic()
        assert [get(view), get(view), get(view, "/other"), get(view, "/other")] == ["1", "1", "2", "2"]
        assert time.monotonic() - begun < 3.5


def test_a_lazy_response_whose_rendering_fails_frees_its_page(server):
    with use(server.address):
        fails = [1]

        def text():
            if fails:
                fails.pop()
                raise ZeroDivisionError
            return "well"

        @cache_page(60)
        def view(request):
            return TemplateResponse(request, engines["django"].from_string("{{ text }}"), {"text": text})

        response = view(REQUESTS.get("/"))  # which stays: Django keeps it for its report
        with pytest.raises(ZeroDivisionError):
            response.render()
        begun = time.monotonic()
        assert view(REQUESTS.get("/")).render().content == b"well"
        assert time.monotonic() - begun < 3.5
        assert view(REQUESTS.get("/")).content == b"well"


@pytest.fixture(params=["no rule", "rule"])
def tagging(request):
    """Tags, with and without a rule for pages."""
    rule = '[[rule]]\nmatch = "views.decorators.cache.{page*}"\nhold = "4s"\ngrace = "30s"\n' if request.param == "rule" else ""
    server = started("rules", rules=f'[server]\nprefixes = [":1:"]\n{rule}')
    with use(server.address) as cache:
        yield cache
    server.stop()


@pytest.mark.parametrize("before", ["cold", "names", "pass", "wait"])
def test_a_page_from_before_an_invalidation_is_not_stored(tagging, before):
    """Its view runs while its tag is invalidated: of a page that was never there, that has gone, that is passed, or for which another
    request has waited."""
    data, running, go, slow = ["old"], threading.Semaphore(0), threading.Event(), [0]

    @cache_page(60, tags=["t"], compute_time=10, wait=0.3)
    def view(request):
        text = data[0]
        if slow[0]:
            slow[0] -= 1
            running.release()
            assert go.wait(20)
        response = HttpResponse(text, headers={"Vary": "Cookie"})
        if not request.COOKIES and before == "pass":
            response.set_cookie("visitor", "1")
        return response

    def visit():
        request = REQUESTS.get("/")
        request.COOKIES["visitor"] = "1"
        return view(request).content.decode()

    if before == "names":
        visit()
        tagging.invalidate("t")
    if before == "pass":
        view(REQUESTS.get("/"))
    slow[0] = number = 2 if before == "wait" else 1
    threads = [threading.Thread(target=visit) for _ in range(number)]
    for thread in threads:
        thread.start()
        assert running.acquire(timeout=10)
    data[0] = "new"
    tagging.invalidate("t")
    go.set()
    for thread in threads:
        thread.join()
    assert [visit(), visit()] == ["new", "new"]


def test_tags_of_one_text_and_with_blanks(cache):
    view = counting(tags="name:{name}")
    assert [get(view, kwargs={"name": "a b"}) for _ in range(2)] == ["1", "1"]
    cache.invalidate("name:a%20b")
    assert get(view, kwargs={"name": "a b"}) == "2"
    by_function = counting(tags=lambda request, response: "all")
    assert [get(by_function, "/f"), get(by_function, "/f")] == ["1", "1"]
    cache.invalidate("all")
    assert get(by_function, "/f") == "2"


def test_template_responses(cache):
    calls = []

    @cache_page(60, tags=["t"])
    def view(request):
        calls.append(1)
        return TemplateResponse(request, engines["django"].from_string("{{ n }}"), {"n": len(calls)})

    def ask():
        response = view(REQUESTS.get("/"))
        return (response.render() if hasattr(response, "render") and not response.is_rendered else response).content

    assert [ask(), ask()] == [b"1", b"1"]
    cache.invalidate("t")
    assert [ask(), ask()] == [b"2", b"2"]


def test_asynchronous_views(cache):
    calls = []

    @cache_page(60, tags=["t"])
    async def view(request):
        calls.append(1)
        await asyncio.sleep(0.1)
        return HttpResponse(str(len(calls)))

    async def main():
        return [response.content for response in await asyncio.gather(*(view(REQUESTS.get("/")) for _ in range(8)))]

    assert asyncio.run(main()) == [b"1"] * 8
    cache.invalidate("t")
    assert asyncio.run(main()) == [b"2"] * 8


def test_another_cache(cache):
    with override_settings(CACHES={"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}):
        view = counting()
        assert [get(view), get(view)] == ["1", "1"]
        with pytest.raises(ImproperlyConfigured):
            get(counting(tags=["t"]), "/tagged")
        default_cache.clear()


@pytest.fixture
def site(server, environment, tmp_path):
    """The address of a site of 8 processes of 8 threads, and its computations."""
    pytest.importorskip("gunicorn")
    port, counts = free_port(), tmp_path / "counts"
    counts.touch()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "gunicorn", "--bind", f"127.0.0.1:{port}", "--workers", "8", "--threads", "8", "--preload"),
            *("--graceful-timeout", "1"),
            *("--log-level", "error", "django_site:application"),
        ],
        env={**environment, "CACHE": server.address, "COUNTS": str(counts), "COMPUTE": "0.3", **({"TAGS": "1"} if server.kind == "rules" else {})},
    )
    address = f"http://127.0.0.1:{port}"

    def answers():
        try:
            return bool(ask(f"{address}/value/first"))
        except OSError:
            return False

    try:
        until(answers, 60, "the site answers")
        yield address, lambda: counts.read_text().splitlines()
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def ask(url):
    with urllib.request.urlopen(url, timeout=30) as response:
        return response.read().decode()


def crowd(url, number=64):
    answers = []

    def request():
        try:
            answers.append(ask(url))
        except Exception as error:
            answers.append(repr(error))

    threads = [threading.Thread(target=request) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_eight_processes_compute_once(site, server):
    address, counts = site
    for kind in ("value", "page", "fragment"):
        answers = crowd(f"{address}/{kind}/1")
        assert counts().count(f"{kind} 1") == 1, kind
        assert len(set(answers)) == 1 and f"{kind} 1 of process" in answers[0], answers[:2]
    # Servers count whole seconds: it is there for one at least, which a crowd does not need.
    crowd(f"{address}/short/1", 16)
    time.sleep(3.2)
    crowd(f"{address}/short/1", 16)
    assert counts().count("short 1") == 2, "once for each time that it expired"
    begun = time.monotonic()
    crowd(f"{address}/private/1", 16)
    assert counts().count("private 1") == 16 and time.monotonic() - begun < 5
    if server.kind == "rules":
        ask(f"{address}/invalidate/page:1")
        assert len(set(crowd(f"{address}/page/1"))) == 1
        assert counts().count("page 1") == 2
