"""How a write names its producer, so that it can be sent again without a repeat (KIP-98)."""

from __future__ import annotations

from typing import NamedTuple

BATCHES_REMEMBERED = 5
"""Kafka's ``ProducerStateEntry.NUM_BATCHES_TO_RETAIN``: as many requests may be in flight."""
SEQUENCES = 1 << 31
"""Sequences run from 0 to 2^31 - 1 and begin again."""
EPOCH_MAX = (1 << 15) - 1


class Claim(NamedTuple):
    """What a produce says of itself: this producer, in this epoch, from this sequence on."""

    producer_id: int
    epoch: int
    sequence: int


def next_sequence(sequence: int, count: int = 1) -> int:
    """The sequence ``count`` behind this one."""
    return (sequence + count) % SEQUENCES
