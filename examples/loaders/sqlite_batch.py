"""Prices of an SQLite database, one query for up to 100 keys. Rule: price:{id:int}"""

import sqlite3

from cattlegrid import loader

FILE = "prices.sqlite"  # in the directory of the rule file


@loader.after_fork
def connect():
    global DATABASE
    DATABASE = sqlite3.connect(FILE)
    with DATABASE:
        DATABASE.execute("CREATE TABLE IF NOT EXISTS price (id INTEGER PRIMARY KEY, cents INTEGER)")
        DATABASE.executemany("INSERT OR IGNORE INTO price VALUES (?, ?)", [(id, id * 99) for id in range(1, 1001)])


@loader.batch(limit=100)
def load(jobs):
    ids = [job.args["id"] for job in jobs]
    marks = ", ".join("?" * len(ids))
    prices = dict(DATABASE.execute(f"SELECT id, cents FROM price WHERE id IN ({marks})", ids))
    return {job.key: answer(prices.get(int(job.args["id"]))) for job in jobs}


def answer(cents):
    if cents is None:
        return loader.not_found(ttl=5)
    return loader.Value(f"{cents // 100}.{cents % 100:02}", ttl=10, tags=["prices"])


loader.serve()
