"""Calls about configs of topics, brokers and the cluster (v3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from http_api.client.admin import CREATE_TIMEOUT_S, v3_path
from http_api.client.calls import Answer, Call, Request


@dataclass(frozen=True, slots=True)
class ConfigPlace:
    """Whose configs: a topic's, a broker's, or the cluster's. Made by the functions below."""

    path: tuple[str | int, ...]


def of_topic(name: str) -> ConfigPlace:
    """One topic's."""
    return ConfigPlace(("topics", name, "configs"))


def of_broker(broker_id: int) -> ConfigPlace:
    """One broker's."""
    return ConfigPlace(("brokers", broker_id, "configs"))


OF_BROKERS = ConfigPlace(("brokers", "-", "configs"))
"""Every live broker's: to be read only."""
OF_CLUSTER = ConfigPlace(("broker-configs",))
"""Those of all brokers, and the defaults of topics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigInfo:
    """A config: what is in force, who said so, and what else was said."""

    name: str
    value: str
    source: str
    is_default: bool
    is_read_only: bool
    synonyms: tuple[tuple[str, str], ...]
    """(value, source) of every place that says something, the one in force first."""
    meaning: str
    expected: str
    update: str
    """live | restart: what it takes until a new value is in force."""
    broker_id: int | None
    topic: str | None


def configs(cluster_id: str, place: ConfigPlace) -> Call[list[ConfigInfo]]:
    """All that is in force there."""
    request = Request(method="GET", path=v3_path(cluster_id, *place.path))
    return Call(request, lambda answer: [_config(row) for row in answer.resources()])


def config(cluster_id: str, place: ConfigPlace, name: str) -> Call[ConfigInfo]:
    """One config; `ApiError` 404 if there is none of this name."""
    request = Request(method="GET", path=v3_path(cluster_id, *place.path, name))
    return Call(request, lambda answer: _config(answer.json()))


def alter_configs(
    cluster_id: str,
    place: ConfigPlace,
    changes: Mapping[str, str | None],
    *,
    validate_only: bool = False,
) -> Call[None]:
    """Set, or reset where the value is None: all, or none where one is refused."""
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
