"""``…/topics/{T|-}/partitions/{P|-}/leader:elect``: elections by an operator (KIP-460)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from http_api.contract import v3, v3_admin
from http_api.contract.errors import REST_STATUS, RestCode, RestError
from http_api.contract.media_types import JSON
from http_api.server.bodies import MAX_ADMIN_BODY_BYTES, read_optional_json_object
from http_api.server.body_fields import check_fields, word
from http_api.server.context import json_reply
from http_api.server.parameters import partition_id, topic_name
from http_api.server.routes.v3.cluster_path import ClusterPath
from http_api.server.routes.v3.partitions import partition_facts
from http_api.server.topics import find_partition, topic_or_404
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import NO_LEADER, PartitionId
from raft_metadata.records.commands import Election, ElectionResult, ElectLeaders, PartitionPlace

if TYPE_CHECKING:
    from aiohttp import web

    from http_api.server.context import ApiContext
    from http_api.server.routing import Router

ALL = "-"
ELECTIONS = tuple(election.value for election in Election)


class ElectionRoutes:
    """Leader elections of the v3 API. Owner: the app; holds no state of its own."""

    def __init__(self, context: ApiContext) -> None:
        self._apis = context.apis
        self._body_bytes_max = min(context.limits.max_body_bytes, MAX_ADMIN_BODY_BYTES)
        self._path = ClusterPath(context)

    def add_to(self, router: Router) -> None:
        path = "/v3/clusters/{cluster}/topics/{topic}/partitions/{partition}/leader:elect"
        router.add("POST", path, self.elect, JSON)

    async def elect(
        self, request: web.Request, cluster: str, topic: str, partition: str
    ) -> web.Response:
        """Elect leaders. One partition: answer it, or an error. Several: a row each, always 200."""
        links = self._path.enter(request, cluster)
        fields = await read_optional_json_object(request, self._body_bytes_max)
        check_fields(fields, ("election",))
        election = Election(word(fields, "election", ELECTIONS, Election.PREFERRED.value))
        if partition != ALL:
            return await self._one(links, topic, partition, election)
        places: tuple[PartitionPlace, ...] | None = None
        if topic != ALL:
            name = topic_name(topic)
            found = await topic_or_404(self._apis, name, RestCode.TOPIC_NOT_FOUND)
            numbers = range(len(found.partitions))
            places = tuple(PartitionPlace(topic=name, partition=PartitionId(n)) for n in numbers)
        elected = await self._apis.admin(ElectLeaders(election=election, partitions=places))
        data = [_row(links, result) for result in elected.results]
        path = ("topics", topic, "partitions", ALL, "leader:elect")
        return json_reply(links.collection("KafkaLeaderElection", data, *path), JSON)

    async def _one(
        self, links: v3.Links, topic: str, partition: str, election: Election
    ) -> web.Response:
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
        facts = partition_facts(number, await find_partition(self._apis, name, number))
        return json_reply(v3.partition(links, name, facts), JSON)


def _row(links: v3.Links, result: ElectionResult) -> v3.JsonObject:
    failure = None
    if result.error is not None:
        code = ErrorCode.from_number(result.error)
        failure = int(REST_STATUS[code].code), result.message or code.message
    leader = None if result.leader == NO_LEADER else result.leader
    return v3_admin.election(links, result.topic, result.partition, leader, failure)
