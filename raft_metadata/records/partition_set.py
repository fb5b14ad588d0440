"""Sets of partitions as ranges: 200,000 of 40 topics are 40 ranges of 40 bytes, not 7 MB.

Brokers register their unclean partitions in this form, and the metadata image keeps it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from raft_metadata.common.ids import PartitionId, TopicId, TopicIdPartition


class PartitionRange(NamedTuple):
    """Partitions ``first`` to ``last`` of a topic, both included.

    In JSON ``[topic_id, first, last]``.
    """

    topic_id: TopicId
    first: PartitionId
    last: PartitionId


@dataclass(frozen=True, slots=True)
class PartitionSet:
    """A set of partitions, stored and compared as ranges. Create it with `of`.

    A membership test costs a binary search; only iterating expands the ranges.
    """

    ranges: tuple[PartitionRange, ...] = ()
    """Sorted, with a gap between any two ranges of one topic."""
    _starts: Mapping[TopicId, list[PartitionId]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    _ends: Mapping[TopicId, list[PartitionId]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        starts: dict[TopicId, list[PartitionId]] = {}
        ends: dict[TopicId, list[PartitionId]] = {}
        for topic_id, first, last in self.ranges:
            starts.setdefault(topic_id, []).append(first)
            ends.setdefault(topic_id, []).append(last)
        object.__setattr__(self, "_starts", starts)
        object.__setattr__(self, "_ends", ends)

    @classmethod
    def of(
        cls, partitions: Iterable[TopicIdPartition] = (), ranges: Iterable[PartitionRange] = ()
    ) -> PartitionSet:
        """Return the set of all these partitions and ranges, in any order; they may overlap."""
        said = [(topic_id, number, number) for topic_id, number in partitions]
        said += ranges
        found: list[tuple[TopicId, PartitionId, PartitionId]] = []
        for one in sorted(said):
            topic_id, first, last = found[-1] if found else (None, -1, -1)
            if topic_id != one[0] or one[1] > last + 1:
                found.append(one)
            elif one[2] > last:
                found[-1] = (one[0], PartitionId(first), one[2])
        return cls(tuple(PartitionRange(*one) for one in found))

    def __contains__(self, where: TopicIdPartition) -> bool:
        """Return True if the partition is in one of the ranges."""
        starts = self._starts.get(where.topic_id)
        if starts is None:
            return False
        at = bisect_right(starts, where.partition) - 1
        return at >= 0 and where.partition <= self._ends[where.topic_id][at]

    def __iter__(self) -> Iterator[TopicIdPartition]:
        """Yield every partition, sorted."""
        for topic_id, first, last in self.ranges:
            for number in range(first, last + 1):
                yield TopicIdPartition(topic_id, PartitionId(number))

    def __bool__(self) -> bool:
        return bool(self.ranges)

    @property
    def count(self) -> int:
        """The number of partitions in the set."""
        return sum(last - first + 1 for _, first, last in self.ranges)


NO_PARTITIONS = PartitionSet()
