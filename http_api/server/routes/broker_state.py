"""Liveness, readiness and the debug state of this broker.

``/``, ``/healthz`` and ``/readyz`` are for operators, load balancers and `quorumlog up`.
``/broker/v1/state`` and ``/broker/v1/events`` show what this very broker holds, for operators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from http_api.contract.media_types import JSON, TEXT, V2
from http_api.contract.operations import state_operations as declared
from http_api.server.answers import ApiContext, json_reply, reply
from http_api.server.request_parsing import (
    INT32_MAX,
    bad_parameter,
    topic_name,
)
from raft_metadata.common.ids import PartitionId, TopicName

if TYPE_CHECKING:
    from aiohttp import web

    from broker.server.debug_state import BrokerDebugState, Place
    from http_api.server.routing import PathRouter


class OpsRoutes:
    """Routes ``/``, ``/healthz`` and ``/readyz``. Owner: the app, for its whole life."""

    def __init__(self, context: ApiContext) -> None:
        self._apis = context.apis

    def add_to(self, router: PathRouter) -> None:
        router.serve(declared.ROOT, self.root)
        router.serve(declared.HEALTHZ, self.healthz)
        router.serve(declared.READYZ, self.readyz)

    async def root(self, request: web.Request) -> web.Response:
        """Answer ``{}``, Confluent's liveness answer."""
        return reply(b"{}", V2)

    async def healthz(self, request: web.Request) -> web.Response:
        """Answer 200 while the process answers at all."""
        return reply(b"ok\n", TEXT)

    async def readyz(self, request: web.Request) -> web.Response:
        """Answer 200 if every reason is ok, else 503; one line per reason in both cases."""
        rows = self._apis.readiness()
        ready = all(ok for _, ok in rows)
        lines = [f"[{'+' if ok else '-'}]{reason}{' ok' if ok else ''}\n" for reason, ok in rows]
        return reply("".join(lines).encode(), TEXT, 200 if ready else 503)


class StateRoutes:
    """Read-only routes, served whatever the broker's state is. Owner: the app."""

    def __init__(self, debug_state: BrokerDebugState) -> None:
        self._white_box = debug_state

    def add_to(self, router: PathRouter) -> None:
        router.serve(declared.STATE, self.state)
        router.serve(declared.EVENTS, self.events)

    async def state(self, request: web.Request) -> web.Response:
        """Answer the broker's state and a page of its replicas.

        ``chain=true`` adds the batches of one partition, which must be named.
        """
        query = request.query
        name = declared.STATE_TOPIC.read(query)
        topic = None if name is None else topic_name(name)
        number = declared.STATE_PARTITION.read_optional(query)
        partition = None if number is None else PartitionId(number)
        if partition is not None and topic is None:
            raise bad_parameter(declared.STATE_TOPIC.name, None, "the topic of this partition")
        limit = declared.STATE_LIMIT.read(query)
        wanted = None if topic is None else (topic, partition)
        start, end = (
            declared.CHAIN_FROM.read_optional(query),
            declared.CHAIN_TO.read_optional(query),
        )
        after = _place(declared.STATE_AFTER.read(query))
        rows, last = await self._white_box.replicas(wanted, after, limit)
        if declared.CHAIN.read(query):
            if topic is None or partition is None:
                expected = "one topic and partition, with chain=true"
                raise bad_parameter(declared.STATE_PARTITION.name, None, expected)
            rows[0]["chain"] = await self._white_box.chain(topic, partition, start, end)
        body = self._white_box.broker()
        body["partitions"] = rows
        body["next"] = None if last is None else f"{last[0]}:{last[1]}"
        return json_reply(body, JSON)

    async def events(self, request: web.Request) -> web.Response:
        """Answer the events behind ``after``, oldest first."""
        after = declared.EVENTS_AFTER.read(request.query)
        limit = declared.EVENTS_LIMIT.read(request.query)
        events = await self._white_box.events(after, limit)
        said = self._white_box.broker()
        newest = orjson.loads(events[-1])["sequence"] if events else after
        head = orjson.dumps(
            {
                "broker_id": said["broker_id"],
                "incarnation_id": said["incarnation_id"],
                "monotonic_ms": said["monotonic_ms"],
                "wall_ms": said["wall_ms"],
                "next": newest,
            }
        )
        return reply(b'%b,"events":[%b]}' % (head[:-1], b",".join(events)), JSON)


def _place(raw: str | None) -> Place | None:
    if raw is None:
        return None
    topic, _, number = raw.rpartition(":")
    if not topic or not number.isdecimal() or int(number) > INT32_MAX:
        raise bad_parameter("after", raw, "what an earlier answer said as next, TOPIC:PARTITION")
    return TopicName(topic), PartitionId(int(number))
