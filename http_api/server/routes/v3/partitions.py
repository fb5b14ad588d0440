"""``…/topics/T/partitions``: partitions, their replicas and offsets, elections, reassignments.

``…/leader:elect`` elects leaders on an operator's request (KIP-460); ``…/reassignment`` lists,
starts and cancels changes of the replicas (KIP-455; listing is Confluent's API, starting and
cancelling are ours, on the same paths). Reads come from this broker's metadata image, offsets and
progress from the leader; changes are commands to the active controller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from http_api.contract import v3
from http_api.contract.errors import REST_STATUS, RestCode, RestError
from http_api.contract.media_types import JSON
from http_api.contract.operations import partition_operations as declared
from http_api.contract.operations.declaration import fields_of
from http_api.contract.resources import AddingReplica, PartitionInfo, ReassignmentInfo
from http_api.server.answers import json_reply, reply
from http_api.server.image_lookup import each_partition, find_partition, topic_or_404
from http_api.server.pages import page_of
from http_api.server.query_parameters import seen_epoch
from http_api.server.request_parsing import (
    broker_id,
    broker_ids,
    check_fields,
    flag,
    needed_integer,
    partition_id,
    read_json_object,
    read_optional_json_object,
    rows,
    topic_in,
    topic_name,
    word,
    wrong_kind,
)
from http_api.server.routes.v3.clusters import ALL, V3Routes
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import NO_LEADER, PartitionId, TopicIdPartition
from raft_metadata.records.commands import (
    AlterReassignments,
    Election,
    ElectionResult,
    ElectLeaders,
    PartitionPlace,
    Reassignment,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiohttp import web

    from broker.server.requests import PartitionProgress
    from http_api.contract.v3 import JsonObject
    from http_api.server.routing import PathRouter
    from raft_metadata.common.ids import TopicName
    from raft_metadata.image.metadata_image import PartitionRegistration, TopicImage


ELECTIONS = tuple(election.value for election in Election)


class PartitionRoutes(V3Routes):
    """Partitions of the v3 API, and elections of their leaders."""

    def add_to(self, router: PathRouter) -> None:
        self._serve(router, declared.LIST, self.list_partitions)
        self._serve(router, declared.DESCRIBE, self.describe)
        self._serve(router, declared.OFFSET, self.offset)
        self._serve(router, declared.DELETE_RECORDS, self.delete_records)
        self._serve(router, declared.ELECT, self.elect)
        self._serve(router, declared.LIST_REPLICAS, self.list_replicas)
        self._serve(router, declared.REPLICA, self.replica)

    async def list_partitions(self, request: web.Request, topic: str) -> v3.JsonObject:
        """Answer all partitions of a topic."""
        name = topic_name(topic)
        found = await topic_or_404(self._apis, name, RestCode.TOPIC_NOT_FOUND)
        return self._page(
            request,
            "KafkaPartition",
            enumerate(found.partitions),
            key=lambda place: (place[0],),
            shape=lambda place: v3.partition(self._links, partition_info(name, *place)),
            path=("topics", name, "partitions"),
        )

    async def describe(self, request: web.Request, topic: str, partition: str) -> v3.JsonObject:
        """Answer one partition."""
        _, info = await self._find(topic, partition)
        return v3.partition(self._links, info)

    async def list_replicas(
        self, request: web.Request, topic: str, partition: str
    ) -> v3.JsonObject:
        """Answer all replicas of a partition, by the ids of their brokers."""
        name, info = await self._find(topic, partition)
        return self._page(
            request,
            "KafkaReplica",
            info.replicas,
            key=lambda broker: (broker,),
            shape=lambda broker: v3.replica(self._links, info, broker),
            path=("topics", name, "partitions", info.partition, "replicas"),
        )

    async def replica(
        self, request: web.Request, topic: str, partition: str, broker: str
    ) -> v3.JsonObject:
        """Answer one replica."""
        name, info = await self._find(topic, partition)
        wanted = broker_id(broker)
        if wanted not in info.replicas:
            text = f"Replica {wanted} of partition {info.partition} of topic {name} not found"
            raise RestError(404, RestCode.NOT_FOUND, text)
        return v3.replica(self._links, info, wanted)

    async def offset(self, request: web.Request, topic: str, partition: str) -> v3.JsonObject:
        """Answer the beginning and end offset of a partition, from its leader."""
        declared.OFFSET_TYPE.read_optional(request.query)
        name, info = await self._find(topic, partition)
        ends = await self._apis.offsets(name, partition_id(partition), seen_epoch(request.query))
        return v3.partition_offsets(
            self._links, name, info.partition, ends.beginning_offset, ends.end_offset
        )

    async def delete_records(
        self, request: web.Request, topic: str, partition: str
    ) -> v3.JsonObject:
        """Delete the records below an offset; -1: all records below the high watermark."""
        fields = await read_json_object(request, self._body_bytes_max, '{"before_offset":…}')
        check_fields(fields, fields_of(declared.DELETE_RECORDS))
        before = fields.get("before_offset")
        if not isinstance(before, int) or isinstance(before, bool) or before < -1:
            raise wrong_kind("before_offset", before, "an offset, or -1 for the high watermark")
        name, info = await self._find(topic, partition)
        start = await self._apis.delete_records(name, partition_id(partition), before)
        return v3.log_start(self._links, name, info.partition, start)

    async def elect(self, request: web.Request, topic: str, partition: str) -> v3.JsonObject:
        """Elect leaders. One partition: answer it, or an error. Several: a row each, always 200."""
        fields = await read_optional_json_object(
            request, self._body_bytes_max, '{"election":"preferred"}'
        )
        check_fields(fields, fields_of(declared.ELECT))
        election = Election(word(fields, "election", ELECTIONS, Election.PREFERRED.value))
        if partition != ALL:
            return await self._one(topic, partition, election)
        places: tuple[PartitionPlace, ...] | None = None
        if topic != ALL:
            name = topic_name(topic)
            found = await topic_or_404(self._apis, name, RestCode.TOPIC_NOT_FOUND)
            numbers = range(len(found.partitions))
            places = tuple(PartitionPlace(topic=name, partition=PartitionId(n)) for n in numbers)
        elected = await self._apis.admin(ElectLeaders(election=election, partitions=places))
        data = [_election_row(self._links, result) for result in elected.results]
        path = ("topics", topic, "partitions", ALL, "leader:elect")
        return self._links.collection("KafkaLeaderElection", data, *path)

    async def _one(self, topic: str, partition: str, election: Election) -> v3.JsonObject:
        if topic == ALL:
            text = "A partition is named without its topic: expected topics/T/partitions/P."
            raise RestError(400, RestCode.KAFKA_BAD_REQUEST, text)
        name, number = topic_name(topic), partition_id(partition)
        await find_partition(self._apis, name, number)
        place = PartitionPlace(topic=name, partition=number)
        elected = await self._apis.admin(ElectLeaders(election=election, partitions=(place,)))
        for result in elected.results:
            if result.error is not None:
                raise KafkaError(ErrorCode.from_number(result.error), result.message)
        info = partition_info(name, number, await find_partition(self._apis, name, number))
        return v3.partition(self._links, info)

    async def _find(self, topic: str, partition: str) -> tuple[TopicName, PartitionInfo]:
        name, number = topic_name(topic), partition_id(partition)
        return name, partition_info(name, number, await find_partition(self._apis, name, number))


def partition_info(
    topic: TopicName, number: int, partition: PartitionRegistration
) -> PartitionInfo:
    """Return a partition's registration in the image as the contract renders it."""
    last_known = partition.last_known_leader
    return PartitionInfo(
        topic=topic,
        partition=number,
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


def _election_row(links: v3.Links, result: ElectionResult) -> v3.JsonObject:
    failure = None
    if result.error is not None:
        code = ErrorCode.from_number(result.error)
        failure = int(REST_STATUS[code].code), result.message or code.message
    leader = None if result.leader == NO_LEADER else result.leader
    return v3.election(links, result.topic, result.partition, leader, failure)


ROWS_MAX = 1_000
"""Most changes of one request: they are one batch of the metadata log, all or none."""
_EXPECTED = '{"topic_name", "partition_id", "replicas"}'

LocatedPartition = tuple["TopicImage", int, "PartitionRegistration"]


class ReassignmentRoutes(V3Routes):
    """Reassignments of the v3 API."""

    def add_to(self, router: PathRouter) -> None:
        self._serve(router, declared.REASSIGNMENT, self.read)
        self._serve(router, declared.REASSIGN, self.start)
        self._serve(router, declared.CANCEL, self.cancel)

    async def read(self, request: web.Request, topic: str, partition: str) -> v3.JsonObject:
        """Answer the reassignments in progress, with the progress of each replica being added."""
        found = await self._in_progress(topic, partition)
        if partition != ALL:
            data = await self._resources(found)
            if not data:
                raise _not_in_progress(topic, partition)
            return data[0]
        path = ("topics", topic, "partitions", ALL, "reassignment")
        url = self._links.url(*path)
        page = page_of(request.query, url, found, lambda place: (place[0].name, place[1]))
        data = await self._resources(page.items)
        return self._links.collection("KafkaReassignment", data, *path, next_url=page.next_url)

    async def start(self, request: web.Request, topic: str, partition: str) -> web.Response:
        """Start reassignments; 202. ``validate_only``: 204, nothing is changed."""
        changes, validate_only = await self._changes(request, topic, partition)
        await self._apis.admin(
            AlterReassignments(changes=tuple(changes), validate_only=validate_only)
        )
        if validate_only:
            return reply(b"", JSON, 204)
        image = self._apis.image
        found: list[LocatedPartition] = []
        for change in changes:
            wanted = image.topic(change.topic)
            if wanted is not None and change.partition < len(wanted.partitions):
                found.append((wanted, change.partition, wanted.partitions[change.partition]))
        data = await self._resources(found)
        if partition != ALL and data:
            return json_reply(data[0], JSON, 202)
        path = ("topics", topic, "partitions", partition, "reassignment")
        return json_reply(self._links.collection("KafkaReassignment", data, *path), JSON, 202)

    async def cancel(self, request: web.Request, topic: str, partition: str) -> web.Response:
        """Cancel reassignments; 204. Added replicas are removed, replicas to be removed stay.

        ``-`` cancels only those in progress; a single partition without one is a 404.
        """
        found = await self._in_progress(topic, partition)
        changes = [
            Reassignment(topic=image.name, partition=PartitionId(number), replicas=None)
            for image, number, _ in found
        ]
        if partition != ALL:
            if not changes or not await self._cancelled(changes):
                raise _not_in_progress(topic, partition)
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
        shape = '{"replicas":[1,2,3]}' if partition != ALL else f'{{"data":[{_EXPECTED}]}}'
        fields = await read_json_object(request, self._body_bytes_max, shape)
        if partition != ALL:
            name = _named_topic(topic)
            check_fields(fields, declared.REASSIGN_FIELDS)
            replicas = broker_ids("replicas", fields.get("replicas"))
            number = partition_id(partition)
            await find_partition(self._apis, name, number)
            change = Reassignment(topic=name, partition=number, replicas=replicas)
            return [change], flag(fields, "validate_only")
        check_fields(fields, declared.REASSIGN_ALL_FIELDS)
        changes = [_change(row, topic) for row in rows(fields, ROWS_MAX, _EXPECTED)]
        return changes, flag(fields, "validate_only")

    async def _in_progress(self, topic: str, partition: str) -> list[LocatedPartition]:
        """Return those partitions of a path that are being reassigned."""
        if topic == ALL:
            if partition != ALL:
                raise _topic_required()
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

    async def _resources(self, found: Iterable[LocatedPartition]) -> list[JsonObject]:
        places = [
            (place, TopicIdPartition(place[0].topic_id, PartitionId(place[1]))) for place in found
        ]
        wanted = [key for place, key in places if place[2].is_reassigning]
        progress = await self._apis.replication_progress(wanted)
        return [
            v3.reassignment(self._links, _reassignment_info(place, progress.get(key)))
            for place, key in places
        ]


def _reassignment_info(
    place: LocatedPartition, progress: PartitionProgress | None
) -> ReassignmentInfo:
    topic, number, partition = place
    end = None if progress is None else progress.log_end_offset
    coming = []
    for replica in partition.adding:
        reached = None if progress is None else progress.follower_ends.get(replica)
        coming.append(
            AddingReplica(
                broker_id=replica,
                log_end_offset=reached,
                lag=None if reached is None or end is None else max(0, end - reached),
                is_in_sync=replica in partition.isr,
            )
        )
    return ReassignmentInfo(
        topic=topic.name,
        partition=number,
        replicas=partition.replicas,
        adding=partition.adding,
        removing=partition.removing,
        leader_end_offset=end,
        progress=tuple(coming),
    )


def _change(row: dict[str, Any], topic: str) -> Reassignment:
    """Return one row of a bulk request; ``replicas`` null cancels."""
    check_fields(row, declared.REASSIGN_ROW, "data.")
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


def _not_in_progress(topic: str, partition: str) -> RestError:
    text = f"No reassignment of partition {partition} of topic {topic} is under way."
    return RestError(404, RestCode.NOT_FOUND, text)


def _named_topic(topic: str) -> TopicName:
    if topic == ALL:
        raise _topic_required()
    return topic_name(topic)


def _topic_required() -> RestError:
    text = "A partition is named without its topic: expected topics/T/partitions/P, or - for both."
    return RestError(400, RestCode.KAFKA_BAD_REQUEST, text)
