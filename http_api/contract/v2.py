"""JSON shapes of the v2 door (Confluent REST Proxy v2), and what its names may be.

Metadata answers are small dicts; the answer to a produce is formatted bytes, because it has one row
per record.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import orjson

from http_api.contract.errors import (
    RestCode,
    RestError,
    record_error_code,
    record_error_name,
    shown,
)
from raft_metadata.common.internal_topics import INTERNAL_TOPICS as INTERNAL_TOPICS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from raft_metadata.common.errors import KafkaError

JsonObject = dict[str, Any]

NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
"""Topics, groups, instances. 249: Kafka's limit, so that ``<name>-<partition>`` is a file name."""

_CONTROL = re.compile("[\x00-\x1f\x7f]")
_PICTURES = {**{code: 0x2400 + code for code in range(0x20)}, 0x7F: 0x2421}

OFFSET_ROW = b'{"partition":%d,"offset":%d,"error_code":null,"error":null}'
_ROW_TO_ROW = b',"error_code":null,"error":null},{"partition":%d,"offset":'
_REPLY_START = b'{"offsets":['
_REPLY_END = b'],"key_schema_id":null,"value_schema_id":null}'


def check_name(parameter: str, name: str) -> str:
    """A name from a path, or a refusal.

    Control characters come first and are shown as control pictures (clients test this text).

    Raises:
        RestError: 400/400 for control characters, 400/40002 for any other unfit name.
    """
    if NAME.fullmatch(name) and name not in {".", ".."}:
        return name
    if has_control_characters(name):
        pictures = as_pictures(shown(name))
        raise RestError(
            400, RestCode.BAD_REQUEST, f"Invalid parameter '{parameter}' got '{pictures}'"
        )
    raise RestError(
        400,
        RestCode.KAFKA_BAD_REQUEST,
        f"Invalid {parameter} '{shown(name)}': expected 1 to 249 characters of A-Z a-z 0-9 . _ - "
        "and neither '.' nor '..'",
    )


def has_control_characters(name: str) -> bool:
    """Whether a name holds what can't be shown as it is."""
    return _CONTROL.search(name) is not None


def as_pictures(text: str) -> str:
    """Control characters as control pictures (U+2400 and on)."""
    return text.translate(_PICTURES)


def produce_reply(rows: Iterable[bytes]) -> bytes:
    """The answer to a produce; ``rows`` in request order."""
    return _REPLY_START + b",".join(rows) + _REPLY_END


def consecutive_rows(partition: int, base_offset: int, count: int) -> bytes:
    """The rows of records that stand one behind the other; of all of them -1 if that is the base.

    Five times as fast as formatting each: the numbers are written in one go.
    """
    if base_offset < 0 or count == 1:
        return b",".join([OFFSET_ROW % (partition, base_offset)] * count)
    numbers = orjson.dumps(list(range(base_offset, base_offset + count)))
    between = numbers[1:-1].replace(b",", _ROW_TO_ROW % partition)
    return b'{"partition":%d,"offset":%b,"error_code":null,"error":null}' % (partition, between)


def failed_row(error: KafkaError) -> bytes:
    """The row of a record that failed; ``retriable`` and ``outcome`` where a retry may help."""
    code = record_error_code(error)
    row: JsonObject = {
        "partition": None,
        "offset": None,
        "error_code": int(code),
        "error": f"{record_error_name(error)}: {error.message}",
    }
    if code >= RestCode.KAFKA_ERROR:
        row["retriable"] = error.code.retriable
        row["outcome"] = error.outcome.value
    return orjson.dumps(row)


def partition(
    partition_id: int, leader: int, replicas: Sequence[int], isr: Sequence[int]
) -> JsonObject:
    """One partition; ``leader`` is -1 when nobody leads."""
    return {
        "partition": partition_id,
        "leader": leader,
        "replicas": [
            {"broker": broker, "leader": broker == leader, "in_sync": broker in isr}
            for broker in replicas
        ],
    }


def topic(name: str, configs: Mapping[str, str], partitions: list[JsonObject]) -> JsonObject:
    """One topic with its effective configs."""
    return {"name": name, "configs": dict(configs), "partitions": partitions}


def offsets(beginning_offset: int, end_offset: int) -> JsonObject:
    """Both ends of a partition; ``end_offset`` is the next one a reader gets."""
    return {"beginning_offset": beginning_offset, "end_offset": end_offset}


def brokers(ids: Iterable[int]) -> JsonObject:
    """The brokers that are alive."""
    return {"brokers": sorted(ids)}
