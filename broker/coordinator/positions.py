"""Positions of readers in partitions: offsets with their epochs, and how a position is moved. Pure.

The epoch of an offset is the leader epoch of the record right before it (KIP-320). A position keeps
the epochs of what was delivered from it, so that each offset that is committed is stored with its
own. When the log does not hold a position any more, `move_of` says where reading goes on; the
`InstanceReader` records that as a seek and informs the client.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from broker.coordinator.group_messages import Move
from broker.log.leader_epoch_cache import NO_EPOCH
from broker.log.read_positions import PositionTruncatedError
from raft_metadata.common.ids import InstanceId, TopicId, TopicPartition

SPANS_MAX = 16
"""Most epochs that one position remembers, the newest ones; older offsets have no known epoch."""


class OffsetAndEpoch(NamedTuple):
    """An offset and its epoch; `NO_EPOCH` if it is not known."""

    offset: int
    leader_epoch: int = NO_EPOCH


class EpochSpan(NamedTuple):
    """Records from ``first_offset`` on have this leader epoch, up to the next span."""

    first_offset: int
    leader_epoch: int


Spans = tuple[EpochSpan, ...]


def spans_before(place: OffsetAndEpoch) -> Spans:
    """Return what a place says: the epoch of the record right before it."""
    offset, epoch = place
    return () if epoch == NO_EPOCH or offset == 0 else (EpochSpan(offset - 1, epoch),)


def joined(spans: Spans, found: Iterable[EpochSpan], end: int | None = None) -> Spans:
    """Return the spans with those of records that were read behind, or again in their place.

    ``end``: the offset at which a shorter repeat ends. What was delivered from there on before
    keeps its epochs.
    """
    result = list(spans)
    for span in (*found, *(() if end is None else _spans_from(spans, end))):
        while result and result[-1].first_offset >= span.first_offset:
            result.pop()
        if not result or result[-1].leader_epoch != span.leader_epoch:
            result.append(span)
    return tuple(result[-SPANS_MAX:])


def _spans_from(spans: Spans, offset: int) -> Spans:
    behind = tuple(span for span in spans if span.first_offset > offset)
    epochs = [span.leader_epoch for span in spans if span.first_offset <= offset]
    return (EpochSpan(offset, epochs[-1]), *behind) if epochs else behind


@dataclass(slots=True, eq=False)
class ReadPosition:
    """The next offset that an instance reads in a partition of the topic with ``topic_id``."""

    next: int
    topic_id: TopicId
    delivered: bool = False
    """True if records were delivered since the position was last set."""
    confirmed: int | None = None
    """Automatic commits may cover what is below: the client is known to hold it."""
    sent: int = 0
    """The offset behind the last record that was ever delivered from this position."""
    spans: Spans = ()
    """Epochs of the records that were delivered, and of the one before the first of them."""

    @property
    def reached(self) -> int:
        """The offset up to which the instance may commit."""
        return max(self.next, self.sent)

    def epoch_of(self, offset: int) -> int:
        """Return the epoch of an offset; `NO_EPOCH` outside of what was delivered from here."""
        if offset > self.reached:
            return NO_EPOCH
        for first, epoch in reversed(self.spans):
            if first < offset:
                return epoch
        return NO_EPOCH


def position_at(place: OffsetAndEpoch, topic_id: TopicId) -> ReadPosition:
    """Return a new position."""
    return ReadPosition(place.offset, topic_id, spans=spans_before(place))


def place_after(error: PositionTruncatedError) -> OffsetAndEpoch:
    """Return where reading goes on when the log was cut or replaced.

    A truncated log is read on where it was cut. In a log that diverged the position stays: which of
    the records before it differ is not known, and reading them all again would repeat the others.
    """
    place = error.divergence
    if place.is_truncated:
        return OffsetAndEpoch(place.offset, place.epoch)
    return OffsetAndEpoch(error.position, place.epoch)


def move_of(
    instance: InstanceId,
    partition: TopicPartition,
    from_offset: int,
    to_offset: int,
    error: Exception,
    now_ms: int,
) -> Move:
    """Return the note about a moved position, for the client and the group's description."""
    cause = "out_of_range"
    if isinstance(error, PositionTruncatedError):
        cause = error.divergence.cause.value
    return Move(instance, *partition, from_offset, to_offset, cause, now_ms)
