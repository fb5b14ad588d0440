"""Cost of a poll that waits: one ``records:poll`` over 1,000 partitions, then a record in the last.

``python -m benchmarks.polls``. The body as a client sends it, its decoding, and the broker's own
layer over a thousand real logs, in this process: no sockets. All partitions are led here.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any, cast

import orjson

from benchmarks.parked import MS, NAME, TOPIC, Leader, Stalls
from benchmarks.report import Row, at_most, machine, table
from broker.record.batch import RecordFormat
from broker.record.lines import decode_records
from broker.server.fetch import FollowerReads
from broker.server.local_partitions import Append
from broker.server.local_polls import LocalPolls
from broker.server.poll_routing import PollRouting
from broker.server.requests import FetchResult
from http_api.server.routes.v3.records_poll import read_poll
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.ids import PartitionId, TopicIdPartition

PARTITIONS = 1_000
ROUNDS = 5
MB = 1_000_000


class _Loader:
    """The image of the one broker, which never changes."""

    def __init__(self, leader: Leader) -> None:
        self.image = leader.manager.image
        self.loaded = asyncio.Event()


class _Polls:
    """A broker with a thousand partitions, and its polls."""

    def __init__(self, directory: Path) -> None:
        self.leader = leader = Leader(directory, PARTITIONS, followed=False)
        clock, unused = SystemClock(), cast("Any", None)
        reads = FollowerReads(leader.config, leader.manager, unused, clock, lambda: True)
        polls = LocalPolls(leader.config, leader.local, reads, leader.manager, clock)
        self._routing = PollRouting(
            leader.config, polls, reads, cast("Any", _Loader(leader)), unused, clock, unused,
            bytes,
        )  # fmt: skip

    async def poll(self, body: bytes) -> int:
        """Poll as the route does; return how many records came."""
        pages = await self._routing.poll(read_poll(body, self.leader.config.limits))
        found = [page.found for page in pages if isinstance(page.found, FetchResult)]
        return sum(piece.count for result in found for piece in result.slices)

    def waiting(self) -> int:
        """Return at how many partitions a poll waits."""
        return sum(len(replica.fetch_waiters or ()) for replica in self.leader.manager.replicas())


def _body(offset: int) -> bytes:
    rows = [
        {"topic_name": NAME, "partition_id": number, "offset": offset, "topic_id": TOPIC}
        for number in range(PARTITIONS)
    ]
    return orjson.dumps({"partitions": rows, "wait_ms": 60_000})


def _append(number: int) -> Append:
    return Append(
        partition=TopicIdPartition(TOPIC, PartitionId(number)),
        records=decode_records(b'{"records":[{"value":1}]}'),
        key_format=RecordFormat.JSON,
        value_format=RecordFormat.JSON,
        acks=1,
        timeout_ms=60_000,
    )


async def _round(polls: _Polls, body: bytes, *, traced: bool) -> tuple[float, float, float]:
    """Return (bytes held while it waits, seconds to the answer, longest turn in ms)."""
    if traced:
        tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(polls.poll(bytes(body)))
        stalls = Stalls()
        while polls.waiting() < PARTITIONS:  # noqa: ASYNC110 a broker has no event for it
            await asyncio.sleep(0.001)
        longest_ms = stalls.stop()
        held = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        await polls.leader.local.append(_append(PARTITIONS - 1))
        began = time.monotonic()
    if waiting.result() != 1:
        msg = "expected one record"
        raise RuntimeError(msg)
    return held, time.monotonic() - began, longest_ms


async def run() -> list[Row]:
    """Measure the memory in one round, and times in others, in which nothing is traced."""
    with tempfile.TemporaryDirectory() as directory:
        polls = _Polls(Path(directory))
        offsets = iter(range(ROUNDS + 1))
        bodies = []
        for offset in offsets:
            rows = orjson.loads(_body(0))
            rows["partitions"][-1]["offset"] = offset
            bodies.append(orjson.dumps(rows))
        held, _, _ = await _round(polls, bodies[0], traced=True)
        timed = [await _round(polls, body, traced=False) for body in bodies[1:]]
        polls.leader.close()
    took_ms = sorted(took * MS for _, took, _ in timed)[len(timed) // 2]
    longest_ms = max(longest for _, _, longest in timed)
    return [
        Row(
            what=f"records:poll waiting on {PARTITIONS:,} partitions",
            product=f"{held / MB:.2f} MB",
            value=held / MB,
            budget=at_most(2, " MB"),
            note=f"answered {took_ms:.0f} ms behind the record (median of {ROUNDS}); longest turn "
            f"of the loop while it begins {longest_ms:.0f} ms",
        )
    ]


def main() -> int:
    """Measure and print."""
    note = machine()
    print(note, table(asyncio.run(run())), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
