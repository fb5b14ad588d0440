"""Placement of the replicas of new partitions: striped over brokers, spread over racks.

The scheme of Kafka's StripedReplicaPlacer: leaders rotate over all brokers, racks alternating; the
distance of the followers from their leader grows with every round, so that the partitions led by a
dead broker are spread equally over all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import zip_longest

from raft_metadata.common.ids import BrokerId


def place(
    racks: Mapping[BrokerId, str | None],
    *,
    partitions: Iterable[int],
    replication_factor: int,
    start: int,
) -> list[tuple[BrokerId, ...]]:
    """Return the replicas of each partition index, the preferred leader first.

    Args:
        racks: the brokers to place on, and the rack of each; None is one rack of its own.
        partitions: indexes; those of one topic continue the same stripe with the same ``start``.
        replication_factor: distinct brokers per partition, at most ``len(racks)``.
        start: a random number >= 0 that decides where the stripe begins.
    """
    assert 1 <= replication_factor <= len(racks), (replication_factor, len(racks))
    named = {broker_id: rack or "" for broker_id, rack in racks.items()}
    brokers = _alternating(named)
    rack_count = len(set(named.values()))
    first, shift = start % len(brokers), start // len(brokers)
    return [
        _stripe(
            brokers,
            named,
            replication_factor,
            leader=(index + first) % len(brokers),
            shift=(shift + index // len(brokers)) * rack_count,
        )
        for index in partitions
    ]


def _alternating(racks: Mapping[BrokerId, str]) -> list[BrokerId]:
    """Return the brokers in an order where neighbours are in different racks as far as possible."""
    by_rack: dict[str, list[BrokerId]] = {}
    for broker_id in sorted(racks):
        by_rack.setdefault(racks[broker_id], []).append(broker_id)
    rounds = zip_longest(*(by_rack[rack] for rack in sorted(by_rack)))
    return [broker_id for round_ in rounds for broker_id in round_ if broker_id is not None]


def _stripe(
    brokers: list[BrokerId],
    racks: Mapping[BrokerId, str],
    replication_factor: int,
    *,
    leader: int,
    shift: int,
) -> tuple[BrokerId, ...]:
    """Return the replicas of one partition, each in a rack without a replica while there is one."""
    replicas = [brokers[leader]]
    used = {racks[brokers[leader]]}
    rack_count = len(set(racks.values()))
    step = 0
    while len(replicas) < replication_factor:
        distance = 1 + (shift + step) % (len(brokers) - 1)
        step += 1
        candidate = brokers[(leader + distance) % len(brokers)]
        rack = racks[candidate]
        if candidate in replicas or (rack in used and len(used) < rack_count):
            continue
        replicas.append(candidate)
        used.add(rack)
    return tuple(replicas)
