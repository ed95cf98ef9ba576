"""dogpile.cache. Arguments: PORT, a plan (load.py), the backend, "lock" or "alone"."""

import sys

import load
from dogpile.cache import make_region

port, _, backend, lock = sys.argv[1:]


def region():
    arguments = {"url": f"127.0.0.1:{port}", "distributed_lock": lock == "lock"}
    made = {}

    def of(ttl):
        # The time to live is the server's, so that values expire there; dogpile's own expiry is a test of its own.
        if ttl not in made:
            made[ttl] = make_region().configure(
                f"dogpile.cache.{backend}", expiration_time=-1, arguments={**arguments, "memcached_expire_time": ttl}
            )
        return made[ttl]

    return of


# The processes that are forked have the regions, each of their threads a client of its own.
of = region()
of(60).get("none")


def connect():
    def request(step, counter):
        cache = of(step["ttl"])
        if len(step["keys"]) == 1:
            return [cache.get_or_create(step["keys"][0], lambda: counter.compute(step["keys"][0])[0])]
        return list(cache.get_or_create_multi(step["keys"], counter.compute))

    return request


load.main(connect, lambda key: of(60).delete(key))
