"""Long poll of an idle stream: waits for new records without a stream of requests.

Spark requests the latest offset of an idle source every 10 ms. Here that call waits: one fetch per
partition waits at the broker, and the first answer ends the wait. So an idle stream costs a few
requests per second and a new record is noticed at once.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import TYPE_CHECKING

from http_api.client import consumer
from http_api.client.calls import ApiError
from spark_source.cluster import Cluster
from spark_source.errors import SparkSourceError

if TYPE_CHECKING:
    from spark_source.offsets import Position
    from spark_source.options import Connection

POLLS_MAX = 32
"""Most partitions watched at a time, one thread each; records of others are noticed when a wait
ends by time-out."""
MARGIN_S = 1.0
PAUSE_AFTER_ERROR_S = 0.5
"""Pause after a failed fetch: fetches of a deleted topic fail at once, and are repeated."""

Place = tuple[str, int, int]


class LongPoll:
    """Waiting fetches of one stream reader, used by one thread; has threads of its own."""

    def __init__(self, connection: Connection, wait_ms: int) -> None:
        self._connection = connection
        self._wait_ms = wait_ms
        self._pool = ThreadPoolExecutor(POLLS_MAX, thread_name_prefix="quorumlog-poll")
        self._own = threading.local()
        self._waiting: dict[Place, Future[bool]] = {}

    def wait(self, position: Position, known: tuple[str, ...]) -> bool:
        """Wait until records may exist behind a position; return False if none appeared in time."""
        wanted = [
            (topic, partition, offset)
            for topic, offsets in sorted(position.items())
            for partition, offset in sorted(offsets.partitions.items())
        ][:POLLS_MAX]
        self._waiting = {
            place: future for place, future in self._waiting.items() if place in wanted
        }
        for place in wanted:
            if place not in self._waiting:
                self._waiting[place] = self._pool.submit(self._poll, place, known)
        deadline_s = time.monotonic() + self._wait_ms / 1000 + MARGIN_S
        pending = dict(self._waiting)
        while pending and (left_s := deadline_s - time.monotonic()) > 0:
            wait_for(pending.values(), left_s, FIRST_COMPLETED)
            done = {place: future for place, future in pending.items() if future.done()}
            for place in done:
                del self._waiting[place], pending[place]
            if any(future.result() for future in done.values()):
                return True
        return False

    def _poll(self, place: Place, known: tuple[str, ...]) -> bool:
        """Return True if the offset may exist now, or if the fetch failed and is to be repeated."""
        topic, partition, offset = place
        call = consumer.fetch_stored(topic, partition, offset, wait_ms=self._wait_ms, max_bytes=1)
        try:
            return self._cluster(known).run(call).next_offset > offset
        except (SparkSourceError, ApiError):
            time.sleep(PAUSE_AFTER_ERROR_S)
            return True

    def _cluster(self, known: tuple[str, ...]) -> Cluster:
        """Return this thread's own client."""
        cluster: Cluster | None = getattr(self._own, "cluster", None)
        if cluster is None:
            cluster = self._own.cluster = Cluster(self._connection, known)
        return cluster
