"""Liveness, readiness and the debug state of this broker.

``/``, ``/healthz`` and ``/readyz`` are for operators, load balancers and `quorumlog up`.
``/broker/v1/state`` and ``/broker/v1/events`` show what this very broker holds, for operators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from http_api.contract.media_types import JSON, TEXT, V2
from http_api.server.answers import ApiContext, json_reply, reply
from http_api.server.request_parsing import (
    INT32_MAX,
    OFFSET_MAX,
    bad_parameter,
    query_flag,
    query_integer,
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
        router.add("GET", "/", self.root, V2)
        router.add("GET", "/healthz", self.healthz, TEXT)
        router.add("GET", "/readyz", self.readyz, TEXT)

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


DEFAULT_REPLICAS = 500
MAX_REPLICAS = 2_000
"""Most replicas in one answer: 2 MB."""
DEFAULT_EVENTS = 1_000
MAX_EVENTS = 10_000
"""Most events in one answer: 4 MB."""


class StateRoutes:
    """Read-only routes, served whatever the broker's state is. Owner: the app."""

    def __init__(self, debug_state: BrokerDebugState) -> None:
        self._white_box = debug_state

    def add_to(self, router: PathRouter) -> None:
        of_state = ("topic", "partition", "after", "limit", "chain", "from", "to")
        router.add("GET", "/broker/v1/state", self.state, JSON, of_state)
        router.add("GET", "/broker/v1/events", self.events, JSON, ("after", "limit"))

    async def state(self, request: web.Request) -> web.Response:
        """Answer the broker's state and a page of its replicas.

        ``chain=true`` adds the batches of one partition, which must be named.
        """
        query = request.query
        topic = topic_name(query["topic"]) if "topic" in query else None
        partition = None
        if "partition" in query:
            number = query_integer(query, "partition", None, 0, INT32_MAX)
            if topic is None:
                raise bad_parameter("topic", None, "the topic of this partition")
            partition = PartitionId(number)
        limit = query_integer(query, "limit", DEFAULT_REPLICAS, 1, MAX_REPLICAS)
        wanted = None if topic is None else (topic, partition)
        rows, last = await self._white_box.replicas(wanted, _place(query.get("after")), limit)
        if query_flag(query, "chain"):
            if topic is None or partition is None:
                raise bad_parameter("partition", None, "one topic and partition, with chain=true")
            start = _offset(query.get("from"), "from")
            end = _offset(query.get("to"), "to")
            rows[0]["chain"] = await self._white_box.chain(topic, partition, start, end)
        body = self._white_box.broker()
        body["partitions"] = rows
        body["next"] = None if last is None else f"{last[0]}:{last[1]}"
        return json_reply(body, JSON)

    async def events(self, request: web.Request) -> web.Response:
        """Answer the events behind ``after``, oldest first."""
        after = query_integer(request.query, "after", 0, 0, OFFSET_MAX)
        limit = query_integer(request.query, "limit", DEFAULT_EVENTS, 1, MAX_EVENTS)
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


def _offset(raw: str | None, name: str) -> int | None:
    if raw is None:
        return None
    return query_integer({name: raw}, name, None, 0, OFFSET_MAX)


def _place(raw: str | None) -> Place | None:
    if raw is None:
        return None
    topic, _, number = raw.rpartition(":")
    if not topic or not number.isdecimal() or int(number) > INT32_MAX:
        raise bad_parameter("after", raw, "what an earlier answer said as next, TOPIC:PARTITION")
    return TopicName(topic), PartitionId(int(number))
