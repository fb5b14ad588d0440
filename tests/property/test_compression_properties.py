"""A log that is compressed now and then against one that never is: the same records, everywhere."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from broker.log.log_directory import LogConfig
from broker.log.partition_log import PartitionLog
from broker.record import compression
from broker.record.batch import RecordFormat
from broker.record.compression import PackedSlice, fits_one_frame, framed, framed_as_single
from broker.record.render import array_pieces, batch_line, lines_with_batches, render_v2
from broker.server.local_partitions import split_packed
from tests.property.test_compaction_properties import Compacted
from tests.support.compaction_model import headers_of
from tests.support.logs import Life, append, offset_for_timestamp
from tests.support.simulated_disk import SimulatedDisk

WORDS = ["JFK", "LGA", "EWR", "on time", "late", "ünïcode", '"quoted"']


@contextmanager
def even_short_lines() -> Iterator[None]:
    """Compressed wherever that is shorter at all: models write short records."""
    least, compression.MIN_LINES_BYTES = compression.MIN_LINES_BYTES, 1
    try:
        yield
    finally:
        compression.MIN_LINES_BYTES = least


class CompactedAndCompressed(Compacted):
    """The model of a compacted log's life, with batches of both kinds in it."""

    compressed = 0

    def __init__(self) -> None:
        super().__init__()
        self.patch = even_short_lines()
        self.patch.__enter__()
        self.zstd = True

    def teardown(self) -> None:
        self.patch.__exit__(None, None, None)
        super().teardown()

    def open(self) -> None:
        self.config = replace(self.config, zstd=self.zstd)
        super().open()

    @rule(zstd=st.sampled_from([True, True, False]))
    def switch(self, zstd: bool) -> None:
        self.zstd = zstd
        self.log.config = self.config = replace(self.config, zstd=zstd)

    @rule()
    def batches_that_kept_records_stay_compressed(self) -> None:
        type(self).compressed += any(header.is_compressed for header in headers_of(self.log))
        for header in headers_of(self.log):
            assert header.count or not header.is_compressed

    @rule(share=st.floats(0, 1))
    def frames_say_what_lines_say(self, share: float) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        offset = start + int(share * (end - start))
        assert read_through(self.log, offset, 300, packed=True) == read_through(
            self.log, offset, 300, packed=False
        )


CompactedAndCompressed.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


class TestCompactedAndCompressed(CompactedAndCompressed.TestCase):
    """As above; and it was about something."""

    def runTest(self) -> None:  # noqa: N802 unittest's name
        super().runTest()
        assert CompactedAndCompressed.compressed


def unpacked(body: bytes) -> bytes:
    reader = zstandard.ZstdDecompressor().stream_reader(body, read_across_frames=True)
    return bytes(reader.read())


def read_through(
    log: PartitionLog, offset: int, max_bytes: int, *, packed: bool, once: bool = False
) -> bytes:
    """All lines from an offset on, as a client that reads to the end gets them.

    ``once``: by a reader that knows of the first frame of an answer only.
    """
    lines = b""
    while offset < log.log_end_offset:
        if packed:
            plain, frames = split_packed(log.read_packed(offset, max_bytes, log.log_end_offset))
        else:
            plain, frames = log.read(offset, max_bytes, log.log_end_offset), ()
        assert not (plain and frames)
        if not plain and not frames:
            break
        if frames and once:
            plain, frames = split_packed(fits_one_frame(frames))
        if frames:
            found = framed_as_single(frames) if once else framed(frames)
            whole = b"".join(found.parts)
            body = zstandard.decompress(whole) if once else unpacked(whole)
            assert len(body) == found.lines_size
            lines += body
        else:
            body = b"".join([piece.lines for piece in plain])
            lines += body
        last = (plain or frames)[-1]
        assert body.count(b"\n") == sum(piece.count for piece in (plain or frames))
        assert len(body) <= max_bytes or body.count(b"\n") == 1
        assert last.next_offset > offset
        offset = last.next_offset
    return lines


batches = st.lists(
    st.tuples(st.booleans(), st.integers(1, 60), st.integers(0, 80)), min_size=1, max_size=8
)


def filled(drawn: list[tuple[bool, int, int]], seed: int) -> tuple[PartitionLog, PartitionLog]:
    """The same records in two logs; only the first is compressed, where that was drawn."""
    mixed, plain = (Life(SimulatedDisk(), LogConfig(segment_bytes=9_000)).log() for _ in range(2))
    chance = random.Random(seed)
    for number, (zstd, count, size) in enumerate(drawn):
        values = [
            {"n": n, "to": chance.choice(WORDS), "noise": chance.randbytes(size).hex()}
            for n in range(count)
        ]
        mixed.config = replace(mixed.config, zstd=zstd)
        for log in (mixed, plain):
            append(log, values, epoch=1 + number // 3, now_ms=1_000 + number)
    return mixed, plain


@settings(max_examples=60, deadline=None)
@given(
    drawn=batches, seed=st.integers(0, 99), share=st.floats(0, 1), max_bytes=st.integers(1, 20_000)
)
def test_every_shape_of_every_read_is_that_of_a_plain_log(
    drawn: list[tuple[bool, int, int]], seed: int, share: float, max_bytes: int
) -> None:
    mixed, plain = filled(drawn, seed)
    end = plain.log_end_offset
    assert mixed.log_end_offset == end
    offset = int(share * (end - 1))
    up_to = random.Random(seed).randint(offset + 1, end)
    found, expected = (log.read(offset, max_bytes, up_to) for log in (mixed, plain))
    # A read ends with its segment, and what is compressed has shorter ones.
    if found[-1].next_offset != expected[-1].next_offset:
        nearest = min(found[-1].next_offset, expected[-1].next_offset)
        found, expected = (log.read(offset, max_bytes, nearest) for log in (mixed, plain))
    for shape in (
        lambda pieces: b"".join([piece.lines for piece in pieces]),
        lambda pieces: b"".join(array_pieces(pieces)),
        lines_with_batches,
        lambda pieces: [
            render_v2(piece, topic="t", partition=1, door=door)
            for piece in pieces
            for door in (RecordFormat.JSON, RecordFormat.BINARY)
        ],
    ):
        assert shape(found) == shape(expected)
    whole = read_through(plain, offset, 1 << 20, packed=False)
    for packed, once in ((False, False), (True, False), (True, True)):
        assert read_through(mixed, offset, max_bytes, packed=packed, once=once) == whole
    for when in range(999, 1_002 + len(drawn)):
        assert offset_for_timestamp(mixed, when) == offset_for_timestamp(plain, when)


@settings(max_examples=40, deadline=None)
@given(drawn=batches, seed=st.integers(0, 99), share=st.floats(0, 1), size=st.integers(1, 9_000))
def test_a_follower_that_begins_anywhere_holds_the_same_records(
    drawn: list[tuple[bool, int, int]], seed: int, share: float, size: int
) -> None:
    mixed, plain = filled(drawn, seed)
    start, end = int(share * (mixed.log_end_offset - 1)), mixed.log_end_offset
    follower = Life(SimulatedDisk(), LogConfig(zstd=True)).log()
    follower.start_over(start)
    while follower.log_end_offset < end:
        raw = mixed.read_raw(follower.log_end_offset, size, end)
        follower.append_as_follower(raw)
    assert read_through(follower, start, 5_000, packed=False) == read_through(
        plain, start, 1 << 20, packed=False
    )


@settings(max_examples=30, deadline=None)
@given(drawn=batches, seed=st.integers(0, 99), share=st.floats(0, 1))
def test_frames_with_lines_about_batches_say_what_the_lines_alone_say(
    drawn: list[tuple[bool, int, int]], seed: int, share: float
) -> None:
    mixed, _ = filled(drawn, seed)
    offset, end = int(share * (mixed.log_end_offset - 1)), mixed.log_end_offset
    pieces = mixed.read_packed(offset, 1 << 20, end)
    found = framed(pieces, batch_line)
    expected = mixed.read(offset, 1 << 20, pieces[-1].next_offset)
    assert unpacked(b"".join(found.parts)) == lines_with_batches(expected)
    for piece in pieces:
        assert isinstance(piece, PackedSlice) <= piece.header.is_compressed


@pytest.mark.parametrize("seed", range(3))
def test_a_restart_finds_what_was_compressed(seed: int) -> None:
    disk = SimulatedDisk()
    life = Life(disk, LogConfig(segment_bytes=4_000, zstd=True))
    log = life.log()
    for number in range(20):
        append(log, [{"n": n, "same": "again and again"} for n in range(30)], now_ms=number)
    before = read_through(log, 0, 1 << 20, packed=False)
    life.flush()
    disk.cut_power(random.Random(seed))
    after = Life(disk, LogConfig(segment_bytes=4_000)).log()
    assert read_through(after, 0, 1 << 20, packed=True) == before
