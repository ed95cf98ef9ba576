"""Pages: `cache_page` with tags, headers and leases, in one process and in a site of 8 processes under gunicorn."""

import asyncio
import subprocess
import sys
import threading
import time
import urllib.request

import pytest

pytest.importorskip("django")
pytestmark = pytest.mark.timeout(120)

from django.core.cache import cache as default_cache  # noqa: E402
from django.core.exceptions import ImproperlyConfigured  # noqa: E402
from django.http import HttpResponse  # noqa: E402
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
    assert time.monotonic() - begun < 1, "the lease of the page was kept"


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
        assert time.monotonic() - begun < 1


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
        assert get(view) == "well" and time.monotonic() - begun < 1


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
