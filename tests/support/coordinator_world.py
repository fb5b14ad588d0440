"""A coordinator of one partition of the offsets topic, over fake data: what its reads deliver.

`open_world` runs it; `World` asks it and writes the data that its instances read.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from broker.coordinator.group_coordinator import GroupCoordinator
from broker.coordinator.group_messages import (
    A,
    ConsumerSettings,
    CreateInstance,
    GroupRequest,
    OffsetReset,
    Poll,
    PolledRecords,
    Subscribe,
)
from broker.coordinator.records import OFFSETS_TOPIC, partition_of_group
from broker.coordinator.shard import Shard
from broker.record.batch import RecordFormat
from broker.record.lines import ProduceRecord, make_raw
from broker.server.coordinator_ports import BrokerDataReader
from broker.server.requests import ProduceRequest
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.ids import (
    BrokerId,
    GroupId,
    InstanceId,
    LeaderEpoch,
    PartitionId,
    TopicName,
)
from tests.support.doors.coordinator import shard_of
from tests.support.fake_broker_apis import FakeBrokerApis
from tests.support.group_log import MemoryShardLog, SharedLog
from tests.support.waiting import until

T = TopicName("t")
G = next(GroupId(f"g{n}") for n in range(1_000) if partition_of_group(GroupId(f"g{n}"), 12) == 0)
JSON = ConsumerSettings(format="json", auto_offset_reset=OffsetReset.EARLIEST, auto_commit=False)


class Proven:
    """A broker that nobody deposes."""

    proof_age_max_ms = 200

    def check_proof(self) -> bool:
        return True

    async def prove(self, timeout_ms: int) -> bool:
        return True


@dataclass
class World:
    apis: FakeBrokerApis
    coordinator: GroupCoordinator
    log: MemoryShardLog
    led: set[PartitionId]
    """Partitions of the offsets topic that this broker leads."""

    def shard(self) -> Shard:
        """The shard of the group `G`."""
        return shard_of(self.coordinator, PartitionId(0))

    async def fail_over(self) -> None:
        """Have a coordinator of another epoch load the log."""
        log = self.log.shared.elect()
        self.log.epoch, self.log.start_of_epoch = log.epoch, log.start_of_epoch
        self.coordinator.on_metadata_update(self.apis.image)
        await until(lambda: self.shard().is_ready)

    async def ask(self, request: GroupRequest[A]) -> A:
        return await self.coordinator.answer(request)

    async def create(self, name: str, settings: ConsumerSettings = JSON) -> None:
        instance = InstanceId(name)
        await self.ask(CreateInstance(group=G, instance=instance, settings=settings))

    async def join(self, name: str, settings: ConsumerSettings = JSON) -> None:
        instance = InstanceId(name)
        await self.create(name, settings)
        await self.ask(Subscribe(group=G, instance=instance, topics=(T,)))

    async def poll(self, name: str, timeout_ms: int = 0, **options: Any) -> PolledRecords:
        request = Poll(group=G, instance=InstanceId(name), timeout_ms=timeout_ms, **options)
        return await self.ask(request)

    async def places(self, name: str, timeout_ms: int = 0, **options: Any) -> list[tuple[int, int]]:
        """(partition, offset) of what a read returned."""
        answer = await self.poll(name, timeout_ms, **options)
        records = json.loads(answer.body)
        assert answer.count == len(records)
        return [(record["partition"], record["offset"]) for record in records]

    async def produce(
        self, partition: int, *values: bytes, binary: bool = False, topic: TopicName = T
    ) -> None:
        await self.apis.produce(
            ProduceRequest(
                topic=topic,
                records=[ProduceRecord(value=make_raw(value)) for value in values],
                key_format=RecordFormat.JSON,
                value_format=RecordFormat.BINARY if binary else RecordFormat.JSON,
                partition=PartitionId(partition),
            )
        )


@asynccontextmanager
async def open_world() -> AsyncIterator[World]:
    """Run a coordinator over two partitions of data, until the block ends."""
    log = SharedLog().elect()
    led = {PartitionId(0)}
    apis = FakeBrokerApis()
    apis.add_topic(OFFSETS_TOPIC, 12)
    apis.add_topic(T, 2)
    coordinator = GroupCoordinator(
        BrokerId(1),
        SystemClock(),
        Proven(),
        lambda where: LeaderEpoch(log.epoch) if where.partition in led else None,
        lambda where, epoch: log,
        BrokerDataReader(apis),
        poll_wait_ms_max=60_000,
        rebalance_timeout_ms=30_000,
    )
    coordinator.on_metadata_update(apis.image)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(coordinator.run())
        shard = shard_of(coordinator, PartitionId(0))
        await until(lambda: shard.is_ready)
        yield World(apis, coordinator, log, led)
        task.cancel()
