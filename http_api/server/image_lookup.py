"""Look-ups of topics, partitions and brokers that a path names, with the 404 of each.

Routes call these functions; they read the broker's metadata image. A topic or partition that the
image lacks is first requested from the active controller.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import orjson

from http_api.contract.errors import RestCode, RestError
from http_api.server.request_site import links_of_request
from raft_metadata.records.records import BrokerState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from broker.server.requests import BrokerApis
    from http_api.server.answers import ApiContext
    from raft_metadata.common.ids import PartitionId, TopicName
    from raft_metadata.image.metadata_image import (
        BrokerRegistration,
        MetadataImage,
        PartitionRegistration,
        TopicImage,
    )


NOT_HOSTED = "This server does not host this topic-partition."
"""Confluent's text for error code 40403; clients compare whole bodies."""


PARTITIONS_PER_TURN = 2_000
"""Partitions visited before the loop runs other tasks: about 2 ms of work."""
_ALIVE = frozenset({BrokerState.UNFENCED, BrokerState.CONTROLLED_SHUTDOWN})


def live_brokers(image: MetadataImage) -> list[BrokerRegistration]:
    """Return the brokers that serve requests, by id: neither fenced nor still starting."""
    return [
        image.brokers[key] for key in sorted(image.brokers) if image.brokers[key].state in _ALIVE
    ]


async def each_partition(
    image: MetadataImage,
) -> AsyncIterator[tuple[TopicImage, int, PartitionRegistration]]:
    """Yield every partition with its topic and number, by name; other tasks run in between."""
    seen = 0
    for name in sorted(image.topic_ids):
        topic = image.topics[image.topic_ids[name]]
        for number, partition in enumerate(topic.partitions):
            yield topic, number, partition
            seen += 1
            if seen % PARTITIONS_PER_TURN == 0:
                await asyncio.sleep(0)


async def find_topic(apis: BrokerApis, name: TopicName, partition: int = 0) -> TopicImage | None:
    """Return the topic, or None if the active controller does not know it either.

    A topic or partition that the image lacks is first requested from the active controller: another
    broker may already have answered that the topic was created or has grown. Without an answer that
    is LEADER_NOT_AVAILABLE (503).
    """
    topic = apis.image.topic(name)
    if topic is None or partition >= topic.partitions_count:
        await apis.catch_up_with_topic(name, partition)
        topic = apis.image.topic(name)
    return topic


async def topic_or_404(
    apis: BrokerApis,
    name: TopicName,
    code: RestCode,
    message: str | None = None,
    partition: int = 0,
) -> TopicImage:
    """Return the topic, or raise 404 with the code this endpoint is known for.

    ``partition``: the one that the caller looks for in it.
    """
    topic = await find_topic(apis, name, partition)
    if topic is None:
        raise RestError(404, code, message or topic_not_found(name))
    return topic


async def find_partition(
    apis: BrokerApis, name: TopicName, partition: PartitionId
) -> PartitionRegistration:
    """Return the partition, or raise 404: 40401 without the topic, 40402 without the partition."""
    topic = await find_topic(apis, name, partition)
    if topic is None:
        raise RestError(404, RestCode.TOPIC_NOT_FOUND, topic_not_found(name))
    return partition_or_404(topic, partition)


def partition_or_404(topic: TopicImage, partition: PartitionId) -> PartitionRegistration:
    """Return the partition, or raise 404 with code 40402."""
    if not 0 <= partition < len(topic.partitions):
        raise RestError(
            404, RestCode.PARTITION_NOT_FOUND, partition_not_found(topic.name, partition)
        )
    return topic.partitions[partition]


def topic_not_found(name: str) -> str:
    """Return the message for a missing topic."""
    return f"Topic {name} not found"


def partition_not_found(name: str, partition: int) -> str:
    """Return the message for a missing partition."""
    return f"Partition {partition} of topic {name} not found"


def unknown_topic_hint(context: ApiContext, name: str) -> str:
    """Return the message for a produce to an unknown topic, with the exact curl that creates it."""
    body = orjson.dumps({"topic_name": name}).decode()
    url = links_of_request(context).url("topics")
    return (
        f"{topic_not_found(name)}, and auto_create_topics_enable is false. Create it with: "
        f"curl -X POST -H 'Content-Type: application/json' -d '{body}' {url}"
    )
