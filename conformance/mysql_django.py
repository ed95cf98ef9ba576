"""An application of Django on MySQL or MariaDB: what a request sees whose transaction began before a change, by Django's own way of
beginning one.

    python mysql_django.py SOCKET LEVEL CACHE_PORT

LEVEL is that of `isolation_level`, or "" for Django's own. Prints the level, what was read, and what is in the cache afterwards."""

import sys

import pymysql

# Django asks for mysqlclient, and takes what is called so.
pymysql.version_info = (2, 2, 7, "final", 0)
pymysql.install_as_MySQLdb()

import django
from django.conf import settings

socket, level, port = sys.argv[1:]
database = {"ENGINE": "django.db.backends.mysql", "NAME": "shop", "USER": "root", "HOST": socket}
if level:
    database["OPTIONS"] = {"isolation_level": level}
settings.configure(
    DATABASES={"default": database},
    CACHES={"default": {
        "BACKEND": "django.core.cache.backends.memcached.PyMemcacheCache", "LOCATION": f"127.0.0.1:{port}", "KEY_PREFIX": "",
        "KEY_FUNCTION": lambda key, prefix, version: key, "OPTIONS": {"no_delay": True},
    }},
)
django.setup()

from django.core.cache import cache
from django.db import connection, transaction


def changed_by_another():
    """As another process does, and when the cache has obeyed it."""
    print("change", flush=True)
    sys.stdin.readline()


with transaction.atomic(), connection.cursor() as cursor:
    cursor.execute("SELECT @@SESSION.transaction_isolation" if not connection.mysql_is_mariadb else "SELECT @@SESSION.tx_isolation")
    print(cursor.fetchone()[0], flush=True)
    cursor.execute("SELECT number FROM epoch")
    changed_by_another()
    assert cache.get("page:50") is None
    cursor.execute("SELECT version FROM items WHERE id = 50")
    version = cursor.fetchone()[0]
    cache.set("page:50", str(version))
print(version, cache.get("page:50"), flush=True)
