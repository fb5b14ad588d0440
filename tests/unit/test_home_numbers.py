"""A log never forgets the end of a home's rows: not by time, limits, compaction or crashes (S5)."""

from __future__ import annotations

import random
from copy import deepcopy
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.log.compaction import CompactionConfig
from broker.log.log_directory import LogConfig
from broker.log.producer_snapshot import ProducerLimits, encode_told, snapshot_name
from broker.log.producer_state import EXPIRATION_MS, UNDO_MAX, ProducerStates
from broker.record.batch import RecordFormat
from broker.record.lines import ProduceRecord, make_raw
from broker.record.numbering import HomeKind, RowNumber, claim_of_row, make_numbering
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import Claim, LeaderEpoch, PartitionId
from tests.support.compaction_model import clean
from tests.support.doors.log import log_directory_of
from tests.support.logs import Life, append, formatted_disk, records
from tests.support.simulated_disk import Killed, SimulatedDisk, kill_at

if TYPE_CHECKING:
    from broker.log.partition_log import PartitionLog

ONE = make_numbering(HomeKind.TRANSACTIONS, PartitionId(1), LeaderEpoch(-1))
TWO = make_numbering(HomeKind.GROUPS, PartitionId(1), LeaderEpoch(4))
SMALL = LogConfig(segment_bytes=1_000)


def complete(log: PartitionLog, number: int, rows: int = 1, now_ms: int = 1_000) -> int:
    """Append a unit of home ONE; return its offset."""
    return log.append_as_leader(
        records(["row"] * rows),
        key_format=RecordFormat.JSON,
        value_format=RecordFormat.JSON,
        leader_epoch=1,
        now_ms=now_ms,
        claim=claim_of_row(ONE, RowNumber(number)),
    ).base_offset


def end_of(log: PartitionLog) -> int:
    assert log.producers is not None
    return log.producers.end_of(ONE)


def test_rule_s5_a_home_neither_expires_nor_counts_as_a_producer() -> None:
    states = ProducerStates(expiration_ms=10, most=3)
    states.note(claim_of_row(ONE, RowNumber(0)), 0, 4, 1_000, 0)
    states.note(claim_of_row(TWO, RowNumber(7)), 5, 5, 1_000, 0)
    for producer in range(3):
        assert states.check(Claim(producer, 0, 0), 1, 1_000) is None
        states.note(Claim(producer, 0, 0), 6 + producer, 6 + producer, 1_000, 0)
    with pytest.raises(KafkaError) as full:
        states.check(Claim(9, 0, 0), 1, 1_000)
    assert full.value.code is ErrorCode.POLICY_VIOLATION
    for late in range(10, 60):  # each sweep forgets all but the last ones
        states.note(Claim(late, 0, 0), late, late, late * 1_000, late)
    assert [states.end_of(each) for each in (ONE, TWO)] == [5, 8]
    assert {ONE, TWO} <= {producer for producer, _ in states.items()}
    assert states.offset_of(ONE, RowNumber(1), 4) == 1
    assert states.offset_of(ONE, RowNumber(1), 5) is None
    assert states.offset_of(TWO, RowNumber(6), 1) is None
    unknown = make_numbering(HomeKind.GROUPS, PartitionId(1), LeaderEpoch(-1))
    assert states.end_of(unknown) == 0


def test_the_place_of_a_unit_is_known_for_the_last_five_batches() -> None:
    states = ProducerStates()
    for number in range(8):
        states.note(claim_of_row(ONE, RowNumber(2 * number)), 3 * number, 3 * number + 1, 0, 0)
    places = [states.offset_of(ONE, RowNumber(2 * number), 2) for number in range(8)]
    assert places == [None, None, None, 9, 12, 15, 18, 21]
    assert states.end_of(ONE) == 16


@given(st.lists(st.tuples(st.sampled_from([ONE, TWO, 5, 6]), st.integers(1, 3)), max_size=30))
def test_rule_s5_a_state_as_of_an_offset_is_that_of_the_batches_below_it(
    history: list[tuple[int, int]],
) -> None:
    """A follower is never told of a batch that reaches the high watermark or is above it."""
    states, offset, numbers = ProducerStates(), 0, dict.fromkeys([ONE, TWO, 5, 6], 0)
    below = {0: ProducerStates()}
    for producer, rows in history:
        for each in (states, *below.values()):
            if each is states or each is below.get(offset + rows):
                each.note(Claim(producer, 0, numbers[producer]), offset, offset + rows - 1, 7, 0)
        numbers[producer] += rows
        offset += rows
        below[offset] = ProducerStates(newest_ms=states.newest_ms, producers=states.items())
    boundaries = sorted(below)
    for asked in range(offset + 1):
        boundary = max(each for each in boundaries if each <= asked)
        found = states.as_of(asked)
        assert found is not None
        assert sorted(found.items()) == sorted(below[boundary].items())
    assert states.end_of(ONE) == numbers[ONE], "nothing was undone here"


def test_a_state_as_of_an_offset_that_nothing_undoes_is_not_guessed() -> None:
    states = ProducerStates()
    for number in range(UNDO_MAX + 10):
        states.note(claim_of_row(ONE, RowNumber(number)), number, number, 0, 0)
    assert states.as_of(9) is None
    found = states.as_of(10)
    assert found is not None
    assert found.end_of(ONE) == 10


@given(st.integers(0, 20), st.integers(0, 20), st.data())
def test_rule_s5_what_a_leader_told_and_what_follows_it_fold_into_the_same(
    begins: int, told: int, data: st.DataObject
) -> None:
    """A log begins at an offset with the state as of a later one, and gets the batches between."""
    begins, told = min(begins, told), max(begins, told)
    rows = data.draw(st.lists(st.sampled_from([(ONE, 1), (5, 1), (6, 1), (5, 2)]), min_size=20))
    whole, numbers = ProducerStates(), {ONE: 0, 5: 0, 6: 0}
    batches = []
    for offset, (producer, epochs) in enumerate(rows):
        claim = Claim(producer, epochs if producer == 5 else 0, numbers[producer])
        numbers[producer] += 1
        batches.append((claim, offset))
        whole.note(claim, offset, offset, offset, offset)
    as_of = ProducerStates()
    for claim, offset in batches[:told]:
        as_of.note(claim, offset, offset, offset, offset)
    begun = ProducerStates(end_offset=begins, newest_ms=as_of.newest_ms, producers=as_of.items())
    for claim, offset in batches[begins:]:
        begun.note(claim, offset, offset, offset, 0)
        assert begun.end_of(ONE) >= as_of.end_of(ONE), "it went back"
    assert sorted(begun.items()) == sorted(whole.items())


def test_a_history_that_an_unclean_election_ended_gives_way_to_the_log() -> None:
    told = ProducerStates()
    told.note(Claim(5, 0, 0), 10, 12, 0, 0)
    told.note(claim_of_row(ONE, RowNumber(0)), 13, 15, 0, 0)
    begun = ProducerStates(end_offset=8, producers=told.items())
    begun.note(Claim(5, 0, 8), 9, 12, 0, 0)
    state = begun.get(5)
    assert state is not None
    assert [batch.first_sequence for batch in state.batches] == [8]
    begun.note(claim_of_row(ONE, RowNumber(3)), 13, 13, 0, 0)
    assert begun.end_of(ONE) == 4
    assert begun.truncate_to(8)
    assert begun.end_of(ONE) == 3
    assert begun.get(5) == told.get(5)


@pytest.mark.parametrize("how", ["power", "kill", "close"])
def test_rule_s5_a_restart_after_retention_of_every_batch_remembers_the_home(how: str) -> None:
    disk = formatted_disk()
    life = Life(disk, SMALL)
    log = life.log()
    for number in range(0, 30, 3):
        complete(log, number, 3)
    for _ in range(40):
        append(log, ["x" * 100], now_ms=EXPIRATION_MS * 9)
        life.flush()
    log.advance_log_start(45)
    life.flush()
    life.manager.removals.rename_some()
    assert log.segments[0].base_offset > 30, "its batches are gone"
    assert end_of(log) == 30
    if how == "close":
        life.close()
    elif how == "power":
        disk.cut_power(random.Random(3))
    else:
        disk.kill()
    log = Life(disk, SMALL).log()
    assert end_of(log) == 30
    assert complete(log, 30) == log.log_end_offset - 1
    assert end_of(log) == 31


@pytest.mark.parametrize("removes", [True, False])
def test_rule_s5_a_crash_behind_a_roll_forgets_no_home_below_the_log_start(removes: bool) -> None:
    """The snapshot where the new segment begins is written by the next flush, which never came."""
    disk = formatted_disk()
    life = Life(disk, SMALL)
    log = life.log()
    for number in range(5):
        complete(log, number)
    life.flush()
    log.advance_log_start(5)
    life.flush()
    log.roll()
    complete(log, 5, 2)
    if removes:  # as where the roll comes while the flush with the log start is under way
        life.manager.removals.note(log)
        life.manager.removals.rename_some()
    disk.kill()
    log = Life(disk, SMALL).log()
    assert (log.log_start_offset, log.log_end_offset) == (5, 7)
    removed = f"{log.directory}/{0:020}.log"
    assert removed not in [path for path, _ in disk.descriptors.values()], "its space is free"
    assert end_of(log) == 7
    log.truncate_to(5)
    assert end_of(log) == 5


def rot(disk: SimulatedDisk, path: str) -> None:
    """Change a byte of a file."""
    data = disk.read_file(path)
    assert data is not None
    disk.write(disk.open(path), bytes([data[10] ^ 1]), 10)


@pytest.mark.parametrize("is_there", [True, False])
def test_rule_s5_a_start_reads_no_home_across_a_segment_that_is_gone(is_there: bool) -> None:
    """Power failed amid the removal of two segments, and the snapshot behind them has rotted."""
    disk = formatted_disk()
    life = Life(disk, SMALL)
    log = life.log()
    for number in (0, 4):
        complete(log, number, 4)
        log.roll()
        life.flush()
    log.advance_log_start(8)
    life.flush()
    disk.kill()
    rot(disk, f"{log.directory}/{snapshot_name(8)}")
    if is_there:
        assert end_of(Life(disk, SMALL).log()) == 8
        return
    for name in ("log", "index"):
        disk.unlink(f"{log.directory}/{4:020d}.{name}")
    with pytest.raises(KafkaError) as refused:
        Life(disk, SMALL).log()
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("is_first", [True, False])
def test_rule_s5_a_start_forgets_no_home_whose_snapshot_is_damaged(is_first: bool) -> None:
    """The start removes what lies below the log start; the snapshot where that began has rotted.

    The home is read from the batches before, unless they are deleted: then the log is refused.
    """
    disk = formatted_disk()
    life = Life(disk, SMALL)
    log = life.log()
    complete(log, 0, 10)
    log.roll()
    append(log, ["row"] * 5)
    life.flush()
    if not is_first:
        log.advance_log_start(10)
        life.flush()
        life.manager.removals.note(log)
        life.manager.removals.rename_some()
    log.advance_log_start(15)
    life.flush()
    log.roll()
    append(log, ["row"])
    disk.kill()
    rot(disk, f"{log.directory}/{snapshot_name(10)}")
    if is_first:
        assert end_of(Life(disk, SMALL).log()) == 10
        return
    with pytest.raises(KafkaError) as refused:
        Life(disk, SMALL).log()
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_power_cut_behind_a_new_beginning_takes_no_old_segment_for_damaged() -> None:
    """Segments of before are not synced any more where the log begins anew behind its end."""
    disk = formatted_disk()
    life = Life(disk, SMALL)
    log = life.log()
    complete(log, 0, 4)
    log.roll()
    life.flush()
    for number in (4, 8):
        complete(log, number, 4)
        log.roll()
    told = ProducerStates(end_offset=20)
    told.note(claim_of_row(ONE, RowNumber(12)), 16, 19, 0, 0)
    log.start_over(20, encode_told(told, 20))
    life.flush()
    for seed in range(60):
        copy = deepcopy(disk)
        copy.cut_power(random.Random(seed))
        found = Life(copy, SMALL).log()
        assert (found.log_start_offset, found.log_end_offset, end_of(found)) == (20, 20, 16)


def test_rule_s5_a_power_cut_amid_a_shutdown_forgets_no_home() -> None:
    """All batches are deleted, so that only the snapshot at the log's end knows the home."""
    for seed in range(20):
        disk = formatted_disk()
        life = Life(disk, SMALL)
        log = life.log()
        complete(log, 0, 5)
        life.flush()
        log.roll()
        log.advance_log_start(5)
        life.flush()
        disk.before = kill_at("sync_filesystem", "")
        with pytest.raises(Killed):
            life.close()
        disk.before = None
        disk.cut_power(random.Random(seed))
        log = Life(disk, SMALL).log()
        assert (log.log_start_offset, log.log_end_offset, end_of(log)) == (5, 5, 5)


def test_a_start_leaves_the_end_of_a_log_whose_producers_are_all_gone() -> None:
    """Its segment was rolled for its age, behind a log start at its end, and killed then."""
    disk = formatted_disk()
    life = Life(disk, SMALL)
    log = life.log()
    complete(log, 0)
    log.truncate_to(0)
    append(log, ["row"])
    log.roll()
    append(log, ["row"] * 4)
    life.flush()
    log.advance_log_start(5)
    life.flush()
    log.roll()
    disk.kill()
    log = Life(disk, SMALL).log()
    assert (log.log_start_offset, log.log_end_offset) == (5, 5)
    assert end_of(log) == 0


def test_rule_s5_a_truncation_undoes_the_home_with_its_batches() -> None:
    life = Life(formatted_disk(), SMALL)
    log = life.log()
    ends = {complete(log, number): number for number in range(20)}
    for cut in (13, 12, 4):
        log.truncate_to(cut)
        assert end_of(log) == ends[cut]
    log_directory_of(life.manager).producers = ProducerLimits(per_partition=1)
    append(log, ["y"])
    assert end_of(log) == 4


def test_rule_s5_compaction_keeps_the_headers_of_a_homes_last_five_batches() -> None:
    config = LogConfig(
        segment_bytes=600, compaction=CompactionConfig(min_dirty_ratio=0.0, delete_retention_ms=0)
    )
    disk = formatted_disk()
    life = Life(disk, config)
    log = life.log()

    def put(claim: Claim | None) -> None:
        log.append_as_leader(
            [ProduceRecord(key=make_raw(b'"k"'), value=make_raw(b'"' + b"v" * 50 + b'"'))],
            key_format=RecordFormat.JSON,
            value_format=RecordFormat.JSON,
            leader_epoch=1,
            now_ms=EXPIRATION_MS,
            claim=claim,
        )
        life.flush()

    for number in range(9):
        put(claim_of_row(ONE, RowNumber(number)))
    for _ in range(30):
        put(None)
    log.high_watermark = log.log_end_offset
    assert clean(log).stats.records_dropped
    disk.kill()
    for name in disk.names(log.directory):  # all that is left is the log itself
        if name.endswith((".producers", "recovery-point")):
            disk.unlink(f"{log.directory}/{name}")
    log = Life(disk, config).log()
    assert log.producers is not None
    assert log.producers.end_of(ONE) == 9
    places = [log.producers.offset_of(ONE, RowNumber(number), 1) for number in range(9)]
    assert places == [None, None, None, None, 4, 5, 6, 7, 8]
