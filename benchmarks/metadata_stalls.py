"""Longest stall of each process: a health request every 10 ms, from a process of its own.

``python -m benchmarks.metadata_stalls URL…`` prints `ready`, sends requests until its input ends,
then prints one JSON object: URL → milliseconds of the longest answer. An answer also waits for a
core, so this is an upper bound of the loop's own stall.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from benchmarks.processes import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

EVERY_S = 0.01
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
STOP_S = 10.0
FIRST_S = 0.2


class Stalls:
    """The measuring process; `longest` ends it."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.metadata_stalls", *urls],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline().startswith("ready")

    def longest(self) -> dict[str, float]:
        """Return URL → milliseconds."""
        out, _ = self._process.communicate("", timeout=STOP_S)
        found: dict[str, float] = json.loads(out)
        return found


async def _watch(url: str, longest: dict[str, float]) -> None:
    parts = urlsplit(url)
    while True:
        try:
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            while True:
                sent = time.monotonic()
                writer.write(REQUEST)
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    int(line.split(b":")[1])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length")
                )
                await reader.readexactly(length)
                took_ms = (time.monotonic() - sent) * 1000
                longest[url] = max(longest.get(url, 0), took_ms)
                await asyncio.sleep(EVERY_S)
        except (OSError, asyncio.IncompleteReadError):
            await asyncio.sleep(EVERY_S)  # the process was killed: not a stall


async def main(urls: Sequence[str]) -> None:
    """Send requests until the input ends."""
    longest: dict[str, float] = {}
    async with asyncio.TaskGroup() as tasks:
        watching = [tasks.create_task(_watch(url, longest)) for url in urls]
        await asyncio.sleep(FIRST_S)
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        for task in watching:
            task.cancel()
    print(json.dumps(longest), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
