"""Changed configs are in force without a restart, on leaders and followers alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.log.log_directory import LogConfig
from broker.log.retention import RetentionConfig
from broker.record.lines import decode_records
from broker.replication.delayed_produces import AppendOutcome, DelayedProduce
from broker.replication.leader_state import LeaderState, Settings
from broker.replication.partition import Following
from broker.server.produce import refusals
from broker.server.topics import LiveConfigs
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import DirectoryId, LeaderEpoch, PartitionEpoch, TopicIdPartition
from raft_metadata.records.records import (
    ConfigRecord,
    MetadataRecord,
    PartitionChangeRecord,
    ResourceType,
)
from tests.support.doors.log import flusher_of
from tests.support.hosted_replicas import (
    FIRST_ID,
    ME,
    OTHER,
    SECOND_ID,
    ZERO,
    config_of,
    created,
    hosted,
    images,
    registered,
)
from tests.support.logs import append

if TYPE_CHECKING:
    from pathlib import Path

    from broker.log.log_manager import LogManager
    from broker.replication.replica import Replica
    from broker.replication.replica_manager import ReplicaManager

HERE = TopicIdPartition(FIRST_ID, ZERO)
BEGINNING: tuple[tuple[MetadataRecord, ...], ...] = (
    (registered(OTHER, 0, "other"),),
    (registered(ME, 1, "me"),),
    created(FIRST_ID, (ME, OTHER)),
)


def of_topic(name: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(
        resource_type=ResourceType.TOPIC, resource_name=FIRST_ID, name=name, value=value
    )


def of_cluster(name: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(
        resource_type=ResourceType.CLUSTER, resource_name="", name=name, value=value
    )


def of_broker(broker: int, name: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(
        resource_type=ResourceType.BROKER, resource_name=str(broker), name=name, value=value
    )


class Host:
    """One life of broker `ME`, which follows a metadata log as it grows."""

    def __init__(self, folder: Path, *batches: tuple[MetadataRecord, ...]) -> None:
        self.logs: LogManager
        self.manager: ReplicaManager
        self.logs, self.manager = hosted(folder, "me")
        self.batches = list(batches or BEGINNING)
        for image in images(*self.batches):
            self.manager.on_metadata_update(image)

    def learn(self, *records: MetadataRecord) -> None:
        self.batches.append(records)
        *_, newest = images(*self.batches)
        self.manager.on_metadata_update(newest)

    @property
    def replica(self) -> Replica:
        found = self.manager.replica(HERE)
        assert found is not None
        return found

    @property
    def settings(self) -> Settings:
        settings = self.replica.partition.settings
        role = self.replica.partition.role
        if isinstance(role, LeaderState):
            assert Settings(role.min_isr, role.by_durable) == settings
        return settings

    @property
    def log_config(self) -> LogConfig:
        assert self.replica.log.config.flush_before_ack == self.settings.by_durable
        return self.replica.log.config


def test_every_topic_config_is_in_force_once_it_is_known_and_gone_once_reset(
    tmp_path: Path,
) -> None:
    host = Host(tmp_path)
    assert host.settings == Settings(1, True)
    defaults = host.log_config
    changed = {
        "min.insync.replicas": "2",
        "flush": "os",
        "message.timestamp.type": "append",
        "segment.bytes": "4096",
        "segment.ms": "60000",
        "retention.ms": "3600000",
        "retention.bytes": "100000",
        "compression.type": "zstd",
    }
    for name, value in changed.items():
        host.learn(of_topic(name, value))
    assert host.settings == Settings(2, False)
    assert host.log_config == LogConfig(
        segment_bytes=4096,
        segment_ms=60_000,
        flush_before_ack=False,
        append_time=True,
        retention=RetentionConfig(3_600_000, 100_000),
        zstd=True,
    )
    host.learn(of_topic("compression.type", "producer"))
    assert not host.log_config.zstd, "as sent, and that is without compression"
    host.learn(of_topic("cleanup.policy", "compact"))
    assert host.log_config.retention is None
    host.learn(of_topic("cleanup.policy", None))
    for name in changed:
        host.learn(of_topic(name, None))
    assert host.settings == Settings(1, True)
    assert host.log_config == defaults


def test_a_topics_own_value_is_stronger_than_the_brokers_and_that_than_the_clusters(
    tmp_path: Path,
) -> None:
    host = Host(tmp_path)
    host.learn(of_cluster("segment.bytes", "4096"), of_cluster("min.insync.replicas", "2"))
    assert (host.log_config.segment_bytes, host.settings.min_isr) == (4096, 2)
    host.learn(of_broker(ME, "segment.bytes", "5000"))
    assert host.log_config.segment_bytes == 5000
    host.learn(of_broker(OTHER, "segment.bytes", "6000"))
    assert host.log_config.segment_bytes == 5000, "what another broker is told is its own affair"
    host.learn(of_topic("segment.bytes", "7000"))
    assert host.log_config.segment_bytes == 7000
    host.learn(of_topic("segment.bytes", None))
    host.learn(of_broker(ME, "segment.bytes", None))
    assert host.log_config.segment_bytes == 4096


def test_a_new_default_reaches_topics_that_are_made_later_too(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.learn(of_cluster("flush", "os"))
    host.learn(*created(SECOND_ID, (ME, OTHER), name="later"))  # type: ignore[arg-type]
    later = host.manager.replica(TopicIdPartition(SECOND_ID, ZERO))
    assert later is not None
    assert not later.partition.settings.by_durable
    assert not host.settings.by_durable


def test_followers_take_changed_configs_as_leaders_do(tmp_path: Path) -> None:
    """Rule R1: the follower syncs what it has, so that its durable end can count."""
    host = Host(tmp_path, *BEGINNING[:2], created(FIRST_ID, (OTHER, ME)))
    assert isinstance(host.replica.partition.role, Following)
    host.learn(of_topic("flush", "os"), of_topic("segment.bytes", "4096"))
    log = host.replica.log
    append(log, ["x"], epoch=0)
    assert log.durable_end == 0
    host.learn(of_topic("flush", "ack"))
    assert host.log_config.flush_before_ack
    flusher_of(host.logs).flush_all()
    assert log.durable_end == 1, "the flusher was asked"
    assert host.log_config.segment_bytes == 4096


def test_a_smaller_segment_size_rolls_at_the_next_append(tmp_path: Path) -> None:
    host = Host(tmp_path)
    log = host.replica.log
    append(log, ["x" * 3000])
    append(log, ["x" * 3000])
    host.learn(of_topic("segment.bytes", "4096"))
    append(log, ["y"])
    names = [one.name for one in (tmp_path / "log" / "orders-0").glob("*.log")]
    assert len(names) == 2, names


def test_a_min_isr_above_the_isr_refuses_acks_all_at_once(tmp_path: Path) -> None:
    host = Host(tmp_path)
    shrunk = PartitionChangeRecord(
        topic_id=FIRST_ID,
        partition=ZERO,
        directories=(DirectoryId("d1"), DirectoryId("d2")),
        isr=(ME,),
        elr=(),
        leader=ME,
        leader_epoch=LeaderEpoch(0),
        partition_epoch=PartitionEpoch(1),
    )
    host.learn(shrunk)
    partition = host.replica.partition
    partition.check_may_append(all_replicas=True)
    fates: list[AppendOutcome] = []
    append(host.replica.log, ["x"], epoch=0)
    host.manager.add_delayed_produce(
        host.replica, DelayedProduce(0, 0, 0, True, 60_000, fates.append)
    )
    host.learn(of_topic("min.insync.replicas", "2"))
    with pytest.raises(KafkaError) as caught:
        partition.check_may_append(all_replicas=True)
    assert caught.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    flusher_of(host.logs).flush_all()
    assert fates == [], "what was appended before waits as well"
    host.learn(of_topic("min.insync.replicas", None))
    assert fates == [AppendOutcome.OK]


def test_requests_read_configs_of_the_newest_image(tmp_path: Path) -> None:
    host = Host(tmp_path)
    configs = LiveConfigs(config_of(tmp_path))

    def limit() -> int:
        return configs.max_message_bytes(host.manager.image, FIRST_ID)

    assert (limit(), configs.auto_create(host.manager.image)) == (1_048_576, True)
    host.learn(of_cluster("max.message.bytes", "1000"))
    host.learn(of_cluster("auto.create.topics.enable", "false"))
    assert (limit(), configs.auto_create(host.manager.image)) == (1000, False)
    host.learn(of_topic("max.message.bytes", "2000"))
    assert limit() == 2000
    host.learn(of_topic("max.message.bytes", None))
    host.learn(of_cluster("max.message.bytes", None))
    assert limit() == 1_048_576


def test_times_far_from_now_are_refused_where_the_topic_says_so(tmp_path: Path) -> None:
    """KIP-937: both ends are taken; who gives no time has the broker's, and is always in time."""
    host = Host(tmp_path)
    configs, topic = LiveConfigs(config_of(tmp_path)), host.manager.image.topics[FIRST_ID]
    before, after = "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"
    times = [None, 1_000, 999, 2_000, 2_001, 0]
    fields = [b"{}" if at is None else b'{"timestamp":%d}' % at for at in times]
    records = decode_records(b'{"records":[%b]}' % b",".join(fields))

    def refused(now_ms: int = 1_500) -> dict[int, str]:
        found = refusals(records, configs, host.manager.image, topic, now_ms)
        assert {error.code for error in found.values()} <= {ErrorCode.INVALID_TIMESTAMP}
        return {index: error.message for index, error in found.items()}

    assert refused() == {}
    host.learn(of_topic(before, "500"))
    assert list(refused()) == [2, 5]
    assert "timestamp 999: now is 1500, the topic takes at most 500 ms before it" in refused()[2]
    host.learn(of_topic(after, "500"))
    assert list(refused()) == [2, 4, 5]
    assert after in refused()[4]
    host.learn(of_topic("message.timestamp.type", "append"))
    assert refused() == {}, "no producer's time is kept"
    host.learn(of_topic("message.timestamp.type", None), of_topic(before, None))
    assert list(refused()) == [4]
    host.learn(of_topic(after, None), of_cluster(before, "0"))
    assert list(refused()) == [1, 2, 5]
