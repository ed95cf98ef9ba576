"""A client as an application has one: reads commands, a JSON list a line, and writes what they return. Lives through the exchange of the server."""

import json
import sys

from pymemcache.client.base import Client


def main():
    address = json.loads(sys.argv[1])
    client = Client(tuple(address) if isinstance(address, list) else address, connect_timeout=5, timeout=5, no_delay=True, default_noreply=False)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            result = getattr(client, name)(*arguments)
            if name == "stats":
                result = {key.decode(): value.decode() if isinstance(value, bytes) else str(value) for key, value in result.items()}
            answer = {"result": result.decode() if isinstance(result, bytes) else result}
        except Exception as error:  # whatever it is: it is what the application would see
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer, default=str), flush=True)


main()
