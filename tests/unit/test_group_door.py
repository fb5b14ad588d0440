"""Group requests at the door: where they go, how often, and what they look like on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import pytest

from broker.config import BrokerConfig
from broker.coordinator import group_messages
from broker.coordinator.group_messages import (
    Assign,
    AtTime,
    BlockedPartition,
    BlockedPlace,
    Commit,
    CommitGroup,
    CommittedOffsets,
    ConsumerSettings,
    CreateInstance,
    DeleteInstance,
    DescribeGroup,
    DescribeInstance,
    Edge,
    ForgottenRecord,
    GroupDescription,
    GroupOffset,
    GroupOffsetRow,
    GroupOffsets,
    GroupRepaired,
    GroupRequest,
    GroupState,
    InstanceCreated,
    InstanceDescription,
    MemberDescription,
    OffsetReset,
    OffsetsCommitted,
    Poll,
    PolledRecords,
    RepairGroup,
    Seek,
    SeekTarget,
    SkippedRecord,
    SkipRecords,
    Subscribe,
    UnreadableRecords,
    Unsubscribe,
)
from broker.coordinator.records import OFFSETS_TOPIC
from broker.record.batch import RecordFormat
from broker.server.broker_apis import RoutedBrokerApis
from broker.server.fetch import ReadRouting
from broker.server.requests import OffsetsResult, ProduceRequest
from raft_metadata.common.clock import Clock, SystemClock
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import (
    BrokerId,
    ClusterId,
    DirectoryId,
    GroupId,
    InstanceId,
    MetadataOffset,
    PartitionId,
    TopicName,
    TopicPartition,
)
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.records.commands import CreateTopic, DeleteTopic, TopicCreated
from tests.support.fake_broker_apis import FakeBrokerApis

G, ONE, T = GroupId("g"), InstanceId("i"), TopicName("t")
PLACE = TopicPartition(T, PartitionId(2))
ROW = GroupOffset(T, PartitionId(2), 7, "note")
MEMBER = MemberDescription(
    instance=ONE, client_id="c", assignment=(PLACE,), is_manual=False, member_epoch=3, topics=(T,),
    target=(PLACE,),
)  # fmt: skip
DESCRIBED = GroupDescription(
    group=G, state=GroupState.STABLE, assignor="range", coordinator=BrokerId(2), group_epoch=3,
    members=(MEMBER,),
    blocked=(
        BlockedPartition(
            topic=T, partition=PartitionId(2), offset=9, instance=ONE, message="m", since_ms=7
        ),
    ),
)  # fmt: skip
SETTINGS = ConsumerSettings(
    format="json", auto_offset_reset=OffsetReset.NONE, strimzi=True, max_poll_records=5,
    unreadable_records=UnreadableRecords.MARK,
)  # fmt: skip
EXCHANGES: list[tuple[GroupRequest[Any], object]] = [
    (CreateInstance(group=G, instance=ONE, settings=SETTINGS), InstanceCreated(instance=ONE)),
    (DeleteInstance(group=G, instance=ONE), None),
    (Subscribe(group=G, instance=ONE, topics=(T,)), None),
    (Subscribe(group=G, instance=ONE, pattern="t.*"), None),
    (Unsubscribe(group=G, instance=ONE), None),
    (
        DescribeInstance(group=G, instance=ONE),
        InstanceDescription(
            settings=SETTINGS, topics=(T,), pattern=None, assignment=(PLACE,), is_manual=True,
            member_epoch=-1,
        ),
    ),
    (Assign(group=G, instance=ONE, partitions=(PLACE,)), None),
    (
        Poll(group=G, instance=ONE, timeout_ms=5, accepted=frozenset({"json"})),
        PolledRecords(body=b'[{"value":1}]', count=1, format="json"),
    ),
    (
        Poll(group=G, instance=ONE),
        PolledRecords(
            body=b"[]", count=0, format="json", token="a.1-7", is_resumed=True,
            blocked=(BlockedPlace(T, PartitionId(2), 9),),
        ),
    ),
    (Commit(group=G, instance=ONE), OffsetsCommitted(strimzi=True)),
    (Commit(group=G, instance=ONE, offsets=(ROW,)), OffsetsCommitted(strimzi=False)),
    (CommittedOffsets(group=G, instance=ONE, partitions=(PLACE,)), (ROW,)),
    (Seek(group=G, instance=ONE, targets=(SeekTarget(*PLACE, Edge.END),)), None),
    (Seek(group=G, instance=ONE, targets=(SeekTarget(*PLACE, AtTime(9)),)), None),
    (Seek(group=G, instance=ONE, targets=(SeekTarget(*PLACE, 4),)), None),
    (CommitGroup(group=G, offsets=(ROW,), member_id=ONE, member_epoch=3), None),
    (GroupOffsets(group=G, topics=frozenset({T})), (GroupOffsetRow(*PLACE, 7, "note", 9),)),
    (
        GroupOffsets(group=G, with_starts=True),
        (GroupOffsetRow(*PLACE, None, "", 9, is_committed=False, blocked_offset=3),),
    ),
    (DescribeGroup(group=G), DESCRIBED),
    (SkipRecords(group=G, records=(SkippedRecord(T, PartitionId(2), 9),)), None),
    (
        RepairGroup(group=G, validate_only=True),
        GroupRepaired(
            forgotten=(ForgottenRecord(partition=PartitionId(3), offset=8, key="k", reason="r"),),
            members=(ONE,),
            offsets=(ROW,),
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("request_", "answer"), EXCHANGES)
def test_requests_and_answers_cross_between_brokers(
    request_: GroupRequest[Any], answer: object
) -> None:
    assert group_messages.decode_request(group_messages.encode_request(request_)) == request_
    assert group_messages.decode_answer(request_, group_messages.encode_answer(answer)) == answer


def test_lists_of_groups_cross_between_brokers() -> None:
    assert group_messages.decode_groups(group_messages.encode_answer((DESCRIBED,))) == (DESCRIBED,)


@pytest.mark.parametrize("body", [b"", b"\x02\x00\x00\x00{}", b'\x0d\x00\x00\x00{"group":[1]}'])
def test_malformed_requests_are_refused(body: bytes) -> None:
    with pytest.raises(KafkaError) as refusal:
        group_messages.decode_request(body)
    assert refusal.value.code is ErrorCode.INVALID_REQUEST


# ---------------------------------------------------------------- routing


@dataclass
class FakeLoader:
    image: MetadataImage
    loaded: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.loaded.set()

    async def changed(self) -> None:
        return None

    async def newest_offset(self) -> MetadataOffset:
        return self.image.next_offset

    async def wait_for(self, offset: MetadataOffset) -> MetadataImage:
        return self.image


@dataclass
class Peers:
    """Answers, or errors, one a call."""

    answers: list[bytes | KafkaError]
    sent: list[tuple[int, bytes]] = field(default_factory=list)

    def post(self, *_: object) -> None:
        """No connection is open: what is posted is called."""

    async def call(
        self, broker_id: BrokerId, peer: str, kind: int, body: bytes, timeout_ms: int
    ) -> bytes:
        self.sent.append((kind, body))
        answer = self.answers.pop(0)
        if isinstance(answer, KafkaError):
            raise answer
        return answer


@dataclass
class Controllers:
    """Creates the topic once enough brokers live."""

    apis: FakeBrokerApis
    loader: FakeLoader
    refusals: int = 0
    commands: list[CreateTopic] = field(default_factory=list)

    async def execute(self, command: CreateTopic) -> TopicCreated:
        self.commands.append(command)
        if self.refusals:
            self.refusals -= 1
            raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR)
        created = await self.apis.create_topic(command)
        self.loader.image = self.apis.image
        return created


class NoCoordinator:
    """This broker leads nothing; whatever is asked here is a mistake of the routing."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    async def answer(self, request: object) -> None:
        self.asked.append(request)


def door(
    tmp_path: Path,
    answers: list[bytes | KafkaError],
    *,
    topics: Mapping[str, int] = MappingProxyType({OFFSETS_TOPIC: 12}),
    me: int = 2,
    clock: Clock | None = None,
) -> tuple[RoutedBrokerApis, Peers, Controllers, NoCoordinator]:
    """Broker ``me``; broker 1 leads all partitions of ``topics``."""
    apis = FakeBrokerApis()
    for name, partitions in topics.items():
        apis.add_topic(TopicName(name), partitions)
    loader, peers = FakeLoader(apis.image), Peers(answers)
    controllers, coordinator = Controllers(apis, loader), NoCoordinator()
    config = BrokerConfig(
        broker_id=BrokerId(me),
        cluster_id=ClusterId("c"),
        directory_id=DirectoryId("d" * 22),
        data_dir=tmp_path,
        advertised_http="127.0.0.1:1",
        advertised_peer="127.0.0.1:2",
    )
    lifecycle = SimpleNamespace(controller_clock=clock or SystemClock())
    made_door = RoutedBrokerApis(
        config, cast("Any", None), cast("Any", loader), cast("Any", lifecycle),
        cast("Any", controllers), cast("Any", peers),
        lambda _: cast("Any", SimpleNamespace(groups=coordinator)),
        cast("Any", None), cast("Any", None), cast("Any", None), clock or SystemClock(),
        lambda count: bytes(range(count)),
    )  # fmt: skip
    return made_door, peers, controllers, coordinator


READ = Poll(group=G, instance=ONE, timeout_ms=0)
EMPTY = PolledRecords(body=b"[]", count=0, format="json")
LOST = KafkaError(ErrorCode.NETWORK_EXCEPTION)


async def test_rule_f2_a_read_whose_answer_was_lost_is_not_sent_again(tmp_path: Path) -> None:
    apis, peers, _, _ = door(tmp_path, [LOST, group_messages.encode_answer(EMPTY)])
    with pytest.raises(KafkaError) as failure:
        await apis.group(READ)
    assert failure.value.outcome is Outcome.UNKNOWN
    assert len(peers.sent) == 1


async def test_rule_f1_a_commit_of_unknown_outcome_is_not_sent_again(tmp_path: Path) -> None:
    apis, peers, _, _ = door(tmp_path, [LOST, group_messages.encode_answer(None)])
    with pytest.raises(KafkaError) as failure:
        await apis.group(CommitGroup(group=G, offsets=()))
    assert failure.value.outcome is Outcome.UNKNOWN
    assert len(peers.sent) == 1


async def test_a_partition_that_is_not_there_is_refused_before_anything_is_sent(
    tmp_path: Path,
) -> None:
    """From a coordinator the same words mean that its image lags behind."""
    apis, peers, _, _ = door(tmp_path, [])
    requests: list[GroupRequest[Any]] = [
        CommitGroup(group=G, offsets=(ROW,)),
        Commit(group=G, instance=ONE, offsets=(ROW,)),
        Assign(group=G, instance=ONE, partitions=(PLACE,)),
    ]
    for request in requests:
        with pytest.raises(KafkaError) as failure:
            await apis.group(request)
        assert failure.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert peers.sent == []


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    ],
)
async def test_a_refusal_that_did_nothing_is_followed_by_another_attempt(
    tmp_path: Path, code: ErrorCode
) -> None:
    apis, peers, _, _ = door(tmp_path, [KafkaError(code), group_messages.encode_answer(EMPTY)])
    assert await apis.group(READ) == EMPTY
    assert len(peers.sent) == 2


async def test_a_pure_read_is_asked_again(tmp_path: Path) -> None:
    apis, peers, _, _ = door(tmp_path, [LOST, group_messages.encode_answer(DESCRIBED)])
    assert await apis.group(DescribeGroup(group=G)) == DESCRIBED
    assert len(peers.sent) == 2


async def test_the_coordinator_itself_is_asked_without_a_hop(tmp_path: Path) -> None:
    apis, peers, _, coordinator = door(tmp_path, [], me=1)
    await apis.group(READ)
    assert (len(coordinator.asked), peers.sent) == (1, [])


async def test_lags_come_from_the_leaders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = GroupOffsetRow(T, PartitionId(0), 7, "", None)
    apis, _, _, _ = door(tmp_path, [group_messages.encode_answer((row,))])

    async def offsets(_: ReadRouting, topic: TopicName, partition: PartitionId) -> OffsetsResult:
        return OffsetsResult(beginning_offset=0, end_offset=10)

    monkeypatch.setattr(ReadRouting, "offsets", offsets)
    [found] = await apis.group(GroupOffsets(group=G))
    assert (found.end_offset, found.lag) == (10, 3)


# ---------------------------------------------------------------- first use, names


async def test_rule_m8_the_offsets_topic_is_made_on_first_use_and_waits_for_brokers(
    tmp_path: Path,
) -> None:
    answer = group_messages.encode_answer(InstanceCreated(instance=ONE))
    apis, _, controllers, _ = door(tmp_path, [b"", answer], topics={})
    controllers.refusals = 2
    await apis.group(CreateInstance(group=G, instance=ONE))
    command = controllers.commands[-1]
    assert len(controllers.commands) == 3
    assert (command.partitions_count, command.configs) == (12, {"flush": "ack"})


async def test_nothing_is_made_by_asking(tmp_path: Path) -> None:
    apis, _, controllers, _ = door(tmp_path, [], topics={})
    assert await apis.group(GroupOffsets(group=G)) == ()
    assert await apis.list_groups() == []
    for request, code in (
        (DescribeGroup(group=G), ErrorCode.GROUP_ID_NOT_FOUND),
        (READ, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        with pytest.raises(KafkaError) as refusal:
            await apis.group(cast("GroupRequest[Any]", request))
        assert refusal.value.code is code
    assert controllers.commands == []


async def test_a_name_is_made_up_before_anything_is_sent(tmp_path: Path) -> None:
    answer = group_messages.encode_answer(InstanceCreated(instance=ONE))
    apis, peers, _, _ = door(tmp_path, [answer])
    await apis.group(CreateInstance(group=G))
    sent = group_messages.decode_request(peers.sent[0][1])
    assert isinstance(sent, CreateInstance)
    assert str(sent.instance).startswith("rest-consumer-")


@pytest.mark.parametrize("name", ["", ".", "a b", "ü", "x" * 250])
async def test_names_that_are_none(tmp_path: Path, name: str) -> None:
    apis, _, _, _ = door(tmp_path, [])
    for request in (DescribeGroup(group=GroupId(name)), Poll(group=G, instance=InstanceId(name))):
        with pytest.raises(KafkaError) as refusal:
            await apis.group(cast("GroupRequest[Any]", request))
        assert refusal.value.code is ErrorCode.INVALID_GROUP_ID


async def test_only_a_coordinator_writes_the_offsets_topic(tmp_path: Path) -> None:
    apis, _, _, _ = door(tmp_path, [])
    produce = ProduceRequest(
        topic=OFFSETS_TOPIC, records=[], key_format=RecordFormat.JSON,
        value_format=RecordFormat.JSON,
    )  # fmt: skip
    for refused in (apis.produce(produce), apis.delete_topic(DeleteTopic(name=OFFSETS_TOPIC))):
        with pytest.raises(KafkaError) as refusal:
            await refused
        assert refusal.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
