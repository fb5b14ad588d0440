"""A search by time: the same as looking at every record, in steps that are short."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from broker.log import log_reader
from broker.log.log_directory import LogConfig, UnreadableError
from broker.log.log_reader import TimeSearch
from broker.record.batch import RecordFormat
from broker.record.lines import ProduceRecord, make_raw
from broker.server import local_partitions
from broker.server.local_partitions import TimeLookups
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import Claim
from tests.support.logs import Life, offset_for_timestamp
from tests.support.simulated_disk import SimulatedDisk

if TYPE_CHECKING:
    from broker.log.partition_log import PartitionLog

JSON = RecordFormat.JSON


def append_times(log: PartitionLog, times: list[int | None], now_ms: int, text: str = "") -> None:
    log.append_as_leader(
        [ProduceRecord(value=make_raw(orjson.dumps(text)), timestamp=time) for time in times],
        key_format=JSON,
        value_format=JSON,
        leader_epoch=1,
        now_ms=now_ms,
        claim=Claim(7, 0, log.log_end_offset),  # one batch, however large
    )
    log.high_watermark = log.log_end_offset


def by_looking_at_all(log: PartitionLog, timestamp_ms: int) -> int | None:
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        for piece in log.read(offset, 1 << 20, log.log_end_offset):
            for line in bytes(piece.lines).splitlines():
                record = orjson.loads(line)
                if record.get("timestamp", piece.header.append_timestamp) >= timestamp_ms:
                    return int(record["offset"])
            offset = piece.next_offset
    return None


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever holds more than a kilobyte is large, and no step looks at much."""
    monkeypatch.setattr(log_reader, "HEADERS_PER_STEP", 60)
    monkeypatch.setattr(log_reader, "LINES_BYTES_PER_STEP", 200)
    monkeypatch.setattr(log_reader, "LARGE_BYTES", 1_000)
    monkeypatch.setattr(log_reader, "PIECE_BYTES", 300)


TIMES = st.lists(st.none() | st.integers(0, 40), min_size=1, max_size=30)


@given(st.lists(st.tuples(TIMES, st.integers(0, 40)), min_size=1, max_size=6), st.integers(0, 30),
    st.booleans(),
)  # fmt: skip
@pytest.mark.usefixtures("small_steps")
def test_a_search_by_time_finds_what_a_look_at_every_record_finds(
    batches: list[tuple[list[int | None], int]], start: int, zstd: bool
) -> None:
    life = Life(SimulatedDisk(), LogConfig(segment_bytes=2_000, zstd=zstd))
    log = life.log()
    for number, (times, now_ms) in enumerate(batches):
        append_times(log, times, now_ms, text="as ever " * (number % 3 * 20))
    log.advance_log_start(min(start, log.log_end_offset))
    life.flush()
    for time in range(-1, 42):
        assert offset_for_timestamp(log, time) == by_looking_at_all(log, time)


def steps_of(log: PartitionLog, search: TimeSearch) -> int:
    steps = 1
    while not log.step_time_search(search):
        steps += 1
        if search.work is not None:
            search.work()
    return steps


@pytest.mark.parametrize("zstd", [False, True])
def test_a_large_batch_is_read_and_looked_through_in_pieces(
    zstd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of 60 MB, split at once, held the loop for 0.4 s."""
    monkeypatch.setattr(log_reader, "PIECE_BYTES", 100_000)
    monkeypatch.setattr(log_reader, "LARGE_BYTES", 200_000)
    monkeypatch.setattr(log_reader, "LINES_BYTES_PER_STEP", 30_000)
    disk = SimulatedDisk()
    log = Life(disk, LogConfig(zstd=zstd)).log()
    append_times(log, list(range(15_000)), 0, text="on time")
    longest = 0
    read = disk.read

    def measured(fd: int, length: int, position: int) -> bytes:
        nonlocal longest
        longest = max(longest, length)
        return read(fd, length, position)

    monkeypatch.setattr(disk, "read", measured)
    search = TimeSearch(14_999)
    assert steps_of(log, search) >= 20
    assert search.found == 14_999
    assert zstd or longest <= 100_000


@pytest.mark.usefixtures("small_steps")
def test_records_below_the_log_start_are_not_searched() -> None:
    """Every header from the segment's first one on was: seconds, where batches are small."""
    disk = SimulatedDisk()
    life = Life(disk)
    log = life.log()
    for number in range(2_000):
        append_times(log, [100 + number], 0)
    log.advance_log_start(1_990)
    life.flush()
    search = TimeSearch(50)
    assert steps_of(log, search) == 1
    assert search.found == 1_990


@pytest.mark.usefixtures("small_steps")
def test_times_that_go_up_and_down_take_many_short_steps() -> None:
    life = Life(SimulatedDisk())
    log = life.log()
    for time in [1_000, *range(300)]:
        append_times(log, [time], 0)
    log.advance_log_start(1)
    life.flush()
    search = TimeSearch(500)
    assert steps_of(log, search) >= 5
    assert search.found is None


@pytest.mark.usefixtures("small_steps")
def test_a_log_that_is_cut_meanwhile_is_searched_anew() -> None:
    """Other records stand there: what was read of a batch is nothing, nor is how far it came."""
    life = Life(SimulatedDisk())
    log = life.log()
    append_times(log, list(range(20)), 0)
    append_times(log, list(range(100, 160)), 0, text="x" * 50)
    life.flush()
    search = TimeSearch(150)
    for _ in range(3):
        assert not log.step_time_search(search)
    log.truncate_to(0)
    log.append_as_leader(
        [ProduceRecord(value=make_raw(b"1"), timestamp=200)],
        key_format=JSON, value_format=JSON, leader_epoch=2, now_ms=0,
    )  # fmt: skip
    steps_of(log, search)
    assert search.found == 0


@pytest.mark.usefixtures("small_steps")
def test_invariant_l22_a_large_damaged_batch_is_told() -> None:
    """Found on the thread, said on the loop."""
    disk = SimulatedDisk()
    life = Life(disk)
    log = life.log()
    append_times(log, list(range(100)), 0)
    life.flush()
    inode = disk.live[log.segments[0].log_path]
    assert inode is not None
    inode.cache[3_000] ^= 1
    with pytest.raises(UnreadableError, match=r"crc.*offset=0"):
        offset_for_timestamp(log, 50)
    assert log.failed is not None


# between the steps


class StoppedClock(SystemClock):
    now_ms = 0

    @override
    def monotonic_ms(self) -> int:
        return self.now_ms


class Lookup:
    """A log that is led here, and a look-up on it."""

    def __init__(self) -> None:
        self.log = Life(SimulatedDisk()).log()
        append_times(self.log, list(range(200)), 0)
        partition = SimpleNamespace(high_watermark=self.log.log_end_offset, role=None)
        self.replica: Any = SimpleNamespace(log=self.log, partition=partition)
        self.epoch = 3
        self.clock = StoppedClock()
        self.lookups = TimeLookups(self.clock)

    def standing(self) -> Any:
        return SimpleNamespace(replica=self.replica, epoch=self.epoch)

    async def find(self, timestamp_ms: int) -> int:
        return await self.lookups.offset_of(timestamp_ms, self.standing)


@pytest.mark.usefixtures("small_steps")
async def test_others_have_their_turn_between_two_steps() -> None:
    lookup = Lookup()
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    task = asyncio.create_task(others())
    assert await lookup.find(199) == 199
    assert turns >= 20
    assert await lookup.find(200) == 200, "the high watermark, where all is older"
    task.cancel()


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("what", ["epoch", "replica"])
async def test_a_look_up_ends_with_the_leadership_it_began_in(what: str) -> None:
    """The state of a partition is read anew behind each wait: what was found may be cut off."""
    lookup = Lookup()
    task = asyncio.create_task(lookup.find(199))
    for _ in range(5):
        await asyncio.sleep(0)
    if what == "epoch":
        lookup.epoch += 1
    else:
        lookup.replica = SimpleNamespace(**vars(lookup.replica))
    with pytest.raises(KafkaError) as caught:
        await task
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.usefixtures("small_steps")
async def test_look_ups_that_wait_are_bounded_in_number_and_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_partitions, "LOOKUPS_MAX", 2)
    lookup = Lookup()
    tasks = [asyncio.create_task(lookup.find(199)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(KafkaError) as caught:
        await lookup.find(199)
    assert caught.value.code is ErrorCode.QUEUE_FULL
    assert await asyncio.gather(*tasks) == [199, 199]
    task = asyncio.create_task(lookup.find(199))
    await asyncio.sleep(0)
    lookup.clock.now_ms += local_partitions.LOOKUP_TIMEOUT_MS
    with pytest.raises(KafkaError) as caught:
        await task
    assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.usefixtures("small_steps")
async def test_the_wait_for_a_turn_counts_towards_the_time_a_look_up_may_take() -> None:
    """Each had its 30 s from its turn on: the last of a hundred could wait for most of an hour."""
    lookup = Lookup()
    tasks = [asyncio.create_task(lookup.find(199)) for _ in range(3)]
    await asyncio.sleep(0)
    lookup.clock.now_ms += local_partitions.LOOKUP_TIMEOUT_MS
    results = await asyncio.gather(*tasks, return_exceptions=True)
    codes = [getattr(result, "code", result) for result in results]
    assert codes == [ErrorCode.REQUEST_TIMED_OUT] * 3
    assert await lookup.find(199) == 199
