"""The partition of a record: its own, else its key's, else the next in turn. Pure.

Brokers, the client and the Spark source place records with `partition_of`, so a record goes to the
same place through every door (interfaces, section 3). A record without a partition and a key is
spread over the partitions that have a leader: `KeylessRotation` gives each request or batch a
function that returns the partition of its next keyless record.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from enum import Enum


class Partitioner(Enum):
    """The rule by which records without a partition and a key are spread over a topic."""

    STICKY = "sticky"
    """All of one request or batch go to one partition, those of the next one to the next."""
    ROUND_ROBIN = "round_robin"
    """Each goes to the next partition."""


def partition_for_key(key: bytes, partitions: int) -> int:
    """Return the partition of a keyed record: crc32 (IEEE, as zlib) of the bytes view, modulo.

    The same for every format, the SDK and Spark. Vectors: see tests/unit/test_record_placement.py.
    """
    return zlib.crc32(key) % partitions


def partition_of(
    partition: int | None, key: bytes | None, partitions: int, next_keyless: Callable[[], int]
) -> int:
    """Return the partition that a record goes to.

    Args:
        partition: Partition that the record itself names; None: it names none.
        key: Bytes view of the record's key; None: it has no key, or null.
        partitions: Number of partitions over which keys are spread.
        next_keyless: Returns the partition of the next record without a partition and a key.
    """
    if partition is not None:
        return partition
    if key is not None:
        return partition_for_key(key, partitions)
    return next_keyless()


def keyless_candidates(has_leader: Sequence[bool]) -> Sequence[int]:
    """Return the partitions that keyless records are spread over: those with a leader.

    Without any leader all of them, so that the records wait for a leader as keyed ones do. In each
    partition left out they would wait while others could take them.
    """
    if all(has_leader) or not any(has_leader):
        return range(len(has_leader))
    return tuple(number for number, is_led in enumerate(has_leader) if is_led)


class KeylessRotation:
    """The turn of one topic's keyless records over its partitions.

    Owned by a broker or a producer, on one thread. A random start spreads the first records of many
    producers.
    """

    __slots__ = ("_turn",)

    def __init__(self, start: int) -> None:
        self._turn = start

    def next_of(self, candidates: Sequence[int]) -> int:
        """Return the candidate whose turn it is, and move on."""
        turn = self._turn
        self._turn = turn + 1
        return candidates[turn % len(candidates)]

    def for_batch(
        self, candidates: Sequence[int], partitioner: Partitioner = Partitioner.STICKY
    ) -> Callable[[], int]:
        """Return the ``next_keyless`` of `partition_of` for one request or batch.

        A batch without keyless records takes no turn.
        """
        if partitioner is Partitioner.ROUND_ROBIN:
            return lambda: self.next_of(candidates)
        chosen: int | None = None

        def sticky() -> int:
            nonlocal chosen
            if chosen is None:
                chosen = self.next_of(candidates)
            return chosen

        return sticky
