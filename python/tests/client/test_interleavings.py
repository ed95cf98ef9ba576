"""Several clients, deletes and changes of the source in any order, over a server in memory: the machines alone.

After a delete no caller that comes later gets a value that was computed before it, and one client computes at a time as
long as nothing happens to the key.
"""

import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from cattlegrid.client import _machine as m
from cattlegrid.client import _wire as wire
from cattlegrid.client._herd import Herd, options
from cattlegrid.client._hooks import Metrics
from cattlegrid.client._machine import Batch, Invoke, Spawn, Subject
from cattlegrid.client._many import many
from cattlegrid.client._serializers import Codec
from cattlegrid.client._wire import Reply, Scope

KEY = b"k"


class Memory:
    """memcached in memory: get, add, cas, delete."""

    def __init__(self):
        self.items = {}
        self.number = 0

    def put(self, command):
        self.number += 1
        if command.exptime == 30 * 86400 + 1:
            self.items.pop(command.key, None)
        else:
            self.items[command.key] = (command.data, command.flags, self.number)
        return Reply("HD", cas=self.number)

    def run(self, command):
        there = self.items.get(command.key)
        if command.verb in (wire.ASK, wire.GET):
            return Reply("EN") if there is None else Reply("VA", *there)
        if command.verb == wire.DELETE:
            return Reply("NF" if self.items.pop(command.key, None) is None else "HD")
        if command.verb == wire.CLAIM:
            return Reply("EN")
        if command.cas is not None:
            if there is None:
                return Reply("NF")
            return self.put(command) if there[2] == command.cas else Reply("EX")
        if command.verb == wire.ADD and there is not None:
            return Reply("NS")
        return self.put(command)


class Transport:
    """``knows``: whether CAS numbers of what was stored are known, as over own connections."""

    def __init__(self, knows):
        self._scope = Scope((1, 0)) if knows else None

    def scope(self):
        return self._scope


class Client:
    """A machine that is under way."""

    def __init__(self, world, machine):
        self.world = world
        self.machine = machine
        self.floor = world.floor
        self.is_over = False
        self.computes_since = None
        self.op = None
        self._step(lambda: machine.send(None))

    def _step(self, resume):
        try:
            self.op = resume()
        except StopIteration as end:
            self.is_over, result = True, end.value
            for outcome in result.values() if isinstance(result, dict) else [result]:
                if getattr(outcome, "kind", None) in ("hit", "computed"):
                    assert outcome.value >= self.floor, (outcome, self.floor)
        except OSError:
            self.is_over = True
        if self.is_over:
            self.computes_since = None
        elif isinstance(self.op, Invoke):
            # It reads the source now, and returns later.
            self.computes_since = self.world.version
            self.world.check_one_computes()

    def go(self, fails):
        op = self.op
        if isinstance(op, Batch):
            replies = [self.world.memory.run(command) for command in op.commands]
            self._step(lambda: self.machine.send(replies))
        elif isinstance(op, Invoke):
            seen, self.computes_since = self.computes_since, None
            if fails:
                self.world.failures += 1
                # Three clients that take and remove the lock between a question and its `add` look like a server that takes none.
                self.world.is_disturbed |= self.world.failures > 2
                self._step(lambda: self.machine.throw(OSError("no")))
            else:
                value = dict.fromkeys(op.args[0], seen) if op.args else seen
                self._step(lambda: self.machine.send(value))
        elif isinstance(op, Spawn):
            self.world.clients.append(Client(self.world, op.machine))
            self._step(lambda: self.machine.send(None))
        else:
            self._step(lambda: self.machine.send(None))


class World:
    def __init__(self, knows):
        self.memory = Memory()
        self.version = self.floor = 0
        self.clients = []
        self.failures = 0
        self.is_disturbed = False
        self._herds = [
            Herd(Transport(knows), Codec("json"), Metrics(), threading.Event, lambda: 1_700_000_000.0) for _ in range(3)
        ]

    def begin(self, number, is_many):
        herd = self._herds[number]
        how = options(1000, 0, None, "fail", None)
        subject = Subject(KEY, (), "k")
        if is_many:
            machine = many(herd, {"k": (subject, None)}, lambda keys: None, how)
        else:
            machine = herd.get_or_compute(subject, lambda: None, None, how)
        self.clients.append(Client(self, machine))

    def check_one_computes(self):
        computing = [client for client in self.clients if client.computes_since is not None]
        assert self.is_disturbed or len(computing) <= 1

    def change(self):
        self.version += 1

    def delete(self):
        # Of what has changed before it.
        self.memory.items.pop(KEY, None)
        self.floor = self.version
        self.is_disturbed = True

    def settle(self):
        while any(not client.is_over for client in self.clients):
            for client in list(self.clients):
                if not client.is_over:
                    client.go(False)


kinds = ["begin"] * 2 + ["many", "change"] + ["invalidate"] * 2 + ["go"] * 10
steps = st.lists(st.tuples(st.sampled_from(kinds), st.integers(0, 5), st.booleans()), min_size=8, max_size=60)


@settings(max_examples=1500, deadline=None)
@given(steps, st.booleans(), st.booleans())
def test_no_order_serves_what_is_older_than_a_delete(taken, knows, fails):
    world = World(knows)
    for what, number, flag in taken:
        if what in ("begin", "many"):
            world.begin(number % 3, what == "many")
        elif what == "change":
            world.change()
        elif what == "invalidate":
            world.change()
            world.delete()
        else:
            going = [client for client in world.clients if not client.is_over]
            if going:
                going[number % len(going)].go(fails and flag)
    world.settle()
    # What is left can be computed or read.
    world.begin(0, False)
    world.settle()
    item = world.memory.items[KEY]
    record = m.open_item(Reply("VA", *item))
    assert isinstance(record, m.Value)
    assert int(record.stored.data) >= world.floor
