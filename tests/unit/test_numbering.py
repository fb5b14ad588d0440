"""Reserved producer ids and row numbers: the fields of a batch's header, both ways (rule S4)."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.log.producer_state import ProducerStates
from broker.record.numbering import (
    HOME_PARTITION_MAX,
    ROW_NUMBER_MAX,
    UNCLEAN_EPOCH_MAX,
    HomeKind,
    NumberedHome,
    NumbersExhaustedError,
    RowNumber,
    claim_of_row,
    home_of,
    make_numbering,
    number_of_unit,
    numbering_text,
    row_of_claim,
)
from raft_metadata.common.ids import (
    EPOCH_MAX,
    FIRST_RESERVED_PRODUCER_ID,
    SEQUENCES,
    LeaderEpoch,
    PartitionId,
    is_reserved,
)

HOME = make_numbering(HomeKind.TRANSACTIONS, PartitionId(3), LeaderEpoch(-1))

homes = st.builds(
    NumberedHome,
    st.sampled_from(HomeKind),
    st.integers(0, HOME_PARTITION_MAX).map(PartitionId),
    st.integers(0, UNCLEAN_EPOCH_MAX).map(LeaderEpoch),
)
near_a_multiple = st.builds(
    lambda epoch, by: RowNumber(max(0, epoch * SEQUENCES + by)),
    st.integers(0, EPOCH_MAX),
    st.integers(-20, 20),
)
numbers = near_a_multiple | st.integers(0, ROW_NUMBER_MAX).map(RowNumber)
rows_of_units = st.integers(1, 40) | st.integers(1, SEQUENCES)


@given(homes, homes)
def test_a_numbering_says_whose_it_is_and_no_two_homes_share_one(
    one: NumberedHome, two: NumberedHome
) -> None:
    ids = [make_numbering(each.kind, each.partition, each.unclean_epoch) for each in (one, two)]
    assert [home_of(each) for each in ids] == [one, two]
    assert (ids[0] == ids[1]) is (one == two)
    for each in ids:
        assert is_reserved(each)
        assert FIRST_RESERVED_PRODUCER_ID <= each < 1 << 63


def test_a_numbering_has_named_limits_and_words() -> None:
    assert HOME == 1 << 62 | 3 << 32
    assert numbering_text(HOME) == "completed by __transaction_state-3"
    later = make_numbering(HomeKind.GROUPS, PartitionId(11), LeaderEpoch(9))
    assert later == 1 << 62 | 1 << 56 | 11 << 32 | 9
    assert numbering_text(later) == "completed by __consumer_offsets-11 (unclean epoch 9)"
    for partition, epoch in ((HOME_PARTITION_MAX + 1, 0), (-1, 0), (0, UNCLEAN_EPOCH_MAX + 1)):
        with pytest.raises(ValueError, match="expected a partition up to"):
            make_numbering(HomeKind.GROUPS, PartitionId(partition), LeaderEpoch(epoch))


def test_an_ordinary_id_and_a_reserved_one_of_an_unknown_kind_have_no_home() -> None:
    assert home_of(4_000) is None
    assert home_of(-1) is None
    assert not is_reserved(FIRST_RESERVED_PRODUCER_ID - 1)
    unknown = FIRST_RESERVED_PRODUCER_ID | 5 << 56
    assert home_of(unknown) is None
    assert numbering_text(unknown) == f"reserved producer {unknown}"


@given(numbers)
@example(RowNumber(ROW_NUMBER_MAX))
def test_a_row_number_and_the_fields_of_a_header_are_the_same(number: RowNumber) -> None:
    number = min(number, RowNumber(ROW_NUMBER_MAX))
    claim = claim_of_row(HOME, number)
    assert row_of_claim(claim) == number
    assert 0 <= claim.epoch <= EPOCH_MAX
    assert 0 <= claim.sequence < SEQUENCES


def test_numbers_end_where_the_fields_end() -> None:
    with pytest.raises(NumbersExhaustedError, match="above"):
        claim_of_row(HOME, RowNumber(ROW_NUMBER_MAX + 1))
    with pytest.raises(ValueError, match="negative"):
        claim_of_row(HOME, RowNumber(-1))
    assert number_of_unit(RowNumber(ROW_NUMBER_MAX), 1) == ROW_NUMBER_MAX
    for number, rows in ((ROW_NUMBER_MAX, 2), (ROW_NUMBER_MAX + 1, 1)):
        with pytest.raises(NumbersExhaustedError):
            number_of_unit(RowNumber(number), rows)
    for rows in (0, -1, SEQUENCES + 1):
        with pytest.raises(ValueError, match="rows"):
            number_of_unit(RowNumber(0), rows)


@given(numbers, rows_of_units)
@example(RowNumber(SEQUENCES - 1), 2)
@example(RowNumber(SEQUENCES - 2), 2)
@example(RowNumber(SEQUENCES), SEQUENCES)
def test_rule_s4_a_unit_lies_within_one_producer_epoch(next_number: RowNumber, rows: int) -> None:
    try:
        number = number_of_unit(next_number, rows)
    except NumbersExhaustedError:
        assert next_number + rows > ROW_NUMBER_MAX - SEQUENCES
        return
    first, last = claim_of_row(HOME, number), claim_of_row(HOME, RowNumber(number + rows - 1))
    assert first.epoch == last.epoch
    assert number in {next_number, (next_number // SEQUENCES + 1) * SEQUENCES}
    if number != next_number:
        assert next_number % SEQUENCES + rows > SEQUENCES, "it jumps only where it has to"


@given(numbers, st.lists(st.integers(1, 15), min_size=1, max_size=30))
def test_rule_s4_the_end_of_a_log_is_the_number_behind_its_last_unit_across_2_to_the_31(
    start: RowNumber, sizes: list[int]
) -> None:
    states, number, offset = ProducerStates(), start, 0
    for rows in sizes:
        try:
            number = number_of_unit(number, rows)
        except NumbersExhaustedError:
            return
        states.note(claim_of_row(HOME, number), offset, offset + rows - 1, 0, offset)
        assert states.end_of(HOME) == number + rows
        assert states.offset_of(HOME, number, rows) == offset
        number, offset = RowNumber(number + rows), offset + rows
