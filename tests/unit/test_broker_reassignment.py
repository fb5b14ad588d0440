"""A broker that gains or loses a replica: opened, followed, set aside, and never believed again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.replication.delayed_produces import AppendOutcome, DelayedProduce
from broker.replication.frames import Push, Valid
from broker.replication.leader_state import NOT_COUNTED, LeaderState
from broker.replication.partition import Following, PushResult
from broker.replication.replica_logs import PURGE_CHECK_MS, ReplicaLogs
from raft_metadata.common.ids import (
    BrokerId,
    DirectoryId,
    IncarnationId,
    LeaderEpoch,
    PartitionEpoch,
    PartitionId,
    TopicIdPartition,
)
from raft_metadata.records.records import (
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    PartitionsCountRecord,
)
from tests.support.hosted_replicas import (
    FIRST_ID,
    ME,
    OTHER,
    ZERO,
    config_of,
    created,
    hosted,
    images,
    registered,
)
from tests.support.logs import append, values_of

if TYPE_CHECKING:
    from pathlib import Path

    from broker.log.log_manager import LogManager
    from broker.replication.replica import Replica
    from broker.replication.replica_manager import ReplicaManager

THIRD = BrokerId(3)
HERE = TopicIdPartition(FIRST_ID, ZERO)
REMOVED = [f"{FIRST_ID}:0:removed"]
REGISTERED: tuple[tuple[MetadataRecord, ...], ...] = (
    (registered(OTHER, 0, "other"),),
    (registered(THIRD, 1, "third"),),
    (registered(ME, 2, "me"),),
)


def now(
    replicas: tuple[BrokerId, ...],
    *,
    epoch: int,
    leader: BrokerId = OTHER,
    leader_epoch: int = 0,
    isr: tuple[BrokerId, ...] | None = None,
    adding: tuple[BrokerId, ...] = (),
) -> PartitionChangeRecord:
    return PartitionChangeRecord(
        topic_id=FIRST_ID,
        partition=ZERO,
        replicas=replicas,
        directories=tuple(DirectoryId(f"d{replica}") for replica in replicas),
        isr=isr or replicas,
        elr=(),
        leader=leader,
        leader_epoch=LeaderEpoch(leader_epoch),
        partition_epoch=PartitionEpoch(epoch),
        adding=adding,
    )


class Host:
    """Lives of broker `ME` in one folder, following one metadata log."""

    def __init__(self, folder: Path, *batches: tuple[MetadataRecord, ...]) -> None:
        self.folder = folder
        self.batches = [*REGISTERED, *batches]
        self.logs: LogManager
        self.manager: ReplicaManager
        self.logs, self.manager = hosted(folder, "me")
        self.follow()

    def follow(self) -> None:
        for image in images(*self.batches):
            if image.next_offset > self.manager.image.next_offset:
                self.manager.on_metadata_update(image)

    def learn(self, *records: MetadataRecord) -> None:
        self.batches.append(records)
        self.follow()

    def restart(self, *records: MetadataRecord) -> None:
        """Another life; ``records`` came while this broker was away."""
        self.logs.close(None)
        if records:
            self.batches.append(records)
        size = sum(len(batch) for batch in self.batches)
        self.batches.append((registered(ME, size, "again"),))
        self.logs, self.manager = hosted(self.folder, "again")
        self.follow()

    def tick(self) -> None:
        self.manager.tick(0)

    @property
    def replica(self) -> Replica:
        found = self.manager.replica(HERE)
        assert found is not None
        return found


def test_an_added_replica_is_opened_and_follows(tmp_path: Path) -> None:
    host = Host(tmp_path, created(FIRST_ID, (OTHER, THIRD)))
    assert host.manager.replica(HERE) is None
    host.learn(now((OTHER, THIRD, ME), epoch=1, isr=(OTHER, THIRD), adding=(ME,)))
    role = host.replica.partition.role
    assert isinstance(role, Following)
    assert role.leader == OTHER


def test_rule_m5_a_removed_replica_stops_and_its_data_goes_after_a_grace(tmp_path: Path) -> None:
    host = Host(tmp_path, created(FIRST_ID, (OTHER, ME)))
    append(host.replica.log, ["x"], epoch=0)
    host.learn(now((OTHER, THIRD), epoch=1))
    assert host.manager.replica(HERE) is None
    host.tick()
    assert host.logs.quarantined() == REMOVED
    assert host.logs.get(FIRST_ID, ZERO) is None
    config, image = config_of(tmp_path), host.manager.image
    for after_ms, due in (
        (config.limits.topic_delete_grace_ms - 1, []),
        (config.limits.topic_delete_grace_ms, REMOVED),
    ):
        replica_logs = ReplicaLogs(config, IncarnationId("me"), host.logs)
        assert replica_logs.due_for_purge(image, PURGE_CHECK_MS) == []
        assert replica_logs.due_for_purge(image, PURGE_CHECK_MS + after_ms) == due


def test_rule_m5_a_replica_that_was_removed_while_its_broker_was_down_is_set_aside(
    tmp_path: Path,
) -> None:
    host = Host(tmp_path, created(FIRST_ID, (OTHER, ME)))
    append(host.replica.log, ["x"], epoch=0)
    host.restart(now((OTHER, THIRD), epoch=1))
    host.tick()
    assert host.logs.quarantined() == REMOVED


def test_a_replica_that_comes_back_starts_empty_however_soon(tmp_path: Path) -> None:
    """Its old end proves nothing: others may have committed other records meanwhile."""
    host = Host(tmp_path, created(FIRST_ID, (OTHER, ME)))
    log = host.replica.log
    append(log, ["old"], epoch=0)
    host.learn(now((OTHER, THIRD), epoch=1))
    host.learn(now((OTHER, THIRD, ME), epoch=2, isr=(OTHER, THIRD), adding=(ME,)))
    assert host.replica.log is not log
    assert host.replica.log.log_end_offset == 0
    assert host.logs.quarantined() == REMOVED
    append(host.replica.log, ["new"], epoch=0)
    for _ in range(3):
        host.tick()
    assert values_of(host.replica.log) == ["new"], "what is queued for quarantine is the old one"
    host.learn(now((OTHER, THIRD), epoch=3))
    host.tick()
    assert host.logs.quarantined() == REMOVED


def test_a_replica_that_comes_back_after_a_restart_starts_empty(tmp_path: Path) -> None:
    host = Host(tmp_path, created(FIRST_ID, (OTHER, ME)))
    append(host.replica.log, ["old"], epoch=0)
    host.restart(now((OTHER, THIRD), epoch=1))
    host.learn(now((OTHER, THIRD, ME), epoch=2, isr=(OTHER, THIRD), adding=(ME,)))
    assert host.replica.log.log_end_offset == 0


def removed_leader(folder: Path) -> tuple[Host, list[AppendOutcome]]:
    """A leader with a produce that waits, when the partition is given to other brokers."""
    host = Host(folder, created(FIRST_ID, (ME, OTHER)))
    assert isinstance(host.replica.partition.role, LeaderState)
    append(host.replica.log, ["x"], epoch=0)
    fates: list[AppendOutcome] = []
    host.manager.add_delayed_produce(
        host.replica, DelayedProduce(0, 0, 0, True, 60_000, fates.append)
    )
    host.learn(now((OTHER, THIRD), epoch=1, leader_epoch=1))
    assert host.manager.led_epoch(HERE) is None
    assert fates == []
    return host, fates


async def test_rule_r5_a_leader_that_is_removed_follows_until_it_knows_what_became_of_its_produces(
    tmp_path: Path,
) -> None:
    host, fates = removed_leader(tmp_path)
    partition = host.replica.partition
    role = partition.role
    assert isinstance(role, Following)
    partition.open_message(9, 0)
    assert partition.on_valid(Valid(9, 1, 5, 0))
    assert partition.on_push(Push(5, 1, 1, 1, 1, 0, b"")) is PushResult.APPENDED
    assert fates == [AppendOutcome.OK], "the new leader holds it, and has committed it"
    host.manager.tick(0)
    assert host.manager.replica(HERE) is None
    host.tick()
    assert host.logs.quarantined() == REMOVED


async def test_a_removed_leader_does_not_wait_longer_than_its_produces(tmp_path: Path) -> None:
    host, fates = removed_leader(tmp_path)
    host.manager.tick(59_999)
    assert (fates, host.manager.replica(HERE) is None) == ([], False)
    host.manager.tick(60_000)
    assert (fates, host.manager.replica(HERE) is None) == ([AppendOutcome.UNKNOWN], True)


async def test_a_replica_that_comes_back_while_it_stayed_goes_on(tmp_path: Path) -> None:
    host, fates = removed_leader(tmp_path)
    log = host.replica.log
    back = now((OTHER, THIRD, ME), epoch=2, leader_epoch=1, isr=(OTHER, THIRD), adding=(ME,))
    partition = host.replica.partition
    message = partition.open_message(9, 0)
    assert message is not None
    assert message.durable_end == NOT_COUNTED, "who leaves is not counted, were it added again"
    assert partition.on_valid(Valid(9, 1, 5, 0))
    ack = partition.ack_message()
    assert ack is not None
    assert ack.durable_end == NOT_COUNTED
    host.learn(back)
    host.manager.tick(60_000)
    assert fates == [AppendOutcome.UNKNOWN]
    assert host.replica.log is log
    message = partition.open_message(10, 0)
    assert message is not None
    assert message.durable_end == log.durable_end, "validated anew by the leader"


def test_partitions_that_a_topic_is_given_appear(tmp_path: Path) -> None:
    host = Host(tmp_path, created(FIRST_ID, (ME, OTHER)))
    host.learn(PartitionsCountRecord(topic_id=FIRST_ID, partitions_count=2))
    grown = PartitionRecord(
        topic_id=FIRST_ID,
        partition=PartitionId(1),
        replicas=(OTHER, ME),
        directories=(DirectoryId("d2"), DirectoryId("d1")),
        isr=(OTHER, ME),
        elr=(),
        leader=OTHER,
        leader_epoch=LeaderEpoch(0),
        partition_epoch=PartitionEpoch(0),
    )
    host.learn(grown)
    found = host.manager.replica(TopicIdPartition(FIRST_ID, PartitionId(1)))
    assert found is not None
    assert isinstance(found.partition.role, Following)
