"""One bit rots anywhere in a log's directory: it is refused, found as it is read, or costs nothing.

Bytes all over each small file, and of each field of a header; what is in doubt is never believed.
A batch that nothing proves to have been durable is cut as a torn tail is (rule Q5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import pairwise
from typing import Any

import pytest

from broker.log.log_directory import LogConfig
from broker.log.partition_log import PartitionLog
from broker.log.producer_snapshot import ProducerLimits, Replay, snapshot_name, snapshot_offsets
from broker.log.segment import Segment
from broker.record.batch import HEADER_SIZE, RecordFormat, walk
from raft_metadata.common.errors import CorruptionError, KafkaError
from raft_metadata.common.ids import Claim, PartitionId, TopicIdPartition
from tests.support.doors.log import open_files_of
from tests.support.logs import TOPIC_ID, Life, append, offset_for_timestamp, records, values_of
from tests.support.simulated_disk import SimulatedDisk

CONFIG = LogConfig(segment_bytes=900)
FOLDER = "/data/log/orders-0"
KEY = TopicIdPartition(TOPIC_ID, PartitionId(0))
LOG_START, DROPPED_TO = 9, 4
FIELDS = (0, 4, 8, 16, 20, 24, 32, 36, 40, 44, 52, 60, 68, 76, 78, 82, HEADER_SIZE)
"""Where each field of a header begins."""
MAX_TIMESTAMP = 60
STEP = 5
"""Of the bytes of small files each so manieth rots."""
REBUILT = (".index", ".producers", "leader-epoch", "high-watermark", "clean-shutdown")
REFUSED = ("recovery-point", "partition.json", "cleaned")

Outcome = Any


def begin(*, clean: bool) -> SimulatedDisk:
    """Four segments of 18 batches in three epochs, each durable; of a producer two in three."""
    disk = SimulatedDisk()
    life = Life(disk, CONFIG)
    log = life.log()
    sequence = 0
    for number in range(18):
        claim = None
        if number % 3:
            claim = Claim(5, 0, sequence)
            sequence += 2
        log.append_as_leader(
            records([number, number + 100]),
            key_format=RecordFormat.JSON,
            value_format=RecordFormat.JSON,
            leader_epoch=1 + number // 7,
            now_ms=1000 + 10 * number,
            claim=claim,
        )
        life.flush()
    log.high_watermark = log.log_end_offset
    log.note_dropped(DROPPED_TO)
    log.advance_log_start(LOG_START)
    life.flush()
    life.manager.checkpoint_high_watermarks()
    if clean:
        life.close()
    disk.kill()
    disk.calls.clear()  # it is copied often
    return disk


def content(log: PartitionLog) -> Outcome:
    """What it says of itself, and the records that can be read, up to where that is refused."""
    known = log.producers
    facts = (
        *(log.log_start_offset, log.log_end_offset, log.dropped_to, tuple(log.epoch_entries)),
        *(sorted(known.items()) if known else ()),
    )
    try:
        return facts, values_of(log, log.log_start_offset)
    except CorruptionError:
        assert log.failed is not None
        return facts, None


def cut(end: int) -> Callable[[PartitionLog], Outcome]:
    def use(log: PartitionLog) -> Outcome:
        try:
            log.truncate_to(end)
        except KafkaError:
            assert log.failed is not None
            return None, None
        return content(log)

    return use


def look_up(log: PartitionLog) -> Outcome:
    try:
        return offset_for_timestamp(log, 1135), ()
    except CorruptionError:
        return None, None


def outcome(disk: SimulatedDisk, use: Callable[[PartitionLog], Outcome]) -> Outcome:
    """What somebody makes of the log; Nones where the damage was found."""
    life = Life(disk, CONFIG)
    try:
        return use(life.log())
    except KafkaError:
        assert life.manager.offline, "refused, and nobody is told"
        return None, None


def flipped(disk: SimulatedDisk, path: str, at: int) -> SimulatedDisk:
    copy = deepcopy(disk)
    inode = copy.live[path]
    assert inode is not None
    for bytes_of in (inode.cache, inode.durable):
        if at < len(bytes_of):
            bytes_of[at] ^= 1 << at % 8
    return copy


def headers_of(disk: SimulatedDisk) -> Iterator[tuple[str, int]]:
    """(path, position) of each."""
    for path, inode in sorted(disk.live.items()):
        if inode is not None and path.endswith(".log"):
            for at, _ in walk(bytes(inode.cache)):
                yield path, at


@pytest.mark.parametrize("clean", [False, True])
def test_rot_in_a_small_file_costs_nothing_or_takes_the_log_offline(*, clean: bool) -> None:
    disk = begin(clean=clean)
    sound = outcome(deepcopy(disk), content)
    assert sound[0][:2] == (LOG_START, 36)
    seen: set[str] = set()
    for path, inode in list(disk.live.items()):
        if inode is None or path.endswith(".log"):
            continue
        for at in range(0, len(inode.cache) - 1, STEP):  # its last line break says nothing
            found = outcome(flipped(disk, path, at), content)
            assert found == ((None, None) if path.endswith(REFUSED) else sound), (path, at)
            seen.update(name for name in (*REBUILT, *REFUSED) if path.endswith(name))
    assert seen >= {*REBUILT, *REFUSED} - ({"clean-shutdown"} if not clean else set())


USES: dict[str, Callable[[PartitionLog], Outcome]] = {
    "read": content,
    "cut in the last segment but one": cut(27),
    "cut in the second": cut(13),
    "look up": look_up,
}


@pytest.mark.parametrize("use", USES)
def test_invariant_l22_no_field_of_a_header_is_believed_once_it_rotted(use: str) -> None:
    """A cut by what headers say of offsets took acknowledged records, or left what was refused."""
    disk = begin(clean=False)
    sound = outcome(deepcopy(disk), USES[use])
    *proven, _ = headers_of(disk)
    found_out = 0
    for path, position in (proven[4], proven[7], proven[11]):
        for begin_at, end in pairwise(FIELDS):
            if use == "look up" and begin_at == MAX_TIMESTAMP:
                continue  # a look-up passes by what says that it is older
            at = begin_at + found_out % (end - begin_at)
            found, values = outcome(flipped(disk, path, position + at), USES[use])
            assert found in (None, sound[0]), (path, position, at)
            assert values in (None, sound[1]), (path, position, at)
            found_out += values is None
    assert found_out >= 4


def test_invariant_l22_a_length_that_reaches_past_the_end_is_damage_and_no_crash() -> None:
    """The walk from the index's place ended behind the file, and read a header of no bytes."""
    disk = begin(clean=False)
    path, position = next(headers_of(disk))
    life = Life(flipped(disk, path, position + 5), CONFIG)  # 8 KB more
    log = life.log()
    with pytest.raises(CorruptionError, match="no batch holds the offset"):
        log.read(LOG_START, 1 << 20, 36)
    assert list(life.manager.offline) == [KEY]


def test_rule_q5_what_a_rotten_file_of_epochs_hides_is_still_proven() -> None:
    """The recovery point was not believed without it, and a sealed segment's end cut as torn."""
    disk = begin(clean=False)
    sealed = [path for path in disk.live if path.endswith(".log")][-2]
    last = [at for path, at in headers_of(disk) if path == sealed][-1]
    for path in [path for path in disk.live if path.endswith(".log") and path > sealed]:
        for names in (disk.live, disk.synced):
            names.pop(path)
    copy = flipped(disk, f"{FOLDER}/leader-epoch", 3)
    life = Life(flipped(copy, sealed, last + 30), CONFIG)
    assert list(life.manager.offline) == [KEY]


def test_rule_r10_where_a_log_begins_is_rebuilt_only_where_nobody_has_more() -> None:
    """A log start that rotted went back: what had been deleted was read again."""
    disk = flipped(begin(clean=False), f"{FOLDER}/recovery-point", 12)
    life = Life(disk, CONFIG)
    assert list(life.manager.offline) == [KEY]
    assert life.manager.open_offline(*KEY)
    assert life.log().log_start_offset == 0


def test_invariant_t4_producers_are_read_from_whole_batches_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And a large batch takes its share of what one turn of the loop may read."""
    disk = begin(clean=False)
    life = Life(disk, CONFIG)
    log = life.log()
    for offset in snapshot_offsets(disk, log.directory):
        disk.unlink(f"{log.directory}/{snapshot_name(offset)}")
    files = open_files_of(life.manager)
    replay = Replay(files, log.directory, log.segments, 36, ProducerLimits())
    monkeypatch.setattr("broker.log.producer_snapshot.BYTES_LIKE_A_HEADER", 16)
    turns = 1
    while not replay.step(log.segments, 10):
        turns += 1
    assert turns >= 8, "18 batches of 100 bytes and more"


def test_rule_q5_an_index_that_can_t_be_made_again_takes_one_log_offline_not_the_disk() -> None:
    """Its file rotted, and so did a header behind it: the flush that seals the segment meets both.

    What went wrong there counted as a failed sync, and no log of the broker was served any more.
    """
    disk = SimulatedDisk()
    for rots in (False, True):
        life = Life(disk)
        log, other = life.log(), life.log(1)
        for each in (log, other):
            each.append_as_leader(
                records(["x" * 90] * 3),
                key_format=RecordFormat.JSON,
                value_format=RecordFormat.JSON,
                leader_epoch=1,
                now_ms=1000,
            )
        if not rots:
            life.close()
            disk.kill()
            index = disk.live[f"{FOLDER}/{0:020d}.index"]
            assert index is not None
            index.cache[-1] ^= 1  # of a block: what a start looks at is sound
            continue
        first = disk.live[f"{FOLDER}/{0:020d}.log"]
        assert first is not None
        first.cache[0] ^= 1
        log.roll()
        life.flush()
        assert isinstance(log.failed, CorruptionError)
        assert (other.failed, life.manager.failed, life.failures) == (None, None, [])
        assert list(life.manager.offline) == [KEY]
        assert other.durable_end == other.log_end_offset == 6


def test_rule_q3_a_cut_that_an_index_sends_too_far_is_no_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such a truncation would keep records and report them as removed."""
    disk = SimulatedDisk()
    life = Life(disk)
    log = life.log()
    for _ in range(3):
        append(log, ["x" * 90] * 3)
        life.flush()
    second = log.segments[0].size // 3
    monkeypatch.setattr(Segment, "position_for", lambda *_: second)
    with pytest.raises(KafkaError, match="no batch holds the offset"):
        log.truncate_to(1)
    assert log.log_end_offset == 9
