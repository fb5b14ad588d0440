"""The same log on a real file system, with the flusher's thread."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from broker.log.log_directory import LogConfig
from raft_metadata.common.disk import Disk
from raft_metadata.common.ids import TopicIdPartition
from tests.support.logs import Life, append, values_of

if TYPE_CHECKING:
    from pathlib import Path

    from broker.log.partition_log import PartitionLog


async def durable(*logs: PartitionLog) -> None:
    moved = asyncio.Event()
    for log in logs:
        log.on_durable = moved.set
    async with asyncio.timeout(20):
        while any(log.durable_end < log.log_end_offset for log in logs):
            moved.clear()
            await moved.wait()


async def test_a_log_lives_through_flush_truncation_and_both_kinds_of_end(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=3000)
    life = Life(Disk(), config, data_dir=str(tmp_path))
    life.manager.start(asyncio.get_running_loop())
    logs = [life.log(number) for number in range(5)]  # enough for syncfs
    for log in logs:
        append(log, ["a", "b"])
    await durable(*logs)
    log = logs[0]
    for n in range(20):
        append(log, [f"{n}" + "x" * 500])
    append(logs[1], ["in flight meanwhile"])
    log.truncate_to(12)
    append(log, ["new"], epoch=2)
    await durable(*logs)
    expected = values_of(log)
    assert (log.log_end_offset, log.end_of_epoch(1)) == (13, (1, 12))

    with pytest.raises(BlockingIOError):
        Life(Disk(), config, data_dir=str(tmp_path))
    life.manager.close(None)  # as good as a kill: nothing is written
    life = Life(Disk(), config, data_dir=str(tmp_path))
    assert life.manager.clean_broker_epoch is None
    assert values_of(life.log()) == expected
    assert life.log().durable_end == 13
    life.close()
    life = Life(Disk(), config, data_dir=str(tmp_path))
    assert life.manager.clean_broker_epoch == 7
    assert values_of(life.log()) == expected
    life.manager.delete([TopicIdPartition(life.log().topic_id, life.log().partition)])
    assert not (tmp_path / "log" / "orders-0").exists()
    life.manager.purge(life.manager.quarantined())
    life.close()
