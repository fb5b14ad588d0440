"""What a broker reports unclean at registration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import pytest

from broker.config import BrokerConfig
from broker.log.log_manager import LogManager
from broker.server.lifecycle import Lifecycle
from broker.server.unclean import (
    check_log_directory,
    forget_boot,
    note_boot,
    page_cache_is_kept,
    unclean_partitions,
)
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import StorageError
from raft_metadata.common.ids import (
    BrokerEpoch,
    BrokerId,
    ClusterId,
    DirectoryId,
    IncarnationId,
    PartitionId,
    TopicId,
    TopicIdPartition,
    TopicName,
)
from raft_metadata.image.metadata_image import MetadataImage, TopicImage
from raft_metadata.records.commands import BrokerRegistered, RegisterBroker
from raft_metadata.records.partition_set import NO_PARTITIONS, PartitionRange, PartitionSet
from raft_metadata.records.records import ResourceType
from tests.support.doors.log import FlusherThread, flusher_of
from tests.support.doors.server import register
from tests.support.logs import append
from tests.support.registered import partition
from tests.support.simulated_disk import SimulatedDisk

OS, ACK = TopicId("o" * 22), TopicId("a" * 22)


def _fail(error: BaseException) -> None:
    raise error


def image() -> MetadataImage:
    registration = partition((1,), leader=1, epoch=0)
    topics = {
        topic_id: TopicImage(
            name=TopicName(name), topic_id=topic_id, partitions_count=1, partitions=(registration,)
        )
        for topic_id, name in ((OS, "os"), (ACK, "ack"))
    }
    configs = {(ResourceType.TOPIC, str(OS)): MappingProxyType({"flush": "os"})}
    return MetadataImage(topics=topics, configs=configs)


def config(path: Path) -> BrokerConfig:
    return BrokerConfig(
        broker_id=BrokerId(1),
        cluster_id=ClusterId("c"),
        directory_id=DirectoryId("d"),
        data_dir=path,
        advertised_http="",
        advertised_peer="",
    )


@pytest.mark.parametrize(("kept", "expected"), [(True, ()), (False, ((OS, 0),))])
def test_rule_r6_a_flush_os_log_is_unclean_unless_its_page_cache_is_kept(
    tmp_path: Path, *, kept: bool, expected: tuple[tuple[TopicId, int], ...]
) -> None:
    logs = LogManager(tmp_path, on_failed=_fail)
    found = unclean_partitions(config(tmp_path), logs, image(), cache_is_kept=kept)
    assert tuple(found) == tuple(TopicIdPartition(t, PartitionId(p)) for t, p in expected)


def test_rule_r6_a_clean_shutdown_proves_a_flush_os_log(tmp_path: Path) -> None:
    logs = LogManager(tmp_path, on_failed=_fail)
    logs.clean_broker_epoch = BrokerEpoch(7)
    assert unclean_partitions(config(tmp_path), logs, image(), cache_is_kept=False) == NO_PARTITIONS


def test_rule_r6_one_range_spans_what_a_lost_page_cache_can_t_prove(tmp_path: Path) -> None:
    """However replicas are placed, and never a replica here whose log is its own proof."""
    logs = LogManager(tmp_path, on_failed=_fail)
    logs.unclean[TopicIdPartition(ACK, PartitionId(2))] = "damaged"
    before = image()
    here = before.topics[OS].partitions[0]
    elsewhere = replace(here, replicas=(BrokerId(2),))
    placed = {
        topic_id: replace(topic, partitions=(elsewhere, *(here, elsewhere, here) * 20, elsewhere))
        for topic_id, topic in before.topics.items()
    }
    found = unclean_partitions(
        config(tmp_path),
        logs,
        replace(before, topics=placed),
        cache_is_kept=False,
    )
    assert TopicIdPartition(ACK, PartitionId(2)) in found
    of_os = [one for one in found.ranges if one.topic_id == OS]
    mine = {number for number, each in enumerate(placed[OS].partitions) if each is here}
    assert of_os == [PartitionRange(OS, PartitionId(min(mine)), PartitionId(max(mine)))]
    assert found.count == sum(one.last - one.first + 1 for one in of_os) + 1


async def test_rule_r6_a_registration_says_it_in_ranges(tmp_path: Path) -> None:
    heard: list[RegisterBroker] = []

    class Channel:
        async def execute(self, command: RegisterBroker) -> BrokerRegistered:
            heard.append(command)
            return BrokerRegistered(broker_epoch=BrokerEpoch(1))

    class Loader:
        image = MetadataImage()

    unclean = PartitionSet.of(ranges=[PartitionRange(OS, PartitionId(3), PartitionId(4))])
    lifecycle = Lifecycle(
        config(tmp_path),
        IncarnationId("i"),
        cast("Any", Channel()),
        cast("Any", Loader()),
        lambda: unclean,
        SystemClock(),
    )
    await register(lifecycle)
    assert [one.unclean_ranges for one in heard] == [unclean.ranges]


def test_a_page_cache_is_kept_within_one_boot_only(tmp_path: Path) -> None:
    assert not page_cache_is_kept(tmp_path, "boot-1"), "nothing is known yet"
    note_boot(tmp_path, "boot-1")
    assert page_cache_is_kept(tmp_path, "boot-1")
    assert not page_cache_is_kept(tmp_path, "boot-2")
    assert not page_cache_is_kept(tmp_path, "boot-2"), "asking notes nothing (rule R6)"
    note_boot(tmp_path, "")
    assert not page_cache_is_kept(tmp_path, ""), "an unknown boot proves nothing"


def test_rule_r6_logs_that_are_gone_under_the_same_directory_id_stop_the_start(
    tmp_path: Path,
) -> None:
    check_log_directory(tmp_path)
    note_boot(tmp_path, "boot-1")
    with pytest.raises(StorageError, match="is gone"):
        check_log_directory(tmp_path)
    (tmp_path / "log").mkdir()  # an empty mount point is not the disk that was there
    with pytest.raises(StorageError, match="is gone"):
        check_log_directory(tmp_path)
    (tmp_path / "log" / "lock").touch()
    check_log_directory(tmp_path)


def test_rule_q2_after_a_failed_sync_the_boot_id_vouches_for_nothing(tmp_path: Path) -> None:
    """The kernel may drop pages that it could not write, while the machine goes on running."""
    note_boot(tmp_path, "boot-1")
    forget_boot(tmp_path)
    assert not page_cache_is_kept(tmp_path, "boot-1")
    note_boot(tmp_path, "boot-1")
    assert page_cache_is_kept(tmp_path, "boot-1")

    full = SimulatedDisk()
    note_boot(Path("/data"), "boot-1", full)
    full.room = 0
    forget_boot(Path("/data"), full)
    assert not page_cache_is_kept(Path("/data"), "boot-1", full)


@pytest.mark.parametrize("operation", ["sync_data", "sync_filesystem"])
def test_rule_q2_the_page_cache_is_given_up_before_a_failure_is_told(operation: str) -> None:
    """Between the two the process may be killed: the next start must not count on the cache."""
    disk, told = SimulatedDisk(), list[str]()
    logs = LogManager(
        Path("/data"),
        on_failed=lambda _: told.append("failed"),
        on_cache_lost=lambda: told.append("cache lost"),
        disk=disk,
    )
    logs.open()
    log = logs.get_or_create(TopicName("t"), PartitionId(0), OS)
    append(log, ["a"])
    flusher = flusher_of(logs)
    flusher.flush_all()
    thread = FlusherThread(flusher)
    append(log, ["b"])
    if operation == "sync_filesystem":
        flusher.sync_files_max = 0
    disk.fail_once(operation)
    thread.work()
    assert told == ["cache lost"], "on the flusher's thread, before the loop hears of it"
    thread.step()
    assert told[-1] == "failed"
    assert isinstance(flusher.failed, OSError)
