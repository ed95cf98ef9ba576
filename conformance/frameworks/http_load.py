"""Clients of a site. Arguments: PORT of the site, a plan (load.py) whose steps have a `path` with the place of the query, and `body`: whether
the reply must be the values of the keys. Computations are counted by the site.
"""

import http.client
import sys
import urllib.parse

import load

port = int(sys.argv[1])


def fetch(connection, path, headers={}):
    connection.request("GET", path, headers=headers)
    reply = connection.getresponse()
    body = reply.read().decode()
    assert reply.status == 200, (reply.status, body[:200])
    return reply, body


def connect():
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    cookies, visits = {}, [0]

    def request(step, _):
        query = urllib.parse.urlencode({"step": step["name"], "ttl": step["ttl"], "compute": step["compute"]})
        reply, body = fetch(connection, f"/{step['path']}?{query}", cookies)
        if step["path"] == "visit":
            if cookie := reply.headers.get("Set-Cookie"):
                cookies["Cookie"] = cookie.split(";")[0]
            visits[0] += 1
            assert body == str(visits[0]), f"visit {visits[0]} is shown as {body}"
            return [load.value_of(key) for key in step["keys"]]
        return body.split("\n")

    return request


def delete(key):
    fetch(http.client.HTTPConnection("127.0.0.1", port, timeout=60), f"/delete/{key}")


load.main(connect, delete)
