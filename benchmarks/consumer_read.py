"""A consumer as a user would write it: the SDK, 1 MB pages, every record decoded by orjson.

python -m benchmarks.consumer_read URL TOPIC SECONDS      prints one JSON object
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from http_api.client.async_client import AsyncClient
from http_api.client.consumer import fetch_lines


async def read(url: str, topic: str, seconds: float) -> dict[str, float]:
    """Read partition 0 from offset 0 to the end, repeatedly, until the time is over."""
    records = offset = 0
    began, cpu = time.monotonic(), time.process_time()
    async with AsyncClient([url]) as client:
        while time.monotonic() - began < seconds:
            page = await client.run(fetch_lines(topic, 0, offset))
            rows = page.records()
            assert rows[0]["offset"] == offset
            assert isinstance(rows[-1]["value"], dict)
            records += len(rows)
            offset = page.next_offset if page.next_offset < page.high_watermark else 0
    return {
        "records": records,
        "elapsed_s": time.monotonic() - began,
        "cpu_s": time.process_time() - cpu,
    }


if __name__ == "__main__":
    json.dump(asyncio.run(read(sys.argv[1], sys.argv[2], float(sys.argv[3]))), sys.stdout)
