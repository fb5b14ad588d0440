"""JSON Schemas of answers, read off their examples, and small schemas that bodies share.

An answer is declared by an example, which the functions that make the answers produce where they
can. `schema_of` derives the types of its fields from it, so an example can't contradict its schema.
What an example can't show stands in two tables: fields that may be null, and fields that may be
absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

NULLABLE: Final = frozenset(
    {
        "base_offset",
        "blocked_offset",
        "broker_epoch",
        "caught_up_age_ms",
        "contact_age_ms",
        "controller",
        "controller_id",
        "current_offset",
        "decided_ms",
        "directory_id",
        "epoch",
        "error",
        "error_code",
        "fence",
        "group_id",
        "instance_id",
        "key",
        "lag",
        "last",
        "last_caught_up_timestamp",
        "last_fetch_timestamp",
        "last_known_leader",
        "leader",
        "leader_end_offset",
        "leader_epoch",
        "leader_id",
        "log_directory_error",
        "log_end_index",
        "log_end_offset",
        "max_lag",
        "max_lag_consumer",
        "max_lag_partition",
        "max_lag_partition_id",
        "max_lag_topic_name",
        "member_id",
        "next",
        "offset",
        "partition",
        "rack",
        "shutdown_blocked_by",
        "state",
        "timestamp",
        "topic",
        "topic_id",
        "topic_name",
        "total_lag",
        "url",
        "value",
    }
)
"""Names of fields that hold null where there is no value, in any answer."""
OPTIONAL: Final = frozenset({"drain_progress", "key", "shutdown_blocked_by", "value"})
"""Names of fields that are absent where there is no value, in any answer."""

Schema = Mapping[str, Any]


class ByName(dict[str, Any]):
    """Example of an object whose fields are named by the data, as configs by their names.

    Its values are alike; the first one stands for all of them.
    """


class Either:
    """Examples of an answer that has one of several shapes."""

    def __init__(self, *examples: Any) -> None:
        self.examples = examples


class AnyValue:
    """Example of a place that holds any JSON."""

    def __init__(self, example: Any) -> None:
        self.example = example


def plain(example: Any) -> Any:
    """Return an example as JSON, without the marks of its schema."""
    match example:
        case AnyValue(example=inner):
            return plain(inner)
        case list():
            return [plain(each) for each in example]
        case dict():
            return {name: plain(value) for name, value in example.items()}
        case _:
            return example


def schema_of(example: Any, name: str = "") -> dict[str, Any]:
    """Return the schema of values like ``example``, which is the field ``name`` of an object.

    Fields that an object has besides those of the example are allowed: answers may grow.
    """
    if example is None or isinstance(example, AnyValue):
        return {}
    found = _schema_of_value(example)
    if name in NULLABLE and "type" in found:
        return found | {"type": [found["type"], "null"]}
    return found


def _schema_of_value(example: Any) -> dict[str, Any]:
    match example:
        case bool():
            return {"type": "boolean"}
        case int():
            return {"type": "integer"}
        case float():
            return {"type": "number"}
        case str():
            return {"type": "string"}
        case list():
            return {"type": "array", "items": schema_of(example[0]) if example else {}}
        case Either(examples=examples):
            return {"anyOf": [schema_of(each) for each in examples]}
        case ByName():
            return {
                "type": "object",
                "additionalProperties": schema_of(next(iter(example.values()))),
            }
        case dict():
            return {
                "type": "object",
                "properties": {name: schema_of(value, name) for name, value in example.items()},
                "required": [name for name in example if name not in OPTIONAL],
            }
        case _:
            msg = f"example {example!r} is no JSON"
            raise TypeError(msg)


def nullable(schema: Schema) -> dict[str, Any]:
    """Return a schema that takes null, too."""
    return {**schema, "type": [schema["type"], "null"]}
