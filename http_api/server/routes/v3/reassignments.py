"""``…/topics/{T|-}/partitions/{P|-}/reassignment``: the replicas a partition shall have (KIP-455).

Listing is Confluent's API; starting and cancelling are ours, on the same paths. Changes are
commands to the active controller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from http_api.contract import v3_admin
from http_api.contract.errors import RestCode, RestError
from http_api.contract.media_types import JSON
from http_api.server.bodies import MAX_ADMIN_BODY_BYTES, read_json_object
from http_api.server.body_fields import (
    broker_ids,
    check_fields,
    flag,
    needed_integer,
    rows,
    topic_in,
    wrong_kind,
)
from http_api.server.context import json_reply, reply
from http_api.server.parameters import partition_id, topic_name
from http_api.server.routes.v3.cluster_path import ClusterPath
from http_api.server.topics import each_partition, find_partition, topic_or_404
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import PartitionId, TopicIdPartition
from raft_metadata.records.commands import AlterReassignments, Reassignment

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiohttp import web

    from broker.server.requests import PartitionProgress
    from http_api.contract.v3 import JsonObject, Links
    from http_api.server.context import ApiContext
    from http_api.server.routing import Router
    from raft_metadata.common.ids import TopicName
    from raft_metadata.image.metadata_image import PartitionRegistration, TopicImage

ALL = "-"
ROWS_MAX = 1_000
"""Most changes of one request: they are one batch of the metadata log, all or none."""
_ROW = ("topic_name", "partition_id", "replicas")
_EXPECTED = '{"topic_name", "partition_id", "replicas"}'

Place = tuple["TopicImage", int, "PartitionRegistration"]


class ReassignmentRoutes:
    """Reassignments of the v3 API. Owner: the app; holds no state of its own."""

    def __init__(self, context: ApiContext) -> None:
        self._apis = context.apis
        self._body_bytes_max = min(context.limits.max_body_bytes, MAX_ADMIN_BODY_BYTES)
        self._path = ClusterPath(context)

    def add_to(self, router: Router) -> None:
        path = "/v3/clusters/{cluster}/topics/{topic}/partitions/{partition}/reassignment"
        router.add("GET", path, self.read, JSON)
        router.add("POST", path, self.start, JSON)
        router.add("DELETE", path, self.cancel, JSON)

    async def read(
        self, request: web.Request, cluster: str, topic: str, partition: str
    ) -> web.Response:
        """Answer the reassignments in progress, with the progress of each replica being added."""
        links = self._path.enter(request, cluster)
        found = await self._under_way(topic, partition)
        data = await self._resources(links, found)
        if partition != ALL:
            if not data:
                raise _not_under_way(topic, partition)
            return json_reply(data[0], JSON)
        path = ("topics", topic, "partitions", ALL, "reassignment")
        return json_reply(links.collection("KafkaReassignment", data, *path), JSON)

    async def start(
        self, request: web.Request, cluster: str, topic: str, partition: str
    ) -> web.Response:
        """Start reassignments; 202. ``validate_only``: 204, nothing is changed."""
        links = self._path.enter(request, cluster)
        changes, validate_only = await self._changes(request, topic, partition)
        await self._apis.admin(
            AlterReassignments(changes=tuple(changes), validate_only=validate_only)
        )
        if validate_only:
            return reply(b"", JSON, 204)
        image = self._apis.image
        found: list[Place] = []
        for change in changes:
            wanted = image.topic(change.topic)
            if wanted is not None and change.partition < len(wanted.partitions):
                found.append((wanted, change.partition, wanted.partitions[change.partition]))
        data = await self._resources(links, found)
        if partition != ALL and data:
            return json_reply(data[0], JSON, 202)
        path = ("topics", topic, "partitions", partition, "reassignment")
        return json_reply(links.collection("KafkaReassignment", data, *path), JSON, 202)

    async def cancel(
        self, request: web.Request, cluster: str, topic: str, partition: str
    ) -> web.Response:
        """Cancel reassignments; 204. Added replicas are removed, replicas to be removed stay.

        ``-`` cancels only those in progress; a single partition without one is a 404.
        """
        self._path.enter(request, cluster)
        found = await self._under_way(topic, partition)
        changes = [
            Reassignment(topic=image.name, partition=PartitionId(number), replicas=None)
            for image, number, _ in found
        ]
        if partition != ALL:
            if not changes or not await self._cancelled(changes):
                raise _not_under_way(topic, partition)
            return reply(b"", JSON, 204)
        for first in range(0, len(changes), ROWS_MAX):
            batch = changes[first : first + ROWS_MAX]
            if not await self._cancelled(batch):  # one of them has completed in the meantime
                for change in batch:
                    await self._cancelled([change])
        return reply(b"", JSON, 204)

    async def _cancelled(self, changes: list[Reassignment]) -> bool:
        """Cancel reassignments; False: one had already completed, so none was cancelled."""
        try:
            await self._apis.admin(AlterReassignments(changes=tuple(changes)))
        except KafkaError as error:
            if error.code is not ErrorCode.NO_REASSIGNMENT_IN_PROGRESS:
                raise
            return False
        return True

    async def _changes(
        self, request: web.Request, topic: str, partition: str
    ) -> tuple[list[Reassignment], bool]:
        fields = await read_json_object(request, self._body_bytes_max)
        if partition != ALL:
            name = _named_topic(topic)
            check_fields(fields, ("replicas", "validate_only"))
            replicas = broker_ids("replicas", fields.get("replicas"))
            number = partition_id(partition)
            await find_partition(self._apis, name, number)
            change = Reassignment(topic=name, partition=number, replicas=replicas)
            return [change], flag(fields, "validate_only")
        check_fields(fields, ("data", "validate_only"))
        changes = [_change(row, topic) for row in rows(fields, ROWS_MAX, _EXPECTED)]
        return changes, flag(fields, "validate_only")

    async def _under_way(self, topic: str, partition: str) -> list[Place]:
        """Return those partitions of a path that are being reassigned."""
        if topic == ALL:
            if partition != ALL:
                raise _one_topic()
            every = each_partition(self._apis.image)
            return [place async for place in every if place[2].is_reassigning]
        name = topic_name(topic)
        wanted = None if partition == ALL else partition_id(partition)
        if wanted is not None:
            await find_partition(self._apis, name, wanted)
        found = await topic_or_404(self._apis, name, RestCode.TOPIC_NOT_FOUND)
        return [
            (found, number, registration)
            for number, registration in enumerate(found.partitions)
            if registration.is_reassigning and wanted in {None, number}
        ]

    async def _resources(self, links: Links, found: Iterable[Place]) -> list[JsonObject]:
        places = [
            (place, TopicIdPartition(place[0].topic_id, PartitionId(place[1]))) for place in found
        ]
        wanted = [key for place, key in places if place[2].is_reassigning]
        progress = await self._apis.replication_progress(wanted)
        return [
            v3_admin.reassignment(links, _facts(place, progress.get(key))) for place, key in places
        ]


def _facts(place: Place, progress: PartitionProgress | None) -> v3_admin.ReassignmentFacts:
    topic, number, partition = place
    end = None if progress is None else progress.log_end_offset
    coming = []
    for replica in partition.adding:
        reached = None if progress is None else progress.follower_ends.get(replica)
        coming.append(
            v3_admin.AddingReplica(
                broker_id=replica,
                log_end_offset=reached,
                lag=None if reached is None or end is None else max(0, end - reached),
                is_in_sync=replica in partition.isr,
            )
        )
    return v3_admin.ReassignmentFacts(
        topic=topic.name,
        partition_id=number,
        replicas=partition.replicas,
        adding=partition.adding,
        removing=partition.removing,
        leader_end_offset=end,
        progress=coming,
    )


def _change(row: dict[str, Any], topic: str) -> Reassignment:
    """Return one row of a bulk request; ``replicas`` null cancels."""
    check_fields(row, _ROW, "data.")
    name = topic_in(row if topic == ALL else {"topic_name": topic} | row)
    if topic not in {ALL, name}:
        raise wrong_kind("data.topic_name", name, f"{topic}, as the path says")
    if "replicas" not in row:
        raise wrong_kind("data.replicas", None, "a list of broker ids, or null to cancel")
    replicas = row["replicas"]
    return Reassignment(
        topic=name,
        partition=PartitionId(needed_integer(row, "partition_id")),
        replicas=None if replicas is None else broker_ids("data.replicas", replicas),
    )


def _not_under_way(topic: str, partition: str) -> RestError:
    text = f"No reassignment of partition {partition} of topic {topic} is under way."
    return RestError(404, RestCode.NOT_FOUND, text)


def _named_topic(topic: str) -> TopicName:
    if topic == ALL:
        raise _one_topic()
    return topic_name(topic)


def _one_topic() -> RestError:
    text = "A partition is named without its topic: expected topics/T/partitions/P, or - for both."
    return RestError(400, RestCode.KAFKA_BAD_REQUEST, text)
