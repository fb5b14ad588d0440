"""``/v3/clusters/C/consumer-groups/G/consumers…``: members that read for themselves, and their end.

A client joins a group, and then sends heartbeats that name what it owns; the answers name what it
is to own. It reads from partition leaders, and commits with ``PATCH …/offsets``. ``DELETE`` is for
any member: it leaves, or an operator evicts it. Each handler sends one request to the coordinator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.coordinator.assignors import ASSIGNORS, find_assignor
from broker.coordinator.group_messages import (
    ConsumerSettings,
    EvictInstance,
    Heartbeat,
    JoinGroup,
    Membership,
    OffsetReset,
)
from broker.coordinator.records import OFFSETS_TOPIC, partition_of_group
from broker.server.requests import UNKNOWN_EPOCH
from http_api.contract import group_shapes as shapes
from http_api.contract.errors import RestCode, RestError, excerpt_of_value
from http_api.contract.group_resources import AssignedPartition, GroupMembership
from http_api.contract.media_types import JSON
from http_api.contract.operations import member_operations as declared
from http_api.contract.operations.declaration import fields_of
from http_api.contract.operations.member_operations import (
    OWNED_MAX,
    REBALANCE_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    TEXT_CHARS_MAX,
)
from http_api.contract.v2 import check_name, has_control_characters
from http_api.server.answers import json_reply, reply
from http_api.server.request_parsing import (
    bad_parameter,
    check_fields,
    integer,
    needed_integer,
    read_json_object,
    word,
    wrong_kind,
)
from http_api.server.request_site import broker_url
from http_api.server.routes.v3.clusters import V3Routes
from raft_metadata.common.ids import GroupId, InstanceId, PartitionId, TopicName, TopicPartition

if TYPE_CHECKING:
    from aiohttp import web

    from broker.server.requests import BrokerApis
    from http_api.server.routing import PathRouter

MAX_BODY_BYTES = 4_194_304
"""Largest body: a heartbeat that names `OWNED_MAX` partitions of topics with the longest names."""
_JOIN = fields_of(declared.JOIN)
_HEARTBEAT = fields_of(declared.HEARTBEAT)
_OWNED = '{"topic_name":…,"partitions":[…]}'


def coordinator_headers(apis: BrokerApis, group: GroupId) -> dict[str, str]:
    """Return the header that names the group's coordinator.

    None while there is no coordinator, or where a proxy forwarded the request.
    """
    image = apis.image
    topic = image.topic(OFFSETS_TOPIC)
    if topic is None or not topic.partitions:
        return {}
    number = partition_of_group(group, topic.partitions_count)
    url = broker_url(image, topic.partitions[number].leader)
    return {} if url is None else {shapes.COORDINATOR_URL_HEADER: url}


class GroupMemberRoutes(V3Routes):
    """Joins, heartbeats and ends of members."""

    def add_to(self, router: PathRouter) -> None:
        self._serve(router, declared.JOIN, self.join)
        self._serve(router, declared.HEARTBEAT, self.heartbeat)
        self._serve(router, declared.LEAVE, self.leave)
        self._serve(router, declared.LEAVE_BY_STATIC_ID, self.leave_by_static_id)

    async def join(self, request: web.Request, group: str) -> web.Response:
        """Join a group as a member that reads for itself."""
        group_id = GroupId(check_name("group_name", group))
        fields = await self._body(request, _JOIN, '{"consumer_id":…,"topics":[…]}')
        return self._answer(group_id, await self._apis.group(join_of(group_id, fields)))

    async def heartbeat(self, request: web.Request, group: str, consumer: str) -> web.Response:
        """Take what a member owns; answer what it is to own, at once if that differs."""
        group_id = GroupId(check_name("group_name", group))
        name = InstanceId(check_name("consumer_id", consumer))
        fields = await self._body(request, _HEARTBEAT, '{"member_epoch":…,"owned":[…]}')
        return self._answer(group_id, await self._apis.group(heartbeat_of(group_id, name, fields)))

    async def leave(self, request: web.Request, group: str, consumer: str) -> web.Response:
        """Remove a member, or the seat that it keeps, without a commit."""
        name = InstanceId(check_name("consumer_id", consumer))
        return await self._remove(request, group, instance=name)

    async def leave_by_static_id(self, request: web.Request, group: str) -> web.Response:
        """Remove the member with a static id, which a query names."""
        wanted = declared.STATIC_ID.read(request.query)
        if not wanted:
            expected = "the group.instance.id of a member"
            raise bad_parameter(declared.STATIC_ID.name, wanted, expected)
        return await self._remove(request, group, static_id=wanted)

    async def _remove(
        self,
        request: web.Request,
        group: str,
        instance: InstanceId | None = None,
        static_id: str | None = None,
    ) -> web.Response:
        group_id = GroupId(check_name("group_name", group))
        keep_seat = declared.KEEP_SEAT.read(request.query)
        await self._apis.group(
            EvictInstance(
                group=group_id, instance=instance, static_id=static_id, keep_seat=keep_seat
            )
        )
        return reply(b"", JSON, 204, coordinator_headers(self._apis, group_id))

    async def _body(
        self, request: web.Request, known: tuple[str, ...], shape: str
    ) -> dict[str, Any]:
        limit = min(self._limits.max_body_bytes, MAX_BODY_BYTES)
        fields = await read_json_object(request, limit, shape)
        check_fields(fields, known)
        return fields

    def _answer(self, group_id: GroupId, found: Membership) -> web.Response:
        body = shapes.membership(self._links, _membership(group_id, found))
        return json_reply(body, JSON, 200, coordinator_headers(self._apis, group_id))


# bodies


def join_of(group: GroupId, fields: dict[str, Any]) -> JoinGroup:
    """Return the join that a body requests; the coordinator checks ranges.

    Raises:
        RestError: 400 for a field of the wrong kind.
    """
    name = fields.get("consumer_id")
    if not isinstance(name, str):
        raise wrong_kind("consumer_id", name, "a string, unique in the group")
    topics, pattern = _subscription(fields)
    if topics is None and pattern is None:
        raise wrong_kind("topics", None, "a list of topic names, or 'topic_pattern'")
    resets = [reset.value for reset in OffsetReset]
    session_ms = integer(fields, "session_timeout_ms")
    rebalance_ms = integer(fields, "rebalance_timeout_ms")
    return JoinGroup(
        group=group,
        instance=InstanceId(shapes.check_name_in_body("consumer_id", name)),
        settings=ConsumerSettings(
            auto_commit=False,
            auto_offset_reset=OffsetReset(word(fields, "auto_offset_reset", resets, "latest")),
            session_timeout_ms=SESSION_TIMEOUT_MS if session_ms is None else session_ms,
            rack=_text(fields, "rack"),
            static_id=_text(fields, "instance_id"),
            assignors=_assignors(fields.get("assignor")),
        ),
        rebalance_timeout_ms=REBALANCE_TIMEOUT_MS if rebalance_ms is None else rebalance_ms,
        client_id=_text(fields, "client_id") or "",
        topics=topics,
        pattern=pattern,
    )


def heartbeat_of(group: GroupId, name: InstanceId, fields: dict[str, Any]) -> Heartbeat:
    """Return the heartbeat of a body.

    Raises:
        RestError: 400 for a field of the wrong kind, 413 for more than `OWNED_MAX` partitions.
    """
    topics, pattern = _subscription(fields)
    return Heartbeat(
        group=group,
        instance=name,
        member_epoch=needed_integer(fields, "member_epoch"),
        owned=_owned(fields.get("owned")),
        topics=topics,
        pattern=pattern,
        wait_ms=integer(fields, "wait_ms") or 0,
    )


def _subscription(fields: dict[str, Any]) -> tuple[tuple[TopicName, ...] | None, str | None]:
    topics, pattern = fields.get("topics"), fields.get("topic_pattern")
    if pattern is not None and not (isinstance(pattern, str) and pattern):
        raise wrong_kind("topic_pattern", pattern, "a regular expression")
    if topics is None:
        return None, pattern
    if pattern is not None:
        raise wrong_kind("topic_pattern", pattern, "nothing beside 'topics'")
    if not isinstance(topics, list) or not all(isinstance(topic, str) for topic in topics):
        raise wrong_kind("topics", topics, "a list of topic names")
    if len(topics) > OWNED_MAX:
        raise _too_many("topics", len(topics))
    return tuple(TopicName(check_name("topic_name", topic)) for topic in topics), None


def _owned(value: object) -> tuple[TopicPartition, ...]:
    if not isinstance(value, list):
        raise wrong_kind("owned", value, f"a list of {_OWNED}")
    found: list[TopicPartition] = []
    for row in value:
        topic = row.get("topic_name") if isinstance(row, dict) else None
        numbers = row.get("partitions") if isinstance(row, dict) else None
        if not isinstance(topic, str) or not isinstance(numbers, list):
            text = f"Bad Request: 'owned' holds {excerpt_of_value(row)}, expected {_OWNED}"
            raise RestError(400, RestCode.BAD_REQUEST, text)
        if len(found) + len(numbers) > OWNED_MAX:
            raise _too_many("owned", len(found) + len(numbers))
        name = TopicName(check_name("topic_name", topic))
        for number in numbers:
            if not isinstance(number, int) or isinstance(number, bool) or number < 0:
                raise wrong_kind("partitions", number, "the number of a partition")
            found.append(TopicPartition(name, PartitionId(number)))
    if len(value) > OWNED_MAX:
        raise _too_many("owned", len(value))
    return tuple(found)


def _too_many(field: str, count: int) -> RestError:
    text = f"'{field}' has {count} rows, at most {OWNED_MAX} are taken"
    return RestError(413, RestCode.TOO_LARGE, text)


def _text(fields: dict[str, Any], name: str) -> str | None:
    """Return a short text without control characters; None if it is absent, null or empty."""
    value = fields.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str) or len(value) > TEXT_CHARS_MAX or has_control_characters(value):
        expected = f"a string of at most {TEXT_CHARS_MAX} characters, none of them a control one"
        raise wrong_kind(name, value, expected)
    return value


def _assignors(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    found = find_assignor(value) if isinstance(value, str) else None
    if found is None:
        raise wrong_kind("assignor", value, f"{', '.join(ASSIGNORS)}, or Kafka's name of one")
    return (found,)


# answers


def _membership(group: GroupId, found: Membership) -> GroupMembership:
    return GroupMembership(
        group=group,
        member_id=found.instance,
        static_id=found.static_id,
        member_epoch=found.member_epoch,
        group_epoch=found.group_epoch,
        assignor=found.assignor,
        heartbeat_interval_ms=found.heartbeat_interval_ms,
        session_timeout_ms=found.session_timeout_ms,
        assignment=tuple(
            AssignedPartition(
                topic=one.topic,
                topic_id=str(one.topic_id),
                partition=one.partition,
                offset=one.offset,
                leader_epoch=None if one.leader_epoch == UNKNOWN_EPOCH else one.leader_epoch,
                is_committed=one.is_committed,
            )
            for one in found.assignment
        ),
        revoked=tuple((topic, int(number)) for topic, number in found.revoked),
    )
