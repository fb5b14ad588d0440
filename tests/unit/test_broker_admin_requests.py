"""What a broker does around an operator's command: asks once, waits for its image, tells others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.config import BrokerConfig, BrokerTimeouts
from broker.coordinator.troubles import ShardTroubles
from broker.server import peer_codec
from broker.server.admin import AdminRequests
from broker.server.health import REASON_CHARACTERS_MAX, Damage, damage_led_here
from broker.server.peer_codec import PeerRequestKind
from broker.server.peer_requests import PeerRequests
from broker.server.requests import OwnFacts, PartitionProgress
from broker.server.topics import TopicRequests
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import (
    NO_LEADER,
    BrokerId,
    ClusterId,
    DirectoryId,
    MetadataOffset,
    PartitionId,
    TopicId,
    TopicIdPartition,
    TopicName,
)
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.records.commands import (
    AddPartitions,
    AlterAnswer,
    AlterConfigs,
    Command,
    ConfigChange,
    DrainBroker,
    PartitionsAdded,
)
from raft_metadata.records.records import DrainScope, ResourceType
from tests.support.fake_broker_apis import FakeBrokerApis

ME, OTHER, FENCED = BrokerId(1), BrokerId(2), BrokerId(3)
FLIGHTS = TopicName("flights")
FLIGHTS_ID = TopicId(f"{FLIGHTS:x<22}")
THEN = MetadataOffset(12)
DRAIN = DrainBroker(broker_id=OTHER, scope=DrainScope.LEADERS)

NO_DAMAGE = Damage(count=0, partitions=())


@dataclass
class FakeLoader:
    """An image that changes when the test says so."""

    image: MetadataImage
    waiters: list[asyncio.Future[None]] = field(default_factory=list)

    def become(self, image: MetadataImage) -> None:
        self.image = image
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            waiter.set_result(None)

    async def changed(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        await waiter

    async def wait_for(self, offset: MetadataOffset) -> MetadataImage:
        while self.image.next_offset < offset:
            await self.changed()
        return self.image


@dataclass
class World:
    """A broker's part that answers operators; controllers and other brokers are said."""

    apis: FakeBrokerApis = field(default_factory=FakeBrokerApis)
    answer: object = field(default_factory=lambda: AlterAnswer(next_offset=THEN))
    asked: list[Command[Any]] = field(default_factory=list)
    called: list[tuple[int, int]] = field(default_factory=list)
    peer: Callable[[int, bytes], bytes] = lambda _kind, _body: peer_codec.encode_own_facts()

    def __post_init__(self) -> None:
        self.apis.add_topic(FLIGHTS, 2)
        self.loader = FakeLoader(self.apis.image)
        config = BrokerConfig(
            broker_id=ME,
            cluster_id=ClusterId("c" * 22),
            directory_id=DirectoryId("d" * 22),
            data_dir=Path("none"),
            advertised_http="",
            advertised_peer="",
            timeouts=BrokerTimeouts(topic_ready_ms=200),
        )
        world = cast("Any", self)
        loader = cast("Any", self.loader)
        topics = TopicRequests(config, loader, world, world, SystemClock(), bytes)
        facts = OwnFacts(
            static_configs={"flush": "os"}, shutdown_blocked_by="leads 1", damage=NO_DAMAGE
        )
        self.local = cast("Any", SimpleNamespace(leading=self.leading))
        self.requests = AdminRequests(
            config, self.local, loader, world, world, lambda: facts, topics
        )
        self.facts = facts
        self.services = PeerRequests(
            self.local,
            cast("Any", None),
            loader,
            cast("Any", None),
            cast("Any", None),
            cast("Any", None),
            lambda: self.facts,
            cast("Any", None),
            cast("Any", None),
            cast("Any", None),
        )

    def leading(self, place: TopicIdPartition) -> tuple[Any, Any]:
        """Partition 0 is led here."""
        if place.partition != 0:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        replica = SimpleNamespace(
            log=SimpleNamespace(log_end_offset=9), partition=SimpleNamespace(high_watermark=7)
        )
        return replica, SimpleNamespace(followers={OTHER: SimpleNamespace(log_end=5)})

    def now_at(self, offset: int) -> None:
        """The image reaches an offset, with what the fake holds by now."""
        self.loader.become(replace(self.apis.image, next_offset=MetadataOffset(offset)))

    # as the channels of a broker

    async def execute(self, command: Command[Any]) -> Any:
        self.asked.append(command)
        if isinstance(self.answer, KafkaError):
            raise self.answer
        return self.answer

    async def call(
        self, broker_id: int, _peer: str, kind: int, body: bytes, _timeout_ms: int
    ) -> bytes:
        self.called.append((broker_id, kind))
        return self.peer(kind, body)


async def test_a_command_is_answered_once_this_image_holds_its_result() -> None:
    world = World()
    task = asyncio.create_task(world.requests.ask(DRAIN))
    await asyncio.sleep(0)
    world.now_at(11)
    await asyncio.sleep(0)
    assert not task.done()
    world.now_at(12)
    assert await task == world.answer


async def test_a_change_not_seen_here_in_time_is_unknown() -> None:
    world = World()
    with pytest.raises(KafkaError) as raised:
        await world.requests.ask(DRAIN)
    assert raised.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert raised.value.outcome is Outcome.UNKNOWN


@pytest.mark.parametrize("outcome", list(Outcome))
async def test_rule_f2_a_command_is_asked_once_whatever_became_of_it(outcome: Outcome) -> None:
    world = World(answer=KafkaError(ErrorCode.REQUEST_TIMED_OUT, outcome=outcome))
    with pytest.raises(KafkaError) as raised:
        await world.requests.ask(DRAIN)
    assert (raised.value.outcome, len(world.asked)) == (outcome, 1)


async def test_a_change_that_is_only_validated_is_not_waited_for() -> None:
    world = World()
    assert await world.requests.ask(AlterConfigs(changes=(), validate_only=True)) == world.answer
    assert world.called == []


async def test_a_changed_config_is_told_to_every_live_broker_first() -> None:
    world = World()
    world.now_at(12)
    change = ConfigChange(
        resource_type=ResourceType.CLUSTER, resource_name="", name="flush", value="os"
    )
    await world.requests.ask(AlterConfigs(changes=(change,)))
    assert world.called == [(OTHER, PeerRequestKind.AWAIT_METADATA)]


async def test_a_broker_that_does_not_answer_holds_no_config_up() -> None:
    def silent(_kind: int, _body: bytes) -> bytes:
        raise KafkaError(ErrorCode.NETWORK_EXCEPTION)

    world = World(peer=silent)
    world.now_at(12)
    assert await world.requests.ask(AlterConfigs(changes=())) == world.answer


async def test_new_partitions_are_waited_for_not_an_old_one_without_a_leader() -> None:
    added = PartitionsAdded(topic_id=FLIGHTS_ID, partitions_count=3, next_offset=THEN)
    world = World(answer=added)
    world.apis.change_partition(FLIGHTS, 0, leader=NO_LEADER)
    world.now_at(11)
    task = asyncio.create_task(world.requests.ask(AddPartitions(topic=FLIGHTS, partitions_count=3)))
    await asyncio.sleep(0)
    world.apis.add_topic(FLIGHTS, 3)
    world.apis.change_partition(FLIGHTS, 0, leader=NO_LEADER)
    world.apis.change_partition(FLIGHTS, 2, leader=NO_LEADER)
    world.now_at(12)
    await asyncio.sleep(0)
    assert not task.done(), "the new partition has no leader yet"
    world.apis.change_partition(FLIGHTS, 2, leader=OTHER)
    world.now_at(13)
    assert await task == added
    assert world.called == [(OTHER, PeerRequestKind.AWAIT_METADATA)]


@pytest.mark.parametrize(
    ("topic", "count", "code"),
    [
        ("__consumer_offsets", 24, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("flights", 10_001, ErrorCode.INVALID_PARTITIONS),
    ],
)
async def test_a_growth_that_is_not_allowed_is_refused_before_it_is_asked(
    topic: str, count: int, code: ErrorCode
) -> None:
    world = World()
    with pytest.raises(KafkaError) as raised:
        await world.requests.ask(AddPartitions(topic=TopicName(topic), partitions_count=count))
    assert (raised.value.code, world.asked) == (code, [])


# ---------------------------------------------------------------- what only one broker knows


async def test_progress_is_asked_of_each_leader_once_and_what_is_missing_is_left_out() -> None:
    places = [TopicIdPartition(FLIGHTS_ID, PartitionId(number)) for number in range(3)]
    world = World()
    world.apis.add_topic(FLIGHTS, 3)
    for number in (1, 2):
        world.apis.change_partition(FLIGHTS, number, leader=OTHER)
    world.now_at(12)
    other = World()

    # The other one leads partition 0 alone, by its own lights: it says nothing of 1 and 2.
    body = await other.services.answer(
        PeerRequestKind.PROGRESS, peer_codec.encode_progress(places[1:]), timeout_ms=100
    )
    world.peer = lambda _kind, _body: body
    mine = PartitionProgress(log_end_offset=9, high_watermark=7, follower_ends={OTHER: 5})
    assert await world.requests.progress(places) == {places[0]: mine}
    assert world.called == [(OTHER, PeerRequestKind.PROGRESS)]
    body = await other.services.answer(
        PeerRequestKind.PROGRESS, peer_codec.encode_progress(places), timeout_ms=100
    )
    assert peer_codec.decode_progress(body) == {places[0]: mine}


async def test_progress_goes_on_without_a_broker_that_is_silent() -> None:
    def silent(_kind: int, _body: bytes) -> bytes:
        raise KafkaError(ErrorCode.NETWORK_EXCEPTION)

    world = World(peer=silent)
    world.apis.change_partition(FLIGHTS, 1, leader=OTHER)
    world.now_at(12)
    places = [TopicIdPartition(FLIGHTS_ID, PartitionId(number)) for number in (0, 1)]
    assert list(await world.requests.progress(places)) == places[:1]


async def test_facts_of_a_broker_come_from_that_broker() -> None:
    world, other = World(), World()
    body = await other.services.answer(
        PeerRequestKind.OWN_FACTS, peer_codec.encode_own_facts(), timeout_ms=100
    )
    world.peer = lambda _kind, _body: body
    expected = OwnFacts(
        static_configs={"flush": "os"}, shutdown_blocked_by="leads 1", damage=NO_DAMAGE
    )
    assert await world.requests.own_facts(ME) == expected
    assert world.called == []
    assert await world.requests.own_facts(OTHER) == expected
    assert world.called == [(OTHER, PeerRequestKind.OWN_FACTS)]
    place = TopicIdPartition(FLIGHTS_ID, PartitionId(0))
    damage = Damage(count=7, partitions=((place, "damaged batch file=/x"),))
    troubles = (
        ShardTroubles(
            partition=PartitionId(3),
            blocked=7,
            blocked_examples=("g at t:0:1",),
            held=1,
            held_examples=("h",),
            left_out=2,
            loading_ms=10_001,
        ),
    )
    other.facts = replace(expected, damage=damage, troubles=troubles)
    body = await other.services.answer(
        PeerRequestKind.OWN_FACTS, peer_codec.encode_own_facts(), 100
    )
    assert (await world.requests.own_facts(OTHER)).damage == damage


def test_of_damaged_replicas_those_are_told_that_lead() -> None:
    place = TopicIdPartition(FLIGHTS_ID, PartitionId(0))
    damaged = {place._replace(partition=PartitionId(n)): "x" * 999 for n in (0, 1, 2)}
    told = damage_led_here(damaged, place.__eq__)
    assert told.count == 1
    assert told.partitions == ((place, "x" * REASON_CHARACTERS_MAX),)


async def test_a_broker_that_can_t_be_asked_is_not_available() -> None:
    def silent(_kind: int, _body: bytes) -> bytes:
        raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "connection refused")

    world = World(peer=silent)
    for broker, code in (
        (FENCED, ErrorCode.BROKER_NOT_AVAILABLE),
        (BrokerId(9), ErrorCode.BROKER_ID_NOT_REGISTERED),
    ):
        with pytest.raises(KafkaError) as raised:
            await world.requests.own_facts(broker)
        assert raised.value.code is code
