"""Records what a Django site asks of its cache: `python record_django.py BACKEND SERVER_PORT FILE` with Django and the client library installed, and an empty
memcached at the port. The file, compressed by zstd, has a line for each command: milliseconds, connection, command, key, size and time to live.

The site has pages under `cache_page`, sessions in the cache, `get_or_set`, and users whose three values are deleted together when they change.
"""

import random
import socket
import socketserver
import sys
import threading
import time

import zstandard

BACKEND, SERVER_PORT, FILE = sys.argv[1], int(sys.argv[2]), sys.argv[3]
THREADS, SECONDS, COMPUTES = 10, 9, 0.12
lines, begun = [], time.monotonic()


class Recorder(socketserver.StreamRequestHandler):
    """A connection of the site, and one to the server. It notes commands, and passes on everything."""

    count = 0

    def handle(self):
        Recorder.count += 1
        number = Recorder.count
        server = socket.create_connection(("127.0.0.1", SERVER_PORT))
        threading.Thread(target=self.answers, args=(server,), daemon=True).start()
        while line := self.rfile.readline():
            words = line.decode().split()
            now = round((time.monotonic() - begun) * 1000)
            sends = line
            if words[0] in ("set", "add", "cas"):
                sends += self.rfile.read(int(words[4]) + 2)
                lines.append(f"{now} {number} {words[0]} {words[1]} {words[4]} {words[3]}")
            elif words[0] in ("get", "gets"):
                lines.extend(f"{now} {number} get {key} 0 0" for key in words[1:])
            elif words[0] == "delete":
                lines.append(f"{now} {number} delete {words[1]} 0 0")
            elif words[0] == "touch":
                lines.append(f"{now} {number} touch {words[1]} 0 {words[2]}")
            elif words[0] not in ("quit", "version"):
                raise SystemExit(f"a command that is not recorded: {line}")
            server.sendall(sends)
        server.shutdown(socket.SHUT_RDWR)

    def answers(self, server):
        try:
            while data := server.recv(65536):
                self.wfile.write(data)
        except OSError:
            pass


class Proxy(socketserver.ThreadingTCPServer):
    daemon_threads, allow_reuse_address, request_queue_size = True, True, 100


proxy = Proxy(("127.0.0.1", 0), Recorder)
threading.Thread(target=proxy.serve_forever, daemon=True).start()

import django
from django.conf import settings
from django.core.cache import cache
from django.http import HttpResponse
from django.test import Client
from django.urls import path
from django.views.decorators.cache import cache_page


settings.configure(
    DEBUG=False,
    SECRET_KEY="not a secret",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    TIME_ZONE="UTC",
    MIDDLEWARE=["django.contrib.sessions.middleware.SessionMiddleware"],
    INSTALLED_APPS=["django.contrib.sessions"],
    SESSION_ENGINE="django.contrib.sessions.backends.cache",
    CACHES={
        "default": {
            "BACKEND": f"django.core.cache.backends.memcached.{BACKEND}",
            "LOCATION": f"127.0.0.1:{proxy.server_address[1]}",
            "KEY_PREFIX": "shop",
        }
    },
)
django.setup()


def computed(size):
    time.sleep(COMPUTES * random.uniform(0.8, 1.2))
    return "x" * size


@cache_page(2)
def home(request, page):
    return HttpResponse(computed(2000))


def user(request, user):
    request.session["seen"] = request.session.get("seen", 0) + 1
    parts = [cache.get_or_set(f"user:{user}:{part}", lambda: computed(300), 60) for part in ("name", "cart", "feed")]
    return HttpResponse("".join(parts))


def change(request, user):
    cache.delete_many([f"user:{user}:{part}" for part in ("name", "cart", "feed")])
    return HttpResponse("changed")


urlpatterns = [path("page/<int:page>", home), path("user/<int:user>", user), path("change/<int:user>", change)]


def browse(seed):
    choice = random.Random(seed)
    client = Client()
    while time.monotonic() < begun + SECONDS:
        what = choice.random()
        if what < 0.6:
            client.get(f"/page/{choice.randrange(3)}")
        elif what < 0.95:
            client.get(f"/user/{choice.randrange(6)}")
        else:
            client.get(f"/change/{choice.randrange(6)}")
        time.sleep(0.03)


begun = time.monotonic()
threads = [threading.Thread(target=browse, args=(n,)) for n in range(THREADS)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
with open(FILE, "wb") as f:
    f.write(zstandard.ZstdCompressor(level=19).compress(("\n".join(lines) + "\n").encode()))
print(len(lines), "commands")
