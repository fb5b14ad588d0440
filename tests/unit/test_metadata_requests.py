"""What a broker answers about the metadata: whom it asks, and what it never asks a controller."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.server.health import Damage
from broker.server.metadata_requests import MAX_LOG_READERS, MetadataRequests
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import MetadataOffset, NodeId, TopicName
from raft_metadata.controller.controller import ControllerConfig
from raft_metadata.image.metadata_state_machine import MetadataStateMachine
from raft_metadata.quorum.metadata_feed import MetadataFeed
from raft_metadata.records.commands import FetchMetadata, FetchMetadataAnswer
from raft_metadata.records.quorum_view import ControllerState
from raft_metadata.records.records import TopicRecord
from raft_metadata.records.serde import encode_batch
from tests.support.fake_broker_apis import CLUSTER_ID
from tests.support.metadata_world import topic_id
from tests.support.quorum_views import controller_state

NODES = (NodeId(101), NodeId(102), NodeId(103))


@dataclass
class Loader:
    """This broker's image: the machine's, as far as it was followed."""

    machine: MetadataStateMachine
    leader_id: NodeId | None = NodeId(102)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.image = self.machine.image

    async def changed(self) -> None:
        await self.news.wait()

    def follow(self) -> None:
        self.image = self.machine.image
        self.news.set()
        self.news = asyncio.Event()


@dataclass
class Controllers:
    """Three controllers over one machine."""

    machine: MetadataStateMachine
    states: dict[NodeId, ControllerState] = field(default_factory=dict)
    fetched: list[tuple[NodeId, FetchMetadata]] = field(default_factory=list)
    answers: list[FetchMetadataAnswer] = field(default_factory=list)
    down: set[NodeId] = field(default_factory=set)
    controllers: tuple[NodeId, ...] = NODES

    def __post_init__(self) -> None:
        knowledge = SimpleNamespace(leader_id=NodeId(102), term=1, leader_contact_age_ms=0)
        self.feed = MetadataFeed(self.machine, ControllerConfig(cluster_id=CLUSTER_ID), knowledge)

    async def describe_quorum(self, source: NodeId, timeout_ms: int) -> ControllerState:
        if source in self.down or source not in self.states:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION)
        return self.states[source]

    def controller_url(self, controller: NodeId) -> str:
        return f"http://127.0.0.1:{controller}"

    async def fetch_metadata(self, source: NodeId, request: FetchMetadata) -> FetchMetadataAnswer:
        self.fetched.append((source, request))
        if source in self.down:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION)
        answer = await self.feed.fetch(request)
        self.answers.append(answer)
        return answer


@dataclass
class World:
    machine: MetadataStateMachine = field(
        default_factory=lambda: MetadataStateMachine(history_batches_max=5)
    )

    def __post_init__(self) -> None:
        self.grow(3)
        self.loader = Loader(self.machine)
        self.controllers = Controllers(self.machine)
        defaults = SimpleNamespace(min_insync_replicas=1)
        config = SimpleNamespace(cluster_id=CLUSTER_ID, broker_id=1, defaults=defaults)
        self.requests = MetadataRequests(
            cast("Any", config), cast("Any", self.loader), cast("Any", self.controllers),
            self.damage_of,
        )  # fmt: skip

    async def damage_of(self, _broker_id: object) -> Damage:
        """No broker is registered here."""
        raise AssertionError

    def grow(self, batches: int) -> None:
        """Two topics a batch."""
        for _ in range(batches):
            base = self.machine.image.next_offset
            records = [
                TopicRecord(name=TopicName(f"t{n}"), topic_id=topic_id(n), partitions_count=1)
                for n in (base, base + 1)
            ]
            self.machine.apply(base + 1, 1, encode_batch(base, 1, records))


def offset(number: int) -> MetadataOffset:
    return MetadataOffset(number)


# ---------------------------------------------------------------- the quorum


def state(number: int, **changes: object) -> ControllerState:
    return controller_state(node_id=NodeId(number), **changes)


async def test_the_one_that_leads_in_the_highest_term_tells() -> None:
    world = World()
    world.controllers.states = {
        NODES[0]: state(101, term=3),  # deposed, and has not heard of it
        NODES[1]: state(102, term=4, is_active=False, is_leader=False),
        NODES[2]: state(103, term=4),
    }
    view = await world.requests.quorum()
    assert (view.told_by.node_id, view.is_from_leader) == (103, True)


async def test_without_a_leader_the_one_that_knows_most_tells() -> None:
    world = World()
    world.controllers.states = {
        NODES[0]: state(101, term=4, commit_index=7, is_active=False),
        NODES[1]: state(102, term=4, commit_index=9, is_active=False),
    }
    view = await world.requests.quorum()
    assert (view.told_by.node_id, view.is_from_leader) == (102, False)
    assert [view.controllers[node] is None for node in NODES] == [False, False, True]
    world.controllers.states.clear()
    with pytest.raises(KafkaError, match="no controller answers") as refused:
        await world.requests.quorum()
    assert refused.value.code is ErrorCode.NOT_CONTROLLER


# ---------------------------------------------------------------- the log


async def test_the_log_is_read_from_within_a_batch_and_from_any_controller() -> None:
    world = World()
    world.controllers.down = {NODES[1]}
    page = await world.requests.log(offset(3), 0)
    assert [batch.base_offset for batch in page.batches] == [2, 4]
    assert (page.end_offset, page.instead) == (6, None)
    assert world.controllers.fetched[0][0] == 102, "the leader is asked first"
    world.controllers.down = set(NODES)
    with pytest.raises(KafkaError) as refused:
        await world.requests.log(offset(0), 0)
    assert refused.value.code is ErrorCode.NOT_CONTROLLER


async def test_offsets_too_old_for_the_log_are_answered_from_this_brokers_image() -> None:
    world = World()
    world.grow(5)
    world.loader.follow()
    page = await world.requests.log(offset(0), 0)
    assert page.batches == ()
    assert page.instead is world.loader.image
    made = [answer.snapshot for answer in world.controllers.answers]
    assert not any(made), "no controller makes one for a reader"


async def test_beyond_the_end_is_refused() -> None:
    with pytest.raises(KafkaError) as refused:
        await World().requests.log(offset(7), 0)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_reader_waits_here_and_takes_no_place_of_a_broker() -> None:
    world = World()
    read = asyncio.create_task(world.requests.log(offset(6), 60_000))
    await asyncio.sleep(0.01)
    assert not read.done()
    assert world.controllers.fetched == []
    world.grow(1)
    world.loader.follow()
    async with asyncio.timeout(20):
        page = await read
    assert [batch.base_offset for batch in page.batches] == [6]
    assert (await world.requests.log(offset(8), 10)).batches == (), "the time-out is no error"


async def test_only_so_many_readers_wait_at_once() -> None:
    world = World()
    async with asyncio.TaskGroup() as group:
        waiting = [
            group.create_task(world.requests.log(offset(6), 5_000)) for _ in range(MAX_LOG_READERS)
        ]
        await asyncio.sleep(0.01)
        with pytest.raises(KafkaError) as refused:
            await world.requests.log(offset(6), 5_000)
        assert refused.value.code is ErrorCode.QUEUE_FULL
        world.grow(1)
        world.loader.follow()
    assert all(task.result().batches for task in waiting)
    assert (await world.requests.log(offset(6), 5_000)).batches, "the places are free again"
