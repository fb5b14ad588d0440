"""``quorumlog consume --follow``: one tail of the topic, or of the one partition that is named.

The tail goes on at another broker when its broker dies, and each record is printed once
(`http_api.client.topic_tail`). Several partitions, but not all, are read by the tail of the topic,
and the others are left out here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import assert_never

from http_api.cli.record_output import shown_record
from http_api.client import admin
from http_api.client.consumer import Record, ends
from http_api.client.topic_tail import TailStart, TopicTail, topic_end
from http_api.client.transport import Client
from http_api.contract.grammar import (
    AtOffset,
    Earliest,
    FromTime,
    LastRecords,
    Latest,
    Position,
)


@dataclass(frozen=True, slots=True)
class Followed:
    """The partitions that are followed, and the place where it begins."""

    topic: str
    partitions: tuple[int, ...] | None
    """The partitions to print; None: all, and those that are added."""
    start: Position | str
    """A position, or the token of the whole topic."""

    @property
    def alone(self) -> int | None:
        """The partition, if it is only one that was named."""
        if self.partitions is None or len(self.partitions) > 1:
            return None
        return self.partitions[0]

    def from_now(self, client: Client) -> Followed:
        """Return the same from its present end on, as it is found by this call."""
        if self.alone is not None:
            end = client.run(ends(self.topic, self.alone)).end
            return replace(self, start=AtOffset(end))
        cluster_id = client.run(admin.cluster()).cluster_id
        return replace(self, start=client.run(topic_end(cluster_id, self.topic)))


def follow_topic(
    client: Client,
    followed: Followed,
    *,
    binary: bool,
    printed: Mapping[int, int] | None = None,
) -> Iterator[list[Record]]:
    """Yield records as they come, each once, without end.

    Those before the offsets of their partitions in ``printed`` are left out.
    """
    first = printed or {}
    wanted = followed.partitions
    cluster_id = client.run(admin.cluster()).cluster_id
    start = TailStart(
        topic=followed.topic, partition=followed.alone, query=start_query(followed.start)
    )
    with TopicTail(client.routes, cluster_id, start) as tail:
        for records in tail.batches():
            yield [
                shown_record(each, followed.topic, binary=binary)
                for each in records
                if each.offset >= first.get(each.partition_id, 0)
                and (wanted is None or each.partition_id in wanted)
            ]


def start_query(start: Position | str) -> dict[str, object]:
    """Return the query parameters that name a start."""
    match start:
        case str():
            return {"after": start}
        case Earliest():
            return {"offset": "earliest"}
        case Latest():
            return {"offset": "latest"}
        case AtOffset(offset):
            return {"offset": offset}
        case LastRecords(count):
            return {"offset": -count}
        case FromTime(timestamp_ms):
            return {"timestamp": timestamp_ms}
        case _:
            assert_never(start)
