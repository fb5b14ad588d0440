"""What a broker reports unclean at registration."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import pytest

from broker.config import BrokerConfig
from broker.log.log_manager import LogManager
from broker.server.unclean import (
    check_log_directory,
    note_boot,
    page_cache_is_kept,
    unclean_partitions,
)
from raft_metadata.common.errors import StorageError
from raft_metadata.common.ids import (
    BrokerEpoch,
    BrokerId,
    ClusterId,
    DirectoryId,
    LeaderEpoch,
    MetadataOffset,
    PartitionEpoch,
    PartitionId,
    TopicId,
    TopicIdPartition,
    TopicName,
)
from raft_metadata.image.metadata_image import MetadataImage, PartitionRegistration, TopicImage
from raft_metadata.records.records import ResourceType

OS, ACK = TopicId("o" * 22), TopicId("a" * 22)


def _fail(error: BaseException) -> None:
    raise error


def image() -> MetadataImage:
    partition = PartitionRegistration(
        replicas=(BrokerId(1),),
        directories=(DirectoryId("d"),),
        isr=(BrokerId(1),),
        elr=(),
        leader=BrokerId(1),
        leader_epoch=LeaderEpoch(0),
        partition_epoch=PartitionEpoch(0),
        leader_epoch_offset=MetadataOffset(3),
    )
    topics = {
        topic_id: TopicImage(
            name=TopicName(name), topic_id=topic_id, partitions_count=1, partitions=(partition,)
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
    assert found == tuple(TopicIdPartition(t, PartitionId(p)) for t, p in expected)


def test_rule_r6_a_clean_shutdown_proves_a_flush_os_log(tmp_path: Path) -> None:
    logs = LogManager(tmp_path, on_failed=_fail)
    logs.clean_broker_epoch = BrokerEpoch(7)
    assert unclean_partitions(config(tmp_path), logs, image(), cache_is_kept=False) == ()


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
