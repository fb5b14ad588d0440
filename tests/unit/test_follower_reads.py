"""Who serves a reader that names its rack, and what a follower serves (KIP-392)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from broker.replication.frames import Push, Valid
from broker.replication.partition import NO_SESSION, Following
from broker.server.fetch import FollowerReads, choose_follower
from broker.server.local_partitions import Read
from broker.server.local_polls import LocalPolls, PollWatch
from broker.server.peer_codec import PeerRequestKind
from broker.server.poll_messages import PlacedRow, PollLeg
from broker.server.requests import FetchRequest, FetchResult
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.disk import Disk
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import (
    BrokerEpoch,
    BrokerId,
    DirectoryId,
    LeaderEpoch,
    PartitionEpoch,
    TopicIdPartition,
)
from raft_metadata.records.records import (
    BrokerRegistrationChangeRecord,
    BrokerState,
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    ResourceType,
)
from tests.support.hosted_replicas import (
    FIRST_ID,
    ME,
    ORDERS,
    OTHER,
    ZERO,
    config_of,
    created,
    hosted,
    images,
    registered,
)
from tests.support.logs import Life, append
from tests.support.simulated_disk import SimulatedDisk

if TYPE_CHECKING:
    from pathlib import Path

    from broker.log.log_reader import ColdRange
    from broker.ports import PeerChannel
    from broker.replication.replica import Replica
    from raft_metadata.image.metadata_image import MetadataImage
    from raft_metadata.records.records import MetadataRecord

HERE = TopicIdPartition(FIRST_ID, ZERO)
THIRD = BrokerId(3)
SELECTED = ConfigRecord(
    resource_type=ResourceType.CLUSTER, resource_name="", name="replica.selector", value="rack"
)


class Peers:
    """Remembers who was asked; answers with a refusal."""

    def __init__(self) -> None:
        self.asked: list[tuple[BrokerId, int]] = []

    async def call(
        self, broker_id: BrokerId, peer: str, kind: int, body: bytes, timeout_ms: int
    ) -> bytes:
        self.asked.append((broker_id, kind))
        raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)


def in_rack(record: RegisterBrokerRecord, rack: str) -> RegisterBrokerRecord:
    return replace(record, rack=rack)


def unfenced(broker: BrokerId, epoch: int) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(
        broker_id=broker,
        broker_epoch=BrokerEpoch(epoch),
        state=BrokerState.UNFENCED,
        settled=True,
    )


def history(isr: tuple[BrokerId, ...] = (OTHER, ME, THIRD)) -> list[tuple[MetadataRecord, ...]]:
    """`OTHER` leads in rack a; `ME` and `THIRD` follow in rack b and c."""
    epochs = {OTHER: 0, ME: 1, THIRD: 2}
    return [
        (in_rack(registered(OTHER, 0, "other"), "a"),),
        (in_rack(registered(ME, 1, "first"), "b"),),
        (in_rack(registered(THIRD, 2, "third"), "c"),),
        tuple(unfenced(broker, epoch) for broker, epoch in epochs.items()),
        (SELECTED,),
        tuple(
            replace(record, isr=isr) if isinstance(record, PartitionRecord) else record
            for record in created(FIRST_ID, (OTHER, ME, THIRD))
        ),
    ]


class Follower:
    """`ME` follows; ten records are here, six of them committed as it knows."""

    def __init__(self, data_dir: Path, *more: tuple[MetadataRecord, ...]) -> None:
        _, self.manager = hosted(data_dir, "first")
        self.proven = True
        self.peers = Peers()
        for image in images(*history(), *more):
            self.image: MetadataImage = image
            self.manager.on_metadata_update(image)
        self.reads = FollowerReads(
            config_of(data_dir),
            self.manager,
            cast("PeerChannel", self.peers),
            SystemClock(),
            lambda: self.proven,
        )
        found = self.manager.replica(HERE)
        assert found is not None
        self.replica: Replica = found
        partition = found.partition
        message = partition.open_message(7, 0)
        assert message is not None
        assert partition.on_valid(Valid(7, 0, 5, 0))
        source = Life(SimulatedDisk()).log()
        for number in range(10):
            raw = append(source, [number], epoch=0)
            partition.on_push(Push(5, 0, number, number + 1, min(number + 1, 6), 0, raw))
        assert (found.log.log_end_offset, partition.high_watermark) == (10, 6)

    async def offsets(self, offset: int, wait_ms: int = 0) -> list[int]:
        result = await self.reads.serve(read(offset, wait_ms))
        assert (result.served_by, result.leader_id, result.leader_epoch) == (ME, OTHER, 0)
        assert result.high_watermark <= self.replica.log.log_end_offset
        return [n for piece in result.slices for n in range(piece.first_offset, piece.next_offset)]


def read(offset: int, wait_ms: int = 0) -> Read:
    return Read(
        partition=HERE, offset=offset, timestamp_ms=None, max_bytes=1 << 20, max_wait_ms=wait_ms
    )


async def test_invariant_l20_a_follower_serves_below_its_own_high_watermark_only(
    tmp_path: Path,
) -> None:
    follower = Follower(tmp_path)
    assert await follower.offsets(2) == [2, 3, 4, 5]
    assert await follower.offsets(6) == [], "it is here, and not known to be committed"
    assert await follower.offsets(10) == []


async def test_records_committed_while_a_fetch_waits_are_served(tmp_path: Path) -> None:
    follower = Follower(tmp_path)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(follower.offsets(6, 5_000))
        await asyncio.sleep(0)
        follower.replica.partition.on_push(Push(5, 0, 10, 10, 8, 0, b""))
    assert waiting.result() == [6, 7]


async def test_cold_bytes_are_read_off_the_loop_and_the_replica_is_checked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = Follower(tmp_path)
    warmed: list[ColdRange] = []

    async def warm(cold: ColdRange) -> None:
        warmed.append(cold)
        await asyncio.sleep(0)

    monkeypatch.setattr("broker.server.local_partitions.warm", warm)
    monkeypatch.setattr(Disk, "is_cached", lambda *_: False)
    assert await follower.offsets(2) == [2, 3, 4, 5]
    assert len(warmed) == 1, "who is evicted again meanwhile is read on the loop"
    reading = asyncio.create_task(follower.offsets(2))
    await asyncio.sleep(0)
    _elect_third(follower)
    with pytest.raises(KafkaError) as refused:
        await reading
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_poll_of_a_follower_waits_there_and_leaves_the_rest_to_the_leader(
    tmp_path: Path,
) -> None:
    follower = Follower(tmp_path)
    polls = LocalPolls(
        config_of(tmp_path), cast("Any", None), follower.reads, follower.manager, SystemClock()
    )

    def leg(offset: int) -> PollLeg:
        return PollLeg(
            rows=[PlacedRow(0, HERE, offset, -1)], max_wait_ms=5_000, min_bytes=1,
            max_bytes=1 << 20, max_partition_bytes=1 << 20, news_only=False, packed=False,
            from_follower=True,
        )  # fmt: skip

    waiting = asyncio.ensure_future(polls.serve(leg(6), PollWatch()))
    await asyncio.sleep(0.02)
    assert not waiting.done(), "offset 6 is here, and not known to be committed"
    follower.replica.partition.on_push(Push(5, 0, 10, 10, 8, 0, b""))
    [page] = (await waiting).pages
    assert isinstance(page.found, FetchResult)
    assert (page.found.next_offset, page.found.served_by) == (8, ME)
    beyond = await asyncio.wait_for(polls.serve(leg(11), PollWatch()), 1)
    assert not beyond.pages
    assert beyond.unserved[0].code is ErrorCode.OFFSET_NOT_AVAILABLE


@pytest.mark.parametrize("offset", [11, 99])
async def test_rule_r8_what_is_out_of_range_the_leader_decides(tmp_path: Path, offset: int) -> None:
    follower = Follower(tmp_path)
    with pytest.raises(KafkaError) as refused:
        await follower.offsets(offset)
    assert refused.value.code is ErrorCode.OFFSET_NOT_AVAILABLE


def _elect_third(follower: Follower) -> None:
    change = PartitionChangeRecord(
        topic_id=FIRST_ID,
        partition=ZERO,
        directories=(DirectoryId("d2"), DirectoryId("d1"), DirectoryId("d3")),
        isr=(OTHER, ME, THIRD),
        elr=(),
        leader=THIRD,
        leader_epoch=LeaderEpoch(1),
        partition_epoch=PartitionEpoch(1),
    )
    follower.manager.on_metadata_update(list(images(*history(), (change,)))[-1])


def _fence_me(follower: Follower) -> None:
    fence = replace(unfenced(ME, 1), state=BrokerState.FENCED)
    follower.manager.image = list(images(*history(), (fence,)))[-1]


def _out_of_isr(follower: Follower) -> None:
    follower.manager.image = list(images(*history((OTHER, THIRD))))[-1]


def _lose_the_stream(follower: Follower) -> None:
    role = follower.replica.partition.role
    assert isinstance(role, Following)
    role.session = NO_SESSION


def _lose_the_controllers(follower: Follower) -> None:
    follower.proven = False


@pytest.mark.parametrize(
    "trouble",
    [_elect_third, _fence_me, _out_of_isr, _lose_the_stream, _lose_the_controllers],
)
async def test_a_follower_that_may_be_out_of_sync_serves_nothing(
    tmp_path: Path, trouble: object
) -> None:
    follower = Follower(tmp_path)
    assert await follower.offsets(0) == [0, 1, 2, 3, 4, 5]
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(_refused(follower, 6, 5_000))
        await asyncio.sleep(0)
        assert callable(trouble)
        trouble(follower)
        follower.replica.wake_fetches()
    assert waiting.result() is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await _refused(follower, 0, 0) is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def _refused(follower: Follower, offset: int, wait_ms: int) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        await follower.offsets(offset, wait_ms)
    return refused.value.code


def request(rack: str | None, offset: int | None = 0) -> FetchRequest:
    return FetchRequest(topic=ORDERS, partition=ZERO, offset=offset, rack=rack)


async def test_a_reader_is_served_in_its_rack_or_by_the_leader(tmp_path: Path) -> None:
    follower = Follower(tmp_path)
    found = await follower.reads.fetch(request("b"), HERE, 0)
    assert found is not None
    assert (found.served_by, found.next_offset) == (ME, 6)
    assert await follower.reads.fetch(request("a"), HERE, 0) is None, "the leader is there itself"
    assert await follower.reads.fetch(request("d"), HERE, 0) is None, "nobody is there"
    assert await follower.reads.fetch(request(None), HERE, 0) is None
    assert await follower.reads.fetch(request("b", None), HERE, 0) is None, "by time: the leader"
    assert await follower.reads.fetch(request("b", 11), HERE, 0) is None, "refused here"
    assert follower.peers.asked == []
    assert await follower.reads.fetch(request("c"), HERE, 0) is None, "refused there"
    assert follower.peers.asked == [(THIRD, PeerRequestKind.FETCH_FOLLOWER)]


async def test_reading_from_followers_is_off_until_it_is_configured(tmp_path: Path) -> None:
    follower = Follower(tmp_path, (replace(SELECTED, value=None),))
    assert await follower.reads.fetch(request("b"), HERE, 0) is None


def test_only_live_in_sync_replicas_are_chosen() -> None:
    image = list(images(*history()))[-1]
    registration = image.partition(*HERE)
    assert registration is not None
    assert choose_follower(image, HERE, registration, "c", ME) == THIRD
    assert choose_follower(image, HERE, replace(registration, isr=(OTHER, ME)), "c", ME) is None
    fenced = replace(unfenced(THIRD, 2), state=BrokerState.FENCED)
    image = list(images(*history(), (fenced,)))[-1]
    assert choose_follower(image, HERE, registration, "c", ME) is None
