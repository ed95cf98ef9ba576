"""What it costs that one node follows a database for its fleet: the time until a changed row is obeyed by all nodes, what is written into
etcd and what the processes take, at rest and while rows change.

    python via_costs.py --server-bin ../target/release/cattlegrid
"""

import argparse
import os
import pathlib
import shutil
import tempfile
import threading
import time

from database import Database
from etcds import Etcd
from follow_loads import ROWS, prepare
from harness import Server, wait_until
from nodes_costs import Talk, percentiles

RULES = """
[server]
node = "n{number}"

[[rule]]
match = "page:{{row}}"
owner = "connection"
tags = ["row:{{row}}"]

[follow.bumps]
servers = [{servers}]

[follow.shop]
url = "postgres://postgres@127.0.0.1:{database}/postgres"
via = "bumps"
slot = "fleet"

[[follow.shop.table]]
table = "rows"
bump = ["row:{{id}}"]
"""

TICKS = os.sysconf("SC_CLK_TCK")


def processor(server):
    with open(f"/proc/{server.process.pid}/stat") as file:
        words = file.read().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICKS


def run(options, etcd, database, servers, folder):
    places = ", ".join(f'"{own}"' for own in etcd.endpoints)
    for number in range(options.nodes):
        file = folder / f"{number}.toml"
        file.write_text(RULES.format(number=number, servers=places, database=database.port))
        servers.append(Server(options.server_bin, "cattlegrid", ["--config", str(file)]))
    for server in servers:
        wait_until("the log is confirmed", lambda server=server: server.stats("follow").get("shop:state") == "confirmed", 60)
    talks = [Talk(server) for server in servers]

    took = []
    with database.connect() as connection:
        for turn in range(200):
            row = turn % ROWS + 1
            for talk in talks:
                if talk.get(b"page:%d" % row) is None:
                    talk.ask(b"set page:%d 0 0 3\r\nold\r\n" % row)
            begun = time.monotonic()
            connection.execute("UPDATE rows SET version = version + 1 WHERE id = %s", (row,))
            while any(talk.get(b"page:%d" % row) is not None for talk in talks):
                pass
            took.append(time.monotonic() - begun)
    print(f"{options.nodes} nodes: from before a row is changed until no page is served by any of them: {percentiles(took)}", flush=True)

    def over(seconds, what):
        revision, before, begun = etcd.revision(), [processor(server) for server in servers], time.monotonic()
        lags = []
        while time.monotonic() < begun + seconds:
            lags += [int(server.stats("follow")["shop:lag_ms"]) for server in servers]
            time.sleep(0.2)
        passed = time.monotonic() - begun
        shares = [(processor(server) - own) / passed * 100 for server, own in zip(servers, before)]
        print(f"{what}: {(etcd.revision() - revision) / passed:.1f} revisions a second in etcd; processor of the node that leads "
              f"{shares[0]:.1f} %, of the others {sum(shares[1:]) / max(len(shares) - 1, 1):.1f} % each; lag_ms at most {max(lags)}", flush=True)

    over(options.seconds, "at rest")
    stop, changed = threading.Event(), [0] * 4

    def change(number):
        with database.connect() as connection:
            turn = number
            while not stop.is_set():
                connection.execute("UPDATE rows SET version = version + 1 WHERE id = %s", (turn % ROWS + 1,))
                turn, changed[number] = turn + 7, changed[number] + 1
                time.sleep(options.pause)

    threads = [threading.Thread(target=change, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    begun = time.monotonic()
    over(options.seconds, "while rows change")
    stop.set()
    for thread in threads:
        thread.join()
    print(f"{sum(changed) / (time.monotonic() - begun):.0f} changed rows a second")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server-bin", required=True)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--pause", type=float, default=0, help="of each of the four writers, in seconds")
    options = parser.parse_args()
    options.server_bin = str(pathlib.Path(options.server_bin).resolve())
    folder = pathlib.Path(tempfile.mkdtemp(prefix="cattlegrid-via"))
    servers, etcd, database = [], None, None
    try:
        etcd, database = Etcd(), Database()
        prepare(database)
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
