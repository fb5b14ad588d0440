"""Controllers over the real quorum: real files, real sockets, a leader that goes away."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path

from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import MetadataOffset, TopicName
from raft_metadata.image.metadata_state_machine import MetadataStateMachine
from raft_metadata.quorum.active_controller import ActiveController
from raft_metadata.quorum.config import QuorumConfig
from raft_metadata.quorum.metadata_quorum import MetadataQuorum
from raft_metadata.records.commands import BrokerHeartbeat, CreateTopic, FetchMetadata
from tests.support.metadata_world import BROKERS, CLUSTER, config, registration, topic_id
from tests.support.quorum_process import config as voter_config
from tests.support.quorum_process import format_all, free_addresses
from tests.support.raising_faults import RaisingFaults
from tests.support.waiting import until

NODES = [1, 2, 3]


class Node:
    """One controller with its voter, as a controller process composes them."""

    def __init__(self, settings: QuorumConfig) -> None:
        self.machine = MetadataStateMachine()
        self.quorum = MetadataQuorum(settings, self.machine, RaisingFaults())
        self.controller = ActiveController(
            self.machine,
            config(),
            self.quorum,
            clock=SystemClock(),
            random_source=os.urandom,
            faults=RaisingFaults(),
        )
        self.is_up = False

    async def serve(self) -> None:
        await self.quorum.start(self.controller)
        self.is_up = True
        await self.controller.run()

    async def end(self) -> None:
        if self.is_up:
            self.is_up = False
            self.controller.stop()
            await self.quorum.stop()

    def beat(self) -> None:
        for broker in self.machine.image.brokers.values():
            self.controller.heartbeat(
                BrokerHeartbeat(
                    broker_id=broker.broker_id,
                    broker_epoch=broker.broker_epoch,
                    metadata_offset=self.machine.image.next_offset,
                )
            )


async def heartbeats(nodes: list[Node], over: asyncio.Event) -> None:
    while not over.is_set():
        for node in nodes:
            if node.is_up:
                node.beat()
        await asyncio.sleep(0.1)


async def active(nodes: list[Node]) -> Node:
    def leading() -> list[Node]:
        return [node for node in nodes if node.is_up and node.controller.is_active]

    await until(lambda: bool(leading()), 20)
    return leading()[0]


async def test_metadata_goes_on_when_the_active_controller_goes_away(tmp_path: Path) -> None:
    format_all(tmp_path, NODES)
    addresses = free_addresses(NODES)
    nodes = [Node(voter_config(number, tmp_path, addresses)) for number in NODES]
    over = asyncio.Event()
    async with asyncio.TaskGroup() as group, AsyncExitStack() as stack, asyncio.timeout(60):
        stack.callback(over.set)
        for node in nodes:
            stack.push_async_callback(node.end)
            group.create_task(node.serve())
        group.create_task(heartbeats(nodes, over))
        first = await active(nodes)
        for broker in BROKERS:
            await first.controller.execute(registration(broker))
        await until(lambda: unfenced(first) == 3)
        answers = await asyncio.gather(*(create(first, number) for number in range(64)))
        assert answers == [None] * 64, "64 at once, and no NOT_CONTROLLER"
        await first.end()
        second = await active(nodes)
        assert await create(second, 7) is None, "a repeat is answered alike"
        assert await create(second, 100) is None
        other = next(node for node in nodes if node.is_up and node is not second)
        await until(lambda: other.machine.image == second.machine.image)
        fetched = await other.controller.fetch_metadata(
            FetchMetadata(cluster_id=CLUSTER, broker_id=BROKERS[0], from_offset=MetadataOffset(0))
        )
        assert fetched.end_offset == second.machine.image.next_offset
        assert len(second.machine.image.topics) == 65
        assert unfenced(second) == 3, "nobody was fenced by the change"


def unfenced(node: Node) -> int:
    brokers = node.machine.image.brokers.values()
    return sum(broker.state.value == "unfenced" for broker in brokers)


async def create(node: Node, number: int) -> ErrorCode | None:
    command = CreateTopic(name=TopicName(f"t{number}"), topic_id=topic_id(number))
    try:
        await node.controller.execute(command)
    except KafkaError as error:
        return error.code
    return None
