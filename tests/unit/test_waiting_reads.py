"""Reads that wait at their leader: what they hold meanwhile, and what ends the wait."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from broker.record.batch import RecordFormat
from broker.record.lines import decode_records
from broker.server.fetch import ReadRouting
from broker.server.local_partitions import Append
from broker.server.requests import FetchRequest
from broker.server.router import LeaderRouter
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.ids import PartitionId, TopicIdPartition, TopicName
from tests.support.one_broker import HERE, ME, Here, image, one_broker
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from broker.server.requests import FetchResult
    from raft_metadata.image.metadata_image import MetadataImage

READ = FetchRequest(topic=TopicName("t"), partition=PartitionId(0), offset=0, max_wait_ms=30_000)


@dataclass
class Loader:
    image: MetadataImage


@dataclass
class World:
    one: Here
    loader: Loader
    reads: ReadRouting

    def take(self, now: MetadataImage) -> None:
        self.loader.image = now
        self.one.manager.on_metadata_update(now)

    async def waiting(self) -> asyncio.Task[FetchResult]:
        """Begin a read, and return it once it waits."""
        task = asyncio.ensure_future(self.reads.fetch(READ))
        await until(lambda: self.one.manager.replica(HERE).fetch_waiters is not None)  # type: ignore[union-attr]
        return task

    async def append(self) -> None:
        await self.one.local.append(
            Append(
                partition=HERE,
                records=decode_records(b'{"records":[{"value":1}]}'),
                key_format=RecordFormat.JSON,
                value_format=RecordFormat.JSON,
                acks=1,
                timeout_ms=1_000,
            )
        )


@asynccontextmanager
async def world_of(directory: Path) -> AsyncIterator[World]:
    async def existing(_: TopicName, __: PartitionId) -> TopicIdPartition:
        return HERE

    async with one_broker(directory) as one:
        nobody = cast("Any", None)
        loader = Loader(image(1, (ME,)))
        clock = SystemClock()
        router = LeaderRouter(cast("Any", loader), nobody, clock)
        reads = ReadRouting(one.config, one.local, existing, router, nobody, clock, nobody)
        world = World(one, loader, reads)
        world.take(loader.image)
        yield world


def frames_of(task: asyncio.Task[Any]) -> list[str]:
    """Return the names of the coroutines that a task is suspended in, the outermost first."""
    names, coroutine = [], cast("Any", task.get_coro())
    while hasattr(coroutine, "cr_code"):
        names.append(coroutine.cr_code.co_qualname)
        coroutine = coroutine.cr_await
    return names


async def test_a_read_that_waits_holds_no_frame_of_the_way_to_its_leader(tmp_path: Path) -> None:
    async with world_of(tmp_path) as world:
        read = await world.waiting()
        assert frames_of(read) == ["ReadRouting.fetch", "Reads.wait"]
        await world.append()
        found = await read
        assert [piece.count for piece in found.slices] == [1]


async def test_a_read_waits_on_under_a_newer_epoch_of_its_leader(tmp_path: Path) -> None:
    async with world_of(tmp_path) as world:
        read = await world.waiting()
        world.take(image(2, (ME,)))
        await world.append()
        found = await read
        assert ([piece.count for piece in found.slices], found.leader_epoch) == ([1], 2)


async def test_a_read_that_finds_nothing_ends_in_its_time(tmp_path: Path) -> None:
    async with world_of(tmp_path) as world:
        read = FetchRequest(topic=READ.topic, partition=READ.partition, offset=0, max_wait_ms=50)
        began = SystemClock().monotonic_ms()
        found = await world.reads.fetch(read)
        assert (len(found.slices), found.next_offset) == (0, 0)
        assert SystemClock().monotonic_ms() - began >= 50
