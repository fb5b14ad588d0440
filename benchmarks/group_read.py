"""A member of a consumer group as a user would write it: read, decode every value, commit.

python -m benchmarks.group_read URL TOPIC SECONDS      prints one JSON object
"""

from __future__ import annotations

import json
import sys
import time

import orjson

from http_api.client.group_consumer import GroupConsumer
from http_api.client.groups import InstanceSettings
from http_api.client.transport import Client

MAX_BYTES = 1_048_576


def read(url: str, topic: str, seconds: float) -> dict[str, float]:
    """Read the topic from its beginning to its end, repeatedly, until the time is over."""
    settings = InstanceSettings(auto_offset_reset="earliest")
    records = 0
    with Client([url]) as client, GroupConsumer(client, f"read-{topic}", settings) as consumer:
        consumer.subscribe([topic])
        began, cpu = time.monotonic(), time.process_time()
        while time.monotonic() - began < seconds:
            page = consumer.poll(wait_ms=0, max_bytes=MAX_BYTES)
            for record in page:
                assert isinstance(orjson.loads(bytes(record.value)), dict)
            records += len(page)
            consumer.commit()
            if not page:
                consumer.seek(dict.fromkeys(consumer.positions, 0))
        return {
            "records": records,
            "elapsed_s": time.monotonic() - began,
            "cpu_s": time.process_time() - cpu,
        }


if __name__ == "__main__":
    json.dump(read(sys.argv[1], sys.argv[2], float(sys.argv[3])), sys.stdout)
