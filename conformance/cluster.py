"""`just cluster`: three etcd, three nodes, a PostgreSQL and a shop, on loopback. It prints what it does, and ends by itself.

    python cluster.py --server-bin ../target/fast/cattlegrid --seconds 15
"""

import argparse
import pathlib
import shutil
import subprocess
import tempfile
import threading
import time

import pymemcache.client.hash

from database import Database
from etcds import Etcd
from harness import Server, wait_until

RULES = """
[server]
node = "shop-{number}"

[[rule]]
match = "page:{{user}}:{{n}}"
hold = "400ms"
owner = "connection"
tags = ["user:{{user}}"]

[follow.bumps]
servers = [{servers}]
prefix = "/cattlegrid/shop"

[follow.shop]
url = "postgres://postgres@127.0.0.1:{database}/postgres"

[[follow.shop.table]]
table = "public.users"
bump = ["user:{{id}}"]
"""

USERS, PAGES = 10, 30


class Shop:
    """Web processes of a shop: each reads pages through a client that spreads keys over the nodes."""

    def __init__(self, ports, database):
        self.ports, self.database = ports, database
        self.stop, self.hits, self.computed, self.oldest = threading.Event(), 0, 0, 0.0
        # The number in each user's name, and since when it is certainly in the row.
        self.names = {user: (0, 0.0) for user in range(1, USERS + 1)}

    def client(self):
        servers = [("127.0.0.1", port) for port in self.ports]
        return pymemcache.client.hash.HashClient(servers, timeout=5, default_noreply=False)

    def name(self, connection, user):
        return connection.execute("SELECT name FROM users WHERE id = %s", (user,)).fetchone()[0]

    def browse(self, seed):
        client = self.client()
        with self.database.connect() as connection:
            turn = seed
            while not self.stop.is_set():
                turn += 7
                user, n = turn % USERS + 1, turn // USERS % PAGES
                number, since = self.names[user]
                asked = time.monotonic()
                page = client.get(f"page:{user}:{n}")
                if page is None:
                    self.computed += 1
                    client.set(f"page:{user}:{n}", self.name(connection, user))
                else:
                    self.hits += 1
                    # Older than the row: for how long. It may be newer than what was noted of the row.
                    if int(page.split()[1]) < number and self.names[user] == (number, since):
                        self.oldest = max(self.oldest, asked - since)

    def rename(self, pause):
        """A console, which knows of no cache."""
        number = 0
        with self.database.connect() as connection:
            while not self.stop.wait(pause):
                number += 1
                user = number % USERS + 1
                connection.execute("UPDATE users SET name = %s WHERE id = %s", (f"name {number}", user))
                self.names[user] = (number, time.monotonic())

    def pages(self, user):
        client = self.client()
        return sum(client.get(f"page:{user}:{n}") is not None for n in range(PAGES))


def run(options, etcd, database, servers, folder):
    places = ", ".join(f'"{own}"' for own in etcd.endpoints)
    for number in range(3):
        file = folder / f"shop-{number}.toml"
        file.write_text(RULES.format(number=number + 1, servers=places, database=database.port))
        servers.append(Server(options.server_bin, "cattlegrid", ["--config", str(file)]))
    for server in servers:
        def ready(server=server):
            said = server.stats("follow")
            return said.get("bumps:state") == said.get("shop:state") == "confirmed" and said["bumps:nodes"] == "3"
        wait_until("the node is confirmed", ready, 60)
    print(f"etcd: {' '.join(etcd.endpoints)}\ndatabase: {database.url}\nrule files: {folder}\n", flush=True)
    table = [options.server_bin, "nodes", f"127.0.0.1:{servers[0].port}"]
    print(subprocess.run(table, check=True, capture_output=True, text=True).stdout, flush=True)

    shop = Shop([server.port for server in servers], database)
    client = shop.client()
    for user in (1, 2):
        for n in range(PAGES):
            client.get(f"page:{user}:{n}")
            client.set(f"page:{user}:{n}", "name 0")
    print(f"pages of user 1: {shop.pages(1)}, of user 2: {shop.pages(2)}")
    client.delete("@tag:user:1")
    wait_until("no page stays", lambda: shop.pages(1) == 0)
    print(f"delete @tag:user:1, sent once: {shop.pages(1)} and {shop.pages(2)}")
    database.sql("UPDATE users SET name = 'other' WHERE id = 2", "UPDATE users SET name = 'name 0' WHERE id = 2")
    wait_until("no page stays", lambda: shop.pages(2) == 0)
    print(f"UPDATE of user 2 in the database: {shop.pages(1)} and {shop.pages(2)}\n", flush=True)

    threads = [threading.Thread(target=shop.browse, args=(seed,)) for seed in range(6)]
    threads.append(threading.Thread(target=shop.rename, args=(0.05,)))
    for thread in threads:
        thread.start()
    try:
        print("6 web processes read; rows are changed 20 times a second, without a delete; the leader of etcd is killed on the way")
        end, leader = time.monotonic() + options.seconds, None
        while time.monotonic() < end:
            hits, computed = shop.hits, shop.computed
            time.sleep(1)
            print(f"  {shop.hits - hits} hits, {shop.computed - computed} computed", flush=True)
            if leader is None and time.monotonic() > end - options.seconds / 2:
                leader = etcd.leader()
                etcd.kill(leader)
                print(f"  {leader} was killed", flush=True)
    finally:
        shop.stop.set()
        for thread in threads:
            thread.join()
    print(f"\n{shop.hits} hits, {shop.computed} computed; the oldest page was {shop.oldest * 1000:.0f} ms behind its row")
    print(subprocess.run(table, check=True, capture_output=True, text=True).stdout, end="")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server-bin", required=True)
    parser.add_argument("--seconds", type=float, default=15)
    options = parser.parse_args()
    options.server_bin = str(pathlib.Path(options.server_bin).resolve())
    folder = pathlib.Path(tempfile.mkdtemp(prefix="cattlegrid-cluster"))
    etcd = database = None
    servers = []
    try:
        etcd, database = Etcd(), Database()
        database.sql("CREATE TABLE users (id int PRIMARY KEY, name text)",
                     f"INSERT INTO users SELECT n, 'name 0' FROM generate_series(1, {USERS}) n",
                     "CREATE PUBLICATION cattlegrid FOR TABLE users")
        run(options, etcd, database, servers, folder)
    finally:
        for server in servers:
            server.clean()
        for own in (etcd, database):
            if own is not None:
                own.clean()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
