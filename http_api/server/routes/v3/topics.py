"""``/v3/clusters/C/topics``: list, create, describe, delete."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from http_api.contract import v3
from http_api.contract.errors import RestCode, RestError, shown, shown_value
from http_api.contract.media_types import JSON
from http_api.contract.v2 import check_name
from http_api.server.bodies import read_json_object
from http_api.server.context import json_reply, reply
from http_api.server.parameters import topic_name
from http_api.server.routes.v3.cluster_path import ClusterPath
from http_api.server.topics import NOT_HOSTED, topic_or_404
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import RANDOM_ID_BYTES, BrokerId, TopicId, TopicName, id_from_bytes
from raft_metadata.records.commands import CreateTopic, DeleteTopic

if TYPE_CHECKING:
    from aiohttp import web

    from http_api.server.context import ApiContext
    from http_api.server.routing import Router
    from raft_metadata.image.metadata_image import TopicImage

_FIELDS = (
    "topic_name",
    "partitions_count",
    "replication_factor",
    "replicas_assignments",
    "configs",
    "validate_only",
)
_INT32_MAX = 2**31 - 1


class TopicRoutes:
    """Topics of the v3 door. Owner: the app; holds no state of its own."""

    def __init__(self, context: ApiContext) -> None:
        self._apis = context.apis
        self._limits = context.limits
        self._path = ClusterPath(context)

    def add_to(self, router: Router) -> None:
        topics = "/v3/clusters/{cluster}/topics"
        router.add("GET", topics, self.list_topics, JSON)
        router.add("POST", topics, self.create, JSON)
        router.add("GET", topics + "/{topic}", self.describe, JSON)
        router.add("DELETE", topics + "/{topic}", self.delete, JSON)

    async def list_topics(self, request: web.Request, cluster: str) -> web.Response:
        """All topics, internal ones marked."""
        links = self._path.enter(request, cluster)
        image = self._apis.image
        data = [
            _topic(links, image.topics[image.topic_ids[name]]) for name in sorted(image.topic_ids)
        ]
        return json_reply(links.collection("KafkaTopic", data, "topics"), JSON)

    async def describe(self, request: web.Request, cluster: str, topic: str) -> web.Response:
        """One topic."""
        links = self._path.enter(request, cluster)
        found = await topic_or_404(
            self._apis, topic_name(topic), RestCode.UNKNOWN_TOPIC_OR_PARTITION, NOT_HOSTED
        )
        return json_reply(_topic(links, found), JSON)

    async def create(self, request: web.Request, cluster: str) -> web.Response:
        """201 once every partition has a ready leader; 200 for ``validate_only``."""
        links = self._path.enter(request, cluster)
        command = create_topic(await read_json_object(request, self._limits.max_body_bytes))
        created = await self._apis.create_topic(command)
        body = v3.topic(
            links,
            command.name,
            created.topic_id,
            created.replication_factor,
            created.partitions_count,
        )
        if command.validate_only:
            return json_reply(body, JSON)
        return json_reply(body, JSON, 201, {"Location": body["metadata"]["self"]})

    async def delete(self, request: web.Request, cluster: str, topic: str) -> web.Response:
        """204 once this broker's image has lost the topic."""
        self._path.enter(request, cluster)
        name = topic_name(topic)
        try:
            await self._apis.delete_topic(DeleteTopic(name=name))
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            raise RestError(404, RestCode.UNKNOWN_TOPIC_OR_PARTITION, NOT_HOSTED) from None
        return reply(b"", JSON, 204)


def _topic(links: v3.Links, topic: TopicImage) -> v3.JsonObject:
    replication_factor = len(topic.partitions[0].replicas) if topic.partitions else 0
    return v3.topic(links, topic.name, topic.topic_id, replication_factor, topic.partitions_count)


def create_topic(fields: dict[str, Any]) -> CreateTopic:
    """The command a create body asks for; ranges are the controller's business, kinds ours."""
    unknown = sorted(fields.keys() - set(_FIELDS))
    if unknown:
        raise RestError(
            400,
            RestCode.BAD_REQUEST,
            f"unknown field '{shown(unknown[0])}': expected {', '.join(_FIELDS)}",
        )
    name = fields.get("topic_name")
    if not isinstance(name, str):
        raise _wrong_kind("topic_name", name, "a string")
    validate_only = fields.get("validate_only") or False
    if not isinstance(validate_only, bool):
        raise _wrong_kind("validate_only", validate_only, "true or false")
    return CreateTopic(
        name=TopicName(check_name("topic_name", name)),
        topic_id=TopicId(id_from_bytes(secrets.token_bytes(RANDOM_ID_BYTES))),
        partitions_count=_integer(fields, "partitions_count"),
        replication_factor=_integer(fields, "replication_factor"),
        replicas_assignments=_assignments(fields.get("replicas_assignments")),
        configs=_configs(fields.get("configs")),
        validate_only=validate_only,
    )


def _integer(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if not _is_integer(value):
        raise _wrong_kind(name, value, "an integer")
    return int(value)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _INT32_MAX


def _assignments(value: Any) -> dict[int, tuple[BrokerId, ...]] | None:
    """``{"0": [1, 2]}``: broker ids by partition."""
    expected = 'an object like {"0": [1, 2, 3]}'
    if value is None:
        return None
    if not isinstance(value, dict):
        raise _wrong_kind("replicas_assignments", value, expected)
    if not value:
        return None
    assignments = {}
    for partition, brokers in value.items():
        number_ok = partition.isascii() and partition.isdecimal() and len(partition) < 10
        if not (number_ok and isinstance(brokers, list) and all(map(_is_integer, brokers))):
            raise _wrong_kind("replicas_assignments", value, expected)
        assignments[int(partition)] = tuple(map(BrokerId, brokers))
    return assignments


def _configs(value: Any) -> dict[str, str | None]:
    """``[{"name": N, "value": V}]``; numbers and booleans are taken in their JSON spelling."""
    expected = 'a list of {"name", "value"}'
    if value is None:
        return {}
    if not isinstance(value, list):
        raise _wrong_kind("configs", value, expected)
    configs: dict[str, str | None] = {}
    for entry in value:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise _wrong_kind("configs", entry, expected)
        setting = entry.get("value")
        if isinstance(setting, bool):
            setting = str(setting).lower()
        elif isinstance(setting, int | float):
            setting = str(setting)
        elif not isinstance(setting, str | None):
            raise _wrong_kind(f"configs.{entry['name']}", setting, "a string")
        configs[entry["name"]] = setting
    return configs


def _wrong_kind(field: str, value: object, expected: str) -> RestError:
    return RestError(
        400,
        RestCode.BAD_REQUEST,
        f"Bad Request: '{field}' is {shown_value(value)}, expected {expected}",
    )
