"""Reserved producer ids, under which a home numbers the rows that it completes elsewhere. Pure.

A *home* is a partition whose leader decides transactions; a *target* is a partition that gets rows
of them. The home numbers the rows of each target without gaps: 0, 1, 2… Under which *numbering*
that is, is the producer id of the batches (`make_numbering`), and the row number of a batch's first
record is its producer epoch and its base sequence: n = epoch · 2^31 + sequence. So a target
recognizes a repeat for ever by one number a home, and a batch's header says who completed it.

The rows that one decision has for one target in one piece are a *unit*. A unit is never split, and
its row numbers share a producer epoch: where it would reach into the next one, it begins there
instead (`number_of_unit`), and the numbers in between are never given.

A home whose log was cut by an unclean election may give numbers again that it gave before. It goes
on under another numbering, made with the leader epoch of that election.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NewType

from typing_extensions import override

from raft_metadata.common.ids import (
    EPOCH_MAX,
    FIRST_RESERVED_PRODUCER_ID,
    SEQUENCES,
    Claim,
    LeaderEpoch,
    PartitionId,
    TopicName,
    is_reserved,
)
from raft_metadata.common.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

Numbering = NewType("Numbering", int)
"""A reserved producer id."""
RowNumber = NewType("RowNumber", int)
"""The number of a row under one numbering, at one target."""
FIRST_ROW = RowNumber(0)

_KIND_SHIFT, _PARTITION_SHIFT = 56, 32
KIND_MAX = (1 << 62 - _KIND_SHIFT) - 1
HOME_PARTITION_MAX = (1 << _KIND_SHIFT - _PARTITION_SHIFT) - 1
UNCLEAN_EPOCH_MAX = (1 << 31) - 1
"""Leader epochs are 32-bit integers with a sign."""
ROW_NUMBER_MAX = EPOCH_MAX * SEQUENCES + SEQUENCES - 1
"""2^46 - 1: two years of a million rows a second, from one home to one target."""
UNIT_ROWS_MAX = SEQUENCES


class HomeKind(IntEnum):
    """The kind of a home: its place in a numbering."""

    TRANSACTIONS = 0
    GROUPS = 1


_TOPICS = {HomeKind.TRANSACTIONS: TRANSACTIONS_TOPIC, HomeKind.GROUPS: OFFSETS_TOPIC}


class NumbersExhaustedError(ValueError):
    """A home has given all row numbers that there are for one target."""


@dataclass(frozen=True, slots=True)
class NumberedHome:
    """The parts of a numbering."""

    kind: HomeKind
    partition: PartitionId
    unclean_epoch: LeaderEpoch
    """Leader epoch of the last unclean election of that partition; 0 if there was none."""

    @property
    def topic(self) -> TopicName:
        return _TOPICS[self.kind]

    @override
    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def make_numbering(kind: HomeKind, partition: PartitionId, unclean_epoch: LeaderEpoch) -> Numbering:
    """Return the producer id under which a home numbers its rows.

    ``unclean_epoch``: as the image has it; -1, for a partition without an unclean election, counts
    as 0, which no such election can have.

    Raises:
        ValueError: a part does not fit into its field.
    """
    unclean = max(unclean_epoch, 0)
    if not 0 <= partition <= HOME_PARTITION_MAX or unclean > UNCLEAN_EPOCH_MAX:
        msg = (
            f"a home of partition {partition} in unclean epoch {unclean_epoch} can't number rows: "
            f"expected a partition up to {HOME_PARTITION_MAX}, an epoch up to {UNCLEAN_EPOCH_MAX}"
        )
        raise ValueError(msg)
    fields = kind << _KIND_SHIFT | partition << _PARTITION_SHIFT | unclean
    return Numbering(FIRST_RESERVED_PRODUCER_ID | fields)


def home_of(producer_id: int) -> NumberedHome | None:
    """Return the home of a reserved producer id; None for any other id, and of an unknown kind."""
    kind = producer_id >> _KIND_SHIFT & KIND_MAX
    if not is_reserved(producer_id) or kind not in _TOPICS:
        return None
    return NumberedHome(
        HomeKind(kind),
        PartitionId(producer_id >> _PARTITION_SHIFT & HOME_PARTITION_MAX),
        LeaderEpoch(producer_id & (1 << _PARTITION_SHIFT) - 1),
    )


def numbering_text(producer_id: int) -> str:
    """Return the words for a reserved producer id: `completed by __transaction_state-3`.

    With the unclean epoch, if there was an unclean election.
    """
    home = home_of(producer_id)
    if home is None:
        return f"reserved producer {producer_id}"
    unclean = f" (unclean epoch {home.unclean_epoch})" if home.unclean_epoch else ""
    return f"completed by {home}{unclean}"


# row numbers


def row_number(epoch: int, sequence: int) -> RowNumber:
    """Return the row number that stands in a header as this producer epoch and sequence."""
    return RowNumber(epoch * SEQUENCES + sequence)


def claim_of_row(numbering: Numbering, number: RowNumber) -> Claim:
    """Return the claim of a batch whose first row has this number.

    Raises:
        NumbersExhaustedError: the number is above `ROW_NUMBER_MAX`.
        ValueError: it is negative.
    """
    if number < 0:
        msg = f"row number {number} is negative"
        raise ValueError(msg)
    if number > ROW_NUMBER_MAX:
        msg = f"row number {number} of {numbering_text(numbering)} is above {ROW_NUMBER_MAX}"
        raise NumbersExhaustedError(msg)
    epoch, sequence = divmod(number, SEQUENCES)
    return Claim(numbering, epoch, sequence)


def row_of_claim(claim: Claim) -> RowNumber:
    """Return the row number of a claim's first row."""
    return row_number(claim.epoch, claim.sequence)


def number_of_unit(next_number: RowNumber, rows: int) -> RowNumber:
    """Return the number of the first row of a unit of ``rows`` rows, and not below ``next_number``.

    That is ``next_number``, or the next multiple of 2^31 if the unit would reach across it.

    Raises:
        ValueError: no rows, or more than `UNIT_ROWS_MAX`.
        NumbersExhaustedError: its last row's number would be above `ROW_NUMBER_MAX`.
    """
    if not 1 <= rows <= UNIT_ROWS_MAX or next_number < 0:
        msg = f"a unit of {rows} rows behind {next_number}: expected 1 to {UNIT_ROWS_MAX} rows"
        raise ValueError(msg)
    number = next_number
    if number % SEQUENCES + rows > SEQUENCES:
        number = RowNumber((number // SEQUENCES + 1) * SEQUENCES)
    if number + rows - 1 > ROW_NUMBER_MAX:
        msg = f"a unit of {rows} rows behind row {next_number} would pass row {ROW_NUMBER_MAX}"
        raise NumbersExhaustedError(msg)
    return number
