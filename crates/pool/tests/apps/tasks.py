"""A Python worker on asyncio."""

import asyncio


async def work(what, *args):
    if what == b"sleep":
        await asyncio.sleep(0.2)
        return args[0]
    await asyncio.sleep(3600)
