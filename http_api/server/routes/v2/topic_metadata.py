"""``GET /topics…``, ``GET /brokers``: metadata from the image, offsets from the leader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiohttp import web

from http_api.contract import v2
from http_api.contract.errors import RestCode
from http_api.contract.media_types import V2, V2_REPLIES
from http_api.contract.operations import fetch_operations as declared
from http_api.server.answers import json_reply
from http_api.server.image_lookup import NOT_HOSTED, live_brokers, partition_or_404, topic_or_404
from http_api.server.query_parameters import seen_epoch
from http_api.server.request_parsing import check_accept, partition_id, topic_name
from raft_metadata.common.internal_topics import INTERNAL_TOPICS

if TYPE_CHECKING:
    from http_api.server.answers import ApiContext
    from http_api.server.routing import PathRouter
    from raft_metadata.image.metadata_image import TopicImage


class MetadataRoutes:
    """Metadata of the v2 API. Owner: the app; holds no state of its own."""

    def __init__(self, context: ApiContext) -> None:
        self._apis = context.apis

    def add_to(self, router: PathRouter) -> None:
        router.serve(declared.BROKERS, self.brokers)
        router.serve(declared.TOPICS, self.topics)
        router.serve(declared.DESCRIBE_TOPIC, self.topic)
        router.serve(declared.PARTITIONS, self.partitions)
        router.serve(declared.DESCRIBE_PARTITION, self.partition)
        router.serve(declared.OFFSETS, self.offsets)

    async def brokers(self, request: web.Request) -> web.Response:
        """Answer the ids of the live brokers."""
        return _reply(request, v2.brokers(b.broker_id for b in live_brokers(self._apis.image)))

    async def topics(self, request: web.Request) -> web.Response:
        """Answer the topics' names, without internal topics."""
        names = sorted(set(self._apis.image.topic_ids) - INTERNAL_TOPICS)
        return _reply(request, names)

    async def topic(self, request: web.Request, topic: str) -> web.Response:
        """Answer one topic with its effective configs; an unknown one is 40403 only on this path.

        Every other path answers 40401.
        """
        found = await topic_or_404(
            self._apis, topic_name(topic), RestCode.UNKNOWN_TOPIC_OR_PARTITION, NOT_HOSTED
        )
        configs = self._apis.topic_defaults() | dict(self._apis.image.topic_configs(found.topic_id))
        return _reply(request, v2.topic(found.name, configs, _partitions(found)))

    async def partitions(self, request: web.Request, topic: str) -> web.Response:
        """Answer all partitions of a topic."""
        found = await topic_or_404(self._apis, topic_name(topic), RestCode.TOPIC_NOT_FOUND)
        return _reply(request, _partitions(found))

    async def partition(self, request: web.Request, topic: str, partition: str) -> web.Response:
        """Answer one partition."""
        name, number = topic_name(topic), partition_id(partition)
        found = await topic_or_404(self._apis, name, RestCode.TOPIC_NOT_FOUND, partition=number)
        partition_or_404(found, number)
        return _reply(request, _partitions(found)[number])

    async def offsets(self, request: web.Request, topic: str, partition: str) -> web.Response:
        """Answer the beginning and end offset of a partition, from its leader."""
        name, number = topic_name(topic), partition_id(partition)
        found = await topic_or_404(self._apis, name, RestCode.TOPIC_NOT_FOUND, partition=number)
        partition_or_404(found, number)
        ends = await self._apis.offsets(name, number, seen_epoch(request.query))
        return _reply(request, v2.offsets(ends.beginning_offset, ends.end_offset))


def _partitions(topic: TopicImage) -> list[v2.JsonObject]:
    return [
        v2.partition(number, partition.leader, partition.replicas, partition.isr)
        for number, partition in enumerate(topic.partitions)
    ]


def _reply(request: web.Request, value: Any) -> web.Response:
    check_accept(request, V2_REPLIES)
    return json_reply(value, V2)
