"""``/v3/clusters/C/brokers``: list, describe, drain, unregister; the replicas of a broker.

Reads, the progress of a drain included, come from this broker's metadata image; drain and
unregister are commands to the active controller.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from broker.server.drains import waiting_reason
from http_api.contract import v3
from http_api.contract.errors import RestCode, RestError
from http_api.contract.media_types import JSON
from http_api.contract.operations import broker_operations as declared
from http_api.contract.operations.declaration import fields_of
from http_api.contract.resources import BrokerInfo, DrainProgress, StuckPartition
from http_api.contract.v3 import JsonObject, drain_progress
from http_api.server.answers import reply
from http_api.server.image_lookup import each_partition, live_brokers
from http_api.server.request_parsing import (
    broker_id,
    check_fields,
    read_json_object,
    word,
)
from http_api.server.routes.v3.clusters import V3Routes
from http_api.server.routes.v3.partitions import partition_info
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.records.commands import DrainBroker, UnregisterBroker
from raft_metadata.records.records import BrokerState, DrainScope

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp import web

    from http_api.contract.resources import PartitionInfo
    from http_api.server.answers import ApiContext
    from http_api.server.routing import PathRouter
    from raft_metadata.common.ids import BrokerId
    from raft_metadata.image.metadata_image import BrokerRegistration, MetadataImage


STUCK_SHOWN_MAX = 100
"""Most partitions named in an answer, of those still to be moved."""


async def progress_of(image: MetadataImage, broker: BrokerRegistration) -> JsonObject:
    """Return what the broker still leads and holds, and why the first partitions have not moved."""
    leaders = replicas = 0
    stuck: list[StuckPartition] = []
    async for topic, number, partition in each_partition(image):
        if broker.broker_id not in partition.replicas:
            continue
        leads = partition.leader == broker.broker_id
        leaders += leads
        replicas += 1
        if len(stuck) < STUCK_SHOWN_MAX and (leads or broker.drain is DrainScope.REPLICAS):
            reason = waiting_reason(image, partition, broker)
            stuck.append(StuckPartition(topic=topic.name, partition=number, reason=reason))
    left = replicas if broker.drain is DrainScope.REPLICAS else leaders
    return drain_progress(
        DrainProgress(
            is_done=left == 0,
            leaders_left=leaders,
            replicas_left=replicas,
            stuck=tuple(stuck),
        )
    )


Counts = tuple["Mapping[BrokerId, int]", "Mapping[BrokerId, int]"]
SCOPES = tuple(scope.value for scope in DrainScope)


class BrokerRoutes(V3Routes):
    """Brokers of the v3 API. Owner: the app; keeps the counts of one image."""

    def __init__(self, context: ApiContext) -> None:
        super().__init__(context)
        self._counts = PartitionCounts()

    def add_to(self, router: PathRouter) -> None:
        self._serve(router, declared.LIST, self.list_brokers)
        self._serve(router, declared.DESCRIBE, self.describe)
        self._serve(router, declared.UNREGISTER, self.unregister)
        self._serve(router, declared.DRAIN, self.drain)
        self._serve(router, declared.REPLICAS, self.replicas)

    async def list_brokers(self, request: web.Request) -> v3.JsonObject:
        """Answer the live brokers; ``include=all``: every registered broker."""
        include = declared.INCLUDE.read(request.query)
        image = self._apis.image
        found = live_brokers(image)
        if include == "all":
            found = [image.brokers[key] for key in sorted(image.brokers)]
        shares = await self._counts.of(image)
        return self._page(
            request,
            "KafkaBroker",
            found,
            key=lambda one: (one.broker_id,),
            shape=lambda one: v3.broker(self._links, _info(one, shares)),
            path=("brokers",),
        )

    async def describe(self, request: web.Request, broker: str) -> v3.JsonObject:
        """Answer one registered broker, live or not."""
        return await self._broker(broker_id(broker))

    async def drain(self, request: web.Request, broker: str) -> v3.JsonObject:
        """Start or end a drain of leaderships or replicas; answer the broker and the progress.

        The drain continues in the background; ``GET`` of the broker shows its progress.
        """
        wanted = broker_id(broker)
        fields = await read_json_object(request, self._body_bytes_max, '{"scope":"leaders"}')
        check_fields(fields, fields_of(declared.DRAIN))
        scope = DrainScope(word(fields, "scope", SCOPES, None))
        await self._send_command(DrainBroker(broker_id=wanted, scope=scope))
        return await self._broker(wanted)

    async def unregister(self, request: web.Request, broker: str) -> web.Response:
        """Unregister a broker for good: 204; 400/40002 while it is live or holds replicas."""
        await self._send_command(UnregisterBroker(broker_id=broker_id(broker)))
        return reply(b"", JSON, 204)

    async def replicas(self, request: web.Request, broker: str) -> v3.JsonObject:
        """Answer every replica that the broker holds, by topic and partition."""
        image, wanted = self._apis.image, broker_id(broker)
        if wanted not in image.brokers:
            raise _not_found(wanted)
        held: list[PartitionInfo] = []
        async for topic, number, partition in each_partition(image):
            if wanted in partition.replicas:
                held.append(partition_info(topic.name, number, partition))
        return self._page(
            request,
            "KafkaReplica",
            held,
            key=lambda info: (info.topic, info.partition),
            shape=lambda info: v3.replica(self._links, info, wanted),
            path=("brokers", wanted, "partition-replicas"),
        )

    async def _send_command(self, command: DrainBroker | UnregisterBroker) -> None:
        try:
            await self._apis.admin(command)
        except KafkaError as error:
            if error.code is not ErrorCode.BROKER_ID_NOT_REGISTERED:
                raise
            raise _not_found(command.broker_id) from None

    async def _broker(self, wanted: BrokerId) -> v3.JsonObject:
        image = self._apis.image
        registration = image.brokers.get(wanted)
        if registration is None:
            raise _not_found(wanted)
        body = v3.broker(self._links, _info(registration, await self._counts.of(image)))
        if registration.drain is not DrainScope.NONE:
            body["drain_progress"] = await progress_of(image, registration)
        if registration.state is BrokerState.CONTROLLED_SHUTDOWN:
            body["shutdown_blocked_by"] = await self._shutdown_blocked_by(wanted)
        return body

    async def _shutdown_blocked_by(self, wanted: BrokerId) -> str | None:
        """Return the reason that delays a broker's shutdown; None if the broker does not answer."""
        try:
            return (await self._apis.own_facts(wanted)).shutdown_blocked_by
        except KafkaError:
            return None


class PartitionCounts:
    """Numbers of partitions that each broker leads and holds; counted once per image."""

    def __init__(self) -> None:
        self._image: MetadataImage | None = None
        self._counted: Counts = ({}, {})

    async def of(self, image: MetadataImage) -> Counts:
        """Return (leaderships, replicas), each a count by broker."""
        if image is self._image:
            return self._counted
        leads: defaultdict[BrokerId, int] = defaultdict(int)
        holds: defaultdict[BrokerId, int] = defaultdict(int)
        async for _, _, partition in each_partition(image):
            leads[partition.leader] += 1
            for replica in partition.replicas:
                holds[replica] += 1
        self._image, self._counted = image, (leads, holds)
        return self._counted


def _info(broker: BrokerRegistration, shares: Counts) -> BrokerInfo:
    leads, holds = shares
    return BrokerInfo(
        broker_id=broker.broker_id,
        url=f"http://{broker.http}",
        rack=broker.rack,
        state=broker.state.value,
        broker_epoch=broker.broker_epoch,
        drain=broker.drain.value,
        leader_count=leads.get(broker.broker_id, 0),
        replica_count=holds.get(broker.broker_id, 0),
    )


def _not_found(broker: int) -> RestError:
    return RestError(404, RestCode.NOT_FOUND, f"Broker {broker} cannot be found.")
