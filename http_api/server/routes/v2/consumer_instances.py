"""``/consumers/G…``: consumer instances, as in Confluent's REST Proxy v2.

An instance lives with its group's coordinator, so any broker serves any of these paths: each
handler reads the body (`consumers_bodies`), sends one group request to the coordinator and renders
its answer (decision D7). Reading moves positions, so it is no pure read, though its method is GET
(rule F2).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import orjson

from broker.coordinator.group_messages import (
    Assign,
    Commit,
    CommittedOffsets,
    CreateInstance,
    DeleteInstance,
    DescribeInstance,
    Edge,
    Poll,
    Seek,
    SeekTarget,
    Subscribe,
    Unsubscribe,
)
from http_api.contract import group_shapes
from http_api.contract.errors import REST_STATUS, RestCode, RestError
from http_api.contract.media_types import (
    CONSUMER_REPLIES,
    V2,
    EmbeddedFormat,
    accepted_formats,
    choose_reply,
    embedded_type,
)
from http_api.contract.v2 import check_name
from http_api.server.answers import ERROR_TYPE, MOVES_POSITIONS, json_reply, reply
from http_api.server.request_parsing import accept_of, bad_parameter, not_acceptable, parse_integer
from http_api.server.routes.v2 import consumer_bodies as bodies
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import GroupId, InstanceId, PartitionId, TopicName

if TYPE_CHECKING:
    from aiohttp import web

    from broker.coordinator.group_messages import GroupRequest, InstanceDescription
    from http_api.server.answers import ApiContext
    from http_api.server.routing import PathRouter


A = TypeVar("A")

_ALL_FORMATS = frozenset(embedded.value for embedded in EmbeddedFormat)
_RECORD_TYPES = {embedded_type(name): embedded_type(name) for name in sorted(_ALL_FORMATS)}
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
        self._base_url = context.advertised_url

    def add_to(self, router: PathRouter) -> None:
        group = "/consumers/{group}"
        instance = group + "/instances/{instance}"
        router.add("POST", group, self.create, V2)
        router.add("DELETE", instance, self.delete, V2)
        router.add("POST", instance + "/subscription", self.subscribe, V2)
        router.add("GET", instance + "/subscription", self.subscription, V2)
        router.add("DELETE", instance + "/subscription", self.unsubscribe, V2)
        router.add("POST", instance + "/assignments", self.assign, V2)
        router.add("GET", instance + "/assignments", self.assignments, V2)
        router.add("GET", instance + "/records", self.records, V2)
        router.add("POST", instance + "/offsets", self.commit, V2)
        router.add("GET", instance + "/offsets", self.offsets, V2)
        router.add("POST", instance + "/positions", self.seek, V2)
        router.add("POST", instance + "/positions/beginning", self.seek_to_beginning, V2)
        router.add("POST", instance + "/positions/end", self.seek_to_end, V2)

    async def create(self, request: web.Request, group: str) -> web.Response:
        """Create an instance of the group; its name is the client's, or generated."""
        group_id = GroupId(check_name("group_name", group))
        _check_accept(request)
        wanted = bodies.new_instance(await bodies.read_object(request, self._limits.max_body_bytes))
        made = await self._send_to_coordinator(
            CreateInstance(
                group=group_id,
                instance=wanted.instance,
                settings=wanted.settings,
                client_id=wanted.client_id,
            )
        )
        uri = f"{self._base_url}/consumers/{group_id}/instances/{made.instance}"
        headers = (
            {group_shapes.IGNORED_HEADER: ", ".join(wanted.ignored)} if wanted.ignored else None
        )
        return json_reply(group_shapes.created_instance(made.instance, uri), V2, headers=headers)

    async def delete(self, request: web.Request, group: str, instance: str) -> web.Response:
        """Remove the instance, which leaves the group at once."""
        group_id, member = _enter(request, group, instance)
        await self._send_to_coordinator(DeleteInstance(group=group_id, instance=member))
        return _done()

    # subscription and assignment

    async def subscribe(self, request: web.Request, group: str, instance: str) -> web.Response:
        """Subscribe; 204 after the join, so that the first read is not empty.

        An empty list of topics unsubscribes, as DELETE does.
        """
        group_id, member = _enter(request, group, instance)
        fields = await bodies.read_object(request, self._limits.max_body_bytes)
        topics, pattern = bodies.subscription(fields)
        if topics is not None and not topics:
            await self._send_to_coordinator(Unsubscribe(group=group_id, instance=member))
            return _done()
        await self._subscribe_or_assign(
            Subscribe(group=group_id, instance=member, topics=topics, pattern=pattern)
        )
        return _done()

    async def subscription(self, request: web.Request, group: str, instance: str) -> web.Response:
        """Answer the subscribed topics; after a pattern, the topics it matched."""
        found = await self._describe(request, group, instance)
        if found.settings.strimzi:
            return json_reply(group_shapes.strimzi_subscription(found.topics, found.assignment), V2)
        return json_reply({"topics": list(found.topics)}, V2)

    async def unsubscribe(self, request: web.Request, group: str, instance: str) -> web.Response:
        """End the subscription, or the manual assignment."""
        group_id, member = _enter(request, group, instance)
        await self._send_to_coordinator(Unsubscribe(group=group_id, instance=member))
        return _done()

    async def assign(self, request: web.Request, group: str, instance: str) -> web.Response:
        """Assign partitions by hand, outside of the group's rebalancing."""
        group_id, member = _enter(request, group, instance)
        fields = await bodies.read_object(request, self._limits.max_body_bytes)
        partitions = bodies.partitions(fields)
        await self._subscribe_or_assign(
            Assign(group=group_id, instance=member, partitions=partitions)
        )
        return _done()

    async def assignments(self, request: web.Request, group: str, instance: str) -> web.Response:
        """Answer the partitions that the instance owns now."""
        found = await self._describe(request, group, instance)
        return json_reply(group_shapes.partitions(found.assignment), V2)

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
            raise not_acceptable(request, *_RECORD_TYPES)
        if accepted != _ALL_FORMATS:
            request[ERROR_TYPE] = choose_reply(accept, _RECORD_TYPES) or V2
        limits = self._limits
        poll = Poll(
            group=group_id,
            instance=member,
            timeout_ms=_at_most(request, "timeout", 0, limits.max_fetch_wait_ms),
            max_bytes=_at_most(request, "max_bytes", 1, limits.max_fetch_bytes),
            accepted=None if accepted == _ALL_FORMATS else accepted,
        )
        found = await self._send_to_coordinator(poll)
        if found.count and _is_gone(request):
            await self._give_back(poll, found.body)
        return reply(found.body, embedded_type(found.format))

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

    async def commit(self, request: web.Request, group: str, instance: str) -> web.Response:
        """Commit these offsets, or everything delivered if the body is empty or ``{}``."""
        group_id, member = _enter(request, group, instance)
        fields = await bodies.read_object(
            request, self._limits.max_body_bytes, empty_needs_no_type=True
        )
        offsets = bodies.commit(fields)
        done = await self._send_to_coordinator(
            Commit(group=group_id, instance=member, offsets=offsets)
        )
        return _done() if done.strimzi else json_reply([], V2)

    async def offsets(self, request: web.Request, group: str, instance: str) -> web.Response:
        """Answer the committed offsets of the body's partitions; without a body, of its own."""
        group_id, member = _enter(request, group, instance)
        fields = await bodies.read_object(request, self._limits.max_body_bytes)
        partitions = bodies.partitions(fields) if fields else None
        found = await self._send_to_coordinator(
            CommittedOffsets(group=group_id, instance=member, partitions=partitions)
        )
        rows = ((row.topic, row.partition, row.offset, row.metadata) for row in found)
        return json_reply(group_shapes.offsets(rows), V2)

    async def seek(self, request: web.Request, group: str, instance: str) -> web.Response:
        """Set the next offsets to read, by offset or as the first records at or after a time."""
        group_id, member = _enter(request, group, instance)
        fields = await bodies.read_object(request, self._limits.max_body_bytes)
        targets = bodies.positions(fields)
        await self._send_to_coordinator(Seek(group=group_id, instance=member, targets=targets))
        return _done()

    async def seek_to_beginning(
        self, request: web.Request, group: str, instance: str
    ) -> web.Response:
        """Read on at the log start offset."""
        return await self._seek_to(Edge.BEGINNING, request, group, instance)

    async def seek_to_end(self, request: web.Request, group: str, instance: str) -> web.Response:
        """Read on after the last record."""
        return await self._seek_to(Edge.END, request, group, instance)

    async def _seek_to(
        self, edge: Edge, request: web.Request, group: str, instance: str
    ) -> web.Response:
        group_id, member = _enter(request, group, instance)
        fields = await bodies.read_object(request, self._limits.max_body_bytes)
        targets = bodies.edges(fields, edge)
        await self._send_to_coordinator(Seek(group=group_id, instance=member, targets=targets))
        return _done()

    # requests to the coordinator

    async def _describe(
        self, request: web.Request, group: str, instance: str
    ) -> InstanceDescription:
        group_id, member = _enter(request, group, instance)
        return await self._send_to_coordinator(DescribeInstance(group=group_id, instance=member))

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
    return group_id, InstanceId(check_name("instance_name", instance))


def _enter(request: web.Request, group: str, instance: str) -> tuple[GroupId, InstanceId]:
    """Return the names in an instance's path; checks the names, then Accept."""
    names = _names(group, instance)
    _check_accept(request)
    return names


def _check_accept(request: web.Request) -> None:
    if choose_reply(accept_of(request), CONSUMER_REPLIES) is None:
        raise not_acceptable(request, V2)


def _is_gone(request: web.Request) -> bool:
    """Return True if the client has closed its connection."""
    return request.transport is None or request.transport.is_closing()


def _done() -> web.Response:
    return reply(b"", V2, 204)


def _at_most(request: web.Request, name: str, low: int, most: int) -> int | None:
    """Return a query parameter clamped to its limits; None: absent or negative.

    Out-of-range values are clamped, not refused, as in Confluent's REST Proxy.
    """
    raw = request.query.get(name)
    if raw is None:
        return None
    number = parse_integer(raw)
    if number is None:
        raise bad_parameter(name, raw, "an integer")
    return None if number < 0 else max(low, min(number, most))
