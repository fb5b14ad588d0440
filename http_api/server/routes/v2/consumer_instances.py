"""``/consumers/G…``: consumer instances, as in Confluent's REST Proxy v2.

An instance lives with its group's coordinator, so any broker serves any of these paths: each
handler reads the body (`consumers_bodies`), sends one group request to the coordinator and renders
its answer (decision D7). Reading moves positions, so it is no pure read, though its method is GET
(rule F2).
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from broker.coordinator.group_messages import (
    Assign,
    Commit,
    CommittedOffsets,
    CreateInstance,
    DeleteInstance,
    DescribeInstance,
    Poll,
    Positions,
    Seek,
    SeekTarget,
    Subscribe,
    Unsubscribe,
)
from http_api.contract import group_shapes
from http_api.contract.errors import REST_STATUS, RestCode, RestError
from http_api.contract.media_types import (
    RECORD_REPLIES,
    V2,
    V2_REPLIES,
    EmbeddedFormat,
    accepted_formats,
    choose_reply,
    embedded_type,
)
from http_api.contract.operations import instance_operations as declared
from http_api.contract.operations.shared import ISOLATION
from http_api.contract.v2 import check_name
from http_api.server.access_log import ASKED_WAIT_MS
from http_api.server.answers import ERROR_TYPE, MOVES_POSITIONS, json_reply, reply
from http_api.server.request_parsing import (
    accept_of,
    check_accept,
    not_acceptable,
)
from http_api.server.request_site import base_url
from http_api.server.routes.v2 import consumer_bodies as bodies
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import GroupId, InstanceId, PartitionId, TopicName

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiohttp import web

    from broker.coordinator.group_messages import GroupRequest
    from http_api.contract.group_shapes import JsonObject
    from http_api.server.answers import ApiContext
    from http_api.server.routing import PathRouter


A = TypeVar("A")

_ALL_FORMATS = frozenset(embedded.value for embedded in EmbeddedFormat)
_TEXTS = {
    ErrorCode.UNKNOWN_MEMBER_ID: group_shapes.INSTANCE_NOT_FOUND,
    ErrorCode.INSTANCE_ALREADY_EXISTS: group_shapes.INSTANCE_EXISTS,
    ErrorCode.FORMAT_MISMATCH: group_shapes.FORMAT_MISMATCH,
}


class ConsumerRoutes:
    """Consumer instances of the v2 API. Owner: the app; holds no state of its own."""

    def __init__(self, context: ApiContext) -> None:
        self._apis = context.apis
        self._limits = context.limits
        self._context = context

    def add_to(self, router: PathRouter) -> None:
        router.serve(declared.CREATE, self.create)
        router.serve(declared.RECORDS, self.records)
        for operation, handler in (
            (declared.DELETE, self.delete),
            (declared.SUBSCRIBE, self.subscribe),
            (declared.SUBSCRIPTION, self.subscription),
            (declared.UNSUBSCRIBE, self.unsubscribe),
            (declared.ASSIGN, self.assign),
            (declared.ASSIGNMENTS, self.assignments),
            (declared.COMMIT, self.commit),
            (declared.OFFSETS, self.offsets),
            (declared.POSITIONS, self.positions),
            (declared.SEEK, partial(self.seek, bodies.positions)),
            (declared.SEEK_TO_BEGINNING, partial(self.seek, bodies.beginnings)),
            (declared.SEEK_TO_END, partial(self.seek, bodies.ends)),
        ):
            router.serve(operation, partial(_answer, handler))

    async def create(self, request: web.Request, group: str) -> web.Response:
        """Create an instance of the group; its name is the client's, or generated."""
        group_id = GroupId(check_name("group_name", group))
        check_accept(request, V2_REPLIES)
        limit = self._limits.max_body_bytes
        wanted = bodies.new_instance(await bodies.read_object(request, limit, bodies.NEW_INSTANCE))
        made = await self._send_to_coordinator(
            CreateInstance(
                group=group_id,
                instance=wanted.instance,
                settings=wanted.settings,
                client_id=wanted.client_id,
            )
        )
        uri = f"{base_url(self._context)}/consumers/{group_id}/instances/{made.instance}"
        headers = (
            {group_shapes.IGNORED_HEADER: ", ".join(wanted.ignored)} if wanted.ignored else None
        )
        return json_reply(group_shapes.created_instance(made.instance, uri), V2, headers=headers)

    async def delete(self, request: web.Request, group: GroupId, instance: InstanceId) -> None:
        """Remove the instance, which leaves the group at once; a static member keeps its seat.

        ``leave=true`` gives the seat up, ``after`` acknowledges an answer first.
        """
        await self._send_to_coordinator(
            DeleteInstance(
                group=group,
                instance=instance,
                after=declared.AFTER.read(request.query),
                leave=declared.LEAVE.read(request.query),
            )
        )

    # subscription and assignment

    async def subscribe(self, request: web.Request, group: GroupId, instance: InstanceId) -> None:
        """Subscribe; 204 after the join, so that the first read is not empty.

        An empty list of topics unsubscribes, as DELETE does.
        """
        fields = await bodies.read_object(request, self._limits.max_body_bytes, bodies.SUBSCRIPTION)
        topics, pattern = bodies.subscription(fields)
        if topics is not None and not topics:
            await self.unsubscribe(request, group, instance)
            return
        await self._subscribe_or_assign(
            Subscribe(group=group, instance=instance, topics=topics, pattern=pattern)
        )

    async def subscription(
        self, _: web.Request, group: GroupId, instance: InstanceId
    ) -> JsonObject:
        """Answer the subscribed topics; after a pattern, the topics it matched."""
        found = await self._send_to_coordinator(DescribeInstance(group=group, instance=instance))
        if found.settings.strimzi:
            return group_shapes.strimzi_subscription(found.topics, found.assignment)
        return {"topics": list(found.topics)}

    async def unsubscribe(self, _: web.Request, group: GroupId, instance: InstanceId) -> None:
        """End the subscription, or the manual assignment."""
        await self._send_to_coordinator(Unsubscribe(group=group, instance=instance))

    async def assign(self, request: web.Request, group: GroupId, instance: InstanceId) -> None:
        """Assign partitions by hand, outside of the group's rebalancing."""
        fields = await bodies.read_object(request, self._limits.max_body_bytes, bodies.PARTITIONS)
        partitions = bodies.partitions(fields)
        await self._subscribe_or_assign(
            Assign(group=group, instance=instance, partitions=partitions)
        )

    async def assignments(self, _: web.Request, group: GroupId, instance: InstanceId) -> JsonObject:
        """Answer the partitions that the instance owns now."""
        found = await self._send_to_coordinator(DescribeInstance(group=group, instance=instance))
        return group_shapes.partitions(found.assignment)

    # reading

    async def records(self, request: web.Request, group: str, instance: str) -> web.Response:
        """Answer the next records; wait for the first one up to ``timeout``, then answer ``[]``."""
        request[MOVES_POSITIONS] = True
        group_id, member = _names(group, instance)
        if request.method == "HEAD":  # it would skip records without returning them
            raise RestError(
                405,
                RestCode.METHOD_NOT_ALLOWED,
                "HTTP 405 Method Not Allowed: got HEAD, expected GET",
                headers={"Allow": "GET"},
            )
        accept = accept_of(request)
        accepted = accepted_formats(accept)
        if not accepted:
            raise not_acceptable(request, *map(embedded_type, sorted(_ALL_FORMATS)))
        if accepted == _ALL_FORMATS:
            accepted = _ALL_FORMATS  # one object for all reads that wait
        else:
            request[ERROR_TYPE] = choose_reply(accept, RECORD_REPLIES) or V2
        ISOLATION.read(request.query)
        limits = self._limits
        poll = Poll(
            group=group_id,
            instance=member,
            timeout_ms=declared.TIMEOUT.read_optional(request.query, limits),
            max_bytes=declared.MAX_BYTES.read_optional(request.query, limits),
            accepted=None if accepted is _ALL_FORMATS else accepted,
            after=declared.AFTER.read(request.query),
        )
        asked_ms = limits.max_fetch_wait_ms if poll.timeout_ms is None else poll.timeout_ms
        request[ASKED_WAIT_MS] = asked_ms  # without a time in the query, the instance has its own
        found = await self._send_to_coordinator(poll)
        if found.count and poll.after is None and _is_gone(request):
            await self._give_back(poll, found.body)  # a token reader takes nothing for received
        headers = {group_shapes.READ_TOKEN_HEADER: found.token}
        if found.is_resumed:
            headers[group_shapes.RESUMED_HEADER] = "commit"
        if found.moved:
            headers[group_shapes.MOVED_HEADER] = group_shapes.moved_header(found.moved)
        if found.blocked:
            headers[group_shapes.BLOCKED_HEADER] = group_shapes.blocked_records(found.blocked)
        return reply(found.body, embedded_type(found.format), headers=headers)

    async def _give_back(self, poll: Poll, body: bytes) -> None:
        """Seek back to the first offsets of records whose client has disconnected.

        So an interrupted long poll skips nothing. An answer that is lost after this check stays
        lost.
        """
        first: dict[tuple[str, int], int] = {}
        for record in orjson.loads(body):
            first.setdefault((record["topic"], record["partition"]), record["offset"])
        for (topic, partition), offset in first.items():
            target = SeekTarget(TopicName(topic), PartitionId(partition), offset)
            with suppress(KafkaError):  # else another member owns it and starts from the commit
                await self._apis.group(
                    Seek(group=poll.group, instance=poll.instance, targets=(target,))
                )

    # offsets and positions

    async def commit(
        self, request: web.Request, group: GroupId, instance: InstanceId
    ) -> list[JsonObject] | None:
        """Commit these offsets, or everything delivered if the body is empty or ``{}``."""
        declared.ASYNC.read(request.query)
        fields = await bodies.read_object(
            request, self._limits.max_body_bytes, bodies.OFFSETS, empty_needs_no_type=True
        )
        offsets = bodies.commit(fields)
        done = await self._send_to_coordinator(
            Commit(
                group=group,
                instance=instance,
                offsets=offsets,
                after=declared.AFTER.read(request.query),
            )
        )
        return None if done.strimzi else []

    async def offsets(
        self, request: web.Request, group: GroupId, instance: InstanceId
    ) -> JsonObject:
        """Answer the committed offsets of the body's partitions; without a body, of its own."""
        fields = await bodies.read_object(request, self._limits.max_body_bytes, bodies.PARTITIONS)
        partitions = bodies.partitions(fields) if fields else None
        found = await self._send_to_coordinator(
            CommittedOffsets(group=group, instance=instance, partitions=partitions)
        )
        return group_shapes.offsets(
            (row.topic, row.partition, row.offset, row.metadata) for row in found
        )

    async def positions(self, _: web.Request, group: GroupId, instance: InstanceId) -> JsonObject:
        """Answer the next offset to be delivered of each partition that the instance owns."""
        found = await self._send_to_coordinator(Positions(group=group, instance=instance))
        return group_shapes.positions(
            (row.topic, row.partition, row.offset, row.leader_epoch) for row in found
        )

    async def seek(
        self,
        targets_of: Callable[[dict[str, Any]], tuple[SeekTarget, ...]],
        request: web.Request,
        group: GroupId,
        instance: InstanceId,
    ) -> None:
        """Set the next offsets to read: by offset, by time, or one end of the log."""
        shape = bodies.OFFSETS if targets_of is bodies.positions else bodies.PARTITIONS
        fields = await bodies.read_object(request, self._limits.max_body_bytes, shape)
        targets = targets_of(fields)
        await self._send_to_coordinator(Seek(group=group, instance=instance, targets=targets))

    # requests to the coordinator

    async def _subscribe_or_assign(self, request: Subscribe | Assign) -> None:
        """Subscribe or assign; 409 if the instance already uses the other way."""
        try:
            await self._send_to_coordinator(request)
        except KafkaError as error:
            if error.code is not ErrorCode.ILLEGAL_STATE:
                raise
            text = group_shapes.ONE_SUBSCRIPTION_ONLY
            raise RestError(409, RestCode.ILLEGAL_STATE, text) from None

    async def _send_to_coordinator(self, request: GroupRequest[A]) -> A:
        """Return the coordinator's answer; refusals that clients compare have Confluent's texts."""
        try:
            return await self._apis.group(request)
        except KafkaError as error:
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                # 40403 means "no such instance" on these paths
                raise RestError(404, RestCode.PARTITION_NOT_FOUND, error.message) from None
            text = _TEXTS.get(error.code)
            if text is None:
                raise
            raise RestError(*REST_STATUS[error.code], text) from None


def _names(group: str, instance: str) -> tuple[GroupId, InstanceId]:
    group_id = GroupId(check_name("group_name", group))
    return group_id, InstanceId(check_name("instance", instance))


async def _answer(
    handler: Callable[[web.Request, GroupId, InstanceId], Awaitable[Any]],
    request: web.Request,
    group: str,
    instance: str,
) -> web.Response:
    """Check the names in an instance's path, then Accept; answer a None of the handler with 204."""
    names = _names(group, instance)
    check_accept(request, V2_REPLIES)
    value = await handler(request, *names)
    return reply(b"", V2, 204) if value is None else json_reply(value, V2)


def _is_gone(request: web.Request) -> bool:
    """Return True if the client has closed its connection."""
    return request.transport is None or request.transport.is_closing()
