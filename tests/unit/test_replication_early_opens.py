"""Opens that come before the image does, and those that no image will ever answer (rule R9)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from broker.replication.frames import Key, Open, key_of, partition_of
from broker.replication.leader_stream import (
    LOOKED_AT_ONCE,
    MAX_UNKNOWN_OPENS,
    UNKNOWN_OPEN_MS,
    EarlyOpens,
    LeaderStream,
)
from raft_metadata.common.errors import ErrorCode
from raft_metadata.common.ids import BrokerId, LeaderEpoch, PartitionId
from raft_metadata.image.metadata_image import MetadataImage
from tests.support.doors.replication import early_opens_of
from tests.support.hosted_replicas import (
    FIRST_ID,
    ME,
    OTHER,
    StreamTransport,
    created,
    hosted,
    images,
    registered,
)

THIRD = BrokerId(3)
BEFORE, ELSEWHERE = images(
    (registered(ME, 0, "first"), registered(OTHER, 1, "other")), created(FIRST_ID, (OTHER, THIRD))
)
KEY = key_of(FIRST_ID, PartitionId(0))


def open_in(epoch: int, request: int = 7) -> Open:
    return Open(request, epoch, 1, -1, 0, 0)


def in_epoch(image: MetadataImage, epoch: int, **how: object) -> MetadataImage:
    topic = image.topics[FIRST_ID]
    partition = replace(topic.partitions[0], leader_epoch=LeaderEpoch(epoch), **how)  # type: ignore[arg-type]
    return replace(image, topics={FIRST_ID: replace(topic, partitions=(partition,))})


def waiting(early: EarlyOpens) -> int:
    return len(early.unknown)


def test_an_open_waits_while_the_image_is_behind_it() -> None:
    early = EarlyOpens(ME)
    assert early.keep_unknown(BEFORE, KEY, OTHER, open_in(0), 0) is None
    early.forget_some(BEFORE, UNKNOWN_OPEN_MS - 1)
    assert waiting(early) == 1
    assert early.keep_unknown(ELSEWHERE, KEY, OTHER, open_in(1), 0) is None, "a later epoch"
    early.forget_some(ELSEWHERE, UNKNOWN_OPEN_MS - 1)
    assert waiting(early) == 1


def test_an_open_is_dropped_once_its_epoch_came_without_a_replica_here() -> None:
    early = EarlyOpens(ME)
    early.keep_unknown(BEFORE, KEY, OTHER, open_in(0), 0)
    early.keep_unknown(BEFORE, KEY, THIRD, open_in(2), 0)
    early.forget_some(ELSEWHERE, 1)
    assert list(early.unknown[KEY].opens) == [THIRD]
    early.forget_some(in_epoch(ELSEWHERE, 3, replicas=(OTHER, ME)), 1)
    assert waiting(early) == 1, "it is to be here: its log may just be about to be opened"
    early.forget_some(in_epoch(ELSEWHERE, 2), 1)
    assert waiting(early) == 0


def test_an_open_for_what_is_another_s_by_this_image_is_refused_at_once() -> None:
    early = EarlyOpens(ME)
    refused = early.keep_unknown(ELSEWHERE, KEY, OTHER, open_in(0, request=9), 0)
    assert refused is not None
    assert (refused.request, refused.leader_epoch) == (9, 0)
    assert refused.error == ErrorCode.NOT_LEADER_OR_FOLLOWER.number
    assert waiting(early) == 0


def test_an_open_is_dropped_once_its_topic_is_deleted() -> None:
    early = EarlyOpens(ME)
    early.keep_unknown(ELSEWHERE, KEY, OTHER, open_in(5), 0)
    early.forget_some(BEFORE, 1)
    assert waiting(early) == 0


def test_opens_for_topics_deleted_before_make_room_after_a_while() -> None:
    """Such opens look like those for topics still to come; a waiting follower asks again."""
    early = EarlyOpens(ME)
    keys = [Key(number.to_bytes(16, "big"), 0) for number in range(1, MAX_UNKNOWN_OPENS + 1)]
    for key in keys:
        assert early.keep_unknown(BEFORE, key, OTHER, open_in(0), 0) is None
    assert early.keep_unknown(BEFORE, KEY, OTHER, open_in(0), 1) is not None, "full"
    assert early.keep_unknown(BEFORE, keys[5], THIRD, open_in(0), 9_000) is None, "no new one"
    turns = MAX_UNKNOWN_OPENS // LOOKED_AT_ONCE
    for _ in range(turns):
        early.forget_some(BEFORE, UNKNOWN_OPEN_MS - 1)
    assert waiting(early) == MAX_UNKNOWN_OPENS
    for _ in range(turns):
        early.forget_some(BEFORE, UNKNOWN_OPEN_MS)
    assert list(early.unknown) == [keys[5]], "asked again since"
    assert early.keep_unknown(BEFORE, KEY, OTHER, open_in(0), UNKNOWN_OPEN_MS) is None


async def test_a_leader_forgets_with_its_ticks_and_answers_what_came_in_time(
    tmp_path: Path,
) -> None:
    _, manager = hosted(tmp_path, "first")
    *before, mine = images(
        (registered(ME, 0, "first"), registered(OTHER, 1, "other")), created(FIRST_ID, (ME, OTHER))
    )
    for image in before:
        manager.on_metadata_update(image)
    stream, transport = LeaderStream(OTHER, manager), StreamTransport()
    stream.connection_made(transport)
    gone = Key(b"gone" * 4, 0)
    manager.follower_opens(stream, KEY, open_in(0))
    manager.follower_opens(stream, gone, open_in(0))
    assert waiting(early_opens_of(manager)) == 2
    manager.on_metadata_update(mine)
    replica = manager.replica(partition_of(KEY))
    assert replica is not None
    assert [session.follower for session in replica.sessions] == [OTHER]
    manager.tick(manager.now_ms() + UNKNOWN_OPEN_MS + 1)
    assert waiting(early_opens_of(manager)) == 0
