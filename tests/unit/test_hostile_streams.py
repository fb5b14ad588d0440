"""Streams under hostile conditions: a rotten push, a way slower than the retry."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from broker.replication.follower_stream import FollowerStream, LeaderLink
from broker.replication.frames import (
    PREFIX,
    FrameKind,
    Open,
    Push,
    Valid,
    decode,
    encode,
    encode_push_head,
    key_of,
)
from broker.replication.leader_stream import LeaderStream, PushSession
from broker.replication.partition import (
    REFUSED_SESSION,
    Following,
    OpenSession,
    RequestedSession,
)
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import TopicId, TopicName
from tests.support.doors.replication import leader_link_of
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
from tests.support.logs import Life, append
from tests.support.simulated_disk import SimulatedDisk

if TYPE_CHECKING:
    from pathlib import Path

    from broker.log.log_manager import LogManager
    from broker.replication.replica_manager import ReplicaManager

ROUND_TRIP_MS = 1_600
THIRD_ID = TopicId("C" * 22)


class SetClock:
    """Shows the time it was set to."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return self.now_ms


def following(
    data_dir: Path, clock: SetClock | None = None
) -> tuple[LogManager, ReplicaManager, LeaderLink, FollowerStream]:
    """Two partitions that `OTHER` leads, their opens sent on one stream."""
    logs, manager = hosted(data_dir, "first", clock)
    for image in images(
        (registered(OTHER, 0, "other"),),
        (registered(ME, 1, "first"),),
        created(FIRST_ID, (OTHER, ME), name=TopicName("a")),
        created(SECOND_ID, (OTHER, ME), name=TopicName("b")),
    ):
        manager.on_metadata_update(image)
    link = leader_link_of(manager, OTHER)
    link.stream = stream = FollowerStream(OTHER, manager)
    stream.connection_made(StreamTransport())
    for replica in list(link.replicas):
        link.open(replica)
    return logs, manager, link, stream


def role_of(manager: ReplicaManager, topic_id: TopicId) -> Following:
    role = replica_of(manager, key_of(topic_id, ZERO)).partition.role
    assert isinstance(role, Following)
    return role


def request_of(role: Following) -> int:
    assert isinstance(role.session, RequestedSession)
    return role.session.request


async def test_a_rotten_push_ends_its_own_session_and_nobody_elses(tmp_path: Path) -> None:
    logs, manager, _, stream = following(tmp_path)
    for topic_id in (FIRST_ID, SECOND_ID):
        valid = Valid(request_of(role_of(manager, topic_id)), 0, 5, 0)
        receive(stream, encode(key_of(topic_id, ZERO), valid))
    good = append(Life(SimulatedDisk()).log(), ["x"], epoch=0)
    rotten = good[:-5] + bytes([good[-5] ^ 1]) + good[-4:]
    for topic_id, raw in ((FIRST_ID, rotten), (SECOND_ID, good)):
        head = encode_push_head(key_of(topic_id, ZERO), Push(5, 0, 0, 1, 0, 0, b""), len(raw))
        receive(stream, head + raw)
    first, second = logs.get(FIRST_ID, ZERO), logs.get(SECOND_ID, ZERO)
    assert first is not None
    assert second is not None
    assert (first.log_end_offset, second.log_end_offset) == (0, 1)
    assert role_of(manager, FIRST_ID).session is REFUSED_SESSION
    assert role_of(manager, SECOND_ID).session == OpenSession(5)


class AbortedTransport(StreamTransport):
    """Remembers that it was cut."""

    aborted = False

    @override
    def abort(self) -> None:
        self.aborted = True


@pytest.mark.parametrize("failed", [False, True])
async def test_a_log_that_cant_be_read_just_now_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed: bool
) -> None:
    _, manager = hosted(tmp_path, "first")
    for image in images(
        (registered(ME, 0, "first"),),
        (registered(OTHER, 1, "other"),),
        created(FIRST_ID, (ME, OTHER), name=TopicName("a")),
    ):
        manager.on_metadata_update(image)
    stream, transport = LeaderStream(OTHER, manager), AbortedTransport()
    stream.connection_made(transport)
    replica = replica_of(manager, key_of(FIRST_ID, ZERO))

    def no_descriptor(session: PushSession) -> None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"too many open files {session.number}")

    monkeypatch.setattr(PushSession, "ship", no_descriptor)
    replica.log.failed = OSError("a disk in doubt") if failed else None
    stream.mark(PushSession(replica, stream, 5, 0))
    await asyncio.sleep(0)
    assert transport.aborted is not failed


async def test_rule_r9_a_way_slower_than_the_retry_still_ends_in_a_session(tmp_path: Path) -> None:
    clock = SetClock(0)
    _, manager, link, _ = following(tmp_path, clock)
    role = role_of(manager, FIRST_ID)
    partition = replica_of(manager, key_of(FIRST_ID, ZERO)).partition
    answers = [(role.asked_ms + ROUND_TRIP_MS, request_of(role))]
    for _ in range(200):
        clock.now_ms += 50
        link.open_again(clock.now_ms)
        if request_of(role) not in [request for _, request in answers]:
            answers.append((role.asked_ms + ROUND_TRIP_MS, request_of(role)))
        for due_ms, request in answers:
            if due_ms <= clock.now_ms and partition.on_valid(Valid(request, 0, 7, 0)):
                return
    raise AssertionError("no session within 10 s")


def pushed(transport: StreamTransport, topic_id: TopicId) -> list[bytes]:
    """The pushes of one partition that hold batches, in order."""
    key, found = key_of(topic_id, ZERO), []
    for data in transport.sent:
        length, kind = PREFIX.unpack_from(data)
        if kind != FrameKind.PUSH:
            continue
        at, frame = decode(kind, memoryview(data)[PREFIX.size : PREFIX.size + length])
        if at == key and isinstance(frame, Push) and len(frame.batches):
            found.append(bytes(frame.batches))
    return found


async def test_rule_r9_a_replica_that_catches_up_does_not_hold_back_one_in_sync(
    tmp_path: Path,
) -> None:
    """One connection carries both: a new replica of a large log, and one that gets each append."""
    _, manager = hosted(tmp_path, "first")
    names = {FIRST_ID: TopicName("old"), SECOND_ID: TopicName("new"), THIRD_ID: TopicName("old-2")}
    for image in images(
        (registered(ME, 0, "first"),),
        (registered(OTHER, 1, "other"),),
        *(created(topic_id, (ME, OTHER), name=name) for topic_id, name in names.items()),
    ):
        manager.on_metadata_update(image)
    manager.push_bytes = 4_000
    stream, transport = LeaderStream(OTHER, manager), StreamTransport()
    stream.connection_made(transport)
    replicas = {topic_id: replica_of(manager, key_of(topic_id, ZERO)) for topic_id in names}
    for topic_id in (FIRST_ID, THIRD_ID):
        for _ in range(8):
            append(replicas[topic_id].log, ["x" * 3_500], epoch=0)
    for replica in replicas.values():
        open_ = Open(1, 0, 1, -1, 0, 0)
        manager.follower_opens(stream, replica.key, open_)
    transport.unsent = manager.push_bytes  # the follower is slow to take what it was sent

    in_sync = replicas[SECOND_ID]
    for number in range(5):
        raw = append(in_sync.log, ["in sync"], epoch=0)
        manager.appended(in_sync, number, number + 1, raw)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(pushed(transport, SECOND_ID)) == number + 1, "it goes at once"
    assert pushed(transport, FIRST_ID) == []
    transport.unsent = 0
    async with asyncio.timeout(5):
        while len(pushed(transport, THIRD_ID)) < 8:
            before = len(pushed(transport, FIRST_ID)), len(pushed(transport, THIRD_ID))
            await asyncio.sleep(0.001 if before == (0, 0) else 0)
            first, third = len(pushed(transport, FIRST_ID)), len(pushed(transport, THIRD_ID))
            assert abs(first - third) <= 1, "they take turns"
    assert len(pushed(transport, FIRST_ID)) >= 7
