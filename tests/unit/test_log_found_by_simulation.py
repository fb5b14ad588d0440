"""Cases that the simulation of a replicated partition found in the log, each in its shortest form."""

from __future__ import annotations

import random

import pytest

from raft_metadata.common.errors import StorageError
from raft_metadata.common.ids import PartitionId, TopicIdPartition
from tests.support.logs import TOPIC_ID, Life, append, values_of
from tests.support.simulated_disk import SimulatedDisk

KEY = TopicIdPartition(TOPIC_ID, PartitionId(0))


def test_rule_q2_whose_log_it_is_outlives_a_failed_sync_as_its_bytes_do() -> None:
    """The failed sync left both in a cache that looks clean; only the bytes were written again."""
    disk = SimulatedDisk()
    life = Life(disk)
    append(life.log(), ["a"])
    disk.fail_once("sync_file", path="partition.json")
    with pytest.raises(StorageError):
        life.flush()
    disk.kill()
    life = Life(disk)
    append(life.log(), ["b"])
    life.flush()  # and the next batch proves that the first one was durable
    append(life.log(), ["c"])
    life.flush()
    assert life.log().durable_end == 3
    disk.cut_power(random.Random(1))
    life = Life(disk)
    assert not life.manager.offline
    assert values_of(life.log()) == ["a", "b", "c"]


def test_rule_r6_the_mark_of_damage_goes_with_a_replica_that_is_removed() -> None:
    """It stayed on the disk, and the sound log of the replica that came back was refused by it."""
    disk = SimulatedDisk()
    life = Life(disk)
    for value in ("a", "b"):
        append(life.log(), [value])
        life.flush()
    disk.kill()
    path = next(path for path in disk.live if path.endswith(".log"))
    inode = disk.live[path]
    assert inode is not None
    inode.cache[100] ^= 1
    life = Life(disk)
    assert KEY in life.manager.offline
    life.manager.delete([KEY], mark=":removed")
    append(life.log(), ["c"])
    life.flush()
    disk.kill()
    life = Life(disk)
    assert not life.manager.offline
    assert values_of(life.log()) == ["c"]
