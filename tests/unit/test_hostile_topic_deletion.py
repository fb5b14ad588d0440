"""A topic is deleted under the streams that push it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from broker.replication.frames import Open, encode, key_of
from raft_metadata.records.records import RemoveTopicRecord
from tests.support.hosted_replicas import (
    FIRST_ID,
    ME,
    OTHER,
    ZERO,
    StreamTransport,
    created,
    hosted,
    images,
    receive,
    registered,
)
from tests.support.logs import append

if TYPE_CHECKING:
    from pathlib import Path


async def test_deleting_a_topic_while_a_follower_catches_up_fails_no_log(tmp_path: Path) -> None:
    logs, manager = hosted(tmp_path, "first")
    broken: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))
    *before, deleted = images(
        (registered(ME, 0, "first"),),
        (registered(OTHER, 1, "other"),),
        created(FIRST_ID, (ME, OTHER)),
        (RemoveTopicRecord(topic_id=FIRST_ID),),
    )
    for image in before:
        manager.on_metadata_update(image)
    log = logs.get(FIRST_ID, ZERO)
    assert log is not None
    append(log, ["x"] * 100, epoch=0)
    stream = manager.accept_stream(OTHER)
    stream.connection_made(StreamTransport())
    receive(stream, encode(key_of(FIRST_ID, ZERO), Open(1, 0, 1, -1, 0, 0)))
    # Both in the turn before the first catch-up quantum: the topic goes, and its directory.
    manager.on_metadata_update(deleted)
    manager.tick(manager.now_ms())
    assert logs.quarantined() == [f"{FIRST_ID}:0"]
    for _ in range(3):
        await asyncio.sleep(0)
    assert broken == []
    assert logs.failed is None
