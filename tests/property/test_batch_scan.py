"""The scan of batches finds, in any damaged file and however it is read, what each byte says."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from broker.log.scan import (
    GoodBatch,
    RottenBatch,
    TornBatch,
    batches,
    header_places,
    sound_batches,
    whole_batches,
)
from broker.record.batch import HEADER_SIZE, MAGIC, BatchError, build_header, is_stamped, verify
from raft_metadata.common.errors import CorruptionError
from tests.support.simulated_disk import SimulatedDisk

PATH = "/log/file"


def batch(base_offset: int, size: int) -> bytes:
    """A valid batch of one record, and of as many bytes behind its header."""
    lines = b"x" * size
    head = build_header(
        lines, durable_end=base_offset, base_offset=base_offset, count=1, last_offset_delta=0,
        leader_epoch=1, append_timestamp=0, base_timestamp=0, max_timestamp=0, attributes=0,
    )  # fmt: skip
    return head + lines


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """Batches, then damage: flipped bits, bytes put in between, a cut end."""
    sizes = draw(st.lists(st.integers(1, 300), min_size=1, max_size=5))
    data = bytearray(b"".join(batch(offset, size) for offset, size in enumerate(sizes)))
    for at in draw(st.lists(st.integers(0, len(data) - 1), max_size=2)):
        data[at] ^= draw(st.sampled_from([1, 64, 255]))
    if draw(st.booleans()):
        at = draw(st.integers(0, len(data)))
        data[at:at] = draw(st.sampled_from([b"\0" * 90, MAGIC, b"y"]))
    return bytes(data[: draw(st.integers(0, len(data)))]) if draw(st.booleans()) else bytes(data)


def on_disk(data: bytes) -> tuple[SimulatedDisk, int]:
    disk = SimulatedDisk()
    fd = disk.open(PATH, create=True)
    disk.write(fd, data, 0)
    return disk, fd


def judged(data: bytes) -> list[tuple[type, int]]:
    """What stands in the file, by the batch at each position alone."""
    found: list[tuple[type, int]] = []
    position = 0
    while position < len(data):
        if len(data) - position < HEADER_SIZE:
            return [*found, (TornBatch, position)]
        try:
            header = verify(data[position:])
        except BatchError:
            return [*found, (RottenBatch, position)]
        found.append((GoodBatch, position))
        position += header.size
    return found


@given(data=files(), read_bytes=st.sampled_from([1, HEADER_SIZE, 100, 350, 1 << 20]))
def test_rule_q5_a_scan_says_good_torn_and_rotten_whatever_it_reads_at_once(
    data: bytes, read_bytes: int
) -> None:
    disk, fd = on_disk(data)
    found = list(batches(disk, fd, len(data), read_bytes=max(read_bytes, HEADER_SIZE)))
    assert [(type(each), each.position) for each in found] == judged(data)
    for each in found:
        if isinstance(each, GoodBatch):
            assert each.raw == data[each.position : each.position + each.header.size]


@given(data=files())
def test_a_scan_of_whole_batches_raises_where_the_first_is_not_good(data: bytes) -> None:
    disk, fd = on_disk(data)
    good: list[int] = []
    failure = ""
    try:
        good += [each.position for each in whole_batches(disk, fd, len(data), PATH)]
    except CorruptionError as error:
        failure = str(error)
    expected = []
    for kind, position in judged(data):
        if kind is not GoodBatch or not is_stamped(verify(data[position:])):
            assert failure.endswith(f"file={PATH} position={position}")
            return
        expected.append(position)
    assert (good, failure) == (expected, "")


@given(data=files(), start=st.integers(0, 500))
def test_rule_q5_every_sound_batch_is_found_at_whatever_byte_it_begins(
    data: bytes, start: int
) -> None:
    disk, fd = on_disk(data)
    expected = []
    position = start
    while position < len(data):
        try:
            header = verify(data[position:])
        except BatchError:
            header = None
        if header is None or not is_stamped(header):
            position += 1
            continue
        expected.append(position)
        position += header.size
    assert [at for at, _ in sound_batches(disk, fd, start)] == expected


@given(data=files(), read_bytes=st.sampled_from([HEADER_SIZE, 100, 350, 1 << 20]))
def test_header_places_are_those_of_the_batches_in_front_of_the_damage(
    data: bytes, read_bytes: int
) -> None:
    disk, fd = on_disk(data)
    places = []
    with contextlib.suppress(CorruptionError):
        for position, chunk, at in header_places(disk, fd, len(data), PATH, 0, read_bytes):
            assert chunk[at : at + HEADER_SIZE] == data[position : position + HEADER_SIZE]
            places.append(position)
    good = [position for kind, position in judged(data) if kind is GoodBatch]
    assert places[: len(good)] == good
