"""JSON shapes and texts of v2's consumer instances (``/consumers/G…``)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from http_api.contract.errors import RestCode, RestError, shown
from http_api.contract.v2 import as_pictures, check_name, has_control_characters

JsonObject = dict[str, Any]

IGNORED_HEADER = "Quorumlog-Ignored"
"""Names the settings of a new instance that have no meaning here, separated by commas."""
IGNORED_NAMED_MAX = 32
"""Kafka's consumer has about eighty settings; a header has to stay a header."""
_SETTING = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+")
"""Kafka's settings have dotted names."""

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
"""These four are Confluent's and Karapace's texts: clients compare whole bodies."""


def is_setting_name(key: str) -> bool:
    """Whether a key looks like one of Kafka's consumer settings, known here or not."""
    return len(key) <= 100 and _SETTING.fullmatch(key) is not None


def check_name_in_body(parameter: str, name: str) -> str:
    """As `check_name`, with the text that control characters get inside a body."""
    if has_control_characters(name):
        text = f"Parameter contained invalid control characters: {as_pictures(shown(name))}"
        raise RestError(400, RestCode.BAD_REQUEST, text)
    return check_name(parameter, name)


def created(instance: str, base_uri: str) -> JsonObject:
    """Where the new instance is reached; any other broker serves it under the same path."""
    return {"instance_id": instance, "base_uri": base_uri}


def partitions(rows: Iterable[tuple[str, int]]) -> JsonObject:
    """An assignment."""
    return {"partitions": [{"topic": topic, "partition": number} for topic, number in rows]}


def offsets(rows: Iterable[tuple[str, int, int, str]]) -> JsonObject:
    """Committed offsets: (topic, partition, offset, metadata)."""
    return {
        "offsets": [
            {"topic": topic, "partition": number, "offset": offset, "metadata": metadata}
            for topic, number, offset, metadata in rows
        ]
    }


def strimzi_subscription(topics: Iterable[str], owned: Iterable[tuple[str, int]]) -> JsonObject:
    """Strimzi's dialect: the partitions beside the topics, ``[{"T": [0, 1]}]``."""
    by_topic: dict[str, list[int]] = {}
    for topic, number in owned:
        by_topic.setdefault(topic, []).append(number)
    return {"topics": list(topics), "partitions": [{name: ids} for name, ids in by_topic.items()]}
