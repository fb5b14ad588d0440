"""Producer id, epoch and sequence of a write, by which a repeat is recognized (KIP-98)."""

from __future__ import annotations

from typing import NamedTuple

BATCHES_REMEMBERED = 5
"""Batches of each producer that a log remembers, so as many requests may be in flight.

Kafka's ``ProducerStateEntry.NUM_BATCHES_TO_RETAIN``."""
SEQUENCES = 1 << 31
"""Number of distinct sequences: they run from 0 to 2^31 - 1, then begin again at 0."""
EPOCH_MAX = (1 << 15) - 1


class Claim(NamedTuple):
    """Producer id and producer epoch of a produce, and the sequence of its first record."""

    producer_id: int
    epoch: int
    sequence: int


def next_sequence(sequence: int, count: int = 1) -> int:
    """Return the sequence that is ``count`` after this one, wrapping to 0 after 2^31 - 1."""
    return (sequence + count) % SEQUENCES
