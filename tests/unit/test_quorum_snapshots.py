"""Snapshots: whole or not at all, never older than what was promised (defects 4, 5)."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft_metadata.common.errors import CorruptionError
from raft_metadata.common.ids import ClusterId, NodeId
from raft_metadata.quorum.data_dir import open_voter_disk
from raft_metadata.quorum.library_adapters import SnapshotAdapter
from raft_metadata.quorum.pysyncobj_internals import NOT_SERIALIZING
from raft_metadata.quorum.snapshots import (
    PART_BYTES,
    SnapshotState,
    SnapshotStore,
    frame,
    unframe,
)
from tests.support.quorum_sim import Machine, Sim
from tests.support.raising_faults import Died, RaisingFaults
from tests.support.simulated_disk import SimulatedDisk

HOME = "/raft"
SNAPSHOT = f"{HOME}/snapshot"
PREVIOUS, LAST = (b"\0a", 4, 1), (b"\0b", 5, 2)


def store(
    disk: SimulatedDisk,
    machine: Machine | None = None,
    run: Callable[[Callable[[], None]], None] = lambda write: write(),
    cluster: str = "c",
) -> SnapshotStore:
    if not disk.exists(HOME):
        disk.make_directory(HOME)
        disk.sync_directory("/")
    faults = RaisingFaults()
    return SnapshotStore(disk, HOME, ClusterId(cluster), machine or Machine(), faults, run=run)


def filled(size: int = 1000) -> Machine:
    machine = Machine()
    for index in range(1, 6):
        machine.apply(index, 1, b"payload-%d" % index + b"." * size)
    return machine


def written(disk: SimulatedDisk) -> SnapshotStore:
    ours = store(disk, filled())
    ours.begin(PREVIOUS, LAST)
    assert ours.poll() is SnapshotState.WRITTEN
    return ours


def test_written_then_read_after_a_power_cut() -> None:
    disk = SimulatedDisk()
    written(disk)
    disk.cut_power(random.Random(1), 0)
    machine = Machine()
    header = store(disk, machine).open()
    assert header is not None
    assert (header.previous, header.last) == (PREVIOUS, LAST)
    assert machine.applied == filled().applied


def test_every_flipped_byte_and_every_cut_is_refused() -> None:
    disk = SimulatedDisk()
    written(disk)
    content = disk.file(SNAPSHOT).cache
    good = bytes(content)
    for offset in range(0, len(good), 61):
        content[offset] ^= 0x40
        with pytest.raises(CorruptionError, match="snapshot"):
            store(disk).open()
        content[:] = good[:offset]
        with pytest.raises(CorruptionError, match="snapshot"):
            store(disk).open()
        content[:] = good
    assert store(disk).open() is not None


def test_a_snapshot_of_another_cluster_is_refused() -> None:
    disk = SimulatedDisk()
    written(disk)
    with pytest.raises(CorruptionError, match="of cluster c"):
        store(disk, cluster="another").open()


@given(st.binary(min_size=1), st.lists(st.binary()))
def test_frames_come_back_as_they_went(header: bytes, chunks: list[bytes]) -> None:
    data = b"".join(frame(header, iter(chunks)))
    assert list(unframe(data)) == [header, *chunks]


@given(st.lists(st.binary(min_size=1), min_size=1), st.data())
def test_a_file_that_lost_a_frame_is_refused(chunks: list[bytes], data: st.DataObject) -> None:
    pieces = list(frame(b"header", iter(chunks)))
    del pieces[data.draw(st.integers(1, len(pieces) - 1))]
    with pytest.raises(ValueError, match="offset"):
        list(unframe(b"".join(pieces)))


def test_a_failed_write_is_told_and_leaves_the_old_one() -> None:
    disk = SimulatedDisk()
    ours = written(disk)
    good = disk.read_file(SNAPSHOT)

    def full(operation: str, path: str) -> None:
        if operation == "write" and "snapshot" in path:
            raise OSError(errno.ENOSPC, "no space")

    disk.before = full
    ours.begin(PREVIOUS, (b"\0c", 6, 2))
    assert ours.poll() is SnapshotState.FAILED
    assert ours.poll() is SnapshotState.IDLE
    assert disk.read_file(SNAPSHOT) == good
    assert disk.names(HOME) == ["snapshot"], "half a snapshot keeps room that the journal needs"


def test_a_snapshot_that_failed_is_not_begun_again_at_once() -> None:
    disk, now = SimulatedDisk(), [0.0]
    ours = store(disk, filled())
    adapter = SnapshotAdapter(ours, RaisingFaults(), lambda _: 0, lambda: now[0])
    tried = []

    def full(operation: str, path: str) -> None:
        if operation == "create" and "/snapshot" in path:
            tried.append(now[0])
            raise OSError(errno.ENOSPC, "no space")

    disk.before = full
    for tick in range(1_000):
        now[0] = tick / 40
        if adapter.checkSerializing()[0] == NOT_SERIALIZING:
            adapter.serialize((None, LAST, PREVIOUS, None), PREVIOUS[1])
    assert 2 <= len(tried) <= 3


def test_one_being_written_never_replaces_one_that_was_installed_meanwhile() -> None:
    disk, other = SimulatedDisk(), SimulatedDisk()
    late: list[Callable[[], None]] = []
    ours = store(disk, filled(10), run=late.append)
    ours.begin((b"\0a", 1, 1), (b"\0b", 2, 1))
    written(other)
    ours.abort()
    for number, part in enumerate(parts(other)):
        ours.receive(part, first=number == 0, last=not part)
    installed = disk.read_file(SNAPSHOT)
    late[0]()
    assert disk.read_file(SNAPSHOT) == installed
    assert ours.poll() is SnapshotState.FAILED


def parts(disk: SimulatedDisk) -> list[bytes]:
    sender, node = store(disk), NodeId(2)
    out: list[bytes] = []
    while True:
        part = sender.next_part(node)
        assert part is not None
        data, first, last, index = part
        assert (first, index) == (not out, LAST[1])
        out.append(data)
        if last:
            return out


def test_sent_in_parts_and_installed_whole() -> None:
    source, target = SimulatedDisk(), SimulatedDisk()
    machine = filled(60_000)
    sender = store(source, machine)
    sender.begin(PREVIOUS, LAST)
    sent = parts(source)
    assert len(sent) > 3
    assert max(map(len, sent)) == PART_BYTES
    received = Machine()
    ours = store(target, received)
    for number, part in enumerate(sent):
        done = ours.receive(part, first=number == 0, last=not part)
        assert done == (number == len(sent) - 1)
    assert received.applied == machine.applied
    target.cut_power(random.Random(1), 0)  # rule Q1: synced before it was believed
    assert store(target, Machine()).open() is not None


def test_a_lost_part_is_refused_and_the_next_attempt_works() -> None:
    source, target = SimulatedDisk(), SimulatedDisk()
    store(source, filled(60_000)).begin(PREVIOUS, LAST)
    sent = parts(source)
    received = Machine()
    ours = store(target, received)
    ours.receive(sent[0], first=True, last=False)
    assert not ours.receive(sent[-1], first=False, last=True)
    assert received.applied == []
    assert not target.exists(SNAPSHOT)
    done = [ours.receive(p, first=n == 0, last=not p) for n, p in enumerate(sent)]
    assert done[-1]


def test_a_failed_sync_of_a_received_one_ends_the_process() -> None:
    source, target = SimulatedDisk(), SimulatedDisk()
    written(source)
    sent = parts(source)
    ours = store(target)

    def broken(operation: str, _path: str) -> None:
        if operation.startswith("sync"):
            raise OSError(errno.EIO, "EIO")

    target.before = broken
    ours.receive(sent[0], first=True, last=False)
    with pytest.raises(Died, match="snapshot install failed"):
        ours.receive(b"", first=False, last=True)


def test_leftovers_of_a_crash_are_removed() -> None:
    disk = SimulatedDisk()
    written(disk)
    for name in ("snapshot.7", "snapshot.7.tmp", "snapshot.incoming", "journal.tmp"):
        disk.open(f"{HOME}/{name}", create=True)
    store(disk).open()
    assert disk.names(HOME) == ["snapshot"]


def test_leftovers_go_before_the_journal_needs_their_room() -> None:
    sim = Sim()
    node = sim.ids[0]
    left = f"{sim.directory(node)}/snapshot.3.tmp"
    sim.disk.open(left, create=True)
    done: list[tuple[str, str]] = []
    sim.disk.before = lambda operation, path: done.append((operation, path.rpartition("/")[2]))
    open_voter_disk(sim.config(node), Machine(), RaisingFaults(), sim.disk).close()
    assert done.index(("unlink", left.rpartition("/")[2])) < done.index(("create", "journal.tmp"))
