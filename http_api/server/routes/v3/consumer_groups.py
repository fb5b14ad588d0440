"""``/v3/clusters/C/consumer-groups…``: groups, their consumers, assignments, lags and offsets.

Each handler sends one or two group requests to the coordinator and renders the answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

from broker.coordinator.group_messages import (
    CommitGroup,
    DeleteGroup,
    DeleteOffsets,
    DescribeGroup,
    GroupDescription,
    GroupOffset,
    GroupOffsets,
    MemberDescription,
)
from broker.server.requests import UNKNOWN_EPOCH
from http_api.contract import group_shapes as shapes
from http_api.contract.errors import RestCode, RestError, excerpt
from http_api.contract.group_resources import (
    CommittedOffset,
    GroupBlock,
    GroupInfo,
    GroupMember,
    MovedPosition,
)
from http_api.contract.media_types import JSON
from http_api.contract.operations import group_operations as declared
from http_api.contract.operations.declaration import fields_of
from http_api.contract.v2 import check_name
from http_api.server.answers import reply
from http_api.server.image_lookup import NOT_HOSTED
from http_api.server.request_parsing import (
    INT32_MAX,
    OFFSET_MAX,
    partition_id,
    read_json_object,
    topic_name,
)
from http_api.server.routes.v3.clusters import V3Routes
from http_api.server.routes.v3.group_members import coordinator_headers
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import GroupId, InstanceId, PartitionId, TopicName, TopicPartition
from raft_metadata.image.facts import iso_time

if TYPE_CHECKING:
    from aiohttp import web

    from broker.coordinator.group_messages import GroupOffsetRow
    from http_api.contract.v3 import Links
    from http_api.server.routing import PathRouter

KIND = "KafkaConsumerGroup"
MAX_OFFSETS = 10_000
"""Most rows of one PATCH: as many as a topic may have partitions."""
MAX_BODY_BYTES = 4_194_304
"""Largest body: `MAX_OFFSETS` rows with the longest names. Decoding more would block the loop."""
_OFFSETS = '{"data":[{"topic_name":…,"partition_id":…,"offset":…}]}'
_BODY = fields_of(declared.COMMIT)


class ConsumerGroupRoutes(V3Routes):
    """Consumer groups of the v3 API."""

    def add_to(self, router: PathRouter) -> None:
        for operation, handler in (
            (declared.LIST, self.list_groups),
            (declared.DESCRIBE, self.describe),
            (declared.LIST_CONSUMERS, self.consumers),
            (declared.CONSUMER, self.consumer),
            (declared.LIST_ASSIGNMENTS, self.assignments),
            (declared.ASSIGNMENT, self.assignment),
            (declared.LIST_LAGS, self.lags),
            (declared.LAG, self.lag),
            (declared.LAG_SUMMARY, self.lag_summary),
            (declared.LIST_OFFSETS, self.offsets),
            (declared.COMMIT, self.commit),
            (declared.DELETE, self.delete),
            (declared.DELETE_OFFSETS, self.delete_offsets),
            (declared.DELETE_TOPIC_OFFSETS, self.delete_offsets),
            (declared.DELETE_OFFSET, self.delete_offsets),
        ):
            self._serve(router, operation, handler)

    # groups and their consumers

    async def list_groups(self, request: web.Request) -> shapes.JsonObject:
        """Answer all groups, of every coordinator."""
        return self._page(
            request,
            KIND,
            await self._apis.list_groups(),
            key=lambda found: (found.group,),
            shape=lambda found: _group(self._links, found),
            path=(shapes.GROUPS,),
        )

    async def describe(self, request: web.Request, group: str) -> shapes.JsonObject:
        """Answer one group; ``coordinator`` names the broker that serves it at the moment."""
        return _group(self._links, await self._describe(parse_group_id(group)))

    async def consumers(self, request: web.Request, group: str) -> shapes.JsonObject:
        """Answer the live instances of a group."""
        found = await self._describe(parse_group_id(group))
        return self._page(
            request,
            "KafkaConsumer",
            found.members,
            key=lambda member: (member.instance,),
            shape=lambda member: _consumer(self._links, found.group, member),
            path=(shapes.GROUPS, found.group, "consumers"),
        )

    async def consumer(self, request: web.Request, group: str, consumer: str) -> shapes.JsonObject:
        """Answer one live instance."""
        found, member = await self._member(group, consumer)
        return _consumer(self._links, found.group, member)

    async def assignments(
        self, request: web.Request, group: str, consumer: str
    ) -> shapes.JsonObject:
        """Answer the partitions that an instance owns."""
        found, member = await self._member(group, consumer)
        return self._page(
            request,
            "KafkaConsumerAssignment",
            member.assignment,
            key=lambda place: (place.topic, place.partition),
            shape=lambda place: shapes.assignment(
                self._links, found.group, member.instance, *place
            ),
            path=(shapes.GROUPS, found.group, "consumers", member.instance, "assignments"),
        )

    async def assignment(
        self,
        request: web.Request,
        group: str,
        consumer: str,
        topic: str,
        partition: str,
    ) -> shapes.JsonObject:
        """Answer one partition that an instance owns."""
        place = (topic_name(topic), partition_id(partition))
        found, member = await self._member(group, consumer)
        if place not in member.assignment:
            text = f"Consumer {member.instance} does not own partition {place[1]} of {place[0]}."
            raise RestError(404, RestCode.NOT_FOUND, text)
        return shapes.assignment(self._links, found.group, member.instance, *place)

    # lags and offsets

    async def lags(self, request: web.Request, group: str) -> shapes.JsonObject:
        """Answer the lag of every partition that the group committed or reads."""
        group_id = parse_group_id(group)
        return self._page(
            request,
            "KafkaConsumerLag",
            await self._owned_lags(group_id),
            key=lambda row: (row.committed.topic, row.committed.partition),
            shape=lambda row: shapes.lag(self._links, group_id, row),
            path=(shapes.GROUPS, group_id, "lags"),
        )

    async def lag(
        self, request: web.Request, group: str, topic: str, partition: str
    ) -> shapes.JsonObject:
        """Answer the lag of one partition."""
        group_id, place = parse_group_id(group), (topic_name(topic), partition_id(partition))
        for row in await self._owned_lags(group_id):
            if (row.committed.topic, row.committed.partition) == place:
                return shapes.lag(self._links, group_id, row)
        raise RestError(404, RestCode.UNKNOWN_TOPIC_OR_PARTITION, NOT_HOSTED)

    async def lag_summary(self, request: web.Request, group: str) -> shapes.JsonObject:
        """Answer the group's largest lag, and the sum of its lags."""
        group_id = parse_group_id(group)
        rows = await self._owned_lags(group_id)
        return shapes.lag_summary(self._links, group_id, rows)

    async def offsets(self, request: web.Request, group: str) -> shapes.JsonObject:
        """Answer all committed offsets of the group; an empty list if there are none."""
        group_id = parse_group_id(group)
        found = await self._apis.group(GroupOffsets(group=group_id))
        return self._page(
            request,
            "KafkaConsumerGroupOffset",
            found,
            key=lambda row: (row.topic, row.partition),
            shape=lambda row: shapes.offset(_committed(row)),
            path=(shapes.GROUPS, group_id, "offsets"),
        )

    async def commit(self, request: web.Request, group: str) -> web.Response:
        """Commit offsets without an instance; ``offset`` is the next one to read."""
        group_id = parse_group_id(group)
        limit = min(self._limits.max_body_bytes, MAX_BODY_BYTES)
        fields = await read_json_object(request, limit, _OFFSETS)
        await self._apis.group(commit_of(group_id, fields))
        return reply(b"", JSON, 204, coordinator_headers(self._apis, group_id))

    # removal

    async def delete(self, request: web.Request, group: str) -> web.Response:
        """Delete a group without live members, with all its offsets."""
        return await self._remove(DeleteGroup(group=parse_group_id(group)))

    async def delete_offsets(
        self, request: web.Request, group: str, topic: str = "", partition: str = ""
    ) -> web.Response:
        """Delete offsets of a partition, of a topic, or of the whole group."""
        number = partition_id(partition) if partition else None
        if number is not None and number < 0:
            raise RestError(404, RestCode.UNKNOWN_TOPIC_OR_PARTITION, NOT_HOSTED)
        wanted = DeleteOffsets(
            group=parse_group_id(group),
            topic=topic_name(topic) if topic else None,
            partition=number,
        )
        return await self._remove(wanted)

    async def _remove(self, request: DeleteGroup | DeleteOffsets) -> web.Response:
        try:
            await self._apis.group(request)
        except KafkaError as error:
            if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
                raise
            raise no_such_group(request.group) from None
        return reply(b"", JSON, 204)

    # requests to the coordinator

    async def _describe(self, group_id: GroupId) -> GroupDescription:
        try:
            return await self._apis.group(DescribeGroup(group=group_id))
        except KafkaError as error:
            if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
                raise
            raise no_such_group(group_id) from None

    async def _member(
        self, group: str, consumer: str
    ) -> tuple[GroupDescription, MemberDescription]:
        group_id, instance = parse_group_id(group), check_name("instance_name", consumer)
        found = await self._describe(group_id)
        for member in found.members:
            if member.instance == instance:
                return found, member
        text = f"Consumer {instance} cannot be found in group {group_id}."
        raise RestError(404, RestCode.NOT_FOUND, text)

    async def _owned_lags(self, group_id: GroupId) -> list[shapes.ConsumerLag]:
        """Return committed offset, log end and owner of each partition; 404 for no such group."""
        found = await self._describe(group_id)
        offsets = await self._apis.group(GroupOffsets(group=group_id, with_starts=True))
        owners = {place: member for member in found.members for place in member.assignment}
        return [_lag(row, owners.get(TopicPartition(row.topic, row.partition))) for row in offsets]


def no_such_group(group_id: GroupId) -> RestError:
    """Return the 404 for a group that does not exist."""
    text = f"Consumer group {group_id} cannot be found."
    return RestError(404, RestCode.GROUP_NOT_FOUND, text)


def parse_group_id(raw: str) -> GroupId:
    """Return the group that a path names; 400 for an invalid name."""
    return GroupId(check_name("group_name", raw))


def _group(links: Links, found: GroupDescription) -> shapes.JsonObject:
    info = GroupInfo(
        group=found.group,
        state=found.state.value.upper(),
        assignor=found.assignor,
        coordinator=found.coordinator,
        is_simple=not any(member.member_epoch >= 0 for member in found.members),
        blocked=tuple(
            GroupBlock(
                topic=one.topic,
                partition=one.partition,
                offset=one.offset,
                member_id=one.instance,
                message=one.message,
                since=iso_time(one.since_ms),
            )
            for one in found.blocked
        ),
        moved=tuple(
            MovedPosition(
                topic=move.topic,
                partition=move.partition,
                consumer=move.instance,
                from_offset=move.from_offset,
                to_offset=move.to_offset,
                cause=move.cause,
                time_ms=move.time_ms,
            )
            for move in found.moved
        ),
    )
    return shapes.group(links, info, found.group_epoch)


def _consumer(links: Links, group_id: GroupId, found: MemberDescription) -> shapes.JsonObject:
    member = GroupMember(
        member_id=found.instance,
        client_id=found.client_id,
        member_epoch=found.member_epoch,
        static_id=found.static_id,
    )
    return shapes.consumer(links, group_id, member, is_manual=found.is_manual)


def _committed(row: GroupOffsetRow) -> CommittedOffset:
    return CommittedOffset(
        topic=row.topic,
        partition=row.partition,
        offset=row.offset,
        metadata=row.metadata,
        lag=row.lag,
        is_committed=row.is_committed,
        leader_epoch=None if row.leader_epoch == UNKNOWN_EPOCH else row.leader_epoch,
        blocked_offset=row.blocked_offset,
    )


def _lag(row: GroupOffsetRow, owner: MemberDescription | None) -> shapes.ConsumerLag:
    return shapes.ConsumerLag(
        committed=_committed(row),
        end_offset=row.end_offset,
        consumer=owner.instance if owner is not None else "",
        client_id=owner.client_id if owner is not None else "",
    )


def commit_of(group_id: GroupId, fields: dict[str, Any]) -> CommitGroup:
    """Return the commit that a PATCH body requests; the coordinator decides if it is allowed."""
    unknown = sorted(fields.keys() - set(_BODY))
    if unknown:
        raise _bad_request(f"unknown field '{excerpt(unknown[0])}': expected {', '.join(_BODY)}")
    rows = fields.get("data")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise _bad_request("'data': expected a list of objects")
    if len(rows) > MAX_OFFSETS:
        text = f"the body holds {len(rows)} offsets, at most {MAX_OFFSETS} are taken"
        raise RestError(413, RestCode.TOO_LARGE, text)
    member_id, member_epoch = fields.get("member_id"), fields.get("member_epoch")
    if not isinstance(member_id, str | None):
        raise _bad_request("'member_id': expected a string")
    if member_epoch is not None and not _is_integer(member_epoch, INT32_MAX):
        raise _bad_request("'member_epoch': expected an integer")
    return CommitGroup(
        group=group_id,
        offsets=tuple(_offset(row) for row in rows),
        member_id=None if member_id is None else InstanceId(check_name("member_id", member_id)),
        member_epoch=member_epoch,
    )


def _offset(row: dict[str, Any]) -> GroupOffset:
    topic, partition, offset = (row.get(key) for key in ("topic_name", "partition_id", "offset"))
    metadata, epoch = row.get("metadata"), row.get("leader_epoch")
    if not isinstance(topic, str):
        raise _bad_request("'topic_name': expected a string")
    if not _is_integer(partition, INT32_MAX):
        raise _bad_request("'partition_id': expected the number of a partition")
    if not _is_integer(offset, OFFSET_MAX):
        raise _bad_request("'offset': expected the next offset to read, from 0 on")
    if not isinstance(metadata, str | None):
        raise _bad_request("'metadata': expected a string")
    if epoch is not None and not _is_integer(epoch, INT32_MAX):
        raise _bad_request("'leader_epoch': expected the epoch of the offset, or null")
    name = TopicName(check_name("topic_name", topic))
    epoch = UNKNOWN_EPOCH if epoch is None else epoch
    return GroupOffset(name, PartitionId(partition), offset, metadata or "", epoch)


def _is_integer(value: object, most: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _bad_request(text: str) -> RestError:
    return RestError(400, RestCode.BAD_REQUEST, f"Bad Request: {text}")
