"""Calls that read and change the configs of topics, brokers and the cluster (v3 API).

Used by `quorumlog config` and programs of users. A `ConfigPlace` names the resource; each
function returns a `Call`; nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from http_api.client.admin import CREATE_TIMEOUT_S, v3_path
from http_api.client.calls import Answer, Call, Request


@dataclass(frozen=True, slots=True)
class ConfigPlace:
    """Resource that owns configs: a topic, a broker, or the cluster.

    Made by `of_topic` and `of_broker`, or taken from `OF_BROKERS` and `OF_CLUSTER`.
    """

    path: tuple[str | int, ...]


def of_topic(name: str) -> ConfigPlace:
    """Return the place of a topic's configs."""
    return ConfigPlace(("topics", name, "configs"))


def of_broker(broker_id: int) -> ConfigPlace:
    """Return the place of a broker's configs."""
    return ConfigPlace(("brokers", broker_id, "configs"))


OF_BROKERS = ConfigPlace(("brokers", "-", "configs"))
"""Configs of every live broker; this place can only be read."""
OF_CLUSTER = ConfigPlace(("broker-configs",))
"""Configs that hold for all brokers, and defaults for topics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigInfo:
    """A config of a resource: the value in force, its source, and the other values set for it."""

    name: str
    value: str
    source: str
    is_default: bool
    is_read_only: bool
    synonyms: tuple[tuple[str, str], ...]
    """(value, source) of every place where the config is set; the value in force comes first."""
    meaning: str
    expected: str
    update: str
    """``live`` or ``restart``: a new value is in force at once, or after a restart."""
    broker_id: int | None
    topic: str | None


def configs(cluster_id: str, place: ConfigPlace) -> Call[list[ConfigInfo]]:
    """Return the call that lists all configs in force at a place."""
    request = Request(method="GET", path=v3_path(cluster_id, *place.path))
    return Call(request, lambda answer: [_config(row) for row in answer.resources()])


def config(cluster_id: str, place: ConfigPlace, name: str) -> Call[ConfigInfo]:
    """Return the call that reads a config; `ApiError` 404 if no config has this name."""
    request = Request(method="GET", path=v3_path(cluster_id, *place.path, name))
    return Call(request, lambda answer: _config(answer.json()))


def alter_configs(
    cluster_id: str,
    place: ConfigPlace,
    changes: Mapping[str, str | None],
    *,
    validate_only: bool = False,
) -> Call[None]:
    """Return the call that sets each config to its value, or resets it where the value is None.

    The changes are made together: if any is refused, none is made. ``validate_only`` makes none.
    """
    rows: list[dict[str, Any]] = [
        {"name": name, "operation": "DELETE"}
        if value is None
        else {"name": name, "operation": "SET", "value": value}
        for name, value in changes.items()
    ]
    request = Request(
        method="POST",
        path=v3_path(cluster_id, *place.path) + ":alter",
        body=orjson.dumps({"data": rows, "validate_only": validate_only}),
        timeout_s=CREATE_TIMEOUT_S,
    )
    return Call(request, _nothing)


def _nothing(_: Answer) -> None:
    return None


def _config(row: Mapping[str, Any]) -> ConfigInfo:
    return ConfigInfo(
        name=row["name"],
        value=row["value"],
        source=row["source"],
        is_default=row["is_default"],
        is_read_only=row["is_read_only"],
        synonyms=tuple((one["value"], one["source"]) for one in row["synonyms"]),
        meaning=row["meaning"],
        expected=row["expected"],
        update=row["update"],
        broker_id=row.get("broker_id"),
        topic=row.get("topic_name"),
    )
