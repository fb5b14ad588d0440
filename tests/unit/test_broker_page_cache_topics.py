"""A topic that was `flush=os` counts as that at registration until all of it is durable here."""

from __future__ import annotations

import asyncio
from collections.abc import Set
from typing import TYPE_CHECKING

import pytest

from broker.log.checkpoints import encode_checkpoint
from broker.server.unclean import FILE, PageCacheTopics, unclean_partitions
from raft_metadata.common.errors import CorruptionError
from raft_metadata.common.ids import TopicIdPartition, TopicName
from raft_metadata.records.records import (
    ConfigRecord,
    MetadataRecord,
    RemoveTopicRecord,
    ResourceType,
)
from tests.support.doors.log import flusher_of
from tests.support.hosted_replicas import (
    FIRST_ID,
    ME,
    SECOND_ID,
    ZERO,
    config_of,
    created,
    hosted,
    images,
    registered,
)
from tests.support.logs import append
from tests.support.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from raft_metadata.common.ids import TopicId
    from raft_metadata.image.metadata_image import MetadataImage


def flush(value: str | None, topic_id: TopicId | None = FIRST_ID) -> ConfigRecord:
    kind = ResourceType.CLUSTER if topic_id is None else ResourceType.TOPIC
    return ConfigRecord(resource_type=kind, resource_name=topic_id or "", name="flush", value=value)


class Host:
    """A broker's replicas, and what it notes of them, while the metadata log grows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs, self.manager = hosted(folder, "me")
        self.noted = PageCacheTopics(config_of(self.folder), self.logs)
        self.noted.read()
        self.batches: list[tuple[MetadataRecord, ...]] = []
        self.learn(registered(ME, 0, "me"))
        self.learn(*created(FIRST_ID, (ME,)))

    @property
    def image(self) -> MetadataImage:
        return self.manager.image

    def learn(self, *records: MetadataRecord) -> None:
        self.batches.append(records)
        *_, image = images(*self.batches)
        self.noted.note(image)
        self.manager.on_metadata_update(image)
        self.noted.followed()

    def at_next_start(self) -> Set[TopicId] | None:
        """What the next life would go by."""
        again = PageCacheTopics(config_of(self.folder), self.logs)
        again.read()
        return again.at_start

    def in_the_file(self) -> Set[TopicId]:
        found = self.at_next_start()
        assert found is not None
        return found

    def reported(self, *, cache_is_kept: bool = False) -> tuple[TopicIdPartition, ...]:
        found = unclean_partitions(
            config_of(self.folder),
            self.logs,
            self.image,
            cache_is_kept=cache_is_kept,
            page_cached=self.at_next_start(),
        )
        return tuple(found)


async def test_rule_r6_what_was_acknowledged_under_os_counts_as_os_until_it_is_durable(
    tmp_path: Path,
) -> None:
    """Power is lost after the change to ack: the log is cut neatly, and records may be missing."""
    host = Host(tmp_path)
    assert host.reported() == ()
    host.learn(flush("os"))
    log = host.logs.get(FIRST_ID, ZERO)
    assert log is not None
    append(log, ["acknowledged from the page cache"], epoch=0)
    host.learn(flush("ack"))
    assert host.in_the_file() == {FIRST_ID}
    assert host.reported() == (TopicIdPartition(FIRST_ID, ZERO),)
    assert host.reported(cache_is_kept=True) == (), "a killed process leaves the cache behind"
    running = asyncio.get_running_loop().create_task(host.noted.run())
    await asyncio.sleep(0.02)
    assert host.in_the_file() == {FIRST_ID}, "not while it is not synced"
    flusher_of(host.logs).flush_all()
    assert log.durable_end == 1
    await until(lambda: not host.in_the_file())
    assert host.reported() == ()
    running.cancel()


async def test_a_topic_that_is_os_again_stays_named(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.learn(flush("os"))
    host.learn(*created(SECOND_ID, (ME,), name=TopicName("other")), flush("os", SECOND_ID))
    host.learn(flush("ack"))
    running = asyncio.get_running_loop().create_task(host.noted.run())
    await until(lambda: host.in_the_file() == {SECOND_ID})
    host.learn(flush("os"))
    assert host.in_the_file() == {FIRST_ID, SECOND_ID}
    host.learn(RemoveTopicRecord(topic_id=SECOND_ID))
    await until(lambda: host.in_the_file() == {FIRST_ID})
    running.cancel()


def test_the_clusters_default_counts_for_topics_that_say_nothing(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.learn(*created(SECOND_ID, (ME,), name=TopicName("safe")), flush("ack", SECOND_ID))
    host.learn(flush("os", None))
    assert host.in_the_file() == {FIRST_ID}


def test_rule_r6_a_topic_that_became_os_since_was_ack_when_the_power_failed(
    tmp_path: Path,
) -> None:
    """Only what was noted then counts: else an honest disk would lose its place for nothing."""
    host = Host(tmp_path)
    before = host.at_next_start()
    assert before == set(), "noted, if only that there is none"
    host.learn(flush("os"))
    config, logs = config_of(tmp_path), host.logs
    found = unclean_partitions(config, logs, host.image, cache_is_kept=False, page_cached=before)
    assert not found
    unknown = unclean_partitions(config, logs, host.image, cache_is_kept=False)
    assert tuple(unknown) == (TopicIdPartition(FIRST_ID, ZERO),), "without a note the image decides"


def test_notes_of_earlier_lives_are_kept_and_a_damaged_file_is_refused(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.learn(flush("os"))
    host.logs.close(None)
    again = PageCacheTopics(config_of(tmp_path), host.logs)
    again.read()
    assert again.named == {FIRST_ID}
    for rotten, why in ((b"rotten", "its checksum"), (encode_checkpoint({"a": 1}), "a list of")):
        (tmp_path / FILE).write_bytes(rotten)
        with pytest.raises(CorruptionError, match=f"{FILE} is damaged: .*{why}.*remove the file"):
            again.read()
