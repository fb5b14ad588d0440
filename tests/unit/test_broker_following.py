"""How a broker follows the metadata log: in steps, once per answer, and only what concerns it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from typing_extensions import override

from broker.config import BrokerConfig
from broker.replication.follower_stream import FRAMES_PER_TURN as PUSHES_PER_TURN
from broker.replication.follower_stream import FollowerStream
from broker.replication.frames import (
    FrameKind,
    Open,
    Push,
    Valid,
    decode,
    encode,
    encode_push_head,
    key_of,
)
from broker.replication.leader_state import LeaderState
from broker.replication.leader_stream import FRAMES_PER_TURN, LeaderStream
from broker.replication.partition import Following
from broker.replication.replica_manager import (
    PARTITIONS_PER_STEP,
    ReplicaManager,
    Rounds,
    concerns_all,
    partitions_to_apply,
)
from broker.server.metadata_loader import MetadataLoader
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import (
    BrokerId,
    ClusterId,
    ControllerEpoch,
    DirectoryId,
    LeaderEpoch,
    MetadataOffset,
    NodeId,
    PartitionEpoch,
    PartitionId,
    TopicName,
)
from raft_metadata.records.commands import FetchMetadata, FetchMetadataAnswer, MetadataBatch
from raft_metadata.records.records import (
    BrokerRegistrationChangeRecord,
    BrokerState,
    MetadataRecord,
    PartitionChangeRecord,
)
from tests.support.hosted_replicas import (
    FIRST_ID,
    ME,
    OTHER,
    SECOND_ID,
    StreamTransport,
    created,
    hosted,
    images,
    receive,
    registered,
)
from tests.support.logs import Life, append
from tests.support.simulated_disk import SimulatedDisk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from broker.ports import ControllerChannel
    from broker.replication.follower_stream import LeaderLink
    from raft_metadata.image.metadata_image import MetadataImage

MANY = 300
REGISTERED = ((registered(ME, 0, "first"),), (registered(OTHER, 1, "other"),))


def roles_of(manager: ReplicaManager) -> int:
    """How many replicas lead."""
    return sum(isinstance(each.partition.role, LeaderState) for each in manager.replicas())


def fence(broker: BrokerId, epoch: int) -> tuple[BrokerRegistrationChangeRecord]:
    record = BrokerRegistrationChangeRecord(
        broker_id=broker,
        broker_epoch=registered(broker, epoch, "x").broker_epoch,
        state=BrokerState.FENCED,
        settled=True,
    )
    return (record,)


def moved(partition: int, leader: BrokerId) -> PartitionChangeRecord:
    return PartitionChangeRecord(
        topic_id=FIRST_ID,
        partition=PartitionId(partition),
        directories=(DirectoryId(f"d{ME}"), DirectoryId(f"d{OTHER}")),
        isr=(ME, OTHER),
        elr=(),
        leader=leader,
        leader_epoch=LeaderEpoch(1),
        partition_epoch=PartitionEpoch(1),
    )


# ---- an image in steps


async def test_many_partitions_are_opened_in_steps_between_which_others_have_their_turn(
    tmp_path: Path,
) -> None:
    _, manager = hosted(tmp_path, "first")
    *before, last = images(*REGISTERED, created(FIRST_ID, (ME, OTHER), count=MANY))
    for image in before:
        manager.on_metadata_update(image)
    led = [roles_of(manager) for _ in manager.follow(last)]
    assert led == list(range(PARTITIONS_PER_STEP, MANY, PARTITIONS_PER_STEP))
    assert roles_of(manager) == MANY


async def test_a_deleted_topic_goes_in_steps_too(tmp_path: Path) -> None:
    _, manager = hosted(tmp_path, "first")
    *_, last = images(*REGISTERED, created(FIRST_ID, (ME, OTHER), count=MANY))
    manager.on_metadata_update(last)
    gone = replace(last, topics={}, topic_ids={})
    assert len(list(manager.follow(gone))) == MANY // PARTITIONS_PER_STEP
    assert not list(manager.replicas())


def test_a_fence_of_another_broker_concerns_no_replica_and_a_registration_all() -> None:
    *_, before, fenced = images(*REGISTERED, fence(OTHER, 1))
    *_, again = images(*REGISTERED, (registered(OTHER, 2, "second"),))
    *_, mine = images(*REGISTERED, fence(ME, 0))
    assert not concerns_all(before, before, ME)
    assert not concerns_all(before, fenced, ME)
    assert concerns_all(before, again, ME)
    assert concerns_all(before, mine, ME)


def test_only_changed_and_new_partitions_are_looked_at() -> None:
    *_, before, after = images(
        *REGISTERED, created(FIRST_ID, (ME, OTHER), count=5), (moved(3, OTHER),)
    )
    found = partitions_to_apply(before, after, everything=False)
    assert [(topic.topic_id, numbers) for topic, numbers in found] == [(FIRST_ID, [3])]
    topic = after.topics[FIRST_ID]
    grown = replace(topic, partitions=(*topic.partitions, topic.partitions[0]))
    larger = replace(after, topics={FIRST_ID: grown})
    assert [n for _, n in partitions_to_apply(after, larger, everything=False)] == [[5]]
    assert [n for _, n in partitions_to_apply(after, after, everything=True)] == [[0, 1, 2, 3, 4]]


def test_a_round_looks_at_each_member_once() -> None:
    rounds, members = Rounds[int](10), list(range(57))
    parts = [list(rounds.next_part(members)) for _ in range(20)]
    assert sorted(number for part in parts[:10] for number in part) == members
    assert sorted(number for part in parts[10:] for number in part) == members
    assert max(map(len, parts)) == 6


# ---- a follower that opens thousands of sessions at once


class PausingTransport(StreamTransport):
    """Counts how often it was told to rest."""

    rests = 0

    @override
    def pause_reading(self) -> None:
        self.rests += 1

    @override
    def resume_reading(self) -> None:
        """It had nothing more."""


async def test_a_burst_of_opens_is_answered_in_turns_and_none_is_lost(tmp_path: Path) -> None:
    count = 2 * FRAMES_PER_TURN + 10
    _, manager = hosted(tmp_path, "first")
    for image in images(*REGISTERED, created(FIRST_ID, (ME, OTHER), count=count)):
        manager.on_metadata_update(image)
    stream, transport = LeaderStream(OTHER, manager), PausingTransport()
    stream.connection_made(transport)
    opens = [
        encode(key_of(FIRST_ID, PartitionId(number)), Open(number, 0, 1, -1, 0, 0))
        for number in range(count)
    ]
    burst = b"".join(opens)
    receive(stream, burst[:-7])
    assert transport.rests == 1
    assert len(answered(transport)) == FRAMES_PER_TURN
    for _ in range(4):
        await asyncio.sleep(0)
    assert transport.rests == 2
    assert len(answered(transport)) == count - 1
    receive(stream, burst[-7:])
    assert answered(transport) == list(range(count))


def answered(transport: StreamTransport) -> list[int]:
    """The requests that were found valid, in order."""
    data, at, found = b"".join(transport.sent), 0, []
    while at < len(data):
        length, kind = int.from_bytes(data[at : at + 4], "little"), data[at + 4]
        if kind == FrameKind.VALID:
            found.append(decode(kind, memoryview(data)[at + 5 : at + 5 + length])[1][0])
        assert kind != FrameKind.OPEN
        at += 5 + length
    return [int(request) for request in found]


async def test_a_burst_of_first_pushes_is_taken_in_turns_and_none_is_lost(tmp_path: Path) -> None:
    count = PUSHES_PER_TURN + 10
    logs, manager = hosted(tmp_path, "first")
    records = (registered(OTHER, 0, "other"),), (registered(ME, 1, "first"),)
    for image in images(*records, created(FIRST_ID, (OTHER, ME), count=count)):
        manager.on_metadata_update(image)
    stream, transport = FollowerStream(OTHER, manager), PausingTransport()
    stream.connection_made(transport)
    burst = b"".join(pushes(manager, stream, append(Life(SimulatedDisk()).log(), ["x"], epoch=0)))
    receive(stream, burst)
    ends = [log.log_end_offset for log in logs.logs()]
    assert (sum(ends), transport.rests) == (PUSHES_PER_TURN, 1)
    await asyncio.sleep(0)
    assert [log.log_end_offset for log in logs.logs()] == [1] * count


def pushes(manager: ReplicaManager, stream: FollowerStream, raw: bytes) -> Iterator[bytes]:
    """One record for every partition, in its session."""
    for number, replica in enumerate(manager.replicas()):
        role = replica.partition.role
        assert isinstance(role, Following)
        assert replica.link is not None
        cast("LeaderLink", replica.link).stream = stream
        replica.partition.open_message(number, 0)
        replica.partition.on_valid(Valid(number, 0, 5, 0))
        yield encode_push_head(replica.key, Push(5, 0, 0, 1, 0, 0, b""), len(raw)) + raw


# ---- the loader


class Source:
    """A controller that answers what it is told to."""

    controllers = (NodeId(101), NodeId(102))

    def __init__(self) -> None:
        self.answers: asyncio.Queue[FetchMetadataAnswer | KafkaError] = asyncio.Queue()
        self.asked: list[tuple[NodeId, int]] = []

    async def fetch_metadata(self, source: NodeId, request: FetchMetadata) -> FetchMetadataAnswer:
        self.asked.append((source, request.from_offset))
        answer = await self.answers.get()
        if isinstance(answer, KafkaError):
            raise answer
        return answer

    def say(self, *batches: Sequence[MetadataRecord], start: int = 0, epoch: int = 1) -> None:
        """One answer with these batches."""
        made, offset = [], start
        for records in batches:
            made.append(
                MetadataBatch(
                    base_offset=MetadataOffset(offset),
                    epoch=ControllerEpoch(epoch),
                    records=tuple(records),
                )
            )
            offset += len(records)
        answer = FetchMetadataAnswer(
            leader_id=NodeId(101),
            epoch=ControllerEpoch(epoch),
            leader_contact_age_ms=0,
            end_offset=MetadataOffset(offset),
            batches=tuple(made),
        )
        self.answers.put_nowait(answer)


class Followed:
    """A loader with its replicas and its audience."""

    def __init__(self, data_dir: Path) -> None:
        self.source = Source()
        self.gate = asyncio.Event()
        self.gate.set()
        self.steps = 0
        self.published: list[tuple[int, int]] = []
        config = BrokerConfig(
            broker_id=ME,
            cluster_id=ClusterId("c"),
            directory_id=DirectoryId("d1"),
            data_dir=data_dir,
            advertised_http="h:1",
            advertised_peer="h:2",
        )
        self.loader = MetadataLoader(
            config, cast("ControllerChannel", self.source), SystemClock(), self._follow, self._heard
        )

    def _follow(self, image: MetadataImage) -> Iterator[None]:
        while not self.gate.is_set():
            self.steps += 1
            assert self.loader.image.next_offset < image.next_offset
            yield

    def _heard(self, before: MetadataImage, after: MetadataImage) -> None:
        self.published.append((before.next_offset, after.next_offset))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self.loader.run())
            yield
            task.cancel()

    async def until(self, offset: int) -> None:
        async with asyncio.timeout(20):
            await self.loader.wait_for(MetadataOffset(offset))


async def test_an_answer_of_many_batches_is_followed_and_published_once(tmp_path: Path) -> None:
    here = Followed(tmp_path)
    async with here.running():
        here.source.say(*REGISTERED)
        await here.loader.loaded.wait()
        topics = [created(FIRST_ID, (ME, OTHER)), created(SECOND_ID, (ME,), name=TopicName("b"))]
        here.source.say(*topics, (moved(0, OTHER),), start=2)
        await here.until(7)
    # What was read at the start is no news; from there on one step per answer.
    assert here.published == [(2, 2), (2, 7)]
    partition = here.loader.image.partition(FIRST_ID, PartitionId(0))
    assert partition is not None
    assert (partition.leader, partition.leader_epoch_offset) == (OTHER, 6)


async def test_an_image_is_this_brokers_only_once_every_role_is_taken(tmp_path: Path) -> None:
    here = Followed(tmp_path)
    async with here.running():
        here.source.say(*REGISTERED)
        await here.loader.loaded.wait()
        here.gate.clear()
        here.source.say(created(FIRST_ID, (ME, OTHER)), start=2)
        async with asyncio.timeout(20):
            while here.steps < 3:  # noqa: ASYNC110 the loader's own steps are counted
                await asyncio.sleep(0)
        assert here.loader.image.next_offset == 2
        assert len(here.published) == 1
        here.gate.set()
        await here.until(4)
        assert here.published[-1] == (2, 4)


@pytest.mark.parametrize(("start", "epoch"), [(3, 1), (2, 0)])
async def test_rule_m5_a_gap_or_an_older_epoch_changes_nothing_and_costs_the_source(
    tmp_path: Path, start: int, epoch: int
) -> None:
    here = Followed(tmp_path)
    async with here.running():
        here.source.say(*REGISTERED)
        await here.loader.loaded.wait()
        here.source.say(created(FIRST_ID, (ME, OTHER)), start=start, epoch=epoch)
        here.source.answers.put_nowait(KafkaError(ErrorCode.METADATA_BEHIND))
        async with asyncio.timeout(20):
            while len({source for source, _ in here.source.asked}) < 2:  # noqa: ASYNC110 as above
                await asyncio.sleep(0.01)
    assert here.loader.image.next_offset == 2
    assert not here.loader.image.topics
    assert here.source.asked[-1][1] == 2
