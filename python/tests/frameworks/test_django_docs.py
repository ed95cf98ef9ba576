"""The project of docs/python-django.md, in a process of its own."""

import subprocess
import sys

import pages
import pytest
from conftest import started

pytest.importorskip("django")
pytestmark = pytest.mark.timeout(120)

PROGRAM = """
import asyncio, os
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
import django
django.setup()
from django.core.cache import cache
from django.db import connection
from django.test import AsyncClient, Client, override_settings
from shop.models import Product

with connection.schema_editor() as editor:
    editor.create_model(Product)
Product.objects.create(pk=7, name="bolt")
client = Client(raise_request_exception=False)
text = lambda path: client.get(path).content.decode().strip()
assert text("/product/7") == "bolt" and text("/page/7") == "<h1>bolt</h1>" and text("/") == "bolt", [text("/page/7"), text("/")]
assert cache.get("product:7") == "bolt"
Product.objects.filter(pk=7).update(name="nut")
assert text("/product/7") == "bolt" and text("/page/7") == "<h1>bolt</h1>" and text("/") == "bolt"
assert client.get("/rename/7?name=").status_code == 500
assert text("/product/7") == "bolt", "a transaction that was rolled back has invalidated"
assert text("/rename/7?name=screw") == "renamed"
for path, shown in {"/product/7": "screw", "/page/7": "<h1>screw</h1>", "/": "screw"}.items():
    assert text(path) == shown, f"{path} is old: {text(path)}"
Product.objects.filter(pk=7).update(name="pin")
assert text("/page/7") == "<h1>screw</h1>" and text("/") == "screw"
cache.invalidate("products")
assert text("/page/7") == "<h1>pin</h1>" and text("/") == "pin" and text("/product/7") == "pin"
assert text("/rename/8?name=washer") == "renamed"
assert text("/") == "pin washer", "a new product is not shown: " + text("/")
assert text("/rename/7?name=screw") == "renamed"
assert text("/") == "screw washer" and text("/page/8") == "<h1>washer</h1>"
assert asyncio.run(AsyncClient().get("/async/7")).content == b"screw"
from serde import JsonSerde
with override_settings(CACHES={"default": {**django.conf.settings.CACHES["default"], "OPTIONS": {"serde": JsonSerde()}}}):
    cache.set("json", [1])
    assert cache.get("json") == [1] and cache.get("product:7") is None
print("well")
"""


def test_program_of_the_page(environment, tmp_path):
    server = started("rules", rules=pages.rules("python-django.md"))
    try:
        names = pages.write("python-django.md", tmp_path, server.address)
        assert names == ["settings.py", "shop/models.py", "shop/views.py", "shop/templates/product.html", "shop/templates/index.html", "urls.py", "serde.py"]
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=100
        )
        assert done.stdout.endswith("well\n"), done.stdout + done.stderr[-3000:]
    finally:
        server.stop()
