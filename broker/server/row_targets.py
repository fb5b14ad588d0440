"""Rows of transactions on the broker that received them: their checks and their partitions.

They are checked by their topic's configs here, once: when they are staged, or when a commit that
carries them arrives. Nothing of the topic's configuration is looked at again at the completion.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from broker.record.lines import encode_lines, key_view
from broker.server.produce import refusals
from broker.transactions.messages import TargetRows
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import PartitionId
from raft_metadata.common.internal_topics import INTERNAL_TOPICS
from raft_metadata.common.record_placement import (
    KeylessRotation,
    Partitioner,
    keyless_candidates,
    partition_of,
)

if TYPE_CHECKING:
    from broker.record.lines import ProduceRecord
    from broker.server.metadata_loader import MetadataLoader
    from broker.server.topics import LiveConfigs, TopicRequests
    from broker.server.transaction_apis import TopicRows
    from raft_metadata.image.metadata_image import TopicImage

NextKeyless = Callable[["TopicImage"], Callable[[], int]]
"""The function that gives the keyless rows of a topic their partitions."""


def seeded_keyless(name: str, partitioner: Partitioner) -> NextKeyless:
    """Return the placement of the keyless rows of a write that has a name.

    A repeat gives them the same partitions as long as the same ones have leaders.
    """
    seed = zlib.crc32(name.encode())

    def of(topic: TopicImage) -> Callable[[], int]:
        places = [one.has_leader for one in topic.partitions[: topic.routed_count]]
        return KeylessRotation(seed).for_batch(keyless_candidates(places), partitioner)

    return of


class PlacedTopic(NamedTuple):
    """Rows of one topic with the partition of each, or the refusal of it."""

    topic: TopicImage
    rows: TopicRows
    places: Sequence[PartitionId | KafkaError]


class RowTargets:
    """Checks rows by their topics, and gives them partitions.

    Owned by `RoutedBrokerApis`, on its loop. Stateless.
    """

    def __init__(
        self,
        loader: MetadataLoader,
        topics: TopicRequests,
        configs: LiveConfigs,
        wall_ms: Callable[[], int],
    ) -> None:
        """Take ``wall_ms``, the time that rows without one would get (rule R10)."""
        self._loader = loader
        self._topics = topics
        self._configs = configs
        self._wall_ms = wall_ms

    async def place(
        self, rows: TopicRows, deadline_ms: int, next_keyless: NextKeyless
    ) -> PlacedTopic:
        """Return a place or a refusal for each row; an unknown topic is created, if allowed.

        Raises:
            KafkaError: INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_OR_PARTITION: of all rows.
        """
        if rows.topic in INTERNAL_TOPICS:
            text = f"{rows.topic} is the cluster's own: no client writes it"
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)
        topic = await self._topics.for_produce(rows.topic, deadline_ms)
        try:
            return self._placed(topic, rows, next_keyless)
        except KafkaError:
            # Perhaps a new partition, which this broker's image does not have yet.
            await self._topics.catch_up_with(topic.name, topic.partitions_count)
            topic = self._loader.image.topics.get(topic.topic_id, topic)
            return self._placed(topic, rows, next_keyless)

    def _placed(self, topic: TopicImage, rows: TopicRows, next_keyless: NextKeyless) -> PlacedTopic:
        image = self._loader.image
        refused = refusals(rows.records, self._configs, image, topic, self._wall_ms())
        if self._configs.has_append_times(image, topic.topic_id) and not rows.records[0].is_bare:
            for record in rows.records:
                record.timestamp = None  # the completion looks at no configuration again
        keyless = next_keyless(topic)
        places: list[PartitionId | KafkaError] = []
        for index, record in enumerate(rows.records):
            if index in refused:
                places.append(refused[index])
                continue
            named = record.partition if rows.partition is None else rows.partition
            key = None if named is not None else key_view(record, rows.key_format)
            place = PartitionId(partition_of(named, key, topic.routed_count, keyless))
            if not 0 <= place < topic.partitions_count:
                text = (
                    f"Topic {topic.name} has no partition {place}: it has "
                    f"{topic.partitions_count}, numbered from 0"
                )
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
            places.append(place)
        return PlacedTopic(topic, rows, places)


def target_rows(placed: PlacedTopic) -> list[TargetRows]:
    """Return the rows of each partition, in the order of the request.

    Raises:
        KafkaError: of the first row that is refused, naming it; all are refused with it.
    """
    by_partition: dict[PartitionId, list[ProduceRecord]] = {}
    for index, (record, place) in enumerate(zip(placed.rows.records, placed.places, strict=True)):
        if isinstance(place, KafkaError):
            text = f"row {index} of {placed.topic.name}: {place.message}"
            raise KafkaError(place.code, text, outcome=Outcome.NOT_WRITTEN)
        by_partition.setdefault(place, []).append(record)
    return [
        TargetRows(
            topic_id=placed.topic.topic_id,
            partition=partition,
            key_format=placed.rows.key_format,
            value_format=placed.rows.value_format,
            rows=len(records),
            records=rows_text(records),
        )
        for partition, records in by_partition.items()
    ]


def rows_text(records: Sequence[ProduceRecord]) -> bytes:
    """Return rows as a JSON array in the client's text (rule R12)."""
    for record in records:
        record.partition, record.offset = None, -1
    return b"[%b]" % encode_lines(records)[:-1].replace(b"\n", b",")


def layout_of(placed: Sequence[PlacedTopic]) -> int:
    """Return a checksum of the partitions that the rows were given, in their order."""
    chosen = (
        f"{each.topic.topic_id}:{place}"
        for each in placed
        for place in each.places
        if not isinstance(place, KafkaError)
    )
    return zlib.crc32(",".join(chosen).encode())
