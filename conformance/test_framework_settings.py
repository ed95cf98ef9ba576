"""The settings blocks of docs/frameworks.md and README.md, as they stand there, with the real clients: only the port of the server is another."""

import json
import os
import re
import subprocess
import sys

import pytest
from crowd import write_rules
from harness import ROOT, tool
from test_node import NODE

pytestmark = pytest.mark.only_cattlegrid

PAGE = (ROOT / "docs" / "frameworks.md").read_text()
README = (ROOT / "README.md").read_text()


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def block(language, first):
    """The one that begins with this line."""
    found = [one for one in blocks(PAGE, language) if one.removeprefix("<?php\n").split("\n", 1)[0].startswith(first)]
    assert len(found) == 1, f"{first}: {len(found)} blocks"
    return found[0]


def served(start, open_dir, rules):
    return start("--config", write_rules(open_dir, rules))


def at(text, server):
    """A block for the server under test."""
    out = text.replace("11211", str(server.port))
    assert out != text
    return out


def run(command, **more):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def rule_of(server, key):
    """The pattern of a key's rule, or None."""
    with server.raw() as c:
        found = json.loads(c.get(b"@why:" + key.encode()))
    return (found["rule"] or {}).get("match")


@pytest.mark.parametrize("text", blocks(PAGE, "toml") + blocks(README, "toml"), ids=lambda text: text.split("\n")[0])
def test_rule_files_are_right(binary, open_dir, text):
    path = write_rules(open_dir, text)
    said = subprocess.run([binary, "check", path], capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stderr


def test_no_block_is_forgotten():
    """Each block is run by a test below, or the page says that it is not."""
    languages = re.findall(r"^```(\w+)$", PAGE, re.M)
    assert sorted(set(languages)) == ["go", "java", "js", "php", "python", "ruby", "toml", "yaml"]
    counts = {language: languages.count(language) for language in set(languages)}
    assert {k: v for k, v in counts.items() if k != "toml"} == {"go": 1, "java": 1, "js": 2, "php": 2, "python": 2, "ruby": 1, "yaml": 1}
    assert "not run by a test" in block("yaml", "#")
    assert "Not run by a test" in PAGE.split("## Java and Spring")[1]


DJANGO = """
import sys
exec(compile(sys.stdin.read(), "settings.py", "exec"), settings := {})
if len(sys.argv) > 1:
    cache = settings["CACHES"]["default"]
    cache.update(BACKEND="django.core.cache.backends.memcached.PyLibMCCache", OPTIONS={"binary": True, "behaviors": {"tcp_nodelay": True}})
import django
from django.conf import settings as made
made.configure(CACHES=settings["CACHES"], SECRET_KEY="x", ALLOWED_HOSTS=["*"])
django.setup()
from django.core.cache import cache
from django.core.cache.utils import make_template_fragment_key
from django.http import HttpResponse
from django.template import Context, Engine
from django.test import RequestFactory
from django.views.decorators.cache import cache_page
print(cache.get_or_set("page:42", "one", 60), cache.get("page:42"))
cache.delete("@tag:pages")
print(cache.get("page:42"))
computed = []
def page(request):
    computed.append(1)
    return HttpResponse("page")
for _ in range(3):
    cache_page(60, key_prefix="catalogue")(page)(RequestFactory().get("/list"))
print(len(computed))
cache.delete("@tag:pages-of:catalogue")
cache_page(60, key_prefix="catalogue")(page)(RequestFactory().get("/list"))
print(len(computed))
template = Engine(builtins=["django.templatetags.cache"]).from_string("{% cache 60 sidebar n %}{{ text }}{% endcache %}")
show = lambda text: template.render(Context({"n": 1, "text": text}))
print(show("one"), show("two"))
cache.delete("@tag:fragments:sidebar")
print(show("three"))
print(cache.make_key(make_template_fragment_key("sidebar", [1])))
"""


@pytest.mark.parametrize("backend", ["PyMemcacheCache", "PyLibMCCache"])
def test_django(start, open_dir, backend):
    server = served(start, open_dir, block("toml", "# Django"))
    settings = at(block("python", "# settings.py"), server)
    lines = run([sys.executable, "-c", DJANGO, *(["pylibmc"] if backend == "PyLibMCCache" else [])], input=settings)
    assert lines[:6] == ["one one", "None", "1", "2", "one one", "three"]
    assert rule_of(server, lines[6]) == "template.cache.{name}.{hash}"
    assert rule_of(server, ":1:django.contrib.sessions.cacheabc") is None


def test_django_of_the_readme():
    text = next(text for text in blocks(README, "python") if "CACHES" in text)
    exec(text, made := {})
    assert made["CACHES"]["default"]["LOCATION"] == "127.0.0.1:11211"
    assert 'prefixes = [":1:"]' in text


def test_dogpile(start, open_dir):
    server = served(start, open_dir, blocks(README, "toml")[0])
    exec(at(block("python", "# cache.py"), server), made := {})
    region = made["region"]
    assert region.get_or_create("page:42", lambda: "one") == region.get_or_create("page:42", lambda: "two") == "one"
    with server.raw() as c:
        c.send(b"delete @tag:pages\r\n")
        assert c.line() == b"DELETED"
        assert 55 <= (c.ttl(b"page:42") or 60) <= 60
    assert region.get_or_create("page:42", lambda: "three") == "three"


RAILS = """
require 'dalli'
require 'active_support'
require 'active_support/cache'
require 'active_support/cache/mem_cache_store'
config = Struct.new(:cache_store).new
eval($stdin.read)
cache = ActiveSupport::Cache.lookup_store(*config.cache_store)
fetch = ->(text) { cache.fetch("page:42", expires_in: 60, race_condition_ttl: 10) { text } }
puts fetch.call('one'), fetch.call('two')
cache.delete('@tag:pages')
puts fetch.call('three')
"""


@pytest.mark.parametrize("text", [block("ruby", "# config")] + blocks(README, "ruby"), ids=["page", "readme"])
def test_rails(start, open_dir, text):
    server = served(start, open_dir, block("toml", "# Rails"))
    text = re.sub(r"^# in .*\n|^# Rails.*\n", "", text, flags=re.M)
    assert run([tool("ruby"), "-W0", "-e", RAILS], input=at(text, server)) == ["one", "one", "three"]
    assert rule_of(server, "app:page:42") == "page:{id}"


PHP = """
$cache->set('page:42', 'one', 60);
echo $cache->get('page:42'), "\\n";
$cache->delete('@tag:pages');
var_dump($cache->get('page:42'));
"""

LARAVEL = """<?php
require '/usr/share/php/Illuminate/Cache/autoload.php';
$config = require $argv[1];
$store = $config['stores'][$config['default']];
$client = (new Illuminate\\Cache\\MemcachedConnector())->connect($store['servers']);
$cache = new Illuminate\\Cache\\Repository(new Illuminate\\Cache\\MemcachedStore($client, $config['prefix']));
foreach (['one', 'two'] as $text) {
    echo $cache->remember('page:42', 60, fn () => $text), "\\n";
}
$cache->forget('@tag:pages');
echo $cache->remember('page:42', 60, fn () => 'three'), "\\n";
"""

SYMFONY = """<?php
require '/usr/share/php/Symfony/Component/Cache/autoload.php';
use Symfony\\Component\\Cache\\Adapter\\MemcachedAdapter;
$client = MemcachedAdapter::createConnection($argv[1]);
$cache = new MemcachedAdapter($client, 'app');
$get = fn ($text) => $cache->get('page.42', function ($item) use ($text) { $item->expiresAfter(60); return $text; });
echo $get('one'), "\\n", $get('two'), "\\n";
$client->delete('app:@tag:pages');
echo $get('three'), "\\n";
"""


@pytest.mark.parametrize("text", [block("php", "// cache.php")] + blocks(README, "php"), ids=["page", "readme"])
def test_php(start, open_dir, text):
    server = served(start, open_dir, block("toml", "# PHP"))
    assert run([tool("php"), "-r", at(text, server).removeprefix("<?php\n") + PHP]) == ["one", "bool(false)"]
    assert rule_of(server, "app:page:42") == "page:{id}"


def test_laravel_and_symfony(start, open_dir):
    server = served(start, open_dir, block("toml", "# PHP"))
    for name, text in (("config.php", at(block("php", "// config/cache.php"), server)), ("laravel.php", LARAVEL), ("symfony.php", SYMFONY)):
        with open(os.path.join(open_dir, name), "w") as file:
            file.write(text)
    php = tool("php")
    assert run([php, os.path.join(open_dir, "laravel.php"), os.path.join(open_dir, "config.php")]) == ["one", "one", "three"]
    assert rule_of(server, "laravel_cache:page:42") == "page:{id}"
    address = at(re.search(r"'(memcached://[^']*)'", block("yaml", "#")).group(1), server)
    assert run([php, os.path.join(open_dir, "symfony.php"), address]) == ["one", "one", "three"]
    assert int(server.stats("rules")["2:leases"]) > 0


@pytest.mark.parametrize("first, delete", [("// memjs.js", "delete"), ("// memcached.js", "del")])
def test_node(start, open_dir, first, delete):
    server = served(start, open_dir, blocks(README, "toml")[0])
    text = at(block("js", first), server)
    calls = """
const call = (name, ...given) => new Promise((done, fail) => cache[name](...given, (error, got) => (error ? fail(error) : done(got))));
(async () => {
  await call('set', 'page:42', 'one', LIFE);
  const show = (got) => console.log(String(got && got.value !== undefined ? got.value : got));
  show(await call('get', 'page:42'));
  await call('DELETE', '@tag:pages');
  show(await call('get', 'page:42'));
  process.exit(0);
})();
""".replace("DELETE", delete).replace("LIFE", "{ expires: 60 }" if delete == "delete" else "60")
    assert run([tool("node"), "--no-deprecation", "-e", text + calls], cwd=NODE) in (["one", "null"], ["one", "undefined"])


@pytest.mark.parametrize("text", [block("go", "// main.go")], ids=["page"])
def test_go(start, open_dir, text):
    server = served(start, open_dir, block("toml", "# Go"))
    path = os.path.join(open_dir, "main.go")
    with open(path, "w") as file:
        file.write(at(text, server))
    env = dict(os.environ, GOPATH="/usr/share/gocode", GO111MODULE="off", GOCACHE=os.path.join(open_dir, "cache"))
    for _ in range(2):
        assert run([tool("go"), "run", path], env=env) == ["<h1>42</h1> <nil>"]
    assert server.stats()["get_hits"] == "1"


TAGGED = '[[rule]]\nmatch = "page:{id}"\ntags_in_value = true\n[[rule]]\nmatch = ":1:page:{id}"\ntags_in_value = true\n'
TAGGED += '[[rule]]\nmatch = ":1:template.cache.{name}.{hash}"\ntags_in_value = true\n[[rule]]\nmatch = "app:page:{id}"\ntags_in_value = true\n'

DJANGO_TAGGED = """
import sys
import django
from django.conf import settings
settings.configure(CACHES={"default": {"BACKEND": "django.core.cache.backends.memcached." + sys.argv[1], "LOCATION": sys.argv[2]}}, SECRET_KEY="x")
django.setup()
from django.core.cache import cache
from django.template import Context, Engine
cache.set("page:42", "@tags:user:7\\nthe page", 60)
print(cache.get("page:42"))
template = Engine(builtins=["django.templatetags.cache"]).from_string("{% cache 60 sidebar %}@tags:user:7\\n{{ text }}{% endcache %}")
for text in ("one", "two"):
    print(template.render(Context({"text": text})).split("\\n")[-1])
import pymemcache
host, port = sys.argv[2].split(":")
pymemcache.Client((host, int(port)), default_noreply=False).delete("@tag:user:7")
print(cache.get("page:42"))
print(template.render(Context({"text": "three"})).split("\\n")[-1])
"""


@pytest.mark.parametrize("backend, fragment", [("PyMemcacheCache", "one"), ("PyLibMCCache", "three")])
def test_tags_in_values_of_django(start, open_dir, backend, fragment):
    """A fragment is text to one backend and a pickle to the other, as the page says."""
    server = served(start, open_dir, TAGGED)
    lines = run([sys.executable, "-c", DJANGO_TAGGED, backend, server.address])
    assert lines == ["the page", "one", "one", "None", fragment]


PHP_TAGGED = "$c = new Memcached(); $c->addServer('127.0.0.1', 11211); $c->set('page:42', \"@tags:user:7\\nthe page\", 60); echo $c->get('page:42');"
LARAVEL_TAGGED = """require '/usr/share/php/Illuminate/Cache/autoload.php';
$c = new Memcached(); $c->addServer('127.0.0.1', 11211);
$l = new Illuminate\\Cache\\Repository(new Illuminate\\Cache\\MemcachedStore($c, ''));
$l->put('page:42', "@tags:user:7\\nthe page", 60); echo $l->get('page:42');
"""
RAILS_TAGGED = """require 'active_support'; require 'active_support/cache'; require 'active_support/cache/mem_cache_store'
c = ActiveSupport::Cache::MemCacheStore.new('127.0.0.1:11211', namespace: 'app')
c.write('page:42', "@tags:user:7\\nthe page", raw: true, expires_in: 60); print c.read('page:42', raw: true)
"""
MEMJS_TAGGED = """const c = require('memjs').Client.create('127.0.0.1:11211');
c.set('page:42', '@tags:user:7\\nthe page', {}).then(() => c.get('page:42')).then(({ value }) => { process.stdout.write(String(value)); c.close(); });
"""
MEMCACHED_TAGGED = """const c = new (require('memcached'))('127.0.0.1:11211');
c.set('page:42', '@tags:user:7\\nthe page', 60, () => c.get('page:42', (error, value) => { process.stdout.write(value); c.end(); }));
"""


@pytest.mark.parametrize(
    "command, text, key, tag",
    [
        (("php", "-r"), PHP_TAGGED, b"page:42", b"user:7"),
        (("php", "-r"), LARAVEL_TAGGED, b"page:42", b"user:7"),
        (("ruby", "-W0", "-e"), RAILS_TAGGED, b"app:page:42", b"user:7"),
        (("node", "--no-deprecation", "-e"), MEMJS_TAGGED, b"page:42", b"user:7"),
        # This client puts a backslash before each line break.
        (("node", "--no-deprecation", "-e"), MEMCACHED_TAGGED, b"page:42", b"user:7"),
    ],
    ids=["php", "laravel", "rails", "memjs", "memcached"],
)
def test_tags_in_values(start, open_dir, command, text, key, tag):
    server = served(start, open_dir, TAGGED)
    assert run([tool(command[0]), *command[1:], at(text, server)], cwd=NODE) == ["the page"]
    with server.raw() as c:
        assert c.get(key) == b"the page"
        c.send(b"delete @tag:%s\r\n" % tag)
        assert c.line() == b"DELETED"
        assert c.get(key) is None
