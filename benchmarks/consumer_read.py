"""A consumer as a user would write it: aiohttp, 1 MB pages, every record decoded by orjson.

python -m benchmarks.consumer_read URL SECONDS      prints one JSON object
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import aiohttp
import orjson

PAGE_BYTES = 1 << 20
ARRAY = "application/vnd.quorumlog.lines+json"


async def read(url: str, seconds: float) -> dict[str, float]:
    """Read from offset 0 to the end, again and again, until the time is over."""
    records = offset = 0
    began, cpu = time.monotonic(), time.process_time()
    async with aiohttp.ClientSession(headers={"Accept": ARRAY}, read_bufsize=1 << 22) as session:
        while time.monotonic() - began < seconds:
            query = f"?offset={offset}&max_bytes={PAGE_BYTES}&timeout=0"
            async with session.get(url + query) as answer:
                answer.raise_for_status()
                end = int(answer.headers["Quorumlog-High-Watermark"])
                page = orjson.loads(await answer.read())
            assert page[0]["offset"] == offset
            records += len(page)
            offset = page[-1]["offset"] + 1
            if offset >= end:
                offset = 0
    return {
        "records": records,
        "elapsed_s": time.monotonic() - began,
        "cpu_s": time.process_time() - cpu,
    }


if __name__ == "__main__":
    json.dump(asyncio.run(read(sys.argv[1], float(sys.argv[2]))), sys.stdout)
