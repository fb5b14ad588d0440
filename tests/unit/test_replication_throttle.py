"""Streams on real logs: what a follower that catches up, or whose disk hangs, is sent."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from broker.replication import frames
from broker.replication.follower_stream import FollowerStream
from broker.replication.frames import PREFIX, Ack, FrameKind, Key, Open, Push, decode, key_of
from broker.replication.leader_state import LeaderState
from broker.replication.leader_stream import MIN_WINDOW_BYTES, LeaderStream
from raft_metadata.common.ids import BrokerId, TopicName
from raft_metadata.records.feature_levels import SUPPORTED_FEATURE_LEVEL
from raft_metadata.records.records import (
    ConfigRecord,
    FeatureLevelRecord,
    PartitionRecord,
    ResourceType,
)
from tests.support.doors.replication import leader_link_of, pending_batches
from tests.support.hosted_replicas import (
    FIRST_ID,
    ME,
    OTHER,
    SECOND_ID,
    ZERO,
    StreamTransport,
    created,
    hosted,
    images,
    receive,
    registered,
    replica_of,
)
from tests.support.logs import append

if TYPE_CHECKING:
    from pathlib import Path

    from broker.replication.isr_state import IsrChange
    from broker.replication.replica import Replica
    from raft_metadata.image.metadata_image import MetadataImage
    from raft_metadata.records.records import MetadataRecord

MB = 1 << 20
BATCH = "x" * 60_000
FIRST, SECOND = key_of(FIRST_ID, ZERO), key_of(SECOND_ID, ZERO)


class SetClock:
    """Shows the time it was set to."""

    def __init__(self) -> None:
        self.now = 1_000

    def monotonic_ms(self) -> int:
        return self.now

    def wall_ms(self) -> int:
        return self.now


class Leader:
    """`ME` leads two partitions; `OTHER` is in sync with the second only."""

    def __init__(self, data_dir: Path, *configs: tuple[str, str]) -> None:
        self.clock = SetClock()
        _, self.manager = hosted(data_dir, "first", self.clock)
        records: list[tuple[MetadataRecord, ...]] = [
            (registered(ME, 0, "first"),),
            (registered(OTHER, 1, "other"),),
            tuple(
                ConfigRecord(
                    resource_type=ResourceType.BROKER, resource_name=str(ME), name=name, value=value
                )
                for name, value in configs
            ),
            _with_isr(created(FIRST_ID, (ME, OTHER), name=TopicName("a")), (ME,)),
            created(SECOND_ID, (ME, OTHER), name=TopicName("b")),
        ]
        for image in images(*records):
            self.image: MetadataImage = image
            self.manager.on_metadata_update(image)
        self.stream, self.transport = LeaderStream(OTHER, self.manager), StreamTransport()
        self.stream.connection_made(self.transport)

    def replica(self, key: Key) -> Replica:
        return replica_of(self.manager, key)

    def open(self, key: Key) -> None:
        self.manager.follower_opens(self.stream, key, Open(1, 0, 1, -1, 0, 0))

    def sent(self, key: Key) -> tuple[int, int]:
        """(bytes pushed, next offset) of a partition."""
        size = end = 0
        for data in self.transport.sent:
            length, kind = PREFIX.unpack_from(data)
            if kind != FrameKind.PUSH:
                continue
            at, frame = decode(kind, memoryview(data)[PREFIX.size : PREFIX.size + length])
            if at == key and isinstance(frame, Push) and len(frame.batches):
                size, end = size + len(frame.batches), frame.next_offset
        return size, end

    async def turns(self, count: int = 50) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    async def pass_ms(self, millis: int) -> None:
        for _ in range(0, millis, 50):
            self.clock.now += 50
            self.stream.tick(self.clock.now)
            await self.turns(20)

    def acknowledge(self, key: Key, end: int) -> None:
        role = self.replica(key).partition.role
        assert isinstance(role, LeaderState)
        session = role.followers[OTHER].session
        self.manager.follower_acks(self.stream, key, Ack(session, 0, end, end))


def _with_isr(
    records: tuple[MetadataRecord, ...], isr: tuple[BrokerId, ...]
) -> tuple[MetadataRecord, ...]:
    return tuple(
        replace(record, isr=isr) if isinstance(record, PartitionRecord) else record
        for record in records
    )


def fill(replica: Replica, count: int) -> int:
    """So many batches of 60 KB; their bytes."""
    return sum(len(append(replica.log, [BATCH], epoch=0)) for _ in range(count))


async def test_a_follower_that_proves_nothing_is_sent_no_more_than_the_limit(
    tmp_path: Path,
) -> None:
    """A follower whose disk hangs: in sync or not, its unsynced bytes are bounded."""
    leader = Leader(tmp_path)
    leader.stream.flow.limit = 4 * MB
    for key in (FIRST, SECOND):
        fill(leader.replica(key), 100)
        leader.open(key)
    await leader.pass_ms(2_000)
    assert MIN_WINDOW_BYTES - 100_000 <= leader.sent(FIRST)[0] <= MIN_WINDOW_BYTES + MB
    in_sync = leader.sent(SECOND)[0]
    assert 2 * MB <= in_sync <= 3 * MB, "half of the connection's is the most for one partition"
    assert leader.stream.flow.unproven == leader.sent(FIRST)[0] + in_sync
    for _ in range(100):  # the disk is back: each gets all of it, in its order
        for key in (FIRST, SECOND):
            leader.acknowledge(key, leader.sent(key)[1])
        await leader.turns()
    assert [leader.sent(key)[1] for key in (FIRST, SECOND)] == [100, 100]
    assert leader.stream.flow.unproven == 0
    assert all(session.window is None for session in leader.stream.sessions.values())


async def test_batches_appended_while_throttled_are_read_again_and_not_kept_in_memory(
    tmp_path: Path,
) -> None:
    leader = Leader(tmp_path)
    leader.stream.flow.limit = 2 * MB
    leader.open(SECOND)
    replica = leader.replica(SECOND)
    for number in range(100):
        raw = append(replica.log, [BATCH], epoch=0)
        leader.manager.appended(replica, number, number + 1, raw)
        await leader.turns(3)
    session = leader.stream.sessions[SECOND]
    assert pending_batches(session) == 0
    assert leader.sent(SECOND)[0] <= 2 * MB
    while leader.sent(SECOND)[1] < 100:
        leader.acknowledge(SECOND, leader.sent(SECOND)[1])
        await leader.turns()


async def test_a_follower_has_the_lag_time_to_sync_what_ends_an_idle_time(tmp_path: Path) -> None:
    """The first write to a topic that was made a while ago, while a check of the ISR is due."""
    leader = Leader(tmp_path)
    replica, lag_max_ms = leader.replica(SECOND), 3_000
    leader.open(SECOND)
    await leader.pass_ms(10_000)

    def proposal() -> IsrChange | None:
        brokers = leader.manager.image.brokers
        return replica.partition.propose_isr(brokers, 1, leader.clock.now, lag_max_ms)

    leader.manager.appended(replica, 0, 1, append(replica.log, ["first"], epoch=0))
    leader.clock.now += lag_max_ms
    assert proposal() is None
    leader.clock.now += 1
    change = proposal()
    assert change is not None
    assert change.replicas == (OTHER,)


@pytest.mark.parametrize("by_whom", ["leader", "follower"])
async def test_a_throttle_holds_who_is_not_in_sync_and_nobody_else(
    tmp_path: Path, by_whom: str
) -> None:
    rate = 500_000
    throttle = [("leader.replication.throttled.rate", str(rate))] if by_whom == "leader" else []
    leader = Leader(tmp_path, *throttle)
    filled = fill(leader.replica(FIRST), 200)
    leader.open(FIRST)
    leader.open(SECOND)
    in_sync, sent_before = leader.replica(SECOND), 0
    for second in range(10):
        for _ in range(10):
            if by_whom == "follower":  # it got what was sent: at its rate, a pause of so long
                sent = leader.sent(FIRST)[0]
                pause_ms = (sent - sent_before) * 1000 // rate
                sent_before = sent
                if pause_ms:
                    receive(leader.stream, frames.pause_frame(pause_ms))
            leader.acknowledge(FIRST, leader.sent(FIRST)[1])
            at = in_sync.log.log_end_offset
            raw = append(in_sync.log, ["in sync"], epoch=0)
            leader.manager.appended(in_sync, at, at + 1, raw)
            await leader.turns(4)
            assert leader.sent(SECOND)[1] == at + 1, "it goes at once, whatever the rate"
            await leader.pass_ms(100)
        if by_whom == "leader":
            passed_s = second + 1
            assert leader.sent(FIRST)[0] <= rate * passed_s + 2 * 65_536 + rate // 10
    sent = leader.sent(FIRST)[0]
    assert 0.7 * rate * 10 <= sent <= 1.4 * rate * 10 + MB, sent
    assert sent < filled


async def test_a_throttle_is_lifted_live(tmp_path: Path) -> None:
    leader = Leader(tmp_path, ("leader.replication.throttled.rate", "1000"))
    fill(leader.replica(FIRST), 40)
    leader.open(FIRST)
    await leader.pass_ms(500)
    assert leader.sent(FIRST)[1] < 5
    lifted = ConfigRecord(
        resource_type=ResourceType.BROKER,
        resource_name=str(ME),
        name="leader.replication.throttled.rate",
        value=None,
    )
    records = (
        (registered(ME, 0, "first"),),
        (registered(OTHER, 1, "other"),),
        _with_isr(created(FIRST_ID, (ME, OTHER), name=TopicName("a")), (ME,)),
        created(SECOND_ID, (ME, OTHER), name=TopicName("b")),
        (lifted,),
    )
    leader.manager.on_metadata_update(list(images(*records))[-1])
    for _ in range(20):
        leader.acknowledge(FIRST, leader.sent(FIRST)[1])
        await leader.pass_ms(50)
    assert leader.sent(FIRST)[1] == 40


async def test_a_follower_that_gets_too_much_asks_its_leaders_to_pause(tmp_path: Path) -> None:
    _, manager = hosted(tmp_path, "first")
    throttled = ConfigRecord(
        resource_type=ResourceType.BROKER,
        resource_name=str(ME),
        name="follower.replication.throttled.rate",
        value="100000",
    )
    for image in images(
        (FeatureLevelRecord(level=SUPPORTED_FEATURE_LEVEL),),
        (registered(OTHER, 1, "other"),),
        (registered(ME, 2, "first"),),
        (throttled,),
        _with_isr(created(FIRST_ID, (OTHER, ME), name=TopicName("a")), (OTHER,)),
        created(SECOND_ID, (OTHER, ME), name=TopicName("b")),
    ):
        manager.on_metadata_update(image)
    link = leader_link_of(manager, OTHER)
    link.stream = stream = FollowerStream(OTHER, manager)
    transport = StreamTransport()
    stream.connection_made(transport)
    links = [link]
    manager.throttles.filled(replica_of(manager, SECOND), 200_000, manager.image, links)
    assert transport.sent == [], "what is in sync is not counted"
    manager.throttles.filled(replica_of(manager, FIRST), 200_000, manager.image, links)
    ((length, kind),) = [PREFIX.unpack_from(data) for data in transport.sent]
    assert (length, kind) == (4, FrameKind.PAUSE)
    pause_ms = frames.decode_pause(memoryview(transport.sent[0])[PREFIX.size :])
    assert 1_800 <= pause_ms <= 1_901
