"""A Python worker on asyncio."""

import asyncio
import os

from cattlegrid import worker
from odd import ODD

KEPT = []


async def work(what, *args):
    if what == b"sleep":
        await asyncio.sleep(0.2)
        return args[0]
    if what == b"late":
        KEPT.append(asyncio.create_task(outlive(worker)))
        KEPT.append(asyncio.create_task(outlive(worker.current())))
        await asyncio.sleep(0.02)
        return "done"
    if what == b"deaf":
        # It does not let go, whatever it is told.
        while True:
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                pass
    if what == b"raise-base":
        raise {b"interrupt": KeyboardInterrupt, b"cancelled": asyncio.CancelledError, b"exit": GeneratorExit}[args[0]]
    if what == b"raise-odd":
        raise ODD[args[0].decode()]()
    if what == b"pid":
        return str(os.getpid())
    if what == b"block":
        while True:
            pass
    if what == b"long" and args[0] == b"exception":
        raise ValueError("ü" * (int(args[1]) // 2))
    if what == b"long" and args[0] == b"event":
        worker.event("e" * int(args[1]))
    if what == b"until-cancelled":
        with open(args[0], "w") as file:
            file.write("running")
        await asyncio.sleep(3600)
    if what == b"wait":
        await asyncio.sleep(int(args[0]) / 1000)
        return args[1]
    await asyncio.sleep(3600)


async def outlive(say):
    for _ in range(60):
        say.progress("late or not")
        say.event("late or not")
        await asyncio.sleep(0.005)


async def parts(*sizes):
    """Parts of these sizes; a first one of 0 tells the process instead."""
    if sizes == (b"0",):
        yield str(os.getpid())
        return
    for size in sizes:
        yield b"p" * int(size)
