"""JSON shapes and error texts of consumer instances in the v2 API (``/consumers/G…``)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from http_api.contract.errors import RestCode, RestError, shown
from http_api.contract.v2 import as_pictures, check_name, has_control_characters

JsonObject = dict[str, Any]

IGNORED_HEADER = "Quorumlog-Ignored"
"""Header with the settings of a new instance that have no effect here, separated by commas."""
IGNORED_NAMED_MAX = 32
"""Most settings named in that header, to limit its size; Kafka's consumer has about eighty."""
_SETTING = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+")
"""Matches the dotted names of Kafka's settings."""

INSTANCE_NOT_FOUND = "Consumer instance not found."
INSTANCE_EXISTS = (
    "Consumer with specified consumer ID already exists in the specified consumer group."
)
FORMAT_MISMATCH = (
    "The requested embedded data format does not match the deserializer for this consumer instance"
)
ONE_WAY_ONLY = (
    "IllegalStateError: You must choose only one way to configure your consumer: (1) subscribe to "
    "specific topics by name, (2) subscribe to topics matching a regex pattern, (3) assign itself "
    "specific topic-partitions."
)
"""The four texts above are Confluent's and Karapace's, because clients compare whole bodies."""


def is_setting_name(key: str) -> bool:
    """Return True if a key has the form of Kafka's consumer settings, whether known here or not."""
    return len(key) <= 100 and _SETTING.fullmatch(key) is not None


def check_name_in_body(parameter: str, name: str) -> str:
    """Return a valid name from a body.

    Raises:
        RestError: as `check_name`, with the text for control characters that bodies get.
    """
    if has_control_characters(name):
        text = f"Parameter contained invalid control characters: {as_pictures(shown(name))}"
        raise RestError(400, RestCode.BAD_REQUEST, text)
    return check_name(parameter, name)


def created(instance: str, base_uri: str) -> JsonObject:
    """Return the answer to a create: the instance's id and URL; all brokers serve the same path."""
    return {"instance_id": instance, "base_uri": base_uri}


def partitions(rows: Iterable[tuple[str, int]]) -> JsonObject:
    """Return an assignment."""
    return {"partitions": [{"topic": topic, "partition": number} for topic, number in rows]}


def offsets(rows: Iterable[tuple[str, int, int, str]]) -> JsonObject:
    """Return committed offsets, given as (topic, partition, offset, metadata)."""
    return {
        "offsets": [
            {"topic": topic, "partition": number, "offset": offset, "metadata": metadata}
            for topic, number, offset, metadata in rows
        ]
    }


def strimzi_subscription(topics: Iterable[str], owned: Iterable[tuple[str, int]]) -> JsonObject:
    """Return a subscription in Strimzi's dialect: topics, and partitions as ``[{"T": [0, 1]}]``."""
    by_topic: dict[str, list[int]] = {}
    for topic, number in owned:
        by_topic.setdefault(topic, []).append(number)
    return {"topics": list(topics), "partitions": [{name: ids} for name, ids in by_topic.items()]}
