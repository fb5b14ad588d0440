"""Assignors: which member of a group is to own which partition. Pure and deterministic.

`rebalance.retarget` calls an assignor whenever the members, their subscriptions or the topics of a
group change. The same input gives the same result, whatever the order of its mappings.

- `assign_uniform` (KIP-848's ``uniform``): members with equal subscriptions own numbers of
  partitions that differ by at most one, counted over all topics, and a partition stays with its
  owner unless the balance needs it elsewhere.
- `assign_range` (Kafka's ``range``): every member owns consecutive partitions of each topic, so
  that partitions with the same number, of topics with equal counts, have the same owner.

Both prefer an owner in a rack that has a replica of the partition (KIP-881), where that changes no
member's number of partitions and, for ``uniform``, moves no partition.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from raft_metadata.common.ids import InstanceId, PartitionId, TopicName, TopicPartition

Rack = str
Target = frozenset[TopicPartition]
ReplicaRacks = frozenset[Rack]
NO_RACKS: ReplicaRacks = frozenset()


@dataclass(frozen=True, slots=True)
class AssignmentMember:
    """A member as an assignor sees it."""

    topics: frozenset[TopicName]
    rack: Rack | None = None
    target: Target = frozenset()
    """Its target so far; may hold partitions and topics that are gone."""


@dataclass(frozen=True, slots=True)
class AssignmentTopic:
    """A topic that exists."""

    partitions_count: int
    racks: Sequence[ReplicaRacks] = ()
    """By partition, the racks of its replicas; empty if no rack is known."""

    def racks_of(self, partition: int) -> ReplicaRacks:
        """Return the racks of a partition's replicas, none if they are not known."""
        return self.racks[partition] if partition < len(self.racks) else NO_RACKS


Members = Mapping[InstanceId, AssignmentMember]
AssignmentTopics = Mapping[TopicName, AssignmentTopic]


# range


def assign_range(members: Members, topics: AssignmentTopics) -> dict[InstanceId, Target]:
    """Return the target of each member: consecutive partitions of each topic.

    Every partition of an existing subscribed topic is in exactly one target.
    """
    targets: dict[InstanceId, set[TopicPartition]] = {name: set() for name in members}
    for topic, subscribers in _subscribers(members, topics).items():
        facts = topics[topic]
        share, extra = divmod(facts.partitions_count, len(subscribers))
        room = {name: share + (place < extra) for place, name in enumerate(subscribers)}
        left = list(range(facts.partitions_count))
        if _racks_differ(subscribers, members, facts):
            left = _take_in_rack(topic, left, room, members, facts, targets)
        numbers = iter(left)
        for name in subscribers:
            for _ in range(room[name]):
                targets[name].add(TopicPartition(topic, PartitionId(next(numbers))))
    return {name: frozenset(partitions) for name, partitions in targets.items()}


def _racks_differ(
    subscribers: Iterable[InstanceId], members: Members, facts: AssignmentTopic
) -> bool:
    """Return True if some member would read some partition from another rack, and some would not.

    Otherwise racks can change nothing, and partitions stay consecutive.
    """
    racks = {members[name].rack for name in subscribers} - {None}
    matches = {
        rack in facts.racks_of(number) for rack in racks for number in range(facts.partitions_count)
    }
    return len(matches) > 1


def _take_in_rack(
    topic: TopicName,
    numbers: Iterable[int],
    room: dict[InstanceId, int],
    members: Members,
    facts: AssignmentTopic,
    targets: Mapping[InstanceId, set[TopicPartition]],
) -> list[int]:
    """Give partitions to members in a rack of theirs while ``room`` allows; return the others."""
    left: list[int] = []
    for number in numbers:
        racks = facts.racks_of(number)
        name = next((n for n, count in room.items() if count and members[n].rack in racks), None)
        if name is None:
            left.append(number)
            continue
        targets[name].add(TopicPartition(topic, PartitionId(number)))
        room[name] -= 1
    return left


def _subscribers(members: Members, topics: AssignmentTopics) -> dict[TopicName, list[InstanceId]]:
    found: dict[TopicName, list[InstanceId]] = {}
    for name in sorted(members):
        for topic in members[name].topics:
            if topic in topics:
                found.setdefault(topic, []).append(name)
    return {topic: found[topic] for topic in sorted(found)}


# uniform


@dataclass(slots=True)
class _Holding:
    """Partitions of one pool that one member holds, by the racks of their replicas.

    Those that were given to it by this computation are moved on before those that it had.
    """

    had: dict[ReplicaRacks, list[TopicPartition]] = field(default_factory=dict)
    given: dict[ReplicaRacks, list[TopicPartition]] = field(default_factory=dict)

    def add(self, partition: TopicPartition, racks: ReplicaRacks, *, is_new: bool) -> None:
        kind = self.given if is_new else self.had
        kind.setdefault(racks, []).append(partition)

    def take(self, giver: Rack | None, taker: Rack | None) -> tuple[TopicPartition, ReplicaRacks]:
        """Remove the partition whose move costs least: nearest to the taker, farthest from us."""
        kind = self.given or self.had
        racks = min(kind, key=lambda racks: (taker not in racks, giver in racks, sorted(racks)))
        found = kind[racks].pop()
        if not kind[racks]:
            del kind[racks]
        return found, racks

    def __bool__(self) -> bool:
        return bool(self.had or self.given)


@dataclass(slots=True)
class _Pool:
    """Topics with the same subscribers, among which each of their partitions may move."""

    subscribers: list[InstanceId]
    holdings: dict[InstanceId, _Holding]
    free: dict[ReplicaRacks, list[TopicPartition]] = field(default_factory=dict)
    """Partitions without an owner, by the racks of their replicas; the first is given first."""


def assign_uniform(members: Members, topics: AssignmentTopics) -> dict[InstanceId, Target]:
    """Return the target of each member, with as few partitions moved as balance allows.

    Partitions that keep a subscribed owner stay; those without one fill up the members that have
    the fewest; then partitions move from members with more to members with fewer, one at a time,
    while they differ by two or more. So each move lowers the sum of squares, and members with equal
    subscriptions differ by one at most at the end.
    """
    pools = _pools(members, topics)
    loads = dict.fromkeys(sorted(members), 0)
    for pool in pools:
        for name, holding in pool.holdings.items():
            loads[name] += sum(map(len, holding.had.values()))
    for pool in pools:
        _fill(pool, loads, members)
    while any([_level(pool, loads, members) for pool in pools]):  # noqa: C419 each pool, each time
        pass
    targets: dict[InstanceId, set[TopicPartition]] = {name: set() for name in members}
    for pool in pools:
        for name, holding in pool.holdings.items():
            for kind in (holding.had, holding.given):
                targets[name].update(*kind.values())
    return {name: frozenset(partitions) for name, partitions in targets.items()}


def _pools(members: Members, topics: AssignmentTopics) -> list[_Pool]:
    """Return the pools, those with the fewest subscribers first: they have the least choice."""
    owners = {
        partition: name
        for name in sorted(members, reverse=True)
        for partition in members[name].target
        if partition.topic in members[name].topics
    }
    pools: dict[tuple[InstanceId, ...], _Pool] = {}
    for topic, subscribers in _subscribers(members, topics).items():
        pool = pools.get(tuple(subscribers))
        if pool is None:
            pool = _Pool(subscribers, {name: _Holding() for name in subscribers})
            pools[tuple(subscribers)] = pool
        facts = topics[topic]
        for number in range(facts.partitions_count):
            partition = TopicPartition(topic, PartitionId(number))
            racks, owner = facts.racks_of(number), owners.get(partition)
            if owner is None:
                pool.free.setdefault(racks, []).append(partition)
            else:
                pool.holdings[owner].add(partition, racks, is_new=False)
    return [pools[key] for key in sorted(pools, key=lambda key: (len(key), key))]


def _fill(pool: _Pool, loads: dict[InstanceId, int], members: Members) -> None:
    """Give the free partitions of a pool to the members with the fewest, in a rack if possible.

    How many each member gets is settled first, so that racks choose only which ones.
    """
    room = _rooms(pool, loads)
    for in_rack in (True, False):
        for racks in sorted(pool.free, key=sorted):
            able = [
                (-count, name)
                for name, count in room.items()
                if count and (not in_rack or members[name].rack in racks)
            ]
            heapq.heapify(able)
            free = deque(pool.free[racks])
            while able and free:
                count, name = heapq.heappop(able)
                pool.holdings[name].add(free.popleft(), racks, is_new=True)
                room[name] -= 1
                loads[name] += 1
                if room[name]:
                    heapq.heappush(able, (count + 1, name))
            pool.free[racks] = list(free)
    pool.free.clear()


def _rooms(pool: _Pool, loads: Mapping[InstanceId, int]) -> dict[InstanceId, int]:
    """Return how many free partitions each subscriber gets, so that the lowest loads rise most."""
    count = sum(map(len, pool.free.values()))
    heap = [(loads[name], name) for name in pool.subscribers]
    heapq.heapify(heap)
    room = dict.fromkeys(pool.subscribers, 0)
    for _ in range(count):
        load, name = heap[0]
        room[name] += 1
        heapq.heapreplace(heap, (load + 1, name))
    return room


def _level(pool: _Pool, loads: dict[InstanceId, int], members: Members) -> bool:
    """Move partitions of a pool from the fullest to the emptiest; return True if one moved."""
    moved = False
    fullest = [(-loads[name], name) for name in pool.subscribers if pool.holdings[name]]
    emptiest = [(loads[name], name) for name in pool.subscribers]
    heapq.heapify(fullest)
    heapq.heapify(emptiest)
    while fullest:
        giver, taker = _newest(fullest, -1, loads), _newest(emptiest, 1, loads)
        if loads[giver] - loads[taker] < 2:
            return moved
        holding = pool.holdings[giver]
        partition, racks = holding.take(members[giver].rack, members[taker].rack)
        pool.holdings[taker].add(partition, racks, is_new=True)
        loads[giver] -= 1
        loads[taker] += 1
        moved = True
        heapq.heapreplace(emptiest, (loads[taker], taker))
        heapq.heappush(emptiest, (loads[giver], giver))
        heapq.heappop(fullest)
        for name in (giver, taker):
            if pool.holdings[name]:
                heapq.heappush(fullest, (-loads[name], name))
    return moved


def _newest(
    heap: list[tuple[int, InstanceId]], sign: int, loads: Mapping[InstanceId, int]
) -> InstanceId:
    """Return the first member of a heap whose entry is of its present load; drop older entries."""
    while heap[0][0] != sign * loads[heap[0][1]]:
        heapq.heappop(heap)
    return heap[0][1]


UNIFORM = "uniform"
RANGE = "range"
ASSIGNORS = {UNIFORM: assign_uniform, RANGE: assign_range}
"""Assignors by the name that settings use."""
KAFKA_NAMES = {
    "org.apache.kafka.clients.consumer.RangeAssignor": RANGE,
    "org.apache.kafka.clients.consumer.RoundRobinAssignor": UNIFORM,
    "org.apache.kafka.clients.consumer.StickyAssignor": UNIFORM,
    "org.apache.kafka.clients.consumer.CooperativeStickyAssignor": UNIFORM,
    "roundrobin": UNIFORM,
    "sticky": UNIFORM,
    "cooperative-sticky": UNIFORM,
}
"""Names that Kafka's clients use for an assignor → the assignor here."""


def find_assignor(name: str) -> str | None:
    """Return the assignor that a name, ours or Kafka's, stands for; None if it is unknown."""
    return name if name in ASSIGNORS else KAFKA_NAMES.get(name)


def choose_assignor(wishes: Iterable[Sequence[str]], default: str) -> str:
    """Return the assignor that most members name first; the first in the alphabet on a tie.

    ``wishes``: of each member, the assignors that it names, the one it prefers first.
    """
    votes: dict[str, int] = {}
    for wish in wishes:
        if wish:
            votes[wish[0]] = votes.get(wish[0], 0) + 1
    return min(votes, key=lambda name: (-votes[name], name)) if votes else default


def moved_partitions(before: Members, after: Mapping[InstanceId, Set[TopicPartition]]) -> int:
    """Return how many partitions are in the target of another member than before."""
    owners = {partition: name for name, one in before.items() for partition in one.target}
    return sum(
        owners.get(partition, name) != name
        for name, partitions in after.items()
        for partition in partitions
    )
