"""A disk that does not answer is noticed; a slow one, and a process that stood still, are not."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from broker.server.lifecycle import DiskStallWatch, WatchedDisk
from raft_metadata.common.disk import Disk

SILENCE_MS, LOOK_MS = 1500, 100


class ManualClock:
    """Shows what it is told."""

    def __init__(self) -> None:
        self.now_ms = 1_000

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return self.now_ms

    def advance(self, ms: int) -> None:
        self.now_ms += ms


class Syncs:
    """What the watch asks: which sync is under way."""

    def __init__(self) -> None:
        self.now: int | None = None
        self.clock = ManualClock()
        self.matters = True
        self.watch = DiskStallWatch(
            lambda: self.now, SILENCE_MS, LOOK_MS, self.clock, lambda: self.matters
        )

    def pass_by(self, ms: int, every_ms: int = 50) -> bool:
        """Look as often as the lifecycle does; whether the disk is called silent at the end."""
        silent = self.watch.check_silence()
        for _ in range(ms // every_ms):
            self.clock.advance(every_ms)
            silent = self.watch.check_silence()
        return silent


def test_one_sync_that_does_not_return_is_silence_until_it_does() -> None:
    syncs = Syncs()
    assert not syncs.pass_by(10_000)
    syncs.now = 7
    assert not syncs.pass_by(SILENCE_MS)
    assert syncs.pass_by(100)
    syncs.now = None
    assert not syncs.watch.check_silence()


def test_a_long_sync_that_nobody_waits_for_moves_no_leader() -> None:
    syncs = Syncs()
    syncs.now, syncs.matters = 7, False
    assert not syncs.pass_by(20 * SILENCE_MS)
    syncs.matters = True
    assert syncs.pass_by(50), "a produce came that waits for the disk"
    syncs.matters = False
    assert syncs.pass_by(50), "replaced as a leader, it does not come back before its disk does"
    syncs.now = None
    assert not syncs.watch.check_silence()


def test_slow_syncs_one_after_the_other_are_no_silence() -> None:
    syncs = Syncs()
    for number in range(20):
        syncs.now = number
        assert not syncs.pass_by(1000)


def test_rule_m7_a_process_that_stood_still_blames_no_disk() -> None:
    """The sync returned long ago, the loop has only not heard of it yet."""
    syncs = Syncs()
    syncs.now = 7
    assert not syncs.pass_by(500)
    syncs.clock.advance(60_000)
    assert not syncs.watch.check_silence()
    assert syncs.pass_by(SILENCE_MS), "but if it still has not, it is silent"


def test_a_disk_tells_the_oldest_sync_of_all_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hang(_disk: Disk, _fd: int) -> None:
        begun.set()
        assert go_on.wait(10)

    monkeypatch.setattr(Disk, "sync_names", hang)
    disk = WatchedDisk()
    assert disk.oldest_sync() is None
    thread = threading.Thread(target=disk.sync_names, args=(0,))
    thread.start()
    assert begun.wait(10)
    hanging = disk.oldest_sync()
    assert hanging is not None
    fd = disk.open(str(tmp_path / "log"), create=True)
    for sync in (disk.sync_data, disk.sync_file, disk.sync_filesystem):
        sync(fd)
    disk.close(fd)
    assert disk.oldest_sync() == hanging
    go_on.set()
    thread.join()
    assert disk.oldest_sync() is None
