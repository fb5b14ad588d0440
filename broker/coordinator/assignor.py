"""Who is to own which partition: Kafka's range assignor, on the server. Pure.

``org.apache.kafka.coordinator.group.assignor.RangeAssignor``, as its Javadoc says: topic by topic,
partitions in numeric order are laid out over the subscribed members in order of their ids; where
they don't divide evenly, the first members get one more. Members left over own nothing: they are
there for fail-over.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from raft_metadata.common.ids import InstanceId, PartitionId, TopicName, TopicPartition

ASSIGNOR = "range"


def assign_ranges(
    subscriptions: Mapping[InstanceId, Set[TopicName]], counts: Mapping[TopicName, int]
) -> dict[InstanceId, frozenset[TopicPartition]]:
    """The target of each member. ``counts``: partitions of each topic that exists.

    Every partition of a subscribed topic that exists is in exactly one target.
    """
    targets: dict[InstanceId, set[TopicPartition]] = {member: set() for member in subscriptions}
    subscribers: dict[TopicName, list[InstanceId]] = {}
    for member in sorted(subscriptions):
        for topic in subscriptions[member]:
            subscribers.setdefault(topic, []).append(member)
    for topic, members in subscribers.items():
        share, extra = divmod(counts.get(topic, 0), len(members))
        first = 0
        for place, member in enumerate(members):
            following = first + share + (place < extra)
            targets[member].update(
                TopicPartition(topic, PartitionId(number)) for number in range(first, following)
            )
            first = following
    return {member: frozenset(partitions) for member, partitions in targets.items()}
