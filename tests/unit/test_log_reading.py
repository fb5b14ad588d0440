"""Reads of whole batches in one go: the same slices as one by one, and rot is never among them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from broker.log import log_reader
from broker.log.log_reader import line_from
from broker.record.batch import (
    CRC_FROM,
    HEADER_SIZE,
    BatchSlice,
    crc32,
    whole_lines,
    whole_slices,
)
from raft_metadata.common.disk import Disk
from raft_metadata.common.errors import CorruptionError, ErrorCode, KafkaError
from tests.support.logs import Life, append

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.log.partition_log import PartitionLog

SIZES = (1, 7, 1, 1, 30, 2, 100, 1, 3)


def filled(life: Life) -> PartitionLog:
    log = life.log()
    for size in SIZES:
        append(log, [f"{number:05d}" for number in range(size)])
    return log


def none_in_one_go(
    _view: memoryview, at: int, _wanted: tuple[int, int], room: int
) -> tuple[list[BatchSlice], int, int]:
    return [], at, room


def test_whole_batches_are_read_as_they_are_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(Disk(), data_dir=str(tmp_path))
    log = filled(life)
    asked = [
        (offset, max_bytes, up_to)
        for offset in (0, 1, 4, 8, 9, 40, 141, 142, 145)
        for max_bytes in (1, 50, 300, 1_000, 3_000, 1 << 20)
        for up_to in (offset + 1, 43, 143, sum(SIZES))
    ]
    quick = [log.read(*one) for one in asked]
    for one, slices in zip(asked, quick, strict=True):
        lines = log.read_lines(*one)
        assert b"".join(lines.pieces) == b"".join([piece.lines for piece in slices])
        assert lines.next_offset == (slices[-1].next_offset if slices else one[0])
    assert log.read_lines(sum(SIZES), 1_000, sum(SIZES)) == ((), sum(SIZES))
    monkeypatch.setattr(log_reader, "whole_slices", none_in_one_go)
    assert quick == [log.read(*one) for one in asked]
    assert any(len(slices) > 5 for slices in quick)
    raw = [log.read_raw(*one) for one in asked]
    monkeypatch.setattr(log_reader, "sound_run", lambda _view, at, _up_to, _limit: at)
    assert raw == [log.read_raw(*one) for one in asked]
    life.close()


def test_a_batch_of_more_records_than_offsets_is_in_no_run_though_its_crc_is_right(
    tmp_path: Path,
) -> None:
    life = Life(Disk(), data_dir=str(tmp_path))
    log = filled(life)
    raw = bytearray(log.read_raw(8, 1 << 20, 9))
    life.close()
    assert whole_lines(memoryview(raw), 0, (8, 9), 1_000)[1] == len(raw)
    # Two records at one offset, in the field behind the base offset.
    raw[32:36] = (2).to_bytes(4, "little")
    raw[CRC_FROM - 4 : CRC_FROM] = crc32(raw[CRC_FROM:]).to_bytes(4, "little")
    assert whole_lines(memoryview(raw), 0, (8, 9), 1_000) == ([], 0, 1_000)
    assert whole_slices(memoryview(raw), 0, (8, 9), 1_000) == ([], 0, 1_000)


@pytest.mark.parametrize("number", [0, 6, 8])
@pytest.mark.parametrize("at", [0, 6, 20, 24, 30, 32, 37, 82, HEADER_SIZE + 3, -1])
def test_invariant_l22_no_batch_of_a_read_is_served_rotten(
    tmp_path: Path, number: int, at: int
) -> None:
    """Whatever byte of whatever batch it is that changed under it: only what is before it is."""
    life = Life(Disk(), data_dir=str(tmp_path))
    log = filled(life)
    positions, bases, sound = [0], [], []
    for piece in log.read(0, 1 << 20, log.log_end_offset):
        positions.append(positions[-1] + piece.header.size)
        bases.append(piece.first_offset)
        sound.append(bytes(piece.lines))
    segment = log.segments[0]
    where = positions[number] + at if at >= 0 else positions[number + 1] + at
    (byte,) = life.disk.read(segment.fd, 1, where)
    life.disk.write(segment.fd, bytes([byte ^ 1]), where)
    before, found = b"".join(sound[:number]), b""
    offset, size = 0, 1 << 20
    while offset < bases[number]:
        lines = log.read_lines(offset, size, log.log_end_offset)
        assert lines.next_offset == log.read(offset, size, log.log_end_offset)[-1].next_offset
        found, offset = found + b"".join(lines.pieces), lines.next_offset
    for read in (log.read, log.read_lines, log.read_raw):
        with pytest.raises(CorruptionError):
            read(offset, size, log.log_end_offset)
    assert (found, offset) == (before, bases[number]), "however much is asked for at once"
    assert isinstance(log.failed, CorruptionError)
    life.close()


@pytest.mark.parametrize("offsets", [range(95, 125), (3,), (3, 9), (98, 99, 1_000, 1_001, 10_000)])
def test_rule_r7_a_line_is_found_by_the_offset_it_says(offsets: Sequence[int]) -> None:
    """Wherever the lines lie in a buffer, and whatever is missing between two of them."""
    lines = [b'{"offset":%d,"key":null,"value":"%b"}\n' % (at, b"x" * (at % 7)) for at in offsets]
    text = b"header\n" + b"".join(lines) + b'{"offset":0,"the":"next batch"}\n'
    start, end = 7, 7 + sum(map(len, lines))
    for wanted in range(offsets[0] - 1, offsets[-1] + 2):
        before = [line for at, line in zip(offsets, lines, strict=True) if at < wanted]
        assert line_from(text, start, end, wanted) == start + sum(map(len, before))


def test_a_few_lines_of_a_large_batch_do_not_keep_the_rest_in_memory(tmp_path: Path) -> None:
    """An answer may stand in a slow reader's way for long; as many bytes of it as it has count."""
    life = Life(Disk(), data_dir=str(tmp_path))
    log = life.log()
    append(log, ["x" * 1_000] * 500)
    for offset in (0, 250, 499):
        for piece in log.read_lines(offset, 2_000, log.log_end_offset).pieces:
            whole = piece.obj if isinstance(piece, memoryview) else piece
            assert len(whole) <= 2_000
    life.close()


READERS = ("read", "read_lines", "read_packed", "read_raw")


@pytest.mark.parametrize("reader", READERS)
def test_a_closed_log_is_not_read_and_opens_no_file(tmp_path: Path, reader: str) -> None:
    """Its directory may be in quarantine by then, or hold the files of another log."""
    life = Life(Disk(), data_dir=str(tmp_path))
    log = filled(life)
    life.flush()
    log.close()
    Path(log.directory).rename(tmp_path / "set aside")
    Path(log.directory).mkdir()
    with pytest.raises(KafkaError, match="is closed") as refused:
        getattr(log, reader)(0, 1_000, 100)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert not any(Path(log.directory).iterdir())
    assert log.failed is None
    assert not life.failures


@pytest.mark.parametrize("reader", READERS)
def test_invariant_l22_a_file_that_was_shortened_is_damage(tmp_path: Path, reader: str) -> None:
    life = Life(Disk(), data_dir=str(tmp_path))
    log = filled(life)
    life.flush()
    os.truncate(log.segments[0].log_path, 0)
    with pytest.raises(CorruptionError):
        getattr(log, reader)(3, 1_000, 100)
    assert isinstance(log.failed, CorruptionError)
