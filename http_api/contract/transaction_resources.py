"""Resources of transactions as both sides see them: a dataclass each, and its reading from JSON.

As in `resources`; `transaction_shapes` writes them. A position is what a transactional id decides
once: an epoch and a number of a producer, a number of a numbered id, or the one of a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPartition:
    """Rows of a transaction in one partition."""

    topic: str | None
    """None where the topic is gone."""
    topic_id: str
    partition: int
    base_offset: int | None
    """Offset of the first row; None if it is not known, or not known any more."""
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingPartition:
    """A partition that does not show its rows of a decided transaction yet."""

    topic: str | None
    partition: int
    reason: str


@dataclass(frozen=True, slots=True)
class DroppedPartition:
    """A partition whose topic was deleted behind the decision."""

    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LostPartition:
    """Decided rows of a partition that an unclean election of their stage took."""

    topic: str | None
    """None where the topic is gone."""
    topic_id: str
    partition: int
    rows: int


@dataclass(frozen=True, slots=True)
class DecidedPosition:
    """The newest position of an id that was decided, and what became of it."""

    epoch: int
    number: int
    state: str
    """committing | complete | aborted."""
    lost_rows: int = 0
    """Rows of it that an unclean election took: it is decided, and not all of it is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionResult:
    """A decided transaction, as the answer to its commit describes it."""

    transaction_id: str
    group: str | None
    epoch: int
    number: int
    state: str
    """complete, or committing: decided, and not all rows can be read yet."""
    already: bool
    """True for a numbered run that came later than the one that decided: its rows are discarded."""
    rows: int
    partitions: tuple[PlacedPartition, ...]
    pending: tuple[WaitingPartition, ...]
    dropped: tuple[DroppedPartition, ...]
    lost: tuple[LostPartition, ...]


@dataclass(frozen=True, slots=True)
class AbortResult:
    """The fate of a position, as the answer to its abort says it."""

    state: str
    """aborted; committing or complete if it was decided before."""
    lost: tuple[LostPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerLife:
    """The epoch of a producer's new life, and what became of its last one."""

    transaction_id: str
    group: str | None
    epoch: int
    last: DecidedPosition | None
    forgotten_to_epoch: int
    """A position behind ``last``, of an epoch above this one, was never decided."""
    chunk_max_bytes: int
    """The most bytes that the body of a staged request may have, as the cluster is configured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptInfo:
    """A staged attempt as its stage knows it."""

    attempt_id: str
    epoch: int
    number: int
    chunks: int
    rows: int
    bytes: int
    age_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionInfo:
    """A transactional id as its home and the stages know it."""

    transaction_id: str
    group: str | None
    epoch: int | None
    """Present epoch of a producer; None for an id without epochs."""
    last: DecidedPosition | None
    state: str
    """staging | committing | complete | aborted."""
    decided_ms: int | None
    """Time of the last decision, in milliseconds since 1970."""
    member_id: str | None
    """The member that committed its group's offsets."""
    partitions: tuple[PlacedPartition, ...]
    pending: tuple[WaitingPartition, ...]
    dropped: tuple[DroppedPartition, ...]
    lost: tuple[LostPartition, ...]
    attempts: tuple[AttemptInfo, ...]
    home_topic: str
    home_partition: int
    leader: int
    """The broker that leads the home."""


def result_of(row: Mapping[str, Any]) -> TransactionResult:
    """Return the decided transaction that a v3 answer describes."""
    return TransactionResult(
        transaction_id=row["transaction_id"],
        group=row["group_id"],
        epoch=row["epoch"],
        number=row["number"],
        state=row["state"],
        already=row["already"],
        rows=row["rows"],
        partitions=_placed(row),
        pending=_waiting(row),
        dropped=_dropped(row),
        lost=_lost(row),
    )


def abort_of(row: Mapping[str, Any]) -> AbortResult:
    """Return what the answer to an abort says."""
    return AbortResult(row["state"], _lost(row))


def life_of(row: Mapping[str, Any]) -> ProducerLife:
    """Return the producer's epoch that a v3 answer describes."""
    return ProducerLife(
        transaction_id=row["transaction_id"],
        group=row["group_id"],
        epoch=row["epoch"],
        last=_last(row),
        forgotten_to_epoch=row["forgotten_to_epoch"],
        chunk_max_bytes=row["chunk_max_bytes"],
    )


def info_of(row: Mapping[str, Any]) -> TransactionInfo:
    """Return the transactional id that a row of a v3 answer describes."""
    home = row["home"]
    return TransactionInfo(
        transaction_id=row["transaction_id"],
        group=row["group_id"],
        epoch=row["epoch"],
        last=_last(row),
        state=row["state"],
        decided_ms=row["decided_ms"],
        member_id=row["member_id"],
        partitions=_placed(row),
        pending=_waiting(row),
        dropped=_dropped(row),
        lost=_lost(row),
        attempts=tuple(
            AttemptInfo(
                attempt_id=one["attempt_id"],
                epoch=one["epoch"],
                number=one["number"],
                chunks=one["chunks"],
                rows=one["rows"],
                bytes=one["bytes"],
                age_ms=one["age_ms"],
            )
            for one in row["attempts"]
        ),
        home_topic=home["topic_name"],
        home_partition=home["partition_id"],
        leader=home["leader_id"],
    )


def _last(row: Mapping[str, Any]) -> DecidedPosition | None:
    last = row["last"]
    if last is None:
        return None
    return DecidedPosition(last["epoch"], last["number"], last["state"], last["lost_rows"])


def _placed(row: Mapping[str, Any]) -> tuple[PlacedPartition, ...]:
    return tuple(
        PlacedPartition(
            topic=one["topic_name"],
            topic_id=one["topic_id"],
            partition=one["partition_id"],
            base_offset=one["base_offset"],
            rows=one["rows"],
        )
        for one in row["partitions"]
    )


def _waiting(row: Mapping[str, Any]) -> tuple[WaitingPartition, ...]:
    return tuple(
        WaitingPartition(
            topic=one["topic_name"], partition=one["partition_id"], reason=one["reason"]
        )
        for one in row["pending"]
    )


def _dropped(row: Mapping[str, Any]) -> tuple[DroppedPartition, ...]:
    return tuple(DroppedPartition(one["topic_id"], one["partition_id"]) for one in row["dropped"])


def _lost(row: Mapping[str, Any]) -> tuple[LostPartition, ...]:
    return tuple(
        LostPartition(
            topic=one["topic_name"],
            topic_id=one["topic_id"],
            partition=one["partition_id"],
            rows=one["rows"],
        )
        for one in row["lost"]
    )
