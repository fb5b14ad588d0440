"""A restarted broker may read the metadata log from its start: history is no order to delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raft_metadata.records.records import MetadataRecord, RemoveTopicRecord
from tests.support.hosted_replicas import (
    FIRST_ID,
    ME,
    SECOND_ID,
    ZERO,
    created,
    hosted,
    images,
    registered,
)
from tests.support.logs import append, values_of

if TYPE_CHECKING:
    from pathlib import Path

MADE_AGAIN: tuple[tuple[MetadataRecord, ...], ...] = (
    (registered(ME, 0, "first"),),
    created(FIRST_ID, (ME,)),
    (RemoveTopicRecord(topic_id=FIRST_ID),),
    created(SECOND_ID, (ME,)),
)


def test_rule_m5_replayed_history_does_not_set_the_log_of_a_topic_made_again_aside(
    tmp_path: Path,
) -> None:
    logs, manager = hosted(tmp_path, "first")
    for image in images(*MADE_AGAIN):
        manager.on_metadata_update(image)
    log = logs.get(SECOND_ID, ZERO)
    assert log is not None
    append(log, ["acknowledged"], epoch=0)
    logs.close(None)
    logs, manager = hosted(tmp_path, "second")
    for image in images(*MADE_AGAIN, (registered(ME, 6, "second"),)):
        manager.on_metadata_update(image)
    assert logs.quarantined() == []
    log = logs.get(SECOND_ID, ZERO)
    assert log is not None
    assert values_of(log) == ["acknowledged"]


def test_rule_m5_a_namesake_that_was_deleted_while_the_broker_was_down_makes_way(
    tmp_path: Path,
) -> None:
    logs, manager = hosted(tmp_path, "first")
    for image in images(*MADE_AGAIN[:2]):
        manager.on_metadata_update(image)
    log = logs.get(FIRST_ID, ZERO)
    assert log is not None
    append(log, ["of the first life"], epoch=0)
    logs.close(None)
    logs, manager = hosted(tmp_path, "second")
    for image in images(*MADE_AGAIN, (registered(ME, 6, "second"),)):
        manager.on_metadata_update(image)
    assert logs.quarantined() == [f"{FIRST_ID}:0"]
    log = logs.get(SECOND_ID, ZERO)
    assert log is not None
    assert log.log_end_offset == 0
