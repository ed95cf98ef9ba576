"""Pages of an SQLite database, one key a job. Rule: page:{id:int}"""

import contextlib
import sqlite3

from cattlegrid import loader

FILE = "pages.sqlite"  # in the directory of the rule file


@loader.init
def create():
    rows = [(id, f"author-{id % 10}", f"Text of page {id}.") for id in range(1, 1001)]
    with contextlib.closing(sqlite3.connect(FILE)) as database, database:
        database.execute("CREATE TABLE IF NOT EXISTS page (id INTEGER PRIMARY KEY, author TEXT, text TEXT)")
        database.executemany("INSERT OR IGNORE INTO page VALUES (?, ?, ?)", rows)


@loader.after_fork
def connect():
    global DATABASE
    DATABASE = sqlite3.connect(FILE)


@loader.load
def load(job):
    row = DATABASE.execute("SELECT author, text FROM page WHERE id = ?", [job.args["id"]]).fetchone()
    if row is None:
        return loader.not_found(ttl=5)
    author, text = row
    return loader.Value(text, ttl=60, tags=[f"author:{author}"])


loader.serve()
