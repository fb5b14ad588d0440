"""Finding what a path names in the image, or saying with the right code that it is not there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import orjson

from http_api.contract.errors import RestCode, RestError
from raft_metadata.records.records import BrokerState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from broker.server.requests import BrokerApis
    from http_api.server.context import ApiContext
    from raft_metadata.common.ids import PartitionId, TopicName
    from raft_metadata.image.metadata_image import (
        BrokerRegistration,
        MetadataImage,
        PartitionRegistration,
        TopicImage,
    )

NOT_HOSTED = "This server does not host this topic-partition."
"""Confluent's text for 40403; clients compare whole bodies."""


PARTITIONS_PER_TURN = 2_000
"""Looked at before others get the loop: about 2 ms."""
_ALIVE = frozenset({BrokerState.UNFENCED, BrokerState.CONTROLLED_SHUTDOWN})


def live_brokers(image: MetadataImage) -> list[BrokerRegistration]:
    """Brokers that serve requests, by id: neither fenced nor still starting."""
    return [
        image.brokers[key] for key in sorted(image.brokers) if image.brokers[key].state in _ALIVE
    ]


async def each_partition(
    image: MetadataImage,
) -> AsyncIterator[tuple[TopicImage, int, PartitionRegistration]]:
    """Every partition with its topic and number, by name; the loop gets its turn in between."""
    seen = 0
    for name in sorted(image.topic_ids):
        topic = image.topics[image.topic_ids[name]]
        for number, partition in enumerate(topic.partitions):
            yield topic, number, partition
            seen += 1
            if seen % PARTITIONS_PER_TURN == 0:
                await asyncio.sleep(0)


async def find_topic(apis: BrokerApis, name: TopicName, partition: int = 0) -> TopicImage | None:
    """The topic; a broker that does not know it asks the active controller before it says so.

    Nor a partition of it: another broker may have answered already that the topic has grown.
    """
    topic = apis.image.topic(name)
    if topic is None or partition >= topic.partitions_count:
        await apis.catch_up_with_topic(name, partition)
        topic = apis.image.topic(name)
    return topic


async def topic_or_404(
    apis: BrokerApis, name: TopicName, code: RestCode, message: str | None = None
) -> TopicImage:
    """The topic, or 404 with the code this endpoint is known for."""
    topic = await find_topic(apis, name)
    if topic is None:
        raise RestError(404, code, message or topic_not_found(name))
    return topic


async def find_partition(
    apis: BrokerApis, name: TopicName, partition: PartitionId
) -> PartitionRegistration:
    """The partition, or 404: 40401 without the topic, 40402 without the partition of it."""
    topic = await find_topic(apis, name, partition)
    if topic is None:
        raise RestError(404, RestCode.TOPIC_NOT_FOUND, topic_not_found(name))
    return partition_or_404(topic, partition)


def partition_or_404(topic: TopicImage, partition: PartitionId) -> PartitionRegistration:
    """The partition, or 404/40402."""
    if not 0 <= partition < len(topic.partitions):
        raise RestError(
            404, RestCode.PARTITION_NOT_FOUND, partition_not_found(topic.name, partition)
        )
    return topic.partitions[partition]


def topic_not_found(name: str) -> str:
    """Why a topic's resource is not there."""
    return f"Topic {name} not found"


def partition_not_found(name: str, partition: int) -> str:
    """Why a partition's resource is not there."""
    return f"Partition {partition} of topic {name} not found"


def how_to_create(context: ApiContext, name: str) -> str:
    """What a produce to an unknown topic says: the exact curl that creates it."""
    body = orjson.dumps({"topic_name": name}).decode()
    url = f"{context.advertised_url}/v3/clusters/{context.apis.cluster_id}/topics"
    return (
        f"{topic_not_found(name)}, and auto_create_topics_enable is false. Create it with: "
        f"curl -X POST -H 'Content-Type: application/json' -d '{body}' {url}"
    )
