"""Settings of a consumer: typed keywords are the fields, and contradictions are refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from http_api.client.client_errors import ConfigError
from http_api.client.sdk.consumer_settings import ConsumerConfig, ConsumerKeywords, consumer_config


def test_the_typed_keywords_are_the_fields_of_the_config() -> None:
    fields = {one.name for one in dataclasses.fields(ConsumerConfig)}
    assert set(ConsumerKeywords.__annotations__) == fields


def test_dotted_names_and_keywords_mean_the_same() -> None:
    dotted = consumer_config(
        {"bootstrap.servers": "h:1", "group.id": "g", "fetch.wait.max.ms": "50"}, {}
    )
    assert dotted == consumer_config("h:1", {"group_id": "g", "fetch_max_wait_ms": 50})
    assert dotted.auto_offset_reset == "latest"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"auto_offset_reset": "newest"}, "auto_offset_reset"),
        ({"group_instance_id": "s"}, "group_id"),
        ({"value_deserializer": "json"}, "value_deserializer"),
        ({"max_partition_fetch_bytes": 1}, "max_partition_fetch_bytes"),
        ({"on_unreadable": "skip"}, "on_unreadable"),
        ({"grup_id": "g"}, "did you mean 'group_id'"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        consumer_config("h:1", settings)
