"""Unclean elections with real processes, for what reads the log that they cut or replace.

For clusters that restart no node (``--no-restart``). A topic has one partition with two replicas.
Brokers are killed, and started by hand, so that the replica that lacks the last records leads.
The given `Readers` begin before that election, at the end of the log.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from tests.support.live_cluster import LiveCluster


@dataclass(frozen=True)
class TwoReplicas:
    """A topic with two replicas, and the broker through which it is written."""

    cluster: LiveCluster
    topic: str
    first: int
    """The broker that leads at the beginning."""
    second: int
    other: int
    """The broker that holds no replica: it is never killed."""
    values: Iterator[int] = field(default_factory=itertools.count)
    """Values to be written: no two records have the same one."""

    async def write(self, count: int) -> None:
        values = [*itertools.islice(self.values, count)]

        async def written() -> bool:
            answer = await self.cluster.produce(self.other, self.topic, *values)
            rows = answer.body.get("offsets", [{"error_code": answer.status}])
            return all(row["error_code"] is None for row in rows)

        await self.cluster.until(written, f"{count} records are written to {self.topic}")

    async def write_to_first_alone(self, count: int) -> None:
        await self.cluster.kill(f"broker-{self.second}")
        await self.cluster.wait_isr(self.topic, 0, {self.first}, self.other)
        await self.write(count)

    async def elect(self, stale: int, count: int) -> None:
        """Kill the leader, start the replica that lacks its last records, and write to that."""
        leader = self.first if stale == self.second else self.second
        await self.cluster.kill(f"broker-{leader}")
        self.cluster.start_node(f"broker-{stale}")
        await self.write(count)

    async def heal(self, dead: int) -> None:
        self.cluster.start_node(f"broker-{dead}")
        await self.cluster.wait_isr(self.topic, 0, {self.first, self.second}, self.other)


Readers = Callable[[TwoReplicas], Awaitable[None]]
"""Has readers read up to the end of the log; returns once they have."""


async def two_replicas(cluster: LiveCluster, topic: str) -> TwoReplicas:
    await cluster.create_topic(
        topic, factor=2, min_insync_replicas="1", unclean_leader_election_enable="true"
    )
    leader = await cluster.leader(topic)
    described = await cluster.partition(topic)
    (follower,) = set(described["isr"]) - {leader}
    (other,) = {1, 2, 3} - {leader, follower}
    return TwoReplicas(cluster, topic, leader, follower, other)


async def cut_log(cluster: LiveCluster, name: str, readers: Readers) -> None:
    """A log that was read up to 100, is cut to 80 and grows to 120 under another leader."""
    topic = await two_replicas(cluster, name)
    await topic.write(80)
    await topic.write_to_first_alone(20)
    await readers(topic)
    await topic.elect(topic.second, 40)
    await topic.heal(topic.first)


async def replaced_log(cluster: LiveCluster, name: str, readers: Readers) -> None:
    """A log that was read up to 70, and in its place a stale replica's that grows to 95."""
    topic = await two_replicas(cluster, name)
    await topic.write(60)
    await topic.write_to_first_alone(30)
    await topic.elect(topic.second, 10)
    await readers(topic)
    await topic.elect(topic.first, 5)
    await topic.heal(topic.second)
