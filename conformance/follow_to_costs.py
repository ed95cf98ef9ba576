"""What `cattlegrid follow FILE --to SERVERS` costs: rows a second and the processor, with three memcached servers.

    CATTLEGRID_BIN=../target/fast/cattlegrid python follow_to_costs.py
"""

import os
import re
import time

import psycopg  # noqa: F401  what Database needs

import harness
from database import Database
from test_follow_to import Follow, Memcached, rules

TABLES = '[[follow.shop.table]]\ntable = "rows"\ndelete_keys = ["row:{id}"]\n'
ROWS = 500_000
TICKS = os.sysconf("SC_CLK_TCK")


def processor(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak(pid):
    with open(f"/proc/{pid}/status") as file:
        return int(re.search(r"VmHWM:\s+(\d+) kB", file.read())[1]) / 1024


def reached(database, position):
    """What is acknowledged is deleted on all servers; it is told once a second."""
    sql = f"SELECT confirmed_flush_lsn >= '{position}' FROM pg_replication_slots"
    harness.wait_until("it is deleted", lambda: database.sql(sql) == [(True,)], 300)


def measured(what, count, begun, own, used):
    took, used = time.monotonic() - begun, processor(own.process.pid) - used
    print(f"{what}: {count} keys in {took:.2f} s, {count / took:,.0f} a second; processor {used:.2f} s, {1e6 * used / count:.1f} us a key; "
          f"peak memory {peak(own.process.pid):.0f} MiB", flush=True)


def main():
    binary, database, servers = os.environ["CATTLEGRID_BIN"], Database(), [Memcached() for _ in range(3)]
    own = None
    try:
        database.sql("CREATE TABLE rows (id int PRIMARY KEY, version int)",
                     f"INSERT INTO rows SELECT n, 0 FROM generate_series(1, {ROWS}) n",
                     "CREATE PUBLICATION cattlegrid FOR TABLE rows")
        own = Follow(binary, rules(database, 'slot = "costs"', TABLES), servers)
        time.sleep(2)
        begun = processor(own.process.pid)
        time.sleep(10)
        print(f"at rest: {10 * (processor(own.process.pid) - begun):.2f} % of a processor, {peak(own.process.pid):.1f} MiB", flush=True)
        used = processor(own.process.pid)
        database.sql("UPDATE rows SET version = 1")
        begun = time.monotonic()
        reached(database, database.sql("SELECT pg_current_wal_insert_lsn()")[0][0])
        measured("one transaction", ROWS, begun, own, used)
        many = "DO $$ BEGIN FOR n IN 1..{} LOOP UPDATE rows SET version = 2 WHERE id = n; COMMIT; END LOOP; END $$"
        used, begun = processor(own.process.pid), time.monotonic()
        database.sql(many.format(100_000))
        committed = time.monotonic() - begun
        reached(database, database.sql("SELECT pg_current_wal_insert_lsn()")[0][0])
        measured(f"transactions of one row (committed within {committed:.2f} s)", 100_000, begun, own, used)
        own.end()
        database.sql(many.format(100_000))
        begun = time.monotonic()
        own.start()
        reached(database, database.sql("SELECT pg_current_wal_insert_lsn()")[0][0])
        measured("the same that have waited in the slot", 100_000, begun, own, 0)
        print(own.end(), own.log())
    finally:
        if own:
            own.clean()
        for server in servers:
            server.kill()
        database.clean()


if __name__ == "__main__":
    main()
