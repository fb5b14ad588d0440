"""A member of a consumer group as a user would write it: read, decode every value, commit.

python -m benchmarks.group_read URL TOPIC SECONDS      prints one JSON object
"""

from __future__ import annotations

import json
import sys
import time

from http_api.client.sdk.consumer import Consumer


def read(url: str, topic: str, seconds: float) -> dict[str, float]:
    """Read the topic from its beginning to its end, repeatedly, until the time is over."""
    records = 0
    with Consumer[object, object](
        url, group_id=f"read-{topic}", auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        consumer.subscribe([topic])
        began, cpu = time.monotonic(), time.process_time()
        while time.monotonic() - began < seconds:
            page = consumer.consume(10_000, 0.2)
            for record in page:
                assert isinstance(record.value, dict)
            records += len(page)
            consumer.commit()
            if not page:
                for partition in consumer.assignment():
                    consumer.seek(partition, 0)
        return {
            "records": records,
            "elapsed_s": time.monotonic() - began,
            "cpu_s": time.process_time() - cpu,
        }


if __name__ == "__main__":
    json.dump(read(sys.argv[1], sys.argv[2], float(sys.argv[3])), sys.stdout)
