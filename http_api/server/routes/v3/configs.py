"""Configs of topics, brokers and the cluster: list, describe, set, reset, many at once.

The paths are ``…/topics/{T|-}/configs``, ``…/brokers/{B|-}/configs`` and ``…/broker-configs``, each
with or without a config's name behind it, or with ``:alter``. Changes are commands to the active
controller, which decides by the same table of configs that is shown here.
"""

from __future__ import annotations

import asyncio
import difflib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from http_api.contract import v3 as shapes
from http_api.contract.errors import RestCode, RestError, excerpt
from http_api.contract.media_types import JSON
from http_api.contract.operations.config_operations import (
    BROKER_CONFIG_OPERATIONS,
    CHANGES_MAX,
    CLUSTER_CONFIG_OPERATIONS,
    ENTRY_FIELDS,
    TOPIC_CONFIG_OPERATIONS,
)
from http_api.contract.operations.declaration import fields_of
from http_api.contract.resources import ConfigInfo
from http_api.server.answers import reply
from http_api.server.image_lookup import NOT_HOSTED, live_brokers, topic_or_404
from http_api.server.pages import PageRequest
from http_api.server.request_parsing import (
    broker_id,
    check_fields,
    config_text,
    flag,
    read_json_object,
    rows,
    topic_in,
    topic_name,
    word,
    wrong_kind,
)
from http_api.server.routes.v3.clusters import ALL, V3Routes
from raft_metadata.common.configs.rows import Scope
from raft_metadata.common.configs.table import CONFIGS, TOPIC_CONFIGS
from raft_metadata.common.ids import BrokerId
from raft_metadata.image.metadata_image import broker_layers, cluster_layers, topic_layers
from raft_metadata.records.commands import AlterConfigs, ConfigChange
from raft_metadata.records.records import ResourceType

if TYPE_CHECKING:
    from collections.abc import Collection

    from aiohttp import web

    from http_api.contract.v3 import JsonObject
    from http_api.server.pages import PageKey
    from http_api.server.routing import PathRouter
    from raft_metadata.common.configs.layers import ConfigLayers
    from raft_metadata.common.configs.rows import ConfigRow
    from raft_metadata.image.metadata_image import TopicImage

OPERATIONS = ("SET", "DELETE")
_CHANGES = '{"data":[{"name":…,"value":…}]}'
_ALL_CHANGES = '{"data":[{"topic_name":…,"configs":[{"name":…,"value":…}]}]}'
_EXPECTED = '{"name", "value", "operation"}'

_TOPIC_ROWS = tuple(TOPIC_CONFIGS.values())
_CLUSTER_ROWS = tuple(row for row in CONFIGS.values() if Scope.CLUSTER in row.scopes)
_BROKER_ROWS = tuple(CONFIGS.values())
_OPERATIONS = {
    ResourceType.TOPIC: TOPIC_CONFIG_OPERATIONS,
    ResourceType.BROKER: BROKER_CONFIG_OPERATIONS,
    ResourceType.CLUSTER: CLUSTER_CONFIG_OPERATIONS,
}
_KINDS = {
    ResourceType.TOPIC: "KafkaTopicConfig",
    ResourceType.BROKER: "KafkaBrokerConfig",
    ResourceType.CLUSTER: "KafkaClusterConfig",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The topic, broker or cluster of a path, and the configs it has."""

    type: ResourceType
    name: str
    """Value of `ConfigChange.resource_name`; empty for the cluster."""
    scope: Scope
    owner: shapes.ConfigOwner
    rows: Collection[ConfigRow]
    topic: TopicImage | None = None


class ConfigRoutes(V3Routes):
    """Configs of the v3 API.

    The three kinds of paths share their handlers: between cluster and config name is one segment,
    or none for the cluster itself.
    """

    def add_to(self, router: PathRouter) -> None:
        for kind, declared in _OPERATIONS.items():
            self._serve(router, declared.list, partial(self.list_configs, kind))
            self._serve(router, declared.describe, partial(self.describe, kind))
            self._serve(router, declared.set, partial(self.set_value, kind))
            self._serve(router, declared.reset, partial(self.reset, kind))
            self._serve(router, declared.alter, partial(self.alter, kind))

    # reading

    async def list_configs(
        self, kind: ResourceType, request: web.Request, resource: str = ""
    ) -> JsonObject:
        """Answer the configs in force of one target, or (``-``) of every topic or live broker."""
        if resource != ALL:
            target = await self._target(kind, resource)
            path, targets = target.owner.path, [target]
        else:
            path = ("topics" if kind is ResourceType.TOPIC else "brokers", ALL, "configs")
            targets = self._all_targets(kind)
        wanted = PageRequest.of(request.query, self._links.url(*path))
        data: list[JsonObject] = []
        next_url, last = None, None
        for target in targets:
            await asyncio.sleep(0)  # there may be thousands
            rows_left = [row for row in target.rows if wanted.holds(_place_key(target, row))]
            if not rows_left:
                continue
            room = len(rows_left) if wanted.size is None else wanted.size - len(data)
            kept = sorted(rows_left, key=lambda row: row.name)[:room]
            if kept:
                layers = await self._layers(target)
                data += [
                    shapes.config(self._links, target.owner, _info(layers, target, row))
                    for row in kept
                ]
                last = _place_key(target, kept[-1])
            if len(kept) < len(rows_left) and last is not None:
                next_url = wanted.next_url(last)
                break
        return self._links.collection(_KINDS[kind], data, *path, next_url=next_url)

    async def describe(self, kind: ResourceType, request: web.Request, *path: str) -> JsonObject:
        """Answer one config."""
        target = await self._target(kind, *path[:-1])
        row = self._row(target, path[-1])
        info = _info(await self._layers(target), target, row)
        return shapes.config(self._links, target.owner, info)

    # writing

    async def set_value(self, kind: ResourceType, request: web.Request, *path: str) -> web.Response:
        """Set one config; 204."""
        target = await self._target(kind, *path[:-1])
        row = self._row(target, path[-1])
        fields = await read_json_object(request, self._body_bytes_max, '{"value":…}')
        check_fields(fields, fields_of(_OPERATIONS[kind].set))
        value = config_text("value", fields.get("value"))
        if value is None:
            raise wrong_kind("value", None, f"{row.expected}; DELETE resets a config")
        return await self._alter([_change(target, row.name, value)])

    async def reset(self, kind: ResourceType, request: web.Request, *path: str) -> web.Response:
        """Remove a config's value here; 204. Another source's value or the default is in force."""
        target = await self._target(kind, *path[:-1])
        return await self._alter([_change(target, self._row(target, path[-1]).name, None)])

    async def alter(
        self, kind: ResourceType, request: web.Request, resource: str = ""
    ) -> web.Response:
        """Set and reset many configs, of one or several topics: all, or none if one is refused."""
        target = None
        if kind is not ResourceType.TOPIC or resource != ALL:
            target = await self._target(kind, resource)
        shape = _ALL_CHANGES if target is None else _CHANGES
        fields = await read_json_object(request, self._body_bytes_max, shape)
        check_fields(fields, fields_of(_OPERATIONS[kind].alter))
        if target is not None:
            changes = self._changes(fields, target)
        else:
            changes = []
            for row in rows(fields, CHANGES_MAX, '{"topic_name", "configs"}'):
                check_fields(row, ("topic_name", "configs"), "data.")
                one = await self._target(kind, topic_in(row))
                changes += self._changes({"data": row.get("configs")}, one)
        return await self._alter(changes, validate_only=flag(fields, "validate_only"))

    def _changes(self, fields: dict[str, Any], target: Target) -> list[ConfigChange]:
        """Return a body's changes; an entry without ``operation`` sets (interfaces, section 4)."""
        changes = []
        for entry in rows(fields, CHANGES_MAX, _EXPECTED):
            check_fields(entry, ENTRY_FIELDS, "data.")
            name = entry.get("name")
            if not isinstance(name, str):
                raise wrong_kind("data.name", name, "a string")
            row = self._row(target, name)
            value = None
            if word(entry, "operation", OPERATIONS, "SET") == "SET":
                value = config_text(f"data.{name}", entry.get("value"))
                if value is None:
                    expected = f'{row.expected}; "operation": "DELETE" resets a config'
                    raise wrong_kind(f"data.{name}", None, expected)
            changes.append(_change(target, row.name, value))
        return changes

    async def _alter(
        self, changes: list[ConfigChange], *, validate_only: bool = False
    ) -> web.Response:
        command = AlterConfigs(changes=tuple(changes), validate_only=validate_only)
        await self._apis.admin(command)
        return reply(b"", JSON, 204)

    # the target of a path

    async def _target(self, kind: ResourceType, resource: str = "") -> Target:
        """Return the topic, broker or cluster of a path, or raise 404."""
        if kind is ResourceType.TOPIC:
            name = topic_name(resource)
            code = RestCode.UNKNOWN_TOPIC_OR_PARTITION
            return _topic_target(await topic_or_404(self._apis, name, code, NOT_HOSTED))
        if kind is ResourceType.CLUSTER:
            return Target(
                type=kind,
                name="",
                scope=Scope.CLUSTER,
                owner=shapes.CLUSTER_OWNER,
                rows=_CLUSTER_ROWS,
            )
        wanted = broker_id(resource)
        if wanted not in self._apis.image.brokers:
            raise RestError(404, RestCode.NOT_FOUND, f"Broker {wanted} cannot be found.")
        return _broker_target(wanted)

    def _all_targets(self, kind: ResourceType) -> list[Target]:
        image = self._apis.image
        if kind is ResourceType.TOPIC:
            ids = [image.topic_ids[name] for name in sorted(image.topic_ids)]
            return [_topic_target(image.topics[topic_id]) for topic_id in ids]
        return [_broker_target(one.broker_id) for one in live_brokers(image)]

    def _row(self, target: Target, name: str) -> ConfigRow:
        """Return the config of this name, or raise 404 in Confluent's words."""
        for row in target.rows:
            if row.name == name:
                return row
        text = (
            f"Config {excerpt(name)} cannot be found for {target.owner.message_name} "
            f"in cluster {self._apis.cluster_id}."
        )
        nearest_names = difflib.get_close_matches(
            name[:100], [row.name for row in target.rows], n=1
        )
        hint = f" Did you mean {nearest_names[0]}?" if nearest_names else ""
        raise RestError(404, RestCode.NOT_FOUND, text + hint)

    async def _layers(self, target: Target) -> ConfigLayers:
        """Return the values of all sources; those of a broker's own file are requested from it."""
        image = self._apis.image
        asked = self._apis.broker_id
        if target.type is ResourceType.BROKER:
            asked = BrokerId(int(target.name))
        static = (await self._apis.own_facts(asked)).static_configs
        if target.topic is not None:
            return topic_layers(image, target.topic.topic_id, static)
        if target.type is ResourceType.BROKER:
            return broker_layers(image, asked, static)
        return cluster_layers(image, static)


def _topic_target(topic: TopicImage) -> Target:
    return Target(
        type=ResourceType.TOPIC,
        name=topic.name,
        scope=Scope.TOPIC,
        owner=shapes.topic_owner(topic.name),
        rows=_TOPIC_ROWS,
        topic=topic,
    )


def _broker_target(broker: BrokerId) -> Target:
    return Target(
        type=ResourceType.BROKER,
        name=str(broker),
        scope=Scope.BROKER,
        owner=shapes.broker_owner(broker),
        rows=_BROKER_ROWS,
    )


def _info(layers: ConfigLayers, target: Target, row: ConfigRow) -> ConfigInfo:
    factor = None if target.topic is None else target.topic.replication_factor
    found = layers.describe(row, replication_factor=factor)
    return ConfigInfo(
        name=found.name,
        value=found.value,
        source=found.source.value,
        is_default=found.is_default,
        is_read_only=target.scope not in row.scopes,
        synonyms=tuple((one.value, one.source.value) for one in found.synonyms),
        meaning=row.meaning,
        expected=row.expected,
        update=row.update.value,
    )


def _change(target: Target, name: str, value: str | None) -> ConfigChange:
    return ConfigChange(
        resource_type=target.type, resource_name=target.name, name=name, value=value
    )


def _place_key(target: Target, row: ConfigRow) -> PageKey:
    """Return the order of configs in lists: by topic name or broker id, then by name."""
    owner = int(target.name) if target.type is ResourceType.BROKER else target.name
    return owner, row.name
