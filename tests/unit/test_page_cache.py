"""Reads that would wait for the disk: known beforehand, counted, and made off the loop."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from broker.log.log_reader import warm
from broker.log.segment import ReadCounts
from broker.server.local_partitions import LocalPartitions, Read
from raft_metadata.common.disk import Disk
from tests.support.doors.log import open_files_of
from tests.support.logs import Life, append
from tests.unit.test_broker_local_partitions import HERE, ME, Here, image, records
from tests.unit.test_broker_local_partitions import here as here

if TYPE_CHECKING:
    from pathlib import Path


class ColdDisk(Disk):
    """Whatever was not read by another thread than this one is cold."""

    def __init__(self) -> None:
        self.loop_thread = threading.get_ident()
        self.warmed: list[tuple[int, int]] = []

    @override
    def is_cached(self, fd: int, position: int, length: int) -> bool:
        return bool(self.warmed)

    @override
    def read(self, fd: int, length: int, position: int) -> bytes:
        if threading.get_ident() != self.loop_thread:
            self.warmed.append((position, length))
        return super().read(fd, length, position)


def test_cached_and_uncached_bytes_are_told_apart(tmp_path: Path) -> None:
    disk = Disk()
    fd = disk.open(str(tmp_path / "file"), create=True)
    disk.write(fd, b"x" * (4 << 20), 0)
    assert disk.is_cached(fd, 0, 4 << 20)
    disk.sync_file(fd)
    # Else the kernel reads ahead, where it does so generously the whole file, when it is asked.
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    if disk.is_cached(fd, 1 << 20, 1 << 20):
        pytest.skip("this file system keeps its pages, or can't tell")
    disk.read(fd, 1 << 20, 1 << 20)
    assert disk.is_cached(fd, 1 << 20, 1 << 20)
    assert not disk.is_cached(fd, 1 << 20, 3 << 20)  # one end of it
    disk.close(fd)
    assert disk.is_cached(fd, 0, 1)  # can't tell: the read itself will say what is wrong


async def test_a_cold_range_is_read_on_a_thread_in_steps_and_counted(tmp_path: Path) -> None:
    disk = ColdDisk()
    life = Life(disk, data_dir=str(tmp_path))
    log = life.log()
    for _ in range(3):
        append(log, ["x" * 900_000])
    reads = life.manager.read_counts
    cold = log.cold_range(0, 10 << 20)
    assert cold is not None
    assert cold.length == log.segments[0].size
    assert reads == ReadCounts(0, 0)
    await warm(cold)
    assert [length for _, length in disk.warmed] == [1 << 20, 1 << 20, cold.length - (2 << 20)]
    assert log.cold_range(0, 1_000) is None
    assert reads == ReadCounts(cached_bytes=1_000, cold_bytes=cold.length)
    assert log.cold_range(3, 1_000) is None  # nothing there yet
    await warm(cold._replace(fd=10_000))  # closed meanwhile
    life.close()


async def test_the_loop_goes_on_while_a_fetch_waits_for_the_disk(here: Here) -> None:
    """And the lane leaves it alone. A leader that changes meanwhile does not answer."""
    here.manager.on_metadata_update(image(1, (ME,)))
    await here.local.append(records(5, acks=1))
    asking, go = threading.Event(), threading.Event()

    class SlowDisk(ColdDisk):
        @override
        def read(self, fd: int, length: int, position: int) -> bytes:
            if threading.get_ident() != self.loop_thread:
                asking.set()
                assert go.wait(10)
            return super().read(fd, length, position)

    open_files_of(here.logs).disk = SlowDisk()
    assert here.local.fetch_directly(HERE, 0, 1_000) is None
    read = Read(partition=HERE, offset=0, timestamp_ms=None, max_bytes=1_000, max_wait_ms=0)
    fetch = asyncio.get_running_loop().create_task(here.local.fetch(read))
    assert await asyncio.to_thread(asking.wait, 10)
    assert not fetch.done()
    go.set()
    assert sum(piece.count for piece in (await fetch).slices) == 5
    assert here.local.fetch_directly(HERE, 0, 1_000) is not None
    counts = here.logs.read_counts
    assert counts.cold_bytes > 0
    assert counts.cached_bytes > 0
    assert isinstance(here.local, LocalPartitions)
