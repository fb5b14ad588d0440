"""Append, read and search of one partition's log."""

from __future__ import annotations

import orjson
import pytest

from broker.log.log_directory import LogConfig
from broker.log.partition_log import PartitionLog
from broker.record.batch import HEADER_SIZE, RecordFormat, build_header, parse_header, walk
from broker.record.lines import ProduceRecord, make_raw
from raft_metadata.common.errors import CorruptionError, ErrorCode, KafkaError
from tests.support.doors.log import index_bytes_in_memory
from tests.support.logs import Life, append, offset_for_timestamp, records, values_of
from tests.support.simulated_disk import SimulatedDisk

END = 1 << 40


@pytest.fixture
def life() -> Life:
    return Life(SimulatedDisk(), LogConfig(segment_bytes=4000))


@pytest.fixture
def log(life: Life) -> PartitionLog:
    return life.log()


def line_of(offset: int, value: str) -> bytes:
    return b'{"offset":%d,"key":null,"value":%b}\n' % (offset, orjson.dumps(value))


def test_an_empty_log_is_not_on_the_disk(life: Life, log: PartitionLog) -> None:
    assert "/data/log/orders-0" not in life.disk.live  # type: ignore[attr-defined]
    assert (log.log_start_offset, log.log_end_offset, log.durable_end, log.last_epoch) == (
        0,
        0,
        0,
        -1,
    )
    assert log.read(0, 1000, END) == []
    assert log.read_raw(0, 1000, END) == b""
    assert log.end_of_epoch(5) == (-1, 0)
    assert offset_for_timestamp(log, 0) is None


def test_appended_bytes_are_the_bytes_pushed_and_read(log: PartitionLog) -> None:
    info = log.append_as_leader(
        records(["a", "b"]),
        key_format=RecordFormat.JSON,
        value_format=RecordFormat.BINARY,
        leader_epoch=3,
        now_ms=5000,
    )
    assert (info.base_offset, info.last_offset) == (0, 1)
    assert log.read_raw(0, 1000, END) == info.raw
    (piece,) = log.read(0, 1000, END)
    assert bytes(piece.lines) == line_of(0, "a") + line_of(1, "b")
    assert (piece.header.value_format, piece.header.leader_epoch) == (RecordFormat.BINARY, 3)
    assert (piece.header.append_timestamp, piece.header.max_timestamp) == (5000, 5000)


@pytest.mark.parametrize("start", range(12))
@pytest.mark.parametrize("up_to", [1, 5, 6, 11, 12])
def test_a_read_holds_exactly_the_range(log: PartitionLog, start: int, up_to: int) -> None:
    for base in range(0, 12, 3):
        append(log, [str(base), str(base + 1), str(base + 2)])
    got = [
        orjson.loads(line)["offset"]
        for piece in log.read(start, 1 << 20, up_to)
        for line in bytes(piece.lines).split(b"\n")[:-1]
    ]
    assert got == list(range(start, up_to))


@pytest.mark.parametrize("max_bytes", [0, 1, 40, 90, 130, 200, 5000])
def test_max_bytes_cuts_between_records_inside_a_batch_too(
    log: PartitionLog, max_bytes: int
) -> None:
    for base in range(0, 12, 4):
        append(log, [str(base + n) for n in range(4)])
    for start in range(12):
        pieces = log.read(start, max_bytes, END)
        sizes = sum(len(piece.lines) for piece in pieces)
        count = sum(piece.count for piece in pieces)
        assert count == 1 or sizes <= max_bytes
        assert pieces[0].first_offset == start
        assert pieces[-1].next_offset == start + count
    assert values_of(log, max_bytes=max_bytes) == [str(n) for n in range(12)]


def test_reading_goes_over_segments_and_many_small_batches(life: Life, log: PartitionLog) -> None:
    values = [f"{n}" + "x" * (n * 37 % 300) for n in range(400)]
    for value in values:
        append(log, [value])
    assert len(log.segments) > 5
    for start in (0, 1, 17, 200, 399):
        assert values_of(log, start, 700) == values[start:]
    raw = b""
    while len(list(walk(raw))) < 400:
        raw += log.read_raw(len(list(walk(raw))), 900, END)
    follower = life.log(1)
    follower.append_as_follower(memoryview(raw))
    assert values_of(follower) == values


def test_read_raw_gives_whole_batches_up_to_the_end_asked_for(log: PartitionLog) -> None:
    raws = [append(log, ["a", "b", "c"]) for _ in range(3)]
    assert log.read_raw(3, 10, END) == raws[1], "one whole, however large"
    [(_, rest)] = walk(log.read_raw(4, 10, END))
    assert (rest.base_offset, rest.next_offset, rest.count) == (4, 6, 2), "its front is left out"
    assert log.read_raw(0, 1 << 20, 8) == raws[0] + raws[1], "none that reaches past the end"
    assert log.read_raw(0, len(raws[0]) + 1, END) == raws[0]


@pytest.mark.parametrize("offset", [-1, 4])
def test_out_of_range_names_both_ends(log: PartitionLog, offset: int) -> None:
    append(log, ["a", "b", "c"])
    assert log.read(3, 100, END) == []
    with pytest.raises(KafkaError, match="holds 0 up to 3") as refused:
        log.read(offset, 100, END)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_segment_is_rolled_by_size_and_by_age(life: Life) -> None:
    log = life.log()
    append(log, ["x" * 3000], now_ms=0)
    append(log, ["x" * 3000], now_ms=1)
    append(log, ["x"], now_ms=2)
    append(log, ["x"], now_ms=604_800_002)
    assert [segment.base_offset for segment in log.segments] == [0, 1, 3]
    append(log, ["x" * 90_000], now_ms=604_800_003)
    assert values_of(log, 4) == ["x" * 90_000], "a batch may be larger than a segment"


def test_sealed_segments_are_not_scanned_at_the_next_start(life: Life) -> None:
    log = life.log()
    for n in range(30):
        append(log, [f"{n}" + "x" * 500], epoch=n // 10)
        life.flush()
    disk = life.disk
    disk.kill()  # type: ignore[attr-defined]
    opened = Life(disk, LogConfig(segment_bytes=4000)).log()
    assert len(opened.segments) > 1
    assert not any(index_bytes_in_memory(segment) for segment in opened.segments[:-1])
    assert opened.end_of_epoch(0) == (0, 10)
    assert len(values_of(opened)) == 30


@pytest.mark.parametrize("lost", ["index", "leader-epoch", "recovery-point"])
def test_lost_helper_files_are_rebuilt(life: Life, lost: str) -> None:
    log = life.log()
    for n in range(30):
        append(log, [f"{n}" + "x" * 500], epoch=n // 10)
        life.flush()
    disk = life.disk
    for path in [path for path in disk.live if path.endswith(lost)]:  # type: ignore[attr-defined]
        # Where the log begins is believed to be known unless a crash tore it.
        left = bytes(20) if lost == "recovery-point" else b"damaged"
        disk.live[path].cache[:] = left  # type: ignore[attr-defined]
    disk.kill()  # type: ignore[attr-defined]
    opened = Life(disk, LogConfig(segment_bytes=4000)).log()
    assert [opened.end_of_epoch(epoch) for epoch in range(3)] == [(0, 10), (1, 20), (2, 30)]
    assert len(values_of(opened, 3)) == 27


def test_truncation_inside_a_batch_takes_the_whole_batch(log: PartitionLog) -> None:
    append(log, ["a", "b"])
    append(log, ["c", "d"], epoch=2)
    log.truncate_to(3)
    assert (log.log_end_offset, log.last_epoch, log.generation) == (2, 1, 1)
    log.truncate_to(2)
    assert log.generation == 1, "nothing to remove, nothing changed"
    with pytest.raises(ValueError, match="can't begin at -1"):
        log.truncate_to(-1)


def test_a_truncated_log_is_written_again_under_the_same_index(log: PartitionLog) -> None:
    for n in range(60):
        append(log, [f"old{n}" + "x" * 200])
    log.truncate_to(25)
    for n in range(25, 60):
        append(log, [f"new{n}" + "y" * 190], epoch=2)
    assert [str(value)[:5] for value in values_of(log, 24, 500)][:3] == ["old24", "new25", "new26"]
    assert log.end_of_epoch(1) == (1, 25)


def test_search_by_time_goes_by_the_producers_time(log: PartitionLog) -> None:
    times = [100, 300, None, 200, 900]
    for n in range(40):
        batch = records([n] * 5)
        for record, time in zip(batch, times, strict=True):
            record.timestamp = None if time is None else time + 1000 * n
        log.append_as_leader(
            batch,
            key_format=RecordFormat.JSON,
            value_format=RecordFormat.JSON,
            leader_epoch=1,
            now_ms=250 + 1000 * n,
        )
    assert [offset_for_timestamp(log, t) for t in (0, 100, 101, 300, 301, 900)] == [
        0,
        0,
        1,
        1,
        4,
        4,
    ]
    assert offset_for_timestamp(log, 37_250) == 37 * 5 + 1
    assert offset_for_timestamp(log, 39_900) == 199
    assert offset_for_timestamp(log, 39_901) is None


def test_append_time_drops_the_producers_times(life: Life) -> None:
    log = life.log()
    log.config = LogConfig(append_time=True)
    batch = [ProduceRecord(value=make_raw(b"1"), timestamp=5)]
    log.append_as_leader(
        batch,
        key_format=RecordFormat.JSON,
        value_format=RecordFormat.JSON,
        leader_epoch=1,
        now_ms=77,
    )
    (piece,) = log.read(0, 100, END)
    assert b"timestamp" not in bytes(piece.lines)
    assert piece.header.max_timestamp == piece.header.base_timestamp == 77


def test_records_appended_whole_are_one_batch_above_the_usual_size(life: Life) -> None:
    log = life.log()
    values = ["x" * 600_000, "y" * 600_000, "z"]

    def appended(*, whole: bool) -> list[int]:
        info = log.append_as_leader(
            records(values),
            key_format=RecordFormat.JSON,
            value_format=RecordFormat.JSON,
            leader_epoch=1,
            now_ms=5,
            whole=whole,
        )
        return [header.last_offset_delta + 1 for _, header in walk(info.raw)]

    assert appended(whole=False) == [1, 2]
    assert appended(whole=True) == [3]
    assert log.log_end_offset == 6


def test_a_follower_refuses_gaps_old_epochs_and_damage(life: Life) -> None:
    leader, follower = life.log(0), life.log(1)
    first, second = append(leader, ["a"], epoch=2), append(leader, ["b"], epoch=2)
    with pytest.raises(ValueError, match="does not follow"):
        follower.append_as_follower(second)
    follower.append_as_follower(first)
    old = append(life.log(2), ["x"], epoch=1) + append(life.log(2), ["y"], epoch=1)
    with pytest.raises(ValueError, match="does not follow"):
        follower.append_as_follower(old[len(old) // 2 :])
    damaged = bytearray(second)
    damaged[-2] ^= 1
    for bytes_sent in (damaged, second[:-1], second[:50], b"\0" + second[1:]):
        with pytest.raises(KafkaError) as refused:
            follower.append_as_follower(bytes(bytes_sent))
        assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
    assert follower.log_end_offset == 1
    follower.append_as_follower(second)
    assert values_of(follower) == ["a", "b"]


def test_a_leader_refuses_an_older_epoch(log: PartitionLog) -> None:
    append(log, ["a"], epoch=5)
    with pytest.raises(ValueError, match="epoch"):
        append(log, ["b"], epoch=4)
    with pytest.raises(ValueError, match="behind"):
        log.start_epoch(4)


def test_rot_is_reported_and_never_served(life: Life, log: PartitionLog) -> None:
    append(log, ["a"])
    append(log, ["b" * 50])
    inode = life.disk.live["/data/log/orders-0/00000000000000000000.log"]  # type: ignore[attr-defined]
    inode.cache[-5] ^= 1
    assert len(log.read(0, 10, 1)) == 1
    with pytest.raises(CorruptionError, match="offset=1"):
        log.read(1, 1000, END)
    assert list(life.manager.offline) == [(log.topic_id, 0)]
    assert life.failures == [], "one partition, not the disk"


def test_rule_r7_a_compacted_batch_is_read_by_offset(life: Life) -> None:
    """Line k is not offset base + k: a split by count skipped a live record."""
    log = life.log()
    lines = line_of(0, "a") + line_of(4, "e") + line_of(9, "j")
    header = build_header(
        lines,
        durable_end=0,
        base_offset=0,
        count=3,
        last_offset_delta=9,
        leader_epoch=1,
        append_timestamp=1,
        base_timestamp=1,
        max_timestamp=1,
        attributes=0,
    )
    log.append_as_follower(header + lines)
    append(log, ["k"])
    assert log.log_end_offset == 11
    for start, offsets in {0: [0, 4, 9], 1: [4, 9], 4: [4, 9], 5: [9], 9: [9]}.items():
        (piece, *_) = log.read(start, 1000, 10)
        got = [orjson.loads(line)["offset"] for line in bytes(piece.lines).splitlines()]
        assert got == offsets
        assert (piece.first_offset, piece.next_offset) == (offsets[0], 10)
    (piece,) = log.read(0, 10, 11)
    assert (piece.count, piece.next_offset) == (1, 4), "read on at the next live record"


def test_a_large_request_becomes_several_batches(life: Life) -> None:
    log = life.log()
    values = ["x" * 300_000 for _ in range(10)]
    raw = append(log, values)
    headers = [header for _, header in walk(raw)]
    assert [header.base_offset for header in headers] == [0, 3, 6, 9]
    assert max(header.length for header in headers) <= 1 << 20
    assert values_of(log, 2, 700_000) == values[2:]


def test_the_header_of_a_pushed_batch_is_read_from_its_first_bytes(log: PartitionLog) -> None:
    raw = append(log, ["a"])
    assert parse_header(raw[:HEADER_SIZE]).size == len(raw)
