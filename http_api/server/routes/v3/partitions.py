"""``…/topics/T/partitions``: partitions, their replicas and their offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from http_api.contract import v3
from http_api.contract.errors import RestCode, RestError
from http_api.contract.media_types import JSON
from http_api.server.bodies import MAX_ADMIN_BODY_BYTES, read_json_object
from http_api.server.body_fields import check_fields, wrong_kind
from http_api.server.context import json_reply
from http_api.server.parameters import bad_parameter, broker_id, partition_id, topic_name
from http_api.server.routes.v3.cluster_path import ClusterPath
from http_api.server.topics import find_partition, topic_or_404
from raft_metadata.common.ids import NO_LEADER

if TYPE_CHECKING:
    from aiohttp import web

    from http_api.server.context import ApiContext
    from http_api.server.routing import Router
    from raft_metadata.common.ids import TopicName
    from raft_metadata.image.metadata_image import PartitionRegistration

OFFSET_TYPES = (None, "earliest", "latest", "earliest_offset", "latest_offset")
"""Accepted values of ``offset_type``. The answer has both ends whichever of them is given."""


class PartitionRoutes:
    """Partitions of the v3 API. Owner: the app; holds no state of its own."""

    def __init__(self, context: ApiContext) -> None:
        self._apis = context.apis
        self._path = ClusterPath(context)
        self._body_bytes_max = min(context.limits.max_body_bytes, MAX_ADMIN_BODY_BYTES)

    def add_to(self, router: Router) -> None:
        partitions = "/v3/clusters/{cluster}/topics/{topic}/partitions"
        router.add("GET", partitions, self.list_partitions, JSON)
        router.add("GET", partitions + "/{partition}", self.describe, JSON)
        router.add("GET", partitions + "/{partition}/offset", self.offset, JSON)
        router.add("POST", partitions + "/{partition}:delete-records", self.delete_records, JSON)
        router.add("GET", partitions + "/{partition}/replicas", self.list_replicas, JSON)
        router.add("GET", partitions + "/{partition}/replicas/{broker}", self.replica, JSON)

    async def list_partitions(self, request: web.Request, cluster: str, topic: str) -> web.Response:
        """Answer all partitions of a topic."""
        links = self._path.enter(request, cluster)
        name = topic_name(topic)
        found = await topic_or_404(self._apis, name, RestCode.TOPIC_NOT_FOUND)
        data = [
            v3.partition(links, name, partition_facts(number, registration))
            for number, registration in enumerate(found.partitions)
        ]
        path = ("topics", name, "partitions")
        return json_reply(links.collection("KafkaPartition", data, *path), JSON)

    async def describe(
        self, request: web.Request, cluster: str, topic: str, partition: str
    ) -> web.Response:
        """Answer one partition."""
        links = self._path.enter(request, cluster)
        name, facts = await self._find(topic, partition)
        return json_reply(v3.partition(links, name, facts), JSON)

    async def list_replicas(
        self, request: web.Request, cluster: str, topic: str, partition: str
    ) -> web.Response:
        """Answer all replicas of a partition, the preferred leader first."""
        links = self._path.enter(request, cluster)
        name, facts = await self._find(topic, partition)
        data = [v3.replica(links, name, facts, broker) for broker in facts.replicas]
        path = ("topics", name, "partitions", facts.partition_id, "replicas")
        return json_reply(links.collection("KafkaReplica", data, *path), JSON)

    async def replica(
        self, request: web.Request, cluster: str, topic: str, partition: str, broker: str
    ) -> web.Response:
        """Answer one replica."""
        links = self._path.enter(request, cluster)
        name, facts = await self._find(topic, partition)
        wanted = broker_id(broker)
        if wanted not in facts.replicas:
            text = f"Replica {wanted} of partition {facts.partition_id} of topic {name} not found"
            raise RestError(404, RestCode.NOT_FOUND, text)
        return json_reply(v3.replica(links, name, facts, wanted), JSON)

    async def offset(
        self, request: web.Request, cluster: str, topic: str, partition: str
    ) -> web.Response:
        """Answer the beginning and end offset of a partition, from its leader."""
        links = self._path.enter(request, cluster)
        offset_type = request.query.get("offset_type")
        if offset_type not in OFFSET_TYPES:
            raise bad_parameter("offset_type", offset_type, "earliest or latest")
        name, facts = await self._find(topic, partition)
        ends = await self._apis.offsets(name, partition_id(partition))
        return json_reply(
            v3.partition_offsets(
                links, name, facts.partition_id, ends.beginning_offset, ends.end_offset
            ),
            JSON,
        )

    async def delete_records(
        self, request: web.Request, cluster: str, topic: str, partition: str
    ) -> web.Response:
        """Delete the records below an offset; -1: all records below the high watermark."""
        links = self._path.enter(request, cluster)
        fields = await read_json_object(request, self._body_bytes_max)
        check_fields(fields, ("before_offset",))
        before = fields.get("before_offset")
        if not isinstance(before, int) or isinstance(before, bool) or before < -1:
            raise wrong_kind("before_offset", before, "an offset, or -1 for the high watermark")
        name, facts = await self._find(topic, partition)
        start = await self._apis.delete_records(name, partition_id(partition), before)
        return json_reply(v3.log_start(links, name, facts.partition_id, start), JSON)

    async def _find(self, topic: str, partition: str) -> tuple[TopicName, v3.PartitionFacts]:
        name, number = topic_name(topic), partition_id(partition)
        return name, partition_facts(number, await find_partition(self._apis, name, number))


def partition_facts(number: int, partition: PartitionRegistration) -> v3.PartitionFacts:
    """Return a partition's registration in the image as the facts that the contract renders."""
    last_known = partition.last_known_leader
    return v3.PartitionFacts(
        partition_id=number,
        leader=partition.leader if partition.has_leader else None,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        replicas=partition.replicas,
        isr=partition.isr,
        elr=partition.elr,
        adding=partition.adding,
        removing=partition.removing,
        last_known_leader=None if last_known == NO_LEADER else last_known,
    )
