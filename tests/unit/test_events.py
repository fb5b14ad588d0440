"""The event journal: told in order, kept over restarts, and never in the way of a broker."""

from __future__ import annotations

import asyncio
import errno
import tracemalloc
from pathlib import Path
from typing import Any

import orjson
import pytest
from typing_extensions import override

from broker.replication import events as events_module
from broker.replication.events import (
    EVENT_FILE,
    EVENTS_KEPT,
    OLD_EVENT_FILE,
    EventFile,
    EventJournal,
    EventKind,
    PartitionSnapshot,
    note_isr,
    note_isr_change,
    note_truncation,
)
from broker.replication.isr_state import IsrChange, IsrChangeKind
from broker.replication.leader_state import LeaderState
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.disk import Disk
from raft_metadata.common.ids import (
    BrokerEpoch,
    IncarnationId,
    PartitionEpoch,
    PartitionId,
    TopicId,
    TopicIdPartition,
)
from tests.support.hosted_replicas import (
    FIRST_ID,
    ME,
    OTHER,
    ZERO,
    created,
    hosted,
    images,
    registered,
)
from tests.support.waiting import until

HERE = TopicIdPartition(TopicId("t" * 22), PartitionId(3))


class FullDisk(Disk):
    """Takes ``room`` more bytes, then says that it is full."""

    room = 1 << 40

    @override
    def write(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        taken = data[: self.room]
        super().write(fd, taken, position)
        self.room -= len(taken)
        if len(taken) < len(data):
            raise OSError(errno.ENOSPC, "no space")


def journal(folder: Path, life: str = "life-1", **options: Any) -> EventJournal:
    made = EventJournal(
        EventFile(str(folder), **options), SystemClock(), IncarnationId(life), lambda _: "orders"
    )
    made.open()
    return made


def sequences(lines: list[bytes]) -> list[int]:
    return [orjson.loads(line)["sequence"] for line in lines]


async def test_an_event_says_what_where_and_when(tmp_path: Path) -> None:
    events = journal(tmp_path)
    events.note(EventKind.LOG_START, HERE, 7, old=0, new=12, reason="trim")
    (line,) = await events.read(0, 10)
    event = orjson.loads(line)
    assert {key: event[key] for key in event if not key.endswith("_ms")} == {
        "sequence": 1, "incarnation_id": "life-1", "kind": "log_start", "topic": "orders",
        "topic_id": HERE.topic_id, "partition": 3, "leader_epoch": 7,
        "facts": {"old": 0, "new": 12, "reason": "trim"},
    }  # fmt: skip
    assert event["wall_ms"] > event["monotonic_ms"] > 0


async def test_events_go_to_the_disk_while_the_broker_runs_and_numbers_go_on_after_it(
    tmp_path: Path,
) -> None:
    events = journal(tmp_path)
    async with asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(events.run())
        events.note(EventKind.STARTED, None, -1)
        await until(lambda: bool(EventFile(str(tmp_path)).read(0, 1)))
        writing.cancel()
    events.note(EventKind.CLEANED, HERE, 1)
    events.close()
    again = journal(tmp_path, "life-2")
    again.note(EventKind.STARTED, None, -1)
    again.close()
    lines = (tmp_path / EVENT_FILE).read_bytes().splitlines()
    assert sequences(lines) == [1, 2, 3]
    assert [orjson.loads(line)["incarnation_id"] for line in lines] == ["life-1"] * 2 + ["life-2"]


async def test_older_events_than_memory_keeps_are_read_from_the_disk(tmp_path: Path) -> None:
    events = journal(tmp_path)
    for _ in range(EVENTS_KEPT + 50):
        events.note(EventKind.CLEANED, HERE, 1)
    events.close()
    for _ in range(5):  # these are in memory only
        events.note(EventKind.CLEANED, HERE, 1)
    everything = list(range(1, EVENTS_KEPT + 56))
    assert sequences(await events.read(0, 5_000)) == everything
    assert sequences(await events.read(10, 3)) == [11, 12, 13]
    assert sequences(await events.read(EVENTS_KEPT + 40, 5_000)) == everything[EVENTS_KEPT + 40 :]
    assert await events.read(EVENTS_KEPT + 55, 10) == []
    assert await events.read(10**9, 10) == []


def test_a_file_that_grew_is_set_aside_once(tmp_path: Path) -> None:
    events = journal(tmp_path, max_bytes=2_000)
    for _ in range(40):
        events.note(EventKind.CLEANED, HERE, 1)
        events.close()
    old, new = (tmp_path / OLD_EVENT_FILE), (tmp_path / EVENT_FILE)
    assert old.stat().st_size <= 2_000
    assert new.stat().st_size <= 2_000
    both = sequences([*old.read_bytes().splitlines(), *new.read_bytes().splitlines()])
    assert both == list(range(both[0], 41))
    assert journal(tmp_path).sequence == 40


def test_a_full_disk_loses_events_and_nothing_else(tmp_path: Path) -> None:
    disk = FullDisk()
    events = journal(tmp_path, disk=disk)
    events.note(EventKind.CLEANED, HERE, 1)
    events.close()
    disk.room = 20
    events.note(EventKind.CLEANED, HERE, 2)
    events.close()
    assert events.dropped == 1
    disk.room = 1 << 40
    events.note(EventKind.CLEANED, HERE, 3)
    events.close()
    assert sequences(EventFile(str(tmp_path)).read(0, 10)) == [1, 3], "the gap shows"


async def test_a_reason_that_is_no_text_stops_nobody(tmp_path: Path) -> None:
    """An error names a file in a folder whose name is not UTF-8; whoever notes it goes on."""
    made = journal(tmp_path)
    reason = str(OSError(5, "I/O error", "/data-\udcff/t-0/0.log"))
    made.note(EventKind.LOG_FAILED, None, -1, log="t-0", reason=reason)
    [line] = await made.read(0, 10)
    assert "I/O error" in orjson.loads(line)["facts"]["reason"]


def test_a_torn_last_line_is_left_behind(tmp_path: Path) -> None:
    events = journal(tmp_path)
    events.note(EventKind.CLEANED, HERE, 1)
    events.note(EventKind.CLEANED, HERE, 1)
    events.close()
    path = tmp_path / EVENT_FILE
    path.write_bytes(path.read_bytes()[:-7])
    again = journal(tmp_path)
    again.note(EventKind.CLEANED, HERE, 1)
    again.close()
    assert sequences(EventFile(str(tmp_path)).read(0, 10)) == [1, 2]


def test_events_that_nobody_writes_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_module, "EVENTS_UNWRITTEN", 10)
    events = journal(tmp_path)
    for _ in range(25):
        events.note(EventKind.CLEANED, HERE, 1)
    assert events.dropped == 15


async def test_roles_and_high_watermarks_are_noted_where_they_change(tmp_path: Path) -> None:
    logs, manager = hosted(tmp_path, "life-1")
    for image in images(
        (registered(ME, 0, "life-1"), registered(OTHER, 1, "o")), created(FIRST_ID, (ME, OTHER))
    ):
        manager.on_metadata_update(image)
    replica = manager.replica(TopicIdPartition(FIRST_ID, ZERO))
    assert replica is not None
    replica.partition.high_watermark = 5
    manager.events.high_watermarks_moved([replica, replica])
    (event,) = [orjson.loads(line) for line in await manager.events.read(0, 10)]
    assert (event["kind"], event["topic"], event["partition"]) == ("role_changed", "orders", 0)
    assert event["facts"] == {
        "role": "leader", "log_start": 0, "log_end": 0, "durable_end": 0, "high_watermark": 0,
        "epoch_start": 0, "isr": [1, 2], "partition_epoch": 0,
    }  # fmt: skip
    await asyncio.sleep(events_module.HIGH_WATERMARK_INTERVAL_MS / 1000)
    manager.events.high_watermarks_moved([])
    manager.events.high_watermarks_moved([])
    _, moved = [orjson.loads(line) for line in await manager.events.read(0, 10)]
    assert moved["kind"] == "high_watermark"
    assert moved["facts"]["high_watermark"] == 5
    logs.close(None)


async def test_a_truncation_and_an_isr_change_say_from_where_to_where(tmp_path: Path) -> None:
    logs, manager = hosted(tmp_path, "life-1")
    for image in images(
        (registered(ME, 0, "life-1"), registered(OTHER, 1, "o")), created(FIRST_ID, (ME, OTHER))
    ):
        manager.on_metadata_update(image)
    replica = manager.replica(TopicIdPartition(FIRST_ID, ZERO))
    assert replica is not None
    partition, role = replica.partition, replica.partition.role
    assert isinstance(role, LeaderState)
    before = PartitionSnapshot(partition)
    change = IsrChange(
        7, role.epoch, role.partition_epoch, ((ME, BrokerEpoch(0)),), IsrChangeKind.SHRINK, (OTHER,)
    )
    note_isr_change(manager.events, partition, change, EventKind.ISR_PROPOSED)
    partition.isr_accepted(change, PartitionEpoch(1), (ME,))
    note_isr(manager.events, partition, before, change.reason)
    note_isr(manager.events, partition, PartitionSnapshot(partition), "told twice")
    before.log_end, before.high_watermark = 9, 4
    note_truncation(manager.events, partition, before)
    note_truncation(manager.events, partition, PartitionSnapshot(partition))
    _, proposed, changed, cut = [orjson.loads(line) for line in await manager.events.read(0, 10)]
    assert proposed["facts"] == {
        "attempt": 7, "isr": [1], "partition_epoch": 0, "reason": "lag_time removed=[2]",
    }  # fmt: skip
    assert changed["facts"] == {
        "old": [1, 2], "new": [1], "reason": "lag_time removed=[2]",
        "partition_epoch": 1, "high_watermark": 0,
    }  # fmt: skip
    assert cut["facts"] == {
        "from": 9, "to": 0, "high_watermark": 4, "unclean": True, "reason": "diverging",
    }  # fmt: skip
    logs.close(None)


async def test_events_in_memory_take_no_more_than_they_are_long(tmp_path: Path) -> None:
    """The encoder's own results hold 4 KB each, however short: 4 MB of a broker's memory."""
    story = journal(tmp_path)
    tracemalloc.start()
    try:
        for number in range(EVENTS_KEPT):
            story.note(EventKind.ROLE_CHANGED, HERE, number, role="leader")
        story.close()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    lengths = sum(map(len, await story.read(0, EVENTS_KEPT)))
    assert taken < lengths + EVENTS_KEPT * 100
