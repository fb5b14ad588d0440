"""A reader's position against the epochs of a log: truncated, diverged, or one that may be its own.

A reader's position is the offset that it reads next, and the epoch of the record before it. Logs
here are lists of epochs by offset; None is a record that compaction removed from the leader's log.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.log.leader_epoch_cache import LeaderEpochCache
from broker.log.read_positions import (
    Divergence,
    DivergenceCause,
    PositionTruncatedError,
    find_divergence,
    next_epoch,
)
from raft_metadata.common.errors import ErrorCode

TRUNCATED, DIVERGED = DivergenceCause.TRUNCATED, DivergenceCause.DIVERGED


class ListLog:
    """A log by the epoch of each offset; ``holes`` are offsets whose records compaction removed."""

    def __init__(
        self, epochs: list[int], start: int = 0, holes: frozenset[int] = frozenset()
    ) -> None:
        self.log_start_offset, self.log_end_offset = start, len(epochs)
        self._holes = holes
        self._cache = LeaderEpochCache()
        for offset, epoch in enumerate(epochs):
            self._cache.assign(epoch, offset)
        if start:
            self._cache.truncate_from_start(start)

    @property
    def epoch_entries(self) -> list[tuple[int, int]]:
        return self._cache.entries

    def epoch_at(self, offset: int) -> int:
        return self._cache.epoch_of(offset) if offset < self.log_end_offset else -1

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        return self._cache.end_offset_for(epoch, self.log_start_offset, self.log_end_offset)

    def holds_record(self, from_offset: int, before_offset: int) -> bool:
        assert self.log_start_offset <= from_offset <= before_offset <= self.log_end_offset
        return any(at not in self._holes for at in range(from_offset, before_offset))


def test_invariant_g16_a_log_that_was_cut_and_grew_again_is_truncated_for_its_reader() -> None:
    cut_to_80_and_grown = ListLog([1] * 80 + [3] * 40)
    found = find_divergence(cut_to_80_and_grown, 100, 1)
    assert found == Divergence(TRUNCATED, 80, 1)


def test_invariant_g16_a_position_behind_the_end_of_a_cut_log_is_truncated() -> None:
    assert find_divergence(ListLog([1] * 80), 100, 2) == Divergence(TRUNCATED, 80, 1)


def test_invariant_g16_a_log_that_never_saw_the_readers_epoch_has_diverged() -> None:
    stale_replica = ListLog([1] * 20 + [2] * 100)
    found = find_divergence(stale_replica, 70, 3)
    assert found == Divergence(DIVERGED, 20, 2)


def test_a_diverged_epoch_that_began_below_the_log_start_is_named_from_the_log_start_on() -> None:
    assert find_divergence(ListLog([2] * 100, start=30), 70, 3) == Divergence(DIVERGED, 30, 2)


@pytest.mark.parametrize("offset", [0, 10, 30])
def test_nothing_is_known_at_or_below_the_log_start(offset: int) -> None:
    log = ListLog([2] * 100, start=30)
    assert find_divergence(log, offset, 7) is None
    assert next_epoch(log, offset) == -1


def test_rule_r7_a_hole_before_the_position_proves_nothing() -> None:
    log = ListLog([1] * 10 + [2] * 10 + [3] * 10, holes=frozenset(range(5, 20)))
    assert find_divergence(log, 20, 2) is None, "the record before 20 was one of epoch 2"
    assert find_divergence(log, 20, 1) is None, "the record before 20 is that of offset 4"
    assert find_divergence(log, 21, 2) == Divergence(TRUNCATED, 20, 2)


def test_rule_r7_a_log_without_any_record_before_the_position_proves_nothing() -> None:
    assert find_divergence(ListLog([1] * 10, holes=frozenset(range(10))), 7, 4) is None


def test_rule_r7_a_hole_does_not_hide_a_newer_record_before_the_position() -> None:
    log = ListLog([1] * 10 + [3] * 10, holes=frozenset(range(15, 20)))
    assert find_divergence(log, 18, 1) == Divergence(TRUNCATED, 10, 1)


def test_the_error_names_position_cause_and_place() -> None:
    error = PositionTruncatedError(100, 1, Divergence(TRUNCATED, 80, 1))
    assert error.code is ErrorCode.LOG_TRUNCATED
    assert "offset 100 behind a record of leader epoch 1" in error.message
    assert "truncated: that epoch ends here at offset 80" in error.message
    error = PositionTruncatedError(70, 3, Divergence(DIVERGED, 20, 2))
    assert "diverged" in error.message
    assert "leader epoch 2, which starts at offset 20" in error.message


EPOCHS = st.lists(st.integers(0, 4), max_size=12).map(sorted)


@given(EPOCHS, st.data())
def test_a_reader_of_this_very_log_is_never_refused(epochs: list[int], data: st.DataObject) -> None:
    """Whatever compaction and retention remove after the read."""
    size = len(epochs)
    holes = data.draw(st.frozensets(st.integers(0, size)))
    start = data.draw(st.integers(0, size))
    log = ListLog(epochs, start, holes)
    for offset in range(1, size + 1):
        assert find_divergence(log, offset, epochs[offset - 1]) is None
        held = [at for at in range(start, offset) if at not in holes]
        if held:  # a reader that knows the epochs of records alone
            assert find_divergence(log, offset, epochs[held[-1]]) is None


@given(EPOCHS, EPOCHS)
def test_invariant_g16_a_reader_of_another_log_goes_on_where_the_logs_agree(
    read: list[int], held: list[int]
) -> None:
    """A record is named by its offset and epoch; both logs hold the same one where they agree."""
    log = ListLog(held)
    for offset in range(1, len(read) + 1):
        epoch = read[offset - 1]
        same = offset <= len(held) and held[offset - 1] == epoch
        found = find_divergence(log, offset, epoch)
        assert (found is None) == same
        if found is None:
            continue
        assert found.offset <= max(offset, len(held))
        if found.cause is TRUNCATED:
            assert found.offset < offset
            assert all(other > epoch for other in held[found.offset : offset])
        else:
            assert held[offset - 1] == found.epoch < epoch
            assert found.offset == held.index(found.epoch)
