"""``/v3/clusters/C/topics``: list, create, describe, add partitions, delete.

Reads come from this broker's metadata image; changes are commands to the active controller.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from http_api.contract import v3
from http_api.contract.errors import RestCode, RestError
from http_api.contract.media_types import JSON
from http_api.contract.operations import topic_operations as declared
from http_api.contract.operations.declaration import fields_of
from http_api.contract.operations.produce_operations import TIMEOUT
from http_api.contract.operations.topic_operations import AUTO_CREATE
from http_api.server.answers import json_reply, reply
from http_api.server.image_lookup import (
    NOT_HOSTED,
    find_topic,
    topic_or_404,
    unknown_topic_hint,
)
from http_api.server.request_parsing import (
    check_fields,
    config_text,
    flag,
    integer,
    is_integer,
    needed_integer,
    read_json_object,
    topic_in,
    topic_name,
    wrong_kind,
)
from http_api.server.routes.v3.clusters import V3Routes
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import RANDOM_ID_BYTES, BrokerId, TopicId, id_from_bytes
from raft_metadata.records.commands import AddPartitions, CreateTopic, DeleteTopic

if TYPE_CHECKING:
    from aiohttp import web

    from http_api.server.routing import PathRouter
    from raft_metadata.image.metadata_image import TopicImage

_AUTO_CREATE_FIELDS = ("topic_name", AUTO_CREATE)
_NEW_TOPIC = '{"topic_name":…,"partitions_count":…}'


class TopicRoutes(V3Routes):
    """Topics of the v3 API."""

    def add_to(self, router: PathRouter) -> None:
        self._serve(router, declared.LIST, self.list_topics)
        self._serve(router, declared.CREATE, self.create)
        self._serve(router, declared.DESCRIBE, self.describe)
        self._serve(router, declared.GROW, self.grow)
        self._serve(router, declared.DELETE, self.delete)

    async def list_topics(self, request: web.Request) -> v3.JsonObject:
        """Answer all topics, internal ones marked."""
        declared.LIST_OPERATIONS.read(request.query)
        image = self._apis.image
        return self._page(
            request,
            "KafkaTopic",
            image.topic_ids,
            key=lambda name: (name,),
            shape=lambda name: _topic(self._links, image.topics[image.topic_ids[name]]),
            path=("topics",),
        )

    async def describe(self, request: web.Request, topic: str) -> v3.JsonObject:
        """Answer one topic."""
        declared.DESCRIBE_OPERATIONS.read(request.query)
        found = await topic_or_404(
            self._apis, topic_name(topic), RestCode.UNKNOWN_TOPIC_OR_PARTITION, NOT_HOSTED
        )
        return _topic(self._links, found)

    async def create(self, request: web.Request) -> v3.JsonObject | web.Response:
        """Create a topic; 201 once its partitions have ready leaders, 200 for ``validate_only``."""
        fields = await read_json_object(request, self._limits.max_body_bytes, _NEW_TOPIC)
        command = create_topic(fields)
        if flag(fields, AUTO_CREATE):
            return await self._auto_create(fields)
        created = await self._apis.create_topic(command)
        body = v3.topic(
            self._links,
            command.name,
            created.topic_id,
            created.replication_factor,
            created.partitions_count,
        )
        if command.validate_only:
            return body
        return json_reply(body, JSON, 201, {"Location": body["metadata"]["self"]})

    async def _auto_create(self, fields: dict[str, Any]) -> v3.JsonObject | web.Response:
        """Answer the topic with 200 if it is there; else create it as a first produce does: 201.

        Raises:
            RestError: 404/40401, it is not there and ``auto.create.topics.enable`` is false.
        """
        beside = sorted(key for key in fields if fields[key] and key not in _AUTO_CREATE_FIELDS)
        if beside:
            text = f"Bad Request: '{beside[0]}' beside '{AUTO_CREATE}': the topic is made by the "
            raise RestError(400, RestCode.BAD_REQUEST, f"{text}cluster's defaults; leave one out")
        name = topic_in(fields)
        is_there = await find_topic(self._apis, name) is not None
        try:
            timeout_ms = TIMEOUT.default_value(self._limits)
            topic = await self._apis.topic_for_produce(name, timeout_ms)
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            text = unknown_topic_hint(self._context, name)
            raise RestError(404, RestCode.TOPIC_NOT_FOUND, text) from None
        body = _topic(self._links, topic)
        if is_there:
            return body
        return json_reply(body, JSON, 201, {"Location": body["metadata"]["self"]})

    async def grow(self, request: web.Request, topic: str) -> v3.JsonObject:
        """Add partitions; 200 once each of them has a ready leader."""
        name = topic_name(topic)
        fields = await read_json_object(request, self._body_bytes_max, '{"partitions_count":…}')
        check_fields(fields, fields_of(declared.GROW))
        command = AddPartitions(
            topic=name,
            partitions_count=needed_integer(fields, "partitions_count"),
            replicas_assignments=_assignments(fields.get("replicas_assignments")),
            validate_only=flag(fields, "validate_only"),
        )
        try:
            added = await self._apis.admin(command)
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            raise RestError(404, RestCode.UNKNOWN_TOPIC_OR_PARTITION, NOT_HOSTED) from None
        found = self._apis.image.topics.get(added.topic_id)
        factor = len(found.partitions[0].replicas) if found and found.partitions else 0
        return v3.topic(self._links, name, added.topic_id, factor, added.partitions_count)

    async def delete(self, request: web.Request, topic: str) -> web.Response:
        """Delete a topic; 204 once this broker's image no longer has it."""
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
    """Return the command of a create body; types are checked here, ranges by the controller."""
    check_fields(fields, fields_of(declared.CREATE))
    return CreateTopic(
        name=topic_in(fields),
        topic_id=TopicId(id_from_bytes(secrets.token_bytes(RANDOM_ID_BYTES))),
        partitions_count=integer(fields, "partitions_count"),
        replication_factor=integer(fields, "replication_factor"),
        replicas_assignments=_assignments(fields.get("replicas_assignments")),
        configs=_configs(fields.get("configs")),
        validate_only=flag(fields, "validate_only"),
    )


def _assignments(value: Any) -> dict[int, tuple[BrokerId, ...]] | None:
    """Return the broker ids by partition of ``{"0": [1, 2]}``; None if absent or empty."""
    expected = 'an object like {"0": [1, 2, 3]}'
    if value is None:
        return None
    if not isinstance(value, dict):
        raise wrong_kind("replicas_assignments", value, expected)
    if not value:
        return None
    assignments = {}
    for partition, brokers in value.items():
        number_ok = partition.isascii() and partition.isdecimal() and len(partition) < 10
        if not (number_ok and isinstance(brokers, list) and all(map(is_integer, brokers))):
            raise wrong_kind("replicas_assignments", value, expected)
        assignments[int(partition)] = tuple(map(BrokerId, brokers))
    return assignments


def _configs(value: Any) -> dict[str, str | None]:
    """Return the configs of ``[{"name": N, "value": V}]``, by name."""
    expected = 'a list of {"name", "value"}'
    if value is None:
        return {}
    if not isinstance(value, list):
        raise wrong_kind("configs", value, expected)
    configs: dict[str, str | None] = {}
    for entry in value:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise wrong_kind("configs", entry, expected)
        name = entry["name"]
        configs[name] = config_text(f"configs.{name}", entry.get("value"))
    return configs
