# SPDX-License-Identifier: MIT
"""Prints the microseconds of one /bin/true by asyncio, output captured: spawn_asyncio.py COUNT"""
import asyncio
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE


async def run_once():
    process = await asyncio.create_subprocess_exec(
        "/bin/true", stdin=DEVNULL, stdout=PIPE, stderr=PIPE
    )
    await process.communicate()


async def main(count):
    await run_once()
    start = time.monotonic()
    for _ in range(count):
        await run_once()
    print((time.monotonic() - start) * 1e6 / count)


asyncio.run(main(int(sys.argv[1])))
